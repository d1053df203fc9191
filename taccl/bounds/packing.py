"""What all chunks pay together: the cheapest tree of each, at prices that make this dear.

To reach everyone, a chunk travels on links that contain a spanning tree from its source; to be
summed, on links that turned round contain one from its owner. Whatever the prices of a unit on
each edge, all trees cost at least what the cheapest ones do, so

    sum over chunks of the cheapest tree's cost  <=  sum over edges of price * units on the edge

for every algorithm, also for one without symmetry, and for parts of chunks, too. The edges are
handed over as gates with their prices as weights. A port or NIC that several links share is
priced once, for all of them: that is where this is above every cut. Only good prices need a
search: those of an optimal fractional packing of trees (``taccl.prices.packing``). They are
rounded to integers, and the trees of all roots then found exactly.

Where switches copy and add, a chunk travels on arcs that contain a tree past such switches: no
tree is cheaper than dual ascent proves (``taccl.prices.arborescence``).
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from taccl.bounds.arrival_curves import Gate, gather
from taccl.bounds.flow import rounded
from taccl.bounds.latency import farthest
from taccl.bounds.net import Crossing, IntArray, Net, proved_orbits, tasks_of
from taccl.collectives import Collective
from taccl.collectives.chunks import SLICE
from taccl.prices.packing import (
    Floats,
    Kind,
    PackingInstance,
    PricingProblem,
    best_prices,
    cheapest,
    look_alike,
)

MOST_LINKS = 400_000
"""Above this, and where each edge is a row, the trees take too long; there are as many where all
ranks share a switch."""

MOST_STEPS = 100_000
"""Arcs of all roots together, above which trees past helpers take too long."""

SECONDS = 1.0
"""After this the best prices so far are taken."""

PRICE_UNITS = 1 << 30
"""Steps of the longest time of a byte."""

SIZES = (1 << 20, 1 << 26)
"""Bytes of a root for which waiting is weighed against sending; the bound holds for all sizes."""


def packing_crossings(net: Net, collective: Collective) -> Iterator[Crossing]:
    """Yield the units of every chunk at the prices of an optimal packing of spanning trees.

    Left out where some chunk of the `collective` on `net` is for a few ranks only, or summed for
    several.
    """
    if len(net.src) > MOST_LINKS or net.relays:
        return
    kinds = _kinds(net, collective)
    edges = np.array([edge for edge in net.used if edge in net.busy], dtype=np.int64)
    if not kinds or not len(edges):
        return
    if net.helpers and len(kinds) * len(net.src) > MOST_STEPS:
        return
    busy = np.array([float(net.busy[edge]) for edge in edges.tolist()])
    pricing = _pricing_problem(net, edges, busy, backwards=collective.reduces)
    each = replace(pricing, load=np.ones(len(pricing.load), dtype=np.int64))
    # A message on an edge comes from its nearest root.
    roots = sorted({rank for kind in kinds for rank in kind.roots.tolist()})
    near = net.way_from(*roots, backwards=collective.reduces)[pricing.tail]
    gates = [
        net.gate(
            edge, net.through[edge], 1, int(near[net.through[edge]].min()), left=collective.reduces
        )
        for edge in edges.tolist()
    ]
    role = np.zeros(net.num_ranks)
    for kind in kinds:
        role[kind.roots] += kind.count / len(kind.roots)
    orbit = proved_orbits(net).edge[edges] if len(set(role.tolist())) == 1 else edges
    orbit = np.unique(orbit, return_inverse=True)[1]
    alike = look_alike(net.topology, role, edges)
    seconds = SECONDS if collective.root is None else SECONDS / 2
    for idle in _waits(net, collective, gates):
        prices, _, _ = best_prices(PackingInstance(pricing, kinds, idle, alike, orbit), seconds)
        for weights in rounded(prices * busy):
            total, _ = cheapest(each, kinds, each.costs(weights))
            priced = zip(gates, weights.tolist(), strict=True)
            used = gather(gate._replace(weight=weight) for gate, weight in priced if weight)
            yield Crossing("packing", used, Fraction(total, collective.chunks_in_size))


def _waits(net: Net, collective: Collective, gates: Sequence[Gate]) -> Iterator[IntArray]:
    """Yield how long every edge is idle, as far as the search for prices is to know.

    Nothing, first. Messages of any size make it count the less the larger they are; where it is
    the same for all, prices are, too. No edge is said to wait longer than the whole takes at
    least: one that does has no price that proves anything.
    """
    starts = np.array([gate.start for gate in gates], dtype=np.int64)
    yield np.zeros(len(gates), dtype=np.int64)
    if net.chunk is not None and starts.any():
        yield np.minimum(starts, farthest(net, collective))
    elif net.chunk is None and collective.root is not None and len(set(starts.tolist())) > 1:
        known = np.minimum(starts, farthest(net, collective))
        longest = float(max(net.busy.values()))
        for size in SIZES:
            yield np.rint(known / (longest * size) * PRICE_UNITS).astype(np.int64)


def _kinds(net: Net, collective: Collective) -> list[Kind]:
    """Return the chunks by where their trees start; empty where one is not for everyone."""
    sizes = np.array([len(ranks) for ranks in collective.rank_sets], dtype=np.int64)
    for first in range(0, collective.num_chunks, SLICE):  # known before they are counted
        part = slice(first, first + SLICE)
        touched = sizes[collective.source_set[part]] + sizes[collective.target_set[part]]
        if (touched < net.num_ranks).any():
            return []
    found, ranks = [], net.num_ranks
    around = np.arange(2 * ranks) % ranks
    for sources, targets, count in tasks_of(collective):
        roots, others = (targets, sources) if collective.reduces else (sources, targets)
        if len(roots) == 1 and len(others) == ranks:
            # All but the root, as a part of one row: thousands of rows would be too much to hold.
            ends = around[roots[0] + 1 : roots[0] + ranks]
        elif len({*roots, *others}) < ranks or (collective.reduces and len(roots) > 1):
            return []
        else:
            ends = np.array(sorted(set(others) - set(roots)), dtype=np.int64)
        if len(ends):
            found.append(Kind(np.array(sorted(roots), dtype=np.int64), ends, None, count))
    return found


def _pricing_problem(net: Net, edges: IntArray, busy: Floats, *, backwards: bool) -> PricingProblem:
    """Return the links, and the time of a unit on their edges in whole steps."""
    number = np.full(len(net.topology.edges), -1, dtype=np.int32)
    number[edges] = np.arange(len(edges))
    kept = number[net.edges] >= 0
    before = np.concatenate([[0], np.cumsum(kept)])
    scale = PRICE_UNITS / busy.max() if net.chunk is None else 1.0
    steps = np.rint(busy * scale).astype(np.int64)
    used = number[net.edges[kept]]
    tail, head = (net.dst, net.src) if backwards else (net.src, net.dst)
    return PricingProblem(
        net.vertices, len(edges), tail.astype(np.int32), head.astype(np.int32),
        before[net.first], used, steps[used], len(net.helpers),
    )  # fmt: skip

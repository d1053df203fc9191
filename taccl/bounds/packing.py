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

Prices of edges from the best fractional packing of spanning trees, either direction free.

Sets        t spanning trees of the ranks, o classes of edges that look alike, count[o] of each
Variables   x[t] >= 0   how much of all data goes along a tree;  T
Minimise    T
Subject to  (all)       sum_t x[t] = 1
            (capacity)  sum_t x[t] * load[t,o] <= count[o] * T

where load[t,o] is the time that a tree keeps edges of the class busy. Trees are added one at a
time: the cheapest at prices between the duals of the capacities and the best so far, which are
those whose cheapest tree is dearest (Wentges smoothing). Any prices make a valid bound.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from taccl.bounds.arrival_curves import Gate, gather
from taccl.bounds.flow import rounded
from taccl.bounds.latency import farthest
from taccl.bounds.net import Crossing, IntArray, Net, proved_orbits, tasks_of
from taccl.collectives import Collective
from taccl.prices.packing import Question, best_prices, look_alike
from taccl.prices.pricing import Floats, Kind, Market, cheapest

FINE = 1 << 24
"""Steps that prices are rounded to, of the largest."""

MOST_LINKS = 200_000
MOST_CLASSES = 1_000
"""Above these the search would take seconds."""

ROUNDS = 60
"""Trees that are looked at."""

WARM = 40
"""The first trees, at most, come from raised prices, without a program solved in between."""

FEW_CLASSES = 8
"""Up to so many classes of edges, the duals need no smoothing."""

STEADY = 0.5
"""Share of the best prices so far in the next."""

CLOSE = 1e-5
"""Of the optimum: closer, another tree is not worth a round."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of ranks with links, in either direction.

    Parameters
    ----------
    num_ranks
        Ranks are ``0 .. num_ranks-1``.
    low, high
        The ranks of each pair.
    order, first
        The links of pair i are ``order[first[i]:first[i+1]]``.
    """

    num_ranks: int
    low: IntArray
    high: IntArray
    order: IntArray
    first: IntArray

    def cheapest(self, cost: IntArray) -> IntArray:
        """Return the link of each pair that costs least."""
        ranked = cost[self.order]
        size = np.diff(self.first, append=len(ranked))
        least = np.repeat(np.minimum.reduceat(ranked, self.first), size)
        at = np.flatnonzero(ranked == least)
        pair = np.repeat(np.arange(len(size)), size)[at]
        links: IntArray = self.order[at[np.unique(pair, return_index=True)[1]]]
        return links


def pairs_of(net: Net) -> Pairs:
    """Return the pairs of ranks that have a link."""
    key = np.minimum(net.src, net.dst) * net.num_ranks + np.maximum(net.src, net.dst)
    order = np.argsort(key, kind="stable")
    names, first = np.unique(key[order], return_index=True)
    return Pairs(net.num_ranks, names // net.num_ranks, names % net.num_ranks, order, first)


def cheapest_tree(pairs: Pairs, cost: IntArray) -> IntArray:
    """Return the links of a spanning tree of least cost (Kruskal's).

    Parameters
    ----------
    pairs
        The pairs of ranks that have a link.
    cost
        Price of each link.
    """
    links = pairs.cheapest(cost)
    order = np.argsort(cost[links], kind="stable")
    parent = list(range(pairs.num_ranks))
    chosen: list[int] = []
    ends = zip(pairs.low[order].tolist(), pairs.high[order].tolist(), strict=True)
    for place, (low, high) in zip(order.tolist(), ends, strict=True):
        low, high = _root(parent, low), _root(parent, high)
        if low != high:
            parent[low] = high
            chosen.append(place)
            if len(chosen) == pairs.num_ranks - 1:
                break
    return links[chosen]


def _root(parent: list[int], rank: int) -> int:
    while parent[rank] != rank:
        parent[rank] = parent[parent[rank]]
        rank = parent[rank]
    return rank


def tree_prices(net: Net, pairs: Pairs) -> Floats | None:
    """Return a price for a unit on every edge of the topology; None when it would take too long.

    Parameters
    ----------
    net
        The network.
    pairs
        Its pairs of ranks that have a link.
    """
    used = np.array(net.used)
    if len(net.src) > MOST_LINKS or not net.busy:
        return None
    classes = look_alike(net.topology, np.zeros(net.num_ranks), used)
    names, row = np.unique(classes, return_inverse=True)
    if len(names) > MOST_CLASSES:
        return None
    busy, row_of = np.zeros(len(net.topology.edges)), np.zeros(len(net.topology.edges), np.int64)
    busy[list(net.busy)] = [float(time) for time in net.busy.values()]
    row_of[used] = row
    counts = np.bincount(row).astype(np.float64)
    owner = np.repeat(np.arange(len(net.src)), np.diff(net.first))
    dual = best = np.full(len(names), 1 / counts.sum())
    dearest, steady = 0.0, STEADY if len(names) > FEW_CLASSES else 0.0
    columns: list[Floats] = []
    for number in range(ROUNDS):
        prices = dual[row_of] * busy
        steps = np.rint(prices / prices.max() * FINE).astype(np.int64)
        cost = np.add.reduceat(steps[net.edges], net.first[:-1])
        tree = np.zeros(len(net.src), dtype=np.bool_)
        tree[cheapest_tree(pairs, cost)] = True
        edges = net.edges[tree[owner]]
        price = float(prices[edges].sum())
        if price > dearest:
            best, dearest = dual, price
        load = np.bincount(row_of[edges], weights=busy[edges], minlength=len(names))
        columns.append(load.astype(np.float64))
        if number < len(names) and number < WARM:
            # Dearer where this tree is: the first trees differ before they are weighed up.
            dual = dual * np.exp(load / counts / (load / counts).max())
            dual /= counts @ dual
            continue
        found = _master(np.array(columns), counts)
        if found is None or found[0] <= dearest * (1 + CLOSE):
            break
        dual = steady * best + (1 - steady) * found[1]
    return best[row_of] * busy


def _master(loads: Floats, counts: Floats) -> tuple[float, Floats] | None:
    """Return the time of the best mix of trees, and the dual of each capacity."""
    from scipy.optimize import linprog

    trees, rows = loads.shape
    scale = loads.max()
    result = linprog(
        np.array([*[0.0] * trees, 1.0]),
        A_ub=np.hstack([loads.T / scale, -counts[:, None]]), b_ub=np.zeros(rows),
        A_eq=np.array([[*[1.0] * trees, 0.0]]), b_eq=np.array([1.0]), method="highs",
    )  # fmt: skip
    if result.status != 0:
        return None
    return float(result.fun) * scale, np.maximum(-result.ineqlin.marginals, 0.0)


MOST_PRICED_LINKS = 400_000
"""Above this the trees take too long; there are as many where all ranks share a switch."""

SECONDS = 1.0
"""After this the best prices so far are taken."""

PRICE_UNITS = 1 << 30
"""Steps of the longest time of a byte."""

SIZES = (1 << 20, 1 << 26)
"""Bytes of a root for which waiting is weighed against sending; the bound holds for all sizes."""


def packing_crossings(net: Net, collective: Collective) -> Iterator[Crossing]:
    """Yield the units of every chunk at the prices of an optimal packing of spanning trees.

    Left out where some chunk is for a few ranks only, or summed for several.

    Parameters
    ----------
    net
        The network.
    collective
        What is done.
    """
    kinds = _kinds(net, collective)
    edges = np.array([edge for edge in net.used if edge in net.busy], dtype=np.int64)
    if not kinds or not len(edges) or len(net.src) > MOST_PRICED_LINKS:
        return
    market = _market(net, edges, backwards=collective.reduces)
    leads = _leads(net, edges, kinds, backwards=collective.reduces)
    gates = [
        net.gate(edge, net.through[edge], 1, lead)
        for edge, lead in zip(edges.tolist(), leads, strict=True)
    ]
    each = replace(market, load=np.ones(len(market.load), dtype=np.int64))
    alike, orbit = _classes(net, edges, kinds)
    seconds = SECONDS if collective.root is None else SECONDS / 2
    for idle in _waits(net, collective, gates):
        prices, _, _ = best_prices(Question(market, kinds, idle, alike, orbit), seconds)
        for weights in rounded(np.multiply(prices, _busy(net, edges))):
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
    touched = sizes[collective.source_set] + sizes[collective.target_set]
    if (touched < net.num_ranks).any():  # known before a million chunks are looked at one by one
        return []
    found = []
    for sources, targets, count in tasks_of(collective):
        roots, others = (targets, sources) if collective.reduces else (sources, targets)
        if len({*roots, *others}) < net.num_ranks or (collective.reduces and len(roots) > 1):
            return []
        ends = [np.array(sorted(set(others) - set(roots)), dtype=np.int64)]
        if len(ends[0]):
            found.append(Kind(np.array(sorted(roots), dtype=np.int64), ends[0], None, count))
    return found


def _busy(net: Net, edges: IntArray) -> Floats:
    return np.array([float(net.busy[edge]) for edge in edges.tolist()])


def _market(net: Net, edges: IntArray, *, backwards: bool) -> Market:
    """Return the links, and the time of a unit on their edges in whole steps."""
    number = np.full(len(net.topology.edges), -1, dtype=np.int32)
    number[edges] = np.arange(len(edges))
    kept = number[net.edges] >= 0
    before = np.concatenate([[0], np.cumsum(kept)])
    busy = _busy(net, edges)
    scale = PRICE_UNITS / busy.max() if net.chunk is None else 1.0
    steps = np.rint(busy * scale).astype(np.int64)
    used = number[net.edges[kept]]
    tail, head = (net.dst, net.src) if backwards else (net.src, net.dst)
    return Market(
        net.num_ranks, len(edges), tail.astype(np.int32), head.astype(np.int32),
        before[net.first], used, steps[used],
    )  # fmt: skip


def _leads(net: Net, edges: IntArray, kinds: Sequence[Kind], *, backwards: bool) -> list[int]:
    """Return how far every edge is from the nearest root, in time."""
    roots = sorted({rank for kind in kinds for rank in kind.roots.tolist()})
    if len(roots) == net.num_ranks:
        return [0] * len(edges)
    far = net.distance_from(*roots, backwards=backwards)[net.dst if backwards else net.src]
    return [int(far[net.through[edge]].min()) for edge in edges.tolist()]


def _classes(net: Net, edges: IntArray, kinds: Sequence[Kind]) -> tuple[IntArray, IntArray]:
    """Return a number for each edge by looks, and by orbit where all ranks do the same."""
    role = np.zeros(net.num_ranks)
    for kind in kinds:
        role[kind.roots] += kind.count / len(kind.roots)
    orbit = proved_orbits(net).edge if len(set(role.tolist())) == 1 else np.arange(edges.max() + 1)
    looks = look_alike(net.topology, role, edges)
    return looks, np.unique(orbit[edges], return_inverse=True)[1]

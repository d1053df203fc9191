"""All-to-all against the whole network at once: a multi-commodity flow, proved by its prices.

Sets        s source ranks, v vertices, e edges with the time busy[e] of one unit (one block of
            all-to-all; one chunk of a collective from a file)
Variables   f[s,e] >= 0   units of rank s's data on edge e;  T
Minimise    T
Subject to  (arrive)    in minus out of f[s] is the demand at every vertex but s
            (capacity)  busy[e] * sum_s f[s,e] <= T

The solver's numbers are not trusted: any prices p[e] >= 0 for a unit on edge e prove

    sum over pairs of demand * price distance  <=  sum_e p[e] * units on e

because every unit pays at least the price distance. So the duals are rounded to integers, the
distances over allowed links computed exactly, and the edges handed over as gates with weight p[e].
The same holds for a chunk that several ranks want, have, or sum: it pays at least what its
farthest target does to the nearest source, for a sum to the farthest; the program then only
chooses good prices.
Rotations that the topology declares make the program smaller: prices are then equal on images.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from taccl.bounds.arrival_curves import gather
from taccl.bounds.net import (
    Crossing,
    IntArray,
    Net,
    Orbits,
    Task,
    by_head,
    is_uniform,
    proved_orbits,
    relaxed,
    shortest,
    tasks_of,
)
from taccl.collectives import Collective
from taccl.topology.graph import Topology

MOST_VARIABLES = 60_000
MOST_SOLVED = 1024
"""Ranks up to which prices are those of a program; of more, a unit costs the time that it takes."""

MOST_RANKS = 4096
SECONDS = 20.0
"""After this the solver gives up, and prices are those times, too."""
FINE = 1 << 24
"""Prices are rounded to this many steps, and to fractions of small numbers."""
COARSE = 840

FEW = 64
"""Ranks from which distances are found one by one; from more all are found together."""

Floats = NDArray[np.float64]


def flow_crossings(net: Net, collective: Collective) -> Iterator[Crossing]:
    """Yield the demand of all pairs of `net` (or of any chunks) at the prices of an optimal flow.

    What has a worst cut instead is left out: a `collective` like all-gather, or with one root.
    """
    by_chunk = not is_uniform(collective)
    if (by_chunk and collective.root is not None) or net.num_ranks > MOST_RANKS:
        return
    if not by_chunk and collective.name != "alltoall":
        return
    tasks = tasks_of(collective) if by_chunk else None
    if tasks is not None and len(tasks) * net.num_ranks > MOST_VARIABLES:
        return
    orbits = proved_orbits(net)
    if tasks is None:
        alike, demand = orbits.edge, np.ones((net.num_ranks, net.num_ranks))
        sources, copies = np.unique(orbits.rank, return_counts=True)
    else:
        alike = np.arange(len(net.topology.edges), dtype=np.int64)
        demand = _chosen(net, tasks, reduces=collective.reduces)
        sources = np.flatnonzero(demand.any(axis=1))
        copies = np.ones(len(sources), dtype=np.int64)
    if len(sources) * len(net.used) > MOST_VARIABLES or not net.busy or not len(sources):
        return
    small = net.num_ranks <= MOST_SOLVED
    prices = np.zeros(len(net.topology.edges))
    prices[list(net.busy)] = [float(time) for time in net.busy.values()]
    if small:
        scale = float(max(net.busy.values()))
        busy = tuple(float(net.busy.get(e, Fraction(0))) / scale for e in net.used)
        columns = tuple(map(tuple, (sources.tolist(), copies.tolist(), alike.tolist())))
        # The same for all chunk sizes where edges take the same part of the time of the slowest.
        solved = _solve(net.topology, tuple(net.used), busy, columns, demand[sources].tobytes())
        prices = prices if solved is None else solved
    if prices.max() <= 0:
        return
    for weights in rounded(prices):
        total = _priced_demand(net, weights, tasks, orbits, reduces=collective.reduces)
        gates = [
            net.gate(edge, net.through[edge], int(weights[edge])) for edge in net.used
            if edge in net.busy and weights[edge]
        ]  # fmt: skip
        if total > 0:
            units = net.num_ranks if tasks is None else collective.chunks_in_size
            yield Crossing("flow", gather(gates), Fraction(total, units))


def rounded(prices: Floats) -> Iterator[IntArray]:
    """Yield the prices as integers: to fine steps, and to small fractions of the largest."""
    yield np.rint(prices / prices.max() * FINE).astype(np.int64)
    for limit in (12, COARSE):
        parts = [Fraction(float(p / prices.max())).limit_denominator(limit) for p in prices]
        common = int(np.lcm.reduce(np.array([part.denominator for part in parts], dtype=object)))
        if common < FINE * 64:
            yield np.array([int(part * common) for part in parts], dtype=np.int64)


def _priced_demand(
    net: Net, weights: IntArray, tasks: Sequence[Task] | None, orbits: Orbits, *, reduces: bool
) -> int:
    """Return the sum of price distances over all ordered pairs, or over the chunks of a file."""
    cost, ends = np.add.reduceat(weights[net.edges], net.first[:-1]), (net.src, net.dst)
    sources, copies = np.unique(orbits.rank, return_counts=True)
    if tasks is None and len(sources) <= FEW and np.array_equal(weights, weights[orbits.edge]):
        links = by_head(ends)
        found = (relaxed(net.vertices, links, cost, [rank]) for rank in sources.tolist())
        rows = (row[: net.num_ranks] for row in found)
        return sum(int(row.sum()) * count for row, count in zip(rows, copies.tolist(), strict=True))
    price = shortest(net.vertices, ends, cost)[: net.num_ranks, : net.num_ranks]
    if tasks is None:
        return int(price.sum())
    ways = ((price[np.ix_(task.sources, task.targets)], task.chunks) for task in tasks)
    return sum(int(way.max() if reduces else way.min(axis=0).max()) * count for way, count in ways)


def _chosen(net: Net, tasks: Sequence[Task], *, reduces: bool) -> Floats:
    """Return chunks from rank (row) to rank (column): one pair of ranks stands for each chunk."""
    demand = np.zeros((net.num_ranks, net.num_ranks))
    for sources, targets, count in tasks:
        way = net.distance[np.ix_(sources, targets)]
        nearest = way.max(axis=0) if reduces else way.min(axis=0)
        target = int(nearest.argmax())
        source = int(way[:, target].argmax() if reduces else way[:, target].argmin())
        demand[sources[source], targets[target]] += count
    np.fill_diagonal(demand, 0)
    return demand


@lru_cache(maxsize=8)
def _solve(
    topology: Topology, used: tuple[int, ...], shares: tuple[float, ...],
    origins: tuple[tuple[int, ...], ...], demands: bytes,
) -> Floats | None:  # fmt: skip
    """Return a price for a unit on every edge of the topology; None when the solver gave up.

    Of each of the edges `used` it has the `shares` of the slowest one's time that a unit takes;
    `origins` are ranks that send, for how many each stands, and the orbit of every edge, and
    `demands` (a row of floats for each of them) what every rank wants of it.
    """
    from scipy.optimize import linprog
    from scipy.sparse import coo_array, hstack, kron

    edges = [topology.edges[e] for e in used]
    ranks, vertices = topology.num_ranks, topology.num_ranks + len(topology.switches)
    width, (sources, copies, edge_orbit) = len(edges), map(np.array, origins)
    wanted = np.frombuffer(demands).reshape(len(sources), ranks)
    columns = np.arange(width)
    tails = np.array([e.tail for e in edges])
    heads = np.array([e.head for e in edges])
    signs = np.concatenate([np.ones(width), -np.ones(width)])
    places = (np.concatenate([heads, tails]), np.concatenate([columns, columns]))
    balance = coo_array((signs, places), shape=(vertices, width))
    arrive = kron(coo_array(np.eye(len(sources))), balance).tocsr()
    demand = np.zeros((len(sources), vertices))
    demand[:, :ranks] = wanted
    kept = np.ones((len(sources), vertices), dtype=np.bool_)
    kept[np.arange(len(sources)), sources] = False
    busy = np.array(shares)
    names, rows = np.unique(edge_orbit[list(used)], return_inverse=True)
    loads = coo_array((busy, (rows, columns)), shape=(len(names), width))
    counts = np.bincount(rows, minlength=len(names)).astype(np.float64)
    capacity = kron(coo_array(copies[None, :].astype(np.float64)), loads)
    last = coo_array(-counts[:, None])
    no_time = coo_array((int(kept.sum()), 1))
    result = linprog(
        np.concatenate([np.zeros(width * len(sources)), [1.0]]),
        A_ub=hstack([capacity, last]).tocsr(), b_ub=np.zeros(len(names)),
        A_eq=hstack([arrive[np.flatnonzero(kept.ravel())], no_time]).tocsr(),
        b_eq=demand.ravel()[kept.ravel()],
        method="highs", options={"time_limit": SECONDS},
    )  # fmt: skip
    if result.status != 0:
        return None
    prices = np.zeros(len(topology.edges))
    prices[list(used)] = np.maximum(-result.ineqlin.marginals[rows], 0) * busy
    return prices

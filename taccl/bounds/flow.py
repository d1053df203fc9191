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

Above ``MOST_SOLVED`` ranks the program has a plane for each set of shortest trees instead:

Sets        g orbits of edges, k sets of trees, one from every source, with load[k,g] units
Variables   p[g] >= 0;  t
Maximise    t
Subject to  t <= sum_g p[g] * load[k,g]   for every k;   sum_g p[g] * units of g in a time = 1

Its optimum has shortest trees of its own, the next k (Kelley's cutting planes, 1960), until these
cost no less than t.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from taccl.bounds.arrival_curves import Gate, gather
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
    shortest_links,
    tasks_of,
)
from taccl.collectives import Collective
from taccl.collectives.chunks import places_in
from taccl.topology.graph import Topology

MOST_VARIABLES = 60_000
MOST_SOLVED = 1024
"""Ranks up to which all paths are in one program; of more, only planes that some trees give."""

MOST_RANKS = 4096
"""Above this distances from every rank are too many to hold."""

MOST_PLANES = 32
"""Where ranks are alike a dozen is enough."""

MOST_VISITS = 16_000_000
"""Links looked at for all planes together."""

CLOSE = 1 + 1e-6
"""What a plane more would have to win."""

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
    if by_chunk and (collective.root is not None or net.num_ranks > MOST_RANKS):
        return
    if not by_chunk and collective.name != "alltoall":
        return
    tasks = tasks_of(collective) if by_chunk else None
    if tasks is not None and len(tasks) * net.num_ranks > MOST_VARIABLES:
        return
    orbits = proved_orbits(net)
    if tasks is None:
        alike = orbits.edge
        sources, copies = np.unique(orbits.rank, return_counts=True)
        demand = np.ones((len(sources), net.num_ranks))
    else:
        alike = np.arange(len(net.topology.edges), dtype=np.int64)
        demand = _chosen(net, tasks, reduces=collective.reduces)
        sources = np.flatnonzero(demand.any(axis=1))
        demand, copies = demand[sources], np.ones(len(sources), dtype=np.int64)
    small = net.num_ranks <= MOST_SOLVED
    few = len(sources) * len(net.used) <= MOST_VARIABLES if small else len(sources) <= FEW
    if not few or not net.busy or not len(sources):
        return
    prices = np.zeros(len(net.topology.edges))
    prices[list(net.busy)] = [float(time) for time in net.busy.values()]
    if small:
        scale = float(max(net.busy.values()))
        busy = tuple(float(net.busy.get(e, Fraction(0))) / scale for e in net.used)
        columns = tuple(map(tuple, (sources.tolist(), copies.tolist(), alike.tolist())))
        # The same for all chunk sizes where edges take the same part of the time of the slowest.
        solved = _solve(net.topology, tuple(net.used), busy, columns, demand.tobytes())
        prices = prices if solved is None else solved
    elif tasks is None and prices[list(net.busy)].min() > 0:
        prices = _prices_of_planes(net, prices, orbits.edge, (sources, copies))
    if prices.max() <= 0:
        return
    # The edges of an orbit are the same gate.
    edges, counts = np.unique(alike[list(net.busy)], return_counts=True)
    gates = [net.gate(edge, net.through[edge]) for edge in edges.tolist()]
    for weights in rounded(prices):
        total = _priced_demand(net, weights, tasks, orbits, reduces=collective.reduces)
        if total > 0:
            units = net.num_ranks if tasks is None else collective.chunks_in_size
            passed: Counter[Gate] = Counter()
            for gate, weight, count in zip(gates, weights[edges].tolist(), counts, strict=True):
                passed[gate._replace(weight=weight)] += int(count) if weight else 0
            yield Crossing("flow", gather(+passed), Fraction(total, units))


def rounded(prices: Floats) -> Iterator[IntArray]:
    """Yield the prices as integers: to fine steps, and to small fractions of the largest."""
    distinct, of = np.unique(prices / prices.max(), return_inverse=True)
    yield np.rint(distinct * FINE).astype(np.int64)[of]
    for limit in (12, COARSE):
        parts = [Fraction(price).limit_denominator(limit) for price in distinct.tolist()]
        common = math.lcm(*(part.denominator for part in parts))
        if common < FINE * 64:
            yield np.array([int(part * common) for part in parts], dtype=np.int64)[of]


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


def _prices_of_planes(
    net: Net, prices: Floats, edge_orbit: IntArray, origins: tuple[IntArray, IntArray]
) -> Floats:
    """Return the best prices of a unit on every edge of the topology that were found, or `prices`.

    The `prices` given are the first that trees are the shortest at. `origins`: ranks that send to
    all, and for how many each stands.
    """
    from scipy.optimize import linprog

    names, orbit = np.unique(edge_orbit, return_inverse=True)
    used = np.array(list(net.busy), dtype=np.int64)
    rates = np.array([1 / float(time) for time in net.busy.values()])
    units = np.bincount(orbit[used], rates / rates.max(), minlength=len(names))
    owned = np.flatnonzero(units)
    best, most, planes = prices, 0.0, []
    for _ in range(min(MOST_PLANES, MOST_VISITS // (len(net.src) * len(origins[0])))):
        load = np.bincount(orbit, _loads(net, prices, origins), minlength=len(names))[owned]
        each = prices[names[owned]]
        proved = float(load @ each / (units[owned] @ each))
        if proved > most:
            best, most = prices, proved
        planes.append(load)
        limits = np.column_stack((-np.array(planes), np.ones(len(planes))))
        found = linprog(
            np.append(np.zeros(len(owned)), -1.0), A_ub=limits, b_ub=np.zeros(len(planes)),
            A_eq=np.append(units[owned], 0.0)[None, :], b_eq=[1.0], method="highs",
        )  # fmt: skip
        if found.x is None or found.x[-1] <= CLOSE * most:
            break
        prices = np.zeros(len(names))
        prices[owned] = np.maximum(found.x[:-1], 0)
        prices = prices[orbit]
    return best


def _loads(net: Net, prices: Floats, origins: tuple[IntArray, IntArray]) -> Floats:
    """Return how many units cross every edge on shortest paths from some ranks to all, at `prices`.

    `origins`: these ranks, and for how many each stands.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import dijkstra

    cost = np.add.reduceat(prices[net.edges], net.first[:-1])
    pairs, links = shortest_links(net.vertices, (net.src, net.dst), cost)
    # Free links cost something, too, so that paths do not wander.
    lengths = cost[links] + prices.max() / (net.vertices * FINE)
    graph = csr_array(
        (lengths, (pairs // net.vertices, pairs % net.vertices)), shape=(net.vertices, net.vertices)
    )
    loads = np.zeros(len(net.topology.edges))
    for source, copies in zip(*(part.tolist() for part in origins), strict=True):
        away, before = dijkstra(graph, indices=source, return_predecessors=True)
        carried = np.zeros(net.vertices)
        carried[: net.num_ranks] = copies
        far = np.argsort(-away, kind="stable")
        far = far[np.isfinite(away[far])][:-1]
        for vertex, previous in zip(far.tolist(), before[far].tolist(), strict=True):
            carried[previous] += carried[vertex]
        taken = links[np.searchsorted(pairs, before[far] * np.int64(net.vertices) + far)]
        length = net.first[taken + 1] - net.first[taken]
        edges = net.edges[np.repeat(net.first[taken], length) + places_in(length)]
        loads += np.bincount(edges, np.repeat(carried[far], length), minlength=len(loads))
    return loads


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

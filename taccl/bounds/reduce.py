"""All-reduce: every piece needs 2(N-1) messages, and crosses every cut in both directions.

Spreading what N parties know to all of them takes 2(N-1) one-way messages, even if messages may
carry all that their sender knows; sums are the same when nothing is added inside the network and
pieces are not mixed with one another. Parties may be ranks, or any sets that the ranks are split
into, with messages inside a set free. There is no bound from "reduce to a point and back": every
rank may reduce everything itself, in one exchange.

*Trees.* Let x[u,v] count the messages of one piece between ranks u and v, in either direction. By
the above, for every split of the ranks into P sets at least 2(P-1) messages run between different
sets: x / 2 meets all constraints of the spanning tree polyhedron (Tutte, Nash-Williams, Edmonds).
So for any prices of a message, a piece pays at least twice the price of a cheapest spanning tree,
where a pair costs what the cheaper direction does. Good prices are the duals of the best
fractional packing of spanning trees into the edges:

Sets        t spanning trees of the ranks, o classes of edges that look alike, count[o] of each
Variables   x[t] >= 0   how much of all data goes along a tree;  T
Minimise    T
Subject to  (all)       sum_t x[t] = 1
            (capacity)  sum_t x[t] * load[t,o] <= count[o] * T

where load[t,o] is the time that a tree keeps edges of the class busy. Trees are added one at a
time: the cheapest at prices between the duals of the capacities and the best so far, which are
those whose cheapest tree is dearest (Wentges smoothing). The solver is not trusted: prices are
rounded to integers and the cheapest tree under these is counted exactly.

Where switches copy and add, partitions.py says the same of arcs between ranks and such switches.

References
----------
F. Harary, A. Schwenk, "The communication problem on graphs and digraphs", 1974 (one-way gossip).
J. Edmonds, "Submodular functions, matroids, and certain polyhedra", 1970. W. Tutte, "On the
problem of decomposing a graph into n connected factors", 1961.
"""

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import numpy as np

from taccl.bounds.arrival_curves import gather
from taccl.bounds.cut import counted_at, edge_covers, make_graph, narrow_crossing
from taccl.bounds.flow import FINE, rounded
from taccl.bounds.net import Crossing, IntArray, Net, Task, tasks_of
from taccl.bounds.partitions import gossips, partition_crossings
from taccl.collectives import Collective
from taccl.prices.packing import best_mix, look_alike
from taccl.prices.pricing import Floats

MANY_RANKS = 128
"""Above this not every rank is looked at for narrow cuts from and to rank 0."""


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


def cheapest_tree(net: Net, cost: IntArray) -> IntArray:
    """Return the links of a spanning tree of the ranks of `net` of least `cost` (one a link)."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import minimum_spanning_tree

    low, high = np.minimum(net.src, net.dst), np.maximum(net.src, net.dst)
    pair = low * net.num_ranks + high
    order = np.lexsort((pair, cost))
    order = order[np.sort(np.unique(pair[order], return_index=True)[1])]
    # Places in this order are distinct and not 0: the tree is the same one every time.
    places = (np.arange(1.0, len(order) + 1), (low[order], high[order]))
    tree = minimum_spanning_tree(csr_array(places, shape=(net.num_ranks, net.num_ranks)))
    links: IntArray = order[tree.data.astype(np.int64) - 1]
    return links


def tree_prices(net: Net) -> Floats | None:
    """Return a price for a unit on every edge of the topology; None when it would take too long."""
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
        tree[cheapest_tree(net, cost)] = True
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
        loads = np.array(columns)
        found = best_mix(loads / loads.max(), counts, np.zeros(len(names)))
        if found is None or found[0] * loads.max() <= dearest * (1 + CLOSE):
            break
        dual = steady * best + (1 - steady) * found[1]
    return best[row_of] * busy


def reduce_crossings(net: Net, collective: Collective) -> Iterator[Crossing]:
    """Yield the messages all pieces need between ranks, between servers, and over narrow cuts.

    Of a `collective` on `net` in which nobody adds what all of some ranks have and want, nothing
    is said.
    """
    groups = tasks_of(collective) if collective.reduces and collective.name != "allreduce" else []
    if any(map(gossips, groups)):
        # Ranks that are no members only help.
        for crossing in partition_crossings(net, groups):
            share = crossing.share * collective.num_chunks / collective.chunks_in_size
            yield replace(crossing, share=share)
    if collective.name != "allreduce" or net.num_ranks < 2:
        return
    yield from _between_parties(net)
    graph = make_graph(net)
    for rank in far_ranks(net)[: graph.most_flows // 2]:
        for source, sink in ((0, rank), (rank, 0)):
            yield from narrow_crossing(net, graph, "reduce", (source, sink))


def _between_parties(net: Net) -> Iterator[Crossing]:
    """Yield the messages that all pieces need between ranks, and between servers."""
    if net.helpers:
        everyone = tuple(range(net.num_ranks))
        yield from partition_crossings(net, [Task(everyone, everyone, 1)])
        return
    covers = edge_covers(net)
    for parts in sorted({tuple(range(net.num_ranks)), net.topology.server_of}):
        part, parties = np.array(parts), len(set(parts))
        for cover in covers if parties > 1 else ():
            gates = counted_at(net, cover, part[net.src] != part[net.dst])
            if gates:
                yield Crossing("reduce", gates, Fraction(2 * (parties - 1)))
    prices = tree_prices(net)
    for weights in rounded(prices) if prices is not None else ():
        cost = np.add.reduceat(weights[net.edges], net.first[:-1])
        total = 2 * int(cost[cheapest_tree(net, cost)].sum())
        priced = [edge for edge in net.used if weights[edge]]
        each = [net.gate(edge, net.through[edge], int(weights[edge])) for edge in priced]
        if total > 0:
            yield Crossing("reduce", gather(each), Fraction(total))


def far_ranks(net: Net) -> list[int]:
    """Return ranks of `net` to look at beside rank 0: of many, one of every server comes first."""
    first = np.unique(net.topology.server_of, return_index=True)[1].tolist()
    ranks = [*(first if net.num_ranks > MANY_RANKS else ()), *range(1, net.num_ranks)]
    return [rank for rank in dict.fromkeys(ranks) if rank][:MANY_RANKS]

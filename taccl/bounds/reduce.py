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
fractional packing of spanning trees into the edges, found by column generation; the solver is not
trusted: prices are rounded to integers and the cheapest tree under these is counted exactly.

References
----------
F. Harary, A. Schwenk, "The communication problem on graphs and digraphs", 1974 (one-way gossip).
J. Edmonds, "Submodular functions, matroids, and certain polyhedra", 1970. W. Tutte, "On the
problem of decomposing a graph into n connected factors", 1961.
"""

from collections.abc import Iterator
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from taccl.bounds.arrival_curves import gather
from taccl.bounds.cut import COVERS, counted_at, make_graph, narrow_crossing
from taccl.bounds.flow import rounded
from taccl.bounds.net import Crossing, Net
from taccl.bounds.packing import cheapest_tree, pairs_of, tree_prices
from taccl.collectives import Collective

MANY_RANKS = 128
"""Above this not every rank is looked at for narrow cuts from and to rank 0."""


def reduce_crossings(net: Net, collective: Collective) -> Iterator[Crossing]:
    """Yield the messages all pieces need between ranks, between servers, and over narrow cuts.

    Parameters
    ----------
    net
        The network.
    collective
        What is done; of any but an allreduce nothing is said.
    """
    if collective.name != "allreduce" or net.num_ranks < 2:
        return
    for part in sorted({tuple(range(net.num_ranks)), net.topology.server_of}):
        yield from _between(net, np.array(part))
    yield from _along_trees(net)
    graph = make_graph(net)
    for rank in _far_ranks(net)[: graph.most_flows // 2]:
        for source, sink in ((0, rank), (rank, 0)):
            yield from narrow_crossing(net, graph, "reduce", (source, sink))


def _between(net: Net, part: NDArray[np.int64]) -> Iterator[Crossing]:
    """Yield what must travel on links between different parts, each counted at one edge."""
    parties = len(np.unique(part))
    crossing = part[net.src] != part[net.dst]
    for cover in COVERS if parties > 1 else ():
        gates = counted_at(net, cover(net), crossing)
        if gates:
            yield Crossing("reduce", gates, Fraction(2 * (parties - 1)))


def _along_trees(net: Net) -> Iterator[Crossing]:
    """Yield twice the price of the cheapest tree, at the prices of the best packing of trees."""
    pairs = pairs_of(net)
    prices = tree_prices(net, pairs)
    if prices is None:
        return
    for weights in rounded(prices):
        cost = np.add.reduceat(weights[net.edges], net.first[:-1])
        total = 2 * int(cost[cheapest_tree(pairs, cost)].sum())
        priced = [edge for edge in net.used if weights[edge]]
        gates = [net.gate(edge, net.through[edge], int(weights[edge])) for edge in priced]
        if total > 0:
            yield Crossing("reduce", gather(gates), Fraction(total))


def _far_ranks(net: Net) -> list[int]:
    """Return ranks to look at beside rank 0: one of every server first, then others."""
    ranks = list(range(1, net.num_ranks))
    if net.num_ranks <= MANY_RANKS:
        return ranks
    first = np.unique(net.topology.server_of, return_index=True)[1].tolist()
    return [rank for rank in dict.fromkeys([*first, *ranks]) if rank][:MANY_RANKS]

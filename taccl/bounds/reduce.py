"""All-reduce: every piece needs 2(N-1) messages, and crosses every cut in both directions.

Spreading what N parties know to all of them takes 2(N-1) one-way messages, even if messages may
carry all that their sender knows; sums are the same when nothing is added inside the network.
This holds for ranks and, with links inside them free, for servers. There is no bound from
"reduce to a point and back": every rank may reduce everything itself, in one exchange.

References
----------
F. Harary, A. Schwenk, "The communication problem on graphs and digraphs", 1974 (one-way gossip).
"""

from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from taccl.bounds.crossing import Crossing
from taccl.bounds.cut import make_graph, narrow_crossing
from taccl.bounds.net import Net
from taccl.collectives import Collective


def reduce_crossings(net: Net, collective: Collective) -> Iterator[Crossing]:
    """Yield the messages all pieces need between ranks, between servers, and over narrow cuts."""
    if collective.name != "allreduce":
        return
    ranks = tuple(range(net.num_ranks))
    parts = {ranks, net.topology.server_of}
    for part in sorted(parts):
        parties = len(set(part))
        if parties > 1:
            yield from _between(net, np.asarray(part), Fraction(2 * (parties - 1)))
    graph = make_graph(net)
    for rank in ranks[1:] if graph.affords(2 * net.num_ranks) else ():
        for source, sink in ((0, rank), (rank, 0)):
            yield from narrow_crossing(net, graph, "reduce", (source, sink))


def _between(net: Net, part: np.ndarray, share: Fraction) -> Iterator[Crossing]:
    """Yield an amount that must travel on links between different parts."""
    crossing = part[net.src] != part[net.dst]
    for cut in sorted({_firsts(net, crossing), _lasts(net, crossing), _middle(net, crossing)}):
        gates = net.gates(cut, crossing) if cut else None
        if gates:
            yield Crossing("reduce", gates, share)


def _firsts(net: Net, crossing: np.ndarray) -> tuple[int, ...]:
    return tuple(np.unique(net.edges[net.first[:-1][crossing]]).tolist())


def _lasts(net: Net, crossing: np.ndarray) -> tuple[int, ...]:
    return tuple(np.unique(net.edges[net.first[1:][crossing] - 1]).tolist())


def _middle(net: Net, crossing: np.ndarray) -> tuple[int, ...]:
    """Return on every crossing link its slowest edge, the first of equals."""
    busy = np.zeros(len(net.topology.edges))
    for edge, time in net.busy.items():
        busy[edge] = float(time)
    if not len(net.edges):
        return ()
    times = busy[net.edges]
    owner = np.repeat(np.arange(len(net.src)), np.diff(net.first))
    slowest = np.flatnonzero(times == np.maximum.reduceat(times, net.first[:-1])[owner])
    link, at = np.unique(owner[slowest], return_index=True)
    return tuple(np.unique(net.edges[slowest[at]][crossing[link]]).tolist())

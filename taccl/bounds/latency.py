"""How long the data of one rank takes to another, wherever else there is room.

The alpha-weighted distance through relays, and the data itself: whatever enters the destination
by some edge has first come to the sender of a link on that edge, and whatever leaves the source
has still to go on from there. The best lead and the least alpha are taken apart: the first and
the last message on an edge need not be on the same link.
"""

from collections.abc import Callable, Iterator

import numpy as np

from taccl.bounds.crossing import Crossing, between_pair
from taccl.bounds.distances import IntArray
from taccl.bounds.gates import Gate, gather
from taccl.bounds.net import Net
from taccl.units import Time

MANY_RANKS = 128
"""Above this only the distance is used: pairs are too many to look at one by one."""


MOST_RANKS = 1024
"""Above this a table of all distances takes too much time and memory."""


def farthest(net: Net) -> Time:
    """Return the largest distance between two ranks; of very many, from or to the first rank."""
    if net.num_ranks <= MOST_RANKS:
        return int(net.distance.max())
    return int(max(net.distance_from(0).max(), net.distance_from(0, backwards=True).max()))


def latency_crossings(net: Net, name: str) -> Iterator[Crossing]:
    """Yield, for every rank and its hardest peers, what enters from and leaves for the peer."""
    if net.num_ranks > MANY_RANKS:
        return
    share = between_pair(name, net.num_ranks)
    for rank in range(net.num_ranks):
        enters = _gates(net, net.last_edges(rank), net.dst == rank, lambda rows: _leads(net, rows))
        leaves = _gates(net, net.first_edges(rank), net.src == rank, lambda rows: _rests(net, rows))
        for gates in (*_hardest_peers(enters, rank), *_hardest_peers(leaves, rank)):
            yield Crossing("latency", gather(gates), share)


def _leads(net: Net, rows: IntArray) -> IntArray:
    """Return for every rank how soon its data can be at the sender of some of the links."""
    leads: IntArray = net.distance[:, net.src[rows]].min(axis=1)
    return leads


def _rests(net: Net, rows: IntArray) -> IntArray:
    """Return for every rank how long it takes there from the receiver of some of the links."""
    rests: IntArray = net.distance[net.dst[rows], :].min(axis=0)
    return rests


def _gates(
    net: Net,
    edges: tuple[int, ...],
    mask: np.ndarray[tuple[int], np.dtype[np.bool_]],
    leads: Callable[[IntArray], IntArray],
) -> list[tuple[Gate, list[int]]] | None:
    """Return each edge as a gate with the lead for every peer; None when one is no resource."""
    found = []
    for edge in edges:
        if edge not in net.busy:
            return None
        rows = net.through[edge]
        rows = rows[mask[rows]]
        found.append((net.gate(edge, rows), leads(rows).tolist()))
    return found


def _hardest_peers(
    gates: list[tuple[Gate, list[int]]] | None, rank: int
) -> Iterator[tuple[Gate, ...]]:
    """Yield the gates for the peer whose first gate opens last, and for the farthest on average."""
    if not gates:
        return
    peers = [peer for peer in range(len(gates[0][1])) if peer != rank]
    starts = {peer: [gate.start + lead[peer] for gate, lead in gates] for peer in peers}
    for late in (min, sum):
        peer = max(peers, key=lambda peer: late(starts[peer]), default=None)
        if peer is not None:
            yield tuple(
                Gate(start, gate.busy) for start, (gate, _) in zip(starts[peer], gates, strict=True)
            )

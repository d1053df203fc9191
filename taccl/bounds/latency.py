"""How long the data of one rank takes to another, wherever else there is room.

The alpha-weighted distance through relays, and the data itself: whatever enters the destination
by some edge has first come to the sender of a link on that edge, and whatever leaves the source
has still to go on from there. The best lead and the least alpha are taken apart: the first and
the last message on an edge need not be on the same link.
"""

from collections.abc import Callable, Iterator
from fractions import Fraction

import numpy as np

from taccl.bounds.crossing import Crossing, between_pairs, flows_in, is_uniform, tasks_of
from taccl.bounds.distances import IntArray
from taccl.bounds.gates import Gate, gather
from taccl.bounds.net import MOST_RANKS, Net
from taccl.collectives import Collective
from taccl.units import Time

MANY_RANKS = 128
"""Above this only the distance is used: pairs are too many to look at one by one."""


def farthest(net: Net, collective: Collective) -> Time:
    """Return the largest distance that some data must go; of very many pairs, of some of them."""
    if collective.root is not None:
        inward = flows_in(collective)
        return int(net.distance_from(collective.root, backwards=inward).max())
    if net.num_ranks > MOST_RANKS:
        if not is_uniform(collective):
            return 0
        return int(max(net.distance_from(0).max(), net.distance_from(0, backwards=True).max()))
    if is_uniform(collective):
        return int(net.distance.max())
    ways = (net.distance[np.ix_(task.sources, task.targets)] for task in tasks_of(collective))
    # A copy may come from the nearest of its sources, a sum has parts of all.
    return int(max(way.max() if collective.reduces else way.min(axis=0).max() for way in ways))


def latency_crossings(net: Net, collective: Collective) -> Iterator[Crossing]:
    """Yield, for every rank and its hardest peers, what enters from and leaves for the peer."""
    if net.num_ranks > MANY_RANKS:
        return
    counts, whole = between_pairs(collective), collective.chunks_in_size
    for rank in range(net.num_ranks):
        enters = _gates(net, net.last_edges(rank), net.dst == rank, lambda rows: _leads(net, rows))
        leaves = _gates(net, net.first_edges(rank), net.src == rank, lambda rows: _rests(net, rows))
        for gates, amounts in ((enters, counts[:, rank]), (leaves, counts[rank])):
            for peer, hardest in _hardest_peers(gates, np.flatnonzero(amounts)):
                share = Fraction(int(amounts[peer]), whole)
                yield Crossing("latency", gather(hardest), share)


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
    gates: list[tuple[Gate, list[int]]] | None, peers: IntArray
) -> Iterator[tuple[int, tuple[Gate, ...]]]:
    """Yield the gates for the peer whose first gate opens last, and for the farthest on average.

    Only peers that some data goes to or comes from count: ``peers`` are the ranks of these.
    """
    if not gates or not len(peers):
        return
    starts = {peer: [gate.start + lead[peer] for gate, lead in gates] for peer in peers.tolist()}
    for late in (min, sum):
        peer = max(starts, key=lambda peer: late(starts[peer]))
        yield (
            peer,
            tuple(
                Gate(start, gate.busy) for start, (gate, _) in zip(starts[peer], gates, strict=True)
            ),
        )

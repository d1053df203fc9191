"""A runtime sends no large message: its latency is paid again for every so many bytes.

Let messages be of at most M bytes. One of s bytes holds an edge for o + beta s, o the overhead of
its link, which is at least (o / M + beta) s; and it arrives no sooner than after the largest such
time. So what programs of the runtime do on a network takes no longer on one where messages cost
nothing but o / M + beta for each byte, and all that bounds say of that one holds for programs.
For large buffers this is more than the bounds for any algorithm, in which the latency is paid once.

How long the data of one rank takes to another, wherever else there is room.

The alpha-weighted distance through relays, and the data itself: whatever enters the destination
by some edge has first come to the sender of a link on that edge, and whatever leaves the source
has still to go on from there. The best lead and the least alpha are taken apart: the first and
the last message on an edge need not be on the same link.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

import numpy as np

from taccl.bounds.arrival_curves import Gate, gather
from taccl.bounds.net import (
    MOST_RANKS,
    Crossing,
    IntArray,
    Net,
    between_pairs,
    flows_in,
    is_uniform,
    one_of_each,
    tasks_of,
)
from taccl.collectives import Collective
from taccl.topology.graph import LogicalTopology, Topology
from taccl.units import Time

MANY_RANKS = 128
"""Above this pairs are too many to look at one by one, unless few ranks stand for the others."""

MOST_PEERS = 512
"""Peers looked at of all ranks together, beside the one whose first gate opens last."""

FEW = 4
"""Ranks from which distances are found one by one; from more all are found together."""


def farthest(net: Net, collective: Collective) -> Time:
    """Return the largest distance that some data must go; of very many pairs, of some of them.

    Parameters
    ----------
    net
        The network.
    collective
        What is done.
    """
    if collective.root is not None:
        inward = flows_in(collective)
        return int(net.distance_from(collective.root, backwards=inward).max())
    if is_uniform(collective):
        return _farthest_of_all(net, one_of_each(net, collective))
    if net.num_ranks > MOST_RANKS:
        return 0
    ways = (net.distance[np.ix_(task.sources, task.targets)] for task in tasks_of(collective))
    # A copy may come from the nearest of its sources, a sum has parts of all.
    return int(max(way.max() if collective.reduces else way.min(axis=0).max() for way in ways))


def _farthest_of_all(net: Net, ranks: tuple[int, ...]) -> Time:
    """Return the largest distance from or to one of some ranks."""
    if net.num_ranks <= MOST_RANKS and len(ranks) > FEW:
        return int(net.distance.max())
    there = (net.distance_from(rank).max() for rank in ranks[:FEW])
    back = (net.distance_from(rank, backwards=True).max() for rank in ranks[:FEW])
    return int(max(*there, *back))


def latency_crossings(net: Net, collective: Collective) -> Iterator[Crossing]:
    """Yield, for every rank and its hardest peers, what enters from and leaves for the peer.

    Parameters
    ----------
    net
        The network.
    collective
        What is done.
    """
    chosen = one_of_each(net, collective)
    if collective.root is not None and net.num_ranks <= MANY_RANKS:
        chosen = tuple(range(net.num_ranks))
    if net.num_ranks > (MANY_RANKS if len(chosen) > FEW else MOST_RANKS):
        return
    alone = len(chosen) <= FEW
    most = max(1, MOST_PEERS // len(chosen))
    counts, whole = between_pairs(collective), collective.chunks_in_size
    for rank in chosen:
        enters = _gates(
            net, net.last_edges(rank), net.dst == rank, lambda rows: _leads(net, rows, alone=alone)
        )
        leaves = _gates(
            net, net.first_edges(rank), net.src == rank, lambda rows: _rests(net, rows, alone=alone)
        )
        for gates, amounts in ((enters, counts[:, rank]), (leaves, counts[rank])):
            for peer, hardest in _hardest_peers(gates, np.flatnonzero(amounts), most):
                share = Fraction(int(amounts[peer]), whole)
                yield Crossing("latency", gather(hardest), share)


def _leads(net: Net, rows: IntArray, *, alone: bool) -> IntArray:
    """Return for every rank how soon its data can be at the sender of some of the links."""
    senders = np.unique(net.src[rows])
    if alone:
        return net.distance_from(*senders.tolist(), backwards=True)
    leads: IntArray = net.distance[:, senders].min(axis=1)
    return leads


def _rests(net: Net, rows: IntArray, *, alone: bool) -> IntArray:
    """Return for every rank how long it takes there from the receiver of some of the links."""
    receivers = np.unique(net.dst[rows])
    if alone:
        return net.distance_from(*receivers.tolist())
    rests: IntArray = net.distance[receivers, :].min(axis=0)
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
    gates: list[tuple[Gate, list[int]]] | None, peers: IntArray, most: int
) -> Iterator[tuple[int, tuple[Gate, ...]]]:
    """Yield the gates for the peers that are farthest on average, and whose first opens last.

    Only peers that some data goes to or comes from count: ``peers`` are the ranks of these. Of
    peers for which all gates open at the same times one is enough.
    """
    if not gates or not len(peers):
        return
    starts: dict[tuple[int, ...], int] = {}
    for peer in peers.tolist():
        starts.setdefault(tuple(gate.start + lead[peer] for gate, lead in gates), peer)
    latest = max(starts, key=lambda opens: (min(opens), sum(opens)))
    farthest_first = sorted(starts, key=lambda opens: (-sum(opens), -min(opens), opens))
    for opens in dict.fromkeys([latest, *farthest_first[:most]]):
        shifted = zip(opens, gates, strict=True)
        yield starts[opens], tuple(Gate(start, gate.busy) for start, (gate, _) in shifted)


KIND = "message"
"""The kind of bound."""


@lru_cache(maxsize=8)
def without_latency(topology: Topology, message_bytes: int) -> Topology:
    """Return the network on which the latency of messages of so many bytes is part of each byte.

    Betas are exact, in picoseconds a byte; no message has alpha or overhead.

    Parameters
    ----------
    topology
        The network.
    message_bytes
        Bytes of the largest message.
    """
    table = topology.links
    least = np.full(len(topology.edges), np.iinfo(np.int64).max, dtype=np.int64)
    owner = np.repeat(np.arange(len(table)), np.diff(table.edge_start))
    np.minimum.at(least, table.edge_ids, table.overhead[owner])
    least[np.setdiff1d(np.arange(len(least)), table.edge_ids)] = 0  # no link, no message
    edges = [
        replace(
            edge, alpha=0, overhead=0,
            beta=None if edge.beta is None else edge.beta + Fraction(int(own), message_bytes),
        )
        for edge, own in zip(topology.edges, least, strict=True)
    ]  # fmt: skip
    return topology.with_costs(edges)


def in_messages(logical: LogicalTopology, message_bytes: int) -> LogicalTopology:
    """Return the same for the links that are allowed.

    Parameters
    ----------
    logical
        The network, as the sketch restricts it.
    message_bytes
        Bytes of the largest message.
    """
    return replace(logical, topology=without_latency(logical.topology, message_bytes))

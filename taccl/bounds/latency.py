"""Latency: how long the data of one rank takes to another, wherever else there is room.

The alpha-weighted distance through relays, and the data itself: whatever enters the destination
by some edge has first come to the sender of a link on that edge, and whatever leaves the source
has still to go on from there. The best lead and the least alpha are taken apart: the first and
the last message on an edge need not be on the same link.

A runtime sends no large message, so that its latency is paid again for every so many bytes. Let
messages be of at most M bytes. One of s bytes holds an edge for o + beta s, o the overhead of its
link, which is at least (o / M + beta) s; and it arrives no sooner than after the largest such
time. So what programs of the runtime do on a network takes no longer on one where messages cost
nothing but o / M + beta for each byte (:func:`without_latency`), and all that bounds say of that
one holds for programs. For large buffers this is more than the bounds for any algorithm, in which
the latency is paid once.
"""

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

import numpy as np

from taccl.bounds.arrival_curves import Gate, gather
from taccl.bounds.net import (
    MOST_RANKS,
    Crossing,
    Net,
    between_pairs,
    flows_in,
    is_uniform,
    one_of_each,
    tasks_of,
)
from taccl.collectives import Collective
from taccl.topology.graph import Topology
from taccl.units import Time

MANY_RANKS = 128
"""Above this pairs are too many to look at one by one, unless few ranks stand for the others."""

MOST_PEERS = 512
"""Peers looked at of all ranks together, beside the one whose first gate opens last."""

FEW = 4
"""Ranks from which distances are found one by one; from more all are found together."""


def farthest(net: Net, collective: Collective) -> Time:
    """Return the largest distance in picoseconds that some data of `collective` must go on `net`.

    Of very many pairs of ranks only some are looked at.
    """
    if collective.root is not None:
        inward = flows_in(collective)
        return int(net.distance_from(collective.root, backwards=inward).max())
    if is_uniform(collective):
        ranks = one_of_each(net, collective)
        if net.num_ranks <= MOST_RANKS and len(ranks) > FEW:
            return int(net.distance.max())
        ways = (net.distance_from(r, backwards=b) for r in ranks[:FEW] for b in (False, True))
        return int(max(way.max() for way in ways))
    if net.num_ranks > MOST_RANKS:
        return 0
    ways = (net.distance[np.ix_(task.sources, task.targets)] for task in tasks_of(collective))
    # A copy may come from the nearest of its sources, a sum has parts of all.
    return int(max(way.max() if collective.reduces else way.min(axis=0).max() for way in ways))


def latency_crossings(net: Net, collective: Collective) -> Iterator[Crossing]:
    """Yield what enters every rank of `net` from its hardest peers, and leaves it for them.

    How much that is depends on the `collective`.
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
        for leaving, amounts in ((False, counts[:, rank]), (True, counts[rank])):
            gates = _gates(net, rank, leaving=leaving, alone=alone)
            # Of peers for which all gates open at the same times one is enough.
            starts: dict[tuple[int, ...], int] = {}
            for peer in np.flatnonzero(amounts).tolist() if gates else ():
                starts.setdefault(tuple(gate.start + lead[peer] for gate, lead in gates), peer)
            # The peer whose first gate opens last, and those that are farthest on average.
            latest = max(starts, key=lambda opens: (min(opens), sum(opens)), default=())
            ranked = sorted(starts, key=lambda opens: (-sum(opens), -min(opens), opens))
            for opens in dict.fromkeys([latest, *ranked[:most]] if starts else ()):
                shifted = zip(opens, gates, strict=True)
                hardest = gather(Gate(start, gate.busy) for start, (gate, _) in shifted)
                yield Crossing("latency", hardest, Fraction(int(amounts[starts[opens]]), whole))


def _gates(net: Net, rank: int, *, leaving: bool, alone: bool) -> list[tuple[Gate, list[int]]]:
    """Return each edge into (out of) a rank as a gate, with the lead for every peer; or nothing."""
    ends, others = (net.src, net.dst) if leaving else (net.dst, net.src)
    found = []
    for edge in net.first_edges(rank) if leaving else net.last_edges(rank):
        if edge not in net.busy:  # no resource
            return []
        rows = net.through[edge]
        rows = rows[ends[rows] == rank]
        # From the peer to the sender of a link on the edge (from its receiver to the peer).
        near = np.unique(others[rows])
        if alone:
            leads = net.distance_from(*near.tolist(), backwards=not leaving)
        else:
            leads = net.leads(near.tolist(), backwards=not leaving)
        gate = net.gate(edge, rows)
        if net.helpers:  # leads reach to where arcs begin, or from where they end
            alpha = net.whole_alpha(rows, led=not leaving, left=leaving)
            gate = gate._replace(start=int(alpha.min()))
        found.append((gate, leads.tolist()))
    return found


@lru_cache(maxsize=8)
def without_latency(topology: Topology, message_bytes: int) -> Topology:
    """Return the network on which the latency of messages is part of each byte.

    A message has at most `message_bytes` bytes. Betas of the `topology` are raised exactly, in
    picoseconds a byte; no message has alpha or overhead.
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

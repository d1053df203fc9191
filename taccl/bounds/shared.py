"""What ranks that share edges must receive, or send, all together.

A cut asks what enters a set of ranks from outside; here each rank of the set counts what *it*
must receive, over any link: two ranks behind one NIC receive twice, through the NIC and through
their own ports together. (With point-to-point links a NIC's message reaches one of the two, so
that this can be more than any cut.) Groups are ranks that share edges, servers, and all ranks.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np

from taccl.bounds.covers import COVERS, NONE, counted_at
from taccl.bounds.crossing import Crossing, is_uniform, leaves
from taccl.bounds.distances import IntArray
from taccl.bounds.net import Net
from taccl.bounds.orbits import one_of_each, servers_of
from taccl.collectives import Collective

MANY_RANKS = 256
"""Above this only collectives that treat ranks alike are looked at."""

MOST_SET_VISITS = 100_000_000
"""Links looked at for all groups together."""


def shared_crossings(net: Net, collective: Collective) -> Iterator[Crossing]:
    """Yield what groups of ranks must receive (send), each link counted at one of its edges."""
    if not is_uniform(collective) and net.num_ranks > MANY_RANKS:
        return
    chosen = one_of_each(net, collective)
    receives, sends = _needs(net, collective)
    covers = (cover(net) for cover in COVERS)
    for cover in {cover.tobytes(): cover for cover in covers}.values():
        for ends, needs in ((net.dst, receives), (net.src, sends)):
            for group in _groups(net, cover, ends, chosen):
                share = sum((needs[rank] for rank in group), start=Fraction(0))
                rows = np.isin(ends, group)
                gates = counted_at(net, cover, rows) if share else None
                if gates:
                    yield Crossing("port", gates, share)


def _needs(net: Net, collective: Collective) -> tuple[list[Fraction], list[Fraction]]:
    """Return what every rank must receive, and what it must send, in units of ``size``."""
    ranks = range(net.num_ranks)
    if is_uniform(collective):
        return [leaves(collective, ranks[1:])] * len(ranks), [leaves(collective, [0])] * len(ranks)
    others = [[other for other in ranks if other != rank] for rank in ranks]
    return [leaves(collective, rest) for rest in others], [leaves(collective, [r]) for r in ranks]


def _groups(
    net: Net, cover: IntArray, ends: IntArray, chosen: Sequence[int]
) -> list[tuple[int, ...]]:
    """Return the ranks that share edges with a chosen one, their servers, and all ranks."""
    name = _joined(net, cover, ends)
    most = MOST_SET_VISITS // (8 * len(net.src) + 1)
    names = np.unique(name[list(chosen)])[:most].tolist()
    groups = [tuple(np.flatnonzero(name == one).tolist()) for one in names]
    groups += servers_of(net, tuple(chosen))[:most]
    return list(dict.fromkeys([*groups, tuple(range(net.num_ranks))]))


def _joined(net: Net, cover: IntArray, ends: IntArray) -> IntArray:
    """Return for every rank the smallest that it is joined to by edges that ranks share."""
    name = np.arange(net.num_ranks, dtype=np.int64)
    links = np.flatnonzero(cover != NONE)
    while True:
        of_edge = np.full(len(net.topology.edges), net.num_ranks, dtype=np.int64)
        np.minimum.at(of_edge, cover[links], name[ends[links]])
        joined = name.copy()
        np.minimum.at(joined, ends[links], of_edge[cover[links]])
        joined = joined[joined]
        if np.array_equal(joined, name):
            return name
        name = joined

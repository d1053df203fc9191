"""How soon what one rank knows can be at all ranks that want it, however small the messages are.

A message keeps its edges busy for its overhead, so a rank can't tell everyone at once: it tells
some, who tell others. With alpha = overhead = a on one switch the number of informed ranks at
most doubles every a, and N ranks take ceil(log2 N) * a.

What is relaxed, so that the answer is a lower bound for every algorithm:

*Ports.* The links from rank u to ranks of its own server (inner) and of others (outer) are
counted at one resource each, u's *ports*: every such message holds one of them for at least
``every`` (the least overhead of its links; a chunk's time on it as well, where messages carry one
chunk) and takes at least ``first`` from start to arrival. So n messages by one port within a time
t have (n - 1) * every + first <= t. Of all ranks' ports the p-th most frequent are put together,
with the least ``first`` of all: some rank that is at least as good as every rank sends.
Which ranks the messages go to is left open, and that they may find them informed; but a port
that leads to w ranks only is used w times.

*Servers.* An informed rank of a server was first reached from outside (a *seed*), or by a chain
of inner messages from a seed. From one seed at most g(t) ranks of its server know after t, with
g(t) = 1 + sum over inner ports and j of g(t - first - j * every), and g <= ranks of a server. With
S(t) seeds by t there are at most N(t) = sum over seeds of g(t - its time) informed ranks; and
S(t) <= 1 + sum over outer ports and j of N(t - first - j * every). Both only grow with their
arguments, so the largest solution, found in order of time, is never below the truth.

*Distance.* By t no rank farther than t from the source knows, wherever there is room.

Turned round in time the same holds for what must come together at one rank: count the ranks that
can still be heard, from the end; each joins by a message into one that can, over its in-ports.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from taccl.bounds.cut import MANY_RANKS, NONE, counting_edges
from taccl.bounds.net import FAR, MOST_RANKS, IntArray, Net, between_pairs, is_uniform, one_of_each
from taccl.collectives import Collective
from taccl.units import Time

MOST_MOMENTS = 4000
"""Times at which something is counted; what takes longer is said to be there by then."""

MANY_SOURCES = 128
"""Ranks among which those are looked for; of more, every so many."""

MOST_SOURCES = 16
"""Ranks from which the spreading is followed: those that must go farthest."""

Rises = list[tuple[Time, int]]
"""When how many more know."""


@dataclass(frozen=True, slots=True)
class Port:
    """How messages can follow one another.

    The `first` arrives after so many picoseconds, then one `every` so many; at most `uses` of them
    can be of use.
    """

    first: Time
    every: Time
    uses: int


@dataclass(frozen=True, slots=True)
class Spread:
    """What every rank is allowed to do at most.

    `inner` and `outer` are ports of a rank to others of its server and to other servers; the
    largest server has `server` ranks.
    """

    inner: tuple[Port, ...]
    outer: tuple[Port, ...]
    server: int


def dissemination_time(net: Net, collective: Collective) -> Time:
    """Return how soon every rank of `net` can have heard of all others that it must hear of.

    Picoseconds; who must hear of whom is up to the `collective`. The `net` has no helpers: past
    these one message reaches many at once, and only the distance counts.
    """
    ranks, root = net.num_ranks, collective.root
    if not 1 < ranks <= MOST_RANKS or (not is_uniform(collective) and ranks > MANY_RANKS):
        return 0
    chosen = one_of_each(net, collective) if root is None else (root,)
    chosen = chosen[:: 1 + len(chosen) // MANY_SOURCES]
    counts = between_pairs(collective) > 0
    latest = 0
    home = np.array(net.topology.server_of)
    outside = home[net.src] != home[net.dst]
    for backwards, wanted in ((False, counts.sum(axis=1)), (True, counts.sum(axis=0))):
        inner, outer = (ports_of(net, rows, backwards=backwards) for rows in (~outside, outside))
        if inner is None or outer is None:  # messages keep nothing busy
            continue
        spread = Spread(inner, outer, int(np.bincount(home).max()))
        ways = {r: np.sort(net.distance_from(r, backwards=backwards)) for r in chosen if wanted[r]}
        for rank in sorted(ways, key=lambda r: -int(ways[r][wanted[r]]))[:MOST_SOURCES]:
            latest = max(latest, informed(spread, ways[rank], int(wanted[rank]) + 1))
    return latest


def informed(spread: Spread, distances: IntArray, wanted: int) -> Time:
    """Return the earliest time at which so many `wanted` ranks can know what one of them does.

    `spread` is what every rank can do at most, `distances` are those from that rank to every rank,
    ascending, in picoseconds.
    """
    near: list[Time] = distances[distances < FAR].tolist()
    inner = list(rises(spread.inner, [(0, 1)], None, spread.server))
    known = sum(more for _, more in inner)
    # What is not followed further counts as known by then.
    inner[-1] = (inner[-1][0], inner[-1][1] + spread.server - known)
    alike = spread.inner + spread.outer
    ways = ((alike, [(0, 1)]), (spread.outer, inner))
    return max(
        max(time for time, _ in rises(ports, inside, near, wanted)) for ports, inside in ways
    )


def rises(
    ports: Sequence[Port], spreading: Rises, distances: Sequence[Time] | None, wanted: int
) -> Iterator[tuple[Time, int]]:
    """Yield when how many more know, until so many do, or as far as it is followed.

    By each of the `ports` one that knows sends for others to be informed as `spreading` says.
    """
    moments = sorted({0, *(distances or ())})
    chains: defaultdict[Time, Counter[tuple[int, int]]] = defaultdict(Counter)
    rises: Counter[Time] = Counter()
    for time, more in spreading:
        rises[time] += more
        moments.append(time)
    heapify(moments)
    told = known = now = 0
    for _ in range(MOST_MOMENTS):
        if not moments or known >= wanted:
            return
        now = heappop(moments)
        for (number, left), count in chains.pop(now, Counter()).items():
            port = ports[number]
            for time, more in spreading:
                rises[now + time] += more * count * (1 if port.every else left)
                heappush(moments, now + time)
            if port.every and left > 1:
                chains[now + port.every][number, left - 1] += count
                heappush(moments, now + port.every)
        told += rises.pop(now, 0)
        near = wanted if distances is None else bisect_right(distances, now)
        more = min(told, near, wanted) - known
        if more <= 0:
            continue
        yield now, more
        known += more
        for number, port in enumerate(ports):
            chains[now + port.first][number, port.uses] += more
            heappush(moments, now + port.first)
    yield now, 0


def ports_of(net: Net, rows: NDArray[np.bool_], *, backwards: bool) -> tuple[Port, ...] | None:
    """Return the ports of a rank of `net` at least as good as all; None where some are free.

    `rows` is a mask of the links that the ports serve; `backwards` is to look at what ranks
    receive, from the end.
    """
    links = np.flatnonzero(rows)
    if not len(links):
        return ()
    cover = counting_edges(net, last=backwards)[links]
    if cover.min() == NONE:
        return None
    ends, others = (net.dst, net.src) if backwards else (net.src, net.dst)
    # Links of one rank by one edge are a port: how often, and to how many.
    order = np.lexsort((others[links], cover, ends[links]))
    rank, edge, other = ends[links][order], cover[order], others[links][order]
    starts = np.flatnonzero(np.diff(rank, prepend=-1) | np.diff(edge, prepend=-1))
    wire = np.array([0] if net.chunk is None else [int(wire) for wire in net.wires])
    busy = np.zeros_like(edge) if net.chunk is None else wire[net.wire_id[edge]]
    every = np.minimum.reduceat(net.overhead[links][order] + busy, starts)
    is_new = np.diff(other, prepend=-1) != 0
    is_new[starts] = True
    uses = int(np.add.reduceat(is_new.astype(np.int64), starts).max())
    return tuple(
        Port(int(net.link_time[links].min()), time, uses)
        for time in _most_frequent(rank[starts], every)
    )


def _most_frequent(ranks: IntArray, every: IntArray) -> list[Time]:
    """Return the least time between messages of any rank's best port, second best, and so on."""
    order = np.lexsort((every, ranks))
    first = np.flatnonzero(np.diff(ranks[order], prepend=-1))
    place = np.arange(len(order)) - np.repeat(first, np.diff(first, append=len(order)))
    best = np.full(int(place.max()) + 1, FAR, dtype=np.int64)
    np.minimum.at(best, place, every[order])
    times: list[Time] = best.tolist()
    return times

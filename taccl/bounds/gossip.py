"""How soon all can have heard of all, past the gates of parts within parts (leaves, pods, servers).

In an AllGather, ReduceScatter, AllReduce or AlltoAll something of every rank must reach every other
one, whatever messages carry. A *gate* of a part is an edge that its messages from outside cross,
one after the other: messages that it has let in by t began at t - a, t - a - e, t - a - 2e ... at
the latest, with e the least overhead and a the least alpha of links from outside. Let K(t) be the
most ranks that any rank can know of by t, and I(t) how many of its own part by links inside only.
What a rank knows of others came by those, or in messages past the G gates, each with no more than
its sender knew when it began:

    K(t) <= I(t) + G (K(t - a) + K(t - a - e) + K(t - a - 2e) + ...)

with K(t) = 0 before 0. I is found in the same way by the parts inside a part, and in the smallest
ones by the ports of their ranks (dissemination.py). So let in(t) be the sum past the gates. A part
of m of N ranks can't have been told of all others before the first t with in(t) >= N - m. Of the
rank that is the last to be heard of, nothing came before then; what came is at one rank of the part
for each gate, and at as many more after each overhead (sooner by what the alphas of links differ),
and has to be told to all m: by the same formula on turned links, as who can be told by one rank in
some time is who can tell it on these. All of this holds with time turned round, too.

Nothing is said where messages keep no gate busy (``delay``), or past switches that copy or add.
"""

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.bounds.cut import NONE
from taccl.bounds.dissemination import Rises, ports_of, rises
from taccl.bounds.net import MOST_RANKS, IntArray, Net, is_uniform
from taccl.collectives import Collective
from taccl.collectives.chunks import places_in
from taccl.topology.structure import Parts, levels_of
from taccl.units import Time

MOST_VISITS = 20_000_000
"""Links of all parts together, above which gates are not looked for."""

MOST_STEPS = 20_000
"""Steps by which growth is followed; what is not followed counts as known with the last."""


class Gates(NamedTuple):
    """The gates of a part, at most so `many`, for links of an alpha of `first` at least.

    Each lets one message in `every` so many picoseconds.
    """

    many: int
    first: Time
    every: Time


def gossip_time(net: Net, collective: Collective) -> Time:
    """Return how soon, in picoseconds, all ranks can have heard of all others; 0: nothing is said.

    That is what a `collective` on `net` that treats ranks alike asks for.
    """
    ranks, topology = net.num_ranks, net.topology
    alike = is_uniform(collective) and collective.num_ranks == ranks
    if net.helpers or not alike or not 1 < ranks <= MOST_RANKS or not len(net.src):
        return 0
    levels = nested(
        (topology.servers,) if topology.num_servers > 1 else levels_of(topology), ranks
    )  # fmt: skip
    if sum(map(len, levels)) * len(net.src) > MOST_VISITS:
        return 0
    return max(
        (
            all_heard(net, levels[: number + 1], backwards=backwards)
            for number in range(len(levels))
            for backwards in (False, True)
        ),
        default=0,
    )


def nested(levels: Sequence[Parts], ranks: int) -> list[Parts]:
    """Return the levels, smallest parts first, each of whose parts holds whole ones of the last.

    They are of so many `ranks`; parts of one level have one size.
    """
    kept: list[Parts] = []
    for parts in levels:
        if len({len(part) for part in parts}) > 1:
            continue
        home = homes(parts, ranks)
        if not kept or all(len(set(home[list(part)].tolist())) == 1 for part in kept[-1]):
            kept.append(parts)
    return kept


def homes(parts: Parts, ranks: int) -> IntArray:
    """Return the part of every one of so many `ranks`."""
    home = np.zeros(ranks, dtype=np.int64)
    for number, part in enumerate(parts):
        home[list(part)] = number
    return home


def all_heard(net: Net, levels: Sequence[Parts], *, backwards: bool) -> Time:
    """Return how soon all can have heard of all, past the gates of the largest parts of `levels`.

    If `backwards`, with time and all links turned round.
    """
    ranks, size = net.num_ranks, len(levels[-1][0])
    home = homes(levels[-1], ranks)
    gates = gates_of(net, home[net.src] != home[net.dst], home, backwards=backwards)
    heard, told = (_inside(net, levels, backwards=turn) for turn in (backwards, not backwards))
    if gates is None or heard is None or told is None:
        return 0
    comes = [(time, more, False) for time, more in heard]
    last = _reached(_events(comes, gates, ranks), ranks - size)
    # At one rank for each gate, and again after every overhead.
    seeds = [number * gates.every for number in range(1 + (size - 1) // gates.many)]
    ends = sorted((seed + time, gates.many * more) for seed in seeds for time, more in told)
    known = 0
    for time, more in ends:
        known += more
        if known >= size:
            return last + time
    return last


def _reached(growth: Iterator[tuple[Time, int, int]], wanted: int) -> Time:
    """Return when so many have come past the gates, or where growth is followed no further."""
    last = 0
    for time, _, past in growth:
        last = time
        if past >= wanted:
            break
    return last


def _events(
    inside: Sequence[tuple[Time, int, bool]], gates: Gates, most: int
) -> Iterator[tuple[Time, int, int]]:
    """Yield (time, how many more are known, how many came past the gates so far), in order.

    `inside` has (time, how many more, False) of what is known without gates; `most` can be known.
    """
    heap = sorted(inside)
    known = told = past = 0
    for _ in range(MOST_STEPS):
        if not heap:
            return
        time, more, again = heappop(heap)
        told += more
        if again:
            past += more
            heappush(heap, (time + gates.every, more, True))
        new = min(told, most) - known
        known += new
        if new:
            heappush(heap, (time + gates.first, gates.many * new, True))
        yield time, new, past
        if known >= most and past >= most:
            return


def _inside(net: Net, levels: Sequence[Parts], *, backwards: bool) -> Rises | None:
    """Return when how many more of its part a rank can know of, by links inside; None: at once."""
    size, ranks = len(levels[-1][0]), net.num_ranks
    home = homes(levels[-1], ranks)
    within = home[net.src] == home[net.dst]
    finer = len(levels) > 1
    inner = homes(levels[-2], ranks) if finer else home
    across = within & (inner[net.src] != inner[net.dst])
    gates = gates_of(net, across, inner, backwards=backwards) if finer and across.any() else None
    grown = _inside(net, levels[:-1], backwards=backwards) if gates is not None else None
    if gates is None or grown is None:
        ports = ports_of(net, within, backwards=not backwards)
        if ports is None:
            return None
        found = list(rises(ports, [(0, 1)], None, size)) if ports else [(0, 1)]
        followed = bool(ports)
    else:
        events = _events([(time, more, False) for time, more in grown], gates, size)
        found, followed = [], True
        for time, more, _ in events:
            found += [(time, more)] if more else []
            if sum(new for _, new in found) >= size:
                break
    left = size - sum(more for _, more in found)
    if followed and left:
        found[-1] = (found[-1][0], found[-1][1] + left)
    return found


def gates_of(
    net: Net, rows: NDArray[np.bool_], home: IntArray, *, backwards: bool
) -> Gates | None:  # fmt: skip
    """Return the gates of the part with most of them; None where some message keeps none busy.

    `rows` is a mask of the links between the parts of a level, of which `home` is that of every
    rank. If `backwards`, links are turned round: gates lead out.
    """
    if not rows.any():
        return None
    ends, many = net.src if backwards else net.dst, 0
    for part in np.unique(home[ends[rows]]).tolist():
        into = rows & (home[ends] == part)
        cover = most_shared(net, into)
        if cover is None:
            return None
        many = max(many, len(np.unique(cover[into])))
    first, every = int(net.alpha[rows].min()), int(net.overhead[rows].min())
    return Gates(many, first, every) if every else None


def most_shared(net: Net, rows: NDArray[np.bool_]) -> IntArray | None:
    """Return for each of some links an edge to count it at: the resource that most of them cross.

    None where one crosses no resource; ``NONE`` for links that `rows` does not name.
    """
    links = np.flatnonzero(rows)
    lengths = np.diff(net.first)[links]
    owner = np.repeat(links, lengths)
    edges = net.edges[np.repeat(net.first[links], lengths) + places_in(lengths)]
    held = net.wire_id[edges] >= 0
    owner, edges = owner[held], edges[held]
    order = np.argsort(np.bincount(edges)[edges], kind="stable") if len(edges) else edges
    cover = np.full(len(net.src), NONE, dtype=np.int64)
    cover[owner[order]] = edges[order]  # of repeated places numpy keeps the last
    return None if (cover[links] == NONE).any() else cover

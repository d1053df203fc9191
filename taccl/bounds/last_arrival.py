"""What has come into a set of ranks last must still spread inside it.

Let S be a set of ranks (a server; all but one rank) and m the chunks that start outside it and
that all (or some) of its members want. With one chunk to a message:

- E(t) messages at most have entered S by time t (whole messages, each gate its own), I(t) at most
  travel between members within a time t.
- By any moment t at least q = m - E(t - 1) of the m chunks have not entered *before* t: they are
  late. A late chunk that d members want needs d receptions in S: entries, and messages between
  members that start at t or later, as no member had it before.
- A chunk may enter several times. All entries are E(T) at most, and each of the m - q' chunks
  that are not late has used one; so the q' >= q late chunks enter at most E(T) - m + q' times, and
  need at least the sum of (d - 1) over the q chunks with the smallest d, less E(T) - m, messages
  between members. All these fit into the time from t to T: at most I(T - t).
- Of the last E(T) - m + 1 chunks to enter, one enters only once, as otherwise there were more
  than E(T) entries. It then spreads from one member to all over links inside S only.

The makespan is the least T that meets all of it: E and I only grow, so a T that does not rules
out all smaller ones. Turned round in time it holds for sums: d members have a part of a chunk
that a rank outside wants; each of them sends it out of S, or to a member before the last part of
the chunk leaves. The schedule read backwards has the same number of messages in each window.

An all-reduce does both, for all its chunks: what members learn from outside must first come in.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taccl.bounds.arrival_curves import Gates, crossed, first_time, whole
from taccl.bounds.cut import MANY_RANKS, counted_at, edge_covers, make_graph, narrowest
from taccl.bounds.dissemination import Spread, informed, ports_of
from taccl.bounds.net import (
    FAR,
    Ends,
    IntArray,
    Net,
    Task,
    by_head,
    is_uniform,
    one_of_each,
    relaxed,
    servers_of,
    tasks_of,
)
from taccl.collectives import COLLECTIVES, Collective
from taccl.units import Time

SPREADING = ("allgather", "reducescatter", "allreduce", "broadcast", "reduce")
"""Collectives of the table whose chunks more than one member of a set wants, or has a part of."""

MOST_LINKS = 50_000_000
"""Links looked at for all sets together."""

MOST_ALONE = 64
"""Ranks for which all the others are a set to look at."""

MOST_GATEWAYS = 16
"""Members where chunks come in, above which any may be next to all others."""

SLOTS = 24
"""Moments that are looked at one by one, from the last entry backwards; before, every second."""


@dataclass(frozen=True, slots=True)
class IngressSet:
    """A set of ranks and the chunks that must come in.

    Every message into the set passes the gates `entries`, and every message between members those
    `inside`. `wanted` are pairs (members that want a chunk, how many such chunks), ascending, and
    `spread` is picoseconds from an only entry to the last member; 0 where some don't want all.
    """

    entries: tuple[Gates, ...]
    inside: tuple[Gates, ...]
    wanted: tuple[tuple[int, int], ...]
    spread: Time

    @property
    def chunks(self) -> int:
        """How many chunks must come in."""
        return sum(count for _, count in self.wanted)

    def enter(self, time: Time) -> int:
        """Return how many messages can have come in."""
        return min(crossed(gates, time) for gates in self.entries)

    def pass_on(self, time: Time) -> int | None:
        """Return how many messages members can exchange within a time; None: any number."""
        return min((crossed(gates, time) for gates in self.inside), default=None)

    def rest(self, late: int) -> int:
        """Return how many receptions so many chunks need at least, beside one for each."""
        total = 0
        for members, count in self.wanted:
            total += (members - 1) * min(late, count)
            late -= min(late, count)
        return total


def last_arrival_time(net: Net, collective: Collective) -> Time:
    """Return how soon all that must enter some set of ranks of `net` can have spread inside it.

    Picoseconds, of one chunk of the `collective` to a message.
    """
    many = not is_uniform(collective) and net.num_ranks > MANY_RANKS
    if many or (collective.name in COLLECTIVES and collective.name not in SPREADING):
        return 0
    tasks = [] if collective.name in COLLECTIVES else tasks_of(collective)
    latest = 0
    for backwards in (False, True) if collective.reduces else (False,):
        found = set(_ingress_sets(net, collective, tasks, backwards=backwards))
        for ingress in sorted(found, key=lambda ingress: ingress.wanted):
            latest = service_time(ingress, latest)
    return latest


def service_time(ingress: IngressSet, floor: Time = 0) -> Time:
    """Return the least time, `floor` or later, at which an `ingress` can have been served (ps)."""
    moments = list(_moments(ingress))
    return first_time(lambda end: _fits(ingress, moments, end), floor)


def _moments(ingress: IngressSet) -> Iterator[tuple[Time, int]]:
    """Yield times at which chunks can enter, and how many have not entered before; backwards."""
    chunks = ingress.chunks
    late, step = 1, 1
    for number in range(10 * SLOTS):
        time = max(whole(gates, chunks - late + 1) for gates in ingress.entries)
        late = chunks - ingress.enter(time - 1)
        yield time, late
        if late >= chunks:
            return
        step = 1 if number < SLOTS else 2 * step
        late = min(chunks, late + step)


def _fits(ingress: IngressSet, moments: Sequence[tuple[Time, int]], end: Time) -> bool:
    """Tell whether nothing rules out that all is served by a time."""
    chunks = ingress.chunks
    spare = ingress.enter(end) - chunks
    if spare < 0:
        return False
    if ingress.spread and spare < chunks:
        last = max(whole(gates, chunks - spare) for gates in ingress.entries)
        if last + ingress.spread > end:
            return False
    for time, late in moments:
        most = ingress.pass_on(end - time)
        if most is not None and ingress.rest(late) - spare > most:
            return False
    return True


def _ingress_sets(
    net: Net, collective: Collective, tasks: Sequence[Task], *, backwards: bool
) -> Iterator[IngressSet]:
    """Yield the servers, and all ranks but one, into which some chunks must come."""
    graph, covers = make_graph(net, backwards=backwards), edge_covers(net)
    tails, heads = (net.dst, net.src) if backwards else (net.src, net.dst)
    chosen = one_of_each(net, collective)
    sets = servers_of(net, chosen)
    for rank in chosen[:MOST_ALONE]:
        sets.append(tuple(np.setdiff1d(range(net.num_ranks), [rank]).tolist()))
    most = min(graph.most_flows, MOST_LINKS // (20 * len(net.src) + 1))
    for members in list(dict.fromkeys(sets))[:most]:
        wanted = _wanted(collective, tasks, members, backwards=backwards)
        if max((many for many, _ in wanted), default=0) <= 1:
            continue
        inside = np.zeros(net.num_ranks, dtype=np.bool_)
        inside[list(members)] = True
        enters, passes = ~inside[tails] & inside[heads], inside[tails] & inside[heads]
        found = [counted_at(net, cover, enters) for cover in covers]
        narrow = narrowest(graph, np.flatnonzero(~inside).tolist(), members)
        found.append(net.gates(narrow[0], enters) if narrow else None)
        entries = tuple(sorted({gates for gates in found if gates}))
        if not entries:
            continue
        within: set[Gates] = {()} if not passes.any() else set()
        within |= {gates for cover in covers if (gates := counted_at(net, cover, passes))}
        spread = 0
        if all(many == len(members) for many, _ in wanted):
            spread = _spread(net, np.unique(heads[enters]), passes, members, backwards=backwards)
        yield IngressSet(entries, tuple(sorted(within)), wanted, spread)


def _wanted(
    collective: Collective, tasks: Sequence[Task], members: Sequence[int], *, backwards: bool
) -> tuple[tuple[int, int], ...]:
    """Return how many members want (have a part of) chunks that must come in (go out)."""
    if collective.name in COLLECTIVES:
        # Of the table, no chunk is for some of the members only.
        root = collective.root
        outside = collective.num_ranks - len(members) if root is None else 1
        chunks = outside * collective.chunks_per_rank
        if collective.name == "allreduce":
            chunks = collective.num_chunks
        elif backwards != collective.reduces or root in members:
            chunks = 0
        return ((len(members), chunks),) if chunks else ()
    inside = frozenset(members)
    counts: Counter[int] = Counter()
    for sources, targets, count in tasks:
        here, there = (targets, sources) if not backwards else (sources, targets)
        at_home = sum(rank in inside for rank in there)
        if at_home == 0 or (collective.reduces and at_home < len(there)):
            counts[sum(rank in inside for rank in here)] += count
    del counts[0]
    return tuple(sorted(counts.items()))


def _spread(
    net: Net,
    gateways: IntArray,
    passes: NDArray[np.bool_],
    members: Sequence[int],
    *,
    backwards: bool,
) -> Time:
    """Return how long it takes at least from where data came in (`gateways`) to all members."""
    size, near, far = len(members), np.zeros(len(members), dtype=np.int64), 0
    if len(gateways) <= MOST_GATEWAYS:
        ends: Ends = (net.src[passes], net.dst[passes])
        links, times = by_head(ends[::-1] if backwards else ends), net.link_time[passes]
        ways = [
            relaxed(net.num_ranks, links, times, [gateway])[list(members)]
            for gateway in gateways.tolist()
        ]
        near = np.min([np.sort(way) for way in ways], axis=0)
        far = min(int(way.max()) for way in ways)
    ports = ports_of(net, passes, backwards=backwards)
    if ports is None or near[-1] >= FAR:
        return far
    return max(far, informed(Spread(ports, (), size), near, size))

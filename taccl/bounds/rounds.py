"""Latency and bandwidth together: messages one after the other, and all their bytes beside them.

A port takes one message after the other, each for its overhead o and b for each byte, and a
message holds no more than what its sender knew when it began. Messages may be of any bytes. Each
idea below hands over the gates by which bytes come, and from when on they can count. N ranks have
s bytes each, or for each other rank; alpha is the least latency of a link.

*Doubling* (AllGather; ReduceScatter turned round in time). Ranks have at most P ports in, of b and
o at best. Let v(t) be the largest over r of min(((P+1)^r - 1) s / P, (t - r o) / b). No port of any
rank has taken more than v(t) by t, so that no rank knows more than s + P v(t): a port's last
message began at some t', when so much held, and is no larger than s + P v(t') nor than
(t - t' - o) / b. If v(t') is (t' - r o) / b, the sum is at most (t - (r+1) o) / b and
s + (P+1) v_r = v_{r+1}; if it is v_r, having stood still since v_r = (theta - r o) / b with
theta <= t', the same. Both are what v(t) is for r + 1. So N s bytes need r rounds with
(P+1)^r >= N, and r o + (N-1) s b / P. On one port this is the time of recursive doubling.

Where ports lead out of a part of the ranks, too, and are slower, let E(t) be all that those of a
rank can have taken by t: (t - their least latency) / b for each. With s + E(T) for s the same holds
of the P other ports. So if fewer than r rounds are enough, (P+1)^(r-1) (s + E(T)) >= N s; else the
ports take (N-1) s with P (T - r o) / b + E(T): T is the least at which either holds, for every r.
And of what comes from outside, nobody in the part (of p ranks) knows anything but E to begin with,
not before that latency. Of the messages with some of it the first begins after that: until then a
port was idle, or has paid for a message of other bytes. So a port with r rounds of these has lost
another o (the latency, if that is less); and if all have fewer, (P+1)^(r-1) E(T) >= (N-p) s. If it
is the only port inside, what it took before is v(t) at most, t >= A when the first of these begins
and A that latency: (2^m - 1) s and (t - m o) / b for some m. So of t it has lost m o, and also A -
(2^m - 1) s b. For any M it has lost M o, or A with so many s less to take, m = M - 1.

*Last to hear* (AllReduce; Reduce; Broadcast). Let D be how soon a rank can have heard of all others
by messages of no bytes (dissemination.py). For each byte it takes a message that *ends late*: its
start and alpha are D or more. Else the messages of that byte alone, cut to no bytes, would tell all
before D. So a rank takes all its bytes in messages that end late, and they can't begin to come
before: D + size / (bandwidth of its ports). Turned round, the same holds for what leaves a rank. A
broadcast's root: for some byte, every message of the root ends so late that the others could have
gone before; from its end on, all are told in D. Where messages may start before others have arrived
(``delay``) and the links of a rank differ in alpha, D is less by what they differ. And with A for
the least alpha of the root's links, A' of others: a byte that some rank has from another one has
left the root by T - A - A', all others leave it N times, so that of N more ranks and at a rate R of
the root N S <= R (T - A) + (N - 1) R (T - A - A'), of what is not negative.

*Gates and spreading* (AllGather, ReduceScatter, AllReduce, Broadcast, Reduce). What enters a part
of the ranks (a server, a leaf, a pod) by its gates must still be spread inside. A byte that arrives
a time t before the end is known to at most g(t) ranks of the part by its own; so the copies of each
byte have g(t) / (ranks of the part) together 1 or more. What began a time t after the start holds
sums of at most h(t) of the ranks that it must sum. So a message of x bytes that begins at z and
arrives at y counts at most x h(z) g(T - y), as fractions, and all messages together no less than
the bytes that must pass. Of a broadcast the j-th gate opens when so many ranks can have heard that
one of them is at it, and a reduction's closes as long before the end.

At a gate (b for each byte, a message's overhead o, its least latency A) messages follow one
another. Let h and g be steps: H_k from phi_k on, and G_i where theta_i is left. A message of the
steps k and i begins at phi_k or later, and is off the gate by T - theta_i - (A - o); it counts W =
H_k G_i for each byte. Two neighbours of the same steps are better off as one; k only grows and i
only falls. So messages are a path of different steps, and of the time between two of them, t, the
first has W t and the second loses W' t: the most is (W - W') (T - theta_i - (A - o)) or (W - W')
phi_k', whichever sign it has, as t is no later than the one and no sooner than the other (where it
can't be both, this is more than what they make apart). With W o less for each message, a path is a
line in T, and what a gate can count is no more than the upper envelope of the lines of all paths
and 0: convex, a sum of gates that open one after the other, each with a share of the rate. With o =
0 it is the integral of h(z) g(T - A - z).

*Few know much* (AllGather; ReduceScatter turned round). Before A, the least alpha of all links
between parts, nobody knows anything from outside its part, and by doubling no more than K_r s
bytes, K_r = (P+1)^r, before r + 1 rounds are over. Look at the first message of a gate. It begins
at A or later, and so do all: they are a path from then on. Or it begins in a round r, with the step
i: for any kappa, where K_r G_i is kappa or less it counts no more than K_r G_i s, and the others
are a path that begins o after that round does; where it is more, all are a path that begins with
that round, by a step above those. Some gate counts no less than the average of all, which for kappa
below that is a line in T for s bytes, in each of these cases.

*Hops* (AlltoAll). A rank that takes k messages has at most k blocks without a relay; all others are
received at least twice. So all ports together carry k overheads and 2 (N-1) - k blocks for each
rank, with 1 <= k <= the ranks that it has links from: a line for each end of this range.

All hold under ``occupy`` and ``delay``; under ``delay`` o is 0, and doubling and hops say nothing
that a port does not.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cache, lru_cache
from itertools import accumulate, pairwise, product
from typing import NamedTuple

import numpy as np

from taccl.bounds.arrival_curves import Gate, Line, envelope, gather, most_of
from taccl.bounds.cut import NONE, counting_edges, edge_covers, edges_counted
from taccl.bounds.dissemination import Port, Rises, Spread, informed, ports_of, rises
from taccl.bounds.gossip import MOST_VISITS, homes, most_shared
from taccl.bounds.net import FAR, MOST_RANKS, Crossing, IntArray, Net, is_uniform, one_of_each
from taccl.bounds.waiting import KIND, MERGED, lag_crossings, merging_crossings
from taccl.collectives import Collective
from taccl.topology.structure import Parts, levels_of
from taccl.units import Time

MOST_LOOKED_AT = 8
"""Ranks, and parts of a level, that are looked at."""

ROOTED = ("broadcast", "reduce")


def round_crossings(net: Net, collective: Collective) -> Iterator[Crossing]:
    """Yield what must pass ports and gates of `net` in a `collective`, from when on it counts.

    Of messages of any bytes; nothing where each carries a chunk, which dissemination and the last
    arrival are about, or where switches copy or add.
    """
    name, ranks = collective.name, net.num_ranks
    known = not net.helpers and (is_uniform(collective) or name in ROOTED)
    if not known or net.chunk is not None or not 1 < ranks == collective.num_ranks <= MOST_RANKS:
        return
    if name == "alltoall":
        for into in (True, False):
            yield from _hops(net, into=into)
        return
    topology = net.topology
    levels = (topology.servers,) if topology.num_servers > 1 else levels_of(topology)
    if name == "allreduce" or name in ROOTED:
        for into in (False, True) if name == "allreduce" else (name == "reduce",):
            yield from _last_to_hear(net, collective, levels, into=into)
            root = one_of_each(net, collective)[0] if collective.root is None else collective.root
            yield from lag_crossings(net, root, backwards=into)
    if name in MERGED:
        yield from merging_crossings(net, name, [homes(parts, ranks) for parts in levels])
    if name in EACH:
        for home in (np.zeros(ranks, dtype=np.int64), *(homes(parts, ranks) for parts in levels)):
            yield from _doubling(net, home, into=name == "allgather")
    for parts in levels:
        yield from _gates_and_spreading(net, collective, parts)


LITTLE = Fraction(1, 4)
"""Of what a rank has: more rounds are not asked for where so little from outside is doubled."""


def _doubling(net: Net, home: IntArray, *, into: bool) -> Iterator[Crossing]:
    """Yield what a rank takes (gives, if not `into`) after as many overheads as it takes rounds.

    Ports that lead out of its part, by the part of every rank, are told from others.
    """
    outside = home[net.src] != home[net.dst]
    inner, outer = (ports_of(net, rows, backwards=into) for rows in (~outside, outside))
    if not inner or outer is None:
        return
    cover, ranks, ports = counting_edges(net, last=into), net.num_ranks, len(inner)
    wires: list[Fraction] = [
        min((net.wires[one] for one in set(net.wire_id[cover[rows]].tolist())), default=Fraction(1))
        for rows in (~outside, outside)
    ]
    every, late = min(port.every for port in inner), net.alpha - net.overhead
    lost, latency = int(late[~outside].min()), int(net.alpha[outside].min()) if outer else 0
    if not all(wires):
        return
    rate, slower = ports / wires[0], len(outer) / wires[1]
    slow = (slower, -slower * latency)
    alike, away = Fraction(ranks), Fraction(ranks - int(np.bincount(home).max()))
    # What is wanted, what of it is known without ports that lead out, at how many ports the rounds
    # are; and cases of what is lost before the first one, and how often as many bytes as a rank has
    # its ports take beside that.
    before: list[list[tuple[int, int]]] = [[(min(every, latency), ranks - 1)]]
    if ports == 1:
        before += [
            [(most * every, ranks - 1), (latency, ranks - (1 << (most - 1)))]
            for most in range(2, ranks.bit_length()) if (most - 1) * every < latency
        ]  # fmt: skip
    ways = [(alike, 1, ports, [(0, ranks - 1)])]
    ways += [(away, 0, 1, cases) for cases in before if outer]
    for wanted, known, busy, cases in ways:
        rounds, told = 1, wanted
        while told > known and told >= LITTLE:
            lines = list[Line]()
            for first, taken in cases:
                wait = Fraction(busy * (rounds * every + first), ports) + lost
                fast, both = (rate, -rate * wait), (rate + slower, slow[1] - rate * wait)
                lines += [(m / taken, c / taken) for m, c in (fast, both)]
            lines += [(m / (told - known), c / (told - known)) for m, c in [slow] * bool(outer)]
            yield Crossing(KIND, most_of(lines), Fraction(1, ranks))
            rounds, told = rounds + 1, told / (ports + 1)


def _hops(net: Net, *, into: bool) -> Iterator[Crossing]:
    """Yield what all ports of all ranks carry, with few messages or with few relays."""
    cover = counting_edges(net, last=into)
    if len(cover) == 0 or cover.min() == NONE:
        return
    ranks = net.num_ranks
    edges, owner = np.unique(cover, return_inverse=True)
    least = np.full(len(edges), np.iinfo(np.int64).max)
    np.minimum.at(least, owner, net.overhead)
    rates = [1 / net.wires[number] for number in net.wire_id[edges].tolist()]
    # An overhead as bytes of its port: that of the cheapest port.
    extra = min(rate * int(time) for rate, time in zip(rates, least.tolist(), strict=True))
    rate, late = sum(rates, start=Fraction(0)), int((net.alpha - net.overhead).min())
    pairs = np.unique(net.src * ranks + net.dst)
    most = int(np.bincount((pairs % ranks) if into else (pairs // ranks)).max())
    # Lines of k messages a rank: so late, and so much of the buffer's bytes over all ports.
    few, many = ((ranks * k * extra / rate, 2 * (ranks - 1) - k) for k in (1, most))
    if few[1] <= many[1] or few[0] >= many[0]:
        return
    # As gates: the first opens with the line of few messages, both together have the other line.
    one, both = 1 / Fraction(few[1]), 1 / Fraction(many[1])
    second = (many[0] * both - few[0] * one) / (both - one)
    first = Gate(late + int(few[0]), 1 / (rate * one))
    other = Gate(late + int(second), 1 / (rate * (both - one)))
    yield Crossing(KIND, gather([first, other]), Fraction(1))


def _last_to_hear(
    net: Net, collective: Collective, levels: Sequence[Parts], *, into: bool
) -> Iterator[Crossing]:
    """Yield all bytes of a rank, by its ports, from when on it can have heard of all (be heard)."""
    cover = counting_edges(net, last=into)
    if cover.min(initial=0) == NONE:
        return
    root, ends = collective.root, net.dst if into else net.src
    chosen = one_of_each(net, collective)[:MOST_LOOKED_AT] if root is None else (root,)
    every = [homes(parts, net.num_ranks) for parts in levels]
    every = every or [np.zeros(net.num_ranks, dtype=np.int64)]
    spreads = [one for home in every if (one := _spread(net, home, backwards=into)) is not None]
    between = max(_between_parts(net, home, backwards=into) for home in every)
    for rank in chosen:
        links = np.flatnonzero(ends == rank)
        edges = np.unique(cover[links])
        away = np.sort(net.distance_from(rank, backwards=into))
        soonest = max((informed(one, away, net.num_ranks) for one in spreads), default=0)
        soonest = max(soonest, between)
        late = int((net.alpha[links] - net.overhead[links]).max()) - int(net.alpha[links].min())
        start = soonest - (max(0, late) if into else 0)
        wires = [net.wires[number] for number in net.wire_id[edges].tolist()]
        yield Crossing(KIND, gather(Gate(max(0, start), wire) for wire in wires), Fraction(1))
        own, most = int(net.alpha[links].min()), net.num_ranks - 1
        twice = own + int(net.alpha[ends != rank].min(initial=FAR))
        opened = ((own, Fraction(1, most)), (twice, Fraction(most - 1, most)))
        relayed = gather(Gate(time, wire / part) for wire in wires for time, part in opened if part)
        yield Crossing(KIND, relayed, Fraction(1))


def _spread(net: Net, home: IntArray, *, backwards: bool) -> Spread | None:
    """Return what ranks can do inside their part and between parts; None where ports are free."""
    outside = home[net.src] != home[net.dst]
    inner, outer = (ports_of(net, rows, backwards=backwards) for rows in (~outside, outside))
    if inner is None or outer is None:
        return None
    return Spread(inner, outer, int(np.bincount(home).max()))


def _between_parts(net: Net, home: IntArray, *, backwards: bool) -> Time:
    """Return how soon all parts can have heard of one, and all ranks of the last one.

    Each part sends over its gates, one message after the other. The last part hears at all of its
    gates at once, and again after an overhead; what has come spreads inside.
    """
    parts, sizes = int(home.max()) + 1, np.bincount(home)
    outside = home[net.src] != home[net.dst]
    if parts * len(net.src) > MOST_VISITS or not outside.any():
        return 0
    inner = ports_of(net, ~outside, backwards=backwards)
    every, first = int(net.overhead[outside].min()), int(net.alpha[outside].min())
    known: list[int] = []
    for rows in (outside & (home[ends] == n) for ends in (net.src, net.dst) for n in range(parts)):
        cover = most_shared(net, rows)
        if cover is None:
            return 0
        known.append(len(np.unique(cover[rows])))
    if inner is None or every == 0:
        return 0
    out, come = (max(known[:parts]), max(known[parts:]))[:: -1 if backwards else 1]
    told = max(time for time, _ in rises((Port(first, every, parts),) * out, [(0, 1)], None, parts))
    size = int(sizes.min())
    seeds = [(number * every, come) for number in range(1 + (size - 1) // come)]
    growth = list(rises(inner, [(0, 1)], None, size))
    heard, last = 0, 0
    for time, more in sorted((a + b, n * m) for (a, n), (b, m) in product(seeds, growth)):
        heard, last = heard + more, time
        if heard >= size:
            break
    return told + last


ENTERS = ("allgather", "allreduce", "broadcast")
"""What enters a part, to be spread in it; of the others it is summed there, and leaves."""

EACH = ("allgather", "reducescatter")
"""Of which each rank has (gets) a share of the buffer."""


Steps = tuple[tuple[Time, Fraction], ...]
"""From when on (or up to how long before the end) which share more of a byte counts."""


def _gates_and_spreading(net: Net, collective: Collective, parts: Parts) -> Iterator[Crossing]:
    """Yield what enters (leaves) parts by their gates, which must be spread (summed) inside."""
    name, root, ranks = collective.name, collective.root, net.num_ranks
    home = homes(parts, ranks)
    outside = home[net.src] != home[net.dst]
    into = name in ENTERS
    inside = [ports_of(net, ~outside, backwards=turn) for turn in (False, True)]
    between, covers = ports_of(net, outside, backwards=True), edge_covers(net)
    others = net.src if into else net.dst
    spreading = _spread(net, home, backwards=not into) if name in ROOTED else None
    away = np.sort(net.distance_from(root, backwards=not into)) if root is not None else None
    soonest = int(net.alpha[outside].min(initial=FAR))

    @cache
    def heard(wanted: int) -> Time:
        return 0 if spreading is None or away is None else informed(spreading, away, wanted)

    for part in [part for part in parts if root not in part][:MOST_LOOKED_AT]:
        size = len(part)
        member = np.zeros(ranks, dtype=np.bool_)
        member[list(part)] = True
        rows = outside & member[net.dst if into else net.src]
        spread = _shares(inside[not into], [(0, 1)], size)
        summed: Steps = ((0, Fraction(1)),)
        if name == "allreduce" and between is not None:
            alone = _grown(inside[True], [(0, 1)], max(map(len, parts)))
            ways = (inside[True], [(0, 1)]) if len(parts) == 2 else (between, alone)
            summed = _shares(*ways, ranks - size)
        share = Fraction(ranks - size if name in EACH else ranks, ranks)
        for cover in (*covers, most_shared(net, rows)):
            kinds = None if cover is None else edges_counted(net, cover, rows)
            if kinds is None or cover is None:
                continue
            counted = [(kind, summed, count) for kind, count in kinds.items()]
            if spreading is not None and len(kinds) == 1:
                # So many of these gates one rank is at; who has heard of the root is at some.
                places = np.unique(others[rows] * len(net.topology.edges) + cover[rows])
                each = int(np.bincount(places // len(net.topology.edges)).max())
                ((kind, gates),) = kinds.items()
                opened = Counter(heard(-(-gate // each)) for gate in range(1, gates + 1))
                one = Fraction(1)
                counted = [(kind, ((time, one),), count) for time, count in opened.items()]
            if name in EACH and len(kinds) == 1:
                (((lost, overhead, wire), gates),) = kinds.items()
                known = _known_before(inside[into], ranks - size, soonest)
                if known and overhead:
                    asked = _Asked(lost, overhead, spread, Fraction(ranks - size, gates))
                    for lines in _with_little(asked, known, soonest):
                        slopes = [(m / net.wires[wire], c / net.wires[wire]) for m, c in lines]
                        yield Crossing(KIND, most_of(slopes), Fraction(1, ranks))
            found: Counter[Gate] = Counter()
            for (lost, overhead, wire), steps, count in counted:
                ends = (steps, spread) if into else (spread, steps)
                for time, weight in _through(lost, overhead, *ends):
                    found[Gate(time, net.wires[wire] / weight)] += count
            yield Crossing(KIND, tuple(sorted(found.items())), share)


MOST_STEPS = 8
"""Steps that are told apart; of more, some are taken as soon as the first of them."""


@lru_cache(maxsize=256)
def _through(lost: Time, overhead: Time, before: Steps, after: Steps) -> Steps:
    """Return a gate's messages as gates that open one after the other, each with a share.

    A message takes `lost` to arrive beside its bytes, and keeps the gate busy for the `overhead`.
    What shares of a byte count is in `before`, by its start, and in `after`, by the time from its
    arrival to the end.
    """
    if not overhead:
        opened: defaultdict[Time, Fraction] = defaultdict(Fraction)
        for (one, weight), (two, other) in product(before, after):
            opened[lost + one + two] += weight * other
        return tuple(sorted(opened.items()))
    return tuple(
        (math.floor((one[1] - two[1]) / (two[0] - one[0])), two[0] - one[0])
        for one, two in pairwise(_paths(lost, overhead, before, after))
    )


@lru_cache(maxsize=1024)
def _paths(
    lost: Time, overhead: Time, before: Steps, after: Steps, first: int = 0
) -> tuple[Line, ...]:
    """Return what a gate's messages count at most, as lines: those above all others somewhere.

    Messages are as for :func:`_through`, and the first has one of the steps `after` from the number
    `first` on.
    """
    heard, left = _summed(before), _summed(after)
    paths: dict[tuple[int, int], list[Line]] = {}
    whole: list[Line] = [(Fraction(0), Fraction(0))]
    for k, i in product(reversed(range(len(heard))), range(len(left))):
        weight = heard[k][1] * left[i][1]
        last = -left[i][0] - (lost - overhead)  # of being off the gate, from the end on
        lines = [(weight, weight * last)]
        for (later, lower), following in paths.items():
            if later < k or lower > i:
                continue
            more = weight - heard[later][1] * left[lower][1]
            slope, base = (
                (more, more * last) if more >= 0 else (Fraction(0), more * heard[later][0])
            )
            lines += ((slope + m, base + c) for m, c in following)
        paths[k, i] = [(m, c - weight * overhead) for m, c in envelope(lines)]
        if i >= first:
            whole += ((m, c - weight * heard[k][0]) for m, c in paths[k, i])
    return tuple(envelope(whole))


class _Asked(NamedTuple):
    """What is asked of the messages of a gate, which are as for :func:`_through`.

    Parameters
    ----------
    lost, overhead, spread
        Picoseconds of a message, and what share of a byte counts by the time left.
    least
        How often as many bytes as a rank has they must count.
    """

    lost: Time
    overhead: Time
    spread: Steps
    least: Fraction


def _known_before(ports: tuple[Port, ...] | None, most: int, first: Time) -> list[tuple[Time, int]]:
    """Return when rounds begin inside a part, and how often its own bytes a rank knows then.

    By its `ports`, and `most` ranks in a part, until `first`, when something may come from outside;
    times are picoseconds. None where ports are free.
    """
    if not ports:
        return []
    every, found = min(port.every for port in ports), list[tuple[Time, int]]()
    while every and len(found) * every < first:
        found.append((len(found) * every, min(most, (len(ports) + 1) ** len(found))))
        if found[-1][1] == most:
            break
    return found


def _with_little(
    asked: _Asked, known: Sequence[tuple[Time, int]], soonest: Time
) -> Iterator[list[Line]]:
    """Yield lines of which one is above what a rank has, in picoseconds of a gate.

    A first message that begins before `soonest` (picoseconds) holds what is `known` in its round;
    each time it is told apart at another share of that.
    """
    lost, overhead, spread, least = asked
    shares = [share for _, share in _summed(spread)]
    ends = [(time, Fraction(1)) for time in (soonest, *(at + overhead for at, _ in known))]
    late, *next_ones = (_paths(lost, overhead, (end,), spread) for end in ends)
    for most in sorted({share * times for share in shares for _, times in known}):
        if most >= least:
            return
        lines = [(m / least, c / least) for m, c in late]
        for (at, times), following in zip(known, next_ones, strict=True):
            below = [times * share for share in shares if times * share <= most]
            rest = least - max(below, default=Fraction(0))
            lines += ((m / rest, c / rest) for m, c in following) if below else ()
            if len(below) < len(shares):
                own = _paths(lost, overhead, ((at, Fraction(1)),), spread, len(below))
                lines += ((m / least, c / least) for m, c in own)
        yield lines


def _summed(steps: Steps) -> list[tuple[Time, Fraction]]:
    """Return what share counts from when on, in MOST_STEPS steps."""
    every = -(-len(steps) // MOST_STEPS)
    groups = [steps[first : first + every] for first in range(0, len(steps), every)]
    shares = accumulate(sum((share for _, share in group), Fraction(0)) for group in groups)
    return [(group[0][0], share) for group, share in zip(groups, shares, strict=True)]


def _grown(ports: tuple[Port, ...] | None, start: Rises, most: int) -> Rises:
    """Return when how many more of so many ranks are told; at once where ports are free."""
    if ports is None:
        return [(0, most)]
    return list(rises(ports, start, None, most)) if ports else start


def _shares(ports: tuple[Port, ...] | None, start: Rises, most: int) -> Steps:
    """Return when which share of `most` ranks more is told; what is not followed, with the last."""
    left, found = most, list[tuple[Time, Fraction]]()
    grown = _grown(ports, start, most)
    for number, (time, more) in enumerate(grown):
        told = left if ports and number == len(grown) - 1 else min(more, left)
        left -= told
        found += [(time, Fraction(told, most))] if told else []
    return tuple(found)

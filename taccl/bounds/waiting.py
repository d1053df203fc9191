"""What bytes pay for the messages that hold them: by port, or by waiting for the whole message.

A message of x bytes keeps a port for o + b x, and its overhead is shared by its bytes, o / x each.
Whoever needs one of them waits for all x. So small messages cost overheads, and large ones time
where they must follow one another. Both are bounded below byte by byte, whatever x is.

*Lag* (Broadcast; Reduce turned round; AllReduce, which does both for each rank). Of each byte look
at the N messages by which the ranks but the root have it first. With x bytes that are new to its
receiver a message takes o + b x or more; let its middle be half of that after its start. Its sender
had the byte by another of the N, or sent another of them by the same port: it starts after that one
is over, its *parent*. So they are trees, one for each port of the root at most, of P + 1 branches
at most. From one middle to the next there is half of both messages. With D messages in the tree
below each, itself included, all middles of a byte together are later than those of the roots of its
trees by (D - 1) o + (D - 1/2) b x for each message, a root's bytes counting (D - 1) / 2.

After its middle a message keeps its receiver's port for half of itself, and others follow. In sum
over a rank's bytes, T less the middle is S^2 / 2R' with the rate R' of its ports, and o q / x for
each byte that has q before it at its port. The root's bytes follow one another, too: their middles
in sum are S^2 / 2R, and with one port o (S - q) / x for each byte, as all that comes after waits.
So

    N S T >= N (S^2 / 2R + S^2 / 2R') + sum over bytes (N o (S - q) / x + sum over D (...))

A byte that leaves by several ports, in trees of D_i and t_i before S / R (0: then, or later), has
middles of N S / R less all D_i t_i. Let what leaves t before pay N t - U(t), U concave and U(0) =
0: all pay no more than bytes at the rate R would. Of the trees of a byte all but the largest have N
/ 2 messages or less: where U has no slope above N / 2, those do best with t_i = 0. Then a byte's
trees, with (N - D_1) t_1 - U(t_1), are V(0) or more if V(t), the least of trees and (N - D_1) t, is
V(0) + U(t) or more.

Nothing is known of x but that it is S at most: o q / x + c b x is at least the root of 4 o q c b,
or o q / S + c b S where o q > c b S^2. Which q goes with which D is left open, too: for a function
A that grows it is at least A(q) and B(D), the least that it exceeds A by at any q. A rank has no
more bytes of one q than ports, so that all A(q) are known, and a recursion over D finds the trees
with the least B. A good A is that of trees with all their branches, the largest D at the smallest
q. All of this holds for y bytes alone, too: those that no port of the root has among its first
ones, S - y in all, which take (S - y) / R.

*Merging* (AllReduce; see below for AllGather and ReduceScatter). For a byte of n ranks' buffers,
*a* rank knows of another by messages that follow one another; a message that completes a rank's
knowledge *completes* it, and the rank is a *root* if its sender was not complete when it began. Let
there be k roots, 1 or more.

Into a root r there is a tree: of every other rank the message that leaves last of those by which r
can know of it by the time that r is complete. These are n - 1 messages of different senders, none
of them complete; each begins after all of its sender's in the tree are over. The last one at r
completes it, and is in no other root's tree, where all senders are not complete. The other ranks
are complete by a message that a complete one sent: these n - k are trees below the roots, in none
of the others. Choose one of the ranks that are told and one whose value it gets, each with 1 / n:
the messages from the one to the root of the other, with all that the receivers on the way take by
the same port and in this tree later on; and those from this root to the other, with all that the
senders on the way send by the same port before. They follow one another, so that T is at least the
sum of o + b x over them. Into a root, a message is among these for as many values as are merged at
the port by it: those that came by it and, of the tree, sooner (at one of the ports what the rank
has itself, too). So with c ranks in the tree below a root (itself, too) a message is among them
with the probability p = c w / n^2, of w merged values, or of messages below the root w / n, where w
are the ranks that are told by it or that this port tells later.

On the other hand all ports together take R bytes in a picosecond, so that T is at least the sum
over all bytes and messages of (1 + e / x) / R, with e = o / b bytes for an overhead at the port
that takes it. For any weight v of this and 1 - v of the other, a byte (of S) pays for a message

    v S / R + (1 - v) p o + [v S / R * e / x + (1 - v) p b x]

at least, with the least of the bracket over x <= S: a function of p that is concave, and not 0 at
0. So what several roots' trees share costs no less than the trees' average, each tree at p = w / n,
but for the messages that complete roots: for these p = c w / n^2. Trees that cost the least are
found by a recursion over their ranks, ports and, if links between the parts of the machine are
others than those inside, over the ranks of a root's part that are in its tree by messages inside,
no more than there are in the part. What all of this depends on is in S concave for any v: between
sizes it is no less than a line, and behind the last one it grows by v (2 n - 2) / R for each byte
at least, as there are 2 n - 2 messages of each byte.

*How many roots there can be.* These are 2 n - 2 messages of each byte: k complete roots, n - k
other ranks, and n - 2 nobody. Where there are more than two roots there are more: let n - 2 + y
complete nobody, and let K(r) be what r knows by these alone. Roots come in pairs (a root and the
sender that completes it) with everything in K(r) or K(s). Then k <= 2, 3 and 4 for y = 0, 1 and 2,
and each further y allows for y + 1 more. For say z has m such partners, all of which know Q, what z
does not. There are n - |Q| - 1 messages of the tree into z, none of which tells any of Q; |Q| - 1
into the first who knows Q, and m - 1 into the others. So m <= y + 1. Who has not sent any of these
messages is in every pair, so that all others that are in pairs are its partners, and k <= y + 2; if
all have sent there are n messages, and y >= 2. Now look at them in order of their end. One into z
makes all new pairs with z. If z was in a pair, m - 1 <= y ranks are new. If not, and there were
pairs, others know of z by a message of z, which knows nothing of Q and is not in the tree into z: m
<= y, and m + 1 are new. For y = 2 let that message be the last, from a. Before it somebody had sent
none, or there were n messages: a. If there were pairs, all had a in them, and these partners are
partners of z now (z was not one, or would be complete): k <= 1 + 1 + m <= 4.

An AllGather has the trees below a root only, for each byte one out of the rank that has it, of n
ranks and n - 1 messages; and a ReduceScatter a tree into the rank that gets the sum.

Under ``delay`` o is 0, and nothing is said of merging.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cache
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.bounds.arrival_curves import Line, most_of
from taccl.bounds.cut import NONE, counting_edges
from taccl.bounds.net import Crossing, IntArray, Net

KIND = "rounds"

Floats = NDArray[np.float64]

FINE = 24
"""Places between which a byte's is a line."""

SIZES = range(-5, 15)
"""Powers of two of the bytes that take an overhead, between which the bound is a line."""

MANY = 512
"""Ranks for which some of these are enough."""

LOST = 1e-9
"""More than what floats lose."""


def lag_crossings(net: Net, root: int, *, backwards: bool) -> Iterator[Crossing]:
    """Yield all bytes of `net`, and how far behind the `root` others are.

    If `backwards` they are those of a reduction.
    """
    tails, heads = (net.dst, net.src) if backwards else (net.src, net.dst)
    first, last = (counting_edges(net, last=end) for end in (backwards, not backwards))
    rows = heads != root
    come, inside = rows & (tails == root), rows & (tails != root)
    overhead = float(net.overhead[rows].min())
    if not overhead or min(first[rows].min(), last[rows].min()) == NONE:
        return
    busy = np.full(len(net.topology.edges), np.inf)
    busy[list(net.busy)] = [float(time) for time in net.busy.values()]
    gates = np.full(len(busy), np.inf)
    np.minimum.at(gates, first[come], np.minimum(busy[first[come]], busy[last[come]]))
    gates = gates[np.isfinite(gates)]
    wire = min(float(min(busy[first[rows]].min(), busy[last[rows]].min())), float(gates.min()))
    if not wire:
        return
    ranks, by = np.divmod(np.unique(heads[rows] * len(busy) + last[rows]), len(busy))
    taking, rates = np.bincount(ranks), np.bincount(ranks, 1 / busy[by])
    sending = np.bincount(np.unique(tails[inside] * len(busy) + first[inside]) // len(busy))
    lag = Lag(
        net.num_ranks - 1, gates=gates, entry=float(net.overhead[come].min()),
        sending=int(sending.max(initial=0)), taking=int(taking.max()),
        overhead=overhead, wire=wire,
    )  # fmt: skip
    sizes = 2.0 ** (np.array(SIZES[:: 1 + lag.ranks // MANY]) + round(math.log2(overhead / wire)))
    fastest = float((1 / gates).sum())
    even = sizes * (1 / fastest + (1 / rates[np.unique(ranks)]).mean()) / 2
    times = (even + lagging(lag, sizes)) * (1 - LOST) + int((net.alpha - net.overhead)[rows].min())
    yield crossing_of(sizes, times, fastest)


def crossing_of(sizes: Floats, times: Floats, rate: float) -> Crossing:
    """Return all bytes, which take `times` (ps) for `sizes` (bytes), of a concave function.

    For more bytes than the last size it grows by 1 / `rate` for each byte.
    """
    known = [*zip(map(Fraction, sizes.tolist()), map(Fraction, times.tolist()), strict=True)]
    # More bytes than some come at the rate before: a line of that rate.
    best, (most, last_time) = Fraction(rate * (1 + LOST)), known[-1]
    lines = list[Line]()
    for (size, time), (more, later) in pairwise([*known, (2 * most, last_time + most / best)]):
        slope = min(best, (more - size) / (later - time))
        lines.append((slope, size - slope * time))
        if slope == best:
            break
    return Crossing(KIND, most_of(lines), Fraction(1))


class Lag(NamedTuple):
    """So many `ranks` beside a root, and their ports, in picoseconds and picoseconds for a byte.

    Parameters
    ----------
    gates, entry
        Of a byte at each port of the root, and the least overhead of messages there.
    sending, taking
        How many ports to others of the part, and from all, a rank has at most.
    overhead, wire
        The least of any message.
    """

    ranks: int
    gates: Floats
    entry: float
    sending: int
    taking: int
    overhead: float
    wire: float


def lagging(lag: Lag, sizes: Floats) -> Floats:
    """Return how much later (ps) than by bandwidth alone ranks have `sizes` (bytes), on average.

    By a `lag`'s ports: what the messages of a byte wait for one another, and their overheads at the
    ports that take them, and at the root's if it has one only.
    """
    ranks, one = lag.ranks, len(lag.gates) == 1
    # Places among all bytes, and what is a line between each two of them.
    place, early = np.linspace(0, 1, FINE + 1)[:, None] ** 2, np.append(0, 2.0 ** np.arange(-12, 1))
    shares, early_shares = (
        (np.diff(at, prepend=0, axis=0) + np.diff(at, append=1, axis=0)) / 2
        for at in (place, early[:, None])
    )
    before, nodes = place * sizes / lag.taking, np.arange(1.0, ranks + 1)[:, None, None]
    branches, slowest = min(lag.sending + 1, ranks), lag.gates.min()
    # What may be the best trees: how many nodes are below each of theirs, and itself.
    likely, level = list[float](), 1
    while left := ranks - len(likely):
        likely += [left / min(left, level)] * min(left, level)
        level *= branches
    likely = [*likely[1:], 0.0] if one else likely
    below = np.array(likely)[(ranks * (place[1:] + place[:-1]) / 2).astype(np.int64)]
    spared = min(0.5, (ranks - 1) / 4)  # of what one port's messages wait, to take them is charged
    weight = lag.wire * np.where(below > 0, below - 0.5, spared)
    steps = paid(lag.overhead * before[1:] / sizes, weight * sizes)
    steps -= paid(lag.overhead * before[:-1] / sizes, weight * sizes)
    known = np.concatenate([np.zeros((1, len(sizes))), np.cumsum(steps, axis=0)])
    entering = slowest * (spared + 0 * nodes if one else (nodes - 1) / 2)
    inner, outer = (
        (paid(each * before / sizes, weight * sizes) - known).min(axis=1)
        + (each + lag.overhead) / 2 * (nodes[:, 0] - 1)
        for each, weight in ((lag.overhead, lag.wire * (nodes - 0.5)), (lag.entry, entering))
    )
    trees = forests(inner, branches)
    others = forests(outer, len(lag.gates) - 1, trees)[ranks - 1 :: -1]
    first = outer + trees[:-1] + others
    # By how much before the last byte the first message of a byte is at a port of the root.
    tau = sizes / (1 / lag.gates).sum()
    later = [(first + (ranks - nodes[:, 0]) * time * tau).min(axis=0) for time in early]
    most = np.minimum(np.stack(later), later[0] + early[:, None] * tau * (ranks / 2))
    total = (most * early_shares).sum(axis=0) + ranks * (known * shares).sum(axis=0)
    weight = slowest * ((ranks - 1) / 2 - spared)
    waiting = (paid(lag.entry * ranks * place, weight * sizes) * shares).sum(axis=0)
    mean: Floats = (total + (waiting if one else lag.entry / 2 * ranks)) / ranks
    return mean


def paid(apart: Floats, together: Floats) -> Floats:
    """Return the least of `apart` / r + `together` * r over shares r up to 1, in ps.

    The one is paid by a byte if all that could be in its message are, the other if it waits for it.
    """
    both = np.where(apart >= together, apart + together, 2 * np.sqrt(apart * together))
    least: Floats = both
    return least


def forests(roots: Floats, most: int, below: Floats | None = None) -> Floats:
    """Return by how many nodes it has what the cheapest forest of so many trees at `most` costs.

    What a root costs is in `roots`, by the nodes of its tree; a tree has a forest `below` it, at
    the cost of so many nodes, or one of as many trees as `most` again.
    """
    ranks, sizes = roots.shape
    least = np.full((most + 1, ranks + 1, sizes), np.inf)
    least[:, 0] = 0
    trees = np.zeros_like(roots)
    for nodes in range(1, ranks + 1):
        trees[nodes - 1] = roots[nodes - 1] + (least[most] if below is None else below)[nodes - 1]
        for number in range(1, most + 1):
            rest = least[number - 1, nodes - 1 :: -1]
            least[number, nodes] = (trees[:nodes] + rest).min(axis=0)
    cheapest: Floats = least[most]
    return cheapest


SHARES = (0.15, 0.3, 0.45, 0.6, 0.75, 0.85, 0.92, 0.96, 0.985, 0.995)
"""What the ports have of the weight, the waiting has the others."""

MOST_PORTS = 8
"""Ports of a rank: with more, messages hardly follow one another."""

SOME = 40
"""Ranks up to which all SHARES are tried; of twice as many every other one, and of more none."""


class Way(NamedTuple):
    """Messages by a port: the least overhead, picoseconds for a byte, and an overhead in bytes.

    The last at the port that takes the message.
    """

    overhead: float
    wire: float
    extra: float


class Ports(NamedTuple):
    """How many ports of a kind a rank has, and messages within a part and across; None: none."""

    many: int
    ways: tuple[Way | None, Way | None]


def merging_crossings(net: Net, name: str, levels: Sequence[IntArray]) -> Iterator[Crossing]:
    """Yield all bytes of a collective, from when on messages can be paid for and waited for.

    It has the `name` of one of MERGED; `levels` have the part of every rank of `net`.
    """
    taking = counting_edges(net, last=True)
    if not len(taking) or min(taking.min(), counting_edges(net).min()) == NONE:
        return
    ranks, late = net.num_ranks, int((net.alpha - net.overhead).min())
    if ranks > 2 * SOME or not net.overhead.min():
        return
    rate = sum(1 / float(net.wires[number]) for number in net.wire_id[np.unique(taking)].tolist())
    for home in (np.arange(ranks), *levels):
        into, out = (ports_by_way(net, home, into=turn) for turn in (True, False))
        # Ports of their own for what leaves a part are no different from more of a rank's ports.
        in_parts, shared = home.max() + 1 < ranks, any(None not in kind.ways for kind in into)
        most = max(sum(kind.many for kind in kinds) for kinds in (into, out))
        if most > MOST_PORTS or (in_parts and not shared):
            continue
        least = min(way.extra for kind in into for way in kind.ways if way)
        sizes = np.append(0, 2.0 ** (np.array(SIZES) + round(math.log2(least))))
        machine = Machine(ranks, int(np.bincount(home).max()), rate, into, out)
        for share in SHARES[:: 1 + ranks // (SOME + 1)]:
            times = MERGED[name](machine, share, sizes) * (1 - LOST) + late
            messages = (2 if name == "allreduce" else 1) * (ranks - 1)
            yield crossing_of(sizes, times, rate / (share * messages))


def ports_by_way(net: Net, home: IntArray, *, into: bool) -> tuple[Ports, ...]:
    """Return the kinds of ports that ranks of `net` have `into` them, or out of them.

    `home` is the part of every rank. The kind that serves links inside parts, if any, is first.
    """
    cover, last = (counting_edges(net, last=end) for end in (into, True))
    edges = len(net.topology.edges)
    wires = np.array([float(wire) for wire in net.wires])
    across = home[net.src] != home[net.dst]
    keys, port = np.unique((net.dst if into else net.src) * edges + cover, return_inverse=True)
    rank, edge = np.divmod(keys, edges)
    table = np.full((2, 3, len(keys)), np.inf)
    table[:, 1] = wires[net.wire_id[edge]]
    extra = net.overhead / wires[net.wire_id[last]]
    for side, rows in enumerate((~across, across)):
        np.minimum.at(table[side, 0], port[rows], net.overhead[rows])
        np.minimum.at(table[side, 2], port[rows], extra[rows])
    kinds, kind = np.unique(table.reshape(6, -1), axis=1, return_inverse=True)
    kinds = kinds.T.reshape(-1, 2, 3)
    found = []
    for number, ways in enumerate(kinds.tolist()):
        many = int(np.bincount(rank[kind.reshape(-1) == number]).max())
        within, outside = (Way(*way) if math.isfinite(way[0]) else None for way in ways)
        found.append(Ports(many, (within, outside)))
    return tuple(found)


class Machine(NamedTuple):
    """So many `ranks`, at `most` in a part, whose ports all together take `rate` bytes in a ps.

    The kinds of ports of a rank are those `into` it, and out of it.
    """

    ranks: int
    most: int
    rate: float
    into: tuple[Ports, ...]
    out: tuple[Ports, ...]


class Trees(NamedTuple):
    """The cheapest trees of messages into a root.

    Parameters
    ----------
    least
        The least cost of a tree by its ranks and by size.
    ports
        By port but the first the place in `lines` of what it takes.
    lines, before
        What a port takes at the least cost, and without the cost of the last message, which is from
        within the part or across: by how many ranks send it, how many of these are of the root's
        part, and size.
    """

    least: Floats
    ports: list[int]
    lines: list[Floats]
    before: list[tuple[Floats, Floats]]


def trees_of(
    kinds: Sequence[tuple[int, Sequence[Floats | None]]], ranks: int, most: int
) -> Trees:  # fmt: skip
    """Return the cheapest trees of up to so many `ranks`, with at `most` so many in a part.

    By kind, `kinds` have how many ports a rank has, and what a message costs by the number of
    values that it merges and by size: within a part, and across (None: there are none).
    """
    ports = [line for line, (many, _) in enumerate(kinds, 1) for _ in range(many)][1:]
    # Line 0 is that of the first port, for which the root's own value counts, too.
    costs = [kinds[max(line - 1, 0)][1] for line in range(1 + max(ports, default=0))]
    sizes = next(cost.shape[1] for cost in costs[0] if cost is not None)
    nothing = np.full((ranks + 1, most, sizes), np.inf)
    # By ranks, and how many of these are of the part of the root, beside itself.
    trees, least = nothing.copy(), nothing[:, 0].copy()
    trees[1, 0] = least[1] = 0
    before = [(nothing.copy(), nothing.copy()) for _ in costs]
    nothing[0, 0] = 0
    lines, taken = ([nothing.copy() for _ in each] for each in (costs, [0, *ports]))
    for n in range(1, ranks):
        for number, (line, (within, across)) in enumerate(zip(lines, costs, strict=True)):
            inside, outside = before[number]
            merged = n + (number == 0)
            if within is not None:
                inside[n, 1:] = joined(trees[1:], line, n - 1)[:-1]
                line[n] = inside[n] + within[merged]
            if across is not None:
                outside[n] = (least[1 : n + 1, None] + line[n - 1 :: -1][:n]).min(axis=0)
                line[n] = np.minimum(line[n], outside[n] + across[merged])
        for number, port in enumerate(ports, 1):
            taken[number][n] = joined(taken[number - 1], lines[port], n)
        trees[n + 1] = joined(lines[0], taken[-1], n)
        least[n + 1] = trees[n + 1].min(axis=0)
    return Trees(least, ports, lines, before)


def but_one(trees: Trees) -> Iterator[tuple[int, int, int, Floats]]:
    """Yield `trees` of all ranks without the cost of one port's last message.

    The kind of the port; whether the message is across; how many values it merges; the least cost
    of all others, by size.
    """
    ranks = len(trees.least) - 1
    for line in (0, *dict.fromkeys(trees.ports)):
        left = [0, *trees.ports]
        left.remove(line)
        others = np.full_like(trees.lines[0], np.inf)
        others[0, 0] = 0
        for port in left:
            others = np.stack([joined(others, trees.lines[port], n) for n in range(ranks)])
        others = np.minimum.accumulate(others, axis=1)[:, ::-1]  # by what room is left
        for side, before in enumerate(trees.before[line]):
            for n in range(1, ranks):
                rest = (before[n] + others[ranks - 1 - n]).min(axis=0)
                if np.isfinite(rest).all():
                    yield max(line - 1, 0), side, n + (line == 0), rest


def convolved(one: Floats, other: Floats) -> Floats:
    """Return the least sums of an entry of `one` and of `other`, by the sum of their indices."""
    padded = np.concatenate([np.full_like(other, np.inf), other])
    places = np.arange(len(one))
    least: Floats = (one + padded[len(one) + places[:, None] - places]).min(axis=1)
    return least


def joined(one: Floats, other: Floats, total: int) -> Floats:
    """Return the least sums of an entry of `one` and of `other` whose first indices have a `total`.

    By the sum of their second indices; the third one is the same in both.
    """
    first, second = one[: total + 1], other[total::-1][: total + 1]
    least: Floats = np.full(first.shape[1:], np.inf)
    for index in np.flatnonzero(np.isfinite(first[:, :, 0]).any(axis=0)).tolist():
        sums = first[:, index, None] + second[:, : len(least) - index]
        np.minimum(least[index:], sums.min(axis=0), out=least[index:])
    return least


def paid_by_message(
    machine: Machine, share: float, sizes: Floats, way: Way, merged: Floats
) -> Floats:
    """Return what a byte pays for a message by the values that are `merged`, and by size.

    Messages by a `way` of a `machine`, of buffers of some `sizes` (bytes); its ports have a `share`
    of the weight. In picoseconds.
    """
    busy, waits = share / machine.rate, ((1 - share) / machine.ranks * merged)[..., None]
    together = waits * way.wire * sizes
    apart = np.full_like(together, busy * way.extra)
    return busy * sizes + waits * way.overhead + paid(apart, together)


def trees_by(machine: Machine, share: float, sizes: Floats, *, into: bool) -> Trees:
    """Return the cheapest trees of all ranks `into` a root, or out of it.

    The `machine`, the `share` and the `sizes` are as for :func:`paid_by_message`.
    """
    merged = np.arange(machine.ranks + 1.0)
    kinds = [
        (
            kind.many,
            [
                None if way is None else paid_by_message(machine, share, sizes, way, merged)
                for way in kind.ways
            ],
        )
        for kind in (machine.into if into else machine.out)
    ]
    return trees_of(kinds, machine.ranks, machine.most)


def merging(machine: Machine, share: float, sizes: Floats) -> Floats:
    """Return what all messages of an AllReduce take at least, in ps.

    Of buffers of some `sizes` (bytes), where ports of the `machine` have a `share` of the weight.
    """
    ranks, numbers = machine.ranks, np.arange(machine.ranks + 1.0)
    # What a root pays by the ranks below it, itself included.
    roots = np.full((ranks + 1, len(sizes)), np.inf)
    for kind, side, merged, rest in but_one(trees_by(machine, share, sizes, into=True)):
        way = machine.into[kind].ways[side]
        if way is not None:
            last = paid_by_message(machine, share, sizes, way, merged * numbers / ranks)
            roots = np.minimum(roots, numbers[:, None] / ranks * rest + last)
    roots += trees_by(machine, share, sizes, into=False).least
    # Of messages that complete nobody there are some more where there are more roots.
    least_extra = min(way.extra for kind in machine.into for way in kind.ways if way)
    more = share / machine.rate * (sizes + least_extra)
    roots[0] = 0

    @cache
    def at_most(number: int) -> Floats:
        if number == 1:
            return roots
        return convolved(at_most(number // 2), at_most(number - number // 2))

    enough = next(others for others in range(ranks) if roots_at_most(others) >= ranks)
    found = [
        at_most(min(roots_at_most(others), ranks))[ranks] + others * more
        for others in range(enough + 1)
    ]
    least: Floats = np.min(found, axis=0)
    return least


MERGED: Mapping[str, Callable[[Machine, float, Floats], Floats]] = MappingProxyType({
    "allgather": lambda *asked: trees_by(*asked, into=False).least[-1],
    "reducescatter": lambda *asked: trees_by(*asked, into=True).least[-1],
    "allreduce": merging,
})  # fmt: skip
"""Collectives of which it is known what all messages take at least."""


def roots_at_most(others: int) -> int:
    """Return how many roots there are at most.

    Of N ranks, with N - 2 messages that complete nobody and so many `others`.
    """
    return 2 + others if others < 3 else 4 + sum(range(4, others + 2))

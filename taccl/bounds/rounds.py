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

*Last to hear* (AllReduce; Reduce; Broadcast). Let D be how soon a rank can have heard of all others
by messages of no bytes (dissemination.py). For each byte it takes a message that *ends late*: its
start and alpha are D or more. Else the messages of that byte alone, cut to no bytes, would tell all
before D. So a rank takes all its bytes in messages that end late, and they can't begin to come
before: D + size / (bandwidth of its ports). Turned round, the same holds for what leaves a rank. A
broadcast's root: for some byte, every message of the root ends so late that the others could have
gone before; from its end on, all are told in D. Where messages may start before others have arrived
(``delay``) and the links of a rank differ in alpha, D is less by what they differ.

*Gates and spreading* (AllGather, ReduceScatter, AllReduce, Broadcast, Reduce). What enters a part
of the ranks (a server, a leaf, a pod) by its gates must still be spread inside. A byte that arrives
a time t before the end is known to at most g(t) ranks of the part by its own; so the copies of each
byte have g(t) / (ranks of the part) together 1 or more. What began a time t after the start holds
sums of at most h(t) of the ranks that it must sum. A byte on a gate of b, z after the start and not
later than T - alpha, so counts at most h(z) g(T - alpha - z), as fractions: over all gates the
integral is no less than the bytes that must pass. With h and g as steps it is a sum of gates that
open one after the other, each with a share of the rate.

*Hops* (AlltoAll). A rank that takes k messages has at most k blocks without a relay; all others are
received at least twice. So all ports together carry k overheads and 2 (N-1) - k blocks for each
rank, with 1 <= k <= the ranks that it has links from: a line for each end of this range.

All hold under ``occupy`` and ``delay``; under ``delay`` o is 0, and doubling and hops say nothing
that a port does not.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import product

import numpy as np

from taccl.bounds.arrival_curves import Gate, gather
from taccl.bounds.cut import NONE, counted_at, counting_edges, edge_covers
from taccl.bounds.dissemination import Port, Rises, Spread, informed, ports_of, rises
from taccl.bounds.gossip import MOST_VISITS, homes, most_shared
from taccl.bounds.net import MOST_RANKS, Crossing, IntArray, Net, is_uniform, one_of_each
from taccl.collectives import Collective
from taccl.topology.structure import Parts, levels_of
from taccl.units import Time

KIND = "rounds"

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
    if name in EACH:
        yield from _doubling(net, into=name == "allgather")
    if name == "alltoall":
        for into in (True, False):
            yield from _hops(net, into=into)
        return
    topology = net.topology
    levels = (topology.servers,) if topology.num_servers > 1 else levels_of(topology)
    if name == "allreduce" or name in ROOTED:
        for into in (False, True) if name == "allreduce" else (name == "reduce",):
            yield from _last_to_hear(net, collective, levels, into=into)
    for parts in levels:
        yield from _gates_and_spreading(net, collective, parts)


def _doubling(net: Net, *, into: bool) -> Iterator[Crossing]:
    """Yield what a rank takes (gives, if not `into`) after as many overheads as it takes rounds."""
    ports = ports_of(net, np.ones(len(net.src), dtype=np.bool_), backwards=into)
    if not ports:
        return
    cover = counting_edges(net, last=into)
    wire = min(net.wires[number] for number in np.unique(net.wire_id[cover]).tolist())
    every, rounds, known = min(port.every for port in ports), 0, 1
    while known < net.num_ranks:
        rounds, known = rounds + 1, known * (len(ports) + 1)
    late = int((net.alpha - net.overhead).min())
    share = Fraction(net.num_ranks - 1, net.num_ranks)
    yield Crossing(KIND, gather([Gate(rounds * every + late, wire)] * len(ports)), share)


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
        wires = (net.wires[number] for number in net.wire_id[edges].tolist())
        yield Crossing(KIND, gather(Gate(max(0, start), wire) for wire in wires), Fraction(1))


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


def _gates_and_spreading(net: Net, collective: Collective, parts: Parts) -> Iterator[Crossing]:
    """Yield what enters (leaves) parts by their gates, which must be spread (summed) inside."""
    name, root, ranks = collective.name, collective.root, net.num_ranks
    home = homes(parts, ranks)
    outside = home[net.src] != home[net.dst]
    into = name in ENTERS
    inside = [ports_of(net, ~outside, backwards=turn) for turn in (False, True)]
    between, covers = ports_of(net, outside, backwards=True), edge_covers(net)
    for part in [part for part in parts if root not in part][:MOST_LOOKED_AT]:
        size = len(part)
        member = np.zeros(ranks, dtype=np.bool_)
        member[list(part)] = True
        rows = outside & member[net.dst if into else net.src]
        spread = _shares(inside[not into], [(0, 1)], size)
        summed = [(0, Fraction(1))]
        if name == "allreduce" and between is not None:
            alone = _grown(inside[True], [(0, 1)], max(map(len, parts)))
            ways = (inside[True], [(0, 1)]) if len(parts) == 2 else (between, alone)
            summed = _shares(*ways, ranks - size)
        opened: defaultdict[Time, Fraction] = defaultdict(Fraction)
        for (one, weight), (two, other) in product(spread, summed):
            opened[one + two] += weight * other
        share = Fraction(ranks - size if name in EACH else ranks, ranks)
        for cover in (*covers, most_shared(net, rows)):
            gates = None if cover is None else counted_at(net, cover, rows)
            if gates is not None:
                found: Counter[Gate] = Counter()
                for (gate, count), (time, weight) in product(gates, opened.items()):
                    found[Gate(gate.start + time, gate.busy / weight)] += count
                yield Crossing(KIND, tuple(sorted(found.items())), share)


def _grown(ports: tuple[Port, ...] | None, start: Rises, most: int) -> Rises:
    """Return when how many more of so many ranks are told; at once where ports are free."""
    if ports is None:
        return [(0, most)]
    return list(rises(ports, start, None, most)) if ports else start


def _shares(ports: tuple[Port, ...] | None, start: Rises, most: int) -> list[tuple[Time, Fraction]]:
    """Return when which share of `most` ranks more is told; what is not followed, with the last."""
    left, found = most, list[tuple[Time, Fraction]]()
    grown = _grown(ports, start, most)
    for number, (time, more) in enumerate(grown):
        told = left if ports and number == len(grown) - 1 else min(more, left)
        left -= told
        found += [(time, Fraction(told, most))] if told else []
    return found

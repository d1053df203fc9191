"""Which threadblock and channel every move goes to.

A connection (source, destination, channel) has one sending and one receiving threadblock, so a
threadblock has one peer and one direction. The connections of a pair, in order of channel, use
the pair's parallel links in turn: connection i is link i mod L. So that the links of the schedule
are met, a pair that uses only its second link gets a first connection without steps.

A link whose messages do not fit one threadblock is cut into parts, each a stretch of time on a
connection of its own. A link that the schedule has more messages on at once than a connection
holds gets several, which take messages in turn; so may the busiest links, where threadblocks are to
spare and one is slower than its link.

A program whose chunks are longer than a message is run once for each slice of them, and iterations
overlap as in modulo scheduling: a threadblock begins one when it is through with the one before. If
its first and its last message of an iteration are t apart in the schedule, no period is shorter
than t where they depend on one another. So where t is more than the busiest edge needs, links can
be cut into stretches of no more time than that.

How far threadblocks are known to be when a move starts (:class:`Clocks`) follows from both: program
order, and messages.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.lowering.draft import Lane, Message, Move
from taccl.msccl.program import Op, Slot
from taccl.msccl.runtimes import RUNTIMES
from taccl.topology.graph import Topology
from taccl.units import Time

LOCAL_PER_BLOCK = 8
"""More copies than that at the start of a receiving threadblock would delay its peer."""


MOST_SUMS = min(runtime.max_steps for runtime in RUNTIMES.values())
"""Of a threadblock that only adds, a step each: so many have a place in every runtime."""

Connection = tuple[tuple[int, int], int]
"""Source and destination, and the number among the connections of that pair."""


@dataclass(frozen=True, slots=True)
class Block:
    """A threadblock whose steps are still moves.

    It is of a `rank`, with the peers `send_to` and `recv_from`. `lane` is the link it serves, that
    of its receives if it does both (None: local work only), and `connection` the number of the
    connection among those of the pair; `out` has both of its sends in a threadblock that receives,
    too. `moves` are positions in the list of moves, ascending.
    """

    rank: int
    send_to: int | None
    recv_from: int | None
    lane: Lane | None
    connection: int
    moves: tuple[int, ...]
    out: tuple[Lane, int] | None = None

    @property
    def connections(self) -> tuple[Connection, ...]:
        """Its connections."""
        own = () if self.lane is None else ((self.lane, self.connection),)
        both = own if self.out is None else (*own, self.out)
        return tuple(((lane.src, lane.dst), number) for lane, number in both)


@dataclass(slots=True)
class Clocks:
    """How far every threadblock is known to be when a move starts.

    Row m of `seen` has, for every column, how many moves of its threadblock precede the end of move
    m. `column` is that of every threadblock, `owner` the threadblock of every move, and `place` its
    position among the moves there. `messages` tells whether knowledge travels with messages. Sends
    that some move should wait for, and none may, are `missing`: what comes after them is.
    """

    seen: NDArray[np.int32]
    column: list[int]
    owner: list[int]
    place: list[int]
    messages: bool
    missing: set[int] = field(default_factory=set)


End = tuple[int, Lane, int, bool]
"""Rank, link, number among the connections of the pair, and whether the rank sends."""


def assign_blocks(
    moves: Sequence[Move],
    lanes: Sequence[Lane],
    topology: Topology,
    connection: Mapping[int, int],
    joins: Mapping[End, End],
    instances: int = 1,
) -> list[Block]:
    """Return the threadblocks of all ranks, those of one rank in order of their first message.

    With several instances, every pair has as many connections for each of its links. Sums that
    belong to no message are shared out evenly, at most MOST_SUMS to a threadblock.

    `moves` are in one legal order, `lanes` has the link of every message, whose links belong to
    `topology`, and `connection` is from :func:`number_connections`. `joins` has receiving ends that
    share a threadblock with a sending end; every threadblock has so many `instances`.
    """
    members: dict[End, list[int]] = defaultdict(list)
    local: dict[int, list[int]] = defaultdict(list)
    aside: dict[int, list[int]] = defaultdict(list)
    joined = {out: end for end, out in joins.items()}
    for place, move in enumerate(moves):
        if move.message is None:
            (aside if move.op is Op.REDUCE else local)[move.rank].append(place)
        else:
            lane = lanes[move.message]
            end = (move.rank, lane, connection[move.message], move.rank == lane.src)
            members[joined.get(end, end)].append(place)
    blocks = []
    receiving: dict[int, list[End]] = defaultdict(list)
    for end in members:
        if not end[3]:
            receiving[end[0]].append(end)
    for rank, extra in local.items():
        # Before the first receive of its rank, or in threadblocks of its own; those that send, too,
        # have more steps, and share them.
        ends = receiving[rank] if joins else receiving[rank][:1]
        if ends and len(extra) <= LOCAL_PER_BLOCK * len(ends):
            for number, end in enumerate(ends):
                members[end][:0] = extra[number :: len(ends)]
            continue
        for start in range(0, len(extra), LOCAL_PER_BLOCK):
            some = tuple(extra[start : start + LOCAL_PER_BLOCK])
            blocks.append(Block(rank, None, None, None, 0, some))
    for rank, sums in aside.items():
        count = -(-len(sums) // MOST_SUMS)
        blocks += (
            Block(rank, None, None, None, 0, tuple(sums[first::count])) for first in range(count)
        )
    for end in _ends_without_moves(lanes, connection, topology, instances):
        members[joined.get(end, end)] += []
    for (rank, lane, index, sends), places in members.items():
        out = None if sends else joins.get((rank, lane, index, sends))
        send_to = lane.dst if sends else out and out[1].dst
        blocks.append(
            Block(
                rank, send_to, None if sends else lane.src, lane, index, tuple(places),
                out and out[1:3],
            )
        )  # fmt: skip

    def order(block: Block) -> tuple[int, ...]:
        """Sort by rank and first message, senders first; those without messages come last."""
        first = next((at for at in block.moves if moves[at].message is not None), len(moves))
        peer = block.recv_from if block.send_to is None else block.send_to
        receives = block.send_to is None
        return (block.rank, first, receives, -1 if peer is None else peer, block.connection)

    return sorted(blocks, key=order)


SUMS = ("apart", "together", "aside")
"""Which threadblocks add what is received: each its own, one all for a place, or some only add.

These spare the others a step for each message: an AllReduce has 60 steps in place of 75 in a ring
of 16 ranks, and threadblocks have 64.
"""


def sums_by(
    how: str, moves: Sequence[Move], lanes: Sequence[Lane], connection: Mapping[int, int]
) -> list[Move]:
    """Return the `moves` with sums by other threadblocks, `how` is one of SUMS.

    Together, what moves that follow one another add to a place is added by one of those that
    receive a part of it: the first of those that add least so far. Message ``i`` crosses
    ``lanes[i]`` on the ``connection[i]``-th connection of its pair. What a move does is not
    changed.
    """
    if how == "apart":
        return list(moves)
    if how == "aside":
        return [move._replace(message=None) if move.op is Op.REDUCE else move for move in moves]

    def added_to(place: int) -> tuple[int, Slot | None] | None:
        """Return where a move adds what a message brought."""
        move = moves[place]
        own = move.op is not Op.REDUCE or move.message is None
        return None if own else (move.rank, move.dst)

    summed, adds = list(moves), Counter[tuple[Lane, int]]()
    for target, run in groupby(range(len(moves)), added_to):
        if target is None:
            continue
        places = list(run)
        parts = [message for place in places if (message := moves[place].message) is not None]
        chosen = min(parts, key=lambda message: adds[lanes[message], connection[message]])
        adds[lanes[chosen], connection[chosen]] += len(parts)
        for place in places:
            summed[place] = moves[place]._replace(message=chosen)
    return summed


def ways_needed(messages: Sequence[Message], lanes: Sequence[Lane], slots: int) -> dict[Lane, int]:
    """Return how many connections each link needs to hold what is under way at once.

    ``messages`` have starts and arrivals, and cross the links ``lanes``. A connection holds so many
    ``slots``, and each message leaves its own when it arrives. Links for which one connection is
    enough are left out.
    """
    queues: dict[Lane, list[Message]] = defaultdict(list)
    for message, lane in zip(messages, lanes, strict=True):
        queues[lane].append(message)
    ways = {}
    for lane, queue in queues.items():
        count = 1
        while any(
            queue[late].start < queue[late - count * slots].end
            for late in range(count * slots, len(queue))
        ):
            count += 1
        if count > 1:
            ways[lane] = count
    return ways


def ways_by_load(
    messages: Sequence[Message],
    lanes: Sequence[Lane],
    room: int,
    series: Sequence[int] | None = None,
) -> dict[Lane, int]:
    """Return how many connections links get where threadblocks to spare go to the busiest of them.

    The ``messages`` cross the links ``lanes``; a rank may have threadblocks for the ends of so many
    connections, its ``room``. Where threadblocks that receive also send, ``series`` has the number
    of the series of each message, and a link gets no more connections than it has series. Links
    that get one are left out.
    """
    load = Counter[Lane]()
    apart = range(len(lanes)) if series is None else series
    count = Counter(lane for lane, _ in set(zip(lanes, apart, strict=True)))
    for message, lane in zip(messages, lanes, strict=True):
        load[lane] += len(message.chunks)
    # Ends that receive are counted apart where they need no threadblocks of their own.
    ends = {lane: (lane.src, lane.dst if series is None else ~lane.dst) for lane in load}
    used = Counter(end for both in ends.values() for end in both)
    ways = dict.fromkeys(load, 1)
    queue = [(-float(chunks), lane) for lane, chunks in load.items() if count[lane] > 1]
    heapq.heapify(queue)
    while queue:
        _, lane = heapq.heappop(queue)
        if max(used[end] for end in ends[lane]) < room:
            used.update(ends[lane])
            ways[lane] += 1
            if ways[lane] < count[lane]:
                heapq.heappush(queue, (-(load[lane] / ways[lane]), lane))
    return {lane: number for lane, number in ways.items() if number > 1}


def join_ends(
    moves: Sequence[Move],
    messages: Sequence[Message],
    lanes: Sequence[Lane],
    connection: Mapping[int, int],
    topology: Topology,
    joins: Mapping[End, End],
) -> dict[End, End]:
    """Return receiving ends, and the ends of the same rank that share a threadblock with them.

    They are the ``joins``, then those that pass on most of what is received, as in a ring, then
    those with the same peer and number. ``moves`` are in one legal order; message ``i`` of the
    ``messages`` crosses ``lanes[i]`` on the ``connection[i]``-th connection of its pair. Where
    links are parallel, the channel says which one is used, so that only ends with the same peer are
    joined.
    """
    came: dict[tuple[int, int], End] = {}
    passed: Counter[tuple[End, End]] = Counter()
    singly = {lane: len(topology.links_between(lane.src, lane.dst)) == 1 for lane in set(lanes)}
    ends: Counter[End] = Counter()
    for move in moves:
        for message, sends in ((move.received, False), (move.sent, True)):
            if message is None:
                continue
            end = (move.rank, lanes[message], connection[message], sends)
            ends[end] += len(messages[message].chunks)
            for chunk in messages[message].chunks:
                source = came.get((move.rank, chunk))
                if not sends:
                    came[move.rank, chunk] = end
                elif source is not None and singly[source[1]] and singly[end[1]]:
                    passed[source, end] += 1
    passed = Counter({ways: count for ways, count in passed.items() if 2 * count > ends[ways[0]]})
    for rank, lane, number, sends in ends:
        back = (rank, Lane(lane.dst, lane.src, lane.number), number, True)
        if not sends and back in ends:
            passed.setdefault(((rank, lane, number, sends), back), 0)
    wanted = sorted(passed, key=lambda both: (-passed[both], both))
    taken: set[End] = set()
    found: dict[End, End] = {}
    chain: dict[Connection, frozenset[Connection]] = {}
    for end, out in (*joins.items(), *wanted):
        if end in found or out in taken:
            continue
        links = [((lane.src, lane.dst), number) for _, lane, number, _ in (end, out)]
        first, second = (chain.get(link, frozenset({link})) for link in links)
        # A pair has one connection on a channel.
        if first != second and {pair for pair, _ in first} & {pair for pair, _ in second}:
            continue
        found[end] = out
        taken.add(out)
        chain |= dict.fromkeys(first | second, first | second)
    return found


class Cuts(NamedTuple):
    """How messages of a link are shared out among connections.

    `parts` are those that each stretch of its time is cut into, and `ways` are the connections that
    take its messages in turn, where there is more than one. `stretches` has for each message the
    stretch that it is in (all are in one if there are none), and `series` the number of the series
    that it belongs to: of a rank's chunks, which it carries; so each of several rings is one.
    """

    parts: Mapping[Lane, int]
    ways: Mapping[Lane, int]
    stretches: Mapping[int, int]
    series: Sequence[int]


def number_connections(
    moves: Sequence[Move], lanes: Sequence[Lane], topology: Topology, cuts: Cuts
) -> dict[int, int]:
    """Return the number of the connection that every message takes.

    `moves` are in one legal order, `lanes` has the link of every message, whose links belong to
    `topology`, and `cuts` tell how they are shared out.
    """
    queues: dict[Lane, list[int]] = defaultdict(list)
    for move in moves:
        if move.sent is not None:
            queues[lanes[move.sent]].append(move.sent)
    connection = {}
    for lane, queue in queues.items():
        width = len(topology.links_between(lane.src, lane.dst))
        share = -(-len(queue) // cuts.parts.get(lane, 1))
        turns, before = cuts.ways.get(lane, 1), 0
        series = [cuts.series[message] for message in queue] if turns > 1 else []
        turn = _turns_by_series(series, turns)
        for _, stretch in groupby(enumerate(queue), lambda one: cuts.stretches.get(one[1], 0)):
            for place, (number, message) in enumerate(stretch):
                way = place % turns if turn is None else turn[number]
                part = (before + place // share) * turns + way
                connection[message] = part * width + lane.number
            before += place // share + 1
    return connection


def _turns_by_series(series: Sequence[int], turns: int) -> list[int] | None:
    """Return whose turn each message of a link is, so that its series has connections of its own.

    So has each of several rings through the link. None: the `series` can't share them evenly.
    """
    count = Counter(series)
    width = len(count)
    if width < 2 or len(set(count.values())) > 1 or len(series) == width:
        return None
    if width % turns and turns % width:
        return None
    place, met = {one: at for at, one in enumerate(sorted(count))}, Counter[int]()
    found = []
    for one in series:
        found.append((place[one] + width * met[one]) % turns)
        met[one] += 1
    return found


def stretches_of(
    messages: Sequence[Message], lanes: Sequence[Lane], longest: Time
) -> dict[int, int]:
    """Return for each of the `messages` which stretch of its link it is in, the first being 0.

    Message ``i`` crosses ``lanes[i]``. From the start of the first of a stretch to the end of its
    last on the link there are no more than the `longest` picoseconds.
    """
    stretches: dict[int, int] = {}
    begun: dict[Lane, tuple[int, Time]] = {}
    for number in sorted(range(len(messages)), key=lambda number: messages[number].start):
        one = messages[number]
        stretch, start = begun.get(lanes[number], (-1, 0))
        if stretch < 0 or one.released - start > longest:
            begun[lanes[number]] = stretch, _ = stretch + 1, one.start
        stretches[number] = stretch
    return stretches


def _ends_without_moves(
    lanes: Sequence[Lane], connection: Mapping[int, int], topology: Topology, instances: int
) -> list[End]:
    """Return the ends that only keep the place of a link before a used one, of parallel links."""
    used: dict[tuple[int, int], set[int]] = defaultdict(set)
    for message, index in connection.items():
        used[lanes[message].src, lanes[message].dst].add(index)
    ends: list[End] = []
    for (src, dst), indices in used.items():
        width = len(topology.links_between(src, dst))
        if width == 1:
            continue
        span = max(indices) + 1
        if instances > 1:
            span = -(-span // width) * width
        for index in sorted(set(range(span)) - indices):
            lane = Lane(src, dst, index % width)
            ends += [(src, lane, index, True), (dst, lane, index, False)]
    return ends


def count_connections(blocks: Sequence[Block]) -> dict[tuple[int, int], int]:
    """Return how many connections every pair has."""
    spans: dict[tuple[int, int], int] = defaultdict(int)
    for block in blocks:
        for pair, number in block.connections:
            spans[pair] = max(spans[pair], number + 1)
    return dict(spans)


def assign_channels(
    connections: Mapping[tuple[int, int], int],
    joined: Sequence[tuple[Connection, Connection]],
    blocks_per_channel: int,
) -> dict[Connection, int]:
    """Return the channel of every connection, as low as possible.

    ``connections`` has their number by pair of ranks; those ``joined`` by a threadblock are on one
    channel, and so are all of a chain. Those of a pair ascend where no chain leads to a third rank.
    On one channel at most ``blocks_per_channel`` threadblocks of a rank may send, and as many
    receive.
    """
    chains: dict[Connection, tuple[Connection, ...]] = {}
    for one, other in joined:
        first, second = chains.get(one, (one,)), chains.get(other, (other,))
        if first is not second:
            both = first + second
            chains |= dict.fromkeys(both, both)
    load: Counter[tuple[str, int, int]] = Counter()
    channels: dict[Connection, int] = {}
    taken: set[tuple[tuple[int, int], int]] = set()
    least: Counter[tuple[int, int]] = Counter()
    # A pair and its reverse follow each other, so that they get the same channels.
    for pair in sorted(connections, key=lambda pair: (min(pair), max(pair), pair)):
        for number in range(connections[pair]):
            if (pair, number) in channels:
                continue
            chain = chains.get((pair, number), ((pair, number),))
            ascends = len({frozenset(link) for link, _ in chain}) == 1
            channel = max(least[link] for link, _ in chain) if ascends else 0
            while not all(
                (link, channel) not in taken
                and load["send", link[0], channel] < blocks_per_channel
                and load["recv", link[1], channel] < blocks_per_channel
                for link, _ in chain
            ):
                channel += 1
            for link, index in chain:
                channels[link, index] = channel
                taken.add((link, channel))
                load["send", link[0], channel] += 1
                load["recv", link[1], channel] += 1
                if ascends:
                    least[link] = channel + 1
    return channels

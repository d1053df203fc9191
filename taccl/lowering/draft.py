"""What of a lowering does not depend on threadblocks: messages, and moves in one legal order.

**Moves** are what events become: which slots each reads and writes. Input is only read. Values that
arrive whole go straight to the slot that holds them; values to be added arrive in scratch of their
own and are then added to the held slot, which starts as a copy of the rank's own value. Nothing
that a rank wants stays in its input: own chunks are copied to the output, which in place is the
identity and out of place is needed. Own chunks that travel with relayed ones are copied to scratch,
where those are, at the start.

Where a schedule packs, chunks that are no neighbours are copied side by side before
they are sent. What a rank wants is copied to its output when it has arrived; what it only relays
stays where it arrived.

An alltoall in place overwrites input that other messages may still have to read. Such an arrival
is staged in scratch and copied to its place at the very end.

**One order** of all events of messages is a legal run. An event is the start of a message (SEND),
its arrival (RECEIVE), or the work that follows an arrival which is not final: adding it to the sum
(APPLY). The order obeys

- each message: SEND, RECEIVE, APPLY;
- each chunk at each rank: what arrived by the start of a send is applied before it, what arrives
  later is applied after it; a value that replaces a sum comes after the parts of that sum;
- each link: messages are sent and received in the same order;

and, as far as the rules above leave a choice,

- each resource edge: messages in order of their starts;
- each link: a message is applied before the next one is sent;
- the schedule's times: what arrives is added up as it arrives, so that no sum waits for a value
  that comes later.

The first group follows from exact times, so some order obeys it. The times of ``retime`` follow
from one sequence of decisions, and in that sequence both groups hold; only a hand-made schedule
in which two ranks exchange partial sums of one chunk can leave the last rule unmet.

A message is sent from one run of slots and received into one. Where its chunks lie elsewhere they
are copied, a run at a time, so they travel in the order with the fewest runs at both ends.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.collectives import COLLECTIVES, Collective, has_xml
from taccl.collectives.slots import SCRATCH, Place, Slots
from taccl.errors import LoweringError
from taccl.model.schedule import Schedule
from taccl.msccl.expected import Cell, Mode, mode_of
from taccl.msccl.program import RECEIVES, Buffer, Op, Slot
from taccl.msccl.runtimes import MAX_COUNT
from taccl.topology.graph import Topology
from taccl.units import Time


def shifted(slot: Slot, by: int) -> Slot:
    """Return the slot ``by`` chunks after ``slot``."""
    return Slot(slot.buffer, slot.offset + by)


def in_a_row(slots: Sequence[Slot | None]) -> bool:
    """Tell whether slots are all there, one after the other in one buffer."""
    first = slots[0]
    return first is not None and all(slot == shifted(first, i) for i, slot in enumerate(slots))


def packed(
    chunks: Sequence[int], read: Mapping[int, Sequence[Slot]], kept: Mapping[int, Slot | None]
) -> tuple[tuple[int, ...], list[Slot]]:
    """Return the ``chunks`` of a message in the order in which they travel, and where each is read.

    ``read`` has the slots from which each can be read, the preferred one first; ``kept`` has those
    to which they are copied on arrival, None for a chunk that stays.

    Raises ValueError when a chunk can't be read anywhere.
    """
    missing = [chunk for chunk in chunks if not read[chunk]]
    if missing:
        raise ValueError(f"chunks {missing} are nowhere to be read")

    def place(slot: Slot | None) -> tuple[str, int]:
        return ("", 0) if slot is None else (slot.buffer.value, slot.offset)

    # By where chunks are kept, and by each place to read.
    orders = [
        sorted(chunks, key=lambda c: (place(kept[c]), place(read[c][0]), c)),
        *(
            [chunk for _, chunk in sorted((place(read[c][: turn + 1][-1]), c) for c in chunks)]
            for turn in range(max(len(read[chunk]) for chunk in chunks))
        ),
    ]
    ways = []
    for order in orders:
        fill = _copies([kept[chunk] for chunk in order])
        for first in read[order[0]]:
            places = [first]
            for chunk in order[1:]:
                beside = shifted(places[-1], 1)
                places.append(beside if beside in read[chunk] else read[chunk][0])
            ways.append((_copies(places) + fill, tuple(order), places))
    _, best, places = min(ways, key=lambda way: way[0])
    return best, places


def _copies(slots: Sequence[Slot | None]) -> int:
    """Return how many copies it takes to gather slots, or to fill them."""
    if in_a_row(slots):
        return 0
    starts = 1 if slots[0] is not None else 0
    return starts + sum(
        two is not None and (one is None or two != shifted(one, 1)) for one, two in pairwise(slots)
    )


_ABSENT = -1
"""In place of a count: the message has no such event."""


class Kind(IntEnum):
    """What an event does."""

    SEND = 0
    RECEIVE = 1
    APPLY = 2


class Event(NamedTuple):
    """One event of one message."""

    message: int
    kind: Kind


@dataclass(frozen=True, slots=True)
class Message:
    """Chunks that cross a link together.

    Its `chunks`, in the order of their places, cross `link` from rank `src` to rank `dst`;
    `arrived` tells for each whether anything for it has arrived at ``src`` when the message starts.
    `start` and `end` are picoseconds, and at `released` the last edge is free again, and the sender
    with it. With `reduce`, the values are added to what ``dst`` holds.
    """

    link: int
    src: int
    dst: int
    chunks: tuple[int, ...]
    arrived: tuple[bool, ...]
    start: int
    end: int
    reduce: bool
    released: int


def find_messages(schedule: Schedule, slots: Slots, *, singly: bool) -> list[Message]:
    """Return the messages of an expanded ``schedule`` in order of (start, end).

    A batch becomes several messages where its chunks are no neighbours among ``slots`` and nothing
    packs them, where it has more than 71 chunks, or everywhere when ``singly`` is set.
    """
    rows: dict[tuple[int, bool], list[int]] = {}
    batches, reduces = schedule.batch.tolist(), schedule.reduce.tolist()
    for row, key in enumerate(zip(batches, reduces, strict=True)):
        rows.setdefault(key, []).append(row)
    chunks, links = schedule.chunk.tolist(), schedule.link.tolist()
    starts, ends = schedule.start.tolist(), schedule.end.tolist()
    table, collective = schedule.topology.links, schedule.collective
    first: dict[tuple[int, int], int] = {}
    for place, end in zip(
        zip(chunks, table.dst[schedule.link].tolist(), strict=True), ends, strict=True
    ):
        first[place] = min(end, first.get(place, end))
    messages = []
    for (_, reduce), group in rows.items():
        row = group[0]
        link, start = links[row], starts[row]
        src, dst = int(table.src[link]), int(table.dst[link])
        moved = [chunks[r] for r in group]
        arrived = []
        for chunk in moved:
            end = first.get((chunk, src))
            relayed = not collective.reduces and src not in collective.sources(chunk)
            arrived.append(end is not None and (end <= start or relayed))
        size = MAX_COUNT
        beside = schedule.packs or slots.adjacent(moved, src, dst, arrived, reduce=reduce)
        if singly or not beside:
            size = 1
        moved_bytes = len(group) * schedule.chunk_size
        busy = [schedule.topology.busy(link, e, moved_bytes) for e in table.edges_of(link)]
        released = start + max(busy)
        messages += [
            Message(
                link, src, dst, tuple(moved[i : i + size]), tuple(arrived[i : i + size]),
                start, ends[row], reduce, released,
            )
            for i in range(0, len(moved), size)
        ]  # fmt: skip
    messages.sort(key=lambda message: (message.start, message.end))
    return messages


def applies(message: Message) -> Kind:
    """Return the event after which a message's destination holds its chunks."""
    return Kind.APPLY if message.reduce else Kind.RECEIVE


@dataclass(slots=True)
class _Graph:
    """Events as nodes ``3 * message + kind``, barriers as further nodes, and what precedes what."""

    messages: list[Message]
    later: list[list[int]]
    required: list[int]
    wanted: list[tuple[int, int]] = field(default_factory=list)

    def node(self) -> int:
        """Add a node."""
        self.later.append([])
        self.required.append(0)
        return len(self.later) - 1

    def require(self, before: int, after: int) -> None:
        """Add an edge that always holds."""
        self.later[before].append(after)
        self.required[after] += 1

    def applied(self, message: int) -> int:
        """Return the node of the event after which a message's chunks are there."""
        return 3 * message + applies(self.messages[message])


def order_events(
    messages: list[Message], topology: Topology, collective: Collective, adding: Time = 0
) -> list[Event]:
    """Return all events of ``messages`` in one legal order.

    The messages are in order of (start, end), on links of ``topology``, for a ``collective``. It
    takes a threadblock `adding` picoseconds to add a chunk, of which schedules know nothing.
    """
    times = _delayed(messages, adding)
    later: list[list[int]] = []
    required: list[int] = []
    for number, message in enumerate(messages):
        later += ([3 * number + 1], [3 * number + 2] if message.reduce else [], [])
        required += (0, 1, 1 if message.reduce else _ABSENT)
    graph = _Graph(messages, later, required)
    on_link: dict[int, int] = {}
    on_edge: dict[int, int] = {}
    limited = {edge for edge, one in enumerate(topology.edges) if one.beta is not None}
    used = {
        link: [edge for edge in topology.links.edges_of(link) if edge in limited]
        for link in {message.link for message in messages}
    }
    for number, message in enumerate(messages):
        before = on_link.get(message.link)
        if before is not None:
            graph.require(3 * before, 3 * number)
            graph.require(graph.applied(before), 3 * number + Kind.RECEIVE)
            graph.wanted.append((graph.applied(before), 3 * number))
        on_link[message.link] = number
    for number in sorted(range(len(messages)), key=times.__getitem__):
        for edge in used[messages[number].link]:
            if edge in on_edge:
                graph.wanted.append((3 * on_edge[edge], 3 * number))
            on_edge[edge] = number
    _order_values(graph, collective)
    count = 3 * len(messages)
    kinds = tuple(Kind)
    return [Event(node // 3, kinds[node % 3]) for node in _sort(graph, times) if node < count]


def _delayed(messages: Sequence[Message], adding: Time) -> list[tuple[Time, Time]]:
    """Return when messages would start and be added, if they waited for the sums that they hold.

    None is earlier than in the schedule. What arrives is added chunk by chunk, to each place and by
    the threadblock of each link one after the other, in the order of arrival; a message starts once
    those before it on its link have left. What holds sums itself comes after all other parts of a
    sum, unless these are later by as much as they take: where it is late, all that come after wait.
    """
    times = [(message.start, message.end) for message in messages]
    if not adding:
        return times
    arrivals: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number, message in enumerate(messages):
        for chunk in message.chunks:
            arrivals[chunk, message.dst].append(number)
    waiting: list[list[int]] = [[] for _ in messages]
    on_link: dict[int, int] = {}
    following: dict[int, int] = {}
    missing: list[int] = []
    late: list[Time] = []  # how much longer a message waits for other parts of a sum
    for number, message in enumerate(messages):
        needs = {
            before for chunk in message.chunks for before in arrivals[chunk, message.src]
            if messages[before].end <= message.start
        }  # fmt: skip
        for before in needs:
            waiting[before].append(number)
        if (previous := on_link.get(message.link)) is not None:
            following[previous] = number
        missing.append(len(needs) + (previous is not None))
        parts = max(len(arrivals[chunk, message.dst]) for chunk in message.chunks)
        late.append(adding * (parts - 1) if needs else 0)
        on_link[message.link] = number
    free: dict[tuple[int, int], Time] = defaultdict(int)  # by place, and by -1 and link
    earliest = [message.start for message in messages]
    events = [(earliest[n], n, False) for n, count in enumerate(missing) if not count]
    heapq.heapify(events)
    while events:
        time, number, arrives = heapq.heappop(events)
        message = messages[number]
        if arrives:
            others = waiting[number]
            if message.reduce:
                busy = [(-1, message.link), *((chunk, message.dst) for chunk in message.chunks)]
                time = max(time, *(free[one] for one in busy)) + adding * len(message.chunks)
                free.update(dict.fromkeys(busy, time))
        else:
            times[number] = time, time + message.end - message.start
            heapq.heappush(events, (times[number][1], number, True))
            others = [following[number]] if number in following else []
            time += message.released - message.start
        for other in others:
            earliest[other] = max(earliest[other], time)
            missing[other] -= 1
            if not missing[other]:
                heapq.heappush(events, (earliest[other], other, False))
    return [(start, end + wait) for (start, end), wait in zip(times, late, strict=True)]


def _order_values(graph: _Graph, collective: Collective) -> None:
    """Put barriers between what changes a chunk at a rank and what reads or replaces it.

    Sums may form in any order, and so may reads; a value that replaces another has its own turn.
    """
    visits: dict[tuple[int, int], list[tuple[int, int, int]]] = defaultdict(list)
    for number, message in enumerate(graph.messages):
        replaces = collective.reduces and not message.reduce
        for chunk in message.chunks:
            arrival = (message.end, 1 if replaces else 0, graph.applied(number))
            visits[chunk, message.dst].append(arrival)
            if collective.reduces or message.src not in collective.sources(chunk):
                visits[chunk, message.src].append((message.start, 2, 3 * number))
    for events in visits.values():
        events.sort()
        barrier: int | None = None
        members: list[int] = []
        phase = events[0][1]
        for _, kind, node in events:
            if members and (kind != phase or kind == 1):
                previous, barrier = barrier, graph.node()
                for member in members if previous is None else (*members, previous):
                    graph.require(member, barrier)
                members, phase = [], kind
            if barrier is not None:
                graph.require(barrier, node)
            members.append(node)


def _sort(graph: _Graph, starts: Sequence[tuple[Time, Time]]) -> list[int]:
    """Sort topologically, the earliest event first; give up wanted edges only when stuck."""
    size = len(graph.later)
    # Barriers come first, then messages by start, and sums by arrival. A receive follows its send
    # at once: a message that is cut into more than a connection holds needs its receiver before it
    # is sent whole.
    times = [time for start, end in starts for time in (start, start, end)]
    time = np.full(size, -1, dtype=np.int64)
    time[: len(times)] = times
    sums, number = np.arange(size) % 3 == int(Kind.APPLY), np.arange(size) // 3
    sums[len(times) :], number[len(times) :] = True, 0
    following = np.lexsort((np.arange(size), number, ~sums, time))
    place = np.empty(size, dtype=np.int64)
    place[following] = np.arange(size)
    nodes, places = following.tolist(), place.tolist()
    missing = [0] * size
    wanted: dict[int, list[int]] = defaultdict(list)
    for before, after in graph.wanted:
        wanted[before].append(after)
        missing[after] += 1
    required = list(graph.required)
    done = [needs == _ABSENT for needs in required]
    ready = [places[node] for node in range(size) if required[node] == 0 and missing[node] == 0]
    heapq.heapify(ready)
    order: list[int] = []
    while True:
        if not ready:
            left = [node for node in nodes if not done[node]]
            if not left:
                return order
            # Only wanted edges hold these back.
            ready = [places[next((node for node in left if required[node] == 0), left[0])]]
        node = nodes[heapq.heappop(ready)]
        if done[node]:
            continue
        done[node] = True
        order.append(node)
        for counts, others in ((required, graph.later[node]), (missing, wanted.get(node, ()))):
            for after in others:
                counts[after] -= 1
                if required[after] == 0 and missing[after] == 0:
                    heapq.heappush(ready, places[after])


class Lane(NamedTuple):
    """One of the parallel links of a pair of ranks."""

    src: int
    dst: int
    number: int


def lanes_of(messages: Sequence[Message], topology: Topology) -> list[Lane]:
    """Return the lane of each of ``messages``, whose links belong to ``topology``."""
    known: dict[int, Lane] = {}
    for message in messages:
        if message.link not in known:
            links = topology.links_between(message.src, message.dst)
            known[message.link] = Lane(message.src, message.dst, links.index(message.link))
    return [known[message.link] for message in messages]


class Move(NamedTuple):
    """A step before threadblocks are known.

    It runs on a `rank`; `op`, `src` and `dst` are as in a step, and `chunks` are adjacent at both
    places. `message` is the one it belongs to, None: local work of the rank's own; `forward` is the
    message by which it sends on what it receives.
    """

    rank: int
    op: Op
    src: Slot | None
    dst: Slot | None
    chunks: int
    message: int | None
    forward: int | None = None

    @property
    def received(self) -> int | None:
        """The message that it receives."""
        return self.message if self.op in RECEIVES else None

    @property
    def sent(self) -> int | None:
        """The message that it sends."""
        return self.message if self.op is Op.SEND else self.forward


@dataclass(slots=True)
class _Layout:
    """What is known while moves are made; ``longest`` is the most chunks that one may have."""

    slots: Slots
    modes: tuple[Mode, ...]
    scratch: list[int]  # chunks in use on every rank
    longest: int
    packs: bool  # messages are of any chunks
    begun: set[tuple[int, int]] = field(default_factory=set)  # (chunk, rank) of sums
    arrival: dict[int, Slot] = field(default_factory=dict)  # scratch by number of the message
    landed: dict[tuple[int, int], Slot] = field(default_factory=dict)  # by (chunk, rank), if packs
    order: dict[int, tuple[int, ...]] = field(default_factory=dict)  # in which chunks travel

    def fresh(self, rank: int, count: int) -> Slot:
        """Return unused scratch."""
        offset = self.scratch[rank]
        self.scratch[rank] += count
        return Slot(Buffer.SCRATCH, offset)


@dataclass(frozen=True, eq=False)
class Draft:
    """A schedule as moves of data, from which programs are made.

    `schedule` has the sends of all orbits, `modes` are what its programs claim to serve. `messages`
    are in order of their starts, and numbers of messages are positions there; `lanes` has the link
    of each. `moves` are in one legal order, and `scratch` has the scratch chunks of every rank.
    `fitted` is kept by :func:`taccl.lowering.lower.finish`: what does not depend on the number of
    instances, nor on the protocol.
    """

    schedule: Schedule
    modes: tuple[Mode, ...]
    messages: Sequence[Message]
    lanes: Sequence[Lane]
    moves: Sequence[Move]
    scratch: Sequence[int]
    fitted: dict[object, Any] = field(init=False, repr=False, default_factory=dict)

    @property
    def series(self) -> list[int]:
        """Which of its source's chunks each message carries first; one of several rings has one.

        Where an AllReduce goes round rings within servers, one of them may have the chunks of as
        many ranks as there are servers. It is what makes the busiest link carry least of one
        series, by what is usual.
        """
        collective, servers = self.schedule.collective, self.schedule.topology.num_servers
        chunks = collective.chunks_per_rank
        periods = (chunks, chunks * servers if collective.name == "allreduce" else chunks)
        found = []
        for period in dict.fromkeys(periods):
            series = [message.chunks[0] % period for message in self.messages]
            loads = Counter(zip(self.lanes, series, strict=True))
            found.append((max(loads.values(), default=0) / median(loads.values() or (1,)), series))
        return min(found, key=lambda one: one[0])[1]


def with_copies_after(draft: Draft, sends: Collection[int]) -> Draft:
    """Return ``draft`` with a copy of one chunk to scratch of its own right after some moves.

    ``sends`` has the positions of these moves, which send.
    """
    moves: list[Move] = []
    scratch = list(draft.scratch)
    for number, move in enumerate(draft.moves):
        moves.append(move)
        if number in sends:
            unread = Slot(Buffer.SCRATCH, scratch[move.rank])
            scratch[move.rank] += 1
            moves.append(Move(move.rank, Op.COPY, move.src, unread, 1, move.message))
    return replace(draft, moves=moves, scratch=scratch)


def make_draft(
    schedule: Schedule, *, in_place: bool, out_of_place: bool, singly: bool = False,
    adding: Time = 0,
) -> Draft:  # fmt: skip
    """Return the moves of a verified ``schedule``.

    They serve calls ``in_place`` and ``out_of_place``. With ``singly``, each is of one chunk:
    shares of neighbouring chunks, which instances work on, are no neighbours. A threadblock takes
    `adding` picoseconds to add a chunk.

    Raises LoweringError when no program can serve these modes.
    """
    collective = schedule.collective
    if not has_xml(collective.name):
        raise LoweringError(
            f"no runtime has a {collective.name} that a file can rely on",
            fix="use --schedule OUT.json, or --runtime none",
        )
    if in_place and collective.name not in COLLECTIVES:
        raise LoweringError(
            f"{collective.name} in place would overwrite what is still to be read",
            fix="use --outofplace",
        )
    modes = tuple(
        mode_of(collective.name, collective.num_ranks, collective.chunks_in_size, in_place=claimed)
        for claimed, wanted in ((True, in_place), (False, out_of_place))
        if wanted
    )
    if not modes:
        raise LoweringError(
            "a program for neither in-place nor out-of-place calls is never run",
            fix="use --inplace, --outofplace or --both",
        )
    full = schedule.expand()
    slots = full.slots
    messages = find_messages(full, slots, singly=singly)
    events = order_events(messages, full.topology, full.collective, adding)
    longest = 1 if singly else MAX_COUNT
    layout = _Layout(slots, modes, list(slots.scratch_chunks), longest, full.packs)
    moves = [*_own_copies(layout, messages), *_own_staged(layout, messages)]
    staged = _staged(layout, messages, events)
    for number, kind in events:
        message = messages[number]
        if kind is Kind.SEND:
            moves += _send(layout, message, number)
        elif kind is Kind.RECEIVE:
            moves += _receive(layout, message, number, staged=number in staged)
        else:
            moves += _add(layout, message, number)
    for number in staged:
        moves += _unpacked(layout, messages[number], number)
    lanes = lanes_of(messages, full.topology)
    return Draft(full, modes, messages, lanes, moves, layout.scratch)


def _slot(place: Place) -> Slot:
    return Slot(Buffer(place.buffer), place.offset)


def _held(layout: _Layout, chunk: int, rank: int) -> Slot:
    place = layout.slots.held(chunk, rank)
    if place is None:
        raise ValueError(f"rank {rank} has no place for chunk {chunk}")
    return _slot(place)


def _readable(layout: _Layout, message: Message) -> dict[int, list[Slot]]:
    """Return the slots from which each chunk can be sent, the preferred one first."""
    rank, slots = message.src, layout.slots
    read = {}
    if not layout.packs:
        run = slots.source_run(message.chunks, rank, message.arrived)
        if run is None:
            raise ValueError(f"rank {rank} does not hold chunks {message.chunks} in a row")
        return {c: [shifted(_slot(run[0]), i)] for i, c in enumerate(message.chunks)}
    for chunk, arrived in zip(message.chunks, message.arrived, strict=True):
        landed = layout.landed.get((chunk, rank))
        own = slots.readable(chunk, rank, arrived=arrived)
        if not slots.collective.reduces:
            # What is relayed is nowhere but where it arrived, and no own value is staged.
            own = tuple(place for place in own if place.buffer != SCRATCH)
        read[chunk] = [*(() if landed is None else (landed,)), *map(_slot, own)]
    return read


def _send(layout: _Layout, message: Message, number: int) -> Iterator[Move]:
    """Send from one run of slots, to which what lies elsewhere is copied before.

    Own values that are read with sums have to be there, too.
    """
    rank, count, read = message.src, len(message.chunks), _readable(layout, message)
    chunks, places = message.chunks, [slots[0] for slots in read.values()]
    if layout.packs:
        # Sums are added in any order, so they are not copied on arrival.
        kept = {
            chunk: (None if message.reduce else _kept(layout, chunk, message.dst))
            for chunk in message.chunks
        }
        chunks, places = packed(message.chunks, read, kept)
    layout.order[number] = chunks
    if layout.slots.collective.reduces:
        sums = [c for c, slot in zip(chunks, places, strict=True) if slot.buffer != Buffer.INPUT]
        yield from _begin_sums(layout, sums, rank, number)
    source = places[0]
    if not in_a_row(places):
        source = layout.fresh(rank, count)
        pairs = [(place, shifted(source, index)) for index, place in enumerate(places)]
        yield from _runs(layout, Op.COPY, rank, pairs, number)
    yield Move(rank, Op.SEND, source, None, count, number)


def _receive(layout: _Layout, message: Message, number: int, *, staged: bool) -> Iterator[Move]:
    count, rank = len(message.chunks), message.dst
    chunks = layout.order[number]
    if message.reduce:
        yield from _begin_sums(layout, chunks, rank, number)
    else:
        layout.begun.update((chunk, rank) for chunk in chunks)
        kept = [_kept(layout, chunk, rank) for chunk in chunks]
        if not staged and in_a_row(kept):
            yield Move(rank, Op.RECV, None, kept[0], count, number)
            return
    slot = layout.arrival[number] = layout.fresh(rank, count)
    yield Move(rank, Op.RECV, None, slot, count, number)
    if layout.packs and not layout.slots.collective.reduces:
        for place, chunk in enumerate(chunks):
            layout.landed[chunk, rank] = shifted(slot, place)
    if not (message.reduce or staged):
        yield from _unpacked(layout, message, number)


def _unpacked(layout: _Layout, message: Message, number: int) -> Iterator[Move]:
    """Copy what arrived in scratch to where the rank keeps it."""
    pairs = []
    for place, chunk in enumerate(layout.order[number]):
        kept = _kept(layout, chunk, message.dst)
        if kept is not None:
            pairs.append((shifted(layout.arrival[number], place), kept))
    yield from _runs(layout, Op.COPY, message.dst, pairs, number)


def _kept(layout: _Layout, chunk: int, rank: int) -> Slot | None:
    """Return where a rank keeps what arrives; None where it stays where it arrived."""
    collective = layout.slots.collective
    if layout.packs and not (collective.reduces or collective.is_target(chunk, rank)):
        return None
    return _held(layout, chunk, rank)


def _begin_sums(layout: _Layout, chunks: Sequence[int], rank: int, number: int) -> Iterator[Move]:
    """Copy a rank's own values to where the sums will be, before anything is added."""
    pairs = []
    for chunk in chunks:
        own = layout.slots.original(chunk, rank)
        if (chunk, rank) not in layout.begun and own is not None:
            layout.begun.add((chunk, rank))
            pairs.append((_slot(own), _held(layout, chunk, rank)))
    yield from _runs(layout, Op.COPY, rank, pairs, number)


def _add(layout: _Layout, message: Message, number: int) -> Iterator[Move]:
    """Add an arrival to the sums; a sum that has not begun is a copy of it."""
    rank, arrival = message.dst, layout.arrival[number]
    new: list[tuple[Slot, Slot]] = []
    old: list[tuple[Slot, Slot]] = []
    for index, chunk in enumerate(layout.order[number]):
        pair = (shifted(arrival, index), _held(layout, chunk, rank))
        (old if (chunk, rank) in layout.begun else new).append(pair)
        layout.begun.add((chunk, rank))
    for op, pairs in ((Op.COPY, new), (Op.REDUCE, old)):
        yield from _runs(layout, op, rank, pairs, number)


def _runs(
    layout: _Layout, op: Op, rank: int, pairs: Iterable[tuple[Slot, Slot]], number: int | None
) -> Iterator[Move]:
    """Yield moves from slot to slot, each for a run of pairs that are adjacent on both sides.

    Those from a cell to itself in all claimed modes are left out.
    """
    cells = [mode.cell for mode in layout.modes]
    run: Move | None = None
    for src, dst in pairs:
        if all(cell(rank, src) == cell(rank, dst) for cell in cells):
            continue
        if run is not None and run.src is not None and run.dst is not None:
            beside = (shifted(run.src, run.chunks), shifted(run.dst, run.chunks))
            if run.chunks < layout.longest and beside == (src, dst):
                run = run._replace(chunks=run.chunks + 1)
                continue
            yield run
        run = Move(rank, op, src, dst, 1, number)
    if run is not None:
        yield run


def _own_copies(layout: _Layout, messages: Sequence[Message]) -> Iterator[Move]:
    """Copy to the output what a rank wants and nothing arrives for."""
    collective = layout.slots.collective
    arriving = {(chunk, message.dst) for message in messages for chunk in message.chunks}
    both: dict[tuple[int, int], list[int]] = {}
    pairs: dict[int, list[tuple[Slot, Slot]]] = defaultdict(list)
    columns = zip(collective.source_set.tolist(), collective.target_set.tolist(), strict=True)
    for chunk, key in enumerate(columns):
        if key not in both:
            sources, targets = (collective.rank_sets[number] for number in key)
            both[key] = sorted(set(sources) & set(targets))
        for rank in both[key]:
            if not (collective.reduces and (chunk, rank) in arriving):
                own, held = layout.slots.original(chunk, rank), layout.slots.held(chunk, rank)
                if own is not None and held is not None:
                    pairs[rank].append((_slot(own), _slot(held)))
    for rank in sorted(pairs):
        yield from _runs(layout, Op.COPY, rank, pairs[rank], None)


def _own_staged(layout: _Layout, messages: Sequence[Message]) -> Iterator[Move]:
    """Copy to scratch the own chunks of a rank that travel with chunks which it relays."""
    if layout.packs or layout.slots.collective.reduces:
        return
    pairs: dict[int, set[tuple[Slot, Slot]]] = defaultdict(set)
    for message in messages:
        for chunk, (there,) in _readable(layout, message).items():
            own = layout.slots.original(chunk, message.src)
            if there.buffer is Buffer.SCRATCH and own is not None:
                pairs[message.src].add((_slot(own), there))
    for rank in sorted(pairs):
        yield from _runs(layout, Op.COPY, rank, sorted(pairs[rank]), None)


def _staged(
    layout: _Layout, messages: Sequence[Message], events: Sequence[Event]
) -> dict[int, None]:
    """Return the messages that arrive where input of another chunk is still to be read."""
    mode = next((mode for mode in layout.modes if mode.in_place), None)
    if mode is None or layout.slots.collective.reduces:
        return {}
    position = {event: place for place, event in enumerate(events)}
    last_read: dict[tuple[int, Cell], int] = {}
    for place, (number, kind) in enumerate(events):
        message = messages[number]
        if kind is Kind.SEND:
            # Where it is read before anything is known of what landed.
            for slots in _readable(layout, message).values():
                if slots and slots[0].buffer is Buffer.INPUT:
                    last_read[message.src, mode.cell(message.src, slots[0])] = place
    staged: dict[int, None] = {}
    for number, message in enumerate(messages):
        arrives = position[Event(number, Kind.RECEIVE)]
        kept = (_kept(layout, chunk, message.dst) for chunk in message.chunks)
        cells = [mode.cell(message.dst, slot) for slot in kept if slot is not None]
        if any(last_read.get((message.dst, cell), -1) > arrives for cell in cells):
            staged[number] = None
    return staged


AREAS = {buffer: area for area, buffer in enumerate(Buffer)}
"""Numbers of the buffers."""


@dataclass(frozen=True, eq=False)
class Parts:
    """What every move reads from and writes to, as numbers of parts, neighbours in order.

    All numbers are below `count`; `ends` is (modes, 2, 2, moves): of source and target the first
    part, and the first one after them.
    """

    count: int
    ends: NDArray[np.int64]

    def of(self, place: int) -> Iterator[tuple[range, range]]:
        """Yield source and target of a move, mode by mode."""
        for source, target in self._listed[place]:
            yield range(*source), range(*target)

    @cached_property
    def _listed(self) -> list[list[list[list[int]]]]:
        listed: list[list[list[list[int]]]] = self.ends.transpose(3, 0, 1, 2).tolist()
        return listed


def find_parts(moves: Sequence[Move], modes: Sequence[Mode]) -> Parts:
    """Return the parts that ``moves``, in one legal order, touch in the claimed ``modes``."""
    ranks = np.array([move.rank for move in moves], dtype=np.int64)
    chunks = np.array([move.chunks for move in moves], dtype=np.int64)
    sides = [_side([move.src for move in moves]), _side([move.dst for move in moves])]
    shift = max((max(*mode.input_shift, *mode.output_shift) for mode in modes), default=0)
    width = shift + 1 + max(int((offset + chunks).max(initial=0)) for _, offset in sides)
    span = width * len(AREAS) * (1 + int(ranks.max(initial=0)))
    starts = [
        number * span + (ranks * len(AREAS) + area) * width + offset
        for number, mode in enumerate(modes)
        for area, offset in (_placed(mode, ranks, *side) for side in sides)
    ]
    lengths = [np.where(area < 0, 0, chunks) for area, _ in sides] * len(modes)
    both = np.array([starts, np.add(starts, lengths)])
    cuts = np.unique(both[:, np.array(lengths) > 0])
    found = np.ascontiguousarray(np.searchsorted(cuts, both.swapaxes(0, 1)), dtype=np.int64)
    return Parts(len(cuts), found.reshape(len(modes), 2, 2, len(moves)))


def _side(slots: Sequence[Slot | None]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return area and offset of slots; an area below 0: there is none."""
    areas = [-1 if slot is None else AREAS[slot.buffer] for slot in slots]
    offsets = [0 if slot is None else slot.offset for slot in slots]
    return np.array(areas, dtype=np.int64), np.array(offsets, dtype=np.int64)


def _placed(
    mode: Mode, ranks: NDArray[np.int64], area: NDArray[np.int64], offset: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return area and offset of cells: in place, input and output are one area."""
    if not mode.in_place:
        return area, offset
    inside, outside = AREAS[Buffer.INPUT], AREAS[Buffer.OUTPUT]
    for buffer, shifts in ((inside, mode.input_shift), (outside, mode.output_shift)):
        offset = offset + np.where(area == buffer, np.array(shifts, dtype=np.int64)[ranks], 0)
    return np.where(area == outside, inside, area), offset

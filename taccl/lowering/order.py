"""Messages of a schedule, and one order of all their events that is a legal run.

An event is the start of a message (SEND), its arrival (RECEIVE), or the work that follows an
arrival which is not final: adding it to the sum (APPLY). The order obeys

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
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import pairwise
from typing import NamedTuple

from taccl.collectives import Collective
from taccl.collectives.slots import Slots
from taccl.model.schedule import Schedule
from taccl.msccl.program import Slot
from taccl.msccl.runtimes import MAX_COUNT
from taccl.topology.graph import Topology


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
    later: list[list[int]] = field(default_factory=list)
    required: list[int] = field(default_factory=list)
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
    messages: list[Message], topology: Topology, collective: Collective
) -> list[Event]:
    """Return all events of ``messages`` in one legal order.

    The messages are in order of (start, end), on links of ``topology``, for a ``collective``.
    """
    graph = _Graph(messages)
    for message in messages:
        send, receive, apply = graph.node(), graph.node(), graph.node()
        graph.require(send, receive)
        if message.reduce:
            graph.require(receive, apply)
        else:
            graph.required[apply] = _ABSENT
    on_link: dict[int, int] = {}
    on_edge: dict[int, int] = {}
    for number, message in enumerate(messages):
        before = on_link.get(message.link)
        if before is not None:
            graph.require(3 * before, 3 * number)
            graph.require(graph.applied(before), 3 * number + Kind.RECEIVE)
            graph.wanted.append((graph.applied(before), 3 * number))
        on_link[message.link] = number
        for edge in topology.links.edges_of(message.link):
            if topology.edges[edge].beta is not None:
                if edge in on_edge:
                    graph.wanted.append((3 * on_edge[edge], 3 * number))
                on_edge[edge] = number
    _order_values(graph, collective)
    count = 3 * len(messages)
    return [Event(node // 3, Kind(node % 3)) for node in _sort(graph) if node < count]


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


def _sort(graph: _Graph) -> list[int]:
    """Sort topologically, the earliest event first; give up wanted edges only when stuck."""
    size = len(graph.later)
    # Barriers come first, then messages by start, and sums by arrival. A receive follows its send
    # at once: a message that is cut into more than a connection holds needs its receiver before it
    # is sent whole.
    priority: list[tuple[int, int, int]] = []
    for number, message in enumerate(graph.messages):
        start = (message.start, 1, number)
        priority += [start, start, (message.end, 0, number)]
    priority += [(-1, 0, 0)] * (size - len(priority))
    missing = [0] * size
    wanted: dict[int, list[int]] = defaultdict(list)
    for before, after in graph.wanted:
        wanted[before].append(after)
        missing[after] += 1
    required = list(graph.required)
    done = [needs == _ABSENT for needs in required]
    ready = [
        (priority[node], node) for node in range(size) if required[node] == 0 and missing[node] == 0
    ]
    heapq.heapify(ready)
    order: list[int] = []
    while True:
        if not ready:
            left = [(priority[node], node) for node in range(size) if not done[node]]
            if not left:
                return order
            # Only wanted edges hold these back.
            ready = [min((entry for entry in left if required[entry[1]] == 0), default=min(left))]
        node = heapq.heappop(ready)[1]
        if done[node]:
            continue
        done[node] = True
        order.append(node)
        for counts, following in ((required, graph.later[node]), (missing, wanted.get(node, ()))):
            for after in following:
                counts[after] -= 1
                if required[after] == 0 and missing[after] == 0:
                    heapq.heappush(ready, (priority[after], after))


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

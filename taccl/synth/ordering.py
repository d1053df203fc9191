"""Stage 2: in which order messages take every resource (list scheduling by named rules).

Ready messages are taken one at a time, the best by the rule first, and placed as early as their
chunks and resources allow. The result is a sequence; retime() computes its times.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from taccl.schedule import Decisions
from taccl.synth.batching import Message
from taccl.synth.plan import Plan
from taccl.units import Time

Key = tuple[int, ...]
Priority = Callable[[Time, Time, Time], Key]
"""(earliest start, arrival, time from start to the last arrival that needs it) -> smaller first."""

PRIORITIES: Mapping[str, Priority] = MappingProxyType({
    "earliest": lambda start, end, tail: (start, -tail, end),
    "finish": lambda start, end, tail: (end, -tail, start),
    "critical": lambda start, end, tail: (-tail, start, end),
    "slack": lambda start, end, tail: (start - tail // 2, end),
})  # fmt: skip


@dataclass(frozen=True)
class Graph:
    """Which messages wait for which, by position in the list of messages."""

    waiting: list[set[int]]
    children: list[set[int]]


def order(plan: Plan, messages: Sequence[Message], rule: str) -> Decisions | None:
    """Return the moves in the order of a rule of ``PRIORITIES``; None when messages wait in a ring.

    Parameters
    ----------
    messages
        Every move of the plan in exactly one message.
    """
    state = _State(plan, messages, PRIORITIES[rule], message_graph(plan, messages))
    state.offer(range(len(messages)))
    other_side = _exchanges(plan, messages)
    sequence: dict[int, None] = {}
    while state.heap:
        planned, number = heapq.heappop(state.heap)
        if number in sequence:
            continue
        now = state.key(number)
        if now > planned:
            heapq.heappush(state.heap, (now, number))
            continue
        # The sides of an exchange stand side by side, so that neither waits for what waits for it.
        others = other_side.get(number, ())
        sides = (number, *(other for other in others if not state.missing[other]))
        sequence.update(dict.fromkeys(sides))
        state.place(sides)
    if len(sequence) < len(messages):
        return None
    return decide(plan, [messages[number] for number in sequence])


class _State:
    """What is placed so far, and the messages that could be next."""

    def __init__(
        self, plan: Plan, messages: Sequence[Message], priority: Priority, graph: Graph
    ) -> None:
        self.plan, self.messages, self.priority = plan, messages, priority
        self.children = graph.children
        self.missing = [len(waiting) for waiting in graph.waiting]
        self.ready: list[Time] = [0] * len(messages)
        self.free: dict[int, Time] = defaultdict(int)
        self.heap: list[tuple[Key, int]] = []

    def window(self, number: int) -> tuple[Time, Time]:
        """Return the earliest start and arrival of a message."""
        message = self.messages[number]
        duration, uses = self.plan.costs(self.plan.moves[message[0]].link, len(message))
        start = max([self.ready[number], *(self.free[orbit] for orbit, _ in uses)])
        return start, start + duration

    def key(self, number: int) -> Key:
        """Return the place of a message by the rule."""
        start, end = self.window(number)
        tail = max(self.plan.tail_time[move] for move in self.messages[number])
        return self.priority(start, end, tail)

    def offer(self, numbers: Iterable[int]) -> None:
        """Queue those that wait for nothing."""
        for number in numbers:
            if self.missing[number] == 0:
                heapq.heappush(self.heap, (self.key(number), number))

    def place(self, sides: Sequence[int]) -> None:
        """Start messages together, as early as all of them may."""
        windows = [self.window(side) for side in sides]
        start = max(start for start, _ in windows)
        for side, (early, end) in zip(sides, windows, strict=True):
            message = self.messages[side]
            for orbit, busy in self.plan.costs(self.plan.moves[message[0]].link, len(message))[1]:
                self.free[orbit] = start + busy
            children = sorted(self.children[side])
            for child in children:
                self.ready[child] = max(self.ready[child], end + start - early)
                self.missing[child] -= 1
            self.offer(children)


def _exchanges(plan: Plan, messages: Sequence[Message]) -> dict[int, tuple[int, ...]]:
    """Return the other side of every message that is one side of an exchange."""
    owner = {move: number for number, message in enumerate(messages) for move in message}
    sides = {
        number: {owner[plan.exchanges[move]] for move in message if move in plan.exchanges}
        for number, message in enumerate(messages)
        if plan.exchanges
    }
    return {
        number: tuple(others)
        for number, others in sides.items()
        if len(others) == 1 and all(sides[other] == {number} for other in others)
    }


def message_graph(plan: Plan, messages: Sequence[Message]) -> Graph:
    """Return which messages have to be sequenced before which others."""
    owner = {move: number for number, message in enumerate(messages) for move in message}
    waiting: list[set[int]] = [set() for _ in messages]
    children: list[set[int]] = [set() for _ in messages]
    for number, message in enumerate(messages):
        for index in message:
            move = plan.moves[index]
            for before in (*move.needs, *move.reads_first, *move.follows):
                parent = owner[before]
                if parent != number:
                    waiting[number].add(parent)
                    children[parent].add(number)
                elif before in move.needs:
                    # A message that needs its own arrival can never start.
                    waiting[number].add(number)
    return Graph(waiting, children)


def decide(plan: Plan, messages: Sequence[Message]) -> Decisions:
    """Return the decisions of messages in sequence."""
    sequence = [index for message in messages for index in message]
    rows = [
        (plan.moves[index].chunk, plan.moves[index].link, batch, plan.moves[index].reduce)
        for batch, message in enumerate(messages)
        for index in message
    ]
    if not plan.exchanges:
        return Decisions.of(rows)
    row = {index: number for number, index in enumerate(sequence)}
    lands = [
        1 + max(number, row.get(plan.exchanges.get(index, index), number))
        for number, index in enumerate(sequence)
    ]
    return Decisions.of(rows, lands)

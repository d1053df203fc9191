"""Stage 2: in which order messages take every resource (list scheduling by named rules).

Ready messages are taken one at a time, the best by the rule first, and placed as early as their
chunks and resources allow. The result is a sequence; retime() computes its times.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
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
class _Graph:
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
    graph = _message_graph(plan, messages)
    priority = PRIORITIES[rule]
    free: dict[int, Time] = defaultdict(int)
    ready = [0] * len(messages)
    missing = [len(waiting) for waiting in graph.waiting]
    heap: list[tuple[Key, int]] = []

    def key(number: int) -> Key:
        start, end = _window(plan, messages[number], ready[number], free)
        tail = max(plan.tail_time[move] for move in messages[number])
        return priority(start, end, tail)

    for number, count in enumerate(missing):
        if count == 0:
            heapq.heappush(heap, (key(number), number))
    sequence: list[int] = []
    while heap:
        planned, number = heapq.heappop(heap)
        now = key(number)
        if now > planned:
            heapq.heappush(heap, (now, number))
            continue
        start, end = _window(plan, messages[number], ready[number], free)
        _, uses = plan.costs(plan.moves[messages[number][0]].link, len(messages[number]))
        for orbit, busy in uses:
            free[orbit] = start + busy
        sequence.append(number)
        for child in sorted(graph.children[number]):
            ready[child] = max(ready[child], end)
            missing[child] -= 1
            if missing[child] == 0:
                heapq.heappush(heap, (key(child), child))
    if len(sequence) < len(messages):
        return None
    return decide(plan, [messages[number] for number in sequence])


def _window(
    plan: Plan, message: Message, ready: Time, free: Mapping[int, Time]
) -> tuple[Time, Time]:
    duration, uses = plan.costs(plan.moves[message[0]].link, len(message))
    start = max([ready, *(free[orbit] for orbit, _ in uses)])
    return start, start + duration


def _message_graph(plan: Plan, messages: Sequence[Message]) -> _Graph:
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
    return _Graph(waiting, children)


def decide(plan: Plan, messages: Sequence[Message]) -> Decisions:
    """Return the decisions of messages in sequence."""
    return Decisions.of([
        (plan.moves[index].chunk, plan.moves[index].link, batch, plan.moves[index].reduce)
        for batch, message in enumerate(messages)
        for index in message
    ])  # fmt: skip

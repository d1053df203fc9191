"""List scheduling of fixed routes, compiled: which message takes a resource first.

Ready messages start as soon as all they need is free; among those that compete, the one with the
longest way left goes first, or a variation of that. The loop is in dispatch_loop.py.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from taccl.machine_code import machine_code, telling
from taccl.schedule import Decisions
from taccl.synth import dispatch_loop
from taccl.synth.batching import Message
from taccl.synth.dispatch_loop import State, Work
from taccl.synth.ordering import decide, message_graph
from taccl.synth.plan import Plan
from taccl.units import Time

MESSAGE = "compiling the list scheduler; once on this machine, for about 5 s"


@dataclass(frozen=True, eq=False)
class Load:
    """Messages of a plan, ready to be dispatched in different orders.

    Parameters
    ----------
    plan, messages
        What is sent together.
    work
        The same in columns, with the longest way left first.
    missing
        How many others each message waits for.
    tail
        Picoseconds from the start of each message to the last arrival that needs it.
    resources
        How many resources there are.
    """

    plan: Plan
    messages: Sequence[Message]
    work: Work
    missing: NDArray[np.int32]
    tail: NDArray[np.int64]
    resources: int


def load_of(plan: Plan, messages: Sequence[Message]) -> Load:
    """Return the messages of a plan in columns.

    Parameters
    ----------
    plan
        Without exchanges, whose two sides would have to start together.
    messages
        Every move of the plan in exactly one message.
    """
    numbers: dict[int, int] = {}
    uses: list[list[tuple[int, Time]]] = []
    arrival = []
    for message in messages:
        time, held = plan.costs(plan.moves[message[0]].link, len(message))
        arrival.append(time)
        uses.append([(numbers.setdefault(orbit, len(numbers)), busy) for orbit, busy in held])
    graph = message_graph(plan, messages)
    arrives = _arrivals(plan, messages)
    following = [sorted(children) for children in graph.children]
    tail = np.array([max(plan.tail_time[m] for m in message) for message in messages], np.int64)
    work = Work(
        _starts(uses),
        np.array([resource for some in uses for resource, _ in some], dtype=np.int32),
        np.array([busy for some in uses for _, busy in some], dtype=np.int64),
        np.array(arrival, dtype=np.int64),
        _starts(following),
        np.array(list(chain.from_iterable(following)), dtype=np.int32),
        np.array(
            [(n, child) not in arrives for n, some in enumerate(following) for child in some],
            dtype=np.int32,
        ),
        _ranks(tail),
    )
    missing = np.array([len(waiting) for waiting in graph.waiting], dtype=np.int32)
    return Load(plan, messages, work, missing, tail, len(numbers))


def dispatched(
    load: Load, report: Callable[[str], None], before: NDArray[np.int64] | None = None
) -> tuple[Decisions, Time]:
    """Return the messages in the order of their starts, and the last arrival in picoseconds.

    Parameters
    ----------
    report
        Called with a line when there is something to compile.
    before
        Sorts the messages: smaller goes first. None: the longest way left.

    Raises
    ------
    ValueError
        When messages wait for each other in a ring.
    """
    start, order = starts(load, report, before)
    end = int((start + load.work.arrival).max(initial=0))
    return decide(load.plan, [load.messages[number] for number in order.tolist()]), end


def starts(
    load: Load, report: Callable[[str], None], before: NDArray[np.int64] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return when every message starts, in picoseconds, and the messages in that order.

    The parameters are those of :func:`dispatched`.

    Raises
    ------
    ValueError
        When messages wait for each other in a ring.
    """
    work = load.work if before is None else load.work._replace(rank=_ranks(-before))
    state = _state(load)
    with telling(report, MESSAGE):
        started = _compiled()(work, state)
    if started < len(load.messages):
        raise ValueError("messages wait for each other in a ring")
    return state.start, np.argsort(state.turn, kind="stable")


def _state(load: Load) -> State:
    count = len(load.messages)
    events = count + len(load.work.use) + 1

    def numbers(size: int) -> NDArray[np.int32]:
        return np.full(size, dispatch_loop.NOTHING, dtype=np.int32)

    return State(
        load.missing.copy(), np.full(count, -1, dtype=np.int64), numbers(count),
        np.zeros(load.resources, dtype=np.int64), numbers(load.resources + 1), numbers(count),
        numbers(count), numbers(count), np.zeros(events, dtype=np.int64),
        np.zeros(events, dtype=np.int64),
    )  # fmt: skip


def _arrivals(plan: Plan, messages: Sequence[Message]) -> set[tuple[int, int]]:
    """Return (before, after) where a message waits for the arrival of another, not its start."""
    owner = {move: number for number, message in enumerate(messages) for move in message}
    return {
        (owner[before], number)
        for number, message in enumerate(messages)
        for move in message
        for before in plan.moves[move].needs
    }


def _starts(rows: Sequence[Sequence[object]]) -> NDArray[np.int64]:
    return np.concatenate(([0], np.cumsum([len(row) for row in rows]))).astype(np.int64)


def _ranks(tail: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return the place of every message: the largest first, the first of equals."""
    rank = np.empty(len(tail), dtype=np.int32)
    rank[np.argsort(-tail, kind="stable")] = np.arange(len(tail), dtype=np.int32)
    return rank


@cache
def _compiled() -> Callable[[Work, State], int]:
    return machine_code(dispatch_loop.dispatch, [dispatch_loop], "dispatch")

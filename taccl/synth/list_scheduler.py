"""List scheduling of fixed routes: in which order messages take every resource.

:func:`order` is the second stage of TACCL: ready messages are taken one at a time, the best by a
named rule first, and placed as early as their chunks and resources allow. :func:`dispatched` is
compiled and has one rule: ready messages start as soon as all they need is free, and among those
that compete, the one with the longest way left goes first, or a variation of that. Both give a
sequence; retime() computes its times.

Items of the compiled loop (:func:`dispatch`) are messages, or single moves: then what is ready
beside a move when it starts goes with it, as far as it may. Time goes from event to event: a
message arrives, or a resource is released. At every instant the items that could start are tried in
order of rank; one that meets a busy resource waits in that resource's heap, and comes up again when
it is released. So nothing waits while all it needs is free, and each event costs the logarithm of
what waits.
"""

import heapq
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.model.schedule import Decisions
from taccl.synth.plan import Message, Plan
from taccl.timing import occupancy
from taccl.timing.jit import jit, report_compilation
from taccl.timing.occupancy import NOTHING, Numbers, Times, Uses, blocking, earliest_start, occupy
from taccl.timing.retiming import as_list, as_lists, uses_of
from taccl.units import Time

ARRIVAL, START = 0, 1
"""What a message may wait for."""


class Work(NamedTuple):
    """Items and what they wait for: messages, or the single moves that messages grow from.

    `uses` is what messages hold; `row` is an item's row there when it travels alone, and the rows
    after that are those of 2, 3, ... items of its run. `member` holds the items run by run, and
    `place` where each stands there. By place: its run begins and ends at `run_start` and
    `run_stop`, the longest message that begins there ends at `reach`, and a message has `most`
    items at most. CSR: from `next_start` on stand the items `following` that wait for item m, and
    the `moment`: for its ARRIVAL or its START. `rank` is the place in the order of preference: no
    two alike.
    """

    uses: Uses
    row: Numbers
    member: Numbers
    place: Numbers
    run_start: Numbers
    run_stop: Numbers
    reach: Numbers
    most: Numbers
    next_start: Times
    following: Numbers
    moment: Numbers
    rank: Numbers


class State(NamedTuple):
    """What :func:`dispatch` works on and answers with.

    Each item still waits for `missing` others; its `start` is -1 before it has one, `turn` is how
    many messages were started before its own, and `length` how many items the message has that it
    is the first of. Each resource is `free` from a time on, and `top` is the pairing heap of those
    that wait for it; one more of those to be tried now. `child` and `sibling` are links of the
    heaps; an item came up from the heap of the resource `pulled`. `event_time` and `event_code` are
    a binary heap: arrival of the message whose first item is m is code m, release of resource r is
    -1 - r.
    """

    missing: Numbers
    start: Times
    turn: Numbers
    length: Numbers
    free: Times
    top: Numbers
    child: Numbers
    sibling: Numbers
    pulled: Numbers
    event_time: Times
    event_code: Times


def meld(work: Work, state: State, one: int, other: int) -> int:
    """Return the root of two heaps made one: the message of smaller rank."""
    if work.rank[other] < work.rank[one]:
        one, other = other, one
    state.sibling[other] = state.child[one]
    state.child[one] = other
    return one


def wait(work: Work, state: State, heap: int, message: int) -> None:
    """Put a message into a heap."""
    state.child[message] = NOTHING
    state.sibling[message] = NOTHING
    root = state.top[heap]
    state.top[heap] = message if root == NOTHING else meld(work, state, root, message)


def pull(work: Work, state: State, heap: int) -> int:
    """Take the message of smallest rank out of a heap that is not empty."""
    message = state.top[heap]
    entry = state.child[message]
    pairs = NOTHING
    while entry != NOTHING:
        other = state.sibling[entry]
        following = NOTHING
        if other != NOTHING:
            following = state.sibling[other]
            state.sibling[entry] = NOTHING
            state.sibling[other] = NOTHING
            entry = meld(work, state, entry, other)
        state.sibling[entry] = pairs
        pairs = entry
        entry = following
    root = NOTHING
    while pairs != NOTHING:
        following = state.sibling[pairs]
        state.sibling[pairs] = NOTHING
        root = pairs if root == NOTHING else meld(work, state, root, pairs)
        pairs = following
    state.top[heap] = root
    return int(message)


def push_event(state: State, size: int, time: int, code: int) -> int:
    """Add an event; return how many there are."""
    place = size
    while place > 0:
        above = (place - 1) >> 1
        if state.event_time[above] <= time:
            break
        state.event_time[place] = state.event_time[above]
        state.event_code[place] = state.event_code[above]
        place = above
    state.event_time[place] = time
    state.event_code[place] = code
    return size + 1


def drop_event(state: State, size: int) -> int:
    """Remove the first event; return how many are left."""
    size -= 1
    time, code = state.event_time[size], state.event_code[size]
    place = 0
    while 2 * place + 1 < size:
        below = 2 * place + 1
        if below + 1 < size and state.event_time[below + 1] < state.event_time[below]:
            below += 1
        if state.event_time[below] >= time:
            break
        state.event_time[place] = state.event_time[below]
        state.event_code[place] = state.event_code[below]
        place = below
    state.event_time[place] = time
    state.event_code[place] = code
    return size


def release(work: Work, state: State, item: int, moment: int) -> None:
    """Offer the items that waited for a message last: for its arrival, or its start.

    `item`: the first of the message.
    """
    now = len(state.free)
    for place in range(work.place[item], work.place[item] + state.length[item]):
        one = work.member[place]
        for i in range(work.next_start[one], work.next_start[one + 1]):
            if work.moment[i] == moment:
                other = work.following[i]
                state.missing[other] -= 1
                if state.missing[other] == 0:
                    wait(work, state, now, other)


def is_ready(work: Work, state: State, place: int) -> bool:
    """Tell whether the item at a place waits for nothing but resources."""
    item = work.member[place]
    return bool(state.missing[item] == 0 and state.start[item] < 0)


def around(work: Work, state: State, item: int) -> tuple[int, int]:
    """Return the places of an item and of what is ready beside it and may travel with it."""
    at = work.place[item]
    first, stop = at, at + 1
    while stop < work.run_stop[at] and stop - first < work.most[at] and is_ready(work, state, stop):
        stop += 1
    while (
        first > work.run_start[at]
        and stop - first < work.most[at]
        and is_ready(work, state, first - 1)
    ):
        first -= 1
    while stop > work.reach[first]:
        if stop - 1 > at:
            stop -= 1
        else:
            first += 1
    return int(first), int(stop)


def begin(work: Work, state: State, item: int, time: int, count: int, size: int) -> tuple[int, int]:
    """Start the message that grows around an item.

    `count`, `size`: messages that have started, and events.

    Returns
    -------
    tuple
        The first item of the message, and how many events there are.
    """
    first, stop = around(work, state, item)
    lead = work.member[first]
    state.length[lead] = stop - first
    for place in range(first, stop):
        state.start[work.member[place]] = time
        state.turn[work.member[place]] = count
    row = work.row[lead] + stop - first - 1
    arrival = occupy(work.uses, state.free, row, time)
    for use in range(work.uses.first[row], work.uses.first[row + 1]):
        resource = work.uses.resource[use]
        if state.free[resource] > time:
            size = push_event(state, size, state.free[resource], -1 - resource)
    return int(lead), push_event(state, size, arrival, lead)


def come_up(work: Work, state: State, resource: int, time: int) -> None:
    """Let the first that waits for a resource be tried, if the resource is free."""
    if state.free[resource] <= time and state.top[resource] != NOTHING:
        message = pull(work, state, resource)
        state.pulled[message] = resource
        wait(work, state, len(state.free), message)


def start_all(work: Work, state: State, time: int, count: int, size: int) -> tuple[int, int]:
    """Try what came up at an instant; return how many have started so far, and the events."""
    now = len(state.free)
    while state.top[now] != NOTHING:
        item = pull(work, state, now)
        blocked = NOTHING
        if state.start[item] < 0:  # else it went with another
            blocked = blocking(work.uses, state.free, work.row[item], time)
            if blocked == NOTHING:
                lead, size = begin(work, state, item, time, count, size)
                count += 1
                release(work, state, lead, START)
            else:
                wait(work, state, blocked, item)
        origin = state.pulled[item]
        if origin not in (NOTHING, blocked):
            state.pulled[item] = NOTHING
            come_up(work, state, origin, time)
    return count, size


def dispatch(work: Work, state: State) -> int:
    """Start all that does not wait in a ring; return in how many messages."""
    count, size, time = 0, 0, 0
    for message in range(len(work.rank)):
        if state.missing[message] == 0:
            wait(work, state, len(state.free), message)
    while True:
        count, size = start_all(work, state, time, count, size)
        if size == 0:
            return count
        time = state.event_time[0]
        while size > 0 and state.event_time[0] == time:
            code = state.event_code[0]
            size = drop_event(state, size)
            if code >= 0:
                release(work, state, code, ARRIVAL)
            else:
                come_up(work, state, -1 - code, time)


Key = tuple[int, ...]
Priority = Callable[[Time, Time, Time], Key]
"""(earliest start, arrival, time from start to the last arrival that needs it) -> smaller first."""

PRIORITIES: Mapping[str, Priority] = MappingProxyType({
    "earliest": lambda start, end, tail: (start, -tail, end),
    "critical": lambda start, end, tail: (-tail, start, end),
})  # fmt: skip


@dataclass(frozen=True)
class Graph:
    """Which messages wait for which, by position in the list of messages."""

    waiting: list[set[int]]
    children: list[set[int]]


def order(plan: Plan, messages: Sequence[Message], rule: str) -> Decisions | None:
    """Return the moves in the order of a rule of ``PRIORITIES``; None when messages wait in a ring.

    Every move of the `plan` is in exactly one of the `messages`; `rule` is the name of a priority.
    """
    state = _State(plan, messages, PRIORITIES[rule], message_graph(plan, messages))
    state.offer(range(len(messages)))
    owner = {move: number for number, message in enumerate(messages) for move in message}
    exchanged = {  # of every message the other sides of its exchanges
        number: {owner[plan.exchanges[move]] for move in message if move in plan.exchanges}
        for number, message in enumerate(messages)
        if plan.exchanges
    }
    other_side = {
        number: tuple(others)
        for number, others in exchanged.items()
        if len(others) == 1 and all(exchanged[other] == {number} for other in others)
    }
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
        self.priority = priority
        self.uses = as_lists(message_uses(plan, messages))
        self.tail = [max(plan.tail_time[move] for move in message) for message in messages]
        self.children = graph.children
        self.missing = [len(waiting) for waiting in graph.waiting]
        self.ready: list[Time] = released(plan, messages).tolist()
        self.free = as_list(np.zeros(len(plan.problem.topology.edges), dtype=np.int64))
        self.heap: list[tuple[Key, int]] = []

    def start(self, number: int) -> Time:
        """Return the earliest start of a message."""
        return earliest_start(self.uses, self.free, number, self.ready[number])

    def key(self, number: int) -> Key:
        """Return the place of a message by the rule."""
        start = self.start(number)
        return self.priority(start, start + int(self.uses.arrival[number]), self.tail[number])

    def offer(self, numbers: Iterable[int]) -> None:
        """Queue those that wait for nothing."""
        for number in numbers:
            if self.missing[number] == 0:
                heapq.heappush(self.heap, (self.key(number), number))

    def place(self, sides: Sequence[int]) -> None:
        """Start messages together, as early as all of them may."""
        start = max(self.start(side) for side in sides)
        for side in sides:
            end = occupy(self.uses, self.free, side, start)
            children = sorted(self.children[side])
            for child in children:
                self.ready[child] = max(self.ready[child], end)
                self.missing[child] -= 1
            self.offer(children)


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


def released(plan: Plan, messages: Sequence[Message]) -> NDArray[np.int64]:
    """Return from when on (ps) each of the messages may start, by what its rank has itself."""
    if not plan.problem.collective.is_timed:
        return np.zeros(len(messages), dtype=np.int64)
    return np.array([plan.released[list(message)].max() for message in messages], dtype=np.int64)


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
    visible_from = [
        1 + max(number, row.get(plan.exchanges.get(index, index), number))
        for number, index in enumerate(sequence)
    ]
    return Decisions.of(rows, visible_from)


def message_uses(plan: Plan, messages: Sequence[Message]) -> Uses:
    """Return what messages of a plan hold."""
    problem = plan.problem
    link = np.array([plan.moves[message[0]].link for message in messages], dtype=np.int32)
    chunks = np.array([len(message) for message in messages], dtype=np.int64)
    return uses_of(problem.group, problem.chunk_size, link, chunks)


MESSAGE = "compiling the list scheduler; once on this machine, for about 5 s"


@dataclass(frozen=True, slots=True)
class Run:
    """Moves on one link of which neighbours may travel together.

    `moves` are in the order of their places; for each of them, `reach` is where the longest message
    ends that begins with it. A message has so many moves at `most`.
    """

    moves: Message
    reach: Sequence[int]
    most: int


@dataclass(frozen=True, eq=False)
class Load:
    """Messages of a plan, ready to be dispatched in different orders.

    `messages` are what is sent together of the `plan`, or the single moves that messages grow from;
    `work` is the same in columns, with the longest way left first. After the messages stands there
    one that holds nothing for every time at which some are released: these wait for its arrival.
    Each waits for so many others (`missing`), and each message has `tail` picoseconds from its
    start to the end of the last that needs it. There are so many `resources`.
    """

    plan: Plan
    messages: Sequence[Message]
    work: Work
    missing: NDArray[np.int32]
    tail: NDArray[np.int64]
    resources: int


def load_of(plan: Plan, messages: Sequence[Message]) -> Load:
    """Return `messages` of a `plan` in columns; every move is in exactly one of them.

    The plan has no exchanges, whose two sides would have to start together.
    """
    return _load(plan, messages, [Run((number,), (1,), 1) for number in range(len(messages))])


def growing_load_of(plan: Plan, runs: Sequence[Run]) -> Load:
    """Return the moves of a `plan` in columns, from which messages grow while they are dispatched.

    Every move is in exactly one of the `runs`; the plan is as for :func:`load_of`.
    """
    return _load(plan, [(number,) for number in range(len(plan.moves))], runs)


def _load(plan: Plan, messages: Sequence[Message], runs: Sequence[Run]) -> Load:
    """Return the columns of messages, of which those of a run may become one."""
    graph = message_graph(plan, messages)
    times = released(plan, messages)
    clocks: list[Time] = np.unique(times[times > 0]).tolist()
    owner = {move: number for number, message in enumerate(messages) for move in message}
    arrives = {  # (before, after) where a message waits for another to arrive, not only to start
        (owner[before], number)
        for number, message in enumerate(messages)
        for move in message
        for before in plan.moves[move].needs
    }
    following = [sorted(children) for children in graph.children]
    for number, time in enumerate(clocks, len(messages)):
        following.append(np.flatnonzero(times == time).tolist())
        arrives |= {(number, child) for child in following[-1]}
    tail = np.array([max(plan.tail_time[m] for m in message) for message in messages], np.int64)
    grown: list[Message] = []
    row = np.zeros(len(following), dtype=np.int32)
    for run in runs:
        row[list(run.moves)] = len(grown)
        longest = max(stop - first for first, stop in enumerate(run.reach))
        grown.append(messages[run.moves[0]])
        grown += [run.moves[:length] for length in range(2, min(longest, run.most) + 1)]
    row[len(messages) :] = np.arange(len(grown), len(grown) + len(clocks))
    runs = [*runs, *(Run((len(messages) + number,), (1,), 1) for number in range(len(clocks)))]
    uses = message_uses(plan, grown)
    uses = uses._replace(
        first=np.append(uses.first, [uses.first[-1]] * len(clocks)).astype(np.int64),
        arrival=np.append(uses.arrival, clocks).astype(np.int64),
    )
    member = np.array([item for run in runs for item in run.moves], dtype=np.int32)
    lengths = np.array([len(run.moves) for run in runs], dtype=np.int32)
    first = np.cumsum(lengths, dtype=np.int32) - lengths
    begin = np.repeat(first, lengths)
    place = np.empty_like(member)
    place[member] = np.arange(len(member), dtype=np.int32)
    work = Work(
        uses, row, member, place, begin, begin + np.repeat(lengths, lengths),
        begin + np.array([stop for run in runs for stop in run.reach], dtype=np.int32),
        np.repeat(np.array([run.most for run in runs], dtype=np.int32), lengths),
        np.cumsum([0, *map(len, following)]),
        np.array(list(chain.from_iterable(following)), dtype=np.int32),
        np.array(
            [(n, child) not in arrives for n, some in enumerate(following) for child in some],
            dtype=np.int32,
        ),
        _ranks(_with_clocks(tail, len(clocks))),
    )  # fmt: skip
    missing = np.zeros(len(following), dtype=np.int32)
    missing[: len(messages)] = [len(waiting) for waiting in graph.waiting] + (times > 0)
    return Load(plan, messages, work, missing, tail, len(plan.problem.topology.edges))


def dispatched(
    load: Load, report: Callable[[str], None], before: NDArray[np.int64] | None = None
) -> tuple[Decisions, Time]:
    """Return the messages in the order of their starts, and when all is over in picoseconds.

    The parameters and errors are those of :func:`messages_by_start`.
    """
    messages, end = messages_by_start(load, report, before)
    return decide(load.plan, messages), end


def messages_by_start(
    load: Load, report: Callable[[str], None], before: NDArray[np.int64] | None = None
) -> tuple[list[Message], Time]:
    """Return the messages of a `load` by their starts, and when all is over in picoseconds.

    Where there is something to compile, `report` is called with a line. `before` sorts the
    messages: smaller goes first; None: the longest way left.

    Raises ValueError when messages wait for each other in a ring.
    """
    count, real = len(load.missing), len(load.messages)
    work = load.work
    if before is not None:
        work = work._replace(rank=_ranks(_with_clocks(-before, count - real)))
    events = count + int(np.diff(work.uses.first)[work.row].sum()) + 1
    nothing = partial(np.full, fill_value=NOTHING, dtype=np.int32)
    state = State(
        load.missing.copy(), np.full(count, NOTHING, dtype=np.int64), nothing(count),
        np.zeros(count, dtype=np.int32), np.zeros(load.resources, dtype=np.int64),
        nothing(load.resources + 1), nothing(count), nothing(count), nothing(count),
        np.zeros(events, dtype=np.int64), np.zeros(events, dtype=np.int64),
    )  # fmt: skip
    with report_compilation(report, MESSAGE):
        compiled()(work, state)
    if (state.start < 0).any():
        raise ValueError("messages wait for each other in a ring")
    leads = np.flatnonzero(state.length[:real])
    leads = leads[np.argsort(state.turn[leads])]
    length = state.length[leads]
    ends = state.start[leads] + work.uses.arrival[work.row[leads] + length - 1]
    items = work.member.tolist()
    found = [
        tuple(chain.from_iterable(load.messages[item] for item in items[at : at + count]))
        for at, count in zip(work.place[leads].tolist(), length.tolist(), strict=True)
    ]
    if load.plan.problem.collective.tail is not None:
        rests = load.plan.rests
        ends += np.array([max(rests[move] for move in one) for one in found], dtype=np.int64)
    return found, int(ends.max(initial=0))


def _with_clocks(tail: NDArray[np.int64], clocks: int) -> NDArray[np.int64]:
    """Return tails with those of some releases behind them, which come before all else."""
    return np.append(tail, np.full(clocks, 1 << 62, dtype=np.int64))


def _ranks(tail: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return the place of every message: the largest first, the first of equals."""
    rank = np.empty(len(tail), dtype=np.int32)
    rank[np.argsort(-tail, kind="stable")] = np.arange(len(tail), dtype=np.int32)
    return rank


@cache
def compiled() -> Callable[[Work, State], int]:
    """Return the loop as machine code."""
    return jit(dispatch, [sys.modules[__name__], occupancy], "dispatch")

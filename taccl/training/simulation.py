"""How long a training step takes: operations overlap in streams, and collectives share edges.

Collectives that run at once share edges as fluids do. One that alone takes D picoseconds and loads
an edge for l of them needs the part l / D of that edge while it runs at full rate; the rates are
max-min fair: all rise together, up to 1, until an edge is full; those that need that edge stay,
and the others rise further. Rates are parts of :data:`FULL`, rounded down, and needs are rounded
up, so no edge ever carries more than it can; ends are rounded up. They hold until the next
collective begins or ends.

A step is counted from the beginning of its first pass to that of the next step, at the ranks that
take longest. Where two periods
in a row are equal, that is the step; else the mean of the last half. A period is one step, or as
many as the sums that are not made in every step need to repeat.
"""

import heapq
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from taccl.errors import InputError
from taccl.training.operations import COMPUTE, Call, Operation, Work, meetings_of
from taccl.units import PS_PER_US, Time

FULL = 1 << 24
"""The rate of a collective that runs alone, and the need of one that loads an edge all the time."""

MOST_NAMED = 8
"""Of operations that wait for one another, how many an error names."""

MAX_COST = 10**16
"""Picoseconds that a collective may take."""

Needs = NDArray[np.int64]
"""Of a collective: parts of each edge, of FULL, rounded up."""


class Cost(NamedTuple):
    """What a collective takes alone.

    `time`: picoseconds.
    `loads`: picoseconds for which it holds each edge, all groups that call it at once together.
    `needs`: parts of edges, as the rates need them.
    """

    time: Time
    loads: NDArray[np.int64]
    needs: Needs

    @classmethod
    def of(cls, time: Time, loads: Sequence[int]) -> Self:
        """Return the cost of a collective that takes a `time` and holds edges for `loads`.

        Raises InputError when it takes longer than any step may.
        """
        if max(time, *loads, 0) > MAX_COST:
            raise InputError(
                f"a collective takes {max(time, *loads) / PS_PER_US / 10**6:.3g} s",
                fix="send less, or over faster links",
            )  # fmt: skip
        needs = [-(-load * FULL // max(1, time)) for load in loads]
        return cls(time, np.array(loads, np.int64), np.array(needs, np.int64))


@dataclass(frozen=True, slots=True)
class Timeline:
    """When the operations of each class begin and end, in picoseconds."""

    start: tuple[tuple[Time, ...], ...]
    end: tuple[tuple[Time, ...], ...]

    @property
    def time(self) -> Time:
        """When all is over."""
        return max((max(own, default=0) for own in self.end), default=0)


def fair_rates(needs: Sequence[Needs]) -> list[int]:
    """Return the max-min fair rates of collectives, of FULL, by what each needs of every edge."""
    rates = [0] * len(needs)
    table = np.stack(needs)
    table = np.unique(table[:, table.sum(0) > FULL], axis=1)
    free = np.full(table.shape[1], FULL, np.int64)
    active = np.ones(len(needs), np.bool_)
    while active.any():
        wanted = table[active].sum(0)
        used = wanted > 0
        levels = free[used] * FULL // wanted[used]
        level = int(min(FULL, levels.min(initial=FULL)))
        full = np.zeros(len(wanted), np.bool_)
        full[used] = levels <= level
        ends = active & (table[:, full] > 0).any(1) if level < FULL else active.copy()
        for number in np.flatnonzero(ends).tolist():
            rates[number] = max(1, level)
            free -= -(-table[number] * level // FULL)
        free = np.maximum(free, 0)
        active &= ~ends
    return rates


class _Flight:
    """A collective that runs: its work left, in picoseconds times FULL, and how fast it goes."""

    __slots__ = ("begun", "kind", "left", "rate", "since", "tasks")

    def __init__(self, kind: int, left: int, tasks: Sequence[int], since: Time) -> None:
        self.kind, self.left, self.tasks = kind, left, tasks
        self.rate, self.since, self.begun = 0, since, since

    def end(self) -> Time:
        return self.since - (-self.left // self.rate)


Together = Callable[[Sequence[tuple[Cost, Time]]], Sequence[Time]]
"""From collectives that share edges, and when each begins, to when each ends."""


def simulate(
    work: Work, costs: Sequence[Cost], kinds: dict[tuple[int, int], int],
    together: Together | None = None,
) -> Timeline:  # fmt: skip
    """Return when the operations of some `work` run.

    `costs`: of the different collectives.
    `kinds`: which of them a collective is, by its meeting and the first class that takes part.
    `together`: says when collectives end that run at once; None: they share edges as fluids.

    Raises InputError when operations wait for one another for ever.
    """
    return _Run(work, costs, kinds, together).timeline()


class _Run:
    """Flat tasks of all classes, the lanes that they run in, and what has happened so far."""

    def __init__(
        self, work: Work, costs: Sequence[Cost], kinds: dict[tuple[int, int], int],
        together: Together | None,
    ) -> None:  # fmt: skip
        self.work, self.costs, self.together = work, costs, together
        self.busy_since: list[_Flight] = []
        first = [0]
        for own in work.operations:
            first.append(first[-1] + len(own))
        self.first = first
        tasks = [operation for own in work.operations for operation in own]
        self.tasks = tasks
        self.missing = [len(task.after) for task in tasks]
        self.then: list[list[int]] = [[] for _ in tasks]
        self.lane_of = [0] * len(tasks)
        self.lanes: list[list[int]] = []
        self.free_order: list[bool] = []
        self.joint: list[tuple[int, ...]] = [()] * len(tasks)
        self.kind = [-1] * len(tasks)
        names: dict[tuple[int, str], int] = {}
        by_meeting: dict[tuple[int, frozenset[int]], list[int]] = {}
        listening: list[tuple[int, tuple[int, frozenset[int]]]] = []
        meetings = meetings_of(work)
        for number, own in enumerate(work.operations):
            for place, task in enumerate(own):
                one = first[number] + place
                for other in task.after:
                    self.then[first[number] + other].append(one)
                key = number, task.stream
                if key not in names:
                    names[key] = len(self.lanes)
                    self.lanes.append([])
                    self.free_order.append(task.stream in work.by_priority)
                self.lane_of[one] = names[key]
                self.lanes[names[key]].append(one)
                meeting = meetings.get((task.meeting, number)) if task.call else None
                if meeting is not None:
                    key_ = task.meeting, meeting.classes
                    if task.listens:
                        listening.append((one, key_))
                        continue
                    self.kind[one] = kinds[task.meeting, meeting.first]
                    by_meeting.setdefault(key_, []).append(one)
        for some in by_meeting.values():
            for one in some:
                self.joint[one] = tuple(some)
        self.heard_of = {one: by_meeting[key][0] for one, key in listening}
        self.listeners: dict[int, list[int]] = {}
        self.head = [0] * len(self.lanes)
        self.busy = [False] * len(self.lanes)
        self.start = [-1] * len(tasks)
        self.ended = [-1] * len(tasks)
        self.waiting: dict[tuple[int, ...], list[tuple[int, int]]] = {}
        self.flights: list[_Flight] = []
        self.rates: dict[tuple[int, ...], list[int]] = {}
        self.queue: list[tuple[Time, int]] = []
        self.now = 0
        self.awake: list[int] = []

    def timeline(self) -> Timeline:
        """Run all, and return when."""
        for one, missing in enumerate(self.missing):
            if not missing:
                self.awake.append(one)
        left = len(self.tasks)
        while left:
            self._begin()
            ends = [flight.end() for flight in self.flights]
            if self.queue:
                ends.append(self.queue[0][0])
            if not ends:
                raise self._stuck()
            self.now = min(ends)
            while self.queue and self.queue[0][0] == self.now:
                left -= self._end(heapq.heappop(self.queue)[1])
            over = [flight for flight in self.flights if flight.end() <= self.now]
            if over:
                self.flights = [flight for flight in self.flights if flight not in over]
                for flight in over:
                    left -= sum(map(self._end, flight.tasks))
                if self.together is None:
                    self._share()
        spans = zip(self.first, self.first[1:], strict=False)
        places = [slice(*span) for span in spans]
        return Timeline(
            tuple(tuple(self.start[one]) for one in places),
            tuple(tuple(self.ended[one]) for one in places),
        )

    def _end(self, one: int) -> int:
        """Note that a task is over."""
        self.ended[one] = self.now
        for other in self.listeners.pop(one, ()):
            heapq.heappush(self.queue, (self.now, other))
        lane = self.lane_of[one]
        self.busy[lane] = False
        for other in self.then[one]:
            self.missing[other] -= 1
            if not self.missing[other]:
                self.awake.append(other)
        if not self.free_order[lane] and self.head[lane] < len(self.lanes[lane]):
            self.awake.append(self.lanes[lane][self.head[lane]])
        return 1

    def _can_run(self, one: int) -> bool:
        lane = self.lane_of[one]
        if self.missing[one] or self.busy[lane]:
            return False
        return self.free_order[lane] or self.lanes[lane][self.head[lane]] == one

    def _begin(self) -> None:
        """Begin what can: computations when they are first in their stream, collectives together.

        Those by priority are looked at last, when all that is ready now is known.
        """
        while self.awake:
            one = self.awake.pop()
            if self.start[one] >= 0 or self.missing[one]:
                continue
            if self.free_order[self.lane_of[one]]:
                tasks = self.joint[one] or (one,)
                if not any(self.missing[other] for other in tasks):
                    lanes = tuple(self.lane_of[other] for other in tasks)
                    row = self.tasks[tasks[0]].priority, tasks[0]
                    heapq.heappush(self.waiting.setdefault(lanes, []), row)
            elif all(map(self._can_run, self.joint[one] or (one,))):
                self._start(self.joint[one] or (one,))
        # All that wait for the same lanes can run as soon as the first of them can.
        heads = sorted((rows[0], lanes) for lanes, rows in self.waiting.items() if rows)
        for _, lanes in heads:
            rows = self.waiting[lanes]
            while rows and not any(self.busy[lane] for lane in lanes):
                _, first = heapq.heappop(rows)
                if self.start[first] < 0:
                    self._start(self.joint[first] or (first,))

    def _start(self, tasks: Sequence[int]) -> None:
        """Begin a computation, or a collective of several classes."""
        for one in tasks:
            lane = self.lane_of[one]
            self.start[one] = self.now
            self.busy[lane] = True
            if not self.free_order[lane]:
                self.head[lane] += 1
        kind = self.kind[tasks[0]]
        heard = self.heard_of.get(tasks[0])
        if heard is not None and self.ended[heard] < 0:
            self.listeners.setdefault(heard, []).append(tasks[0])
        elif kind < 0:
            heapq.heappush(self.queue, (self.now + self.tasks[tasks[0]].time, tasks[0]))
        elif not self.costs[kind].time:
            for one in tasks:
                heapq.heappush(self.queue, (self.now, one))
        else:
            begun = _Flight(kind, self.costs[kind].time * FULL, tasks, self.now)
            if not self.flights:
                self.busy_since = []
            self.flights.append(begun)
            self.busy_since.append(begun)
            if self.together is None:
                self._share()
            else:
                self._replay()

    def _share(self) -> None:
        """Give all collectives that run their rates."""
        key = tuple(flight.kind for flight in self.flights)
        if not key:
            return
        if key not in self.rates:
            self.rates[key] = fair_rates([self.costs[kind].needs for kind in key])
        for flight, rate in zip(self.flights, self.rates[key], strict=True):
            if rate != flight.rate:
                flight.left -= flight.rate * (self.now - flight.since)
                flight.since, flight.rate = self.now, rate

    def _replay(self) -> None:
        """Give all collectives that run their ends, by all that have begun since none ran."""
        first = self.busy_since[0].begun
        asked = [(self.costs[one.kind], one.begun - first) for one in self.busy_since]
        ends = [] if self.together is None else self.together(asked)
        for flight, end in zip(self.busy_since, ends, strict=True):
            flight.since, flight.left, flight.rate = self.now, max(0, first + end - self.now), 1

    def _holder(self, one: int) -> int:
        """Return a task that is not over, without which one that is not can't go on."""
        if self.start[one] >= 0:
            return self.heard_of[one]
        for other in self.joint[one] or (one,):
            begin = self.first[bisect_right(self.first, other) - 1]
            for before in self.tasks[other].after:
                if self.ended[begin + before] < 0:
                    return begin + before
            lane = self.lane_of[other]
            if not self.free_order[lane] or self.busy[lane]:
                ahead = next(task for task in self.lanes[lane] if self.ended[task] < 0)
                if ahead != other:
                    return ahead
        raise AssertionError("nothing holds it")

    def _stuck(self) -> InputError:
        """Return what is wrong where nothing can go on: who waits for whom."""
        way = [next(one for one, end in enumerate(self.ended) if end < 0)]
        while (held := self._holder(way[-1])) not in way:
            way.append(held)
        names = []
        for one in [*way[way.index(held) :], held][:MOST_NAMED]:
            rank = self.work.class_of.index(bisect_right(self.first, one) - 1)
            names.append(f"{self.tasks[one].name} of rank {rank}")
        return InputError(
            f"{self.tasks[held].name} of step {self.tasks[held].step} never ends: operations wait"
            f" for one another: {' for '.join(names)}",
            fix="have all ranks of a group call its collectives in the same order",
        )  # fmt: skip


WAITING = "waiting"
"""What a step is exposed to where no collective runs: slower ranks, and data."""


@dataclass(frozen=True, slots=True)
class Step:
    """What a training step takes, in picoseconds.

    `time`: of a step.
    `compute`: of passes alone, at the ranks that take longest.
    `exposed`: by group, for how long these ranks compute nothing while its collective runs, the one
    that ends last; and what they wait otherwise.
    `bound`: what no order of the same operations goes below: passes, and the fullest edge.
    `sent`: bytes that each group's collectives count, by group, in a step.
    `timeline`: when all operations ran.
    `steady`: whether steps repeat; else the time is a mean.
    """

    time: Time
    compute: Time
    exposed: Mapping[str, Time]
    bound: Time
    sent: Mapping[str, int]
    timeline: Timeline
    steady: bool = True


def played(
    work: Work, costs: Mapping[tuple[int, int], Cost], together: Together | None = None
) -> Step:
    """Return what a step of some `work` takes.

    `costs`: of the collectives, by meeting and the first class that takes part.
    `together`: says when collectives end that run at once; None: they share edges as fluids.

    Raises InputError when operations wait for one another for ever.
    """
    period = work.period
    numbers = {id(cost): cost for cost in costs.values()}
    place = {key: number for number, key in enumerate(numbers)}
    kinds = {key: place[id(cost)] for key, cost in costs.items()}
    timeline = simulate(work, tuple(numbers.values()), kinds, together)
    found = [_window(work, timeline, number) for number in range(len(work.operations))]
    windows, steady = [each[:3] for each in found], [each[3] for each in found]
    # Ranks that nothing ties to others may be ahead of them: the last ones count.
    times = [-(-(last - first) // steps) for first, last, steps in windows]
    passes = [
        sum(one.time for one in own if one.stream == COMPUTE and one.step < period) // period
        for own in work.operations
    ]
    tied = _tied(work)
    times_called: Counter[tuple[int, int]] = Counter()
    sent: dict[int, Call] = {}
    for number, own in enumerate(work.operations):
        for one in own:
            cost = costs.get((one.meeting, number))
            if one.call is not None and cost is not None and one.step < period:
                # Groups of unlike ranks call the same for themselves.
                sent[one.meeting] = one.call
                times_called[tied[number], id(cost)] += 1
    loads: dict[int, list[int]] = {}
    for (number, key), count in times_called.items():
        more = [count * load for load in numbers[key].loads.tolist()]
        known = loads.get(number, [0] * len(more))
        loads[number] = [one + other for one, other in zip(known, more, strict=True)]
    slowest = max(range(len(times)), key=lambda number: (times[number], passes[number], -number))
    first, last, steps = windows[slowest]
    gaps = _exposed(work.operations[slowest], timeline, slowest, (first, last))
    fullest = max((max(load, default=0) for load in loads.values()), default=0)
    bytes_: Counter[str] = Counter()
    for call in sent.values():
        bytes_[call.group] += call.size
    return Step(
        times[slowest], max(passes), {group: time // steps for group, time in gaps.items()},
        max(*passes, fullest // period),
        {group: size // period for group, size in bytes_.items()}, timeline, steady[slowest],
    )  # fmt: skip


def _tied(work: Work) -> list[int]:
    """Return for each class the first of those that keep step with it: they meet, or others do."""
    tied = list(range(len(work.operations)))
    for meeting in set(meetings_of(work).values()):
        roots = {tied[number] for number in meeting.classes}
        tied = [min(roots) if root in roots else root for root in tied]
    return tied


def _window(work: Work, timeline: Timeline, number: int) -> tuple[Time, Time, int, bool]:
    """Return from when to when steps of a class are counted, how many, and whether they repeat."""
    period = work.period
    if len({one.step for one in work.operations[number] if one.stream == COMPUTE}) <= 2 * period:
        return 0, max(timeline.end[number], default=0), work.steps, True
    marks: dict[int, Time] = {}
    for one, begin in zip(work.operations[number], timeline.start[number], strict=True):
        if one.stream == COMPUTE:
            marks.setdefault(one.step, begin)
    begins = list(marks.values())
    spans = [begins[n] - begins[n - period] for n in range(period, len(begins))]
    if len(spans) > 1 and spans[-1] == spans[-2]:
        return begins[-1 - period], begins[-1], period, True
    half = max(period, len(begins) // 2 // period * period)
    return begins[-1 - half], begins[-1], half, False


def _exposed(
    own: Sequence[Operation], timeline: Timeline, number: int, window: tuple[Time, Time]
) -> dict[str, Time]:
    """Return by group how long a class computes nothing between two times."""
    first, last = window
    start, end = timeline.start[number], timeline.end[number]
    calls = sorted(
        (start[n], end[n], one.call.group)
        for n, one in enumerate(own)
        if one.call is not None and start[n] < last and end[n] > first
    )
    spans = sorted(
        (start[n], end[n]) for n, one in enumerate(own)
        if one.stream == COMPUTE and start[n] < last and end[n] > first
    )  # fmt: skip
    found: Counter[str] = Counter()
    running: list[tuple[Time, int]] = []  # the one that ends last is first
    begun = 0
    now = first
    for begin, ends in [*spans, (last, last)]:
        while now < begin:
            while begun < len(calls) and calls[begun][0] <= now:
                heapq.heappush(running, (-calls[begun][1], begun))
                begun += 1
            while running and -running[0][0] <= now:
                heapq.heappop(running)
            group = calls[running[0][1]][2] if running else WAITING
            ahead = [begin, *(call[0] for call in calls[begun : begun + 1])]
            until = min([*ahead, *(-row[0] for row in running[:1])])
            found[group] += until - now
            now = until
        now = max(now, ends)
    return dict(found)

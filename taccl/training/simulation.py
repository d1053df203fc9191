"""How operations overlap: streams, collectives that wait for all their ranks, and shared edges.

Collectives that run at once share edges as fluids do. One that alone takes D picoseconds and loads
an edge for l of them needs the part l / D of that edge while it runs at full rate; the rates are
max-min fair: all rise together, up to 1, until an edge is full; those that need that edge stay,
and the others rise further. Rates are parts of :data:`FULL`, rounded down, and needs are rounded
up, so no edge ever carries more than it can; ends are rounded up. They hold until the next
collective begins or ends.
"""

import heapq
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from taccl.errors import InputError
from taccl.training.operations import Work, meetings_of
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

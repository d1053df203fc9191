"""How long a training step takes: its period once steps repeat, what of it is exposed, its bound.

A step is counted from the beginning of its first pass to that of the next step, at the ranks that
take longest. Where two periods
in a row are equal, that is the step; else the mean of the last half. A period is one step, or as
many as the sums that are not made in every step need to repeat.
"""

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from taccl.training.operations import COMPUTE, Call, Operation, Work, meetings_of
from taccl.training.simulation import Cost, Timeline, Together, simulate
from taccl.units import Time

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

"""Ways to make messages of a plan's moves, each tried once and the best of them varied.

A way is a layout of scratch and limits for messages made while they are dispatched
(flow_messages.py), or runs cut into pieces of one length before. What is varied is how long the
way left of every chunk is taken to be: which goes first.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from taccl.schedule import Decisions, Schedule, retime
from taccl.slots import LAYOUTS
from taccl.synth.batching import Adjacency
from taccl.synth.clock import Clock
from taccl.synth.dispatch import dispatched, load_of
from taccl.synth.flow_messages import Limits, Runs, gathered
from taccl.synth.ordering import decide
from taccl.synth.plan import Plan
from taccl.synth.problem import Options
from taccl.units import Time

VARIED = 3
"""Ways that are varied, the best of all."""

PATIENCE_BATCHED = 10
"""Variations tried since the last that was better."""

COUNTED_MOVES = 30_000
"""Moves in all that is tried where work is counted instead of time."""

WHOLE = 1 << 30
"""A length that no message has."""

LENGTHS = (WHOLE, 8, 4, 2)
ELSEWHERE = (WHOLE, 1)
"""Lengths of messages that hold no busy resource."""

Noise = NDArray[np.float64]
Way = Callable[[Noise], Decisions | None]
"""Factors of the way left of every move, to decisions; None where messages wait in a ring."""


def scheduled(
    plans: Iterable[Plan], options: Options, clock: Clock
) -> Iterator[tuple[Plan, Schedule]]:
    """Yield schedules of plans without symmetry, and whose each is.

    All ways are tried while there is time for it (half of the clock's), then the best are varied.
    """
    half, work = clock.share(0.5), 0
    tried: list[tuple[Time, int, Plan, Way]] = []
    best = 1 << 62
    for plan, least, way in _in_turn(plans, options):
        if tried and (not half.left or (options.deterministic and work > COUNTED_MOVES)):
            break
        if least >= best:
            continue
        work += len(plan.moves)
        schedule = _timed(plan, way, np.ones(len(plan.moves)))
        if schedule is not None:
            best = min(best, schedule.makespan)
            tried.append((schedule.makespan, len(tried), plan, way))
            yield plan, schedule
            if schedule.makespan <= options.floor:
                return
    random = np.random.default_rng(options.seed)
    for makespan, _, plan, way in sorted(tried, key=lambda one: one[:2])[:VARIED]:
        best, since = makespan, 0
        while since < PATIENCE_BATCHED and best > options.floor and clock.left:
            work += len(plan.moves)
            if options.deterministic and work > COUNTED_MOVES:
                break
            since += 1
            noise = random.uniform(1 - NOISE, 1 + NOISE, len(plan.moves))
            schedule = _timed(plan, way, noise)
            if schedule is not None and schedule.makespan < best:
                best, since = schedule.makespan, 0
                yield plan, schedule


def _in_turn(plans: Iterable[Plan], options: Options) -> Iterator[tuple[Plan, Time, Way]]:
    """Yield the first ways of each plan as it comes, then one way of each after the other.

    With each comes its plan, and the least time along the plan's routes.
    """
    series = []
    for plan in plans:
        series.append(
            zip(
                itertools.repeat(plan), itertools.repeat(least_time(plan)), _ways(plan, options),
                strict=False,
            )
        )  # fmt: skip
        yield from itertools.islice(series[-1], len(LAYOUTS))
    for row in itertools.zip_longest(*series):
        yield from (one for one in row if one is not None)


def least_time(plan: Plan) -> Time:
    """Return what no messages along a plan's routes can beat: one for each link."""
    held: dict[int, Time] = defaultdict(int)
    for link, chunks in Counter(move.link for move in plan.moves).items():
        for resource, time in plan.costs(link, chunks)[1]:
            held[resource] += time
    return max(held.values(), default=0)


def _timed(plan: Plan, way: Way, noise: Noise) -> Schedule | None:
    decisions, problem = way(noise), plan.problem
    if decisions is None:
        return None
    return retime(problem.collective, problem.group, problem.chunk_size, decisions)


def _ways(plan: Plan, options: Options) -> Iterator[Way]:
    """Yield the ways for a plan, those of every layout in turn."""
    runs: list[Runs] = []
    for busiest, others in itertools.product(LENGTHS, ELSEWHERE):
        for number, layout in enumerate(LAYOUTS):
            if number and not runs[0].adjacency.relays:
                break
            if number == len(runs):
                runs.append(Runs(Adjacency(plan, layout)))
            yield _growing(runs[number], Limits(busiest, others))
    for length in LENGTHS:
        yield from (_cut(one.adjacency, length, options) for one in runs)


def _growing(runs: Runs, limits: Limits) -> Way:
    plan = runs.plan
    tail = np.array(plan.tail_time, dtype=np.float64)

    def way(noise: Noise) -> Decisions | None:
        before = (-tail * noise).astype(np.int64).tolist()
        return decide(plan, gathered(runs, limits, before))

    return way


def _cut(adjacency: Adjacency, length: int, options: Options) -> Way:
    plan = adjacency.plan

    def way(noise: Noise) -> Decisions | None:
        load = load_of(plan, adjacency.pieces(length))
        varied = np.array([max(noise[list(message)]) for message in load.messages])
        try:
            before = (-load.tail * varied).astype(np.int64)
            return dispatched(load, options.report, before)[0]
        except ValueError:
            return None

    return way

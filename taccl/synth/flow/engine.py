"""Engine ``flow``: routes from a multi-commodity flow, for chunks that each go to one rank.

The linear program is in program.py, which of its optima are tried in routes.py, what
makes whole chunks of them in routes.py, and what few chunks do instead in insertion_scheduler.py.
Which message goes first is then list scheduling, with the longest way left first
(list_scheduler.py). Messages of several chunks are made on the way, chunk by chunk and not orbit by
orbit: a rotation carries neighbours past the end of a buffer, where they are none.

Messages of several chunks, made while they are dispatched: whatever is ready travels together.

A message that waits for all of its chunks leaves its link idle; one that takes what has arrived
by then does not, and grows by itself where a link is busy. So time goes from event to event as in
list_scheduler_loop.py, and each time a link is free the chunk with the longest way left takes along
those beside it, at both ends, that are there. What ends at a link's head lies elsewhere than what
is sent on from there, so it comes last, apart, and nothing has to wait for it.

Ways to make messages of a plan's moves, each tried once and the best of them varied.

A way is a layout of scratch and limits for messages made while they are dispatched
or runs cut into pieces of one length before. What is varied is how long the
way left of every chunk is taken to be: which goes first.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from taccl.collectives.slots import LAYOUTS
from taccl.errors import NoScheduleError, OutOfTimeError
from taccl.model.problem import Options, Problem, Result, Status
from taccl.model.schedule import Decisions, Schedule, retime
from taccl.synth.flow.insertion_scheduler import inserted
from taccl.synth.flow.program import Flow
from taccl.synth.flow.routes import (
    Question,
    Row,
    first_flow,
    flow_by_near_doors,
    flow_of_whole_chunks,
    question_of,
    rows_of_flow,
    rows_of_shortest_ways,
    unfolded,
    with_doors,
)
from taccl.synth.list_scheduler import Load, Run, dispatched, growing_load_of, load_of
from taccl.synth.plan import Adjacency, Plan, plan_decisions, rows_of
from taccl.synth.staged.engine import MAX_BATCHED, ordered
from taccl.timing.deadline import Deadline
from taccl.topology.symmetry import make_group
from taccl.units import Time
from taccl.verify import verify


@dataclass(frozen=True, slots=True)
class Limits:
    """How long messages may grow.

    Parameters
    ----------
    busiest, others
        Chunks in a message over the busiest resources, and over the rest.
    """

    busiest: int
    others: int


def _busiest(plan: Plan) -> frozenset[int]:
    """Return the links that hold a resource at least nine tenths as long as any is held."""
    load: dict[int, Time] = defaultdict(int)
    for move in plan.moves:
        for resource, held in plan.costs(move.link, 1)[1]:
            load[resource] += held
    most = max(load.values(), default=0)
    heavy = {resource for resource, held in load.items() if 10 * held >= 9 * most}
    return frozenset(
        move.link
        for move in plan.moves
        if any(resource in heavy for resource, _ in plan.costs(move.link, 1)[1])
    )


def growing(adjacency: Adjacency, limits: Limits) -> Load:
    """Return the moves of a plan, to be dispatched in messages that grow from what is ready."""
    plan, busiest = adjacency.plan, _busiest(adjacency.plan)
    return growing_load_of(plan, [
        Run(run, reach, limits.busiest if plan.moves[run[0]].link in busiest else limits.others)
        for run, reach in adjacency.reaches
    ])  # fmt: skip


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
    plans: Iterable[Plan], options: Options, clock: Deadline
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
        for resource, time_ in plan.costs(link, chunks)[1]:
            held[resource] += time_
    return max(held.values(), default=0)


def _timed(plan: Plan, way: Way, noise: Noise) -> Schedule | None:
    decisions, problem = way(noise), plan.problem
    if decisions is None:
        return None
    return retime(problem.collective, problem.group, problem.chunk_size, decisions)


def _ways(plan: Plan, options: Options) -> Iterator[Way]:
    """Yield the ways for a plan, those of every layout in turn."""
    layouts: list[Adjacency] = []
    for busiest, others in itertools.product(LENGTHS, ELSEWHERE):
        for number, layout in enumerate(LAYOUTS):
            if number and not layouts[0].relays:
                break
            if number == len(layouts):
                layouts.append(Adjacency(plan, layout))
            yield _way(growing(layouts[number], Limits(busiest, others)), options)
    for length in LENGTHS:
        for adjacency in layouts:
            yield _way(load_of(plan, adjacency.pieces(length)), options)


def _way(load: Load, options: Options) -> Way:
    def way(noise: Noise) -> Decisions | None:
        varied = np.array([max(noise[list(message)]) for message in load.messages])
        try:
            return dispatched(load, options.report, (-load.tail * varied).astype(np.int64))[0]
        except ValueError:
            return None

    return way


NOISE = 0.3
"""How much the longest way left is varied."""

PATIENCE = 20
"""Orders tried since the last that was better."""

COUNTED = 60_000
"""Sends, over all orbits, up to which messages are made where work is counted instead of time."""

MADE = 1.5e-4
"""Seconds for each send until all are in messages, at most."""

MAX_ORDERED = 4000
"""Sends of representatives up to which they are ordered by every rule of the staged engine."""

MAX_ARCS = 40_000
"""Ranks times arcs up to which the flow is solved without symmetry as well."""


def flow(problem: Problem, options: Options) -> Result:
    """Route a point-to-point collective by an optimal flow, and order it.

    Raises
    ------
    NoScheduleError
        When some chunk has several targets or sources, or no path.
    """
    clock = options.begin(options.solver_share)
    best: Schedule | None = None
    least = (1 << 62, 0)
    for plan, schedule in _found(problem, options, clock):
        cost = (schedule.makespan, _connections(plan))
        if cost < least and (problem.logical.name is None or not verify(schedule, problem.logical)):
            best, least = schedule, cost
    if best is None:
        raise NoScheduleError(
            "the flow's routes do not respect the sketch", fix="use --engine taccl or auto"
        )
    status = Status.FEASIBLE
    if options.stop.is_set():
        status = Status.INTERRUPTED
    elif best.makespan <= options.floor:
        status = Status.OPTIMAL
    return Result(status, best, (), "flow", clock.spent)


def _found(problem: Problem, options: Options, clock: Deadline) -> Iterator[tuple[Plan, Schedule]]:
    """Yield schedules of single chunks, and, where these may travel together, of messages.

    With each comes the plan that it orders.
    """
    question = question_of(problem)
    first: Flow | None = None
    try:
        first = first_flow(question, clock.share(0.5))
        rows = rows_of_flow(question, first, clock)
    except OutOfTimeError:
        options.report("the flow was not solved in time: every chunk takes a fastest way")
        rows = rows_of_shortest_ways(question)
    plan = plan_decisions(problem, rows)
    best: Schedule | None = None
    # Where chunks may travel together, most is won there.
    for found in _singly(plan, options, clock.share(0.2) if options.batch else clock):
        best = found[1] if best is None or found[1].makespan < best.makespan else best
        yield found
    if best is None or not options.batch or best.makespan <= options.floor:
        return
    sends = len(plan.moves) * len(problem.group)
    small = sends <= COUNTED if options.deterministic else MADE * sends < clock.left
    if small and clock.left:
        free = replace(problem, group=make_group(problem.topology, ()))
        others = [] if first is None else _routes(question, first, clock.share(0.5))
        plans = (plan_decisions(free, unfolded(*one)) for one in chain([(problem, rows)], others))
        yield from scheduled(plans, options, clock.share(0.6))
    if len(plan.moves) <= MAX_ORDERED and sends <= MAX_BATCHED and clock.left:
        yield from ((plan, one.schedule) for one in ordered(plan, options, clock))


def _singly(plan: Plan, options: Options, clock: Deadline) -> Iterator[tuple[Plan, Schedule]]:
    """Yield schedules of single chunks: of a plan, and of others where a gap stays.

    Few chunks get routes and times together then. Whole chunks can't always share links as the
    flow does: so a flow of whole chunks is looked for, with symmetry and without.
    """
    problem = plan.problem
    goal = max(options.floor, options.fixed_floors.get(problem.collective.name, 0))
    best = 1 << 62
    for one in _in_order(plan, options, clock, goal):
        best = one.makespan
        yield plan, one
    if 1000 * best > 1001 * goal:
        for found in _one_by_one(problem, options, clock, goal):
            best = min(best, found[1].makespan)
            yield found
    others = [(problem, flow_of_whole_chunks)]
    arcs = int(problem.logical.allowed.sum()) * problem.topology.num_ranks
    if len(problem.group) > 1 and arcs <= MAX_ARCS:
        free = replace(problem, group=make_group(problem.topology, ()))
        others += [(free, first_flow), (free, flow_of_whole_chunks)]
    for other, flow_of in others:
        if 1000 * best > 1001 * goal:
            for found in _along(other, flow_of, options, clock, goal):
                best = min(best, found[1].makespan)
                yield found
    if problem.logical.connections_per_rank is not None:
        for _, narrow in with_doors(problem):
            yield from _along(narrow, first_flow, options, clock, goal)


def _one_by_one(
    problem: Problem, options: Options, clock: Deadline, goal: Time
) -> Iterator[tuple[Plan, Schedule]]:
    """Yield schedules of single chunks that were inserted one by one."""
    free = replace(problem, group=make_group(problem.topology, ()))
    for decisions in inserted(free, options, clock, goal):
        found = retime(free.collective, free.group, free.chunk_size, decisions)
        yield plan_decisions(free, rows_of(decisions)), found


def _along(
    problem: Problem,
    flow_of: Callable[[Question, Deadline], Flow],
    options: Options,
    clock: Deadline,
    goal: Time,
) -> Iterator[tuple[Plan, Schedule]]:
    """Yield schedules of single chunks along another flow, if there is one and time for it."""
    with suppress(NoScheduleError):
        question = question_of(problem)
        rows = rows_of_flow(question, flow_of(question, clock), clock)
        plan = plan_decisions(problem, rows)
        yield from ((plan, one) for one in _in_order(plan, options, clock, goal))


def _routes(
    question: Question, first: Flow, clock: Deadline
) -> Iterator[tuple[Problem, list[Row]]]:
    """Yield other sets of routes, each with the problem whose representatives they are for."""
    narrow = (problem for _, problem in with_doors(question.problem))
    for problem in chain([question.problem], narrow):
        if not clock.left:
            return
        try:
            asked = question if problem is question.problem else question_of(problem)
            least = first if asked is question else first_flow(asked, clock)
            yield problem, rows_of_flow(asked, flow_by_near_doors(asked, least, clock), clock)
        except NoScheduleError:  # no way through these doors, or no time for them
            continue


def _connections(plan: Plan) -> int:
    """Return how many links the representatives of a plan take, times their images."""
    return len({move.link for move in plan.moves}) * len(plan.problem.group)


def _in_order(plan: Plan, options: Options, clock: Deadline, goal: Time) -> Iterator[Schedule]:
    """Yield schedules of single chunks: the longest way left first, and variations of that.

    Each is better than the one before; they end at the goal, or when nothing more is won.
    """
    problem = plan.problem
    load = load_of(plan, [(number,) for number in range(len(plan.moves))])
    random = np.random.default_rng(options.seed)
    tail = load.tail.astype(np.float64)
    best, since = 1 << 62, 0
    while since < PATIENCE and best > goal and (best == 1 << 62 or clock.left):
        noise = random.uniform(1 - NOISE, 1 + NOISE, len(tail)) if best < 1 << 62 else 1.0
        decisions, end = dispatched(load, options.report, (-tail * noise).astype(np.int64))
        since += 1
        if end < best:
            best, since = end, 0
            yield retime(problem.collective, problem.group, problem.chunk_size, decisions)

"""Engine ``flow``: routes from a multi-commodity flow, for chunks that each go to one rank.

The linear program is in flow_program.py, which of its optima are tried in flow_routes.py, what
makes whole chunks of them in flow_rounding.py, and what few chunks do instead in flow_inserted.py.
Which message goes first is then list scheduling, with the longest way left first (dispatch.py).
Messages of several chunks are made on the way (flow_messages.py), chunk by chunk and not orbit by
orbit: a rotation carries neighbours past the end of a buffer, where they are none.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import chain

import numpy as np

from taccl.errors import NoScheduleError, OutOfTimeError
from taccl.schedule import Schedule, retime
from taccl.symmetry import make_group
from taccl.synth.clock import Clock
from taccl.synth.dispatch import dispatched, load_of
from taccl.synth.flow_inserted import inserted
from taccl.synth.flow_program import Flow
from taccl.synth.flow_routes import (
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
from taccl.synth.flow_ways import scheduled
from taccl.synth.plan import Plan, plan_decisions, rows_of
from taccl.synth.problem import Options, Problem, Result, Status
from taccl.synth.staged import MAX_BATCHED, ordered
from taccl.units import Time
from taccl.verify import verify

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
    began = time.monotonic()
    clock = Clock(began + options.time_limit, options)
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
    return Result(status, best, (), "flow", time.monotonic() - began)


def _found(problem: Problem, options: Options, clock: Clock) -> Iterator[tuple[Plan, Schedule]]:
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


def _singly(plan: Plan, options: Options, clock: Clock) -> Iterator[tuple[Plan, Schedule]]:
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
    problem: Problem, options: Options, clock: Clock, goal: Time
) -> Iterator[tuple[Plan, Schedule]]:
    """Yield schedules of single chunks that were inserted one by one."""
    free = replace(problem, group=make_group(problem.topology, ()))
    for decisions in inserted(free, clock, goal, options.seed):
        found = retime(free.collective, free.group, free.chunk_size, decisions)
        yield plan_decisions(free, rows_of(decisions)), found


def _along(
    problem: Problem,
    flow_of: Callable[[Question, Clock], Flow],
    options: Options,
    clock: Clock,
    goal: Time,
) -> Iterator[tuple[Plan, Schedule]]:
    """Yield schedules of single chunks along another flow, if there is one and time for it."""
    with suppress(NoScheduleError):
        question = question_of(problem)
        rows = rows_of_flow(question, flow_of(question, clock), clock)
        plan = plan_decisions(problem, rows)
        yield from ((plan, one) for one in _in_order(plan, options, clock, goal))


def _routes(question: Question, first: Flow, clock: Clock) -> Iterator[tuple[Problem, list[Row]]]:
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


def _in_order(plan: Plan, options: Options, clock: Clock, goal: Time) -> Iterator[Schedule]:
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

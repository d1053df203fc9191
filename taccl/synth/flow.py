"""Engine ``flow``: routes from a multi-commodity flow, for chunks that each go to one rank.

The linear program is in flow_program.py, what makes whole chunks of it in flow_rounding.py. Which
message goes first is then list scheduling, with the longest way left first (dispatch.py); messages
of several chunks are looked for as in the staged engine.
"""

import time
from collections.abc import Iterator

import numpy as np

from taccl.errors import NoScheduleError
from taccl.schedule import Schedule, retime
from taccl.synth.arcs import arcs_of, wanted_of
from taccl.synth.clock import Clock
from taccl.synth.dispatch import dispatched, load_of
from taccl.synth.flow_program import Net, commodities_of, optimal_flow, peeled
from taccl.synth.flow_rounding import rounded
from taccl.synth.plan import Plan, plan_decisions
from taccl.synth.problem import Options, Problem, Result, Status
from taccl.synth.staged import MAX_BATCHED, ordered
from taccl.verify import verify

NOISE = 0.3
"""How much the longest way left is varied."""

PATIENCE = 20
"""Orders tried since the last that was better."""


def flow(problem: Problem, options: Options) -> Result:
    """Route a point-to-point collective by an optimal flow, and order it.

    Raises
    ------
    NoScheduleError
        When some chunk has several targets or sources, or no path.
    OutOfTimeError
        When the program is not solved in time.
    """
    began = time.monotonic()
    clock = Clock(began + options.time_limit, options)
    plan = plan_decisions(problem, routes_of(problem, clock))
    found = list(_in_order(plan, options, clock))
    if options.batch and len(plan.moves) * len(problem.group) <= MAX_BATCHED and clock.left:
        found += [candidate.schedule for candidate in ordered(plan, options, clock)]
    if problem.logical.name is not None:
        found = [schedule for schedule in found if not verify(schedule, problem.logical)]
    if not found:
        raise NoScheduleError(
            "the flow's routes do not respect the sketch", fix="use --engine taccl or auto"
        )
    best = min(found, key=lambda schedule: schedule.makespan)
    status = Status.FEASIBLE
    if options.stop.is_set():
        status = Status.INTERRUPTED
    elif best.makespan <= options.floor:
        status = Status.OPTIMAL
    return Result(status, best, (), "flow", time.monotonic() - began)


def _in_order(plan: Plan, options: Options, clock: Clock) -> Iterator[Schedule]:
    """Yield schedules of single chunks: the longest way left first, and variations of that.

    Each is better than the one before; they end at the bound, or when nothing more is won.
    """
    problem = plan.problem
    load = load_of(plan, [(number,) for number in range(len(plan.moves))])
    goal = max(options.floor, options.fixed_floors.get(problem.collective.name, 0))
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


def routes_of(problem: Problem, clock: Clock) -> list[tuple[int, int, bool]]:
    """Return the (chunk, link, reduce) rows of the routes of an optimal flow.

    Raises
    ------
    NoScheduleError
        When some chunk has several targets or sources, or no path.
    OutOfTimeError
        When the program is not solved in time.
    """
    collective = problem.collective
    arcs = arcs_of(problem)
    wanted = wanted_of(arcs)
    alone = (wanted.roots.sum(axis=1) == 1) & (wanted.targets.sum(axis=1) <= 1)
    if collective.reduces or not alone.all():
        raise NoScheduleError(
            f"flow does not exist for {collective.name}: its chunks do not each go from one rank"
            " to one other",
            fix="use --engine guided or auto",
        )
    turned = commodities_of(wanted, turned=True)
    commodities = commodities_of(wanted, turned=False)
    backwards = len(turned) < len(commodities)
    if backwards:
        commodities = turned
    if not commodities:
        return []
    network = Net(arcs, backwards=backwards)
    amounts = optimal_flow(network, wanted, commodities, clock.left)
    ways = rounded(network, list(peeled(network, commodities, amounts)), clock)
    rows = []
    for row, way in ways:
        chunk = int(wanted.chunk[row])
        taken = reversed(way) if backwards else way
        rows += [(chunk, int(arcs.link[arc]), False) for arc in taken]
    return rows

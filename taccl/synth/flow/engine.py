"""Engine ``flow``: routes that share all links as an optimal flow does, then list scheduling.

Chunks that each go from one rank to one other take paths of a multi-commodity flow. Those that are
copied on the way, or summed, take trees that share the links as a packing of trees does
(:func:`taccl.prices.trees.whole_trees`); an AllReduce has two for each, one played backwards. A
program whose chunks are cut into slices runs as fast as the busiest link, however deep they are.

The linear program is in program.py; which of its optima are tried, and what makes whole chunks of
them, in routes.py; what few chunks do instead in insertion_scheduler.py. Which message goes first
is then list scheduling, with the longest way left first (list_scheduler.py).

Messages of several chunks are made while they are dispatched, chunk by chunk and not orbit by
orbit: a rotation carries neighbours past the end of a buffer, where they are none. A message that
waits for all of its chunks leaves its link idle; one that takes what has arrived by then does not,
and grows by itself where a link is busy. So each time a link is free, the chunk with the longest
way left takes along those beside it, at both ends, that are there. What ends at a link's head lies
elsewhere than what is sent on from there, so it comes last, apart, and nothing has to wait for it.
Messages may also be runs that were cut into pieces of one length before. Each policy (a layout of
scratch, and limits or a length) is tried once, and the best are tried again with the longest way
left of every chunk varied at random.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.collectives.slots import LAYOUTS
from taccl.errors import NoScheduleError, OutOfTimeError
from taccl.model.problem import Options, Problem, Result, reduces_and_spreads, result_of
from taccl.model.routes import arcs_of, wanted_of
from taccl.model.schedule import Schedule, retime
from taccl.prices.trees import Phases, whole_trees
from taccl.synth.flow.insertion_scheduler import inserted
from taccl.synth.flow.program import LARGE, Flow, FlowInstance, flow_instance, optimal_flow
from taccl.synth.flow.routes import (
    Row,
    flow_by_near_gateways,
    rows_of_fastest_paths,
    rows_of_flow,
    unfolded,
    with_fewer_gateways,
)
from taccl.synth.list_scheduler import Load, Run, dispatched, growing_load_of, load_of
from taccl.synth.plan import Adjacency, Plan, plan_decisions, rows_of, rows_of_trees
from taccl.timing.deadline import Deadline
from taccl.units import Time
from taccl.verify import verify

VARIED = 3
"""Policies that are tried with noise, the best of all."""

PATIENCE, PATIENCE_BATCHED = 100, 10
"""Variations tried since the last that was better, of single chunks and of messages."""

NOISE = 0.3
"""How much the longest way left is varied, and of the best time, how much later a chunk comes."""

EVENER = 0.99
"""Times what the busiest resource is held with symmetry: trees without it must hold it for less."""

WHOLLY, SOME = 8, 1 / 20
"""Variations that are all of all ways, or of all chunks; then two of every four are of so large a
part of them."""

COUNTED_MOVES = 30_000
"""Moves in all that is tried where work is counted instead of time."""

WHOLE = 1 << 30
"""A length that no message has."""

LENGTHS = (WHOLE, 8, 4, 2)
ELSEWHERE = (WHOLE, 1)
"""Lengths of messages that hold no busy resource."""

COUNTED = 60_000
"""Sends, over all orbits, up to which messages are made where work is counted instead of time."""

MADE = 1.5e-4
"""Seconds for each send until all are in messages, at most."""

MOST_PAIRS = 2_000_000
"""Pairs of a chunk and an arc up to which trees are packed."""

MOST_SOLVED = 2_000_000
"""Pairs of a commodity and an arc above which no program is made where fastest ways were found."""

MAX_ARCS = 40_000
"""Ranks times arcs up to which the flow is solved without symmetry as well."""

Factors = NDArray[np.float64]
Policy = Callable[[Factors], Schedule | None]
"""Factors of the way left of every move, to a schedule; None where messages wait in a cycle."""


def flow(problem: Problem, options: Options) -> Result:
    """Route a `problem` by an optimal flow or packing, and order it.

    `options`: the time limit, the bounds and what is told on the way.

    Raises NoScheduleError when some chunk has no path, or trees are too many to look for.
    """
    clock = options.begin(options.solver_share)
    best: Schedule | None = None
    least = (1 << 62, 0)
    found = _found if is_point_to_point(problem) else _along_trees
    for plan, schedule in found(problem, options, clock):
        connections = len({move.link for move in plan.moves}) * len(plan.problem.group)
        cost = (options.expects(schedule), connections)
        if cost < least and (problem.logical.name is None or not verify(schedule, problem.logical)):
            alone = best is None and not (options.known or options.deterministic)
            if alone and options.score is not None:
                # So that there is something if time is up before the end.
                options.score(schedule)
            best, least = schedule, cost
    if best is None:
        raise NoScheduleError(
            "the flow's routes do not respect the sketch", fix="use --engine taccl or auto"
        )
    return result_of("flow", best, options, clock.spent)


def is_point_to_point(problem: Problem) -> bool:
    """Tell whether each chunk of a `problem` goes from one rank to one other."""
    collective = problem.collective
    return not collective.reduces and all(
        len(ends) <= 1
        for chunk in problem.representatives
        for ends in (collective.sources(chunk), collective.targets(chunk))
    )


def trees_are_alike(problem: Problem) -> bool:
    """Tell whether chunks of a `problem` take trees which all load the same ports.

    So they do where each rank has one port inside its server.
    """
    if is_point_to_point(problem):
        return False
    links, server = problem.topology.links, np.array(problem.topology.server_of)
    rows = np.flatnonzero(problem.logical.allowed)
    rows = rows[server[links.src[rows]] == server[links.dst[rows]]]
    ports = np.unique(links.edge_ids[links.edge_start[rows]])
    return len(ports) == len(np.unique(links.src[rows]))


def _along_trees(
    problem: Problem, options: Options, clock: Deadline
) -> Iterator[tuple[Plan, Schedule]]:
    """Yield schedules of single chunks along trees, and what plan each is of.

    First of the representatives, then of all chunks, if these share the links more evenly, and as
    long as they are no slower; then again of the representatives.

    Raises NoScheduleError when they are too many.
    """
    sums = problem.collective.reduces
    ways = (True, False) if reduces_and_spreads(problem.collective) else (sums,)
    busiest, least = 0, 0
    first: Plan | None = None
    for one in (problem, problem.without_symmetry)[: 1 + (len(problem.group) > 1)]:
        phases = [(arcs, wanted_of(arcs)) for arcs in (arcs_of(one, reverse=turn) for turn in ways)]
        if sum(len(arcs) * len(wanted.chunk) for arcs, wanted in phases) > MOST_PAIRS:
            if one is problem:
                raise NoScheduleError(
                    "left out: so many trees take too long to look for",
                    fix="use fewer --chunks, or --engine guided",
                )
            return
        for number, (plan, schedule) in enumerate(_packed(one, phases, options, clock.share(0.5))):
            yield plan, schedule
            held = max(schedule.edge_busy)
            if one is problem:
                first, busiest, least = plan, held, schedule.makespan
            elif first and (schedule.makespan > least if number else held >= EVENER * busiest):
                again = replace(options, seed=options.seed + 1)
                yield from _in_order(first, again, clock)  # it has fewer moves
                return


def _packed(
    problem: Problem, phases: Phases, options: Options, clock: Deadline
) -> Iterator[tuple[Plan, Schedule]]:
    """Yield schedules along a packing of trees, of single chunks and of messages.

    `phases` are the arcs of a `problem`, and what is wanted of them.

    Raises NoScheduleError when some target can't be reached.
    """
    rows: list[Row] = []
    packed = whole_trees(phases, clock.share(0.4), options.seed)
    for (arcs, wanted), trees in zip(phases, packed, strict=True):
        hops = [
            (chunk, link)
            for chunk, tree in zip(wanted.chunk.tolist(), trees, strict=True)
            for link in arcs.link[tree].tolist()
        ]
        rows += rows_of_trees(problem, hops, reverse=arcs.reverse)
    plan = plan_decisions(problem, rows)
    yield from _in_order(plan, options, clock.share(0.5))
    if options.batch and len(problem.group) == 1:
        yield from scheduled([plan], options, clock)


def _found(problem: Problem, options: Options, clock: Deadline) -> Iterator[tuple[Plan, Schedule]]:
    """Yield schedules of single chunks, and, where these may travel together, of messages.

    With each comes the plan that it orders.
    """
    instance, rows = flow_instance(problem), list[Row]()
    if not options.batch and len(instance.arcs) * len(instance.commodities) > LARGE:
        # Where ranks are alike, no program is needed: fastest ways meet the bound.
        rows = rows_of_fastest_paths(instance)
        plan = plan_decisions(problem, rows)
        for found in _in_order(plan, options, clock.share(0.25)):
            yield found
            if not clock.left or 1000 * found[1].makespan <= 1001 * goal_of(problem, options):
                return
        if len(instance.arcs) * len(instance.commodities) > MOST_SOLVED:
            return
    first: Flow | None = None
    try:
        first = optimal_flow(instance, clock.share(0.5))
        rows = rows_of_flow(instance, first, clock)
    except OutOfTimeError:
        options.report("the flow was not solved in time: every chunk takes a fastest way")
        rows = rows or rows_of_fastest_paths(instance)
    plan = plan_decisions(problem, rows)
    best = 1 << 62
    # Where chunks may travel together, most is won there.
    for found in _singly(plan, options, clock.share(0.2) if options.batch else clock):
        best = min(best, found[1].makespan)
        yield found
    if not options.batch or best == 1 << 62 or best <= options.floor:
        return
    sends = len(plan.moves) * len(problem.group)
    small = sends <= COUNTED if options.deterministic else MADE * sends < clock.left
    if small and clock.left:
        free = problem.without_symmetry
        others = [] if first is None else _routes(instance, first, clock.share(0.5))
        routes = itertools.chain([(problem, rows)], others)
        plans = (plan_decisions(free, unfolded(*one)) for one in routes)
        yield from scheduled(plans, options, clock.share(0.6))


def _singly(plan: Plan, options: Options, clock: Deadline) -> Iterator[tuple[Plan, Schedule]]:
    """Yield schedules of single chunks: of a plan, and of others where a gap stays.

    Few chunks get routes and times together then, as whole ones can't always share links as the
    flow does; others take a flow without symmetry.
    """
    problem, size = plan.problem, plan.problem.chunk_size
    free = problem.without_symmetry
    goal = goal_of(problem, options)

    insertions = (
        (plan_decisions(free, rows_of(found)), retime(free.collective, free.group, size, found))
        for found in inserted(free, options, clock, goal)
    )
    tries = [_in_order(plan, options, clock), insertions]
    arcs = int(problem.logical.allowed.sum()) * problem.topology.num_ranks
    if len(problem.group) > 1 and arcs <= MAX_ARCS:
        tries.append(_along(free, options, clock))
    best = 1 << 62
    for schedules in tries:
        if 1000 * best > 1001 * goal:
            for found in schedules:
                best = min(best, found[1].makespan)
                yield found
    if problem.logical.connections_per_rank is not None:
        for _, narrow in with_fewer_gateways(problem):
            yield from _along(narrow, options, clock)


def goal_of(problem: Problem, options: Options) -> Time:
    """Return the picoseconds that no schedule of single chunks of a `problem` beats."""
    return max(options.floor, options.fixed_floor(problem.collective.name))


def _along(problem: Problem, options: Options, clock: Deadline) -> Iterator[tuple[Plan, Schedule]]:
    """Yield schedules of single chunks along another flow, if there is one and time for it."""
    with suppress(NoScheduleError):
        instance = flow_instance(problem)
        rows = rows_of_flow(instance, optimal_flow(instance, clock), clock)
        yield from _in_order(plan_decisions(problem, rows), options, clock)


def _in_order(plan: Plan, options: Options, clock: Deadline) -> Iterator[tuple[Plan, Schedule]]:
    """Yield schedules of single chunks: the longest way left first, any order, and variations.

    Ways are made longer and shorter, or whole chunks come later, so that not all of them are at the
    same depth: at first all of them, then in turn all of them and a part of the best so far. Each
    is better than the one before; they end at the goal, or when nothing more is won.
    """
    problem, goal = plan.problem, cache(partial(goal_of, plan.problem, options))
    load = load_of(plan, [(number,) for number in range(len(plan.moves))])
    chunks, chunk = np.unique([move.chunk for move in plan.moves], return_inverse=True)
    random, tail = np.random.default_rng(options.seed), load.tail.astype(np.float64)
    late, ways = np.zeros(len(chunks)), tail
    best, first, tries, last = 1 << 62, 0, 0, 0
    while tries <= last + PATIENCE and (best == 1 << 62 or (clock.left and best > goal())):
        changed = (late, ways)
        if tries:
            old = changed[tries % 2]
            new = random.uniform(0, NOISE * first, len(late))
            if tries % 2:
                way = tail if tries > 1 else tail.mean()  # at first in any order
                new = random.uniform(1 - NOISE, 1 + NOISE, len(tail)) * way
            some = random.random(len(old)) < (1 if tries <= WHOLLY or tries % 4 < 2 else SOME)
            some[random.integers(len(old))] = True
            new = np.where(some, new, old)
            changed = (late, new) if tries % 2 else (new, ways)
        decisions, end = dispatched(
            load, options.report, (changed[0][chunk] - changed[1]).astype(np.int64)
        )
        if end <= best:
            late, ways = changed
        if end < best:
            best, first, last = end, first or end, tries
            yield plan, retime(problem.collective, problem.group, problem.chunk_size, decisions)
        tries += 1


def _routes(
    instance: FlowInstance, first: Flow, clock: Deadline
) -> Iterator[tuple[Problem, list[Row]]]:
    """Yield other sets of routes, each with the problem whose representatives they are for."""
    narrow = (problem for _, problem in with_fewer_gateways(instance.problem))
    for problem in itertools.chain([instance.problem], narrow):
        if not clock.left:
            return
        with suppress(NoScheduleError):  # no way through these gateways, or no time for them
            same = problem is instance.problem
            one = instance if same else flow_instance(problem)
            least = first if same else optimal_flow(one, clock)
            yield problem, rows_of_flow(one, flow_by_near_gateways(one, least, clock), clock)


def scheduled(
    plans: Iterable[Plan], options: Options, clock: Deadline
) -> Iterator[tuple[Plan, Schedule]]:
    """Yield schedules in messages, and whose each is: all policies, then the best with noise.

    `plans`: routes without symmetry.
    `options`: the seed, the floor, and whether work is counted.
    `clock`: half of it is for the first try of all policies.
    """
    half, work = clock.share(0.5), 0
    tried: list[tuple[Time, int, Plan, Policy]] = []
    best = 1 << 62
    for plan, least, policy in _in_turn(plans, options):
        if tried and (not half.left or (options.deterministic and work > COUNTED_MOVES)):
            break
        if least >= best:
            continue
        work += len(plan.moves)
        schedule = policy(np.ones(len(plan.moves)))
        if schedule is not None:
            best = min(best, schedule.makespan)
            tried.append((schedule.makespan, len(tried), plan, policy))
            yield plan, schedule
            if schedule.makespan <= options.floor:
                return
    random = np.random.default_rng(options.seed)
    for makespan, _, plan, policy in sorted(tried, key=lambda one: one[:2])[:VARIED]:
        best, since = makespan, 0
        while since < PATIENCE_BATCHED and best > options.floor and clock.left:
            work += len(plan.moves)
            if options.deterministic and work > COUNTED_MOVES:
                break
            since += 1
            schedule = policy(random.uniform(1 - NOISE, 1 + NOISE, len(plan.moves)))
            if schedule is not None and schedule.makespan < best:
                best, since = schedule.makespan, 0
                yield plan, schedule


def _in_turn(plans: Iterable[Plan], options: Options) -> Iterator[tuple[Plan, Time, Policy]]:
    """Yield the first policies of each plan as it comes, then one of each after the other.

    With each comes its plan, and what no messages along the plan's routes can beat: one a link.
    """
    series = []
    for plan in plans:
        held: dict[int, Time] = defaultdict(int)
        for link, chunks in Counter(move.link for move in plan.moves).items():
            for resource, time in plan.costs(link, chunks)[1]:
                held[resource] += time
        same = itertools.repeat((plan, max(held.values(), default=0)))
        series.append(zip(same, _policies(plan, options), strict=False))
        yield from ((*one, policy) for one, policy in islice(series[-1], len(LAYOUTS)))
    for row in itertools.zip_longest(*series):
        yield from ((*one[0], one[1]) for one in row if one is not None)


def _policies(plan: Plan, options: Options) -> Iterator[Policy]:
    """Yield the policies for a plan, those of every layout in turn."""
    layouts: list[Adjacency] = []
    for lengths in itertools.product(LENGTHS, ELSEWHERE):
        for number, layout in enumerate(LAYOUTS):
            if number and not layouts[0].relays:
                break
            if number == len(layouts):
                layouts.append(Adjacency(plan, layout))
            yield partial(_dispatched, growing(layouts[number], Limits(*lengths)), options)
    for length in LENGTHS:
        for adjacency in layouts:
            yield partial(_dispatched, load_of(plan, adjacency.pieces(length)), options)


def _dispatched(load: Load, options: Options, factors: Factors) -> Schedule | None:
    varied = np.array([max(factors[list(message)]) for message in load.messages])
    problem = load.plan.problem
    try:
        decisions = dispatched(load, options.report, (-load.tail * varied).astype(np.int64))[0]
    except ValueError:
        return None
    return retime(problem.collective, problem.group, problem.chunk_size, decisions)


class Limits(NamedTuple):
    """Chunks in a message at most.

    `busiest`, `others`: over links that hold one of the busiest resources, and over the rest.
    """

    busiest: int
    others: int


def growing(adjacency: Adjacency, limits: Limits) -> Load:
    """Return the moves of a plan, to be dispatched in messages that grow from what is ready.

    `adjacency`: the plan, and which of its moves are neighbours.
    `limits`: how many make a message. Among the busiest are resources that are held at least nine
    tenths as long as any is, with one chunk to a message.
    """
    plan = adjacency.plan
    held = {move.link: plan.costs(move.link, 1)[1] for move in plan.moves}
    load: dict[int, Time] = defaultdict(int)
    for move in plan.moves:
        for resource, time in held[move.link]:
            load[resource] += time
    most = max(load.values(), default=0)
    busiest = {
        link for link, uses in held.items() if any(10 * load[key] >= 9 * most for key, _ in uses)
    }
    return growing_load_of(plan, [
        Run(run, reach, limits.busiest if plan.moves[run[0]].link in busiest else limits.others)
        for run, reach in adjacency.reaches
    ])  # fmt: skip

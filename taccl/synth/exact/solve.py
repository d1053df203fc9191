"""Solving the model of the exact engine: whole, or a few chunks at a time.

The whole is a race. A hint can stall the search as well as speed it up, so both are tried at the
same time; the first proof ends the race.

A large-neighbourhood search starts from a schedule. Most flows keep the links that they have,
only their order is open; those of a few chunk orbits may take any link. Which ones is drawn anew
each time: chunks that arrive last, chunks that share the busiest resource, or any. The number of
open chunks grows while the solver proves that they can't be better, and shrinks while it runs out
of time.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING

from taccl.collectives.slots import DEFAULT_LAYOUT
from taccl.errors import OutOfTimeError
from taccl.model.problem import Options, Problem, Status, reduces_and_spreads
from taccl.model.schedule import Decisions, Schedule, message_groups
from taccl.synth.exact.model import (
    Flows,
    Key,
    Neighbours,
    Parts,
    build,
    flows_along,
    flows_of,
    make_scale,
)
from taccl.synth.plan import Adjacency, Plan
from taccl.timing.deadline import Deadline, Either
from taccl.units import Time

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

MAX_MOVES = 3000
"""Moves up to which a model of their order is worth building."""

MAX_INTERVALS = 2500
"""Pairs of a flow and a link up to which a model is worth building."""

WRITING, LATEST = 0.2, 0.5
"""Shares of the time that a model may take to be written down: as estimated, and by the clock.

One that takes longer is not solved in the rest: presolving it takes several times as long.
"""

PAIR = 4e-5
"""Seconds that it takes to write down that two chunks may follow each other on a link."""

MAX_PAIRS = 100_000
"""Such pairs of a model; CP-SAT takes seconds to stop while it presolves a larger one."""


@dataclass(frozen=True)
class Solution:
    """What a model gave: the best `decisions` found, or None.

    No solution of the model is below `bound` picoseconds; `proved` tells whether nothing in the
    model is faster than the best known.
    """

    decisions: Decisions | None
    bound: Time
    proved: bool


def solve_model(
    flows: Flows,
    known: Schedule,
    options: Options,
    seconds: float,
    floor: Time,
    *,
    twice: bool = True,
) -> Solution:
    """Solve the model of some `flows`, from a hint and, if `twice`, at the same time without one.

    The `known` schedule is the horizon, and the hint where it has the same group. `seconds` are by
    the clock, or counted work; `options` tell how to search, and `floor` is a proven lower bound in
    picoseconds.
    """
    clock, done = replace(options, time_limit=seconds).begin(), Either(options.stop)
    writing = clock.share(LATEST)
    if is_long(flows, options, seconds):
        return Solution(None, floor, proved=False)
    together = Neighbours(flows) if options.batch else None
    scale = make_scale(flows, known.makespan, together.longest if together else 1)
    try:
        parts = build(flows, scale, floor, together, lambda: writing.over)
    except OutOfTimeError:
        return Solution(None, floor, proved=False)
    models = [parts.model.clone()] if twice and not options.deterministic else []
    if known.generators == flows.problem.group.generators:
        _hint(parts, known)
    models.insert(0, parts.model)
    with ThreadPoolExecutor(len(models)) as pool:
        runs = [pool.submit(_run, parts, model, options, clock, done) for model in models]
        found = [run.result() for run in runs]
    _, best = min(found, key=lambda one: one[0])
    bound = max(floor, *(one.bound for _, one in found)) if scale.exact else floor
    proved = any(one.proved for _, one in found) and scale.exact
    return Solution(best.decisions, bound, proved)


def improve_order(
    schedule: Schedule,
    plan: Plan,
    options: Options,
    seconds: float,
    floor: Time = 0,
    *,
    layout: str = DEFAULT_LAYOUT,
) -> tuple[Schedule, Status]:
    """Return the best schedule found with the routes of the given one, never a worse one.

    The `schedule`, which is the hint and the horizon, is of the moves of a `plan`, in a valid
    sequence: trees, without exchanges. `options` tell how to search, and whether chunks may travel
    together, which depends on the `layout` of scratch; `seconds` are by the clock, or counted work.
    Reaching `floor`, a proven lower bound on the makespan in picoseconds, ends the search. The
    status is OPTIMAL when no order or batching of these routes is faster.
    """
    if schedule.makespan <= floor or not plan.moves:
        return schedule, Status.OPTIMAL
    if len(plan.moves) > MAX_MOVES or seconds <= 0:
        return schedule, Status.FEASIBLE
    flows = flows_along(Adjacency(plan, layout))
    solution = solve_model(flows, schedule, options, seconds, floor, twice=False)
    best = schedule
    if solution.decisions is not None:
        best = min(best, plan.problem.timed(solution.decisions), key=lambda one: one.makespan)
    return best, Status.OPTIMAL if solution.proved else Status.FEASIBLE


def is_long(flows: Flows, options: Options, seconds: float) -> bool:
    """Tell whether a model has too many messages to be written down and solved in some seconds."""
    if not options.batch:
        return False
    most = Neighbours(flows).most
    return most > MAX_PAIRS or most * PAIR > WRITING * seconds


def _run(
    parts: Parts, model: "cp_model.CpModel", options: Options, clock: Deadline, done: Either
) -> tuple[float, Solution]:
    """Return the best makespan that one run found, infinite where none, and what it gave."""
    from ortools.sat.python import cp_model

    from taccl.synth.milp import new_solver, solve_watched

    scale = parts.scale
    solver = new_solver(options, max(0.1, clock.left), workers=max(4, options.workers))
    status = solve_watched(solver, model, None, done.is_set)
    if status in (cp_model.OPTIMAL, cp_model.INFEASIBLE):
        done.set()
    if status == cp_model.INFEASIBLE:
        # Nothing is as fast as what is known already.
        return math.inf, Solution(None, (scale.horizon + 1) * scale.tick, proved=True)
    bound = int(max(0, round(solver.best_objective_bound))) * scale.tick
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return math.inf, Solution(None, bound if status == cp_model.UNKNOWN else 0, proved=False)
    proved = status == cp_model.OPTIMAL
    makespan = solver.value(parts.x.makespan) * scale.tick
    return makespan, Solution(_decisions(parts, solver), bound, proved)


def _decisions(parts: Parts, solver: "cp_model.CpSolver") -> Decisions:
    """Return the chosen messages in order of time; at one time, givers before takers."""
    x = parts.x
    used = {key: solver.value(x.start[key]) for key, use in x.use.items() if solver.value(use)}
    after: dict[Key, Key] = {
        (first, link): (second, link)
        for (first, second, link), literal in x.next.items()
        if solver.value(literal)
    }
    followers = set(after.values())
    messages = []
    for key in used:
        if key not in followers:
            chain = [key]
            while chain[-1] in after:
                chain.append(after[chain[-1]])
            messages.append(chain)
    place = _places_in_trees(parts, used)
    messages.sort(
        key=lambda chain: (used[chain[0]], solver.value(x.end[chain[0]]), place[chain[0]], chain)
    )
    # Where nothing is yet, the first to come is a copy.
    collective = parts.flows.problem.collective
    holds: set[tuple[int, int]] = set()
    rows = []
    for batch, message in enumerate(messages):
        for number, link in message:
            flow = parts.flows.flows[number]
            here = (flow.chunk, parts.flows.ends_of(link)[1])
            adds = flow.summed and (here in holds or collective.is_source(*here))
            rows.append((flow.chunk, link, batch, adds))
            holds.add(here)
    return Decisions.of(rows)


def _places_in_trees(parts: Parts, used: Mapping[Key, int]) -> dict[Key, int]:
    """Return a number for every used link that grows along its flow, sums before spreading."""
    feeding: dict[tuple[int, int], list[Key]] = defaultdict(list)
    for number, link in used:
        feeding[number, parts.flows.ends_of(link)[1]].append((number, link))
    place: dict[Key, int] = {}

    def depth(key: Key) -> int:
        if key not in place:
            src = parts.flows.ends_of(key[1])[0]
            before = (depth(feeder) + 1 for feeder in feeding[key[0], src])
            place[key] = max(before, default=0)
        return place[key]

    ranks = parts.flows.problem.topology.num_ranks
    shift = {n: 0 if flow.summed else ranks for n, flow in enumerate(parts.flows.flows)}
    return {key: depth(key) + shift[key[0]] for key in used}


def _hint(parts: Parts, known: Schedule) -> None:
    """Hint a schedule of the same orbits: what is used, when, and what travels together."""
    x, scale, flows = parts.x, parts.scale, parts.flows
    numbers = {(flow.chunk, flow.summed): number for number, flow in enumerate(flows.flows)}
    rows = known.decisions()
    starts = sorted(known.start.tolist())
    sums_only = known.collective.reduces and not reduces_and_spreads(known.collective)
    keys = [
        (numbers.get((chunk, adds or sums_only), -1), link) for chunk, link, _, adds in rows.rows()
    ]
    taken: dict[Key, tuple[int, int]] = {}
    for group in message_groups(rows.batch):
        message = [keys[row] for row in group if keys[row] in x.use]
        start = scale.up(starts[group.start])
        for place_, key in enumerate(message):
            taken[key] = (start, len(message) - place_)
        for first, second in pairwise(message):
            literal = x.next.get((first[0], second[0], first[1]))
            if literal is not None:
                parts.model.add_hint(literal, 1)
    for key, use in x.use.items():
        parts.model.add_hint(use, key in taken)
        if key in taken:
            start, left = taken[key]
            parts.model.add_hint(x.start[key], min(start, scale.horizon))
            if key in x.left:
                parts.model.add_hint(x.left[key], left)


MAX_FIXED = 6000
"""Sends up to which their order is worth a model."""

MAX_OPEN = 2500
"""Pairs of an open flow and a link up to which routes are worth a model."""

FEWEST, MOST = 2, 15
SHARE = 0.15
"""Of the time that is left, for one neighbourhood."""

ROUNDS = 12
"""Neighbourhoods, where work is counted instead of time."""


def improve_routes(
    problem: Problem, known: Schedule, options: Options, seconds: float, floor: Time
) -> Schedule:
    """Return the best schedule found for a `problem` in some `seconds`, or the `known` one.

    The known schedule is on the problem's orbits, one chunk to a message. The time is by the clock,
    or counted work; a schedule that reaches the lower bound `floor`, in picoseconds, ends the
    search. `options` tell how to search.
    """
    flows = _searched(problem, known)
    if flows is None:
        return known
    chunks = sorted({flow.chunk for flow in flows.flows})
    most = max(1, *(len(flow.links) for flow in flows.flows))
    clock = replace(options, time_limit=seconds).begin()
    single = replace(options, batch=False, report=lambda _: None)
    best, taken = known, _links(problem, known)
    random = Random(options.seed)
    count = FEWEST
    for number in range(ROUNDS if options.deterministic else 1 << 30):
        left = clock.left
        if best.makespan <= floor or left < 1:
            break
        if number % 3 == 0:
            order: Iterable[int] = _last(best, chunks, random)
        elif number % 3 == 1:
            order = _busiest(problem, best, chunks, random)
        else:
            order = random.sample(chunks, len(chunks))
        chosen = frozenset(list(dict.fromkeys(order))[: max(1, min(count, MAX_OPEN // most))])
        part = seconds / ROUNDS if options.deterministic else max(2.0, SHARE * left)
        opened = tuple(
            flow
            if flow.chunk in chosen
            else replace(flow, links=taken.get((flow.chunk, flow.summed), ()))
            for flow in flows.flows
        )
        found = solve_model(
            Flows(problem, opened), best, single, min(part, left), floor, twice=False
        )
        better = None if found.decisions is None else problem.timed(found.decisions)
        if better is not None and better.makespan < best.makespan:
            options.report(
                f"routes of {len(chosen)} chunks: {best.makespan / 1e6:.2f} ->"
                f" {better.makespan / 1e6:.2f} us"
            )
            best, taken = better, _links(problem, better)
        elif found.proved:
            count = min(count + 1, MOST, len(flows.flows))
        else:
            count = max(count - 1, FEWEST)
    return best


def _searched(problem: Problem, known: Schedule) -> Flows | None:
    """Return the flows of a problem, where a model can hold them and the schedule."""
    same = known.generators == problem.group.generators
    if not same or known.batches or not FEWEST < len(known) <= MAX_FIXED:
        return None
    flows = flows_of(problem)
    links = _links(problem, known)
    # An exchange has two roots for a chunk, which the flows do not have.
    for flow in flows.flows:
        # One tree from (to) one root, or several fixed ones.
        ends = [flows.ends_of(link) for link in links.get((flow.chunk, flow.summed), ())]
        fed = [src if flow.summed else dst for src, dst in ends]
        others = {dst if flow.summed else src for src, dst in ends} - set(fed)
        if len(set(fed)) < len(fed) or (flow.chosen and len(others) > 1):
            return None
    return flows if flows.flows else None


def _links(problem: Problem, schedule: Schedule) -> Mapping[tuple[int, bool], tuple[int, ...]]:
    """Return the links that each flow takes in a schedule."""
    links: dict[tuple[int, bool], list[int]] = defaultdict(list)
    sums_only = problem.collective.reduces and not reduces_and_spreads(problem.collective)
    rows = (schedule.chunk.tolist(), schedule.link.tolist(), schedule.reduce.tolist())
    for chunk, link, adds in zip(*rows, strict=True):
        links[chunk, adds or sums_only].append(link)
    return {key: tuple(sorted(some)) for key, some in links.items()}


def _last(best: Schedule, chunks: list[int], random: Random) -> Iterator[int]:
    """Yield a chunk that arrives last, then others late ones first, with some noise."""
    ends: dict[int, Time] = defaultdict(int)
    for chunk, end in zip(best.chunk.tolist(), best.end.tolist(), strict=True):
        ends[chunk] = max(ends[chunk], end)
    late = best.makespan
    first = [chunk for chunk in chunks if ends[chunk] == late]
    yield random.choice(first or chunks)
    yield from sorted(chunks, key=lambda chunk: late - ends[chunk] + random.random() * late / 4)


def _busiest(problem: Problem, best: Schedule, chunks: list[int], random: Random) -> Iterator[int]:
    """Yield chunks that cross one busy resource, in random order."""
    load: dict[int, Time] = defaultdict(int)
    users: dict[int, list[int]] = defaultdict(list)
    for chunk, link in zip(best.chunk.tolist(), best.link.tolist(), strict=True):
        for resource, held in problem.cost(link, 1)[1]:
            load[resource] += held
            users[resource].append(chunk)
    resources = sorted(load, key=lambda resource: (-load[resource], resource))
    crossing = sorted(set(users[random.choice(resources[: max(1, len(resources) // 4)])]))
    yield from random.sample(crossing, len(crossing))
    yield from random.sample(chunks, len(chunks))

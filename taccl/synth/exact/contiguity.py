"""Stage 3: exact order, and which chunks travel together, for fixed routes (CP-SAT).

Sets        m moves, b candidate messages (each a set of moves on one link, adjacent at both ends;
            every single move is one), o resource orbits
Variables   start[m], arrive[m] ∈ 0..horizon    in ticks
            chosen[b] ∈ {0,1}                   message b is sent as it is
            makespan
Minimise    makespan
Subject to  (cover)      every move is in exactly one chosen message
            (together)   chosen[b]: all its moves start at one time and arrive at
                         start + alpha + beta·(their bytes)
            (no overlap) on every resource orbit, the chosen messages' intervals do not overlap
            (causality)  start[m] ≥ arrive[p] for every arrival p that m needs
            (reads)      an arrival that changes a value ends after earlier reads of it start
            (follows)    start[m] ≥ start[f] where a sketch wants f first
            (bound)      makespan ≥ a lower bound proved elsewhere

Ticks: durations are divided by their gcd; where the horizon would still be above 2^16 ticks they
are rounded up, so that a solution in ticks is one in picoseconds, and retime() takes up the rest.
The order is free (TACCL fixes it by a heuristic), the routes are not.
"""

import heapq
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from taccl.collectives.slots import DEFAULT_LAYOUT
from taccl.model.problem import Options, Status
from taccl.model.schedule import Decisions, Schedule, message_groups, retime
from taccl.synth.list_scheduler import decide, message_uses
from taccl.synth.plan import Adjacency, Message, Plan
from taccl.timing.deadline import Deadline
from taccl.timing.retiming import starts_in_order
from taccl.units import Time

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

Amount = TypeVar("Amount", int, NDArray[np.int64])

MAX_TICKS = 1 << 16
MAX_MOVES = 3000


@dataclass(frozen=True)
class _Variables:
    start: "list[cp_model.IntVar]"
    arrive: "list[cp_model.IntVar]"
    chosen: "list[cp_model.IntVar]"
    makespan: "cp_model.IntVar"


@dataclass(frozen=True)
class _Ticks:
    """Picoseconds in a tick, and how to convert."""

    size: int

    def up(self, time: Amount) -> Amount:
        return -(-time // self.size)


def improve(
    schedule: Schedule,
    plan: Plan,
    options: Options,
    seconds: float,
    floor: Time = 0,
    *,
    layout: str = DEFAULT_LAYOUT,
) -> tuple[Schedule, Status]:
    """Return the best schedule found with the routes of the given one, never a worse one.

    Parameters
    ----------
    schedule
        A schedule of the plan's moves: the hint, and the horizon.
    plan
        The moves, in a valid sequence.
    floor
        A proven lower bound on the makespan in picoseconds; reaching it ends the search.
    layout
        Of scratch, on which it depends what may travel together.

    Returns
    -------
    The schedule, and OPTIMAL when no order or batching of these routes is faster in ticks.
    """
    if schedule.makespan <= floor or not plan.moves:
        return schedule, Status.OPTIMAL
    if len(plan.moves) > MAX_MOVES or seconds <= 0:
        return schedule, Status.FEASIBLE
    clock = replace(options, time_limit=seconds).begin()
    singles: list[Message] = [(number,) for number in range(len(plan.moves))]
    candidates = Adjacency(plan, layout).candidates() if options.batch else singles
    ticks = _tick(plan, candidates, schedule.makespan)
    planned = _solve(plan, candidates, ticks, (schedule, floor), options, clock)
    if planned is None:
        return schedule, Status.FEASIBLE
    decisions, proved = planned
    problem = plan.problem
    found = retime(problem.collective, problem.group, problem.chunk_size, decisions)
    best = found if found.makespan < schedule.makespan else schedule
    return best, Status.OPTIMAL if proved else Status.FEASIBLE


def _tick(plan: Plan, candidates: Sequence[Message], horizon: Time) -> _Ticks:
    times = set()
    for message in candidates:
        duration, uses = plan.costs(plan.moves[message[0]].link, len(message))
        times.update([duration, *(busy for _, busy in uses)])
    unit = math.gcd(*times)
    return _Ticks(max(1, unit, -(-horizon // MAX_TICKS)))


def _solve(
    plan: Plan,
    candidates: Sequence[Message],
    ticks: _Ticks,
    known: tuple[Schedule, Time],
    options: Options,
    clock: Deadline,
) -> tuple[Decisions, bool] | None:
    from ortools.sat.python import cp_model

    from taccl.synth.milp import new_solver, solve_watched

    schedule, floor = known
    model = cp_model.CpModel()
    horizon = ticks.up(schedule.makespan) + len(plan.moves)
    moves = range(len(plan.moves))
    x = _Variables(
        [model.new_int_var(0, horizon, f"start_{m}") for m in moves],
        [model.new_int_var(0, horizon, f"arrive_{m}") for m in moves],
        [model.new_bool_var(f"chosen_{b}") for b in range(len(candidates))],
        model.new_int_var(floor // ticks.size, horizon, "makespan"),
    )
    _cover(model, plan, candidates, x)
    _together(model, plan, candidates, x, ticks)
    _precede(model, plan, x)
    model.add_max_equality(x.makespan, x.arrive)
    model.minimize(x.makespan)
    _hint(model, plan, candidates, x, ticks, schedule)
    # Writing the model down counts, too.
    solver = new_solver(options, max(0.1, clock.left), workers=max(2, options.workers))
    status = solve_watched(solver, model, None, options.stop.is_set)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    starts = [solver.value(variable) for variable in x.start]
    taken = [
        message
        for message, chosen in zip(candidates, x.chosen, strict=True)
        if solver.value(chosen)
    ]
    return _sequence(plan, taken, starts), status == cp_model.OPTIMAL


def _cover(
    model: "cp_model.CpModel", plan: Plan, candidates: Sequence[Message], x: _Variables
) -> None:
    holding: list[list[cp_model.IntVar]] = [[] for _ in plan.moves]
    for message, chosen in zip(candidates, x.chosen, strict=True):
        for number in message:
            holding[number].append(chosen)
    for options in holding:
        model.add_exactly_one(options)


def _together(
    model: "cp_model.CpModel",
    plan: Plan,
    candidates: Sequence[Message],
    x: _Variables,
    ticks: _Ticks,
) -> None:
    intervals: dict[int, list[cp_model.IntervalVar]] = defaultdict(list)
    alone = len(candidates) == len(plan.moves)
    for message, chosen in zip(candidates, x.chosen, strict=True):
        duration, uses = plan.costs(plan.moves[message[0]].link, len(message))
        first = x.start[message[0]]
        for number in message:
            arrives = model.add(x.arrive[number] == first + ticks.up(duration))
            if not alone:
                arrives.only_enforce_if(chosen)
            if number != message[0]:
                model.add(x.start[number] == first).only_enforce_if(chosen)
        for orbit, busy in uses:
            length = ticks.up(busy)
            if alone:
                interval = model.new_fixed_size_interval_var(first, length, "")
            else:
                interval = model.new_optional_fixed_size_interval_var(first, length, chosen, "")
            intervals[orbit].append(interval)
    for _, group in sorted(intervals.items()):
        model.add_no_overlap(group)


def _precede(model: "cp_model.CpModel", plan: Plan, x: _Variables) -> None:
    for number, move in enumerate(plan.moves):
        for before in move.needs:
            model.add(x.start[number] >= x.arrive[before])
        for before in move.reads_first:
            model.add(x.arrive[number] >= x.start[before] + 1)
        for before in move.follows:
            model.add(x.start[number] >= x.start[before])


def _hint(
    model: "cp_model.CpModel",
    plan: Plan,
    candidates: Sequence[Message],
    x: _Variables,
    ticks: _Ticks,
    schedule: Schedule,
) -> None:
    """Hint the known schedule's messages, with starts as they are in whole ticks."""
    number_of = {(m.chunk, m.link, m.reduce): n for n, m in enumerate(plan.moves)}
    rows = schedule.decisions()
    numbers = [number_of[chunk, link, reduce] for chunk, link, _, reduce in rows.rows()]
    messages = [tuple(numbers[row] for row in group) for group in message_groups(rows.batch)]
    owner = {move: number for number, message in enumerate(messages) for move in message}
    waits = [
        [(owner[before], before in plan.moves[move].needs)
         for move in message for before in (*plan.moves[move].needs, *plan.moves[move].follows)]
        for message in messages
    ]  # fmt: skip
    uses = message_uses(plan, messages)
    uses = uses._replace(held=ticks.up(uses.held), arrival=ticks.up(uses.arrival))
    starts = starts_in_order(uses, waits, range(len(messages)))
    known = {frozenset(message) for message in messages}
    for message_, chosen in zip(candidates, x.chosen, strict=True):
        model.add_hint(chosen, frozenset(message_) in known)
    for number in range(len(plan.moves)):
        message = owner[number]
        model.add_hint(x.start[number], starts[message])
        model.add_hint(x.arrive[number], starts[message] + int(uses.arrival[message]))


def _sequence(plan: Plan, messages: Sequence[Message], starts: Sequence[int]) -> Decisions:
    """Return the chosen messages in order of their start; ties as they stand in the plan.

    Messages that start together are decided in the order of what they need and follow.
    """
    owner = {move: number for number, message in enumerate(messages) for move in message}
    missing = [set[int]() for _ in messages]
    children = [set[int]() for _ in messages]
    for number, message in enumerate(messages):
        for index in message:
            for before in (*plan.moves[index].needs, *plan.moves[index].follows):
                if owner[before] != number:
                    missing[number].add(owner[before])
                    children[owner[before]].add(number)

    def key(number: int) -> tuple[int, int, int]:
        return starts[messages[number][0]], min(messages[number]), number

    ready = [key(number) for number, before in enumerate(missing) if not before]
    heapq.heapify(ready)
    sequence = []
    while ready:
        number = heapq.heappop(ready)[2]
        sequence.append(messages[number])
        for child in children[number]:
            missing[child].discard(number)
            if not missing[child]:
                heapq.heappush(ready, key(child))
    return decide(plan, sequence)

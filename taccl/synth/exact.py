"""Engine ``exact``: one CP-SAT model for routes, order, roots and batches, and its proof.

The model is that of exact_model.py and exact_batches.py, solved in exact_solve.py. A problem with
symmetries is first solved on orbits; what that proves holds for symmetric schedules only, so where
no bound closes the gap the whole problem follows, if it is small enough and no sketch asks for the
symmetry (of the routes: order and messages are free, so that nothing is proved on orbits then).
"""

import time
from dataclasses import dataclass, replace

from taccl.errors import NoScheduleError, OutOfTimeError
from taccl.schedule import Schedule, retime
from taccl.symmetry import make_group
from taccl.synth.classical import CLASSICAL, classical_schedules
from taccl.synth.exact_solve import MAX_INTERVALS, solve_model
from taccl.synth.flows import flows_of
from taccl.synth.problem import Bound, Options, Problem, Result, Status, reduces_and_spreads
from taccl.synth.rounds import Size, answer, schedule_of
from taccl.synth.staged import first_schedules, staged
from taccl.units import Time

FIRST, STAGED = 0.2, 0.25
"""Shares of the time left: for the first try of the model, and for the staged engine."""


@dataclass(frozen=True)
class _State:
    """The best schedule so far and what is proved: for all schedules, and for those on trees."""

    best: Schedule
    bound: Time
    of_trees: Time

    @property
    def closed(self) -> bool:
        return self.best.makespan <= max(self.bound, self.of_trees)


def exact(problem: Problem, options: Options) -> Result:
    """Solve a problem to proven optimality, or as far as the time allows.

    The model gets a short part of the time first; where that does not close the gap, the staged
    engine looks for a better hint, and the model gets the rest.

    With ``options.rounds`` the question is SCCL's instead: whether there is an algorithm of so
    many synchronous steps, rounds and chunks (rounds.py).

    Raises
    ------
    NoScheduleError
        When the sketch leaves a chunk without a path to a target, or there is no such algorithm.
    OutOfTimeError
        When the time does not suffice to find out whether there is.
    """
    if options.rounds is not None:
        return _in_rounds(problem, options, options.rounds)
    began = time.monotonic()

    def left() -> float:
        if options.deterministic:
            return options.time_limit / 3
        return began + options.time_limit - time.monotonic()

    first = [*first_schedules(problem, options), *_classical(problem, options)]
    state = _State(min(first, key=_makespan), options.floor, 0)
    state = _solve(problem, state, options, FIRST * left())
    if not (state.closed or options.stop.is_set() or left() <= 0):
        hint = staged(problem, replace(options, time_limit=STAGED * left())).schedule
        if hint is not None:
            state = replace(state, best=min(state.best, hint, key=_makespan))
        state = _solve(problem, state, options, left())
    bounds = [Bound("exact", "engine", state.bound)] if state.bound > options.floor else []
    bounds += [Bound("exact", "trees", state.of_trees)] if state.of_trees else []
    if state.best.makespan <= state.bound:
        status = Status.OPTIMAL
    elif options.stop.is_set():
        status = Status.INTERRUPTED
    else:
        status = Status.FEASIBLE if left() > 0 else Status.TIME_LIMIT
    return Result(status, state.best, tuple(bounds), "exact", time.monotonic() - began)


def _in_rounds(problem: Problem, options: Options, rounds: tuple[int, int, int]) -> Result:
    size = Size(*rounds)
    found = answer(problem, size, options, options.time_limit)
    what = f"algorithm of {size.steps} steps, {size.rounds} rounds and {size.chunks} chunks"
    if found.status is Status.INFEASIBLE:
        raise NoScheduleError(
            f"there is no {what}: {found.reason}", fix="ask for more rounds or fewer chunks"
        )
    if found.rounds is None:
        raise OutOfTimeError(
            f"it is unknown whether there is an {what}: {found.reason}", fix="raise --time-limit"
        )
    lengths = ", ".join(map(str, found.rounds.rounds))
    options.report(f"there is an {what}; its steps have {lengths} rounds ({found.seconds:.1f} s)")
    schedule = schedule_of(problem, found.rounds)
    return Result(Status.FEASIBLE, schedule, (), "exact", found.seconds)


def _makespan(schedule: Schedule) -> Time:
    return schedule.makespan


def _solve(problem: Problem, state: _State, options: Options, seconds: float) -> _State:
    """Solve the model on orbits, then the whole one, until one of them closes the gap."""
    deadline = time.monotonic() + seconds
    parts = _problems(problem)
    for number, part in enumerate(parts):
        share = seconds if options.deterministic else deadline - time.monotonic()
        share /= len(parts) - number
        if state.closed or options.stop.is_set() or share <= 0:
            break
        flows = flows_of(part)
        if flows.size > MAX_INTERVALS:
            options.report(f"exact: {flows.size} intervals are more than {MAX_INTERVALS}")
            continue
        solution = solve_model(flows, state.best, options, share, state.bound)
        if solution.decisions is not None:
            found = retime(part.collective, part.group, part.chunk_size, solution.decisions)
            state = replace(state, best=min(state.best, found, key=_makespan))
        if len(part.group) == 1 and reduces_and_spreads(problem.collective):
            state = replace(state, of_trees=max(state.of_trees, solution.bound))
        elif len(part.group) == 1:
            state = replace(state, bound=max(state.bound, solution.bound))
        options.report(
            f"exact: {state.best.makespan / 1e6:.2f} us, {flows.size} intervals: not below"
            f" {solution.bound / 1e6:.2f} us"
        )
    return state


def _classical(problem: Problem, options: Options) -> list[Schedule]:
    return [
        schedule
        for name in CLASSICAL
        for schedule in classical_schedules(problem, name, batch=options.batch)
    ]


def _problems(problem: Problem) -> list[Problem]:
    """Return the problem on orbits, and on all chunks where the symmetry is only a help."""
    if len(problem.group) == 1 or problem.logical.symmetry_asked:
        return [problem]
    return [problem, replace(problem, group=make_group(problem.topology, ()))]

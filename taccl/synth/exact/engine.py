"""Engine ``exact``: one CP-SAT model for routes, order, roots and batches, and its proof.

The model is that of model.py, solved in solve.py. A problem with symmetries is first solved on
orbits; what that proves holds for symmetric schedules only, so where no bound closes the gap the
whole problem follows, if it is small enough and no sketch asks for the symmetry (of the routes:
order and messages are free, so that nothing is proved on orbits then).
A model that can't be written down in time is given up for the staged engine's schedule.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from taccl.errors import NoScheduleError, OutOfTimeError
from taccl.model.problem import Bound, Options, Problem, Result, Status, reduces_and_spreads
from taccl.model.routes import is_restricted
from taccl.model.schedule import Schedule
from taccl.synth.exact.model import Flows, flows_of
from taccl.synth.exact.solve import MAX_INTERVALS, is_long, solve_model
from taccl.synth.staged import first_schedules, staged
from taccl.synth.steps_rounds import Size, in_rounds
from taccl.synth.templates.classical import CLASSICAL, Trial, schedules_of
from taccl.timing.deadline import Deadline
from taccl.units import Time

FIRST, STAGED, ALONE = 0.2, 0.25, 0.95
"""Shares of the time left: for the first try of the model, and for the staged engine after it,
which gets more where no model is open that can be solved in the rest."""

LARGE = 100_000
"""Pairs of a representative chunk and a link above which the classical algorithms come first, and
no model is thought of."""

ROUTED = 4e-6
"""Seconds for such a pair before the greedy heuristic, or the staged engine, has a schedule."""


@dataclass(frozen=True)
class _State:
    """The best schedule so far and what is proved: for all schedules, and for those on trees.

    ``done`` are the flows whose model has nothing better.
    """

    best: Schedule
    bound: Time
    of_trees: Time
    done: frozenset[Flows] = frozenset()

    def with_schedule(self, found: Schedule | None) -> "_State":
        """Return the state after another schedule was found, if one was."""
        better = self.best if found is None else min(self.best, found, key=lambda one: one.makespan)
        return replace(self, best=better)

    @property
    def closed(self) -> bool:
        return self.best.makespan <= max(self.bound, self.of_trees)


def exact(problem: Problem, options: Options) -> Result:
    """Solve a `problem` to proven optimality, or as far as the time in `options` allows.

    The hint is the best schedule that is known. Where none is, it is one that takes no search; the
    model gets a short part of the time then, and where that does not close the gap, the staged
    engine looks for a better hint, and the model gets the rest.

    With ``options.rounds`` the question is SCCL's instead: whether there is an algorithm of so many
    synchronous steps, rounds and chunks (steps_rounds.py).

    Raises NoScheduleError when the sketch leaves a chunk without a path to a target, or there is no
    such algorithm; OutOfTimeError when the time does not suffice to find out whether there is.
    """
    if options.rounds is not None:
        return in_rounds(problem, options, Size(*options.rounds))
    clock = options.begin(options.solver_share)

    def left() -> float:
        return options.time_limit / 3 if options.deterministic else clock.left

    first = options.known or _first(problem, options, clock)
    state = _State(min(first, key=lambda one: one.makespan), options.floor, 0)
    models = () if state.closed or clock.over else _models(problem, options, clock)
    state = _solve(models, state, options, (1.0 if options.known else FIRST) * left())
    if not (state.closed or clock.over or options.known):
        share = STAGED if _open(models, state, options, (1 - STAGED) * left()) else ALONE
        if not _is_slow(problem, options, share * left()):
            hint = staged(problem, replace(options, time_limit=share * left()))
            state = state.with_schedule(hint.schedule)
        for flows in models:
            if left() > 0 and is_long(flows, options, left()):
                options.report(f"exact: {flows.size} intervals, too many messages for the time")
        state = _solve(models, state, options, left())
    bounds = [Bound("exact", "engine", state.bound)] if state.bound > options.floor else []
    bounds += [Bound("exact", "trees", state.of_trees)] if state.of_trees > options.floor else []
    if state.best.makespan <= state.bound:
        status = Status.OPTIMAL
    elif options.stop.is_set():
        status = Status.INTERRUPTED
    else:
        status = Status.FEASIBLE if left() > 0 else Status.TIME_LIMIT
    return Result(status, state.best, tuple(bounds), "exact", clock.spent)


def _first(problem: Problem, options: Options, clock: Deadline) -> list[Schedule]:
    """Return what takes no search: greedy and classical schedules, one where time is short."""
    large = pairs_of(problem) > LARGE
    found = list(_classical(problem, options, clock)) if large else []
    if not (found and _is_slow(problem, options, clock.left)):
        found += first_schedules(problem, options, clock)
    if not (large or (found and clock.over)):
        found += _classical(problem, options, clock)
    if not found and clock.over:
        raise OutOfTimeError("nothing was found in time", fix="raise --time-limit")
    if not found:
        raise NoScheduleError(
            "neither the greedy heuristic nor a classical algorithm serves every chunk",
            fix="raise max_extra_hops in the sketch, or use --engine guided",
        )
    return found


def pairs_of(problem: Problem) -> int:
    """Return how many pairs there are of a representative chunk and a link that is allowed."""
    return len(problem.representatives) * int(problem.logical.allowed.sum())


def _is_slow(problem: Problem, options: Options, seconds: float) -> bool:
    """Tell whether there would be no routes in some seconds."""
    return not options.deterministic and pairs_of(problem) * ROUTED > seconds


def _classical(problem: Problem, options: Options, clock: Deadline) -> Iterator[Schedule]:
    for name in CLASSICAL:
        template = CLASSICAL[name]._replace(packed=())
        trial = Trial(
            problem, name, template, options.batch, over=lambda: clock.over, report=options.report
        )
        if template.fans is None and not clock.over:
            yield from schedules_of(trial)


def _solve(models: Sequence[Flows], state: _State, options: Options, seconds: float) -> _State:
    """Solve the models, until one of them closes the gap."""
    clock = replace(options, time_limit=seconds).begin(seconds)
    models = _open(models, state, options, seconds)
    for number, flows in enumerate(models):
        share = clock.left / (len(models) - number)
        if state.closed or clock.over:
            break
        problem = flows.problem
        solution = solve_model(flows, state.best, options, share, state.bound)
        if solution.decisions is not None:
            state = state.with_schedule(problem.timed(solution.decisions))
        if solution.proved:
            state = replace(state, done=state.done | {flows})
        if len(problem.group) == 1 and reduces_and_spreads(problem.collective):
            state = replace(state, of_trees=max(state.of_trees, solution.bound))
        elif len(problem.group) == 1:
            state = replace(state, bound=max(state.bound, solution.bound))
        options.report(
            f"exact: {state.best.makespan / 1e6:.2f} us, {flows.size} intervals: not below"
            f" {solution.bound / 1e6:.2f} us"
        )
    return state


def _open(models: Sequence[Flows], state: _State, options: Options, seconds: float) -> list[Flows]:
    """Return the models that may have something better, and can be written down in some seconds."""
    return [
        flows
        for flows in models
        if flows not in state.done and not is_long(flows, options, seconds)
    ]


def _models(problem: Problem, options: Options, clock: Deadline) -> tuple[Flows, ...]:
    """Return the flows of the problem on orbits and of the whole one, where these are small."""
    parts, models = [problem], []
    if len(problem.group) > 1 and not problem.logical.symmetry_asked:
        parts.append(problem.without_symmetry)
    for part in parts:
        if clock.over or (pairs_of(part) > LARGE and _is_slow(part, options, clock.left)):
            break
        # Only a sketch leaves so little of so much; looking for the ways of each chunk takes long.
        hopeless = pairs_of(part) > LARGE and not is_restricted(part)
        flows = None if hopeless else flows_of(part)
        size = pairs_of(part) if flows is None else flows.size
        if flows is None or size > MAX_INTERVALS:
            options.report(f"exact: {size} intervals are more than {MAX_INTERVALS}")
        else:
            models.append(flows)
    return tuple(models)

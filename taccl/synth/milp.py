"""A thin layer over PuLP: one model, raced by HiGHS and CP-SAT.

HiGHS closes models with strong relaxations, CP-SAT those with many alike solutions; neither wins
everywhere (ENGINES: DGX-2 x 2 against NDv2 x 2), so both get the same model, one thread each, and
the first proof ends the race. All data of a model are integers, so that CP-SAT takes it as it is.
The only importer of PuLP; highspy comes first, so that its true import error shows.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from taccl.errors import SolverUnavailableError
from taccl.synth.problem import Options, Status

try:
    import highspy
    import pulp
    from ortools.sat.python import cp_model
except ImportError as cause:  # pragma: no cover - depends on the installation
    raise SolverUnavailableError(
        f"a solver can't be loaded: {cause}",
        fix="pip install 'highspy>=1.11,<1.14' 'ortools>=9.12,<9.16' 'pulp>=3.3'",
    ) from cause

POOL = 4
"""How many solutions of a race are kept."""

Values = Mapping[str, int]
Terms = Iterable[tuple[pulp.LpVariable, int]]


@dataclass(frozen=True)
class Answer:
    """What a race found.

    Parameters
    ----------
    status
        OPTIMAL, FEASIBLE, INFEASIBLE, TIME_LIMIT (nothing found) or INTERRUPTED.
    pool
        Solutions by variable name, the best first.
    winner
        The solver that found the best.
    """

    status: Status
    pool: tuple[Values, ...]
    winner: str


@dataclass
class _Race:
    """What the two solvers share while they run."""

    options: Options
    deadline: float
    found: list[tuple[float, int, dict[str, int]]] = field(default_factory=list)
    proved: dict[str, Status] = field(default_factory=dict)
    finished: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def over(self) -> bool:
        return self.finished.is_set() or self.options.stop.is_set()

    def add(self, objective: float, solver: int, values: dict[str, int]) -> None:
        with self.lock:
            self.found.append((objective, solver, values))

    def prove(self, solver: str, status: Status) -> None:
        with self.lock:
            self.proved[solver] = status
        if not self.options.deterministic:
            self.finished.set()


def new_model(name: str) -> pulp.LpProblem:
    """Return an empty minimisation model."""
    return pulp.LpProblem(name, pulp.LpMinimize)


def binary(model: pulp.LpProblem, name: str) -> pulp.LpVariable:
    """Add a 0/1 variable."""
    return model.add_variable(name, 0, 1, pulp.LpBinary)


def whole(model: pulp.LpProblem, name: str, low: int, high: int) -> pulp.LpVariable:
    """Add a variable for a time in ticks: continuous for HiGHS, an integer for CP-SAT."""
    return model.add_variable(name, low, high)


def at_most(model: pulp.LpProblem, terms: Terms, limit: int) -> None:
    """Require that the sum of coefficient x variable is at most the limit."""
    model += pulp.LpAffineExpression(terms) <= limit


def exactly(model: pulp.LpProblem, terms: Terms, value: int) -> None:
    """Require that the sum of coefficient x variable equals the value."""
    model += pulp.LpAffineExpression(terms) == value


def minimise(model: pulp.LpProblem, terms: Terms) -> None:
    """Set the objective to the sum of coefficient x variable."""
    model += pulp.LpAffineExpression(terms)


def race(
    model: pulp.LpProblem, options: Options, time_limit: float, hint: Values | None = None
) -> Answer:
    """Solve a model with both solvers and return the best solutions found in time.

    With ``options.deterministic`` the solvers run one after the other under counted limits.
    """
    shared = _Race(options, time.monotonic() + time_limit)
    runs: list[Callable[[], None]] = [
        lambda: _run_highs(model, shared),
        lambda: _run_cp_sat(model, shared, hint or {}),
    ]
    if options.deterministic:
        for run in runs:
            run()
    else:
        with ThreadPoolExecutor(len(runs)) as pool:
            for future in [pool.submit(run) for run in runs]:
                future.result()
    return _answer(shared)


def _answer(shared: _Race) -> Answer:
    ranked = sorted(shared.found, key=lambda entry: entry[:2])
    pool: list[dict[str, int]] = []
    for _, _, values in ranked:
        if values not in pool:
            pool.append(values)
    winner = ("highs", "cp-sat")[ranked[0][1]] if ranked else "none"
    if shared.options.stop.is_set():
        status = Status.INTERRUPTED
    elif Status.INFEASIBLE in shared.proved.values():
        status = Status.INFEASIBLE
    elif Status.OPTIMAL in shared.proved.values():
        status = Status.OPTIMAL
    else:
        status = Status.FEASIBLE if pool else Status.TIME_LIMIT
    return Answer(status, tuple(pool[:POOL]), winner)


def _run_highs(model: pulp.LpProblem, shared: _Race) -> None:
    def interrupt(kind: object, message: object, out: object, answer: object, user: object) -> None:  # noqa: ARG001 - HiGHS' signature
        if shared.over():
            answer.user_interrupt = True  # type: ignore[attr-defined]

    limits: dict[str, object] = {"random_seed": shared.options.seed % 2**31}
    if shared.options.deterministic:
        limits["mip_max_nodes"] = 200
    solver = pulp.HiGHS(
        msg=False,
        threads=1,
        gapRel=0,
        timeLimit=None
        if shared.options.deterministic
        else max(0.1, shared.deadline - time.monotonic()),
        callbackTuple=(interrupt, None),
        callbacksToActivate=[highspy.cb.HighsCallbackType.kCallbackMipInterrupt],
        **limits,
    )
    copy = model.copy()
    copy.solve(solver)
    values = {v.name: round(v.value()) for v in copy.variables() if v.value() is not None}
    # An interrupted run without a solution leaves zeros, which PuLP takes for values.
    feasible = int(highspy.SolutionStatus.kSolutionStatusFeasible)
    if int(copy.solverModel.getInfo().primal_solution_status) == feasible and values:
        shared.add(pulp.value(copy.objective), 0, values)
    if copy.status == pulp.LpStatusInfeasible:
        shared.prove("highs", Status.INFEASIBLE)
    elif copy.sol_status == pulp.LpSolutionOptimal:
        shared.prove("highs", Status.OPTIMAL)


class _Keep(cp_model.CpSolverSolutionCallback):
    """Hands every improving solution of CP-SAT to the race."""

    def __init__(self, shared: _Race, variables: Mapping[str, cp_model.IntVar]) -> None:
        super().__init__()
        self._shared = shared
        self._variables = variables

    def on_solution_callback(self) -> None:
        values = {name: self.value(variable) for name, variable in self._variables.items()}
        self._shared.add(self.objective_value, 1, values)


def _run_cp_sat(model: pulp.LpProblem, shared: _Race, hint: Values) -> None:
    copy, variables = _as_cp_sat(model, hint)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = shared.options.seed % 2**31
    if shared.options.deterministic:
        solver.parameters.max_deterministic_time = 4.0
    else:
        solver.parameters.max_time_in_seconds = max(0.1, shared.deadline - time.monotonic())
    status = solve_watched(solver, copy, _Keep(shared, variables), shared.over)
    if status == cp_model.INFEASIBLE:
        shared.prove("cp-sat", Status.INFEASIBLE)
    elif status == cp_model.OPTIMAL:
        shared.prove("cp-sat", Status.OPTIMAL)


def solve_watched(
    solver: cp_model.CpSolver,
    model: cp_model.CpModel,
    callback: cp_model.CpSolverSolutionCallback | None,
    over: Callable[[], bool],
) -> object:
    """Solve while a second thread watches whether the search should end; return the status."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            if over():
                solver.stop_search()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        return solver.solve(model, callback)
    finally:
        done.set()
        watcher.join()


def _as_cp_sat(
    model: pulp.LpProblem, hint: Values
) -> tuple[cp_model.CpModel, dict[str, cp_model.IntVar]]:
    """Return the same model for CP-SAT; every coefficient and bound is an integer."""
    copy = cp_model.CpModel()
    variables = {
        v.name: copy.new_int_var(int(v.lowBound), int(v.upBound), v.name) for v in model.variables()
    }
    for constraint in model.constraints.values():
        terms = [(variables[v.name], int(factor)) for v, factor in constraint.items()]
        total = cp_model.LinearExpr.weighted_sum(
            [variable for variable, _ in terms], [factor for _, factor in terms]
        )
        limit = -int(constraint.constant)
        if constraint.sense == pulp.LpConstraintEQ:
            copy.add(total == limit)
        elif constraint.sense == pulp.LpConstraintLE:
            copy.add(total <= limit)
        else:
            copy.add(total >= limit)
    objective = [(variables[v.name], int(factor)) for v, factor in model.objective.items()]
    copy.minimize(
        cp_model.LinearExpr.weighted_sum([v for v, _ in objective], [f for _, f in objective])
    )
    for name, value in hint.items():
        if name in variables:
            copy.add_hint(variables[name], value)
    return copy, variables

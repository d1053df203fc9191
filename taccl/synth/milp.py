"""A thin layer over PuLP: one model, raced by HiGHS and CP-SAT.

HiGHS closes models with strong relaxations, CP-SAT those with many alike solutions; neither wins
everywhere (ENGINES: DGX-2 x 2 against NDv2 x 2), so both get the same model, one thread each, and
the first proof ends the race. All data of a model are integers, so that CP-SAT takes it as it is.
The only importer of PuLP; highspy comes first, so that its true import error shows.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
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

MAX_COUNTED = 600
"""Variables up to which HiGHS takes part where work is counted."""

Values = Mapping[str, int]
Variable = str
"""A variable of a model, by its name."""

Terms = Iterable[tuple[Variable, int]]


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
    seconds: float
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


@dataclass(frozen=True)
class Model:
    """A minimisation model: PuLP's, and its rows as CP-SAT takes them.

    Parameters
    ----------
    pulp
        The PuLP problem.
    variables
        By name, with their bounds.
    rows
        (terms, whether the sum equals the limit or is at most it, limit).
    objective
        The terms to minimise.
    """

    pulp: pulp.LpProblem
    variables: dict[str, tuple[pulp.LpVariable, int, int]] = field(default_factory=dict)
    rows: list[tuple[list[tuple[str, int]], bool, int]] = field(default_factory=list)
    objective: list[tuple[str, int]] = field(default_factory=list)


def new_model(name: str) -> Model:
    """Return an empty minimisation model."""
    return Model(pulp.LpProblem(name, pulp.LpMinimize))


def binary(model: Model, name: str) -> Variable:
    """Add a 0/1 variable."""
    return _add(model, name, (0, 1), pulp.LpInteger)


def whole(model: Model, name: str, low: int, high: int) -> Variable:
    """Add a variable for a time in ticks: continuous for HiGHS, an integer for CP-SAT."""
    return _add(model, name, (low, high), pulp.LpContinuous)


def _add(model: Model, name: str, bounds: tuple[int, int], category: str) -> Variable:
    variable = model.pulp.add_variable(name, *bounds, category)
    model.variables[name] = (variable, *bounds)
    return name


def at_most(model: Model, terms: Terms, limit: int) -> None:
    """Require that the sum of coefficient x variable is at most the limit."""
    rows = list(terms)
    model.rows.append((rows, False, limit))
    problem = model.pulp
    problem += _sum(model, rows) <= limit


def exactly(model: Model, terms: Terms, value: int) -> None:
    """Require that the sum of coefficient x variable equals the value."""
    rows = list(terms)
    model.rows.append((rows, True, value))
    problem = model.pulp
    problem += _sum(model, rows) == value


def minimise(model: Model, terms: Terms) -> None:
    """Set the objective to the sum of coefficient x variable."""
    model.objective.extend(terms)
    problem = model.pulp
    problem += _sum(model, model.objective)


def _sum(model: Model, terms: Sequence[tuple[Variable, int]]) -> pulp.LpAffineExpression:
    return pulp.LpAffineExpression([(model.variables[name][0], factor) for name, factor in terms])


def race(model: Model, options: Options, time_limit: float, hint: Values | None = None) -> Answer:
    """Solve a model with both solvers and return the best solutions found in time.

    With ``options.deterministic`` the solvers run one after the other under counted limits.
    """
    shared = _Race(options, time_limit, time.monotonic() + time_limit)
    runs: list[Callable[[], None]] = [
        lambda: _run_highs(model, shared),
        lambda: _run_cp_sat(model, shared, hint or {}),
    ]
    if options.deterministic:
        # HiGHS counts nodes only, and one node of a large model can take a minute.
        for run in runs if len(model.variables) <= MAX_COUNTED else runs[1:]:
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


def _run_highs(model: Model, shared: _Race) -> None:
    def interrupt(kind: object, message: object, out: object, answer: object, user: object) -> None:  # noqa: ARG001 - HiGHS' signature
        if shared.over():
            answer.user_interrupt = True  # type: ignore[attr-defined]

    limits: dict[str, object] = {"random_seed": shared.options.seed % 2**31}
    if shared.options.deterministic:
        limits["mip_max_nodes"] = 20
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
    # Step by step, as PuLP's own reading of the result knows neither node limits nor stops.
    solver.createAndConfigureSolver(model.pulp)
    solver.buildSolverModel(model.pulp)
    solver.callSolver(model.pulp)
    highs = model.pulp.solverModel
    column = list(highs.getSolution().col_value)
    values = {
        name: round(column[variable.index]) if column else 0
        for name, (variable, _, _) in model.variables.items()
    }
    # An interrupted run without a solution leaves zeros, which PuLP takes for values.
    feasible = int(highspy.SolutionStatus.kSolutionStatusFeasible)
    if int(highs.getInfo().primal_solution_status) == feasible and column:
        shared.add(sum(values[name] * factor for name, factor in model.objective), 0, values)
    status = highs.getModelStatus()
    if status == highspy.HighsModelStatus.kInfeasible:
        shared.prove("highs", Status.INFEASIBLE)
    elif status == highspy.HighsModelStatus.kOptimal:
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


def _run_cp_sat(model: Model, shared: _Race, hint: Values) -> None:
    copy, variables = _as_cp_sat(model, hint)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = shared.options.seed % 2**31
    if shared.options.deterministic:
        solver.parameters.max_deterministic_time = shared.seconds
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
    """Solve in a second thread, watching whether the search should end; return the status.

    The solver's own thread would not run Python's signal handlers before it returns.
    """
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(solver.solve, model, callback)
        while not run.done():
            wait([run], timeout=0.05)
            if over():
                solver.stop_search()
        return run.result()


def _as_cp_sat(model: Model, hint: Values) -> tuple[cp_model.CpModel, dict[str, cp_model.IntVar]]:
    """Return the same model for CP-SAT; every coefficient and bound is an integer."""
    copy = cp_model.CpModel()
    variables = {
        name: copy.new_int_var(low, high, name) for name, (_, low, high) in model.variables.items()
    }

    def total(terms: Sequence[tuple[Variable, int]]) -> cp_model.LinearExprT:
        return cp_model.LinearExpr.weighted_sum(
            [variables[name] for name, _ in terms], [factor for _, factor in terms]
        )

    for terms, equal, limit in model.rows:
        copy.add(total(terms) == limit if equal else total(terms) <= limit)
    copy.minimize(total(model.objective))
    for name, value in hint.items():
        if name in variables:
            copy.add_hint(variables[name], value)
    return copy, variables

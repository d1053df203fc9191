"""One integer model, raced by HiGHS (by way of PuLP) and CP-SAT.

HiGHS closes models with strong relaxations, CP-SAT those with many alike solutions; neither wins
everywhere (DGX-2 x 2 against NDv2 x 2), so both get the same model, one thread each, and the
first proof ends the race. All data of a model are integers, so that CP-SAT takes it as it is.

HiGHS looks at its interrupt callbacks only now and then (not in the root node of a large model),
so the race runs it in a child that can be killed, ``python -m taccl.synth.milp``: the model comes
on standard input as JSON, the answer goes to standard output. highspy is imported before PuLP,
which would hide its true import error.
"""

import json
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field, replace

from taccl.errors import SolverUnavailableError
from taccl.model.problem import Options, Status
from taccl.timing.deadline import Deadline

try:
    import highspy
    import pulp
except ImportError as cause:  # pragma: no cover - depends on the installation
    raise SolverUnavailableError(
        f"HiGHS can't be loaded: {cause}", fix="pip install 'highspy>=1.11,<1.14' 'pulp>=3.3'"
    ) from cause

try:
    from ortools.sat.python import cp_model
except ImportError as cause:  # pragma: no cover - depends on the installation
    raise SolverUnavailableError(
        f"CP-SAT can't be loaded: {cause}", fix="pip install 'ortools>=9.12,<9.16'"
    ) from cause

POOL = 4
"""How many solutions of a race are kept."""

MAX_COUNTED = 600
"""Variables up to which HiGHS takes part where work is counted."""

Variable = str
"""A variable of a model, by its name."""

Terms = Sequence[tuple[Variable, int]]


@dataclass(frozen=True)
class Model:
    """A minimisation model whose data are all integers.

    `variables` are name to (low, high, whether it must be whole), `rows` are (terms, whether the
    sum equals the limit or is at most it, limit), and `objective` has the terms to minimise.
    """

    variables: dict[Variable, tuple[int, int, bool]] = field(default_factory=dict)
    rows: list[tuple[Terms, bool, int]] = field(default_factory=list)
    objective: list[tuple[Variable, int]] = field(default_factory=list)

    def binary(self, name: str) -> Variable:
        """Add a 0/1 variable."""
        self.variables[name] = (0, 1, True)
        return name

    def continuous(self, name: str, low: int, high: int) -> Variable:
        """Add a variable for a time in ticks: continuous for HiGHS, an integer for CP-SAT."""
        self.variables[name] = (low, high, False)
        return name

    def at_most(self, terms: Terms, limit: int) -> None:
        """Require that the sum of coefficient x variable is at most the limit."""
        self.rows.append((terms, False, limit))

    def exactly(self, terms: Terms, value: int) -> None:
        """Require that the sum of coefficient x variable equals the value."""
        self.rows.append((terms, True, value))


@dataclass(frozen=True)
class Found:
    """The best solution, if any, and whether it (or that there is none) is proved."""

    values: dict[Variable, int] | None
    optimal: bool = False
    infeasible: bool = False


def solve(model: Model, seed: int, seconds: float | None, nodes: int | None = None) -> Found:
    """Solve a `model` by HiGHS in this process, until so many `seconds` or `nodes` are spent.

    The `seed` is that of its random choices; nodes are the limit where work is counted.
    """
    problem = pulp.LpProblem("model", pulp.LpMinimize)
    kinds = {True: pulp.LpInteger, False: pulp.LpContinuous}
    variables = {
        name: problem.add_variable(name, low, high, kinds[integer])
        for name, (low, high, integer) in model.variables.items()
    }

    def total(terms: Terms) -> pulp.LpAffineExpression:
        return pulp.LpAffineExpression([(variables[name], factor) for name, factor in terms])

    problem += total(model.objective)
    for terms, equal, limit in model.rows:
        problem += total(terms) == limit if equal else total(terms) <= limit
    options: dict[str, object] = {"random_seed": seed % 2**31}
    if nodes is not None:
        options["mip_max_nodes"] = nodes
    solver = pulp.HiGHS(msg=False, threads=1, gapRel=0, timeLimit=seconds, **options)
    # Step by step, as PuLP's own reading of the result does not know node limits.
    solver.createAndConfigureSolver(problem)
    solver.buildSolverModel(problem)
    solver.callSolver(problem)
    highs = problem.solverModel
    # A run that ends without a solution leaves zeros, which PuLP takes for values.
    feasible = int(highspy.SolutionStatus.kSolutionStatusFeasible)
    column = list(highs.getSolution().col_value)
    values = None
    if int(highs.getInfo().primal_solution_status) == feasible and column:
        values = {name: round(column[variable.index]) for name, variable in variables.items()}
    status = highs.getModelStatus()
    return Found(
        values,
        optimal=status == highspy.HighsModelStatus.kOptimal,
        infeasible=status == highspy.HighsModelStatus.kInfeasible,
    )


def solve_in_child(
    model: Model, seed: int, seconds: float, over: Callable[[], bool]
) -> Found | None:
    """Solve a `model` with a `seed` for so many `seconds`, as :func:`solve` does, in a child.

    When it is `over`, the child is killed; the answer is None then.

    Raises SolverUnavailableError when the child fails.
    """
    command = [sys.executable, "-m", "taccl.synth.milp"]
    pipe = subprocess.PIPE
    # A file, as communicate() with a timeout does not go on with input that a pipe did not take.
    with tempfile.TemporaryFile("w+") as stdin:
        json.dump({"model": vars(model), "seed": seed, "seconds": seconds}, stdin)
        stdin.seek(0)
        # A session of its own: Ctrl-C is for this process to handle.
        with subprocess.Popen(
            command, stdin=stdin, stdout=pipe, stderr=pipe, text=True, start_new_session=True
        ) as child:
            printed = None
            try:
                while printed is None:
                    try:
                        printed = child.communicate(timeout=0.1)
                    except subprocess.TimeoutExpired:
                        if over():
                            return None
            finally:
                # Whatever ends the watching ends the child.
                child.kill()
            out, err = printed
    if child.returncode:
        last = err.strip().splitlines()[-1:] or [f"exit status {child.returncode}"]
        raise SolverUnavailableError(f"HiGHS failed: {last[0]}", fix="reinstall highspy and pulp")
    return Found(**json.loads(out))


def main() -> None:
    """Be the child: solve the model on standard input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    task = json.load(sys.stdin)
    found = solve(Model(**task["model"]), task["seed"], task["seconds"])
    json.dump(asdict(found), sys.stdout)


Values = Mapping[str, int]


@dataclass(frozen=True)
class Answer:
    """What a race found: solutions by variable name, the best first (`pool`).

    The `status` is OPTIMAL, FEASIBLE, INFEASIBLE, TIME_LIMIT (nothing found) or INTERRUPTED;
    `winner` is the solver that found the best.
    """

    status: Status
    pool: tuple[Values, ...]
    winner: str


@dataclass
class _Race:
    """What the two solvers share while they run."""

    options: Options
    clock: Deadline
    found: list[tuple[float, int, dict[str, int]]] = field(default_factory=list)
    proved: set[Status] = field(default_factory=set)
    finished: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def over(self) -> bool:
        # A solver may overrun its own limit by what it takes to wind up: less, of a small one.
        stopped = self.finished.is_set() or self.options.stop.is_set()
        return stopped or self.clock.overdue(min(1.0, self.clock.end - self.clock.began))

    def add(self, objective: float, solver: int, values: dict[str, int]) -> None:
        with self.lock:
            self.found.append((objective, solver, values))

    def prove(self, status: Status) -> None:
        with self.lock:
            self.proved.add(status)
        if not self.options.deterministic:
            self.finished.set()


def race(model: Model, options: Options, time_limit: float, hint: Values | None = None) -> Answer:
    """Solve a `model` with both solvers and return the best solutions found in time.

    `options` are for the solvers; with ``deterministic`` they run one after the other under counted
    limits. `time_limit` is seconds, or counted work; CP-SAT starts from a `hint`: values of some
    variables.
    """
    shared = _Race(options, replace(options, time_limit=time_limit).begin())
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
    ranked = sorted(shared.found, key=lambda entry: entry[:2])
    distinct = []
    for _, _, values in ranked:
        if values not in distinct:
            distinct.append(values)
    if options.stop.is_set():
        status = Status.INTERRUPTED
    elif shared.proved:
        infeasible = Status.INFEASIBLE in shared.proved
        status = Status.INFEASIBLE if infeasible else Status.OPTIMAL
    else:
        status = Status.FEASIBLE if distinct else Status.TIME_LIMIT
    winner = ("highs", "cp-sat")[ranked[0][1]] if ranked else "none"
    return Answer(status, tuple(distinct[:POOL]), winner)


def _run_highs(model: Model, shared: _Race) -> None:
    """Run HiGHS here where work is counted, else in a child that the race can end."""
    seed = shared.options.seed
    if shared.options.deterministic:
        found: Found | None = solve(model, seed, None, nodes=20)
    else:
        seconds = max(0.1, shared.clock.left)
        try:
            found = solve_in_child(model, seed, seconds, shared.over)
        except SolverUnavailableError as error:
            shared.options.report(f"continuing without HiGHS: {error.problem}")
            return
    if found is None:
        return
    if found.values is not None:
        cost = sum(found.values[name] * factor for name, factor in model.objective)
        shared.add(cost, 0, found.values)
    if found.infeasible or found.optimal:
        shared.prove(Status.INFEASIBLE if found.infeasible else Status.OPTIMAL)


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
    """Run CP-SAT on the same model: every coefficient and bound is an integer."""
    copy = cp_model.CpModel()
    variables = {
        name: copy.new_int_var(low, high, name) for name, (low, high, _) in model.variables.items()
    }

    def total(terms: Terms) -> cp_model.LinearExprT:
        return cp_model.LinearExpr.weighted_sum(
            [variables[name] for name, _ in terms], [factor for _, factor in terms]
        )

    for terms, equal, limit in model.rows:
        copy.add(total(terms) == limit if equal else total(terms) <= limit)
    copy.minimize(total(model.objective))
    for name, value in hint.items():
        if name in variables:
            copy.add_hint(variables[name], value)
    solver = new_solver(shared.options, max(0.1, shared.clock.left), workers=1)
    status = solve_watched(solver, copy, _Keep(shared, variables), shared.over)
    if status in (cp_model.INFEASIBLE, cp_model.OPTIMAL):
        shared.prove(Status.INFEASIBLE if status == cp_model.INFEASIBLE else Status.OPTIMAL)


def new_solver(options: Options, seconds: float, *, workers: int) -> cp_model.CpSolver:
    """Return a CP-SAT solver that stops after some `seconds`, or so much counted work.

    `options` have the seed, and tell whether work is counted; where it is not, there are `workers`
    threads.
    """
    solver = cp_model.CpSolver()
    solver.parameters.random_seed = options.seed % 2**31
    solver.parameters.num_workers = 1 if options.deterministic else workers
    # The command line handles Ctrl-C; a handler that outlives its search aborts the process.
    solver.parameters.catch_sigint_signal = False
    if options.deterministic:
        solver.parameters.max_deterministic_time = seconds
        # Presolve counts its work apart, and by default has thirty times as much.
        solver.parameters.presolve_probing_deterministic_time_limit = seconds
        solver.parameters.symmetry_level = 0
    else:
        solver.parameters.max_time_in_seconds = seconds
    return solver


def solve_watched(
    solver: cp_model.CpSolver,
    model: cp_model.CpModel,
    callback: cp_model.CpSolverSolutionCallback | None,
    over: Callable[[], bool],
) -> object:
    """Solve a `model` in a second thread, until the search is `over`; return the status.

    The own thread of the `solver` would not run Python's signal handlers before it returns. Whether
    it is over is asked every 50 ms; every better solution goes to the `callback`, if given.
    """
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(solver.solve, model, callback)
        try:
            while not run.done():
                wait([run], timeout=0.05)
                if over():
                    solver.stop_search()
        finally:
            # Whatever ends the watching ends the search, which the pool would wait for.
            solver.stop_search()
        return run.result()


if __name__ == "__main__":
    main()

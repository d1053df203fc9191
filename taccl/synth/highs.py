"""HiGHS by way of PuLP: in this process, or in a child that can be killed.

HiGHS looks at its interrupt callbacks only now and then (not in the root node of a large model),
so the race runs it as ``python -m taccl.synth.highs``: the model comes on standard input as JSON,
the answer goes to standard output. highspy is imported before PuLP, which would hide its true
import error.
"""

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from taccl.errors import SolverUnavailableError

try:
    import highspy
    import pulp
except ImportError as cause:  # pragma: no cover - depends on the installation
    raise SolverUnavailableError(
        f"HiGHS can't be loaded: {cause}", fix="pip install 'highspy>=1.11,<1.14' 'pulp>=3.3'"
    ) from cause

Variable = str
"""A variable of a model, by its name."""

Terms = Sequence[tuple[Variable, int]]


@dataclass(frozen=True)
class Model:
    """A minimisation model whose data are all integers.

    Parameters
    ----------
    variables
        Name to (low, high, whether it must be whole).
    rows
        (terms, whether the sum equals the limit or is at most it, limit).
    objective
        The terms to minimise.
    """

    variables: dict[Variable, tuple[int, int, bool]] = field(default_factory=dict)
    rows: list[tuple[Terms, bool, int]] = field(default_factory=list)
    objective: list[tuple[Variable, int]] = field(default_factory=list)


@dataclass(frozen=True)
class Limits:
    """When HiGHS stops: seconds, or nodes where work is counted."""

    seed: int
    seconds: float | None = None
    nodes: int | None = None


@dataclass(frozen=True)
class Found:
    """The best solution, if any, and whether it (or that there is none) is proved."""

    values: dict[Variable, int] | None
    optimal: bool = False
    infeasible: bool = False


def solve(model: Model, limits: Limits) -> Found:
    """Solve a model in this process."""
    problem, variables = _as_pulp(model)
    options: dict[str, object] = {"random_seed": limits.seed % 2**31}
    if limits.nodes is not None:
        options["mip_max_nodes"] = limits.nodes
    solver = pulp.HiGHS(msg=False, threads=1, gapRel=0, timeLimit=limits.seconds, **options)
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


def _as_pulp(model: Model) -> tuple[pulp.LpProblem, dict[Variable, pulp.LpVariable]]:
    problem = pulp.LpProblem("model", pulp.LpMinimize)
    variables = {
        name: problem.add_variable(
            name, low, high, pulp.LpInteger if integer else pulp.LpContinuous
        )
        for name, (low, high, integer) in model.variables.items()
    }

    def total(terms: Terms) -> pulp.LpAffineExpression:
        return pulp.LpAffineExpression([(variables[name], factor) for name, factor in terms])

    problem += total(model.objective)
    for terms, equal, limit in model.rows:
        problem += total(terms) == limit if equal else total(terms) <= limit
    return problem, variables


def solve_in_child(model: Model, limits: Limits, over: Callable[[], bool]) -> Found | None:
    """Solve a model in a child process; None when it was killed, because ``over`` said so.

    Raises
    ------
    SolverUnavailableError
        When the child fails.
    """
    task = json.dumps({
        "variables": model.variables, "rows": model.rows, "objective": model.objective,
        "seed": limits.seed, "seconds": limits.seconds, "nodes": limits.nodes,
    })  # fmt: skip
    command = [sys.executable, "-m", "taccl.synth.highs"]
    pipe = subprocess.PIPE
    # A file, as communicate() with a timeout does not go on with input that a pipe did not take.
    with tempfile.TemporaryFile("w+") as stdin:
        stdin.write(task)
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
    answer = json.loads(out)
    return Found(answer["values"], answer["optimal"], answer["infeasible"])


def main() -> None:
    """Be the child: solve the model on standard input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    task = json.load(sys.stdin)
    model = Model(
        {name: (low, high, integer) for name, (low, high, integer) in task["variables"].items()},
        task["rows"],
        task["objective"],
    )
    found = solve(model, Limits(task["seed"], task["seconds"], task["nodes"]))
    json.dump(
        {"values": found.values, "optimal": found.optimal, "infeasible": found.infeasible},
        sys.stdout,
    )


if __name__ == "__main__":
    main()

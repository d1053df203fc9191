"""``auto`` with half the time limit of another tree's ``auto``, on the cells of ``frozen``.

``python -m benchmarks.half_time OTHER`` runs each machine, collective and size of the cells with
the package in folder ``OTHER`` and then with this one, and ends with status 1 where fewer than
``ENOUGH`` of every forty are at least as good with half the seconds. Run it on an idle machine. As
in an installed package, modules are compiled before: each tree runs the first problem once more.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from math import ceil
from pathlib import Path

from benchmarks.frozen import CELLS
from taccl.errors import OutOfTimeError

ENOUGH = 30
"""Of forty cells, those that have to be at least as good."""

LEFT_OUT = re.compile(r" --(engine|steps|rounds|chunks) \S+")
"""Arguments that say how to search."""

HERE = Path(__file__).parent.parent


def problems() -> list[str]:
    """Return the cells without the engine, each problem once."""
    return list(dict.fromkeys(LEFT_OUT.sub("", cell) for cell in CELLS))


def found(problem: str, tree: Path, limit: float, compiled: str) -> float | None:
    """Return the microseconds that ``auto`` of a tree finds in ``limit`` seconds; None: nothing.

    Its modules are kept ``compiled`` in a folder. Raises RuntimeError where it did not search.
    """
    environment = {
        **os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPYCACHEPREFIX": compiled,
    }  # fmt: skip
    asked = [sys.executable, "-m", "taccl", "synthesize", "--help"]
    told = subprocess.run(asked, capture_output=True, text=True, check=True, env=environment)
    # A tree that knows one kind of costs has no option for it.
    costs = ["--profile", "alpha-beta"] if "--profile" in told.stdout else []
    with tempfile.TemporaryDirectory() as folder:
        output = "--schedule" if "--runtime none" in problem else "--output"
        command = [
            sys.executable, "-m", "taccl", "synthesize", *costs, *problem.split(), "--time-limit",
            str(limit), "--json", "--quiet", output, str(Path(folder) / "found"),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode == OutOfTimeError.exit_status:
        return None
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
    report = json.loads(done.stdout)
    replay = report["replay_us"]
    return float(report["makespan_us"] if replay is None else replay)


def main() -> None:
    """Run the problems with both trees."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("other", type=Path, help="folder that holds the other taccl/")
    parser.add_argument("--limit", type=float, default=10.0, help="seconds of the other tree")
    parser.add_argument("--only", default="", help="problems that contain this text")
    given = parser.parse_args()
    if not (given.other / "taccl").is_dir():  # this one would be compared with itself
        parser.error(f"{given.other} holds no taccl/: name a checkout of the other tree")
    rows = [problem for problem in problems() if given.only in problem]
    good = 0
    with tempfile.TemporaryDirectory() as compiled:
        for place, problem in enumerate([*rows[:1], *rows]):
            other = found(problem, given.other.resolve(), given.limit, compiled)
            here = found(problem, HERE, given.limit / 2, compiled)
            if place == 0:
                continue
            fine = other is None or (here is not None and here <= other)
            good += fine
            ratio = here / other if here and other else float("nan")
            told = f"{problem:64s} {other!s:>12s} {here!s:>12s} {ratio:7.4f}"
            print(told, "" if fine else "worse", flush=True)
    least = ceil(len(rows) * ENOUGH / 40)
    print(f"{good} of {len(rows)} at least as good; {least} are needed")
    sys.exit(good < least)


if __name__ == "__main__":
    main()

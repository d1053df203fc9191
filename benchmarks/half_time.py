"""``auto`` with half the time limit of another tree's ``auto``, on the cells of ``frozen``.

``python -m benchmarks.half_time OTHER`` runs each machine, collective and size of the cells with
the package in folder ``OTHER`` and then with this one, and ends with status 1 where fewer than
``ENOUGH`` of every forty are at least as good with half the seconds. Run it on an idle machine. As
in an installed package, modules are compiled before: each tree runs the first problem once more.

A program is replayed at a whole number of its chunks. Where two are of different bytes (a time of
896 says nothing beside one of 768), this tree replays both at the most bytes up to those asked for
that are whole for both.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from math import ceil, lcm
from pathlib import Path
from typing import NamedTuple

from benchmarks.frozen import CELLS
from taccl.errors import OutOfTimeError

ENOUGH = 30
"""Of forty cells, those that have to be at least as good."""

LEFT_OUT = re.compile(r" --(engine|steps|rounds|chunks) \S+")
"""Arguments that say how to search."""

ABOUT_MACHINE = ("--nodes", "--alpha-rule")
"""Options that say on what a program is replayed."""

ELEMENT = 4
"""Bytes."""

HERE = Path(__file__).parent.parent


def problems() -> list[str]:
    """Return the cells without the engine, each problem once."""
    return list(dict.fromkeys(LEFT_OUT.sub("", cell) for cell in CELLS))


class Found(NamedTuple):
    """What a tree found: microseconds at so many bytes, and the XML; empty without a program."""

    time: float
    size: int
    xml: str


def printed(tree: Path, words: list[str], compiled: str) -> "subprocess.CompletedProcess[str]":
    """Return what ``taccl`` of a `tree` does for some `words`; modules are kept `compiled`."""
    environment = {
        **os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPYCACHEPREFIX": compiled,
    }  # fmt: skip
    # -P: else the package in the folder that this is run from comes before that of the tree.
    command = [sys.executable, "-P", "-m", "taccl", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def found(problem: str, tree: Path, limit: float, compiled: str) -> Found | None:
    """Return what ``auto`` of a tree finds in ``limit`` seconds; None: nothing.

    Its modules are kept ``compiled`` in a folder. Raises RuntimeError where it did not search.
    """
    # A tree that knows one kind of costs has no option for it.
    knows = "--profile" in printed(tree, ["synthesize", "--help"], compiled).stdout
    costs = ["--profile", "alpha-beta"] if knows else []
    with tempfile.TemporaryDirectory() as folder:
        file, plain = Path(folder) / "found", "--runtime none" in problem
        done = printed(tree, [
            "synthesize", *costs, *problem.split(), "--time-limit", str(limit), "--json", "--quiet",
            "--schedule" if plain else "--output", str(file),
        ], compiled)  # fmt: skip
        if done.returncode == OutOfTimeError.exit_status:
            return None
        if done.returncode:
            raise RuntimeError(f"{problem}: {done.stderr}")
        report = json.loads(done.stdout)
        if plain:
            return Found(float(report["makespan_us"]), int(report["size_bytes"]), "")
        size = report.get("replay_size_bytes", report["size_bytes"])
        return Found(float(report["replay_us"]), int(size), file.read_text())


def at_one_size(problem: str, both: list[Found], compiled: str) -> list[float]:
    """Return the microseconds that `both` take for the same bytes."""
    if len({one.size for one in both}) == 1 or not all(one.xml for one in both):
        return [one.time for one in both]
    chunks = [int(re.findall(r'nchunksperloop="(\d+)"', one.xml)[0]) for one in both]
    unit = ELEMENT * lcm(*chunks)
    size = max(unit, max(one.size for one in both) // unit * unit)
    machine, _, *rest = problem.split()
    options = zip(rest[::2], rest[1::2], strict=True)
    asked = [word for pair in options if pair[0] in ABOUT_MACHINE for word in pair]
    times = []
    with tempfile.TemporaryDirectory() as folder:
        for one in both:
            file = Path(folder) / "found.xml"
            file.write_text(one.xml)
            done = printed(HERE, [
                "evaluate", str(file), "--topology", machine, *asked,
                "--profile", "alpha-beta", "--size", str(size), "--json",
            ], compiled)  # fmt: skip
            if done.returncode:
                raise RuntimeError(f"{problem}: {done.stderr}")
            (row,) = json.loads(done.stdout)["rows"]
            times.append(float(row["time_us"]))
    return times


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
            times = [None if one is None else one.time for one in (other, here)]
            if other is not None and here is not None:
                times = [*at_one_size(problem, [other, here], compiled)]
            before, now = times
            fine = before is None or (now is not None and now <= before)
            good += fine
            ratio = now / before if now and before else float("nan")
            told = f"{problem:64s} {before!s:>12s} {now!s:>12s} {ratio:7.4f}"
            print(told, "" if fine else "worse", flush=True)
    least = ceil(len(rows) * ENOUGH / 40)
    print(f"{good} of {len(rows)} at least as good; {least} are needed")
    sys.exit(good < least)


if __name__ == "__main__":
    main()

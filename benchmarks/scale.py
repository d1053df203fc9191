"""Thousands of ranks: seconds, memory and gap, each run in a process of its own.

``python -m benchmarks.scale [--only "torus3d:32x16x32"] [--write docs/performance.md]`` runs
``taccl synthesize`` as a user would, one chunk for each rank, for the schedule alone. ``--results
FILE`` keeps the rows that were run: those that it has are not run again.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.auto import text_of
from benchmarks.listed import listed
from benchmarks.sections import replace_section

COLLECTIVES = ("allgather", "reducescatter", "allreduce", "alltoall")

MACHINES: Mapping[str, tuple[int, tuple[str, ...]]] = {
    "dgx-a100 x 32": (256, COLLECTIVES),
    "dgx-a100 x 64": (512, ("alltoall",)),
    "dgx-a100 x 128": (1024, COLLECTIVES),
    "dgx-a100 x 512": (4096, COLLECTIVES),
    "dgx-h100 x 32": (256, COLLECTIVES),
    "dgx-h100 x 128": (1024, COLLECTIVES),
    "dgx-h100 x 1024": (8192, COLLECTIVES),
    "dgx-h100 x 2048": (16384, COLLECTIVES),
    "torus3d:8x4x8": (256, COLLECTIVES),
    "torus3d:16x8x8": (1024, COLLECTIVES),
    "torus3d:16x16x16": (4096, COLLECTIVES),
    "torus3d:32x16x32": (16384, COLLECTIVES),
}
"""Ranks, and what is asked."""

CHUNK = 64
"""Megabytes of every chunk."""

LIMITS = ((1024, 60), (4096, 120), (16384, 600))
"""Ranks, and seconds for the search, which ends sooner within a hundredth of a bound."""

HEAD = f"""## Thousands of ranks

Made by `python -m benchmarks.scale`: `taccl synthesize X C --size S --chunks 1 --batch none
--runtime none`, with `--engine flow` for an alltoall and `--engine guided` for the others, where S
makes every chunk {CHUNK} MB; each in a process of its own, whose start counts. Schedules are held
and verified by one representative of every orbit of their symmetries; *sends* are those of all
orbits. *gap* is to what no algorithm can beat. Other jobs used the machine: *seconds* are by the
wall clock, *CPU s* of both cores together.
"""

COLUMNS = ("machine", "ranks", "collective", "sends", "makespan ms", "gap_fixed", "gap", "seconds",
           "CPU s", "GB")  # fmt: skip

Row = dict[str, float]


def command_of(machine: str, collective: str) -> list[str]:
    """Return the command line of a row, after the name of the program."""
    name, _, nodes = machine.partition(" x ")
    engine = "flow" if collective == "alltoall" else "guided"
    ranks = MACHINES[machine][0]
    limit = next(seconds for most, seconds in LIMITS if ranks <= most)
    return [
        "synthesize", name, collective, *(["--nodes", nodes] if nodes else []),
        "--size", f"{CHUNK * ranks}MB", "--chunks", "1", "--batch", "none",
        "--engine", engine, "--runtime", "none", "--time-limit", str(limit), "--quiet", "--json",
    ]  # fmt: skip


def run(machine: str, collective: str) -> Row:
    """Run one row; RuntimeError where it ends with an error."""
    began = time.monotonic()
    command = [sys.executable, "-m", "taccl", *command_of(machine, collective)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        told = process.stdout.read() if process.stdout is not None else ""
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    answer = json.loads(told)
    return {
        **{key: answer[key] for key in ("sends", "makespan_us", "gap_fixed", "gap")},
        "seconds": time.monotonic() - began,
        "cpu": used.ru_utime + used.ru_stime, "gb": used.ru_maxrss / 1e6,
    }  # fmt: skip


def line_of(machine: str, collective: str, row: Row) -> str:
    """Return the line of the table for a row."""
    return text_of((
        machine, str(MACHINES[machine][0]), collective, f"{row['sends']:.0f}",
        f"{row['makespan_us'] / 1e3:.2f}", f"{row['gap_fixed']:.2%}", f"{row['gap']:.2%}",
        f"{row['seconds']:.0f}", f"{row['cpu']:.0f}", f"{row['gb']:.1f}",
    ))  # fmt: skip


def exponent(rows: Sequence[tuple[int, float]]) -> float:
    """Return by which power seconds grow with ranks, from the first (ranks, seconds) to the last.

    Least squares on logarithms; 0 for fewer than two numbers of ranks.
    """
    points = [(math.log(ranks), math.log(seconds)) for ranks, seconds in rows]
    middle = [sum(axis) / len(points) for axis in zip(*points, strict=True)]
    spread = sum((x - middle[0]) ** 2 for x, _ in points)
    return sum((x - middle[0]) * (y - middle[1]) for x, y in points) / spread if spread else 0.0


def growth(kept: Mapping[tuple[str, str], Row]) -> list[str]:
    """Return the lines that say how CPU seconds grow from 256 ranks on."""
    lines = []
    for collective in COLLECTIVES:
        for family in ("dgx-a100", "dgx-h100", "torus3d"):
            rows = [
                (MACHINES[machine][0], row["cpu"])
                for (machine, of), row in kept.items()
                if of == collective and machine.startswith(family)
            ]
            if len(rows) > 1:
                least, most = min(rows)[0], max(rows)[0]
                power = f"{exponent(rows):.2f}"
                lines.append(text_of((f"{family} {collective}", str(least), str(most), power)))
    return lines


def page(kept: Mapping[tuple[str, str], Row]) -> str:
    """Return the section of the page."""
    lines = [HEAD, text_of(COLUMNS), f"|{'---|' * len(COLUMNS)}"]
    lines += [line_of(*key, row) for key, row in kept.items()]
    head = ("CPU seconds against ranks", "from", "to", "exponent")
    return "\n".join([*lines, "", text_of(head), f"|{'---|' * len(head)}", *growth(kept), ""])


def main() -> None:
    """Run rows, print them, keep and write them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--only", type=listed(MACHINES), default=[*MACHINES],
        help="machines of the table, with commas between",
    )  # fmt: skip
    parser.add_argument("--collectives", type=listed(COLLECTIVES), default=[*COLLECTIVES])
    parser.add_argument("--results", type=Path, help="a file that keeps rows between runs")
    parser.add_argument("--write", type=Path, help="the page that gets the table")
    asked = parser.parse_args()
    file = asked.results
    rows = json.loads(file.read_text()) if file is not None and file.is_file() else []
    known: dict[tuple[str, str], Row] = {(machine, of): row for machine, of, row in rows}
    for machine, (_, collectives) in MACHINES.items():
        for collective in collectives:
            if machine not in asked.only or collective not in asked.collectives:
                continue
            if (machine, collective) not in known:
                known[machine, collective] = run(machine, collective)
                if file is not None:
                    file.write_text(json.dumps([(*key, row) for key, row in known.items()]))
            print(line_of(machine, collective, known[machine, collective]), flush=True)
    order = [(machine, of) for machine, (_, asks) in MACHINES.items() for of in asks]
    kept = {key: known[key] for key in order if key in known}
    print("", *growth(kept), sep="\n")
    if asked.write:
        replace_section(asked.write, "scale", page(kept))


if __name__ == "__main__":
    main()

"""Gathers and sums without a sketch against bounds, classical algorithms and a plain greedy.

``python -m benchmarks.gathers [--only small,growth] [--rows dgx] [-o docs/performance.md]`` runs
every row as ``taccl synthesize ... --engine guided --runtime none`` would after machine code is
compiled, holds it to a target, and ends with exit status 1 when one is missed, each with by how
much. ``--results FILE`` keeps the rows that were run, so that the tables can be made in turns.
``--slow 3`` gives searches three times as long, on a machine that other jobs use.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.gathers_parts import PARTS, Line, Part
from benchmarks.gathers_runs import warm_up
from benchmarks.sections import replace_section

HEAD = """## Gathers and sums without a sketch

Made by `python -m benchmarks.gathers`: engine `guided`, runtime `none`, alpha rule `occupy`, the
schedule's makespan (no program); after the first run, which compiles. `gap_fixed` is to the bound
for this chunk count with one chunk to a message, *gap* to what no algorithm can beat. *ring*,
*halving-doubling*, *all-pairs* and *greedy* (earliest finish first) are how many times as long
these take; a dash: the links don't allow it, or there are more than 256 ranks. *plain graph*:
without the declared rotations, so that symmetries are searched for; *no symmetry*: not even that.
Other jobs used the machine: *seconds* are by the wall clock, *CPU s* of both cores together, and a
target holds where the smaller of the two meets it. Where the gap is above 1 % the search lasts
until its time limit, which is the target, and had a part of the two cores for it.
*proved ratio*: the bound for an allreduce (for this chunk count where one is asked for, else for
all algorithms) in parts of the sum, below which no ratio can be; a target below it is impossible,
and then 1 is the target. On ring:8 and ndv2 a sum saves a tenth and more where both have the same
count (1 and 3): the halves by themselves leave links idle that the whole uses. Where each takes its
best count, both are within 3 % of the bound, and there is no tenth to save. At 256 MB the gap
should be at most 5 %: on dgx-a100 in the rows with batches, as one by one the many chunks that it
takes cost an alpha each.
"""

Kept = dict[str, dict[str, Line]]


def read_results(file: Path | None) -> Kept:
    """Return the rows that earlier runs kept."""
    if file is None or not file.is_file():
        return {}
    found: Mapping[str, Mapping[str, Mapping[str, list[str]]]] = json.loads(file.read_text())
    return {
        part: {
            name: Line(tuple(line["cells"]), tuple(line["misses"])) for name, line in rows.items()
        }
        for part, rows in found.items()
    }


def write_results(file: Path, kept: Kept) -> None:
    """Keep rows for later runs."""
    plain = {
        part: {
            name: {"cells": list(line.cells), "misses": list(line.misses)}
            for name, line in rows.items()
        }
        for part, rows in kept.items()
    }
    file.write_text(json.dumps(plain, indent=1))


def text_of(cells: tuple[str, ...]) -> str:
    """Return a row of a table."""
    return f"| {' | '.join(cells)} |"


def table_of(part: Part, lines: Mapping[str, Line]) -> Iterator[str]:
    """Yield the lines of a table, in the order of its rows, and what they miss."""
    yield f"\n### {part.heading}\n"
    yield text_of(part.columns)
    yield f"|{'---|' * len(part.columns)}"
    shown = [(name, lines[name]) for name in part.rows if name in lines]
    for _, line in shown:
        yield text_of(line.cells)
    missed = [(name, line.misses) for name, line in shown if line.misses]
    if missed:
        yield "\nMissed:\n"
        yield from (f"- **{name}**: {'; '.join(misses)}" for name, misses in missed)


def page(kept: Kept) -> str:
    """Return the section of the page."""
    tables = [line for name, part in PARTS.items() for line in table_of(part, kept.get(name, {}))]
    return HEAD + "\n".join(tables) + "\n"


def run_part(part: Part, wanted: str, slow: float) -> Iterator[tuple[str, Line]]:
    """Run the rows whose name holds a text, printing each."""
    print(f"\n{part.heading}\n{text_of(part.columns)}", flush=True)
    for name, (machine, made) in part.rows.items():
        if wanted not in name:
            continue
        if machine.missing():
            print(f"left out: {name}, as {machine.missing()}", flush=True)
            continue
        began = time.monotonic()
        line = made(slow)
        missed = f" MISSED {'; '.join(line.misses)}" if line.misses else ""
        print(f"{text_of(line.cells)}{missed} ({time.monotonic() - began:.0f} s)", flush=True)
        yield name, line


def main() -> int:
    """Run rows, print and write them; return 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--rows", default="", help="rows whose name holds this")
    parser.add_argument("--slow", type=float, default=1.0, help="multiplies time limits")
    parser.add_argument("--results", type=Path, help="a file that keeps rows between runs")
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    parts = [name for name in arguments.only.split(",") if name]
    if not set(parts) <= set(PARTS):
        parser.error(f"--only takes {', '.join(PARTS)}")
    warm_up()
    done: Kept = {}
    for name in parts:
        for row, line in run_part(PARTS[name], arguments.rows, arguments.slow):
            done.setdefault(name, {})[row] = line
            if arguments.results:
                kept = read_results(arguments.results)
                kept.setdefault(name, {})[row] = line
                write_results(arguments.results, kept)
    missed = [
        f"{row}: {miss}" for rows in done.values() for row, one in rows.items()
        for miss in one.misses
    ]  # fmt: skip
    print(f"\n{sum(map(len, done.values()))} rows, {len(missed)} targets missed")
    for miss in missed:
        print(f"missed: {miss}")
    if arguments.output:
        replace_section(
            arguments.output, "gathers",
            page(read_results(arguments.results) if arguments.results else done),
        )  # fmt: skip
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

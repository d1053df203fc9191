"""The papers that taccl's training steps grew from: their ratios beside the model's.

``python -m benchmarks.seeds`` (half a minute) computes a row for each, prints it, and ends with
status 1 where a row that has to be reproduced is not. ``--write docs/performance.md`` writes the
section there.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.sections import replace_section
from benchmarks.seeds_rows import CLOSE, ROWS, Row
from taccl.report.text import aligned

HEAD = ("seed", "paper", "model", "ceiling", "verdict", "compared", "missing")

INTRO = f"""## Training steps beside the papers

Made by `python -m benchmarks.seeds --write docs/performance.md`. *paper* is what the paper reports,
most often *up to*; *model* is computed by `taccl` from the inputs below, none of which was chosen
for what comes out; *ceiling* is what the bytes allow, whatever the algorithm. *reproduced*: within
{CLOSE:.0%} of the paper's ratio, or of its range. *explained*: the ceiling is below the paper's
ratio, so that something else made the rest; *missing* says what. *not modelled*: neither, or no
input is the paper's. What each is, and how to try it, is in [related work](related.md).

"""


def ratio(value: float | None) -> str:
    """Return a ratio as a cell; a dash: there is none."""
    return "-" if value is None else f"{value:.2f}"


def cells(row: Row) -> list[str]:
    """Return a row as it is printed."""
    low, high = (f"{one:.3g}" for one in row.paper)
    paper = low if low == high else f"{low} to {high}"
    return [
        row.seed, paper, ratio(row.model), ratio(row.ceiling), row.verdict, row.compared,
        row.missing or "-",
    ]  # fmt: skip


def details(row: Row) -> list[str]:
    """Return where a row's inputs are from, and what else was computed."""
    lines = [f"paper: {row.source}"]
    lines += [f"{one.known}: {one.what} ({one.source})" for one in row.inputs]
    return [*lines, *(f"also: {note}" for note in row.notes)]


def page(rows: Sequence[Row]) -> str:
    """Return the section of docs/performance.md."""
    table = [HEAD, ["---"] * len(HEAD), *map(cells, rows)]
    lines = [f"| {' | '.join(line)} |" for line in table]
    lines += ["", "### What was put in", ""]
    for row in rows:
        lines += [f"**{row.seed}**", "", *(f"- {line}" for line in details(row)), ""]
    return INTRO + "\n".join(lines)


def missed(rows: Sequence[Row]) -> list[str]:
    """Return the seeds that have to be reproduced and are not."""
    return [
        row.seed for row in rows if ROWS[row.seed][1] == "reproduced" != row.verdict
    ]  # fmt: skip


def main() -> None:
    """Compute the rows, print and write them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", type=Path, help="the page whose section is replaced")
    parser.add_argument("--only", default="", help="seeds whose names contain this")
    parser.add_argument("--inputs", action="store_true", help="print where inputs are from")
    given = parser.parse_args()
    if given.write is not None and given.only:
        parser.error("--write writes all rows: leave out --only")
    rows = []
    for name, (make, _) in ROWS.items():
        if given.only.lower() in name.lower():
            start = time.perf_counter()
            rows.append(make())
            print(f"{name}: {time.perf_counter() - start:.1f} s", file=sys.stderr)
    for line in aligned([HEAD, *map(cells, rows)], str.ljust):
        print(line)
    for row in rows if given.inputs else ():
        print("", row.seed, *(f"  {line}" for line in details(row)), sep="\n")
    if given.write is not None:
        replace_section(given.write, "seeds", page(rows))
    lost = missed(rows)
    if lost:
        sys.exit(f"not reproduced: {', '.join(lost)}")


if __name__ == "__main__":
    main()

"""TACCL as TE-CCL's authors re-ran it: ``python -m benchmarks.rerun --data DIR``.

66 rows (``targets/taccl_by_teccl_authors.csv``, from TE-CCL's ``generate_figures.py``): NDv2 x 2,
NDv2 x 4 and DGX-2 x 2 as TE-CCL describes them, AllGather and AlltoAll, 1 KB to 1 GB. Exit status
1 where one of these is missed:

- every row has a verified schedule and a judged program in less than 60 s;
- its makespan under ``occupy`` is at most theirs, or our bound proves that theirs can't be
  reached (the original's stated times can be below what its sends cost);
- AllGather: bound / makespan >= 95 % from 64 MB on, >= 85 % at 16 MB; AlltoAll: >= 99 % from
  16 MB on.

Units. Sizes are powers of ten: algbw x time of each row is 1000 bytes for 1KB. For an AllGather
that is the gathered output, for an AlltoAll one rank's whole send buffer with its own part: what
``taccl --size`` counts, so that the sizes are taken as they are. The bound on algbw that the table
gives, 3.125 GB/s for AlltoAll on NDv2 x 2, is that of such a buffer: 64 pairs cross a NIC of
12.5 GB/s. Makespans are of chunks of the exact size (31.25 bytes for 1 KB on 32 ranks); replays
are of programs at the largest size of whole elements.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

from benchmarks.published import (
    KINDS,
    TABLE_HEAD,
    Ours,
    Row,
    cells_of,
    picoseconds,
    records,
    selected,
    size_of,
    solve,
    warm_up,
)
from benchmarks.sections import replace_section

TABLE = "taccl_by_teccl_authors.csv"
SECONDS = 60.0
"""Less than this for every row."""

SHARES = {"allgather": ((64 * 10**6, 0.95), (16 * 10**6, 0.85)), "alltoall": ((16 * 10**6, 0.99),)}
"""By collective: from which size on which share of the bound is wanted; larger sizes first."""

HEAD = """## TACCL as TE-CCL's authors re-ran it

Made by `python -m benchmarks.rerun --data DIR`, where DIR holds TE-CCL's machines and the times of
its authors' runs of TACCL with Gurobi (3 to 3324 s each; four rows failed). *ours* is the makespan
of the verified schedule under `occupy`, found by engine `auto` with `--time-limit {limit:g}`
and `--runtime none`{again}, *replay* the time of its program for `portable` (at the largest size of
whole elements), *bound* what no algorithm can beat. *unattainable*: the bound is above their time.
"""


def rows(data: Path) -> list[Row]:
    """Return the rows of the table, in its order."""
    return [
        Row(
            f"{record['topology']}_{record['chassis']}chassis", KINDS[record["collective"]],
            record["output_size"], size_of(record["output_size"]), picoseconds(record["time_us"]),
        )
        for record in records(data / "targets" / TABLE)
    ]  # fmt: skip


def wanted_share(row: Row) -> float:
    """Return the share of the bound that a row has to reach."""
    wanted = (share for least, share in SHARES[row.collective] if row.size >= least)
    return next(wanted, 0.0)


def misses(row: Row, ours: Ours) -> Iterator[str]:
    """Yield what a row misses, in words."""
    if ours.makespan is None:
        yield f"nothing: {ours.problem}"
        return
    if ours.seconds >= SECONDS:
        yield f"{ours.seconds:.0f} s"
    if row.theirs is not None and ours.bound <= row.theirs < ours.makespan:
        yield "slower than theirs"
    wanted = wanted_share(row)
    if ours.bound < wanted * ours.makespan:
        yield f"below {wanted:.0%} of the bound"


def verdict(row: Row, ours: Ours) -> str:
    """Return the last column: what is missed, or that theirs can't be reached."""
    missed = ", ".join(misses(row, ours))
    if missed:
        return f"MISSED: {missed}"
    return "unattainable" if row.theirs is not None and ours.bound > row.theirs else ""


def main() -> None:
    """Run every row, print and write the table, and fail when a row misses its target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--time-limit", type=float, default=45.0, help="seconds for each search")
    parser.add_argument("--again", type=float, help="limit to try rows that miss once more with")
    parser.add_argument("--only", default="", help="rows whose name this expression matches")
    parser.add_argument("-o", "--output", type=Path, help="the page to write, of all rows")
    asked = parser.parse_args()
    warm_up()
    print(TABLE_HEAD, end="", flush=True)
    lines, missed = [], 0
    for row in selected(rows(asked.data), asked.only):
        ours = solve(asked.data, row, "occupy", "portable", asked.time_limit)
        if asked.again and any(misses(row, ours)):
            ours = solve(asked.data, row, "occupy", "portable", asked.again)
        missed += any(misses(row, ours))
        lines.append(cells_of(row, ours, verdict(row, ours)))
        print(lines[-1], flush=True)
    if asked.output:
        text = "".join(f"{line}\n" for line in lines)
        again = f" (rows that miss once more, with {asked.again:g})" if asked.again else ""
        head = HEAD.format(limit=asked.time_limit, again=again)
        replace_section(asked.output, "rerun", head + TABLE_HEAD + text)
    raise SystemExit(f"{missed} of {len(lines)} rows missed" if missed else 0)


if __name__ == "__main__":
    main()

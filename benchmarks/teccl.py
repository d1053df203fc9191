"""TE-CCL's schedules, and ours under ``delay``: ``python -m benchmarks.teccl --data DIR``.

AllGather on DGX-2 x 2 and NDv2 x 4 against TE-CCL's schedules *replayed in continuous time*
(``targets/teccl_replay.tsv``); its own finish times are whole epochs, and a replay may be below or
above. AlltoAll on DGX-2 x 2 against the finish times as published
(``targets/teccl_published.csv``). Exit status 1 where, of the rows of a collective, fewer than
90 % are at most 1.01 x theirs, or one is above 1.05 x. Its NDv2 x 2 rows are left out: TE-CCL took
one of the 16 GPUs for a switch, so that they serve 15.

Units. The size of a row is its algbw x finish, not its label: the modes labelled 1KB move 1000 or
2000 bytes (``Fast_Early_Stop`` on DGX-2). It is a whole multiple of the label, K, M and G being
powers of ten, and for the replayed rows it is ranks x chunk_bytes, one chunk a rank; both are
checked. For an AllGather this is the gathered output, for an AlltoAll one rank's whole send
buffer with its own part, as ``taccl --size`` counts. GB/s are 10^9 bytes a second, and 1 GB/s x
1 us is 1000 bytes. The alpha of a message occupies no link (``delay``), as in TE-CCL's model.
"""

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
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

MACHINES = {("DGX2", "2"): 32, ("NDv2", "4"): 32}
"""Topology and chassis of the rows that count, and their ranks."""

USUAL, MOST, SHARE = Fraction(101, 100), Fraction(105, 100), Fraction(9, 10)
"""SHARE of the rows are within USUAL times theirs, and none is above MOST times theirs."""

HEAD = """## TE-CCL's schedules

Made by `python -m benchmarks.teccl --data DIR`, where DIR holds TE-CCL's machines and its published
schedules. *theirs*: an allgather's schedule replayed in continuous time, an alltoall's finish as
published; *ours*: the makespan of the verified schedule under `delay`, found by engine `auto` with
`--time-limit {limit:g}` and `--runtime none`. The size is algbw x finish; modes of one size are
compared with the same run.
"""

Record = Mapping[str, str]


def size_of_record(record: Record) -> int:
    """Return the bytes that a published row moves: algbw x finish.

    Raises
    ------
    ValueError
        When that is no whole multiple of the label within the digits of the table.
    """
    label = size_of(record["output_size"])
    moved = Fraction(record["algbw_GBps"]) * Fraction(record["finish_us"]) * 1000
    times = round(moved / label)
    if times < 1 or abs(moved - times * label) > moved / 1000:
        raise ValueError(f"{record}: moves {float(moved)} bytes")
    return times * label


def rows(data: Path) -> list[Row]:
    """Return the rows that count, those of an allgather with their replayed times.

    Raises
    ------
    ValueError
        When the two tables do not fit each other.
    """
    key = ("topology", "chassis", "mode")
    replays = {
        (*(record[name] for name in key), record["size"]): record
        for record in records(data / "targets" / "teccl_replay.tsv")
    }
    found = []
    for record in records(data / "targets" / "teccl_published.csv"):
        ranks = MACHINES.get((record["topology"], record["chassis"]))
        if ranks is None:
            continue
        size, finish = size_of_record(record), record["finish_us"]
        if record["collective"] == "AllGather":
            replayed = replays[(*(record[name] for name in key), record["output_size"])]
            if Fraction(replayed["chunk_bytes"]) * ranks != size:
                raise ValueError(f"{record}: chunks of {replayed['chunk_bytes']} bytes")
            finish = replayed["replay_us"]
        found.append(
            Row(
                f"{record['topology']}_{record['chassis']}chassis", KINDS[record["collective"]],
                record["output_size"], size, picoseconds(finish), record["mode"],
            )
        )  # fmt: skip
    return found


def over(row: Row, ours: Ours) -> Fraction | None:
    """Return our time over theirs; None without one of them."""
    if ours.makespan is None or not row.theirs:
        return None
    return Fraction(ours.makespan, row.theirs)


def verdict(row: Row, ours: Ours) -> str:
    """Return the last column: how far a row is off, where it is."""
    ratio = over(row, ours)
    if ratio is None:
        return f"MISSED: nothing: {ours.problem}"
    if ratio <= USUAL:
        return ""
    far = "MISSED: above" if ratio > MOST else "within"
    why = ", unattainable" if row.theirs and ours.bound > row.theirs * USUAL else ""
    return f"{far} {float(MOST):.2f} x{why}"


def misses(answers: Mapping[Row, Ours]) -> Iterator[str]:
    """Yield which targets are missed, by collective."""
    for collective in sorted({row.collective for row in answers}):
        ratios = [over(row, ours) for row, ours in answers.items() if row.collective == collective]
        near = sum(ratio is not None and ratio <= USUAL for ratio in ratios)
        far = sum(ratio is None or ratio > MOST for ratio in ratios)
        if near < SHARE * len(ratios):
            yield f"{collective}: {near} of {len(ratios)} rows within {float(USUAL):.2f} x"
        if far:
            yield f"{collective}: {far} of {len(ratios)} rows above {float(MOST):.2f} x"


def main() -> None:
    """Run every size once, print and write the table, and fail when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--time-limit", type=float, default=45.0, help="seconds for each search")
    parser.add_argument("--only", default="", help="rows whose name this expression matches")
    parser.add_argument("-o", "--output", type=Path, help="the page to write, of all rows")
    asked = parser.parse_args()
    warm_up()
    print(TABLE_HEAD, end="", flush=True)
    solved: dict[Row, Ours] = {}
    answers: dict[Row, Ours] = {}
    for row in selected(rows(asked.data), asked.only):
        alike = replace(row, label="", theirs=None, mode="")
        if alike not in solved:
            solved[alike] = solve(asked.data, row, "delay", None, asked.time_limit)
        answers[row] = solved[alike]
        print(cells_of(row, answers[row], verdict(row, answers[row])), flush=True)
    missed = list(misses(answers))
    if asked.output:
        lines = (cells_of(row, ours, verdict(row, ours)) for row, ours in answers.items())
        text = "".join(f"{line}\n" for line in lines)
        replace_section(
            asked.output, "teccl", HEAD.format(limit=asked.time_limit) + TABLE_HEAD + text
        )
    raise SystemExit("; ".join(missed) if missed else 0)


if __name__ == "__main__":
    main()

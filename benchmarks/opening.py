"""The first page of docs/performance.md: what is measured, five results, how near to the limit.

It is made of the tables below it, and made anew with each of them; a part that is not there yet is
left out. ``python -m benchmarks.opening docs/performance.md`` makes it alone.
"""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

BEGIN, END = "<!-- opening -->\n", "<!-- /opening -->\n"

SHOWN = 6
"""Rows of a list."""

ON_PAR = 0.999
"""Ratios from here to 1 are called equal: the tables have three digits."""

HEAD = """# Performance

## What is measured

**All times are modelled**, in exact integers: the [replay](concepts.md#replay) of a verified
program on a topology file or, where a table says *makespan*, the end of a verified schedule, whose
program may take longer. The profile is `alpha-beta`, as in all published comparisons; what it is
worth beside hardware is in [truth.md](truth.md).
[What the model leaves out](concepts.md#what-the-model-leaves-out) counts most for small buffers.

*bound* is a proven lower bound for every algorithm in the same model, and *gap* is
time / bound - 1: 0 % is optimal. *fixed bound* holds only for schedules with the same chunk count
*k* and one chunk to a message, and *gap_fixed* is makespan / fixed bound - 1. A large gap does not
prove that a better algorithm exists: bounds may be loose, most of all for small buffers.

Only the columns *seconds* are measured: how long a search took by the wall clock on two cores of a
shared AMD EPYC, its loops compiled before. Each part below begins with the command that makes it.

## Five results

Result 1 is about replays, the others are about makespans.

"""

GAPS_HEAD = """
## How near to the limit

Of [the cells of the grid](#how-near-to-the-limit-size-by-size), those with the largest *gap* below:

| cells | number | median gap | ninth decile | worst | within 5 % |
|---|---|---|---|---|---|
"""

WORST_HEAD = """
| machine, collective, size, profile | time us | gap |
|---|---|---|
"""

TIES_HEAD = """
Sizes at which the library of result 1 is no faster than the best classical algorithm, though the
bound would allow it (*least* is bound / time of that algorithm):

| collective | bytes | library us | best classical | least |
|---|---|---|---|---|
"""

CELL = ("machine", "collective", "size", "profile")

Row = Mapping[str, str]


def refreshed(page: str) -> str:
    """Return a page with its opening made of its tables; as it is where it has no opening."""
    if BEGIN not in page or END not in page:
        return page
    before, rest = page.split(BEGIN, 1)
    _, after = rest.split(END, 1)
    return f"{before}{BEGIN}{opening(after)}{END}{after}"


def opening(page: str) -> str:
    """Return the opening of a page with these tables."""
    results = "".join(f"{number}. {line}\n" for number, line in enumerate(_results(page), 1))
    near = f"{GAPS_HEAD}{_near(page)}{WORST_HEAD}{_largest_gaps(page)}"
    return f"{HEAD}{results}{near}{TIES_HEAD}{_ties(page)}\n"


def rows_of(page: str, part: str) -> list[Row]:
    """Return the rows of all tables of a part, by column; of equal names the first counts."""
    found = re.search(rf"<!-- {part} -->\n(.*?)<!-- /{part} -->", page, re.DOTALL)
    rows: list[Row] = []
    names: list[str] = []
    for line in found[1].splitlines() if found else ():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            names = []
        elif not names:
            names = cells
        elif not set(line) <= set("|-: "):
            rows.append(dict(reversed([*zip(names, cells, strict=False)])))
    return rows


def _number(text: str) -> float | None:
    """Return the number a cell begins with; None for a dash or words."""
    found = re.match(r"[\d.]+", text)
    return float(found[0]) if found else None


def _numbers(rows: Sequence[Row], name: str) -> list[float]:
    found = (_number(row.get(name, "")) for row in rows)
    return [number for number in found if number is not None]


def _results(page: str) -> Iterator[str]:
    ratios = _numbers(rows_of(page, "tune"), "ratio")
    if ratios:
        yield (
            "**Classical algorithms.** The *library* that `taccl tune` writes for two DGX-2"
            " (allgather, alltoall and allreduce, each at all powers of two from 1 KiB to 1 GiB) is"
            f" faster than the best classical algorithm at {_below(ratios)} of these {len(ratios)}"
            f" sizes, up to {1 / min(ratios):.2f} times ({1 / median(ratios):.2f} at the median of"
            f" all), and {_slower(ratios)}."
        )
    pairs = [
        (_number(row["ours"]), _number(row["TACCL"]))
        for row in rows_of(page, "original") if "TACCL" in row
    ]  # fmt: skip
    ratios = [ours / theirs for ours, theirs in pairs if ours and theirs]
    if ratios:
        yield (
            "**TACCL's own examples.** With TACCL's cost model and its unchanged sketches the"
            f" schedule is faster than TACCL's at {_below(ratios)} of {len(ratios)} examples, up to"
            f" {1 / min(ratios):.1f} times, and {_slower(ratios)}."
        )
    for part, who in (("rerun", "TACCL as TE-CCL's authors re-ran it"), ("teccl", "TE-CCL")):
        rows = [row for row in rows_of(page, part) if _number(row["ours / theirs"]) is not None]
        ratios, whole = _numbers(rows, "ours / theirs"), _numbers(rows, "bound / ours")
        if ratios:
            yield (
                f"**{who}.** The schedule is faster than {_below(ratios)} of {len(ratios)}"
                f" published times, up to {1 / min(ratios):.1f} times ({1 / median(ratios):.2f} at"
                f" the median of all), and {_slower(ratios)}; its median gap is"
                f" {median(1 / ratio - 1 for ratio in whole):.1%}.{_longer(rows)}"
            )
    large = [row for row in rows_of(page, "gathers") if row.get("machine") == "dgx-a100 x 128"]
    torus = [row for row in rows_of(page, "alltoall") if row.get("machine") == "torus2d:32x32"]
    if large and torus:
        yield (
            "**1024 GPUs.** Without a sketch, an allgather on 128 DGX-A100 is found in"
            f" {large[0]['seconds']} s, with a gap_fixed of {large[0]['gap_fixed']}, and an"
            f" alltoall on a 32 x 32 torus in {torus[0]['seconds']} s, with one of"
            f" {torus[0]['gap_fixed']}."
        )


def _below(ratios: Sequence[float]) -> int:
    return sum(ratio < ON_PAR for ratio in ratios)


def _slower(ratios: Sequence[float]) -> str:
    slower = sum(ratio > 1 for ratio in ratios)
    return f"slower at {slower}" if slower else "slower at none"


def _longer(rows: Sequence[Row]) -> str:
    """Return at how many published times the program of the schedule takes longer."""
    pairs = [(_number(row.get("replay us", "")), _number(row["theirs us"])) for row in rows]
    longer = sum(ours > theirs for ours, theirs in pairs if ours and theirs)
    return f" Its program takes longer than the published time at {longer}." if longer else ""


def _near(page: str) -> str:
    rows = [
        row for row in rows_of(page, "grid") if row.get("cells") in ("all", "occupy", "measured")
    ]
    return "".join(f"| {' | '.join(list(row.values())[::-1])} |\n" for row in rows)


def _largest_gaps(page: str) -> str:
    cells = [
        (_number(row["gap"]), " ".join(row[name] for name in CELL), row["us"])
        for row in rows_of(page, "grid") if "gap" in row
    ]  # fmt: skip
    known = sorted(((gap, *rest) for gap, *rest in cells if gap is not None), reverse=True)
    return "".join(f"| {cell} | {time} | {gap:.1f}% |\n" for gap, cell, time in known[:SHOWN])


def _ties(page: str) -> str:
    ties = [
        (least, row)
        for row in rows_of(page, "tune")
        if (_number(row["ratio"]) or 0) >= ON_PAR
        and (least := _number(row["least"])) is not None and least < ON_PAR
    ]  # fmt: skip
    ties.sort(key=lambda tie: tie[0])
    return "".join(
        f"| {row['collective']} | {row['bytes']} | {row['us']} | {row['best classical']} |"
        f" {row['least']} |\n"
        for _, row in ties[:SHOWN]
    )


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.write_text(refreshed(target.read_text()))

"""The first page of docs/performance.md: what is measured, five results, the worst cells.

It is made of the tables below it, and made anew with each of them; a part that is not there yet is
left out. ``python -m benchmarks.opening docs/performance.md`` makes it alone.
"""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

BEGIN, END = "<!-- opening -->\n", "<!-- /opening -->\n"

WORST = 6
"""Cells in a list of the worst."""

ON_PAR = 0.999
"""Ratios from here to 1 are called equal: the tables have three digits."""

HEAD = """# Performance

## What is measured

**All times are modelled**: the replay of a verified program on a topology file, in exact integers
(or, where a table says so, the makespan of a verified schedule). None is measured on hardware.
[What the model leaves out](concepts.md#what-the-model-leaves-out) counts most for small buffers.
*Bound* is a proven lower bound for every algorithm in the same model, and *gap* is how far above it
a time is: 0 % is optimal. A large gap does not prove that a better algorithm exists, as bounds may
be too low, most of all for small buffers.

Only the columns *seconds* are measured: what a search took on two cores of a shared AMD EPYC.
Each part below says which command makes it.

## Five results

"""

WORST_HEAD = """
## The worst cells

Farthest above the bound, in the tables of single machines and of `auto`:

| cell | time us | gap |
|---|---|---|
"""

TIES_HEAD = """
No faster than a classical algorithm, though the bound would allow it to be (*least*: the bound as a
part of the classical algorithm's time), in the library for two DGX-2:

| collective | bytes | time us | classical | least |
|---|---|---|---|---|
"""

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
    return f"{HEAD}{results}{WORST_HEAD}{_worst(page)}{TIES_HEAD}{_ties(page)}\n"


def rows_of(page: str, part: str) -> list[Row]:
    """Return the rows of all tables of a part, by the names of their columns."""
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
            rows.append(dict(zip(names, cells, strict=False)))
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
            "**Classical algorithms.** A library for two DGX-2 (allgather, alltoall and allreduce"
            f" from 1 KB to 1 GB) is faster than the best classical algorithm at"
            f" {_below(ratios)} of {len(ratios)} sizes, up to {1 / min(ratios):.2f} times"
            f" ({1 / median(ratios):.2f} at the median), and {_slower(ratios)}."
        )
    pairs = [
        (_number(row["ours"]), _number(row["TACCL"]))
        for row in rows_of(page, "original") if "TACCL" in row
    ]  # fmt: skip
    ratios = [ours / theirs for ours, theirs in pairs if ours and theirs]
    if ratios:
        yield (
            "**TACCL's own examples.** Under TACCL's own costs and unchanged sketches the schedule"
            f" is faster than TACCL's in {_below(ratios)} of {len(ratios)} cases, up to"
            f" {1 / min(ratios):.1f} times, and {_slower(ratios)}."
        )
    for part, who in (("rerun", "TACCL as TE-CCL's authors re-ran it"), ("teccl", "TE-CCL")):
        rows = rows_of(page, part)
        ratios, whole = _numbers(rows, "ours / theirs"), _numbers(rows, "bound / ours")
        if ratios:
            yield (
                f"**{who}.** Of {len(ratios)} published times {_below(ratios)} are beaten, up to"
                f" {1 / min(ratios):.1f} times ({1 / median(ratios):.2f} at the median), and it is"
                f" {_slower(ratios)}; the median is {1 / median(whole) - 1:.1%} above the bound."
            )
    large = [row for row in rows_of(page, "gathers") if row.get("machine") == "dgx-a100 x 128"]
    torus = [row for row in rows_of(page, "alltoall") if row.get("machine") == "torus2d:32x32"]
    if large and torus:
        yield (
            "**1024 GPUs.** Without a sketch: an allgather on 128 DGX-A100 in"
            f" {large[0]['seconds']} s, {large[0]['gap_fixed']} above its bound, and an alltoall on"
            f" a 32 x 32 torus in {torus[0]['seconds']} s, {torus[0]['gap_fixed']} above its bound."
        )


def _below(ratios: Sequence[float]) -> int:
    return sum(ratio < ON_PAR for ratio in ratios)


def _slower(ratios: Sequence[float]) -> str:
    slower = sum(ratio > 1 for ratio in ratios)
    return f"slower at {slower}" if slower else "slower at none"


def _worst(page: str) -> str:
    cells = [
        (_number(row["gap"]), f"{row['machine']} {row['collective']} 1MB", row["replay us"])
        for row in rows_of(page, "machines") if "replay us" in row
    ] + [
        (_number(row["gap"]), row["problem"], row["auto us"])
        for row in rows_of(page, "auto") if "auto us" in row
    ]  # fmt: skip
    known = sorted(((gap, *rest) for gap, *rest in cells if gap is not None), reverse=True)
    return "".join(f"| {cell} | {time} | {gap:.1f}% |\n" for gap, cell, time in known[:WORST])


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
        for _, row in ties[:WORST]
    )


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.write_text(refreshed(target.read_text()))

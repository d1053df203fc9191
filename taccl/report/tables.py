"""Rows of results as text: aligned columns, the form of nccl-tests, JSON and CSV.

The nccl-tests form is that of its ``common.cu``: one line a size with an out-of-place and an
in-place group, numbers with as many decimals as their width leaves. A mode that a program does
not serve shows N/A.
"""

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from types import MappingProxyType

from taccl.sim.sweep import NOT_DISTURBED, Row
from taccl.units import format_size, microseconds

ELEMENT_BYTES = 4
_WHOLE_COUNT = ("allreduce", "broadcast", "reduce")
_SUMS = ("allreduce", "reducescatter", "reduce")


def write_table(rows: Sequence[Row]) -> str:
    """Return aligned columns for reading; columns that are empty in all rows are left out."""
    if not rows:
        return ""
    lines = [_shown(row) for row in rows]
    names = [name for name in lines[0] if any(line[name] for line in lines)]
    widths = {name: max(len(name), *(len(line[name]) for line in lines)) for name in names}
    made = ["  ".join(name.rjust(widths[name]) for name in names)]
    made += ["  ".join(line[name].rjust(widths[name]) for name in names) for line in lines]
    return "\n".join(line.rstrip() for line in made) + "\n"


def _shown(row: Row) -> dict[str, str]:
    return {
        "file": row.file or row.program,
        "collective": row.collective,
        "engine": row.engine,
        "size": format_size(row.size),
        "time us": "-" if row.time is None else f"{microseconds(row.time):.6g}",
        "algbw GB/s": _number(row.algbw, ".2f"),
        "busbw GB/s": _number(row.busbw, ".2f"),
        **_disturbed(row),
        "bound us": "" if row.bound is None else f"{microseconds(row.bound):.6g}",
        "gap": _number(row.gap, ".1%"),
        "bottleneck": row.bottleneck,
        "busy": _number(row.utilisation, ".0%"),
        "costs": row.costs or "",
        "#wrong": str(row.wrong or ""),
        "note": row.note,
    }


def _disturbed(row: Row) -> dict[str, str]:
    """Return what a scenario adds."""
    shown = row.disturbed or NOT_DISTURBED
    times = {"p50 us": shown.p50, "p99 us": shown.p99, "plain us": shown.plain,
             "other us": shown.other}  # fmt: skip
    return {
        "scenario": shown.scenario,
        **{name: "" if time is None else f"{microseconds(time):.6g}"
           for name, time in times.items()},
    }  # fmt: skip


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def write_nccl_tests(rows: Sequence[Row]) -> str:
    """Return what nccl-tests would print."""
    over = "out-of-place                       in-place"
    group = "    time   algbw   busbw  #wrong"
    units = "    (us)  (GB/s)  (GB/s)        "
    head = [
        f"#{'':62}{over}",
        f"#{'size':>11}  {'count':>12}  {'type':>8}  {'redop':>6}  {'root':>6} {group} {group}",
        f"#{'(B)':>11}  {'(elements)':>12}  {'':8}  {'':6}  {'':6} {units} {units}".rstrip(),
    ]
    wrong = sum(row.wrong or 0 for row in rows if row.time is not None)
    busbws = [
        row.busbw or 0.0 for row in rows for served in (row.out_of_place, row.in_place) if served
    ]
    mean = sum(busbws) / len(busbws) if busbws else 0.0
    tail = [
        f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}",
        f"# Avg bus bandwidth    : {mean:.6g}",
    ]
    return "\n".join([*head, *_nccl_lines(rows), *tail]) + "\n"


def _nccl_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of rows; where there are several files, each under its name."""
    several = len({row.file for row in rows}) > 1
    for file, group in groupby(rows, key=lambda row: row.file):
        if several:
            yield f"# {file}"
        yield from map(_nccl_line, group)


def _nccl_line(row: Row) -> str:
    parts = 1 if row.collective in _WHOLE_COUNT else row.ranks
    count = row.size // (ELEMENT_BYTES * parts)
    redop = "sum" if row.collective in _SUMS else "none"
    start = f"{row.size:>12}  {count:>12}  {'float':>8}  {redop:>6}  {-1:>6}"
    return start + _nccl_group(row, served=row.out_of_place) + _nccl_group(row, served=row.in_place)


def _nccl_group(row: Row, *, served: bool) -> str:
    if not served or row.time is None:
        return f"  {'N/A':>7}  {'N/A':>6}  {'N/A':>6}  {'N/A':>6}"
    wrong = "N/A" if row.wrong is None else str(row.wrong)
    time, algbw, busbw = microseconds(row.time), row.algbw or 0.0, row.busbw or 0.0
    return f"  {_fit(time, 7)}  {_fit(algbw, 6)}  {_fit(busbw, 6)}  {wrong:>6}"


def _fit(value: float, width: int) -> str:
    """Return a number with two decimals, or fewer where it would be too wide."""
    for decimals in (2, 1):
        text = f"{value:.{decimals}f}"
        if len(text) <= width - 1:
            return text.rjust(width)
    return f"{value:.0f}".rjust(width)


def columns_of(row: Row) -> dict[str, str | int | float | None]:
    """Return the columns of JSON and CSV: those of the row, the modes served, what is wrong."""
    modes = {"in_place": row.in_place, "out_of_place": row.out_of_place}
    return {**row.columns(), **modes, "wrong": row.wrong}


def write_json(rows: Sequence[Row]) -> str:
    """Return ``{"rows": [...]}`` with every column."""
    return json.dumps({"rows": [columns_of(row) for row in rows]}, indent=1) + "\n"


def write_csv(rows: Sequence[Row]) -> str:
    """Return every column, with a header line."""
    if not rows:
        return ""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns_of(rows[0])), lineterminator="\n")
    writer.writeheader()
    writer.writerows(map(columns_of, rows))
    return text.getvalue()


WRITERS: Mapping[str, Callable[[Sequence[Row]], str]] = MappingProxyType({
    "table": write_table,
    "nccl-tests": write_nccl_tests,
    "json": write_json,
    "csv": write_csv,
})  # fmt: skip
"""Name of a format to its writer."""

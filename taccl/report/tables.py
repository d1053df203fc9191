"""The sentence at the top of a page: how fast, how far from the bound, and beside NCCL.

Rows of results as text: aligned columns, the form of nccl-tests, JSON and CSV.

The nccl-tests form is that of its ``common.cu``: one line a size with an out-of-place and an
in-place group, numbers with as many decimals as their width leaves. A mode that a program does
not serve shows N/A.

What was compared in a search: for ``--json``, and the best of each engine for people.

What checking a topology found, as text and as JSON.

Lower bounds of a collective, as text and as JSON: by kind at one size, or size by size.
"""

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType

from taccl.bounds import ASSUMED, KINDS, WORLDS, any_of, best
from taccl.model.problem import Bound, Candidate
from taccl.replay.sweep import NOT_DISTURBED, Row
from taccl.topology.graph import Topology
from taccl.topology.lint import Checked
from taccl.units import Time, counted, format_size, format_time, gigabytes_per_second, microseconds

ELEMENT_BYTES = 4
_WHOLE_COUNT = ("allreduce", "broadcast", "reduce")
_SUMS = ("allreduce", "reducescatter", "reduce")


def write_table(rows: Sequence[Row]) -> str:
    """Return aligned columns for reading; columns that are empty in all rows are left out."""
    if not rows:
        return ""
    lines = [
        {
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
        for row in rows
    ]
    names = [name for name in lines[0] if any(line[name] for line in lines)]
    widths = {name: max(len(name), *(len(line[name]) for line in lines)) for name in names}
    made = ["  ".join(name.rjust(widths[name]) for name in names)]
    made += ["  ".join(line[name].rjust(widths[name]) for name in names) for line in lines]
    return "\n".join(line.rstrip() for line in made) + "\n"


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


SHOWN = 12
"""Engines that are shown, at most."""

LONGEST_REASON = 60


def candidate_rows(candidates: Sequence[Candidate]) -> list[dict[str, object]]:
    """Return what ``--json`` says of each candidate."""
    return [
        {
            "engine": one.engine,
            "chunks_per_rank": one.chunks,
            "makespan_us": None if one.makespan is None else microseconds(one.makespan),
            "score_us": None if one.score is None else microseconds(one.score),
            "reason": one.reason,
        }
        for one in candidates
    ]


def best_of_engines(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the best candidate of every engine, the fastest first, those without a time last."""
    best: dict[str, Candidate] = {}
    for one in candidates:
        known = best.get(one.engine)
        if known is None or _place(one) < _place(known):
            best[one.engine] = one
    return sorted(best.values(), key=_place)


def _place(one: Candidate) -> tuple[bool, int]:
    return one.score is None, one.score or 0


def candidate_lines(candidates: Sequence[Candidate]) -> list[str]:
    """Return the best of every engine as lines; none where there is only one engine."""
    best = best_of_engines([one for one in candidates if one.makespan is not None])
    if len(best) < 2:
        return []
    shown, more = best[:SHOWN], len(best) - SHOWN
    width = max(len(one.engine) for one in shown)
    lines = [
        f"{one.engine:<{width}}  {counted(one.chunks, 'chunk'):<9}  {_words(one, shown[0])}"
        for one in shown
    ]
    return [*lines, f"and {more} more"] if more > 0 else lines


def _words(one: Candidate, best: Candidate) -> str:
    if one.score is None:
        reason = one.reason or "not replayed"
        cut = reason if len(reason) <= LONGEST_REASON else f"{reason[: LONGEST_REASON - 3]}..."
        return f"{'-':>10}          {cut}"
    ratio = f"{one.score / best.score:>5.2f} x" if best.score else ""
    return f"{format_time(one.score):>10}  {ratio}".rstrip()


SEVERITIES = ("error", "warning", "note")


def findings_text(checked: Checked) -> str:
    """Return every finding with its fix, and a line that sums up what was read."""
    topology, lines = checked.topology, [str(finding) for finding in checked.findings]
    if topology is None:
        return "\n".join(lines)
    counts = {s: sum(f.severity == s for f in checked.findings) for s in SEVERITIES}
    found = ", ".join(counted(n, s) for s, n in counts.items() if n)
    return "\n".join([
        *lines,
        f"{topology.name}: {topology.num_ranks} ranks, {len(topology.edges)} edges,"
        f" {len(topology.links)} links, {len(topology.rotations)} declared symmetries:"
        f" {found or 'no problems found'}",
    ])  # fmt: skip


def findings_fields(checked: Checked) -> dict[str, object]:
    """Return what ``topology validate --json`` prints."""
    topology = checked.topology
    return {
        "name": None if topology is None else topology.name,
        "ranks": None if topology is None else topology.num_ranks,
        "edges": None if topology is None else len(topology.edges),
        "links": None if topology is None else len(topology.links),
        "rotations": None if topology is None else len(topology.rotations),
        "usable": checked.usable,
        "findings": [
            {
                "rule": finding.rule,
                "severity": finding.severity,
                "file": finding.file,
                "line": finding.line,
                "field": finding.field,
                "where": finding.where,
                "problem": finding.problem,
                "fix": finding.fix,
            }
            for finding in checked.findings
        ],
    }


@dataclass(frozen=True)
class Bounded:
    """The bounds of a collective at one size.

    Parameters
    ----------
    topology
        Where.
    collective
        Its name.
    chunks
        For each rank, what the fixed bounds are for.
    size
        Bytes of the buffer that nccl-tests counts.
    free, fixed, sketched
        Bounds for every algorithm, for this chunk count with one chunk to a message, and for
        every algorithm on the links of the sketch; the last is empty without a sketch.
    """

    topology: Topology
    collective: str
    chunks: int
    size: int
    free: tuple[Bound, ...]
    fixed: tuple[Bound, ...]
    sketched: tuple[Bound, ...] = ()

    @property
    def worlds(self) -> dict[str, tuple[Bound, ...]]:
        """The bounds by world; worlds without bounds are left out."""
        found = {"any": self.free, "fixed": self.fixed, "sketch": self.sketched}
        return {world: bounds for world, bounds in found.items() if bounds}


def bounded_json(bounded: Bounded) -> dict[str, object]:
    """Return the bounds at one size as a JSON object."""
    worlds = bounded.worlds
    shown: dict[str, object] = {
        "collective": bounded.collective,
        "topology": bounded.topology.name,
        "size_bytes": bounded.size,
        "alpha_rule": bounded.topology.alpha_rule_stated,
        "costs": bounded.topology.costs,
        "chunks_per_rank": bounded.chunks,
    }
    for world, suffix in (("any", ""), ("fixed", "_fixed"), ("sketch", "_sketch")):
        bounds = worlds.get(world, ())
        largest = best(bounds) if bounds else None
        shown |= {
            f"bound{suffix}_us": largest and microseconds(largest.time),
            f"bound{suffix}_kind": largest and largest.kind,
            f"all{suffix}": {bound.kind: microseconds(bound.time) for bound in bounds},
        }
    kinds = sorted({bound.kind for bounds in worlds.values() for bound in bounds})
    return shown | {
        "kinds": {kind: KINDS[kind] for kind in kinds},
        "worlds": {world: WORLDS[world] for world in worlds},
        "assumed": ASSUMED,
    }


def bounded_text(bounded: Bounded) -> str:
    """Return the bounds at one size, each with what it says, the binding one of a world marked."""
    topology, size = bounded.topology, bounded.size
    lines = [
        f"{bounded.collective} on {topology.name}, {topology.num_ranks} ranks,"
        f" {format_size(size)} ({topology.rules_stated}), {_chunks(bounded)}"
    ]
    for world, bounds in bounded.worlds.items():
        largest = best(bounds)
        lines += [f"{world}: {WORLDS[world]}", *_lines(bounds, largest)]
        if largest.time:
            most = gigabytes_per_second(size, largest.time)
            lines.append(f"  so algbw is at most {most:.4g} GB/s")
    return "\n".join([*lines, f"assumed: {ASSUMED}"])


def _chunks(bounded: Bounded) -> str:
    return f"{counted(bounded.chunks, 'chunk')} for each rank"


def _lines(bounds: Sequence[Bound], largest: Bound) -> Iterator[str]:
    """Yield a line a kind, the largest bound first."""
    width = max(len(format_time(bound.time)) for bound in bounds)
    for bound in sorted(bounds, key=lambda bound: -bound.time):
        mark = "<- binding" if bound == largest else ""
        time = format_time(bound.time).rjust(width)
        yield f"  {bound.kind:<8} {time} {mark:<10} {KINDS[bound.kind]}"


def bounded_table(found: Sequence[Bounded]) -> str:
    """Return the binding bound of every world, size by size, and what the worlds hold for."""
    first = found[0]
    rows = [["size", *(name for w in first.worlds for name in (f"{w} us", "by")), "algbw GB/s"]]
    for bounded in found:
        largest = [best(bounds) for bounds in bounded.worlds.values()]
        cells = [cell for one in largest for cell in (f"{microseconds(one.time):.6g}", one.kind)]
        most = gigabytes_per_second(bounded.size, largest[0].time) if largest[0].time else None
        rows.append([format_size(bounded.size), *cells, "-" if most is None else f"{most:.4g}"])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) for row in rows]
    topology = first.topology
    return "\n".join([
        f"{first.collective} on {topology.name}, {topology.num_ranks} ranks"
        f" ({topology.rules_stated}), {_chunks(first)}",
        *lines,
        *(f"{world}: {WORLDS[world]}" for world in first.worlds),
        f"assumed: {ASSUMED}",
    ])  # fmt: skip


NcclTime = Callable[[str, int], Time | None]
"""From a collective and a size in bytes to what NCCL's model expects, in picoseconds."""


def verdict(rows: Sequence[Row], nccl: NcclTime) -> str:
    """Return what is to be said of programs at the size that is shown in detail.

    Parameters
    ----------
    rows
        The result of each program, at least one.
    nccl
        NCCL's own time model.
    """
    runs = [(row.time, row) for row in rows if row.time is not None]
    if not runs:
        who = "It can't run" if len(rows) == 1 else f"None of the {len(rows)} can run"
        return f"{who}: {'; '.join(dict.fromkeys(row.note for row in rows))}."
    time, best = min(runs, key=lambda each: each[0])
    who = f"{best.file or best.program}, the fastest of {len(rows)}: " if len(rows) > 1 else ""
    rate = "" if best.algbw is None else f" ({best.algbw:.4g} GB/s algbw)"
    expected = nccl(best.collective, best.size)
    parts = [
        f"{who}{best.collective} of {format_size(best.size)} takes {format_time(time)}{rate}",
        _beside_bound(best),
        "" if expected is None else _beside_nccl(best.bound, expected),
    ]
    if best.bottleneck and best.utilisation is not None:
        parts.append(
            f"the busiest edge, {best.bottleneck}, is busy {best.utilisation:.0%} of the time"
        )
    return "; ".join(part for part in parts if part) + "."


def _beside_bound(row: Row) -> str:
    if row.bound is None or row.gap is None:
        return "no lower bound is known"
    who = any_of(row.bound_kind).removeprefix("any ")
    told = f"the {format_time(row.bound)} that no {who} beats ({row.bound_kind} bound)"
    return f"that is {row.gap:.1%} above {told}" if row.gap > 0 else f"optimal: it meets {told}"


def _beside_nccl(bound: Time | None, expected: Time) -> str:
    """Return NCCL's time; below the bound its inputs can't be those of the machine."""
    told = f"NCCL's own model, launch of the kernel included, expects {format_time(expected)}"
    if bound is not None and expected < bound:
        return f"{told}, less than the bound, so its inputs do not fit this topology"
    return told

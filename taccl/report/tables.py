"""What commands print of results, candidates, findings and bounds: as text, JSON and CSV.

Rows of results come as aligned columns, JSON, CSV, and in the form of nccl-tests, that of its
``common.cu``: one line a size with an out-of-place and an in-place group, numbers with as many
decimals as their width leaves, N/A for a mode that a program does not serve. Of the candidates of a
search people see the best of each engine, of bounds what binds by kind at one size, or size by
size. The verdict is the sentence at the top of a page: how fast, how far from the bound, and beside
NCCL.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType

from taccl.bounds import (
    ANY,
    ASSUMED,
    ASSUMED_OF_SWITCHES,
    KINDS,
    POINT_TO_POINT,
    WORLDS,
    any_of,
    best,
)
from taccl.model.problem import Bound, Candidate
from taccl.replay.sweep import NOT_DISTURBED, Row
from taccl.report.text import aligned, csv_text, number_text, us, us_text
from taccl.topology.graph import Topology
from taccl.topology.lint import Checked
from taccl.units import Time, counted, format_size, format_time, gigabytes_per_second, microseconds

ELEMENT_BYTES = 4
_WHOLE_COUNT = ("allreduce", "broadcast", "reduce")
_SUMS = ("allreduce", "reducescatter", "reduce")
_WIDTHS = (7, 6, 6, 6)
"""Of time, algbw, busbw and #wrong in the form of nccl-tests."""


def write_table(rows: Sequence[Row]) -> str:
    """Return aligned columns for reading; columns that are empty in all rows are left out."""
    if not rows:
        return ""
    lines = []
    for row in rows:
        disturbed = row.disturbed or NOT_DISTURBED
        lines.append(
            {
                "file": row.file or row.program,
                "collective": row.collective,
                "engine": row.engine,
                "size": format_size(row.size),
                "time us": us_text(row.time, "-"),
                "algbw GB/s": number_text(row.algbw, ".2f"),
                "busbw GB/s": number_text(row.busbw, ".2f"),
                "scenario": disturbed.scenario,
                "p50 us": us_text(disturbed.p50),
                "p99 us": us_text(disturbed.p99),
                "plain us": us_text(disturbed.plain),
                "other us": us_text(disturbed.other),
                "background p50 us": us_text(disturbed.background[0]),
                "background p99 us": us_text(disturbed.background[1]),
                "bound us": us_text(row.bound),
                "gap": number_text(row.gap, ".1%"),
                "bottleneck": row.bottleneck,
                "busy": number_text(row.utilisation, ".0%"),
                "costs": row.costs or "",
                "#wrong": str(row.wrong or ""),
                "note": row.note,
            }
        )
    names = [name for name in lines[0] if any(line[name] for line in lines)]
    cells = [[line[name] for name in names] for line in lines]
    return "\n".join(aligned([names, *cells])) + "\n"


def write_nccl_tests(rows: Sequence[Row]) -> str:
    """Return what nccl-tests would print; several files each under its name."""
    over = "out-of-place                       in-place"
    group = "    time   algbw   busbw  #wrong"
    units = "    (us)  (GB/s)  (GB/s)        "
    lines = [
        f"#{'':62}{over}",
        f"#{'size':>11}  {'count':>12}  {'type':>8}  {'redop':>6}  {'root':>6} {group} {group}",
        f"#{'(B)':>11}  {'(elements)':>12}  {'':8}  {'':6}  {'':6} {units} {units}".rstrip(),
    ]
    several = len({row.file for row in rows}) > 1
    for file, of_file in groupby(rows, key=lambda row: row.file):
        lines += [f"# {file}"] if several else []
        lines += map(_nccl_line, of_file)
    wrong = sum(row.wrong or 0 for row in rows if row.time is not None)
    busbws = [
        row.busbw or 0.0 for row in rows for served in (row.out_of_place, row.in_place) if served
    ]
    mean = sum(busbws) / len(busbws) if busbws else 0.0
    lines += [
        f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}",
        f"# Avg bus bandwidth    : {mean:.6g}",
    ]
    return "\n".join(lines) + "\n"


def _nccl_line(row: Row) -> str:
    parts = 1 if row.collective in _WHOLE_COUNT else row.ranks
    count = row.size // (ELEMENT_BYTES * parts)
    redop = "sum" if row.collective in _SUMS else "none"
    line = f"{row.size:>12}  {count:>12}  {'float':>8}  {redop:>6}  {-1:>6}"
    for served in (row.out_of_place, row.in_place):
        cells = ["N/A"] * 4
        if served and row.time is not None:
            cells = []
            numbers = (microseconds(row.time), row.algbw, row.busbw)
            for value, width in zip(numbers, _WIDTHS[:3], strict=True):
                # Two decimals, or fewer where these would be too wide.
                texts = [f"{value or 0.0:.{decimals}f}" for decimals in (2, 1, 0)]
                cells.append(next((text for text in texts if len(text) < width), texts[-1]))
            cells.append("N/A" if row.wrong is None else str(row.wrong))
        line += "".join(f"  {cell:>{width}}" for cell, width in zip(cells, _WIDTHS, strict=True))
    return line


def columns_of(row: Row) -> dict[str, str | int | float | None]:
    """Return the columns of JSON and CSV: those of the row, the modes served, what is wrong."""
    modes = {"in_place": row.in_place, "out_of_place": row.out_of_place}
    return {**row.columns(), **modes, "wrong": row.wrong}


def write_json(rows: Sequence[Row]) -> str:
    """Return ``{"rows": [...]}`` with every column."""
    return json.dumps({"rows": [columns_of(row) for row in rows]}, indent=1) + "\n"


WRITERS: Mapping[str, Callable[[Sequence[Row]], str]] = MappingProxyType({
    "table": write_table,
    "nccl-tests": write_nccl_tests,
    "json": write_json,
    "csv": lambda rows: csv_text([columns_of(row) for row in rows]),
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
            "makespan_us": us(one.makespan),
            "score_us": us(one.score),
            "reason": one.reason,
        }
        for one in candidates
    ]


def best_of_engines(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the best candidate of every engine, the fastest first, those without a time last."""
    engines = list(dict.fromkeys(one.engine for one in candidates))
    best: dict[str, Candidate] = {}
    for one in sorted(
        candidates, key=lambda one: (one.score is None, one.score or 0, engines.index(one.engine))
    ):
        best.setdefault(one.engine, one)
    return list(best.values())


def candidate_lines(candidates: Sequence[Candidate]) -> list[str]:
    """Return the best of every engine as lines; none where there is only one engine."""
    best = best_of_engines([one for one in candidates if one.makespan is not None])
    if len(best) < 2:
        return []
    shown, more = best[:SHOWN], len(best) - SHOWN
    width = max(len(one.engine) for one in shown)
    lines = []
    for one in shown:
        line = f"{one.engine:<{width}}  {counted(one.chunks, 'chunk'):<9}  "
        if one.score is None:
            reason = one.reason or "not replayed"
            long = len(reason) > LONGEST_REASON
            cut = f"{reason[: LONGEST_REASON - 3]}..." if long else reason
            lines.append(f"{line}{'-':>10}          {cut}")
        else:
            ratio = f"{one.score / shown[0].score:>5.2f} x" if shown[0].score else ""
            lines.append(f"{line}{format_time(one.score):>10}  {ratio}".rstrip())
    return [*lines, f"and {more} more"] if more > 0 else lines


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


_FINDING = ("rule", "severity", "file", "line", "field", "where", "problem", "fix")


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
            {name: getattr(finding, name) for name in _FINDING} for finding in checked.findings
        ],
    }


@dataclass(frozen=True)
class Bounded:
    """The bounds of a collective, by its name, at one `size` of the counted buffer, in bytes.

    They hold for every algorithm, `free`; for `chunks` for each rank with one chunk to a message,
    `fixed`; for every algorithm on the links of the sketch, `sketched`, empty without one; and for
    every algorithm with messages from rank to rank, `point_to_point`, empty where switches can't do
    more.
    """

    topology: Topology
    collective: str
    chunks: int
    size: int
    free: tuple[Bound, ...]
    fixed: tuple[Bound, ...]
    sketched: tuple[Bound, ...] = ()
    point_to_point: tuple[Bound, ...] = ()

    @property
    def worlds(self) -> dict[str, tuple[Bound, ...]]:
        """The bounds by world; worlds without bounds are left out."""
        found = {
            ANY: self.free, POINT_TO_POINT: self.point_to_point, "fixed": self.fixed,
            "sketch": self.sketched,
        }  # fmt: skip
        return {world: bounds for world, bounds in found.items() if bounds}

    @property
    def assumed(self) -> str:
        """What the bounds assume of switches."""
        return ASSUMED_OF_SWITCHES if self.point_to_point else ASSUMED


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
    shown_worlds = {ANY: "", "fixed": "_fixed", "sketch": "_sketch"}
    if bounded.point_to_point:
        shown_worlds[POINT_TO_POINT] = "_point_to_point"
    for world, suffix in shown_worlds.items():
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
        "assumed": bounded.assumed,
    }


def bounded_text(bounded: Bounded) -> str:
    """Return the bounds at one size, each with what it says, the binding one of a world marked."""
    topology, size = bounded.topology, bounded.size
    lines = [
        f"{bounded.collective} on {topology.name}, {topology.num_ranks} ranks,"
        f" {format_size(size)} ({topology.rules_stated}), {counted(bounded.chunks, 'chunk')} for"
        " each rank"
    ]
    for world, bounds in bounded.worlds.items():
        largest = best(bounds)
        lines.append(f"{world}: {WORLDS[world]}")
        width = max(len(format_time(bound.time)) for bound in bounds)
        for bound in sorted(bounds, key=lambda bound: -bound.time):
            mark = "<- binding" if bound == largest else ""
            time = format_time(bound.time).rjust(width)
            lines.append(f"  {bound.kind:<8} {time} {mark:<10} {KINDS[bound.kind]}")
        if largest.time:
            most = gigabytes_per_second(size, largest.time)
            lines.append(f"  so algbw is at most {most:.4g} GB/s")
    return "\n".join([*lines, f"assumed: {bounded.assumed}"])


def bounded_table(found: Sequence[Bounded]) -> str:
    """Return the binding bound of every world, size by size, and what the worlds hold for."""
    first, topology = found[0], found[0].topology
    rows = [["size", *(name for w in first.worlds for name in (f"{w} us", "by")), "algbw GB/s"]]
    for bounded in found:
        largest = [best(bounds) for bounds in bounded.worlds.values()]
        cells = [cell for one in largest for cell in (us_text(one.time), one.kind)]
        most = gigabytes_per_second(bounded.size, largest[0].time) if largest[0].time else None
        rows.append([format_size(bounded.size), *cells, number_text(most, ".4g", "-")])
    return "\n".join([
        f"{first.collective} on {topology.name}, {topology.num_ranks} ranks"
        f" ({topology.rules_stated}), {counted(first.chunks, 'chunk')} for each rank",
        *aligned(rows),
        *(f"{world}: {WORLDS[world]}" for world in first.worlds),
        f"assumed: {first.assumed}",
    ])  # fmt: skip


NcclTime = Callable[[str, int], Time | None]
"""From a collective and a size in bytes to what NCCL's model expects, in picoseconds."""


def verdict(rows: Sequence[Row], nccl: NcclTime) -> str:
    """Return what is to be said of programs, by their results `rows` at one size, at least one.

    NCCL's own time model is `nccl`.
    """
    runs = [(row.time, row) for row in rows if row.time is not None]
    if not runs:
        who = "It can't run" if len(rows) == 1 else f"None of the {len(rows)} can run"
        return f"{who}: {'; '.join(dict.fromkeys(row.note for row in rows))}."
    time, best = min(runs, key=lambda each: each[0])
    who = f"{best.file or best.program}, the fastest of {len(rows)}: " if len(rows) > 1 else ""
    rate = "" if best.algbw is None else f" ({best.algbw:.4g} GB/s algbw)"
    parts = [f"{who}{best.collective} of {format_size(best.size)} takes {format_time(time)}{rate}"]
    if best.bound is None or best.gap is None:
        parts.append("no lower bound is known")
    else:
        any_one = any_of(best.bound_kind).removeprefix("any ")
        told = f"the {format_time(best.bound)} that no {any_one} beats ({best.bound_kind} bound)"
        meets = (
            f"that is {best.gap:.1%} above {told}" if best.gap > 0 else f"optimal: it meets {told}"
        )
        parts.append(meets)
    expected = nccl(best.collective, best.size)
    if expected is not None:
        told = f"NCCL's own model, launch of the kernel included, expects {format_time(expected)}"
        if best.bound is not None and expected < best.bound:
            told += ", less than the bound, so its inputs do not fit this topology"
        parts.append(told)
    if best.bottleneck and best.utilisation is not None:
        parts.append(
            f"the busiest edge, {best.bottleneck}, is busy {best.utilisation:.0%} of the time"
        )
    return "; ".join(parts) + "."

"""A calibration as text and as JSON: every size before and after, and what has changed."""

from collections.abc import Iterator, Mapping
from itertools import groupby
from types import MappingProxyType

from taccl.pipeline.calibration import Calibration, link_costs
from taccl.pipeline.costs import BETWEEN
from taccl.pipeline.fitting import NOT_TOLD, TOLD, TOLD_IF, Fitted, Part, Sample
from taccl.topology import LocalCosts, Topology
from taccl.units import Time, format_size, gigabytes_per_second, microseconds

NOTES: Mapping[str, str] = MappingProxyType({
    TOLD: "", TOLD_IF: f"  ({TOLD_IF})", NOT_TOLD: "  (not told apart by these runs)"
})  # fmt: skip


def calibration_json(found: Calibration, output: str | None) -> dict[str, object]:
    """Return what ``--json`` prints."""
    return {
        "collective": ", ".join(part.collective for part in found.parts),
        "topology": found.before.name,
        "ranks": found.before.num_ranks,
        "alpha_rule": found.before.alpha_rule_stated,
        "program": ", ".join(part.program.name for part in found.parts),
        "rows": [
            {
                "file": sample.file,
                "collective": part.collective,
                "size_bytes": sample.size,
                "measured_us": microseconds(sample.time),
                "before_us": microseconds(before),
                "before_error": before / sample.time - 1,
                "after_us": microseconds(after),
                "after_error": after / sample.time - 1,
            }
            for part, sample, before, after in _rows(found)
        ],
        "error_before": found.error(after=False),
        "error_after": found.error(after=True),
        "parameters": list(map(dict, _parameters(found))),
        "left_out": list(found.left_out),
        "output": output,
    }


def _rows(found: Calibration) -> Iterator[tuple[Part, Sample, Time, Time]]:
    """Yield each sample with its part and its replayed times."""
    parts = (part for part in found.parts for _ in part.samples)
    yield from zip(parts, found.samples, found.times_before, found.times_after, strict=True)


def calibration_text(found: Calibration, output: str | None) -> str:
    """Return what is printed for people."""
    lines = []
    for part, rows in groupby(_rows(found), key=lambda row: row[0]):
        lines += [
            f"{part.collective} on {found.before.name}, {found.before.num_ranks} ranks, replayed as"
            f" {part.program.name} ({found.before.rules_stated})",
            f"{'size':>12}  {'measured us':>12}  {'before us':>12}  {'error':>8}"
            f"  {'after us':>12}  {'error':>8}",
        ]
        lines += [_line(sample, before, after) for _, sample, before, after in rows]
    lines.append(
        f"error (root mean square)  {found.error(after=False):.2%} before,"
        f" {found.error(after=True):.2%} after"
    )
    lines += [_shown(entry) for entry in _parameters(found)]
    lines += [f"left out  {text}" for text in found.left_out[:8]]
    if len(found.left_out) > 8:
        lines.append(f"left out  and {len(found.left_out) - 8} more")
    if output is not None:
        lines.append(f"wrote {output}")
    return "\n".join(lines)


def _line(sample: Sample, before: Time, after: Time) -> str:
    errors = [f"{time / sample.time - 1:+.1%}" for time in (before, after)]
    times = [f"{microseconds(time):.6g}" for time in (sample.time, before, after)]
    return (
        f"{format_size(sample.size):>12}  {times[0]:>12}  {times[1]:>12}  {errors[0]:>8}"
        f"  {times[2]:>12}  {errors[1]:>8}"
    )


def _parameters(found: Calibration) -> Iterator[Mapping[str, object]]:
    for each in found.fitted:
        before, after = (_value(each, topology) for topology in (found.before, found.after))
        yield {
            "name": each.unknown.name,
            "unit": "us" if each.unknown.kind in ("alpha", "launch") else "GB/s",
            "before": before,
            "after": after,
            "determined": each.determined,
        }


def _value(fitted: Fitted, topology: Topology) -> float | None:
    """Return a cost in its unit: of edges, that of the first link of their class; None: free."""
    unknown, local = fitted.unknown, topology.local
    if unknown.kind in ("alpha", "beta"):
        costs = link_costs(topology, across=unknown.what == BETWEEN)
        if costs is None:
            return None
        return costs[0] if unknown.kind == "alpha" else costs[1] or None
    return _local(local, unknown.what)


def _local(local: LocalCosts, what: str) -> float | None:
    if what == "launch":
        return microseconds(local.launch)
    beta = local.copy_beta if what == "copy" else local.reduce_beta
    return gigabytes_per_second(10**12, int(beta * 10**12)) if beta else None


def _shown(entry: Mapping[str, object]) -> str:
    values = [
        "free" if value is None else f"{value:.6g} {entry['unit']}"
        for value in (entry["before"], entry["after"])
    ]
    note = NOTES[str(entry["determined"])]
    return f"{entry['name']!s:<24}  {values[0]} -> {values[1]}{note}"

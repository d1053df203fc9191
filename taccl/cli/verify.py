"""``taccl verify``: what a runtime makes of an XML file: refused, broken, selected, how large."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from taccl.cli.options import RUNTIME_NAMES, Json, chosen, read
from taccl.errors import InputError
from taccl.units import parse_size

if TYPE_CHECKING:
    from taccl.msccl.findings import Finding
    from taccl.msccl.verdict import Verdict


def verify(
    files: Annotated[list[str], typer.Argument(help="MSCCL XML files.", show_default=False)],
    runtime: Annotated[
        str, typer.Option("--runtime", help=f"One of {RUNTIME_NAMES}.")
    ] = "portable",
    size: Annotated[
        str | None, typer.Option("--size", help="Also look for deadlocks at this size.")
    ] = None,
    structure_only: Annotated[
        bool,
        typer.Option(
            "--structure-only", help="Only what the runtime's parser refuses or overflows on."
        ),
    ] = False,
    bitwise: Annotated[
        bool,
        typer.Option("--bitwise-consistent", help="Also want one order of additions on all ranks."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Say what a runtime refuses, breaks on, never selects: data, races, deadlocks, limits."""
    from taccl.pipeline import evaluation

    name = chosen("--runtime", runtime, RUNTIME_NAMES)
    count = None if size is None else read("--size", parse_size, size)
    if structure_only and (bitwise or size is not None):
        raise InputError(
            "--structure-only follows no data and no waits",
            field="--bitwise-consistent" if bitwise else "--size", fix="leave out one of the two",
        )  # fmt: skip
    found = {
        file: evaluation.judge_file(
            file, name, count, structure_only=structure_only, bitwise=bitwise
        )
        for file in files
    }
    if as_json:
        report = [_record(file, name, verdict) for file, verdict in found.items()]
        typer.echo(json.dumps({"files": report}, indent=2))
    else:
        for file, verdict in found.items():
            typer.echo("\n".join(_lines(file, name, verdict)))
    raise typer.Exit(1 if any(verdict.worst for verdict in found.values()) else 0)


_WORDS = {
    None: "verified for",
    "rejected": "rejected by",
    "breaks": "accepted, but breaks on",
    "never": "never selected by",
}


def _record(file: str, runtime: str, verdict: "Verdict") -> dict[str, object]:
    safe = verdict.safe
    return {
        "file": file,
        "runtime": runtime,
        "verified": verdict.worst is None,
        "severity": None if verdict.worst is None else verdict.worst.value,
        "largest_safe_bytes": None if safe is None else safe.size,
        "safe_at_any_size": safe is not None and safe.size is None,
        "selected_for": [
            {
                "runtime": one.runtime,
                "call": one.call,
                "ranks": one.ranks,
                "min_bytes": one.min_bytes,
                "max_bytes": one.max_bytes,
                "modes": list(one.modes),
                "divisor": one.divisor,
                "divided": one.divided,
                "needs": list(one.needs),
            }
            for one in verdict.selections
        ],
        "findings": [_finding(finding) for finding in verdict.findings],
    }


def _finding(finding: "Finding") -> dict[str, object]:
    return {
        "rule": finding.rule,
        "severity": finding.severity.value,
        "explanation": finding.explanation,
        "gpu": finding.gpu,
        "threadblock": finding.threadblock,
        "step": finding.step,
        "line": finding.line,
        "column": finding.column,
        "fix": finding.fix,
    }


def _lines(file: str, runtime: str, verdict: "Verdict") -> list[str]:
    worst = None if verdict.worst is None else verdict.worst.value
    lines = [f"{file}: {_WORDS[worst]} {runtime}"]
    told: dict[str, list[str]] = {}
    for one in verdict.selections:
        told.setdefault(str(one), []).append(one.runtime)
    lines += [f"  selected for: {text} ({', '.join(names)})" for text, names in told.items()]
    if verdict.safe is not None:
        largest = verdict.safe.size
        lines.append(
            "  no deadlock at any size"
            if largest is None
            else f"  largest size without deadlock: {largest} bytes{_in_mib(largest)}"
        )
    return [*lines, *(f"  {_told(finding)}" for finding in verdict.findings)]


def _in_mib(size: int) -> str:
    whole, rest = divmod(size, 1 << 20)
    return f" ({whole} MiB)" if whole and not rest else ""


def _told(finding: "Finding") -> str:
    place = "" if finding.line is None else f" at {finding.line}:{finding.column}"
    rule, _, rest = str(finding).partition(": ")
    return f"{rule} ({finding.severity.value}{place}): {rest}"

"""``taccl verify``: what a runtime makes of an XML file: refused, broken, selected, how large.

``taccl inspect``: what a program does, rank by rank and pair by pair.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from taccl.cli.help import shipped
from taccl.cli.names import RUNTIME_NAMES
from taccl.cli.options import Json, Nodes, chosen, read
from taccl.errors import InputError
from taccl.units import parse_size

if TYPE_CHECKING:
    from taccl.msccl.program import Finding
    from taccl.msccl.verdict import Question, Verdict


def inspect(
    file: Annotated[str, typer.Argument(help="An MSCCL XML file.", show_default=False)],
    size: Annotated[
        str | None, typer.Option("--size", help="Give amounts in bytes of this size.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show whom an XML file serves, its channels and steps, and what every pair exchanges."""
    from taccl.files import read_text
    from taccl.msccl.xml import read_xml
    from taccl.report.inspect import as_record, as_text, inspect_program

    count = None if size is None else read("--size", parse_size, size)
    shape = inspect_program(read_xml(read_text(file), file=file), count)
    typer.echo(json.dumps(as_record(shape), indent=2) if as_json else as_text(shape))


Verdicts = Mapping[str, "Verdict"]
"""By the runtime; one where the user names it."""

PLACES = 3
"""Findings of one kind of which the place is told."""


def verify(
    files: Annotated[list[str], typer.Argument(help="MSCCL XML files.", show_default=False)],
    runtime: Annotated[
        str | None,
        typer.Option(
            "--runtime",
            help=f"One of {RUNTIME_NAMES} (all three at once); left out: each by itself.",
        ),
    ] = None,
    size: Annotated[
        str | None, typer.Option("--size", help="Also look for deadlocks at this size.")
    ] = None,
    topology: Annotated[
        str | None,
        typer.Option(
            "--topology",
            help="The machine it is for, which says what ranks share a server.",
            autocompletion=shipped("topologies"),
        ),
    ] = None,
    nodes: Nodes = None,
    ranks_per_node: Annotated[
        int | None,
        typer.Option("--ranks-per-node", min=1, help="Ranks on a server, in place of --topology."),
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
    name = None if runtime is None else chosen("--runtime", runtime, RUNTIME_NAMES)
    count = None if size is None else read("--size", parse_size, size)
    if structure_only and (bitwise or size is not None):
        raise InputError(
            "--structure-only follows no data and no waits",
            field="--bitwise-consistent" if bitwise else "--size", fix="leave out one of the two",
        )  # fmt: skip
    from taccl.msccl.verdict import Question

    question = Question(count, structure_only, bitwise, _servers(topology, nodes, ranks_per_node))
    found = {file: _judged(file, name, question) for file in files}
    if as_json:
        report = [_record(file, verdicts, name) for file, verdicts in found.items()]
        typer.echo(json.dumps({"files": report}, indent=2))
    else:
        tell = _each_line if name is None else _lines
        for file, verdicts in found.items():
            typer.echo("\n".join(tell(file, verdicts)))
    raise typer.Exit(0 if all(_is_right(verdicts) for verdicts in found.values()) else 1)


def _servers(
    topology: str | None, nodes: int | None, ranks_per_node: int | None
) -> tuple[int, ...] | int | None:
    """Return the server of every rank, or the ranks on each; None: nothing is known.

    Raises
    ------
    InputError
        When the options exclude each other, or the topology can't be used.
    """
    if topology is None:
        if nodes is not None:
            raise InputError(
                "counts the servers of a topology", field="--nodes", fix="give --topology, too"
            )
        return ranks_per_node
    if ranks_per_node is not None:
        raise InputError(
            "the topology says which ranks share a server", field="--ranks-per-node",
            fix="leave out one of the two",
        )  # fmt: skip
    from taccl.apps.request import load_machine

    return load_machine(topology, nodes=nodes).server_of


def _judged(file: str, name: str | None, question: "Question") -> Verdicts:
    from taccl.apps import evaluation

    if name is None:
        return evaluation.judge_file_for_each(file, question)
    return {name: evaluation.judge_file(file, name, question)}


def _is_right(verdicts: Verdicts) -> bool:
    """Tell whether some runtime runs a file, and runs it right."""
    return any(verdict.worst is None for verdict in verdicts.values())


_WORDS = {
    None: "verified for",
    "rejected": "rejected by",
    "breaks": "accepted, but breaks on",
    "never": "never selected by",
}
_ROWS = {
    None: "right", "rejected": "rejected", "breaks": "accepted, breaks on",
    "never": "never selected",
}  # fmt: skip


def _worst(verdict: "Verdict") -> str | None:
    return None if verdict.worst is None else verdict.worst.value


def _record(file: str, verdicts: Verdicts, name: str | None) -> dict[str, object]:
    """Return the record of a file: of the runtime that is asked for, or of each."""
    if name is not None:
        return {"file": file, **_fields(name, verdicts[name])}
    return {
        "file": file,
        "verified": _is_right(verdicts),
        "verdicts": [_fields(each, verdict) for each, verdict in verdicts.items()],
    }


def _fields(runtime: str, verdict: "Verdict") -> dict[str, object]:
    safe = verdict.safe
    return {
        "runtime": runtime,
        "verified": verdict.worst is None,
        "severity": _worst(verdict),
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
        "findings": [
            {
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
            for finding in verdict.findings
        ],
    }


def _lines(file: str, verdicts: Verdicts) -> list[str]:
    """Return what is told of a file on the runtime that was asked for."""
    ((runtime, verdict),) = verdicts.items()
    lines = [f"{file}: {_WORDS[_worst(verdict)]} {runtime}"]
    told: dict[str, list[str]] = {}
    for one in verdict.selections:
        told.setdefault(str(one), []).append(one.runtime)
    lines += [f"  selected for: {text} ({', '.join(names)})" for text, names in told.items()]
    lines += [f"  {text}" for text in _largest(verdict)]
    return [*lines, *_grouped({finding: [] for finding in verdict.findings})]


def _each_line(file: str, verdicts: Verdicts) -> list[str]:
    """Return what is told of a file on each runtime: a row each, then the findings of all."""
    lines = [file]
    for name, verdict in verdicts.items():
        words = _ROWS[_worst(verdict)]
        if words.endswith(" on"):
            rules = dict.fromkeys(
                finding.rule for finding in verdict.findings if finding.severity is verdict.worst
            )
            words += f" {', '.join(rules)}"
        lines.append(f"  {name:<10}{words}")
        told = [f"selected for: {one}" for one in verdict.selections]
        told += _largest(verdict) if words != "rejected" else []
        lines += [f"  {'':<10}{text}" for text in told]
    return [*lines, *_grouped(_by_runtime(verdicts))]


def _by_runtime(verdicts: Verdicts) -> dict["Finding", list[str]]:
    """Return the findings of all runtimes, worst first, with those that make them, if not all.

    Where a runtime refuses the file, the places of the other findings are less exact.
    """
    from taccl.msccl.program import Severity

    found: dict[Finding, tuple[Finding, list[str]]] = {}
    for name, verdict in verdicts.items():
        for finding in dict.fromkeys(verdict.findings):
            same = replace(finding, line=None, column=None)
            found.setdefault(same, (finding, []))[1].append(name)
    order = list(Severity)
    return {
        finding: [] if len(names) == len(verdicts) else names
        for finding, names in sorted(
            found.values(), key=lambda known: order.index(known[0].severity)
        )
    }  # fmt: skip


def _grouped(findings: Mapping["Finding", Sequence[str]]) -> Iterator[str]:
    """Yield the findings, those of one rule and severity together: the first, and some places."""
    groups: dict[tuple[str, str, tuple[str, ...]], list[Finding]] = {}
    for finding, names in findings.items():
        key = finding.rule, finding.severity.value, tuple(names)
        groups.setdefault(key, []).append(finding)
    for (rule, severity, names), group in groups.items():
        first, *others = group
        times = f", {len(group)} times" if others else ""
        of = f" ({', '.join(names)})" if names else ""
        _, _, rest = str(first).partition(": ")
        yield f"  {rule} ({severity}{times}{_at(first)}){of}: {rest}"
        if others:
            places = [_place(finding) for finding in others[:PLACES]]
            more = f"; and {len(others) - PLACES} more" if len(others) > PLACES else ""
            yield f"    also {'; '.join(places)}{more}"


def _at(finding: "Finding") -> str:
    return "" if finding.line is None else f" at {finding.line}:{finding.column}"


def _place(finding: "Finding") -> str:
    """Return where a finding is; where it has no place, what it says."""
    places = (("gpu", finding.gpu), ("threadblock", finding.threadblock), ("step", finding.step))
    where = ", ".join(f"{name} {value}" for name, value in places if value is not None)
    return f"{where}{_at(finding)}" if where else f"{finding.explanation}{_at(finding)}"


def _largest(verdict: "Verdict") -> list[str]:
    if verdict.safe is None:
        return []
    largest = verdict.safe.size
    if largest is None:
        return ["no deadlock at any size"]
    whole, rest = divmod(largest, 1 << 20)
    mib = f" ({whole} MiB)" if whole and not rest else ""
    return [f"largest size without deadlock: {largest} bytes{mib}"]

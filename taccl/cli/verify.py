"""``taccl verify`` and ``taccl inspect``: what runtimes make of an XML file, and what it does."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from taccl.cli.help import shipped
from taccl.cli.options import (
    RUNTIME_NAMES,
    Group,
    Json,
    Nodes,
    PlanVersion,
    Ranks,
    Relays,
    group_of,
    one_of,
    read,
)
from taccl.errors import InputError
from taccl.units import parse_size

if TYPE_CHECKING:
    from taccl.collectives import Collective
    from taccl.msccl.program import Finding
    from taccl.msccl.verdict import Verdict


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
    files: Annotated[
        list[str],
        typer.Argument(help="MSCCL XML files, or MSCCL++ plans (JSON).", show_default=False),
    ],
    runtime: Annotated[
        str | None,
        one_of(
            RUNTIME_NAMES, "--runtime", "One of {} (all three at once); left out: each by itself."
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
    ranks: Ranks = None,
    relays: Relays = None,
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
    version: PlanVersion = None,
    as_json: Json = False,
) -> None:
    """Say what a runtime refuses, breaks on, never selects: data, races, deadlocks, limits."""
    name = runtime
    count = None if size is None else read("--size", parse_size, size)
    if structure_only and (bitwise or size is not None):
        raise InputError(
            "--structure-only follows no data and no waits",
            field="--bitwise-consistent" if bitwise else "--size", fix="leave out one of the two",
        )  # fmt: skip
    from taccl.files import read_bytes
    from taccl.groups import files_in, wanted
    from taccl.msccl.verdict import Question, Verdict, judge_for, judge_for_each
    from taccl.mscclpp.interpret import is_plan, judge_text
    from taccl.mscclpp.plan import NEWEST

    custom: dict[str, Callable[[int], Collective | None]] = {}
    for place in [Path(file) for file in files if file and Path(file).is_dir()]:
        groups, paths = files_in(place)
        custom |= {
            str(path): partial(wanted, one)
            for path, one in zip(paths, groups.instances, strict=True)
        }
    files = [*(file for file in files if not file or not Path(file).is_dir()), *custom]
    question = Question(
        count,
        structure_only,
        bitwise,
        _servers(topology, nodes, ranks_per_node, group_of(ranks, relays)),
    )
    found: dict[str, Verdicts] = {}
    for file in files:
        asked = replace(question, file=file, custom=custom.get(file, question.custom))
        text = read_bytes(file)
        if is_plan(text):
            verdict = judge_text(text, version or NEWEST, file=file, structure_only=structure_only)
            found[file] = {f"MSCCL++ {version or NEWEST}": Verdict(tuple(verdict), (), None, None)}
            continue
        found[file] = (
            judge_for_each(text, asked)
            if name is None
            else {name: judge_for(text, name, asked, {})}
        )
    # Right is what some runtime runs, and runs right.
    right = {
        file: any(verdict.worst is None for verdict in verdicts.values())
        for file, verdicts in found.items()
    }
    if as_json:
        report = [_record(file, verdicts, right=right[file]) for file, verdicts in found.items()]
        typer.echo(json.dumps({"files": report}, indent=2))
    else:
        for file, verdicts in found.items():
            tell = _lines if len(verdicts) == 1 else _each_line
            typer.echo("\n".join(tell(file, verdicts)))
    raise typer.Exit(0 if all(right.values()) else 1)


def _servers(
    topology: str | None, nodes: int | None, ranks_per_node: int | None, group: Group | None
) -> tuple[int, ...] | int | None:
    """Return the server of every rank, or the ranks on each; None: nothing is known."""
    if topology is None:
        for option, given in (("--nodes", nodes), ("--ranks", group)):
            if given is not None:
                raise InputError("is for a topology", field=option, fix="give --topology, too")
        return ranks_per_node
    if ranks_per_node is not None:
        raise InputError(
            "the topology says which ranks share a server", field="--ranks-per-node",
            fix="leave out one of the two",
        )  # fmt: skip
    from taccl.apps.inputs import MachineOptions, load_machine

    return load_machine(topology, MachineOptions(nodes, group=group)).server_of


_WORDS = {
    None: "verified for", "rejected": "rejected by", "breaks": "accepted, but breaks on",
    "never": "never selected by",
}  # fmt: skip
_ROWS = {
    None: "right", "rejected": "rejected", "breaks": "accepted, breaks on",
    "never": "never selected",
}  # fmt: skip


_FINDING = (
    "rule", "severity", "explanation", "gpu", "threadblock", "step", "line", "column", "fix",
)  # fmt: skip


def _worst(verdict: "Verdict") -> str | None:
    return None if verdict.worst is None else verdict.worst.value


def _record(file: str, verdicts: Verdicts, *, right: bool) -> dict[str, object]:
    """Return the record of a file: of the one runtime that is asked for, or of each."""
    fields: list[dict[str, object]] = []
    for runtime, verdict in verdicts.items():
        safe = verdict.safe
        fields.append(
            {
                "runtime": runtime,
                "verified": verdict.worst is None,
                "severity": _worst(verdict),
                "largest_safe_bytes": None if safe is None else safe.size,
                "safe_at_any_size": safe is not None and safe.size is None,
                "selected_for": [asdict(selection) for selection in verdict.selections],
                "findings": [
                    {name: getattr(finding, name) for name in _FINDING}
                    | {"severity": finding.severity.value}
                    for finding in verdict.findings
                ],
            }
        )
    if len(fields) == 1:
        return {"file": file, **fields[0]}
    return {"file": file, "verified": right, "verdicts": fields}


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
            places = []
            for one in others[:PLACES]:
                ids = (("gpu", one.gpu), ("threadblock", one.threadblock), ("step", one.step))
                where = ", ".join(f"{name} {value}" for name, value in ids if value is not None)
                places.append(f"{where or one.explanation}{_at(one)}")
            more = f"; and {len(others) - PLACES} more" if len(others) > PLACES else ""
            yield f"    also {'; '.join(places)}{more}"


def _at(finding: "Finding") -> str:
    if finding.line is None:
        return ""
    return f" at {finding.line}" + ("" if finding.column is None else f":{finding.column}")


def _largest(verdict: "Verdict") -> list[str]:
    if verdict.safe is None:
        return []
    largest = verdict.safe.size
    if largest is None:
        return ["no deadlock at any size"]
    whole, rest = divmod(largest, 1 << 20)
    mib = f" ({whole} MiB)" if whole and not rest else ""
    return [f"largest size without deadlock: {largest} bytes{mib}"]

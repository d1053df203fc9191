"""``taccl verify``: whether an XML file is right, and whether the runtime will take it."""

import json
from typing import Annotated

import typer

from taccl.cli.options import RUNTIME_NAMES, Json, chosen, read
from taccl.units import parse_size


def verify(
    files: Annotated[list[str], typer.Argument(help="MSCCL XML files.", show_default=False)],
    runtime: Annotated[
        str, typer.Option("--runtime", help=f"One of {RUNTIME_NAMES}.")
    ] = "portable",
    size: Annotated[
        str | None, typer.Option("--size", help="Also look for deadlocks at this size.")
    ] = None,
    structure_only: Annotated[
        bool, typer.Option("--structure-only", help="Only the limits of the runtime.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run programs on symbolic chunks: data, races, deadlocks, and the runtime's limits."""
    from taccl.pipeline import evaluation

    name = chosen("--runtime", runtime, RUNTIME_NAMES)
    count = None if size is None else read("--size", parse_size, size)
    found = {
        file: evaluation.judge_file(file, name, count, structure_only=structure_only)
        for file in files
    }
    wrong = any(found.values())
    if as_json:
        report = [
            {
                "file": file,
                "runtime": name,
                "verified": not findings,
                "findings": [
                    {
                        "rule": finding.rule,
                        "explanation": finding.explanation,
                        "gpu": finding.gpu,
                        "threadblock": finding.threadblock,
                        "step": finding.step,
                        "fix": finding.fix,
                    }
                    for finding in findings
                ],
            }
            for file, findings in found.items()
        ]
        typer.echo(json.dumps({"files": report}, indent=2))
    else:
        for file, findings in found.items():
            typer.echo(f"{file}: {'wrong' if findings else f'verified for {name}'}")
            for finding in findings:
                typer.echo(f"  {finding}")
    raise typer.Exit(1 if wrong else 0)

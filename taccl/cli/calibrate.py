"""``taccl calibrate``: a topology whose replay takes what nccl-tests measured."""

import json
from pathlib import Path
from typing import Annotated

import typer

from taccl.cli.help import output_option
from taccl.cli.names import COLLECTIVE_NAMES, FIT_NAMES
from taccl.cli.options import AlphaRule, Constants, Fabric, Json, Nodes, TopologyArgument, chosen


def calibrate(
    topology: TopologyArgument,
    measured: Annotated[
        list[str],
        typer.Option("--measured", help="Output of nccl-tests, text or JSON; may be repeated."),
    ],
    files: Annotated[
        list[str] | None, typer.Argument(help="More files of --measured.", show_default=False)
    ] = None,
    nodes: Nodes = None,
    fabric: Fabric = None,
    collective: Annotated[
        str | None,
        typer.Option(
            "--collective",
            help=f"What was measured, where the file does not say it: one of {COLLECTIVE_NAMES}.",
        ),
    ] = None,
    program: Annotated[
        str | None, typer.Option("--program", help="The MSCCL XML file that was run.")
    ] = None,
    algorithm: Annotated[
        str, typer.Option("--algorithm", help="Without --program: a classical algorithm.")
    ] = "ring",
    fit: Annotated[
        str, typer.Option("--fit", help=f"What may change: some of {FIT_NAMES}.")
    ] = FIT_NAMES.replace(" ", ""),
    out_of_place: Annotated[
        bool, typer.Option("--out-of-place", help="Take that column, not the in-place one.")
    ] = False,
    alpha_rule: AlphaRule = None,
    runtime: Constants = "executor",
    output: Annotated[
        Path | None, output_option("-o", "--output", help="The YAML file to write.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Fit the costs of a topology to what nccl-tests measured, and write it as a file."""
    from taccl.apps.calibration import Question, calibration_json, calibration_text
    from taccl.apps.calibration import calibrate as solve
    from taccl.files import check_outputs, write_atomic

    runs = (*measured, *(files or ()))
    check_outputs([("-o", output)], [topology, *runs, *([program] if program else [])])
    found = solve(
        Question(
            topology, runs, nodes, fabric, alpha_rule, collective, program, algorithm.lower(),
            runtime, tuple(chosen("--fit", part.strip(), FIT_NAMES) for part in fit.split(",")),
            out_of_place,
        )
    )  # fmt: skip
    if output is not None:
        write_atomic(output, found.text, field="-o")
    written = None if output is None else str(output)
    if as_json:
        typer.echo(json.dumps(calibration_json(found, written), indent=2))
    else:
        typer.echo(calibration_text(found, written))

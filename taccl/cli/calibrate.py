"""``taccl calibrate`` and ``measured``: what was measured beside, and in, what the replay says."""

import json
from pathlib import Path
from typing import Annotated

import typer

from taccl.cli.help import machine_option, output_option
from taccl.cli.options import (
    COLLECTIVE_NAMES,
    FIT_NAMES,
    KERNEL_NAMES,
    PROFILE_NAMES,
    AlphaRule,
    Constants,
    Fabric,
    Json,
    Nodes,
    TopologyArgument,
    chosen,
    one_of,
)
from taccl.errors import InputError


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
        str | None,
        typer.Option(
            "--algorithm",
            help="Without --program: a classical algorithm (default: ring); of measured costs"
            f" NCCL's kernel, one of {KERNEL_NAMES} (default: nccl, the faster of ring and tree).",
            show_default=False,
        ),
    ] = None,
    fit: Annotated[
        str | None,
        typer.Option("--fit", help=f"What may change: some of {FIT_NAMES}.", show_default=False),
    ] = None,
    out_of_place: Annotated[
        bool, typer.Option("--out-of-place", help="Take that column, not the in-place one.")
    ] = False,
    alpha_rule: AlphaRule = None,
    profile: Annotated[
        str,
        one_of(
            PROFILE_NAMES,
            "--profile",
            "Which costs are fitted: {}; the latter are those of programs (measured:).",
            "Machine",
        ),
    ] = "alpha-beta",
    prior: Annotated[
        str | None,
        machine_option(
            "--prior",
            help="Measured costs to start from; default: the topology's own, or its GPU's.",
        ),
    ] = None,
    channels: Annotated[
        int | None,
        typer.Option("--channels", min=1, max=64, help="Of NCCL's kernel; 16 if left out."),
    ] = None,
    runtime: Constants = "executor",
    output: Annotated[
        Path | None, output_option("-o", "--output", help="The YAML file to write.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Fit the costs of a topology to what nccl-tests measured, and write it as a file."""
    from taccl.apps import measured as profiles
    from taccl.apps.calibration import Question, calibration_json, calibration_text
    from taccl.apps.calibration import calibrate as solve
    from taccl.files import check_outputs, write_atomic

    runs = (*measured, *(files or ()))
    check_outputs([("-o", output)], [topology, *runs, *([program] if program else [])])
    written = None if output is None else str(output)
    is_profile = profile == "measured"
    only: dict[str, object] = {"--prior": prior, "--channels": channels}
    if is_profile:
        only = {
            "--fit": fit, "--alpha-rule": alpha_rule, "--out-of-place": out_of_place,
            "--runtime": runtime != "executor",
        }  # fmt: skip
    for option, given in only.items():
        if given:
            raise InputError(
                f"is not for --profile {profile}", field=option, fix=f"leave {option} out"
            )
    if is_profile:
        made = profiles.calibrate_profile(
            profiles.ProfileQuestion(
                topology, runs, nodes, fabric, collective, program,
                "nccl" if algorithm is None else chosen("--algorithm", algorithm, KERNEL_NAMES),
                channels or 16, prior,
            )
        )  # fmt: skip
        if output is not None:
            write_atomic(output, made.text, field="-o")
        typer.echo(
            json.dumps(profiles.profile_json(made, written), indent=2)
            if as_json else profiles.profile_text(made, written)
        )  # fmt: skip
        return
    parts = (fit or FIT_NAMES).split(",")
    found = solve(
        Question(
            topology, runs, nodes, fabric, alpha_rule, collective, program,
            (algorithm or "ring").lower(),
            runtime, tuple(chosen("--fit", part.strip(), FIT_NAMES) for part in parts),
            out_of_place,
        )
    )  # fmt: skip
    if output is not None:
        write_atomic(output, found.text, field="-o")
    if as_json:
        typer.echo(json.dumps(calibration_json(found, written), indent=2))
    else:
        typer.echo(calibration_text(found, written))


def measured(
    tables: Annotated[
        list[str] | None,
        typer.Argument(help="Files of measurements, or names of shipped ones.", show_default=False),
    ] = None,
    topology: Annotated[
        str | None,
        machine_option("--topology", help="Whose measured costs; default: the table's machine."),
    ] = None,
    files: Annotated[
        Path | None, machine_option("--files", help="Folder of the MSCCL files that runs name.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show public measurements beside what the replay says, table by table."""
    from taccl.apps.measured import compare_tables, measured_json, measured_text

    found = compare_tables(tables or (), topology, files)
    if as_json:
        typer.echo(json.dumps(measured_json(found), indent=2))
    else:
        typer.echo(measured_text(found, detailed=bool(tables)))

"""``taccl measured``: public measurements beside what the replay says."""

import json
from pathlib import Path
from typing import Annotated

import typer

from taccl.cli.help import machine_option
from taccl.cli.options import Json


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

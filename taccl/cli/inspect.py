"""``taccl inspect``: what a program does, rank by rank and pair by pair."""

import json
from typing import Annotated

import typer

from taccl.cli.options import Json, read
from taccl.units import parse_size


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

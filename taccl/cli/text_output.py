"""The text that a command makes: to stdout, or to the file of ``-o``."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from taccl.cli.help import OUTPUT

TextOutput = Annotated[
    Path | None,
    typer.Option(
        "-o", "--output", help="The file to write; left out or -: stdout.", rich_help_panel=OUTPUT
    ),
]


def is_stdout(output: Path | None) -> bool:
    """Tell whether ``-o`` is ``-``."""
    return str(output) == "-"


def deliver(
    text: str, output: Path | None, inputs: Sequence[str], notes: Sequence[str] = ()
) -> None:
    """Print a text, or write it to a file and say so.

    Parameters
    ----------
    output
        None or ``-``: stdout.
    inputs
        What the text was made of, which it may not overwrite.
    notes
        What there is to say of a text that is not on stdout.

    Raises
    ------
    InputError
        When the file can't be written, or is one of the inputs.
    """
    from taccl.files import check_apart, write_atomic

    if output is None or is_stdout(output):
        typer.echo(text, nl=False)
        return
    check_apart(output, inputs, field="-o")
    write_atomic(output, text)
    for note in notes:
        typer.echo(note, err=True)
    typer.echo(f"wrote {output}")

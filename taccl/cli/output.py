"""What a command puts out: its text, the files that it has written, and progress on stderr.

The text goes to stdout, or to the file of ``-o``. Progress on a terminal is one line, in place, cut
to the width that there is; elsewhere, and with ``-v``, a line each, which stays; ``-v`` puts the
seconds since the start before it.
"""

import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from taccl.cli.help import output_option
from taccl.timing.deadline import Deadline

TextOutput = Annotated[
    Path | None, output_option("-o", "--output", help="The file to write; left out or -: stdout.")
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
    text
        What the command makes.
    output
        None or ``-``: stdout.
    inputs
        What the text was made of, which it may not overwrite.
    notes
        What there is to say of a text that is not on stdout.

    Raises InputError when the file can't be written, or is one of the inputs.
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


MAX_NAMED = 8

States = dict[Path, tuple[int, int, int]]
"""Device, inode and time of the last change of files: one that is replaced has another inode."""


def states_of(outputs: Sequence[Path | None]) -> States:
    """Return the states of the outputs that exist, those in a directory one by one."""
    found: States = {}
    for file in _files(outputs):
        try:
            known = file.stat()
        except (OSError, ValueError):
            continue
        found[file] = (known.st_dev, known.st_ino, known.st_mtime_ns)
    return found


def _files(outputs: Sequence[Path | None]) -> Iterator[Path]:
    for path in outputs:
        if path is not None:
            yield from path.iterdir() if path.is_dir() else [path]


def told(before: States, after: States) -> str:
    """Return what an interrupted command has written between two moments.

    Parameters
    ----------
    before, after
        States of the outputs, from :func:`states_of`.
    """
    written = sorted(str(path) for path, state in after.items() if before.get(path) != state)
    if not written:
        return "interrupted before anything could be written"
    more = f" and {len(written) - MAX_NAMED} more" if len(written) > MAX_NAMED else ""
    return f"interrupted after writing {', '.join(written[:MAX_NAMED])}{more}, and nothing else"


_CLEAR = "\r\033[K"


def say(line: str) -> None:
    """Print a line to stderr that stays, in place of the one that is shown at the moment."""
    typer.echo(f"{_CLEAR if sys.stderr.isatty() else ''}{line}", err=True)


@contextmanager
def progress(*, quiet: bool = False, verbose: bool = False) -> Iterator[Callable[[str], None]]:
    """Give what shows what is being done; at the end nothing of a terminal's line is left.

    Parameters
    ----------
    quiet
        Show nothing.
    verbose
        Show a line each, with the seconds since the start.
    """
    if quiet:
        yield lambda _line: None
    elif verbose:
        clock = Deadline()
        yield lambda line: say(f"{clock.spent:7.1f} s  {line}")
    elif not sys.stderr.isatty():
        yield say
    else:
        try:
            yield _in_place
        finally:
            typer.echo(_CLEAR, err=True, nl=False)


def _in_place(line: str) -> None:
    # The last column is left free: terminals that fill it go on to the next line.
    width = shutil.get_terminal_size().columns - 1
    typer.echo(f"{_CLEAR}{line[:width]}", err=True, nl=False)

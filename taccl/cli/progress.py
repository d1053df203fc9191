"""What a long command says on stderr while it works.

On a terminal: one line, in place, cut to the width that there is. Elsewhere, and with ``-v``: a
line each, which stays; ``-v`` puts the seconds since the start before it.
"""

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer

from taccl.timing.deadline import Deadline

_CLEAR = "\r\033[K"


def say(line: str) -> None:
    """Print a line to stderr that stays, in place of the one that is shown at the moment."""
    typer.echo(f"{_CLEAR if sys.stderr.isatty() else ''}{line}", err=True)


@contextmanager
def progress(*, quiet: bool = False, verbose: bool = False) -> Iterator[Callable[[str], None]]:
    """Give what shows what is being done; at the end nothing of a terminal's line is left."""
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

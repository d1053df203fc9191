"""``taccl warmup``: compile what searches need, once on a machine."""

import typer

from taccl.cli.options import Quiet, Verbose, interruptible
from taccl.cli.progress import progress


def warmup(quiet: Quiet = False, verbose: Verbose = False) -> None:
    """Compile the loops of searches and replays, once on a machine; later runs find them."""
    from taccl.pipeline.kernels import compile_ahead

    with interruptible() as stop, progress(quiet=quiet, verbose=verbose) as show:
        seconds = compile_ahead(show, stop)
    if not quiet:
        typer.echo(f"compiled in {seconds:.0f} s" if seconds else "everything was compiled before")

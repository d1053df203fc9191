"""``taccl warmup``: compile what searches need, once on a machine."""

import typer

from taccl.cli.options import Quiet, interruptible, progress


def warmup(quiet: Quiet = False) -> None:
    """Compile the loops of searches and replays ahead, once on a machine and for every user."""
    from taccl.pipeline.kernels import compile_ahead

    with interruptible() as stop:
        made = compile_ahead(progress(quiet=quiet), stop)
    if not quiet:
        typer.echo("ready" if made else "ready: everything was compiled before")

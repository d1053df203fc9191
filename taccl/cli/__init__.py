"""The command line: parse, call the pipeline, print. The only place that prints or exits.

Solvers, numpy and file formats are imported inside the commands, so that ``taccl --help`` is fast.
"""

import sys
import warnings
from typing import Annotated, TextIO

import typer

import taccl
from taccl.cli import calibrate, evaluate, place, sketch, step, synthesize, topology, tune, verify
from taccl.cli import run as run_command
from taccl.cli.help import UsageError, illustrate, say, usage_told
from taccl.errors import TacclError, TacclWarning

app = typer.Typer(
    name="taccl",
    help="Synthesize collective algorithms for a GPU cluster as verified MSCCL XML.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    synthesize.synthesize, evaluate.evaluate, verify.verify, verify.inspect, evaluate.bound,
    evaluate.compare, run_command.run, calibrate.calibrate, place.place, step.step,
    calibrate.measured,
    synthesize.convert, tune.tune, tune.explain,
    sketch.schema, synthesize.warmup,
):  # fmt: skip
    app.command()(command)
topology.app.command("import")(topology.import_)
topology.app.command()(topology.export)
app.add_typer(topology.app, name="topology")
app.add_typer(sketch.app, name="sketch")
illustrate(app)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"taccl {taccl.__version__}")
        raise typer.Exit


@app.callback()
def _taccl(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Take the options of all commands together."""


def run() -> None:
    """Run the command line; a user's error is printed and sets the exit status."""
    warnings.showwarning = _show_warning
    try:
        # Not standalone: errors of the command line are told here, in the form of all others.
        sys.exit(app(standalone_mode=False))
    except UsageError as error:
        typer.echo(usage_told(error), err=True)
        sys.exit(2)
    except TacclError as error:
        say(f"error: {error}")
        sys.exit(error.exit_status)
    except BrokenPipeError:
        # The reader (head, less) has gone: nothing is left to say.
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:
        # Files have errors of their own: this is standard output, on a full disk perhaps.
        typer.echo(f"error: can't print: {(error.strerror or str(error)).lower()}", err=True)
        typer.echo("  fix: free some space, or redirect the output elsewhere", err=True)
        sys.stdout = None  # nothing more to flush at exit
        sys.exit(2)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    if issubclass(category, TacclWarning):
        typer.echo(f"warning: {message}", file=file, err=True)
    else:
        typer.echo(
            warnings.formatwarning(message, category, filename, lineno, line), file=file, err=True
        )

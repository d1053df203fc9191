"""``taccl tune`` and ``taccl explain``: a library of programs, and which of them runs when."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taccl.cli.help import is_stdout, listed, output_option, program_option, progress, search_option
from taccl.cli.options import (
    COLLECTIVE_NAMES,
    PLAN_RUNTIME,
    RUNTIME_NAMES,
    TIMES_EXPORT_NAMES,
    AlphaRule,
    Begin,
    DefaultProfile,
    End,
    Fabric,
    Factor,
    InNetwork,
    Json,
    Nodes,
    PlanVersion,
    Quiet,
    TopologyArgument,
    Verbose,
    chosen,
    interruptible,
    one_of,
    read,
    sizes_of,
)
from taccl.errors import InputError
from taccl.units import format_size, microseconds, parse_size

if TYPE_CHECKING:
    from taccl.tuning.candidate import Outcome
    from taccl.tuning.executors import Workshop
    from taccl.tuning.search import Progress

TIME_LIMIT = 300.0
"""Seconds, where neither a time nor a number is given."""

MAX_SIZES = 256


def tune(
    topology: TopologyArgument,
    collectives: Annotated[
        list[str],
        typer.Argument(
            metavar="COLLECTIVE...", help=f"One or more of {COLLECTIVE_NAMES}.", show_default=False
        ),
    ],
    output: Annotated[
        Path, output_option("-o", "--output", help="The directory to write.", show_default=False)
    ],
    nodes: Nodes = None,
    fabric: Fabric = None,
    begin: Begin = "1K",
    end: End = "1G",
    factor: Factor = 2,
    alpha_rule: AlphaRule = None,
    profile: DefaultProfile = None,
    runtime: Annotated[
        str, one_of(f"{RUNTIME_NAMES}, {PLAN_RUNTIME}", "--runtime", "One of {}.", "Program")
    ] = "portable",
    version: PlanVersion = None,
    in_network: InNetwork = "auto",
    sketch: Annotated[
        list[str] | None,
        search_option(
            "--sketch", help="Tried beside the whole topology; may be given more than once."
        ),
    ] = None,
    time_limit: Annotated[
        float | None,
        search_option(
            "--time-limit",
            min=1,
            max=864000,
            show_default=False,
            help=f"Seconds for the whole run (default {TIME_LIMIT:g}).",
        ),
    ] = None,
    candidates: Annotated[
        int | None,
        search_option(
            "--candidates",
            min=0,
            max=1_000_000,
            show_default=False,
            help="Searches in all, instead of a time: the same files from every run.",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        search_option(
            "--workers",
            min=1,
            max=1024,
            show_default=False,
            help="Processes (default: one for each core).",
        ),
    ] = None,
    scheduler: Annotated[
        str | None,
        search_option("--scheduler", help="Run on the workers of this Dask scheduler instead."),
    ] = None,
    mpi: Annotated[
        bool,
        search_option("--mpi", help="Run on the ranks of an MPI job (mpi4py.futures) instead."),
    ] = False,
    seed: Annotated[
        int, search_option("--seed", min=0, max=2**31 - 1, help="For the solvers.")
    ] = 0,
    nccl: Annotated[
        str | None,
        program_option("--nccl", help="Inputs of NCCL's model, as taccl compare takes them."),
    ] = None,
    keep_all: Annotated[
        bool,
        program_option(
            "--keep-all", help="Leave no sizes to NCCL where its own model says it is faster."
        ),
    ] = False,
    export: Annotated[
        list[str] | None,
        output_option(
            "--export",
            help=f"Also write the times for other tools: {TIMES_EXPORT_NAMES};"
            " may be given more than once.",
            autocompletion=listed(TIMES_EXPORT_NAMES),
        ),
    ] = None,
    as_json: Annotated[
        bool,
        output_option(
            "--json", help="JSON: progress, a line each, on stderr; the result on stdout."
        ),
    ] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Search programs for collectives and sizes, and write the best ones as a directory."""
    from taccl.apps.warmup import compile_ahead
    from taccl.collectives import collective_name
    from taccl.mscclpp.plan import NEWEST
    from taccl.replay.nccl import Settings, parse_settings
    from taccl.tuning.search import Budget
    from taccl.tuning.session import Order, tune

    if is_stdout(output):
        raise InputError("- is no directory", field="-o", fix="name the directory to write")
    if time_limit is not None and candidates is not None:
        raise InputError("both a time and a number", field="--candidates", fix="give one of them")
    if version is not None and runtime != PLAN_RUNTIME:
        raise InputError(
            f"is for --runtime {PLAN_RUNTIME}", field="--mscclpp-version",
            fix="leave --mscclpp-version out",
        )  # fmt: skip
    if in_network == "on" and runtime != PLAN_RUNTIME:
        raise InputError(
            f"no XML can hold what switches copy and add, and {runtime} reads XML",
            field="--in-network", fix=f"leave it out, or use --runtime {PLAN_RUNTIME}",
        )  # fmt: skip
    exports = dict.fromkeys(chosen("--export", one, TIMES_EXPORT_NAMES) for one in export or ())
    plans = (version or NEWEST) if runtime == PLAN_RUNTIME else None
    seconds = None if candidates is not None else time_limit or TIME_LIMIT
    sizes = sizes_of(begin, end, factor, "")
    last = read("-e", parse_size, end)
    if sizes[-1] < last:
        sizes.append(last)
    if len(sizes) > MAX_SIZES or sizes[0] < 4:
        raise InputError(
            f"{len(sizes)} sizes from {sizes[0]} bytes", field="-b",
            fix=f"take at most {MAX_SIZES}, from 4 bytes on",
        )  # fmt: skip
    given = Settings() if nccl is None else read("--nccl", parse_settings, nccl)
    with interruptible() as stop, progress(quiet=quiet or as_json, verbose=verbose) as show:
        compile_ahead(show, stop)
    told = shown(quiet=quiet, verbose=verbose, as_json=as_json)
    with interruptible(output) as stop, told as watch:
        order = Order(
            topology, tuple(dict.fromkeys(map(collective_name, collectives))), tuple(sizes),
            "executor" if plans else runtime, Budget(candidates, seconds), output,
            _workshop(workers, scheduler, mpi=mpi), nodes, fabric, alpha_rule,
            tuple(sketch or ()), seed,
            None if keep_all or plans else given, profile,
            plans, in_network, tuple(exports), stop, watch,
        )  # fmt: skip
        found = tune(order)
    from taccl.tuning.directory import as_object, summary

    typer.echo(json.dumps(as_object(found)) if as_json else summary(found))


def _workshop(workers: int | None, scheduler: str | None, *, mpi: bool) -> "Callable[[], Workshop]":
    """Return what makes the executor that is asked for."""
    import os

    from taccl.tuning import executors

    if scheduler is not None and mpi:
        raise InputError("both a scheduler and MPI", field="--mpi", fix="give one of them")
    if workers is not None and (scheduler is not None or mpi):
        raise InputError(
            "the cluster has its own workers", field="--workers", fix="leave --workers out"
        )
    if scheduler is not None:
        return lambda: executors.dask_workshop(scheduler)
    if mpi:
        return executors.mpi_workshop
    return lambda: executors.Processes(workers or os.cpu_count() or 1)


def explain(
    directory: Annotated[
        Path, typer.Argument(help="A directory that taccl tune has written.", show_default=False)
    ],
    collective: Annotated[
        str, typer.Option("--collective", help=f"One of {COLLECTIVE_NAMES}.", show_default=False)
    ],
    size: Annotated[
        str,
        typer.Option(
            "--size", help="Bytes, as nccl-tests counts them: 64K or 64KiB is 2^16, 64KB is 64000."
        ),
    ],
    as_json: Json = False,
) -> None:
    """Say which file of a library runs for a collective and size, and why."""
    from taccl.collectives import collective_name
    from taccl.tuning.directory import answer, answer_text

    name = collective_name(collective)
    found: dict[str, Any] = answer(directory, name, read("--size", parse_size, size))
    typer.echo(json.dumps(found) if as_json else answer_text(found))


@contextmanager
def shown(
    *, quiet: bool, as_json: bool, verbose: bool = False
) -> Iterator[Callable[["Progress"], None]]:
    """Give what shows progress on stderr: nothing if `quiet`, a JSON object each if `as_json`.

    If `verbose`, every candidate is shown, also one that was known or in vain.
    """
    if quiet:
        yield lambda _progress: None
    elif as_json:
        yield _as_json
    else:
        with progress(verbose=verbose) as say:
            every = verbose or sys.stderr.isatty()

            def tell(progress: "Progress") -> None:
                # A line that stays is not worth it for each that was known, or was in vain.
                found = progress.outcome
                news = found is not None and bool(found.played or found.failed)
                if every or (news and not (progress.known and progress.done % 50)):
                    say(_line(progress))

            yield tell


def _as_json(progress: "Progress") -> None:
    outcome = progress.outcome
    if outcome is not None:
        sizes, bounds = progress.picker.plan.sizes, progress.picker.plan.bounds
        facts = {
            "done": progress.done,
            "total": progress.total,
            "running": progress.running,
            "seconds": round(progress.spent, 1),
            "left_seconds": None if progress.left is None else round(progress.left, 1),
            "known": progress.known,
            "collective": outcome.spec.collective,
            "candidate": outcome.spec.told(),
            "size_bytes": outcome.spec.size,
            "programs": len(outcome.played),
            "reason": outcome.reason,
            "best": [
                {
                    "collective": name,
                    "size_bytes": sizes[place],
                    "time_us": microseconds(time),
                    "bound_us": microseconds(bound) if (bound := bounds[name][place]) else None,
                }
                for (name, place), time in sorted(progress.picker.best.items())
            ],
        }
        typer.echo(json.dumps(facts), err=True)


def _line(progress: "Progress") -> str:
    count = f"{progress.done}/{progress.total}" if progress.total else str(progress.done)
    left = "" if progress.left is None else f", {progress.left:.0f} s left"
    line, found = f"{count} candidates{left}", progress.outcome
    if found is None:
        return line
    spec, what = found.spec, _best(progress, found) if found.played else found.reason
    return f"{line}: {spec.collective} {format_size(spec.size)} {spec.told()}: {what}"


def _best(progress: "Progress", found: "Outcome") -> str:
    """Return the best time at the size of a candidate that was found, beside its bound."""
    place = progress.picker.plan.sizes.index(found.spec.size)
    time = progress.picker.best.get((found.spec.collective, place))
    bound = progress.picker.plan.bounds[found.spec.collective][place]
    own = min((t for one in found.played if (t := one.times[place]) is not None), default=None)
    told = "-" if own is None else f"{microseconds(own):.6g} us"
    if time:
        told += f", best {microseconds(time):.6g}"
    return told + (f", bound {microseconds(bound):.6g}" if bound else "")

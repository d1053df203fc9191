"""``taccl synthesize`` and ``taccl convert``: from a machine, or a schedule, to an XML file."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from taccl.cli.completion import listed, shipped
from taccl.cli.options import (
    ALPHA_RULE_NAMES,
    ENGINE_NAMES,
    PROTOCOL_NAMES,
    RUNTIME_NAMES,
    AlphaRule,
    CollectiveArgument,
    Fabric,
    Json,
    Nodes,
    Quiet,
    Root,
    Runtime,
    Size,
    SizeOfChunks,
    TopologyArgument,
    chosen,
    chunk_count,
    element_bytes,
    interruptible,
    progress,
    read,
    size_of,
)
from taccl.errors import InputError
from taccl.units import parse_nccl_size

if TYPE_CHECKING:
    from taccl.pipeline import Target

Protocol = Annotated[
    str,
    typer.Option(
        "--protocol",
        help=f"One of {PROTOCOL_NAMES}; auto: Simple, where that hangs LL128 or LL.",
    ),
]
InPlace = Annotated[bool, typer.Option("--inplace", help="Serve in-place calls only.")]
OutOfPlace = Annotated[bool, typer.Option("--outofplace", help="Serve out-of-place calls only.")]
Both = Annotated[bool, typer.Option("--both", help="Serve both modes with one file.")]
Instances = Annotated[
    int | None,
    typer.Option(
        "--instances", min=1, max=64,
        help="Copies, each for a share of every chunk (default: as many as save 5 %).",
    ),
]  # fmt: skip
BitwiseConsistent = Annotated[
    bool,
    typer.Option(
        "--bitwise-consistent", help="Only programs that add up in one order on all ranks."
    ),
]
Channels = Annotated[
    int | None, typer.Option("--channels", min=1, max=128, help="The most channels to use.")
]
MinBytes = Annotated[
    str | None, typer.Option("--min-bytes", help="Smallest size to serve (K, M, G: powers of 2).")
]
MaxBytes = Annotated[
    str | None, typer.Option("--max-bytes", help="Largest size to serve (K, M, G: powers of 2).")
]
Output = Annotated[Path | None, typer.Option("-o", "--output", help="The XML file to write.")]
Dtype = Annotated[str, typer.Option("--dtype", help="Data type, as nccl-tests names it.")]


def synthesize(
    topology: TopologyArgument,
    collective: CollectiveArgument,
    nodes: Nodes = None,
    fabric: Fabric = None,
    sketch: Annotated[
        str | None,
        typer.Option(
            "--sketch",
            help="A sketch file or the name of a shipped one.",
            autocompletion=shipped("sketches"),
        ),
    ] = None,
    size: SizeOfChunks = None,
    dtype: Dtype = "float",
    chunks: Annotated[
        str, typer.Option("--chunks", help="Chunks for each rank (and pair): auto or a number.")
    ] = "auto",
    batch: Annotated[
        str, typer.Option("--batch", help="auto: chunks may travel together; none: one by one.")
    ] = "auto",
    root: Root = None,
    engine: Annotated[
        str,
        typer.Option(
            "--engine", help=f"One of {ENGINE_NAMES}.", autocompletion=listed(ENGINE_NAMES)
        ),
    ] = "auto",
    steps: Annotated[
        int | None,
        typer.Option("--steps", help="Engine exact: is there an algorithm of so many steps ...?"),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option("--rounds", help="... of so many rounds in all, and --chunks chunks (SCCL)?"),
    ] = None,
    time_limit: Annotated[
        float, typer.Option("--time-limit", min=0.1, max=86400, help="Seconds for the search.")
    ] = 60.0,
    seed: Annotated[int, typer.Option("--seed", min=0, max=2**31 - 1, help="For the solvers.")] = 0,
    workers: Annotated[
        int, typer.Option("--workers", min=1, max=256, help="Threads of a solver.")
    ] = 2,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Count work instead of seconds.")
    ] = False,
    alpha_rule: AlphaRule = None,
    runtime: Runtime = "portable",
    protocol: Protocol = "auto",
    inplace: InPlace = False,
    outofplace: OutOfPlace = False,
    both: Both = False,
    instances: Instances = None,
    channels: Channels = None,
    min_bytes: MinBytes = None,
    max_bytes: MaxBytes = None,
    bitwise_consistent: BitwiseConsistent = False,
    output: Output = None,
    schedule: Annotated[
        Path | None, typer.Option("--schedule", help="Write the schedule as JSON.")
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option("--report", help="Write a page: timeline, chunks, links, tables."),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find a schedule for a collective, prove it correct, and write it as MSCCL XML."""
    from taccl import pipeline
    from taccl.pipeline import outputs, reports
    from taccl.pipeline.problems import load_collective

    target = _target(
        runtime, protocol, (inplace, outofplace, both), instances, channels, min_bytes, max_bytes,
        element_bytes(dtype), bitwise=bitwise_consistent,
    )  # fmt: skip
    request = pipeline.Request(
        logical=pipeline.load_network(
            topology, nodes=nodes, fabric=fabric, sketch=sketch,
            alpha_rule=alpha_rule and chosen("--alpha-rule", alpha_rule, ALPHA_RULE_NAMES),
        ),
        collective=load_collective(collective),
        root=root,
        size=0 if size is None else size_of(size),
        chunks=chunk_count(chunks),
        batch=chosen("--batch", batch, "auto, none") == "auto",
        engine=chosen("--engine", engine, ENGINE_NAMES),
        steps=_steps(steps, rounds, engine, chunk_count(chunks)),
        target=target,
        time_limit=time_limit,
        seed=seed,
        workers=workers,
        deterministic=deterministic,
        report=progress(quiet=quiet or as_json),
    )  # fmt: skip
    outputs.check_writable(output, schedule)
    outputs.check_target(request, output)
    reports.check_report(report, output, schedule)
    with interruptible() as stop:
        found = pipeline.synthesize(pipeline.with_stop(request, stop))
        written = outputs.write_outputs(found, output, schedule)
        written += reports.write_report(found, report)
    if output is not None and (text := outputs.caution(found.schedule.collective)):
        _warn(text)
    tell = outputs.as_json if as_json else outputs.summary
    typer.echo(tell(found, written, output))


def _steps(
    steps: int | None, rounds: int | None, engine: str, chunks: int | None
) -> tuple[int, int] | None:
    """Return SCCL's question, or None when it is not asked.

    Raises
    ------
    InputError
        When only a part of it is.
    """
    if steps is None and rounds is None:
        return None
    if steps is None or rounds is None or chunks is None or engine.lower() != "exact":
        raise InputError(
            "an algorithm is asked for by its steps, rounds and chunks together",
            field="--rounds" if steps is None else "--steps",
            fix="give --engine exact --steps S --rounds R --chunks C",
        )
    return steps, rounds


def convert(
    schedule: Annotated[Path, typer.Argument(help="A schedule as JSON.", show_default=False)],
    output: Output = None,
    size: Size = "1MB",
    dtype: Dtype = "float",
    runtime: Runtime = "portable",
    protocol: Protocol = "auto",
    inplace: InPlace = False,
    outofplace: OutOfPlace = False,
    both: Both = False,
    instances: Instances = None,
    channels: Channels = None,
    min_bytes: MinBytes = None,
    max_bytes: MaxBytes = None,
    bitwise_consistent: BitwiseConsistent = False,
) -> None:
    """Verify a schedule and write it as MSCCL XML (to stdout without -o)."""
    from taccl.pipeline import outputs

    target = _target(
        runtime, protocol, (inplace, outofplace, both), instances, channels, min_bytes, max_bytes,
        element_bytes(dtype), bitwise=bitwise_consistent,
    )  # fmt: skip
    if target is None:
        raise InputError("none writes no XML", field="--runtime", fix=f"use {RUNTIME_NAMES}")
    texts = outputs.convert(schedule, target, size_of(size), output, _warn)
    if output is None:
        typer.echo(next(iter(texts.values())), nl=False)
    else:
        loading = outputs.loading(texts, target.runtime)
        typer.echo("\n".join([*(f"wrote {path}" for path in texts), *loading]))


def _warn(text: str) -> None:
    typer.echo(f"warning: {text}", err=True)


def _target(
    runtime: str,
    protocol: str,
    modes: tuple[bool, bool, bool],
    instances: int | None,
    channels: int | None,
    min_bytes: str | None,
    max_bytes: str | None,
    element: int,
    *,
    bitwise: bool,
) -> "Target | None":
    """Return what program is wanted; None for ``--runtime none``."""
    from taccl.pipeline import Target

    names = ("inplace", "outofplace", "both")
    wanted = [name for name, given in zip(names, modes, strict=True) if given]
    if len(wanted) > 1:
        raise InputError(
            f"--{wanted[0]} and --{wanted[1]} exclude each other",
            field=f"--{wanted[0]}",
            fix="give one of --inplace, --outofplace, --both",
        )
    name = chosen("--runtime", runtime, f"{RUNTIME_NAMES}, none")
    if name == "none":
        return None
    return Target(
        runtime=name,
        protocol=chosen("--protocol", protocol, PROTOCOL_NAMES),
        modes=wanted[0] if wanted else "auto",
        instances=instances,
        channels=channels,
        min_bytes=None if min_bytes is None else read("--min-bytes", parse_nccl_size, min_bytes),
        max_bytes=None if max_bytes is None else read("--max-bytes", parse_nccl_size, max_bytes),
        element_bytes=element,
        bitwise=bitwise,
    )

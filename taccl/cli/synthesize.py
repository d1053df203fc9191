"""``taccl synthesize`` and ``taccl convert``: from a machine, or a schedule, to an XML file.

``taccl warmup``: compile what searches need, once on a machine.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from taccl.cli.help import (
    collective_option,
    is_stdout,
    machine_option,
    output_option,
    program_option,
    progress,
    say,
    search_option,
    shipped,
)
from taccl.cli.options import (
    CONVERSION_NAMES,
    ENGINE_NAMES,
    PLAN_RUNTIME,
    PROCESS,
    PROTOCOL_NAMES,
    RUNTIME_NAMES,
    AlphaRule,
    CollectiveArgument,
    DefaultProfile,
    Fabric,
    InNetwork,
    Json,
    NeededOver,
    Nodes,
    PlanOrRuntime,
    PlanVersion,
    Quiet,
    Ranks,
    ReadyOver,
    Relays,
    Root,
    Size,
    SizeOfChunks,
    TopologyArgument,
    Verbose,
    chunk_count,
    element_bytes,
    group_of,
    interruptible,
    one_of,
    read,
    size_of,
    time_of,
)
from taccl.errors import InputError
from taccl.units import parse_size

if TYPE_CHECKING:
    from taccl.apps import Request, Target
    from taccl.apps.plans import Wanted as WantedPlan
    from taccl.collectives.groups import Groups


def warmup(quiet: Quiet = False, verbose: Verbose = False) -> None:
    """Compile the loops of searches and replays, once on a machine; later runs find them."""
    from taccl.apps.warmup import compile_ahead

    with interruptible() as stop, progress(quiet=quiet, verbose=verbose) as show:
        seconds = compile_ahead(show, stop)
    if not quiet:
        typer.echo(f"compiled in {seconds:.0f} s" if seconds else "everything was compiled before")


Protocol = Annotated[
    str,
    one_of(
        PROTOCOL_NAMES,
        "--protocol",
        "One of {}; auto: Simple, where that hangs LL128 or LL.",
        "Program",
    ),
]
InPlace = Annotated[bool, program_option("--inplace", help="Serve in-place calls only.")]
OutOfPlace = Annotated[bool, program_option("--outofplace", help="Serve out-of-place calls only.")]
Both = Annotated[bool, program_option("--both", help="Serve both modes with one file.")]
Instances = Annotated[
    int | None,
    program_option(
        "--instances",
        min=1,
        max=64,
        help="Copies, each for a share of every chunk (default: as many as save 5 %).",
    ),
]
BitwiseConsistent = Annotated[
    bool,
    program_option(
        "--bitwise-consistent", help="Only programs that add up in one order on all ranks."
    ),
]
Channels = Annotated[
    int | None, program_option("--channels", min=1, max=128, help="The most channels to use.")
]
MinBytes = Annotated[
    str | None, program_option("--min-bytes", help="Smallest size to serve (K, M, G: powers of 2).")
]
MaxBytes = Annotated[
    str | None, program_option("--max-bytes", help="Largest size to serve (K, M, G: powers of 2).")
]
Output = Annotated[
    Path | None, output_option("-o", "--output", help="The XML file to write; -: stdout.")
]
Dtype = Annotated[str, collective_option("--dtype", help="Data type, as nccl-tests names it.")]


def synthesize(
    topology: TopologyArgument,
    collective: CollectiveArgument,
    nodes: Nodes = None,
    fabric: Fabric = None,
    ranks: Ranks = None,
    relays: Relays = None,
    sketch: Annotated[
        str | None,
        search_option(
            "--sketch",
            help="A sketch file or the name of a shipped one.",
            autocompletion=shipped("sketches"),
        ),
    ] = None,
    size: SizeOfChunks = None,
    dtype: Dtype = "float",
    chunks: Annotated[
        str,
        collective_option("--chunks", help="Chunks for each rank (and pair): auto or a number."),
    ] = "auto",
    batch: Annotated[
        str,
        one_of(
            "auto, none",
            "--batch",
            "auto: chunks may travel together; none: one by one.",
            "Collective",
        ),
    ] = "auto",
    root: Root = None,
    ready_over: ReadyOver = None,
    needed_over: NeededOver = None,
    engine: Annotated[str, one_of(ENGINE_NAMES, "--engine", "One of {}.", "Search")] = "auto",
    steps: Annotated[
        int | None,
        search_option("--steps", help="Engine exact: is there an algorithm of so many steps ...?"),
    ] = None,
    rounds: Annotated[
        int | None,
        search_option("--rounds", help="... of so many rounds in all, and --chunks chunks (SCCL)?"),
    ] = None,
    time_limit: Annotated[
        float, search_option("--time-limit", min=0.1, max=86400, help="Seconds for the search.")
    ] = 60.0,
    seed: Annotated[
        int, search_option("--seed", min=0, max=2**31 - 1, help="For the solvers.")
    ] = 0,
    workers: Annotated[
        int, search_option("--workers", min=1, max=256, help="Threads of a solver.")
    ] = 2,
    deterministic: Annotated[
        bool, search_option("--deterministic", help="Count work instead of seconds.")
    ] = False,
    alpha_rule: AlphaRule = None,
    in_network: InNetwork = "auto",
    profile: DefaultProfile = None,
    runtime: PlanOrRuntime = "portable",
    version: PlanVersion = None,
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
        Path | None, output_option("--schedule", help="Write the schedule as JSON.")
    ] = None,
    report: Annotated[
        Path | None,
        output_option("--report", help="Write a page: timeline, chunks, links, tables."),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Find a schedule for a collective, prove it correct, and write it as MSCCL XML."""
    from taccl import apps as pipeline
    from taccl.apps import outputs
    from taccl.apps.inputs import MachineOptions, fans_wanted, load_collective
    from taccl.apps.plans import fan_time, plan_texts
    from taccl.apps.plans import told as told_of
    from taccl.files import check_outputs, write_all_atomic
    from taccl.replay.cost import is_measured

    plan = _for_plans(runtime, protocol, {"--mscclpp-version": version})
    target = _target(
        "executor" if plan else runtime, "Simple" if plan else protocol,
        (inplace, outofplace, both), instances, channels, min_bytes, max_bytes,
        element_bytes(dtype), bitwise=bitwise_consistent,
    )  # fmt: skip
    if is_stdout(output) and as_json:
        raise InputError("--json needs stdout, too", field="-o", fix="name a file")
    groups = _groups(
        collective,
        {"--ranks": ranks, "--relays": relays, "--sketch": sketch, "--size": size, "--root": root,
         "--steps": steps, "--rounds": rounds, "--schedule": schedule, "--report": report,
         "--chunks": None if chunks == "auto" else chunks, "--ready-over": ready_over,
         "--needed-over": needed_over, "--in-network": in_network if in_network == "on" else None,
         "--profile": None if profile == "alpha-beta" else profile},
    )  # fmt: skip
    if groups is not None and plan:
        raise InputError(
            "has no plans of groups yet", field="--runtime", fix=f"use {RUNTIME_NAMES} or none"
        )
    fans = fans_wanted(in_network, carried=(plan or runtime == "none") and groups is None)
    options = MachineOptions(nodes, fabric, sketch, alpha_rule, group_of(ranks, relays), fans)
    logical = pipeline.load_network(topology, options)
    measured = is_measured(profile, logical.topology, alpha_rule, steps, runtime == "none", groups)
    wanted = _wanted(0, protocol, version, (inplace, outofplace), target, measured=measured)
    request = pipeline.Request(
        logical=logical,
        collective="allreduce" if groups else load_collective(collective),
        root=root,
        ready_over=time_of("--ready-over", ready_over),
        needed_over=time_of("--needed-over", needed_over),
        size=0 if size is None else size_of(size),
        chunks=chunk_count(chunks),
        batch=batch == "auto",
        engine=engine,
        steps=_steps(steps, rounds, engine, chunk_count(chunks)),
        target=target,
        plans=partial(fan_time, wanted) if plan else None,
        measured=measured,
        time_limit=time_limit,
        seed=seed,
        workers=workers,
        deterministic=deterministic,
        spent=PROCESS.spent(),
    )
    file = None if is_stdout(output) else output
    if groups is not None:
        _at_once(groups, request, output, as_json=as_json, quiet=quiet, verbose=verbose)
        return
    outputs.check_target(request, output)
    check_outputs([("output", file), ("output", schedule), ("--report", report)])
    xml = None if plan else file
    plans: dict[str | Path, str] = {}
    told: list[str] = []
    with interruptible(file, schedule, report) as stop:
        with progress(quiet=quiet or as_json, verbose=verbose) as show:
            found = pipeline.synthesize(replace(request, stop=stop, report=show))
        source = found.schedule if len(found.schedule.fans) else found.program
        if plan and output is not None and source is not None:
            plans, made = plan_texts(
                source, found.schedule.topology, replace(wanted, size=found.size),
                file or Path("plan.json"), found.result.engine,
            )  # fmt: skip
            told = [f"\n  {line}" for line in told_of(made)]
        written = outputs.write_outputs(found, xml, schedule)
        if file is not None and plans:
            write_all_atomic(plans)
            written += map(Path, plans)
        written += outputs.write_report(found, report)
    if output is not None and (text := outputs.caution(found.schedule.collective)):
        _warn(text)
    if is_stdout(output):
        texts = iter(plans.values())
        typer.echo(next(texts) if plan else outputs.xml_text(found, _warn), nl=False)
    text = outputs.summary(found, written, xml)
    text += "".join(told)
    if as_json:
        text = json.dumps(outputs.report(found, written, xml), indent=2)
    typer.echo(text, err=is_stdout(output))


def _groups(collective: str, given: Mapping[str, object]) -> "Groups | None":
    """Return the groups of a file that has some; None for a collective.

    Raises InputError when the file is wrong, or an option is `given` that it says itself.
    """
    from taccl.collectives.groups import is_groups, read_groups

    if not is_groups(collective):
        return None
    for option, value in given.items():
        if value is not None:
            raise InputError("is not for a file of groups", field=option, fix=f"leave {option} out")
    return read_groups(collective)


def _at_once(
    groups: "Groups", request: "Request", output: Path | None, *,
    as_json: bool, quiet: bool, verbose: bool,
) -> None:  # fmt: skip
    """Solve groups, write their programs to a directory, and print what they take together."""
    from taccl.groups import check_directory, record, summary, synthesize_groups, write_groups

    if output is not None:
        if is_stdout(output):
            raise InputError("several files can't go there", field="-o", fix="name a directory")
        check_directory(output)
    target = request.target
    with interruptible(output) as stop, progress(quiet=quiet or as_json, verbose=verbose) as show:
        found = synthesize_groups(
            groups, request.logical.topology, replace(request, stop=stop, report=show)
        )
    written = [] if output is None else write_groups(
        found, output, "portable" if target is None else target.runtime
    )  # fmt: skip
    typer.echo(json.dumps(record(found, written), indent=2) if as_json else summary(found, written))


def _steps(
    steps: int | None, rounds: int | None, engine: str, chunks: int | None
) -> tuple[int, int] | None:
    """Return SCCL's question, or None when it is not asked."""
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
    schedule: Annotated[
        Path,
        typer.Argument(
            help="A schedule as JSON; for --runtime mscclpp and --to an MSCCL XML file, too.",
            show_default=False,
        ),
    ],
    output: Output = None,
    size: Size = "1MB",
    dtype: Dtype = "float",
    runtime: PlanOrRuntime = "portable",
    version: PlanVersion = None,
    topology: Annotated[
        str | None,
        machine_option("--topology", help="The machine of an XML file that becomes a plan."),
    ] = None,
    nodes: Nodes = None,
    protocol: Protocol = "auto",
    inplace: InPlace = False,
    outofplace: OutOfPlace = False,
    both: Both = False,
    instances: Instances = None,
    channels: Channels = None,
    min_bytes: MinBytes = None,
    max_bytes: MaxBytes = None,
    bitwise_consistent: BitwiseConsistent = False,
    to: Annotated[
        str | None,
        one_of(CONVERSION_NAMES, "--to", "Write OUTPUT.RANK.et for another tool: {}.", "Output"),
    ] = None,
) -> None:
    """Verify a schedule and write it as MSCCL XML, or as MSCCL++ plans (to stdout without -o)."""
    from taccl.apps import outputs
    from taccl.apps.inputs import MachineOptions, load_machine
    from taccl.apps.plans import convert as convert_to_plans
    from taccl.apps.plans import told as told_of

    given = {"--mscclpp-version": version, "--topology": topology, "--nodes": nodes}
    if _for_plans(runtime, protocol, given):
        file = None if is_stdout(output) else output
        modes = inplace, outofplace, both
        target = _target(
            "executor", "Simple", modes, instances, channels, min_bytes, max_bytes,
            element_bytes(dtype), bitwise=bitwise_consistent,
        )  # fmt: skip
        wanted = _wanted(size_of(size), protocol, version, modes[:2], target)
        machine = None if topology is None else load_machine(topology, MachineOptions(nodes))
        plans, made = convert_to_plans(schedule, machine, wanted, file)
        if file is None:
            typer.echo(next(iter(plans.values())), nl=False)
        else:
            for path, one in zip(plans, made, strict=True):
                typer.echo(f"wrote {path}: {one}")
            typer.echo("".join(f"{line}\n" for line in told_of(made)[len(made) :]), nl=False)
        return
    target = _target(
        runtime, protocol, (inplace, outofplace, both), instances, channels, min_bytes, max_bytes,
        element_bytes(dtype), bitwise=bitwise_consistent,
    )  # fmt: skip
    if target is None:
        raise InputError("none writes no XML", field="--runtime", fix=f"use {RUNTIME_NAMES}")
    if to is not None:
        if output is None or is_stdout(output):
            raise InputError(
                "is needed: there is a file for each rank",
                field="-o",
                fix="name what they begin with",
            )
        files = outputs.convert_to(to, schedule, target, size_of(size), output)
        typer.echo(f"wrote {files[0]} to {files[-1].name}")
        return
    file = None if is_stdout(output) else output
    texts = outputs.convert(schedule, target, size_of(size), file, _warn)
    if file is None:
        typer.echo(next(iter(texts.values())), nl=False)
    else:
        loading = outputs.loading(texts, target.runtime)
        typer.echo("\n".join([*(f"wrote {path}" for path in texts), *loading]))


def _for_plans(runtime: str, protocol: str, given: Mapping[str, object]) -> bool:
    """Tell whether plans are wanted in place of XML; options that are `given` are for plans only.

    Raises InputError when they are not wanted and one is given, or for a protocol that plans have
    not.
    """
    if runtime != PLAN_RUNTIME:
        for option, value in given.items():
            if value is not None:
                raise InputError(
                    f"is for --runtime {PLAN_RUNTIME}", field=option, fix=f"leave {option} out"
                )
        return False
    if protocol == "LL128":
        raise InputError(
            "MSCCL++ has no LL128", field="--protocol", fix="use LL, Simple or auto"
        )  # fmt: skip
    return True


def _wanted(
    size: int, protocol: str, version: str | None, modes: tuple[bool, bool],
    target: "Target | None" = None, *, measured: bool = False,
) -> "WantedPlan":  # fmt: skip
    """Return what plans are wanted, for a size in bytes, in place or out of place or both.

    They are for the range of sizes of the `target`, if that has one.
    """
    from taccl.apps.plans import Wanted
    from taccl.mscclpp.plan import NEWEST

    inplace, outofplace = modes
    chosen = (True,) if inplace else (False,) if outofplace else (True, False)
    low, high = (None, None) if target is None else (target.min_bytes, target.max_bytes)
    wanted = Wanted(size, protocol, version or NEWEST, chosen, min_bytes=low, max_bytes=high)
    return replace(wanted, model=replace(wanted.model, measured=measured))


def _warn(text: str) -> None:
    say(f"warning: {text}")


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
    from taccl.apps import Target

    names = ("inplace", "outofplace", "both")
    wanted = [name for name, given in zip(names, modes, strict=True) if given]
    if len(wanted) > 1:
        raise InputError(
            f"--{wanted[0]} and --{wanted[1]} exclude each other",
            field=f"--{wanted[0]}",
            fix="give one of --inplace, --outofplace, --both",
        )
    if runtime == "none":
        return None
    return Target(
        runtime=runtime,
        protocol=protocol,
        modes=wanted[0] if wanted else "auto",
        instances=instances,
        channels=channels,
        min_bytes=None if min_bytes is None else read("--min-bytes", parse_size, min_bytes),
        max_bytes=None if max_bytes is None else read("--max-bytes", parse_size, max_bytes),
        element_bytes=element,
        bitwise=bitwise,
    )

"""``taccl evaluate``, ``compare``, ``bound``: what programs take, and what nothing can beat."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from taccl.cli.help import machine_option, output_option, progress
from taccl.cli.options import (
    COMPARISON_FORMAT_NAMES,
    RESULT_FORMAT_NAMES,
    RUNTIME_NAMES,
    AlphaRule,
    Begin,
    CollectiveArgument,
    Constants,
    CostSketch,
    DefaultProfile,
    End,
    Fabric,
    Factor,
    InNetwork,
    Json,
    NeededOver,
    Nodes,
    Quiet,
    Ranks,
    ReadyOver,
    Relays,
    Root,
    Size,
    SizeOfChunks,
    TopologyArgument,
    Verbose,
    group_of,
    one_of,
    read,
    size_of,
    sizes_of,
    time_of,
)
from taccl.errors import InputError

if TYPE_CHECKING:
    from taccl.topology.graph import Topology


def evaluate(
    files: Annotated[
        list[str],
        typer.Argument(help="MSCCL XML files, or MSCCL++ plans (JSON).", show_default=False),
    ],
    topology: Annotated[
        str, machine_option("--topology", help="Where they run: a file, name or short form.")
    ],
    nodes: Nodes = None,
    fabric: Fabric = None,
    ranks: Ranks = None,
    relays: Relays = None,
    sketch: CostSketch = None,
    size: Size = "1MB",
    begin: Begin = None,
    end: End = None,
    factor: Factor = 2,
    alpha_rule: AlphaRule = None,
    runtime: Constants = "executor",
    route: Annotated[
        bool, typer.Option("--route", help="Send over other ranks where a pair has no link.")
    ] = False,
    protocol_costs: Annotated[
        bool, typer.Option("--protocol-costs", help="Charge the bytes that LL and LL128 add.")
    ] = False,
    profile: DefaultProfile = None,
    scenario: Annotated[
        str | None,
        machine_option("--scenario", help="A file that says what disturbs the machine meanwhile."),
    ] = None,
    form: Annotated[str, one_of(RESULT_FORMAT_NAMES, "--format", "One of {}.", "Output")] = "table",
    as_json: Json = False,
    trace: Annotated[
        Path | None,
        output_option("--trace", help="Write a Chrome (Perfetto) trace of the last size."),
    ] = None,
    html: Annotated[
        Path | None, output_option("--html", help="Write a page: timeline, chunks, links, tables.")
    ] = None,
    explain: Annotated[
        bool, output_option("--explain", help="Say where the time of the last size goes.")
    ] = False,
) -> None:
    """Replay programs on a topology, size by size, beside the bound."""
    from taccl.apps import evaluation, outputs, plans
    from taccl.apps.evaluation import is_schedule, timed_schedules
    from taccl.apps.inputs import MachineOptions, load_machine, read_input, whole_size
    from taccl.mscclpp.plan import Plan
    from taccl.replay.cost import is_measured, model_of
    from taccl.report.tables import WRITERS

    form = "json" if as_json else form
    wanted = outputs.Wanted(trace, html, explain, form)
    groups = Path(files[0]) if len(files) == 1 and files[0] and Path(files[0]).is_dir() else None
    scheduled: list[str] = []
    if groups is None:
        wanted.check(files)
        scheduled = [file for file in files if is_schedule(file)]
        files = [file for file in files if file not in scheduled]
    if scheduled:
        _refused({
            "--scenario": scenario, "--explain": explain or None, "--route": route or None,
        }, "schedules")  # fmt: skip
    if scheduled and files:
        _refused({"--trace": trace, "--html": html}, "schedules beside programs")
    options = MachineOptions(
        nodes, fabric, sketch, alpha_rule, group_of(ranks, relays), in_network=True
    )
    machine = load_machine(topology, options)
    network = machine.point_to_point()
    if groups is not None:
        unfit: dict[str, object] = {
            "--ranks": ranks, "-b": begin, "-e": end, "--route": route or None,
            "--protocol-costs": protocol_costs or None, "--scenario": scenario, "--trace": trace,
            "--html": html, "--explain": explain or None,
            "--profile": None if profile == "alpha-beta" else profile,
        }  # fmt: skip
        _evaluate_groups(groups, network, runtime, form, unfit)
        return
    case = evaluation.load_scenario(scenario, network, detailed=bool(trace or html or explain))
    only_alpha_beta = (alpha_rule, case, explain, protocol_costs)
    measured = is_measured(profile, network, *only_alpha_beta)
    model = replace(model_of(runtime), measured=measured)
    if model.measured and (case is not None or explain or protocol_costs):
        option = (
            "--explain" if explain else "--scenario" if case is not None else "--protocol-costs"
        )
        raise InputError(
            "is not known with measured costs", field=option,
            fix=f"leave out {option}, or --profile measured",
        )  # fmt: skip
    read = {file: read_input(file) for file in files}
    planned = {file: each for file, each in read.items() if isinstance(each, Plan)}
    if planned:
        _refused({"--scenario": case, "--route": route or None}, "MSCCL++ plans")
    # Only plans and schedules ask switches to copy and add.
    setting = evaluation.Setting(machine if planned else network, model, route, protocol_costs)
    sizes = sizes_of(begin, end, factor, size)
    if begin is None and end is None:
        # One size is cut to whole chunks, as a run of that many bytes would be padded.
        sizes = [whole_size(files, sizes[0])]
    rows = evaluation.evaluate([file for file in files if file not in planned], sizes, setting)
    rows += plans.plan_rows(planned, machine, sizes, model)
    timed = list(timed_schedules(scheduled, machine, sizes))
    rows += tuple(row for row, _ in timed)
    if case is not None:
        rows = evaluation.under(case, setting, rows)
        setting = evaluation.left_of(case, setting)
    if scheduled:
        outputs.write_schedules(wanted, timed)
        wanted = replace(wanted, trace=None, html=None)
    text = outputs.evaluation_text(wanted, WRITERS[form](rows), files, rows, setting)
    typer.echo(text.rstrip("\n"))


def _refused(options: Mapping[str, object], what: str) -> None:
    """Refuse options that are given, and not known for what is evaluated."""
    for option, given in options.items():
        if given is not None:
            raise InputError(
                f"is not known for {what} yet", field=option,
                fix=f"leave {option} out, or give XML files",
            )  # fmt: skip


def _evaluate_groups(
    place: Path, network: "Topology", runtime: str, form: str, given: Mapping[str, object]
) -> None:
    """Print what the programs of a directory of groups take, alone and side by side.

    Raises InputError when an option is `given` that is not for them.
    """
    from taccl.groups import play_groups, played_record, played_text
    from taccl.replay.cost import model_of

    for option, value in given.items():
        if value is not None:
            raise InputError("is not for a directory of groups", field=option, fix="leave it out")
    if form not in ("table", "json"):
        raise InputError("has table and json for groups", field="--format", fix="use one of these")
    groups, played = play_groups(place, network, model_of(runtime))
    if form == "json":
        typer.echo(json.dumps(played_record(groups, network, played), indent=2))
    else:
        typer.echo(played_text(groups, network, played))


def bound(
    topology: TopologyArgument,
    collective: CollectiveArgument,
    nodes: Nodes = None,
    fabric: Fabric = None,
    ranks: Ranks = None,
    relays: Relays = None,
    sketch: Annotated[
        str | None,
        typer.Option(
            "--sketch", help="Bound what uses the sketch's links, too.", show_default=False
        ),
    ] = None,
    size: SizeOfChunks = None,
    begin: Begin = None,
    end: End = None,
    factor: Factor = 2,
    chunks: Annotated[
        int | None,
        typer.Option(
            "--chunks",
            min=1,
            max=1024,
            help="Chunks for the fixed bound (1; made one after another: 8).",
            show_default=False,
        ),
    ] = None,
    growth: Annotated[
        bool,
        typer.Option(
            "--growth",
            help="Look for a better bound of gathers and reductions across servers: up to minutes.",
        ),
    ] = False,
    root: Root = None,
    ready_over: ReadyOver = None,
    needed_over: NeededOver = None,
    alpha_rule: AlphaRule = None,
    in_network: InNetwork = "auto",
    as_json: Json = False,
) -> None:
    """Print what no algorithm can beat, by kind, and which bound is the binding one."""
    from taccl.apps import evaluation
    from taccl.apps.inputs import (
        MachineOptions,
        asked_collective,
        default_size,
        fans_wanted,
        load_collective,
        load_network,
    )
    from taccl.collectives import PIECES
    from taccl.collectives.groups import is_groups, read_groups
    from taccl.groups import bound_groups, bounded_record
    from taccl.groups import bounded_text as groups_bounded
    from taccl.report.tables import bounded_json, bounded_table, bounded_text

    fans = fans_wanted(in_network, carried=True)
    options = MachineOptions(nodes, fabric, sketch, alpha_rule, group_of(ranks, relays), fans)
    logical = load_network(topology, options)
    if is_groups(collective):
        for option, value in (("--size", size), ("-b", begin), ("-e", end), ("--root", root),
                              ("--ranks", ranks), ("--sketch", sketch)):  # fmt: skip
            if value is not None:
                raise InputError("is not for a file of groups", field=option, fix="leave it out")
        groups = read_groups(collective)
        machine = logical.topology.point_to_point()
        shown_of = (groups, machine, *bound_groups(groups, machine))
        text = json.dumps(bounded_record(*shown_of), indent=2) if as_json else ""
        typer.echo(text or groups_bounded(*shown_of))
        return
    times = time_of("--ready-over", ready_over), time_of("--needed-over", needed_over)
    made = asked_collective(load_collective(collective), logical.topology, root)
    made = made.cut(chunks or (PIECES if any(times) else 1)).paced(*times)
    if begin is None and end is None:
        count = default_size(logical.topology, made) if size is None else size_of(size)
        found = evaluation.bounds_for(logical, made, count, grown=growth)
        typer.echo(json.dumps(bounded_json(found), indent=2) if as_json else bounded_text(found))
        return
    if size is not None:
        raise InputError(
            "can't be given beside -b and -e", field="--size", fix="leave one of them out"
        )
    sizes = sizes_of(begin, end, factor, "")
    rows = [evaluation.bounds_for(logical, made, count, grown=growth) for count in sizes]
    shown = {"rows": [bounded_json(row) for row in rows]}
    typer.echo(json.dumps(shown, indent=2) if as_json else bounded_table(rows))


def compare(
    topology: TopologyArgument,
    collective: CollectiveArgument,
    files: Annotated[
        list[str] | None,
        typer.Argument(
            help="MSCCL XML files, or MSCCL++ plans, that do the same.", show_default=False
        ),
    ] = None,
    nodes: Nodes = None,
    fabric: Fabric = None,
    ranks: Ranks = None,
    relays: Relays = None,
    sketch: CostSketch = None,
    begin: Begin = "1K",
    end: End = "256M",
    factor: Factor = 4,
    alpha_rule: AlphaRule = None,
    in_network: InNetwork = "auto",
    profile: DefaultProfile = None,
    root: Root = None,
    runtime: Annotated[
        str, one_of(RUNTIME_NAMES, "--runtime", "Whose constants and limits: {}.")
    ] = "executor",
    nccl: Annotated[
        str | None,
        typer.Option(
            "--nccl",
            help="Inputs of NCCL's model instead of estimates: gpu=hopper,cpu=intel,wire=nvlink,"
            "channels=12,intra=30GB/s,inter=24GB/s,nvls=yes,collnet=yes, or some of them.",
        ),
    ] = None,
    form: Annotated[
        str, one_of(COMPARISON_FORMAT_NAMES, "--format", "One of {}.", "Output")
    ] = "table",
    as_json: Json = False,
    plot: Annotated[
        Path | None, output_option("--plot", help="Write an SVG: time and algbw against size.")
    ] = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Replay classical algorithms and files, size by size, beside NCCL's model and the bound."""
    from taccl.apps import comparison
    from taccl.apps.inputs import (
        MachineOptions,
        asked_collective,
        fans_wanted,
        load_collective,
        load_machine,
    )
    from taccl.files import check_outputs, write_atomic
    from taccl.replay.cost import is_measured
    from taccl.replay.nccl import Settings, parse_settings
    from taccl.replay.nccl import in_network as switches_of
    from taccl.report.comparison import COMPARED
    from taccl.report.comparison import plot as plotted

    form = "json" if as_json else form
    given = Settings() if nccl is None else read("--nccl", parse_settings, nccl)
    check_outputs([("--plot", plot)], [topology, collective, *(files or ())])
    options = MachineOptions(
        nodes, fabric, sketch, alpha_rule, group_of(ranks, relays), in_network=True
    )
    machine = load_machine(topology, options)
    # NCCL has its own ways to use such switches, whatever is replayed beside it.
    nvls, collnet = switches_of(machine)
    given = replace(
        given,
        nvls=nvls if given.nvls is None else given.nvls,
        collnet=collnet if given.collnet is None else given.collnet,
    )
    fans = fans_wanted(in_network, carried=False)
    network = machine if fans else machine.point_to_point()
    with progress(quiet=quiet or form == "json", verbose=verbose) as report:
        question = comparison.Question(
            network, asked_collective(load_collective(collective), network, root),
            sizes_of(begin, end, factor, ""), files or (), runtime, given, report,
            is_measured(profile, network, alpha_rule),
        )  # fmt: skip
        found = comparison.compare(question)
    if plot is not None:
        write_atomic(plot, plotted(found), field="--plot")
    typer.echo(COMPARED[form](found).rstrip("\n"))

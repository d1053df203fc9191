"""``taccl compare``: which algorithm is fastest at which size."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from taccl.cli.help import output_option
from taccl.cli.names import COMPARISON_FORMAT_NAMES, RUNTIME_NAMES
from taccl.cli.options import (
    AlphaRule,
    Begin,
    CollectiveArgument,
    CostSketch,
    DefaultProfile,
    End,
    Fabric,
    Factor,
    InNetwork,
    Json,
    Nodes,
    Quiet,
    Ranks,
    Relays,
    Root,
    TopologyArgument,
    Verbose,
    group_of,
    one_of,
    read,
    sizes_of,
)
from taccl.cli.output import progress


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

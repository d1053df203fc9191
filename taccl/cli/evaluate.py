"""``taccl evaluate`` and ``taccl bound``: what a program takes, and what nothing can beat."""

import json
from pathlib import Path
from typing import Annotated

import typer

from taccl.cli.help import MACHINE, OUTPUT
from taccl.cli.names import ALPHA_RULE_NAMES, RESULT_FORMAT_NAMES, RUNTIME_NAMES
from taccl.cli.options import (
    AlphaRule,
    Begin,
    CollectiveArgument,
    CostSketch,
    End,
    Fabric,
    Factor,
    Json,
    Nodes,
    Root,
    Size,
    SizeOfChunks,
    TopologyArgument,
    chosen,
    chosen_if_given,
    size_of,
    sizes_of,
)
from taccl.errors import InputError


def evaluate(
    files: Annotated[list[str], typer.Argument(help="MSCCL XML files.", show_default=False)],
    topology: Annotated[
        str,
        typer.Option(
            "--topology",
            help="Where they run: a file, name or short form.",
            rich_help_panel=MACHINE,
        ),
    ],
    nodes: Nodes = None,
    fabric: Fabric = None,
    sketch: CostSketch = None,
    size: Size = "1MB",
    begin: Begin = None,
    end: End = None,
    factor: Factor = 2,
    alpha_rule: AlphaRule = None,
    runtime: Annotated[
        str, typer.Option("--runtime", help=f"Whose constants: {RUNTIME_NAMES}.")
    ] = "executor",
    route: Annotated[
        bool, typer.Option("--route", help="Send over other ranks where a pair has no link.")
    ] = False,
    protocol_costs: Annotated[
        bool, typer.Option("--protocol-costs", help="Charge the bytes that LL and LL128 add.")
    ] = False,
    scenario: Annotated[
        str | None,
        typer.Option(
            "--scenario",
            help="A file that says what disturbs the machine meanwhile.",
            rich_help_panel=MACHINE,
        ),
    ] = None,
    form: Annotated[
        str, typer.Option("--format", help=f"One of {RESULT_FORMAT_NAMES}.", rich_help_panel=OUTPUT)
    ] = "table",
    as_json: Json = False,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            help="Write a Chrome (Perfetto) trace of the last size.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html", help="Write a page: timeline, chunks, links, tables.", rich_help_panel=OUTPUT
        ),
    ] = None,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain", help="Say where the time of the last size goes.", rich_help_panel=OUTPUT
        ),
    ] = False,
) -> None:
    """Replay programs on a topology, size by size, beside the bound."""
    from taccl.apps import evaluation, reports, scenarios
    from taccl.apps.request import load_machine
    from taccl.replay.cost import model_of
    from taccl.report.tables import WRITERS

    form = "json" if as_json else chosen("--format", form, RESULT_FORMAT_NAMES)
    wanted = reports.Wanted(trace, html, explain, form)
    wanted.check(files)
    network = load_machine(
        topology, nodes=nodes, fabric=fabric, sketch=sketch,
        alpha_rule=chosen_if_given("--alpha-rule", alpha_rule, ALPHA_RULE_NAMES),
    )  # fmt: skip
    case = scenarios.load_scenario(scenario, network, detailed=bool(trace or html or explain))
    runtime = chosen("--runtime", runtime, RUNTIME_NAMES)
    sizes = sizes_of(begin, end, factor, size)
    if begin is None and end is None:
        # One size is cut to whole chunks, as a run of that many bytes would be padded.
        sizes = [evaluation.whole_size(files, sizes[0])]
    rows = evaluation.evaluate(
        files, network, sizes, runtime, route=route, protocol_costs=protocol_costs
    )
    setting = reports.Setting(network, model_of(runtime), route, protocol_costs)
    if case is not None:
        rows = scenarios.under(case, setting, rows)
        setting = scenarios.left_of(case, setting)
    text = reports.evaluation_text(wanted, WRITERS[form](rows), files, rows, setting)
    typer.echo(text.rstrip("\n"))


def bound(
    topology: TopologyArgument,
    collective: CollectiveArgument,
    nodes: Nodes = None,
    fabric: Fabric = None,
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
        int, typer.Option("--chunks", min=1, max=1024, help="Chunks for the fixed bound.")
    ] = 1,
    growth: Annotated[
        bool,
        typer.Option(
            "--growth",
            help="Look for a better bound of gathers and reductions across servers: up to minutes.",
        ),
    ] = False,
    root: Root = None,
    alpha_rule: AlphaRule = None,
    as_json: Json = False,
) -> None:
    """Print what no algorithm can beat, by kind, and which bound is the binding one."""
    from taccl.apps import evaluation
    from taccl.apps.request import (
        asked_collective,
        default_size,
        load_collective,
        load_network,
    )
    from taccl.report.tables import bounded_json, bounded_table, bounded_text

    logical = load_network(
        topology, nodes=nodes, fabric=fabric, sketch=sketch,
        alpha_rule=chosen_if_given("--alpha-rule", alpha_rule, ALPHA_RULE_NAMES),
    )  # fmt: skip
    made = asked_collective(load_collective(collective), logical.topology, root).cut(chunks)
    if begin is None and end is None:
        count = default_size(logical.topology, made) if size is None else size_of(size)
        found = evaluation.bounds_for(logical, made, count, grown=growth)
        typer.echo(json.dumps(bounded_json(found), indent=2) if as_json else bounded_text(found))
        return
    if size is not None:
        raise InputError(
            "can't be given beside -b and -e", field="--size", fix="leave one of them out"
        )
    rows = [
        evaluation.bounds_for(logical, made, count, grown=growth)
        for count in sizes_of(begin, end, factor, "")
    ]
    shown = {"rows": [bounded_json(row) for row in rows]}
    typer.echo(json.dumps(shown, indent=2) if as_json else bounded_table(rows))

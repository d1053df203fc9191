"""``taccl place``: which host should take which rank."""

import json
from pathlib import Path
from typing import Annotated

import typer

from taccl.cli.help import COLLECTIVE, MACHINE, OUTPUT, PROGRAM, SEARCH
from taccl.cli.names import ALPHA_RULE_NAMES, RUNTIME_NAMES
from taccl.cli.options import (
    AlphaRule,
    Fabric,
    Json,
    Nodes,
    Quiet,
    Size,
    Verbose,
    chosen,
    chosen_if_given,
    interruptible,
    size_of,
)
from taccl.cli.output import progress
from taccl.errors import InputError


def place(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            help="Measured latencies and bandwidths: a square matrix, a list of pairs, or output of"
            " osu_latency and osu_bw.",
            show_default=False,
        ),
    ] = None,
    topology: Annotated[
        str | None,
        typer.Option(
            "--topology",
            help="A machine instead: a file, name or short form.",
            rich_help_panel=MACHINE,
        ),
    ] = None,
    nodes: Nodes = None,
    fabric: Fabric = None,
    servers: Annotated[
        str | None,
        typer.Option(
            "--servers",
            help="Which ranks stay together: a hostfile, or how many a server has.",
            rich_help_panel=MACHINE,
        ),
    ] = None,
    whole_servers: Annotated[
        bool,
        typer.Option(
            "--whole-servers",
            help="Leave the order within each server as it is.",
            rich_help_panel=SEARCH,
        ),
    ] = False,
    unit: Annotated[
        str | None,
        typer.Option(
            "--unit",
            help="Of a matrix that does not say it: us, GB/s and the like.",
            rich_help_panel=MACHINE,
        ),
    ] = None,
    algorithm: Annotated[
        str,
        typer.Option(
            "--algorithm",
            help="ring, tree, halving-doubling, another engine, or an XML file.",
            rich_help_panel=COLLECTIVE,
        ),
    ] = "ring",
    collective: Annotated[
        str,
        typer.Option("--collective", help="What the algorithm does.", rich_help_panel=COLLECTIVE),
    ] = "allreduce",
    size: Size = "1MB",
    alpha_rule: AlphaRule = None,
    runtime: Annotated[
        str,
        typer.Option(
            "--runtime", help=f"Whose constants: {RUNTIME_NAMES}.", rich_help_panel=PROGRAM
        ),
    ] = "executor",
    time_limit: Annotated[
        float,
        typer.Option(
            "--time-limit", min=0.1, max=86400, help="Seconds in all.", rich_help_panel=SEARCH
        ),
    ] = 25,
    replays: Annotated[
        int | None,
        typer.Option(
            "--replays",
            min=1,
            help="End after so many replays, not by the clock.",
            rich_help_panel=SEARCH,
        ),
    ] = None,
    samples: Annotated[
        int,
        typer.Option(
            "--random",
            min=0,
            max=100_000,
            help="Random orders to compare with.",
            rich_help_panel=SEARCH,
        ),
    ] = 100,
    seed: Annotated[
        int, typer.Option("--seed", help="Of all that is drawn.", rich_help_panel=SEARCH)
    ] = 0,
    rankfile: Annotated[
        Path | None,
        typer.Option("--rankfile", help="Write an Open MPI rankfile.", rich_help_panel=OUTPUT),
    ] = None,
    hostfile: Annotated[
        Path | None,
        typer.Option(
            "--hostfile", help="Write the hosts in the order of ranks.", rich_help_panel=OUTPUT
        ),
    ] = None,
    placed_topology: Annotated[
        Path | None,
        typer.Option(
            "--placed-topology",
            help="Write the machine with its new numbers, as YAML.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    placed_xml: Annotated[
        Path | None,
        typer.Option(
            "--placed-xml",
            help="Write the program with new ranks, as MSCCL XML.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Search for the order of ranks that makes an algorithm fastest on a network."""
    from taccl.apps.placing import Question, files_of, placed_json, placed_text
    from taccl.apps.placing import place as solve
    from taccl.files import check_apart, check_output, write_all_atomic
    from taccl.placement.search import Limits

    options = {
        "rankfile": ("--rankfile", rankfile), "hostfile": ("--hostfile", hostfile),
        "topology": ("--placed-topology", placed_topology), "xml": ("--placed-xml", placed_xml),
    }  # fmt: skip
    wanted: dict[str, str] = {}
    inputs = [*(files or ()), *(name for name in (topology, servers, algorithm) if name)]
    for kind, (option, path) in options.items():
        if path is not None:
            check_output(path, field=option)
            check_apart(path, [*inputs, *wanted.values()], field=option)
            wanted[kind] = str(path)
    runtime = chosen("--runtime", runtime, RUNTIME_NAMES)
    if placed_xml is not None and runtime == "portable":
        raise InputError(
            "portable is no single file", field="--runtime", fix="use msccl, executor or rccl"
        )
    question = Question(
        tuple(files or ()), unit, topology, nodes, fabric,
        chosen_if_given("--alpha-rule", alpha_rule, ALPHA_RULE_NAMES),
        servers, algorithm, collective, size_of(size), runtime, not whole_servers,
        Limits(None if replays is not None else time_limit, replays, seed, samples),
    )  # fmt: skip
    with interruptible() as stopped:
        with progress(quiet=quiet or as_json, verbose=verbose) as report:
            placed = solve(question, stopped.is_set, report)
        texts = files_of(placed, wanted, runtime)
    write_all_atomic(dict(texts.items()), field="output")
    shown = placed_json(placed, wanted)
    typer.echo(json.dumps(shown, indent=2) if as_json else placed_text(placed, wanted))

"""``taccl place``: which host should take which rank."""

import json
from pathlib import Path
from typing import Annotated

import typer

from taccl.cli.help import collective_option, machine_option, output_option, progress, search_option
from taccl.cli.options import (
    RUNTIME_NAMES,
    AlphaRule,
    Fabric,
    Json,
    Nodes,
    Quiet,
    Size,
    Verbose,
    interruptible,
    one_of,
    size_of,
)
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
        machine_option("--topology", help="A machine instead: a file, name or short form."),
    ] = None,
    nodes: Nodes = None,
    fabric: Fabric = None,
    servers: Annotated[
        str | None,
        machine_option(
            "--servers", help="Which ranks stay together: a hostfile, or how many a server has."
        ),
    ] = None,
    whole_servers: Annotated[
        bool, search_option("--whole-servers", help="Leave the order within each server as it is.")
    ] = False,
    unit: Annotated[
        str | None,
        machine_option("--unit", help="Of a matrix that does not say it: us, GB/s and the like."),
    ] = None,
    algorithm: Annotated[
        str,
        collective_option(
            "--algorithm", help="ring, tree, halving-doubling, another engine, or an XML file."
        ),
    ] = "ring",
    collective: Annotated[
        str, collective_option("--collective", help="What the algorithm does.")
    ] = "allreduce",
    size: Size = "1MB",
    alpha_rule: AlphaRule = None,
    runtime: Annotated[
        str, one_of(RUNTIME_NAMES, "--runtime", "Whose constants: {}.", "Program")
    ] = "executor",
    time_limit: Annotated[
        float, search_option("--time-limit", min=0.1, max=86400, help="Seconds in all.")
    ] = 25,
    replays: Annotated[
        int | None,
        search_option("--replays", min=1, help="End after so many replays, not by the clock."),
    ] = None,
    samples: Annotated[
        int, search_option("--random", min=0, max=100_000, help="Random orders to compare with.")
    ] = 100,
    seed: Annotated[int, search_option("--seed", help="Of all that is drawn.")] = 0,
    rankfile: Annotated[
        Path | None, output_option("--rankfile", help="Write an Open MPI rankfile.")
    ] = None,
    hostfile: Annotated[
        Path | None, output_option("--hostfile", help="Write the hosts in the order of ranks.")
    ] = None,
    placed_topology: Annotated[
        Path | None,
        output_option("--placed-topology", help="Write the machine with its new numbers, as YAML."),
    ] = None,
    placed_xml: Annotated[
        Path | None,
        output_option("--placed-xml", help="Write the program with new ranks, as MSCCL XML."),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Search for the order of ranks that makes an algorithm fastest on a network."""
    from taccl.apps.placing import Question, files_of, placed_json, placed_text
    from taccl.apps.placing import place as solve
    from taccl.files import check_outputs, write_all_atomic
    from taccl.placement import Limits

    outputs = {
        "rankfile": ("--rankfile", rankfile), "hostfile": ("--hostfile", hostfile),
        "topology": ("--placed-topology", placed_topology), "xml": ("--placed-xml", placed_xml),
    }  # fmt: skip
    inputs = [*(files or ()), *(name for name in (topology, servers, algorithm) if name)]
    check_outputs(outputs.values(), inputs)
    wanted = {kind: str(path) for kind, (_, path) in outputs.items() if path is not None}
    if placed_xml is not None and runtime == "portable":
        raise InputError(
            "portable is no single file", field="--runtime", fix="use msccl, executor or rccl"
        )
    question = Question(
        tuple(files or ()), unit, topology, nodes, fabric, alpha_rule, servers, algorithm,
        collective, size_of(size), runtime, not whole_servers,
        Limits(None if replays is not None else time_limit, replays, seed, samples),
    )  # fmt: skip
    with interruptible() as stopped:
        with progress(quiet=quiet or as_json, verbose=verbose) as report:
            placed = solve(question, stopped.is_set, report)
        texts = files_of(placed, wanted, runtime)
    write_all_atomic(dict(texts.items()), field="output")
    shown = placed_json(placed, wanted)
    typer.echo(json.dumps(shown, indent=2) if as_json else placed_text(placed, wanted))

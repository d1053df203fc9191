"""``taccl topology``: look at the machines."""

import json
from typing import Annotated

import typer

from taccl.cli.options import (
    CostSketch,
    Fabric,
    Json,
    Nodes,
    Ranks,
    Relays,
    TopologyArgument,
    group_of,
)
from taccl.cli.output import Dot, Svg, TextOutput, deliver, pictures
from taccl.errors import InputError

app = typer.Typer(
    help="Show, validate, compare, expand, import, degrade and list topologies.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command()
def show(
    topology: TopologyArgument,
    nodes: Nodes = None,
    fabric: Fabric = None,
    ranks: Ranks = None,
    relays: Relays = None,
    sketch: CostSketch = None,
    svg: Svg = None,
    dot: Dot = None,
    as_json: Json = False,
) -> None:
    """Print what a topology consists of, and a matrix of the paths between its ranks."""
    from taccl.apps.networks import MachineOptions, load_machine
    from taccl.files import check_outputs
    from taccl.report.matrix import matrix_text, topology_fields
    from taccl.topology.file import describe, topology_digest

    check_outputs([("--svg", svg), ("--dot", dot)], [topology])
    options = MachineOptions(nodes, fabric, sketch, group=group_of(ranks, relays), in_network=True)
    network = load_machine(topology, options)
    drawn = pictures(network, svg, dot)
    if as_json:
        fields = topology_fields(network, topology_digest(network))
        typer.echo(json.dumps({**fields, "output": [str(path) for path in drawn]}, indent=2))
        return
    rows = describe(network)
    width = max(len(what) for what, _ in rows)
    for what, value in rows:
        typer.echo(f"{what:<{width}}  {value}")
    typer.echo("")
    typer.echo(matrix_text(network))
    for written in drawn:
        typer.echo(f"wrote {written}")


@app.command()
def validate(
    topology: TopologyArgument,
    nodes: Nodes = None,
    fabric: Fabric = None,
    sketch: CostSketch = None,
    as_json: Json = False,
) -> None:
    """Say what is wrong, or likely to be wrong, in a topology, where, and what to do about it."""
    from taccl.report.tables import findings_fields, findings_text
    from taccl.sketch import load_sketch
    from taccl.topology.lint import check_topology

    sketched = None if sketch is None else load_sketch(sketch).sketched
    checked = check_topology(topology, nodes=nodes, fabric=fabric, sketched=sketched)
    if checked.error is not None and not as_json:
        raise checked.error
    typer.echo(
        json.dumps(findings_fields(checked), indent=2) if as_json else findings_text(checked)
    )
    if not checked.usable:
        raise typer.Exit(InputError.exit_status)


@app.command()
def diff(
    first: TopologyArgument, second: TopologyArgument, nodes: Nodes = None, as_json: Json = False
) -> None:
    """Compare two topologies; exit status 0: the same, 1: they differ."""
    from taccl.apps.networks import load_both
    from taccl.report.differences import differences, differences_fields, differences_text

    found = differences(*load_both(first, second, nodes))
    fields = differences_fields(found)
    typer.echo(json.dumps(fields, indent=2) if as_json else differences_text(found))
    if not found.same:
        raise typer.Exit(1)


@app.command()
def expand(
    topology: TopologyArgument,
    nodes: Nodes = None,
    fabric: Fabric = None,
    sketch: CostSketch = None,
    output: TextOutput = None,
) -> None:
    """Print a topology as the plain graph that engines see."""
    from taccl.apps.networks import MachineOptions, load_machine
    from taccl.topology.file import expand_text

    text = expand_text(
        load_machine(topology, MachineOptions(nodes, fabric, sketch, in_network=True))
    )
    deliver(text, output, [topology])


@app.command()
def degrade(
    topology: TopologyArgument,
    edge: Annotated[
        list[str] | None,
        typer.Option(
            "--edge", help="Edges by name, each one way; * is any text; NAME=0.5 sets its factor."
        ),
    ] = None,
    link: Annotated[
        list[str] | None,
        typer.Option(
            "--link", help="All edges between two ranks, both ways: 0-1 or 0-1=0.5; one way: 0->1."
        ),
    ] = None,
    factor: Annotated[
        str | None,
        typer.Option("--factor", help="What is left of the bandwidth of the others; 0: no edge."),
    ] = None,
    nodes: Nodes = None,
    fabric: Fabric = None,
    sketch: CostSketch = None,
    output: TextOutput = None,
) -> None:
    """Print a topology some of whose edges are slower or gone, as a plain graph."""
    from taccl.apps.networks import MachineOptions, load_machine
    from taccl.topology.edit import degrade, read_losses
    from taccl.topology.file import document_text, topology_document

    losses = read_losses(edge or (), link or (), factor)
    network = load_machine(topology, MachineOptions(nodes, fabric, sketch, in_network=True))
    made, notes = degrade(network, losses)
    text = document_text(topology_document(made), [f"{network.name}: {note}" for note in notes])
    deliver(text, output, [topology], notes)


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List the shipped topologies."""
    from taccl.topology.file import load_topology, shipped_topologies

    found = [load_topology(name) for name in shipped_topologies()]
    names = shipped_topologies()
    if as_json:
        rows = [
            {"name": name, "ranks": network.num_ranks, "edges": len(network.edges)}
            for name, network in zip(names, found, strict=True)
        ]
        typer.echo(json.dumps({"topologies": rows}, indent=2))
        return
    for name, network in zip(names, found, strict=True):
        typer.echo(f"{name:<12} {network.num_ranks:>4} ranks, {len(network.edges):>4} edges")
    typer.echo("short forms: ring:16, mesh2d:8x8, torus2d:8x8@25GB/s,1us, hub:8, fat-tree:4 ...")

"""``taccl topology``: look at the machines."""

import json
from pathlib import Path
from typing import Annotated

import typer

from taccl.cli.options import CostSketch, Fabric, Json, Nodes, TopologyArgument, chosen, read
from taccl.errors import InputError
from taccl.units import parse_beta, parse_exact_size

IMPORT_NAMES = "graph, taccl"
BASE_NAMES = "NDv2, DGX2, HubAndSpoke, custom"
TIME_UNIT_NAMES = "1us, 100ns, 10ns"
COST_NAMES = "exact, original"

app = typer.Typer(
    help="Show, validate, expand, import, degrade and list topologies.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command()
def show(
    topology: TopologyArgument,
    nodes: Nodes = None,
    fabric: Fabric = None,
    sketch: CostSketch = None,
    svg: Annotated[Path | None, typer.Option("--svg", help="Write a picture of it.")] = None,
    dot: Annotated[
        Path | None, typer.Option("--dot", help="Write it as a graph for Graphviz.")
    ] = None,
) -> None:
    """Print what a topology consists of and which links join its ranks."""
    from taccl.files import check_apart, check_output, write_all_atomic
    from taccl.pipeline.problems import load_machine
    from taccl.report import graph
    from taccl.report.matrix import link_matrix
    from taccl.topology_file import describe

    wanted = {"--svg": (svg, graph.svg), "--dot": (dot, graph.dot)}
    others: list[str | Path] = [topology]
    for option, (path, _) in wanted.items():
        if path is not None:
            check_output(path, field=option)
            check_apart(path, others, field=option)
            others.append(path)
    network = load_machine(topology, nodes=nodes, fabric=fabric, sketch=sketch)
    texts: dict[str | Path, str] = {
        path: draw(network) for path, draw in wanted.values() if path is not None
    }
    write_all_atomic(texts)
    rows = describe(network)
    width = max(len(what) for what, _ in rows)
    for what, value in rows:
        typer.echo(f"{what:<{width}}  {value}")
    typer.echo("")
    typer.echo(link_matrix(network))
    for written in texts:
        typer.echo(f"wrote {written}")


@app.command()
def validate(
    topology: TopologyArgument,
    nodes: Nodes = None,
    fabric: Fabric = None,
    sketch: CostSketch = None,
) -> None:
    """Load a topology, verify its declared symmetries, and warn of likely mistakes."""
    from taccl.pipeline.problems import load_machine
    from taccl.symmetry import check_symmetry
    from taccl.topology_file import validate_warnings

    network = load_machine(topology, nodes=nodes, fabric=fabric, sketch=sketch)
    for rotation in network.rotations:
        check_symmetry(network, rotation)
    for warning in validate_warnings(network):
        typer.echo(f"warning: {warning}", err=True)
    typer.echo(
        f"{network.name}: {network.num_ranks} ranks, {len(network.edges)} edges,"
        f" {len(network.links)} links, {len(network.rotations)} declared symmetries hold"
    )


@app.command()
def expand(
    topology: TopologyArgument,
    nodes: Nodes = None,
    fabric: Fabric = None,
    sketch: CostSketch = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The YAML file to write.")
    ] = None,
) -> None:
    """Print a topology as the plain graph that engines see."""
    from taccl.files import check_apart, write_atomic
    from taccl.pipeline.problems import load_machine
    from taccl.topology_file import expand_text

    text = expand_text(load_machine(topology, nodes=nodes, fabric=fabric, sketch=sketch))
    if output is None:
        typer.echo(text, nl=False)
    else:
        check_apart(output, [topology], field="-o")
        write_atomic(output, text)
        typer.echo(f"wrote {output}")


@app.command()
def degrade(
    topology: TopologyArgument,
    edge: Annotated[
        list[str] | None,
        typer.Option("--edge", help="Edges by name, * is any text; NAME=0.5 sets its factor."),
    ] = None,
    link: Annotated[
        list[str] | None,
        typer.Option("--link", help="All edges between two ranks: 0-1, 0->1 or 0-1=0.5."),
    ] = None,
    factor: Annotated[
        str | None,
        typer.Option("--factor", help="What is left of the bandwidth of the others; 0: no edge."),
    ] = None,
    nodes: Nodes = None,
    fabric: Fabric = None,
    sketch: CostSketch = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The YAML file to write.")
    ] = None,
) -> None:
    """Print a topology some of whose edges are slower or gone, as a plain graph."""
    from taccl.files import check_apart, write_atomic
    from taccl.pipeline.problems import load_machine
    from taccl.topology_edit import degrade, read_loss
    from taccl.topology_file import document_text, topology_document

    losses = [read_loss("--edge", text, factor) for text in edge or ()]
    losses += [read_loss("--link", text, factor) for text in link or ()]
    if not losses:
        raise InputError(
            "nothing to degrade is named", field="--edge", fix="write --edge '0->1=0.5' or --link"
        )
    if output is not None:
        check_apart(output, [topology], field="-o")
    network = load_machine(topology, nodes=nodes, fabric=fabric, sketch=sketch)
    made, notes = degrade(network, losses)
    text = document_text(topology_document(made), [f"{network.name}: {note}" for note in notes])
    if output is None:
        typer.echo(text, nl=False)
        return
    write_atomic(output, text)
    for note in notes:
        typer.echo(note, err=True)
    typer.echo(f"wrote {output}")


@app.command("import")
def import_(
    file: Annotated[str, typer.Argument(help="A foreign topology file.", show_default=False)],
    kind: Annotated[
        str | None, typer.Option("--from", help=f"Its format: {IMPORT_NAMES}; guessed if left out.")
    ] = None,
    link_bandwidth: Annotated[
        str | None,
        typer.Option("--link-bandwidth", help="graph: of one link, where edges count links."),
    ] = None,
    allow_free: Annotated[
        bool, typer.Option("--allow-free", help="graph: edges without numbers cost nothing.")
    ] = False,
    base: Annotated[
        str | None,
        typer.Option("--base", help=f"taccl: the machine: {BASE_NAMES}; guessed from its name."),
    ] = None,
    chunk_size: Annotated[
        str | None,
        typer.Option("--chunk-size", help="taccl: the chunk whose times the file gives: 1MB."),
    ] = None,
    time_unit: Annotated[
        str | None,
        typer.Option("--time-unit", help=f"taccl: what its numbers count: {TIME_UNIT_NAMES}."),
    ] = None,
    costs: Annotated[
        str,
        typer.Option("--costs", help="taccl: exact, or original: as TACCL computes with them."),
    ] = "exact",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The YAML file to write.")
    ] = None,
) -> None:
    """Turn a foreign topology file into one of ours."""
    from taccl.files import check_apart, write_atomic
    from taccl.imports import GraphOptions, ImportOptions, TacclOptions, import_document
    from taccl.topology_file import document_text

    beta = None if link_bandwidth is None else read("--link-bandwidth", parse_beta, link_bandwidth)
    size = None if chunk_size is None else read("--chunk-size", parse_exact_size, chunk_size)
    options = ImportOptions(
        GraphOptions(beta, allow_free),
        TacclOptions(
            base and chosen("--base", base, BASE_NAMES), size,
            time_unit and chosen("--time-unit", time_unit, TIME_UNIT_NAMES),
            chosen("--costs", costs, COST_NAMES),
        ),
    )  # fmt: skip
    name = None if kind is None else chosen("--from", kind, IMPORT_NAMES)
    text = document_text(import_document(file, name, options))
    if output is None:
        typer.echo(text, nl=False)
    else:
        check_apart(output, [file], field="-o")
        write_atomic(output, text)
        typer.echo(f"wrote {output}")


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List the shipped topologies."""
    from taccl.topology_file import load_topology, shipped_topologies

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
    typer.echo("short forms: ring:16, mesh2d:8x8, torus2d:8x8@25GB/s,1us, hub:8, hypercube:16 ...")

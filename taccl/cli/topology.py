"""``taccl topology``: look at the machines."""

import json
from pathlib import Path
from typing import Annotated

import typer

from taccl.cli.options import Fabric, Json, Nodes, TopologyArgument, chosen, read
from taccl.units import parse_beta

IMPORT_NAMES = "graph"

app = typer.Typer(
    help="Show, validate, expand and list topologies.", no_args_is_help=True, rich_markup_mode=None
)


@app.command()
def show(topology: TopologyArgument, nodes: Nodes = None, fabric: Fabric = None) -> None:
    """Print what a topology consists of and which links join its ranks."""
    from taccl.report.matrix import link_matrix
    from taccl.topology_file import describe, load_topology

    network = load_topology(topology, nodes=nodes, fabric=fabric)
    rows = describe(network)
    width = max(len(what) for what, _ in rows)
    for what, value in rows:
        typer.echo(f"{what:<{width}}  {value}")
    typer.echo("")
    typer.echo(link_matrix(network))


@app.command()
def validate(topology: TopologyArgument, nodes: Nodes = None, fabric: Fabric = None) -> None:
    """Load a topology, verify its declared symmetries, and warn of likely mistakes."""
    from taccl.symmetry import check_symmetry
    from taccl.topology_file import load_topology, validate_warnings

    network = load_topology(topology, nodes=nodes, fabric=fabric)
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
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The YAML file to write.")
    ] = None,
) -> None:
    """Print a topology as the plain graph that engines see."""
    from taccl.files import check_apart, write_atomic
    from taccl.topology_file import expand_text, load_topology

    text = expand_text(load_topology(topology, nodes=nodes, fabric=fabric))
    if output is None:
        typer.echo(text, nl=False)
    else:
        check_apart(output, [topology], field="-o")
        write_atomic(output, text)
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
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The YAML file to write.")
    ] = None,
) -> None:
    """Turn a foreign topology file into one of ours."""
    from taccl.files import write_atomic
    from taccl.imports import GraphOptions, import_topology
    from taccl.topology_file import expand_text

    beta = None if link_bandwidth is None else read("--link-bandwidth", parse_beta, link_bandwidth)
    name = None if kind is None else chosen("--from", kind, IMPORT_NAMES)
    text = expand_text(import_topology(file, name, GraphOptions(beta, allow_free)))
    if output is None:
        typer.echo(text, nl=False)
    else:
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

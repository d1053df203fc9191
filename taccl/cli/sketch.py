"""``taccl sketch`` and ``taccl schema``: look at sketches and at file formats."""

import json
from typing import Annotated

import typer

from taccl.cli.options import Fabric, Nodes, TopologyArgument

app = typer.Typer(
    help="Show, validate and list sketches.", no_args_is_help=True, rich_markup_mode=None
)

SketchArgument = Annotated[
    str,
    typer.Argument(help="A sketch file or the name of a shipped one.", show_default=False),
]


@app.command()
def show(
    sketch: SketchArgument, topology: TopologyArgument, nodes: Nodes = None, fabric: Fabric = None
) -> None:
    """Print what remains of a topology under a sketch."""
    from taccl.pipeline import load_network, logical_group

    logical = load_network(topology, nodes=nodes, fabric=fabric, sketch=sketch)
    network = logical.topology
    table, server = network.links, network.server_of
    typer.echo(f"{logical.name} on {network.name}")
    typer.echo(f"  links allowed   {int(logical.allowed.sum())} of {len(table)}")
    crossing = [
        f"{int(table.src[link])}->{int(table.dst[link])}"
        for link in logical.links()
        if server[int(table.src[link])] != server[int(table.dst[link])]
    ]
    if crossing:
        more = f" and {len(crossing) - 24} more" if len(crossing) > 24 else ""
        typer.echo(f"  between servers {' '.join(crossing[:24])}{more}")
    for rank, senders in sorted(logical.leave_by.items()):
        typer.echo(f"  chunks of rank {rank} leave by {sorted(senders)}")
    typer.echo(f"  symmetries      {len(logical_group(logical))} act freely")
    for switch, policy in logical.switch_policy.items():
        typer.echo(f"  switch {switch} {policy}")
    limits = {
        "chunks per rank": logical.chunks_per_rank,
        "extra hops": logical.max_extra_hops,
        "shortest paths": "ranks on them only" if logical.on_shortest_paths else None,
        "connections per rank": logical.connections_per_rank,
        "channels": logical.channels,
        "own chunks first": logical.own_chunks_first or None,
    }
    for what, value in limits.items():
        if value is not None:
            typer.echo(f"  {what:<15} {value}")


@app.command()
def validate(
    sketch: SketchArgument, topology: TopologyArgument, nodes: Nodes = None, fabric: Fabric = None
) -> None:
    """Apply a sketch to a topology: links, relays and symmetries all hold, or an error says why."""
    from taccl.pipeline import load_network, logical_group

    logical = load_network(topology, nodes=nodes, fabric=fabric, sketch=sketch)
    group = logical_group(logical)
    typer.echo(
        f"{logical.name}: {int(logical.allowed.sum())} of {len(logical.allowed)} links of"
        f" {logical.topology.name} allowed, {len(group)} symmetries"
    )


@app.command("list")
def list_() -> None:
    """List the shipped sketches."""
    from taccl.sketch import shipped_sketches

    for name in shipped_sketches():
        typer.echo(name)


def schema(
    name: Annotated[str, typer.Argument(help="topology, sketch, schedule ...", show_default=False)],
) -> None:
    """Print the JSON schema of a file format."""
    from taccl.errors import InputError
    from taccl.schemas import SCHEMAS

    if name not in SCHEMAS:
        raise InputError(
            f"unknown format {name[:40]!r}", field="name", fix=f"use one of {', '.join(SCHEMAS)}"
        )
    typer.echo(json.dumps(SCHEMAS[name].json_schema(), indent=2))

"""``taccl topology``: look at the machines, import and export foreign descriptions of them."""

import json
import re
from fractions import Fraction
from typing import Annotated

import typer

from taccl.cli.help import Dot, Svg, TextOutput, deliver, pictures
from taccl.cli.options import (
    BASE_NAMES,
    COST_MODE_NAMES,
    EXPORT_NAMES,
    FABRIC_NAMES,
    GPU_NAMES,
    IMPORT_NAMES,
    TIME_UNIT_NAMES,
    CostSketch,
    Fabric,
    Json,
    Nodes,
    Ranks,
    Relays,
    TopologyArgument,
    group_of,
    one_of,
    read,
)
from taccl.errors import InputError
from taccl.units import parse_beta, parse_exact_size

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
    from taccl.apps.inputs import MachineOptions, load_machine
    from taccl.files import check_outputs
    from taccl.report.graph import matrix_text, topology_fields
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
    from taccl.apps.inputs import load_both
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
    from taccl.apps.inputs import MachineOptions, load_machine
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
    from taccl.apps.inputs import MachineOptions, load_machine
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


MAX_SERVERS = 8192


def import_(
    files: Annotated[
        list[str],
        typer.Argument(help="A foreign file; several hosts make one cluster.", show_default=False),
    ],
    kind: Annotated[
        str | None, one_of(IMPORT_NAMES, "--from", "Its format: {}; guessed if left out.")
    ] = None,
    count: Annotated[
        int | None,
        typer.Option("--count", min=1, max=MAX_SERVERS, help="Hosts: servers like the one given."),
    ] = None,
    fabric: Annotated[
        str | None, one_of(FABRIC_NAMES, "--fabric", "Hosts: what joins their NICs: {}.")
    ] = None,
    leaves: Annotated[
        int | None, typer.Option("--leaves", min=1, help="leaf-spine: how many leaves.")
    ] = None,
    uplink: Annotated[
        str | None, typer.Option("--uplink", help="leaf-spine: from a leaf to the spine: 400GB/s.")
    ] = None,
    oversubscription: Annotated[
        str | None,
        typer.Option("--oversubscription", help="leaf-spine: what NICs send over what uplinks do."),
    ] = None,
    spine: Annotated[
        str | None, typer.Option("--spine", help="rail: joins the rails, with this bandwidth.")
    ] = None,
    dims: Annotated[
        str | None, typer.Option("--dims", help="torus, mesh: servers in each dimension: 2x2.")
    ] = None,
    gpu: Annotated[
        str | None, one_of(GPU_NAMES, "--gpu", "Hosts: {}; guessed if left out.")
    ] = None,
    pcie: Annotated[
        int | None, typer.Option("--pcie", min=1, max=6, help="Hosts: generation of PCIe.")
    ] = None,
    nic_speed: Annotated[
        str | None, typer.Option("--nic-speed", help="Hosts: of each NIC: 200Gb/s.")
    ] = None,
    nics: Annotated[
        int | None, typer.Option("--nics", min=1, help="Hosts: NICs, where the file names none.")
    ] = None,
    sockets: Annotated[
        str | None, typer.Option("--sockets", help="Hosts: between two sockets: 16GB/s.")
    ] = None,
    link_bandwidth: Annotated[
        str | None,
        typer.Option("--link-bandwidth", help="Of one NVLink or xGMI link; graph: of one link."),
    ] = None,
    allow_free: Annotated[
        bool, typer.Option("--allow-free", help="graph: edges without numbers cost nothing.")
    ] = False,
    base: Annotated[
        str | None, one_of(BASE_NAMES, "--base", "taccl: the machine: {}; guessed from its name.")
    ] = None,
    chunk_size: Annotated[
        str | None,
        typer.Option("--chunk-size", help="taccl: the chunk whose times the file gives: 1MB."),
    ] = None,
    time_unit: Annotated[
        str | None, one_of(TIME_UNIT_NAMES, "--time-unit", "taccl: what its numbers count: {}.")
    ] = None,
    costs: Annotated[
        str,
        one_of(
            COST_MODE_NAMES, "--costs", "taccl: exact, or original: as TACCL computes with them."
        ),
    ] = "exact",
    output: TextOutput = None,
) -> None:
    """Turn foreign descriptions of a machine or its hosts into a topology file."""
    from taccl.imports import (
        FabricOptions,
        GraphOptions,
        HostOptions,
        ImportOptions,
        TacclOptions,
        import_files,
    )
    from taccl.topology.file import document_text

    beta = None if link_bandwidth is None else read("--link-bandwidth", parse_beta, link_bandwidth)
    size = None if chunk_size is None else read("--chunk-size", parse_exact_size, chunk_size)
    options = ImportOptions(
        GraphOptions(beta, allow_free),
        TacclOptions(base, size, time_unit, costs),
        HostOptions(
            gpu, beta and 1000 / beta, pcie, _rate("--nic-speed", nic_speed),
            _rate("--sockets", sockets), nics,
        ),
        FabricOptions(fabric, count, _fields(leaves, uplink, oversubscription, spine, dims)),
    )  # fmt: skip
    found = import_files(files, kind, options)
    deliver(document_text(found.document, found.comments), output, files)


def _rate(option: str, text: str | None) -> Fraction | None:
    """Return GB/s of an option."""
    return None if text is None else 1000 / read(option, parse_beta, text)


def _fields(
    leaves: int | None,
    uplink: str | None,
    oversubscription: str | None,
    spine: str | None,
    dims: str | None,
) -> dict[str, object]:
    """Return the fields of a fabric that are given."""
    fields: dict[str, object] = {"leaves": leaves, "uplink": uplink, "spine": spine}
    if oversubscription is not None:
        if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", oversubscription):
            raise InputError(
                f"should be a number, got {oversubscription[:40]!r}", field="--oversubscription",
                fix="write 2 or 1.5",
            )  # fmt: skip
        whole = oversubscription.isdecimal()
        fields["oversubscription"] = int(oversubscription) if whole else float(oversubscription)
    for option, text in (("--uplink", uplink), ("--spine", spine)):
        _rate(option, text)  # for its errors
    if dims is not None:
        parts = dims[:100].lower().split("x")
        if not all(part.isdecimal() and len(part) <= 6 for part in parts):
            raise InputError(
                f"should be numbers of servers, got {dims[:40]!r}", field="--dims", fix="write 2x2"
            )
        fields["dims"] = [int(part) for part in parts]
    return {name: value for name, value in fields.items() if value is not None}


def export(
    topology: TopologyArgument,
    to: Annotated[str, one_of(EXPORT_NAMES, "--to", "The format: {}.")],
    nodes: Nodes = None,
    fabric: Fabric = None,
    sketch: CostSketch = None,
    output: TextOutput = None,
) -> None:
    """Write a topology in another tool's format."""
    from taccl.apps.inputs import MachineOptions, load_machine
    from taccl.report.export import EXPORTS

    text = EXPORTS[to](
        load_machine(topology, MachineOptions(nodes, fabric, sketch, in_network=True))
    )
    deliver(text, output, [topology])

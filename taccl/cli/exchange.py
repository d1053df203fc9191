"""``taccl topology import`` and ``export``: foreign descriptions of machines."""

import re
from fractions import Fraction
from typing import Annotated

import typer

from taccl.cli.names import (
    BASE_NAMES,
    COST_MODE_NAMES,
    EXPORT_NAMES,
    FABRIC_NAMES,
    GPU_NAMES,
    IMPORT_NAMES,
    TIME_UNIT_NAMES,
)
from taccl.cli.options import CostSketch, Fabric, Nodes, TopologyArgument, one_of, read
from taccl.cli.output import TextOutput, deliver
from taccl.errors import InputError
from taccl.units import parse_beta, parse_exact_size

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
    from taccl.apps.networks import MachineOptions, load_machine
    from taccl.report.export import EXPORTS

    text = EXPORTS[to](
        load_machine(topology, MachineOptions(nodes, fabric, sketch, in_network=True))
    )
    deliver(text, output, [topology])

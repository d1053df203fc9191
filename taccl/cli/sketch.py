"""``taccl sketch`` and ``taccl schema``: look at sketches and at file formats."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from taccl.cli.help import Dot, Svg, TextOutput, deliver, listed, pictures, shipped
from taccl.cli.options import (
    COLLECTIVE_NAMES,
    Fabric,
    Nodes,
    Root,
    SizeOfChunks,
    TopologyArgument,
    size_of,
)

if TYPE_CHECKING:
    from taccl.files import FileModel

app = typer.Typer(
    help="Show, validate, suggest and list sketches.", no_args_is_help=True, rich_markup_mode=None
)

SketchArgument = Annotated[
    str,
    typer.Argument(
        help="A sketch file or the name of a shipped one.",
        show_default=False,
        autocompletion=shipped("sketches"),
    ),
]


@app.command()
def show(
    sketch: SketchArgument,
    topology: TopologyArgument,
    nodes: Nodes = None,
    fabric: Fabric = None,
    svg: Svg = None,
    dot: Dot = None,
) -> None:
    """Print what remains of a topology under a sketch: links, relays, senders, symmetry, limits."""
    from taccl.apps.inputs import MachineOptions, load_network, logical_group
    from taccl.files import check_outputs
    from taccl.report.graph import sketch_picture, sketch_rows

    check_outputs([("--svg", svg), ("--dot", dot)], [sketch, topology])
    network = load_network(topology, MachineOptions(nodes, fabric, sketch))
    drawn = pictures(sketch_picture(network), svg, dot)
    typer.echo(f"{network.name} on {network.topology.name}")
    for what, value in sketch_rows(network, logical_group(network)):
        typer.echo(f"  {what:<15} {value}")
    for written in drawn:
        typer.echo(f"wrote {written}")


@app.command()
def validate(
    sketch: SketchArgument, topology: TopologyArgument, nodes: Nodes = None, fabric: Fabric = None
) -> None:
    """Apply a sketch to a topology: links, relays and symmetries all hold, or an error says why."""
    from taccl.apps.inputs import MachineOptions, load_network, logical_group
    from taccl.collectives import build_collective

    logical = load_network(topology, MachineOptions(nodes, fabric, sketch))
    group = logical_group(logical)
    every = build_collective("allgather", logical.topology.num_ranks, 1)
    lost = None if logical.why_unserved is None else logical.why_unserved(every)
    if lost is not None:
        raise lost
    typer.echo(
        f"{logical.name}: {int(logical.allowed.sum())} of {len(logical.allowed)} links of"
        f" {logical.topology.name} allowed, {len(group)} symmetries"
    )


@app.command()
def suggest(
    topology: TopologyArgument,
    collective: Annotated[
        str,
        typer.Argument(
            help=f"One of {COLLECTIVE_NAMES}, or a collective file; left out: allgather.",
            show_default=False,
            autocompletion=listed(COLLECTIVE_NAMES),
        ),
    ] = "allgather",
    nodes: Nodes = None,
    fabric: Fabric = None,
    root: Root = None,
    size: SizeOfChunks = None,
    output: TextOutput = None,
) -> None:
    """Print a sketch for a topology, with a comment on why each of its parts is as it is."""
    from taccl.apps.inputs import asked_collective, default_size, load_collective
    from taccl.sketch.suggest import suggest_sketch
    from taccl.topology.file import load_topology

    network = load_topology(topology, nodes=nodes, fabric=fabric)
    asked = asked_collective(load_collective(collective), network, root)
    bytes_ = default_size(network, asked) if size is None else size_of(size)
    text = suggest_sketch(network, asked, bytes_)
    deliver(text, output, [topology])


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
    from taccl.errors import InputError, did_you_mean

    known = file_models()
    if name not in known:
        raise InputError(
            f"unknown format {name[:40]!r}", field="name",
            fix=f"{did_you_mean(name, known)}use one of {', '.join(known)}",
        )  # fmt: skip
    typer.echo(json.dumps(known[name].json_schema(), indent=2))


def file_models() -> "dict[str, type[FileModel]]":
    """Return the models of all file formats, by the name that ``taccl schema`` takes."""
    from taccl.apps.measured import MeasurementsFile
    from taccl.collectives.file import CollectiveFile, DemandFile
    from taccl.collectives.groups import GroupsFile
    from taccl.model.schedule_file import ScheduleFile
    from taccl.replay.scenario import ScenarioFile
    from taccl.sketch import SketchFile, TacclSketchFile
    from taccl.topology.file import FORMS
    from taccl.training.workload import WorkloadFile
    from taccl.tuning.directory import LibraryFile

    return {
        **FORMS, "sketch": SketchFile, "sketch-taccl": TacclSketchFile,
        "collective": CollectiveFile, "demand": DemandFile, "groups": GroupsFile,
        "schedule": ScheduleFile,
        "scenario": ScenarioFile, "library": LibraryFile, "measurements": MeasurementsFile,
        "workload": WorkloadFile,
    }  # fmt: skip

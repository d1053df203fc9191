"""What the command line says: help, completion, what its parser objects to; texts and progress.

Help has options by what they are about, then examples, in plain text: typer's own panels want rich,
whose import alone takes as long as all of ``taccl --help``. A shell is offered the names that help
shows, and those of shipped files; where nothing fits, it goes on with file names. What the parser
objects to is told as all errors are: where, what, the fix.

The text of a command goes to stdout, or to the file of ``-o``. Progress on a terminal is one line,
in place, cut to the width that there is; elsewhere, and with ``-v``, a line each, which stays;
``-v`` puts the seconds since the start before it.
"""

import re
import shutil
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperCommand

from taccl.timing.deadline import Deadline

if TYPE_CHECKING:
    from taccl.topology.graph import Topology

if TYPE_CHECKING:
    from typer._click import Context, HelpFormatter
    from typer._click.exceptions import UsageError as UsageError
else:
    # Typer names no error of its parser but this one, which is the child of what they all are.
    UsageError = typer.BadParameter.__mro__[1]


Offer = Callable[[str], list[str]]
"""From what was typed to what it may become."""


def listed(names: str) -> Offer:
    """Offer the comma-separated `names`."""

    def offer(incomplete: str) -> list[str]:
        return [name for name in names.split(", ") if name.startswith(incomplete.lower())]

    return offer


def shipped(folder: str) -> Offer:
    """Offer the names of the files in ``topologies`` or ``sketches``."""

    def offer(incomplete: str) -> list[str]:
        from taccl.topology.file import shipped_names

        return [name for name in shipped_names(folder) if name.startswith(incomplete.lower())]

    return offer


_SUGGESTED = re.compile(r"(.*?)\.? Did you mean (.*)\?")


def usage_told(error: UsageError) -> str:
    """Return the two lines for an error of the parser, or the help that it stands for."""
    message = str(error.format_message())
    if message.startswith("Usage:"):  # a group of commands was named, and none of them
        return message
    shows = f"{error.ctx.command_path if error.ctx else 'taccl COMMAND'} --help shows what there is"
    match = _SUGGESTED.fullmatch(message)
    option = getattr(error, "option_name", None)
    problem, fix = _lower(message), shows
    if isinstance(error, typer.BadParameter) and error.param is not None and error.ctx is not None:
        param = error.param
        is_option = param.param_type_name == "option"
        where = max(param.opts, key=len) if is_option else str(param.name).upper()
        problem = "is missing" if message.startswith("Missing") else _lower(error.message)
        name, about = param.get_help_record(error.ctx) or (where, "")
        problem, fix = f"{where}: {problem}", f"give {name}: {about}"
    elif option and "No such" in message:
        close = ", ".join(getattr(error, "possibilities", None) or ())
        suggested = f"did you mean {close}? " if close else ""
        problem, fix = f"{option}: there is no such option", f"{suggested}{shows}"
    elif option and "does not take" in message:
        problem, fix = f"{option}: takes no value", f"write {option} alone"
    elif option:
        problem, fix = f"{option}: wants a value", f"write it after {option}; {shows}"
    elif match is not None:
        problem, fix = _lower(match[1]), f"did you mean {match[2].replace(chr(39), '')}? {shows}"
    return f"error: {problem}\n  fix: {fix}"


def _lower(text: str) -> str:
    return (text[:1].lower() + text[1:].rstrip(".")).removeprefix("input ")


GROUPS = ("Machine", "Collective", "Search", "Program", "Options", "Output")
"""Headings of ``--help`` in their order; an option of none of the others is under ``Options``."""

machine_option = partial(typer.Option, rich_help_panel="Machine")
collective_option = partial(typer.Option, rich_help_panel="Collective")
search_option = partial(typer.Option, rich_help_panel="Search")
program_option = partial(typer.Option, rich_help_panel="Program")
output_option = partial(typer.Option, rich_help_panel="Output")

EXAMPLES: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "synthesize": (
        "taccl synthesize ndv2 allgather --nodes 2 --size 1MB -o allgather.xml",
        "taccl synthesize dgx-a100 allreduce --nodes 2 --size 64M --runtime executor -o sum.xml",
        "taccl synthesize torus2d:4x4 alltoall --engine guided --time-limit 10 --report page.html",
        "taccl synthesize ring:4 allgather -o - --quiet | taccl verify /dev/stdin",
    ),
    "evaluate": (
        "taccl evaluate allgather.xml --topology ndv2 --nodes 2 -b 256K -e 2M",
        "taccl evaluate allgather.xml --topology ndv2 --nodes 2 --size 1MB --explain --html p.html",
    ),
    "verify": (
        "taccl verify allgather.xml",
        "taccl verify allgather.xml --runtime msccl --size 64M",
    ),
    "inspect": ("taccl inspect allgather.xml --size 1M",),
    "bound": (
        "taccl bound dgx-a100 allreduce --nodes 4 --size 64M",
        "taccl bound dgx-a100 alltoall --nodes 4 -b 1M -e 1G -f 4",
    ),
    "compare": (
        "taccl compare dgx-a100 allreduce --nodes 2 -b 64K -e 1G",
        "taccl compare ndv2 allgather allgather.xml --nodes 2 --plot times.svg",
    ),
    "run": (
        "taccl run allreduce.xml -b 1K -e 1M -f 4",
        "taccl run allreduce.xml --topology ring:8 --trace ran.json",
        "taccl run allreduce.xml --hosts alpha:4,beta:4",
        "taccl run allreduce.xml --emulate slow-uplink -b 64K -e 1M -f 4",
    ),
    "measured": ("taccl measured", "taccl measured h100-ndv5 --json"),
    "calibrate": ("taccl calibrate cluster.yaml --measured all_reduce.txt -o calibrated.yaml",),
    "step": (
        "taccl step layers.csv dgx-a100 --nodes 2 --against nccl",
        "taccl step workload.yaml dgx-h100 --library tuned --profile measured --trace step.json",
        "taccl step workload.yaml torus2d:4x4 --via ring --sweep",
    ),
    "place": (
        "taccl place latency.txt bandwidth.txt --servers 8 --hostfile ordered.txt",
        "taccl place --topology torus2d:4x4 --algorithm halving-doubling --size 64M",
    ),
    "warmup": ("taccl warmup",),
    "convert": (
        "taccl convert schedule.json --runtime executor -o program.xml",
        "taccl convert schedule.json --runtime mscclpp --size 1MB -o plan.json",
    ),
    "tune": (
        "taccl tune dgx-a100 allreduce allgather --nodes 2 -b 1K -e 1G --runtime executor -o lib",
    ),
    "explain": ("taccl explain lib --collective allreduce --size 4M",),
    "schema": ("taccl schema topology",),
    "topology show": ("taccl topology show dgx-a100 --nodes 2 --svg machine.svg",),
    "topology validate": ("taccl topology validate cluster.yaml",),
    "topology diff": (
        "taccl topology diff dgx-a100 dgx-h100",
        "taccl topology diff ndv2 slower.yaml --nodes 2",
    ),
    "topology expand": ("taccl topology expand ndv2 --nodes 2 -o graph.yaml",),
    "topology degrade": (
        "taccl topology degrade ndv2 --link 0-1=0.5 --nodes 2 -o slower.yaml",
        "taccl topology degrade ring:8 --link '0->1=0' -o one-way.yaml",
    ),
    "topology list": ("taccl topology list",),
    "topology import": (
        "nvidia-smi topo -m > host.txt; taccl topology import host.txt --count 4 -o cluster.yaml",
        "taccl topology import ncclTopo.xml --count 16 --fabric rail -o cluster.yaml",
    ),
    "topology export": ("taccl topology export dgx-a100 --to nccl -o topo.xml",),
    "sketch show": ("taccl sketch show ndv2-relay ndv2 --nodes 2 --svg sketch.svg",),
    "sketch validate": ("taccl sketch validate ndv2-relay ndv2 --nodes 2",),
    "sketch suggest": ("taccl sketch suggest dgx2 allgather --nodes 2 -o sketch.yaml",),
    "sketch list": ("taccl sketch list",),
})  # fmt: skip
"""What to write, by command; a test has each command's own parser read them."""


class GroupedCommand(TyperCommand):
    """A command whose help has a heading for each group of options, and examples at the end."""

    def format_options(self, ctx: "Context", formatter: "HelpFormatter") -> None:
        """Write arguments and options under their headings."""
        records: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for param in self.get_params(ctx):
            heading = getattr(param, "rich_help_panel", None) or "Options"
            if param.param_type_name == "argument":
                heading = "Arguments"
            elif param.name == "help":
                heading = "Output"
            if (record := param.get_help_record(ctx)) is not None:
                records[heading].append(record)
        for heading in ("Arguments", *GROUPS):
            if heading in records:
                with formatter.section(heading):
                    formatter.write_dl(records[heading])

    def format_epilog(self, ctx: "Context", formatter: "HelpFormatter") -> None:
        """Write the examples as they are, for lines that are broken can't be copied."""
        del ctx
        if self.epilog:
            with formatter.section("Examples"):
                for line in self.epilog.splitlines():
                    formatter.write(f"  {line}\n")


def illustrate(group: typer.Typer, path: str = "") -> None:
    """Give all commands of a `group` this help, with examples; `path`: words before them."""
    for info in group.registered_commands:
        name = info.name or getattr(info.callback, "__name__", "")
        info.cls = GroupedCommand
        info.epilog = "\n".join(EXAMPLES.get(f"{path}{name}", ()))
    for below in group.registered_groups:
        if below.typer_instance is not None:
            illustrate(below.typer_instance, f"{path}{below.name} ")


TextOutput = Annotated[
    Path | None, output_option("-o", "--output", help="The file to write; left out or -: stdout.")
]

Svg = Annotated[Path | None, typer.Option("--svg", help="Write a picture of it.")]
Dot = Annotated[Path | None, typer.Option("--dot", help="Write it as a graph for Graphviz.")]


def is_stdout(output: Path | None) -> bool:
    """Tell whether ``-o`` is ``-``."""
    return str(output) == "-"


def deliver(
    text: str, output: Path | None, inputs: Sequence[str], notes: Sequence[str] = ()
) -> None:
    """Print a `text`, or write it to the file `output` (None or ``-``: stdout) and say so.

    It was made of `inputs`, which it may not overwrite; `notes` are told of a text that is not on
    stdout.

    Raises InputError when the file can't be written, or is one of the inputs.
    """
    from taccl.files import check_apart, write_atomic

    if output is None or is_stdout(output):
        typer.echo(text, nl=False)
        return
    check_apart(output, inputs, field="-o")
    write_atomic(output, text)
    for note in notes:
        typer.echo(note, err=True)
    typer.echo(f"wrote {output}")


def pictures(network: "Topology", svg: Path | None, dot: Path | None) -> list[Path]:
    """Write pictures of a `network` to the files `svg` and `dot`, if given; return these."""
    from taccl.files import write_all_atomic
    from taccl.report import graph

    wanted = {path: draw for path, draw in ((svg, graph.svg), (dot, graph.dot)) if path}
    write_all_atomic({path: draw(network) for path, draw in wanted.items()})
    return list(wanted)


MAX_NAMED = 8

States = dict[Path, tuple[int, int, int]]
"""Device, inode and time of the last change of files: one that is replaced has another inode."""


def states_of(outputs: Sequence[Path | None]) -> States:
    """Return the states of the outputs that exist, those in a directory one by one."""
    found: States = {}
    there = [path for path in outputs if path is not None]
    for file in chain.from_iterable(p.iterdir() if p.is_dir() else [p] for p in there):
        try:
            known = file.stat()
        except (OSError, ValueError):
            continue
        found[file] = (known.st_dev, known.st_ino, known.st_mtime_ns)
    return found


def told(before: States, after: States) -> str:
    """Return what an interrupted command wrote, by states of its outputs `before` and `after`."""
    written = sorted(str(path) for path, state in after.items() if before.get(path) != state)
    if not written:
        return "interrupted before anything could be written"
    more = f" and {len(written) - MAX_NAMED} more" if len(written) > MAX_NAMED else ""
    return f"interrupted after writing {', '.join(written[:MAX_NAMED])}{more}, and nothing else"


_CLEAR = "\r\033[K"


def say(line: str) -> None:
    """Print a line to stderr that stays, in place of the one that is shown at the moment."""
    typer.echo(f"{_CLEAR if sys.stderr.isatty() else ''}{line}", err=True)


@contextmanager
def progress(*, quiet: bool = False, verbose: bool = False) -> Iterator[Callable[[str], None]]:
    """Give what shows what is being done; at the end nothing of a terminal's line is left.

    If `quiet` it shows nothing; if `verbose` a line each, with the seconds since the start.
    """
    if quiet:
        yield lambda _line: None
    elif verbose:
        clock = Deadline()
        yield lambda line: say(f"{clock.spent:7.1f} s  {line}")
    elif not sys.stderr.isatty():
        yield say
    else:
        try:
            yield _in_place
        finally:
            typer.echo(_CLEAR, err=True, nl=False)


def _in_place(line: str) -> None:
    # The last column is left free: terminals that fill it go on to the next line.
    width = shutil.get_terminal_size().columns - 1
    typer.echo(f"{_CLEAR}{line[:width]}", err=True, nl=False)

"""``--help``: options by what they are about, then examples; plain text, so that it is quick.

Typer's own panels want rich, whose import alone takes as long as all of ``taccl --help``.
"""

from collections import defaultdict
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from typer._click import Context, HelpFormatter
    from typer._click.core import Parameter

MACHINE = "Machine"
COLLECTIVE = "Collective"
SEARCH = "Search"
PROGRAM = "Program"
OUTPUT = "Output"
OTHERS = "Options"
GROUPS = (MACHINE, COLLECTIVE, SEARCH, PROGRAM, OTHERS, OUTPUT)
"""Headings of ``--help`` in their order, as options name them in ``rich_help_panel``."""

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
    "calibrate": ("taccl calibrate cluster.yaml --measured all_reduce.txt -o calibrated.yaml",),
    "place": (
        "taccl place latency.txt bandwidth.txt --servers 8 --hostfile ordered.txt",
        "taccl place --topology torus2d:4x4 --algorithm halving-doubling --size 64M",
    ),
    "warmup": ("taccl warmup",),
    "convert": ("taccl convert schedule.json --runtime executor -o program.xml",),
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
            record = param.get_help_record(ctx)
            if record is not None:
                is_argument = param.param_type_name == "argument"
                records["Arguments" if is_argument else _group(param)].append(record)
        for heading in ("Arguments", *GROUPS):
            if heading in records:
                with formatter.section(heading):
                    formatter.write_dl(records[heading])

    def format_epilog(self, ctx: "Context", formatter: "HelpFormatter") -> None:  # noqa: ARG002
        """Write the examples as they are, for lines that are broken can't be copied."""
        if self.epilog:
            with formatter.section("Examples"):
                for line in self.epilog.splitlines():
                    formatter.write(f"  {line}\n")


def _group(param: "Parameter") -> str:
    named: str | None = getattr(param, "rich_help_panel", None)
    return named or (OUTPUT if param.name == "help" else OTHERS)


def illustrate(group: typer.Typer, path: str = "") -> None:
    """Give all commands of a group this help, with their examples."""
    for info in group.registered_commands:
        name = info.name or getattr(info.callback, "__name__", "")
        info.cls = GroupedCommand
        info.epilog = "\n".join(EXAMPLES.get(f"{path}{name}", ()))
    for below in group.registered_groups:
        if below.typer_instance is not None:
            illustrate(below.typer_instance, f"{path}{below.name} ")

"""``auto`` under measured costs beside NCCL and third-party files: ``measured_auto [--write]``.

On each machine and at each size stands what ``auto`` finds for the runtime that loads programs
there, what the fastest of NCCL's kernels takes by replay (rings, trees and pairs in every protocol,
with 4, 16 and 32 channels), what the fastest MSCCL file of others takes, where there are any, what
NCCL's own formula expects, and the bound of what these costs allow.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

from benchmarks.sections import replace_section
from benchmarks.truth import DATA as XML
from benchmarks.truth import PAGE
from taccl.apps import Request, Target, load_network, synthesize
from taccl.apps.comparison import CHANNELS
from taccl.apps.inputs import MachineOptions, read_program
from taccl.msccl.program import Program
from taccl.replay.cost import model_of
from taccl.replay.nccl import fastest, machine_of
from taccl.replay.timing import traces
from taccl.synth.templates.nccl_kernels import KERNELS
from taccl.topology.graph import Topology
from taccl.units import Time, format_size, format_time

DATA = XML.parents[1]

MACHINES = (("dgx-h100", 1, "executor"), ("dgx-a100", 2, "executor"), ("mi300x", 1, "rccl"))
"""With the servers, and the runtime that loads programs there."""
COLLECTIVES = ("allgather", "allreduce")
SIZES = (1 << 10, 1 << 16, 1 << 20, 1 << 26, 1 << 30)
FILES = {
    ("dgx-h100", "allgather"): "measured/xml/ndv5/ag-*.xml",
    ("dgx-h100", "allreduce"): "measured/xml/ndv5/[ar][p4]*.xml",
    ("mi300x", "allreduce"): "msccl/corpus/rccl-allreduce-*.xml",
}
"""MSCCL files that others made for a machine (Azure/msccl-scheduler, ROCm/rccl), below ``DATA``."""


EQUAL = 0.001
"""By what part times may differ that count as equal."""


class Cell(NamedTuple):
    """A machine, collective and size: times of ``auto``, of nothing less, and of the rest."""

    machine: str
    collective: str
    size: int
    auto: Time
    bound: Time
    others: dict[str, Time]

    @property
    def best(self) -> Time:
        """The least time of the rest."""
        return min(self.others.values())


def kernels(topology: Topology, collective: str) -> Iterator[Program]:
    """Yield NCCL's kernels in every protocol that the topology has measured costs of."""
    costs = topology.measured
    for make, protocol, channels in product(
        KERNELS.values(), costs.protocols if costs else (), CHANNELS
    ):
        program = make(topology, collective, channels, protocol)
        if program is not None:
            yield program


def least(programs: Sequence[Program], topology: Topology, size: int) -> Time | None:
    """Return the least time of some programs at the whole chunks nearest to a size."""
    model = replace(model_of("msccl"), measured=True)
    times = []
    for program in programs:
        unit = program.chunks_per_loop * model.element_bytes
        whole = max(1, round(size / unit)) * unit
        if program.min_bytes <= size <= program.max_bytes:
            times += [trace.time for trace in traces(program, topology, (whole,), model)]
    return min((time for time in times if time is not None), default=None)


def cells(seconds: float, folder: Path, only: str) -> Iterator[Cell]:
    """Yield all cells, each searched for so many seconds; ``folder`` has the files of others."""
    for (name, nodes, runtime), collective in product(MACHINES, COLLECTIVES):
        if only not in name:
            continue
        logical = load_network(name, MachineOptions(nodes=nodes))
        topology = logical.topology
        own = list(kernels(topology, collective))
        pattern = FILES.get((name, collective))
        files = sorted(folder.glob(pattern)) if pattern else []
        theirs = [read_program(str(file)) for file in files]
        for size in SIZES:
            found = synthesize(Request(
                logical, collective, size, target=Target(runtime, instances=None), measured=True,
                time_limit=seconds,
            ))  # fmt: skip
            others = {
                "NCCL's kernels": least(own, topology, found.size),
                "files": least(theirs, topology, found.size),
            }
            known = {what: time for what, time in others.items() if time is not None}
            # NCCL has no constants of AMD's GPUs: those of NVIDIA's would stand for them.
            is_known = not (topology.gpu or "").startswith("mi")
            expected = fastest(machine_of(topology), collective, found.size) if is_known else None
            if expected is not None:
                known["NCCL's formula"] = expected.time
            label = name if nodes == 1 else f"{name} x {nodes}"
            yield Cell(label, collective, size, found.time, found.bound.time, known)


COLUMNS = ("NCCL's kernels", "files", "NCCL's formula")


def told(found: Sequence[Cell], seconds: float) -> str:
    """Return the cells as a table, and in how many of them somebody else takes less."""
    head = ("machine", "collective", "size", "auto", *COLUMNS, "bound", "best of these / auto")
    rows = [head, ["---"] * len(head)]
    for cell in found:
        times = (cell.others.get(what) for what in COLUMNS)
        rows.append([
            cell.machine, cell.collective, format_size(cell.size), format_time(cell.auto),
            *("-" if time is None else format_time(time) for time in times),
            format_time(cell.bound), f"{cell.best / cell.auto:.3f}",
        ])  # fmt: skip
    lines = [
        f"`auto` is slower than {what} in"
        f" {sum(each < cell.auto * (1 - EQUAL) for cell, each in pairs)} of {len(pairs)} cells"
        for what in COLUMNS
        if (pairs := [(cell, cell.others[what]) for cell in found if what in cell.others])
    ]
    beyond = sum(cell.others.get(COLUMNS[-1], cell.bound) < cell.bound for cell in found)
    return "\n".join([
        "Made by `python -m benchmarks.measured_auto`: `auto` with"
        f" {seconds:g} s a cell, for the runtimes executor and rccl.\n",
        *("| " + " | ".join(row) + " |" for row in rows),
        f"\n{'; '.join(lines)}. In {beyond} cells the formula expects less than the bound, which no"
        " program with these costs can beat.\n",
    ])  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=30.0, help="of a search")
    parser.add_argument("--machine", default="", help="only machines whose name contains this")
    parser.add_argument("--files", type=Path, default=DATA, help="folder with FILES")
    parser.add_argument("--write", action="store_true", help="put the table into the docs")
    options = parser.parse_args(arguments)
    found = []
    for cell in cells(options.seconds, options.files, options.machine):
        found.append(cell)
        print(cell.machine, cell.collective, format_size(cell.size), format_time(cell.auto),
              {what: format_time(time) for what, time in cell.others.items()},
              f"{cell.best / cell.auto:.2f}", flush=True)  # fmt: skip
    text = told(found, options.seconds)
    print(text)
    if options.write:
        replace_section(PAGE, "auto", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

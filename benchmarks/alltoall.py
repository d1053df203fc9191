"""AlltoAll by flows against its bound: ``python -m benchmarks.alltoall``.

Every row is what ``taccl synthesize MACHINE alltoall --engine flow --runtime none --batch none``
finds for 1 MB a pair after machine code is compiled, verified, under ``occupy``. Exit status 1
when a row misses its target. Gathers and scatters have the same engine. Between servers their
targets are above the bound, at what no schedule of single chunks beats: a chunk that leaves by
another rank's NIC has to get there first, through the root's port, and the bound does not know
that. Of two MI250 servers every NIC would have to send one chunk within 128.4 us, the time of two,
and so have it by 64.2 us; but a scatter in one server takes 67.8 us (engine ``exact``).

``--only alltoall`` leaves those out, ``--rows torus`` takes rows whose name holds that,
``--slow 3`` gives searches three times as long, on a machine that other jobs use.
"""

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

from benchmarks.gathers import run_part, table_of
from benchmarks.gathers_cases import Machine
from benchmarks.gathers_parts import Line, Part, above, micros, percent
from benchmarks.gathers_runs import request, timed, warm_up
from benchmarks.sections import replace_section
from taccl.apps import load_network, synthesize

MB = 10**6
SEARCH = 20.0
"""Seconds that a search may last."""

HEAD = """## AlltoAll, gather and scatter by flows

Made by `python -m benchmarks.alltoall`: engine `flow`, runtime `none`, no batches, alpha rule
`occupy`, 1 MB for each pair (for each rank, in a gather or a scatter), after the first run, which
compiles. `gap_fixed` is to the bound for this chunk count with one chunk to a message. Other jobs
used the machine: *seconds* are by the wall clock, *CPU s* of both cores together, and where a
target says seconds, it holds where the smaller of the two meets it. Gathers and scatters between
servers can't meet this bound, as a chunk has to get to another rank's NIC first: their targets are
what no schedule of single chunks beats (`benchmarks/alltoall.py` says why).
"""
COLUMNS = (
    "machine", "ranks", "k", "orbit", "makespan us", "fixed bound us", "gap_fixed", "target",
    "seconds", "CPU s",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A row.

    Parameters
    ----------
    machine, collective, chunks
        What is done where, in how many chunks for each pair or rank.
    gap_fixed
        Makespan / bound for this chunk count - 1, at most; None: no target.
    seconds
        For all of it on an idle machine with two cores, at most; None: no target.
    """

    machine: Machine
    collective: str = "alltoall"
    chunks: int = 1
    gap_fixed: float | None = 0.001
    seconds: float | None = None

    @property
    def name(self) -> str:
        """What the row is called."""
        return f"{self.machine.name} {self.collective}".removesuffix(" alltoall")


ALLTOALL = (
    Case(Machine("ndv2", 2)),
    Case(Machine("dgx2")),
    Case(Machine("dgx2", 2)),
    *(Case(Machine("dgx-a100", nodes)) for nodes in (2, 4, 8, 16, 32)),
    *(Case(Machine(f"torus2d:{side}x{side}")) for side in (4, 8, 16)),
    Case(Machine("torus2d:32x32"), seconds=10.0),
    Case(Machine("mesh2d:8x8"), gap_fixed=0.01),
    Case(Machine("mi250", 2), chunks=4, gap_fixed=0.04),
    Case(Machine("ring:8")),
)

ROOTED = tuple(
    Case(machine, collective, gap_fixed=gap)
    for machine, gap in (
        (Machine("ndv2"), 0.001), (Machine("ndv2", 2), 0.001), (Machine("dgx2"), 0.001),
        (Machine("dgx2", 2), 0.0952), (Machine("dgx-a100", 2), 0.2385),
        (Machine("dgx-h100", 2), 0.0305), (Machine("h800-rail", 2), 0.001),
        (Machine("mi250", 2), 0.2406), (Machine("torus2d:8x8"), 0.001),
        (Machine("mesh2d:4x4"), 0.001),
    )
    for collective in ("gather", "scatter")
)  # fmt: skip


def line_of(case: Case, slow: float) -> Line:
    """Return a row: what was found, and by how much it misses its targets."""
    logical = case.machine.load()
    ranks = logical.topology.num_ranks
    asked = request(logical, case.collective, ranks * MB, case.chunks, seconds=slow * SEARCH)
    run = timed(replace(asked, engine="flow"))
    found, fixed = run.found, run.found.bound_fixed
    target = "-" if case.gap_fixed is None else percent(case.gap_fixed, 2)
    if case.seconds:
        target += f", {case.seconds:g} s"
    cells = (
        case.name, str(ranks), str(case.chunks), str(len(found.schedule.group)),
        micros(found.schedule.makespan), micros(fixed.time if fixed else None),
        percent(found.gap_fixed, 3), target, f"{run.wall:.1f}", f"{run.cpu:.1f}",
    )  # fmt: skip
    misses = []
    if case.gap_fixed is not None:
        misses += above("gap_fixed", found.gap_fixed, case.gap_fixed, ".3%")
    if case.seconds is not None:
        misses += above("seconds", run.seconds, slow * case.seconds, ".1f")
    return Line(cells, tuple(misses))


def _part(heading: str, cases: tuple[Case, ...]) -> Part:
    rows = {case.name: (case.machine, partial(line_of, case)) for case in cases}
    return Part(heading, COLUMNS, rows)


PARTS: Mapping[str, Part] = MappingProxyType(
    {
        "alltoall": _part("1 MB a pair", ALLTOALL),
        "rooted": _part("Gather and scatter, 1 MB a rank", ROOTED),
    }
)


def main() -> int:
    """Run rows, print and write them; return 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--rows", default="", help="rows whose name holds this")
    parser.add_argument("--slow", type=float, default=1.0, help="multiplies time limits")
    parser.add_argument("-o", "--output", type=Path, help="the page to write, of all rows")
    arguments = parser.parse_args()
    parts = [name for name in arguments.only.split(",") if name]
    if not set(parts) <= set(PARTS):
        parser.error(f"--only takes {', '.join(PARTS)}")
    warm_up()
    synthesize(
        replace(request(load_network("ring:4"), "alltoall", 4 * MB, 1, seconds=5), engine="flow")
    )
    done = {name: dict(run_part(PARTS[name], arguments.rows, arguments.slow)) for name in parts}
    missed = sum(len(line.misses) for lines in done.values() for line in lines.values())
    print(f"\n{sum(map(len, done.values()))} rows, {missed} targets missed")
    if arguments.output:
        tables = [text for name, lines in done.items() for text in table_of(PARTS[name], lines)]
        replace_section(arguments.output, "alltoall", HEAD + "\n".join(tables) + "\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

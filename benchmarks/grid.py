"""Every shipped machine, collective and size: how far from what nothing can beat.

``python -m benchmarks.grid [--machines dgx2] [--collectives allgather] [--sizes 1MB]`` runs
``taccl`` on one server and on two (where a machine has servers), under the rule ``occupy``, and
under the measured costs of machines that have them. Each cell has a process of its own, as each
call of ``taccl`` has. ``--sample`` runs the same 60 cells each time,
meant to take 20 minutes on an idle machine. ``--results FILE`` keeps the cells that were run: those
that it has are not run again. ``--write docs/performance.md`` puts the table there.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.auto import text_of, warm_up
from benchmarks.listed import listed
from benchmarks.sections import replace_section
from taccl.apps import Request, Target, load_network, synthesize
from taccl.apps.inputs import MachineOptions
from taccl.errors import InputError, LoweringError, NoScheduleError
from taccl.topology.file import shipped_topologies
from taccl.topology.graph import LogicalTopology
from taccl.units import Time, parse_size

COLLECTIVES = ("allgather", "reducescatter", "allreduce", "alltoall", "broadcast")
SIZES = ("1KB", "16KB", "256KB", "4MB", "64MB", "1GB")
PROFILES = ("occupy", "measured")

SAMPLE = 60
"""Cells of the sample."""

SECONDS = 15.0
"""For each cell: the time limit of the search."""

HEAD = """## How near to the limit, size by size

Made by `python -m benchmarks.grid` (`--sample`: 60 cells): `auto` with
--time-limit {seconds:g} (runtime `portable`, seed 0) for shipped machines, with one server and with
two where they have servers, under the rule
`occupy`, and with `--profile measured` where the machine has measured costs. *bound* is the largest
for any algorithm (or program), and *kind* says which it is. Other jobs used the machine, so that
searches had a part of their seconds; a dash: nothing was found, as the column of engines says.
"""


class Cell(NamedTuple):
    """One problem.

    Parameters
    ----------
    machine, nodes
        Which shipped machine, and how many servers.
    collective, size, profile
        What is asked, and what messages are charged.
    """

    machine: str
    nodes: int
    collective: str
    size: str
    profile: str

    @property
    def key(self) -> str:
        """What tells cells apart."""
        return f"{self.machine} x {self.nodes} {self.collective} {self.size} {self.profile}"


@dataclass(frozen=True)
class Row:
    """What was found for a cell: times in picoseconds; `time` None where there is nothing.

    Parameters
    ----------
    time, bound
        Of the program, and what nothing can beat.
    kind
        Of the bound.
    engine, seconds
        What found it, or why there is nothing, and how long that took.
    """

    time: Time | None
    bound: Time
    kind: str
    engine: str
    seconds: float

    @property
    def gap(self) -> float | None:
        """How much longer than the bound."""
        return self.time / self.bound - 1 if self.time and self.bound else None


def networks(machines: Sequence[str]) -> Iterator[tuple[str, int, LogicalTopology]]:
    """Yield name, servers and network of shipped machines: as they are, and with two servers."""
    for machine in machines:
        yield machine, 1, load_network(machine)
        try:
            yield machine, 2, load_network(machine, MachineOptions(nodes=2))
        except InputError:
            continue  # not made of servers


def cells_of(
    machines: Sequence[str], collectives: Sequence[str], sizes: Sequence[str]
) -> dict[Cell, LogicalTopology]:
    """Return all cells with their networks; measured costs only where a machine has them."""
    return {
        Cell(machine, nodes, collective, size, profile): network
        for machine, nodes, network in networks(machines)
        for profile in PROFILES
        if profile == "occupy" or network.topology.measured is not None
        for collective in collectives
        for size in sizes
    }


def sample_of(cells: Sequence[Cell]) -> list[Cell]:
    """Return the fixed sample: by their hashes, so that other cells hardly change it."""
    return sorted(cells, key=lambda cell: sha256(cell.key.encode()).digest())[:SAMPLE]


def row_of(cell: Cell, network: LogicalTopology, seconds: float = SECONDS) -> Row:
    """Run one cell for so many seconds."""
    request = Request(
        network, cell.collective, parse_size(cell.size), target=Target(instances=None),
        measured=cell.profile == "measured", time_limit=seconds,
    )  # fmt: skip
    began = time.monotonic()
    try:
        found = synthesize(request)
    except (NoScheduleError, LoweringError, InputError) as error:
        return Row(None, 0, "-", str(error).partition("\n")[0], time.monotonic() - began)
    bound = found.bound
    return Row(found.time, bound.time, bound.kind, found.result.engine, time.monotonic() - began)


def row_apart(cell: Cell, seconds: float = SECONDS) -> Row:
    """Run one cell in a process that ran no other: what those leave in memory slows searches."""
    networks_of = {nodes: network for _, nodes, network in networks([cell.machine])}
    warm_up()
    return row_of(cell, networks_of[cell.nodes], seconds)


def gaps_line(name: str, rows: Sequence[Row]) -> str | None:
    """Return a row of a distribution; None where no row has a gap."""
    gaps = sorted(row.gap for row in rows if row.gap is not None)
    if not gaps:
        return None
    near = sum(gap <= 0.05 for gap in gaps) / len(gaps)
    ninth = gaps[min(len(gaps) - 1, 9 * len(gaps) // 10)]
    shares = (f"{gap:.1%}" for gap in (median(gaps), ninth, gaps[-1], near))
    return text_of((name, str(len(gaps)), *shares))


COLUMNS = ("cells", "number", "median gap", "ninth decile", "worst", "within 5 %")


def distribution(rows: Mapping[Cell, Row]) -> list[str]:
    """Return the lines of the distribution: all, by profile, size, collective and machine."""
    parts: Sequence[Callable[[Cell], str]] = (
        lambda _: "all", lambda cell: cell.profile, lambda cell: cell.size,
        lambda cell: cell.collective, lambda cell: f"{cell.machine} x {cell.nodes}",
    )  # fmt: skip
    lines = [text_of(COLUMNS), f"|{'---|' * len(COLUMNS)}"]
    for part in parts:
        for name in dict.fromkeys(map(part, rows)):
            line = gaps_line(name, [row for cell, row in rows.items() if part(cell) == name])
            lines += [] if line is None else [line]
    return lines


def cells_text(cell: Cell, row: Row) -> str:
    """Return the row of the table for a cell."""
    times = ("-", "-") if row.time is None else (f"{row.time / 1e6:.2f}", f"{row.bound / 1e6:.2f}")
    gap = "-" if row.gap is None else f"{row.gap:.1%}"
    return text_of((
        f"{cell.machine} x {cell.nodes}", cell.collective, cell.size, cell.profile, *times,
        row.kind, gap, row.engine, f"{row.seconds:.0f}",
    ))  # fmt: skip


TABLE = (
    "machine", "collective", "size", "profile", "us", "bound us", "kind", "gap", "engine", "seconds"
)  # fmt: skip


def page(rows: Mapping[Cell, Row], left: int, seconds: float = SECONDS) -> str:
    """Return the section of the page; `left` cells are asked for and not run yet."""
    table = [text_of(TABLE), f"|{'---|' * len(TABLE)}"]
    table += [cells_text(cell, row) for cell, row in rows.items()]
    told = f"{len(rows)} cells, {left} left to run."
    lines = [HEAD.format(seconds=seconds), *distribution(rows), "", told, "", *table, ""]
    return "\n".join(lines)


def read_rows(file: Path | None) -> dict[Cell, Row]:
    """Return the cells that earlier runs kept."""
    if file is None or not file.is_file():
        return {}
    kept = json.loads(file.read_text())
    return {Cell(*cell): Row(**row) for cell, row in kept}


def write_rows(file: Path, rows: Mapping[Cell, Row]) -> None:
    """Keep cells for later runs; a run that is ended meanwhile leaves those of before."""
    kept = [(cell, asdict(row)) for cell, row in rows.items()]
    beside = file.with_suffix(".new")
    beside.write_text(json.dumps(kept))
    beside.replace(file)


def main() -> None:
    """Run cells, print them and how their gaps are distributed, keep and write them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name, known, told in (
        ("--machines", shipped_topologies(), "shipped ones"),
        ("--collectives", COLLECTIVES, "of these"),
        ("--sizes", SIZES, "of these"),
        ("--profiles", PROFILES, "of these"),
        ("--nodes", ("1", "2"), "servers"),
    ):
        parser.add_argument(name, type=listed(known), default=[*known], help=told)
    parser.add_argument("--sample", action="store_true", help=f"the {SAMPLE} cells of the sample")
    parser.add_argument("--time-limit", type=float, default=SECONDS, help="seconds for a cell")
    parser.add_argument("--results", type=Path, help="a file that keeps cells between runs")
    parser.add_argument("--write", type=Path, help="the page that gets the table")
    asked = parser.parse_args()
    wanted = [
        cell
        for cell in cells_of(asked.machines, asked.collectives, asked.sizes)
        if cell.profile in asked.profiles and str(cell.nodes) in asked.nodes
    ]
    wanted = sample_of(wanted) if asked.sample else wanted
    if not wanted:
        parser.error("no cell is left")
    kept = read_rows(asked.results)
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
        for cell in wanted:
            if cell not in kept:
                kept[cell] = pool.submit(row_apart, cell, asked.time_limit).result()
                if asked.results:
                    write_rows(asked.results, kept)
            print(cells_text(cell, kept[cell]), flush=True)
    rows = {cell: kept[cell] for cell in wanted}
    print("", *distribution(rows), sep="\n")
    if asked.write:
        # Cells that were kept before stay in the table.
        replace_section(asked.write, "grid", page(kept, 0, asked.time_limit))


if __name__ == "__main__":
    main()

"""Times that others published, and ours of the same network, collective and size beside them.

What ``benchmarks.rerun`` and ``benchmarks.teccl`` share: both need a folder with ``topologies``
(TE-CCL's machines as plain graphs: ``NDv2_2chassis.json``, ``NDv2_4chassis.json``,
``DGX2_2chassis.json``) and ``targets`` (the tables). Every row is one call of
``taccl.apps.synthesize`` with engine ``auto``.
"""

import csv
import re
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path

from taccl.apps import Lowering, Request, Synthesis, Target, load_network, synthesize
from taccl.apps.inputs import asked_collective
from taccl.bounds import any_bounds, best
from taccl.errors import ScheduleError, TacclError, TacclWarning
from taccl.imports import ImportOptions, import_topology
from taccl.msccl.interpret import judge
from taccl.msccl.xml import read_xml, write_xml
from taccl.topology.graph import Topology, whole
from taccl.units import Time, parse_size

KINDS = {"AllGather": "allgather", "AlltoAll": "alltoall"}
"""A collective in the tables to its name here."""

PS_PER_US = 10**6


@dataclass(frozen=True)
class Row:
    """What is to be done, and how long a published schedule takes.

    Parameters
    ----------
    machine
        A file of ``topologies``, without its suffix.
    collective
        A name of KINDS' values.
    label
        The published size, as text: ``64KB``.
    size
        Bytes of the buffer that nccl-tests counts.
    theirs
        Picoseconds; None where they have no schedule.
    mode
        Their solver's settings, where there are several.
    """

    machine: str
    collective: str
    label: str
    size: int
    theirs: Time | None
    mode: str = ""

    @property
    def name(self) -> str:
        """What tables call it."""
        return f"{self.machine} {self.collective} {self.label} {self.mode}".strip()


@dataclass(frozen=True)
class Ours:
    """What was found for a row.

    Parameters
    ----------
    makespan
        Picoseconds of the verified schedule; None: nothing was found.
    bound
        Picoseconds that no algorithm can beat.
    seconds
        Wall clock, of everything from the topology file to the program's text read back.
    engine, chunks
        Who found it, in how many chunks a rank (or a pair).
    batches
        Whether chunks travel together.
    replay
        Picoseconds of the program, at the largest size of whole elements, or the smallest there is;
        None without one.
    problem
        Why nothing was found.
    """

    makespan: Time | None
    bound: Time
    seconds: float
    engine: str = "-"
    chunks: int = 0
    batches: bool = False
    replay: Time | None = None
    problem: str = ""

    @property
    def share(self) -> float | None:
        """Bound over makespan: 1 where the makespan is proved to be optimal."""
        return self.bound / self.makespan if self.makespan else None


def picoseconds(text: str) -> Time | None:
    """Return published microseconds; None for an empty field."""
    return int(Decimal(text) * PS_PER_US) if text else None


def records(path: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of a table, comma- or tab-separated by its suffix."""
    with path.open(newline="") as lines:
        yield from csv.DictReader(lines, delimiter="\t" if path.suffix == ".tsv" else ",")


def selected(rows: Sequence[Row], pattern: str) -> list[Row]:
    """Return the rows whose name a regular expression matches somewhere."""
    return [row for row in rows if re.search(pattern, row.name, re.IGNORECASE)]


@cache
def network(data: Path, machine: str, rule: str) -> Topology:
    """Return a machine of ``topologies`` under an alpha rule."""
    path = data / "topologies" / f"{machine}.json"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TacclWarning)  # Notes that say where a file is from.
        return import_topology(str(path), "graph", ImportOptions()).with_alpha_rule(rule)


def warm_up() -> None:
    """Have the kernels compiled, which happens once on a machine and is no part of a row's time."""
    for collective in KINDS.values():
        synthesize(Request(load_network("ring:4"), collective, 1024, time_limit=1.0))


def solve(data: Path, row: Row, rule: str, runtime: str | None, limit: float) -> Ours:
    """Return what engine ``auto`` finds for a row, verified; with a runtime also as XML.

    The search is for the least makespan, which is what others publish. The program is made of its
    schedule, written, read back and judged once more, as ``taccl verify`` does.

    Parameters
    ----------
    rule
        ``occupy`` or ``delay``.
    runtime
        Whose program is wanted; None: a schedule is enough.
    limit
        Seconds for the search.
    """
    topology = network(data, row.machine, rule)
    floor = best(any_bounds(whole(topology), asked_collective(row.collective, topology), row.size))
    began = time.monotonic()
    request = Request(whole(topology), row.collective, row.size, target=None, time_limit=limit)
    try:
        found = synthesize(request)
        replay = None if runtime is None else _replay_of_file(found, row.size, runtime)
    except TacclError as error:
        return Ours(None, floor.time, time.monotonic() - began, problem=str(error))
    schedule = found.schedule
    return Ours(
        schedule.makespan, floor.time, time.monotonic() - began, found.result.engine,
        schedule.collective.chunks_per_rank, bool(schedule.batches), replay,
    )  # fmt: skip


def _replay_of_file(found: Synthesis, size: int, runtime: str) -> Time:
    """Return what the program of a schedule takes, after its file was judged.

    Raises
    ------
    LoweringError
        When no program fits the runtime.
    ScheduleError
        When a judge objects.
    """
    target, chunks = Target(runtime), found.schedule.collective.chunks_in_size
    whole_size = target.whole_size(size, chunks) or target.divisor(chunks)
    lowering = Lowering(found.schedule, target, whole_size, "published")
    program = read_xml(write_xml(lowering.proved(), runtime))
    findings = judge(program, runtime)
    if findings:
        raise ScheduleError(f"the file of {program.name}", findings)
    return lowering.best[1]


def size_of(label: str) -> int:
    """Return the bytes of a published size: K, M and G are powers of ten."""
    return parse_size(label)


def us(value: Time | None) -> str:
    """Return picoseconds in microseconds with four digits at least, or a dash."""
    if value is None:
        return "-"
    number = value / PS_PER_US
    return f"{number:.{max(0, 4 - len(str(int(number))))}f}"


def ratio_text(value: float | None) -> str:
    """Return a ratio with three digits after the point, or a dash."""
    return "-" if value is None else f"{value:.3f}"


def cells_of(row: Row, ours: Ours, verdict: str) -> str:
    """Return the row of a table in Markdown; see TABLE_HEAD."""
    over = ours.makespan / row.theirs if ours.makespan and row.theirs else None
    found = f"{ours.chunks}{' batched' if ours.batches else ''}" if ours.makespan else "-"
    cells = [
        row.machine, row.collective, row.label, row.mode, us(row.theirs), us(ours.makespan),
        us(ours.bound), ratio_text(over), ratio_text(ours.share), us(ours.replay), ours.engine,
        found, f"{ours.seconds:.1f}", verdict,
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


TABLE_HEAD = """
| machine | collective | size | mode | theirs us | ours us | bound us | ours / theirs \
| bound / ours | replay us | engine | k | seconds | |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|
"""

"""Measured costs of a machine: how far off they are, and how they are fitted to measured times.

A file of measurements names its source, its machine, and runs: a collective, what ran, and the time
at each size. Where what ran is known (NCCL's rings, trees and pairs, or MSCCL files), the same is
replayed on the topology with the costs in question. Of several programs that may have run, the
fastest counts, as it is NCCL's and MSCCL's aim to choose that.

From times that nccl-tests measured, what programs cost is fitted from what was known before, within
bounds: least squares on the logarithm of the ratio of replayed and measured time, of which large
ones count less (soft L1), and on how far each cost is from its prior, in units of how sure that is.
So a cost that no row tells stays what it was, and more costs than rows do no harm, but are told.
Each file is a table; how far off it is when the costs are fitted to the other files alone is told.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from functools import partial
from itertools import combinations
from pathlib import Path
from statistics import median, quantiles
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, StrictInt, StrictStr

from taccl.apps.inputs import MachineOptions, load_machine, read_program
from taccl.collectives import build_collective
from taccl.errors import InputError, ProgramError
from taccl.files import FileModel, fit_model, read_document, shown
from taccl.files.model import Name
from taccl.files.read import read_bytes
from taccl.imports.nccl_tests import Measured, read_runs
from taccl.lowering.plans import FanOptions, PlanOptions, fan_plan, plan_of
from taccl.model.problem import problem_of
from taccl.model.schedule import Schedule, timed_anew
from taccl.msccl import parser
from taccl.msccl.program import Program
from taccl.mscclpp.plan import Plan
from taccl.mscclpp.structure import counted_chunks
from taccl.replay.compile import Columns
from taccl.replay.cost import charged_network, model_of, of_plans
from taccl.replay.plans import protocol_of, replay_plan
from taccl.replay.timing import Timing
from taccl.report.text import aligned, one_line
from taccl.synth.templates.classical import classical_schedules
from taccl.synth.templates.in_network import IN_NETWORK
from taccl.synth.templates.nccl_kernels import KERNELS, all_pairs_program, exchange_program
from taccl.topology.core_form import topology_document
from taccl.topology.file import (
    document_of,
    document_text,
    load_topology,
    shipped_file,
    shipped_names,
    topology_from_document,
)
from taccl.topology.graph import ProgramCosts, Topology
from taccl.units import PS_PER_US, Time, ceil_time, counted, format_size, format_time, microseconds

FOLDER = "measurements"

Protocol = Literal["LL", "LL128", "Simple"]

PROTOCOLS: tuple[Protocol, ...] = ("LL", "LL128", "Simple")


WORD = 16
"""Bytes that a thread copies at once where both places are as far from a multiple of them; else it
copies byte by byte (NCCL's ``common_kernel.h``, of AllGather, whose elements are bytes)."""

CHANNELS_A_PEER = 4
"""Threadblocks for each peer of MSCCL++'s kernels."""

SHARP_CHUNKS = 16
"""Chunks a rank, so that the rounds of a pipeline can be many."""

RUNTIME_KERNELS = {"nccl": ("ring", "tree"), "rccl": ("ring", "tree", "all-pairs")}
"""Kernels of which a runtime runs the fastest, or what its authors took for it."""


RUN_BY = ("executor", "msccl")
"""Runtimes that may have run a file, the likelier first: they read ``maxBytes`` differently."""


class RunRecord(FileModel):
    """What ran, and what it took."""

    collective: Annotated[Name, Field(examples=["allreduce"])]
    what: Annotated[StrictStr, Field(min_length=1, max_length=500, examples=["NCCL 2.18.3"])]
    place: Literal["in", "out"]
    algorithm: Literal[
        "ring", "tree", "nccl", "rccl", "pairs", "nvls", "packets", "puts", "sharp",
        "nccl-nvls", "nvls-tree", "files", "unknown",
    ]  # fmt: skip
    channels: Annotated[StrictInt, Field(ge=1, le=64, examples=[16])] = 1
    nodes: Annotated[StrictInt | None, Field(ge=1, le=1024, examples=[2])] = None
    protocols: list[Protocol] = Field(default_factory=lambda: [*PROTOCOLS])
    files: list[Name] = Field(default_factory=list)
    times: Annotated[
        dict[int, float], Field(max_length=200, examples=["{1024: 10.2, 1048576: 31.9}"])
    ]


class MeasurementsFile(FileModel):
    """Measured times of collectives on one machine; bytes to microseconds."""

    taccl: Annotated[Literal["measurements/1"], Field(examples=["measurements/1"])]
    name: Annotated[Name, Field(examples=["h100-ndv5"])]
    source: Annotated[StrictStr, Field(min_length=1, max_length=1000, examples=["nccl-tests"])]
    machine: Annotated[StrictStr, Field(min_length=1, max_length=500, examples=["8 x H100"])]
    costs: Annotated[Name, Field(examples=["dgx-h100"])]
    topology: Annotated[str | dict[str, Any], Field(examples=["dgx-h100"])]
    runs: Annotated[list[RunRecord], Field(min_length=1, max_length=200)]


@dataclass(frozen=True, eq=False)
class Run:
    """One run of a table, ready to be replayed.

    `table`, `costs`: name of its table, and of the topology whose costs are its machine's.
    `record`: what ran, and its times.
    `topology`: where.
    `programs`: what may have run; empty where that is not known, or its files are not here. A
    schedule stands for what switches do alone, and has the launch of its topology.
    `columns`: of these programs, by number, as far as they were replayed.
    `known`: the best time and its program's number by costs that matter and size, as far as it was
    replayed; shared, as ``columns`` are, by runs of the same in place and out of place.
    """

    table: str
    costs: str
    record: RunRecord
    topology: Topology
    programs: tuple[Program | Plan | Schedule, ...]
    columns: dict[int, Columns] = field(default_factory=dict)
    known: "dict[tuple[object, ...], tuple[Time | None, int | None]]" = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """How many took part."""
        return self.topology.num_ranks

    @property
    def kind(self) -> str:
        """Whose costs it has: ``xml``, programs, or ``mscclpp``, plans and what switches do."""
        return "xml" if all(isinstance(one, Program) for one in self.programs) else "mscclpp"


@dataclass(frozen=True, slots=True)
class Row:
    """A measured size, and the replay of it.

    `run`: of which it is.
    `size`: bytes of the counted buffer.
    `measured`, `replayed`: picoseconds; None where no program can run at this size.
    `program`: the name of the fastest.
    """

    run: Run
    size: int
    measured: Time
    replayed: Time | None
    program: str

    @property
    def error(self) -> float:
        """By what part the replay is longer than what was measured."""
        return (self.replayed or 0) / self.measured - 1


def shipped_tables() -> tuple[str, ...]:
    """Return the names of the shipped tables."""
    return shipped_names(FOLDER)


def read_table(spec: str, files: Path | None = None) -> tuple[MeasurementsFile, list[Run]]:
    """Return a table and its runs.

    `spec`: a path, or the name of a shipped table.
    `files`: folder of the MSCCL files that runs name.

    Raises InputError with file, field, what was found, and the fix.
    """
    document = read_document(shipped_file(spec, FOLDER, "table"))
    table = fit_model(document, MeasurementsFile)
    places: dict[int | None, Topology] = {}
    runs: list[Run] = []
    for number, record in enumerate(table.runs):
        if any(size < 1 or not 0 < time < 1e9 for size, time in record.times.items()):
            raise document.error(
                "should be bytes: microseconds, all above 0",
                ("runs", number, "times"), "write {1024: 10.2}",
            )  # fmt: skip
        if record.nodes not in places:
            places[record.nodes] = (
                load_topology(table.topology, nodes=record.nodes)
                if isinstance(table.topology, str)
                else topology_from_document(table.topology, document.file)
            )
        topology = places[record.nodes]
        same = {"what": "", "place": "in", "times": {}}
        asked = record.model_copy(update=same)
        like = next((run for run in runs if run.record.model_copy(update=same) == asked), None)
        if like is not None:
            runs.append(replace(like, record=record))
            continue
        programs = programs_of(record, topology, files)
        runs.append(Run(table.name, table.costs, record, topology, programs))
    return table, runs


def _on_switches(topology: Topology, collective: str) -> Plan:
    """Return MSCCL++'s kernel without copies: each rank reads a part of the sum, and stores it."""
    cut = build_collective(collective, topology.num_ranks, 1)
    problem = problem_of(topology, cut, topology.num_ranks << 10)
    schedule, *_ = classical_schedules(problem, "nvls", batch=True)
    return fan_plan(schedule, FanOptions("nvls", in_place=True, blocks=8))


def _packets(topology: Topology, collective: str) -> Plan:
    """Return MSCCL++'s AllReduce of small sizes: parts to all in packets, and their sums."""
    del collective
    program = all_pairs_program(topology.num_ranks, CHANNELS_A_PEER)
    return plan_of(program, PlanOptions(tuple(topology.server_of), in_place=True, packets=True))


def _puts(topology: Topology, collective: str) -> Plan:
    """Return a plan of puts from all to all, and of sums between them."""
    make = exchange_program if collective == "alltoall" else all_pairs_program
    program = make(topology.num_ranks, CHANNELS_A_PEER, "Simple")
    servers, in_place = tuple(topology.server_of), collective != "alltoall"
    return plan_of(program, PlanOptions(servers, in_place))


def _rounds(name: str, topology: Topology, collective: str) -> Schedule:
    """Return NCCL's sums in servers, over rails as `name` does it, and copies, in many rounds."""
    cut = build_collective(collective, topology.num_ranks, SHARP_CHUNKS)
    problem = problem_of(topology, cut, 1 << 33)
    *_, deepest = IN_NETWORK[name](problem)
    return problem.timed(deepest)


PLANS: Mapping[str, Callable[[Topology, str], Plan | Schedule]] = {
    "nvls": _on_switches, "packets": _packets, "puts": _puts,
    "sharp": partial(_rounds, "nvls-sharp"), "nccl-nvls": partial(_rounds, "nvls"),
    "nvls-tree": partial(_rounds, "nvls-rail"),
}  # fmt: skip
"""What is no program of threadblocks with FIFOs, by algorithm."""


def programs_of(
    record: RunRecord, topology: Topology, files: Path | None
) -> tuple[Program | Plan | Schedule, ...]:
    """Return what may have run of a `record` on a `topology`; empty where it is not known.

    `files`: folder of the MSCCL files that it names.

    Raises InputError when one of these is no program.
    """
    if record.algorithm in PLANS:
        return (PLANS[record.algorithm](topology, record.collective),)
    names = RUNTIME_KERNELS.get(record.algorithm, (record.algorithm,))
    made = (
        KERNELS[name](topology, record.collective, record.channels, protocol)
        for name in names
        if name in KERNELS
        for protocol in record.protocols
    )
    found: list[Program | Plan | Schedule] = [one for one in made if one is not None]
    if record.algorithm == "files" and files is not None:
        for path in map(str, (files / name for name in record.files)):
            document = parser.read_document(read_bytes(Path(path)), file=path)
            read = (parser.parse(document, runtime, file=path).program for runtime in RUN_BY)
            program = next(filter(None, read), None)
            if program is None:
                raise InputError(f"{shown(path)} is no program", fix="give a folder of MSCCL files")
            found.append(program)
    return tuple(found)


_MODEL = replace(model_of("msccl"), measured=True)


class _Timer(NamedTuple):
    """How long something takes: `at` so many bytes, of which it takes whole `unit`s.

    `name`, `smallest` and `largest` are those of the program; so many bytes take `least` or more.
    """

    name: str
    unit: int
    smallest: int
    largest: int
    least: Callable[[int], float]
    at: Callable[[int], Time | None]


def _timer(run: Run, number: int, topology: Topology) -> _Timer:
    """Return how long the numbered program of a `run` takes with the costs of a `topology`."""
    program = run.programs[number]
    if isinstance(program, Program):
        timing = Timing(program, topology, _MODEL, route=True)
        if number not in run.columns:
            run.columns[number] = timing.columns
        # They do not depend on the costs that are tried.
        timing.columns = run.columns[number]
        return _Timer(
            program.name, program.chunks_per_loop * _MODEL.element_bytes, program.min_bytes,
            program.max_bytes, timing.least,
            lambda size: timing.at(size).time,
        )  # fmt: skip
    if isinstance(program, Plan):
        plan, unit = program, counted_chunks(program, program.ranks[0]) * program.alignment
        return _Timer(
            plan.name, unit, 0, 1 << 62, lambda _size: 0.0,
            lambda size: replay_plan(plan, topology, size, _MODEL).time,
        )  # fmt: skip
    schedule, launch = program, run.topology.local.launch
    network = charged_network(of_plans(topology), "NVLS")
    return _Timer(
        run.record.algorithm, schedule.collective.num_chunks, 0, 1 << 62, lambda _size: 0.0,
        lambda size: timed_anew(schedule, network, size).makespan + launch,
    )  # fmt: skip


def _near(size: int, timer: _Timer) -> int:
    """Return the nearest `size` that what is timed cuts into whole chunks."""
    return max(1, round(size / timer.unit)) * timer.unit


def _fastest(size: int, timers: Mapping[int, _Timer]) -> tuple[Time | None, int | None]:
    """Return the least picoseconds for so many bytes, and the number of what takes them."""
    best: Time | None = None
    number = None
    for each, timer in timers.items():
        if not timer.smallest <= size <= timer.largest or (
            best is not None and timer.least(_near(size, timer)) >= best
        ):
            continue
        taken = timer.at(_near(size, timer))
        if taken is not None and (best is None or taken < best):
            best, number = taken, each
    return best, number


def _bytewise(run: Run, number: int, size: int, costs: ProgramCosts) -> Time:
    """Return the picoseconds more that a `run`'s numbered program takes for copies at a `size`.

    A threadblock of a ring out of place copies its own chunk as it sends it: as fast, unless the
    places of the chunk are not as far from a whole word.
    """
    program, record = run.programs[number], run.record
    if (
        not isinstance(program, Program) or program.protocol != "Simple"
        or record.algorithm == "files" or size // run.ranks % WORD == 0
        or (record.collective, record.place) != ("allgather", "out")
    ):  # fmt: skip
        return 0
    slow = WORD * costs.protocols[program.protocol].block_beta
    return ceil_time(slow, Fraction(size, program.chunks_per_loop))


def replayed(run: Run, costs: ProgramCosts, least: int = 0, most: int = 1 << 62) -> Iterator[Row]:
    """Yield a row for every measured size of a `run` from `least` to `most` bytes.

    `costs` are those of its machine. Sizes that a program does not cut into whole chunks are
    replayed at the nearest that it does. What is run is chosen without knowing where buffers lie.
    """
    topology = replace(run.topology, measured=costs)
    timers = {number: _timer(run, number, topology) for number in range(len(run.programs))}
    timers = dict(sorted(timers.items(), key=lambda each: each[1].least(most)))
    matters, record = _that_matter(run, costs), run.record
    for size, time in sorted(record.times.items()):
        if not least <= size <= most:
            continue
        if (*matters, size) not in run.known:
            run.known[*matters, size] = _fastest(size, timers)
        best, number = run.known[*matters, size]
        if best is not None and number is not None:
            best += _bytewise(run, number, size, costs)
        name = "" if number is None else timers[number].name
        yield Row(run, size, round(time * PS_PER_US), best, name)


def _that_matter(run: Run, costs: ProgramCosts) -> tuple[object, ...]:
    """Return the `costs` that the times of a `run` depend on."""
    used = {one.protocol for one in run.programs if isinstance(one, Program)}
    if run.kind == "mscclpp":
        costs = costs.plans or costs
        used = set(costs.protocols)
    protocols = [costs.protocols[name] for name in sorted(used)]
    if run.topology.num_servers == 1:
        costs = replace(costs, across=Fraction(1))
        protocols = [replace(row, alpha_across=0, detour=Fraction(1)) for row in protocols]
    others = (each.name for each in fields(costs))
    return (
        *(getattr(costs, name) for name in others if name not in ("source", "protocols", "plans")),
        *protocols,
    )


EQUAL = 0.001
"""By what part measured times may differ that count as equal."""


def ordered_pairs(rows: Iterable[Row]) -> tuple[int, int]:
    """Return how many pairs of runs are replayed in the measured order, and how many there are.

    A pair is two runs of one collective at one size on the same number of ranks with the same
    costs; `rows` that were not replayed are in none, and what took equally long is none.
    """
    same: dict[tuple[str, int, str, int], list[Row]] = {}
    for row in rows:
        if row.replayed is not None:
            key = (row.run.costs, row.run.ranks, row.run.record.collective, row.size)
            same.setdefault(key, []).append(row)
    right = total = 0
    for group in same.values():
        for one, other in combinations(group, 2):
            apart = abs(one.measured - other.measured)
            if one.run.record.what == other.run.record.what or apart <= EQUAL * one.measured:
                continue
            total += 1
            faster = (one.replayed or 0) < (other.replayed or 0)
            right += faster == (one.measured < other.measured)
    return right, total


def summed_up(errors: Sequence[float]) -> Mapping[str, float]:
    """Return median and ninth decile of the absolute `errors`, parts of what was measured."""
    sizes = sorted(map(abs, errors))
    ninth = quantiles(sizes, n=10, method="inclusive")[8] if len(sizes) > 1 else sizes[0]
    return {"median": median(sizes), "ninth decile": ninth}


@dataclass(frozen=True, eq=False)
class Compared:
    """A table beside its replay.

    `table`: as its file has it.
    `rows`: its sizes, of runs of which it is known what ran; empty without costs.
    `untold`: runs that can't be replayed, and why.
    """

    table: MeasurementsFile
    rows: tuple[Row, ...]
    untold: tuple[tuple[RunRecord, str], ...]


def compare_tables(
    names: Sequence[str], topology: str | None = None, files: Path | None = None
) -> tuple[Compared, ...]:
    """Return tables beside the replay with the measured costs of their machines.

    `names`: paths, or names of shipped tables; none: all of these.
    `topology`: whose costs; None: those of the shipped topology that a table names.
    `files`: folder of the MSCCL files that runs name.

    Raises InputError when a table can't be read, or ``topology`` has no measured costs.
    """
    asked = None if topology is None else load_topology(topology).measured
    if topology is not None and asked is None:
        raise InputError(
            f"{shown(topology)} has no measured costs", field="--topology",
            fix="add measured: to the file, or give one that has it",
        )  # fmt: skip
    known: dict[str, ProgramCosts | None] = {}
    found = []
    for name in names or shipped_tables():
        table, runs = read_table(name, files)
        if table.costs not in known:
            shipped = table.costs in shipped_names("topologies")
            known[table.costs] = load_topology(table.costs).measured if shipped else None
        costs = asked or known[table.costs]
        rows: list[Row] = []
        untold = []
        for run in runs:
            if costs is not None and run.programs:
                rows += replayed(run, costs)
                continue
            why = "what ran is not known as a program or plan"
            if run.record.algorithm == "files":
                why = f"needs {', '.join(run.record.files)} (--files)"
            elif run.record.algorithm != "unknown":
                why = f"{table.costs} ships no measured costs (--topology)"
            untold.append((run.record, why))
        found.append(Compared(table, tuple(rows), tuple(untold)))
    return tuple(found)


def measured_text(found: Sequence[Compared], *, detailed: bool) -> str:
    """Return what was `found` as text: a line for each table, or, `detailed`, each size."""
    lines: list[str] = []
    for each in found:
        table = each.table
        rows = [row for row in each.rows if row.replayed is not None]
        lines.append(f"{table.name}: {one_line(table.machine)}")
        if detailed:
            lines += [f"  source: {one_line(table.source)}"]
        if rows:
            told = summed_up([row.error for row in rows])
            lines.append(
                f"  {counted(len(rows), 'size')}, error {told['median']:.1%} in the median,"
                f" {told['ninth decile']:.1%} at the ninth decile"
            )
        for run in dict.fromkeys(row.run for row in rows) if detailed else ():
            record = run.record
            place = "in place" if record.place == "in" else "out of place"
            lines.append(f"  {record.collective}, {place}, {one_line(record.what)}")
            cells = [
                (format_size(row.size), format_time(row.measured), format_time(row.replayed or 0),
                 f"{row.error:+.0%}", row.program)
                for row in rows if row.run is run
            ]  # fmt: skip
            lines += (
                "    " + line
                for line in aligned([("size", "measured", "replayed", "error", "as"), *cells])
            )
        lines += [
            f"  not replayed: {record.collective}, {one_line(record.what)}: {why}"
            for record, why in each.untold if detailed
        ]  # fmt: skip
    right, pairs = ordered_pairs(row for each in found for row in each.rows)
    if pairs:
        lines.append(f"order: {right} of {pairs} pairs of runs are replayed in the measured order")
    return "\n".join(lines)


def measured_json(found: Sequence[Compared]) -> dict[str, object]:
    """Return what was `found` as a value for JSON; times in microseconds."""
    right, pairs = ordered_pairs(row for each in found for row in each.rows)
    return {
        "tables": [
            {
                "name": each.table.name,
                "source": each.table.source,
                "machine": each.table.machine,
                "rows": [
                    {
                        "collective": row.run.record.collective,
                        "ranks": row.run.ranks,
                        "what": row.run.record.what,
                        "place": row.run.record.place,
                        "bytes": row.size,
                        "measured_us": microseconds(row.measured),
                        "replayed_us": None if row.replayed is None else microseconds(row.replayed),
                        "program": row.program,
                    }
                    for row in each.rows
                ],
                "not_replayed": [
                    {"collective": record.collective, "what": record.what, "why": why}
                    for record, why in each.untold
                ],
            }
            for each in found
        ],
        "pairs": {"in_order": right, "all": pairs},
    }


TRUSTED = 0.04
"""Relative error of a measured time that counts as one."""

STEP = 0.02
"""Change of a logarithm from which slopes are taken: times are whole picoseconds."""

ORIGIN = 10.0
"""Where the solver has the logarithm 0: its steps are parts of its numbers, never of 0."""

LEAST_WIRE = {"LL": 2.0, "LL128": 128 / 120, "NVLS": 1.0}
"""Bytes on the wire for each byte of data: flags beside the words alone; one on switches."""

FAR = 4.0
"""How far the logarithm of a cost may move."""

MOST_CALLS = 12

ROWS_FOR_EACH = 3
"""Measured rows for each cost that is moved, below which a fit is not called a good one."""

Vector = NDArray[np.float64]


class Unknown(NamedTuple):
    """One cost that is fitted, as a factor of what was known of it.

    `name`: what results call it.
    `get`, `scale`: its value in costs, above 0, and costs in which it is so many times as much.
    `sure`: how far the logarithm of the factor may be from 0, as far as was known before.
    `most`, `least`: the largest and the smallest value.
    """

    name: str
    get: Callable[[ProgramCosts], float]
    scale: Callable[[ProgramCosts, float], ProgramCosts]
    sure: float
    most: float = math.inf
    least: float = 0.0


def _of_protocol(
    protocol: str, field: str, unit: float, sure: float, least: float = 0.0
) -> Unknown:
    def scale(costs: ProgramCosts, factor: float) -> ProgramCosts:
        old = costs.protocols[protocol]
        changed: Any = {field: _number(field, float(getattr(old, field)) * factor)}
        return replace(costs, protocols={**costs.protocols, protocol: replace(old, **changed)})

    name = f"{protocol} {field.replace('_', ' ')}"
    return Unknown(
        name, lambda costs: float(getattr(costs.protocols[protocol], field)) / unit, scale, sure,
        least=least,
    )  # fmt: skip


def _of_machine(field: str, unit: float, sure: float, most: float = math.inf) -> Unknown:
    def scale(costs: ProgramCosts, factor: float) -> ProgramCosts:
        changed: Any = {field: _number(field, float(getattr(costs, field)) * factor)}
        return replace(costs, **changed)

    name = field.replace("_", " ")
    return Unknown(name, lambda costs: float(getattr(costs, field)) / unit, scale, sure, most)


def _number(field: str, value: float) -> int | Fraction:
    """Return a value as costs have it: times whole, factors and betas as fractions."""
    if field in ("launch", "alpha", "alpha_across", "flag"):
        return round(value)
    return Fraction(value).limit_denominator(1_000_000)


def unknowns(costs: ProgramCosts, runs: Sequence[Run]) -> tuple[Unknown, ...]:
    """Return the costs that may be fitted: those of `costs` that are not 0, and `runs` can have.

    The `runs` are all of programs, or all of plans, whose costs these are then: they put their
    bytes on the same wires as programs, of which as much is left for data.
    """
    used = {
        one.protocol if isinstance(one, Program) else protocol_of(one)
        for run in runs for one in run.programs if not isinstance(one, Schedule)
    }  # fmt: skip
    across = any(run.topology.num_servers > 1 for run in runs)
    parts = ["inside", "across"] * any(run.kind == "xml" for run in runs)
    parts += ["several"] * (costs.several < 1)
    found = [_of_machine(part, 1, 0.15, 1.0) for part in parts]
    found += [
        _of_machine("copy_beta", 1, 1.0),
        _of_machine("reduce_beta", 1, 1.0),
        _of_machine("flag", PS_PER_US, 1.0),
    ]
    for protocol in sorted(used & costs.protocols.keys()):
        found += [
            _of_protocol(protocol, field, PS_PER_US, 0.7)
            for field in ("launch", "alpha", "alpha_across")
        ]
        found.append(_of_protocol(protocol, "block_beta", 1, 0.7))
        if protocol in LEAST_WIRE:
            found.append(_of_protocol(protocol, "wire", 1, 0.15, LEAST_WIRE[protocol]))
    return tuple(
        each for each in found if each.get(costs) > 0 and (across or "across" not in each.name)
    )


@dataclass(frozen=True, eq=False)
class Fit:
    """Costs fitted to rows.

    `costs`: the fitted ones.
    `rows`: how many rows they were fitted to.
    `moved`: by cost: its value, and by how much of what was not known before the rows moved it.
    `free`: what was fitted, in the order of ``moved``.
    """

    costs: ProgramCosts
    rows: int
    moved: Mapping[str, tuple[float, float]]
    free: tuple[Unknown, ...] = ()

    @property
    def told(self) -> tuple[str, ...]:
        """The costs that the rows tell: those that they moved by half of what was not known."""
        return tuple(name for name, (_, far) in self.moved.items() if abs(far) > 0.5)

    @property
    def supported(self) -> bool:
        """Whether there are enough rows for the costs that they moved."""
        return self.rows >= ROWS_FOR_EACH * len(self.told)


def fit(
    runs: Sequence[Run],
    prior: ProgramCosts,
    keep: Callable[[int], bool] | None = None,
    free: Callable[[str], bool] | None = None,
) -> Fit:
    """Return the costs that come nearest to the measured times of `runs`.

    `runs`: of one machine.
    `prior`: what was known before.
    `keep`: which rows of a run are fitted to, by their number from the smallest size on; None: all.
    `free`: tells by its name whether a cost is fitted; None: all that can be.
    """
    from scipy.optimize import least_squares

    chosen = []
    for run in runs:
        times = sorted(run.record.times.items())
        kept = {s: t for number, (s, t) in enumerate(times) if keep is None or keep(number)}
        if kept and run.programs:
            record = run.record.model_copy(update={"times": kept})
            chosen.append(replace(run, record=record))
    moving = [each for each in unknowns(prior, chosen) if free is None or free(each.name)]
    known = [each.get(prior) for each in moving]
    sure = np.array([each.sure for each in moving])
    rows = 0

    def costs_at(values: Vector) -> ProgramCosts:
        costs = prior
        for each, factor in zip(moving, np.exp(values - ORIGIN).tolist(), strict=True):
            costs = each.scale(costs, factor)
        return costs

    def residuals(values: Vector) -> Vector:
        nonlocal rows
        found = [row for run in chosen for row in replayed(run, costs_at(values))]
        rows = sum(row.replayed is not None for row in found)
        off = [math.log(row.replayed / row.measured) for row in found if row.replayed]
        return np.concatenate([np.array(off) / TRUSTED, (values - ORIGIN) / sure])

    limits = [
        (each.least / value, each.most / value) for each, value in zip(moving, known, strict=True)
    ]
    low, high = np.clip(np.log(np.maximum(np.array(limits), 1e-300)), -FAR, FAR).T
    # A threadblock that is slow, and one whose bytes are many on the wire, look alike from either.
    faster = -sure * np.array([each.name.endswith("block beta") for each in moving])
    solved = min(
        (
            least_squares(
                residuals, np.clip(start, low + 1e-3, high - 1e-3) + ORIGIN,
                bounds=(low + ORIGIN, high + ORIGIN),
                loss="soft_l1", diff_step=STEP / ORIGIN, max_nfev=MOST_CALLS,
            )
            for start in (np.zeros(len(moving)), faster)
        ),
        key=lambda found: found.cost,
    )  # fmt: skip
    costs = costs_at(solved.x)
    moved = {
        each.name: (each.get(costs), float(far))
        for each, far in zip(moving, (solved.x - ORIGIN) / sure, strict=True)
    }
    return Fit(costs, rows, moved, tuple(moving))


KERNELS_KNOWN = ("nccl", "ring", "tree", "pairs")
"""What may have run where no program is given; ``nccl``: the faster one of ring and tree."""

PRIOR_OF = MappingProxyType({
    "v100": "dgx2", "a100": "dgx-a100", "h100": "dgx-h100", "h200": "dgx-h100", "h800": "dgx-h100",
    "b200": "gb200-nvl72", "gb200": "gb200-nvl72", "mi250": "mi250", "mi300x": "mi300x",
})  # fmt: skip
"""The shipped machine whose measured costs are the start for a topology that has none, by GPU."""


@dataclass(frozen=True, slots=True)
class ProfileQuestion:
    """What is calibrated, from what: a topology, and outputs of nccl-tests, `measured` on it.

    `topology`, `nodes`, `fabric`: the machine, as the command line names it.
    `collective`: what was measured, where the files do not say it.
    `program`: the MSCCL XML file that ran; None: NCCL's kernel `algorithm`, of KERNELS_KNOWN, on so
    many `channels`.
    `prior`: a topology whose measured costs are the start; None: its own, else those of its GPU.
    """

    topology: str
    measured: tuple[str, ...]
    nodes: int | None = None
    fabric: str | None = None
    collective: str | None = None
    program: str | None = None
    algorithm: str = "nccl"
    channels: int = 16
    prior: str | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """A file of the fit: errors of its rows `before` and `after` it, and `left` out of it.

    They are parts of what was measured; nothing is left out of a single table.
    """

    file: str
    before: tuple[float, ...]
    after: tuple[float, ...]
    left: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class ProfileCalibration:
    """The answer: the `fit` from `prior` costs, its `tables`, and the `text` of the new file."""

    topology: Topology
    prior: ProgramCosts
    fit: Fit
    tables: tuple[Table, ...]
    text: str


def calibrate_profile(question: ProfileQuestion) -> ProfileCalibration:
    """Fit the measured costs of a topology to measured times.

    Raises InputError when a file can't be used, or there is nothing to start from.
    """
    topology = load_machine(question.topology, MachineOptions(question.nodes, question.fabric))
    prior = _prior(question, topology)
    runs: list[Run] = []
    for name, measured in read_runs(
        question.measured, question.collective, topology.num_ranks
    ).items():
        for one in measured:
            runs += _runs_of(one, name, question, topology, prior)
    found = fit(runs, prior)
    files = list(dict.fromkeys(run.table for run in runs))
    tables = []
    for file in files:
        own = [run for run in runs if run.table == file]
        others = [run for run in runs if run.table != file]
        left = _errors(own, fit(others, prior).costs) if others else ()
        tables.append(Table(file, _errors(own, prior), _errors(own, found.costs), left))
    names = ", ".join(ascii(Path(file).name)[1:-1][:80] for file in question.measured[:4])
    untold = ", ".join(name for name in found.moved if name not in found.told)
    source = f"calibrated by taccl from {names}; {verdict(found)}; not told by them: {untold}"
    costs = replace(found.costs, source=source[:1000])
    known = dict(document_of(question.topology, question.nodes, question.fabric))
    fields = known or topology_document(topology)
    fields["measured"] = topology_document(replace(topology, measured=costs))["measured"]
    fields["name"] = f"{topology.name[:180]}-calibrated"
    made = ProfileCalibration(topology, prior, found, tuple(tables), "")
    return replace(made, text=document_text(fields, [f"{topology.name}, {verdict(found)}."]))


def _prior(question: ProfileQuestion, topology: Topology) -> ProgramCosts:
    name = question.prior or PRIOR_OF.get(topology.gpu or "")
    if question.prior is None and topology.measured is not None:
        return topology.measured
    costs = None if name is None else load_topology(name).measured
    if costs is None:
        raise InputError(
            f"{shown(name or topology.name)} has no measured costs to start from",
            field="--prior", fix="name a machine like it that has: --prior dgx-h100",
        )  # fmt: skip
    return costs


def _runs_of(
    measured: Measured, collective: str, question: ProfileQuestion, topology: Topology,
    prior: ProgramCosts,
) -> list[Run]:  # fmt: skip
    """Return what a file has in place and out of place."""
    found: list[Run] = []
    for place in ("in", "out"):
        groups = [
            (point.size, point.in_place if place == "in" else point.out_of_place)
            for point in measured.points
        ]
        times = {
            size: group.time / PS_PER_US for size, group in groups if group and not group.wrong
        }
        record = RunRecord(
            collective=collective, what=question.program or question.algorithm, place=place,
            algorithm=question.algorithm if question.program is None else "files",
            channels=question.channels, protocols=list(prior.protocols), times=times,
        )  # fmt: skip
        if found:
            found.append(replace(found[0], record=record))
        elif times:
            programs = (
                programs_of(record, topology, None)
                if question.program is None
                else (read_program(question.program),)
            )
            if not programs:
                raise InputError(
                    f"{question.algorithm} has no kernel for {collective}", field="--algorithm",
                    fix=f"use one of {', '.join(KERNELS_KNOWN)}, or --program FILE.xml",
                )  # fmt: skip
            found.append(Run(measured.file, topology.name, record, topology, programs))
    return [run for run in found if run.record.times]


def _errors(runs: Sequence[Run], costs: ProgramCosts) -> tuple[float, ...]:
    rows = [row for run in runs for row in replayed(run, costs) if row.replayed]
    if not rows:
        raise ProgramError(
            f"nothing that may have run takes the sizes of {runs[0].table}",
            fix="give the program that was run (--program), or the sizes that it serves",
        )
    return tuple(row.error for row in rows)


def verdict(found: Fit) -> str:
    """Return in a sentence whether the rows of a fit support it."""
    moved = found.told
    words = f"{counted(found.rows, 'row')} moved {counted(len(moved), 'cost')}"
    if found.supported:
        return f"supported: {words}"
    return (
        f"not supported: {words}, and at least {ROWS_FOR_EACH} rows for each are needed;"
        " measure more sizes and collectives"
    )


def profile_text(found: ProfileCalibration, output: str | None) -> str:
    """Return what is printed of what was `found`; `output` is the file that was written."""
    head = ("file", "rows", "error before", "after", "left out")
    rows = [
        (
            one_line(each.file),
            str(len(each.after)),
            *map(_told, (each.before, each.after, each.left)),
        )
        for each in found.tables
    ]
    changes = [
        (name, f"{unknown.get(found.prior):.4g}", f"{value:.4g}", f"{far:+.1f}")
        for unknown, (name, (value, far)) in zip(
            found.fit.free, found.fit.moved.items(), strict=True
        )
    ]
    lines = [
        f"{found.topology.name}, {found.topology.num_ranks} ranks: what programs cost (measured);"
        " errors are medians and ninth deciles",
        *aligned([head, *rows]),
        *aligned([("cost", "before", "after", "moved"), *changes]),
        verdict(found.fit),
    ]
    return "\n".join([*lines, *([f"wrote {output}"] if output is not None else [])])


def _told(errors: Sequence[float]) -> str:
    return "-" if not errors else ", ".join(f"{value:.1%}" for value in summed_up(errors).values())


def profile_json(found: ProfileCalibration, output: str | None) -> dict[str, object]:
    """Return what ``--json`` prints of what was `found`; `output` is the file that was written."""

    def told(errors: Sequence[float]) -> dict[str, float] | None:
        return (
            {key.replace(" ", "_"): value for key, value in summed_up(errors).items()}
            if errors
            else None
        )

    return {
        "topology": found.topology.name,
        "ranks": found.topology.num_ranks,
        "tables": [
            {
                "file": each.file, "rows": len(each.after), "error_before": told(each.before),
                "error_after": told(each.after), "error_left_out": told(each.left),
            }
            for each in found.tables
        ],
        "costs": {
            name: {"before": unknown.get(found.prior), "after": value, "moved": far}
            for unknown, (name, (value, far)) in zip(
                found.fit.free, found.fit.moved.items(), strict=True
            )
        },
        "rows": found.fit.rows,
        "supported": found.fit.supported,
        "verdict": verdict(found.fit),
        "output": output,
    }  # fmt: skip

"""The library as functions: what ``import taccl`` gives.

Each does what the command of its name does, with values in place of files and options: a topology
is loaded, an algorithm is found for it, judged, replayed, run and written. Sizes are bytes, or
texts such as ``"1MB"``, of the buffer that nccl-tests counts; times are integers, in picoseconds.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from taccl.apps.inputs import (
    MachineOptions,
    load_collective,
    load_machine,
    load_network,
    read_program,
)
from taccl.apps.outputs import write_outputs, xml_files
from taccl.apps.programs import Target
from taccl.apps.request import Request, Synthesis
from taccl.apps.running import SHARED_MEMORY, TCP, Asked, job_of, run_jobs
from taccl.apps.synthesis import synthesize as solve
from taccl.errors import InputError
from taccl.files import write_all_atomic
from taccl.msccl.interpret import judge
from taccl.msccl.program import Finding, Program
from taccl.replay.cost import is_measured, model_of
from taccl.replay.sweep import Row, sweep
from taccl.report.runs import RunRow
from taccl.topology.graph import LogicalTopology, Topology, whole
from taccl.units import parse_size

Some = Program | Synthesis | str | Path
"""A program, or what has one: what was found, or the path of an XML file."""


def load_topology(
    name: str, *, nodes: int | None = None, alpha_rule: str | None = None
) -> Topology:
    """Return a topology: a file, the name of a shipped one, or a short form as ``torus2d:4x4``.

    `name`: of it.
    `nodes`: servers; None: as many as the file says.
    `alpha_rule`: ``occupy`` or ``delay``; None: the file's.

    Raises InputError when there is none of that name, or it can't be used.
    """
    return load_machine(name, MachineOptions(nodes, alpha_rule=alpha_rule))


def synthesize(
    topology: Topology | str, collective: str, size: int | str = "1MB", *, nodes: int | None = None,
    sketch: str | None = None, engine: str = "auto", chunks: int | None = None,
    root: int | None = None, runtime: str | None = "portable", protocol: str = "auto",
    profile: str | None = None, time_limit: float = 60.0, seed: int = 0,
    report: Callable[[str], None] = lambda _line: None,
) -> Synthesis:  # fmt: skip
    """Return the best algorithm that is found for a collective on a topology, with its program.

    `topology`: what :func:`load_topology` returned, or a name for it.
    `collective`: a name such as ``allreduce``, or a file.
    `size`: bytes.
    `nodes`: servers, for a name.
    `sketch`: a communication sketch, for a name.
    `engine`: a name of the table of engines.
    `chunks`: for each rank; None: the best of several.
    `root`: a rank, for collectives that have one.
    `runtime`: that the program is for; None: there is no program.
    `protocol`: ``Simple``, ``LL``, ``LL128``, or ``auto``.
    `profile`: what its messages are charged: ``alpha-beta``, or ``measured`` costs of the topology;
    None: these where it has them and a program is asked for.
    `time_limit`: seconds.
    `seed`: the same gives the same.
    `report`: is called with progress.

    Raises InputError when something can't be used; NoScheduleError when none exists or none was
    found in time; LoweringError when no program fits the runtime.
    """
    if isinstance(topology, Topology):
        if nodes is not None or sketch is not None:
            raise InputError(
                "are for the name of a topology", field="nodes, sketch",
                fix="load it with them, or give its name",
            )  # fmt: skip
        logical: LogicalTopology = whole(topology)
    else:
        logical = load_network(topology, MachineOptions(nodes, sketch=sketch))
    target = None if runtime is None else Target(runtime=runtime, protocol=protocol)
    return solve(Request(
        logical, load_collective(collective), parse_size(size), chunks, engine=engine, root=root,
        target=target, measured=is_measured(profile, logical.topology, target is None),
        time_limit=time_limit, seed=seed, report=report,
    ))  # fmt: skip


def _program_of(some: Some) -> Program:
    if isinstance(some, Program):
        return some
    if isinstance(some, Synthesis):
        if some.program is None:
            raise InputError("no program was asked for", field="runtime", fix="name a runtime")
        return some.program
    return read_program(some)


def evaluate_program(
    program: Some, topology: Topology, sizes: Sequence[int | str] = ("1MB",), *,
    runtime: str = "executor", profile: str | None = None,
) -> tuple[Row, ...]:  # fmt: skip
    """Return what a program takes on a topology, a row for each size, beside the bound.

    `program`: of what was found, or of a file.
    `topology`: where it runs.
    `sizes`: bytes.
    `runtime`: whose constants are taken.
    `profile`: as for :func:`synthesize`.

    Raises ProgramError when the program does not fit the topology.
    """
    one = _program_of(program)
    model = replace(model_of(runtime), measured=is_measured(profile, topology))
    return sweep([(one.name, one)], topology, list(map(parse_size, sizes)), model)


def verify_program(program: Some, runtime: str = "portable") -> list[Finding]:
    """Return all that is wrong with a `program` for a `runtime`; empty: it is right.

    Data, races and deadlocks in every mode it claims, and the limits of the runtime.

    Raises ProgramError when a file is no program.
    """
    return judge(_program_of(program), runtime)


def write_program(program: Some, path: str | Path, runtime: str = "portable") -> list[Path]:
    """Write a `program` as MSCCL XML for a `runtime` to a `path`, once it is judged right.

    Returned are the files written: a runtime with exclusive modes may need two.

    Raises ScheduleError when it is wrong; InputError when the file can't be written.
    """
    if isinstance(program, Synthesis):
        return write_outputs(program, Path(path), None)
    texts = xml_files(_program_of(program), runtime, Path(path))
    write_all_atomic(texts)
    return [Path(name) for name in texts]


def run_program(
    program: Some, sizes: Sequence[int | str] = ("1MB",), *, topology: Topology | None = None,
    dtype: str = "float32", over: str = "shared memory", calls: int = 20, repeats: int = 5,
) -> list[RunRow]:  # fmt: skip
    """Run a program with real bytes, a process a rank on this machine, and check what comes out.

    `program`: of what was found, or of a file.
    `sizes`: bytes.
    `topology`: where it is replayed beside; None: nowhere.
    `dtype`: ``float32``, ``int32``, and what else the command names.
    `over`: ``shared memory`` or ``tcp``.
    `calls`, `repeats`: calls in a measurement, and measurements.

    Raises RunError when a rank is gone, or all wait for one another.
    """
    carriers = {one.name: one for one in (SHARED_MEMORY, TCP)}
    if over not in carriers:
        raise InputError(
            f"should be one of {', '.join(carriers)}, got {over[:40]!r}", field="over",
            fix=f"use {', '.join(carriers)}",
        )  # fmt: skip
    asked = Asked(list(map(parse_size, sizes)), dtype, calls, repeats)
    one = _program_of(program)
    rows, _ = run_jobs([job_of(one.name, one)], asked, carriers[over], topology)
    return rows

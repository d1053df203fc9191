"""Reading programs back: evaluate them on a topology, judge them, and bound a collective."""

from collections.abc import Sequence
from pathlib import Path

from taccl.bounds import any_bounds, fixed_bounds
from taccl.collectives import build_collective, chunk_size_of
from taccl.errors import InputError
from taccl.files import read_text
from taccl.msccl.findings import Finding
from taccl.msccl.interpret import deadlock, judge
from taccl.msccl.limits import check_limits
from taccl.msccl.program import Program
from taccl.msccl.runtimes import RUNTIMES, message_chunks
from taccl.msccl.xml import read_xml
from taccl.sim.cost import model_of
from taccl.sim.sweep import Row, sweep
from taccl.synth.problem import Bound
from taccl.topology import Topology, whole


def read_program(path: str | Path, runtime: str = "portable") -> Program:
    """Return the program of an XML file.

    Raises
    ------
    InputError
        When the file can't be read.
    ProgramError
        When it is no program.
    """
    return read_xml(read_text(path), file=str(path), runtime=runtime)


def evaluate(
    files: Sequence[str],
    topology: Topology,
    sizes: Sequence[int],
    runtime: str,
    *,
    route: bool = False,
    protocol_costs: bool = False,
) -> tuple[Row, ...]:
    """Replay the programs of XML files on a topology at every size.

    Raises
    ------
    InputError
        When a file can't be read or is for another number of ranks.
    ProgramError
        When a file is no program, or its connections have no links.
    """
    programs = [(file, read_program(file)) for file in files]
    for file, program in programs:
        if program.num_ranks != topology.num_ranks:
            raise InputError(
                f"is for {program.num_ranks} ranks, {topology.name} has {topology.num_ranks}",
                file=file,
                field="ngpus",
                fix="give the topology it was made for (--nodes)",
            )
    return sweep(
        programs, topology, sizes, model_of(runtime), route=route, protocol_costs=protocol_costs
    )


def whole_size(files: Sequence[str], size: int, element_bytes: int = 4) -> int:
    """Return the largest size up to ``size`` that cuts into whole chunks in every file."""
    for file in files:
        divisor = read_program(file).chunks_per_loop * element_bytes
        size = size - size % divisor or divisor
    return size


def judge_file(
    path: str, runtime: str, size: int | None = None, *, structure_only: bool = False
) -> list[Finding]:
    """Return all that is wrong with an XML file for a runtime; with a size, deadlocks there too.

    Raises
    ------
    InputError
        When the file can't be read.
    ProgramError
        When it is no program.
    """
    program = read_program(path)
    if structure_only:
        return list(check_limits(program, runtime))
    findings = list(judge(program, runtime))
    if size is not None:
        chunks = message_chunks(runtime, program.protocol, size // program.chunks_per_loop or 1)
        stuck = deadlock(program, chunks, RUNTIMES[runtime].fifo_slots[program.protocol])
        findings += [] if stuck is None or stuck in findings else [stuck]
    return findings


def bounds_for(
    topology: Topology, collective: str, size: int, chunks: int
) -> tuple[tuple[Bound, ...], tuple[Bound, ...]]:
    """Return the bounds for any algorithm, and those for a chunk count without batches."""
    logical = whole(topology)
    built = build_collective(collective, topology.num_ranks, chunks)
    fixed = fixed_bounds(logical, built, chunk_size_of(built, size))
    return any_bounds(logical, built.name, size), fixed

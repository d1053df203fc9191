"""Reading programs back: evaluate them on a topology, judge them, and bound a collective.

Whether a program leaves the right data: what nccl-tests counts as ``#wrong``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from taccl.bounds import any_bounds, best, fixed_bounds
from taccl.bounds.port_contention import KIND, port_contention_bound
from taccl.collectives import Collective, chunk_size_of
from taccl.errors import InputError
from taccl.files import read_bytes, read_text
from taccl.model.problem import Bound
from taccl.msccl.interpret import count_wrong, interpret
from taccl.msccl.program import Program
from taccl.msccl.verdict import Question, Verdict, judge_for, judge_for_each
from taccl.msccl.xml import read_xml
from taccl.replay.cost import model_of
from taccl.replay.sweep import Row, sweep
from taccl.report.tables import Bounded
from taccl.topology.graph import LogicalTopology, Topology, whole

MAX_WORK = 100_000
"""Chunks that steps move in some seconds, above which a program is not followed."""

ELEMENT_BYTES = 4

_NOT_FOLLOWED = frozenset({"unknown collective", "chunks", "size"})
"""Rules of :func:`taccl.msccl.interpret.interpret` that say that nothing was looked at."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a program leaves in the outputs.

    Parameters
    ----------
    wrong
        The part of the counted buffer's size that is wrong on all ranks together, in chunks, in
        the worst of the modes that the program claims. None: not known, as it was not followed,
        or as it depends on which threadblock is first.
    chunks
        Chunks that the counted buffer is cut into.
    told
        The first thing that is wrong, in words; empty: nothing is known to be.
    """

    wrong: int | None
    chunks: int
    told: str = ""

    def elements(self, size: int) -> int | None:
        """Return how many elements are wrong at a size in bytes."""
        return None if self.wrong is None else self.wrong * size // self.chunks // ELEMENT_BYTES


def answer_of(program: Program) -> Answer:
    """Run a program on symbolic chunks in every mode that it claims."""
    chunks = program.chunks_per_loop
    unknown = Answer(None, chunks)
    if sum(step.count for _, block in program.blocks() for step in block.steps) > MAX_WORK:
        return unknown
    claims = ((True, program.in_place), (False, program.out_of_place))
    modes = [in_place for in_place, claimed in claims if claimed]
    findings = [found for mode in modes for found in interpret(program, in_place=mode)]
    if any(finding.rule in _NOT_FOLLOWED for finding in findings):
        return unknown
    if not findings:
        return Answer(0, chunks)
    unsure = [finding for finding in findings if finding.rule != "result"]
    if unsure:
        return Answer(None, chunks, str(unsure[0]))
    counts = [count_wrong(program, in_place=mode) or 0 for mode in modes]
    return Answer(max(counts), chunks, str(findings[0]))


def with_wrong(row: Row, answer: Answer) -> Row:
    """Return a row with its wrong elements, and what is wrong as a note."""
    told = [row.note, answer.told] if row.time is not None else [row.note]
    return replace(row, wrong=answer.elements(row.size), note="; ".join(filter(None, told)))


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
    rows = sweep(
        programs, topology, sizes, model_of(runtime), route=route, protocol_costs=protocol_costs
    )
    answers = [answer_of(program) for _, program in programs]
    return tuple(with_wrong(row, answers[number // len(sizes)]) for number, row in enumerate(rows))


def whole_size(files: Sequence[str], size: int, element_bytes: int = 4) -> int:
    """Return the largest size up to ``size`` that cuts into whole chunks in every file."""
    for file in files:
        divisor = read_program(file).chunks_per_loop * element_bytes
        size = size - size % divisor or divisor
    return size


def judge_file(path: str, runtime: str, question: Question | None = None) -> Verdict:
    """Return all that is wrong with an XML file for a runtime, and which calls select it.

    Raises
    ------
    InputError
        When the file can't be read, or has other ranks than the question.
    ProgramError
        When it is no MSCCL XML.
    """
    asked = replace(question or Question(), file=path)
    return judge_for(read_bytes(path), runtime, asked, {})


def judge_file_for_each(path: str, question: Question) -> dict[str, Verdict]:
    """Return the same for every runtime.

    Raises
    ------
    InputError
        When the file can't be read, or has other ranks than the question.
    ProgramError
        When it is no MSCCL XML.
    """
    return judge_for_each(read_bytes(path), replace(question, file=path))


def bounds_for(
    logical: LogicalTopology, collective: Collective, size: int, *, grown: bool = False
) -> Bounded:
    """Return the bounds for any algorithm, for a chunk count without batches, and for a sketch.

    Parameters
    ----------
    grown
        Whether to look for a bound of kind growth as well, which takes from seconds to minutes.

    Raises
    ------
    NoScheduleError
        When some rank can't be reached from another.
    """
    topology = logical.topology
    free = whole(topology)
    known = any_bounds(free, collective, size)
    if grown:
        least = best(known).time
        raised = port_contention_bound(topology, collective.name, size, least)
        known += (Bound(KIND, "any", raised),) if raised > least else ()
    return Bounded(
        topology, collective.name, collective.chunks_per_rank, size, known,
        fixed_bounds(free, collective, chunk_size_of(collective, size)),
        () if logical.name is None else any_bounds(logical, collective, size),
    )  # fmt: skip

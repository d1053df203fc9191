"""Programs of XML files: replayed size by size, judged, with what nccl-tests counts as ``#wrong``.

Beside them the bounds of a collective.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from taccl.bounds import any_bounds, best, fixed_bounds
from taccl.bounds.port_contention import KIND, port_contention_bound
from taccl.collectives import Collective, chunk_size_of
from taccl.errors import InputError, TacclWarning
from taccl.files import read_text
from taccl.model.problem import Bound
from taccl.msccl.interpret import count_wrong, interpret
from taccl.msccl.program import Program
from taccl.msccl.xml import read_xml
from taccl.replay.cost import ReplayModel
from taccl.replay.sweep import Row, sweep
from taccl.replay.timing import traces
from taccl.replay.trace import Trace
from taccl.report.explain import Explanation, explain
from taccl.report.played import Played, play
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


def read_program(path: str | Path) -> Program:
    """Return the program of an XML file.

    Raises
    ------
    InputError
        When the file can't be read.
    ProgramError
        When it is no program.
    """
    return read_xml(read_text(path), file=str(path), runtime="portable")


@dataclass(frozen=True, eq=False)
class Setting:
    """Where and how programs are replayed.

    Parameters
    ----------
    topology, model
        The network, and the constants of the runtime.
    route, protocol_costs
        As :func:`taccl.replay.interpreter.replay` takes them.
    """

    topology: Topology
    model: ReplayModel
    route: bool = False
    protocol_costs: bool = False

    def play(self, program: Program, size: int) -> Played:
        """Return a replay with all its spans."""
        with warnings.catch_warnings():
            # The rows have warned of routed pairs already.
            warnings.simplefilter("ignore", TacclWarning)
            return play(
                program, self.topology, size, self.model,
                route=self.route, protocol_costs=self.protocol_costs,
            )  # fmt: skip

    def explain(self, played: Played, row: Row) -> Explanation:
        """Return where the time of a replay goes."""

        def again(topology: Topology) -> Trace:
            (trace,) = traces(
                played.program, topology, [row.size], self.model,
                route=self.route, protocol_costs=self.protocol_costs,
            )  # fmt: skip
            return trace

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TacclWarning)
            return explain(played, row, again)


def charged(model: ReplayModel, profile: str, topology: Topology) -> ReplayModel:
    """Return a `model` under a `profile`, a name of PROFILES, on a `topology`.

    Raises InputError for measured costs where the topology has none.
    """
    if profile == "measured" and topology.measured is None:
        raise InputError(
            f"{topology.name} has no measured costs", field="--profile",
            fix="use alpha-beta, or put what you measured into the topology file (measured:)",
        )  # fmt: skip
    return replace(model, measured=profile == "measured")


def evaluate(files: Sequence[str], sizes: Sequence[int], setting: Setting) -> tuple[Row, ...]:
    """Replay the programs of XML `files` in a `setting` at `sizes` in bytes, file by file.

    Raises
    ------
    InputError
        When a file can't be read or is for another number of ranks.
    ProgramError
        When a file is no program, or its connections have no links.
    """
    topology = setting.topology
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
        programs, topology, sizes, setting.model,
        route=setting.route, protocol_costs=setting.protocol_costs,
    )  # fmt: skip
    answers = {file: answer_of(program) for file, program in programs}
    found = []
    for row in rows:
        answer = answers[row.file]
        told = (row.note, "" if row.time is None else answer.told)
        note = "; ".join(filter(None, told))
        found.append(replace(row, wrong=answer.elements(row.size), note=note))
    return tuple(found)


def whole_size(files: Sequence[str], size: int) -> int:
    """Return the most bytes up to `size` that cut into whole chunks in all of the `files`."""
    for file in files:
        divisor = read_program(file).chunks_per_loop * ELEMENT_BYTES
        size = size - size % divisor or divisor
    return size


def bounds_for(
    logical: LogicalTopology, collective: Collective, size: int, *, grown: bool = False
) -> Bounded:
    """Return the bounds for any algorithm, for a chunk count without batches, and for a sketch.

    Parameters
    ----------
    logical
        The network, as the sketch restricts it.
    collective
        What is done, cut into chunks.
    size
        Bytes of the counted buffer.
    grown
        Whether to look for a bound of kind growth as well, which takes from seconds to minutes.

    Raises NoScheduleError when some rank can't be reached from another.
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

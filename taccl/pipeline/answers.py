"""Whether a program leaves the right data: what nccl-tests counts as ``#wrong``."""

from dataclasses import dataclass, replace

from taccl.msccl.interpret import count_wrong, interpret
from taccl.msccl.program import Program
from taccl.sim.sweep import Row

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

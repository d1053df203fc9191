"""Scratch that is used again: values whose lives can't overlap share a place.

Chunks that some step moves together stay neighbours, in order: they are one *run*. A run may take
the place of another when every step that touches the other is known to be over, in any
interleaving of the threadblocks, before the first step of every threadblock that touches it. What
is known follows from program order, messages and the dependences that the program has anyway, so
sharing adds none and costs no time.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from taccl.lowering.blocks import Clocks
from taccl.lowering.draft import Move
from taccl.msccl.program import Buffer, Slot


@dataclass(slots=True)
class _Run:
    """Neighbouring scratch chunks of one rank, from ``start`` on before anything is shared.

    By threadblock, the first and the last move that touches them.
    """

    start: int
    size: int
    first: dict[int, int] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)


def share_scratch(
    moves: Sequence[Move], clocks: Clocks, scratch: Sequence[int]
) -> tuple[list[Move], list[int]]:
    """Return ``moves`` with scratch that is used again, and the scratch chunks of every rank.

    The moves are in one legal order, and ``clocks`` says what is known when each starts, with all
    dependences that the program will have. ``scratch`` has the chunks of every rank without
    sharing.
    """
    found: dict[tuple[int, int], int] = {}
    sizes = [0] * len(scratch)
    for rank, runs in _runs(moves, clocks, scratch).items():
        taken: list[_Run | None] = []
        for run in runs:
            offset = _place(run, taken, clocks)
            taken += [None] * (offset + run.size - len(taken))
            taken[offset : offset + run.size] = [run] * run.size
            for index in range(run.size):
                found[rank, run.start + index] = offset + index
        sizes[rank] = len(taken)

    def moved(rank: int, slot: Slot | None) -> Slot | None:
        if slot is None or slot.buffer is not Buffer.SCRATCH:
            return slot
        return Slot(slot.buffer, found[rank, slot.offset])

    return [
        move._replace(src=moved(move.rank, move.src), dst=moved(move.rank, move.dst))
        for move in moves
    ], sizes


def _place(run: _Run, taken: Sequence[_Run | None], clocks: Clocks) -> int:
    """Return the lowest offset at which all that was there before is over."""
    offset = place = 0
    while place < min(offset + run.size, len(taken)):
        before = taken[place]
        if before is not None and not all(
            clocks.knows(number, other)
            for number in run.first.values()
            for other in before.last.values()
        ):
            offset = place + 1
        place += 1
    return offset


def _runs(moves: Sequence[Move], clocks: Clocks, scratch: Sequence[int]) -> dict[int, list[_Run]]:
    """Return the runs of every rank, in order of their first moves."""
    begins = [[True] * count for count in scratch]
    for _, move, slot in _touches(moves):
        beside = range(slot.offset + 1, slot.offset + move.chunks)
        begins[move.rank][beside.start : beside.stop] = [False] * len(beside)
    run_of: list[list[_Run]] = []
    for flags in begins:
        own: list[_Run] = []
        for offset, starts in enumerate(flags):
            own.append(_Run(offset, 0) if starts else own[-1])
            own[-1].size += 1
        run_of.append(own)
    touched: dict[int, dict[int, _Run]] = defaultdict(dict)
    for number, move, slot in _touches(moves):
        run = run_of[move.rank][slot.offset]
        touched[move.rank][run.start] = run
        run.first.setdefault(clocks.owner[number], number)
        run.last[clocks.owner[number]] = number
    return {rank: list(runs.values()) for rank, runs in touched.items()}


def _touches(moves: Sequence[Move]) -> Iterator[tuple[int, Move, Slot]]:
    """Yield moves with their numbers and each slot in scratch."""
    for number, move in enumerate(moves):
        for slot in (move.src, move.dst):
            if slot is not None and slot.buffer is Buffer.SCRATCH:
                yield number, move, slot

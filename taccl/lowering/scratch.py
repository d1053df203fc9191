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

from taccl.lowering.buffers import Move
from taccl.lowering.dependencies import Clocks
from taccl.msccl.program import Buffer, Slot


@dataclass(slots=True)
class _Run:
    """Neighbouring scratch chunks of one rank.

    Parameters
    ----------
    start, size
        Where they are before anything is shared, and how many.
    first, last
        Threadblock to the first and the last move that touches them.
    """

    start: int
    size: int
    first: dict[int, int] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)


def share_scratch(
    moves: Sequence[Move], clocks: Clocks, scratch: Sequence[int]
) -> tuple[list[Move], list[int]]:
    """Return the moves with scratch that is used again, and the scratch chunks of every rank.

    Parameters
    ----------
    moves
        In one legal order.
    clocks
        What is known when a move starts, with all dependences that the program will have.
    scratch
        Chunks of every rank without sharing.
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
    offset = 0
    while offset < len(taken):
        blocked = next(
            (
                place
                for place in range(min(offset + run.size, len(taken)) - 1, offset - 1, -1)
                if not _over(taken[place], run, clocks)
            ),
            None,
        )
        if blocked is None:
            return offset
        offset = blocked + 1
    return offset


def _over(before: _Run | None, run: _Run, clocks: Clocks) -> bool:
    """Tell whether all that touches one run is over before anything touches the other."""
    return before is None or all(
        clocks.knows(number, other)
        for number in run.first.values()
        for other in before.last.values()
    )


def _runs(moves: Sequence[Move], clocks: Clocks, scratch: Sequence[int]) -> dict[int, list[_Run]]:
    """Return the runs of every rank, in order of their first moves."""
    joined = [list(range(count)) for count in scratch]
    for move in moves:
        for slot in _scratch_of(move):
            for offset in range(slot.offset + 1, slot.offset + move.chunks):
                roots = joined[move.rank]
                low, high = sorted((_root(roots, slot.offset), _root(roots, offset)))
                roots[high] = low
    runs: dict[int, dict[int, _Run]] = defaultdict(dict)
    for rank, roots in enumerate(joined):
        for offset in range(len(roots)):
            root = _root(roots, offset)
            if root in runs[rank]:
                runs[rank][root].size += 1
            else:
                runs[rank][root] = _Run(offset, 1)
    touched: dict[int, dict[int, None]] = defaultdict(dict)
    for number, move in enumerate(moves):
        for slot in _scratch_of(move):
            root = _root(joined[move.rank], slot.offset)
            touched[move.rank][root] = None
            run = runs[move.rank][root]
            run.first.setdefault(clocks.owner[number], number)
            run.last[clocks.owner[number]] = number
    return {rank: [runs[rank][root] for root in roots] for rank, roots in touched.items()}


def _scratch_of(move: Move) -> Iterator[Slot]:
    for slot in (move.src, move.dst):
        if slot is not None and slot.buffer is Buffer.SCRATCH:
            yield slot


def _root(roots: list[int], offset: int) -> int:
    while roots[offset] != offset:
        roots[offset] = offset = roots[roots[offset]]
    return offset

"""Scratch that is used again: values whose lives can't overlap share a place.

Chunks that some step moves together stay neighbours, in order: they are one *run*. A run may take
the place of another when every step that touches the other is known to be over, in any
interleaving of the threadblocks, before the first step of every threadblock that touches it. What
is known follows from program order, messages and the dependences that the program has anyway, so
sharing adds none and costs no time.
"""

import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.lowering.blocks import Clocks
from taccl.lowering.draft import Move
from taccl.msccl.program import Buffer, Slot
from taccl.timing.jit import jit

Ints = NDArray[np.int64]


def share_scratch(
    moves: Sequence[Move], clocks: Clocks, scratch: Sequence[int]
) -> tuple[list[Move], list[int]]:
    """Return ``moves`` with scratch that is used again, and the scratch chunks of every rank.

    The moves are in one legal order, and ``clocks`` says what is known when each starts, with all
    dependences that the program will have. ``scratch`` has the chunks of every rank without
    sharing.
    """
    touches = [
        (number, move.rank, slot.offset, move.chunks)
        for number, move in enumerate(moves)
        for slot in (move.src, move.dst)
        if slot is not None and slot.buffer is Buffer.SCRATCH
    ]
    if not touches:
        return list(moves), [0] * len(scratch)
    number, rank, offset, chunks = np.array(touches, dtype=np.int64).T
    base = np.append(0, np.cumsum(scratch)).astype(np.int64)
    place = base[rank] + offset
    # What some move has beside its first chunk begins no run.
    beside = np.zeros(base[-1] + 1, dtype=np.int64)
    np.add.at(beside, place + 1, 1)
    np.add.at(beside, place + chunks, -1)
    begins = np.cumsum(beside[:-1]) == 0
    run_at = np.cumsum(begins) - 1
    starts = np.flatnonzero(begins)
    size = np.diff(np.append(starts, base[-1]))
    run = run_at[place]
    # The runs of each rank, in order of their first moves.
    touched, first = np.unique(run, return_index=True)
    order = touched[np.lexsort((first, rank[first]))]
    owner = np.array(clocks.owner, dtype=np.int64)
    begin, end, pointer = _by_threadblock(run, owner[number], number, len(starts))
    column = np.array(clocks.column, dtype=np.int64)[owner]
    home = np.searchsorted(base, starts, side="right") - 1
    shared, used = np.zeros(len(starts), dtype=np.int64), np.zeros(len(scratch), dtype=np.int64)
    compiled()(
        _Runs(order, home, size, pointer, begin, end),
        _Clocks(clocks.seen, column, np.array(clocks.place, dtype=np.int64)),
        np.zeros(int(size.sum()), dtype=np.int64), shared, used,
    )  # fmt: skip
    slots = [
        Slot(Buffer.SCRATCH, where)
        for where in (shared[run_at] + np.arange(base[-1]) - starts[run_at]).tolist()
    ]
    first_of = base.tolist()

    def moved(rank: int, slot: Slot | None) -> Slot | None:
        if slot is None or slot.buffer is not Buffer.SCRATCH:
            return slot
        return slots[first_of[rank] + slot.offset]

    return [
        Move(
            move.rank, move.op, moved(move.rank, move.src), moved(move.rank, move.dst),
            move.chunks, move.message, move.forward,
        )
        for move in moves
    ], used.tolist()  # fmt: skip


def _by_threadblock(run: Ints, owner: Ints, number: Ints, runs: int) -> tuple[Ints, Ints, Ints]:
    """Return by run and threadblock the first and the last move, and where each run begins."""
    order = np.lexsort((number, owner, run))
    changes = (np.diff(run[order]) != 0) | (np.diff(owner[order]) != 0)
    starts = np.flatnonzero(np.append(True, changes))
    ends = np.append(starts[1:], len(order)) - 1
    pointer = np.searchsorted(run[order][starts], np.arange(runs + 1))
    return number[order][starts], number[order][ends], pointer


class _Runs(NamedTuple):
    """Runs to be placed: those of one rank after another.

    Of each its rank and its chunks, and where its moves begin: the first and the last one of every
    threadblock that touches it.
    """

    order: Ints
    rank: Ints
    size: Ints
    begin: Ints
    first: Ints
    last: Ints


class _Clocks(NamedTuple):
    """Clocks, (moves, columns), as in :mod:`taccl.lowering.blocks`; column and place by move."""

    seen: NDArray[np.int32]
    column: Ints
    place: Ints


def place_runs(runs: _Runs, clocks: _Clocks, taken: Ints, found: Ints, used: Ints) -> None:
    """Write for every run the lowest offset at which all that was there before is over.

    Parameters
    ----------
    runs, clocks
        What is to be placed, and what is known when moves start.
    taken
        (chunks,) room for the run that took each chunk of a rank last.
    found, used
        (runs,) and (ranks,): where the offsets, and the chunks that ranks use, are written.
    """
    rank, top = -1, 0
    for run in runs.order:
        if runs.rank[run] != rank:
            rank, top = runs.rank[run], 0
        offset = at = 0
        while at < min(offset + runs.size[run], top):
            if not _is_over(runs, clocks, taken[at], run):
                offset = at + 1
            at += 1
        taken[offset : offset + runs.size[run]] = run
        top = max(top, offset + runs.size[run])
        found[run] = offset
        used[rank] = top


def _is_over(runs: _Runs, clocks: _Clocks, before: int, run: int) -> bool:
    for mine in runs.first[runs.begin[run] : runs.begin[run + 1]]:
        for other in runs.last[runs.begin[before] : runs.begin[before + 1]]:
            if other == mine or clocks.seen[mine, clocks.column[other]] <= clocks.place[other]:
                return False
    return True


@cache
def compiled() -> Callable[..., Any]:
    """Return :func:`place_runs` as machine code."""
    return jit(place_runs, [sys.modules[__name__]], "scratch")

"""Chunks that are made, or used, one after another: neighbours in time may go together.

Each piece on its own starts as soon as it may, and pays every latency anew; all together wait for
the last. In between lie the ways to cut the sequence of pieces into groups: a group goes the way
that is best for all data at once, with its pieces side by side in every message, as soon as its
last piece is made. What a group takes is asked of the clock, as if groups did not overlap; the
few best ways are then timed exactly.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np

from taccl.collectives import COLLECTIVES, build_collective
from taccl.model.problem import Problem
from taccl.model.schedule import Decisions, Schedule
from taccl.ragged import places_in
from taccl.units import Time

MOST_PIECES = 12
"""Pieces of which all ways to cut them are looked at; of more, groups of equal length."""

BEST = 6
"""Ways that are timed exactly."""


def in_one_piece(problem: Problem) -> Problem | None:
    """Return the same with the pieces of every rank in one chunk, ready at once.

    None where times do not go by pieces.
    """
    collective, pieces = problem.collective, problem.collective.chunks_per_rank
    if collective.name not in COLLECTIVES or pieces == 1 or not collective.is_timed:
        return None
    for column in (collective.ready, collective.tail):
        if column is not None and (np.ptp(column.reshape(-1, pieces), axis=0) > 0).any():
            return None
    root = collective.root if COLLECTIVES[collective.name].has_root else None
    whole = build_collective(collective.name, collective.num_ranks, 1, root)
    return replace(problem, collective=whole, chunk_size=problem.chunk_size * pieces)


def in_groups(problem: Problem, one: Schedule) -> Iterator[Schedule]:
    """Yield schedules of a `problem` that take `one` of :func:`in_one_piece` group by group."""
    orbits = replace(problem, group=one.group)
    collective, pieces = problem.collective, problem.collective.chunks_per_rank
    ready, tail = (
        [0] * pieces if column is None else column[:pieces].tolist()
        for column in (collective.ready, collective.tail)
    )
    single = replace(orbits, collective=one.collective)
    decisions, messages = one.decisions(), len(np.unique(one.batch))
    took = [
        replace(single, chunk_size=problem.chunk_size * length).timed(decisions).makespan
        for length in range(1, pieces + 1)
    ]

    def cost(cuts: Sequence[int]) -> Time:
        end = last = 0
        for first, stop in pairwise(cuts):
            end = max(end, max(ready[first:stop])) + took[stop - first - 1]
            last = max(last, end + max(tail[first:stop]))
        return last

    ways: list[tuple[int, ...]] = [
        (*range(0, pieces, length), pieces) for length in range(1, pieces + 1)
    ]
    if pieces <= MOST_PIECES:
        inner = range(1, pieces)
        ways = [(0, *cuts, pieces) for n in range(pieces) for cuts in combinations(inner, n)]
    for cuts in sorted(ways, key=cost)[:BEST]:
        yield orbits.timed(_together(decisions, messages, cuts, pieces))


def _together(decisions: Decisions, messages: int, cuts: Sequence[int], pieces: int) -> Decisions:
    """Return decisions of whole chunks for the pieces of one group after the other."""
    rows, count = len(decisions.chunk), len(cuts) - 1
    length = np.repeat(np.diff(cuts), rows)
    row = np.repeat(np.tile(np.arange(rows), count), length)
    group = np.repeat(np.repeat(np.arange(count), rows), length)
    start = np.cumsum(length) - length
    piece = np.array(cuts)[group] + places_in(length)
    batch = np.unique(decisions.batch, return_inverse=True)[1][row] + group * messages
    visible_from = None
    if decisions.visible_from is not None:
        # A row of a group is seen from the first row on that follows from one that saw it.
        firsts = np.append(start, len(row)).reshape(-1)
        later = group * rows + decisions.visible_from[row]
        visible_from = firsts[np.minimum(later, (group + 1) * rows)].astype(np.int32)
    return Decisions(
        (decisions.chunk[row] * pieces + piece).astype(np.int32), decisions.link[row],
        batch.astype(np.int32), decisions.reduce[row], visible_from,
        # Pieces of several chunks lie apart where others of the chunks stay behind.
        decisions.packs or (count > 1 and messages < rows),
    )  # fmt: skip

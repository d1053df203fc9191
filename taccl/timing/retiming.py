"""Exact times of decisions: earliest_start.py's pass over the columns of their sends.

Few sends are timed by the plain functions, many by compiled code; both say the same.
"""

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.timing import earliest_start, occupancy
from taccl.timing.earliest_start import DONE, TOO_EARLY, Sends, Values, start_copies, start_sums
from taccl.timing.jit import jit
from taccl.timing.message_costs import as_list, as_lists, batch_uses
from taccl.timing.occupancy import NOTHING, Times, Uses
from taccl.topology.fans import NO_FANS, FanTable
from taccl.units import Time

if TYPE_CHECKING:
    from taccl.collectives import Collective
    from taccl.topology.symmetry import Group

WORTH_COMPILED = 20_000
"""Sends that take as long in Python as loading compiled code."""

MAX_PASSES = 64
"""Times that arrivals may be held back for reads that are decided after them."""

Pass = Callable[[Uses, Sends, Values, Times, Times, Times], int]


class Columns(NamedTuple):
    """Sends in sequence, and the fans that links beyond the last stand for."""

    chunk: NDArray[np.int32]
    link: NDArray[np.int32]
    batch: NDArray[np.int32]
    reduce: NDArray[np.bool_]
    fans: FanTable = NO_FANS


def times_of(
    collective: "Collective",
    group: "Group",
    chunk_size: Fraction,
    columns: Columns,
    visible_from: NDArray[np.int32] | None = None,
    *,
    plain: bool | None = None,
) -> tuple[Times, Times]:
    """Return when every send of `columns` starts and ends, in picoseconds.

    The `collective` tells where chunks are at first, and whether they are summed; they have
    `chunk_size` bytes. Resources are orbits under the symmetries of `group`. `visible_from` is as
    in :class:`taccl.model.schedule.Decisions`; with `plain` Python runs the pass (None: where that
    is faster).

    Raises ValueError when a send precedes every arrival of its chunk at its source, or arrivals and
    reads wait for each other in a ring.
    """
    chunk, link, batch, reduce, fans = columns
    rows, table, ranks = len(chunk), group.topology.links, group.topology.num_ranks
    first = np.concatenate(([0], np.flatnonzero(np.diff(batch)) + 1, [rows] if rows else []))
    first = first.astype(np.int64)
    uses = batch_uses(group, chunk_size, link, first, fans)
    # The pass is over legs, which without fans are the rows themselves.
    legs = fans.legs(table, link)
    moved = chunk[legs.row]
    source, target = (moved.astype(np.int64) * ranks + end for end in (legs.src, legs.dst))
    places, at = np.unique(np.concatenate([source, target]), return_inverse=True)
    member = np.zeros((len(collective.rank_sets), ranks), dtype=np.bool_)
    for number, members in enumerate(collective.rank_sets):
        member[number, list(members)] = True
    own = member[collective.source_set[moved], legs.src]
    adds = reduce[legs.row] & legs.fresh
    begin = np.searchsorted(legs.row, np.arange(rows + 1)).astype(np.int64)
    first = begin[first]
    # What a rank has itself is a value that comes when it is made; sums there wait for it, too.
    made, summed_from = np.full((2, len(places)), NOTHING, dtype=np.int64)
    if collective.is_timed:
        made[at[: len(moved)][own]] = collective.own_from(moved, legs.src)[own]
        there = member[collective.source_set[moved], legs.dst]
        summed_from[at[len(moved) :][there]] = collective.own_from(moved, legs.dst)[there] - 1
        own = np.zeros_like(own)
    hidden = np.zeros(0, dtype=np.int32)
    if visible_from is not None and collective.reduces:
        hidden = begin[visible_from][legs.row].astype(np.int32)
    sends = Sends(first, at[: len(moved)], at[len(moved) :], own, adds, hidden)
    if plain is None:
        plain = rows < WORTH_COMPILED and not compiled.cache_info().currsize
    if plain:
        uses, sends = as_lists(uses), Sends(*(column.tolist() for column in sends))
    run: Pass = start_sums if collective.reduces else start_copies
    if not plain:
        run = compiled()[collective.reduces]

    def own_copy(filled: Times) -> Times:
        return as_list(filled) if plain else filled.copy()

    def column(length: int, value: int) -> Times:
        return own_copy(np.full(length, value, dtype=np.int64))

    not_before, resources = column(len(moved), 0), int(group.edge_orbit.max(initial=0)) + 1
    for _ in range(MAX_PASSES):
        ready, replaced = own_copy(made), own_copy(summed_from)
        changed, read, unseen = (column(len(places), NOTHING) for _ in range(3))
        below = column(len(hidden), NOTHING)
        values = Values(ready, changed, replaced, read, unseen, below, not_before)
        start, end, free = column(len(moved), 0), column(len(moved), 0), column(resources, 0)
        row = run(uses, sends, values, free, start, end)
        if row == DONE:
            leg = begin[:-1]
            return np.array(start, dtype=np.int64)[leg], np.array(end, dtype=np.int64)[leg]
        if row != TOO_EARLY:
            lost, rank = int(moved[row]), int(legs.src[row])
            raise ValueError(f"chunk {lost} is sent by rank {rank} before it arrives there")
    raise ValueError("arrivals and reads of summed chunks wait for each other in a ring")


@cache
def compiled() -> tuple[Pass, Pass]:
    """Return the passes over copied and over summed chunks as machine code."""
    parts = [earliest_start, occupancy]
    return (
        jit(earliest_start.start_copies, parts, "copies"),
        jit(earliest_start.start_sums, parts, "sums"),
    )


def starts_in_order(
    uses: Uses, waits: Sequence[Sequence[tuple[int, bool]]], order: Iterable[int]
) -> list[Time]:
    """Return when messages start, each as soon as it may after those before it in an `order`.

    `uses` is what the messages hold, in any unit of time, and `waits` has for each message the
    others that it waits for, and whether for their arrival, else start; it comes after all of them.
    """
    uses, start = as_lists(uses), [0] * len(waits)
    free = as_list(np.zeros(max(uses.resource, default=-1) + 1, dtype=np.int64))
    for message in order:
        ready = max(
            (
                start[other] + int(uses.arrival[other]) * arrives
                for other, arrives in waits[message]
            ),
            default=0,
        )
        start[message] = occupancy.earliest_start(uses, free, message, ready)
        occupancy.occupy(uses, free, message, start[message])
    return start

"""Exact times of decisions: occupancy.py's pass over the columns of their sends.

Few sends are timed by the plain functions, many by compiled code; both say the same.

What messages cost: how long each is under way, and what it holds for how long.

This is where the timing rule is: a link's columns ``alpha`` and ``overhead`` already follow the
topology's alpha rule (``occupy``: an edge is held for the overhead and the bytes; ``delay``: for
the bytes, and alpha only delays), and the resources are edges. A rule that holds something else
(the connection, as long as alpha lasts) adds uses here, and every scheduler follows it.
"""

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import cache, lru_cache
from math import lcm
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.timing import occupancy
from taccl.timing.jit import is_worth_compiling, jit
from taccl.timing.occupancy import (
    DONE,
    NOTHING,
    TOO_EARLY,
    Sends,
    Times,
    Uses,
    Values,
    start_copies,
    start_sums,
)
from taccl.topology.fans import NO_FANS, FanTable, fan_betas
from taccl.units import Time, ceil_time

if TYPE_CHECKING:
    from taccl.collectives import Collective
    from taccl.topology.graph import Topology
    from taccl.topology.links import LinkTable
    from taccl.topology.symmetry import Group


def uses_of(
    group: "Group", chunk_size: Fraction, link: NDArray[np.int32], chunks: NDArray[np.int64]
) -> Uses:
    """Return what messages cost; resources are orbits of edges, by their smallest edge.

    `group` are the symmetries, with the topology; `chunk_size` is in bytes; `link` and `chunks` are
    the link of every message and how many chunks it carries.
    """
    table = group.topology.links
    first, edge = table.crossed_by(link)
    owner = np.repeat(np.arange(len(link)), np.diff(first))
    time = byte_times(table, edge, chunk_size, chunks[owner])
    slowest = np.zeros(len(link), dtype=np.int64)
    np.maximum.at(slowest, owner, time)
    used = group.topology.edge_table.is_resource[edge]
    owner, edge, time = owner[used], edge[used], time[used]
    first = np.concatenate(([0], np.cumsum(np.bincount(owner, minlength=len(link)))))
    held = table.overhead[link][owner] + time
    return Uses(
        first, group.edge_orbit[edge], np.zeros_like(held), held, table.alpha[link] + slowest
    )


def batch_uses(
    group: "Group", chunk_size: Fraction, link: NDArray[np.int32], first: Times, fans: "FanTable"
) -> Uses:
    """Return what messages of rows cost, of which some are batches of fans.

    `link` has the link of every row, or the number of links and a fan of `fans`, and `first` where
    each message begins. `group` and `chunk_size` are as for :func:`uses_of`. Raises ValueError
    where fans and links are in one message.
    """
    lengths, links = np.diff(first), len(group.topology.links)
    is_fan = link >= links
    if not is_fan.any():
        return uses_of(group, chunk_size, link[first[:-1]], lengths)
    of_fans = is_fan[first[:-1]]
    message = np.repeat(np.arange(len(lengths)), lengths)
    if (of_fans[message] != is_fan).any():
        raise ValueError("a message of fans has a link, too")
    plain = uses_of(group, chunk_size, link[first[:-1]][~of_fans], lengths[~of_fans])
    number = np.cumsum(of_fans) - 1
    fused = fan_uses(group, chunk_size, number[message[is_fan]], link[is_fan] - links, fans)
    # Where each message's uses begin, in a row of both.
    counts = np.zeros(len(lengths), dtype=np.int64)
    begin, arrival = np.zeros_like(counts), np.zeros_like(counts)
    for uses, ours, shift in ((plain, ~of_fans, 0), (fused, of_fans, len(plain.resource))):
        counts[ours], arrival[ours] = np.diff(uses.first), uses.arrival
        begin[ours] = uses.first[:-1] + shift
    all_first = np.concatenate(([0], np.cumsum(counts)))
    at = np.arange(all_first[-1]) + np.repeat(begin - all_first[:-1], counts)
    resource, held = (np.concatenate(pair)[at] for pair in (
        (plain.resource, fused.resource), (plain.held, fused.held)))  # fmt: skip
    return Uses(all_first, resource, np.zeros_like(held), held, arrival)


def fan_uses(
    group: "Group",
    chunk_size: Fraction,
    batch: NDArray[np.int64],
    fan: NDArray[np.integer],
    fans: "FanTable",
    chunks: NDArray[np.int64] | None = None,
) -> Uses:
    """Return what batches of fans cost, with all images under the `group` in one batch.

    `batch` and `fan` have the batch and the fan of `fans` of every row, each of one chunk of
    `chunk_size` bytes, or as many as `chunks` has. A batch flows together: the bytes of its rows
    are added up edge by edge, and it lasts as long as its busiest edge. Of several fans it holds
    all edges so long, of one every edge as long as that is busy.
    """
    edges, count = len(group.topology.edges), int(batch.max(initial=-1)) + 1
    images = [fan] + [fans.image(group, element)[fan] for element in range(1, len(group))]
    carried = np.tile(np.ones_like(batch) if chunks is None else chunks, len(images))
    batch, fan = np.tile(batch, len(images)), np.concatenate(images)
    pairs, row = np.unique(batch * len(fans) + fan, return_inverse=True)
    chunks = np.zeros(len(pairs), dtype=np.int64)
    np.add.at(chunks, row, carried)
    batch, fan = np.divmod(pairs, len(fans))
    several = np.bincount(batch, minlength=count) > 1
    alpha, overhead = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    np.maximum.at(alpha, batch, fans.alpha[fan])
    np.maximum.at(overhead, batch, fans.overhead[fan])
    row = np.repeat(np.arange(len(fan)), np.diff(fans.use_start)[fan])
    within = np.arange(len(row)) - np.searchsorted(row, row)
    use = fans.use_start[fan[row]] + within
    edge, carried = fans.use_edge[use], fans.use_times[use] * chunks[row]
    rate, scale = _rates(group.topology, fans, edge, fan[row])
    places, at = np.unique(batch[row] * edges + edge, return_inverse=True)
    load = np.zeros(len(places), dtype=object)
    np.add.at(load, at, rate * carried)
    busy, known = load > 0, {0: 0}
    for each in set(load[busy].tolist()):
        known[each] = ceil_time(Fraction(each, scale), chunk_size)
    time = np.array([known[each] for each in load[busy].tolist()], dtype=np.int64)
    batch, edge = np.divmod(places[busy], edges)
    longest = np.zeros(count, dtype=np.int64)
    np.maximum.at(longest, batch, time)
    held = overhead[batch] + np.where(several[batch], longest[batch], time)
    # Of the edges of an orbit one stands for all; where they differ, the longest.
    keys, at = np.unique(batch * edges + group.edge_orbit[edge], return_inverse=True)
    most = np.zeros(len(keys), dtype=np.int64)
    np.maximum.at(most, at, held)
    batch, orbit = np.divmod(keys, edges)
    first = np.searchsorted(batch, np.arange(count + 1)).astype(np.int64)
    return Uses(first, orbit.astype(np.int32), np.zeros_like(most), most, alpha + longest)


def _rates(
    topology: "Topology", fans: "FanTable", edge: NDArray[np.int32], fan: NDArray[np.integer]
) -> tuple[NDArray[np.object_], int]:
    """Return the picoseconds for each byte of fans on edges as whole numbers by a scale."""
    betas = fan_betas(topology)
    width = len(fans)
    keys, at = np.unique(edge.astype(np.int64) * width + fan, return_inverse=True)
    exact = [max(betas[key // width], fans.floor[key % width]) for key in keys.tolist()]
    scale = lcm(*(rate.denominator for rate in exact))
    whole = np.array([int(rate * scale) for rate in exact], dtype=object)
    return whole[at], scale


def reversed_uses(uses: Uses) -> Uses:
    """Return the same messages in reversed time: what was held at the end is held at the start."""
    arrival = np.repeat(uses.arrival, np.diff(uses.first))
    return uses._replace(offset=arrival - uses.offset - uses.held)


def as_list(column: Times) -> Times:
    """Return a column as a list, which plain Python reads and writes several times as fast."""
    listed: Times = column.tolist()
    return listed


def as_lists(uses: Uses) -> Uses:
    """Return the columns as lists (:func:`as_list`)."""
    return Uses(*(column.tolist() for column in uses))


def byte_times(
    table: "LinkTable", edge: NDArray[np.int32], chunk_size: Fraction, chunks: NDArray[np.int64]
) -> Times:
    """Return ceil(beta * bytes) in picoseconds for some edges of a link `table`.

    `edge` and `chunks` say which edge carries how many chunks, one entry each, of `chunk_size`
    bytes.
    """
    betas, number = _betas(table)
    width = int(chunks.max(initial=0)) + 1
    pair = number[edge] * width + chunks
    time = np.zeros(len(betas) * width, dtype=np.int64)
    for one in np.flatnonzero(np.bincount(pair, minlength=len(time))).tolist():
        time[one] = ceil_time(betas[one // width], one % width * chunk_size)
    found: Times = time[pair]
    return found


@lru_cache(maxsize=4)
def _betas(table: "LinkTable") -> tuple[tuple[Fraction, ...], NDArray[np.int64]]:
    """Return the different betas of a topology, and which of them every edge has."""
    # Fractions are slow to hash, and most edges share theirs.
    known: dict[Fraction, int] = {}
    by_object = {id(beta): beta for beta in table.betas}
    number = {key: known.setdefault(beta, len(known)) for key, beta in by_object.items()}
    return tuple(known), np.array([number[id(beta)] for beta in table.betas], dtype=np.int64)


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
        plain = not is_worth_compiling("retiming", rows, WORTH_COMPILED)
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
    parts = [occupancy]
    return (jit(occupancy.start_copies, parts, "copies"), jit(occupancy.start_sums, parts, "sums"))


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

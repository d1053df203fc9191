"""The arrays of the guided scheduler: what it reads of a problem, and the state of one run."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.model.routes import Arcs, Wanted
from taccl.timing.occupancy import Uses
from taccl.timing.retiming import reversed_uses

Times = NDArray[np.int64]
Numbers = NDArray[np.int32]

NEVER = 1 << 62
MOST_PAIRS = (1 << 28, 1 << 26)
"""Of a chunk and an arc, 16 bytes each where they are touched: where chunks go to all ranks, and
where they don't."""

TURNS, EPS_OVER, EPS_UNDER, NOISE, APART, SEED = range(6)
RUN_FIELDS = 6

LEFT, COUNT, MAKESPAN = range(3)
COUNTERS = 3

BY_CHANCE, CHEAP_FIRST, DEAR_FIRST, RARE_FIRST, IN_ORDER = range(5)
"""What goes first among messages that would finish together."""


class Field(NamedTuple):
    """What all runs on a problem share.

    `tail`, `head`, `first`: the arcs, sorted by tail.
    `kind_of`, `uses`: arcs of one kind cost the same and hold the same: what a message holds, by
    kind.
    `mask_of`, `allowed`: arcs that a chunk may take: row ``mask_of[chunk]``.
    `targets`: bool (chunks, ranks).
    `partial`: whether a chunk has ranks that it need not reach.
    `ready`: (chunks, ranks): when a chunk is at a root; -1 elsewhere.
    `free`: when each resource is free at first.
    `hops`: (chunks, ranks): the most hops a chunk may have made; no rows where there is no limit.
    """

    tail: Numbers
    head: Numbers
    first: Times
    kind_of: Numbers
    uses: Uses
    mask_of: Numbers
    allowed: NDArray[np.bool_]
    targets: NDArray[np.bool_]
    partial: NDArray[np.bool_]
    ready: Times
    free: Times
    hops: Numbers


class SchedulerState(NamedTuple):
    """The state of one run; the columns ``sent_*`` are its result.

    `at`, `distance`, `via`, `depth`: (chunks, ranks): arrival (-1: not yet), price from the nearest
    rank that has the chunk, the arc by which that is so, hops from a root.
    `free`: when each resource is free.
    `key`, `child`, `sibling`, `waits`: for each pair chunk * arcs + arc: the pairing heaps it may
    be in, and whether it is (noted only where some chunk is partial).
    `useful`: (chunks, ranks): on the cheapest way to a target of a partial chunk.
    `now`, `later`: by kind of arc: roots of the entries that could start as soon as the resources
    are free, and of those whose chunk comes later.
    `finish`, `turn`, `place`, `heap`: by kind of arc: when its first entry would arrive, at the
    earliest, rank among equals, and the heap of kinds.
    `queue`, `queued`: ranks whose distance fell.
    `missing`: targets that each chunk still has to reach.
    `counter`: everything there is one of.
    """

    at: Times
    distance: Times
    via: Numbers
    depth: Numbers
    free: Times
    key: Times
    child: Numbers
    sibling: Numbers
    waits: NDArray[np.bool_]
    useful: NDArray[np.bool_]
    now: Numbers
    later: Numbers
    finish: Times
    turn: Times
    place: Numbers
    heap: Numbers
    queue: Numbers
    queued: NDArray[np.bool_]
    missing: Numbers
    sent_chunk: Numbers
    sent_arc: Numbers
    sent_at: Times
    counter: Times


@dataclass(frozen=True)
class Begin:
    """When the `chunks` and `resources` of a field are there, where not all are from the start.

    Picoseconds, for each representative and for each resource.
    """

    chunks: Times
    resources: Times


def field_of(
    arcs: Arcs,
    wanted: Wanted,
    begin: Begin | None = None,
    hops: Numbers | None = None,
    length: int = 1,
) -> Field:
    """Return the arrays of the problem of `arcs` and `wanted`, by messages of `length` chunks.

    Chunks and resources are there when they `begin` (None: from the start). `hops`, int32 (chunks,
    ranks), has the most that a chunk may have made (None: no limit).
    """
    arrival, held = arcs.arrival(length), arcs.held(length)
    kinds, first_of, lengths = _kinds(arcs, arrival, held)
    start = np.concatenate(([0], np.cumsum(lengths[first_of]))).astype(np.int64)
    at = np.arange(start[-1]) - np.repeat(start[:-1], np.diff(start))
    at += np.repeat(arcs.use_start[first_of], np.diff(start))
    chunks = len(wanted.chunk)
    ready = np.where(wanted.roots, 0, -1).astype(np.int64)
    free = np.zeros(arcs.num_resources, dtype=np.int64)
    if begin is not None:
        ready = np.where(wanted.roots, begin.chunks[:, None], -1)
        free = begin.resources.copy()
    partial = np.array([not row.all() for row in wanted.targets | wanted.roots], dtype=np.bool_)
    uses = Uses(start, arcs.use_resource[at], held[at] * 0, held[at], arrival[first_of])
    return Field(
        arcs.tail, arcs.head, arcs.first, kinds.astype(np.int32),
        reversed_uses(uses) if arcs.reverse else uses, wanted.kind, wanted.allowed,
        wanted.targets, partial, ready, free,
        np.zeros((0, 0), dtype=np.int32) if hops is None else hops.reshape(chunks, -1),
    )  # fmt: skip


def _kinds(arcs: Arcs, arrival: Times, held: Times) -> tuple[Times, Times, Times]:
    """Return the kind of every arc, an arc of every kind, and how many resources an arc holds."""
    lengths = np.diff(arcs.use_start)
    width = int(lengths.max(initial=0))
    columns = np.full((len(arcs), 1 + 2 * width), -1, dtype=np.int64)
    columns[:, 0] = arrival
    owner = np.repeat(np.arange(len(arcs)), lengths)
    nth = np.arange(len(owner)) - arcs.use_start[owner]
    columns[owner, 1 + 2 * nth] = arcs.use_resource
    columns[owner, 2 + 2 * nth] = held
    order = np.lexsort(columns.T)
    fresh = np.ones(len(arcs), dtype=np.bool_)
    fresh[1:] = (columns[order[1:]] != columns[order[:-1]]).any(axis=1)
    kinds = np.empty(len(arcs), dtype=np.int64)
    kinds[order] = np.cumsum(fresh) - 1
    return kinds, order[fresh], lengths


def state_of(field: Field) -> SchedulerState:
    """Return arrays for the runs on a field; :func:`reset` makes them ready for each."""
    chunks, ranks = field.targets.shape
    arcs, kinds = len(field.tail), len(field.uses.arrival)
    entries = max(1, chunks * arcs)

    sends = chunks * ranks
    return SchedulerState(
        np.zeros((chunks, ranks), dtype=np.int64),
        np.zeros((chunks, ranks), dtype=np.int64),
        np.zeros((chunks, ranks), dtype=np.int32),
        np.zeros((chunks, ranks), dtype=np.int32),
        np.zeros(len(field.free), dtype=np.int64),
        np.empty(entries, dtype=np.int64),
        np.empty(entries, dtype=np.int32),
        np.empty(entries, dtype=np.int32),
        np.zeros(entries if field.partial.any() else 1, dtype=np.bool_),
        np.zeros((chunks, ranks) if field.partial.any() else (1, 1), dtype=np.bool_),
        np.zeros(kinds, dtype=np.int32),
        np.zeros(kinds, dtype=np.int32),
        np.zeros(kinds, dtype=np.int64),
        np.zeros(kinds, dtype=np.int64),
        np.zeros(kinds, dtype=np.int32),
        np.zeros(kinds, dtype=np.int32),
        np.zeros(ranks, dtype=np.int32),
        np.zeros(ranks, dtype=np.bool_),
        np.zeros(chunks, dtype=np.int32),
        np.zeros(sends, dtype=np.int32),
        np.zeros(sends, dtype=np.int32),
        np.zeros(sends, dtype=np.int64),
        np.zeros(COUNTERS, dtype=np.int64),
    )


def reset(field: Field, state: SchedulerState) -> None:
    """Make ``state`` ready for a run on ``field``."""
    state.at[:] = field.ready
    state.distance[:] = NEVER >> 1
    state.via[:] = -1
    state.depth[:] = 0
    state.free[:] = field.free
    state.waits[:] = False
    state.now[:] = -1
    state.later[:] = -1
    state.finish[:] = NEVER
    state.turn[:] = 0
    state.queued[:] = False
    state.heap[:] = np.arange(len(state.heap))
    state.place[:] = np.arange(len(state.place))
    state.missing[:] = field.targets.sum(axis=1)
    state.counter[:] = 0
    state.counter[LEFT] = state.missing.sum()

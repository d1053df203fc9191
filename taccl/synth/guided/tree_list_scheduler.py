"""Price-guided list scheduling: the trees of all chunks grow together, by the earliest arrival.

Repeatedly the (chunk, arc) is taken that would arrive first of those allowed; an arc into rank v is
allowed while its price is at most (1 + eps) times the price of the cheapest way to v from the ranks
that have the chunk. Where a chunk need not reach every rank, only arcs on the cheapest ways to its
targets are. Starts are those that retime() gives the sends in this order. Where arcs are links
turned round, a message holds its resources up to its arrival, so that the run can be played
backwards.

Plain functions on flat arrays, compiled by search.py; ``f`` is what all runs on a problem share,
``g`` the state of one run, ``price`` int64 by arc, ``run`` its settings.
Candidates wait in heaps on flat arrays: every kind of arc (arcs that cost the same) has two pairing
heaps of entries, chunk * arcs + arc, linked by child and sibling; one binary heap, with the place
of every kind in it, finds the kind with the earliest arrival.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.collectives.chunks import places_in
from taccl.model.routes import Arcs, Wanted
from taccl.timing.occupancy import NOTHING, Uses, earliest_start, occupy
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
    costs = arcs.costs(length)
    kinds, first_of = _kinds(costs)
    lengths = np.diff(costs.first)[first_of]
    start = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    at = places_in(lengths) + np.repeat(costs.first[first_of], lengths)
    chunks = len(wanted.chunk)
    ready = np.where(wanted.roots, 0, -1).astype(np.int64)
    free = np.zeros(arcs.num_resources, dtype=np.int64)
    if begin is not None:
        ready = np.where(wanted.roots, begin.chunks[:, None], -1)
        free = begin.resources.copy()
    partial = np.array([not row.all() for row in wanted.targets | wanted.roots], dtype=np.bool_)
    held = costs.held[at]
    uses = Uses(start, costs.resource[at], held * 0, held, costs.arrival[first_of])
    return Field(
        arcs.tail, arcs.head, arcs.first, kinds.astype(np.int32)[arcs.kind],
        reversed_uses(uses) if arcs.reverse else uses, wanted.kind, wanted.allowed,
        wanted.targets, partial, ready, free,
        np.zeros((0, 0), dtype=np.int32) if hops is None else hops.reshape(chunks, -1),
    )  # fmt: skip


def _kinds(costs: Uses) -> tuple[Times, Times]:
    """Return by kind of link the number of those that cost the same, and a kind of each number."""
    lengths = np.diff(costs.first)
    columns = np.full((len(lengths), 1 + 2 * int(lengths.max(initial=0))), -1, dtype=np.int64)
    columns[:, 0] = costs.arrival
    owner, nth = np.repeat(np.arange(len(lengths)), lengths), places_in(lengths)
    columns[owner, 1 + 2 * nth] = costs.resource
    columns[owner, 2 + 2 * nth] = costs.held
    order = np.lexsort(columns.T)
    fresh = np.ones(len(lengths), dtype=np.bool_)
    fresh[1:] = (columns[order[1:]] != columns[order[:-1]]).any(axis=1)
    kinds = np.empty(len(lengths), dtype=np.int64)
    kinds[order] = np.cumsum(fresh) - 1
    return kinds, order[fresh]


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


def meld(g: SchedulerState, one: int, other: int) -> int:
    """Return the root of the pairing heaps of roots ``one`` and ``other`` of ``g`` made one."""
    if g.key[other] < g.key[one] or (g.key[other] == g.key[one] and other < one):
        one, other = other, one
    g.sibling[other] = g.child[one]
    g.child[one] = other
    return one


def insert(g: SchedulerState, root: int, entry: int) -> int:
    """Return the root of the pairing heap ``root`` of ``g`` with ``entry``, whose key is set."""
    g.child[entry] = NOTHING
    g.sibling[entry] = NOTHING
    return entry if root == NOTHING else meld(g, root, entry)


def without_root(g: SchedulerState, root: int) -> int:
    """Return the root of the pairing heap ``root`` of ``g`` without its smallest entry."""
    entry = g.child[root]
    pairs = NOTHING
    while entry != NOTHING:
        other = g.sibling[entry]
        if other == NOTHING:
            g.sibling[entry] = pairs
            pairs = entry
            break
        following = g.sibling[other]
        g.sibling[entry] = NOTHING
        g.sibling[other] = NOTHING
        both = meld(g, entry, other)
        g.sibling[both] = pairs
        pairs = both
        entry = following
    if pairs == NOTHING:
        return NOTHING
    root = pairs
    entry = g.sibling[root]
    g.sibling[root] = NOTHING
    while entry != NOTHING:
        following = g.sibling[entry]
        g.sibling[entry] = NOTHING
        root = meld(g, root, entry)
        entry = following
    return root


def precedes(g: SchedulerState, one: int, other: int) -> bool:
    """Tell whether kind ``one`` of ``g`` precedes ``other``: by time, then rank among equals."""
    if g.finish[one] != g.finish[other]:
        return bool(g.finish[one] < g.finish[other])
    if g.turn[one] != g.turn[other]:
        return bool(g.turn[one] < g.turn[other])
    return one < other


def _put(g: SchedulerState, place: int, number: int) -> None:
    g.heap[place] = number
    g.place[number] = place


def rise(g: SchedulerState, number: int) -> None:
    """Move kind ``number`` of ``g``, whose key fell, to where it belongs."""
    place = g.place[number]
    while place > 0:
        above = (place - 1) >> 1
        if not precedes(g, number, g.heap[above]):
            break
        _put(g, place, g.heap[above])
        place = above
    _put(g, place, number)


def sink(g: SchedulerState, number: int) -> None:
    """Move kind ``number`` of ``g``, whose key rose, to where it belongs."""
    place, size = g.place[number], len(g.heap)
    while 2 * place + 1 < size:
        below = 2 * place + 1
        if below + 1 < size and precedes(g, g.heap[below + 1], g.heap[below]):
            below += 1
        if not precedes(g, g.heap[below], number):
            break
        _put(g, place, g.heap[below])
        place = below
    _put(g, place, number)


SCATTER = (1 << 31) - 1


def mix(number: int) -> int:
    """Return a number from 0 to 2^31 - 1 that looks random."""
    number = (int(number) & SCATTER) * 1_103_515_245 + 12_345
    number = ((number >> 13) ^ number) & SCATTER
    number = number * 1_664_525 + 1_013_904_223
    return ((number >> 15) ^ number) & SCATTER


def price_of(f: Field, price: Times, run: Times, chunk: int, arc: int) -> int:
    """Return what ``arc`` of ``f`` costs ``chunk``: its ``price`` with the noise of ``run``."""
    if run[NOISE] == 0:
        return int(price[arc])
    number = arc + (chunk * len(f.tail) if run[APART] else 0)
    chance = (int(run[NOISE]) * (mix(number + int(run[SEED])) >> 11)) >> 20
    return int(price[arc]) * (1024 + chance) >> 10


def _is_open(f: Field, g: SchedulerState, price: Times, run: Times, entry: int) -> bool:
    """Tell whether an entry may still be taken."""
    chunk, arc = entry // len(f.tail), entry % len(f.tail)
    head = f.head[arc]
    if g.at[chunk, head] >= 0 or g.missing[chunk] == 0:
        return False
    if f.partial[chunk] and not g.useful[chunk, head]:
        return False
    if len(f.hops) and g.depth[chunk, f.tail[arc]] >= f.hops[chunk, head]:
        return False
    if run[EPS_UNDER] == 0:
        return True
    cost = price_of(f, price, run, chunk, arc)
    return bool(cost * run[EPS_UNDER] <= g.distance[chunk, head] * run[EPS_OVER])


def _turn(f: Field, g: SchedulerState, price: Times, run: Times, entry: int) -> int:
    """Return the rank of an entry among those that would arrive together."""
    if run[TURNS] == IN_ORDER:
        return entry
    chance = mix(entry + run[SEED]) >> 11
    chunk, arc = entry // len(f.tail), entry % len(f.tail)
    if run[TURNS] == CHEAP_FIRST:
        return (int(price[arc]) << 20) + chance
    if run[TURNS] == DEAR_FIRST:
        return chance - (int(price[arc]) << 20)
    if run[TURNS] == RARE_FIRST:
        return chance - (int(g.missing[chunk]) << 20)
    return chance


def _drop(g: SchedulerState, entry: int) -> None:
    if len(g.waits) > 1:
        g.waits[entry] = False


def _first(f: Field, g: SchedulerState, price: Times, run: Times, kind: int) -> int:
    """Return the entry of a kind that would arrive first, and note its key."""
    free = earliest_start(f.uses, g.free, kind, 0)
    root = g.later[kind]
    while root != NOTHING and g.key[root] <= free:
        entry = root
        root = without_root(g, root)
        if _is_open(f, g, price, run, entry):
            g.key[entry] = _turn(f, g, price, run, entry)
            g.now[kind] = insert(g, g.now[kind], entry)
        else:
            _drop(g, entry)
    g.later[kind] = root
    root = g.now[kind]
    while root != NOTHING and not _is_open(f, g, price, run, root):
        _drop(g, root)
        root = without_root(g, root)
    g.now[kind] = root
    if root != NOTHING:
        g.finish[kind] = free + f.uses.arrival[kind]
        g.turn[kind] = g.key[root]
        return int(root)
    root = g.later[kind]
    while root != NOTHING and not _is_open(f, g, price, run, root):
        _drop(g, root)
        root = without_root(g, root)
    g.later[kind] = root
    g.finish[kind] = NEVER if root == NOTHING else g.key[root] + f.uses.arrival[kind]
    g.turn[kind] = 0 if root == NOTHING else _turn(f, g, price, run, root)
    return int(root)


def _push(f: Field, g: SchedulerState, chunk: int, arc: int) -> None:
    """Let an arc wait for its turn, from when its tail has the chunk."""
    entry = chunk * len(f.tail) + arc
    if len(g.waits) > 1:
        if g.waits[entry]:
            return
        g.waits[entry] = True
    kind, ready = f.kind_of[arc], g.at[chunk, f.tail[arc]]
    g.key[entry] = ready
    g.later[kind] = insert(g, g.later[kind], entry)
    finish = earliest_start(f.uses, g.free, kind, ready) + f.uses.arrival[kind]
    if finish <= g.finish[kind]:
        g.finish[kind] = finish
        g.turn[kind] = -NEVER
        rise(g, kind)


def _measure(f: Field, g: SchedulerState, price: Times, run: Times, chunk: int) -> None:
    """Lower the distances of a chunk from the ranks in the queue on."""
    mask, size = f.mask_of[chunk], len(g.queue)
    begin, waiting = 0, 0
    for rank in range(size):
        if g.queued[rank]:
            g.queue[waiting] = rank
            waiting += 1
    while waiting > 0:
        rank = g.queue[begin]
        begin = (begin + 1) % size
        waiting -= 1
        g.queued[rank] = False
        for arc in range(f.first[rank], f.first[rank + 1]):
            if not f.allowed[mask, arc]:
                continue
            head = f.head[arc]
            distance = g.distance[chunk, rank] + price_of(f, price, run, chunk, arc)
            if distance < g.distance[chunk, head]:
                g.distance[chunk, head] = distance
                g.via[chunk, head] = arc
                if not g.queued[head]:
                    g.queued[head] = True
                    g.queue[(begin + waiting) % size] = head
                    waiting += 1


def _aim(f: Field, g: SchedulerState, chunk: int) -> None:
    """Find which ranks are on the cheapest ways to the targets of a chunk, and set out for them."""
    for rank in range(len(g.queue)):
        g.useful[chunk, rank] = False
    for target in range(len(g.queue)):
        if not f.targets[chunk, target] or g.at[chunk, target] >= 0:
            continue
        rank = target
        while g.at[chunk, rank] < 0 and not g.useful[chunk, rank]:
            arc = g.via[chunk, rank]
            if arc == NOTHING:
                break
            g.useful[chunk, rank] = True
            rank = f.tail[arc]
            if g.at[chunk, rank] >= 0:
                _push(f, g, chunk, arc)


def _arrive(f: Field, g: SchedulerState, price: Times, run: Times, chunk: int, rank: int) -> None:
    """Let a chunk go on from a rank that it has just got to."""
    if run[EPS_UNDER] or f.partial[chunk]:
        g.distance[chunk, rank] = 0
        g.queued[rank] = True
        _measure(f, g, price, run, chunk)
    if f.partial[chunk]:
        _aim(f, g, chunk)
    mask = f.mask_of[chunk]
    for arc in range(f.first[rank], f.first[rank + 1]):
        if f.allowed[mask, arc] and _is_open(f, g, price, run, chunk * len(f.tail) + arc):
            _push(f, g, chunk, arc)


def _begin(f: Field, g: SchedulerState, price: Times, run: Times) -> None:
    chunks, ranks = f.targets.shape
    for chunk in range(chunks):
        if g.missing[chunk]:
            for rank in range(ranks):
                if g.at[chunk, rank] >= 0:
                    _arrive(f, g, price, run, chunk, rank)


def _take(f: Field, g: SchedulerState, price: Times, run: Times, kind: int, entry: int) -> None:
    """Send the first message of a kind."""
    chunk, arc = entry // len(f.tail), entry % len(f.tail)
    head = f.head[arc]
    end = g.finish[kind]
    start = end - f.uses.arrival[kind]
    if g.now[kind] == entry:
        g.now[kind] = without_root(g, entry)
    else:
        g.later[kind] = without_root(g, entry)
    _drop(g, entry)
    occupy(f.uses, g.free, kind, start)
    g.at[chunk, head] = end
    g.depth[chunk, head] = g.depth[chunk, f.tail[arc]] + 1
    number = g.counter[COUNT]
    g.sent_chunk[number] = chunk
    g.sent_arc[number] = arc
    g.sent_at[number] = start
    g.counter[COUNT] = number + 1
    g.counter[MAKESPAN] = max(g.counter[MAKESPAN], end)
    if f.targets[chunk, head]:
        g.missing[chunk] -= 1
        g.counter[LEFT] -= 1
    if g.missing[chunk]:
        _arrive(f, g, price, run, chunk, head)


def grow(f: Field, g: SchedulerState, price: Times, run: Times, limit: int) -> int:
    """Schedule everything; return the makespan, or NEVER at the limit or without a way on.

    `f` is the problem, `g` a state as new (:func:`reset`). The
    `price` is of every arc, `run` has the settings, and the run must stay below `limit`
    picoseconds.
    """
    if len(g.heap) == 0:
        return NEVER if g.counter[LEFT] else 0
    _begin(f, g, price, run)
    while g.counter[LEFT] > 0:
        kind = g.heap[0]
        finish, turn = g.finish[kind], g.turn[kind]
        entry = _first(f, g, price, run, kind)
        if g.finish[kind] != finish or g.turn[kind] != turn:
            sink(g, kind)
            continue
        if entry == NOTHING or finish >= limit:
            return NEVER
        _take(f, g, price, run, kind, entry)
    return int(g.counter[MAKESPAN])

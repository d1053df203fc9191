"""Chunks inserted one by one into a reservation table: what insertion_scheduler.py compiles.

Every chunk takes the path by which it arrives first, given when the chunks before it hold each
resource; gaps are used. Then some chunks are taken out and inserted again in another order, now and
then blind to an arc, again and again (ruin and recreate), and what is not much worse goes on (late
acceptance). So routes and times are decided together, which a flow of totals can't: where a root
sends through one port, what has the longest way left must leave first, and take a path that is free
by then.

References
----------
Schrimpf, Schneider, Stamm-Wilbrandt, Dueck: Record breaking optimization results using the ruin
and recreate principle (2000). Christiaens, Vanden Berghe: Slack induction by string removals for
vehicle routing problems (2020), for the blinks. Burke, Bykov: The late acceptance hill-climbing
heuristic (2017).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.timing.occupancy import (
    NEVER,
    NOTHING,
    Numbers,
    Reservations,
    Times,
    Uses,
    cancel,
    earliest_gap,
    reserve,
)

Flags = NDArray[np.bool_]

UNSERVED = 1 << 46
"""What the arrival of a chunk that has no path counts: more than a minute."""
MOST_REMOVED = 8
"""Chunks that are taken out at once, at most."""

BLINK = 50
"""One arc of so many is not looked at when a chunk is inserted again."""

LAST = 20
"""What a picosecond of the last arrival counts, beside one of the mean of all."""

BITS = 1 << 31


class RoutingInstance(NamedTuple):
    """What chunks may take.

    `first`: arcs that leave rank r are ``first[r] .. first[r+1]-1``.
    `tail`, `head`: of every arc: where it begins and ends.
    `uses`: what a chunk holds on every arc.
    `allowed`: (kinds, arcs): which arcs a chunk may take.
    `least`: (ranks, ranks): picoseconds from one to another on an idle machine, at least.
    `root`, `end`, `kind`: of every chunk.
    """

    first: Times
    tail: Numbers
    head: Numbers
    uses: Uses
    allowed: Flags
    least: Times
    root: Numbers
    end: Numbers
    kind: Numbers


class Paths(NamedTuple):
    """Paths of chunks, from their ends back to their roots.

    Every chunk makes so many `hops` and is there at `arrive`; `arc` and `start`, (chunks, hops),
    are the arcs, and when it starts on them. Times are in picoseconds.
    """

    hops: Numbers
    arc: Numbers
    start: Times
    arrive: Times


class SearchState(NamedTuple):
    """What is reserved, and what the search works on.

    `table`: when each resource is held.
    `label`, `via`, `since`, `seen`: by rank, of the chunk that is inserted: when it gets there, on
    which arc, started when.
    `now`, `best`: the paths of all chunks, and the best that were found.
    `removed`: the paths of chunks that were taken out, by the number in ``out``.
    `order`: chunks as they are inserted at first; later those that were taken out, as noted.
    `out`: chunks that are taken out, as they are inserted again.
    `random`: the state of a random number generator.
    `history`: what was accepted in the last rounds, by their number.
    """

    table: Reservations
    label: Times
    via: Numbers
    since: Times
    seen: Flags
    now: Paths
    best: Paths
    removed: Paths
    order: Numbers
    out: Numbers
    random: Times
    history: Times


def below(state: SearchState, count: int) -> int:
    """Return a random number from 0 to `count` - 1, by the generator of `state`; at most 2**15."""
    state.random[0] = (state.random[0] * 1103515245 + 12345) % BITS
    return int((state.random[0] >> 16) % count)


def insert(instance: RoutingInstance, state: SearchState, chunk: int, blink: int) -> None:
    """Reserve in `state` the path of the `instance` by which a `chunk` arrives first, if any.

    By chance, one arc of every `blink` is not looked at; 0: all are.
    """
    root, end, kind = instance.root[chunk], instance.end[chunk], instance.kind[chunk]
    for rank in range(len(state.label)):
        state.label[rank] = NEVER
        state.seen[rank] = False
    state.label[root] = 0
    rank = int(root)
    while rank != end:
        state.seen[rank] = True
        for arc in range(instance.first[rank], instance.first[rank + 1]):
            head = instance.head[arc]
            soonest = state.label[rank] + instance.uses.arrival[arc]
            if (
                state.seen[head]
                or not instance.allowed[kind, arc]
                or instance.least[head, end] == NEVER
                or soonest + instance.least[head, end] >= state.label[end]
                or soonest >= state.label[head]
                or (blink > 0 and below(state, blink) == 0)
            ):
                continue
            # On a path each rank may use a resource once more.
            start = earliest_gap(
                instance.uses, state.table, arc, int(state.label[rank]), len(state.label)
            )
            if start + instance.uses.arrival[arc] < state.label[head]:
                state.label[head] = start + instance.uses.arrival[arc]
                state.since[head] = start
                state.via[head] = arc
        rank, nearest = NOTHING, NEVER
        for other in range(len(state.label)):
            if not state.seen[other] and state.label[other] < NEVER:
                away = state.label[other] + instance.least[other, end]
                if away < nearest:
                    rank, nearest = other, away
        if rank == NOTHING:
            break
    hops, rank, now = 0, int(end), state.now
    if state.label[rank] < NEVER:
        while rank != root:
            arc = state.via[rank]
            now.arc[chunk, hops] = arc
            now.start[chunk, hops] = state.since[rank]
            reserve(instance.uses, state.table, arc, int(state.since[rank]))
            hops += 1
            rank = int(instance.tail[arc])
    now.hops[chunk] = hops
    now.arrive[chunk] = state.label[end]


def remove(instance: RoutingInstance, state: SearchState, chunk: int) -> None:
    """Cancel the reservations in `state` for a `chunk` of the `instance`."""
    now = state.now
    for hop in range(now.hops[chunk]):
        cancel(instance.uses, state.table, now.arc[chunk, hop], int(now.start[chunk, hop]))
    now.hops[chunk] = 0


def copy_path(source: Paths, number: int, target: Paths, to: int) -> None:
    """Write path `number` of the `source` into path `to` of the `target`."""
    target.hops[to] = source.hops[number]
    target.arrive[to] = source.arrive[number]
    for hop in range(source.hops[number]):
        target.arc[to, hop] = source.arc[number, hop]
        target.start[to, hop] = source.start[number, hop]


def keep(state: SearchState) -> None:
    """Note all paths as the best."""
    for chunk in range(len(state.now.hops)):
        copy_path(state.now, chunk, state.best, chunk)


def latest(paths: Paths) -> int:
    """Return the last arrival in picoseconds."""
    end = 0
    for chunk in range(len(paths.arrive)):
        end = max(end, int(paths.arrive[chunk]))
    return end


def cost(paths: Paths) -> int:
    """Return what is to be little: the last arrival, and a little of the mean of all."""
    total = 0
    for chunk in range(len(paths.arrive)):
        total += min(int(paths.arrive[chunk]), UNSERVED)
    return LAST * len(paths.arrive) * min(latest(paths), UNSERVED) + total


def choose(state: SearchState) -> int:
    """Choose chunks to be taken out: one of the last to arrive among them; return how many."""
    arrive, out = state.now.arrive, state.out
    count = min(len(arrive), 2 + below(state, MOST_REMOVED - 1))
    late, end = 0, latest(state.now)
    for chunk in range(len(arrive)):
        if arrive[chunk] == end:
            late += 1
            if below(state, late) == 0:
                out[0] = chunk
    found = 1
    while found < count:
        chunk, known = below(state, len(arrive)), False
        for number in range(found):
            known = known or out[number] == chunk
        if not known:
            out[found] = chunk
            found += 1
    return found


def change(instance: RoutingInstance, state: SearchState) -> int:
    """Take some chunks of the `instance` out of the `state`, insert them anew; return how many."""
    count, out = choose(state), state.out
    for number in range(count):
        state.order[number] = out[number]
        copy_path(state.now, int(out[number]), state.removed, number)
        remove(instance, state, int(out[number]))
    for number in range(count - 1, 0, -1):  # shuffled
        other, chunk = below(state, number + 1), out[number]
        out[number] = out[other]
        out[other] = chunk
    for number in range(count):
        insert(instance, state, int(out[number]), BLINK)
    return count


def undo(instance: RoutingInstance, state: SearchState, count: int) -> None:
    """Put `count` chunks of the `instance` back where they were in the `state`."""
    for number in range(count):
        remove(instance, state, int(state.order[number]))
    now = state.now
    for number in range(count):
        chunk = int(state.order[number])
        copy_path(state.removed, number, now, chunk)
        for hop in range(now.hops[chunk]):
            reserve(instance.uses, state.table, now.arc[chunk, hop], int(now.start[chunk, hop]))


def search(instance: RoutingInstance, state: SearchState, rounds: int, goal: int) -> int:
    """Try some changes and return the least last arrival, NEVER where a chunk has no path.

    `instance` is what chunks may take, and `state` what is reserved, with the best paths. There are
    so many `rounds`; with none all chunks are inserted into the empty table. A last arrival of
    `goal` picoseconds is good enough.
    """
    if rounds == 0:
        for number in range(len(state.order)):
            insert(instance, state, int(state.order[number]), 0)
        if latest(state.now) < NEVER:
            keep(state)
        return latest(state.now)
    best, now = latest(state.best), cost(state.now)
    if state.history[0] == 0:
        state.history[:] = now
    for number in range(rounds):
        if best <= goal:
            break
        count = change(instance, state)
        before, at = now, number % len(state.history)
        now = cost(state.now)
        if now > before and now > state.history[at]:
            undo(instance, state, count)
            now = before
        elif latest(state.now) < best:
            best = latest(state.now)
            keep(state)
        state.history[at] = min(now, state.history[at])
    return best

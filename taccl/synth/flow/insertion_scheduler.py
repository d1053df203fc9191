"""Routes and times together, for few chunks: inserted one by one, again and again.

A flow balances what each resource carries in all. Where one root serves everyone that is not
enough: what leaves last still has its way to go. A gather, whose chunks meet at their end, is
searched as the scatter that it is backwards in time.

Chunks are inserted one by one into a reservation table, by a compiled loop. Every chunk takes the
path by which it arrives first, given when the chunks before it hold each resource; gaps are used.
Then some chunks are taken out and inserted again in another order, now and then blind to an arc,
again and again (ruin and recreate), and what is not much worse goes on (late acceptance). So routes
and times are decided together, which a flow of totals can't: where a root sends through one port,
what has the longest way left must leave first, and take a path that is free by then.

References
----------
Schrimpf, Schneider, Stamm-Wilbrandt, Dueck: Record breaking optimization results using the ruin
and recreate principle (2000). Christiaens, Vanden Berghe: Slack induction by string removals for
vehicle routing problems (2020), for the blinks. Burke, Bykov: The late acceptance hill-climbing
heuristic (2017).
"""

import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.model.problem import Options, Problem
from taccl.model.schedule import Decisions
from taccl.synth.flow.program import FlowInstance, flow_instance
from taccl.synth.flow.routes import least_times
from taccl.timing import occupancy
from taccl.timing.deadline import Deadline
from taccl.timing.jit import jit, report_compilation
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
from taccl.units import Time

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


MESSAGE = "compiling the search for routes and times; once on this machine, for about 5 s"

MAX_CHUNKS = 300
"""Chunks that are inserted one by one, at most."""

MAX_RANKS = 128
"""Of the machine: every insertion looks at all of them."""

ROUNDS = 2000
"""Changes tried between two looks at the clock."""

HISTORY = 1000
"""Rounds that are looked back on; a divisor of ROUNDS."""

PATIENCE = 25
"""Of these, since the last that was better."""

COUNTED = 3
"""Of these, where work is counted instead of time."""


def inserted(
    problem: Problem, options: Options, clock: Deadline, goal: Time
) -> Iterator[Decisions]:
    """Yield decisions of single chunks, each better than those before, until the goal is met.

    None where there are too many chunks or ranks, or too many chunks take one edge. The `problem`
    is without symmetry; every chunk goes from one rank to one, and there is a path for it. The
    `options` have the seed and whether work is counted; if not, the `clock` limits the search. A
    makespan of `goal` picoseconds is good enough.
    """
    collective = problem.collective
    if collective.num_chunks > MAX_CHUNKS or collective.num_ranks > MAX_RANKS:
        return
    flow = flow_instance(problem)
    instance = _routing(flow)
    state = _empty_state(instance, options.seed)
    with report_compilation(options.report, MESSAGE):
        best = _compiled()(instance, state, 0, goal)
    if best >= NEVER:  # the table is full: chunks cross one edge more often than it has room for
        return
    yield _decisions(flow, instance, state.best)
    since = tried = 0
    while since < PATIENCE and best > goal and clock.left:
        if options.deterministic and tried == COUNTED:
            return
        found = _compiled()(instance, state, ROUNDS, goal)
        since, tried = since + 1, tried + 1
        if found < best:
            best, since = found, 0
            yield _decisions(flow, instance, state.best)


def _routing(flow: FlowInstance) -> RoutingInstance:
    arcs, wanted = flow.arcs, flow.wanted
    order = np.argsort(flow.tail, kind="stable")
    lengths = np.diff(arcs.use_start)[order]
    start = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    at = np.repeat(arcs.use_start[:-1][order] - start[:-1], lengths) + np.arange(int(start[-1]))
    arrival, held = arcs.arrival(), arcs.held()[at]
    # What is held for no time is never in anyone's way.
    used = held > 0
    start = np.concatenate(([0], np.cumsum(used)))[start]
    at, held, lengths = at[used], held[used], np.diff(start)
    # Backwards, a message arrives when it starts, and holds its resources up to then.
    offset = np.repeat(arrival[order], lengths) - held if flow.backwards else held * 0
    sources, targets = wanted.roots.argmax(axis=1), wanted.targets.argmax(axis=1)
    root, end = (targets, sources) if flow.backwards else (sources, targets)
    root[~wanted.targets.any(axis=1)] = end[~wanted.targets.any(axis=1)]
    tail, ranks = flow.tail[order], np.arange(flow.num_ranks)
    least = least_times(flow, arrival.astype(np.float64), order, ranks)
    least[~np.isfinite(least)] = NEVER
    return RoutingInstance(
        np.searchsorted(tail, np.arange(flow.num_ranks + 1)).astype(np.int64),
        tail, flow.head[order], Uses(start, arcs.use_resource[at], offset, held, arrival[order]),
        wanted.allowed[:, order], least.astype(np.int64), root.astype(np.int32),
        end.astype(np.int32), wanted.kind,
    )  # fmt: skip


def _empty_state(instance: RoutingInstance, seed: int) -> SearchState:
    """Return the state with nothing reserved; the chunks with the longest way go first."""
    ranks, chunks = len(instance.first) - 1, len(instance.root)
    shape = (int(instance.uses.resource.max(initial=0)) + 1, 2 * chunks + ranks)
    away = instance.least[instance.root, instance.end]

    def numbers(*shape: int) -> NDArray[np.int32]:
        return np.zeros(shape, dtype=np.int32)

    def times(*shape: int) -> NDArray[np.int64]:
        return np.zeros(shape, dtype=np.int64)

    def paths(count: int) -> Paths:
        return Paths(numbers(count), numbers(count, ranks), times(count, ranks), times(count))

    return SearchState(
        Reservations(times(*shape), times(*shape), numbers(shape[0])),
        times(ranks), numbers(ranks), times(ranks), np.zeros(ranks, dtype=np.bool_),
        paths(chunks), paths(chunks), paths(MOST_REMOVED),
        np.argsort(-away, kind="stable").astype(np.int32), numbers(max(chunks, MOST_REMOVED)),
        np.array([seed % (1 << 31)], dtype=np.int64), times(HISTORY),
    )  # fmt: skip


def _decisions(flow: FlowInstance, instance: RoutingInstance, paths: Paths) -> Decisions:
    """Return paths in the order of their starts."""
    link = flow.arcs.link[np.argsort(flow.tail, kind="stable")]
    rows: list[tuple[int, int, int, int]] = []
    for row, chunk in enumerate(flow.wanted.chunk.tolist()):
        for hop in range(int(paths.hops[row])):
            arc, start = int(paths.arc[row, hop]), int(paths.start[row, hop])
            time = -(start + int(instance.uses.arrival[arc])) if flow.backwards else start
            # From the end of a path to its root; messages that take no time start at one time.
            rows.append((time, chunk, hop if flow.backwards else -hop, int(link[arc])))
    rows.sort()
    return Decisions.of(
        [(chunk, taken, number, False) for number, (_, chunk, _, taken) in enumerate(rows)]
    )


@cache
def _compiled() -> Callable[[RoutingInstance, SearchState, int, Time], int]:
    return jit(search, [sys.modules[__name__], occupancy], "reserved")

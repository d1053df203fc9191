"""Routes and times together, for few chunks: inserted one by one, again and again.

A flow balances what each resource carries in all. Where one root serves everyone that is not
enough: what leaves last still has its way to go. The search is in insertion_loop.py; a gather,
whose chunks meet at their end, is searched as the scatter that it is backwards in time.
"""

from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
from numpy.typing import NDArray

from taccl.model.problem import Options, Problem
from taccl.model.schedule import Decisions
from taccl.synth.flow import insertion_loop
from taccl.synth.flow.insertion_loop import MOST_REMOVED, Paths, RoutingInstance, SearchState
from taccl.synth.flow.program import FlowInstance, flow_instance
from taccl.synth.flow.routes import least_times
from taccl.timing import occupancy
from taccl.timing.deadline import Deadline
from taccl.timing.jit import jit, report_compilation
from taccl.timing.occupancy import NEVER, Reservations, Uses
from taccl.units import Time

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
    return jit(insertion_loop.search, [insertion_loop, occupancy], "reserved")

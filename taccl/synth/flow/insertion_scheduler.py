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
from taccl.synth.flow.insertion_loop import MOST_REMOVED, Book, Roads
from taccl.synth.flow.program import Net
from taccl.synth.flow.routes import Question, question_of
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

    None where there are too many chunks or ranks, or too many chunks take one edge.

    Parameters
    ----------
    problem
        Without symmetry; every chunk goes from one rank to one, and there is a way for it.
    """
    collective = problem.collective
    if collective.num_chunks > MAX_CHUNKS or collective.num_ranks > MAX_RANKS:
        return
    question = question_of(problem)
    roads = _roads(question)
    book = _book(roads, options.seed)
    with report_compilation(options.report, MESSAGE):
        best = _compiled()(roads, book, 0, goal)
    if best >= NEVER:  # the book is full: chunks cross one edge more often than it has room for
        return
    yield _decisions(question, roads, book)
    since = tried = 0
    while since < PATIENCE and best > goal and clock.left:
        if options.deterministic and tried == COUNTED:
            return
        found = _compiled()(roads, book, ROUNDS, goal)
        since, tried = since + 1, tried + 1
        if found < best:
            best, since = found, 0
            yield _decisions(question, roads, book)


def _roads(question: Question) -> Roads:
    network, wanted = question.network, question.wanted
    arcs = network.arcs
    order = np.argsort(network.tail, kind="stable")
    lengths = np.diff(arcs.use_start)[order]
    start = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    at = np.repeat(arcs.use_start[:-1][order] - start[:-1], lengths) + np.arange(int(start[-1]))
    arrival, held = arcs.arrival(), arcs.held()[at]
    # What is held for no time is never in anyone's way.
    used = held > 0
    start = np.concatenate(([0], np.cumsum(used)))[start]
    at, held, lengths = at[used], held[used], np.diff(start)
    # Backwards, a message arrives when it starts, and holds its resources up to then.
    offset = np.repeat(arrival[order], lengths) - held if question.backwards else held * 0
    sources, targets = wanted.roots.argmax(axis=1), wanted.targets.argmax(axis=1)
    root, end = (targets, sources) if question.backwards else (sources, targets)
    root[~wanted.targets.any(axis=1)] = end[~wanted.targets.any(axis=1)]
    tail = network.tail[order]
    return Roads(
        np.searchsorted(tail, np.arange(network.num_ranks + 1)).astype(np.int64),
        tail, network.head[order], Uses(start, arcs.use_resource[at], offset, held, arrival[order]),
        wanted.allowed[:, order], _least(network), root.astype(np.int32), end.astype(np.int32),
        wanted.kind,
    )  # fmt: skip


def _least(network: Net) -> NDArray[np.int64]:
    """Return the picoseconds from every rank to every other, on an idle machine."""
    ranks = network.num_ranks
    least = np.full((ranks, ranks), NEVER, dtype=np.int64)
    np.fill_diagonal(least, 0)
    arrival = network.arcs.arrival()
    while True:
        before = least.copy()
        np.minimum.at(least, network.tail, arrival[:, None] + before[network.head])
        least[least > NEVER] = NEVER
        if (before == least).all():
            return least


def _book(roads: Roads, seed: int) -> Book:
    """Return an empty book, and the chunks in order: those with the longest way first."""
    ranks, chunks, resources = (
        len(roads.first) - 1,
        len(roads.root),
        int(roads.uses.resource.max(initial=0)) + 1,
    )
    away = roads.least[roads.root, roads.end]
    hops, slots = ranks, 2 * chunks + ranks

    def numbers(*shape: int) -> NDArray[np.int32]:
        return np.zeros(shape, dtype=np.int32)

    def times(*shape: int) -> NDArray[np.int64]:
        return np.zeros(shape, dtype=np.int64)

    return Book(
        Reservations(times(resources, slots), times(resources, slots), numbers(resources)),
        times(ranks),
        numbers(ranks), times(ranks), np.zeros(ranks, dtype=np.bool_), numbers(chunks),
        numbers(chunks, hops), times(chunks, hops), times(chunks), numbers(chunks),
        numbers(chunks, hops), times(chunks, hops), times(chunks), numbers(MOST_REMOVED),
        numbers(MOST_REMOVED, hops), times(MOST_REMOVED, hops), times(MOST_REMOVED),
        np.argsort(-away, kind="stable").astype(np.int32), numbers(max(chunks, MOST_REMOVED)),
        np.array([seed % (1 << 31)], dtype=np.int64), times(HISTORY),
    )  # fmt: skip


def _decisions(question: Question, roads: Roads, book: Book) -> Decisions:
    """Return the ways that were kept, in the order of their starts."""
    order = np.argsort(question.network.tail, kind="stable")
    rows: list[tuple[int, int, int, int]] = []
    for row, chunk in enumerate(question.wanted.chunk.tolist()):
        for hop in range(int(book.kept_length[row])):
            arc, start = int(book.kept_arc[row, hop]), int(book.kept_start[row, hop])
            time = -(start + int(roads.uses.arrival[arc])) if question.backwards else start
            # From the end of a way to its root; messages that take no time start at one time.
            place = hop if question.backwards else -hop
            rows.append((time, chunk, place, int(question.network.arcs.link[order[arc]])))
    rows.sort()
    return Decisions.of(
        [(chunk, link, number, False) for number, (_, chunk, _, link) in enumerate(rows)]
    )


@cache
def _compiled() -> Callable[[Roads, Book, int, Time], int]:
    return jit(insertion_loop.search, [insertion_loop, occupancy], "reserved")

"""Gathers for small buffers: neighbours travel together, in blocks that grow from level to level.

At first a rank has its own chunks. On every level the ranks of a wider block exchange what the
ranks of a narrower one have in common, in messages of equal, aligned runs of chunks (granules),
each of which pays alpha once. A level is a run of the guided scheduler with the granules as its
chunks, there from when each rank has them; so levels overlap. Block widths divide the number of
ranks: doubling them each time is recursive doubling, a level of all rows of a torus floods its
columns. Which widths and granules follow each other is found by dynamic programming, the least
time to each width first. Chunks that lie side by side in the output do so at every rank, which is
what makes a batch; symmetries are used as far as they keep granules whole and in order.

For sums the same runs on reversed arcs are played backwards.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from types import MappingProxyType

import numpy as np

from taccl.model.problem import Problem
from taccl.model.routes import Arcs, Wanted, arcs_of, is_restricted, some_arcs
from taccl.model.schedule import Decisions, Schedule, retime
from taccl.synth.guided.search import MIXES, Grow, price_arcs, runs_of
from taccl.synth.guided.tree_list_scheduler import (
    COUNT,
    NEVER,
    Field,
    Times,
    field_of,
    reset,
    state_of,
)
from taccl.topology.graph import Permutation
from taccl.topology.symmetry import Group, close_group, make_group
from taccl.units import Time

EFFORT = ((64, 24, 3), (128, 12, 2), (256, 6, 1))
"""Ranks, runs of the scheduler for every way to a level, and ways to a level to go on from."""

CUTS = (1, 2)
"""Granules that what is common to a narrower block is cut into."""

MOST_RANKS = EFFORT[-1][0]

MOST_PAIRS = 500_000
"""Of a representative chunk and a link."""

TURNS = MappingProxyType({
    "allgather": (False,), "reducescatter": (True,), "allreduce": (True, False),
})  # fmt: skip
"""By collective, whether its phases run on reversed arcs."""


@dataclass(frozen=True, eq=False)
class Level:
    """All ranks with what their blocks of `width` ranks have in common, and how they got there.

    `at`, int64 (chunks, ranks), is when a rank has a chunk (-1: not yet), and `free`, int64, when
    each edge is free, in picoseconds. `kept` says which symmetries of the problem all of this has.
    `sends` has for each level the chunks of a message, and int64 rows (first chunk, link, end) by
    message.
    """

    width: int
    at: Times
    free: Times
    kept: tuple[int, ...]
    sends: tuple[tuple[int, Times], ...]

    @property
    def rank(self) -> tuple[Time, int]:
        """What levels of one width are compared by."""
        return int(self.at.max()), int(self.at.sum())


@dataclass(frozen=True, eq=False)
class Lattice:
    """`arcs` for messages of whole granules, under the symmetries that keep granules in order.

    The arcs' problem has those symmetries. A `granule` is so many chunks; `image`, int64 (elements,
    granules), is where each symmetry takes every granule.
    """

    arcs: Arcs
    granule: int
    image: Times


def coalesced(problem: Problem, grow: Grow, over: Callable[[], bool]) -> Schedule | None:
    """Return a schedule of block gathers and reductions; None where they don't apply.

    They take every link that a sketch allows, so a sketch that allows less to some chunks has none,
    and neither have collectives whose chunks are not those of ranks in order. The symmetries of the
    `problem` are used as far as they keep granules in order; `grow` is the scheduler, and `over`
    tells when to hurry.
    """
    collective, logical = problem.collective, problem.logical
    limited = logical.connections_per_rank is not None or is_restricted(problem)
    if limited or logical.symmetry_asked or logical.own_chunks_first:
        return None
    pairs = len(problem.representatives) * int(logical.allowed.sum())
    if problem.topology.num_ranks > MOST_RANKS or pairs > MOST_PAIRS:
        return None
    parts = [widened(problem, grow, over, reverse=r) for r in TURNS.get(collective.name, ())]
    decisions = [part for part in parts if part is not None]
    if not decisions or len(decisions) < len(parts):
        return None
    group = make_group(problem.topology, ())
    last = np.cumsum([0, *(int(part.batch.max(initial=-1)) + 1 for part in decisions)])
    one_after_other = Decisions(
        np.concatenate([part.chunk for part in decisions]),
        np.concatenate([part.link for part in decisions]),
        np.concatenate([part.batch + n for part, n in zip(decisions, last, strict=False)]),
        np.concatenate([part.reduce for part in decisions]),
    )
    return retime(collective, group, problem.chunk_size, one_after_other)


def widened(
    problem: Problem, grow: Grow, over: Callable[[], bool], *, reverse: bool
) -> Decisions | None:
    """Return the decisions for an allgather or reducescatter of few bytes, for all chunks.

    `problem` and `grow` are as for :func:`coalesced`; `over` tells when to take the first run that
    there is. If `reverse`, chunks are summed: runs on reversed arcs are played backwards.
    """
    ranks, chunks = problem.topology.num_ranks, problem.collective.num_chunks
    at = np.full((chunks, ranks), -1, dtype=np.int64)
    at[np.arange(chunks), problem.collective.owner] = 0
    free = np.zeros(len(problem.topology.edges), dtype=np.int64)
    for generator in problem.group.generators:
        problem.collective.require_image(generator)
    ways = {1: [Level(1, at, free, tuple(range(len(problem.group))), ())]}
    runs, most = next((runs, most) for size, runs, most in EFFORT if ranks <= size)
    widths = [width for width in range(1, ranks + 1) if ranks % width == 0]
    lattices: dict[tuple[int, tuple[int, ...]], Lattice] = {}
    for wider in widths[1:]:
        found: list[Level] = []
        for level, granule in _steps(ways, wider, chunks // ranks):
            hurried = over()
            kept = _in_order(problem, level.kept, granule, wider)
            if (granule, kept) not in lattices:
                elements = [problem.group.elements[number] for number in kept]
                one = replace(problem, group=_spanned(problem, elements))
                heads = np.arange(0, problem.collective.num_chunks, granule, dtype=np.int32)
                images = [problem.collective.image_of(g, heads) for g in one.group.rows]
                lattices[granule, kept] = Lattice(
                    arcs_of(one, reverse=reverse), granule,
                    np.array(images, dtype=np.int64) // granule,
                )  # fmt: skip
            found += _widened(
                lattices[granule, kept],
                replace(level, kept=kept),
                wider,
                grow,
                1 if hurried else runs,
            )
        ways[wider] = sorted(found, key=lambda level: level.rank)[:most]
    return _decisions(ways[ranks][0], reverse=reverse) if ways[ranks] else None


def _steps(ways: dict[int, list[Level]], wider: int, per_rank: int) -> Iterator[tuple[Level, int]]:
    """Yield the levels to go on from, and granules to do so with."""
    for width, levels in ways.items():
        if wider % width == 0:
            for level in levels:
                for cuts in CUTS:
                    if width * per_rank % cuts == 0:
                        yield level, width * per_rank // cuts


def _in_order(
    problem: Problem, elements: Sequence[int], granule: int, wider: int
) -> tuple[int, ...]:
    """Return which symmetries keep granules whole and in order, and blocks whole."""
    whole = np.arange(problem.collective.num_chunks, dtype=np.int32)
    kept = []
    for number in elements:
        element = problem.group.rows[number]
        image = problem.collective.image_of(element, whole).reshape(-1, granule)
        aligned = (image[:, 0] % granule == 0).all() and (np.diff(image, axis=1) == 1).all()
        blocks = (element // wider).reshape(-1, wider)
        if aligned and (blocks == blocks[:, :1]).all():
            kept.append(number)
    return tuple(kept)


def _spanned(problem: Problem, elements: Sequence[Permutation]) -> Group:
    """Return the group of some elements by few generators."""
    ranks = problem.topology.num_ranks
    generators: list[Permutation] = []
    closed = close_group((), ranks)
    for element in elements:
        if element not in set(closed):
            generators.append(element)
            closed = close_group(generators, ranks)
    return Group(problem.topology, tuple(generators), np.array(closed, dtype=np.int32))


def _widened(lattice: Lattice, level: Level, wider: int, grow: Grow, runs: int) -> Iterator[Level]:
    """Yield the level that the best of some runs makes of one."""
    whole = level.at.reshape(-1, lattice.granule, level.at.shape[1])
    ready = np.where((whole >= 0).all(axis=1), whole.max(axis=1), -1)
    block = np.arange(ready.shape[1]) // wider
    home = lattice.arcs.problem.collective.owner[:: lattice.granule] // wider
    targets = (home[:, None] == block) & (ready < 0)
    own = np.flatnonzero(lattice.image.min(axis=0) == np.arange(len(ready)))
    arcs = some_arcs(lattice.arcs, block[lattice.arcs.tail] == block[lattice.arcs.head])
    wanted = Wanted(
        own.astype(np.int32), ready[own] >= 0, targets[own], np.zeros(len(own), dtype=np.int32),
        np.ones((1, len(arcs)), dtype=np.bool_),
    )  # fmt: skip
    field = field_of(arcs, wanted, length=lattice.granule)._replace(
        ready=ready[own],
        partial=np.zeros(len(own), dtype=np.bool_),
        free=level.free[arcs.resources],
    )
    best = _best_run(arcs, field, grow, runs)
    if best is not None:
        sent, free = best
        sent[0] = own[sent[0]]
        yield _after(replace(lattice, arcs=arcs), level, wider, sent, free)


def _best_run(arcs: Arcs, field: Field, grow: Grow, runs: int) -> tuple[Times, Times] | None:
    """Return (chunk row, arc, end) of the messages of the best run, and when resources are free."""
    even = np.full(arcs.num_resources, 1 / max(1, arcs.num_resources))
    tables = [price_arcs(arcs, even, mix) for mix in MIXES]
    state = state_of(field)
    best, least = None, (NEVER - 1, 0)
    for table, run in islice(runs_of(0, len(tables)), runs):
        reset(field, state)
        makespan = grow(field, state, tables[table], run, least[0] + 1)
        rank = (makespan, int(state.at.sum()))
        if rank < least:
            sends = slice(int(state.counter[COUNT]))
            arc = state.sent_arc[sends].astype(np.int64)
            end = state.sent_at[sends] + field.uses.arrival[field.kind_of[arc]]
            best = np.stack((state.sent_chunk[sends], arc, end)), state.free.copy()
            least = rank
    return best


def _after(lattice: Lattice, level: Level, wider: int, sent: Times, free: Times) -> Level:
    """Return the level after the messages (granule, arc, end) and all their images."""
    arcs, problem = lattice.arcs, lattice.arcs.problem
    table, group = problem.topology.links, problem.group
    links = arcs.link[sent[1]]
    rows = [
        np.stack((lattice.image[number][sent[0]], group.link_images(number, links), sent[2]))
        for number in range(len(group))
    ]
    # The images of a message leave at one time: they stay together in the sequence.
    every = np.stack(rows, axis=-1).reshape(3, -1)
    every[0] *= lattice.granule
    at = level.at.copy()
    to = (table.src if arcs.reverse else table.dst)[every[1]]
    for offset in range(lattice.granule):
        at[every[0] + offset, to] = every[2]
    edges = np.flatnonzero(np.isin(group.edge_orbit, arcs.resources))
    freed = level.free.copy()
    freed[edges] = free[np.searchsorted(arcs.resources, group.edge_orbit[edges])]
    return Level(wider, at, freed, level.kept, (*level.sends, (lattice.granule, every)))


def _decisions(level: Level, *, reverse: bool) -> Decisions:
    """Return all messages in sequence, played backwards where chunks are summed."""
    columns = [
        np.stack((*rows, np.full(rows.shape[1], size, dtype=np.int64)))
        for size, rows in level.sends
    ]
    chunk, link, end, length = np.concatenate(columns, axis=1)
    if reverse:
        order = np.lexsort((-np.arange(len(end)), -end))
        chunk, link, length = chunk[order], link[order], length[order]
    batch = np.repeat(np.arange(len(length)), length)
    offset = np.arange(len(batch)) - np.repeat(np.cumsum(length) - length, length)
    return Decisions(
        (chunk[batch] + offset).astype(np.int32), link[batch].astype(np.int32),
        batch.astype(np.int32), np.full(len(batch), reverse, dtype=np.bool_),
    )  # fmt: skip

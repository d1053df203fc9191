"""Data that must cross a set of edges: what the port, cut, flow and reduce ideas all hand over."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.bounds.gates import Gates
from taccl.collectives import Collective


@dataclass(frozen=True, slots=True)
class Crossing:
    """An amount that must pass some gates.

    Parameters
    ----------
    kind
        The idea: a key of ``KINDS``.
    gates
        What it passes.
    share
        The amount in units of ``size`` (weighted, when the gates are).
    """

    kind: str
    gates: Gates
    share: Fraction


class Task(NamedTuple):
    """Equal chunks of a collective: who has them, who wants them, and how many there are."""

    sources: tuple[int, ...]
    targets: tuple[int, ...]
    chunks: int


def tasks_of(collective: Collective) -> list[Task]:
    """Return the chunks of a collective by their sources and targets."""
    sets = collective.rank_sets
    keys = collective.source_set.astype(np.int64) * len(sets) + collective.target_set
    return [
        Task(sets[key // len(sets)], sets[key % len(sets)], count)
        for key, count in zip(*(part.tolist() for part in np.unique(keys, return_counts=True)),
                              strict=True)
    ]  # fmt: skip


UNIFORM = ("allgather", "reducescatter", "allreduce", "alltoall")


def is_uniform(collective: Collective) -> bool:
    """Tell whether every rank is known to have data for every other, all alike."""
    return collective.name in UNIFORM


def flows_in(collective: Collective) -> bool:
    """Tell whether all data of a collective with a root flows to it, not from it."""
    return collective.name in ("reduce", "gather")


LEAVES: Mapping[str, Callable[[int, int, bool], Fraction]] = MappingProxyType({
    "allgather": lambda inside, ranks, _: Fraction(inside, ranks),
    "reducescatter": lambda inside, ranks, _: Fraction(ranks - inside, ranks),
    "allreduce": lambda _inside, _ranks, _: Fraction(1),
    "alltoall": lambda inside, ranks, _: Fraction(inside * (ranks - inside), ranks),
    "broadcast": lambda _inside, _ranks, has_root: Fraction(has_root),
    "reduce": lambda _inside, _ranks, has_root: Fraction(not has_root),
    "gather": lambda inside, ranks, has_root: Fraction(0 if has_root else inside, ranks),
    "scatter": lambda inside, ranks, has_root: Fraction(ranks - inside if has_root else 0, ranks),
})  # fmt: skip
"""(ranks in a set, all ranks, is the root in it) to what must leave the set, in units of ``size``.

With sums, something that the set contributed to must leave for every piece the others want. These
are what :func:`counted` counts for any collective, known without looking at chunks.
"""


def leaves(collective: Collective, inside: Sequence[int]) -> Fraction:
    """Return what must leave a set of ranks in a collective, in units of ``size``."""
    ranks = collective.num_ranks
    if not 0 < len(inside) < ranks:
        return Fraction(0)
    known = LEAVES.get(collective.name)
    if known is None:
        return counted(collective, inside)
    return known(len(inside), ranks, collective.root in inside)


def counted(collective: Collective, inside: Sequence[int]) -> Fraction:
    """Return what must leave a set of ranks, chunk by chunk, in units of ``size``.

    A chunk that is copied must leave when only the set has it and others want it; of a sum some
    part must leave when the set has a part of it and others want it.
    """
    within = np.zeros(collective.num_ranks, dtype=np.bool_)
    within[list(inside)] = True
    some, every = (_of_sets(collective, within, test) for test in (np.any, np.all))
    has = some if collective.reduces else every
    wanted = ~every
    count = int(np.count_nonzero(has[collective.source_set] & wanted[collective.target_set]))
    return Fraction(count, collective.chunks_in_size)


def _of_sets(
    collective: Collective,
    within: NDArray[np.bool_],
    test: Callable[[NDArray[np.bool_]], np.bool_],
) -> NDArray[np.bool_]:
    """Return for every set of ranks whether some (all) of them are in a set."""
    return np.array([test(within[list(ranks)]) for ranks in collective.rank_sets], dtype=np.bool_)


def between_pairs(collective: Collective) -> NDArray[np.int64]:
    """Return how many chunks of each rank (row) must reach each other rank (column).

    Of what several ranks could serve, none counts.
    """
    counts = np.zeros((collective.num_ranks,) * 2, dtype=np.int64)
    if is_uniform(collective):
        all_of_all = collective.name == "allreduce"
        counts += collective.num_chunks if all_of_all else collective.chunks_per_rank
        np.fill_diagonal(counts, 0)
        return counts
    for sources, targets, count in tasks_of(collective):
        if collective.reduces or len(sources) == 1:
            counts[np.ix_(sources, targets)] += count
    np.fill_diagonal(counts, 0)
    return counts

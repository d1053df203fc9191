"""What every rank holds before a collective and wants after it, as columns of chunks.

A chunk is the smallest piece of data that is routed. Its sources hold it before; when the
collective reduces, the sources' values are summed on the way. Its targets want it after.
Layouts are those of the MSCCL runtimes (in chunks; n ranks, k chunks for each rank):

=============  =====================================  ==========================
collective     input of a rank                        output of a rank
=============  =====================================  ==========================
allgather      k: its own chunks                      n*k: chunk (r, i) at r*k+i
reducescatter  n*k: chunk (d, i) at d*k+i             k: its own chunks
allreduce      n*k                                    n*k
alltoall       n*k: chunk for rank d at d*k+i         n*k: chunk from s at s*k+i
=============  =====================================  ==========================
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from taccl.errors import InputError

IntColumn = NDArray[np.int32]

MAX_CHUNKS = 1 << 23
"""Rows of a collective: an all-to-all of 1024 ranks has a million for each chunk of a pair."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """One row of a collective: which ranks hold the chunk before and want it after.

    Parameters
    ----------
    id
        Row.
    sources, targets
        Ranks, ascending.
    input_at, output_at
        Offset in the input of every source and in the output of every target.
    """

    id: int
    sources: tuple[int, ...]
    targets: tuple[int, ...]
    input_at: int
    output_at: int


@dataclass(frozen=True, eq=False)
class Collective:
    """A collective on ``num_ranks`` ranks with ``chunks_per_rank`` chunks for each rank.

    Parameters
    ----------
    name
        A key of :data:`COLLECTIVES`.
    num_ranks, chunks_per_rank
        Sizes.
    reduces
        True when the values of a chunk's sources are summed on the way.
    rank_sets
        Sets of ranks, ascending, that the columns point into.
    source_set, target_set
        int32 index into ``rank_sets``, one a chunk.
    input_at, output_at
        int32 offsets, the same at every source (target).
    owner, index
        int32: the rank a chunk moves with under a rank permutation, and its number there.
    input_chunks, output_chunks
        Chunks in the buffers of one rank.
    """

    name: str
    num_ranks: int
    chunks_per_rank: int
    reduces: bool
    rank_sets: tuple[tuple[int, ...], ...]
    source_set: IntColumn
    target_set: IntColumn
    input_at: IntColumn
    output_at: IntColumn
    owner: IntColumn
    index: IntColumn
    input_chunks: int
    output_chunks: int

    @property
    def num_chunks(self) -> int:
        """The number of chunks."""
        return len(self.owner)

    def sources(self, chunk: int) -> tuple[int, ...]:
        """Return the ranks that hold a chunk before."""
        return self.rank_sets[self.source_set[chunk]]

    def targets(self, chunk: int) -> tuple[int, ...]:
        """Return the ranks that want a chunk after."""
        return self.rank_sets[self.target_set[chunk]]

    def is_source(self, chunk: int, rank: int) -> bool:
        """Tell whether a rank holds a chunk before."""
        return rank in self._members[self.source_set[chunk]]

    def is_target(self, chunk: int, rank: int) -> bool:
        """Tell whether a rank wants a chunk after."""
        return rank in self._members[self.target_set[chunk]]

    @cached_property
    def _members(self) -> tuple[frozenset[int], ...]:
        return tuple(frozenset(ranks) for ranks in self.rank_sets)

    def chunk(self, chunk: int) -> Chunk:
        """Return one row as a record."""
        return Chunk(
            chunk, self.sources(chunk), self.targets(chunk),
            int(self.input_at[chunk]), int(self.output_at[chunk]),
        )  # fmt: skip

    def image(self, permutation: Sequence[int]) -> IntColumn:
        """Return where every chunk goes when rank r becomes ``permutation[r]``.

        Raises
        ------
        InputError
            When the collective does not map onto itself; names the chunk that breaks it.
        """
        keys, rows = self._sorted_keys
        there = self._keys(permutation, np.arange(self.num_chunks))
        images = np.argsort(there, kind="stable")
        other = np.flatnonzero(keys != there[images])
        if len(other):
            chunk = int(images[other[0]])
            raise InputError(
                f"{self.name} does not map onto itself: chunk {chunk} has no image",
                field="symmetry",
                fix="use a symmetry of the collective",
            )
        result = np.empty(len(rows), dtype=np.int32)
        result[images] = rows
        return result

    def image_of(self, permutation: Sequence[int], chunks: IntColumn) -> IntColumn:
        """Return where some chunks go under a permutation for which :meth:`image` exists."""
        keys, rows = self._sorted_keys
        if (keys[1:] == keys[:-1]).any():
            return self.image(permutation)[chunks]
        return rows[np.searchsorted(keys, self._keys(permutation, chunks))]

    @cached_property
    def _set_numbers(self) -> dict[frozenset[int], int]:
        # Equal sets may be listed twice (one rank is everyone, too): the first stands for both.
        number: dict[frozenset[int], int] = {}
        for i, ranks in enumerate(self.rank_sets):
            number.setdefault(frozenset(ranks), i + 1)
        return number

    @cached_property
    def _sorted_keys(self) -> tuple[NDArray[np.int64], IntColumn]:
        keys = self._keys(range(self.num_ranks), np.arange(self.num_chunks))
        rows = np.argsort(keys, kind="stable").astype(np.int32)
        return keys[rows], rows

    def _keys(self, permutation: Sequence[int], chunks: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return one number for sources, targets, owner and index of permuted chunks."""
        to = [int(rank) for rank in permutation].__getitem__
        number = self._set_numbers
        sets = np.array(
            [number.get(frozenset(map(to, ranks)), 0) for ranks in self.rank_sets], dtype=np.int64
        )
        perm = np.array(permutation, dtype=np.int64)
        key = sets[self.source_set[chunks]] * (len(sets) + 1) + sets[self.target_set[chunks]]
        key = key * self.num_ranks + perm[self.owner[chunks]]
        keys: NDArray[np.int64] = key * (int(self.index.max(initial=0)) + 1) + self.index[chunks]
        return keys


def _columns(rows: Sequence[Sequence[int]], column: int) -> IntColumn:
    return np.array([row[column] for row in rows], dtype=np.int32)


def _everyone(num_ranks: int) -> tuple[tuple[int, ...], ...]:
    """Return the sets {0}, {1}, ... and, last, all ranks."""
    return (*((rank,) for rank in range(num_ranks)), tuple(range(num_ranks)))


def _owned(num_ranks: int, k: int) -> tuple[IntColumn, IntColumn, IntColumn]:
    """Return owner, index and position of n*k chunks that belong to one rank each."""
    position = np.arange(num_ranks * k, dtype=np.int32)
    return position // k, position % k, position


def allgather(num_ranks: int, k: int) -> Collective:
    """Every rank's k chunks go to every rank."""
    owner, index, position = _owned(num_ranks, k)
    everyone = np.full(num_ranks * k, num_ranks, dtype=np.int32)
    return Collective(
        "allgather", num_ranks, k, reduces=False, rank_sets=_everyone(num_ranks),
        source_set=owner, target_set=everyone, input_at=index, output_at=position,
        owner=owner, index=index, input_chunks=k, output_chunks=num_ranks * k,
    )  # fmt: skip


def reducescatter(num_ranks: int, k: int) -> Collective:
    """Chunk (d, i) is summed over all ranks and ends on rank d."""
    owner, index, position = _owned(num_ranks, k)
    everyone = np.full(num_ranks * k, num_ranks, dtype=np.int32)
    return Collective(
        "reducescatter", num_ranks, k, reduces=True, rank_sets=_everyone(num_ranks),
        source_set=everyone, target_set=owner, input_at=position, output_at=index,
        owner=owner, index=index, input_chunks=num_ranks * k, output_chunks=k,
    )  # fmt: skip


def allreduce(num_ranks: int, k: int) -> Collective:
    """Every one of n*k chunks is summed over all ranks and ends on all ranks."""
    owner, index, position = _owned(num_ranks, k)
    everyone = np.full(num_ranks * k, num_ranks, dtype=np.int32)
    return Collective(
        "allreduce", num_ranks, k, reduces=True, rank_sets=_everyone(num_ranks),
        source_set=everyone, target_set=everyone, input_at=position, output_at=position,
        owner=owner, index=index, input_chunks=num_ranks * k, output_chunks=num_ranks * k,
    )  # fmt: skip


def alltoall(num_ranks: int, k: int) -> Collective:
    """Chunk (s, d, i) goes from rank s to rank d; its id is (s*n + d)*k + i."""
    position = np.arange(num_ranks * num_ranks * k, dtype=np.int32)
    source, rest = position // (num_ranks * k), position % (num_ranks * k)
    target, index = rest // k, rest % k
    return Collective(
        "alltoall", num_ranks, k, reduces=False, rank_sets=_everyone(num_ranks),
        source_set=source, target_set=target, input_at=target * k + index,
        output_at=source * k + index, owner=source, index=index,
        input_chunks=num_ranks * k, output_chunks=num_ranks * k,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Kind:
    """What the table of collectives knows of each.

    Parameters
    ----------
    build
        (num_ranks, chunks_per_rank) -> Collective.
    busbw
        num_ranks -> the factor from algbw to busbw, as nccl-tests counts.
    chunks_in_size
        (num_ranks, chunks_per_rank) -> chunks in the buffer that ``size`` counts.
    xml_name
        Name in MSCCL XML; msccl spells reducescatter with an underscore.
    """

    build: Callable[[int, int], Collective]
    busbw: Callable[[int], Fraction]
    chunks_in_size: Callable[[int, int], int]
    xml_name: str


def _others(num_ranks: int) -> Fraction:
    return Fraction(num_ranks - 1, num_ranks)


def _whole_buffer(num_ranks: int, chunks_per_rank: int) -> int:
    return num_ranks * chunks_per_rank


COLLECTIVES: Mapping[str, Kind] = MappingProxyType({
    "allgather": Kind(allgather, _others, _whole_buffer, "allgather"),
    "reducescatter": Kind(reducescatter, _others, _whole_buffer, "reducescatter"),
    "allreduce": Kind(allreduce, lambda n: 2 * _others(n), _whole_buffer, "allreduce"),
    "alltoall": Kind(alltoall, _others, _whole_buffer, "alltoall"),
})  # fmt: skip


def collective_name(text: str) -> str:
    """Return the table's name for a spelling in any case and with the usual separators.

    Raises
    ------
    InputError
        When there is no such collective.
    """
    name = text.strip().lower().replace("_", "").replace("-", "").replace(" ", "")
    if name not in COLLECTIVES:
        raise InputError(
            f"unknown collective {text[:40]!r}",
            field="collective",
            fix=f"use one of {', '.join(COLLECTIVES)}",
        )
    return name


def build_collective(name: str, num_ranks: int, chunks_per_rank: int) -> Collective:
    """Return a collective of the table by any spelling of its name.

    Raises
    ------
    InputError
        When there is no such collective, or it has too many chunks to hold.
    """
    kind = COLLECTIVES[collective_name(name)]
    count = num_ranks * chunks_per_rank * (num_ranks if kind.build is alltoall else 1)
    if count > MAX_CHUNKS:
        raise InputError(
            f"{name} of {num_ranks} ranks with {chunks_per_rank} chunks each has {count} chunks,"
            f" more than {MAX_CHUNKS}",
            field="collective",
            fix="use fewer ranks or chunks",
        )
    return kind.build(num_ranks, chunks_per_rank)


def chunk_size_of(collective: Collective, size: int) -> Fraction:
    """Return the exact bytes of a chunk when the counted buffer has ``size`` bytes."""
    kind = COLLECTIVES[collective.name]
    return Fraction(size, kind.chunks_in_size(collective.num_ranks, collective.chunks_per_rank))


def busbw_factor(name: str, num_ranks: int) -> Fraction:
    """Return busbw / algbw for a collective, as nccl-tests counts."""
    return COLLECTIVES[name].busbw(num_ranks)

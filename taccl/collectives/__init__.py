"""The collectives: what every rank holds before and wants after, and the table of them.

Layouts are those of the MSCCL runtimes (in chunks; n ranks, k chunks for each rank, root R):

=============  =====================================  ==========================
collective     input of a rank                        output of a rank
=============  =====================================  ==========================
allgather      k: its own chunks                      n*k: chunk (r, i) at r*k+i
reducescatter  n*k: chunk (d, i) at d*k+i             k: its own chunks
allreduce      n*k                                    n*k
alltoall       n*k: chunk for rank d at d*k+i         n*k: chunk from s at s*k+i
broadcast      k at R, nothing elsewhere              k: those of R
reduce         k                                      k at R, nothing elsewhere
gather         k: its own chunks                      n*k at R, nothing elsewhere
scatter        n*k at R: chunk for d at d*k+i         k: its own chunks
=============  =====================================  ==========================

``size`` counts the largest of these buffers: k chunks for broadcast and reduce, n*k for the rest.

Among ``members`` a collective is that of so many ranks; other ranks hold and want nothing. It has a
name of its own, such as ``allreduce-of-4``.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, lru_cache
from types import MappingProxyType

import numpy as np

from taccl.collectives.chunks import MAX_CHUNKS, MAX_PAIRS, PIECES, Collective, IntColumn
from taccl.errors import InputError, did_you_mean

__all__ = [
    "ALLTOALLV", "COLLECTIVES", "MAX_CHUNKS", "PIECES", "TURNED", "WAVES", "Collective", "Kind",
    "alone", "among_members", "build_collective", "busbw_factor", "check_members", "chunk_size_of",
    "collective_name", "has_xml",
    "most_chunks",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Kind:
    """A row of the table of collectives.

    Who holds a block of k chunks before (`sources`) and wants it after (`targets`): ``each`` (the n
    blocks are one for each rank), ``sender`` (of the n * n blocks for every pair), the ``root`` or
    ``all``; there are n ** `blocks` blocks. `busbw` is num_ranks -> the factor from algbw to busbw,
    as nccl-tests counts. `xml_name` is the name in MSCCL XML; msccl spells reducescatter with an
    underscore. None: the runtimes that know it count its size in a way that no file can rely on, so
    there is no XML. ``--chunks auto`` tries `chunk_counts` in order, while more is better.
    """

    sources: str
    targets: str
    busbw: Callable[[int], Fraction]
    xml_name: str | None
    blocks: int = 1
    chunk_counts: tuple[int, ...] = (1, 2, 4)

    @property
    def has_root(self) -> bool:
        """Whether one rank is special."""
        return "root" in (self.sources, self.targets)


def _others(num_ranks: int) -> Fraction:
    return Fraction(num_ranks - 1, num_ranks)


def _all(_num_ranks: int) -> Fraction:
    return Fraction(1)


ALLTOALLV = "alltoallv"
"""What a collective of bytes for every pair is called; it comes from a file, never by name."""

PIPELINED = (1, 2, 4, 8, 16)
"""Where one root's data passes through chains and trees, more chunks keep more links busy."""

WAVES = (1, 2, 4, 8)
"""What all get from all may cross servers in waves of 8, 5 and 3 half chunks, or go along trees."""

COLLECTIVES: Mapping[str, Kind] = MappingProxyType({
    "allgather": Kind("each", "all", _others, "allgather", 1, WAVES),
    "reducescatter": Kind("all", "each", _others, "reducescatter", 1, WAVES),
    "allreduce": Kind("all", "all", lambda n: 2 * _others(n), "allreduce", 1, WAVES),
    "alltoall": Kind("sender", "each", _others, "alltoall", 2),
    "broadcast": Kind("root", "all", _all, "broadcast", 0, PIPELINED),
    "reduce": Kind("all", "root", _all, "reduce", 0, PIPELINED),
    "gather": Kind("each", "root", _others, None),
    "scatter": Kind("root", "each", _others, None),
})  # fmt: skip
"""All collectives; those whose sources are ``all`` sum."""

TURNED: Mapping[str, str] = MappingProxyType({"reducescatter": "allgather", "reduce": "broadcast"})
"""Reductions to one owner of every chunk, and what they are when played backwards."""


def has_xml(name: str) -> bool:
    """Tell whether any runtime's files can hold a collective, be it of the table or of a file."""
    kind = COLLECTIVES.get(name)
    return name != ALLTOALLV if kind is None else kind.xml_name is not None


def collective_name(text: str) -> str:
    """Return the table's name for a spelling in any case and with the usual separators.

    Raises InputError when there is no such collective.
    """
    name = text.strip().lower().replace("_", "").replace("-", "").replace(" ", "")
    if name == ALLTOALLV:
        raise InputError(
            "alltoallv needs the bytes of every pair",
            field="collective",
            fix="give the path of a file {taccl: demand/1, bytes: [[0, 1MB], [2MB, 0]]}",
        )
    if name not in COLLECTIVES:
        raise InputError(
            f"unknown collective {text[:40]!r}",
            field="collective",
            fix=f"{did_you_mean(name, COLLECTIVES)}use one of {', '.join(COLLECTIVES)}, or the path"
            " of a collective file",
        )
    return name


def build_collective(
    name: str,
    num_ranks: int,
    chunks_per_rank: int,
    root: int | None = None,
    members: Sequence[int] | None = None,
) -> Collective:
    """Return the collective of the table that is spelled ``name`` on ``num_ranks``.

    ``chunks_per_rank`` is what each rank's part is cut into; the ``root`` of a collective that has
    one is rank 0 by default. With ``members`` it is among these only, in their order: the root is a
    place in it, and so is what lies where. None: all ranks.

    Raises InputError when there is no such collective, it has too many chunks to hold, or no such
    root, or members are no ranks.
    """
    if members is not None and tuple(members) != tuple(range(num_ranks)):
        check_members(members, num_ranks)
        inside = build_collective(name, len(members), chunks_per_rank, root)
        return among_members(inside, num_ranks, members)
    canonical = collective_name(name)
    kind = COLLECTIVES[canonical]
    count = num_ranks**kind.blocks * chunks_per_rank
    most = most_chunks(chunks_per_rank)
    if count > most:
        raise InputError(
            f"{canonical} of {num_ranks} ranks with {chunks_per_rank} chunks each has {count}"
            f" chunks, more than {most}",
            field="collective",
            fix="use fewer ranks or chunks",
        )
    if root is not None and not kind.has_root:
        raise InputError(
            f"{canonical} has no root, got {root}", field="--root", fix="leave --root out"
        )
    if not 0 <= (root or 0) < num_ranks:
        raise InputError(
            f"should be a rank from 0 to {num_ranks - 1}, got {root}",
            field="--root",
            fix=f"use --root {num_ranks - 1}",
        )
    return _of_all(canonical, num_ranks, chunks_per_rank, (root or 0) if kind.has_root else None)


def most_chunks(chunks_per_rank: int) -> int:
    """Return how many chunks a collective may have in all, with so many for each rank (or pair)."""
    return MAX_PAIRS if chunks_per_rank == 1 else MAX_CHUNKS


@lru_cache(maxsize=4)
def _of_all(name: str, num_ranks: int, chunks_per_rank: int, root: int | None) -> Collective:
    """Return a collective of all ranks; of many ranks the columns take time and memory to make."""
    kind, count = COLLECTIVES[name], np.int32(chunks_per_rank)
    blocks = num_ranks**kind.blocks
    nothing = np.broadcast_to(np.int32(0), blocks * chunks_per_rank)
    ranks = np.arange(num_ranks if kind.blocks else 1, dtype=np.int32)
    column = np.tile(np.repeat(ranks, chunks_per_rank), blocks // len(ranks))
    row = np.repeat(ranks, num_ranks * chunks_per_rank) if kind.blocks > 1 else nothing
    index = nothing
    if chunks_per_rank > 1:
        index = np.tile(np.arange(chunks_per_rank, dtype=np.int32), blocks)

    def within(block: IntColumn) -> IntColumn:
        return block if chunks_per_rank == 1 else block * count + index

    @cache
    def chunk() -> IntColumn:
        return np.arange(len(nothing), dtype=np.int32)

    # Rank sets, and how many chunks of the same set come before. Large columns that are the same
    # are one array.
    sets: dict[str, Callable[[], tuple[IntColumn, IntColumn]]] = {
        "each": lambda: (column, within(row)),
        "sender": lambda: (row, within(column)),
        "root": lambda: (np.full_like(chunk(), root or 0), chunk()),
        "all": lambda: (np.full_like(chunk(), num_ranks), chunk()),
    }
    source, target = sets[kind.sources](), sets[kind.targets]()
    # A tree is rooted at the only source, else at the only target.
    owner = next(sets[ends]() for ends in (kind.sources, kind.targets, "each") if ends != "all")
    return Collective(
        name, num_ranks, chunks_per_rank, reduces=kind.sources == "all",
        rank_sets=(*((rank,) for rank in range(num_ranks)), tuple(range(num_ranks))),
        source_set=source[0], target_set=target[0], input_at=source[1], output_at=target[1],
        owner=owner[0], index=index, root=root, blocks=0 if kind.has_root else kind.blocks,
    )  # fmt: skip


def check_members(members: Sequence[int], num_ranks: int, field: str = "ranks") -> None:
    """Return when ``members`` are two or more of ``num_ranks`` ranks, each once.

    Raises InputError, which names the ``field`` that they are from, when they are not.
    """
    wrong = next((rank for rank in members if not 0 <= rank < num_ranks), None)
    if wrong is not None:
        problem = f"there is no rank {wrong} among {num_ranks}"
    elif len(members) < 2 or len(set(members)) < len(members):
        problem = f"a group has two ranks or more, each once, got {str(list(members))[:60]}"
    else:
        return
    raise InputError(problem, field=field, fix=f"use ranks from 0 to {num_ranks - 1}, each once")


def among_members(inside: Collective, num_ranks: int, members: Sequence[int]) -> Collective:
    """Return ``inside``, for as many ranks as there are ``members``, as one of ``num_ranks``.

    Chunks stay in order, and rank r of it is the r-th member.
    """
    rank_of = np.array(members, dtype=np.int32)
    inputs, outputs = (
        {(chunk, members[rank]): offset for (chunk, rank), offset in elsewhere.items()}
        for elsewhere in (inside.input_elsewhere, inside.output_elsewhere)
    )
    return replace(
        inside, name=f"{inside.name}-of-{len(members)}", num_ranks=num_ranks,
        rank_sets=tuple(tuple(sorted(rank_of[list(ranks)].tolist())) for ranks in inside.rank_sets),
        owner=rank_of[inside.owner], root=None, members=tuple(members),
        input_elsewhere=inputs, output_elsewhere=outputs, blocks=0,
    )  # fmt: skip


_AMONG = re.compile(r"([a-z]+)-of-(\d{1,6})")


def alone(collective: Collective) -> Collective | None:
    """Return what a ``collective`` among members is to these, rank r the r-th; None: no such.

    It is the one of the table, in as many chunks.
    """
    among = _AMONG.fullmatch(collective.name)
    if collective.members is None or among is None or among[1] not in COLLECTIVES:
        return None
    kind, root = COLLECTIVES[among[1]], None
    if kind.has_root:
        ends = collective.targets(0) if kind.targets == "root" else collective.sources(0)
        root = collective.members.index(ends[0])
    return build_collective(among[1], len(collective.members), collective.chunks_per_rank, root)


def chunk_size_of(collective: Collective, size: int) -> Fraction:
    """Return the exact bytes of a chunk of a ``collective`` that counts ``size`` bytes."""
    return Fraction(size, collective.chunks_in_size)


def busbw_factor(name: str, num_ranks: int) -> Fraction:
    """Return busbw / algbw of a ``name`` on ``num_ranks``, as nccl-tests counts; 1 for a file's.

    Of a collective among members these count.
    """
    if among := _AMONG.fullmatch(name):
        name, num_ranks = among[1], int(among[2])
    return COLLECTIVES[name].busbw(num_ranks) if name in COLLECTIVES else Fraction(1)

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
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType

import numpy as np

from taccl.collectives.chunks import MAX_CHUNKS, Chunk, Collective, IntColumn
from taccl.errors import InputError, did_you_mean

__all__ = [
    "ALLTOALLV", "COLLECTIVES", "MAX_CHUNKS", "Chunk", "Collective", "Kind", "build_collective",
    "busbw_factor", "chunk_size_of", "collective_name", "has_xml",
]  # fmt: skip


def _everyone(num_ranks: int) -> tuple[tuple[int, ...], ...]:
    """Return the sets {0}, {1}, ... and, last, all ranks."""
    return (*((rank,) for rank in range(num_ranks)), tuple(range(num_ranks)))


def _owned(num_ranks: int, k: int) -> tuple[IntColumn, IntColumn, IntColumn]:
    """Return owner, index and position of n*k chunks that belong to one rank each."""
    position = np.arange(num_ranks * k, dtype=np.int32)
    return position // k, position % k, position


def allgather(num_ranks: int, k: int) -> Collective:
    """``k`` chunks of each of ``num_ranks`` ranks go to every rank."""
    owner, index, position = _owned(num_ranks, k)
    everyone = np.full(num_ranks * k, num_ranks, dtype=np.int32)
    return Collective(
        "allgather", num_ranks, k, reduces=False, rank_sets=_everyone(num_ranks),
        source_set=owner, target_set=everyone, input_at=index, output_at=position,
        owner=owner, index=index,
    )  # fmt: skip


def reducescatter(num_ranks: int, k: int) -> Collective:
    """Each of ``k`` chunks (d, i) is summed over all ``num_ranks`` and ends on rank d."""
    owner, index, position = _owned(num_ranks, k)
    everyone = np.full(num_ranks * k, num_ranks, dtype=np.int32)
    return Collective(
        "reducescatter", num_ranks, k, reduces=True, rank_sets=_everyone(num_ranks),
        source_set=everyone, target_set=owner, input_at=position, output_at=index,
        owner=owner, index=index,
    )  # fmt: skip


def allreduce(num_ranks: int, k: int) -> Collective:
    """Every one of ``num_ranks`` * ``k`` chunks is summed over all ranks and ends on all ranks."""
    owner, index, position = _owned(num_ranks, k)
    everyone = np.full(num_ranks * k, num_ranks, dtype=np.int32)
    return Collective(
        "allreduce", num_ranks, k, reduces=True, rank_sets=_everyone(num_ranks),
        source_set=everyone, target_set=everyone, input_at=position, output_at=position,
        owner=owner, index=index,
    )  # fmt: skip


def alltoall(num_ranks: int, k: int) -> Collective:
    """Chunk (s, d, i) goes from s to d; its id is (s*n + d)*``k`` + i, n being ``num_ranks``."""
    position = np.arange(num_ranks * num_ranks * k, dtype=np.int32)
    source, rest = position // (num_ranks * k), position % (num_ranks * k)
    target, index = rest // k, rest % k
    return Collective(
        "alltoall", num_ranks, k, reduces=False, rank_sets=_everyone(num_ranks),
        source_set=source, target_set=target, input_at=target * k + index,
        output_at=source * k + index, owner=source, index=index,
    )  # fmt: skip


def broadcast(num_ranks: int, k: int, root: int) -> Collective:
    """``k`` chunks of the ``root`` go to each of ``num_ranks`` ranks."""
    return _with_one_root("broadcast", num_ranks, k, root, reduces=False)


def reduce(num_ranks: int, k: int, root: int) -> Collective:
    """Every one of ``k`` chunks is summed over all ``num_ranks`` and ends on the ``root``."""
    return _with_one_root("reduce", num_ranks, k, root, reduces=True)


def _with_one_root(name: str, num_ranks: int, k: int, root: int, *, reduces: bool) -> Collective:
    position = np.arange(k, dtype=np.int32)
    one, all_ = np.full(k, root, dtype=np.int32), np.full(k, num_ranks, dtype=np.int32)
    return Collective(
        name, num_ranks, k, reduces=reduces, rank_sets=_everyone(num_ranks),
        source_set=all_ if reduces else one, target_set=one if reduces else all_,
        input_at=position, output_at=position, owner=one, index=position, root=root,
    )  # fmt: skip


def gather(num_ranks: int, k: int, root: int) -> Collective:
    """``k`` chunks of each of ``num_ranks`` ranks go to the ``root``."""
    owner, index, position = _owned(num_ranks, k)
    return Collective(
        "gather", num_ranks, k, reduces=False, rank_sets=_everyone(num_ranks),
        source_set=owner, target_set=np.full_like(owner, root), input_at=index,
        output_at=position, owner=owner, index=index, root=root,
    )  # fmt: skip


def scatter(num_ranks: int, k: int, root: int) -> Collective:
    """``k`` chunks (d, i) go from the ``root`` to each rank d of ``num_ranks``."""
    target, index, position = _owned(num_ranks, k)
    at_root = np.full_like(target, root)
    return Collective(
        "scatter", num_ranks, k, reduces=False, rank_sets=_everyone(num_ranks),
        source_set=at_root, target_set=target, input_at=position, output_at=index,
        owner=at_root, index=index, root=root,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Kind:
    """What the table of collectives knows of each.

    Parameters
    ----------
    build
        (num_ranks, chunks_per_rank) -> Collective; with a root, (..., root).
    busbw
        num_ranks -> the factor from algbw to busbw, as nccl-tests counts.
    xml_name
        Name in MSCCL XML; msccl spells reducescatter with an underscore. None: the runtimes that
        know it count its size in a way that no file can rely on, so there is no XML.
    has_root
        Whether one rank is special.
    chunk_counts
        What ``--chunks auto`` tries, in order, while more is better.
    counts_across
        What it tries after these where there are several servers.
    """

    build: Callable[..., Collective]
    busbw: Callable[[int], Fraction]
    xml_name: str | None
    has_root: bool = False
    chunk_counts: tuple[int, ...] = (1, 2, 4)
    counts_across: tuple[int, ...] = ()


def _others(num_ranks: int) -> Fraction:
    return Fraction(num_ranks - 1, num_ranks)


def _all(_num_ranks: int) -> Fraction:
    return Fraction(1)


ALLTOALLV = "alltoallv"
"""What a collective of bytes for every pair is called; it comes from a file, never by name."""

PIPELINED = (1, 2, 4, 8, 16)
"""Where one root's data passes through chains and trees, more chunks keep more links busy."""

WAVES = (8,)
"""What all get from all may cross servers in waves of 8, 5 and 3 half chunks."""

COLLECTIVES: Mapping[str, Kind] = MappingProxyType({
    "allgather": Kind(allgather, _others, "allgather", counts_across=WAVES),
    "reducescatter": Kind(reducescatter, _others, "reducescatter", counts_across=WAVES),
    "allreduce": Kind(allreduce, lambda n: 2 * _others(n), "allreduce", counts_across=WAVES),
    "alltoall": Kind(alltoall, _others, "alltoall"),
    "broadcast": Kind(broadcast, _all, "broadcast", has_root=True, chunk_counts=PIPELINED),
    "reduce": Kind(reduce, _all, "reduce", has_root=True, chunk_counts=PIPELINED),
    "gather": Kind(gather, _others, None, has_root=True),
    "scatter": Kind(scatter, _others, None, has_root=True),
})  # fmt: skip


def chunk_counts(name: str, servers: int) -> tuple[int, ...]:
    """Return the chunks for each rank that are tried, in order, on so many servers.

    Parameters
    ----------
    name
        A collective of the table.
    servers
        How many servers there are.
    """
    kind = COLLECTIVES[name]
    return (*kind.chunk_counts, *(kind.counts_across if servers > 1 else ()))


def has_xml(name: str) -> bool:
    """Tell whether any runtime's files can hold a collective, be it of the table or of a file."""
    kind = COLLECTIVES.get(name)
    return name != ALLTOALLV if kind is None else kind.xml_name is not None


def collective_name(text: str) -> str:
    """Return the table's name for a spelling in any case and with the usual separators.

    Raises
    ------
    InputError
        When there is no such collective.
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
    name: str, num_ranks: int, chunks_per_rank: int, root: int | None = None
) -> Collective:
    """Return a collective of the table by any spelling of its name.

    Parameters
    ----------
    name
        Any spelling of a name of the table.
    num_ranks
        How many ranks take part.
    chunks_per_rank
        Chunks that each rank's part is cut into.
    root
        For the collectives that have one; None: rank 0.

    Raises
    ------
    InputError
        When there is no such collective, it has too many chunks to hold, or no such root.
    """
    canonical = collective_name(name)
    kind = COLLECTIVES[canonical]
    blocks = {"alltoall": num_ranks**2, "broadcast": 1, "reduce": 1}.get(canonical, num_ranks)
    count = blocks * chunks_per_rank
    if count > MAX_CHUNKS:
        raise InputError(
            f"{canonical} of {num_ranks} ranks with {chunks_per_rank} chunks each has {count}"
            f" chunks, more than {MAX_CHUNKS}",
            field="collective",
            fix="use fewer ranks or chunks",
        )
    if not kind.has_root:
        if root is not None:
            raise InputError(
                f"{canonical} has no root, got {root}",
                field="--root",
                fix="leave --root out",
            )
        return kind.build(num_ranks, chunks_per_rank)
    if not 0 <= (root or 0) < num_ranks:
        raise InputError(
            f"should be a rank from 0 to {num_ranks - 1}, got {root}",
            field="--root",
            fix=f"use --root {num_ranks - 1}",
        )
    return kind.build(num_ranks, chunks_per_rank, root or 0)


def chunk_size_of(collective: Collective, size: int) -> Fraction:
    """Return the exact bytes of a chunk when the counted buffer has ``size`` bytes.

    Parameters
    ----------
    collective
        What is done.
    """
    return Fraction(size, collective.chunks_in_size)


def busbw_factor(name: str, num_ranks: int) -> Fraction:
    """Return busbw / algbw for a collective, as nccl-tests counts; 1 for those of files.

    Parameters
    ----------
    name
        Of a collective.
    num_ranks
        How many ranks take part.
    """
    return COLLECTIVES[name].busbw(num_ranks) if name in COLLECTIVES else Fraction(1)

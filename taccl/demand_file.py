"""AlltoAllv from a file: how many bytes every rank sends to every other.

A pair's bytes are whole chunks of one size, the greatest common divisor of all numbers: exact,
and every engine, bound and judge of chunks that each go to one rank serves it. Buffers are those
of ``MPI_Alltoallv`` without gaps: a rank's input holds what it sends by destination, its output
what it receives by source. Pairs without bytes have no chunks.
"""

import math
from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PlainValidator, WithJsonSchema

from taccl.collectives import ALLTOALLV, Collective
from taccl.files import Document, FileModel
from taccl.files.fields import checked
from taccl.units import parse_size

MAX_RANKS = 1024
MOST_CHUNKS = 1 << 18
"""Chunks of all pairs together."""

Counts = NDArray[np.int64]


def _bytes(value: object) -> int:
    return 0 if value == 0 else parse_size(value)


PairBytes = Annotated[
    int,
    PlainValidator(checked(_bytes, "a size", "write 0, 4096 or 1MB")),
    WithJsonSchema({"type": ["string", "integer"], "description": "bytes: 0, 4096 or 1MB"}),
]


class DemandFile(FileModel):
    """What every rank sends to every other."""

    taccl: Annotated[Literal["demand/1"], Field(examples=["demand/1"])]
    bytes: Annotated[
        list[Annotated[list[PairBytes], Field(max_length=MAX_RANKS)]],
        Field(min_length=2, max_length=MAX_RANKS, examples=["[[0, 1MB], [2MB, 0]]"]),
    ]


def make_demand(record: DemandFile, document: Document) -> Collective:
    """Return the collective of a demand.

    Raises
    ------
    InputError
        With file, line, field, value and fix.
    """
    ranks = len(record.bytes)
    for number, row in enumerate(record.bytes):
        if len(row) != ranks:
            raise document.error(
                f"should have {ranks} entries, one for each rank, as there are {ranks} rows, got"
                f" {len(row)}", ("bytes", number), "write what the rank sends to every rank, or 0",
            )  # fmt: skip
    demand = np.array(record.bytes, dtype=np.int64)
    if not demand[~np.eye(ranks, dtype=np.bool_)].any():
        raise document.error(
            "no rank sends anything to another", ("bytes",), "write some bytes above 0"
        )
    unit = math.gcd(*np.unique(demand).tolist())
    counts = demand // unit
    if counts.sum() > MOST_CHUNKS:
        raise document.error(
            f"the largest chunk that all numbers are multiples of has {unit} bytes, which makes"
            f" {counts.sum()} chunks, more than {MOST_CHUNKS}", ("bytes",),
            f"round them up to multiples of {_coarser(demand, unit)}",
        )  # fmt: skip
    return _collective(counts, unit)


def _coarser(demand: Counts, unit: int) -> int:
    """Return the first doubling of a chunk that makes few enough, when pairs are rounded up."""
    while (-(-demand // unit)).sum() > max(MOST_CHUNKS, np.count_nonzero(demand)):
        unit *= 2
    return unit


def _collective(counts: Counts, unit: int) -> Collective:
    ranks = len(counts)
    pairs = counts.ravel()
    index = _positions(pairs)
    source, target = (np.repeat(ends.ravel(), pairs) for ends in np.indices(counts.shape))
    by_target = (np.cumsum(counts, axis=1) - counts)[source, target] + index
    by_source = (np.cumsum(counts, axis=0) - counts)[source, target] + index
    sets, owner = source.astype(np.int32), source.astype(np.int32)
    found = Collective(
        ALLTOALLV, ranks, 1, reduces=False, rank_sets=tuple((rank,) for rank in range(ranks)),
        source_set=sets, target_set=target.astype(np.int32), input_at=by_target.astype(np.int32),
        output_at=by_source.astype(np.int32), owner=owner, index=index.astype(np.int32),
    )  # fmt: skip
    return replace(found, size=unit * found.chunks_in_size)


def _positions(counts: Counts) -> Counts:
    """Return 0 .. n-1 for every n of some counts."""
    ends = np.cumsum(counts)
    found: Counts = np.arange(int(ends[-1])) - np.repeat(ends - counts, counts)
    return found

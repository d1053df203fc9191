"""Collectives that a file defines: chunk by chunk, or as the bytes that each pair exchanges.

A ``collective/1`` file says which ranks hold each chunk before and want it after, and at which
offset; ``size`` is its largest buffer of any rank, holes included, and busbw is algbw.

There each chunk may say from when on it is ready where it is, and when it is needed. What counts
is the latest of the needed times: the cost that is minimised is at most that exactly when no chunk
comes too late. A rank may be late with its own values of all chunks.

A ``demand/1`` file is an AlltoAllv. Its unit is the greatest common divisor of all byte counts, so
that each pair's bytes are whole chunks, exactly. Buffers are those of ``MPI_Alltoallv`` without
gaps: the input of a rank is ordered by destination, its output by source. A pair without bytes has
no chunks.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, PlainValidator, StrictBool, StrictInt, WithJsonSchema

from taccl.collectives import ALLTOALLV, COLLECTIVES, Collective
from taccl.collectives.chunks import equals_before
from taccl.files import Document, FileModel, fit_model, read_document, shown
from taccl.files.model import Count, Duration, Index, Name, WholeNumberKeys, checked
from taccl.units import parse_size

MAX_RANKS = 1024
MOST_CHUNKS = 1 << 18
"""Chunks of all pairs together."""


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
    """Return the collective of a demand's ``record``; errors name places in its ``document``."""
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
        coarser = unit
        while (-(-demand // coarser)).sum() > max(MOST_CHUNKS, np.count_nonzero(demand)):
            coarser *= 2
        raise document.error(
            f"the largest chunk that all numbers are multiples of has {unit} bytes, which makes"
            f" {counts.sum()} chunks, more than {MOST_CHUNKS}", ("bytes",),
            f"round them up to multiples of {coarser}",
        )  # fmt: skip
    pair = np.repeat(np.arange(ranks * ranks, dtype=np.int32), counts.ravel())
    source, target = pair // ranks, pair % ranks
    found = Collective(
        ALLTOALLV, ranks, 1, reduces=False, rank_sets=tuple((rank,) for rank in range(ranks)),
        source_set=source, target_set=target, input_at=equals_before(source),
        output_at=equals_before(target), owner=source, index=equals_before(pair),
    )  # fmt: skip
    return replace(found, size=unit * found.chunks_in_size)


MAX_OFFSET = 1 << 20
"""Chunks in a buffer; with --chunks 1024 offsets still fit into 32 bits."""

Offsets = Annotated[
    dict[Index, Annotated[StrictInt, Field(ge=0, lt=MAX_OFFSET)]],
    WholeNumberKeys,
    Field(examples=["{0: 0}"]),
]


class ChunkRecord(FileModel):
    """A chunk: where it is before and where it should be after, from when and until when."""

    id: Annotated[StrictInt, Field(ge=0, lt=MAX_OFFSET, examples=[0])]
    input: Offsets
    output: Offsets
    ready: Annotated[Duration, Field(examples=["12us"])] = 0
    needed: Annotated[Duration | None, Field(examples=["90us"])] = None


class CollectiveFile(FileModel):
    """A collective: chunks, the ranks that have them, and the ranks that want them."""

    taccl: Annotated[Literal["collective/1"], Field(examples=["collective/1"])]
    name: Annotated[Name, Field(examples=["neighbours"])]
    ranks: Annotated[Count, Field(examples=[4])]
    chunks: Annotated[list[ChunkRecord], Field(min_length=1, max_length=MAX_OFFSET)]
    reduces: StrictBool = False
    late: Annotated[
        dict[Index, Duration], WholeNumberKeys, Field(examples=["{3: 50us}"], max_length=MAX_RANKS)
    ] = Field(default_factory=dict)


def read_collective(path: str) -> Collective:
    """Read a collective, or a demand, from a YAML or JSON file.

    Raises InputError with file, line, field, value and fix.
    """
    document = read_document(path)
    said = document.value.get("taccl") if isinstance(document.value, dict) else None
    if isinstance(said, str) and said.startswith("demand"):
        return make_demand(fit_model(document, DemandFile), document)
    return make_collective(fit_model(document, CollectiveFile), document)


def make_collective(
    record: CollectiveFile, document: Document, where: tuple[str, ...] = ()
) -> Collective:
    """Return the collective of a ``record`` that stands in a ``document`` at the path ``where``.

    Errors name places there.
    """
    if record.name.lower().replace("_", "").replace("-", "").replace(" ", "") in COLLECTIVES:
        raise document.error(
            f"{shown(record.name)} is a collective of its own", (*where, "name"),
            "give this one another name",
        )  # fmt: skip
    chunks = _in_order(record, document, (*where, "chunks"))
    sets: dict[tuple[int, ...], int] = {}
    rows: list[tuple[int, ...]] = []
    alike: Counter[tuple[int, int, int]] = Counter()
    for chunk in chunks:
        sources, targets = tuple(sorted(chunk.input)), tuple(sorted(chunk.output))
        # A tree's root. A sum that one rank wants is made there. One that several want is made at a
        # source, as what spreads it can then be planned apart from what makes it: a target, if one
        # is a source.
        owner = sources[0]
        if record.reduces:
            alone = len(targets) == 1
            owner = next((rank for rank in targets if alone or rank in sources), owner)
        pair = (sets.setdefault(sources, len(sets)), sets.setdefault(targets, len(sets)))
        rows.append((
            *pair, chunk.input[sources[0]], chunk.output[targets[0]], owner, alike[(*pair, owner)],
        ))  # fmt: skip
        alike[(*pair, owner)] += 1
    source_set, target_set, input_at, output_at, owner, index = np.array(rows, dtype=np.int32).T
    found = Collective(
        record.name, record.ranks, 1, reduces=record.reduces, rank_sets=tuple(sets),
        source_set=source_set, target_set=target_set, input_at=input_at, output_at=output_at,
        owner=owner, index=index,
        input_elsewhere=_elsewhere([chunk.input for chunk in chunks]),
        output_elsewhere=_elsewhere([chunk.output for chunk in chunks]),
    )  # fmt: skip
    late = np.zeros(record.ranks, dtype=np.int64)
    for rank, time in record.late.items():
        if rank >= record.ranks:
            raise document.error(
                f"there is no rank {rank} among {record.ranks}", (*where, "late", rank),
                f"use ranks from 0 to {record.ranks - 1}",
            )  # fmt: skip
        late[rank] = time
    last = max((chunk.needed for chunk in chunks if chunk.needed is not None), default=0)
    tail = [0 if chunk.needed is None else last - chunk.needed for chunk in chunks]
    ready = [chunk.ready for chunk in chunks]
    return found.timed(np.array(ready, np.int64), np.array(tail, np.int64), late)


def collective_document(collective: Collective) -> dict[str, object]:
    """Return the fields of a file that a collective can be read from, uncut."""
    k = collective.chunks_per_rank
    return {
        "taccl": "collective/1",
        "name": collective.name,
        "ranks": collective.num_ranks,
        "reduces": collective.reduces,
        "chunks": [
            {
                "id": chunk // k,
                "input": {
                    str(rank): collective.input_offset(chunk, rank) // k
                    for rank in collective.sources(chunk)
                },
                "output": {
                    str(rank): collective.output_offset(chunk, rank) // k
                    for rank in collective.targets(chunk)
                },
            }
            for chunk in range(0, collective.num_chunks, k)
        ],
    }


def _elsewhere(offsets: Sequence[Mapping[int, int]]) -> dict[tuple[int, int], int]:
    """Return the offsets that are not those of the first rank that has the chunk."""
    return {
        (chunk, rank): offset
        for chunk, by_rank in enumerate(offsets)
        for rank, offset in by_rank.items()
        if offset != by_rank[min(by_rank)]
    }


def _in_order(
    record: CollectiveFile, document: Document, place: tuple[str | int, ...]
) -> list[ChunkRecord]:
    """Return the chunks by id, which are 0, 1, 2, ...; each needs ranks and places of its own."""
    count = len(record.chunks)
    row: dict[int, int] = {}
    for number, chunk in enumerate(record.chunks):
        first = row.setdefault(chunk.id, number)
        if first != number:
            raise document.error(
                f"chunk {chunk.id} is there twice, first as chunks[{first}]",
                (*place, number, "id"), f"give it an id of its own, up to {count}",
            )  # fmt: skip
        if chunk.id >= count:
            raise document.error(
                f"should be below {count}, as there are {count} chunks, got {chunk.id}",
                (*place, number, "id"), "number the chunks 0, 1, 2, ...",
            )  # fmt: skip
    for number in range(count):
        chunk = record.chunks[row[number]]
        for side, verb, ranks in (("input", "has", chunk.input), ("output", "wants", chunk.output)):
            path: tuple[str | int, ...] = (*place, row[number], side)
            if not ranks:
                raise document.error(
                    f"no rank {verb} chunk {number}", path, f"write {side}: {{0: 0}}"
                )
            if max(ranks) >= record.ranks:
                raise document.error(
                    f"there is no rank {max(ranks)} among {record.ranks}", (*path, max(ranks)),
                    f"use ranks from 0 to {record.ranks - 1}",
                )  # fmt: skip
    taken: dict[tuple[str, int, int], int] = {}
    for side in ("input", "output"):
        for number, chunk in enumerate(record.chunks):
            offsets = chunk.input if side == "input" else chunk.output
            for rank, offset in offsets.items():
                other = taken.setdefault((side, rank, offset), chunk.id)
                if other != chunk.id:
                    raise document.error(
                        f"chunks {other} and {chunk.id} are both at offset {offset} of rank"
                        f" {rank}'s {side}", (*place, number, side, rank),
                        "give them offsets of their own",
                    )  # fmt: skip
    return [record.chunks[row[number]] for number in range(count)]

"""Schedules as JSON: everything needed to verify them again, and exactly what was written.

The text holds the whole topology, so that a schedule can be judged without the file it was made
for. What is read is only checked for shape and range; whether it is a right schedule is for
:func:`taccl.verify.verify` to say.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, StrictBool, StrictInt

from taccl.collectives import (
    COLLECTIVES,
    Collective,
    build_collective,
    collective_name,
    most_chunks,
)
from taccl.collectives.file import CollectiveFile, collective_document, make_collective
from taccl.errors import InputError
from taccl.files import Document, FileModel, fit_model, read_document, shown
from taccl.files.model import MAX_RANKS, Count, ExactSize, Index, Name, PermutationList
from taccl.model.schedule import Schedule
from taccl.topology.core_form import MAX_ROTATIONS, permutations
from taccl.topology.fans import MAX_FANS, NO_FANS, Fan, FanTable, make_fans
from taccl.topology.file import topology_digest, topology_document, topology_from_document
from taccl.topology.graph import Topology
from taccl.topology.symmetry import make_group
from taccl.units import MAX_TIME, exact_size_text

MAX_NODES = 16_000_000
MAX_SWITCHED_RANKS = 4096
MAX_PICOSECONDS = 1 << 60

_compact = partial(json.dumps, separators=(",", ":"), ensure_ascii=False)

_COLUMNS = ("chunk", "link", "batch", "reduce", "start_ps", "end_ps")


class CollectiveRecord(FileModel):
    """Which collective, and in how many chunks."""

    name: Annotated[Name, Field(examples=["allgather"])]
    ranks: Annotated[Count, Field(examples=[8])]
    chunks_per_rank: Annotated[StrictInt, Field(ge=1, le=1 << 22, examples=[1])]
    root: Annotated[Index | None, Field(examples=[0])] = None
    definition: CollectiveFile | None = None
    ready_ps: list[StrictInt] | None = None
    tail_ps: list[StrictInt] | None = None
    late_ps: list[StrictInt] | None = None


class SendsRecord(FileModel):
    """Columns of the representative sends."""

    chunk: list[Any]
    link: list[Any]
    batch: list[Any]
    reduce: list[Any]
    start_ps: list[Any]
    end_ps: list[Any]


EdgeLists = Annotated[
    list[Annotated[list[StrictInt], Field(min_length=1, max_length=64)]],
    Field(max_length=MAX_RANKS * 2),
]


class FanRecord(FileModel):
    """What switches copy and add for one chunk: a tree of arcs to a turn, and one from it."""

    turn: Annotated[StrictInt, Field(ge=0, examples=[0])]
    into: Annotated[EdgeLists, Field(alias="in", examples=["[[0], [2], [1]]"])]
    out: Annotated[EdgeLists, Field(examples=["[[0], [1], [3]]"])]


class ScheduleFile(FileModel):
    """A schedule: sends of chunks over links, or fans, with exact times."""

    taccl: Annotated[Literal["schedule/1", "schedule/2"], Field(examples=['"schedule/1"'])]
    engine: Annotated[str | None, Field(max_length=200)] = None
    seed: StrictInt | None = None
    collective: CollectiveRecord
    topology: dict[str, Any]
    topology_digest: Annotated[str, Field(max_length=16, examples=['"0123456789abcdef"'])]
    alpha_rule: Annotated[str, Field(max_length=16, examples=['"occupy"'])]
    chunk_size: Annotated[ExactSize, Field(examples=['"125/4 B"'])]
    makespan_ps: Annotated[StrictInt, Field(ge=0)]
    generators: Annotated[list[PermutationList], Field(max_length=MAX_ROTATIONS)]
    representatives: Annotated[StrictInt, Field(ge=0)]
    packs: StrictBool = False
    fans: Annotated[list[FanRecord] | None, Field(max_length=MAX_FANS)] = None
    sends: SendsRecord


def schedule_text(schedule: Schedule, *, seed: int | None = None, engine: str | None = None) -> str:
    """Return a `schedule` as JSON, the same bytes for the same schedule.

    It is of format 2 where there are fans, else of format 1. Its `seed` and `engine` are noted
    where they are given.
    """
    collective = schedule.collective
    named: dict[str, object] = {
        "name": collective.name,
        "ranks": collective.num_ranks,
        "chunks_per_rank": collective.chunks_per_rank,
    }
    if collective.root is not None:
        named["root"] = collective.root
    if collective.name not in COLLECTIVES:
        named["definition"] = collective_document(collective)
    for field in ("ready", "tail", "late"):
        column = getattr(collective, field)
        if column is not None:
            named[f"{field}_ps"] = column.tolist()
    document: dict[str, object] = {
        "taccl": "schedule/2" if len(schedule.fans) else "schedule/1",
        "engine": engine,
        "seed": seed,
        "collective": named,
        "topology": topology_document(schedule.topology),
        "topology_digest": topology_digest(schedule.topology),
        "alpha_rule": schedule.topology.alpha_rule_stated,
        "chunk_size": exact_size_text(schedule.chunk_size),
        "makespan_ps": schedule.makespan,
        "generators": [list(generator) for generator in schedule.generators],
        "representatives": len(schedule),
    }
    if schedule.packs:
        document["packs"] = True
    arcs = schedule.topology.arcs.edges_of
    if len(schedule.fans):
        document["fans"] = [
            {"turn": fan.turn, "in": list(map(arcs, fan.into)), "out": list(map(arcs, fan.out))}
            for fan in schedule.fans
        ]
    lines = [f"  {json.dumps(key)}: {_compact(value)}," for key, value in document.items()]
    found: list[NDArray[Any]] = [
        schedule.chunk, schedule.link, schedule.batch, schedule.reduce.astype(np.int8),
        schedule.start, schedule.end,
    ]  # fmt: skip
    columns = zip(_COLUMNS, found, strict=True)
    sends = [f"    {json.dumps(name)}: {_compact(column.tolist())}" for name, column in columns]
    return "\n".join(["{", *lines, '  "sends": {', ",\n".join(sends), "  }", "}", ""])


def read_schedule(path: str) -> Schedule:
    """Read a schedule; its caller verifies it.

    Raises InputError when the file can't be read, or holds what no schedule can; names file and
    field.
    """
    document = read_document(path, MAX_NODES)
    record = fit_model(document, ScheduleFile)
    topology = _topology(record, document)
    collective = _timed(record, document, _collective(record, document, topology))
    generators = permutations(document, ("generators",), record.generators, topology.num_ranks)
    with _refusals(document, ("generators",)):
        make_group(topology, generators)
    fans = _fans(record, document, topology)
    columns = {name: _column(record, document, name) for name in _COLUMNS}
    _check_ranges(columns, collective, len(topology.links) + len(fans), document)
    return Schedule(
        collective, topology, record.chunk_size,
        columns["chunk"].astype(np.int32), columns["link"].astype(np.int32),
        columns["batch"].astype(np.int32), columns["start_ps"], columns["end_ps"],
        columns["reduce"].astype(np.bool_), generators, record.packs, fans,
    )  # fmt: skip


@contextmanager
def _refusals(document: Document, place: tuple[str, ...]) -> Iterator[None]:
    """Say of what is refused inside where in the document it stands."""
    try:
        yield
    except InputError as error:
        raise document.error(error.problem, place, error.fix or "") from None


def _topology(record: ScheduleFile, document: Document) -> Topology:
    try:
        topology = topology_from_document(record.topology, document.file)
    except InputError as error:
        field = f"topology.{error.field}" if error.field else "topology"
        raise InputError(error.problem, file=document.file, field=field, fix=error.fix) from None
    digest = topology_digest(topology)
    if digest != record.topology_digest:
        raise document.error(
            f"should be {digest}, as the topology in the file, got"
            f" {shown(record.topology_digest)}", ("topology_digest",),
            "write the schedule again: the file was changed by hand",
        )  # fmt: skip
    if topology.alpha_rule_stated != record.alpha_rule:
        raise document.error(
            f"should be {topology.alpha_rule_stated}, as the topology in the file",
            ("alpha_rule",), f"write {topology.alpha_rule_stated}",
        )  # fmt: skip
    if topology.switches and topology.num_ranks > MAX_SWITCHED_RANKS:
        raise document.error(
            f"has {topology.num_ranks} ranks with switches between them", ("topology",),
            f"use at most {MAX_SWITCHED_RANKS}",
        )  # fmt: skip
    return topology


def _fans(record: ScheduleFile, document: Document, topology: Topology) -> FanTable:
    """Return the fans of a file of format 2."""
    if (record.fans is None) != (record.taccl == "schedule/1"):
        found = "are missing" if record.fans is None else "are not in schedule/1"
        raise document.error(found, ("fans",), "write schedule/2 with fans, schedule/1 without")
    if record.fans is None:
        return NO_FANS
    table = topology.arcs
    number = {table.edges_of(arc): arc for arc in range(len(table))}
    fans = []
    for index, fan in enumerate(record.fans):
        arcs: list[tuple[int, ...]] = []
        for name, tree in (("in", fan.into), ("out", fan.out)):
            lost = [place for place, edges in enumerate(tree) if tuple(edges) not in number]
            if lost:
                raise document.error(
                    f"edges {shown(tree[lost[0]])} are no arc: no shortest way from or to a switch"
                    " that copies or adds", ("fans", index, name, lost[0]),
                    "write the ids of the edges of one, in order",
                )  # fmt: skip
            arcs.append(tuple(number[tuple(edges)] for edges in tree))
        fans.append(Fan(fan.turn, *arcs))
    try:
        return make_fans(topology, fans)
    except InputError as error:
        raise document.error(error.problem, (error.field or "fans",), error.fix or "") from None


def _collective(record: ScheduleFile, document: Document, topology: Topology) -> Collective:
    said = record.collective
    if said.ranks != topology.num_ranks:
        raise document.error(
            f"should be {topology.num_ranks}, as the topology in the file, got {said.ranks}",
            ("collective", "ranks"), f"write {topology.num_ranks}",
        )  # fmt: skip
    if said.definition is not None:
        return _defined(said, said.definition, document)
    with _refusals(document, ("collective", "name")):
        name = collective_name(said.name)
    pairs = said.ranks if name == "alltoall" else 1
    if pairs * said.ranks * said.chunks_per_rank > most_chunks(said.chunks_per_rank):
        raise document.error(
            f"{said.ranks} ranks with {said.chunks_per_rank} chunks each are too many",
            ("collective", "chunks_per_rank"), "use fewer chunks",
        )  # fmt: skip
    with _refusals(document, ("collective", "root")):
        return build_collective(name, said.ranks, said.chunks_per_rank, said.root)


def _timed(record: ScheduleFile, document: Document, collective: Collective) -> Collective:
    """Return a collective with the ready times, tails and late ranks of the file."""
    columns = []
    for field, length in (
        ("ready_ps", collective.num_chunks), ("tail_ps", collective.num_chunks),
        ("late_ps", collective.num_ranks),
    ):  # fmt: skip
        times: list[int] = getattr(record.collective, field) or [0] * length
        if len(times) != length or not all(0 <= time <= MAX_TIME for time in times):
            raise document.error(
                f"should have {length} entries from 0 to {MAX_TIME}", ("collective", field),
                "write picoseconds, one entry for each chunk, or rank",
            )  # fmt: skip
        columns.append(np.array(times, dtype=np.int64))
    return collective.timed(*columns)


def _defined(said: CollectiveRecord, definition: CollectiveFile, document: Document) -> Collective:
    """Return a collective that the file defines itself."""
    for what, value, other in (
        ("name", said.name, definition.name), ("ranks", said.ranks, definition.ranks),
    ):  # fmt: skip
        if value != other:
            raise document.error(
                f"should be {other}, as in the definition, got {shown(value)}",
                ("collective", what), f"write {other}",
            )  # fmt: skip
    if said.root is not None:
        raise document.error(
            f"{said.name} has no root, got {said.root}", ("collective", "root"), "leave it out"
        )
    made = make_collective(definition, document, ("collective", "definition"))
    with _refusals(document, ("collective", "chunks_per_rank")):
        return made.cut(said.chunks_per_rank)


def _column(record: ScheduleFile, document: Document, name: str) -> NDArray[np.int64]:
    """Return a column as numbers; anything but whole numbers is refused."""
    values: list[object] = getattr(record.sends, name)
    place = ("sends", name)
    if not set(map(type, values)) <= {int}:
        index = next(i for i, value in enumerate(values) if type(value) is not int)
        raise document.error(
            f"should be a whole number, got {shown(values[index])}", (*place, index),
            "write whole numbers only",
        )  # fmt: skip
    try:
        column = np.array(values, dtype=np.int64)
    except OverflowError:
        raise document.error(
            "holds a number above 2^63", place, "write whole picoseconds and indices"
        ) from None
    if len(column) != record.representatives:
        raise document.error(
            f"should have {record.representatives} entries, got {len(column)}", place,
            "make all columns as long as representatives says",
        )  # fmt: skip
    return column


def _check_ranges(
    columns: Mapping[str, NDArray[np.int64]], collective: Collective, links: int, document: Document
) -> None:
    limits = {
        "chunk": collective.num_chunks,
        "link": links,
        "batch": np.iinfo(np.int32).max,
        "reduce": 2,
        "start_ps": MAX_PICOSECONDS,
        "end_ps": MAX_PICOSECONDS,
    }
    for name, limit in limits.items():
        bad = np.flatnonzero((columns[name] < 0) | (columns[name] >= limit))
        if len(bad):
            index = int(bad[0])
            raise document.error(
                f"should be from 0 to {limit - 1}, got {columns[name][index]}",
                ("sends", name, index), f"write a {name.removesuffix('_ps')} that exists",
            )  # fmt: skip
    late = np.flatnonzero(columns["end_ps"] < columns["start_ps"])
    if len(late):
        raise document.error(
            "ends before it starts", ("sends", "end_ps", int(late[0])), "correct start and end"
        )

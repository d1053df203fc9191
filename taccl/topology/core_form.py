"""The core form of a topology file: a directed graph, each edge a resource.

:func:`topology_document` and :func:`graph_topology` are exact inverses; the digest that schedules
carry is that of the document.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PlainValidator, StrictBool, WithJsonSchema

from taccl.files import Document, FileModel, fit_model, shown
from taccl.files.model import (
    MAX_RANKS,
    BetaOrFree,
    BetaOrNone,
    Count,
    Duration,
    ExactSize,
    Index,
    Name,
    PermutationList,
    refuse,
)
from taccl.topology.graph import Edge, LocalCosts, Permutation, Switch, Topology
from taccl.units import Time, beta_text, exact_size_text

MAX_EDGES = 1_200_000
MAX_ROTATIONS = 64


def _vertex(value: object) -> int | str:
    if isinstance(value, bool) or not isinstance(value, (int, str)) or value == "":
        raise refuse(f"should be a rank or the name of a switch, got {shown(value)}", "write 0")
    return value


Vertex = Annotated[
    int | str, PlainValidator(_vertex), WithJsonSchema({"type": ["integer", "string"]})
]
"""A rank, or the name of a switch."""


class LocalRecord(FileModel):
    """What work inside a rank costs; 0 is free."""

    copy_bandwidth: Annotated[BetaOrFree, Field(examples=["600GB/s"])] = Fraction(0)
    reduce_bandwidth: Annotated[BetaOrFree, Field(examples=["600GB/s"])] = Fraction(0)
    launch: Annotated[Duration, Field(examples=["5us"])] = 0

    def costs(self) -> LocalCosts:
        """Return the costs as engines see them."""
        return LocalCosts(self.copy_bandwidth, self.reduce_bandwidth, self.launch)


Gpu = Literal[
    "p100",
    "v100",
    "a40",
    "a100",
    "h100",
    "h200",
    "h800",
    "b200",
    "gb200",
    "mi100",
    "mi250",
    "mi300x",
]
"""GPUs by name, as files may say them."""


class TopologyHeader(FileModel):
    """What all forms of a topology file have in common."""

    taccl: Annotated[Literal["topology/1"], Field(examples=["topology/1"])]
    name: Annotated[Name, Field(examples=["two-pairs"])]
    alpha_rule: Annotated[Literal["occupy", "delay"], Field(examples=["occupy"])] = "occupy"
    local: LocalRecord = LocalRecord()
    chunk_size: Annotated[ExactSize | None, Field(examples=["1KB"])] = None
    costs: Annotated[Literal["exact", "original"] | None, Field(examples=["exact"])] = None
    gpu: Annotated[Gpu | None, Field(examples=["a100"])] = None


class SwitchRecord(FileModel):
    """A vertex that is no rank; a plain name is short for a record with that name."""

    name: Annotated[Name, Field(examples=["nvs"])]
    multicast: StrictBool = False
    reduce: StrictBool = False
    across: Annotated[Literal["servers"] | None, Field(examples=["servers"])] = None


class EdgeRecord(FileModel):
    """An edge, and by default its reverse."""

    tail: Annotated[Vertex, Field(alias="from", examples=[0])]
    head: Annotated[Vertex, Field(alias="to", examples=[1])]
    bandwidth: Annotated[BetaOrNone, Field(examples=["25GB/s or 46us/MB"])] = None
    alpha: Annotated[Duration, Field(examples=["0.7us"])] = 0
    overhead: Annotated[Duration | None, Field(examples=["0.2us"])] = None
    name: Annotated[Name | None, Field(examples=["upper"])] = None
    both: Annotated[StrictBool, Field(examples=["false"])] = True


def _as_switch(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


class GraphFile(TopologyHeader):
    """A topology as a directed graph of ranks and switches."""

    ranks: Annotated[Count, Field(examples=[4])]
    switches: Annotated[
        list[Annotated[SwitchRecord, BeforeValidator(_as_switch)]],
        Field(max_length=MAX_RANKS * 4, examples=["[nvs]"]),
    ] = Field(default_factory=list)
    edges: Annotated[list[EdgeRecord], Field(max_length=MAX_EDGES, examples=["[{from: 0, to: 1}]"])]
    servers: Annotated[list[list[Index]] | None, Field(examples=["[[0, 1], [2, 3]]"])] = None
    rotations: Annotated[
        list[PermutationList], Field(max_length=MAX_ROTATIONS, examples=["[[1, 0, 3, 2]]"])
    ] = Field(default_factory=list)


def read_graph(document: Document) -> Topology:
    """Return the topology that a document in the core form describes.

    Raises
    ------
    InputError
        With file, line, field and fix.
    """
    return graph_topology(fit_model(document, GraphFile), document)


def graph_topology(record: GraphFile, document: Document) -> Topology:
    """Return the topology of a core-form record; ``document`` serves error messages.

    Parameters
    ----------
    record
        The fields of the file.
    document
        The file, for the places in errors.
    """
    switches = tuple(
        Switch(s.name, s.multicast, s.reduce, s.across == "servers") for s in record.switches
    )
    vertices = _vertices(record, document)
    edges: list[Edge] = []
    for index, edge in enumerate(record.edges):
        edges.extend(_edges(record, edge, index, len(edges), vertices, document))
    _check_names(record, edges, document)
    return Topology(
        record.name, record.ranks, switches, tuple(edges), _server_of(record, document),
        permutations(document, ("rotations",), record.rotations, record.ranks),
        record.alpha_rule, record.local.costs(), record.chunk_size, record.costs, record.gpu,
    )  # fmt: skip


def _vertices(record: GraphFile, document: Document) -> dict[int | str, int]:
    """Return the number of every vertex that an edge may name."""
    vertices: dict[int | str, int] = {rank: rank for rank in range(record.ranks)}
    for index, switch in enumerate(record.switches):
        if switch.name in vertices or switch.name.isdigit():
            problem = "is the name of another switch" if switch.name in vertices else "is a number"
            raise document.error(
                f"{shown(switch.name)} {problem}", ("switches", index), "choose another name"
            )
        vertices[switch.name] = record.ranks + index
    return vertices


def _edges(
    record: GraphFile,
    edge: EdgeRecord,
    index: int,
    first: int,
    vertices: Mapping[int | str, int],
    document: Document,
) -> list[Edge]:
    place = ("edges", index)
    for end, vertex in (("from", edge.tail), ("to", edge.head)):
        if vertex not in vertices:
            known = ", ".join(switch.name for switch in record.switches[:8]) or "no switches"
            raise document.error(
                f"there is no vertex {shown(vertex)}", (*place, end),
                f"use a rank from 0 to {record.ranks - 1} or a listed switch ({known})",
            )  # fmt: skip
    if edge.tail == edge.head:
        raise document.error(
            f"an edge from {edge.tail} to itself", place, "remove it, or correct from and to"
        )
    if edge.overhead is not None and edge.overhead > edge.alpha:
        raise document.error(
            f"overhead {edge.overhead}ps is more than alpha {edge.alpha}ps", (*place, "overhead"),
            "give an overhead of at most alpha",
        )  # fmt: skip
    tail, head = vertices[edge.tail], vertices[edge.head]
    names = edge_names(str(edge.tail), str(edge.head), edge.name)
    ends = [(tail, head), (head, tail)] if edge.both else [(tail, head)]
    return [
        Edge(first + i, a, b, edge.alpha, edge.overhead, edge.bandwidth, name)
        for i, ((a, b), name) in enumerate(zip(ends, names, strict=False))
    ]


def edge_names(tail: str, head: str, name: str | None) -> tuple[str, str]:
    """Return the names of an edge and of its reverse.

    Parameters
    ----------
    tail, head
        Names of its ends.
    name
        Its own, if it has one.
    """
    return (name, f"{name}.reverse") if name else (f"{tail}->{head}", f"{head}->{tail}")


def _check_names(record: GraphFile, edges: Sequence[Edge], document: Document) -> None:
    """Refuse parallel edges without names and names given twice."""
    sources = [i for i, e in enumerate(record.edges) for _ in range(2 if e.both else 1)]
    seen_ends: dict[tuple[int, int], int] = {}
    seen_names: dict[str, int] = {}
    for edge, source in zip(edges, sources, strict=True):
        other = seen_ends.setdefault((edge.tail, edge.head), source)
        named = record.edges[source].name and record.edges[other].name
        if other != source and not named:
            raise document.error(
                f"edge {edge.name} is there already, as edges[{other}]", ("edges", source),
                "remove one, or name both if they are parallel; both: true adds the reverse",
            )  # fmt: skip
        other = seen_names.setdefault(edge.name, source)
        if other != source:
            raise document.error(
                f"edges[{other}] is called {shown(edge.name)}, too", ("edges", source, "name"),
                "choose another name",
            )  # fmt: skip


def _server_of(record: GraphFile, document: Document) -> tuple[int, ...]:
    if record.servers is None:
        return (0,) * record.ranks
    server_of = [-1] * record.ranks
    for number, members in enumerate(record.servers):
        if not members:
            raise document.error("is empty", ("servers", number), "list its ranks")
        for position, rank in enumerate(members):
            place = ("servers", number, position)
            if rank >= record.ranks:
                raise document.error(
                    f"there is no rank {rank}", place, f"use ranks from 0 to {record.ranks - 1}"
                )
            if server_of[rank] >= 0:
                raise document.error(
                    f"rank {rank} is in a server already", place, "list every rank once"
                )
            server_of[rank] = number
    if -1 in server_of:
        raise document.error(
            f"rank {server_of.index(-1)} is in no server", ("servers",), "list every rank once"
        )
    return tuple(server_of)


def permutations(
    document: Document, place: Sequence[str | int], rows: Sequence[Sequence[int]], size: int
) -> tuple[Permutation, ...]:
    """Return rows as permutations of ``0 .. size-1``.

    Parameters
    ----------
    document
        The file, for the places in errors.
    place
        Path of the rows within the document.
    rows
        Where each of the numbers goes.
    size
        How many numbers.

    Raises
    ------
    InputError
        When a row is none.
    """
    expected = list(range(size))
    for index, row in enumerate(rows):
        if sorted(row) != expected:
            raise document.error(
                f"should be a permutation of 0..{size - 1}, got {shown(list(row))}",
                (*place, index), f"list every number from 0 to {size - 1} once",
            )  # fmt: skip
    return tuple(tuple(row) for row in rows)


def topology_document(topology: Topology) -> dict[str, object]:
    """Return a topology in the core form, with exact quantities."""
    ends = Counter((edge.tail, edge.head) for edge in topology.edges)
    document: dict[str, object] = {"taccl": "topology/1", "name": topology.name}
    document["ranks"] = topology.num_ranks
    if topology.switches:
        document["switches"] = [_switch_entry(switch) for switch in topology.switches]
    document["edges"] = [
        _edge_entry(topology, edge, parallel=ends[edge.tail, edge.head] > 1)
        for edge in topology.edges
    ]
    if topology.num_servers > 1:
        servers: dict[int, list[int]] = {}
        for rank, server in enumerate(topology.server_of):
            servers.setdefault(server, []).append(rank)
        document["servers"] = [servers[number] for number in sorted(servers)]
    if topology.rotations:
        document["rotations"] = [list(rotation) for rotation in topology.rotations]
    document["alpha_rule"] = topology.alpha_rule
    if topology.local != LocalCosts():
        document["local"] = _local_entry(topology.local)
    if topology.chunk_size is not None:
        document["chunk_size"] = exact_size_text(topology.chunk_size)
    if topology.costs is not None:
        document["costs"] = topology.costs
    if topology.gpu is not None:
        document["gpu"] = topology.gpu
    return document


def _switch_entry(switch: Switch) -> object:
    flags: dict[str, object] = {"multicast": switch.multicast, "reduce": switch.reduce}
    entry: dict[str, object] = {"name": switch.name}
    entry |= {name: True for name, on in flags.items() if on}
    if switch.across_servers:
        entry["across"] = "servers"
    return entry if len(entry) > 1 else switch.name


def _edge_entry(topology: Topology, edge: Edge, *, parallel: bool) -> dict[str, object]:
    tail, head = (
        v if v < topology.num_ranks else topology.vertex_name(v) for v in (edge.tail, edge.head)
    )
    entry: dict[str, object] = {"from": tail, "to": head}
    if edge.beta is not None:
        entry["bandwidth"] = beta_text(edge.beta)
    if edge.alpha:
        entry["alpha"] = _time_text(edge.alpha)
    if edge.overhead is not None:
        entry["overhead"] = _time_text(edge.overhead)
    if parallel or edge.name != edge_names(str(tail), str(head), None)[0]:
        entry["name"] = edge.name
    entry["both"] = False
    return entry


def _local_entry(local: LocalCosts) -> dict[str, object]:
    rates = {"copy_bandwidth": local.copy_beta, "reduce_bandwidth": local.reduce_beta}
    entry: dict[str, object] = {name: beta_text(beta) for name, beta in rates.items() if beta}
    if local.launch:
        entry["launch"] = _time_text(local.launch)
    return entry


def _time_text(time: Time) -> str:
    return f"{time}ps"


def topology_digest(topology: Topology) -> str:
    """Return 16 hex digits for all that a topology file can say that anything depends on."""
    document = topology_document(replace(topology, gpu=None))
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]

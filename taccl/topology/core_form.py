"""The core form of a topology file: a directed graph, each edge a resource.

:func:`topology_document` and :func:`graph_topology` are exact inverses; the digest that schedules
carry is that of the document.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from fractions import Fraction
from functools import partial
from typing import Annotated, Literal

from pydantic import (
    BeforeValidator,
    Field,
    PlainValidator,
    StrictBool,
    StrictInt,
    StrictStr,
    WithJsonSchema,
    model_validator,
)

from taccl.errors import InputError
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
    checked,
    refuse,
)
from taccl.topology.graph import (
    Edge,
    FanEngine,
    LocalCosts,
    Multicast,
    Permutation,
    ProgramCosts,
    ProtocolCosts,
    Reduction,
    Switch,
    Topology,
)
from taccl.topology.symmetry import is_symmetry, kept_powers
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


_FACTOR = re.compile(r"\d{1,20}(\.\d{1,20})?(/0*[1-9]\d{0,20})?")


def _factor(value: object) -> Fraction:
    text = str(value)
    if _FACTOR.fullmatch(text):
        head, _, tail = text.partition("/")
        factor = Fraction(head) / int(tail or 1)
        if Fraction(1, 1000) <= factor <= 1000:
            return factor
    raise InputError(f"should be a factor between 0.001 and 1000, got {shown(value)}")


def _slower(value: object) -> Fraction:
    factor = _factor(value)
    if factor >= 1:
        return factor
    raise InputError(f"should be a factor of at least 1, got {shown(value)}")


def _part(value: object) -> Fraction:
    factor = _factor(value)
    if factor <= 1:
        return factor
    raise InputError(f"should be a part of at most 1, got {shown(value)}")


Factor = Annotated[
    Fraction,
    PlainValidator(checked(_factor, "a factor", "write 0.8 or 2.55")),
    WithJsonSchema({"type": ["number", "string"], "description": "a factor, such as 0.8"}),
]
"""Exact, as written."""


Slower = Annotated[
    Fraction,
    PlainValidator(checked(_slower, "a factor", "write 5")),
    WithJsonSchema({"type": ["number", "string"], "description": "a factor from 1 on, such as 5"}),
]
"""Exact, as written; what is multiplied takes no less."""

Part = Annotated[
    Fraction,
    PlainValidator(checked(_part, "a part", "write 0.8")),
    WithJsonSchema({"type": ["number", "string"], "description": "a part up to 1, such as 0.9"}),
]
"""Exact, as written; what is multiplied is no more."""


class ProtocolRecord(FileModel):
    """What a protocol costs a program, as measured."""

    launch: Annotated[Duration, Field(examples=["5us"])]
    alpha: Annotated[Duration, Field(examples=["3.4us"])]
    alpha_across: Annotated[Duration | None, Field(examples=["14us"])] = None
    wire: Annotated[Factor, Field(examples=[2.55])] = Fraction(1)
    detour: Annotated[Slower, Field(examples=[5])] = Fraction(1)
    threadblock: Annotated[BetaOrFree, Field(examples=["38.7GB/s"])] = Fraction(0)
    slice: Annotated[StrictInt, Field(ge=1, le=1 << 30, examples=[32768])] = 32 << 10

    def costs(self) -> ProtocolCosts:
        """Return the costs as the replay sees them."""
        across = self.alpha if self.alpha_across is None else self.alpha_across
        return ProtocolCosts(
            self.launch, self.alpha, across, self.wire, self.threadblock, self.slice,
            self.detour,
        )  # fmt: skip


class PlansRecord(FileModel):
    """What MSCCL++ plans cost on this machine, as measured."""

    source: Annotated[StrictStr, Field(min_length=1, max_length=2000, examples=["nccl-tests"])]
    inside: Annotated[Factor, Field(examples=[0.8])] = Fraction(1)
    across: Annotated[Factor, Field(examples=[0.97])] = Fraction(1)
    several: Annotated[Part, Field(examples=[0.9])] = Fraction(1)
    copy_bandwidth: Annotated[BetaOrFree, Field(examples=["600GB/s"])] = Fraction(0)
    reduce_bandwidth: Annotated[BetaOrFree, Field(examples=["600GB/s"])] = Fraction(0)
    flag: Annotated[Duration, Field(examples=["0.5us"])] = 0
    slices: Annotated[StrictInt, Field(ge=1, le=64, examples=[8])] = 8
    protocols: dict[Literal["Simple", "LL", "NVLS"], ProtocolRecord]

    def costs(self) -> ProgramCosts:
        """Return the costs as the replay sees them."""
        return ProgramCosts(
            self.source, {name: row.costs() for name, row in self.protocols.items()},
            self.inside, self.across, self.copy_bandwidth, self.reduce_bandwidth,
            self.flag, self.slices, several=self.several,
        )  # fmt: skip


class MeasuredRecord(PlansRecord):
    """What programs cost on this machine, as measured; the rest of the file is its data sheet."""

    protocols: dict[Literal["Simple", "LL", "LL128"], ProtocolRecord]  # type: ignore[assignment]
    mscclpp: PlansRecord | None = None

    def costs(self) -> ProgramCosts:
        """Return the costs as the replay sees them."""
        plans = None if self.mscclpp is None else self.mscclpp.costs()
        return replace(super().costs(), plans=plans)


Gpu = Literal[
    "p100", "v100", "a40", "a100", "h100", "h200", "h800", "b200", "gb200", "mi100", "mi250",
    "mi300x",
]  # fmt: skip
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
    measured: MeasuredRecord | None = None


def _record_or_flag(value: object) -> object:
    """Read ``true`` as a record without fields, and ``false`` as none."""
    return ({} if value else None) if isinstance(value, bool) else value


Own = Annotated[Literal["local", "through"], Field(examples=["through"])]


class MulticastRecord(FileModel):
    """How a switch copies a message to many; ``true`` is a record without fields."""

    own: Own = "local"


DataType = Literal["int8", "uint8", "half", "bfloat16", "int32", "uint32", "float", "int64",
                   "uint64", "double"]  # fmt: skip


class ReductionRecord(FileModel):
    """How a switch adds messages; ``true`` is a record without fields."""

    own: Own = "local"
    turn: Annotated[Literal["switch", "rank"], Field(examples=["rank"])] = "switch"
    types: Annotated[list[DataType] | None, Field(min_length=1, examples=["[int32]"])] = None


class WindowRecord(FileModel):
    """What a port may have under way in a switch."""

    slots: Annotated[StrictInt, Field(ge=1, le=1 << 30, examples=[512])]
    bytes: Annotated[ExactSize, Field(examples=["256B"])]


class EngineRecord(FileModel):
    """What limits the part of a switch that copies and adds."""

    bandwidth: Annotated[BetaOrNone, Field(examples=["304GB/s"])] = None
    alpha: Annotated[Duration, Field(examples=["0.3us"])] = 0
    window: Annotated[WindowRecord | None, Field(examples=["{slots: 64, bytes: 2KiB}"])] = None
    message: Annotated[ExactSize | None, Field(examples=["1GiB"])] = None


class AbilitiesRecord(FileModel):
    """What a switch can do inside the network, and its limits."""

    multicast: Annotated[
        MulticastRecord | None, BeforeValidator(_record_or_flag), Field(examples=["true"])
    ] = None
    reduce: Annotated[
        ReductionRecord | None, BeforeValidator(_record_or_flag), Field(examples=["true"])
    ] = None
    engine: EngineRecord = EngineRecord()
    trees: Annotated[StrictInt | None, Field(ge=1, examples=[2])] = None
    groups: Annotated[StrictInt | None, Field(ge=1, examples=[64])] = None

    @model_validator(mode="after")
    def _limits_of_what_it_can(self) -> "AbilitiesRecord":
        if self.multicast is None and self.reduce is None:
            for name in ("engine", "trees", "groups"):
                if name in self.model_fields_set:
                    raise refuse(
                        f"{name} limits what copies or adds, and it does neither",
                        "write multicast: true, reduce: true, or both",
                    )
        return self

    def switch(self, name: str, *, across: bool = False) -> Switch:
        """Return the switch that can do this, called ``name``; ``across`` servers only or not."""
        engine, copies, adds = self.engine, self.multicast, self.reduce
        window = engine.window
        return Switch(
            name,
            None if copies is None else Multicast(copies.own == "through"),
            None if adds is None
            else Reduction(adds.own == "through", adds.turn == "rank", tuple(adds.types or ())),
            across,
            FanEngine(
                engine.bandwidth, engine.alpha,
                None if window is None else (window.slots, window.bytes), engine.message,
            ),
            self.trees, self.groups,
        )  # fmt: skip


class SwitchesRecord(AbilitiesRecord):
    """What the switches of some names can do inside the network."""

    name: Annotated[Name, Field(examples=["leaf*"])]


class SwitchRecord(AbilitiesRecord):
    """A vertex that is no rank; a plain name is short for a record with that name."""

    name: Annotated[Name, Field(examples=["nvs"])]
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


AS_SWITCH = BeforeValidator(lambda value: {"name": value} if isinstance(value, str) else value)


class GraphFile(TopologyHeader):
    """A topology as a directed graph of ranks and switches."""

    ranks: Annotated[Count, Field(examples=[4])]
    switches: Annotated[
        list[Annotated[SwitchRecord, AS_SWITCH]],
        Field(max_length=MAX_RANKS * 4, examples=["[nvs]"]),
    ] = Field(default_factory=list)
    edges: Annotated[list[EdgeRecord], Field(max_length=MAX_EDGES, examples=["[{from: 0, to: 1}]"])]
    servers: Annotated[list[list[Index]] | None, Field(examples=["[[0, 1], [2, 3]]"])] = None
    rotations: Annotated[
        list[PermutationList], Field(max_length=MAX_ROTATIONS, examples=["[[1, 0, 3, 2]]"])
    ] = Field(default_factory=list)


@dataclass(eq=False)
class Builder:
    """A graph as far as it is built.

    Vertices below `num_ranks` are ranks; `switches` follow, and `edges` are in order.
    """

    num_ranks: int
    switches: list[Switch] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)

    def switch(
        self, name: str, *, across: bool = False, abilities: AbilitiesRecord | None = None
    ) -> int:
        """Add a switch and return its vertex."""
        self.switches.append((abilities or AbilitiesRecord()).switch(name, across=across))
        return self.num_ranks + len(self.switches) - 1

    def edge(
        self,
        tail: int,
        head: int,
        beta: Fraction | None,
        alpha: Time = 0,
        *,
        overhead: Time | None = None,
        name: str | None = None,
    ) -> None:
        """Add one edge; without a ``name`` it has that of its ends."""
        if name is None:
            ends = [v if v < self.num_ranks else self.switches[v - self.num_ranks].name
                    for v in (tail, head)]  # fmt: skip
            name = f"{ends[0]}->{ends[1]}"
        self.edges.append(Edge(len(self.edges), tail, head, alpha, overhead, beta, name))

    def topology(
        self, header: TopologyHeader, server_of: Sequence[int], rotations: Sequence[Permutation]
    ) -> Topology:
        """Return the topology, under the ``header`` of its file."""
        return Topology(
            header.name, self.num_ranks, tuple(self.switches), tuple(self.edges), tuple(server_of),
            tuple(rotations), header.alpha_rule, header.local.costs(), header.chunk_size,
            header.costs, header.gpu,
            None if header.measured is None else header.measured.costs(),
        )  # fmt: skip


def read_graph(document: Document) -> Topology:
    """Return the topology that a document in the core form describes.

    Raises InputError with file, line, field and fix.
    """
    record = fit_model(document, GraphFile)
    builder = Builder(record.ranks)
    vertices: dict[int | str, int] = {rank: rank for rank in range(record.ranks)}
    for index, switch in enumerate(record.switches):
        if switch.name in vertices or switch.name.isdigit():
            problem = "is the name of another switch" if switch.name in vertices else "is a number"
            raise document.error(
                f"{shown(switch.name)} {problem}", ("switches", index), "choose another name"
            )
        vertices[switch.name] = builder.switch(
            switch.name, across=switch.across is not None, abilities=switch
        )  # fmt: skip
    _add_edges(builder, record, vertices, document)
    _check_names(record, builder.edges, document)
    rotations = permutations(document, ("rotations",), record.rotations, record.ranks)
    return builder.topology(record, _server_of(record, document), rotations)


def _add_edges(
    builder: Builder, record: GraphFile, vertices: Mapping[int | str, int], document: Document
) -> None:
    for index, edge in enumerate(record.edges):
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
                f"overhead {edge.overhead}ps is more than alpha {edge.alpha}ps",
                (*place, "overhead"), "give an overhead of at most alpha",
            )  # fmt: skip
        ends = vertices[edge.tail], vertices[edge.head]
        both = [(ends, edge.name), (ends[::-1], edge.name and f"{edge.name}.reverse")]
        for (tail, head), name in both if edge.both else both[:1]:
            builder.edge(tail, head, edge.bandwidth, edge.alpha, overhead=edge.overhead, name=name)


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


def with_abilities(
    topology: Topology,
    records: Sequence[SwitchesRecord],
    document: Document,
    place: Sequence[str],
    first: int = 0,
) -> Topology:
    """Return a ``topology`` whose switches can do what ``records`` say of their names.

    In a name ``*`` is any text; switches before the ``first`` are not meant. Of the rotations those
    are left that still hold, or powers of them.

    Raises InputError, with the ``place`` of the records in the ``document``, where no switch has
    such a name.
    """
    if not records:
        return topology
    switches = list(topology.switches)
    for index, record in enumerate(records):
        meant = range(first, len(switches))
        named = [i for i in meant if fnmatchcase(switches[i].name, record.name)]
        if not named:
            known = ", ".join(switches[i].name for i in meant[:8]) or "it has no switches"
            raise document.error(
                f"no switch is called {shown(record.name)}", (*place, index, "name"),
                f"use a name, or one with a *, of {known}",
            )  # fmt: skip
        for i in named:
            switches[i] = record.switch(switches[i].name, across=switches[i].across_servers)
    made = replace(topology, switches=tuple(switches))
    return replace(made, rotations=kept_powers(made.rotations, partial(is_symmetry, made)))


def permutations(
    document: Document, place: Sequence[str | int], rows: Sequence[Sequence[int]], size: int
) -> tuple[Permutation, ...]:
    """Return ``rows`` at a ``place`` of a ``document`` as permutations of 0 .. ``size`` - 1.

    Raises InputError when a row is none.
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
    local, size = topology.local, topology.chunk_size
    rates = {"copy_bandwidth": local.copy_beta, "reduce_bandwidth": local.reduce_beta}
    costs = {name: beta_text(beta) for name, beta in rates.items() if beta}
    costs |= {"launch": f"{local.launch}ps"} if local.launch else {}
    switches = [_switch(switch) for switch in topology.switches]
    edges = []
    for edge in topology.edges:
        tail, head = (
            v if v < topology.num_ranks else topology.vertex_name(v) for v in (edge.tail, edge.head)
        )
        named = edge.name != f"{tail}->{head}" or ends[edge.tail, edge.head] > 1
        entry = {
            "from": tail,
            "to": head,
            "bandwidth": None if edge.beta is None else beta_text(edge.beta),
            "alpha": f"{edge.alpha}ps" if edge.alpha else None,
            "overhead": None if edge.overhead is None else f"{edge.overhead}ps",
            "name": edge.name if named else None,
            "both": False,
        }
        edges.append(_said(entry))
    document: dict[str, object] = {
        "taccl": "topology/1",
        "name": topology.name,
        "ranks": topology.num_ranks,
        "switches": switches or None,
        "edges": edges,
        "servers": list(map(list, topology.servers)) if topology.num_servers > 1 else None,
        "rotations": [list(rotation) for rotation in topology.rotations] or None,
        "alpha_rule": topology.alpha_rule,
        "local": costs or None,
        "chunk_size": None if size is None else exact_size_text(size),
        "costs": topology.costs,
        "gpu": topology.gpu,
        "measured": None if topology.measured is None else _measured(topology.measured),
    }
    return _said(document)


def _switch(switch: Switch) -> object:
    """Return a switch as a file has it: its name alone, or what else there is to say."""
    copies, adds, engine = switch.multicast, switch.reduce, switch.engine
    own = "through"
    fields: dict[str, object] = {
        "multicast": copies and ({"own": own} if copies.through else True),
        "reduce": adds and (_said(
            {
                "own": own if adds.through else None,
                "turn": "rank" if adds.at_rank else None,
                "types": list(adds.types) or None,
            }
        ) or True),
        "across": "servers" if switch.across_servers else None,
        "engine": _said(
            {
                "bandwidth": None if engine.beta is None else beta_text(engine.beta),
                "alpha": f"{engine.alpha}ps" if engine.alpha else None,
                "window": engine.window and {
                    "slots": engine.window[0], "bytes": exact_size_text(engine.window[1]),
                },
                "message": None if engine.message is None else exact_size_text(engine.message),
            }
        ) or None,
        "trees": switch.trees,
        "groups": switch.groups,
    }  # fmt: skip
    said = _said(fields)
    return {"name": switch.name, **said} if said else switch.name


def _said(fields: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in fields.items() if value is not None}


def _measured(costs: ProgramCosts) -> dict[str, object]:
    """Return measured costs as a file has them, without what is the default."""

    def rate(beta: Fraction) -> str | None:
        return beta_text(beta) if beta else None

    protocols = {
        name: {
            "launch": f"{row.launch}ps",
            "alpha": f"{row.alpha}ps",
            "alpha_across": f"{row.alpha_across}ps",
            "wire": str(row.wire),
            "detour": str(row.detour),
            "threadblock": rate(row.block_beta),
            "slice": row.slice_bytes,
        }
        for name, row in costs.protocols.items()
    }
    record: dict[str, object] = {
        "source": costs.source,
        "inside": str(costs.inside),
        "across": str(costs.across),
        "several": str(costs.several),
        "copy_bandwidth": rate(costs.copy_beta),
        "reduce_bandwidth": rate(costs.reduce_beta),
        "flag": f"{costs.flag}ps",
        "slices": costs.slices,
        "protocols": {name: _said(row) for name, row in protocols.items()},
        "mscclpp": costs.plans and _measured(costs.plans),
    }
    return _said(record)


def topology_digest(topology: Topology) -> str:
    """Return 16 hex digits for all that a topology file can say that a schedule depends on."""
    document = topology_document(replace(topology, gpu=None, measured=None))
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]

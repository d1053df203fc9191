"""The server+fabric form of a topology file, expanded to the core graph.

A server has GPUs, wires between them, switches, and NICs; a fabric, a row of :data:`FABRICS`, joins
the NICs. A NIC becomes two vertices, NAME.tx and NAME.rx, so that no path turns round in it; its
bandwidth sits on the edges to the fabric. The alpha of a switch or fabric is that of one whole
crossing, half on each of its two edges. The fabric carries only paths between servers.

Switches of a server may be joined to each other, as PCIe switches, host bridges and sockets are:
what crosses a shared hop shares its bandwidth.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import (
    BeforeValidator,
    Field,
    PlainValidator,
    StrictBool,
    StrictFloat,
    StrictInt,
    WithJsonSchema,
    model_validator,
)

from taccl.errors import InputError, did_you_mean
from taccl.files import Document, FileModel, fit_model, shown
from taccl.files.model import (
    MAX_RANKS,
    Beta,
    BetaOrNone,
    Count,
    Duration,
    Index,
    Name,
    Numbers,
    PermutationList,
    parse_numbers,
    refuse,
)
from taccl.topology.core_form import (
    MAX_EDGES,
    MAX_ROTATIONS,
    AbilitiesRecord,
    Builder,
    SwitchesRecord,
    TopologyHeader,
    permutations,
    with_abilities,
)
from taccl.topology.graph import Permutation, Topology
from taccl.topology.shapes import grid_pairs, reflections, translations
from taccl.topology.symmetry import is_symmetry

MAX_SERVERS = 8192


def overhead_is_part_of_alpha(record: "Crossing | FabricRecord") -> "Crossing | FabricRecord":
    """Refuse a record whose overhead is more than its alpha."""
    if record.overhead is not None and record.overhead > record.alpha:
        raise refuse(
            f"overhead {record.overhead}ps is more than alpha {record.alpha}ps",
            "give an overhead of at most alpha",
        )
    return record


class Crossing(FileModel):
    """What one crossing of a wire or switch costs."""

    bandwidth: Annotated[BetaOrNone, Field(examples=["25GB/s or 46us/MB"])] = None
    alpha: Annotated[Duration, Field(examples=["0.7us"])] = 0
    overhead: Annotated[Duration | None, Field(examples=["0.2us"])] = None

    _overhead = model_validator(mode="after")(overhead_is_part_of_alpha)

    def half(self, part: int) -> "Crossing":
        """Return the first (0) or second (1) half of a crossing; an odd ps goes to the second."""
        overhead = None if self.overhead is None else (self.overhead + part) // 2
        return Crossing.model_construct(
            bandwidth=self.bandwidth, alpha=(self.alpha + part) // 2, overhead=overhead
        )


Uplink = Annotated[
    Crossing | None,
    BeforeValidator(
        lambda value: value if isinstance(value, dict | None) else {"bandwidth": value}
    ),
]
"""A crossing, or only its bandwidth."""


class FabricRecord(FileModel):
    """How the servers are joined; the alpha is that of one whole crossing."""

    kind: Annotated[
        Literal["switch", "rail", "leaf-spine", "torus", "mesh", "none"], Field(examples=["switch"])
    ]
    alpha: Annotated[Duration, Field(examples=["1.7us"])] = 0
    overhead: Annotated[Duration | None, Field(examples=["0.5us"])] = None
    spine: Annotated[Uplink, Field(examples=["{bandwidth: 100GB/s, alpha: 1us}"])] = None
    leaves: Annotated[StrictInt | None, Field(ge=1, le=MAX_SERVERS, examples=[2])] = None
    uplink: Annotated[Uplink, Field(examples=["100GB/s"])] = None
    oversubscription: Annotated[
        StrictInt | StrictFloat | None, Field(ge=1, le=1000, examples=[2])
    ] = None
    dims: Annotated[list[Count] | None, Field(min_length=1, max_length=8, examples=["[2, 2]"])] = (
        None
    )
    switches: Annotated[
        list[SwitchesRecord], Field(examples=["[{name: leaf*, multicast: true, reduce: true}]"])
    ] = Field(default_factory=list)

    _overhead = model_validator(mode="after")(overhead_is_part_of_alpha)

    def crossing(self, beta: Fraction) -> Crossing:
        """Return the whole crossing from a NIC."""
        return Crossing.model_construct(bandwidth=beta, alpha=self.alpha, overhead=self.overhead)


@dataclass(eq=False)
class ServersBuilder(Builder):
    """The graph of servers as far as it is built.

    `nics` has for every server its NICs: vertices tx and rx, and beta.
    """

    nics: list[list[tuple[int, int, Fraction]]] = field(default_factory=list)

    def hop(self, tail: int, head: int, cost: Crossing, name: str | None = None) -> None:
        """Add one edge of a crossing's cost."""
        self.edge(tail, head, cost.bandwidth, cost.alpha, overhead=cost.overhead, name=name)

    def port(self, tail: int, head: int, switch: int, cost: Crossing) -> None:
        """Join ``tail`` to a switch and the switch to ``head``, half a crossing each."""
        self.hop(tail, switch, cost.half(0))
        self.hop(switch, head, cost.half(1))


Problem = tuple[str, str, str] | None
"""What is wrong with a fabric, its field, and the fix."""


def _join_switch(builder: ServersBuilder, fabric: FabricRecord) -> None:
    vertex = builder.switch("fabric", across=True)
    for ports in builder.nics:
        for tx, rx, beta in ports:
            builder.port(tx, rx, vertex, fabric.crossing(beta))


def _join_rail(builder: ServersBuilder, fabric: FabricRecord) -> None:
    """Join NIC k of all servers by switch k; the spine, if any, joins those switches."""
    rails = [builder.switch(f"rail{k}", across=True) for k in range(max(map(len, builder.nics)))]
    for ports in builder.nics:
        for rail, (tx, rx, beta) in zip(rails, ports, strict=False):
            builder.port(tx, rx, rail, fabric.crossing(beta))
    if fabric.spine is not None and len(rails) > 1:
        spine = builder.switch("spine", across=True)
        for rail in rails:
            builder.port(rail, rail, spine, fabric.spine)


def _join_leaves(builder: ServersBuilder, fabric: FabricRecord) -> None:
    """Spread the servers evenly over leaves, in order; one spine has the pooled bandwidth."""
    count, leaves = len(builder.nics), fabric.leaves or 1
    vertices = [builder.switch(f"leaf{k}", across=True) for k in range(leaves)]
    rates = dict.fromkeys(vertices, Fraction(0))
    for server, ports in enumerate(builder.nics):
        for tx, rx, beta in ports:
            leaf = vertices[server * leaves // count]
            rates[leaf] += 1 / beta
            builder.port(tx, rx, leaf, fabric.crossing(beta))
    if leaves > 1:
        spine = builder.switch("spine", across=True)
        for leaf, rate in rates.items():
            uplink, over = fabric.uplink or Crossing(), fabric.oversubscription
            if over is not None and rate:
                uplink = uplink.model_copy(update={"bandwidth": Fraction(str(over)) / rate})
            builder.port(leaf, leaf, spine, uplink)


def _join_grid(builder: ServersBuilder, fabric: FabricRecord) -> None:
    """Join NIC i of every server directly to NIC i of each neighbour."""
    for a, b in grid_pairs(fabric.dims or (), wrap=fabric.kind == "torus"):
        for one, other in zip(builder.nics[a], builder.nics[b], strict=False):
            cost = fabric.crossing(max(one[2], other[2]))
            builder.hop(one[0], other[1], cost)
            builder.hop(other[0], one[1], cost)


def _leaf_problem(fabric: FabricRecord, count: int) -> Problem:
    if (fabric.leaves or 1) > count:
        return f"{fabric.leaves} leaves for {count} servers", "leaves", "use fewer leaves"
    if fabric.oversubscription is None:
        if fabric.uplink is None:
            fix = "write uplink: 100GB/s, or oversubscription: 2"
            return "is missing for a leaf-spine fabric", "uplink", fix
    elif fabric.uplink is not None and fabric.uplink.bandwidth is not None:
        problem = "is given beside the bandwidth of the uplink, which it stands for"
        return problem, "oversubscription", "remove one of them"
    return None


def _grid_problem(fabric: FabricRecord, count: int) -> Problem:
    made = math.prod(fabric.dims or ())
    if made != count:
        return f"dims make {made} servers, there are {count}", "dims", "make the product fit count"
    return None


@dataclass(frozen=True, slots=True)
class Fabric:
    """A row of the table of fabrics.

    `join` adds switches and edges between the NICs of a builder. `rotations` takes fabric and count
    and returns symmetries, as permutations of equal servers; `problem` returns problem, field and
    fix, or None. The fields that it `needs` must be given, those that it `takes` may.
    """

    join: Callable[[ServersBuilder, FabricRecord], None]
    rotations: Callable[[FabricRecord, int], tuple[Permutation, ...]]
    problem: Callable[[FabricRecord, int], Problem] = lambda _fabric, _count: None
    needs: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()


FABRICS: Mapping[str, Fabric] = MappingProxyType({
    "switch": Fabric(_join_switch, lambda _, count: translations([count])),
    "rail": Fabric(_join_rail, lambda _, count: translations([count]), takes=("spine",)),
    "leaf-spine": Fabric(
        _join_leaves,
        lambda fabric, count: (
            () if count % (fabric.leaves or 1)
            else translations([fabric.leaves or 1, count // (fabric.leaves or 1)])
        ),
        _leaf_problem, ("leaves",), ("uplink", "oversubscription"),
    ),
    "torus": Fabric(
        _join_grid, lambda fabric, _: translations(fabric.dims or ()), _grid_problem, ("dims",)
    ),
    "mesh": Fabric(
        _join_grid, lambda fabric, _: reflections(fabric.dims or ()), _grid_problem, ("dims",)
    ),
    "none": Fabric(lambda _builder, _fabric: None, lambda _fabric, _count: ()),
})  # fmt: skip


EMPTY_IS_ABSENT = BeforeValidator(lambda value: [] if value is None else value)


class WireRecord(Crossing):
    """A direct wire between two GPUs of a server, by default in both directions."""

    tail: Annotated[Index, Field(alias="from", examples=[0])]
    head: Annotated[Index, Field(alias="to", examples=[1])]
    name: Annotated[Name | None, Field(examples=["upper"])] = None
    both: StrictBool = True


class SwitchLinkRecord(Crossing):
    """A hop between two switches of a server, in both directions."""

    to: Annotated[Name, Field(examples=["cpu0"])]


def _members(value: object) -> tuple[int, ...] | None:
    if value == []:
        return ()
    try:
        return parse_numbers(value)
    except InputError as error:
        raise refuse(error.problem, f"{error.fix}; [] for no GPUs") from None


Members = Annotated[
    tuple[int, ...] | None,
    PlainValidator(_members),
    WithJsonSchema({
        "type": ["string", "integer", "array"],
        "description": "numbers of GPUs: 0-15, [0, 1], 3 or all; [] for none",
    }),
]  # fmt: skip
"""Numbers of GPUs, perhaps none; None stands for all."""


class NodeSwitchRecord(Crossing, AbilitiesRecord):
    """A switch inside a server; the alpha is that of one whole crossing between GPUs."""

    name: Annotated[Name, Field(examples=["nvswitch"])]
    members: Annotated[Members, Field(examples=["0-15"])] = None
    across: Annotated[Literal["servers"] | None, Field(examples=["servers"])] = None
    links: Annotated[
        list[SwitchLinkRecord], EMPTY_IS_ABSENT, Field(examples=["[{to: cpu0, bandwidth: 24GB/s}]"])
    ] = Field(default_factory=list)


class NicRecord(FileModel):
    """A NIC, and the GPUs that use it or the switch that it is plugged into."""

    name: Annotated[Name, Field(examples=["ib0"])]
    gpus: Annotated[Numbers, Field(examples=["[0, 1]"])] = ()
    at: Annotated[Name | None, Field(examples=["pcie0"])] = None
    bandwidth: Annotated[Beta, Field(examples=["25GB/s"])]
    pcie: Annotated[Crossing | None, Field(examples=["{bandwidth: 24GB/s}"])] = None


class NodeRecord(FileModel):
    """One server."""

    gpus: Annotated[Count, Field(examples=[8])]
    wires: Annotated[list[WireRecord], EMPTY_IS_ABSENT] = Field(default_factory=list)
    switches: Annotated[list[NodeSwitchRecord], EMPTY_IS_ABSENT] = Field(default_factory=list)
    nics: Annotated[list[NicRecord], EMPTY_IS_ABSENT] = Field(default_factory=list)
    rotations: Annotated[
        list[PermutationList], Field(max_length=MAX_ROTATIONS, examples=["[[1, 0]]"])
    ] = Field(default_factory=list)


def problems(node: NodeRecord) -> Iterator[tuple[str, tuple[str | int, ...], str]]:
    """Yield what is wrong with a server: problem, place, fix."""
    last = f"use GPUs from 0 to {node.gpus - 1}"
    sets = [(("switches", i, "members"), s.members) for i, s in enumerate(node.switches)]
    sets += [(("nics", i, "gpus"), nic.gpus) for i, nic in enumerate(node.nics)]
    sets += [(("wires", i, "from"), (wire.tail,)) for i, wire in enumerate(node.wires)]
    sets += [(("wires", i, "to"), (wire.head,)) for i, wire in enumerate(node.wires)]
    for where, numbers in sets:
        high = max(numbers or (0,))
        if high >= node.gpus:
            yield f"there is no GPU {high} in a server of {node.gpus}", where, last
    named: set[str] = set()
    names = [("switches", i, [switch.name]) for i, switch in enumerate(node.switches)]
    for i, nic in enumerate(node.nics):
        names.append(("nics", i, [nic.name, f"{nic.name}.tx", f"{nic.name}.rx"]))
    for kind, i, own in names:
        for name in own:
            if name in named:
                yield f"{shown(name)} is there already", (kind, i, "name"), "choose another name"
        named.update(own)
    yield from _wire_problems(node)
    yield from _switch_problems(node)


def _wire_problems(node: NodeRecord) -> Iterator[tuple[str, tuple[str | int, ...], str]]:
    seen: dict[tuple[int, int], int] = {}
    names: set[str] = set()
    for i, wire in enumerate(node.wires):
        if wire.tail == wire.head:
            yield f"a wire from GPU {wire.tail} to itself", ("wires", i), "correct from and to"
        ends = [(wire.tail, wire.head), (wire.head, wire.tail)][: 2 if wire.both else 1]
        for a, b in ends:
            other = seen.setdefault((a, b), i)
            if other != i and not (wire.name and node.wires[other].name):
                yield (
                    f"wire {a}->{b} is there already, as wires[{other}]", ("wires", i),
                    "remove one, or name both if they are parallel; both: true adds the reverse",
                )  # fmt: skip
        if wire.name is not None and wire.name in names:
            yield f"{wire.name!r} is there already", ("wires", i, "name"), "choose another name"
        names.add(wire.name or "")


def gpus_of(numbers: tuple[int, ...] | None, gpus: int) -> Sequence[int]:
    """Return the local ``numbers``, or those of all ``gpus`` of a server for None."""
    return range(gpus) if numbers is None else numbers


def num_edges(node: NodeRecord) -> int:
    """Return at least as many edges as a server becomes."""
    ports = [len(gpus_of(switch.members, node.gpus)) for switch in node.switches]
    ports += [len(gpus_of(nic.gpus, node.gpus)) + 9 for nic in node.nics]
    ports += [len(switch.links) for switch in node.switches]
    return 2 * (len(node.wires) + sum(ports))


def _switch_problems(node: NodeRecord) -> Iterator[tuple[str, tuple[str | int, ...], str]]:
    known = {switch.name for switch in node.switches}
    listed = f"use one of {', '.join(sorted(known)[:8])}" if known else "list it in switches"
    seen: set[frozenset[str]] = set()
    for i, switch in enumerate(node.switches):
        for k, link in enumerate(switch.links):
            place = ("switches", i, "links", k)
            if link.to not in known or link.to == switch.name:
                yield f"there is no other switch {shown(link.to)}", (*place, "to"), listed
            ends = frozenset((switch.name, link.to))
            if ends in seen:
                yield (
                    f"{switch.name} and {link.to} are joined already", place,
                    "keep one link, with the bandwidth of both",
                )  # fmt: skip
            seen.add(ends)
    for i, nic in enumerate(node.nics):
        if nic.at is not None and nic.at not in known:
            yield f"there is no switch {shown(nic.at)}", ("nics", i, "at"), listed
        if nic.gpus == () and nic.at is None:
            yield "is missing", ("nics", i, "gpus"), "write gpus: [0, 1], or at: and a switch"
        if nic.gpus != () and nic.at is not None:
            yield "gpus and at are both given", ("nics", i, "at"), "remove one of them"


def shift(node: NodeRecord, *, with_nics: bool) -> Permutation | None:
    """Return the smallest step i -> i + d that a ``node``, ``with_nics`` or not, has; or None."""
    builder = ServersBuilder(node.gpus)
    _add_server(builder, 0, node, 0, with_nics=with_nics)
    outside = builder.switch("outside")
    for tx, rx, beta in builder.nics[0]:
        builder.port(tx, rx, outside, Crossing.model_construct(bandwidth=beta))
    server = Topology(
        "server", node.gpus, tuple(builder.switches), tuple(builder.edges), (0,) * node.gpus
    )
    for step in range(1, node.gpus):
        if node.gpus % step == 0:
            turn = tuple((gpu + step) % node.gpus for gpu in range(node.gpus))
            if is_symmetry(server, turn):
                return turn
    return None


class ServersFile(TopologyHeader):
    """A topology as servers and the fabric that joins them."""

    node: Annotated[NodeRecord | None, Field(examples=["{gpus: 8}"])] = None
    nodes: Annotated[
        list[NodeRecord] | None, Field(min_length=1, max_length=MAX_SERVERS, examples=["[...]"])
    ] = None
    count: Annotated[StrictInt | None, Field(ge=1, le=MAX_SERVERS, examples=[2])] = None
    fabric: Annotated[FabricRecord | None, Field(examples=["{kind: switch, alpha: 1.7us}"])] = None


def read_servers(
    document: Document, *, nodes: int | None = None, fabric: str | None = None
) -> Topology:
    """Return the topology of a ``document``; ``nodes`` and ``fabric`` override count and kind.

    Raises InputError with file, line, field and fix.
    """
    record = fit_model(document, ServersFile)
    servers = _servers(record, document, nodes)
    for index, node in enumerate(record.nodes or servers[:1]):
        for problem, where, fix in problems(node):
            raise document.error(problem, (*_place(record, index), *where), fix)
    # What would not fit in memory is refused before it is made.
    ranks, field_ = sum(node.gpus for node in servers), "count" if nodes is None else "--nodes"
    if ranks > MAX_RANKS:
        raise document.error(
            f"{len(servers)} servers make {ranks} ranks, more than {MAX_RANKS}", (field_,),
            "use fewer servers or GPUs",
        )  # fmt: skip
    cost = {id(node): num_edges(node) for node in servers}
    if sum(cost[id(node)] for node in servers) > MAX_EDGES:
        raise document.error(
            f"makes more than {MAX_EDGES} edges", (field_,), "use fewer servers or devices"
        )
    chosen = _fabric(record, document, len(servers), fabric)
    joined = chosen is not None and chosen.kind != "none"
    if joined and not any(node.nics for node in servers):
        raise document.error("is missing", (*_place(record, 0), "nics"), "add the server's NICs")
    builder = ServersBuilder(ranks)
    first = 0
    for number, node in enumerate(servers):
        _add_server(builder, number, node, first, with_nics=joined)
        first += node.gpus
    inside = len(builder.switches)
    if chosen is not None:
        FABRICS[chosen.kind].join(builder, chosen)
    server_of = tuple(number for number, node in enumerate(servers) for _ in range(node.gpus))
    made = builder.topology(record, server_of, _rotations(record, document, servers, chosen))
    able = () if chosen is None else chosen.switches
    return with_abilities(made, able, document, ("fabric", "switches"), inside)


def _place(record: ServersFile, index: int) -> tuple[str | int, ...]:
    return ("node",) if record.node is not None else ("nodes", index)


def _servers(record: ServersFile, document: Document, nodes: int | None) -> list[NodeRecord]:
    """Return the record of every server."""
    if record.node is not None and record.nodes is not None:
        raise document.error("node and nodes are both given", ("nodes",), "remove one of them")
    if record.node is None and record.nodes is None:
        raise document.error("is missing", ("node",), "describe a server: node: {gpus: 8, ...}")
    if nodes is not None and not 1 <= nodes <= MAX_SERVERS:
        most = min(MAX_SERVERS, MAX_RANKS // (record.node.gpus if record.node else 1))
        raise InputError(
            f"should be from 1 to {MAX_SERVERS}, got {nodes}", field="--nodes",
            fix=f"write a number from 1 to {most}: more ranks than {MAX_RANKS} do not fit",
        )  # fmt: skip
    if record.node is not None:
        return [record.node] * (nodes or record.count or 1)
    listed = list(record.nodes or ())
    if nodes not in (None, len(listed)) or record.count not in (None, len(listed)):
        raise document.error(
            f"lists {len(listed)} servers, so their number can't be set", ("nodes",),
            "leave out --nodes and count, or use node: for equal servers",
        )  # fmt: skip
    return listed


def _fabric(
    record: ServersFile, document: Document, count: int, kind: str | None
) -> FabricRecord | None:
    """Return the fabric to use, checked; None for a single server."""
    if kind is not None and kind not in FABRICS:
        raise InputError(
            f"unknown fabric {kind[:40]!r}", field="--fabric",
            fix=f"{did_you_mean(kind, FABRICS)}use {', '.join(FABRICS)}",
        )  # fmt: skip
    fabric = record.fabric
    if fabric is not None and kind not in (None, fabric.kind):
        fabric = fabric.model_copy(update={"kind": kind, "spine": None, "switches": []})
    elif fabric is not None:
        row = FABRICS[fabric.kind]
        for name in ("spine", "leaves", "uplink", "oversubscription", "dims"):
            if getattr(fabric, name) is not None and name not in (*row.needs, *row.takes):
                raise document.error(
                    f"a {fabric.kind} fabric has no {name}", ("fabric", name), "remove it"
                )
    if count == 1:
        return None
    if fabric is None:
        raise document.error(
            f"is missing, with {count} servers", ("fabric",),
            "say how the servers are joined: fabric: {kind: switch, alpha: 1.7us}",
        )  # fmt: skip
    for name in FABRICS[fabric.kind].needs:
        if getattr(fabric, name) is None:
            example = (FabricRecord.model_fields[name].examples or [2])[0]
            raise document.error(
                f"is missing for a {fabric.kind} fabric", ("fabric", name),
                f"write {name}: {example}",
            )  # fmt: skip
    problem = FABRICS[fabric.kind].problem(fabric, count)
    if problem is not None:
        raise document.error(problem[0], ("fabric", problem[1]), problem[2])
    return fabric


def _add_server(
    builder: ServersBuilder, number: int, node: NodeRecord, first: int, *, with_nics: bool
) -> None:
    """Add wires, switches (without NICs not those that serve them), and NICs of a server."""
    prefix = f"s{number}/"
    for wire in node.wires:
        name = f"{prefix}{wire.name}" if wire.name else None
        builder.hop(first + wire.tail, first + wire.head, wire, name)
        if wire.both:
            back = f"{name}.reverse" if name else None
            builder.hop(first + wire.head, first + wire.tail, wire, back)
    switches = [switch for switch in node.switches if with_nics or switch.across is None]
    vertices = {
        switch.name: builder.switch(
            f"{prefix}{switch.name}", across=switch.across is not None, abilities=switch
        )
        for switch in switches
    }  # fmt: skip
    for switch in switches:
        vertex = vertices[switch.name]
        for gpu in gpus_of(switch.members, node.gpus):
            builder.port(first + gpu, first + gpu, vertex, switch)
        for link in switch.links:
            if link.to in vertices:
                builder.hop(vertex, vertices[link.to], link)
                builder.hop(vertices[link.to], vertex, link)
    ports = []
    for nic in node.nics if with_nics else ():
        tx = builder.switch(f"{prefix}{nic.name}.tx")
        rx = builder.switch(f"{prefix}{nic.name}.rx")
        users = [first + gpu for gpu in gpus_of(nic.gpus, node.gpus)]
        for vertex in users if nic.at is None else [*users, vertices[nic.at]]:
            builder.hop(vertex, tx, nic.pcie or Crossing())
            builder.hop(rx, vertex, nic.pcie or Crossing())
        ports.append((tx, rx, nic.bandwidth))
    builder.nics.append(ports)


def _rotations(
    record: ServersFile,
    document: Document,
    servers: Sequence[NodeRecord],
    fabric: FabricRecord | None,
) -> tuple[Permutation, ...]:
    """Return the symmetries that the form shows: of equal servers, and inside a server."""
    local = [
        permutations(document, (*_place(record, i), "rotations"), node.rotations, node.gpus)
        for i, node in enumerate(record.nodes or servers[:1])
    ]
    node, count = servers[0], len(servers)
    if any(other != node for other in servers):
        return ()
    moves = () if fabric is None else FABRICS[fabric.kind].rotations(fabric, count)
    turn = shift(node, with_nics=fabric is not None)
    inside = [*local[0], *([turn] if turn is not None else [])]
    ranks = [divmod(rank, node.gpus) for rank in range(count * node.gpus)]
    across = [tuple(move[server] * node.gpus + gpu for server, gpu in ranks) for move in moves]
    within = [tuple(server * node.gpus + move[gpu] for server, gpu in ranks) for move in inside]
    return tuple(dict.fromkeys((*across, *within)))

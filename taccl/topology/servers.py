"""The server+fabric form of a topology file, expanded to the core graph.

A server has GPUs, wires between them, switches, and NICs; a fabric joins the NICs. A NIC becomes
two vertices, NAME.tx and NAME.rx, so that no path turns round in it; its bandwidth sits on the
edges to the fabric. The alpha of a switch or fabric is that of one whole crossing, half on each
of its two edges. The fabric carries only paths between servers.

What joins servers: one row of :data:`FABRICS` for each kind, and the builder of the graph.

One server of the server form: its GPUs, wires, switches and NICs, and their symmetry.

Switches of a server may be joined to each other, as PCIe switches, host bridges and sockets are:
what crosses a shared hop shares its bandwidth. Where they form trees, symmetries are found from the
leaves up.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from types import MappingProxyType
from typing import Annotated, Literal, Self

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
    TopologyHeader,
    edge_names,
    permutations,
)
from taccl.topology.graph import Edge, Permutation, Switch, Topology
from taccl.topology.shapes import grid_pairs, reflections, translations
from taccl.units import Time

MAX_SERVERS = 8192


def check_overhead(alpha: Time, overhead: Time | None) -> None:
    """Refuse an overhead that is more than the latency it is a part of.

    Parameters
    ----------
    alpha, overhead
        Picoseconds.
    """
    if overhead is not None and overhead > alpha:
        raise refuse(
            f"overhead {overhead}ps is more than alpha {alpha}ps",
            "give an overhead of at most alpha",
        )


class Crossing(FileModel):
    """What one crossing of a wire or switch costs."""

    bandwidth: Annotated[BetaOrNone, Field(examples=["25GB/s or 46us/MB"])] = None
    alpha: Annotated[Duration, Field(examples=["0.7us"])] = 0
    overhead: Annotated[Duration | None, Field(examples=["0.2us"])] = None

    @model_validator(mode="after")
    def _overhead_is_part_of_alpha(self) -> Self:
        check_overhead(self.alpha, self.overhead)
        return self

    def half(self, part: int) -> "Crossing":
        """Return the first (0) or second (1) half of a crossing; an odd ps goes to the second."""
        overhead = None if self.overhead is None else (self.overhead + part) // 2
        return Crossing.model_construct(
            bandwidth=self.bandwidth, alpha=(self.alpha + part) // 2, overhead=overhead
        )


def _as_crossing(value: object) -> object:
    return value if isinstance(value, dict) or value is None else {"bandwidth": value}


Uplink = Annotated[Crossing | None, BeforeValidator(_as_crossing)]
"""A crossing, or only its bandwidth."""


class FabricRecord(FileModel):
    """How the servers are joined; the alpha is that of one whole crossing."""

    kind: Annotated[
        Literal["switch", "rail", "leaf-spine", "torus", "mesh", "none"],
        Field(examples=["switch"]),
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

    @model_validator(mode="after")
    def _overhead_is_part_of_alpha(self) -> Self:
        check_overhead(self.alpha, self.overhead)
        return self

    def crossing(self, beta: Fraction) -> Crossing:
        """Return the whole crossing from a NIC."""
        return Crossing.model_construct(bandwidth=beta, alpha=self.alpha, overhead=self.overhead)


@dataclass(eq=False)
class Builder:
    """The graph as far as it is built.

    Parameters
    ----------
    num_ranks
        Vertices that are ranks; switches follow.
    switches, edges
        In order.
    nics
        For every server its NICs: vertices tx and rx, and beta.
    """

    num_ranks: int
    switches: list[Switch] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    nics: list[list[tuple[int, int, Fraction]]] = field(default_factory=list)

    def switch(
        self, name: str, *, across: bool = False, multicast: bool = False, reduce: bool = False
    ) -> int:
        """Add a switch and return its vertex."""
        self.switches.append(Switch(name, multicast, reduce, across))
        return self.num_ranks + len(self.switches) - 1

    def _name(self, vertex: int) -> str:
        ranks = self.num_ranks
        return str(vertex) if vertex < ranks else self.switches[vertex - ranks].name

    def edge(self, tail: int, head: int, cost: Crossing, name: str | None = None) -> None:
        """Add one edge."""
        name = name or edge_names(self._name(tail), self._name(head), None)[0]
        self.edges.append(
            Edge(len(self.edges), tail, head, cost.alpha, cost.overhead, cost.bandwidth, name)
        )

    def wire(self, a: int, b: int, cost: Crossing, name: str | None, *, both: bool) -> None:
        """Add an edge and, with ``both``, its reverse."""
        forth, back = edge_names(self._name(a), self._name(b), name)
        self.edge(a, b, cost, forth)
        if both:
            self.edge(b, a, cost, back)

    def port(self, tail: int, head: int, switch: int, cost: Crossing) -> None:
        """Join ``tail`` to a switch and the switch to ``head``, half a crossing each."""
        self.edge(tail, switch, cost.half(0))
        self.edge(switch, head, cost.half(1))


Problem = tuple[str, str, str] | None
NONE: Mapping[int, Fraction] = MappingProxyType({})


def _join_switch(builder: Builder, fabric: FabricRecord) -> None:
    vertex = builder.switch("fabric", across=True)
    for ports in builder.nics:
        for tx, rx, beta in ports:
            builder.port(tx, rx, vertex, fabric.crossing(beta))


def _join_rail(builder: Builder, fabric: FabricRecord) -> None:
    """Join NIC k of all servers by switch k; the spine, if any, joins those switches."""
    rails = [builder.switch(f"rail{k}", across=True) for k in range(max(map(len, builder.nics)))]
    for ports in builder.nics:
        for rail, (tx, rx, beta) in zip(rails, ports, strict=False):
            builder.port(tx, rx, rail, fabric.crossing(beta))
    if fabric.spine is not None and len(rails) > 1:
        _join_spine(builder, rails, fabric.spine)


def _join_spine(
    builder: Builder, lower: Sequence[int], uplink: Crossing, betas: Mapping[int, Fraction] = NONE
) -> None:
    """Join switches by a spine, over uplinks that may have bandwidths of their own."""
    spine = builder.switch("spine", across=True)
    for vertex in lower:
        own = {"bandwidth": betas[vertex]} if vertex in betas else {}
        builder.port(vertex, vertex, spine, uplink.model_copy(update=own))


def _join_leaves(builder: Builder, fabric: FabricRecord) -> None:
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
        over = fabric.oversubscription
        betas = NONE if over is None else {
            leaf: Fraction(str(over)) / rate for leaf, rate in rates.items() if rate
        }  # fmt: skip
        _join_spine(builder, vertices, fabric.uplink or Crossing(), betas)


def _join_grid(builder: Builder, fabric: FabricRecord) -> None:
    """Join NIC i of every server directly to NIC i of each neighbour."""
    for a, b in grid_pairs(fabric.dims or (), wrap=fabric.kind == "torus"):
        for one, other in zip(builder.nics[a], builder.nics[b], strict=False):
            cost = fabric.crossing(max(one[2], other[2]))
            builder.edge(one[0], other[1], cost)
            builder.edge(other[0], one[1], cost)


def _join_nothing(builder: Builder, fabric: FabricRecord) -> None:
    """Leave the servers apart."""


def _all_turns(fabric: FabricRecord, count: int) -> tuple[Permutation, ...]:
    del fabric
    return translations([count])


def _leaf_turns(fabric: FabricRecord, count: int) -> tuple[Permutation, ...]:
    leaves = fabric.leaves or 1
    return () if count % leaves else translations([leaves, count // leaves])


def _grid_turns(fabric: FabricRecord, count: int) -> tuple[Permutation, ...]:
    del count
    moves = translations if fabric.kind == "torus" else reflections
    return moves(fabric.dims or ())


def _no_turns(fabric: FabricRecord, count: int) -> tuple[Permutation, ...]:
    del fabric, count
    return ()


def _no_problem(fabric: FabricRecord, count: int) -> Problem:
    del fabric, count
    return None


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

    Parameters
    ----------
    join
        Adds switches and edges between the NICs of a builder.
    rotations
        (fabric, count) -> symmetries, as permutations of equal servers.
    problem
        (fabric, count) -> problem, field, fix; or None.
    needs, takes
        Fields that must be, and may be, given.
    """

    join: Callable[[Builder, FabricRecord], None]
    rotations: Callable[[FabricRecord, int], tuple[Permutation, ...]]
    problem: Callable[[FabricRecord, int], Problem] = _no_problem
    needs: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()


FABRICS: Mapping[str, Fabric] = MappingProxyType({
    "switch": Fabric(_join_switch, _all_turns),
    "rail": Fabric(_join_rail, _all_turns, takes=("spine",)),
    "leaf-spine": Fabric(
        _join_leaves, _leaf_turns, _leaf_problem, ("leaves",), ("uplink", "oversubscription")
    ),
    "torus": Fabric(_join_grid, _grid_turns, _grid_problem, needs=("dims",)),
    "mesh": Fabric(_join_grid, _grid_turns, _grid_problem, needs=("dims",)),
    "none": Fabric(_join_nothing, _no_turns),
})  # fmt: skip


def _empty_is_absent(value: object) -> object:
    return [] if value is None else value


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


class NodeSwitchRecord(Crossing):
    """A switch inside a server; the alpha is that of one whole crossing between GPUs."""

    name: Annotated[Name, Field(examples=["nvswitch"])]
    members: Annotated[Members, Field(examples=["0-15"])] = None
    multicast: StrictBool = False
    reduce: StrictBool = False
    across: Annotated[Literal["servers"] | None, Field(examples=["servers"])] = None
    links: Annotated[
        list[SwitchLinkRecord],
        BeforeValidator(_empty_is_absent),
        Field(examples=["[{to: cpu0, bandwidth: 24GB/s}]"]),
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
    wires: Annotated[list[WireRecord], BeforeValidator(_empty_is_absent)] = Field(
        default_factory=list
    )
    switches: Annotated[list[NodeSwitchRecord], BeforeValidator(_empty_is_absent)] = Field(
        default_factory=list
    )
    nics: Annotated[list[NicRecord], BeforeValidator(_empty_is_absent)] = Field(
        default_factory=list
    )
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
    names: list[tuple[str, int, tuple[str, ...]]] = [
        *(("switches", i, (switch.name,)) for i, switch in enumerate(node.switches)),
        *(
            ("nics", i, (nic.name, f"{nic.name}.tx", f"{nic.name}.rx"))
            for i, nic in enumerate(node.nics)
        ),
    ]
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
    """Return the GPUs that a set stands for; None is all.

    Parameters
    ----------
    numbers
        Local GPUs.
    gpus
        How many a server has.
    """
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


def used_switches(node: NodeRecord, *, with_nics: bool) -> list[NodeSwitchRecord]:
    """Return the switches of a server, without those that serve its NICs where it has none.

    Parameters
    ----------
    node
        A server.
    with_nics
        Whether it has NICs that are used.
    """
    return [switch for switch in node.switches if with_nics or switch.across is None]


def shift(node: NodeRecord, *, with_nics: bool) -> Permutation | None:
    """Return the smallest step i -> i + d that the wires, switches and NICs of a server have.

    None where there is none, and where switches are joined to more than a tree.

    Parameters
    ----------
    node
        A server.
    with_nics
        Whether its NICs are used.
    """
    switches = used_switches(node, with_nics=with_nics)
    order = _leaves_first(switches)
    if order is None:
        return None
    numbers: dict[object, int] = {}
    still = tuple(range(node.gpus))
    for step in range(1, node.gpus):
        if node.gpus % step == 0:
            turn = tuple((gpu + step) % node.gpus for gpu in range(node.gpus))
            found = [
                _devices(node, way, order, numbers, with_nics=with_nics) for way in (turn, still)
            ]
            if found[0] == found[1]:
                return turn
    return None


def _leaves_first(switches: Sequence[NodeSwitchRecord]) -> list[NodeSwitchRecord] | None:
    """Return switches so that each comes before the one that it links to; None: no trees."""
    by_name = {switch.name: switch for switch in switches}
    above = {s.name: [link.to for link in s.links if link.to in by_name] for s in switches}
    if any(len(links) > 1 for links in above.values()):
        return None
    waiting = Counter(to for links in above.values() for to in links)
    order = [switch for switch in switches if not waiting[switch.name]]
    for switch in order:  # grows
        for to in above[switch.name]:
            waiting[to] -= 1
            if not waiting[to]:
                order.append(by_name[to])
    return order if len(order) == len(switches) else None


def _devices(
    node: NodeRecord,
    turn: Permutation,
    order: Sequence[NodeSwitchRecord],
    numbers: dict[object, int],
    *,
    with_nics: bool,
) -> Counter[object]:
    """Count what a server has, with its GPUs renamed.

    A tree of switches counts at its root; ``numbers`` gives equal subtrees equal numbers.
    """
    found: Counter[object] = Counter()
    for wire in node.wires:
        cost = (wire.bandwidth, wire.alpha, wire.overhead)
        found[turn[wire.tail], turn[wire.head], cost] += 1
        if wire.both:
            found[turn[wire.head], turn[wire.tail], cost] += 1
    below: dict[str, Counter[object]] = defaultdict(Counter)
    for nic in node.nics if with_nics else ():
        plain = nic.model_copy(update={"name": "", "gpus": (), "at": None})
        if nic.at is not None:
            below[nic.at][plain] += 1
        else:
            found[frozenset(turn[gpu] for gpu in gpus_of(nic.gpus, node.gpus)), plain] += 1
    used = {switch.name for switch in order}
    for switch in order:
        members = frozenset(turn[gpu] for gpu in gpus_of(switch.members, node.gpus))
        plain_switch = switch.model_copy(update={"name": "", "members": (), "links": ()})
        key = (members, plain_switch, frozenset(below[switch.name].items()))
        number = numbers.setdefault(key, len(numbers))
        up = [link for link in switch.links if link.to in used]
        if up:
            below[up[0].to][number, up[0].model_copy(update={"to": ""})] += 1
        else:
            found[number] += 1
    return found


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
    """Return the expanded topology; ``nodes`` and ``fabric`` override count and fabric kind.

    Parameters
    ----------
    document
        The file.

    Raises
    ------
    InputError
        With file, line, field and fix.
    """
    record = fit_model(document, ServersFile)
    servers = _servers(record, document, nodes)
    _check_nodes(record, document)
    _check_size(servers, document, "count" if nodes is None else "--nodes")
    chosen = _fabric(record, document, len(servers), fabric)
    joined = chosen is not None and chosen.kind != "none"
    if joined and not any(node.nics for node in servers):
        raise document.error("is missing", (*_place(record, 0), "nics"), "add the server's NICs")
    builder = Builder(sum(node.gpus for node in servers))
    first = 0
    for number, node in enumerate(servers):
        _add_server(builder, number, node, first, with_nics=joined)
        first += node.gpus
    if chosen is not None:
        FABRICS[chosen.kind].join(builder, chosen)
    server_of = tuple(number for number, node in enumerate(servers) for _ in range(node.gpus))
    return Topology(
        record.name, len(server_of), tuple(builder.switches), tuple(builder.edges), server_of,
        _rotations(record, document, servers, chosen), record.alpha_rule, record.local.costs(),
        record.chunk_size, record.costs, record.gpu,
    )  # fmt: skip


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


def _check_nodes(record: ServersFile, document: Document) -> None:
    listed = [record.node] if record.node is not None else record.nodes or []
    for index, node in enumerate(listed):
        place = _place(record, index)
        for problem, where, fix in problems(node):
            raise document.error(problem, (*place, *where), fix)


def _check_size(servers: Sequence[NodeRecord], document: Document, field: str) -> None:
    """Refuse what would not fit in memory, before anything is expanded."""
    ranks = sum(node.gpus for node in servers)
    if ranks > MAX_RANKS:
        raise document.error(
            f"{len(servers)} servers make {ranks} ranks, more than {MAX_RANKS}", (field,),
            "use fewer servers or GPUs",
        )  # fmt: skip
    cost = {id(node): num_edges(node) for node in servers}
    if sum(cost[id(node)] for node in servers) > MAX_EDGES:
        raise document.error(
            f"makes more than {MAX_EDGES} edges", (field,), "use fewer servers or devices"
        )


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
        fabric = fabric.model_copy(update={"kind": kind, "spine": None})
    elif fabric is not None:
        _check_fabric_fields(fabric, document)
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


def _check_fabric_fields(fabric: FabricRecord, document: Document) -> None:
    row = FABRICS[fabric.kind]
    for name in ("spine", "leaves", "uplink", "oversubscription", "dims"):
        if getattr(fabric, name) is not None and name not in (*row.needs, *row.takes):
            raise document.error(
                f"a {fabric.kind} fabric has no {name}", ("fabric", name), "remove it"
            )


def _add_server(
    builder: Builder, number: int, node: NodeRecord, first: int, *, with_nics: bool
) -> None:
    prefix = f"s{number}/"
    for wire in node.wires:
        name = f"{prefix}{wire.name}" if wire.name else None
        builder.wire(first + wire.tail, first + wire.head, wire, name, both=wire.both)
    vertices = _add_switches(builder, prefix, node, first, with_nics=with_nics)
    ports = []
    for nic in node.nics if with_nics else ():
        tx = builder.switch(f"{prefix}{nic.name}.tx")
        rx = builder.switch(f"{prefix}{nic.name}.rx")
        for gpu in gpus_of(nic.gpus, node.gpus):
            builder.edge(first + gpu, tx, nic.pcie or Crossing())
            builder.edge(rx, first + gpu, nic.pcie or Crossing())
        if nic.at is not None:
            builder.edge(vertices[nic.at], tx, nic.pcie or Crossing())
            builder.edge(rx, vertices[nic.at], nic.pcie or Crossing())
        ports.append((tx, rx, nic.bandwidth))
    builder.nics.append(ports)


def _add_switches(
    builder: Builder, prefix: str, node: NodeRecord, first: int, *, with_nics: bool
) -> dict[str, int]:
    """Add the switches of a server and what joins them; return their vertices by name."""
    switches = used_switches(node, with_nics=with_nics)
    vertices = {
        switch.name: builder.switch(
            f"{prefix}{switch.name}", across=switch.across is not None,
            multicast=switch.multicast, reduce=switch.reduce,
        )
        for switch in switches
    }  # fmt: skip
    for switch in switches:
        vertex = vertices[switch.name]
        for gpu in gpus_of(switch.members, node.gpus):
            builder.port(first + gpu, first + gpu, vertex, switch)
        for link in switch.links:
            if link.to in vertices:
                builder.edge(vertex, vertices[link.to], link)
                builder.edge(vertices[link.to], vertex, link)
    return vertices


def _rotations(
    record: ServersFile,
    document: Document,
    servers: Sequence[NodeRecord],
    fabric: FabricRecord | None,
) -> tuple[Permutation, ...]:
    """Return the symmetries that the form shows: of equal servers, and inside a server."""
    listed = [record.node] if record.node is not None else record.nodes or []
    local = [
        permutations(document, (*_place(record, i), "rotations"), node.rotations, node.gpus)
        for i, node in enumerate(listed)
    ]
    node, count = servers[0], len(servers)
    if any(other != node for other in servers):
        return ()
    moves = () if fabric is None else FABRICS[fabric.kind].rotations(fabric, count)
    turn = shift(node, with_nics=fabric is not None)
    inside = [*local[0], *([turn] if turn is not None else [])]
    gpus = node.gpus
    across = [tuple(move[r // gpus] * gpus + r % gpus for r in range(count * gpus))
              for move in moves]  # fmt: skip
    within = [tuple(r - r % gpus + move[r % gpus] for r in range(count * gpus)) for move in inside]
    return tuple(dict.fromkeys((*across, *within)))

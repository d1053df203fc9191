"""The server+fabric form of a topology file, expanded to the core graph.

A server has GPUs, wires between them, switches, and NICs; a fabric joins the NICs. A NIC becomes
two vertices, NAME.tx and NAME.rx, so that no path turns round in it; its bandwidth sits on the
edges to the fabric. The alpha of a switch or fabric is that of one whole crossing, half on each
of its two edges. The fabric carries only paths between servers.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated

from pydantic import BeforeValidator, Field, StrictBool, StrictInt

from taccl.errors import InputError
from taccl.files import Document, FileModel, fit_model
from taccl.files.fields import (
    MAX_RANKS,
    Beta,
    Count,
    Index,
    Name,
    Numbers,
    PermutationList,
)
from taccl.topology import Permutation, Topology
from taccl.topology_fabrics import FABRICS, MAX_SERVERS, Builder, Crossing, FabricRecord
from taccl.topology_graph import MAX_EDGES, MAX_ROTATIONS, TopologyHeader, permutations


class WireRecord(Crossing):
    """A direct wire between two GPUs of a server, by default in both directions."""

    tail: Annotated[Index, Field(alias="from", examples=[0])]
    head: Annotated[Index, Field(alias="to", examples=[1])]
    name: Annotated[Name | None, Field(examples=["upper"])] = None
    both: StrictBool = True


class NodeSwitchRecord(Crossing):
    """A switch inside a server; the alpha is that of one whole crossing."""

    name: Annotated[Name, Field(examples=["nvswitch"])]
    members: Annotated[Numbers, Field(examples=["0-15"])] = None
    multicast: StrictBool = False
    reduce: StrictBool = False


class NicRecord(FileModel):
    """A NIC and the GPUs that use it."""

    name: Annotated[Name, Field(examples=["ib0"])]
    gpus: Annotated[Numbers, Field(examples=["[0, 1]"])]
    bandwidth: Annotated[Beta, Field(examples=["25GB/s"])]
    pcie: Annotated[Crossing | None, Field(examples=["{bandwidth: 24GB/s}"])] = None


def _empty_is_absent(value: object) -> object:
    return [] if value is None else value


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
        record.chunk_size, record.costs,
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
        raise InputError(
            f"should be from 1 to {MAX_SERVERS}, got {nodes}", field="--nodes", fix="write 2"
        )
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
        for problem, where, fix in _problems(node):
            raise document.error(problem, (*place, *where), fix)


def _problems(node: NodeRecord) -> Iterator[tuple[str, tuple[str | int, ...], str]]:
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
    names = [("switches", i, switch.name) for i, switch in enumerate(node.switches)]
    names += [("nics", i, nic.name) for i, nic in enumerate(node.nics)]
    for kind, i, name in names:
        if name in named:
            yield f"{name!r} is there already", (kind, i, "name"), "choose another name"
        named.add(name)
    yield from _wire_problems(node)


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


def _members(numbers: tuple[int, ...] | None, gpus: int) -> Sequence[int]:
    return range(gpus) if numbers is None else numbers


def _check_size(servers: Sequence[NodeRecord], document: Document, field: str) -> None:
    """Refuse what would not fit in memory, before anything is expanded."""
    ranks = sum(node.gpus for node in servers)
    if ranks > MAX_RANKS:
        raise document.error(
            f"{len(servers)} servers make {ranks} ranks, more than {MAX_RANKS}", (field,),
            "use fewer servers or GPUs",
        )  # fmt: skip
    cost = {id(node): _num_edges(node) for node in servers}
    if sum(cost[id(node)] for node in servers) > MAX_EDGES:
        raise document.error(
            f"makes more than {MAX_EDGES} edges", (field,), "use fewer servers or devices"
        )


def _num_edges(node: NodeRecord) -> int:
    ports = [len(_members(switch.members, node.gpus)) for switch in node.switches]
    ports += [len(_members(nic.gpus, node.gpus)) + 8 for nic in node.nics]
    return 2 * (len(node.wires) + sum(ports))


def _fabric(
    record: ServersFile, document: Document, count: int, kind: str | None
) -> FabricRecord | None:
    """Return the fabric to use, checked; None for a single server."""
    if kind is not None and kind not in FABRICS:
        raise InputError(
            f"unknown fabric {kind[:40]!r}", field="--fabric", fix=f"use {', '.join(FABRICS)}"
        )
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
    for name in ("spine", "leaves", "uplink", "dims"):
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
    for switch in node.switches:
        vertex = builder.switch(
            f"{prefix}{switch.name}", multicast=switch.multicast, reduce=switch.reduce
        )
        for gpu in _members(switch.members, node.gpus):
            builder.port(first + gpu, first + gpu, vertex, switch)
    ports = []
    for nic in node.nics if with_nics else ():
        tx = builder.switch(f"{prefix}{nic.name}.tx")
        rx = builder.switch(f"{prefix}{nic.name}.rx")
        for gpu in _members(nic.gpus, node.gpus):
            builder.edge(first + gpu, tx, nic.pcie or Crossing())
            builder.edge(rx, first + gpu, nic.pcie or Crossing())
        ports.append((tx, rx, nic.bandwidth))
    builder.nics.append(ports)


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
    shift = _shift(node, with_nics=fabric is not None)
    inside = [*local[0], *([shift] if shift is not None else [])]
    gpus = node.gpus
    across = [tuple(move[r // gpus] * gpus + r % gpus for r in range(count * gpus))
              for move in moves]  # fmt: skip
    within = [tuple(r - r % gpus + turn[r % gpus] for r in range(count * gpus)) for turn in inside]
    return tuple(dict.fromkeys((*across, *within)))


def _shift(node: NodeRecord, *, with_nics: bool) -> Permutation | None:
    """Return the smallest step i -> i + d that the wires, switches and NICs of a server have."""
    for step in range(1, node.gpus):
        if node.gpus % step == 0:
            turn = tuple((gpu + step) % node.gpus for gpu in range(node.gpus))
            still = tuple(range(node.gpus))
            if _devices(node, turn, with_nics=with_nics) == _devices(
                node, still, with_nics=with_nics
            ):
                return turn
    return None


def _devices(node: NodeRecord, turn: Permutation, *, with_nics: bool) -> Counter[object]:
    """Count what a server has, with its GPUs renamed."""
    found: Counter[object] = Counter()
    for wire in node.wires:
        cost = (wire.bandwidth, wire.alpha, wire.overhead)
        found[turn[wire.tail], turn[wire.head], cost] += 1
        if wire.both:
            found[turn[wire.head], turn[wire.tail], cost] += 1
    for switch in node.switches:
        members = frozenset(turn[gpu] for gpu in _members(switch.members, node.gpus))
        found[members, switch.model_copy(update={"name": "", "members": ()})] += 1
    for nic in node.nics if with_nics else ():
        gpus = frozenset(turn[gpu] for gpu in _members(nic.gpus, node.gpus))
        found[gpus, nic.model_copy(update={"name": "", "gpus": ()})] += 1
    return found

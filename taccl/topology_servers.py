"""The server+fabric form of a topology file, expanded to the core graph.

A server has GPUs, wires between them, switches, and NICs; a fabric joins the NICs. A NIC becomes
two vertices, NAME.tx and NAME.rx, so that no path turns round in it; its bandwidth sits on the
edges to the fabric. The alpha of a switch or fabric is that of one whole crossing, half on each
of its two edges. The fabric carries only paths between servers.
"""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, StrictInt

from taccl.errors import InputError, did_you_mean
from taccl.files import Document, fit_model
from taccl.files.fields import MAX_RANKS
from taccl.topology import Permutation, Topology
from taccl.topology_fabrics import FABRICS, MAX_SERVERS, Builder, Crossing, FabricRecord
from taccl.topology_graph import MAX_EDGES, TopologyHeader, permutations
from taccl.topology_nodes import NodeRecord, gpus_of, num_edges, problems, shift, used_switches


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

"""Topologies in the formats of other tools: one function a format, one row in EXPORTS.

ASTRA-sim's analytical backend has products of rings, switches and full meshes. Dimension by
dimension, from the nearest: every rank has one link (ring, full mesh: one to each neighbour) or one
port (switch) in each dimension, all alike. Servers with a NIC for each GPU and a rail for each NIC
are such a product; a NIC that GPUs share or a hybrid cube mesh is none. The backend counts a GB as
2^30 bytes, and the latency of a switch twice, up and down.

References
----------
W. Won et al., "ASTRA-sim2.0", ISPASS 2023; astra-sim/astra-network-analytical,
``BasicTopology.cpp`` (``bw_GBps_to_Bpns``, ``compute_communication_delay``), ``Switch.cpp``.
"""

import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from types import MappingProxyType

import networkx as nx

from taccl.errors import InputError, TacclWarning
from taccl.report.export_nccl import nccl_xml
from taccl.report.graph import dot
from taccl.topology.graph import LocalCosts, Topology
from taccl.units import PS_PER_US, Time, beta_text

RING, SWITCH, FULL = "Ring", "Switch", "FullyConnected"
_GB = Fraction(10**9, 1 << 30)
MAX_SHAPES = 200
"""How many ways to see a network as a product are tried."""

Cost = tuple[Fraction | None, Time]
"""Beta and alpha."""


@dataclass(frozen=True, slots=True)
class _Star:
    """A switch: the ranks on it, and what they send and receive by."""

    name: str
    members: tuple[int, ...]
    costs: frozenset[Cost]


@dataclass(frozen=True, slots=True)
class _Dim:
    """A dimension: what it is, ranks, distance of neighbours, and the cost of a link or port."""

    kind: str
    size: int
    stride: int
    costs: frozenset[Cost]


@dataclass(frozen=True, slots=True)
class _Network:
    """Wires by their ends, and switches by the ranks on them; switches of one link are gone."""

    ranks: int
    wires: Mapping[tuple[int, int], Cost]
    stars: Mapping[tuple[int, ...], _Star]

    def neighbours(self, rank: int) -> set[int]:
        """Return the ranks that a rank has a wire to."""
        return {head for tail, head in self.wires if tail == rank}


def astra_sim(topology: Topology) -> str:
    """Return the network file of a topology.

    Raises InputError when it is no product of rings, switches and full meshes; says why.
    """
    network = _network(topology)
    near = network.neighbours(0)
    around = [star.members for star in network.stars.values() if 0 in star.members]
    dims: list[_Dim] = []
    problems: list[str] = []
    for shape in islice(_shapes(network.ranks, near, around, 1), MAX_SHAPES):
        try:
            dims = _match(network, shape)
            break
        except _NoMatchError as error:
            problems.append(str(error))
    else:
        why = problems[0] if problems else "rank 0 has links that fit no grid of ranks"
        raise _refuse(topology.name, why)
    bandwidths, latencies = [], []
    for dim in dims:
        (beta,) = {beta for beta, _ in dim.costs}
        bandwidths.append(float(1000 / beta * _GB) if beta else 0.0)
        alphas = [alpha for _, alpha in dim.costs]
        crossing = sum(alphas) if len(alphas) == 2 else 2 * alphas[0]
        latencies.append((crossing / 2 if dim.kind == SWITCH else alphas[0]) / 1000)
    lines = [
        f"# {topology.name}, for ASTRA-sim's analytical backend; GB/s of 2^30 bytes, ns",
        f"topology: [ {', '.join(dim.kind for dim in dims)} ]",
        f"npus_count: [ {', '.join(str(dim.size) for dim in dims)} ]",
        f"bandwidth: [ {', '.join(map(repr, bandwidths))} ]",
        f"latency: [ {', '.join(map(repr, latencies))} ]",
    ]
    if any(dim.kind == SWITCH for dim in dims):
        lines.insert(1, "# latency of a Switch: half of one crossing, as it counts twice")
    return "\n".join(lines) + "\n"


def _refuse(name: str, why: str) -> InputError:
    return InputError(
        f"{name} is no product of rings, switches and full meshes: {why}", field="--to",
        fix="export --to graph, or a topology that ASTRA-sim can say, such as torus2d:4x4",
    )  # fmt: skip


def _network(topology: Topology) -> _Network:
    """Return a topology without the switches that only pass something on, such as NICs."""
    arcs: nx.DiGraph[int] = nx.DiGraph()
    switches = range(topology.num_ranks, topology.num_ranks + len(topology.switches))
    arcs.add_nodes_from(range(switches.stop))
    for edge in topology.edges:
        if arcs.has_edge(edge.tail, edge.head):
            one, other = map(topology.vertex_name, (edge.tail, edge.head))
            raise _refuse(topology.name, f"{one} has parallel links to {other}")
        arcs.add_edge(edge.tail, edge.head, cost=(edge.beta, edge.alpha))
    for vertex in switches:
        _pass_on(vertex, arcs)
    stars = {star.members: star for star in _stars(topology, arcs)}
    wires: dict[tuple[int, int], Cost] = {
        (tail, head): arcs[tail][head]["cost"]
        for tail, head in arcs.edges
        if max(tail, head) < topology.num_ranks
    }
    free = next((ends for ends, cost in wires.items() if cost[0] is None), None)
    if free is not None:
        raise _refuse(topology.name, f"the link {free[0]}->{free[1]} has no bandwidth")
    return _Network(topology.num_ranks, wires, stars)


def _pass_on(vertex: int, arcs: "nx.DiGraph[int]") -> None:
    """Take out a switch that joins two vertices only, in one direction or both."""
    into, out = set(arcs.pred[vertex]), set(arcs.succ[vertex])
    one_way = len(into) == len(out) == 1 and into != out
    if not one_way and not (len(into) == 2 and into == out):
        return
    ways = [(a, b) for a in sorted(into) for b in sorted(out) if a != b]
    if any(arcs.has_edge(*way) for way in ways):
        return
    for tail, head in ways:
        first, second = arcs[tail][vertex]["cost"], arcs[vertex][head]["cost"]
        betas = [beta for beta, _ in (first, second) if beta is not None]
        arcs.add_edge(tail, head, cost=(max(betas, default=None), first[1] + second[1]))
    arcs.remove_node(vertex)


def _stars(topology: Topology, arcs: "nx.DiGraph[int]") -> Iterator[_Star]:
    """Yield the switches, each with ranks only around it."""
    found: set[tuple[int, ...]] = set()
    for vertex, switch in enumerate(topology.switches, topology.num_ranks):
        if vertex not in arcs or not arcs.degree(vertex):
            continue
        into, out = set(arcs.pred[vertex]), set(arcs.succ[vertex])
        members = tuple(sorted(into))
        if into != out or max(members) >= topology.num_ranks:
            shared = sum(rank < topology.num_ranks for rank in into | out)
            why = f"{shared} GPUs share it" if shared > 1 else "it joins other switches"
            raise _refuse(topology.name, f"{switch.name} is no switch of ranks: {why}")
        ups = {arcs[rank][vertex]["cost"] for rank in members}
        downs = {arcs[vertex][rank]["cost"] for rank in members}
        if len(ups) > 1 or len(downs) > 1 or {b for b, _ in ups} != {b for b, _ in downs}:
            raise _refuse(topology.name, f"the ports of {switch.name} are not alike")
        if None in {beta for beta, _ in ups} or members in found:
            why = "is beside an equal one" if members in found else "has no bandwidth"
            raise _refuse(topology.name, f"{switch.name} {why}")
        found.add(members)
        yield _Star(switch.name, members, frozenset(ups | downs))


Shape = tuple[tuple[str, int, int], ...]
"""Kind, size and stride of every dimension."""


def _shapes(
    ranks: int, near: set[int], around: Sequence[tuple[int, ...]], stride: int
) -> Iterator[Shape]:
    """Yield the shapes that the links of rank 0 could be of, from a stride on."""
    left = ranks // stride
    if left == 1:
        yield ()
        return
    options: list[tuple[str, int]] = []
    for members in around:
        size = len(members)
        if members == tuple(range(0, stride * size, stride)):
            options.append((SWITCH, size))
    run = 2
    while (run - 1) * stride in near:
        options.append((RING if run <= 3 else FULL, run))
        run += 1
    if stride in near:
        options += [
            (RING, other // stride + 1)
            for other in sorted(near)
            if other % stride == 0 and other // stride >= 3
        ]
    for kind, size in sorted(options, key=lambda option: -option[1]):
        if size > 1 and left % size == 0:
            for rest in _shapes(ranks, near, around, stride * size):
                yield ((kind, size, stride), *rest)


class _NoMatchError(Exception):
    """A shape is not that of a network; says why."""


def _match(network: _Network, shape: Shape) -> list[_Dim]:
    """Return the dimensions of a shape that is all of a network."""
    wires, stars = set(network.wires), set(network.stars)
    dims = []
    for kind, size, stride in shape:
        if kind == SWITCH:
            costs = _switches(network, size, stride, stars)
        else:
            costs = _wires(network, (kind, size, stride), wires)
        dims.append(_Dim(kind, size, stride, costs))
    if wires:
        raise _NoMatchError("the link {}->{} is in no dimension".format(*min(wires)))
    if stars:
        raise _NoMatchError(f"{network.stars[min(stars)].name} is in no dimension")
    return dims


def _switches(
    network: _Network, size: int, stride: int, left: set[tuple[int, ...]]
) -> frozenset[Cost]:
    """Return what the ports of a dimension of switches cost, and take them from those left."""
    costs: frozenset[Cost] = frozenset()
    for rank in range(network.ranks):
        base = rank - rank // stride % size * stride
        members = tuple(range(base, base + size * stride, stride))
        star = network.stars.get(members)
        if star is None:
            raise _NoMatchError(f"no switch joins ranks {members[0]} to {members[-1]}")
        if costs not in (frozenset(), star.costs):
            raise _NoMatchError(f"{star.name} is not like the others of its dimension")
        left.discard(members)
        costs = star.costs
    return costs


def _wires(
    network: _Network, dim: tuple[str, int, int], left: set[tuple[int, int]]
) -> frozenset[Cost]:
    """Return what the links of a ring or full mesh cost, and take them from those left."""
    kind, size, stride = dim
    costs: set[Cost] = set()
    for rank in range(network.ranks):
        place = rank // stride % size
        for step in {1, size - 1} if kind == RING else range(1, size):
            ends = rank, rank + ((place + step) % size - place) * stride
            if ends not in network.wires:
                raise _NoMatchError("there is no link {}->{}".format(*ends))
            left.discard(ends)
            costs.add(network.wires[ends])
    if len(costs) > 1:
        told = sorted({f"{float(1000 / beta):.4g}" for beta, _ in costs if beta})
        raise _NoMatchError(f"links of one dimension differ ({', '.join(told)} GB/s, or in alpha)")
    return frozenset(costs)


@dataclass(frozen=True, slots=True)
class Exporter:
    """A row of EXPORTS: what makes the text, and what tools read it."""

    write: Callable[[Topology], str]
    about: str


def graph_json(topology: Topology) -> str:
    """Return a plain JSON graph, which ``topology import --from graph`` reads back exactly.

    A bandwidth that no decimal number says is written as a beta, too.
    """
    left_out = [
        what
        for what, there in (
            ("overheads", any(edge.overhead is not None for edge in topology.edges)),
            ("alpha_rule: delay", topology.alpha_rule != "occupy"),
            ("multicast of switches", any(switch.multicast for switch in topology.switches)),
            ("reduce of switches", any(switch.reduce for switch in topology.switches)),
            ("local costs", topology.local != LocalCosts()),
            ("chunk_size", topology.chunk_size is not None),
        )
        if there
    ]
    if left_out:
        warnings.warn(
            f"{topology.name}: a plain graph has no {', '.join(left_out)}: left out",
            TacclWarning, stacklevel=2,
        )  # fmt: skip
    nodes: list[dict[str, object]] = [
        {"id": rank, "type": "gpu", "host": server}
        for rank, server in enumerate(topology.server_of)
    ]
    for switch in topology.switches:
        across = {"across": "servers"} if switch.across_servers else {}
        nodes.append({"id": switch.name, "type": "switch", **across})
    edges = []
    for edge in topology.edges:
        src, dst = (
            end if end < topology.num_ranks else topology.vertex_name(end)
            for end in (edge.tail, edge.head)
        )
        entry: dict[str, object] = {"src": src, "dst": dst}
        if edge.beta is not None:
            rate = float(1000 / edge.beta)
            entry["bandwidth_GBps"] = rate
            if 1000 / Fraction(repr(rate)) != edge.beta:
                entry["beta"] = beta_text(edge.beta)
        edges.append(entry | {"alpha_us": edge.alpha / PS_PER_US})
    lists = {"nodes": nodes, "edges": edges}
    rows = {
        name: ",\n".join(f"    {json.dumps(entry)}" for entry in found)
        for name, found in lists.items()
    }
    parts = [f'  "{name}": [\n{text}\n  ]' for name, text in rows.items()]
    return "{\n" + ",\n".join([f'  "name": {json.dumps(topology.name)}', *parts]) + "\n}\n"


EXPORTS: Mapping[str, Exporter] = MappingProxyType({
    "dot": Exporter(dot, "Graphviz"),
    "graph": Exporter(graph_json, "plain JSON, as `import --from graph` takes it"),
    "nccl": Exporter(nccl_xml, "NCCL's description of a host: NCCL_TOPO_FILE"),
    "astra-sim": Exporter(astra_sim, "the network file of ASTRA-sim's analytical backend"),
})  # fmt: skip
"""Formats by name."""

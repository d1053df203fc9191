"""Topologies in the formats of other tools: one function a format, one row in EXPORTS.

**ASTRA-sim's** analytical backend has products of rings, switches and full meshes. Dimension by
dimension, from the nearest: every rank has one link (ring, full mesh: one to each neighbour) or one
port (switch) in each dimension, all alike. Servers with a NIC for each GPU and a rail for each NIC
are such a product; a NIC that GPUs share or a hybrid cube mesh is none. The backend counts a GB as
2^30 bytes, and the latency of a switch twice, up and down.

**NCCL** reads a server as it describes hosts (``NCCL_TOPO_FILE``): CPUs, PCI trees, GPUs, NVLinks
and NICs; and rows for its tuner. What :mod:`taccl.imports.hosts` makes a graph of is recognised in
the graph again. A switch is the server's if its nearest ranks are. NICs are pairs NAME.tx and
NAME.rx that lead to what is not the server's; an NVSwitch joins GPUs only, by links that no PCI
link is as fast as; all others are hubs, whose root is the one called ``sockets``, else the middle.

Bandwidths become what NCCL makes them of: links of a compute capability, generation and width of
PCI, models of CPUs. Where none makes a bandwidth exactly, the nearest is taken and a warning says
so. Latencies are left out, as NCCL has its own.

References
----------
W. Won et al., "ASTRA-sim2.0", ISPASS 2023; astra-sim/astra-network-analytical,
``BasicTopology.cpp`` (``bw_GBps_to_Bpns``, ``compute_communication_delay``), ``Switch.cpp``.
NVIDIA/nccl 2.30.7, ``src/graph/topo.cc`` (``ncclTopoGetSystemFromXml``), ``src/graph/xml.h``
(``NCCL_TOPO_XML_MAX_NODES``).
"""

import json
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import islice
from types import MappingProxyType
from xml.sax.saxutils import quoteattr

import networkx as nx

from taccl.errors import InputError, TacclWarning
from taccl.imports.hosts import LANE, SOCKETS, nvlink_bandwidth, pcie_bandwidth
from taccl.report.graph import dot
from taccl.topology.graph import LocalCosts, Topology
from taccl.topology.structure import homes
from taccl.units import PS_PER_US, Time, beta_text

NVSWITCH = "nvswitch"
_PCI_RATES = frozenset(
    pcie_bandwidth(generation, width) for generation in LANE for width in (1, 2, 4, 8, 16)
)
_MADE = 1 << 40
"""Numbers of hubs that the topology does not have begin here."""

Rate = Fraction | None
"""GB/s; None: no limit."""


@dataclass(frozen=True, slots=True)
class Nic:
    """A NIC: GB/s to the fabric, its hub, and GB/s to that."""

    name: str
    rate: Fraction
    hub: int
    pcie: Rate


@dataclass(slots=True)
class Server:
    """A server whose GPUs are numbered from 0; vertices of the topology stand for hubs.

    In GB/s, `wires` are the direct links, by (from, to), `switched` what GPUs have to the NVSwitch,
    `plugs` their hub and what they have to it, and `extra` a second link, to their CPU. Below a hub
    are its `children`, each with GB/s to it; `cpus` are the hubs that are CPUs, each with GB/s to
    the others, and `nics` are in order of the topology.
    """

    gpus: int
    wires: dict[tuple[int, int], Fraction] = field(default_factory=dict)
    switched: dict[int, Fraction] = field(default_factory=dict)
    plugs: dict[int, tuple[int, Rate]] = field(default_factory=dict)
    extra: dict[int, Fraction] = field(default_factory=dict)
    children: dict[int, list[tuple[int, Rate]]] = field(default_factory=lambda: defaultdict(list))
    cpus: list[tuple[int, Rate]] = field(default_factory=list)
    nics: list[Nic] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Graph:
    """The topology: rates by ends, neighbours, and the ranks and switches of the server."""

    topology: Topology
    rates: Mapping[tuple[int, int], Rate]
    near: "nx.Graph[int]"
    ranks: dict[int, int]
    switches: list[int]

    def error(self, problem: str) -> InputError:
        return InputError(
            f"{self.topology.name} can't be said as one host: {problem}", field="--to",
            fix="export --to graph, or a server of wires, switches and NICs",
        )  # fmt: skip

    def base(self, vertex: int) -> str:
        """Return the name of a switch without that of its server."""
        return self.topology.vertex_name(vertex).rpartition("/")[2]


def server_of(topology: Topology, server: int) -> Server:
    """Return the server with the number `server` of a `topology` as a host.

    Raises InputError when it has what no host has.
    """
    graph = _graph(topology, server)
    found = Server(len(graph.ranks))
    inside = {*graph.ranks, *graph.switches}
    ports = {v for v in graph.switches if any(other not in inside for other in graph.near[v])}
    for (tail, head), rate in graph.rates.items():
        if tail in graph.ranks and head in graph.ranks:
            if rate is None:
                raise graph.error(f"the link {tail}->{head} has no bandwidth")
            found.wires[graph.ranks[tail], graph.ranks[head]] = rate
        elif tail in graph.ranks and head not in inside:
            raise graph.error(f"rank {tail} is joined to other servers without a NIC")
    through = set()
    for vertex in graph.switches:
        rates = {graph.rates.get((other, vertex)) for other in graph.near[vertex]}
        alone = all(other in graph.ranks for other in graph.near[vertex])
        fast = alone and None not in rates and not rates <= _PCI_RATES
        if vertex not in ports and (fast or graph.base(vertex).startswith(NVSWITCH)):
            through.add(vertex)
    for vertex in sorted(through):
        for rank in graph.near[vertex]:
            if rank in graph.ranks:
                rate = graph.rates.get((rank, vertex))
                if rate is None:
                    raise graph.error(f"{graph.base(vertex)} has no bandwidth")
                gpu = graph.ranks[rank]
                found.switched[gpu] = found.switched.get(gpu, Fraction(0)) + rate
    hubs = [v for v in graph.switches if v not in ports and v not in through]
    _add_hubs(graph, hubs, found)
    _add_plugs(graph, hubs, found)
    _add_nics(graph, ports, set(hubs), found)
    return found


def _graph(topology: Topology, server: int) -> _Graph:
    rates: dict[tuple[int, int], Rate] = {}
    for edge in topology.edges:
        ends = edge.tail, edge.head
        rate = None if edge.beta is None else 1000 / edge.beta
        if ends in rates:
            one, other = rates[ends], rate
            rate = None if one is None or other is None else one + other
        rates[ends] = rate
    at_home = homes(topology)
    near: nx.Graph[int] = nx.Graph()
    near.add_nodes_from(range(len(at_home)))
    near.add_edges_from(rates)
    ranks = [rank for rank, home in enumerate(topology.server_of) if home == server]
    switches = [v for v, home in enumerate(at_home) if home == server and v not in ranks]
    return _Graph(topology, rates, near, {rank: i for i, rank in enumerate(ranks)}, switches)


def _add_hubs(graph: _Graph, hubs: list[int], found: Server) -> None:
    """Find the roots of the trees of hubs, and what is below each hub."""
    joined: nx.Graph[int] = nx.Graph()
    joined.add_nodes_from(hubs)
    joined.add_edges_from(
        ends for ends in graph.rates if joined.has_node(ends[0]) and joined.has_node(ends[1])
    )
    for members in nx.connected_components(joined):
        tree = joined.subgraph(members)
        if not nx.is_tree(tree):
            first = graph.base(min(members))
            raise graph.error(f"the switches around {first} are joined in a circle")
        named = [member for member in members if graph.base(member) == SOCKETS]
        root = named[0] if named else min(nx.center(tree))
        for parent, child in nx.bfs_edges(joined, root):
            found.children[parent].append((child, graph.rates.get((child, parent))))
        found.cpus += found.children.pop(root, []) if named else [(root, None)]
    if not found.cpus:
        found.cpus.append((_MADE, None))


def _add_plugs(graph: _Graph, hubs: list[int], found: Server) -> None:
    """Find the hub of every GPU; one at the sockets gets a CPU of its own."""
    known, cpus = set(hubs), {hub for hub, _ in found.cpus}
    for rank, gpu in graph.ranks.items():
        at = [(hub, graph.rates.get((rank, hub))) for hub in graph.near[rank] if hub in known]
        beside = [plug for plug in at if plug[0] in cpus] if len(at) > 1 else []
        if len(at) > 2 or (len(at) == 2 and (not beside or beside[0][1] is None)):
            raise graph.error(f"GPU {gpu} is at several switches")
        if beside:
            extra = beside[-1]
            at.remove(extra)
            found.extra[gpu] = extra[1] or Fraction(0)
        hub, rate = at[0] if at else (found.cpus[0][0], None)
        found.plugs[gpu] = (_below_sockets(graph, hub, rate, found), rate)


def _below_sockets(graph: _Graph, hub: int, rate: Rate, found: Server) -> int:
    """Return a hub, or a CPU of its own for what is plugged into the link between the CPUs."""
    if hub >= _MADE or graph.base(hub) != SOCKETS:
        return hub
    found.cpus.append((_MADE + len(found.cpus), rate))
    return found.cpus[-1][0]


def _add_nics(graph: _Graph, ports: set[int], hubs: set[int], found: Server) -> None:
    shared: dict[int, int] = {}  # without hubs: that of a NIC and the GPUs that share it
    if not hubs:
        plugged: nx.Graph[int] = nx.Graph()
        plugged.add_edges_from(
            (v, port) for port in ports for v in graph.near[port] if v in graph.ranks
        )
        for group in nx.connected_components(plugged):
            gpus = [graph.ranks[v] for v in group if v in graph.ranks]
            hub = _MADE + 1 + min(gpus)
            found.plugs |= dict.fromkeys(gpus, (hub, None))
            shared |= dict.fromkeys(group & ports, hub)
        found.children[found.cpus[0][0]] += [(hub, None) for hub in sorted(set(shared.values()))]
    for vertex in sorted(ports):
        name = graph.base(vertex)
        if not name.endswith((".tx", ".rx")):
            raise graph.error(f"{name} leads to other servers, and is no NIC")
        if name.endswith(".rx"):
            continue
        far = [graph.rates.get((vertex, v)) for v in graph.near[vertex]
               if v not in graph.ranks and v not in graph.switches]  # fmt: skip
        inner = [v for v in graph.near[vertex] if v in graph.ranks or v in hubs]
        fastest = max((rate for rate in far if rate is not None), default=None)
        if fastest is None or not inner:
            raise graph.error(f"{name} has no bandwidth, or no GPU")
        pcie = graph.rates.get((inner[0], vertex))
        if inner[0] in hubs:
            hub = _below_sockets(graph, inner[0], pcie, found)
        else:
            hub = shared.get(vertex, found.plugs[graph.ranks[inner[0]]][0])
        found.nics.append(Nic(name.removesuffix(".tx"), fastest, hub, pcie))


MAX_NODES = 256
"""Elements that NCCL reads of a file."""

MAX_LINKS = 64
SMS = (70, 80, 90, 100, 86, 60)
"""Compute capabilities to say bandwidths of NVLink with, those of most servers first."""

GEN_NAMES = {1: "2.5", 2: "5.0", 3: "8.0", 4: "16.0", 5: "32.0", 6: "64.0"}
CPUS: Mapping[int, str] = {
    6: 'arch="arm64"',
    9: 'arch="x86_64" vendor="CentaurHauls" familyid="7" modelid="91"',
    10: 'arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85"',
    16: 'arch="x86_64" vendor="AuthenticAMD" familyid="143" modelid="49"',
    22: 'arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143"',
    32: 'arch="ppc64"',
    40: 'arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="207"',
}
"""GB/s between CPUs to a model that NCCL gives them."""

LONE_CPU = 10
GPU_CLASS, NIC_CLASS, BRIDGE_CLASS = "0x030200", "0x020700", "0x060400"
SWITCH_CLASS = "0x068000"
_PCI = tuple(
    (pcie_bandwidth(generation, width), generation, width)
    for width in (16, 8, 4, 2, 1)
    for generation in (3, 4, 5, 6, 2, 1)
)


@dataclass(slots=True)
class _Writer:
    """The text as far as it is written, the PCI devices, and what could not be said exactly."""

    server: Server
    sm: int
    link: Fraction
    lines: list[str] = field(default_factory=list)
    buses: int = 0
    rounded: dict[str, None] = field(default_factory=dict)
    dev: int = 0

    def bus(self) -> str:
        """Return the bus id of a new device."""
        self.buses += 1
        return f"0000:{self.buses // 32:02x}:{self.buses % 32:02x}.0"

    @staticmethod
    def gpu_bus(gpu: int) -> str:
        """Return the bus id of a GPU."""
        return f"0000:{0x80 + gpu // 32:02x}:{gpu % 32:02x}.0"

    def near(self, what: str, wanted: Fraction, found: Fraction) -> None:
        """Note a bandwidth that is off by more than a thousandth."""
        if abs(wanted - found) * 1000 > wanted:
            told = f"{what}: {float(wanted):.4g}GB/s as {float(found):.4g}GB/s"
            self.rounded[told] = None


def nccl_xml(topology: Topology) -> str:
    """Return the description of the first server of a topology.

    Raises InputError when its switches are no trees with GPUs and NICs as leaves.
    """
    server = server_of(topology, 0)
    rates = {*server.wires.values(), *server.switched.values()}
    links = {sm: nvlink_bandwidth(sm) for sm in SMS}
    # The compute capability whose links make all bandwidths, or nearly.
    sm = min(SMS, key=lambda sm: max(
        (abs(_count(rate, links[sm]) * links[sm] - rate) / rate for rate in rates), default=0
    ))  # fmt: skip
    writer = _Writer(server, sm, links[sm])
    name = re.sub(r"--+|[<>]", "-", topology.name)
    writer.lines += [f"<!-- server 0 of {topology.num_servers} of {name} -->"]
    writer.lines += ['<system version="1">']
    for number, (hub, rate) in enumerate(server.cpus):
        model = LONE_CPU
        if rate is not None:
            model = min(CPUS, key=lambda known: (abs(known - rate), known))
            writer.near("between CPUs", rate, Fraction(model))
        writer.lines.append(f'  <cpu numaid="{number}" {CPUS[model]}>')
        _write_hub(writer, hub, "    ")
        writer.lines.append("  </cpu>")
    writer.lines.append("</system>")
    nodes = sum(len(re.findall(r"<[a-z]", line)) for line in writer.lines)
    told = list(writer.rounded)
    problems = [*told[:4], *([f"and {len(told) - 4} more"] if len(told) > 4 else [])]
    if nodes > MAX_NODES:
        problems.append(f"{nodes} XML nodes, of which NCCL reads {MAX_NODES}")
    if len(set(Counter(topology.server_of).values())) > 1:
        problems.append("server 0 only, though the others differ")
    if topology.num_servers == 1 and not server.nics:
        problems.append("no NICs, as one server has none (--nodes 2)")
    if problems:
        warnings.warn(f"{topology.name}: {'; '.join(problems)}", TacclWarning, stacklevel=3)
    return "\n".join(writer.lines) + "\n"


def _count(rate: Fraction, link: Fraction) -> int:
    return min(MAX_LINKS, max(1, round(rate / link)))


def _pci(writer: _Writer, what: str, rate: Fraction | None, least: Fraction) -> str:
    """Return speed and width of a PCI link; one without a limit is no narrower than ``least``."""
    if rate is None:
        enough = [option for option in _PCI if option[0] >= least and option[2] == 16]
        found, generation, width = min(enough, default=max(_PCI))
    else:
        found, generation, width = min(_PCI, key=lambda option: abs(option[0] - rate))
        writer.near(what, rate, found)
    return f'link_speed="{GEN_NAMES[generation]} GT/s PCIe" link_width="{width}"'


def _write_hub(writer: _Writer, hub: int, indent: str) -> None:
    """Write what is at a hub and below it."""
    server = writer.server
    for gpu, (place, rate) in server.plugs.items():
        if place == hub:
            _write_gpu(writer, gpu, rate, indent)
    for nic in server.nics:
        if nic.hub == hub:
            _write_nic(writer, nic, indent)
    for child, rate in server.children.get(hub, ()):
        link = _pci(writer, "PCI", rate, Fraction(96))
        writer.lines.append(f'{indent}<pci busid="{writer.bus()}" class="{BRIDGE_CLASS}" {link}>')
        _write_hub(writer, child, indent + "  ")
        writer.lines.append(f"{indent}</pci>")


def _write_gpu(writer: _Writer, gpu: int, rate: Fraction | None, indent: str) -> None:
    server = writer.server
    link = _pci(writer, "PCI", rate, Fraction(24))
    writer.lines += [
        f'{indent}<pci busid="{writer.gpu_bus(gpu)}" class="{GPU_CLASS}" {link}>',
        f'{indent}  <gpu dev="{gpu}" sm="{writer.sm}" rank="{gpu}">',
    ]
    targets = [
        (writer.gpu_bus(head), rate, GPU_CLASS)
        for (tail, head), rate in server.wires.items()
        if tail == gpu
    ]
    if gpu in server.switched:
        targets.append(("0000:f0:00.0", server.switched[gpu], SWITCH_CLASS))
    for target, wanted, kind in targets:
        count = _count(wanted, writer.link)
        writer.near("NVLink", wanted, count * writer.link)
        writer.lines.append(
            f'{indent}    <nvlink target="{target}" count="{count}" tclass="{kind}"/>'
        )
    if gpu in server.extra:
        whole = round(server.extra[gpu] * 1000)
        writer.near("C2C", server.extra[gpu], Fraction(whole, 1000))
        writer.lines.append(f'{indent}    <c2c bw="{whole}" count="1"/>')
    writer.lines += [f"{indent}  </gpu>", f"{indent}</pci>"]


def _write_nic(writer: _Writer, nic: Nic, indent: str) -> None:
    link = _pci(writer, "PCI", nic.pcie, nic.rate)
    speed = round(nic.rate * 8000)
    writer.near("NIC", nic.rate, Fraction(speed, 8000))
    name = quoteattr(nic.name)
    bare = nic.pcie is None and any(nic.hub == hub for hub, _ in writer.server.cpus)
    inner = f'<nic><net name={name} dev="{writer.dev}" speed="{speed}" port="1"/></nic>'
    writer.dev += 1
    if bare:
        writer.lines.append(indent + inner)
        return
    writer.lines += [
        f'{indent}<pci busid="{writer.bus()}" class="{NIC_CLASS}" {link}>',
        f"{indent}  {inner}",
        f"{indent}</pci>",
    ]


TUNER_HEAD = (
    "# collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,"
    "regBuff"
)
"""What the rows of NCCL's example tuner plug-in mean (``ext-tuner/example``)."""

TUNED: Mapping[str, str] = {
    "Ring": "ring", "Tree": "tree", "NVLS": "nvls", "NVLSTree": "nvls_tree",
    "CollNetDirect": "collnet_direct", "CollNetChain": "collnet_chain",
}  # fmt: skip
"""By NCCL's names of its algorithms, those that the plug-in reads."""


def tuner_row(collective: str, sizes: tuple[int, int], way: str, machine: tuple[int, int]) -> str:
    """Return a row for NCCL's tuner plug-in.

    For a `collective` of `sizes`, in bytes from and to, both included, it asks for a `way`
    (``NVLSTree Simple``) on a `machine` of so many servers and ranks.
    """
    algorithm, protocol = way.split()
    return (
        f"{collective},{sizes[0]},{sizes[1]},{TUNED[algorithm]},{protocol.lower()},-1,{machine[0]},"
        f"{machine[1]},-1,-1"
    )


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


EXPORTS: Mapping[str, Callable[[Topology], str]] = MappingProxyType({
    "dot": dot,  # Graphviz
    "graph": graph_json,  # as `import --from graph` takes it
    "nccl": nccl_xml,  # NCCL_TOPO_FILE
    "astra-sim": astra_sim,  # the analytical backend's network file
})  # fmt: skip
"""Name of a format to its writer."""

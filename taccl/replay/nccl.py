"""NCCL's own time model of ring and tree: what NCCL expects a collective to take.

::

    time = latency(collective, algorithm, protocol) + size / bandwidth(collective, algorithm, ...)

NCCL computes this for every algorithm and protocol and runs the one with the least time. The
constants are fits of NCCL's authors to DGX-class machines: latencies include the launch of the
kernel, and nothing here knows of links or contention. So these times stand *beside* those of a
replay, and are not in one race with them.

Ring and tree are always here. NVLS and NVLSTree are where the machine's NVSwitches add and copy
(``nvls=yes``), CollNetDirect and CollNetChain where the network between servers adds (SHARP,
``collnet=yes``), as the topology's switches say if nobody else does; PAT, which is for one GPU a
server, is not. NCCL has no model for alltoall, gather and scatter, which it makes of single sends.

The inputs that NCCL finds by a search in the graph of PCI, NVLink and NICs are estimated for ring
and tree, from three numbers of the topology:

ports
    the bandwidths at which a GPU reaches the others of its server: one for each edge by which it
    sends (the narrowest edge of the way counts), of the GPU that has least;
NICs
    the same for a server and the others: one for each NIC (of a direct wire between servers: for
    each wire), of the server that has least;
generation
    that of the GPU that the topology names (``gpu: a100``); else of the oldest whose NVLinks are
    as fast as the ports (150, 300, 450, 900 GB/s); its constants of NCCL also say how much of that
    NCCL counts at most (120, 240, 370.8, 721.8 GB/s).

NCCL then takes a speed from a list and counts the channels of that speed that fit into ports and
NICs, which is what rings without common links need; the product counts. Channels are as in a
ring, intra and inter alike, and of trees, too; with NVLS and CollNet, which have one for each GPU
of a server (``ncclTopoCompute``: heads), they carry the same together. What a topology can't say is
taken from NVIDIA's
own machines: AMD CPUs for ampere, else Intel; NVLink from 18 GB/s on, below it PCI. Every input
can be given instead.

References
----------
NVIDIA/nccl 2.30.7: ``src/graph/tuning.cc`` (``ncclTopoTuneModel``, ``ncclTopoGetAlgoTime``),
``src/graph/search.cc`` (``ncclTopoCompute``, speed arrays, ``ncclTopoDupChannels``) and
``src/graph/topo.h`` (bandwidths of links).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from heapq import heappop, heappush
from math import ceil
from types import MappingProxyType
from typing import Any

import numpy as np

from taccl.errors import InputError
from taccl.topology.graph import EdgeId, Topology
from taccl.topology.structure import homes
from taccl.units import PS_PER_US, Time, parse_beta

VERSION = "2.30.7"
"""The release whose constants these are."""

GENERATIONS = ("volta", "ampere", "hopper", "blackwell")
"""Compute capability 7.x, 8.x, 9.x and 10.x: the rows of NCCL's tables."""

CPUS = ("intel", "amd")
WIRES = ("nvlink", "pci")
PROTOCOLS = ("LL", "LL128", "Simple")
"""The columns of NCCL's tables."""

_Three = tuple[float, float, float]

_BASE: Mapping[str, _Three] = MappingProxyType({
    "Tree": (6.8, 14.0, 8.4), "Ring": (6.6, 14.0, 8.4),
})  # fmt: skip
"""Microseconds, once, by protocol: ``baseLatencies``."""

_HOP: Mapping[str, Mapping[str, _Three]] = MappingProxyType({
    "nvlink": {"Tree": (0.6, 1.25, 4.0), "Ring": (0.6, 1.9, 3.4)},
    "pci": {"Tree": (1.0, 1.9, 4.0), "Ring": (1.0, 2.5, 5.7)},
    "net": {"Tree": (5.0, 8.5, 14.0), "Ring": (2.7, 4.0, 14.0)},
})  # fmt: skip
"""Microseconds a step, by protocol: ``hwLatencies``."""

# By generation; then for one server, two, and more.
_LL_MOST: tuple[_Three, ...] = (
    (39.0, 39.0, 20.4), (87.7, 22.5, 19.0), (141.0, 45.0, 35.0), (282.0, 90.0, 70.0),
)  # fmt: skip
_RING_LL128: tuple[_Three, ...] = ((20.0,) * 3, (20.0,) * 3, (36.7,) * 3, (40.0,) * 3)
_TREE_LL128: tuple[_Three, ...] = (
    (20.0,) * 3, (20.0,) * 3, (36.7, 36.7, 29.0), (55.6, 31.67, 20.0),
)  # fmt: skip
_TREE: tuple[_Three, ...] = (
    (26.5, 18.5, 10.0), (24.0, 23.6, 17.8), (38.7, 41.4, 36.0), (70.0, 42.8, 24.0),
)  # fmt: skip

_CORRECTION: Mapping[str, tuple[int, ...]] = MappingProxyType({
    "LL": (10, 10, 10, 10, 9, 8, 7, 7, 7, 7, 6, 5, 4, 4, 5, 6, 7, 8, 9, 10, 10, 10, 10),
    "LL128": (10, 10, 10, 10, 10, 9, 8, 8, 8, 7, 6, 6, 6, 6, 6, 6, 8, 9, 9, 9, 9, 10, 10),
    "Simple": (9, 9, 9, 9, 9, 9, 9, 8, 7, 6, 6, 5, 5, 5, 5, 6, 7, 8, 7, 7, 8, 9, 9),
})  # fmt: skip
"""Tenths of a tree's bandwidth from 64 bytes on, by doublings: ``treeCorrectionFactor``."""

_NVLS_TREE: tuple[_Three, ...] = (
    (26.5, 18.5, 10.0), (24.0, 23.6, 17.8), (0.0, 57.7, 45.5), (0.0, 96.0, 80.0),
)  # fmt: skip
_NVLS_EFFICIENCY = (0.0, 0.0, 0.85, 0.74)
"""By generation, how much of its NVLinks NVLS gets: ``nvlsEfficiency``."""

_IN_NETWORK: Mapping[str, tuple[float, float]] = MappingProxyType({
    "NVLS": (25.0, 18.0), "NVLSTree": (25.0, 20.9),
    "CollNetDirect": (3.7, 31.0), "CollNetChain": (2.8, 30.0),
})  # fmt: skip
"""Microseconds of a step over NVLink and over the network, of Simple: ``hwLatencies``."""

PLATEAU_FROM = 64
"""Bytes for each rank and channel from which a ring between servers has a higher latency."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What NCCL's model knows of a machine.

    There are so many `ranks` and `servers`, and `channels` (rings or trees in parallel), each of
    `intra` GB/s inside a server and `inter` GB/s between servers. `generation`, `cpu` and `wire`
    are of GENERATIONS, CPUS and WIRES; the wire joins the GPUs of a server. With `nvls` its
    switches add and copy, with `collnet` those between servers add.
    """

    ranks: int
    servers: int
    channels: int
    intra: Fraction
    inter: Fraction
    generation: str = "ampere"
    cpu: str = "intel"
    wire: str = "nvlink"
    nvls: bool = False
    collnet: bool = False

    @property
    def across(self) -> bool:
        """Whether there are several servers."""
        return self.servers > 1

    @property
    def per_server(self) -> int:
        """Ranks of a server; where servers differ, rounded down, as NCCL does."""
        return self.ranks // self.servers

    def most(self, table: tuple[_Three, ...], row: int | None = None) -> Fraction:
        """Return the entry of a table of bandwidths for this machine."""
        row = GENERATIONS.index(self.generation) if row is None else row
        return Fraction(str(table[row][min(self.servers, 3) - 1]))

    def allows(self, protocol: str) -> bool:
        """Tell whether NCCL runs a protocol here.

        LL128 is allowed over NVLink only (``ncclTopoTuneModel``). What NCCL wants of the way to
        the NIC for it (no host bridge on it) is taken to hold.
        """
        return protocol != "LL128" or self.wire == "nvlink"


@dataclass(frozen=True, slots=True)
class Choice:
    """What NCCL could run, and what it expects of it.

    `algorithm` is ``Ring``, ``Tree``, or one of those in the network (``NVLS``, ``NVLSTree``,
    ``CollNetDirect``, ``CollNetChain``); `protocol` one of PROTOCOLS. `time` is picoseconds, and
    `base` the part of it that is the same for every machine and size, the kernel's launch included.
    """

    algorithm: str
    protocol: str
    time: Time
    base: Time

    @property
    def way(self) -> str:
        """Algorithm and protocol: ``Ring LL128``."""
        return f"{self.algorithm} {self.protocol}"


def choices(machine: Machine, collective: str, size: int) -> tuple[Choice, ...]:
    """Return the times of all algorithms and protocols that the model has, allowed or not.

    On a ``machine``, of a ``collective`` by name; ``size`` is in bytes, of the larger one of the
    send and the receive buffer.
    """
    if machine.ranks < 2 or collective not in _STEPS:
        return ()
    plain = tuple(
        Choice(algorithm, protocol, _time(machine, collective, (algorithm, protocol), size),
               ceil(_us(_BASE[algorithm], protocol) * PS_PER_US))
        for algorithm in ("Ring", "Tree")
        for protocol in PROTOCOLS
        if algorithm == "Ring" or collective == "allreduce"
    )  # fmt: skip
    return (*plain, *(
        Choice(algorithm, "Simple", _time_in_network(machine, collective, algorithm, size), 0)
        for algorithm in _IN_NETWORK
        if _has(machine, collective, algorithm)
    ))  # fmt: skip


def fastest(machine: Machine, collective: str, size: int) -> Choice | None:
    """Return what NCCL runs, as :func:`choices` has it; None where it has no model.

    On a ``machine``, of a ``collective`` by name; ``size`` is in bytes, of the larger one of the
    send and the receive buffer.
    """
    found = choices(machine, collective, size)
    allowed = [choice for choice in found if machine.allows(choice.protocol)]
    return min(allowed, key=lambda choice: choice.time, default=None)


_STEPS: Mapping[str, tuple[int, int]] = MappingProxyType({
    "allreduce": (2, -2), "allgather": (1, -1), "reducescatter": (1, -1),
    "broadcast": (1, 0), "reduce": (1, 0),
})  # fmt: skip
"""A ring has ``a * ranks + b`` steps: the entry is (a, b)."""


def _time(machine: Machine, collective: str, way: tuple[str, str], size: int) -> Time:
    """Return picoseconds of a way: algorithm and protocol."""
    algorithm, protocol = way
    bandwidth = _bus_bandwidth(machine, way)
    doubling, row = (size // 64).bit_length() - 1, _CORRECTION[protocol]
    if algorithm == "Tree":
        bandwidth /= 2
        if 0 <= doubling < len(row):
            bandwidth *= Fraction(row[doubling], 10)
    else:
        each, rest = _STEPS[collective]
        bandwidth *= Fraction(machine.ranks, each * machine.ranks + rest)
    latency = _us(_BASE[algorithm], protocol) + _steps_time(machine, collective, way)
    large = machine.across and size >= PLATEAU_FROM * machine.channels * machine.ranks
    if large and way == ("Ring", "Simple") and collective == "allreduce":
        latency *= Fraction(19 if machine.generation == "volta" else 14, 10)
    return ceil((latency + size / (1000 * bandwidth)) * PS_PER_US)


def _bus_bandwidth(machine: Machine, way: tuple[str, str]) -> Fraction:
    """Return what the channels carry together, in GB/s."""
    channels, carried = machine.channels, machine.intra if machine.servers <= 2 else machine.inter
    carried *= channels
    # Between servers the row goes by the CPU (ncclTopoTuneModel, index1 of llMaxBws).
    most_ll = machine.most(_LL_MOST, CPUS.index(machine.cpu) if machine.across else None)
    if way[0] == "Tree":
        carried = min(carried * Fraction(92, 100), channels * machine.most(_TREE))
    if way == ("Ring", "LL"):
        carried = min(most_ll, carried / 2)
    elif way == ("Ring", "LL128"):
        carried = min(carried * Fraction(92, 100), channels * machine.most(_RING_LL128))
    elif way == ("Tree", "LL"):
        carried = min(carried / Fraction(38, 10), most_ll)
    elif way == ("Tree", "LL128"):
        flags = Fraction(120, 128) if machine.across else Fraction(7, 9)
        carried = min(carried * flags, channels * machine.most(_TREE_LL128))
    # All traffic of a server passes one GPU's NIC: NCCL_TOPO_PATTERN_TREE.
    plain = way[0] == "Tree" and machine.across and machine.per_server == 1
    return carried * Fraction(85, 100) if plain else carried


def _has(machine: Machine, collective: str, algorithm: str) -> bool:
    """Tell whether NCCL has an algorithm in the network here.

    NVLS between servers needs SHARP, for all-reductions; that SHARP gathers or scatters, too, is
    not taken to hold (``ncclTopoTuneModel``: CollNet must offer it).
    """
    summed = collective == "allreduce"
    if algorithm.startswith("CollNet"):
        return machine.collnet and machine.across and summed
    # There are two channels at least, one a GPU.
    efficient = _NVLS_EFFICIENCY[GENERATIONS.index(machine.generation)] and machine.per_server > 1
    if not machine.nvls or not efficient:
        return False
    if algorithm == "NVLSTree" or machine.across:
        return summed and machine.across and (algorithm == "NVLSTree" or machine.collnet)
    return collective in ("allreduce", "allgather", "reducescatter")


def _time_in_network(machine: Machine, collective: str, algorithm: str, size: int) -> Time:
    """Return picoseconds of an algorithm in the network: one channel for each GPU of a server."""
    heads, ranks, summed = machine.per_server, machine.ranks, collective == "allreduce"
    inside, outside = (Fraction(str(us)) for us in _IN_NETWORK[algorithm])
    each, between = (Fraction(speed * machine.channels, heads) for speed in (
        machine.intra, machine.inter if machine.across else machine.intra,
    ))  # fmt: skip
    doublings = machine.servers.bit_length() - 1
    if algorithm.startswith("CollNet"):
        carried, rate = each * heads, Fraction(1, 2)
        latency = 2 * (heads - 1) * inside + outside
        if algorithm == "CollNetDirect":
            latency = 2 * (min(1, heads - 1) * inside + (heads - 1) * Fraction(2, 5)) + outside
            new = GENERATIONS.index(machine.generation) >= GENERATIONS.index("hopper")
            carried *= Fraction(85, 100) if new else 1
    else:
        efficiency = _NVLS_EFFICIENCY[GENERATIONS.index(machine.generation)]
        each *= Fraction(str(efficiency)) * Fraction(heads - 1, heads)
        each *= 2 if summed else Fraction(heads - 1, heads)
        latency, most = inside + (outside if machine.across else 0), [each, between]
        if algorithm == "NVLSTree":
            latency = inside + 2 * doublings * outside
            most = [each, between * (2 if machine.servers <= 2 else 1), machine.most(_NVLS_TREE)]
        carried = min(most) * heads
        rate = Fraction(ranks, 2 * (ranks - 1)) if summed else Fraction(1)
    return ceil((latency + size / (1000 * carried * rate)) * PS_PER_US)


def _us(row: _Three, protocol: str) -> Fraction:
    return Fraction(str(row[PROTOCOLS.index(protocol)]))


def _steps_time(machine: Machine, collective: str, way: tuple[str, str]) -> Fraction:
    """Return the microseconds of the steps inside servers and of those between them."""
    algorithm, protocol = way
    inside = _us(_HOP[machine.wire][algorithm], protocol)
    # With one GPU a server, every algorithm has the latency of a tree's NIC.
    across = _us(_HOP["net"]["Tree" if machine.per_server == 1 else algorithm], protocol)
    if algorithm == "Tree":
        hops = machine.servers.bit_length() - 1
        return 2 * (machine.per_server - 1) * inside + 2 * hops * across
    if collective in ("broadcast", "reduce"):
        # All channels have equal speeds here (sameChannels): only one step shows.
        return _us(_HOP["net" if machine.across else machine.wire]["Ring"], protocol)
    if machine.across:
        # The least that a step takes where servers are crossed: getNetOverhead.
        least = (2 if machine.cpu == "amd" else 1) * (3 if protocol == "Simple" else 1)
        inside = max(inside, Fraction(least))
    each, rest = _STEPS[collective]
    between = each * (machine.servers - 1)
    return (each * machine.ranks + rest - between) * inside + between * across


NVLINKS = (150, 300, 450, 900)
"""GB/s of all NVLinks of a GPU in one direction, by generation (NVIDIA's data sheets)."""

COUNTED = (Fraction(120), Fraction(240), Fraction(3708, 10), Fraction(7218, 10))
"""GB/s of the same that NCCL counts: 6 x 20, 12 x 20, 18 x 20.6 and 18 x 40.1."""

GENERATION_OF: Mapping[str, str] = MappingProxyType({
    "p100": "volta", "v100": "volta", "a40": "ampere", "a100": "ampere",
    "h100": "hopper", "h200": "hopper", "h800": "hopper", "b200": "blackwell", "gb200": "blackwell",
    "mi100": "ampere", "mi250": "ampere", "mi300x": "hopper",
})  # fmt: skip
"""Rows of NCCL's tables by GPU (``ncclTopoTuneModel``: by compute capability, volta for all older).

NCCL has no row for AMD's: that of NVIDIA's GPU of about the same year stands for them.
"""

LEAST_NVLINK = 18
"""GB/s of the slowest NVLink that NCCL knows."""

LOCAL = Fraction(5000)
"""GB/s of what is free: NCCL's bandwidth within a GPU."""

MAX_CHANNELS = 32
"""Rings of a search, half of MAXCHANNELS."""

_ONE_SERVER: tuple[Sequence[float], ...] = (
    (40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3),
    (60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3),
    (90, 80, 70, 60, 50, 45, 40, 30, 24, 20, 19, 18),
)
_SEVERAL: tuple[Sequence[float], ...] = (
    (48, 30, 28, 24, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3, 2.4, 1.2, 0.24, 0.12),
    (48, 45, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2, 0.24, 0.12),
    (96, 86, 80, 48, 45.1, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2, 0.24, 0.12),
)
"""Speeds in GB/s, before hopper, of hopper and of blackwell: ``speedArrayIntra``, ``Inter``."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Fields of a :class:`Machine` that are given; None: estimated."""

    generation: str | None = None
    cpu: str | None = None
    wire: str | None = None
    channels: int | None = None
    intra: Fraction | None = None
    inter: Fraction | None = None
    nvls: bool | None = None
    collnet: bool | None = None


def in_network(topology: Topology) -> tuple[bool, bool]:
    """Return whether NCCL would find NVLS, and CollNet, on a `topology`, as its switches say.

    NVLS is where every server has a switch that copies and adds through itself for who asks, too,
    CollNet where a switch outside the servers adds.
    """
    home = homes(topology)
    places = list(zip(home[topology.num_ranks :], topology.switches, strict=True))
    inside = {
        place for place, switch in places
        if switch.multicast is not None and switch.multicast.through
        and switch.reduce is not None and switch.reduce.through
    }  # fmt: skip
    adds = any(place is None and switch.reduce is not None for place, switch in places)
    return set(topology.server_of) <= inside, adds and topology.num_servers > 1


def machine_of(topology: Topology, settings: Settings | None = None) -> Machine:
    """Return what NCCL's model would know of ``topology``; given ``settings`` hold instead."""
    nvls, collnet = in_network(topology)
    given = Settings() if settings is None else settings
    ports, nics = server_ports(topology), server_nics(topology)
    inside = sum(ports, Fraction(0)) if ports else LOCAL
    rows = zip(GENERATIONS, NVLINKS, strict=True)
    fast_enough = (name for name, link in rows if not ports or inside <= link)
    known = GENERATION_OF.get(topology.gpu or "") or next(fast_enough, GENERATIONS[-1])
    generation = given.generation or known
    row = GENERATIONS.index(generation)
    wire = given.wire or ("nvlink" if inside >= LEAST_NVLINK else "pci")
    most = COUNTED[row] if wire == "nvlink" and ports else inside
    ports = tuple(port * min(inside, most) / inside for port in ports)
    gpus = max(2, topology.num_ranks // topology.num_servers)
    channels, speed = found_channels(ports, nics, generation, gpus)
    return Machine(
        topology.num_ranks, topology.num_servers, given.channels or channels,
        given.intra or speed, given.inter or given.intra or speed, generation,
        given.cpu or ("amd" if generation == "ampere" else "intel"), wire,
        nvls if given.nvls is None else given.nvls,
        collnet if given.collnet is None else given.collnet,
    )  # fmt: skip


def found_channels(
    ports: Sequence[Fraction], nics: Sequence[Fraction], generation: str, gpus: int = 8
) -> tuple[int, Fraction]:
    """Return how many channels NCCL's search finds, and GB/s of each.

    `ports` are GB/s of a GPU to its server, `nics` of a server to the others; empty: no limit
    there. `generation` is one of GENERATIONS, and a server has as many `gpus`: a ring through
    several leaves each by the NIC of one GPU, not by its ports.
    """
    kind = max(0, GENERATIONS.index(generation) - 1)
    speeds = [Fraction(str(speed)) for speed in (_SEVERAL if nics else _ONE_SERVER)[kind]]
    limits = [list(limit) for limit in (ports, nics) if limit]
    total = min((sum(limit) for limit in limits), default=LOCAL)
    through = Fraction(gpus, gpus - 1) if nics else Fraction(1)
    count, best = 0, Fraction(0)
    for speed in speeds:
        if count and (speed <= best * Fraction(49, 100) or count * best >= total):
            break
        rings = [MAX_CHANNELS]
        if ports:
            rings.append(int(through * sum(int(width // speed) for width in ports)))
        if nics:
            rings.append(sum(int(width // speed) for width in nics))
        if min(rings) * speed > count * best:
            count, best = min(rings), speed
    if not count:
        # Slower than all that NCCL lists.
        return 1, min(max(limit) for limit in limits)
    # Fast channels become two of half the speed each: ncclTopoDupChannels.
    new = GENERATIONS.index(generation) >= GENERATIONS.index("hopper")
    if best < 25 or (new and best < 50 and count > 4):
        return count, best
    more = min(2 * count, MAX_CHANNELS)
    return more, best / -(-more // count)


def server_ports(topology: Topology) -> tuple[Fraction, ...]:
    """Return the GB/s of the ports of the GPU that has least to the others of its server.

    Empty where every server has one GPU.
    """
    table = topology.links
    server = np.array(topology.server_of)
    inside = np.flatnonzero(server[table.src] == server[table.dst]).tolist()
    ports: dict[int, dict[EdgeId, Fraction]] = defaultdict(dict)
    for link in inside:
        path = table.edges_of(link)
        src = int(table.src[link])
        port = next((edge for edge in path if topology.edges[edge].beta is not None), path[0])
        width = min(_width(topology, edge) for edge in path)
        ports[src][port] = max(width, ports[src].get(port, Fraction(0)))
    return min((tuple(each.values()) for each in ports.values()), key=sum, default=())


def server_nics(topology: Topology) -> tuple[Fraction, ...]:
    """Return the GB/s of the NICs (or wires) of the server that has least to the others.

    A NIC has what its GPUs can send to it over the server's own switches, bridges and host bridges
    beside all that they send to nearer ones. Empty for a single server.
    """
    if topology.num_servers == 1:
        return ()
    home = homes(topology)
    out: dict[int, list[EdgeId]] = defaultdict(list)
    for edge in topology.edges:
        out[edge.tail].append(edge.id)
    ranks: dict[int, list[int]] = defaultdict(list)
    for rank, server in enumerate(topology.server_of):
        ranks[server].append(rank)
    found = []
    for members in ranks.values():
        # The nearest NICs come first. It is one way, for a ring comes to a NIC from one GPU.
        nics: dict[EdgeId, Fraction] = {}
        left: dict[EdgeId, Fraction] = {}
        while way := _nearest_way(topology, members, home, out, left):
            limited = [edge for edge in way if topology.edges[edge].beta is not None]
            widths = [left.get(edge, _width(topology, edge)) for edge in limited]
            carried = min(widths, default=LOCAL)
            left |= {edge: width - carried for edge, width in zip(limited, widths, strict=True)}
            nic = limited[-1] if limited else way[-1]
            nics[nic], left[nic] = carried, Fraction(0)
        found.append(tuple(nics.values()))
    return min(found, key=sum)


def _nearest_way(
    topology: Topology,
    ranks: Sequence[int],
    home: Sequence[int | None],
    out: Mapping[int, Sequence[EdgeId]],
    left: Mapping[EdgeId, Fraction],
) -> tuple[EdgeId, ...]:
    """Return edges out of a server that have something left: the fewest, of those the widest."""
    queue: list[tuple[int, Fraction, int, tuple[EdgeId, ...]]]
    queue = [(0, -LOCAL, rank, ()) for rank in ranks]
    seen: set[int] = set()
    while queue:
        hops, narrow, vertex, way = heappop(queue)
        if home[vertex] != home[ranks[0]]:
            return way
        for number in [] if vertex in seen else out[vertex]:
            head = topology.edges[number].head
            width = min(-narrow, left.get(number, _width(topology, number)))
            if width and (head >= topology.num_ranks or home[head] != home[vertex]):
                heappush(queue, (hops + 1, -width, head, (*way, number)))
        seen.add(vertex)
    return ()


def _width(topology: Topology, edge: EdgeId) -> Fraction:
    """Return the GB/s of an edge."""
    beta = topology.edges[edge].beta
    return LOCAL if beta is None else min(LOCAL, 1000 / beta)


def described(machine: Machine) -> str:
    """Return the inputs in words, as they can be given to :func:`parse_settings`."""
    intra, inter = (float(speed) for speed in (machine.intra, machine.inter))
    return (
        f"gpu={machine.generation},cpu={machine.cpu},wire={machine.wire},"
        f"channels={machine.channels},intra={intra:.6g}GB/s,inter={inter:.6g}GB/s"
        f"{',nvls=yes' * machine.nvls}{',collnet=yes' * machine.collnet}"
    )


_KEYS: Mapping[str, tuple[str, tuple[str, ...]]] = MappingProxyType({
    "gpu": ("generation", GENERATIONS), "cpu": ("cpu", CPUS), "wire": ("wire", WIRES),
    "channels": ("channels", ()), "intra": ("intra", ()), "inter": ("inter", ()),
    "nvls": ("nvls", ("no", "yes")), "collnet": ("collnet", ("no", "yes")),
})  # fmt: skip
"""Fields of the settings, and the values of those that are names."""

_EXAMPLE = "gpu=hopper,channels=12,intra=30GB/s"


def parse_settings(text: object) -> Settings:
    """Return what ``gpu=hopper,cpu=intel,wire=nvlink,channels=12,intra=30GB/s`` gives.

    Raises InputError when a key or a value is none of the model.
    """
    found: dict[str, Any] = {}
    for part in str(text).split(","):
        key, equals, value = part.strip().partition("=")
        if not equals or key not in _KEYS:
            raise InputError(
                f"should be KEY=VALUE with one of {', '.join(_KEYS)}, got {part[:40]!r}",
                fix=f"write {_EXAMPLE}",
            )
        field, names = _KEYS[key]
        if names:
            found[field] = value.lower() == "yes" if names[-1] == "yes" else value.lower()
            if value.lower() not in names:
                raise InputError(
                    f"{key} should be one of {', '.join(names)}, got {value[:40]!r}",
                    fix=f"write {key}={names[0]}",
                )
        elif key == "channels":
            most = 2 * MAX_CHANNELS
            if not value.isdecimal() or len(value) > 2 or not 1 <= int(value) <= most:
                raise InputError(
                    f"channels should be from 1 to {most}, got {value[:40]!r}",
                    fix="write channels=12",
                )
            found[field] = int(value)
        else:
            found[field] = 1000 / parse_beta(value)
    return Settings(**found)

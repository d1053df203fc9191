"""NCCL's own time model of ring and tree: what NCCL expects a collective to take.

::

    time = latency(collective, algorithm, protocol) + size / bandwidth(collective, algorithm, ...)

NCCL computes this for every algorithm and protocol and runs the one with the least time. The
constants are fits of NCCL's authors to DGX-class machines: latencies include the launch of the
kernel, and nothing here knows of links or contention. So these times stand *beside* those of a
replay, and are not in one race with them.

Only ring and tree are here: CollNet, NVLS and PAT need switches that compute, or one GPU a server.
NCCL has no model for alltoall, gather and scatter, which it makes of single sends.

References
----------
NVIDIA/nccl 2.30.7, ``src/graph/tuning.cc``: ``ncclTopoTuneModel``, ``ncclTopoGetAlgoTime``.

What NCCL would find on a topology: the inputs of its time model, estimated.

NCCL finds channels by a search in the graph of PCI, NVLink and NICs. This is a short cut to its
result for ring and tree, from three numbers of the topology:

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
ring, intra and inter alike, and of trees, too. What a topology can't say is taken from NVIDIA's
own machines: AMD CPUs for ampere, else Intel; NVLink from 18 GB/s on, below it PCI. Every input
can be given instead.

References
----------
NVIDIA/nccl 2.30.7, ``src/graph/search.cc`` (``ncclTopoCompute``, speed arrays,
``ncclTopoDupChannels``) and ``src/graph/topo.h`` (bandwidths of links).
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from heapq import heappop, heappush
from math import ceil
from types import MappingProxyType
from typing import Any

import numpy as np

from taccl.errors import InputError
from taccl.topology.graph import EdgeId, Topology
from taccl.topology.rates import homes
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

PLATEAU_FROM = 64
"""Bytes for each rank and channel from which a ring between servers has a higher latency."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What NCCL's model knows of a machine.

    Parameters
    ----------
    ranks, servers
        How many.
    channels
        Rings (trees) in parallel.
    intra, inter
        GB/s of a channel inside a server and between servers.
    generation, cpu, wire
        Of GENERATIONS, CPUS and WIRES; the wire joins the GPUs of a server.
    """

    ranks: int
    servers: int
    channels: int
    intra: Fraction
    inter: Fraction
    generation: str = "ampere"
    cpu: str = "intel"
    wire: str = "nvlink"

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
        return _exact(table[row][min(self.servers, 3) - 1])

    def allows(self, protocol: str) -> bool:
        """Tell whether NCCL runs a protocol here.

        LL128 is allowed over NVLink only (``ncclTopoTuneModel``). What NCCL wants of the way to
        the NIC for it (no host bridge on it) is taken to hold.
        """
        return protocol != "LL128" or self.wire == "nvlink"


@dataclass(frozen=True, slots=True)
class Choice:
    """What NCCL could run, and what it expects of it.

    Parameters
    ----------
    algorithm, protocol
        ``Ring`` or ``Tree``; of PROTOCOLS.
    time
        Picoseconds.
    base
        The part of it that is the same for every machine and size, the kernel's launch included.
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

    Parameters
    ----------
    machine
        What NCCL's model knows of the machine.
    collective
        A name of COLLECTIVES.
    size
        Bytes of the larger one of the send and the receive buffer.
    """
    if machine.ranks < 2 or collective not in _STEPS:
        return ()
    return tuple(
        Choice(algorithm, protocol, _time(machine, collective, (algorithm, protocol), size),
               ceil(_us(_BASE[algorithm], protocol) * PS_PER_US))
        for algorithm in ("Ring", "Tree")
        for protocol in PROTOCOLS
        if algorithm == "Ring" or collective == "allreduce"
    )  # fmt: skip


def fastest(machine: Machine, collective: str, size: int) -> Choice | None:
    """Return what NCCL runs; None where it has no model.

    Parameters
    ----------
    machine
        What NCCL's model knows of the machine.
    collective
        A name of COLLECTIVES.
    size
        Bytes of the larger one of the send and the receive buffer.
    """
    found = choices(machine, collective, size)
    allowed = [choice for choice in found if machine.allows(choice.protocol)]
    return min(allowed, key=lambda choice: choice.time, default=None)


_STEPS: Mapping[str, tuple[int, int]] = MappingProxyType({
    "allreduce": (2, -2), "allgather": (1, -1), "reducescatter": (1, -1),
    "broadcast": (1, 0), "reduce": (1, 0),
})  # fmt: skip
"""A ring has ``a * ranks + b`` steps: the entry is (a, b)."""

Way = tuple[str, str]
"""Algorithm and protocol."""


def _time(machine: Machine, collective: str, way: Way, size: int) -> Time:
    bandwidth = _bandwidth(machine, collective, way)
    doubling, row = (size // 64).bit_length() - 1, _CORRECTION[way[1]]
    if way[0] == "Tree" and 0 <= doubling < len(row):
        bandwidth *= Fraction(row[doubling], 10)
    latency = _us(_BASE[way[0]], way[1]) + sum(_hops(machine, collective, way))
    latency *= _plateau(machine, collective, way, size)
    return ceil((latency + size / (1000 * bandwidth)) * PS_PER_US)


def _exact(number: float) -> Fraction:
    return Fraction(str(number))


def _us(row: _Three, protocol: str) -> Fraction:
    return _exact(row[PROTOCOLS.index(protocol)])


def _bandwidth(machine: Machine, collective: str, way: Way) -> Fraction:
    """Return algorithm bandwidth in GB/s."""
    channel = machine.intra if machine.servers <= 2 else machine.inter
    carried = _on_links(machine, way, machine.channels * channel)
    if way[0] == "Tree":
        return carried / 2
    each, rest = _STEPS[collective]
    return carried * machine.ranks / (each * machine.ranks + rest)


def _on_links(machine: Machine, way: Way, carried: Fraction) -> Fraction:
    """Return bus bandwidth, from that of the channels."""
    # Between servers the row goes by the CPU (ncclTopoTuneModel, index1 of llMaxBws).
    row = CPUS.index(machine.cpu) if machine.across else None
    most_ll, channels = machine.most(_LL_MOST, row), machine.channels
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


def _plateau(machine: Machine, collective: str, way: Way, size: int) -> Fraction:
    """Return by how much the latency of a ring between servers grows with the size."""
    each = machine.channels * machine.ranks
    large = machine.across and size >= PLATEAU_FROM * each
    if not large or way != ("Ring", "Simple") or collective != "allreduce":
        return Fraction(1)
    return Fraction(19, 10) if machine.generation == "volta" else Fraction(14, 10)


def _hops(machine: Machine, collective: str, way: Way) -> Iterator[Fraction]:
    """Yield the microseconds of the steps inside servers, then of those between them."""
    algorithm, protocol = way
    inside = _us(_HOP[machine.wire][algorithm], protocol)
    # With one GPU a server, every algorithm has the latency of a tree's NIC.
    across = _us(_HOP["net"]["Tree" if machine.per_server == 1 else algorithm], protocol)
    if algorithm == "Tree":
        yield 2 * (machine.per_server - 1) * inside
        yield 2 * (machine.servers.bit_length() - 1) * across
    elif collective in ("broadcast", "reduce"):
        # All channels have equal speeds here (sameChannels): only one step shows.
        yield _us(_HOP["net" if machine.across else machine.wire]["Ring"], protocol)
    else:
        each, rest = _STEPS[collective]
        between = each * (machine.servers - 1)
        steps = each * machine.ranks + rest - between
        yield steps * max(inside, _net_overhead(machine, protocol))
        yield between * across


def _net_overhead(machine: Machine, protocol: str) -> Fraction:
    """Return the least microseconds of a step where servers are crossed: ``getNetOverhead``."""
    if not machine.across:
        return Fraction(0)
    return Fraction({"intel": 1, "amd": 2}[machine.cpu] * (3 if protocol == "Simple" else 1))


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
    """Inputs given instead of estimated; None: estimated.

    Parameters
    ----------
    generation, cpu, wire
        Of GENERATIONS, CPUS and WIRES.
    channels
        Rings (trees) in parallel.
    intra, inter
        GB/s of a channel inside a server and between servers.
    """

    generation: str | None = None
    cpu: str | None = None
    wire: str | None = None
    channels: int | None = None
    intra: Fraction | None = None
    inter: Fraction | None = None


def machine_of(topology: Topology, settings: Settings | None = None) -> Machine:
    """Return what NCCL's model would know of a topology.

    Parameters
    ----------
    topology
        The machine.
    settings
        What the user says of it; the rest is found.
    """
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
    )  # fmt: skip


def found_channels(
    ports: Sequence[Fraction], nics: Sequence[Fraction], generation: str, gpus: int = 8
) -> tuple[int, Fraction]:
    """Return how many channels NCCL's search finds, and GB/s of each.

    Parameters
    ----------
    ports, nics
        GB/s of a GPU to its server, and of a server to the others; empty: no limit there.
    generation
        One of GENERATIONS.
    gpus
        Of a server. A ring through several leaves each by the NIC of one GPU, not by its ports.
    """
    kind = max(0, GENERATIONS.index(generation) - 1)
    speeds = [Fraction(str(speed)) for speed in (_SEVERAL if nics else _ONE_SERVER)[kind]]
    limits = [list(limit) for limit in (ports, nics) if limit]
    total = min((sum(limit) for limit in limits), default=LOCAL)
    through = Fraction(gpus, gpus - 1) if nics else Fraction(1)
    best = (0, Fraction(0))
    for speed in speeds:
        if best[0] and (speed <= best[1] * Fraction(49, 100) or best[0] * best[1] >= total):
            break
        fits = [MAX_CHANNELS] if not ports else [int(through * _holds(ports, speed))]
        count = min(MAX_CHANNELS, *fits, *([_holds(nics, speed)] if nics else ()))
        if count * speed > best[0] * best[1]:
            best = (count, speed)
    if not best[0]:
        # Slower than all that NCCL lists.
        return 1, min(max(limit) for limit in limits)
    return _twice(*best, generation)


def _holds(widths: Sequence[Fraction], speed: Fraction) -> int:
    return sum(int(width // speed) for width in widths)


def _twice(count: int, speed: Fraction, generation: str) -> tuple[int, Fraction]:
    """Return fast channels as two of half the speed each: ``ncclTopoDupChannels``."""
    new = GENERATIONS.index(generation) >= GENERATIONS.index("hopper")
    if speed < 25 or (new and speed < 50 and count > 4):
        return count, speed
    more = min(2 * count, MAX_CHANNELS)
    return more, speed / -(-more // count)


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
    return _least(ports.values())


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
    return _least(_nics(topology, members, home, out) for members in ranks.values())


def _nics(
    topology: Topology,
    ranks: Sequence[int],
    home: Sequence[int | None],
    out: Mapping[int, Sequence[EdgeId]],
) -> Mapping[EdgeId, Fraction]:
    """Return the GB/s of the way that each NIC of a server's ranks has, the nearest NICs first.

    It is one way, for a ring comes to a NIC from one GPU.
    """
    nics: dict[EdgeId, Fraction] = {}
    left: dict[EdgeId, Fraction] = {}
    while way := _nearest_way(topology, ranks, home, out, left):
        limited = [edge for edge in way if topology.edges[edge].beta is not None]
        carried = min((left.get(edge, _width(topology, edge)) for edge in limited), default=LOCAL)
        for edge in limited:
            left[edge] = left.get(edge, _width(topology, edge)) - carried
        nic = limited[-1] if limited else way[-1]
        nics[nic], left[nic] = carried, Fraction(0)
    return nics


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


def _least(found: Iterable[Mapping[EdgeId, Fraction]]) -> tuple[Fraction, ...]:
    return min((tuple(each.values()) for each in found), key=lambda each: sum(each), default=())


def described(machine: Machine) -> str:
    """Return the inputs in words, as they can be given to :func:`parse_settings`."""
    intra, inter = (float(speed) for speed in (machine.intra, machine.inter))
    return (
        f"gpu={machine.generation},cpu={machine.cpu},wire={machine.wire},"
        f"channels={machine.channels},intra={intra:.6g}GB/s,inter={inter:.6g}GB/s"
    )


_KEYS: Mapping[str, str] = MappingProxyType({
    "gpu": "generation", "cpu": "cpu", "wire": "wire", "channels": "channels",
    "intra": "intra", "inter": "inter",
})  # fmt: skip
_NAMES = MappingProxyType({"gpu": GENERATIONS, "cpu": CPUS, "wire": WIRES})
_EXAMPLE = "gpu=hopper,channels=12,intra=30GB/s"


def parse_settings(text: object) -> Settings:
    """Return what ``gpu=hopper,cpu=intel,wire=nvlink,channels=12,intra=30GB/s`` gives.

    Raises
    ------
    InputError
        When a key or a value is none of the model.
    """
    found: dict[str, Any] = {}
    for part in str(text).split(","):
        key, equals, value = part.strip().partition("=")
        if not equals or key not in _KEYS:
            raise InputError(
                f"should be KEY=VALUE with one of {', '.join(_KEYS)}, got {part[:40]!r}",
                fix=f"write {_EXAMPLE}",
            )
        found[_KEYS[key]] = _value(key, value)
    return Settings(**found)


def _value(key: str, value: str) -> str | int | Fraction:
    names = _NAMES.get(key)
    if names is not None and value.lower() in names:
        return value.lower()
    if names is not None:
        raise InputError(
            f"{key} should be one of {', '.join(names)}, got {value[:40]!r}",
            fix=f"write {key}={names[0]}",
        )
    if key != "channels":
        return 1000 / parse_beta(value)
    if not value.isdecimal() or len(value) > 2 or not 1 <= int(value) <= 2 * MAX_CHANNELS:
        raise InputError(
            f"channels should be from 1 to {2 * MAX_CHANNELS}, got {value[:40]!r}",
            fix="write channels=12",
        )
    return int(value)

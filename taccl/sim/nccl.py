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
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from types import MappingProxyType

from taccl.units import PS_PER_US, Time

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
    """Return what NCCL runs; None where it has no model."""
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
    bandwidth = _bandwidth(machine, collective, way) * _correction(way, size)
    latency = _latency(machine, collective, way) * _plateau(machine, collective, way, size)
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


def _correction(way: Way, size: int) -> Fraction:
    """Return what part of its bandwidth a tree has at a size."""
    doubling = (size // 64).bit_length() - 1
    row = _CORRECTION[way[1]]
    known = way[0] == "Tree" and 0 <= doubling < len(row)
    return Fraction(row[doubling], 10) if known else Fraction(1)


def _plateau(machine: Machine, collective: str, way: Way, size: int) -> Fraction:
    """Return by how much the latency of a ring between servers grows with the size."""
    each = machine.channels * machine.ranks
    large = machine.across and size >= PLATEAU_FROM * each
    if not large or way != ("Ring", "Simple") or collective != "allreduce":
        return Fraction(1)
    return Fraction(19, 10) if machine.generation == "volta" else Fraction(14, 10)


def _latency(machine: Machine, collective: str, way: Way) -> Fraction:
    """Return microseconds."""
    return _us(_BASE[way[0]], way[1]) + sum(_hops(machine, collective, way))


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

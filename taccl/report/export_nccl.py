"""A server as NCCL describes hosts (``NCCL_TOPO_FILE``): CPUs, PCI trees, GPUs, NVLinks and NICs.

Bandwidths become what NCCL makes them of: links of a compute capability, generation and width of
PCI, models of CPUs. Where none makes a bandwidth exactly, the nearest is taken and a warning says
so. Latencies are left out, as NCCL has its own.

References
----------
NVIDIA/nccl 2.30.7, ``src/graph/topo.cc`` (``ncclTopoGetSystemFromXml``), ``src/graph/xml.h``
(``NCCL_TOPO_XML_MAX_NODES``).
"""

import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from xml.sax.saxutils import quoteattr

from taccl.errors import TacclWarning
from taccl.imports.hardware import nvlink_bandwidth, pcie_bandwidth
from taccl.report.export_server import Nic, Server, server_of
from taccl.topology import Topology

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
            self.rounded[f"{what}: {_short(wanted)} as {_short(found)}"] = None


def _short(rate: Fraction) -> str:
    return f"{float(rate):.4g}GB/s"


def nccl_xml(topology: Topology) -> str:
    """Return the description of the first server of a topology.

    Raises
    ------
    InputError
        When its switches are no trees with GPUs and NICs as leaves.
    """
    server = server_of(topology, 0)
    writer = _Writer(server, *_generation(server))
    name = re.sub(r"--+|[<>]", "-", topology.name)
    writer.lines += [f"<!-- server 0 of {topology.num_servers} of {name} -->"]
    writer.lines += ['<system version="1">']
    for number, (hub, rate) in enumerate(server.cpus):
        model = CPUS[_cpu(writer, rate)]
        writer.lines.append(f'  <cpu numaid="{number}" {model}>')
        _write_hub(writer, hub, "    ")
        writer.lines.append("  </cpu>")
    writer.lines.append("</system>")
    _warn(topology, writer)
    return "\n".join(writer.lines) + "\n"


def _warn(topology: Topology, writer: _Writer) -> None:
    nodes = sum(len(re.findall(r"<[a-z]", line)) for line in writer.lines)
    told = list(writer.rounded)
    problems = [*told[:4], *([f"and {len(told) - 4} more"] if len(told) > 4 else [])]
    if nodes > MAX_NODES:
        problems.append(f"{nodes} XML nodes, of which NCCL reads {MAX_NODES}")
    if len(set(Counter(topology.server_of).values())) > 1:
        problems.append("server 0 only, though the others differ")
    if topology.num_servers == 1 and not writer.server.nics:
        problems.append("no NICs, as one server has none (--nodes 2)")
    if problems:
        warnings.warn(f"{topology.name}: {'; '.join(problems)}", TacclWarning, stacklevel=4)


def _generation(server: Server) -> tuple[int, Fraction]:
    """Return a compute capability whose links make all bandwidths of NVLink, or nearly."""
    rates = {*server.wires.values(), *server.switched.values()}
    options = [(sm, nvlink_bandwidth(sm)) for sm in SMS]
    return min(
        options, key=lambda option: max((_loss(rate, option[1]) for rate in rates), default=0)
    )


def _loss(rate: Fraction, link: Fraction) -> Fraction:
    """Return the part of a bandwidth that a whole number of links is wrong by."""
    return abs(_count(rate, link) * link - rate) / rate


def _count(rate: Fraction, link: Fraction) -> int:
    return min(MAX_LINKS, max(1, round(rate / link)))


def _cpu(writer: _Writer, rate: Fraction | None) -> int:
    if rate is None:
        return LONE_CPU
    found = min(CPUS, key=lambda known: (abs(known - rate), known))
    writer.near("between CPUs", rate, Fraction(found))
    return found


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
    for target, wanted, kind in _targets(writer, gpu):
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


def _targets(writer: _Writer, gpu: int) -> Iterator[tuple[str, Fraction, str]]:
    server = writer.server
    for (tail, head), rate in server.wires.items():
        if tail == gpu:
            yield writer.gpu_bus(head), rate, GPU_CLASS
    if gpu in server.switched:
        yield "0000:f0:00.0", server.switched[gpu], SWITCH_CLASS


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

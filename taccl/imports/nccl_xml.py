"""NCCL's description of a host (``NCCL_TOPO_DUMP_FILE``, ``NCCL_TOPO_FILE``), and RCCL's.

CPUs hold trees of PCI devices, whose innermost are GPUs and NICs; GPUs have NVLinks to other GPUs,
to switches or to the CPU. RCCL calls links between GPUs ``xgmi``, and its files are version 2. The
numbers are taken as NCCL takes them: a PCI link has width x speed / 80 GB/s, an NVLink what its
compute capability has, CPUs what their model has between them. What is missing gets NCCL's default.

References
----------
NVIDIA/nccl 2.30.7, ``src/graph/topo.cc``: ``ncclTopoAddCpu``, ``ncclTopoAddPci``,
``ncclTopoAddNet``, ``ncclTopoAddNvLinks``, ``ncclTopoAddC2c``, ``ncclTopoAddPciLinks``,
``ncclTopoConnectCpus``; ROCm/rccl, ``src/graph/xml.h`` (``NCCL_TOPO_XML_VERSION``),
``src/graph/topo.cc`` (``ncclTopoAddXGMI``).
"""

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction

from taccl.files import shown
from taccl.imports.hardware import GEN_BY_SPEED, GPU_BY_GCN, GPU_BY_SM, pcie_bandwidth, rate_text
from taccl.imports.hosts import (
    MAX_DEVICES,
    MAX_GPUS,
    SOCKETS,
    Host,
    HostNic,
    HostOptions,
    Hub,
    Plug,
)
from taccl.imports.nccl_links import in_order, read_links, read_pci_links
from taccl.imports.nccl_reading import ListedGpu, Reading, check_places
from taccl.imports.xml_tree import Element, read_tree

_SPEED = re.compile(r"\s*([0-9]{1,3}(?:\.[0-9]{1,3})?) ?GT/s(?: PCIe)?\s*")
_UNKNOWN_SPEEDS = ("", "Unknown", "Unknown speed")
LAST_VERSION = 2
"""``NCCL_TOPO_XML_VERSION``: 1 of NCCL, 2 of RCCL."""

DEFAULT_GENERATION = 3
DEFAULT_NET = 10_000
"""Mb/s of a NIC that does not say (``ncclTopoAddNet``)."""


def is_nccl_xml(text: str) -> bool:
    """Tell whether a text looks like XML."""
    return text.lstrip("\ufeff \t\r\n").startswith("<")


def read_nccl_xml(text: str, file: str, options: HostOptions) -> Host:
    """Return the host that an NCCL topology XML describes.

    Raises
    ------
    InputError
        With file, line, element and fix.
    """
    root = read_tree(text, file)
    reading = Reading(file, options)
    if root.tag != "system":
        fix = 'give what NCCL_TOPO_DUMP_FILE writes: <system version="1">'
        raise reading.error(f"starts with <{root.tag[:40]}>, not <system>", root, fix)
    reading.number(root, "version", 1, LAST_VERSION, 1)
    check_places(root, None, reading)
    cpus = [child for child in root.children if child.tag == "cpu"]
    _check_one_host(cpus, reading)
    for cpu in cpus:
        _add_cpu(cpu, reading, several=len(cpus) > 1)
    if len(cpus) > 1:
        reading.hubs[SOCKETS] = Hub(SOCKETS)
    _check_counts(root, reading)
    gpus = in_order(reading)
    links = read_links(gpus, reading)
    beside = tuple(read_pci_links(reading))
    reading.warn()
    plugs = tuple((Plug(gpu.hub, None), *more) for gpu, more in zip(gpus, links.plugs, strict=True))
    return Host(
        file, len(gpus), links.wires, links.switched, tuple(reading.hubs.values()), beside, plugs,
        tuple(reading.nics), tuple(reading.notes), options.gpu or _gpu(reading),
    )  # fmt: skip


def _gpu(reading: Reading) -> str | None:
    """Return which GPUs a host has: the oldest ones, as for NCCL."""
    gcn = reading.gpus[0].element.attributes.get("gcn", "").strip().removeprefix("gfx")
    if gcn:
        return next((name for begins, name in GPU_BY_GCN.items() if gcn.startswith(begins)), None)
    least = min(reading.number(gpu.element, "sm", 1, 2000, 0) for gpu in reading.gpus)
    return next((name for sm, name in GPU_BY_SM if least >= sm), None)


def _check_one_host(cpus: Sequence[Element], reading: Reading) -> None:
    hashes = {cpu.attributes.get("host_hash", ""): cpu for cpu in cpus}
    if len(hashes) > 1:
        raise reading.error(
            f"describes {len(hashes)} hosts, by host_hash", list(hashes.values())[1],
            "give one file for each host, all in one command",
        )  # fmt: skip
    ids = set()
    for cpu in cpus:
        number = reading.number(cpu, "numaid", -1, 4095, 0)
        if number in ids:
            raise reading.error(
                f"there are two CPUs with numaid {number}", cpu, "give every CPU its own"
            )
        ids.add(number)


def _check_counts(root: Element, reading: Reading) -> None:
    if not reading.gpus:
        raise reading.error("has no <gpu>", root, "give the description of a host with GPUs")
    if len(reading.gpus) > MAX_GPUS or len(reading.nics) > MAX_DEVICES:
        raise reading.error(
            f"has {len(reading.gpus)} GPUs and {len(reading.nics)} NICs, more than {MAX_GPUS} or"
            f" {MAX_DEVICES}", root, "give the description of one host",
        )  # fmt: skip


def _add_cpu(cpu: Element, reading: Reading, *, several: bool) -> None:
    name = f"cpu{max(0, reading.number(cpu, 'numaid', -1, 4095, 0))}"
    while name in reading.hubs:
        name += "-"
    rate, source = _between_cpus(cpu, reading)
    reading.hubs[name] = Hub(name, SOCKETS if several else None, rate if several else None)
    if several:
        reading.notes[f"between CPUs: {rate_text(rate)} ({source}; --sockets)"] = None
    for child in cpu.children:
        if child.tag == "pci":
            _add_pci(child, name, name, reading)
        elif child.tag == "nic":
            _add_nets(child, name, reading)


def _between_cpus(cpu: Element, reading: Reading) -> tuple[Fraction, str]:
    """Return GB/s between two CPUs of a model, and where that is from."""
    family = reading.number(cpu, "familyid", -1, 4095, 0)
    model = reading.number(cpu, "modelid", -1, 65_535, 0)
    rate = _CPUS.get(cpu.attributes.get("arch", "x86_64"))
    vendor = cpu.attributes.get("vendor", "")
    if reading.options.sockets is not None:
        return reading.options.sockets, "given"
    if rate is None and vendor == "AuthenticAMD":
        rate = 16
    elif rate is None and vendor in ("CentaurHauls", "  Shanghai  "):
        rate = 9 if (family, model) == (7, 0x5B) else 6
    elif rate is None and vendor == "GenuineIntel":
        rate = next((r for least, r in _INTEL if family == 6 and model >= least), 6)
    if rate is None:
        return Fraction(DEFAULT_SOCKETS), "assumed, as the CPUs are not known"
    return Fraction(rate), "NCCL's figure for these CPUs"


DEFAULT_SOCKETS = 10
_CPUS: Mapping[str, int] = {"arm64": 6, "ppc64": 32}
_INTEL = ((0xCF, 40), (0x8F, 22), (0x55, 10))
"""Models from: Emerald Rapids, Sapphire Rapids, Skylake (``ncclTopoGetInterCpuBw``)."""


def _add_pci(pci: Element, above: str, cpu: str, reading: Reading) -> None:
    bus = reading.bus(pci, "busid")
    if bus in reading.buses:
        raise reading.error(
            f"there are two devices {shown(pci.attributes['busid'])}", pci,
            "give every device its own busid",
        )  # fmt: skip
    name = f"pci-{re.sub('[^0-9a-f]', '-', pci.attributes['busid'].lower())}"
    while name in reading.hubs:
        name += "-"
    reading.buses[bus] = name
    reading.hubs[name] = Hub(name, above, _pci_rate(pci, reading))
    gpus = [child for child in pci.children if child.tag == "gpu"]
    if len(gpus) > 1:
        raise reading.error("two <gpu> in one <pci>", gpus[1], "give each a <pci> of its own")
    reading.gpus += [ListedGpu(gpu, bus, name, cpu) for gpu in gpus]
    for child in pci.children:
        if child.tag == "pci":
            _add_pci(child, name, cpu, reading)
        elif child.tag == "nic":
            _add_nets(child, name, reading)
        elif child.tag == "pcilink":
            reading.pci_links.append((child, name))


def _pci_rate(pci: Element, reading: Reading) -> Fraction:
    width = reading.number(pci, "link_width", 0, 32, 0) or 16
    text = pci.attributes.get("link_speed", "")
    if text in _UNKNOWN_SPEEDS:
        generation = reading.options.pcie or DEFAULT_GENERATION
        note = f"PCI links that do not say their speed: generation {generation} (--pcie)"
        reading.notes[note] = None
        return pcie_bandwidth(generation, width)
    match = _SPEED.fullmatch(text)
    found = dict(GEN_BY_SPEED).get(Fraction(match[1])) if match else None
    if found is None:
        raise reading.error(
            f"link_speed is {shown(text)}", pci, 'write link_speed="16.0 GT/s PCIe"'
        )
    return pcie_bandwidth(found, width)


def _add_nets(nic: Element, hub: str, reading: Reading) -> None:
    for net in nic.children:
        if net.tag != "net":
            continue
        speed = reading.number(net, "speed", -1, 100_000_000, DEFAULT_NET)
        if speed <= 0:
            speed = DEFAULT_NET
        dev = reading.number(net, "dev", -1, 65_535, len(reading.nics))
        asked = reading.options.nic
        rate = asked or Fraction(speed, 8000)
        said = "--nic-speed" if asked else "speed of <net>"
        reading.notes[f"NICs: {rate_text(rate)} ({said})"] = None
        name = net.attributes.get("name") or f"net{dev}"
        reading.nics.append(HostNic(name, rate, Plug(hub, None)))

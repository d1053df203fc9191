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
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from xml.parsers.expat import ExpatError

from taccl.errors import InputError
from taccl.files import shown
from taccl.files.read import warn_ignored
from taccl.files.xml import Element, RefusedError, XmlBounds, read_tree
from taccl.imports.hosts import (
    GEN_BY_SPEED,
    GPU_BY_GCN,
    GPU_BY_SM,
    GPUS,
    MAX_DEVICES,
    MAX_GPUS,
    OLD_XGMI,
    SOCKETS,
    XGMI_BY_GCN,
    Host,
    HostNic,
    HostOptions,
    Hub,
    Plug,
    Wire,
    nvlink_bandwidth,
    pcie_bandwidth,
    rate_text,
)

BOUNDS = XmlBounds(1 << 20, 4096, 64, "elements", "give the description of one host")

_BUS = re.compile(r"[0-9A-Fa-f.:]{1,32}")
_NUMBER = re.compile(r"\s*(-?[0-9]{1,12}|0x[0-9A-Fa-f]{1,12})\s*")

INSIDE: Mapping[str, tuple[str, ...]] = {
    "system": (),
    "cpu": ("system",),
    "pci": ("cpu", "pci"),
    "gpu": ("pci",),
    "nic": ("pci", "cpu"),
    "net": ("nic",),
    "nvlink": ("gpu",),
    "xgmi": ("gpu",),
    "c2c": ("gpu",),
    "pcilink": ("pci",),
}
"""Elements that mean something here, and what they stand in; others are ignored."""


@dataclass(frozen=True, slots=True)
class ListedGpu:
    """A GPU: its element, bus, hub and CPU."""

    element: Element
    bus: int
    hub: str
    cpu: str


@dataclass(slots=True)
class Reading:
    """What is found so far.

    Errors call the file `file`, and `options` are what it leaves open. `hubs` has CPUs and PCI
    devices by name, `buses` the names of PCI devices by bus id; `gpus` and `nics` are in document
    order, and `pci_links` are ``pcilink`` elements, each with its device. Keys only are `notes`,
    where numbers are from, in order, and `ignored`, what means nothing here.
    """

    file: str
    options: HostOptions
    hubs: dict[str, Hub] = field(default_factory=dict)
    buses: dict[int, str] = field(default_factory=dict)
    gpus: list[ListedGpu] = field(default_factory=list)
    nics: list[HostNic] = field(default_factory=list)
    pci_links: list[tuple[Element, str]] = field(default_factory=list)
    notes: dict[str, None] = field(default_factory=dict)
    ignored: dict[str, None] = field(default_factory=dict)

    def error(self, problem: str, element: Element, fix: str) -> InputError:
        """Return an error at an element."""
        return InputError(
            problem, file=self.file, line=element.line, field=f"<{element.tag[:40]}>", fix=fix
        )

    def number(self, element: Element, name: str, low: int, high: int, default: int) -> int:
        """Return an attribute as a whole number of a range.

        Raises InputError when it is there and is none.
        """
        text = element.attributes.get(name, "")
        if not text.strip():
            return default
        match = _NUMBER.fullmatch(text)
        value = None if match is None else int(match[1], 16 if "x" in match[1] else 10)
        if value is None or not low <= value <= high:
            raise self.error(
                f"{name} should be a whole number from {low} to {high}, got {shown(text)}",
                element, f'write {name}="{max(low, 1)}"',
            )  # fmt: skip
        return value

    def bus(self, element: Element, name: str) -> int:
        """Return an attribute as a bus id, whose digits count (``busIdToInt64``).

        Raises InputError when it is missing or is none.
        """
        text = element.attributes.get(name)
        fix = f'write {name}="0000:05:00.0"'
        if text is None:
            raise self.error(f"has no {name}", element, fix)
        digits = re.sub(r"[.:]", "", text)
        if not _BUS.fullmatch(text) or not digits:
            raise self.error(f"{name} should be a bus id, got {shown(text)}", element, fix)
        return int(digits, 16)

    def warn(self) -> None:
        """Warn once of all that was ignored."""
        warn_ignored(self.file, list(self.ignored))


def check_places(element: Element, above: str | None, reading: Reading) -> None:
    """Refuse known elements in places where they mean nothing; note unknown ones.

    `above` is the tag of the element around `element`, None at the root; what is ignored is added
    to `reading`.
    """
    if element.tag not in INSIDE:
        reading.ignored[f"<{element.tag[:40]}>"] = None
        return
    if above is not None and above not in INSIDE[element.tag]:
        allowed = " or ".join(f"<{tag}>" for tag in INSIDE[element.tag]) or "nothing"
        raise reading.error(f"<{element.tag}> stands in <{above}>", element, f"put it in {allowed}")
    for child in element.children:
        check_places(child, element.tag, reading)


MAX_COUNT = 64
"""NVLinks from one GPU to one target."""

LINK_TAGS = ("nvlink", "xgmi")
DEFAULT_SM = 70
_TO_SWITCH, _TO_CPU, _TO_GPU = "switch", "cpu", "gpu"
_CLASSES = (("0x068001", _TO_CPU), ("0x0680", _TO_SWITCH), ("0x03", _TO_GPU), ("0x12", _TO_GPU))
"""What a PCI class begins with, to what it is (``kvDictPciClass``; AMD's accelerators are 0x12)."""


Links = tuple[tuple[Wire, ...], tuple[Fraction | None, ...], list[tuple[Plug, ...]]]
"""What GPUs are joined by: wires, GB/s to the NVSwitch, and to CPUs beside PCI."""


def in_order(reading: Reading) -> list[ListedGpu]:
    """Return the GPUs in the order of their ranks: by ``rank``, else ``dev``, else as listed.

    Raises InputError when two have the same.
    """
    for name in ("rank", "dev"):
        numbers = [reading.number(gpu.element, name, -1, 1 << 20, -1) for gpu in reading.gpus]
        for index, number in enumerate(numbers):
            if number >= 0 and number in numbers[:index]:
                raise reading.error(
                    f"there are two GPUs with {name} {number}", reading.gpus[index].element,
                    f"give every GPU its own {name}",
                )  # fmt: skip
        if min(numbers) >= 0:
            order = sorted(range(len(numbers)), key=lambda index: numbers[index])
            return [reading.gpus[index] for index in order]
    return reading.gpus


def read_links(gpus: Sequence[ListedGpu], reading: Reading) -> Links:
    """Return the links of the GPUs.

    `gpus` are in order of rank; notes are added to `reading`.

    Raises InputError when a number is wrong, or a link leads one way only.
    """
    number_of = {gpu.bus: number for number, gpu in enumerate(gpus)}
    direct: dict[tuple[int, int], Fraction] = defaultdict(Fraction)
    at: dict[tuple[int, int], Element] = {}
    switched: list[Fraction | None] = [None] * len(gpus)
    to_cpus: list[dict[str, Fraction]] = [defaultdict(Fraction) for _ in gpus]
    for number, gpu in enumerate(gpus):
        for child in gpu.element.children:
            if child.tag == "c2c":
                width = reading.number(child, "bw", 1, 100_000_000, 0)  # MB/s, see ncclTopoAddC2c
                if not width:
                    raise reading.error("has no bw", child, 'write bw="57220", in MB/s')
                count = reading.number(child, "count", 1, MAX_COUNT, 1)
                to_cpus[number][gpu.cpu] += Fraction(width * count, 1000)
            if child.tag not in LINK_TAGS:
                continue
            kind, bus = _target(child, number_of, reading)
            rate = reading.number(child, "count", 1, MAX_COUNT, 1) * _rate(gpu, reading)
            other = number_of.get(bus)
            if kind == _TO_SWITCH:
                switched[number] = (switched[number] or 0) + rate
            elif kind == _TO_CPU:
                to_cpus[number][gpu.cpu] += rate
            elif other is None:
                name = "NVLinks" if child.tag == "nvlink" else "xGMI links"
                reading.ignored[f"{name} to GPUs that are not listed"] = None
            elif other == number:
                raise reading.error("leads from a GPU to itself", child, "correct target")
            else:
                direct[number, other] += rate
                at[number, other] = child
    for (a, b), rate in direct.items():
        back = direct.get((b, a), Fraction(0))
        if back < rate:
            raise reading.error(
                f"GPU {a} has {rate_text(rate)} to GPU {b}, which has"
                f" {rate_text(back) if back else 'nothing'} back", at[a, b],
                f"give GPU {b} an <{at[a, b].tag}> with the same count",
            )  # fmt: skip
    wires = tuple(Wire(a, b, rate) for (a, b), rate in sorted(direct.items()) if a < b)
    plugs = [tuple(Plug(hub, rate) for hub, rate in rates.items()) for rates in to_cpus]
    return wires, tuple(switched) if any(switched) else (), plugs


def _target(link: Element, number_of: dict[int, int], reading: Reading) -> tuple[str, int]:
    """Return what a link leads to, and its bus; the class counts where no GPU has the bus."""
    bus = reading.bus(link, "target")
    given = link.attributes.get("tclass", "").strip()
    if link.tag == "xgmi" or bus in number_of:
        return _TO_GPU, bus
    if not given:
        return _TO_SWITCH, bus
    for begin, kind in _CLASSES:
        if given.lower().startswith(begin):
            return kind, bus
    raise reading.error(
        f"tclass is {shown(given)}", link,
        'write tclass="0x030200" for a GPU, "0x068000" for a switch, "0x068001" for a CPU',
    )  # fmt: skip


def _rate(gpu: ListedGpu, reading: Reading) -> Fraction:
    """Return GB/s of one NVLink or xGMI link of a GPU."""
    options = reading.options
    gcn = gpu.element.attributes.get("gcn", "").strip()
    sm = reading.number(gpu.element, "sm", 1, 2000, 0)
    if options.link is not None:
        rate, source = options.link, "--link-bandwidth"
    elif gcn:
        begins = gcn if gcn.startswith("gfx") else f"gfx{gcn}"
        rate = next((r for b, r in XGMI_BY_GCN.items() if begins.startswith(b)), OLD_XGMI)
        source = f"RCCL's figure for {shown(begins)}"
    elif sm or options.gpu is None:
        rate = nvlink_bandwidth(sm or DEFAULT_SM)
        source = f"NCCL's figure for sm {sm or f'{DEFAULT_SM}, assumed'}"
    else:
        rate, source = GPUS[options.gpu].link, f"--gpu {options.gpu}"
    name = "xGMI" if gcn else "NVLink"
    reading.notes[f"{name}: {rate_text(rate)} each ({source}; --link-bandwidth)"] = None
    return rate


def read_pci_links(reading: Reading) -> Iterator[tuple[str, str]]:
    """Yield the pairs of PCI devices that are joined beside their tree, each once."""
    seen: set[frozenset[str]] = set()
    for element, name in reading.pci_links:
        other = reading.buses.get(reading.bus(element, "target"))
        if other is None or other == name:
            raise reading.error(
                f"there is no other device {shown(element.attributes['target'])}", element,
                "use the busid of another <pci>",
            )  # fmt: skip
        nested = other == reading.hubs[name].above or name == reading.hubs[other].above
        if not nested and frozenset((name, other)) not in seen:
            seen.add(frozenset((name, other)))
            yield name, other


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
    """Return the host that an NCCL topology XML, `text`, describes.

    Errors call it `file`; `options` say what it does not.

    Raises InputError with file, line, element and fix.
    """
    try:
        root = read_tree(text, BOUNDS)[0]
    except RefusedError as error:
        raise InputError(str(error), file=file, line=error.line or 1, fix=error.fix) from None
    except ExpatError as error:
        reason = str(error).partition(": line")[0]
        raise InputError(
            f"is no XML: {reason}", file=file, line=error.lineno, fix="correct the XML there"
        ) from None
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
    if not reading.gpus:
        raise reading.error("has no <gpu>", root, "give the description of a host with GPUs")
    if len(reading.gpus) > MAX_GPUS or len(reading.nics) > MAX_DEVICES:
        raise reading.error(
            f"has {len(reading.gpus)} GPUs and {len(reading.nics)} NICs, more than {MAX_GPUS} or"
            f" {MAX_DEVICES}", root, "give the description of one host",
        )  # fmt: skip
    gpus = in_order(reading)
    wires, switched, to_cpus = read_links(gpus, reading)
    beside = tuple(read_pci_links(reading))
    reading.warn()
    plugs = tuple((Plug(gpu.hub, None), *more) for gpu, more in zip(gpus, to_cpus, strict=True))
    return Host(
        file, len(gpus), wires, switched, tuple(reading.hubs.values()), beside, plugs,
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

"""The links of an NCCL topology XML beside its PCI trees: NVLink, xGMI, C2C, PCI of switches."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from taccl.files import shown
from taccl.imports.hardware import (
    GPUS,
    OLD_XGMI,
    XGMI_BY_GCN,
    nvlink_bandwidth,
    rate_text,
)
from taccl.imports.hosts import Plug, Wire
from taccl.imports.nccl_reading import ListedGpu, Reading
from taccl.imports.xml_tree import Element

MAX_COUNT = 64
"""NVLinks from one GPU to one target."""

LINK_TAGS = ("nvlink", "xgmi")
DEFAULT_SM = 70
_TO_SWITCH, _TO_CPU, _TO_GPU = "switch", "cpu", "gpu"
_CLASSES = (("0x068001", _TO_CPU), ("0x0680", _TO_SWITCH), ("0x03", _TO_GPU), ("0x12", _TO_GPU))
"""What a PCI class begins with, to what it is (``kvDictPciClass``; AMD's accelerators are 0x12)."""


@dataclass(frozen=True, slots=True)
class Links:
    """What GPUs are joined by: wires, GB/s to the NVSwitch, and to CPUs beside PCI."""

    wires: tuple[Wire, ...]
    switched: tuple[Fraction | None, ...]
    plugs: tuple[tuple[Plug, ...], ...]


def in_order(reading: Reading) -> list[ListedGpu]:
    """Return the GPUs in the order of their ranks: by ``rank``, else ``dev``, else as listed.

    Raises
    ------
    InputError
        When two have the same.
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

    Raises
    ------
    InputError
        When a number is wrong, or a link leads one way only.
    """
    number_of = {gpu.bus: number for number, gpu in enumerate(gpus)}
    direct: dict[tuple[int, int], Fraction] = defaultdict(Fraction)
    at: dict[tuple[int, int], Element] = {}
    switched: list[Fraction | None] = [None] * len(gpus)
    plugs: list[tuple[Plug, ...]] = [()] * len(gpus)
    for number, gpu in enumerate(gpus):
        for child in gpu.element.children:
            if child.tag == "c2c":
                plugs[number] += (Plug(gpu.cpu, _c2c(child, reading)),)
            if child.tag not in LINK_TAGS:
                continue
            kind, bus = _target(child, number_of, reading)
            rate = reading.number(child, "count", 1, MAX_COUNT, 1) * _rate(gpu, reading)
            other = number_of.get(bus)
            if kind == _TO_SWITCH:
                switched[number] = (switched[number] or 0) + rate
            elif kind == _TO_CPU:
                plugs[number] += (Plug(gpu.cpu, rate),)
            elif other is None:
                name = "NVLinks" if child.tag == "nvlink" else "xGMI links"
                reading.ignored[f"{name} to GPUs that are not listed"] = None
            elif other == number:
                raise reading.error("leads from a GPU to itself", child, "correct target")
            else:
                direct[number, other] += rate
                at[number, other] = child
    _check_both_ways(direct, at, reading)
    wires = tuple(Wire(a, b, rate) for (a, b), rate in sorted(direct.items()) if a < b)
    return Links(wires, tuple(switched) if any(switched) else (), tuple(_one_plug(plugs)))


def _one_plug(plugs: Sequence[tuple[Plug, ...]]) -> Iterator[tuple[Plug, ...]]:
    """Yield the plugs of each GPU, those at one CPU taken together."""
    for found in plugs:
        rates: dict[str, Fraction] = defaultdict(Fraction)
        for plug in found:
            rates[plug.hub] += plug.rate or 0
        yield tuple(Plug(hub, rate) for hub, rate in rates.items())


def _check_both_ways(
    direct: dict[tuple[int, int], Fraction],
    at: dict[tuple[int, int], Element],
    reading: Reading,
) -> None:
    for (a, b), rate in direct.items():
        back = direct.get((b, a), Fraction(0))
        if back < rate:
            raise reading.error(
                f"GPU {a} has {rate_text(rate)} to GPU {b}, which has"
                f" {rate_text(back) if back else 'nothing'} back", at[a, b],
                f"give GPU {b} an <{at[a, b].tag}> with the same count",
            )  # fmt: skip


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


def _c2c(link: Element, reading: Reading) -> Fraction:
    """Return GB/s of a chip-to-chip link, which is given in MB/s (``ncclTopoAddC2c``)."""
    rate = reading.number(link, "bw", 1, 100_000_000, 0)
    if not rate:
        raise reading.error("has no bw", link, 'write bw="57220", in MB/s')
    return Fraction(rate * reading.number(link, "count", 1, MAX_COUNT, 1), 1000)


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

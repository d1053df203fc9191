"""What an NCCL topology XML has said so far: attributes in their ranges, places, and notes."""

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field

from taccl.errors import InputError, TacclWarning
from taccl.files import shown
from taccl.imports.hosts import HostNic, HostOptions, Hub
from taccl.imports.xml_tree import Element

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

    Parameters
    ----------
    file
        What errors call it.
    options
        What the file leaves open.
    hubs
        CPUs and PCI devices by name.
    buses
        Names of PCI devices by bus id.
    gpus, nics
        In document order.
    pci_links
        ``pcilink`` elements, each with its device.
    notes
        Where numbers are from; keys only, in order.
    ignored
        What means nothing here; keys only.
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

        Raises
        ------
        InputError
            When it is there and is none.
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

        Raises
        ------
        InputError
            When it is missing or is none.
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
        if self.ignored:
            names = list(self.ignored)
            more = f" and {len(names) - 8} more" if len(names) > 8 else ""
            warnings.warn(
                f"{self.file}: ignored {', '.join(names[:8])}{more}", TacclWarning, stacklevel=5
            )


def check_places(element: Element, above: str | None, reading: Reading) -> None:
    """Refuse known elements in places where they mean nothing; note unknown ones."""
    if element.tag not in INSIDE:
        reading.ignored[f"<{element.tag[:40]}>"] = None
        return
    if above is not None and above not in INSIDE[element.tag]:
        allowed = " or ".join(f"<{tag}>" for tag in INSIDE[element.tag]) or "nothing"
        raise reading.error(f"<{element.tag}> stands in <{above}>", element, f"put it in {allowed}")
    for child in element.children:
        check_places(child, element.tag, reading)

"""The tree of hubs that classes of PCIe paths between devices make.

Two devices that are at most ``PIX`` apart share a switch, two that are ``PHB`` apart a host bridge,
and so on: the classes nest, so that each class groups the groups of the nearer ones. Every group is
a hub, and every hub or device below it has one link to it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from taccl.imports.hosts import SOCKETS, Hub, Plug

LEVELS: Mapping[str, int] = {"PIX": 1, "PXB": 2, "PHB": 3, "NODE": 4, "SYS": 5, "SOC": 5}
"""Classes of PCIe paths, from near to far; 0 stands for one that is not known."""

SYSTEM = 5
SAME_NODE = 4
_HUBS = {1: "pcie", 2: "bridge", 3: "cpu", 4: "numa"}


@dataclass(frozen=True, slots=True)
class Classes:
    """What is known about how far devices are apart.

    Parameters
    ----------
    level
        For every two devices a value of LEVELS, or 0.
    numa
        NUMA node of every device, where it is known.
    """

    level: Sequence[Sequence[int]]
    numa: Sequence[str | None]

    def groups(self, level: int) -> list[int]:
        """Return for each device the first device that it is joined to by paths up to a level."""
        group = list(range(len(self.level)))
        for a, row in enumerate(self.level):
            for b in range(a):
                if group[a] != group[b] and self._close(row[b], a, b, level):
                    old, new = max(group[a], group[b]), min(group[a], group[b])
                    group = [new if home == old else home for home in group]
        return group

    def _close(self, known: int, a: int, b: int, level: int) -> bool:
        if known:
            return known <= level
        together = self.numa[a] is not None and self.numa[a] == self.numa[b]
        return level == SYSTEM or (level == SAME_NODE and together)


def closer(classes: Classes) -> tuple[int, int, str] | None:
    """Return two devices and the class by which others join them, nearer than they say."""
    for name, level in LEVELS.items():
        group = classes.groups(level)
        for a, row in enumerate(classes.level):
            for b in range(a):
                if group[a] == group[b] and row[b] > level:
                    return a, b, name
    return None


def hub_tree(
    classes: Classes, lane: Fraction, sockets: Fraction
) -> tuple[tuple[Hub, ...], list[Plug]]:
    """Return the hubs, and where every device is.

    Parameters
    ----------
    classes
        How far the devices are apart.
    lane, sockets
        GB/s of a device's link, and of a socket's link to the others.
    """
    count = len(classes.level)
    top: list[int | str] = list(range(count))
    hubs: dict[str, Hub] = {}
    plugs = [Plug("cpu0", lane)] * count
    for level in range(1, SYSTEM + 1):
        group = classes.groups(level)
        inside: dict[int, dict[int | str, None]] = {}
        for device in range(count):
            inside.setdefault(group[device], {})[top[device]] = None
        names: dict[int, str] = {}
        for home, children in inside.items():
            if len(children) > 1:
                names[home] = _add(hubs, plugs, level, list(children), (lane, sockets))
        top = [names.get(group[device], top[device]) for device in range(count)]
    if not hubs:  # one device, and nothing for it to meet
        hubs["cpu0"] = Hub("cpu0")
    return tuple(hubs.values()), plugs


def _add(
    hubs: dict[str, Hub],
    plugs: list[Plug],
    level: int,
    children: Sequence[int | str],
    rates: tuple[Fraction, Fraction],
) -> str:
    """Add a hub above some hubs and devices."""
    kind = _HUBS.get(level, SOCKETS)
    name = SOCKETS if level == SYSTEM else f"{kind}{sum(h.startswith(kind) for h in hubs)}"
    lane, sockets = rates
    rate = sockets if level == SYSTEM else lane
    hubs[name] = Hub(name)
    for child in children:
        if isinstance(child, str):
            hubs[child] = Hub(child, name, rate)
        else:
            plugs[child] = Plug(name, min(rate, lane))
    return name

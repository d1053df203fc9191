"""Hosts as tools describe them, joined by a fabric into one topology file in the server form.

A host is its GPUs, what joins them directly, and trees of hubs (PCIe switches, host bridges, the
link between the sockets) with GPUs and NICs at them. What crosses a hub's uplink shares it. Where
NVLink joins all GPUs of a host, its hubs carry only what goes to other servers.

Hubs also come from classes of PCIe paths between devices. Two devices that are at most ``PIX``
apart share a switch, two that are ``PHB`` apart a host bridge, and so on: the classes nest, so that
each class groups the groups of the nearer ones. Every group is a hub, and every hub or device below
it has one link to it.

Tools name links without saying how fast they are. All figures here are GB/s in one direction, as
NCCL and RCCL count them: what a program can reach, not what a data sheet promises. PCIe is width x
speed / 80, three quarters of the nominal rate.

References
----------
NVIDIA/nccl 2.30.7, ``src/graph/topo.h`` (``SM*_NVLINK_BW``, ``*_QPI_BW``, ``AMD_BW``, ``P9_BW``,
``ARM_BW``), ``src/graph/topo.cc`` (``kvDictPciGen``, ``ncclTopoGetInterCpuBw``); ROCm/rccl,
``src/graph/topo.h`` (``*_XGMI_WIDTH``).
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from heapq import heappop, heappush
from pathlib import Path
from types import MappingProxyType

from taccl.errors import InputError
from taccl.files import shown
from taccl.units import beta_text


@dataclass(frozen=True, slots=True)
class Gpu:
    """A generation of GPUs, and what hosts with it usually have.

    `sm` is the compute capability, as in NCCL's files; AMD: of the name, 908 for gfx908. A GPU has
    so many `links` (NVLink or xGMI), of `link` GB/s each. `pcie` is a generation of PCIe, `nic`
    GB/s of a NIC, and `sockets` GB/s between two CPUs.
    """

    sm: int
    links: int
    link: Fraction
    pcie: int
    nic: Fraction
    sockets: Fraction


GPUS: Mapping[str, Gpu] = MappingProxyType({
    "p100": Gpu(60, 4, Fraction(18), 3, Fraction("12.5"), Fraction(6)),
    "v100": Gpu(70, 6, Fraction(20), 3, Fraction("12.5"), Fraction(10)),
    "a40": Gpu(86, 4, Fraction(12), 4, Fraction("12.5"), Fraction(16)),
    "a100": Gpu(80, 12, Fraction(20), 4, Fraction(25), Fraction(16)),
    "h100": Gpu(90, 18, Fraction("20.6"), 5, Fraction(50), Fraction(22)),
    "b200": Gpu(100, 18, Fraction("40.1"), 5, Fraction(50), Fraction(40)),
    "mi100": Gpu(908, 3, Fraction(24), 4, Fraction(25), Fraction(16)),
    "mi250": Gpu(910, 8, Fraction(36), 4, Fraction(25), Fraction(16)),
    "mi300x": Gpu(942, 7, Fraction(48), 5, Fraction(50), Fraction(16)),
    "other": Gpu(0, 0, Fraction(20), 4, Fraction("12.5"), Fraction(10)),
})  # fmt: skip
"""GPUs by name; ``other`` has no links of its own."""

NVLINK_BY_SM: tuple[tuple[int, Fraction], ...] = (
    (100, Fraction("40.1")), (90, Fraction("20.6")), (87, Fraction(20)), (86, Fraction(12)),
    (70, Fraction(20)), (60, Fraction(18)),
)  # fmt: skip
"""GB/s of an NVLink, by the least compute capability (``ncclTopoNVLinkBw``)."""

GPU_BY_SM: tuple[tuple[int, str], ...] = (
    (100, "b200"), (90, "h100"), (86, "a40"), (80, "a100"), (70, "v100"), (60, "p100"),
)  # fmt: skip
"""Names of GPUS by the least compute capability."""

GPU_BY_GCN: Mapping[str, str] = MappingProxyType({
    "94": "mi300x", "90a": "mi250", "908": "mi100",
})  # fmt: skip
"""Names of GPUS by how the architecture's name begins, after its ``gfx``."""

XGMI_BY_GCN: Mapping[str, Fraction] = MappingProxyType({
    "gfx95": Fraction(48), "gfx94": Fraction(48), "gfx90a": Fraction(36),
})  # fmt: skip
"""GB/s of an xGMI link, by how the architecture's name begins; of others 24."""

OLD_XGMI = Fraction(24)

LANE = MappingProxyType({1: 15, 2: 30, 3: 60, 4: 120, 5: 240, 6: 480})
"""PCIe generations: 100 Mb/s of a lane."""

GEN_BY_SPEED: tuple[tuple[Fraction, int], ...] = (
    (Fraction("2.5"), 1), (Fraction(5), 2), (Fraction(8), 3), (Fraction(16), 4), (Fraction(32), 5),
    (Fraction(64), 6),
)  # fmt: skip
"""GT/s to PCIe generation."""

GPU_NAMES = ", ".join(GPUS)


def pcie_bandwidth(generation: int, width: int = 16) -> Fraction:
    """Return GB/s of a PCIe link of `width` lanes and a `generation`, such as 4 of PCIe 4.0."""
    return Fraction(width * LANE[generation], 80)


def nvlink_bandwidth(sm: int) -> Fraction:
    """Return GB/s of one NVLink of a GPU of a compute capability, such as 80."""
    return next((rate for least, rate in NVLINK_BY_SM if sm >= least), Fraction(18))


def rate_text(rate: Fraction) -> str:
    """Return GB/s as a topology file writes them, exactly."""
    scaled = rate * 10**9
    if scaled.denominator != 1:
        return beta_text(1000 / rate)
    whole, places = divmod(int(scaled), 10**9)
    return f"{whole}.{places:09d}".rstrip("0").rstrip(".") + "GB/s"


MAX_GPUS = 256
"""Of one host; larger domains of NVLink are not described by one host's file."""

MAX_DEVICES = 1024

SOCKETS = "sockets"
"""The hub that joins the sockets of a host."""


@dataclass(frozen=True, slots=True)
class HostOptions:
    """What the tools leave open; None: assumed.

    `gpu` is a name of GPUS, `link` GB/s of one NVLink or xGMI link, `pcie` a generation of PCIe,
    `nic` GB/s of a NIC and `sockets` between two sockets; `nics` is how many NICs a host has whose
    tool names none.
    """

    gpu: str | None = None
    link: Fraction | None = None
    pcie: int | None = None
    nic: Fraction | None = None
    sockets: Fraction | None = None
    nics: int | None = None


@dataclass(frozen=True, slots=True)
class Wire:
    """A direct link between two GPUs, in both directions unless said otherwise; rate in GB/s."""

    tail: int
    head: int
    rate: Fraction
    both: bool = True


@dataclass(frozen=True, slots=True)
class Hub:
    """A PCIe switch, host bridge or the like: rate in GB/s to the hub above, if there is one."""

    name: str
    above: str | None = None
    rate: Fraction | None = None


@dataclass(frozen=True, slots=True)
class Plug:
    """Where a device is: the hub, and GB/s of its own link to it (None: unlimited)."""

    hub: str
    rate: Fraction | None


@dataclass(frozen=True, slots=True)
class HostNic:
    """A NIC: GB/s to the fabric, and where it is."""

    name: str
    rate: Fraction
    plug: Plug


@dataclass(frozen=True, slots=True)
class Host:
    """One host.

    `file`: where it is from.
    `num_gpus`: GPUs are 0 .. num_gpus-1.
    `wires`: direct links.
    `switched`: GB/s of each GPU to the NVSwitch; None: it is not on one.
    `hubs`: forests by ``above``.
    `beside`: hubs that are joined though neither is above the other, without a limit.
    `plugs`: where each GPU is; a GPU may be at several hubs, or none.
    `nics`: in order of their names in the file.
    `notes`: where the numbers are from.
    `gpu`: a name of GPUS; None: not known.
    """

    file: str
    num_gpus: int
    wires: tuple[Wire, ...] = ()
    switched: tuple[Fraction | None, ...] = ()
    hubs: tuple[Hub, ...] = ()
    beside: tuple[tuple[str, str], ...] = ()
    plugs: tuple[tuple[Plug, ...], ...] = ()
    nics: tuple[HostNic, ...] = ()
    notes: tuple[str, ...] = ()
    gpu: str | None = None

    @property
    def is_joined(self) -> bool:
        """Whether NVLink leads from every GPU to every other."""
        group = list(range(self.num_gpus))
        pairs = [(wire.tail, wire.head) for wire in self.wires]
        members = [gpu for gpu, rate in enumerate(self.switched) if rate is not None]
        pairs += [(members[0], other) for other in members[1:]]
        for a, b in pairs:
            old, new = group[a], group[b]
            group = [new if home == old else home for home in group]
        return len(set(group)) == 1


def with_nics(host: Host, options: HostOptions) -> Host:
    """Return `host` with the NICs that `options` ask for where its tool names none.

    They are spread over the GPUs, each on a PCIe switch with its GPU.

    Raises InputError when the host has NICs of its own.
    """
    if options.nics is None:
        return host
    if host.nics:
        raise InputError(
            f"has {len(host.nics)} NICs already", file=host.file, field="--nics",
            fix="leave --nics out, or edit nics: in the imported file",
        )  # fmt: skip
    if not 1 <= options.nics <= MAX_DEVICES:
        raise InputError(
            f"should be from 1 to {MAX_DEVICES}, got {options.nics}", field="--nics",
            fix=f"write --nics {host.num_gpus}",
        )  # fmt: skip
    rate = options.nic or Fraction("12.5")
    rates = {hub.name: hub.rate for hub in host.hubs}
    hubs, plugs, nics = list(host.hubs), list(host.plugs), []
    for number in range(options.nics):
        gpu = number * host.num_gpus // options.nics
        plug = plugs[gpu][0]
        name = f"pcie.gpu{gpu}"
        if plug.hub != name:
            # A hub for this GPU alone, as NCCL's files have, holds the rate of the GPU's own link.
            own = plug.rate if plug.rate is not None else rates.get(plug.hub)
            hubs.append(Hub(name, plug.hub, own))
            plug = Plug(name, own)
            plugs[gpu] = (plug, *plugs[gpu][1:])
        nics.append(HostNic(f"nic{number}", rate, plug))
    said = "--nic-speed" if options.nic else "assumed; --nic-speed"
    note = f"NICs: {options.nics} near as many GPUs (--nics), {rate_text(rate)} each ({said})"
    return replace(
        host, hubs=tuple(hubs), plugs=tuple(plugs), nics=tuple(nics), notes=(*host.notes, note)
    )


_Thing = str | tuple[int, int]
"""What is at a hub: a hub by name, a GPU with the index of its plug, or _NIC with its index."""

_NIC = -1

_Places = dict[_Thing, tuple[str | None, Fraction | None]]
"""The hub above a thing, and GB/s to it."""


def tidy(host: Host) -> Host:
    """Return a host without hubs that nothing branches at; several roots get one above them.

    A hub of one device or hub is no place where flows meet: its rate is kept where it narrows.
    """
    places: _Places = {hub.name: (hub.above, hub.rate) for hub in host.hubs}
    for gpu, found in enumerate(host.plugs):
        places |= {(gpu, index): (plug.hub, plug.rate) for index, plug in enumerate(found)}
    places |= {(_NIC, index): (nic.plug.hub, nic.plug.rate) for index, nic in enumerate(host.nics)}
    below: dict[str, set[_Thing]] = {hub.name: set() for hub in host.hubs}
    for thing, (hub, _) in places.items():
        if hub is not None:
            below[hub].add(thing)
    joined = {name for pair in host.beside for name in pair}
    order = {hub.name: number for number, hub in enumerate(host.hubs)}
    waiting = list(order.values())  # of hubs to look at: a heap, the first first
    while waiting:
        name = host.hubs[heappop(waiting)].name
        if name in joined or name not in places:
            continue
        # Flows meet at a hub of several things; one at the top may be the only place of a device.
        devices = any(not isinstance(thing, str) for thing in below[name])
        if len(below[name]) > 1 or (places[name][0] is None and devices):
            continue
        above, rate = places.pop(name)
        moved = below.pop(name)
        for thing in moved:
            rates = [each for each in (places[thing][1], rate) if each is not None]
            places[thing] = above, min(rates, default=None)
        if above is not None:
            below[above].discard(name)
            below[above] |= moved
            heappush(waiting, order[above])  # it may have one thing less
    return _placed(host, places)


def _placed(host: Host, places: _Places) -> Host:
    """Return a host whose hubs are those that have a place, and all devices where theirs is."""

    def plug(owner: int, index: int) -> Plug:
        hub, rate = places[owner, index]
        return Plug(str(hub), rate)

    hubs = tuple(Hub(h.name, *places[h.name]) for h in host.hubs if h.name in places)
    plugs = tuple(
        tuple(plug(gpu, index) for index in range(len(found)))
        for gpu, found in enumerate(host.plugs)
    )
    # Names of NICs that files can hold, each once.
    taken, nics = {"nvswitch", *(hub.name for hub in hubs)}, []
    for index, nic in enumerate(host.nics):
        name = re.sub(r"[^\w.-]+", "-", nic.name, flags=re.ASCII).strip("-.")[:60] or "nic"
        while name in taken:
            name += "-nic"
        taken.add(name)
        nics.append(replace(nic, name=name, plug=plug(_NIC, index)))
    return replace(host, hubs=hubs, plugs=plugs, nics=tuple(nics))


LINK_ALPHA = "0.7us"
PCIE_ALPHA = "1us"
FABRIC_ALPHA = "1.7us"
FABRIC_ALONE_ALPHA = "0.7us"

_SOURCES = (
    "alpha: 0.7us inside and 1.7us between servers, as TACCL (Shah et al., NSDI 2023) measured",
    "PCIe between GPUs: alpha 1us, as NCCL 2.30 counts it (tuning.cc, LL on PCI)",
)


@dataclass(frozen=True, slots=True)
class FabricOptions:
    """How hosts are joined.

    `kind` is a name of FABRICS (None: switch), `count` the number of servers like the one that is
    given, and `fields` are further ones of the fabric, such as leaves.
    """

    kind: str | None = None
    count: int | None = None
    fields: Mapping[str, object] = field(default_factory=dict)


def compose(
    hosts: Sequence[Host], options: FabricOptions
) -> tuple[dict[str, object], tuple[str, ...]]:
    """Return a topology file in the server form, as a document, and its comments.

    `hosts` are the servers, joined as `options` say; one stands for ``options.count`` of its kind.

    Raises InputError when several servers can't be joined.
    """
    hosts = [tidy(host) for host in hosts]
    count = options.count or 1
    if len(hosts) > 1 and options.count not in (None, len(hosts)):
        raise InputError(
            f"{len(hosts)} files are {len(hosts)} servers, not {options.count}", field="--count",
            fix="leave --count out, or give one file",
        )  # fmt: skip
    lone = next((host for host in hosts if not host.nics), None)
    if lone is not None and (count > 1 or len(hosts) > 1) and options.kind != "none":
        raise InputError(
            "names no NIC, so that nothing can join its server to another", file=lone.file,
            fix="give the output of a host with its NICs, or add nics: to the imported file",
        )  # fmt: skip
    nodes = [_node(host) for host in hosts]
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(hosts[0].file).stem).strip("-.")[:60]
    name = plain if plain and not plain.isdigit() else f"host-{plain or 0}"
    document: dict[str, object] = {"taccl": "topology/1", "name": name}
    if all(node == nodes[0] for node in nodes):
        document |= {"node": nodes[0], "count": max(count, len(hosts))}
    else:
        document |= {"nodes": nodes}
    gpus = [host.gpu for host in hosts]
    if all(gpu is not None and GPUS[gpu].links for gpu in gpus):
        # NCCL goes by the oldest.
        document["gpu"] = min(filter(None, gpus), key=lambda gpu: GPUS[gpu].sm)
    if lone is None:
        through = all(not host.is_joined for host in hosts)
        alpha = FABRIC_ALONE_ALPHA if through else FABRIC_ALPHA
        document["fabric"] = {"kind": options.kind or "switch", "alpha": alpha, **options.fields}
    return document, tuple(_comments(hosts, options))


def _comments(hosts: Sequence[Host], options: FabricOptions) -> Iterator[str]:
    yield "Made by `taccl topology import`; edit it where the host is different."
    for host in dict.fromkeys(hosts):
        joined = "NVLink or xGMI joins them" if host.is_joined else "PCIe joins them"
        yield (
            f"{shown(Path(host.file).name)}: {host.num_gpus} GPUs ({joined}), {len(host.nics)} NICs"
        )
        yield from (f"  {note}" for note in host.notes)
    yield from _SOURCES[:1]
    if any(not host.is_joined for host in hosts):
        yield _SOURCES[1]
    if all(host.nics and not host.is_joined for host in hosts):
        yield "  (of the 1.7us between servers, PCIe at both ends is 1us)"
    if any(host.nics for host in hosts):
        asked = "--fabric" if options.kind else "assumed; --fabric"
        yield f"fabric: {options.kind or 'switch'} ({asked}); its ports are as fast as the NICs"


def _node(host: Host) -> dict[str, object]:
    """Return the record of one server."""
    node: dict[str, object] = {"gpus": host.num_gpus}
    joined = host.is_joined
    if host.wires:
        node["wires"] = [
            {
                "from": wire.tail, "to": wire.head, "bandwidth": rate_text(wire.rate),
                "alpha": LINK_ALPHA, **({} if wire.both else {"both": False}),
            }
            for wire in host.wires
        ]  # fmt: skip
    switches: list[dict[str, object]] = []
    groups = _sorted({gpu: rate for gpu, rate in enumerate(host.switched) if rate is not None})
    if groups:
        switches += _star("nvswitch", groups, host.num_gpus, {"alpha": LINK_ALPHA})
    if host.nics or not joined:
        switches += _switches(host, joined=joined)
    if switches:
        node["switches"] = switches
    if host.nics:
        node["nics"] = [
            {
                "name": nic.name, "at": nic.plug.hub, "bandwidth": rate_text(nic.rate),
                **({} if (rate := nic.plug.rate) is None
                   else {"pcie": {"bandwidth": rate_text(rate)}}),
            }
            for nic in host.nics
        ]  # fmt: skip
    return node


def _switches(host: Host, *, joined: bool) -> Iterator[dict[str, object]]:
    """Yield the hubs; GPUs whose link is unlike that of most at their hub get one of their own."""
    at: dict[str, dict[int, Fraction | None]] = defaultdict(dict)
    for gpu, plugs in enumerate(host.plugs):
        for plug in plugs:
            at[plug.hub][gpu] = plug.rate
    serving = _with_gpus(host)
    for hub in host.hubs:
        cost: dict[str, object] = {} if joined else {"alpha": PCIE_ALPHA}
        extra: dict[str, object] = {}
        if joined or hub.name not in serving:
            extra["across"] = "servers"
        links = [_link(other, None) for one, other in host.beside if one == hub.name]
        if hub.above is not None:
            links.append(_link(hub.above, hub.rate))
        groups = _sorted(at[hub.name])
        bare: dict[str, object] = {"name": hub.name, "members": []}
        star = _star(hub.name, groups, 0, cost) if groups else iter([bare])
        yield {**next(star), **({"links": links} if links else {}), **extra}
        yield from ({**entry, **extra} for entry in star)


Group = tuple[Fraction | None, list[int]]
"""A rate, and the GPUs whose link to a switch has it."""


def _sorted(rates: Mapping[int, Fraction | None]) -> list[Group]:
    """Return the GPUs by rate, the rate of most first."""
    groups: dict[Fraction | None, list[int]] = defaultdict(list)
    for gpu, rate in rates.items():
        groups[rate].append(gpu)
    return sorted(groups.items(), key=lambda item: (-len(item[1]), item[1]))


def _star(
    name: str, groups: Sequence[Group], total: int, cost: Mapping[str, object]
) -> Iterator[dict[str, object]]:
    """Yield a switch with the first group, and one more for each GPU of the others."""
    for number, (rate, gpus) in enumerate(groups):
        speed = {} if rate is None else {"bandwidth": rate_text(rate)}
        if number == 0:
            members: object = "all" if len(gpus) == total else gpus
            yield {"name": name, "members": members, **speed, **cost}
            continue
        for gpu in gpus:
            yield {
                "name": f"{name}.gpu{gpu}", "members": [gpu], **speed, **cost,
                "links": [_link(name, rate)],
            }  # fmt: skip


def _link(to: str, rate: Fraction | None) -> dict[str, object]:
    return {"to": to} if rate is None else {"to": to, "bandwidth": rate_text(rate)}


def _with_gpus(host: Host) -> set[str]:
    """Return the hubs with GPUs at or below them."""
    above = {hub.name: hub.above for hub in host.hubs}
    found: set[str] = set()
    for plugs in host.plugs:
        for plug in plugs:
            hub: str | None = plug.hub
            while hub is not None and hub not in found:
                found.add(hub)
                hub = above[hub]
    return found


LEVELS: Mapping[str, int] = {"PIX": 1, "PXB": 2, "PHB": 3, "NODE": 4, "SYS": 5, "SOC": 5}
"""Classes of PCIe paths, from near to far; 0 stands for one that is not known."""

SYSTEM = 5
SAME_NODE = 4
_HUBS = {1: "pcie", 2: "bridge", 3: "cpu", 4: "numa"}


@dataclass(frozen=True, slots=True)
class Classes:
    """What is known about how far devices are apart.

    `level` has a value of LEVELS, or 0, for every two devices, `numa` the NUMA node of every
    device, where it is known.
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
    """Return the hubs that `classes` of paths make, and where every device is.

    `lane` and `sockets` are GB/s of a device's link, and of a socket's link to the others.
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
        kind, rate = _HUBS.get(level, SOCKETS), sockets if level == SYSTEM else lane
        names: dict[int, str] = {}
        for home, children in inside.items():
            if len(children) == 1:
                continue
            number = sum(hub.startswith(kind) for hub in hubs)
            name = names[home] = SOCKETS if level == SYSTEM else f"{kind}{number}"
            hubs[name] = Hub(name)
            for child in children:
                if isinstance(child, str):
                    hubs[child] = Hub(child, name, rate)
                else:
                    plugs[child] = Plug(name, min(rate, lane))
        top = [names.get(group[device], top[device]) for device in range(count)]
    if not hubs:  # one device, and nothing for it to meet
        hubs["cpu0"] = Hub("cpu0")
    return tuple(hubs.values()), plugs

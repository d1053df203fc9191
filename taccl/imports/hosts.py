"""Hosts as tools describe them.

A host is its GPUs, what joins them directly, and trees of hubs (PCIe switches, host bridges, the
link between the sockets) with GPUs and NICs at them. What crosses a hub's uplink shares it.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from heapq import heappop, heappush

from taccl.errors import InputError
from taccl.imports.hardware import rate_text

MAX_GPUS = 256
"""Of one host; larger domains of NVLink are not described by one host's file."""

MAX_DEVICES = 1024

SOCKETS = "sockets"
"""The hub that joins the sockets of a host."""


@dataclass(frozen=True, slots=True)
class HostOptions:
    """What the tools leave open; None: assumed.

    Parameters
    ----------
    gpu
        A name of GPUS.
    link
        GB/s of one NVLink or xGMI link.
    pcie
        Generation of PCIe.
    nic, sockets
        GB/s of a NIC, and between two sockets.
    nics
        How many NICs a host has whose tool names none.
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

    Parameters
    ----------
    file
        Where it is from.
    num_gpus
        GPUs are 0 .. num_gpus-1.
    wires
        Direct links.
    switched
        GB/s of each GPU to the NVSwitch; None: it is not on one.
    hubs
        Forests by ``above``.
    beside
        Hubs that are joined though neither is above the other, without a limit.
    plugs
        Where each GPU is; a GPU may be at several hubs, or none.
    nics
        In order of their names in the file.
    notes
        Where the numbers are from.
    gpu
        A name of GPUS; None: not known.
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
    """Return a host with the NICs that are asked for where its tool names none.

    They are spread over the GPUs, each on a PCIe switch with its GPU.

    Raises
    ------
    InputError
        When the host has NICs of its own.
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
    places = _places(host)
    below: dict[str, set[_Thing]] = {hub.name: set() for hub in host.hubs}
    for thing, (hub, _) in places.items():
        if hub is not None:
            below[hub].add(thing)
    joined = {name for pair in host.beside for name in pair}
    order = {hub.name: number for number, hub in enumerate(host.hubs)}
    waiting = list(order.values())  # of hubs to look at: a heap, the first first
    while waiting:
        name = host.hubs[heappop(waiting)].name
        if name in joined or name not in places or _is_useful(below[name], places[name][0]):
            continue
        above, rate = places.pop(name)
        moved = below.pop(name)
        for thing in moved:
            places[thing] = above, _least(places[thing][1], rate)
        if above is not None:
            below[above].discard(name)
            below[above] |= moved
            heappush(waiting, order[above])  # it may have one thing less
    return _placed(host, places)


def _places(host: Host) -> _Places:
    places: _Places = {hub.name: (hub.above, hub.rate) for hub in host.hubs}
    for gpu, found in enumerate(host.plugs):
        places |= {(gpu, index): (plug.hub, plug.rate) for index, plug in enumerate(found)}
    places |= {(_NIC, index): (nic.plug.hub, nic.plug.rate) for index, nic in enumerate(host.nics)}
    return places


def _is_useful(things: set[_Thing], above: str | None) -> bool:
    """Tell whether flows meet at a hub, or it is the only place of a device."""
    return len(things) > 1 or (above is None and any(not isinstance(t, str) for t in things))


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
    nics = [replace(nic, plug=plug(_NIC, index)) for index, nic in enumerate(host.nics)]
    names = {hub.name for hub in hubs}
    return replace(host, hubs=hubs, plugs=plugs, nics=tuple(_named(nics, names)))


def _named(nics: Sequence[HostNic], taken: set[str]) -> Iterator[HostNic]:
    """Yield NICs with names that files can hold, each once."""
    for nic in nics:
        name = re.sub(r"[^\w.-]+", "-", nic.name, flags=re.ASCII).strip("-.")[:60] or "nic"
        while name in taken or name == "nvswitch":
            name += "-nic"
        taken.add(name)
        yield replace(nic, name=name)


def _least(*rates: Fraction | None) -> Fraction | None:
    return min((rate for rate in rates if rate is not None), default=None)

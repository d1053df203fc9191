"""Hosts with a fabric as one topology file in the server form.

Where NVLink joins all GPUs of a host, its hubs carry only what goes to other servers.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

from taccl.errors import InputError
from taccl.files import shown
from taccl.imports.hardware import GPUS, rate_text
from taccl.imports.hosts import Host, HostNic, Wire, tidy

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

    Parameters
    ----------
    kind
        A name of FABRICS; None: switch.
    count
        Servers like the one that is given.
    fields
        Further fields of the fabric, such as leaves.
    """

    kind: str | None = None
    count: int | None = None
    fields: Mapping[str, object] = field(default_factory=dict)


def compose(
    hosts: Sequence[Host], options: FabricOptions
) -> tuple[dict[str, object], tuple[str, ...]]:
    """Return a topology file in the server form, as a document, and its comments.

    Raises
    ------
    InputError
        When several servers can't be joined.
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
    name = _name(hosts[0].file)
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


def _name(file: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(file).stem).strip("-.")[:60]
    return plain if plain and not plain.isdigit() else f"host-{plain or 0}"


def _node(host: Host) -> dict[str, object]:
    """Return the record of one server."""
    node: dict[str, object] = {"gpus": host.num_gpus}
    joined = host.is_joined
    if host.wires:
        node["wires"] = [_wire(wire) for wire in host.wires]
    switches: list[dict[str, object]] = []
    groups = _by_rate(host.switched)
    if groups:
        switches += _star("nvswitch", groups, host.num_gpus, {"alpha": LINK_ALPHA})
    if host.nics or not joined:
        switches += _switches(host, joined=joined)
    if switches:
        node["switches"] = switches
    if host.nics:
        node["nics"] = [_nic(nic) for nic in host.nics]
    return node


def _wire(wire: Wire) -> dict[str, object]:
    entry: dict[str, object] = {
        "from": wire.tail, "to": wire.head, "bandwidth": rate_text(wire.rate), "alpha": LINK_ALPHA,
    }  # fmt: skip
    return entry if wire.both else {**entry, "both": False}


def _nic(nic: HostNic) -> dict[str, object]:
    entry: dict[str, object] = {
        "name": nic.name, "at": nic.plug.hub, "bandwidth": rate_text(nic.rate),
    }  # fmt: skip
    if nic.plug.rate is not None:
        entry["pcie"] = {"bandwidth": rate_text(nic.plug.rate)}
    return entry


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
        star = _star(hub.name, groups, 0, cost) if groups else iter([_bare(hub.name)])
        yield {**next(star), **({"links": links} if links else {}), **extra}
        yield from ({**entry, **extra} for entry in star)


def _bare(name: str) -> dict[str, object]:
    return {"name": name, "members": []}


Group = tuple[Fraction | None, list[int]]
"""A rate, and the GPUs whose link to a switch has it."""


def _by_rate(rates: Sequence[Fraction | None]) -> list[Group]:
    return _sorted({gpu: rate for gpu, rate in enumerate(rates) if rate is not None})


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

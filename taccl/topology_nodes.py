"""One server of the server form: its GPUs, wires, switches and NICs, and their symmetry.

Switches of a server may be joined to each other, as PCIe switches, host bridges and sockets are:
what crosses a shared hop shares its bandwidth. Where they form trees, symmetries are found from the
leaves up.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PlainValidator, StrictBool, WithJsonSchema

from taccl.errors import InputError
from taccl.files import FileModel, shown
from taccl.files.fields import (
    Beta,
    Count,
    Index,
    Name,
    Numbers,
    PermutationList,
    parse_numbers,
    refuse,
)
from taccl.topology import Permutation
from taccl.topology_fabrics import Crossing
from taccl.topology_graph import MAX_ROTATIONS


def _empty_is_absent(value: object) -> object:
    return [] if value is None else value


class WireRecord(Crossing):
    """A direct wire between two GPUs of a server, by default in both directions."""

    tail: Annotated[Index, Field(alias="from", examples=[0])]
    head: Annotated[Index, Field(alias="to", examples=[1])]
    name: Annotated[Name | None, Field(examples=["upper"])] = None
    both: StrictBool = True


class SwitchLinkRecord(Crossing):
    """A hop between two switches of a server, in both directions."""

    to: Annotated[Name, Field(examples=["cpu0"])]


def _members(value: object) -> tuple[int, ...] | None:
    if value == []:
        return ()
    try:
        return parse_numbers(value)
    except InputError as error:
        raise refuse(error.problem, f"{error.fix}; [] for no GPUs") from None


Members = Annotated[
    tuple[int, ...] | None,
    PlainValidator(_members),
    WithJsonSchema({
        "type": ["string", "integer", "array"],
        "description": "numbers of GPUs: 0-15, [0, 1], 3 or all; [] for none",
    }),
]  # fmt: skip
"""Numbers of GPUs, perhaps none; None stands for all."""


class NodeSwitchRecord(Crossing):
    """A switch inside a server; the alpha is that of one whole crossing between GPUs."""

    name: Annotated[Name, Field(examples=["nvswitch"])]
    members: Annotated[Members, Field(examples=["0-15"])] = None
    multicast: StrictBool = False
    reduce: StrictBool = False
    across: Annotated[Literal["servers"] | None, Field(examples=["servers"])] = None
    links: Annotated[
        list[SwitchLinkRecord],
        BeforeValidator(_empty_is_absent),
        Field(examples=["[{to: cpu0, bandwidth: 24GB/s}]"]),
    ] = Field(default_factory=list)


class NicRecord(FileModel):
    """A NIC, and the GPUs that use it or the switch that it is plugged into."""

    name: Annotated[Name, Field(examples=["ib0"])]
    gpus: Annotated[Numbers, Field(examples=["[0, 1]"])] = ()
    at: Annotated[Name | None, Field(examples=["pcie0"])] = None
    bandwidth: Annotated[Beta, Field(examples=["25GB/s"])]
    pcie: Annotated[Crossing | None, Field(examples=["{bandwidth: 24GB/s}"])] = None


class NodeRecord(FileModel):
    """One server."""

    gpus: Annotated[Count, Field(examples=[8])]
    wires: Annotated[list[WireRecord], BeforeValidator(_empty_is_absent)] = Field(
        default_factory=list
    )
    switches: Annotated[list[NodeSwitchRecord], BeforeValidator(_empty_is_absent)] = Field(
        default_factory=list
    )
    nics: Annotated[list[NicRecord], BeforeValidator(_empty_is_absent)] = Field(
        default_factory=list
    )
    rotations: Annotated[
        list[PermutationList], Field(max_length=MAX_ROTATIONS, examples=["[[1, 0]]"])
    ] = Field(default_factory=list)


def problems(node: NodeRecord) -> Iterator[tuple[str, tuple[str | int, ...], str]]:
    """Yield what is wrong with a server: problem, place, fix."""
    last = f"use GPUs from 0 to {node.gpus - 1}"
    sets = [(("switches", i, "members"), s.members) for i, s in enumerate(node.switches)]
    sets += [(("nics", i, "gpus"), nic.gpus) for i, nic in enumerate(node.nics)]
    sets += [(("wires", i, "from"), (wire.tail,)) for i, wire in enumerate(node.wires)]
    sets += [(("wires", i, "to"), (wire.head,)) for i, wire in enumerate(node.wires)]
    for where, numbers in sets:
        high = max(numbers or (0,))
        if high >= node.gpus:
            yield f"there is no GPU {high} in a server of {node.gpus}", where, last
    named: set[str] = set()
    names: list[tuple[str, int, tuple[str, ...]]] = [
        *(("switches", i, (switch.name,)) for i, switch in enumerate(node.switches)),
        *(("nics", i, _names_of(nic)) for i, nic in enumerate(node.nics)),
    ]
    for kind, i, own in names:
        for name in own:
            if name in named:
                yield f"{shown(name)} is there already", (kind, i, "name"), "choose another name"
        named.update(own)
    yield from _wire_problems(node)
    yield from _switch_problems(node)


def _names_of(nic: NicRecord) -> tuple[str, ...]:
    """Return what a NIC is called, and the two vertices that it becomes."""
    return nic.name, f"{nic.name}.tx", f"{nic.name}.rx"


def _wire_problems(node: NodeRecord) -> Iterator[tuple[str, tuple[str | int, ...], str]]:
    seen: dict[tuple[int, int], int] = {}
    names: set[str] = set()
    for i, wire in enumerate(node.wires):
        if wire.tail == wire.head:
            yield f"a wire from GPU {wire.tail} to itself", ("wires", i), "correct from and to"
        ends = [(wire.tail, wire.head), (wire.head, wire.tail)][: 2 if wire.both else 1]
        for a, b in ends:
            other = seen.setdefault((a, b), i)
            if other != i and not (wire.name and node.wires[other].name):
                yield (
                    f"wire {a}->{b} is there already, as wires[{other}]", ("wires", i),
                    "remove one, or name both if they are parallel; both: true adds the reverse",
                )  # fmt: skip
        if wire.name is not None and wire.name in names:
            yield f"{wire.name!r} is there already", ("wires", i, "name"), "choose another name"
        names.add(wire.name or "")


def gpus_of(numbers: tuple[int, ...] | None, gpus: int) -> Sequence[int]:
    """Return the GPUs that a set stands for; None is all."""
    return range(gpus) if numbers is None else numbers


def num_edges(node: NodeRecord) -> int:
    """Return at least as many edges as a server becomes."""
    ports = [len(gpus_of(switch.members, node.gpus)) for switch in node.switches]
    ports += [len(gpus_of(nic.gpus, node.gpus)) + 9 for nic in node.nics]
    ports += [len(switch.links) for switch in node.switches]
    return 2 * (len(node.wires) + sum(ports))


def _switch_problems(node: NodeRecord) -> Iterator[tuple[str, tuple[str | int, ...], str]]:
    known = {switch.name for switch in node.switches}
    listed = f"use one of {', '.join(sorted(known)[:8])}" if known else "list it in switches"
    seen: set[frozenset[str]] = set()
    for i, switch in enumerate(node.switches):
        for k, link in enumerate(switch.links):
            place = ("switches", i, "links", k)
            if link.to not in known or link.to == switch.name:
                yield f"there is no other switch {shown(link.to)}", (*place, "to"), listed
            ends = frozenset((switch.name, link.to))
            if ends in seen:
                yield (
                    f"{switch.name} and {link.to} are joined already", place,
                    "keep one link, with the bandwidth of both",
                )  # fmt: skip
            seen.add(ends)
    for i, nic in enumerate(node.nics):
        if nic.at is not None and nic.at not in known:
            yield f"there is no switch {shown(nic.at)}", ("nics", i, "at"), listed
        if nic.gpus == () and nic.at is None:
            yield "is missing", ("nics", i, "gpus"), "write gpus: [0, 1], or at: and a switch"
        if nic.gpus != () and nic.at is not None:
            yield "gpus and at are both given", ("nics", i, "at"), "remove one of them"


def used_switches(node: NodeRecord, *, with_nics: bool) -> list[NodeSwitchRecord]:
    """Return the switches of a server, without those that serve its NICs where it has none."""
    return [switch for switch in node.switches if with_nics or switch.across is None]


def shift(node: NodeRecord, *, with_nics: bool) -> Permutation | None:
    """Return the smallest step i -> i + d that the wires, switches and NICs of a server have.

    None where there is none, and where switches are joined to more than a tree.
    """
    switches = used_switches(node, with_nics=with_nics)
    order = _leaves_first(switches)
    if order is None:
        return None
    numbers: dict[object, int] = {}
    still = tuple(range(node.gpus))
    for step in range(1, node.gpus):
        if node.gpus % step == 0:
            turn = tuple((gpu + step) % node.gpus for gpu in range(node.gpus))
            found = [
                _devices(node, way, order, numbers, with_nics=with_nics) for way in (turn, still)
            ]
            if found[0] == found[1]:
                return turn
    return None


def _leaves_first(switches: Sequence[NodeSwitchRecord]) -> list[NodeSwitchRecord] | None:
    """Return switches so that each comes before the one that it links to; None: no trees."""
    by_name = {switch.name: switch for switch in switches}
    above = {s.name: [link.to for link in s.links if link.to in by_name] for s in switches}
    if any(len(links) > 1 for links in above.values()):
        return None
    waiting = Counter(to for links in above.values() for to in links)
    order = [switch for switch in switches if not waiting[switch.name]]
    for switch in order:  # grows
        for to in above[switch.name]:
            waiting[to] -= 1
            if not waiting[to]:
                order.append(by_name[to])
    return order if len(order) == len(switches) else None


def _devices(
    node: NodeRecord,
    turn: Permutation,
    order: Sequence[NodeSwitchRecord],
    numbers: dict[object, int],
    *,
    with_nics: bool,
) -> Counter[object]:
    """Count what a server has, with its GPUs renamed.

    A tree of switches counts at its root; ``numbers`` gives equal subtrees equal numbers.
    """
    found: Counter[object] = Counter()
    for wire in node.wires:
        cost = (wire.bandwidth, wire.alpha, wire.overhead)
        found[turn[wire.tail], turn[wire.head], cost] += 1
        if wire.both:
            found[turn[wire.head], turn[wire.tail], cost] += 1
    below: dict[str, Counter[object]] = defaultdict(Counter)
    for nic in node.nics if with_nics else ():
        plain = nic.model_copy(update={"name": "", "gpus": (), "at": None})
        if nic.at is not None:
            below[nic.at][plain] += 1
        else:
            found[frozenset(turn[gpu] for gpu in gpus_of(nic.gpus, node.gpus)), plain] += 1
    used = {switch.name for switch in order}
    for switch in order:
        members = frozenset(turn[gpu] for gpu in gpus_of(switch.members, node.gpus))
        plain_switch = switch.model_copy(update={"name": "", "members": (), "links": ()})
        key = (members, plain_switch, frozenset(below[switch.name].items()))
        number = numbers.setdefault(key, len(numbers))
        up = [link for link in switch.links if link.to in used]
        if up:
            below[up[0].to][number, up[0].model_copy(update={"to": ""})] += 1
        else:
            found[number] += 1
    return found

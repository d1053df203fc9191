"""A machine as network namespaces of this one: its edges are shaped links, shared ones are shared.

Every rank and every switch of a topology is a namespace, and every edge a pair of interfaces from
its tail to its head, which a token bucket at the tail lets have its bandwidth. A link has an
address at each end, and routes along its edges; so messages of a link cross the edges that the
topology says, and links that share an edge share its bandwidth. Acknowledgements come back over a
bridge that joins all ranks and is not shaped: they never wait behind data. The kernel has no delay
here: what has come is shown to the event loop after the latency of its link.

An edge serves frames in the order in which they come, and senders are let in frame by frame
(``SEND_BUFFER``): so messages share an edge in turn, as queue pairs share a NIC. A message that was
in the queue as a whole would go before all that are asked for after it.

A namespace is held by a process that ends with this one, and goes with it: nothing is left behind
however this process ends.

The token bucket counts Ethernet frames: 1514 bytes for 1448 of data (``tc-tbf(8)``; IPv4 and TCP
with time stamps). Its burst is what it may send in 125 us, and a frame, but at least 3200 bytes.
"""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from ipaddress import IPv4Address
from multiprocessing.connection import Connection
from pathlib import Path

from taccl.errors import InputError
from taccl.msccl.program import Program
from taccl.placement import permuted_topology
from taccl.replay.compile import ROUTED, wire
from taccl.run.loop import Wire
from taccl.run.messages import Way
from taccl.run.processes import Started, end_ranks, start_rank
from taccl.topology.graph import Topology

_NEWNET = 0x40000000
"""``CLONE_NEWNET`` (``linux/sched.h``)."""

FRAME, PAYLOAD = 1514, 1448
LEAST_BURST = 1600
BURST_TIME = Fraction(125, 1_000_000)

SEND_BUFFER = 4096
"""Bytes of a connection that wait in the kernel, which counts twice as many: some three frames."""

FASTEST = 32_000_000
"""Bytes a second of all edges that leave ranks together, above which processors are the limit."""

MAX_LINKS = 4096
MAX_VERTICES = 256

_LINKS_FROM = int(IPv4Address("10.128.0.0"))
_FABRIC_FROM = int(IPv4Address("10.64.0.1"))
_RANKS_FROM = int(IPv4Address("10.0.0.1"))
_NEXT_HOP = "169.254.0.1"
"""What every edge's head is called by its tail: the address only stands for the one neighbour."""


def scaled(topology: Topology, scale: Fraction) -> Topology:
    """Return a `topology` on which everything takes `scale` times as long.

    Alphas are whole picoseconds, rounded down; local work costs what it does.
    """
    edges = [
        replace(
            edge, alpha=int(edge.alpha * scale),
            overhead=None if edge.overhead is None else int(edge.overhead * scale),
            beta=None if edge.beta is None else edge.beta * scale,
        )
        for edge in topology.edges
    ]  # fmt: skip
    return topology.with_costs(edges)


def own_scale(topology: Topology) -> Fraction:
    """Return by how much a `topology` must be slower for this machine to carry all its links."""
    rates = [
        10**12 / edge.beta
        for edge in topology.edges
        if edge.beta and edge.tail < topology.num_ranks
    ]
    total = sum(rates, Fraction(0))
    return max(Fraction(1), Fraction(-(-total // FASTEST)))


@dataclass(frozen=True, slots=True, eq=False)
class Emulated:
    """A machine that is emulated.

    `topology`: what it is like: already slower by its scale.
    `holders`: the processes that hold its namespaces, one a vertex.
    `shown`: from a link to its way.
    `seats`: the vertex of each rank: its own, but where ranks were moved.
    """

    topology: Topology
    holders: tuple[Started, ...]
    shown: Mapping[int, Way]
    seats: tuple[int, ...]

    def seated(self, order: Sequence[int]) -> "Emulated":
        """Return the same machine with rank ``r`` at the place of rank ``order[r]``."""
        moved = permuted_topology(self.topology, order)
        shown = {}
        for number in range(len(moved.links)):
            link = moved.link(number)
            place = moved.links_between(link.src, link.dst).index(number)
            old = self.topology.links_between(order[link.src], order[link.dst])[place]
            shown[number] = self.shown[old]
        return replace(
            self, topology=moved, shown=shown, seats=tuple(self.seats[place] for place in order)
        )

    def enter(self, rank: int) -> str:
        """Move this process to where a `rank` is, and return its address there."""
        seat = self.seats[rank]
        descriptor = os.open(f"/proc/{self.holders[seat].pid}/ns/net", os.O_RDONLY)
        try:
            if ctypes.CDLL(None, use_errno=True).setns(descriptor, _NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
        finally:
            os.close(descriptor)
        return str(IPv4Address(_RANKS_FROM + seat))

    def ways(self, program: Program) -> Mapping[Wire, Way]:
        """Return how messages on the connections of a `program` travel.

        Raises ProgramError when a connection has no link.
        """
        return {
            Wire(each.src, each.dst, each.channel): self.shown[each.link]
            for each in wire(program, self.topology).connections
            if each.link != ROUTED
        }


def _hold(pipe: Connection) -> None:
    """Be a process in a network namespace of its own until the pipe is closed."""
    failed = ctypes.CDLL(None, use_errno=True).unshare(_NEWNET)
    pipe.send(ctypes.get_errno() if failed else 0)
    pipe.recv()


def check_emulation(topology: Topology) -> None:
    """Refuse what can't be emulated here.

    Raises InputError when this is no Linux, the user is not root, a tool is missing, or the
    `topology` is too large.
    """
    field = "--emulate"
    if not hasattr(os, "geteuid") or not Path("/proc/self/ns/net").exists():
        raise InputError("needs Linux", field=field, fix="leave it out")
    if os.geteuid() != 0:
        raise InputError(
            "needs root: it makes network namespaces", field=field, fix="run it with sudo"
        )
    for tool, package in (("ip", "iproute2"), ("tc", "iproute2"), ("nsenter", "util-linux")):
        if shutil.which(tool) is None:
            raise InputError(
                f"needs {tool}, which is not there", field=field,
                fix=f"install it, such as by apt-get install {package}",
            )  # fmt: skip
    vertices = topology.num_ranks + len(topology.switches)
    if vertices > MAX_VERTICES or len(topology.links) > MAX_LINKS:
        raise InputError(
            f"{topology.name} has {vertices} ranks and switches and {len(topology.links)} links; at"
            f" most {MAX_VERTICES} and {MAX_LINKS} can be emulated", field=field,
            fix="emulate fewer servers (--nodes)",
        )  # fmt: skip


@contextmanager
def emulated(topology: Topology) -> Iterator[Emulated]:
    """Give a machine like a `topology`, until it is left.

    Raises InputError when it can't be emulated here.
    """
    check_emulation(topology)
    holders: list[Started] = []
    try:
        for _ in range(topology.num_ranks + len(topology.switches) + 1):
            holders.append(start_rank(_hold, [each.pipe for each in holders]))
        for holder in holders:
            if failed := holder.pipe.recv():
                raise InputError(
                    f"can't make a network namespace: {os.strerror(failed)}", field="--emulate",
                    fix="run it as root, in a container that may",
                )  # fmt: skip
        _wire_up(topology, holders)
        shown = {
            number: Way(
                _address(2 * number), _address(2 * number + 1),
                int(topology.links.alpha[number]) // 1000, SEND_BUFFER,
            )
            for number in range(len(topology.links))
        }  # fmt: skip
        yield Emulated(topology, tuple(holders), shown, tuple(range(topology.num_ranks)))
    finally:
        end_ranks(holders)


def _address(number: int) -> str:
    """Return an address of a link: the sender's has an even number."""
    return str(IPv4Address(_LINKS_FROM + number))


def fabric_address(rank: int) -> str:
    """Return the address at which other programs reach a `rank` over the links of the machine.

    It is that of the interface ``fabric``; what is sent to it, acknowledgements as well, takes the
    first link of a pair, and has no latency added.
    """
    return str(IPv4Address(_FABRIC_FROM + rank))


def _mac(kind: int, number: int) -> str:
    return f"02:{kind:02x}:00:00:{number >> 8:02x}:{number & 255:02x}"


def _wire_up(topology: Topology, holders: Sequence[Started]) -> None:
    """Make the interfaces, addresses, routes and shapers of all namespaces."""
    ranks, bridge = topology.num_ranks, len(holders) - 1
    commands: list[list[str]] = [[] for _ in holders]
    shapers: list[list[str]] = [[] for _ in holders]
    for own in commands:
        own.append("link set lo up")
    for edge in topology.edges:
        tail, head = f"e{edge.id}t", f"e{edge.id}h"
        commands[edge.tail] += [
            f"link add {tail} address {_mac(1, edge.id)} type veth peer name {head}"
            f" address {_mac(2, edge.id)} netns {holders[edge.head].pid}",
            f"link set {tail} up",
        ]
        if edge.beta is not None:
            rate = 10**12 / edge.beta * FRAME / PAYLOAD
            burst = max(LEAST_BURST, int(rate * BURST_TIME) + FRAME)
            shapers[edge.tail].append(
                f"qdisc add dev {tail} root tbf rate {max(1, int(8 * rate))}bit burst {burst}"
                " latency 1s"
            )
    commands[bridge] += ["link add hub type bridge stp_state 0 forward_delay 0", "link set hub up"]
    for rank in range(ranks):
        commands[bridge] += [
            f"link add r{rank} type veth peer name hub address {_mac(3, rank)}"
            f" netns {holders[rank].pid}",
            f"link set r{rank} master hub up",
        ]
        commands[rank] += ["link add fabric type bridge stp_state 0", "link set fabric up"]
    # Interfaces have to be there before what names them: in a second round.
    later: list[list[str]] = [[] for _ in holders]
    for edge in topology.edges:
        later[edge.head].append(f"link set e{edge.id}h up")
    for rank in range(ranks):
        later[rank] += [f"addr add {IPv4Address(_RANKS_FROM + rank)}/16 dev hub", "link set hub up"]
        later[rank] += [
            f"neigh add {IPv4Address(_RANKS_FROM + other)} lladdr {_mac(3, other)} dev hub"
            " nud permanent"
            for other in range(ranks)
            if other != rank
        ]
    for edge in topology.edges:
        later[edge.tail].append(
            f"neigh add {_NEXT_HOP} lladdr {_mac(2, edge.id)} dev e{edge.id}t nud permanent"
        )
    for rank in range(ranks):
        later[rank].append(f"addr add {fabric_address(rank)}/32 dev fabric")
    routed: set[tuple[int, int]] = set()
    for number in range(len(topology.links)):
        link = topology.link(number)
        source, target = _address(2 * number), _address(2 * number + 1)
        later[link.src].append(f"addr add {source}/32 dev lo")
        later[link.dst].append(f"addr add {target}/32 dev lo")
        for edge_id in link.edges:
            vertex = topology.edges[edge_id].tail
            later[vertex].append(f"route add {target}/32 via {_NEXT_HOP} dev e{edge_id}t onlink")
        vertices = [topology.edges[edge].tail for edge in link.edges]
        for vertex, edge_id in zip(vertices, link.edges, strict=True):
            if (vertex, link.dst) not in routed:
                routed.add((vertex, link.dst))
                source_ = f" src {fabric_address(vertex)}" if vertex < ranks else ""
                later[vertex].append(
                    f"route add {fabric_address(link.dst)}/32 via {_NEXT_HOP} dev e{edge_id}t"
                    f" onlink{source_}"
                )
        later[link.dst].append(
            f"route add {source}/32 via {IPv4Address(_RANKS_FROM + link.src)} dev hub"
        )
    for holder, first in zip(holders, commands, strict=True):
        _batch(holder, "ip", first)
    for holder, second, third in zip(holders, later, shapers, strict=True):
        _batch(holder, "ip", second)
        _batch(holder, "tc", third)
        _inside(holder, ["sysctl", "-qw", "net.ipv4.ip_forward=1"])


def _batch(holder: Started, tool: str, lines: Iterable[str]) -> None:
    text = "\n".join(lines)
    if text:
        _inside(holder, [tool, "-batch", "-"], text)


def _inside(holder: Started, command: Sequence[str], text: str = "") -> None:
    """Run a command in a namespace.

    Raises InputError when it fails: something is missing in this kernel.
    """
    done = subprocess.run(
        ["nsenter", "--net", "--target", str(holder.pid), *command],
        input=text, text=True, capture_output=True, check=False,
    )  # fmt: skip
    if done.returncode:
        told = " ".join(done.stderr.split())[:200]
        raise InputError(
            f"{command[0]} can't make the network: {told}", field="--emulate",
            fix="see whether this kernel has veth, bridges and tbf",
        )  # fmt: skip

"""Ranks over TCP: processes that are forked here, or started anywhere with variables that say who.

Every rank listens at a port of its own. The sender of a connection opens it, and says in a first
line which one it is. Where ranks run in namespaces of an emulated machine, a message leaves from
and goes to addresses of its link; else addresses are those by which the hub knows the ranks.
"""

import json
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from types import MappingProxyType

from taccl.errors import RunError
from taccl.run.job import Call, Job, Ran
from taccl.run.messages import End, HubClient, Mesh, Sockets, be_rank, hub
from taccl.run.plan import Wire
from taccl.run.processes import Started, compiled, end_ranks, how_ended, start_rank
from taccl.timing.deadline import Deadline

OPENING = 20.0
"""Seconds in which all ranks have to be connected."""

SEND_BUFFER = 1 << 16
"""Bytes of a connection that wait in the kernel: more would be messages beyond the slots."""


@dataclass(frozen=True, slots=True)
class Way:
    """How messages of a pair travel.

    `source`: address that the sender sends from; empty: any.
    `target`: address at which the receiver has them.
    `latency`: nanoseconds from when one has come until it is shown.
    `buffer`: bytes of each that wait in the kernel, as of :data:`SEND_BUFFER`.
    """

    source: str
    target: str
    latency: int = 0
    buffer: int = SEND_BUFFER


Ways = Mapping[Wire, Way]
"""From connections to how their messages travel; those of others travel from host to host."""


def stay(_rank: int) -> str:
    """Leave a rank where it is, and return its address."""
    return "127.0.0.1"


def carry_over_tcp(
    rank: int, told: HubClient, host: str, ways: Ways
) -> Callable[[Sequence[End]], Sockets]:
    """Return what opens the TCP connections of a `rank` and brings messages over them.

    `told`: the hub, through which ranks learn where the others are.
    `host`: the address that this rank has for those with no way of their own.
    `ways`: how messages of a pair travel.
    """

    def carry(ends: Sequence[End]) -> Sockets:
        with socket.create_server(("", 0), backlog=1024) as listener:
            places = told.exchange([host, listener.getsockname()[1]])
            made: dict[tuple[Wire, bool], socket.socket] = {}
            for end in ends:
                if not end.out:
                    continue
                address, port = places[end.wire.dst]
                sock = _connected(ways.get(end.wire, Way("", address)), port)
                sock.sendall(json.dumps(end.wire).encode() + b"\n")
                made[end.wire, True] = sock
            deadline = Deadline.after(OPENING)
            waiting = {end.wire for end in ends if not end.out}
            while waiting:
                listener.settimeout(max(0.01, deadline.left))
                try:
                    sock, _ = listener.accept()
                except TimeoutError:
                    raise RunError(
                        f"rank {min(waiting).src} has not reached rank {rank} in {OPENING:g} s",
                        fix="see whether a firewall is between them",
                    ) from None
                wire = _hello(sock)
                if wire in waiting:
                    waiting.discard(wire)
                    made[wire, False] = sock
                else:
                    sock.close()
        sockets = [made[end.wire, end.out] for end in ends]
        for end, sock in zip(ends, sockets, strict=True):
            sock.settimeout(0)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            found = ways.get(end.wire)
            end.latency = found.latency if found else 0
        return Sockets(ends, sockets, told)

    return carry


def _connected(way: Way, port: int) -> socket.socket:
    """Return a connection to a port at the end of a way."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, way.buffer)
        if way.source:
            sock.bind((way.source, 0))
        sock.settimeout(OPENING)
        sock.connect((way.target, port))
    except OSError as error:
        sock.close()
        raise RunError(
            f"can't connect to {way.target} port {port}: {error.strerror or error}",
            fix="see whether a firewall is between them",
        ) from None
    return sock


def _hello(sock: socket.socket) -> Wire | None:
    """Return the connection that a new socket is of; None: somebody else's."""
    sock.settimeout(OPENING)
    text = b""
    with suppress(OSError, ValueError, TypeError):
        # Byte by byte: what follows the line is the first message.
        while not text.endswith(b"\n") and len(text) < 100:
            more = sock.recv(1)
            if not more:
                return None
            text += more
        return Wire(*map(int, json.loads(text)))
    return None


def run_over_tcp(
    job: Job, calls: Sequence[Call], ways: Ways = MappingProxyType({}),
    enter: Callable[[int], str] = stay,
) -> list[Ran]:  # fmt: skip
    """Run a program with a process a rank on this machine, messages over TCP; say what becomes.

    `job`, `calls`: what is run.
    `ways`: how messages of a pair travel.
    `enter`: moves a process, whose rank is given, to where it belongs, and returns its address.

    Raises RunError when a rank is gone, or all wait for one another.
    """

    def body(pipe: Connection, rank: int) -> None:
        told = HubClient(pipe)
        with suppress(RunError):
            be_rank(Mesh(rank, told, carry_over_tcp(rank, told, enter(rank), ways)), job, calls)

    compiled()
    ranks: list[Started] = []
    try:
        for rank in range(job.program.num_ranks):
            ranks.append(start_rank(partial(body, rank=rank), [each.pipe for each in ranks]))
        return hub(
            [rank.pipe for rank in ranks], job, calls, lambda rank: how_ended(ranks[rank])
        )  # fmt: skip
    finally:
        end_ranks(ranks)

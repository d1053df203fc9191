"""Ranks that exchange messages: over TCP, on one machine or several, or over MPI.

Each end of a connection is a ring of slots in its rank's own memory. The event loop fills and
empties slots as it does in shared memory; whoever carries messages takes full slots out of the
rings of those who send and puts them into the rings of those who receive. On a network that is
emulated, what has come is shown to the event loop only after the latency of its link.

All ranks do the same, in the same order. What they tell one another beside the data (addresses,
that they have come to a point, times) goes through a hub, which sends to all what each has said. A
rank that is gone, or that waits too long, is told to all by the hub.

Ranks over TCP are processes that are forked here, or started anywhere with variables that say who.
Every rank listens at a port of its own. The sender of a connection opens it, and says in a first
line which one it is. Where ranks run in namespaces of an emulated machine, a message leaves from
and goes to addresses of its link; else addresses are those by which the hub knows the ranks.
"""

import hashlib
import heapq
import json
import select
import socket
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from types import MappingProxyType
from typing import Any, Protocol, cast

import numpy as np

from taccl.errors import RunError
from taccl.msccl.program import Program
from taccl.replay.cost import ReplayModel
from taccl.run import loop
from taccl.run.job import DTYPES, VERIFY, Bytes, Call, Job, Ran, fill, reference, wrong_elements
from taccl.run.loop import RankPlan, Wire, message_bytes, plan_of, rank_of
from taccl.run.processes import (
    LINE,
    Started,
    compiled,
    end_ranks,
    how_ended,
    start_rank,
    waits_told,
)
from taccl.timing.deadline import Deadline, nanoseconds

HEADER = struct.Struct("<q")
"""What goes before a message over TCP: its bytes."""

MAX_TOLD = 64 << 20
"""Bytes of one thing that a rank tells the others."""


def hub(
    ranks: Sequence[Connection], job: Job, calls: Sequence[Call],
    ended: Callable[[int], str] = lambda _rank: "is gone",
) -> list[Ran]:  # fmt: skip
    """Send to all what each has said, again and again, until all have left; return what became.

    `ranks`: connections to them, by rank.
    `job`, `calls`: what they run.
    `ended`: says how a rank has ended that is gone.

    Raises RunError when a rank is gone, or all wait for one another.
    """
    said: dict[int, Any] = {}
    states: dict[int, Any] = {}
    rank_of_pipe = {pipe: rank for rank, pipe in enumerate(ranks)}
    found: list[Ran] = []
    trouble = lost = ""
    while rank_of_pipe and not trouble:
        patience = ASKED if states else None
        ready = wait(list(rank_of_pipe), timeout=REASON if lost else patience)
        trouble = "" if ready else lost
        if states and not ready:
            trouble = trouble or standstill(
                job, calls, [states.get(rank) for rank in range(len(ranks))]
            )
        for one in ready:
            pipe = cast("Connection", one)
            rank = rank_of_pipe[pipe]
            try:
                kind, value = json.loads(pipe.recv_bytes(MAX_TOLD))
            except (EOFError, OSError, ValueError):
                del rank_of_pipe[pipe]
                kind, value = "failed", f"{ended(rank)}, and the others with it"
            if kind == "failed" and value.endswith(LOST):
                # Whoever closed it may say why.
                lost = lost or f"rank {rank} {value}"
                rank_of_pipe.pop(pipe, None)
            elif kind == "failed":
                trouble = trouble or f"rank {rank} {value}"
            elif kind == "said":
                said[rank] = value
            elif kind == "result":
                times, wrong, logs = value
                rows = (np.array(log, np.int64).reshape(-1, loop.LOG_FIELDS) for log in logs)
                found.append(Ran(calls[len(found)], tuple(times), wrong, tuple(rows)))
            elif kind == "left":
                del rank_of_pipe[pipe]
            elif kind == "state":
                if not states:
                    _send_all(rank_of_pipe, ["tell", None])
                states[rank] = value
        if len(states) == len(ranks):
            trouble = trouble or standstill(job, calls, [states[r] for r in range(len(ranks))])
        if len(said) == len(ranks):
            values, said = [said[rank] for rank in range(len(ranks))], {}
            _send_all(rank_of_pipe, ["all", values])
    trouble = trouble or lost
    if trouble:
        end_all(rank_of_pipe, trouble)
        raise RunError(trouble, fix=VERIFY if "waits for" in trouble else "run it again")
    return found


def standstill(job: Job, calls: Sequence[Call], states: Sequence[Any]) -> str:
    """Return who waits for whom.

    `job`, `calls`: what is run.
    `states`: the number of the call and the rows of the threadblocks of each rank; None where a
    rank did not answer.
    """
    mute = [rank for rank, state in enumerate(states) if state is None]
    if mute:
        ranks = ", ".join(map(str, mute[:8]))
        return f"rank{'s' if len(mute) > 1 else ''} {ranks} did nothing, and did not answer"
    plans = [
        plan_of(
            job.program, rank, calls[number].size, in_place=calls[number].in_place, model=job.model
        )
        for rank, (number, _) in enumerate(states)
    ]
    rows = [np.array(own, np.int64).reshape(-1, loop.BLOCK_FIELDS) for _, own in states]
    return waits_told(job, plans, rows)


LOST = "closed its connection"
"""How what a rank says of another ends that has gone, which the other may know more of."""

REASON = 1.0
"""Seconds in which the other may say it."""

ASKED = 2.0
"""Seconds in which ranks have to say where they are, when one says that nothing goes on."""


def end_all(pipes: Iterable[Connection], trouble: str) -> None:
    """Tell ranks, over `pipes` to them, that all end because of a `trouble`."""
    _send_all(pipes, ["end", trouble])


def _send_all(pipes: Iterable[Connection], value: object) -> None:
    text = json.dumps(value).encode()
    # The first last: the hub may be a thread of its process, which would not let it go on.
    for pipe in reversed(list(pipes)):
        with suppress(OSError):
            pipe.send_bytes(text)


class ToldByHubError(RunError):
    """An error that the hub has told all ranks: its own rank says it to the user."""


class HubClient:
    """A rank's side of the hub, over a `pipe` to it."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe

    def _read(self, state: Callable[[], object] | None) -> list[Any] | None:
        try:
            kind, value = json.loads(self.pipe.recv_bytes(MAX_TOLD))
        except (EOFError, OSError):
            raise RunError("whoever started the ranks is gone", fix="run it again") from None
        if kind == "end":
            raise ToldByHubError(value, fix=VERIFY if "waits for" in value else "run it again")
        if kind == "tell":
            self._say("state", state() if state else None)
            return None
        return list(value)

    def _say(self, kind: str, value: object) -> None:
        try:
            self.pipe.send_bytes(json.dumps([kind, value]).encode())
        except OSError:
            self._read(None)
            raise RunError("whoever started the ranks is gone", fix="run it again") from None

    def exchange(self, value: object) -> list[Any]:
        """Give a value and return those of all ranks, by rank.

        Raises RunError when a rank is gone, or all wait for one another.
        """
        self._say("said", value)
        while (values := self._read(None)) is None:
            pass
        return values

    def watched(self) -> Sequence[int]:
        """Return the descriptor of the pipe to the hub."""
        return [self.pipe.fileno()]

    def look(self, state: Callable[[], object]) -> None:
        """Answer the hub's question for the `state` of this rank, if there is one.

        Raises RunError when the hub ends all.
        """
        if self.pipe.poll():
            self._read(state)

    def give_up(self, state: Callable[[], object]) -> None:
        """Tell the hub that nothing goes on here, and the `state` of this rank.

        Raises RunError: what the hub makes of it.
        """
        self._say("state", state())
        while True:
            self._read(state)

    def report(self, ran: Ran) -> None:
        """Tell the hub what became of a call."""
        self._say("result", [ran.times, ran.wrong, [log.tolist() for log in ran.logs]])

    def leave(self, problem: str = "") -> None:
        """Tell the hub that this rank ends, and what the `problem` is, if there is one."""
        with suppress(OSError):
            self._say("failed" if problem else "left", problem)


@dataclass(slots=True, eq=False)
class End:
    """One end of a connection: its ring, and how far the messages of it have got.

    `wire`, `out`: which connection, and whether this rank sends on it.
    `counters`: how many messages were put in and taken out.
    `lengths`, `slots`: bytes of the message in each slot, and the slots.
    `moved`: messages that were sent, or that have come.
    `at`: bytes of the next one that were moved already, its header among them.
    `head`: its header.
    `latency`: nanoseconds from when a message has come until it is shown.
    """

    wire: Wire
    out: bool
    counters: loop.Rows
    lengths: loop.Rows
    slots: list[memoryview]
    moved: int = 0
    at: int = 0
    head: bytearray = field(default_factory=lambda: bytearray(HEADER.size))
    latency: int = 0

    @property
    def full(self) -> bool:
        """Whether no slot is free for what comes."""
        return self.moved - int(self.counters[1]) >= len(self.slots)


class Carrier(Protocol):
    """What brings messages from rings to rings."""

    def push(self) -> bool:
        """Send what can be sent without waiting; tell whether that freed a slot."""

    def pull(self, timeout: float) -> bool:
        """Wait so many seconds at most until something moves; tell whether the loop can go on."""

    def idle(self) -> bool:
        """Tell whether everything that was put in has been sent."""

    def close(self) -> None:
        """End all connections."""


class Sockets:
    """Messages over TCP: a connection of a program is one of TCP.

    `ends` are the rank's, `sockets` theirs, in the same order; `told` is watched meanwhile.
    """

    def __init__(
        self, ends: Sequence[End], sockets: Sequence[socket.socket], told: HubClient
    ) -> None:
        self.out = {sock: end for end, sock in zip(ends, sockets, strict=True) if end.out}
        self.into = {sock: end for end, sock in zip(ends, sockets, strict=True) if not end.out}
        self.coming: list[tuple[int, int, End]] = []
        self.told, self.came = told, 0
        self.blocked: set[socket.socket] = set()

    def push(self) -> bool:
        """Send what the network takes now; tell whether that freed a slot."""
        freed = False
        for sock, end in self.out.items():
            while end.moved < end.counters[0]:
                slot = end.moved % len(end.slots)
                size = int(end.lengths[slot])
                parts: list[bytes | memoryview]
                if end.at < HEADER.size:
                    parts = [HEADER.pack(size)[end.at :], end.slots[slot][:size]]
                else:
                    parts = [end.slots[slot][end.at - HEADER.size : size]]
                try:
                    end.at += sock.sendmsg(parts)
                except BlockingIOError:
                    self.blocked.add(sock)
                    break
                except OSError as error:
                    raise RunError(
                        f"the connection to rank {end.wire.dst} broke: {error.strerror}",
                        fix="run it again",
                    ) from None
                self.blocked.discard(sock)
                if end.at == HEADER.size + size:
                    end.at = 0
                    end.moved += 1
                    end.counters[1] = end.moved
                    freed = True
        return freed

    def pull(self, timeout: float) -> bool:
        """Wait for the network, or for what has come to be shown."""
        shown = self._show()
        if not shown:
            if self.coming:
                left = (self.coming[0][0] - nanoseconds()) / 1e9
                timeout = max(0.0, min(timeout, left))
            taking = [sock for sock, end in self.into.items() if not end.full]
            watched: list[socket.socket | int] = [*taking, *self.told.watched()]
            ready, writable, _ = select.select(watched, list(self.blocked), [], timeout)
            for sock in ready:
                if isinstance(sock, socket.socket):
                    self._read(sock, self.into[sock])
            freed = self.push() if writable else False
            shown = self._show() or freed
        return shown

    def _read(self, sock: socket.socket, end: End) -> None:
        while not end.full:
            slot = end.moved % len(end.slots)
            try:
                if end.at < HEADER.size:
                    got = sock.recv_into(memoryview(end.head)[end.at :])
                else:
                    (size,) = HEADER.unpack(end.head)
                    if not 0 <= size <= len(end.slots[slot]):
                        raise RunError(
                            f"rank {end.wire.src} sent a message of {size} bytes, the longest can"
                            f" have {len(end.slots[slot])}", fix=VERIFY,
                        )  # fmt: skip
                    place = end.slots[slot][end.at - HEADER.size : size]
                    got = sock.recv_into(place) if len(place) else 0
            except BlockingIOError:
                return
            except ConnectionError:
                got = 0
            if got == 0 and not self._complete(end):
                raise RunError(
                    f"has lost rank {end.wire.src}, which {LOST}", fix="run it again"
                )  # fmt: skip
            end.at += got
            if self._complete(end):
                (size,) = HEADER.unpack(end.head)
                end.lengths[slot] = size
                end.at = 0
                end.moved += 1
                self.came += 1
                when = nanoseconds() + end.latency
                heapq.heappush(self.coming, (when, self.came, end))

    @staticmethod
    def _complete(end: End) -> bool:
        return end.at >= HEADER.size and end.at == HEADER.size + HEADER.unpack(end.head)[0]

    def _show(self) -> bool:
        """Show the messages whose time has come."""
        shown, now = False, nanoseconds() if self.coming else 0
        while self.coming and self.coming[0][0] <= now:
            heapq.heappop(self.coming)[2].counters[0] += 1
            shown = True
        return shown

    def idle(self) -> bool:
        """Tell whether the network has taken everything."""
        return all(end.moved == end.counters[0] for end in self.out.values())

    def close(self) -> None:
        """Close the sockets."""
        for sock in (*self.out, *self.into):
            sock.close()


@dataclass(frozen=True, slots=True, eq=False)
class Mesh:
    """What a rank needs to exchange messages.

    `rank`: its number.
    `told`: the hub, through which it tells the others what is no data.
    `carry`: from the ends of its connections to what brings their messages.
    """

    rank: int
    told: HubClient
    carry: Callable[[Sequence[End]], Carrier]


def run_rank(mesh: Mesh, job: Job, calls: Sequence[Call]) -> Iterator[Ran]:
    """Run a program as one of its ranks, and yield what becomes of each call, on all ranks.

    `mesh`: what brings messages to the others.
    `job`, `calls`: what is run, one call after the other; all ranks give the same.

    Raises RunError when a rank is gone, or all wait for one another.
    """
    told, program, model = mesh.told, job.program, job.model
    digest = hashlib.sha256(repr((program, calls, model)).encode()).hexdigest()
    digests = told.exchange(digest)
    if len(digests) != program.num_ranks:
        raise RunError(
            f"the program is for {program.num_ranks} ranks, and {len(digests)} were started",
            fix=f"start {program.num_ranks}",
        )
    if len(set(digests)) > 1:
        other = next(rank for rank, found in enumerate(digests) if found != digests[0])
        raise RunError(
            f"rank {other} has another program, or other options, than rank 0",
            fix="give all ranks the same file and options",
        )
    run = compiled()
    for number, call in enumerate(calls):
        plans = [
            plan_of(program, rank, call.size, in_place=call.in_place, model=model)
            for rank in range(program.num_ranks)
        ]
        plan = plans[mesh.rank]
        ends, made, memory = _prepared(program, plan, call, model)
        carrier = mesh.carry(ends)
        play = Play(number, made, carrier, told, job.patience, run)
        fill(memory, plan.memory, call.dtype, mesh.rank)
        told.exchange(None)
        play.once()
        lost = told.exchange(sum(int(e.counters[0] - e.counters[1]) for e in ends if not e.out))
        if any(lost):
            raise RunError(f"{sum(lost)} messages were sent that nobody received", fix=VERIFY)
        wanted = reference(job, call, plans)
        wrong = told.exchange(None if wanted is None else wrong_elements(
            memory, plan.memory, wanted[mesh.rank], call.dtype
        ))  # fmt: skip
        times = []
        for _ in range(call.repeats):
            told.exchange(None)
            if call.calls > 1:
                # The data brings ranks closer together than the hub can.
                play.once()
            began = nanoseconds()
            for _ in range(call.calls):
                play.once()
            times.append([began, nanoseconds()])
        spans = zip(*told.exchange(times), strict=True)
        own = np.zeros((call.logged, loop.LOG_FIELDS), np.int64)
        logs: list[Any] = []
        if call.logged:
            told.exchange(None)
            play.made = made._replace(log=own)
            made.control[loop.LOGGED] = 0
            play.once()
            logs = told.exchange(own[: made.control[loop.LOGGED]].tolist())
        yield Ran(
            call, tuple(elapsed(each) / call.calls for each in spans),
            None if None in wrong else sum(wrong),
            tuple(np.array(rows, np.int64).reshape(-1, loop.LOG_FIELDS) for rows in logs),
        )  # fmt: skip
        told.exchange(None)
        carrier.close()


def be_rank(mesh: Mesh, job: Job, calls: Sequence[Call]) -> None:
    """Run a program as one of its ranks, tell the hub what became of each call, and leave.

    `mesh`, `job`, `calls` are as for :func:`run_rank`.

    Raises RunError when a rank is gone, or all wait for one another; the hub knows.
    """
    try:
        for ran in run_rank(mesh, job, calls):
            if mesh.rank == 0:
                mesh.told.report(ran)
    except RunError as error:
        mesh.told.leave(error.problem)
        raise
    mesh.told.leave()


def elapsed(spans: Sequence[Sequence[int]]) -> int:
    """Return how long a measurement took, by when it began and ended on each rank.

    `spans` are in nanoseconds. Clocks of one machine are one clock. Those of several may differ by
    anything: there, the longest of the ranks' own times is taken.
    """
    first, last = min(begin for begin, _ in spans), max(end for _, end in spans)
    longest = max(end - begin for begin, end in spans)
    return last - first if last - first < 2 * longest else longest


def _prepared(
    program: Program, plan: RankPlan, call: Call, model: ReplayModel
) -> tuple[list[End], loop.Rank, Bytes]:
    """Return the ends of a rank's connections, what it runs, and its memory."""
    stride = message_bytes(program, call.size, model)
    stride += -stride % LINE
    slots = plan.cut.slots
    words = np.zeros((len(plan.ends), 2 + slots), np.int64)
    rings = np.zeros((len(plan.ends), slots, stride), np.uint8)
    rows = np.zeros((len(plan.ends), loop.CONNECTION_FIELDS), np.int64)
    ends = []
    for number, (wire, out) in enumerate(plan.ends):
        at = words[number].ctypes.data
        rows[number] = (at, at + 8, at + 16, rings[number].ctypes.data, 0, 0)
        views = [memoryview(slot) for slot in rings[number]]
        ends.append(End(wire, out, words[number, :2], words[number, 2:], views))
    flags = np.zeros(1, np.int64)
    control = np.zeros(loop.CONTROLS, np.int64)
    control[loop.SLOTS], control[loop.STRIDE] = slots, stride
    control[loop.ABORT], control[loop.DTYPE] = flags.ctypes.data, DTYPES[call.dtype].code
    memory = np.zeros(plan.memory.size + LINE, np.uint8)
    memory = memory[-memory.ctypes.data % LINE :][: plan.memory.size]
    made = rank_of(
        plan, memory.ctypes.data, rows, control, np.zeros((0, loop.LOG_FIELDS), np.int64)
    )
    _KEPT[:] = [words, rings, flags]
    return ends, made, memory


_KEPT: list[Any] = []
"""Arrays of which machine code has the addresses."""


@dataclass(slots=True, eq=False)
class Play:
    """One rank's part of a program, run again and again.

    `number`: of the call.
    `made`: its rows.
    `carrier`: what brings messages.
    `told`: how to tell of a standstill.
    `patience`: seconds without a step.
    `run`: the compiled event loop.
    """

    number: int
    made: loop.Rank
    carrier: Carrier
    told: HubClient
    patience: float
    run: Callable[..., int]

    def state(self) -> object:
        """Return the number of the call, and how far the threadblocks are."""
        return [self.number, self.made.blocks.tolist()]

    def once(self) -> None:
        """Run it once, until all it sends is on its way.

        Raises RunError when a message has another length than its step, or nothing goes on.
        """
        status, deadline = self.run(self.made, 1, 0), Deadline.after(self.patience)
        before, carrier = -1, self.carrier
        while status == loop.WAITING or not carrier.idle():
            if carrier.push() or carrier.pull(0.2):
                if status == loop.WAITING:
                    status = self.run(self.made, 0, 0)
            else:
                self.told.look(self.state)
                if deadline.over:
                    self.told.give_up(self.state)
            if self.made.control[loop.PROGRESS] != before:
                before = self.made.control[loop.PROGRESS]
                deadline = Deadline.after(self.patience)
        if status == loop.WRONG_LENGTH:
            wanted, found = (
                int(self.made.control[at]) for at in (loop.LENGTH_WANTED, loop.LENGTH_FOUND)
            )
            raise RunError(
                f"should receive {wanted} bytes, and the message has {found}", fix=VERIFY
            )


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

"""Ranks on several hosts: started over ssh, by a launcher that says who is who, or by that of MPI.

Over ssh, this process is the hub: it listens at a port, starts every rank with the port, a key and
its number in the environment, and gathers what rank 0 reports. Under a launcher (torchrun, srun,
mpirun) every process is a rank that learns its number and the address of the first from variables;
the first is the hub as well, in a thread. Who can't prove the key is not let in, and what is said
is JSON.

Over MPI, a message has its channel as the tag.
"""

import os
import secrets
import shlex
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, answer_challenge, deliver_challenge
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taccl.errors import InputError, RunError
from taccl.run.job import Call, Job, Ran
from taccl.run.messages import (
    OPENING,
    Carrier,
    End,
    HubClient,
    Mesh,
    ToldByHubError,
    be_rank,
    carry_over_tcp,
    end_all,
    hub,
)
from taccl.run.processes import compiled
from taccl.timing.deadline import Deadline

if TYPE_CHECKING:
    from mpi4py import MPI

VARIABLES: Mapping[str, tuple[str, ...]] = {
    "rank": ("TACCL_RANK", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"),
    "count": (
        "TACCL_RANKS", "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS",
    ),
    "address": ("TACCL_HUB", "MASTER_ADDR", "SLURM_LAUNCH_NODE_IPADDR"),
    "port": ("TACCL_PORT", "MASTER_PORT"),
}  # fmt: skip
"""Environment variables that say who a rank is, those of taccl first, then those of launchers."""

KEY = "TACCL_KEY"
LOCAL = ("localhost", "127.0.0.1")


@dataclass(frozen=True, slots=True)
class Launched:
    """Who this process is among the ranks that a launcher has started.

    It is `rank` of `count`; the hub listens at `address` and `port`, and `here` says whether it is
    this rank's to be the hub. Ranks that know the `key` are let in.
    """

    rank: int
    count: int
    address: str
    port: int
    here: bool
    key: bytes


def launched(environment: Mapping[str, str]) -> Launched:
    """Return who this process is, as its `environment` says.

    Raises InputError when a variable is missing or no number.
    """
    found: dict[str, str] = {}
    for what, names in VARIABLES.items():
        name = next((name for name in names if environment.get(name)), None)
        if name is None:
            raise InputError(
                f"no variable says the {what} of this process", field="--launched",
                fix=f"set one of {', '.join(names)}, or start it by torchrun or srun",
            )  # fmt: skip
        found[what] = environment[name]
        if what != "address" and not found[what].isdecimal():
            raise InputError(
                f"{name} should be a number, got {found[what][:40]!r}", field="--launched",
                fix="set it to one",
            )  # fmt: skip
    rank, count, port = (int(found[what]) for what in ("rank", "count", "port"))
    if rank >= count or not 0 < port < 1 << 16:
        raise InputError(
            f"rank {rank} of {count} at port {port} can't be", field="--launched",
            fix="count ranks from 0, and give a port from 1 to 65535",
        )  # fmt: skip
    here = rank == 0 and "TACCL_HUB" not in environment
    key = environment.get(KEY, "taccl").encode()
    return Launched(rank, count, found["address"], port, here, key)


def parse_hosts(text: str) -> list[str]:
    """Return the host of each rank of ``--hosts a:4,b:4``; a host alone has one.

    Raises InputError when the text is something else.
    """
    found: list[str] = []
    for part in text.split(","):
        host, _, count = part.strip().partition(":")
        if not host or host.startswith("-") or not (count or "1").isdecimal():
            raise InputError(
                f"should be hosts with their ranks, got {part[:40]!r}", field="--hosts",
                fix="write a:4,b:4",
            )  # fmt: skip
        found += [host] * int((count or "1")[:6])
        if len(found) > 4096:
            raise InputError("names over 4096 ranks", field="--hosts", fix="give fewer")
    return found


def listening(address: str, port: int, field: str) -> socket.socket:
    """Return what listens for ranks at an `address` and `port` (0: any).

    Raises InputError, at the option `field`, when the port is in use.
    """
    try:
        return socket.create_server((address, port), backlog=4096)
    except OSError as error:
        raise InputError(
            f"can't listen at {address or 'any address'} port {port}: {error.strerror}",
            field=field, fix="choose another port (MASTER_PORT)",
        ) from None  # fmt: skip


def _let_in(sock: socket.socket, key: bytes) -> tuple[Connection, int, int]:
    """Return a connection to whoever asks next and knows the key, its rank, and of how many.

    Raises TimeoutError when nobody asks; OSError, EOFError, ValueError or AuthenticationError when
    it is somebody else, who has little time to say anything at all.
    """
    one, _ = sock.accept()
    one.settimeout(None)
    patience = struct.Struct("ll")
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, patience.pack(SILENCE, 0))
    pipe = Connection(one.detach())
    try:
        deliver_challenge(pipe, key)
        answer_challenge(pipe, key)
        rank, count = map(int, pipe.recv_bytes(100).split())
    except BlockingIOError:
        raise EOFError from None
    with socket.socket(fileno=os.dup(pipe.fileno())) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, patience.pack(0, 0))
    return pipe, rank, count


SILENCE = 5
"""Seconds that one who asks to be let in may be silent."""


def gathered(sock: socket.socket, count: int, key: bytes) -> list[Connection]:
    """Return connections to all ranks, by rank, once they have all come and proved the key.

    `sock`: where they ask.
    `count`: ranks there are.
    `key`: what they know.

    Raises RunError when some don't come in time, or two are the same.
    """
    ranks: dict[int, Connection] = {}
    come: list[Connection] = []
    deadline = Deadline.after(OPENING)
    trouble = ""
    while len(ranks) < count and not trouble:
        sock.settimeout(max(0.05, deadline.left))
        try:
            pipe, rank, ranks_known = _let_in(sock, key)
        except TimeoutError:
            missing = next(rank for rank in range(count) if rank not in ranks)
            trouble = f"{len(ranks)} of {count} ranks have come in {OPENING:g} s; rank {missing}"
            trouble += " has not"
        except (AuthenticationError, OSError, EOFError, ValueError):
            continue
        else:
            come.append(pipe)
            if ranks_known != count or not 0 <= rank < count or rank in ranks:
                trouble = f"rank {rank} of {ranks_known} came, and there are {count}, each once"
            ranks[rank] = pipe
    if trouble:
        end_all(come, trouble)
        raise RunError(
            trouble, fix="start every rank once, all with the same number; see that no firewall is"
            " between them",
        )  # fmt: skip
    return [ranks[rank] for rank in range(count)]


def run_launched(job: Job, calls: Sequence[Call]) -> list[Ran]:
    """Run a program as a rank that a launcher has started; only rank 0 says what becomes.

    `job`, `calls`: what is run. Where the hub is elsewhere, it is told, and rank 0 says nothing
    either.

    Raises InputError when no variables say who this process is; RunError when ranks don't come, one
    is gone, or all wait for one another.
    """
    me, ranks = launched(os.environ), job.program.num_ranks
    if me.count != ranks:
        raise InputError(
            f"the program is for {ranks} ranks, and {me.count} were started", field="--launched",
            fix=f"start {ranks}",
        )  # fmt: skip
    compiled()
    return run_as(me, job, calls, listening("", me.port, "--launched") if me.here else None)


def run_as(
    me: Launched, job: Job, calls: Sequence[Call], listener: socket.socket | None,
    carry: Callable[[Sequence[End]], Carrier] | None = None,
) -> list[Ran]:  # fmt: skip
    """Run a program as one of its ranks, and return what becomes if this process is the hub.

    `me`: who it is.
    `job`, `calls`: what is run.
    `listener`: where ranks ask for the hub, if this process is the hub, too; it is closed.
    `carry`: from the ends of connections to what carries messages; None: TCP.

    Raises RunError when ranks don't come, one is gone, or all wait for one another.
    """
    found: list[Ran] = []
    failed: list[RunError] = []

    def serve(sock: socket.socket) -> None:
        try:
            with sock:
                found.extend(hub(gathered(sock, me.count, me.key), job, calls))
        except RunError as error:
            failed.append(error)

    worker = threading.Thread(target=serve, args=(listener,), daemon=True)
    if listener is not None:
        worker.start()
    try:
        told = HubClient(_joined(me))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            # The address of this host on the way to the hub.
            probe.connect((me.address, me.port))
            over_tcp = carry_over_tcp(me.rank, told, probe.getsockname()[0], {})
        be_rank(Mesh(me.rank, told, carry or over_tcp), job, calls)
    except RunError as error:
        if listener is not None:
            worker.join(OPENING)
        raise (failed[0] if failed else error) from None
    if listener is not None:
        worker.join(OPENING)
    return found


def _joined(me: Launched) -> Connection:
    deadline = Deadline.after(OPENING)
    pause = threading.Event()
    while True:
        try:
            pipe = Client((me.address, me.port), authkey=me.key)
            pipe.send_bytes(f"{me.rank} {me.count}".encode())
        except AuthenticationError:
            raise RunError(
                f"{me.address} port {me.port} wants another key", fix=f"set {KEY} alike everywhere"
            ) from None
        except (OSError, EOFError) as error:
            if deadline.over:
                raise RunError(
                    f"rank {me.rank} can't reach {me.address} port {me.port}: {error}",
                    fix="see whether rank 0 was started, and whether a firewall is between them",
                ) from None
            pause.wait(0.1)
        else:
            return pipe


def run_on_hosts(
    job: Job, calls: Sequence[Call], hosts: Sequence[str], command: Sequence[str]
) -> list[Ran]:
    """Run a program with a rank on each of some hosts, and return what becomes of each call.

    `job`, `calls`: what is run.
    `hosts`: of each rank; all but this one are reached over ssh.
    `command`: what a rank runs, beside the interpreter.

    Raises InputError when there are fewer or more hosts than ranks; RunError when ranks don't come,
    one is gone, or all wait for one another.
    """
    if len(hosts) != job.program.num_ranks:
        raise InputError(
            f"the program is for {job.program.num_ranks} ranks, and hosts are given for"
            f" {len(hosts)}", field="--hosts", fix="write a:4,b:4",
        )  # fmt: skip
    key = secrets.token_hex(16)
    local = all(host in LOCAL for host in hosts)
    started: list[subprocess.Popen[bytes]] = []
    with listening("127.0.0.1" if local else "", 0, "--hosts") as listener:
        address = "127.0.0.1" if local else socket.gethostbyname(socket.gethostname())
        variables = {
            "TACCL_RANKS": str(len(hosts)), "TACCL_HUB": address,
            "TACCL_PORT": str(listener.getsockname()[1]), KEY: key,
        }  # fmt: skip
        try:
            for rank, host in enumerate(hosts):
                own = {**variables, "TACCL_RANK": str(rank)}
                line, environment = [sys.executable, "-m", "taccl", *command], {**os.environ, **own}
                if host not in LOCAL:
                    told = " ".join(f"{name}={shlex.quote(value)}" for name, value in own.items())
                    there = f"cd {shlex.quote(str(Path.cwd()))} && {told} "
                    there += shlex.join(["taccl", *command])
                    line = ["ssh", "-o", "BatchMode=yes", "-tt", "--", host, there]
                    environment = dict(os.environ)
                started.append(
                    subprocess.Popen(line, env=environment, stdin=subprocess.DEVNULL)
                )  # fmt: skip
            return hub(gathered(listener, len(hosts), key.encode()), job, calls)
        finally:
            for process in started:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(1.0)
                process.kill()
                process.wait()


class Requests:
    """Messages over MPI: at most one a slot is on its way.

    `ends` are the rank's; `comm` are all ranks.
    """

    def __init__(self, ends: Sequence[End], comm: "MPI.Intracomm") -> None:
        self.out, self.into = ([e for e in ends if e.out is out] for out in (True, False))
        self.comm = comm
        self.sending: list[tuple[End, list[Any]]] = [(end, []) for end in self.out]
        self.awaited: list[tuple[End, list[Any]]] = [(end, []) for end in self.into]

    def push(self) -> bool:
        """Start to send what was put in; tell whether slots of what has been sent are free."""
        freed = False
        for end, requests in self.sending:
            while end.moved < end.counters[0]:
                slot = end.moved % len(end.slots)
                data = end.slots[slot][: int(end.lengths[slot])]
                requests.append(self.comm.Isend(data, end.wire.dst, end.wire.channel))
                end.moved += 1
            while requests and requests[0].Test():
                requests.pop(0)
                end.counters[1] += 1
                freed = True
        return freed

    def pull(self, timeout: float) -> bool:
        """Look for messages until one has come, for so many seconds at most."""
        from mpi4py import MPI

        deadline = Deadline.after(timeout)
        while True:
            shown = False
            for end, requests in self.awaited:
                while end.counters[0] + len(requests) - end.counters[1] < len(end.slots):
                    slot = (int(end.counters[0]) + len(requests)) % len(end.slots)
                    requests.append(
                        self.comm.Irecv(end.slots[slot], end.wire.src, end.wire.channel)
                    )
                status = MPI.Status()
                while requests and requests[0].Test(status):
                    slot = int(end.counters[0]) % len(end.slots)
                    end.lengths[slot] = status.Get_count(MPI.BYTE)
                    requests.pop(0)
                    end.counters[0] += 1
                    shown = True
            if self.push() or shown:
                return True
            if deadline.over:
                return False
            # MPI itself never lets another rank have the processor.
            os.sched_yield()

    def idle(self) -> bool:
        """Tell whether everything that was put in has been sent."""
        return all(end.counters[1] == end.counters[0] for end in self.out)

    def close(self) -> None:
        """Take back what was prepared for messages that never come."""
        for _, requests in self.awaited:
            for request in requests:
                request.Cancel()
                request.Wait()


def run_under_mpi(job: Job, calls: Sequence[Call]) -> list[Ran]:
    """Run a program as one of the ranks that MPI has started; only rank 0 says what becomes.

    `job`, `calls`: what is run. Messages go over MPI; what else ranks tell one another goes through
    a hub in rank 0, so that who waits for whom can be told. On an error MPI ends all ranks.

    Raises InputError when mpi4py is missing, or another number of ranks was started; RunError when
    a rank is gone, or all wait for one another.
    """
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise InputError(
            f"needs mpi4py, which can't be imported: {error}", field="--mpi",
            fix="pip install 'taccl-synth[mpi]', and an MPI such as mpich",
        ) from None  # fmt: skip
    comm, ranks = MPI.COMM_WORLD, job.program.num_ranks
    if comm.size != ranks:
        raise InputError(
            f"the program is for {ranks} ranks, and MPI has started {comm.size}",
            field="--mpi", fix=f"mpirun -n {ranks} taccl run ... --mpi",
        )  # fmt: skip
    compiled()
    hosts = comm.allgather(socket.gethostname())
    address = "127.0.0.1" if len(set(hosts)) == 1 else socket.gethostbyname(hosts[0])
    listener = listening("", 0, "--mpi") if comm.rank == 0 else None
    port = comm.bcast(listener.getsockname()[1] if listener else 0)
    key = comm.bcast(secrets.token_bytes(16))
    me = Launched(comm.rank, ranks, address, port, comm.rank == 0, key)
    try:
        return run_as(me, job, calls, listener, lambda ends: Requests(ends, comm))
    except RunError as error:
        if comm.rank:
            # The first rank has time to end all.
            threading.Event().wait(GRACE)
        if comm.rank == 0 or not isinstance(error, ToldByHubError):
            sys.stderr.write(f"error: {error}\n")
            sys.stderr.flush()
            # A launcher that is told to end all may drop what it has not passed on yet.
            threading.Event().wait(PASSED_ON)
        comm.Abort(1)
        # Under load mpich's returns, and the caller would tell the error once more.
        os._exit(1)


GRACE = 5.0
"""Seconds from when a rank knows of an error until it ends all by itself."""

PASSED_ON = 0.3
"""Seconds that a launcher has to pass on what a rank wrote, before it is told to end all."""

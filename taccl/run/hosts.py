"""Ranks on several hosts: started over ssh from here, or by a launcher that says who is who.

Over ssh, this process is the hub: it listens at a port, starts every rank with the port, a key and
its number in the environment, and gathers what rank 0 reports. Under a launcher (torchrun, srun,
mpirun) every process is a rank that learns its number and the address of the first from variables;
the first is the hub as well, in a thread. Who can't prove the key is not let in, and what is said
is JSON.
"""

import os
import secrets
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

from taccl.errors import InputError, RunError
from taccl.run.messages import Mesh, Spoken, hub
from taccl.run.processes import compiled
from taccl.run.tcp import OPENING, carry_over_tcp
from taccl.timing.deadline import Deadline

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


def listening(address: str, port: int, key: bytes, field: str) -> Listener:
    """Return what listens for ranks at an `address` and `port` (0: any), who know the `key`.

    Raises InputError, at the option `field`, when the port is in use.
    """
    try:
        return Listener((address, port), backlog=4096, authkey=key)
    except OSError as error:
        raise InputError(
            f"can't listen at {address or 'any address'} port {port}: {error.strerror}",
            field=field, fix="choose another port (MASTER_PORT)",
        ) from None  # fmt: skip


def gathered(listener: Listener, count: int) -> list[Connection]:
    """Return connections to all ranks, by rank, once they have all come.

    Raises RunError when some don't come in time, or two are the same.
    """
    ranks: dict[int, Connection] = {}
    deadline = Deadline.after(OPENING)
    # Nothing public sets how long it waits.
    sock: socket.socket = listener._listener._socket  # type: ignore[attr-defined]  # noqa: SLF001
    while len(ranks) < count:
        sock.settimeout(max(0.05, deadline.left))
        try:
            pipe = listener.accept()
            number, ranks_known = pipe.recv_bytes(100).decode().split()
        except TimeoutError:
            missing = next(rank for rank in range(count) if rank not in ranks)
            raise RunError(
                f"{len(ranks)} of {count} ranks have come in {OPENING:g} s; rank {missing} has not",
                fix="see whether all were started, and whether a firewall is between them",
            ) from None
        except (AuthenticationError, OSError, EOFError, ValueError):
            continue
        rank = int(number)
        if int(ranks_known) != count or not 0 <= rank < count or rank in ranks:
            trouble = f"rank {rank} of {ranks_known} came, and there are {count}, each once"
            for other in (*ranks.values(), pipe):
                with suppress(OSError):
                    other.send_bytes(f'["end", "{trouble}"]'.encode())
            raise RunError(trouble, fix="start every rank once, all with the same number of ranks")
        ranks[rank] = pipe
    return [ranks[rank] for rank in range(count)]


@contextmanager
def mesh_of(me: Launched, explain: Callable[[list[Any]], str]) -> Iterator[tuple[Mesh, Spoken]]:
    """Give what a rank that was `launched` needs; the first is the hub as well.

    `explain` makes a sentence of the states of all.

    Raises InputError when the port of the hub is in use; RunError when ranks don't come.
    """
    compiled()
    failed: list[RunError] = []
    worker: threading.Thread | None = None
    if me.here:
        listener = listening("", me.port, me.key, "--launched")

        def serve() -> None:
            try:
                with listener:
                    hub(gathered(listener, me.count), explain)
            except RunError as error:
                failed.append(error)

        worker = threading.Thread(target=serve, daemon=True)
        worker.start()
    pipe = _joined(me)
    told = Spoken(pipe)
    host = _own_address(me)
    try:
        yield Mesh(me.rank, told, carry_over_tcp(me.rank, told, host, {})), told
    except RunError as error:
        told.leave(error.problem)
        raise
    else:
        told.leave()
    finally:
        if worker is not None:
            worker.join(OPENING)


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


def _own_address(me: Launched) -> str:
    """Return the address of this host on the way to the hub."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((me.address, me.port))
        return str(probe.getsockname()[0])


def launch(
    hosts: Sequence[str], command: Sequence[str], explain: Callable[[list[Any]], str],
    heard: Callable[[Any], None],
) -> None:  # fmt: skip
    """Start a rank on each of some hosts and be their hub.

    `hosts`: of each rank; all but this one are reached over ssh.
    `command`: what a rank runs, beside the interpreter.
    `explain`: makes a sentence of the states of all.
    `heard`: takes what rank 0 reports.

    Raises RunError when ranks don't come, one is gone, or all wait for one another.
    """
    key = secrets.token_hex(16)
    local = all(host in LOCAL for host in hosts)
    started: list[subprocess.Popen[bytes]] = []
    with listening("127.0.0.1" if local else "", 0, key.encode(), "--hosts") as listener:
        port = listener.address[1]
        address = "127.0.0.1" if local else socket.gethostbyname(socket.gethostname())
        try:
            for rank, host in enumerate(hosts):
                variables = {
                    "TACCL_RANK": str(rank), "TACCL_RANKS": str(len(hosts)),
                    "TACCL_HUB": address, "TACCL_PORT": str(port), KEY: key,
                }  # fmt: skip
                if host in LOCAL:
                    own = [sys.executable, "-m", "taccl", *command]
                    started.append(subprocess.Popen(
                        own, env={**os.environ, **variables}, stdin=subprocess.DEVNULL
                    ))  # fmt: skip
                    continue
                told = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
                there = (
                    f"cd {shlex.quote(str(Path.cwd()))} && {told} {shlex.join(['taccl', *command])}"
                )
                started.append(subprocess.Popen(
                    ["ssh", "-o", "BatchMode=yes", "-tt", "--", host, there],
                    stdin=subprocess.DEVNULL,
                ))  # fmt: skip
            hub(gathered(listener, len(hosts)), explain, heard)
        finally:
            for process in started:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(1.0)
                process.kill()
                process.wait()

"""Hosts and their slots: hostfiles as Open MPI and MPICH read them, and who sits where.

A line is ``HOST``, ``HOST slots=N`` (Open MPI) or ``HOST:N`` (MPICH); ``#`` begins a comment, and
other ``key=value`` words are ignored. A host without a number has one slot.

References
----------
Open MPI 5, ``mpirun(1)``, "Specifying Host Nodes"; MPICH, ``mpiexec`` of Hydra, host file.
"""

import itertools
import re
from collections.abc import Sequence
from typing import NamedTuple

from taccl.errors import InputError
from taccl.files import read_text, shown

MAX_SLOTS = 65_536

_HOST = re.compile(r"([A-Za-z0-9][\w.\-]{0,253})(?::(\d{1,6}))?", re.ASCII)
_SLOTS = re.compile(r"(?:slots|count|cpu)=(\d{1,6})")


class Seat(NamedTuple):
    """Where a rank of the machine as given sits: its host, the slot there, and the server."""

    host: str
    slot: int
    server: int


def read_hostfile(file: str) -> tuple[tuple[str, int], ...]:
    """Return hosts and their slots.

    Raises InputError when the file is none, with the line.
    """
    found: dict[str, int] = {}
    for number, line in enumerate(read_text(file).splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        match = _HOST.fullmatch(words[0])
        said = [m[1] for m in map(_SLOTS.fullmatch, words[1:]) if m]
        slots = int((said or [(match and match[2]) or "1"])[0])
        if match is None or len(said) > 1 or not 1 <= slots <= MAX_SLOTS:
            raise InputError(
                f"should be a host with its slots, got {shown(line.strip())}", file=file,
                line=number, fix="write HOST slots=N",
            )  # fmt: skip
        if match[1] in found:
            raise InputError(
                f"names {match[1]} twice", file=file, line=number, fix="name every host once"
            )
        found[match[1]] = slots
        if sum(found.values()) > MAX_SLOTS:
            raise InputError(
                f"has more than {MAX_SLOTS} slots", file=file, line=number, fix="use fewer hosts"
            )
    if not found:
        raise InputError("names no host", file=file, fix="write HOST slots=N, one host a line")
    return tuple(found.items())


def seats_of(
    names: Sequence[str],
    hosts: Sequence[tuple[str, int]] | int | None,
    text: str | None = None,
    servers: Sequence[int] | None = None,
) -> tuple[Seat, ...]:
    """Return host, slot and server of each rank.

    `names` are those of the ranks; ``HOST:N`` is on ``HOST``. `hosts` are hosts with their slots,
    in the order of ranks, or how many ranks in a row share a server; None: those on one host share
    it. `text` is what the user wrote, for errors, and `servers` the server of each rank, where it
    is known already.

    Raises InputError when the slots do not add up to the ranks, or do not fit the servers.
    """
    if isinstance(hosts, int):
        if len(names) % hosts:
            raise InputError(
                f"{len(names)} ranks are no multiple of {hosts}", field="--servers",
                fix="give a hostfile, which may have hosts of several sizes",
            )  # fmt: skip
        found = [rank // hosts for rank in range(len(names))]
        on = [_host(name) for name in names]
    elif hosts is not None:
        on = [host for host, slots in hosts for _ in range(slots)]
        if len(on) != len(names):
            raise InputError(
                f"has {len(on)} slots, there are {len(names)} ranks", file=text,
                field="--servers", fix="say slots=N of every host, in the order of the ranks",
            )  # fmt: skip
        found = _numbers(on)
    else:
        on = [_host(name) for name in names]
        found = _numbers(on)
    if servers is not None and _numbers(found) != _numbers(servers):
        raise InputError(
            "does not share the ranks out as the topology's servers do", file=text or None,
            field="--servers", fix="leave --servers out, or give the slots of each server",
        )  # fmt: skip
    seen: dict[str, itertools.count[int]] = {}
    slots_on = [next(seen.setdefault(host, itertools.count())) for host in on]
    return tuple(map(Seat, on, slots_on, found))


def _host(name: str) -> str:
    host, colon, slot = name.rpartition(":")
    return host if colon and slot.isdecimal() else name


def _numbers(values: Sequence[object]) -> list[int]:
    """Return the number of each value, by its first place."""
    known: dict[object, int] = {}
    return [known.setdefault(value, len(known)) for value in values]

"""From measurements, or a topology, and an algorithm to the order of ranks that is fastest.

And that order as text, as JSON, and as files for launchers and for the other commands.

Who sits where is read from hostfiles as Open MPI and MPICH have them: a line is ``HOST``, ``HOST
slots=N`` (Open MPI) or ``HOST:N`` (MPICH); ``#`` begins a comment, and other ``key=value`` words
are ignored. A host without a number has one slot.

References
----------
Open MPI 5, ``mpirun(1)``, "Specifying Host Nodes"; MPICH, ``mpiexec`` of Hydra, host file.
"""

import itertools
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from taccl.apps.inputs import (
    MachineOptions,
    asked_collective,
    load_collective,
    load_machine,
    read_program,
)
from taccl.apps.programs import Target, textbook_program
from taccl.errors import InputError, ScheduleError, TacclWarning, did_you_mean
from taccl.files import read_text, shown
from taccl.imports.measured import measured_topology, read_measurements
from taccl.msccl.interpret import judge
from taccl.msccl.program import Program
from taccl.msccl.xml import read_xml, write_xml
from taccl.placement import (
    Found,
    Limits,
    Order,
    Replays,
    flat,
    link_counts,
    permuted_program,
    permuted_topology,
    search,
    servers_of,
)
from taccl.replay.cost import model_of
from taccl.replay.timing import Timing
from taccl.synth.templates.classical import CLASSICAL
from taccl.timing.deadline import Deadline
from taccl.topology.core_form import topology_digest, topology_document
from taccl.topology.file import document_text, load_topology, topology_from_document
from taccl.topology.graph import Topology
from taccl.units import Time, format_size, microseconds

ALIASES = {"tree": "double-binary-tree"}
"""What people call an algorithm, and its name in the table."""

TYPICAL_LINKS = 500
"""Links that are looked at for what a typical one costs."""

MAX_SLOTS = 65_536
"""Of all hosts of a hostfile together."""

_HOST = re.compile(r"([A-Za-z0-9][\w.\-]{0,253})(?::(\d{1,6}))?", re.ASCII)
_SLOTS = re.compile(r"(?:slots|count|cpu)=(\d{1,6})")
"""A host with its slots, and slots by themselves."""


class Seat(NamedTuple):
    """Where a rank of the machine as given sits: its host, the slot there, and the server."""

    host: str
    slot: int
    server: int


@dataclass(frozen=True, slots=True)
class Question:
    """What is placed where.

    `measured`: files of :mod:`taccl.imports.measured`; empty with a topology.
    `unit`: of matrices that do not say it.
    `topology`, `nodes`, `fabric`, `alpha_rule`: as everywhere; without measurements.
    `servers`: a hostfile, or how many ranks in a row share a server.
    `algorithm`: a classical algorithm, or an MSCCL XML file.
    `collective`: of a classical algorithm.
    `size`: bytes.
    `runtime`: whose constants.
    `inside`: whether the places within a server may be exchanged.
    `limits`: of the search.
    """

    measured: tuple[str, ...] = ()
    unit: str | None = None
    topology: str | None = None
    nodes: int | None = None
    fabric: str | None = None
    alpha_rule: str | None = None
    servers: str | None = None
    algorithm: str = "ring"
    collective: str = "allreduce"
    size: int = 10**6
    runtime: str = "executor"
    inside: bool = True
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, eq=False)
class Placed:
    """The answer: the best order of the ranks of a machine, and what that is worth.

    The `topology` is the machine as it was given, with the host and slot of each of its places in
    `seats`. The `program` is as it is run on the permuted machine, replayed at `size` bytes. The
    search has `found` what led to `order`, which takes `time` picoseconds; the order as given takes
    `identity`. If `routed`, some pairs have no link, and are replayed over other ranks.
    """

    topology: Topology
    seats: tuple[Seat, ...]
    program: Program
    size: int
    found: Found
    order: Order
    time: Time
    identity: Time
    routed: bool

    @property
    def permuted(self) -> Topology:
        """The machine whose rank r is the place that takes rank r."""
        made = permuted_topology(self.topology, self.order)
        return replace(made, name=f"{self.topology.name[:180]}-placed")

    @property
    def proved(self) -> bool:
        """Whether no order is faster."""
        bound = self.found.bound
        every = self.found.ended == "all" and not self.routed
        return every or (bound is not None and self.time <= bound)

    @property
    def random_mean(self) -> float | None:
        """The mean of the random orders, in picoseconds."""
        samples = self.found.random
        return sum(samples) / len(samples) if samples else None


def place(
    question: Question,
    stop: Callable[[], bool] = lambda: False,
    report: Callable[[str], None] = lambda _line: None,
) -> Placed:
    """Search for the fastest order of ranks.

    The `question` says what is placed where, `stop` when to end with the best order so far;
    `report` is told what is being done.

    Raises InputError when a file or an option can't be used; ProgramError when the program does not
    fit, or comes to no end.
    """
    clock = Deadline()
    report("reading")
    topology, seats = load_places(question)
    report(f"lowering {question.algorithm}")
    program, size = program_of(question, topology)
    replays = Replays(program, topology, size, model_of(question.runtime))
    limits = question.limits
    if limits.seconds is not None:
        limits = replace(limits, seconds=max(1.0, limits.seconds - clock.spent))

    def progress(count: int, best: Time) -> None:
        report(f"{best / 1e6:.6g} us after {count} replays")

    servers = servers_of(topology.server_of, inside=question.inside)
    found = search(replays, servers, limits, stop, progress)
    same, first = tuple(range(topology.num_ranks)), flat(servers.blocks)
    times: dict[Order, Time] = {}
    for order in dict.fromkeys((same, first, found.order)):
        moved = permuted_topology(topology, order)
        with warnings.catch_warnings():
            # What is routed is told at the end.
            warnings.simplefilter("ignore", TacclWarning)
            trace = Timing(program, moved, model_of(question.runtime), route=True).at(size)
        if trace.time is None:
            raise InputError(
                f"{program.name}: {trace.reason}", field="--size", fix="use another size"
            )
        times[order] = trace.time
    # The first is the order as given, unless that tears servers apart.
    # Where a pair has several equally good routes, which one is taken depends on the numbers.
    order = found.order if times[found.order] <= times[first] else first
    pairs = topology.num_ranks * (topology.num_ranks - 1)
    routed = int((link_counts(topology) > 0).sum()) < pairs
    return Placed(topology, seats, program, size, found, order, times[order], times[same], routed)


def load_places(question: Question) -> tuple[Topology, tuple[Seat, ...]]:
    """Return the machine, and the host and slot of each of its ranks.

    Raises InputError when neither or both kinds of input are given, or one can't be used.
    """
    if bool(question.measured) == (question.topology is not None):
        raise InputError(
            "give either files that were measured, or --topology",
            field="--topology", fix="taccl place latency.csv, or taccl place --topology ndv2",
        )  # fmt: skip
    hosts = hosts_of(question.servers)
    if question.topology is not None:
        topology = load_machine(
            question.topology,
            MachineOptions(question.nodes, question.fabric, alpha_rule=question.alpha_rule),
        )
        names = [f"server{server}" for server in topology.server_of]
        seats = seats_of(names, hosts, question.servers, servers=topology.server_of)
        return topology, seats
    for option, given in (("--nodes", question.nodes), ("--fabric", question.fabric)):
        if given is not None:
            raise InputError(
                f"{shown(given)} is for --topology: what was measured has its servers",
                field=option, fix=f"leave {option} out; --servers says which ranks share a server",
            )  # fmt: skip
    found = read_measurements(question.measured, question.unit)
    seats = seats_of(found.names, hosts, question.servers)
    servers = [seat.server for seat in seats]
    rule = question.alpha_rule or "occupy"
    return measured_topology(found, servers, alpha_rule=rule), seats


def hosts_of(text: str | None) -> tuple[tuple[str, int], ...] | int | None:
    """Return ``--servers``: hosts with their slots, or how many ranks a server has.

    Raises InputError when it is neither a number nor a hostfile.
    """
    if text is None:
        return None
    if text.isdecimal() and text.isascii() and not Path(text).exists():
        if not 1 <= int(text[:6]) <= 65536 or len(text) > 6:
            raise InputError(
                f"should be from 1 to 65536, got {shown(text)}", field="--servers",
                fix="say how many ranks share a server",
            )  # fmt: skip
        return int(text)
    return read_hostfile(text)


def program_of(question: Question, topology: Topology) -> tuple[Program, int]:
    """Return the program of a `question` to place on a `topology`, and the bytes to replay it at.

    An algorithm's is the fastest one where all pairs cost what is typical here: on a network
    without differences it takes the ranks as they come, which leaves it to the order who is whose
    neighbour.

    Raises InputError when there is no such algorithm or file, or it is for another number of ranks.
    """
    name = ALIASES.get(question.algorithm.lower(), question.algorithm.lower())
    if name in CLASSICAL:
        collective = asked_collective(load_collective(question.collective), topology)
        even = replace(typical(topology), name=topology.name)
        target = Target(question.runtime)
        program = textbook_program(even, collective, name, question.size, target)
    elif Path(question.algorithm[:255]).is_file():
        program = read_program(question.algorithm)
        if program.num_ranks != topology.num_ranks:
            raise InputError(
                f"is for {program.num_ranks} ranks, {topology.name} has {topology.num_ranks}",
                file=question.algorithm, field="ngpus", fix="give the machine it is to run on",
            )  # fmt: skip
    else:
        raise InputError(
            f"unknown algorithm {shown(question.algorithm)}", field="--algorithm",
            fix=f"{did_you_mean(name, [*ALIASES, *CLASSICAL])}use"
            f" {', '.join([*ALIASES, *CLASSICAL])}, or an MSCCL XML file",
        )  # fmt: skip
    unit = program.chunks_per_loop * model_of(question.runtime).element_bytes
    return program, question.size - question.size % unit or unit


def typical(topology: Topology) -> Topology:
    """Return a switch that joins as many ranks, in as many servers, at the median costs.

    Servers have consecutive ranks, as every order gives them.
    """
    table = topology.links
    some = range(0, len(table), max(1, len(table) // TYPICAL_LINKS))
    alpha = sorted(int(table.alpha[link]) for link in some)[len(some) // 2]
    beta = sorted(table.max_beta(link) for link in some)[len(some) // 2]
    hub = load_topology(f"hub:{topology.num_ranks}")
    edges = tuple(
        replace(edge, alpha=alpha // 2 if edge.id % 2 else alpha - alpha // 2, beta=beta or None)
        for edge in hub.edges
    )
    together = flat(servers_of(topology.server_of).blocks)
    return replace(
        hub, edges=edges, server_of=tuple(topology.server_of[place] for place in together),
        alpha_rule=topology.alpha_rule, rotations=(),
    )  # fmt: skip


ENDINGS: Mapping[str, str] = MappingProxyType({
    "all": "every order was replayed",
    "bound": "no order can beat the bound",
    "settled": "nothing better came up any more",
    "time": "the time limit",
    "replays": "the limit of replays",
    "interrupted": "interrupted",
})  # fmt: skip
"""Why a search ended, in words."""


def placed_json(placed: Placed, outputs: Mapping[str, str]) -> dict[str, object]:
    """Return what ``--json`` prints of what was `placed`, and of its `outputs`: files by kind."""
    found, seats = placed.found, placed.seats
    mean = placed.random_mean
    return {
        "program": placed.program.name,
        "collective": placed.program.collective,
        "topology": placed.topology.name,
        "ranks": placed.topology.num_ranks,
        "servers": placed.topology.num_servers,
        "alpha_rule": placed.topology.alpha_rule_stated,
        "size_bytes": placed.size,
        "order": list(placed.order),
        "hosts": [{"host": seats[p].host, "slot": seats[p].slot} for p in placed.order],
        "time_us": microseconds(placed.time),
        "identity_us": microseconds(placed.identity),
        "random": len(found.random),
        "random_mean_us": None if mean is None else mean / 1e6,
        "random_best_us": microseconds(min(found.random)) if found.random else None,
        "gain_identity": placed.identity / placed.time if placed.time else None,
        "gain_random": mean / placed.time if mean is not None and placed.time else None,
        "bound_us": None if found.bound is None else microseconds(found.bound),
        "optimal": placed.proved,
        "replays": found.replays,
        "ended": found.ended,
        "routed": placed.routed,
        "outputs": dict(outputs),
    }


def placed_text(placed: Placed, outputs: Mapping[str, str]) -> str:
    """Return what is printed for people, of what was `placed` and its `outputs`: files by kind."""
    found, topology = placed.found, placed.topology
    servers = f" in {topology.num_servers} servers" if topology.num_servers > 1 else ""
    mean = placed.random_mean
    torn = servers_of(topology.server_of).split(range(topology.num_ranks)) is None
    lines = [
        f"{placed.program.collective} of {format_size(placed.size)} on {topology.num_ranks} ranks"
        f"{servers} of {topology.name}, replayed as {placed.program.name}"
        f" ({topology.alpha_rule_stated})",
        f"order     {' '.join(map(str, placed.order))}",
        f"as given  {_us(placed.identity)}{', with servers torn apart' if torn else ''}",
    ]
    if mean is not None:
        lines.append(
            f"random    {_us(mean)} the mean of {len(found.random)} orders,"
            f" {_us(min(found.random))} the best of them"
        )
    gains = [f"{placed.identity / max(placed.time, 1):.3g} x as fast as given"]
    if mean is not None:
        gains.append(f"{mean / max(placed.time, 1):.3g} x the mean of random orders")
    lines.append(f"placed    {_us(placed.time)}: {', '.join(gains)}")
    if placed.proved:
        lines.append("bound     the best order there is")
    elif found.bound is None:
        lines.append("bound     none is known for this algorithm")
    else:
        gap = placed.time / max(found.bound, 1) - 1
        lines.append(f"bound     {_us(found.bound)} for any order of a ring, {gap:.2%} below")
    lines.append(f"search    {found.replays} replays, ended: {ENDINGS[found.ended]}")
    if placed.routed:
        lines.append("routed    pairs without a link are replayed over other ranks")
    lines += [f"wrote {file}" for file in outputs.values()]
    return "\n".join(lines)


def _us(time: float) -> str:
    return f"{time / 1e6:.6g} us"


def rankfile_text(placed: Placed) -> str:
    """Return an Open MPI rankfile: ``rank R=HOST slot=S``."""
    seats = (placed.seats[place] for place in placed.order)
    return "".join(f"rank {rank}={seat.host} slot={seat.slot}\n" for rank, seat in enumerate(seats))


def hostfile_text(placed: Placed) -> str:
    """Return a hostfile whose hosts are in the order of ranks.

    Raises ScheduleError when a host would come twice.
    """
    seats = [placed.seats[place] for place in placed.order]
    groups = [(host, list(group)) for host, group in groupby(seats, key=lambda seat: seat.host)]
    if len({host for host, _ in groups}) < len(groups):
        raise ScheduleError("hostfile", ["a host comes twice: only a rankfile can say that"])
    moved = any([seat.slot for seat in group] != sorted(s.slot for s in group)
                for _, group in groups)  # fmt: skip
    note = "# ranks change their slots within hosts, too: only the rankfile says which\n"
    lines = [f"{host} slots={len(group)}\n" for host, group in groups]
    return "".join([note] * moved + lines)


def topology_text(placed: Placed) -> str:
    """Return the permuted machine as a topology file, read back and compared.

    Raises ScheduleError when what is read back differs.
    """
    permuted = placed.permuted
    document = topology_document(permuted)
    again = topology_from_document(document)
    if topology_digest(again) != topology_digest(permuted):
        raise ScheduleError("permuted topology", ["reading it back gives another machine"])
    order = ", ".join(map(str, placed.order))
    note = f"rank r is rank order[r] of {ascii(placed.topology.name)[1:-1]}: order = [{order}]"
    return document_text(document, [note])


def xml_text(placed: Placed, runtime: str) -> str:
    """Return the program for the machine as given, verified and read back.

    Its ranks are in the order that was `placed`; `runtime` is a name of RUNTIMES.

    Raises InputError when its ranks can't move; ScheduleError when a judge objects.
    """
    program = permuted_program(placed.program, placed.order)
    for each in (placed.program, program):
        if findings := judge(each, runtime):
            raise ScheduleError(f"program {each.name}", findings)
    text = write_xml(program, runtime)
    if read_xml(text, runtime=runtime) != program:
        raise ScheduleError("permuted program", ["reading it back gives another program"])
    return text


def files_of(placed: Placed, wanted: Mapping[str, str], runtime: str) -> dict[str, str]:
    """Return the text of each file on what was `placed`.

    Their paths are `wanted` by kind: rankfile, hostfile, topology, xml, this one for a `runtime`.

    Raises TacclError when one of them can't be made: then nothing should be written.
    """
    makers: Mapping[str, Callable[[Placed], str]] = {
        "rankfile": rankfile_text, "hostfile": hostfile_text, "topology": topology_text,
        "xml": partial(xml_text, runtime=runtime),
    }  # fmt: skip
    return {file: makers[kind](placed) for kind, file in wanted.items()}


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

"""A topology with TACCL's own costs, made as TACCL computes with them; for comparisons only.

A file has the numbers of TACCL's topology files, times of one chunk. The loaders
(``topologies/generic.py``) and the sketch parser (``cli/common.py``) of microsoft/taccl 2.0.0
change what they say: costs are truncated to whole time units, an in-server message has one cost for
each chunk and shares no alpha, and the NICs are divided once and for all over the connections that
the sketch declares. So what a machine costs depends on the sketch, and on how many servers there
are: with more than two, all links out of (into) one GPU to other servers are one resource
(``topologies/topology.py``).
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import permutations
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import Field, PlainValidator, WithJsonSchema

from taccl.errors import InputError
from taccl.files import Document, FileModel, fit_model, shown
from taccl.files.model import MAX_RANKS, Count, refuse
from taccl.topology.core_form import MAX_EDGES, Builder, TopologyHeader
from taccl.topology.graph import Permutation, Topology
from taccl.units import MAX_BETA, MIN_BETA, parse_time

MAX_AMOUNT = Fraction(10**9)
MAX_MATRIX = 1024
MAX_PARALLEL = 64

Amounts = tuple[tuple[Fraction, ...], ...]
"""One cost for each class of links, as one row; or a matrix [to][from]."""

NDV2_WIRES: Mapping[tuple[int, int], int] = MappingProxyType({
    **dict.fromkeys(((0, 1), (0, 4), (1, 3), (2, 3), (2, 6), (4, 5), (5, 7), (6, 7)), 0),
    **dict.fromkeys(((0, 2), (0, 3), (1, 2), (1, 5), (3, 7), (4, 6), (4, 7), (5, 6)), 1),
})  # fmt: skip
"""Pairs of GPUs that a wire joins, to the class of the wire: 0 is two NVLinks, 1 is one."""

NDV2_TURNS: tuple[Permutation, ...] = ((2, 3, 0, 1, 6, 7, 4, 5), (4, 5, 6, 7, 0, 1, 2, 3))
"""Generators of the symmetries of the mesh, classes of wires included."""


@dataclass(frozen=True, slots=True)
class Base:
    """A row of the table of machines that TACCL knows.

    `gpus` and `nics` are of one server; None: the file says it. The file lists the costs of as many
    `classes` of links; 0: matrices. `truncates` tells whether the loader cuts ``node_invbws_list``
    to whole units.
    """

    gpus: int | None
    nics: int | None
    classes: int
    truncates: bool


TIME_UNITS = ("1us", "100ns", "10ns")
"""Times that the whole numbers of TACCL's files are counted in."""

BASES: Mapping[str, Base] = MappingProxyType({
    "NDv2": Base(8, 1, 2, truncates=True),
    "DGX2": Base(None, 8, 1, truncates=True),
    "HubAndSpoke": Base(None, None, 1, truncates=False),
    "custom": Base(None, None, 0, truncates=False),
})  # fmt: skip


def _amount(value: object) -> Fraction:
    """Return a number of time units, exactly as it is written."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise refuse(f"should be a number of time units, got {shown(value)}", "write 2.24")
    if value and not 1 / MAX_AMOUNT <= value <= MAX_AMOUNT:
        raise refuse(f"should be 0, or from 1e-9 to 1e9, got {shown(value)}", "write 2.24")
    return Fraction(repr(value))


def _amounts(value: object) -> Amounts:
    fix = "write a list of numbers, or a matrix [to][from] of them"
    if not isinstance(value, list) or not value or len(value) > MAX_MATRIX:
        raise refuse(f"should be a list of numbers, got {shown(value)}", fix)
    if not isinstance(value[0], list):
        return (tuple(map(_amount, value)),)
    if any(not isinstance(row, list) or len(row) != len(value) for row in value):
        raise refuse(f"should have {len(value)} rows of {len(value)} numbers", fix)
    return tuple(tuple(map(_amount, row)) for row in value)


Amount = Annotated[
    Fraction, PlainValidator(_amount), WithJsonSchema({"type": "number", "minimum": 0})
]
"""Time units, exact."""

AmountList = Annotated[
    Amounts, PlainValidator(_amounts), WithJsonSchema({"type": "array", "minItems": 1})
]


class OriginalRecord(FileModel):
    """TACCL's numbers: times of one chunk, in the time unit."""

    base: Annotated[Literal["NDv2", "DGX2", "HubAndSpoke", "custom"], Field(examples=["NDv2"])]
    gpus: Annotated[Count, Field(examples=[8])]
    nics: Annotated[Count, Field(examples=[1])] = 1
    time_unit: Annotated[Literal["1us", "100ns", "10ns"], Field(examples=["10ns"])]
    alpha: Annotated[Amount, Field(examples=[30])]
    betas: Annotated[AmountList, Field(examples=["[2.24, 4.5]"])]
    invbws: Annotated[AmountList, Field(examples=["[32.25, 34.5]"])]
    links: Annotated[AmountList | None, Field(examples=["[[0, 1], [1, 0]]"])] = None
    remote_alpha: Annotated[Amount | None, Field(examples=[260])] = None
    remote_beta: Annotated[Amount | None, Field(examples=[10.25])] = None


class OriginalFile(TopologyHeader):
    """A topology with the costs of TACCL, which depend on the sketch."""

    original: Annotated[OriginalRecord, Field(examples=["{base: NDv2, gpus: 8}"])]


def check_record(record: OriginalRecord, document: Document, place: Sequence[str | int]) -> None:
    """Refuse a ``record`` at a ``place`` of a ``document`` whose numbers don't fit the machine.

    Raises InputError with the field and what it should be.
    """
    base = BASES[record.base]
    for name, wanted, found in (("gpus", base.gpus, record.gpus), ("nics", base.nics, record.nics)):
        if wanted is not None and found != wanted:
            raise document.error(
                f"should be {wanted} for {record.base}, got {found}", (*place, name),
                f"write {wanted}, or use another base",
            )  # fmt: skip
    for name, rows in (("betas", record.betas), ("invbws", record.invbws), ("links", record.links)):
        if name == "links" and base.classes:
            if rows is not None:
                raise document.error(
                    f"{record.base} has its own", (*place, name), "remove it, or use base custom"
                )
            continue
        sizes = (len(rows), len(rows[0])) if rows is not None else (0, 0)
        wanted_sizes = (1, base.classes) if base.classes else (record.gpus, record.gpus)
        if sizes != wanted_sizes:
            what = f"{base.classes} numbers" if base.classes else f"a matrix of {record.gpus} rows"
            raise document.error(
                f"should be {what} for {record.base}", (*place, name), f"give {what}"
            )
    for dst, row in enumerate(record.links or ()):
        for src, count in enumerate(row):
            if count.denominator != 1 or count > MAX_PARALLEL or (src == dst and count):
                raise document.error(
                    f"should be a whole number of links up to {MAX_PARALLEL}, none of a GPU to"
                    f" itself, got {float(count):g}", (*place, "links", dst, src), "write 0 or 1",
                )  # fmt: skip


def link_classes(record: OriginalRecord) -> dict[tuple[int, int], int]:
    """Return the class of the link of every (source, destination) that has one."""
    if record.base == "NDv2":
        return {ends: kind for (a, b), kind in NDV2_WIRES.items() for ends in ((a, b), (b, a))}
    return {(a, b): 0 for a in range(record.gpus) for b in range(record.gpus) if a != b}


FULLY_CONNECTED = "fully-connected"
DIRECT_MAP = "direct-map"
Relays = str | tuple[tuple[int, tuple[int, ...]], ...] | None
"""``fully-connected``, ``direct-map``, or for each sender its receivers; local numbers."""


@dataclass(frozen=True, slots=True)
class Sketched:
    """What such a topology must know of the sketch.

    `name` and `file` of the sketch are for messages, `servers` is for how many it is made (None:
    any). `switches` are its lists of local GPUs, equal ones as often as they are there (empty: no
    switches), and `relays` what joins the servers; None: not said.
    """

    name: str = "the sketch"
    file: str | None = None
    servers: int | None = None
    switches: tuple[tuple[int, ...], ...] = ()
    relays: Relays = None

    def error(self, problem: str, fix: str) -> InputError:
        """Return an error in the sketch."""
        return InputError(problem, file=self.file or self.name, fix=fix)


def read_original(
    document: Document, *, nodes: int | None = None, sketched: Sketched | None = None
) -> Topology:
    """Return the machine of a ``document``, of so many ``nodes``, as TACCL would compute with it.

    Without ``nodes`` it has the servers of the sketch, else one. ``sketched`` is what the sketch
    says; several servers need it.

    Raises InputError with file, line, field and fix; also when the sketch does not fit.
    """
    record = fit_model(document, OriginalFile)
    check_record(record.original, document, ("original",))
    if record.chunk_size is None:
        raise document.error("is missing", ("chunk_size",), "write chunk_size: 1MB")
    if record.costs == "exact":
        raise document.error("is exact beside original:", ("costs",), "write costs: original")
    sketch = sketched or Sketched()
    machine = _Machine(record, document, sketch, record.chunk_size)
    servers = nodes or sketch.servers or 1
    if sketch.servers not in (None, servers):
        raise sketch.error(
            f"the sketch is for {sketch.servers} servers, not {servers}",
            f"use --nodes {sketch.servers}, or leave --nodes out",
        )
    between = BASES[record.original.base].classes and record.original.remote_beta is not None
    if servers > 1 and not between:
        raise document.error(
            f"has no cost between servers, of which there are {servers}", ("original",),
            "use one server, or a file with remote_alpha and remote_beta",
        )  # fmt: skip
    pairs = _pairs(machine) if servers > 1 else ()
    gpus, ranks = record.original.gpus, servers * record.original.gpus
    # What would not fit in memory is refused before it is made.
    parallel = sum(map(sum, record.original.links or ()))
    edges = servers * (gpus * gpus * max(1, len(sketch.switches)) + parallel)
    if ranks > MAX_RANKS or edges + servers * (servers - 1) * len(pairs) > MAX_EDGES:
        raise document.error(
            f"{servers} servers of {gpus} GPUs are too many", ("original", "gpus"),
            f"stay below {MAX_RANKS} ranks and {MAX_EDGES} edges",
        )  # fmt: skip
    local = _local_costs(machine)
    builder = Builder(ranks)
    _add_servers(builder, machine, servers, local)
    if servers > 1:
        _add_remote(builder, machine, servers, pairs)
    server_of = [rank // gpus for rank in range(ranks)]
    costed = record.model_copy(update={"costs": "original"})
    return builder.topology(costed, server_of, _rotations(machine, servers, local, pairs))


@dataclass(frozen=True, eq=False)
class _Machine:
    """What a machine is made from."""

    file: OriginalFile
    document: Document
    sketch: Sketched
    chunk_size: Fraction

    @property
    def record(self) -> OriginalRecord:
        """The numbers."""
        return self.file.original

    def time(self, amount: Fraction) -> Fraction:
        """Return picoseconds, exact."""
        return amount * parse_time(self.record.time_unit)

    def beta(self, amount: Fraction, part: str) -> Fraction:
        """Return the ps for each byte of a link on which a chunk takes so many units."""
        beta = self.time(amount) / self.chunk_size
        if not MIN_BETA <= beta <= MAX_BETA:
            raise self.document.error(
                f"makes a link on which a chunk takes {float(amount):g} time units",
                ("original", part),
                "correct the numbers, chunk_size or time_unit; TACCL cuts costs to whole units",
            )
        return beta


def _pairs(machine: _Machine) -> tuple[tuple[int, int], ...]:
    """Return the (sender, receiver) pairs of every ordered pair of servers, local numbers."""
    sketch, gpus = machine.sketch, machine.record.gpus
    if sketch.relays is None:
        raise InputError(
            f"{machine.file.name} has TACCL's own costs, which between servers depend on what the"
            " sketch connects",
            file=machine.document.file,
            field="--sketch",
            fix="give a sketch with internode_conn (or internode: {relays: ...}), or import the"
            " topology again with --costs exact",
        )
    if isinstance(sketch.relays, str):
        every = range(gpus)
        direct = sketch.relays == DIRECT_MAP
        return tuple((s, r) for s in every for r in ((s,) if direct else every))
    numbers = [n for sender, receivers in sketch.relays for n in (sender, *receivers)]
    if max(numbers) >= gpus:
        raise sketch.error(
            f"there is no GPU {max(numbers)} in a server of {gpus}",
            f"use GPUs from 0 to {gpus - 1}",
        )
    degrees = {len(receivers): sender for sender, receivers in sketch.relays}
    if len(degrees) > 1:
        (few, first), (many, second), *_ = sorted(degrees.items())
        raise sketch.error(
            f"GPU {first} sends to {few} GPUs and GPU {second} to {many}, where TACCL wants equal"
            " numbers", "give every sender as many receivers, or import with --costs exact",
        )  # fmt: skip
    return tuple((sender, r) for sender, receivers in sketch.relays for r in receivers)


def _local_costs(machine: _Machine) -> dict[tuple[int, int], Fraction]:
    """Return what a chunk takes on every in-server link, in time units, as TACCL cuts it."""
    record, switches = machine.record, machine.sketch.switches
    if record.links is not None:
        return {
            (src, dst): record.invbws[dst][src]
            for dst, row in enumerate(record.links)
            for src, count in enumerate(row)
            if count and src != dst
        }
    classes = link_classes(record)
    if not switches:
        cut = BASES[record.base].truncates
        costs = [Fraction(int(cost)) if cut else cost for cost in record.invbws[0]]
        return {ends: costs[kind] for ends, kind in classes.items()}
    share = Counter(_copies(machine))
    copies = {(a, b): n for list_, n in share.items() for a in list_ for b in list_}
    return {
        ends: Fraction(int(record.alpha + record.betas[0][kind] / copies.get(ends, 1)))
        for ends, kind in classes.items()
    }


def _copies(machine: _Machine) -> Iterator[frozenset[int]]:
    """Yield the GPUs of every switch list, checked."""
    record, sketch = machine.record, machine.sketch
    if sketch.switches and record.links is not None:
        raise sketch.error(
            "lists switches, which a custom topology with TACCL's costs has not",
            'use "strategy": "none"',
        )
    classes = link_classes(record)
    for number, members in enumerate(sketch.switches):
        if max(members) >= record.gpus or len(set(members)) < 2:
            raise sketch.error(
                f"switches[{number}] should have two or more of the GPUs 0 to {record.gpus - 1}",
                "correct the list",
            )
        kinds = {classes.get((a, b)) for a in members for b in members if a != b}
        if len(kinds) > 1 or None in kinds:
            raise sketch.error(
                f"switches[{number}]: its GPUs are not all joined by links of one cost in"
                f" {machine.file.name}", "list GPUs with equal links among all of them",
            )  # fmt: skip
        yield frozenset(members)


def _add_servers(
    builder: Builder, machine: _Machine, servers: int, local: Mapping[tuple[int, int], Fraction]
) -> None:
    """Add switches with a port for each GPU, and a link of its own where there is no switch."""
    record = machine.record
    lists = tuple(_copies(machine))
    switched = {(a, b) for members in lists for a in members for b in members}
    part = "betas" if lists else "invbws"
    betas = {cost: machine.beta(cost, part) for cost in sorted(set(local.values()))}
    for first in range(0, servers * record.gpus, record.gpus):
        for number, members in enumerate(lists):
            switch = builder.switch(f"s{first // record.gpus}/switch{number}")
            a, b = sorted(members)[:2]
            for gpu in sorted(members):
                builder.edge(first + gpu, switch, betas[local[a, b]])
                builder.edge(switch, first + gpu, betas[local[a, b]])
        for (src, dst), cost in sorted(local.items()):
            if (src, dst) not in switched:
                count = 1 if record.links is None else int(record.links[dst][src])
                for copy in range(count):
                    name = f"{first + src}->{first + dst}.{copy}" if count > 1 else None
                    builder.edge(first + src, first + dst, betas[cost], name=name)


def _add_remote(
    builder: Builder, machine: _Machine, servers: int, pairs: Sequence[tuple[int, int]]
) -> None:
    """Join every ordered pair of servers by links that have a share of the NICs each."""
    record, gpus = machine.record, machine.record.gpus
    share = Fraction(len(pairs), record.nics)
    beta = machine.beta(Fraction(int((record.remote_beta or 0) * share)), "remote_beta")
    alpha = round(machine.time(record.remote_alpha or Fraction(0)))
    shared = servers > 2
    ports: dict[tuple[int, bool], int] = {}
    for server in range(servers) if shared else ():
        for leaves in (True, False):
            for gpu in sorted({pair[0] if leaves else pair[1] for pair in pairs}):
                rank, side = server * gpus + gpu, "out" if leaves else "in"
                port = builder.switch(f"s{server}/gpu{gpu}.{side}", across=True)
                ports[rank, leaves] = port
                builder.edge(*((rank, port) if leaves else (port, rank)), beta)
    for one, other in permutations(range(servers), 2):
        for sender, receiver in pairs:
            src, dst = one * gpus + sender, other * gpus + receiver
            if shared:
                builder.edge(ports[src, True], ports[dst, False], None, alpha)
            else:
                builder.edge(src, dst, beta, alpha)


def _rotations(
    machine: _Machine,
    servers: int,
    local: Mapping[tuple[int, int], Fraction],
    pairs: Sequence[tuple[int, int]],
) -> tuple[Permutation, ...]:
    """Return the turns of a server that links, switches and relays have, and that of servers."""
    record = machine.record
    gpus, ranks = record.gpus, servers * record.gpus
    turns: list[Permutation] = list(NDV2_TURNS) if record.base == "NDv2" else []
    if record.base in ("DGX2", "HubAndSpoke"):
        steps = [step for step in range(1, gpus) if gpus % step == 0]
        turns = [tuple((gpu + step) % gpus for gpu in range(gpus)) for step in steps]
    joined, lists = set(pairs), Counter(map(frozenset, machine.sketch.switches))
    kept = [
        turn
        for turn in turns
        if {(turn[a], turn[b]) for a, b in joined} == joined
        and Counter(frozenset(turn[gpu] for gpu in m) for m in lists.elements()) == lists
        and all(local[turn[a], turn[b]] == cost for (a, b), cost in local.items())
    ]
    # Of the steps of a full ring the smallest makes all others.
    kept = kept if record.base == "NDv2" else kept[:1]
    found = [tuple(r - r % gpus + turn[r % gpus] for r in range(ranks)) for turn in kept]
    if servers > 1:
        found.append(tuple((rank + gpus) % ranks for rank in range(ranks)))
    return tuple(found)

"""A topology with TACCL's own costs, made as TACCL computes with them; for comparisons only.

The loaders (``topologies/generic.py``) and the sketch parser (``cli/common.py``) of microsoft/taccl
2.0.0 change what the file says: costs are truncated to whole time units, an in-server message has
one cost for each chunk and shares no alpha, and the NICs are divided once and for all over the
connections that the sketch declares. So what a machine costs depends on the sketch, and on how many
servers there are: with more than two, all links out of (into) one GPU to other servers are one
resource (``topologies/topology.py``).
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from taccl.errors import InputError
from taccl.files import Document, fit_model
from taccl.files.fields import MAX_RANKS
from taccl.topology import Edge, Permutation, Switch, Topology
from taccl.topology_graph import MAX_EDGES, edge_names
from taccl.topology_taccl import (
    BASES,
    NDV2_TURNS,
    OriginalFile,
    OriginalRecord,
    check_record,
    link_classes,
)
from taccl.units import MAX_BETA, MIN_BETA, Time, parse_time

FULLY_CONNECTED = "fully-connected"
DIRECT_MAP = "direct-map"
Relays = str | tuple[tuple[int, tuple[int, ...]], ...] | None
"""``fully-connected``, ``direct-map``, or for each sender its receivers; local numbers."""


@dataclass(frozen=True, slots=True)
class Sketched:
    """What such a topology must know of the sketch.

    Parameters
    ----------
    name, file
        Of the sketch, for messages.
    servers
        For how many servers it is made; None: any.
    switches
        Its lists of local GPUs, equal ones as often as they are there; empty: no switches.
    relays
        What joins the servers; None: not said.
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
    """Return the machine that TACCL would compute with.

    Parameters
    ----------
    nodes
        Servers; None: those of the sketch, else one.
    sketched
        What the sketch says; needed with several servers.

    Raises
    ------
    InputError
        With file, line, field and fix; also when the sketch does not fit.
    """
    record = fit_model(document, OriginalFile)
    check_record(record.original, document, ("original",))
    if record.chunk_size is None:
        raise document.error("is missing", ("chunk_size",), "write chunk_size: 1MB")
    if record.costs == "exact":
        raise document.error("is exact beside original:", ("costs",), "write costs: original")
    machine = _Machine(record, document, sketched or Sketched(), record.chunk_size)
    servers = _servers(machine, nodes)
    pairs = _pairs(machine) if servers > 1 else ()
    _check_size(machine, servers, pairs)
    local = _local_costs(machine)
    _add_servers(machine, servers, local)
    if servers > 1:
        _add_remote(machine, servers, pairs)
    gpus = record.original.gpus
    return Topology(
        record.name, servers * gpus, tuple(machine.switches),
        tuple(_numbered(machine, servers * gpus)),
        tuple(rank // gpus for rank in range(servers * gpus)),
        _rotations(machine, servers, local, pairs),
        record.alpha_rule, record.local.costs(), record.chunk_size, "original", record.gpu,
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Machine:
    """A machine while it is put together; ``rows`` are (tail, head, alpha, beta, name) of edges.

    A vertex is a rank, or the name of a switch.
    """

    file: OriginalFile
    document: Document
    sketch: Sketched
    chunk_size: Fraction
    switches: list[Switch] = field(default_factory=list)
    rows: list[tuple[int | str, int | str, Time, Fraction | None, str | None]] = field(
        default_factory=list
    )

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

    def switch(self, name: str, *, across: bool = False) -> str:
        """Add a switch and return its name."""
        self.switches.append(Switch(name, across_servers=across))
        return name


def _servers(machine: _Machine, nodes: int | None) -> int:
    """Return the number of servers, checked against the sketch and the file."""
    record, sketch = machine.record, machine.sketch
    servers = nodes or sketch.servers or 1
    if sketch.servers not in (None, servers):
        raise sketch.error(
            f"the sketch is for {sketch.servers} servers, not {servers}",
            f"use --nodes {sketch.servers}, or leave --nodes out",
        )
    if servers > 1 and (not BASES[record.base].classes or record.remote_beta is None):
        raise machine.document.error(
            f"has no cost between servers, of which there are {servers}", ("original",),
            "use one server, or a file with remote_alpha and remote_beta",
        )  # fmt: skip
    return servers


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


def _check_size(machine: _Machine, servers: int, pairs: Sequence[tuple[int, int]]) -> None:
    """Refuse what would not fit in memory, before it is made."""
    gpus = machine.record.gpus
    ranks, copies = servers * gpus, max(1, len(machine.sketch.switches))
    parallel = sum(map(sum, machine.record.links or ()))
    edges = servers * (gpus * gpus * copies + parallel) + servers * (servers - 1) * len(pairs)
    if ranks > MAX_RANKS or edges > MAX_EDGES:
        raise machine.document.error(
            f"{servers} servers of {gpus} GPUs are too many", ("original", "gpus"),
            f"stay below {MAX_RANKS} ranks and {MAX_EDGES} edges",
        )  # fmt: skip


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
    machine: _Machine, servers: int, local: Mapping[tuple[int, int], Fraction]
) -> None:
    """Add switches with a port for each GPU, and a link of its own where there is no switch."""
    record, rows = machine.record, machine.rows
    lists = tuple(_copies(machine))
    switched = {(a, b) for members in lists for a in members for b in members}
    part = "betas" if lists else "invbws"
    betas = {cost: machine.beta(cost, part) for cost in sorted(set(local.values()))}
    for first in range(0, servers * record.gpus, record.gpus):
        for number, members in enumerate(lists):
            switch = machine.switch(f"s{first // record.gpus}/switch{number}")
            a, b = sorted(members)[:2]
            for gpu in sorted(members):
                beta = betas[local[a, b]]
                rows.append((first + gpu, switch, 0, beta, None))
                rows.append((switch, first + gpu, 0, beta, None))
        for (src, dst), cost in sorted(local.items()):
            if (src, dst) not in switched:
                count = 1 if record.links is None else int(record.links[dst][src])
                for copy in range(count):
                    name = f"{first + src}->{first + dst}.{copy}" if count > 1 else None
                    rows.append((first + src, first + dst, 0, betas[cost], name))


def _add_remote(machine: _Machine, servers: int, pairs: Sequence[tuple[int, int]]) -> None:
    """Join every ordered pair of servers by links that have a share of the NICs each."""
    record, rows = machine.record, machine.rows
    gpus = record.gpus
    share = Fraction(len(pairs), record.nics)
    beta = machine.beta(Fraction(int((record.remote_beta or 0) * share)), "remote_beta")
    alpha = round(machine.time(record.remote_alpha or Fraction(0)))
    shared = servers > 2
    doors: dict[tuple[int, bool], str] = {}
    for server in range(servers) if shared else ():
        for leaves in (True, False):
            for gpu in sorted({pair[0] if leaves else pair[1] for pair in pairs}):
                rank, side = server * gpus + gpu, "out" if leaves else "in"
                door = machine.switch(f"s{server}/gpu{gpu}.{side}", across=True)
                doors[rank, leaves] = door
                ends = (rank, door) if leaves else (door, rank)
                rows.append((*ends, 0, beta, None))
    for one in range(servers):
        for other in range(servers):
            for sender, receiver in pairs if one != other else ():
                src, dst = one * gpus + sender, other * gpus + receiver
                if shared:
                    rows.append((doors[src, True], doors[dst, False], alpha, None, None))
                else:
                    rows.append((src, dst, alpha, beta, None))


def _numbered(machine: _Machine, ranks: int) -> Iterator[Edge]:
    """Yield the edges with numbers for vertices."""
    vertex = {switch.name: ranks + i for i, switch in enumerate(machine.switches)}
    for number, (tail, head, alpha, beta, name) in enumerate(machine.rows):
        ends = [end if isinstance(end, int) else vertex[end] for end in (tail, head)]
        named = name or edge_names(str(tail), str(head), None)[0]
        yield Edge(number, ends[0], ends[1], alpha, None, beta, named)


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

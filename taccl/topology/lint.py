"""What is likely to be wrong in a topology that can be read: one function a rule.

A rule yields findings; :data:`RULES` says how bad they are. Errors make a topology unusable,
warnings make it unlikely to be the machine that was meant, notes are worth a look. Findings of one
kind are one finding that names the first of them. The work is linear in edges and links.

Rules on numbers come first: units that look wrong, what no hardware has, what differs from its
kind. Rules on structure follow: what can't be reached, what is no symmetry, what is of no use. For
a topology from a file every finding has the line and field of the first edge that it is about.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from taccl.errors import InputError
from taccl.files import field_name
from taccl.topology.file import read_topology, unreachable_pair
from taccl.topology.graph import Edge, Topology
from taccl.topology.structure import FREE, gigabytes, homes, rank_rates, slowest_edges, unlike
from taccl.topology.symmetry import vertex_image
from taccl.topology.taccl_costs import Sketched
from taccl.units import PS_PER_US, format_time

SHOWN = 3
"""Names that a finding gives before it counts."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that a rule found.

    `rule` is a key of RULES, `severity` is ``error``, ``warning`` or ``note``. `where` names the
    edges, switches, ranks or pairs it is about, `problem` is what was found, `fix` what to do about
    it. `edges` has the first of its edges, by id, for looking up its place in a file: `file`,
    `line` and `field`, None: not known.
    """

    rule: str
    severity: str
    where: str
    problem: str
    fix: str
    edges: tuple[int, ...] = ()
    file: str | None = None
    line: int | None = None
    field: str | None = None

    def __str__(self) -> str:
        """Return severity, place, what was found and, on a second line, the fix."""
        line = "" if self.line is None else f":{self.line}"
        parts = [f"{self.file}{line}" if self.file else "", self.field or "", self.where]
        place = ": ".join(part for part in (self.severity, *parts) if part)
        return f"{place}: {self.problem} ({self.rule})\n  fix: {self.fix}"


Raw = tuple[str, str, str, tuple[int, ...]]
"""Where, problem, fix and edges."""


@dataclass(frozen=True, eq=False)
class Facts:
    """A topology and what several rules want to know of it."""

    topology: Topology

    @cached_property
    def homes(self) -> tuple[int | None, ...]:
        """The server of every vertex; None where there is none."""
        return homes(self.topology)

    @cached_property
    def slowest(self) -> tuple[NDArray[np.int64], tuple[Fraction, ...]]:
        """The largest beta of every link, as its place in the table of all."""
        return slowest_edges(self.topology)

    @cached_property
    def unused(self) -> tuple[int, ...]:
        """Edges on no link."""
        count = len(self.topology.edges)
        return tuple(np.setdiff1d(np.arange(count), self.topology.links.edge_ids).tolist())

    @cached_property
    def idle(self) -> frozenset[int]:
        """Switches, as vertices, none of whose edges is on a link."""
        live: set[int] = set()
        unused = set(self.unused)
        for edge in self.topology.edges:
            if edge.id not in unused:
                live |= {edge.tail, edge.head}
        first = self.topology.num_ranks
        return frozenset(range(first, first + len(self.topology.switches))) - live

    @cached_property
    def both_ways(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The pair of every link, src * ranks + dst, and the same turned round."""
        table, size = self.topology.links, self.topology.num_ranks
        src, dst = table.src.astype(np.int64), table.dst.astype(np.int64)
        return src * size + dst, dst * size + src

    def edges(self, found: Sequence[Edge]) -> str:
        """Return the names of some edges, the first ones and a count."""
        return listed("edge", [edge.name for edge in found])

    def edges_of(self, rank: int) -> tuple[int, ...]:
        """Return the first edge of a rank."""
        return tuple(e.id for e in self.topology.edges if rank in (e.tail, e.head))[:1]

    def pairs(self, keys: Sequence[int]) -> str:
        """Return some pairs of ranks, each src * ranks + dst."""
        size = self.topology.num_ranks
        return listed("pair", ["{} -> {}".format(*divmod(key, size)) for key in keys[:SHOWN]],
                      len(keys))  # fmt: skip

    def links_at(self, chosen: NDArray[np.bool_]) -> tuple[str, tuple[int, ...]]:
        """Return the pairs of some links, and the edges of the first."""
        table = self.topology.links
        found = np.flatnonzero(chosen)
        keys = np.unique(self.both_ways[0][found])
        return self.pairs(keys.tolist()), table.edges_of(int(found[0]))


def listed(what: str, names: Sequence[str], total: int | None = None) -> str:
    """Return ``edges a, b, c and 5 more``: ``what``, some ``names``, of how many in ``total``."""
    count = len(names) if total is None else total
    text = ", ".join(names[:SHOWN])
    more = f" and {count - SHOWN} more" if count > SHOWN else ""
    plural = "switches" if what == "switch" else f"{what}s"
    return f"{plural if count > 1 else what} {text}{more}"


SLOWEST = Fraction(1, 10)
"""GB/s below which a bandwidth is likely to be in other units: 1 Gb/s Ethernet is 0.125."""

FASTEST_RANK = Fraction(1800)
"""GB/s of the fastest GPU in one direction: NVLink 6, 3.6 TB/s in both."""

FASTEST_NIC = Fraction(100)
"""GB/s of the fastest NIC in one direction: 800 Gb/s."""

MOST_RANK = FASTEST_RANK + 2 * FASTEST_NIC
"""GB/s of all edges of a rank: its links to GPUs, and PCIe and a NIC beside them."""

LONGEST = 1000 * PS_PER_US
"""Picoseconds of a link's alpha above which its unit is likely to be wrong: a millisecond."""

FEW = 2
"""How many times slower than the median of its server a rank may be: a corner of a mesh is."""

MUCH = 8
"""How many times slower than the median of its kind an edge may be."""

LATE = 20
"""How many times the median alpha of its kind an edge may have."""


NUMBER = 4
"""Bytes of the numbers that switches add: int32, float."""


def _rate(value: Fraction) -> str:
    return f"{float(value):.4g} GB/s"


def _median(values: Iterable[Fraction | int], *, low: bool = False) -> Fraction:
    """Return the middle value; of two, the one that makes fewer others look slow."""
    ordered = sorted(map(Fraction, values))
    return ordered[(len(ordered) - low) // 2]


def slow_bandwidth(facts: Facts) -> Iterator[Raw]:
    """Find bandwidths that are likely to be in another unit."""
    found = [e for e in facts.topology.edges if e.beta is not None and e.beta * SLOWEST > 1000]
    if found:
        least = min(gigabytes(e.beta) for e in found if e.beta is not None)
        problem = f"{_rate(least)} is less than {_rate(SLOWEST)}, which no machine has"
        fix = "check the unit: 25GB/s, 200Gb/s or 46us/MB; a plain number is GB/s"
        yield facts.edges(found), problem, fix, (found[0].id,)


def fast_rank(facts: Facts) -> Iterator[Raw]:
    """Find ranks that send or receive more than any GPU."""
    rates = [max(pair) for pair in zip(*rank_rates(facts.topology), strict=True)]
    found = [rank for rank, rate in enumerate(rates) if rate > MOST_RANK]
    if found:
        yield (
            listed("rank", list(map(str, found))),
            f"{_rate(max(rates))} in one direction is more than any GPU has"
            f" ({_rate(FASTEST_RANK)} of NVLink 6, {_rate(2 * FASTEST_NIC)} beside it)",
            "give what goes in one direction: data sheets add up both, and count bits as Gb/s",
            facts.edges_of(found[0]),
        )  # fmt: skip


def fast_nic(facts: Facts) -> Iterator[Raw]:
    """Find edges between servers that are faster than the NICs of all ranks that use them."""
    topology, home = facts.topology, facts.homes
    first = topology.num_ranks
    joined = {(min(edge.tail, edge.head), max(edge.tail, edge.head)) for edge in topology.edges}
    users = Counter(vertex for rank, vertex in joined if rank < first)
    found = []
    for edge in topology.edges:
        if edge.beta is None or min(edge.tail, edge.head) < first:
            continue
        for near, far in ((edge.tail, edge.head), (edge.head, edge.tail)):
            outside = topology.switches[far - first].across_servers or home[far] is not None
            if home[near] is not None and home[far] != home[near] and outside:
                if gigabytes(edge.beta) > FASTEST_NIC * max(1, users[near]):
                    found.append(edge)
                break
    if found:
        most = max(gigabytes(e.beta) for e in found if e.beta is not None)
        yield (
            facts.edges(found),
            f"{_rate(most)} between servers is more than any NIC has ({_rate(FASTEST_NIC)})",
            "check the unit: NICs are sold by bits, 400Gb/s is 50GB/s; give every NIC its entry",
            (found[0].id,),
        )  # fmt: skip


def long_latency(facts: Facts) -> Iterator[Raw]:
    """Find links whose latency is likely to be in another unit."""
    alpha = facts.topology.links.alpha
    chosen = alpha > LONGEST
    if chosen.any():
        where, edges = facts.links_at(chosen)
        problem = f"an alpha of {format_time(int(alpha.max()))} is more than 1 ms"
        slowest = max(edges, key=lambda edge: facts.topology.edges[edge].alpha)
        yield where, problem, "check the unit: 0.7us or 700ns; a plain number is us", (slowest,)


def no_latency(facts: Facts) -> Iterator[Raw]:
    """Find links on which no edge has a latency."""
    chosen = facts.topology.links.alpha == 0
    if chosen.any():
        where, edges = facts.links_at(chosen)
        fix = "give an alpha; without one, many small messages are as good as a large one"
        yield where, f"{int(chosen.sum())} links have no alpha", fix, edges


def free_path(facts: Facts) -> Iterator[Raw]:
    """Find links on which no edge has a bandwidth."""
    chosen = facts.slowest[0] == FREE
    if chosen.any():
        where, edges = facts.links_at(chosen)
        count = f"{int(chosen.sum())} of {len(chosen)} links"
        problem = f"{count} have no bandwidth anywhere: messages of any size cross in no time"
        yield where, problem, "give one of the edges on the way a bandwidth", edges


def slow_rank(facts: Facts) -> Iterator[Raw]:
    """Find ranks that send or receive much less than the others of their server."""
    topology = facts.topology
    for what, rates in zip(("send", "receive"), rank_rates(topology), strict=True):
        found, of_all = [], _median(rates, low=True)
        for ranks in topology.servers:
            own = len(ranks) > 2
            median = _median((rates[r] for r in ranks), low=True) if own else of_all
            found += [(rank, median) for rank in ranks if 0 < rates[rank] * FEW < median]
        if found:
            rank, median = found[0]
            yield (
                listed("rank", [str(rank) for rank, _ in found]),
                f"can {what} {_rate(rates[rank])}, the median of its server is {_rate(median)}",
                "check the bandwidths of its edges for a typing error, or a missing edge",
                facts.edges_of(rank),
            )  # fmt: skip


def slow_edge(facts: Facts) -> Iterator[Raw]:
    """Find edges that are much slower or later than others of their kind.

    A kind are the ports into or out of a switch, or the wires inside or between servers; edges
    between switches belong to the switch that they enter.
    """
    first, home = facts.topology.num_ranks, facts.homes
    kinds: dict[tuple[str, int], list[Edge]] = defaultdict(list)
    for edge in facts.topology.edges:
        if edge.head >= first:
            kinds["into", edge.head].append(edge)
        elif edge.tail >= first:
            kinds["out of", edge.tail].append(edge)
        else:
            kinds["wire", int(home[edge.tail] == home[edge.head])].append(edge)
    slow, late = [], []
    for edges in (edges for edges in kinds.values() if len(edges) > 2):
        betas = [edge.beta for edge in edges if edge.beta is not None]
        beta = _median(betas) if len(betas) > 2 else None
        alpha = _median([edge.alpha for edge in edges])
        for edge in edges:
            if beta is not None and edge.beta is not None and edge.beta > beta * MUCH:
                slow.append((edge, f"{_rate(gigabytes(edge.beta))}, the median of its kind is"
                                   f" {_rate(gigabytes(beta))}"))  # fmt: skip
            if edge.alpha > alpha * LATE > 0:
                late.append((edge, f"an alpha of {format_time(edge.alpha)}, the median of its kind"
                                   f" is {format_time(int(alpha))}"))  # fmt: skip
    for found in (slow, late):
        if found:
            fix = "check the number for a typing error, or leave it if the machine is so"
            where = facts.edges([edge for edge, _ in found])
            yield where, found[0][1], fix, (found[0][0].id,)


def unreachable(facts: Facts) -> Iterator[Raw]:
    """Find a rank that another can't reach."""
    lost = unreachable_pair(facts.topology)
    if lost is not None:
        src, dst = lost
        yield (
            f"rank {dst}", f"rank {dst} can't be reached from rank {src}",
            f"add edges, wires or a fabric that lead from rank {src} to rank {dst}", (),
        )  # fmt: skip


def no_symmetry(facts: Facts) -> Iterator[Raw]:
    """Find declared rotations that are no symmetries."""
    for number, rotation in enumerate(facts.topology.rotations):
        try:
            vertex_image(facts.topology, rotation)
        except InputError as error:
            fix = "correct the permutation, or make what it maps onto each other alike"
            yield f"rotations[{number}]", f"is no symmetry: {error.problem}", fix, ()


def one_way(facts: Facts) -> Iterator[Raw]:
    """Find pairs of ranks with links in one direction only."""
    there, back = facts.both_ways
    lonely = np.setdiff1d(there, back).tolist()
    if lonely:
        problem = f"{len(lonely)} pairs have links in one direction only"
        fix = "remove both: false, or leave it if the machine is so"
        link = int(np.flatnonzero(there == lonely[0])[0])
        yield facts.pairs(lonely), problem, fix, facts.topology.links.edges_of(link)


def uneven(facts: Facts) -> Iterator[Raw]:
    """Find pairs of ranks whose two directions have other links."""
    table, (place, _) = facts.topology.links, facts.slowest
    there, back = facts.both_ways
    keys = unlike(*(np.stack([key, place, table.alpha]) for key in (there, back))).tolist()
    if keys:
        link = int(np.flatnonzero(there == keys[0])[0])
        problem = "bandwidth, alpha or number of links are not the same in the other direction"
        fix = "give both directions the same numbers, or leave it if the machine is so"
        yield facts.pairs(keys), problem, fix, table.edges_of(link)


def unused_switch(facts: Facts) -> Iterator[Raw]:
    """Find switches none of whose edges is on a link, but for farther ways to other servers."""
    topology = facts.topology
    idle = {v for v in facts.idle if not topology.switches[v - topology.num_ranks].across_servers}
    names = [topology.vertex_name(vertex) for vertex in sorted(idle)]
    if names:
        touching = (e.id for e in topology.edges if {e.tail, e.head} & idle)
        problem = "no shortest way between two ranks crosses it"
        fix = "join it to the ranks or switches that it serves, or remove it"
        yield listed("switch", names), problem, fix, tuple(touching)[:1]


def unused_edge(facts: Facts) -> Iterator[Raw]:
    """Find edges on no link, but for those of switches of no use."""
    edges = [facts.topology.edges[e] for e in facts.unused]
    found = [e for e in edges if e.tail not in facts.idle and e.head not in facts.idle]
    if found:
        problem = f"{len(found)} edges are on no shortest way between two ranks"
        fix = "remove them, or join what they lead to; a direct edge hides ways over switches"
        yield facts.edges(found), problem, fix, (found[0].id,)


def duplicate(facts: Facts) -> Iterator[Raw]:
    """Find edges with the ends and costs of another."""
    seen: set[tuple[int, int, int]] = set()
    found = []
    table = facts.topology.edge_table
    for edge, cost in zip(facts.topology.edges, table.cost.tolist(), strict=True):
        key = (edge.tail, edge.head, cost)
        if key in seen:
            found.append(edge)
        seen.add(key)
    if found:
        problem = "another edge has the same ends and the same costs"
        fix = "leave it if there are two cables; else remove one"
        yield facts.edges(found), problem, fix, (found[0].id,)


def far_from_ranks(facts: Facts) -> Iterator[Raw]:
    """Find switches that add for a rank, or copy or add through it, and are next to none."""
    topology = facts.topology
    ends = np.stack([topology.arcs.src, topology.arcs.dst])
    near = np.unique(ends[:, ends.min(axis=0) < topology.num_ranks])
    found = [
        vertex
        for vertex, switch in enumerate(topology.switches, topology.num_ranks)
        if vertex not in near and (
            (switch.reduce is not None and (switch.reduce.at_rank or switch.reduce.through))
            or (switch.multicast is not None and switch.multicast.through)
        )
    ]  # fmt: skip
    if found:
        touching = (e.id for e in topology.edges if {e.tail, e.head} & set(found))
        problem = "turn: rank and own: through are about the ranks behind a switch: there are none"
        fix = "write them at the switches that ranks are joined to"
        where = listed("switch", [topology.vertex_name(vertex) for vertex in found])
        yield where, problem, fix, tuple(touching)[:1]


def small_window(facts: Facts) -> Iterator[Raw]:
    """Find windows that hold less than one number."""
    windows = [(switch.name, switch.engine.window) for switch in facts.topology.switches]
    found = [name for name, window in windows if window is not None and window[1] < NUMBER]
    if found:
        fix = "give the bytes of a slot, as in {slots: 64, bytes: 2KiB}"
        yield listed("switch", found), "a slot of the window holds less than a number", fix, ()


@dataclass(frozen=True, slots=True)
class Rule:
    """A row of the table of rules.

    Findings have its `severity`; `find` takes facts and yields findings without rule and severity,
    and `about` says what it looks for.
    """

    severity: str
    find: Callable[[Facts], Iterator[Raw]]
    about: str


RULES: Mapping[str, Rule] = MappingProxyType({
    "unreachable": Rule("error", unreachable, "a rank that another can't reach"),
    "no-symmetry": Rule(
        "error", no_symmetry, "a declared rotation that is no symmetry"),
    "slow-bandwidth": Rule(
        "warning", slow_bandwidth, "a bandwidth below 0.1 GB/s: another unit was meant"),
    "fast-rank": Rule(
        "warning", fast_rank, "a rank with more than 2000 GB/s in one direction"),
    "fast-nic": Rule(
        "warning", fast_nic, "a NIC with more than 100 GB/s for each of its GPUs"),
    "long-latency": Rule("warning", long_latency, "a link with an alpha above 1 ms"),
    "no-latency": Rule("warning", no_latency, "links without alpha"),
    "free-path": Rule("warning", free_path, "links without any bandwidth"),
    "one-way": Rule(
        "warning", one_way, "pairs of ranks with links in one direction only"),
    "uneven": Rule("warning", uneven, "pairs of ranks whose two directions differ"),
    "slow-rank": Rule(
        "warning", slow_rank, "a rank with less than half the median of its server"),
    "slow-edge": Rule(
        "warning", slow_edge,
        "an edge 8 times slower than those of its kind, or with 20 times their alpha"),
    "unused-switch": Rule(
        "warning", unused_switch, "a switch on no shortest way between two ranks"),
    "unused-edge": Rule(
        "warning", unused_edge, "an edge on no shortest way between two ranks"),
    "far-from-ranks": Rule(
        "warning", far_from_ranks, "`turn: rank` or `own: through` at a switch next to no rank"),
    "small-window": Rule(
        "warning", small_window, "an engine whose slots are smaller than a number of 4 bytes"),
    "duplicate": Rule("note", duplicate, "parallel edges of equal cost"),
})  # fmt: skip
"""All rules, the worst first."""


def lint(topology: Topology) -> tuple[Finding, ...]:
    """Return what the rules find, in the order of the table.

    Raises InputError when the topology has too many links to hold.
    """
    facts = Facts(topology)
    return tuple(
        Finding(name, rule.severity, *raw)
        for name, rule in RULES.items()
        for raw in rule.find(facts)
    )


_OF_SERVER = re.compile(r"s(\d{1,6})/(.+?)(?:\.[tr]x)?")

Path = tuple[str | int, ...]


@dataclass(frozen=True, eq=False)
class Checked:
    """What checking a topology gave.

    `topology` is None where it can't be read, and then `error` says why and is the only one of the
    `findings`, which come with the worst first.
    """

    topology: Topology | None
    findings: tuple[Finding, ...]
    error: InputError | None = None

    @property
    def usable(self) -> bool:
        """Whether there is no error."""
        return all(finding.severity != "error" for finding in self.findings)


def check_topology(
    spec: str,
    *,
    nodes: int | None = None,
    fabric: str | None = None,
    sketched: Sketched | None = None,
) -> Checked:
    """Read a topology and apply all rules; what can't be read is a finding, too.

    ``spec``, ``nodes``, ``fabric`` and ``sketched`` are those of
    :func:`taccl.topology.file.load_topology`.
    """
    try:
        topology, document = read_topology(spec, nodes=nodes, fabric=fabric, sketched=sketched)
        found = lint(topology)
    except InputError as error:
        unread = Finding(
            "unread", "error", "", error.problem, error.fix or "", (), error.file, error.line,
            error.field,
        )  # fmt: skip
        return Checked(None, (unread,), error)
    if document is None:
        return Checked(topology, found)
    placed = []
    for finding in found:
        edges = [topology.edges[edge] for edge in finding.edges[:1]]
        path = _place(topology, edges[0], document.value) if edges else ()
        line = document.line(path) if path else None
        placed.append(
            replace(finding, file=document.file, line=line, field=field_name(path) or None)
        )
    return Checked(topology, tuple(placed))


def _place(topology: Topology, edge: Edge, value: object) -> Path:
    """Return where a file says what an edge is, as far as that can be told."""
    fields = value if isinstance(value, dict) else {}
    if "shape" in fields:
        return ("shape",)
    if "edges" not in fields:
        return _in_server(topology, edge, fields)
    made, entries = 0, fields["edges"]
    for number, entry in enumerate(entries if isinstance(entries, list) else ()):
        made += 2 if isinstance(entry, dict) and entry.get("both", True) else 1
        if edge.id < made:
            return ("edges", number)
    return ()


def _in_server(topology: Topology, edge: Edge, fields: Mapping[str, object]) -> Path:
    """Return the switch, NIC or wire of the server form that makes an edge, else the fabric."""
    for vertex in (edge.tail, edge.head):
        match = _OF_SERVER.fullmatch(topology.vertex_name(vertex))
        if match is not None:
            for place, entry in _entries(fields, int(match[1])):
                if entry.get("name") == match[2]:
                    return place
    if max(edge.tail, edge.head) < topology.num_ranks:
        server = topology.server_of[edge.tail]
        first = topology.server_of.index(server)
        for place, entry in _entries(fields, server):
            if {entry.get("from"), entry.get("to")} == {edge.tail - first, edge.head - first}:
                return place
    return ("fabric",) if "fabric" in fields else ()


def _entries(
    fields: Mapping[str, object], server: int
) -> Iterator[tuple[Path, Mapping[str, object]]]:
    """Yield all that is listed of a server, with its path."""
    place: Path = ("node",)
    node, nodes = fields.get("node"), fields.get("nodes")
    if not isinstance(node, dict) and isinstance(nodes, list) and server < len(nodes):
        place, node = ("nodes", server), nodes[server]
    for kind, entries in node.items() if isinstance(node, dict) else ():
        for number, entry in enumerate(entries if isinstance(entries, list) else ()):
            if isinstance(entry, dict):
                yield (*place, kind, number), entry

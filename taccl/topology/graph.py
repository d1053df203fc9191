"""The network as engines see it: a directed graph whose edges are the resources.

Vertices are ranks ``0 .. num_ranks-1`` followed by switches. Everything that can be busy is an
edge: a wire, a switch port, a NIC. A link joins two ranks over one or more edges; which links
exist is derived from the graph, lazily. Edges and links are also there as columns, for code that
looks at all of them at once (:class:`EdgeTable`, :class:`LinkTable`).
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from taccl.errors import InputError, NoScheduleError
from taccl.topology.links import LinkTable, derive_links
from taccl.units import Time, ceil_time

if TYPE_CHECKING:
    from taccl.collectives import Collective


@dataclass(frozen=True, eq=False)
class EdgeTable:
    """All edges, one entry each in order of id.

    `tail` and `head` are int64 vertices, `is_resource` tells whether the edge has a beta, and equal
    numbers in `cost` (int64) stand for equal (alpha, overhead, beta), where None is a value of its
    own.
    """

    tail: NDArray[np.int64]
    head: NDArray[np.int64]
    cost: NDArray[np.int64]
    is_resource: NDArray[np.bool_]

    def __len__(self) -> int:
        """Return the number of edges."""
        return len(self.tail)


Rank = int
EdgeId = int
LinkId = int
Permutation = tuple[Rank, ...]

ALPHA_RULES = ("occupy", "delay")

COST_MODES = ("exact", "original")
"""How a foreign file\'s costs are taken: as it says, or as its tool took them."""


@dataclass(frozen=True, slots=True)
class Multicast:
    """What a switch does that copies a message to several of its ports.

    Where the copies are `through` the switch for their sender, too, it gets one back (NVLS).
    """

    through: bool = False


@dataclass(frozen=True, slots=True)
class Reduction:
    """What a switch does that adds messages from several of its ports.

    With `through` the value of the rank that gets the sum goes through the switch like the others
    (NVLS); `at_rank`: sums go down to one rank or switch, and never turn round here to several.
    `types` are the data types that it adds, by their names in nccl-tests; none: all.
    """

    through: bool = False
    at_rank: bool = False
    types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FanEngine:
    """What limits the part of a switch that copies and adds, at every port.

    `beta` is the least picoseconds for each byte, `alpha` picoseconds added once to what crosses
    it, `window` how many slots of how many bytes a port may have under way, and `message` the bytes
    of the largest message. None: no limit.
    """

    beta: Fraction | None = None
    alpha: Time = 0
    window: tuple[int, Fraction] | None = None
    message: Fraction | None = None


NO_ENGINE = FanEngine()


@dataclass(frozen=True, slots=True)
class Switch:
    """A vertex that is no rank: an NVSwitch, a NIC side, a leaf or spine.

    `name` is unique among the switches, `multicast` and `reduce` are what it can do inside the
    network (None: it can't), under the limits of its `engine`; a schedule may use so many different
    `trees` and sets of ranks (`groups`) there, None: any. `across_servers` is set when it carries
    only paths between ranks of different servers.
    """

    name: str
    multicast: Multicast | None = None
    reduce: Reduction | None = None
    across_servers: bool = False
    engine: FanEngine = NO_ENGINE
    trees: int | None = None
    groups: int | None = None

    @property
    def is_station(self) -> bool:
        """Whether it can copy or add."""
        return self.multicast is not None or self.reduce is not None


@dataclass(frozen=True, slots=True)
class Edge:
    """One directed hop: the resource, which carries one message at a time.

    `id` is its position in ``Topology.edges``, `tail` and `head` are vertices: a rank, or
    ``num_ranks + i`` for switch i. `alpha` is its latency and `overhead` the part of it that keeps
    the edge busy, in picoseconds (None: by the rule); `beta` is picoseconds for each byte, None:
    not a resource, the edge only adds alpha. `name` is what messages call it.
    """

    id: EdgeId
    tail: int
    head: int
    alpha: Time
    overhead: Time | None
    beta: Fraction | None
    name: str


@dataclass(frozen=True, slots=True)
class Link:
    """A directed rank-to-rank connection: one row of the link table.

    `id` is its row in ``Topology.links``, `src` and `dst` are the ranks that it joins, `edges`
    those it crosses, in order; `alpha` and `overhead` are sums over these, in picoseconds.
    """

    id: LinkId
    src: Rank
    dst: Rank
    edges: tuple[EdgeId, ...]
    alpha: Time
    overhead: Time


@dataclass(frozen=True, slots=True)
class LocalCosts:
    """What work inside a rank costs; 0 is free.

    `copy_beta` and `reduce_beta` are picoseconds for each byte copied or reduced, `launch` is
    picoseconds added once to every run.
    """

    copy_beta: Fraction = Fraction(0)
    reduce_beta: Fraction = Fraction(0)
    launch: Time = 0


@dataclass(frozen=True, slots=True)
class ProtocolCosts:
    """What a protocol costs a program on real hardware.

    `launch`: picoseconds added once to every run.
    `alpha`, `alpha_across`: picoseconds from the end of a slice's flow to its arrival, within a
    server and between servers; they hold nothing.
    `wire`: bytes on the wire for each byte of data.
    `block_beta`: least picoseconds in which a threadblock moves a byte of data; 0: only edges limit
    it.
    `slice_bytes`: least bytes of a slice.
    `detour`: how many times as long bytes take between servers, through the memory of hosts.
    """

    launch: Time
    alpha: Time
    alpha_across: Time
    wire: Fraction = Fraction(1)
    block_beta: Fraction = Fraction(0)
    slice_bytes: int = 32 << 10
    detour: Fraction = Fraction(1)


@dataclass(frozen=True, slots=True)
class ProgramCosts:
    """What programs cost on real hardware, where these were measured.

    `source`: where the numbers are from.
    `protocols`: costs of each protocol, by name.
    `inside`, `across`: the part of their stated bandwidth that edges carry of what is on the wire:
    of those that links within a server use, and of those that only links between servers do.
    `copy_beta`, `reduce_beta`: picoseconds for each byte that a threadblock copies, or reduces.
    `flag`: picoseconds from the post of a step to where other threadblocks see it.
    `slices`: most slices of a message.
    `plans`: costs of MSCCL++ plans, by what tells that data has come: signals (``Simple``), packets
    (``LL``), and what switches copy and add (``NVLS``); None: plans cost what programs do.
    `several`: the part of `inside` that is left on an edge which several links of a program use.
    """

    source: str
    protocols: Mapping[str, ProtocolCosts]
    inside: Fraction = Fraction(1)
    across: Fraction = Fraction(1)
    copy_beta: Fraction = Fraction(0)
    reduce_beta: Fraction = Fraction(0)
    flag: Time = 0
    slices: int = 8
    plans: "ProgramCosts | None" = None
    several: Fraction = Fraction(1)


@dataclass(frozen=True, eq=False)
class Topology:
    """Ranks, switches and edges; compared by identity, as it holds lazy columns.

    `name`: what reports call it.
    `num_ranks`: ranks are ``0 .. num_ranks-1``.
    `switches`: vertex ``num_ranks + i`` is ``switches[i]``.
    `edges`: in file order; ``edges[i].id == i``.
    `server_of`: the server of each rank.
    `rotations`: declared symmetries as rank permutations (rank r goes to ``rotation[r]``), not
    verified.
    `alpha_rule`: ``occupy`` or ``delay``: what overhead an edge has that declares none.
    `local`: what work inside a rank costs.
    `chunk_size`: bytes of a chunk when no size is asked for; None: no default.
    `costs`: how the costs of an imported TACCL topology were taken: ``exact``, its numbers as they
    are, or ``original``, as TACCL computes with them; None: they are the machine's own.
    `gpu`: a name of ``core_form.Gpu``: what NCCL's time model is told of the machine; None: not
    known. Nothing else depends on it.
    `relays`: so many of the last ranks are in no group: they may relay and add, no more.
    """

    name: str
    num_ranks: int
    switches: tuple[Switch, ...]
    edges: tuple[Edge, ...]
    server_of: tuple[int, ...]
    rotations: tuple[Permutation, ...] = ()
    alpha_rule: str = "occupy"
    local: LocalCosts = field(default_factory=LocalCosts)
    chunk_size: Fraction | None = None
    costs: str | None = None
    gpu: str | None = None
    measured: ProgramCosts | None = None
    relays: int = 0

    @cached_property
    def links(self) -> LinkTable:
        """The derived links; ids ascend with (src, dst, path in file order)."""
        return derive_links(self)

    @cached_property
    def stations(self) -> NDArray[np.bool_]:
        """Whether each vertex is a rank, or a switch that can copy or add."""
        able = [switch.is_station for switch in self.switches]
        return np.array([True] * self.num_ranks + able, dtype=np.bool_)

    @cached_property
    def arcs(self) -> LinkTable:
        """The shortest paths from or to a switch that copies or adds, through no other station.

        Columns as of :attr:`links`, which has the paths from rank to rank; ``src`` and ``dst`` are
        vertices, and ``first`` has an entry for each.
        """
        return derive_links(self, self.stations, between_ranks=False)

    @cached_property
    def edge_table(self) -> EdgeTable:
        """The edges in columns."""
        # Fractions are slow to hash, and most edges share theirs: number the objects first.
        number: dict[Fraction | None, int] = {}
        by_object = {id(edge.beta): edge.beta for edge in self.edges}
        beta_of = {key: number.setdefault(beta, len(number)) for key, beta in by_object.items()}
        costs: dict[tuple[int, int | None, int], int] = {}
        cost = [
            costs.setdefault((edge.alpha, edge.overhead, beta_of[id(edge.beta)]), len(costs))
            for edge in self.edges
        ]
        return EdgeTable(
            np.array([edge.tail for edge in self.edges], dtype=np.int64),
            np.array([edge.head for edge in self.edges], dtype=np.int64),
            np.array(cost, dtype=np.int64),
            np.array([edge.beta is not None for edge in self.edges], dtype=np.bool_),
        )

    @cached_property
    def servers(self) -> tuple[tuple[Rank, ...], ...]:
        """The ranks of every server, in order of the servers' numbers."""
        members: dict[int, list[Rank]] = defaultdict(list)
        for rank, server in enumerate(self.server_of):
            members[server].append(rank)
        return tuple(tuple(members[server]) for server in sorted(members))

    @property
    def num_servers(self) -> int:
        """How many servers there are."""
        return len(self.servers)

    def link(self, link: LinkId) -> Link:
        """Return one row of the link table as a record."""
        table = self.links
        return Link(
            link, int(table.src[link]), int(table.dst[link]), table.edges_of(link),
            int(table.alpha[link]), int(table.overhead[link]),
        )  # fmt: skip

    def links_between(self, src: Rank, dst: Rank) -> tuple[LinkId, ...]:
        """Return the parallel links from ``src`` to ``dst``, in order of id."""
        return self.links.between(src, dst)

    def busy(self, link: LinkId, edge: EdgeId, size: Fraction | int) -> Time:
        """Return how long a message of ``size`` bytes on ``link`` holds one of its edges."""
        beta = self.edges[edge].beta
        if beta is None:
            return 0
        return int(self.links.overhead[link]) + ceil_time(beta, size)

    def arrival(self, link: LinkId, size: Fraction | int) -> Time:
        """Return the time from the start of a message on ``link`` to its arrival."""
        beta = self.links.max_beta(link)
        return int(self.links.alpha[link]) + ceil_time(beta, size)

    def edge_overhead(self, edge: Edge) -> Time:
        """Return an edge's overhead: as given, else by the alpha rule."""
        if edge.overhead is not None:
            return edge.overhead
        return edge.alpha if self.alpha_rule == "occupy" else 0

    @property
    def alpha_rule_stated(self) -> str:
        """The rule as results state it: ``explicit`` when any edge gives its own overhead."""
        explicit = any(edge.overhead is not None for edge in self.edges)
        return "explicit" if explicit else self.alpha_rule

    @property
    def rules_stated(self) -> str:
        """The alpha rule and how imported costs were taken: ``occupy, original costs``."""
        rule = self.alpha_rule_stated
        return f"{rule}, {self.costs} costs" if self.costs else rule

    def vertex_name(self, vertex: int) -> str:
        """Return how messages call a vertex: the rank number or the switch name."""
        if vertex < self.num_ranks:
            return str(vertex)
        return self.switches[vertex - self.num_ranks].name

    def reversed(self) -> "Topology":
        """Return the topology with every edge turned round; edge ids stay.

        What copied adds, and what added copies: a tree that is turned round, too, is one again.
        """
        turned = (replace(edge, tail=edge.head, head=edge.tail) for edge in self.edges)
        switches = []
        for switch in self.switches:
            copies, adds = switch.multicast, switch.reduce
            switches.append(replace(
                switch, multicast=None if adds is None else Multicast(adds.through),
                reduce=None if copies is None
                else Reduction(copies.through, adds is None or adds.at_rank),
            ))  # fmt: skip
        return replace(self, edges=tuple(turned), switches=tuple(switches))

    @property
    def copies_or_adds(self) -> bool:
        """Whether some switch can copy or add."""
        return any(switch.is_station for switch in self.switches)

    def point_to_point(self) -> "Topology":
        """Return the same network whose switches neither copy nor add."""
        if not self.copies_or_adds:
            return self
        plain = (Switch(each.name, across_servers=each.across_servers) for each in self.switches)
        return replace(self, switches=tuple(plain))

    def with_alpha_rule(self, rule: str) -> "Topology":
        """Return the same network under another alpha rule.

        Raises InputError when there is no such rule.
        """
        if rule not in ALPHA_RULES:
            raise InputError(
                f"unknown alpha rule {rule!r}", field="alpha_rule", fix="use occupy or delay"
            )
        return replace(self, alpha_rule=rule)

    def with_costs(self, edges: Sequence[Edge], local: LocalCosts | None = None) -> "Topology":
        """Return the same network whose edges, and perhaps local work, cost something else.

        The `edges` are as they are but for alpha, overhead and beta: which links there are does not
        change. `local` None: local work costs what it did.
        """
        made = replace(self, edges=tuple(edges), local=self.local if local is None else local)
        # Deriving links is most of the work of making a topology; a cached_property lives here.
        made.__dict__["links"] = self.links.with_costs(made)
        if "arcs" in self.__dict__:
            made.__dict__["arcs"] = self.arcs.with_costs(made)
        return made

    def with_connections(self, beta: Fraction) -> "Topology":
        """Return the same network whose links are resources, too: `beta` picoseconds a byte each.

        Every link has an edge more, of which it is the only one. The result is for timing alone:
        its links are not those that its edges would give.
        """
        links, known = self.links, len(self.edges)
        own = range(known, known + len(links))
        ends = zip(own, links.src.tolist(), links.dst.tolist(), strict=True)
        edges = (
            Edge(one, src, dst, 0, 0, beta, f"connection {src}-{dst}") for one, src, dst in ends
        )
        made = replace(self, edges=(*self.edges, *edges))
        made.__dict__["links"] = links.with_own_edges(own, beta)
        return made


@dataclass(frozen=True, eq=False)
class LogicalTopology:
    """A topology as a sketch restricts it; without a sketch, the whole of it.

    `topology`: the physical network; link ids are its own.
    `allowed`: one bool for each link of the topology: may it be used at all?
    `symmetry`: declared generators of the symmetry group to use, as rank permutations; symmetry.py
    verifies them.
    `symmetry_asked`: whether a sketch demands these very generators: then they must hold.
    `switch_policy`: switch name to ``uc-min`` (few distinct connections), ``uc-max`` (many) or
    ``free``; the name ``*`` stands for every link inside a server.
    `leave_by`: for ranks whose chunks must leave their server by certain senders: the senders.
    `own_chunks_first`: at a sender, its own chunks leave the server before the others.
    `max_extra_hops`: how many hops a path may be longer than the shortest; None: any.
    `on_shortest_paths`: a chunk may visit only ranks that lie on a path with the fewest hops over
    allowed links, from one of its sources to one of its targets; a sum on its way to its owner, and
    from there. The path itself may be longer.
    `connections_per_rank`, `channels`: limits; None: no limit.
    `chunks_per_rank`: the chunk count the sketch asks for; None: none.
    `name`: the sketch's name, or None without a sketch.
    `balance`: between equally good routes: ``minmax`` keeps the busiest link inside servers light,
    ``maxmin`` uses them all alike; None: no preference.
    `why_unserved`: what tells which fields of the sketch leave a chunk of a collective unserved, if
    it is known that no schedule keeps them; None without a sketch.
    """

    topology: Topology
    allowed: NDArray[np.bool_]
    symmetry: tuple[Permutation, ...] = ()
    symmetry_asked: bool = False
    switch_policy: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    leave_by: Mapping[Rank, frozenset[Rank]] = field(default_factory=lambda: MappingProxyType({}))
    own_chunks_first: bool = False
    max_extra_hops: int | None = None
    on_shortest_paths: bool = False
    connections_per_rank: int | None = None
    channels: int | None = None
    chunks_per_rank: int | None = None
    name: str | None = None
    balance: str | None = None
    why_unserved: "Callable[[Collective], NoScheduleError | None] | None" = None

    def links(self) -> Iterator[LinkId]:
        """Yield the ids of the allowed links, ascending."""
        yield from np.flatnonzero(self.allowed).tolist()


def whole(topology: Topology, symmetry: Sequence[Permutation] = ()) -> LogicalTopology:
    """Return ``topology`` with every link allowed, and with ``symmetry``, generators to use."""
    return LogicalTopology(topology, np.ones(len(topology.links), dtype=np.bool_), tuple(symmetry))

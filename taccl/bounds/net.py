"""What the bounds see of a network and of a collective: links, distances, and what must cross.

Of the network only edges on an allowed link count (:class:`Net`). The *unit* is a byte when
messages may be cut and joined at will (``chunk`` None), and a whole chunk when every message
carries exactly one. Distances are exact: integers of picoseconds or of prices.

Where switches copy and add, the vertices are *stations*: ranks, and behind them such switches,
which hold and want nothing themselves (*helpers*). What goes over a fan is a set of one-way
messages along its arcs, from station to station; a message from rank to rank passes the same edges
on a link. So a row is a link or an arc. What is said of a rank, of all ranks, or of a set of them
is said of the ranks; a set that is cut off from the others has its helpers on either side.

Of millions of links each edge is a row of its own, and all switches are helpers: a message passes
the edges of its link one after the other, and may do whatever it may do on the link. Those that do
not copy and add are *relays*: what comes to one goes on to one vertex. What holds there for every
algorithm holds on the links, too.

Of a collective, :func:`leaves` says how much data must leave a set of ranks; the port, cut, flow
and reduce bounds hand it over as a :class:`Crossing`, an amount that must pass a set of edges.

A bound that is the largest of many, one for each rank, is the same at all images of a rank under
the rotations that a topology declares. So to look at one rank, or server, of each orbit only
(:func:`one_of_each`) is always allowed (whatever is left out, the rest still holds), and loses
nothing where the rotations are true symmetries. Sums over all ranks need the proof that
:func:`proved_orbits` asks for.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.bounds.arrival_curves import Gate, Gates, gather
from taccl.collectives import Collective
from taccl.errors import InputError, NoScheduleError, TacclError
from taccl.topology.graph import LogicalTopology, Permutation, Topology
from taccl.topology.links import MAX_PATHS, MOST_LINKS
from taccl.topology.symmetry import edge_image, smallest_of_orbit, vertex_image
from taccl.units import PS_PER_S, Time, ceil_time, format_size

IntArray = NDArray[np.int64]
Ends = tuple[IntArray, IntArray]
"""Where each link begins and where it ends."""

FAR = np.int64(1) << 61
"""Distance of what can't be reached."""

EXACT = 1 << 53
"""Up to here floats are exact integers."""

SPARSE = 8
"""With fewer than one link for so many pairs, searches from every rank are faster than rows."""


def shortest(ranks: int, ends: Ends, lengths: IntArray) -> IntArray:
    """Return the least length from each of so many `ranks` to each, ``FAR`` where there is no path.

    `ends` are where each link begins and ends, `lengths` the picoseconds (or prices) of each.
    """
    longest = int(lengths.max(initial=0)) * ranks
    if ranks * ranks > SPARSE * len(lengths) and longest < EXACT:
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import dijkstra

        pairs, links = shortest_links(ranks, ends, lengths)
        weights = lengths[links].astype(np.float64)
        graph = csr_array((weights, (pairs // ranks, pairs % ranks)), shape=(ranks, ranks))
        found = dijkstra(graph)
        return np.where(np.isfinite(found), found, float(FAR)).astype(np.int64)
    table = np.full((ranks, ranks), FAR, dtype=np.int64)
    np.fill_diagonal(table, 0)
    np.minimum.at(table, ends, lengths)
    # The shortest link at every rank: no path through it is shorter at that end.
    least_out, least_in = np.full((2, ranks), FAR, dtype=np.int64)
    np.minimum.at(least_out, ends[0], lengths)
    np.minimum.at(least_in, ends[1], lengths)
    largest = table.max()
    for middle in range(ranks):
        if least_in[middle] + least_out[middle] >= largest:
            continue
        np.minimum(table, table[:, middle, None] + table[middle], out=table)
        np.minimum(table, FAR, out=table)
        largest = table.max()
    return table


def shortest_links(
    ranks: int, ends: Ends, lengths: NDArray[np.int64] | NDArray[np.float64]
) -> tuple[IntArray, IntArray]:
    """Return the pairs (tail * ranks + head) that links join, ascending, and the shortest of each.

    `ends` and `lengths` are those of the links; a sparse matrix would add up parallel ones.
    """
    order = np.argsort(lengths, kind="stable")
    pairs, first = np.unique((ends[0] * ranks + ends[1])[order], return_index=True)
    return pairs, order[first]


class ByHead(NamedTuple):
    """Links in order of where they end: the order, their tails, the heads, and each one's first."""

    order: IntArray
    tails: IntArray
    heads: IntArray
    first: IntArray


def by_head(ends: Ends) -> ByHead:
    """Return links, given by their `ends`, in order of where they end."""
    every = np.arange(len(ends[1]) + 1)
    order, first = transposed(every, ends[1], int(ends[1].max(initial=-1)) + 1)
    heads = np.flatnonzero(np.diff(first))
    return ByHead(order, ends[0][order], heads, first[heads])


def transposed(first: IntArray, values: IntArray, count: int) -> tuple[IntArray, IntArray]:
    """Return the rows that have each of so many values, as CSR: all rows, and where each's begin.

    Row i has ``values[first[i]:first[i+1]]``. Rows of a value are ascending.
    """
    from scipy.sparse import csr_array

    # Counted, not sorted: there may be a hundred million.
    shape = (len(first) - 1, count)
    found = csr_array((np.ones(len(values), dtype=np.bool_), values, first), shape=shape).tocsc()
    return found.indices, found.indptr


def relaxed(ranks: int, links: ByHead, lengths: IntArray, starts: Sequence[int]) -> IntArray:
    """Return the least length to each of so many `ranks` from the nearest of some `starts`.

    All `links` are relaxed until it holds; `lengths` are their picoseconds (or prices) by number.
    ``FAR`` where there is no path.
    """
    distance = np.full(ranks, FAR, dtype=np.int64)
    distance[list(starts)] = 0
    if not len(links.order):
        return distance
    lengths = lengths[links.order]
    while True:
        found = np.minimum.reduceat(distance[links.tails] + lengths, links.first)
        shorter = found < distance[links.heads]
        if not shorter.any():
            return distance
        distance[links.heads[shorter]] = found[shorter]


@dataclass(frozen=True, slots=True)
class Crossing:
    """An amount that must pass some `gates`, by an idea: `kind`, a key of ``KINDS``.

    The `share` is the amount in units of ``size`` (weighted, when the gates are).
    """

    kind: str
    gates: Gates
    share: Fraction


class Task(NamedTuple):
    """Equal chunks of a collective: who has them, who wants them, and how many there are."""

    sources: tuple[int, ...]
    targets: tuple[int, ...]
    chunks: int


def tasks_of(collective: Collective) -> list[Task]:
    """Return the chunks of a collective by their sources and targets."""
    sets = collective.rank_sets
    keys = collective.source_set.astype(np.int64) * len(sets) + collective.target_set
    return [
        Task(sets[key // len(sets)], sets[key % len(sets)], count)
        for key, count in zip(*(part.tolist() for part in np.unique(keys, return_counts=True)),
                              strict=True)
    ]  # fmt: skip


UNIFORM = ("allgather", "reducescatter", "allreduce", "alltoall")


def is_uniform(collective: Collective) -> bool:
    """Tell whether every rank is known to have data for every other, all alike."""
    return collective.name in UNIFORM


def flows_in(collective: Collective) -> bool:
    """Tell whether all data of a collective with a root flows to it, not from it."""
    return collective.name in ("reduce", "gather")


LEAVES: Mapping[str, Callable[[int, int, bool], Fraction]] = MappingProxyType({
    "allgather": lambda inside, ranks, _: Fraction(inside, ranks),
    "reducescatter": lambda inside, ranks, _: Fraction(ranks - inside, ranks),
    "allreduce": lambda _inside, _ranks, _: Fraction(1),
    "alltoall": lambda inside, ranks, _: Fraction(inside * (ranks - inside), ranks),
    "broadcast": lambda _inside, _ranks, has_root: Fraction(has_root),
    "reduce": lambda _inside, _ranks, has_root: Fraction(not has_root),
    "gather": lambda inside, ranks, has_root: Fraction(0 if has_root else inside, ranks),
    "scatter": lambda inside, ranks, has_root: Fraction(ranks - inside if has_root else 0, ranks),
})  # fmt: skip
"""(ranks in a set, all ranks, is the root in it) to what must leave the set, in units of ``size``.

With sums, something that the set contributed to must leave for every piece the others want. These
are what :func:`counted` counts for any collective, known without looking at chunks.
"""


def leaves(collective: Collective, inside: Sequence[int]) -> Fraction:
    """Return what must leave the ranks `inside` a set in a `collective`, in units of ``size``."""
    ranks = collective.num_ranks
    if not 0 < len(inside) < ranks:
        return Fraction(0)
    known = LEAVES.get(collective.name)
    if known is None:
        return counted(collective, inside)
    return known(len(inside), ranks, collective.root in inside)


def counted(collective: Collective, inside: Sequence[int]) -> Fraction:
    """Return what must leave the ranks `inside` a set, chunk by chunk, in units of ``size``.

    A chunk of the `collective` that is copied must leave when only the set has it and others want
    it; of a sum some part must leave when the set has a part of it and others want it.
    """
    within = np.zeros(collective.num_ranks, dtype=np.bool_)
    within[list(inside)] = True
    some, every = (
        np.array([test(within[list(ranks)]) for ranks in collective.rank_sets], dtype=np.bool_)
        for test in (np.any, np.all)
    )
    has = some if collective.reduces else every
    wanted = ~every
    count = int(np.count_nonzero(has[collective.source_set] & wanted[collective.target_set]))
    return Fraction(count, collective.chunks_in_size)


def between_pairs(collective: Collective) -> NDArray[np.int64]:
    """Return how many chunks of each rank (row) must reach each other rank (column).

    Of what several ranks could serve, none counts.
    """
    counts = np.zeros((collective.num_ranks,) * 2, dtype=np.int64)
    if is_uniform(collective):
        all_of_all = collective.name == "allreduce"
        counts += collective.num_chunks if all_of_all else collective.chunks_per_rank
        np.fill_diagonal(counts, 0)
        return counts
    for sources, targets, count in tasks_of(collective):
        if collective.reduces or len(sources) == 1:
            counts[np.ix_(sources, targets)] += count
    np.fill_diagonal(counts, 0)
    return counts


MOST_RANKS = 1024
"""Above this a table of all distances takes too much time and memory."""

LONGEST = 1 << 56
"""Picoseconds of one chunk for each rank: thousands of these still add up in 64 bits."""


@dataclass(frozen=True, eq=False)
class Net:
    """The allowed links of a `topology` in columns, where messages carry `chunk` bytes; None: any.

    `src`, `dst`, `alpha` and `overhead` have one entry an allowed link (or arc); link i crosses the
    edge ids ``edges[first[i]:first[i+1]]``. `helpers` are the vertices of the topology that follow
    the ranks here: the switches that copy or add, and `relays`, which only pass on.
    """

    topology: Topology
    chunk: Fraction | None
    src: IntArray
    dst: IntArray
    alpha: IntArray
    overhead: IntArray
    first: IntArray
    edges: IntArray
    helpers: tuple[int, ...] = ()
    relays: tuple[int, ...] = ()

    @property
    def num_ranks(self) -> int:
        """How many ranks take part."""
        return self.topology.num_ranks

    @property
    def vertices(self) -> int:
        """How many ranks and helpers there are."""
        return self.num_ranks + len(self.helpers)

    @cached_property
    def number(self) -> IntArray:
        """For every vertex of the topology its number here; -1 where it is none."""
        numbers = np.full(self.num_ranks + len(self.topology.switches), -1, dtype=np.int64)
        numbers[[*range(self.num_ranks), *self.helpers]] = np.arange(self.vertices)
        return numbers

    @cached_property
    def used(self) -> tuple[int, ...]:
        """Edges that some allowed link crosses, ascending."""
        return tuple(np.flatnonzero(np.bincount(self.edges)).tolist())

    @cached_property
    def through(self) -> dict[int, IntArray]:
        """For every used edge, the links that cross it."""
        links, first = transposed(self.first, self.edges, len(self.topology.edges))
        return {edge: links[first[edge] : first[edge + 1]] for edge in self.used}

    @cached_property
    def _wire(self) -> dict[int, Fraction]:
        """Time of one unit on every edge that is a resource, without overhead."""
        betas = {e: self.topology.edges[e].beta for e in self.used}
        return {
            e: beta if self.chunk is None else Fraction(ceil_time(beta, self.chunk))
            for e, beta in betas.items()
            if beta is not None
        }

    @cached_property
    def wires(self) -> tuple[Fraction, ...]:
        """The distinct times of one unit on a resource, without overhead."""
        return tuple(sorted(set(self._wire.values())))

    @cached_property
    def wire_id(self) -> IntArray:
        """For every edge of the topology its place in ``wires``; -1 where it is no resource."""
        place = {wire: number for number, wire in enumerate(self.wires)}
        ids = np.full(len(self.topology.edges), -1, dtype=np.int64)
        for edge, wire in self._wire.items():
            ids[edge] = place[wire]
        return ids

    def late(self, links: IntArray, edges: IntArray) -> IntArray:
        """Return what passes, at least, beside the time on one resource of each of some links.

        From the release of the edge to the arrival where messages carry a chunk, else all alpha.
        """
        if self.chunk is None:
            return self.whole_alpha(links)
        wire = np.array([int(wire) for wire in self.wires], dtype=np.int64)[self.wire_id[edges]]
        late: IntArray = self.alpha[links] - self.overhead[links] + self._slowest[links] - wire
        return late

    @cached_property
    def _slowest(self) -> IntArray:
        """Time of one chunk on the slowest edge of every link; 0 where messages may be cut."""
        times = np.zeros(len(self.topology.edges), dtype=np.int64)
        if self.chunk is not None:
            for edge, time in self._wire.items():
                times[edge] = int(time)
        if len(self.edges) == 0:
            return np.zeros(len(self.src), dtype=np.int64)
        return np.maximum.reduceat(times[self.edges], self.first[:-1])

    @cached_property
    def link_time(self) -> IntArray:
        """The least time from start to arrival on every link: alpha, and a chunk's own time."""
        return self.alpha + self._slowest

    @cached_property
    def busy(self) -> dict[int, Fraction]:
        """The least time that a unit holds each resource, whatever the link."""
        found = {}
        for edge, time in self._wire.items():
            extra = 0 if self.chunk is None else int(self.overhead[self.through[edge]].min())
            found[edge] = time + extra
        return found

    @cached_property
    def distance(self) -> IntArray:
        """The least time from rank to rank through relays, ``FAR`` where there is no path."""
        return self._distance[: self.num_ranks, : self.num_ranks]

    @cached_property
    def _distance(self) -> IntArray:
        return shortest(self.vertices, (self.src, self.dst), self.link_time)

    @cached_property
    def _near_ranks(self) -> tuple[IntArray, IntArray]:
        """The least alpha from any rank to each vertex, and from each vertex to any rank."""
        ways = ((self.src, self.dst), (self.dst, self.src))
        near, far = (
            relaxed(self.vertices, by_head(way), self.alpha, range(self.num_ranks)) for way in ways
        )
        return near, far

    def whole_alpha(self, links: IntArray, *, led: bool = False, left: bool = False) -> IntArray:
        """Return the least alpha of a whole message, from rank to rank, along each of some links.

        What comes before a link's first vertex is left out where it is `led` there; what comes
        after its last, where that is `left` to go by itself.
        """
        alpha = self.alpha[links]
        if self.helpers:
            near, far = self._near_ranks
            alpha = alpha + (0 if led else near[self.src[links]])
            alpha = alpha + (0 if left else far[self.dst[links]])
        return alpha

    def distance_from(self, *vertices: int, backwards: bool = False) -> IntArray:
        """Return the least time from one of some vertices to all ranks (from all ranks to one)."""
        return self.way_from(*vertices, backwards=backwards)[: self.num_ranks]

    def way_from(self, *vertices: int, backwards: bool = False) -> IntArray:
        """Return what :meth:`distance_from` does, to (from) helpers as well."""
        return relaxed(self.vertices, self._by_head[backwards], self.link_time, vertices)

    def leads(self, vertices: Sequence[int], *, backwards: bool = False) -> IntArray:
        """Return :meth:`distance_from`, where it is asked for many sets of vertices."""
        every = self._distance.T if backwards else self._distance
        least: IntArray = every[list(vertices), : self.num_ranks].min(axis=0)
        return least

    @cached_property
    def _by_head(self) -> tuple[ByHead, ByHead]:
        """The links by where they end, as they are and turned round."""
        return by_head((self.src, self.dst)), by_head((self.dst, self.src))

    def crossing(self, inside: Sequence[int]) -> NDArray[np.bool_]:
        """Tell which links lead from a set of ranks and helpers to the others."""
        member = np.zeros(self.vertices, dtype=np.bool_)
        member[list(inside)] = True
        return member[self.src] & ~member[self.dst]

    def across(self, side: Iterable[int]) -> NDArray[np.bool_]:
        """Tell which links lead from a set of vertices of the topology to the others."""
        numbers = self.number[list(side)]
        return self.crossing(numbers[numbers >= 0].tolist())

    def gates(self, cut: Sequence[int], crossing: NDArray[np.bool_]) -> Gates | None:
        """Return the edges of a `cut` as gates for messages on the `crossing` links (a mask).

        None when some crossing link has no resource among them.
        """
        covered = np.zeros(len(self.src), dtype=np.bool_)
        found = []
        for edge in cut:
            rows = self.through[edge]
            rows = rows[crossing[rows]]
            if len(rows) and edge in self._wire:
                covered[rows] = True
                found.append(self.gate(edge, rows))
        return gather(found) if covered[crossing].all() else None

    def gate(
        self, edge: int, rows: IntArray, weight: int = 1, lead: Time = 0, *, left: bool = False
    ) -> Gate:
        """Return one edge as a gate for messages on some of its links.

        The last message's alpha is paid in full: its overhead on the edge, the rest after. The
        `lead` is of what comes to where the links begin, or, if `left`, of what still goes on from
        where they end.
        """
        if self.chunk is None:
            alpha = self.whole_alpha(rows, led=bool(lead) and not left, left=left)
            return Gate(lead + int(alpha.min()), self._wire[edge], weight)
        late = self.late(rows, np.full(len(rows), edge))
        busy = self._wire[edge] + int(self.overhead[rows].min())
        return Gate(lead + int(late.min()), busy, weight)

    def last_edges(self, rank: int) -> tuple[int, ...]:
        """Return the edges by which links enter a rank."""
        return tuple(np.unique(self.edges[self.first[1:][self.dst == rank] - 1]).tolist())

    def first_edges(self, rank: int) -> tuple[int, ...]:
        """Return the edges by which links leave a rank."""
        return tuple(np.unique(self.edges[self.first[:-1][self.src == rank]]).tolist())


def make_net(
    logical: LogicalTopology,
    collective: Collective,
    chunk: Fraction | None = None,
    *,
    fans: bool = False,
) -> Net:
    """Return the network of the links that `logical` allows.

    Of the `collective` only who must reach whom is looked at. `chunk` is the bytes of a chunk where
    every message carries exactly one; None: messages are cut and joined at will. With `fans` arcs
    from and to switches that copy or add are there as well.

    Raises NoScheduleError when some rank can't be reached from another that has data for it;
    InputError when a chunk takes longer than any clock here counts.
    """
    table = logical.topology.links
    check_times(logical.topology, chunk)
    if has_many_links(logical):
        net = _of_edges(logical.topology, fans=fans)
    else:
        rows = np.flatnonzero(logical.allowed)
        first, edges = table.crossed_by(rows)
        net = Net(
            logical.topology, chunk,
            table.src[rows].astype(np.int64), table.dst[rows].astype(np.int64),
            table.alpha[rows], table.overhead[rows], first, edges.astype(np.int64),
        )  # fmt: skip
        if fans:
            net = _with_arcs(net)
    lost = _unreachable(net, collective)
    if lost is not None:
        src, dst = lost
        raise NoScheduleError(
            f"rank {dst} can't be reached from rank {src} in {logical.topology.name}",
            fix="add edges, or allow more links in the sketch",
        )
    return net


def has_many_links(logical: LogicalTopology) -> bool:
    """Tell whether each edge is a row, on which messages are cut and joined at will."""
    return len(logical.topology.links) > MOST_LINKS and bool(logical.allowed.all())


def _of_edges(topology: Topology, *, fans: bool) -> Net:
    """Return the network of edges, on which switches copy and add only with `fans`."""
    ranks, ends = topology.num_ranks, topology.edge_table
    helpers = np.arange(ranks, ranks + len(topology.switches))
    able = topology.stations[ranks:] & fans
    every = np.arange(len(topology.edges))
    return Net(
        topology, None, ends.tail, ends.head,
        np.array([edge.alpha for edge in topology.edges], dtype=np.int64),
        np.array([topology.edge_overhead(edge) for edge in topology.edges], dtype=np.int64),
        np.arange(len(every) + 1), every, tuple(helpers.tolist()), tuple(helpers[~able].tolist()),
    )  # fmt: skip


def _with_arcs(net: Net) -> Net:
    """Return a network with its arcs; links that only follow these are left out."""
    topology, arcs, ranks = net.topology, net.topology.arcs, net.num_ranks
    helpers = (np.flatnonzero(topology.stations[ranks:]) + ranks).tolist()
    if not helpers:
        return net
    named = replace(net, helpers=tuple(helpers))
    pairs = arcs.src.astype(np.int64) * len(topology.stations) + arcs.dst
    kept = np.ones(len(net.src), dtype=np.bool_)
    if np.unique(pairs, return_counts=True)[1].max(initial=0) < MAX_PATHS and len(kept):
        # An edge into a helper: the link goes on there as arcs do.
        heads = named.number[topology.edge_table.head[net.edges]]
        kept = ~np.logical_or.reduceat(heads >= ranks, net.first[:-1])
    length = np.diff(net.first)
    lengths = np.concatenate([length[kept], np.diff(arcs.edge_start)])
    return replace(
        named,
        src=np.concatenate([net.src[kept], named.number[arcs.src]]),
        dst=np.concatenate([net.dst[kept], named.number[arcs.dst]]),
        alpha=np.concatenate([net.alpha[kept], arcs.alpha]),
        overhead=np.concatenate([net.overhead[kept], arcs.overhead]),
        first=np.concatenate([[0], np.cumsum(lengths)]),
        edges=np.concatenate([net.edges[np.repeat(kept, length)], arcs.edge_ids.astype(np.int64)]),
    )


def check_times(topology: Topology, chunk: Fraction | None) -> None:
    """Refuse a `chunk` (bytes; None: nothing is refused) that is too slow to add up in 64 bits.

    The slowest edge of the `topology` counts.

    Raises InputError when sums of its times do not fit.
    """
    slowest = max((edge.beta or Fraction(0) for edge in topology.edges), default=Fraction(0))
    if chunk is not None and slowest * chunk * topology.num_ranks > LONGEST:
        raise InputError(
            f"a chunk of {format_size(chunk)} takes {float(slowest * chunk / PS_PER_S):.3g} s on"
            f" the slowest edge of {topology.name}, too long to add up",
            field="--size",
            fix="use a smaller size, more chunks, or faster links",
        )


def _unreachable(net: Net, collective: Collective) -> tuple[int, int] | None:
    """Return two ranks of which the second wants data that can't get there from the first."""
    if is_uniform(collective):
        return _lost(net, 0) or _lost(net, 0, backwards=True)
    if collective.root is not None:
        return _lost(net, collective.root, backwards=flows_in(collective))
    if net.num_ranks > MOST_RANKS:
        return None
    for sources, targets, _ in tasks_of(collective):
        far = net.distance[np.ix_(sources, targets)] >= FAR
        lost = np.argwhere(far if collective.reduces else far & far.all(axis=0))
        if len(lost):
            return sources[int(lost[0][0])], targets[int(lost[0][1])]
    return None


def _lost(net: Net, rank: int, *, backwards: bool = False) -> tuple[int, int] | None:
    """Return a rank and one that it can't reach (be reached from), in the direction of data."""
    lost = np.flatnonzero(net.distance_from(rank, backwards=backwards) >= FAR)
    if not len(lost):
        return None
    return (int(lost[0]), rank) if backwards else (rank, int(lost[0]))


def one_of_each(net: Net, collective: Collective) -> tuple[int, ...]:
    """Return the ranks of `net` to look at: one of each orbit if `collective` treats ranks alike.

    With a root, which comes first, one of each orbit at each distance from it.
    """
    ranks, root = np.arange(net.num_ranks), collective.root
    if not is_whole(net) or (root is None and not is_uniform(collective)):
        return tuple(ranks.tolist())
    images = [np.array(rotation, dtype=np.int64) for rotation in net.topology.rotations]
    orbit = smallest_of_orbit(images, net.num_ranks)
    if root is None:
        return tuple(np.unique(orbit).tolist())
    ways = (net.distance_from(root), net.distance_from(root, backwards=True))
    kept: dict[tuple[int, ...], int] = {}
    for rank, *kind in np.stack([ranks, orbit, *ways, ranks == root], axis=1).tolist():
        kept.setdefault(tuple(kind), rank)
    return (root, *sorted(rank for rank in kept.values() if rank != root))


def servers_of(net: Net, ranks: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the servers of `net` that the given `ranks` are in, each as its ranks."""
    return [members for members in net.topology.servers if not set(ranks).isdisjoint(members)]


def is_whole(net: Net) -> bool:
    """Tell whether all links of the topology are allowed."""
    return bool(net.helpers) or len(net.src) == len(net.topology.links)


@dataclass(frozen=True, eq=False)
class Orbits:
    """For each `rank` and `edge`, the smallest that it is equal to; that they are is proved."""

    rank: IntArray
    edge: IntArray


def proved_orbits(net: Net) -> Orbits:
    """Return the orbits under the declared rotations that are symmetries of the allowed links.

    Where links are left out (by a sketch, or as too many between two ranks) none are.
    """
    images = list(proved_symmetries(net))
    return Orbits(
        smallest_of_orbit([ranks for ranks, _ in images], net.num_ranks).astype(np.int64),
        smallest_of_orbit([edges for _, edges in images], len(net.topology.edges)).astype(np.int64),
    )


def proved_symmetries(
    net: Net, rotations: Iterable[Permutation] | None = None
) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield where those of some `rotations` that are symmetries take all ranks and edges of `net`.

    None: those that the topology declares, which :func:`proved_orbits` goes by.
    """
    rotations = net.topology.rotations if rotations is None else rotations
    _, paths = np.unique(net.src * net.vertices + net.dst, return_counts=True)
    proper = is_whole(net) and paths.max(initial=0) < MAX_PATHS
    for rotation in rotations if proper else ():
        try:
            row = vertex_image(net.topology, rotation)
        except TacclError:
            continue
        edges = edge_image(net.topology, row).astype(np.int64)
        yield row[: net.num_ranks].astype(np.int64), edges

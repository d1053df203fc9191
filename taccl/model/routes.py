"""What routing chooses from: for every representative chunk its root, targets and arcs.

A gather-type chunk flows from its root to its targets along arcs. A summed chunk flows the other
way, from all sources to its root, so its arcs are the links turned round: a tree of such arcs,
played backwards, is a reduction tree. Engines route on arcs and need not know which it is.

Compiled engines read the same arcs in columns (:class:`Arcs`): flat arrays sorted by tail.
Resources are orbits of edges under the problem's group, numbered densely. Nothing here grows with
chunks but the rows of :class:`Wanted`.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.errors import NoScheduleError
from taccl.timing.occupancy import Uses
from taccl.timing.retiming import uses_of
from taccl.topology.graph import Rank, Topology
from taccl.units import Time

if TYPE_CHECKING:
    from taccl.model.problem import Problem


class Arc(NamedTuple):
    """A link as routing sees it: turned round when the chunk is summed."""

    tail: Rank
    head: Rank
    link: int


@dataclass(frozen=True, slots=True)
class Demand:
    """One representative chunk to be routed.

    `chunk` is its id. Its tree may start at the `roots`, several where any of them can serve it,
    and must reach the `targets`, which are none of these; both are ascending. It may use the
    `arcs`, in order of link; `hops` has the fewest hops from a root to every rank that can be
    reached.
    """

    chunk: int
    roots: tuple[Rank, ...]
    targets: tuple[Rank, ...]
    arcs: tuple[Arc, ...]
    hops: dict[Rank, int]

    @property
    def root(self) -> Rank:
        """The first root."""
        return self.roots[0]


@dataclass(frozen=True, eq=False)
class Network:
    """The routing choices of a problem, in one direction.

    `problem` is where it comes from, `reverse` is set when the chunks flow to their roots (a
    reduction), and `demands` has one for each representative chunk.
    """

    problem: "Problem"
    reverse: bool
    demands: tuple[Demand, ...]

    @cached_property
    def links(self) -> tuple[int, ...]:
        """All links that some demand may use, ascending."""
        return tuple(sorted({arc.link for d in self.demands for arc in d.arcs}))

    @cached_property
    def duration(self) -> dict[int, Time]:
        """Picoseconds from start to arrival of a single chunk, by link."""
        size = self.problem.chunk_size
        return {link: self.problem.topology.arrival(link, size) for link in self.links}

    @cached_property
    def uses(self) -> dict[int, tuple[tuple[int, Time], ...]]:
        """(resource orbit, picoseconds it is held by a single chunk), by link."""
        return {link: self.problem.cost(link, 1)[1] for link in self.links}

    def with_arcs(self, arcs: Iterable[Iterable[Arc]]) -> "Network":
        """Return the network in which every demand may use those of some ``arcs`` only."""
        pairs = zip(self.demands, arcs, strict=True)
        return replace(self, demands=tuple(replace(one, arcs=tuple(own)) for one, own in pairs))

    @property
    def point_to_point(self) -> bool:
        """Whether every chunk has a single target."""
        return all(len(demand.targets) <= 1 for demand in self.demands)


Routes = tuple[tuple[Arc, ...], ...]
"""The arcs of every demand, parents before children."""


def connections(network: Network) -> dict[int, int]:
    """Return the connection of every allowed link: the smallest link of its orbit of pairs.

    A connection is an ordered pair of ranks that exchange anything, over one or several parallel
    links. On orbits one stands for all its images.
    """
    problem = network.problem
    topology, group = problem.topology, problem.group
    table, links = topology.links, list(problem.logical.links())
    first = [topology.links_between(int(table.src[k]), int(table.dst[k]))[0] for k in links]
    images = [group.link_image(element, first) for element in range(len(group))]
    smallest = [min(column) for column in zip(*images, strict=True)]
    # Parallel links may have images among the parallel links of another pair.
    pair = [topology.link(link) for link in smallest]
    return {
        link: topology.links_between(one.src, one.dst)[0]
        for link, one in zip(links, pair, strict=True)
    }


def build_network(
    problem: "Problem", *, reverse: bool = False, closed: Iterable[int] = ()
) -> Network:
    """Return the routing choices of a `problem`, with some links `closed`.

    If `reverse`, chunks flow to their roots: arcs are the links turned round.

    Raises NoScheduleError when a target can't be reached from the root of its chunk.
    """
    shut, table, channels = frozenset(closed), problem.topology.links, problem.logical.channels
    links = [link for link in problem.logical.links() if link not in shut]
    if channels is not None:  # parallel links of a pair take them in turn: the third needs a third
        pairs = ((int(table.src[link]), int(table.dst[link]), link) for link in links)
        links = [k for src, dst, k in pairs if table.between(src, dst).index(k) < channels]
    near = _Near(problem)
    demands = tuple(
        _demand(problem, chunk, near.links(chunk, links), reverse=reverse)
        for chunk in problem.representatives
    )
    return Network(problem, reverse, demands)


class _Near:
    """Which ranks a chunk may visit, where a sketch keeps to paths with the fewest hops.

    As in TACCL (``shortest_path_sets``), the ranks are limited and not the hops: those on a path
    with the fewest hops from some source to some target, by way of the owner for a sum. Paths are
    over the links that the chunk may take.
    """

    def __init__(self, problem: "Problem") -> None:
        self._problem = problem
        self._known: dict[tuple[int, tuple[tuple[Rank, ...], ...]], frozenset[Rank]] = {}
        self._distances: dict[int, tuple[list[dict[Rank, int]], list[dict[Rank, int]]]] = {}

    def links(self, chunk: int, links: Sequence[int]) -> Sequence[int]:
        """Return those of some links that join ranks the chunk may visit."""
        collective, table = self._problem.collective, self._problem.topology.links
        if not self._problem.logical.on_shortest_paths:
            return links
        owner = ((int(collective.owner[chunk]),),) if collective.reduces else ()
        stops = (collective.sources(chunk), *owner, collective.targets(chunk))
        key = (self._kind(chunk), stops)
        if key not in self._known:
            self._known[key] = frozenset().union(
                *(self._between(chunk, here, there) for here, there in pairwise(stops))
            )
        near = self._known[key]
        return [k for k in links if int(table.src[k]) in near and int(table.dst[k]) in near]

    def _kind(self, chunk: int) -> int:
        """Return what the links depend on that a chunk may take: its owner, or nothing (-1)."""
        return int(self._problem.collective.owner[chunk]) if self._problem.logical.leave_by else -1

    def _between(self, chunk: int, sources: Sequence[Rank], targets: Sequence[Rank]) -> set[Rank]:
        ranks = range(self._problem.topology.num_ranks)
        if len(sources) == len(ranks) or len(targets) == len(ranks):
            return set(ranks)
        kind, far = self._kind(chunk), len(ranks) + 1
        if kind not in self._distances:
            forth, back = (self._hops(chunk, turned=turned) for turned in (False, True))
            self._distances[kind] = (forth, back)
        forth, back = self._distances[kind]
        found: set[Rank] = set()
        for source in sources:
            here = forth[source]
            for target in targets:
                fewest = back[target].get(source, 0)
                found |= {r for r in here if here[r] + back[target].get(r, far) == fewest}
        return found

    def _hops(self, chunk: int, *, turned: bool) -> list[dict[Rank, int]]:
        """Return the fewest hops from every rank, or (turned) to it, over a chunk's links."""
        table = self._problem.topology.links
        tail, head = (table.dst, table.src) if turned else (table.src, table.dst)
        arcs = [
            Arc(int(tail[link]), int(head[link]), link)
            for link in self._problem.logical.links()
            if may_leave(self._problem, chunk, link)
        ]
        return [hops_from((rank,), arcs) for rank in range(self._problem.topology.num_ranks)]


def _demand(problem: "Problem", chunk: int, links: Sequence[int], *, reverse: bool) -> Demand:
    collective, table = problem.collective, problem.topology.links
    one = (int(collective.owner[chunk]),)
    roots = one if collective.reduces else collective.sources(chunk)
    ends = collective.sources(chunk) if reverse else collective.targets(chunk)
    targets = tuple(rank for rank in ends if rank not in roots)
    arcs, gated = [], bool(problem.logical.leave_by) or collective.carrier_set is not None
    for link in links:
        if gated and not may_leave(problem, chunk, link):
            continue
        src, dst = int(table.src[link]), int(table.dst[link])
        arc = Arc(dst, src, link) if reverse else Arc(src, dst, link)
        if arc.head not in roots:
            arcs.append(arc)
    hops = hops_from(roots, arcs)
    lost = [rank for rank in targets if rank not in hops]
    if lost:
        root = roots[0]
        way = f"rank {lost[0]} to rank {root}" if reverse else f"rank {root} to rank {lost[0]}"
        raise NoScheduleError(
            f"chunk {chunk} can't be served: no allowed path from {way}",
            fix="allow more links in the sketch, or join these ranks in the topology",
        )
    kept = tuple(_within_extra_hops(problem, targets, arcs, hops))
    return Demand(chunk, roots, targets, kept, hops)


def may_leave(problem: "Problem", chunk: int, link: int) -> bool:
    """Tell whether a `chunk` of a `problem` may take a `link`, by who may send its owner's chunks.

    In every server the senders are those of the rank with the owner's local number. Nor may it
    visit ranks that carry nothing for its group.
    """
    leave_by = problem.logical.leave_by
    topology = problem.topology
    src, dst = int(topology.links.src[link]), int(topology.links.dst[link])
    if not all(problem.collective.may_visit(chunk, rank) for rank in (src, dst)):
        return False
    if not leave_by or topology.server_of[src] == topology.server_of[dst]:
        return True
    owner = int(problem.collective.owner[chunk])
    peer = counterpart(topology, owner, topology.server_of[src])
    senders = None if peer is None else leave_by.get(peer)
    return senders is None or src in senders


def counterpart(topology: Topology, rank: Rank, server: int) -> Rank | None:
    """Return the rank of a `server` that has the local number of a given `rank`, if there is one.

    `topology` says which ranks are in which server.
    """
    own = [
        r for r in range(topology.num_ranks) if topology.server_of[r] == topology.server_of[rank]
    ]
    there = [r for r in range(topology.num_ranks) if topology.server_of[r] == server]
    number = own.index(rank)
    return there[number] if number < len(there) else None


def hops_from(roots: Sequence[Rank], arcs: Iterable[Arc]) -> dict[Rank, int]:
    """Return the fewest hops from some `roots` to every rank that `arcs` lead to."""
    out: dict[Rank, list[Rank]] = {}
    for arc in arcs:
        out.setdefault(arc.tail, []).append(arc.head)
    hops, queue = dict.fromkeys(roots, 0), deque(roots)
    while queue:
        tail = queue.popleft()
        for head in out.get(tail, ()):
            if head not in hops:
                hops[head] = hops[tail] + 1
                queue.append(head)
    return hops


def _within_extra_hops(
    problem: "Problem", targets: Sequence[Rank], arcs: Sequence[Arc], hops: dict[Rank, int]
) -> Iterable[Arc]:
    """Yield the arcs that lie on a path to some target of at most the allowed length."""
    extra = problem.logical.max_extra_hops
    reachable = [arc for arc in arcs if arc.tail in hops]
    if extra is None:
        yield from reachable
        return
    slack: dict[Rank, int] = {}
    back: dict[Rank, list[Rank]] = {}
    for arc in reachable:
        back.setdefault(arc.head, []).append(arc.tail)
    # slack[r]: the most hops a path may have taken when it is at r and still be in time.
    queue = deque(targets)
    slack.update({target: hops[target] + extra for target in targets})
    while queue:
        head = queue.popleft()
        for tail in back.get(head, ()):
            if slack[head] - 1 > slack.get(tail, -1):
                slack[tail] = slack[head] - 1
                queue.append(tail)
    for arc in reachable:
        if arc.head in slack and hops[arc.tail] + 1 <= min(slack[arc.head], hops[arc.head] + extra):
            yield arc


@dataclass(frozen=True, eq=False)
class Arcs:
    """The arcs of a problem that some chunk may use.

    `problem`: where they come from.
    `reverse`: whether links are turned round (a reduction, played backwards).
    `tail`, `head`, `link`: int32, one entry an arc, sorted by tail, then link.
    `first`: int64: arcs leaving rank r are ``first[r] .. first[r+1]-1``.
    `kind`: int32, one entry an arc: arcs of a kind cost the same; there may be kinds without arcs.
    `kind_link`: a link of every kind.
    `resources`: int32: the smallest edge of the orbit that each resource number stands for.
    """

    problem: "Problem"
    reverse: bool
    tail: NDArray[np.int32]
    head: NDArray[np.int32]
    link: NDArray[np.int32]
    first: NDArray[np.int64]
    kind: NDArray[np.int32]
    kind_link: NDArray[np.int32]
    resources: NDArray[np.int32]

    def __len__(self) -> int:
        """Return the number of arcs."""
        return len(self.tail)

    @property
    def num_resources(self) -> int:
        """The number of edge orbits that can be busy."""
        return len(self.resources)

    @cached_property
    def use_start(self) -> NDArray[np.int64]:
        """CSR: arc i holds ``use_resource[use_start[i]:use_start[i+1]]``."""
        lengths = np.diff(self.costs().first)[self.kind]
        return np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)

    @cached_property
    def use_resource(self) -> NDArray[np.int32]:
        """The resources of all arcs, by number (int32)."""
        return self.costs().resource[self._uses_of_kinds]

    def arrival(self, chunks: int = 1) -> NDArray[np.int64]:
        """Return for every arc the picoseconds from start to arrival of a message."""
        return self.costs(chunks).arrival[self.kind]

    def held(self, chunks: int = 1) -> NDArray[np.int64]:
        """Return for every use of a resource the picoseconds a message holds it."""
        return self.costs(chunks).held[self._uses_of_kinds]

    def costs(self, chunks: int = 1) -> Uses:
        """Return what a message on an arc of each kind costs, its resources by number."""
        if chunks not in self._by_length:
            problem, lengths = self.problem, np.full(len(self.kind_link), chunks, dtype=np.int64)
            uses = uses_of(problem.group, problem.chunk_size, self.kind_link, lengths)
            numbers = np.searchsorted(self.resources, uses.resource).astype(np.int32)
            self._by_length[chunks] = uses._replace(resource=numbers)
        return self._by_length[chunks]

    @cached_property
    def _by_length(self) -> dict[int, Uses]:
        return {}

    @cached_property
    def _uses_of_kinds(self) -> NDArray[np.int64]:
        """For every use of an arc its place among the uses of the kinds."""
        shift = self.costs().first[self.kind] - self.use_start[:-1]
        return np.arange(self.use_start[-1]) + np.repeat(shift, np.diff(self.use_start))


@dataclass(frozen=True, eq=False)
class Wanted:
    """What the representative chunks of a problem need of its arcs.

    `chunk` (int32) are the representatives; `roots` and `targets`, bool (chunks, ranks), say where
    a chunk's tree may start and what it must reach (no root is a target). A chunk may take the arcs
    of row ``kind[i]`` (int32) of `allowed`, bool (kinds, arcs).
    """

    chunk: NDArray[np.int32]
    roots: NDArray[np.bool_]
    targets: NDArray[np.bool_]
    kind: NDArray[np.int32]
    allowed: NDArray[np.bool_]


def arcs_of(
    problem: "Problem", *, reverse: bool = False, links: NDArray[np.integer] | None = None
) -> Arcs:
    """Return the arcs of a `problem`: its allowed links, each from root to target.

    If `reverse`, they are turned round. Of the allowed ones only some `links`, ascending, may do.
    """
    table, group = problem.topology.links, problem.group
    some = np.flatnonzero(problem.logical.allowed) if links is None else links
    link = some.astype(np.int32)
    tail, head = table.src[link], table.dst[link]
    if reverse:
        order = np.argsort(head, kind="stable")
        tail, head, link = head[order], tail[order], link[order]
    first = np.searchsorted(tail, np.arange(problem.topology.num_ranks + 1)).astype(np.int64)
    kinds, of_kind = group.link_kinds
    there = np.flatnonzero(np.bincount(kinds[link], minlength=len(of_kind)))
    number = np.zeros(len(of_kind), dtype=np.int32)
    number[there] = np.arange(len(there))
    _, edges = table.crossed_by(of_kind[there])
    resources = np.unique(group.edge_orbit[edges[problem.topology.edge_table.is_resource[edges]]])
    return Arcs(
        problem, reverse, tail, head, link, first, number[kinds[link]],
        of_kind[there].astype(np.int32), resources.astype(np.int32),
    )  # fmt: skip


def some_arcs(arcs: Arcs, kept: NDArray[np.bool_]) -> Arcs:
    """Return those of the `arcs` that are `kept` (a mask), with the same resources."""
    tail = arcs.tail[kept]
    first = np.searchsorted(tail, np.arange(arcs.problem.topology.num_ranks + 1)).astype(np.int64)
    return replace(
        arcs, tail=tail, head=arcs.head[kept], link=arcs.link[kept], first=first,
        kind=arcs.kind[kept],
    )  # fmt: skip


def wanted_of(arcs: Arcs) -> Wanted:
    """Return what the representatives of a problem need of its arcs.

    Raises NoScheduleError when a sketch leaves a target without a path from a root of its chunk.
    """
    problem = arcs.problem
    if is_restricted(problem):
        return wanted_in(arcs, build_network(problem, reverse=arcs.reverse))
    collective, chunks = problem.collective, problem.representatives
    shape = (len(chunks), problem.topology.num_ranks)
    roots, targets = np.zeros(shape, dtype=np.bool_), np.zeros(shape, dtype=np.bool_)
    for row, chunk in enumerate(chunks):
        one = (int(collective.owner[chunk]),)
        roots[row, list(one if collective.reduces else collective.sources(chunk))] = True
        ends = collective.sources(chunk) if arcs.reverse else collective.targets(chunk)
        targets[row, list(ends)] = True
    return Wanted(
        np.array(chunks, dtype=np.int32), roots, targets & ~roots,
        np.zeros(len(chunks), dtype=np.int32), np.ones((1, len(arcs)), dtype=np.bool_),
    )  # fmt: skip


def is_restricted(problem: "Problem") -> bool:
    """Tell whether some chunks may take less than all allowed links, by a sketch or their group."""
    logical = problem.logical
    return bool(
        logical.leave_by
        or logical.on_shortest_paths
        or logical.max_extra_hops is not None
        or logical.channels is not None
        or problem.collective.carrier_set is not None
    )


def wanted_in(arcs: Arcs, network: Network) -> Wanted:
    """Return what the representatives of a network's problem need of the `arcs` it leaves them.

    `network` has the routing choices of the problem that the arcs are of.
    """
    ranks, count = arcs.problem.topology.num_ranks, len(network.demands)
    roots, targets = (np.zeros((count, ranks), dtype=np.bool_) for _ in range(2))
    number = np.full(int(arcs.link.max(initial=0)) + 1, -1, dtype=np.int64)
    number[arcs.link] = np.arange(len(arcs))
    rows: dict[bytes, int] = {}
    masks: list[NDArray[np.bool_]] = []
    kind = np.zeros(count, dtype=np.int32)
    for row, demand in enumerate(network.demands):
        roots[row, list(demand.roots)] = True
        targets[row, list(demand.targets)] = True
        mask = np.zeros(len(arcs), dtype=np.bool_)
        mask[number[[arc.link for arc in demand.arcs]]] = True
        kind[row] = rows.setdefault(mask.tobytes(), len(rows))
        if kind[row] == len(masks):
            masks.append(mask)
    chunks = np.array([demand.chunk for demand in network.demands], dtype=np.int32)
    return Wanted(chunks, roots, targets, kind, np.array(masks).reshape(-1, len(arcs)))

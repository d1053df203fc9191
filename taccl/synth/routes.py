"""What routing chooses from: for every representative chunk its root, targets and arcs.

A gather-type chunk flows from its root to its targets along arcs. A summed chunk flows the other
way, from all sources to its root, so its arcs are the links turned round: a tree of such arcs,
played backwards, is a reduction tree. Engines route on arcs and need not know which it is.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from taccl.errors import NoScheduleError
from taccl.synth.problem import Problem
from taccl.topology import Rank, Topology
from taccl.units import Time


class Arc(NamedTuple):
    """A link as routing sees it: turned round when the chunk is summed."""

    tail: Rank
    head: Rank
    link: int


@dataclass(frozen=True, slots=True)
class Demand:
    """One representative chunk to be routed.

    Parameters
    ----------
    chunk
        Its id.
    root
        Where its tree starts.
    targets
        The ranks that the tree must reach, without the root, ascending.
    arcs
        What it may use, in order of link.
    hops
        Fewest hops from the root to every rank that can be reached, by rank.
    """

    chunk: int
    root: Rank
    targets: tuple[Rank, ...]
    arcs: tuple[Arc, ...]
    hops: dict[Rank, int]


@dataclass(frozen=True, eq=False)
class Network:
    """The routing choices of a problem, in one direction.

    Parameters
    ----------
    problem
        Where it comes from.
    reverse
        True when the chunks flow to their roots (a reduction).
    demands
        One for each representative chunk.
    """

    problem: Problem
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
        return {link: resource_times(self.problem, link, 1) for link in self.links}

    @property
    def point_to_point(self) -> bool:
        """Whether every chunk has a single target."""
        return all(len(demand.targets) <= 1 for demand in self.demands)


def resource_times(problem: Problem, link: int, chunks: int) -> tuple[tuple[int, Time], ...]:
    """Return (resource orbit, picoseconds held) for a message of so many chunks on a link."""
    topology, orbit = problem.topology, problem.group.edge_orbit
    size = chunks * problem.chunk_size
    return tuple(
        (int(orbit[edge]), topology.busy(link, edge, size))
        for edge in topology.links.edges_of(link)
        if topology.edges[edge].beta is not None
    )


def build_network(
    problem: Problem, *, reverse: bool = False, closed: Iterable[int] = ()
) -> Network:
    """Return the routing choices of a problem, with some links closed.

    Raises
    ------
    NoScheduleError
        When a target can't be reached from the root of its chunk.
    """
    shut = frozenset(closed)
    links = [
        link for link in problem.logical.links() if link not in shut and _has_channel(problem, link)
    ]
    demands = tuple(
        _demand(problem, chunk, links, reverse=reverse) for chunk in problem.representatives
    )
    return Network(problem, reverse, demands)


def _has_channel(problem: Problem, link: int) -> bool:
    """Tell whether a program with the sketch's channels can use a link.

    The parallel links of a pair take its channels in turn, so the third needs a third channel.
    """
    channels, topology = problem.logical.channels, problem.topology
    if channels is None:
        return True
    src, dst = int(topology.links.src[link]), int(topology.links.dst[link])
    return topology.links_between(src, dst).index(link) < channels


def _demand(problem: Problem, chunk: int, links: Sequence[int], *, reverse: bool) -> Demand:
    collective, table = problem.collective, problem.topology.links
    root = int(collective.owner[chunk])
    ends = collective.sources(chunk) if reverse else collective.targets(chunk)
    targets = tuple(rank for rank in ends if rank != root)
    arcs = []
    for link in links:
        if not may_leave(problem, chunk, link):
            continue
        src, dst = int(table.src[link]), int(table.dst[link])
        arc = Arc(dst, src, link) if reverse else Arc(src, dst, link)
        if arc.head != root:
            arcs.append(arc)
    hops = _hops(root, arcs)
    lost = [rank for rank in targets if rank not in hops]
    if lost:
        way = f"rank {lost[0]} to rank {root}" if reverse else f"rank {root} to rank {lost[0]}"
        raise NoScheduleError(
            f"chunk {chunk} can't be served: no allowed path from {way}",
            fix="allow more links in the sketch, or join these ranks in the topology",
        )
    kept = tuple(_within_extra_hops(problem, targets, arcs, hops))
    return Demand(chunk, root, targets, kept, hops)


def may_leave(problem: Problem, chunk: int, link: int) -> bool:
    """Tell whether a chunk may take a link, by the senders that its owner's chunks leave by.

    In every server the senders are those of the rank with the owner's local number.
    """
    leave_by = problem.logical.leave_by
    topology = problem.topology
    src, dst = int(topology.links.src[link]), int(topology.links.dst[link])
    if not leave_by or topology.server_of[src] == topology.server_of[dst]:
        return True
    owner = int(problem.collective.owner[chunk])
    peer = counterpart(topology, owner, topology.server_of[src])
    senders = None if peer is None else leave_by.get(peer)
    return senders is None or src in senders


def counterpart(topology: Topology, rank: Rank, server: int) -> Rank | None:
    """Return the rank of a server that has the local number of a given rank, if there is one."""
    own = [
        r for r in range(topology.num_ranks) if topology.server_of[r] == topology.server_of[rank]
    ]
    there = [r for r in range(topology.num_ranks) if topology.server_of[r] == server]
    number = own.index(rank)
    return there[number] if number < len(there) else None


def _hops(root: Rank, arcs: Iterable[Arc]) -> dict[Rank, int]:
    out: dict[Rank, list[Rank]] = {}
    for arc in arcs:
        out.setdefault(arc.tail, []).append(arc.head)
    hops, queue = {root: 0}, deque([root])
    while queue:
        tail = queue.popleft()
        for head in out.get(tail, ()):
            if head not in hops:
                hops[head] = hops[tail] + 1
                queue.append(head)
    return hops


def _within_extra_hops(
    problem: Problem, targets: Sequence[Rank], arcs: Sequence[Arc], hops: dict[Rank, int]
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

"""What the bounds see of a network: the allowed links, and what a unit of data costs on each.

Only edges on an allowed link count. The *unit* is a byte when messages may be cut and joined at
will (``chunk`` None), and a whole chunk when every message carries exactly one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from taccl.bounds.crossing import flows_in, is_uniform, tasks_of
from taccl.bounds.distances import FAR, ByHead, IntArray, by_head, relaxed, shortest
from taccl.bounds.gates import Gate, Gates, gather
from taccl.collectives import Collective
from taccl.errors import InputError, NoScheduleError
from taccl.topology import LogicalTopology, Topology
from taccl.units import PS_PER_S, Time, ceil_time, format_size

MOST_RANKS = 1024
"""Above this a table of all distances takes too much time and memory."""

LONGEST = 1 << 56
"""Picoseconds of one chunk for each rank: thousands of these still add up in 64 bits."""


@dataclass(frozen=True, eq=False)
class Net:
    """The allowed links of a topology in columns, in one world of messages.

    Parameters
    ----------
    topology
        The physical network.
    chunk
        Bytes that every message carries; None: any.
    src, dst, alpha, overhead
        One entry an allowed link.
    first
        Link i crosses ``edges[first[i]:first[i+1]]``.
    edges
        Edge ids.
    """

    topology: Topology
    chunk: Fraction | None
    src: IntArray
    dst: IntArray
    alpha: IntArray
    overhead: IntArray
    first: IntArray
    edges: IntArray

    @property
    def num_ranks(self) -> int:
        """How many ranks take part."""
        return self.topology.num_ranks

    @cached_property
    def used(self) -> tuple[int, ...]:
        """Edges that some allowed link crosses, ascending."""
        return tuple(np.unique(self.edges).tolist())

    @cached_property
    def through(self) -> dict[int, IntArray]:
        """For every used edge, the links that cross it."""
        if not self.used:
            return {}
        owner = np.repeat(np.arange(len(self.src)), np.diff(self.first))
        order = np.argsort(self.edges, kind="stable")
        cuts = np.searchsorted(self.edges[order], self.used)
        parts = np.split(owner[order], cuts[1:])
        return dict(zip(self.used, parts, strict=True))

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
            return self.alpha[links]
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
        return shortest(self.num_ranks, (self.src, self.dst), self.link_time)

    def distance_from(self, *ranks: int, backwards: bool = False) -> IntArray:
        """Return the least time from one of some ranks to every rank (from every rank to one)."""
        links = self._turned if backwards else self._sorted
        return relaxed(self.num_ranks, links, self.link_time, ranks)

    @cached_property
    def _sorted(self) -> ByHead:
        return by_head((self.src, self.dst))

    @cached_property
    def _turned(self) -> ByHead:
        return by_head((self.dst, self.src))

    def crossing(self, inside: Sequence[int]) -> NDArray[np.bool_]:
        """Tell which links lead from a set of ranks to the other ranks."""
        member = np.zeros(self.num_ranks, dtype=np.bool_)
        member[list(inside)] = True
        return member[self.src] & ~member[self.dst]

    def gates(
        self, cut: Sequence[int], crossing: NDArray[np.bool_], weights: Sequence[int] | None = None
    ) -> Gates | None:
        """Return the gates of a cut for messages on the crossing links.

        None when some crossing link has no resource among the edges of the cut.
        """
        covered = np.zeros(len(self.src), dtype=np.bool_)
        found = []
        for i, edge in enumerate(cut):
            rows = self.through[edge]
            rows = rows[crossing[rows]]
            if len(rows) and edge in self._wire:
                covered[rows] = True
                found.append(self.gate(edge, rows, weights[i] if weights else 1))
        if weights is None and not covered[crossing].all():
            return None
        return gather(found)

    def gate(self, edge: int, rows: IntArray, weight: int = 1, lead: Time = 0) -> Gate:
        """Return one edge as a gate for messages on some of its links.

        The last message's alpha is paid in full: its overhead on the edge, the rest after.
        """
        if self.chunk is None:
            return Gate(lead + int(self.alpha[rows].min()), self._wire[edge], weight)
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
    logical: LogicalTopology, collective: Collective, chunk: Fraction | None = None
) -> Net:
    """Return the network of the allowed links.

    Raises
    ------
    NoScheduleError
        When some rank can't be reached from another that has data for it.
    InputError
        When a chunk takes longer than any clock here counts.
    """
    table = logical.topology.links
    rows = np.flatnonzero(logical.allowed)
    lengths = np.diff(table.edge_start)[rows]
    first = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    offset = np.repeat(table.edge_start[rows] - first[:-1], lengths)
    edges = table.edge_ids[np.arange(first[-1]) + offset].astype(np.int64)
    check_times(logical.topology, chunk)
    net = Net(
        logical.topology, chunk,
        table.src[rows].astype(np.int64), table.dst[rows].astype(np.int64),
        table.alpha[rows], table.overhead[rows], first, edges,
    )  # fmt: skip
    lost = _unreachable(net, collective)
    if lost is not None:
        src, dst = lost
        raise NoScheduleError(
            f"rank {dst} can't be reached from rank {src} in {logical.topology.name}",
            fix="add edges, or allow more links in the sketch",
        )
    return net


def check_times(topology: Topology, chunk: Fraction | None) -> None:
    """Refuse chunks that take so long that sums of their times no longer fit into 64 bits.

    Parameters
    ----------
    topology
        The network, whose slowest edge counts.
    chunk
        Bytes; None: nothing is refused.

    Raises
    ------
    InputError
        When they do.
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

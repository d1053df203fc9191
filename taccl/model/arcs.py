"""The routing choices of a problem in columns: what compiled engines read.

The same arcs as in routes.py (links, turned round where chunks are summed on the way to their
owner), as flat arrays sorted by tail. Resources are orbits of edges under the problem's group,
numbered densely. Nothing here grows with chunks but the rows of :class:`Wanted`.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from taccl.model.routes import Network, build_network
from taccl.timing.occupancy import Uses
from taccl.timing.retiming import uses_of

if TYPE_CHECKING:
    from taccl.model.problem import Problem


@dataclass(frozen=True, eq=False)
class Arcs:
    """The arcs of a problem that some chunk may use.

    `problem`: where they come from.
    `reverse`: whether links are turned round (a reduction, played backwards).
    `tail`, `head`, `link`: int32, one entry an arc, sorted by tail, then link.
    `first`: int64: arcs leaving rank r are ``first[r] .. first[r+1]-1``.
    `use_start`, `use_resource`: CSR: arc i holds the resources
    ``use_resource[use_start[i]:use_start[i+1]]`` (int32).
    `resources`: int32: the smallest edge of the orbit that each resource number stands for.
    """

    problem: "Problem"
    reverse: bool
    tail: NDArray[np.int32]
    head: NDArray[np.int32]
    link: NDArray[np.int32]
    first: NDArray[np.int64]
    use_start: NDArray[np.int64]
    use_resource: NDArray[np.int32]
    resources: NDArray[np.int32]

    def __len__(self) -> int:
        """Return the number of arcs."""
        return len(self.tail)

    @property
    def num_resources(self) -> int:
        """The number of edge orbits that can be busy."""
        return len(self.resources)

    def arrival(self, chunks: int = 1) -> NDArray[np.int64]:
        """Return for every arc the picoseconds from start to arrival of a message."""
        return self._uses(chunks).arrival

    def held(self, chunks: int = 1) -> NDArray[np.int64]:
        """Return for every use of a resource the picoseconds a message holds it."""
        return self._uses(chunks).held

    def _uses(self, chunks: int) -> Uses:
        if chunks not in self._by_length:
            problem, lengths = self.problem, np.full(len(self), chunks, dtype=np.int64)
            self._by_length[chunks] = uses_of(problem.group, problem.chunk_size, self.link, lengths)
        return self._by_length[chunks]

    @cached_property
    def _by_length(self) -> dict[int, Uses]:
        return {}


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


def arcs_of(problem: "Problem", *, reverse: bool = False) -> Arcs:
    """Return the arcs of a `problem`: its allowed links, each from root to target.

    If `reverse`, they are turned round.
    """
    table = problem.topology.links
    links = np.flatnonzero(problem.logical.allowed).astype(np.int32)
    tail, head = table.src[links], table.dst[links]
    if reverse:
        tail, head = head, tail
    order = np.lexsort((links, tail))
    tail, head, links = tail[order], head[order], links[order]
    first = np.searchsorted(tail, np.arange(problem.topology.num_ranks + 1)).astype(np.int64)
    begin, edges = table.crossed_by(links)
    busy = problem.topology.edge_table.is_resource[edges]
    start = np.concatenate(([0], np.cumsum(busy)))[begin].astype(np.int64)
    orbits = problem.group.edge_orbit[edges[busy]]
    resources, numbers = np.unique(orbits, return_inverse=True)
    return Arcs(
        problem, reverse, tail, head, links, first, start,
        numbers.astype(np.int32), resources.astype(np.int32),
    )  # fmt: skip


def some_arcs(arcs: Arcs, kept: NDArray[np.bool_]) -> Arcs:
    """Return those of the `arcs` that are `kept` (a mask), with the same resources."""
    lengths = np.diff(arcs.use_start)
    uses = np.repeat(kept, lengths)
    start = np.concatenate(([0], np.cumsum(lengths[kept]))).astype(np.int64)
    tail = arcs.tail[kept]
    ranks = np.arange(arcs.problem.topology.num_ranks + 1)
    first = np.searchsorted(tail, ranks).astype(np.int64)
    return Arcs(
        arcs.problem, arcs.reverse, tail, arcs.head[kept], arcs.link[kept], first, start,
        arcs.use_resource[uses], arcs.resources,
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

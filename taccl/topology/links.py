"""Which links a topology has: rank to rank, through switches only, as columns.

All edges a -> b are links; only if there are none, all switch paths with the fewest
edges are, at most 64 for each pair, in file order. A switch marked ``across: servers`` carries only
paths between ranks of different servers. Arcs, of which trees through switches that copy or add are
made, are the shortest paths from or to such a switch, through none of them.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from taccl.collectives.chunks import equals_before, places_in
from taccl.errors import InputError, TacclWarning

if TYPE_CHECKING:
    from taccl.topology.graph import Topology

MAX_PATHS = 64
MAX_LINKS = 40_000_000
"""2048 DGX-H100, 16 384 ranks, have 33.7 million; the columns of a million take 200 MB to make."""

MOST_LINKS = 4_000_000
"""Of more links bounds look at each edge alone; 512 DGX A100 have 2.1 million."""

MAX_REACHED = 1_000_000
"""Pairs of a source and a vertex that are looked at together."""

FRESH = 5_000_000
"""Paths above which the small columns that they came in are joined: memory of large ones is given
back when they are freed."""

MAX_STEPS = 20_000_000
"""Steps from the ends of paths that are looked at together."""

Path = tuple[int, ...]
"""Edge ids from a rank onwards."""


@dataclass(frozen=True, eq=False)
class LinkTable:
    """All links of a topology, or all its arcs, in columns, sorted by (src, dst, path).

    `src`, `dst`: int32, one entry a link: ranks; of arcs vertices.
    `alpha`, `overhead`: int64 picoseconds, sums over the edges.
    `edge_start`, `edge_ids`: CSR: link i crosses ``edge_ids[edge_start[i]:edge_start[i+1]]``.
    `first`: links leaving vertex v are ``first[v] .. first[v+1]-1``; one entry more than ranks, of
    arcs than vertices.
    `betas`: beta of every edge of the topology (0 where the edge is no resource), exact.
    """

    src: NDArray[np.int32]
    dst: NDArray[np.int32]
    alpha: NDArray[np.int64]
    overhead: NDArray[np.int64]
    edge_start: NDArray[np.int64]
    edge_ids: NDArray[np.int32]
    first: NDArray[np.int64]
    betas: tuple[Fraction, ...]

    def __len__(self) -> int:
        """Return the number of links."""
        return len(self.src)

    def leaving(self, src: int) -> range:
        """Return the ids of the links that leave a rank."""
        return range(int(self.first[src]), int(self.first[src + 1]))

    def between(self, src: int, dst: int) -> tuple[int, ...]:
        """Return the parallel links from ``src`` to ``dst``, ascending."""
        ids = self.leaving(src)
        row = self.dst[ids.start : ids.stop]
        low, high = np.searchsorted(row, [dst, dst + 1])
        return tuple(range(ids.start + int(low), ids.start + int(high)))

    def edges_of(self, link: int) -> Path:
        """Return the edges a link crosses, in order."""
        return tuple(self.edge_ids[self.edge_start[link] : self.edge_start[link + 1]].tolist())

    def crossed_by(self, links: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return the edges that some links cross, in order, as CSR: where each begins, and all."""
        lengths = np.diff(self.edge_start)[links]
        start = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
        shift = np.repeat(self.edge_start[links] - start[:-1], lengths)
        return start, self.edge_ids[np.arange(start[-1]) + shift]

    def max_beta(self, link: int) -> Fraction:
        """Return the largest beta on a link, in ps for each byte (0 when it is free)."""
        return max((self.betas[edge] for edge in self.edges_of(link)), default=Fraction(0))

    def with_own_edges(self, edges: Sequence[int], beta: Fraction) -> "LinkTable":
        """Return the same links, each of which crosses one more: `edges` has it for every link.

        They are numbered after all others, and have a `beta` in picoseconds a byte.
        """
        count = len(self)
        return replace(
            self, edge_start=self.edge_start + np.arange(count + 1),
            edge_ids=np.insert(self.edge_ids, self.edge_start[1:], edges).astype(np.int32),
            betas=(*self.betas, *(beta,) * count),
        )  # fmt: skip

    def with_costs(self, topology: "Topology") -> "LinkTable":
        """Return the same links at the alphas, overheads and betas of a topology's edges."""
        edges = topology.edges
        costs = [edge.alpha for edge in edges], [topology.edge_overhead(edge) for edge in edges]
        alpha, overhead = (
            np.concatenate(([0], np.cumsum(np.array(each, np.int64)[self.edge_ids])))
            for each in costs
        )
        first, end = self.edge_start[:-1], self.edge_start[1:]
        return replace(
            self,
            alpha=alpha[end] - alpha[first],
            overhead=overhead[end] - overhead[first],
            betas=tuple(Fraction(0) if edge.beta is None else edge.beta for edge in edges),
        )


def derive_links(
    topology: "Topology", stops: NDArray[np.bool_] | None = None, *, between_ranks: bool = True
) -> LinkTable:
    """Return the paths of a topology between vertices where paths end: rank to rank, the links.

    `stops` tells of every vertex whether paths end at it, and none leads through it; ranks must,
    and None stands for the ranks alone. Without those `between_ranks` only the paths are left that
    have a switch at an end. To and from a switch ``across: servers`` is open to every rank.

    Raises InputError when there are too many to hold.
    """
    ranks = topology.num_ranks
    if stops is None:
        stops = np.arange(ranks + len(topology.switches)) < ranks
    found, fresh = list[_Paths](), list[_Paths]()
    total = 0
    stations = ranks + np.flatnonzero(stops[ranks:])
    for sources in (np.arange(ranks if between_ranks or len(stations) else 0), stations):
        ends = stops.copy()
        ends[:ranks] &= between_ranks or bool((sources >= ranks).all())
        shut = stops & ~ends
        step = max(1, MAX_REACHED // len(stops))
        while len(sources):
            try:
                batch = list(_paths(topology, sources[:step], ends, shut))
            except _TooManyError:
                if (count := len(sources[:step])) > 1:
                    step = -(-count // 8)
                    continue
                raise InputError(
                    f"{topology.name} has more than {MAX_STEPS} paths between its {ranks} ranks",
                    field="topology",
                    fix="model equal spines as one",
                ) from None
            fresh += batch
            if sum(len(paths.src) for paths in fresh) > FRESH:
                for width in {paths.edges.shape[1] for paths in fresh}:
                    some = [paths for paths in fresh if paths.edges.shape[1] == width]
                    columns = (
                        [getattr(paths, one.name) for paths in some] for one in fields(_Paths)
                    )
                    found.append(_Paths(*map(np.concatenate, columns)))
                fresh = []
            sources = sources[step:]
            total += sum(int((paths.place < MAX_PATHS).sum()) for paths in batch)
            if total > MAX_LINKS:
                raise InputError(
                    f"{topology.name} has more than {MAX_LINKS} links between its {ranks} ranks",
                    field="topology",
                    fix="use fewer ranks, or switches that join fewer of them",
                )
    found += fresh
    beyond = [paths.only(paths.place == MAX_PATHS) for paths in found]
    pairs = [(paths.src.tolist(), paths.end.tolist()) for paths in beyond]
    cut = sorted({pair for src, dst in pairs for pair in zip(src, dst, strict=True)})
    if cut:
        src, dst = (
            f"rank {end}" if end < ranks else f"switch {topology.vertex_name(end)}"
            for end in cut[0]
        )
        others = f" (and so have {len(cut) - 1} other pairs)" if len(cut) > 1 else ""
        warnings.warn(
            f"{topology.name}: {src} has more than {MAX_PATHS} equal paths to {dst}{others}; the"
            f" first {MAX_PATHS} are used (model equal spines as one with the pooled bandwidth)",
            TacclWarning,
            stacklevel=2,
        )
    vertices = ranks if between_ranks and not len(stations) else len(stops)
    return _table(topology, [paths.only(paths.place < MAX_PATHS) for paths in found], vertices)


class _TooManyError(Exception):
    """There are more paths to look at than memory is for."""


@dataclass(frozen=True, eq=False)
class _Paths:
    """Paths of one length, in order of source and then of edges.

    They go from `src` to the vertex `end`; `edges` has one row a path, and `place` says how many
    paths with the same two ends come before.
    """

    src: NDArray[np.int64]
    end: NDArray[np.int64]
    edges: NDArray[np.int32]
    place: NDArray[np.int32]

    def only(self, kept: NDArray[np.bool_]) -> "_Paths":
        return _Paths(self.src[kept], self.end[kept], self.edges[kept], self.place[kept])


def _paths(
    topology: "Topology",
    sources: NDArray[np.int64],
    ends: NDArray[np.bool_],
    shut: NDArray[np.bool_],
) -> Iterator[_Paths]:
    """Yield the paths with the fewest edges from some vertices to all ends, at most 65 a pair."""
    across = np.zeros_like(shut)
    across[topology.num_ranks :] = [switch.across_servers for switch in topology.switches]
    if not across.any():
        yield from _walk(topology, sources, ends, shut)
        return
    server = np.full(len(ends), -1)
    server[: topology.num_ranks] = topology.server_of
    near = np.zeros(0, dtype=np.int64)
    for closed, within in ((across, True), (np.zeros_like(across), False)):
        for paths in _walk(topology, sources, ends, shut | closed):
            here, there = server[paths.src], server[paths.end]
            # A switch is of no server: where ways inside servers join it, no other does.
            to_switch, key = (here < 0) | (there < 0), paths.src * len(ends) + paths.end
            kept = (here == there) | to_switch
            if within:
                near = np.concatenate([near, key[to_switch]])
            else:
                kept = ~kept | (to_switch & ~np.isin(key, near))
            yield paths.only(kept)


def _walk(
    topology: "Topology",
    sources: NDArray[np.int64],
    ends: NDArray[np.bool_],
    shut: NDArray[np.bool_],
) -> Iterator[_Paths]:
    """Yield the shortest paths from some vertices, length by length, through what is not shut.

    A path that is not among the first of its prefixes is not among the first itself, so that no
    more than 65 between two vertices are followed.
    """
    edges, total = topology.edge_table, len(ends)
    by_tail = np.argsort(edges.tail, kind="stable")
    first = np.searchsorted(edges.tail[by_tail], np.arange(total + 1))
    number = np.zeros(total, dtype=np.int64)
    number[sources] = np.arange(len(sources))
    reached = np.zeros((len(sources), total), dtype=np.bool_)
    reached[np.arange(len(sources)), sources] = True
    none = np.zeros((len(sources), 0), dtype=np.int32)
    paths = _Paths(sources, sources, none, np.zeros(len(sources), dtype=np.int32))
    while len(paths.src):
        degree = first[paths.end + 1] - first[paths.end]
        if degree.sum() > MAX_STEPS:
            raise _TooManyError
        path = np.repeat(np.arange(len(degree)), degree)
        edge = by_tail[first[paths.end[path]] + places_in(degree)]
        head, row = edges.head[edge], number[paths.src[path]]
        on = ~shut[head] & ~reached[row, head]
        path, edge, head, row = path[on], edge[on], head[on], row[on]
        place = equals_before(row * total + head)
        on = place <= MAX_PATHS
        path, edge, head, row = path[on], edge[on], head[on], row[on]
        longer = np.concatenate([paths.edges[path], edge.astype(np.int32)[:, None]], axis=1)
        paths = _Paths(sources[row], head, longer, place[on])
        reached[row, head] = True
        yield paths.only(ends[head])
        paths = paths.only(~ends[head])


def _table(topology: "Topology", found: list[_Paths], vertices: int) -> LinkTable:
    src, dst = (
        np.concatenate([np.zeros(0, dtype=np.int64), *column])
        for column in ([p.src for p in found], [p.end for p in found])
    )
    # All paths of a pair have one length, so that they are in order among themselves.
    order = np.lexsort((dst, src))
    lengths = np.concatenate(
        [np.zeros(0, dtype=np.int64), *(np.full(len(p.src), p.edges.shape[1]) for p in found)]
    )
    flat = np.concatenate([np.zeros(0, dtype=np.int32), *(p.edges.ravel() for p in found)])
    begin = (np.cumsum(lengths) - lengths)[order]
    lengths = lengths[order]
    edge_start = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    edge_ids = flat[np.repeat(begin, lengths) + places_in(lengths)]
    first = np.searchsorted(src[order], np.arange(vertices + 1)).astype(np.int64)
    nothing = np.zeros(len(order), dtype=np.int64)
    table = LinkTable(
        src[order].astype(np.int32), dst[order].astype(np.int32), nothing, nothing, edge_start,
        edge_ids, first, (),
    )  # fmt: skip
    return table.with_costs(topology)

"""Which links a topology has: rank to rank, through switches only, as columns.

All edges a -> b are links; only if there are none, all switch paths with the fewest
edges are, at most 64 for each pair, in file order. A switch marked ``across: servers`` carries only
paths between ranks of different servers.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from taccl.errors import InputError, TacclWarning

if TYPE_CHECKING:
    from taccl.topology import Topology

MAX_PATHS = 64
MAX_LINKS = 1_200_000
"""Any-to-any links of 1024 ranks are a million; their columns take 300 MB to make."""

Path = tuple[int, ...]
"""Edge ids from a rank onwards."""


@dataclass(frozen=True, eq=False)
class LinkTable:
    """All links of a topology in columns, sorted by (src, dst, path).

    Parameters
    ----------
    src, dst
        int32, one entry a link.
    alpha, overhead
        int64 picoseconds, sums over the edges.
    edge_start, edge_ids
        CSR: link i crosses ``edge_ids[edge_start[i]:edge_start[i+1]]``.
    first
        Links leaving rank r are ``first[r] .. first[r+1]-1``.
    betas
        Beta of every edge of the topology (0 where the edge is no resource), exact.
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

    def entering(self, dst: int) -> tuple[int, ...]:
        """Return the ids of the links that enter a rank, ascending."""
        order, starts = self._by_dst
        return tuple(order[starts[dst] : starts[dst + 1]].tolist())

    def between(self, src: int, dst: int) -> tuple[int, ...]:
        """Return the parallel links from ``src`` to ``dst``, ascending."""
        ids = self.leaving(src)
        row = self.dst[ids.start : ids.stop]
        low, high = np.searchsorted(row, [dst, dst + 1])
        return tuple(range(ids.start + int(low), ids.start + int(high)))

    def edges_of(self, link: int) -> Path:
        """Return the edges a link crosses, in order."""
        return tuple(self.edge_ids[self.edge_start[link] : self.edge_start[link + 1]].tolist())

    def max_beta(self, link: int) -> Fraction:
        """Return the largest beta on a link, in ps for each byte (0 when it is free)."""
        return max((self.betas[edge] for edge in self.edges_of(link)), default=Fraction(0))

    def with_costs(
        self,
        alphas: Sequence[int],
        overheads: Sequence[int],
        betas: Sequence[Fraction | None],
    ) -> "LinkTable":
        """Return the same links over edges that cost something else, each in order of edge id."""
        alpha, overhead = (
            np.concatenate(([0], np.cumsum(np.array(costs, np.int64)[self.edge_ids])))
            for costs in (alphas, overheads)
        )
        first, end = self.edge_start[:-1], self.edge_start[1:]
        return replace(
            self,
            alpha=alpha[end] - alpha[first],
            overhead=overhead[end] - overhead[first],
            betas=tuple(Fraction(0) if beta is None else beta for beta in betas),
        )

    @cached_property
    def _by_dst(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        order = np.argsort(self.dst, kind="stable")
        starts = np.searchsorted(self.dst[order], np.arange(len(self.first)))
        return order, starts


def derive_links(topology: "Topology") -> LinkTable:
    """Return the links of a topology, rank to rank.

    Raises
    ------
    InputError
        When there are too many to hold.
    """
    out = _edges_out(topology)
    rows: list[tuple[int, int, Path]] = []
    cut: list[tuple[int, int]] = []
    for src in range(topology.num_ranks):
        found = _equal_paths(topology, src, out)
        for dst in sorted(found):
            rows.extend((src, dst, path) for path in found[dst][:MAX_PATHS])
            if len(found[dst]) > MAX_PATHS:
                cut.append((src, dst))
        if len(rows) > MAX_LINKS:
            raise InputError(
                f"{topology.name} has more than {MAX_LINKS} links between its"
                f" {topology.num_ranks} ranks",
                field="topology",
                fix="use fewer ranks, or switches that join fewer of them",
            )
    if cut:
        _warn_cut(topology, cut)
    return _table(topology, rows)


def _warn_cut(topology: "Topology", cut: list[tuple[int, int]]) -> None:
    src, dst = cut[0]
    others = f" (and so have {len(cut) - 1} other pairs)" if len(cut) > 1 else ""
    warnings.warn(
        f"{topology.name}: rank {src} has more than {MAX_PATHS} equal paths to rank"
        f" {dst}{others}; the first {MAX_PATHS} are used (model equal spines as one with the"
        " pooled bandwidth)",
        TacclWarning,
        stacklevel=3,
    )


def _table(topology: "Topology", rows: list[tuple[int, int, Path]]) -> LinkTable:
    alpha = np.array([edge.alpha for edge in topology.edges], dtype=np.int64)
    overhead = np.array([topology.edge_overhead(e) for e in topology.edges], dtype=np.int64)
    src = np.array([row[0] for row in rows], dtype=np.int32)
    dst = np.array([row[1] for row in rows], dtype=np.int32)
    lengths = np.array([len(row[2]) for row in rows], dtype=np.int64)
    edge_start = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    edge_ids = np.array([edge for row in rows for edge in row[2]], dtype=np.int32)
    owner = np.repeat(np.arange(len(rows)), lengths)
    sums = [np.zeros(len(rows), dtype=np.int64) for _ in range(2)]
    for total, column in zip(sums, (alpha, overhead), strict=True):
        np.add.at(total, owner, column[edge_ids])
    first = np.searchsorted(src, np.arange(topology.num_ranks + 1)).astype(np.int64)
    betas = tuple(edge.beta or Fraction(0) for edge in topology.edges)
    return LinkTable(src, dst, sums[0], sums[1], edge_start, edge_ids, first, betas)


def _edges_out(topology: "Topology") -> list[list[tuple[int, int]]]:
    """Return for every vertex its (edge id, head) pairs in file order."""
    out: list[list[tuple[int, int]]] = [
        [] for _ in range(topology.num_ranks + len(topology.switches))
    ]
    for edge in topology.edges:
        out[edge.tail].append((edge.id, edge.head))
    return out


def paths_from(
    topology: "Topology", src: int, out: list[list[tuple[int, int]]] | None = None
) -> dict[int, list[Path]]:
    """Return for every rank that ``src`` has a link to the edge paths of those links."""
    found = _equal_paths(topology, src, out or _edges_out(topology))
    return {dst: paths[:MAX_PATHS] for dst, paths in found.items()}


def _equal_paths(
    topology: "Topology", src: int, out: list[list[tuple[int, int]]]
) -> dict[int, list[Path]]:
    """Return the paths to every rank; one more than are used tells that there are more."""
    found: dict[int, list[Path]] = {}
    for edge, head in out[src]:
        if head < topology.num_ranks and head != src:
            found.setdefault(head, []).append((edge,))
    home = topology.server_of[src]
    variants = [False]
    if any(switch.across_servers for switch in topology.switches):
        variants.append(True)
    for across in variants:
        for dst, paths in _switch_paths(topology, src, out, across=across).items():
            same_server = topology.server_of[dst] == home
            wanted = dst not in found or len(found[dst][0]) > 1
            if wanted and (across != same_server or len(variants) == 1):
                found[dst] = paths
    return found


def _switch_paths(
    topology: "Topology", src: int, out: list[list[tuple[int, int]]], *, across: bool
) -> dict[int, list[Path]]:
    """Return the shortest switch paths from a rank, layer by layer, the first 65 a vertex."""
    ranks = topology.num_ranks
    layer: dict[int, list[Path]] = {src: [()]}
    reached = {src}
    found: dict[int, list[Path]] = {}
    while layer:
        following: dict[int, list[Path]] = {}
        for vertex, paths in layer.items():
            for edge, head in out[vertex]:
                closed = head >= ranks and (
                    topology.switches[head - ranks].across_servers and not across
                )
                if head not in reached and not closed:
                    following.setdefault(head, []).extend((*path, edge) for path in paths)
        reached.update(following)
        layer = {}
        for vertex, paths in following.items():
            # A path that is not among the first of its prefixes is not among the first itself.
            (found if vertex < ranks else layer)[vertex] = sorted(paths)[: MAX_PATHS + 1]
    return found

"""Cuts: the narrowest edges between sets of ranks, and the worst ratio of data to capacity.

In all-gather every set S of ranks that leaves someone out must send its own blocks to the rest,
over the edges that leave S: ``size / N * |S| / B+(S)``. Ranks and switches forward. In a gather
S leaves out the root; in a broadcast all of ``size`` must get from the root to every rank. The
worst S is found by Dinkelbach's iteration: for the best ratio so far, one maximum flow to every
rank tells whether some S is worse. The flows run on capacities rounded to integers where they
can't be scaled exactly; whatever set they find, its ratio is then computed exactly, so the bound
holds.

References
----------
W. Dinkelbach, "On nonlinear fractional programming", 1967. L. Zhao et al., "ForestColl", 2024,
section 3 (the cut that all-gather can't beat).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import lcm
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from taccl.bounds.crossing import Crossing
from taccl.bounds.net import Net

if TYPE_CHECKING:
    from ortools.graph.python.max_flow import SimpleMaxFlow

MOST_ARCS = 4_000_000
"""Arcs of all flows of one idea: at so many ranks narrow cuts are looked for, at others not."""

TOTAL = 1 << 48
"""Scaled capacities add up to less than this, so that sums of endless ones fit into 64 bits."""


@dataclass(frozen=True, eq=False)
class Graph:
    """The used edges with their capacities, in integers.

    Parameters
    ----------
    tails, heads, edges
        Vertices and ids of the used edges.
    capacity
        Scaled units in a picosecond; ``endless`` for an edge that is no resource.
    exact
        Units in a picosecond of every resource.
    scale
        Scaled units for each unit.
    endless
        More than all resources together.
    """

    tails: tuple[int, ...]
    heads: tuple[int, ...]
    edges: tuple[int, ...]
    capacity: tuple[int, ...]
    exact: Mapping[int, Fraction]
    scale: Fraction
    endless: int
    vertices: int

    def leaving(self, side: Iterable[int]) -> tuple[int, ...]:
        """Return the edges from a set of vertices to the others."""
        member = np.zeros(self.vertices + 2, dtype=np.bool_)
        member[list(side)] = True
        crosses = np.flatnonzero(member[self._tails] & ~member[self._heads])
        return tuple(self.edges[place] for place in crosses.tolist())

    @cached_property
    def _tails(self) -> NDArray[np.int32]:
        return np.array(self.tails, dtype=np.int32)

    @cached_property
    def _heads(self) -> NDArray[np.int32]:
        return np.array(self.heads, dtype=np.int32)

    @property
    def most_flows(self) -> int:
        """How many flows can be computed in a second or two."""
        return MOST_ARCS // max(1, len(self.edges))

    def width(self, cut: Iterable[int]) -> Fraction | None:
        """Return what a cut lets through in a picosecond; None when it holds a free edge."""
        total = Fraction(0)
        for edge in cut:
            if edge not in self.exact:
                return None
            total += self.exact[edge]
        return total


def make_graph(net: Net, extra: Fraction = Fraction(1), *, backwards: bool = False) -> Graph:
    """Return the flow graph of a network.

    Parameters
    ----------
    extra
        A rate that should be an integer after scaling, too.
    backwards
        Whether to turn every edge round.
    """
    edges = [net.topology.edges[e] for e in net.used]
    rates = {busy: 1 / busy for busy in set(net.busy.values())}
    exact = {e: rates[busy] for e, busy in net.busy.items()}
    ranks = net.num_ranks
    common = lcm(extra.denominator, *(rate.denominator for rate in rates.values()))
    counts = Counter(exact.values())
    total = sum((rate * n for rate, n in counts.items()), start=extra * (ranks + 1) + 1)
    scale = Fraction(common) if total * common * 4 < TOTAL else TOTAL / (4 * total)
    endless = int(total * scale) + 1
    tails, heads = [e.tail for e in edges], [e.head for e in edges]
    if backwards:
        tails, heads = heads, tails
    scaled = {rate: int(rate * scale) for rate in counts}
    capacity = tuple(scaled[exact[e]] if e in exact else endless for e in net.used)
    vertices = ranks + len(net.topology.switches)
    return Graph(
        tuple(tails), tuple(heads), net.used, capacity, exact, scale, endless, vertices
    )  # fmt: skip


def narrowest(
    graph: Graph, sources: Sequence[int], sinks: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return a cut of least capacity between two sets of vertices, and the vertices before it.

    None when what is narrowest is free.
    """
    source, sink = graph.vertices, graph.vertices + 1
    supplies = [(source, rank) for rank in sources] + [(rank, sink) for rank in sinks]
    flow = _max_flow(graph, supplies, graph.endless)
    if flow.solve(source, sink) != flow.OPTIMAL:
        return None
    side = tuple(v for v in flow.get_source_side_min_cut() if v < graph.vertices)
    cut = graph.leaving(side)
    return None if graph.width(cut) is None else (cut, side)


def narrow_crossing(net: Net, graph: Graph, kind: str, ends: tuple[int, int]) -> Iterator[Crossing]:
    """Yield a whole ``size`` that must get from one rank to another, over the narrowest cut."""
    source, sink = ends
    found = narrowest(graph, [source], [sink])
    if found is None:
        return
    cut, side = found
    gates = net.gates(cut, net.crossing([v for v in side if v < net.num_ranks]))
    if gates:
        yield Crossing(kind, gates, Fraction(1))


def _max_flow(graph: Graph, supplies: list[tuple[int, int]], capacity: int) -> "SimpleMaxFlow":
    from ortools.graph.python.max_flow import SimpleMaxFlow

    flow = SimpleMaxFlow()
    tails = np.array([*graph.tails, *(s[0] for s in supplies)], dtype=np.int32)
    heads = np.array([*graph.heads, *(s[1] for s in supplies)], dtype=np.int32)
    widths = np.array([*graph.capacity, *[capacity] * len(supplies)], dtype=np.int64)
    # The package's type hints of this method are wrong.
    columns: Any = (tails, heads, widths)
    flow.add_arcs_with_capacity(*columns)
    return flow


def worst_set(
    net: Net, sinks: Sequence[int], *, backwards: bool = False
) -> tuple[frozenset[int], tuple[int, ...]] | None:
    """Return the ranks of the set with most ranks for its capacity, and the edges that leave it.

    Parameters
    ----------
    sinks
        Ranks of which the set leaves one out.
    backwards
        Whether to look for the edges that enter the set instead.
    """
    ranks = range(net.num_ranks)
    graph = make_graph(net, backwards=backwards)
    sinks = sinks[: graph.most_flows // 2]
    best: tuple[frozenset[int], tuple[int, ...]] | None = None
    ratio: Fraction | None = None
    for rank in sinks:
        side = frozenset(ranks) - {rank}
        narrow = narrowest(graph, sorted(side), [rank])
        width = graph.width(narrow[0]) if narrow else None
        if narrow and width and (ratio is None or width / len(side) < ratio):
            best, ratio = (side, narrow[0]), width / len(side)
    while ratio is not None:
        found = _worse(net, ratio, sinks, backwards=backwards)
        if found is None:
            break
        best, ratio = found
    return best


def _worse(
    net: Net, ratio: Fraction, sinks: Iterable[int], *, backwards: bool
) -> tuple[tuple[frozenset[int], tuple[int, ...]], Fraction] | None:
    """Return a set whose capacity for each rank is least among those below ``ratio``, if any."""
    graph = make_graph(net, ratio, backwards=backwards)
    source = graph.vertices
    supply = int(ratio * graph.scale)
    flow = _max_flow(graph, [(source, rank) for rank in range(net.num_ranks)], supply)
    best, found = ratio, None
    for sink in sinks:
        if flow.solve(source, sink) != flow.OPTIMAL:
            continue
        if flow.optimal_flow() >= supply * net.num_ranks:
            continue
        side = set(flow.get_source_side_min_cut()) - {source}
        members = frozenset(v for v in side if v < net.num_ranks)
        cut = graph.leaving(side)
        width = graph.width(cut)
        if members and width is not None and width / len(members) < best:
            best, found = width / len(members), (members, cut)
    return None if found is None else (found, best)

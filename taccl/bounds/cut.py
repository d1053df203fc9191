"""What ranks that share edges must receive, or send, all together.

A cut asks what enters a set of ranks from outside; here each rank of the set counts what *it*
must receive, over any link: two ranks behind one NIC receive twice, through the NIC and through
their own ports together. (With point-to-point links a NIC's message reaches one of the two, so
that this can be more than any cut.) Groups are ranks that share edges, servers, and all ranks.

At which edge to count the messages of each link: its first, its last, or its slowest.

One edge of every link is a set of gates that nothing on these links can pass by. Which choice
makes the tightest gates depends on the machine: where two ranks share a NIC the port of the NIC,
behind a narrow uplink the uplink.

Cuts: the narrowest edges between sets of ranks, and the worst ratio of data to capacity.

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

What must leave and enter each rank and each server, against the edges it can do so by.

Two cuts are tried for each: the outermost edges, and the narrowest that separates the ranks from
the others (a NIC behind a wider PCIe edge).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import lcm
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from taccl.bounds.arrival_curves import Gate, Gates
from taccl.bounds.net import (
    Crossing,
    IntArray,
    Net,
    flows_in,
    is_uniform,
    leaves,
    one_of_each,
    servers_of,
)
from taccl.collectives import Collective

if TYPE_CHECKING:
    from ortools.graph.python.max_flow import SimpleMaxFlow


NONE = -1
"""Instead of an edge, where a link crosses no resource."""


def first_resource(net: Net) -> IntArray:
    """Return the first edge of every link that is a resource."""
    return _picked(net, _resources(net), last=False)


def last_resource(net: Net) -> IntArray:
    """Return the last edge of every link that is a resource."""
    return _picked(net, _resources(net), last=True)


def slowest_first(net: Net) -> IntArray:
    """Return the slowest edge of every link, the first of equals."""
    return _picked(net, _slowest(net), last=False)


def slowest_last(net: Net) -> IntArray:
    """Return the slowest edge of every link, the last of equals."""
    return _picked(net, _slowest(net), last=True)


COVERS: tuple[Callable[[Net], IntArray], ...] = (
    first_resource, last_resource, slowest_first, slowest_last,
)  # fmt: skip


def counted_at(net: Net, cover: IntArray, rows: NDArray[np.bool_]) -> Gates | None:
    """Return the edges that messages on some links are counted at as gates; None: some have none.

    Like :meth:`Net.gates`, for very many edges at once.

    Parameters
    ----------
    net
        The network.
    cover
        For each link an edge that it crosses, or ``NONE``.
    rows
        Mask of the links to count.
    """
    links = np.flatnonzero(rows)
    edges = cover[links]
    if not len(edges) or edges.min() == NONE:
        return None
    links = links[np.argsort(edges, kind="stable")]
    edges, at = np.unique(cover[links], return_index=True)
    late = net.late(links, cover[links])
    overhead = net.overhead[links] if net.chunk is not None else np.zeros_like(late)
    columns = np.stack([
        np.minimum.reduceat(late, at), np.minimum.reduceat(overhead, at), net.wire_id[edges],
    ])  # fmt: skip
    kinds, counts = np.unique(columns, axis=1, return_counts=True)
    return tuple(sorted(
        (Gate(start, net.wires[wire] + extra), count)
        for (start, extra, wire), count in zip(kinds.T.tolist(), counts.tolist(), strict=True)
    ))  # fmt: skip


def _resources(net: Net) -> NDArray[np.bool_]:
    resource = np.zeros(len(net.topology.edges), dtype=np.bool_)
    resource[list(net.busy)] = True
    chosen: NDArray[np.bool_] = resource[net.edges]
    return chosen


def _slowest(net: Net) -> NDArray[np.bool_]:
    busy = np.full(len(net.topology.edges), -1.0)
    for edge, time in net.busy.items():
        busy[edge] = float(time)
    times = busy[net.edges]
    if not len(times):
        return np.zeros(0, dtype=np.bool_)
    most = np.repeat(np.maximum.reduceat(times, net.first[:-1]), np.diff(net.first))
    chosen: NDArray[np.bool_] = (times == most) & (times >= 0)
    return chosen


def _picked(net: Net, chosen: NDArray[np.bool_], *, last: bool) -> IntArray:
    """Return for every link the first (last) of its chosen edges."""
    owner = np.repeat(np.arange(len(net.src)), np.diff(net.first))[chosen]
    edges = net.edges[chosen]
    found = np.full(len(net.src), NONE, dtype=np.int64)
    if last:
        found[owner] = edges  # of repeated places numpy keeps the last
    else:
        found[owner[::-1]] = edges[::-1]
    return found


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
    net
        The network.
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

    Parameters
    ----------
    graph
        The used edges with their capacities.
    sources, sinks
        Vertices before and behind the cut.
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
    """Yield a whole ``size`` that must get from one rank to another, over the narrowest cut.

    Parameters
    ----------
    net
        The network.
    graph
        Its flow graph.
    kind
        The idea: a key of ``KINDS``.
    ends
        The rank that has the data, and the rank that needs it.
    """
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
    net
        The network.
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


MOST_VISITS = 1_200_000_000
"""Links looked at, above which only the first ranks and servers are (1024 on a switch all are)."""


def port_crossings(net: Net, collective: Collective) -> Iterator[Crossing]:
    """Yield what must leave and enter every rank and every server.

    Parameters
    ----------
    net
        The network.
    collective
        What is done.
    """
    ranks = range(net.num_ranks)
    graph = make_graph(net)
    looked_at = MOST_VISITS // (len(net.src) + 20 * net.num_ranks)
    chosen = one_of_each(net, collective)[:looked_at]
    groups = [g for g in servers_of(net, chosen) if 1 < len(g) < net.num_ranks]
    groups += [(rank,) for rank in chosen]
    for number, group in enumerate(groups):
        others = tuple(np.setdiff1d(ranks, group).tolist())
        narrow = graph if 2 * number < graph.most_flows else None
        yield from _out_of(net, narrow, collective, group, others)
        yield from _out_of(net, narrow, collective, others, group)


def _out_of(
    net: Net,
    graph: Graph | None,
    collective: Collective,
    inside: Sequence[int],
    others: Sequence[int],
) -> Iterator[Crossing]:
    share = leaves(collective, inside)
    if not share:
        return
    crossing = net.crossing(inside)
    narrow = narrowest(graph, inside, others) if graph else None
    cuts = {narrow[0]} if narrow else set()
    if len(inside) == 1:
        cuts.add(net.first_edges(inside[0]))
    if len(others) == 1:
        cuts.add(net.last_edges(others[0]))
    for cut in sorted(cut for cut in cuts if cut):
        gates = net.gates(cut, crossing)
        if gates:
            yield Crossing("port", gates, share)


def cut_crossings(net: Net, collective: Collective) -> Iterator[Crossing]:
    """Yield what must leave the set of ranks with most data for its capacity.

    A gather is one commodity, so that its worst set is the optimum of the flow, and is called so.

    Parameters
    ----------
    net
        The network.
    collective
        What is done.
    """
    name, root = collective.name, collective.root
    if name in ("broadcast", "reduce") and root is not None:
        graph = make_graph(net)
        others = [rank for rank in one_of_each(net, collective) if rank != root]
        for rank in others[: graph.most_flows]:
            ends = (rank, root) if flows_in(collective) else (root, rank)
            yield from narrow_crossing(net, graph, "cut", ends)
    elif name in ("allgather", "reducescatter", "gather", "scatter"):
        yield from _worst(net, collective, backwards=name in ("reducescatter", "scatter"))


def _worst(net: Net, collective: Collective, *, backwards: bool) -> Iterator[Crossing]:
    root = collective.root
    sinks = one_of_each(net, collective) if root is None else (root,)
    found = worst_set(net, sinks, backwards=backwards)
    if found is None:
        return
    members, cut = found
    inside = sorted(set(range(net.num_ranks)) - members) if backwards else sorted(members)
    gates = net.gates(cut, net.crossing(inside))
    if gates:
        kind = "cut" if collective.root is None else "flow"
        yield Crossing(kind, gates, leaves(collective, inside))


MANY_RANKS = 256
"""Above this only collectives that treat ranks alike are looked at."""

MOST_SET_VISITS = 100_000_000
"""Links looked at for all groups together."""


def shared_crossings(net: Net, collective: Collective) -> Iterator[Crossing]:
    """Yield what groups of ranks must receive (send), each link counted at one of its edges.

    Parameters
    ----------
    net
        The network.
    collective
        What is done.
    """
    if not is_uniform(collective) and net.num_ranks > MANY_RANKS:
        return
    chosen = one_of_each(net, collective)
    receives, sends = _needs(net, collective)
    covers = (cover(net) for cover in COVERS)
    for cover in {cover.tobytes(): cover for cover in covers}.values():
        for ends, needs in ((net.dst, receives), (net.src, sends)):
            for group in _groups(net, cover, ends, chosen):
                share = sum((needs[rank] for rank in group), start=Fraction(0))
                rows = np.isin(ends, group)
                gates = counted_at(net, cover, rows) if share else None
                if gates:
                    yield Crossing("port", gates, share)


def _needs(net: Net, collective: Collective) -> tuple[list[Fraction], list[Fraction]]:
    """Return what every rank must receive, and what it must send, in units of ``size``."""
    ranks = range(net.num_ranks)
    if is_uniform(collective):
        return [leaves(collective, ranks[1:])] * len(ranks), [leaves(collective, [0])] * len(ranks)
    others = [[other for other in ranks if other != rank] for rank in ranks]
    return [leaves(collective, rest) for rest in others], [leaves(collective, [r]) for r in ranks]


def _groups(
    net: Net, cover: IntArray, ends: IntArray, chosen: Sequence[int]
) -> list[tuple[int, ...]]:
    """Return the ranks that share edges with a chosen one, their servers, and all ranks."""
    name = _joined(net, cover, ends)
    most = MOST_SET_VISITS // (8 * len(net.src) + 1)
    names = np.unique(name[list(chosen)])[:most].tolist()
    groups = [tuple(np.flatnonzero(name == one).tolist()) for one in names]
    groups += servers_of(net, tuple(chosen))[:most]
    return list(dict.fromkeys([*groups, tuple(range(net.num_ranks))]))


def _joined(net: Net, cover: IntArray, ends: IntArray) -> IntArray:
    """Return for every rank the smallest that it is joined to by edges that ranks share."""
    name = np.arange(net.num_ranks, dtype=np.int64)
    links = np.flatnonzero(cover != NONE)
    while True:
        of_edge = np.full(len(net.topology.edges), net.num_ranks, dtype=np.int64)
        np.minimum.at(of_edge, cover[links], name[ends[links]])
        joined = name.copy()
        np.minimum.at(joined, ends[links], of_edge[cover[links]])
        joined = joined[joined]
        if np.array_equal(joined, name):
            return name
        name = joined

"""Cuts: what must pass a set of edges around ranks or servers, against how fast it can.

*Port*: what must leave and enter each rank and each server. Two cuts are tried for each: the
outermost edges, and the narrowest that separates the ranks from the others (a NIC behind a wider
PCIe edge). Beside these, what ranks that share edges must receive, or send, all together: a cut
asks what enters a set of ranks from outside; here each rank of the set counts what *it* must
receive, over any link. Two ranks behind one NIC receive twice, through the NIC and through their
own ports together. (With point-to-point links a NIC's message reaches one of the two, so that
this can be more than any cut.) Groups are ranks that share edges, servers, and all ranks.

*Covers*: each link is counted at one of its edges, which then are a set of gates that nothing on
these links can pass by. Whether the first, the last or the slowest edge makes the tightest gates
depends on the machine: where two ranks share a NIC the port of the NIC, behind a narrow uplink the
uplink.

*Cut*: the worst ratio of data to capacity. In all-gather every set S of ranks that leaves someone
out must send its own blocks to the rest, over the edges that leave S: ``size / N * |S| / B+(S)``.
Ranks and switches forward. In a gather S leaves out the root; in a broadcast all of ``size`` must
get from the root to every rank. The worst S is found by Dinkelbach's iteration: for the best ratio
so far, one maximum flow to every rank tells whether some S is worse. The flows run on capacities
rounded to integers where they can't be scaled exactly; whatever set they find, its ratio is then
computed exactly, so the bound holds.

*Loop*: all-reduce on one switch that takes each rank's own value through itself, as NVLS does.

Let m ranks be joined by one switch only, each by an edge up and one down, and let the switch add
for a rank only (``turn: rank``), with that rank's own value going up like the others, and copy with
one copy down to the sender. For a piece

- a message from rank to rank uses 2 edges;
- a sum of the values of a ranks at another uses a + 1 edges up and one down: a + 2;
- a copy of one rank's value to b others uses one up and b + 1 down: b + 2; a fused fan is the two.

Of one-way messages, of which a sum is a and a copy b, gossip between m parties needs 2(m - 1). Let
f be the sums and copies, c the messages in them, and p the single ones; p + c >= 2(m - 1):

    f = 0:   2 p >= 4(m - 1)
    f = 1:   2 p + c + 2 >= 4(m - 1) - c + 2 >= 3 m - 1, as c <= m - 1
    f >= 2:  2 p + c + 2 f >= 2(m - 1) + 4 = 2 m + 2

3 m - 1 is not the least of the three for any m >= 2. So a piece holds the 2m edges, one after the
other, for min(4(m - 1), 2 m + 2) times its own time on one; an exhaustive search over all plans
finds the same for 2 to 5 ranks (tests/bounds/test_in_network.py).

References
----------
W. Dinkelbach, "On nonlinear fractional programming", 1967. L. Zhao et al., "ForestColl", 2024,
section 3 (the cut that all-gather can't beat).
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from taccl.bounds.arrival_curves import Gate, Gates, gather
from taccl.bounds.net import (
    FAR,
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
from taccl.units import Time

if TYPE_CHECKING:
    from ortools.graph.python.max_flow import SimpleMaxFlow


NONE = -1
"""Instead of an edge, where a link crosses no resource."""


def counting_edges(net: Net, *, slowest: bool = False, last: bool = False) -> IntArray:
    """Return for every link of `net` the edge to count its messages at: its first resource.

    Or its `last`; or of its `slowest` edges the first or last. ``NONE`` where none is a resource.
    """
    busy = np.full(len(net.topology.edges), -1.0)
    busy[list(net.busy)] = [float(time) if slowest else 0.0 for time in net.busy.values()]
    length, most = np.diff(net.first), np.full(len(net.src), -1.0)
    found = np.full(len(net.src), NONE, dtype=np.int64)
    for place in range(int(length.max(initial=0))):
        links = np.flatnonzero(length > place)
        edges = net.edges[net.first[links] + place]
        times = busy[edges]
        better = times >= np.maximum(most[links], 0) if last else times > most[links]
        links = links[better]
        found[links], most[links] = edges[better], times[better]
    return found


def edge_covers(net: Net) -> list[IntArray]:
    """Return the distinct ways to count every link at one of its edges."""
    found: list[IntArray] = []
    for slowest, last in itertools.product((False, True), repeat=2):
        cover = counting_edges(net, slowest=slowest, last=last)
        if not any(np.array_equal(cover, other) for other in found):
            found.append(cover)
    return found


def counted_at(net: Net, cover: IntArray, rows: NDArray[np.bool_]) -> Gates | None:
    """Return what messages on some links are counted at as gates; None where some have no resource.

    Like :meth:`Net.gates`, for very many edges at once. `cover` has for each link of `net` an edge
    that it crosses, or ``NONE``; `rows` is a mask of the links to count.
    """
    kinds = edges_counted(net, cover, rows)
    if kinds is None:
        return None
    found: Counter[Gate] = Counter()
    for (start, overhead, wire), count in kinds.items():
        found[Gate(start, net.wires[wire] + (0 if net.chunk is None else overhead))] += count
    return tuple(sorted(found.items()))


def edges_counted(
    net: Net, cover: IntArray, rows: NDArray[np.bool_]
) -> Counter[tuple[Time, Time, int]] | None:
    """Return how many edges of a `cover` have some lost time, overhead and number of their wire.

    `cover` and `rows` are as for :func:`counted_at`; None where a link has no resource. Lost is
    what a message takes from its start to its arrival beside its bytes, at least.
    """
    links = np.flatnonzero(rows)
    edges = cover[links]
    if not len(edges) or edges.min() == NONE:
        return None
    least = np.full((2, len(net.topology.edges)), FAR)
    for row, lost in zip(least, (net.late(links, edges), net.overhead[links]), strict=True):
        np.minimum.at(row, edges, lost)
    used = np.flatnonzero(np.bincount(edges))
    # Not np.unique(axis=1): numpy makes a TypeError of a time limit that comes while it compares.
    return Counter(zip(*least[:, used].tolist(), net.wire_id[used].tolist(), strict=True))


MOST_ARCS = 4_000_000
"""Arcs of all flows of one idea: at so many ranks narrow cuts are looked for, at others not."""

TOTAL = 1 << 48
"""Scaled capacities add up to less than this, so that sums of endless ones fit into 64 bits."""


@dataclass(frozen=True, eq=False)
class Graph:
    """The used edges with their capacities, in integers.

    `tails`, `heads` and `edges` are vertices and ids of the used edges. `capacity` is scaled units
    in a picosecond, `endless` for an edge that is no resource: more than all resources together.
    Every resource has `exact` units in a picosecond, and a unit is `scale` scaled ones.
    """

    tails: NDArray[np.int32]
    heads: NDArray[np.int32]
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
        crosses = np.flatnonzero(member[self.tails] & ~member[self.heads])
        return tuple(self.edges[place] for place in crosses.tolist())

    @property
    def most_flows(self) -> int:
        """How many flows can be computed in a second or two."""
        return MOST_ARCS // max(1, len(self.edges))

    def width(self, cut: Iterable[int]) -> Fraction | None:
        """Return what a cut lets through in a picosecond; None when it holds a free edge."""
        rates = [self.exact.get(edge) for edge in cut]
        known = [rate for rate in rates if rate is not None]
        return sum(known, start=Fraction(0)) if len(known) == len(rates) else None


def graph_size(net: Net) -> int:
    """Return how many vertices the graph of `net` has: all ranks and switches."""
    return net.num_ranks + len(net.topology.switches)


def make_graph(net: Net, extra: Fraction = Fraction(1), *, backwards: bool = False) -> Graph:
    """Return the flow graph of `net`, every edge turned round if `backwards`.

    `extra` is a rate (units in a picosecond) that is to be an integer after scaling, too.
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
    tails = np.array([edge.tail for edge in edges], dtype=np.int32)
    heads = np.array([edge.head for edge in edges], dtype=np.int32)
    if backwards:
        tails, heads = heads, tails
    scaled = {rate: int(rate * scale) for rate in counts}
    capacity = tuple(scaled[exact[e]] if e in exact else endless for e in net.used)
    return Graph(tails, heads, net.used, capacity, exact, scale, endless, graph_size(net))


def narrowest(
    graph: Graph, sources: Sequence[int], sinks: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return a cut of least capacity of `graph`, and the vertices before it.

    `sources` and `sinks` are vertices before and behind it. None when what is narrowest is free.
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
    """Yield a whole ``size`` that must get from one rank to another over the narrowest cut.

    `net` is the network of the `graph`, `kind` the idea (a key of ``KINDS``), `ends` the rank that
    has the data and the rank that needs it.
    """
    source, sink = ends
    found = narrowest(graph, [source], [sink])
    if found is None:
        return
    cut, side = found
    gates = net.gates(cut, net.across(side))
    if gates:
        yield Crossing(kind, gates, Fraction(1))


def _max_flow(graph: Graph, supplies: list[tuple[int, int]], capacity: int) -> "SimpleMaxFlow":
    from ortools.graph.python.max_flow import SimpleMaxFlow

    flow = SimpleMaxFlow()
    tails, heads = np.array(supplies, dtype=np.int32).T
    widths = np.array([*graph.capacity, *[capacity] * len(supplies)], dtype=np.int64)
    # The package's type hints of this method are wrong.
    columns: Any = (
        np.concatenate([graph.tails, tails]), np.concatenate([graph.heads, heads]), widths
    )  # fmt: skip
    flow.add_arcs_with_capacity(*columns)
    return flow


def worst_set(
    net: Net, sinks: Sequence[int], *, backwards: bool = False
) -> tuple[frozenset[int], tuple[int, ...]] | None:
    """Return the vertices of the set with most ranks for its capacity, and the edges that leave it.

    Of the ranks of `net` the set leaves out at least one of `sinks`; switches may be in it. If
    `backwards`, the edges are those that enter it.
    """
    ranks = range(net.num_ranks)
    graph = make_graph(net, backwards=backwards)
    sinks = sinks[: graph.most_flows // 2]
    best: tuple[frozenset[int], tuple[int, ...]] | None = None
    ratio: Fraction | None = None
    for rank in sinks:
        others = frozenset(ranks) - {rank}
        narrow = narrowest(graph, sorted(others), [rank])
        width = graph.width(narrow[0]) if narrow else None
        if narrow and width and (ratio is None or width / len(others) < ratio):
            best, ratio = (frozenset(narrow[1]), narrow[0]), width / len(others)
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
            best, found = width / len(members), (frozenset(side), cut)
    return None if found is None else (found, best)


MOST_VISITS = 1_200_000_000
"""Links looked at, above which only the first ranks and servers are (1024 on a switch all are)."""


def port_crossings(net: Net, collective: Collective) -> Iterator[Crossing]:
    """Yield what must leave and enter every rank and every server of `net` in a `collective`."""
    ranks = range(net.num_ranks)
    graph = make_graph(net)
    looked_at = MOST_VISITS // (len(net.src) + 20 * net.num_ranks)
    chosen = one_of_each(net, collective)[:looked_at]
    groups = [g for g in servers_of(net, chosen) if 1 < len(g) < net.num_ranks]
    groups += [(rank,) for rank in chosen]
    for number, group in enumerate(groups):
        others = tuple(np.setdiff1d(ranks, group).tolist())
        narrow = graph if 2 * number < graph.most_flows else None
        for inside, outside in ((group, others), (others, group)):
            share = leaves(collective, inside)
            if not share:
                continue
            found = narrowest(narrow, inside, outside) if narrow else None
            cuts = {found[0]: net.across(found[1])} if found else {}
            if len(inside) == 1:
                cuts[net.first_edges(inside[0])] = net.crossing(inside)
            if len(outside) == 1:
                cuts[net.last_edges(outside[0])] = net.dst == outside[0]
            for cut in sorted(cut for cut in cuts if cut):
                gates = net.gates(cut, cuts[cut])
                if gates:
                    yield Crossing("port", gates, share)


def cut_crossings(net: Net, collective: Collective) -> Iterator[Crossing]:
    """Yield what must leave the set of ranks of `net` with most data for its capacity.

    Of a `collective` with one commodity, as a gather, the worst set is the optimum of the flow, and
    is called so.
    """
    name, root = collective.name, collective.root
    if name in ("broadcast", "reduce") and root is not None:
        graph = make_graph(net)
        others = [rank for rank in one_of_each(net, collective) if rank != root]
        for rank in others[: graph.most_flows]:
            ends = (rank, root) if flows_in(collective) else (root, rank)
            yield from narrow_crossing(net, graph, "cut", ends)
    elif name in ("allgather", "reducescatter", "gather", "scatter"):
        backwards = name in ("reducescatter", "scatter")
        sinks = one_of_each(net, collective) if root is None else (root,)
        found = worst_set(net, sinks, backwards=backwards)
        if found is None:
            return
        side, cut = found
        if backwards:
            side = frozenset(range(graph_size(net))) - side
        inside = sorted(vertex for vertex in side if vertex < net.num_ranks)
        gates = net.gates(cut, net.across(side))
        if gates:
            yield Crossing("cut" if root is None else "flow", gates, leaves(collective, inside))


MANY_RANKS = 256
"""Above this only collectives that treat ranks alike are looked at."""

MOST_SET_VISITS = 100_000_000
"""Links looked at for all groups together."""


def shared_crossings(net: Net, collective: Collective) -> Iterator[Crossing]:
    """Yield what groups of ranks of `net` must receive (send) in a `collective`.

    Each link is counted at one of its edges.
    """
    if not is_uniform(collective) and net.num_ranks > MANY_RANKS:
        return
    chosen = one_of_each(net, collective)
    count = net.num_ranks
    looked_at = range(1 if is_uniform(collective) else count)
    receives = [leaves(collective, [*range(r), *range(r + 1, count)]) for r in looked_at]
    sends = [leaves(collective, [rank]) for rank in looked_at]
    if is_uniform(collective):
        receives, sends = receives * count, sends * count
    for cover in edge_covers(net):
        for ends, needs in ((net.dst, receives), (net.src, sends)):
            for group in _groups(net, cover, ends, chosen):
                share = sum((needs[rank] for rank in group), start=Fraction(0))
                rows = np.isin(ends, group)
                gates = counted_at(net, cover, rows) if share else None
                if gates:
                    yield Crossing("port", gates, share)


def _groups(
    net: Net, cover: IntArray, ends: IntArray, chosen: Sequence[int]
) -> list[tuple[int, ...]]:
    """Return the ranks that share edges with a chosen one, their servers, and all ranks."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    links = np.flatnonzero(cover != NONE)
    joined = (np.ones(len(links)), (ends[links], net.vertices + cover[links]))
    size = net.vertices + len(net.topology.edges)
    _, name = connected_components(csr_array(joined, shape=(size, size)), directed=False)
    most = MOST_SET_VISITS // (8 * len(net.src) + 1)
    names = np.unique(name[list(chosen)])[:most].tolist()
    groups = [tuple(np.flatnonzero(name[: net.num_ranks] == one).tolist()) for one in names]
    groups += servers_of(net, tuple(chosen))[:most]
    return list(dict.fromkeys([*groups, tuple(range(net.num_ranks))]))


def edges_used(ranks: int) -> int:
    """Return how many edges a piece of an all-reduce of so many `ranks` uses at least."""
    return min(4 * (ranks - 1), 2 * ranks + 2)


def loop_crossings(net: Net, collective: Collective) -> Iterator[Crossing]:
    """Yield the edges that an allreduce uses on `net`, if it is one switch with `own: through`.

    Of another `collective` nothing is said.
    """
    topology = net.topology
    if collective.name != "allreduce" or len(net.helpers) != 1 or net.num_ranks < 2:
        return
    switch = topology.switches[net.helpers[0] - net.num_ranks]
    adds, copies = switch.reduce, switch.multicast
    if adds is None or copies is None:
        return
    if not (adds.through and adds.at_rank and copies.through):
        return
    used = [topology.edges[edge] for edge in net.used]
    ups = {edge.tail for edge in used if edge.head == net.helpers[0]}
    if len(used) != 2 * net.num_ranks or len(ups) != net.num_ranks:
        return
    if not all(edge.id in net.busy and net.helpers[0] in (edge.tail, edge.head) for edge in used):
        return
    gates = gather(net.gate(edge.id, net.through[edge.id]) for edge in used)
    yield Crossing("loop", gates, Fraction(edges_used(net.num_ranks)))

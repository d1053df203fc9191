"""What must leave and enter each rank and each server, against the edges it can do so by.

Two cuts are tried for each: the outermost edges, and the narrowest that separates the ranks from
the others (a NIC behind a wider PCIe edge).
"""

from collections.abc import Iterator, Sequence

import numpy as np

from taccl.bounds.crossing import Crossing, flows_in, leaves
from taccl.bounds.cut import Graph, make_graph, narrow_crossing, narrowest, worst_set
from taccl.bounds.net import Net
from taccl.bounds.orbits import one_of_each, servers_of
from taccl.collectives import Collective

MOST_VISITS = 1_200_000_000
"""Links looked at, above which only the first ranks and servers are (1024 on a switch all are)."""


def port_crossings(net: Net, collective: Collective) -> Iterator[Crossing]:
    """Yield what must leave and enter every rank and every server."""
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

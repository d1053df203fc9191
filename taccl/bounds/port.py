"""What must leave and enter each rank and each server, against the edges it can do so by.

Two cuts are tried for each: the outermost edges, and the narrowest that separates the ranks from
the others (a NIC behind a wider PCIe edge).
"""

from collections.abc import Iterator, Sequence

from taccl.bounds.crossing import Crossing, flows_in, leaves
from taccl.bounds.cut import Graph, make_graph, narrow_crossing, narrowest, worst_set
from taccl.bounds.net import Net
from taccl.collectives import Collective

MOST_VISITS = 1_200_000_000
"""Links looked at, above which only the first ranks and servers are (1024 on a switch all are)."""


def port_crossings(net: Net, collective: Collective) -> Iterator[Crossing]:
    """Yield what must leave and enter every rank and every server."""
    ranks = range(net.num_ranks)
    graph = make_graph(net)
    looked_at = MOST_VISITS // (len(net.src) + 20 * net.num_ranks)
    groups: list[tuple[int, ...]] = [(rank,) for rank in ranks[:looked_at]]
    groups += [g for g in _servers(net) if 1 < len(g) < net.num_ranks][:looked_at]
    for group in groups:
        others = tuple(rank for rank in ranks if rank not in group)
        yield from _out_of(net, graph, collective, group, others)
        yield from _out_of(net, graph, collective, others, group)


def _servers(net: Net) -> list[tuple[int, ...]]:
    members: dict[int, list[int]] = {}
    for rank, server in enumerate(net.topology.server_of):
        members.setdefault(server, []).append(rank)
    return [tuple(members[server]) for server in sorted(members)]


def _out_of(
    net: Net, graph: Graph, collective: Collective, inside: Sequence[int], others: Sequence[int]
) -> Iterator[Crossing]:
    share = leaves(collective, inside)
    if not share:
        return
    crossing = net.crossing(inside)
    narrow = graph.affords(2 * net.num_ranks)
    cuts = {narrowest(graph, inside, others)} if narrow else set()
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
        others = (rank for rank in range(net.num_ranks) if rank != root)
        for rank in others if graph.affords(net.num_ranks) else ():
            ends = (rank, root) if flows_in(collective) else (root, rank)
            yield from narrow_crossing(net, graph, "cut", ends)
    elif name in ("allgather", "reducescatter", "gather", "scatter"):
        yield from _worst(net, collective, backwards=name in ("reducescatter", "scatter"))


def _worst(net: Net, collective: Collective, *, backwards: bool) -> Iterator[Crossing]:
    found = worst_set(net, collective.root, backwards=backwards)
    if found is None:
        return
    members, cut = found
    inside = sorted(set(range(net.num_ranks)) - members) if backwards else sorted(members)
    gates = net.gates(cut, net.crossing(inside))
    if gates:
        kind = "cut" if collective.root is None else "flow"
        yield Crossing(kind, gates, leaves(collective, inside))

"""Which ranks of a plain graph share a server, where the graph does not say.

Edges between servers are slower and take longer than those inside. What holds together without
the slowest edges is a server, but only where nothing speaks against it: algorithms in steps inside
servers and across rest on this.
"""

from collections.abc import Sequence

from taccl.topology import Edge, Topology

SLOWER = 2
"""How many times as slow, at least, edges between servers are as any inside."""

MUCH_SLOWER = 4
"""The same where no edge has a latency."""

INFERRED = (
    "servers: inferred, as the file names none: what holds together without the slowest edges;"
    " give nodes a host to say otherwise"
)
"""What the topology file says of servers that were inferred."""


def inferred_servers(topology: Topology) -> list[list[int]]:
    """Return the ranks of every server, or nothing where the graph does not clearly have several.

    It has where the edges of the least bandwidth have the largest latencies, too, all join
    different groups, and leave groups of one size, of two ranks at least.
    """
    betas = {edge.beta for edge in topology.edges if edge.beta is not None}
    slowest = max(betas, default=None)
    cut = [edge for edge in topology.edges if edge.beta is not None and edge.beta == slowest]
    kept = [edge for edge in topology.edges if edge.beta is None or edge.beta != slowest]
    if not cut or not _stand_apart(cut, kept):
        return []
    group = _components(topology.num_ranks + len(topology.switches), kept)
    if any(group[edge.tail] == group[edge.head] for edge in cut):
        return []
    servers: dict[int, list[int]] = {}
    for rank in range(topology.num_ranks):
        servers.setdefault(group[rank], []).append(rank)
    sizes = {len(ranks) for ranks in servers.values()}
    return list(servers.values()) if len(servers) > 1 and len(sizes) == 1 and 1 not in sizes else []


def _stand_apart(cut: Sequence[Edge], kept: Sequence[Edge]) -> bool:
    """Tell whether some edges are clearly slower than the others."""
    times = [edge.beta for edge in kept if edge.beta is not None]
    slow = cut[0].beta
    if not times or slow is None:
        return False
    if not any(edge.alpha for edge in (*cut, *kept)):
        return slow >= MUCH_SLOWER * max(times)
    later = min(edge.alpha for edge in cut) > max(edge.alpha for edge in kept)
    return later and slow >= SLOWER * max(times)


def _components(vertices: int, edges: Sequence[Edge]) -> list[int]:
    """Return for every vertex the least vertex that it holds together with."""
    above = list(range(vertices))

    def top(vertex: int) -> int:
        while above[vertex] != vertex:
            above[vertex] = above[above[vertex]]
            vertex = above[vertex]
        return vertex

    for edge in edges:
        one, other = sorted((top(edge.tail), top(edge.head)))
        above[other] = one
    return [top(vertex) for vertex in range(vertices)]

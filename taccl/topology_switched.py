"""Shapes of ranks and switches: the hub, the leaf-spine, the fat-tree and the dragonfly.

Every cable is an edge in each direction; equal cables side by side are one edge with the bandwidth
of all, as the spines of the server form are. One crossing of a switch takes alpha, half on each of
its two edges (an odd picosecond on the second), so a cable between two switches takes one alpha.

References
----------
M. Al-Fares, A. Loukissas, A. Vahdat, "A scalable, commodity data center network architecture",
SIGCOMM 2008, section 3 (fat-tree of k pods). J. Kim, W. Dally, S. Scott, D. Abts,
"Technology-driven, highly-scalable dragonfly topology", ISCA 2008, section 3.
"""

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction

from taccl.topology import Edge, Permutation, Switch
from taccl.topology_graph import edge_names
from taccl.topology_grids import translations
from taccl.units import Time

Dims = Sequence[int]
Network = tuple[tuple[Switch, ...], tuple[Edge, ...]]


def _network(
    ranks: int, names: Sequence[str], cables: Iterable[tuple[int, int, Fraction]], alpha: Time
) -> Network:
    """Return switches and edges; a cable is two vertices and its beta."""
    half = alpha // 2
    edges: list[Edge] = []
    for a, b, beta in cables:
        first, second = (str(v) if v < ranks else names[v - ranks] for v in (a, b))
        both = edge_names(first, second, None)
        for (tail, head), name in zip(((a, b), (b, a)), both, strict=True):
            late = (half if head >= ranks else 0) + (alpha - half if tail >= ranks else 0)
            edges.append(Edge(len(edges), tail, head, late, None, beta, name))
    return tuple(Switch(name) for name in names), tuple(edges)


def hub(dims: Dims, beta: Fraction, alpha: Time) -> Network:
    """Return ranks on one switch."""
    (ranks,) = dims
    return _network(ranks, ["hub"], ((rank, ranks, beta) for rank in range(ranks)), alpha)


def leaf_spine(dims: Dims, beta: Fraction, alpha: Time) -> Network:
    """Return leaves of so many ranks, and a spine that pools all spine switches.

    Parameters
    ----------
    dims
        Leaves, ranks of a leaf and, if it is not 1, the oversubscription: what the ranks of a leaf
        can send over what the leaf can send to the spine.
    """
    leaves, per_leaf, over = (*dims, 1)[:3]
    ranks = leaves * per_leaf
    names = [f"leaf{leaf}" for leaf in range(leaves)] + ["spine"] * (leaves > 1)
    cables = [(rank, ranks + rank // per_leaf, beta) for rank in range(ranks)]
    if leaves > 1:
        uplink = beta * over / per_leaf
        cables += [(ranks + leaf, ranks + leaves, uplink) for leaf in range(leaves)]
    return _network(ranks, names, cables, alpha)


def leaf_spine_turns(dims: Dims) -> tuple[Permutation, ...]:
    """Return the steps from leaf to leaf, and inside every leaf."""
    return translations(dims[:2])


def fat_tree(dims: Dims, beta: Fraction, alpha: Time) -> Network:
    """Return the fat-tree of k-port switches: k pods of k/2 edge switches of k/2 ranks.

    The k/2 aggregation switches of a pod are one vertex, and so are the (k/2)^2 core switches.
    """
    (k,) = dims
    half = k // 2
    edge_switches = k * half
    ranks = edge_switches * half
    names = [f"p{n // half}/edge{n % half}" for n in range(edge_switches)]
    names += [f"p{pod}/agg" for pod in range(k)] + ["core"]
    aggregation = ranks + edge_switches
    cables = [(rank, ranks + rank // half, beta) for rank in range(ranks)]
    cables += [(ranks + n, aggregation + n // half, beta / half) for n in range(edge_switches)]
    cables += [(aggregation + pod, aggregation + k, beta / half**2) for pod in range(k)]
    return _network(ranks, names, cables, alpha)


def fat_tree_ranks(dims: Dims) -> int:
    """Return k^3 / 4."""
    return dims[0] ** 3 // 4


def fat_tree_turns(dims: Dims) -> tuple[Permutation, ...]:
    """Return the steps from pod to pod, from edge switch to edge switch, and inside each."""
    return translations([dims[0], dims[0] // 2, dims[0] // 2])


def dragonfly(dims: Dims, beta: Fraction, alpha: Time) -> Network:
    """Return groups of fully joined routers, one cable between each two groups.

    The cable from group i to group i + d is on router (d - 1) // h of group i, h being the cables
    of a router that lead to other groups: so all groups look alike.

    Parameters
    ----------
    dims
        Groups g, routers of a group a and ranks of a router p. Balanced is a = 2p = 2h, g = ah + 1.
    """
    groups, routers, per_router = dims
    ranks = groups * routers * per_router
    names = [f"g{n // routers}/r{n % routers}" for n in range(groups * routers)]
    cables = [(rank, ranks + rank // per_router, beta) for rank in range(ranks)]
    cables += [(ranks + a, ranks + b, beta) for a, b in _router_pairs(groups, routers)]
    return _network(ranks, names, cables, alpha)


def _router_pairs(groups: int, routers: int) -> Iterator[tuple[int, int]]:
    for group in range(groups):
        first = group * routers
        for router in range(routers):
            yield from ((first + router, first + other) for other in range(router + 1, routers))
    each = -(-(groups - 1) // routers)
    for group in range(groups):
        for other in range(group + 1, groups):
            ahead, back = other - group - 1, groups - (other - group) - 1
            yield group * routers + ahead // each, other * routers + back // each


def dragonfly_turns(dims: Dims) -> tuple[Permutation, ...]:
    """Return the step from group to group, and that inside every router."""
    return translations(dims, along=(0, 2))


def dragonfly_wires(dims: Dims) -> int:
    """Return how many cables a dragonfly has."""
    groups, routers, per_router = dims
    return groups * (routers * (2 * per_router + routers - 1) + groups - 1) // 2

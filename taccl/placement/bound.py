"""What no order of a ring can beat, from what its links have to carry.

Each leg of a ring carries the same messages one after the other, so that a ring takes at least as
long as they keep its slowest leg busy. The slowest leg is at least as slow as the least level up
to which the legs still join all places to one another and let each have one before and one after
it; the same holds for servers, each entered and left once. Other algorithms have no such bound.
"""

import numpy as np
from numpy.typing import NDArray

from taccl.placement.objective import Ints, Replays
from taccl.placement.orders import Servers
from taccl.placement.starts import ring_of
from taccl.topology import Topology
from taccl.units import Time


def ring_bound(replays: Replays, servers: Servers) -> Time | None:
    """Return a time that no order of a ring program beats; None where it is no ring."""
    ring = ring_of(replays.loads)
    n = servers.num_places
    if ring is None or len(ring) != n or n < 2:
        return None
    busy = _busy(replays)
    if busy is None:
        return None
    least = slowest_leg(busy)
    blocks = servers.blocks
    if 1 < len(blocks) < n:
        between = np.array([[busy[np.ix_(a, b)].min() for b in blocks] for a in blocks])
        least = max(least, slowest_leg(between))
    return least + replays.topology.local.launch


def _busy(replays: Replays) -> Ints | None:
    """Return how long a leg is busy between each two places; None where legs are not alike.

    Connections of a leg that share its one link come one after the other; where a pair may have
    several links, only what one connection carries is counted.
    """
    legs: dict[int, list[tuple[tuple[int, int], ...]]] = {}
    for load in replays.loads:
        legs.setdefault(load.src, []).append(load.messages)
    kinds = {tuple(sorted(messages)) for messages in legs.values()}
    if len(kinds) != 1:
        return None
    table = replays.table
    held = table.durations.max(axis=2, initial=0)
    (kind,) = kinds
    each = [
        sum(
            count * held[table.row[:, :, place], replays.sizes.index(size)]
            for size, count in messages
        )
        for place, messages in enumerate(kind)
    ]
    links = link_counts(replays.topology)
    found: Ints = np.sum(each, axis=0) if links.max() <= 1 else np.min(each, axis=0)
    return _over_others(found, links > 0)


def link_counts(topology: Topology) -> Ints:
    """Return how many links there are from each rank to each."""
    table, n = topology.links, topology.num_ranks
    counts = np.zeros((n, n), np.int64)
    np.add.at(counts, (table.src, table.dst), 1)
    return counts


def _over_others(busy: Ints, linked: NDArray[np.bool_]) -> Ints:
    """Return the same where pairs without a link are at least as busy as the best way's worst link.

    Which way a message is routed may depend on the numbers of ranks, and so on the order.
    """
    most = int(busy.max()) + 1
    found = np.where(linked, busy, most)
    for _ in range(len(busy)):
        over = np.array([np.maximum(row[:, None], found).min(axis=0) for row in found])
        if (over >= found).all():
            break
        found = np.minimum(found, np.where(linked, busy, over))
    return found


def slowest_leg(busy: Ints) -> Time:
    """Return the least level at which a round trip over all places may exist."""
    n = len(busy)
    levels = np.unique(busy[~np.eye(n, dtype=np.bool_)])
    low, high = 0, len(levels) - 1
    while low < high:
        middle = (low + high) // 2
        if _may_tour((busy <= levels[middle]) & ~np.eye(n, dtype=np.bool_)):
            high = middle
        else:
            low = middle + 1
    return int(levels[low])


def _may_tour(open_legs: NDArray[np.bool_]) -> bool:
    """Tell whether legs join all places to one another, and cover them with round trips."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import connected_components, maximum_bipartite_matching

    graph = csr_matrix(open_legs)
    parts, _ = connected_components(graph, directed=True, connection="strong")
    covered = parts == 1 and (maximum_bipartite_matching(graph, perm_type="column") >= 0).all()
    return bool(covered)

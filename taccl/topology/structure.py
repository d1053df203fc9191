"""How fast a topology is where, and which of its ranks are of one server, leaf, pod or group.

Levels of a fabric are told by the way out that ranks share. Who sends over one uplink is a set of
ranks. Where such sets of one size split all ranks, they are the parts of a level: the leaves of a
leaf-spine, the edge switches and the pods of a fat-tree, the routers and the groups of a dragonfly.
Files of shapes have no servers to tell it. Ranks whose messages pass an uplink on few of their
ways, as some do between two other groups, are not counted.
"""

from collections import Counter, defaultdict, deque
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from taccl.topology.graph import Rank, Topology

Parts = tuple[tuple[Rank, ...], ...]
"""All ranks, in parts of one size."""


@lru_cache(maxsize=8)
def levels_of(topology: Topology) -> tuple[Parts, ...]:
    """Return the levels of a `topology`, the smallest parts first; none where no way is shared."""
    table, ranks = topology.links, topology.num_ranks
    owner = np.repeat(table.src.astype(np.int64), np.diff(table.edge_start))
    pairs, count = np.unique(table.edge_ids.astype(np.int64) * ranks + owner, return_counts=True)
    edge, rank = np.divmod(pairs, ranks)
    most = np.zeros(len(topology.edges), dtype=np.int64)
    np.maximum.at(most, edge, count)
    often = 2 * count > most[edge]
    edge, rank = edge[often], rank[often]
    first = np.flatnonzero(np.diff(edge, prepend=-1))
    ends = [*first[1:].tolist(), len(edge)] if len(first) else []
    found: dict[int, set[tuple[Rank, ...]]] = defaultdict(set)
    for begin, end in zip(first.tolist(), ends, strict=True):
        if 1 < end - begin < ranks:
            found[end - begin].add(tuple(rank[begin:end].tolist()))
    return tuple(
        tuple(sorted(parts))
        for size, parts in sorted(found.items())
        if len(parts) * size == ranks == len({rank for part in parts for rank in part})
    )


FREE = -1
"""The place of a link without any bandwidth in the table of betas."""


def gigabytes(beta: Fraction) -> Fraction:
    """Return GB/s of a beta in ps for each byte."""
    return 1000 / beta


def slowest_edges(topology: Topology) -> tuple[NDArray[np.int64], tuple[Fraction, ...]]:
    """Return for every link the place of its largest beta in the table of all betas, ascending.

    FREE stands for a link none of whose edges is a resource.
    """
    betas = sorted({edge.beta for edge in topology.edges if edge.beta is not None})
    place = {beta: number for number, beta in enumerate(betas)}
    of_edge = np.array(
        [FREE if edge.beta is None else place[edge.beta] for edge in topology.edges], np.int64
    )
    table = topology.links
    if len(table) == 0:
        return np.zeros(0, np.int64), tuple(betas)
    return np.maximum.reduceat(of_edge[table.edge_ids], table.edge_start[:-1]), tuple(betas)


def rank_rates(topology: Topology) -> tuple[tuple[Fraction, ...], tuple[Fraction, ...]]:
    """Return the GB/s that each rank can send, and those that each can receive.

    What its edges carry; of a NIC or switch that it reaches over an edge without a bandwidth, an
    equal share of what that carries for all ranks that reach it so.
    """
    sends = _rates(topology, forward=True)
    return sends, _rates(topology, forward=False)


def _rates(topology: Topology, *, forward: bool) -> tuple[Fraction, ...]:
    ranks = topology.num_ranks
    own: list[Counter[Fraction]] = [Counter() for _ in range(ranks)]
    behind: dict[int, Fraction] = {}
    free: list[tuple[int, int]] = []
    for edge in topology.edges:
        near, far = (edge.tail, edge.head) if forward else (edge.head, edge.tail)
        if near >= ranks:
            if edge.beta is not None:
                behind[near] = behind.get(near, Fraction(0)) + gigabytes(edge.beta)
        elif edge.beta is not None:
            own[near][edge.beta] += 1
        elif far >= ranks:
            free.append((near, far))
    users = Counter(far for _, far in free)
    total = [sum((gigabytes(b) * n for b, n in each.items()), Fraction(0)) for each in own]
    for rank, vertex in free:
        total[rank] += behind.get(vertex, Fraction(0)) / users[vertex]
    return tuple(total)


def unlike(one: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the keys that both ``one`` and ``other`` table have, but with other rows; ascending.

    A table is a row of keys above rows of what they stand for; a key may be in several columns.
    """
    keys, counts = np.unique(one[0], return_counts=True)
    others, other_counts = np.unique(other[0], return_counts=True)
    both, here, there = np.intersect1d(keys, others, return_indices=True)
    more = both[counts[here] != other_counts[there]]
    kept = np.setdiff1d(both, more)
    # As many columns of each key in both tables: sorted, they lie side by side.
    left, right = (
        rows[:, np.lexsort(rows[::-1])]
        for rows in (table[:, np.isin(table[0], kept)] for table in (one, other))
    )
    return np.union1d(more, left[0][(left != right).any(axis=0)])


def homes(topology: Topology) -> tuple[int | None, ...]:
    """Return the server of every vertex: of a switch that of its nearest ranks.

    None where ranks of several servers are nearest, or none. A NIC ends its server: what it is
    joined to in one direction only, and what carries only paths across servers, is the fabric.
    """
    ranks = topology.num_ranks
    ends = {(edge.tail, edge.head) for edge in topology.edges}
    near: list[set[int]] = [set() for _ in range(ranks + len(topology.switches))]
    for tail, head in ends:
        near[tail].add(head)
        near[head].add(tail)
    across = [False] * ranks + [switch.across_servers for switch in topology.switches]
    found: list[set[int]] = [{server} for server in topology.server_of]
    found += [set() for _ in topology.switches]
    distance = dict.fromkeys(range(ranks), 0)
    queue = deque(distance)
    while queue:
        one = queue.popleft()
        for other in near[one]:
            both = (one, other) in ends and (other, one) in ends
            if one >= ranks and across[other] and not across[one] and not both:
                continue
            if other not in distance:
                distance[other] = distance[one] + 1
                queue.append(other)
            if distance[other] == distance[one] + 1 and len(found[other]) < 2:
                found[other] |= found[one]
    return tuple(next(iter(servers)) if len(servers) == 1 else None for servers in found)

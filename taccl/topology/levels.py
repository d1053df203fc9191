"""The levels of a fabric: ranks of one leaf, pod or group, by the way out that they share.

Who sends over one uplink is a set of ranks. Where such sets of one size split all ranks, they are
the parts of a level: the leaves of a leaf-spine, the edge switches and the pods of a fat-tree, the
routers and the groups of a dragonfly. Files of shapes have no servers to tell it. Ranks whose
messages pass an uplink on few of their ways, as some do between two other groups, are not counted.
"""

from collections import defaultdict
from functools import lru_cache

import numpy as np

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

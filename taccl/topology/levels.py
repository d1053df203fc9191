"""The levels of a fabric: ranks of one leaf, pod or group, by the way out that they share.

Who sends over one uplink is a set of ranks. Where such sets of one size split all ranks, they are
the parts of a level: the leaves of a leaf-spine, the edge switches and the pods of a fat-tree, the
groups of a dragonfly. Files of shapes have no servers to tell it, and so of a file of plain edges.
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
    edge, rank = np.divmod(np.unique(table.edge_ids.astype(np.int64) * ranks + owner), ranks)
    first = np.flatnonzero(np.diff(edge, prepend=-1))
    found: dict[int, set[tuple[Rank, ...]]] = defaultdict(set)
    for begin, end in zip(first.tolist(), [*first[1:].tolist(), len(edge)], strict=True):
        if 1 < end - begin < ranks:
            found[end - begin].add(tuple(rank[begin:end].tolist()))
    return tuple(
        tuple(sorted(parts))
        for size, parts in sorted(found.items())
        if len(parts) * size == ranks == len({rank for part in parts for rank in part})
    )

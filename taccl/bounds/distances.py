"""Shortest distances between ranks, exact: integers of picoseconds or of prices."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
Ends = tuple[IntArray, IntArray]
"""Where each link begins and where it ends."""

FAR = np.int64(1) << 61
"""Distance of what can't be reached."""

EXACT = 1 << 53
"""Up to here floats are exact integers."""

SPARSE = 8
"""With fewer than one link for so many pairs, searches from every rank are faster than rows."""


def shortest(ranks: int, ends: Ends, lengths: IntArray) -> IntArray:
    """Return the least length from rank to rank, ``FAR`` where there is no path."""
    longest = int(lengths.max(initial=0)) * ranks
    if ranks * ranks > SPARSE * len(lengths) and longest < EXACT:
        return _searched(ranks, ends, lengths)
    table = np.full((ranks, ranks), FAR, dtype=np.int64)
    np.fill_diagonal(table, 0)
    np.minimum.at(table, ends, lengths)
    least_in, least_out = _least(ranks, ends[1], lengths), _least(ranks, ends[0], lengths)
    largest = table.max()
    for middle in range(ranks):
        if least_in[middle] + least_out[middle] >= largest:
            continue
        np.minimum(table, table[:, middle, None] + table[middle], out=table)
        np.minimum(table, FAR, out=table)
        largest = table.max()
    return table


def _least(ranks: int, ends: IntArray, lengths: IntArray) -> IntArray:
    """Return the shortest link at every rank: no path through it is shorter at that end."""
    least = np.full(ranks, FAR, dtype=np.int64)
    np.minimum.at(least, ends, lengths)
    return least


def _searched(ranks: int, ends: Ends, lengths: IntArray) -> IntArray:
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import dijkstra

    # Of parallel links the shortest counts; a sparse matrix would add them up.
    order = np.lexsort((lengths, ends[1], ends[0]))
    src, dst = ends[0][order], ends[1][order]
    first = np.ones(len(order), dtype=np.bool_)
    first[1:] = (src[1:] != src[:-1]) | (dst[1:] != dst[:-1])
    values = lengths[order][first].astype(np.float64)
    graph = csr_array((values, (src[first], dst[first])), shape=(ranks, ranks))
    found = dijkstra(graph)
    table = np.full((ranks, ranks), FAR, dtype=np.int64)
    reached = np.isfinite(found)
    table[reached] = found[reached].astype(np.int64)
    return table


def shortest_from(ranks: int, ends: Ends, lengths: IntArray, starts: Sequence[int]) -> IntArray:
    """Return the least length to every rank from any of some, ``FAR`` where there is no path."""
    return relaxed(ranks, by_head(ends), lengths, starts)


class ByHead(NamedTuple):
    """Links in order of where they end: the order, their tails, the heads, and each one's first."""

    order: IntArray
    tails: IntArray
    heads: IntArray
    first: IntArray


def by_head(ends: Ends) -> ByHead:
    """Return links in order of where they end."""
    order = np.argsort(ends[1], kind="stable")
    heads, first = np.unique(ends[1][order], return_index=True)
    return ByHead(order, ends[0][order], heads, first)


def relaxed(ranks: int, links: ByHead, lengths: IntArray, starts: Sequence[int]) -> IntArray:
    """Return the least length to every rank from any of some, all links relaxed until it holds."""
    distance = np.full(ranks, FAR, dtype=np.int64)
    distance[list(starts)] = 0
    if not len(links.order):
        return distance
    lengths = lengths[links.order]
    while True:
        found = np.minimum.reduceat(distance[links.tails] + lengths, links.first)
        shorter = found < distance[links.heads]
        if not shorter.any():
            return distance
        distance[links.heads[shorter]] = found[shorter]

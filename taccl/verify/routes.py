"""Rules on data that is copied: held before it is sent, received once, received everywhere."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from taccl.verify.sends import MAX_FINDINGS, Finding, Int64, Sends


def held(sends: Sends) -> Iterator[Finding]:
    """Check that the source of every send holds the chunk when the send starts.

    An arrival that ends exactly when a send starts has arrived. Messages without duration could
    feed each other in a circle in one instant: every chunk must come from one of its sources.
    """
    if sends.schedule.collective.reduces:
        return
    yield from sends.findings(sends.schedule.reduce, "reduces in a collective that only copies")
    source = sends.is_source(sends.src)
    without = ~source & ~sends.fed
    yield from sends.findings(without, "starts before the chunk is at its source")
    if (sends.schedule.end <= sends.schedule.start).any() and not without.any():
        yield from sends.findings(hops(sends) < 0, "goes round in a circle in no time")


def once(sends: Sends) -> Iterator[Finding]:
    """Check that no chunk arrives where it already is or twice at one rank."""
    if sends.schedule.collective.reduces:
        return
    yield from sends.findings(sends.is_source(sends.dst), "arrives at a source of the chunk")
    keys, rows = sends.arrivals
    again = np.zeros(len(rows), dtype=np.bool_)
    again[rows[1:][keys[1:] == keys[:-1]]] = True
    yield from sends.findings(again, "arrives at a rank that has the chunk already")


def delivered(sends: Sends) -> Iterator[Finding]:
    """Check that every target that is no source receives its chunk."""
    collective = sends.schedule.collective
    if collective.reduces:
        return
    num_ranks = collective.num_ranks
    starts, flat = _flat_sets(collective.rank_sets)
    target_set = collective.target_set[sends.chunks]
    lengths = (starts[1:] - starts[:-1])[target_set]
    chunk = np.repeat(sends.chunks, lengths)
    within = np.arange(len(chunk)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    rank = flat[np.repeat(starts[:-1][target_set], lengths) + within]
    wanted = ~sends.members[collective.source_set[chunk], rank]
    chunk, rank = chunk[wanted], rank[wanted]
    key, keys = chunk * num_ranks + rank, sends.arrivals[0]
    at = np.searchsorted(keys, key)
    missing = np.append(keys, -1)[at] != key
    for i in np.flatnonzero(missing)[:MAX_FINDINGS].tolist():
        yield None, f"chunk {chunk[i]} never arrives at rank {rank[i]}"


def _flat_sets(rank_sets: tuple[tuple[int, ...], ...]) -> tuple[Int64, NDArray[np.int32]]:
    starts = np.cumsum([0, *(len(ranks) for ranks in rank_sets)]).astype(np.int64)
    return starts, np.array([rank for ranks in rank_sets for rank in ranks], dtype=np.int32)


def hops(sends: Sends) -> Int64:
    """Return for every send the hops from a source to its destination; -1 where there is none.

    Every round joins each send to the sender of its sender: a path of n hops takes log2 n rounds.
    """
    count = np.ones(len(sends.schedule), dtype=np.int64)
    up = np.where(sends.is_source(sends.src), -1, sends.feeder)
    lost = ~sends.is_source(sends.src) & (sends.feeder < 0)
    for _ in range(max(1, len(up).bit_length())):
        on = up >= 0
        if not on.any():
            break
        parent = up[on]
        lost[on] |= lost[parent]
        count[on] += count[parent]
        up[on] = up[parent]
    return np.where(lost | (up >= 0), -1, count)

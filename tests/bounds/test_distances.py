"""Shortest distances: the ways to find them agree with one another, to the picosecond."""

import random

import numpy as np
import pytest

from taccl.bounds import net
from taccl.bounds.net import FAR, by_head, relaxed, shortest
from tests.sweep import for_each

Links = tuple[int, tuple[net.IntArray, net.IntArray], net.IntArray]


def random_links(seed: int) -> Links:
    """Return ranks and links, some parallel, some of length 0, not always connected."""
    rng = random.Random(seed)
    ranks = rng.randint(1, 9)
    rows = [
        (rng.randrange(ranks), rng.randrange(ranks), rng.choice([0, 1, 7, 700, 10**9]))
        for _ in range(rng.randint(0, 3 * ranks))
    ]
    src, dst, lengths = (
        np.array([row[i] for row in rows], dtype=np.int64) for i in range(3)
    )  # fmt: skip
    return ranks, (src, dst), lengths


def by_relaxing(links: Links) -> list[list[int]]:
    """Return all distances by relaxing every link until nothing changes."""
    ranks, (src, dst), lengths = links
    found = [[0 if a == b else int(FAR) for b in range(ranks)] for a in range(ranks)]
    for _ in range(ranks):
        for a, b, length in zip(src.tolist(), dst.tolist(), lengths.tolist(), strict=True):
            for row in found:
                row[b] = min(row[b], row[a] + length)
    return found


@for_each("sparse", [0, 10**6])
@for_each("seed", range(40))
def test_distances_are_those_of_relaxing_every_link(
    seed: int, sparse: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 0: searches wherever that is exact; 1e6: always the table.
    monkeypatch.setattr(net, "SPARSE", sparse)
    links = random_links(seed)
    assert shortest(*links).tolist() == by_relaxing(links)


@for_each("seed", range(20))
def test_distances_from_one_rank_are_a_row_of_all(seed: int) -> None:
    ranks, ends, lengths = random_links(seed)
    for rank in range(ranks):
        one = relaxed(ranks, by_head(ends), lengths, [rank])
        assert one.tolist() == shortest(ranks, ends, lengths)[rank].tolist()


def test_distances_beyond_exact_floats_are_exact() -> None:
    # A line of 30 ranks: sparse enough to search, but 2^52 + 1 times 29 is no exact float.
    hops = np.arange(29, dtype=np.int64)
    length = (1 << 52) + 1
    found = shortest(30, (hops, hops + 1), np.full(29, length, dtype=np.int64))
    assert int(found[0, 29]) == 29 * length

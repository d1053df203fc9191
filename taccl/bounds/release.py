"""Chunks that are ready later, and needed earlier, than others: what this adds to every bound.

Take the chunks that are ready at theta or later and have a tail of phi or more. No source has any
of them before theta, and once the last of them is where it is wanted phi is still to come. So

    theta + (a bound of these chunks alone, as if ready at once) + phi

is a bound of the whole, for every theta and phi: what else there is only makes it take longer. For
chunks of one index of a collective of the table, what remains is the same collective on fewer
bytes. One chunk alone takes its ready time, its distance, and its tail; there ranks that are late
with their own values count, too (what is summed waits for all, what is copied for the best source).
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.bounds.net import FAR, MOST_RANKS, Net
from taccl.collectives import COLLECTIVES, Collective, build_collective
from taccl.units import Time

MOST_MOMENTS = 12
"""Ready times, and tails, that are looked at: of more, every so many."""

MOST_PAIRS = 4096
"""Sets of sources and targets up to which every pair is looked at."""


class Part(NamedTuple):
    """Some chunks, as a `collective` without times, and what comes before and after, together.

    `share` is bytes of its size for each byte of the whole's, and `wait` picoseconds.
    """

    collective: Collective
    share: Fraction
    wait: Time


def parts_of(collective: Collective) -> Iterator[Part]:
    """Yield the chunks of a `collective` from every ready time and every tail on; first all."""
    nothing = np.zeros(collective.num_chunks, dtype=np.int64)
    ready, tail = (nothing if c is None else c for c in (collective.ready, collective.tail))
    last: dict[bytes, Part] = {}
    for begin in _moments(ready):
        for rest in _moments(tail):
            chosen = (ready >= begin) & (tail >= rest)
            if not chosen.any():
                continue
            key, wait = chosen.tobytes(), begin + rest
            if key not in last or last[key].wait < wait:
                last[key] = _part(collective, chosen, wait)
    yield from last.values()


def _moments(times: NDArray[np.int64]) -> list[Time]:
    found: list[Time] = np.unique(np.append(times, 0)).tolist()
    step = -(-len(found) // MOST_MOMENTS)
    return found if step == 1 else sorted({*found[::step], found[-1]})


def _part(collective: Collective, chosen: NDArray[np.bool_], wait: Time) -> Part:
    if chosen.all():
        return Part(collective.timed(), Fraction(1), wait)
    whole = collective.chunks_in_size
    index = np.unique(collective.index[chosen])
    if collective.name in COLLECTIVES and (np.isin(collective.index, index) == chosen).all():
        fewer = build_collective(
            collective.name, collective.num_ranks, len(index), collective.root
        )  # fmt: skip
        return Part(fewer, Fraction(fewer.chunks_in_size, whole), wait)
    number = np.cumsum(chosen) - 1

    def kept(elsewhere: Mapping[tuple[int, int], int]) -> Mapping[tuple[int, int], int]:
        places = ((chunk, rank, at) for (chunk, rank), at in elsewhere.items() if chosen[chunk])
        return {(int(number[chunk]), rank): at for chunk, rank, at in places}

    some = replace(
        collective.timed(), name=f"part of {collective.name}", root=None,
        source_set=collective.source_set[chosen], target_set=collective.target_set[chosen],
        input_at=collective.input_at[chosen], output_at=collective.output_at[chosen],
        owner=collective.owner[chosen], index=collective.index[chosen],
        input_elsewhere=kept(collective.input_elsewhere),
        output_elsewhere=kept(collective.output_elsewhere),
    )  # fmt: skip
    return Part(some, Fraction(some.chunks_in_size, whole), wait)


def longest_wait(net: Net, collective: Collective) -> Time:
    """Return how soon (ps) each chunk of a `collective` alone can be over on `net`; the last of it.

    0 where there are too many ranks, or kinds of chunks.
    """
    if net.num_ranks > MOST_RANKS:
        return 0
    late = np.zeros(net.num_ranks, dtype=np.int64) if collective.late is None else collective.late
    extra = np.zeros(collective.num_chunks, dtype=np.int64)
    for column in (collective.ready, collective.tail):
        extra = extra if column is None else extra + column
    sets = collective.rank_sets
    pair = collective.source_set.astype(np.int64) * len(sets) + collective.target_set
    pairs, which = np.unique(pair, return_inverse=True)
    if len(pairs) > MOST_PAIRS:
        return 0
    longest = np.zeros(len(pairs), dtype=np.int64)
    np.maximum.at(longest, which, extra)
    latest = 0
    for key, wait in zip(pairs.tolist(), longest.tolist(), strict=True):
        sources, targets = sets[key // len(sets)], sets[key % len(sets)]
        way = late[list(sources)][:, None] + net.distance[np.ix_(sources, targets)]
        # A copy may come from the best of its sources, a sum has parts of all.
        far = int(way.max() if collective.reduces else way.min(axis=0).max())
        latest = max(latest, wait + far if far < FAR else 0)
    return latest

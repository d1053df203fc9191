"""AlltoAll and AllGather for small buffers: all get to all, digit by digit.

Servers, the NICs of a server, and the ranks at a NIC (its *classes*) are the axes of a grid; the
place on each axis is written in digits of some radices (2 · 2 · 2, or 8 in one). Each digit has its
turn: a rank sends one message to every other rank that differs from it in this digit only. In an
AlltoAll that is all it holds for ranks with that digit, in an AllGather all it holds. A digit of
radix q costs q - 1 messages, and in an AlltoAll a q-th of what a rank holds in each: small radices
have few messages, large ones move each byte less often. These are the index and the concatenation
of Bruck, Ho, Kipnis, Upfal and Weathersby (1997) on axes of their own.

The classes of one NIC may cross servers at different times, one while the other is inside its
server: what a class holds stays in it until all else is done. In an AlltoAll they may also *fold*:
down a binomial tree they give what leaves the server to one of them, which crosses alone and gives
what has come to those that it is for. ReduceScatter plays the gather backwards. Messages are of any
chunks, which ranks pack side by side.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain, product
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.model.problem import Problem
from taccl.synth.templates.steps import (
    Links,
    Step,
    best_links,
    blocks,
    halves,
    linked,
    pair_block,
    servers,
)
from taccl.topology.graph import Rank

SERVER, NIC, CLASS = range(3)
"""Axes of a grid."""

MOST_CLASSES = 8
"""Ranks at one NIC; of more, the combinations are too many."""

MOST_SENDS = 150_000
"""About how many chunks are sent in a way that is tried: timing three of them takes a second."""

MOST_RANKS = 112
"""A message may have chunks for half of them, each copied alone: a threadblock has 64 steps."""


class Digit(NamedTuple):
    """A digit of places on an axis: ``place // weight % radix``."""

    axis: int
    weight: int
    radix: int


Grid = NDArray[np.int64]
"""int (servers, NICs, classes): ranks."""

Held = dict[Rank, list[tuple[Rank, Rank]]]
"""What every rank holds for others: (source, destination)."""

Programs = Sequence[Sequence[Digit]]
"""The digits of every class, in order; all classes have as many."""


def ways(problem: Problem) -> Iterator[Iterator[Step]]:
    """Yield the steps of every way to choose digits, classes and turns."""
    lanes, links, collective = servers(problem), best_links(problem), problem.collective
    ranks = problem.topology.num_ranks
    if lanes is None or not 1 < ranks <= MOST_RANKS or collective.name not in EXCHANGES:
        return
    times = ranks.bit_length() if _is_personal(problem) else ranks
    if times * collective.num_chunks > MOST_SENDS:
        return
    places = np.array(lanes, dtype=np.int64)
    count, size = places.shape
    for classes in range(1, min(size, MOST_CLASSES) + 1 if count > 1 else 2):
        if size % classes == 0:
            for steps in _on_grid(problem, places.reshape(count, size // classes, classes), links):
                if linked(links, steps):
                    yield iter(steps)


def _is_personal(problem: Problem) -> bool:
    """Tell whether a chunk goes to one rank."""
    return problem.collective.name == "alltoall"


def _on_grid(problem: Problem, grid: Grid, links: Links) -> Iterator[list[Step]]:
    exchange, classes = EXCHANGES[problem.collective.name], grid.shape[CLASS]
    for outer, inner, last in product(*(written(axis, n) for axis, n in enumerate(grid.shape))):
        for turns in _turns(len(inner), classes) if outer else [(0,)]:
            programs = [(*inner[:turn], *outer, *inner[turn:], *last) for turn in turns]
            meetings = chain.from_iterable(_rounds(grid, programs))
            if all((rank, peer) in links for _, rank, peer in meetings):
                yield exchange(problem, grid, programs)
        if _is_personal(problem) and classes > 1 and len(last) == 1:
            for turn in sorted({0, len(inner)}):
                yield _folded(problem, grid, (*inner[:turn], *outer, *inner[turn:]))


def _turns(inner: int, classes: int) -> Iterator[tuple[int, ...]]:
    """Yield after how many digits inside its server every class crosses servers."""
    spread = tuple(inner * c // max(1, classes - 1) for c in range(classes))
    yield from dict.fromkeys((spread, (0,) * classes, (inner,) * classes))


def written(axis: int, places: int) -> Iterator[tuple[Digit, ...]]:
    """Yield ways to write places in digits, the most digits first."""
    seen = set()
    whole = [places] if places > 1 else []
    for radices in (_primes(places), _pairs(_primes(places)), _halves(places), whole):
        if tuple(radices) not in seen:
            seen.add(tuple(radices))
            weights = np.cumprod([1, *radices[:-1]]).tolist() if radices else []
            yield tuple(Digit(axis, w, q) for w, q in zip(weights, radices, strict=True))


def _primes(number: int) -> list[int]:
    found, factor = [], 2
    while number > 1:
        while number % factor == 0:
            found.append(factor)
            number //= factor
        factor += 1
    return found


def _pairs(factors: Sequence[int]) -> list[int]:
    """Return products of two factors each, the last one alone where they are odd."""
    return [
        factors[i] * (factors[i + 1] if i + 1 < len(factors) else 1)
        for i in range(0, len(factors), 2)
    ]


def _halves(number: int) -> list[int]:
    """Return the two factors that are nearest to each other."""
    least = next(q for q in range(math.isqrt(number), 0, -1) if number % q == 0)
    return [q for q in (least, number // least) if q > 1]


def _all_to_all(problem: Problem, grid: Grid, programs: Programs) -> list[Step]:
    """Return the messages that take chunks to ranks with the digits of their destinations."""
    ranks = [int(rank) for rank in grid.flat]
    held = {rank: [(rank, dst) for dst in ranks if dst != rank] for rank in ranks}
    return list(_by_digit(problem, held, grid, grid, programs))


def _by_digit(
    problem: Problem, held: Held, grid: Grid, acting: Grid, programs: Programs
) -> Iterator[Step]:
    """Yield the messages by which acting ranks, a part of the grid, go through digits."""
    place = {int(rank): where for where, rank in np.ndenumerate(grid)}
    alike: dict[tuple[Digit, int], set[Rank]] = defaultdict(set)
    for digit in {digit for program in programs for digit in program}:
        for rank, where in place.items():
            alike[digit, _digit(digit, where)].add(rank)
    for digit, rank, peer in chain.from_iterable(_rounds(acting, programs)):
        wanted = _digit(digit, place[peer])
        yield from _given(problem, held, rank, peer, alike[digit, wanted])


def _given(
    problem: Problem, held: Held, rank: Rank, peer: Rank, going: Collection[Rank]
) -> Iterator[Step]:
    """Yield the message by which a rank gives another all that it holds for some ranks."""
    moved = [pair for pair in held[rank] if pair[1] in going]
    held[rank] = [pair for pair in held[rank] if pair[1] not in going]
    held[peer] += moved
    if moved:
        yield tuple(c for pair in moved for c in pair_block(problem, *pair)), rank, peer, False


def _folded(problem: Problem, grid: Grid, program: Sequence[Digit]) -> list[Step]:
    """Return an AlltoAll in which the first of each NIC's ranks crosses for all of them."""
    count, size, classes = grid.shape[SERVER], grid[0].size, grid.shape[CLASS]
    server = {int(rank): where[SERVER] for where, rank in np.ndenumerate(grid)}
    away: Held = {a: [(a, b) for b in server if server[a] != server[b]] for a in server}
    near: Held = {a: [(a, b) for b in server if server[a] == server[b] and a != b] for a in server}
    tree = [
        (child, bit)
        for bit in (1 << i for i in range((classes - 1).bit_length()))
        for child in range(bit, classes, 2 * bit)
    ]
    lanes = grid.reshape(count * size // classes, classes)
    steps: list[Step] = []
    for child, bit in tree:
        for ranks in lanes.tolist():
            steps += _given(problem, away, ranks[child], ranks[child - bit], list(server))
    flat = grid.reshape(count, size, 1)
    steps += _by_digit(problem, near, flat, flat, [next(written(NIC, size))])
    steps += _by_digit(problem, away, grid, grid[:, :, :1], [program])
    for child, bit in reversed(tree):
        for ranks in lanes.tolist():
            steps += _given(problem, away, ranks[child - bit], ranks[child], ranks[child:][:bit])
    return steps


def _gathered(problem: Problem, grid: Grid, programs: Programs) -> list[Step]:
    """Return the messages that give all to all, or those of the reduction that is its mirror."""
    own = blocks(problem)
    held = {int(rank): [int(rank)] for rank in grid.flat}
    steps: list[Step] = []
    for meetings in _rounds(grid, programs):
        before = {rank: tuple(ranks) for rank, ranks in held.items()}
        for _, rank, peer in meetings:
            steps.append((tuple(c for one in before[rank] for c in own[one]), rank, peer, False))
            held[peer] += before[rank]
    return list(halves(problem, steps))


EXCHANGES: Mapping[str, Callable[[Problem, Grid, Programs], list[Step]]] = MappingProxyType({
    "alltoall": _all_to_all,
    "allgather": _gathered,
    "reducescatter": _gathered,
})  # fmt: skip
"""What is sent when ranks meet, by collective."""


def _rounds(grid: Grid, programs: Programs) -> Iterator[list[tuple[Digit, Rank, Rank]]]:
    """Yield who sends to whom in which digit, all classes by their next digit at a time."""
    place = {int(rank): where for where, rank in np.ndenumerate(grid)}
    for digits in zip(*programs, strict=True):
        yield [
            (digit, rank, _peer(grid, place[rank], digit, shift))
            for own, digit in enumerate(digits)
            for shift in range(1, digit.radix)
            for rank, where in place.items()
            if where[CLASS] == own
        ]


def _peer(grid: Grid, place: tuple[int, ...], digit: Digit, shift: int) -> Rank:
    """Return the rank whose digit is so much larger, all others alike."""
    value = _digit(digit, place)
    other = list(place)
    other[digit.axis] += ((value + shift) % digit.radix - value) * digit.weight
    return int(grid[tuple(other)])


def _digit(digit: Digit, place: Sequence[int]) -> int:
    return place[digit.axis] // digit.weight % digit.radix

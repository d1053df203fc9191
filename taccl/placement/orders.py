"""Orders of ranks in which the GPUs of a server stay side by side, and the moves between them.

An order says for each rank which place of the machine takes it. It consists of the order of
servers and the order of places within each; moves change one of the two.
"""

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import factorial, prod
from typing import NamedTuple, TypeVar

Order = tuple[int, ...]
"""``order[rank]`` is the place that takes the rank."""

Blocks = tuple[tuple[int, ...], ...]
"""The places of each server, in the order of servers."""

Item = TypeVar("Item")

LONGEST = 3
"""Neighbours in an order that are moved together."""


class Move(NamedTuple):
    """A change of one sequence: of servers (``block`` -1), or of places in one of them.

    ``kind`` 0 exchanges ``first`` and ``last``, 1 turns what is between them round, and 2 moves
    ``length`` entries from ``first`` on to ``last``; 3 turns servers round with the places in them.
    """

    block: int
    kind: int
    first: int
    last: int
    length: int = 1


@dataclass(frozen=True, slots=True)
class Servers:
    """Which places belong together.

    Parameters
    ----------
    blocks
        The places of each server.
    inside
        Whether places of one server may be exchanged.
    """

    blocks: Blocks
    inside: bool = True

    @property
    def num_places(self) -> int:
        """How many places there are."""
        return sum(map(len, self.blocks))

    def count(self) -> int:
        """Return how many orders there are."""
        inner = prod(factorial(len(block)) for block in self.blocks) if self.inside else 1
        return factorial(len(self.blocks)) * inner

    def all(self) -> Iterator[Order]:
        """Yield every order, that of the blocks first."""
        for blocks in itertools.permutations(self.blocks):
            inner = [itertools.permutations(block) if self.inside else [block] for block in blocks]
            for chosen in itertools.product(*inner):
                yield flat(chosen)

    def random(self, rng: random.Random) -> Blocks:
        """Return one of all orders."""
        blocks = [
            tuple(rng.sample(block, len(block))) if self.inside else block for block in self.blocks
        ]
        rng.shuffle(blocks)
        return tuple(blocks)

    def split(self, order: Sequence[int]) -> Blocks | None:
        """Return an order as blocks; None where it does not keep servers together."""
        server = {place: number for number, block in enumerate(self.blocks) for place in block}
        groups = [
            (number, tuple(places))
            for number, places in itertools.groupby(order, key=server.__getitem__)
        ]
        whole = all(
            sorted(places) == sorted(self.blocks[number])
            if self.inside else places == self.blocks[number]
            for number, places in groups
        )  # fmt: skip
        return tuple(places for _, places in groups) if whole else None


def servers_of(server_of: Sequence[int], *, inside: bool = True) -> Servers:
    """Return the servers of a machine, by the first place of each."""
    blocks: dict[int, list[int]] = {}
    for place, server in enumerate(server_of):
        blocks.setdefault(server, []).append(place)
    return Servers(tuple(map(tuple, blocks.values())), inside)


def flat(blocks: Sequence[Sequence[int]]) -> Order:
    """Return blocks as one order."""
    return tuple(itertools.chain.from_iterable(blocks))


def moves(servers: Servers, blocks: Blocks) -> Iterator[Move]:
    """Yield every move from an order: of the servers, and of the places in each of them."""
    several = servers.inside and len(blocks) < servers.num_places
    yield from _of_sequence(-1, len(blocks), turned=several)
    if servers.inside:
        for number, block in enumerate(blocks):
            yield from _of_sequence(number, len(block), turned=False)


def _of_sequence(block: int, length: int, *, turned: bool) -> Iterator[Move]:
    for first, last in itertools.combinations(range(length), 2):
        yield Move(block, 0, first, last)
        if last > first + 1:
            yield Move(block, 1, first, last)
        if turned:
            yield Move(block, 3, first, last)
    for many in range(1, LONGEST + 1):
        ends = range(length - many + 1)
        for first, last in itertools.permutations(ends, 2):
            if many > 1 or abs(last - first) > 1:
                yield Move(block, 2, first, last, many)


def moved(blocks: Blocks, move: Move) -> Blocks:
    """Return the order that a move leads to."""
    if move.block >= 0:
        inner = list(blocks)
        inner[move.block] = tuple(_moved(inner[move.block], move))
        return tuple(inner)
    outer = _moved(blocks, move)
    if move.kind == 3:
        for number in range(move.first, move.last + 1):
            outer[number] = outer[number][::-1]
    return tuple(outer)


def _moved(items: Sequence[Item], move: Move) -> list[Item]:
    found = list(items)
    first, last = move.first, move.last
    if move.kind == 0:
        found[first], found[last] = found[last], found[first]
    elif move.kind in (1, 3):
        found[first : last + 1] = found[first : last + 1][::-1]
    else:
        taken = found[first : first + move.length]
        del found[first : first + move.length]
        found[last:last] = taken
    return found


def shaken(servers: Servers, blocks: Blocks, rng: random.Random, strength: int) -> Blocks:
    """Return an order some random moves away."""
    for _ in range(strength):
        levels = [-1] if len(blocks) > 1 else []
        if servers.inside:
            levels += [number for number, block in enumerate(blocks) if len(block) > 1]
        if not levels:
            return blocks
        level = rng.choice(levels)
        length = len(blocks) if level < 0 else len(blocks[level])
        first, last = sorted(rng.sample(range(length), 2))
        many = rng.randint(1, min(LONGEST, length - 1))
        move = Move(level, rng.randrange(2), first, last)
        if rng.random() < 0.5:
            move = Move(level, 2, rng.randrange(length - many + 1),
                        rng.randrange(length - many + 1), many)  # fmt: skip
        blocks = moved(blocks, move)
    return blocks

"""Messages that ports or waiting pay for: near what is known, and how many may complete a sum."""

from itertools import permutations, product

from taccl.bounds.waiting import roots_at_most
from taccl.topology.file import load_topology
from tests.bounds.test_rounds import hub, rounds


def exchanging(ranks: int, alpha: int, size: int) -> int:
    """Return how long halving, exchanges of all bytes, and doubling take on a switch.

    Of n = 2^l ranks, groups of 2^j exchange: 2 l - j rounds, 2 n - 2^(j+1) + j 2^j receptions.
    """
    levels = ranks.bit_length() - 1
    return min(
        (2 * levels - j) * alpha + size * (2 * ranks - (2 << j) + (j << j)) // ranks
        for j in range(levels + 1)
    )


def test_halving_and_doubling_is_near_the_bound_of_an_allreduce() -> None:
    alpha = 10**6
    for ranks, size in product((4, 8, 16), (4 * alpha, 16 * alpha, 64 * alpha, 256 * alpha)):
        found = exchanging(ranks, alpha, size)
        near = 0.85 if size == 4 * alpha else 0.97
        assert near * found < rounds(hub(ranks, alpha), "allreduce", size) <= found, (ranks, size)


def test_no_bound_is_above_what_exchanges_take_whatever_the_size() -> None:
    for ranks, alpha in product((2, 4, 8, 16, 32), (10**3, 10**6)):
        for power in range(0, 32, 3):
            found = exchanging(ranks, alpha, 1 << power)
            assert rounds(hub(ranks, alpha), "allreduce", 1 << power) <= found, (ranks, power)


def test_links_between_leaves_are_waited_for_longer_than_those_inside() -> None:
    # With all links as those inside (bytes by one port, and its rounds) the times are those left.
    for machine, name, size, alike in (
        ("leaf-spine", "allreduce", 1 << 18, 14.13),
        ("dragonfly", "allgather", 1 << 18, 9.31),
        ("fat-tree", "reducescatter", 1 << 20, 22.46),
    ):
        assert rounds(load_topology(machine), name, size) > 1.05e6 * alike, machine


def most_roots(ranks: int, messages: int) -> list[int]:
    """Return the most ranks that can be completed by one that is not, after so many messages.

    After each number of messages up to that, all of which complete nobody.
    """
    everything = (1 << ranks) - 1
    orders = list(permutations(range(ranks)))

    def renamed(state: tuple[int, ...]) -> tuple[int, ...]:
        """Return the least of all states that differ in the names of ranks only."""
        names = (
            tuple(sum(1 << order[b] for b in range(ranks) if state[a] >> b & 1) for a in turned)
            for order in orders
            for turned in [sorted(range(ranks), key=order.__getitem__)]
        )
        return min(names)

    layer, found = {renamed(tuple(1 << rank for rank in range(ranks)))}, list[int]()
    for _ in range(messages + 1):
        pairs = (
            sum(
                any(a | b == everything for b in state[:n] + state[n + 1 :])
                for n, a in enumerate(state)
            )
            for state in layer
        )
        found.append(max(pairs, default=0))
        layer = {
            renamed((*state[:to], state[to] | told, *state[to + 1 :]))
            for state in layer
            for to in range(ranks)
            for told in state
            if state[to] | told not in (state[to], everything)
        }
    return found


def test_more_roots_take_more_messages() -> None:
    # Of 4 ranks one needs two messages that complete nobody for two roots, and so on.
    for ranks, messages in ((3, 4), (4, 5), (5, 4)):
        found = most_roots(ranks, messages)
        assert found[: ranks - 2] == [0] * (ranks - 2), ranks
        allowed = [min(ranks, roots_at_most(others)) for others in range(messages + 3 - ranks)]
        assert all(a <= b for a, b in zip(found[ranks - 2 :], allowed, strict=True)), ranks
        assert found[ranks - 2 : ranks] == allowed[:2], ranks
    assert [roots_at_most(others) for others in range(6)] == [2, 3, 4, 8, 13, 19]

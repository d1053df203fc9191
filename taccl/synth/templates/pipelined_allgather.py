"""Gathers for large buffers: chunks come in waves, and each wave is doubled inside the server.

A machine's servers gather what is their own digit by digit (mixed_radix.py), while every rank sends
its chunks to the ranks at its place in all other servers. What comes is cut into waves, each as
large as what can cross while those before it are gathered inside: the ports inside are busy from
the start, messages are few and long, and after the last arrival there is only a small wave left. A
wave may also wait before its last digit and go through it together with the next: one message less.

A wave may end at half a piece (a chunk): then every second rank has one more in it. How many half
pieces there are in a wave, and which wave waits, is chosen by a clock for the ports of one rank and
the NICs of one server; the best ways are timed exactly. Waves are of chunks from many ranks, so
ranks pack what they send. ReduceScatter plays it backwards, and AllReduce does both.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import accumulate, pairwise, permutations
from typing import NamedTuple

from taccl.model.problem import Problem
from taccl.synth.templates.mixed_radix import NIC, Digit, written
from taccl.synth.templates.steps import HALVES, Links, Step, best_links, blocks, halves, servers
from taccl.topology.graph import EdgeId, LinkId, Rank
from taccl.units import Time

MOST_WAVES, MOST_SHARES = 5, 16
"""Waves, and into how many shares all that crosses is cut for them."""

MOST_SENDS = 60_000
"""Chunks sent in a way: timing a few takes a second."""

TIMED, MOST_TIMED = 12, 100_000
"""Ways that are timed exactly, and chunks sent in all of them."""

Lanes = Sequence[Sequence[Rank]]
"""Ranks by server and place."""

Free = defaultdict[EdgeId, Time]
"""From when on edges are free, in picoseconds."""

Round = tuple[Digit, tuple[int, ...]]
"""A digit and the waves that go through it; wave 0 is what is in the server from the start."""


class Plan(NamedTuple):
    """A way to do it.

    Parameters
    ----------
    cuts
        After how many half pieces that come to a rank each wave ends; they come by the distance of
        their servers, then by chunk.
    rounds
        In order.
    """

    cuts: tuple[int, ...]
    rounds: tuple[Round, ...]


def ways(problem: Problem) -> Iterator[Iterator[Step]]:
    """Yield the steps of the best ways by the clock."""
    lanes, links, collective = servers(problem), best_links(problem), problem.collective
    if collective.name not in HALVES or lanes is None or min(len(lanes), len(lanes[0])) == 1:
        return
    times = 2 if collective.name == "allreduce" else 1
    sends = times * problem.topology.num_ranks * collective.num_chunks
    if sends > MOST_SENDS:
        return
    plans = _clocked(problem, lanes, links, _plans(problem, lanes, links))
    for plan in plans[: min(TIMED, MOST_TIMED // sends)]:
        yield halves(problem, _gather(problem, lanes, plan))


def _plans(problem: Problem, lanes: Lanes, links: Links) -> Iterator[Plan]:
    """Yield all ways to write places in digits, to cut what crosses, and to wait."""
    across = (pair for column in zip(*lanes, strict=True) for pair in permutations(column, 2))
    if not all(pair in links for pair in across):
        return
    parts = 2 * (len(lanes) - 1) * problem.collective.chunks_per_rank
    for digits in written(NIC, len(lanes[0])):
        if all(pair in links for digit in digits for pair in _pairs(lanes, digit)):
            for cuts in cuts_of(parts):
                for late in (None, *range(len(cuts))):
                    yield Plan(cuts, tuple(_rounds(digits, len(cuts), late)))


def cuts_of(parts: int) -> Iterator[tuple[int, ...]]:
    """Yield after how many parts waves may end: of so many shares each, fewer and fewer."""
    shares = min(parts, MOST_SHARES)
    for sizes in _descending(shares, shares, MOST_WAVES):
        yield tuple(parts * end // shares for end in accumulate(sizes))


def _descending(total: int, largest: int, most: int) -> Iterator[tuple[int, ...]]:
    """Yield all ways to write a number as a sum of so many descending ones."""
    if total == 0:
        yield ()
    elif most:
        for first in range(min(total, largest), 0, -1):
            for rest in _descending(total - first, first, most - 1):
                yield first, *rest


def _rounds(digits: Sequence[Digit], waves: int, late: int | None) -> Iterator[Round]:
    """Yield the rounds of wave after wave; one may wait for the next before its last digit."""
    for wave in range(waves + 1):
        for digit in digits[:-1]:
            yield digit, (wave,)
        if wave != late:
            yield digits[-1], (wave,) if wave - 1 != late else (wave - 1, wave)


def _pairs(lanes: Lanes, digit: Digit) -> Iterator[tuple[Rank, Rank]]:
    """Yield who sends to whom inside a server."""
    for shift in range(1, digit.radix):
        for ranks in lanes:
            for place, rank in enumerate(ranks):
                yield rank, ranks[_peer(digit, place, shift)]


def _clocked(problem: Problem, lanes: Lanes, links: Links, plans: Iterable[Plan]) -> list[Plan]:
    """Return ways by about how long they take: the NICs of one server, and one rank's ports."""
    topology = problem.topology

    @cache
    def costs(link: LinkId, parts: int) -> tuple[Time, tuple[tuple[EdgeId, Time], ...]]:
        size = parts * problem.chunk_size / 2
        edges = topology.links.edges_of(link)
        held = tuple((edge, topology.busy(link, edge, size)) for edge in edges)
        return topology.arrival(link, size), held

    def sent(free: Free, pair: tuple[Rank, Rank], parts: int, ready: Time) -> Time:
        """Return when a message arrives that may start at a time."""
        arrival, held = costs(links[pair], parts)
        start = max(ready, *(free[edge] for edge, _ in held))
        free.update((edge, start + time) for edge, time in held)
        return start + arrival

    own, k = lanes[0], problem.collective.chunks_per_rank

    @cache
    def come_from(cut: tuple[int, int], place: int) -> Counter[int]:
        return Counter((1 + piece // k) % len(lanes) for piece in _pieces(place, cut))

    @cache
    def crossed(cuts: tuple[int, ...]) -> tuple[Free, list[Time], list[int]]:
        """Return when edges are free again, and when so many half pieces for a rank have come."""
        free: Free = defaultdict(int)
        ready, amounts = [0], [2 * k]
        for cut in pairwise((0, *cuts)):
            ready.append(max((
                sent(free, (lanes[source][place], own[place]), 2 * pieces, 0)
                for place in range(len(own))
                for source, pieces in come_from(cut, place % 2).items()
            ), default=0))  # fmt: skip
            amounts.append(cut[1] - cut[0])
        return free, ready, amounts

    def time(plan: Plan) -> Time:
        before, *columns = crossed(plan.cuts)
        free, (ready, amounts) = before.copy(), map(list, columns)
        for digit, waves in plan.rounds:
            start, amount = max(ready[w] for w in waves), sum(amounts[w] for w in waves)
            peers = [own[_peer(digit, 0, shift)] for shift in range(1, digit.radix)]
            end = max(sent(free, (own[0], peer), amount, start) for peer in peers)
            for wave in waves:
                ready[wave] = end
                amounts[wave] *= digit.radix
        return max(ready)

    return sorted(plans, key=time)


def _pieces(place: int, cut: tuple[int, int]) -> range:
    """Return the numbers of the pieces that come to a place in a wave."""
    return range(*((half + place % 2) // 2 for half in cut))


def _gather(problem: Problem, lanes: Lanes, plan: Plan) -> list[Step]:
    own, k = blocks(problem), problem.collective.chunks_per_rank
    held: dict[tuple[int, Rank], tuple[int, ...]] = {
        (0, rank): own[rank] for ranks in lanes for rank in ranks
    }
    steps: list[Step] = []
    for wave, cut in enumerate(pairwise((0, *plan.cuts)), 1):
        for place in range(len(lanes[0])):
            for server, ranks in enumerate(lanes):
                come: dict[Rank, list[int]] = defaultdict(list)
                for piece in _pieces(place, cut):
                    src = lanes[(server + 1 + piece // k) % len(lanes)][place]
                    come[src].append(own[src][piece % k])
                steps += [(tuple(come[src]), src, ranks[place], False) for src in come]
                held[wave, ranks[place]] = tuple(chunk for src in come for chunk in come[src])
    for digit, waves in plan.rounds:
        before = dict(held)
        for rank, peer in _pairs(lanes, digit):
            sent = tuple(chunk for wave in waves for chunk in before[wave, rank])
            steps += [(sent, rank, peer, False)] if sent else []
            for wave in waves:
                held[wave, peer] += before[wave, rank]
    return steps


def _peer(digit: Digit, place: int, shift: int) -> int:
    """Return the place whose digit is so much larger, all others alike."""
    value = place // digit.weight % digit.radix
    return place + ((value + shift) % digit.radix - value) * digit.weight

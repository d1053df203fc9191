"""The search for an order of ranks: all of them where they are few, else local search by replay.

From the best of several starts every move is tried, those first that a proxy finds good, and the
first that makes the replay shorter is taken. Where none does, the best order so far is shaken and
the search goes on from there. All randomness is seeded: without a clock that stops it, the same
input gives the same order.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from taccl.placement.objective import Replays
from taccl.placement.orders import (
    Blocks,
    Order,
    Proxy,
    Servers,
    flat,
    moved,
    moves,
    ring_bound,
    shaken,
    starts,
)
from taccl.timing.deadline import Deadline
from taccl.units import Time

EVERY_ORDER = 50_000
"""Orders up to which all are tried if not said otherwise: those of eight ranks are 40 320."""

CLIMBED = 6
"""Starts that are improved."""

TRIED = 128
"""Moves that are replayed where none of them helps."""

LOOKED_AT = 512
"""Moves that the proxy looks at; where there are more, so many are drawn."""

ROUNDS = 400
"""Shakes in a row that bring nothing, after which the search ends."""

STUCK = 40
"""Shakes in a row after which the search goes on from a worse order."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How long to search: `seconds` from now (None: as long as it takes) and `replays` at most.

    None is any number of replays; a count gives the same result every time. `seed` is that of all
    that is drawn, `samples` random orders are what the result is compared with, and up to `every`
    orders all are tried, without a search.
    """

    seconds: float | None = None
    replays: int | None = None
    seed: int = 0
    samples: int = 100
    every: int = EVERY_ORDER


@dataclass(frozen=True, slots=True)
class Found:
    """The answer: ``order[rank]`` is the place that takes the rank.

    `time` and `identity` are picoseconds of that `order` and of the one that leaves all as it is,
    `random` those of the random orders, and `bound` what no order can beat (None: unknown). So many
    `replays` were made, and `ended` is why the search did: ``all``, ``bound``, ``settled``,
    ``time``, ``replays`` or ``interrupted``.
    """

    order: Order
    time: Time
    identity: Time
    random: tuple[Time, ...]
    bound: Time | None
    replays: int
    ended: str


class _EndError(Exception):
    """The search has to end; the message says why."""


class _Search:
    """The replays so far, and the best of them."""

    def __init__(
        self, replays: Replays, limits: Limits, stop: Callable[[], bool], report: "Report"
    ) -> None:
        self.replays, self.limits, self.stop, self.report = replays, limits, stop, report
        self.clock = Deadline()
        self.known: dict[Order, Time] = {}
        self.best: tuple[Time, Order] | None = None
        self.enough: Time = -1
        self.counted = 0

    def why_end(self) -> str:
        """Return why the search has to end now; empty when it may go on."""
        limits = self.limits
        if self.best is not None and self.best[0] <= self.enough:
            return "bound"
        if self.stop():
            return "interrupted"
        if limits.replays is not None and self.counted >= limits.replays:
            return "replays"
        if limits.seconds is not None and self.clock.spent >= limits.seconds:
            return "time"
        return ""

    def over(self) -> bool:
        """Tell whether the search has to end now."""
        return bool(self.why_end())

    def time(self, order: Order) -> Time:
        """Return what an order takes.

        Raises _EndError when the search has to end before.
        """
        if order in self.known:
            return self.known[order]
        reason = self.why_end() if self.best is not None else ""
        if reason:
            raise _EndError(reason)
        found = self.known[order] = self.replays.time(order)
        self.counted += 1
        if self.best is None or found < self.best[0]:
            self.best = (found, order)
            self.report(self.counted, found)
        return found


Report = Callable[[int, Time], None]
"""Is told the number of replays and the new best time."""


def search(
    replays: Replays,
    servers: Servers,
    limits: Limits,
    stop: Callable[[], bool] = lambda: False,
    report: Report = lambda _count, _time: None,
) -> Found:
    """Return the best order found that keeps `servers` together, within the `limits`.

    The order as given is always replayed, to compare with; where it tears servers apart, so is the
    one that takes them by their first places, which the search begins with then. `replays` is the
    program on the machine; `stop` tells whether to end now; `report` is told the number of replays
    and every new best time.

    Raises ProgramError when the program comes to no end.
    """
    state = _Search(replays, limits, stop, report)
    same = tuple(range(servers.num_places))
    identity = state.time(same)
    if servers.split(same) is None:
        state.best = None
        state.time(flat(servers.blocks))
    bound = ring_bound(replays, servers)
    samples: list[Time] = []
    ended = "settled"
    try:
        rng = random.Random(limits.seed)
        drawn = (servers.random(rng) for _ in range(limits.samples))
        samples.extend(state.time(flat(blocks)) for blocks in drawn)
        if bound is not None:
            state.enough = bound
        if servers.count() <= limits.every:
            ended = "all"
            for every in servers.all():
                state.time(every)
        else:
            _improve(state, servers, rng)
    except _EndError as end:
        ended = str(end)
    least, order = state.best or (identity, flat(servers.blocks))
    return Found(order, least, identity, tuple(samples), bound, state.counted, ended)


def _improve(state: _Search, servers: Servers, rng: random.Random) -> None:
    """Improve the best starts, then shake the best order of all until nothing comes of it."""
    proxy = Proxy(state.replays)
    first = [
        servers.split(order)
        for order in sorted(state.known, key=lambda order: (state.known[order], order))[:CLIMBED]
    ]
    pool: list[Blocks] = [blocks for blocks in first if blocks is not None]
    pool += starts(state.replays, servers, state.limits.seed, state.over)
    timed = sorted({(state.time(flat(blocks)), blocks) for blocks in pool})
    for _, blocks in timed[:CLIMBED]:
        _descend(state, servers, proxy, blocks, rng)
    fruitless = 0
    current, value = _of_best(state, servers)
    while fruitless < ROUNDS:
        least = _of_best(state, servers)[1]
        strength = 2 + fruitless % 4
        other = _descend(state, servers, proxy, shaken(servers, current, rng, strength), rng)
        found = state.time(flat(other))
        fruitless = 0 if found < least else fruitless + 1
        if found <= value or fruitless % STUCK == 0:
            current, value = other, found


def _of_best(state: _Search, servers: Servers) -> tuple[Blocks, Time]:
    value, order = state.best or (0, ())
    return servers.split(order) or servers.blocks, value


def _descend(
    state: _Search, servers: Servers, proxy: Proxy, blocks: Blocks, rng: random.Random
) -> Blocks:
    """Return where moves lead that shorten the replay, or keep it and make the proxy better."""
    value = (state.time(flat(blocks)), int(proxy.of([flat(blocks)])[0]))
    while True:
        near = neighbours(servers, blocks, rng)
        if not near:
            return blocks
        guesses = proxy.of([flat(other) for other in near]).tolist()
        for number in sorted(range(len(near)), key=guesses.__getitem__)[:TRIED]:
            found = (state.time(flat(near[number])), guesses[number])
            if found < value:
                blocks, value = near[number], found
                break
        else:
            return blocks


def neighbours(servers: Servers, blocks: Blocks, rng: random.Random) -> list[Blocks]:
    """Return what the moves from an order lead to: all of them, or some drawn where many are.

    `blocks` is the order, as the places of each of the `servers`; `rng` is where moves are drawn
    from.
    """
    lengths = [len(blocks), *(map(len, blocks) if servers.inside else ())]
    if sum(length * length for length in lengths) * 4 <= LOOKED_AT:
        return [moved(blocks, move) for move in moves(servers, blocks)]
    return [shaken(servers, blocks, rng, 1) for _ in range(LOOKED_AT)]

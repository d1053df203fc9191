"""Many runs of the guided scheduler on one problem, of which the best is kept.

Runs differ in the prices of arcs and in settings. What a picosecond of each resource is worth
becomes a price of each arc, with a share of the arc's own duration mixed in; prices only guide a
run, so they may be rounded. At first runs are drawn: the mix, how far from the cheapest way they
may stray, noise, what goes first among equals; the very first is the plain earliest-finish greedy.
Then the prices of the best few are changed here and there, and what gets no worse takes their
place. Which runs there are depends on the seed and on results alone, not on threads; the clock only
decides how many there are, and when changing begins.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from taccl.model.routes import Arcs
from taccl.synth.guided import tree_list_scheduler
from taccl.synth.guided.tree_list_scheduler import (
    APART,
    BY_CHANCE,
    CHEAP_FIRST,
    COUNT,
    DEAR_FIRST,
    EPS_OVER,
    EPS_UNDER,
    IN_ORDER,
    NEVER,
    NOISE,
    RARE_FIRST,
    RUN_FIELDS,
    SEED,
    TURNS,
    Field,
    Numbers,
    SchedulerState,
    Times,
    reset,
    state_of,
)
from taccl.timing import occupancy
from taccl.timing.deadline import Deadline
from taccl.timing.jit import jit, report_compilation
from taccl.timing.occupancy import Uses
from taccl.units import Time

Floats = NDArray[np.float64]

MESSAGE = "compiling the guided scheduler; once on this machine, for about 10 s"

Grow = Callable[[Field, SchedulerState, Times, Times, int], int]


def compiled(report: Callable[[str], None]) -> Grow:
    """Return :func:`tree_list_scheduler.grow` as machine code, ready to be called.

    `report` is called with a line when there is something to compile.
    """
    made = _made()
    times, numbers = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int32)
    flags = np.zeros(1, dtype=np.bool_)
    field = Field(
        numbers, numbers, times, numbers, Uses(times, numbers, times, times, times), numbers,
        flags[None], flags[None], flags, times[None], times, numbers[None],
    )  # fmt: skip
    with report_compilation(report, MESSAGE):  # arguments of the right types that need no work
        made(field, state_of(field), times, np.zeros(RUN_FIELDS, dtype=np.int64), 0)
    return made


@cache
def _made() -> Grow:
    parts = (tree_list_scheduler, occupancy)
    return jit(tree_list_scheduler.grow, parts, "guided")


MIXES = (0.001, 0.03, 0.3, 3.0)
"""How much of an arc's duration is mixed into its price."""

EPSILONS = ((10, 10), (13, 10), (20, 10), (0, 0))
"""1 + eps as a fraction; 0/0: everything is allowed."""

NOISES = ((0, 0), (205, 0), (205, 1), (717, 0), (717, 1))
"""Noise on prices in 1/1024, and whether every chunk has its own."""

RULES = (BY_CHANCE, CHEAP_FIRST, DEAR_FIRST, RARE_FIRST)

LARGEST_PRICE = 1 << 36

TAUGHT = 12
"""Runs that teach prices by what they load, at most."""

TEACHING = 6_000_000
"""Pairs of a chunk and an arc in all of them."""


def runs_of(seed: int, tables: int) -> Iterator[tuple[int, Times]]:
    """Yield runs without end: the number of one of so many `tables` of prices, and the settings.

    The `seed` is of all that is drawn.
    """

    def run(rule: int, eps: tuple[int, int], noise: tuple[int, int], number: int) -> Times:
        settings = np.zeros(RUN_FIELDS, dtype=np.int64)
        settings[[TURNS, EPS_OVER, EPS_UNDER, NOISE, APART]] = rule, *eps, *noise
        settings[SEED] = (seed * 7919 + number * 104_729) % (1 << 31)
        return settings

    yield 0, run(IN_ORDER, (0, 0), (0, 0), 0)
    yield 0, run(RARE_FIRST, (13, 10), (0, 0), 1)
    every = list(itertools.product(range(tables), RULES, EPSILONS, NOISES))
    numbers = itertools.count(2)
    chance = np.random.default_rng(seed)
    while True:
        for place in chance.permutation(len(every)).tolist():
            table, rule, eps, noise = every[place]
            yield table, run(rule, eps, noise, next(numbers))


def price_arcs(arcs: Arcs, prices: Floats, mix: float) -> Times:
    """Return int64 prices of `arcs`: of the time they hold resources, and a share of their own.

    `prices` are of a picosecond of each resource, `mix` is the share of an arc's own duration.
    """
    costs = arcs.costs()
    owner = np.repeat(np.arange(len(costs.arrival)), np.diff(costs.first))
    paid = np.bincount(owner, prices[costs.resource] * costs.held, minlength=len(costs.arrival))
    whole = paid + costs.arrival * (mix / max(1, arcs.num_resources))
    dearest = float(whole[np.bincount(arcs.kind, minlength=len(whole)) > 0].max(initial=0.0))
    scale = LARGEST_PRICE / max(dearest, 1.0)
    exact: Times = np.maximum(1, np.floor(whole * scale)).astype(np.int64)
    return exact[arcs.kind]


def taught_prices(arcs: Arcs, field: Field, grow: Grow) -> Floats:
    """Return prices that rise where runs load resources most (multiplicative weights).

    `arcs` and `field` are the problem, `grow` is the scheduler.
    """
    state, costs = state_of(field), arcs.costs()
    owner = np.repeat(np.arange(len(costs.arrival)), np.diff(costs.first))
    weights = np.full(arcs.num_resources, 1 / max(1, arcs.num_resources))
    total = np.zeros(arcs.num_resources)
    settings = np.zeros(RUN_FIELDS, dtype=np.int64)
    settings[[EPS_OVER, EPS_UNDER]] = 10, 10
    for number in range(min(TAUGHT, TEACHING // max(1, len(arcs) * len(field.targets)))):
        reset(field, state)
        settings[SEED] = number
        grow(field, state, price_arcs(arcs, weights, 0.0), settings, NEVER)
        taken = np.bincount(
            arcs.kind[state.sent_arc[: state.counter[COUNT]]], minlength=len(costs.arrival)
        )
        load = np.bincount(costs.resource, taken[owner] * costs.held, minlength=len(weights))
        total += weights
        weights = weights * np.exp(
            2 / np.sqrt(1 + number) * (load / max(load.max(initial=0.0), 1.0) - 1)
        )
        weights /= weights.sum()
    mean: Floats = total / total.sum() if total.any() else weights
    return mean


ROUND = 32
"""Runs between two looks at the clock; they all know the same best."""

ROUND_PAIRS = 2_000_000
"""Pairs of a chunk and an arc in the runs of a round, from two runs on."""

THREADED = 20_000
"""Pairs of a chunk and an arc from which threads pay."""

DRAWN = 0.3
"""Of the patience, for runs that are drawn; of those after that, one in ``REFRESHED``."""
REFRESHED = 4

BEST = 8
"""Runs whose prices are changed."""

CHANGED = (-2.5, -0.5)
"""Exponents of ten between which the share of prices lies that a change draws again."""

AMPLITUDES = (0.2, 0.7, 2.0)
"""Noise on prices that are drawn again."""

RESEEDED = 0.1
"""Of the changed runs: what goes first among equals is drawn again, too."""

Rank = tuple[Time, int]
"""What runs are compared by: the makespan, then all arrivals together."""


@dataclass(frozen=True, eq=False)
class Found:
    """The best run, which may be one to be played backwards.

    `chunk` and `arc` (int32) are rows of Wanted and of Arcs, in the order of the decisions. The
    `makespan` and every `start` (int64) are picoseconds.
    """

    makespan: Time
    chunk: Numbers
    arc: Numbers
    start: Times


@dataclass(frozen=True)
class Effort:
    """How long to go on: for so many `runs` at most, with so many `workers`, from a `seed`.

    At the `goal`, which returns picoseconds, nothing is left to win. It is asked for after a first
    round, as its proof may take seconds. The `clock` is asked between rounds;
    after its patience only success in the second half of the runs justifies more. Where work is
    counted, runs alone decide.
    """

    goal: Callable[[], Time]
    clock: Deadline
    runs: int = 1 << 40
    seed: int = 0
    workers: int = 1


@dataclass(frozen=True, eq=False)
class Start:
    """How the run of a `number` begins, with the `settings` of tree_list_scheduler.py.

    `base` and `price` have the price of each arc, without noise and with it. `slot` is which of the
    best it is a change of; -1: of none.
    """

    number: int
    base: Times
    price: Times
    settings: Times
    slot: int = -1


@dataclass(frozen=True, eq=False)
class Done:
    """A run that served everything in time: how it began, how good it is, perhaps what it did."""

    start: Start
    rank: Rank
    found: Found | None


@dataclass(eq=False)
class Best:
    """The best few runs, the best of all, and when it was found."""

    few: list[Done]
    found: Found | None
    last: int

    def limit(self, slot: int) -> Time:
        """Return what a run has to stay below to be of use."""
        if slot >= 0:
            return self.few[slot].rank[0] + 1
        full = len(self.few) == BEST
        return max(done.rank for done in self.few)[0] + 1 if full else NEVER

    def add(self, done: Done) -> None:
        """Take note of a run."""
        if done.found is not None and (
            self.found is None or done.found.makespan < self.found.makespan
        ):
            self.found, self.last = done.found, done.start.number
        slot = done.start.slot
        if slot >= 0:
            if done.rank <= self.few[slot].rank:
                self.few[slot] = done
        elif all(done.rank != known.rank for known in self.few):
            if len(self.few) < BEST:
                self.few.append(done)
            else:
                worst = max(range(BEST), key=lambda slot: self.few[slot].rank)
                if done.rank < self.few[worst].rank:
                    self.few[worst] = done


def search(
    arcs: Arcs, field: Field, prices: Sequence[Floats], grow: Grow, effort: Effort
) -> Found | None:
    """Return the best of many runs on a problem; None when none serves all targets.

    `arcs` and `field` are the problem, `prices` sets of prices of its resources, the most trusted
    first. `grow` is :func:`taccl.synth.guided.tree_list_scheduler.grow`, compiled or not, and
    `effort` tells how long to go on.
    """
    clock, counted = effort.clock, effort.clock.counted is not None
    tables = [price_arcs(arcs, one, mix) for one in prices for mix in MIXES]
    pairs = len(arcs) * len(field.targets)
    size = max(2, min(ROUND, ROUND_PAIRS // max(1, pairs)))
    workers = max(1, effort.workers) if pairs >= THREADED else 1
    states = [state_of(field) for _ in range(workers)]
    best, count = Best([], None, 0), 0
    drawn = ((tables[table], settings) for table, settings in runs_of(effort.seed, len(tables)))
    with ThreadPoolExecutor(workers) as pool:
        while count < effort.runs:
            part = count / effort.runs if counted else clock.spent / max(1e-9, clock.patience)
            numbers = range(count, min(count + (size if count else 2), effort.runs))
            starts = list(_starts(effort.seed, numbers, best, drawn, change=part >= DRAWN))
            jobs = [
                pool.submit(_several, field, state, grow, starts[first::workers], best)
                for first, state in enumerate(states)
            ]
            results = [done for job in jobs for done in job.result()]
            for done in sorted(results, key=lambda done: done.start.number):
                best.add(done)
            count += len(starts)
            if clock.over or (best.found and best.found.makespan <= effort.goal()):
                break
            if not counted and clock.spent >= clock.patience and count > 2 * best.last + ROUND:
                break  # nothing was won for so long that nothing will be
    return best.found


def _starts(
    seed: int,
    numbers: Sequence[int],
    best: Best,
    drawn: Iterator[tuple[Times, Times]],
    *,
    change: bool,
) -> Iterator[Start]:
    """Yield the starts of runs: drawn ones, and changes of the best few."""
    for number in numbers:
        chance = np.random.default_rng((seed, number))
        if change and best.few and number % REFRESHED:
            yield _changed(number, best, chance)
        else:
            yield _fresh(number, *next(drawn), chance)


def _fresh(number: int, base: Times, settings: Times, chance: np.random.Generator) -> Start:
    """Return a start whose noise, if all chunks share it, is in the prices to be changed later."""
    if settings[NOISE] == 0 or settings[APART]:
        return Start(number, base, base, settings)
    price = _noisy(base, settings[NOISE] / 1024, chance)
    settings[NOISE] = 0
    return Start(number, base, price, settings)


def _changed(number: int, best: Best, chance: np.random.Generator) -> Start:
    slot = int(chance.integers(len(best.few)))
    known = best.few[slot].start
    share = 10 ** chance.uniform(*CHANGED)
    places = chance.integers(len(known.price), size=max(1, int(share * len(known.price))))
    price, settings = known.price.copy(), known.settings
    price[places] = _noisy(known.base[places], float(chance.choice(AMPLITUDES)), chance)
    if chance.random() < RESEEDED:
        settings = settings.copy()
        settings[SEED] = chance.integers(1 << 31)
    return Start(number, known.base, price, settings, slot)


def _noisy(prices: Times, amplitude: float, chance: np.random.Generator) -> Times:
    noisy: Times = (prices * (1 + amplitude * chance.random(len(prices)))).astype(np.int64)
    return noisy


def _several(
    field: Field, state: SchedulerState, grow: Grow, starts: Sequence[Start], best: Best
) -> list[Done]:
    """Return those of some runs that are of use."""
    results = []
    least = NEVER if best.found is None else best.found.makespan
    for start in starts:
        reset(field, state)
        makespan = grow(field, state, start.price, start.settings, best.limit(start.slot))
        if makespan < NEVER:
            sends, found = slice(int(state.counter[COUNT])), None
            if makespan < least:
                found = Found(
                    makespan, state.sent_chunk[sends].copy(), state.sent_arc[sends].copy(),
                    state.sent_at[sends].copy(),
                )  # fmt: skip
            least = min(least, makespan)
            results.append(Done(start, (makespan, int(state.at.sum())), found))
    return results

"""What runs of the guided scheduler differ in: prices of arcs, and settings.

What a picosecond of each resource is worth becomes a price of each arc, with a share of the arc's
own duration mixed in. Prices only guide a run, so they may be rounded.
"""

import itertools
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from taccl.synth.arcs import Arcs
from taccl.synth.guided_kernel import Grow
from taccl.synth.guided_layout import (
    APART,
    BY_CHANCE,
    CHEAP_FIRST,
    COUNT,
    DEAR_FIRST,
    EPS_OVER,
    EPS_UNDER,
    IN_ORDER,
    MIRRORED,
    NEVER,
    NOISE,
    RARE_FIRST,
    RUN_FIELDS,
    SEED,
    TURNS,
    Field,
    Times,
    reset,
    state_of,
)

Floats = NDArray[np.float64]

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


def runs_of(seed: int, tables: int, *, mirrored: bool) -> Iterator[tuple[int, Times]]:
    """Yield runs without end: a table of prices and the settings."""

    def run(rule: int, eps: tuple[int, int], noise: tuple[int, int], number: int) -> Times:
        settings = np.zeros(RUN_FIELDS, dtype=np.int64)
        settings[[TURNS, EPS_OVER, EPS_UNDER, NOISE, APART]] = rule, *eps, *noise
        settings[[SEED, MIRRORED]] = (seed * 7919 + number * 104_729) % (1 << 31), mirrored
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
    """Return whole prices of arcs: of the time they hold resources, and a share of their own."""
    owner = np.repeat(np.arange(len(arcs)), np.diff(arcs.use_start))
    paid = np.bincount(owner, prices[arcs.use_resource] * arcs.held(), minlength=len(arcs))
    whole = paid + arcs.arrival() * (mix / max(1, arcs.num_resources))
    scale = LARGEST_PRICE / max(float(whole.max(initial=0.0)), 1.0)
    exact: Times = np.maximum(1, np.floor(whole * scale)).astype(np.int64)
    return exact


def taught_prices(arcs: Arcs, field: Field, grow: Grow) -> Floats:
    """Return prices that rise where runs load resources most (multiplicative weights)."""
    state, held = state_of(field), arcs.held()
    owner = np.repeat(np.arange(len(arcs)), np.diff(arcs.use_start))
    weights = np.full(arcs.num_resources, 1 / max(1, arcs.num_resources))
    total = np.zeros(arcs.num_resources)
    settings = np.zeros(RUN_FIELDS, dtype=np.int64)
    settings[[EPS_OVER, EPS_UNDER, MIRRORED]] = 10, 10, arcs.reverse
    for number in range(min(TAUGHT, TEACHING // max(1, len(arcs) * len(field.targets)))):
        reset(field, state)
        settings[SEED] = number
        grow(field, state, price_arcs(arcs, weights, 0.0), settings, NEVER)
        taken = np.bincount(state.sent_arc[: state.counter[COUNT]], minlength=len(arcs))
        load = np.bincount(arcs.use_resource, taken[owner] * held, minlength=len(weights))
        total += weights
        weights = weights * np.exp(
            2 / np.sqrt(1 + number) * (load / max(load.max(initial=0.0), 1.0) - 1)
        )
        weights /= weights.sum()
    mean: Floats = total / total.sum() if total.any() else weights
    return mean

"""Sizes at which the first of several changes, such as the fastest."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import isqrt

from taccl.report.compared import Crossover
from taccl.units import Time

CLOSE = 100
"""A crossover is known when the sizes around it differ by one part in so many."""

Times = Mapping[str, Time | None]
"""Times of contenders by name; None: it can't run."""


def first_of(times: Times, before: str | None = None) -> str | None:
    """Return who takes least; of equals the one of the size before, else the first."""
    found = {name: time for name, time in times.items() if time is not None}
    least = min(found.values(), default=None)
    if before in found and found[before] == least:
        return before
    return next((name for name, time in found.items() if time == least), None)


def find_crossovers(
    sizes: Sequence[int], step: int, times_at: Callable[[int], Times]
) -> Iterator[Crossover]:
    """Yield where the first changes, ascending.

    Where it changes between two sizes, sizes between are tried until the change is known to a
    hundredth; what comes and goes between two sizes with one winner is not seen.

    Parameters
    ----------
    sizes
        Bytes, ascending.
    step
        What sizes between are multiples of.
    """

    def between(low: int, high: int, first: str, last: str) -> Iterator[Crossover]:
        middle = isqrt(low * high) // step * step
        if first == last:
            return
        if (high - low) * CLOSE <= low or not low < middle < high:
            yield Crossover(high, first, last)
            return
        inner = first_of(times_at(middle), first) or first
        yield from between(low, middle, first, inner)
        yield from between(middle, high, inner, last)

    now = first_of(times_at(sizes[0])) if sizes else None
    for low, high in pairwise(sizes):
        then = first_of(times_at(high), now)
        if now is not None and then is not None:
            yield from between(low, high, now, then)
        now = then

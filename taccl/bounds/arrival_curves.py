"""How soon a given amount can have crossed a set of edges, at the earliest.

Every message of the amount crosses at least one gate of the set. In a gate, messages follow one
another: each unit takes at least ``busy``, and the whole sequence at least ``start`` more (before
the first message can be there, and from the last release to the arrival). So by time T at most
``(T - start) / busy`` units have crossed a gate, and in a world where units travel whole, the
floor of that. With weights (prices), the amount is counted in weighted units.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from taccl.units import Time

GRID = 1 << 64
"""Where exact sums of rates would need huge denominators, rates are rounded up to this grid."""


class Gate(NamedTuple):
    """One edge of a cut: the time lost in any case, the time of one unit, the weight of a unit."""

    start: Time
    busy: Fraction
    weight: int = 1


Gates = tuple[tuple[Gate, int], ...]
"""Distinct gates with how many there are of each, ascending."""


def gather(gates: Iterable[Gate]) -> Gates:
    """Return gates, or how many there are of each, in a form in which equal sets compare equal."""
    return tuple(sorted(Counter(gates).items()))


Line = tuple[Fraction, Fraction]
"""What is counted at a time, in picoseconds of a gate: for each picosecond more, and at 0."""


def most_of(lines: Sequence[Line]) -> Gates:
    """Return gates that let through, at every time, the most of some `lines`, or nothing."""
    edges = pairwise(envelope([(Fraction(0), Fraction(0)), *lines]))
    return gather(Gate(math.floor(_meet(a, b)), 1 / (b[0] - a[0])) for a, b in edges)


def envelope(lines: Sequence[Line]) -> list[Line]:
    """Return those of some `lines` that are the highest somewhere, from left to right."""
    kept: list[Line] = []
    for line in sorted(lines):
        while kept and (
            kept[-1][0] == line[0]
            or (len(kept) > 1 and _meet(kept[-2], line) <= _meet(kept[-2], kept[-1]))
        ):
            kept.pop()
        kept.append(line)
    return kept


def _meet(one: Line, other: Line) -> Fraction:
    return (one[1] - other[1]) / (other[0] - one[0])


@dataclass(frozen=True, slots=True)
class Curve:
    """A lower bound as a function of size: the least of some `lines`.

    The least, because a set of gates that open one after the other takes more the later it is;
    leaving out gates that open late, or counting them before they open, both only raises a line. A
    line is (picoseconds, picoseconds for each byte of ``size``), and `kind` is the idea behind it.
    """

    kind: str
    lines: tuple[tuple[Fraction, Fraction], ...]

    @property
    def is_flat(self) -> bool:
        """Whether the size does not matter."""
        return all(slope == 0 for _, slope in self.lines)

    def at(self, size: int) -> Time:
        """Return the bound for a size, rounded up: times are whole picoseconds."""
        exact = min(base + slope * size for base, slope in self.lines)
        return -(-exact.numerator // exact.denominator)


def flat(kind: str, time: Time) -> Curve:
    """Return a bound of a `kind` (a key of ``KINDS``), `time` picoseconds whatever the size."""
    return Curve(kind, ((Fraction(time), Fraction(0)),))


def fluid(kind: str, gates: Gates, share: Fraction) -> Curve | None:
    """Return when a `share` of every byte of ``size`` can have crossed; None: at once.

    `kind` is the idea, a key of ``KINDS``; `gates` are what the data passes.
    """
    if share <= 0 or not gates or any(gate.busy == 0 for gate, _ in gates):
        return None
    ordered = sorted(gates)
    # What makes the rates of all gates integers, or a fine grid to round them up to.
    unit = min(math.lcm(*{gate.busy.numerator for gate, _ in gates}), GRID)
    lines = []
    rate, area = 0, 0
    for i, (gate, count) in enumerate(ordered):
        parts = gate.weight * count * gate.busy.denominator * unit
        own = -(-parts // gate.busy.numerator)
        rate += own
        area += own * gate.start
        if rate and (i + 1 == len(ordered) or ordered[i + 1][0].start > gate.start):
            lines.append((Fraction(area, rate), share * unit / rate))
    return Curve(kind, tuple(lines)) if lines else None


def whole(gates: Gates, needed: Fraction | int, floor: Time = 0) -> Time:
    """Return when, at `floor` (picoseconds) or later, whole messages can first add up to `needed`.

    `gates` are what the messages pass, with ``busy`` the time of a message; `needed` is the weight
    of the messages that must cross.
    """
    if needed <= 0 or not gates or any(gate.busy <= 0 for gate, _ in gates):
        return floor
    if all(gate.weight == 0 for gate, _ in gates):
        return floor
    steps = _steps(gates)
    return first_time(lambda time: _crossed(steps, time) >= needed, floor)


def first_time(holds: Callable[[Time], bool], floor: Time) -> Time:
    """Return the first time from `floor` on (picoseconds) that `holds`; all later ones must."""
    if holds(floor):
        return floor
    low, high = floor, floor + 1
    while not holds(high):
        low, high = high, high * 2
    return bisect_left(range(high), x=True, lo=low + 1, key=holds)


def crossed(gates: Gates, time: Time) -> int:
    """Return how many whole messages can have passed all `gates` together by a `time` (ps)."""
    return _crossed(_steps(gates), time)


def _steps(gates: Gates) -> list[tuple[Time, Time, int]]:
    """Return start, time of a message and weight of the gates, all whole."""
    return [(gate.start, int(gate.busy), gate.weight * count) for gate, count in gates]


def _crossed(steps: list[tuple[Time, Time, int]], time: Time) -> int:
    return sum(weight * ((time - start) // busy) for start, busy, weight in steps if time > start)

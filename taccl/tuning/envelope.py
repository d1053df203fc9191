"""Which program serves which sizes: the lower envelope, with as few changes as it allows.

At every size a program is *good enough* when it takes at most 2 % more than the fastest one and
no more than the fastest classical algorithm. Among all choices of good enough programs, one
with the fewest changes is taken, and of those the one that loses least to the fastest. Times are
compared as integers; ties go to the program that comes first.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from taccl.units import Time

SLACK = 2
"""Percent that a program may take more than the fastest, to spare a change."""

_PARTS = 10**9
"""What is lost to the fastest is counted in such parts of its time."""

Times = Sequence[Time | None]
"""Of one program at every size; None: it can't run there."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Sizes that one program serves.

    Parameters
    ----------
    program
        Its number; None: none runs at these sizes.
    first, last
        Places of the first and the last size.
    """

    program: int | None
    first: int
    last: int


def fastest_at(programs: Sequence[Times], place: int) -> int | None:
    """Return the number of the fastest program at a size, of equals the first."""
    found = [(time, number) for number, one in enumerate(programs) if (time := one[place])]
    return min(found, default=(0, None))[1]


def is_good_enough(time: Time | None, least: Time, classical: Time | None) -> bool:
    """Tell whether a time may stand in for the least one."""
    if not time:
        return False
    return time * 100 <= least * (100 + SLACK) and (classical is None or time <= classical)


def envelope(programs: Sequence[Times], classical: Sequence[int]) -> tuple[Stretch, ...]:
    """Return who serves which sizes, ascending, without gaps.

    Parameters
    ----------
    programs
        The times of each.
    classical
        Numbers of those that are classical algorithms: none may be faster than what is chosen.
    """
    places = len(programs[0]) if programs else 0
    chosen: list[int | None] = []
    first = 0
    for place in range(places):
        if fastest_at(programs, place) is None:
            chosen += [*_choose(programs, classical, first, place), None]
            first = place + 1
    chosen += _choose(programs, classical, first, places)
    stretches: list[Stretch] = []
    for place, program in enumerate(chosen):
        if stretches and stretches[-1].program == program:
            stretches[-1] = Stretch(program, stretches[-1].first, place)
        else:
            stretches.append(Stretch(program, place, place))
    return tuple(stretches)


def _choose(programs: Sequence[Times], classical: Sequence[int], first: int, end: int) -> list[int]:
    """Return a program for every size of a range in which one runs at each."""
    if first == end:
        return []
    # From each size on: (changes, loss) of the best choice that begins with each program.
    costs: list[dict[int, tuple[int, int]]] = []
    follows: list[dict[int, int]] = []
    for place in reversed(range(first, end)):
        after = costs[-1] if costs else {}
        change = min(after, key=lambda number: (*after[number], number), default=None)
        here: dict[int, tuple[int, int]] = {}
        follow: dict[int, int] = {}
        for number, loss in _candidates(programs, classical, place).items():
            cost, then = (0, loss), number
            if change is not None:
                changed = (after[change][0] + 1, after[change][1])
                stay = after.get(number)
                then = number if stay is not None and stay <= changed else change
                changes, lost = stay if then == number and stay is not None else changed
                cost = (changes, lost + loss)
            here[number], follow[number] = cost, then
        costs.append(here)
        follows.append(follow)
    start = costs[-1]
    number = min(start, key=lambda one: (*start[one], one))
    chosen = []
    for follow in reversed(follows):
        chosen.append(number)
        number = follow[number]
    return chosen


def _candidates(programs: Sequence[Times], classical: Sequence[int], place: int) -> dict[int, int]:
    """Return who is good enough at a size, and what it loses to the fastest."""
    best = fastest_at(programs, place)
    least = programs[best][place] if best is not None else None
    if not least:
        return {}
    known = min((t for n in classical if (t := programs[n][place])), default=None)
    return {
        number: (time - least) * _PARTS // least
        for number, one in enumerate(programs)
        if (time := one[place]) and is_good_enough(time, least, known)
    }

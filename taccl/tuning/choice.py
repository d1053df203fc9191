"""What is chosen for one collective: ranges of sizes, and the program of each.

Which program serves which sizes is the lower envelope of their times, with as few changes as it
allows. At every size a program is *good enough* when it takes at most 2 % more than the fastest
one and no more than the fastest classical algorithm. Among all choices of good enough programs, one
with the fewest changes is taken, and of those the one that loses least to the fastest. Times are
compared as integers; ties go to the program that comes first.

The envelope is taken at the sizes of the run. Where one program follows another, the size at
which the second becomes the faster one is looked for between their sizes, but no program is given
sizes at which it could deadlock. What is chosen is judged as the file that it will be, at both
ends of its range; a program that a judge refuses is out, and the envelope is taken again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, pairwise
from math import isqrt, lcm

from taccl.msccl.program import Finding, Program
from taccl.msccl.run import largest_safe_size
from taccl.msccl.runtimes import LOADED_BY
from taccl.msccl.verdict import judge_text
from taccl.msccl.xml import write_xml
from taccl.replay.cost import model_of
from taccl.replay.nccl import Choice as Way
from taccl.replay.nccl import Machine, choices, fastest
from taccl.replay.timing import traces
from taccl.topology.graph import Topology
from taccl.tuning.candidate import Outcome, Played, program_of
from taccl.units import Time

SLACK = 2
"""Percent that a program may take more than the fastest, to spare a change."""

_PARTS = 10**9
"""What is lost to the fastest is counted in such parts of its time."""

NOBODY = -1
"""In the place of a program at sizes at which none runs."""

Times = Sequence[Time | None]
"""Of one program at every size; None: it can't run there."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Sizes from place `first` to `last` that a program, by its number, serves; None: none does."""

    program: int | None
    first: int
    last: int


def fastest_at(programs: Sequence[Times], place: int) -> int | None:
    """Return the number of the fastest of `programs` at the size `place`, of equals the first.

    Each program has a time for every size, in picoseconds, or None.
    """
    found = [(time, number) for number, one in enumerate(programs) if (time := one[place])]
    return min(found, default=(0, None))[1]


def is_good_enough(time: Time | None, least: Time, classical: Time | None) -> bool:
    """Tell whether a `time` (None: it can't run) may stand in for the `least` one.

    It may not be above that of the fastest `classical` algorithm. All are picoseconds.
    """
    if not time:
        return False
    return time * 100 <= least * (100 + SLACK) and (classical is None or time <= classical)


def envelope(programs: Sequence[Times], classical: Sequence[int]) -> tuple[Stretch, ...]:
    """Return which of `programs`, by their times, serve which sizes, ascending, without gaps.

    None of the `classical` ones, given by their numbers, may be faster than what is chosen.
    """
    # From each size on, for each program that may serve it: changes and loss of the best choice
    # that begins with it, and who follows it there.
    costs: list[dict[int, tuple[int, int, int]]] = []
    for place in reversed(range(len(programs[0]) if programs else 0)):
        after = costs[-1] if costs else {}
        change = min(after, key=lambda number: (*after[number][:2], number), default=None)
        fastest = fastest_at(programs, place)
        least = None if fastest is None else programs[fastest][place]
        known = min((t for n in classical if (t := programs[n][place])), default=None)
        losses = {
            number: (time - least) * _PARTS // least
            for number, one in enumerate(programs)
            if least and (time := one[place]) and is_good_enough(time, least, known)
        }
        here = {}
        for number, loss in (losses or {NOBODY: 0}).items():
            best = (0, 0, number)
            if change is not None:
                best = (after[change][0] + 1, after[change][1], change)
            if number in after and after[number][:2] <= best[:2]:
                best = (*after[number][:2], number)
            here[number] = (best[0], best[1] + loss, best[2])
        costs.append(here)
    number = min(costs[-1], key=lambda one: (*costs[-1][one][:2], one)) if costs else NOBODY
    chosen = []
    for here in reversed(costs):
        chosen.append(number)
        number = here[number][2]
    stretches = []
    for program, group in groupby(range(len(chosen)), key=lambda place: chosen[place]):
        places = list(group)
        served_by = None if program == NOBODY else program
        stretches.append(Stretch(served_by, places[0], places[-1]))
    return tuple(stretches)


CLOSE = 16
"""Two programs change places within one part in so many of the size."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A program in the race, and the candidate that it is of."""

    outcome: Outcome
    played: Played

    @property
    def is_textbook(self) -> bool:
        """Whether it is a classical algorithm as ``taccl compare`` shows it."""
        return self.outcome.spec.is_classical and self.played.protocol == "Simple"


@dataclass(frozen=True, slots=True)
class Range:
    """Sizes from `low` to `high` bytes, both included, and the `program` that is written for them.

    It has the number `entry`; None: the runtime's own algorithm, which NCCL's model says is faster
    where sizes are `left` to it; else nothing runs here.
    """

    low: int
    high: int
    entry: int | None = None
    program: Program | None = None
    left: bool = False


@dataclass(frozen=True, eq=False)
class Chooser:
    """Chooses for one collective, of COLLECTIVES, on a machine of the run, at its sizes.

    All programs are `entries`, in the order of their candidates. NCCL's model knows `machine`;
    None: nothing is left to it. The last range goes up to `end` bytes, at least the last size. No
    algorithm beats `bounds`, in picoseconds, at every size; None: unknown; empty: at none. Where
    costs are `measured`, programs are charged those of the topology.
    """

    collective: str
    topology: Topology
    runtime: str
    sizes: tuple[int, ...]
    entries: tuple[Entry, ...]
    machine: Machine | None = None
    end: int = 0
    bounds: tuple[Time | None, ...] = ()
    measured: bool = False

    def fastest(self, place: int, *, textbook: bool = False) -> Entry | None:
        """Return the fastest program, or classical algorithm, at a size, of equals the first."""
        running = [
            (time, number)
            for number, entry in enumerate(self.entries)
            if (time := entry.played.times[place]) is not None
            and (entry.is_textbook or not textbook)
        ]
        return self.entries[min(running)[1]] if running else None

    @cached_property
    def ways(self) -> tuple[Way | None, ...]:
        """What NCCL would run at every size, by its own model; None: it has none."""
        if self.machine is None:
            return (None,) * len(self.sizes)
        return tuple(fastest(self.machine, self.collective, size) for size in self.sizes)

    def is_left(self, place: int) -> bool:
        """Tell whether NCCL's own algorithm is faster at a size.

        NCCL's times contain what its kernel takes to start, by protocol, and a replay's do not;
        so that is added to the replay's. What it expects below the bound, nothing can take here:
        its inputs are wrong, and nothing is left to it.
        """
        way = self.ways[place]
        if way is None or self.machine is None:
            return False
        if way.time < ((self.bounds[place] if self.bounds else None) or 0):
            return False
        known = choices(self.machine, self.collective, self.sizes[place])
        base = {one.protocol: one.base for one in known if one.algorithm == "Ring"}
        times = [
            time + base[entry.played.protocol]
            for entry in self.entries
            if (time := entry.played.times[place]) is not None
        ]
        return bool(times) and all(way.time < time for time in times)

    def choose(self) -> tuple[Range, ...]:
        """Return who serves which sizes, ascending and without gaps."""
        places = range(len(self.sizes))
        left = {place for place in places if self.is_left(place)}
        textbook = [number for number, entry in enumerate(self.entries) if entry.is_textbook]
        refused: set[int] = set()
        while True:
            times = [
                [
                    None if number in refused or place in left else entry.played.times[place]
                    for place in places
                ]
                for number, entry in enumerate(self.entries)
            ] or [[None] * len(self.sizes)]
            ranges = self._ranges(envelope(times, textbook), left)
            bad = {one.entry for one in ranges if one.entry is not None and self.refusals(one)}
            if not bad:
                return ranges
            refused |= bad

    def _ranges(self, stretches: Sequence[Stretch], left: set[int]) -> tuple[Range, ...]:
        end = max(self.end, self.sizes[-1])
        ends = [*self._ends(stretches), self._safe(stretches[-1].program, end)]
        found: list[Range] = []
        low = self.sizes[0]
        for stretch, high in zip(stretches, ends, strict=True):
            if stretch.program is None:
                found += self._unserved(stretch, low, high, left)
            else:
                program = replace(self._program(stretch.program), min_bytes=low, max_bytes=high)
                found.append(Range(low, high, stretch.program, program))
            low = high + 1
        if low <= end:
            found.append(Range(low, end))
        elif self.runtime in LOADED_BY and (last := found[-1]).program is not None:
            # One of the runtimes that load the file takes its last size for the first too large.
            wider = replace(last.program, max_bytes=end + 1)
            if largest_safe_size(wider, self.runtime, last.low, end + 1) > end:
                found[-1] = replace(last, program=wider)
        return tuple(found)

    def _safe(self, program: int | None, end: int) -> int:
        """Return the size up to which a program may serve the last range."""
        low = self.sizes[-1]
        if program is None or end == low:
            return end
        wider = replace(self._program(program), min_bytes=low, max_bytes=end)
        return max(low, largest_safe_size(wider, self.runtime, low, end))

    def _unserved(self, stretch: Stretch, low: int, high: int, left: set[int]) -> Iterator[Range]:
        """Yield ranges of one kind each: left to NCCL, or where nothing runs."""
        place = stretch.first
        while place <= stretch.last:
            kind, first = place in left, place
            while place <= stretch.last and (place in left) == kind:
                place += 1
            end = high if place > stretch.last else self.sizes[place] - 1
            yield Range(low if first == stretch.first else self.sizes[first], end, left=kind)

    def _ends(self, stretches: Sequence[Stretch]) -> Iterator[int]:
        """Yield the last size of each stretch but the last."""
        for one, other in pairwise(stretches):
            low, high = self.sizes[one.last], self.sizes[other.first]
            if one.program is None:
                yield high - 1
                continue
            safe = max(low, self.entries[one.program].played.safe)
            if other.program is None:
                yield min(high - 1, safe)
            else:
                yield min(self._crossing(one.program, other.program, low, high) - 1, safe)

    def _crossing(self, one: int, other: int, low: int, high: int) -> int:
        """Return about the least size from which on the second of two programs is not slower."""
        step = lcm(self.entries[one].played.divisor, self.entries[other].played.divisor)
        while (high - low) * CLOSE > low:
            middle = isqrt(low * high) // step * step
            if not low < middle < high:
                break
            programs = (self._program(number) for number in (one, other))
            first, second = (self._replayed(program, middle) for program in programs)
            if first is None or (second is not None and second <= first):
                high = middle
            else:
                low = middle
        return high

    def _program(self, number: int) -> Program:
        return program_of(self.entries[number].played, self.runtime)

    def _replayed(self, program: Program, size: int) -> Time | None:
        model = replace(model_of(self.runtime), measured=self.measured)
        (found,) = traces(program, self.topology, (size,), model, protocol_costs=not self.measured)
        return found.time

    def refusals(self, one: Range) -> list[Finding | str]:
        """Return all that is wrong with the file of a range.

        The file is read as the runtime reads it: its limits, the data and the races of every
        claimed mode, and deadlocks at both ends; then the ends are replayed.
        """
        if one.program is None or one.entry is None:
            return []
        content = write_xml(one.program, self.runtime).encode()
        verdict = judge_text(content, self.runtime, one.low)
        found: list[Finding | str] = []
        if verdict.worst is not None:
            found += [finding for finding in verdict.findings if finding.severity is verdict.worst]
        if self.runtime in LOADED_BY and self.collective == "reducescatter":
            second = judge_text(write_xml(one.program, "msccl").encode(), "msccl", one.low)
            found += [] if second.worst is None else second.findings
        found += [
            f"does not run at {size} bytes"
            for size in self.verified(one)
            if self._replayed(one.program, size) is None
        ]
        return found

    def verified(self, one: Range) -> tuple[int, ...]:
        """Return the first and the last size of a range that its program takes, if any."""
        divisor = 1 if one.entry is None else self.entries[one.entry].played.divisor
        ends = (-(-one.low // divisor) * divisor, one.high // divisor * divisor)
        return tuple(dict.fromkeys(size for size in ends if one.low <= size <= one.high))

"""What is chosen for one collective: ranges of sizes, and the program of each.

The envelope is taken at the sizes of the run. Where one program follows another, the size at
which the second becomes the faster one is looked for between their sizes, but no program is given
sizes at which it could deadlock. What is chosen is judged as the file that it will be, at both
ends of its range; a program that a judge refuses is out, and the envelope is taken again.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from math import isqrt, lcm

from taccl.msccl.findings import Finding
from taccl.msccl.program import Program
from taccl.msccl.runtimes import LOADED_BY
from taccl.msccl.sizes import largest_safe_size
from taccl.msccl.verdict import judge_text
from taccl.msccl.xml import write_xml
from taccl.sim.cost import model_of
from taccl.sim.nccl import Choice as Way
from taccl.sim.nccl import Machine, choices, fastest
from taccl.sim.timing import traces
from taccl.topology import Topology
from taccl.tuning.candidate import Outcome, Played, program_of
from taccl.tuning.envelope import Stretch, envelope
from taccl.tuning.run import is_classical
from taccl.units import Time

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
        return is_classical(self.outcome) and self.played.protocol == "Simple"


@dataclass(frozen=True, slots=True)
class Range:
    """Sizes from ``low`` to ``high``, both included, and who serves them.

    Parameters
    ----------
    low, high
        Bytes.
    entry
        Number of the program; None: the runtime's own algorithm.
    program
        What is written for it.
    left
        Whether NCCL's model says that its own algorithm is faster; else nothing runs here.
    """

    low: int
    high: int
    entry: int | None = None
    program: Program | None = None
    left: bool = False


@dataclass(frozen=True, eq=False)
class Chooser:
    """Chooses for one collective.

    Parameters
    ----------
    collective
        A name of COLLECTIVES.
    topology, runtime, sizes
        As of the run.
    entries
        All programs, in the order of their candidates.
    machine
        What NCCL's model knows; None: nothing is left to it.
    end
        Bytes at which the last range ends; at least the last size.
    bounds
        Picoseconds that no algorithm can beat, at every size; None: unknown; empty: at none.
    """

    collective: str
    topology: Topology
    runtime: str
    sizes: tuple[int, ...]
    entries: tuple[Entry, ...]
    machine: Machine | None = None
    end: int = 0
    bounds: tuple[Time | None, ...] = ()

    @cached_property
    def least(self) -> tuple[Time | None, ...]:
        """The time of the fastest program at every size."""
        return tuple(self._least(place, lambda _entry: True) for place in range(len(self.sizes)))

    @cached_property
    def textbook(self) -> tuple[Time | None, ...]:
        """The time of the fastest classical algorithm at every size."""
        return tuple(
            self._least(place, lambda entry: entry.is_textbook) for place in range(len(self.sizes))
        )

    def _least(self, place: int, wanted: Callable[[Entry], bool]) -> Time | None:
        times = (entry.played.times[place] for entry in self.entries if wanted(entry))
        return min((time for time in times if time is not None), default=None)

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
            first, second = (self._time(number, middle) for number in (one, other))
            if first is None or (second is not None and second <= first):
                high = middle
            else:
                low = middle
        return high

    def _time(self, number: int, size: int) -> Time | None:
        return self._replayed(self._program(number), size)

    def _program(self, number: int) -> Program:
        return _unpacked(self.entries[number].played, self.runtime)

    def _replayed(self, program: Program, size: int) -> Time | None:
        (found,) = traces(
            program, self.topology, (size,), model_of(self.runtime), protocol_costs=True
        )
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


@lru_cache(maxsize=64)
def _unpacked(played: Played, runtime: str) -> Program:
    return program_of(played, runtime)

"""Which candidates there are, and which of them is next.

First come the classical algorithms, made for the middle size: they are cheap, and nothing that is
written may be slower than them. Then the sizes of every collective fall into cells, and each
search goes to the cell with the size at which most of the time could be saved, as far as bounds
tell, for that size; the more searches a cell has had, or a size in it, the less that counts, and
less again for each search in a row that saved nothing worth it: where a bound is far away, it may
be the bound. Within a cell come in turn the engine that finds most at two sizes, the best classical
algorithm made for a size, chunk counts, other engines and sketches, then the same again with
another seed, more effort and more instances.

What is next follows from the results that are handed in, in that order, and from nothing else.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import count

from taccl.collectives import chunk_counts
from taccl.synth.templates.classical import CLASSICAL
from taccl.tuning.candidate import Outcome, Spec
from taccl.units import Time

CELLS = 6
"""Parts of the range of sizes, at most."""

TEXTBOOK = "textbook"
"""Stands for the classical algorithm that is the fastest at the size."""

CHUNKS = 4
"""Chunk counts of a collective's series that are tried."""

LARGE: Mapping[int, tuple[int, ...]] = {1: (0,), 2: (1, 0), 3: (1, 0, 2), 4: (3, 2, 0, 1)}
"""Their order where messages take longer than their latency: more chunks mostly give more."""

FINER = frozenset({"allgather", "reducescatter"})
"""Collectives with one more count, where chunks are longer than what the runtime sends at once."""

SINGLE = (2, 4)
"""Of these, chunks are tried one to a message where the runtime would cut longer messages anyway:
what is cut does not keep the order of its schedule."""

WORTH = Fraction(1, 100)
"""Of the time at some size of its cell: what a search has to save to have been worth it."""

EXACT_SENDS = 64
"""Chunks of all ranks times ranks up to which a problem is small enough for engine exact."""

POINT_TO_POINT = frozenset({"alltoall"})
"""Collectives whose chunks go from one rank to one other: engine flow is for these."""

COUNTED: Mapping[str, float] = {"flow": 600.0, "exact": 10.0}
"""Counted work of a search by engine, in the place of seconds; else COUNTED_ELSE.

A linear program has a limit in seconds even then, and must never reach it.
"""

COUNTED_ELSE = 8.0

BoundsAt = Mapping[str, Sequence[Time | None]]
"""What no algorithm can beat, by collective, at every size."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run searches.

    Parameters
    ----------
    collectives
        Names, in the order given.
    sizes
        Bytes, ascending.
    ranks
        Of the machine.
    bounds
        Of each collective.
    sketches
        How many there are.
    effort
        Seconds for a search; None: work is counted.
    seed
        Of the first searches.
    servers
        Of the machine.
    message_bytes
        The most that the runtime sends at once; 0: any.
    """

    collectives: tuple[str, ...]
    sizes: tuple[int, ...]
    ranks: int
    bounds: BoundsAt
    sketches: int = 0
    effort: float | None = None
    seed: int = 0
    servers: int = 1
    message_bytes: int = 0

    def baseline(self) -> tuple[Spec, ...]:
        """Return the classical algorithms for the middle size, the collectives in turn."""
        size = self.sizes[len(self.sizes) // 2]
        return tuple(
            Spec(collective, engine, size)
            for engine in CLASSICAL
            for collective in self.collectives
        )

    def cells(self) -> tuple["Cell", ...]:
        """Return the cells, those of one collective after those of another."""
        total = min(CELLS, len(self.sizes))
        cuts = [number * len(self.sizes) // total for number in range(total + 1)]
        return tuple(
            Cell(collective, range(cuts[number], cuts[number + 1]))
            for collective in self.collectives
            for number in range(total)
        )

    def turns(self, cell: "Cell") -> Iterator[Spec]:
        """Yield the searches of a cell without end, its size still to be set."""
        chunks = self._chunks(cell)
        for level in count():
            for sketch in (None, *range(self.sketches)):
                for number in chunks:
                    engines = list(self._engines(cell.collective, number, sketch, level))
                    if (level, number) == (0, chunks[0]) and self._messages(cell, number) <= 1:
                        engines[:0] = engines[:1]  # at another size, which may differ
                    for engine in engines:
                        spec = Spec(
                            cell.collective, engine, 0, number, sketch,
                            instances=(0, 2, 1, 4)[level % 4], effort=self._effort(engine, level),
                            seed=self.seed + level,
                        )  # fmt: skip
                        if engine == "guided" and self._is_single(cell, number):
                            yield replace(spec, batch=False)
                        yield spec

    def _chunks(self, cell: "Cell") -> tuple[int, ...]:
        """Return the chunk counts to be tried, in order."""
        chunks = chunk_counts(cell.collective, self.servers)[:CHUNKS]
        if cell.places.start < len(self.sizes) // 2:
            return chunks
        first, *others = (chunks[place] for place in LARGE[len(chunks)])
        most = max(chunks)
        cut = cell.collective in FINER and self._messages(cell, most) > 1
        return first, *((2 * most,) if cut else ()), *others

    def _is_single(self, cell: "Cell", chunks: int) -> bool:
        """Tell whether chunks are also tried one to a message."""
        one_to_one = cell.collective in POINT_TO_POINT
        return not one_to_one and chunks in SINGLE and 2 * self._messages(cell, chunks) >= 1

    def _messages(self, cell: "Cell", chunks: int) -> Fraction:
        """Return how many of the runtime's longest messages a chunk is at a cell's largest size.

        0 where these are of any length.
        """
        if not self.message_bytes:
            return Fraction(0)
        return Fraction(self.sizes[cell.places[-1]], self.ranks * chunks * self.message_bytes)

    def _engines(
        self, collective: str, chunks: int, sketch: int | None, level: int
    ) -> Iterator[str]:
        yield "guided"
        if chunks == 1 and sketch is None:
            yield TEXTBOOK
        if collective in POINT_TO_POINT:
            yield "flow"
        if level or sketch is not None or collective in POINT_TO_POINT:
            # Without a sketch engine guided finds more of what goes to several ranks.
            yield "taccl"
        if self.ranks**2 * chunks <= EXACT_SENDS:
            yield "exact"

    def _effort(self, engine: str, level: int) -> float:
        most = 1 << min(level, 6)
        if self.effort is None:
            return COUNTED.get(engine, COUNTED_ELSE) * most
        return self.effort * most


@dataclass(frozen=True, slots=True)
class Cell:
    """Neighbouring sizes of a collective.

    Parameters
    ----------
    collective
        A name of COLLECTIVES.
    places
        Of the sizes.
    """

    collective: str
    places: range


@dataclass(eq=False)
class Picker:
    """Says which search is next.

    Parameters
    ----------
    plan
        What is searched.
    """

    plan: Plan
    best: dict[tuple[str, int], Time] = field(default_factory=dict)
    textbook: dict[tuple[str, int], tuple[Time, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Begin with every cell."""
        self._cells = self.plan.cells()
        self._turns = [self.plan.turns(cell) for cell in self._cells]
        self._tries = [0] * len(self._cells)
        self._in_vain = [0] * len(self._cells)
        self._made_for: Counter[tuple[str, int]] = Counter()
        self._seen = set(self.plan.baseline())
        self._made: list[Counter[Spec]] = [Counter() for _ in self._cells]

    def learn(self, outcome: Outcome) -> None:
        """Take note of a result."""
        before = dict(self.best)
        for played in outcome.played:
            for place, time in enumerate(played.times):
                key = (outcome.spec.collective, place)
                if time is None:
                    continue
                self.best[key] = min(time, self.best.get(key, time))
                if outcome.spec.engine in CLASSICAL:
                    own = (time, outcome.spec.engine)
                    self.textbook[key] = min(own, self.textbook.get(key, own))
        if outcome.spec.engine not in CLASSICAL:
            self._note_worth(outcome.spec, before)

    def _note_worth(self, spec: Spec, before: Mapping[tuple[str, int], Time]) -> None:
        """Note whether a search has saved something in its cell."""
        number = self._cell_of(spec)
        keys = [(spec.collective, place) for place in self._cells[number].places]
        worth = any(
            key in self.best and (key not in before or self.best[key] < before[key] * (1 - WORTH))
            for key in keys
        )
        self._in_vain[number] = 0 if worth else self._in_vain[number] + 1

    def _cell_of(self, spec: Spec) -> int:
        """Return the number of the cell with a search's size."""
        place = self.plan.sizes.index(spec.size)
        return next(
            number
            for number, cell in enumerate(self._cells)
            if cell.collective == spec.collective and place in cell.places
        )

    def resume(self, spec: Spec) -> None:
        """Take note of a search that was made by an earlier run; others of its are still to come.

        It is left out when its turn comes, at whatever size that would be, and whatever effort was
        left for it.
        """
        number = self._cell_of(spec)
        self._seen.add(spec)
        self._tries[number] += 1
        self._made_for[spec.collective, self.plan.sizes.index(spec.size)] += 1
        self._made[number][_turn(spec)] += 1

    def gap(self, collective: str, place: int) -> Fraction:
        """Return time / bound - 1 at a size; where either is unknown, 1."""
        bound, best = self.plan.bounds[collective][place], self.best.get((collective, place))
        return Fraction(best, bound) - 1 if best and bound else Fraction(1)

    def next(self) -> Spec | None:
        """Return the next search; None when every size is at its bound."""
        most, chosen = Fraction(0), None
        for number, cell in enumerate(self._cells):
            gap = max(self.gap(cell.collective, place) for place in cell.places)
            weight = gap / (1 + gap) / (1 + self._tries[number])
            weight /= (1 + self._in_vain[number]) ** 2
            if weight > most:
                most, chosen = weight, number
        if chosen is None:
            return None
        self._tries[chosen] += 1
        cell = self._cells[chosen]
        place = max(cell.places, key=lambda place: (self._worth(cell.collective, place), -place))
        while True:
            turn = next(self._turns[chosen])
            if self._made[chosen][_turn(turn)]:
                self._made[chosen][_turn(turn)] -= 1
                continue
            spec = self._filled(turn, place)
            if spec is not None and spec not in self._seen:
                self._seen.add(spec)
                self._made_for[spec.collective, place] += 1
                return spec

    def _worth(self, collective: str, place: int) -> Fraction:
        """Return what a search for a size may save, less where there were some for it."""
        gap = self.gap(collective, place)
        return gap / (1 + gap) / (1 + self._made_for[collective, place])

    def _filled(self, spec: Spec, place: int) -> Spec | None:
        """Return a search with its size; None: there is no classical algorithm to be made."""
        if spec.engine == TEXTBOOK:
            known = self.textbook.get((spec.collective, place))
            if known is None:
                return None
            spec = replace(spec, engine=known[1], effort=0.0, seed=0)
        return replace(spec, size=self.plan.sizes[place])


def _turn(spec: Spec) -> Spec:
    """Return what says which turn of its cell a search is."""
    if spec.engine in CLASSICAL or spec.engine == TEXTBOOK:
        return replace(spec, engine=TEXTBOOK, size=0, effort=0.0, seed=0)
    return replace(spec, size=0, effort=0.0)

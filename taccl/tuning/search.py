"""The search: which candidates there are, which of them is next, and running them.

First come the classical algorithms, made for the middle size: they are cheap, and nothing that is
written may be slower than them. Then the sizes of every collective fall into cells, and each
search goes to the cell with the size at which most of the time could be saved, as far as bounds
tell, for that size; the more searches a cell has had, or a size in it, the less that counts, and
less again for each search in a row that saved nothing worth it: where a bound is far away, it may
be the bound. Within a cell come in turn the engine that finds most at two sizes, the best classical
algorithm made for a size, chunk counts, other engines and sketches, then the same again with
another seed, more effort and more instances. What is next follows from the results that are handed
in, in that order, and from nothing else.

Candidates run until the budget is used up. Counted, candidate k is chosen knowing the results of
all before k - LAG, and no others: which candidates there are does not depend on who runs them, how
fast, or how often the run was interrupted. Timed, each is chosen knowing all results there are. A
candidate whose worker was lost runs once more, alone; if it is lost again, it has failed.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import count
from threading import Event

from taccl.collectives import COLLECTIVES
from taccl.errors import InputError
from taccl.synth.templates.classical import CLASSICAL
from taccl.timing.deadline import Deadline
from taccl.tuning.candidate import (
    OTHER_VERSION,
    Outcome,
    Setting,
    Spec,
    digest_of,
    key_of,
    read_outcome,
    run_task,
)
from taccl.tuning.directory import Journal
from taccl.tuning.executors import Work, Workshop
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

LAG = 16
"""Results that a counted choice does without, so that as many workers are never idle for it."""

LOOK = 0.25
"""Seconds between two looks at the clock and at whether to stop."""

OVERDUE, OVERDUE_TIMES = 120.0, 20.0
"""Seconds, and times its effort, after both of which a timed search on this machine is ended."""

LEAST = 0.5
"""Seconds of effort below which a timed search is not begun."""

BoundsAt = Mapping[str, Sequence[Time | None]]
"""What no algorithm can beat, by collective, at every size."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run searches: collectives, in the order given, at `sizes` in bytes, ascending.

    The machine has `ranks` in `servers`, and `bounds` for each collective; there are so many
    `sketches`. A search takes `effort` seconds, None: work is counted, the first ones from `seed`
    on; `message_bytes` is the most that the runtime sends at once, 0: any.
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
                        counted = COUNTED.get(engine, COUNTED_ELSE)
                        effort = counted if self.effort is None else self.effort
                        spec = Spec(
                            cell.collective, engine, 0, number, sketch,
                            instances=(0, 2, 1, 4)[level % 4], effort=effort * (1 << min(level, 6)),
                            seed=self.seed + level,
                        )  # fmt: skip
                        if engine == "guided" and self._is_single(cell, number):
                            yield replace(spec, batch=False)
                        yield spec

    def _chunks(self, cell: "Cell") -> tuple[int, ...]:
        """Return the chunk counts to be tried, in order."""
        kind = COLLECTIVES[cell.collective]
        # Inside a server trees alone gain by eight chunks a rank, and few of them.
        inside = self.servers == 1 and not kind.has_root
        chunks = kind.chunk_counts[: CHUNKS - 1 if inside else CHUNKS]
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


@dataclass(frozen=True, slots=True)
class Cell:
    """Neighbouring sizes of a collective, by their places."""

    collective: str
    places: range


@dataclass(eq=False)
class Picker:
    """Says which search of a plan is next."""

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
        """Take note of a result, and whether it has saved something in its cell."""
        before = dict(self.best)
        for played in outcome.played:
            for place, time in enumerate(played.times):
                key = (outcome.spec.collective, place)
                if time is None:
                    continue
                self.best[key] = min(time, self.best.get(key, time))
                if outcome.spec.is_classical:
                    own = (time, outcome.spec.engine)
                    self.textbook[key] = min(own, self.textbook.get(key, own))
        spec = outcome.spec
        if spec.is_classical:
            return
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
            spec = replace(turn, size=self.plan.sizes[place])
            if turn.engine == TEXTBOOK:
                known = self.textbook.get((turn.collective, place))
                if known is None:  # there is no classical algorithm to be made
                    continue
                spec = replace(spec, engine=known[1], effort=0.0, seed=0)
            if spec not in self._seen:
                self._seen.add(spec)
                self._made_for[spec.collective, place] += 1
                return spec

    def _worth(self, collective: str, place: int) -> Fraction:
        """Return what a search for a size may save, less where there were some for it."""
        gap = self.gap(collective, place)
        return gap / (1 + gap) / (1 + self._made_for[collective, place])


def _turn(spec: Spec) -> Spec:
    """Return what says which turn of its cell a search is."""
    if spec.engine in CLASSICAL or spec.engine == TEXTBOOK:
        return replace(spec, engine=TEXTBOOK, size=0, effort=0.0, seed=0)
    return replace(spec, size=0, effort=0.0)


@dataclass(frozen=True, slots=True)
class Budget:
    """How much to search: so many searches besides the classical algorithms, or seconds.

    The `seconds` are of wall clock, those of runs that were interrupted included.
    """

    candidates: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run is: candidates `done` and `running`, and in `total`; None when time decides.

    Seconds `spent` so far, and `left` of the budget (counted: an estimate; None: unknown). The
    `outcome` has just come in, None: nothing has; `known` tells whether it was in the journal. The
    `picker` knows what is best where.
    """

    done: int
    total: int | None
    running: int
    spent: float
    left: float | None
    outcome: Outcome | None
    known: bool
    picker: Picker


@dataclass(eq=False)
class Run:
    """One run: what is searched, `setting` and `plan`, and how much, `budget`.

    The `workshop` runs it, the `journal` remembers; `stop` is set to end the search with what there
    is, and `watch` called with progress. From a task to its result leads `work`; the time counts
    since the `clock` began.
    """

    setting: Setting
    plan: Plan
    budget: Budget
    workshop: Workshop
    journal: Journal
    stop: Event = field(default_factory=Event)
    watch: Callable[[Progress], None] = lambda _progress: None
    work: Work = run_task
    clock: Deadline = field(default_factory=Deadline)

    def __post_init__(self) -> None:
        """Begin with nothing."""
        self._key = run_key(self.setting, self.plan, self.budget)
        self.outcomes: dict[int, Outcome] = {}
        self._picker = Picker(self.plan)
        # None: a search of an earlier run that has no result; the picker chooses it anew.
        self._specs: list[Spec | None] = list(self.plan.baseline())
        self._baseline = len(self._specs)
        self._running: dict[Future[str], int] = {}
        self._started: dict[int, Deadline] = {}
        self._alone: list[int] = []
        self._lost: set[int] = set()
        self._learned = 0
        self._before = 0.0

    @property
    def spent(self) -> float:
        """Seconds, those of interrupted runs included."""
        return self._before + self.clock.spent

    def search(self) -> list[Outcome]:
        """Run the search and return its results in the order in which they were chosen."""
        try:
            done = self._resume()
            limit = self.budget.seconds
            while not done and (limit is None or self.spent < limit) and not self.stop.is_set():
                before = len(self.outcomes)
                self._begin()
                if self._running:
                    self._collect()
                elif not self._alone and len(self.outcomes) == before:
                    break
        finally:
            try:
                for future in self._running:
                    future.cancel()
            finally:
                self.workshop.close(kill=True)
        if not self.stop.is_set() and self._has_programs():
            self.journal.finish(self._key, self.spent)
        return [self.outcomes[place] for place in sorted(self.outcomes)]

    def _has_programs(self) -> bool:
        return any(outcome.played for outcome in self.outcomes.values())

    def _spec(self, place: int) -> Spec:
        """Return a candidate that was chosen in this run, or is finished."""
        spec = self._specs[place]
        if spec is None:
            raise IndexError(f"no candidate at {place}")
        return spec

    def _resume(self) -> bool:
        """Take up what an interrupted timed run knew; tell whether it was over."""
        if self.budget.seconds is None:
            return False
        self._before, done = self.journal.state(self._key)
        for place, text in self.journal.members(self._key):
            outcome = read_outcome(text)
            self._specs += [None] * (place + 1 - len(self._specs))
            self._specs[place] = outcome.spec
            self.outcomes[place] = outcome
            self._picker.learn(outcome)
            if place >= self._baseline:
                self._picker.resume(outcome.spec)
        if not self._has_programs():
            # What was given to a run that found nothing says nothing of this one.
            self._before, done = 0.0, False
        return done

    def _begin(self) -> None:
        """Start candidates while there is somebody to run them."""
        if self._alone:
            if not self._running:
                self._start(self._alone.pop(0))
            return
        for place in self._waiting():
            self._start(place)
            if len(self._running) >= self.workshop.slots or self._alone:
                return

    def _waiting(self) -> Iterator[int]:
        """Yield the places of candidates to be started, chosen one by one."""
        if len(self._running) >= self.workshop.slots:
            return
        busy = {*self._running.values(), *self._alone}
        for place in range(len(self._specs)):
            if self._specs[place] and place not in self.outcomes and place not in busy:
                yield place
        while (spec := self._chosen()) is not None:
            self._specs.append(spec)
            yield len(self._specs) - 1

    def _chosen(self) -> Spec | None:
        """Return the next search; None: there is none, or not yet."""
        place = len(self._specs)
        if self.budget.candidates is not None:
            if place >= self._baseline + self.budget.candidates:
                return None
            known = place - LAG
            if any(number not in self.outcomes for number in range(self._learned, known)):
                return None
            for number in range(self._learned, known):
                self._picker.learn(self.outcomes[number])
            self._learned = max(self._learned, known)
            return self._picker.next()
        spec, left = self._picker.next(), (self.budget.seconds or 0.0) - self.spent
        if spec is None or left / 2 < LEAST:
            return None
        return spec if spec.effort <= left / 2 else replace(spec, effort=round(left / 2, 1))

    def _start(self, place: int) -> None:
        task = self.setting.task(self._spec(place))
        known = self.journal.find(key_of(task))
        if known is not None:
            self._finish(place, read_outcome(known), known=True)
            return
        try:
            future = self.workshop.submit(self.work, task)
        except RuntimeError as error:
            if not self.workshop.lost(error):
                raise
            self._lose([place], str(error))
            return
        self._running[future] = place
        self._started[place] = Deadline()

    def _collect(self) -> None:
        """Wait for a result, or for a while, and take in what there is."""
        timeout = LOOK
        if self.budget.seconds is not None:
            timeout = max(0.0, min(LOOK, self.budget.seconds - self.spent))
        done, _ = wait(self._running, timeout, FIRST_COMPLETED)
        lost: list[int] = []
        why = ""
        for future in sorted(done, key=lambda one: self._running[one]):
            place = self._running.pop(future)
            error = None if future.cancelled() else future.exception()
            if future.cancelled() or (error is not None and self.workshop.lost(error)):
                lost.append(place)
                why = str(error or "cancelled")
            elif error is not None:
                problem = f"{type(error).__name__}: {error}"[:300]
                self._fail(place, problem, passing=isinstance(error, MemoryError))
            else:
                self._finish(place, read_outcome(future.result()))
        if lost:
            self._lose(lost, why)
        elif not done:
            self._give_up()
            self._tell(None)

    def _give_up(self) -> None:
        """End a timed search that doesn't: a solver hangs. What ran beside it starts again."""
        if self.budget.seconds is None or not self.workshop.shares_fate:
            return
        for place in sorted(self._running.values()):
            most = max(OVERDUE, OVERDUE_TIMES * self._spec(place).effort)
            if self._started[place].spent > most:
                self._running.clear()
                self.workshop.renew()
                self._fail(place, f"took more than {most:g} seconds", passing=True)
                return

    def _lose(self, places: list[int], why: str) -> None:
        """Put lost candidates aside, with those that ran beside them, to run alone."""
        self.workshop.renew()
        gone = sorted({*places, *(self._running.values() if self.workshop.shares_fate else ())})
        if len(places) == 1 and places[0] in self._lost:
            self._fail(places[0], f"its worker was lost twice: {why}"[:300], passing=True)
            gone.remove(places[0])
        if self.workshop.shares_fate:
            self._running.clear()
        self._lost.update(gone)
        self._alone += gone

    def _fail(self, place: int, reason: str, *, passing: bool) -> None:
        """Take in that there is no result."""
        spec = self._spec(place)
        self._finish(place, Outcome(spec, reason=reason, failed=True, passing=passing))

    def _finish(self, place: int, outcome: Outcome, *, known: bool = False) -> None:
        """Take in a result; raise when a worker runs other code than this process."""
        if outcome.reason == OTHER_VERSION:
            raise InputError(OTHER_VERSION, fix="install the same one everywhere, and start again")
        self.outcomes[place] = outcome
        if self.budget.candidates is None:
            self._picker.learn(outcome)
        # What may end otherwise is not kept: a later run tries it again.
        if not outcome.passing:
            key = key_of(self.setting.task(self._spec(place)))
            if not known:
                self.journal.keep(key, outcome.text())
            if self.budget.seconds is not None:
                self.journal.note(self._key, place, key, self.spent)
        self._tell(outcome, known=known)

    def _tell(self, outcome: Outcome | None, *, known: bool = False) -> None:
        done, total, left = len(self.outcomes), None, None
        if self.budget.candidates is not None:
            total = self._baseline + self.budget.candidates
            left = self.spent / done * (total - done) if done else None
        elif self.budget.seconds is not None:
            left = max(0.0, self.budget.seconds - self.spent)
        self.watch(Progress(
            done, total, len(self._running), self.spent, left, outcome, known, self._picker
        ))  # fmt: skip


def run_key(setting: Setting, plan: Plan, budget: Budget) -> str:
    """Return the hash of all that a run depends on: its `setting`, `plan` and `budget`."""
    return digest_of([
        setting.task(plan.baseline()[0]), [machine.digest for machine in setting.machines],
        setting.names, plan.collectives, plan.effort, plan.seed, budget.candidates, budget.seconds,
    ])  # fmt: skip

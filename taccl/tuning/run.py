"""The run of a search: candidates out, results in, until the budget is used up.

Counted, candidate k is chosen knowing the results of all before k - LAG, and no others: which
candidates there are does not depend on who runs them, how fast, or how often the run was
interrupted. Timed, each is chosen knowing all results there are.

A candidate whose worker was lost runs once more, alone; if it is lost again, it has failed.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from functools import cached_property
from threading import Event

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
from taccl.tuning.search import Picker, Plan

LAG = 16
"""Results that a counted choice does without, so that as many workers are never idle for it."""

LOOK = 0.25
"""Seconds between two looks at the clock and at whether to stop."""

OVERDUE, OVERDUE_TIMES = 120.0, 20.0
"""Seconds, and times its effort, after both of which a timed search on this machine is ended."""

LEAST = 0.5
"""Seconds of effort below which a timed search is not begun."""


@dataclass(frozen=True, slots=True)
class Budget:
    """How much to search: one of the two.

    Parameters
    ----------
    candidates
        Searches, besides the classical algorithms.
    seconds
        Of wall clock, for all, whatever was spent by runs that were interrupted included.
    """

    candidates: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run is.

    Parameters
    ----------
    done, total
        Candidates; the total is None when time decides.
    running
        Candidates that are being worked on.
    spent, left
        Seconds so far, and the budget's rest (counted: an estimate; None: unknown).
    outcome
        What has just come in; None: nothing.
    known
        Whether it was in the journal.
    picker
        What is best where.
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
    """One run.

    Parameters
    ----------
    setting, plan, budget
        What is searched, and how much.
    workshop
        Who runs it.
    journal
        What is remembered; None: nothing.
    stop
        Set to end the search with what there is.
    watch
        Called with progress.
    work
        From a task to its result.
    clock
        Since when the time counts.
    """

    setting: Setting
    plan: Plan
    budget: Budget
    workshop: Workshop
    journal: Journal | None = None
    stop: Event = field(default_factory=Event)
    watch: Callable[[Progress], None] = lambda _progress: None
    work: Work = run_task
    clock: Deadline = field(default_factory=Deadline)

    def __post_init__(self) -> None:
        """Begin with nothing."""
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

    @cached_property
    def key(self) -> str:
        """What the run is called in the journal."""
        return run_key(self.setting, self.plan, self.budget)

    @property
    def spent(self) -> float:
        """Seconds, those of interrupted runs included."""
        return self._before + self.clock.spent

    def search(self) -> list[Outcome]:
        """Run the search and return its results in the order in which they were chosen."""
        try:
            done = self._resume()
            while not done and self._goes_on():
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
        if self.journal is not None and not self.stop.is_set() and self._has_programs():
            self.journal.finish(self.key, self.spent)
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
        if self.journal is None or self.budget.seconds is None:
            return False
        self._before, done = self.journal.state(self.key)
        for place, text in self.journal.members(self.key):
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

    def _goes_on(self) -> bool:
        if self.stop.is_set():
            return False
        return self.budget.seconds is None or self.spent < self.budget.seconds

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
        known = self.journal.find(key_of(task)) if self.journal is not None else None
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
                passing = isinstance(error, MemoryError)
                self._fail(place, problem, passing=passing)
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
        """Take in a result.

        Raises
        ------
        InputError
            When a worker runs other code than this process.
        """
        if outcome.reason == OTHER_VERSION:
            raise InputError(OTHER_VERSION, fix="install the same one everywhere, and start again")
        self.outcomes[place] = outcome
        if self.budget.candidates is None:
            self._picker.learn(outcome)
        # What may end otherwise is not kept: a later run tries it again.
        if self.journal is not None and not outcome.passing:
            key = key_of(self.setting.task(self._spec(place)))
            if not known:
                self.journal.keep(key, outcome.text())
            if self.budget.seconds is not None:
                self.journal.note(self.key, place, key, self.spent)
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
    """Return the hash of all that the results of a run depend on.

    Parameters
    ----------
    setting
        Machines, runtime and tasks.
    plan
        The candidates.
    budget
        Candidates and seconds.
    """
    return digest_of([
        setting.task(plan.baseline()[0]), [machine.digest for machine in setting.machines],
        setting.names, plan.collectives, plan.effort, plan.seed, budget.candidates, budget.seconds,
    ])  # fmt: skip


def is_classical(outcome: Outcome) -> bool:
    """Tell whether a result is that of a classical algorithm."""
    return outcome.spec.engine in CLASSICAL

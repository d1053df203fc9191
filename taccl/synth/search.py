"""The first answer: classical algorithms in the textbook's order, before anything is proved.

A search begins with bounds, and a large machine can use up a short time limit with them. So that
there is something to write whenever the time ends, what costs least to make comes first.

An engine along a series of chunk counts: more and more chunks, as long as they pay.

Whatever runs an engine, alone or as one of several, runs it this way, so that one among several
does with its share of the time what it would do with as much time alone.

Engine ``auto``: every algorithm and engine in one time budget, the best by the given score.

The classical algorithms come first; then every engine that searches goes along the series of chunk
counts with a quarter of the time, just as it would alone with as much. So the answer
is as good as that of any classical algorithm, and of any engine alone within a quarter of the
time, but where a gap below ``ENOUGH`` to the bound ended the search, a problem is too large for an
engine's share (``LARGE``, ``HUGE``, ``COUNTED``), or the clock gave one less luck than alone. The
engines take turns, as each may use all cores. The time that they leave goes to the best of them,
from another seed.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from types import MappingProxyType

from taccl.errors import NoAlgorithmError, NoScheduleError, OutOfTimeError
from taccl.model.problem import Candidate, Options, Problem, Result, Status
from taccl.model.schedule import Schedule
from taccl.synth.exact.engine import exact
from taccl.synth.exact.solve import MAX_INTERVALS
from taccl.synth.flow.engine import flow
from taccl.synth.guided.engine import guided
from taccl.synth.staged.engine import staged
from taccl.synth.templates.classical import CLASSICAL, run_classical, textbook_schedule
from taccl.topology.symmetry import make_group
from taccl.units import Time

Engine = Callable[[Problem, Options], Result]

RESERVE = 0.15
"""Share of the time limit kept for lowering, judging and writing."""


@dataclass(frozen=True, eq=False)
class Series:
    """One collective at one size, cut into different numbers of chunks.

    Parameters
    ----------
    counts
        Chunks for each rank, in the order in which they are tried.
    task
        Returns the problem of a count, and the options for so many seconds.
    floor
        Picoseconds that nothing can be below, whatever the count.
    long
        Whether the collective gains by many chunks: its first count gets less of the time.
    overhead
        Returns the seconds that a score takes.
    """

    counts: tuple[int, ...]
    task: Callable[[int, float], tuple[Problem, Options]]
    floor: Time = 0
    long: bool = False
    overhead: Callable[[], float] = lambda: 0.0

    def pays(self, scores: Sequence[Time]) -> bool:
        """Tell whether to go on: of a long series two counts may bring nothing, else one."""
        since_best = len(scores) - scores.index(min(scores))
        return since_best <= (2 if self.long else 1)

    def share(self, number: int) -> float:
        """Return how much of the time left the count of a number gets."""
        if len(self.counts) == 1:
            return 1.0
        if number:
            return 0.4
        return 0.3 if self.long else 0.75


@dataclass(frozen=True)
class Budget:
    """The seconds that an engine has for a series, and since when."""

    seconds: float
    deterministic: bool
    began: float

    @property
    def left(self) -> float:
        """Seconds left for searching; where work is counted, all of them."""
        spent = 0.0 if self.deterministic else time.monotonic() - self.began
        return self.seconds * (1 - RESERVE) - spent


@dataclass(frozen=True, eq=False)
class Attempt:
    """What an engine made of one chunk count.

    Parameters
    ----------
    engine
        Which.
    chunks
        For each rank.
    result
        None where there is no schedule.
    score
        Picoseconds; None where there is no schedule, or it can't be lowered.
    error
        Why there is no schedule.
    reason
        Why a schedule is out of the running.
    """

    engine: str
    chunks: int
    result: Result | None
    score: Time | None
    error: NoScheduleError | None = None
    reason: str | None = None

    @property
    def time(self) -> Time | None:
        """Picoseconds of what is in the running."""
        return None if self.reason else self.score

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """What was compared."""
        if self.result is None or self.result.schedule is None:
            reason = None if self.error is None else self.error.problem
            return (Candidate(self.engine, self.chunks, None, None, reason),)
        if self.result.candidates:
            return self.result.candidates
        makespan = self.result.schedule.makespan
        return (Candidate(self.result.engine, self.chunks, makespan, self.time, self.reason),)


def along(name: str, engine: Engine, series: Series, budget: Budget) -> Iterator[Attempt]:
    """Yield what an engine makes of a series; the last may be a failure.

    A count that can't be served or lowered ends the series, as more chunks would not fit either.
    But some algorithms exist from two chunks on: these are tried with the second count, too.
    """
    scores: list[Time] = []
    for number, count in enumerate(series.counts):
        left = budget.left
        # Twice the chunks take twice as long to lower.
        least = 1.0 if budget.deterministic else 1.0 + 2 * series.overhead()
        if scores and (left < least or not series.pays(scores)):
            return
        problem, options = series.task(count, max(0.5, series.share(number) * left))
        if number and (left <= 0 or options.stop.is_set()):
            return
        attempt = attempted(name, engine, problem, options)
        yield attempt
        if attempt.score is not None:
            scores.append(attempt.score)
        elif number or not isinstance(attempt.error, NoAlgorithmError):
            return


def attempted(name: str, engine: Engine, problem: Problem, options: Options) -> Attempt:
    """Run an engine once."""
    chunks = problem.collective.chunks_per_rank
    options.starts(name)
    try:
        result = engine(problem, options)
    except NoScheduleError as error:
        return Attempt(name, chunks, None, None, error)
    schedule = result.schedule
    if schedule is None:
        late = OutOfTimeError("no schedule was found in time", fix="raise --time-limit")
        return Attempt(name, chunks, None, None, late)
    score = schedule.makespan if options.score is None else options.score(schedule)
    reason = options.refusal(schedule)
    if score is None:
        return Attempt(name, chunks, result, None, reason=reason or "it can't be lowered")
    options.report(f"{result.engine}, {chunks} chunks a rank: {score / 1e6:.2f} us")
    return Attempt(name, chunks, result, score, reason=reason)


SEARCHES: Mapping[str, Engine] = MappingProxyType({
    "flow": flow,
    "guided": guided,
    "exact": exact,
    "taccl": staged,
})  # fmt: skip
"""Engines that search, in turn."""

QUARTER = 1 / len(SEARCHES)

ALL = 0.97
"""Of the time limit, for everything but judging and writing."""

FIRST = 0.15
"""Of the time limit, for the classical algorithms before the engines; the rest come after them."""

HOPELESS = Fraction(3, 2)
"""Times the best score: a classical schedule that alone takes longer is not lowered."""

ENOUGH = Fraction(1, 200)
"""A gap to the bound below which nothing more is searched for."""

LARGE = 20 * MAX_INTERVALS
"""Pairs of a representative chunk and a link, above which no model is tried."""

HUGE = 5_000_000
"""The same for the staged engine, if there is a schedule already."""

COUNTED = 400
"""The same where work is counted: making a model small counts for nothing and can take minutes."""

PAIR = 1e-4
"""Seconds that it takes to let two chunks follow each other on a link in a model of messages."""

WORTH_MORE = 2.0
"""Seconds left from which one more search is worth it."""


@dataclass(eq=False)
class _Run:
    """What is found so far, and when all has to be done."""

    series: Series
    seconds: float
    options: Options
    began: float
    found: list[Attempt]

    def budget(self, share: float) -> Budget:
        """Return a share of the time, or as much of it as is left."""
        now = time.monotonic()
        seconds = share * self.seconds
        if not self.options.deterministic:
            seconds = min(seconds, self.began + ALL * self.seconds - now)
        return Budget(seconds, self.options.deterministic, now)

    @property
    def best(self) -> Attempt | None:
        """The best so far of what is in the running."""
        timed = [attempt for attempt in self.found if attempt.time is not None]
        return min(timed, key=lambda attempt: attempt.time or 0, default=None)

    @property
    def over(self) -> bool:
        """Tell whether what is found is good enough, or there is no time for more."""
        if self.options.stop.is_set() and any(one.result is not None for one in self.found):
            return True
        best = self.best
        if best is None:
            return False
        return is_enough(best.time or 0, self.series.floor) or self.budget(1.0).seconds <= 0

    @property
    def spare(self) -> float:
        """Seconds left for one more search, less what its lowering and judging take."""
        budget = self.budget(1.0)
        return min(budget.left, budget.seconds - self.series.overhead())

    def take(self, attempts: Iterator[Attempt]) -> None:
        """Take attempts as long as more are of use."""
        for attempt in attempts:
            self.found.append(attempt)
            if self.over:
                return


def is_enough(time_: Time, floor: Time) -> bool:
    """Tell whether a time is so close to a bound that no more is searched for."""
    return time_ <= floor * (1 + ENOUGH)


def portfolio(
    series: Series, seconds: float, began: float | None = None, found: list[Attempt] | None = None
) -> list[Attempt]:
    """Run everything on a series; return what came of it, failures included.

    Parameters
    ----------
    seconds
        For all of it, in wall clock, or counted work for each.
    began
        By the monotonic clock; None: now.
    found
        What is returned, if given: whoever ends the search in the middle has what came before.
    """
    _, options = series.task(series.counts[0], seconds)
    began = time.monotonic() if began is None else began
    run = _Run(series, seconds, options, began, [] if found is None else found)
    classical = _classical(run)
    _advance(run, classical, FIRST, more=bool(SEARCHES))
    for name in SEARCHES:
        if run.over:
            break
        run.take(along(name, _fitting(run, name), series, run.budget(QUARTER)))
    _advance(run, classical, 1.0)
    if not run.over:
        _go_on(run)
    return run.found


def _classical(run: _Run) -> dict[str, Iterator[Attempt]]:
    """Return the series of every classical algorithm, not yet begun."""
    series = replace(run.series, task=partial(_promising, run))
    budget = Budget(run.seconds, run.options.deterministic, run.began)
    return {
        name: along(name, partial(run_classical, name, patient=False), series, budget)
        for name in CLASSICAL
    }


def _fitting(run: _Run, name: str) -> Engine:
    """Return an engine that refuses problems too large for its share of the time, with the reason.

    The exact engine's model may be too large, and the staged engine too slow where there is
    something already.
    """
    search = SEARCHES[name]

    def engine(problem: Problem, options: Options) -> Result:
        if name == "exact" and not _is_small(problem, options, QUARTER * run.seconds):
            raise OutOfTimeError("left out: its model is too large for its share of the time")
        if name == "taccl" and run.best and _is_huge(problem):
            raise OutOfTimeError("left out: it would route for longer than its share of the time")
        return search(problem, options)

    return engine


def _advance(
    run: _Run, lanes: dict[str, Iterator[Attempt]], share: float, *, more: bool = False
) -> None:
    """Take attempts from all series in turn, for a share of the time; drop those that end.

    Parameters
    ----------
    more
        Whether other searches follow: else it goes on until something is found.
    """
    budget = run.budget(share)
    while lanes:
        for name, lane in tuple(lanes.items()):
            late = budget.left <= 0
            if run.over or (late and (run.best or (more and run.budget(1.0).seconds > 0))):
                return
            attempt = next(lane, None)
            if attempt is None:
                del lanes[name]
            else:
                run.found.append(attempt)


def _promising(run: _Run, count: int, seconds: float) -> tuple[Problem, Options]:
    """Return a task whose score does not lower what would take much longer than the best.

    Its makespan is taken for its score then, and it is out of the running.
    """
    problem, options = run.series.task(count, seconds)
    score = options.score
    if score is None:
        return problem, options

    def is_hopeless(schedule: Schedule) -> bool:
        best = run.best
        return best is not None and schedule.makespan > HOPELESS * (best.time or 0)

    def promising(schedule: Schedule) -> Time | None:
        return schedule.makespan if is_hopeless(schedule) else score(schedule)

    def refusal(schedule: Schedule) -> str | None:
        if is_hopeless(schedule):
            return "not replayed: the schedule alone takes much longer than the best"
        return options.refusal(schedule)

    return problem, replace(options, score=promising, refusal=refusal)


def _is_small(problem: Problem, options: Options, seconds: float) -> bool:
    """Tell whether the exact engine's model is small, and made in a part of some seconds."""
    links, orbits = int(problem.logical.allowed.sum()), len(problem.representatives)
    if options.deterministic or not options.batch:
        return orbits * links <= (COUNTED if options.deterministic else LARGE)
    every = problem.collective.num_chunks
    chunks = every if every * links <= MAX_INTERVALS else orbits
    return orbits * links <= LARGE and links * chunks**2 * PAIR <= seconds


def _is_huge(problem: Problem) -> bool:
    """Tell whether the staged engine would route for minutes before it can look at the clock."""
    return int(problem.logical.allowed.sum()) * len(problem.representatives) > HUGE


def _go_on(run: _Run) -> None:
    """Spend what is left of the time on the best engine and its chunk count, from another seed."""
    best, left = run.best, run.spare
    if best is None or run.options.deterministic or left < WORTH_MORE:
        return
    name = best.engine if best.engine in SEARCHES else "guided"
    tried = {attempt.chunks for attempt in run.found if attempt.engine == name}
    more = tuple(n for n in run.series.counts if n > best.chunks and n not in tried)
    if more:
        # Its quarter was too short for them.
        series = replace(run.series, counts=more)
        run.take(along(name, _fitting(run, name), series, run.budget(1.0)))
        best, left = run.best or best, run.spare
        if run.over or left < WORTH_MORE:
            return
        name = best.engine if best.engine in SEARCHES else "guided"
    problem, options = run.series.task(best.chunks, left)
    others = replace(options, seed=options.seed + 1)
    run.take(iter([attempted(name, _fitting(run, name), problem, others)]))


def chosen(found: Sequence[Attempt], *, stopped: bool = False) -> Result:
    """Return the best of all attempts, with what the others prove and all that was compared.

    Where nothing could be lowered, the first schedule without a score.

    Parameters
    ----------
    stopped
        Whether the user ended the search.

    Raises
    ------
    NoScheduleError
        When there is no schedule.
    """
    with_schedule = [one for one in found if one.result is not None]
    if not with_schedule:
        raise _why(found)
    timed = [one for one in with_schedule if one.time is not None]
    best = min(timed, key=lambda one: one.time or 0, default=with_schedule[0])
    result = best.result
    if result is None:
        raise _why(found)
    alike = [one.result for one in found if one.result is not None and one.chunks == best.chunks]
    proved = dict.fromkeys(bound for one in alike for bound in one.bounds)
    status = Status.INTERRUPTED if stopped else result.status
    listed = [one for one in found if not isinstance(one.error, NoAlgorithmError)]
    rows = dict.fromkeys(candidate for one in listed for candidate in one.candidates)
    return replace(result, status=status, bounds=tuple(proved), candidates=tuple(rows))


def _why(found: Sequence[Attempt]) -> NoScheduleError:
    """Return the error of the engine that knows most of what can't be served: the last."""
    errors = [attempt.error for attempt in found if attempt.error is not None]
    # That an algorithm does not exist says least.
    errors.sort(key=lambda error: not isinstance(error, NoAlgorithmError))
    return errors[-1] if errors else NoScheduleError("no schedule was found")


def auto(problem: Problem, options: Options) -> Result:
    """Run the classical algorithms and the searches on one problem; return the best by score.

    Raises
    ------
    NoScheduleError
        When no candidate exists.
    """
    began = time.monotonic()

    def task(_count: int, seconds: float) -> tuple[Problem, Options]:
        return problem, replace(options, time_limit=seconds)

    series = Series((problem.collective.chunks_per_rank,), task, options.floor)
    found = portfolio(series, options.time_limit, began)
    result = chosen(found, stopped=options.stop.is_set())
    return replace(result, seconds=time.monotonic() - began)


FEW_MESSAGES = (
    "hierarchical", "two-step", "halving-doubling", "double-binary-tree", "scatter-allgather",
    "all-pairs", "direct", "binomial", "chain",
)  # fmt: skip
"""Algorithms with few messages, which are lowered and judged soonest; the best guess first."""

MANY_CHUNKS = 20_000
"""Chunks at all ranks together, above which the first algorithm that exists must do."""


def opening(problem: Problem, *, batch: bool) -> Iterator[tuple[str, Schedule]]:
    """Yield algorithms by name, with exact schedules: the least makespan first where all are made.

    Parameters
    ----------
    problem
        Its symmetries are not used.
    batch
        Whether chunks may travel together.
    """
    collective = problem.collective
    bare = Problem(
        problem.logical, collective, problem.chunk_size, make_group(problem.topology, ())
    )
    is_large = collective.num_chunks * collective.num_ranks > MANY_CHUNKS
    names = FEW_MESSAGES if is_large else tuple(CLASSICAL)
    made = ((name, textbook_schedule(bare, name, batch=batch, fewest=is_large)) for name in names)
    found = ((name, schedule) for name, schedule in made if schedule is not None)
    yield from found if is_large else sorted(found, key=lambda one: one[1].makespan)

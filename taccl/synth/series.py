"""An engine along a series of chunk counts: more and more chunks, as long as they pay.

Whatever runs an engine, alone or as one of several, runs it this way, so that one among several
does with its share of the time what it would do with as much time alone.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from taccl.errors import NoAlgorithmError, NoScheduleError, OutOfTimeError
from taccl.synth.problem import Candidate, Options, Problem, Result
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

"""The whole story on one page: network and collective -> schedule -> program, bounded and proved.

Several chunk counts are tried where the user gave none, while each is better than the one before;
candidates are compared by the replay of their programs. With a sketch, only what respects it
competes; what that costs is found by a short search without it.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from taccl.apps.programs import Lowering
from taccl.apps.request import Request, asked_collective, series_of, sized, writable
from taccl.apps.scoring import Proved, Scorer
from taccl.apps.warmup import compile_ahead
from taccl.bounds import any_bounds, best, fixed_bounds
from taccl.bounds.net import check_times
from taccl.collectives import Collective, busbw_factor, chunk_size_of
from taccl.errors import LoweringError, NoScheduleError, OutOfTimeError, TacclError
from taccl.model.problem import Bound, Candidate, Options, Problem, Result, Status
from taccl.model.schedule import Schedule
from taccl.msccl.program import Program
from taccl.synth.engines import ENGINES, solve
from taccl.synth.search import (
    FEW_MESSAGES,
    RESERVE,
    Attempt,
    Search,
    along,
    chosen,
    is_enough,
    opening,
    portfolio,
)
from taccl.timing.deadline import Deadline, TimeUp, forget, kept
from taccl.topology.graph import whole
from taccl.topology.symmetry import make_group
from taccl.units import Time
from taccl.verify import require_valid

RESERVED = 0.06
"""Share of the time limit that the search leaves for judging and writing, at least."""

GRACE = 0.04
"""Share of the time limit after its end at which judging is given up."""

HASTE = 2.0
"""Seconds for judging once the user has interrupted."""

LATE = 0.8
"""Share of the time limit that a search used which its clock ended: engines leave a reserve."""

MANY_SENDS = 200_000
"""From which on it is said that they take time."""

FREE = 0.1
"""Share of the time limit for the search without the sketch that is asked for."""


@dataclass(frozen=True, eq=False)
class Synthesis:
    """What was found: the schedule, its program, and how far both are from the bounds.

    Parameters
    ----------
    request
        What was asked.
    result
        The engine's answer for the chosen chunk count.
    schedule
        Verified.
    program
        Judged clean; None with ``--runtime none``.
    replay
        Picoseconds of the program; None without one.
    size
        Bytes the program was replayed at: ``request.size`` cut to whole chunks.
    bounds, fixed, sketched
        Lower bounds for any algorithm, for this chunk count without batches, and for any
        algorithm under the sketch.
    candidates
        Everything compared.
    free
        The best of what a short search found without the sketch; None: there is no sketch, or
        the engine is not ``auto``.
    seconds
        Wall clock, with what was spent before the search.
    ended
        What ended the search: ``bound`` (the time is within 0.5 % of it), ``search`` (nothing was
        left to try), ``clock`` (the time limit) or ``user``.
    attempts
        What each engine made of each turn, in order.
    compiled
        Seconds before the search in which loops were compiled, on a new machine.
    """

    request: Request
    result: Result
    schedule: Schedule
    program: Program | None
    replay: Time | None
    size: int
    bounds: tuple[Bound, ...]
    fixed: tuple[Bound, ...]
    sketched: tuple[Bound, ...]
    candidates: tuple[Candidate, ...]
    free: Candidate | None
    seconds: float
    ended: str
    attempts: tuple[Attempt, ...] = ()
    compiled: float = 0.0

    @property
    def time(self) -> Time:
        """Picoseconds: the replay, or the makespan without a program."""
        return self.schedule.makespan if self.replay is None else self.replay

    @property
    def bound(self) -> Bound:
        """The largest bound for any algorithm."""
        return best(self.bounds)

    @property
    def bound_fixed(self) -> Bound | None:
        """The largest bound for this chunk count; None when the schedule batches."""
        return None if self.schedule.batches or not self.fixed else best(self.fixed)

    @property
    def gap(self) -> float | None:
        """Time / bound - 1."""
        return self.time / self.bound.time - 1 if self.bound.time else None

    @property
    def gap_fixed(self) -> float | None:
        """Makespan / fixed bound - 1."""
        bound = self.bound_fixed
        return None if bound is None or not bound.time else self.schedule.makespan / bound.time - 1

    @property
    def sketch_cost(self) -> float | None:
        """Time / the best time known without the sketch - 1.

        What respects the sketch is known without it, too, so this is never below 0.
        """
        if self.free is None or not self.time:
            return None
        free = self.time if self.free.score is None else min(self.time, self.free.score)
        return self.time / free - 1 if free else None

    @property
    def bound_engine(self) -> Time | None:
        """What the engine proved of the problem as it was asked, in picoseconds; None: nothing."""
        proved = (bound.time for bound in self.result.bounds if bound.world == "engine")
        return max(proved, default=None)

    @property
    def status(self) -> Status:
        """Optimal when a bound proves it, else how the search ended.

        Bounds for programs say nothing of a schedule: its messages may be of any size.
        """
        fixed = self.bound_fixed
        bound = best([bound for bound in self.bounds if bound.world != "program"])
        if self.schedule.makespan <= bound.time or self.time <= self.bound.time:
            return Status.OPTIMAL
        if not self.request.batch and fixed and self.schedule.makespan <= fixed.time:
            return Status.OPTIMAL
        if self.schedule.makespan <= (self.bound_engine or 0):
            return Status.OPTIMAL
        return Status.FEASIBLE if self.result.status is Status.OPTIMAL else self.result.status

    @property
    def status_told(self) -> str:
        """The status in words that say what is optimal: the schedule alone, or the program, too."""
        if self.status is not Status.OPTIMAL or not self.gap or self.replay is None:
            return self.status.value
        return f"schedule optimal, program {self.gap:.1%} above the bound"

    @property
    def algbw(self) -> float:
        """GB/s of the counted buffer."""
        return float(Fraction(self.size) * 1000 / self.time) if self.time else 0.0

    @property
    def busbw(self) -> float:
        """GB/s as nccl-tests normalises it."""
        ranks = self.schedule.topology.num_ranks
        return self.algbw * float(busbw_factor(self.schedule.collective.name, ranks))


def synthesize(request: Request) -> Synthesis:
    """Find, verify, lower and judge the best schedule for a request.

    Raises
    ------
    NoScheduleError
        When no schedule exists (or, as OutOfTimeError, none was found in time).
    LoweringError
        When no schedule fits the runtime.
    ScheduleError
        When a judge objects to what was found, which is a bug in an engine.
    """
    compiled = compile_ahead(request.report, request.stop)
    clock = Deadline.after((1 - RESERVED) * request.time_limit, spent=request.spent)
    whole_ = asked_collective(request.collective, request.logical.topology, request.root)
    request = replace(sized(request, whole_), target=writable(request, whole_))
    scorer = _scorer(request, clock)
    found: list[Attempt] = []
    free: Candidate | None = None
    try:
        with kept(scorer.clock):
            _search(request, whole_, scorer, found)
            free = _without_sketch(request, whole_, chosen(found))
    except TimeUp as up:
        if up.deadline is not scorer.clock:
            raise
        forget(scorer.clock)
        found = [one for one in found if one.result is not None]
    except NoScheduleError as error:
        if scorer.opened is None or not isinstance(error, OutOfTimeError):
            raise _unserved(request, whole_) or error from None
        found = []
    found += _best_of(scorer, found)
    if not found:
        raise _nothing(request, whole_)
    result = chosen(found, stopped=request.stop.is_set())
    schedule, opened = result.schedule, scorer.opened
    known = opened is not None and opened.schedule is schedule
    if schedule is None or not (known or scorer.score(schedule) is not None):
        raise _why(scorer, result)
    return replace(_finish(request, result, scorer, free), compiled=compiled, attempts=tuple(found))


def _best_of(scorer: Scorer, found: Sequence[Attempt]) -> Iterator[Attempt]:
    """Yield what scored best, if the engine that found it was ended before it gave it back.

    Where there is nothing at all, the opening.
    """
    best = scorer.best or (None if found else scorer.opened)
    least = min((one.time for one in found if one.time is not None), default=None)
    if best is not None and (least is None or best.time < least):
        chunks = best.schedule.collective.chunks_per_rank
        result = Result(Status.TIME_LIMIT, best.schedule, (), best.engine, 0.0)
        yield Attempt(best.engine, chunks, result, best.time)


def _nothing(request: Request, collective: Collective | None = None) -> OutOfTimeError:
    """Return the error of a search that ended without a schedule."""
    if request.stop.is_set():
        return OutOfTimeError("interrupted before there was a schedule", fix="let it run longer")
    problem, fix = f"no schedule was found within {request.time_limit:g} s", "raise --time-limit"
    if collective is not None:
        least = _least_sends(collective)
        if least > MANY_SENDS:
            problem += f": one for {collective.num_ranks} ranks has at least {least} sends"
    return OutOfTimeError(problem, fix=fix)


def _least_sends(collective: Collective) -> int:
    """Return how many sends every schedule has at least."""
    sets = [frozenset(ranks) for ranks in collective.rank_sets]
    pairs = Counter(
        zip(collective.source_set.tolist(), collective.target_set.tolist(), strict=True)
    )
    if collective.reduces:
        return sum(n * (len(sets[a]) + len(sets[b]) - 2) for (a, b), n in pairs.items())
    return sum(n * len(sets[b] - sets[a]) for (a, b), n in pairs.items())


def _unserved(request: Request, collective: Collective) -> NoScheduleError | None:
    """Return the error that names the fields of the sketch in conflict, where these are known."""
    why = request.logical.why_unserved
    return None if why is None else why(collective)


def _scorer(request: Request, clock: Deadline) -> Scorer:
    """Return what scores the schedules of a request that is to be searched until a deadline."""
    channels, target = request.logical.channels, request.target
    target = None if target is None else target.within(channels)
    last = clock.began + (1 + GRACE) * request.time_limit
    counted = request.time_limit if request.deterministic else None
    end = math.inf if request.deterministic else clock.end
    clock = replace(clock, end=end, counted=counted, stop=request.stop)
    return Scorer(
        target, request.size, request.report, over=lambda: clock.over, clock=clock,
        logical=request.logical, last=last,
    )  # fmt: skip


def _open(request: Request, collective: Collective, scorer: Scorer) -> Sequence[str]:
    """Have something scored and judged before the first bound is proved.

    Returns the algorithms to try, those first whose schedules are known to end first.
    """
    logical = request.logical
    cut = collective.cut(request.chunks or logical.chunks_per_rank or 1)
    group = make_group(logical.topology, ())
    problem = Problem(logical, cut, chunk_size_of(cut, request.size), group)
    check_times(logical.topology, problem.chunk_size)
    made = opening(problem, batch=request.batch)
    for name, schedule in made:
        scorer.starts(name)
        if scorer.open(schedule):
            break
    if request.engine != "auto":
        scorer.best = None  # only an answer where the engine has none
    return [name for name, _ in made] if isinstance(made, list) else FEW_MESSAGES


def _search(request: Request, collective: Collective, scorer: Scorer, found: list[Attempt]) -> None:
    """Add what engines make of the chunk counts to what is found."""
    ranking: Sequence[str] = ()
    if request.engine in ENGINES and not (request.deterministic or request.steps):
        ranking = _open(request, collective, scorer)
    series = series_of(request, collective, scorer)
    if request.engine == "auto":
        reserve = 0.0 if request.logical.name is None else FREE * request.time_limit
        opened = None if scorer.opened is None else scorer.opened.time
        portfolio(Search(series, scorer.clock, found, reserve, ranking, opened))
        return

    def engine(problem: Problem, options: Options) -> Result:
        return solve(problem, request.engine, options)

    seconds = (1 - RESERVE) * request.time_limit
    clock = replace(scorer.clock, end=scorer.clock.began + seconds)
    if request.deterministic:
        clock.counted = seconds
    found.extend(along(request.engine, engine, series, clock))


def _why(scorer: Scorer, result: Result) -> TacclError:
    """Return the error of a schedule without a program: which limit is in the way."""
    lowering = None
    if result.schedule is not None:
        lowering = scorer.lowering(result.schedule, result.engine)
    try:
        if lowering is not None:
            lowering.proved()
    except LoweringError as error:
        return error
    return OutOfTimeError("no schedule was found", fix="raise --time-limit")


def _without_sketch(request: Request, collective: Collective, result: Result) -> Candidate | None:
    """Return the best that a short search finds for a result's chunk count without the sketch."""
    topology = request.logical.topology
    if request.engine != "auto" or request.logical.name is None or request.stop.is_set():
        return None
    if result.schedule is None:
        return None
    count = result.schedule.collective.chunks_per_rank
    free = replace(request, logical=whole(topology, topology.rotations), chunks=count)
    clock = Deadline.after(FREE * request.time_limit)
    scorer = _scorer(replace(free, time_limit=FREE * request.time_limit), clock)
    try:
        found = chosen(portfolio(Search(series_of(free, collective, scorer), scorer.clock)))
    except NoScheduleError:
        return None
    scored = [candidate for candidate in found.candidates if candidate.score is not None]
    return min(scored, key=lambda candidate: candidate.score or 0, default=None)


def _finish(request: Request, result: Result, scorer: Scorer, free: Candidate | None) -> Synthesis:
    """Prove what was found within what is left of the time; else give what was proved before.

    Raises
    ------
    OutOfTimeError
        When there was no time to prove anything.
    """
    found = result.schedule
    if found is None:
        raise _nothing(request)
    last = Deadline(math.inf if request.deterministic else scorer.last)
    if request.stop.is_set():
        last = last.within(HASTE)
    proved = None
    try:
        with kept(last):
            if scorer.judged is None or scorer.judged.schedule is not found:
                require_valid(found, request.logical)
            if (lowering := scorer.lowering(found, result.engine)) is not None:
                settled = _settled(lowering, scorer.clock)
                proved = scorer.judged
                if proved is None or proved.made is not settled.made:
                    made = settled.best
                    proved = Proved(
                        found, result.engine, settled.proved(), made[1], settled.size, made
                    )
    except TimeUp as up:
        if up.deadline is not last:
            raise
        forget(last)
        proved = scorer.judged
        if proved is None:
            raise OutOfTimeError(
                f"a schedule was found ({result.engine}), and no time was left to judge it",
                fix=("let it run longer" if request.stop.is_set() else "raise --time-limit")
                + ("" if request.target is None else ", or use --runtime none"),
            ) from None
        request.report(f"no time was left to judge {result.engine}: {proved.engine} it is")
        status = result.status if request.stop.is_set() else Status.TIME_LIMIT
        result = replace(result, schedule=proved.schedule, engine=proved.engine, status=status)
        found = proved.schedule
    return _told(request, result, found, proved, free, scorer.clock)


def _settled(lowering: Lowering, clock: Deadline) -> Lowering:
    """Return a lowering with the instances that are worth it, as far as the search has time."""
    try:
        with kept(clock):
            return lowering.settled()
    except TimeUp as up:
        if up.deadline is not clock:
            raise
        forget(clock)
        return replace(lowering, target=replace(lowering.target, instances=1))


def _told(
    request: Request, result: Result, schedule: Schedule, proved: Proved | None,
    free: Candidate | None, clock: Deadline,
) -> Synthesis:  # fmt: skip
    """Return all that is said of a schedule."""
    logical = request.logical
    size = request.size if proved is None else proved.size
    bare = whole(logical.topology)
    fixed = fixed_bounds(bare, schedule.collective, schedule.chunk_size)
    most = None if request.target is None or proved is None else request.target.message_bytes
    sketched = () if logical.name is None else any_bounds(logical, schedule.collective, size)
    bounds = any_bounds(bare, schedule.collective, size, most)
    seconds = clock.spent
    least = schedule.makespan if proved is None else proved.time
    if request.stop.is_set():
        ended = "user"
    elif is_enough(least, best(bounds).time):
        ended = "bound"
    else:
        ended = "clock" if clock.over or seconds >= LATE * request.time_limit else "search"
    return Synthesis(
        replace(request, chunks=schedule.collective.chunks_per_rank), result, schedule,
        None if proved is None else proved.program, None if proved is None else proved.time,
        size, bounds, fixed, sketched, result.candidates, free, seconds, ended,
    )  # fmt: skip

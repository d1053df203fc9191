"""The whole story on one page: network and collective -> schedule -> program, bounded and proved.

Several chunk counts are tried where the user gave none, while each is better than the one before;
candidates are compared by the replay of their programs. With a sketch, only what respects it
competes; what that costs is found by a short search without it.
"""

import time
from dataclasses import dataclass, replace
from fractions import Fraction

from taccl.bounds import any_bounds, best, fixed_bounds
from taccl.collectives import Collective, busbw_factor
from taccl.errors import LoweringError, NoScheduleError, OutOfTimeError, TacclError
from taccl.msccl.program import Program
from taccl.pipeline.lowering import Lowering
from taccl.pipeline.problems import asked_collective
from taccl.pipeline.request import Request, series_of, sized, writable
from taccl.pipeline.scoring import Scorer
from taccl.schedule import Schedule
from taccl.synth import solve
from taccl.synth.portfolio import chosen, portfolio
from taccl.synth.problem import Bound, Candidate, Options, Problem, Result, Status
from taccl.synth.series import Attempt, Budget, Series, along
from taccl.topology import whole
from taccl.units import Time
from taccl.verify import require_valid

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
        Wall clock.
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
    began = time.monotonic()
    whole_ = asked_collective(request.collective, request.logical.topology, request.root)
    request = replace(sized(request, whole_), target=writable(request, whole_))
    scorer = _scorer(request, began)
    try:
        found = _attempts(request, series_of(request, whole_, scorer), began)
        result = chosen(found, stopped=request.stop.is_set())
    except NoScheduleError as error:
        raise _unserved(request, whole_) or error from None
    if result.schedule is None or scorer.score(result.schedule) is None:
        raise _why(scorer, result)
    count = result.schedule.collective.chunks_per_rank
    free = _without_sketch(request, whole_, count)
    lowering = scorer.lowering(result.schedule, result.engine)
    return _finish(request, result, result.schedule, lowering, free, began)


def _unserved(request: Request, collective: Collective) -> NoScheduleError | None:
    """Return the error that names the fields of the sketch in conflict, where these are known."""
    why = request.logical.why_unserved
    return None if why is None else why(collective)


def _scorer(request: Request, began: float) -> Scorer:
    """Return what scores the schedules of a request that began then, by the monotonic clock."""
    channels, target = request.logical.channels, request.target
    target = None if target is None else target.within(channels)

    def over() -> bool:
        late = time.monotonic() > began + request.time_limit
        return request.stop.is_set() or (late and not request.deterministic)

    return Scorer(target, request.size, request.report, over=over)


def _attempts(request: Request, series: Series, began: float) -> list[Attempt]:
    """Return what engines make of the chunk counts."""
    if request.engine == "auto":
        share = 1.0 if request.logical.name is None else 1 - FREE
        return portfolio(series, share * request.time_limit, began)

    def engine(problem: Problem, options: Options) -> Result:
        return solve(problem, request.engine, options)

    budget = Budget(request.time_limit, request.deterministic, began)
    return list(along(request.engine, engine, series, budget))


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


def _without_sketch(request: Request, collective: Collective, count: int) -> Candidate | None:
    """Return the best that a short search finds for a chunk count without the sketch."""
    began = time.monotonic()
    topology = request.logical.topology
    if request.engine != "auto" or request.logical.name is None or request.stop.is_set():
        return None
    free = replace(request, logical=whole(topology, topology.rotations), chunks=count)
    series = series_of(free, collective, _scorer(free, time.monotonic()))
    try:
        found = chosen(portfolio(series, FREE * request.time_limit, began))
    except NoScheduleError:
        return None
    scored = [candidate for candidate in found.candidates if candidate.score is not None]
    return min(scored, key=lambda candidate: candidate.score or 0, default=None)


def _finish(
    request: Request, result: Result, schedule: Schedule, lowering: Lowering | None,
    free: Candidate | None, began: float,
) -> Synthesis:  # fmt: skip
    logical = request.logical
    require_valid(schedule, logical)
    program, replayed, size = None, None, request.size
    if lowering is not None:
        settled = lowering.settled()
        program, size = settled.proved(), settled.size
        replayed = settled.best[1]
    bare = whole(logical.topology)
    fixed = fixed_bounds(bare, schedule.collective, schedule.chunk_size)
    most = None if request.target is None or program is None else request.target.message_bytes
    sketched = () if logical.name is None else any_bounds(logical, schedule.collective, size)
    return Synthesis(
        replace(request, chunks=schedule.collective.chunks_per_rank), result, schedule, program,
        replayed, size, any_bounds(bare, schedule.collective, size, most), fixed, sketched,
        result.candidates, free, time.monotonic() - began,
    )  # fmt: skip

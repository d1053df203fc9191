"""The whole story on one page: network and collective -> schedule -> program, bounded and proved.

Several chunk counts are tried where the user gave none, while each is better than the one before;
candidates are compared by the replay of their programs.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from threading import Event

from taccl.bounds import any_bounds, best, fixed_bounds
from taccl.collectives import (
    COLLECTIVES,
    Collective,
    build_collective,
    busbw_factor,
    chunk_size_of,
)
from taccl.errors import InputError, LoweringError, NoScheduleError, OutOfTimeError, TacclError
from taccl.msccl.program import Program
from taccl.pipeline.lowering import Lowering, Target, program_name, serves
from taccl.pipeline.problems import DEFAULT_SIZE, asked_collective, logical_group, size_of_chunks
from taccl.schedule import Schedule
from taccl.synth import solve
from taccl.synth.problem import Bound, Options, Problem, Result, Status
from taccl.synth.rounds import chunks_per_rank
from taccl.topology import LogicalTopology, whole
from taccl.units import Time
from taccl.verify import require_valid

CHUNK_COUNTS = (1, 2, 4)
"""What ``--chunks auto`` tries, in order, for collectives from files."""

RESERVE = 0.15
"""Share of the time limit kept for lowering, judging and writing."""


def _silent(line: str) -> None:
    """Report nothing."""


@dataclass(frozen=True, eq=False)
class Request:
    """What is asked of :func:`synthesize`.

    Parameters
    ----------
    logical
        The network under the sketch.
    collective
        A name of COLLECTIVES, or a collective from a file.
    size
        Bytes of the buffer that nccl-tests counts; 0: as many as make chunks of the topology's
        chunk size, else 1 MB.
    chunks
        Chunks for each rank; None: the sketch's, else the best of a series.
    batch
        Whether chunks may travel together.
    engine
        A name of ENGINES or CLASSICAL.
    root
        For the collectives of the table that have one; None: rank 0.
    steps
        Steps and rounds, for engine ``exact`` to answer whether an algorithm exists that has them
        and ``chunks`` chunks (of the whole buffer, for an AllReduce).
    target
        The program wanted; None: stop at the schedule.
    time_limit, seed, workers, deterministic
        For the search, in seconds.
    stop, report
        Set to end the search; called with progress.
    """

    logical: LogicalTopology
    collective: str | Collective
    size: int = 0
    chunks: int | None = None
    batch: bool = True
    engine: str = "auto"
    root: int | None = None
    steps: tuple[int, int] | None = None
    target: Target | None = field(default_factory=Target)
    time_limit: float = 60.0
    seed: int = 0
    workers: int = 2
    deterministic: bool = False
    stop: Event = field(default_factory=Event)
    report: Callable[[str], None] = _silent


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
        (engine, chunks for each rank, makespan, score) of everything compared.
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
    candidates: tuple[tuple[str, int, Time, Time], ...]
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
    def bound_engine(self) -> Time | None:
        """What the engine proved of the problem as it was asked, in picoseconds; None: nothing."""
        proved = (bound.time for bound in self.result.bounds if bound.world == "engine")
        return max(proved, default=None)

    @property
    def status(self) -> Status:
        """Optimal when a bound proves it, else how the search ended."""
        fixed = self.bound_fixed
        if self.schedule.makespan <= self.bound.time:
            return Status.OPTIMAL
        if not self.request.batch and fixed and self.schedule.makespan <= fixed.time:
            return Status.OPTIMAL
        if self.schedule.makespan <= (self.bound_engine or 0):
            return Status.OPTIMAL
        return Status.FEASIBLE if self.result.status is Status.OPTIMAL else self.result.status

    @property
    def algbw(self) -> float:
        """GB/s of the counted buffer."""
        return float(Fraction(self.size) * 1000 / self.time) if self.time else 0.0

    @property
    def busbw(self) -> float:
        """GB/s as nccl-tests normalises it."""
        ranks = self.schedule.topology.num_ranks
        return self.algbw * float(busbw_factor(self.schedule.collective.name, ranks))


@dataclass(frozen=True, eq=False)
class _Attempt:
    chunks: int
    result: Result
    schedule: Schedule
    score: Time


def with_stop(request: Request, stop: Event) -> Request:
    """Return the request with an event that ends its search."""
    return replace(request, stop=stop)


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
    logical = request.logical
    whole_ = asked_collective(request.collective, logical.topology, request.root)
    request = replace(_sized(request, whole_), target=_writable(request, whole_))
    group = logical_group(logical, whole_)
    long = len(_series(request, whole_)) > len(CHUNK_COUNTS)
    attempts: list[_Attempt] = []
    refused: TacclError | None = None  # more chunks would not fit either
    for chunks in _counts(request, whole_):
        left = request.time_limit * (1 - RESERVE)
        left -= 0 if request.deterministic else time.monotonic() - began
        if refused or (attempts and (left < 1 or not _worth_more(attempts, long=long))):
            break
        if attempts and request.stop.is_set():
            break
        collective = whole_.cut(chunks)
        problem = Problem(logical, collective, chunk_size_of(collective, request.size), group)
        # A long series is for what gains by many chunks: its first count gets less.
        share = 1.0 if request.chunks else 0.4 if attempts else 0.3 if long else 0.75
        options = _options(request, problem, max(0.5, share * left))
        try:
            attempts.append(_attempt(request, problem, options))
        except (NoScheduleError, LoweringError) as error:
            refused = refused or error
    if not attempts:
        raise refused or OutOfTimeError("no schedule was found", fix="raise --time-limit")
    return _finish(request, attempts, began)


def _writable(request: Request, collective: Collective) -> Target | None:
    """Return the program wanted; None where no file of the runtime can hold the collective."""
    target = request.target
    if target is None or serves(target.runtime, collective):
        return target
    request.report(f"{target.runtime} has no XML for {collective.name}: schedule only")
    return None


def _sized(request: Request, collective: Collective) -> Request:
    """Return the request with the size that it leaves open, and the chunk count that belongs to it.

    Raises
    ------
    InputError
        When chunks of the topology's chunk size make no size.
    """
    chunk_size = request.logical.topology.chunk_size
    if request.size or chunk_size is None:
        return replace(request, size=request.size or DEFAULT_SIZE)
    count = request.chunks or request.logical.chunks_per_rank or 1
    size = size_of_chunks(chunk_size, collective.chunks_in_size * count)
    return replace(request, size=size, chunks=count)


def _counts(request: Request, collective: Collective) -> Iterator[int]:
    """Yield the chunk counts to try; those whose program-level chunk would be empty are left out.

    Raises
    ------
    InputError
        When not even the first count leaves a whole element for every chunk.
    """
    counts = _series(request, collective)
    for count in counts:
        chunks = collective.chunks_in_size * count
        if request.target is None or request.target.whole_size(request.size, chunks):
            yield count
        elif count == counts[0]:
            raise InputError(
                f"{request.size} bytes are less than one element for each of {chunks} chunks",
                field="--size",
                fix=f"use at least {request.target.divisor(chunks)} bytes or fewer --chunks",
            )


def _series(request: Request, collective: Collective) -> tuple[int, ...]:
    """Return the chunk count that is asked for, or those of the collective's series."""
    asked = request.chunks or request.logical.chunks_per_rank
    if request.steps and asked:
        asked = chunks_per_rank(collective.name, collective.num_ranks, asked)
    kind = COLLECTIVES.get(collective.name)
    return (asked,) if asked else kind.chunk_counts if kind else CHUNK_COUNTS


def _worth_more(attempts: list[_Attempt], *, long: bool) -> bool:
    """Tell whether to try the next count: of a long series, two may bring nothing, else one."""
    scores = [attempt.score for attempt in attempts]
    since_best = len(scores) - scores.index(min(scores))
    return since_best <= (2 if long else 1)


def _options(request: Request, problem: Problem, seconds: float) -> Options:
    floors = any_bounds(problem.logical, problem.collective, request.size)
    if not request.batch:
        floors += fixed_bounds(problem.logical, problem.collective, problem.chunk_size)
    target = request.target

    def score(schedule: Schedule) -> Time | None:
        if target is None:
            return schedule.makespan
        try:
            return _lowering(request, target, schedule, "score").best[1]
        except LoweringError as error:
            request.report(f"not lowered: {error.problem}")
            return None

    return Options(
        time_limit=seconds,
        seed=request.seed,
        workers=request.workers,
        deterministic=request.deterministic,
        batch=request.batch,
        floor=best(floors).time,
        fixed_floors=_fixed_floors(problem),
        rounds=(*request.steps, request.chunks or 1) if request.steps else None,
        score=score,
        stop=request.stop,
        report=request.report,
    )


def _fixed_floors(problem: Problem) -> dict[str, Time]:
    """Return the bounds for one chunk to a message, for AllReduce those of its halves."""
    own = problem.collective
    parts = [own]
    if own.name == "allreduce":
        halves = ("reducescatter", "allgather")
        parts = [build_collective(name, own.num_ranks, own.chunks_per_rank) for name in halves]
    return {
        part.name: best(fixed_bounds(problem.logical, part, problem.chunk_size)).time
        for part in parts
    }


def _lowering(request: Request, target: Target, schedule: Schedule, engine: str) -> Lowering:
    collective = schedule.collective
    chunks = collective.chunks_in_size
    name = program_name(schedule.topology.name, collective.name, engine, collective.chunks_per_rank)
    target = target.within(request.logical.channels)
    return Lowering(schedule, target, target.whole_size(request.size, chunks), name)


def _attempt(request: Request, problem: Problem, options: Options) -> _Attempt:
    result = solve(problem, request.engine, options)
    if result.schedule is None:
        raise OutOfTimeError("no schedule was found in time", fix="raise --time-limit")
    score = None if options.score is None else options.score(result.schedule)
    if score is None and request.target is not None:
        # Lower again for the error that says which limit is in the way.
        score = _lowering(request, request.target, result.schedule, result.engine).best[1]
    time_ = result.schedule.makespan if score is None else score
    request.report(
        f"{result.engine}, {problem.collective.chunks_per_rank} chunks a rank: {time_ / 1e6:.2f} us"
    )
    return _Attempt(problem.collective.chunks_per_rank, result, result.schedule, time_)


def _finish(request: Request, attempts: list[_Attempt], began: float) -> Synthesis:
    chosen = min(attempts, key=lambda attempt: attempt.score)
    schedule, logical, target = chosen.schedule, request.logical, request.target
    require_valid(schedule, logical)
    program, replayed, size = None, None, request.size
    if target is not None:
        lowering = _lowering(request, target, schedule, chosen.result.engine).settled()
        program, size = lowering.proved(), lowering.size
        replayed = lowering.best[1]
    bare = whole(logical.topology)
    fixed = fixed_bounds(bare, schedule.collective, schedule.chunk_size)
    sketched = () if logical.name is None else any_bounds(logical, schedule.collective, size)
    candidates = tuple(
        (engine, attempt.chunks, makespan, score)
        for attempt in attempts
        for engine, makespan, score in attempt.result.candidates
        or ((attempt.result.engine, attempt.schedule.makespan, attempt.score),)
    )
    return Synthesis(
        replace(request, chunks=chosen.chunks), chosen.result, schedule, program, replayed, size,
        any_bounds(bare, schedule.collective, size), fixed, sketched, candidates,
        time.monotonic() - began,
    )  # fmt: skip

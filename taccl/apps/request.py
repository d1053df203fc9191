"""A question to :func:`taccl.apps.synthesize`, and its answer."""

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from threading import Event

from taccl.apps.programs import Target
from taccl.bounds import ANY, POINT_TO_POINT, best
from taccl.collectives import Collective, busbw_factor
from taccl.model.problem import Bound, Candidate, Result, Status
from taccl.model.schedule import Schedule
from taccl.msccl.program import Program
from taccl.synth.search import Attempt
from taccl.topology.graph import LogicalTopology
from taccl.units import Time


@dataclass(frozen=True, eq=False)
class Request:
    """What is asked of :func:`synthesize`.

    `logical`: the network under the sketch.
    `collective`: a name of COLLECTIVES, or a collective from a file.
    `size`: bytes of the buffer that nccl-tests counts; 0: as many as make chunks of the topology's
    chunk size, else 1 MB.
    `chunks`: chunks for each rank; None: the sketch's, else the best of a series.
    `batch`: whether chunks may travel together.
    `engine`: a name of ENGINES or CLASSICAL.
    `ready_over`, `needed_over`: picoseconds in which a producer makes the chunks one after another,
    and a consumer works on them (:meth:`taccl.collectives.Collective.paced`); 0: at once.
    `root`: for the collectives of the table that have one; None: rank 0.
    `steps`: steps and rounds, for engine ``exact`` to answer whether an algorithm exists that has
    them and ``chunks`` chunks (of the whole buffer, for an AllReduce).
    `target`: the program wanted; None: stop at the schedule.
    `plans`: what the plan of a schedule of what switches copy and add takes, at so many bytes, or
    raises LoweringError; None: no plans are wanted.
    `measured`: whether times are those of the machine's measured costs, not of its data sheet.
    `time_limit`, `seed`, `workers`, `deterministic`: for the search, in seconds.
    `spent`: seconds of the time limit that are gone: the program was started, files were read.
    `stop`, `report`: set to end the search; called with progress.
    """

    logical: LogicalTopology
    collective: str | Collective
    size: int = 0
    chunks: int | None = None
    batch: bool = True
    engine: str = "auto"
    root: int | None = None
    ready_over: Time = 0
    needed_over: Time = 0
    steps: tuple[int, int] | None = None
    target: Target | None = field(default_factory=Target)
    plans: Callable[[Schedule, int], Time] | None = None
    measured: bool = False
    time_limit: float = 60.0
    seed: int = 0
    workers: int = 2
    deterministic: bool = False
    spent: float = 0.0
    stop: Event = field(default_factory=Event)
    report: Callable[[str], None] = lambda _line: None

    @property
    def is_timed(self) -> bool:
        """Whether some chunk is ready later or needed earlier than others."""
        timed = isinstance(self.collective, Collective) and self.collective.is_timed
        return timed or bool(self.ready_over or self.needed_over)

    @property
    def world(self) -> str:
        """The bounds that hold: of messages from rank to rank, as in XML, or of all there is."""
        return POINT_TO_POINT if self.target is not None and self.plans is None else ANY

    @property
    def most_peers(self) -> int | None:
        """The peers of a rank for which the program has threadblocks; None: there is no program."""
        return None if self.target is None else self.target.most_peers


@dataclass(frozen=True, eq=False)
class Synthesis:
    """What was found: the schedule, its program, and how far both are from the bounds.

    `request`: what was asked.
    `result`: the engine's answer for the chosen chunk count.
    `schedule`: verified.
    `program`: judged clean; None with ``--runtime none``.
    `replay`: picoseconds of the program; None without one.
    `size`: bytes the program was replayed at: ``request.size`` cut to whole chunks.
    `bounds`, `fixed`, `sketched`: lower bounds for any algorithm, for this chunk count without
    batches, and for any algorithm under the sketch.
    `candidates`: everything compared.
    `free`: the best of what a short search found without the sketch; None: there is no sketch, or
    the engine is not ``auto``.
    `seconds`: wall clock, with what was spent before the search.
    `ended`: what ended the search: ``bound`` (the time is within 0.5 % of it), ``search`` (nothing
    was left to try), ``clock`` (the time limit) or ``user``.
    `attempts`: what each engine made of each turn, in order.
    `compiled`: seconds before the search in which loops were compiled, on a new machine.
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
        batches = self.schedule.batches or len(self.schedule.fans)
        return None if batches or not self.fixed else best(self.fixed)

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
        """What the engine proved of the problem as it was asked, in picoseconds; None: nothing.

        Nor is there a proof where switches copy and add: engines route over links.
        """
        if self.schedule.topology.copies_or_adds:
            return None
        proved = (bound.time for bound in self.result.bounds if bound.world == "engine")
        return max(proved, default=None)

    @property
    def status(self) -> Status:
        """Optimal when a bound proves it, else how the search ended.

        Bounds for programs say nothing of a schedule: its messages may be of any size.
        """
        if self.request.measured and self.replay is not None:
            if self.time <= self.bound.time:
                return Status.OPTIMAL
            ended = self.result.status
            return Status.FEASIBLE if ended is Status.OPTIMAL else ended
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

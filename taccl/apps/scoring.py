"""What a schedule really costs: the replay of its program. Each is lowered once for a request.

More chunks leave more of a size over, so programs of different chunk counts are replayed at one
size that all of them cut into whole chunks; their own sizes are kept for what is written.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import lcm

import numpy as np

from taccl.apps.programs import Lowering, Target, lowering_of
from taccl.errors import LoweringError
from taccl.model.schedule import Schedule
from taccl.msccl.program import Program
from taccl.msccl.run import work_of
from taccl.timing.deadline import Deadline
from taccl.topology.graph import LogicalTopology
from taccl.units import Time
from taccl.verify import require_valid

MARGIN = 1.5
"""Times what judging should take by what it took before, to be left for it and for writing."""

PROMISING = Fraction(11, 10)
"""Times the best: with measured costs, a schedule whose first program takes longer is left at that.
"""

LEAST = Fraction(7, 8)
"""Of the size that is asked for: a smaller one says too little of it."""


def common_size(target: Target, size: int, chunks_in_size: int, counts: Sequence[int]) -> int:
    """Return the size at which programs of several chunk counts are compared; 0: each at its own.

    The programs wanted are those of `target`, for buffers of `size` bytes that are cut into
    `chunks_in_size` chunks where each rank has one; `counts` has the chunks of each rank.
    """
    common = target.whole_size(size, chunks_in_size * lcm(*counts))
    return common if common >= LEAST * size else 0


@dataclass(frozen=True, eq=False)
class Scored:
    """A schedule with its score, `time` in picoseconds, and the `engine` that was searching.

    Its lowering, `task`, is done; None: no program is wanted.
    """

    schedule: Schedule
    engine: str
    task: Lowering | None
    time: Time


@dataclass(frozen=True, eq=False)
class Proved:
    """A program that every judge found right, cut to the sizes that it is safe at.

    It was made of the `schedule` that the `engine` found, by a lowering, `task`, that is done.
    """

    schedule: Schedule
    engine: str
    program: Program
    task: Lowering


@dataclass(eq=False)
class Scorer:
    """Scores schedules, each once, and keeps the best; the first program is judged at once.

    So there is something to write whenever the search ends, and the time that judging takes is
    known: the end of the search is moved forward by as much as judging the best would take.

    `target`: the program wanted; None: a schedule costs its makespan.
    `size`: bytes of the buffer.
    `report`: called with what can't be lowered.
    `common`: bytes at which programs are compared; 0: each at the whole chunks of ``size``.
    `slowest`: seconds that a score took, at most.
    `clock`: the end of the search, after which the first program of a schedule that runs must do;
    one that never comes is left alone, and nothing is judged early.
    `logical`: what schedules have to respect; None: the whole of their own topology.
    `last`: when judging the first program is given up, by the monotonic clock.
    `plans`: what the plan of what switches copy and add takes, at so many bytes; None: none.
    `engine`: who searches now.
    `best`: the best so far.
    `opened`: what :meth:`open` took.
    `judged`: what was scored first, with its program.
    """

    target: Target | None
    size: int
    report: Callable[[str], None]
    common: int = 0
    slowest: float = 0.0
    clock: Deadline = field(default_factory=Deadline)
    logical: LogicalTopology | None = None
    last: float = math.inf
    plans: Callable[[Schedule, int], Time] | None = None
    engine: str = ""
    best: Scored | None = None
    opened: Scored | None = None
    judged: Proved | None = None
    _known: dict[bytes, Time | LoweringError] = field(default_factory=dict)
    _pace: float = 0.0
    _end: float = field(init=False)

    def __post_init__(self) -> None:
        self._end = self.clock.end

    def starts(self, engine: str) -> None:
        """Note who searches from now on."""
        self.engine = engine

    def score(self, schedule: Schedule) -> Time | None:
        """Return picoseconds; None when there is no program."""
        known = self._scored(schedule)
        return None if isinstance(known, LoweringError) else known

    def refusal(self, schedule: Schedule) -> str | None:
        """Return why a schedule has no score."""
        known = self._scored(schedule)
        return known.problem if isinstance(known, LoweringError) else None

    def open(self, schedule: Schedule) -> bool:
        """Take the first program of a schedule that runs; return whether there is one.

        It is no score, which takes longer: the schedule may be scored later.
        """
        if self.target is None or len(schedule.fans):
            time, self.best = self.score(schedule), None
            if time is not None:
                self.best = self.opened = Scored(schedule, self.engine, None, time)
            return time is not None
        task = lowering_of(schedule, self.target, self.size, self.engine, over=lambda: True)
        try:
            task = task.settled() if self.target.measured else task
            found = self._compared(task)
        except LoweringError:
            return False
        self.best = self.opened = Scored(schedule, self.engine, task, found)
        self._save_time(self.best, task)
        return True

    def sound(self, schedule: Schedule) -> Time | None:
        """Return what a first program of a schedule takes with measured costs; None: no program."""
        if self.target is None or len(schedule.fans):
            return None
        task = lowering_of(schedule, self.target, self.size, "sound")
        try:
            return task.settled(brief=True).best[1]
        except LoweringError:
            return None

    def lowering(self, schedule: Schedule, engine: str) -> Lowering | None:
        """Return the task of lowering a schedule, already done for the one that scored best.

        There is none of what switches copy and add. Raises LoweringError when that has no plan.
        """
        if self.target is None:
            return None
        if len(schedule.fans):
            known = self._scored(schedule)
            if isinstance(known, LoweringError):
                raise known
            return None
        task = lowering_of(schedule, self.target, self.size, engine, over=lambda: self.clock.over)
        for one in (self.best, self.opened):
            if one is not None and one.task is not None and _key(one.schedule) == _key(schedule):
                return replace(task, made=one.task.best, target=one.task.target)
        return task

    def _scored(self, schedule: Schedule) -> Time | LoweringError:
        if self.target is None:
            if self.best is None or schedule.makespan < self.best.time:
                self.best = Scored(schedule, self.engine, None, schedule.makespan)
            return schedule.makespan
        key = _key(schedule)
        if key in self._known:
            return self._known[key]
        known: Time | LoweringError
        clock = Deadline()
        enough = None if self.best is None else int(self.best.time * PROMISING)
        task = lowering_of(
            schedule, self.target, self.size, "score", lambda: self.clock.over, enough
        )
        if self.plans is not None and len(schedule.fans):
            try:
                known = self.plans(schedule, self.common or self.size)
                if self.best is None or known < self.best.time:
                    self.best = Scored(schedule, self.engine, None, known)
            except LoweringError as error:
                self.report(f"not lowered: {error.problem}")
                known = error
            self._known[key] = known
            return known
        try:
            task = task.settled() if self.target.measured else task
            known = self._compared(task)
            if self.best is None or known < self.best.time:
                self.best = Scored(schedule, self.engine, task, known)
                self._save_time(self.best, task)
        except LoweringError as error:
            self.report(f"not lowered: {error.problem}")
            known = error
        self._known[key] = known
        self.slowest = max(self.slowest, clock.spent)
        return known

    def _save_time(self, best: Scored, task: Lowering) -> None:
        """Judge the first program, and leave as much time as judging the best one takes."""
        if self.clock.end == math.inf:
            return
        program, _ = task.best
        if self.judged is None:
            clock = Deadline()
            # Nothing else can be written: it may take all the time that there is.
            self.clock.move(self.last)
            lowering = lowering_of(best.schedule, task.target, self.size, best.engine)
            try:
                require_valid(best.schedule, self.logical)
                proved = replace(lowering, made=task.best).proved()
            except LoweringError:
                self.clock.move(self._end)
                return
            self.judged = Proved(best.schedule, best.engine, proved, task)
            self._pace = (clock.spent) / max(1, work_of(program))
        self.clock.move(self._end - MARGIN * self._pace * work_of(program))

    def _compared(self, task: Lowering) -> Time:
        """Return what the best program takes at the size at which all are compared."""
        program, own = task.best
        if self.common in (0, task.size):
            return own
        alike = replace(task, size=self.common).replay(program)
        return own if alike is None else alike


def _key(schedule: Schedule) -> bytes:
    """Return what tells the schedules of one request apart."""
    columns = (
        schedule.chunk, schedule.link, schedule.batch, schedule.start, schedule.end,
        schedule.reduce, np.array(schedule.generators, dtype=np.int64),
    )  # fmt: skip
    said = f"{schedule.collective.chunks_per_rank} {schedule.packs}"
    found = hashlib.blake2b(said.encode())
    for column in columns:
        found.update(np.ascontiguousarray(column).tobytes())
    return found.digest()

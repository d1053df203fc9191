"""Engine ``auto``: every candidate in one time budget, the best by the given score.

The score is the replay of the lowered program where there is one, so the answer is never worse
than any algorithm in the box.
"""

import time
from dataclasses import dataclass

from taccl.errors import NoScheduleError
from taccl.schedule import Schedule
from taccl.synth.classical import CLASSICAL, classical_schedules
from taccl.synth.problem import Options, Problem, Result, Status
from taccl.synth.staged import staged
from taccl.units import Time


@dataclass(frozen=True)
class Scored:
    """A candidate and what it really costs.

    Parameters
    ----------
    engine
        Who found it.
    schedule
        What was found.
    score
        Picoseconds by the score, or the makespan where there is none.
    """

    engine: str
    schedule: Schedule
    score: Time


def scored(engine: str, schedule: Schedule, options: Options) -> Scored | None:
    """Return a candidate with its score; None when it can't be lowered."""
    score = schedule.makespan if options.score is None else options.score(schedule)
    return None if score is None else Scored(engine, schedule, score)


def auto(problem: Problem, options: Options) -> Result:
    """Run the classical algorithms and the staged engine; return the best by score.

    Raises
    ------
    NoScheduleError
        When no candidate exists.
    """
    began = time.monotonic()
    found: list[Scored] = []
    for name in CLASSICAL:
        for schedule in classical_schedules(problem, name, batch=options.batch):
            candidate = scored(name, schedule, options)
            found += [candidate] if candidate else []
    result: Result | None = None
    try:
        result = staged(problem, options)
    except NoScheduleError:
        if not found:
            raise
    status = Status.FEASIBLE
    if result is not None and result.schedule is not None:
        status = result.status
        candidate = scored(result.engine, result.schedule, options)
        found += [candidate] if candidate else []
    if not found and result is not None:
        # The caller lowers it again for the error that says which limit is in the way.
        return result
    best = min(found, key=lambda candidate: candidate.score)
    rows = tuple((c.engine, c.schedule.makespan, c.score) for c in found)
    return Result(status, best.schedule, (), best.engine, time.monotonic() - began, candidates=rows)

"""Engine ``auto``: every candidate in one time budget, the best by the given score.

The score is the replay of the lowered program where there is one, so the answer is never worse
than any algorithm in the box.
"""

import time
from dataclasses import dataclass, replace

from taccl.errors import NoScheduleError
from taccl.schedule import Schedule
from taccl.synth.classical import CLASSICAL, classical_schedules
from taccl.synth.flow import flow
from taccl.synth.guided import guided
from taccl.synth.problem import Options, Problem, Result, Status
from taccl.synth.staged import staged
from taccl.units import Time

SEARCHES = ((flow, 0.3), (guided, 0.2), (staged, 1.0))
"""Engines that search, in turn, and their shares of the time left."""


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
    """Run the classical algorithms and the searches; return the best by score.

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
    status = Status.FEASIBLE
    for engine, share in SEARCHES:
        spent = 0.0 if options.deterministic else time.monotonic() - began
        seconds = share * max(0.0, options.time_limit - spent)
        try:
            result = engine(problem, replace(options, time_limit=seconds))
        except NoScheduleError:
            if engine is SEARCHES[-1][0] and not found:
                raise
            continue
        if result.schedule is not None:
            status = result.status
            candidate = scored(result.engine, result.schedule, options)
            found += [candidate] if candidate else []
        if found and min(one.score for one in found) <= options.floor:
            break
    if not found and result is not None:
        # The caller lowers it again for the error that says which limit is in the way.
        return result
    best = min(found, key=lambda candidate: candidate.score)
    rows = tuple((c.engine, c.schedule.makespan, c.score) for c in found)
    return Result(status, best.schedule, (), best.engine, time.monotonic() - began, candidates=rows)

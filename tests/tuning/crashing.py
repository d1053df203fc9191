"""Work for executors that misbehaves on demand; imported by the processes that run it."""

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

from taccl.tuning.candidate import Outcome, Played, Spec, read_outcome


def spec_of(task: str) -> Spec:
    """Return the candidate that a task asks for."""
    return Spec(**json.loads(task)["spec"])


def plain(task: str) -> str:
    """Return a result that follows from the task alone."""
    spec = spec_of(task)
    sizes = json.loads(task)["sizes"]
    cost = 1000 + 10 * len(spec.engine) + spec.chunks + spec.seed
    times = tuple(cost + abs(size - spec.size) for size in sizes)
    played = Played("", "Simple", times, sizes[-1], 4, 1, 1, 1)
    return Outcome(spec, (played,), cost).text()


def dies_once(mark: str, task: str) -> str:
    """End the process without a word, the first time a search of engine guided comes."""
    if spec_of(task).engine == "guided" and not Path(mark).exists():
        Path(mark).touch()
        os._exit(1)
    return plain(task)


def dies(task: str) -> str:
    """End the process on every search of engine guided."""
    if spec_of(task).engine == "guided":
        os.kill(os.getpid(), signal.SIGKILL)
    return plain(task)


def faulty(task: str) -> str:
    """Raise what no engine should."""
    if spec_of(task).engine == "guided":
        raise ZeroDivisionError("a fault")
    return plain(task)


def greedy(task: str) -> str:
    """Have no memory for searches of engine guided."""
    if spec_of(task).engine == "guided":
        raise MemoryError("no memory")
    return plain(task)


def useless(task: str) -> str:
    """Find no program."""
    return replace(read_outcome(plain(task)), played=(), reason="nothing").text()


def other_version(task: str) -> str:
    """Answer as a worker with other code does."""
    return replace(read_outcome(plain(task)), played=(), reason=OTHER, failed=True).text()


OTHER = "a worker has another version of taccl"


def slow(task: str) -> str:
    """Take a moment, unless the task is a classical algorithm's."""
    if spec_of(task).engine in ("guided", "taccl", "flow", "exact"):
        time.sleep(0.01)
    return plain(task)

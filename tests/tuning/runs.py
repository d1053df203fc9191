"""Runs whose candidates cost nothing."""

from contextlib import nullcontext
from pathlib import Path
from threading import Event

from taccl.tuning.candidate import Machine, Outcome, Setting
from taccl.tuning.directory import Journal
from taccl.tuning.executors import Work, Workshop, here
from taccl.tuning.search import Budget, Plan, Run
from tests.tuning.crashing import plain

SIZES = (1024, 4096, 16384, 65536)
SETTING = Setting((Machine("no topology"),), (), SIZES, "executor")
PLAN = Plan(("allgather", "alltoall"), SIZES, 4, {"allgather": (900,) * 4, "alltoall": (100,) * 4})


class Loyal:
    """What a workshop does that loses nobody, and is closed by killing."""

    def lost(self, error: BaseException) -> bool:
        """Lose nobody."""
        return not isinstance(error, BaseException)

    def renew(self) -> None:
        """Never come."""

    def close(self, *, kill: bool) -> None:
        """Be closed at once."""
        assert kill


def search(
    workshop: Workshop | None = None,
    work: Work = plain,
    *,
    budget: Budget | None = None,
    journal: Journal | None = None,
    stop: Event | None = None,
    most: int | None = None,
) -> list[Outcome]:
    """Run a search; ``most``: stop after so many candidates."""
    stop = stop or Event()

    def watch(progress: object) -> None:
        if most is not None and getattr(progress, "done", 0) >= most:
            stop.set()

    with nullcontext(journal) if journal else Journal(Path(":memory:")) as kept:
        run = Run(
            SETTING, PLAN, budget or Budget(candidates=24), workshop or here(), kept, stop, watch,
            work,
        )  # fmt: skip
        return run.search()


def journal_in(folder: Path) -> Journal:
    """Return a journal in a folder."""
    return Journal(folder / "lib.journal")

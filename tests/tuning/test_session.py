"""A whole run: the sizes that it searches, and the time that it keeps."""

from concurrent.futures import Future
from pathlib import Path

import pytest

from taccl.errors import OutOfTimeError
from taccl.synth.templates.classical import CLASSICAL
from taccl.tuning import search, session
from taccl.tuning.candidate import Outcome, Spec, read_outcome
from taccl.tuning.executors import Work
from taccl.tuning.search import Budget
from taccl.tuning.session import SEARCHED, Order, tune, whole_sizes
from tests.tuning.crashing import spec_of
from tests.tuning.runs import Loyal

SIZES = tuple(1 << exponent for exponent in range(10, 31))


class Clock(Loyal):
    """A workshop of one in which every task takes the same time by a clock of its own."""

    slots, shares_fate = 1, False

    def __init__(self, seconds: float, *, useless: bool = False) -> None:
        self.now, self.seconds, self.useless = 0.0, seconds, useless
        self.started: list[tuple[float, Spec]] = []

    @property
    def spent(self) -> float:
        """Seconds since the run began."""
        return self.now

    def submit(self, work: Work, task: str) -> "Future[str]":
        """Run classical algorithms; searches find nothing."""
        spec = spec_of(task)
        self.started.append((self.now, spec))
        future: Future[str] = Future()
        if spec.engine in CLASSICAL and not self.useless:
            future.set_result(work(task))
        else:
            future.set_result(Outcome(spec, reason="nothing was found").text())
        self.now += self.seconds
        return future


def order(place: Path, clock: Clock, **budget: float) -> Order:
    """Return an order of a small library."""
    seconds, candidates = budget.get("seconds"), budget.get("candidates")
    return Order(
        "ring:4", ("allgather",), (1024,), "executor",
        Budget(None if candidates is None else int(candidates), seconds), place, lambda: clock,
        nccl=None,
    )  # fmt: skip


def use(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a run read this clock."""
    for module in (search, session):
        monkeypatch.setattr(module, "Deadline", lambda: clock)


def test_nothing_starts_when_the_time_to_search_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(1.7)
    use(clock, monkeypatch)
    tune(order(tmp_path / "lib", clock, seconds=100.0))
    starts = [start for start, _ in clock.started]
    assert 0.85 * 100 < max(starts) < SEARCHED * 100 == 93.0
    for start, spec in clock.started:
        assert spec.engine in CLASSICAL or spec.effort <= (93.0 - start) / 2 + 0.05


def test_a_run_that_found_nothing_says_what_to_raise_and_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(1.7, useless=True)
    use(clock, monkeypatch)
    with pytest.raises(OutOfTimeError, match="raise --time-limit"):
        tune(order(tmp_path / "lib", clock, seconds=20.0))
    clock.useless = False
    with pytest.raises(OutOfTimeError, match="raise --candidates"):
        tune(order(tmp_path / "other", Clock(1.0, useless=True), candidates=2))


def test_powers_of_two_stay_on_powers_of_two() -> None:
    for ranks in (2, 8, 64, 256):
        assert whole_sizes(SIZES, ranks) == SIZES


@pytest.mark.parametrize("ranks", [3, 6, 24, 72, 100])
def test_other_ranks_get_whole_chunks_near_the_sizes_asked_for(ranks: int) -> None:
    found = whole_sizes(SIZES, ranks)
    assert len(found) == len(SIZES)
    for asked, size in zip(SIZES, found, strict=True):
        assert size % (4 * ranks) == 0
        assert asked - max(4 * ranks, asked // 16) < size <= asked


def test_sizes_of_less_than_an_element_a_rank_stay_and_none_comes_twice() -> None:
    assert whole_sizes((4, 64, 100, 120, 140), 24) == (4, 64, 96)


def test_the_texts_of_outcomes_tell_whether_to_try_again() -> None:
    one = Outcome(Spec("allgather", "ring", 4), failed=True, passing=True)
    assert read_outcome(one.text()) == one

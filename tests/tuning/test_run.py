"""The run: which candidates there are follows from results alone, and nothing is lost twice."""

import threading
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Event

import pytest

from taccl.errors import InputError
from taccl.tuning import search as searching
from taccl.tuning.candidate import Outcome, key_of, read_outcome
from taccl.tuning.executors import Borrowed, Processes, Work
from taccl.tuning.search import LAG, Budget, run_key
from tests.tuning import crashing
from tests.tuning.runs import PLAN, SETTING, SIZES, Loyal, journal_in, search


def shuffled(slots: int) -> Borrowed:
    """Return threads, so that results come in any order."""
    return Borrowed(ThreadPoolExecutor(slots), slots)


def texts(outcomes: list[Outcome]) -> list[str]:
    return [one.text() for one in outcomes]


def test_a_counted_run_is_the_same_for_any_number_of_workers() -> None:
    one = search()
    assert len(one) == len(PLAN.baseline()) + 24
    for slots in (2, LAG + 3):
        assert texts(search(shuffled(slots), crashing.slow)) == texts(one)


def test_searches_go_where_the_gap_is() -> None:
    searched = [one.spec for one in search() if one.spec.effort]
    # The bound of the second collective is lower, so its gap is wider.
    assert sum(one.collective == "alltoall" for one in searched) * 2 > len(searched)
    assert {one.size for one in searched} <= set(SIZES)


def test_an_interrupted_run_goes_on_to_the_same_end(tmp_path: Path) -> None:
    whole = texts(search())
    with journal_in(tmp_path) as journal:
        part = search(journal=journal, most=45)
    assert len(part) < len(whole)
    with journal_in(tmp_path) as journal:
        assert texts(search(journal=journal)) == whole

    def never(_task: str) -> str:
        raise AssertionError("all of it is known")

    with journal_in(tmp_path) as journal:
        assert texts(search(journal=journal, work=never)) == whole


def test_a_timed_run_that_is_over_is_not_begun_again(tmp_path: Path) -> None:
    budget = Budget(seconds=1.0)
    with journal_in(tmp_path) as journal:
        first = texts(search(shuffled(2), crashing.slow, budget=budget, journal=journal))
        assert texts(search(budget=budget, journal=journal)) == first


def test_a_worker_that_dies_costs_nothing_but_time(tmp_path: Path) -> None:
    budget = Budget(candidates=4)
    work = partial(crashing.dies_once, str(tmp_path / "mark"))
    found = search(Processes(2), work, budget=budget)
    assert (tmp_path / "mark").exists()
    assert texts(found) == texts(search(budget=budget))


def test_a_candidate_that_kills_its_workers_fails_alone(tmp_path: Path) -> None:
    budget = Budget(candidates=1)
    with journal_in(tmp_path) as journal:
        found = search(Processes(2), crashing.dies, budget=budget, journal=journal)
    failed = [one for one in found if one.failed]
    assert {one.spec.engine for one in failed} == {"guided"}
    assert all("its worker was lost twice" in one.reason for one in failed)
    assert all(one.played for one in found if one.spec.engine != "guided")


class Stuck:
    """A workshop of one in which searches of engine guided never end."""

    slots, shares_fate, renewed = 1, True, 0

    def submit(self, work: Work, task: str) -> "Future[str]":
        """Answer at once, or never."""
        future: Future[str] = Future()
        if '"engine":"guided"' not in task:
            future.set_result(work(task))
        return future

    def lost(self, error: BaseException) -> bool:
        """Lose nobody."""
        return not isinstance(error, BaseException)

    def renew(self) -> None:
        """Count."""
        self.renewed += 1

    def close(self, *, kill: bool) -> None:
        """Be closed at once."""
        assert kill


def test_a_timed_search_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "OVERDUE", 0.0)
    monkeypatch.setattr(searching, "OVERDUE_TIMES", 0.0)
    monkeypatch.setattr(searching, "LOOK", 0.01)
    workshop = Stuck()
    found = search(workshop, budget=Budget(seconds=600.0), most=len(PLAN.baseline()) + 1)
    failed = [one for one in found if one.failed]
    assert {one.spec.engine for one in failed} == {"guided"}
    assert {one.reason for one in failed} == {"took more than 0 seconds"}
    assert workshop.renewed == len(failed) > 0


def test_what_failed_with_its_worker_is_tried_again(tmp_path: Path) -> None:
    budget = Budget(candidates=1)
    with journal_in(tmp_path) as journal:
        found = search(Processes(1), crashing.dies, budget=budget, journal=journal)
        assert [one.passing for one in found if one.failed] == [True]
        again = search(budget=budget, journal=journal)
    assert texts(again) == texts(search(budget=budget))


def test_a_search_without_memory_is_tried_again(tmp_path: Path) -> None:
    budget = Budget(candidates=1)
    with journal_in(tmp_path) as journal:
        found = search(work=crashing.greedy, budget=budget, journal=journal)
        assert [one.reason for one in found if one.failed] == ["MemoryError: no memory"]
        assert texts(search(budget=budget, journal=journal)) == texts(search(budget=budget))


class Stops(Loyal):
    """A workshop of three that ends the run before the second of its searches is done."""

    slots, shares_fate = 3, False

    def __init__(self, stop: Event) -> None:
        self.stop = stop
        self.searches = 0
        self.stuck = ""

    def submit(self, work: Work, task: str) -> "Future[str]":
        """Answer at once, but never in the second search."""
        future: Future[str] = Future()
        if '"engine":"guided"' in task:
            self.searches += 1
        if self.searches == 2 and not self.stuck:
            self.stuck = task
            return future
        if self.stuck:
            self.stop.set()
        future.set_result(work(task))
        return future


def test_a_timed_run_makes_the_search_in_which_it_was_interrupted(tmp_path: Path) -> None:
    stop = Event()
    workshop = Stops(stop)
    budget = Budget(seconds=600.0)
    with journal_in(tmp_path) as journal:
        part = search(workshop, budget=budget, journal=journal, stop=stop)
        whole = search(budget=budget, journal=journal, most=len(part) + 40)
    stuck = read_outcome(crashing.plain(workshop.stuck)).spec
    assert stuck not in [one.spec for one in part]
    specs = [one.spec for one in whole]
    assert specs.count(stuck) == 1
    assert len(set(specs)) == len(specs)
    assert set(texts(part)) <= set(texts(whole))


def test_a_timed_run_that_found_nothing_is_not_over(tmp_path: Path) -> None:
    budget = Budget(seconds=0.7)
    with journal_in(tmp_path) as journal:
        assert not any(
            one.played
            for one in search(work=crashing.useless, budget=budget, journal=journal)
        )  # fmt: skip
        key = run_key(SETTING, PLAN, budget)
        assert journal.state(key)[1] is False
        again = search(work=crashing.useless, budget=Budget(seconds=0.7), journal=journal)
    assert len(again) >= len(PLAN.baseline())


class ClosedClientError(Exception):
    """What a Dask client raises that has given its scheduler up."""


class Cluster(Executor):
    """An executor whose scheduler goes away."""

    def __init__(self) -> None:
        self.left, self.closed = 3, False

    def submit(self, work: Work, task: str) -> "Future[str]":  # type: ignore[override]
        """Take three tasks."""
        self.left -= 1
        if self.left < 0:
            raise ClosedClientError("the client is closed")
        future: Future[str] = Future()
        future.set_result(work(task))
        return future

    def shutdown(self, *_: object, **__: object) -> None:
        """Fail, as all does then."""
        raise ClosedClientError("the client is closed")

    def end(self) -> None:
        """Take note."""
        self.closed = True


def test_a_scheduler_that_is_gone_ends_the_run_and_keeps_what_is_finished(tmp_path: Path) -> None:
    cluster = Cluster()
    workshop = Borrowed(cluster, 1, gone=lambda error: isinstance(error, ClosedClientError),
                        end=cluster.end)  # fmt: skip
    with journal_in(tmp_path) as journal:
        with pytest.raises(InputError, match="--scheduler: the Dask scheduler is gone"):
            search(workshop, journal=journal)
        assert cluster.closed
        known = [
            journal.find(key_of(SETTING.task(spec))) is not None for spec in PLAN.baseline()
        ]  # fmt: skip
        assert known == [True] * 3 + [False] * (len(known) - 3)


def test_workers_lost_with_their_scheduler_have_not_failed() -> None:
    class Lost(Cluster):
        def submit(self, work: Work, task: str) -> "Future[str]":  # type: ignore[override]
            """Lose the fourth task."""
            self.left -= 1
            future: Future[str] = Future()
            if self.left < 0:
                future.cancel()
                future.set_running_or_notify_cancel()
            else:
                future.set_result(work(task))
            return future

        def shutdown(self, *_: object, **__: object) -> None:
            """Be closed."""

    cluster = Lost()
    workshop = Borrowed(cluster, 1, gone=lambda _error: cluster.left < 0)
    with pytest.raises(InputError, match="the Dask scheduler is gone"):
        search(workshop)


def test_a_fault_of_an_engine_costs_its_candidate() -> None:
    found = search(work=crashing.faulty)
    failed = [one for one in found if one.failed]
    assert failed
    assert {one.reason for one in failed} == {"ZeroDivisionError: a fault"}
    assert {one.spec.engine for one in failed} == {"guided"}


def test_other_code_in_a_worker_is_an_error() -> None:
    with pytest.raises(InputError, match="another version of taccl"):
        search(work=crashing.other_version)


def test_no_thread_is_left_behind() -> None:
    before = threading.active_count()
    search(budget=Budget(candidates=0))
    assert threading.active_count() <= before + 1

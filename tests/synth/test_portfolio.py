"""Engine ``auto``: as good as its parts, what it lists, and when it ends."""

import time
from dataclasses import replace
from fractions import Fraction
from threading import Event

import pytest

from taccl.bounds import any_bounds, best
from taccl.errors import NoAlgorithmError, NoScheduleError
from taccl.model.problem import Bound, Options, Problem, Result, Status
from taccl.model.schedule import Schedule
from taccl.synth import search as portfolio
from taccl.synth.engines import ENGINES, solve
from taccl.synth.search import QUARTER, SEARCHES, Attempt, Series, chosen, is_enough
from taccl.synth.templates.classical import CLASSICAL, run_classical
from taccl.topology.file import load_topology
from tests.generators import random_problem, star5
from tests.synth.problems import QUICK, problem_of


def alone(problem: Problem, engine: str, seconds: float) -> int | None:
    try:
        found = solve(problem, engine, replace(QUICK, time_limit=seconds)).schedule
    except NoScheduleError:
        return None
    return None if found is None else found.makespan


def test_every_engine_is_in_the_portfolio() -> None:
    assert {*SEARCHES, "auto"} == {*ENGINES}


@pytest.mark.parametrize("seed", range(4))
def test_auto_is_at_least_as_good_as_each_part_with_a_quarter_of_the_time(seed: int) -> None:
    problem = random_problem(seed)
    found = solve(problem, "auto", replace(QUICK, time_limit=2.0)).schedule
    assert found is not None
    for engine in (*SEARCHES, *CLASSICAL):
        # The series keeps a share of the time for writing, which engines alone do not.
        makespan = alone(problem, engine, QUARTER * 2.0 * 0.85)
        assert makespan is None or found.makespan <= makespan, engine


def recorded(monkeypatch: pytest.MonkeyPatch, found: Schedule) -> list[tuple[str, float]]:
    """Replace the searches by ones that only note their time limits."""
    calls: list[tuple[str, float]] = []

    def search(name: str) -> object:
        def engine(_problem: Problem, options: Options) -> Result:
            calls.append((name, options.time_limit))
            return Result(Status.FEASIBLE, found, (), name, 0.0)

        return engine

    monkeypatch.setattr(portfolio, "SEARCHES", {name: search(name) for name in SEARCHES})
    return calls


def slow_ring() -> Schedule:
    schedule = run_classical("ring", problem_of(star5(), "allgather"), QUICK).schedule
    assert schedule is not None
    return schedule


def test_every_search_gets_a_quarter_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = recorded(monkeypatch, slow_ring())
    solve(problem_of(star5(), "allgather"), "auto", replace(QUICK, time_limit=40.0))
    assert [name for name, _ in calls] == [*SEARCHES]
    assert [seconds for _, seconds in calls] == pytest.approx([8.5] * len(SEARCHES))


def test_the_time_that_is_left_goes_to_one_more_search_from_another_seed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = recorded(monkeypatch, slow_ring())
    timed = replace(QUICK, deterministic=False, time_limit=40.0)
    solve(problem_of(star5(), "allgather"), "auto", timed)
    assert len(calls) == len(SEARCHES) + 1


def test_a_schedule_at_the_bound_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of(load_topology("ring:4"), "broadcast")
    schedule = run_classical("double-chain", problem_of(load_topology("ring:4"), "broadcast", 2),
                             QUICK).schedule  # fmt: skip
    assert schedule is not None
    calls = recorded(monkeypatch, schedule)
    floor = best(any_bounds(problem.logical, problem.collective, 1000)).time
    solve(problem, "auto", replace(QUICK, floor=floor * 10))
    assert calls == []


@pytest.mark.parametrize(("time", "ends"), [(1005, True), (1006, False)])
def test_half_a_percent_above_the_bound_is_enough(time: int, ends: bool) -> None:
    assert is_enough(time, 1000) is ends


def test_an_interrupted_portfolio_runs_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = Event()
    stop.set()
    calls = recorded(monkeypatch, slow_ring())
    result = solve(problem_of(star5(), "allgather"), "auto", replace(QUICK, stop=stop))
    assert (calls, result.status) == ([], Status.INTERRUPTED)


def attempt(engine: str, score: int, *bounds: Bound, chunks: int = 1) -> Attempt:
    schedule = slow_ring()
    return Attempt(
        engine, chunks, Result(Status.FEASIBLE, schedule, bounds, engine, 0.0), score
    )  # fmt: skip


def test_the_best_takes_over_what_others_prove_of_its_chunk_count() -> None:
    proved, other = Bound("exact", "engine", 7), Bound("exact", "engine", 9)
    found = chosen([
        attempt("guided", 10), attempt("exact", 11, proved), attempt("exact", 12, other, chunks=2),
    ])  # fmt: skip
    assert (found.engine, found.bounds) == ("guided", (proved,))


def test_what_is_out_of_the_running_is_not_chosen() -> None:
    hopeless = replace(attempt("ring", 1), reason="not replayed")
    assert chosen([hopeless, attempt("guided", 10)]).engine == "guided"


def test_that_an_algorithm_does_not_exist_is_the_least_of_errors() -> None:
    errors = [NoScheduleError("no path for chunk 3"), NoAlgorithmError("no ring")]
    with pytest.raises(NoScheduleError, match="no path for chunk 3"):
        chosen([Attempt("x", 1, None, None, error) for error in errors])


def test_without_any_schedule_the_error_is_that_of_the_last_engine() -> None:
    errors = [NoScheduleError(text) for text in ("no ring", "no path for chunk 3")]
    failed = [Attempt("x", 1, None, None, error) for error in errors]
    with pytest.raises(NoScheduleError, match="no path for chunk 3"):
        chosen(failed)


def test_a_classical_schedule_far_above_the_best_is_not_lowered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(portfolio, "SEARCHES", {})
    problem = problem_of(load_topology("hub:8"), "allreduce", chunk_size=10**5)
    lowered: list[int] = []

    def score(schedule: Schedule) -> int:
        lowered.append(schedule.makespan)
        return schedule.makespan

    result = solve(problem, "auto", replace(QUICK, time_limit=1.0, score=score))
    assert result.schedule is not None
    least = min(lowered)
    first = lowered.index(least)
    assert all(makespan <= Fraction(3, 2) * least for makespan in lowered[first:])
    left_out = [one for one in result.candidates if one.score is None and one.makespan]
    assert left_out
    assert all("not replayed" in (one.reason or "") for one in left_out)


def test_algorithms_that_do_not_exist_are_not_listed_and_engines_say_why() -> None:
    result = solve(problem_of(load_topology("ring:4"), "allgather"), "auto", QUICK)
    reasons = {one.engine: one.reason for one in result.candidates if one.makespan is None}
    assert set(reasons) == {"flow"}
    assert "do not each go from one rank to one other" in (reasons["flow"] or "")


def test_several_counts_compete_and_each_is_listed() -> None:
    def task(count: int, seconds: float) -> tuple[Problem, Options]:
        problem = problem_of(load_topology("ring:4"), "broadcast", count, 16_000_000 // count)
        return problem, replace(QUICK, time_limit=seconds)

    found = chosen(portfolio.portfolio(Series((1, 2, 4), task, long=True), 5.0))
    assert found.schedule is not None
    assert found.schedule.collective.chunks_per_rank == 4
    assert {one.chunks for one in found.candidates} == {1, 2, 4}


@pytest.mark.parametrize(("seconds", "tries"), [(60.0, True), (12.0, False)])
def test_no_model_is_tried_that_takes_longer_to_make_than_its_time(
    monkeypatch: pytest.MonkeyPatch, seconds: float, tries: bool
) -> None:
    # 32 links, and 64 chunks that may follow each other on each: 13 seconds.
    calls = recorded(monkeypatch, slow_ring())
    timed = replace(QUICK, deterministic=False, time_limit=seconds)
    solve(problem_of(load_topology("ndv2"), "alltoall"), "auto", timed)
    assert ("exact" in [name for name, _ in calls]) is tries


def broadcasts(counts: tuple[int, ...], options: Options) -> Series:
    def task(count: int, seconds: float) -> tuple[Problem, Options]:
        problem = problem_of(load_topology("ring:4"), "broadcast", count)
        return problem, replace(options, time_limit=seconds)

    return Series(counts, task)


def test_an_engine_that_is_left_out_is_listed_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(portfolio, "COUNTED", 0)
    monkeypatch.setattr(portfolio, "HUGE", 0)
    result = solve(problem_of(star5(), "allgather"), "auto", replace(QUICK, time_limit=1.0))
    reasons = {one.engine: one.reason or "" for one in result.candidates if one.makespan is None}
    assert "its model is too large" in reasons["exact"]
    assert "longer than its share" in reasons["taccl"]


def test_every_chunk_count_is_looked_at_for_what_it_is_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # One chunk and 8 links, and two of them.
    monkeypatch.setattr(portfolio, "COUNTED", 8)
    found = portfolio.portfolio(broadcasts((1, 2), QUICK), 8.0)
    assert [(one.chunks, one.result is None) for one in found if one.engine == "exact"] == [
        (1, False), (2, True),
    ]  # fmt: skip


def test_what_was_spent_before_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = recorded(monkeypatch, slow_ring())
    timed = replace(QUICK, deterministic=False)
    portfolio.portfolio(broadcasts((1,), timed), 40.0, time.monotonic() - 39.0)
    assert calls == []


def test_one_more_search_leaves_time_to_judge_and_write_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = recorded(monkeypatch, slow_ring())
    timed = replace(QUICK, deterministic=False)
    slow = replace(broadcasts((1,), timed), overhead=lambda: 10.0)
    portfolio.portfolio(slow, 40.0)
    assert len(calls) == len(SEARCHES) + 1
    assert calls[-1][1] <= portfolio.ALL * 40.0 - 10.0


def test_an_interrupt_ends_it_even_where_nothing_can_be_lowered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stop = Event()
    stop.set()
    calls = recorded(monkeypatch, slow_ring())
    options = replace(QUICK, stop=stop, score=lambda _schedule: None)
    found = portfolio.portfolio(broadcasts((1,), options), 40.0)
    assert calls == []
    assert sum(one.result is not None for one in found) == 1


def test_algorithms_leave_the_searches_their_time_even_where_nothing_can_be_lowered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(portfolio, "FIRST", 0.0)
    recorded(monkeypatch, slow_ring())
    timed = replace(QUICK, deterministic=False, score=lambda _schedule: None)
    engines = [one.engine for one in portfolio.portfolio(broadcasts((1,), timed), 40.0)]
    assert engines[: len(SEARCHES)] == [*SEARCHES]
    assert {*CLASSICAL} <= {*engines}

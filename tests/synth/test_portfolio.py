"""Engine ``auto``: as good as its parts, what it lists, and when it ends."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from threading import Event

import pytest

from taccl.bounds import any_bounds, best
from taccl.errors import NoAlgorithmError, NoScheduleError
from taccl.model.problem import Bound, Options, Problem, Result, Status
from taccl.model.schedule import Schedule
from taccl.synth import search as portfolio
from taccl.synth.search import (
    ENGINES,
    QUARTER,
    SEARCHES,
    Attempt,
    Search,
    Series,
    chosen,
    is_enough,
    solve,
)
from taccl.synth.templates.classical import CLASSICAL, run_classical
from taccl.timing.deadline import Deadline
from taccl.topology.file import load_topology
from tests.generators import random_problem, star5
from tests.synth.problems import QUICK, problem_of


def alone(problem: Problem, engine: str, seconds: float) -> int | None:
    try:
        found = solve(problem, engine, replace(QUICK, time_limit=seconds)).schedule
    except NoScheduleError:
        return None
    return None if found is None else found.makespan


def test_every_turn_of_auto_is_an_engines() -> None:
    assert {*SEARCHES} <= {*ENGINES} - {"auto"}
    assert {"guided", "flow", "taccl", "exact"} <= {*SEARCHES}


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


def test_every_search_gets_a_quarter_of_counted_work(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = recorded(monkeypatch, slow_ring())
    monkeypatch.setattr(portfolio, "trees_are_alike", lambda _problem: False)
    solve(problem_of(star5(), "allgather"), "auto", replace(QUICK, time_limit=40.0))
    assert [name for name, _ in calls] == [*SEARCHES]
    assert [seconds for _, seconds in calls] == pytest.approx([8.5] * len(SEARCHES))


def timed(seconds: float) -> Options:
    return replace(QUICK, deterministic=False, time_limit=seconds)


class _Clocked:
    """Searches that take the time that they get, by a clock of their own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.calls: list[tuple[str, int, int, tuple[Schedule, ...]]] = []
        self.seconds: list[float] = []
        self.better: Mapping[str, int] = {}
        self.quick: set[str] = set()
        monkeypatch.setattr("taccl.timing.deadline.time.monotonic", lambda: self.now)
        monkeypatch.setattr(portfolio, "CLASSICAL", {})
        monkeypatch.setattr(portfolio, "SEARCHES", {name: self._engine(name) for name in SEARCHES})

    def _engine(self, name: str) -> Callable[[Problem, Options], Result]:
        def search(problem: Problem, options: Options) -> Result:
            self.now += 0.1 if name in self.quick else options.time_limit
            chunks = problem.collective.chunks_per_rank
            self.calls.append((name, chunks, options.seed, options.known))
            self.seconds.append(options.time_limit)
            return Result(Status.FEASIBLE, slow_ring(), (), name, 0.0)

        return search

    def run(self, counts: tuple[int, ...], seconds: float = 40.0, overhead: float = 0.0) -> None:
        def score(_schedule: Schedule) -> int:
            name, chunks, *_ = self.calls[-1]
            return 1000 - self.better.get(f"{name} {chunks}", 0)

        series = broadcasts(counts, replace(timed(seconds), score=score))
        series = replace(series, overhead=lambda: overhead)
        found = Search(series, Deadline.after(seconds))
        portfolio.portfolio(found)


def test_every_engine_has_a_short_turn_before_one_has_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clocked = _Clocked(monkeypatch)
    clocked.run((1, 2))
    assert [(name, chunks) for name, chunks, *_ in clocked.calls[:4]] == [(n, 1) for n in SEARCHES]
    assert clocked.seconds[:4] == pytest.approx([40 / 6, 40 / 6, 40 / 6, 40 / 6], rel=0.02)
    assert sum(clocked.seconds) <= 40


def test_an_engine_whose_turns_are_quick_goes_on_until_more_chunks_do_not_pay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clocked = _Clocked(monkeypatch)
    clocked.quick = {"flow"}
    for two, then in ((500, ("flow", 4)), (-1, ("guided", 1)), (-1500, ("guided", 1))):
        clocked.calls.clear()
        clocked.better = {"flow 2": two}
        clocked.run((1, 2, 4))
        engines = [(name, chunks) for name, chunks, *_ in clocked.calls]
        assert engines[:3] == [("flow", 1), ("flow", 2), then]


def test_more_chunks_go_to_who_is_close_and_engines_start_from_what_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clocked = _Clocked(monkeypatch)
    clocked.better = {"taccl 1": 500, "taccl 2": 600}
    clocked.run((1, 2))
    engines = [(name, chunks) for name, chunks, *_ in clocked.calls]
    assert engines[4] == ("taccl", 2)
    known = [schedules for *_, schedules in clocked.calls]
    assert [len(schedules) for schedules in known[:5]] == [0, 1, 2, 2, 0]


def test_an_engine_that_won_over_all_before_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    clocked = _Clocked(monkeypatch)
    clocked.better = {"guided 1": 500, "guided 2": 400}
    clocked.run((1, 2, 4))
    engines = [(name, chunks) for name, chunks, *_ in clocked.calls]
    assert engines[:4] == [("flow", 1), ("guided", 1), ("guided", 2), ("exact", 1)]


def test_who_did_not_improve_the_best_is_not_asked_again_before_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clocked = _Clocked(monkeypatch)
    clocked.better = {"guided 1": 10}
    clocked.run((1,), 80.0)
    after = [(name, seed) for name, _, seed, _ in clocked.calls[4:]]
    assert after[0] == ("guided", 1), "all but it were asked after it had found the best"
    assert len({name for name, _ in after[:4]}) == len(after[:4])


def test_the_last_turn_leaves_time_to_score_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clocked = _Clocked(monkeypatch)
    clocked.run((1,), 40.0, overhead=10.0)
    assert sum(clocked.seconds) <= 30.0 + 0.5


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


def test_what_ends_after_the_program_of_another_way_is_lowered_only_where_slices_pass_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(portfolio, "SEARCHES", {})
    problem = problem_of(load_topology("dgx-a100", nodes=2), "alltoall")
    most = {}
    for sliced in (False, True):
        names, lowered = list[str](), defaultdict[str, set[int]](set)

        def score(schedule: Schedule) -> int:
            lowered[names[-1]].add(schedule.makespan)  # noqa: B023
            return schedule.makespan

        def task(_count: int, seconds: float) -> tuple[Problem, Options]:
            return problem, replace(QUICK, time_limit=seconds, starts=names.append, score=score)  # noqa: B023

        portfolio.portfolio(Search(Series((1,), task, sliced=sliced), counted(5.0)))
        most[sliced] = max(map(len, lowered.values()))
    assert most[False] == 1
    assert most[True] > 1


def test_algorithms_that_do_not_exist_are_not_listed_and_engines_say_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("taccl.synth.flow.engine.MOST_PAIRS", 1)
    result = solve(problem_of(load_topology("ring:4"), "allgather"), "auto", QUICK)
    reasons = {one.engine: one.reason for one in result.candidates if one.makespan is None}
    assert set(reasons) == {"flow"}
    assert "so many trees" in (reasons["flow"] or "")


def test_trees_are_left_to_others_where_a_rank_has_one_port() -> None:
    reasons = {}
    for machine in ("hub:4", "ring:4"):
        result = solve(problem_of(load_topology(machine), "broadcast", 2), "auto", QUICK)
        reasons[machine] = {one.engine: one.reason for one in result.candidates}["flow"]
    assert reasons["hub:4"] == "left out: a rank has one port inside its server, for any tree"
    assert reasons["ring:4"] is None


def test_several_counts_compete_and_each_is_listed() -> None:
    def task(count: int, seconds: float) -> tuple[Problem, Options]:
        problem = problem_of(load_topology("ring:4"), "broadcast", count, 16_000_000 // count)
        return problem, replace(QUICK, time_limit=seconds)

    found = chosen(portfolio.portfolio(Search(Series((1, 2, 4), task, long=True), counted(5.0))))
    assert found.schedule is not None
    assert found.schedule.collective.chunks_per_rank == 4
    assert {one.chunks for one in found.candidates} == {1, 2, 4}


@pytest.mark.parametrize(("seconds", "tries"), [(60.0, True), (12.0, False)])
def test_no_model_is_tried_that_takes_longer_to_make_than_its_time(
    monkeypatch: pytest.MonkeyPatch, seconds: float, tries: bool
) -> None:
    # 32 links, and 64 chunks that may follow each other on each: 13 seconds.
    clocked = _Clocked(monkeypatch)
    solve(problem_of(load_topology("ndv2"), "alltoall"), "auto", timed(seconds))
    assert ("exact" in [name for name, *_ in clocked.calls]) is tries


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
    found = portfolio.portfolio(Search(broadcasts((1, 2), QUICK), counted(8.0)))
    assert [(one.chunks, one.result is None) for one in found if one.engine == "exact"] == [
        (1, False), (2, True),
    ]  # fmt: skip


def test_what_was_spent_before_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = recorded(monkeypatch, slow_ring())
    clock = Deadline.after(40.0, spent=41.0)
    portfolio.portfolio(Search(broadcasts((1,), timed(40.0)), clock))
    assert calls == []


def counted(seconds: float, stop: Event | None = None) -> Deadline:
    return Deadline(counted=seconds, stop=stop or Event())


def test_an_interrupt_ends_it_even_where_nothing_can_be_lowered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stop = Event()
    stop.set()
    calls = recorded(monkeypatch, slow_ring())
    options = replace(QUICK, stop=stop, score=lambda _schedule: None)
    found = portfolio.portfolio(Search(broadcasts((1,), options), counted(40.0, stop)))
    assert calls == []
    assert sum(one.result is not None for one in found) == 1


def test_algorithms_leave_the_searches_their_time_even_where_nothing_can_be_lowered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(portfolio, "FIRST", 0.0)
    recorded(monkeypatch, slow_ring())
    unscored = replace(timed(40.0), score=lambda _schedule: None)
    found = portfolio.portfolio(Search(broadcasts((1,), unscored), Deadline.after(40.0)))
    engines = [one.engine for one in found]
    assert engines[: len(SEARCHES)] == [*SEARCHES]
    assert {*CLASSICAL} <= {*engines}


def test_where_slices_are_passed_on_only_ranked_algorithms_come_before_the_engines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded(monkeypatch, slow_ring())
    sliced = replace(broadcasts((1,), timed(40.0)), sliced=True)
    ranking = ("chain", "binomial")
    found = portfolio.portfolio(Search(sliced, Deadline.after(40.0), ranking=ranking))
    engines = [one.engine for one in found]
    assert tuple(engines[:2]) == ranking
    assert engines[2] == next(iter(SEARCHES))
    assert {*CLASSICAL} <= {*engines}


def test_close_to_the_bound_those_that_are_expected_to_be_as_fast_are_tried_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded(monkeypatch, slow_ring())
    tried: dict[int, list[str]] = {}
    for above in (0, 1):
        names = list[str]()
        options = replace(timed(40.0), score=lambda _: 1000 + above, starts=names.append)  # noqa: B023
        series = replace(broadcasts((1,), options), sliced=True, floor=1000)
        portfolio.portfolio(Search(series, Deadline.after(40.0), ranking=("chain", "binomial")))
        tried[above] = names
    assert tried == {0: ["chain"], 1: ["chain", "binomial"]}


def test_the_best_algorithm_so_far_is_the_first_to_try_more_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(portfolio, "SEARCHES", {})
    tried = list[tuple[str, int]]()

    def score(schedule: Schedule) -> int:
        return 1000 - 10 * (tried[-1][0] == "binomial") - schedule.collective.chunks_per_rank

    series = broadcasts((1, 2), replace(timed(40.0), score=score))

    def task(count: int, seconds: float) -> tuple[Problem, Options]:
        problem, options = series.task(count, seconds)
        return problem, replace(options, starts=lambda name: tried.append((name, count)))

    sliced = replace(series, task=task, sliced=True)
    portfolio.portfolio(Search(sliced, Deadline.after(40.0), ranking=("chain", "binomial")))
    assert tried[:4] == [("chain", 1), ("binomial", 1), ("binomial", 2), ("chain", 2)]

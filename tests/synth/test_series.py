"""An engine along a series of chunk counts: what is tried, with how much time, and when it ends."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from threading import Event

import pytest

from taccl.errors import NoAlgorithmError, NoScheduleError
from taccl.model.problem import Options, Problem, Result
from taccl.model.schedule import Schedule
from taccl.synth.search import Attempt, Series, along, solve
from taccl.timing.deadline import Deadline
from tests.generators import ring4
from tests.synth.problems import QUICK, problem_of


def series_of(
    counts: tuple[int, ...],
    scores: Mapping[int, int | None],
    *,
    long: bool = False,
    stop: Event | None = None,
    seen: list[float] | None = None,
) -> Series:
    """Return a series whose schedules have the given scores."""

    def score(schedule: Schedule) -> int | None:
        return scores[schedule.collective.chunks_per_rank]

    def task(count: int, seconds: float) -> tuple[Problem, Options]:
        if seen is not None:
            seen.append(seconds)
        options = replace(QUICK, time_limit=seconds, score=score, stop=stop or Event())
        return problem_of(ring4(), "allgather", count), options

    return Series(counts, task, long=long)


def ring(problem: Problem, options: Options) -> Result:
    return solve(problem, "ring", options)


def counted(seconds: float = 10.0) -> Deadline:
    return Deadline(counted=seconds)


def tried(series: Series, engine: Callable[[Problem, Options], Result] = ring) -> list[Attempt]:
    return list(along("ring", engine, series, counted()))


def test_more_chunks_are_tried_as_long_as_they_pay() -> None:
    found = tried(series_of((1, 2, 4, 8), {1: 30, 2: 20, 4: 20, 8: 10}))
    assert [(one.chunks, one.score) for one in found] == [(1, 30), (2, 20), (4, 20)]


def test_of_a_long_series_two_counts_may_bring_nothing() -> None:
    scores = {1: 30, 2: 40, 4: 20, 8: 20, 16: 20, 32: 1}
    found = tried(series_of(tuple(scores), scores, long=True))
    assert [one.chunks for one in found] == [1, 2, 4, 8, 16]


def test_what_can_not_be_lowered_ends_the_series_with_the_reason() -> None:
    found = tried(series_of((1, 2, 4), {1: 30, 2: None, 4: 1}))
    assert [one.score for one in found] == [30, None]
    assert found[-1].candidates[0].reason == "it can't be lowered"
    assert found[-1].time is None


def test_fewer_chunks_may_fit_where_more_do_not() -> None:
    found = tried(series_of((12, 16, 4, 8), {12: None, 16: 1, 4: 20, 8: 30}))
    assert [(one.chunks, one.score) for one in found] == [(12, None), (4, 20), (8, 30)]


def test_what_can_not_be_served_ends_the_series_with_the_error() -> None:
    def refuses(problem: Problem, options: Options) -> Result:
        if problem.collective.chunks_per_rank > 1:
            raise NoScheduleError("too many chunks", fix="use fewer")
        return ring(problem, options)

    found = tried(series_of((1, 2, 4), {1: 30, 2: 20, 4: 1}), refuses)
    assert [one.chunks for one in found] == [1, 2]
    (row,) = found[-1].candidates
    assert (row.makespan, row.score, row.reason) == (None, None, "too many chunks")


def test_an_algorithm_that_needs_two_chunks_is_tried_with_two() -> None:
    def needs_two(problem: Problem, options: Options) -> Result:
        if problem.collective.chunks_per_rank < 2:
            raise NoAlgorithmError("no such algorithm")
        return ring(problem, options)

    found = tried(series_of((1, 2, 4), {2: 20, 4: 10}), needs_two)
    assert [(one.chunks, one.score) for one in found] == [(1, None), (2, 20), (4, 10)]


def test_an_algorithm_that_does_not_exist_with_two_chunks_is_given_up() -> None:
    def refuses(_problem: Problem, _options: Options) -> Result:
        raise NoAlgorithmError("no such algorithm")

    found = tried(series_of((1, 2, 4, 8), {}), refuses)
    assert [one.chunks for one in found] == [1, 2]


def test_an_interrupt_ends_the_series_but_not_before_the_first_count() -> None:
    stop = Event()
    stop.set()
    found = tried(series_of((1, 2), {1: 30, 2: 20}, stop=stop))
    assert [one.chunks for one in found] == [1]


@pytest.mark.parametrize(
    ("counts", "long", "shares"),
    [((1,), False, [1.0]), ((1, 2, 4), False, [0.75, 0.4, 0.4]), ((1, 2), True, [0.3, 0.4])],
)
def test_one_count_gets_all_the_time_and_the_first_of_several_most(
    counts: tuple[int, ...], long: bool, shares: list[float]
) -> None:
    seen: list[float] = []
    tried(series_of(counts, {1: 30, 2: 20, 4: 10}, long=long, seen=seen))
    assert seen == pytest.approx([share * 10 for share in shares])


def test_without_time_only_the_first_count_is_tried() -> None:
    late = Deadline.after(10.0, spent=60.0)
    found = list(along("ring", ring, series_of((1, 2), {1: 30, 2: 20}), late))
    assert [one.chunks for one in found] == [1]


def test_no_count_is_begun_that_would_take_too_long_to_score() -> None:
    slow = replace(series_of((1, 2), {1: 30, 2: 20}), overhead=lambda: 100.0)
    assert [one.chunks for one in along("ring", ring, slow, Deadline.after(10.0))] == [1]

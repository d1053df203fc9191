"""The lower envelope: disjoint, without gaps, near the fastest, with the fewest changes."""

from itertools import pairwise, product

from hypothesis import given, settings
from hypothesis import strategies as st

from taccl.tuning.choice import Stretch, envelope, fastest_at, is_good_enough

TIME = st.one_of(st.none(), st.integers(1, 10**9), st.integers(95, 110))


@st.composite
def programs(draw: st.DrawFn, most: int = 6, sizes: int = 8) -> list[list[int | None]]:
    """Return times of some programs at some sizes."""
    count = draw(st.integers(1, sizes))
    return draw(st.lists(st.lists(TIME, min_size=count, max_size=count), min_size=1, max_size=most))


def least(times: list[list[int | None]], place: int, among: list[int]) -> int | None:
    return min((t for n in among if (t := times[n][place]) is not None), default=None)


def test_one_program_within_two_percent_serves_all_sizes() -> None:
    times = [[100, 102, 100], [101, 100, 102], [102, 200, 90_000]]
    assert envelope(times, []) == (Stretch(0, 0, 2),)


def test_a_classical_algorithm_is_never_faster_than_what_is_chosen() -> None:
    times = [[101, 101, 101], [100, 300, 300]]
    assert envelope(times, []) == (Stretch(0, 0, 2),)
    assert envelope(times, [1]) == (Stretch(1, 0, 0), Stretch(0, 1, 2))


def test_sizes_at_which_nothing_runs_are_left_out() -> None:
    times: list[list[int | None]] = [[None, 5, None, 7]]
    found = envelope(times, [])
    assert [(s.program, s.first, s.last) for s in found] == [
        (None, 0, 0), (0, 1, 1), (None, 2, 2), (0, 3, 3),
    ]  # fmt: skip


def test_of_choices_with_the_same_changes_the_one_that_loses_least() -> None:
    # Both can serve the middle size; the second is faster there.
    times = [[100, 101, 900], [900, 100, 100]]
    assert envelope(times, []) == (Stretch(0, 0, 0), Stretch(1, 1, 2))


def test_nothing_makes_nothing() -> None:
    assert envelope([], []) == ()


@given(programs(), st.data())
def test_stretches_are_disjoint_without_gaps_and_near_the_fastest(
    times: list[list[int | None]], data: st.DataObject
) -> None:
    classical = data.draw(st.lists(st.sampled_from(range(len(times))), unique=True))
    found = envelope(times, classical)
    assert [place for s in found for place in range(s.first, s.last + 1)] == list(
        range(len(times[0]))
    )
    for before, after in pairwise(found):
        assert before.program != after.program
    for stretch in found:
        for place in range(stretch.first, stretch.last + 1):
            best = least(times, place, list(range(len(times))))
            if stretch.program is None:
                assert best is None
                continue
            time, known = times[stretch.program][place], least(times, place, classical)
            assert time is not None
            assert best is not None
            assert time * 100 <= best * 102
            assert known is None or time <= known


@settings(max_examples=60)
@given(programs(most=3, sizes=5))
def test_no_other_choice_changes_less_often(times: list[list[int | None]]) -> None:
    places = range(len(times[0]))
    if any(fastest_at(times, place) is None for place in places):
        return
    good = []
    for place in places:
        best = least(times, place, list(range(len(times)))) or 0
        good.append([n for n in range(len(times)) if is_good_enough(times[n][place], best, None)])
    changes = [sum(one != other for one, other in pairwise(choice)) for choice in product(*good)]
    assert len(envelope(times, [])) - 1 == min(changes)

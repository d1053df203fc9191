"""A sweep goes through every case once, shows what fails, and leaves no case to nobody."""

from collections import Counter
from collections.abc import Callable

import pytest

from tests.sweep import for_each, spread


def shares(test: Callable[..., None]) -> dict[str, bool]:
    """Return the names of the tests that share the cases, and which are slow."""
    (mark,) = test.pytestmark  # type: ignore[attr-defined]
    return {share.values[0]: bool(share.marks) for share in mark.args[1]}


def test_every_combination_has_its_turn_once() -> None:
    seen: Counter[tuple[int, str, bool]] = Counter()

    @for_each("number", range(3))
    @for_each(("text", "flag"), [("a", True), ("b", False)])
    def body(number: int, text: str, *, flag: bool) -> None:
        seen[number, text, flag] += 1

    body()
    assert seen == {(n, *rest): 1 for n in range(3) for rest in (("a", True), ("b", False))}


@pytest.mark.parametrize(("quick", "parts"), [(None, 3), (7, 1), (7, 2), (60, 2)])
def test_the_quick_the_slow_and_all_parts_together_are_all_cases(
    quick: int | None, parts: int
) -> None:
    seen: dict[bool, Counter[int]] = {False: Counter(), True: Counter()}
    slow = False

    @for_each("number", range(50), quick=quick, parts=parts)
    def body(number: int) -> None:
        seen[slow][number] += 1

    assert len(shares(body)) == parts * (2 if quick == 7 else 1)
    for share, slow in shares(body).items():  # noqa: B007 - body reads it
        body(cases=share)
    assert seen[False] + seen[True] == Counter(range(50))
    assert seen[False].total() == (7 if quick == 7 else 50)


def test_what_fails_is_shown_with_the_names_of_all_that_fail() -> None:
    @for_each("number", range(10))
    def body(number: int) -> None:
        if number == 4:
            pytest.fail("four")
        assert number % 3, "threes"

    with pytest.raises(AssertionError, match="threes") as caught:
        body()
    assert caught.value.__notes__ == ["case: 0", "5 of 10 cases fail, also: ['3', '4', '6', '9']"]


def test_cases_have_the_names_that_are_given() -> None:
    @for_each("number", [1, 0], ids=["one", "nought"])
    def body(number: int) -> None:
        assert number

    with pytest.raises(AssertionError, match="assert 0") as caught:
        body()
    assert caught.value.__notes__ == ["case: nought"]


def test_what_ends_the_run_is_not_kept() -> None:
    @for_each("number", range(2))
    def body(number: int) -> None:
        del number
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        body()


def test_a_case_that_is_skipped_leaves_the_others_their_turn() -> None:
    seen: list[int] = []

    @for_each("number", range(3))
    def body(number: int) -> None:
        if number == 1:
            pytest.skip("not this one")
        seen.append(number)

    body()
    assert seen == [0, 2]


def test_where_all_cases_are_skipped_it_is_skipped() -> None:
    @for_each("number", range(3))
    def body(number: int) -> None:
        pytest.skip(f"without {number}")

    with pytest.raises(pytest.skip.Exception, match="without 0"):
        body()


def test_without_cases_it_is_skipped() -> None:
    @for_each("number", [], quick=3, parts=2)
    def body(number: int) -> None:
        del number

    with pytest.raises(pytest.skip.Exception, match="no cases"):
        body()


def test_a_part_has_all_values_of_the_inner_sweep() -> None:
    # Cases are numbered with the inner values first: 5 of 20 x 5.
    for total, inner in ((100, 5), (56, 8), (297, 99), (52, 13)):
        assert {at % inner for at in spread(total, inner)} == set(range(inner))

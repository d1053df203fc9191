"""Which search is next: where most can be saved, never the same twice."""

from collections import Counter
from dataclasses import replace
from itertools import islice

from taccl.tuning.candidate import Outcome, Played, Spec
from taccl.tuning.search import TEXTBOOK, Picker, Plan

SIZES = tuple(1 << exponent for exponent in range(10, 22))


def plan(**bounds: int) -> Plan:
    """Return a plan of collectives with one bound for all sizes."""
    return Plan(tuple(bounds), SIZES, 8, {name: (at,) * 12 for name, at in bounds.items()})


def known(collective: str, engine: str, *times: int) -> Outcome:
    """Return a result with the given times at the smallest sizes, then the last of them."""
    row = (*times, *[times[-1]] * (len(SIZES) - len(times)))
    return Outcome(Spec(collective, engine, SIZES[6]), (Played("", "Simple", row, 1, 4, 1, 1, 1),))


def first(picker: Picker, count: int) -> list[Spec]:
    """Return the next searches."""
    return [spec for _ in range(count) if (spec := picker.next()) is not None]


def test_most_searches_go_where_most_can_be_saved() -> None:
    picker = Picker(plan(allgather=100, alltoall=100))
    picker.learn(known("allgather", "ring", 110))
    picker.learn(known("alltoall", "bruck", 1000))
    counts = Counter(spec.collective for spec in first(picker, 120))
    # A tenth of one's time could be saved and nine tenths of the other's.
    assert counts["alltoall"] > 3 * counts["allgather"] > 0


def test_where_searches_save_something_there_are_more() -> None:
    picker = Picker(plan(allgather=1, alltoall=1))
    for name in ("allgather", "alltoall"):
        picker.learn(known(name, "ring", 10**6))
    counts: Counter[str] = Counter()
    for number in range(60):
        (spec,) = first(picker, 1)
        counts[spec.collective] += 1
        saved = number if spec.collective == "allgather" else 0
        time = 10**6 * 98**saved // 100**saved
        picker.learn(replace(known(spec.collective, "guided", time), spec=spec))
    assert counts["allgather"] > 2 * counts["alltoall"] > 0


def test_a_size_at_its_bound_is_not_searched() -> None:
    picker = Picker(plan(allgather=100))
    picker.learn(known("allgather", "ring", 400, 400, 100))
    assert {spec.size for spec in first(picker, 12)} <= set(SIZES[:2])
    picker.learn(known("allgather", "ring", 100))
    assert picker.next() is None


def test_no_search_comes_twice() -> None:
    searches = first(Picker(plan(allgather=1, allreduce=1)), 300)
    assert len(set(searches)) == len(searches) == 300
    assert not set(searches) & set(plan(allgather=1, allreduce=1).baseline())


def test_the_best_classical_algorithm_is_made_for_the_size() -> None:
    picker = Picker(plan(allgather=1))
    picker.learn(known("allgather", "ring", 500))
    picker.learn(known("allgather", "bruck", 300, 300, 900))
    classical = [spec for spec in first(picker, 30) if spec.engine in ("ring", "bruck")]
    assert {spec.engine for spec in classical} == {"ring", "bruck"}
    assert all((spec.engine == "bruck") == (spec.size < SIZES[2]) for spec in classical)
    assert TEXTBOOK not in {spec.engine for spec in classical}


def test_a_cell_begins_anew_with_more_effort_and_another_seed() -> None:
    (cell, *_) = plan(allgather=1).cells()
    turns = list(islice(plan(allgather=1).turns(cell), 60))
    of_guided = [spec for spec in turns if (spec.engine, spec.chunks) == ("guided", 1)]
    assert [spec.seed for spec in of_guided[:4]] == [0, 0, 1, 2]
    assert [spec.effort for spec in of_guided[:4]] == [8, 8, 16, 32]


def test_a_cell_begins_with_what_finds_most_at_two_of_its_sizes() -> None:
    picker = Picker(plan(allgather=1))
    picker.learn(known("allgather", "ring", 900, 1000, *[1] * 10))
    searches = first(picker, 2)
    assert [spec.engine for spec in searches] == ["guided", "guided"]
    assert [spec.size for spec in searches] == [SIZES[1], SIZES[0]]


def test_long_chunks_are_also_cut_finer_and_tried_one_to_a_message() -> None:
    # In the last cell chunks are of 256 KiB: as they are, half as long in two, a quarter in four.
    long = replace(plan(allgather=1, alltoall=1), message_bytes=1 << 16)
    gather, pairs = long.cells()[5], long.cells()[-1]
    assert {spec.chunks for spec in islice(long.turns(gather), 12)} == {1, 2, 4}
    shorter = replace(long, message_bytes=1 << 15)
    turns = list(islice(shorter.turns(gather), 12))
    assert {spec.chunks for spec in turns} == {1, 2, 4, 8}
    assert {(spec.engine, spec.chunks) for spec in turns if not spec.batch} == {
        ("guided", 2), ("guided", 4),
    }  # fmt: skip
    assert all(spec.batch for spec in islice(shorter.turns(pairs), 30))
    assert all(spec.batch for spec in islice(plan(allgather=1).turns(gather), 30))


def test_cells_are_all_sizes_once() -> None:
    for count in range(1, 12):
        cut = Plan(("allgather",), SIZES[:count], 8, {})
        assert [place for cell in cut.cells() for place in cell.places] == list(range(count))


def test_what_an_earlier_run_did_is_not_done_again() -> None:
    one = Picker(plan(allgather=1))
    done = first(one, 5)
    again = Picker(plan(allgather=1))
    for spec in done:
        again.resume(spec)
    assert first(again, 5) == first(one, 5)


def test_a_search_that_was_interrupted_comes_next() -> None:
    one = Picker(plan(allgather=1))
    done = first(one, 18)
    cell = [spec for spec in done if spec.size == done[0].size]
    again = Picker(plan(allgather=1))
    for spec in done:
        if spec != cell[1]:
            again.resume(spec)
    rest = first(again, 12)
    assert cell[1] in rest
    assert not (set(done) - {cell[1]}) & set(rest)


def test_a_search_that_was_cut_short_or_made_for_another_size_is_not_made_again() -> None:
    done = first(Picker(plan(allgather=1)), 6)
    again = Picker(plan(allgather=1))
    again.learn(known("allgather", "ring", 100, 90, 900))
    for spec in done:
        again.resume(replace(spec, effort=0.7))
    again.learn(known("allgather", "ring", 100, 1))
    kinds = Counter((one.engine, one.chunks, one.seed) for one in done if one.size in SIZES[:2])
    assert kinds
    kinds.update((one.engine, one.chunks, one.seed) for one in first(again, 6))
    # The first engine is tried at two sizes, whatever they are, and nothing else is.
    assert {kind for kind, count in kinds.items() if count > 1} <= {("guided", 1, 0)}
    assert kinds["guided", 1, 0] == 2

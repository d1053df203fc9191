"""The comparison with what is kept of the searches' results."""

from dataclasses import replace

from benchmarks.frozen import CELLS, Found, compared, kept

OLD = {
    cell: Found(time, time, 10, 1, "aa", 1.0) for cell, time in (("a", 10.0), ("b", 20.0))
}  # fmt: skip


def test_every_cell_is_kept() -> None:
    assert set(kept()) == set(CELLS)
    assert len(CELLS) >= 40


def test_the_same_and_the_faster_are_no_worse() -> None:
    assert not list(compared(OLD, OLD))
    faster = replace(OLD["a"], makespan=11.0, replay=9.0)
    assert not list(compared({**OLD, "a": faster}, OLD)), "its schedule is slower, its program not"


def test_a_slower_replay_a_slower_median_and_a_new_cell_are_told() -> None:
    slower = {cell: replace(one, replay=one.time * 1.006) for cell, one in OLD.items()}
    assert list(compared(slower, OLD)) == [
        "a: replay 10.060 us, was 10.000", "b: replay 20.120 us, was 20.000",
        "the median is 1.0060 of what is kept",
    ]  # fmt: skip
    assert list(compared({"c": OLD["a"]}, OLD)) == ["c: nothing is kept of it"]

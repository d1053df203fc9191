"""Workload files: what they may say, and one clear error for everything else."""

from fractions import Fraction

import pytest

from taccl.errors import InputError
from taccl.training.operations import buckets_of, expanded, pieces_of
from taccl.training.workload import SyncRecord
from tests.training.workloads import uniform, workload

LAYERS = "layers: [{name: a, bytes: 1KB, forward: 1us, backward: 1us}]\n"


def test_what_a_workload_may_not_say_is_told_with_its_place() -> None:
    for text, told in (
        ("ranks: 2\n", r"layers: is missing"),
        ("ranks: 0\n" + LAYERS, r"ranks: should be at least 1"),
        ("ranks: 2\n" + LAYERS + "sync: [{group: dp}]", r"sync\[0\].group: there is no group dp"),
        ("ranks: 2\n" + LAYERS + "sync: [{group: all, collective: sum}]",
         r"sync\[0\].collective: there is no collective 'sum'"),
        ("ranks: 2\n" + LAYERS + "sync: [{group: all, bukket: 1MB}]",
         r"sync\[0\].bukket: unknown field"),
        ("ranks: 2\n" + LAYERS + "sync: [{group: all, factor: -1}]", r"factor: should be a number"),
        ("ranks: 2\n" + LAYERS + "sync: [{group: all, factor: nan}]", r"factor: should be a numb"),
        ("ranks: 2\n" + LAYERS + "groups: {tp: {each: [0-2]}}", r"tp.each\[0\]: names rank 2"),
        ("ranks: 4\n" + LAYERS + "groups: {tp: {each: [0-1, 1-2]}}", r"tp.each: instances should"),
        ("ranks: 4\n" + LAYERS + "groups: {tp: {each: [0-1, 3]}}", r"tp.each: instances should"),
        ("ranks: 4\n" + LAYERS + "groups: {tp: {each: {stride: 3, count: 2}}}",
         r"tp.each: 2 ranks 3 apart do not cover 4 ranks: not from rank 1 on"),
        ("ranks: 2\n" + LAYERS + "groups: {all: {each: [[0, 1]]}}", r"groups.all: is the group of"),
        ("ranks: 2\n" + LAYERS + "groups: {tp: {each: []}}", r"tp.each: should be a list of gr"),
        ("ranks: 2\n" + LAYERS + "groups: {tp: {each: [x]}}", r"tp.each: should be numbers of G"),
        ("ranks: 2\n" + LAYERS + f"groups: {{tp: {{each: [{'0-65535, ' * 2}]}}}}",
         r"tp.each: has more than 65536 ranks"),
        ("ranks: 2\n" + LAYERS + "speed: {2: 0.5}", r"speed\.?.*2.*: names rank 2"),
        ("ranks: 2\n" + LAYERS + "batch: {samples: 4, by: [1, 2]}", r"batch.by: should be 2 numb"),
        ("ranks: 2\nlayers: [{name: a, forward: 1us, backward: later}]", r"backward: should be a"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=told):
            workload(text)


def test_samples_are_shared_as_the_batch_says() -> None:
    def paces(batch: str) -> tuple[Fraction, ...]:
        return workload(f"ranks: 2\n{LAYERS}speed: {{1: 0.5}}\n{batch}").paces

    assert paces("") == (Fraction(1), Fraction(2))
    assert paces("batch: {samples: 6, by: weighted}") == (Fraction(4, 3), Fraction(4, 3))
    assert paces("batch: {samples: 6, by: [5, 1]}") == (Fraction(5, 3), Fraction(2, 3))


def test_buckets_close_when_they_have_reached_their_size() -> None:
    sizes = [4, 0, 10, 3, 2]
    for bucket, first, wanted in (
        (5, 1, [((4,), 2), ((3, 2), 13), ((0,), 4)]),
        (5, 5, [((4, 3), 5), ((2,), 10), ((0,), 4)]),
        (None, 1, [((4, 3, 2, 0), 19)]),
        (None, None, [((4, 3, 2, 0), 19)]),
    ):
        sync = SyncRecord.model_construct(group="all", bucket=bucket, first=first)
        found = [(one.layers, one.size) for one in buckets_of(sizes, sync)]
        assert found == wanted, (bucket, first)


def test_pieces_are_as_large_as_one_another() -> None:
    for size, piece, wanted in ((10, None, [10]), (10, 10, [10]), (10, 4, [3, 3, 4]), (1, 9, [1])):
        assert pieces_of(size, piece) == wanted


def test_a_split_collective_runs_beside_the_pass_that_makes_it() -> None:
    text = """ranks: 2
layers:
- name: a
  forward: 4ms
  backward: 1ms
  comm: [{when: forward, at: AT, collective: allreduce, group: all, bytes: 8KB, split: 4}]
"""
    for at, stream in (("end", "compute"), ("start", "all layers")):
        own = expanded(workload(text.replace("AT", at)), 1).operations[0]
        calls = [n for n, one in enumerate(own) if one.call is not None]
        passes = [n for n, one in enumerate(own) if one.name == "a forward"]
        assert [own[n].time for n in passes] == [10**9] * 4
        assert [own[n].call.size for n in calls if own[n].call is not None] == [2000] * 4  # type: ignore[union-attr]
        pairs = zip(calls, passes, strict=True) if stream == "compute" else zip(
            passes, calls, strict=True
        )  # fmt: skip
        assert all(before in own[one].after for one, before in pairs)


def test_steps_that_sum_in_none_wait_for_none() -> None:
    work = expanded(uniform(2, "every: 3, bucket: all"), 6)
    own = work.operations[0]
    assert [one.step for one in own if one.call is not None] == [2, 5]
    firsts = [one for one in own if one.name == "l0 forward"]
    waits = [any(own[n].call is not None for n in one.after) for one in firsts]
    assert waits == [False, False, False, True, False, False]


def test_more_operations_than_can_be_played_are_refused() -> None:
    many = "layers: [{name: a, bytes: 1TB, forward: 1us, backward: 1us}]\nsync: [{group: all, "
    for policy in ("partition: 1B", "partition: 2MB"):
        with pytest.raises(InputError, match="more than 1000000 operations"):
            expanded(workload(f"ranks: 2\n{many}{policy}}}]"), 6)
    speeds = ", ".join(f"{rank}: {1 + rank}" for rank in range(512))
    with pytest.raises(InputError, match="let fewer ranks differ"):
        expanded(workload(f"ranks: 512\n{LAYERS}speed: {{{speeds}}}"), 1000)

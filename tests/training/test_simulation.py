"""Training steps by hand, and what holds for all of them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl.errors import InputError
from taccl.training.operations import COMPUTE, Call, Operation, Work, classes, expanded
from taccl.training.simulation import FULL, Cost, fair_rates, played, simulate
from tests.training.workloads import MS, by_size, priced, step_of, uniform, workload


def rates(*costs: Cost) -> list[Fraction]:
    return [Fraction(rate, FULL) for rate in fair_rates([cost.needs for cost in costs])]


def test_collectives_share_edges_fairly() -> None:
    a, b = Cost.of(1000, [1000, 500]), Cost.of(1000, [1000, 0])
    d, thin = Cost.of(1000, [0, 400]), Cost.of(1000, [100, 0])
    half = Fraction(1, 2)
    assert rates(a, b) == [half, half]
    assert rates(a, d) == [1, 1]
    assert rates(a, b, d) == [half, half, 1]
    # Whoever needs little of a full edge is no better off than the others until it has all.
    assert rates(a, a, a, thin) == [Fraction(FULL * 10 // 31, FULL)] * 4


@given(
    st.lists(
        st.lists(st.integers(0, 1000), min_size=3, max_size=3), min_size=1, max_size=5
    )
)  # fmt: skip
def test_no_edge_carries_more_than_it_can(loads: list[list[int]]) -> None:
    costs = [Cost.of(1000, each) for each in loads]
    found = fair_rates([cost.needs for cost in costs])
    full = [
        sum(rate * cost.needs[edge] for rate, cost in zip(found, costs, strict=True))
        for edge in range(3)
    ]
    assert max(full) <= FULL * FULL
    for rate, cost in zip(found, costs, strict=True):
        # Whoever is slower than alone needs an edge that is full, but for what was rounded.
        assert rate == FULL or any(
            cost.needs[edge] and full[edge] > FULL * (FULL - 100 * len(costs)) for edge in range(3)
        )


def together(*costs: Cost) -> list[int]:
    """Return when collectives that begin at once end."""
    calls = [Call("allreduce", "all", 1 + number) for number in range(len(costs))]
    work = Work(
        "beside", 2, {"all": ((0, 1),)}, (0, 0),
        (tuple(Operation(f"c{n}", f"s{n}", call=one, meeting=n) for n, one in enumerate(calls)),),
    )  # fmt: skip
    return list(simulate(work, costs, {(n, 0): n for n in range(len(costs))}).end[0])


def test_collectives_that_share_no_edge_do_not_meet() -> None:
    one, other, both = Cost.of(700, [700, 0]), Cost.of(300, [0, 300]), Cost.of(900, [300, 300])
    assert together(one) == [700]
    assert together(one, other) == [700, 300]
    assert together(one, one) == [1400, 1400]
    # The short one is through at 600, when the long one has done 300 of its 700.
    assert together(one, Cost.of(300, [300, 0])) == [1000, 600]
    assert together(both, both) == [900, 900]


def test_what_ends_when_can_be_asked_of_a_replay() -> None:
    asked: list[tuple[int, ...]] = []

    def replay(running: Sequence[tuple[Cost, int]]) -> list[int]:
        asked.append(tuple(start for _, start in running))
        # The first is not disturbed, the others end 100 later than alone.
        return [start + cost.time + (100 if n else 0) for n, (cost, start) in enumerate(running)]

    calls = [Call("allreduce", "all", 1 + n) for n in range(3)]
    ops = (
        Operation("a", "a", call=calls[0], meeting=0), Operation("pass", COMPUTE, time=300),
        Operation("b", "b", (1,), call=calls[1], meeting=1),
        Operation("c", "c", (0, 2), call=calls[2], meeting=2),
    )  # fmt: skip
    work = Work("beside", 2, {"all": ((0, 1),)}, (0, 0), (ops,))
    costs = [Cost.of(1000, [1000]), Cost.of(50, [50]), Cost.of(7, [7])]
    line = simulate(work, costs, {(n, 0): n for n in range(3)}, replay)
    # c begins when nothing else runs, and takes what it takes alone.
    assert line.end == ((1000, 300, 450, 1007),)
    assert asked == [(0,), (0, 300), (0,)]


def test_without_communication_a_step_is_its_passes() -> None:
    for policy in ("", "overlap: none", "order: priority, partition: 100KB, wait: layer"):
        free = step_of(uniform(3, policy), lambda _call: Cost.of(0, [0]))
        assert free.time == free.compute == free.bound == 9 * MS
        assert not any(free.exposed.values())
        assert free.sent == {"all": 3_000_000}


def test_without_overlap_a_step_is_passes_and_collectives() -> None:
    found = step_of(uniform(3, "overlap: none, bucket: 1MB"), by_size(1000))
    assert found.time == 9 * MS + 3 * MS
    assert found.exposed == {"all": 3 * MS}


def test_sums_hide_behind_the_backward_pass() -> None:
    # The last layer's sum runs beside two backward passes, the first one's after them all.
    assert step_of(uniform(3, "bucket: 1MB"), by_size(1000)).time == 10 * MS
    # Where a sum takes as long as all passes, they queue: 2 ms of backward, and three sums.
    assert step_of(uniform(3, "bucket: 1MB"), by_size(9000)).time == 3 * MS + 2 * MS + 27 * MS
    # Sums of 4 ms end at 6, 10 and 14 ms of the backward pass; by priority the first layer's is
    # over at 10, and its next pass runs beside the sum of the second.
    assert step_of(uniform(3, "bucket: 1MB"), by_size(4000)).time == 17 * MS
    own = uniform(3, "bucket: 1MB, wait: layer, order: priority")
    assert step_of(own, by_size(4000)).time == 16 * MS


def test_sums_that_are_hidden_cost_what_is_longer() -> None:
    for every in (1, 2, 3):
        for per_byte in (500, 9000):
            policy = f"bucket: all, every: {every}, hide: 1"
            found = step_of(uniform(3, policy), by_size(per_byte), 8 * every)
            assert found.time == max(9 * MS, -(-3_000_000 * per_byte // every))


def test_even_shares_take_what_the_slowest_rank_takes() -> None:
    slow = step_of(uniform(3, more="speed: {2: 0.5}"), by_size(1))
    assert slow.time >= slow.compute == 18 * MS
    fair = step_of(
        uniform(3, more="speed: {2: 0.5}\nbatch: {samples: 7, by: weighted}"), by_size(0)
    )
    # Three ranks do 8/7 of the even share, and the slow one half of that at half the speed.
    assert fair.compute == -(-1 * MS * 8 // 7) * 3 + -(-2 * MS * 8 // 7) * 3


def test_groups_of_unlike_ranks_call_for_themselves() -> None:
    groups = {"tp": ((0, 1), (2, 3), (4, 5))}
    assert classes([1, 1, 1, 1, 1, 1], groups) == (0,) * 6
    assert classes([1, 1, 1, 2, 1, 1], groups) == (0, 0, 1, 2, 0, 0)
    text = """ranks: 4
speed: {3: 0.5}
groups: {tp: {each: [0-1, 2-3]}}
layers: [{name: a, forward: 1ms, backward: 1ms, comm: [
  {when: forward, collective: allreduce, group: tp, bytes: 1MB}]}]
"""
    work = expanded(workload(text), 1)
    assert work.class_of == (0, 0, 1, 2)
    costs = priced(work, by_size(1000))
    one = played(work, costs)
    assert one.sent == {"tp": 1_000_000}
    # Ranks 0 and 1 go on after 2 ms; rank 2 waits for rank 3, which takes twice as long.
    ends = [one.timeline.end[number][-1] for number in range(3)]
    assert ends == [3 * MS, 4 * MS, 5 * MS]


def test_ranks_that_nothing_ties_to_others_count_where_they_are_last() -> None:
    alone = workload("ranks: 2\nspeed: {0: 4}\nlayers: [{name: m, forward: 1ms, backward: 2ms}]")
    assert step_of(alone, by_size(1)).time == 3 * MS
    pairs = workload(
        "ranks: 4\nspeed: {0: 4, 1: 4}\ngroups: {dp: {each: [0-1, 2-3]}}\n"
        "layers: [{name: m, bytes: 1MB, forward: 1ms, backward: 2ms}]\nsync: [{group: dp}]"
    )
    found = step_of(pairs, by_size(1000))
    assert (found.time, found.compute, found.bound) == (4 * MS, 3 * MS, 3 * MS)


@settings(max_examples=40)
@given(
    st.lists(st.integers(0, 5000), min_size=1, max_size=6),
    st.integers(1, 9000),
    st.one_of(st.none(), st.integers(1, 4000)),
    st.sampled_from(["fifo", "priority"]),
    st.sampled_from(["step", "layer"]),
    st.sampled_from(["backward", "none"]),
    st.integers(1, 3),
    st.integers(0, 1),
)  # fmt: skip
def test_no_byte_is_lost_and_no_step_is_below_its_bound(
    sizes: list[int], bucket: int, piece: int | None, order: str, wait: str, overlap: str,
    every: int, hide: int,
) -> None:  # fmt: skip
    rows = ", ".join(
        f"{{name: l{n}, bytes: {size}, forward: {n + 1}us, backward: 3us}}"
        for n, size in enumerate(sizes)
    )
    found = workload(
        f"ranks: 2\nlayers: [{rows}]\nsync: [{{group: all, bucket: {bucket}, order: {order},"
        f" partition: {piece or 'none'}, wait: {wait}, overlap: {overlap}, every: {every},"
        f" hide: {hide}}}]"
    )
    work = expanded(found, 4 * every)
    sent: Counter[int] = Counter()
    for one in work.operations[0]:
        if one.call is not None:
            sent[one.step] += one.call.size
            assert piece is None or one.call.size <= piece
    summed = {step for step in range(work.steps) if (step + 1) % every == 0} if sum(sizes) else ()
    assert sent == dict.fromkeys(summed, sum(sizes))
    step = step_of(found, by_size(2000, (700, 1000)), 8 * every)
    assert step.time >= step.bound
    assert sum(step.exposed.values()) <= step.time


def test_operations_that_wait_for_one_another_are_told() -> None:
    groups = {"all": ((0, 1),)}
    calls = [Call("allreduce", "all", size) for size in (1, 2)]
    first = tuple(Operation(f"c{n}", "all", call=calls[n], meeting=n) for n in (0, 1))
    work = Work("crossed", 2, groups, (0, 1), (first, first[::-1]))
    costs = {(n, 0): Cost.of(5, [5]) for n in (0, 1)}
    with pytest.raises(
        InputError, match=r"c0 of step 0 .*: c0 of rank 0 for c1 of rank 1 for c0 of"
    ):
        played(work, costs)
    right = played(replace(work, operations=(first, first)), costs)
    assert right.timeline.time == 10


def test_streams_run_in_order_and_by_priority() -> None:
    def order(by_priority: frozenset[str]) -> list[str]:
        ops = (
            Operation("pass", COMPUTE, time=1),
            Operation("late", "sum", (0,), time=5, priority=2),
            Operation("early", "sum", (0,), time=5, priority=1),
        )
        work = Work("two", 1, {}, (0,), (ops,), 1, by_priority)
        timeline = simulate(work, (), {})
        begun = sorted(range(3), key=lambda n: timeline.start[0][n])
        return [ops[n].name for n in begun]

    assert order(frozenset()) == ["pass", "late", "early"]
    assert order(frozenset({"sum"})) == ["pass", "early", "late"]

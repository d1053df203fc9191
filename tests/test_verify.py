"""The verifier accepts what is correct and rejects every mutation that is not."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl.collectives import COLLECTIVES, build_collective
from taccl.errors import ScheduleError
from taccl.model.schedule import Decisions, Schedule, retime
from taccl.topology.graph import LogicalTopology, Switch, Topology, whole
from taccl.topology.symmetry import make_group
from taccl.verify import Violation, require_valid, verify
from tests.exhaustive import sound
from tests.generators import both_ways, build, pair, random_schedule, ring4, star5, timed, twin2x2
from tests.mutations import picked
from tests.sweep import for_each

RULE_NAMES = ("occupy", "delay")
Row = tuple[int, int, int, int, int, bool]


def broken(schedule: Schedule, logical: LogicalTopology | None = None) -> set[str]:
    """Return the names of the rules a schedule breaks."""
    return {violation.rule for violation in verify(schedule, logical)}


# What is correct


@for_each("rule", RULE_NAMES, quick=8)
@for_each("collective", COLLECTIVES)
def test_random_correct_schedules_are_accepted(collective: str, rule: str) -> None:
    for seed in range(40):
        schedule = random_schedule(seed, collective)
        topology = schedule.topology.with_alpha_rule(rule)
        group = make_group(topology, ())
        again = retime(schedule.collective, group, schedule.chunk_size, schedule.decisions())
        assert verify(again, whole(topology)) == [], seed


@settings(max_examples=60)
@given(seed=st.integers(0, 10**9), collective=st.sampled_from(sorted(COLLECTIVES)))
def test_retimed_random_decisions_are_valid_and_sound(seed: int, collective: str) -> None:
    schedule = random_schedule(seed, collective)
    assert verify(schedule) == []
    assert sound(schedule)


@settings(max_examples=40)
@given(seed=st.integers(0, 10**9), delay=st.integers(1, 10**6))
def test_a_schedule_that_waits_at_first_is_as_valid(seed: int, delay: int) -> None:
    schedule = random_schedule(seed)
    later = replace(schedule, start=schedule.start + delay, end=schedule.end + delay)
    assert verify(later) == []


@settings(max_examples=40)
@given(seed=st.integers(0, 10**9))
def test_the_order_of_the_rows_does_not_matter(seed: int) -> None:
    schedule = random_schedule(seed)
    order = np.random.default_rng(seed).permutation(len(schedule))
    assert verify(picked(schedule, order.tolist())) == []


def test_an_empty_schedule_on_one_rank_is_valid() -> None:
    lonely = build("one", 1, [])
    for name in COLLECTIVES:
        assert verify(timed(lonely, name, []), whole(lonely)) == []


# One rule at a time, by hand. pair: alpha 10, 2 ps a byte, 5 bytes: a message takes 20 ps.


def test_a_missing_arrival_names_chunk_and_rank() -> None:
    found = verify(timed(pair(), "allgather", [(0, (0, 1), 0, 20, 0, False)]))
    assert [str(v) for v in found] == ["delivered: chunk 1 never arrives at rank 0"]


def test_a_violation_names_chunk_link_and_time() -> None:
    # 2 s + 1 ps is 2000000.000001 us; the right duration is 10 + 2 * 5 = 20 ps.
    at = 2 * 10**12 + 1
    rows = [(0, (0, 1), at, at + 19, 0, False), (1, (1, 0), 0, 20, 1, False)]
    assert verify(timed(pair(), "allgather", rows)) == [
        Violation(
            "message", 0,
            "chunk 0 on link 0 (0 -> 1) at 2000000.000001 us takes 0.000019 us;"
            " its message of 1 chunks takes 0.00002 us",
        )
    ]  # fmt: skip


def test_a_start_before_time_0_is_rejected() -> None:
    rows = [(0, (0, 1), -1, 19, 0, False), (1, (1, 0), 0, 20, 1, False)]
    assert broken(timed(pair(), "allgather", rows)) == {"start"}


def test_a_batch_pays_alpha_once_for_all_its_bytes() -> None:
    # k = 2: chunks 0 and 1 are neighbours in rank 0's input: 10 + 2 * 10 = 30 ps together.
    rows = [
        (0, (0, 1), 0, 30, 0, False), (1, (0, 1), 0, 30, 0, False),
        (2, (1, 0), 0, 30, 1, False), (3, (1, 0), 0, 30, 1, False),
    ]  # fmt: skip
    assert broken(timed(pair(), "allgather", rows, k=2)) == set()


def test_the_rows_of_a_batch_may_come_in_any_order() -> None:
    rows = [
        (1, (0, 1), 0, 30, 0, False), (2, (1, 0), 0, 30, 1, False),
        (0, (0, 1), 0, 30, 0, False), (3, (1, 0), 0, 30, 1, False),
    ]  # fmt: skip
    assert broken(timed(pair(), "allgather", rows, k=2)) == set()


def test_a_message_of_fractions_of_a_byte_is_rounded_up_once() -> None:
    # two chunks of 1/4 byte: 10 + ceil(2 * 1/2) = 11, not 10 + 1 + 1
    rows = [
        (0, (0, 1), 0, 11, 0, False), (1, (0, 1), 0, 11, 0, False),
        (2, (1, 0), 0, 11, 1, False), (3, (1, 0), 0, 11, 1, False),
    ]  # fmt: skip
    assert broken(timed(pair(), "allgather", rows, k=2, size=Fraction(1, 4))) == set()


def test_chunks_that_are_not_neighbours_cannot_share_a_message() -> None:
    # k = 3: chunks 0 and 2 of rank 0 lie at offsets 0 and 2
    rows = [
        (0, (0, 1), 0, 30, 0, False), (2, (0, 1), 0, 30, 0, False), (1, (0, 1), 30, 50, 1, False),
        (3, (1, 0), 0, 20, 2, False), (4, (1, 0), 20, 40, 3, False), (5, (1, 0), 40, 60, 4, False),
    ]  # fmt: skip
    assert broken(timed(pair(), "allgather", rows, k=3)) == {"adjacency"}


def test_a_relayed_chunk_is_a_neighbour_only_once_it_has_arrived() -> None:
    # ring4, 5 bytes: one chunk takes 15 ps, two 20. AllGather: chunk 0 reaches rank 1's output
    # at offset 0; with rank 1's own chunk at offset 1 it may go on to rank 2 in one message.
    # Where own chunk and relayed chunk are read from the output, both are there at 15.
    rows = [
        (0, (0, 1), 0, 15, 0, False), (1, (1, 0), 0, 15, 1, False),
        (0, (1, 2), 15, 35, 2, False), (1, (1, 2), 15, 35, 2, False),
        (0, (2, 3), 35, 50, 3, False), (1, (2, 3), 50, 65, 4, False),
        (2, (2, 1), 0, 15, 5, False), (2, (2, 3), 0, 15, 6, False), (2, (1, 0), 15, 30, 7, False),
        (3, (3, 0), 0, 15, 8, False), (3, (3, 2), 0, 15, 9, False), (3, (2, 1), 15, 30, 10, False),
    ]  # fmt: skip
    assert broken(timed(ring4(), "allgather", rows)) == set()


def test_two_messages_on_one_edge_at_once_are_rejected() -> None:
    # k = 2, under occupy: the edge is held 10 + 10 ps
    rows = [
        (0, (0, 1), 0, 20, 0, False), (1, (0, 1), 19, 39, 1, False),
        (2, (1, 0), 0, 20, 2, False), (3, (1, 0), 20, 40, 3, False),
    ]  # fmt: skip
    found = verify(timed(pair(), "allgather", rows, k=2))
    assert [str(v) for v in found] == [
        "resource: chunk 1 on link 0 (0 -> 1) at 0.000019 us needs edge e0,"
        " which chunk 0 on link 0 (0 -> 1) at 0 us holds until 0.00002 us"
    ]


def test_under_delay_the_latency_does_not_hold_the_edge() -> None:
    # the edge is held 2 * 5 = 10 ps: the second message may start at 10
    rows = [
        (0, (0, 1), 0, 20, 0, False), (1, (0, 1), 10, 30, 1, False),
        (2, (1, 0), 0, 20, 2, False), (3, (1, 0), 9, 29, 3, False),
    ]  # fmt: skip
    assert [v.send for v in verify(timed(pair("delay"), "allgather", rows, k=2))] == [3]


def test_a_shared_port_is_one_resource_for_all_links() -> None:
    # star5, delay: up 1 ps a byte, down 2. Rank 0 sends to 1 and to 2: its up edge is held 5 ps.
    hop = 10 + 2 * 5
    fine = [(1, (0, 1), 0, hop, 0, False), (2, (0, 2), 5, 5 + hop, 1, False)]
    clash = [(1, (0, 1), 0, hop, 0, False), (2, (0, 2), 4, 4 + hop, 1, False)]
    assert "resource" not in broken(timed(star5("delay"), "alltoall", fine))
    assert "resource" in broken(timed(star5("delay"), "alltoall", clash))


def test_edges_of_one_link_are_released_each_at_its_own_time() -> None:
    # star5, delay: 0 -> 1 holds up(0) for 5 ps and down(1) for 10 ps
    hop = 10 + 2 * 5
    rows = [(1, (0, 1), 0, hop, 0, False), (11, (2, 1), 9, 9 + hop, 1, False)]
    assert "resource" in broken(timed(star5("delay"), "alltoall", rows))
    rows = [(1, (0, 1), 0, hop, 0, False), (11, (2, 1), 10, 10 + hop, 1, False)]
    assert "resource" not in broken(timed(star5("delay"), "alltoall", rows))


def test_an_edge_without_bandwidth_is_no_resource() -> None:
    # both messages cross the free edge 0 -> hub at once, and different edges behind it
    hops = [(0, 3, 4, None, None), (3, 1, 6, None, Fraction(1)), (3, 2, 6, None, Fraction(1)),
            *both_ways(1, 2, 9, Fraction(1)), (1, 0, 9, None, Fraction(1))]  # fmt: skip

    topology = build("free", 3, hops, switches=[Switch("hub")])
    rows = [(1, (0, 1), 0, 15, 0, False), (2, (0, 2), 0, 15, 1, False)]
    assert "resource" not in broken(timed(topology, "alltoall", rows))


def test_a_chunk_may_be_forwarded_from_its_arrival_on() -> None:
    rows = [(0, (0, 1), 0, 15, 0, False), (0, (1, 2), 15, 30, 1, False)]
    assert "held" not in broken(timed(ring4(), "allgather", rows))
    rows = [(0, (0, 1), 0, 15, 0, False), (0, (1, 2), 14, 29, 1, False)]
    assert "held" in broken(timed(ring4(), "allgather", rows))


def test_a_chunk_does_not_arrive_twice_at_a_rank() -> None:
    rows = [
        (0, (0, 1), 0, 20, 0, False), (0, (0, 1), 20, 40, 1, False), (1, (1, 0), 0, 20, 2, False),
    ]  # fmt: skip
    assert [(v.rule, v.send) for v in verify(timed(pair(), "allgather", rows))] == [("once", 1)]


def test_a_chunk_does_not_return_to_its_source() -> None:
    rows = [
        (0, (0, 1), 0, 20, 0, False), (1, (1, 0), 0, 20, 1, False), (0, (1, 0), 20, 40, 2, False),
    ]  # fmt: skip
    assert broken(timed(pair(), "allgather", rows)) == {"once"}


def test_a_copying_collective_does_not_reduce() -> None:
    rows = [(0, (0, 1), 0, 20, 0, True), (1, (1, 0), 0, 20, 1, False)]
    assert broken(timed(pair(), "allgather", rows)) == {"held"}


def test_messages_without_duration_cannot_feed_each_other() -> None:
    # chunk 0 (0 -> 1) comes from nowhere at ranks 2 and 3, which give it to each other
    hops = [(a, b, 0, None, None) for a in range(4) for b in range(4) if a != b]
    topology = build("instant", 4, hops)
    pairs = [(s, d) for s in range(4) for d in range(4) if s != d]
    source = [(s, (s, d), 0, 0, i, False) for i, (s, d) in enumerate(pairs)]
    assert broken(timed(topology, "allgather", source)) == set()
    circle = [row for row in source if row[:2] not in ((0, (0, 2)), (0, (0, 3)))]
    circle += [(0, (2, 3), 0, 0, 20, False), (0, (3, 2), 0, 0, 21, False)]
    assert broken(timed(topology, "allgather", circle)) == {"held"}


# Sums. pair, ReduceScatter: chunk d ends on rank d.


def test_a_sum_of_all_values_is_accepted() -> None:
    rows = [(1, (0, 1), 0, 20, 0, True), (0, (1, 0), 0, 20, 1, True)]
    assert broken(timed(pair(), "reducescatter", rows)) == set()


def test_a_value_that_is_counted_twice_is_rejected() -> None:
    rows = [
        (1, (0, 1), 0, 20, 0, True), (1, (0, 1), 20, 40, 2, True), (0, (1, 0), 0, 20, 1, True),
    ]  # fmt: skip
    found = verify(timed(pair(), "reducescatter", rows))
    assert [str(v) for v in found] == [
        "summed: chunk 1 on link 0 (0 -> 1) at 0.00002 us counts twice the value of rank 0"
    ]


def test_a_value_that_is_replaced_before_it_counted_is_rejected() -> None:
    rows = [(1, (0, 1), 0, 20, 0, False), (0, (1, 0), 0, 20, 1, True)]
    found = verify(timed(pair(), "reducescatter", rows))
    assert [v.explanation for v in found] == [
        "chunk 1 on link 0 (0 -> 1) at 0 us replaces a sum and loses the value of rank 1",
        "chunk 1 at rank 1 ends without the value of rank 1",
    ]


def test_a_partial_sum_misses_the_values_that_came_later() -> None:
    # ring4, chunk 0 to rank 0: rank 1 forwards at 14, one ps before rank 2's value is there
    path = [(0, (3, 0), 0, 15, 0, True), (0, (2, 1), 0, 15, 1, True), (0, (1, 0), 14, 29, 2, True)]
    found = [v for v in verify(timed(ring4(), "reducescatter", path)) if "chunk 0" in str(v)]
    assert [str(v) for v in found] == ["summed: chunk 0 at rank 0 ends without the value of rank 2"]


def test_an_arrival_that_ends_as_a_send_starts_is_part_of_the_sum() -> None:
    path = [(0, (3, 0), 0, 15, 0, True), (0, (2, 1), 0, 15, 1, True), (0, (1, 0), 15, 30, 2, True)]
    found = [v for v in verify(timed(ring4(), "reducescatter", path)) if "chunk 0" in str(v)]
    assert found == []


def test_a_copy_of_the_whole_sum_replaces_a_part_of_it() -> None:
    # AllReduce of 2 ranks: to the root and back, for both chunks
    rows = [
        (0, (1, 0), 0, 20, 0, True), (0, (0, 1), 20, 40, 1, False),
        (1, (0, 1), 0, 20, 2, True), (1, (1, 0), 20, 40, 3, False),
    ]  # fmt: skip
    assert broken(timed(pair(), "allreduce", rows)) == set()


def test_an_exchange_of_values_sums_at_both_ends() -> None:
    # both ranks send what they have at time 0 and add what comes at 20
    rows = [
        (0, (0, 1), 0, 20, 0, True), (0, (1, 0), 0, 20, 1, True),
        (1, (0, 1), 20, 40, 2, True), (1, (1, 0), 20, 40, 3, True),
    ]  # fmt: skip
    assert broken(timed(pair(), "allreduce", rows)) == set()


def test_a_copy_that_brings_nothing_new_is_rejected() -> None:
    rows = [
        (0, (1, 0), 0, 20, 0, True), (0, (0, 1), 20, 40, 1, False), (0, (0, 1), 40, 60, 4, False),
        (1, (0, 1), 0, 20, 2, True), (1, (1, 0), 20, 40, 3, False),
    ]  # fmt: skip
    assert [(v.rule, v.send) for v in verify(timed(pair(), "allreduce", rows))] == [("summed", 2)]


def test_a_sum_and_a_copy_that_arrive_together_have_no_order() -> None:
    # ring4, chunk 0: rank 0 gets rank 1's value as a sum and rank 3's as a copy, both at 15
    rows = [(0, (1, 0), 0, 15, 0, True), (0, (3, 0), 0, 15, 1, False)]
    found = [v.explanation for v in verify(timed(ring4(), "reducescatter", rows))]
    assert any("arrives together with another value at 0.000015 us" in text for text in found)


# What a sketch adds


def sketch(topology: Topology, **rules: object) -> LogicalTopology:
    return replace(whole(topology), **rules)  # type: ignore[arg-type]


def round_trip() -> Schedule:
    """AllGather on twin2x2: chunk r leaves its server by rank r itself, and is relayed once.

    5 bytes: a wire takes 10 + 5 = 15 ps and a crossing 20 + 20 = 40 ps.
    """
    rows = [(r, (r, r ^ 1), 0, 15, r, False) for r in range(4)]
    rows += [(r, (r, r ^ 2), 40 * (r % 2), 40 * (r % 2) + 40, 4 + r, False) for r in range(4)]
    rows += [
        (r, (r ^ 2, r ^ 3), 40 * (r % 2) + 40, 40 * (r % 2) + 55, 8 + r, False) for r in range(4)
    ]
    return timed(twin2x2(), "allgather", rows)


def test_a_schedule_within_its_sketch_is_accepted() -> None:
    schedule = round_trip()
    leave = {r: frozenset([r]) for r in range(4)}
    logical = sketch(schedule.topology, leave_by=leave, max_extra_hops=1, connections_per_rank=2)
    assert verify(schedule, logical) == []


def test_a_link_that_the_sketch_denies_is_rejected() -> None:
    schedule = round_trip()
    allowed = np.ones(len(schedule.topology.links), dtype=np.bool_)
    allowed[schedule.topology.links_between(1, 3)] = False
    logical = sketch(schedule.topology, allowed=allowed)
    assert [(v.rule, v.send) for v in verify(schedule, logical)] == [("allowed", 5)]


def test_a_chunk_that_leaves_by_another_sender_is_rejected() -> None:
    schedule = round_trip()
    logical = sketch(schedule.topology, leave_by={1: frozenset([0])})
    assert [(v.rule, v.send) for v in verify(schedule, logical)] == [("leave_by", 5)]


def test_a_summed_chunk_leaves_other_servers_by_the_senders_of_its_targets_peer() -> None:
    # chunk 0: 3 -> 2 -> 0 and 1 -> 0; it leaves server 1, where rank 2 is the peer of rank 0
    rows = [(0, (3, 2), 0, 15, 0, True), (0, (2, 0), 15, 55, 1, True), (0, (1, 0), 0, 15, 2, True)]
    schedule = timed(twin2x2(), "reducescatter", rows)
    for rank, named, expected in ((2, 2, []), (2, 3, [1]), (0, 1, []), (3, 3, [])):
        logical = sketch(schedule.topology, leave_by={rank: frozenset([named])})
        assert [v.send for v in verify(schedule, logical) if v.rule == "leave_by"] == expected


def test_sums_for_everyone_leave_servers_as_the_chunks_of_their_owner_do() -> None:
    # chunk 0 is owned by rank 0; in server 1 its peer is rank 2
    schedule = timed(twin2x2(), "allreduce", [(0, (2, 0), 0, 40, 0, True)])
    for named, wrong in ((2, False), (3, True)):
        logical = sketch(schedule.topology, leave_by={2: frozenset([named])})
        assert ("leave_by" in broken(schedule, logical)) == wrong


def test_an_empty_schedule_breaks_no_rule_of_a_sketch() -> None:
    logical = sketch(pair(), leave_by={0: frozenset([1])}, max_extra_hops=0, connections_per_rank=1)
    assert broken(timed(pair(), "allgather", []), logical) == {"delivered"}


def test_an_interval_of_no_length_meets_nothing() -> None:
    # without latency and at 0 ps a byte a message holds its edge for no time
    topology = build("fast", 2, both_ways(0, 1, 0, Fraction(0)))
    rows = [(0, (0, 1), 0, 0, 0, False), (1, (0, 1), 0, 0, 1, False),
            (2, (1, 0), 0, 0, 2, False), (3, (1, 0), 0, 0, 3, False)]  # fmt: skip
    assert broken(timed(topology, "allgather", rows, k=2)) == set()


def test_sums_without_duration_follow_each_other_in_order_of_rows() -> None:
    hops = [(a, b, 0, None, None) for a in range(3) for b in range(3) if a != b]
    topology = build("instant", 3, hops)
    rows = [(0, (2, 1), 0, 0, 0, True), (0, (1, 0), 0, 0, 1, True)]
    for order, missing in ((rows, 0), (rows[::-1], 1)):
        found = [v for v in verify(timed(topology, "reducescatter", order)) if "chunk 0" in str(v)]
        assert len(found) == missing


def test_a_sum_for_one_rank_ends_nowhere_else() -> None:
    # only rank 0 has a value, and rank 1 passes on what it does not have
    one = replace(build_collective("reducescatter", 3, 1), source_set=np.zeros(3, dtype=np.int32))
    hops = [hop for a, b in ((0, 1), (1, 2), (0, 2)) for hop in both_ways(a, b, 10, Fraction(1))]
    topology = build("triangle", 3, hops)
    rows = [(2, (1, 2), 0, 15, 0, False), (1, (0, 1), 0, 15, 1, True)]
    schedule = replace(timed(topology, "reducescatter", rows), collective=one)
    assert [v.explanation for v in verify(schedule)] == [
        "chunk 1 on link 0 (0 -> 1) at 0 us is added where nothing of the chunk is",
        "chunk 2 on link 3 (1 -> 2) at 0 us starts where nothing of the chunk is",
        "chunk 2 on link 3 (1 -> 2) at 0 us brings nothing new",
        "chunk 2 at rank 2 ends without the value of rank 0",
    ]


def test_findings_on_sums_are_capped_too() -> None:
    # 11 chunks miss 10 values at each of 11 ranks
    hops = [hop for r in range(11) for hop in both_ways(r, (r + 1) % 11, 1, None)]
    assert len(verify(timed(build("ring11", 11, hops), "allreduce", []))) == 100


def test_a_path_longer_than_the_sketch_allows_is_rejected() -> None:
    # r -> r^2 -> r^3 has two hops where one would do
    logical = sketch(twin2x2(), max_extra_hops=0)
    found = verify(round_trip(), logical)
    assert [(v.rule, v.send) for v in found] == [("max_extra_hops", row) for row in range(8, 12)]


def test_the_shortest_path_is_that_over_allowed_links() -> None:
    schedule = round_trip()
    topology = schedule.topology
    allowed = np.ones(len(topology.links), dtype=np.bool_)
    for r in range(4):
        allowed[topology.links_between(r, r ^ 3)] = False
    assert verify(schedule, sketch(topology, allowed=allowed, max_extra_hops=0)) == []


def test_every_distinct_peer_is_a_connection() -> None:
    found = verify(round_trip(), sketch(twin2x2(), connections_per_rank=1))
    assert [v.explanation for v in found] == [
        f"rank {r} {verb} 2 ranks, the sketch allows 1"
        for verb in ("sends to", "receives from") for r in range(4)
    ]  # fmt: skip


def test_a_sketch_of_another_topology_is_refused() -> None:
    assert broken(round_trip(), whole(pair())) == {"sketch"}


# Columns and orbits


BAD_COLUMNS: list[tuple[str, dict[str, Any]]] = [
    ("chunk 2", {"chunk": np.array([0, 2], dtype=np.int32)}),
    ("chunk -1", {"chunk": np.array([0, -1], dtype=np.int32)}),
    ("link 2", {"link": np.array([0, 2], dtype=np.int32)}),
    ("batch -1", {"batch": np.array([0, -1], dtype=np.int32)}),
    ("differ in length", {"start": np.array([0], dtype=np.int64)}),
    ("not of integers", {"start": np.array([0.0, 0.0])}),
    ("not of bools", {"reduce": np.array([0, 0])}),
    ("chunk size is 0", {"chunk_size": Fraction(0)}),
    ("longer than can be counted", {"chunk_size": Fraction(1 << 62)}),
    ("3 ranks", {"collective": build_collective("allgather", 3, 1)}),
]


@for_each(("text", "change"), BAD_COLUMNS, ids=[text for text, _ in BAD_COLUMNS])
def test_columns_that_make_no_sense_are_named(text: str, change: dict[str, Any]) -> None:
    rows = [(0, (0, 1), 0, 20, 0, False), (1, (1, 0), 0, 20, 1, False)]
    found = verify(replace(timed(pair(), "allgather", rows), **change))
    assert {v.rule for v in found} == {"columns"}
    assert text in str(found[0])


def rotation_schedule(hops: int = 3) -> Schedule:
    """AllGather on ring4 decided for chunk 0 only: once round, copied by the rotation."""
    topology = ring4()
    group = make_group(topology, [(1, 2, 3, 0)])
    rows = [(0, topology.links_between(r, r + 1)[0], r, False) for r in range(hops)]
    return retime(build_collective("allgather", 4, 1), group, Fraction(5), Decisions.of(rows))


def test_orbits_are_judged_after_expansion() -> None:
    assert verify(rotation_schedule()) == []
    # one hop less for chunk 0 is one hop less for all four chunks: chunk r misses rank r - 1
    found = verify(rotation_schedule(hops=2))
    assert [v.explanation for v in found] == [
        f"chunk {c} never arrives at rank {(c + 3) % 4}" for c in range(4)
    ]


def test_a_generator_that_the_topology_lacks_is_a_finding() -> None:
    schedule = replace(rotation_schedule(), generators=((1, 0, 2, 3),))
    found = verify(schedule)
    assert [v.rule for v in found] == ["symmetry"]
    assert "does not have this symmetry: edge" in found[0].explanation


def test_a_generator_that_the_collective_lacks_is_a_finding() -> None:
    schedule = rotation_schedule()
    collective = schedule.collective
    lame = replace(collective, index=np.arange(4, dtype=np.int32), blocks=0)
    found = verify(replace(schedule, collective=lame))
    assert [v.rule for v in found] == ["symmetry"]
    assert "allgather does not map onto itself: chunk" in found[0].explanation


def test_orbits_that_meet_on_a_resource_are_rejected() -> None:
    # rank swaps 0 <-> 1, 2 <-> 3 share the NICs: both copies cross at time 0
    rows = [(0, (0, 2), 0, 40, 0, False)]
    schedule = replace(timed(twin2x2(), "allgather", rows), generators=((1, 0, 3, 2),))
    assert "resource" in broken(schedule)


def test_findings_are_capped_for_each_rule() -> None:
    # 30 chunks miss 29 ranks each
    hops = [hop for r in range(30) for hop in both_ways(r, (r + 1) % 30, 1, None)]
    assert len(verify(timed(build("ring30", 30, hops), "allgather", []))) == 100


def test_require_valid_shows_the_first_five_findings() -> None:
    with pytest.raises(
        ScheduleError, match=r"(?s)allgather is wrong:(\n  delivered.*){5}\n  and 7"
    ):
        require_valid(timed(ring4(), "allgather", []))


def test_require_valid_says_nothing_about_a_valid_schedule() -> None:
    require_valid(rotation_schedule())

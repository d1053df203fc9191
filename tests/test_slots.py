"""Where chunks live, and which of them lie side by side."""

from hypothesis import given, settings
from hypothesis import strategies as st

from taccl.collectives import build_collective
from taccl.collectives.slots import INPUT, OUTPUT, SCRATCH, Place, place_chunks
from tests.generators import random_schedule

GATHER = build_collective("allgather", 3, 2)
"""Chunks 2r and 2r+1 belong to rank r."""
TOTAL = build_collective("alltoall", 3, 1)
"""Chunk 3s+d goes from s to d."""
SCATTER = build_collective("reducescatter", 3, 2)
"""Chunks 2d and 2d+1 end on rank d."""


def test_a_source_has_its_own_value_in_the_input() -> None:
    slots = place_chunks(GATHER, [])
    assert slots.original(3, 1) == Place(INPUT, 1)
    assert slots.original(3, 0) is None


def test_a_target_holds_arrivals_in_the_output() -> None:
    assert place_chunks(GATHER, []).held(3, 0) == Place(OUTPUT, 3)


def test_a_relay_holds_arrivals_in_scratch() -> None:
    # chunk 1 goes 0 -> 2 -> 1
    slots = place_chunks(TOTAL, [(1, 0, 2), (1, 2, 1)])
    assert slots.held(1, 2) == Place(SCRATCH, 0)


def test_own_chunks_are_staged_among_relayed_ones_that_leave_for_the_same_relay() -> None:
    # Ranks 0 and 1 send to rank 3 of four by way of rank 2, and rank 1 passes on what is of 0.
    total = build_collective("alltoall", 4, 1)
    slots = place_chunks(total, [(3, 0, 1), (3, 1, 2), (7, 1, 2), (3, 2, 3), (7, 2, 3)])
    assert slots.readable(7, 1, arrived=False) == (Place(INPUT, 3), Place(SCRATCH, 1))
    assert slots.adjacent([3, 7], 1, 2, [True, False], reduce=False)
    assert slots.scratch_chunks == (0, 2, 2, 0)


def test_own_chunks_are_staged_where_the_destination_wants_them_side_by_side() -> None:
    total = build_collective("alltoall", 3, 1)
    apart = place_chunks(total, [(1, 0, 2), (1, 2, 1), (7, 2, 1)])
    assert apart.readable(7, 2, arrived=False) == (Place(INPUT, 1),)  # 0 and 2 in the output of 1
    beside = place_chunks(total, [(3, 1, 2), (3, 2, 0), (6, 2, 0)])
    assert beside.readable(6, 2, arrived=False) == (Place(INPUT, 0), Place(SCRATCH, 1))
    assert beside.adjacent([3, 6], 2, 0, [True, False], reduce=False)


def test_own_values_are_not_staged_among_sums() -> None:
    slots = place_chunks(SCATTER, [(0, 2, 1)])
    assert slots.scratch_chunks == (0, 1, 0)


def test_nothing_is_held_where_nothing_arrives() -> None:
    assert place_chunks(TOTAL, []).held(1, 2) is None


def test_scratch_is_laid_out_by_destination_and_then_by_chunk() -> None:
    # rank 2 relays 3 (1 -> 0), 1 (0 -> 1) and 4 (1 -> 1): first what goes to rank 0
    slots = place_chunks(TOTAL, [(1, 0, 2), (3, 1, 2), (4, 1, 2)])
    assert [slots.held(chunk, 2) for chunk in (3, 1, 4)] == [
        Place(SCRATCH, 0), Place(SCRATCH, 1), Place(SCRATCH, 2),
    ]  # fmt: skip


def test_an_arrival_that_is_named_twice_takes_one_place() -> None:
    once, twice = place_chunks(TOTAL, [(1, 0, 2)]), place_chunks(TOTAL, [(1, 0, 2), (1, 0, 2)])
    assert once.scratch_chunks == twice.scratch_chunks


def test_a_source_that_is_a_target_reads_its_input_first() -> None:
    slots = place_chunks(GATHER, [])
    expected = (Place(INPUT, 0), Place(OUTPUT, 2))
    assert slots.readable(2, 1, arrived=False) == expected


def test_a_relay_reads_its_scratch() -> None:
    slots = place_chunks(TOTAL, [(1, 0, 2)])
    assert slots.readable(1, 2, arrived=True) == (Place(SCRATCH, 0),)


def test_a_rank_without_the_chunk_has_nothing_to_read() -> None:
    assert place_chunks(TOTAL, []).readable(1, 2, arrived=False) == ()


def test_what_was_summed_is_no_longer_read_from_the_input() -> None:
    slots = place_chunks(SCATTER, [(0, 2, 1)])
    assert slots.readable(0, 1, arrived=False) == (Place(INPUT, 0),)
    assert slots.readable(0, 1, arrived=True) == (Place(SCRATCH, 0),)
    assert slots.readable(0, 0, arrived=True) == (Place(OUTPUT, 0),)


def test_own_neighbours_travel_together() -> None:
    slots = place_chunks(GATHER, [])
    assert slots.adjacent([0, 1], 0, 2, [False, False], reduce=False)


def test_the_order_of_the_chunks_counts() -> None:
    slots = place_chunks(GATHER, [])
    assert not slots.adjacent([1, 0], 0, 2, [False, False], reduce=False)


def test_a_gap_at_the_source_keeps_chunks_apart() -> None:
    # outputs 1 and 2 are neighbours at rank 2, but rank 1 does not hold chunk 1 in its input
    slots = place_chunks(GATHER, [])
    assert slots.source_run([0, 2], 1, [True, False]) is None


def test_an_own_chunk_and_a_received_one_meet_in_the_output() -> None:
    slots = place_chunks(GATHER, [])
    run = slots.source_run([1, 2], 1, [True, False])
    assert run == (Place(OUTPUT, 1), Place(OUTPUT, 2))
    assert slots.adjacent([1, 2], 1, 2, [True, False], reduce=False)


def test_neighbours_at_the_source_may_be_apart_at_the_destination() -> None:
    # rank 0's input holds what goes to 0, 1, 2 side by side; at rank 1 only chunk 1 is wanted,
    # chunk 2 is relayed through scratch
    slots = place_chunks(TOTAL, [(1, 0, 1), (2, 0, 1)])
    assert slots.source_run([1, 2], 0, [False, False]) is not None
    assert not slots.adjacent([1, 2], 0, 1, [False, False], reduce=False)


def test_relayed_neighbours_travel_together_from_scratch() -> None:
    # rank 2 relays chunks 0 and 3, both to rank 0
    two = build_collective("alltoall", 3, 2)
    # chunks 2 and 3 go from 0 to 1; both relayed by rank 2
    slots = place_chunks(two, [(2, 0, 2), (3, 0, 2)])
    assert slots.adjacent([2, 3], 2, 1, [True, True], reduce=False)


def test_summed_chunks_need_to_be_adjacent_at_the_source_only() -> None:
    # rank 0 sends chunks 3 and 4 (for ranks 1 and 2) to rank 1: output 1 and scratch there
    slots = place_chunks(SCATTER, [(3, 0, 1), (4, 0, 1)])
    assert slots.adjacent([3, 4], 0, 1, [False, False], reduce=True)
    assert not slots.adjacent([3, 4], 0, 1, [False, False], reduce=False)


def test_a_sum_and_an_own_value_are_not_side_by_side() -> None:
    # at rank 1 chunk 4 was summed (scratch), chunk 5 was not (input)
    slots = place_chunks(SCATTER, [(4, 0, 1)])
    assert not slots.adjacent([4, 5], 1, 2, [True, False], reduce=True)


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6))
def test_no_two_chunks_share_a_place_at_a_rank(seed: int) -> None:
    schedule = random_schedule(seed)
    slots = schedule.slots
    for rank in range(schedule.topology.num_ranks):
        held = [slots.held(chunk, rank) for chunk in range(schedule.collective.num_chunks)]
        places = [place for place in held if place is not None]
        assert len(places) == len(set(places))
        scratch = sorted(p.offset for p in places if p.buffer == SCRATCH)
        assert scratch == list(range(slots.scratch_chunks[rank]))


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6))
def test_the_slots_of_a_schedule_hold_every_arrival(seed: int) -> None:
    schedule = random_schedule(seed)
    slots = schedule.slots
    ends = {send: schedule.topology.link(send.link) for send in schedule.sends()}
    hops = [(send.chunk, link.src, link.dst) for send, link in ends.items()]
    assert slots.scratch == place_chunks(schedule.collective, hops).scratch
    assert all(slots.held(chunk, rank) is not None for chunk, _, rank in hops)

"""Exact times from decisions, and what a schedule is."""

import tracemalloc
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl.collectives import COLLECTIVES, Collective, build_collective
from taccl.model.problem import Problem
from taccl.model.schedule import Decisions, Schedule, Send, message_groups, retime
from taccl.topology.graph import Permutation, Topology, whole
from taccl.topology.symmetry import make_group
from taccl.verify import verify
from tests.generators import (
    Hop,
    both_ways,
    build,
    pair,
    random_decisions,
    random_schedule,
    ring4,
    scaled,
    star5,
    twin2x2,
)
from tests.sweep import for_each

ONE = Fraction(1)
Hops = list[tuple[int, tuple[int, int], int, bool]]
"""(chunk, (src, dst), batch, reduce)."""


def decided(topology: Topology, sends: Hops) -> Decisions:
    return Decisions.of([(c, topology.links_between(*ends)[0], b, r) for c, ends, b, r in sends])


def timed(
    topology: Topology,
    collective: str,
    sends: Hops,
    *,
    k: int = 1,
    size: Fraction | int = 5,
    generators: tuple[Permutation, ...] = (),
) -> Schedule:
    """Return the retimed sends."""
    return retime(
        build_collective(collective, topology.num_ranks, k), make_group(topology, generators),
        Fraction(size), decided(topology, sends),
    )  # fmt: skip


def spans(schedule: Schedule) -> list[tuple[int, int]]:
    return list(zip(schedule.start.tolist(), schedule.end.tolist(), strict=True))


def copies(*sends: tuple[int, tuple[int, int]]) -> Hops:
    """Return copying sends, each in a message of its own."""
    return [(chunk, ends, batch, False) for batch, (chunk, ends) in enumerate(sends)]


def again(schedule: Schedule) -> Schedule:
    return retime(schedule.collective, schedule.group, schedule.chunk_size, schedule.decisions())


# pair: alpha 10 ps, 2 ps a byte; 5 bytes: 20 ps


def test_messages_on_one_edge_follow_each_other() -> None:
    # occupy: held 20 ps each; delay: held 10 ps, arrival after 20
    sends = copies((0, (0, 1)), (1, (0, 1)), (2, (1, 0)))
    assert spans(timed(pair(), "allgather", sends, k=2)) == [(0, 20), (20, 40), (0, 20)]
    assert spans(timed(pair("delay"), "allgather", sends, k=2)) == [(0, 20), (10, 30), (0, 20)]


def test_the_sequence_is_the_order_on_an_edge() -> None:
    sends = copies((1, (0, 1)), (0, (0, 1)))
    schedule = timed(pair(), "allgather", sends, k=2)
    assert schedule.chunk.tolist() == [1, 0]
    assert spans(schedule) == [(0, 20), (20, 40)]


def test_a_batch_pays_alpha_once() -> None:
    # 10 + 2 * 10 instead of twice 20
    sends: Hops = [(0, (0, 1), 0, False), (1, (0, 1), 0, False)]
    assert spans(timed(pair(), "allgather", sends, k=2)) == [(0, 30), (0, 30)]


def test_the_bytes_of_a_batch_are_rounded_once() -> None:
    # 2 chunks of 1/4 byte: 10 + ceil(2 * 1/2) = 11
    sends: Hops = [(0, (0, 1), 0, False), (1, (0, 1), 0, False)]
    schedule = timed(pair(), "allgather", sends, k=2, size=Fraction(1, 4))
    assert spans(schedule) == [(0, 11), (0, 11)]


# ring4: alpha 10 ps, 1 ps a byte; 5 bytes: 15 ps


def test_a_chunk_is_forwarded_when_it_has_arrived() -> None:
    # 0 -> 1 -> 2 -> 3, stored and forwarded, under either rule
    sends = copies((0, (0, 1)), (0, (1, 2)), (0, (2, 3)))
    for rule in ("occupy", "delay"):
        assert spans(timed(ring4(rule), "allgather", sends)) == [(0, 15), (15, 30), (30, 45)]


def test_a_ring_allgather_takes_n_minus_1_hops_under_occupy() -> None:
    # in every step each rank forwards what came in the last: 3 * 15
    sends = copies(*(((r - s) % 4, (r, (r + 1) % 4)) for s in range(3) for r in range(4)))
    assert timed(ring4(), "allgather", sends).makespan == 45


def test_a_free_wire_is_not_waited_for() -> None:
    # chunk 1 goes both ways round, chunk 0 one way: only 1 -> 2 is shared
    sends = copies((0, (0, 1)), (0, (1, 2)), (1, (1, 2)), (1, (1, 0)))
    # chunk 0 takes 1 -> 2 at 15; chunk 1, decided later, waits for it till 30
    assert spans(timed(ring4(), "allgather", sends)) == [(0, 15), (15, 30), (30, 45), (0, 15)]


def test_under_delay_the_edge_is_free_after_the_bytes() -> None:
    # chunk 0 takes 1 -> 2 from 15 to 20; chunk 1 may follow at 20
    sends = copies((0, (0, 1)), (0, (1, 2)), (1, (1, 2)))
    assert spans(timed(ring4("delay"), "allgather", sends)) == [(0, 15), (15, 30), (20, 35)]


def test_a_batch_waits_for_the_last_of_its_chunks() -> None:
    # rank 1 forwards chunk 0 (there at 15) together with its own: 10 + 10 more
    sends: Hops = [(0, (0, 1), 0, False), (0, (1, 2), 1, False), (1, (1, 2), 1, False)]
    assert spans(timed(ring4(), "allgather", sends)) == [(0, 15), (15, 35), (15, 35)]


# star5: alpha 6 + 4, up 1 and down 2 ps a byte; 5 bytes: 10 + 10 = 20 ps


def test_a_rank_sends_to_all_others_through_its_one_port() -> None:
    # occupy: the port is held 10 + 5 = 15 ps each
    sends = copies(*((0, (0, r)) for r in range(1, 5)))
    expected = [(0, 20), (15, 35), (30, 50), (45, 65)]
    assert spans(timed(star5(), "allgather", sends)) == expected


def test_under_delay_the_port_is_held_for_the_bytes_only() -> None:
    sends = copies(*((0, (0, r)) for r in range(1, 5)))
    expected = [(0, 20), (5, 25), (10, 30), (15, 35)]
    assert spans(timed(star5("delay"), "allgather", sends)) == expected


def test_a_receiving_port_is_shared_too() -> None:
    # down is held 10 + 10 ps under occupy and 10 under delay
    sends = copies((1, (1, 0)), (2, (2, 0)), (3, (3, 0)))
    assert spans(timed(star5(), "allgather", sends)) == [(0, 20), (20, 40), (40, 60)]
    assert spans(timed(star5("delay"), "allgather", sends)) == [(0, 20), (10, 30), (20, 40)]


# twin2x2: wires 10 + 1 ps a byte; crossing 20 + 4 ps a byte at each NIC; 5 bytes: 15 and 40 ps


def test_two_ranks_share_the_nic_of_their_server() -> None:
    # occupy: the NIC is held 20 + 20 ps; delay: 20 ps
    sends = copies((0, (0, 2)), (1, (1, 3)), (2, (2, 0)))
    assert spans(timed(twin2x2(), "allgather", sends)) == [(0, 40), (40, 80), (0, 40)]
    assert spans(timed(twin2x2("delay"), "allgather", sends)) == [(0, 40), (20, 60), (0, 40)]


def test_wires_and_nics_work_side_by_side() -> None:
    sends = copies((0, (0, 2)), (0, (0, 1)), (0, (2, 3)))
    assert spans(timed(twin2x2(), "allgather", sends)) == [(0, 40), (0, 15), (40, 55)]


# Sums


def test_a_sum_waits_for_every_earlier_arrival() -> None:
    # ring4, chunk 0: 3 -> 2 and 2 -> 1 after it, 1 -> 0 after that
    sends: Hops = [(0, (3, 2), 0, True), (0, (2, 1), 1, True), (0, (1, 0), 2, True)]
    assert spans(timed(ring4(), "reducescatter", sends)) == [(0, 15), (15, 30), (30, 45)]


def test_a_source_of_copies_does_not_wait_for_arrivals() -> None:
    # AllToAll chunk 5 is (1, 1): it starts at rank 1 whatever came
    sends = copies((4, (1, 0)), (1, (0, 1)), (6, (1, 2)))
    assert spans(timed(ring4(), "alltoall", sends)) == [(0, 15), (0, 15), (0, 15)]


def test_a_value_is_not_changed_before_it_was_read() -> None:
    # rank 1's wire to 0 is held until 15 by chunk 1; chunk 0 is read there at 15. The value that
    # 2 sends to 1 was decided later and must not arrive until 16: it starts at 1.
    sends: Hops = [(1, (1, 0), 0, True), (0, (1, 0), 1, True), (0, (2, 1), 2, True)]
    assert spans(timed(ring4(), "reducescatter", sends)) == [(0, 15), (15, 30), (1, 16)]


def test_a_value_is_not_replaced_before_what_was_decided_earlier_has_arrived() -> None:
    # rank 0's sum from 1 arrives at 30 behind chunk 1; the copy from 3 arrives at 31
    sends: Hops = [(1, (1, 0), 0, True), (0, (1, 0), 1, True), (0, (3, 0), 2, False)]
    assert spans(timed(ring4(), "allreduce", sends)) == [(0, 15), (15, 30), (16, 31)]


def test_a_sum_is_not_added_before_the_copy_that_was_decided_earlier() -> None:
    sends: Hops = [(1, (1, 0), 0, True), (0, (1, 0), 1, False), (0, (3, 0), 2, True)]
    assert spans(timed(ring4(), "allreduce", sends)) == [(0, 15), (15, 30), (16, 31)]


def test_sums_may_arrive_in_any_order() -> None:
    sends: Hops = [(1, (1, 0), 0, True), (0, (1, 0), 1, True), (0, (3, 0), 2, True)]
    assert spans(timed(ring4(), "reducescatter", sends)) == [(0, 15), (15, 30), (0, 15)]


def test_a_send_before_every_arrival_is_refused() -> None:
    with pytest.raises(ValueError, match="chunk 0 is sent by rank 1 before it arrives there"):
        timed(ring4(), "allgather", copies((0, (1, 2)), (0, (0, 1))))


# Orbits


def round_the_ring(k: int = 1) -> Schedule:
    """Chunks of rank 0 go once round ring4, and the rotation copies them."""
    sends = copies(*((c, (r, r + 1)) for r in range(3) for c in range(k)))
    return timed(ring4(), "allgather", sends, k=k, generators=((1, 2, 3, 0),))


def test_a_ring_decided_for_one_rank_takes_n_minus_1_hops() -> None:
    assert spans(round_the_ring()) == [(0, 15), (15, 30), (30, 45)]


def test_sends_on_images_of_one_edge_exclude_each_other() -> None:
    # both chunks of rank 0 use an image of 0 -> 1 in every hop: 6 sends in a row of 15 ps
    assert round_the_ring(k=2).makespan == 90


def test_expansion_gives_every_send_of_every_rank() -> None:
    full = round_the_ring().expand()
    table = full.topology.links
    sent = sorted(
        (s.chunk, int(table.src[s.link]), int(table.dst[s.link]), s.start) for s in full.sends()
    )
    assert sent == sorted(
        (c, (c + h) % 4, (c + h + 1) % 4, 15 * h) for c in range(4) for h in range(3)
    )
    assert len(set(full.batch.tolist())) == 12
    assert full.generators == ()


def test_an_expanded_schedule_is_valid_and_as_fast() -> None:
    for k in (1, 2):
        schedule = round_the_ring(k)
        full = schedule.expand()
        assert verify(full) == []
        assert (full.makespan, len(full)) == (schedule.makespan, schedule.num_sends)


def test_retiming_the_expansion_is_no_slower() -> None:
    schedule = round_the_ring(2)
    assert again(schedule.expand()).makespan <= schedule.makespan


def test_batches_stay_apart_and_whole_when_expanded() -> None:
    # both chunks of rank 0 together: 10 + 10 = 20 ps a hop
    sends: Hops = [(c, (r, r + 1), r, False) for r in range(3) for c in range(2)]
    schedule = timed(ring4(), "allgather", sends, k=2, generators=((1, 2, 3, 0),))
    full = schedule.expand()
    assert (schedule.makespan, verify(full)) == (60, [])
    assert np.unique(full.batch, return_counts=True)[1].tolist() == [2] * 12


def test_a_direct_exchange_on_a_hub_is_decided_for_one_rank() -> None:
    # AllToAll on star5: ranks r -> r+s in turn. Ports: up held 15 ps, down 20: the images of a
    # down port are one orbit, so the four sends start 20 ps apart.
    sends = copies(*((d, (0, d)) for d in range(1, 5)))
    schedule = timed(star5(), "alltoall", sends, generators=((1, 2, 3, 4, 0),))
    assert spans(schedule) == [(0, 20), (20, 40), (40, 60), (60, 80)]
    assert verify(schedule) == []


def test_summed_chunks_expand_as_copied_ones_do() -> None:
    sends: Hops = [(0, (r, r - 1), 3 - r, True) for r in (3, 2, 1)]
    schedule = timed(ring4(), "reducescatter", sends, generators=((1, 2, 3, 0),))
    assert (schedule.makespan, schedule.num_sends, verify(schedule)) == (45, 12, [])


ALIKE = sorted(name for name, kind in COLLECTIVES.items() if not kind.has_root)
SYMMETRIC = {
    "pair": (pair, (1, 0)),
    "ring4": (ring4, (1, 2, 3, 0)),
    "star5": (star5, (1, 2, 3, 4, 0)),
    "twin2x2": (twin2x2, (2, 3, 0, 1)),
}


@settings(max_examples=20)
@pytest.mark.parametrize("rule", ["occupy", "delay"])
@pytest.mark.parametrize("name", SYMMETRIC)
@given(seed=st.integers(0, 10**9), collective=st.sampled_from(ALIKE))
def test_any_decisions_for_one_chunk_of_each_orbit_expand_to_a_valid_schedule(
    name: str, rule: str, seed: int, collective: str
) -> None:
    shape, generator = SYMMETRIC[name]
    topology = shape(rule)
    group = make_group(topology, [generator])
    problem = Problem(
        whole(topology), build_collective(collective, topology.num_ranks, 1 + seed % 2),
        Fraction(5), group,
    )  # fmt: skip
    decisions = random_decisions(problem, seed)
    schedule = retime(problem.collective, group, problem.chunk_size, decisions)
    full = schedule.expand()
    assert verify(full) == []
    assert (full.makespan, again(full).makespan <= full.makespan) == (schedule.makespan, True)


def test_without_generators_a_schedule_is_its_own_expansion() -> None:
    schedule = random_schedule(3)
    assert schedule.expand() is schedule


# What holds for every schedule


@settings(max_examples=60)
@given(seed=st.integers(0, 10**9), collective=st.sampled_from(sorted(COLLECTIVES)))
def test_retiming_never_makes_a_schedule_slower_and_then_changes_nothing(
    seed: int, collective: str
) -> None:
    schedule = random_schedule(seed, collective)
    once = again(schedule)
    twice = again(once)
    assert once.makespan <= schedule.makespan
    assert spans(twice) == spans(once)


@settings(max_examples=40)
@given(seed=st.integers(0, 10**9))
def test_retiming_removes_every_needless_wait(seed: int) -> None:
    schedule = random_schedule(seed)
    waits = np.random.default_rng(seed).integers(1, 1000)
    late = replace(schedule, start=schedule.start + waits, end=schedule.end + waits)
    assert sorted(spans(again(late))) == sorted(spans(again(schedule)))


@settings(max_examples=40)
@given(seed=st.integers(0, 10**9), factor=st.integers(2, 5))
def test_scaling_every_cost_scales_every_time(seed: int, factor: int) -> None:
    # exact where every beta * size is whole: betas have denominators 1, 2 and 3
    schedule = random_schedule(seed)
    slow = scaled(schedule.topology, factor)
    base, more = (
        retime(schedule.collective, make_group(t, ()), Fraction(6), schedule.decisions())
        for t in (schedule.topology, slow)
    )
    if not schedule.collective.reduces:
        assert (more.start == factor * base.start).all()
    assert more.makespan == factor * base.makespan


@settings(max_examples=30)
@given(seed=st.integers(0, 10**9))
def test_the_rule_delay_is_never_slower(seed: int) -> None:
    schedule = random_schedule(seed)
    times = {}
    for rule in ("occupy", "delay"):
        group = make_group(schedule.topology.with_alpha_rule(rule), ())
        decisions = schedule.decisions()
        times[rule] = retime(schedule.collective, group, schedule.chunk_size, decisions).makespan
    assert times["delay"] <= times["occupy"]


def test_messages_without_duration_keep_their_order_in_an_instant() -> None:
    # chunk 0 hops 0 -> 1 -> 2 at time 0; batch numbers alone would put the second hop first
    hops: list[Hop] = [(r, (r + 1) % 3, 0, None, None) for r in range(3)]
    topology = build("instant", 3, hops)
    sends: Hops = [(0, (0, 1), 7, False), (0, (1, 2), 3, False)]
    schedule = timed(topology, "allgather", sends)
    assert spans(again(schedule)) == [(0, 0), (0, 0)]


# Columns and rows


@for_each("name", COLLECTIVES)
def test_one_rank_needs_no_sends(name: str) -> None:
    schedule = timed(build("one", 1, []), name, [])
    assert (len(schedule), schedule.makespan, schedule.num_sends) == (0, 0, 0)
    assert schedule.expand().makespan == 0
    assert list(schedule.decisions().rows()) == []
    assert schedule.slots.scratch_chunks == (0,)


def test_an_empty_schedule_with_generators_expands_to_nothing() -> None:
    assert len(timed(ring4(), "allgather", [], generators=((1, 2, 3, 0),)).expand()) == 0


def test_sends_are_views_of_rows() -> None:
    schedule = timed(pair(), "allgather", copies((0, (0, 1)), (1, (1, 0))))
    assert list(schedule.sends()) == [
        Send(0, 0, 0, 20, 0, reduce=False), Send(1, 1, 0, 20, 1, reduce=False),
    ]  # fmt: skip


def test_rows_make_columns_and_columns_rows() -> None:
    rows = [(0, 1, 0, False), (1, 0, 1, True)]
    assert list(Decisions.of(rows).rows()) == rows
    assert list(Decisions.of([]).rows()) == []


def test_decisions_follow_time_and_keep_batches_together() -> None:
    sends: Hops = [(3, (1, 0), 4, False), (0, (0, 1), 2, False), (2, (1, 0), 1, False),
                   (1, (0, 1), 2, False)]  # fmt: skip
    order = Decisions.of([(c, int(e[0]), b, r) for c, e, b, r in sends])
    schedule = replace(
        timed(pair(), "allgather", sends[:2], k=2),
        chunk=order.chunk, link=order.link, batch=order.batch, reduce=order.reduce,
        start=np.array([20, 0, 0, 0]), end=np.array([40, 30, 20, 30]),
    )  # fmt: skip
    assert schedule.decisions().chunk.tolist() == [2, 0, 1, 3]


def test_runs_of_equal_batch_are_messages() -> None:
    column = np.array([5, 5, 2, 7, 7, 7], dtype=np.int32)
    assert message_groups(column) == [range(2), range(2, 3), range(3, 6)]
    assert message_groups(column[:0]) == []


def test_a_schedule_tells_whether_it_has_batches() -> None:
    assert not timed(pair(), "allgather", copies((0, (0, 1)))).batches
    assert timed(pair(), "allgather", [(0, (0, 1), 0, False), (1, (0, 1), 0, False)], k=2).batches


def test_a_million_sends_fit_in_300_megabytes() -> None:
    # a ring of 1001 ranks: 1000 sends of rank 0's chunk, 1001 images of each
    n = 1001
    ring = build("ring", n, [hop for r in range(n) for hop in both_ways(r, (r + 1) % n, 1, ONE)])
    sends = copies(*((0, (r, r + 1)) for r in range(n - 1)))
    turn = (*range(1, n), 0)
    schedule = timed(ring, "allgather", sends, generators=(turn,))
    schedule.group.link_images(1, schedule.link)  # what the group caches is not the schedule's
    tracemalloc.start()
    full = schedule.expand()
    size, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(full) == n * (n - 1)
    # chunk, link, batch: 4 bytes each; start, end: 8 each; reduce: 1
    columns = (full.chunk, full.link, full.batch, full.start, full.end, full.reduce)
    assert sum(column.nbytes for column in columns) == len(full) * 29
    assert size < 40e6
    assert peak < 300e6


def exchange(topology: Topology, ranks: int) -> Decisions:
    """Return recursive doubling of one chunk: in each step, pairs swap what they hold."""
    rows: list[tuple[int, int, int, bool]] = []
    lands: list[int] = []
    for mask in (1 << bit for bit in range(ranks.bit_length() - 1)):
        last = len(rows) + ranks
        for rank in range(ranks):
            link = topology.links_between(rank, rank ^ mask)[0]
            rows.append((0, link, len(rows), True))
            lands.append(last)
    return Decisions.of(rows, lands)


def one_sum(ranks: int) -> Collective:
    """Return an AllReduce cut to its first chunk."""
    whole_ = build_collective("allreduce", ranks, 1)
    first = {name: getattr(whole_, name)[:1] for name in
             ("source_set", "target_set", "input_at", "output_at", "owner", "index")}  # fmt: skip
    return replace(whole_, **first)


def test_ranks_exchange_sums_at_one_time() -> None:
    hops: list[Hop] = [(a, b, 10, None, Fraction(2)) for a in range(4) for b in range(4) if a != b]
    topology = build("full", 4, hops)
    schedule = retime(one_sum(4), make_group(topology, ()), Fraction(5), exchange(topology, 4))
    assert spans(schedule) == [(0, 20)] * 4 + [(20, 40)] * 4
    assert not verify(schedule, whole(topology))
    again = retime(one_sum(4), schedule.group, Fraction(5), schedule.decisions())
    assert spans(again) == spans(schedule)


def test_without_lands_the_second_send_of_an_exchange_waits_and_counts_twice() -> None:
    topology = build("pair", 2, [(0, 1, 10, None, Fraction(2)), (1, 0, 10, None, Fraction(2))])
    plain = replace(exchange(topology, 2), visible_from=None)
    schedule = retime(one_sum(2), make_group(topology, ()), Fraction(5), plain)
    assert spans(schedule) == [(0, 20), (20, 40)]
    assert "counts twice" in str(verify(schedule, whole(topology)))


def test_an_arrival_is_held_back_until_a_later_row_has_read_what_it_changes() -> None:
    # The wire 1 -> 0 is busy until 10 with chunk 1; only then does rank 1 read its chunk 0, which
    # what rank 0 sends may not have changed by then.
    wire = Fraction(2)
    topology = build("pair", 2, [(0, 1, 0, None, wire), (1, 0, 0, None, wire)])
    collective = build_collective("allreduce", 2, 1)
    link = {ends: topology.links_between(*ends)[0] for ends in ((0, 1), (1, 0))}
    rows = [(1, link[1, 0], 0, True), (0, link[0, 1], 1, True), (0, link[1, 0], 2, True)]
    group = make_group(topology, ())
    schedule = retime(collective, group, Fraction(5), Decisions.of(rows, [1, 3, 3]))
    assert spans(schedule) == [(0, 10), (1, 11), (10, 20)]


def test_arrivals_and_reads_that_wait_for_each_other_are_refused() -> None:
    # Both wires are one resource: the second send starts when the first has ended, too late to
    # read what was there before it.
    topology = build("pair", 2, [(0, 1, 0, None, Fraction(2)), (1, 0, 0, None, Fraction(2))])
    swap = make_group(topology, ((1, 0),))
    with pytest.raises(ValueError, match="wait for each other in a ring"):
        retime(one_sum(2), swap, Fraction(5), exchange(topology, 2))

"""Rows of results: what they say of a replay."""

from dataclasses import replace

from taccl.bounds import any_bounds, best
from taccl.collectives import build_collective
from taccl.replay.cost import model_of
from taccl.replay.sweep import Row, bounds_of, sweep
from taccl.topology.graph import whole
from tests.replay.program_builder import hub, network, ring, ring_allreduce

MODEL = model_of("executor")


def test_a_row_holds_bandwidths_as_nccl_tests_counts() -> None:
    # 2000 bytes in 4000 ps are 500 GB/s; all-reduce on 4 ranks: times 2 * 3 / 4
    row = Row("allreduce", "net", 4, 2000, 4000)
    assert (row.algbw, row.busbw) == (500.0, 750.0)


def test_the_gap_is_time_over_bound_less_one() -> None:
    assert Row("allreduce", "net", 4, 2000, 4000, bound=3200).gap == 0.25


def test_a_collective_outside_the_table_has_busbw_equal_to_algbw() -> None:
    assert Row("custom", "net", 4, 2000, 4000).busbw == 500.0


def test_every_program_is_run_at_every_size() -> None:
    programs = [("a.xml", ring_allreduce(3)), ("b.xml", ring_allreduce(3))]
    rows = sweep(programs, ring(3), [12, 24], MODEL)
    assert [(row.file, row.size) for row in rows] == [
        ("a.xml", 12), ("a.xml", 24), ("b.xml", 12), ("b.xml", 24),
    ]  # fmt: skip


def test_the_bound_of_a_row_is_the_best_for_every_algorithm() -> None:
    topology = hub(4)
    (row,) = sweep([("", ring_allreduce(4))], topology, [1 << 20], MODEL)
    found = best(any_bounds(whole(topology), "allreduce", 1 << 20))
    assert (row.bound_kind, row.bound) == (found.kind, found.time)


def test_the_bottleneck_is_the_edge_held_longest() -> None:
    # edge 1 is slower: 4 messages of 700 + 10 * 100 in 4 * 1700
    rows = [(0, 1, 700, None, 3), (1, 2, 700, None, 10), (2, 0, 700, None, 3)]
    (row,) = sweep([("", ring_allreduce(3))], network(3, rows), [300], MODEL)
    assert row.bottleneck == "e1"
    assert row.time is not None
    assert row.utilisation == 4 * 1700 / row.time


def test_a_size_that_can_not_run_has_no_time_and_a_note() -> None:
    (row,) = sweep([("", ring_allreduce(3))], ring(3), [100], MODEL)
    assert (row.time, row.algbw, row.gap, row.bottleneck) == (None, None, None, "")
    assert row.note.startswith("100 bytes are not a multiple of 12")


def test_a_size_outside_the_range_is_noted() -> None:
    made = replace(ring_allreduce(3), min_bytes=1000, max_bytes=4000)
    (row,) = sweep([("", made)], ring(3), [12], MODEL)
    assert row.note == "outside the program's range of sizes, 1KB to 4KB"
    assert row.time is not None


def test_there_is_no_bound_where_ranks_are_not_connected() -> None:
    assert bounds_of(network(2, []), "allreduce")(8) is None


def test_of_the_latencies_only_the_distance_bounds_routed_messages() -> None:
    # alpha 700 on each of 2 hops; stored and forwarded, a block of 1 byte takes 3 ps more
    topology = ring(3, alpha=700, beta=3)
    curves = [bounds_of(topology, "alltoall", routed=routed)(3) for routed in (True, False)]
    assert curves == [("latency", 1400), ("latency", 1403)]


def test_of_routed_messages_nobody_says_how_far_they_reach() -> None:
    # On a switch it takes 3 alphas, and 7 bytes; of routed ones, that 7 bytes come in after one.
    curves = [bounds_of(hub(8, 700, 3), "allgather", routed=r)(8) for r in (False, True)]
    assert curves == [("rounds", 2121), ("port", 721)]


def test_there_is_no_bound_for_a_custom_collective() -> None:
    assert bounds_of(ring(2), "custom")(8) is None


def test_a_bound_needs_the_root_where_there_is_one() -> None:
    assert bounds_of(ring(2), "broadcast")(8) is None
    assert bounds_of(ring(2), "allgather", 0)(8) is None
    found = bounds_of(ring(2), "broadcast", 1)(8)
    assert found is not None
    assert found == bounds_of(ring(2), build_collective("broadcast", 2, 1, 1))(8)

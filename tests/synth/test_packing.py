"""Prices of resources and the bound they prove, by hand and against schedules."""

import random
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from taccl.collectives import COLLECTIVES, build_collective
from taccl.errors import NoScheduleError
from taccl.model.problem import Problem
from taccl.model.routes import Arcs, arcs_of, wanted_of
from taccl.prices.packing import (
    Packing,
    PackingInstance,
    PricingProblem,
    best_prices,
    kinds_of,
    least_time,
    pack,
)
from taccl.topology.file import load_topology
from taccl.topology.graph import Switch, Topology, whole
from taccl.topology.symmetry import make_group
from tests.bounds.exhaustive_search import can_beat
from tests.generators import (
    Hop,
    both_ways,
    build,
    pair,
    random_problem,
    random_schedule,
    ring4,
    star5,
    twin2x2,
)
from tests.sweep import for_each
from tests.synth.problems import problem_of


def packed(problem: Problem) -> tuple[Packing, Arcs]:
    arcs = arcs_of(problem, reverse=problem.collective.reduces)
    return pack(arcs, wanted_of(arcs)), arcs


def bound_of(topology: Topology, collective: str, chunks: int = 1, size: int = 5) -> int:
    return packed(problem_of(topology, collective, chunks, size))[0].bound


def chain() -> Topology:
    """Three ranks in a row, wires both ways: alpha 10 ps, 1 ps a byte."""
    hops = [hop for rank in (0, 1) for hop in both_ways(rank, rank + 1, 10, Fraction(1))]
    return build("chain", 3, hops)


# --- small truths ------------------------------------------------------------------------------


@pytest.mark.parametrize("collective", ["allgather", "reducescatter", "broadcast", "reduce"])
def test_a_pair_is_busy_with_one_chunk_each_way(collective: str) -> None:
    assert bound_of(pair(), collective) == 10 + 2 * 5


@pytest.mark.parametrize(("chunks", "expected"), [(1, 23), (2, 45), (8, 180)])
def test_trees_on_a_ring_share_all_its_wires(chunks: int, expected: int) -> None:
    # 4 trees of 3 messages of 10 + 5 on 8 wires: 22.5 for each chunk
    assert bound_of(ring4(), "allgather", chunks) == expected
    assert bound_of(ring4(), "reducescatter", chunks) == expected


def test_alpha_that_keeps_nothing_busy_is_paid_once() -> None:
    # 12 messages of 5 on 8 wires, and the last one's alpha of 10
    assert bound_of(ring4("delay"), "allgather") == 10 + 8


def test_prices_of_a_ring_are_equal_and_add_up_to_one() -> None:
    result, arcs = packed(problem_of(ring4(), "allgather"))
    assert result.prices == pytest.approx([1 / 8] * 8, rel=1e-3)
    assert arcs.num_resources == 8


def test_on_a_switch_the_slower_side_has_all_the_price() -> None:
    # every rank receives 4 chunks of 10 + 2 * 5
    result, arcs = packed(problem_of(star5(), "allgather", chunk_size=5))
    assert result.bound == 4 * 20
    assert result.prices[arcs.resources % 2 == 1] == pytest.approx([1 / 5] * 5)


def test_a_nic_that_two_ranks_share_carries_the_chunks_of_both() -> None:
    # two chunks of 20 + 4 * 5 leave each server once; wires inside spread them
    assert bound_of(twin2x2(), "allgather") == 2 * 40


def test_a_nic_that_all_messages_pass_carries_each_to_every_rank() -> None:
    # One port (2 ps a byte) for all that arrives at ranks 1 and 2, and a wire 1 -> 0, 2 -> 0:
    # chunk 0 passes it twice, chunks 1 and 2 once.
    hops: list[Hop] = [(rank, 3, 0, None, None) for rank in range(3)]
    hops += [(3, 4, 10, None, Fraction(2)), (4, 1, 0, None, None), (4, 2, 0, None, None)]
    hops += [(1, 0, 10, None, Fraction(1)), (2, 0, 10, None, Fraction(1))]
    topology = build("shared", 3, hops, switches=[Switch("up"), Switch("port")])
    assert bound_of(topology, "allgather") == 4 * 20


def test_chunks_of_a_broadcast_follow_one_another_down_a_chain() -> None:
    # the last wire waits for one message of 15 and carries 3 of them; so in a reduction
    for collective in ("broadcast", "reduce"):
        assert bound_of(chain(), collective, 3) == 15 + 3 * 15


def test_what_has_one_target_takes_paths() -> None:
    # everything passes the wire 1 -> 0 (0 -> 1): the chunks of ranks 1 and 2
    assert bound_of(chain(), "gather") == bound_of(chain(), "scatter") == 30


def test_chunks_use_only_the_arcs_they_may() -> None:
    # Round one way only, 12 messages of 15 share 4 wires. With one chunk of four bound to that
    # direction nothing is lost.
    arcs = arcs_of(problem_of(ring4(), "allgather", chunk_size=5))
    wanted = wanted_of(arcs)
    clockwise = (arcs.head - arcs.tail) % 4 == 1
    allowed = np.stack([np.ones(8, dtype=np.bool_), clockwise])
    bounds = [
        pack(arcs, replace(wanted, allowed=allowed, kind=np.array(kinds, dtype=np.int32))).bound
        for kinds in ([1, 1, 1, 1], [1, 0, 0, 0])
    ]
    assert bounds == [45, 23]


def test_nothing_to_send_takes_no_time() -> None:
    alone = build("alone", 1, [])
    assert bound_of(alone, "allgather") == 0


def test_a_rank_out_of_reach_is_an_error() -> None:
    one_way = build("one way", 2, [(0, 1, 1, None, Fraction(1))])
    with pytest.raises(NoScheduleError, match="can't be reached from another"):
        bound_of(one_way, "allgather")


# --- symmetry ----------------------------------------------------------------------------------


@for_each("chunks", [1, 4])
@for_each("name", ["torus2d:4x4", "dgx2:2", "ndv2:2", "dgx-a100:2"])
def test_representatives_prove_as_much_as_all_chunks(name: str, chunks: int) -> None:
    shape, _, nodes = name.rpartition(":") if name[-2] == ":" else (name, "", "0")
    topology = load_topology(shape, nodes=int(nodes) or None)
    bounds = [
        packed(problem_of(topology, "allgather", chunks, 10**6 // chunks, symmetric=one))[0].bound
        for one in (False, True)
    ]
    assert bounds[0] == pytest.approx(bounds[1], rel=1e-6)


def test_looks_deceive_on_a_regular_graph_with_a_narrow_cut() -> None:
    # Two times five ranks, all wires but one, whose ends have wires across: four at every rank.
    # The five chunks of a side cross two wires (2.5 each); evenly, 90 messages on 40 wires would
    # be 2.25 each.
    ends = [(a, b) for a in range(5) for b in range(a) if (a, b) != (1, 0)]
    wires = [*ends, *((a + 5, b + 5) for a, b in ends), (0, 5), (1, 6)]
    hops = [hop for a, b in wires for hop in both_ways(a, b, 0, Fraction(1))]
    assert bound_of(build("bell", 10, hops), "allgather", 1, 1000) == 2500


def test_prices_follow_a_wire_that_is_slow() -> None:
    # a one-way ring: all 3 other chunks pass every wire, and one is twice as slow
    hops = [(r, (r + 1) % 4, 0, None, Fraction(2 if r == 1 else 1)) for r in range(4)]
    result, _ = packed(problem_of(build("ring", 4, hops), "allgather", chunk_size=100))
    assert result.bound == 600
    assert result.prices.argmax() == 1


# --- what any prices prove -----------------------------------------------------------------------

WITHOUT_SPREADING = [name for name in sorted(COLLECTIVES) if name != "allreduce"]


@for_each("seed", range(20), quick=6 * len(WITHOUT_SPREADING))
@for_each("collective", WITHOUT_SPREADING)
def test_no_schedule_is_faster_than_the_bound(collective: str, seed: int) -> None:
    schedule = random_schedule(seed, collective).expand()
    if not schedule.batches:
        result, _ = packed(random_problem(seed, collective))
        assert result.bound <= schedule.makespan
        assert result.bound <= result.load + 1


@for_each("seed", range(60))
def test_no_order_of_sends_beats_the_bound(seed: int) -> None:
    rng = random.Random(seed)
    problem = random_problem(seed, rng.choice(["allgather", "reducescatter", "broadcast"]))
    topology, collective = problem.topology, problem.collective
    if topology.num_ranks > 3 or collective.chunks_per_rank > 1:
        return
    result, _ = packed(problem)
    assert not can_beat(topology, collective, problem.chunk_size, result.bound)


@for_each("seed", range(20))
def test_any_prices_prove_a_bound(seed: int) -> None:
    problem = random_problem(seed, "allgather")
    arcs = arcs_of(problem)
    wanted = wanted_of(arcs)
    pricing = PricingProblem(
        problem.topology.num_ranks, arcs.num_resources, arcs.tail, arcs.head,
        arcs.use_start, arcs.use_resource, arcs.held(),
    )  # fmt: skip
    rows = np.arange(arcs.num_resources)
    idle = np.zeros(arcs.num_resources, dtype=np.int64)
    instance = PackingInstance(pricing, kinds_of(wanted), idle, rows, rows)
    best, load, _ = best_prices(instance, 2.0)
    for draw in range(5):
        prices = np.random.default_rng(draw).random(arcs.num_resources)
        assert least_time(instance, prices) <= least_time(instance, best) <= load + 1


def test_late_resources_count_only_from_when_they_can_be_used() -> None:
    # a pair with a wire each way that takes 4 and one way is idle for 100
    problem = problem_of(build("pair", 2, both_ways(0, 1, 0, Fraction(1))), "allgather", 1, 4)
    arcs = arcs_of(problem)
    pricing = PricingProblem(
        2, 2, arcs.tail, arcs.head, arcs.use_start, arcs.use_resource, arcs.held()
    )
    rows = np.arange(2)
    instance = PackingInstance(
        pricing, kinds_of(wanted_of(arcs)), np.array([0, 100], dtype=np.int64), rows, rows
    )
    # at equal prices 8 must be held; 8 of it by the first wire alone at time 8
    assert least_time(instance, np.array([0.5, 0.5])) == 8
    assert least_time(instance, np.array([0.0, 1.0])) == 104


def test_without_time_the_first_prices_prove_something() -> None:
    arcs = arcs_of(problem_of(load_topology("dgx2", nodes=2), "allgather"))
    wanted = wanted_of(arcs)
    first, best = pack(arcs, wanted, seconds=0.0), pack(arcs, wanted)
    assert 0 < first.bound <= best.bound
    assert first.rounds < best.rounds


def test_the_same_question_has_the_same_answer() -> None:
    arcs = arcs_of(problem_of(load_topology("ndv2"), "allgather", 2))
    one, other = (pack(arcs, wanted_of(arcs)) for _ in range(2))
    assert np.array_equal(one.prices, other.prices)
    assert (one.bound, one.load, one.rounds) == (other.bound, other.load, other.rounds)


def test_times_near_the_limit_of_64_bits_are_exact() -> None:
    # a byte takes 10^12 ps: chunks of 1000 bytes hold a wire for 10^15
    topology = build("slow", 3, [(r, (r + 1) % 3, 0, None, Fraction(10**12)) for r in range(3)])
    problem = Problem(
        whole(topology), build_collective("allgather", 3, 1), Fraction(1000),
        make_group(topology, ()),
    )  # fmt: skip
    assert packed(problem)[0].bound == 2 * 10**15

"""Ranks at one NIC that cross it as one: every answer verified, and times by hand."""

from dataclasses import replace
from fractions import Fraction

import pytest

from taccl.model.problem import Problem
from taccl.model.schedule import Schedule
from taccl.replay.cost import model_of
from taccl.replay.expected import expected_time
from taccl.synth.templates.classical import CLASSICAL, grid_schedules
from taccl.topology.file import load_topology
from taccl.topology.graph import Topology, whole
from taccl.verify import verify
from tests.generators import both_ways, build
from tests.sweep import for_each
from tests.synth.problems import classical_schedule, problem_of
from tests.synth.test_butterflies import nodes_of


def never() -> bool:
    return False


def silent(line: str) -> None:
    """Report nothing."""


def found_of(problem: Problem, kind: str) -> tuple[Schedule, ...]:
    """Return what is found of a kind, all of which must be valid."""
    schedules = grid_schedules(problem, kind, silent, never)
    for schedule in schedules:
        assert verify(schedule, problem.logical) == []
    return schedules


def least_classical(topology: Topology, collective: str, size: int) -> int:
    """Return what the best classical algorithm takes in one chunk for each rank."""
    problem = problem_of(topology, collective, 1, Fraction(size, topology.num_ranks))
    every = (classical_schedule(problem, name, batch=True) for name in CLASSICAL)
    return min(schedule.makespan for schedule in every if schedule is not None)


def found(problem: Problem) -> tuple[Schedule, ...]:
    return found_of(problem, "leaders")


@for_each("collective", ["allgather", "reducescatter"])
@for_each(("sharing", "count"), [(2, 2), (4, 2), (2, 4)])
@for_each("chunks", [1, 3])
def test_every_answer_is_valid(sharing: int, count: int, chunks: int, collective: str) -> None:
    assert found(problem_of(nodes_of(4, sharing, count), collective, chunks, Fraction(10)))


@for_each("collective", ["allgather", "reducescatter", "allreduce"])
@for_each(
    "fabric",
    ["leaf-spine:3x4x2", "leaf-spine:2x3", "fat-tree:4", "dragonfly:3x2x2", "leaf-spine:5x2"],
)
def test_leaves_pods_and_groups_are_servers(fabric: str, collective: str) -> None:
    for chunks in (1, 2):
        assert found(problem_of(load_topology(fabric), collective, chunks, Fraction(100)))


def test_each_other_leaf_has_a_rank_to_cross_to_it() -> None:
    # Three leaves of two ranks, alpha 1 us a switch, 1 us a byte, all of it twice as fast above: a
    # pair exchanges (1 + 1), one of it crosses to each other leaf, by an uplink that takes one
    # message after the other (3 + 2/2, then 3 + 2), and they exchange what came (1 + 2).
    fabric = load_topology("leaf-spine:3x2@1us/MB,1us")
    problem = problem_of(fabric, "allgather", 1, Fraction(10**6))
    assert found(problem)[0].makespan == (2 + (3 + 1) + (3 + 2) + (1 + 2)) * 10**6


def test_what_crossed_to_three_neighbours_is_spread_over_all_in_even_shares() -> None:
    # Four leaves of eight gather in 3 rounds; one of each crosses to each other leaf, in turn by an
    # uplink of 4 times the speed; what came to three is 8, 8 and 16 blocks to exchange in 3 rounds.
    alpha, block = 700_000, 160_000
    problem = problem_of(load_topology("leaf-spine:4x8x2@50GB/s,0.7us"), "allgather", 1, 8000)
    crossing = 2 * (3 * alpha + 2 * block) + 3 * alpha + 8 * block
    assert found(problem)[0].makespan == 6 * alpha + (7 + 8 + 8 + 16) * block + crossing


@for_each("collective", ["allgather", "reducescatter"])
def test_one_rank_of_a_pod_crosses_for_all(collective: str) -> None:
    # Fold by the edge switch (1 crossing) and in the pod (3), exchange twice by the core (5), and
    # back: a rank has 1, 2, 4 and 8 blocks to give, and lacks all but 2 and 1 at the end.
    problem = problem_of(load_topology("fat-tree:4@50GB/s,0.7us"), collective, 1, 50)
    assert found(problem)[0].makespan == 18 * 700_000 + (1 + 2 + 4 + 8 + 14 + 15) * 1000


def test_a_sum_of_five_leaves_folds_one_away() -> None:
    # Two ranks fold (1 us); the fifth leaf gives its sum to another and gets the total (3 us each);
    # four exchange sums twice (3 us each); and each spreads in its leaf (1 us). Ten bytes each.
    fabric = load_topology("leaf-spine:5x2@1us/MB,1us")
    problem = problem_of(fabric, "allreduce", 1, Fraction(1))
    assert found(problem)[0].makespan == (1 + 3 + 3 + 3 + 3 + 1) * 10**6 + 6 * 10


@for_each("collective", ["allgather", "reducescatter", "allreduce"])
def test_groups_of_a_dragonfly_meet_where_their_cable_is(collective: str) -> None:
    # Ranks of a router exchange, then of two routers, twice, each by a cable of its own; of each
    # router one crosses with what 8 hold; and what comes is exchanged the same way. A message
    # crosses as many routers as stand on its way.
    topology = load_topology("dragonfly:5x4x2@50GB/s,0.7us")
    formula = (1 + 2 + 2 + 2 + 1 + 2 + 2) * 700_000 + (1 + 2 + 4 + 8 + 8 + 8 + 16) * 20 * 1000
    times = 2 if collective == "allreduce" else 1
    assert found_of(problem_of(topology, collective), "gateways")[0].makespan == times * formula


def test_an_alltoall_crosses_from_one_rank_to_each_other_leaf() -> None:
    # Three leaves of two ranks, alpha 1 us a switch, 1 us a byte, twice as fast above. Each gives
    # the other what that leads for, two, and its own (1 + 3); the uplink takes 4 bytes from one and
    # then from the other (3 + 4/2, then 3 + 4), and who got it hands on two (1 + 2).
    problem = problem_of(load_topology("leaf-spine:3x2@1us/MB,1us"), "alltoall", 1, 10**6)
    formula = (1 + 3) + (3 + 2) + (3 + 4) + (1 + 2)
    assert found_of(problem, "gates")[0].makespan == formula * 10**6
    assert found_of(problem, "mixed-radix")[0].makespan > formula * 10**6


def test_servers_in_a_row_have_no_gates_to_each_other_one() -> None:
    ends = ((0, 1), (2, 3), (4, 5), (1, 2), (3, 4))
    hops = [hop for a, b in ends for hop in both_ways(a, b, 10, Fraction(1))]
    row = build("row", 6, hops, server_of=(0, 0, 1, 1, 2, 2))
    assert not found_of(problem_of(row, "alltoall"), "gates")


def test_an_alltoall_of_a_dragonfly_crosses_where_cables_are() -> None:
    # Two groups of two routers of two ranks, a cable from the first router of each to the other's.
    fabric = load_topology("dragonfly:5x4x2@50GB/s,0.7us")
    problem = problem_of(fabric, "alltoall", 1, 400)
    gates, others = (found_of(problem, kind)[0] for kind in ("gates", "mixed-radix"))
    assert gates.makespan < 0.75 * others.makespan
    links = fabric.links
    groups = {
        (links.src[link] // 8, links.dst[link] // 8): int(links.alpha[link])
        for link in set(gates.link.tolist()) if links.src[link] // 8 != links.dst[link] // 8
    }  # fmt: skip
    assert len(groups) == 5 * 4
    assert max(groups.values()) == int(links.alpha[links.src // 8 != links.dst // 8].min())


@for_each("fabric", ["dragonfly:3x4x1", "dragonfly:4x3x2", "dragonfly:5x4x2"])
def test_gateways_serve_what_a_gather_serves(fabric: str) -> None:
    for collective in ("allgather", "reducescatter", "allreduce"):
        assert found_of(problem_of(load_topology(fabric), collective, 2), "gateways")
    assert found_of(problem_of(load_topology(fabric), "alltoall", 2), "gates")
    assert not found_of(problem_of(load_topology(fabric), "broadcast"), "gateways")
    assert not found_of(problem_of(load_topology("leaf-spine:3x2"), "allgather"), "gateways")


@for_each("fabric", ["hypercube:8", "hypercube:16", "torus2d:4x4", "torus3d:4x4x2"])
def test_on_a_hypercube_all_links_are_busy_in_every_round(fabric: str) -> None:
    # In as many parts as there are dimensions, each with a chunk of a rank: one alpha in a round,
    # and (n - 1) chunks over every link. Of an AllReduce, halving and doubling meet in one round.
    topology = load_topology(f"{fabric}@1us/MB,1us")
    ranks = topology.num_ranks
    sides, size = ranks.bit_length() - 1, 10**6
    for collective, times in (("allgather", 1), ("reducescatter", 1), ("allreduce", 2)):
        problem = problem_of(topology, collective, sides, Fraction(size))
        rounds, chunks = times * sides - (times - 1), times * (ranks - 1)
        assert found_of(problem, "cubes")[0].makespan == rounds * 10**6 + chunks * size
    assert not found_of(problem_of(topology, "allgather"), "cubes")  # no parts
    assert not found_of(problem_of(load_topology("torus2d:3x3"), "allgather", 2), "cubes")


@for_each("kind", ["leaders", "mixed-radix", "butterflies"])
@for_each("machine", ["leaf-spine:4x4x2", "fat-tree:4"])
def test_the_first_program_of_a_kind_is_nearly_the_best(machine: str, kind: str) -> None:
    # A clock puts them in order: where time is short, only the first is timed exactly.
    collective = "allgather" if kind == "mixed-radix" else "allreduce"
    for size in (100, 10_000):
        problem = problem_of(load_topology(f"{machine}@50GB/s,0.7us"), collective, 1, size)
        first, *_ = grid_schedules(problem, kind, silent, lambda: True)
        assert first.makespan <= 1.1 * found_of(problem, kind)[0].makespan


def test_messages_of_more_chunks_than_a_step_has_are_expected_to_cross_in_parts() -> None:
    # Of 128 chunks, in parts of 71: two more messages of 0.7 us in a leaf and two of 2.1 across.
    problem = problem_of(load_topology("leaf-spine"), "alltoall", 1, 32)
    model = model_of("portable")
    for kind, more in (("mixed-radix", 2 * 700_000 + 2 * 2_100_000), ("gates", 0)):
        schedule = found_of(problem, kind)[0]
        expected = expected_time(schedule, model, ("Simple",), 64, 1)
        assert expected == schedule.makespan + more


@for_each("machine", ["leaf-spine:4x4x2", "fat-tree:4", "leaf-spine:4x8x2"])
def test_the_first_alltoall_that_is_timed_is_the_best_for_small_buffers(machine: str) -> None:
    problem = problem_of(load_topology(f"{machine}@50GB/s,0.7us"), "alltoall", 1, 32)
    first, *_ = grid_schedules(problem, "mixed-radix", silent, lambda: True)
    assert first.makespan == found_of(problem, "mixed-radix")[0].makespan


@pytest.mark.parametrize("collective", ["allgather", "reducescatter"])
def test_one_message_crosses_for_two_ranks(collective: str) -> None:
    # One byte a rank: two neighbours exchange (101 us), one crosses with both (302 us), gives
    # them back (102 us), and they go to the other two (102 us). Alone, each would cross.
    problem = problem_of(nodes_of(4, 2, 2), collective, 1, Fraction(1))
    schedules = found(problem)
    assert schedules[0].makespan == (101 + 302 + 102 + 102) * 10**6
    alone = classical_schedule(problem, "halving-doubling", batch=True)
    assert alone is not None
    assert alone.makespan > schedules[0].makespan


@pytest.mark.parametrize("nodes", [2, 4])
def test_two_dgx2_gather_middling_buffers_faster_than_by_doubling(nodes: int) -> None:
    topology = load_topology("dgx2", nodes=nodes)
    problem = problem_of(topology, "allgather", 1, Fraction(1 << 17, topology.num_ranks))
    doubling = classical_schedule(problem, "halving-doubling", batch=True)
    assert doubling is not None
    assert found(problem)[0].makespan < 0.9 * doubling.makespan


def test_one_server_and_other_collectives_have_none() -> None:
    assert not found(problem_of(load_topology("dgx2"), "allgather"))
    assert not found(problem_of(nodes_of(4, 2, 2), "alltoall", 1, 10))
    assert not found(problem_of(load_topology("ring:8"), "allgather"))


def test_limits_of_a_sketch_have_none() -> None:
    limited = replace(whole(nodes_of(4, 2, 2)), connections_per_rank=2)
    assert not found(problem_of(limited, "allgather"))

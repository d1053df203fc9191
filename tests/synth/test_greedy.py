"""The earliest-finish greedy on cases worked out by hand."""

from dataclasses import replace

import pytest

from taccl.collectives import COLLECTIVES
from taccl.model.routes import build_network
from taccl.synth.greedy import greedy_routes, is_complete
from taccl.topology.graph import whole
from tests.generators import TINY, random_topology, ring4, star5
from tests.sweep import for_each
from tests.synth.problems import problem_of


@for_each("seed", range(20), quick=140)
@for_each("collective", sorted(set(COLLECTIVES) - {"allreduce"}))
@for_each("extra", [None, 0, 1])
def test_every_target_is_reached(seed: int, collective: str, extra: int | None) -> None:
    logical = replace(whole(random_topology(seed)), max_extra_hops=extra)
    network = build_network(problem_of(logical, collective), reverse=collective == "reducescatter")
    assert is_complete(network, greedy_routes(network))


@pytest.mark.parametrize("name", TINY)
def test_hops_follow_each_other_and_leave_no_rank_twice(name: str) -> None:
    network = build_network(problem_of(TINY[name](), "allgather"))
    reached = {(number, demand.root): 0 for number, demand in enumerate(network.demands)}
    for hop in greedy_routes(network):
        assert reached[hop.demand, hop.arc.tail] <= hop.start
        assert (hop.demand, hop.arc.head) not in reached
        reached[hop.demand, hop.arc.head] = hop.end


def test_a_ring_takes_two_messages_over_each_wire() -> None:
    # Three chunks enter every rank over two wires: 2 x (10 + 1000) ps.
    hops = greedy_routes(build_network(problem_of(ring4(), "allgather")))
    assert max(hop.end for hop in hops) == 2020


def test_a_star_keeps_every_way_down_busy() -> None:
    # Four messages of 10 + 2000 ps enter every rank. One that took 6 ports in its turn could
    # not do better, and the greedy does not do worse than one idle turn.
    hops = greedy_routes(build_network(problem_of(star5(), "allgather")))
    assert 4 * 2010 <= max(hop.end for hop in hops) <= 5 * 2010


def test_chunks_of_an_alltoall_take_shortest_paths_on_an_idle_ring() -> None:
    network = build_network(problem_of(ring4(), "alltoall"))
    hops = greedy_routes(network)
    # Four chunks go two hops, eight go one.
    assert len(hops) == 16


def test_what_leads_to_no_target_is_pruned() -> None:
    # Chunk 0 -> 1 passes no other rank, so one hop is left of every tree.
    network = build_network(problem_of(ring4(), "allgather"))
    demands = tuple(
        replace(demand, targets=((demand.root + 1) % 4, (demand.root + 2) % 4))
        for demand in network.demands
    )
    hops = greedy_routes(replace(network, demands=demands))
    ends = {(hop.demand, hop.arc.head) for hop in hops}
    tails = {(hop.demand, hop.arc.tail) for hop in hops}
    wanted = {(n, target) for n, demand in enumerate(demands) for target in demand.targets}
    assert ends <= wanted | tails


def test_hops_that_miss_a_target_are_incomplete() -> None:
    network = build_network(problem_of(ring4(), "allgather"))
    hops = greedy_routes(network)
    assert is_complete(network, hops)
    assert not is_complete(network, hops[:-1])

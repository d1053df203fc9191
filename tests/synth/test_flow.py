"""Engine flow: routes of an optimal flow, as whole chunks, ordered close to the flow's own time."""

from dataclasses import replace

import pytest

from taccl.bounds import any_bounds, best, fixed_bounds
from taccl.collectives import COLLECTIVES
from taccl.errors import NoScheduleError
from taccl.model.problem import Options, Problem
from taccl.model.schedule import Schedule
from taccl.sketch import apply_sketch, load_sketch
from taccl.synth.flow.engine import flow
from taccl.topology.file import load_topology
from taccl.topology.graph import whole
from taccl.verify import verify
from tests.generators import pair, random_problem, ring4, twin2x2
from tests.sweep import for_each
from tests.synth.problems import problem_of

ONE_BY_ONE = Options(batch=False, deterministic=True, workers=1, time_limit=4.0)
QUICK = Options(deterministic=True, workers=1, time_limit=2.0)


def solved(problem: Problem, options: Options = ONE_BY_ONE) -> Schedule:
    found = flow(problem, options).schedule
    assert found is not None
    assert not verify(found, problem.logical)
    return found


def test_opposite_chunks_on_a_ring_are_split_evenly_over_both_ways() -> None:
    # 8 chunks go one hop and 4 two, over 8 wires of 1010 ps: two chunks on each.
    assert solved(problem_of(ring4(), "alltoall")).makespan == 2 * 1010


def test_a_chunk_that_can_take_one_way_only_takes_it() -> None:
    assert solved(problem_of(pair(), "alltoall", chunks=3)).makespan == 3 * 2010


@pytest.mark.parametrize("collective", ["alltoall", "gather", "scatter"])
@pytest.mark.parametrize("rule", ["occupy", "delay"])
def test_servers_behind_narrow_links_are_served_in_the_time_of_the_bound(
    collective: str, rule: str
) -> None:
    problem = problem_of(twin2x2(rule), collective, chunks=4)
    bound = best(fixed_bounds(problem.logical, problem.collective, problem.chunk_size)).time
    assert bound <= solved(problem).makespan <= 1.1 * bound


@for_each("name", ["dgx2", "torus2d:4x4", "hub:8", "mesh2d:4x4"], quick=4)
@for_each("symmetric", [True, False])
def test_the_bound_is_reached_on_machines(name: str, symmetric: bool) -> None:
    problem = problem_of(load_topology(name), "alltoall", chunk_size=10**6, symmetric=symmetric)
    bound = best(fixed_bounds(problem.logical, problem.collective, problem.chunk_size)).time
    # Without symmetry, whole chunks on a torus leave one slot of 8 more on some wire.
    assert bound <= solved(problem).makespan <= (1.01 if symmetric else 1.13) * bound


@for_each("seed", range(12), quick=16)
@for_each("collective", sorted(COLLECTIVES))
@for_each("options", [ONE_BY_ONE, QUICK], ids=["single", "batches"])
def test_any_network_is_served_correctly(seed: int, collective: str, options: Options) -> None:
    solved(random_problem(seed, collective), options)


def test_copied_chunks_take_trees_that_use_every_way_from_the_root() -> None:
    # Two chunks on a ring of four, one each way round: three hops of 1010 ps, and no link twice.
    for collective in ("broadcast", "reduce"):
        found = solved(problem_of(ring4(), collective, chunks=2))
        assert found.makespan == 3 * 1010
        assert max(found.edge_busy) == 1010


@pytest.mark.parametrize("collective", ["broadcast", "reduce", "allgather", "allreduce"])
def test_trees_hold_no_link_much_longer_than_any_must_be(collective: str) -> None:
    chunks = 16 if collective in ("broadcast", "reduce") else 4
    for machine in ("mi250", "mesh2d"):
        problem = problem_of(load_topology(machine), collective, chunks=chunks, chunk_size=10**7)
        size = int(problem.chunk_size) * problem.collective.chunks_in_size
        bound = best(any_bounds(problem.logical, problem.collective, size)).time
        assert max(solved(problem).edge_busy) <= 1.14 * bound


def test_trees_are_refused_where_they_are_too_many() -> None:
    problem = problem_of(load_topology("dgx-a100", nodes=32), "allgather", chunk_size=10**6)
    with pytest.raises(NoScheduleError, match="so many trees take too long to look for"):
        flow(problem, QUICK)


@pytest.mark.parametrize("sketch", ["dgx2-relay", "dgx2-fully-connected"])
def test_a_sketch_is_respected(sketch: str) -> None:
    logical = apply_sketch(load_topology("dgx2", nodes=2), load_sketch(sketch))
    problem = problem_of(logical, "alltoall", chunk_size=1 << 20)
    assert not verify(solved(problem), logical)


def test_where_all_opposite_chunks_would_go_one_way_round_symmetry_is_left_out() -> None:
    # On orbits a chunk to the opposite rank goes one way everywhere; half of them should not.
    problem = problem_of(load_topology("ring:8"), "alltoall", chunk_size=10**6, symmetric=True)
    found = solved(problem, replace(ONE_BY_ONE, floor=165_600_000))
    assert len(problem.group) == 8
    assert found.makespan == 165_600_000


def test_where_whole_chunks_cannot_share_links_as_a_flow_does_they_are_routed_whole() -> None:
    problem = problem_of(load_topology("dgx2", nodes=2), "gather", chunk_size=10**6)
    # By the paths of the flow alone it is 340.5 us; no schedule of single chunks takes 252.3.
    assert 252_300_000 < solved(problem).makespan <= 290_000_000


def test_batches_are_found_though_a_rotation_breaks_them() -> None:
    problem = problem_of(load_topology("torus2d:3x3"), "alltoall", chunks=4, symmetric=True)
    assert solved(problem, QUICK).makespan < solved(problem).makespan


@pytest.mark.parametrize("options", [ONE_BY_ONE, QUICK], ids=["single", "batches"])
def test_a_limit_on_connections_leaves_the_ways_through_few_gateways(options: Options) -> None:
    network = whole(load_topology("ndv2", nodes=2))
    logical = replace(network, connections_per_rank=5, name="few")
    found = solved(problem_of(logical, "alltoall", chunk_size=10, symmetric=True), options)
    links = found.topology.links
    peers = {(int(links.src[k]), int(links.dst[k])) for k in found.expand().link.tolist()}
    # Wires to 4 ranks of its server, and the one of its number in the other.
    assert max(sum(src == rank for src, _ in peers) for rank in range(16)) == 5


def test_the_same_seed_gives_the_same_schedule() -> None:
    problem = problem_of(load_topology("mesh2d:3x3"), "alltoall")
    one, two = solved(problem), solved(problem)
    assert one.link.tolist() == two.link.tolist()
    assert one.start.tolist() == two.start.tolist()

"""Routes without a linear program: fastest ways, spread over those that are equally fast."""

from collections import Counter
from dataclasses import replace

import pytest

from taccl.bounds import best, fixed_bounds
from taccl.errors import NoScheduleError, OutOfTimeError
from taccl.model.problem import Options
from taccl.model.schedule import retime
from taccl.synth.flow import engine
from taccl.synth.flow.engine import flow
from taccl.synth.flow.program import flow_instance
from taccl.synth.flow.routes import rows_of_fastest_paths
from taccl.synth.list_scheduler import dispatched, load_of
from taccl.synth.plan import plan_decisions
from taccl.topology.file import load_topology
from taccl.verify import verify
from tests.generators import both_ways, build, pair, random_problem, ring4
from tests.sweep import for_each
from tests.synth.problems import QUICK, problem_of


def silent(line: str) -> None:
    """Report nothing."""


def test_opposite_chunks_on_a_ring_are_spread_over_both_ways() -> None:
    problem = problem_of(ring4(), "alltoall")
    links = problem.topology.links
    used = Counter(link for _, link, _ in rows_of_fastest_paths(flow_instance(problem)))
    assert sum(used.values()) == 8 + 2 * 4
    # Evenly it would be 2; one way round only, 4.
    assert max(used.values()) <= 3
    assert len(used) == len(links)


def test_chunks_that_may_go_either_way_round_are_shared_evenly() -> None:
    for machine in ("torus2d:4x4", "torus2d:4x8", "torus3d:4x2x4"):
        problem = problem_of(load_topology(machine), "alltoall", symmetric=True)
        links, orbit = problem.topology.links, problem.group.edge_orbit
        taken = [link for _, link, _ in rows_of_fastest_paths(flow_instance(problem))]
        held = Counter(orbit[links.edge_ids[links.edge_start[taken]]].tolist())
        long = [count for count in held.values() if 2 * count > max(held.values())]
        assert min(long) == max(long), machine


def test_without_a_program_many_chunks_reach_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    # The longest way first alone leaves busy links idle: for 4 % and 15 % of the time.
    monkeypatch.setattr(engine, "LARGE", 1)
    for machine in ("torus3d:8x4x8", "torus3d:4x4x4"):
        problem = problem_of(load_topology(machine), "alltoall", symmetric=True)
        bound = best(fixed_bounds(problem.logical, problem.collective, problem.chunk_size)).time
        found = flow(problem, replace(QUICK, batch=False, floor=bound)).schedule
        assert found is not None
        assert found.makespan == bound, machine


@for_each("seed", range(12))
@for_each("collective", ["alltoall", "gather", "scatter"])
def test_any_network_is_served_correctly(seed: int, collective: str) -> None:
    problem = random_problem(seed, collective)
    plan = plan_decisions(problem, rows_of_fastest_paths(flow_instance(problem)))
    load = load_of(plan, [(number,) for number in range(len(plan.moves))])
    decisions, _ = dispatched(load, silent)
    found = retime(problem.collective, problem.group, problem.chunk_size, decisions)
    assert not verify(found, problem.logical)


def test_free_links_make_no_rings() -> None:
    free = [hop for a, b in ((0, 1), (1, 2), (2, 0)) for hop in both_ways(a, b, 0, None)]
    problem = problem_of(build("free", 3, free), "alltoall")
    assert len(rows_of_fastest_paths(flow_instance(problem))) == 6


def test_a_rank_that_cannot_be_reached_is_told() -> None:
    one_way = build("one-way", 2, [both_ways(0, 1, 1, None)[0]])
    with pytest.raises(NoScheduleError, match="can't be served: no allowed path"):
        rows_of_fastest_paths(flow_instance(problem_of(one_way, "alltoall")))


def test_they_are_taken_where_the_flow_is_not_solved_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def late(*_: object) -> None:
        raise OutOfTimeError("the flow was not solved in time", fix="raise --time-limit")

    monkeypatch.setattr(engine, "optimal_flow", late)
    said: list[str] = []
    options = Options(deterministic=True, workers=1, time_limit=4.0, report=said.append)
    problem = problem_of(load_topology("torus2d:3x3"), "alltoall", symmetric=True)
    found = flow(problem, options).schedule
    assert found is not None
    assert not verify(found, problem.logical)
    assert said == ["the flow was not solved in time: every chunk takes a fastest way"]
    assert flow(problem_of(pair(), "alltoall"), options).schedule is not None

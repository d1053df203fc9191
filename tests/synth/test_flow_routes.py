"""Which of many optimal flows is taken, and flows that cross by a few gateways only."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import scipy.optimize

from taccl.errors import NoScheduleError, OutOfTimeError
from taccl.model.problem import Options, Problem
from taccl.synth.flow.engine import flow
from taccl.synth.flow.program import flow_instance, optimal_flow
from taccl.synth.flow.routes import (
    flow_by_near_gateways,
    rows_of_flow,
    unfolded,
    with_fewer_gateways,
)
from taccl.topology.file import load_topology
from taccl.topology.graph import Topology
from tests.generators import ring4, star5, twin2x2
from tests.synth.problems import problem_of

OPTIONS = Options(deterministic=True, workers=1, time_limit=20.0)
CLOCK = replace(OPTIONS, time_limit=0.0).begin(OPTIONS.solver_share)


def gateways_used(problem: Problem, rows: list[tuple[int, int, bool]]) -> dict[int, set[int]]:
    """Return for every source rank the links by which its chunks leave its server."""
    topology, links = problem.topology, problem.topology.links
    used: dict[int, set[int]] = defaultdict(set)
    for chunk, link, _ in rows:
        ends = (int(links.src[link]), int(links.dst[link]))
        if topology.server_of[ends[0]] != topology.server_of[ends[1]]:
            used[problem.collective.sources(chunk)[0]].add(link)
    return used


def test_near_gateways_keep_the_time_of_the_flow_and_open_fewer_links() -> None:
    problem = problem_of(load_topology("dgx2", nodes=2), "alltoall", chunk_size=10**6)
    instance = flow_instance(problem)
    first = optimal_flow(instance, CLOCK)
    near = flow_by_near_gateways(instance, first, CLOCK)
    assert near.time <= first.time * (1 + 1e-6)
    links = problem.topology.links
    for rank, used in gateways_used(problem, rows_of_flow(instance, near, CLOCK)).items():
        # A NIC of dgx2 belongs to two ranks: the nearest gateway is the rank's own.
        assert {int(links.src[link]) for link in used} == {rank}


@pytest.mark.parametrize("deterministic", [True, False])
def test_no_clock_ends_a_program_where_work_is_counted(
    monkeypatch: pytest.MonkeyPatch, *, deterministic: bool
) -> None:
    timed: dict[str, set[bool]] = defaultdict(set)

    def watched(name: str) -> None:
        solver = getattr(scipy.optimize, name)

        def solve(*given: object, options: Mapping[str, float], **named: object) -> object:
            timed[name].add("time_limit" in options)
            return solver(*given, options=options, **named)

        monkeypatch.setattr(scipy.optimize, name, solve)

    watched("linprog")
    watched("milp")
    problem = problem_of(load_topology("ndv2"), "scatter", chunk_size=10**6)
    flow(problem, replace(OPTIONS, deterministic=deterministic, time_limit=2.0))
    assert timed == {"linprog": {not deterministic}, "milp": {not deterministic}}


def test_large_programs_are_not_solved_where_work_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("taccl.synth.flow.program.MAX_COUNTED", 10)
    problem = problem_of(star5(), "alltoall", chunk_size=10**6)
    with pytest.raises(OutOfTimeError, match="variables takes long, and work is counted"):
        optimal_flow(flow_instance(problem), CLOCK)
    assert flow(problem, OPTIONS).schedule is not None


def test_many_ways_are_chosen_one_by_one_where_work_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("taccl.synth.flow.routes.MAX_COUNTED", 0)
    problem = problem_of(load_topology("ndv2"), "scatter", chunk_size=10**6)
    instance = flow_instance(problem)
    rows = rows_of_flow(instance, optimal_flow(instance, CLOCK), CLOCK)
    assert {chunk for chunk, _, _ in rows} == set(range(1, 8))


@pytest.mark.parametrize("symmetric", [True, False])
def test_routes_of_representatives_unfold_to_those_of_all_chunks(*, symmetric: bool) -> None:
    problem = problem_of(load_topology("torus2d:3x3"), "alltoall", symmetric=symmetric)
    instance = flow_instance(problem)
    rows = unfolded(problem, rows_of_flow(instance, optimal_flow(instance, CLOCK), CLOCK))
    links = problem.topology.links
    at = {
        chunk: problem.collective.sources(chunk)[0]
        for chunk in range(problem.collective.num_chunks)
    }
    for chunk, link, _ in rows:
        assert at[chunk] == links.src[link]
        at[chunk] = int(links.dst[link])
    assert all(at[chunk] == problem.collective.targets(chunk)[0] for chunk in at)


def test_ever_fewer_gateways_join_equal_numbers_of_two_servers() -> None:
    problem = problem_of(load_topology("dgx2", nodes=2), "alltoall")
    found = dict(with_fewer_gateways(problem))
    assert list(found) == [16, 8, 4, 2, 1]
    links, server = problem.topology.links, np.array(problem.topology.server_of)
    across = server[links.src] != server[links.dst]
    for count, narrow in found.items():
        gateways = np.flatnonzero(narrow.logical.allowed & across)
        assert len(gateways) == 2 * count
        assert (links.src[gateways] % 16 == links.dst[gateways] % 16).all()
        assert (narrow.logical.allowed | across).all()


def test_chunks_cross_by_the_gateways_alone() -> None:
    problem = problem_of(load_topology("dgx2", nodes=2), "alltoall")
    narrow = dict(with_fewer_gateways(problem))[2]
    instance = flow_instance(narrow)
    rows = rows_of_flow(instance, optimal_flow(instance, CLOCK), CLOCK)
    used = set().union(*gateways_used(narrow, rows).values())
    assert len(used) == 4


def test_symmetries_that_move_a_door_elsewhere_are_not_used() -> None:
    problem = problem_of(load_topology("dgx2", nodes=2), "alltoall", symmetric=True)
    assert len(problem.group) == 16
    sizes = {count: len(narrow.group) for count, narrow in with_fewer_gateways(problem)}
    assert sizes[16] >= sizes[1] >= 1
    for narrow in dict(with_fewer_gateways(problem)).values():
        links = np.flatnonzero(narrow.logical.allowed)
        for number in range(len(narrow.group)):
            assert narrow.logical.allowed[narrow.group.link_images(number, links)].all()


@pytest.mark.parametrize("network", [ring4(), star5(), load_topology("ndv2")])
def test_one_server_has_no_gateways(network: Topology) -> None:
    assert not list(with_fewer_gateways(problem_of(network, "alltoall")))


def test_links_that_are_the_only_gateways_are_no_choice() -> None:
    problem = problem_of(twin2x2(), "alltoall")
    for _, narrow in with_fewer_gateways(problem):
        assert narrow.logical.allowed.sum() < problem.logical.allowed.sum()


def test_a_sum_is_no_flow() -> None:
    with pytest.raises(NoScheduleError, match="flow does not exist for reducescatter"):
        flow_instance(problem_of(ring4(), "reducescatter"))

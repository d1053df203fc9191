"""The staged engine: what it tries, keeps and says, beyond what holds for every engine."""

from dataclasses import replace

import pytest

from taccl.synth.greedy import greedy_routes
from taccl.synth.plan import Plan, plan_routes
from taccl.synth.problem import Status
from taccl.synth.routes import build_network
from taccl.synth.staged import _routes_of, ordered, staged
from taccl.topology_file import load_topology
from tests.generators import random_problem, ring4
from tests.synth.problems import QUICK, problem_of


def greedy_plan(seed: int) -> Plan:
    network = build_network(random_problem(seed, "allgather"))
    return plan_routes(network, _routes_of(network, greedy_routes(network)))


@pytest.mark.parametrize("seed", range(5))
def test_orders_of_a_plan_come_best_first(seed: int) -> None:
    times = [candidate.makespan for candidate in ordered(greedy_plan(seed), QUICK)]
    assert times == sorted(set(times))


@pytest.mark.parametrize("seed", range(8))
def test_the_answer_is_never_worse_than_the_greedys(seed: int) -> None:
    plan = greedy_plan(seed)
    found = staged(plan.problem, replace(QUICK, time_limit=1.0))
    assert found.schedule is not None
    assert found.schedule.makespan <= ordered(plan, QUICK)[0].makespan


def test_a_symmetry_of_the_topology_alone_does_not_bind_a_small_problem() -> None:
    # As in the tests of sketches: 2T where chunks may turn either way, 3T where all turn alike.
    problem = problem_of(load_topology("ring:4"), "alltoall", symmetric=True)
    singly = replace(QUICK, time_limit=18.0, batch=False)
    found = staged(problem, singly).schedule
    assert found is not None
    one = problem.topology.arrival(0, problem.chunk_size)
    assert found.makespan == 2 * one


def test_a_schedule_at_the_floor_is_optimal() -> None:
    found = staged(problem_of(ring4(), "allgather"), replace(QUICK, batch=False, floor=2020))
    assert found.status is Status.OPTIMAL


def test_a_schedule_above_the_floor_is_feasible() -> None:
    found = staged(problem_of(ring4(), "allgather"), replace(QUICK, batch=False, floor=2019))
    assert found.status is Status.FEASIBLE

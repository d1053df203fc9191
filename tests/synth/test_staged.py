"""The staged engine: what it tries, keeps and says, beyond what holds for every engine."""

import sys
from contextlib import suppress
from dataclasses import replace

import pytest

from taccl.model.problem import Problem, Status
from taccl.model.routes import build_network
from taccl.synth.greedy import greedy_routes, routes_of
from taccl.synth.plan import Plan, plan_routes
from taccl.synth.staged import _polished, ordered, staged
from taccl.topology.file import load_topology
from tests.generators import random_problem, ring4
from tests.sweep import for_each
from tests.synth.problems import QUICK, problem_of


def greedy_plan(seed: int) -> Plan:
    network = build_network(random_problem(seed, "allgather"))
    return plan_routes(network, routes_of(network, greedy_routes(network)))


@pytest.mark.parametrize("seed", range(5))
def test_orders_of_a_plan_come_best_first(seed: int) -> None:
    times = [candidate.makespan for candidate in ordered(greedy_plan(seed), QUICK)]
    assert times == sorted(set(times))


@for_each("seed", range(8))
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


@pytest.mark.parametrize(("name", "batch", "asked"), [
    ("ring:4", True, True), ("hub:24", True, False), ("hub:24", False, True),
])  # fmt: skip
def test_messages_are_modelled_with_routes_for_few_chunks_only(
    monkeypatch: pytest.MonkeyPatch, name: str, *, batch: bool, asked: bool
) -> None:
    # Building that model can't be interrupted: 12 chunks, and 552.
    problem, options = problem_of(load_topology(name), "alltoall"), replace(QUICK, batch=batch)
    network = build_network(problem)
    plan = plan_routes(network, routes_of(network, greedy_routes(network)))
    asked_for: list[Problem] = []
    engine = sys.modules["taccl.synth.staged"]  # the name in the package is the function
    monkeypatch.setattr(engine, "improve_order", lambda schedule, *_, **__: (schedule, 0))
    monkeypatch.setattr(engine, "flows_of", asked_for.append)
    clock = replace(options, deterministic=True, time_limit=24.0).begin(2.0)
    with suppress(AttributeError):  # what is asked for is not there
        _polished(ordered(plan, options)[0], options, clock)
    assert asked_for == [problem] * asked

"""AllReduce along trees with two roots that exchange their sums."""

import pytest

from taccl.model.problem import Options, Problem
from taccl.model.schedule import Schedule
from taccl.synth.staged import exchanged, ordered, partners_of, staged
from taccl.topology.file import load_topology
from taccl.verify import verify
from tests.generators import pair, random_problem
from tests.sweep import for_each
from tests.synth.problems import problem_of

ONE_BY_ONE = Options(batch=False)


def schedules(problem: Problem) -> list[Schedule]:
    found = []
    for partners in partners_of(problem):
        plan = exchanged(problem, partners)
        assert plan is not None
        found += [candidate.schedule for candidate in ordered(plan, ONE_BY_ONE)]
    return found


def test_two_ranks_exchange_a_chunk_in_the_time_of_one_message() -> None:
    # Both chunks of 1000 bytes cross each wire once: 2 x (10 + 2 x 1000) ps one after the other.
    found = schedules(problem_of(pair(), "allreduce"))
    assert min(schedule.makespan for schedule in found) == 2 * 2010


@pytest.mark.parametrize(("ranks", "hops"), [(4, 3), (6, 5), (8, 7)])
def test_a_ring_is_busy_all_the_time(ranks: int, hops: int) -> None:
    # A chunk goes n/2 - 1 hops to each of two neighbours, one across, and as many back: n - 1.
    # Every wire carries n - 1 messages, one after the other.
    topology = load_topology(f"ring:{ranks}")
    problem = problem_of(topology, "allreduce", symmetric=True)
    found = schedules(problem)
    assert min(schedule.makespan for schedule in found) == hops * topology.arrival(0, 1000)


@for_each("seed", range(16))
def test_every_exchange_adds_each_value_once(seed: int) -> None:
    problem = random_problem(seed, "allreduce")
    for schedule in schedules(problem):
        assert not verify(schedule, problem.logical)


def test_a_link_whose_way_back_is_its_own_image_is_not_for_an_exchange() -> None:
    # On a hub every rank has one port each way, and rotations make all of them one.
    topology = load_topology("hub:4")
    assert list(partners_of(problem_of(topology, "allreduce", symmetric=True))) == []


@pytest.mark.parametrize("name", ["ring:8", "ring:6"])
def test_the_staged_engine_exchanges_where_that_is_less(name: str) -> None:
    topology = load_topology(name)
    problem = problem_of(topology, "allreduce", symmetric=True)
    options = Options(batch=False, time_limit=2, deterministic=True, workers=1)
    found = staged(problem, options).schedule
    assert found is not None
    gather = staged(problem_of(topology, "allgather", symmetric=True), options)
    assert gather.schedule is not None
    assert found.makespan < 2 * gather.schedule.makespan

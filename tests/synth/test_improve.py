"""Routes improved a few chunks at a time: right, never worse, and often the optimum."""

from dataclasses import replace

import pytest

from taccl.model.problem import Options, Problem
from taccl.model.schedule import Schedule, retime
from taccl.synth.exact.engine import exact
from taccl.synth.exact.solve import improve_routes
from taccl.topology.file import load_topology
from taccl.verify import verify
from tests.generators import random_decisions, random_problem
from tests.sweep import for_each
from tests.synth.problems import classical_schedule, problem_of

COUNTED = Options(time_limit=4.0, deterministic=True, workers=1, batch=False)


def random_start(problem: Problem, seed: int) -> Schedule:
    decisions = random_decisions(problem, seed)
    single = replace(decisions, batch=decisions.batch * 0 + range(len(decisions.batch)))
    return retime(problem.collective, problem.group, problem.chunk_size, single)


@for_each("seed", range(4))
@for_each("collective", ["allgather", "reducescatter", "allreduce", "alltoall"])
def test_what_comes_back_is_correct_and_not_slower(seed: int, collective: str) -> None:
    problem = random_problem(seed, collective)
    start = random_start(problem, seed)
    found = improve_routes(problem, start, COUNTED, 0.4, 0)
    assert not verify(found, problem.logical)
    assert found.makespan <= start.makespan


@pytest.mark.parametrize("collective", ["allgather", "reducescatter"])
def test_a_bad_start_on_a_ring_ends_at_the_optimum(collective: str) -> None:
    # All chunks go the same way round at first: 3 hops; both ways take 2.
    problem = problem_of(load_topology("ring:4"), collective)
    start = classical_schedule(problem, "ring", batch=False)
    assert start is not None
    hop = problem.topology.arrival(0, 1000)
    assert start.makespan == 3 * hop
    assert improve_routes(problem, start, COUNTED, 4.0, 0).makespan == 2 * hop


@pytest.mark.parametrize("seed", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_it_ends_within_a_tenth_of_the_proven_optimum(seed: int) -> None:
    problem = random_problem(seed, "allgather")
    found = improve_routes(problem, random_start(problem, seed), COUNTED, 4.0, 0)
    best = exact(problem, COUNTED).schedule
    assert best is not None
    assert best.makespan <= found.makespan <= 1.1 * best.makespan


def test_a_floor_that_is_reached_ends_the_search_at_once() -> None:
    problem = problem_of(load_topology("ring:4"), "allgather")
    start = random_start(problem, 0)
    assert improve_routes(problem, start, COUNTED, 4.0, start.makespan) is start


@pytest.mark.parametrize("name", ["recursive-doubling", "halving-doubling"])
def test_exchanges_and_batches_are_left_as_they_are(name: str) -> None:
    problem = problem_of(load_topology("hub:4"), "allreduce")
    start = classical_schedule(problem, name, batch=name == "halving-doubling")
    assert start is not None
    assert improve_routes(problem, start, COUNTED, 1.0, 0) is start


def test_the_same_seed_gives_the_same_schedule() -> None:
    problem = random_problem(3, "allgather")
    start = random_start(problem, 3)
    one, two = (improve_routes(problem, start, COUNTED, 2.0, 0) for _ in range(2))
    assert one.link.tolist() == two.link.tolist()
    assert one.start.tolist() == two.start.tolist()

"""Messages of chunks that lie side by side, dispatched with the longest way left first."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.published import network
from taccl.apps import logical_group
from taccl.collectives import build_collective, chunk_size_of
from taccl.collectives.slots import LAYOUTS
from taccl.model.problem import Options, Problem
from taccl.model.schedule import retime
from taccl.synth.flow.engine import scheduled
from taccl.synth.flow.program import flow_instance, optimal_flow
from taccl.synth.flow.routes import flow_by_near_gateways, rows_of_flow, unfolded
from taccl.synth.list_scheduler import decide, load_of, messages_by_start
from taccl.synth.plan import Adjacency, Message, Plan, plan_decisions, rows_of
from taccl.timing.deadline import Deadline
from taccl.topology.graph import whole
from taccl.topology.symmetry import make_group
from taccl.verify import verify
from tests.generators import random_decisions, random_problem
from tests.sweep import for_each

DATA = Path(__file__).parents[3] / "shared" / "data"
"""Published machines; the tests that need them are skipped where they are not."""

WHOLE = 1 << 30


def at_once(options: Options) -> Deadline:
    return replace(options, time_limit=0.0).begin(options.solver_share)


def random_plan(seed: int, collective: str = "alltoall") -> Plan:
    problem = random_problem(seed, collective)
    return plan_decisions(problem, rows_of(random_decisions(problem, seed)))


def gathered(plan: Plan, layout: str, longest: int) -> list[Message]:
    """Return the messages of a plan, of at most so many chunks, in the order of their starts."""
    load = load_of(plan, Adjacency(plan, layout).pieces(longest))
    return messages_by_start(load, lambda _line: None)[0]


@for_each("seed", range(15))
@for_each("layout", LAYOUTS)
@for_each("longest", [WHOLE, 1, 2])
def test_every_chunk_travels_once_and_what_goes_together_may(
    seed: int, layout: str, longest: int
) -> None:
    plan = random_plan(seed)
    problem = plan.problem
    try:
        messages = gathered(plan, layout, longest)
    except ValueError:  # messages of several chunks may wait for each other in a ring
        assert longest > 1
        return
    assert sorted(move for message in messages for move in message) == list(range(len(plan.moves)))
    assert max(map(len, messages)) <= longest
    schedule = retime(problem.collective, problem.group, problem.chunk_size, decide(plan, messages))
    assert not verify(schedule, problem.logical)


@pytest.mark.skipif(not (DATA / "topologies").is_dir(), reason="shared/ is not there")
@pytest.mark.parametrize(
    ("machine", "layout", "most"),
    [("DGX2_2chassis", "by source", 1295.6), ("NDv2_4chassis", "by destination", 7747.6)],
)
def test_a_large_alltoall_of_published_machines_ends_close_to_its_bound(
    machine: str, layout: str, most: float
) -> None:
    """16 MB for each rank: 1282.6 and 7682.6 us are what no algorithm can beat."""
    topology = network(DATA, machine, "occupy")
    collective = build_collective("alltoall", topology.num_ranks, 1)
    size, group = chunk_size_of(collective, 16 * 10**6), logical_group(whole(topology), collective)
    problem = Problem(whole(topology), collective, size, group)
    options = Options(deterministic=True, workers=1, time_limit=60.0)
    clock, instance = at_once(options), flow_instance(problem)
    near = flow_by_near_gateways(instance, optimal_flow(instance, clock), clock)
    free = replace(problem, group=make_group(topology, ()))
    plan = plan_decisions(free, unfolded(problem, rows_of_flow(instance, near, clock)))
    messages = gathered(plan, layout, WHOLE)
    found = retime(collective, free.group, size, decide(plan, messages))
    assert not verify(found, problem.logical)
    assert found.makespan <= most * 1e6


def test_every_way_that_is_tried_gives_a_correct_schedule() -> None:
    plans = [random_plan(seed) for seed in (1, 1)]
    options = Options(deterministic=True, workers=1, time_limit=6.0)
    found = list(scheduled(plans, options, at_once(options)))
    # Two plans, four lengths and two layouts.
    assert len(found) >= 16
    for plan, schedule in found:
        assert not verify(schedule, plan.problem.logical)


def test_the_search_ends_at_the_bound() -> None:
    plan = random_plan(1)
    options = Options(deterministic=True, workers=1, time_limit=6.0, floor=1 << 60)
    assert len(list(scheduled([plan], options, at_once(options)))) == 1

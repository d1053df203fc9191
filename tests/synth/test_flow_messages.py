"""Messages made while they are dispatched: what is ready beside a chunk goes with it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.published import network
from taccl.apps import logical_group
from taccl.collectives import build_collective, chunk_size_of
from taccl.collectives.slots import LAYOUTS
from taccl.model.problem import Options, Problem
from taccl.model.schedule import retime
from taccl.synth.flow.engine import Limits, growing, scheduled
from taccl.synth.flow.program import flow_instance, optimal_flow
from taccl.synth.flow.routes import flow_by_near_gateways, rows_of_flow, unfolded
from taccl.synth.list_scheduler import decide, messages_by_start
from taccl.synth.plan import Adjacency, Message, Plan, plan_decisions, rows_of
from taccl.timing.deadline import Deadline
from taccl.topology.graph import whole
from taccl.topology.symmetry import make_group
from taccl.verify import verify
from tests.generators import pair, random_decisions, random_problem, twin2x2
from tests.sweep import for_each
from tests.synth.problems import problem_of

DATA = Path(__file__).parents[3] / "shared" / "data"
"""Published machines; the tests that need them are skipped where they are not."""

WHOLE = Limits(1 << 30, 1 << 30)
SINGLE = Limits(1, 1)


def at_once(options: Options) -> Deadline:
    return replace(options, time_limit=0.0).begin(options.solver_share)


def random_plan(seed: int, collective: str = "alltoall") -> Plan:
    problem = random_problem(seed, collective)
    return plan_decisions(problem, rows_of(random_decisions(problem, seed)))


def gathered(adjacency: Adjacency, limits: Limits, before: Sequence[int]) -> list[Message]:
    """Return the messages of a plan, of which those with the smallest numbers go first."""
    load = growing(adjacency, limits)
    return messages_by_start(load, lambda _line: None, np.array(before))[0]


def sizes(plan: Plan, limits: Limits) -> list[int]:
    before = [-time for time in plan.tail_time]
    return [len(message) for message in gathered(Adjacency(plan), limits, before)]


def test_chunks_that_are_ready_side_by_side_make_one_message() -> None:
    # pair: 3 chunks each way, all of them there from the start and neighbours at both ends.
    problem = problem_of(pair(), "alltoall", chunks=3)
    rows = [
        (chunk, int(problem.topology.links_between(src, 1 - src)[0]), False)
        for src in range(2)
        for chunk in range(problem.collective.num_chunks)
        if problem.collective.targets(chunk) == (1 - src,)
        and problem.collective.sources(chunk) == (src,)
    ]
    plan = plan_decisions(problem, rows)
    assert sizes(plan, WHOLE) == [3, 3]
    assert sizes(plan, Limits(2, 2)) == [2, 2, 1, 1]
    assert sizes(plan, SINGLE) == [1] * 6


def test_a_link_takes_what_has_arrived_and_does_not_wait_for_the_rest() -> None:
    """Rank 0 relays rank 1's chunks for 2 and 3: its own leave at once, rank 1's together after."""
    problem = problem_of(twin2x2(), "alltoall", chunks=4)
    topology, collective = problem.topology, problem.collective

    def link(src: int, dst: int) -> int:
        return int(topology.links_between(src, dst)[0])

    own, inside, relayed = [], [], []
    for chunk in range(collective.num_chunks):
        ends = (collective.sources(chunk)[0], collective.targets(chunk)[0])
        if ends == (0, 2):
            own.append((chunk, link(0, 2), False))
        elif ends == (1, 2):
            inside.append((chunk, link(1, 0), False))
            relayed.append((chunk, link(0, 2), False))
    plan = plan_decisions(problem, [*own, *inside, *relayed])
    messages = gathered(Adjacency(plan), WHOLE, list(range(len(plan.moves))))
    assert messages == [(0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11)]
    # One by one they arrive every 1010 ps, and the first holds the NIC for 4020.
    alone = plan_decisions(problem, [*inside, *relayed])
    some = gathered(Adjacency(alone), Limits(1 << 30, 1), list(range(len(alone.moves))))
    assert [message for message in some if message[0] >= 4] == [(4,), (5, 6, 7)]


@for_each("seed", range(15))
@for_each("layout", LAYOUTS)
@for_each("limits", [WHOLE, SINGLE, Limits(2, 3)], ids=["whole", "single", "few"])
def test_every_chunk_travels_once_and_what_goes_together_may(
    seed: int, layout: str, limits: Limits
) -> None:
    plan = random_plan(seed)
    problem = plan.problem
    messages = gathered(Adjacency(plan, layout), limits, [-t for t in plan.tail_time])
    assert sorted(move for message in messages for move in message) == list(range(len(plan.moves)))
    assert max(map(len, messages)) <= max(limits.busiest, limits.others)
    schedule = retime(problem.collective, problem.group, problem.chunk_size, decide(plan, messages))
    assert not verify(schedule, problem.logical)


@for_each("seed", range(10))
def test_nothing_waits_while_its_link_is_free(seed: int) -> None:
    """Times of retime are those of the events: the sequence of starts loses nothing."""
    plan = random_plan(seed)
    problem = plan.problem
    messages = gathered(Adjacency(plan), SINGLE, [-t for t in plan.tail_time])
    schedule = retime(problem.collective, problem.group, problem.chunk_size, decide(plan, messages))
    assert (np.diff(schedule.start) >= 0).all()


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
    messages = gathered(Adjacency(plan, layout), WHOLE, [-t for t in plan.tail_time])
    found = retime(collective, free.group, size, decide(plan, messages))
    assert not verify(found, problem.logical)
    assert found.makespan <= most * 1e6


def test_moves_that_wait_in_a_ring_are_an_error() -> None:
    plan = random_plan(3)
    moves = list(plan.moves)
    moves[0] = moves[0]._replace(needs=(len(moves) - 1,))
    moves[-1] = moves[-1]._replace(needs=(0,))
    stuck = Plan(plan.problem, tuple(moves))
    with pytest.raises(ValueError, match="wait for each other in a ring"):
        gathered(Adjacency(stuck), SINGLE, [0] * len(moves))


def test_every_way_that_is_tried_gives_a_correct_schedule() -> None:
    plans = [random_plan(seed) for seed in (1, 1)]
    options = Options(deterministic=True, workers=1, time_limit=6.0)
    found = list(scheduled(plans, options, at_once(options)))
    assert len(found) > 20
    for plan, schedule in found:
        assert not verify(schedule, plan.problem.logical)


def test_the_search_ends_at_the_bound() -> None:
    plan = random_plan(1)
    options = Options(deterministic=True, workers=1, time_limit=6.0, floor=1 << 60)
    assert len(list(scheduled([plan], options, at_once(options)))) == 1

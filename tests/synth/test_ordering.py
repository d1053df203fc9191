"""Stage 2: every rule orders all messages, and waits for what they need."""

import pytest

from taccl.collectives import COLLECTIVES
from taccl.model.routes import build_network
from taccl.model.schedule import retime
from taccl.synth.greedy import greedy_routes, routes_of
from taccl.synth.list_scheduler import PRIORITIES, decide, order
from taccl.synth.plan import Adjacency, Message, Plan, plan_decisions, plan_routes
from taccl.verify import verify
from tests.generators import random_problem, ring4
from tests.sweep import for_each
from tests.synth.problems import problem_of

ONE_WAY = sorted(set(COLLECTIVES) - {"allreduce"})


def greedy_plan(seed: int) -> Plan:
    problem = random_problem(seed, ONE_WAY[seed % 3])
    network = build_network(problem, reverse=problem.collective.reduces)
    return plan_routes(network, routes_of(network, greedy_routes(network)))


def singles(plan: Plan) -> list[Message]:
    return [(number,) for number in range(len(plan.moves))]


@for_each("rule", PRIORITIES)
@for_each("seed", range(15))
def test_every_move_is_ordered_once_after_what_it_needs(seed: int, rule: str) -> None:
    plan = greedy_plan(seed)
    decisions = order(plan, singles(plan), rule)
    assert decisions is not None
    number_of = {(m.chunk, m.link, m.reduce): n for n, m in enumerate(plan.moves)}
    sequence = [number_of[chunk, link, reduce] for chunk, link, _, reduce in decisions.rows()]
    assert sorted(sequence) == list(range(len(plan.moves)))
    place = {number: at for at, number in enumerate(sequence)}
    for number, move in enumerate(plan.moves):
        assert all(place[before] < place[number] for before in move.needs)


@for_each("rule", PRIORITIES)
@for_each("seed", range(9))
def test_an_order_with_batches_is_a_correct_schedule(seed: int, rule: str) -> None:
    plan = greedy_plan(seed)
    decisions = order(plan, Adjacency(plan).pieces(4), rule)
    if decisions is not None:
        problem = plan.problem
        schedule = retime(problem.collective, problem.group, problem.chunk_size, decisions)
        assert verify(schedule, problem.logical) == []


@pytest.mark.parametrize("rule", PRIORITIES)
def test_of_two_messages_for_one_wire_the_one_with_further_to_go_is_first(rule: str) -> None:
    # Chunks 0 -> 1 and 0 -> 2 wait for the wire 0 -> 1; the second has another hop to go.
    ring = ring4()
    first, second = ring.links_between(0, 1)[0], ring.links_between(1, 2)[0]
    rows = [(1, first, False), (2, first, False), (2, second, False)]
    plan = plan_decisions(problem_of(ring, "alltoall"), rows)
    decisions = order(plan, singles(plan), rule)
    assert decisions is not None
    assert decisions.chunk[0] == 2


def test_messages_that_wait_for_each_other_have_no_order() -> None:
    # Each message holds the first hop of one chunk and the second of the other.
    ring = ring4()
    there, on = ring.links_between(0, 1)[0], ring.links_between(1, 2)[0]
    rows = [(0, there, False), (0, on, False), (3, there, False), (3, on, False)]
    plan = plan_decisions(problem_of(ring, "allgather"), rows)
    assert order(plan, [(0, 3), (1, 2)], "earliest") is None


def test_a_message_that_needs_its_own_arrival_has_no_order() -> None:
    ring = ring4()
    there, on = ring.links_between(0, 1)[0], ring.links_between(1, 2)[0]
    plan = plan_decisions(problem_of(ring, "allgather"), [(0, there, False), (0, on, False)])
    assert order(plan, [(0, 1)], "earliest") is None


def test_decisions_number_the_messages_in_sequence() -> None:
    plan = plan_decisions(problem_of(ring4(), "allgather"), [(0, 0, False), (1, 2, False)])
    rows = list(decide(plan, [(1,), (0,)]).rows())
    assert rows == [(1, 2, 0, False), (0, 0, 1, False)]

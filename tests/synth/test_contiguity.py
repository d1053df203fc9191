"""Stage 3: the exact order and batches of fixed routes."""

from dataclasses import replace
from fractions import Fraction

from taccl.model.problem import Status
from taccl.model.routes import build_network
from taccl.model.schedule import Schedule, retime
from taccl.synth.exact.solve import improve_order
from taccl.synth.greedy import greedy_routes, routes_of
from taccl.synth.list_scheduler import decide
from taccl.synth.plan import Plan, plan_decisions, plan_routes
from taccl.verify import verify
from tests.generators import build, pair, random_problem
from tests.sweep import for_each
from tests.synth.problems import QUICK, problem_of

SINGLY = replace(QUICK, batch=False)


def in_plan_order(plan: Plan) -> Schedule:
    decisions = decide(plan, [(number,) for number in range(len(plan.moves))])
    problem = plan.problem
    return retime(problem.collective, problem.group, problem.chunk_size, decisions)


@for_each("seed", range(10), quick=7)
@for_each("batch", [False, True])
def test_the_result_is_correct_and_never_worse(seed: int, batch: bool) -> None:
    problem = random_problem(seed, ("allgather", "reducescatter", "alltoall")[seed % 3])
    network = build_network(problem, reverse=problem.collective.reduces)
    plan = plan_routes(network, routes_of(network, greedy_routes(network)))
    before = in_plan_order(plan)
    after, _ = improve_order(before, plan, replace(QUICK, batch=batch), 0.3)
    assert after.makespan <= before.makespan
    assert verify(after, problem.logical) == []


def relay() -> Plan:
    """Return chunks 0 -> 1 and 0 -> 2 over the wire 0 -> 1, in the wrong order."""
    topology = build("line", 3, [
        (a, b, 10, None, Fraction(1)) for a, b in ((0, 1), (1, 2), (2, 1), (1, 0))
    ])  # fmt: skip
    first, second = topology.links_between(0, 1)[0], topology.links_between(1, 2)[0]
    rows = [(1, first, False), (2, first, False), (2, second, False)]
    return plan_decisions(problem_of(topology, "alltoall"), rows)


def test_what_has_further_to_go_goes_first() -> None:
    # In the wrong order 3 x 1010 ps; in the right one 2 x 1010.
    plan = relay()
    before = in_plan_order(plan)
    assert before.makespan == 3030
    after, status = improve_order(before, plan, SINGLY, 2.0)
    assert (after.makespan, status) == (2020, Status.OPTIMAL)


def test_chunks_travel_together_where_that_is_faster() -> None:
    # Four chunks of a byte at 2 ps: singly 4 x (10 + 2), together 10 + 8.
    topology = pair()
    (link,) = topology.links_between(0, 1)
    problem = problem_of(topology, "allgather", chunks=4, chunk_size=1)
    plan = plan_decisions(problem, [(chunk, link, False) for chunk in range(4)])
    before = in_plan_order(plan)
    assert before.makespan == 48
    assert improve_order(before, plan, QUICK, 2.0)[0].makespan == 18
    assert improve_order(before, plan, SINGLY, 2.0)[0].makespan == 48


def test_chunks_travel_singly_where_the_next_hop_waits() -> None:
    # Two chunks over two hops of 10 + 1000 ps: together 2 x 2010, singly 3 x 1010.
    topology = build("line", 3, [
        (a, b, 10, None, Fraction(1)) for a, b in ((0, 1), (1, 2), (2, 1), (1, 0))
    ])  # fmt: skip
    links = topology.links_between(0, 1)[0], topology.links_between(1, 2)[0]
    problem = problem_of(topology, "allgather", chunks=2)
    plan = plan_decisions(problem, [(chunk, link, False) for link in links for chunk in (0, 1)])
    together = retime(
        problem.collective, problem.group, problem.chunk_size, decide(plan, [(0, 1), (2, 3)])
    )
    assert together.makespan == 4020
    assert improve_order(together, plan, QUICK, 2.0)[0].makespan == 3030


def test_a_schedule_at_the_floor_is_kept_without_a_search() -> None:
    plan = relay()
    before = in_plan_order(plan)
    assert improve_order(before, plan, QUICK, 2.0, floor=3030) == (before, Status.OPTIMAL)


def test_no_time_leaves_the_schedule_as_it_is() -> None:
    plan = relay()
    before = in_plan_order(plan)
    assert improve_order(before, plan, QUICK, 0.0) == (before, Status.FEASIBLE)

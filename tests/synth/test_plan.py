"""Moves and what must precede them."""

from dataclasses import replace
from fractions import Fraction

from taccl.model.routes import build_network
from taccl.synth.greedy import greedy_routes
from taccl.synth.plan import plan_decisions, plan_routes, rows_of, rows_of_routes
from taccl.synth.staged import route
from taccl.topology.graph import Topology, whole
from tests.generators import build, ring4
from tests.synth.problems import QUICK, problem_of


def link(topology: Topology, src: int, dst: int) -> int:
    return topology.links_between(src, dst)[0]


def test_a_move_needs_the_arrival_at_its_source() -> None:
    ring = ring4()
    rows = [(0, link(ring, 0, 1), False), (0, link(ring, 1, 2), False), (1, 2, False)]
    plan = plan_decisions(problem_of(ring, "allgather"), rows)
    assert [move.needs for move in plan.moves] == [(), (0,), ()]
    assert [move.reads_first for move in plan.moves] == [(), (), ()]


def test_a_sum_needs_every_arrival_before_it() -> None:
    # Chunk 1: ranks 0 and 3 send to 2... and 2 sends their sum on to 1.
    ring = ring4()
    rows = [(1, link(ring, 3, 2), True), (1, link(ring, 0, 1), True), (1, link(ring, 2, 1), True)]
    plan = plan_decisions(problem_of(ring, "reducescatter"), rows)
    assert [move.needs for move in plan.moves] == [(), (), (0,)]


def test_what_overwrites_a_value_lets_it_be_read_first() -> None:
    # AllReduce on two ranks: 1 adds its value at 0, then 0 replaces 1's value by the sum.
    topology = build("pair", 2, [(a, 1 - a, 0, None, Fraction(1)) for a in (0, 1)])
    rows = [(0, link(topology, 1, 0), True), (0, link(topology, 0, 1), False)]
    plan = plan_decisions(problem_of(topology, "allreduce"), rows)
    assert plan.moves[1].needs == (0,)
    assert plan.moves[1].reads_first == (0,)


def test_foreign_chunks_follow_own_ones_out_of_a_server() -> None:
    hops = [(a, b, 0, None, Fraction(1)) for a, b in ((0, 1), (1, 2), (2, 1), (1, 0))]
    topology = build("line", 3, hops, server_of=(0, 1, 2))
    out = link(topology, 1, 2)
    rows = [(0, link(topology, 0, 1), False), (0, out, False), (1, out, False)]
    logical = replace(whole(topology), own_chunks_first=True)
    plan = plan_decisions(problem_of(logical, "allgather"), rows)
    # The first row leaves with an own chunk: it follows none.
    assert [move.follows for move in plan.moves] == [(), (2,), ()]
    free = plan_decisions(problem_of(topology, "allgather"), rows)
    assert [move.follows for move in free.moves] == [(), (), ()]


def test_the_tail_of_a_move_ends_with_the_last_arrival_that_needs_it() -> None:
    ring = ring4()
    rows = [(0, link(ring, 0, 1), False), (0, link(ring, 1, 2), False), (1, 2, False)]
    plan = plan_decisions(problem_of(ring, "allgather"), rows)
    assert plan.tail_time == (2020, 1010, 1010)


def test_a_message_of_two_chunks_pays_alpha_once() -> None:
    plan = plan_decisions(problem_of(ring4(), "allgather"), [(0, 0, False)])
    assert plan.costs(0, 1) == (1010, ((0, 1010),))
    assert plan.costs(0, 2) == (2010, ((0, 2010),))


def test_a_reduction_plays_its_trees_backwards() -> None:
    network = build_network(problem_of(ring4(), "reducescatter"), reverse=True)
    routes = route(network, greedy_routes(network), QUICK, 1.0)[0]
    plan = plan_routes(network, routes)
    assert all(move.reduce for move in plan.moves)
    assert all(before < number for number, m in enumerate(plan.moves) for before in m.needs)
    last = {(m.chunk, network.problem.topology.link(m.link).dst) for m in plan.moves[-4:]}
    assert last <= {(chunk, chunk) for chunk in range(4)} | {
        (c, (c + d) % 4) for c in range(4) for d in (1, 3)
    }


def test_rows_come_back_from_decisions_without_batches() -> None:
    from taccl.model.schedule import Decisions

    rows = [(0, 1, False), (2, 3, True)]
    assert rows_of(Decisions.of([(c, k, 7, r) for c, k, r in rows])) == rows


def test_rows_of_a_gather_list_parents_first() -> None:
    network = build_network(problem_of(ring4(), "allgather"))
    routes = route(network, greedy_routes(network), QUICK, 1.0)[0]
    rows = rows_of_routes(network, routes)
    seen = {(chunk, chunk) for chunk in range(4)}
    for chunk, number, reduce in rows:
        record = network.problem.topology.link(number)
        assert (chunk, record.src) in seen
        assert not reduce
        seen.add((chunk, record.dst))

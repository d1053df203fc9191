"""What programs are expected to take: hand-computed, of schedules without a program."""

from dataclasses import replace
from fractions import Fraction

import pytest

from taccl.collectives import build_collective
from taccl.model.problem import problem_of
from taccl.model.schedule import Decisions, Schedule
from taccl.replay.expected import expected_time, most_instances
from taccl.topology.graph import ProgramCosts
from tests.replay.program_builder import hub, network
from tests.replay.test_shared_edges import MODEL, costs

CHAIN = network(3, [(a, b, 700, None, 4) for a, b in ((0, 1), (1, 0), (1, 2), (2, 1))])


def passed_on(chunks: int, size: int, charged: ProgramCosts) -> Schedule:
    """Return a broadcast from rank 0 by way of 1 to 2, in one message a hop."""
    topology = replace(CHAIN, measured=charged)
    problem = problem_of(topology, build_collective("broadcast", 3, chunks, root=0), size)
    hops = [topology.links.between(a, a + 1)[0] for a in range(2)]
    rows = [(chunk, link, hop, False) for hop, link in enumerate(hops) for chunk in range(chunks)]
    return problem.timed(Decisions.of(rows))


CASES = (
    # what is claimed; chunks, bytes; costs; threadblocks, instances; picoseconds
    ("launch, and alpha and bytes of each hop", 1, 100, costs(launch=1000, alpha=50), 2, None,
     1000 + 2 * (50 + 400)),
    ("bytes on the wire", 1, 100, costs(wire=2), 2, None, 2 * 800),
    ("one threadblock slows a link down", 1, 100, costs(block_beta=10), 2, None, 2 * 1000),
    ("several together do not", 1, 100, costs(block_beta=10), 8, None, 2 * 400),
    ("unless there is one instance", 1, 100, costs(block_beta=10), 8, 1, 2 * 1000),
    ("iterations follow as the busiest link lets them", 1, 5000, costs(alpha=50), 2, 1,
     2 * (50 + 4000) + 4 * 4000),
    ("more instances, fewer iterations", 1, 4000, costs(alpha=50), 8, 4, 2 * (50 + 16000)),
    ("a slot holds one of two chunks", 2, 1200, costs(alpha=50), 2, 1, 2 * (50 + 2400) + 2400),
)  # fmt: skip


def test_a_schedule_is_expected_to_take_what_its_messages_take() -> None:
    for claim, chunks, size, charged, threadblocks, instances, wanted in CASES:
        schedule = passed_on(chunks, size, charged)
        found = expected_time(schedule, MODEL, ("Simple",), threadblocks, instances)
        assert found == wanted, claim


def test_without_measured_costs_slices_follow_one_another_as_well() -> None:
    # A hop takes 700 ps, and 4 for each byte; a message holds 1000 bytes.
    plain = replace(MODEL, measured=False)
    for size, wanted in ((1000, 2 * 4700), (5000, 2 * 4700 + 4 * 4700)):
        assert expected_time(passed_on(1, size, costs()), plain, ("Simple",), 2) == wanted


def test_an_edge_that_serves_several_peers_is_expected_to_carry_less() -> None:
    topology = replace(hub(3, beta=4), measured=costs(several=Fraction(1, 2)))
    problem = problem_of(topology, build_collective("broadcast", 3, 1, root=0), 100)
    for hops, wanted in ((((0, 1), (0, 2)), 2 * 800), (((0, 1), (1, 2)), 2 * 400)):
        rows = [(0, topology.links.between(*hop)[0], n, False) for n, hop in enumerate(hops)]
        schedule = problem.timed(Decisions.of(rows))
        assert expected_time(schedule, MODEL, ("Simple",), 8, 1) == wanted


def test_nobody_waits_for_flags_where_steps_are_fused() -> None:
    schedule = passed_on(1, 100, costs(alpha=50, flag=30))
    for fused, wanted in ((False, 2 * (400 + 50 + 30)), (True, 2 * (400 + 50))):
        assert expected_time(schedule, MODEL, ("Simple",), 2, fused=fused) == wanted


def test_the_protocol_that_is_expected_to_take_least_counts() -> None:
    charged = costs(launch=1000)
    rows = charged.protocols
    quick = replace(charged, protocols={**rows, "LL": replace(rows["LL"], launch=10)})
    schedule = passed_on(1, 100, quick)
    assert expected_time(schedule, MODEL, ("Simple", "LL"), 2) == 10 + 2 * 400
    assert expected_time(schedule, MODEL, ("Simple",), 2) == 1000 + 2 * 400


@pytest.mark.parametrize(("threadblocks", "most"), [(1, 1), (2, 1), (4, 2), (7, 2), (999, 32)])
def test_instances_are_as_many_as_have_threadblocks_for_the_most_peers(
    threadblocks: int, most: int
) -> None:
    assert most_instances(passed_on(1, 100, costs()), threadblocks) == most


def test_a_connection_is_an_edge_of_its_own_and_links_stay_what_they_are() -> None:
    made = CHAIN.with_connections(costs(block_beta=7).protocols["Simple"].block_beta)
    assert len(made.edges) == len(CHAIN.edges) + len(CHAIN.links)
    for link in range(len(CHAIN.links)):
        *before, own = made.links.edges_of(link)
        assert tuple(before) == CHAIN.links.edges_of(link)
        assert own == len(CHAIN.edges) + link
        assert made.edges[own].beta == 7
        assert made.links.max_beta(link) == 7

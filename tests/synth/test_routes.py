"""What routing may choose from: roots, targets, arcs and hops."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from taccl.errors import NoScheduleError
from taccl.model.routes import Arc, build_network, counterpart, may_leave
from taccl.topology.graph import whole
from tests.generators import build, ring4, star5, twin2x2
from tests.synth.problems import problem_of


def pairs(arcs: tuple[Arc, ...]) -> set[tuple[int, int]]:
    return {(arc.tail, arc.head) for arc in arcs}


def test_a_chunk_of_an_allgather_goes_from_its_owner_to_all_others() -> None:
    demand = build_network(problem_of(ring4(), "allgather")).demands[1]
    assert (demand.chunk, demand.roots, demand.targets) == (1, (1,), (0, 2, 3))
    assert demand.hops == {1: 0, 0: 1, 2: 1, 3: 2}


def test_no_arc_leads_back_to_the_root() -> None:
    demand = build_network(problem_of(ring4(), "allgather")).demands[0]
    assert pairs(demand.arcs) == {(0, 1), (0, 3), (1, 2), (2, 1), (2, 3), (3, 2)}


def test_a_summed_chunk_flows_along_links_turned_round() -> None:
    topology = build("one-way", 3, [(r, (r + 1) % 3, 0, None, Fraction(1)) for r in range(3)])
    demand = build_network(problem_of(topology, "reducescatter"), reverse=True).demands[0]
    assert pairs(demand.arcs) == {(0, 2), (2, 1)}
    assert {topology.link(arc.link).src for arc in demand.arcs} == {2, 1}
    assert demand.hops == {0: 0, 2: 1, 1: 2}


@pytest.mark.parametrize(
    ("extra", "arcs"),
    [
        (0, {(0, 1), (0, 3), (1, 2), (3, 2)}),
        # One more hop than the shortest reaches neither 1 nor 3 round the ring (3 hops).
        (1, {(0, 1), (0, 3), (1, 2), (3, 2)}),
        (2, {(0, 1), (0, 3), (1, 2), (3, 2), (2, 1), (2, 3)}),
        (None, {(0, 1), (0, 3), (1, 2), (3, 2), (2, 1), (2, 3)}),
    ],
)
def test_extra_hops_decide_which_arcs_are_left(
    extra: int | None, arcs: set[tuple[int, int]]
) -> None:
    logical = replace(whole(ring4()), max_extra_hops=extra)
    assert pairs(build_network(problem_of(logical, "allgather")).demands[0].arcs) == arcs


def test_a_closed_link_is_no_choice() -> None:
    topology = ring4()
    (shut,) = topology.links_between(0, 1)
    network = build_network(problem_of(topology, "allgather"), closed=[shut])
    assert shut not in network.links
    assert network.demands[0].hops[1] == 3


def test_a_target_without_a_path_is_named_with_its_chunk() -> None:
    topology = ring4()
    closed = [topology.links_between(rank, 2)[0] for rank in (1, 3)]
    with pytest.raises(
        NoScheduleError, match="chunk 0 can't be served: no allowed path from rank 0 to rank 2"
    ):
        build_network(problem_of(topology, "allgather"), closed=closed)


def test_a_source_of_a_sum_without_a_path_is_named_with_its_chunk() -> None:
    topology = ring4()
    closed = [topology.links_between(2, rank)[0] for rank in (1, 3)]
    with pytest.raises(
        NoScheduleError, match="chunk 0 can't be served: no allowed path from rank 2 to rank 0"
    ):
        build_network(problem_of(topology, "reducescatter"), reverse=True, closed=closed)


def test_a_link_the_sketch_denies_is_no_choice() -> None:
    logical = whole(ring4())
    allowed = logical.allowed.copy()
    (shut,) = logical.topology.links_between(1, 2)
    allowed[shut] = False
    network = build_network(problem_of(replace(logical, allowed=allowed), "allgather"))
    assert shut not in network.links


@pytest.mark.parametrize(("channels", "lanes"), [(None, 3), (2, 2), (1, 1)])
def test_a_pair_has_no_more_links_than_channels(channels: int | None, lanes: int) -> None:
    hops = [(a, 1 - a, 0, None, Fraction(1)) for a in (0, 1) for _ in range(3)]
    logical = replace(whole(build("triple", 2, hops)), channels=channels)
    network = build_network(problem_of(logical, "allgather"))
    assert [len(demand.arcs) for demand in network.demands] == [lanes, lanes]


def test_chunks_leave_every_server_by_the_senders_of_their_owners_number() -> None:
    logical = replace(whole(twin2x2()), leave_by={0: frozenset([1]), 2: frozenset([3])})
    problem = problem_of(logical, "allgather")
    link = {
        (a, b): logical.topology.links_between(a, b)[0] for a, b in ((0, 2), (1, 2), (2, 0), (3, 0))
    }
    assert [may_leave(problem, 0, link[pair]) for pair in link] == [False, True, False, True]
    # Nothing is said about GPU 1 of a server.
    assert all(may_leave(problem, 1, number) for number in link.values())


def test_the_counterpart_has_the_same_number_in_its_server() -> None:
    topology = build("uneven", 3, [(0, 1, 0, None, Fraction(1))], server_of=(0, 0, 1))
    assert counterpart(topology, 0, 1) == 2
    assert counterpart(topology, 1, 1) is None
    assert counterpart(topology, 2, 0) == 0


@pytest.mark.parametrize(("rule", "overhead"), [("occupy", 10), ("delay", 0)])
def test_a_message_holds_every_port_for_its_own_time(rule: str, overhead: int) -> None:
    # Up 1 and down 2 ps a byte, 1000 bytes a chunk; a crossing has alpha 10 ps.
    problem = problem_of(star5(rule), "allgather")
    (link,) = problem.topology.links_between(0, 1)
    up, down = problem.topology.links.edges_of(link)
    assert problem.cost(link, 1)[1] == ((up, overhead + 1000), (down, overhead + 2000))
    assert problem.cost(link, 2)[1] == ((up, overhead + 2000), (down, overhead + 4000))


def test_an_alltoall_is_point_to_point_and_an_allgather_is_not() -> None:
    assert build_network(problem_of(ring4(), "alltoall")).point_to_point
    assert not build_network(problem_of(ring4(), "allgather")).point_to_point


def test_orbits_leave_one_demand_for_each() -> None:
    topology = replace(ring4(), rotations=((1, 2, 3, 0),))
    network = build_network(problem_of(topology, "allgather", symmetric=True))
    assert [demand.chunk for demand in network.demands] == [0]
    assert len({orbit for uses in network.uses.values() for orbit, _ in uses}) == 2
    assert np.unique(network.problem.group.rank_orbit).tolist() == [0]

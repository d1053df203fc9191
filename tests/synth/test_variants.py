"""Named restrictions of the arcs, and what a sketch's wishes do to them."""

from dataclasses import replace

import pytest

from taccl.errors import NoScheduleError
from taccl.model.routes import Network
from taccl.synth.staged import ROUTE_RESTRICTIONS, networks
from taccl.topology.graph import whole
from tests.generators import ring4, star5, twin2x2
from tests.synth.problems import problem_of


def by_name(collective: str = "allgather") -> dict[str, Network]:
    return dict(networks(problem_of(twin2x2(), collective)))


def crossings(network: Network, demand: int) -> set[tuple[int, int]]:
    return {(a.tail, a.head) for a in network.demands[demand].arcs if a.tail // 2 != a.head // 2}


def test_any_way_takes_every_arc() -> None:
    assert crossings(by_name()["any way"], 0) == {(0, 2), (0, 3), (1, 2), (1, 3), (2, 1), (3, 1)}


def test_direct_map_crosses_between_gpus_of_one_number() -> None:
    assert crossings(by_name()["direct map"], 0) == {(0, 2), (1, 3), (3, 1)}


def test_cross_first_leaves_from_the_root_only() -> None:
    network = by_name()["cross first"]
    assert crossings(network, 0) == {(0, 2)}
    assert crossings(network, 3) == {(3, 1)}


def test_cross_first_moves_no_chunk_in_the_server_that_it_leaves() -> None:
    network = dict(networks(problem_of(twin2x2(), "alltoall")))["cross first"]
    # Chunk 0 -> 3.
    arcs = {(arc.tail, arc.head) for arc in network.demands[3].arcs}
    assert arcs == {(0, 2), (2, 3), (3, 2)}


def test_one_gateway_sends_by_the_first_gpu_of_a_nic_and_receives_by_the_last() -> None:
    network = by_name()["one gateway"]
    assert crossings(network, 0) == {(0, 3), (2, 1)}


def test_restrictions_that_restrict_nothing_are_left_out() -> None:
    assert [name for name, _ in networks(problem_of(ring4(), "allgather"))] == ["any way"]


def test_every_restriction_reaches_every_target() -> None:
    assert set(by_name()) == set(ROUTE_RESTRICTIONS)
    for network in by_name().values():
        for demand in network.demands:
            reached = {demand.root}
            for _ in range(4):
                reached |= {arc.head for arc in demand.arcs if arc.tail in reached}
            assert reached.issuperset(demand.targets)


def test_what_a_sketch_prefers_comes_first() -> None:
    logical = replace(whole(star5()), name="tiny", switch_policy={"hub": "uc-min"})
    found = list(networks(problem_of(logical, "allgather")))
    assert [name for name, _ in found] == ["as sketched", "any way"]
    assert len(found[0][1].links) == 5


@pytest.mark.parametrize(
    ("collective", "reverse"),
    [("allgather", False), ("alltoall", False), ("reducescatter", True), ("allreduce", False),
     ("allreduce", True)],
)  # fmt: skip
def test_restrictions_share_what_a_limit_leaves(collective: str, reverse: bool) -> None:
    logical = replace(whole(star5()), name="tiny", connections_per_rank=1)
    for _, network in networks(problem_of(logical, collective), reverse=reverse):
        assert len(network.links) == 5


def test_the_phases_of_an_allreduce_share_their_connections() -> None:
    logical = replace(whole(star5()), name="tiny", connections_per_rank=1)
    problem = problem_of(logical, "allreduce")
    phases = [dict(networks(problem, reverse=way))["any way"].links for way in (True, False)]
    assert phases[0] == phases[1]


def test_a_limit_that_no_routing_keeps_is_an_error() -> None:
    topology = ring4()
    logical = whole(topology)
    allowed = logical.allowed.copy()
    allowed[[topology.links_between(a, b)[0] for a, b in ((0, 3), (3, 0))]] = False
    line = replace(logical, allowed=allowed, name="tiny", connections_per_rank=1)
    with pytest.raises(NoScheduleError, match="no 1 connections for each GPU were found"):
        list(networks(problem_of(line, "allgather")))

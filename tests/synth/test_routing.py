"""Stage 1: optimal relaxations of tiny cases, worked out by hand."""

from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest

from taccl.model.routes import Arc, Demand, Network, Routes, build_network, connections
from taccl.synth.greedy import from_root, greedy_routes
from taccl.synth.staged import policy_of, reached, route
from taccl.topology.graph import LogicalTopology, Topology, whole
from tests.generators import build, pair, ring4, star5, twin2x2
from tests.synth.problems import QUICK, problem_of


def best_routes(network: Network) -> Routes:
    return route(network, greedy_routes(network), QUICK, 2.0)[0]


def load(network: Network, routes: Routes) -> int:
    """Return the picoseconds that the busiest resource is held."""
    held: Counter[int] = Counter()
    for arcs in routes:
        for arc in arcs:
            held.update(dict(network.uses[arc.link]))
    return max(held.values())


@pytest.mark.parametrize(
    ("topology", "collective", "busiest"),
    [
        (pair(), "allgather", 10 + 2000),
        # Three chunks over two wires into every rank.
        (ring4(), "allgather", 2 * 1010),
        # 16 hops of 12 chunks over eight wires.
        (ring4(), "alltoall", 2 * 1010),
        # Four chunks down to every rank.
        (star5(), "allgather", 4 * 2010),
        # Two chunks leave every server by one NIC.
        (twin2x2(), "allgather", 2 * 4020),
        (twin2x2(), "alltoall", 4 * 4020),
    ],
)
def test_the_busiest_resource_is_as_light_as_it_can_be(
    topology: Topology, collective: str, busiest: int
) -> None:
    network = build_network(problem_of(topology, collective))
    assert load(network, best_routes(network)) == busiest


def test_a_reduction_is_routed_on_links_turned_round() -> None:
    network = build_network(problem_of(ring4(), "reducescatter"), reverse=True)
    assert load(network, best_routes(network)) == 2 * 1010


def test_routes_reach_every_target_from_the_root() -> None:
    network = build_network(problem_of(twin2x2(), "allgather", chunks=2))
    for demand, arcs in zip(network.demands, best_routes(network), strict=True):
        reached = {demand.root}
        for arc in arcs:
            assert arc.tail in reached
            assert arc.head not in reached
            reached.add(arc.head)
        assert reached.issuperset(demand.targets)


def test_no_more_than_four_routings_come_out() -> None:
    network = build_network(problem_of(twin2x2(), "allgather", chunks=2))
    found = route(network, greedy_routes(network), QUICK, 2.0)
    assert 1 <= len(found) <= 4
    assert len(set(found)) == len(found)


def test_nothing_known_gives_no_routing() -> None:
    assert route(build_network(problem_of(pair(), "allgather")), [], QUICK, 1.0) == []


def under(topology: Topology, **fields: object) -> LogicalTopology:
    return replace(whole(topology), name="tiny", **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("limit", [1, 2])
@pytest.mark.parametrize("symmetric", [False, True])
def test_peers_are_limited_in_both_directions(limit: int, symmetric: bool) -> None:
    hub = replace(star5(), rotations=((1, 2, 3, 4, 0),))
    problem = problem_of(under(hub, connections_per_rank=limit), "allgather", symmetric=symmetric)
    network = build_network(problem)
    image = [problem.group.link_image(g, list(network.links)) for g in range(5 * symmetric)]
    used = {arc.link for arcs in best_routes(network) for arc in arcs}
    turned = {row[network.links.index(link)] for row in image for link in used} | used
    for rank in range(5):
        assert len({hub.link(k).dst for k in turned if hub.link(k).src == rank}) <= limit
        assert len({hub.link(k).src for k in turned if hub.link(k).dst == rank}) <= limit


def test_parallel_links_are_one_connection() -> None:
    hops = [(a, 1 - a, 0, None, Fraction(1)) for a in (0, 1) for _ in range(3)]
    logical = under(build("triple", 2, hops), connections_per_rank=1)
    network = build_network(problem_of(logical, "allgather", chunks=3))
    assert len(set(connections(network).values())) == 2
    # One peer, but all three links to it.
    assert {arc.link for arcs in best_routes(network) for arc in arcs} == set(range(6))


def test_the_policy_of_a_link_is_that_of_its_switch_or_of_all_inside() -> None:
    topology = twin2x2()
    logical = under(topology, switch_policy={"fabric": "uc-min", "*": "uc-max"})
    network = build_network(problem_of(logical, "allgather"))
    (inside,), (across,) = topology.links_between(0, 1), topology.links_between(0, 2)
    assert policy_of(network, inside) == "uc-max"
    assert policy_of(network, across) == "uc-min"


def test_a_policy_may_leave_the_server_out_of_a_switch_name() -> None:
    topology = twin2x2()
    logical = under(topology, switch_policy={"nic.tx": "uc-min"})
    network = build_network(problem_of(logical, "allgather"))
    (inside,), (across,) = topology.links_between(0, 1), topology.links_between(0, 2)
    assert policy_of(network, inside) == "free"
    assert policy_of(network, across) == "uc-min"


def test_a_tree_is_read_from_its_root_without_loops() -> None:
    arcs = {1: Arc(0, 1, 10), 2: Arc(1, 2, 11), 3: Arc(4, 3, 12), 4: Arc(3, 4, 13)}
    demand = Demand(0, (0,), (2,), tuple(arcs.values()), {})
    assert from_root(demand, arcs) == (arcs[1], arcs[2])


def test_a_path_that_passes_a_ring_is_read_without_it() -> None:
    # What enters rank 1 last comes from a ring by way of rank 2: not the way from the root.
    arcs = (Arc(0, 1, 0), Arc(1, 2, 1), Arc(2, 1, 2), Arc(1, 3, 3))
    taken = reached((0,), arcs)
    assert taken == {1: arcs[0], 2: arcs[1], 3: arcs[3]}
    demand = Demand(0, (0,), (3,), arcs, {})
    assert from_root(demand, taken) == (arcs[0], arcs[3])

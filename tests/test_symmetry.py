"""Which rank permutations a topology has, and what they do to edges, links and chunks."""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from taccl.collectives import build_collective
from taccl.errors import InputError
from taccl.topology.graph import Multicast, Permutation, Switch, Topology
from taccl.topology.symmetry import (
    Group,
    close_group,
    edge_image,
    free_group,
    make_group,
    vertex_image,
)
from tests.generators import Hop, both_ways, build, pair, ring4, star5, twin2x2

ONE = Fraction(1)
TURN = (1, 2, 3, 0)
FLIP = (0, 3, 2, 1)
"""The turn of ring4 by one, and its reflection that keeps ranks 0 and 2."""


def moved_edges(topology: Topology, permutation: Sequence[int]) -> NDArray[np.int32]:
    """Where every edge goes under a permutation of the ranks."""
    return edge_image(topology, vertex_image(topology, permutation))


def spines(count: int = 2) -> Topology:
    """Two ranks, each with a wire to and from that many equal switches."""
    hops = [
        hop for rank in range(2) for i in range(count) for hop in both_ways(rank, 2 + i, 1, ONE)
    ]
    return build("spines", 2, hops, switches=[Switch(f"spine{i}") for i in range(count)])


def twisted() -> Topology:
    """Ranks 0 and 1 with switches a, b next to 0 and c, d next to 1, in one cycle a c b d.

    Swapping the ranks twice is nothing to them, but the only extensions to the switches turn
    the cycle by one: done twice, it swaps a with b.
    """
    a, b, c, d = range(2, 6)
    hops: list[Hop] = [(x, y, 1, None, ONE) for x, y in ((a, c), (c, b), (b, d), (d, a))]
    for rank, near in ((0, (a, b)), (1, (c, d))):
        hops += [hop for switch in near for hop in both_ways(rank, switch, 1, ONE)]
    return build("twisted", 2, hops, switches=[Switch(name) for name in "abcd"])


def shared_nic() -> Topology:
    """twin2x2 as it is: ranks 0, 1 share one NIC and ranks 2, 3 the other."""
    return twin2x2()


def composed(p: Permutation, q: Permutation) -> Permutation:
    """Return p, then q."""
    return tuple(q[r] for r in p)


def test_one_turn_generates_all_turns() -> None:
    assert set(close_group([TURN], 4)) == {(0, 1, 2, 3), TURN, (2, 3, 0, 1), (3, 0, 1, 2)}


def test_the_identity_comes_first_and_generators_may_repeat_it() -> None:
    assert close_group([(0, 1), (1, 0), (1, 0)], 2) == ((0, 1), (1, 0))


def test_a_turn_and_a_flip_generate_the_dihedral_group() -> None:
    assert len(close_group([TURN, FLIP], 4)) == 8


def test_too_large_a_group_is_refused() -> None:
    # all permutations of 8 ranks are 40320
    turn, swap = (1, 2, 3, 4, 5, 6, 7, 0), (1, 0, 2, 3, 4, 5, 6, 7)
    with pytest.raises(InputError, match="generate more than 20000 permutations"):
        close_group([turn, swap], 8)


def test_a_turn_of_a_ring_turns_its_edges() -> None:
    # edge 2r is r -> r+1, edge 2r+1 is r+1 -> r
    assert moved_edges(ring4(), TURN).tolist() == [2, 3, 4, 5, 6, 7, 0, 1]


def test_a_flip_of_a_ring_exchanges_the_directions() -> None:
    # 0 -> 1 becomes 0 -> 3, which is edge 7
    assert moved_edges(ring4(), FLIP).tolist() == [7, 6, 5, 4, 3, 2, 1, 0]


def test_any_permutation_of_a_hub_is_a_symmetry() -> None:
    # rank r goes up on edge 2r and down on 2r+1
    assert moved_edges(star5(), (1, 0, 4, 2, 3)).tolist() == [2, 3, 0, 1, 8, 9, 4, 5, 6, 7]


def test_an_edge_that_breaks_a_symmetry_is_named() -> None:
    with pytest.raises(InputError, match=r"ring4 does not have this symmetry: edge 1 -> 2 has no"):
        moved_edges(ring4(), (1, 0, 2, 3))


@pytest.mark.parametrize(
    "edge",
    [(0, 1, 11, None, ONE), (0, 1, 10, None, ONE * 2), (0, 1, 10, 10, ONE), (0, 1, 10, None, None)],
    ids=["alpha", "beta", "overhead", "bandwidth"],
)
def test_edges_that_cost_differently_are_no_images(edge: Hop) -> None:
    topology = build("uneven", 2, [edge, (1, 0, 10, None, ONE)])
    with pytest.raises(InputError, match="edge 0 -> 1 has no image"):
        moved_edges(topology, (1, 0))


def test_an_overhead_of_0_is_not_the_same_as_none() -> None:
    # per rank one switch with overhead 0 and one by the rule: the swap keeps them apart
    hops: list[Hop] = []
    for rank in range(2):
        for switch, overhead in ((2, 0), (3, None)) if rank == 0 else ((4, None), (5, 0)):
            hops += [(rank, switch, 5, overhead, ONE), (switch, rank, 5, overhead, ONE)]
    topology = build("zeros", 2, hops, switches=[Switch(name) for name in "abcd"])
    assert moved_edges(topology, (1, 0)).tolist() == [6, 7, 4, 5, 2, 3, 0, 1]


def test_equal_parallel_spines_stay_apart() -> None:
    # rank 0: edges 0 1 (spine 0), 2 3 (spine 1); rank 1: 4 5, 6 7
    assert moved_edges(spines(), (1, 0)).tolist() == [4, 5, 6, 7, 0, 1, 2, 3]


def test_equal_parallel_wires_keep_their_order() -> None:
    hops = [*both_ways(0, 1, 1, ONE), *both_ways(0, 1, 1, ONE)]
    assert moved_edges(build("double", 2, hops), (1, 0)).tolist() == [1, 0, 3, 2]


def test_switches_that_can_do_different_things_are_not_exchanged() -> None:
    hops = [*both_ways(0, 2, 1, ONE), *both_ways(1, 3, 1, ONE), *both_ways(0, 1, 1, ONE)]
    plain = build("plain", 2, hops, switches=[Switch("a"), Switch("b")])
    assert len(make_group(plain, [(1, 0)])) == 2
    mixed = build("mixed", 2, hops, switches=[Switch("a", multicast=Multicast()), Switch("b")])
    with pytest.raises(InputError, match="edge 0 -> a has no image"):
        make_group(mixed, [(1, 0)])


def test_what_is_no_permutation_is_refused() -> None:
    with pytest.raises(InputError, match=r"should be a permutation of 0..3, got \[0, 0, 1, 2\]"):
        make_group(ring4(), [(0, 0, 1, 2)])


def test_servers_are_not_taken_apart_where_links_depend_on_them() -> None:
    # four ranks that only meet in a fabric: swapping 1 and 2 keeps all edges, but not the links
    hops = [hop for rank in range(4) for hop in both_ways(rank, 4, 1, ONE)]
    for across in (True, False):
        topology = build("racks", 4, hops, switches=[Switch("fabric", across_servers=across)],
                         server_of=(0, 0, 1, 1))  # fmt: skip
        if across:
            with pytest.raises(InputError, match="takes rank 1 away from the other ranks of serv"):
                make_group(topology, [(0, 2, 1, 3)])
        else:
            assert len(make_group(topology, [(0, 2, 1, 3)])) == 2


def test_the_identity_is_no_generator() -> None:
    assert make_group(ring4(), [(0, 1, 2, 3)]).generators == ()


GROUPS = {
    "ring4 turns": lambda: make_group(ring4(), [TURN]),
    "ring4 dihedral": lambda: make_group(ring4(), [TURN, FLIP]),
    "star5 turns": lambda: make_group(star5(), [(1, 2, 3, 4, 0)]),
    "spines": lambda: make_group(spines(), [(1, 0)]),
    "shared NIC": lambda: make_group(shared_nic(), [(1, 0, 3, 2), (2, 3, 0, 1)]),
    "trivial": lambda: make_group(ring4(), []),
}


def edge_images(group: Group) -> list[NDArray[np.int32]]:
    """Where every element takes every edge."""
    return [group.edge_image(element) for element in range(len(group))]


@pytest.fixture(params=GROUPS)
def group(request: pytest.FixtureRequest) -> Group:
    made: Group = GROUPS[request.param]()
    return made


def test_edge_images_compose_as_the_permutations_do(group: Group) -> None:
    number = {element: i for i, element in enumerate(group.elements)}
    for p, row in zip(group.elements, edge_images(group), strict=True):
        for q, then in zip(group.elements, edge_images(group), strict=True):
            both = edge_images(group)[number[composed(p, q)]]
            assert np.array_equal(then[row], both)


def test_edge_images_move_ends_and_keep_costs(group: Group) -> None:
    n = group.topology.num_ranks
    for element, row in zip(group.elements, edge_images(group), strict=True):
        for edge, image in zip(group.topology.edges, row.tolist(), strict=True):
            other = group.topology.edges[image]
            assert (edge.alpha, edge.overhead, edge.beta) == (
                other.alpha, other.overhead, other.beta,
            )  # fmt: skip
            if edge.tail < n:
                assert other.tail == element[edge.tail]
            if edge.head < n:
                assert other.head == element[edge.head]


def test_link_images_cross_the_images_of_the_edges(group: Group) -> None:
    topology = group.topology
    links = range(len(topology.links))
    for number, element in enumerate(group.elements):
        for link, image in zip(links, group.link_image(number, links), strict=True):
            before, after = topology.link(link), topology.link(image)
            assert (after.src, after.dst) == (element[before.src], element[before.dst])
            assert list(after.edges) == [int(edge_images(group)[number][e]) for e in before.edges]


def test_orbits_are_the_sets_of_images(group: Group) -> None:
    for edge in range(len(group.topology.edges)):
        images = {int(row[edge]) for row in edge_images(group)}
        assert {int(group.edge_orbit[image]) for image in images} == {min(images)}
    for rank in range(group.topology.num_ranks):
        assert group.rank_orbit[rank] == min(element[rank] for element in group.elements)


def test_an_edge_lies_in_one_orbit_with_its_images_even_where_the_extension_is_larger() -> None:
    group = make_group(twisted(), [(1, 0)])
    # the swap takes a -> c to c -> b, that to b -> d, that to d -> a: one orbit of four edges,
    # although the group has two elements
    assert group.edge_orbit[:4].tolist() == [0, 0, 0, 0]


def test_a_link_without_an_image_is_named() -> None:
    # a group that nobody verified: it takes the ranks of a server apart, and with them the links
    hops = [hop for rank in range(4) for hop in both_ways(rank, 4, 1, ONE)]
    topology = build("racks", 4, hops, switches=[Switch("fabric", across_servers=True)],
                     server_of=(0, 0, 1, 1))  # fmt: skip
    swap = (0, 2, 1, 3)
    group = Group(topology, (swap,), np.array([(0, 1, 2, 3), swap], dtype=np.int32))
    # link 0 is 0 -> 2 and becomes 0 -> 1, which share a server
    with pytest.raises(InputError, match="link 0 of racks has no image under a symmetry"):
        group.link_image(1, [0])


def test_turns_of_a_ring_act_freely() -> None:
    assert make_group(ring4(), [TURN]).acts_freely()


def test_a_flip_that_keeps_a_rank_does_not_act_freely() -> None:
    assert not make_group(ring4(), [FLIP]).acts_freely()


def test_a_flip_of_a_path_keeps_no_rank_and_no_edge() -> None:
    line = build("line", 4, [hop for r in range(3) for hop in both_ways(r, r + 1, 1, ONE)])
    assert make_group(line, [(3, 2, 1, 0)]).acts_freely()


def test_swapping_the_two_gpus_of_a_nic_is_a_symmetry_that_does_not_act_freely() -> None:
    swap = make_group(shared_nic(), [(1, 0, 3, 2)])
    assert len(swap) == 2
    assert not swap.acts_freely()


def test_a_smaller_group_is_used_where_a_nic_is_shared() -> None:
    # of {swap inside both servers, exchange servers} only the exchange keeps no NIC in place
    group = free_group(shared_nic(), [(1, 0, 3, 2), (2, 3, 0, 1)])
    assert len(group) == 2
    assert group.acts_freely()
    assert (1, 0, 3, 2) not in group.elements


def test_the_larger_of_the_free_groups_is_used() -> None:
    # the flip is tried first and refused; the turn gives all four
    assert len(free_group(ring4(), [FLIP, TURN])) == 4


def switch_ring(num_ranks: int, num_switches: int) -> Topology:
    """Rank r hangs on switch r mod the number of switches, which form a one-way ring."""
    ring = range(num_switches)
    hops: list[Hop] = [
        (num_ranks + i, num_ranks + (i + 1) % num_switches, 1, None, ONE) for i in ring
    ]
    for rank in range(num_ranks):
        hops += both_ways(rank, num_ranks + rank % num_switches, 1, ONE)
    return build("switch ring", num_ranks, hops, switches=[Switch(f"s{i}") for i in ring])


def test_one_element_that_keeps_a_resource_spoils_the_group() -> None:
    # a turn by one exchanges both switches, but a turn by two keeps them and the edges between
    topology = switch_ring(4, 2)
    assert not make_group(topology, [TURN]).acts_freely()
    assert len(free_group(topology, [TURN])) == 1


def test_a_power_is_used_where_the_generator_itself_is_not_free() -> None:
    # six ranks; r and r+3 share a NIC, which the turn by three keeps and the turn by two does not
    turn, fabric = (1, 2, 3, 4, 5, 0), 9
    hops: list[Hop] = [(6 + i, fabric, 1, None, ONE) for i in range(3)]
    for rank in range(6):
        hops += [(rank, 6 + rank % 3, 0, None, None), (fabric, rank, 1, None, ONE)]
    switches = [Switch("nic0"), Switch("nic1"), Switch("nic2"), Switch("fabric")]
    topology = build("nics", 6, hops, switches=switches)
    assert not make_group(topology, [turn]).acts_freely()
    group = free_group(topology, [turn])
    assert set(group.elements) == {
        (0, 1, 2, 3, 4, 5), (2, 3, 4, 5, 0, 1), (4, 5, 0, 1, 2, 3),
    }  # fmt: skip


def test_a_symmetry_of_the_hub_that_moves_every_rank_acts_freely() -> None:
    assert make_group(star5(), [(1, 2, 3, 4, 0)]).acts_freely()


def test_a_link_whose_edges_are_images_of_each_other_folds() -> None:
    # 0 -> s -> 1 with a symmetry that takes edge 0 -> s to s -> 1 cannot exist; two switch hops
    # s -> t and t -> s on different links can: 0 -> s -> t -> 1 and 1 -> t -> s -> 0 do not fold
    hops: list[Hop] = [*both_ways(0, 2, 1, ONE), *both_ways(1, 3, 1, ONE), *both_ways(2, 3, 1, ONE)]
    topology = build("two hops", 2, hops, switches=[Switch("s"), Switch("t")])
    assert make_group(topology, [(1, 0)]).acts_freely()
    # ranks 0, 2 | 1, 3 around a ring of switches a b c d: 0 -> a -> b -> c -> 2 crosses a -> b
    # and b -> c, which a turn of the ring maps to each other
    ring: list[Hop] = [(4 + i, 4 + (i + 1) % 4, 1, None, ONE) for i in range(4)]
    ring += [hop for r in range(4) for hop in both_ways(r, 4 + r, 1, ONE)]
    topology = build("folds", 4, ring, switches=[Switch(name) for name in "abcd"])
    assert not make_group(topology, [TURN]).acts_freely()


def test_edges_that_are_no_resource_may_stay() -> None:
    hops: list[Hop] = [(0, 2, 0, None, ONE), (1, 2, 0, None, ONE), (2, 3, 5, None, None),
                       (3, 0, 0, None, ONE), (3, 1, 0, None, ONE)]  # fmt: skip
    topology = build("pipe", 2, hops, switches=[Switch("in"), Switch("out")])
    assert make_group(topology, [(1, 0)]).acts_freely()


def test_the_identity_acts_freely() -> None:
    assert make_group(twin2x2(), []).acts_freely()


def test_one_chunk_stands_for_its_orbit() -> None:
    group = make_group(ring4(), [TURN])
    assert group.chunk_orbits(build_collective("allgather", 4, 2)) == (0, 1)
    assert group.chunk_orbits(build_collective("alltoall", 4, 1)) == (0, 1, 2, 3)


def test_without_symmetry_every_chunk_stands_for_itself() -> None:
    group = make_group(pair(), [])
    assert group.chunk_orbits(build_collective("allreduce", 2, 2)) == (0, 1, 2, 3)


@given(p=st.permutations(range(5)), q=st.permutations(range(5)))
def test_edge_images_are_a_homomorphism_on_a_hub(p: list[int], q: list[int]) -> None:
    topology = star5()
    then = composed(tuple(p), tuple(q))
    assert np.array_equal(
        moved_edges(topology, q)[moved_edges(topology, p)], moved_edges(topology, then)
    )

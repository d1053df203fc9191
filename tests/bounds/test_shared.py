"""What groups of ranks receive together, at which edges links are counted, and one rank of each."""

import random
from fractions import Fraction

import numpy as np
import pytest

from taccl.bounds import any_bounds, best, fixed_bounds
from taccl.bounds.cut import NONE, counted_at, counting_edges, edge_covers, shared_crossings
from taccl.bounds.net import Net, make_net, one_of_each, proved_orbits
from taccl.collectives import COLLECTIVES, build_collective
from taccl.topology.file import load_topology
from taccl.topology.graph import LogicalTopology, Topology, whole
from tests.bounds.bound_networks import Row, build, dgx2, rails
from tests.generators import random_topology, twin2x2
from tests.sweep import for_each

MB = Fraction(10**6)


def net_of(topology: Topology, collective: str = "allgather", chunk: int | None = None) -> Net:
    made = build_collective(collective, topology.num_ranks, 1)
    return make_net(whole(topology), made, None if chunk is None else Fraction(chunk))


# --- groups --------------------------------------------------------------------------------------


def test_two_ranks_behind_one_nic_receive_together() -> None:
    # DGX-2 x 2, 1 MB a rank: 2 * 31 MB by two ports of 8 us/MB and one NIC of 106. (The cut, what
    # enters a server from outside or a rank, is 230.67.)
    network = load_topology("dgx2", nodes=2)
    bounds = {b.kind: b.time for b in any_bounds(whole(network), "allgather", 32 * 10**6)}
    assert bounds["port"] / 10**6 == pytest.approx(62 / (2 / 8 + 1 / 106), abs=1.7)
    assert bounds["cut"] / 10**6 == pytest.approx(231.4, abs=0.1)


def test_whole_chunks_fill_ports_and_nics_together() -> None:
    # 2 * 31 chunks by two ports of 8.7 and a NIC of 107.7: by 261.0, 30 + 30 + 2.
    network = load_topology("dgx2", nodes=2)
    made = build_collective("allgather", 32, 1)
    bounds = {b.kind: b.time for b in fixed_bounds(whole(network), made, MB)}
    assert bounds["port"] == 30 * 8_700_000


def test_groups_are_those_that_share_servers_and_all() -> None:
    made = build_collective("allgather", 4, 1)
    amounts = {c.share for c in shared_crossings(net_of(twin2x2()), made)}
    # What a rank alone can send (a quarter), two ranks receive (6 quarters) and all (12) ...
    assert {Fraction(6, 4), Fraction(12, 4)} <= amounts


@pytest.mark.parametrize("collective", sorted(COLLECTIVES))
def test_many_ranks_with_a_root_are_left_out(
    collective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taccl.bounds.cut.MANY_RANKS", 2)
    made = build_collective(collective, 4, 1)
    found = list(shared_crossings(net_of(twin2x2(), collective), made))
    assert bool(found) == (not COLLECTIVES[collective].has_root)


# --- covers --------------------------------------------------------------------------------------


@for_each("seed", range(40))
def test_every_link_is_counted_at_one_of_its_resources(seed: int) -> None:
    net = net_of(random_topology(seed), chunk=100)
    for cover in edge_covers(net):
        for link, edge in enumerate(cover.tolist()):
            own = net.edges[net.first[link] : net.first[link + 1]].tolist()
            resources = [e for e in own if e in net.busy]
            assert edge in resources if resources else edge == NONE


def test_first_and_last_resources_of_a_link() -> None:
    # Rank and NIC are joined for free, NICs and fabric are not.
    net = net_of(twin2x2())
    link = int(np.flatnonzero((net.src == 0) & (net.dst == 2))[0])
    own = net.edges[net.first[link] : net.first[link + 1]].tolist()
    assert [counting_edges(net, last=last)[link] for last in (False, True)] == [own[1], own[2]]


@for_each("chunk", [None, 100])
@for_each("seed", range(20))
def test_gates_in_columns_are_the_gates_one_by_one(seed: int, chunk: int | None) -> None:
    net = net_of(random_topology(seed), chunk=chunk)
    rows = np.array([random.Random(f"{seed} {i}").random() < 0.6 for i in range(len(net.src))])
    for cover in (counting_edges(net), counting_edges(net, last=True)):
        # With every other edge left out, each link is counted at its own.
        parts = []
        for edge in sorted(set(cover[rows].tolist())):
            mine = np.flatnonzero(rows & (cover == edge))
            parts.append(None if edge == NONE else net.gate(edge, mine))
        found = counted_at(net, cover, rows)
        if not parts or None in parts:
            assert found is None
        else:
            assert found is not None
            assert sorted(g for g, n in found for _ in range(n)) == sorted(p for p in parts if p)


# --- one of each ---------------------------------------------------------------------------------


def without_rotations(topology: Topology) -> Topology:
    rows: list[Row] = [(e.tail, e.head, e.alpha, e.overhead, e.beta) for e in topology.edges]
    return build(
        topology.num_ranks, rows, len(topology.switches), topology.server_of, topology.alpha_rule
    )


@for_each("size", [1, 10**4, 10**7], quick=8)
@for_each("network", [rails(2, 300, 25, 700_000), rails(1, 300, 25, 700_000)])
@for_each("collective", sorted(COLLECTIVES))
def test_one_rank_of_each_says_what_all_say(network: Topology, collective: str, size: int) -> None:
    plain = without_rotations(network)
    made = build_collective(collective, network.num_ranks, 1)
    one, all_ = (any_bounds(whole(t), collective, 16 * size) for t in (network, plain))
    assert {b.kind: b.time for b in one} == {b.kind: b.time for b in all_}
    one, all_ = (fixed_bounds(whole(t), made, Fraction(size)) for t in (network, plain))
    assert best(one).time == best(all_).time


def test_ranks_that_rotate_are_one() -> None:
    made = build_collective("allgather", 16, 1)
    assert one_of_each(net_of(rails(2, 300, 25)), made) == (0,)
    assert one_of_each(net_of(without_rotations(rails(2, 300, 25))), made) == tuple(range(16))


def test_a_root_comes_first_and_distances_from_it_count() -> None:
    made = build_collective("broadcast", 16, 1, 5)
    # Rank 5; next to it, its server and its rail (here as far); and the others.
    assert one_of_each(net_of(rails(2, 300, 25, 700_000)), made) == (5, 0, 8)


def test_under_a_sketch_all_ranks_are_looked_at() -> None:
    network = rails(1, 300, 25)
    allowed = np.ones(len(network.links), dtype=np.bool_)
    allowed[3] = False
    made = build_collective("allgather", 8, 1)
    net = make_net(LogicalTopology(network, allowed, name="less"), made)
    assert one_of_each(net, made) == tuple(range(8))
    assert proved_orbits(net).rank.tolist() == list(range(8))


def test_false_rotations_prove_nothing() -> None:
    rows: list[Row] = [(r, (r + 1) % 3, 0, 0, r + 1) for r in range(3)]
    net = net_of(build(3, rows, rotations=[(1, 2, 0)]))
    assert proved_orbits(net).rank.tolist() == [0, 1, 2]
    true = net_of(build(3, [(r, (r + 1) % 3, 0, 0, 1) for r in range(3)], rotations=[(1, 2, 0)]))
    assert proved_orbits(true).rank.tolist() == proved_orbits(true).edge.tolist() == [0, 0, 0]


def test_a_pair_with_as_many_links_as_there_can_be_may_have_more() -> None:
    rows: list[Row] = [(0, 2 + i, 0, 0, 1) for i in range(70)]
    rows += [(2 + i, 1, 0, 0, 1) for i in range(70)]
    rows += [(1, 2 + i, 0, 0, 1) for i in range(70)] + [(2 + i, 0, 0, 0, 1) for i in range(70)]
    with pytest.warns(match="first 64"):
        net = net_of(build(2, rows, 70, rotations=[(1, 0)]))
    assert proved_orbits(net).rank.tolist() == [0, 1]


def test_one_switch_of_equals() -> None:
    # 15 MB by 125 GB/s into each rank, in four rounds of 0.7 us
    assert best(any_bounds(whole(dgx2()), "allgather", 16 * 10**6)).time == 122_800_000

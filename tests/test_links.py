"""Which links a topology has."""

import itertools
import random
import warnings
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from taccl.errors import InputError, TacclWarning
from taccl.topology.file import load_topology
from taccl.topology.graph import Multicast, Reduction, Switch, Topology
from taccl.topology.links import derive_links
from tests.generators import Hop, both_ways, build, pair, random_topology, ring4, star5, twin2x2
from tests.sweep import for_each

ONE = Fraction(1)


def ends(topology: Topology) -> list[tuple[int, int]]:
    table = topology.links
    return list(zip(table.src.tolist(), table.dst.tolist(), strict=True))


def spines(count: int, *, behind_one_port: bool = False) -> Topology:
    """Ranks 0 and 1 and that many equal switches between them, from 0 to 1 only."""
    hops: list[Hop] = [(0, 2 + i, 1, None, ONE) for i in range(count)]
    last = 2 + count if behind_one_port else 1
    hops += [(2 + i, last, 1, None, ONE) for i in range(count)]
    if behind_one_port:
        hops.append((last, 1, 1, None, ONE))
    switches = [Switch(f"spine{i}") for i in range(count + behind_one_port)]
    return build("spines", 2, hops, switches=switches)


def test_every_wire_is_a_link() -> None:
    # ring4: edge 2r is r -> r+1, edge 2r+1 is r+1 -> r
    assert ends(ring4()) == [(0, 1), (0, 3), (1, 0), (1, 2), (2, 1), (2, 3), (3, 0), (3, 2)]
    assert ring4().link(1).edges == (7,)


def test_a_switch_joins_every_pair_of_ranks() -> None:
    topology = star5()
    assert ends(topology) == [(a, b) for a in range(5) for b in range(5) if a != b]
    # rank r goes up on edge 2r, down on edge 2r+1
    assert topology.link(topology.links_between(1, 4)[0]).edges == (2, 9)


def test_a_wire_beats_every_path_through_a_switch() -> None:
    hops = [*both_ways(0, 1, 900, Fraction(99)), *both_ways(0, 3, 1, ONE), *both_ways(1, 3, 1, ONE),
            *both_ways(2, 3, 1, ONE)]  # fmt: skip
    topology = build("mixed", 3, hops, switches=[Switch("hub")])
    assert [topology.link(i).edges for i in topology.links_between(0, 1)] == [(0,)]
    assert [topology.link(i).edges for i in topology.links_between(0, 2)] == [(2, 7)]


def test_parallel_wires_are_parallel_links_in_file_order() -> None:
    hops: list[Hop] = [(0, 1, 5, None, ONE), (1, 0, 5, None, ONE), (0, 1, 3, None, Fraction(2))]
    topology = build("double", 2, hops)
    assert [topology.link(i).edges for i in topology.links_between(0, 1)] == [(0,), (2,)]


def test_parallel_switches_give_one_link_for_each_path() -> None:
    topology = spines(3)
    assert [topology.link(i).edges for i in topology.links_between(0, 1)] == [
        (0, 3), (1, 4), (2, 5),
    ]  # fmt: skip


def test_only_paths_with_the_fewest_edges_are_links() -> None:
    # 0 -> a -> 1 has two edges, 0 -> b -> c -> 1 three
    hops: list[Hop] = [(0, 2, 90, None, ONE), (2, 1, 90, None, ONE), (0, 3, 1, None, ONE),
                       (3, 4, 1, None, ONE), (4, 1, 1, None, ONE)]  # fmt: skip
    topology = build("detour", 2, hops, switches=[Switch(name) for name in "abc"])
    assert [topology.link(i).edges for i in range(len(topology.links))] == [(0, 1)]


def test_a_path_does_not_pass_through_a_rank() -> None:
    topology = build("line", 3, [*both_ways(0, 1, 1, ONE), *both_ways(1, 2, 1, ONE)])
    assert topology.links_between(0, 2) == ()


def test_an_edge_from_a_rank_to_itself_is_no_link() -> None:
    topology = build("loop", 2, [(0, 0, 1, None, ONE), *both_ways(0, 1, 1, ONE)])
    assert ends(topology) == [(0, 1), (1, 0)]


def test_a_switch_across_servers_joins_only_ranks_of_different_servers() -> None:
    # twin2x2: the two ranks of a server share a NIC, but have no link through it
    topology = twin2x2()
    assert [len(topology.link(i).edges) for i in topology.links_between(0, 1)] == [1]
    assert [len(topology.link(i).edges) for i in topology.links_between(0, 3)] == [4]


def test_without_a_wire_ranks_of_one_server_have_no_link_through_their_own_nic() -> None:
    topology = twin2x2()
    bare = build(
        "bare", 4, [(e.tail, e.head, e.alpha, None, e.beta) for e in topology.edges[4:]],
        switches=topology.switches, server_of=topology.server_of,
    )  # fmt: skip
    assert ends(bare) == [(a, b) for a in range(4) for b in range(4) if a // 2 != b // 2]


def test_a_switch_inside_a_server_may_be_on_the_way_to_another_server() -> None:
    # 0 -> local -> fabric -> 1
    hops: list[Hop] = [(0, 2, 1, None, ONE), (2, 3, 1, None, ONE), (3, 1, 1, None, ONE)]
    switches = [Switch("local"), Switch("fabric", across_servers=True)]
    topology = build("out", 2, hops, switches=switches, server_of=(0, 1))
    assert topology.link(0).edges == (0, 1, 2)


def test_64_equal_paths_are_all_used_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(spines(64).links) == 64


def test_of_65_equal_paths_the_first_64_are_used_with_a_warning() -> None:
    with pytest.warns(TacclWarning, match="rank 0 has more than 64 equal paths to rank 1;"):
        table = derive_links(spines(65))
    assert [table.edges_of(i)[0] for i in range(len(table))] == list(range(64))


def test_paths_that_are_cut_before_the_last_hop_are_reported_too() -> None:
    # 65 spines meet in one switch before rank 1: the cap is reached one hop earlier
    with pytest.warns(TacclWarning, match="more than 64 equal paths"):
        assert len(derive_links(spines(65, behind_one_port=True))) == 64


def test_all_cut_pairs_make_one_warning() -> None:
    hops: list[Hop] = [(r, 3 + i, 1, None, ONE) for r in range(3) for i in range(65)]
    hops += [(3 + i, r, 1, None, ONE) for r in range(3) for i in range(65)]
    topology = build("clos", 3, hops, switches=[Switch(f"s{i}") for i in range(65)])
    with pytest.warns(TacclWarning, match="and so have 5 other pairs") as caught:
        derive_links(topology)
    assert len(caught) == 1


def test_paths_that_a_wire_beats_are_not_worth_a_warning() -> None:
    many = spines(65)
    hops: list[Hop] = [(e.tail, e.head, e.alpha, None, e.beta) for e in many.edges]
    topology = build("beaten", 2, [*hops, (0, 1, 1, None, ONE)], switches=many.switches)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(topology.links) == 1


def test_alpha_and_overhead_of_a_link_are_sums_over_its_edges() -> None:
    hops: list[Hop] = [(0, 2, 6, None, ONE), (2, 1, 4, 3, None)]
    for rule, overhead in (("occupy", 6 + 3), ("delay", 0 + 3)):
        link = build("sum", 2, hops, switches=[Switch("hub")], rule=rule).link(0)
        assert (link.alpha, link.overhead) == (10, overhead)


def test_the_slowest_edge_gives_the_beta_of_a_link() -> None:
    table = star5().links
    assert table.max_beta(0) == 2
    assert twin2x2().links.max_beta(twin2x2().links_between(0, 2)[0]) == 4


def test_a_link_without_any_bandwidth_has_beta_0() -> None:
    assert build("free", 2, [(0, 1, 1, None, None)]).links.max_beta(0) == 0


def test_a_topology_without_edges_has_no_links() -> None:
    topology = build("alone", 3, [])
    assert len(topology.links) == 0
    assert 2 not in topology.links.dst
    assert list(topology.links.leaving(2)) == []


def walked(topology: Topology, src: int) -> dict[int, list[tuple[int, ...]]]:
    """Return the paths from a rank to every other, walked one by one."""
    n, home = topology.num_ranks, topology.server_of[src]
    mixed = any(switch.across_servers for switch in topology.switches)
    found: dict[int, list[tuple[int, ...]]] = {}
    for across in (False, True):
        layer: dict[int, list[tuple[int, ...]]] = {src: [()]}
        seen = {src}
        while layer:
            following: dict[int, list[tuple[int, ...]]] = {}
            for edge in topology.edges:
                shut = edge.head >= n and topology.switches[edge.head - n].across_servers
                if edge.tail in layer and edge.head not in seen and (across or not shut):
                    paths = [(*path, edge.id) for path in layer[edge.tail]]
                    following.setdefault(edge.head, []).extend(paths)
            seen |= set(following)
            for dst in [vertex for vertex in following if vertex < n]:
                if not mixed or across == (topology.server_of[dst] != home):
                    found[dst] = sorted(following[dst])
            layer = {v: paths for v, paths in following.items() if v >= n}
    return found


@for_each("seed", range(60))
def test_the_columns_say_the_same_as_the_rows(seed: int) -> None:
    topology = random_topology(seed)
    table = topology.links
    rows = [topology.link(i) for i in range(len(table))]
    paths = [(row.src, row.dst, row.edges) for row in rows]
    assert paths == [
        (src, dst, path) for src in range(topology.num_ranks)
        for dst, found in sorted(walked(topology, src).items()) for path in found
    ]  # fmt: skip
    assert paths == sorted(paths)
    for row in rows:
        edges = [topology.edges[e] for e in row.edges]
        vertices = [edges[0].tail, *(edge.head for edge in edges)]
        assert vertices[0] == row.src
        assert vertices[-1] == row.dst
        assert [edge.tail for edge in edges] == vertices[:-1]
        assert row.alpha == sum(edge.alpha for edge in edges)


@for_each("seed", range(30))
def test_links_are_found_by_source_destination_and_pair(seed: int) -> None:
    topology = random_topology(seed)
    pairs = ends(topology)
    n = topology.num_ranks
    for a in range(n):
        assert list(topology.links.leaving(a)) == [i for i, e in enumerate(pairs) if e[0] == a]
        for b in range(n):
            assert list(topology.links_between(a, b)) == [
                i for i, e in enumerate(pairs) if e == (a, b)
            ]


def test_columns_have_the_promised_types() -> None:
    table = pair().links
    assert {column.dtype for column in (table.src, table.dst)} == {np.dtype(np.int32)}
    assert {column.dtype for column in (table.alpha, table.overhead)} == {np.dtype(np.int64)}


def test_more_links_than_memory_is_for_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # star5 has a link for every ordered pair: 20.
    monkeypatch.setattr("taccl.topology.links.MAX_LINKS", 20)
    assert len(derive_links(star5())) == 20
    monkeypatch.setattr("taccl.topology.links.MAX_LINKS", 19)
    with pytest.raises(InputError, match="more than 19 links between its 5 ranks"):
        derive_links(star5())


def test_paths_that_are_joined_as_they_are_found_give_the_same_links(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for machine in ("dgx-h100", "mi250", "leaf-spine", "dragonfly"):
        nodes = 2 if machine in ("dgx-h100", "mi250") else None
        topology = load_topology(machine, nodes=nodes)
        whole = derive_links(topology)
        with monkeypatch.context() as patch:
            patch.setattr("taccl.topology.links.MAX_REACHED", 100)
            for fresh in (0, 100):
                patch.setattr("taccl.topology.links.FRESH", fresh)
                parts = derive_links(topology)
                for column in ("src", "dst", "alpha", "edge_start", "edge_ids", "first"):
                    assert (getattr(parts, column) == getattr(whole, column)).all(), machine


def test_ranks_are_looked_at_in_parts_where_together_they_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = derive_links(star5())
    # a rank's step to the hub, and four from there; five ranks at once take 25 steps
    monkeypatch.setattr("taccl.topology.links.MAX_STEPS", 5)
    parts = derive_links(star5())
    for name in ("src", "dst", "alpha", "edge_start", "edge_ids", "first"):
        assert np.array_equal(getattr(parts, name), getattr(whole, name))
    monkeypatch.setattr("taccl.topology.links.MAX_STEPS", 4)
    with pytest.raises(InputError, match="more than 4 paths between its 5 ranks"):
        derive_links(star5())


def capable(topology: Topology, *names: str) -> Topology:
    """Let the named switches copy and add."""
    return replace(topology, switches=tuple(
        replace(s, multicast=Multicast(), reduce=Reduction()) if s.name in names else s
        for s in topology.switches
    ))  # fmt: skip


def arcs(topology: Topology) -> set[tuple[int, int, tuple[int, ...]]]:
    table = topology.arcs
    return {
        (int(table.src[i]), int(table.dst[i]), table.edges_of(i)) for i in range(len(table))
    }  # fmt: skip


def test_an_arc_joins_a_switch_that_copies_or_adds_to_the_next_stations() -> None:
    # fat-tree:4: ranks 0-15, edge switches 16-23, aggregation 24-27, core 28.
    topology = capable(load_topology("fat-tree:4"), "p0/edge0", "core")
    named = {(e.tail, e.head): e.id for e in topology.edges}
    found = arcs(topology)
    up = named[0, 16]
    assert {(0, 16, (up,)), (16, 28, (named[16, 24], named[24, 28]))} <= found
    # Rank 4 of pod 1 reaches the core through its edge and aggregation switch.
    assert (4, 28, (named[4, 18], named[18, 25], named[25, 28])) in found
    # Rank 2 is not behind edge switch 0, and reaches it without the core.
    assert (2, 16, (named[2, 17], named[17, 24], named[24, 16])) in found
    # From pod 1 every way to edge switch 0 leads through the core, which is a station.
    assert not any(src == 4 and dst == 16 for src, dst, _ in found)
    assert not any(src < 16 and dst < 16 for src, dst, _ in found)
    # The columns have an entry for each vertex, as for each rank of links.
    leaving = {int(topology.arcs.dst[i]) for i in topology.arcs.leaving(28)}
    assert leaving == {dst for src, dst, _ in found if src == 28}


def test_without_such_switches_there_are_no_arcs_and_links_do_not_change_with_them() -> None:
    for spec in ("ring:6", "hub:5", "leaf-spine:2x3", "fat-tree:4"):
        plain = load_topology(spec)
        assert len(plain.arcs) == 0
        able = capable(plain, *(switch.name for switch in plain.switches))
        ranks = np.arange(plain.num_ranks + len(plain.switches)) < plain.num_ranks
        for other in (able.links, derive_links(plain, ranks)):
            for name in ("src", "dst", "alpha", "overhead", "edge_start", "edge_ids", "first"):
                assert np.array_equal(getattr(plain.links, name), getattr(other, name)), name


def ways(topology: Topology, src: int, dst: int) -> list[tuple[int, ...]]:
    """Return the shortest paths between two stations through none, by brute force."""
    paths: list[tuple[int, tuple[int, ...]]] = [(src, ())]
    for _ in topology.edges:
        paths = [
            (edge.head, (*path, edge.id)) for end, path in paths for edge in topology.edges
            if edge.tail == end and (edge.head == dst or not topology.stations[edge.head])
        ]  # fmt: skip
        if found := [path for end, path in paths if end == dst]:
            return found
    return []


def test_arcs_are_all_shortest_paths_between_stations_through_none() -> None:
    stations = 0
    for seed in range(60):
        topology, rng = random_topology(seed), random.Random(seed)
        if any(switch.across_servers for switch in topology.switches):
            continue
        names = [s.name for s in topology.switches if rng.random() < 0.7]
        topology = capable(topology, *names)
        stations += len(names)
        pairs = itertools.permutations(np.flatnonzero(topology.stations).tolist(), 2)
        assert arcs(topology) == {
            (src, dst, path) for src, dst in pairs if max(src, dst) >= topology.num_ranks
            for path in ways(topology, src, dst)
        }, seed  # fmt: skip
    assert stations > 20


def test_a_switch_across_servers_is_open_to_every_rank_and_others_to_the_near_ones() -> None:
    topology = load_topology("dgx-h100", nodes=2)
    names = {s.name: v for v, s in enumerate(topology.switches, topology.num_ranks)}
    found = arcs(capable(topology, "rail3", "s0/nvswitch", "s1/nvswitch"))
    ends = {(src, dst) for src, dst, _ in found}
    assert (3, names["rail3"]) in ends
    assert (names["rail3"], 11) in ends
    assert [r for r in range(16) if (r, names["s0/nvswitch"]) in ends] == [*range(8)]
    assert all(len(edges) == (2 if max(s, d) == names["rail3"] else 1) for s, d, edges in found)

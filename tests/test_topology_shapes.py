"""Parametric shapes and their short form: the right wires, and true symmetries."""

from fractions import Fraction
from pathlib import Path

import pytest

from taccl.errors import InputError
from taccl.topology.file import load_topology
from taccl.topology.graph import Topology
from taccl.topology.structure import gigabytes
from taccl.topology.symmetry import free_group, make_group
from tests.sweep import for_each


def wires(topology: Topology) -> set[tuple[int, int]]:
    """Return the pairs that a wire joins, and check that each is there once in each direction."""
    ends = [(e.tail, e.head) for e in topology.edges]
    assert len(set(ends)) == len(ends)
    assert {(b, a) for a, b in ends} == set(ends)
    return {(a, b) for a, b in ends if a < b}


@pytest.mark.parametrize(
    ("spec", "pairs"),
    [
        ("ring:4", {(0, 1), (1, 2), (2, 3), (0, 3)}),
        ("ring:2", {(0, 1)}),
        ("mesh2d:2x3", {(0, 1), (1, 2), (3, 4), (4, 5), (0, 3), (1, 4), (2, 5)}),
        ("torus2d:2x3", {(0, 1), (1, 2), (0, 2), (3, 4), (4, 5), (3, 5), (0, 3), (1, 4), (2, 5)}),
        ("hypercube:4", {(0, 1), (2, 3), (0, 2), (1, 3)}),
        ("full:3", {(0, 1), (0, 2), (1, 2)}),
        ("mesh:3", {(0, 1), (1, 2)}),
    ],
)
def test_a_shape_has_its_wires(spec: str, pairs: set[tuple[int, int]]) -> None:
    assert wires(load_topology(spec)) == pairs


@for_each(
    ("spec", "ranks", "edges"),
    # edges = 2 * wires; torus n * dims wires, mesh (a-1)*b + a*(b-1)
    [("torus2d:8x8", 64, 256), ("torus3d:4x4x4", 64, 384), ("mesh2d:8x8", 64, 224),
     ("ring:16", 16, 32), ("hub:8", 8, 16), ("hypercube:16", 16, 64),
     # ranks, and leaves; k^3/4 ranks, k^2/2 edge switches and k pods; 2gap + ga(a-1) + g(g-1)
     ("leaf-spine:4x8x2", 32, 72), ("leaf-spine:1x4", 4, 8), ("fat-tree:4", 16, 56),
     ("fat-tree:8", 128, 336), ("dragonfly:9x4x2", 72, 324), ("dragonfly:5x4x2", 40, 160)],
)  # fmt: skip
def test_a_shape_has_its_size(spec: str, ranks: int, edges: int) -> None:
    topology = load_topology(spec)
    assert (topology.num_ranks, len(topology.edges)) == (ranks, edges)


def test_a_wire_is_50_gb_a_second_and_700_ns_by_default() -> None:
    assert {(e.beta, e.alpha) for e in load_topology("ring:4").edges} == {(Fraction(20), 700_000)}


@pytest.mark.parametrize(
    ("spec", "costs"),
    [
        ("torus2d:4x4@25GB/s,1us", (Fraction(40), 10**6)),
        ("ring:4@46us/MB", (Fraction(46), 700_000)),
    ],
)
def test_a_short_form_can_say_what_a_wire_costs(spec: str, costs: tuple[Fraction, int]) -> None:
    assert {(e.beta, e.alpha) for e in load_topology(spec).edges} == {costs}


def test_a_hub_crossing_takes_half_the_latency_on_each_edge_and_the_odd_one_last() -> None:
    topology = load_topology("hub:2@50GB/s,3ps")
    assert [(e.tail, e.head, e.alpha) for e in topology.edges] == [
        (0, 2, 1), (2, 0, 2), (1, 2, 1), (2, 1, 2),
    ]  # fmt: skip


def costs(topology: Topology) -> dict[str, list[float]]:
    """Return GB/s and alpha of every edge by name."""
    return {
        e.name: [float(gigabytes(e.beta)), e.alpha] for e in topology.edges if e.beta is not None
    }


def test_a_leaf_sends_half_of_what_its_ranks_send_when_oversubscribed() -> None:
    found = costs(load_topology("leaf-spine:2x4x2@50GB/s,7ps"))
    # A crossing of a switch is 7 ps: 3 going in and 4 going out; a cable between two has both.
    assert found["5->leaf1"] == [50, 3]
    assert found["leaf1->5"] == [50, 4]
    assert found["leaf0->spine"] == found["spine->leaf0"] == [100, 7]
    assert costs(load_topology("leaf-spine:2x4@50GB/s"))["leaf0->spine"][0] == 200


def test_a_message_by_the_spine_crosses_three_switches() -> None:
    topology = load_topology("leaf-spine:2x2@50GB/s,1us")
    near, far = (topology.links_between(0, dst)[0] for dst in (1, 2))
    assert [topology.link(link).alpha for link in (near, far)] == [1_000_000, 3_000_000]


def test_one_leaf_needs_no_spine() -> None:
    assert [switch.name for switch in load_topology("leaf-spine:1x4").switches] == ["leaf0"]


def test_a_fat_tree_pools_the_switches_of_a_pod_and_the_core() -> None:
    topology = load_topology("fat-tree:4@50GB/s,1us")
    names = [switch.name for switch in topology.switches]
    assert names == [f"p{p}/edge{i}" for p in range(4) for i in range(2)] + [
        "p0/agg", "p1/agg", "p2/agg", "p3/agg", "core",
    ]  # fmt: skip
    found = costs(topology)
    assert found["5->p1/edge0"] == [50, 500_000]
    assert found["p1/edge0->p1/agg"] == [100, 1_000_000]
    assert found["core->p1/agg"] == [200, 1_000_000]
    # Within an edge switch, within a pod, across the core.
    alphas = [topology.link(topology.links_between(0, dst)[0]).alpha for dst in (1, 2, 4)]
    assert alphas == [1_000_000, 3_000_000, 5_000_000]


@pytest.mark.parametrize("ports", [2, 4, 6, 8])
def test_no_switch_of_a_fat_tree_is_oversubscribed(ports: int) -> None:
    topology = load_topology(f"fat-tree:{ports}")
    up: dict[int, Fraction] = {}
    down: dict[int, Fraction] = {}
    core = topology.num_ranks + len(topology.switches) - 1
    for edge in topology.edges:
        # Upwards the number of the vertex rises.
        side = up if edge.head > edge.tail else down
        side[edge.tail] = side.get(edge.tail, Fraction(0)) + gigabytes(edge.beta or Fraction(1))
    assert all(up[switch] == down[switch] for switch in range(topology.num_ranks, core))
    assert topology.num_ranks == ports**3 // 4


@pytest.mark.parametrize(
    ("groups", "routers", "ranks"),
    [(9, 4, 2), (5, 4, 2), (3, 2, 1), (4, 2, 1), (7, 3, 2), (2, 3, 1)],
)
def test_each_two_groups_of_a_dragonfly_have_one_cable_and_routers_share_them(
    groups: int, routers: int, ranks: int
) -> None:
    topology = load_topology(f"dragonfly:{groups}x{routers}x{ranks}")
    first = topology.num_ranks
    ends = [((e.tail - first) // routers, (e.head - first) // routers, e.tail)
            for e in topology.edges if min(e.tail, e.head) >= first]  # fmt: skip
    leaving = [(a, b, router) for a, b, router in ends if a != b]
    pairs = [(a, b) for a, b, _ in leaving]
    assert sorted(pairs) == [(a, b) for a in range(groups) for b in range(groups) if a != b]
    most = -(-(groups - 1) // routers)
    assert all([r for _, _, r in leaving].count(router) <= most for _, _, router in leaving)
    # Inside a group all routers are joined.
    assert len(ends) - len(leaving) == groups * routers * (routers - 1)


@for_each(
    ("spec", "order"),
    # translations n; hypercube 2^bits; mesh: mirrors 2^dims
    [("ring:6", 6), ("torus2d:3x4", 12), ("torus3d:2x2x3", 12), ("hub:5", 5), ("hypercube:8", 8),
     ("full:4", 4), ("mesh2d:3x4", 4), ("mesh:5", 2), ("leaf-spine:3x4", 12), ("fat-tree:4", 16),
     # Groups and the ranks of a router; which router a rank is on matters.
     ("dragonfly:5x4x2", 10), ("dragonfly:4x2x1", 4)],
)  # fmt: skip
def test_the_declared_rotations_are_symmetries(spec: str, order: int) -> None:
    topology = load_topology(spec)
    assert len(make_group(topology, topology.rotations)) == order


@pytest.mark.parametrize("spec", ["ring:6", "torus2d:3x4", "hub:5", "hypercube:8"])
def test_translations_act_freely(spec: str) -> None:
    topology = load_topology(spec)
    assert len(free_group(topology, topology.rotations)) == topology.num_ranks


BAD = {
    "torus2d:8": r"torus2d has 2 dimensions, got 1\n  fix: write torus2d:4x4",
    "ring:4x4": r"a ring has one dimension, got 2",
    "ring:1": r"should make 2 to 65536 ranks, got 1",
    "torus2d:0x4": r"should make 2 to 65536 ranks, got 0x4",
    "torus2d:999x999": r"should make 2 to 65536 ranks, got 999x999",
    "full:5000": r"makes more than 1200000 edges",
    "leaf-spine:4": r"a leaf-spine has 2 to 3 dimensions, got 1\n  fix: write leaf-spine:4x8x2",
    "leaf-spine:1x1": r"should make 2 to 65536 ranks, got 1x1",
    "leaf-spine:2x2x0": r"should make 2 to 65536 ranks, got 2x2x0",
    "fat-tree:3": r"the switches of a fat-tree have an even number of ports, got 3",
    "fat-tree:4x4": r"a fat-tree has one dimension, got 2\n  fix: give the ports of a switch",
    "fat-tree:66": r"should make 2 to 65536 ranks, got 66",
    "dragonfly:9x4": r"a dragonfly has 3 dimensions, got 2\n  fix: write dragonfly:9x4x2: groups",
    "dragonfly:1x60000x1": r"makes more than 1200000 edges",
    "mesh:2x2x2x2x2x2x2x2x2": r"a mesh has 1 to 8 dimensions, got 9",
    "hypercube:12": r"a hypercube has a power of two of ranks, got 12",
    "ring:x": r"'x' are no dimensions",
    "ring:": r"'' are no dimensions",
    "ring:9999999": r"'9999999' are no dimensions",
    "hub:8@25GBps": r"unknown unit 'GBps'",
    "hub:8@": r"should be a bandwidth, got ''",
    "hub:8@1GB/s,": r"should be a time, got ''",
    "hub:8@0": r"should be greater than 0",
}


@for_each("spec", BAD)
def test_a_bad_short_form_is_one_error_with_a_fix(spec: str) -> None:
    with pytest.raises(InputError, match=f"^topology: {BAD[spec]}") as error:
        load_topology(spec)
    assert error.value.fix


def shape(text: str, path: Path) -> Topology:
    file = path / "s.yaml"
    file.write_text(f"taccl: topology/1\nname: s\nshape: {text}\n")
    return load_topology(str(file))


def test_a_file_can_hold_a_shape(tmp_path: Path) -> None:
    found = shape("{kind: torus, dims: [2, 3], bandwidth: 50GB/s, alpha: 0.5us}", tmp_path)
    assert wires(found) == wires(load_topology("torus2d:2x3"))
    assert {(e.beta, e.alpha) for e in found.edges} == {(Fraction(20), 500_000)}


BAD_FILES = {
    "{kind: circle, dims: [3]}": r"shape.kind: should be 'ring', .*got 'circle'",
    "{kind: ring}": r"shape.dims: is missing\n  fix: write dims: \[8, 8\]",
    "{kind: ring, dims: [0]}": r"shape.dims\[0\]: should be at least 1, got 0",
    "{kind: ring, dims: [2, 2]}": r"shape.dims: a ring has one dimension",
    "{kind: fat-tree, dims: [5]}": r"shape.dims: the switches of a fat-tree have an even number",
    "{kind: torus, dims: [1, 1]}": r"shape.dims: should make 2 to 65536 ranks",
    "{kind: torus, dims: [60000, 60000]}": r"shape.dims: should make 2 to 65536 ranks",
    "{kind: ring, dims: [4], alhpa: 1us}": r"shape.alhpa: unknown field\n  fix: did you mean alpha",
    "7": r"shape: should be a mapping of fields, got 7",
}


@for_each("text", BAD_FILES)
def test_a_bad_shape_in_a_file_names_the_field(text: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"s.yaml:3: {BAD_FILES[text]}"):
        shape(text, tmp_path)

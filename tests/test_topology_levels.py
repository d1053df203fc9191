"""Leaves, pods and groups, found by the ways out that ranks share."""

from taccl.topology.file import load_topology
from taccl.topology.graph import Topology
from taccl.topology.structure import levels_of


def sizes(topology: Topology) -> list[tuple[int, int]]:
    return [(len(parts), len(parts[0])) for parts in levels_of(topology)]


def test_fabrics_have_the_levels_that_they_were_made_of() -> None:
    for name, expected in (
        ("leaf-spine:4x8x2", [(4, 8)]), ("leaf-spine:3x2", [(3, 2)]),
        ("fat-tree:4", [(8, 2), (4, 4)]),
        ("fat-tree:6", [(18, 3), (6, 9)]), ("dragonfly:5x4x2", [(20, 2), (5, 8)]),
    ):  # fmt: skip
        assert sizes(load_topology(name)) == expected, name
    assert levels_of(load_topology("leaf-spine:2x2"))[0] == ((0, 1), (2, 3))


def test_where_no_way_out_is_shared_there_is_no_level() -> None:
    for name in ("hub:8", "ring:5", "torus2d:3x3", "full:4", "leaf-spine:1x4", "dgx1v"):
        assert levels_of(load_topology(name)) == (), name


def test_ranks_at_a_nic_and_servers_are_levels() -> None:
    assert sizes(load_topology("dgx2", nodes=2)) == [(16, 2), (2, 16)]

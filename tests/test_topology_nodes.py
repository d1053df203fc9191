"""Switches of a server that are joined: what crosses them, who reaches whom, and their symmetry."""

from pathlib import Path

import pytest

from taccl.errors import InputError
from taccl.topology.file import load_topology
from taccl.topology.graph import Topology
from taccl.topology.symmetry import vertex_image
from tests.sweep import for_each

BOX = """taccl: topology/1
name: box
node:
  gpus: 4
  switches:
    - {name: plx0, members: [0, 1], bandwidth: 12GB/s, links: [{to: cpu0, bandwidth: 12GB/s}]}
    - {name: plx1, members: [2, 3], bandwidth: 12GB/s, links: [{to: cpu1, bandwidth: 12GB/s}]}
    - {name: cpu0, members: [], links: [{to: sockets, bandwidth: 10GB/s, alpha: 1us}]}
    - {name: cpu1, members: [], links: [{to: sockets, bandwidth: 10GB/s, alpha: 1us}]}
    - {name: sockets, members: []}
  nics:
    - {name: ib0, at: plx0, bandwidth: 12.5GB/s, pcie: {bandwidth: 12GB/s}}
    - {name: ib1, at: plx1, bandwidth: 12.5GB/s, pcie: {bandwidth: 12GB/s}}
count: 2
fabric: {kind: switch, alpha: 1.7us}
"""


def load(text: str, tmp_path: Path, nodes: int | None = None) -> Topology:
    path = tmp_path / "t.yaml"
    path.write_text(text)
    return load_topology(str(path), nodes=nodes)


def path(topology: Topology, src: int, dst: int) -> list[str]:
    (link,) = topology.links_between(src, dst)
    return [topology.edges[edge].name for edge in topology.links.edges_of(link)]


def test_ranks_reach_each_other_up_and_down_a_tree(tmp_path: Path) -> None:
    topology = load(BOX, tmp_path)
    assert path(topology, 0, 1) == ["0->s0/plx0", "s0/plx0->1"]
    assert path(topology, 0, 3) == [
        "0->s0/plx0", "s0/plx0->s0/cpu0", "s0/cpu0->s0/sockets", "s0/sockets->s0/cpu1",
        "s0/cpu1->s0/plx1", "s0/plx1->3",
    ]  # fmt: skip
    assert topology.link(topology.links_between(0, 3)[0]).alpha == 2_000_000


def test_a_nic_at_a_switch_is_used_by_the_ranks_that_are_nearest(tmp_path: Path) -> None:
    topology = load(BOX, tmp_path)
    assert path(topology, 1, 7) == [
        "1->s0/plx0", "s0/plx0->s0/ib0.tx", "s0/ib0.tx->fabric", "fabric->s1/ib1.rx",
        "s1/ib1.rx->s1/plx1", "s1/plx1->7",
    ]  # fmt: skip


def test_without_other_servers_there_are_no_nics(tmp_path: Path) -> None:
    names = {switch.name for switch in load(BOX, tmp_path, 1).switches}
    assert names == {"s0/plx0", "s0/plx1", "s0/cpu0", "s0/cpu1", "s0/sockets"}


def test_a_switch_across_servers_carries_nothing_within(tmp_path: Path) -> None:
    text = BOX.replace("members: [2, 3], bandwidth: 12GB/s,", "members: [2, 3],")
    text = text.replace("links: [", "across: servers, links: [")
    text = text.replace("sockets, members: []", "sockets, across: servers, members: []")
    wires = "  wires: [{from: 0, to: 1}, {from: 1, to: 2}, {from: 2, to: 3}]\n"
    text = text.replace("  gpus: 4\n", f"  gpus: 4\n{wires}")
    topology = load(text, tmp_path)
    assert topology.links_between(0, 3) == ()
    assert "s0/plx0->s0/ib0.tx" in path(topology, 0, 4)
    assert load(text, tmp_path, 1).switches == ()


def test_equal_halves_of_a_tree_are_exchanged(tmp_path: Path) -> None:
    topology = load(BOX, tmp_path)
    assert (2, 3, 0, 1, 6, 7, 4, 5) in topology.rotations
    for rotation in topology.rotations:
        vertex_image(topology, rotation)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("members: [2, 3], bandwidth: 12GB/s", "members: [2, 3], bandwidth: 13GB/s"),
        ("links: [{to: cpu1, bandwidth: 12GB/s}]", "links: [{to: cpu1, bandwidth: 13GB/s}]"),
        ("at: plx1, bandwidth: 12.5GB/s", "at: plx1, bandwidth: 13GB/s"),
        ("at: plx1", "at: cpu1"),
        ("pcie: {bandwidth: 12GB/s}}\ncount", "pcie: {bandwidth: 13GB/s}}\ncount"),
        ("{to: sockets, bandwidth: 10GB/s, alpha: 1us}", "{to: sockets, bandwidth: 10GB/s}"),
        ("sockets, members: []", "sockets, members: [], links: [{to: plx0, bandwidth: 1GB/s}]"),
    ],
)
def test_unequal_halves_are_not_exchanged(tmp_path: Path, old: str, new: str) -> None:
    assert old in BOX
    topology = load(BOX.replace(old, new, 1), tmp_path)
    assert topology.rotations == ((4, 5, 6, 7, 0, 1, 2, 3),)
    vertex_image(topology, topology.rotations[0])


@for_each(
    ("old", "new", "message"),
    [
        ("to: cpu0", "to: cpu7", r"switches\[0\].links\[0\].to: there is no other switch 'cpu7'"),
        ("to: cpu0", "to: plx0", "there is no other switch 'plx0'"),
        ("sockets, members: []", "sockets, members: [], links: [{to: cpu0}]", "joined already"),
        ("at: plx0", "at: plx9", r"nics\[0\].at: there is no switch 'plx9'"),
        ("at: plx0, ", "", r"nics\[0\].gpus: is missing"),
        ("at: plx0", "at: plx0, gpus: [0]", "gpus and at are both given"),
        ("members: [0, 1]", "members: [0, 4]", "there is no GPU 4"),
        ("members: [0, 1]", "members: none", "should be numbers of GPUs"),
        ("to: cpu0, bandwidth: 12GB/s", "to: cpu0, bandwidth: 0", "should be greater than 0"),
        ("name: sockets", "name: sockets, across: racks", "should be 'servers'"),
        (
            "sockets, members: []",
            "ib1.tx, members: []",
            r"nics\[1\].name: 'ib1.tx' is there already",
        ),
        ("name: sockets, members: []", "name: sockets}\n    - {name: ib0.rx", "'ib0.rx' is there"),
        ("name: ib1,", "name: ib0.tx,", r"nics\[1\].name: 'ib0.tx' is there already"),
        ("name: ib0,", "name: ib1.rx,", r"nics\[1\].name: 'ib1.rx' is there already"),
    ],
)
def test_a_wrong_tree_is_one_clear_error(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in BOX
    with pytest.raises(InputError, match=message):
        load(BOX.replace(old, new, 1), tmp_path)

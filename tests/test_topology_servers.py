"""Servers and fabrics: what each expands to, and the symmetries the template declares."""

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import pytest

from taccl.errors import InputError
from taccl.topology.file import load_topology
from taccl.topology.graph import Topology
from taccl.topology.symmetry import free_group, make_group
from tests.sweep import for_each

HEAD = "taccl: topology/1\nname: t\n"
# Two GPUs on a switch; one NIC that both use.
SHARED = """\
node:
  gpus: 2
  switches: [{name: sw, members: 0-1, bandwidth: 100GB/s, alpha: 3ps}]
  nics: [{name: ib0, gpus: [0, 1], bandwidth: 10GB/s}]
"""
# Two GPUs on a switch; a NIC for each.
OWN = """\
node:
  gpus: 2
  switches: [{name: sw, bandwidth: 100GB/s, alpha: 4ps}]
  nics:
  - {name: ib0, gpus: 0, bandwidth: 10GB/s}
  - {name: ib1, gpus: 1, bandwidth: 10GB/s}
"""


def load(text: str, path: Path, *, nodes: int | None = None, fabric: str | None = None) -> Topology:
    file = path / "t.yaml"
    file.write_text(HEAD + text)
    return load_topology(str(file), nodes=nodes, fabric=fabric)


def path_of(topology: Topology, src: int, dst: int) -> list[str]:
    """Return the switches on the only link from src to dst."""
    (link,) = topology.links_between(src, dst)
    edges = [topology.edges[e] for e in topology.link(link).edges]
    return [topology.vertex_name(e.head) for e in edges[:-1]]


def pairs(topology: Topology, ranks: Sequence[int]) -> set[tuple[int, int]]:
    """Return which of some ranks have a link."""
    return {(a, b) for a in ranks for b in ranks if topology.links_between(a, b)}


def test_one_server_has_neither_nics_nor_fabric(tmp_path: Path) -> None:
    found = load(SHARED, tmp_path)
    assert [s.name for s in found.switches] == ["s0/sw"]
    # 100 GB/s is 10 ps a byte; 3 ps of latency are 1 and 2.
    edges: list[object] = [(e.name, e.alpha, e.beta) for e in found.edges]
    assert edges == [
        ("0->s0/sw", 1, 10), ("s0/sw->0", 2, 10), ("1->s0/sw", 1, 10), ("s0/sw->1", 2, 10),
    ]  # fmt: skip


def test_a_nic_is_two_vertices_and_its_bandwidth_is_towards_the_fabric(tmp_path: Path) -> None:
    found = load(SHARED + "count: 2\nfabric: {kind: switch, alpha: 5ps}\n", tmp_path)
    edges: dict[str, object] = {
        e.name: (e.alpha, e.beta) for e in found.edges if "s0/ib0" in e.name
    }
    # 10 GB/s is 100 ps a byte; 5 ps of latency are 2 and 3.
    assert edges == {
        "0->s0/ib0.tx": (0, None), "1->s0/ib0.tx": (0, None),
        "s0/ib0.rx->0": (0, None), "s0/ib0.rx->1": (0, None),
        "s0/ib0.tx->fabric": (2, 100), "fabric->s0/ib0.rx": (3, 100),
    }  # fmt: skip


def test_a_message_between_servers_crosses_nic_fabric_nic(tmp_path: Path) -> None:
    found = load(SHARED + "count: 2\nfabric: {kind: switch, alpha: 5ps}\n", tmp_path)
    assert path_of(found, 0, 3) == ["s0/ib0.tx", "fabric", "s1/ib0.rx"]
    link = found.link(found.links_between(0, 3)[0])
    assert (link.alpha, found.arrival(link.id, 7)) == (5, 5 + 700)


def test_the_fabric_carries_nothing_inside_a_server(tmp_path: Path) -> None:
    found = load(SHARED + "count: 2\nfabric: {kind: switch}\n", tmp_path)
    assert {s.name for s in found.switches if s.across_servers} == {"fabric"}
    assert path_of(found, 0, 1) == ["s0/sw"]


def test_ranks_know_their_server(tmp_path: Path) -> None:
    found = load(SHARED + "count: 3\nfabric: {kind: switch}\n", tmp_path)
    assert found.server_of == (0, 0, 1, 1, 2, 2)


def test_pcie_gives_the_edges_between_gpu_and_nic_a_cost(tmp_path: Path) -> None:
    text = SHARED.replace("10GB/s}]", "10GB/s, pcie: {bandwidth: 20GB/s, alpha: 7ps}}]")
    found = load(text + "count: 2\nfabric: {kind: switch}\n", tmp_path)
    edges: dict[str, object] = {
        e.name: (e.alpha, e.beta) for e in found.edges if e.name.startswith("0->s0/ib0")
    }
    assert edges == {"0->s0/ib0.tx": (7, 50)}


def test_wires_join_gpus_of_every_server(tmp_path: Path) -> None:
    text = """\
node:
  gpus: 2
  wires: [{from: 0, to: 1, bandwidth: 25GB/s, alpha: 1us}]
  nics: [{name: n, gpus: all, bandwidth: 1GB/s}]
count: 2
fabric: {kind: switch}
"""
    found = load(text, tmp_path)
    direct: list[object] = [
        (e.tail, e.head, e.beta) for e in found.edges if max(e.tail, e.head) < 4
    ]
    assert direct == [(0, 1, 40), (1, 0, 40), (2, 3, 40), (3, 2, 40)]


def test_overhead_is_split_like_alpha(tmp_path: Path) -> None:
    text = SHARED.replace("alpha: 3ps", "alpha: 3ps, overhead: 1ps")
    assert [e.overhead for e in load(text, tmp_path).edges] == [0, 1, 0, 1]


def test_on_a_switch_fabric_any_nic_reaches_any_nic(tmp_path: Path) -> None:
    found = load(OWN + "count: 2\nfabric: {kind: switch}\n", tmp_path)
    assert path_of(found, 0, 3) == ["s0/ib0.tx", "fabric", "s1/ib1.rx"]


def test_on_rails_a_nic_reaches_its_own_index_only(tmp_path: Path) -> None:
    found = load(OWN + "count: 2\nfabric: {kind: rail}\n", tmp_path)
    assert path_of(found, 0, 2) == ["s0/ib0.tx", "rail0", "s1/ib0.rx"]
    assert found.links_between(0, 3) == ()


def test_a_spine_joins_the_rails(tmp_path: Path) -> None:
    text = (
        OWN + "count: 2\nfabric: {kind: rail, alpha: 10ps, spine: {bandwidth: 5GB/s, alpha: 3ps}}\n"
    )
    found = load(text, tmp_path)
    assert path_of(found, 0, 3) == ["s0/ib0.tx", "rail0", "spine", "rail1", "s1/ib1.rx"]
    link = found.link(found.links_between(0, 3)[0])
    # fabric 10 ps and spine 3 ps; 5 GB/s is 200 ps a byte, the slowest on the way
    assert (link.alpha, found.arrival(link.id, 1)) == (13, 213)


def test_a_spine_can_be_said_by_its_bandwidth_alone(tmp_path: Path) -> None:
    found = load(OWN + "count: 2\nfabric: {kind: rail, spine: 5GB/s}\n", tmp_path)
    assert {e.beta for e in found.edges if "spine" in e.name} == {200}


def test_servers_are_spread_evenly_over_leaves(tmp_path: Path) -> None:
    text = SHARED + "count: 5\nfabric: {kind: leaf-spine, leaves: 2, uplink: 5GB/s}\n"
    found = load(text, tmp_path)
    leaves = [path_of(found, 2 * s, 2 * ((s + 1) % 5))[1] for s in range(5)]
    # server * 2 // 5
    assert leaves == ["leaf0", "leaf0", "leaf0", "leaf1", "leaf1"]


def test_leaves_share_one_spine_with_the_pooled_bandwidth(tmp_path: Path) -> None:
    text = SHARED + "count: 4\nfabric: {kind: leaf-spine, leaves: 2, uplink: 5GB/s}\n"
    found = load(text, tmp_path)
    assert path_of(found, 0, 2) == ["s0/ib0.tx", "leaf0", "s1/ib0.rx"]
    assert path_of(found, 0, 7) == ["s0/ib0.tx", "leaf0", "spine", "leaf1", "s3/ib0.rx"]
    assert {e.beta for e in found.edges if "spine" in e.name} == {200}


@pytest.mark.parametrize(
    ("over", "uplinks"),
    # Three servers on the first leaf and two on the second, with a NIC of 10 GB/s each.
    [("1", (30, 20)), ("2", (15, 10)), ("1.5", (20, 40 / 3))],
)
def test_an_oversubscribed_leaf_sends_a_part_of_what_its_nics_send(
    tmp_path: Path, over: str, uplinks: tuple[float, float]
) -> None:
    fabric = f"{{kind: leaf-spine, leaves: 2, oversubscription: {over}, uplink: {{alpha: 1us}}}}"
    found = load(SHARED + f"count: 5\nfabric: {fabric}\n", tmp_path)
    edges = {e.name: e for e in found.edges}
    for leaf, rate in enumerate(uplinks):
        for name in (f"leaf{leaf}->spine", f"spine->leaf{leaf}"):
            assert float(1000 / (edges[name].beta or 1)) == pytest.approx(rate)
            assert edges[name].alpha == 500_000


def test_one_leaf_needs_no_spine(tmp_path: Path) -> None:
    text = SHARED + "count: 2\nfabric: {kind: leaf-spine, leaves: 1, uplink: 5GB/s}\n"
    assert "spine" not in {s.name for s in load(text, tmp_path).switches}


def test_in_a_torus_a_nic_is_wired_to_the_same_nic_of_each_neighbour(tmp_path: Path) -> None:
    found = load(OWN + "count: 3\nfabric: {kind: torus, dims: [3], alpha: 5ps}\n", tmp_path)
    assert path_of(found, 0, 2) == ["s0/ib0.tx", "s1/ib0.rx"]
    edges: dict[str, object] = {
        e.name: (e.alpha, e.beta) for e in found.edges if e.name.startswith("s0/ib0.tx")
    }
    assert edges == {"s0/ib0.tx->s1/ib0.rx": (5, 100), "s0/ib0.tx->s2/ib0.rx": (5, 100)}


def test_in_a_mesh_there_is_no_way_round(tmp_path: Path) -> None:
    found = load(OWN + "count: 3\nfabric: {kind: mesh, dims: [3]}\n", tmp_path)
    assert pairs(found, (0, 2, 4)) == {(0, 2), (2, 0), (2, 4), (4, 2)}


def test_the_slower_of_two_nics_is_the_bandwidth_of_a_torus_wire(tmp_path: Path) -> None:
    nodes = "nodes:\n" + "".join(
        f"- {{gpus: 1, nics: [{{name: n, gpus: 0, bandwidth: {rate}GB/s}}]}}\n" for rate in (10, 5)
    )
    found = load(nodes + "fabric: {kind: torus, dims: [2]}\n", tmp_path)
    assert [e.beta for e in found.edges if e.beta] == [200, 200]


def test_servers_can_differ(tmp_path: Path) -> None:
    text = """\
nodes:
- {gpus: 1, nics: [{name: a, gpus: all, bandwidth: 10GB/s}]}
- {gpus: 2, wires: [{from: 0, to: 1}], nics: [{name: b, gpus: 1, bandwidth: 5GB/s}]}
fabric: {kind: switch}
"""
    found = load(text, tmp_path)
    assert found.server_of == (0, 1, 1)
    assert path_of(found, 0, 2) == ["s0/a.tx", "fabric", "s1/b.rx"]
    assert found.rotations == ()


def test_nodes_overrides_the_count(tmp_path: Path) -> None:
    text = SHARED + "count: 2\nfabric: {kind: switch}\n"
    assert load(text, tmp_path, nodes=4).num_ranks == 8
    assert load(text, tmp_path, nodes=1).num_ranks == 2


def test_fabric_overrides_the_kind_and_keeps_the_latency(tmp_path: Path) -> None:
    text = OWN + "count: 2\nfabric: {kind: rail, alpha: 6ps, spine: 1GB/s}\n"
    found = load(text, tmp_path, fabric="switch")
    assert path_of(found, 0, 3) == ["s0/ib0.tx", "fabric", "s1/ib1.rx"]
    assert found.link(found.links_between(0, 3)[0]).alpha == 6


SYMMETRIC = {
    "shared nic": (SHARED + "count: 3\nfabric: {kind: switch}\n", 6),
    "own nics": (OWN + "count: 3\nfabric: {kind: switch}\n", 6),
    "rails": (OWN + "count: 3\nfabric: {kind: rail, spine: 5GB/s}\n", 6),
    "leaves": (OWN + "count: 4\nfabric: {kind: leaf-spine, leaves: 2, uplink: 5GB/s}\n", 8),
    "uneven leaves": (OWN + "count: 3\nfabric: {kind: leaf-spine, leaves: 2, uplink: 5GB/s}\n", 2),
    "torus": (OWN + "count: 6\nfabric: {kind: torus, dims: [2, 3]}\n", 12),
    "mesh": (OWN + "count: 4\nfabric: {kind: mesh, dims: [2, 2]}\n", 8),
    "one server": (OWN, 2),
    "equal nodes": (
        "nodes:\n"
        + "- {gpus: 1, nics: [{name: n, gpus: 0, bandwidth: 1}]}\n" * 3
        + "fabric: {kind: switch}\n",
        3,
    ),
}


@for_each("text, order", SYMMETRIC.values(), ids=SYMMETRIC)
def test_the_declared_rotations_are_symmetries(text: str, order: int, tmp_path: Path) -> None:
    topology = load(text, tmp_path)
    assert len(make_group(topology, topology.rotations)) == order


def test_gpus_in_pairs_on_a_nic_turn_by_pairs(tmp_path: Path) -> None:
    text = """\
node:
  gpus: 4
  switches: [{name: sw, bandwidth: 100GB/s}]
  nics:
  - {name: a, gpus: 0-1, bandwidth: 10GB/s}
  - {name: b, gpus: 2-3, bandwidth: 10GB/s}
fabric: {kind: switch}
"""
    assert load(text, tmp_path).rotations == ((1, 2, 3, 0),)
    two = load(text, tmp_path, nodes=2)
    # the servers swap; inside both servers by two
    assert two.rotations == ((4, 5, 6, 7, 0, 1, 2, 3), (2, 3, 0, 1, 6, 7, 4, 5))
    assert len(free_group(two, two.rotations)) == 4


def test_listed_rotations_are_applied_in_every_server(tmp_path: Path) -> None:
    wires = "wires: [{from: 0, to: 1}, {from: 1, to: 2, bandwidth: 1}]"
    text = f"node: {{gpus: 3, {wires}, rotations: [[2, 1, 0]], {NIC}}}\nfabric: {{kind: switch}}\n"
    assert load(text, tmp_path, nodes=2).rotations == ((3, 4, 5, 0, 1, 2), (2, 1, 0, 5, 4, 3))


def test_a_server_without_any_step_declares_none(tmp_path: Path) -> None:
    text = "node: {gpus: 3, wires: [{from: 0, to: 1}, {from: 1, to: 2}]}\n"
    assert load(text, tmp_path).rotations == ()


def node(text: str) -> str:
    return f"node: {{gpus: 2, {text}}}\n"


SW = "switches: [{name: sw, bandwidth: 1}]"
NIC = "nics: [{name: n, gpus: all, bandwidth: 1}]"
TWO = "count: 2\n"
FULL = node(f"{SW}, {NIC}") + TWO

BAD = {
    "neither": ("count: 2\n", r"node: is missing"),
    "both": (node(SW) + "nodes: [{gpus: 2}]\n", r":4: nodes: node and nodes are both given"),
    "null": ("node: null\n", r"node: is missing"),
    "count of nodes": (
        "nodes: [{gpus: 2}]\ncount: 3\n",
        r"nodes: lists 1 servers, so their number",
    ),
    "zero count": (node(SW) + "count: 0\n", r"count: should be at least 1, got 0"),
    "many": (node(SW) + "count: 9000\n", r"count: should be at most 8192, got 9000"),
    "ranks": (
        "node: {gpus: 65536}\ncount: 2\n",
        r"count: 2 servers make 131072 ranks, more than 65536",
    ),
    "edges": (
        "node: {gpus: 1000, switches: [" + ", ".join(f"{{name: s{i}}}" for i in range(50)) + "]}\n"
        "count: 65\n",
        r"count: makes more than 1200000 edges",
    ),
    "member": (
        node("switches: [{name: sw, members: 0-15}]"),
        r"node.switches\[0\].members: there is no GPU 15 in a server of 2",
    ),
    "nic member": (
        node(f"{SW}, nics: [{{name: n, gpus: 2, bandwidth: 1}}]"),
        r"node.nics\[0\].gpus: there is no GPU 2",
    ),
    "wire": (node("wires: [{from: 0, to: 2}]"), r"node.wires\[0\].to: there is no GPU 2"),
    "wire loop": (
        node("wires: [{from: 1, to: 1}]"),
        r"node.wires\[0\]: a wire from GPU 1 to itself",
    ),
    "wire twice": (
        node("wires: [{from: 0, to: 1}, {from: 1, to: 0}]"),
        r"node.wires\[1\]: wire 1->0 is there already",
    ),
    "wire name": (
        node("wires: [{from: 0, to: 1, name: a}, {from: 1, to: 0, name: a}]"),
        r"node.wires\[1\].name: 'a' is there already",
    ),
    "device name": (
        node("switches: [{name: n}], nics: [{name: n, gpus: 0, bandwidth: 1}]"),
        r"node.nics\[0\].name: 'n' is there already",
    ),
    "nic speed": (node("nics: [{name: n, gpus: 0}]"), r"node.nics\[0\].bandwidth: is missing"),
    "nic without gpus": (
        node("nics: [{name: n, bandwidth: 1}]"),
        r"node.nics\[0\].gpus: is missing",
    ),
    "overhead": (
        node("switches: [{name: s, alpha: 1us, overhead: 2us}]"),
        r"node.switches\[0\]: overhead .* more than alpha",
    ),
    "rotation": (
        node(f"{SW}, rotations: [[0, 0]]"),
        r"node.rotations\[0\]: should be a permutation of 0..1",
    ),
    "no fabric": (FULL, r"fabric: is missing, with 2 servers"),
    "no nics": (node(SW) + TWO + "fabric: {kind: switch}\n", r"node.nics: is missing"),
    "fabric none": (FULL + "fabric: {kind: none}\n", r"rank 2 can't be reached from rank 0"),
    "fabric kind": (
        node(SW) + "fabric: {kind: star}\n",
        r"fabric.kind: should be 'switch', .* got 'star'",
    ),
    "leaves": (
        FULL + "fabric: {kind: leaf-spine, uplink: 1}\n",
        r"fabric.leaves: is missing for a leaf-spine fabric\n  fix: write leaves: 2",
    ),
    "no uplink": (
        FULL + "fabric: {kind: leaf-spine, leaves: 2}\n",
        r"fabric.uplink: is missing for a leaf-spine fabric\n  fix: write uplink: 100GB/s, or over",
    ),
    "two uplinks": (
        FULL + "fabric: {kind: leaf-spine, leaves: 2, uplink: 1, oversubscription: 2}\n",
        r"fabric.oversubscription: is given beside the bandwidth of the uplink",
    ),
    "no oversubscription": (
        FULL + "fabric: {kind: leaf-spine, leaves: 2, oversubscription: 0.5}\n",
        r"fabric.oversubscription: should be at least 1, got 0.5",
    ),
    "stray oversubscription": (
        FULL + "fabric: {kind: switch, oversubscription: 2}\n",
        r"fabric.oversubscription: a switch fabric has no oversubscription",
    ),
    "many leaves": (
        FULL + "fabric: {kind: leaf-spine, leaves: 3, uplink: 1}\n",
        r"fabric.leaves: 3 leaves for 2 servers",
    ),
    "dims": (
        FULL + "fabric: {kind: torus, dims: [3]}\n",
        r"fabric.dims: dims make 3 servers, there are 2",
    ),
    "stray field": (
        FULL + "fabric: {kind: switch, spine: 1}\n",
        r"fabric.spine: a switch fabric has no spine",
    ),
    "fabric overhead": (
        FULL + "fabric: {kind: switch, overhead: 1us}\n",
        r"fabric: overhead .* more than alpha",
    ),
    "rails apart": (
        "node:\n  gpus: 2\n" + OWN[OWN.index("  nics") :] + TWO + "fabric: {kind: rail}\n",
        r"rank 1 can't be reached from rank 0",
    ),
}


@for_each("text, match", BAD.values(), ids=BAD)
def test_a_bad_server_file_is_one_error_with_field_and_fix(
    text: str, match: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=rf"t.yaml.*{match}") as error:
        load(text, tmp_path)
    assert error.value.fix


@pytest.mark.parametrize("count", [0, -1, 9000])
def test_the_number_of_servers_is_bounded_on_the_command_line(count: int, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"^--nodes: should be from 1 to 8192, got {count}"):
        load(SHARED, tmp_path, nodes=count)


def test_an_unknown_fabric_on_the_command_line_lists_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"^--fabric: unknown fabric 'star'\n  fix: use switch, rail"
    ):
        load(SHARED, tmp_path, fabric="star")


def test_listed_servers_can_not_be_multiplied(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nodes: lists 1 servers, so their number can't be set"):
        load("nodes: [{gpus: 2}]\n", tmp_path, nodes=2)


def test_too_many_ranks_by_the_command_line_name_the_option(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--nodes: 8192 servers make 73728 ranks"):
        load("node: {gpus: 9}\n", tmp_path, nodes=8192)


def test_the_beta_of_a_named_constant_is_exact() -> None:
    betas = {e.beta for e in load_topology("dgx2", nodes=2).edges}
    assert betas == {Fraction(8), Fraction(106), None}

"""What two topologies have not in common is named, and nothing else."""

from dataclasses import replace

import pytest

from taccl.report.differences import (
    MAX_BOUND_RANKS,
    differences,
    differences_fields,
    differences_text,
)
from taccl.topology.edit import degrade, read_loss
from taccl.topology.file import load_topology
from taccl.topology.graph import Topology
from tests.generators import random_topology
from tests.sweep import for_each


@for_each("seed", range(10))
def test_a_topology_is_the_same_as_itself_under_any_name(seed: int) -> None:
    topology = random_topology(seed)
    found = differences(topology, replace(topology, name="other"))
    assert found.same
    assert [*found.edges, *found.added, *found.removed, *found.changed] == []
    assert differences_text(found) == "the same but for the name"
    assert differences_text(differences(topology, topology)) == "the same"


def test_a_ring_is_a_mesh_with_one_wire_more() -> None:
    found = differences(load_topology("ring:4"), load_topology("mesh:4"))
    assert not found.same
    assert [change.name for change in found.edges] == ["3->0", "0->3"]
    assert all(change.after is None for change in found.edges)
    assert found.removed == ((0, 3), (3, 0))
    assert found.added == found.changed == ()
    turned = differences(load_topology("mesh:4"), load_topology("ring:4"))
    assert (turned.added, turned.removed) == (found.removed, found.added)
    assert "2 edges gone: 50 GB/s, 0.7 us, such as 3->0" in differences_text(found)
    assert "2 edges added: 50 GB/s, 0.7 us, such as 3->0" in differences_text(turned)


def test_facts_stand_side_by_side() -> None:
    found = differences(load_topology("dgx-a100"), load_topology("dgx-h100", nodes=2)).facts
    assert found["ranks"] == (8, 16)
    assert found["servers"] == ("1 of 8", "2 of 8")
    assert found["send_gbps"] == ([300.0], [500.0])
    assert found["symmetries"] == (8, 16)
    # 7 MB by 300 GB/s and three rounds of 0.7 us
    assert found["allgather_bound_us"][0] == pytest.approx(7000 / 300 + 3 * 0.7)


def test_bounds_are_for_a_megabyte_of_each_rank() -> None:
    found = differences(load_topology("hub:4"), load_topology("hub:8")).facts
    # 3 MB and 7 MB into a rank by 50 GB/s, in two and three rounds of 0.7 us.
    assert found["allgather_bound_us"] == pytest.approx((60 + 2 * 0.7, 140 + 3 * 0.7))
    # 3/4 and 7/8 of 1 MB out of it, a message for each other rank: fewer would be relayed.
    assert found["alltoall_bound_us"] == pytest.approx((15 + 3 * 0.7, 17.5 + 7 * 0.7))


def test_bounds_are_left_out_where_they_take_long() -> None:
    many = load_topology(f"ring:{MAX_BOUND_RANKS + 1}")
    assert differences(many, many).facts["alltoall_bound_us"] == (None, None)


def test_slower_edges_are_changed_and_so_are_the_links_that_cross_them() -> None:
    whole = load_topology("dgx-a100")
    slow, _ = degrade(whole, [read_loss("--edge", "s0/nvswitch->3=0.5", None)])
    found = differences(whole, slow)
    (change,) = found.edges
    assert change.name == "s0/nvswitch->3"
    assert found.changed == tuple((src, 3) for src in range(8) if src != 3)
    text = differences_text(found)
    assert "1 edge changed: 300 GB/s, 0.35 us -> 150 GB/s, 0.35 us, such as" in text
    assert "links of 7 pairs with other bandwidth, alpha or number, such as 0 -> 3" in text
    assert "a rank receives (GB/s)" in text
    assert "<- differs" in text


def local(topology: Topology) -> Topology:
    return replace(topology, local=replace(topology.local, launch=5))


def test_what_only_a_file_says_is_told_too() -> None:
    ring = load_topology("ring:4")
    found = differences(ring, local(ring))
    assert not found.same
    assert differences_text(found).endswith("declared rotations or local costs only")


def test_rotations_that_are_no_symmetries_have_no_order() -> None:
    ring = load_topology("ring:4")
    found = differences(ring, replace(ring, rotations=((1, 0, 2, 3),)))
    assert found.facts["symmetries"] == (4, None)


def test_an_edge_that_leads_elsewhere_is_told() -> None:
    ring = load_topology("ring:4")
    first = ring.edges[0]
    moved = replace(ring, edges=(replace(first, head=2), *ring.edges[1:]))
    assert "1 edge with other ends, such as 0->1" in differences_text(differences(ring, moved))


def test_the_fields_list_every_edge() -> None:
    found = differences_fields(differences(load_topology("ring:3"), load_topology("ring:3@25GB/s")))
    edges = found["edges"]
    assert isinstance(edges, dict)
    assert [edge["name"] for edge in edges["changed"]] == [
        "0->1", "1->0", "1->2", "2->1", "2->0", "0->2",
    ]  # fmt: skip
    change = edges["changed"][0]
    assert (change["a"]["bandwidth_gbps"], change["b"]["bandwidth_gbps"]) == (50, 25)
    pairs = [[src, dst] for src in range(3) for dst in range(3) if src != dst]
    assert found["links"] == {"added": [], "removed": [], "changed": pairs}


def test_more_kinds_of_edges_than_can_be_read_are_counted() -> None:
    ring = load_topology("ring:10")
    edges = tuple(replace(e, alpha=e.alpha + e.id) for e in ring.edges)
    text = differences_text(differences(ring, replace(ring, edges=edges)))
    assert "11 more kinds of edges that differ: see --json" in text

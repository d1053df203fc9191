"""Every shipped topology and sketch loads, is connected, and has the symmetries it declares."""

import json
from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from taccl.bounds import any_bounds, best
from taccl.files import read_document
from taccl.sketch import apply_sketch, load_sketch, shipped_sketches
from taccl.topology.file import (
    load_topology,
    shipped_topologies,
    topology_digest,
    topology_document,
    topology_from_document,
    unreachable_pair,
)
from taccl.topology.graph import Topology, whole
from taccl.topology.lint import lint
from taccl.topology.structure import rank_rates
from taccl.topology.symmetry import free_group, make_group
from tests.sweep import for_each

ROOT = Path(__file__).parent.parent
SERVER_FILES = (
    "dgx-a100", "dgx-b200", "dgx-h100", "dgx1v", "dgx2", "gb200-nvl72", "h100-sharp", "h800-rail",
    "mi250", "mi300x", "ndv2", "pcie-a100",
)  # fmt: skip
ALL = [(name, None) for name in shipped_topologies()] + [
    (name, nodes) for name in SERVER_FILES for nodes in (2, 3, 4)
]


@for_each(("name", "nodes"), ALL)
def test_a_shipped_topology_loads_connected_and_without_warnings(
    name: str, nodes: int | None
) -> None:
    topology = load_topology(name, nodes=nodes)
    assert unreachable_pair(topology) is None
    assert topology.name == name
    assert lint(topology) == ()


@for_each(("name", "nodes"), ALL)
def test_the_rotations_of_a_shipped_topology_are_symmetries(name: str, nodes: int | None) -> None:
    topology = load_topology(name, nodes=nodes)
    assert len(make_group(topology, topology.rotations)) > 1


@for_each(("name", "nodes"), ALL)
def test_a_shipped_topology_survives_its_document(name: str, nodes: int | None) -> None:
    topology = load_topology(name, nodes=nodes)
    again = topology_from_document(topology_document(topology))
    assert (again.edges, again.rotations) == (topology.edges, topology.rotations)
    assert topology_digest(again) == topology_digest(topology)


@for_each(
    ("name", "nodes", "order"),
    # Free: moves every rank and every edge. NDv2's one NIC stays where it is inside a server.
    [("ndv2", 1, 4), ("ndv2", 2, 2), ("ndv2", 4, 4), ("dgx2", 1, 16), ("dgx2", 2, 16),
     ("dgx2", 4, 32), ("dgx-a100", 1, 8), ("dgx-a100", 2, 16), ("dgx-h100", 2, 16),
     ("h800-rail", 4, 32), ("mi250", 1, 4), ("mi250", 2, 8), ("dgx1v", 1, 4), ("dgx1v", 2, 4),
     ("dgx-b200", 2, 16), ("gb200-nvl72", 2, 144), ("mi300x", 2, 16), ("pcie-a100", 1, 4),
     ("torus2d", None, 16),
     ("torus3d", None, 64), ("hypercube", None, 16), ("ring", None, 8), ("hub", None, 8)],
)  # fmt: skip
def test_a_large_part_of_the_symmetries_acts_freely(
    name: str, nodes: int | None, order: int
) -> None:
    topology = load_topology(name, nodes=nodes)
    assert len(free_group(topology, topology.rotations)) == order


def rates(topology: Topology, src: int, dst: int) -> tuple[int, set[Fraction | None]]:
    """Return the latency and the betas of the only link between two ranks."""
    (link,) = topology.links_between(src, dst)
    record = topology.link(link)
    return record.alpha, {topology.edges[e].beta for e in record.edges}


def test_ndv2_is_the_hybrid_cube_mesh_with_one_nic() -> None:
    topology = load_topology("ndv2", nodes=2)
    double = {(0, 1), (0, 4), (1, 3), (2, 3), (2, 6), (4, 5), (5, 7), (6, 7)}
    single = {(0, 2), (0, 3), (1, 2), (1, 5), (3, 7), (4, 6), (4, 7), (5, 6)}
    found = {
        (e.tail, e.head): e.beta for e in topology.edges if e.tail < e.head < 8
    }  # fmt: skip
    expected = dict.fromkeys(double, Fraction(23)) | dict.fromkeys(single, Fraction(46))
    assert found == expected
    assert rates(topology, 0, 1) == (700_000, {Fraction(23)})
    assert rates(topology, 3, 12) == (1_700_000, {None, Fraction(106)})
    # GPUs without NVLink between them have no link: the NIC does not turn messages round.
    assert topology.links_between(0, 5) == ()


def test_dgx2_has_a_full_switch_and_a_nic_for_two_gpus() -> None:
    topology = load_topology("dgx2", nodes=2)
    assert rates(topology, 0, 15) == (700_000, {Fraction(8)})
    assert rates(topology, 0, 31) == (1_700_000, {None, Fraction(106)})
    first, second, third = (
        topology.link(topology.links_between(src, 20)[0]).edges[1] for src in (0, 1, 2)
    )
    assert first == second != third


def test_dgx_a100_is_on_rails_unless_told_otherwise() -> None:
    topology = load_topology("dgx-a100", nodes=2)
    # 300 GB/s and 25 GB/s are 10/3 and 40 ps a byte
    assert rates(topology, 0, 1) == (700_000, {Fraction(10, 3)})
    assert rates(topology, 0, 8) == (1_700_000, {None, Fraction(40)})
    assert topology.links_between(0, 9) == ()
    switched = load_topology("dgx-a100", nodes=2, fabric="switch")
    assert rates(switched, 0, 9) == (1_700_000, {None, Fraction(40)})


@pytest.mark.parametrize(
    ("name", "inside", "outside"), [("dgx-h100", 450, "50"), ("h800-rail", 150, "45.5")]
)
def test_machines_on_rails_differ_in_their_bandwidths(name: str, inside: int, outside: str) -> None:
    topology = load_topology(name, nodes=2)
    assert rates(topology, 0, 1) == (700_000, {Fraction(1000, inside)})
    assert rates(topology, 0, 8) == (1_700_000, {None, 1000 / Fraction(outside)})
    assert topology.links_between(0, 9) == ()


@pytest.mark.parametrize("nodes", [1, 2])
def test_mi250_is_forestcolls(nodes: int) -> None:
    file = ROOT.parent / "shared/data/topologies" / f"forestcoll_mi250_{nodes}node.json"
    if not file.exists():
        pytest.skip(f"ForestColl's graph is not at {file}")
    graph = json.loads(file.read_text())["edges"]
    topology = load_topology("mi250", nodes=nodes)
    n = topology.num_ranks
    wires = {(e["src"], e["dst"]): Fraction(1000, e["bandwidth_GBps"])
             for e in graph if max(e["src"], e["dst"]) < n}  # fmt: skip
    assert {(e.tail, e.head): e.beta for e in topology.edges if max(e.tail, e.head) < n} == wires
    if nodes == 2:
        assert {e["bandwidth_GBps"] for e in graph if e["src"] == n} == {16}
        assert rates(topology, 0, 31) == (1_700_000, {None, Fraction(1000, 16)})


def halved(topology: Topology, half: Collection[int]) -> Fraction:
    """Return the GB/s that can leave some of the ranks, by a maximum flow of another library."""
    count = topology.num_ranks + len(topology.switches)
    rates = [None if e.beta is None else 1000 / e.beta for e in topology.edges]
    scale = 10
    assert all(rate is None or (rate * scale).denominator == 1 for rate in rates)
    endless = int(sum(rate or 0 for rate in rates) * scale) + 1
    capacity = Counter[tuple[int, int]]()
    for edge, rate in zip(topology.edges, rates, strict=True):
        capacity[edge.tail, edge.head] += endless if rate is None else int(rate * scale)
    capacity.update({(count, r) if r in half else (r, count + 1): endless
                     for r in range(topology.num_ranks)})  # fmt: skip
    ends = np.array(list(capacity), dtype=np.int32).T
    widths = np.array(list(capacity.values()), dtype=np.int32)
    graph = csr_array((widths, (ends[0], ends[1])), shape=(count + 2, count + 2))
    return Fraction(int(maximum_flow(graph, count, count + 1).flow_value), scale)


@for_each(
    ("name", "nodes", "rate", "half", "bisection"),
    # By hand from the data sheets: what a GPU sends (its wires or its port, and its share of the
    # NICs), and what half of the GPUs can send to the others.
    [
        # Six NVLinks of 25; the halves of the cube are joined by 2 + 2 + 1 + 1 of them.
        ("dgx1v", 1, "150", range(4), "150"),
        # And a quarter of four NICs of 12.5 for two GPUs: 6.25 a GPU, 50 a server.
        ("dgx1v", 2, "156.25", range(8), "50"),
        # 1.8 TB/s in both directions; 14.4 TB/s for eight. Eight NICs of 400 Gb/s.
        ("dgx-b200", 1, "900", range(4), "3600"),
        ("dgx-b200", 2, "950", range(8), "400"),
        # 130 TB/s in both directions for 72; 4 NICs of 400 Gb/s in each of 18 trays.
        ("gb200-nvl72", 1, "900", range(36), "32400"),
        ("gb200-nvl72", 2, "950", range(72), "3600"),
        # Seven links of 64, 896 in both directions; 4 x 4 links between the halves.
        ("mi300x", 1, "448", range(4), "1024"),
        ("mi300x", 2, "498", range(8), "400"),
        # Twelve NVLinks of 25 and PCIe; two GPUs on PCIe face the other two.
        ("pcie-a100", 1, "324", range(2), "48"),
        # 80 000 Mb/s for four GPUs.
        ("pcie-a100", 2, "326.5", range(4), "10"),
        # Eight ranks of 50 on a leaf, of which half can leave it; two leaves of four.
        ("leaf-spine", None, "50", range(16), "400"),
        # A quarter of it.
        ("adding-leaves", None, "12.5", range(16), "100"),
        # As dgx-h100: the rails add, but carry no more.
        ("h100-sharp", 2, "500", range(8), "400"),
        # No oversubscription: what eight ranks send.
        ("fat-tree", None, "50", range(8), "400"),
        # Two groups of five: 2 x 3 cables of 50.
        ("dragonfly", None, "50", range(16), "300"),
        # 900 GB/s in both directions, eight NICs of 400 Gb/s; 600 GB/s and 200 Gb/s.
        ("dgx-h100", 2, "500", range(8), "400"),
        ("dgx-a100", 2, "325", range(8), "200"),
    ],
)
def test_a_gpu_and_a_half_send_what_data_sheets_say(
    name: str, nodes: int | None, rate: str, half: range, bisection: str
) -> None:
    topology = load_topology(name, nodes=nodes)
    sends, receives = rank_rates(topology)
    assert set(sends) == set(receives) == {Fraction(rate)}
    assert halved(topology, half) == Fraction(bisection)


def test_a_dgx1_has_the_mesh_of_an_ndv2_in_other_numbers() -> None:
    dgx1, ndv2 = load_topology("dgx1v"), load_topology("ndv2")
    # nvidia-smi's numbers to those of msccl-tools: the pairs with two NVLinks are two rings of four
    # and four pairs between them, in both.
    moved = (0, 2, 3, 1, 4, 6, 7, 5)
    links = {(e.tail, e.head): 1 if e.beta == 46 else 2 for e in ndv2.edges}
    found = {(moved[e.tail], moved[e.head]): 1 if e.beta == 40 else 2 for e in dgx1.edges}
    assert found == links


def test_the_bridges_of_pcie_cards_join_two_and_two() -> None:
    topology = load_topology("pcie-a100", nodes=2)
    assert rates(topology, 0, 1) == (700_000, {Fraction(10, 3)})
    assert rates(topology, 1, 2) == (1_000_000, {1000 / Fraction(24)})
    assert rates(topology, 0, 7) == (5_000_000, {None, Fraction(100)})


@for_each(
    ("name", "nodes", "expected"),
    # In GB/s, by ForestColl's solver (Zhao et al., 2024) and by hand: with N servers of 8 on
    # rails, (inside + outside) * 8N / (8N - 1), or what enters a server, 8 * outside * N / (N - 1).
    [("dgx-a100", 1, "342.9"), ("dgx-a100", 2, "346.7"), ("dgx-a100", 3, "300"),
     ("dgx-a100", 4, "266.7"), ("dgx-a100", 8, "228.6"), ("dgx-h100", 1, "514.3"),
     ("dgx-h100", 2, "533.3"), ("dgx-h100", 4, "516.1"), ("h800-rail", 2, "208.5"),
     ("h800-rail", 4, "201.8"), ("mi250", 1, "342.9"), ("mi250", 2, "354.1"),
     # A GPU receives 7/8 by 150; a server receives half (3/4) by four NICs of 12.5.
     ("dgx1v", 1, "171.4"), ("dgx1v", 2, "100"), ("dgx1v", 4, "66.67"),
     # 900 * 8/7; what enters a server: 400 * 2 and 400 * 4/3.
     ("dgx-b200", 1, "1029"), ("dgx-b200", 2, "800"), ("dgx-b200", 4, "533.3"),
     # 900 * 72/71 and 950 * 144/143, below the 3600 * 2 that enter a rack.
     ("gb200-nvl72", 1, "912.7"), ("gb200-nvl72", 2, "956.6"),
     # 448 * 8/7, 498 * 16/15 and 498 * 32/31, below 400 * 2 and 400 * 4/3.
     ("mi300x", 1, "512"), ("mi300x", 2, "531.2"), ("mi300x", 4, "514.1"),
     # Half enters a pair by 48; half (two thirds) enters a server by 10.
     ("pcie-a100", 1, "96"), ("pcie-a100", 2, "20"), ("pcie-a100", 3, "15"),
     # A rank receives 31/32, 15/16, 39/40 by 50.
     ("leaf-spine", None, "51.61"), ("fat-tree", None, "53.33"), ("dragonfly", None, "51.28")],
)  # fmt: skip
def test_the_allgather_bound_of_a_machine_without_latency(
    name: str, nodes: int | None, expected: str
) -> None:
    assert bound_without_latency(name, nodes, "allgather") == expected


@for_each(
    ("name", "nodes", "expected"),
    # In GB/s of the send buffer of a rank, by hand.
    # Each half of the cube sends 4 * 4/8 buffers by 150; a server 8 * 1/2 by 50, 8 * 3/4 by 50.
    [("dgx1v", 1, "75"), ("dgx1v", 2, "12.5"), ("dgx1v", 4, "8.333"),
     # A GPU sends 7/8; a server 8 * 1/2 by 400, 8 * 3/4 by 400.
     ("dgx-b200", 1, "1029"), ("dgx-b200", 2, "100"), ("dgx-b200", 4, "66.67"),
     # A rack sends 72 * 1/2 by 3600.
     ("gb200-nvl72", 1, "912.7"), ("gb200-nvl72", 2, "100"),
     ("mi300x", 1, "512"), ("mi300x", 2, "100"),
     # A pair sends 2 * 1/2 by 48, a server 4 * 1/2 by 10.
     ("pcie-a100", 1, "48"), ("pcie-a100", 2, "5"),
     # A leaf sends 8 * 3/4 by 200, a group 8 * 4/5 by 4 cables of 50; a rank 15/16 by 50.
     ("leaf-spine", None, "33.33"), ("dragonfly", None, "31.25"), ("fat-tree", None, "53.33")],
)  # fmt: skip
def test_the_alltoall_bound_of_a_machine_without_latency(
    name: str, nodes: int | None, expected: str
) -> None:
    assert bound_without_latency(name, nodes, "alltoall") == expected


def bound_without_latency(name: str, nodes: int | None, collective: str) -> str:
    """Return the GB/s that no algorithm can exceed."""
    topology = load_topology(name, nodes=nodes)
    bare = replace(topology, edges=tuple(replace(edge, alpha=0) for edge in topology.edges))
    size = 10**12
    bound = best(any_bounds(whole(bare), collective, size))
    return f"{size * 1000 / bound.time:.4g}"


@for_each("nodes", [1, 2, 3])
@for_each("name", shipped_sketches())
def test_a_shipped_sketch_fits_its_machine_at_any_number_of_servers(name: str, nodes: int) -> None:
    topology = load_topology(name.split("-")[0], nodes=nodes)
    logical = apply_sketch(topology, load_sketch(name))
    group = make_group(topology, logical.symmetry)
    assert logical.name == name
    assert len(group) > 1
    for number in range(len(group)):
        image = group.link_image(number, range(len(topology.links)))
        assert np.array_equal(logical.allowed[image], logical.allowed)


@pytest.mark.parametrize(
    ("name", "example", "nodes"),
    [("ndv2-relay", "sk1-ndv2-n2", 2), ("ndv2-relay", "sk1-ndv2-n4", 4),
     ("ndv2-fully-connected", "sk2-ndv2-n2", 2), ("ndv2-direct-map", "sk3-ndv2-n2", 2),
     ("dgx2-relay", "sk1-dgx2-n2", 2), ("dgx2-direct-map", "sk2-dgx2-n2", 2)],
)  # fmt: skip
def test_a_shipped_sketch_says_what_taccls_file_says(name: str, example: str, nodes: int) -> None:
    file = ROOT.parent / "shared" / "data" / "taccl" / "sketches" / f"{example}.json"
    if not file.exists():
        pytest.skip(f"TACCL's example is not at {file}")
    topology = load_topology(name.split("-")[0], nodes=nodes)
    ours, theirs = (apply_sketch(topology, load_sketch(s)) for s in (name, str(file)))
    assert np.array_equal(ours.allowed, theirs.allowed)
    fields = (
        "leave_by", "switch_policy", "own_chunks_first", "chunks_per_rank", "max_extra_hops",
        "on_shortest_paths",
    )  # fmt: skip
    assert [getattr(ours, f) for f in fields] == [getattr(theirs, f) for f in fields]


@for_each("path", sorted(ROOT.glob("topologies/*")) + sorted(ROOT.glob("sketches/*")))
def test_a_shipped_file_is_called_after_its_name_and_says_where_it_is_from(path: Path) -> None:
    document = read_document(path)
    assert isinstance(document.value, dict)
    assert document.value["name"] == path.stem
    assert path.suffix == ".yaml"
    assert "Shah et al., NSDI 2023" in document.text

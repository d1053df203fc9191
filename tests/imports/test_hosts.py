"""Descriptions of hosts become machines that have the known facts and can be synthesized for."""

from fractions import Fraction
from pathlib import Path

import pytest

from taccl.bounds import any_bounds, best
from taccl.errors import InputError, TacclWarning
from taccl.imports import FabricOptions, HostOptions, ImportOptions, import_files
from taccl.model.schedule import Schedule
from taccl.synth.search import solve
from taccl.topology.file import document_text, load_topology, topology_digest
from taccl.topology.graph import Topology, whole
from taccl.topology.lint import lint
from taccl.verify import verify
from tests.imports.host_files import (
    ALL,
    crossed,
    edited,
    imported,
    mesh,
    narrowest,
    path_of,
    text_of,
)
from tests.sweep import for_each
from tests.synth.problems import QUICK, problem_of

TWO = FabricOptions(count=2)
WITH_NICS = [pair for pair in ALL if pair[0] != "rocm-smi"]


def solved(topology: Topology) -> Schedule:
    """Return a ring on a machine, which is correct."""
    schedule = solve(problem_of(topology, "allgather"), "ring", QUICK).schedule
    assert schedule is not None
    assert verify(schedule) == []
    return schedule


@for_each(("kind", "name"), ALL)
def test_a_host_is_told_by_its_text_and_solved(kind: str, name: str) -> None:
    topology = imported(path_of(kind, name))
    schedule = solved(topology)
    bound = best(any_bounds(whole(topology), "allgather", 1000 * topology.num_ranks))
    assert 0 < bound.time <= schedule.makespan


@for_each(("kind", "name"), WITH_NICS)
def test_two_hosts_are_joined_by_their_nics_and_solved(kind: str, name: str) -> None:
    topology = imported(path_of(kind, name), fabric=TWO)
    assert topology.num_servers == 2
    solved(topology)


@pytest.mark.parametrize("name", ["mi250", "mi300x", "mi100-pcie"])
def test_hosts_of_a_tool_that_names_no_nics_are_given_some(name: str) -> None:
    path = path_of("rocm-smi", name)
    with pytest.raises(InputError, match="names no NIC"):
        imported(path, fabric=TWO)
    topology = imported(path, fabric=TWO, host=HostOptions(nics=4, nic=Fraction(25)))
    solved(topology)
    # GPU 0 has a NIC beside it.
    assert crossed(topology, 0, topology.num_ranks // 2)[:2] == [
        "0->s0/pcie.gpu0", "s0/pcie.gpu0->s0/nic0.tx",
    ]  # fmt: skip


@for_each(("kind", "name"), WITH_NICS)
def test_nothing_is_to_object_to_but_nics_that_are_near_no_gpu(kind: str, name: str) -> None:
    found = lint(imported(path_of(kind, name), fabric=TWO))
    storage = (kind, name) == ("nvidia-smi", "dgx-a100")
    assert [finding.rule for finding in found] == (["unused-switch"] if storage else [])
    assert all("mlx5_8.tx" in str(finding) for finding in found)


@pytest.mark.parametrize("name", ["dgx1v", "dgx-a100", "hgx-h100"])
def test_two_tools_describe_one_machine(name: str) -> None:
    one, other = imported(path_of("nvidia-smi", name)), imported(path_of("nccl", name))
    assert [(e.tail, e.head, e.beta, e.alpha) for e in one.edges] == [
        (e.tail, e.head, e.beta, e.alpha) for e in other.edges
    ]


def test_a_dgx1_has_the_wires_of_the_shipped_one() -> None:
    found = imported(path_of("nvidia-smi", "dgx1v"), host=HostOptions(link=Fraction(25)))
    shipped = load_topology("ndv2")
    # Both are the hybrid cube mesh, with GPUs numbered in another way: 4 links in, 6 NVLinks.
    for topology in (found, shipped):
        for gpu in range(8):
            rates = [e.beta for e in topology.edges if e.tail == gpu]
            assert len(rates) == 4
            slow = max(rate for rate in rates if rate is not None)
            assert sum(slow / rate for rate in rates if rate is not None) == 6


def test_a_bound_is_the_hosts_ports_over_what_comes_in() -> None:
    # 240 GB/s into each GPU, 7/8 of the buffer: NCCL counts 20 GB/s for each of 12 links.
    topology = imported(path_of("nvidia-smi", "dgx-a100"))
    size = 8 * 10**9
    time = best(any_bounds(whole(topology), "allgather", size)).time
    assert size * 7 / 8 / 240 * 1000 == pytest.approx(time, rel=1e-3)


def test_equal_links_among_all_are_a_switch_and_fewer_are_wires(tmp_path: Path) -> None:
    switched = imported(path_of("nvidia-smi", "hgx-h100"))
    assert crossed(switched, 0, 1) == ["0->s0/nvswitch", "s0/nvswitch->1"]
    assert narrowest(switched, 0, 1) == pytest.approx(18 * 20.6)
    four = edited(tmp_path, "nvidia-smi", "hgx-h100", ("NV18", "NV2"))
    assert crossed(imported(four), 0, 1) == ["0->1"]


def test_more_links_than_a_gpu_has_go_by_a_switch_though_one_is_broken(tmp_path: Path) -> None:
    lines = text_of("nvidia-smi", "dgx-a100").split("\n")
    lines[1] = lines[1].replace("NV12", "NV11")
    for row in range(2, 9):
        lines[row] = lines[row].replace("NV12", "NV11", 1)
    path = tmp_path / "degraded.txt"
    path.write_text("\n".join(lines))
    topology = imported(path)
    assert narrowest(topology, 0, 1) == 220
    assert narrowest(topology, 1, 2) == 240


def test_the_gpu_that_is_named_decides_between_wires_and_switch(tmp_path: Path) -> None:
    # Three GPUs with NV6 each: 12 links are the wires of an A100, but a V100 has only 6.
    path = tmp_path / "t.txt"
    path.write_text("\tGPU0\tGPU1\tGPU2\nGPU0\tX\tNV6\tNV6\nGPU1\tNV6\tX\tNV6\nGPU2\tNV6\tNV6\tX\n")
    assert crossed(imported(path, host=HostOptions(gpu="a100")), 0, 1) == ["0->1"]
    assert len(crossed(imported(path, host=HostOptions(gpu="v100")), 0, 1)) == 2


@pytest.mark.parametrize(
    ("gpus", "links", "rate"), [(4, 6, 6 * 20.6), (3, 9, 9 * 20.6), (3, 6, 6 * 20), (4, 4, 4 * 20)]
)
def test_a_full_mesh_that_uses_all_links_of_a_gpu_is_wires(
    tmp_path: Path, gpus: int, links: int, rate: float
) -> None:
    topology = imported(mesh(tmp_path / "t.txt", gpus, links))
    assert topology.switches == ()
    assert crossed(topology, 0, 1) == ["0->1"]
    assert narrowest(topology, 0, 1) == pytest.approx(rate)


@pytest.mark.parametrize(
    ("gpus", "links", "rate"), [(16, 6, 120), (8, 12, 240), (4, 12, 240), (4, 18, 18 * 20.6)]
)
def test_a_full_mesh_of_more_links_than_that_is_a_switch(
    tmp_path: Path, gpus: int, links: int, rate: float
) -> None:
    topology = imported(mesh(tmp_path / "t.txt", gpus, links))
    assert crossed(topology, 0, 1) == ["0->s0/nvswitch", "s0/nvswitch->1"]
    assert narrowest(topology, 0, 1) == pytest.approx(rate)


def test_hidden_gpus_leave_gaps_and_ranks_have_none() -> None:
    topology = imported(path_of("nvidia-smi", "dgx1v-hidden"))
    # GPU0, GPU2, GPU5, GPU7: one wire between the first two, one between the others, as before.
    assert topology.num_ranks == 4
    assert crossed(topology, 0, 1) == ["0->1"]
    assert crossed(topology, 2, 3) == ["2->3"]
    assert "s0/cpu0->s0/sockets" in crossed(topology, 0, 2)


def test_flows_by_one_uplink_share_it() -> None:
    topology = imported(path_of("nvidia-smi", "pcie-box"))
    # GPU0 to GPU2 and GPU1 to GPU3 both cross the sockets.
    assert {"s0/pcie0->s0/sockets"} <= set(crossed(topology, 0, 2)) & set(crossed(topology, 1, 3))
    assert narrowest(topology, 0, 1) == 24
    assert narrowest(topology, 0, 2) == 10


def test_a_gpu_uses_the_nics_that_are_near_it() -> None:
    topology = imported(path_of("nvidia-smi", "dgx1v"), fabric=TWO)
    for gpu in range(8):
        link = crossed(topology, gpu, 8 + gpu)
        assert f"s0/pcie{gpu // 2}->s0/mlx5_{gpu // 2}.tx" in link
        assert len(topology.links_between(gpu, 8 + gpu)) == 1


def test_pcie_carries_nothing_between_gpus_that_nvlink_joins() -> None:
    topology = imported(path_of("nvidia-smi", "dgx1v"), fabric=TWO)
    assert topology.links_between(0, 5) == ()
    assert all("pcie" not in name for name in crossed(topology, 0, 1))


@for_each(
    ("changes", "rate"),
    [
        ((), 24.0),
        ((('link_speed="16 GT/s"', 'link_speed="8.0 GT/s PCIe"'),), 12.0),
        ((('link_speed="16 GT/s" link_width="16"', 'link_speed="16 GT/s" link_width="8"'),), 12.0),
        ((('link_speed="16 GT/s"', 'link_speed="Unknown speed"'),), 12.0),
        ((('link_speed="16 GT/s"', ""),), 12.0),
        ((('link_width="16"', 'link_width="0"'),), 24.0),
        ((('link_width="16"', ""),), 24.0),
        ((('link_speed="16 GT/s"', 'link_speed="2.5 GT/s PCIe"'),), 3.0),
    ],
)
def test_a_pci_link_has_what_nccl_counts(
    tmp_path: Path, changes: tuple[tuple[str, str], ...], rate: float
) -> None:
    topology = imported(edited(tmp_path, "nccl", "pcie-box", *changes))
    assert narrowest(topology, 0, 1) == rate


@for_each(
    ("cpu", "rate"),
    [
        ('arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="79"', 6),
        ('arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85"', 10),
        ('arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143"', 12),
        ('arch="x86_64" vendor="CentaurHauls" familyid="7" modelid="91"', 9),
        ('arch="ppc64"', 12),
        ('arch="arm64"', 6),
        ('arch="x86_64" vendor="Somebody"', 10),
        ("", 10),
    ],
)
def test_sockets_are_joined_as_nccl_counts_them(tmp_path: Path, cpu: str, rate: float) -> None:
    # 12 GB/s is the link of GPU 3; more than that has no CPU to show.
    amd = 'arch="x86_64" vendor="AuthenticAMD" familyid="143" modelid="49"'
    assert narrowest(imported(edited(tmp_path, "nccl", "pcie-box", (amd, cpu))), 0, 3) == rate


@pytest.mark.parametrize(
    ("sm", "rate"), [("60", 36), ("70", 40), ("86", 24), ("89", 40), ("90", 41.2), ("100", 80.2)]
)
def test_an_nvlink_has_what_its_gpu_has(tmp_path: Path, sm: str, rate: float) -> None:
    path = edited(tmp_path, "nccl", "dgx1v", ('sm="70"', f'sm="{sm}"'))
    assert narrowest(imported(path), 0, 3) == pytest.approx(rate)


def test_ranks_are_in_the_order_that_the_file_gives(tmp_path: Path) -> None:
    changes = [(f'dev="{g}" sm="70" rank="{g}"', f'dev="{g}" sm="70" rank="{15 - g}"')
               for g in range(8)]  # fmt: skip
    topology = imported(edited(tmp_path, "nccl", "dgx1v", *changes))
    plain = imported(path_of("nccl", "dgx1v"))
    assert narrowest(topology, 7, 6) == narrowest(plain, 0, 1)
    assert narrowest(topology, 7, 4) == narrowest(plain, 0, 3)


def test_links_to_gpus_that_are_not_listed_are_ignored_with_a_warning(tmp_path: Path) -> None:
    text = text_of("nccl", "dgx1v")
    first = text.index('    <pci busid="0000:43:00.0"')
    last = text.index("  </cpu>", first)
    path = tmp_path / "d.xml"
    path.write_text(text[:first] + text[last:])
    with pytest.warns(TacclWarning, match="ignored NVLinks to GPUs that are not listed"):
        topology = imported(path)
    assert topology.num_ranks == 6


def test_a_chip_to_chip_link_is_beside_pci(tmp_path: Path) -> None:
    change = ('<gpu dev="3"/>', '<gpu dev="3"><c2c bw="50000" count="2"/></gpu>')
    topology = imported(edited(tmp_path, "nccl", "pcie-box", change))
    # GPU 3 now has 100 GB/s to its CPU, so that its own link is not what limits it.
    assert narrowest(topology, 3, 0) == 16


def test_two_pci_switches_may_be_joined_beside_their_tree(tmp_path: Path) -> None:
    change = (
        '<pci busid="0000:40:00.0" class="0x060400"', '<pci busid="0000:40:00.0" class="0x060401"'
    )  # fmt: skip
    path = edited(tmp_path, "nccl", "dgx1v", change)
    text = path.read_text()
    end = text.index(">", text.index('busid="0000:40:00.0"')) + 1
    path.write_text(text[:end] + '<pcilink target="0000:41:00.0"/>' + text[end:])
    topology = imported(path, fabric=FabricOptions(count=2))
    names = {edge.name for edge in topology.edges}
    assert "s0/pci-0000-40-00-0->s0/pci-0000-41-00-0" in names


def test_the_links_of_a_pair_are_the_second_bandwidth_over_the_first() -> None:
    topology = imported(path_of("rocm-smi", "mi250"))
    # 4, 1 and 2 links of 36 GB/s.
    assert [narrowest(topology, 0, other) for other in (1, 2, 6)] == [144, 36, 72]
    assert topology.links_between(0, 3) == ()


def test_all_gpus_of_an_mi300x_are_joined_by_wires() -> None:
    topology = imported(path_of("rocm-smi", "mi300x"))
    assert len(topology.edges) == 8 * 7
    assert {edge.beta for edge in topology.edges} == {Fraction(1000, 48)}


@pytest.mark.parametrize(
    ("options", "name", "rate"),
    [
        (HostOptions(link=Fraction(25)), "dgx1v", 25),
        (HostOptions(gpu="h100"), "dgx1v", 20.6),
        (HostOptions(pcie=3), "pcie-box", 12),
        (HostOptions(gpu="h100"), "pcie-box", 48),
    ],
)
def test_an_option_beats_what_is_assumed(options: HostOptions, name: str, rate: float) -> None:
    topology = imported(path_of("nvidia-smi", name), host=options)
    assert narrowest(topology, 0, 1) == pytest.approx(rate)


def test_nics_and_sockets_have_options_too() -> None:
    options = HostOptions(nic=Fraction(5), sockets=Fraction(7))
    topology = imported(path_of("nvidia-smi", "pcie-box"), host=options, fabric=TWO)
    assert narrowest(topology, 0, 4) == 5
    assert narrowest(topology, 0, 2) == 7


def test_unequal_hosts_are_listed_and_equal_ones_counted() -> None:
    both = [path_of("nvidia-smi", "dgx1v"), path_of("nvidia-smi", "pcie-box")]
    topology = imported(*both, fabric=FabricOptions("switch"))
    assert [topology.server_of.count(server) for server in (0, 1)] == [8, 4]
    assert topology.rotations == ()
    solved(topology)
    twice = import_files([str(both[0])] * 2, None, ImportOptions()).document
    assert twice["count"] == 2


def test_hosts_of_several_tools_are_one_cluster() -> None:
    paths = path_of("nvidia-smi", "dgx-a100"), path_of("nccl", "dgx-a100")
    assert imported(*paths).num_ranks == 16


@pytest.mark.parametrize(
    ("fabric", "edges"),
    [
        (FabricOptions("rail", 4), "rail3"),
        (FabricOptions("rail", 4, {"spine": "100GB/s"}), "spine"),
        (FabricOptions("leaf-spine", 4, {"leaves": 2, "uplink": "50GB/s"}), "leaf1"),
        (FabricOptions("torus", 4, {"dims": [2, 2]}), "s1/mlx5_0.rx"),
    ],
)
def test_every_fabric_joins_hosts(fabric: FabricOptions, edges: str) -> None:
    topology = imported(path_of("nvidia-smi", "dgx1v"), fabric=fabric)
    assert topology.num_ranks == 32
    assert any(edges in edge.name for edge in topology.edges)


@for_each(("kind", "name"), ALL)
def test_what_is_written_is_read_back_and_says_where_numbers_are_from(
    kind: str, name: str, tmp_path: Path
) -> None:
    found = import_files([str(path_of(kind, name))], None, ImportOptions())
    text = document_text(found.document, found.comments)
    path = tmp_path / "t.yaml"
    path.write_text(text)
    assert topology_digest(load_topology(str(path))) == topology_digest(
        imported(path_of(kind, name))
    )
    assert "TACCL (Shah et al., NSDI 2023)" in text
    assert text.count("--") >= 2


def test_classes_that_do_not_nest_are_taken_as_the_nearer_with_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_text("\tGPU0\tGPU1\tGPU2\nGPU0\tX\tPIX\tSYS\nGPU1\tPIX\tX\tPIX\nGPU2\tSYS\tPIX\tX\n")
    with pytest.warns(TacclWarning, match=r"t.txt:4: 'GPU2' to 'GPU0' is SYS, but others .* PIX"):
        assert len(crossed(imported(path), 0, 2)) == 2

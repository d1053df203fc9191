"""Exported topologies say the same as the topology, or one clear error."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
import yaml
from defusedxml.ElementTree import fromstring

from taccl.bounds import any_bounds, best
from taccl.errors import InputError, TacclWarning
from taccl.imports import FabricOptions, HostOptions
from taccl.report.export import EXPORTS
from taccl.topology.file import load_topology, shipped_topologies
from taccl.topology.graph import LocalCosts, Multicast, Reduction, Switch, Topology, whole
from tests.generators import both_ways, build, random_topology
from tests.imports.host_files import ALL, imported, path_of
from tests.sweep import for_each

Golden = Callable[[str, str], None]
TWO = FabricOptions(count=2)
KINDS = ("allgather", "alltoall", "allreduce")


def exported(topology: Topology, kind: str) -> str:
    """Return the text of a format, whatever it warns of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TacclWarning)
        return EXPORTS[kind](topology)


def back(text: str, path: Path, fabric: FabricOptions | None = None) -> Topology:
    """Return what a text is imported as."""
    path.write_text(text)
    return imported(path, fabric=fabric)


def edges(topology: Topology) -> Sequence[object]:
    return [(edge.tail, edge.head, edge.beta, edge.alpha) for edge in topology.edges]


def bounds(topology: Topology) -> list[int]:
    return [
        best(any_bounds(whole(topology), kind, size)).time
        for kind in KINDS
        for size in (topology.num_ranks * 64, topology.num_ranks * 10**9)
    ]


def ring(*, ranks: int = 4, rates: Sequence[int] = (40, 40, 40, 40), alpha: int = 7) -> Topology:
    hops = [
        hop
        for rank, beta in enumerate(rates)
        for hop in (
            (rank, (rank + 1) % ranks, alpha, None, Fraction(beta)),
            ((rank + 1) % ranks, rank, alpha, None, Fraction(beta)),
        )
    ]
    return build("ring", ranks, hops)


@for_each("seed", range(20))
def test_a_graph_comes_back_exactly(seed: int, tmp_path: Path) -> None:
    topology = random_topology(seed)
    found = back(exported(topology, "graph"), tmp_path / "g.json")
    assert edges(found) == edges(topology)
    assert [s.across_servers for s in found.switches] == [
        s.across_servers for s in topology.switches
    ]
    numbers = sorted(set(topology.server_of), key=topology.server_of.index)
    assert found.server_of == tuple(map(numbers.index, topology.server_of))


@for_each("name", shipped_topologies())
def test_a_shipped_machine_comes_back_from_its_graph(name: str, tmp_path: Path) -> None:
    topology = load_topology(name)
    assert edges(back(exported(topology, "graph"), tmp_path / "g.json")) == edges(topology)


@pytest.mark.parametrize("names", [("x", "s0/nvswitch"), ("switch-0", "a b")])
def test_switches_of_a_graph_keep_their_names(names: tuple[str, str], tmp_path: Path) -> None:
    hops = [hop for switch in (2, 3) for rank in (0, 1)
            for hop in both_ways(rank, switch, 5, Fraction(1))]  # fmt: skip
    topology = build("t", 2, hops, switches=[Switch(name) for name in names])
    found = back(exported(topology, "graph"), tmp_path / "g.json")
    assert [switch.name for switch in found.switches] == list(names)
    assert found.edges[0].name == f"0->{names[0]}"


def test_a_graph_warns_of_what_it_can_not_say() -> None:
    plain = build("t", 2, [(0, 1, 5, None, Fraction(1)), (1, 0, 5, None, Fraction(1))])
    assert EXPORTS["graph"](plain)
    slow = build("t", 2, [(0, 1, 5, 1, Fraction(1)), (1, 0, 5, None, Fraction(1))])
    for topology, what in (
        (slow, "overheads"),
        (replace(plain, alpha_rule="delay"), "alpha_rule: delay"),
        (replace(plain, switches=(Switch("x", multicast=Multicast()),)), "multicast of switches"),
        (replace(plain, switches=(Switch("x", reduce=Reduction()),)), "reduce of switches"),
        (replace(plain, local=LocalCosts(launch=1)), "local costs"),
        (replace(plain, chunk_size=Fraction(64)), "chunk_size"),
    ):
        with pytest.warns(TacclWarning, match=f"a plain graph has no {what}: left out"):
            EXPORTS["graph"](topology)


@for_each(("kind", "name"), ALL, quick=5)
def test_a_host_comes_back_from_nccls_description_with_the_same_bounds(
    kind: str, name: str, tmp_path: Path
) -> None:
    options = HostOptions(nics=4 if kind == "rocm-smi" else None)
    if kind == "rocm-smi" or name == "mi300x":
        # NCCL has no GPU with links of 36 or 48 GB/s.
        options = replace(options, link=Fraction(40))
    topology = imported(path_of(kind, name), host=options, fabric=TWO)
    found = back(exported(topology, "nccl"), tmp_path / "t.xml", TWO)
    assert len(found.links) == len(topology.links)
    assert bounds(found) == bounds(topology)


@pytest.mark.parametrize("name", ["dgx-a100", "pcie-box"])
def test_nccls_description_of_a_host_is_the_golden_one(name: str, golden: Golden) -> None:
    topology = imported(path_of("nvidia-smi", name), fabric=TWO)
    golden(f"report/{name}-export.xml", exported(topology, "nccl"))


@pytest.mark.parametrize("name", ["ndv2", "dgx2", "dgx-a100", "dgx-h100", "mi250", "h800-rail"])
def test_shipped_servers_are_described_for_nccl(name: str, tmp_path: Path) -> None:
    topology = load_topology(name, nodes=2)
    text = exported(topology, "nccl")
    root = fromstring(text)
    assert len(list(root.iter("gpu"))) == topology.num_ranks // 2
    found = back(text, tmp_path / "t.xml", TWO)
    assert found.num_ranks == topology.num_ranks


def test_the_nics_of_a_shipped_server_are_beside_their_gpus() -> None:
    root = fromstring(exported(load_topology("dgx2", nodes=2), "nccl"))
    bridges = [pci for pci in root.iter("pci") if pci.get("class") == "0x060400"]
    assert [(len(list(b.iter("gpu"))), len(list(b.iter("net")))) for b in bridges] == [(2, 1)] * 8


def test_what_nccl_can_not_say_is_warned_of() -> None:
    with pytest.warns(TacclWarning, match="NVLink: 43.48GB/s as 41.2GB/s; NVLink: 21"):
        EXPORTS["nccl"](load_topology("ndv2", nodes=2))
    both = [path_of("nvidia-smi", name) for name in ("dgx1v", "pcie-box")]
    with pytest.warns(TacclWarning, match="server 0 only, though the others differ"):
        EXPORTS["nccl"](imported(*both))
    with pytest.warns(TacclWarning, match=r"no NICs, as one server has none \(--nodes 2\)"):
        EXPORTS["nccl"](load_topology("dgx-a100"))
    with pytest.warns(TacclWarning, match="322 XML nodes, of which NCCL reads 256"):
        EXPORTS["nccl"](load_topology("ring:80@20GB/s,1us"))


@pytest.mark.parametrize(
    ("topology", "why"),
    [
        (build("t", 2, [(0, 1, 1, None, None), (1, 0, 1, None, None)]), "has no bandwidth"),
        (
            build("t", 2, [(0, 1, 1, None, Fraction(1)), (1, 0, 1, None, Fraction(1))],
                  server_of=(0, 1)), "rank 0 is joined to other servers without a NIC",
        ),
        (
            build("t", 1, [h for a, b in ((0, 1), (1, 2), (2, 3), (3, 1))
                           for h in both_ways(a, b, 1, Fraction(1))],
                  switches=[Switch("a"), Switch("b"), Switch("c")]),
            "the switches around a are joined in a circle",
        ),
    ],
)  # fmt: skip
def test_what_is_no_host_is_no_description_for_nccl(topology: Topology, why: str) -> None:
    with pytest.raises(InputError, match=why):
        EXPORTS["nccl"](topology)


@for_each(
    ("spec", "kinds", "sizes"),
    [
        ("ring:8", ["Ring"], [8]),
        ("torus2d:4x4", ["Ring", "Ring"], [4, 4]),
        ("torus3d:2x3x4", ["Ring", "Ring", "Ring"], [4, 3, 2]),
        ("hypercube:8", ["Ring", "Ring", "Ring"], [2, 2, 2]),
        ("hub:8", ["Switch"], [8]),
        ("full:8", ["FullyConnected"], [8]),
        ("mi300x", ["FullyConnected"], [8]),
        ("dgx-a100", ["Switch", "Switch"], [8, 3]),
    ],
)
def test_a_product_is_a_network_for_astra_sim(
    spec: str, kinds: list[str], sizes: list[int]
) -> None:
    nodes = 3 if spec == "dgx-a100" else None
    found = yaml.safe_load(exported(load_topology(spec, nodes=nodes), "astra-sim"))
    assert found["topology"] == kinds
    assert found["npus_count"] == sizes
    assert len(found["bandwidth"]) == len(found["latency"]) == len(kinds)


def test_a_gb_has_2_to_the_30_bytes_and_a_switch_counts_its_latency_twice(golden: Golden) -> None:
    text = exported(load_topology("dgx-a100", nodes=4), "astra-sim")
    found = yaml.safe_load(text)
    # Bytes in a nanosecond as ASTRA-sim makes them of it, and the crossing up and down.
    assert [b * (1 << 30) / 10**9 for b in found["bandwidth"]] == pytest.approx([300, 25])
    assert [2 * late for late in found["latency"]] == [700, 1700]
    golden("report/dgx-a100-astra.yaml", text)


@for_each(
    ("topology", "why"),
    [
        (load_topology("ndv2"), "links of one dimension differ"),
        (load_topology("dgx2", nodes=2), "s0/ib0.tx is no switch of ranks: 2 GPUs share it"),
        (load_topology("mesh2d:3x3"), "rank 0 has links that fit no grid"),
        (load_topology("dgx-a100", nodes=2, fabric="switch"), "is in no dimension"),
        (ring(rates=(40, 40, 40, 20)), r"links of one dimension differ \(25, 50 GB/s"),
        (build("t", 2, [(0, 1, 1, None, None), (1, 0, 1, None, None)]), "has no bandwidth"),
        (build("t", 3, [(0, 1, 1, None, Fraction(1)), (1, 2, 1, None, Fraction(1)),
                        (2, 0, 1, None, Fraction(1))]), "rank 0 has links that fit no grid"),
        (build("t", 2, [(0, 1, 1, None, Fraction(1))] * 2 + [(1, 0, 1, None, Fraction(1))]),
         "0 has parallel links to 1"),
    ],
)  # fmt: skip
def test_what_is_no_product_says_why(topology: Topology, why: str) -> None:
    with pytest.raises(InputError, match=f"is no product of rings.*{why}"):
        EXPORTS["astra-sim"](topology)


def test_a_change_of_any_link_changes_the_export_or_refuses_it() -> None:
    plain = exported(ring(), "astra-sim")
    for slower in range(4):
        with pytest.raises(InputError, match="links of one dimension differ"):
            EXPORTS["astra-sim"](ring(rates=[40 + (r == slower) for r in range(4)]))
    assert exported(ring(alpha=8), "astra-sim") != plain
    assert exported(ring(rates=(50,) * 4), "astra-sim") != plain


@pytest.mark.parametrize("kind", EXPORTS)
def test_any_network_is_written_or_refused_in_words(kind: str) -> None:
    networks = [random_topology(seed) for seed in range(60)]
    networks += [load_topology(name) for name in shipped_topologies()]
    made, refused = 0, set[str]()
    for network in networks:
        try:
            made += bool(exported(network, kind))
        except InputError as error:
            refused.add(str(error.field))
    assert made > 0
    assert refused <= {"--to"}

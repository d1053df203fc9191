"""RCCL's descriptions of hosts, hosts that are given NICs, and hubs that stand for nothing."""

import re
from fractions import Fraction
from pathlib import Path

import pytest

from taccl.errors import InputError, TacclWarning
from taccl.imports import FabricOptions, HostOptions
from taccl.imports.hosts import Host, Hub, Plug, tidy
from tests.imports.host_files import crossed, edited, imported, narrowest, path_of, text_of
from tests.sweep import for_each

TWO = FabricOptions(count=2)


def test_rccls_file_is_the_machine_that_rocm_smi_prints() -> None:
    found = imported(path_of("nccl", "mi300x"), fabric=TWO)
    printed = imported(path_of("rocm-smi", "mi300x"))
    inside = [edge for edge in found.edges if max(edge.tail, edge.head) < 8]
    assert len(inside) == 8 * 7
    # XGMI_BY_GCN: 48 GB/s for gfx94, as RCCL counts.
    assert {edge.beta for edge in inside} == {Fraction(1000, 48)}
    assert sorted((e.tail, e.head, e.beta) for e in inside) == sorted(
        (e.tail, e.head, e.beta) for e in printed.edges
    )
    assert "s0/pci-0000-03-00-0->s0/mlx5_0.tx" in crossed(found, 0, 8)


@for_each(
    ("change", "rate"),
    [
        (('tclass="0x120000"', 'tclass="0x130000"'), 48),
        (('tclass="0x120000"', 'tclass="0x068000"'), 48),
        ((' tclass="0x120000"', ""), 48),
        (('count="1"', 'count="2"'), 96),
        (("gfx942", "942"), 48),
        (("gfx942", "gfx90a"), 36),
        (("gfx942", "gfx908"), 24),
        (('version="2"', 'version="1"'), 48),
    ],
)
def test_an_xgmi_link_has_what_rccl_counts_and_leads_to_the_gpu_of_its_bus(
    tmp_path: Path, change: tuple[str, str], rate: int
) -> None:
    topology = imported(edited(tmp_path, "nccl", "mi300x", change))
    assert crossed(topology, 0, 7) == ["0->7"]
    assert narrowest(topology, 0, 7) == rate


def test_an_xgmi_link_that_leads_one_way_is_an_error(tmp_path: Path) -> None:
    text = text_of("nccl", "mi300x")
    link = '          <xgmi target="0000:29:00.0" count="1" tclass="0x120000"/>\n'
    path = tmp_path / "t.xml"
    path.write_text(text.replace(link, "", 1))
    with pytest.raises(InputError, match="GPU 1 has 48GB/s to GPU 0, which has nothing back") as it:
        imported(path)
    assert it.value.fix == "give GPU 0 an <xgmi> with the same count"


def test_xgmi_links_to_gpus_that_are_hidden_are_ignored_with_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "t.xml"
    path.write_text(re.sub(r"<gpu dev=.7.*?</gpu>", "", text_of("nccl", "mi300x"), flags=re.DOTALL))
    with pytest.warns(TacclWarning, match="ignored xGMI links to GPUs that are not listed"):
        assert imported(path).num_ranks == 7


@pytest.mark.parametrize("nics", [4, 2])
def test_nics_that_are_given_leave_a_gpu_its_pci_link(tmp_path: Path, nics: int) -> None:
    # 24 GB/s from a GPU by PCI; its NIC could take 100.
    text = text_of("nccl", "pcie-box")
    bare = tmp_path / "bare.xml"
    bare.write_text(re.sub(r"<nic>.*?</nic>", "", text, flags=re.DOTALL))
    options = HostOptions(nics=nics, nic=Fraction(100))
    topology = imported(bare, host=options, fabric=TWO)
    assert narrowest(topology, 0, 4) == narrowest(imported(bare), 0, 1) == 24
    assert narrowest(topology, 0, 1) == 24


def test_hubs_that_nothing_branches_at_are_left_out_whatever_their_order() -> None:
    # A chain of hubs above GPU 0, the narrowest 3 GB/s; a hub with nothing; GPU 1 at the top.
    rates = [9, 8, 3, 7, 5] * 200
    chain = [Hub(f"h{i}", f"h{i - 1}" if i else "top", Fraction(r)) for i, r in enumerate(rates)]
    ends = [Hub("top"), Hub("empty", "top", Fraction(1))]
    plugs = ((Plug("h999", None),), (Plug("top", Fraction(6)),))
    for hubs in ([*ends, *chain], [*chain[::-1], *ends]):
        found = tidy(Host("f", 2, hubs=tuple(hubs), plugs=plugs))
        assert found.hubs == (Hub("top"),)
        assert found.plugs == ((Plug("top", Fraction(3)),), plugs[1])

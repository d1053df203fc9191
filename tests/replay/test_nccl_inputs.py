"""What NCCL would find on a topology: channels and speeds, generations, what can be given."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import get_args

import pytest

from taccl.bounds import any_bounds, best
from taccl.errors import InputError
from taccl.imports import FabricOptions, HostOptions, ImportOptions, import_files
from taccl.replay.nccl import (
    GENERATION_OF,
    Settings,
    described,
    fastest,
    found_channels,
    in_network,
    machine_of,
    parse_settings,
    server_nics,
    server_ports,
)
from taccl.topology.core_form import Gpu
from taccl.topology.file import (
    load_topology,
    topology_digest,
    topology_document,
    topology_from_document,
)
from taccl.topology.graph import Multicast, Reduction, Topology, whole
from tests.generators import pair, twin2x2
from tests.sweep import for_each

HOSTS = Path(__file__).parent.parent / "imports" / "inputs"


def servers(ports: str, nics: list[dict[str, object]], **fabric: object) -> Topology:
    return topology_from_document({
        "taccl": "topology/1", "name": "made", "count": 3,
        "node": {
            "gpus": 8, "nics": nics,
            "switches": [{"name": "nvs", "members": "0-7", "bandwidth": ports, "alpha": "1us"}],
        },
        "fabric": {"kind": "switch", "alpha": "2us", **fabric},
    })  # fmt: skip


def each(bandwidth: str) -> list[dict[str, object]]:
    return [{"name": f"ib{i}", "gpus": [i], "bandwidth": bandwidth} for i in range(8)]


@pytest.mark.parametrize(
    ("name", "nodes", "channels", "speed", "generation"),
    [
        # DGX-1V: 6 NVLinks at 20 GB/s. One 100 Gb/s NIC, measured at 9.4 GB/s.
        ("ndv2", 1, 6, 20, "volta"),
        ("ndv2", 2, 1, 9, "volta"),
        ("dgx2", 1, 6, 20, "volta"),
        ("dgx2", 2, 8, 9, "volta"),
        # 12 NVLinks at 20 GB/s: 6 x 40, then twice as many of half the speed. 8 NICs of 25 GB/s.
        ("dgx-a100", 1, 12, 20, "ampere"),
        ("dgx-a100", 4, 8, 24, "ampere"),
    ],
)
def test_a_known_machine_has_the_channels_that_nccl_finds(
    name: str, nodes: int, channels: int, speed: int, generation: str
) -> None:
    machine = machine_of(load_topology(name, nodes=nodes))
    assert machine.channels == channels
    assert machine.intra == machine.inter == speed
    assert (machine.generation, machine.wire, machine.servers) == (generation, "nvlink", nodes)
    assert machine.per_server == machine.ranks // nodes


def test_a_hopper_has_six_fast_rings_or_twelve_of_half_the_speed() -> None:
    # 18 x 20.6 = 370.8 GB/s holds 6 x 60.
    assert found_channels([Fraction(3708, 10)], (), "hopper") == (12, Fraction(30))
    # 8 NICs of 50 GB/s: each GPU passes on 7 of 8 rings of 48. That is too slow to be halved.
    assert found_channels([Fraction(3708, 10)], [Fraction(50)] * 8, "hopper") == (8, Fraction(48))
    machine = machine_of(servers("450GB/s", each("50GB/s")))
    assert (machine.generation, machine.cpu) == ("hopper", "intel")
    assert (machine.channels, machine.inter) == (8, Fraction(48))


def test_rings_of_double_wires_are_found_where_they_carry_most() -> None:
    # 40 + 40 + 20 + 20: two rings of 40 carry 80, six of 20 carry all.
    assert found_channels([Fraction(w) for w in (40, 40, 20, 20)], (), "volta") == (6, Fraction(20))


def test_what_is_slower_than_every_listed_speed_is_one_channel() -> None:
    machine = machine_of(load_topology("ring:4@1GB/s,1us"))
    assert (machine.channels, machine.intra, machine.wire) == (1, Fraction(1), "pci")


def test_a_nic_counts_once_however_many_gpus_use_it() -> None:
    shared: list[dict[str, object]] = [
        {"name": "ib0", "gpus": "0-3", "bandwidth": "25GB/s"},
        {"name": "ib1", "gpus": "4-7", "bandwidth": "12.5GB/s"},
    ]
    assert server_nics(servers("300GB/s", shared)) == (Fraction(25), Fraction(25, 2))
    # 4 ps a byte at the NIC, 1 on the wire
    assert server_nics(twin2x2()) == (Fraction(250),)
    assert server_ports(twin2x2()) == (Fraction(1000),)


def test_a_nic_counts_once_behind_a_bridge_that_gpus_share() -> None:
    # A GPU's edge into the bridge is no NIC: 8 GPUs, 4 NICs, two GPUs and a NIC at each bridge.
    for name in ("dgx1v.txt", "dgx1v.xml"):
        for fabric in ("switch", "rail"):
            options = ImportOptions(fabric=FabricOptions(fabric, 2, {}))
            found = topology_from_document(
                import_files([str(HOSTS / name)], None, options).document
            )
            assert server_nics(found) == (Fraction(12),) * 4
            machine = machine_of(found)
            assert (machine.channels, machine.inter) == (4, Fraction(12))
            for collective in ("allgather", "allreduce", "broadcast"):
                for size in (1 << 20, 1 << 28):
                    expected = fastest(machine, collective, size)
                    assert expected is not None
                    bound = best(any_bounds(whole(found), collective, size))
                    assert expected.time >= bound.time


def test_nics_beyond_what_the_gpus_can_send_count_nothing() -> None:
    # Ten NICs, two of them at the far ends of bridges whose GPUs have a NIC each already.
    options = ImportOptions(fabric=FabricOptions("switch", 2, {}))
    host = import_files([str(HOSTS / "dgx-a100.txt")], None, options).document
    node = host["node"]
    assert isinstance(node, dict)
    assert len(node["nics"]) == 10
    assert server_nics(topology_from_document(host)) == (Fraction(24),) * 8


def test_a_generation_is_that_of_the_gpu_where_it_is_known() -> None:
    assert set(GENERATION_OF) == set(get_args(Gpu))
    found = {name: machine_of(load_topology(name)).generation
             for name in ("pcie-a100", "h800-rail", "mi250", "mi300x", "gb200-nvl72")}  # fmt: skip
    assert found == {"pcie-a100": "ampere", "h800-rail": "hopper", "mi250": "ampere",
                     "mi300x": "hopper", "gb200-nvl72": "blackwell"}  # fmt: skip
    plain = {"taccl": "topology/1", "name": "box", "shape": {"kind": "ring", "dims": [4],
             "bandwidth": "10GB/s", "alpha": "1us"}}  # fmt: skip
    assert machine_of(topology_from_document(plain)).generation == "volta"
    assert machine_of(topology_from_document({**plain, "gpu": "h100"})).generation == "hopper"


def test_an_imported_host_says_its_gpu_and_keeps_its_digest() -> None:
    for name, given, gpu in (("pcie-box.txt", "a100", "a100"), ("hgx-h100.xml", None, "h100"),
                             ("mi300x.xml", None, "mi300x"), ("dgx1v.txt", None, "v100"),
                            ):  # fmt: skip
        options = ImportOptions(host=HostOptions(gpu=given))
        document = import_files([str(HOSTS / name)], None, options).document
        assert document["gpu"] == gpu
        made = topology_from_document(document)
        assert machine_of(made).generation == GENERATION_OF[gpu]
        assert topology_document(made)["gpu"] == gpu
        assert topology_digest(made) == topology_digest(replace(made, gpu=None))


def test_a_narrow_way_to_the_nic_counts_and_a_narrow_network_does_not() -> None:
    slow: list[dict[str, object]] = [
        {"name": "ib0", "gpus": "all", "bandwidth": "25GB/s", "pcie": {"bandwidth": "16GB/s"}}
    ]
    assert server_nics(servers("300GB/s", slow)) == (Fraction(16),)
    leaves = {"kind": "leaf-spine", "leaves": 3, "uplink": {"bandwidth": "10GB/s"}}
    assert server_nics(servers("300GB/s", each("25GB/s"), **leaves)) == (Fraction(25),) * 8


def test_one_gpu_a_server_has_nics_only() -> None:
    lonely = topology_from_document({
        "taccl": "topology/1", "name": "lonely", "ranks": 2, "servers": [[0], [1]],
        "edges": [{"from": 0, "to": 1, "bandwidth": "25GB/s", "alpha": "1us"}],
    })  # fmt: skip
    assert (server_ports(lonely), server_nics(lonely)) == ((), (Fraction(25),))
    machine = machine_of(lonely)
    assert (machine.channels, machine.inter, machine.per_server) == (1, Fraction(24), 1)


def test_what_is_given_is_not_estimated() -> None:
    given = parse_settings("gpu=Hopper,cpu=intel,wire=pci,channels=4,intra=30GB/s,inter=12.5GB/s")
    machine = machine_of(load_topology("dgx-a100"), given)
    assert (machine.generation, machine.cpu, machine.wire) == ("hopper", "intel", "pci")
    assert (machine.channels, machine.intra, machine.inter) == (4, Fraction(30), Fraction(25, 2))
    assert machine_of(pair(), parse_settings("intra=7GB/s")).inter == 7


def test_switches_say_whether_nccl_finds_nvls_and_sharp() -> None:
    def with_switches(own: bool, inside: bool, outside: bool) -> tuple[bool, bool]:
        topology = load_topology("dgx-h100", nodes=2).point_to_point()
        return in_network(replace(topology, switches=tuple(
            replace(switch, multicast=Multicast(own), reduce=Reduction(own))
            if (inside if "nvswitch" in switch.name else outside and "rail" in switch.name)
            else switch
            for switch in topology.switches
        )))  # fmt: skip

    assert with_switches(True, True, False) == (True, False)
    assert with_switches(False, True, False) == (False, False)
    assert with_switches(False, False, True) == (False, True)
    assert with_switches(True, True, True) == (True, True)
    topology = load_topology("dgx-h100").point_to_point()
    assert not machine_of(topology).nvls
    nvls = replace(topology, switches=tuple(
        replace(switch, multicast=Multicast(True), reduce=Reduction(True, True))
        for switch in topology.switches
    ))  # fmt: skip
    assert machine_of(nvls).nvls
    assert not machine_of(nvls, parse_settings("nvls=no")).nvls
    assert replace(machine_of(nvls), nvls=False) == machine_of(topology)


@pytest.mark.parametrize("name", ["ndv2", "dgx-a100", "ring:4", "hub:8"])
def test_the_inputs_are_described_as_they_can_be_given(name: str) -> None:
    topology = load_topology(name)
    for machine in (machine_of(topology), machine_of(topology, Settings(nvls=True, collnet=True))):
        assert machine_of(topology, parse_settings(described(machine))) == machine


@for_each(
    ("text", "part"),
    [
        ("gpu=kepler", "gpu should be one of volta"),
        ("cpu=arm", "cpu should be one of intel, amd"),
        ("nvls=maybe", "nvls should be one of no, yes"),
        ("threads=4", "should be KEY=VALUE with one of gpu"),
        ("gpu", "should be KEY=VALUE"),
        ("channels=0", "from 1 to 64"),
        ("channels=1e9", "from 1 to 64"),
        ("intra=fast", "should be a bandwidth"),
        ("intra=0GB/s", "greater than 0"),
    ],
)
def test_an_input_that_the_model_has_not_is_refused(text: str, part: str) -> None:
    with pytest.raises(InputError, match=part):
        parse_settings(text)

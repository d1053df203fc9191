"""NCCL's time model: values worked out by hand, the golden file, and what NCCL would run."""

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from taccl.collectives import COLLECTIVES
from taccl.replay.nccl import GENERATIONS, Choice, Machine, choices, fastest
from tests.sweep import for_each

GOLDEN = Path(__file__).parents[3] / "shared" / "data" / "targets" / "nccl_model_golden.json"

DGX1 = Machine(8, 1, 6, Fraction(20), Fraction(20), "volta")
A100_X4 = Machine(32, 4, 8, Fraction(24), Fraction(24), "ampere", "amd")
H100 = Machine(8, 1, 12, Fraction(30), Fraction(30), "hopper", nvls=True)
H100_X4 = Machine(32, 4, 16, Fraction(24), Fraction(24), "hopper", nvls=True, collnet=True)
MIB = 1 << 20


def one(machine: Machine, collective: str, size: int, algorithm: str, protocol: str) -> Choice:
    found = choices(machine, collective, size)
    (choice,) = [c for c in found if (c.algorithm, c.protocol) == (algorithm, protocol)]
    return choice


@for_each(
    ("machine", "collective", "size", "way", "microseconds"),
    [
        # 8.4 + 7 steps of 3.4, and 2^20 bytes at 120 * 8/7 GB/s
        (DGX1, "allgather", MIB, ("Ring", "Simple"), 8.4 + 7 * 3.4 + 1.048576 * 7000 / 960),
        # LL: half of 120 is more than 39 GB/s, the most of a Volta
        (DGX1, "reducescatter", MIB, ("Ring", "LL"), 6.6 + 7 * 0.6 + 1.048576 * 7000 / 312),
        # LL128: 0.92 of 120 GB/s
        (DGX1, "allgather", MIB, ("Ring", "LL128"), 14 + 7 * 1.9 + 1048.576 * 7 / 8 / 110.4),
        # one step only, and bus bandwidth
        (DGX1, "broadcast", MIB, ("Ring", "Simple"), 8.4 + 3.4 + 1048.576 / 120),
        # tree: a chain of 7 there and back; 0.92 * 120 / 2 GB/s, 0.5 of that from 2^20 bytes on
        (DGX1, "allreduce", MIB, ("Tree", "Simple"), 8.4 + 2 * 7 * 4.0 + 1048.576 / 55.2 / 0.5),
        # tree LL128 on one server: 7/9 of 110.4, halved; 0.6 from 2^20 bytes on
        (DGX1, "allreduce", MIB, ("Tree", "LL128"),
         14 + 2 * 7 * 1.25 + 1048.576 / (110.4 * 7 / 18) / 0.6),
        # 56 steps inside, each at least 3 x 2 us with an AMD CPU; 6 between; plateau 1.4
        (A100_X4, "allreduce", 64 * MIB, ("Ring", "Simple"),
         (8.4 + 56 * 6 + 6 * 14) * 1.4 + 67108.864 * 62 / 32 / 192),
        # below 64 bytes for each rank and channel (16 KiB in all) there is no plateau
        (A100_X4, "allreduce", 8192, ("Ring", "Simple"),
         8.4 + 56 * 6 + 6 * 14 + 8.192 * 62 / 32 / 192),
        # tree of 4 servers: 2 * (7 * 4 + 2 * 14); 8 channels of at most 17.8; 0.9 at 2^28 bytes
        (A100_X4, "allreduce", 256 * MIB, ("Tree", "Simple"),
         8.4 + 2 * (7 * 4 + 2 * 14) + 268435.456 / (142.4 / 2) / 0.9),
        # NVLS: 8 channels of 360 / 8; 0.85 * 7/8 of that twice is more than that
        (H100, "allreduce", 64 * MIB, ("NVLS", "Simple"), 25 + 67108.864 * 14 / 8 / 360),
        # 0.85 * 7/8 * 7/8 of it: nothing is summed
        (H100, "allgather", 64 * MIB, ("NVLS", "Simple"),
         25 + 67108.864 / (360 * 0.85 * 49 / 64)),
        # a tree of 4 servers; 8 channels of at most 45.5
        (H100_X4, "allreduce", 64 * MIB, ("NVLSTree", "Simple"),
         25 + 2 * 2 * 20.9 + 67108.864 * 62 / 32 / (8 * 45.5)),
        # SHARP behind NVLS: one step between servers
        (H100_X4, "allreduce", 64 * MIB, ("NVLS", "Simple"),
         25 + 18 + 67108.864 * 62 / 32 / (8 * 48)),
        (H100_X4, "allreduce", 64 * MIB, ("CollNetDirect", "Simple"),
         2 * (3.7 + 7 * 0.4) + 31 + 67108.864 / (384 * 0.85 / 2)),
        (H100_X4, "allreduce", 64 * MIB, ("CollNetChain", "Simple"),
         2 * 7 * 2.8 + 30 + 67108.864 / (384 / 2)),
    ],
)  # fmt: skip
def test_a_time_is_what_the_formula_gives_by_hand(
    machine: Machine, collective: str, size: int, way: tuple[str, str], microseconds: float
) -> None:
    assert one(machine, collective, size, *way).time / 1e6 == pytest.approx(microseconds, rel=1e-6)


@pytest.mark.skipif(not GOLDEN.is_file(), reason="shared data with the golden times is not here")
def test_every_golden_time_is_met_to_a_thousandth() -> None:
    rows = json.loads(GOLDEN.read_text())["rows"]
    assert len(rows) >= 100
    for row in rows:
        given = row["params"]
        machine = Machine(
            given["n"], given["nodes"], given["nch"], Fraction(given["bwI"]),
            Fraction(given["bwX"]), given["arch"].lower(), "amd" if given.get("amd") else "intel",
        )  # fmt: skip
        found = choices(machine, row["collective"].lower(), row["bytes"])
        times = {f"{c.algorithm}/{c.protocol}": c.time / 1e6 for c in found}
        assert times == pytest.approx(row["all"], rel=1e-3), row


def test_a_tree_with_one_gpu_a_server_has_less_bandwidth_and_a_trees_nic() -> None:
    machine = Machine(2, 2, 1, Fraction(12), Fraction(12), "volta")
    # floor(log2 2) = 1: 2 * 14 us; 12 * 0.92 * 0.85 / 2 GB/s, of which 0.9 at 2^28 bytes
    tree = one(machine, "allreduce", 1 << 28, "Tree", "Simple")
    assert tree.time / 1e6 == pytest.approx(8.4 + 28 + 268435.456 / 4.692 / 0.9)
    # A ring's NIC would be 2.7 us for LL.
    ring = one(machine, "allreduce", 64, "Ring", "LL")
    assert ring.time / 1e6 == pytest.approx(6.6 + 2 * 5.0 + 0.064 / 6)


def test_ll128_is_not_run_over_pci() -> None:
    wired = Machine(8, 1, 2, Fraction(12), Fraction(12), "volta")
    pci = Machine(8, 1, 2, Fraction(12), Fraction(12), "volta", wire="pci")
    size = 512 * 1024
    assert fastest(wired, "allgather", size) == one(wired, "allgather", size, "Ring", "LL128")
    found = fastest(pci, "allgather", size)
    assert found is not None
    assert found.protocol != "LL128"


@for_each("generation", GENERATIONS)
@for_each("collective", ["allreduce", "allgather", "reducescatter", "broadcast"])
def test_small_calls_run_ll_and_large_ones_simple(generation: str, collective: str) -> None:
    machine = Machine(8, 1, 12, Fraction(30), Fraction(30), generation)
    small, large = (fastest(machine, collective, size) for size in (64, 1 << 32))
    assert small is not None
    assert large is not None
    assert (small.protocol, large.protocol) == ("LL", "Simple")
    assert small.time > small.base


def test_only_an_allreduce_may_run_a_tree() -> None:
    with_tree = [
        name for name in COLLECTIVES
        if any(choice.algorithm == "Tree" for choice in choices(DGX1, name, MIB))
    ]  # fmt: skip
    assert with_tree == ["allreduce"]


def test_an_algorithm_in_the_network_is_there_where_switches_have_what_it_needs() -> None:
    def found(machine: Machine, collective: str = "allreduce") -> set[str]:
        return {one.algorithm for one in choices(machine, collective, MIB)} - {"Ring", "Tree"}

    assert found(H100) == {"NVLS"}
    assert found(H100, "reducescatter") == {"NVLS"}
    assert found(H100, "broadcast") == set()
    assert found(H100_X4) == {"NVLS", "NVLSTree", "CollNetDirect", "CollNetChain"}
    assert found(H100_X4, "allgather") == set()
    assert found(replace(H100_X4, collnet=False)) == {"NVLSTree"}
    assert found(replace(H100_X4, nvls=False)) == {"CollNetDirect", "CollNetChain"}
    assert found(replace(H100, generation="ampere")) == set()
    assert found(replace(H100, ranks=4, servers=4)) == set()


@pytest.mark.parametrize("collective", ["alltoall", "gather", "scatter", "mine"])
def test_there_is_no_model_for_what_nccl_makes_of_sends(collective: str) -> None:
    assert fastest(DGX1, collective, MIB) is None


def test_there_is_nothing_to_model_for_one_rank() -> None:
    assert choices(Machine(1, 1, 1, Fraction(20), Fraction(20)), "allgather", MIB) == ()

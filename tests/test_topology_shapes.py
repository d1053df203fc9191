"""Parametric shapes and their short form: the right wires, and true symmetries."""

from fractions import Fraction
from pathlib import Path

import pytest

from taccl.errors import InputError
from taccl.symmetry import free_group, make_group
from taccl.topology import Topology
from taccl.topology_file import load_topology


def wires(topology: Topology) -> set[tuple[int, int]]:
    """Return the pairs that a wire joins, and check that each is there once in each direction."""
    ends = [(e.tail, e.head) for e in topology.edges]
    assert len(set(ends)) == len(ends)
    assert {(b, a) for a, b in ends} == set(ends)
    return {(a, b) for a, b in ends if a < b}


@pytest.mark.parametrize(
    ("spec", "pairs"),
    [
        ("ring:4", {(0, 1), (1, 2), (2, 3), (0, 3)}),
        ("ring:2", {(0, 1)}),
        ("mesh2d:2x3", {(0, 1), (1, 2), (3, 4), (4, 5), (0, 3), (1, 4), (2, 5)}),
        ("torus2d:2x3", {(0, 1), (1, 2), (0, 2), (3, 4), (4, 5), (3, 5), (0, 3), (1, 4), (2, 5)}),
        ("hypercube:4", {(0, 1), (2, 3), (0, 2), (1, 3)}),
        ("full:3", {(0, 1), (0, 2), (1, 2)}),
        ("mesh:3", {(0, 1), (1, 2)}),
    ],
)
def test_a_shape_has_its_wires(spec: str, pairs: set[tuple[int, int]]) -> None:
    assert wires(load_topology(spec)) == pairs


@pytest.mark.parametrize(
    ("spec", "ranks", "edges"),
    # edges = 2 * wires; torus n * dims wires, mesh (a-1)*b + a*(b-1)
    [("torus2d:8x8", 64, 256), ("torus3d:4x4x4", 64, 384), ("mesh2d:8x8", 64, 224),
     ("ring:16", 16, 32), ("hub:8", 8, 16), ("hypercube:16", 16, 64)],
)  # fmt: skip
def test_a_shape_has_its_size(spec: str, ranks: int, edges: int) -> None:
    topology = load_topology(spec)
    assert (topology.num_ranks, len(topology.edges)) == (ranks, edges)


def test_a_wire_is_50_gb_a_second_and_700_ns_by_default() -> None:
    assert {(e.beta, e.alpha) for e in load_topology("ring:4").edges} == {(Fraction(20), 700_000)}


@pytest.mark.parametrize(
    ("spec", "costs"),
    [
        ("torus2d:4x4@25GB/s,1us", (Fraction(40), 10**6)),
        ("ring:4@46us/MB", (Fraction(46), 700_000)),
    ],
)
def test_a_short_form_can_say_what_a_wire_costs(spec: str, costs: tuple[Fraction, int]) -> None:
    assert {(e.beta, e.alpha) for e in load_topology(spec).edges} == {costs}


def test_a_hub_crossing_takes_half_the_latency_on_each_edge_and_the_odd_one_last() -> None:
    topology = load_topology("hub:2@50GB/s,3ps")
    assert [(e.tail, e.head, e.alpha) for e in topology.edges] == [
        (0, 2, 1), (2, 0, 2), (1, 2, 1), (2, 1, 2),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "order"),
    # translations n; hypercube 2^bits; mesh: mirrors 2^dims
    [("ring:6", 6), ("torus2d:3x4", 12), ("torus3d:2x2x3", 12), ("hub:5", 5), ("hypercube:8", 8),
     ("full:4", 4), ("mesh2d:3x4", 4), ("mesh:5", 2)],
)  # fmt: skip
def test_the_declared_rotations_are_symmetries(spec: str, order: int) -> None:
    topology = load_topology(spec)
    assert len(make_group(topology, topology.rotations)) == order


@pytest.mark.parametrize("spec", ["ring:6", "torus2d:3x4", "hub:5", "hypercube:8"])
def test_translations_act_freely(spec: str) -> None:
    topology = load_topology(spec)
    assert len(free_group(topology, topology.rotations)) == topology.num_ranks


BAD = {
    "torus2d:8": r"torus2d has 2 dimensions, got 1\n  fix: write torus2d:4x4",
    "ring:4x4": r"a ring has one dimension, got 2",
    "ring:1": r"should make 2 to 65536 ranks, got 1",
    "torus2d:0x4": r"should make 2 to 65536 ranks, got 0x4",
    "torus2d:999x999": r"should make 2 to 65536 ranks, got 999x999",
    "full:5000": r"makes more than 1200000 edges",
    "hypercube:12": r"a hypercube has a power of two of ranks, got 12",
    "ring:x": r"'x' are no dimensions",
    "ring:": r"'' are no dimensions",
    "ring:9999999": r"'9999999' are no dimensions",
    "hub:8@25GBps": r"unknown unit 'GBps'",
    "hub:8@": r"should be a bandwidth, got ''",
    "hub:8@1GB/s,": r"should be a time, got ''",
    "hub:8@0": r"should be greater than 0",
}


@pytest.mark.parametrize("spec", BAD)
def test_a_bad_short_form_is_one_error_with_a_fix(spec: str) -> None:
    with pytest.raises(InputError, match=f"^topology: {BAD[spec]}") as error:
        load_topology(spec)
    assert error.value.fix


def shape(text: str, path: Path) -> Topology:
    file = path / "s.yaml"
    file.write_text(f"taccl: topology/1\nname: s\nshape: {text}\n")
    return load_topology(str(file))


def test_a_file_can_hold_a_shape(tmp_path: Path) -> None:
    found = shape("{kind: torus, dims: [2, 3], bandwidth: 50GB/s, alpha: 0.5us}", tmp_path)
    assert wires(found) == wires(load_topology("torus2d:2x3"))
    assert {(e.beta, e.alpha) for e in found.edges} == {(Fraction(20), 500_000)}


BAD_FILES = {
    "{kind: circle, dims: [3]}": r"shape.kind: should be 'ring', .*got 'circle'",
    "{kind: ring}": r"shape.dims: is missing\n  fix: write dims: \[8, 8\]",
    "{kind: ring, dims: [0]}": r"shape.dims\[0\]: should be at least 1, got 0",
    "{kind: ring, dims: [2, 2]}": r"shape.dims: a ring has one dimension",
    "{kind: torus, dims: [1, 1]}": r"shape.dims: should make 2 to 65536 ranks",
    "{kind: torus, dims: [60000, 60000]}": r"shape.dims: should make 2 to 65536 ranks",
    "{kind: ring, dims: [4], alhpa: 1us}": r"shape.alhpa: unknown field\n  fix: did you mean alpha",
    "7": r"shape: should be a mapping of fields, got 7",
}


@pytest.mark.parametrize("text", BAD_FILES)
def test_a_bad_shape_in_a_file_names_the_field(text: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"s.yaml:3: {BAD_FILES[text]}"):
        shape(text, tmp_path)

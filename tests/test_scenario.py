"""Scenario files: what names mean on a topology, and what is wrong with a file, line by line."""

from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path

import pytest

from taccl.errors import InputError
from taccl.replay.scenario import DEFAULT_RUNS, Change, DistributionRecord, Flow, read_scenario
from taccl.topology.file import load_topology
from taccl.topology.graph import Topology
from tests.replay.scenarios import scenario
from tests.sweep import for_each

US = 1_000_000


@pytest.fixture(scope="module")
def machine() -> Topology:
    """Two servers of eight GPUs, NICs on rails."""
    return load_topology("dgx-a100", nodes=2)


def names(topology: Topology, edges: Iterable[int]) -> list[str]:
    return [topology.edges[edge].name for edge in edges]


def test_an_edge_is_named_as_the_expanded_topology_names_it(machine: Topology) -> None:
    found = scenario(machine, degraded=[{"edge": "s0/ib3.tx->rail3", "factor": 0.5}])
    assert names(machine, found.factors) == ["s0/ib3.tx->rail3"]


def test_a_star_stands_for_any_text(machine: Topology) -> None:
    found = scenario(machine, degraded=[{"edge": "s1/ib*.tx->rail*", "factor": 0.5}])
    assert names(machine, found.factors) == [f"s1/ib{i}.tx->rail{i}" for i in range(8)]
    assert len(scenario(machine, degraded=[{"edge": "*", "down": True}]).down) == len(machine.edges)


@for_each(
    ("text", "found"),
    [
        ("0->*", ["0->1", "0->3"]), ("*->0", ["1->0", "3->0"]), ("*2*3*", ["2->3"]),
        ("1->1*", []), ("*1->0*", ["1->0"]), ("**3->*", ["3->2", "3->0"]), ("*>2*>*", []),
        ("0->1", ["0->1"]), ("*" + "-*" * 90, []),
    ],
)  # fmt: skip
def test_texts_between_stars_are_found_in_order(text: str, found: list[str]) -> None:
    ring = load_topology("ring:4")
    entry = [{"edge": text, "factor": 0.5}]
    if found:
        assert sorted(names(ring, scenario(ring, degraded=entry).factors)) == sorted(found)
    else:
        with pytest.raises(InputError, match="has no edge"):
            scenario(ring, degraded=entry)


def test_a_link_stands_for_its_edges_one_way_or_both(machine: Topology) -> None:
    one = scenario(machine, degraded=[{"link": "0->1", "factor": 0.5}])
    assert names(machine, one.factors) == ["0->s0/nvswitch", "s0/nvswitch->1"]
    both = scenario(machine, degraded=[{"link": "0-1", "factor": 0.5}])
    assert len(both.factors) == 4


def test_edges_without_a_bandwidth_lose_none_of_it(machine: Topology) -> None:
    found = scenario(machine, background=[{"link": "0->8", "share": 0.1}])
    assert names(machine, found.factors) == ["s0/ib0.tx->rail0", "rail0->s1/ib0.rx"]


def test_numbers_are_exact() -> None:
    ring = load_topology("ring:4")
    entries = [{"edge": f"{r}->{r + 1}", "factor": f} for r, f in enumerate((0.1, "1/3", "2e-1"))]
    found = scenario(ring, degraded=entries)
    assert list(found.factors.values()) == [Fraction(1, 10), Fraction(1, 3), Fraction(1, 5)]


def test_every_part_of_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("""taccl: scenario/1
name: all
seed: 7
background:
  - {edge: 0->1, share: 0.25}
  - {edge: 1->2, size: 64KB, period: 10us, start: 3us}
stragglers: [{ranks: 0-1, late: 5us}, {ranks: 1, late: 1us, slow: 1.5}]
jitter: {message: {distribution: exponential, mean: 1us}}
degraded: [{edge: 2->3, factor: 0.5}, {edge: 3->0, down: true}]
changes: [{edge: 0->1, at: 9us, factor: 0.5}, {edge: 0->1, at: 8us, factor: 0.25}]
also: [{program: sub/other.xml, size: 4MB, start: 20us}]
""")
    ring = load_topology("ring:4")
    found = read_scenario(str(path), ring)
    number = {edge.name: edge.id for edge in ring.edges}
    assert (found.name, found.seed, found.runs) == ("all", 7, DEFAULT_RUNS)
    assert found.factors == {number["0->1"]: Fraction(3, 4), number["2->3"]: Fraction(1, 2)}
    assert list(found.down) == [number["3->0"]]
    assert found.flows == (Flow((number["1->2"],), 700_000, 64_000, 10 * US, 3 * US),)
    assert found.late == {0: 5 * US, 1: 6 * US}
    assert found.slow == {1: Fraction(3, 2)}
    assert found.message_delay == DistributionRecord(distribution="exponential", mean=f"{US}ps")
    assert found.start_delay is None
    assert found.changes == (
        Change(8 * US, number["0->1"], Fraction(1, 4)),
        Change(9 * US, number["0->1"], Fraction(1, 2)),
    )
    (other,) = found.also
    assert (other.program, other.size, other.start) == ("sub/other.xml", 4_000_000, 20 * US)


@for_each(
    ("fields", "is_static"),
    [
        ({}, True),
        ({"background": [{"edge": "*", "share": 0.5}]}, True),
        ({"degraded": [{"edge": "*", "factor": 0.5}]}, True),
        ({"stragglers": [{"ranks": "all", "late": 0, "slow": 1}]}, True),
        ({"stragglers": [{"ranks": 0, "late": 1}]}, False),
        ({"changes": [{"edge": "*", "at": 0, "factor": 1}]}, False),
        ({"jitter": {"start": {"distribution": "uniform", "mean": 1}}}, False),
        ({"also": [{"program": "x.xml"}]}, False),
    ],
)  # fmt: skip
def test_shares_and_factors_alone_are_another_topology(
    fields: dict[str, object], *, is_static: bool
) -> None:
    assert scenario(load_topology("ring:4"), **fields).is_static is is_static


BAD = {
    "degraded: [{edge: 0->9, factor: 0.5}]": r"degraded\[0\].edge: \S+ has no edge '0->9'",
    "degraded: [{link: 0-2, factor: 0.5}]": r"degraded\[0\].link: \S+ has no link 0 -> 2",
    "degraded: [{link: 0-7, factor: 0.5}]": r"degraded\[0\].link: there is no rank 7",
    "degraded: [{link: both, factor: 0.5}]": r"should be two ranks, got 'both'",
    "degraded: [{edge: 0->1, link: 0-1, factor: 0.5}]": r"degraded\[0\]: edge and link are both",
    "degraded: [{factor: 0.5}]": r"degraded\[0\]: needs an edge or a link",
    "degraded: [{edge: 0->1}]": r"degraded\[0\]: needs either a factor or down: true",
    "degraded: [{edge: 0->1, factor: 0.5, down: true}]": r"needs either a factor or down: true",
    "degraded: [{edge: 0->1, factor: 0}]": r"factor: should be a number from 0.000001 to 1, got 0",
    "degraded: [{edge: 0->1, factor: 1.5}]": r"from 0.000001 to 1, got 1.5",
    "degraded: [{edge: 0->1, factor: 1/0}]": r"from 0.000001 to 1, got '1/0'",
    "degraded: [{edge: 0->1, factor: 1e-99}]": r"from 0.000001 to 1, got 1e-99",
    "degraded: [{edge: 0->1, factor: [1]}]": r"from 0.000001 to 1, got a list of 1",
    "changes: [{edge: 0->1, at: 5us}]": r"changes\[0\].factor: is missing",
    "changes: [{edge: 0->1, at: -5us, factor: 0.5}]": r"changes\[0\].at: should be a time",
    "background: [{edge: 0->1}]": r"background\[0\]: needs a share, or a size and a period above 0",
    "background: [{edge: 0->1, size: 1KB}]": r"needs a share, or a size and a period above 0",
    "background: [{edge: 0->1, size: 1KB, period: 0us}]": r"a size and a period above 0",
    "background: [{edge: 0->1, share: 0.5, size: 1KB}]": r"share does not go with size, period",
    "background: [{edge: 0->1, share: 1}]": r"share: should be a number from 0 to 0.999999, got 1",
    "background: [{edge: 0->1, share: 0.6}, {edge: '*', share: 0.4}]": r"nothing is left of edge",
    "stragglers: [{ranks: 4}]": r"stragglers\[0\].ranks: there is no rank 4",
    "stragglers: [{ranks: 0, slow: 0.5}]": r"slow: should be a number from 1 to 1000000, got 0.5",
    "jitter: {message: {distribution: normal, mean: 1us}}": r"jitter.message.distribution: should",
    "jitter: {message: {distribution: uniform}}": r"jitter.message.mean: is missing",
    "runs: 5": r"s.yaml:4: runs: all 5 runs would be equal",
    "runs: 0": r"runs: should be at least 1, got 0",
    "seed: -1": r"seed: should be at least 0",
    "straglers: []": r"straglers: unknown field\n  fix: did you mean stragglers\?",
    "also: [{size: 1MB}]": r"also\[0\].program: is missing",
}


@for_each(("line", "problem"), BAD.items(), ids=BAD)
def test_a_wrong_scenario_names_file_field_and_fix(line: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(f"taccl: scenario/1\nname: bad\n\n{line}\n")
    with pytest.raises(InputError, match=problem) as caught:
        read_scenario(str(path), load_topology("ring:4"))
    assert caught.value.fix
    assert str(caught.value).startswith(f"{path}:4: ")


def test_an_edge_that_only_adds_alpha_has_nothing_to_lose(machine: Topology) -> None:
    with pytest.raises(InputError, match="has no bandwidth to lose"):
        scenario(machine, degraded=[{"edge": "0->s0/ib0.tx", "factor": 0.5}])

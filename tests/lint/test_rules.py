"""Every rule finds what it is for, in a topology that is right but for that, and nothing else."""

import re
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl.topology.file import load_topology
from taccl.topology.graph import Edge, Topology
from taccl.topology.lint import RULES, check_topology, lint
from tests.generators import build, random_topology
from tests.sweep import for_each

HEAD = "taccl: topology/1\nname: made\n"


def wire(a: int, b: int, rest: str = "bandwidth: 25GB/s, alpha: 0.7us") -> str:
    return f"- {{from: {a}, to: {b}, {rest}}}\n"


def ring(ranks: int, **others: str) -> str:
    """Return a ring as a file, some wires of which are otherwise (``w0`` is 0 -> 1)."""
    wires = [wire(r, (r + 1) % ranks, others.get(f"w{r}", "bandwidth: 25GB/s, alpha: 0.7us"))
             for r in range(ranks)]  # fmt: skip
    return f"{HEAD}ranks: {ranks}\nedges:\n{''.join(wires)}"


def servers(nvlink: str = "300GB/s", nic: str = "25GB/s", more: str = "") -> str:
    return (
        f"{HEAD}node:\n  gpus: 4\n  switches:\n"
        f"    - {{name: nvs, members: 0-3, bandwidth: {nvlink}, alpha: 0.7us}}\n{more}"
        f"  nics:\n    - {{name: ib0, gpus: all, bandwidth: {nic}}}\n"
        "count: 2\nfabric: {kind: switch, alpha: 1.7us}\n"
    )


BROKEN: Mapping[str, tuple[str, str, str | None]] = {
    "unreachable": (
        f"{HEAD}ranks: 3\nedges:\n{wire(0, 1)}", "rank 2 can't be reached from rank 0", None,
    ),
    "no-symmetry": (
        ring(4, w1="bandwidth: 50GB/s, alpha: 0.7us") + "rotations: [[1, 2, 3, 0]]\n",
        "is no symmetry", None,
    ),
    "slow-bandwidth": (
        ring(4, **{f"w{r}": "bandwidth: 25MB/s, alpha: 0.7us" for r in range(4)}),
        r"edges 0->1, 1->0, 1->2 and 5 more: 0.025 GB/s is less than 0.1 GB/s", "edges[0]",
    ),
    "fast-rank": (servers(nvlink="2400GB/s"), "2406 GB/s .* more than any GPU has",
                  "node.switches[0]"),
    "fast-nic": (servers(nic="800GB/s"), "800 GB/s between servers is more", "node.nics[0]"),
    "long-latency": (
        ring(4, **{f"w{r}": "bandwidth: 25GB/s, alpha: 2ms" for r in range(4)}),
        "an alpha of 2000 us is more than 1 ms", "edges[0]",
    ),
    "no-latency": (
        ring(4, **{f"w{r}": "bandwidth: 25GB/s" for r in range(4)}), "8 links have no alpha",
        "edges[0]",
    ),
    "free-path": (ring(4, w2="alpha: 0.7us"), "2 of 8 links have no bandwidth", "edges[2]"),
    "one-way": (
        ring(3, w1="bandwidth: 25GB/s, alpha: 0.7us, both: false"),
        "pair 1 -> 2: 1 pairs have links in one direction only", "edges[1]",
    ),
    "uneven": (
        ring(3, w1="bandwidth: 25GB/s, alpha: 0.7us, both: false")
        + wire(2, 1, "bandwidth: 20GB/s, alpha: 0.7us, both: false"),
        "pairs 1 -> 2, 2 -> 1: bandwidth, alpha or number", "edges[1]",
    ),
    "slow-rank": (
        HEAD + "ranks: 4\nswitches: [s]\nedges:\n" + "".join(
            f"- {{from: {r}, to: s, bandwidth: {11 if r == 2 else 25}GB/s, alpha: 0.7us}}\n"
            for r in range(4)
        ),
        r"rank 2: can (send|receive) 11 GB/s, the median of its server is 25 GB/s", "edges[2]",
    ),
    "slow-edge": (
        HEAD + "ranks: 4\nedges:\n" + "".join(
            wire(a, b, f"bandwidth: {2.5 if (a, b) == (1, 3) else 25}GB/s, alpha: 0.7us")
            for a in range(4) for b in range(a + 1, 4)
        ),
        r"edges 1->3, 3->1: 2.5 GB/s, the median of its kind is 25 GB/s", "edges[4]",
    ),
    "unused-switch": (
        servers(more="    - {name: idle, members: 0, bandwidth: 1GB/s, alpha: 0.7us}\n"),
        "switches s0/idle, s1/idle: no shortest way", "node.switches[1]",
    ),
    "unused-edge": (
        HEAD + "ranks: 3\nswitches: [s, t]\nedges:\n" + "".join(
            f"- {{from: {r}, to: {switch}, bandwidth: 25GB/s, alpha: 0.7us}}\n"
            for r in range(3) for switch in "st"
        ) + "- {from: s, to: t, bandwidth: 25GB/s, alpha: 0.7us}\n",
        "edges s->t, t->s: 2 edges are on no shortest way", "edges[6]",
    ),
    "far-from-ranks": (
        HEAD + "ranks: 4\nswitches: [{name: a, reduce: true}, {name: top, multicast: true,"
        " reduce: {turn: rank, own: through}}, {name: c, multicast: true, reduce: true}]\nedges:\n"
        + "".join(
            f"- {{from: {r}, to: {s}, bandwidth: 25GB/s, alpha: 0.7us}}\n"
            for r, s in ((0, "a"), (1, "a"), (2, "c"), (3, "c"), ("a", "top"), ("top", "c"))
        ),
        "switch top: turn: rank", "edges[4]",
    ),
    "small-window": (
        HEAD + "ranks: 3\nswitches: [{name: s, multicast: true, engine: {window: {slots: 512,"
        " bytes: 2B}}}]\nedges:\n" + "".join(
            f"- {{from: {r}, to: s, bandwidth: 25GB/s, alpha: 0.7us}}\n" for r in range(3)
        ),
        "switch s: a slot of the window", None,
    ),
    "duplicate": (
        ring(3, w0="bandwidth: 25GB/s, alpha: 0.7us, name: a")
        + wire(0, 1, "bandwidth: 25GB/s, alpha: 0.7us, name: b"),
        "edges b, b.reverse: another edge has the same ends", "edges[3]",
    ),
}  # fmt: skip
"""A topology for each rule: its text, what is found, and where."""


def test_every_rule_has_a_topology_that_breaks_it() -> None:
    assert set(BROKEN) == set(RULES)


@for_each("rule", BROKEN)
def test_a_rule_finds_what_it_is_for_and_no_other_rule_objects(rule: str, tmp_path: Path) -> None:
    text, problem, field = BROKEN[rule]
    path = tmp_path / "made.yaml"
    path.write_text(text)
    checked = check_topology(str(path))
    assert checked.error is None
    assert {finding.rule for finding in checked.findings} == {rule}
    finding = checked.findings[0]
    assert re.search(problem, f"{finding.where}: {finding.problem}")
    assert (finding.severity, finding.field) == (RULES[rule].severity, field)
    assert finding.fix
    assert checked.usable == (RULES[rule].severity != "error")
    if field is not None:
        start = {"edges": "- {", "node": "{name"}[field.partition(".")[0].partition("[")[0]]
        line = text.splitlines()[(finding.line or 0) - 1]
        assert start in line
        assert str(finding).startswith(f"{finding.severity}: {path}:{finding.line}: {field}: ")


GOOD = (ring(4), servers(), servers(nic="100GB/s"), servers(nic="400GB/s"),
        ring(4, w0="bandwidth: 100GB/s, alpha: 0.7us"),
        ring(6, w0="bandwidth: 25GB/s, alpha: 0.9ms").replace("0.7us", "0.1ms"))  # fmt: skip


@pytest.mark.parametrize("text", GOOD, ids=range(len(GOOD)))
def test_what_machines_may_have_is_not_objected_to(text: str, tmp_path: Path) -> None:
    path = tmp_path / "made.yaml"
    path.write_text(text)
    assert check_topology(str(path)).findings == ()


@for_each(
    "spec",
    ["ring:16", "mesh2d:8x8", "mesh3d:3x3x3", "torus3d:4x4x4", "hypercube:64", "full:16", "hub:64",
     "leaf-spine:8x8x4", "fat-tree:8", "dragonfly:9x4x2", "mesh:2"],
)  # fmt: skip
def test_shapes_are_not_objected_to(spec: str) -> None:
    assert lint(load_topology(spec)) == ()


def test_findings_are_in_the_order_of_the_table_and_errors_first() -> None:
    broken = replace(
        load_topology("ring:4"), rotations=((1, 0, 2, 3),),
        edges=tuple(replace(e, alpha=0, beta=None) for e in load_topology("ring:4").edges),
    )  # fmt: skip
    assert [f.rule for f in lint(broken)] == ["no-symmetry", "no-latency", "free-path"]
    ranks = [("error", "warning", "note").index(rule.severity) for rule in RULES.values()]
    assert ranks == sorted(ranks)


def test_two_links_there_and_one_back_are_one_pair_that_differs() -> None:
    # What follows in the table must not be compared with what it does not lie beside.
    ends = [(0, 1), (0, 1), (1, 0), (1, 2), (2, 1)]
    hops = [(tail, head, 5, None, Fraction(2)) for tail, head in ends]
    found = [f for f in lint(build("net", 3, hops)) if f.rule == "uneven"]
    assert [f.where for f in found] == ["pairs 0 -> 1, 1 -> 0"]


def test_a_shared_nic_may_be_as_fast_as_the_nics_of_all_that_share_it(tmp_path: Path) -> None:
    path = tmp_path / "made.yaml"
    path.write_text(servers(nic="401GB/s"))
    assert [f.rule for f in check_topology(str(path)).findings] == ["fast-nic"]


PCIE = """\
taccl: topology/1
name: made
node:
  gpus: 4
  switches:
    - {name: plx, bandwidth: 24GB/s, alpha: 0.7us, links: [{to: cpu, bandwidth: 24GB/s}]}
    - {name: cpu, members: []}
  nics: [{name: ib0, at: HUB, bandwidth: NIC}]
count: 2
fabric: {kind: leaf-spine, leaves: 2, uplink: 400GB/s, alpha: 1.7us}
"""


@pytest.mark.parametrize("hub", ["plx", "cpu"])
@pytest.mark.parametrize(("nic", "rules"), [("800GB/s", ["fast-nic"]), ("100GB/s", [])])
def test_a_nic_at_a_switch_may_be_as_fast_as_one_nic(
    hub: str, nic: str, rules: list[str], tmp_path: Path
) -> None:
    # No rank touches the NIC; the leaf of one server alone is no NIC, however fast its uplink.
    path = tmp_path / "made.yaml"
    path.write_text(PCIE.replace("HUB", hub).replace("NIC", nic))
    found = [f for f in check_topology(str(path)).findings if f.rule == "fast-nic"]
    assert [f.rule for f in found] == rules
    assert [f.field for f in found] == ["node.nics[0]"] * len(rules)


@pytest.mark.parametrize(("beside", "rules"), [("200GB/s", []), ("201GB/s", ["fast-rank"])])
def test_a_rank_may_have_pcie_and_a_nic_beside_the_fastest_links(
    beside: str, rules: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "made.yaml"
    rest = "alpha: 0.7us, name"
    path.write_text(
        f"{HEAD}ranks: 2\nedges:\n" + wire(0, 1, f"bandwidth: 1800GB/s, {rest}: nvlink")
        + wire(0, 1, f"bandwidth: {beside}, {rest}: pcie")
    )  # fmt: skip
    assert [f.rule for f in check_topology(str(path)).findings] == rules


@settings(max_examples=60)
@given(st.integers(0, 10**6))
def test_any_topology_is_looked_at_and_findings_name_edges_that_exist(seed: int) -> None:
    topology = random_topology(seed)
    for finding in lint(topology):
        assert RULES[finding.rule].severity == finding.severity
        assert all(0 <= edge < len(topology.edges) for edge in finding.edges)
        assert finding.where
        assert finding.fix


@settings(max_examples=40)
@given(st.integers(2, 9), st.data())
def test_an_edge_that_is_ten_times_slower_than_all_others_is_found(
    ranks: int, data: st.DataObject
) -> None:
    whole = load_topology(f"full:{ranks + 1}")
    victim = data.draw(st.integers(0, len(whole.edges) - 1))
    edges = tuple(slower(edge, 10) if edge.id == victim else edge for edge in whole.edges)
    found = {f.rule: f for f in lint(replace(whole, edges=edges))}
    assert "uneven" in found
    assert found["slow-edge"].edges == (victim,)


def slower(edge: Edge, times: int) -> Edge:
    return replace(edge, beta=(edge.beta or Fraction(1)) * times)


def renamed(topology: Topology) -> Topology:
    """Return a topology with ranks in the opposite order."""
    last = topology.num_ranks - 1
    flip = [last - v if v <= last else v for v in range(last + 1 + len(topology.switches))]
    edges = tuple(replace(e, tail=flip[e.tail], head=flip[e.head]) for e in topology.edges)
    return replace(
        topology, edges=edges, server_of=topology.server_of[::-1],
        rotations=tuple(tuple(last - r for r in reversed(x)) for x in topology.rotations),
    )  # fmt: skip


@for_each("seed", range(20))
def test_what_is_found_does_not_depend_on_the_numbers_of_ranks(seed: int) -> None:
    topology = random_topology(seed)
    one, other = lint(topology), lint(renamed(topology))
    assert [f.rule for f in one] == [f.rule for f in other]

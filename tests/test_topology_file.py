"""The core graph form, specs, connectivity, and exact round trips."""

from fractions import Fraction
from pathlib import Path

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl.errors import InputError
from taccl.files import parse_document
from taccl.topology.file import (
    MAX_TOLD,
    describe,
    expand_text,
    load_topology,
    shipped_topologies,
    topology_digest,
    topology_document,
    topology_from_document,
    unreachable_pair,
)
from taccl.topology.graph import Edge, FanEngine, LocalCosts, Multicast, Reduction, Switch, Topology
from tests.generators import build
from tests.sweep import for_each

HEAD = "taccl: topology/1\nname: tiny\n"
PAIR = HEAD + "ranks: 2\nedges:\n- {from: 0, to: 1, bandwidth: 25GB/s, alpha: 0.7us}\n"

TWO_PAIRS = """\
taccl: topology/1
name: two-pairs
ranks: 4
switches: [nvs]
edges:
  - {from: 0, to: nvs, bandwidth: 125GB/s, alpha: 0.35us}
  - {from: 1, to: nvs, bandwidth: 125GB/s, alpha: 0.35us}
  - {from: 2, to: 3, bandwidth: 25GB/s, alpha: 0.7us}
  - {from: 0, to: 2, bandwidth: 12.5GB/s, alpha: 1.7us, both: true}
  - {from: 1, to: 3, bandwidth: 12.5GB/s, alpha: 1.7us}
servers: [[0, 1], [2, 3]]
rotations: [[1, 0, 3, 2]]
alpha_rule: delay
local: {copy_bandwidth: 0, reduce_bandwidth: 500GB/s, launch: 3us}
chunk_size: 1KB
"""


def load(text: str, path: Path) -> Topology:
    file = path / "t.yaml"
    file.write_text(text)
    return load_topology(str(file))


def same(a: Topology, b: Topology) -> bool:
    """Tell whether two topologies agree in every field."""
    fields = (
        "name", "num_ranks", "switches", "edges", "server_of", "rotations", "alpha_rule", "local",
        "chunk_size",
    )  # fmt: skip
    return all(getattr(a, field) == getattr(b, field) for field in fields)


def test_every_field_of_the_graph_form_is_read(tmp_path: Path) -> None:
    found = load(TWO_PAIRS, tmp_path)
    assert (found.name, found.num_ranks, found.switches) == ("two-pairs", 4, (Switch("nvs"),))
    assert found.server_of == (0, 0, 1, 1)
    assert found.rotations == ((1, 0, 3, 2),)
    assert (found.alpha_rule, found.chunk_size) == ("delay", Fraction(1000))
    assert found.local == LocalCosts(Fraction(0), Fraction(2), 3_000_000)


def test_an_edge_adds_its_reverse_right_after_it(tmp_path: Path) -> None:
    edges = load(TWO_PAIRS, tmp_path).edges
    # 125 GB/s is 8 ps a byte; vertex 4 is the switch.
    assert edges[:2] == (
        Edge(0, 0, 4, 350_000, None, Fraction(8), "0->nvs"),
        Edge(1, 4, 0, 350_000, None, Fraction(8), "nvs->0"),
    )
    assert len(edges) == 10


def test_an_edge_can_have_no_reverse(tmp_path: Path) -> None:
    text = (
        HEAD
        + "ranks: 2\nedges:\n- {from: 0, to: 1, both: false}\n- {from: 1, to: 0, both: false}\n"
    )
    assert [(e.tail, e.head) for e in load(text, tmp_path).edges] == [(0, 1), (1, 0)]


@pytest.mark.parametrize("bandwidth", ["", ", bandwidth: none", ", bandwidth: null"])
def test_an_edge_without_bandwidth_is_no_resource(bandwidth: str, tmp_path: Path) -> None:
    text = HEAD + f"ranks: 2\nedges:\n- {{from: 0, to: 1, alpha: 1us{bandwidth}}}\n"
    assert [e.beta for e in load(text, tmp_path).edges] == [None, None]


def test_overhead_is_kept_as_given(tmp_path: Path) -> None:
    text = HEAD + "ranks: 2\nedges:\n- {from: 0, to: 1, alpha: 1us, overhead: 0.2us}\n"
    assert [e.overhead for e in load(text, tmp_path).edges] == [200_000, 200_000]


def test_parallel_edges_need_names_and_the_reverse_is_named_after_them(tmp_path: Path) -> None:
    text = HEAD + "ranks: 2\nedges:\n- {from: 0, to: 1, name: a}\n- {from: 0, to: 1, name: b}\n"
    names = [e.name for e in load(text, tmp_path).edges]
    assert names == ["a", "a.reverse", "b", "b.reverse"]


def test_switch_records_have_flags(tmp_path: Path) -> None:
    text = (
        PAIR + "switches: [{name: s, multicast: true, reduce: true}, {name: f, across: servers}]\n"
    )
    assert load(text, tmp_path).switches == (
        Switch("s", Multicast(), Reduction()),
        Switch("f", across_servers=True),
    )


def test_what_a_switch_can_do_is_read_and_true_is_a_record_without_fields(tmp_path: Path) -> None:
    text = (
        PAIR
        + """switches:
- name: nvs
  multicast: {own: through}
  reduce: {turn: rank, own: through, types: [int32]}
  engine: {bandwidth: 500GB/s, alpha: 0.3us, window: {slots: 64, bytes: 2KiB}, message: 1GiB}
  groups: 64
- {name: leaf, multicast: {}, reduce: {}, trees: 2}
"""
    )
    found = load(text, tmp_path)
    engine = FanEngine(Fraction(2), 300_000, (64, Fraction(2048)), Fraction(1 << 30))
    assert found.switches == (
        Switch("nvs", Multicast(through=True), Reduction(True, True, ("int32",)), engine=engine,
               groups=64),
        Switch("leaf", Multicast(), Reduction(), trees=2),
    )  # fmt: skip
    assert "multicast: true, reduce: true" in expand_text(found)
    bad = {
        "{name: s, engine: {bandwidth: 1GB/s}}": "engine limits what copies or adds",
        "{name: s, trees: 2}": "trees limits what copies or adds",
        "{name: s, multicast: {own: home}}": "should be 'local' or 'through', got 'home'",
        "{name: s, reduce: {turn: leaf}}": "should be 'switch' or 'rank'",
        "{name: s, reduce: {types: [fp4]}}": "reduce.types.*fp4",
        "{name: s, multicast: 3}": "should be a mapping",
        "{name: s, multicast: true, groups: 0}": "at least 1",
    }
    for record, problem in bad.items():
        with pytest.raises(InputError, match=problem):
            load(PAIR + f"switches: [{record}]\n", tmp_path)


SHAPE = HEAD + "shape: {kind: fat-tree, dims: [4], switches: [{name: '*/edge*', reduce: true}]}\n"


def test_switches_of_shapes_and_fabrics_can_do_what_a_file_says_by_name(tmp_path: Path) -> None:
    able = [s.name for s in load(SHAPE, tmp_path).switches if s.is_station]
    assert able == [f"p{pod}/edge{edge}" for pod in range(4) for edge in range(2)]
    assert load(SHAPE, tmp_path).rotations == load_topology("fat-tree:4").rotations
    # One leaf that can do more than the others stays where it is: ranks 2 and 3 swap, at most.
    one = load(SHAPE.replace("*/edge*", "p0/edge1"), tmp_path)
    assert {frozenset(rotation[2:4]) for rotation in one.rotations} == {frozenset((2, 3))}
    servers = HEAD + (
        "node: {gpus: 2, switches: [{name: r, multicast: true}], nics: [{name: a, gpus: all,"
        " bandwidth: 1GB/s}]}\ncount: 2\n"
        "fabric: {kind: rail, switches: [{name: r*, reduce: true}]}\n"
    )
    found = load(servers, tmp_path).switches
    assert [(s.name, s.multicast is None, s.reduce is None) for s in found if s.is_station] == [
        ("s0/r", False, True), ("s1/r", False, True), ("rail0", True, False),
    ]  # fmt: skip
    with pytest.raises(InputError, match=r"fabric.switches\[0\].name: no switch is called 'leaf"):
        load(servers.replace("r*", "leaf*"), tmp_path)
    with pytest.raises(InputError, match=r"shape.switches\[0\].name: no switch is called 'nvs'"):
        load(SHAPE.replace("*/edge*", "nvs"), tmp_path)


def edge(text: str) -> str:
    return HEAD + f"ranks: 2\nedges:\n- {text}\n"


BAD = {
    "unknown field": (
        edge("{from: 0, to: 1, bandwith: 1}"),
        r":5: edges\[0\].bandwith: unknown field",
    ),
    "zero": (
        edge("{from: 0, to: 1, bandwidth: 0}"),
        r":5: edges\[0\].bandwidth: .*greater than 0, got 0",
    ),
    "negative": (
        edge("{from: 0, to: 1, bandwidth: -23GB/s}"),
        r"greater than 0, got -23GB/s\n  fix: give",
    ),
    "unit typo": (edge("{from: 0, to: 1, bandwidth: 25GBps}"), r"unknown unit 'GBps' in '25GBps'"),
    "negative alpha": (edge("{from: 0, to: 1, alpha: -1us}"), r"alpha: should be a time between 0"),
    "overhead": (
        edge("{from: 0, to: 1, alpha: 1us, overhead: 2us}"),
        r"overhead: .*more than alpha",
    ),
    "loop": (edge("{from: 0, to: 0}"), r":5: edges\[0\]: an edge from 0 to itself"),
    "no vertex": (edge("{from: 0, to: nvs}"), r"edges\[0\].to: there is no vertex 'nvs'"),
    "no rank": (
        edge("{from: 2, to: 1}"),
        r"edges\[0\].from: there is no vertex 2\n  fix: use a rank from 0 to 1",
    ),
    "bool vertex": (
        edge("{from: true, to: 1}"),
        r"from: should be a rank or the name of a switch, got True",
    ),
    "no end": (edge("{from: 0}"), r"edges\[0\].to: is missing\n  fix: write to: 1"),
    "repeated": (
        PAIR + "- {from: 1, to: 0}\n",
        r"edges\[1\]: edge 1->0 is there already, as edges\[0\]",
    ),
    "one named": (PAIR + "- {from: 0, to: 1, name: b}\n", r"edges\[1\]: .*there already"),
    "equal names": (
        HEAD + "ranks: 2\nedges:\n- {from: 0, to: 1, name: a}\n- {from: 0, to: 1, name: a}\n",
        r":6: edges\[1\].name: edges\[0\] is called 'a', too",
    ),
    "unreachable": (
        HEAD + "ranks: 3\nedges:\n- {from: 0, to: 1}\n",
        r"edges: rank 2 can't be reached from rank 0",
    ),
    "one way": (edge("{from: 0, to: 1, both: false}"), r"rank 0 can't be reached from rank 1"),
    "no edges": (HEAD + "ranks: 2\n", r"edges: is missing"),
    "many ranks": (
        HEAD + "ranks: 70000\nedges: []\n",
        r"ranks: should be at most 65536, got 70000",
    ),
    "servers": (PAIR + "servers: [[0]]\n", r"servers: rank 1 is in no server"),
    "server twice": (
        PAIR + "servers: [[0, 1], [1]]\n",
        r"servers\[1\]\[0\]: rank 1 is in a server already",
    ),
    "server rank": (PAIR + "servers: [[0, 1, 2]]\n", r"servers\[0\]\[2\]: there is no rank 2"),
    "empty server": (PAIR + "servers: [[0, 1], []]\n", r"servers\[1\]: is empty"),
    "rotation": (
        PAIR + "rotations: [[0, 0]]\n",
        r"rotations\[0\]: should be a permutation of 0..1",
    ),
    "switch twice": (
        PAIR + "switches: [a, a]\n",
        r"switches\[1\]: 'a' is the name of another switch",
    ),
    "switch number": (PAIR + "switches: ['7']\n", r"switches\[0\]: '7' is a number"),
    "rule": (
        PAIR + "alpha_rule: never\n",
        r"alpha_rule: should be 'occupy' or 'delay', got 'never'",
    ),
    "kind": ("taccl: sketch/1\n", r":1: taccl: should be topology/1, got 'sketch/1'"),
    "no kind": (
        "name: a\n",
        r":1: taccl: is missing\n  fix: start the file with taccl: topology/1",
    ),
    "list": ("- 1\n", r":1: should be a mapping of fields, got a list of 1"),
}


@for_each("text, match", BAD.values(), ids=BAD)
def test_a_bad_graph_is_one_error_with_field_and_fix(text: str, match: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"t.yaml.*{match}") as error:
        load(text, tmp_path)
    assert error.value.fix


@pytest.mark.parametrize(("option", "value"), [("nodes", 2), ("fabric", "rail")])
def test_a_graph_has_neither_a_number_of_servers_nor_a_fabric_to_set(
    option: str, value: object, tmp_path: Path
) -> None:
    (tmp_path / "t.yaml").write_text(PAIR)
    with pytest.raises(InputError, match=rf"^--{option}: .*not in the server form"):
        load_topology(str(tmp_path / "t.yaml"), **{option: value})  # type: ignore[arg-type]


def test_a_shape_has_no_number_of_servers_to_set() -> None:
    with pytest.raises(InputError, match=r"--nodes: 'ring:4' is a shape"):
        load_topology("ring:4", nodes=2)


def test_an_unknown_name_lists_the_shipped_ones() -> None:
    with pytest.raises(
        InputError, match=r"no shipped topology 'dgx3'\n  fix: did you mean dgx2\? .*ndv2"
    ):
        load_topology("dgx3")


@pytest.mark.parametrize("spec", ["a\0b", "x" * 5000, ""])
def test_a_spec_that_can_be_no_file_is_an_unknown_name(spec: str) -> None:
    with pytest.raises(InputError, match="there is no file and no shipped topology"):
        load_topology(spec)


def test_a_path_that_does_not_exist_is_a_missing_file() -> None:
    with pytest.raises(InputError, match=r"no/such.yaml: there is no such file"):
        load_topology("no/such.yaml")


def test_a_directory_is_no_topology(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a directory"):
        load_topology(str(tmp_path))


def test_json_is_read_like_yaml(tmp_path: Path) -> None:
    text = (
        '{"taccl": "topology/1", "name": "tiny", "ranks": 2,'
        ' "edges": [{"from": 0, "to": 1, "bandwidth": "25GB/s", "alpha": "0.7us"}]}'
    )
    assert same(load(text, tmp_path), load(PAIR, tmp_path))


def test_the_document_is_read_back_as_the_same_topology(tmp_path: Path) -> None:
    topology = load(TWO_PAIRS, tmp_path)
    assert same(topology_from_document(topology_document(topology)), topology)


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    """Rings with odd quantities, parallel edges and switches: everything a document can say."""
    ranks = draw(st.integers(2, 5))
    times = st.integers(0, 10**15)
    betas = st.none() | st.fractions(Fraction(1, 10**6), 10**9, max_denominator=10**15)
    edges: list[Edge] = []
    for a in range(ranks):
        for tail, head in ((a, (a + 1) % ranks), (a, ranks)):
            alpha = draw(times)
            overhead = draw(st.none() | st.integers(0, alpha))
            number = len(edges)
            edges.append(Edge(number, tail, head, alpha, overhead, draw(betas), f"e{number}"))
    edges.append(Edge(len(edges), ranks, 0, 0, None, Fraction(1), "sw.it->0"))
    copies = draw(st.none() | st.builds(Multicast, st.booleans()))
    types = st.sampled_from([(), ("int32",), ("int8", "bfloat16")])
    adds = draw(st.none() | st.builds(Reduction, st.booleans(), st.booleans(), types))
    switch = Switch("sw.it", copies, adds)
    if switch.is_station:
        count, slots = st.integers(1, 2**20), st.fractions(1, 2**30, max_denominator=10**6)
        engine = st.builds(FanEngine, betas, times, st.none() | st.tuples(count, slots),
                           st.none() | slots)  # fmt: skip
        limits = draw(st.tuples(st.none() | count, st.none() | count))
        switch = Switch("sw.it", copies, adds, draw(st.booleans()), draw(engine), *limits)
    local = LocalCosts(draw(betas) or Fraction(0), draw(betas) or Fraction(0), draw(times))
    size = draw(st.none() | st.fractions(Fraction(1, 10**6), 2**50, max_denominator=10**9))
    return Topology(
        draw(st.sampled_from(["a", "1e5", "no", "null", "x y", "ä-1"])), ranks, (switch,),
        tuple(edges), tuple(draw(st.sampled_from([[0] * ranks, list(range(ranks))]))),
        (tuple((r + 1) % ranks for r in range(ranks)),), draw(st.sampled_from(["occupy", "delay"])),
        local, size,
    )  # fmt: skip


@given(topologies())
def test_any_topology_survives_its_document_and_its_yaml(topology: Topology) -> None:
    again = topology_from_document(parse_document(expand_text(topology), None).value)
    assert same(again, topology)


def test_equal_topologies_have_equal_digests_and_others_have_not(tmp_path: Path) -> None:
    topology = load(TWO_PAIRS, tmp_path)
    other = load(TWO_PAIRS.replace("1.7us, both", "1.8us, both"), tmp_path)
    digests = [topology_digest(t) for t in (topology, load(TWO_PAIRS, tmp_path), other)]
    assert digests[0] == digests[1] != digests[2]
    assert len(digests[0]) == 16


def fabric_of(servers: tuple[int, ...], *, across: bool) -> Topology:
    """Ranks on one switch, every rank in the server given."""
    n = len(servers)
    hops = [hop for r in range(n) for hop in ((r, n), (n, r))]
    edges = tuple(Edge(i, a, b, 0, None, Fraction(1), f"e{i}") for i, (a, b) in enumerate(hops))
    return Topology("t", n, (Switch("f", across_servers=across),), edges, servers)


@pytest.mark.parametrize(
    ("servers", "across", "pair"),
    [((0, 0), False, None), ((0, 0), True, (0, 1)), ((0, 1), True, None), ((0, 0, 1), True, None),
     ((0, 0, 1, 1), True, None)],
)  # fmt: skip
def test_a_fabric_joins_only_ranks_of_different_servers(
    servers: tuple[int, ...], across: bool, pair: tuple[int, int] | None
) -> None:
    # Ranks 0 and 1 of one server reach each other through the other server, if there is one.
    assert unreachable_pair(fabric_of(servers, across=across)) == pair


@settings(max_examples=150)
@given(st.data())
def test_connectivity_on_vertices_agrees_with_the_link_table(data: st.DataObject) -> None:
    ranks, switches = data.draw(st.integers(2, 5)), data.draw(st.integers(1, 4))
    vertex = st.integers(0, ranks + switches - 1)
    pairs = data.draw(st.lists(st.tuples(vertex, vertex), max_size=16, unique=True))
    edges = [(a, b) for a, b in pairs if a != b]
    topology = Topology(
        "t", ranks,
        tuple(Switch(f"s{i}", across_servers=data.draw(st.booleans())) for i in range(switches)),
        tuple(Edge(i, a, b, 0, None, Fraction(1), f"e{i}") for i, (a, b) in enumerate(edges)),
        tuple(data.draw(st.lists(st.integers(0, 2), min_size=ranks, max_size=ranks))),
    )  # fmt: skip
    joined = nx.DiGraph(zip(topology.links.src.tolist(), topology.links.dst.tolist(), strict=True))
    joined.add_nodes_from(range(ranks))
    assert (unreachable_pair(topology) is None) == nx.is_strongly_connected(joined)


def test_a_description_says_what_there_is(tmp_path: Path) -> None:
    rows = dict(describe(load(TWO_PAIRS, tmp_path)))
    # 0 - 1 by the switch, 2 - 3, 0 - 2, 1 - 3, both ways
    assert (rows["ranks"], rows["servers"], rows["links"]) == ("4", "2 of 2 ranks", "8")
    assert rows["  4 edges"] in (
        "125 GB/s (8 us/MB), alpha 0.35 us",
        "12.5 GB/s (80 us/MB), alpha 1.7 us",
    )


def test_a_description_lists_the_first_kinds_of_edges() -> None:
    hops = [(0, dst, 0, None, Fraction(dst)) for dst in range(1, MAX_TOLD + 4)]
    rows = describe(build("net", MAX_TOLD + 4, hops))
    kinds = [row for row in rows if row[0].startswith("  ")]
    assert len(kinds) == MAX_TOLD + 1
    assert kinds[0] == ("  1 edges", "1000 GB/s (1 us/MB), alpha 0 us")
    assert kinds[-1] == ("  3 edges", "of 3 more kinds: see expand")


def test_names_are_listed_in_order() -> None:
    names = shipped_topologies()
    assert {"ndv2", "dgx2", "dgx-a100"} <= set(names)
    assert list(names) == sorted(names)

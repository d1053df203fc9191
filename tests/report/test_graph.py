"""Pictures of topologies: what is drawn once, where things stand, hostile names."""

from fractions import Fraction
from itertools import pairwise
from math import dist

import pytest
from defusedxml.ElementTree import fromstring

from taccl.errors import InputError
from taccl.report import graph
from taccl.report.graph import dot, lines_of, svg
from taccl.topology.file import load_topology, shipped_topologies
from taccl.topology.graph import Edge, Switch, Topology
from tests.generators import build, random_topology, twin2x2
from tests.sweep import for_each

SVG = "{http://www.w3.org/2000/svg}"


def places(topology: Topology) -> dict[str, tuple[float, float]]:
    """Return where the ranks stand, by name."""
    found = fromstring(svg(topology))
    circles = [(float(c.get("cx", "")), float(c.get("cy", ""))) for c in found.iter(f"{SVG}circle")]
    return {str(rank): place for rank, place in enumerate(circles)}


def test_two_ways_of_one_cost_are_one_line_and_others_are_two() -> None:
    hops = [(0, 1, 10, None, Fraction(8)), (1, 0, 10, None, Fraction(8)),
            (1, 2, 10, None, Fraction(8)), (2, 1, 20, None, Fraction(8)),
            (2, 0, 0, None, None), (0, 2, 0, None, None)]  # fmt: skip
    told = [(line.tail, line.head, line.both) for line in lines_of(build("net", 3, hops))]
    assert told == [(0, 1, True), (0, 2, True), (1, 2, False), (2, 1, False)]


def test_a_line_says_how_many_edges_how_fast_and_how_late() -> None:
    hops = [(0, 1, 700_000, None, Fraction(40))] * 2 + [(1, 0, 0, None, None)]
    texts = [line.text for line in lines_of(build("net", 2, hops))]
    assert texts == ["2x25 GB/s, 0.7 us", "free"]


@for_each("name", shipped_topologies())
def test_every_shipped_machine_has_a_well_formed_picture(name: str) -> None:
    topology = load_topology(name)
    found = fromstring(svg(topology))
    assert len(list(found.iter(f"{SVG}circle"))) == topology.num_ranks
    assert len([p for p in found.iter(f"{SVG}path") if p.find(f"{SVG}title") is not None]) == len(
        lines_of(topology)
    )


@for_each("seed", range(10))
def test_nothing_stands_on_another(seed: int) -> None:
    stand = sorted(places(random_topology(seed)).values())
    assert all(dist(a, b) > 2 * graph.RANK for a, b in pairwise(stand))


def test_a_mesh_looks_like_one() -> None:
    # Neighbours are nearer to each other than ranks two hops apart.
    at = places(load_topology("mesh2d:3x3"))
    near = max(dist(at[str(r)], at[str(r + 1)]) for r in (0, 1, 3, 4, 6, 7))
    far = min(dist(at["0"], at[str(r)]) for r in (2, 4, 6))
    assert near < far


def test_many_ranks_without_wires_between_them_stand_on_a_circle() -> None:
    hops = [(r, 12 + r % 2, 0, None, Fraction(1)) for r in range(12)]
    hops += [(12 + r % 2, r, 0, None, Fraction(1)) for r in range(12)]
    switches = [Switch("a"), Switch("b")]
    network = build("net", 12, hops, switches=switches, server_of=[0, 1] * 6)
    assert len(places(network)) == 12


def test_too_many_lines_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "MAX_LINES", 3)
    with pytest.raises(InputError, match="would have 4 lines, more than 3"):
        svg(load_topology("ring:4"))


def test_a_graph_for_graphviz_has_a_cluster_for_each_server() -> None:
    text = dot(twin2x2())
    assert text.count("subgraph cluster_") == 2
    assert text.count("dir=both") == 2  # the wires; what passes a NIC has a side for each way
    assert '  v8 [label="fabric"];' in text
    assert text.count("->") == len(lines_of(twin2x2()))


def test_hostile_names_are_text() -> None:
    hostile = 'a"]; <script>&\\\x00\ud800'
    edges = tuple(Edge(i, i, 1 - i, 1, None, Fraction(1), f"{hostile}{i}") for i in range(2))
    topology = Topology(hostile, 2, (Switch(hostile),), edges, (0, 0))
    picture, text = svg(topology), dot(topology)
    assert "<script" not in picture
    assert "<script>&" in "".join(fromstring(picture).itertext())
    assert text.startswith('digraph "a\\"]; <script>&\\\\ ')
    picture.encode()
    text.encode()


@pytest.mark.filterwarnings("error")
def test_a_machine_in_which_all_are_neighbours_is_drawn_without_a_warning() -> None:
    # Its spectral layout begins with two ranks at one place.
    assert "nan" not in svg(load_topology("full:9"))

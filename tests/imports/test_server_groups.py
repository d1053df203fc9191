"""Servers of plain graphs that name none: found where they are clear, and nowhere else."""

import json
import warnings
from fractions import Fraction
from pathlib import Path

import pytest

from taccl.collectives import build_collective
from taccl.errors import TacclWarning
from taccl.imports import ImportOptions, import_files, import_topology
from taccl.imports.graph_json import inferred_servers
from taccl.model.problem import Problem
from taccl.synth.templates.classical import classical_schedules
from taccl.topology.graph import Topology, whole
from taccl.topology.symmetry import make_group
from tests.generators import both_ways, build, ring4, twin2x2
from tests.imports.test_graph_json import SHARED


def pairs(alpha: int, beta: int, *, inside: int = 10) -> Topology:
    """Two pairs of ranks with wires of 10 ps a byte, joined by slower ones."""
    hops = [
        *both_ways(0, 1, inside, Fraction(10)), *both_ways(2, 3, inside, Fraction(10)),
        *both_ways(0, 2, alpha, Fraction(beta)), *both_ways(1, 3, alpha, Fraction(beta)),
    ]  # fmt: skip
    return build("pairs", 4, hops)


def test_what_holds_together_without_the_slowest_edges_is_a_server() -> None:
    assert inferred_servers(pairs(20, 20)) == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    "topology",
    [pairs(10, 20), pairs(20, 19), pairs(0, 39, inside=0), ring4()],
    ids=["no longer latency", "hardly slower", "no latencies at all", "all alike"],
)
def test_servers_are_not_made_up(topology: Topology) -> None:
    assert inferred_servers(topology) == []


def test_without_latencies_edges_between_servers_are_much_slower() -> None:
    assert inferred_servers(pairs(0, 40, inside=0)) == [[0, 1], [2, 3]]


def test_a_slow_edge_inside_speaks_against_servers() -> None:
    slow = both_ways(0, 1, 20, Fraction(20))
    fast = [hop for a, b in ((0, 2), (1, 2), (3, 4), (4, 5), (3, 5)) for hop in
            both_ways(a, b, 10, Fraction(10))]  # fmt: skip
    between = both_ways(2, 3, 20, Fraction(20))
    assert inferred_servers(build("inside", 6, [*slow, *fast, *between])) == []
    assert inferred_servers(build("between", 6, [*fast, *between])) == [[0, 1, 2], [3, 4, 5]]


def test_groups_of_different_sizes_are_no_servers() -> None:
    hops = [
        *both_ways(0, 1, 10, Fraction(10)), *both_ways(1, 2, 10, Fraction(10)),
        *both_ways(3, 4, 10, Fraction(10)), *both_ways(0, 3, 20, Fraction(20)),
    ]  # fmt: skip
    assert inferred_servers(build("uneven", 5, hops)) == []


def test_servers_that_are_named_are_those_that_are_found() -> None:
    named = twin2x2()
    found = inferred_servers(named)
    servers = [named.server_of[ranks[0]] for ranks in found]
    assert not found or sorted(servers) == sorted(set(named.server_of))


def written(tmp_path: Path, *, hosts: bool) -> Path:
    nodes = [{"id": rank, "type": "gpu"} | ({"host": 0} if hosts else {}) for rank in range(4)]
    edges = [
        {"src": a, "dst": b, "bandwidth_GBps": speed, "alpha_us": alpha}
        for x, y, speed, alpha in ((0, 1, 50, 0.7), (2, 3, 50, 0.7), (0, 2, 10, 1.5))
        for a, b in ((x, y), (y, x))
    ]
    path = tmp_path / "g.json"
    path.write_text(json.dumps({"nodes": nodes, "edges": edges}))
    return path


def test_the_file_says_that_servers_were_inferred(tmp_path: Path) -> None:
    found = import_files([str(written(tmp_path, hosts=False))], "graph", ImportOptions())
    assert any("servers: inferred" in comment for comment in found.comments)
    assert found.document["servers"] == [[0, 1], [2, 3]]


def test_hosts_that_are_given_win(tmp_path: Path) -> None:
    found = import_files([str(written(tmp_path, hosts=True))], "graph", ImportOptions())
    assert found.comments == ()
    topology = import_topology(str(written(tmp_path, hosts=True)), None, ImportOptions())
    assert set(topology.server_of) == {0}


def published(file: str) -> Topology:
    """Return a fabric of the data beside this checkout, or skip the test."""
    path = SHARED / f"{file}.json"
    if not path.exists():
        pytest.skip(f"{path} is not in this checkout")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TacclWarning)
        return import_topology(str(path), None, ImportOptions())


@pytest.mark.parametrize(
    ("file", "servers"),
    [("NDv2_1chassis", 1), ("NDv2_2chassis", 2), ("NDv2_4chassis", 4), ("DGX2_2chassis", 2),
     ("tacos_Mesh2D_3x3", 1), ("forestcoll_a100_2node", 2)],
)  # fmt: skip
def test_published_fabrics_have_their_servers(file: str, servers: int) -> None:
    assert len(set(published(file).server_of)) == servers


def test_steps_inside_servers_and_across_exist_on_an_imported_graph(tmp_path: Path) -> None:
    topology = import_topology(str(written(tmp_path, hosts=False)), None, ImportOptions())
    problem = Problem(
        whole(topology), build_collective("allgather", 4, 1), Fraction(1000),
        make_group(topology, ()),
    )  # fmt: skip
    assert classical_schedules(problem, "hierarchical", batch=True)

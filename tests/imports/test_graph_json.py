"""Plain JSON graphs become topologies, or one clear error."""

import json
import warnings
from fractions import Fraction
from pathlib import Path

import pytest

from taccl.bounds import any_bounds, best
from taccl.errors import InputError, TacclWarning
from taccl.imports import GraphOptions, ImportOptions, import_topology
from taccl.topology.graph import Topology, whole
from taccl.units import parse_beta
from tests.cli.conftest import Run
from tests.cli.conftest import run as run

SHARED = Path(__file__).parents[3] / "shared" / "data" / "topologies"

Graph = dict[str, list[dict[str, object]]]


def graph() -> Graph:
    """Two GPUs behind a switch, one of them with a wire to a third."""
    return {
        "nodes": [
            {"id": 10, "type": "gpu"}, {"id": 0, "type": "switch"},
            {"id": 11, "type": "gpu"}, {"id": 12, "type": "gpu"},
        ],
        "edges": [
            {"src": 10, "dst": 0, "bandwidth_GBps": 125, "alpha_us": 0.35},
            {"src": 0, "dst": 11, "bandwidth_GBps": 125, "alpha_us": 0.35},
            {"src": 11, "dst": 10, "bandwidth_GBps": 25.0, "alpha_us": 0.7},
            {"src": 11, "dst": 12, "bandwidth_GBps": 12.5},
            {"src": 12, "dst": 10, "alpha_us": 2},
        ],
    }  # fmt: skip


def read(tmp_path: Path, value: object, options: GraphOptions | None = None) -> Topology:
    path = tmp_path / "g.json"
    path.write_text(json.dumps(value))
    return import_topology(str(path), None, ImportOptions(options or GraphOptions()))


def test_ranks_are_the_nodes_that_are_no_switches_in_order(tmp_path: Path) -> None:
    topology = read(tmp_path, graph())
    assert topology.num_ranks == 3
    assert [switch.name for switch in topology.switches] == ["switch-0"]
    assert [(edge.tail, edge.head) for edge in topology.edges] == [
        (0, 3), (3, 1), (1, 0), (1, 2), (2, 0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("node", "name"), [("x", "x"), ("s0/nvs", "s0/nvs"), ("7", "switch-7"), (7, "switch-7")]
)
def test_a_switch_is_called_by_its_id_unless_that_is_a_number(
    tmp_path: Path, node: int | str, name: str
) -> None:
    value = graph()
    value["nodes"][1]["id"] = value["edges"][0]["dst"] = value["edges"][1]["src"] = node
    assert [switch.name for switch in read(tmp_path, value).switches] == [name]


def test_a_number_takes_no_name_that_is_another_switchs(tmp_path: Path) -> None:
    value = graph()
    value["nodes"].append({"id": "switch-0", "type": "switch"})
    switches = read(tmp_path, value).switches
    assert [switch.name for switch in switches] == ["switch-0-", "switch-0"]


def test_numbers_are_taken_exactly(tmp_path: Path) -> None:
    edges = read(tmp_path, graph()).edges
    assert [edge.beta for edge in edges] == [8, 8, 40, 80, None]
    assert [edge.alpha for edge in edges] == [350_000, 350_000, 700_000, 0, 2_000_000]


def test_counted_links_need_the_bandwidth_of_one(tmp_path: Path) -> None:
    value = graph()
    value["edges"][2] = {"src": 11, "dst": 10, "links": 2}
    with pytest.raises(InputError, match=r"edges\[2\].links: counts 2 links without saying"):
        read(tmp_path, value)
    topology = read(tmp_path, value, GraphOptions(parse_beta("25GB/s")))
    assert topology.edges[2].beta == Fraction(40, 2)


def test_an_edge_without_numbers_is_an_error_unless_free_edges_are_allowed(tmp_path: Path) -> None:
    value = graph()
    value["edges"][4] = {"src": 12, "dst": 10}
    with pytest.raises(InputError, match=r"edges\[4\]: has neither bandwidth_GBps nor alpha_us"):
        read(tmp_path, value)
    assert read(tmp_path, value, GraphOptions(allow_free=True)).edges[4].beta is None


@pytest.mark.parametrize("key", ["capacity", "bandwidth", "bw_mbps", "latency_ns"])
def test_a_capacity_that_is_not_understood_is_an_error(tmp_path: Path, key: str) -> None:
    value = graph()
    value["edges"][0][key] = 7
    with pytest.raises(InputError, match=rf"edges\[0\].{key}: .*is not understood"):
        read(tmp_path, value)


def test_other_keys_are_ignored_with_one_warning(tmp_path: Path) -> None:
    value = graph()
    value["nodes"][0]["label"] = "left"
    with pytest.warns(TacclWarning, match=r"ignored 'nodes\[\].label'"):
        read(tmp_path, value)


def test_hosts_are_servers(tmp_path: Path) -> None:
    value = graph()
    for node, host in zip(value["nodes"], ("a", None, "b", "a"), strict=True):
        node["host"] = host
    assert read(tmp_path, value).server_of == (0, 1, 0)


def test_parallel_edges_get_names(tmp_path: Path) -> None:
    value = graph()
    value["edges"].append({"src": 11, "dst": 10, "bandwidth_GBps": 25, "alpha_us": 0.7})
    assert len(read(tmp_path, value).links_between(1, 0)) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda g: g["edges"][0].update(src=99), r"edges\[0\].src: there is no node 99"),
        (lambda g: g["nodes"].append({"id": 10}), "there are two nodes 10"),
        (lambda g: g["edges"][0].update(bandwidth_GBps=0), "should be greater than 0"),
        (lambda g: g["edges"][0].update(alpha_us=-1), "should be at least 0"),
        (lambda g: g["edges"].pop(3), "can't be reached"),
        (lambda g: g.update(nodes=[]), "nodes"),
    ],
)
def test_a_wrong_graph_is_one_clear_error(tmp_path: Path, change: object, message: str) -> None:
    value = graph()
    change(value)  # type: ignore[operator]
    with pytest.raises(InputError, match=message):
        read(tmp_path, value)


def test_a_file_of_no_known_format_lists_the_formats(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is in no format that can be imported"):
        read(tmp_path, {"vertices": []})


def test_the_command_writes_a_topology_that_loads(run: Run, tmp_path: Path) -> None:
    source, output = tmp_path / "g.json", tmp_path / "g.yaml"
    source.write_text(json.dumps(graph()))
    done = run("topology", "import", source, "--from", "graph", "-o", output)
    assert done.status == 0, done.err
    assert run("topology", "validate", output).status == 0
    assert run("bound", output, "allgather").status == 0


@pytest.mark.parametrize(
    ("file", "algbw"),
    [("NDv2_1chassis", 171.43), ("NDv2_2chassis", 25.0), ("forestcoll_mi250_1node", 342.86)],
)
def test_imported_fabrics_have_their_published_bounds(file: str, algbw: float) -> None:
    path = SHARED / f"{file}.json"
    if not path.exists():
        pytest.skip(f"{path} is not in this checkout")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TacclWarning)
        topology = import_topology(str(path), None, ImportOptions())
    size = 10**12
    bound = best(any_bounds(whole(topology), "allgather", size))
    assert size * 1000 / bound.time == pytest.approx(algbw, rel=1e-4)

"""evaluate, verify, bound, topology, sketch, schema and the help texts."""

import json
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from taccl import cli
from taccl.cli.sketch import file_models
from taccl.report.tables import WRITERS
from taccl.sketch import shipped_sketches
from taccl.topology.file import shipped_topologies
from tests.cli.conftest import Run
from tests.sweep import for_each


@pytest.fixture(scope="module")
def ring_xml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a ring AllReduce on four ranks by the command line."""
    path = tmp_path_factory.mktemp("xml") / "ring.xml"
    words = [
        "taccl", "synthesize", "ring:4", "allreduce", "--engine", "ring", "--chunks", "1",
        "-o", str(path), "--max-bytes", "1G", "--quiet",
    ]  # fmt: skip
    with pytest.MonkeyPatch.context() as patch, suppress(SystemExit):
        patch.setattr("sys.argv", words)
        cli.run()
    assert path.exists()
    return path


def test_evaluate_prints_a_row_for_every_size(run: Run, ring_xml: Path) -> None:
    done = run(
        "evaluate", ring_xml, "--topology", "ring:4", "-b", "1K", "-e", "1M", "-f", "4", "--json"
    )
    rows = json.loads(done.out)["rows"]
    assert [row["size_bytes"] for row in rows] == [1 << (10 + 2 * i) for i in range(6)]
    # 2(n-1)(alpha + beta S/n): 0.7 us and 20 ps a byte.
    for row in rows:
        assert row["time_us"] == pytest.approx(6 * (0.7 + 20e-6 * row["size_bytes"] / 4))
        assert row["bound_us"] <= row["time_us"]
        assert {"file", "algbw_gbps", "busbw_gbps", "gap", "bottleneck"} <= set(row)


@pytest.mark.parametrize("form", WRITERS)
def test_every_format_prints_the_size(run: Run, ring_xml: Path, form: str) -> None:
    done = run("evaluate", ring_xml, "--topology", "ring:4", "--size", "1MB", "--format", form)
    assert done.status == 0
    assert re.search(r"1000000|1MB", done.out)


def test_one_size_is_cut_to_whole_chunks(run: Run, ring_xml: Path) -> None:
    done = run("evaluate", ring_xml, "--topology", "ring:4", "--size", "1000003", "--json")
    (row,) = json.loads(done.out)["rows"]
    assert row["size_bytes"] == 1_000_000
    assert row["time_us"] is not None


def test_a_swept_size_that_does_not_divide_has_no_time(run: Run, ring_xml: Path) -> None:
    done = run(
        "evaluate", ring_xml, "--topology", "ring:4", "-b", "1000003", "-e", "1000003", "--json"
    )
    (row,) = json.loads(done.out)["rows"]
    assert row["time_us"] is None
    assert row["note"]


def test_a_clean_file_is_verified(run: Run, ring_xml: Path) -> None:
    done = run("verify", ring_xml, "--runtime", "portable")
    assert (done.status, "verified for portable" in done.out) == (0, True)


def test_a_broken_file_is_rejected_with_findings(run: Run, ring_xml: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.xml"
    broken.write_text(ring_xml.read_text().replace('srcoff="1"', 'srcoff="2"', 1))
    done = run("verify", broken, "--runtime", "portable", "--json")
    assert done.status == 1
    (file,) = json.loads(done.out)["files"]
    assert not file["verified"]
    assert file["findings"]


def test_bound_prints_every_kind_and_the_binding_one(run: Run) -> None:
    found = json.loads(run("bound", "ndv2", "allgather", "--size", "8MB", "--json").out)
    assert found["bound_us"] == max(found["all"].values())
    assert found["all"][found["bound_kind"]] == found["bound_us"]
    # Seven chunks of 1 MB in whole slots: 3 x 23.7 us.
    assert found["bound_fixed_us"] == pytest.approx(71.1)
    assert "binding" in run("bound", "ndv2", "allgather").out


@for_each("name", shipped_topologies())
def test_every_shipped_topology_validates_shows_and_expands(
    run: Run, tmp_path: Path, name: str
) -> None:
    assert run("topology", "validate", name).status == 0
    assert name in run("topology", "show", name).out
    path = tmp_path / "graph.yaml"
    assert run("topology", "expand", name, "-o", path).status == 0
    assert run("topology", "validate", path).status == 0


def test_topology_list_names_the_shipped_ones(run: Run) -> None:
    found = json.loads(run("topology", "list", "--json").out)
    assert tuple(row["name"] for row in found["topologies"]) == shipped_topologies()
    assert "ndv2" in run("topology", "list").out


@for_each("name", shipped_sketches())
@for_each("nodes", [1, 2])
def test_every_shipped_sketch_validates_and_shows(run: Run, name: str, nodes: int) -> None:
    machine = name.partition("-")[0]
    done = run("sketch", "validate", name, machine, "--nodes", nodes)
    assert done.status == 0, done.err
    assert name in run("sketch", "show", name, machine, "--nodes", nodes).out


def test_sketch_list_names_the_shipped_ones(run: Run) -> None:
    assert run("sketch", "list").out.split() == list(shipped_sketches())


@for_each("name", file_models())
def test_every_schema_is_printed(run: Run, name: str) -> None:
    assert "properties" in json.loads(run("schema", name).out)


def test_an_unknown_schema_lists_the_known(run: Run) -> None:
    done = run("schema", "xml")
    assert done.status == 2
    assert "topology" in done.err


def test_help_loads_no_solver_and_no_numpy() -> None:
    code = (
        "import sys; sys.argv = ['taccl', '--help']\n"
        "from taccl.cli import run\n"
        "try:\n    run()\nexcept SystemExit:\n    pass\n"
        "heavy = {'numpy', 'scipy', 'ortools', 'pulp', 'highspy', 'pydantic', 'yaml', 'networkx'}\n"
        "heavy.add('numba')\n"
        "sys.exit(str(sorted(heavy & set(sys.modules))) if heavy & set(sys.modules) else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

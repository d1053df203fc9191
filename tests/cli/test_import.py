"""``topology import`` and ``export`` at the command line."""

from pathlib import Path

import pytest

from taccl.cli import topology
from taccl.report.export import EXPORTS
from taccl.topology.servers import MAX_SERVERS
from tests.cli.conftest import Run
from tests.imports.host_files import mesh, path_of, text_of
from tests.sweep import for_each

DGX = path_of("nvidia-smi", "dgx1v")
BOX = path_of("nccl", "pcie-box")


def test_a_cluster_has_as_many_hosts_as_a_file_may() -> None:
    assert topology.MAX_SERVERS == MAX_SERVERS


def test_a_cluster_is_made_of_hosts_in_one_command(run: Run, tmp_path: Path) -> None:
    output = tmp_path / "cluster.yaml"
    done = run("topology", "import", DGX, BOX, "--fabric", "rail", "--nic-speed", "200Gb/s",
               "--pcie", 4, "-o", output)  # fmt: skip
    assert done.status == 0, done.err
    assert done.out == f"wrote {output}\n"
    assert "NICs: 25GB/s (--nic-speed)" in output.read_text()
    assert run("topology", "validate", output).status == 0
    assert run("bound", output, "allgather").status == 0


def test_equal_hosts_are_counted_and_their_number_can_be_changed(run: Run, tmp_path: Path) -> None:
    output = tmp_path / "cluster.yaml"
    done = run("topology", "import", DGX, "--count", 4, "--fabric", "leaf-spine", "--leaves", 2,
               "--uplink", "50GB/s", "-o", output)  # fmt: skip
    assert done.status == 0, done.err
    assert "count: 4" in output.read_text()
    assert "leaves: 2, uplink: 50GB/s" in output.read_text()
    assert run("topology", "validate", output, "--nodes", 2).status == 0


@for_each(
    ("given", "part"),
    [
        ((DGX, BOX, "--count", "3"), "--count: 2 files are 2 servers, not 3"),
        ((DGX, "--count", "2", "--fabric", "leaf-spine"), "--leaves: is missing"),
        ((DGX, "--count", "4", "--fabric", "torus", "--dims", "3x3"), "--dims: dims make 9"),
        ((DGX, "--count", "4", "--fabric", "torus", "--dims", "two"), "--dims: should be numbers"),
        ((DGX, "--fabric", "clos"), "--fabric: should be one of switch"),
        ((DGX, "--gpu", "v1000"), "--gpu: should be one of p100"),
        ((DGX, "--nic-speed", "fast"), "--nic-speed: should be a bandwidth"),
        ((DGX, "--sockets", "0GB/s"), "--sockets: should be greater than 0"),
        ((DGX, "--uplink", "x"), "--uplink: should be a bandwidth"),
        ((DGX, "--nics", "4"), "--nics: has 4 NICs already"),
        ((DGX, "--from", "nccl"), "dgx1v.txt:1: is no XML"),
        ((BOX, "--from", "nvidia-smi"), "pcie-box.xml:1: has no header line"),
        ((path_of("rocm-smi", "mi250"), "--count", "2"), "mi250.txt: names no NIC"),
        ((path_of("rocm-smi", "mi250"), "--nics", "99999"), "--nics: should be from 1 to 1024"),
    ],
)
def test_a_bad_option_is_one_error(
    run: Run, tmp_path: Path, given: tuple[object, ...], part: str
) -> None:
    output = tmp_path / "out.yaml"
    done = run("topology", "import", *given, "-o", output)
    assert done.status == 2
    assert done.err.count("error:") == 1
    assert part in done.err
    assert not output.exists()


def test_more_servers_than_any_cluster_has_are_refused(run: Run) -> None:
    done = run("topology", "import", DGX, "--count", 8193)
    assert done.status == 2
    assert "--count: should be less than or equal to 8192" in done.err


def test_more_ranks_than_there_can_be_are_the_options_error(run: Run, tmp_path: Path) -> None:
    path = mesh(tmp_path / "dgx2.txt", 16, 6)
    done = run("topology", "import", path, "--count", 8192, "--fabric", "none")
    assert done.status == 2
    assert done.err.startswith("error: --count: 8192 servers make 131072 ranks")
    assert str(path) not in done.err


def test_a_whole_topology_is_not_composed(run: Run, tmp_path: Path) -> None:
    graph = tmp_path / "g.json"
    assert run("topology", "export", "ring:4", "--to", "graph", "-o", graph).status == 0
    assert run("topology", "import", graph).status == 0
    assert "is a whole topology (graph)" in run("topology", "import", graph, DGX).err
    assert "--count: is a whole topology" in run("topology", "import", graph, "--count", 2).err


def test_an_output_is_no_input(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "host.txt"
    path.write_text(text_of("nvidia-smi", "dgx1v"))
    assert "is the same file as" in run("topology", "import", path, "-o", path).err
    assert path.read_text() == text_of("nvidia-smi", "dgx1v")


@pytest.mark.filterwarnings("ignore::taccl.errors.TacclWarning")
@pytest.mark.parametrize("kind", EXPORTS)
def test_every_format_is_written_to_a_file_or_printed(run: Run, tmp_path: Path, kind: str) -> None:
    output = tmp_path / "out"
    done = run("topology", "export", "hub:4@24GB/s,1us", "--to", kind, "-o", output)
    assert done.status == 0, done.err
    printed = run("topology", "export", "hub:4@24GB/s,1us", "--to", kind)
    assert printed.out == output.read_text()


def test_a_topology_that_a_format_can_not_say_writes_nothing(run: Run, tmp_path: Path) -> None:
    output = tmp_path / "out"
    done = run("topology", "export", "ndv2", "--to", "astra-sim", "-o", output)
    assert done.status == 2
    assert done.err.startswith("error: --to: ndv2 is no product")
    assert not output.exists()
    assert "--to: should be one of dot" in run("topology", "export", "ndv2", "--to", "svg").err

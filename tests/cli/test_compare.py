"""compare, topology show --svg --dot, and evaluate of wrong programs, by the command line."""

import csv
import json
from pathlib import Path

import pytest
from defusedxml.ElementTree import fromstring

from taccl.msccl.xml import write_xml
from tests.apps.test_answers import ring_program, without_steps
from tests.cli.conftest import Run
from tests.cli.test_bad_input import one_error

SMALL = ("-b", "1K", "-e", "4K")


@pytest.fixture
def ring_xml(tmp_path: Path) -> Path:
    path = tmp_path / "ring.xml"
    path.write_text(write_xml(ring_program(), "executor"))
    return path


@pytest.fixture
def nothing_xml(tmp_path: Path) -> Path:
    path = tmp_path / "nothing.xml"
    path.write_text(write_xml(without_steps(ring_program()), "executor"))
    return path


def test_the_table_has_algorithms_files_nccl_and_the_bound(run: Run, ring_xml: Path) -> None:
    done = run("compare", "hub:4", "allgather", ring_xml, *SMALL)
    assert done.status == 0, done.err
    head = done.out.splitlines()[1]
    for name in ("ring", "all-pairs", "halving-doubling", "ring.xml", "modelled", "bound"):
        assert name in head
    assert "NCCL 2.30.7" in head
    # Two algorithms are alike at both sizes, and what the star means.
    assert done.out.count("*") == 5


def test_a_terminal_is_told_what_is_being_done_and_cleared(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("compare", "hub:4", "allgather", *SMALL)
    assert run(*command, "-q").err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    told = run(*command).err
    assert "lowering ring" in told
    assert "replaying ring (1 of " in told
    assert told.endswith("\r\033[K")


def test_json_and_csv_have_the_same_rows(run: Run) -> None:
    command = ("compare", "hub:4", "allgather", *SMALL)
    found = json.loads(run(*command, "--json").out)
    rows = list(csv.DictReader(run(*command, "--format", "csv").out.splitlines()))
    assert [row["contender"] for row in rows] == [row["contender"] for row in found["rows"]]
    assert {row["size_bytes"] for row in rows} == {"1024", "4096"}
    assert found["nccl_inputs"].startswith("gpu=volta")


def test_rule_root_and_inputs_reach_the_comparison(run: Run) -> None:
    done = run(
        "compare", "ring:4", "broadcast", *SMALL, "--root", "3", "--alpha-rule", "delay",
        "--runtime", "msccl", "--nccl", "gpu=hopper,channels=3", "--json",
    )  # fmt: skip
    found = json.loads(done.out)
    assert (found["alpha_rule"], found["runtime"]) == ("delay", "msccl")
    assert found["nccl_inputs"].startswith("gpu=hopper")
    assert "channels=3" in found["nccl_inputs"]


def test_the_plot_is_written_and_the_table_printed(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "plot.svg"
    done = run("compare", "ring:4", "allgather", *SMALL, "--plot", out)
    assert done.status == 0, done.err
    assert "allgather on ring-4" in done.out
    assert "allgather on ring-4" in "".join(fromstring(out.read_text()).itertext())


def test_the_plot_does_not_overwrite_what_is_compared(run: Run, ring_xml: Path) -> None:
    before = ring_xml.read_text()
    done = run("compare", "ring:4", "allgather", ring_xml, *SMALL, "--plot", ring_xml)
    one_error(done, "--plot", "same file")
    assert ring_xml.read_text() == before


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("--plot", "none/plot.svg"), ("--plot", "create the directory")),
        (("--nccl", "gpu=kepler"), ("--nccl", "volta")),
        (("--format", "nccl-tests"), ("--format", "csv")),
        (("-b", "4K", "-e", "1K"), ("-e", "at least -b")),
        (("--root", "1"), ("--root", "allgather has no root")),
        (("missing.xml",), ("missing.xml",)),
    ],
)
def test_what_can_not_be_done_is_one_error(
    run: Run, arguments: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    done = run("compare", "ring:4", "allgather", *arguments)
    one_error(done, *parts)
    assert done.out == ""


def test_a_program_that_does_nothing_is_told_to_be_wrong(run: Run, nothing_xml: Path) -> None:
    command = ("evaluate", nothing_xml, "--topology", "ring:4", "--size", "1600B")
    (row,) = json.loads(run(*command, "--json").out)["rows"]
    assert (row["time_us"], row["wrong"]) == (0, 16 * 100)
    assert "never written" in row["note"]
    text = run(*command, "--format", "nccl-tests").out
    assert "# Out of bounds values : 1600 FAILED" in text


def test_a_topology_is_drawn_and_written_for_graphviz(run: Run, tmp_path: Path) -> None:
    svg, dot = tmp_path / "net.svg", tmp_path / "net.dot"
    done = run("topology", "show", "ndv2", "--nodes", "2", "--svg", svg, "--dot", dot)
    assert done.status == 0, done.err
    assert done.out.splitlines()[-2:] == [f"wrote {svg}", f"wrote {dot}"]
    assert "server 1" in "".join(fromstring(svg.read_text()).itertext())
    assert dot.read_text().startswith('digraph "ndv2" {')


def test_pictures_overwrite_neither_the_topology_nor_each_other(run: Run, tmp_path: Path) -> None:
    file, out = tmp_path / "net.yaml", tmp_path / "out"
    run("topology", "expand", "ring:3", "-o", file)
    before = file.read_text()
    one_error(run("topology", "show", file, "--svg", file), "--svg", "same file")
    one_error(run("topology", "show", file, "--svg", out, "--dot", out), "--dot", "same file")
    assert file.read_text() == before
    assert not out.exists()


def test_what_is_modelled_below_the_bound_is_said_to_be(run: Run) -> None:
    command = ("compare", "ring:4", "allgather", "-b", "16M", "-e", "64M", "-q")
    wrong = ("--nccl", "channels=32,intra=100GB/s,wire=nvlink")
    assert "below the bound" not in run(*command).out
    told = run(*command, *wrong).out
    assert "below the bound at 16MiB to 64MiB: NCCL's model expects " in told
    assert "set them with --nccl" in told
    rows = json.loads(run(*command, *wrong, "--json").out)["rows"]
    assert {row["kind"] for row in rows if row["below_bound"]} == {"nccl", "nccl-way"}
    for row in rows:
        assert row["below_bound"] == (row["time_us"] < row["bound_us"])

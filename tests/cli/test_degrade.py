"""``taccl topology degrade``: a machine on a bad day as a file."""

import re
import shlex
from pathlib import Path

import pytest

from taccl.topology.file import load_topology
from tests.cli.conftest import Run
from tests.docs.markdown import ROOT


def test_a_degraded_machine_is_written_and_served(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "slow.yaml"
    done = run("topology", "degrade", "dgx-a100", "--nodes", 2, "--edge", "s0/ib3.*=0.5",
               "--link", "0->1", "--factor", "0.25", "-o", path)  # fmt: skip
    assert done.status == 0
    assert "0.5 of the bandwidth of s0/ib3.tx->rail3" in done.err
    assert path.read_text().startswith("# dgx-a100: 0.5 of the bandwidth of s0/ib3.tx->rail3\n")
    betas = {edge.name: edge.beta for edge in load_topology(str(path)).edges}
    assert betas["s0/ib3.tx->rail3"] == 2 * (betas["s0/ib2.tx->rail2"] or 0) == 80
    assert betas["s0/nvswitch->1"] == 4 * (betas["s0/nvswitch->2"] or 0)
    assert betas["s0/nvswitch->0"] == betas["s0/nvswitch->2"]
    assert run("topology", "validate", path).status == 0
    assert run("bound", path, "allgather", "--size", "16MB").status == 0


def test_a_name_that_is_one_way_of_a_pair_is_told_and_a_link_is_both(
    run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "slow.yaml"

    def told(*options: str) -> str:
        done = run("topology", "degrade", "dgx-a100", "--nodes", 2, *options, "-o", path)
        return str(done.err)

    assert "one way only: rail3->s0/ib3.rx as before" in told("--edge", "s0/ib3.*=0.5")
    for options in (("--edge", "*s0/ib3.*=0.5"), ("--link", "3-11=0.5")):
        assert "one way only" not in told(*options)
        betas = {edge.name: edge.beta for edge in load_topology(str(path)).edges}
        assert betas["s0/ib3.tx->rail3"] == betas["rail3->s0/ib3.rx"] == 80


def test_the_example_of_the_page_slows_both_ways(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "scenarios.md").read_text()
    (example,) = re.findall(r"^`?taccl (topology degrade .* slow\.yaml)", text, re.MULTILINE)
    assert run(*shlex.split(example)).status == 0
    before = load_topology("dgx-a100", nodes=2).edges
    slower = {
        edge.name
        for edge, now in zip(before, load_topology("slow.yaml").edges, strict=True)
        if edge.beta != now.beta
    }
    assert slower == {"s0/ib3.tx->rail3", "rail3->s0/ib3.rx"}


def test_what_is_left_of_a_machine_is_compared_with_the_machine_by_nodes(
    run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "slow.yaml"
    run("topology", "degrade", "dgx-a100", "--nodes", 2, "--link", "3-11=0.5", "-o", path)
    for pair in (("dgx-a100", path), (path, "dgx-a100")):
        done = run("topology", "diff", *pair, "--nodes", 2)
        assert done.status == 1, done.err
        assert "ranks                                   16" in done.out
    done = run("topology", "diff", path, path, "--nodes", 2)
    assert (done.status, "both have their servers in them" in done.err) == (2, True)


def test_a_removed_edge_is_not_printed(run: Run) -> None:
    printed = run("topology", "degrade", "ring:4", "--link", "0-1", "--factor", "0").out
    assert "name: ring-4-degraded" in printed
    assert "{from: 1, to: 2" in printed
    assert "{from: 0, to: 1" not in printed
    assert "{from: 1, to: 0" not in printed


@pytest.mark.parametrize(
    ("options", "field", "message"),
    [((), "--edge", "nothing to degrade is named"),
     (("--edge", "0->1"), "--edge", "does not say what is left"),
     (("--link", "0-2=0.5"), "--link", "has no link"),
     (("--link", "0-1", "--factor", "1.5"), "--factor", "from 0 to below 1"),
     (("--link", "0-1", "--factor", "abc"), "--factor", "from 0 to below 1"),
     (("--link", "0-1=0.5", "--factor", "abc"), "--factor", "'abc' is for nothing"),
     (("--edge", "*->1=0"), "--edge", "can't be reached")],
)  # fmt: skip
def test_what_cannot_be_degraded_is_one_error(
    run: Run, options: tuple[str, ...], field: str, message: str
) -> None:
    done = run("topology", "degrade", "ring:4", *options)
    assert done.status == 2
    assert done.err.startswith(f"error: {field}: ")
    assert message in done.err
    assert "Traceback" not in done.err


def test_the_file_read_is_not_written_over(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "ring.yaml"
    run("topology", "expand", "ring:4", "-o", path)
    before = path.read_text()
    done = run("topology", "degrade", path, "--edge", "0->1=0.5", "-o", path)
    assert done.status == 2
    assert path.read_text() == before

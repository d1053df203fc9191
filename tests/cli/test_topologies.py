"""``taccl topology show``, ``validate`` and ``diff`` on the command line."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run

BROKEN = "taccl: topology/1\nname: b\nranks: 3\nedges:\n- {from: 0, to: 1, bandwidth: 25GB/s}\n"


def test_a_topology_is_shown_as_a_matrix_with_a_legend(run: Run) -> None:
    done = run("topology", "show", "ndv2", "--nodes", 2)
    assert done.status == 0
    assert "L43.48" in done.out
    assert "over NICs and switches to another server, 4 edges, such as 0 -> 8" in done.out


def test_a_topology_is_shown_as_json_and_drawn_at_the_same_time(run: Run, tmp_path: Path) -> None:
    picture = tmp_path / "ring.svg"
    found = json.loads(run("topology", "show", "ring:4", "--svg", picture, "--json").out)
    assert found["matrix"][0] == ["X", "L50", ".", "L50"]
    assert found["output"] == [str(picture)]
    assert picture.exists()


def test_a_good_topology_has_nothing_to_object_to(run: Run) -> None:
    done = run("topology", "validate", "dgx1v", "--nodes", 2)
    assert done.status == 0
    assert done.out.endswith("no problems found\n")


def test_warnings_leave_the_exit_status_at_0(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "b.yaml"
    path.write_text(BROKEN.replace("ranks: 3", "ranks: 2"))
    done = run("topology", "validate", path)
    assert done.status == 0
    assert f"warning: {path}:5: edges[0]: pairs 0 -> 1, 1 -> 0: 2 links have no alpha" in done.out
    assert "  fix: give an alpha" in done.out
    assert done.out.endswith("1 warning\n")


def test_an_error_is_exit_status_2_and_others_are_found_beside_it(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "b.yaml"
    path.write_text(BROKEN)
    done = run("topology", "validate", path)
    assert done.status == 2
    assert f"error: {path}: rank 2: rank 2 can't be reached from rank 0" in done.out
    assert "1 error, 1 warning" in done.out
    found = json.loads(run("topology", "validate", path, "--json").out)
    assert [f["rule"] for f in found["findings"]] == ["unreachable", "no-latency"]
    assert not found["usable"]
    # Other commands refuse it.
    assert "rank 2 can't be reached" in run("topology", "show", path).err


@pytest.mark.parametrize(
    "text", ["", "ranks: [", "taccl: topology/1\nname: b\nranks: x\nedges: []\n"]
)
def test_what_cannot_be_read_is_one_error_or_one_finding(
    run: Run, tmp_path: Path, text: str
) -> None:
    path = tmp_path / "b.yaml"
    path.write_text(text)
    plain = run("topology", "validate", path)
    assert (plain.status, plain.out) == (2, "")
    assert plain.err.startswith(f"error: {path}")
    told = run("topology", "validate", path, "--json")
    (finding,) = json.loads(told.out)["findings"]
    assert (told.status, finding["rule"], finding["file"]) == (2, "unread", str(path))
    assert finding["problem"] in plain.err
    assert finding["fix"]


def test_diff_ends_as_diff_does(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "graph.yaml"
    run("topology", "expand", "dgx-a100", "--nodes", 2, "-o", path)
    same = run("topology", "diff", "ring:4", "torus:4")
    assert (same.status, same.out) == (0, "the same but for the name\n")
    other = run("topology", "diff", "dgx-a100", "dgx-h100", "--nodes", 2)
    assert other.status == 1
    assert "32 edges changed: 300 GB/s, 0.35 us -> 450 GB/s, 0.35 us" in other.out
    found = json.loads(run("topology", "diff", "dgx-a100", path, "--json").out)
    assert (found["same"], found["facts"]["ranks"]) == (False, {"a": 8, "b": 16})


def test_diff_refuses_what_can_not_be_read(run: Run) -> None:
    done = run("topology", "diff", "ring:4", "rung:4")
    assert done.status == 2
    assert "there is no file and no shipped topology 'rung:4'" in done.err


@pytest.mark.parametrize(
    ("name", "nodes"),
    [("dgx1v", 1), ("dgx1v", 2), ("dgx-b200", 1), ("dgx-b200", 2), ("mi300x", 1),
     ("mi300x", 2), ("pcie-a100", 1), ("pcie-a100", 2), ("leaf-spine", None), ("fat-tree", None),
     ("dragonfly", None)],
)  # fmt: skip
def test_a_shipped_machine_gets_a_program_that_is_verified(
    run: Run, tmp_path: Path, name: str, nodes: int | None
) -> None:
    path = tmp_path / "a.xml"
    many = [] if nodes is None else ["--nodes", nodes]
    made = run("synthesize", name, "allgather", *many, "--engine", "ring", "--chunks", "1",
               "--quiet", "-o", path)  # fmt: skip
    assert made.status == 0, made.err
    assert run("verify", path).status == 0

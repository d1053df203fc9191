"""Imported machines on the command line: sizes from chunk sizes, and costs that need the sketch."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.cli.conftest import run as run

HUB = (
    '{"name": "hub", "gpus_per_node": 2, "nics_per_node": 1, "alpha": 1, "node_betas_list": [4],'
    ' "node_invbws_list": [5], "remote_alpha": 10, "remote_beta": 20, "remote_invbw": 30}'
)
SKETCH = (
    '{"nnodes": 2, "intranode_sketch": {"strategy": "none"}, "internode_sketch": {"strategy":'
    ' "relay", "internode_conn": "direct-map"}, "symmetry_offsets": [],'
    ' "hyperparameters": {"input_chunkup": 1}}'
)
QUICK = ("--deterministic", "--workers", "1", "--time-limit", "1", "--quiet", "--json")


@pytest.fixture
def files(tmp_path: Path, run: Run) -> dict[str, str]:
    """Return the paths of a machine in both modes, and of a sketch."""
    (tmp_path / "t.json").write_text(HUB)
    (tmp_path / "s.json").write_text(SKETCH)
    names = {"sketch": str(tmp_path / "s.json")}
    for costs in ("exact", "original"):
        names[costs] = str(tmp_path / f"{costs}.yaml")
        options = ("--base", "hubandspoke", "--chunk-size", "8KB", "--time-unit", "1us")
        done = run(
            "topology", "import", str(tmp_path / "t.json"), *options, "--costs", costs,
            "-o", names[costs],
        )  # fmt: skip
        assert done.status == 0
    return names


def test_the_time_is_the_one_that_a_hand_finds(files: dict[str, str], run: Run) -> None:
    # Two connections on one NIC: 10 + 2 * 20 to the other server, then 5 to the GPU beside.
    done = run(
        "synthesize", files["original"], "allgather", "--sketch", files["sketch"],
        "--runtime", "none", *QUICK,
    )  # fmt: skip
    found = json.loads(done.out)
    assert (found["costs"], found["makespan_us"]) == ("original", 55.0)
    # Four ranks with a chunk each of 8 KB
    assert (found["size_bytes"], found["chunk_bytes"], found["ranks"]) == (32_000, 8000, 4)


def test_an_exact_machine_takes_the_chunk_size_too(files: dict[str, str], run: Run) -> None:
    given = ("synthesize", files["exact"], "allgather", "--nodes", "2", "--runtime", "none", *QUICK)
    found = json.loads(run(*given, "--engine", "ring").out)
    assert (found["costs"], found["size_bytes"], found["chunks_per_rank"]) == ("exact", 32_000, 1)
    found = json.loads(run(*given, "--engine", "ring", "--chunks", "3").out)
    assert (found["size_bytes"], found["chunk_bytes"]) == (96_000, 8000)
    found = json.loads(run(*given, "--engine", "ring", "--size", "1MB", "--chunks", "1").out)
    assert (found["size_bytes"], found["chunk_bytes"]) == (1_000_000, 250_000)


def test_without_a_chunk_size_the_size_is_1_mb(run: Run) -> None:
    found = run(
        "synthesize", "ring:4", "allgather", "--engine", "ring", "--runtime", "none", *QUICK
    )
    assert json.loads(found.out)["size_bytes"] == 1_000_000
    assert json.loads(found.out)["costs"] is None


def test_bound_and_evaluate_take_the_sketch(
    files: dict[str, str], run: Run, tmp_path: Path
) -> None:
    out, on = str(tmp_path / "a.xml"), ("--sketch", files["sketch"])
    assert run("synthesize", files["original"], "allgather", *on, *QUICK, "-o", out).status == 0
    bound = json.loads(run("bound", files["original"], "allgather", *on, "--json").out)
    assert (bound["costs"], bound["size_bytes"]) == ("original", 32_000)
    done = run("evaluate", out, "--topology", files["original"], *on, "--size", "32KB", "--json")
    (row,) = json.loads(done.out)["rows"]
    assert (row["costs"], row["time_us"]) == ("original", 55.0)
    assert row["bound_us"] == bound["bound_us"] <= 55
    table = run("evaluate", out, "--topology", files["original"], *on, "--size", "32KB").out
    assert table.splitlines()[1].endswith("original")
    shown = run("synthesize", files["original"], "allgather", *on, *QUICK[:-1]).out
    assert "(occupy, original costs)" in shown


@pytest.mark.parametrize("command", ["synthesize", "bound"])
def test_several_servers_without_a_sketch_are_one_clear_error(
    command: str, files: dict[str, str], run: Run
) -> None:
    done = run(command, files["original"], "allgather", "--nodes", "2")
    assert done.status == 2
    assert done.err.startswith(f"error: {files['original']}: --sketch: hub has TACCL's own costs")
    assert len(done.err.splitlines()) == 2


def test_commands_that_show_a_machine_take_the_sketch(files: dict[str, str], run: Run) -> None:
    for command in ("show", "validate", "expand"):
        done = run("topology", command, files["original"], "--sketch", files["sketch"])
        assert done.status == 0
        assert "ranks" in done.out
    shown = run("sketch", "show", files["sketch"], files["original"]).out
    assert "0->2 1->3 2->0 3->1" in shown
    assert "shortest paths  ranks on them only" in shown


def test_chunks_that_make_no_whole_size_are_one_error(tmp_path: Path, run: Run) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(
        "taccl: topology/1\nname: t\nshape: {kind: ring, dims: [3]}\nchunk_size: 125/4 B\n"
    )
    for command in ("synthesize", "bound"):
        done = run(command, str(file), "allgather")
        assert done.status == 2
        assert "--size: 3 chunks of 125/4 B, the topology's chunk_size, make no size" in done.err
    assert run("bound", str(file), "allgather", "--chunks", "4").status == 0

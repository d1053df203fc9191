"""AlltoAllv from a file: served, bounded, written as a schedule, and never as XML."""

import json
from pathlib import Path

import pytest

from taccl.model.schedule_file import read_schedule
from taccl.verify import verify
from tests.cli.conftest import Run

QUICK = ("--deterministic", "--workers", "1", "--time-limit", "1")


@pytest.fixture
def tokens(tmp_path: Path) -> str:
    """Three times as much from rank 0 to rank 1 as elsewhere; nothing from 2 to 3."""
    path = tmp_path / "tokens.yaml"
    rows = [[0, 3000, 1000, 1000], [1000, 0, 1000, 1000], [1000, 1000, 0, 0], [1000] * 3 + [0]]
    path.write_text(json.dumps({"taccl": "demand/1", "bytes": rows}))
    return str(path)


def test_a_demand_is_served_bounded_and_read_back(run: Run, tokens: str, tmp_path: Path) -> None:
    out = str(tmp_path / "s.json")
    shown = run(
        "synthesize", "ring:4", tokens, *QUICK, "--chunks", "1", "--schedule", out, "--json"
    )
    found = json.loads(shown.out)
    assert shown.status == 0
    assert (found["collective"], found["size_bytes"]) == ("alltoallv", 5000)
    assert (found["chunk_bytes"], found["verified"]) == (1000, True)
    bounds = json.loads(run("bound", "ring:4", tokens, "--json").out)
    assert bounds["bound_us"] == found["bound_us"] <= found["makespan_us"]
    again = read_schedule(out)
    assert not verify(again)
    assert again.makespan == round(found["makespan_us"] * 1e6)


@pytest.mark.parametrize("runtime", ["portable", "msccl", "executor", "rccl"])
def test_no_runtime_has_an_xml_of_it(run: Run, tokens: str, tmp_path: Path, runtime: str) -> None:
    out = tmp_path / "a.xml"
    done = run("synthesize", "ring:4", tokens, "--runtime", runtime, "-o", str(out), *QUICK)
    assert done.status == 2
    assert "there is no XML of alltoallv that a runtime could rely on" in done.err
    assert "fix: use --schedule OUT.json" in done.err
    assert not out.exists()


def test_the_size_is_what_the_file_says(run: Run, tokens: str) -> None:
    done = run("synthesize", "ring:4", tokens, "--size", "1MB", *QUICK)
    assert done.status == 2
    assert "--size: the file says how many bytes there are, 5000 in the largest buffer" in done.err
    assert run("synthesize", "ring:4", tokens, "--size", "5000", *QUICK, "--quiet").status == 0


def test_a_machine_with_other_ranks_is_refused(run: Run, tokens: str) -> None:
    done = run("synthesize", "ring:8", tokens, *QUICK)
    assert done.status == 2
    assert "alltoallv is for 4 ranks, and ring-8 has 8" in done.err

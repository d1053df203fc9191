"""``--ranks`` and groups files: from the command line to files that are replayed side by side."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run


def test_an_allreduce_of_a_server_has_a_program_of_eight_ranks(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "server.xml"
    group = ("--nodes", 2, "--ranks", "8-15", "--size", "64MB")
    done = run(
        "synthesize", "dgx-h100", "allreduce", *group, "--chunks", 1, "--engine", "all-pairs",
        "--json", "-o", file,
    )  # fmt: skip
    found = json.loads(done.out)
    assert (found["ranks"], found["bound_kind"]) == (8, "message")
    assert 'ngpus="8"' in file.read_text()
    assert run("verify", file).status == 0
    shown = run("evaluate", file, "--topology", "dgx-h100", *group, "--json")
    (row,) = json.loads(shown.out)["rows"]
    assert row["time_us"] == found["replay_us"]
    bounded = json.loads(run("bound", "dgx-h100", "allreduce", *group, "--json").out)
    assert bounded["bound_us"] == pytest.approx(249.6, abs=0.05)
    refused = run("verify", file, "--ranks", "0-7")
    assert (refused.status, "give --topology" in refused.err) == (2, True)


def test_members_of_a_ring_that_are_no_neighbours_need_relays(run: Run, tmp_path: Path) -> None:
    group = ("--ranks", "0,2,4,6", "--size", "4MB", "--quiet")
    done = run("synthesize", "ring:8", "allreduce", *group)
    assert done.status == 3
    assert "rank 2 can't be reached from rank 0" in done.err
    assert "--relays all" in done.err
    file = tmp_path / "even.xml"
    found = run(
        "synthesize", "ring:8", "allreduce", *group, "--relays", "all", "--chunks", 1,
        "--engine", "guided", "--time-limit", 3, "--runtime", "msccl", "--json", "-o", file,
    )  # fmt: skip
    answer = json.loads(found.out)
    assert answer["makespan_us"] == pytest.approx(165.6)
    assert answer["busbw_gbps"] == pytest.approx(1.5 * answer["algbw_gbps"])
    assert 'coll="custom"' in file.read_text()
    again = run("evaluate", file, "--topology", "ring:8", *group[:4], "--relays", "all", "--json")
    assert json.loads(again.out)["rows"][0]["time_us"] == pytest.approx(165.6)
    lonely = run("synthesize", "ring:8", "allreduce", "--relays", "all")
    assert (lonely.status, "name its members with --ranks" in lonely.err) == (2, True)

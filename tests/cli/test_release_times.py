"""``--ready-over`` and ``--needed-over``: chunks between a producer and a consumer."""

import json
from pathlib import Path

from tests.cli.conftest import Run


def test_chunks_are_made_and_used_one_after_another(run: Run, tmp_path: Path) -> None:
    asked = ("ring:4", "allgather", "--size", "64KB", "--chunks", "2", "--ready-over", "100us")
    bound = json.loads(run("bound", *asked, "--json").out)["bound_us"]
    file = str(tmp_path / "s.json")
    limits = ("--time-limit", "3", "-q")
    found = json.loads(run("synthesize", *asked, *limits, "--json", "--schedule", file).out)
    assert found["replay_us"] is None
    assert 100 < bound <= found["makespan_us"]
    refused = run("synthesize", *asked, "-o", str(tmp_path / "a.xml"))
    assert (refused.status, list(tmp_path.iterdir())) == (2, [tmp_path / "s.json"])
    assert "no program waits for a chunk" in refused.err
    told = run("synthesize", "ring:4", "allgather", "--needed-over", "1us", *limits)
    assert "worked on for 1 us" in told.out
    assert "should be a time" in run("bound", *asked[:2], "--needed-over", "x").err
    assert "does not wait for chunks" in run("convert", file, "-o", str(tmp_path / "a.xml")).err

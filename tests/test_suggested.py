"""The benchmark of suggested sketches on a machine that is solved at once."""

from pathlib import Path

import pytest

from benchmarks import suggested
from benchmarks.suggested import Case, Found, Line, cases, cells, page, read_results, write_results

RING = Case("ring:4", None, "allgather")


def test_servers_are_counted_and_shapes_are_taken_as_they_are() -> None:
    found = [(case.machine, case.nodes) for case in cases(("ndv2", "hub"))]
    assert found == [("ndv2", n) for n in (1, 1, 2, 2, 3, 3)] + [("hub", None)] * 2
    assert Case("ndv2", 3, "alltoall").options == ["ndv2", "alltoall", "--nodes", "3"]


def test_a_case_is_suggested_solved_and_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suggested, "SECONDS", 3)
    line = suggested.run(RING)
    # 750 KB come into each GPU by two wires of 50 GB/s, 7.5 us, after two alphas of 0.7 us: each
    # sends both its halves as one message, and passes one half on.
    assert line.sketched.makespan == pytest.approx(8.9)
    assert (line.ranks, line.sketched.chunks) == (4, 2)


def test_what_is_not_found_is_missed_and_told() -> None:
    line = suggested.run(Case("ring:1", None, "nothing"))
    assert line.missed.startswith("no sketch: error: ")


def test_rows_are_kept_and_make_a_page(tmp_path: Path) -> None:
    line = Line(4, Found(10.0, 2.0, 1, cpu=3.0), Found(20.0, 4.0, 2))
    file = tmp_path / "rows.json"
    write_results(file, {RING.name: line, "other": Line(2, Found(None, 1.0, problem="lost"))})
    kept = read_results(file)
    assert kept[RING.name] == line
    assert cells(RING, line) == (
        "ring:4", "allgather", "4", "1", "10.00", "2.0", "3.0", "20.00", "4.0", "0.50",
    )  # fmt: skip
    text = page({RING: line, Case("x", 2, "alltoall"): kept["other"]})
    assert "| ring:4 | allgather | 4 | 1 | 10.00 |" in text
    assert "- **x x 2 alltoall**: lost" in text
    assert read_results(None) == {}

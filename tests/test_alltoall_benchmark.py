"""The AlltoAll benchmark's functions on rows small enough to compute by hand."""

from benchmarks.alltoall import ALLTOALL, PARTS, ROOTED, Case, line_of
from benchmarks.gathers_cases import Machine

RING = Machine("ring:4@25GB/s,1us")


def test_an_alltoall_on_a_ring_of_4_meets_its_bound() -> None:
    # 8 chunks of 1 MB go one hop and 4 two, over 8 wires: two chunks of 41 us on each.
    line = line_of(Case(RING), slow=1)
    assert line.cells[:3] == ("ring:4@25GB/s,1us", "4", "1")
    assert line.cells[4:8] == ("82.00", "82.00", "0.000%", "0.10%")
    assert line.misses == ()


def test_a_target_that_is_missed_is_told_with_by_how_much() -> None:
    line = line_of(Case(RING, gap_fixed=-0.01, seconds=-1.0), slow=1)
    assert line.misses[0] == "gap_fixed 0.000% > -1.000%"
    assert line.misses[1].startswith("seconds ")


def test_a_row_without_a_target_misses_nothing() -> None:
    line = line_of(Case(RING, "gather", gap_fixed=None), slow=1)
    assert line.cells[0] == "ring:4@25GB/s,1us gather"
    assert line.cells[7] == "-"
    assert line.misses == ()


def test_every_row_has_a_name_of_its_own() -> None:
    assert len(PARTS["alltoall"].rows) == len(ALLTOALL)
    assert len(PARTS["rooted"].rows) == len(ROOTED)

"""The gather benchmark's functions on rows small enough to compute by hand."""

from fractions import Fraction
from pathlib import Path

import pytest

from benchmarks.gathers import page, read_results, run_part, table_of, write_results
from benchmarks.gathers_cases import GATHERS, SLOW, Bandwidth, Gather, Machine, Small, Sum
from benchmarks.gathers_parts import (
    PARTS,
    Line,
    Part,
    bandwidth_line,
    gather_line,
    small_line,
    sum_line,
)
from benchmarks.gathers_runs import classical, exponent, greedy, request
from taccl.apps import logical_group, synthesize

RING = Machine("ring:4@25GB/s,1us")


def test_a_gather_on_a_ring_of_4_is_two_steps_and_meets_its_targets() -> None:
    # 1 MB at 25 GB/s takes 41 us with alpha. 3 chunks enter each rank by 2 wires: 2 steps.
    line = gather_line(Gather(RING, 1, 0.0, 60, 1.0), slow=1)
    assert line.cells[2:5] == ("82.00", "82.00", "0.00%")
    # One way round a ring is 3 steps; halves of it can't be exchanged across.
    assert line.cells[9:12] == ("1.50", "-", "-")
    assert line.misses == ()


def test_a_target_that_is_missed_is_told_with_by_how_much() -> None:
    line = gather_line(Gather(RING, 1, -0.01, 60, -0.01), slow=1)
    assert line.misses[0] == "gap_fixed 0.00% > -1.00%"
    assert line.misses[1].startswith("gap at the best k ")


def test_bandwidth_is_held_to_the_bound_and_the_bound_to_the_table() -> None:
    # 3/4 of what is gathered enters each rank at 50 GB/s; two chunks fill both wires.
    line = bandwidth_line(Bandwidth(RING, "66.67"), slow=1)
    assert line.cells[2] == "66.67"
    assert line.misses == ()
    wrong = bandwidth_line(Bandwidth(RING, "66.66", 1.5), slow=1)
    assert wrong.misses[1] == "bound 66.67 GB/s, not 66.66"
    assert wrong.misses[0].endswith("% of the bound < 150%")


@pytest.mark.parametrize("rule", ["occupy", "delay"])
def test_small_messages_are_compared_under_both_rules(rule: str) -> None:
    line = small_line(Small(RING, 1.1, rule), slow=1)
    assert line.cells[1] == rule
    assert line.misses == ()


def test_a_sum_is_compared_with_its_two_halves() -> None:
    line = sum_line(Sum(RING, 4), slow=0.1)
    assert line.misses == ()
    assert float(line.cells[6]) <= 1


def test_the_greedy_and_the_ring_are_schedules_of_the_same_case() -> None:
    asked = request(RING.load(), "allgather", 4 * 10**6, 1, seconds=5)
    best = synthesize(asked).schedule.makespan
    assert best <= greedy(asked) <= (classical(asked, "ring") or 0)


def test_a_nic_at_half_speed_is_one_edge_each_way() -> None:
    whole = Machine("dgx-a100", 2).load().topology
    slower = Machine("dgx-a100", 2, slow=SLOW).load().topology
    changed = [
        (edge.name, Fraction(edge.beta or 0) / Fraction(other.beta or 1))
        for edge, other in zip(slower.edges, whole.edges, strict=True)
        if edge.beta != other.beta
    ]
    assert changed == [("s0/ib0.tx->rail0", Fraction(2)), ("rail0->s0/ib0.rx", Fraction(2))]


def test_without_symmetry_no_group_is_left_and_a_plain_graph_finds_its_own() -> None:
    none, searched = (Machine("dgx-a100", 2, symmetry=kind) for kind in ("none", "searched"))
    assert len(logical_group(none.load())) == 1
    assert searched.load().topology.rotations == ()
    assert len(logical_group(searched.load())) > 1


def test_the_exponent_of_a_square_is_2() -> None:
    assert exponent([(1, 3), (2, 12), (10, 300)]) == pytest.approx(2)
    with pytest.raises(ValueError, match="one x only"):
        exponent([(4, 1), (4, 2)])


def test_a_row_whose_data_is_not_there_is_left_out_with_the_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    absent = Machine("nothing.json")
    part = Part("heading", ("a",), {"row": (absent, lambda _slow: Line(("never",)))})
    assert list(run_part(part, "", 1.0)) == []
    assert "left out: row, as " in capsys.readouterr().out


def test_rows_are_kept_and_shown_in_the_order_of_their_table(tmp_path: Path) -> None:
    names = list(PARTS["table"].rows)
    kept = {"table": {names[1]: Line(("b",)), names[0]: Line(("a",), ("late",))}}
    write_results(tmp_path / "rows.json", kept)
    assert read_results(tmp_path / "rows.json") == kept
    text = "\n".join(table_of(PARTS["table"], kept["table"]))
    assert text.index("| a |") < text.index("| b |")
    assert f"- **{names[0]}**: late" in text
    assert text in page(kept)


def test_rows_have_names_of_their_own() -> None:
    assert len(PARTS["table"].rows) == len(GATHERS)
    assert len({name for part in PARTS.values() for name in part.rows}) == sum(
        len(part.rows) for part in PARTS.values()
    )

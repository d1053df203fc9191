"""The grid of machines, collectives and sizes: its cells, its sample, and how cells are kept."""

from argparse import ArgumentTypeError
from pathlib import Path

import pytest

from benchmarks.grid import (
    COLLECTIVES,
    SAMPLE,
    SIZES,
    Cell,
    Row,
    cells_of,
    distribution,
    page,
    read_rows,
    row_of,
    sample_of,
    write_rows,
)
from benchmarks.listed import listed
from taccl.topology.file import shipped_topologies

CELL = Cell("ring", 1, "allgather", "1KB", "occupy")


def row(gap: float) -> Row:
    return Row(round(1000 * (1 + gap)), 1000, "port", "guided", 1.0)


def test_every_machine_is_asked_with_two_servers_and_measured_costs_where_it_has_them() -> None:
    cells = cells_of(["ring", "dgx2", "dgx1v"], COLLECTIVES, SIZES)
    found = {(cell.machine, cell.nodes, cell.profile) for cell in cells}
    assert found == {
        ("ring", 1, "occupy"), ("dgx1v", 1, "occupy"), ("dgx1v", 2, "occupy"),
        *(("dgx2", nodes, profile) for nodes in (1, 2) for profile in ("occupy", "measured")),
    }  # fmt: skip
    assert len(cells) == len(found) * len(COLLECTIVES) * len(SIZES)


def test_the_sample_is_fixed_and_has_every_size_collective_and_profile() -> None:
    every = [*cells_of(shipped_topologies(), COLLECTIVES, SIZES)]
    sample = sample_of(every)
    assert sample == sample_of(every[::-1])
    assert len(set(sample)) == SAMPLE
    assert {cell.size for cell in sample} == set(SIZES)
    assert {cell.collective for cell in sample} == set(COLLECTIVES)
    assert {cell.profile for cell in sample} == {"occupy", "measured"}
    # Without a machine the others' cells stay in it.
    fewer = sample_of([cell for cell in every if cell.machine != "dgx2"])
    assert {cell for cell in sample if cell.machine != "dgx2"} <= set(fewer)


def test_gaps_are_told_by_size_collective_and_machine() -> None:
    rows = {
        Cell("ring", 1, "allgather", size, "occupy"): row(gap)
        for size, gap in (("1KB", 0.0), ("16KB", 0.5), ("4MB", 0.02))
    }
    lines = distribution({**rows, CELL._replace(size="1GB"): Row(None, 0, "-", "too large", 0.1)})
    assert lines[2] == "| all | 3 | 2.0% | 50.0% | 50.0% | 66.7% |"
    assert "| 16KB | 1 | 50.0% | 50.0% | 50.0% | 0.0% |" in lines
    assert not any("1GB" in line for line in lines)  # nothing was found
    assert "| ring x 1 | 3 | 2.0% | 50.0% | 50.0% | 66.7% |" in lines


def test_cells_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    assert read_rows(file) == {}
    rows = {CELL: row(0.1), CELL._replace(size="4MB"): Row(None, 0, "-", "no schedule", 0.2)}
    write_rows(file, rows)
    assert read_rows(file) == rows
    assert [path.name for path in tmp_path.iterdir()] == ["rows.json"]


def test_a_cell_is_run_and_a_bad_one_says_why() -> None:
    (cell, network), *_ = cells_of(["ring"], ["allgather"], ["1KB"]).items()
    found = row_of(cell, network, 1.0)
    assert found.gap is not None
    assert found.gap >= 0
    (cell, network), *_ = cells_of(["gb200-nvl72"], ["alltoall"], ["100"]).items()
    assert "less than one element" in row_of(cell, network, 1.0).engine


def test_the_page_has_every_cell() -> None:
    text = page({CELL: row(0.25)}, 3, 4.0)
    assert "--time-limit 4 " in text
    assert (
        "| ring x 1 | allgather | 1KB | occupy | 0.00 | 0.00 | port | 25.0% | guided | 1 |" in text
    )
    assert "1 cells, 3 left to run." in text


def test_names_that_are_none_are_refused() -> None:
    read = listed(("dgx2", "hub"))
    assert read("hub,dgx2,") == ["hub", "dgx2"]
    assert read("") == []
    with pytest.raises(ArgumentTypeError, match="there is no 'dgx9', but dgx2, hub"):
        read("hub,dgx9")

"""The comparison of ``auto`` with its parts: ten random problems, and how rows are kept."""

from dataclasses import replace
from pathlib import Path

from benchmarks.auto import (
    Row,
    machine_requests,
    page,
    random_requests,
    read_rows,
    row_of,
    write_rows,
)
from tests.sweep import for_each

ROW = Row("x", 1.0, "guided", 1010, 1000, 2.0, {"ring": 2000, "taccl": 1010}, [], [])


@for_each("seed", range(10), quick=4)
def test_auto_is_at_least_as_good_as_every_engine_on_random_problems(seed: int) -> None:
    name, request = list(random_requests(seed + 1))[seed]
    counted = replace(request, deterministic=True, workers=1)
    row = row_of(name, counted, seconds=(2.0, 0.5))
    assert not row.missed, row.others
    assert row.auto >= row.bound


def test_spread_over_machines_and_sizes_all_collectives_are_met() -> None:
    machines, sizes = ["ring:3", "ring:4", "ring:5", "hub:3"], ["1KB", "1MB", "1GB", "2GB"]
    collectives = ["allgather", "reducescatter", "allreduce", "alltoall"]
    asked = [
        name.split() for name, _ in machine_requests(machines, collectives, sizes, spread=True)
    ]
    assert len(asked) == len(machines) * len(sizes)
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert len({(names[one], names[other]) for names in asked}) == 16
    every = list(machine_requests(machines, collectives, sizes))
    assert len(every) == 4 * len(asked)


def test_a_faster_engine_is_a_miss() -> None:
    assert not ROW.missed
    assert replace(ROW, others={"taccl": 1009}).missed
    # Within 0.5 % of the bound there is nothing more to look for.
    assert not replace(ROW, auto=1005, others={"taccl": 1001}).missed


def test_fewer_bytes_are_no_better_time() -> None:
    assert not replace(ROW, others={"taccl": 1009}, cut=["taccl"]).missed


def test_a_row_says_where_auto_moves_fewer_bytes_than_its_rival() -> None:
    assert ROW.cells[-2] == "1.000"
    assert replace(ROW, short=["taccl"]).cells[-2] == "1.000*"
    assert replace(ROW, short=["ring"]).cells[-2] == "1.000"


def test_taking_longer_than_the_limit_and_its_margin_is_a_miss() -> None:
    assert not replace(ROW, limit=60.0, seconds=64.0).missed
    assert replace(ROW, limit=60.0, seconds=64.1).missed
    assert replace(ROW, limit=60.0, seconds=64.1, others={}).missed


def test_rows_of_one_problem_with_two_limits_are_both_kept(tmp_path: Path) -> None:
    rows = [ROW, replace(ROW, scale=0.1)]
    file = tmp_path / "rows.json"
    write_rows(file, {row.key: row for row in rows})
    assert list(read_rows(file).values()) == rows


def test_rows_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    assert read_rows(file) == {}
    row = replace(ROW, cut=["ring"])
    write_rows(file, {"x": row})
    assert read_rows(file) == {"x 1": row}


def test_the_page_names_what_is_missed() -> None:
    text = page([ROW, replace(ROW, name="y", others={"taccl": 505})], left=3)
    assert "| x | 1 | guided | 0.00 | 1.0% | taccl 0.00 | 1.000 | 2 |" in text
    assert "2 problems, 3 left to run, 1 missed: y." in text


def test_machines_are_asked_for_every_collective_and_size() -> None:
    found = dict(machine_requests(["ring"], ["allgather", "alltoall"], ["1KB", "1MB"]))
    assert [*found] == [
        "ring allgather 1KB", "ring allgather 1MB", "ring alltoall 1KB", "ring alltoall 1MB",
    ]  # fmt: skip
    assert found["ring allgather 1MB"].size == 10**6

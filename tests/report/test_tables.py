"""Tables of results as text."""

import csv
import json

import pytest

from taccl.replay.sweep import Row
from taccl.report.tables import WRITERS

FULL = Row(
    "allreduce", "net", 8, 1 << 20, 35_120_000, file="ring.xml", bound=30_000_000,
    bound_kind="port", bottleneck="0-1", utilisation=0.875, wrong=0,
)  # fmt: skip
NONE = Row("allreduce", "net", 8, 100, None, file="ring.xml", note="can't")


def test_a_row_of_nccl_tests_has_its_thirteen_fields() -> None:
    # 1 MiB in 35.12 us = 29.86 GB/s, times 14/8
    text = WRITERS["nccl-tests"]([FULL])
    (line,) = [line for line in text.splitlines() if not line.startswith("#")]
    assert line.split() == [
        "1048576", "262144", "float", "sum", "-1", "N/A", "N/A", "N/A", "N/A",
        "35.12", "29.86", "52.25", "0",
    ]  # fmt: skip


def test_a_program_of_both_modes_fills_both_groups() -> None:
    row = Row("allgather", "net", 8, 1 << 20, 35_120_000, in_place=True, out_of_place=True)
    line = WRITERS["nccl-tests"]([row]).splitlines()[3]
    fields = line.split()
    assert fields[1:4] == ["32768", "float", "none"]  # elements of one rank
    assert fields[5:9] == fields[9:13]


@pytest.mark.parametrize(
    ("picoseconds", "shown"),
    [(1_234_567, "1.23"), (1_234_567_000, "1234.6"), (123_456_789_000, "123457")],
)
def test_numbers_lose_decimals_to_keep_their_width(picoseconds: int, shown: str) -> None:
    row = Row("allreduce", "net", 8, 1 << 20, picoseconds)
    time = WRITERS["nccl-tests"]([row]).splitlines()[3].split()[9]
    assert time == shown


def test_wrong_values_are_counted_at_the_end() -> None:
    bad = Row("allreduce", "net", 8, 1 << 20, 35_120_000, wrong=3)
    lines = WRITERS["nccl-tests"]([FULL, bad]).splitlines()
    assert lines[-2] == "# Out of bounds values : 3 FAILED"


def test_the_average_is_that_of_all_bus_bandwidths() -> None:
    assert WRITERS["nccl-tests"]([FULL]).splitlines()[-1] == "# Avg bus bandwidth    : 52.2497"


def test_a_size_that_can_not_run_is_not_available_in_nccl_tests() -> None:
    line = WRITERS["nccl-tests"]([NONE]).splitlines()[3]
    assert line.split()[5:] == ["N/A"] * 8


def test_a_program_that_does_nothing_shows_what_is_wrong_in_no_time() -> None:
    nothing = Row("allreduce", "net", 8, 1 << 20, 0, wrong=2048)
    lines = WRITERS["nccl-tests"]([nothing]).splitlines()
    assert lines[3].split()[9:] == ["0.00", "0.00", "0.00", "2048"]
    assert "2048 FAILED" in lines[-2]
    assert "2048" in WRITERS["table"]([nothing])


def test_wrong_values_of_a_size_that_can_not_run_do_not_count() -> None:
    stuck = Row("allreduce", "net", 8, 100, None, wrong=3)
    assert "0 OK" in WRITERS["nccl-tests"]([FULL, stuck])


def test_rows_of_several_files_stand_under_their_names() -> None:
    other = Row("allreduce", "net", 8, 1 << 20, 35_120_000, file="tree.xml")
    lines = WRITERS["nccl-tests"]([FULL, NONE, other]).splitlines()
    assert [lines[3], lines[6]] == ["# ring.xml", "# tree.xml"]
    assert WRITERS["nccl-tests"]([FULL, NONE]).count(".xml") == 0


def test_json_and_csv_say_which_modes_are_served_and_what_is_wrong() -> None:
    (record,) = json.loads(WRITERS["json"]([FULL]))["rows"]
    assert (record["in_place"], record["out_of_place"], record["wrong"]) == (True, False, 0)
    assert WRITERS["csv"]([NONE]).splitlines()[0].endswith("in_place,out_of_place,wrong")


def test_json_has_every_column_and_null_for_no_time() -> None:
    rows = json.loads(WRITERS["json"]([FULL, NONE]))["rows"]
    assert rows[0]["time_us"] == 35.12
    assert rows[0]["bottleneck"] == "0-1"
    assert rows[1]["time_us"] is None
    needed = {"file", "size_bytes", "time_us", "algbw_gbps", "busbw_gbps", "bound_us", "gap"}
    assert needed <= set(rows[0])


def test_csv_has_a_header_and_a_line_for_each_row() -> None:
    rows = list(csv.DictReader(WRITERS["csv"]([FULL, NONE]).splitlines()))
    assert [(row["size_bytes"], row["time_us"]) for row in rows] == [
        ("1048576", "35.12"), ("100", ""),
    ]  # fmt: skip


def test_a_table_aligns_its_columns_and_leaves_out_empty_ones() -> None:
    assert WRITERS["table"]([FULL, NONE]) == (
        "    file  collective  size  time us  algbw GB/s  busbw GB/s  bound us    gap"
        "  bottleneck  busy   note\n"
        "ring.xml   allreduce  1MiB    35.12       29.86       52.25        30  17.1%"
        "         0-1   88%\n"
        "ring.xml   allreduce  100B        -" + " " * 61 + "can't\n"
    )


@pytest.mark.parametrize("name", ["table", "csv"])
def test_no_rows_are_no_text(name: str) -> None:
    assert WRITERS[name]([]) == ""

"""The table, CSV, JSON and SVG of a comparison."""

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from xml.etree.ElementTree import Element

import pytest
from defusedxml.ElementTree import fromstring

from taccl.replay.sweep import Row
from taccl.report.comparison import COMPARED, HERE, Comparison, Contender, Crossover, Modelled, plot
from taccl.units import Time

US = 1_000_000
SIZES = (1000, 1_000_000)


def contender(
    name: str, kind: str, *times: Time | None, note: str = "", short: str = ""
) -> Contender:
    rows = tuple(
        Row("allgather", "net", 4, size, time, program=f"p-{name}", note="" if time else "why")
        for size, time in zip(SIZES, times, strict=True)
    )
    return Contender(name, kind, rows, note, short)


MODELLED = Modelled(
    (
        contender("NCCL Ring LL", "nccl-way", US, 9 * US, note="not a replay", short="Ring LL"),
        contender("NCCL Tree LL", "nccl-way", 7 * US, US, note="not a replay", short="Tree LL"),
    ),
    ("Ring LL", "Tree LL"), (Crossover(4096, "Ring LL", "Tree LL"),),
    (Crossover(5000, "NCCL", HERE), Crossover(6000, HERE, "NCCL")), "gpu=volta",
)  # fmt: skip

FOUND = Comparison(
    "allgather", "net", 4, "occupy", "executor", SIZES,
    (("latency", 2 * US), ("port", 40 * US)),
    (
        contender("ring", "algorithm", 4 * US, 50 * US),
        contender("mine.xml", "file", 3 * US, 80 * US),
        contender("folder/odd.xml", "file", None, 50 * US, short="odd.xml"),
        contender("NCCL", "nccl", US, US, note="not a replay"),
    ),
    (Crossover(12_345, "mine.xml", "ring"),),
    (("all-pairs", "no links"), ("chain", "no links")),
    MODELLED,
)  # fmt: skip


def test_the_table_marks_the_fastest_and_tells_what_is_its() -> None:
    lines = COMPARED["table"](FOUND).splitlines()
    assert [line.split() for line in lines[2:4]] == [
        ["1KB", "4", "3*", "-", "1", "2", "50.0%", "0.33", "0.25"],
        ["1MB", "50*", "80", "50*", "1", "40", "25.0%", "20.00", "15.00"],
    ]
    assert len({len(line) for line in lines[1:4]}) == 1


def test_the_table_tells_crossovers_and_who_is_not_there() -> None:
    lines = COMPARED["table"](FOUND).splitlines()
    assert lines[4:9] == [
        "from 12.345KB on: ring is faster than mine.xml",
        "not there: all-pairs, chain: no links",
        "does not run: odd.xml at 1KB: why",
        "not in the race: NCCL: not a replay",
        "",
    ]


def test_the_columns_of_files_are_headed_by_their_short_names() -> None:
    head = COMPARED["table"](FOUND).splitlines()[1].split()
    assert head[:5] == ["size", "ring", "mine.xml", "odd.xml", "NCCL"]


def test_a_second_table_tells_what_nccl_expects_of_each_way_and_what_it_would_run() -> None:
    text = COMPARED["table"](FOUND)
    head, *lines = text.splitlines()[9:]
    assert "(modelled)" in head
    assert [line.split() for line in lines[:3]] == [
        ["size", "Ring", "LL", "Tree", "LL"], ["1KB", "1+", "7"], ["1MB", "9", "1+"],
    ]  # fmt: skip
    assert lines[3:] == [
        "from 4KiB on: NCCL would run Tree LL, not Ring LL",
        "from 5KB on: NCCL's model expects more time than the fastest here takes",
        "from 6KB on: NCCL's model expects less time than the fastest here takes",
        "below the bound at 1KB to 1MB: NCCL's model expects 1 us at 1MB, where no program takes"
        " less than 40: its inputs do not fit this machine; set them with --nccl",
        "NCCL's model was given gpu=volta",
    ]
    without = replace(FOUND, nccl=None)
    assert COMPARED["table"](without) == "\n".join(text.splitlines()[:8]) + "\n"


def test_json_has_a_row_for_every_size_and_contender() -> None:
    found = json.loads(COMPARED["json"](FOUND))
    told = [(r["size_bytes"], r["contender"], r["time_us"], r["fastest"]) for r in found["rows"]]
    assert told[:4] == [
        (1000, "ring", 4.0, False), (1000, "mine.xml", 3.0, True),
        (1000, "folder/odd.xml", None, False), (1000, "NCCL", 1.0, False),
    ]  # fmt: skip
    assert [r["gap"] for r in found["rows"][6:]] == [0.25, 1.0, 0.25, None, None, None]
    assert all(r["bound_us"] for r in found["rows"])
    assert [r["nccl_runs"] for r in found["rows"][:6]] == [None] * 4 + [True, False]
    assert [r["contender"] for r in found["rows"] if r["nccl_runs"]] == [
        "NCCL Ring LL", "NCCL Tree LL",
    ]  # fmt: skip
    assert found["nccl_inputs"] == "gpu=volta"
    assert found["nccl_switches"] == [{"size_bytes": 4096, "before": "Ring LL", "after": "Tree LL"}]
    assert [each["after"] for each in found["nccl_crossovers"]] == [HERE, "NCCL"]
    assert found["crossovers"] == [{"size_bytes": 12345, "before": "mine.xml", "after": "ring"}]
    assert found["absent"]["chain"] == "no links"
    assert found["out_of_race"] == {"NCCL": "not a replay"}


def test_csv_has_the_same_rows() -> None:
    rows = list(csv.DictReader(COMPARED["csv"](FOUND).splitlines()))
    wanted = json.loads(COMPARED["json"](FOUND))["rows"]
    assert [list(row) for row in rows] == [list(row) for row in wanted]
    assert [row["busbw_gbps"] for row in rows][6] == str(wanted[6]["busbw_gbps"]) == "15.0"


@pytest.fixture
def picture() -> Element:
    return fromstring(plot(FOUND))


def lines_of(picture: Element) -> dict[str, list[list[tuple[float, float]]]]:
    found: dict[str, list[list[tuple[float, float]]]] = {}
    for line in picture.iter("{http://www.w3.org/2000/svg}polyline"):
        pairs = [pair.split(",") for pair in line.get("points", "").split()]
        title = line.find("{http://www.w3.org/2000/svg}title")
        assert title is not None
        found.setdefault(title.text or "", []).append([(float(x), float(y)) for x, y in pairs])
    return found


def test_the_plot_has_time_and_algbw_of_everybody_and_of_the_bound(picture: Element) -> None:
    found = lines_of(picture)
    assert list(found) == [
        "ring", "mine.xml", "folder/odd.xml", "NCCL", "NCCL Ring LL", "NCCL Tree LL", "bound",
    ]  # fmt: skip
    assert [len(line) for line in found["ring"]] == [2, 2]
    # It has no time at the first size.
    assert [len(line) for line in found["folder/odd.xml"]] == [1, 1]


def test_the_legend_of_the_plot_names_everybody_in_a_style_of_their_own(picture: Element) -> None:
    names = [*(c.name for c in FOUND.everybody), "bound"]
    assert [text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")][-7:] == names
    lines = picture.iter("{http://www.w3.org/2000/svg}polyline")
    styles = {
        (line.get("stroke"), line.get("stroke-dasharray"), line.get("class")) for line in lines
    }
    assert len(styles) == len(names)


def test_lines_stay_apart_when_colours_come_again() -> None:
    rows = tuple(Row("allgather", "net", 4, size, US) for size in SIZES)
    many = tuple(Contender(f"c{number}", "algorithm", rows) for number in range(20))
    text = plot(replace(FOUND, contenders=many))
    styles = {line.partition(" points")[0] for line in text.splitlines() if "<polyline" in line}
    assert len(styles) == 20 + 2 + 1


def test_both_axes_of_the_plot_are_logarithmic(picture: Element) -> None:
    times, rates = lines_of(picture)["ring"]
    bound = lines_of(picture)["bound"][0]
    assert times[0][0] < times[1][0]
    assert times[0][1] > times[1][1]  # upwards is less
    # From 1 to 100 us are 300 pixels: 150 a decade; 4 to 50 us are log10(12.5) of one.
    assert times[0][1] - times[1][1] == pytest.approx(150 * 1.09691, abs=0.2)
    assert rates[0][1] > rates[1][1]
    assert bound[1][1] > times[1][1]


@pytest.mark.parametrize("write", [plot, *COMPARED.values()])
def test_nothing_to_compare_can_be_shown(write: Callable[[Comparison], str]) -> None:
    empty = Comparison("mine", "net", 4, "occupy", "executor", SIZES, (None, None), (), ())
    assert write(empty)


def test_hostile_names_are_text_in_the_plot() -> None:
    hostile = '<script>"&\x00\ud800'
    rows = tuple(Row("allgather", "net", 4, size, US) for size in SIZES)
    found = Comparison(
        "allgather", hostile, 4, "occupy", "executor", SIZES, (None, None),
        (Contender(hostile, "file", rows),), (),
    )  # fmt: skip
    text = plot(found)
    assert "<script" not in text
    assert '<script>"&' in "".join(fromstring(text).itertext())
    text.encode()


def test_the_plot_refers_to_nothing_outside() -> None:
    text = plot(FOUND)
    assert text.count("http") == 1  # the name of SVG
    assert "url(" not in text

"""``evaluate --scenario`` and ``calibrate`` from the command line."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.sweep import for_each

BUSY = "background: [{edge: 0->1, share: 0.5}]"
SHAKY = "jitter: {message: {distribution: exponential, mean: 1us}}\nruns: 5"


@pytest.fixture
def ring(run: Run, tmp_path: Path) -> Path:
    """Write a ring AllGather of four ranks."""
    made = tmp_path / "ring.xml"
    arguments = ("--engine", "ring", "--chunks", 1, "--size", "1MB", "--min-bytes", "1K")
    done = run("synthesize", "ring:4", "allgather", *arguments, "--quiet", "-o", made)
    assert done.status == 0, done.err
    return made


def write(folder: Path, text: str) -> Path:
    path = folder / "s.yaml"
    path.write_text(f"taccl: scenario/1\nname: test\n{text}\n")
    return path


def rows(run: Run, *arguments: object) -> list[dict[str, Any]]:
    done = run("evaluate", *arguments, "--json")
    assert done.status == 0, done.err
    found: list[dict[str, Any]] = json.loads(done.out)["rows"]
    return found


def test_rows_tell_the_scenario_beside_the_plain_time(run: Run, ring: Path, tmp_path: Path) -> None:
    on = (ring, "--topology", "ring:4", "-b", "64K", "-e", "1M", "-f", 4)
    plain = rows(run, *on)
    found = rows(run, *on, "--scenario", write(tmp_path, SHAKY))
    assert [row["plain_us"] for row in found] == [row["time_us"] for row in plain]
    for row in found:
        assert (row["scenario"], row["runs"], row["wrong"]) == ("test", 5, 0)
        assert row["plain_us"] < row["time_us"] <= row["p99_us"]
        assert row["p50_us"] <= row["p99_us"]
        assert row["other_us"] is None
    assert {row["scenario"] for row in plain} == {None}
    assert found == rows(run, *on, "--scenario", write(tmp_path, SHAKY))
    assert found != rows(run, *on, "--scenario", write(tmp_path, f"{SHAKY}\nseed: 1"))


def test_a_share_is_the_same_as_a_slower_edge(run: Run, ring: Path, tmp_path: Path) -> None:
    slow = tmp_path / "slow.yaml"
    text = run("topology", "expand", "ring:4").out.splitlines()
    halved = [
        line.replace("20us/MB", "40us/MB") if "from: 0, to: 1" in line else line for line in text
    ]
    slow.write_text("\n".join(halved))
    (expected,) = rows(run, ring, "--topology", slow)
    (found,) = rows(run, ring, "--topology", "ring:4", "--scenario", write(tmp_path, BUSY))
    (moving,) = rows(
        run, ring, "--topology", "ring:4", "--scenario",
        write(tmp_path, "changes: [{edge: 0->1, at: 0us, factor: 0.5}]"),
    )  # fmt: skip
    assert found["time_us"] == moving["time_us"] == expected["time_us"] > found["plain_us"]
    assert found["bottleneck"] == expected["bottleneck"] == "0->1"


def test_two_programs_at_once_are_both_told(run: Run, ring: Path, tmp_path: Path) -> None:
    both = write(tmp_path, "also: [{program: ring.xml, start: 10ms}]")
    (row,) = rows(run, ring, "--topology", "ring:4", "--scenario", both)
    assert row["time_us"] == row["other_us"] == row["plain_us"]
    both = write(tmp_path, "also: [{program: ring.xml}]")
    (row,) = rows(run, ring, "--topology", "ring:4", "--scenario", both)
    assert row["plain_us"] < row["time_us"] <= row["other_us"]


def test_programs_of_groups_run_on_the_ranks_that_are_named(
    run: Run, ring: Path, tmp_path: Path
) -> None:
    """On 0-1 and 2-3 at once; what is small on two links that the ring needs takes part of them."""
    two = ("synthesize", "hub:2", "allreduce", "--size", "4KB", "--engine", "ring")
    assert run(*two, "--runtime", "msccl", "-o", tmp_path / "two.xml", "--quiet").status == 0
    apart = "{program: two.xml, ranks: 0-1, size: 1MB}, {program: two.xml, ranks: 2-3, size: 1MB}"
    on = ("--topology", "ring:4", "--scenario", write(tmp_path, f"also: [{apart}]"))
    (row,) = rows(run, ring, *on)
    (alone,) = rows(run, tmp_path / "two.xml", "--topology", "ring:2", "--size", "1MB")
    assert row["plain_us"] < row["time_us"]
    assert alone["time_us"] <= row["other_us"]


def test_every_format_takes_a_scenario(run: Run, ring: Path, tmp_path: Path) -> None:
    on = (ring, "--topology", "ring:4", "--scenario", write(tmp_path, SHAKY))
    head, row = run("evaluate", *on).out.splitlines()
    assert {"scenario", "p50", "p99", "plain"} <= set(head.split())
    assert "test" in row.split()
    (record,) = csv.DictReader(io.StringIO(run("evaluate", *on, "--format", "csv").out))
    assert record["scenario"] == "test"
    assert run("evaluate", *on, "--format", "nccl-tests").status == 0


def test_a_static_scenario_is_explained_on_what_is_left(
    run: Run, ring: Path, tmp_path: Path
) -> None:
    on = (ring, "--topology", "ring:4", "--scenario")
    done = run("evaluate", *on, write(tmp_path, BUSY), "--explain", "--html", tmp_path / "p.html")
    assert done.status == 0, done.err
    assert (tmp_path / "p.html").exists()
    done = run("evaluate", *on, write(tmp_path, SHAKY), "--explain")
    assert done.status == 2
    assert "--scenario: test has more than shares and factors" in done.err


BAD = {
    "also: [{program: none.xml}]": "s.yaml:3: also[0].program: ",
    "also: [{program: s.yaml}]": "s.yaml:1",
    "also: [{program: two.xml}]": "also[0].program: is for 2 ranks, ",
    "also: [{program: ring.xml, ranks: 0-1}]": "also[0].program: is for 4 ranks, ranks names 2",
    "also: [{program: two.xml, ranks: [0, 9]}]": "also[0].ranks: ",
    "degraded: [{edge: 0->1, down: true}]": "degraded[0]: edge 0->1 is down, and ",
    "degraded: [{edge: 7->1, down: true}]": "degraded[0].edge: ",
    "colour: blue": "colour: unknown field",
    "stragglers: 3": "stragglers: should be a list",
    "a: [": "s.yaml:",
}


@for_each(("line", "problem"), BAD.items(), ids=BAD)
def test_a_wrong_scenario_is_one_error(
    line: str, problem: str, run: Run, ring: Path, tmp_path: Path
) -> None:
    if "two.xml" in line:
        run(
            "synthesize",
            "ring:2",
            "allgather",
            "--engine",
            "ring",
            "-q",
            "-o",
            tmp_path / "two.xml",
        )
    scenario = write(tmp_path, line)
    done = run("evaluate", ring, "--topology", "ring:4", "--scenario", scenario)
    assert done.status == 2
    assert problem in done.err
    assert "\n  fix: " in done.err
    assert done.out == ""


# --- calibrate ---------------------------------------------------------------------------------


@pytest.fixture
def measured(run: Run, ring: Path, tmp_path: Path) -> Path:
    """Write what a machine twice as slow as ring:4 would print."""
    on = (ring, "--topology", "ring:4@25GB/s,1.4us", "-b", "4K", "-e", "1M", "-f", 4)
    path = tmp_path / "run.txt"
    path.write_text(run("evaluate", *on, "--format", "nccl-tests").out)
    return path


def test_a_calibrated_topology_gives_the_measured_times(
    run: Run, ring: Path, measured: Path, tmp_path: Path
) -> None:
    made = tmp_path / "mine.yaml"
    asked = ("calibrate", "ring:4", "--measured", measured, "--collective", "all-gather")
    done = run(*asked, "--program", ring, "-o", made)
    assert done.status == 0, done.err
    assert done.out.endswith(f"wrote {made}\n")
    sizes = ("-b", "4K", "-e", "1M", "-f", 4)
    slow = rows(run, ring, "--topology", "ring:4@25GB/s,1.4us", *sizes)
    for row, expected in zip(rows(run, ring, "--topology", made, *sizes), slow, strict=True):
        assert abs(row["time_us"] / expected["time_us"] - 1) < 0.005
    report = json.loads(run(*asked, "--json").out)
    alpha, beta = report["parameters"][:2]
    assert (alpha["before"], beta["before"]) == (0.7, 50.0)
    assert abs(alpha["after"] - 1.4) < 0.01
    assert abs(beta["after"] - 25) < 0.1
    assert report["output"] is None
    assert report["error_after"] < 0.005 < report["error_before"]


def test_several_files_follow_measured_or_have_one_each(
    run: Run, measured: Path, tmp_path: Path
) -> None:
    lines = measured.read_text().splitlines(keepends=True)
    halves = [tmp_path / "a.txt", tmp_path / "b.txt"]
    halves[0].write_text("".join(lines[:6]))
    halves[1].write_text("".join(lines[:3] + lines[6:]))
    rest = ("--collective", "allgather", "--json")
    once = run("calibrate", "ring:4", "--measured", *halves, *rest)
    assert once.status == 0, once.err
    twice = run("calibrate", "ring:4", "--measured", halves[0], "--measured", halves[1], *rest)
    mixed = run("calibrate", "ring:4", *rest, "--measured", *halves)
    assert once.out == twice.out == mixed.out
    assert {row["file"] for row in json.loads(once.out)["rows"]} == set(map(str, halves))


def test_an_output_is_none_of_the_files_that_follow_measured(run: Run, measured: Path) -> None:
    other = measured.with_name("other.txt")
    other.write_text(before := measured.read_text())
    done = run("calibrate", "ring:4", "--measured", measured, other, "-o", other)
    assert done.status == 2
    assert "-o: is the same file as " in done.err
    assert other.read_text() == before


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "has no results of nccl-tests"),
        (b"\x7fELF\x02\x01\x01\x00\xff\xfe", "UTF-8"),
        (b"PK\x03\x04\x14\x00\x00\x00", "has no results of nccl-tests"),
        (b"{", "run.txt"),
        (b"<algo/>", "has no results of nccl-tests"),
        (b"-8 -2 float sum -1 1.0 1.0 1.0 0 1.0 1.0 1.0 0\n", "has no results of nccl-tests"),
    ],
)
def test_a_file_that_is_no_run_is_one_error(
    run: Run, content: bytes, problem: str, tmp_path: Path
) -> None:
    path, out = tmp_path / "run.txt", tmp_path / "mine.yaml"
    path.write_bytes(content)
    done = run("calibrate", "ring:4", "--measured", path, "-o", out)
    assert done.status == 2
    assert done.err.count("error: ") == 1
    assert problem in done.err
    assert "\n  fix: " in done.err
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--collective", "allreduce"), "redop is none, so it is no run of allreduce"),
        (("--collective", "allgather", "--algorithm", "quantum"), "--algorithm: unknown algorithm"),
        (("--collective", "allgather", "--fit", "alpha,gamma"), "--fit: should be one of alpha"),
        (("--collective", "allgather", "-o", "run.txt"), "-o: is the same file as "),
        ((), "--collective: does not say which collective it is of"),
    ],
)
def test_what_can_not_be_calibrated_is_one_error(
    arguments: tuple[str, ...], problem: str, run: Run, measured: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(measured.parent)
    done = run("calibrate", "ring:4", "--measured", measured, *arguments)
    assert done.status == 2
    assert problem in done.err
    assert "\n  fix: " in done.err

"""evaluate --trace, --html and --explain, and synthesize --report."""

import hashlib
import json
import re
from pathlib import Path

import pytest

from taccl.msccl.xml import write_xml
from tests.cli.conftest import Run
from tests.replay.program_builder import block, program, ring_allreduce

QUICK = ("--time-limit", "1", "--deterministic", "--workers", "1", "--quiet")
RING = ("--topology", "ring:4", "--size", "1600B")


@pytest.fixture
def ring_xml(tmp_path: Path) -> Path:
    path = tmp_path / "ring.xml"
    path.write_text(write_xml(ring_allreduce(4), "executor"))
    return path


@pytest.fixture
def stuck_xml(tmp_path: Path) -> Path:
    """Write a program whose rank 1 waits for ever."""
    path = tmp_path / "stuck.xml"
    idle = [[block(0, (r + 1) % 4, None, ["s"])] for r in (0, 2, 3)]
    gpus = [idle[0], [block(0, 2, 0, ["r", "r", "s"])], *idle[1:]]
    path.write_text(write_xml(program(*gpus, chunks=4), "executor"))
    return path


def test_trace_writes_chrome_json_of_the_last_size(run: Run, ring_xml: Path) -> None:
    out = ring_xml.with_name("trace.json")
    done = run("evaluate", ring_xml, "--topology", "ring:4", "-b", "1K", "-e", "4K", "--trace", out)
    assert done.status == 0, done.err
    found = json.loads(out.read_text())
    assert found["otherData"]["size_bytes"] == 4096
    assert sum(event["ph"] == "s" for event in found["traceEvents"]) == 4 * 6


def test_html_writes_a_page_with_a_row_for_every_size(run: Run, ring_xml: Path) -> None:
    out = ring_xml.with_name("page.html")
    done = run("evaluate", ring_xml, "--topology", "ring:4", "-b", "1K", "-e", "4K", "--html", out)
    assert done.status == 0, done.err
    text = out.read_text()
    assert all(size in text for size in ("1KiB", "2KiB", "4KiB"))
    assert "ring.xml at 4KiB" in text
    assert hashlib.sha256(ring_xml.read_bytes()).hexdigest() in text
    assert "modelled, not measured" in text


def test_html_of_several_programs_has_a_choice(run: Run, ring_xml: Path, stuck_xml: Path) -> None:
    out = ring_xml.with_name("page.html")
    done = run("evaluate", ring_xml, stuck_xml, *RING, "--html", out)
    assert done.status == 0, done.err
    text = out.read_text()
    assert 'id="choice"' in text
    assert "can&#x27;t run: deadlock" in text


def test_explain_follows_the_table(run: Run, ring_xml: Path) -> None:
    plain = run("evaluate", ring_xml, *RING)
    done = run("evaluate", ring_xml, *RING, "--explain")
    assert done.out.startswith(plain.out)
    # 6 hops of 0.7 us and 400 bytes at 50 GB/s
    assert "ring.xml at 1.6KB on ring-4: 4.248 us" in done.out
    assert "alpha                      4.2 us" in done.out


def test_explain_in_the_form_of_nccl_tests_is_a_comment(run: Run, ring_xml: Path) -> None:
    plain = run("evaluate", ring_xml, *RING, "--format", "nccl-tests").out
    done = run("evaluate", ring_xml, *RING, "--format", "nccl-tests", "--explain")
    added = done.out.removeprefix(plain).splitlines()
    assert any("critical path" in line for line in added)
    assert all(line.startswith("#") for line in added)


def test_explain_with_json_is_one_object_with_the_rows_unchanged(run: Run, ring_xml: Path) -> None:
    plain = json.loads(run("evaluate", ring_xml, *RING, "--json").out)
    found = json.loads(run("evaluate", ring_xml, *RING, "--json", "--explain").out)
    assert found["rows"] == plain["rows"]
    (explained,) = found["explanations"]
    assert sum(part["time_ps"] for part in explained["parts"]) == explained["time_ps"] == 4_248_000


def test_explain_with_csv_is_refused(run: Run, ring_xml: Path) -> None:
    done = run("evaluate", ring_xml, *RING, "--format", "csv", "--explain")
    assert (done.status, done.out) == (2, "")
    assert "--explain" in done.err
    assert "--json" in done.err


def test_json_is_the_same_with_and_without_files_written(run: Run, ring_xml: Path) -> None:
    plain = run("evaluate", ring_xml, *RING, "--json")
    out = ring_xml.with_name("o")
    done = run("evaluate", ring_xml, *RING, "--json", "--html", out, "--trace", f"{out}.json")
    assert done.out == plain.out


def test_a_program_that_can_not_run_gives_all_outputs(run: Run, stuck_xml: Path) -> None:
    html, trace = stuck_xml.with_name("p.html"), stuck_xml.with_name("t.json")
    done = run("evaluate", stuck_xml, *RING, "--html", html, "--trace", trace, "--explain")
    assert (done.status, done.err) == (0, "")
    assert "can't run: deadlock" in done.out
    assert "deadlock" in html.read_text()
    assert json.loads(trace.read_text())["otherData"]["time_us"] is None


def test_a_size_that_does_not_cut_is_told(run: Run, ring_xml: Path) -> None:
    done = run(
        "evaluate", ring_xml, "--topology", "ring:4", "-b", "1001", "-e", "1001", "--explain"
    )
    assert done.status == 0
    assert "can't run: 1001 bytes are not a multiple of 16" in done.out


@pytest.mark.filterwarnings("always::taccl.errors.TacclWarning")
def test_routed_pairs_are_warned_of_once(run: Run, ring_xml: Path) -> None:
    # A hypercube of 4 has no link between ranks 1 and 2.
    out = ring_xml.with_name("p.html")
    arguments = ("evaluate", ring_xml, "--topology", "hypercube:4", "--size", "1600B", "--route")
    plain = run(*arguments)
    done = run(*arguments, "--explain", "--html", out)
    assert plain.err.count("warning:") > 0
    assert done.err == plain.err


@pytest.mark.parametrize("option", ["--html", "--trace"])
def test_a_file_that_can_not_be_written_is_told_before_any_work(
    run: Run, ring_xml: Path, option: str
) -> None:
    done = run("evaluate", ring_xml, *RING, option, ring_xml.parent / "none" / "file")
    assert (done.status, done.out) == (2, "")
    assert option in done.err
    assert "create the directory first" in done.err


@pytest.mark.parametrize("option", ["--html", "--trace"])
def test_the_program_itself_is_not_overwritten(run: Run, ring_xml: Path, option: str) -> None:
    before = ring_xml.read_text()
    done = run("evaluate", ring_xml, *RING, option, ring_xml)
    assert done.status == 2
    assert "is the same file as" in done.err
    assert ring_xml.read_text() == before


def test_trace_and_page_in_one_file_are_refused(run: Run, ring_xml: Path) -> None:
    out = ring_xml.with_name("o")
    done = run("evaluate", ring_xml, *RING, "--html", out, "--trace", out)
    assert done.status == 2
    assert not out.exists()


def test_a_trace_of_two_programs_is_refused(run: Run, ring_xml: Path) -> None:
    done = run("evaluate", ring_xml, ring_xml, *RING, "--trace", ring_xml.with_name("t"))
    assert done.status == 2
    assert "one XML file" in done.err


def test_report_writes_a_page_and_names_it(run: Run, tmp_path: Path) -> None:
    xml, out = tmp_path / "f.xml", tmp_path / "page.html"
    done = run(
        "synthesize", "ring:4", "allgather", "-o", xml, "--report", out, "--json", *QUICK
    )  # fmt: skip
    assert done.status == 0, done.err
    assert json.loads(done.out)["output"] == [str(xml), str(out)]
    text = out.read_text()
    assert "allgather on ring-4" in text
    # From the smallest size served, 250000 bytes, rounded up to whole chunks.
    assert re.search(r">250(\.\d+)?KB<", text)
    assert all(f">{size}<" in text for size in ("500KB", "1MB", "2MB", "4MB"))
    assert "Where the time goes" in text


def test_report_without_a_program_shows_the_schedule(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    done = run(
        "synthesize", "hub:4", "allgather", "--report", out, "--runtime", "none", *QUICK
    )  # fmt: skip
    assert done.status == 0, done.err
    text = out.read_text()
    assert "makespan of the schedule" in text
    assert "<canvas" in text
    assert "0 of 8 edges carry nothing" in text


def test_report_is_equal_bytes_for_an_equal_search(run: Run, tmp_path: Path) -> None:
    pages = [tmp_path / name for name in ("a.html", "b.html")]
    for out in pages:
        run("synthesize", "ring:4", "allgather", "--engine", "ring", "--report", out, *QUICK)
    assert pages[0].read_text() == pages[1].read_text()


def test_report_that_can_not_be_written_is_told_before_the_search(run: Run, tmp_path: Path) -> None:
    done = run("synthesize", "ring:4", "allgather", "--report", tmp_path, *QUICK)
    assert done.status == 2
    assert "is a directory" in done.err


def test_report_and_xml_in_one_file_are_refused(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "o"
    done = run("synthesize", "ring:4", "allgather", "-o", out, "--report", out, *QUICK)
    assert done.status == 2
    assert not out.exists()

"""MSCCL++ plans on the command line: made, judged, replayed, and one clear error for the rest."""

import json
from pathlib import Path

import pytest

from taccl.msccl.xml import write_xml
from tests.cli.conftest import Run
from tests.msccl.builders import make, ring_schedule
from tests.sweep import for_each


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "ring.xml"
    path.write_text(write_xml(make(ring_schedule("allreduce", 4, 1)), "executor"))
    return path


@pytest.fixture
def plan(run: Run, program: Path, tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    done = run("convert", program, "--runtime", "mscclpp", "--topology", "ring:4", "--size", "64K",
               "-o", path)  # fmt: skip
    assert done.status == 0, done.err
    return path


def test_an_xml_file_becomes_a_plan_for_each_mode(run: Run, plan: Path) -> None:
    other = plan.with_name("plan-outofplace.json")
    assert [json.loads(path.read_text())["inplace"] for path in (plan, other)] == [True, False]
    done = run("verify", plan, other)
    assert done.status == 0
    assert done.out.count("verified for MSCCL++ 0.10") == 2
    done = run("evaluate", plan, other, "--topology", "ring:4", "--size", "64K", "--json")
    rows = json.loads(done.out)["rows"]
    assert [row["collective"] for row in rows] == ["allreduce"] * 2
    assert all(row["time_us"] > 0 for row in rows)


def test_a_schedule_becomes_a_plan_on_stdout(run: Run, tmp_path: Path) -> None:
    schedule = tmp_path / "schedule.json"
    done = run("synthesize", "ring:4", "allgather", "--engine", "ring", "--size", "64K", "--quiet",
               "--schedule", schedule)  # fmt: skip
    assert done.status == 0, done.err
    done = run("convert", schedule, "--runtime", "mscclpp", "--protocol", "LL", "--size", "64K")
    found = json.loads(done.out)
    assert (found["protocol"], found["use_double_scratch_buffer"]) == ("LL", True)


def test_synthesize_writes_plans_in_place_of_xml(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "sum.json"
    done = run("synthesize", "ring:4", "allreduce", "--engine", "ring", "--size", "64K", "--quiet",
               "--runtime", "mscclpp", "-o", path)  # fmt: skip
    assert done.status == 0, done.err
    assert "in place, " in done.out
    assert "out of place, " in done.out
    other = path.with_name("sum-outofplace.json")
    assert run("verify", path, other).status == 0
    done = run("synthesize", "ring:4", "allreduce", "--mscclpp-version", "0.9", "-o", path)
    assert "--mscclpp-version: is for --runtime mscclpp" in done.err


def test_a_broken_plan_is_told_with_its_place(run: Run, plan: Path) -> None:
    text = plan.read_text()
    broken = text.replace('{"name":"nop"},{"name":"signal"', '{"name":"signal"', 1)
    assert broken != text
    plan.write_text(broken)
    done = run("verify", plan)
    assert done.status == 1
    assert "accepted, but breaks on MSCCL++ 0.10" in done.out
    assert "race (breaks" in done.out
    record = json.loads(run("verify", plan, "--json").out)["files"][0]
    assert record["verified"] is False
    assert {finding["rule"] for finding in record["findings"]} >= {"race"}


@for_each(
    "text, message",
    [
        ("{", "is not JSON"),
        ('{"gpus": [{"inputChunks": 1}]}', "is a plan of generation 1"),
        ('{"name": "x"}', "gpus"),
        ('{"gpus": 3}', "gpus"),
    ],
)
def test_what_is_no_plan_is_rejected(run: Run, tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    done = run("verify", path)
    assert done.status == 1
    assert "rejected by MSCCL++" in done.out
    assert message in done.out
    done = run("evaluate", path, "--topology", "ring:4")
    assert done.status == 2
    assert message in done.err


@for_each(
    "arguments, message",
    [
        (("--runtime", "mscclpp"), "--topology: is needed with an XML file"),
        (("--runtime", "mscclpp", "--topology", "ring:5"), "is for 4 ranks, ring-5 has 5"),
        (
            ("--runtime", "mscclpp", "--topology", "ring:4", "--protocol", "LL128"),
            "--protocol: MSCCL++ has no LL128",
        ),
        (("--topology", "ring:4"), "--topology: is for --runtime mscclpp"),
        (("--mscclpp-version", "0.8"), "--mscclpp-version: is for --runtime mscclpp"),
        (("--runtime", "mscclpp", "--mscclpp-version", "0.7"), "should be one of 0.8, 0.9, 0.10"),
    ],
)
def test_what_cannot_be_converted_is_one_clear_error(
    run: Run, program: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    output = tmp_path / "out.json"
    done = run("convert", program, *arguments, "-o", output)
    assert done.status == 2
    assert message in done.err
    assert "fix:" in done.err
    assert not output.exists()


def test_a_plan_is_told_as_xml_is(run: Run, plan: Path, program: Path, tmp_path: Path) -> None:
    page, trace = tmp_path / "page.html", tmp_path / "trace.json"
    files = ("--html", page, "--trace", trace)
    done = run(
        "evaluate", plan, "--topology", "ring:4", "--size", "64K", "--explain", "--json", *files
    )
    assert done.status == 0, done.err
    found = json.loads(done.out)
    (told,) = found["explanations"]
    assert sum(part["time_ps"] for part in told["parts"]) == told["time_ps"]
    assert told["time_us"] == found["rows"][0]["time_us"]
    assert told["path"]["first"].startswith("rank ")
    events = json.loads(trace.read_text())["traceEvents"]
    sent = [event for event in events if event.get("cat") == "send"]
    assert {event["args"]["op"] for event in sent} == {"put"}
    last = max(event["args"].get("arrival_us", 0) for event in sent)
    work = max(event["ts"] + event["dur"] for event in events if event.get("cat") == "local")
    assert max(last, work) == pytest.approx(told["time_us"])
    assert "or a plan of MSCCL++" in page.read_text()
    done = run("evaluate", program, plan, "--topology", "ring:4", "--explain")
    assert done.status == 0, done.err
    assert done.out.count("spans, from rank ") == 2


def test_plans_are_compared_with_what_else_there_is(run: Run, plan: Path, program: Path) -> None:
    done = run("compare", "ring:4", "allreduce", plan, program, "-b", "16K", "-e", "1M", "-f", "8",
               "--json")  # fmt: skip
    assert done.status == 0, done.err
    found = json.loads(done.out)
    assert {str(plan), str(program)} <= {row["contender"] for row in found["rows"]}
    done = run("compare", "ring:4", "allgather", plan, "-b", "64K", "-e", "64K")
    assert done.status == 2
    assert "should be allgather as asked, got allreduce" in done.err
    text = plan.read_text()
    plan.write_text(text.replace('{"name":"nop"},{"name":"signal"', '{"name":"signal"', 1))
    done = run("compare", "ring:4", "allreduce", plan, "-b", "64K", "-e", "64K")
    assert done.status == 0
    assert "race" in done.out


def test_measured_costs_tell_packets_from_signals(run: Run, tmp_path: Path) -> None:
    schedule, times = tmp_path / "schedule.json", {}
    done = run("synthesize", "dgx-h100", "allgather", "--engine", "ring", "--size", "64K", "-q",
               "--schedule", schedule)  # fmt: skip
    assert done.status == 0, done.err
    for protocol in ("LL", "Simple"):
        path = tmp_path / f"{protocol}.json"
        done = run("convert", schedule, "--runtime", "mscclpp", "--protocol", protocol, "--inplace",
                   "--size", "64K", "-o", path)  # fmt: skip
        assert done.status == 0, done.err
        done = run("evaluate", path, "--topology", "dgx-h100", "--profile", "measured", "--size",
                   "64K", "--json")  # fmt: skip
        (row,) = json.loads(done.out)["rows"]
        assert (row["alpha_rule"], row["note"]) == ("measured", "")
        assert row["bound_us"] <= row["time_us"]
        times[protocol] = row["time_us"]
    # Seven steps: signals take 3.84 us each, packets 0.79, and the launch is 12.6 against 4.7.
    assert times["LL"] < times["Simple"] / 2


def test_what_is_not_known_of_plans_is_refused(run: Run, plan: Path) -> None:
    done = run("evaluate", plan, "--topology", "ring:4", "--route")
    assert done.status == 2
    assert "--route: is not known for MSCCL++ plans yet" in done.err
    done = run("evaluate", plan, "--topology", "ring:4", "--profile", "measured")
    assert done.status == 2
    assert "ring-4 has no measured costs" in done.err
    done = run("evaluate", plan, "--topology", "ring:5")
    assert done.status == 2
    assert "is for 4 ranks, ring-5 has 5" in done.err

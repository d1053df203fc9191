"""``taccl step``: what a training step takes, end to end, and one clear error for what can't be."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run

WORKLOAD = """taccl: workload/1
name: two-groups
ranks: 8
groups: {tp: {each: [0-3, 4-7]}}
layers:
- {name: a, bytes: 4MB, forward: 100us, backward: 200us}
- {name: b, bytes: 8MB, forward: 100us, backward: 200us, comm: [
    {when: forward, collective: allgather, group: tp, bytes: 1MB}]}
sync: [{group: all, bucket: 4MB}]
"""


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    path = tmp_path / "w.yaml"
    path.write_text(WORKLOAD)
    return path


def test_a_step_is_told_with_what_is_exposed_and_what_would_help(run: Run, workload: Path) -> None:
    done = run("step", workload, "torus2d:2x4", "--via", "ring", "--against", "bound", "--json")
    assert done.status == 0, done.err
    found = json.loads(done.out)
    assert found["compute_us"] == 600
    assert found["step_us"] >= found["bound_us"] >= 600
    assert found["bytes"] == {"all": 12_000_000, "tp": 1_000_000}
    assert set(found["exposed_us"]) <= {"all", "tp", "waiting"}
    assert found["step_us"] == pytest.approx(600 + sum(found["exposed_us"].values()))
    free, quick = found["if"].values()
    assert free == 600
    assert free <= quick <= found["step_us"]
    # No algorithm is below its bound.
    assert found["against"]["saved"] <= 0


def test_policies_are_tried_and_steps_are_drawn(run: Run, workload: Path, tmp_path: Path) -> None:
    trace, page = tmp_path / "step.json", tmp_path / "step.html"
    done = run("step", workload, "ring:8", "--via", "alpha=5us,busbw=20GB/s", "--sweep", "--trace",
               trace, "--html", page, "--json")  # fmt: skip
    assert done.status == 0, done.err
    found = json.loads(done.out)
    times = [row["step_us"] for row in found["policies"]]
    assert times == sorted(times)
    assert len(times) > 8
    events = json.loads(trace.read_text())["traceEvents"]
    names = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert names == {"compute", "tp layers", "all 0"}
    spans = [event for event in events if event["ph"] == "X"]
    assert {event["args"]["step"] for event in spans} == set(range(6))
    drawn = page.read_text()
    assert "<script" not in drawn
    assert drawn.count("<rect") == sum(s["args"]["step"] >= 3 and s["dur"] > 0 for s in spans)
    graph = tmp_path / "graph.yaml"
    graph.write_text(run("step", workload, "ring:8", "--expand").out)
    assert graph.read_text().count("- {id: ") == len(spans)
    again = run("step", graph, "ring:8", "--via", "alpha=5us,busbw=20GB/s", "--json")
    same = json.loads(again.out)
    assert {name: same[name] for name in ("step_us", "exposed_us", "bound_us", "if")} == {
        name: found[name] for name in ("step_us", "exposed_us", "bound_us", "if")
    }


def test_collectives_at_once_are_shared_or_replayed(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    path.write_text("""taccl: workload/1
name: both
ranks: 4
groups: {pairs: {each: [[0, 1], [2, 3]]}}
layers: [{name: a, bytes: 4MB, forward: 10us, backward: 10us}]
sync: [{group: all, bucket: all}, {group: pairs, bucket: all}]
""")
    found = {}
    for how in ("fluid", "exact"):
        done = run("step", path, "hub:4", "--via", "ring", "--together", how, "--json")
        assert done.status == 0, done.err
        found[how] = json.loads(done.out)
    fluid, exact = found["fluid"], found["exact"]
    assert fluid["step_us"] > fluid["compute_us"]
    assert fluid["step_us"] == pytest.approx(exact["step_us"], rel=0.1)
    assert {name: one for name, one in fluid.items() if name in ("compute_us", "bytes")} == {
        name: one for name, one in exact.items() if name in ("compute_us", "bytes")
    }


ADDER = """taccl: topology/1
name: adder
shape:
  kind: hub
  dims: [8]
  bandwidth: 1GB/s
  alpha: 10us
  switches: [{name: hub, multicast: true, reduce: {types: [int32]}}]
"""

SUM = """taccl: workload/1
name: sum
ranks: 8
layers: [{name: a, bytes: 8MB, forward: 1us, backward: 2us}]
sync: [{group: all, bucket: all, overlap: none}]
"""


def test_switches_that_add_carry_each_byte_once(run: Run, tmp_path: Path) -> None:
    machine, work = tmp_path / "adder.yaml", tmp_path / "sum.yaml"
    machine.write_text(ADDER)
    work.write_text(SUM)

    def step(*options: str) -> float:
        done = run("step", work, machine, "--json", *options)
        assert done.status == 0, done.err
        return float(json.loads(done.out)["step_us"])

    # One crossing of the tree, and every byte once over each port.
    assert step("--via", "sharp") == 3 + 10 + 8000
    # A ring: 14 rounds of an eighth of the bytes.
    assert step("--via", "ring") == 3 + 14 * (10 + 1000)
    assert step("--via", "ring") >= step("--via", "best") > 14 * 1000
    assert step("--via", "best", "--in-network", "on") == 3 + 10 + 8000
    for options, told in (
        (("--together", "exact"), "--together: allreduce of 8000000 bytes is copied and added by"),
        (("--profile", "measured"), "--in-network: is not known with measured costs"),
        (("--in-network", "off"), "sharp can't do allreduce on 8 ranks of adder: it does not"),
    ):
        on = "dgx-h100" if "measured" in options else machine
        done = run("step", work, on, "--via", "sharp", *options)
        assert done.status in (2, 3)
        assert told in done.err


def test_a_library_serves_by_size(run: Run, workload: Path, tmp_path: Path) -> None:
    library = tmp_path / "lib"
    made = run("tune", "full:8", "allreduce", "allgather", "-b", "1M", "-e", "16M", "-f", "16",
               "--candidates", "0", "-q", "-o", library)  # fmt: skip
    assert made.status == 0, made.err
    done = run("step", workload, "full:8", "--library", library, "--json")
    assert done.status == 2
    assert "is for 8 ranks, and group tp has 4" in done.err
    workload.write_text(WORKLOAD.replace("bytes: 1MB}", "bytes: 1MB, via: ring}"))
    done = run("step", workload, "full:8", "--library", library, "--json")
    assert done.status == 0, done.err
    assert json.loads(done.out)["via"] == "library"


def test_what_can_not_be_played_is_one_clear_error(
    run: Run, workload: Path, tmp_path: Path
) -> None:
    empty = tmp_path / "empty.csv"
    empty.write_text("")
    library = tmp_path / "lib"
    library.mkdir()
    kept = library / "index.json"
    kept.write_text("{}")
    garbled = tmp_path / "g.yaml"
    garbled.write_text(WORKLOAD.replace("bucket: 4MB", "via: rang"))
    rang = tmp_path / "rang.yaml"
    rang.write_text("taccl: workload/1\nname: r\nranks: 8\nops: [{id: a, collective: allreduce,"
                    " group: all, bytes: 8, via: rang}]")  # fmt: skip
    for arguments, told in (
        ((workload, "ring:4"), "ranks: is 8, and the topology has 4 ranks"),
        ((workload, "ring:8", "--via", "rang"), "--via: there is no 'rang'"),
        ((workload, "ring:8", "--via", "alpha=5us"), "--via: should be a latency and a bus"),
        ((workload, "ring:8", "--against", "rang"), "--against: there is no 'rang'"),
        ((garbled, "ring:8"), "g.yaml:9: sync[0].via: there is no 'rang'"),
        ((workload, "ring:8", "--library", tmp_path / "no"), "is no directory"),
        ((workload, "ring:8", "--profile", "measured"), "has no measured costs"),
        ((workload, "ring:8", "--together", "exact", "--via", "nccl"), "--together: is for what"),
        ((workload, "ring:8", "--together", "exact", "--against", "bound"), "--together: is for"),
        ((workload, "ring:8", "--together", "exact", "--profile", "measured"), "--together: is n"),
        ((workload, "ring:8", "--together", "gas"), "--together: "),
        ((tmp_path / "none.yaml", "ring:8"), "none.yaml: "),
        ((empty, "ring:8"), "empty.csv"),
        ((workload, "ring:8", "w2.yaml"), "w2.yaml: is one of 2 files"),
        ((workload, "ring:8", "--trace", workload), "--trace"),
        ((workload, "ring:8", "--library", library, "--trace", kept), "--trace"),
        ((rang, "ring:8"), "rang.yaml:4: ops: there is no 'rang'"),
        ((workload, "ring:8", "--expand", "--json"), "--expand: prints text and nothing else"),
    ):  # fmt: skip
        done = run("step", *arguments)
        assert done.status == 2, arguments
        assert told in done.err, done.err
        assert "fix: " in done.err
        assert "Traceback" not in done.err
    assert workload.read_text() == WORKLOAD
    assert kept.read_text() == "{}"


def test_a_few_bytes_and_no_time_at_all_are_steps_too(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    head = "taccl: workload/1\nname: small\nranks: 8\nlayers: [{name: a, "
    for fields, policy in (
        ("bytes: 1, forward: 1us, backward: 1us}]", "sync: [{group: all}]"),
        ("bytes: 4, forward: 0us, backward: 0us}]", "sync: [{group: all}]"),
        ("forward: 0us, backward: 0us}]", ""),
        ("forward: 1us, backward: 1us, comm: [{when: forward, at: start, collective: allreduce,"
         " group: all, bytes: 3, split: 8}]}]", ""),
    ):  # fmt: skip
        path.write_text(f"{head}{fields}\n{policy}\n")
        done = run("step", path, "ring:8", "--against", "ring", "--json")
        assert done.status == 0, done.err
        found = json.loads(done.out)
        assert found["step_us"] >= found["bound_us"]

"""``--in-network``: where switches may copy and add, and that XML never depends on it."""

import json
from pathlib import Path
from typing import Any

import pytest

from taccl.topology.file import document_text, load_topology, shipped_topologies, topology_document
from taccl.topology.graph import Topology
from tests.cli.conftest import Run
from tests.in_network import nvls


def written(topology: Topology, path: Path) -> str:
    path.write_text(document_text(topology_document(topology)))
    return str(path)


def test_commands_let_switches_add_only_where_the_runtime_can(run: Run, tmp_path: Path) -> None:
    file = written(nvls(), tmp_path / "nvls.yaml")
    plain = written(load_topology("hub:4@1GB/s,1us"), tmp_path / "plain.yaml")
    common = ["--size", "4KB", "--chunks", "1", "--time-limit", "60", "--quiet", "--json"]

    def asked(*words: str) -> dict[str, Any]:
        done = run(*words)
        assert done.status == 0, done.err
        answer: dict[str, Any] = json.loads(done.out)
        return answer

    auto = asked("synthesize", file, "allreduce", *common, "--runtime", "none", "--engine", "nvls")
    assert (auto["engine"], auto["makespan_us"]) == ("nvls", 7)
    off = ["synthesize", file, "allreduce", *common, "--runtime", "none", "--in-network", "off"]
    assert asked(*off, "--engine", "ring")["makespan_us"] == 2 * 3 * 2
    bounds = [asked("bound", file, "allreduce", "--size", "64KB", "--json", "--in-network", mode)
              for mode in ("off", "on")]  # fmt: skip
    assert bounds[0]["bound_us"] == asked("bound", plain, "allreduce", "--size", "64KB", "--json")[
        "bound_us"]  # fmt: skip
    assert bounds[1]["bound_us"] <= 82 < bounds[0]["bound_us"]
    done = run("synthesize", file, "allreduce", "--in-network", "maybe")
    assert (done.status, "--in-network" in done.err) == (2, True)


def test_a_schedule_file_is_drawn_at_other_sizes(run: Run, tmp_path: Path) -> None:
    file = written(nvls(), tmp_path / "nvls.yaml")
    made, trace, page = (tmp_path / name for name in ("made.json", "trace.json", "page.html"))
    done = run("synthesize", file, "allreduce", "--size", "4KB", "--chunks", "1", "--engine",
               "nvls", "--runtime", "none", "--quiet", "--schedule", made)  # fmt: skip
    assert done.status == 0, done.err
    evaluate = ("evaluate", made, "--topology", file)
    done = run(*evaluate, "-b", "4KB", "-e", "8KB", "--trace", trace, "--html", page, "--json")
    assert done.status == 0, done.err
    times = [row["time_us"] for row in json.loads(done.out)["rows"]]
    # 2 alpha, and 5/4 of the bytes.
    assert times == [7, 12]
    drawn = json.loads(trace.read_text())
    assert drawn["otherData"]["time_us"] == times[-1]
    spans = [event for event in drawn["traceEvents"] if event["ph"] == "X"]
    assert max(span["ts"] + span["dur"] for span in spans) == times[-1]
    # A fan for each chunk adds and copies it, and no message goes from rank to rank.
    assert len(spans) == 4
    assert {event["args"]["name"] for event in drawn["traceEvents"]
            if event["name"] == "process_name"} == {"switches"}  # fmt: skip
    assert "12" in page.read_text()
    program = tmp_path / "program.xml"
    assert run("synthesize", file, "allreduce", "--size", "4KB", "--engine", "ring", "--quiet",
               "-o", program).status == 0  # fmt: skip
    done = run(*evaluate, program, "--html", page)
    assert (done.status, "--html: is not known for schedules beside programs" in done.err) == (2, 1)


FLAGGED = [("dgx-h100", 1), ("dgx-h100", 2), ("dgx-b200", 1), ("h100-sharp", 2),
           ("adding-leaves", None), ("gb200-nvl72", 1)]  # fmt: skip
MADE = [("allreduce", "ring"), ("reducescatter", "ring"), ("allgather", "guided")]  # fmt: skip
FIRST = [("dgx-h100", 1, "allreduce", "ring"), ("dgx-b200", 1, "reducescatter", "ring"),
         ("dgx-h100", 1, "allgather", "guided")]  # fmt: skip


def test_every_shipped_machine_whose_switches_copy_or_add_is_in_the_list() -> None:
    found = {name for name in shipped_topologies() if load_topology(name).copies_or_adds}
    assert found == {name for name, _ in FLAGGED}


@pytest.mark.parametrize("cases", [
    FIRST,
    pytest.param(
        [(*machine, *made) for machine in FLAGGED for made in MADE[: 1 if machine[1] == 1 else 3]],
        marks=pytest.mark.slow
    ),
], ids=["some", "all"])  # fmt: skip
def test_xml_is_the_same_byte_for_byte_whatever_switches_can_do(
    run: Run, tmp_path: Path, cases: list[tuple[str, int | None, str, str]]
) -> None:
    for name, nodes, collective, engine in cases:
        machine = load_topology(name, nodes=nodes)
        made = []
        for topology in (machine, machine.point_to_point()):
            assert topology.copies_or_adds == (topology is machine)
            file, xml = written(topology, tmp_path / "machine.yaml"), tmp_path / "made.xml"
            xml.unlink(missing_ok=True)
            done = run("synthesize", file, collective, "--size", "1MB", "--chunks", "1",
                       "--engine", engine, "--time-limit", "2", "--deterministic", "--quiet",
                       "-o", xml)  # fmt: skip
            assert done.status == 0, (name, done.err)
            made.append(xml.read_bytes())
        assert made[0] == made[1], (name, collective, engine)

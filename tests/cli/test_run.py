"""``taccl run``: a table, JSON, a trace, and one clear error for what can't be."""

import json
import os
import re
import shutil
import subprocess
import sys
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


SMALL = ("-n", "2", "--repeats", "2")


def test_a_run_is_measured_beside_predicted(run: Run, program: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    done = run("run", program, "-b", "1K", "-e", "4K", "-f", "4", "--topology", "ring:4",
               "--trace", trace, "--json", *SMALL)  # fmt: skip
    assert done.status == 0, done.err
    rows = json.loads(done.out)["rows"]
    assert {row["size_bytes"] for row in rows} == {1024, 4096}
    for row in rows:
        assert row["wrong"] == 0
        assert row["over"] == "shared memory"
        assert len(row["times_us"]) == 2
        assert row["busbw_gbps"] == pytest.approx(1.5 * row["algbw_gbps"])
        assert row["off"] == pytest.approx(row["predicted_us"] / row["time_us"] - 1)
    events = json.loads(trace.read_text())["traceEvents"]
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert {"rank 0", "rank 0 measured", "edges"} <= names
    steps = [e for e in events if e.get("cat") == "measured"]
    program_ = make(ring_schedule("allreduce", 4, 1))
    assert len(steps) == sum(len(block.steps) for _, block in program_.blocks())
    assert min(e["ts"] for e in steps) == 0


def test_a_table_has_what_nccl_tests_prints(run: Run, program: Path) -> None:
    done = run("run", program, "--size", "4096", "--tcp", "--dtype", "int32", *SMALL)
    assert done.status == 0, done.err
    for word in ("4KiB", "int32", "busbw GB/s", "#wrong"):
        assert word in done.out


def test_a_schedule_runs_as_the_program_that_it_becomes(run: Run, tmp_path: Path) -> None:
    schedule = tmp_path / "schedule.json"
    made = run("synthesize", "ring:4", "allgather", "--engine", "ring", "--runtime", "none",
               "--schedule", schedule, "--quiet")  # fmt: skip
    assert made.status == 0, made.err
    done = run("run", schedule, "--size", "64K", "--json", *SMALL)
    assert [row["wrong"] for row in json.loads(done.out)["rows"]] == [0, 0]


def test_wrong_data_ends_with_status_1(run: Run, program: Path) -> None:
    text = program.read_text()
    # The ring's offsets are turned by one: every sum is of the wrong chunk.
    program.write_text(re.sub(r'dstoff="(\d)"', lambda m: f'dstoff="{(int(m[1]) + 1) % 4}"', text))
    done = run("run", program, "--size", "4096", "--json", *SMALL)
    assert done.status == 1
    assert all(row["wrong"] for row in json.loads(done.out)["rows"])


@for_each(
    "arguments, message",
    [
        (("--tcp", "--mpi"), "--mpi: excludes --tcp"),
        (("--scale", "2"), "--scale: is for --emulate"),
        (
            ("--emulate", "ring:4", "--topology", "ring:4"),
            "--topology: is predicted on the machine",
        ),
        (("--topology", "ring:5"), "is for 4 ranks, ring-5 has 5"),
        (("--dtype", "int8"), "--dtype: should be one of int32"),
        (("--hosts", "localhost:3"), "--hosts: the program is for 4 ranks, and hosts are given"),
        (("--launched",), "--launched: no variable says the rank"),
        (("--profile", "measured", "--topology", "ring:4"), "ring-4 has no measured costs"),
    ],
)
def test_what_cannot_be_is_one_clear_error(
    run: Run, program: Path, monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...], message: str,
) -> None:  # fmt: skip
    for name in ("RANK", "WORLD_SIZE", "PMI_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.delenv(name, raising=False)
    done = run("run", program, *SMALL, *arguments)
    assert done.status == 2
    assert message in done.err
    assert "fix:" in done.err


def test_a_trace_is_of_one_program(run: Run, program: Path, tmp_path: Path) -> None:
    done = run("run", program, program, "--trace", tmp_path / "t.json")
    assert done.status == 2
    assert "--trace: is for one program, got 2 files" in done.err


def test_hosts_that_are_this_machine_need_no_ssh(run: Run, program: Path) -> None:
    done = run("run", program, "--size", "4096", "--hosts", "localhost:4", "--json", *SMALL)
    assert done.status == 0, done.err
    assert [row["wrong"] for row in json.loads(done.out)["rows"]] == [0, 0]


def _mpi() -> str:
    """Return the path of MPI's launcher, where mpi4py finds its library; else nothing."""
    launcher = shutil.which("mpirun", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    tried = subprocess.run(
        [sys.executable, "-c", "from mpi4py import MPI"], capture_output=True, check=False
    )
    return launcher or "" if tried.returncode == 0 else ""


@pytest.mark.skipif(not _mpi(), reason="no MPI (pip install mpi4py mpich)")
def test_ranks_of_mpi_run_a_program(program: Path) -> None:
    done = subprocess.run(
        [_mpi(), "-n", "4", sys.executable, "-m", "taccl", "run", str(program), "--mpi", "--size",
         "4096", "--json", *SMALL],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [row["wrong"] for row in json.loads(done.stdout)["rows"]] == [0, 0]


@pytest.mark.skipif(not _mpi(), reason="no MPI (pip install mpi4py mpich)")
def test_under_mpi_who_waits_for_whom_is_told_once(program: Path, tmp_path: Path) -> None:
    hanging = tmp_path / "hanging.xml"
    text = program.read_text()
    step = text[text.index("<step") : text.index("/>") + 2]
    waiting = re.sub('depid="-1" deps="-1"', 'depid="0" deps="1"', step)
    assert waiting != step
    hanging.write_text(text.replace(step, waiting, 1))
    done = subprocess.run(
        [_mpi(), "-n", "4", sys.executable, "-m", "taccl", "run", str(hanging), "--mpi", "--size",
         "4096", "--patience", "1", *SMALL],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode != 0
    told = "nothing has happened for 1 s: deadlock: rank 0 threadblock 0 step 0 waits for"
    assert done.stderr.count(told) == 1


@pytest.mark.skipif(not _mpi(), reason="no MPI (pip install mpi4py mpich)")
def test_another_number_of_ranks_of_mpi_is_told(program: Path) -> None:
    done = subprocess.run(
        [_mpi(), "-n", "2", sys.executable, "-m", "taccl", "run", str(program), "--mpi"],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode != 0
    assert "the program is for 4 ranks, and MPI has started 2" in done.stderr

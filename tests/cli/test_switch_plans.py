"""Plans of what switches copy and add, from the topology file to the replay, and what has none."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run

SERVER = """
taccl: topology/1
name: four
node:
  gpus: 4
  switches:
    - {name: nvswitch, members: 0-3, bandwidth: 1GB/s, alpha: 1us, FLAGS}
"""
NVLS = "multicast: {own: through}, reduce: {turn: rank, own: through}"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    path = tmp_path / "four.yaml"
    path.write_text(SERVER.replace("FLAGS", NVLS))
    return path


def test_what_switches_add_becomes_plans_that_are_verified_and_replayed(
    run: Run, machine: Path, tmp_path: Path
) -> None:
    file, schedule = tmp_path / "sum.json", tmp_path / "schedule.json"
    done = run("synthesize", machine, "allreduce", "--size", "4096", "--engine", "nvls",
               "--runtime", "mscclpp", "--quiet", "-o", file, "--schedule", schedule)  # fmt: skip
    assert done.status == 0, done.err
    # 2 alpha + (1 + 1/4) of 4.096 us, and 1 us until all have begun.
    assert "in place, 8.12 us by replay, with signals on switch channels" in done.out
    assert done.out.count("needs       ") == 2
    assert "sums only" in done.out
    other = tmp_path / "sum-outofplace.json"
    assert run("verify", file, other).out.count("verified for MSCCL++ 0.10") == 2
    done = run("evaluate", file, other, schedule, "--topology", machine, "--size", "4096", "--json")
    rows = json.loads(done.out)["rows"]
    assert [row["time_us"] for row in rows] == [8.12, 8.12, 7.12]
    # All three are beside what nothing beats that switches can do.
    assert len({row["bound_us"] for row in rows}) == 1
    again = tmp_path / "again.json"
    done = run("convert", schedule, "--runtime", "mscclpp", "--size", "4096", "-o", again)
    assert done.status == 0, done.err
    assert "needs       switch channels need NVLS" in done.out
    # But for its name.
    assert json.loads(again.read_text())["gpus"] == json.loads(file.read_text())["gpus"]


def test_what_has_no_operation_is_one_error_that_names_the_row(
    run: Run, machine: Path, tmp_path: Path
) -> None:
    file = tmp_path / "plan.json"
    plain = ("--quiet", "-o", file)
    for collective, options, told in (
        ("reducescatter", ("--runtime", "mscclpp"), "row 0: chunk 0 is added for rank 0 alone"),
        ("allreduce", ("--runtime", "mscclpp", "--protocol", "LL"), "row 0: chunk 0 is added by a"),
        ("allgather", ("--runtime", "mscclpp", "--mscclpp-version", "0.9", "--protocol", "Simple"),
         "gstore is read by MSCCL++ 0.10 and newer"),
        ("allreduce", ("--in-network", "on"), "no XML can hold what switches add or copy"),
    ):  # fmt: skip
        done = run("synthesize", machine, collective, "--engine", "nvls", *options, *plain)
        assert done.status != 0
        assert told in done.err
        assert not file.exists()


def test_nccls_own_ways_become_a_row_for_its_tuner(run: Run, machine: Path) -> None:
    sizes = ("-b", "1G", "-e", "1G", "--quiet", "--nccl")
    inputs = "gpu=hopper,wire=nvlink,intra=20GB/s"
    rows = run("compare", machine, "allreduce", *sizes, inputs, "--format", "nccl-tuner").out
    head, row = rows.splitlines()
    assert head.startswith("# collective_type,min_bytes")
    assert row == f"allreduce,{1 << 30},{(1 << 64) - 1},nvls,simple,-1,1,4,-1,-1"

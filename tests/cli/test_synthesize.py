"""``taccl synthesize`` and ``taccl convert`` from end to end."""

import json
from pathlib import Path

import pytest

from taccl.collectives import COLLECTIVES
from taccl.msccl.interpret import judge
from taccl.msccl.xml import read_xml
from tests.cli.conftest import Run

QUICK = ("--time-limit", "1", "--deterministic", "--workers", "1", "--quiet")

FIELDS = {
    "collective", "topology", "ranks", "size_bytes", "chunk_bytes", "chunks_per_rank", "engine",
    "status", "makespan_us", "replay_us", "bound_us", "bound_kind", "bound_fixed_us",
    "bound_sketch_us", "gap", "gap_fixed", "algbw_gbps", "busbw_gbps", "seconds", "seed",
    "alpha_rule", "sends", "threadblocks", "channels", "steps", "verified", "candidates", "output",
}  # fmt: skip


@pytest.mark.parametrize(
    "collective", [name for name, kind in COLLECTIVES.items() if kind.xml_name]
)
def test_a_written_program_is_judged_clean(run: Run, tmp_path: Path, collective: str) -> None:
    output = tmp_path / "f.xml"
    done = run("synthesize", "hub:4", collective, "-o", output, *QUICK)
    assert done.status == 0, done.err
    program = read_xml(output.read_text())
    assert judge(program, "portable") == []
    assert program.min_bytes <= 250_000
    assert program.max_bytes >= 1_000_000
    assert "verified" not in done.err


def test_portable_reducescatter_is_written_in_both_spellings(run: Run, tmp_path: Path) -> None:
    output = tmp_path / "rs.xml"
    done = run("synthesize", "ring:4", "reduce-scatter", "-o", output, *QUICK)
    assert done.status == 0
    assert 'coll="reducescatter"' in output.read_text()
    assert 'coll="reduce_scatter"' in (tmp_path / "rs.msccl.xml").read_text()


def test_json_has_every_field_and_nothing_else_is_printed(run: Run) -> None:
    done = run("synthesize", "ring:4", "allreduce", "--json", *QUICK)
    found = json.loads(done.out)
    assert set(found) >= FIELDS
    assert found["status"] in {"optimal", "feasible", "time_limit", "interrupted"}
    assert found["bound_us"] <= found["replay_us"]
    assert found["gap"] == pytest.approx(found["replay_us"] / found["bound_us"] - 1)
    assert {row["engine"] for row in found["candidates"]} >= {"ring", "taccl"}


def test_without_batches_the_fixed_bound_is_given(run: Run) -> None:
    done = run("synthesize", "ring:4", "allgather", "--batch", "none", "--json", *QUICK)
    found = json.loads(done.out)
    assert found["bound_fixed_us"] <= found["makespan_us"]
    assert found["gap_fixed"] == pytest.approx(found["makespan_us"] / found["bound_fixed_us"] - 1)


def test_runtime_none_stops_at_the_schedule(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    done = run(
        "synthesize", "ring:4", "allgather", "--runtime", "none", "--schedule", path, "--json",
        *QUICK,
    )  # fmt: skip
    found = json.loads(done.out)
    assert found["replay_us"] is None
    assert path.exists()


def test_runtime_none_has_no_xml_to_write_and_says_so_before_the_search(
    run: Run, tmp_path: Path
) -> None:
    done = run("synthesize", "ring:4", "allgather", "--runtime", "none", "-o", tmp_path / "f.xml")
    assert done.status == 2
    assert "--runtime none stops at the schedule" in done.err
    assert "chunks a rank" not in done.err


def test_the_same_seed_writes_the_same_bytes(run: Run, tmp_path: Path) -> None:
    for name in ("a.xml", "b.xml"):
        run("synthesize", "ndv2", "allgather", "-o", tmp_path / name, *QUICK)
    assert (tmp_path / "a.xml").read_bytes() == (tmp_path / "b.xml").read_bytes()


def test_a_schedule_converts_to_a_program(run: Run, tmp_path: Path) -> None:
    path, output = tmp_path / "s.json", tmp_path / "f.xml"
    run("synthesize", "hub:4", "alltoall", "--schedule", path, "--size", "4MB", *QUICK)
    done = run("convert", path, "-o", output, "--size", "4MB", "--runtime", "msccl")
    assert done.status == 0, done.err
    assert run("verify", output, "--runtime", "msccl").status == 0


def test_convert_without_output_prints_the_xml(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    run("synthesize", "ring:4", "allgather", "--schedule", path, *QUICK)
    assert run("convert", path).out.startswith("<algo ")


def test_a_wrong_schedule_is_not_converted(run: Run, tmp_path: Path) -> None:
    path, output = tmp_path / "s.json", tmp_path / "f.xml"
    run("synthesize", "ring:4", "allgather", "--schedule", path, *QUICK)
    document = json.loads(path.read_text())
    columns = document.get("sends", document)
    columns["chunk"] = columns["chunk"][:1] * len(columns["chunk"])
    path.write_text(json.dumps(document))
    done = run("convert", path, "-o", output)
    assert done.status == 1
    assert "is wrong" in done.err
    assert not output.exists()


@pytest.mark.parametrize("mode", ["--inplace", "--outofplace", "--both"])
def test_the_mode_asked_for_is_served(run: Run, tmp_path: Path, mode: str) -> None:
    output = tmp_path / "f.xml"
    runtime = "executor" if mode == "--inplace" else "portable"
    done = run("synthesize", "hub:4", "alltoall", mode, "--runtime", runtime, "-o", output, *QUICK)
    assert done.status == 0, done.err
    program = read_xml(output.read_text())
    assert program.in_place == (mode != "--outofplace")
    assert program.out_of_place == (mode != "--inplace")


@pytest.mark.parametrize("runtime", ["msccl", "portable"])
def test_no_file_of_msccl_serves_an_alltoall_in_place_only(
    run: Run, tmp_path: Path, runtime: str
) -> None:
    words = ("hub:4", "alltoall", "--inplace", "--runtime", runtime)
    done = run("synthesize", *words, "-o", tmp_path / "f.xml")
    assert done.status == 2
    assert done.err == (
        "error: --inplace: msccl runs alltoall out of place, whatever the file says\n"
        "  fix: use --both, or --runtime executor or rccl\n"
    )


def test_modes_exclude_each_other(run: Run) -> None:
    done = run("synthesize", "hub:4", "alltoall", "--inplace", "--both", *QUICK)
    assert done.status == 2
    assert "--inplace and --both exclude each other" in done.err


def test_instances_cut_every_chunk(run: Run, tmp_path: Path) -> None:
    output = tmp_path / "f.xml"
    run(
        "synthesize",
        "ring:4",
        "allgather",
        "--instances",
        "2",
        "--chunks",
        "1",
        "-o",
        output,
        *QUICK,
    )
    program = read_xml(output.read_text())
    assert program.chunks_per_loop == 8
    assert program.channels >= 2


@pytest.mark.parametrize("runtime", ["msccl", "executor", "rccl", "portable"])
def test_every_runtime_is_served(run: Run, tmp_path: Path, runtime: str) -> None:
    output = tmp_path / "f.xml"
    run("synthesize", "ring:4", "reducescatter", "--runtime", runtime, "-o", output, *QUICK)
    assert run("verify", output, "--runtime", runtime).status == 0


@pytest.mark.parametrize("rule", ["occupy", "delay"])
def test_the_alpha_rule_is_stated(run: Run, rule: str) -> None:
    done = run("synthesize", "ring:4", "allgather", "--alpha-rule", rule, "--json", *QUICK)
    assert json.loads(done.out)["alpha_rule"] == rule


def test_progress_goes_to_stderr(run: Run) -> None:
    done = run("synthesize", "hub:4", "alltoall", "--time-limit", "3", "--deterministic")
    assert "chunks a rank" in done.err
    assert "chunks a rank" not in done.out


def test_a_large_gap_comes_with_what_ended_the_search_and_what_to_do(run: Run) -> None:
    ring = ("synthesize", "ring:4", "allgather", "--engine", "ring", "--chunks", "1", "-q")
    assert (
        "  note        nothing was left to try, and the gap is large: try --engine auto"
        in run(*ring).out
    )
    assert json.loads(run(*ring, "--json").out)["ended_by"] == "search"
    small = run(*ring[:4], "double-ring", "-q").out
    assert "any algorithm), gap 7.9%" in small
    assert "the gap is large" not in small


def test_a_schedule_that_is_optimal_is_told_apart_from_a_program_that_is_not(run: Run) -> None:
    ring = ("synthesize", "ring:2", "allgather", "--engine", "ring", "-q")
    both, one = run(*ring, "--size", "1MB").out, run(*ring, "--size", "64MB").out
    assert "ring (optimal, " in both
    assert "any algorithm), gap 0.0%" in both
    # Messages of at most 512 KiB: the program's bound is above what the schedule takes.
    assert "ring (schedule optimal, program 0.1% above the bound, " in one
    assert "any program), gap 0.1%" in one


def test_a_bound_for_programs_proves_no_schedule_optimal(run: Run) -> None:
    words = ("hub:4", "allreduce", "--engine", "ring", "--size", "64MB", "-q", "--json")
    found = json.loads(run("synthesize", *words).out)
    assert found["makespan_us"] < found["bound_us"] < found["replay_us"]
    assert (found["bound_kind"], found["status"]) == ("message", "feasible")

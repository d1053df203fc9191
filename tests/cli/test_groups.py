"""``--ranks`` and groups files: from the command line to files that are replayed side by side."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run


def test_an_allreduce_of_a_server_has_a_program_of_eight_ranks(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "server.xml"
    group = ("--nodes", 2, "--ranks", "8-15", "--size", "64MB")
    done = run(
        "synthesize", "dgx-h100", "allreduce", *group, "--chunks", 1, "--engine", "all-pairs",
        "--json", "-o", file, "--profile", "alpha-beta",
    )  # fmt: skip
    found = json.loads(done.out)
    assert (found["ranks"], found["bound_kind"]) == (8, "message")
    assert 'ngpus="8"' in file.read_text()
    assert run("verify", file).status == 0
    on_machine = ("--topology", "dgx-h100", "--profile", "alpha-beta")
    shown = run("evaluate", file, *on_machine, *group, "--json")
    (row,) = json.loads(shown.out)["rows"]
    assert row["time_us"] == found["replay_us"]
    asked = ("bound", "dgx-h100", "allreduce", *group, "--in-network", "off", "--json")
    bounded = json.loads(run(*asked).out)
    assert bounded["bound_us"] == pytest.approx(252.3, abs=0.05)
    refused = run("verify", file, "--ranks", "0-7")
    assert (refused.status, "give --topology" in refused.err) == (2, True)


def test_members_of_a_ring_that_are_no_neighbours_need_relays(run: Run, tmp_path: Path) -> None:
    group = ("--ranks", "0,2,4,6", "--size", "4MB", "--quiet")
    done = run("synthesize", "ring:8", "allreduce", *group)
    assert done.status == 3
    assert "rank 2 can't be reached from rank 0" in done.err
    assert "--relays all" in done.err
    file = tmp_path / "even.xml"
    found = run(
        "synthesize", "ring:8", "allreduce", *group, "--relays", "all", "--chunks", 1,
        "--engine", "guided", "--time-limit", 3, "--deterministic", "--runtime", "msccl", "--json",
        "-o", file,
    )  # fmt: skip
    answer = json.loads(found.out)
    assert answer["makespan_us"] == pytest.approx(165.6)
    assert answer["busbw_gbps"] == pytest.approx(1.5 * answer["algbw_gbps"])
    assert 'coll="custom"' in file.read_text()
    again = run("evaluate", file, "--topology", "ring:8", *group[:4], "--relays", "all", "--json")
    assert json.loads(again.out)["rows"][0]["time_us"] == pytest.approx(165.6)
    lonely = run("synthesize", "ring:8", "allreduce", "--relays", "all")
    assert (lonely.status, "name its members with --ranks" in lonely.err) == (2, True)


EVEN_ODD = """taccl: groups/1
name: even-odd
ranks: 8
groups:
  - {name: sum, collective: allreduce, size: 4MB, chunks: 1, each: {stride: 2, count: 4}}
relays: all
"""


def test_groups_become_a_directory_that_is_judged_and_replayed(run: Run, tmp_path: Path) -> None:
    groups, place = tmp_path / "g.yaml", tmp_path / "out"
    groups.write_text(EVEN_ODD)
    fast = ("--engine", "guided", "--time-limit", 6, "--deterministic", "--quiet")
    done = run("synthesize", "ring:8", groups, *fast, "--runtime", "msccl", "--json", "-o", place)
    found = json.loads(done.out)
    assert found["cost_us"] == found["makespan_us"] <= 172
    assert found["shared"] == [[0, 1]]
    assert found["bound_us"] <= found["joint_schedule_us"] <= 172
    assert (found["by"], found["objective"]) == ("replay", "makespan")
    index = json.loads((place / "groups.json").read_text())
    assert index["groups"][0]["each"] == ["0,2,4,6", "1,3,5,7"]
    written = {str(path.relative_to(place)) for path in place.rglob("*.xml")}
    assert written == set(index["groups"][0]["files"])
    assert sorted(found["output"]) == sorted(
        map(str, [place / "groups.json", *place.rglob("*.xml")])
    )
    replayed = json.loads(run("evaluate", place, "--topology", "ring:8", "--runtime", "msccl",
                              "--json").out)  # fmt: skip
    for before, after in zip(found["instances"], replayed["instances"], strict=True):
        assert before["together_us"] == after["together_us"]
        assert before["ranks"] == after["ranks"]
    shown = run("evaluate", place, "--topology", "ring:8").out
    assert (
        shown.splitlines()[0] == "even-odd on ring-8, 8 ranks: 2 collectives at once (others relay)"
    )
    assert run("verify", place, "--runtime", "msccl").status == 0
    # What a custom collective should do is known from the index, and so is what is wrong with it.
    broken = next(place.rglob("*.xml"))
    right = broken.read_text()
    broken.write_text(right.replace('srcoff="1"', 'srcoff="0"'))
    judged = run("verify", place, "--runtime", "msccl")
    assert (judged.status, "output" in judged.out) == (1, True)
    broken.write_text(right)
    bounded = json.loads(run("bound", "ring:8", groups, "--json").out)
    assert bounded["bound_us"] <= found["makespan_us"]
    assert [row["bound_kind"] for row in bounded["instances"]] == ["reduce"] * 2
    # What is there is replaced, and what is not a program of groups stays where it is.
    again = run("synthesize", "ring:8", groups, *fast, "--runtime", "none", "-o", place)
    assert again.status == 0
    assert {path.suffix for path in (place / "programs").iterdir()} == {".json"}
    refused = run("evaluate", place, "--topology", "ring:8")
    assert (refused.status, "is a schedule" in refused.err) == (2, True)
    (place / "notes.txt").write_text("mine")
    refused = run("synthesize", "ring:8", groups, *fast, "-o", place)
    assert (refused.status, "holds other files" in refused.err) == (2, True)


def test_what_does_not_go_with_groups_is_refused(run: Run, tmp_path: Path) -> None:
    groups = tmp_path / "g.yaml"
    groups.write_text(EVEN_ODD)
    for arguments, message in (
        (("synthesize", "ring:8", groups, "--size", "1MB"), "--size: is not for a file of groups"),
        (("synthesize", "ring:8", groups, "--ranks", "0-3"), "--ranks: is not for a file of"),
        (("synthesize", "ring:4", groups), "ranks: even-odd is for 8 ranks, and ring-4 has 4"),
        (("synthesize", "ring:8", groups, "-o", "-"), "-o: several files can't go there"),
        (("synthesize", "ring:8", groups, "-o", groups), "-o: is a file"),
        (("synthesize", "ring:8", groups, "-o", tmp_path / "a" / "b"), "no such directory"),
        (("synthesize", "ring:8", groups, "--runtime", "mscclpp"), "has no plans of groups"),
        (("bound", "ring:8", groups, "--root", 0), "--root: is not for a file of groups"),
        (("evaluate", tmp_path, "--topology", "ring:8"), "groups.json: there is no such file"),
        (("evaluate", tmp_path, "--topology", "ring:8", "-b", "1K"), "-b: is not for a directory"),
        (("verify", tmp_path), "groups.json: there is no such file"),
    ):  # fmt: skip
        done = run(*arguments)
        assert (done.status, message in done.err) == (2, True), (arguments, done.err)
        assert "fix:" in done.err
    (tmp_path / "groups.json").write_text(EVEN_ODD)
    done = run("evaluate", tmp_path, "--topology", "ring:8")
    assert (done.status, "group sum names no files" in done.err) == (2, True)
    (tmp_path / "groups.json").write_text(
        EVEN_ODD.replace("chunks: 1", "chunks: 1, files: [a.xml, a.xml]")
    )
    run(
        "synthesize", "ring:4", "allgather", "--engine", "ring", "--quiet", "-o", tmp_path / "a.xml"
    )
    done = run("evaluate", tmp_path, "--topology", "ring:8")
    assert done.status in (1, 2)
    assert "error:" in done.err

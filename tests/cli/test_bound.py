"""``taccl bound``: every kind by world, at one size or size by size, with and without a sketch."""

import json
from pathlib import Path

import pytest

from taccl.bounds import ASSUMED, ASSUMED_OF_SWITCHES, KINDS, WORLDS
from tests.cli.conftest import Run
from tests.synth.test_butterflies import nodes_document


def test_the_text_says_what_each_bound_is_and_what_it_holds_for(run: Run) -> None:
    shown = run("bound", "dgx-a100", "allgather", "--nodes", "8", "--size", "64MB").out
    lines = shown.splitlines()
    assert lines[0] == "allgather on dgx-a100, 64 ranks, 64MB (occupy), 1 chunk for each rank"
    assert f"any: {WORLDS['any']}" in lines
    assert f"fixed: {WORLDS['fixed']}" in lines
    assert not any(line.startswith("sketch:") for line in lines)
    assert lines[-1] == f"assumed: {ASSUMED}"
    # 7 chunks by each NIC in whole slots, and what came last 7 times over NVLink.
    (drain,) = [line for line in lines if line.startswith("  drain")]
    assert drain.split()[1:5] == ["320.133", "us", "<-", "binding"]
    assert drain.endswith(KINDS["drain"])
    assert sum("<- binding" in line for line in lines) == 2
    assert "bytes through the busiest rank, server or ranks that share a NIC" in shown
    # 64 MB in 283.75 us.
    assert "  so algbw is at most 225.6 GB/s" in lines


def test_json_has_the_bounds_of_all_worlds(run: Run) -> None:
    sketched = ("--nodes", "2", "--sketch", "ndv2-relay", "--json")
    found = json.loads(run("bound", "ndv2", "allgather", *sketched).out)
    for suffix in ("", "_fixed", "_sketch"):
        assert found[f"bound{suffix}_us"] == max(found[f"all{suffix}"].values())
        assert found[f"all{suffix}"][found[f"bound{suffix}_kind"]] == found[f"bound{suffix}_us"]
    assert found["bound_us"] <= found["bound_sketch_us"]
    assert found["all"]["latency"] < found["all_sketch"]["latency"]
    assert list(found["worlds"]) == ["any", "fixed", "sketch"]
    kinds = {*found["all"], *found["all_fixed"], *found["all_sketch"]}
    assert found["kinds"] == {kind: KINDS[kind] for kind in sorted(kinds)}


def test_without_a_sketch_its_fields_are_empty(run: Run) -> None:
    found = json.loads(run("bound", "ring:4", "allgather", "--json").out)
    assert found["bound_sketch_us"] is None
    assert found["bound_sketch_kind"] is None
    assert found["all_sketch"] == {}


def test_a_range_of_sizes_is_a_table(run: Run) -> None:
    lines = run("bound", "ring:4", "allgather", "-b", "1K", "-e", "4M", "-f", "64").out.splitlines()
    assert lines[0] == "allgather on ring-4, 4 ranks (occupy), 1 chunk for each rank"
    assert lines[1].split() == ["size", "any", "us", "by", "fixed", "us", "by", "algbw", "GB/s"]
    assert [line.split()[0] for line in lines[2:5]] == ["1KiB", "64KiB", "4MiB"]
    # Two rounds of messages by two ports, by which three quarters of the buffer come.
    assert [line.split()[1:3] for line in (lines[2], lines[4])] == [
        ["1.40768", "rounds"],
        ["32.8573", "rounds"],
    ]
    assert lines[-1] == f"assumed: {ASSUMED}"


def test_a_range_of_sizes_is_rows_in_json(run: Run) -> None:
    sizes = ("-b", "1K", "-e", "4M", "-f", "64")
    rows = json.loads(run("bound", "ring:4", "allgather", *sizes, "--json").out)["rows"]
    assert [row["size_bytes"] for row in rows] == [1024, 65536, 4194304]
    one = json.loads(run("bound", "ring:4", "allgather", "--size", "64KiB", "--json").out)
    assert rows[1] == one


def test_what_needs_no_time_has_no_bandwidth(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "here.json"
    chunk = {"id": 0, "input": {"1": 0}, "output": {"1": 1}}
    file.write_text(json.dumps({"taccl": "collective/1", "name": "here", "ranks": 4,
                                "chunks": [chunk]}))  # fmt: skip
    done = run("bound", "ring:4", str(file))
    assert done.status == 0
    assert "algbw" not in done.out
    table = run("bound", "ring:4", str(file), "-b", "1K", "-e", "1K").out
    assert table.splitlines()[2].split()[-1] == "-"


@pytest.mark.parametrize("option", [("--size", "1MB"), ()])
def test_a_size_beside_a_range_is_refused(run: Run, option: tuple[str, ...]) -> None:
    done = run("bound", "ring:4", "allgather", "-b", "1K", "-e", "2K", *option)
    assert done.status == (2 if option else 0)
    assert ("--size: can't be given beside -b and -e" in done.err) == bool(option)


def test_growth_is_looked_for_on_request(run: Run, tmp_path: Path) -> None:
    machine = tmp_path / "nodes.yaml"
    machine.write_text(json.dumps(nodes_document(2, 2, 2)))
    words = ("bound", machine, "allgather", "--size", "200B", "--json")
    plain, grown = (json.loads(run(*words, *more).out) for more in ((), ("--growth",)))
    assert grown["bound_kind"] == "growth"
    assert grown["kinds"]["growth"] == KINDS["growth"]
    assert grown["bound_us"] > plain["bound_us"]
    assert {kind: time for kind, time in grown["all"].items() if kind != "growth"} == plain["all"]


@pytest.mark.slow
def test_growth_comes_near_the_best_that_is_known(run: Run) -> None:
    words = ("bound", "dgx2", "allgather", "--nodes", "2", "--size", "1MB", "--json")
    plain, grown = (json.loads(run(*words, *more).out) for more in ((), ("--growth",)))
    # The best schedule known takes 15.9 us.
    assert plain["bound_us"] < 11.1 < 13 < grown["bound_us"] < 15.9
    assert grown["bound_kind"] == "growth"


def test_growth_where_there_is_nothing_to_grow_changes_nothing(run: Run) -> None:
    plain, grown = (run("bound", "ring:4", "alltoall", *more).out for more in ((), ("--growth",)))
    assert plain == grown


def test_where_switches_add_both_worlds_are_told(run: Run, tmp_path: Path) -> None:
    edges = [
        f"  - {{from: {r}, to: sw, bandwidth: 1GB/s, alpha: 0.5us, both: true}}" for r in range(4)
    ]
    star = tmp_path / "star.yaml"
    star.write_text("\n".join([
        "taccl: topology/1", "name: star", "ranks: 4",
        "switches: [{name: sw, multicast: true, reduce: true}]", "edges:", *edges,
    ]))  # fmt: skip
    asked = ("bound", str(star), "allreduce", "--size", "4000")
    shown = run(*asked).out.splitlines()
    assert f"any: {WORLDS['any']}" in shown
    assert f"point-to-point: {WORLDS['point-to-point']}" in shown
    assert shown[-1] == f"assumed: {ASSUMED_OF_SWITCHES}"
    found = json.loads(run(*asked, "--json").out)
    # One crossing and 4 us of each port; with messages from rank to rank 6 us of each port, and
    # what they wait for one another. Three rounds (halving, an exchange, doubling) take 9 us.
    assert found["bound_us"] == 5
    assert 8.9 < found["bound_point_to_point_us"] <= 9
    assert "reach" not in found["all"]
    assert list(found["worlds"]) == ["any", "point-to-point", "fixed"]


def test_a_search_is_measured_by_the_bound_of_its_size(run: Run) -> None:
    ring = ("ring:8", "allreduce", "--size", "256KB", "--json")
    bound = json.loads(run("bound", *ring).out)
    assert bound["bound_kind"] == "time-expanded"
    assert bound["bound_us"] > 1.2 * bound["all"]["rounds"]
    made = json.loads(run("synthesize", *ring, "--time-limit", "3").out)
    assert made["bound_kind"] == "time-expanded"
    assert bound["all"]["rounds"] < made["bound_us"] <= made["replay_us"]
    # A single engine may be over at once, and is not made to wait.
    alone = json.loads(run("synthesize", *ring, "--engine", "ring").out)
    assert alone["bound_kind"] == "rounds"

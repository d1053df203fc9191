"""Collectives with a root and collectives from files, on the command line."""

import json
from pathlib import Path

import pytest

from taccl.collectives import COLLECTIVES
from taccl.model.schedule_file import read_schedule
from taccl.msccl.interpret import find_root, judge
from taccl.msccl.xml import read_xml
from taccl.verify import verify
from tests.cli.conftest import Run
from tests.sweep import for_each

QUICK = ("--time-limit", "1", "--deterministic", "--workers", "1", "--quiet")
WITH_ROOT = [name for name, kind in COLLECTIVES.items() if kind.has_root]
HALO = """\
taccl: collective/1
name: halo
ranks: 4
chunks:
  - {id: 0, input: {0: 0}, output: {1: 0}}
  - {id: 1, input: {1: 0}, output: {2: 0}}
  - {id: 2, input: {2: 0}, output: {3: 0}}
  - {id: 3, input: {3: 1}, output: {0: 0}}
"""


@pytest.fixture
def halo(tmp_path: Path) -> Path:
    path = tmp_path / "halo.yaml"
    path.write_text(HALO)
    return path


def refused(run: Run, output: Path, *words: object) -> str:
    """Return why no XML is written."""
    done = run("synthesize", *words, "-o", output)
    assert done.status == 2
    assert not output.exists()
    return done.err


@pytest.mark.parametrize("root", [0, 2])
@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
def test_a_program_is_written_for_its_root_and_says_so(
    run: Run, tmp_path: Path, collective: str, root: int
) -> None:
    output = tmp_path / "f.xml"
    done = run("synthesize", "hub:4", collective, "--root", root, "-o", output, *QUICK)
    assert done.status == 0, done.err
    assert f"no runtime checks the root: this file is for root {root}" in done.err
    program = read_xml(output.read_text())
    assert judge(program, "portable") == []
    assert find_root(program) == root
    shown = json.loads(run("evaluate", output, "--topology", "hub:4", "--json").out)["rows"][0]
    assert 0 < shown["bound_us"] <= shown["time_us"]
    assert shown["busbw_gbps"] == shown["algbw_gbps"]


@pytest.mark.parametrize("collective", WITH_ROOT)
def test_the_schedule_of_a_root_is_read_back(run: Run, tmp_path: Path, collective: str) -> None:
    path = tmp_path / "s.json"
    done = run(
        "synthesize", "ring:4", collective, "--root", "3", "--schedule", path, "--json", *QUICK
    )
    assert done.status == 0, done.err
    found = json.loads(done.out)
    assert (found["collective"], found["output"]) == (collective, [str(path)])
    schedule = read_schedule(str(path))
    assert schedule.collective.root == 3
    assert verify(schedule) == []


@pytest.mark.parametrize("collective", ["gather", "scatter"])
def test_what_no_runtime_holds_stops_at_the_schedule(run: Run, collective: str) -> None:
    done = run("synthesize", "hub:4", collective, "--json", *QUICK)
    found = json.loads(done.out)
    assert (found["replay_us"], found["threadblocks"]) == (None, None)
    assert found["busbw_gbps"] == pytest.approx(found["algbw_gbps"] * 3 / 4)


@for_each("runtime", ["portable", "msccl", "executor", "rccl"])
@for_each("collective", ["gather", "scatter"])
def test_an_xml_that_no_runtime_holds_is_refused_before_the_search(
    run: Run, tmp_path: Path, collective: str, runtime: str
) -> None:
    assert refused(run, tmp_path / "f.xml", "hub:4", collective, "--runtime", runtime) == (
        f"error: -o: there is no XML of {collective} that a runtime could rely on\n"
        "  fix: use --schedule OUT.json\n"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("broadcast", "--root", "4"), "--root: should be a rank from 0 to 3, got 4"),
        (("reduce", "--root", "-1"), "--root: should be a rank from 0 to 3, got -1"),
        (("allgather", "--root", "0"), "--root: allgather has no root, got 0"),
    ],
)
@pytest.mark.parametrize("command", ["synthesize", "bound"])
def test_a_root_that_can_not_be_is_an_error(
    run: Run, command: str, words: tuple[str, ...], said: str
) -> None:
    done = run(command, "ring:4", *words)
    assert done.status == 2
    assert done.err.startswith(f"error: {said}\n  fix: ")


def test_a_bound_depends_on_the_root(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "chain.yaml"
    path.write_text(
        "taccl: topology/1\nname: chain\nranks: 3\nedges:\n"
        "  - {from: 0, to: 1, bandwidth: 10GB/s, alpha: 1us}\n"
        "  - {from: 1, to: 2, bandwidth: 10GB/s, alpha: 1us}\n"
    )
    times = [
        json.loads(run("bound", path, "broadcast", "--root", root, "--json").out)["bound_us"]
        for root in (0, 1)
    ]
    # More than two alphas and 1 MB at 10 GB/s from the end, where ten pieces take 11 (1 + 10) us;
    # one alpha from the middle.
    assert 102 < times[0] < 121
    assert times[1] == 101


def test_a_sketch_that_demands_a_symmetry_of_the_root_is_an_error(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "turned.yaml"
    path.write_text("taccl: sketch/1\nname: turned\nsymmetry: [[1, 4]]\n")
    done = run("synthesize", "ring:4", "broadcast", "--sketch", path)
    assert done.status == 2
    assert "symmetry: broadcast does not map onto itself: chunk 0 has no image" in done.err


def test_symmetries_that_the_root_breaks_are_dropped(run: Run) -> None:
    done = run("synthesize", "torus2d:2x2", "scatter", "--root", "1", "--engine", "taccl", *QUICK)
    assert done.status == 0, done.err


def test_a_collective_file_is_solved_and_written_for_msccl(
    run: Run, tmp_path: Path, halo: Path
) -> None:
    output, schedule = tmp_path / "f.xml", tmp_path / "s.json"
    done = run(
        "synthesize", "ring:4", halo, "--runtime", "msccl", "-o", output, "--schedule", schedule,
        "--chunks", "2", "--json", *QUICK,
    )  # fmt: skip
    assert done.status == 0, done.err
    found = json.loads(done.out)
    assert (found["collective"], found["verified"]) == ("halo", True)
    # The largest buffer has two chunks, each cut in two: 250 kB, once over a wire.
    assert found["chunk_bytes"] == 250_000
    assert found["busbw_gbps"] == found["algbw_gbps"]
    program = read_xml(output.read_text(), runtime="msccl")
    assert (program.collective, program.in_place, program.out_of_place) == ("custom", False, True)
    made = read_schedule(str(schedule)).collective
    assert judge(program, "msccl", made) == []
    again = tmp_path / "g.xml"
    assert run("convert", schedule, "--runtime", "msccl", "-o", again).status == 0
    assert judge(read_xml(again.read_text(), runtime="msccl"), "msccl", made) == []


def test_a_collective_file_has_bounds(run: Run, halo: Path) -> None:
    done = run("bound", "ring:4", halo, "--json")
    found = json.loads(done.out)
    assert found["collective"] == "halo"
    # Four times 500 kB, a quarter the long way round: 375 kB over every wire of 50 GB/s.
    assert found["bound_us"] == pytest.approx(0.7 + 7.5)


@pytest.mark.parametrize("runtime", ["portable", "executor", "rccl"])
def test_other_runtimes_have_no_custom_collectives(
    run: Run, tmp_path: Path, halo: Path, runtime: str
) -> None:
    assert refused(run, tmp_path / "f.xml", "ring:4", halo, "--runtime", runtime) == (
        f"error: -o: there is no XML of halo for {runtime}\n"
        "  fix: use --schedule OUT.json, or --runtime msccl\n"
    )
    assert run("synthesize", "ring:4", halo, "--runtime", runtime, *QUICK).status == 0


def test_other_runtimes_get_no_custom_schedule_either(run: Run, tmp_path: Path, halo: Path) -> None:
    path = tmp_path / "s.json"
    run("synthesize", "ring:4", halo, "--schedule", path, *QUICK)
    done = run("convert", path, "-o", tmp_path / "f.xml")
    assert done.status == 2
    assert "there is no XML of halo for portable" in done.err


@pytest.mark.parametrize("mode", ["--inplace", "--both"])
def test_a_collective_file_is_not_served_in_place(run: Run, halo: Path, mode: str) -> None:
    done = run("synthesize", "ring:4", halo, "--runtime", "msccl", mode)
    assert done.status == 2
    assert done.err.startswith(f"error: {mode}: halo in place would overwrite")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("ring:5",), "ranks: halo is for 4 ranks, and ring-5 has 5"),
        (("ring:4", "--root", "0"), "--root: halo has no root, got 0"),
    ],
)
def test_a_file_that_does_not_fit_is_an_error(
    run: Run, halo: Path, words: tuple[str, ...], said: str
) -> None:
    done = run("synthesize", words[0], halo, *words[1:])
    assert done.status == 2
    assert done.err.startswith(f"error: {said}")


@pytest.mark.parametrize("name", ["no/such/file", "nosuch.yaml"])
def test_a_collective_file_that_is_not_there_is_named(run: Run, name: str) -> None:
    done = run("synthesize", "ring:4", name)
    assert (done.status, done.err) == (
        2, f"error: {name}: there is no such file\n  fix: check the path\n"
    )  # fmt: skip


def test_a_name_that_is_neither_is_an_error_that_lists_the_names(run: Run) -> None:
    done = run("synthesize", "ring:4", "allsome")
    assert done.status == 2
    assert "unknown collective 'allsome'" in done.err
    assert "or the path of a collective file" in done.err


def test_between_servers_the_protocol_and_its_reason_are_told(run: Run, tmp_path: Path) -> None:
    output, schedule = tmp_path / "f.xml", tmp_path / "f.json"
    words = (
        "ndv2", "reduce", "--nodes", 2, "--engine", "binomial", "--chunks", 1,
        "--profile", "alpha-beta", *QUICK,
    )  # fmt: skip
    told = "LL128: a reduce between servers hangs with Simple; of LL128 and LL the faster by replay"
    done = run("synthesize", *words, "--schedule", schedule, "-o", output)
    assert f"  protocol    {told}\n" in done.out
    assert read_xml(output.read_text()).protocol == "LL128"
    assert f"warning: protocol {told}\n" in run("convert", schedule, "-o", output).err
    for again in (("synthesize", *words), ("convert", schedule)):
        output.unlink()
        assert "hangs with Simple" in refused_simple(run, *again, "-o", output)
        assert not output.exists()
        output.touch()


def refused_simple(run: Run, *words: object) -> str:
    """Return why Simple is refused."""
    done = run(*words, "--protocol", "Simple")
    assert done.status == 2
    return done.err

"""Every bad input gets one clear error, its exit status, and leaves what exists untouched."""

import os
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.cli.runner import Done
from tests.sweep import for_each

GRAPH = """taccl: topology/1
name: two
ranks: 2
edges:
  - {from: 0, to: 1, bandwidth: 25GB/s, alpha: 0.7us}
"""


def one_error(done: Done, *parts: str, status: int = 2) -> None:
    """Assert that a command ended with one error that holds all parts, and nothing else."""
    assert done.status == status, done.err
    assert done.err.count("error:") == 1, done.err
    assert "Traceback" not in done.err
    for part in parts:
        assert part in done.err, done.err


def synthesize(run: Run, topology: Path, *options: object) -> Done:
    return run("synthesize", topology, "allgather", "--time-limit", "2", "--quiet", *options)


@pytest.fixture
def topology(tmp_path: Path) -> Path:
    path = tmp_path / "two.yaml"
    path.write_text(GRAPH)
    return path


@for_each(
    ("old", "new", "parts"),
    [
        ("alpha: 0.7us", "alfa: 0.7us", ("alfa", "two.yaml:5")),
        ("25GB/s", "0GB/s", ("edges[0].bandwidth", "greater than 0")),
        ("25GB/s", "-25GB/s", ("edges[0].bandwidth", "greater than 0", "-25GB/s")),
        ("25GB/s", "25GBps", ("edges[0].bandwidth", "25GBps", "fix:")),
        ("0.7us", "0.7 parsecs", ("edges[0].alpha", "parsecs")),
        ("ranks: 2", "ranks: 3", ("rank 2", "can't be reached")),
        ("ranks: 2", "ranks: 1e99", ("ranks",)),
        ("name: two", "name: two\nname: three", ("name", "two.yaml")),
        ("topology/1", "topology/9", ("taccl", "topology/9")),
    ],
)  # fmt: skip
def test_a_wrong_topology_names_file_field_and_fix(
    run: Run, topology: Path, old: str, new: str, parts: tuple[str, ...]
) -> None:
    topology.write_text(GRAPH.replace(old, new, 1))
    one_error(synthesize(run, topology), str(topology), "fix:", *parts)


def test_a_missing_file_is_named(run: Run, tmp_path: Path) -> None:
    one_error(synthesize(run, tmp_path / "none.yaml"), "none.yaml")


@pytest.mark.parametrize("command", ["evaluate", "verify", "inspect"])
def test_a_name_of_nothing_is_no_file(run: Run, command: str) -> None:
    topology = ("--topology", "ring:4") if command == "evaluate" else ()
    one_error(run(command, "", *topology), "'': is no file name")


def test_an_empty_scenario_says_what_to_begin_with(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "p.xml"
    run("synthesize", "ring:4", "allgather", "--engine", "ring", "--quiet", "-o", path)
    empty = tmp_path / "empty.yaml"
    empty.write_text("")
    done = run("evaluate", path, "--topology", "ring:4", "--scenario", empty)
    one_error(done, "empty.yaml: is empty", "scenario/1")


def test_an_unknown_machine_lists_the_shipped_ones(run: Run) -> None:
    done = run("synthesize", "dgx7", "allgather")
    one_error(done, "dgx7", "ndv2", "dgx2")


def test_a_directory_as_topology(run: Run, tmp_path: Path) -> None:
    one_error(synthesize(run, tmp_path), "directory")


def test_a_file_of_100_mb(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    with path.open("wb") as stream:
        stream.truncate(100 * 10**6)
    one_error(synthesize(run, path), "large.yaml", "64 MiB")
    one_error(run("verify", path), "large.yaml", "64 MiB")


def test_anchors_that_expand_to_gigabytes(run: Run, topology: Path) -> None:
    lines = [
        "taccl: topology/1",
        "name: bomb",
        "ranks: 2",
        "a0: &a0 [x, x, x, x, x, x, x, x, x, x]",
    ]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    topology.write_text("\n".join(lines))
    one_error(synthesize(run, topology), "two.yaml")


def test_an_xml_with_a_doctype(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "evil.xml"
    path.write_text('<!DOCTYPE x [<!ENTITY a "aaaa">]><algo name="&a;"/>')
    one_error(run("verify", path), "evil.xml")
    one_error(run("evaluate", path, "--topology", "ring:4"), "evil.xml")


def test_a_directory_as_output_fails_before_the_search(
    run: Run, topology: Path, tmp_path: Path
) -> None:
    one_error(synthesize(run, topology, "-o", tmp_path), "directory")


def test_a_missing_directory_for_the_output(run: Run, topology: Path, tmp_path: Path) -> None:
    one_error(synthesize(run, topology, "-o", tmp_path / "no" / "f.xml"), "create the directory")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk(run: Run, topology: Path) -> None:
    one_error(synthesize(run, topology, "-o", "/dev/full"), "/dev/full", "no space left")
    assert Path("/dev/full").is_char_device()


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_an_output_that_may_not_be_written(run: Run, topology: Path, tmp_path: Path) -> None:
    output = tmp_path / "f.xml"
    output.write_text("kept")
    output.chmod(0o400)
    one_error(synthesize(run, topology, "-o", output), "f.xml")


@pytest.mark.parametrize(
    "options",
    [
        ("--sketch", "none.yaml"),
        ("--engine", "gurobi"),
        ("--size", "1"),
        ("--runtime", "nccl"),
        ("--chunks", "0"),
        ("--protocol", "LL64"),
        ("--min-bytes", "4M", "--max-bytes", "1M"),
    ],
    ids=" ".join,
)
def test_existing_output_is_untouched_by_a_failure(
    run: Run, topology: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    output = tmp_path / "f.xml"
    output.write_text("kept")
    one_error(synthesize(run, topology, "-o", output, *options), "fix:")
    assert output.read_text() == "kept"
    assert sorted(tmp_path.iterdir()) == [output, topology]


def test_a_sketch_that_closes_a_needed_link_is_infeasible(
    run: Run, topology: Path, tmp_path: Path
) -> None:
    sketch = tmp_path / "closed.yaml"
    sketch.write_text("taccl: sketch/1\nname: closed\nlinks: {deny: [{from: 0, to: 1}]}\n")
    one_error(synthesize(run, topology, "--sketch", sketch), "rank", status=3)


def test_a_symmetry_that_the_topology_lacks(run: Run, tmp_path: Path) -> None:
    sketch = tmp_path / "turn.yaml"
    sketch.write_text("taccl: sketch/1\nname: turn\nsymmetry: [[1, 8]]\n")
    done = run("synthesize", "ndv2", "allgather", "--sketch", sketch, "--quiet")
    one_error(done, "does not have this symmetry", "edge")


def test_an_unknown_collective(run: Run) -> None:
    one_error(run("synthesize", "ring:4", "allgathr"), "allgathr", "allreduce")


@for_each(
    ("option", "value"),
    [
        ("--size", "1XB"), ("--size", "-1"), ("--chunks", "many"), ("--batch", "some"),
        ("--alpha-rule", "both"), ("--dtype", "quad"), ("--min-bytes", "1Q"), ("--root", "0"),
    ],
)  # fmt: skip
def test_a_wrong_option_value_names_the_option(run: Run, option: str, value: str) -> None:
    one_error(run("synthesize", "ring:4", "allgather", option, value), option, "fix:")


def test_an_unknown_option_is_a_usage_error(run: Run) -> None:
    assert run("synthesize", "ring:4", "allgather", "--frobnicate").status == 2


def test_a_program_for_other_ranks_is_not_evaluated(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "f.xml"
    run("synthesize", "ring:4", "allgather", "-o", path, "--time-limit", "2", "--quiet")
    one_error(run("evaluate", path, "--topology", "ring:8"), "4 ranks", "8")


GATHER = """<algo name="x" proto="Simple" nchannels="1" nchunksperloop="2" ngpus="2"
 coll="allgather" inplace="1" outofplace="0" minBytes="0" maxBytes="0">
<gpu id="0" i_chunks="1" o_chunks="2" s_chunks="0"><tb id="0" send="1" recv="1" chan="0">
<step s="0" type="s" srcbuf="o" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1"
 hasdep="0"/></tb></gpu></algo>"""


@for_each(
    ("old", "new", "said"),
    [
        ('cnt="1"', 'cnt="1000000000"', "counts"),
        ('cnt="1"', 'cnt="0"', "counts"),
        ('depid="-1" deps="-1"', 'depid="999999" deps="9"', "dependences"),
        ('chan="0"', 'chan="999999999"', "channels"),
        ('send="1"', 'send="999999999"', "peers"),
        ('ngpus="2"', 'ngpus="3000"', "chunks"),
        ('nchunksperloop="2"', 'nchunksperloop="1000000000"', "size"),
        ('coll="allgather"', 'coll="custom"', "collective"),
        (GATHER[GATHER.index("<gpu") : GATHER.index("</algo>")], "", "result"),
    ],
)
def test_an_absurd_program_is_found_wrong(
    run: Run, tmp_path: Path, old: str, new: str, said: str
) -> None:
    path = tmp_path / "p.xml"
    path.write_text(GATHER.replace(old, new, 1))
    done = run("verify", path)
    assert (done.status, done.err) == (1, "")
    assert f"\n  {said}" in done.out


@pytest.mark.parametrize("topology", ["hub:4096", "full:2000", "hypercube:65536"])
@pytest.mark.parametrize("command", [("topology", "validate"), ("topology", "show")])
def test_a_machine_with_too_many_links_or_edges(
    run: Run, topology: str, command: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taccl.topology.links.MAX_LINKS", 50_000)
    one_error(run(*command, topology), "more than", "fix:")


def test_a_collective_with_too_many_chunks(run: Run) -> None:
    one_error(run("bound", "ring:16385", "alltoall"), "268468225 chunks", "fix: use fewer")
    done = run("bound", "ring:8192", "alltoall", "--chunks", "2")
    one_error(done, "67108864 chunks, and each cut in 2", "fix: use fewer")


def test_a_size_that_slow_links_need_years_for(run: Run, topology: Path) -> None:
    topology.write_text(GRAPH.replace("25GB/s", "1KB/s"))
    done = run("bound", topology, "allgather", "--size", "1TiB")
    one_error(done, "--size", "too long to add up")
    one_error(synthesize(run, topology, "--size", "1TiB"), "--size", "too long to add up")


@pytest.mark.parametrize("name", ['" "', '" two"', '"two "', '"t\\u200bwo"', '"two\\n"'])
def test_a_name_that_is_blank_or_invisible(run: Run, topology: Path, name: str) -> None:
    topology.write_text(GRAPH.replace("name: two", f"name: {name}"))
    one_error(run("topology", "validate", topology), "two.yaml:2", "name", "fix:")


def test_one_path_for_two_outputs_is_refused_before_the_search(
    run: Run, topology: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    output.write_text("kept")
    done = synthesize(run, topology, "-o", output, "--schedule", tmp_path / "." / "out")
    one_error(done, "same file")
    assert output.read_text() == "kept"


def test_an_input_is_no_output(run: Run, topology: Path, tmp_path: Path) -> None:
    schedule = tmp_path / "s.json"
    assert synthesize(run, topology, "--schedule", schedule).status == 0
    before = schedule.read_text()
    one_error(run("convert", schedule, "-o", schedule), "same file")
    assert schedule.read_text() == before
    one_error(run("topology", "expand", topology, "-o", topology), "same file")
    assert topology.read_text() == GRAPH


def test_a_pipe_as_output_that_nobody_reads(run: Run, topology: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    one_error(synthesize(run, topology, "-o", tmp_path / "pipe"), "start what reads the pipe")


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (("topology", "import", "x", "--gpu="), "--gpu"),
        (("topology", "import", "x", "--base="), "--base"),
        (("topology", "import", "x", "--fabric="), "--fabric"),
        (("bound", "ring:4", "allgather", "--alpha-rule="), "--alpha-rule"),
    ],
)
def test_a_name_of_nothing_is_none_of_those_there_are(
    run: Run, words: tuple[str, ...], field: str
) -> None:
    one_error(run(*words), f"error: {field}: should be one of", "got ''")


def test_what_measurements_have_no_use_for_is_not_ignored(run: Run, tmp_path: Path) -> None:
    matrix = tmp_path / "latency.csv"
    matrix.write_text("0,1,2\n1,0,3\n2,3,0\n")
    for option, value in (("--fabric", "abc"), ("--nodes", "2")):
        done = run("place", matrix, "--unit", "us", option, value)
        one_error(done, f"error: {option}: ", value, "is for --topology")


def test_too_many_servers_are_told_the_most_there_can_be(run: Run) -> None:
    done = run("bound", "dgx2", "allgather", "--nodes", "100000")
    one_error(done, "--nodes: should be from 1 to 8192", "fix: write a number from 1 to 4096")


def test_a_dash_is_stdout_for_xml_and_topologies_and_else_refused(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ring = ("synthesize", "ring:4", "allgather", "--engine", "ring", "-q")
    done = run(*ring, "-o", "-", "--schedule", "s.json")
    assert done.status == 0, done.err
    assert done.out.startswith("<algo")
    assert done.out.endswith("</algo>\n")
    assert "bound" in done.err
    assert run("convert", "s.json", "-o", "-").out.startswith("<algo")
    assert run("topology", "expand", "ring:4", "-o", "-").out == run(
        "topology", "expand", "ring:4").out  # fmt: skip
    one_error(run(*ring, "-o", "-", "--json"), "-o: --json needs stdout, too")
    one_error(run(*ring, "--schedule", "-"), "- is no file name")
    one_error(run("topology", "show", "ring:4", "--svg", "-"), "--svg: - is no file name")
    one_error(run("tune", "ring:4", "allgather", "-o", "-"), "-o: - is no directory")
    assert [path.name for path in tmp_path.iterdir()] == ["s.json"]


def test_sizes_are_read_alike_by_all_options_and_printed_as_they_were_given(run: Run) -> None:
    def head(*words: str) -> str:
        return str(run("bound", "ring:4", "allgather", *words).out)

    assert head("--size", "64M") == head("--size", "64MiB") == head("--size", "67108864")
    assert "64MiB" in head("--size", "64M")
    assert head("-b", "1K", "-e", "1K") == head("-b", "1024", "-e", "1024")
    assert "1KiB" in head("-b", "1K", "-e", "1K")
    assert "1MB" in head("--size", "1MB")


def test_one_of_a_thing_is_told_in_the_singular(run: Run) -> None:
    out = run("synthesize", "ring:4", "allgather", "--engine", "ring", "--chunks", "1", "-q").out
    assert "1 chunk for each rank" in out
    assert "1 channel," in out

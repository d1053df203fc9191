"""``taccl sketch``: suggested sketches load, shown ones are drawn, conflicting fields are named."""

from pathlib import Path

import pytest
from defusedxml.ElementTree import fromstring

from tests.cli.conftest import Run


def test_a_suggestion_is_printed_and_loads_by_every_command(run: Run, tmp_path: Path) -> None:
    printed = run("sketch", "suggest", "ndv2", "allgather", "--nodes", "2")
    assert printed.status == 0, printed.err
    file = tmp_path / "mine.yaml"
    written = run("sketch", "suggest", "ndv2", "--nodes", "2", "-o", file)
    assert written.out == f"wrote {file}\n"
    assert file.read_text() == printed.out
    assert "2 symmetries" in run("sketch", "validate", file, "ndv2", "--nodes", "2").out
    done = run("bound", "ndv2", "allgather", "--nodes", "2", "--sketch", file)
    assert done.status == 0, done.err


def test_a_suggestion_depends_on_collective_and_size(run: Run) -> None:
    small = run("sketch", "suggest", "dgx2", "alltoall", "--size", "100KB").out
    large = run("sketch", "suggest", "dgx2", "alltoall", "--size", "1GB").out
    assert "name: dgx2-x1-alltoall" in small
    assert "{nvswitch: uc-max}" in small
    assert "{nvswitch: uc-min}" in large


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nothing",), "nothing"),
        (("ring:4", "sort"), "unknown collective"),
        (("ring:4", "--size", "0"), "--size"),
        (("ring:4", "--nodes", "2"), "--nodes"),
    ],
)
def test_what_can_not_be_suggested_is_one_error(
    run: Run, arguments: tuple[str, ...], message: str
) -> None:
    done = run("sketch", "suggest", *arguments)
    assert done.status == 2
    assert done.out == ""
    assert message in done.err
    assert "\n  fix: " in done.err
    assert "Traceback" not in done.err


def test_a_suggestion_does_not_overwrite_its_topology(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    text = "taccl: topology/1\nname: t\nranks: 2\nedges: [{from: 0, to: 1, bandwidth: 1GB/s}]\n"
    file.write_text(text)
    assert run("sketch", "suggest", file, "-o", file).status == 2
    assert file.read_text() == text


def test_show_lists_what_the_sketch_says(run: Run) -> None:
    lines = run("sketch", "show", "dgx2-relay", "dgx2", "--nodes", "2").out.splitlines()
    told = {line[2:18].strip(): line[18:] for line in lines[1:]}
    assert lines[0] == "dgx2-relay on dgx2"
    # 2 x 16 x 15 inside, 16 of 512 between.
    assert told["links allowed"] == "496 of 992"
    assert told["denied between"].startswith("496 of 512: 0->16 0->17")
    assert told["between servers"].startswith("1->16 3->18")
    assert told["leave by"] == "31: chunks of 30 31"
    assert told["peers of a rank"] == "to 15 to 16, from 15 to 16"
    assert told["symmetries"] == "16 act freely"
    assert told["chunks per rank"] == "2"
    assert told["own chunks"] == "first"


def test_show_draws_the_relays_straight_from_gpu_to_gpu(run: Run, tmp_path: Path) -> None:
    svg, dot = tmp_path / "a.svg", tmp_path / "a.dot"
    done = run("sketch", "show", "ndv2-relay", "ndv2", "--nodes", "2", "--svg", svg, "--dot", dot)
    assert done.status == 0, done.err
    assert done.out.endswith(f"wrote {svg}\nwrote {dot}\n")
    text = dot.read_text()
    assert 'digraph "ndv2-relay on ndv2" {' in text
    assert "v0 -> v9" in text
    assert "v8 -> v1" in text
    # The NIC and the fabric are crossed, not stopped at.
    assert "fabric" not in text
    titles = [node.text or "" for node in fromstring(svg.read_text()).iter() if "title" in node.tag]
    assert any(title.startswith("0 -> 9: 9.434 GB/s") for title in titles)


def test_show_draws_only_what_is_left_inside_a_server(run: Run, tmp_path: Path) -> None:
    sketch, dot = tmp_path / "s.yaml", tmp_path / "s.dot"
    sketch.write_text("taccl: sketch/1\nname: s\nlinks: {deny: [{from: 0, to: 1}]}\n")
    assert run("sketch", "show", sketch, "ring:4", "--dot", dot).status == 0
    text = dot.read_text()
    assert "v1 -> v0 [" in text
    assert "v0 -> v1 [" not in text


def test_a_picture_does_not_overwrite_the_sketch(run: Run, tmp_path: Path) -> None:
    sketch = tmp_path / "s.yaml"
    sketch.write_text("taccl: sketch/1\nname: s\n")
    assert run("sketch", "show", sketch, "ring:4", "--svg", sketch).status == 2
    assert sketch.read_text() == "taccl: sketch/1\nname: s\n"


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("links: {deny: [{from: 0, to: 2}, {from: 0, to: [1, 3]}]}", "links.deny[1]"),
        ("links: {deny: [{from: 0, to: 1}, {from: 0, to: 3}]}", "links.deny[0], links.deny[1]"),
        (
            "links: {deny: [{from: 0, to: 1}, {from: 1, to: 0}]}\nlimits: {connections_per_gpu: 1}",
            "links.deny[0], links.deny[1], limits.connections_per_gpu",
        ),
    ],
)
def test_fields_in_conflict_are_named_with_exit_status_3(
    run: Run, tmp_path: Path, text: str, fields: str
) -> None:
    sketch = tmp_path / "tight.yaml"
    sketch.write_text(f"taccl: sketch/1\nname: tight\n{text}\n")
    done = run(
        "synthesize", "ring:4", "allgather", "--sketch", sketch, "--engine", "taccl", "--runtime",
        "none", "--time-limit", "2", "--quiet",
    )  # fmt: skip
    assert done.status == 3
    assert done.out == ""
    assert f"{sketch}:3: {fields}: rank " in done.err
    assert "can't be served" in done.err
    assert "\n  fix: " in done.err


def test_a_sender_that_is_cut_off_is_named_with_the_chunk(run: Run, tmp_path: Path) -> None:
    sketch = tmp_path / "tight.yaml"
    sketch.write_text(
        "taccl: sketch/1\nname: tight\nlinks: {deny: [{from: 5, to: 0-15}]}\ninternode:\n"
        "  relays: {1: [2], 5: [6]}\n  chunk_to_relay: {5: 1}\n"
    )
    done = run(
        "synthesize", "dgx2", "alltoall", "--nodes", "2", "--sketch", sketch, "--engine", "taccl",
        "--runtime", "none", "--time-limit", "2", "--quiet",
    )  # fmt: skip
    assert done.status == 3
    assert "links.deny[0], internode.chunk_to_relay[5]: rank 0 can't be served: no" in done.err
    assert "chunk 160 there from rank 5" in done.err
    found = run("sketch", "validate", sketch, "dgx2", "--nodes", "2")
    assert found.status == 3
    assert "chunk 5 there from rank 5" in found.err

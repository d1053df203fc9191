"""Ctrl-C during a search: the best so far is written; twice: nothing is."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import pytest

from taccl.model.problem import Options
from taccl.model.routes import Network, Routes
from taccl.msccl.verdict import judge_text
from taccl.synth.greedy import Hop
from tests.cli.conftest import Run

COMMAND = (sys.executable, "-m", "taccl", "synthesize", "ndv2", "allreduce")
LONG = ("--time-limit", "3600")
PATIENCE = 240.0


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run the command; it is gone afterwards in any case."""
    process = subprocess.Popen(
        [*COMMAND, *LONG, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for(process: subprocess.Popen[str], word: str) -> str:
    """Read stderr up to a line with a word."""
    assert process.stderr is not None
    for line in process.stderr:
        if word in line:
            return line
    pytest.fail(f"ended with status {process.wait()} before it said {word!r}")


def test_the_first_interrupt_writes_the_best_so_far(tmp_path: Path) -> None:
    output = tmp_path / "f.xml"
    with running("-o", str(output)) as process:
        wait_for(process, "under guidance")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    assert "(interrupted, " in out
    assert [path.name for path in tmp_path.iterdir()] == ["f.xml"]
    assert judge_text(output.read_bytes(), "portable").findings == ()


def test_the_second_interrupt_writes_nothing(tmp_path: Path) -> None:
    output = tmp_path / "f.xml"
    with running("-o", str(output)) as process:
        wait_for(process, "under guidance")
        process.send_signal(signal.SIGINT)
        wait_for(process, "finishing with the best so far")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 4, err
    assert "interrupted before anything could be written" in err
    assert list(tmp_path.iterdir()) == []


def test_the_second_interrupt_says_which_files_were_written(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("f.xml").write_text("old")
    Path("page.html").write_text("old")

    def interrupted(*_: object) -> list[Path]:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        raise AssertionError

    monkeypatch.setattr("taccl.apps.outputs.write_report", interrupted)
    done = run(
        "synthesize", "ring:4", "allgather", "--engine", "ring", "-q", "-o", "f.xml",
        "--schedule", "s.json", "--report", "page.html",
    )  # fmt: skip
    assert done.status == 4
    assert "error: interrupted after writing f.xml, s.json, and nothing else" in done.err
    assert Path("f.xml").read_text().startswith("<algo")
    assert Path("page.html").read_text() == "old"


def test_json_says_that_the_search_was_interrupted(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = import_module("taccl.synth.staged")
    search = staged.route

    def interrupted(
        network: Network, known: list[Hop], options: Options, seconds: float
    ) -> list[Routes]:
        if not options.stop.is_set():
            signal.raise_signal(signal.SIGINT)
        found: list[Routes] = search(network, known, options, seconds)
        return found

    monkeypatch.setattr(staged, "route", interrupted)
    output = tmp_path / "f.xml"
    done = run(
        "synthesize", "ndv2", "allgather", "--engine", "taccl", "--chunks", "1", "--json",
        "-o", output,
    )  # fmt: skip
    assert done.status == 0, done.err
    report = json.loads(done.out)
    assert report["status"] == "interrupted"
    assert report["output"] == [str(output)]
    assert judge_text(output.read_bytes(), "portable").findings == ()


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("command", "place"),
    [
        (("evaluate", "ring.xml", "--topology", "ring:4", "--html", "out"),
         "taccl.apps.outputs.page"),
        (("evaluate", "ring.xml", "--topology", "ring:4", "--trace", "out", "--explain"),
         "taccl.apps.evaluation.explain"),
        (("compare", "ring:4", "allgather", "ring.xml", "--plot", "out"),
         "taccl.apps.comparison.find_crossovers"),
        (("calibrate", "ring:4", "--measured", "run.txt", "--collective", "allgather", "-o", "out"),
         "taccl.apps.calibration.Fit.solve"),
    ],
)  # fmt: skip
def test_an_interrupted_report_is_not_written(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...], place: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    run("synthesize", "ring:4", "allgather", "--engine", "ring", "--quiet", "-o", "ring.xml")
    sizes = ("-b", "1M", "-e", "4M", "--format", "nccl-tests")
    Path("run.txt").write_text(run("evaluate", "ring.xml", "--topology", "ring:4", *sizes).out)
    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr(place, interrupt)
    done = run(*command)
    assert (done.status, done.out) == (130, "")
    assert "Traceback" not in done.err
    assert sorted(tmp_path.iterdir()) == before

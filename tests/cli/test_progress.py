"""What a long command says meanwhile: in place on a terminal, else lines; how much is asked for."""

import os
import re
from pathlib import Path

import pytest

from taccl.cli.help import progress, say
from tests.cli.conftest import Run

COMPARE = ("compare", "hub:4", "allgather", "-b", "1K", "-e", "4K")
Capture = pytest.CaptureFixture[str]


def as_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make stderr, whatever is in its place by now, a terminal of 40 columns."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr("shutil.get_terminal_size", lambda **_: os.terminal_size((40, 24)))


def test_a_line_in_place_is_cut_to_the_terminal_and_gone_at_the_end(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_terminal(monkeypatch)
    with progress() as show:
        show("x" * 200)
        say("stays")
        show("short")
    assert capsys.readouterr().err == f"\r\033[K{'x' * 39}\r\033[Kstays\n\r\033[Kshort\r\033[K"


def test_verbose_lines_stay_on_a_terminal_and_have_seconds(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_terminal(monkeypatch)
    with progress(verbose=True) as show:
        show("x" * 200)
    assert re.fullmatch(r"\r\033\[K +0\.\d s  x{200}\n", capsys.readouterr().err)


def test_quiet_says_nothing(capsys: Capture) -> None:
    with progress(quiet=True, verbose=True) as show:
        show("something")
    assert capsys.readouterr().err == ""


def test_where_there_is_no_terminal_compare_and_place_say_what_they_do(run: Run) -> None:
    told = run(*COMPARE).err
    assert "lowering ring\n" in told
    assert "replaying ring (1 of " in told
    assert run(*COMPARE, "-q").err == ""
    place = ("place", "--topology", "ring:4", "--replays", "3", "--random", "0")
    assert "lowering ring\n" in run(*place).err
    assert run(*place, "--quiet").err == ""


def test_tune_tells_of_every_candidate_with_v(run: Run, tmp_path: Path) -> None:
    words = ("tune", "ring:2", "allgather", "-e", "1K", "--candidates", "0", "-o", tmp_path / "lib")
    lines = run(*words, "-v").err.splitlines()
    assert len(lines) > len(run(*words).err.splitlines())
    assert all(re.match(r" +\d+\.\d s  \d+/\d+ candidates", line) for line in lines)

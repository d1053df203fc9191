"""What the shell is offered while a command is typed."""

import pytest

from taccl.cli import app


def offered(
    line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """Return what bash would show after the Tab key at the end of a line."""
    monkeypatch.setenv("_TACCL_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
    with pytest.raises(SystemExit, match="0"):
        app(args=[], prog_name="taccl")
    return capsys.readouterr().out.split()


@pytest.mark.parametrize(
    ("line", "all_of_them"),
    [
        ("taccl syn", ["synthesize"]),
        ("taccl topology expa", ["expand"]),
        ("taccl synthesize torus", ["torus2d", "torus3d"]),
        ("taccl synthesize ndv2 allg", ["allgather"]),
        ("taccl synthesize ndv2 allgather --engine gui", ["guided"]),
        ("taccl synthesize ndv2 allgather --alpha-rule d", ["delay"]),
        ("taccl synthesize ndv2 allgather --runtime exec", ["executor"]),
        ("taccl synthesize ndv2 allgather --sketch ndv2-r", ["ndv2-relay"]),
    ],
)
def test_names_are_completed(
    line: str,
    all_of_them: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert offered(line, capsys, monkeypatch) == all_of_them


def test_where_no_name_fits_nothing_is_offered_so_that_files_are(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert offered("taccl synthesize my-own-mach", capsys, monkeypatch) == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_its_script(
    shell: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "true")
    with pytest.raises(SystemExit, match="0"):
        app(args=["--show-completion", shell], prog_name="taccl")
    assert "_TACCL_COMPLETE" in capsys.readouterr().out

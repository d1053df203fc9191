"""The directory appears whole or not at all, and one run at a time writes it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from taccl.errors import InputError
from taccl.tuning import directory
from taccl.tuning.directory import check_place, locked, write_directory

TEXTS = {"index.json": "{}", "algorithms/a.xml": "<algo/>"}

HOLDER = """
import sys
from pathlib import Path
from taccl.tuning.directory import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def found(place: Path) -> dict[str, str]:
    return {str(p.relative_to(place)): p.read_text() for p in place.rglob("*") if p.is_file()}


def test_files_are_written_in_their_folders(tmp_path: Path) -> None:
    write_directory(tmp_path / "lib", TEXTS)
    assert found(tmp_path / "lib") == TEXTS
    assert [path.name for path in tmp_path.iterdir()] == ["lib"]


@pytest.mark.parametrize("exchange", [True, False])
def test_a_library_is_replaced_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, exchange: bool
) -> None:
    if not exchange:
        monkeypatch.setattr(directory, "_exchange", lambda _one, _other: False)
    write_directory(tmp_path / "lib", {**TEXTS, "algorithms/old.xml": "<algo/>"})
    write_directory(tmp_path / "lib", TEXTS)
    assert found(tmp_path / "lib") == TEXTS
    assert [path.name for path in tmp_path.iterdir()] == ["lib"]


def test_a_failure_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_directory(tmp_path / "lib", TEXTS)

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match="can't be written: no space left on device"):
        write_directory(tmp_path / "lib", {"index.json": "new"})
    assert found(tmp_path / "lib") == TEXTS
    assert [path.name for path in tmp_path.iterdir()] == ["lib"]


def test_what_a_killed_run_left_is_cleared(tmp_path: Path) -> None:
    (tmp_path / ".lib.0123456789ab.tmp").mkdir()
    write_directory(tmp_path / ".lib.old", TEXTS)
    with locked(tmp_path / "lib"):
        assert found(tmp_path / "lib") == TEXTS
    assert not list(tmp_path.glob(".lib.*.tmp"))


def test_a_second_run_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    place = tmp_path / "lib"
    command = [sys.executable, "-c", HOLDER, str(place)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as holder:  # type: ignore[call-overload]
        assert holder.stdout.readline() == "held\n"
        told = f"is being written by another taccl tune .process {holder.pid}"
        with pytest.raises(InputError, match=told), locked(place):
            pass
        holder.kill()
        holder.communicate()
    with locked(place):
        pass


def test_only_a_library_is_replaced(tmp_path: Path) -> None:
    other = tmp_path / "thesis"
    other.mkdir()
    check_place(other)
    (other / "chapter1.tex").write_text("")
    with pytest.raises(InputError, match="was not written by taccl tune"):
        check_place(other)


def test_a_place_that_is_a_file_or_nowhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is a file"):
        check_place(tmp_path / "file")
    with pytest.raises(InputError, match="there is no such directory"):
        check_place(tmp_path / "none" / "lib")

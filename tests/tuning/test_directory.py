"""The directory appears whole or not at all, and one run at a time writes it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from taccl.errors import InputError
from taccl.tuning import directory
from taccl.tuning.directory import check_place, locked, write_directory

INDEX = '{\n "taccl": "library/1"}'
TEXTS = {"index.json": INDEX, "algorithms/a.xml": "<algo/>"}

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


def test_a_library_of_plans_is_replaced_too(tmp_path: Path) -> None:
    plans = {"index.json": INDEX, "plans/a.json": "{}", "register.py": "", "LOADING.md": ""}
    write_directory(tmp_path / "lib", {**plans, "plans/old.json": "{}"})
    check_place(tmp_path / "lib")
    write_directory(tmp_path / "lib", plans)
    assert found(tmp_path / "lib") == plans
    assert [path.name for path in tmp_path.iterdir()] == ["lib"]


def test_a_failure_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_directory(tmp_path / "lib", TEXTS)

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match="can't be written: no space left on device"):
        write_directory(tmp_path / "lib", {"index.json": INDEX + " "})
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


@pytest.mark.parametrize("index", ["{}", '{"pages": 3}', '{"taccl": "topology/1"}', "no json"])
def test_an_index_of_something_else_makes_no_library(tmp_path: Path, index: str) -> None:
    web = tmp_path / "web"
    web.mkdir()
    (web / "index.json").write_text(index)
    (web / "thesis.tex").write_text("years of it")
    before = found(web)
    with pytest.raises(InputError, match="was not written by taccl tune"):
        check_place(web)
    with pytest.raises(InputError, match="was not written by taccl tune"):
        write_directory(web, TEXTS)
    assert found(web) == before


@pytest.mark.parametrize(
    "mine",
    [
        "notes.txt",
        "algorithms/notes.txt",
        "msccl/x.py",
        "plans/a.xml",
        "more/a.xml",
        "algorithms/d.xml/a",
    ],
)
@pytest.mark.parametrize("exchange", [True, False])
def test_a_library_with_other_files_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mine: str, *, exchange: bool
) -> None:
    if not exchange:
        monkeypatch.setattr(directory, "_exchange", lambda _one, _other: False)
    place = tmp_path / "lib"
    write_directory(place, TEXTS)
    (place / mine).parent.mkdir(exist_ok=True)
    (place / mine).write_text("mine")
    before = found(place)
    with pytest.raises(InputError, match="which taccl tune has not written"):
        check_place(place)
    with pytest.raises(InputError, match="which taccl tune has not written"):
        write_directory(place, TEXTS)
    assert found(place) == before
    assert [path.name for path in tmp_path.iterdir()] == ["lib"]


def test_a_link_in_a_library_is_not_replaced(tmp_path: Path) -> None:
    write_directory(tmp_path / "lib", TEXTS)
    (tmp_path / "lib" / "msccl").symlink_to(tmp_path)
    with pytest.raises(InputError, match="holds 'msccl'"):
        check_place(tmp_path / "lib")


def test_what_others_have_put_aside_stays(tmp_path: Path) -> None:
    for name in (".lib.old", ".lib.0123456789ab.tmp", ".lib.twelve-chars.tmp"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.txt").write_text(name)
    with locked(tmp_path / "lib"):
        pass
    write_directory(tmp_path / "lib", TEXTS)
    with locked(tmp_path / "lib"):
        pass
    kept = {path.parent.name for path in tmp_path.rglob("mine.txt")}
    assert kept == {".lib.old", ".lib.0123456789ab.tmp", ".lib.twelve-chars.tmp"}


def test_a_name_is_no_pattern(tmp_path: Path) -> None:
    (tmp_path / ".lib.0123456789ab.tmp").mkdir()
    with locked(tmp_path / "l[i]b"), locked(tmp_path / "*"):
        pass
    assert (tmp_path / ".lib.0123456789ab.tmp").is_dir()


def test_a_lock_of_another_program_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "cargo.lock").write_text("[[package]]")
    with pytest.raises(InputError, match=r"cargo\.lock.*not written"), locked(tmp_path / "cargo"):
        pass
    assert (tmp_path / "cargo.lock").read_text() == "[[package]]"

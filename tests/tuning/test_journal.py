"""The journal: what is in it stays, whoever writes and whatever ends the writer."""

import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from taccl.errors import InputError
from taccl.tuning.directory import Journal

WRITER = """
import sys
from pathlib import Path
from taccl.tuning.directory import Journal
with Journal(Path(sys.argv[1])) as journal:
    number = 0
    while True:
        journal.keep(f"{number}", f"result {number} " + "x" * 5000)
        print(number, flush=True)
        number += 1
"""


def write_some(path: str, name: str) -> None:
    with Journal(Path(path)) as journal:
        for number in range(20):
            journal.keep(f"{name}{number}", f"{name} {number}")


def test_a_result_is_found_again(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal:
        assert journal.find("a") is None
        journal.keep("a", "text")
    with Journal(tmp_path / "j") as journal:
        assert journal.find("a") == "text"


def test_a_run_knows_its_results_in_order_and_what_it_spent(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal:
        for place, key in ((2, "c"), (0, "a"), (1, "b")):
            journal.keep(key, f"text {key}")
            journal.note("run", place, key, 1.5 * place)
        journal.note("other", 0, "c", 0.5)
        assert journal.members("run") == [(0, "text a"), (1, "text b"), (2, "text c")]
        assert journal.state("run") == (3.0, False)
        journal.finish("run", 4.0)
        assert journal.state("run") == (4.0, True)
        assert journal.state("unknown") == (0.0, False)


def test_two_processes_write_at_once(tmp_path: Path) -> None:
    path = str(tmp_path / "j")
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=write_some, args=(path, name)) for name in "ab"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0]
    with Journal(Path(path)) as journal:
        assert all(journal.find(f"{name}{n}") == f"{name} {n}" for name in "ab" for n in range(20))


def test_what_was_written_before_a_kill_is_there(tmp_path: Path) -> None:
    path = tmp_path / "j"
    command = [sys.executable, "-c", WRITER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        first = [int(writer.stdout.readline()) for _ in range(5)]
        time.sleep(0.01)
        os.kill(writer.pid, signal.SIGKILL)
        told = [int(line) for line in writer.stdout.read().split()]
    with Journal(path) as journal:
        for number in range(max([*first, *told]) + 1):
            assert journal.find(str(number)) == f"result {number} " + "x" * 5000
        journal.keep("more", "after")
        assert journal.find("more") == "after"


def test_a_file_that_is_no_journal_is_named(tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_text("this is not SQLite, but it is longer than a header of a hundred bytes " * 3)
    with pytest.raises(InputError, match="is no journal, or a damaged one") as error:
        Journal(path)
    assert str(path) in str(error.value)
    assert "delete the file" in str(error.value)


def test_a_result_that_was_changed_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with Journal(path) as journal:
        journal.keep("a", "text")
    with sqlite3.connect(path) as file:
        file.execute("UPDATE outcome SET text='tex!'")
    file.close()
    with Journal(path) as journal, pytest.raises(InputError, match="a result that was changed"):
        journal.find("a")


def test_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with sqlite3.connect(path) as file:
        file.execute("PRAGMA user_version=7")
    file.close()
    with pytest.raises(InputError, match="a journal of another version"):
        Journal(path)


def test_a_place_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="can't be used as a journal"):
        Journal(tmp_path / "none" / "j")

"""What a run leaves on disk: the directory of a library, and beside it a journal of results.

A directory appears whole or not at all, and one run at a time writes it. It is written beside its
place, put on disk, and moved there in one step; one that is there already changes places with the
new one (``renameat2``), or where the system can't do that, is moved aside first. Nothing is ever
removed but what a run has written: a directory is a library only if its index says so, and it is
replaced only while no other file is in it.

The journal holds what is finished, by the hash of everything it depends on, in one SQLite file.
Every result is a transaction of its own, on disk before it counts, so that whatever ends the
program costs at most what was running. Several processes may write at once.
"""

import ctypes
import fcntl
import glob
import hashlib
import os
import re
import secrets
import shutil
import sqlite3
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Self

from taccl.errors import InputError
from taccl.tuning.exports import EXPORTS

SCHEMA = 1
"""``user_version`` of the file."""

PATIENCE = 60.0
"""Seconds that a writer waits for another."""

_TABLES = """
CREATE TABLE IF NOT EXISTS outcome (key TEXT PRIMARY KEY, text TEXT NOT NULL, digest TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS run (key TEXT PRIMARY KEY, spent REAL NOT NULL, done INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS member (
    run TEXT NOT NULL, place INTEGER NOT NULL, outcome TEXT NOT NULL, PRIMARY KEY (run, place)
);
"""


class Journal:
    """A journal file, made where there is none.

    SQLite puts ``-wal`` and ``-shm`` beside the `path` while it is in use.

    Raises InputError when it can't be used, or is no journal.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._told():
            self._file = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)
        try:
            with self._told():
                self._prepare()
        except InputError:
            self._file.close()
            raise

    def _prepare(self) -> None:
        self._file.execute("PRAGMA journal_mode=WAL")
        self._file.execute("PRAGMA synchronous=FULL")
        (found,) = self._file.execute("PRAGMA user_version").fetchone()
        tables = self._file.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if found == SCHEMA:
            return
        if found or tables:
            raise self._error(f"is a journal of another version ({found}, not {SCHEMA})")
        with self._transaction():
            for statement in filter(str.strip, _TABLES.split(";")):
                self._file.execute(statement)
            self._file.execute(f"PRAGMA user_version={SCHEMA}")

    def __enter__(self) -> Self:
        """Return the journal."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        self._file.close()

    def find(self, key: str) -> str | None:
        """Return the result of a key; None: not known.

        Raises InputError when the file is damaged.
        """
        with self._told():
            known = self._file.execute("SELECT text, digest FROM outcome WHERE key=?", (key,))
            row = known.fetchone()
        if row is None:
            return None
        text, digest = str(row[0]), str(row[1])
        if hashlib.sha256(text.encode()).hexdigest() != digest:
            raise self._error("holds a result that was changed")
        return text

    def keep(self, key: str, text: str) -> None:
        """Write a result to disk.

        Raises InputError when the file can't be written.
        """
        row = (key, text, hashlib.sha256(text.encode()).hexdigest())
        with self._told(), self._transaction():
            self._file.execute("INSERT OR REPLACE INTO outcome VALUES (?, ?, ?)", row)

    def note(self, run: str, place: int, key: str, spent: float) -> None:
        """Note that a run has used a result, and the seconds that it has spent so far."""
        with self._told(), self._transaction():
            self._file.execute("INSERT OR REPLACE INTO member VALUES (?, ?, ?)", (run, place, key))
            self._spend(run, spent, done=False)

    def finish(self, run: str, spent: float) -> None:
        """Note that a run is over."""
        with self._told(), self._transaction():
            self._spend(run, spent, done=True)

    def _spend(self, run: str, spent: float, *, done: bool) -> None:
        self._file.execute(
            "INSERT INTO run VALUES (?, ?, ?) ON CONFLICT (key) DO UPDATE"
            " SET spent=max(spent, excluded.spent), done=max(done, excluded.done)",
            (run, spent, int(done)),
        )

    def state(self, run: str) -> tuple[float, bool]:
        """Return the seconds that a run has spent, and whether it is over."""
        with self._told():
            row = self._file.execute("SELECT spent, done FROM run WHERE key=?", (run,)).fetchone()
        return (0.0, False) if row is None else (float(row[0]), bool(row[1]))

    def members(self, run: str) -> list[tuple[int, str]]:
        """Return the places and results of a run, in order."""
        with self._told():
            rows = self._file.execute(
                "SELECT place, outcome FROM member WHERE run=? ORDER BY place", (run,)
            ).fetchall()
        return [(int(place), text) for place, key in rows if (text := self.find(str(key)))]

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with closing(self._file.cursor()) as cursor:
            cursor.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                cursor.execute("ROLLBACK")
                raise
            cursor.execute("COMMIT")

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Turn what SQLite says into an error of the user's."""
        try:
            yield
        except sqlite3.OperationalError as error:
            raise InputError(
                f"can't be used as a journal: {error}", file=str(self.path), field="-o",
                fix="choose a place you may write to, with space left",
            ) from None  # fmt: skip
        except sqlite3.DatabaseError as error:
            raise self._error(f"is no journal, or a damaged one: {error}") from None

    def _error(self, problem: str) -> InputError:
        fix = "delete the file: only what it remembers is lost"
        return InputError(problem, file=str(self.path), field="-o", fix=fix)


INDEX = "index.json"
"""The file that tells a library from any other directory."""

FILES = frozenset({
    INDEX, "report.html", "environment.sh", "nccl_tuner.csv", "register.py", "LOADING.md",
    *(one.file for one in EXPORTS.values()),
})  # fmt: skip
FOLDERS: Mapping[str, str] = MappingProxyType(
    {"algorithms": ".xml", "msccl": ".xml", "plans": ".json"}
)
"""All that a run writes into a directory; the folders hold only files of these kinds."""

_BEGINNING = re.compile(rb'\s*\{\s*"taccl"\s*:\s*"library/')
"""Of the index of a library: enough to know one, however large or broken the rest is."""

_AT_CWD, _EXCHANGE = -100, 2
"""``AT_FDCWD`` and ``RENAME_EXCHANGE`` of Linux."""


def check_place(place: Path) -> None:
    """Raise, before any long work, when a directory can't be written there.

    Raises InputError when it is a file, or another directory than a library, or a library with
    other files in it, or its parent can't be written.
    """
    parent = place.absolute().parent
    if not parent.is_dir():
        raise _error(place, "can't be written: there is no such directory", f"create {parent}")
    if not os.access(parent, os.W_OK):
        raise _error(place, "can't be written: permission denied", "choose another place")
    _check_old(place)


def is_library(place: Path) -> bool:
    """Tell whether a directory has the index of a library."""
    try:
        with (place / INDEX).open("rb") as stream:
            return _BEGINNING.match(stream.read(200)) is not None
    except OSError:
        return False


def strangers(place: Path) -> Iterator[str]:
    """Yield the names of what is in a directory and of no kind that a run writes."""
    for path in sorted(place.iterdir()):
        if path.name in FOLDERS and path.is_dir() and not path.is_symlink():
            for inner in sorted(path.iterdir()):
                if inner.suffix != FOLDERS[path.name] or not inner.is_file() or inner.is_symlink():
                    yield f"{path.name}/{inner.name}"
        elif path.name not in FILES or not path.is_file() or path.is_symlink():
            yield path.name


def _check_old(place: Path) -> None:
    """Raise unless a place is free, an empty directory, or a library without other files."""
    if not os.path.lexists(place):
        return
    if place.is_symlink() or not place.is_dir():
        raise _error(place, "is a file", "name a directory that is to be written")
    try:
        if any(place.iterdir()) and not is_library(place):
            raise _error(place, "is a directory that was not written by taccl tune", "name another")
        stranger = next(strangers(place), None)
    except OSError as error:
        raise _error(
            place, f"can't be read: {(error.strerror or '').lower()}", "choose another place"
        ) from None
    if stranger is not None:
        raise _error(
            place, f"holds {stranger[:100]!r}, which taccl tune has not written",
            "move it elsewhere: a library is replaced whole",
        )  # fmt: skip


@contextmanager
def locked(place: Path) -> Iterator[None]:
    """Keep other runs from a directory meanwhile; the system ends this with the process.

    Raises InputError when another run is at it.
    """
    path = beside(place, ".lock")
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise _error(place, f"can't be locked: {(error.strerror or '').lower()}", "") from None
    try:
        owner = os.read(descriptor, 20).decode("ascii", "replace").strip()
        if owner and not owner.isdecimal():
            raise _error(path, "is a file that was not written by taccl tune", "use another -o")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            told = f" (process {owner})" if owner.isdecimal() else ""
            raise _error(
                place, f"is being written by another taccl tune{told}", "wait, or use another -o"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        # Undo what a run that was killed has left: nobody else is at it now.
        place = place.absolute()
        old = place.with_name(f".{place.name}.old")
        if is_library(old) and not os.path.lexists(place):
            old.rename(place)
        elif is_library(old):
            _remove(old)
        for left in place.parent.glob(f".{glob.escape(place.name)}.{'[0-9a-f]' * 12}.tmp"):
            _remove(left)
        yield
    finally:
        os.close(descriptor)


def beside(place: Path, suffix: str) -> Path:
    """Return the path beside the directory `place` whose name is continued by `suffix`."""
    whole = place.absolute()
    return whole.with_name(whole.name + suffix)


def write_directory(place: Path, texts: Mapping[str, str]) -> None:
    """Write the directory `place` whole, unless it holds just the files that it is to hold.

    The `texts` are their contents, by their names within it.

    Raises InputError when that can't be done, or anything but a library is there; it is then
    untouched.
    """
    place = place.absolute()
    with suppress(OSError, ValueError):  # what can't be read is something else
        files = [path for path in place.rglob("*") if path.is_file()]
        if {
            str(path.relative_to(place)): path.read_text(encoding="utf-8") for path in files
        } == texts:
            return
    fresh = place.with_name(f".{place.name}.{secrets.token_hex(6)}.tmp")
    try:
        for name, text in texts.items():
            path = fresh / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("w", encoding="utf-8", newline="") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
        for folder in (fresh, *(path for path in fresh.rglob("*") if path.is_dir())):
            _sync(folder)
        _check_old(place)  # again: much time may have passed
        _put(fresh, place)
        _sync(place.parent)
    except OSError as error:
        raise _error(
            place, f"can't be written: {(error.strerror or str(error)).lower()}",
            "free some space, or write elsewhere",
        ) from None  # fmt: skip
    finally:
        _remove(fresh)


def _put(fresh: Path, place: Path) -> None:
    """Move a directory to its place; what was there is then where the new one was."""
    if not place.exists():
        fresh.rename(place)
        return
    if _exchange(fresh, place):
        return
    old = place.with_name(f".{place.name}.old")
    place.rename(old)
    try:
        fresh.rename(place)
    except OSError:
        old.rename(place)
        raise
    _remove(old)


def _exchange(one: Path, other: Path) -> bool:
    """Let two directories change places, if the system can do that in one step."""
    if sys.platform != "linux":
        return False
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    paths = (os.fsencode(one), os.fsencode(other))
    return bool(rename(_AT_CWD, paths[0], _AT_CWD, paths[1], _EXCHANGE) == 0)


def _remove(folder: Path) -> None:
    """Remove a directory if there is nothing in it but what a run writes."""
    try:
        if folder.is_symlink() or not folder.is_dir() or any(strangers(folder)):
            return
    except OSError:
        return
    shutil.rmtree(folder, ignore_errors=True)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _error(place: Path, problem: str, fix: str) -> InputError:
    return InputError(problem, file=str(place)[:200], field="-o", fix=fix or None)

"""What is finished: results by the hash of everything they depend on, in one SQLite file.

Every result is a transaction of its own, on disk before it counts, so that whatever ends the
program costs at most what was running. Several processes may write at once.
"""

import hashlib
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Self

from taccl.errors import InputError

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

    Parameters
    ----------
    path
        The file; SQLite puts ``-wal`` and ``-shm`` beside it while it is in use.

    Raises
    ------
    InputError
        When it can't be used, or is no journal.
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

        Raises
        ------
        InputError
            When the file is damaged.
        """
        with self._told():
            row = self._file.execute(
                "SELECT text, digest FROM outcome WHERE key=?", (key,)
            ).fetchone()
        if row is None:
            return None
        text, digest = str(row[0]), str(row[1])
        if _digest(text) != digest:
            raise self._error("holds a result that was changed")
        return text

    def keep(self, key: str, text: str) -> None:
        """Write a result to disk.

        Raises
        ------
        InputError
            When the file can't be written.
        """
        with self._told(), self._transaction():
            self._file.execute(
                "INSERT OR REPLACE INTO outcome VALUES (?, ?, ?)", (key, text, _digest(text))
            )

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


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()

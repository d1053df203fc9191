"""The directory of a library with its index, and beside it a journal of results.

The index is what ``taccl tune`` writes and tells, and ``taccl explain`` reads. A directory appears
whole or not at all, and one run at a time writes it. It is written beside its place, put on disk,
and moved there in one step; one that is there already changes places with the new one
(``renameat2``), or where the system can't do that, is moved aside first. Nothing is ever removed
but what a run has written: a directory is a library only if its index says so, and it is replaced
only while no other file is in it.

The journal holds what is finished, by the hash of everything it depends on, in one SQLite file.
Every result is a transaction of its own, on disk before it counts, so that whatever ends the
program costs at most what was running. Several processes may write at once.
"""

import ctypes
import fcntl
import glob
import hashlib
import json
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
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, StrictBool, StrictFloat, StrictInt, StrictStr

from taccl.errors import InputError
from taccl.files import FileModel, load_model
from taccl.report.text import aligned, number_text
from taccl.tuning.exports import EXPORTS
from taccl.units import counted, format_size

if TYPE_CHECKING:
    from taccl.tuning.session import Tuned

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


Text = Annotated[StrictStr, Field(max_length=4000)]
Count = Annotated[StrictInt, Field(ge=0, le=1 << 62)]
Number = StrictFloat | StrictInt

MAX_ENTRIES = 10_000
"""Entries of each list."""


class LibraryTopology(FileModel):
    """The machine that a library is for."""

    name: Text
    ranks: Count
    servers: Count
    alpha_rule: Text
    profile: Text = "alpha-beta"
    sha256: Text


class LibrarySketch(FileModel):
    """A sketch that candidates were made under."""

    name: Text
    sha256: Text


class LibraryPlan(FileModel):
    """A plan of MSCCL++: the sizes that it is for, in bytes, and multiples of what."""

    name: Text
    file: Text
    in_place: StrictBool
    min_bytes: Count
    max_bytes: Count
    unit_bytes: Count
    protocol: Text
    scratch_chunks: Count
    times_us: dict[str, Number | None]
    sha256: Text


class LibraryRange(FileModel):
    """Sizes that one file serves, or the runtime's own algorithm."""

    min_bytes: Count
    max_bytes: Count
    file: Text | None
    served_by: Literal["file", "nccl", "nothing"]
    why: Text
    engine: Text | None = None
    made_for_bytes: Count | None = None
    chunks: Count | None = None
    batch: bool | None = None
    sketch: Text | None = None
    instances: Count | None = None
    protocol: Text | None = None
    seed: Count | None = None
    effort: Number | None = None
    modes: Annotated[tuple[Text, ...], Field(max_length=2)] = ()
    divisor_bytes: Count | None = None
    safe_up_to_bytes: Count | None = None
    verified_at_bytes: Annotated[tuple[Count, ...], Field(max_length=2)] = ()
    steps: Count | None = None
    threadblocks: Count | None = None
    sha256: Text | None = None
    plans: Annotated[tuple[LibraryPlan, ...], Field(max_length=2)] = ()


class LibrarySize(FileModel):
    """What was found at one size of the run."""

    size_bytes: Count
    file: Text | None
    time_us: Number | None
    bound_us: Number | None
    bound_kind: Text | None
    gap: Number | None
    best_us: Number | None
    over_best: Number | None
    classical: Text | None
    classical_us: Number | None
    over_classical: Number | None
    bound_over_classical: Number | None
    nccl: Text | None
    nccl_us: Number | None


class LibraryFailure(FileModel):
    """A candidate that cost a worker, or met a fault of an engine."""

    candidate: Text
    reason: Text


class LibraryCandidates(FileModel):
    """How many candidates there were."""

    searched: Count
    classical: Count
    programs: Count
    without_program: Count
    failed: Annotated[tuple[LibraryFailure, ...], Field(max_length=MAX_ENTRIES)] = ()


class LibraryCollective(FileModel):
    """Who serves one collective."""

    collective: Text
    call: Text
    ranges: Annotated[tuple[LibraryRange, ...], Field(max_length=MAX_ENTRIES)]
    sizes: Annotated[tuple[LibrarySize, ...], Field(max_length=MAX_ENTRIES)]
    candidates: LibraryCandidates


class LibraryBudget(FileModel):
    """How much was searched: one of the two."""

    candidates: Count | None = None
    time_limit_s: Number | None = None


class LibraryFile(FileModel):
    """The file ``index.json`` of a library."""

    taccl: Literal["library/1"]
    topology: LibraryTopology
    sketches: Annotated[tuple[LibrarySketch, ...], Field(max_length=MAX_ENTRIES)]
    runtime: Text
    protocols: Annotated[tuple[Text, ...], Field(max_length=10)]
    sizes: Annotated[tuple[Count, ...], Field(max_length=MAX_ENTRIES)]
    slack_percent: Count
    budget: LibraryBudget
    seed: Count
    interrupted: StrictBool
    model: Text
    nccl_model: Text | None
    versions: dict[str, Text]
    code_sha256: Text
    collectives: Annotated[tuple[LibraryCollective, ...], Field(max_length=MAX_ENTRIES)]


def as_object(found: "Tuned") -> dict[str, Any]:
    """Return the result of a run as one object: the index, and where it is."""
    return {
        "output": str(found.output),
        "journal": str(beside(found.output, ".journal")),
        "seconds": round(found.seconds, 3),
        "candidates_done": found.candidates,
        "files": sorted(found.texts),
        "index": json.loads(found.texts[INDEX]),
    }


def summary(found: "Tuned") -> str:
    """Return the result of a run for people."""
    index = json.loads(found.texts[INDEX])
    lines = []
    for one in index["collectives"]:
        lines.append(f"{one['collective']}")
        for span in one["ranges"]:
            sizes = f"{format_size(span['min_bytes'])} to {format_size(span['max_bytes'])}"
            what = span["file"] or {"nccl": "NCCL's own"}.get(span["served_by"], "nothing here")
            made = f"{span['protocol']}, {counted(span['chunks'], 'chunk')}" if span["file"] else ""
            lines.append(f"  {sizes:24} {what:44} {made}".rstrip())
        rows = [("size", "time us", "bound us", "gap", "best classical", "us", "ratio", "bound's")]
        rows += [
            (
                format_size(at["size_bytes"]), number_text(at["time_us"], ".6g", "-"),
                number_text(at["bound_us"], ".6g", "-"), number_text(at["gap"], ".1%", "-"),
                at["classical"] or "-", number_text(at["classical_us"], ".6g", "-"),
                number_text(at["over_classical"], ".3f", "-"),
                number_text(at["bound_over_classical"], ".3f", "-"),
            )
            for at in one["sizes"]
        ]  # fmt: skip
        lines += (f"    {line}" for line in aligned(rows))
    programs = sum(name.endswith((".xml", "place.json")) for name in found.texts)
    more = "".join(f", {one.file}" for one in EXPORTS.values() if one.file in found.texts)
    load = f"source {found.output / 'environment.sh'}"
    if "environment.sh" not in found.texts:
        load = f"see {found.output / 'LOADING.md'}"
    lines += [
        f"wrote {found.output}: {programs} programs, {INDEX}, report.html{more}",
        f"load with: {load}",
        f"journal: {beside(found.output, '.journal')} (the same command again is instant)",
    ]
    return "\n".join(lines)


def answer(directory: Path, collective: str, size: int) -> dict[str, Any]:
    """Return which file of the library in a `directory` runs for a call, and why.

    The call is of a `collective`, by its name, and of `size` bytes.

    Raises InputError when there is no library, or it is for other collectives or sizes.
    """
    path = directory / INDEX
    if not path.is_file():
        raise InputError(
            "holds no library", file=str(directory)[:200], fix="write one with taccl tune"
        )
    index = load_model(path, LibraryFile)
    known = [one.collective for one in index.collectives]
    if collective not in known:
        raise InputError(
            f"the library has no {collective}", file=str(path), field="--collective",
            fix=f"use {', '.join(known)}",
        )  # fmt: skip
    own = index.collectives[known.index(collective)]
    one = next((one for one in own.ranges if one.min_bytes <= size <= one.max_bytes), None)
    near = min(
        own.sizes,
        key=lambda one: max(one.size_bytes, size) / max(1, min(one.size_bytes, size)),
        default=None,
    )
    found: dict[str, Any] = {
        "collective": collective, "size_bytes": size, "ranks": index.topology.ranks,
        "runtime": index.runtime, "in_library": one is not None,
    }  # fmt: skip
    if one is None:
        spans = f"{own.ranges[0].min_bytes} to {own.ranges[-1].max_bytes}" if own.ranges else "none"
        why = f"the library covers sizes from {spans} bytes; the runtime's own algorithm runs"
        return {**found, "served_by": "nothing", "file": None, "why": why}
    return {
        **found,
        **one.model_dump(),
        "runs": one.file is not None and size % (one.divisor_bytes or 1) == 0,
        "nearest": near.model_dump() if near else None,
        "candidates": own.candidates.model_dump(),
    }


def answer_text(found: dict[str, Any]) -> str:
    """Return an answer for people."""
    what = found["file"] or {"nccl": "NCCL's own algorithm"}.get(
        found["served_by"], "the runtime's own algorithm"
    )
    lines = [
        f"{found['collective']} of {found['size_bytes']} bytes on {found['ranks']} ranks: {what}"
    ]
    lines.append(f"  why       {found['why']}")
    if found.get("file"):
        lines.append(
            f"  range     {format_size(found['min_bytes'])} to {format_size(found['max_bytes'])},"
            f" {' or '.join(found['modes'])}"
        )
        sketch = f", sketch {found['sketch']}" if found["sketch"] else ""
        lines.append(
            f"  made by   {found['engine']} for {format_size(found['made_for_bytes'])},"
            f" {counted(found['chunks'], 'chunk')} a rank, {found['protocol']},"
            f" {counted(found['instances'], 'instance')}{sketch}"
        )
        if not found["runs"]:
            lines.append(
                f"  but       {found['size_bytes']} bytes are no multiple of"
                f" {found['divisor_bytes']}: the runtime's own algorithm runs"
            )
    near = found.get("nearest")
    if near and near["time_us"] is not None:
        others = []
        if near["bound_us"]:
            others.append(f"bound {near['bound_us']:.6g} us ({near['bound_kind']})")
        if near["classical"]:
            others.append(f"{near['classical']} {near['classical_us']:.6g} us")
        if near["nccl"]:
            told = f"NCCL's model {near['nccl_us']:.6g} us ({near['nccl']}), launch of the kernel"
            below = near["bound_us"] is not None and near["nccl_us"] < near["bound_us"]
            wrong = ", below the bound: its inputs do not fit, and nothing is left to it"
            others.append(f"{told} included{wrong if below else ''}")
        lines.append(
            f"  at {format_size(near['size_bytes'])}  {near['time_us']:.6g} us by replay; "
            + "; ".join(others)
        )
    return "\n".join(lines)

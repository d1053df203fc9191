"""A directory that appears whole or not at all, and that one run at a time writes.

It is written beside its place, put on disk, and moved there in one step; one that is there
already changes places with the new one (``renameat2``), or where the system can't do that, is
moved aside first.
"""

import ctypes
import fcntl
import os
import secrets
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from taccl.errors import InputError

INDEX = "index.json"
"""The file that tells a library from any other directory."""

_AT_CWD, _EXCHANGE = -100, 2
"""``AT_FDCWD`` and ``RENAME_EXCHANGE`` of Linux."""


def check_place(place: Path) -> None:
    """Raise, before any long work, when a directory can't be written there.

    Raises
    ------
    InputError
        When it is a file, or another directory than a library, or its parent can't be written.
    """
    parent = place.absolute().parent
    if not parent.is_dir():
        raise _error(place, "can't be written: there is no such directory", f"create {parent}")
    if not os.access(parent, os.W_OK):
        raise _error(place, "can't be written: permission denied", "choose another place")
    if place.is_symlink() or (place.exists() and not place.is_dir()):
        raise _error(place, "is a file", "name a directory that is to be written")
    if place.is_dir() and any(place.iterdir()) and not (place / INDEX).is_file():
        raise _error(place, "is a directory that was not written by taccl tune", "name another")


@contextmanager
def locked(place: Path) -> Iterator[None]:
    """Keep other runs from a directory meanwhile; the system ends this with the process.

    Raises
    ------
    InputError
        When another run is at it.
    """
    path = beside(place, ".lock")
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise _error(place, f"can't be locked: {(error.strerror or '').lower()}", "") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.read(descriptor, 20).decode("ascii", "replace").strip()
            told = f" (process {owner})" if owner.isdecimal() else ""
            raise _error(
                place, f"is being written by another taccl tune{told}", "wait, or use another -o"
            ) from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        _clear(place)
        yield
    finally:
        os.close(descriptor)


def beside(place: Path, suffix: str) -> Path:
    """Return the path of a file that belongs to a directory and lies beside it."""
    whole = place.absolute()
    return whole.with_name(whole.name + suffix)


def write_directory(place: Path, texts: Mapping[str, str]) -> None:
    """Write files, given by their names within it, as a whole directory.

    Raises
    ------
    InputError
        When that can't be done; what was there is then untouched.
    """
    place = place.absolute()
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
        _put(fresh, place)
        _sync(place.parent)
    except OSError as error:
        raise _error(
            place, f"can't be written: {(error.strerror or str(error)).lower()}",
            "free some space, or write elsewhere",
        ) from None  # fmt: skip
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _put(fresh: Path, place: Path) -> None:
    """Move a directory to its place; what was there is then where the new one was."""
    if not place.exists():
        fresh.rename(place)
        return
    if _exchange(fresh, place):
        return
    old = _aside(place)
    place.rename(old)
    try:
        fresh.rename(place)
    except OSError:
        old.rename(place)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Let two directories change places, if the system can do that in one step."""
    if sys.platform != "linux":
        return False
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    paths = (os.fsencode(one), os.fsencode(other))
    return bool(rename(_AT_CWD, paths[0], _AT_CWD, paths[1], _EXCHANGE) == 0)


def _aside(place: Path) -> Path:
    return place.with_name(f".{place.name}.old")


def _clear(place: Path) -> None:
    """Undo what a run that was killed has left: nobody else is at it now."""
    place = place.absolute()
    old = _aside(place)
    if old.is_dir() and not place.exists():
        old.rename(place)
    shutil.rmtree(old, ignore_errors=True)
    for left in place.parent.glob(f".{place.name}.????????????.tmp"):
        shutil.rmtree(left, ignore_errors=True)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _error(place: Path, problem: str, fix: str) -> InputError:
    return InputError(problem, file=str(place)[:200], field="-o", fix=fix or None)

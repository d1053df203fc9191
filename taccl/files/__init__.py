"""Read YAML and JSON files into models; write files whole or not at all: no half-written output."""

import errno
import os
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from taccl.errors import InputError
from taccl.files.model import FileModel, fit_model, load_model
from taccl.files.read import (
    MAX_BYTES,
    MAX_NODES,
    Document,
    field_name,
    parse_document,
    plain_text_is_safe,
    read_bytes,
    read_document,
    read_text,
    shown,
)

__all__ = [
    "MAX_BYTES", "MAX_NODES", "Document", "FileModel", "check_apart", "check_output",
    "check_outputs", "field_name", "fit_model", "load_model", "parse_document",
    "plain_text_is_safe", "read_bytes", "read_document", "read_text", "shown", "write_all_atomic",
    "write_atomic",
]  # fmt: skip


_FIXES = {
    errno.ENOENT: "create the directory first",
    errno.ENOTDIR: "name a file in a directory",
    errno.EACCES: "choose a place you may write to",
    errno.EPERM: "choose a place you may write to",
    errno.EROFS: "choose a place you may write to",
    errno.ENOSPC: "free some space, or write elsewhere",
    errno.EDQUOT: "free some space, or write elsewhere",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ENXIO: "start what reads the pipe first",
    errno.EISDIR: "name a file in it",
}


def write_atomic(path: str | Path, text: str, *, field: str = "output") -> None:
    """Write ``text`` to the file at ``path`` by way of a temporary file beside it.

    What exists is replaced only when everything is on disk; a device or pipe is written to. Errors
    name the option ``field``.

    Raises InputError when the file can't be written; what existed is then untouched.
    """
    write_all_atomic({path: text}, field=field)


def write_all_atomic(texts: Mapping[str | Path, str | bytes], *, field: str = "output") -> None:
    """Write several files, ``texts`` by path: all temporary files first, then all the replacing.

    Errors name the option ``field``.

    Raises InputError when one can't be written; up to the replacing nothing that existed is
    touched.
    """
    pending: list[tuple[Path, Path, str]] = []
    try:
        devices = [path for path in texts if _is_device(str(path), field)]
        for path, text in texts.items():
            if path not in devices:
                _write_beside(str(path), text, field, pending)
        for path in devices:
            with _refusing(str(path), field):
                # Without O_NONBLOCK, opening a pipe that nobody reads waits for ever.
                descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                os.set_blocking(descriptor, True)
                with os.fdopen(descriptor, "wb") as stream:
                    stream.write(_encoded(texts[path]))
        while pending:
            temporary, target, file = pending[0]
            with _refusing(file, field):
                temporary.replace(target)
            pending.pop(0)
    finally:
        for temporary, _, _ in pending:
            temporary.unlink(missing_ok=True)


def check_output(path: str | Path, *, field: str = "output") -> None:
    """Raise, before any long work, when the file at ``path`` can't be written; write nothing.

    Errors name the option ``field``.

    Raises InputError when it is a directory, its directory is missing, or either may not be
    written.
    """
    if _is_device(str(path), field):
        return
    target = Path(path)
    with _refusing(str(path), field):
        place = target if target.exists() else target.resolve().parent
        if not place.exists():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        if not os.access(place, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def check_apart(output: str | Path, others: Iterable[str | Path], *, field: str = "output") -> None:
    """Raise when ``output`` is one of ``others``, which are read or written for something else.

    All are paths; errors name the option ``field``.

    Raises InputError with the name of both.
    """
    for other in others:
        one, two = Path(output), Path(other)
        try:
            same = (not one.exists() or one.is_file()) and one.resolve() == two.resolve()
        except (OSError, ValueError, RuntimeError):
            # Not a file (links in a circle are a RuntimeError): reading or writing it says why.
            continue
        if same:
            raise InputError(
                f"is the same file as {str(other)[:200]}", file=str(output)[:200], field=field,
                fix="choose another name",
            )  # fmt: skip


def check_outputs(
    outputs: Iterable[tuple[str, Path | None]], inputs: Iterable[str | Path] = ()
) -> None:
    """Raise, before any long work, when a file can't be written, or is read or written twice.

    Of `outputs` come the option that errors name, and the path, None: it is not given; `inputs` are
    paths that are read.

    Raises InputError as :func:`check_output` and :func:`check_apart` do.
    """
    others = list(inputs)
    for field, path in outputs:
        if path is not None:
            check_output(path, field=field)
            check_apart(path, others, field=field)
            others.append(path)


def _is_device(file: str, field: str) -> bool:
    """Tell whether a name is that of a device or pipe; refuse names of what is no file."""
    if file == "-":  # Whoever writes it means stdout, which other things are printed to.
        raise InputError(
            "- is no file name, and this can't go to stdout", field=field,
            fix="name a file; ./- is one that is called so",
        )  # fmt: skip
    with _refusing(file, field):
        try:
            mode = Path(file).stat().st_mode
        except FileNotFoundError:
            return False
    if stat.S_ISDIR(mode):
        raise InputError("is a directory", file=file, field=field, fix="name a file in it")
    return not stat.S_ISREG(mode) or file.startswith(("/dev/", "/proc/"))


def _encoded(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()


def _write_beside(
    file: str, text: str | bytes, field: str, pending: list[tuple[Path, Path, str]]
) -> None:
    """Write a temporary file in the target's directory and append it to ``pending``."""
    with _refusing(file, field):
        target = Path(file).resolve()
        mode = target.stat().st_mode if target.exists() else None
        if mode is not None and not os.access(target, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if file.endswith("/"):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        temporary = target.parent / f".taccl-{secrets.token_hex(8)}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, 0o666)
        pending.append((temporary, target, file))
        with os.fdopen(descriptor, "wb") as stream:
            if mode is not None:
                os.fchmod(descriptor, stat.S_IMODE(mode))
            stream.write(_encoded(text))
            stream.flush()
            os.fsync(descriptor)


@contextmanager
def _refusing(file: str, field: str) -> Iterator[None]:
    """Say of what the system refuses inside which file it is, why, and what helps."""
    try:
        yield
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        fix = _FIXES.get(error.errno or 0, "check the path")
        raise InputError(
            f"can't be written: {reason}", file=file[:200], field=field, fix=fix
        ) from None
    except ValueError as error:
        raise InputError(
            f"is no file name: {error}", file=ascii(file[:200]), field=field, fix="check the path"
        ) from None

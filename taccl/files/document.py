"""Files as documents: bounded reading, and errors that know their file, line and field."""

import errno
import json
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from taccl.errors import InputError
from taccl.files.parse import RefusedError, line_of, parse

MAX_BYTES = 64 << 20
MAX_NODES = 2_000_000
MAX_LOOKED_THROUGH = 4 << 20
"""Characters of a file in which the line of a field is looked up: about two seconds."""

FieldPath = Sequence[str | int]


@dataclass(frozen=True, eq=False)
class Document:
    """What a file says.

    Parameters
    ----------
    value
        Mappings, lists and scalars; parts that an alias repeats are shared.
    file
        How messages call it.
    text
        The text, for looking up lines; empty when there is none.
    """

    value: object
    file: str | None
    text: str = ""

    def line(self, path: FieldPath) -> int | None:
        """Return the line of a field, or of the nearest field around it; None in huge files."""
        return line_of(self.text, path) if 0 < len(self.text) <= MAX_LOOKED_THROUGH else None

    def error(self, problem: str, path: FieldPath, fix: str) -> InputError:
        """Return an error that names file, line and field."""
        return InputError(
            problem, file=self.file, line=self.line(path), field=field_name(path) or None, fix=fix
        )


def field_name(path: FieldPath) -> str:
    """Return a path as messages write it: ``edges[3].bandwidth``."""
    name = ""
    for step in path:
        if isinstance(step, int):
            name += f"[{step}]"
        else:
            short = step if len(step) <= 40 else f"{step[:40]}..."
            plain = short.isprintable()
            name += f"{'.' if name else ''}{short if plain else ascii(short)}"
    return name


def read_bytes(path: str | Path, max_bytes: int = MAX_BYTES) -> bytes:
    """Return the content of a regular file of at most ``max_bytes``.

    Raises
    ------
    InputError
        When the path is no such file or can't be read.
    """
    file = str(path)
    if not file:
        raise InputError("is no file name", file="''", fix="check the path")
    try:
        found = Path(path).stat()
        _check_readable(file, found, max_bytes)
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as stream:
            content = stream.read(max_bytes + 1)
    except (OSError, ValueError) as error:
        raise _read_error(file, error) from None
    if len(content) > max_bytes:
        raise _too_large(file, max_bytes)
    return content


def read_text(path: str | Path, max_bytes: int = MAX_BYTES) -> str:
    """Return the text of a regular UTF-8 file of at most ``max_bytes``.

    Raises
    ------
    InputError
        When the path is no such file, or can't be read.
    """
    file = str(path)
    content = read_bytes(path, max_bytes)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"is not UTF-8: byte {content[error.start]:#04x} at position {error.start}",
            file=file, line=line, fix="save the file as UTF-8",
        ) from None  # fmt: skip


def _check_readable(file: str, found: os.stat_result, max_bytes: int) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise InputError("is a directory", file=file, fix="name a file in it")
    if not stat.S_ISREG(found.st_mode):
        raise InputError(
            "is not a regular file (a device, pipe or socket)", file=file, fix="name a file"
        )
    if found.st_size > max_bytes:
        raise _too_large(file, max_bytes)


def _too_large(file: str, max_bytes: int) -> InputError:
    return InputError(f"is larger than {max_bytes >> 20} MiB", file=file, fix="give a smaller file")


def _read_error(file: str, error: OSError | ValueError) -> InputError:
    if isinstance(error, FileNotFoundError):
        return InputError("there is no such file", file=file, fix="check the path")
    if isinstance(error, OSError):
        fix = "give yourself read permission" if error.errno == errno.EACCES else "check the path"
        reason = (error.strerror or str(error)).lower()
        return InputError(f"can't be read: {reason}", file=file[:200], fix=fix)
    return InputError(f"is no file name: {error}", file=ascii(file[:200]), fix="check the path")


def read_document(path: str | Path, max_nodes: int = MAX_NODES) -> Document:
    """Read a YAML or JSON file, told apart by content.

    Raises
    ------
    InputError
        When the file can't be read or parsed, or is beyond a limit; names file and line.
    """
    return parse_document(read_text(path), str(path), max_nodes)


def parse_document(text: str, file: str | None, max_nodes: int = MAX_NODES) -> Document:
    """Parse YAML or JSON text; see :func:`read_document`."""
    try:
        value = parse(text, max_nodes)
    except RefusedError as error:
        field = field_name(error.path) or None
        raise InputError(
            str(error), file=file, line=error.line, field=field, fix=error.fix
        ) from None
    except json.JSONDecodeError as error:
        raise InputError(
            f"is not JSON: {error.msg.lower()} (column {error.colno})",
            file=file, line=error.lineno, fix="correct the JSON there",
        ) from None  # fmt: skip
    except yaml.YAMLError as error:
        raise _yaml_error(error, file, text) from None
    if value is None:
        fix = "start it with taccl: and its format, such as topology/1, sketch/1 or scenario/1"
        raise InputError("is empty", file=file, fix=fix)
    return Document(value, file, text)


def _yaml_error(error: yaml.YAMLError, file: str | None, text: str) -> InputError:
    mark = getattr(error, "problem_mark", None)
    reason = getattr(error, "problem", None) or getattr(error, "reason", None) or "can't be parsed"
    lines = text.split("\n", mark.line + 1) if mark is not None else []
    tab = mark is not None and "\t" in lines[min(mark.line, len(lines) - 1)]
    return InputError(
        f"is not YAML: {reason}",
        file=file,
        line=mark.line + 1 if mark is not None else None,
        fix="indent with spaces, not with tabs" if tab else "correct the YAML there",
    )

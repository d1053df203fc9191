"""Files as documents: bounded reading, and errors that know their file, line and field.

YAML or JSON text to plain values, within limits that hostile text can't get round.

The kind is told by content. YAML is composed from its event stream, so that depth, size and the
*expanded* size of aliases are known before anything is built; plain words follow the YAML 1.2
core schema (``yes`` and ``1:30`` are text). Lines of fields are looked up only for errors.
"""

import errno
import json
import math
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from taccl.errors import InputError

MAX_DEPTH = 64
MAX_DIGITS = 40
_FEWER_DIGITS = f"use at most {MAX_DIGITS} digits"

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_STRING_TAGS = (None, "!", "tag:yaml.org,2002:str")
_LOOKS_LIKE_JSON = re.compile(r"\s*(?:\{\s*[\"}]|\[\s*[\"\[{\]\d-])")
_INT = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_WORDS: dict[str, object] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
}  # fmt: skip


class RefusedError(ValueError):
    """Text that parses but is not accepted; becomes an InputError with its place."""

    def __init__(self, problem: str, fix: str, line: int | None = None) -> None:
        super().__init__(problem)
        self.fix = fix
        self.line = line
        self.path: tuple[str | int, ...] = ()


def shown(value: object) -> str:
    """Return a value as messages show it: short, on one line."""
    if isinstance(value, dict):
        return f"a mapping of {len(value)} fields"
    if isinstance(value, (list, tuple)):
        return f"a list of {len(value)}"
    if value is None:
        return "nothing"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**MAX_DIGITS:
        return "a number with too many digits"
    text = ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def parse(text: str, max_nodes: int) -> object:
    """Return the value that YAML or JSON text stands for.

    Parameters
    ----------
    text
        YAML or JSON.
    max_nodes
        Values that the text may have.

    Raises
    ------
    RefusedError, json.JSONDecodeError, yaml.YAMLError
        When the text is beyond a limit or can't be parsed.
    """
    if not _LOOKS_LIKE_JSON.match(text):
        return _parse_yaml(text, max_nodes)
    try:
        return _parse_json(text, max_nodes)
    except json.JSONDecodeError as error:
        try:
            return _parse_yaml(text, max_nodes)
        except yaml.YAMLError:
            raise error from None


def _too_many(max_nodes: int, line: int | None) -> RefusedError:
    return RefusedError(
        f"holds more than {max_nodes} values (each use of an alias counts in full)",
        "give a smaller file, without nested aliases", line,
    )  # fmt: skip


def _too_deep(line: int | None) -> RefusedError:
    return RefusedError(f"is nested deeper than {MAX_DEPTH} levels", "nest less deeply", line)


def _parse_json(text: str, max_nodes: int) -> object:
    if sum(text.count(mark) for mark in ",[{") > max_nodes:
        raise _too_many(max_nodes, None)
    try:
        value = json.loads(
            text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite
        )
    except RecursionError:
        raise _too_deep(None) from None
    except json.JSONDecodeError:
        raise
    except ValueError as error:
        if isinstance(error, RefusedError):
            raise
        raise RefusedError("holds a number with too many digits", _FEWER_DIGITS) from None
    layer = [value]
    for _ in range(MAX_DEPTH):
        layer = [child for part in layer for child in _containers(part)]
    if layer:
        raise _too_deep(None)
    return value


def _containers(value: object) -> Iterator[object]:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return (part for part in parts if isinstance(part, (dict, list)))


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise RefusedError(f"field {shown(twice)} is given twice", "keep one of the two")
    return result


def _no_constant(text: str) -> object:
    raise RefusedError(f"{text} is not accepted", "write a finite number")


def _finite(text: str, line: int | None = None) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise RefusedError(f"{shown(text)} is too large a number", "write a finite number", line)
    return value


@dataclass(slots=True)
class _Frame:
    """A mapping or list that is being composed; ``size`` counts its values, aliases in full."""

    container: dict[str | int, object] | list[object]
    anchor: str | None
    size: int = 1
    key: str | int | None = None

    def place(self) -> str | int:
        """Return the field that is being composed."""
        if isinstance(self.container, list):
            return len(self.container)
        return "" if self.key is None else str(self.key)


class _Composer:
    """Builds values from events, one at a time, and refuses what is beyond the limits."""

    def __init__(self, max_nodes: int) -> None:
        self.max_nodes = max_nodes
        self.value: object = None
        self.documents = 0
        self.total = 0
        self.frames: list[_Frame] = []
        self.anchors: dict[str, tuple[object, int]] = {}

    def read(self, events: Iterator[yaml.Event]) -> object:
        """Return the value that the events describe."""
        try:
            for event in events:
                self._take(event)
        except RefusedError as error:
            path = tuple(frame.place() for frame in self.frames)
            error.path = tuple(step for step in path if step != "")[:8]
            raise
        return self.value

    def _take(self, event: yaml.Event) -> None:
        line = _line(event)
        if isinstance(event, yaml.ScalarEvent):
            self._add(_scalar(event, line), 1, event.anchor, line)
        elif isinstance(event, (yaml.SequenceStartEvent, yaml.MappingStartEvent)):
            self._open(event, line)
        elif isinstance(event, (yaml.SequenceEndEvent, yaml.MappingEndEvent)):
            frame = self.frames.pop()
            self._add(frame.container, frame.size, frame.anchor, line)
        elif isinstance(event, yaml.AliasEvent):
            self._alias(event.anchor or "", line)
        elif isinstance(event, yaml.DocumentStartEvent):
            self.documents += 1
            if self.documents > 1:
                raise RefusedError("holds several documents", "remove the --- line", line)

    def _open(self, event: yaml.SequenceStartEvent | yaml.MappingStartEvent, line: int) -> None:
        _check_tag(event.tag, line, ("tag:yaml.org,2002:seq", "tag:yaml.org,2002:map", None, "!"))
        if len(self.frames) >= MAX_DEPTH:
            raise _too_deep(line)
        mapping = isinstance(event, yaml.MappingStartEvent)
        self.frames.append(_Frame({} if mapping else [], event.anchor))

    def _alias(self, anchor: str, line: int) -> None:
        if anchor not in self.anchors:
            raise RefusedError(
                f"alias *{anchor[:40]} stands inside its own anchor, or before it",
                "define the anchor before it is used", line,
            )  # fmt: skip
        value, size = self.anchors[anchor]
        self.total += size - 1
        self._add(value, size, None, line)

    def _add(self, value: object, size: int, anchor: str | None, line: int) -> None:
        self.total += 1
        if size > self.max_nodes or self.total > self.max_nodes:
            raise _too_many(self.max_nodes, line)
        if anchor is not None:
            self.anchors[anchor] = (value, size)
        if not self.frames:
            self.value = value
            return
        frame = self.frames[-1]
        frame.size += size
        if isinstance(frame.container, list):
            frame.container.append(value)
        elif frame.key is None:
            frame.key = _key(value, frame.container, line)
        else:
            frame.container[frame.key] = value
            frame.key = None


def _parse_yaml(text: str, max_nodes: int) -> object:
    return _Composer(max_nodes).read(yaml.parse(text, Loader=_LOADER))


def _key(value: object, mapping: dict[str | int, object], line: int) -> str | int:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise RefusedError(
            f"a field name should be text or a whole number, got {shown(value)}",
            "put the name in quotes", line,
        )  # fmt: skip
    other = int(value) if isinstance(value, str) and _INT.fullmatch(value) else str(value)
    if value in mapping or other in mapping:
        raise RefusedError(f"field {shown(value)} is given twice", "keep one of the two", line)
    return value


def _check_tag(tag: str | None, line: int, allowed: Sequence[str | None]) -> None:
    if tag not in allowed:
        raise RefusedError(f"tag {shown(tag)} is not accepted", "remove the tag", line)


def _scalar(event: yaml.ScalarEvent, line: int) -> object:
    _check_tag(event.tag, line, _STRING_TAGS)
    text: str = event.value
    if event.tag is not None or not event.implicit[0]:
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _NOT_FINITE.fullmatch(text):
        raise RefusedError(f"{text} is not accepted", "write a finite number", line)
    if _INT.fullmatch(text):
        if len(text) > MAX_DIGITS:
            raise RefusedError("holds a number with too many digits", _FEWER_DIGITS, line)
        return int(text)
    return _finite(text, line) if _FLOAT.fullmatch(text) else text


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark is not None else 1


def plain_text_is_safe(text: str) -> bool:
    """Tell whether a text written without quotes is read back as that text."""
    return text not in _WORDS and not (_FLOAT.fullmatch(text) or _NOT_FINITE.fullmatch(text))


def line_of(text: str, path: Sequence[str | int]) -> int | None:
    """Return the line where the longest known part of a path starts, by one pass over events.

    Parameters
    ----------
    text
        YAML or JSON.
    path
        Keys and positions, from the top.
    """
    best, depth = None, 0
    here: list[list[object]] = []
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            if isinstance(event, (yaml.SequenceEndEvent, yaml.MappingEndEvent)):
                here.pop()
                _step(here)
            elif isinstance(event, yaml.NodeEvent):
                is_key = bool(here) and here[-1][0] == "key"
                if is_key:
                    here[-1][1] = getattr(event, "value", None)
                matched = _matched(here, path)
                if matched > depth or (best is None and not here):
                    best, depth = _line(event), matched
                if depth == len(path):
                    return best
                if isinstance(event, (yaml.SequenceStartEvent, yaml.MappingStartEvent)):
                    mapping = isinstance(event, yaml.MappingStartEvent)
                    here.append(["key", None] if mapping else ["item", 0])
                else:
                    _step(here)
    except yaml.YAMLError:
        return None
    return best


def _matched(here: Sequence[Sequence[object]], path: Sequence[str | int]) -> int:
    """Return how much of ``path`` the present place matches; 0 unless all of the place does."""
    if len(here) > len(path):
        return 0
    same = all(str(at[1]) == str(step) for at, step in zip(here, path, strict=False))
    return len(here) if same else 0


def _step(here: list[list[object]]) -> None:
    """Move to the next place of the innermost container."""
    if not here:
        return
    frame = here[-1]
    if frame[0] == "item":
        frame[1] = int(str(frame[1])) + 1
    else:
        frame[0] = "value" if frame[0] == "key" else "key"


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

    Parameters
    ----------
    path
        Of the file.

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

    Parameters
    ----------
    path
        Of the file.

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

    Parameters
    ----------
    path
        Of the file.
    max_nodes
        Values that the file may have.

    Raises
    ------
    InputError
        When the file can't be read or parsed, or is beyond a limit; names file and line.
    """
    return parse_document(read_text(path), str(path), max_nodes)


def parse_document(text: str, file: str | None, max_nodes: int = MAX_NODES) -> Document:
    """Parse YAML or JSON text; see :func:`read_document`.

    Parameters
    ----------
    text
        YAML or JSON.
    file
        Its name, for errors.
    max_nodes
        Values that the text may have.
    """
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

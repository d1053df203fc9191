"""YAML and JSON files as documents: bounded reading, and errors that know file, line and field.

Text becomes plain values within limits that hostile text can't get round. The kind is told by
content. YAML is composed from its event stream, so that depth, size and the *expanded* size of
aliases are known before anything is built; plain words follow the YAML 1.2 core schema (``yes`` and
``1:30`` are text). Lines of fields are looked up only for errors.
"""

import errno
import json
import math
import os
import re
import stat
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from taccl.errors import InputError, TacclWarning

MAX_DEPTH = 64
MAX_DIGITS = 40
_FEWER_DIGITS = f"use at most {MAX_DIGITS} digits"

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_STRING_TAGS = (None, "!", "tag:yaml.org,2002:str")
_CONTAINER_TAGS = (None, "!", "tag:yaml.org,2002:seq", "tag:yaml.org,2002:map")
_LOOKS_LIKE_JSON = re.compile(r"\s*(?:\{\s*[\"}]|\[\s*[\"\[{\]\d-])")
_INT = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_WORDS: dict[str, object] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
}  # fmt: skip


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


def warn_ignored(file: str | None, names: Sequence[str]) -> None:
    """Warn once of all `names` in a `file` that nobody reads; the first eight are told."""
    if names:
        more = f" and {len(names) - 8} more" if len(names) > 8 else ""
        warnings.warn(f"{file}: ignored {', '.join(names[:8])}{more}", TacclWarning, stacklevel=4)


def _refused(problem: str, fix: str, line: int | None = None) -> InputError:
    """Return the error of text that parses but is not accepted."""
    return InputError(problem, line=line, fix=fix)


def _too_many(max_nodes: int, line: int | None) -> InputError:
    return _refused(
        f"holds more than {max_nodes} values (each use of an alias counts in full)",
        "give a smaller file, without nested aliases", line,
    )  # fmt: skip


def _too_deep(line: int | None) -> InputError:
    return _refused(f"is nested deeper than {MAX_DEPTH} levels", "nest less deeply", line)


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
    except ValueError:
        raise _refused("holds a number with too many digits", _FEWER_DIGITS) from None
    layer = [value]
    for _ in range(MAX_DEPTH):
        parts = (part.values() if isinstance(part, dict) else part for part in layer)
        layer = [one for part in parts for one in part if isinstance(one, (dict, list))]
    if layer:
        raise _too_deep(None)
    return value


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise _refused(f"field {shown(twice)} is given twice", "keep one of the two")
    return result


def _no_constant(text: str) -> object:
    raise _refused(f"{text} is not accepted", "write a finite number")


def _finite(text: str, line: int | None = None) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _refused(f"{shown(text)} is too large a number", "write a finite number", line)
    return value


class _Composer:
    """Builds values from the events of YAML text, and refuses what is beyond the limits.

    ``total`` counts values, and ``anchors`` have a value and how many it holds: aliases in full.
    ``path`` leads to what is being composed; what belongs to a key has an empty step.
    """

    def __init__(self, text: str, max_nodes: int) -> None:
        self.events: Iterator[yaml.Event] = iter(yaml.parse(text, Loader=_LOADER))
        self.max_nodes = max_nodes
        self.total = 0
        self.path: list[str | int] = []
        self.anchors: dict[str, tuple[object, int]] = {}

    def read(self) -> object:
        """Return the value of the only document."""
        value, documents = None, 0
        for event in self.events:
            if isinstance(event, yaml.NodeEvent):
                value, _, _ = self._compose(event)
            elif isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    fix, line = "remove the --- line", _line(event)
                    raise _refused("holds several documents", fix, line)
        return value

    def _compose(self, event: yaml.Event) -> tuple[object, int, int]:
        """Return the value that begins with an event, how many it holds, and its last line."""
        value: object
        line, size, anchor = _line(event), 1, getattr(event, "anchor", None)
        if isinstance(event, yaml.ScalarEvent):
            value = _scalar(event, line)
        elif isinstance(event, yaml.AliasEvent):
            if anchor not in self.anchors:
                raise _refused(
                    f"alias *{(anchor or '')[:40]} stands inside its own anchor, or before it",
                    "define the anchor before it is used", line,
                )  # fmt: skip
            value, size = self.anchors[anchor]
            self.total += size - 1
        else:
            _check_tag(getattr(event, "tag", None), line, _CONTAINER_TAGS)
            if len(self.path) >= MAX_DEPTH:
                raise _too_deep(line)
            mapping = isinstance(event, yaml.MappingStartEvent)
            value, size, line = self._mapping() if mapping else self._list()
        self.total += 1
        if size > self.max_nodes or self.total > self.max_nodes:
            raise _too_many(self.max_nodes, line)
        if anchor is not None:
            self.anchors[anchor] = (value, size)
        return value, size, line

    def _list(self) -> tuple[object, int, int]:
        items: list[object] = []
        total = 1
        while isinstance(event := next(self.events), yaml.NodeEvent):
            self.path.append(len(items))
            value, size, _ = self._compose(event)
            self.path.pop()
            items.append(value)
            total += size
        return items, total, _line(event)

    def _mapping(self) -> tuple[object, int, int]:
        fields: dict[str | int, object] = {}
        total = 1
        while isinstance(event := next(self.events), yaml.NodeEvent):
            self.path.append("")
            key, size, line = self._compose(event)
            self.path.pop()
            if isinstance(key, bool) or not isinstance(key, (str, int)):
                raise _refused(
                    f"a field name should be text or a whole number, got {shown(key)}",
                    "put the name in quotes", line,
                )  # fmt: skip
            other = int(key) if isinstance(key, str) and _INT.fullmatch(key) else str(key)
            if key in fields or other in fields:
                raise _refused(f"field {shown(key)} is given twice", "keep one of the two", line)
            self.path.append(str(key))
            fields[key], more, _ = self._compose(next(self.events))
            self.path.pop()
            total += size + more
        return fields, total, _line(event)


def _check_tag(tag: str | None, line: int, allowed: Sequence[str | None]) -> None:
    if tag not in allowed:
        raise _refused(f"tag {shown(tag)} is not accepted", "remove the tag", line)


def _scalar(event: yaml.ScalarEvent, line: int) -> object:
    _check_tag(event.tag, line, _STRING_TAGS)
    text: str = event.value
    if event.tag is not None or not event.implicit[0]:
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _NOT_FINITE.fullmatch(text):
        raise _refused(f"{text} is not accepted", "write a finite number", line)
    if _INT.fullmatch(text):
        if len(text) > MAX_DIGITS:
            raise _refused("holds a number with too many digits", _FEWER_DIGITS, line)
        return int(text)
    return _finite(text, line) if _FLOAT.fullmatch(text) else text


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark is not None else 1


def plain_text_is_safe(text: str) -> bool:
    """Tell whether a text written without quotes is read back as that text."""
    return text not in _WORDS and not (_FLOAT.fullmatch(text) or _NOT_FINITE.fullmatch(text))


def line_of(text: str, path: Sequence[str | int]) -> int | None:
    """Return the line where the longest known part of ``path`` starts in YAML or JSON ``text``.

    The path has keys and positions, from the top. It takes one pass over events.
    """
    best = None
    try:
        events: Iterator[yaml.Event] = iter(yaml.parse(text, Loader=_LOADER))
        event = next(events)
        while not isinstance(event, yaml.NodeEvent):
            event = next(events)
        best = _line(event)
        for step in path:
            if not isinstance(event, yaml.CollectionStartEvent):
                break
            mapping, number = isinstance(event, yaml.MappingStartEvent), 0
            while isinstance(event := next(events), yaml.NodeEvent):
                if str(getattr(event, "value", None) if mapping else number) == str(step):
                    best = _line(event)
                    event = next(events) if mapping else event
                    break
                _skip(event, events)
                if mapping:
                    _skip(next(events), events)
                number += 1
    except (yaml.YAMLError, StopIteration):
        return None
    return best


def _skip(event: yaml.Event, events: Iterator[yaml.Event]) -> None:
    """Go to the end of the value that begins with an event."""
    depth = int(isinstance(event, yaml.CollectionStartEvent))
    while depth:
        event = next(events)
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)


MAX_BYTES = 64 << 20
MAX_NODES = 2_000_000
MAX_LOOKED_THROUGH = 4 << 20
"""Characters of a file in which the line of a field is looked up: about two seconds."""

FieldPath = Sequence[str | int]


@dataclass(frozen=True, eq=False)
class Document:
    """What a file says: mappings, lists and scalars; parts that an alias repeats are shared.

    Messages call it `file`; in its `text` lines are looked up, empty when there is none.
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
    """Return the content of the regular file at ``path``, of at most ``max_bytes``.

    Raises InputError when the path is no such file or can't be read.
    """
    file = str(path)
    if not file:
        raise InputError("is no file name", file="''", fix="check the path")
    too_large = InputError(
        f"is larger than {max_bytes >> 20} MiB", file=file, fix="give a smaller file"
    )
    try:
        found = Path(path).stat()
        if stat.S_ISDIR(found.st_mode):
            raise InputError("is a directory", file=file, fix="name a file in it")
        if not stat.S_ISREG(found.st_mode):
            raise InputError(
                "is not a regular file (a device, pipe or socket)", file=file, fix="name a file"
            )
        if found.st_size > max_bytes:
            raise too_large
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as stream:
            content = stream.read(max_bytes + 1)
    except FileNotFoundError:
        raise InputError("there is no such file", file=file, fix="check the path") from None
    except OSError as error:
        fix = "give yourself read permission" if error.errno == errno.EACCES else "check the path"
        reason = (error.strerror or str(error)).lower()
        raise InputError(f"can't be read: {reason}", file=file[:200], fix=fix) from None
    except ValueError as error:
        raise InputError(
            f"is no file name: {error}", file=ascii(file[:200]), fix="check the path"
        ) from None
    if len(content) > max_bytes:
        raise too_large
    return content


def read_text(path: str | Path, max_bytes: int = MAX_BYTES) -> str:
    """Return the text of the regular UTF-8 file at ``path``, of at most ``max_bytes``.

    Raises InputError when the path is no such file, or can't be read.
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


def read_document(path: str | Path, max_nodes: int = MAX_NODES) -> Document:
    """Read the YAML or JSON file at ``path`` of at most ``max_nodes`` values.

    The two are told apart by content.

    Raises InputError when the file can't be read or parsed, or is beyond a limit; names file and
    line.
    """
    return parse_document(read_text(path), str(path), max_nodes)


def parse_document(text: str, file: str | None, max_nodes: int = MAX_NODES) -> Document:
    """Parse YAML or JSON ``text`` of at most ``max_nodes`` values, which errors say is of ``file``.

    Raises InputError when the text can't be parsed, or is beyond a limit.
    """
    composer = _Composer(text, max_nodes)
    try:
        try:
            json_like = _LOOKS_LIKE_JSON.match(text)
            value = _parse_json(text, max_nodes) if json_like else composer.read()
        except json.JSONDecodeError as error:
            try:
                value = composer.read()
            except yaml.YAMLError:
                raise error from None
    except InputError as error:
        error.file = file
        error.field = field_name([step for step in composer.path if step != ""][:8]) or None
        raise
    except json.JSONDecodeError as error:
        raise InputError(
            f"is not JSON: {error.msg.lower()} (column {error.colno})",
            file=file, line=error.lineno, fix="correct the JSON there",
        ) from None  # fmt: skip
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        reason = getattr(error, "problem", None) or getattr(error, "reason", None)
        reason = reason or "can't be parsed"
        lines = text.split("\n", mark.line + 1) if mark is not None else []
        tab = mark is not None and "\t" in lines[min(mark.line, len(lines) - 1)]
        raise InputError(
            f"is not YAML: {reason}",
            file=file, line=mark.line + 1 if mark is not None else None,
            fix="indent with spaces, not with tabs" if tab else "correct the YAML there",
        ) from None  # fmt: skip
    if value is None:
        fix = "start it with taccl: and its format, such as topology/1, sketch/1 or scenario/1"
        raise InputError("is empty", file=file, fix=fix)
    return Document(value, file, text)

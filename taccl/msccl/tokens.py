"""The runtimes' XML reader, byte by byte: which text it takes, and what it makes of it.

It is no XML parser. One token is what stands before the next ``=``, space, ``>``, ``/`` or line
end; an attribute follows a space and nothing else; a value ends at the next double quote. The
functions are ``xmlGetToken``, ``xmlGetValue``, ``xmlSkipComment`` and ``xmlGetNode`` of msccl
(``src/graph/xml.cc``) and the ``mscclXml`` ones of executor and rccl
(``src/misc/msccl/msccl_parser.cc``), which are alike. Text is bytes as Latin-1 here: one character
a byte.

Numbers, too, are as the runtimes read them: C's ``strtol`` and ``strtoll`` with base 0, never an
error. ``010`` is 8, ``0x10`` is 16, ``1e6`` is 1 and ``abc`` is 0 (``xmlGetAttrInt``). What does
not fit 64 bits is clamped, what does not fit an ``int`` loses its upper bits.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

COMMON: Mapping[str, int] = MappingProxyType({str(number): number for number in range(-1, 4096)})
"""Most numbers of a program, for speed."""

_NUMBER = re.compile(
    r"[ \t\n\r\v\f]*([+-]?)(?:0[xX]([0-9a-fA-F]+)|0([0-7]*)|([1-9][0-9]*))", re.ASCII
)
_MAX_DIGITS = 20


def to_int64(text: str) -> int:
    """Return what ``strtoll`` makes of a text."""
    common = COMMON.get(text)
    if common is not None:
        return common
    found = _NUMBER.match(text)
    if found is None:
        return 0
    sign, hexadecimal, octal, decimal = found.groups()
    digits, base = (
        (hexadecimal, 16) if hexadecimal else (decimal, 10) if decimal else (octal or "0", 8)
    )
    digits = digits.lstrip("0") or "0"
    # More digits than 64 bits have in octal: the value is clamped, and int() would be slow.
    value = 1 << 64 if len(digits) > _MAX_DIGITS + 3 else int(digits, base)
    value = -value if sign == "-" else value
    return max(-(1 << 63), min(value, (1 << 63) - 1))


def to_int(text: str) -> int:
    """Return what ``strtol`` makes of a text once it is stored in an ``int``."""
    common = COMMON.get(text)
    if common is not None:
        return common
    value = to_int64(text)
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)


def is_plain(text: str) -> bool:
    """Tell whether a text is the decimal number that everybody reads it as."""
    return text in COMMON or re.fullmatch(r"-?[1-9][0-9]{0,18}|0", text, re.ASCII) is not None


MAX_ATTRIBUTES = 16
"""MAX_ATTR_COUNT: later attributes are read and forgotten."""

MAX_TEXT = 255
"""MAX_STR_LEN: longer names are refused, longer values run on into what lies behind them."""

Attribute = tuple[str, str]


class Kind(Enum):
    """The node types of the reader."""

    OPEN = "open"
    CLOSE = "close"
    SINGLE = "single"


class Node(NamedTuple):
    """One tag: its name, every attribute in order (an empty slot is ``("", "")``), its place."""

    name: str
    attributes: tuple[Attribute, ...]
    kind: Kind
    at: int


class Fault(NamedTuple):
    """Where the reader gives up, and why."""

    problem: str
    at: int
    fix: str


class _FaultError(Exception):
    def __init__(self, problem: str, at: int, fix: str) -> None:
        super().__init__(problem)
        self.fault = Fault(problem, at, fix)


class Places:
    """Lines and columns of a text, both from 1."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *(match.end() for match in re.finditer("\n", self.text))]

    def of(self, at: int) -> tuple[int, int]:
        """Return line and column of a position."""
        line = bisect_right(self._starts, at)
        return line, at - self._starts[line - 1] + 1


_USUAL = re.compile(
    r'[ \n\r]*+<([A-Za-z_]\w{0,60}+)((?: [A-Za-z_]\w{0,60}+="[^"]*+")*+)( ?)(/?)>', re.ASCII
)
_ATTRIBUTE = re.compile(r' (\w++)="([^"]*+)"', re.ASCII)
_CLOSING = re.compile(r"[ \n\r]*+</(\w{1,60}+)>", re.ASCII)
_BLANKS = re.compile(r"[ \n\r]*+")
_TOKEN_END = re.compile(r"[=> /\n\r]")


def stored(node: Node) -> dict[str, str]:
    """Return the attributes that a runtime finds: of the first 16, the first of each name."""
    return dict(reversed(node.attributes[:MAX_ATTRIBUTES]))


def nodes(text: str) -> Iterator[Node | Fault]:
    """Yield the tags of a text in order, and last the fault that ends the reading, if any."""
    at = 0
    try:
        while True:
            usual = _USUAL.match(text, at)
            if usual is not None:
                name, inside, space, slash = usual.groups()
                found: list[Attribute] = _ATTRIBUTE.findall(inside)
                if space:
                    found.append(("", ""))
                kind = Kind.SINGLE if slash else Kind.OPEN
                yield Node(name, tuple(found), kind, text.index("<", at))
                at = usual.end()
                continue
            closing = _CLOSING.match(text, at)
            if closing is not None:
                yield Node(closing[1], (), Kind.CLOSE, text.index("<", at))
                at = closing.end()
                continue
            node, at = _unusual(text, at)
            if node is None:
                return
            yield node
    except _FaultError as error:
        yield error.fault


def _unusual(text: str, at: int) -> tuple[Node | None, int]:
    """Read one tag the slow way; None at the end of the text (``xmlGetNode``)."""
    while True:
        found = _BLANKS.match(text, at)
        start = at if found is None else found.end()
        if start == len(text):
            return None, start
        if text[start] != "<":
            raise _stray(text, start)
        name, ended, at = _token(text, start + 1)
        if ended == "=":
            raise _FaultError(
                f"a value stands where the element's name {_shown(name)} ends", at - 1,
                "put one space after the element's name",
            )  # fmt: skip
        if not name.startswith("!--"):
            break
        closed = text.find("-->", start + 4)
        if closed < 0:
            raise _FaultError("a comment is not closed", start, "end it with -->")
        at = closed + 3
    if name == "" and ended == "/":
        name, ended, at = _token(text, at)
        if ended == ">":
            return Node(name, (), Kind.CLOSE, start), at
        raise _FaultError(
            f"{_shown(ended)} stands in the closing tag </{name[:40]}", at - 1,
            f"write </{name[:40].strip()}>",
        )  # fmt: skip
    attributes: list[Attribute] = []
    while ended == " ":
        key, ended, at = _token(text, at)
        value = ""
        if ended == "=":
            value, ended, at = _value(text, key, at)
        attributes.append((key, value))
    kind = Kind.OPEN
    if ended == "/":
        kind = Kind.SINGLE
        _, ended, at = _token(text, at)
    if ended != ">":
        raise _unclosed(name, ended, at - 1)
    return Node(name, tuple(attributes), kind, start), at


def _token(text: str, at: int) -> tuple[str, str, int]:
    """Return a token, the character that ends it, and the position after that."""
    found = _TOKEN_END.search(text, at)
    end = len(text) if found is None else found.start()
    name, ended = text[at:end], text[end : end + 1]
    if len(name) > MAX_TEXT - 1 - (ended != "="):
        raise _FaultError(
            f"a name is longer than {MAX_TEXT - 2} characters", at, "use the names of MSCCL"
        )
    if not ended:
        raise _FaultError("the file ends inside a tag", len(text), "complete the file")
    return name, ended, end + 1


def _value(text: str, key: str, at: int) -> tuple[str, str, int]:
    """Return a value, the character behind its closing quote, and the position after that."""
    quote = text[at : at + 1]
    if quote not in {'"', "'"} or not quote:
        raise _FaultError(f"the value of {_shown(key)} has no quotes", at, "use double quotes")
    end = text.find('"', at + 1)
    if end < 0 or end + 1 >= len(text):
        fix = "use double quotes" if quote == "'" else 'close the value with "'
        raise _FaultError(f"the value of {_shown(key)} never ends", at, fix)
    if quote == "'":
        # The reader takes all up to the next double quote as the value; what is behind it can
        # only be right by accident, so the quote is what to name.
        value, ended = text[at + 1 : end], text[end + 1]
        if ended not in {" ", ">", "/"}:
            raise _FaultError(
                f"the value of {_shown(key)} has single quotes", at, "use double quotes"
            )
        return value, ended, end + 2
    return text[at + 1 : end], text[end + 1], end + 2


def _stray(text: str, at: int) -> _FaultError:
    if text[at] == "\t":
        return _FaultError("a tab stands between elements", at, "indent with spaces")
    if text.startswith("\xef\xbb\xbf", at):
        return _FaultError("a byte order mark stands first", at, "save the file without it")
    return _FaultError(
        f"expected '<', got {_shown(text[at])}", at, "remove the text outside of tags"
    )


def _unclosed(name: str, ended: str, at: int) -> _FaultError:
    fix = "put one space between attributes"
    if ended in {"\n", "\r"}:
        fix = "write every element on one line"
    elif name.startswith("?"):
        fix = "remove the <?xml ...?> line"
    elif name.startswith("!"):
        fix = "remove the DOCTYPE and CDATA"
    elif ended == "\t":
        fix = "use spaces instead of tabs"
    return _FaultError(f"expected '>' in <{name[:40]}>, got {_shown(ended)}", at, fix)


def _shown(text: str) -> str:
    return ascii(text[:40])

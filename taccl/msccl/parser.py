"""What a runtime's own parser makes of a file: refusals with their place, and the program it runs.

The parser is ``mscclGetAlgoFromXMLAndSetAlgo`` (msccl, ``src/graph/topo.cc``) and the pair
``mscclGetAlgoMetaFromXmlFile``, ``mscclGetAlgoFromXmlFile`` (executor and rccl,
``src/misc/msccl/msccl_parser.cc``). They stop at the first thing they refuse; here every element
is looked at, so that a file can be mended in one go.

Of a threadblock, what is left to run is told, too. A nop only hands its dependence to the next step
that is no nop; one without a dependence, or with no step after it, is as if it were not there. So
the positions that dependences count are those of the steps that are left (``runInterpreter``,
``mscclRunInterpreter``).

**Elements** are what ``xmlLoadSub`` and its handlers store. Only ``algo`` at the top, ``gpu`` in
it, ``tb`` in the rank's own ``gpu`` and ``step`` in ``tb`` are stored; other elements are skipped
with all they hold, and inside them any closing tag closes (the reader compares the tag with the
slot it has just overwritten). Every rank reads the whole file, so every ``gpu`` is looked at here
as its rank does. Limits of the fixed arrays are those of ``src/graph/xml.h`` (msccl) and
``src/include/msccl/msccl_parser.h`` (executor, rccl).

**Text** is read byte by byte, by no XML parser. One token is what stands before the next ``=``,
space, ``>``, ``/`` or line end; an attribute follows a space and nothing else; a value ends at the
next double quote. The functions are ``xmlGetToken``, ``xmlGetValue``, ``xmlSkipComment`` and
``xmlGetNode`` of msccl (``src/graph/xml.cc``) and the ``mscclXml`` ones of executor and rccl
(``src/misc/msccl/msccl_parser.cc``), which are alike. Text is bytes as Latin-1 here: one character
a byte.

Numbers, too, are as the runtimes read them: C's ``strtol`` and ``strtoll`` with base 0, never an
error. ``010`` is 8, ``0x10`` is 16, ``1e6`` is 1 and ``abc`` is 0 (``xmlGetAttrInt``). What does
not fit 64 bits is clamped, what does not fit an ``int`` loses its upper bits.
"""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from itertools import islice
from types import MappingProxyType
from typing import NamedTuple

from taccl.errors import ProgramError
from taccl.files.xml import ENDLESS, is_endless
from taccl.msccl.program import (
    BUFFER_OF,
    OP_OF,
    RECEIVES,
    SENDS,
    Buffer,
    Finding,
    Gpu,
    Op,
    Program,
    Severity,
    Slot,
    Step,
    StepRef,
    Threadblock,
)
from taccl.msccl.runtimes import (
    DEFAULT_MAX_BYTES,
    FUSION_CAP,
    MAX_RANKS,
    PROTOCOLS,
    RUNTIMES,
    UNLIMITED,
    Runtime,
)

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


MAX_STORED = 4096
"""MAX_NODES: elements stored for one rank stay below it."""

MAX_CHILDREN = 1024
"""MAX_SUBS: nobody checks it, and one more overwrites the count of children."""

MAX_TAGS = 300_000
"""Tags of a file, above which it is not looked at."""

MAX_NAMED = 50
"""Findings of one severity that are told: plenty of warnings must not hide what breaks."""

Attributes = dict[str, str]


@dataclass(slots=True)
class Element:
    """A stored element: its attributes, where it starts, and what it holds.

    ``held`` counts a gpu's elements; those that no rank could store are not kept.
    """

    attributes: Attributes
    at: int
    children: "list[Element]" = field(default_factory=list)
    held: int = 0


@dataclass(slots=True)
class Document:
    """What the reader makes of a file.

    `first` are attributes of the first element, whatever it is called: the header pass of executor
    and rccl reads no more (``mscclGetAlgoMetaFromXmlFile``). `algo` is the first of so many
    `algos`, with its gpus, threadblocks and steps. None: there is none. `findings` are faults of
    the text, in order, of which a ``rejected`` one ended the reading; `told` counts them by
    severity, told or not. `places` has lines and columns.
    """

    places: Places
    first: Attributes | None = None
    algo: Element | None = None
    algos: int = 0
    findings: list[Finding] = field(default_factory=list)
    told: Counter[Severity] = field(default_factory=Counter)

    def add(self, rule: str, explanation: str, at: int, fix: str, severity: Severity) -> None:
        """Add a finding at a position of the text, unless there are plenty."""
        self.told[severity] += 1
        if self.told[severity] <= MAX_NAMED:
            line, column = self.places.of(at)
            self.findings.append(
                Finding(rule, explanation, fix=fix, severity=severity, line=line, column=column)
            )

    @property
    def complete(self) -> bool:
        """Whether the reader came to the end of the file."""
        return all(f.severity is not Severity.REJECTED for f in self.findings)


_LEVELS = ("", "algo", "gpu", "tb", "step")
_UNKNOWN = len(_LEVELS)


@dataclass(slots=True)
class _Open:
    """An element that is not closed yet: its name, level, and what it is stored as."""

    name: str
    level: int
    element: Element | None
    at: int


def read_document(content: str | bytes, *, file: str | None = None) -> Document:
    """Read a file as the runtimes do.

    `content` is the whole file, and errors call it `file`.

    Raises ProgramError when it has more tags than any program, or longer ones.
    """
    raw = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    if is_endless(raw):
        raise ProgramError(ENDLESS, file=file, fix="give an MSCCL XML")
    text = raw.decode("latin-1")  # one character a byte
    document = Document(Places(text))
    stack: list[_Open] = []
    for number, node in enumerate(nodes(text)):
        if number == MAX_TAGS:
            raise ProgramError(
                f"the file has more than {MAX_TAGS} tags", file=file,
                line=document.places.of(node.at)[0],
                fix="give a program that a runtime could hold",
            )  # fmt: skip
        fault = node if isinstance(node, Fault) else _take(document, stack, node)
        if fault is not None:
            break
    else:
        last = stack[-1] if stack else None
        fault = None if last is None else Fault(
            f"<{last.name[:40]}> is never closed", last.at, "close every element"
        )  # fmt: skip
    if fault is not None:
        document.add("reader", fault.problem, fault.at, fault.fix, Severity.REJECTED)
    return document


def _take(document: Document, stack: list[_Open], node: Node) -> Fault | None:
    """Take one tag; return the fault that ends the reading, or None."""
    if stack and node.kind is Kind.CLOSE:
        name = stack[-1].name
        if stack[-1].level < _UNKNOWN and node.name != name:
            return Fault(
                f"</{node.name[:40]}> stands where </{name[:40]}> should", node.at,
                "close elements in the order they opened",
            )  # fmt: skip
        stack.pop()
        return None
    if document.first is None:
        document.first = stored(node)
    _warn_of_attributes(document, node)
    level = stack[-1].level if stack else 0
    known = level + 1 < _UNKNOWN and node.name == _LEVELS[level + 1]
    element: Element | None = None
    if known:
        element = Element(stored(node), node.at)
        above = stack[-1].element if stack else None
        gpu = stack[1].element if len(stack) > 1 else None
        if gpu is not None:
            gpu.held += 1
        if level == 0:
            document.algos += 1
            document.algo = document.algo or element
        elif above is not None and (gpu is None or gpu.held <= MAX_STORED):
            above.children.append(element)  # beyond that, the file is refused
        if level == 1 and "id" not in element.attributes:  # mscclAlgoXmlGpu wants it at once
            return Fault("<gpu> has no id", node.at, 'add id="..."')
    elif level == _UNKNOWN - 1:
        document.add(
            "elements",
            f"<step> holds <{node.name[:40]}>, and the reader follows a null pointer there",
            node.at, "leave steps empty", Severity.BREAKS,
        )  # fmt: skip
    elif level < _UNKNOWN:
        document.add(
            "elements", f"<{node.name[:40]}> is skipped with all it holds", node.at,
            "copies must be cpy steps", Severity.WARNING,
        )  # fmt: skip
    if node.kind is not Kind.SINGLE:
        stack.append(_Open(node.name, level + 1 if known else _UNKNOWN, element, node.at))
    return None


def _warn_of_attributes(document: Document, node: Node) -> None:
    """Warn of attributes that don't fit the reader's arrays.

    A node holds 17 pairs of 256 bytes and behind them two numbers, of which the second is the
    node's type, in use by then. A long value runs over the attributes behind it, and then further.
    """
    if len(node.attributes) > MAX_ATTRIBUTES:
        lost = ", ".join(key[:40] for key, _ in islice(node.attributes, MAX_ATTRIBUTES, None))
        document.add(
            "attributes",
            f"<{node.name[:40]}> has {len(node.attributes)} attributes, the reader keeps"
            f" {MAX_ATTRIBUTES} and forgets {lost[:80]}",
            node.at, "leave out what the runtime does not need", Severity.WARNING,
        )  # fmt: skip
    for number, (key, value) in enumerate(node.attributes):
        if len(value) > MAX_TEXT:
            behind = MAX_ATTRIBUTES - min(number, MAX_ATTRIBUTES)
            room = MAX_TEXT + behind * 2 * (MAX_TEXT + 1) + 4
            document.add(
                "attributes",
                f"{key[:40]} of <{node.name[:40]}> has {len(value)} bytes, the reader has room for"
                f" {MAX_TEXT} and writes on",
                node.at, "shorten the value",
                Severity.BREAKS if len(value) > room else Severity.WARNING,
            )  # fmt: skip


def crowded(document: Document) -> Iterator[tuple[str, Element]]:
    """Yield elements with more children than their array holds, with their names."""
    if document.algo is None:
        return
    found = [("algo", document.algo)]
    found += [("gpu", gpu) for gpu in document.algo.children]
    found += [("tb", block) for gpu in document.algo.children for block in gpu.children]
    for name, element in found:
        if len(element.children) > MAX_CHILDREN:
            yield name, element


def stored_by_rank(document: Document) -> dict[int, int]:
    """Return how many elements every rank stores: algos, gpus, and what its own gpus hold."""
    gpus = document.algo.children if document.algo else []
    own: dict[int, int] = {}
    for gpu in gpus:
        rank = to_int(gpu.attributes["id"])
        own[rank] = own.get(rank, 0) + gpu.held
    return {rank: document.algos + len(gpus) + held for rank, held in own.items()}


MAX_FOUND = 200
"""Findings of one severity that are told: plenty of warnings must not hide a refusal."""

Place = tuple[int | None, int | None, int | None]
"""Gpu, threadblock, step; None where there is none."""

NOWHERE: Place = (None, None, None)


@dataclass(slots=True)
class Report:
    """What a parser found, and where elements stand in the text.

    ``unspoken`` is set by what parses and no program can say; ``told`` counts findings by
    severity, also those that are left out.
    """

    document: Document
    runtime: Runtime
    findings: list[Finding] = field(default_factory=list)
    at: dict[Place, int] = field(default_factory=dict)
    unspoken: bool = False
    told: Counter[Severity] = field(default_factory=Counter)

    @property
    def gpus(self) -> list[Element]:
        """The gpu elements of the program."""
        return self.document.algo.children if self.document.algo else []

    def add(
        self, rule: str, explanation: str, at: int, fix: str,
        severity: Severity = Severity.BREAKS, place: Place = NOWHERE,
    ) -> None:  # fmt: skip
        """Add a finding, unless there are plenty."""
        self.told[severity] += 1
        if self.told[severity] <= MAX_FOUND:
            line, column = self.document.places.of(at)
            gpu, block, step = place
            self.findings.append(
                Finding(rule, explanation, gpu, block, step, fix, severity, line, column)
            )

    def refuse(
        self, rule: str, explanation: str, at: int, fix: str, place: Place = NOWHERE
    ) -> None:
        """Add something that the parser refuses."""
        self.add(rule, explanation, at, fix, Severity.REJECTED, place)

    def warn(self, rule: str, explanation: str, at: int, fix: str, place: Place = NOWHERE) -> None:
        """Add a warning."""
        self.add(rule, explanation, at, fix, Severity.WARNING, place)

    def note_number(self, tag: str, attributes: Attributes, name: str, at: int) -> None:
        """Warn of a number that the parser reads in its own way."""
        text = attributes.get(name)
        if text is not None and not is_plain(text):
            self.warn(
                "numbers", f"{name}=\"{text[:40]}\" of <{tag}> is read as {to_int(text)}", at,
                "write a decimal number without leading zeros",
            )  # fmt: skip

    def integers(
        self, tag: str, element: Element, names: tuple[str, ...], place: Place
    ) -> list[int] | None:
        """Return attributes as the parser reads them; None when one is missing."""
        attributes = element.attributes
        missing = [name for name in names if name not in attributes]
        for name in missing:
            self.refuse(
                "attributes", f"<{tag}> has no {name}", element.at, f'add {name}="..."', place
            )
        if missing:
            return None
        for name in names:
            self.note_number(tag, attributes, name, element.at)
        return [to_int(attributes[name]) for name in names]


_NUMBERS = ("s", "srcoff", "dstoff", "cnt", "depid", "deps", "hasdep")
_WORDS = ("srcbuf", "dstbuf", "type")


@dataclass(slots=True)
class _Line:
    """The parser's registers while it goes through a threadblock.

    ``ends`` counts the threadblocks before it that send (receive) on a channel.
    """

    report: Report
    gpu: Gpu
    block: Threadblock
    ends: Mapping[tuple[str, int], int]
    steps: list[Step] = field(default_factory=list)
    at: list[int] = field(default_factory=list)
    waiting: list[tuple[StepRef, int]] = field(default_factory=list)
    run: tuple[Slot, Buffer] | None = None
    transfers: int = 0
    reductions: int = 0
    dependences: int = 0

    @property
    def place(self) -> Place:
        """The next step."""
        return self.gpu.rank, self.block.id, len(self.steps)

    def refuse(self, rule: str, explanation: str, at: int, fix: str) -> None:
        """Add a refusal at the next step."""
        self.report.refuse(rule, explanation, at, fix, self.place)


def _parse_steps(line: _Line, element: Element) -> list[Step]:
    """Return the steps of a threadblock that the kernel runs."""
    report, limit = line.report, line.report.runtime.max_steps
    for child in element.children:
        _parse_step(line, child)
    if line.waiting:
        report.warn(
            "nops", "nops at the end of a threadblock have no effect", line.waiting[0][1],
            "remove them", line.place,
        )  # fmt: skip
    most = max(line.transfers, line.reductions, line.dependences)
    if most > limit:
        report.add(
            "steps", f"has {most} steps with small numbers, {report.runtime.name} has room for"
            f" {limit} and writes on", element.at, "number the steps in order, and have fewer",
            place=(line.gpu.rank, line.block.id, None),
        )  # fmt: skip
    for number, at in enumerate(line.at):
        report.at[line.gpu.rank, line.block.id, number] = at
    return line.steps


def _parse_step(line: _Line, child: Element) -> None:
    attributes, at, runtime = child.attributes, child.at, line.report.runtime
    missing = [name for name in (*_NUMBERS, *_WORDS) if name not in attributes]
    for name in missing:
        line.refuse("attributes", f"<step> has no {name}", at, f'add {name}="..."')
    if missing:
        return
    kind = attributes["type"]
    if kind not in OP_OF and kind in runtime.extra_types:
        line.report.unspoken = True
        line.report.add(
            "ops", f"{runtime.name} takes {kind} and its kernel returns on it: a hang", at,
            "use other steps", place=line.place,
        )  # fmt: skip
        return
    if kind not in OP_OF:
        line.refuse(
            "ops", f"{runtime.name} does not know the type {kind[:40]!r}", at,
            f"use one of {', '.join(OP_OF)}",
        )  # fmt: skip
    wrong = [attributes[name] for name in ("srcbuf", "dstbuf") if attributes[name] not in BUFFER_OF]
    for text in wrong:
        line.refuse("buffers", f"there is no buffer {text[:40]!r}", at, "use i, o or s")
    if kind not in OP_OF or wrong:
        return
    for name in _NUMBERS:
        line.report.note_number("step", attributes, name, at)
    number, src_at, dst_at, count, depid, deps, posts = (
        to_int(attributes[name]) for name in _NUMBERS
    )
    src = Slot(BUFFER_OF[attributes["srcbuf"]], src_at)
    dst = Slot(BUFFER_OF[attributes["dstbuf"]], dst_at)
    if not 0 <= number < runtime.max_steps:
        line.refuse(
            "steps", f"is step {number}, {runtime.name} allows 0 to {runtime.max_steps - 1}", at,
            "lower --chunks, or raise --channels",
        )  # fmt: skip
    if depid >= 0:
        line.waiting.append((StepRef(depid, deps), at))
        line.dependences += 1
    if OP_OF[kind] is not Op.NOP:
        _transfer(line, Step(OP_OF[kind], src, dst, count, posts=posts == 1), (depid, posts), at)
        return
    if depid < 0:
        line.report.warn(
            "nops", "a nop without dependence is not there, so later steps have lower numbers", at,
            "remove it", line.place,
        )  # fmt: skip
    if posts:
        line.report.warn(
            "nops", "hasdep on a nop is ignored", at, "put hasdep on the step after it", line.place
        )


def _check_transfer(line: _Line, step: Step, posts: int, at: int) -> None:
    op, runtime, block = step.op, line.report.runtime, line.block
    if not 0 <= step.count <= runtime.max_count:
        line.refuse(
            "counts", f"moves {step.count} chunks, allowed are 1 to {runtime.max_count}", at,
            "split the step",
        )  # fmt: skip
    for kind, peer, word in ((SENDS, block.send_to, "send"), (RECEIVES, block.recv_from, "recv")):
        if op in kind and peer is None:
            line.refuse(
                "missing_peers", f"{op.value} in a threadblock without {word} peer", at,
                f"give the threadblock a {word} peer",
            )  # fmt: skip
        elif op in kind and line.ends.get((word, block.channel), 0) >= (
            runtime.max_blocks_per_channel
        ):
            line.refuse(
                "blocks_per_channel",
                f"more than {runtime.max_blocks_per_channel} threadblocks {word} on channel"
                f" {block.channel}", at, "spread the connections over more channels",
            )  # fmt: skip
    if posts not in {0, 1}:
        line.refuse("attributes", f"hasdep is {posts}", at, "use 0 or 1")
    if op is Op.RECV_REDUCE_COPY:  # whose operands no parser looks at
        return
    # mscclCheckBufferBounds: the first chunk of the operands in use; -1 passes.
    room = line.gpu.room
    for slot in (step.source, step.target):
        if slot is not None and not -1 <= slot.offset < room[slot.buffer]:
            line.refuse(
                "offsets", f"uses chunk {slot.offset} of buffer {slot.buffer.value}, which has"
                f" {room[slot.buffer]}", at, "stay within the buffer",
            )  # fmt: skip


def _transfer(line: _Line, step: Step, told: tuple[int, int], at: int) -> None:
    """Add what the kernel runs: the nops that still matter, and the step.

    ``told`` is what the step says of its dependence (-1: none) and of hasdep.
    """
    depid, posts = told
    _check_transfer(line, step, posts, at)
    source, target = step.source, step.target
    key = None
    if step.op is Op.REDUCE and source is not None and target is not None:
        key = target, source.buffer
    continues = key is not None and key == line.run and depid == -1
    depends = None
    if not continues:
        if line.waiting and depid < 0:
            line.refuse(
                "nops", "a nop and the step after it both need a dependence", at,
                "put the last dependence on the step itself",
            )  # fmt: skip
        for ref, nop_at in line.waiting[:-1]:
            line.steps.append(Step(Op.NOP, count=0, depends=ref))
            line.at.append(nop_at)
        depends = line.waiting[-1][0] if line.waiting else None
        line.waiting.clear()
        line.transfers += 1
    if key is not None:
        line.reductions += 1
    capped = line.reductions == FUSION_CAP
    line.run = None if key is None or step.posts or capped else key
    line.steps.append(Step(step.op, source, target, step.count, depends, step.posts))
    line.at.append(at)


WARP_SIZE = 32
MOST_THREADS = 512
"""Threads of a block of Simple on msccl, which ``nthreads`` may only lower."""


@dataclass(slots=True)
class Parsed:
    """What a runtime makes of a file.

    `program` is what its kernel runs; None when the parser refuses the file, or when no program can
    say it. `findings` are refusals, things that break whatever the program does, and warnings; `at`
    has the position in the text of (gpu, threadblock, step).
    """

    program: Program | None
    findings: list[Finding]
    at: dict[Place, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Head:
    """The numbers of ``algo`` that the rest needs."""

    ranks: int
    chunks: int
    channels: int
    collective: str
    sizes: tuple[int, int]


def parse(document: Document, runtime: str, *, file: str | None = None) -> Parsed:
    """Return what `runtime`, a name of RUNTIMES, makes of `document`; errors call it `file`.

    Raises ProgramError when ngpus is beyond any cluster.
    """
    report = Report(document, RUNTIMES[runtime])
    if not document.complete:
        return Parsed(None, report.findings)
    algo = document.algo
    head = _head(report)
    if algo is None or head is None:
        return Parsed(None, report.findings)
    if head.ranks > MAX_RANKS:
        raise ProgramError(
            f"ngpus is {head.ranks}, at most {MAX_RANKS} are looked at", file=file,
            line=document.places.of(algo.at)[0], fix="correct ngpus",
        )  # fmt: skip
    first = {to_int(gpu.attributes["id"]): gpu.at for gpu in reversed(report.gpus)}
    for rank, count in sorted(stored_by_rank(document).items()):
        if count >= MAX_STORED:
            report.refuse(
                "nodes", f"has {count} XML elements, the reader holds {MAX_STORED - 1}",
                first[rank], "lower --chunks", (rank, None, None),
            )  # fmt: skip
    for name, element in crowded(document):
        report.add(
            "elements", f"<{name}> holds {len(element.children)} elements, the reader has room"
            f" for {MAX_CHILDREN} and writes on", element.at, "lower --chunks or --instances",
        )  # fmt: skip
    gpus: dict[int, Gpu] = {}
    for element in algo.children:
        rank = to_int(element.attributes["id"])
        report.note_number("gpu", element.attributes, "id", element.at)
        if not 0 <= rank < head.ranks:
            report.warn(
                "ranks", f"no rank reads <gpu id={rank}>", element.at,
                f"use ids from 0 to {head.ranks - 1}",
            )  # fmt: skip
            continue
        if rank in gpus:
            report.warn(
                "ranks", f"gpu {rank} occurs twice: the later one overwrites the earlier",
                element.at, "give every gpu an id of its own",
            )  # fmt: skip
        gpu = _gpu(report, element, rank, head)
        if gpu is not None:
            if rank in gpus and not gpu.threadblocks:  # what a second element of a rank leaves
                gpu = replace(gpu, threadblocks=gpus[rank].threadblocks)
            gpus[rank] = gpu
    refused = any(f.severity is Severity.REJECTED for f in report.findings)
    if refused or report.unspoken:
        return Parsed(None, report.findings, report.at)
    return Parsed(_program(report.runtime, algo.attributes, head, gpus), report.findings, report.at)


def _program(
    runtime: Runtime, attributes: Attributes, head: _Head, gpus: Mapping[int, Gpu]
) -> Program:
    spelled = {spelling: name for name, spelling in runtime.collectives.items()}
    low, high = head.sizes
    in_place = to_int(attributes["inplace"]) != 0
    if runtime.exclusive_max_bytes:
        high -= 1
        # ncclAllToAll of msccl refuses to run in place, and does not look at the flag.
        in_place = in_place and head.collective != "alltoall"
        out_of_place = not in_place
    else:
        high = high or UNLIMITED
        out_of_place = to_int(attributes["outofplace"]) != 0
    return Program(
        attributes.get("name", ""), spelled[head.collective], attributes["proto"], in_place,
        out_of_place, head.channels, head.chunks, low, high,
        tuple(gpus.get(rank, Gpu(rank, 0, 0, 0)) for rank in range(max(head.ranks, 0))),
    )  # fmt: skip


_SIZES = ("minBytes", "maxBytes")
_META = ("nchunksperloop", "nchannels", "ngpus", "coll", *_SIZES, "inplace", "outofplace")
"""What the header pass of executor and rccl wants of the first element."""


def _head(report: Report) -> _Head | None:
    """Look at ``algo``: executor and rccl read the first element first, whatever it is called."""
    document, runtime = report.document, report.runtime
    algo = document.algo
    at = 0 if algo is None else algo.at
    if document.first is None or algo is None:
        report.refuse("reader", "the file has no <algo>", at, "give an MSCCL XML")
        return None
    attributes = algo.attributes
    missing = [name for name in runtime.required if name not in attributes]
    if not runtime.exclusive_max_bytes and document.first != attributes:
        missing += [name for name in _META if name not in document.first]
    for name in missing:
        report.refuse("attributes", f"<algo> has no {name}", at, f'add {name}="..."')
    if missing:
        return None
    for name in ("ngpus", "nchunksperloop", "nchannels", "inplace", "outofplace", *_SIZES):
        report.note_number("algo", attributes, name, at)
    known = runtime.collectives.values()
    if attributes["coll"] not in known:
        report.refuse(
            "collective", f"{runtime.name} does not know {attributes['coll'][:40]}", at,
            f"known are {', '.join(known)}",
        )  # fmt: skip
    if attributes["proto"] not in PROTOCOLS:
        report.refuse(
            "protocol", f"unknown protocol {attributes['proto'][:40]!r}", at,
            f"use one of {', '.join(PROTOCOLS)}",
        )  # fmt: skip
    high = attributes.get("maxBytes")
    sizes = (
        to_int64(attributes.get("minBytes", "0")),
        DEFAULT_MAX_BYTES if high is None else to_int64(high),
    )
    threads = to_int(attributes.get("nthreads", "0"))
    # Only msccl checks the range and nthreads.
    if runtime.exclusive_max_bytes and not 0 <= sizes[0] <= sizes[1]:
        report.refuse(
            "sizes", f"the range of sizes is {sizes[0]} to {sizes[1]} bytes", at,
            "give 0 <= minBytes < maxBytes",
        )  # fmt: skip
    if runtime.exclusive_max_bytes and threads % WARP_SIZE:
        report.refuse(
            "threads", f"nthreads is {threads}", at, f"use a multiple of {WARP_SIZE}"
        )  # fmt: skip
    elif (
        runtime.exclusive_max_bytes and attributes["proto"] == "Simple"
        and 0 < threads < MOST_THREADS and threads.bit_count() > 1
    ):  # fmt: skip
        # computeColl wants a message of 2 MiB to be a multiple of what the threads move at once.
        report.warn(
            "threads", f"nthreads is {threads}, which does not divide a message of Simple: calls"
            " may fail", at, "use a power of two",
        )  # fmt: skip
    head = _Head(
        to_int(attributes["ngpus"]), to_int(attributes["nchunksperloop"]),
        to_int(attributes["nchannels"]), attributes["coll"], sizes,
    )  # fmt: skip
    if head.ranks < 1:
        report.refuse("ranks", f"ngpus is {head.ranks}", at, "give the number of ranks")
    return head


_CHUNKS = ("i_chunks", "o_chunks", "s_chunks")
_BLOCK = ("id", "send", "recv", "chan")


def _gpu(report: Report, element: Element, rank: int, head: _Head) -> Gpu | None:
    place: Place = (rank, None, None)
    counts = report.integers("gpu", element, _CHUNKS, place)
    if counts is None:
        return None
    inputs, outputs, scratch = counts
    if scratch < 0:
        report.refuse("chunks", f"s_chunks is {scratch}", element.at, "give 0 or more", place)
    shares = (
        ("i_chunks", inputs, head.ranks if head.collective == "allgather" else 1),
        ("o_chunks", outputs, head.ranks if head.collective == "reduce_scatter" else 1),
    )
    for label, count, share in shares if report.runtime.checks_chunks else ():
        if count > 0 and count * share != head.chunks:
            report.refuse(
                "chunks", f"{label} is {count}, and nchunksperloop {head.chunks} asks for"
                f" {head.chunks / share:g}", element.at, f"make {label} fit nchunksperloop, or 0",
                place,
            )  # fmt: skip
    full = len(element.children) > MAX_CHILDREN and report.runtime.name != "rccl"
    blocks = {} if full else _blocks(report, element, Gpu(rank, inputs, outputs, scratch), head)
    ids = sorted(blocks)
    if ids and ids != list(range(len(ids))):
        lacking = next(number for number in range(len(ids) + 1) if number not in blocks)
        report.refuse(
            "threadblocks", f"threadblock {lacking} is missing", element.at,
            "number the threadblocks from 0", place,
        )  # fmt: skip
    report.at[place] = element.at
    return Gpu(rank, inputs, outputs, scratch, tuple(blocks[number] for number in ids))


def _blocks(report: Report, element: Element, gpu: Gpu, head: _Head) -> dict[int, Threadblock]:
    """Parse the threadblocks of a rank in the order of the document."""
    found: dict[int, Threadblock] = {}
    ends: dict[tuple[str, int], int] = {}
    for child in element.children:
        numbers = report.integers("tb", child, _BLOCK, (gpu.rank, None, None))
        if numbers is None or _is_refused(report, child, (gpu.rank, *numbers), head):
            continue
        number, send, recv, channel = numbers
        if number in found:
            report.refuse(
                "threadblocks", f"threadblock {number} occurs twice", child.at,
                "number the threadblocks from 0", (gpu.rank, number, None),
            )  # fmt: skip
            continue
        report.at[gpu.rank, number, None] = child.at
        block = Threadblock(
            number, None if send < 0 else send, None if recv < 0 else recv, channel
        )  # fmt: skip
        steps = _parse_steps(_Line(report, gpu, block, ends), child)
        for word, peer in (("send", send), ("recv", recv)):
            if peer >= 0:
                ends[word, channel] = ends.get((word, channel), 0) + 1
        found[number] = replace(block, steps=tuple(steps))
    for (word, channel), count in ends.items():
        if count > report.runtime.max_blocks_per_channel:
            report.add(
                "blocks_per_channel", f"{count} threadblocks {word} on channel {channel}, room is"
                f" for {report.runtime.max_blocks_per_channel}", element.at,
                "spread the connections over more channels", place=(gpu.rank, None, None),
            )  # fmt: skip
    return found


def _is_refused(report: Report, child: Element, found: tuple[int, ...], head: _Head) -> bool:
    """Check a threadblock's rank, id, send, recv and chan, and before them rtype and stype.

    msccl looks for these two in ``algo`` and then takes only nic in a tb.
    """
    runtime, (rank, number, send, recv, channel) = report.runtime, found
    asked = report.document.algo.attributes if report.document.algo else {}
    place: Place = (rank, None, None)
    problems = [
        ("attributes", f"<algo> has {name}, so msccl wants {name}=\"nic\" in every tb",
         f"remove {name} from <algo>")
        for name in ("rtype", "stype")
        if runtime.extra_types and name in asked and child.attributes.get(name) != "nic"
    ]  # fmt: skip
    if not problems:
        place = (rank, number, None)
        if not 0 <= number < runtime.max_threadblocks:
            problems.append((
                "threadblocks", f"{runtime.name} allows {runtime.max_threadblocks} threadblocks",
                "lower --chunks or --instances",
            ))  # fmt: skip
        for peer in (send, recv):
            foreign = peer >= head.ranks and runtime.checks_peers
            if peer == rank or peer < -1 or foreign:
                problems.append((
                    "peers", f"peer {peer} is no other rank",
                    f"use a rank from 0 to {head.ranks - 1}, or -1 for none",
                ))  # fmt: skip
        if not 0 <= channel <= runtime.max_channels:
            problems.append((
                "channels", f"is on channel {channel}, {runtime.name} has {runtime.max_channels}",
                "use a channel below nchannels",
            ))  # fmt: skip
    for rule, explanation, fix in problems:
        report.refuse(rule, explanation, child.at, fix, place)
    return bool(problems)

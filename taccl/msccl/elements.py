"""The elements that a runtime stores of a file: ``xmlLoadSub`` and its handlers.

Only ``algo`` at the top, ``gpu`` in it, ``tb`` in the rank's own ``gpu`` and ``step`` in ``tb``
are stored; other elements are skipped with all they hold, and inside them any closing tag closes
(the reader compares the tag with the slot it has just overwritten). Every rank reads the whole
file, so every ``gpu`` is looked at here as its rank does. Limits of the fixed arrays are those of
``src/graph/xml.h`` (msccl) and ``src/include/msccl/msccl_parser.h`` (executor, rccl).
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from taccl.errors import ProgramError
from taccl.files.xml import ENDLESS, is_endless
from taccl.msccl.program import Finding, Severity
from taccl.msccl.tokens import (
    MAX_ATTRIBUTES,
    MAX_TEXT,
    Fault,
    Kind,
    Node,
    Places,
    nodes,
    stored,
    to_int,
)

MAX_STORED = 4096
"""MAX_NODES: elements stored for one rank stay below it."""

MAX_CHILDREN = 1024
"""MAX_SUBS: nobody checks it, and one more overwrites the count of children."""

MAX_TAGS = 300_000
"""Tags of a file, above which it is not looked at."""

MAX_FOUND = 50
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
        if self.told[severity] <= MAX_FOUND:
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

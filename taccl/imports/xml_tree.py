"""XML as a tree of elements that know their lines, within limits that hostile text can't get round.

Document types and entities are refused, and so are deep or large trees.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol
from xml.etree.ElementTree import ParseError

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import DefusedXMLParser

from taccl.errors import InputError
from taccl.files import shown

MAX_TEXT = 1 << 20
MAX_ELEMENTS = 4096
MAX_DEPTH = 64


@dataclass(frozen=True, slots=True)
class Element:
    """An element: its attributes, what it holds, and its line."""

    tag: str
    attributes: Mapping[str, str]
    line: int
    children: list["Element"] = field(default_factory=list)


class _Expat(Protocol):
    @property
    def CurrentLineNumber(self) -> int: ...  # noqa: N802 - expat's own name


class _Builder:
    """Target of the XML parser."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.expat: _Expat | None = None
        self.root: Element | None = None
        self.path: list[Element] = []
        self.count = 0

    def error(self, problem: str, fix: str) -> InputError:
        """Return an error at the current line."""
        line = None if self.expat is None else self.expat.CurrentLineNumber
        return InputError(problem, file=self.file, line=line, fix=fix)

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        """Take an element."""
        self.count += 1
        if self.count > MAX_ELEMENTS or len(self.path) >= MAX_DEPTH:
            what = f"{MAX_ELEMENTS} elements" if self.count > MAX_ELEMENTS else "64 levels"
            raise self.error(f"has more than {what}", "give the description of one host")
        line = 1 if self.expat is None else self.expat.CurrentLineNumber
        element = Element(tag, dict(attributes), line)
        if self.path:
            self.path[-1].children.append(element)
        else:
            self.root = element
        self.path.append(element)

    def end(self, tag: str) -> None:  # noqa: ARG002 - the parser passes the tag
        """Leave an element."""
        self.path.pop()

    def data(self, text: str) -> None:
        """Refuse text: all is in attributes."""
        if text.strip():
            raise self.error(f"text stands between elements: {shown(text.strip())}", "remove it")

    def close(self) -> None:
        """End the document."""


def read_tree(text: str, file: str) -> Element:
    """Return the root of an XML text.

    Raises
    ------
    InputError
        With the line, when it is no XML or beyond a limit.
    """
    builder = _Builder(file)
    if len(text) > MAX_TEXT:
        raise InputError(
            "is larger than 1 MiB", file=file, line=1, fix="give the description of one host"
        )
    try:
        parser = DefusedXMLParser(target=builder, forbid_dtd=True)
        builder.expat = parser.parser
        parser.feed(text)
        parser.close()
    except DefusedXmlException:
        raise builder.error(
            "document types and entities are refused", "remove the DOCTYPE"
        ) from None
    except ParseError as error:
        reason = str(error).partition(": line")[0]
        raise builder.error(f"is no XML: {reason}", "correct the XML there") from None
    except (ValueError, LookupError) as error:
        raise builder.error(f"is unreadable: {error}", "save the file as UTF-8") from None
    if builder.root is None:
        raise builder.error("is empty", "give an XML file")
    return builder.root

"""XML text as a tree of elements that know their lines, within bounds that hostile text can't pass.

Document types are refused, and with them entities; nothing outside of the text is ever read. Size,
the length of one tag, and the elements that are kept are bounded before anything is built of them;
elements that are not kept cost nothing, however deep they are.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from xml.parsers import expat

from taccl.files.read import shown

ENDLESS = "more than 1 MiB goes by without the end of a tag"
_STRIDE = 1 << 20


class RefusedError(ValueError):
    """Text that parses but is not accepted; becomes an InputError with its place."""

    def __init__(self, problem: str, fix: str, line: int | None = None) -> None:
        super().__init__(problem)
        self.fix = fix
        self.line = line
        self.path: tuple[str | int, ...] = ()


@dataclass(slots=True)
class Element:
    """An element: its attributes, its line, and the elements in it that are kept."""

    tag: str
    attributes: dict[str, str]
    line: int
    children: list["Element"] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class XmlBounds:
    """What a text may hold at most: `size` bytes, or characters if it is decoded already.

    So many `elements` are kept, on `depth` levels; errors call them by the `noun` and say the
    `fix`. Where `text` is True it may stand between the elements.
    """

    size: int
    elements: int
    depth: int
    noun: str
    fix: str
    text: bool = False


def is_endless(content: bytes) -> bool:
    """Tell whether a mebibyte of `content` has no ``>``: no file of ours has such a tag."""
    return any(
        content.find(b">", start, start + _STRIDE) < 0
        for start in range(0, len(content) - _STRIDE + 1, _STRIDE)
    )


def read_tree(
    text: str | bytes, bounds: XmlBounds, keep: Callable[[int, str], bool] | None = None
) -> tuple[Element, list[str]]:
    """Return the root of an XML `text`, the whole file, and the comments before it.

    Within `bounds`, `keep` tells by its level (0: the root) and its tag whether an element is kept,
    where all around it are; None: every element is. It must keep the root, or raise.

    Raises RefusedError with the line, when the text is beyond a bound, can't be decoded or has a
    document type; xml.parsers.expat.ExpatError when it is no XML.
    """
    if len(text) > bounds.size:
        raise RefusedError(f"is larger than {bounds.size >> 20} MiB", bounds.fix)
    if is_endless(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text):
        raise RefusedError(ENDLESS, bounds.fix)
    parser = expat.ParserCreate(namespace_separator="}")
    builder = _Builder(parser, bounds, keep)
    whole = True
    try:
        parser.Parse(text, whole)
    except RefusedError as error:
        error.line = parser.CurrentLineNumber
        raise
    except (ValueError, LookupError) as error:
        raise RefusedError(
            f"unreadable text: {error}", "save the file as UTF-8", parser.CurrentLineNumber
        ) from None
    return builder.document.children[0], builder.comments


class _Builder:
    """The handlers of the parser, and what they have built so far."""

    def __init__(
        self,
        parser: expat.XMLParserType,
        bounds: XmlBounds,
        keep: Callable[[int, str], bool] | None,
    ) -> None:
        self.parser = parser
        self.bounds = bounds
        self.keep = keep
        self.document = Element("", {}, 0)
        self.path = [self.document]
        self.comments: list[str] = []
        self.count = self.skipped = 0
        parser.buffer_text = True
        parser.StartElementHandler = self.start
        parser.EndElementHandler = self.end
        parser.CommentHandler = self.comment
        parser.CharacterDataHandler = None if bounds.text else self.data
        parser.StartDoctypeDeclHandler = self.doctype

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        """Take an element, or skip it with all it holds."""
        if "}" in tag:  # a namespace, as ElementTree writes it
            tag = "{" + tag
        if self.skipped or not (self.keep is None or self.keep(len(self.path) - 1, tag)):
            self.skipped += 1
            return
        self.count += 1
        bounds = self.bounds
        if self.count > bounds.elements:
            raise RefusedError(f"has more than {bounds.elements} {bounds.noun}", bounds.fix)
        if len(self.path) > bounds.depth:
            raise RefusedError(f"has more than {bounds.depth} levels", bounds.fix)
        element = Element(tag, attributes, self.parser.CurrentLineNumber)
        self.path[-1].children.append(element)
        self.path.append(element)

    def end(self, _tag: str) -> None:
        """Leave an element."""
        if self.skipped:
            self.skipped -= 1
        else:
            self.path.pop()

    def comment(self, text: str) -> None:
        """Take a comment before the root."""
        if not self.document.children:
            self.comments.append(text)

    def data(self, text: str) -> None:
        """Refuse text between elements."""
        if text.strip():
            raise RefusedError(f"text stands between elements: {shown(text.strip())}", "remove it")

    def doctype(self, *_: object) -> None:
        """Refuse a document type, before anything of it is read."""
        raise RefusedError("document types and entities are refused", "remove the DOCTYPE")

"""Small pieces of Markdown: tables, code, and what a page holds."""

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent.parent

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|srcset|href)=\"([^\"]+)\"")
_FILE = re.compile(r"#\s*([\w.-]+\.(?:yaml|json|py|txt|csv))\b.*\n")


class Block(NamedTuple):
    """A fenced block: its language and its text."""

    language: str
    text: str


def code(value: object) -> str:
    """Return inline code."""
    return f"`{value}`"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; bars inside cells are escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines
    )


def blocks(page: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a page in order."""
    yield from (Block(*match) for match in _FENCE.findall(page.read_text()))


def commands_in(block: Block) -> Iterator[list[str]]:
    """Yield the words of every ``taccl`` command of a bash block."""
    if block.language != "bash":
        return
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words and words[0] == "taccl":
            yield words[1:]


def file_in(block: Block) -> str | None:
    """Return the name in the first line of a block that shows a file, such as ``# mine.yaml``."""
    match = _FILE.match(block.text)
    return match[1] if match else None


def links_in(page: Path) -> Iterator[str]:
    """Yield the targets of links and pictures that are files of the repository."""
    text = _FENCE.sub("", page.read_text())
    for one, other in _LINK.findall(text):
        target = one or other
        if not target.startswith(("http://", "https://", "mailto:")):
            yield target


def anchors_in(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = _FENCE.sub("", page.read_text())
    titles = re.findall(r"^#+ +(.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}

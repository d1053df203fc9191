"""Cells and columns of text: numbers, aligned tables, CSV, and names that disturb no page.

Names come from files that anybody may have written: they are stripped of controls, and escaped for
HTML, SVG and XML.
"""

import csv
import html
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.resources import files

from taccl.units import Time, microseconds


def printable(text: object, instead: str = " ") -> str:
    """Return `text` with `instead` for controls, and without what UTF-8 can't hold."""
    whole = str(text).encode("utf-8", "replace").decode()
    return "".join(c if c.isprintable() else instead for c in whole)


def one_line(text: str) -> str:
    """Return a name so that it can't disturb a terminal."""
    return printable(" ".join(text.split()), "?")


def escaped(text: object) -> str:
    """Return a text for HTML, SVG and XML."""
    return html.escape(printable(text))


def page_head(title: str) -> list[str]:
    """Return the HTML of a page that runs no script, from its start to its heading, a `title`."""
    style = files("taccl.report").joinpath("page.css").read_text(encoding="utf-8")
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    return [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        f"<title>{escaped(title)}</title><style>{style}</style></head><body>",
        f"<h1>{escaped(title)}</h1>",
    ]


def number_text(value: float | None, form: str, absent: str = "") -> str:
    """Return a `value` in the `form` of :func:`format`; `absent` for None."""
    return absent if value is None else format(value, form)


def us(time: Time | None) -> float | None:
    """Return picoseconds as the microseconds of JSON and CSV; None for None."""
    return None if time is None else microseconds(time)


def us_text(time: Time | None, absent: str = "") -> str:
    """Return a `time` in picoseconds as microseconds, six digits; `absent` for None."""
    return absent if time is None else f"{microseconds(time):.6g}"


def aligned(
    rows: Sequence[Sequence[str]], align: Callable[[str, int], str] = str.rjust
) -> Iterator[str]:
    """Yield a line for each of the `rows`, every column as wide as its longest cell.

    Cells are filled up by `align`: ``str.rjust`` or ``str.ljust``.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(map(align, row, widths)).rstrip()


def csv_text(records: Sequence[Mapping[str, object]]) -> str:
    """Return records with the same keys as CSV with a header line; nothing for none."""
    if not records:
        return ""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()

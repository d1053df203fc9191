"""Tables of a page: escaped texts, numbers at the right, bars."""

import html
from collections.abc import Sequence

from taccl.report.heat import heat_colour
from taccl.units import Time, microseconds

BAR = "of the time"
"""The column of bars."""

_KINDS = dict.fromkeys(
    ("ranks", "size", "time us", "bound us", "gap", "algbw GB/s", "busbw GB/s", "used", "busy us",
     "spans", "GB/s", "share", "chunks", "program us", "schedule us", "against the fastest",
     "of it alpha us", "over best", "classical us", "over classical", "bound over classical",
     "NCCL us (its model)"),
    "number",
) | {BAR: "bar"}  # fmt: skip


def text_of(text: object) -> str:
    """Return a text as HTML: escaped, without controls and what UTF-8 can't hold."""
    whole = str(text).encode("utf-8", "replace").decode()
    return html.escape("".join(c if c.isprintable() else " " for c in whole))


def table(names: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table; columns without any text are left out.

    Parameters
    ----------
    names
        Of the columns.
    lines
        A cell for each column, as HTML already.
    """
    filled = [number for number in range(len(names)) if any(line[number] for line in lines)]
    names = [names[number] for number in filled]
    lines = [[line[number] for number in filled] for line in lines]
    kinds = [_KINDS.get(name, "text") for name in names]
    head = "".join(
        f'<th scope="col" class="{kind}">{text_of(name)}</th>'
        for name, kind in zip(names, kinds, strict=True)
    )
    body = "\n".join(
        "<tr>"
        + "".join(f'<td class="{kind}">{cell}</td>' for cell, kind in zip(line, kinds, strict=True))
        + "</tr>"
        for line in lines
    )
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def us(time: Time | None) -> str:
    """Return picoseconds as microseconds; nothing for None."""
    return "" if time is None else f"{microseconds(time):.6g}"


def bar(time: Time, whole: Time | None, *, heat: bool = False) -> tuple[str, str]:
    """Return a share of a time as a number and as a bar.

    Parameters
    ----------
    time, whole
        Picoseconds: the part, and all of it.
    heat
        Whether the bar has the colour of load.
    """
    share = min(time / whole, 1.0) if whole else 0.0
    style = f"width:{share:.2%}"
    if heat:
        style += f";background:{heat_colour(share)}"
    return f"{share:.1%}", f'<div class="track"><div class="fill" style="{style}"></div></div>'

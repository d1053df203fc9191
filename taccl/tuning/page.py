"""The report of a library: one page that needs nothing but itself."""

import html
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any

from taccl.tuning.library import Library
from taccl.units import format_size

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

_SIZES = (
    ("size", "size_bytes"), ("time us", "time_us"), ("bound us", "bound_us"), ("gap", "gap"),
    ("over best", "over_best"), ("classical", "classical"), ("classical us", "classical_us"),
    ("over classical", "over_classical"), ("bound over classical", "bound_over_classical"),
    ("NCCL us (its model)", "nccl_us"), ("file", "file"),
)  # fmt: skip

WIDTH, HEIGHT, LEFT, TOP = 640, 220, 56, 12
"""Pixels of a diagram."""


def page(library: Library) -> str:
    """Return the page."""
    index: Mapping[str, Any] = library.index
    topology = index["topology"]
    title = f"Library for {topology['name']}, {topology['ranks']} ranks, {index['runtime']}"
    style = files("taccl.report").joinpath("page.css").read_text(encoding="utf-8")
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        f"<title>{_text(title)}</title><style>{style}</style></head><body>",
        f"<h1>{_text(title)}</h1>",
        f'<p class="hint">{_text(index["model"])}</p>',
    ]
    if index["nccl_model"]:
        parts.append(f'<p class="hint">{_text(index["nccl_model"])}</p>')
    for found in index["collectives"]:
        parts += _collective(found)
    budget = {name: value for name, value in index["budget"].items() if value is not None}
    facts = [
        *(f"{name}: {value}" for name, value in budget.items()),
        f"seed: {index['seed']}",
        *(f"{name} {value}" for name, value in index["versions"].items()),
        f"topology sha256 {topology['sha256']}",
    ]
    parts.append("<h2>How it was made</h2><ul>")
    parts += [f"<li>{_text(fact)}</li>" for fact in facts]
    parts.append("</ul></body></html>\n")
    return "\n".join(parts)


def _collective(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the part of one collective."""
    yield f"<h2>{_text(found['collective'])}</h2>"
    yield _diagram(found["sizes"])
    rows = [
        (
            f"{format_size(one['min_bytes'])} to {format_size(one['max_bytes'])}",
            one["file"] or one["served_by"],
            " ".join(str(one[name]) for name in ("engine", "protocol") if one.get(name)),
            one.get("chunks") or "",
            one["why"],
        )
        for one in found["ranges"]
    ]
    yield from _table(("sizes", "file", "made by", "chunks", "why"), rows)
    yield "<h3>At every size</h3>"
    yield from _table(
        [name for name, _ in _SIZES],
        [[_shown(key, size[key]) for _, key in _SIZES] for size in found["sizes"]],
    )
    counts = found["candidates"]
    yield (
        f"<p>{counts['searched']} searches and {counts['classical']} classical algorithms made"
        f" {counts['programs']} programs; {counts['without_program']} searches made none,"
        f" {len(counts['failed'])} failed.</p>"
    )
    if counts["failed"]:
        lost = [(one["candidate"], one["reason"]) for one in counts["failed"]]
        yield from _table(("failed candidate", "reason"), lost)


def _table(names: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    yield '<div class="scroll"><table><thead><tr>'
    yield "".join(f"<th>{_text(name)}</th>" for name in names)
    yield "</tr></thead><tbody>"
    for row in rows:
        yield "<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>"
    yield "</tbody></table></div>"


def _shown(key: str, value: object) -> str:
    if value is None:
        return "-"
    if key == "size_bytes":
        return format_size(int(str(value)))
    if key == "gap" and isinstance(value, float):
        return f"{value:.1%}"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _diagram(sizes: list[Mapping[str, Any]]) -> str:
    """Return time over that of the best classical algorithm against size, and the bound's."""
    lines = (("over_classical", "#1f6feb", ""), ("bound_over_classical", "#8c959f", "6 4"))
    step = WIDTH / max(1, len(sizes) - 1)
    parts = [
        f'<svg viewBox="0 0 {WIDTH + LEFT + 20} {HEIGHT + TOP + 30}" width="{WIDTH + LEFT + 20}"'
        ' role="img" font-size="11" fill="currentColor">'
        "<title>Time as a part of the best classical algorithm's; dashed: the bound's</title>"
    ]
    for tenth in (0, 2, 4, 6, 8, 10):
        y = TOP + HEIGHT * (10 - tenth) / 10
        parts.append(
            f'<line x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#8c959f"'
            f' stroke-opacity="0.4"/><text x="{LEFT - 34}" y="{y + 4:.1f}">{tenth / 10}</text>'
        )
    for key, colour, dash in lines:
        points = " ".join(
            f"{LEFT + step * place:.1f},{TOP + HEIGHT * (1 - min(1.0, size[key])):.1f}"
            for place, size in enumerate(sizes)
            if size[key] is not None
        )
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"'
            f' stroke-dasharray="{dash}"/>'
        )
    every = max(1, len(sizes) // 7)
    for place in range(0, len(sizes), every):
        told = format_size(sizes[place]["size_bytes"])
        parts.append(
            f'<text x="{LEFT + step * place - 16:.1f}" y="{TOP + HEIGHT + 18}">{told}</text>'
        )
    return "".join([*parts, "</svg>"])


def _text(value: object) -> str:
    return html.escape(str(value))

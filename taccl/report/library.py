"""The page of a library of programs, from its index: needs nothing but itself."""

from collections.abc import Callable, Iterator, Mapping
from importlib.resources import files
from typing import Any

from taccl.report.chart import BOUND, Line, chart, style_of
from taccl.report.html import table
from taccl.report.text import escaped
from taccl.units import counted, format_size

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

_NUMBER = "{:.6g}".format
_SIZES: Mapping[str, tuple[str, Callable[[Any], str]]] = {
    "size": ("size_bytes", format_size),
    "time us": ("time_us", _NUMBER),
    "bound us": ("bound_us", _NUMBER),
    "gap": ("gap", "{:.1%}".format),
    "over best": ("over_best", _NUMBER),
    "classical": ("classical", str),
    "classical us": ("classical_us", _NUMBER),
    "over classical": ("over_classical", _NUMBER),
    "bound over classical": ("bound_over_classical", _NUMBER),
    "NCCL us (its model)": ("nccl_us", _NUMBER),
    "file": ("file", str),
}
"""Columns of the table of sizes: the field of the index, and how it is written."""

_TIMES = (
    ("this library", "time_us", style_of(0)),
    ("the best classical algorithm", "classical_us", style_of(1)),
    ("NCCL by its own model", "nccl_us", style_of(-1, "2 3")),
    ("bound: no program is faster", "bound_us", BOUND),
)
"""Lines of the chart of bandwidth: name, field of the index in microseconds, style."""

_SHARES = (
    ("this library", "over_classical", style_of(0)),
    ("bound: no program is faster", "bound_over_classical", BOUND),
)
"""Lines of the chart of times as shares of the best classical algorithm's."""


def library_page(index: Mapping[str, Any]) -> str:
    """Return the page of a library with this index, as ``index.json`` holds it."""
    topology = index["topology"]
    title = f"Library for {topology['name']}, {topology['ranks']} ranks, {index['runtime']}"
    style = files("taccl.report").joinpath("page.css").read_text(encoding="utf-8")
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        f"<title>{escaped(title)}</title><style>{style}</style></head><body>",
        f"<h1>{escaped(title)}</h1>",
        *(f'<p class="verdict">{escaped(_verdict(found))}</p>' for found in index["collectives"]),
        f'<p class="hint">{escaped(index["model"])}</p>',
    ]
    if index["nccl_model"]:
        parts.append(f'<p class="hint">{escaped(index["nccl_model"])}</p>')
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
    parts += [f"<li>{escaped(fact)}</li>" for fact in facts]
    parts.append("</ul></body></html>\n")
    return "\n".join(parts)


def _verdict(found: Mapping[str, Any]) -> str:
    """Return in a sentence what was won for one collective."""
    sizes = found["sizes"]
    served = [one for one in found["ranges"] if one["file"]]
    shares = [size["over_classical"] for size in sizes if size["over_classical"]]
    gaps = [size["gap"] for size in sizes if size["gap"] is not None]
    ends = [format_size(sizes[place]["size_bytes"]) for place in (0, -1)]
    parts = [f"{found['collective']}, {' to '.join(ends)}: {counted(len(served), 'file')}"]
    if shares:
        parts.append(
            f"{1 / max(shares):.2f} to {1 / min(shares):.2f} times as fast as the best classical"
            " algorithm"
        )
    if gaps:
        parts.append(f"{min(gaps):.1%} to {max(gaps):.1%} above the bound")
    return "; ".join(parts) + "."


def _collective(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the part of one collective."""
    yield f"<h2>{escaped(found['collective'])}</h2>"
    sizes = found["sizes"]
    if len(sizes) > 1:
        places = [size["size_bytes"] for size in sizes]
        rates = [
            Line(name, style, tuple(
                (size["size_bytes"], size["size_bytes"] / size[key] / 1e3)
                for size in sizes if size[key]
            ))
            for name, key, style in _TIMES
        ]  # fmt: skip
        shares = [
            Line(name, style, tuple(
                (size["size_bytes"], size[key]) for size in sizes if size[key] is not None
            ))
            for name, key, style in _SHARES
        ]  # fmt: skip
        yield "<h3>Bandwidth by size</h3>"
        yield chart("algbw, GB/s", places, [line for line in rates if line.points])
        yield "<h3>Time beside the best classical algorithm</h3>"
        yield chart("time as a share of the best classical algorithm's", places, shares, share=True)
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
    yield table(("sizes", "file", "made by", "chunks", "why"), rows)
    yield "<h3>At every size</h3>"
    columns = _SIZES.values()
    yield table([*_SIZES], (
        ["-" if size[key] is None else form(size[key]) for key, form in columns]
        for size in found["sizes"]
    ))  # fmt: skip
    counts = found["candidates"]
    yield (
        f"<p>{counts['searched']} searches and {counts['classical']} classical algorithms made"
        f" {counts['programs']} programs; {counts['without_program']} searches made none,"
        f" {len(counts['failed'])} failed.</p>"
    )
    if counts["failed"]:
        lost = [(one["candidate"], one["reason"]) for one in counts["failed"]]
        yield table(("failed candidate", "reason"), lost)

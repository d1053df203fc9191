"""A comparison as one SVG: time and algbw against size, both axes logarithmic.

Written by hand: a plotting library costs a hundred megabytes and half a second at import. The
file refers to nothing outside itself; names in it are escaped, as anybody may have chosen them.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

from taccl.report.compared import Comparison
from taccl.units import Time, format_size

COLOURS = (
    "#1f6feb", "#d1495b", "#2e9e6b", "#b8860b", "#8250df", "#0a8ea0", "#c2542d", "#6e7781",
)  # fmt: skip
"""Of the contenders, in turn."""

DASHES = ("none", "8 4", "8 3 2 3")
"""Of what is replayed, by the turn of its colour."""

DOTS = ("2 3", "2 6")
"""Of NCCL's model, likewise."""

WIDTH, HEIGHT = 460, 300
"""Pixels of one diagram, within its axes."""

LEFT, TOP, BETWEEN, LINE = 70, 56, 90, 18
"""Pixels: left of and above the first diagram, between the two, and for a line of text."""

STYLE = """text { font: 12px "Segoe UI", Helvetica, Arial, sans-serif; fill: #57606a; }
.title { font-size: 15px; fill: #24292f; }
.axis { stroke: #8c959f; fill: none; }
.grid { stroke: #d8dee4; }
.line { fill: none; stroke-width: 2; }
.bound { stroke: #24292f; stroke-dasharray: 6 4; }"""

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class _Line:
    """One line of a diagram: what it is, how it is drawn, its points."""

    name: str
    style: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class _Scale:
    """From logarithms to pixels, along one axis.

    Parameters
    ----------
    low, high
        Powers of ten at the ends.
    start, length
        Pixels.
    """

    low: float
    high: float
    start: float
    length: float

    def at(self, value: float) -> float:
        """Return the pixel of a value."""
        return self.start + self.length * (log10(value) - self.low) / (self.high - self.low)


def plot(found: Comparison) -> str:
    """Return the SVG of a comparison."""
    times = _lines(found, lambda _, time: time / 1e6)
    rates = _lines(found, lambda size, time: size * 1e3 / time)
    below = TOP + HEIGHT + 60
    height = below + LINE * ((len(times) + 2) // 3) + 10
    width = LEFT + 2 * WIDTH + BETWEEN + 20
    title = f"{found.collective} on {found.topology}, {found.ranks} ranks ({found.rules})"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
        f' height="{height}" role="img" aria-label="{_text(title)}">',
        f"<style>{STYLE}</style>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text class="title" x="{LEFT}" y="24">{_text(title)}</text>',
        *_diagram(found, "time, us", times, LEFT),
        *_diagram(found, "algbw, GB/s", rates, LEFT + WIDTH + BETWEEN),
        *_legend(times, below),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _text(text: str) -> str:
    """Return a text for XML, without what it can't hold."""
    whole = text.encode("utf-8", "replace").decode()
    return escape("".join(c if c.isprintable() else " " for c in whole))


def _lines(found: Comparison, value: Callable[[int, Time], float]) -> list[_Line]:
    """Return a line for every contender, then one for the bound; what takes no time is left out."""
    lines = []
    drawn: Counter[bool] = Counter()
    for contender in found.everybody:
        of_nccl = contender.kind.startswith("nccl")
        turn, colour = divmod(drawn[of_nccl], len(COLOURS))
        dashes = DOTS if of_nccl else DASHES
        known = [(row.size, row.time) for row in contender.rows]
        lines.append(_Line(
            contender.name,
            f'class="line" stroke="{COLOURS[colour]}"'
            f' stroke-dasharray="{dashes[turn % len(dashes)]}"',
            _points(known, value),
        ))  # fmt: skip
        drawn[of_nccl] += 1
    bounds = [
        (size, bound[1] if bound else None)
        for size, bound in zip(found.sizes, found.bounds, strict=True)
    ]
    return [*lines, _Line("bound", 'class="line bound"', _points(bounds, value))]


def _points(
    known: Sequence[tuple[int, Time | None]], value: Callable[[int, Time], float]
) -> tuple[Point, ...]:
    return tuple((size, value(size, time)) for size, time in known if time)


def _diagram(found: Comparison, what: str, lines: Sequence[_Line], left: float) -> Iterator[str]:
    values = [y for line in lines for _, y in line.points] or [1.0]
    x = _Scale(log10(found.sizes[0]) - 0.05, log10(found.sizes[-1]) + 0.05, left, WIDTH)
    low, high = floor(log10(min(values))), ceil(log10(max(values)))
    y = _Scale(low, high + (low == high), TOP + HEIGHT, -HEIGHT)
    yield f'<text x="{left}" y="{TOP - 8}">{what}</text>'
    yield from _grid(found.sizes, x, y)
    for line in lines:
        places = [f"{x.at(size):.1f},{y.at(value):.1f}" for size, value in line.points]
        yield f'<polyline {line.style} points="{" ".join(places)}">'
        yield f"<title>{_text(line.name)}</title></polyline>"


def _grid(sizes: Sequence[int], x: _Scale, y: _Scale) -> Iterator[str]:
    right, bottom = x.start + x.length, y.start
    for power in range(int(y.low), int(y.high) + 1):
        at = y.at(10.0**power)
        yield f'<path class="grid" d="M{x.start:.1f} {at:.1f}H{right:.1f}"/>'
        yield (
            f'<text text-anchor="end" x="{x.start - 6:.1f}" y="{at + 4:.1f}">{10.0**power:g}</text>'
        )
    for size in sizes[:: -(-len(sizes) // 6)]:
        at = x.at(size)
        yield f'<path class="grid" d="M{at:.1f} {bottom + y.length:.1f}V{bottom:.1f}"/>'
        yield (
            f'<text text-anchor="middle" x="{at:.1f}" y="{bottom + 18:.1f}">'
            f"{format_size(size)}</text>"
        )
    yield f'<path class="axis" d="M{x.start} {bottom + y.length}V{bottom}H{right}"/>'


def _legend(lines: Sequence[_Line], top: float) -> Iterator[str]:
    for number, line in enumerate(lines):
        row, column = divmod(number, 3)
        x, y = LEFT + column * 340, top + row * LINE
        yield f'<path {line.style} d="M{x} {y - 4}h28"/>'
        shown = line.name if len(line.name) <= 44 else f"...{line.name[-41:]}"
        yield f'<text x="{x + 36}" y="{y}">{_text(shown)}</text>'

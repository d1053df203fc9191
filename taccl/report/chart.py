"""One diagram of lines against buffer size as SVG elements: grid, axes, lines, legend.

Written by hand: a plotting library costs a hundred megabytes and half a second at import. Every
element has a class and no colour of the paper, so that a file and a page can dress it differently.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, floor, log10

from taccl.report.text import escaped
from taccl.units import format_size

COLOURS = (
    "#1f6feb", "#d1495b", "#2e9e6b", "#b8860b", "#8250df", "#0a8ea0", "#c2542d", "#6e7781",
)  # fmt: skip
"""Of lines, in turn."""

BOUND = 'class="line bound"'
"""The style of what no algorithm can beat."""

LINE = 18
"""Pixels for a line of text."""

STYLE = """text { font: 12px "Segoe UI", Helvetica, Arial, sans-serif; fill: #57606a; }
.title { font-size: 15px; fill: #24292f; }
.axis { stroke: #8c959f; fill: none; }
.grid { stroke: #d8dee4; }
.line { fill: none; stroke-width: 2; }
.bound { stroke: #24292f; stroke-dasharray: 6 4; }"""
"""Of a file; pages have theirs in ``page.css``."""

_STEPS = (1, 2, 5)
_FEW = 2
"""Decades up to which 1, 2 and 5 are written on an axis; above only powers of ten."""

Point = tuple[float, float]
"""Bytes, and a value."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a diagram: what the legend calls it, and where it goes through, by size.

    Its `style` has attributes of its elements: class, colour, dashes.
    """

    name: str
    style: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Box:
    """Where a diagram stands in its picture, within its axes; all in pixels."""

    left: float
    top: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class _Scale:
    """From values to pixels along one axis; the powers of ten at the ends of a logarithmic one."""

    low: float
    high: float
    start: float
    length: float
    logarithmic: bool = True

    def at(self, value: float) -> float:
        place = log10(value) if self.logarithmic else value
        return self.start + self.length * (place - self.low) / (self.high - self.low)


def style_of(turn: int, dashes: str = "none") -> str:
    """Return the style of line number `turn`, `dashes` as of SVG's ``stroke-dasharray``."""
    return f'class="line" stroke="{COLOURS[turn % len(COLOURS)]}" stroke-dasharray="{dashes}"'


def diagram(
    what: str, sizes: Sequence[int], lines: Sequence[Line], box: Box, *, share: bool = False
) -> Iterator[str]:
    """Yield the elements of one diagram of `lines`, whose values are above 0, in a `box`.

    The horizontal axis goes over `sizes`, ascending, in bytes; the vertical one is `what`, with its
    unit, and logarithmic; of a `share` it is linear from 0 to 1, and lines are cut at 1.
    """
    x = _Scale(log10(sizes[0]) - 0.05, log10(sizes[-1]) + 0.05, box.left, box.width)
    ticks = tuple(n / 5 for n in range(6)) if share else _ticks(lines)
    ends = (0.0, 1.0) if share else (log10(ticks[0]), log10(ticks[-1]))
    y = _Scale(*ends, box.top + box.height, -box.height, not share)
    right, bottom = box.left + box.width, box.top + box.height
    yield f'<text x="{box.left:g}" y="{box.top - 8:g}">{escaped(what)}</text>'
    for tick in ticks:
        at = y.at(tick)
        yield f'<path class="grid" d="M{box.left:.1f} {at:.1f}H{right:.1f}"/>'
        yield (f'<text text-anchor="end" x="{box.left - 6:.1f}" y="{at + 4:.1f}">{tick:g}</text>')
    for size in sizes[:: -(-len(sizes) // 6)]:
        at = x.at(size)
        yield f'<path class="grid" d="M{at:.1f} {box.top:.1f}V{bottom:.1f}"/>'
        yield (
            f'<text text-anchor="middle" x="{at:.1f}" y="{bottom + 18:.1f}">'
            f"{format_size(size)}</text>"
        )
    yield f'<path class="axis" d="M{box.left} {box.top}V{bottom}H{right}"/>'
    yield f'<text text-anchor="end" x="{right:.1f}" y="{bottom + 36:.1f}">size of the buffer</text>'
    for line in lines:
        places = [
            f"{x.at(size):.1f},{y.at(min(value, 1.0) if share else value):.1f}"
            for size, value in line.points
        ]
        yield f'<polyline {line.style} points="{" ".join(places)}">'
        yield f"<title>{escaped(line.name)}</title></polyline>"


def _ticks(lines: Sequence[Line]) -> tuple[float, ...]:
    """Return what is written on a logarithmic axis, from below all values to above them."""
    values = [value for line in lines for _, value in line.points] or [1.0]
    low, high = floor(log10(min(values))), ceil(log10(max(values)))
    steps = _STEPS if high - low <= _FEW else _STEPS[:1]
    ticks = [step * 10.0**power for power in range(low, high + 1) for step in steps]
    below = [n for n, (_, after) in enumerate(pairwise(ticks)) if after <= min(values)]
    first = below[-1] + 1 if below else 0
    last = next(n for n, tick in enumerate(ticks) if tick >= max(values))
    return tuple(ticks[first : max(last, first + 1) + 1])


def legend(lines: Sequence[Line], left: float, top: float, columns: int) -> Iterator[str]:
    """Yield the legend of `lines` from pixel `left`, `top` on, in so many `columns`."""
    for number, line in enumerate(lines):
        row, column = divmod(number, columns)
        x, y = left + column * 340, top + row * LINE
        yield f'<path {line.style} d="M{x:g} {y - 4:g}h28"/>'
        shown = line.name if len(line.name) <= 44 else f"...{line.name[-41:]}"
        yield f'<text x="{x + 36:g}" y="{y:g}">{escaped(shown)}</text>'


def chart(what: str, sizes: Sequence[int], lines: Sequence[Line], *, share: bool = False) -> str:
    """Return a diagram with its legend as an element of a page, in the page's own colours.

    The parameters `what`, `sizes`, `lines` and `share` are those of :func:`diagram`.
    """
    box = Box(64, 30, 640, 240)
    below = box.top + box.height + 64
    width, height = box.left + box.width + 40, below + LINE * ((len(lines) + 1) // 2)
    return "\n".join([
        f'<svg class="chart" viewBox="0 0 {width:g} {height:g}" width="{width:g}"'
        f' height="{height:g}" role="img" aria-label="{escaped(what)} by size of the buffer">',
        *diagram(what, sizes, lines, box, share=share),
        *legend(lines, box.left, below, 2),
        "</svg>",
    ])  # fmt: skip

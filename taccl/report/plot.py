"""A comparison as one SVG: time and algbw against size, both axes logarithmic.

The file refers to nothing outside itself; names in it are escaped, as anybody may have chosen them.
"""

from collections import Counter
from collections.abc import Callable, Sequence

from taccl.report.compared import Comparison
from taccl.report.diagram import (
    BOUND,
    COLOURS,
    LINE,
    STYLE,
    Box,
    Line,
    Point,
    diagram,
    legend,
    style_of,
    text_of,
)
from taccl.units import Time

DASHES = ("none", "8 4", "8 3 2 3")
"""Of what is replayed, by the turn of its colour."""

DOTS = ("2 3", "2 6")
"""Of NCCL's model, likewise."""

WIDTH, HEIGHT = 460, 300
"""Pixels of one diagram, within its axes."""

LEFT, TOP, BETWEEN = 70, 56, 90
"""Pixels: left of and above the first diagram, and between the two."""


def plot(found: Comparison) -> str:
    """Return the SVG of a comparison."""
    times = _lines(found, lambda _, time: time / 1e6)
    rates = _lines(found, lambda size, time: size * 1e3 / time)
    below = TOP + HEIGHT + 70
    height = below + LINE * ((len(times) + 2) // 3) + 10
    width = LEFT + 2 * WIDTH + BETWEEN + 20
    title = f"{found.collective} on {found.topology}, {found.ranks} ranks ({found.rules})"
    second = Box(LEFT + WIDTH + BETWEEN, TOP, WIDTH, HEIGHT)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
        f' height="{height}" role="img" aria-label="{text_of(title)}">',
        f"<style>{STYLE}</style>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text class="title" x="{LEFT}" y="24">{text_of(title)}</text>',
        *diagram("time, us", found.sizes, times, Box(LEFT, TOP, WIDTH, HEIGHT)),
        *diagram("algbw, GB/s", found.sizes, rates, second),
        *legend(times, LEFT, below, 3),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _lines(found: Comparison, value: Callable[[int, Time], float]) -> list[Line]:
    """Return a line for every contender, then one for the bound; what takes no time is left out."""
    lines = []
    drawn: Counter[bool] = Counter()
    for contender in found.everybody:
        of_nccl = contender.kind.startswith("nccl")
        turn, dashes = drawn[of_nccl], DOTS if of_nccl else DASHES
        known = [(row.size, row.time) for row in contender.rows]
        style = style_of(turn, dashes[turn // len(COLOURS) % len(dashes)])
        lines.append(Line(contender.name, style, _points(known, value)))
        drawn[of_nccl] += 1
    bounds = [
        (size, bound[1] if bound else None)
        for size, bound in zip(found.sizes, found.bounds, strict=True)
    ]
    return [*lines, Line("bound", BOUND, _points(bounds, value))]


def _points(
    known: Sequence[tuple[int, Time | None]], value: Callable[[int, Time], float]
) -> tuple[Point, ...]:
    return tuple((size, value(size, time)) for size, time in known if time)

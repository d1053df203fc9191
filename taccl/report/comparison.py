"""Algorithms, files and NCCL's model side by side: a table by size, CSV and JSON.

Who is fastest is decided among what was replayed. NCCL's model counts other things (the launch of
its kernel, fits to measurements), so its times stand beside the others and win nothing.

One diagram of lines against buffer size as SVG elements: grid, axes, lines, legend.

Written by hand: a plotting library costs a hundred megabytes and half a second at import. Every
element has a class and no colour of the paper, so that a file and a page can dress it differently.

A comparison as one SVG: time and algbw against size, both axes logarithmic.

The file refers to nothing outside itself; names in it are escaped, as anybody may have chosen them.
"""

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby, pairwise
from math import ceil, floor, log10
from types import MappingProxyType

from taccl.collectives import busbw_factor
from taccl.replay.sweep import Row
from taccl.units import Time, format_size, gigabytes_per_second, microseconds

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
    """One line of a diagram.

    Parameters
    ----------
    name
        What the legend calls it.
    style
        Attributes of its elements: class, colour, dashes.
    points
        Where it goes through, by ascending size.
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
    """From values to pixels, along one axis.

    Parameters
    ----------
    low, high
        Values at the ends; of a logarithmic axis powers of ten.
    start, length
        Pixels.
    logarithmic
        Whether equal ratios are equally long.
    """

    low: float
    high: float
    start: float
    length: float
    logarithmic: bool = True

    def at(self, value: float) -> float:
        """Return the pixel of a value."""
        place = log10(value) if self.logarithmic else value
        return self.start + self.length * (place - self.low) / (self.high - self.low)


def style_of(turn: int, dashes: str = "none") -> str:
    """Return the style of the line with a number.

    Parameters
    ----------
    turn
        Number of the line; colours are used in turn.
    dashes
        As of SVG's ``stroke-dasharray``.
    """
    return f'class="line" stroke="{COLOURS[turn % len(COLOURS)]}" stroke-dasharray="{dashes}"'


def text_of(text: str) -> str:
    """Return a text for XML, without what it can't hold."""
    whole = text.encode("utf-8", "replace").decode()
    return escape("".join(c if c.isprintable() else " " for c in whole))


def diagram(
    what: str, sizes: Sequence[int], lines: Sequence[Line], box: Box, *, share: bool = False
) -> Iterator[str]:
    """Yield the elements of one diagram.

    Parameters
    ----------
    what
        The vertical axis with its unit.
    sizes
        Bytes, ascending: the ends of the horizontal axis, and what may be written on it.
    lines
        What is drawn; values above 0.
    box
        Where.
    share
        Whether values are shares of a whole: a linear axis from 0 to 1, and lines cut at 1.
    """
    x = _Scale(log10(sizes[0]) - 0.05, log10(sizes[-1]) + 0.05, box.left, box.width)
    ticks = tuple(n / 5 for n in range(6)) if share else _ticks(lines)
    ends = (0.0, 1.0) if share else (log10(ticks[0]), log10(ticks[-1]))
    y = _Scale(*ends, box.top + box.height, -box.height, not share)
    yield f'<text x="{box.left:g}" y="{box.top - 8:g}">{text_of(what)}</text>'
    yield from _grid(sizes, ticks, x, y)
    for line in lines:
        places = [
            f"{x.at(size):.1f},{y.at(min(value, 1.0) if share else value):.1f}"
            for size, value in line.points
        ]
        yield f'<polyline {line.style} points="{" ".join(places)}">'
        yield f"<title>{text_of(line.name)}</title></polyline>"


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


def _grid(sizes: Sequence[int], ticks: Sequence[float], x: _Scale, y: _Scale) -> Iterator[str]:
    right, bottom = x.start + x.length, y.start
    for tick in ticks:
        at = y.at(tick)
        yield f'<path class="grid" d="M{x.start:.1f} {at:.1f}H{right:.1f}"/>'
        yield (f'<text text-anchor="end" x="{x.start - 6:.1f}" y="{at + 4:.1f}">{tick:g}</text>')
    for size in sizes[:: -(-len(sizes) // 6)]:
        at = x.at(size)
        yield f'<path class="grid" d="M{at:.1f} {bottom + y.length:.1f}V{bottom:.1f}"/>'
        yield (
            f'<text text-anchor="middle" x="{at:.1f}" y="{bottom + 18:.1f}">'
            f"{format_size(size)}</text>"
        )
    yield f'<path class="axis" d="M{x.start} {bottom + y.length}V{bottom}H{right}"/>'
    yield f'<text text-anchor="end" x="{right:.1f}" y="{bottom + 36:.1f}">size of the buffer</text>'


def legend(lines: Sequence[Line], left: float, top: float, columns: int) -> Iterator[str]:
    """Yield the elements of a legend, ``columns`` names to a line of text.

    Parameters
    ----------
    lines
        In order.
    left, top
        Pixels.
    columns
        Names to a line of text.
    """
    for number, line in enumerate(lines):
        row, column = divmod(number, columns)
        x, y = left + column * 340, top + row * LINE
        yield f'<path {line.style} d="M{x:g} {y - 4:g}h28"/>'
        shown = line.name if len(line.name) <= 44 else f"...{line.name[-41:]}"
        yield f'<text x="{x + 36:g}" y="{y:g}">{text_of(shown)}</text>'


def chart(what: str, sizes: Sequence[int], lines: Sequence[Line], *, share: bool = False) -> str:
    """Return one diagram with its legend as an element of a page, in the page's own colours.

    Parameters
    ----------
    what
        The title.
    sizes
        Bytes, ascending.
    lines
        A value for each size.
    share
        Whether values are parts of one, not times.
    """
    box = Box(64, 30, 640, 240)
    below = box.top + box.height + 64
    width, height = box.left + box.width + 40, below + LINE * ((len(lines) + 1) // 2)
    return "\n".join([
        f'<svg class="chart" viewBox="0 0 {width:g} {height:g}" width="{width:g}"'
        f' height="{height:g}" role="img" aria-label="{text_of(what)} by size of the buffer">',
        *diagram(what, sizes, lines, box, share=share),
        *legend(lines, box.left, below, 2),
        "</svg>",
    ])  # fmt: skip


KINDS = ("algorithm", "file", "nccl", "nccl-way")
"""Of NCCL's model, ``nccl`` is what NCCL would run, ``nccl-way`` one algorithm and protocol."""

MARK = "*"
"""Stands after the time of the fastest."""

CHOSEN = "+"
"""Stands after the time of what NCCL would run."""

HERE = "the fastest here"
"""What a crossover calls the fastest of all that is replayed."""

_OF_FASTEST = ("gap", "algbw GB/s", "busbw GB/s")


@dataclass(frozen=True, slots=True)
class Contender:
    """One column of the comparison.

    Parameters
    ----------
    name
        Unlike that of any other.
    kind
        Of KINDS.
    rows
        Its result at every size.
    note
        Why it is out of the race; empty: it is not.
    short
        What the columns of the table call it; empty: by its name.
    """

    name: str
    kind: str
    rows: tuple[Row, ...]
    note: str = ""
    short: str = ""

    def time(self, place: int) -> Time | None:
        """Return its time at a size, if it can win with that."""
        return None if self.note else self.rows[place].time


@dataclass(frozen=True, slots=True)
class Crossover:
    """The least size found at which another contender is the fastest.

    Parameters
    ----------
    size
        Bytes.
    before, after
        Who is fastest below, and from there on.
    """

    size: int
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Modelled:
    """What NCCL's model says.

    Parameters
    ----------
    ways
        Each algorithm with each protocol that it has.
    chosen
        The short name of what NCCL would run, at every size.
    switches
        Where NCCL would run something else, in short names.
    beside
        Where what NCCL expects becomes less, or more, than the fastest here takes.
    inputs
        What the model was given.
    """

    ways: tuple[Contender, ...]
    chosen: tuple[str, ...]
    switches: tuple[Crossover, ...]
    beside: tuple[Crossover, ...]
    inputs: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """All that a comparison found.

    Parameters
    ----------
    collective, topology, ranks, rules, runtime
        What was compared where, and whose constants the replay has.
    sizes
        Bytes, ascending.
    bounds
        Kind and time of the best bound for every algorithm at each size; None: unknown.
    contenders
        In the order of the columns.
    crossovers
        Ascending by size.
    absent
        Algorithms that are not compared, and why.
    nccl
        What NCCL's model says; None where there is none.
    """

    collective: str
    topology: str
    ranks: int
    rules: str
    runtime: str
    sizes: tuple[int, ...]
    bounds: tuple[tuple[str, Time] | None, ...]
    contenders: tuple[Contender, ...]
    crossovers: tuple[Crossover, ...]
    absent: tuple[tuple[str, str], ...] = ()
    nccl: Modelled | None = None

    @property
    def everybody(self) -> tuple[Contender, ...]:
        """The contenders, and what NCCL could run."""
        return (*self.contenders, *(self.nccl.ways if self.nccl else ()))

    def least(self, place: int) -> Time | None:
        """Return the least time of a size, if anything can run."""
        times = (contender.time(place) for contender in self.contenders)
        return min((time for time in times if time is not None), default=None)

    def modelled(self, place: int) -> Time | None:
        """Return what NCCL's model expects at a size of what NCCL would run."""
        return next((c.rows[place].time for c in self.contenders if c.kind == "nccl"), None)

    def is_below_bound(self, place: int) -> bool:
        """Tell whether NCCL's model expects less than any algorithm can take."""
        time, bound = self.modelled(place), self.bounds[place]
        return time is not None and bound is not None and time < bound[1]

    def wins(self, contender: Contender, place: int) -> bool:
        """Tell whether nobody is faster at a size."""
        time = contender.time(place)
        return time is not None and time == self.least(place)


def compared_table(found: Comparison) -> str:
    """Return times by size, the fastest marked, then crossovers and what to know."""
    names = ["size", *(c.short or c.name for c in found.contenders), "bound", *_OF_FASTEST]
    lines = [names, *(_line(found, place) for place in range(len(found.sizes)))]
    text = [
        f"{found.collective} on {found.topology}, {found.ranks} ranks ({found.rules}): times in us,"
        f" {MARK} the fastest; gap, algbw and busbw are those of the fastest",
        *_aligned(lines),
        *_told(found),
        *(_modelled(found, found.nccl) if found.nccl else ()),
    ]
    return "\n".join(text) + "\n"


def _aligned(lines: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        yield "  ".join(cells).rstrip()


def _line(found: Comparison, place: int) -> list[str]:
    size, bound, least = found.sizes[place], found.bounds[place], found.least(place)
    gap = least / bound[1] - 1 if least is not None and bound and bound[1] else None
    algbw = gigabytes_per_second(size, least or 0)
    factor = float(busbw_factor(found.collective, found.ranks))
    return [
        format_size(size),
        *(
            _us(contender.rows[place].time) + (MARK if found.wins(contender, place) else " ")
            for contender in found.contenders
        ),
        _us(bound[1] if bound else None),
        "-" if gap is None else f"{gap:.1%}",
        *((f"{algbw:.2f}", f"{algbw * factor:.2f}") if least else ("-", "-")),
    ]


def _us(time: Time | None) -> str:
    return "-" if time is None else f"{microseconds(time):.6g}"


def _told(found: Comparison) -> Iterator[str]:
    for each in found.crossovers:
        yield f"from {format_size(each.size)} on: {each.after} is faster than {each.before}"
    for reason, absent in groupby(found.absent, key=lambda each: each[1]):
        yield f"not there: {', '.join(name for name, _ in absent)}: {reason}"
    for contender in found.contenders:
        if contender.note:
            yield f"not in the race: {contender.name}: {contender.note}"
        refused = next((row for row in contender.rows if row.time is None), None)
        if refused is not None:
            name = contender.short or contender.name
            yield f"does not run: {name} at {format_size(refused.size)}: {refused.note}"


def _modelled(found: Comparison, nccl: Modelled) -> Iterator[str]:
    """Yield a second table: what NCCL's model says of each algorithm and protocol."""
    yield ""
    yield (
        f"what NCCL expects of each algorithm and protocol (modelled): times in us,"
        f" {CHOSEN} what it would run"
    )
    names = ["size", *(way.short for way in nccl.ways)]
    lines = [
        [
            format_size(size),
            *(
                _us(way.rows[place].time) + (CHOSEN if way.short == nccl.chosen[place] else " ")
                for way in nccl.ways
            ),
        ]
        for place, size in enumerate(found.sizes)
    ]
    yield from _aligned([names, *lines])
    for each in nccl.switches:
        yield f"from {format_size(each.size)} on: NCCL would run {each.after}, not {each.before}"
    for each in nccl.beside:
        less = "less" if each.before == HERE else "more"
        yield (
            f"from {format_size(each.size)} on: NCCL's model expects {less} time than {HERE} takes"
        )
    below = [place for place in range(len(found.sizes)) if found.is_below_bound(place)]
    if below:
        place = below[-1]
        sizes = dict.fromkeys(format_size(found.sizes[each]) for each in (below[0], place))
        time, bound = found.modelled(place), found.bounds[place]
        yield (
            f"below the bound at {' to '.join(sizes)}: NCCL's model expects {_us(time)} us at"
            f" {format_size(found.sizes[place])}, where no program takes less than"
            f" {_us(bound[1] if bound else None)}: its inputs do not fit this machine; set them"
            " with --nccl"
        )
    yield f"NCCL's model was given {nccl.inputs}"


def compared_columns(found: Comparison) -> Iterator[dict[str, object]]:
    """Yield a record for every size and contender."""
    for place, bound in enumerate(found.bounds):
        for contender in found.everybody:
            row = contender.rows[place]
            of_nccl = contender.kind.startswith("nccl")
            mine = None if of_nccl else bound
            chosen = contender.short == found.nccl.chosen[place] if found.nccl else False
            yield {
                "size_bytes": found.sizes[place],
                "contender": contender.name,
                "kind": contender.kind,
                "time_us": None if row.time is None else microseconds(row.time),
                "algbw_gbps": row.algbw,
                "busbw_gbps": row.busbw,
                "bound_us": None if bound is None else microseconds(bound[1]),
                "bound_kind": "" if bound is None else bound[0],
                "gap": row.time / mine[1] - 1 if mine and mine[1] and row.time else None,
                "fastest": found.wins(contender, place),
                "below_bound": bound is not None and row.time is not None and row.time < bound[1],
                "nccl_runs": chosen if contender.kind == "nccl-way" else None,
                "program": row.program,
                "note": row.note,
            }


def compared_json(found: Comparison) -> str:
    """Return one JSON object."""
    report = {
        "collective": found.collective,
        "topology": found.topology,
        "ranks": found.ranks,
        "alpha_rule": found.rules,
        "runtime": found.runtime,
        "nccl_inputs": found.nccl.inputs if found.nccl else None,
        "rows": list(compared_columns(found)),
        "crossovers": _columns(found.crossovers),
        "nccl_switches": _columns(found.nccl.switches if found.nccl else ()),
        "nccl_crossovers": _columns(found.nccl.beside if found.nccl else ()),
        "absent": dict(found.absent),
        "out_of_race": {c.name: c.note for c in found.contenders if c.note},
    }
    return json.dumps(report, indent=1) + "\n"


def _columns(crossovers: Sequence[Crossover]) -> list[dict[str, object]]:
    return [
        {"size_bytes": each.size, "before": each.before, "after": each.after} for each in crossovers
    ]


def compared_csv(found: Comparison) -> str:
    """Return the records with a header line."""
    rows: Sequence[dict[str, object]] = list(compared_columns(found))
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else ["size_bytes"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


COMPARED: Mapping[str, Callable[[Comparison], str]] = MappingProxyType({
    "table": compared_table,
    "csv": compared_csv,
    "json": compared_json,
})  # fmt: skip
"""Name of a format to its writer."""


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

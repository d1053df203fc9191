"""Algorithms, files and NCCL's model side by side: a table by size, CSV, JSON and a picture.

Who is fastest is decided among what was replayed. NCCL's model counts other things (the launch of
its kernel, fits to measurements), so its times stand beside the others and win nothing. The picture
is one SVG that refers to nothing outside itself: time and algbw against size, both axes
logarithmic; names in it are escaped, as anybody may have chosen them.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby, pairwise
from types import MappingProxyType

from taccl.collectives import busbw_factor
from taccl.replay.sweep import Row
from taccl.report.chart import BOUND, COLOURS, LINE, STYLE, Box, Line, diagram, legend, style_of
from taccl.report.export import TUNER_HEAD, tuner_row
from taccl.report.text import aligned, csv_text, escaped, number_text, us, us_text
from taccl.units import Time, format_size, gigabytes_per_second

KINDS = ("algorithm", "file", "nccl", "nccl-way")
"""Of NCCL's model, ``nccl`` is what NCCL would run, ``nccl-way`` one algorithm and protocol."""

MARK = "*"
"""Stands after the time of the fastest."""

CHOSEN = "+"
"""Stands after the time of what NCCL would run."""

HERE = "the fastest here"
"""What a crossover calls the fastest of all that is replayed."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One column of the comparison, of a `kind` of KINDS: its result at every size.

    No other has its `name`; the columns of the table call it `short`, if that is not empty. A
    `note` says why it is out of the race; empty: it is not.
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
    """The least `size` found, in bytes, from which on `after` is the fastest, not `before`."""

    size: int
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Modelled:
    """What NCCL's model says: `ways` are each algorithm with each protocol that it has.

    At every size `chosen` has the short name of what NCCL would run; `switches` are where it would
    run something else, in short names, and `beside` where what it expects becomes less, or more,
    than the fastest here takes. The model was given `inputs`, for so many `servers`.
    """

    ways: tuple[Contender, ...]
    chosen: tuple[str, ...]
    switches: tuple[Crossover, ...]
    beside: tuple[Crossover, ...]
    inputs: str
    servers: int = 1


@dataclass(frozen=True, slots=True)
class Comparison:
    """All that a comparison found: what was compared where, by which rules and whose constants.

    At each of `sizes`, in bytes, ascending, `bounds` have kind and time of the best bound for every
    algorithm; None: unknown. The `contenders` are in the order of the columns, `crossovers` ascend
    by size, `absent` has algorithms that are not compared, and why, and `nccl` what NCCL's model
    says; None where there is none.
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

    def wins(self, contender: Contender, place: int) -> bool:
        """Tell whether nobody is faster at a size."""
        time = contender.time(place)
        return time is not None and time == self.least(place)


def compared_table(found: Comparison) -> str:
    """Return times by size, the fastest marked, then crossovers and what to know."""
    names = (c.short or c.name for c in found.contenders)
    rows = [["size", *names, "bound", "gap", "algbw GB/s", "busbw GB/s"]]
    factor = float(busbw_factor(found.collective, found.ranks))
    for place, (size, bound) in enumerate(zip(found.sizes, found.bounds, strict=True)):
        least = found.least(place)
        gap = least / bound[1] - 1 if least is not None and bound and bound[1] else None
        algbw = gigabytes_per_second(size, least) if least else None
        rows.append(
            [
                format_size(size),
                *(
                    us_text(contender.rows[place].time, "-")
                    + (MARK if found.wins(contender, place) else " ")
                    for contender in found.contenders
                ),
                us_text(bound[1] if bound else None, "-"),
                number_text(gap, ".1%", "-"),
                number_text(algbw, ".2f", "-"),
                number_text(algbw and algbw * factor, ".2f", "-"),
            ]
        )
    text = [
        f"{found.collective} on {found.topology}, {found.ranks} ranks ({found.rules}): times in us,"
        f" {MARK} the fastest; gap, algbw and busbw are those of the fastest",
        *aligned(rows),
    ]
    text += [
        f"from {format_size(each.size)} on: {each.after} is faster than {each.before}"
        for each in found.crossovers
    ]
    for reason, absent in groupby(found.absent, key=lambda each: each[1]):
        text.append(f"not there: {', '.join(name for name, _ in absent)}: {reason}")
    for contender in found.contenders:
        if contender.note:
            text.append(f"not in the race: {contender.name}: {contender.note}")
        refused = next((row for row in contender.rows if row.time is None), None)
        if refused is not None:
            name = contender.short or contender.name
            text.append(f"does not run: {name} at {format_size(refused.size)}: {refused.note}")
    text += _modelled(found, found.nccl) if found.nccl else ()
    return "\n".join(text) + "\n"


def _modelled(found: Comparison, nccl: Modelled) -> Iterator[str]:
    """Yield a second table: what NCCL's model says of each algorithm and protocol."""
    yield ""
    yield (
        f"what NCCL expects of each algorithm and protocol (modelled): times in us,"
        f" {CHOSEN} what it would run"
    )
    rows = [["size", *(way.short for way in nccl.ways)]]
    for place, (size, chosen) in enumerate(zip(found.sizes, nccl.chosen, strict=True)):
        marks = (CHOSEN if way.short == chosen else " " for way in nccl.ways)
        times = (us_text(way.rows[place].time, "-") for way in nccl.ways)
        rows.append([format_size(size), *map("".join, zip(times, marks, strict=True))])
    yield from aligned(rows)
    for each in nccl.switches:
        yield f"from {format_size(each.size)} on: NCCL would run {each.after}, not {each.before}"
    for each in nccl.beside:
        less = "less" if each.before == HERE else "more"
        yield (
            f"from {format_size(each.size)} on: NCCL's model expects {less} time than {HERE} takes"
        )
    below = [
        place for place, bound in enumerate(found.bounds)
        if bound and (time := found.modelled(place)) is not None and time < bound[1]
    ]  # fmt: skip
    if below:
        last = below[-1]
        sizes = dict.fromkeys(format_size(found.sizes[each]) for each in (below[0], last))
        bound = found.bounds[last]
        least = us_text(bound[1] if bound else None)
        yield (
            f"below the bound at {' to '.join(sizes)}: NCCL's model expects"
            f" {us_text(found.modelled(last))} us at"
            f" {format_size(found.sizes[last])}, where no program takes less than {least}: its"
            " inputs do not fit this machine; set them with --nccl"
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
                "time_us": us(row.time),
                "algbw_gbps": row.algbw,
                "busbw_gbps": row.busbw,
                "bound_us": us(bound and bound[1]),
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
    crossovers = {
        "crossovers": found.crossovers,
        "nccl_switches": found.nccl.switches if found.nccl else (),
        "nccl_crossovers": found.nccl.beside if found.nccl else (),
    }
    report = {
        "collective": found.collective,
        "topology": found.topology,
        "ranks": found.ranks,
        "alpha_rule": found.rules,
        "runtime": found.runtime,
        "nccl_inputs": found.nccl.inputs if found.nccl else None,
        "rows": list(compared_columns(found)),
        **{
            name: [
                {"size_bytes": each.size, "before": each.before, "after": each.after}
                for each in several
            ]
            for name, several in crossovers.items()
        },
        "absent": dict(found.absent),
        "out_of_race": {c.name: c.note for c in found.contenders if c.note},
    }
    return json.dumps(report, indent=1) + "\n"


def tuner_csv(found: Comparison) -> str:
    """Return what NCCL would run by its own model, as its example tuner plug-in reads it.

    `found` is what was compared; the last row has no end.
    """
    rows = [TUNER_HEAD]
    if found.nccl is not None and found.sizes:
        switches = found.nccl.switches
        lows = [found.sizes[0], *(one.size for one in switches), 1 << 64]
        ways = [found.nccl.chosen[0], *(one.after for one in switches)]
        machine = found.nccl.servers, found.ranks
        rows += [
            tuner_row(found.collective, (low, after - 1), way, machine)
            for way, (low, after) in zip(ways, pairwise(lows), strict=True)
        ]
    return "\n".join(rows) + "\n"


COMPARED: Mapping[str, Callable[[Comparison], str]] = MappingProxyType({
    "table": compared_table,
    "csv": lambda found: csv_text(list(compared_columns(found))) or "size_bytes\n",
    "json": compared_json,
    "nccl-tuner": tuner_csv,
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
        f' height="{height}" role="img" aria-label="{escaped(title)}">',
        f"<style>{STYLE}</style>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text class="title" x="{LEFT}" y="24">{escaped(title)}</text>',
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
        style = style_of(turn, dashes[turn // len(COLOURS) % len(dashes)])
        points = tuple((row.size, value(row.size, row.time)) for row in contender.rows if row.time)
        lines.append(Line(contender.name, style, points))
        drawn[of_nccl] += 1
    bounds = zip(found.sizes, found.bounds, strict=True)
    least = tuple((size, value(size, bound[1])) for size, bound in bounds if bound and bound[1])
    return [*lines, Line("bound", BOUND, least)]

"""Algorithms, files and NCCL's model side by side: a table by size, CSV and JSON.

Who is fastest is decided among what was replayed. NCCL's model counts other things (the launch of
its kernel, fits to measurements), so its times stand beside the others and win nothing.
"""

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType

from taccl.collectives import busbw_factor
from taccl.sim.sweep import Row
from taccl.units import Time, format_size, gigabytes_per_second, microseconds

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

"""Latencies and bandwidths measured between hosts, as a network that can be replayed on.

Three forms are told apart by content, and several files may be given together:

- a square matrix, cells separated by commas, semicolons, tabs or blanks. The first cell of a head
  line says what it is: ``us``, ``latency us@64KB``, ``bandwidth GB/s``; the rest of that line and
  the first cell of each row may be names. Without names the rows are 0, 1, 2 ...
- a list of pairs whose head line names its columns: ``src dst size latency_us bandwidth_GB/s``,
  in any order, without those that are not there.
- the output of ``osu_latency``, ``osu_multi_lat`` (with one pair) or ``osu_bw``, many of them in a
  file, each behind a line ``# pair: HOST HOST``; or one a file that is called ``HOST__HOST.txt``.

Cells may carry units of their own. A unit is understood exactly or refused: one that is passed over
makes every value wrong by powers of ten. ``Mbps`` are bits, ``MBps`` bytes; ``mbps`` could be
either, and is refused. What a host measured to itself is ignored. A latency that was measured in
one direction only serves both, and so does a bandwidth.

Every pair gets an alpha and a beta. Several latencies are fitted by alpha + beta s, each error
relative to what was measured; bandwidths, where there are any, say beta, and the latency of the
smallest message says alpha then. A pair is an edge of its own between the two hosts' ports:
``HOST.tx`` sends, ``HOST.rx`` receives, one message at a time, as fast as the fastest pair of that
host; alpha belongs to the pair.

References
----------
OSU Micro-Benchmarks 7, ``c/mpi/pt2pt/standard/osu_latency.c``, ``osu_bw.c``,
``c/util/osu_util_mpi.c`` (``print_preamble``, ``print_stats``).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from taccl.errors import InputError
from taccl.files import read_text, shown
from taccl.topology.graph import Edge, Switch, Topology
from taccl.units import (
    MAX_BETA,
    MAX_TIME,
    MIN_BETA,
    Time,
    ceil_time,
    parse_beta,
    parse_size,
    parse_time,
)

TIME_UNITS = ("ps", "ns", "us", "µs", "ms", "s")
RATE_UNITS = tuple(f"{p}{b}/s" for b in ("B", "b") for p in ("", "K", "M", "G", "T"))
SIZE_UNITS = ("B", "KB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "TiB")

COLUMNS: Mapping[str, str] = MappingProxyType({
    "src": "src", "source": "src", "from": "src", "dst": "dst", "dest": "dst",
    "destination": "dst", "to": "dst", "size": "size", "bytes": "size", "latency": "latency",
    "lat": "latency", "bandwidth": "bandwidth", "bw": "bandwidth",
})  # fmt: skip
"""Words, in lower case, and the column that they name."""

DEFAULTS: Mapping[str, str] = MappingProxyType({"size": "B", "latency": "us", "bandwidth": "GB/s"})
"""The units of columns that say none."""

_KINDS: Mapping[str, Sequence[str]] = MappingProxyType(
    {"size": SIZE_UNITS, "latency": TIME_UNITS, "bandwidth": RATE_UNITS}
)
_SPELLINGS: Mapping[str, str] = MappingProxyType({
    **{name: unit for unit, names in (
        ("s", ("sec", "secs", "second", "seconds")),
        ("ms", ("msec", "msecs", "millisecond", "milliseconds")),
        ("us", ("usec", "usecs", "microsecond", "microseconds", "\u00b5s", "\u03bcs")),
        ("ns", ("nsec", "nsecs", "nanosecond", "nanoseconds")),
        ("ps", ("psec", "psecs", "picosecond", "picoseconds")),
        ("B", ("byte", "bytes")),
    ) for name in names},
    **{f"{prefix}{name}": f"{prefix.upper()}{bits}/s"
       for prefix in ("", "K", "k", "M", "G", "T")
       for bits, names in (
           ("B", ("Bps", "B/s", "B/sec", "Byte/s", "Bytes/s", "Byte/sec", "Bytes/sec")),
           ("b", ("b/s", "b/sec", "bit/s", "bits/s", "bit/sec", "bits/sec")),
       ) for name in names},
    **{f"{prefix}bps": f"{prefix}b/s" for prefix in ("M", "G", "T")},
})  # fmt: skip
_APART = re.compile(r"[\s_()\[\]]+")
_SLASH = re.compile(r"(latency|lat|bandwidth|bw|size|bytes)[/.:\-](?=.)", re.IGNORECASE)
_SAYS_NOTHING = ("avg", "average", "mean", "median", "in")
_FIX = "write bandwidth_MB/s, latency_ms"


class Column(NamedTuple):
    """A column of a list: src, dst, size, latency, bandwidth or nothing known, and its unit."""

    name: str
    unit: str


def spelled(unit: str) -> str:
    """Return a unit as it is written elsewhere; one that is not known as it is."""
    return _SPELLINGS.get(unit, unit)


def words_of(cell: str) -> list[str]:
    """Return the words of a cell of a head line that say which quantity it is, or its unit."""
    words = _APART.split(_SLASH.sub(r"\1 ", cell, count=1))
    return [word for word in words if word and word.lower() not in _SAYS_NOTHING]


def name_of(cell: str) -> str:
    """Return which column a cell of a head line names; empty: none that is known."""
    words = words_of(cell)
    return COLUMNS.get(words[0].lower(), "") if words else ""


def unknown_unit(unit: str, file: str, line: int) -> InputError:
    """Return the error that refuses a unit.

    `unit` is what was found at a `line` of a `file`.
    """
    return InputError(f"has an unknown unit {shown(unit)}", file=file, line=line, fix=_FIX)


def columns_of(head: Sequence[str], file: str, line: int) -> tuple[Column, ...]:
    """Return the columns that `head` names: the cells of a list's head line, at `line` of `file`.

    Raises InputError when one has a unit that is not known or not its own, or is there twice, or is
    missing.
    """
    columns = tuple(_column(cell, file, line) for cell in head)
    names = [column.name for column in columns]
    begin = "begin with src dst size latency_us"
    for name in ("src", "dst"):
        if names.count(name) != 1:
            raise InputError(f"should name the column {name} once", file=file, line=line, fix=begin)
    for name, unit in DEFAULTS.items():
        if names.count(name) > 1:
            raise InputError(
                f"names the column {name} twice", file=file, line=line,
                fix=f"keep one of them, such as {name}_{unit}",
            )  # fmt: skip
    if not {"latency", "bandwidth"} & set(names):
        raise InputError("names neither latency nor bandwidth", file=file, line=line, fix=begin)
    for cell, name in zip(head, names, strict=True):
        for quantity in ("latency", "bandwidth"):
            if not name and quantity not in names and quantity in cell.lower():
                raise InputError(
                    f"should name the column {quantity} first, then its unit, got {shown(cell)}",
                    file=file, line=line, fix=_FIX,
                )  # fmt: skip
    return columns


def _column(cell: str, file: str, line: int) -> Column:
    name = name_of(cell)
    if name not in DEFAULTS:
        return Column(name, "")
    units = [spelled(word) for word in words_of(cell)[1:]]
    for unit in units:
        if not any(unit in known for known in _KINDS.values()):
            raise unknown_unit(unit, file, line)
    if len(units) > 1 or any(unit not in _KINDS[name] for unit in units):
        raise InputError(
            f"should be one quantity with its unit, got {shown(cell)}",
            file=file, line=line, fix=_FIX,
        )  # fmt: skip
    return Column(name, units[0] if units else DEFAULTS[name])


MAX_HOSTS = 1024
"""More would have more links than a topology can hold."""

MAX_SAMPLES = 4_000_000
MAX_NAME = 64

_NAME = re.compile(r"[\w.\-:/@]+", re.ASCII)
_SPLIT = re.compile(r"\s*[,;\t]\s*")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,2})?")
_PAIR = re.compile(r"#\s*pair\s*[:=]?\s*(\S+?)(?:\s*->\s*|\s*,\s*|\s+)(\S+)\s*", re.IGNORECASE)
_OSU = re.compile(r"#\s*OSU\b", re.IGNORECASE)
_OSU_LATENCY = re.compile(r"#\s*Size\b.*\bLatency\s*\(us\)", re.IGNORECASE)
_OSU_RATE = re.compile(r"#\s*Size\b.*\bBandwidth\s*\(MB/s\)", re.IGNORECASE)
_EMPTY = ("", "-", "x", "n/a")

Pair = tuple[int, int]


@dataclass(slots=True)
class Measurements:
    """What was measured, pair by pair.

    `names` are hosts (or ranks) in the order in which they appear. `latencies` has for (src, dst)
    bytes and picoseconds of each message measured, `betas` picoseconds for each byte, of each
    bandwidth measured. `file` is where they are from; of several, the first.
    """

    names: list[str] = field(default_factory=list)
    latencies: dict[Pair, list[tuple[int, Time]]] = field(default_factory=dict)
    betas: dict[Pair, list[Fraction]] = field(default_factory=dict)
    file: str = ""

    def number(self, name: str, place: "_Place") -> int:
        """Return the number of a host, a new one for a new name."""
        if name in self._numbers:
            return self._numbers[name]
        if len(name) > MAX_NAME or not _NAME.fullmatch(name):
            raise place.error(
                f"should be the name of a host, got {shown(name)}",
                "use letters, digits and _ . - : / @",
            )
        if len(self.names) >= MAX_HOSTS:
            raise place.error(f"there are more than {MAX_HOSTS} hosts", "measure fewer of them")
        self._numbers[name] = len(self.names)
        self.names.append(name)
        return self._numbers[name]

    def add(self, pair: Pair, size: int, value: "Value") -> None:
        """Keep a value."""
        if pair[0] == pair[1]:
            return
        if isinstance(value, Fraction):
            self.betas.setdefault(pair, []).append(value)
        else:
            self.latencies.setdefault(pair, []).append((size, value))

    _numbers: dict[str, int] = field(default_factory=dict)


Value = Time | Fraction
"""A latency is an int of picoseconds, a bandwidth a fraction of picoseconds for each byte."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where something is in a file."""

    file: str
    line: int
    field: str | None = None

    def at(self, name: str) -> "_Place":
        return _Place(self.file, self.line, name)

    def error(self, problem: str, fix: str) -> InputError:
        return InputError(problem, file=self.file, line=self.line, field=self.field, fix=fix)


Row = tuple[int, list[str]]
"""Number of a line, and its cells."""


def read_measurements(files: Sequence[str], unit: str | None = None) -> Measurements:
    """Return what some files say together.

    `files` are paths, `unit` is that of matrices that do not say it: a time is a latency, a rate a
    bandwidth.

    Raises InputError when a file is in none of the forms, with the line and the cell.
    """
    unit = unit and spelled(unit)
    if unit is not None and unit not in (*TIME_UNITS, *RATE_UNITS):
        raise InputError(
            f"should be a unit of time or bandwidth, got {shown(unit)}", field="--unit",
            fix="write us for a latency, GB/s for a bandwidth",
        )  # fmt: skip
    found = Measurements(file=files[0])
    for file in files:
        lines = read_text(file).splitlines()
        head = next((cells for _, cells in _rows(lines[:1000])), [])
        if any(_OSU.match(line) or _PAIR.fullmatch(line) for line in lines):
            _read_osu(lines, file, found)
        elif {"src", "dst"} & {name_of(cell) for cell in head}:
            _read_pairs(lines, file, found)
        else:
            _read_matrix(lines, file, found, unit)
    if len(found.names) < 2:
        raise InputError("has fewer than two hosts", file=files[0], fix="measure between hosts")
    return found


def _rows(lines: Sequence[str]) -> Iterator[Row]:
    """Yield the cells of lines that are neither empty nor a comment."""
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if text and not text.startswith("#"):
            cells = _SPLIT.split(line.strip(" \r\n")) if re.search("[,;\t]", text) else text.split()
            yield number, [cell.strip().strip('"').strip() for cell in cells]


def _value(cell: str, unit: str | None, place: _Place) -> Value:
    """Return a cell as a latency or a bandwidth.

    Raises InputError when it is neither, not finite, or negative.
    """
    number = _NUMBER.match(cell)
    text = number[0] + spelled(cell[number.end() :].strip()) if number else cell
    if number and number[0] == cell:
        if unit is None:
            raise place.error(
                "has no unit", "write us or GB/s in the first cell of the head line, or give --unit"
            )
        text = f"{cell}{unit}"
    try:
        is_time = text.endswith(TIME_UNITS) and "/" not in text
        return parse_time(text) if is_time else parse_beta(text)
    except InputError as error:
        what = "a latency or a bandwidth"
        raise place.error(
            f"should be {what}, got {shown(cell)}: {error.problem}"
            if number else f"should be {what}, got {shown(cell)}",
            "write a number that is finite and not negative, such as 12.5, 3us or 25GB/s",
        ) from None  # fmt: skip


def _read_matrix(lines: Sequence[str], file: str, found: Measurements, unit: str | None) -> None:
    rows = list(_rows(lines))
    if not rows:
        raise InputError("is empty", file=file, fix="give a matrix, a list of pairs or OSU output")
    size, heads, body = 0, [], rows
    line, first = rows[0]
    if _numbered(rows, _Place(file, line)):
        heads, body = first[1:], rows[1:]
    elif not all(_NUMBER.match(cell) or cell.lower() in (*_EMPTY, "nan", "inf") for cell in first):
        place = _Place(file, line, "first cell")
        unit, size, named = _head(first[0], unit, place, corner=len(first) == len(rows))
        heads, body = first[1:] if named else first, rows[1:]
    width = len(heads) if heads else len(body)
    labelled = bool(body) and len(body[0][1]) == width + 1
    _check_square(_Place(file, line), body, width, labelled=labelled)
    labels = [cells[0] for _, cells in body] if labelled else []
    names = heads or labels or [str(number) for number in range(len(body))]
    if labels and heads and labels != heads:
        wrong = next(i for i, (a, b) in enumerate(zip(labels, heads, strict=True)) if a != b)
        raise _Place(file, body[wrong][0]).error(
            f"is the row of {shown(labels[wrong])}, the column is that of {shown(heads[wrong])}",
            "name rows and columns in one order",
        )
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise _Place(file, line).error(f"names {shown(twice)} twice", "name every host once")
    hosts = [found.number(name, _Place(file, line, "names")) for name in names]
    for src, (at, cells) in enumerate(body):
        for dst, cell in enumerate(cells[labelled:]):
            if src != dst and cell.lower() not in _EMPTY:
                place = _Place(file, at, f"{names[src]} -> {names[dst]}")
                found.add((hosts[src], hosts[dst]), size, _value(cell, unit, place))


def _numbered(rows: Sequence[Row], place: _Place) -> bool:
    """Tell whether numbers in the first row and column are names, as pandas' ``to_csv`` has them.

    Raises InputError when they may as well be the values of a symmetric matrix with an empty
    diagonal.
    """
    first = rows[0][1]
    names = first[1:]
    if not (
        first[0] == "" and len(rows) == len(first) and len(set(names)) == len(names)
        and names == [cells[0] for _, cells in rows[1:]]
    ):  # fmt: skip
        return False
    if names in ([str(i) for i in range(begin, begin + len(names))] for begin in (0, 1)):
        return True
    if any(cells[i : i + 1] != [""] for i, (_, cells) in enumerate(rows)):
        return True
    if all(name.isdecimal() for name in names):
        raise place.error(
            "has numbers that may be names or values",
            "write us or GB/s in the first cell before names, - on the diagonal without any",
        )
    return not any(_NUMBER.match(name) for name in names)


def _head(
    cell: str, unit: str | None, place: _Place, *, corner: bool
) -> tuple[str | None, int, bool]:
    """Return unit and size that the first cell says, and whether it is no name of a host."""
    text, _, size = cell.partition("@")
    words = words_of(text)
    known = [spelled(word) for word in words if spelled(word) in (*TIME_UNITS, *RATE_UNITS)]
    said = [word for word in words if COLUMNS.get(word.lower()) in ("latency", "bandwidth")]
    if len(known) + len(said) < len(words) or not words:
        if said and corner:
            wrong = (w for w in words if w not in said and spelled(w) not in known)
            raise unknown_unit(next(wrong), place.file, place.line)
        return unit, _size(size, place) if size and not text else 0, not text
    if len(known) > 1 or (
        known and said and (known[0] in TIME_UNITS) != (COLUMNS[said[0].lower()] == "latency")
    ):
        raise place.error(
            f"should be one quantity with its unit, got {shown(cell)}",
            "write latency us or bandwidth GB/s",
        )
    defaults = {"latency": "us", "bandwidth": "GB/s"}
    told = known[0] if known else defaults[COLUMNS[said[0].lower()]]
    return told, _size(size, place) if size else 0, True


def _check_square(head: _Place, body: Sequence[Row], width: int, *, labelled: bool) -> None:
    fix = "give as many rows as columns; leave no cell out, write - on the diagonal"
    if len(body) > MAX_HOSTS:
        raise head.error(
            f"has {len(body)} rows, at most {MAX_HOSTS} can be placed", "measure fewer"
        )
    if len(body) != width:
        raise head.error(f"is not square: {len(body)} rows, {width} names", fix)
    for line, cells in body:
        if len(cells) - labelled != width:
            raise _Place(head.file, line).error(
                f"is not square: {len(body)} rows, and {len(cells) - labelled} cells in this one",
                fix,
            )


def _read_pairs(lines: Sequence[str], file: str, found: Measurements) -> None:
    rows = _rows(lines)
    line, head = next(rows)
    columns = columns_of(head, file, line)
    names, units = [column.name for column in columns], dict(columns)
    for number, (at, cells) in enumerate(rows):
        place = _Place(file, at)
        if number >= MAX_SAMPLES:
            raise place.error(f"has more than {MAX_SAMPLES} lines", "give fewer sizes")
        if len(cells) != len(columns):
            raise place.error(
                f"should have {len(columns)} columns, got {len(cells)}", "fill every column"
            )
        record = dict(zip(names, cells, strict=True))
        pair = tuple(found.number(record[end], place.at(end)) for end in ("src", "dst"))
        size = _size(record["size"], place.at("size"), units["size"]) if "size" in record else 0
        for name in ("latency", "bandwidth"):
            if record.get(name, "").lower() not in _EMPTY:
                value = _value(record[name], units[name], place.at(name))
                found.add((pair[0], pair[1]), size, value)


def _size(cell: str, place: _Place, unit: str = "B") -> int:
    if re.fullmatch(r"0+B?", cell):
        return 0
    try:
        return parse_size(f"{cell}{unit}" if _NUMBER.fullmatch(cell) else cell)
    except InputError as error:
        raise place.error(error.problem, "write bytes, or 64KB (64000), or 64KiB (65536)") from None


def _read_osu(lines: Sequence[str], file: str, found: Measurements) -> None:
    ends = tuple(Path(file).stem.split("__"))
    what = ""
    for number, line in enumerate(lines, 1):
        place = _Place(file, number)
        text = line.strip()
        named = _PAIR.fullmatch(text)
        if named:
            ends, what = named.groups(), ""
        elif _OSU_LATENCY.match(text) or _OSU_RATE.match(text):
            what = "latency" if _OSU_LATENCY.match(text) else "bandwidth"
        elif text and not text.startswith("#"):
            if len(ends) != 2:
                raise place.error(
                    "does not say between which hosts",
                    "write a line # pair: HOST HOST before it, or call the file HOST__HOST.txt",
                )
            if not what:
                raise place.error(
                    "is in no table of latency (us) or bandwidth (MB/s)",
                    "give the output of osu_latency, osu_multi_lat or osu_bw",
                )
            src, dst = (found.number(end, place) for end in ends)
            cells = text.split()
            if len(cells) < 2:
                raise place.error(
                    f"should be a size and a {what}, got {shown(cells[0])}", "give it whole"
                )
            size = _size(cells[0], place.at("size"))
            unit = "us" if what == "latency" else "MB/s"
            found.add((src, dst), size, _value(cells[1], unit, place.at(what)))


def first_missing(found: Measurements) -> tuple[str, str] | None:
    """Return two hosts between which nothing was measured in either direction."""
    measured = {frozenset(pair) for kind in (found.latencies, found.betas) for pair in kind}
    hosts = range(len(found.names))
    return next(
        (
            (found.names[a], found.names[b])
            for a in hosts for b in range(a + 1, len(hosts)) if frozenset((a, b)) not in measured
        ),
        None,
    )  # fmt: skip


_DIGITS = 10**6
"""Fitted betas are rounded to millionths of a picosecond for each byte."""


def measured_topology(
    found: Measurements, server_of: Sequence[int], *, alpha_rule: str = "occupy"
) -> Topology:
    """Return the network of hosts that everything was measured between.

    `found` has latencies and bandwidths of pairs, `server_of` the server of each host, all
    different where a host is a server; `alpha_rule`, ``occupy`` or ``delay``, is what overhead an
    edge has.

    Raises InputError when nothing was measured between two hosts, in neither direction.
    """
    missing = first_missing(found)
    if missing is not None:
        raise InputError(
            f"nothing was measured between {missing[0]} and {missing[1]}", file=found.file,
            fix="measure every pair in one direction at least, or leave a host out",
        )  # fmt: skip
    hosts = range(len(found.names))
    costs = {(a, b): pair_costs(found, a, b) for a in hosts for b in hosts if a != b}
    sends = [min(costs[a, b][1] for b in hosts if b != a) for a in hosts]
    receives = [min(costs[a, b][1] for a in hosts if a != b) for b in hosts]
    n = len(hosts)
    edges = [Edge(a, a, n + a, 0, None, sends[a], f"{found.names[a]}.send") for a in hosts]
    edges += [
        Edge(n + b, 2 * n + b, b, 0, None, receives[b], f"{found.names[b]}.receive") for b in hosts
    ]
    edges += [
        Edge(2 * n + i, n + a, 2 * n + b, alpha, None, beta, f"{found.names[a]}->{found.names[b]}")
        for i, ((a, b), (alpha, beta)) in enumerate(costs.items())
    ]
    switches = [Switch(f"{name}.{side}") for side in ("tx", "rx") for name in found.names]
    return Topology(
        "measured", n, tuple(switches), tuple(edges), tuple(server_of), alpha_rule=alpha_rule
    )


def pair_costs(found: Measurements, src: int, dst: int) -> tuple[Time, Fraction]:
    """Return alpha and beta from host `src` to host `dst`, numbers of `found`.

    What was measured the other way serves where nothing else. Without any bandwidth, and one size
    of messages, bytes cost as good as nothing.
    """
    pair, back = (src, dst), (dst, src)
    latencies = found.latencies.get(pair) or found.latencies.get(back) or []
    betas = found.betas.get(pair) or found.betas.get(back) or []
    if betas:
        beta = min(betas)
        size, time = min(latencies, default=(0, 0))
        return max(0, time - ceil_time(beta, size)), beta
    return fit(latencies)


def fit(latencies: Sequence[tuple[int, Time]]) -> tuple[Time, Fraction]:
    """Return the alpha and beta whose times are closest to those measured, error by error."""
    sizes = np.array([size for size, _ in latencies], np.float64)
    times = np.array([time for _, time in latencies], np.float64)
    weights = 1 / np.maximum(times, 1.0)
    if len(set(sizes.tolist())) < 2:
        return round(float(np.mean(times))), MIN_BETA
    columns = np.stack([weights, weights * sizes], axis=1)
    alpha, beta = np.linalg.lstsq(columns, weights * times, rcond=None)[0].tolist()
    if alpha < 0:
        alpha, beta = 0.0, float(np.mean(times[sizes > 0] / sizes[sizes > 0]))
    if beta <= 0:
        alpha, beta = float(np.mean(times)), 0.0
    exact = Fraction(round(beta * _DIGITS), _DIGITS)
    return min(round(alpha), MAX_TIME), min(max(exact, MIN_BETA), MAX_BETA)

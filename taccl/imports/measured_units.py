"""What the cells of head lines say in measured files: a quantity, and the unit it is in.

A unit is understood exactly or refused: one that is passed over makes every value wrong by
powers of ten. ``Mbps`` are bits, ``MBps`` bytes; ``mbps`` could be either, and is refused.
"""

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from taccl.errors import InputError
from taccl.files import shown

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
    """Return the error that refuses a unit."""
    return InputError(f"has an unknown unit {shown(unit)}", file=file, line=line, fix=_FIX)


def columns_of(head: Sequence[str], file: str, line: int) -> tuple[Column, ...]:
    """Return the columns that the head line of a list of pairs names.

    Raises
    ------
    InputError
        When one has a unit that is not known or not its own, or is there twice, or is missing.
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

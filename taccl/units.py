"""Quantities: integer picoseconds, bytes, and ps per byte as an exact fraction.

Inside, a time is an int of picoseconds, a size an int of bytes and a beta a
:class:`~fractions.Fraction` of picoseconds for each byte. Outside, times are microseconds,
MB is 1e6 bytes and GB 1e9; MiB and GiB, or M and G alone as nccl-tests writes them, count in powers
of two.
"""

import re
from collections.abc import Iterable
from fractions import Fraction

from taccl.errors import InputError

Time = int
"""Picoseconds."""

PS_PER_US = 1_000_000
PS_PER_S = 10**12
MAX_TIME = 1000 * PS_PER_S
MAX_SIZE = 1 << 50
MAX_BETA = Fraction(10**9)
"""Slowest accepted: 1e9 ps for each byte, which is 1 KB/s."""
MIN_BETA = Fraction(1, 10**6)
"""Fastest accepted: 1e-6 ps for each byte, which is 1e9 GB/s."""

_NUMBER = re.compile(
    r"\s*([+-]?(?:\d{1,24}(?:\.\d{0,24})?|\.\d{1,24})(?:[eE][+-]?\d{1,2})?)(?![\d.]|[eE][+-]?\d)\s*(.*)"
)

_TIME_UNITS = {"ps": 1, "ns": 1000, "us": PS_PER_US, "µs": PS_PER_US, "ms": 10**9, "s": PS_PER_S}
_SIZE_UNITS = {
    "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
}  # fmt: skip
_BARE_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
"""Of sizes alone (nccl-tests, ``src/common.cu``: ``parsesize``)."""
_RATE_UNITS = {
    **{f"{prefix}B/s": Fraction(scale) for prefix, scale in
       (("", 1), ("K", 10**3), ("M", 10**6), ("G", 10**9), ("T", 10**12))},
    **{f"{prefix}b/s": Fraction(scale, 8) for prefix, scale in
       (("", 1), ("K", 10**3), ("M", 10**6), ("G", 10**9), ("T", 10**12))},
}  # fmt: skip
_EXACT = re.compile(r"\s*(\d{1,80})/(\d{1,80})\s*(ps/B|B)\s*")
_ALIASES = {"kb": "KB", "mb": "MB", "gb": "GB", "tb": "TB", "b": "B",
            "kib": "KiB", "mib": "MiB", "gib": "GiB", "tib": "TiB",
            "k": "K", "m": "M", "g": "G", "t": "T"}  # fmt: skip


def _split(text: object, what: str, example: str) -> tuple[Fraction, str]:
    """Split a quantity into its number and its unit."""
    if isinstance(text, bool) or not isinstance(text, (str, int, float)):
        raise InputError(f"should be {what}, got {text!r}", fix=f"write {example}")
    match = _NUMBER.fullmatch(str(text)) if len(str(text)) <= 64 else None
    if match is None:
        shown = str(text)[:40]
        raise InputError(f"should be {what}, got {shown!r}", fix=f"write {example}")
    return Fraction(match[1]), match[2].strip()


def _unknown_unit(unit: str, text: object, known: Iterable[str], example: str) -> InputError:
    names = ", ".join(name for name in known if name)
    return InputError(
        f"unknown unit {unit[:20]!r} in {text!r}", fix=f"use one of {names}, such as {example}"
    )


def _exact(text: object, unit: str) -> Fraction | None:
    """Return the number before an exact ``p/q unit``, 0 for q = 0; None where it is none."""
    match = _EXACT.fullmatch(text) if isinstance(text, str) and len(text) <= 200 else None
    if match is None or match[3] != unit:
        return None
    return Fraction(int(match[1]), int(match[2])) if int(match[2]) else Fraction(0)


def parse_time(text: object) -> Time:
    """Return picoseconds, rounded to the nearest; a plain number is microseconds.

    Raises InputError when the text is not a time, is negative, or is above 1000 s.
    """
    example = "0.7us or 700ns"
    number, unit = _split(text, "a time", example)
    if unit and unit not in _TIME_UNITS:
        raise _unknown_unit(unit, text, _TIME_UNITS, example)
    value = round(number * _TIME_UNITS.get(unit or "us", 1))
    if not 0 <= value <= MAX_TIME:
        raise InputError(
            f"should be a time between 0 and 1000s, got {text}", fix=f"write {example}"
        )
    return value


def parse_size(text: object) -> int:
    """Return bytes; a plain number is bytes, and K, M, G and T alone are powers of two.

    Raises InputError when the text is not a whole number of bytes above 0 and at most 2^50.
    """
    example = "1MB (1e6 bytes), or 1MiB or 1M (2^20 bytes)"
    number, unit = _split(text, "a size", example)
    unit = _ALIASES.get(unit.lower(), unit)
    known = {**_SIZE_UNITS, **_BARE_UNITS}
    if unit and unit not in known:
        raise _unknown_unit(unit, text, known, example)
    value = number * known.get(unit or "B", 1)
    if value.denominator != 1 or not 0 < value <= MAX_SIZE:
        raise InputError(
            f"should be a whole number of bytes from 1 to 2^50, got {text}", fix=f"write {example}"
        )
    return int(value)


def parse_beta(text: object) -> Fraction:
    """Return ps per byte from a bandwidth (``25GB/s``, ``200Gb/s``) or a beta (``46us/MB``).

    A plain number is GB/s; ``p/q ps/B`` is an exact fraction, as :func:`beta_text` writes it.

    Raises InputError when the text is neither, or is not above 0, or is beyond any hardware.
    """
    example = "a bandwidth or a beta above 0, such as 21.7GB/s or 46us/MB"
    exact = _exact(text, "ps/B")
    number, unit = _split(text, "a bandwidth", example) if exact is None else (exact, "ps/B")
    if number <= 0:
        raise InputError(f"should be greater than 0, got {text}", fix=f"give {example}")
    unit = unit or "GB/s"
    time, slash, size = unit.partition("/")
    size = _ALIASES.get(size.lower(), size)
    if unit in _RATE_UNITS:
        beta = Fraction(PS_PER_S) / (number * _RATE_UNITS[unit])
    elif slash and time in _TIME_UNITS and size in _SIZE_UNITS:
        beta = number * _TIME_UNITS[time] / _SIZE_UNITS[size]
    else:
        known = [*_RATE_UNITS, "us/MB"]
        raise _unknown_unit(unit, text, known, "25GB/s, 200Gb/s or 46us/MB")
    if not MIN_BETA <= beta <= MAX_BETA:
        raise InputError(f"should be between 1KB/s and 1e9GB/s, got {text}", fix=f"give {example}")
    return beta


def beta_text(beta: Fraction) -> str:
    """Return a beta so that :func:`parse_beta` gives the same fraction."""
    scaled = beta * 10**12
    if scaled.denominator != 1 or scaled >= 10**24:
        return f"{beta.numerator}/{beta.denominator} ps/B"
    whole, places = divmod(int(scaled), 10**12)
    return f"{whole}.{places:012d}".rstrip("0").rstrip(".") + "us/MB"


def parse_exact_size(text: object) -> Fraction:
    """Return bytes as a fraction: as :func:`parse_size`, or ``p/q B``.

    Raises InputError when the text is no size, or is not above 0 and at most 2^50 bytes.
    """
    size = _exact(text, "B")
    if size is None:
        return Fraction(parse_size(text))
    if not 0 < size <= MAX_SIZE:
        raise InputError(
            f"should be above 0 and at most 2^50 bytes, got {text}", fix="write 1KB or 125/4 B"
        )
    return size


def exact_size_text(size: Fraction) -> str:
    """Return a size so that :func:`parse_exact_size` gives the same fraction."""
    if size.denominator == 1:
        return f"{size.numerator}B"
    return f"{size.numerator}/{size.denominator} B"


def ceil_time(beta: Fraction, size: Fraction | int) -> Time:
    """Return the picoseconds that ``size`` bytes take at ``beta`` ps a byte, rounded up."""
    exact = beta * size
    return -(-exact.numerator // exact.denominator)


def microseconds(time: Time) -> float:
    """Return a time in microseconds, for printing and JSON."""
    return time / PS_PER_US


def format_time(time: Time) -> str:
    """Return a time such as ``12.3 us``."""
    return f"{time / PS_PER_US:.6g} us"


def format_size(size: Fraction | int) -> str:
    """Return a size such as ``1MB``, ``31.25KB``, ``64B`` or, where that is shorter, ``4MiB``."""
    found = []
    for units in (("GB", "MB", "KB", "B"), ("GiB", "MiB", "KiB", "B")):
        unit = next((unit for unit in units if size >= _SIZE_UNITS[unit]), "B")
        found.append((f"{float(Fraction(size) / _SIZE_UNITS[unit]):.6g}", unit))
    (decimal, unit), (binary, other) = found
    # A power of two in MB is rounded, and what is rounded can't be given to -b again.
    exact = Fraction(binary) * _SIZE_UNITS[other] == size
    return f"{binary}{other}" if exact and len(binary) < len(decimal) else f"{decimal}{unit}"


def counted(number: int, what: str) -> str:
    """Return a ``number`` of things called ``what``: ``1 chunk``, ``2 chunks``."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def gigabytes_per_second(size: Fraction | int, time: Time) -> float:
    """Return ``size`` bytes in ``time`` picoseconds as GB/s (1e9 bytes); 0 for no time."""
    return float(Fraction(size) * 1000 / time) if time > 0 else 0.0

"""Numbers as the runtimes read them: C's ``strtol`` and ``strtoll`` with base 0, never an error.

``010`` is 8, ``0x10`` is 16, ``1e6`` is 1 and ``abc`` is 0 (``xmlGetAttrInt``). What does not fit
64 bits is clamped, what does not fit an ``int`` loses its upper bits.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType

_COMMON: Mapping[str, int] = MappingProxyType({str(number): number for number in range(-1, 4096)})
"""Most numbers of a program, for speed."""

_NUMBER = re.compile(
    r"[ \t\n\r\v\f]*([+-]?)(?:0[xX]([0-9a-fA-F]+)|0([0-7]*)|([1-9][0-9]*))", re.ASCII
)
_MAX_DIGITS = 20


def to_int64(text: str) -> int:
    """Return what ``strtoll`` makes of a text."""
    common = _COMMON.get(text)
    if common is not None:
        return common
    found = _NUMBER.match(text)
    if found is None:
        return 0
    sign, hexadecimal, octal, decimal = found.groups()
    digits, base = (
        (hexadecimal, 16) if hexadecimal else (decimal, 10) if decimal else (octal or "0", 8)
    )
    digits = digits.lstrip("0") or "0"
    # More digits than 64 bits have in octal: the value is clamped, and int() would be slow.
    value = 1 << 64 if len(digits) > _MAX_DIGITS + 3 else int(digits, base)
    value = -value if sign == "-" else value
    return max(-(1 << 63), min(value, (1 << 63) - 1))


def to_int(text: str) -> int:
    """Return what ``strtol`` makes of a text once it is stored in an ``int``."""
    common = _COMMON.get(text)
    if common is not None:
        return common
    value = to_int64(text)
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)


def is_plain(text: str) -> bool:
    """Tell whether a text is the decimal number that everybody reads it as."""
    return text in _COMMON or re.fullmatch(r"-?[1-9][0-9]{0,18}|0", text, re.ASCII) is not None

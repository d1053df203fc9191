"""Types of fields that many files share: quantities with units, names, sets of numbers."""

import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, Field, PlainValidator, StrictInt, StrictStr, WithJsonSchema
from pydantic_core import PydanticCustomError

from taccl.errors import InputError
from taccl.files.parse import shown
from taccl.units import Time, parse_beta, parse_exact_size, parse_time

MAX_RANKS = 65_536
_SIGNS = r"\w.\-/:+@=>*#()\[\],&"
_NAME = rf"^[{_SIGNS}](?:[{_SIGNS} ]*[{_SIGNS}])?$"
_RANGE = re.compile(r"\s*(\d{1,6})\s*(?:-\s*(\d{1,6})\s*)?")

T = TypeVar("T")


def refuse(problem: str, fix: str) -> PydanticCustomError:
    """Return the error that a validator raises to be reported with its place."""
    return PydanticCustomError("taccl", "{problem}", {"problem": problem, "fix": fix})


def checked(parse: Callable[[Any], T], what: str, fix: str) -> Callable[[object], T]:
    """Return a validator that parses text or a number, and reports what the parser refuses."""

    def validate(value: object) -> T:
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise refuse(f"should be {what}, got {shown(value)}", fix)
        if shown(value) == "a number with too many digits":
            raise refuse(f"should be {what}, got {shown(value)}", fix)
        try:
            return parse(value)
        except InputError as error:
            raise refuse(error.problem, error.fix or fix) from None

    return validate


def _rate_or_free(value: object) -> Fraction:
    """Return a beta; 0 means that the work is free."""
    free = isinstance(value, (int, float)) and value == 0
    return Fraction(0) if free else parse_beta(value)


def _rate_or_none(value: object) -> Fraction | None:
    return None if value is None or value == "none" else _rate(value)


_rate = checked(parse_beta, "a bandwidth", "write 25GB/s, 200Gb/s or 46us/MB")
_QUANTITY = {"type": ["string", "number"]}

Duration = Annotated[
    Time,
    PlainValidator(checked(parse_time, "a time", "write 0.7us or 700ns")),
    WithJsonSchema({**_QUANTITY, "description": "a time, such as 0.7us; plain numbers are us"}),
]
"""Picoseconds."""

Beta = Annotated[
    Fraction,
    PlainValidator(_rate),
    WithJsonSchema({**_QUANTITY, "description": "25GB/s, 200Gb/s or 46us/MB; plain: GB/s"}),
]
"""Picoseconds for each byte."""

BetaOrNone = Annotated[
    Fraction | None,
    PlainValidator(_rate_or_none),
    WithJsonSchema({
        "type": ["string", "number", "null"],
        "description": "25GB/s, 200Gb/s or 46us/MB; plain: GB/s; none: no resource",
    }),
]  # fmt: skip
"""Picoseconds for each byte, or None for an edge that is no resource."""

BetaOrFree = Annotated[
    Fraction,
    PlainValidator(checked(_rate_or_free, "a bandwidth", "write 600GB/s, or 0 for free")),
    WithJsonSchema({**_QUANTITY, "description": "a bandwidth such as 600GB/s; 0: free"}),
]
"""Picoseconds for each byte; 0 is free."""

ExactSize = Annotated[
    Fraction,
    PlainValidator(checked(parse_exact_size, "a size", "write 1KB or 1MiB")),
    WithJsonSchema({**_QUANTITY, "description": "bytes, such as 1KB, 1MiB or 125/4B"}),
]
"""Bytes, exact."""

Name = Annotated[StrictStr, Field(min_length=1, max_length=200, pattern=_NAME)]
"""A name that can stand in messages, XML and file names."""

Count = Annotated[StrictInt, Field(ge=1, le=MAX_RANKS)]
"""A whole number from 1 to 65536."""

Index = Annotated[StrictInt, Field(ge=0, lt=MAX_RANKS)]
"""A rank or the number of a GPU."""

PermutationList = Annotated[list[StrictInt], Field(max_length=MAX_RANKS)]
"""A permutation as a list of numbers; its user checks that it is one."""


def parse_numbers(value: object) -> tuple[int, ...] | None:
    """Return the numbers of ``3``, ``[0, 1]``, ``0-15`` or ``0-3,8``; None for ``all``.

    Raises
    ------
    InputError
        When it is no such set, or names a number twice.
    """
    if value == "all":
        return None
    parts: Sequence[object] = value if isinstance(value, (list, tuple)) else [value]
    numbers: list[int] = []
    for part in parts:
        numbers.extend(_numbers_in(part))
        if len(numbers) > MAX_RANKS:
            raise _no_numbers(value)
    if not numbers or len(set(numbers)) < len(numbers):
        raise _no_numbers(value)
    return tuple(numbers)


def _numbers_in(part: object) -> Sequence[int]:
    if isinstance(part, int) and not isinstance(part, bool) and 0 <= part < MAX_RANKS:
        return (part,)
    if not isinstance(part, str) or len(part) > 2000:
        raise _no_numbers(part)
    numbers: list[int] = []
    for piece in part.split(","):
        match = _RANGE.fullmatch(piece)
        if match is None:
            raise _no_numbers(part)
        first = int(match[1])
        last = int(match[2]) if match[2] else first
        if not first <= last < MAX_RANKS or len(numbers) > MAX_RANKS:
            raise _no_numbers(part)
        numbers.extend(range(first, last + 1))
    return numbers


def _no_numbers(value: object) -> InputError:
    return InputError(
        f"should be numbers of GPUs, each once, got {shown(value)}",
        fix="write 0-15, [0, 1], 3 or all",
    )


def _numbers(value: object) -> tuple[int, ...] | None:
    try:
        return parse_numbers(value)
    except InputError as error:
        raise refuse(error.problem, error.fix or "") from None


Numbers = Annotated[
    tuple[int, ...] | None,
    PlainValidator(_numbers),
    WithJsonSchema({
        "type": ["string", "integer", "array"],
        "description": "numbers of GPUs: 0-15, [0, 1], 3 or all",
    }),
]  # fmt: skip
"""Numbers of GPUs; None stands for all."""


def whole_number_keys(value: object) -> object:
    """Return a mapping whose digit keys are ints, as JSON can only have text for keys."""
    if not isinstance(value, dict):
        return value
    return {
        int(key) if isinstance(key, str) and re.fullmatch(r"\d{1,6}", key) else key: item
        for key, item in value.items()
    }


WholeNumberKeys = BeforeValidator(whole_number_keys)

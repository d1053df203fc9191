"""The format of scenario files: what disturbs a machine while programs run on it."""

import re
from collections.abc import Callable
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import Field, PlainValidator, StrictBool, StrictInt, StrictStr, WithJsonSchema

from taccl.errors import InputError
from taccl.files import FileModel, shown
from taccl.files.fields import Duration, Name, Numbers, checked
from taccl.units import parse_size

MAX_ENTRIES = 1000
"""Entries of each list of a scenario."""

MAX_RUNS = 10_000

_NUMBER = re.compile(r"\d{1,12}(?:\.\d{1,12})?(?:e-?\d)?|\.\d{1,12}(?:e-?\d)?|\d{1,12}/\d{1,12}")


def _exact(value: object) -> Fraction | None:
    """Return a number as it is written, exactly; None when it is none."""
    text = str(value).strip().lower()
    if not _NUMBER.fullmatch(text) or re.search(r"/0+$", text):
        return None
    return Fraction(text)


def _between(low: Fraction, high: Fraction, words: str, example: str) -> Callable[..., Fraction]:
    """Return a validator of numbers from ``low`` to ``high``, which it returns exactly."""
    what, fix = f"a number {words}", f"write {example}"

    def parse(value: object) -> Fraction:
        number = _exact(value)
        if number is None or not low <= number <= high:
            raise InputError(f"should be {what}, got {shown(value)}", fix=fix)
        return number

    return checked(parse, what, fix)


_ONE, _LEAST = Fraction(1), Fraction(1, 10**6)
_UP_TO_ONE = _between(_LEAST, _ONE, "from 0.000001 to 1", "0.5")
_BELOW_ONE = _between(Fraction(0), _ONE - _LEAST, "from 0 to 0.999999", "0.3")
_FROM_ONE = _between(_ONE, _ONE / _LEAST, "from 1 to 1000000", "1.5")
_AS_NUMBER = {"type": ["number", "string"]}

Factor = Annotated[
    Fraction,
    PlainValidator(_UP_TO_ONE),
    WithJsonSchema(
        {**_AS_NUMBER, "description": "a number from 0.000001 to 1, such as 0.5 or 1/3"}
    ),
]
Share = Annotated[
    Fraction,
    PlainValidator(_BELOW_ONE),
    WithJsonSchema({**_AS_NUMBER, "description": "a number from 0 to 0.999999, such as 0.3"}),
]
Slowness = Annotated[
    Fraction,
    PlainValidator(_FROM_ONE),
    WithJsonSchema({**_AS_NUMBER, "description": "a number from 1 to 1000000, such as 1.5"}),
]
Bytes = Annotated[
    int,
    PlainValidator(checked(parse_size, "a size", "write 64KB")),
    WithJsonSchema({"type": ["string", "number"], "description": "bytes, such as 64KB or 1MiB"}),
]
LinkText = Annotated[StrictStr, Field(max_length=40, examples=["0->1, or 0-1 for both ways"])]
EdgeText = Annotated[Name, Field(examples=["0->1"])]


class BackgroundRecord(FileModel):
    """Traffic of others: a share of the bandwidth, or a message again and again."""

    edge: EdgeText | None = None
    link: LinkText | None = None
    share: Annotated[Share | None, Field(examples=["0.3"])] = None
    size: Annotated[Bytes | None, Field(examples=["64KB"])] = None
    period: Annotated[Duration | None, Field(examples=["10us"])] = None
    start: Annotated[Duration, Field(examples=["0us"])] = 0


class StragglerRecord(FileModel):
    """Ranks that are late or slow."""

    ranks: Annotated[Numbers, Field(examples=["3"])]
    late: Annotated[Duration, Field(examples=["50us"])] = 0
    slow: Annotated[Slowness, Field(examples=["1.5"])] = Fraction(1)


class DistributionRecord(FileModel):
    """A random delay."""

    distribution: Annotated[Literal["uniform", "exponential"], Field(examples=["uniform"])]
    mean: Annotated[Duration, Field(examples=["1us"])]


class JitterRecord(FileModel):
    """What is drawn at random, anew in every run."""

    message: Annotated[
        DistributionRecord | None, Field(examples=["{distribution: exponential, mean: 1us}"])
    ] = None
    start: Annotated[
        DistributionRecord | None, Field(examples=["{distribution: uniform, mean: 5us}"])
    ] = None


class DegradedRecord(FileModel):
    """An edge or link that has less bandwidth than it should, or is down."""

    edge: EdgeText | None = None
    link: LinkText | None = None
    factor: Annotated[Factor | None, Field(examples=["0.5"])] = None
    down: StrictBool = False


class ChangeRecord(FileModel):
    """From some time on an edge or link has another part of its bandwidth."""

    edge: EdgeText | None = None
    link: LinkText | None = None
    at: Annotated[Duration, Field(examples=["100us"])]
    factor: Annotated[Factor, Field(examples=["0.25"])]


class AlsoRecord(FileModel):
    """A second program that runs beside the first, on the same edges."""

    program: Annotated[StrictStr, Field(min_length=1, max_length=1000, examples=["other.xml"])]
    size: Annotated[Bytes | None, Field(examples=["4MB"])] = None
    start: Annotated[Duration, Field(examples=["20us"])] = 0


class ScenarioFile(FileModel):
    """What disturbs a machine while programs run on it."""

    taccl: Annotated[Literal["scenario/1"], Field(examples=["scenario/1"])]
    name: Annotated[Name, Field(examples=["busy-nic"])]
    seed: Annotated[StrictInt, Field(ge=0, lt=1 << 53, examples=[0])] = 0
    runs: Annotated[StrictInt | None, Field(ge=1, le=MAX_RUNS, examples=[20])] = None
    background: Annotated[list[BackgroundRecord], Field(max_length=MAX_ENTRIES)] = Field(
        default_factory=list
    )
    stragglers: Annotated[list[StragglerRecord], Field(max_length=MAX_ENTRIES)] = Field(
        default_factory=list
    )
    jitter: JitterRecord | None = None
    degraded: Annotated[list[DegradedRecord], Field(max_length=MAX_ENTRIES)] = Field(
        default_factory=list
    )
    changes: Annotated[list[ChangeRecord], Field(max_length=MAX_ENTRIES)] = Field(
        default_factory=list
    )
    also: Annotated[AlsoRecord | None, Field(examples=["{program: other.xml}"])] = None

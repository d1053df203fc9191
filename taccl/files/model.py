"""Documents as pydantic models, and the types of fields that many files share.

What pydantic objects to becomes one clear InputError. Fields are quantities with units, names and
sets of numbers.
"""

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    StrictInt,
    StrictStr,
    ValidationError,
    WithJsonSchema,
)
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticCustomError

from taccl.errors import InputError
from taccl.files.read import MAX_NODES, Document, FieldPath, read_document, shown
from taccl.units import Time, parse_beta, parse_exact_size, parse_time

_SAID: Mapping[str, str] = {
    "int_type": "should be a whole number",
    "bool_type": "should be true or false",
    "string_type": "should be text",
    "list_type": "should be a list",
    "tuple_type": "should be a list",
    "dict_type": "should be a mapping",
    "model_type": "should be a mapping of fields",
    "model_attributes_type": "should be a mapping of fields",
    "greater_than": "should be greater than {gt}",
    "greater_than_equal": "should be at least {ge}",
    "less_than": "should be less than {lt}",
    "less_than_equal": "should be at most {le}",
    "literal_error": "should be {expected}",
    "too_short": "should have at least {min_length} entries",
    "too_long": "should have at most {max_length} entries",
    "string_too_short": "should not be empty",
    "string_too_long": "should have at most {max_length} characters",
    "string_pattern_mismatch": "should be a name of letters, digits, spaces and . _ - / : + @ = >",
}


class _Schema(GenerateJsonSchema):
    """Schemas whose defaults are shown as a file would say them."""

    def encode_default(self, dft: object) -> object:
        """Return a default as JSON."""
        if isinstance(dft, FileModel):
            return {}
        if isinstance(dft, Fraction):
            return float(dft)
        return list(dft) if isinstance(dft, tuple) else dft


class FileModel(BaseModel):
    """The parent of every record that is read from a file."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """Return the JSON schema that describes such a file."""
        return cls.model_json_schema(schema_generator=_Schema)


M = TypeVar("M", bound=FileModel)


def load_model(path: str | Path, model: type[M], max_nodes: int = MAX_NODES) -> M:
    """Read the YAML or JSON file at ``path``, of at most ``max_nodes`` values, into a ``model``.

    Raises InputError when the file can't be read or does not fit; names file, line, field, value
    and fix.
    """
    return fit_model(read_document(path, max_nodes), model)


def fit_model(document: Document, model: type[M]) -> M:
    """Return a parsed ``document`` as a ``model``.

    Raises InputError for the first thing that does not fit; says how many more there are.
    """
    if not isinstance(document.value, dict):
        raise document.error(
            f"should be a mapping of fields, got {shown(document.value)}", (), _example(model, ())
        )
    try:
        return model.model_validate(document.value)
    except ValidationError as error:
        raise _first_error(document, model, error) from None


def _first_error(document: Document, model: type[FileModel], error: ValidationError) -> InputError:
    """Return one error: a misspelt field first, as it is the cause of a missing one."""
    errors: Sequence[Any] = error.errors(include_url=False)
    first = min(errors, key=lambda item: item["type"] not in ("extra_forbidden", "invalid_key"))
    kind, context = first["type"], first.get("ctx", {})
    path = tuple(step for step in first["loc"] if step != "[key]")
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    if kind == "taccl":
        return document.error(context["problem"] + more, path, context["fix"])
    if kind == "missing":
        return document.error(f"is missing{more}", path, _example(model, path))
    if kind in ("extra_forbidden", "invalid_key"):
        fields = _model_around(model, path).model_fields.items()
        names = [info.alias or name for name, info in fields]
        close = difflib.get_close_matches(str(path[-1])[:40], names, 1, 0.5)
        fix = f"did you mean {close[0]}?" if close else f"use one of {', '.join(names)}"
        return document.error(f"unknown field{more}", path, fix)
    text = first["msg"].removeprefix("Input ")
    said = _SAID[kind].format(**context) if kind in _SAID else f"{text[:1].lower()}{text[1:200]}"
    problem = f"{said}, got {shown(first['input'])}{more}"
    return document.error(problem, path, _example(model, path))


def _models_in(annotation: object) -> Iterator[type[FileModel]]:
    if isinstance(annotation, type) and issubclass(annotation, FileModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


def _model_around(model: type[FileModel], path: FieldPath) -> type[FileModel]:
    """Return the model whose field the last step of a path names."""
    for step in path[:-1]:
        fields = {info.alias or name: info for name, info in model.model_fields.items()}
        info = fields.get(str(step))
        if info is not None and not isinstance(step, int):
            model = next(_models_in(info.annotation), model)
    return model


def _example(model: type[FileModel], path: FieldPath) -> str:
    """Return what to write, from the field's example."""
    named = [step for step in path if isinstance(step, str)]
    name = named[-1] if named else next(iter(model.model_fields))
    around = _model_around(model, tuple(path[: len(path) - list(path)[::-1].index(name)])
                           if named else (name,))  # fmt: skip
    for field, info in around.model_fields.items():
        if (info.alias or field) == name and info.examples:
            return f"write {name}: {info.examples[0]}"
    return f"correct {name}" if named else "write fields as name: value"


MAX_RANKS = 65_536
_SIGNS = r"\w.\-/:+@=>*#()\[\],&"
_NAME = rf"^[{_SIGNS}](?:[{_SIGNS} ]*[{_SIGNS}])?$"
_RANGE = re.compile(r"\s*(\d{1,6})\s*(?:-\s*(\d{1,6})\s*)?")

T = TypeVar("T")


def refuse(problem: str, fix: str) -> PydanticCustomError:
    """Return the error that a validator raises to be reported with its place.

    ``problem`` says what was found and what it should be, ``fix`` what to write instead.
    """
    return PydanticCustomError("taccl", "{problem}", {"problem": problem, "fix": fix})


def checked(parse: Callable[[Any], T], what: str, fix: str) -> Callable[[object], T]:
    """Return a validator that parses text or a number, and reports what the parser refuses.

    ``parse`` raises InputError for what is no such value; errors say ``what`` it should be, and a
    ``fix``.
    """

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
    PlainValidator(lambda value: None if value is None or value == "none" else _rate(value)),
    WithJsonSchema({
        "type": ["string", "number", "null"],
        "description": "25GB/s, 200Gb/s or 46us/MB; plain: GB/s; none: no resource",
    }),
]  # fmt: skip
"""Picoseconds for each byte, or None for an edge that is no resource."""

BetaOrFree = Annotated[
    Fraction,
    PlainValidator(
        checked(
            lambda value: parse_beta(value) if value != 0 else Fraction(0),
            "a bandwidth",
            "write 600GB/s, or 0 for free",
        )
    ),
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

    Raises InputError when it is no such set, or names a number twice.
    """
    if value == "all":
        return None
    parts: Sequence[object] = value if isinstance(value, (list, tuple)) else [value]
    numbers: list[int] = []
    for part in parts:
        text = part if isinstance(part, str) else ""
        if isinstance(part, int) and not isinstance(part, bool) and 0 <= part < MAX_RANKS:
            text = str(part)
        for piece in text.split(",") if len(text) <= 2000 else [""]:
            match = _RANGE.fullmatch(piece)
            first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
            if not first <= last < MAX_RANKS or len(numbers) > MAX_RANKS:
                raise _no_numbers(part)
            numbers.extend(range(first, last + 1))
    if not 0 < len(numbers) <= MAX_RANKS or len(set(numbers)) < len(numbers):
        raise _no_numbers(value)
    return tuple(numbers)


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

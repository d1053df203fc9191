"""Documents as pydantic models; what pydantic objects to becomes one clear InputError."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.json_schema import GenerateJsonSchema

from taccl.errors import InputError
from taccl.files.document import MAX_NODES, Document, FieldPath, read_document
from taccl.files.parse import shown

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
_NO_VALUE = ("missing", "extra_forbidden", "taccl")


class _Schema(GenerateJsonSchema):
    """Schemas whose defaults are shown as a file would say them."""

    def encode_default(self, dft: Any) -> Any:  # noqa: ANN401 - pydantic's signature
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
    """Read a YAML or JSON file into a model.

    Raises
    ------
    InputError
        When the file can't be read or does not fit; names file, line, field, value and fix.
    """
    return fit_model(read_document(path, max_nodes), model)


def fit_model(document: Document, model: type[M]) -> M:
    """Return a document as a model.

    Raises
    ------
    InputError
        For the first thing that does not fit; says how many more there are.
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
    count = error.error_count()
    errors: Sequence[Any] = error.errors(include_url=False)
    first = min(errors, key=lambda item: item["type"] not in ("extra_forbidden", "invalid_key"))
    path = tuple(step for step in first["loc"] if step != "[key]")
    problem, fix = _said(model, path, first)
    more = f" (and {count - 1} more)" if count > 1 else ""
    return document.error(problem + more, path, fix)


def _said(model: type[FileModel], path: FieldPath, item: Mapping[str, Any]) -> tuple[str, str]:
    """Return problem and fix for one of pydantic's findings."""
    kind, context = item["type"], item.get("ctx", {})
    if kind == "taccl":
        return context["problem"], context["fix"]
    if kind == "missing":
        return "is missing", _example(model, path)
    if kind in ("extra_forbidden", "invalid_key"):
        return "unknown field", _known_fields(model, path)
    said = _SAID.get(kind)
    if said is None:
        text = item["msg"].removeprefix("Input ")
        return f"{text[:1].lower()}{text[1:200]}, got {shown(item['input'])}", _example(model, path)
    problem = f"{said.format(**context)}, got {shown(item['input'])}"
    return problem, _example(model, path)


def _models_in(annotation: Any) -> Iterator[type[FileModel]]:  # noqa: ANN401 - any type form
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


def _known_fields(model: type[FileModel], path: FieldPath) -> str:
    around = _model_around(model, path)
    names = [info.alias or name for name, info in around.model_fields.items()]
    close = difflib.get_close_matches(str(path[-1])[:40], names, 1, 0.5)
    if close:
        return f"did you mean {close[0]}?"
    return f"use one of {', '.join(names)}"


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

"""docs/formats.md from the models of the file formats, and from a program written as XML."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from taccl.apps import Request, load_network, synthesize
from taccl.cli.sketch import file_models
from taccl.msccl.xml import write_xml
from tests.docs.markdown import code, table
from tests.docs.meanings import FORMATS, MEANINGS, XML_ATTRIBUTES, XML_OPS, Format

HEAD = """# File formats

This page is made from the models that read the files (`pytest tests/test_docs.py \
--update-golden` writes it). `taccl schema NAME` prints the JSON schema of a format.

All files are YAML or JSON, whatever their name ends in: UTF-8, at most 64 MiB. Unknown fields are \
errors, except in TACCL's JSON, where they are ignored with one warning. An error names the file, \
the line, the field, what was found and what to write.

**Quantities** take units; times are kept as whole picoseconds, bandwidths as exact fractions of a \
picosecond for each byte.

| quantity | examples | a plain number is |
| --- | --- | --- |
| time | `0.7us`, `700ns` | us |
| bandwidth | `25GB/s`, `200Gb/s`, `46us/MB` | GB/s |
| size | `1MB` (1e6 bytes), `1MiB` (2^20 bytes), `125/4B` | bytes |
| numbers of GPUs | `3`, `[0, 1]`, `0-15`, `0-3,8`, `all` | one GPU |
"""

XML_HEAD = """## MSCCL XML

What `synthesize -o` and `convert -o` write, and `evaluate` and `verify` read. The runtimes read \
it with a reader of their own that is no XML parser, so the text has one element a line, no \
prolog, and double quotes. `portable` writes a ReduceScatter twice: `OUT.xml` spells it \
`reducescatter` (executor, rccl), `OUT.msccl.xml` spells it `reduce_scatter` (msccl). Files for \
msccl begin with a comment, as msccl takes `maxBytes` as the first size that is too large.

The whole file of a ring AllGather on two ranks:
"""


def formats_page() -> str:
    """Return docs/formats.md."""
    parts = [HEAD]
    for name, shown in FORMATS.items():
        parts += _format(name, shown)
    parts += [XML_HEAD, f"```xml\n{_example()}```\n"]
    for element, attributes in XML_ATTRIBUTES.items():
        parts.append(f"### `<{element}>`\n")
        rows = [(code(name), text) for name, text in attributes.items()]
        parts.append(table(("attribute", "meaning"), rows))
    parts.append("### Step types\n")
    parts.append(table(("type", "what it does"), [(code(n), t) for n, t in XML_OPS.items()]))
    return "\n".join(parts)


def _example() -> str:
    """Return the XML of a small program."""
    request = Request(
        load_network("ring:2"), "allgather", 1_000_000, chunks=1, engine="ring", time_limit=30.0
    )
    program = synthesize(request).program
    assert program is not None
    return write_xml(program)


def records(name: str) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield (record, description, properties) of a format: the file itself first."""
    schema = file_models()[name].json_schema()
    top = str(schema["title"])
    for record, body in {top: schema, **schema.get("$defs", {})}.items():
        yield record, str(body.get("description", "")), body


def _format(name: str, shown: Format) -> Iterator[str]:
    yield f"## {shown.title}\n"
    yield f"{shown.about}\n"
    yield f"Schema: `taccl schema {name}`.\n"
    yield f"```{shown.language}\n{shown.example}```\n"
    for number, (record, description, body) in enumerate(records(name)):
        if number:
            yield f"### {shown.title} / {_record_title(record)}\n"
            yield f"{description.replace('``', '`')}\n"
        required = set(body.get("required", ()))
        rows = [
            (code(field), _type(entry), _default(entry, required=field in required),
             MEANINGS[name, record, field])
            for field, entry in body["properties"].items()
        ]  # fmt: skip
        yield table(("field", "type", "default", "meaning"), rows)


def _record_title(record: str) -> str:
    words = "".join(f" {c.lower()}" if c.isupper() else c for c in record.removesuffix("Record"))
    return words.strip()


def _type(entry: Mapping[str, Any]) -> str:
    """Return what a field takes, in words."""
    if "anyOf" in entry:
        # typing keeps one object for int | float and float | int, whichever was made first.
        parts = sorted(entry["anyOf"], key=lambda part: part.get("type") == "number")
        return " or ".join(_type(part) for part in parts if part.get("type") != "null")
    known = next((kind for kind in _TYPES if entry.get(kind)), None)
    return _plain(entry) + _range(entry) if known is None else _TYPES[known](entry[known])


def _by_name(patterns: Mapping[str, Any]) -> str:
    (values,) = patterns.values()
    return f"mapping from a name to {_type(values)}"


_TYPES: Mapping[str, Callable[[Any], str]] = {
    "$ref": lambda ref: _record_title(ref.rpartition("/")[2]),
    "const": code,
    "enum": lambda values: ", ".join(map(code, values)),
    "description": str,
    "patternProperties": _by_name,
    "items": lambda items: f"list of {_type(items)}",
}
"""What a keyword of a JSON schema says about a type, the most telling first."""


def _plain(entry: Mapping[str, Any]) -> str:
    words = {
        "integer": "whole number", "number": "number", "string": "text",
        "boolean": "`true` or `false`", "array": "list", "object": "mapping",
    }  # fmt: skip
    kinds = entry.get("type", "object")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    return " or ".join(words[kind] for kind in kinds)


def _range(entry: Mapping[str, Any]) -> str:
    low = entry.get("minimum")
    high = entry.get("maximum", entry.get("exclusiveMaximum", 0) - 1)
    if low is None:
        return ""
    return f", {low} to {high}" if high >= 0 else f", at least {low}"


def _default(entry: Mapping[str, Any], *, required: bool) -> str:
    if required:
        return "required"
    value = entry.get("default")
    if value in (None, [], {}):
        return "none"
    if isinstance(value, bool):
        return code(str(value).lower())
    return code(f"{value:g}" if isinstance(value, float) else value)

"""Tables of layers: CSV with a line for each layer, in the order of the forward pass.

The head line names the columns ``layer``, ``forward_ns``, ``backward_ns`` and ``numel`` or
``bytes``, in any order; others are passed over. ``numel`` counts gradients of 4 bytes each; where
there are ``bytes``, these count. Times are nanoseconds, perhaps with decimals. Such a table is what
a few lines of hooks print that time the modules of a model.
"""

import csv
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from taccl.errors import InputError
from taccl.files import read_text, shown
from taccl.training.workload import ALL, MAX_LAYERS, Workload, workload_of

ELEMENT_BYTES = 4
"""Bytes of a gradient, where a table counts elements."""

_TIMES = ("forward_ns", "backward_ns")
_SIZES = ("bytes", "numel")
_COLUMNS = ("layer", *_TIMES, *_SIZES)
_HEAD = "begin with a line such as layer,numel,forward_ns,backward_ns"
_WHOLE = re.compile(r"[0-9]{1,18}")
_DECIMAL = re.compile(r"[0-9]{1,18}(?:\.[0-9]{1,18})?")


def read_layer_table(path: str, ranks: int) -> Workload:
    """Return the workload of a table of layers, whose gradients all ranks sum.

    `path`: the CSV file.
    `ranks`: how many compute the same, each on its own samples.

    Raises InputError when the file can't be read, or is no such table; names line and column.
    """
    rows = csv.reader(read_text(path).splitlines(), strict=True)
    layers: list[Mapping[str, object]] = []
    lines: list[int] = []
    names: list[str] | None = None
    try:
        for row in rows:
            if not any(cell.strip() for cell in row) or row[0].startswith("#"):
                continue
            if names is None:
                names = _columns(row, path, rows.line_num)
                continue
            if len(row) > len(names):
                raise InputError(
                    f"has {len(row)} cells, and there are {len(names)} columns", file=path,
                    line=rows.line_num, fix="put names with commas in quotation marks",
                )  # fmt: skip
            if len(layers) == MAX_LAYERS:
                raise InputError(
                    f"has more than {MAX_LAYERS} layers", file=path, line=rows.line_num,
                    fix="give fewer layers",
                )  # fmt: skip
            layers.append(_layer(dict(zip(names, row, strict=False)), path, rows.line_num))
            lines.append(rows.line_num)
    except csv.Error as error:
        raise InputError(
            f"is not CSV: {error}", file=path, line=rows.line_num, fix="correct the line"
        ) from None
    if not layers:
        raise InputError("has no layers", file=path, fix=f"{_HEAD}, and add one for each layer")
    document = {
        "taccl": "workload/1", "name": workload_name(path), "ranks": ranks, "layers": layers,
        "sync": [{"group": ALL}] if ranks > 1 else [],
    }  # fmt: skip
    size = "bytes" if "bytes" in (names or ()) else "numel"
    called = {"name": "layer", "forward": "forward_ns", "backward": "backward_ns", "bytes": size}
    return workload_of(document, path, lines, called)


def workload_name(path: str) -> str:
    """Return what a workload is called that is read from the file at `path`."""
    return re.sub(r"[^A-Za-z0-9._ -]+", "-", Path(path).stem)[:100].strip() or "workload"


def _columns(row: Sequence[str], path: str, line: int) -> list[str]:
    names = [cell.strip() for cell in row]
    for name in _COLUMNS:
        if names.count(name) > 1:
            raise InputError(
                f"has two columns {name}", file=path, line=line, fix="keep one of the two"
            )
    missing = [name for name in ("layer", *_TIMES) if name not in names]
    if not set(_SIZES) & set(names):
        missing.append("numel, or bytes")
    if missing:
        raise InputError(
            f"has no column {missing[0]}: the head line is {shown(','.join(row))}", file=path,
            line=line, fix=_HEAD,
        )  # fmt: skip
    return names


def _layer(cells: Mapping[str, str], path: str, line: int) -> Mapping[str, object]:
    """Return a layer as a workload file has it."""
    size = "bytes" if "bytes" in cells else "numel"
    found: dict[str, object] = {}
    for name in (*_TIMES, size):
        form, word = (_DECIMAL, "a number") if name in _TIMES else (_WHOLE, "a whole number")
        text = cells.get(name, "").strip()
        if not form.fullmatch(text):
            raise InputError(
                f"should be {word}, got {shown(text) if text else 'nothing'}", file=path, line=line,
                field=name, fix=f"write {word} of {'nanoseconds' if name in _TIMES else name}",
            )  # fmt: skip
        if name in _TIMES:
            found[name.removesuffix("_ns")] = f"{text}ns"
        else:
            found["bytes"] = int(text) * (ELEMENT_BYTES if name == "numel" else 1)
    if not (layer := cells.get("layer", "").strip()):
        raise InputError(
            "should be a name, got nothing", file=path, line=line, field="layer", fix="name it"
        )
    return {"name": layer, **found}

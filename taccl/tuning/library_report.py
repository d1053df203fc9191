"""What is said of a library: after it was written, and by ``taccl explain``."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taccl.errors import InputError
from taccl.files import load_model
from taccl.tuning.directory import INDEX, beside
from taccl.tuning.library_file import LibraryFile
from taccl.units import counted, format_size

if TYPE_CHECKING:
    from taccl.tuning.session import Tuned


def as_object(found: "Tuned") -> dict[str, Any]:
    """Return the result of a run as one object: the index, and where it is."""
    return {
        "output": str(found.output),
        "journal": str(beside(found.output, ".journal")),
        "seconds": round(found.seconds, 3),
        "candidates_done": found.candidates,
        "files": sorted(found.texts),
        "index": json.loads(found.texts[INDEX]),
    }


def summary(found: "Tuned") -> str:
    """Return the result of a run for people."""
    index = json.loads(found.texts[INDEX])
    lines = []
    for one in index["collectives"]:
        lines.append(f"{one['collective']}")
        for span in one["ranges"]:
            sizes = f"{format_size(span['min_bytes'])} to {format_size(span['max_bytes'])}"
            what = span["file"] or {"nccl": "NCCL's own"}.get(span["served_by"], "nothing here")
            made = f"{span['protocol']}, {counted(span['chunks'], 'chunk')}" if span["file"] else ""
            lines.append(f"  {sizes:24} {what:44} {made}".rstrip())
        lines += _table(one["sizes"])
    lines += [
        f"wrote {found.output}: {sum(name.endswith('.xml') for name in found.texts)} programs,"
        f" {INDEX}, report.html",
        f"load with: source {found.output / 'environment.sh'}",
        f"journal: {beside(found.output, '.journal')} (the same command again is instant)",
    ]
    return "\n".join(lines)


def _table(sizes: list[dict[str, Any]]) -> list[str]:
    """Return times beside the bound and the best classical algorithm."""
    names = ("size", "time us", "bound us", "gap", "best classical", "us", "ratio", "bound's")
    rows = [names]
    for one in sizes:
        gap = one["gap"]
        rows.append((
            format_size(one["size_bytes"]), _number(one["time_us"]), _number(one["bound_us"]),
            "-" if gap is None else f"{gap:.1%}", one["classical"] or "-",
            _number(one["classical_us"]), _number(one["over_classical"], ".3f"),
            _number(one["bound_over_classical"], ".3f"),
        ))  # fmt: skip
    widths = [max(len(row[column]) for row in rows) for column in range(len(names))]
    return [
        "    " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]


def _number(value: float | None, form: str = ".6g") -> str:
    return "-" if value is None else format(value, form)


def answer(directory: Path, collective: str, size: int) -> dict[str, Any]:
    """Return which file of a library runs for a call, and why.

    Parameters
    ----------
    directory
        Of the library.
    collective
        The name of the call.
    size
        Bytes of the call.

    Raises
    ------
    InputError
        When there is no library, or it is for other collectives or sizes.
    """
    path = directory / INDEX
    if not path.is_file():
        raise InputError(
            "holds no library", file=str(directory)[:200], fix="write one with taccl tune"
        )
    index = load_model(path, LibraryFile)
    known = [one.collective for one in index.collectives]
    if collective not in known:
        raise InputError(
            f"the library has no {collective}", file=str(path), field="--collective",
            fix=f"use {', '.join(known)}",
        )  # fmt: skip
    own = index.collectives[known.index(collective)]
    one = next((one for one in own.ranges if one.min_bytes <= size <= one.max_bytes), None)
    near = min(
        own.sizes,
        key=lambda one: max(one.size_bytes, size) / max(1, min(one.size_bytes, size)),
        default=None,
    )
    found: dict[str, Any] = {
        "collective": collective, "size_bytes": size, "ranks": index.topology.ranks,
        "runtime": index.runtime, "in_library": one is not None,
    }  # fmt: skip
    if one is None:
        spans = f"{own.ranges[0].min_bytes} to {own.ranges[-1].max_bytes}" if own.ranges else "none"
        why = f"the library covers sizes from {spans} bytes; the runtime's own algorithm runs"
        return {**found, "served_by": "nothing", "file": None, "why": why}
    return {
        **found,
        **one.model_dump(),
        "runs": one.file is not None and size % (one.divisor_bytes or 1) == 0,
        "nearest": near.model_dump() if near else None,
        "candidates": own.candidates.model_dump(),
    }


def answer_text(found: dict[str, Any]) -> str:
    """Return an answer for people."""
    what = found["file"] or {"nccl": "NCCL's own algorithm"}.get(
        found["served_by"], "the runtime's own algorithm"
    )
    lines = [
        f"{found['collective']} of {found['size_bytes']} bytes on {found['ranks']} ranks: {what}"
    ]
    lines.append(f"  why       {found['why']}")
    if found.get("file"):
        lines.append(
            f"  range     {format_size(found['min_bytes'])} to {format_size(found['max_bytes'])},"
            f" {' or '.join(found['modes'])}"
        )
        sketch = f", sketch {found['sketch']}" if found["sketch"] else ""
        lines.append(
            f"  made by   {found['engine']} for {format_size(found['made_for_bytes'])},"
            f" {counted(found['chunks'], 'chunk')} a rank, {found['protocol']},"
            f" {counted(found['instances'], 'instance')}{sketch}"
        )
        if not found["runs"]:
            lines.append(
                f"  but       {found['size_bytes']} bytes are no multiple of"
                f" {found['divisor_bytes']}: the runtime's own algorithm runs"
            )
    near = found.get("nearest")
    if near and near["time_us"] is not None:
        beside_ = [
            f"bound {near['bound_us']:.6g} us ({near['bound_kind']})" if near["bound_us"] else "",
            f"{near['classical']} {near['classical_us']:.6g} us" if near["classical"] else "",
            _of_nccl(near),
        ]
        lines.append(
            f"  at {format_size(near['size_bytes'])}  {near['time_us']:.6g} us by replay; "
            + "; ".join(filter(None, beside_))
        )
    return "\n".join(lines)


def _of_nccl(near: dict[str, Any]) -> str:
    """Return what NCCL's model expects; below the bound it is told to be wrong."""
    if not near["nccl"]:
        return ""
    told = f"NCCL's model {near['nccl_us']:.6g} us ({near['nccl']}), launch of the kernel included"
    below = near["bound_us"] is not None and near["nccl_us"] < near["bound_us"]
    return (
        f"{told}, below the bound: its inputs do not fit, and nothing is left to it"
        if below
        else told
    )

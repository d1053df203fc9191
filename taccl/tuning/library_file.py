"""The index of a library: what ``taccl tune`` writes and tells, and ``taccl explain`` reads."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, StrictBool, StrictFloat, StrictInt, StrictStr

from taccl.errors import InputError
from taccl.files import FileModel, load_model
from taccl.report.text import aligned, number_text
from taccl.tuning.directory import INDEX, beside
from taccl.tuning.exports import EXPORTS
from taccl.units import counted, format_size

if TYPE_CHECKING:
    from taccl.tuning.session import Tuned

Text = Annotated[StrictStr, Field(max_length=4000)]
Count = Annotated[StrictInt, Field(ge=0, le=1 << 62)]
Number = StrictFloat | StrictInt

MAX_ENTRIES = 10_000
"""Entries of each list."""


class LibraryTopology(FileModel):
    """The machine that a library is for."""

    name: Text
    ranks: Count
    servers: Count
    alpha_rule: Text
    profile: Text = "alpha-beta"
    sha256: Text


class LibrarySketch(FileModel):
    """A sketch that candidates were made under."""

    name: Text
    sha256: Text


class LibraryPlan(FileModel):
    """A plan of MSCCL++: the sizes that it is for, in bytes, and multiples of what."""

    name: Text
    file: Text
    in_place: StrictBool
    min_bytes: Count
    max_bytes: Count
    unit_bytes: Count
    protocol: Text
    scratch_chunks: Count
    times_us: dict[str, Number | None]
    sha256: Text


class LibraryRange(FileModel):
    """Sizes that one file serves, or the runtime's own algorithm."""

    min_bytes: Count
    max_bytes: Count
    file: Text | None
    served_by: Literal["file", "nccl", "nothing"]
    why: Text
    engine: Text | None = None
    made_for_bytes: Count | None = None
    chunks: Count | None = None
    batch: bool | None = None
    sketch: Text | None = None
    instances: Count | None = None
    protocol: Text | None = None
    seed: Count | None = None
    effort: Number | None = None
    modes: Annotated[tuple[Text, ...], Field(max_length=2)] = ()
    divisor_bytes: Count | None = None
    safe_up_to_bytes: Count | None = None
    verified_at_bytes: Annotated[tuple[Count, ...], Field(max_length=2)] = ()
    steps: Count | None = None
    threadblocks: Count | None = None
    sha256: Text | None = None
    plans: Annotated[tuple[LibraryPlan, ...], Field(max_length=2)] = ()


class LibrarySize(FileModel):
    """What was found at one size of the run."""

    size_bytes: Count
    file: Text | None
    time_us: Number | None
    bound_us: Number | None
    bound_kind: Text | None
    gap: Number | None
    best_us: Number | None
    over_best: Number | None
    classical: Text | None
    classical_us: Number | None
    over_classical: Number | None
    bound_over_classical: Number | None
    nccl: Text | None
    nccl_us: Number | None


class LibraryFailure(FileModel):
    """A candidate that cost a worker, or met a fault of an engine."""

    candidate: Text
    reason: Text


class LibraryCandidates(FileModel):
    """How many candidates there were."""

    searched: Count
    classical: Count
    programs: Count
    without_program: Count
    failed: Annotated[tuple[LibraryFailure, ...], Field(max_length=MAX_ENTRIES)] = ()


class LibraryCollective(FileModel):
    """Who serves one collective."""

    collective: Text
    call: Text
    ranges: Annotated[tuple[LibraryRange, ...], Field(max_length=MAX_ENTRIES)]
    sizes: Annotated[tuple[LibrarySize, ...], Field(max_length=MAX_ENTRIES)]
    candidates: LibraryCandidates


class LibraryBudget(FileModel):
    """How much was searched: one of the two."""

    candidates: Count | None = None
    time_limit_s: Number | None = None


class LibraryFile(FileModel):
    """The file ``index.json`` of a library."""

    taccl: Literal["library/1"]
    topology: LibraryTopology
    sketches: Annotated[tuple[LibrarySketch, ...], Field(max_length=MAX_ENTRIES)]
    runtime: Text
    protocols: Annotated[tuple[Text, ...], Field(max_length=10)]
    sizes: Annotated[tuple[Count, ...], Field(max_length=MAX_ENTRIES)]
    slack_percent: Count
    budget: LibraryBudget
    seed: Count
    interrupted: StrictBool
    model: Text
    nccl_model: Text | None
    versions: dict[str, Text]
    code_sha256: Text
    collectives: Annotated[tuple[LibraryCollective, ...], Field(max_length=MAX_ENTRIES)]


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
        rows = [("size", "time us", "bound us", "gap", "best classical", "us", "ratio", "bound's")]
        rows += [
            (
                format_size(at["size_bytes"]), number_text(at["time_us"], ".6g", "-"),
                number_text(at["bound_us"], ".6g", "-"), number_text(at["gap"], ".1%", "-"),
                at["classical"] or "-", number_text(at["classical_us"], ".6g", "-"),
                number_text(at["over_classical"], ".3f", "-"),
                number_text(at["bound_over_classical"], ".3f", "-"),
            )
            for at in one["sizes"]
        ]  # fmt: skip
        lines += (f"    {line}" for line in aligned(rows))
    programs = sum(name.endswith((".xml", "place.json")) for name in found.texts)
    more = "".join(f", {one.file}" for one in EXPORTS.values() if one.file in found.texts)
    load = f"source {found.output / 'environment.sh'}"
    if "environment.sh" not in found.texts:
        load = f"see {found.output / 'LOADING.md'}"
    lines += [
        f"wrote {found.output}: {programs} programs, {INDEX}, report.html{more}",
        f"load with: {load}",
        f"journal: {beside(found.output, '.journal')} (the same command again is instant)",
    ]
    return "\n".join(lines)


def answer(directory: Path, collective: str, size: int) -> dict[str, Any]:
    """Return which file of the library in a `directory` runs for a call, and why.

    The call is of a `collective`, by its name, and of `size` bytes.

    Raises InputError when there is no library, or it is for other collectives or sizes.
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
        others = []
        if near["bound_us"]:
            others.append(f"bound {near['bound_us']:.6g} us ({near['bound_kind']})")
        if near["classical"]:
            others.append(f"{near['classical']} {near['classical_us']:.6g} us")
        if near["nccl"]:
            told = f"NCCL's model {near['nccl_us']:.6g} us ({near['nccl']}), launch of the kernel"
            below = near["bound_us"] is not None and near["nccl_us"] < near["bound_us"]
            wrong = ", below the bound: its inputs do not fit, and nothing is left to it"
            others.append(f"{told} included{wrong if below else ''}")
        lines.append(
            f"  at {format_size(near['size_bytes'])}  {near['time_us']:.6g} us by replay; "
            + "; ".join(others)
        )
    return "\n".join(lines)

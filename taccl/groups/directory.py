"""Directories of process groups, and what is printed of them: instances alone and together.

A directory has a program for every class of instances. The index, ``groups.json``, is a file of
groups that names the file of every instance. Files of instances that run the same are one. They lie
in a folder of their own, as loaders read all of it.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from taccl.apps.inputs import ELEMENT_BYTES, read_program
from taccl.apps.outputs import xml_files
from taccl.collectives import Collective, busbw_factor
from taccl.collectives.groups import INDEX, Groups, Instance, read_groups
from taccl.errors import InputError
from taccl.files import write_all_atomic
from taccl.groups.solve import Part, Together, check_groups
from taccl.model.problem import Bound
from taccl.model.schedule_file import schedule_text
from taccl.replay.cost import ReplayModel
from taccl.replay.disturbed import Placed, times_together
from taccl.report.tables import aligned, us_text
from taccl.topology.edit import numbers_text
from taccl.topology.graph import Topology
from taccl.units import Time, counted, format_size, microseconds

PROGRAMS = "programs"
"""The folder of what instances run."""

LONGEST = 1000
"""Letters of ranks; more are a list."""


def check_directory(place: Path) -> None:
    """Return when groups can be written to the directory `place`.

    Raises InputError when it is a file, or holds something else, or there is no directory for it.
    """
    problem = None
    if not place.absolute().parent.is_dir():
        problem = "can't be written: there is no such directory"
    elif place.exists() and not place.is_dir():
        problem = "is a file"
    elif place.is_dir() and {path.name for path in place.iterdir()} - {INDEX, PROGRAMS}:
        problem = "holds other files"
    if problem is not None:
        raise InputError(problem, file=str(place), field="-o", fix="name a new directory")


def write_groups(found: Together, place: Path, runtime: str) -> list[Path]:
    """Write the index of what was `found` and its programs to the directory `place`.

    Programs are for a `runtime`, a name of RUNTIMES; where there are none, schedules are written.

    Returns the paths.

    Raises InputError when it can't be written.
    """
    check_directory(place)
    folder = place / PROGRAMS
    texts: dict[str | Path, str] = {}
    by_text: dict[str, str] = {}
    named: list[str] = []
    for _, parts in groupby(found.parts, key=lambda part: part.instance.group):
        own = list(parts)
        stem = re.sub(r"[^A-Za-z0-9_-]", "_", own[0].instance.group)
        for part in own:
            file, made = _text(part, folder / stem, runtime)
            text = made[file]
            if text not in by_text:
                if file in texts:
                    file, made = _text(part, folder / f"{stem}-{part.instance.number}", runtime)
                    while file in texts:  # another group may be called like this
                        file, made = _text(part, file.with_name(f"{file.stem}_"), runtime)
                texts |= made
                by_text[text] = f"{PROGRAMS}/{file.name}"
            named.append(by_text[text])
    texts[place / INDEX] = json.dumps(index_of(found.groups, named), indent=1) + "\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"can't be written: {(error.strerror or '').lower()}", file=str(place), field="-o",
            fix="choose another place",
        ) from None  # fmt: skip
    write_all_atomic(texts, field="-o")
    for old in folder.iterdir():
        if old not in texts and old.suffix in (".xml", ".json"):
            old.unlink()
    return [Path(path) for path in texts]


def _text(part: Part, stem: Path, runtime: str) -> tuple[Path, dict[str | Path, str]]:
    """Return the file of a part, and the texts that go with it."""
    if part.program is None:
        path = stem.with_name(f"{stem.name}.json")
        return path, {path: schedule_text(part.schedule, engine=part.engine)}
    path = stem.with_name(f"{stem.name}.xml")
    return path, xml_files(part.program, runtime, path)


def index_of(groups: Groups, files: Sequence[str]) -> dict[str, object]:
    """Return `groups` as a document that they can be read from; `files` has one an instance."""
    every = zip(groups.instances, files, strict=True)
    rows: list[dict[str, object]] = []
    for name, pairs in groupby(every, key=lambda pair: pair[0].group):
        own = list(pairs)
        first: Instance = own[0][0]
        row: dict[str, object] = {
            "name": name, "collective": first.collective, "size": first.size,
            "each": [
                text if len(text := numbers_text(one.members)) <= LONGEST else list(one.members)
                for one, _ in own
            ],
            "chunks": first.chunks or "auto",
            "start": f"{first.start}ps", "weight": str(first.weight),
            "files": [file for _, file in own],
        }  # fmt: skip
        rows.append(row if first.root is None else {**row, "root": first.root})
    relays = sorted({rank for one in groups.instances for rank in one.relays})
    return {
        "taccl": "groups/1", "name": groups.name, "ranks": groups.ranks, "groups": rows,
        "relays": relays or "members", "objective": groups.objective,
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Played:
    """What the program of an `instance`, a `file`, takes `alone` and `together`, in picoseconds."""

    instance: Instance
    file: str
    size: int
    alone: Time
    together: Time


def files_in(place: Path) -> tuple[Groups, list[Path]]:
    """Return the groups of a directory, and the file of every instance.

    Raises InputError when it has no index, or that names no files.
    """
    groups = read_groups(str(place / INDEX))
    missing = next((one for one in groups.instances if one.file is None), None)
    if missing is not None:
        raise InputError(
            f"group {missing.group} names no files", file=str(place / INDEX), field="groups",
            fix="write files: [one for each instance], or synthesize the groups with -o DIR",
        )  # fmt: skip
    return groups, [place / (one.file or "") for one in groups.instances]


def wanted(instance: Instance, chunks: int) -> Collective | None:
    """Return what an `instance` does in its communicator, relays included, in so many `chunks`.

    None where the counted buffer can't be cut into them.
    """
    inside = replace(instance, members=tuple(range(len(instance.members))))
    whole = inside.among(len(instance.ranks), 1)
    parts, rest = divmod(chunks, whole.chunks_in_size)
    return whole.cut(parts) if parts and not rest else None


def play_groups(
    place: Path, topology: Topology, model: ReplayModel
) -> tuple[Groups, tuple[Played, ...]]:
    """Replay all programs of a directory of groups on a `topology`, each alone and all at once.

    The constants are those of a `model`.

    Raises InputError when something can't be read or is for other ranks; ProgramError when a file
    is no program, or it does not end.
    """
    groups, files = files_in(place)
    check_groups(groups, topology)
    placed = []
    for one, file in zip(groups.instances, files, strict=True):
        if file.suffix == ".json":
            raise InputError(
                "is a schedule, and only programs run side by side", file=str(file),
                fix="synthesize the groups for a --runtime that has XML for all (msccl)",
            )  # fmt: skip
        program = read_program(file)
        ranks = one.ranks if program.num_ranks == len(one.ranks) else one.members
        if program.num_ranks != len(ranks):
            raise InputError(
                f"is for {program.num_ranks} ranks, group {one.group} has {len(ranks)}",
                file=str(file), field="ngpus", fix="synthesize the groups again",
            )  # fmt: skip
        unit = program.chunks_per_loop * ELEMENT_BYTES
        placed.append(Placed(program, ranks, one.size - one.size % unit or unit, one.start))
    alone = [times_together([each], topology, model)[0] for each in placed]
    together = times_together(placed, topology, model)
    return groups, tuple(
        Played(one, str(file), each.size, before, now)
        for one, file, each, before, now in zip(
            groups.instances, files, placed, alone, together, strict=True
        )
    )


SHOWN = 40
"""Characters of a list of ranks."""


def _head(one: Instance) -> list[str]:
    ranks = numbers_text(one.members)
    cut = ranks if len(ranks) <= SHOWN else f"{ranks[:SHOWN]}..."
    return [one.group, cut, one.collective, format_size(one.size), us_text(one.start)]


HEAD = ["group", "ranks", "collective", "size", "start us"]


def _title(groups: Groups, topology: Topology) -> str:
    relays = " (others relay)" if any(one.relays for one in groups.instances) else ""
    return (
        f"{groups.name} on {topology.name}, {topology.num_ranks} ranks:"
        f" {counted(len(groups.instances), 'collective')} at once{relays}"
    )


def _cost_line(groups: Groups, ends: Sequence[Time]) -> str:
    what = "the last ends" if groups.objective == "makespan" else "weighted sum of ends"
    return f"  {what}  {us_text(round(groups.cost(ends)))} us"


def summary(found: Together, written: Sequence[Path]) -> str:
    """Return what people are told of what was `found` and `written`."""
    rows = [
        [*_head(part.instance), us_text(part.alone), us_text(part.together),
         us_text(part.bound.time), part.engine]
        for part in found.parts
    ]  # fmt: skip
    title = [*HEAD, "alone us", "together us", "bound us", "engine"]
    gap = "no gap known" if found.gap is None else f"gap {found.gap:.1%}"
    lines = [_title(found.groups, found.topology), *aligned([title, *rows])]
    lines.append(
        f"{_cost_line(found.groups, [part.end for part in found.parts])} by"
        f" {'replay' if found.replayed else 'schedule'}, bound"
        f" {us_text(round(found.bound))} us, {gap}, {found.seconds:.1f} s"
    )
    if not found.shared:
        lines.append("  no edges are shared: each runs as if it were alone")
    elif found.joint is not None:
        lines.append(f"  on shared edges, the schedule of all at once: {us_text(found.joint)} us")
    return "\n".join([*lines, *(f"  wrote  {path}" for path in written)])


def _record(one: Instance) -> dict[str, object]:
    return {
        "group": one.group, "number": one.number, "ranks": list(one.members),
        "relays": list(one.relays), "collective": one.collective, "size_bytes": one.size,
        "start_us": microseconds(one.start), "weight": float(one.weight),
    }  # fmt: skip


def record(found: Together, written: Sequence[Path]) -> dict[str, object]:
    """Return the fields of ``--json`` of what was `found` and `written`."""
    return {
        "groups": found.groups.name, "topology": found.topology.name,
        "ranks": found.topology.num_ranks, "objective": found.groups.objective,
        "cost_us": float(found.cost) / 1e6, "bound_us": float(found.bound) / 1e6, "gap": found.gap,
        "makespan_us": microseconds(max(part.end for part in found.parts)),
        "by": "replay" if found.replayed else "schedule",
        "shared": [list(numbers) for numbers in found.shared],
        "joint_schedule_us": None if found.joint is None else microseconds(found.joint),
        "seconds": round(found.seconds, 3),
        "instances": [
            {
                **_record(part.instance), "alone_us": microseconds(part.alone),
                "together_us": microseconds(part.together),
                "bound_us": microseconds(part.bound.time), "bound_kind": part.bound.kind,
                "engine": part.engine, "sends": part.schedule.num_sends,
            }
            for part in found.parts
        ],
        "output": [str(path) for path in written],
    }  # fmt: skip


def played_text(groups: Groups, topology: Topology, played: Sequence[Played]) -> str:
    """Return a table of what programs of `groups` take alone and together on a `topology`."""
    rows = []
    for one in played:
        factor = float(busbw_factor(one.instance.collective, len(one.instance.members)))
        busbw = one.size * factor * 1000 / one.together if one.together else 0.0
        rows.append([
            *_head(one.instance), us_text(one.alone), us_text(one.together),
            f"{one.together / one.alone:.2f} x" if one.alone else "", f"{busbw:.2f}",
            Path(one.file).name,
        ])  # fmt: skip
    title = [*HEAD, "alone us", "together us", "slower", "busbw GB/s", "file"]
    ends = [one.instance.start + one.together for one in played]
    return "\n".join([_title(groups, topology), *aligned([title, *rows]), _cost_line(groups, ends)])


def played_record(
    groups: Groups, topology: Topology, played: Sequence[Played]
) -> dict[str, object]:
    """Return the same as the fields of ``--json``."""
    ends = [one.instance.start + one.together for one in played]
    return {
        "groups": groups.name, "topology": topology.name, "objective": groups.objective,
        "cost_us": float(groups.cost(ends)) / 1e6, "makespan_us": microseconds(max(ends)),
        "instances": [
            {
                **_record(one.instance), "file": one.file, "replay_size_bytes": one.size,
                "alone_us": microseconds(one.alone), "together_us": microseconds(one.together),
            }
            for one in played
        ],
    }  # fmt: skip


def bounded_text(groups: Groups, topology: Topology, alone: Sequence[Bound], all_: Bound) -> str:
    """Return what nothing beats: `groups` on a `topology`, each `alone`, and all at once."""
    rows = [
        [*_head(one), us_text(bound.time), bound.kind]
        for one, bound in zip(groups.instances, alone, strict=True)
    ]
    return "\n".join([
        _title(groups, topology), *aligned([[*HEAD, "bound us", "kind"], *rows]),
        f"  all at once  {us_text(all_.time)} us ({all_.kind})",
    ])  # fmt: skip


def bounded_record(
    groups: Groups, topology: Topology, alone: Sequence[Bound], all_: Bound
) -> dict[str, object]:
    """Return the same as the fields of ``--json``."""
    return {
        "groups": groups.name, "topology": topology.name, "objective": groups.objective,
        "bound_us": microseconds(all_.time), "bound_kind": all_.kind,
        "instances": [
            {**_record(one), "bound_us": microseconds(bound.time), "bound_kind": bound.kind}
            for one, bound in zip(groups.instances, alone, strict=True)
        ],
    }  # fmt: skip

"""Process groups that call collectives at once: solved, written to directories, replayed, told.

**Directories** have a program for every class of instances. The index, ``groups.json``, is a file
of groups that names the file of every instance. Files of instances that run the same are one. They
lie in a folder of their own, as loaders read all of it.

**Solving.** Instances whose machines are alike are solved once. Where schedules found alone share
no edge, they are the answer. Those that do share some are also one problem, the union of what they
do; its schedule says in which order edges serve whom. A program is for one group, so each gets its
part of that schedule, and no file holds the order between groups: what programs take together is
told by their replay side by side, and that decides between both.
"""

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import groupby
from pathlib import Path

import numpy as np

from taccl.apps.inputs import ELEMENT_BYTES, read_program
from taccl.apps.outputs import xml_files
from taccl.apps.programs import Target, lowering_of
from taccl.apps.request import Request
from taccl.apps.synthesis import synthesize
from taccl.bounds import any_bounds, best
from taccl.collectives import Collective, busbw_factor
from taccl.collectives.groups import INDEX, Groups, Instance, Union, read_groups, union_of
from taccl.errors import InputError, LoweringError, NoScheduleError, ScheduleError
from taccl.files import write_all_atomic
from taccl.model.problem import Bound, Problem
from taccl.model.schedule import Decisions, Schedule
from taccl.model.schedule_file import schedule_text
from taccl.msccl.program import Program
from taccl.replay.cost import ReplayModel
from taccl.replay.disturbed import Placed, times_together
from taccl.report.text import aligned, us_text
from taccl.synth.plan import adjacent
from taccl.timing.deadline import Deadline
from taccl.topology.edit import grouped, numbers_text
from taccl.topology.graph import LogicalTopology, Topology, whole
from taccl.topology.symmetry import make_group
from taccl.units import Time, counted, format_size, microseconds
from taccl.verify import require_valid

ALONE = 0.5
"""Share of the time for instances alone, where some may share edges."""

LEAST = 0.5
"""Seconds of a search, at least."""


@dataclass(frozen=True, eq=False)
class Part:
    """What one instance does.

    `instance`, `topology`: who, and the machine that it has: its rank r is ``instance.ranks[r]``.
    `schedule`: verified; `program`: judged, None where there is none.
    `size`: bytes that the program was replayed at.
    `alone`: picoseconds with nobody else there; `together`: from its start, with all others.
    `bound`: for it alone.
    `engine`: who found it.
    """

    instance: Instance
    topology: Topology
    schedule: Schedule
    program: Program | None
    size: int
    alone: Time
    together: Time
    bound: Bound
    engine: str

    @property
    def end(self) -> Time:
        """When it ends, together with all others."""
        return self.instance.start + self.together


@dataclass(frozen=True, eq=False)
class Together:
    """What is found for `groups` on a `topology`: a part for every instance, in their order.

    `bound` (picoseconds, weighted by the objective) is for the cost of all; `shared` are sets of
    instances, by number, whose schedules share edges; `joint` is the makespan of the union's
    schedules, the last of them; None: nothing is shared, or no union was found. What parts take
    together is `replayed`, all programs at once, or what schedules say, one after another where
    they share edges and are not of a union.
    """

    groups: Groups
    topology: Topology
    parts: tuple[Part, ...]
    bound: Fraction
    shared: tuple[tuple[int, ...], ...]
    joint: Time | None
    replayed: bool
    seconds: float

    @property
    def cost(self) -> Fraction:
        """Picoseconds to the last end, or the weighted sum of all ends."""
        return self.groups.cost([part.end for part in self.parts])

    @property
    def gap(self) -> float | None:
        """Cost / bound - 1."""
        return float(self.cost / self.bound) - 1 if self.bound else None


def check_groups(groups: Groups, topology: Topology) -> None:
    """Return when `groups` are for a `topology`.

    Raises InputError when they are for another number of ranks.
    """
    if groups.ranks != topology.num_ranks:
        raise InputError(
            f"{groups.name} is for {groups.ranks} ranks, and {topology.name} has"
            f" {topology.num_ranks}",
            field="ranks", fix=f"write ranks: {topology.num_ranks}, or give another topology",
        )  # fmt: skip


def machine_of(instance: Instance, topology: Topology) -> Topology:
    """Return the machine that an `instance` has of a `topology`.

    Raises NoScheduleError when a member can't reach another.
    """
    return grouped(topology, instance.members, instance.relays or "members")


def synthesize_groups(groups: Groups, topology: Topology, request: Request) -> Together:
    """Find, verify, lower and judge what all instances of `groups` do on a `topology`.

    Of the `request` everything counts but what is asked for: engine, target, time limit.

    Raises NoScheduleError when members can't reach one another, or nothing was found in time;
    LoweringError when no schedule fits the runtime; ScheduleError when a judge objects.
    """
    check_groups(groups, topology)
    clock = Deadline.after(request.time_limit, spent=request.spent)
    machines = [machine_of(one, topology) for one in groups.instances]
    classes: dict[object, list[int]] = defaultdict(list)
    for number, (one, machine) in enumerate(zip(groups.instances, machines, strict=True)):
        what = one.collective, one.size, one.chunks, one.root
        classes[what, *_form(machine)].append(number)
    reach = [_edges(topology, one.ranks, machine.links.src, machine.links.dst)
             for one, machine in zip(groups.instances, machines, strict=True)]  # fmt: skip
    share = (ALONE if _shared(reach) else 1.0) * clock.left / len(classes)
    parts: dict[int, Part] = {}
    for numbers in classes.values():
        first = groups.instances[numbers[0]]
        found = synthesize(replace(
            request, logical=whole(machines[numbers[0]], machines[numbers[0]].rotations),
            collective=first.collective, size=first.size, chunks=first.chunks, root=first.root,
            time_limit=max(LEAST, share), spent=0.0,
        ))  # fmt: skip
        bounds = [bound for bound in found.bounds if found.program or bound.world != "program"]
        for number in numbers:
            parts[number] = Part(
                groups.instances[number], machines[number], found.schedule, found.program,
                found.size, found.time, found.time, best(bounds), found.result.engine,
            )  # fmt: skip
    alone = [parts[number] for number in range(len(groups.instances))]
    if not all(part.program for part in alone):
        alone = [replace(part, program=None, alone=part.schedule.makespan,
                         together=part.schedule.makespan) for part in alone]  # fmt: skip
    used = []
    for part in alone:
        table, links = part.schedule.topology.links, part.schedule.expand().link
        used.append(_edges(topology, part.instance.ranks, table.src[links], table.dst[links]))
    shared, joint = _shared(used), list[Time]()
    joined = list(alone)
    least = [best_bound(groups, [part.bound.time for part in alone])]
    for turn, sharing in enumerate(shared):
        numbers = list(sharing)
        alone = _in_turn(alone, numbers)
        members = [alone[number].instance for number in numbers]
        union = union_of(members, topology.num_ranks)
        if union is None or request.stop.is_set():
            request.report("the sizes of groups that share edges have no common unit")
            joined = _in_turn(joined, numbers)
            continue
        limit = max(LEAST, clock.left / (len(shared) - turn))
        schedule, bound = _solved(union, members, topology, replace(request, time_limit=limit))
        if groups.objective == "makespan":
            least.append(Fraction(min(one.start for one in members) + bound))
        new = [joined[number] for number in numbers]
        projected = [] if schedule is None else _projected(union, schedule, new, request)
        joint += [] if schedule is None else [schedule.makespan]
        joined = joined if projected else _in_turn(joined, numbers)
        for number, part in zip(numbers, projected, strict=False):
            joined[number] = part
    candidates = [alone, joined] if shared else [alone]
    replayed = _replayed(candidates, topology, request)
    chosen = min(replayed or candidates, key=lambda one: groups.cost([part.end for part in one]))
    return Together(
        groups, topology, tuple(chosen), max(least), shared, max(joint, default=None),
        replayed is not None, clock.spent,
    )  # fmt: skip


def best_bound(groups: Groups, alone: Sequence[Time]) -> Fraction:
    """Return the bound for all instances of `groups` from those of each `alone`, in picoseconds."""
    starts = (one.start for one in groups.instances)
    return groups.cost([start + time for start, time in zip(starts, alone, strict=True)])


def bound_groups(groups: Groups, topology: Topology) -> tuple[list[Bound], Bound]:
    """Return the bound of every instance of `groups` alone, and that of all on a `topology`.

    The latter is of the objective; its kind is that of the binding one, ``alone`` where that is one
    of an instance by itself (or of several, weighted).

    Raises NoScheduleError when members can't reach one another.
    """
    check_groups(groups, topology)
    alone, known = [], dict[object, Bound]()
    for one in groups.instances:
        machine = machine_of(one, topology)
        key = one.collective, one.size, one.root, *_form(machine)
        if key not in known:
            inside = range(len(one.members))
            made = replace(one, members=tuple(inside)).among(machine.num_ranks, 1)
            known[key] = best(any_bounds(whole(machine), made, one.size))
        alone.append(known[key])
    least = best_bound(groups, [bound.time for bound in alone])
    bounds = [Bound("alone", "any", int(-(-least // 1)))]
    union = union_of(groups.instances, groups.ranks)
    if union is not None and groups.objective == "makespan":
        first = min(one.start for one in groups.instances)
        found = any_bounds(whole(topology), union.collective, union.collective.size or 0)
        bounds += [replace(bound, time=first + bound.time) for bound in found]
    return alone, best(bounds)


def _form(machine: Topology) -> tuple[object, ...]:
    """Return what machines on which the same programs take the same time have in common."""
    edges = sorted(
        (e.tail, e.head, e.alpha, -1 if e.overhead is None else e.overhead, e.beta or 0)
        for e in machine.edges
    )
    servers = tuple(machine.server_of.index(server) for server in machine.server_of)
    return tuple(edges), servers, machine.relays


def _edges(
    topology: Topology, ranks: Sequence[int], src: np.ndarray, dst: np.ndarray
) -> frozenset[int]:
    """Return the resources that messages between some `ranks`, by place, may hold."""
    pairs = set(zip(src.tolist(), dst.tolist(), strict=True))
    return frozenset(
        edge
        for a, b in pairs
        for link in topology.links_between(ranks[a], ranks[b])
        for edge in topology.links.edges_of(link)
        if topology.edges[edge].beta is not None
    )


def _shared(used: Sequence[frozenset[int]]) -> tuple[tuple[int, ...], ...]:
    """Return the sets of two and more numbers that are joined by edges which both use."""
    home = list(range(len(used)))
    user: dict[int, int] = {}
    for number, edges in enumerate(used):
        for edge in edges:
            other = home[user.setdefault(edge, number)]
            if other != home[number]:
                old = home[number]
                home = [other if one == old else one for one in home]
    sets: dict[int, list[int]] = defaultdict(list)
    for number, one in enumerate(home):
        sets[one].append(number)
    return tuple(tuple(numbers) for numbers in sets.values() if len(numbers) > 1)


def _in_turn(parts: Sequence[Part], numbers: Sequence[int]) -> list[Part]:
    """Return parts of which some share edges and are scheduled one after another."""
    now, found = 0, list(parts)
    for number in sorted(numbers, key=lambda one: parts[one].instance.start):
        part = parts[number]
        now = max(now, part.instance.start) + part.alone
        found[number] = replace(part, together=now - part.instance.start)
    return found


def _solved(
    union: Union, instances: Sequence[Instance], topology: Topology, request: Request
) -> tuple[Schedule | None, Time]:
    """Return the best schedule found of what instances do at once, and the bound for it."""
    inside = np.zeros((len(instances), topology.num_ranks), dtype=np.bool_)
    for row, one in zip(inside, instances, strict=True):
        row[list(one.ranks)] = True
    table = topology.links
    allowed = np.any(inside[:, table.src] & inside[:, table.dst], axis=0, keepdims=True)[0]
    logical = LogicalTopology(topology, allowed, topology.rotations)
    chunks = None if any(one.chunks is None for one in instances) else 1
    first = min(one.start for one in instances)
    counts = np.diff(union.first)
    ready = np.repeat(np.array([one.start - first for one in instances], dtype=np.int64), counts)
    collective = union.collective.timed(ready)
    try:
        found = synthesize(replace(
            request, logical=logical, collective=collective, size=0, chunks=chunks, root=None,
            target=None, spent=0.0,
        ))  # fmt: skip
    except (NoScheduleError, ScheduleError) as error:
        request.report(f"no schedule of all at once: {str(error).splitlines()[0]}")
        size = union.collective.size or 0
        return None, best(any_bounds(logical, union.collective, size)).time
    return found.schedule, found.bound.time


def _projected(
    union: Union, schedule: Schedule, parts: Sequence[Part], request: Request
) -> list[Part]:
    """Return the part of every instance in a schedule of their union; nothing if one can't be."""
    full = schedule.expand()
    table, cut = full.topology.links, full.collective.chunks_per_rank
    order = np.argsort(full.start, kind="stable")
    found = []
    for number, part in enumerate(parts):
        low, high = (cut * first for first in union.first[number : number + 2])
        place = {rank: at for at, rank in enumerate(part.instance.ranks)}
        rows = []
        for row in order.tolist():
            chunk, link = int(full.chunk[row]), int(full.link[row])
            if low <= chunk < high:
                src, dst = int(table.src[link]), int(table.dst[link])
                way = full.topology.links_between(src, dst).index(link)
                own = part.topology.links_between(place[src], place[dst])[way]
                rows.append((chunk - low, own, int(full.batch[row]), bool(full.reduce[row])))
        inside = replace(part.instance, members=tuple(range(len(part.instance.members))))
        made = inside.among(part.topology.num_ranks, union.parts[number] * cut)
        problem = Problem(
            whole(part.topology), made, schedule.chunk_size, make_group(part.topology, ())
        )
        own_schedule = problem.timed(adjacent(problem, Decisions.of(rows)))
        require_valid(own_schedule)
        end = int(full.end[(full.chunk >= low) & (full.chunk < high)].max(initial=0))
        first = min(one.instance.start for one in parts)
        new = replace(
            part, schedule=own_schedule, alone=own_schedule.makespan,
            together=first + end - part.instance.start, engine="union",
        )  # fmt: skip
        if part.program is not None and request.target is not None:
            task = lowering_of(own_schedule, request.target, part.instance.size, "union")
            try:
                if not task.size:
                    return []
                settled = task.settled()
                new = replace(
                    new, program=settled.proved(), alone=settled.best[1], size=settled.size
                )
            except LoweringError as error:
                request.report(f"the schedule of all at once has no program: {error.problem}")
                return []
        found.append(new)
    return found


def _replayed(
    candidates: Sequence[Sequence[Part]], topology: Topology, request: Request
) -> list[list[Part]] | None:
    """Return candidates with what their programs take side by side; None: it is not known."""
    model, found = (request.target or Target()).model, []
    for parts in candidates:
        placed = [
            Placed(part.program, part.instance.ranks, part.size, part.instance.start)
            for part in parts
            if part.program is not None
        ]
        if len(placed) < len(parts):
            return None
        try:
            times = times_together(placed, topology, model)
        except InputError as error:  # too many messages to follow
            request.report(error.problem)
            return None
        found.append([replace(one, together=time) for one, time in zip(parts, times, strict=True)])
    return found


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

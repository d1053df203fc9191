"""Several process groups at once: each solved alone, together where they share edges.

Instances whose machines are alike are solved once. Where schedules found alone share no edge, they
are the answer. Those that do share some are also one problem, the union of what they do; its
schedule says in which order edges serve whom. A program is for one group, so each gets its part of
that schedule, and no file holds the order between groups: what programs take together is told by
their replay side by side, and that decides between both.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from taccl.apps.programs import Target, lowering_of
from taccl.apps.request import Request
from taccl.apps.synthesis import synthesize
from taccl.bounds import any_bounds, best
from taccl.collectives.groups import Groups, Instance, Union, union_of
from taccl.errors import InputError, LoweringError, NoScheduleError, ScheduleError
from taccl.model.problem import Bound, Problem
from taccl.model.schedule import Decisions, Schedule
from taccl.msccl.program import Program
from taccl.replay.disturbed import Placed, times_together
from taccl.synth.plan import adjacent
from taccl.timing.deadline import Deadline
from taccl.topology.edit import grouped
from taccl.topology.graph import LogicalTopology, Topology, whole
from taccl.topology.symmetry import make_group
from taccl.units import Time
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

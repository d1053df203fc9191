"""What ranks do in training steps: computations and collectives, in streams that wait for others.

In a workload file, which is read and written here, an operation runs on the ranks that it names, a
collective on all ranks of its group. Those of a stream run one after the other, in the order of the
file. As in a communicator of NCCL, the k-th call that a rank makes of a group in a stream meets the
k-th one of the others.

Ranks that are alike do the same at the same times, so they are one *class*: alike are ranks that
take as long for a pass, and whose groups consist of ranks that are alike. A collective is one
operation of each class that takes part in it; all groups of ranks alike call it together.

A workload becomes operations: passes, buckets of gradients, and who waits for which sum. The
forward pass goes through the layers in order, the backward pass in reverse. Gradients become ready
layer by layer in the backward pass, and are summed in buckets, as PyTorch's DistributedDataParallel
makes them: a bucket is closed as soon as it has reached its size, the first one sooner
(``torch/csrc/distributed/c10d/reducer.cpp``, ``compute_bucket_assignment_by_size``).
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import lcm
from typing import NamedTuple

from taccl.errors import InputError
from taccl.files import Document, shown
from taccl.files.model import parse_numbers
from taccl.topology.graph import Rank
from taccl.training.workload import (
    ALL,
    MAX_OPERATIONS,
    LayerCall,
    OperationRecord,
    SyncRecord,
    Workload,
    WorkloadFile,
    check_call,
    paced,
    read_workload,
)
from taccl.units import Time, exact_us

Groups = Mapping[str, tuple[tuple[Rank, ...], ...]]
"""By name, the groups of ranks that communicate at once."""

COMPUTE = "compute"
"""The stream of passes; every other one is a communicator's."""


class Call(NamedTuple):
    """A collective: its name, over which `group`, of how many bytes, and by which algorithm.

    `size`: bytes as nccl-tests counts them. `via`: see ``taccl step --via``; empty: as that says.
    """

    collective: str
    group: str
    size: int
    via: str = ""


class Operation(NamedTuple):
    """What one class of ranks does.

    `name`: what traces call it.
    `stream`: operations of a stream run one after the other, in order, but in a stream of
    priorities those that can run by `priority`, the least first.
    `after`: positions, in the list of the class, of operations that have to be over.
    `time`: picoseconds of a computation.
    `call`: a collective; None: a computation.
    `meeting`: which collective it is: those of the other classes with the same number belong to it.
    `step`: which step it is of; a later step begins when this one is over.
    `listens`: it takes a message: it ends with the call of the others, who do not wait for it.
    """

    name: str
    stream: str
    after: tuple[int, ...] = ()
    time: Time = 0
    call: Call | None = None
    meeting: int = -1
    priority: int = 0
    step: int = 0
    listens: bool = False


@dataclass(frozen=True, slots=True)
class Work:
    """Operations of all ranks.

    `name`: of the workload.
    `ranks`: how many.
    `groups`: those that communicate.
    `class_of`: the class of each rank.
    `operations`: of each class.
    `steps`: how many.
    `by_priority`: streams whose operations run by priority.
    `period`: steps after which all repeats.
    """

    name: str
    ranks: int
    groups: Groups
    class_of: tuple[int, ...]
    operations: tuple[tuple[Operation, ...], ...]
    steps: int = 1
    by_priority: frozenset[str] = frozenset()
    period: int = 1


def classes(kinds: Sequence[Fraction | int], groups: Groups) -> tuple[int, ...]:
    """Return the class of each rank: ranks of a kind whose groups are of the same classes.

    `kinds`: of each rank.
    `groups`: those that communicate.
    """
    order = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
    found = tuple(order[kind] for kind in kinds)
    while True:
        seen: list[list[object]] = [[own] for own in found]
        for instances in groups.values():
            for members in instances:
                colours = tuple(sorted(found[rank] for rank in members))
                for rank in members:
                    seen[rank].append(colours)
            for rank in set(range(len(found))).difference(*instances):
                seen[rank].append(None)
        number: dict[tuple[object, ...], int] = {}
        finer = tuple(number.setdefault(tuple(own), len(number)) for own in seen)
        if len(number) == len(set(found)):
            return finer
        found = finer


class Meeting(NamedTuple):
    """Groups of ranks alike that call one collective at once, and the classes that take part.

    `first`: the first of these that does not only listen.
    """

    call: Call
    instances: tuple[tuple[Rank, ...], ...]
    classes: frozenset[int]
    first: int


def meetings_of(work: Work) -> dict[tuple[int, int], Meeting]:
    """Return the collectives of some `work`, by number of the meeting and a class that takes part.

    Groups whose ranks are of different classes call it for themselves.
    """
    listening = [frozenset(one.meeting for one in own if one.listens) for own in work.operations]
    found: dict[tuple[int, int], Meeting] = {}
    by_group: dict[str, dict[int, tuple[tuple[tuple[Rank, ...], ...], frozenset[int]]]] = {}
    for group, instances in work.groups.items():
        alike: dict[frozenset[int], list[tuple[Rank, ...]]] = {}
        for members in instances:
            alike.setdefault(frozenset(work.class_of[rank] for rank in members), []).append(members)
        by_group[group] = {
            one: (tuple(some), colours) for colours, some in alike.items() for one in colours
        }
    for number, operations in enumerate(work.operations):
        for operation in operations:
            call = operation.call
            if call is not None and number in by_group[call.group]:
                instances, taking_part = by_group[call.group][number]
                first = min(one for one in taking_part if operation.meeting not in listening[one])
                found[operation.meeting, number] = Meeting(call, instances, taking_part, first)
    return found


MAX_NAMED = 1_000_000
"""Ranks that operations name, those of the same ones counted once."""


def read_work(document: Document) -> Workload | Work:
    """Return the layers of a workload file, or its operations.

    Raises InputError when something in the `document` can't be used; names file, field and fix.
    """
    workload = read_workload(document)
    return workload if workload.record.ops is None else _work(workload, document)


def _work(workload: Workload, document: Document) -> Work:
    """Return the operations of a file as those of classes of ranks."""
    record, groups = workload.record, workload.groups
    records = record.ops or []
    numbers: dict[str, int] = {}
    for number, one in enumerate(records):
        if one.id in numbers:
            raise document.error(f"is there twice: {shown(one.id)}", ("ops", number, "id"),
                                 "give each operation an id of its own")  # fmt: skip
        numbers[one.id] = number
        _check(document, one, groups, number)
    sets, set_of = _ranks(records, groups, record.ranks, document)
    lists: list[list[int]] = [[] for _ in range(record.ranks)]
    for number, ranks in enumerate(sets):
        for rank in ranks:
            lists[rank].append(number)
    kinds = list(map(tuple, lists))
    places = {kind: place for place, kind in enumerate(dict.fromkeys(kinds))}
    class_of = classes([places[kind] for kind in kinds], groups)
    firsts = [class_of.index(number) for number in range(max(class_of) + 1)]
    meetings: dict[tuple[str, str, int], int] = {}
    made = []
    left = MAX_OPERATIONS
    for rank in firsts:
        own = set(kinds[rank])
        mine = [number for number, place in enumerate(set_of) if place in own]
        left -= len(mine)
        if left < 0:
            raise document.error(
                f"ranks that differ have more than {MAX_OPERATIONS} operations", ("ops",),
                "let fewer ranks differ",
            )  # fmt: skip
        made.append(_operations(records, mine, rank, numbers, meetings, document))
    steps = 1 + max(one.step for one in records)
    work = Work(
        record.name, record.ranks, groups, class_of, tuple(made), steps,
        frozenset(record.by_priority), record.period,
    )  # fmt: skip
    _check_calls(work, document)
    return work


def _check(
    document: Document, one: OperationRecord, groups: Mapping[str, object], number: int
) -> None:
    """Refuse what is neither a computation nor a collective."""
    fields = {"group": one.group, "bytes": one.bytes, "collective": one.collective}
    at = ("ops", number)
    if one.compute is None:
        if missing := [name for name, value in fields.items() if value is None]:
            raise document.error(
                f"has no {missing[0]}, and no time to compute", at,
                "write compute, or collective, group and bytes",
            )  # fmt: skip
        check_call(document, one, groups, at)
    elif given := [name for name, value in {**fields, "via": one.via}.items() if value is not None]:
        raise document.error(
            "does not go with compute", (*at, given[0]), f"leave out {given[0]}, or compute"
        )
    elif one.listens:
        raise document.error("is for collectives", (*at, "listens"), "leave it out")


def _ranks(
    records: Sequence[OperationRecord], groups: Groups, count: int, document: Document
) -> tuple[list[tuple[Rank, ...]], list[int]]:
    """Return the different sets of ranks that operations run on, and which one is whose."""
    known: dict[object, int] = {}
    sets: list[tuple[Rank, ...]] = []
    number_of: dict[tuple[Rank, ...], int] = {}
    found: list[int] = []
    named = 0
    for number, one in enumerate(records):
        at = ("ops", number, "on")
        key = one.on, one.group
        if key not in known:
            try:
                ranks = parse_numbers(one.on)
            except InputError as error:
                raise document.error(error.problem, at, error.fix or "write 0-3") from None
            if ranks is None:
                members = groups[one.group] if one.group else (tuple(range(count)),)
                ranks = tuple(rank for each in members for rank in each)
            ranks = tuple(sorted(ranks))
            if ranks[-1] >= count:
                raise document.error(
                    f"names rank {ranks[-1]}, and there are {count}", at,
                    f"name ranks from 0 to {count - 1}",
                )  # fmt: skip
            named += len(ranks)
            if named > MAX_NAMED:
                raise document.error(
                    f"operations name more than {MAX_NAMED} ranks", at, "let fewer ranks differ"
                )
            if ranks not in number_of:
                number_of[ranks] = len(sets)
                sets.append(ranks)
            known[key] = number_of[ranks]
        found.append(known[key])
    return sets, found


def _operations(
    records: Sequence[OperationRecord], mine: Sequence[int], rank: Rank, numbers: Mapping[str, int],
    meetings: dict[tuple[str, str, int], int], document: Document,
) -> tuple[Operation, ...]:  # fmt: skip
    """Return the operations of a class of ranks, of which one is `rank`."""
    places = {number: place for place, number in enumerate(mine)}
    begun: dict[tuple[str, str], int] = {}
    made = []
    for number in mine:
        one = records[number]
        after = []
        for place, other in enumerate(one.after):
            if numbers.get(other) not in places:
                raise document.error(
                    f"there is no {shown(other)}" if other not in numbers
                    else f"{shown(other)} is not on rank {rank}, which runs {shown(one.id)}",
                    ("ops", number, "after", place), "wait for what the same ranks run",
                )  # fmt: skip
            after.append(places[numbers[other]])
        call, meeting, stream = None, -1, one.stream or COMPUTE
        if one.collective is not None:
            group = one.group or ALL
            stream = one.stream or group
            call = Call(one.collective, group, one.bytes or 0, one.via or "")
            place = begun.get((group, stream), 0)
            begun[group, stream] = place + 1
            meeting = meetings.setdefault((group, stream, place), len(meetings))
        made.append(Operation(
            one.name or _plain(one.id), stream, tuple(sorted(set(after))), one.compute or 0, call,
            meeting, one.priority, one.step, one.listens,
        ))  # fmt: skip
    return tuple(made)


def _check_calls(work: Work, document: Document) -> None:
    """Refuse collectives that some ranks of a group call, and others not, or of another size."""
    calls = [
        {one.meeting: (one.call, one.listens) for one in own if one.call is not None}
        for own in work.operations
    ]
    of_group: dict[str, set[int]] = {}
    for own in calls:
        for meeting, (call, _) in own.items():
            of_group.setdefault(call.group, set()).add(meeting)
    for group, instances in work.groups.items():
        for colours in {tuple(sorted({work.class_of[rank] for rank in one})) for one in instances}:
            for meeting in sorted(of_group.get(group, ())):
                told = {one: calls[one].get(meeting) for one in colours}
                asked = {row and row[0] for row in told.values()}
                if asked == {None}:
                    continue
                first = work.class_of.index(colours[0])
                if len(asked) > 1:
                    other = next(one for one in colours if (told[one] or (0,))[0] != (
                        told[colours[0]] or (0,))[0])  # fmt: skip
                    raise document.error(
                        f"rank {work.class_of.index(other)} of group {group} does not call what"
                        f" rank {first} does: the calls of a stream have to be alike", ("ops",),
                        "have all ranks of a group call its collectives in the same order",
                    )  # fmt: skip
                if all(row is not None and row[1] for row in told.values()):
                    raise document.error(
                        f"all ranks of group {group} only listen", ("ops",), "let one call"
                    )


# Written

_NOT_PLAIN = re.compile(r"[^\w.\-/:+@=>*#()\[\],& ]+")


def _plain(name: str) -> str:
    """Return a name that a file may have."""
    return _NOT_PLAIN.sub("-", name)[:200].strip() or "-"


def _distinct(names: Sequence[str]) -> dict[str, str]:
    """Return names that a file may have, as many as there are."""
    found: dict[str, str] = {}
    taken: set[str] = set()
    for number, name in enumerate(names):
        made = _plain(name)
        while made in taken:
            made = f"{made[:190]}-{number}"
        taken.add(made)
        found[name] = made
    return found


def graph_text(work: Work) -> str:
    """Return the operations of some `work` as a workload file; ranks that do the same share them.

    What is read from it takes the same time: names that a file can't have are written otherwise.
    """
    groups = _distinct([ALL, *(name for name in work.groups if name != ALL)])
    streams = _distinct(list(dict.fromkeys(
        [COMPUTE, *(one.stream for own in work.operations for one in own)]
    )))  # fmt: skip
    lines = ["taccl: workload/1", f"name: {json.dumps(_plain(work.name))}", f"ranks: {work.ranks}"]
    if work.period > 1:
        lines.append(f"period: {work.period}")
    if work.by_priority:
        lines.append(f"by_priority: {json.dumps(sorted(streams[one] for one in work.by_priority))}")
    told = {name: each for name, each in work.groups.items() if name != ALL}
    if told:
        lines.append("groups:")
    for name, each in told.items():
        rows = json.dumps([list(_ranges(one)) for one in each])
        lines.append(f"  {json.dumps(groups[name])}: {{each: {rows}}}")
    lines.append("ops:")
    members = {name: sum(map(len, each)) for name, each in work.groups.items()}
    alike: dict[tuple[Operation, ...], list[int]] = {}
    for number, own in enumerate(work.operations):
        alike.setdefault(tuple(one._replace(meeting=-1) for one in own), []).append(number)
    for number, (own, numbers) in enumerate(alike.items()):
        prefix = f"{number}-" if len(alike) > 1 else ""
        ranks = [rank for rank, one in enumerate(work.class_of) if one in numbers]
        for place, one in enumerate(own):
            fields = _fields(one, groups, streams)
            fields |= {"after": [f"{prefix}{other}" for other in one.after]} if one.after else {}
            if len(ranks) < (work.ranks if one.call is None else members[one.call.group]):
                fields["on"] = list(_ranges(ranks))
            told_ = ", ".join(f"{name}: {json.dumps(value)}" for name, value in fields.items())
            lines.append(f"- {{id: {prefix}{place}, {told_}}}")
    return "\n".join(lines) + "\n"


def _fields(
    one: Operation, groups: Mapping[str, str], streams: Mapping[str, str]
) -> dict[str, object]:
    """Return an operation as a file has it, without what it is anyway."""
    found: dict[str, object] = {"name": _plain(one.name)}
    if one.call is None:
        found["compute"] = f"{exact_us(one.time)}us"
        usual = COMPUTE
    else:
        usual = groups[one.call.group]
        found |= {"collective": one.call.collective, "group": usual, "bytes": one.call.size}
        found |= {"via": one.call.via} if one.call.via else {}
    found |= {"stream": streams[one.stream]} if streams[one.stream] != usual else {}
    return found | {
        name: getattr(one, name) for name in ("priority", "step", "listens") if getattr(one, name)
    }


def _ranges(ranks: Sequence[Rank]) -> Iterator[int | str]:
    """Yield ranks in order, runs of them as one."""
    first = 0
    for place in range(1, len(ranks) + 1):
        if place == len(ranks) or ranks[place] != ranks[place - 1] + 1:
            low, high = ranks[first], ranks[place - 1]
            yield low if low == high else f"{low}-{high}"
            first = place


MEGABYTE = 10**6


@dataclass(frozen=True, slots=True)
class Bucket:
    """Layers whose gradients are summed together, in the order in which they become ready."""

    layers: tuple[int, ...]
    size: int


def buckets_of(sizes: Sequence[int], sync: SyncRecord) -> list[Bucket]:
    """Return the buckets of gradients.

    `sizes`: bytes of each layer, in the order of the forward pass.
    `sync`: how they are summed.
    """
    found: list[Bucket] = []
    layers: list[int] = []
    size = 0
    for layer in reversed(range(len(sizes))):
        if not sizes[layer]:
            continue
        layers.append(layer)
        size += sizes[layer]
        limit = sync.bucket
        if limit is not None and sync.first is not None and not found:
            limit = min(limit, sync.first)
        if limit is not None and size >= limit:
            found.append(Bucket(tuple(layers), size))
            layers, size = [], 0
    return [*found, Bucket(tuple(layers), size)] if layers else found


def pieces_of(size: int, piece: int | None) -> list[int]:
    """Return the sizes of the pieces of `size` bytes, each of at most `piece`; None: one piece."""
    if piece is None or size <= piece:
        return [size]
    count = -(-size // piece)
    if count > MAX_OPERATIONS:
        raise _too_many()
    return [size * (one + 1) // count - size * one // count for one in range(count)]


def _too_many() -> InputError:
    return InputError(
        f"the steps have more than {MAX_OPERATIONS} operations", field="workload",
        fix="cut into fewer pieces (partition, split), play fewer steps, or let fewer ranks differ",
    )  # fmt: skip


def expanded(workload: Workload, steps: int) -> Work:
    """Return the operations of so many `steps` of a `workload`.

    Raises InputError when these are too many.
    """
    record = workload.record
    class_of = classes(workload.paces, workload.groups)
    paces = [workload.paces[class_of.index(one)] for one in range(max(class_of) + 1)]
    by_priority = {
        f"{sync.group} {number}" for number, sync in enumerate(record.sync)
        if sync.order == "priority"
    }  # fmt: skip
    most = MAX_OPERATIONS // len(paces)
    made = tuple(_Steps(workload, pace, most).made(steps) for pace in paces)
    return Work(
        record.name, record.ranks, workload.groups, class_of, made, steps, frozenset(by_priority),
        period_of(record),
    )  # fmt: skip


def period_of(record: WorkloadFile) -> int:
    """Return after how many steps a workload, by its `record`, repeats what it does."""
    return lcm(*(sync.every for sync in record.sync))


class _Steps:
    """The operations of a class of ranks, as they are made one after the other.

    `summed` says of each way to sum which operation ends the sum of each layer, for the step that
    waits for it.
    """

    def __init__(self, workload: Workload, pace: Fraction, most: int) -> None:
        self.record, self.pace, self.most = workload.record, pace, most
        self.layers = workload.layers
        sizes = [layer.bytes for layer in self.layers]
        # By the layer that closes them.
        self.buckets = [
            {bucket.layers[-1]: bucket for bucket in buckets_of(sizes, sync)}
            for sync in self.record.sync
        ]
        self.made_: list[Operation] = []
        self.step = 0
        self.last: int | None = None
        self.read: list[int] = []
        self.pending: list[tuple[int, SyncRecord, dict[int, int]]] = []

    def made(self, steps: int) -> tuple[Operation, ...]:
        """Return the operations of so many steps."""
        for step in range(steps):
            self.step = step
            self._forward()
            self._backward()
        return tuple(self.made_)

    def _add(self, name: str, stream: str, after: Sequence[int], **more: object) -> int:
        if len(self.made_) >= self.most:
            raise _too_many()
        known = tuple(sorted(set(after)))
        self.made_.append(Operation(name, stream, known, step=self.step, **more))  # type: ignore[arg-type]
        return len(self.made_) - 1

    def _compute(self, name: str, time: Time, after: Sequence[int]) -> int:
        before = [] if self.last is None else [self.last]
        self.last = self._add(name, COMPUTE, [*before, *after], time=paced(time, self.pace))
        return self.last

    def _call(
        self, name: str, stream: str, call: Call, after: Sequence[int], priority: int = 0
    ) -> int:
        return self._add(name, stream, after, call=call, meeting=len(self.made_), priority=priority)

    def _due(self, layer: int | None) -> list[int]:
        """Return the sums that the forward pass waits for before a layer; None: before all."""
        found: list[int] = []
        for since, sync, ends in self.pending:
            if self.step > since + sync.hide * sync.every:
                if layer is None and sync.wait == "step":
                    found += ends.values()
                elif layer in ends and sync.wait == "layer":
                    found.append(ends[layer])
        return found

    def _forward(self) -> None:
        stall: list[int] = []
        if self.record.input.time:
            # It is read while the step before runs.
            self.read = [self._add("input", "input", self.read, time=self.record.input.time)]
            stall = self.read
        begin = [*stall, *self._due(None)]
        for number, layer in enumerate(self.layers):
            after = [*(begin if not number else ()), *self._due(number)]
            self._pass(f"{layer.name} forward", layer.forward, after, layer.comm, "forward")
        self.pending = [
            row for row in self.pending if self.step <= row[0] + row[1].hide * row[1].every
        ]

    def _backward(self) -> None:
        ready: dict[int, int] = {}
        syncs = [
            (number, sync, self.buckets[number]) for number, sync in enumerate(self.record.sync)
            if (self.step + 1) % sync.every == 0
        ]  # fmt: skip
        for number in reversed(range(len(self.layers))):
            layer = self.layers[number]
            self._pass(f"{layer.name} backward", layer.backward, (), layer.comm, "backward")
            ready[number] = self.last if self.last is not None else 0
            for place, sync, buckets in syncs:
                if sync.overlap == "backward" and sync.bytes is None and number in buckets:
                    self._sum(place, sync, buckets[number])
        for place, sync, buckets in syncs:
            if sync.bytes is not None:
                everything = Bucket(tuple(reversed(range(len(self.layers)))), sync.bytes)
                self._sum(place, sync, everything)
            elif sync.overlap == "none":
                for bucket in buckets.values():
                    self._sum(place, sync, bucket)

    def _sum(self, place: int, sync: SyncRecord, bucket: Bucket) -> None:
        """Add the collectives of a bucket whose gradients are ready now."""
        size = max(1, int(bucket.size * sync.factor))
        if sync.cost:
            time = -(-sync.cost * bucket.size // MEGABYTE)
            self._compute("compression", time, ())
        after = [] if self.last is None else [self.last]
        priority = min(bucket.layers)
        ends = 0
        names = self.layers[priority].name, self.layers[bucket.layers[0]].name
        for piece in pieces_of(size, sync.partition):
            name = f"{sync.collective} of {names[0]}" + (
                "" if names[0] == names[1] else f" to {names[1]}"
            )
            call = Call(sync.collective, sync.group, piece, sync.via or "")
            ends = self._call(name, f"{sync.group} {place}", call, after, priority)
        own = next((row[2] for row in self.pending if row[:2] == (self.step, sync)), None)
        if own is None:
            own = {}
            self.pending.append((self.step, sync, own))
        for layer in bucket.layers:
            own[layer] = ends

    def _pass(
        self, name: str, time: Time, after: Sequence[int], calls: Sequence[LayerCall], when: str
    ) -> None:
        """Add a pass of a layer with its collectives, cut where they are split."""
        own = [call for call in calls if call.when == when]
        first = [call for call in own if call.at == "start"]
        last = [call for call in own if call.at == "end"]
        cut = max((call.split for call in own), default=1)
        waits = list(after)
        before = [] if self.last is None else [self.last]
        pieces: list[list[int]] = [[] for _ in range(cut)]
        for call in first:
            ends = self._pieces(name, call, [[*before, *waits]] * call.split)
            for piece in range(cut):
                pieces[piece].append(ends[piece * call.split // cut])
        done = []
        for piece in range(cut):
            share = time * (piece + 1) // cut - time * piece // cut
            done.append(self._compute(name, share, [*waits, *pieces[piece]]))
        tail: list[int] = []
        for call in last:
            begin = [[done[(one + 1) * cut // call.split - 1]] for one in range(call.split)]
            tail += self._pieces(name, call, begin)[-1:]
        if tail:
            # What comes next waits for it: a computation of no time stands for that.
            self._compute(f"{name}: waits", 0, tail)

    def _pieces(self, name: str, call: LayerCall, after: Sequence[Sequence[int]]) -> list[int]:
        sizes = [call.bytes * (n + 1) // call.split - call.bytes * n // call.split
                 for n in range(call.split)]  # fmt: skip
        return [
            self._call(
                f"{call.collective} of {name}", f"{call.group} layers",
                Call(call.collective, call.group, size, call.via or ""), waits,
            )
            if size else self._add(f"{name}: nothing to send", "none", waits)
            for size, waits in zip(sizes, after, strict=True)
        ]  # fmt: skip


def with_policy(workload: Workload, **values: object) -> Workload:
    """Return a `workload` all of whose gradients are summed with other `values` of the policy."""
    record = workload.record
    syncs = [sync.model_copy(update=values) for sync in record.sync]
    return replace(workload, record=record.model_copy(update={"sync": syncs}))

"""Steps of a workload as operations: passes, buckets of gradients, and who waits for which sum.

The forward pass goes through the layers in order, the backward pass in reverse. Gradients become
ready layer by layer in the backward pass, and are summed in buckets, as PyTorch's
DistributedDataParallel makes them: a bucket is closed as soon as it has reached its size, the first
one sooner (``torch/csrc/distributed/c10d/reducer.cpp``, ``compute_bucket_assignment_by_size``).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import lcm

from taccl.errors import InputError
from taccl.training.operations import COMPUTE, Call, Operation, Work, classes
from taccl.training.workload import (
    MAX_OPERATIONS,
    LayerCall,
    SyncRecord,
    Workload,
    WorkloadFile,
    paced,
)
from taccl.units import Time

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

"""Workloads: files that say what a training step computes and communicates.

A workload is a table of layers, each with the bytes of its gradients and the times of its forward
and backward pass, and says how gradients are summed over which groups of ranks: in buckets, in
which order, overlapped with what. Tensor and expert parallelism are collectives of the layers
themselves. Sizes of collectives are those that nccl-tests counts.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import Field, PlainValidator, StrictBool, StrictInt, StrictStr, WithJsonSchema

from taccl.collectives import COLLECTIVES
from taccl.collectives.groups import Instances, check_instances
from taccl.errors import InputError
from taccl.files import Document, FileModel, fit_model, shown
from taccl.files.model import MAX_RANKS, Count, Duration, Name, checked, refuse
from taccl.topology.graph import Rank
from taccl.units import MAX_SIZE, Time, parse_size

MAX_LAYERS = 20_000
MAX_OPERATIONS = 1_000_000
"""Of all classes of ranks together."""
MAX_STEPS = 1_000_000
MAX_GROUPS = 4096
MAX_PIECES = 1024
"""Into which the collective of a layer is split, at most."""

_QUANTITY = {"type": ["string", "number"]}


def _or_word(word: str, example: str) -> PlainValidator:
    """Return a validator of sizes in bytes, in place of which a `word` stands for None."""
    size = checked(parse_size, "a size", example)
    return PlainValidator(lambda value: None if value in (None, word) else size(value))


def _bytes(value: object) -> int:
    if value in (0, "0", "0B"):
        return 0
    return checked(parse_size, "a size", "write 7.2KB, or 0")(value)


def _part(low: Fraction, high: Fraction, words: str, example: str) -> PlainValidator:
    """Return a validator of exact numbers between `low` and `high`."""

    def parse(value: object) -> Fraction:
        try:
            number = Fraction(str(value).strip()) if len(str(value)) <= 40 else None
        except (ValueError, ZeroDivisionError):
            number = None
        if number is None or isinstance(value, bool) or not low <= number <= high:
            raise refuse(f"should be {words}, got {shown(value)}", f"write {example}")
        return number.limit_denominator(10**9)

    return PlainValidator(parse)


Bytes = Annotated[
    int, PlainValidator(_bytes), WithJsonSchema({**_QUANTITY, "description": "bytes, such as 7KB"})
]
BytesOrAll = Annotated[
    int | None,
    _or_word("all", "write 25MB, or all"),
    WithJsonSchema({**_QUANTITY, "description": "bytes, such as 25MB, or all"}),
]
BytesOrNone = Annotated[
    int | None,
    _or_word("none", "write 4MB, or none"),
    WithJsonSchema({**_QUANTITY, "description": "bytes, such as 4MB, or none"}),
]
BytesOrGradients = Annotated[
    int | None,
    _or_word("gradients", "write 4MB, or gradients"),
    WithJsonSchema({**_QUANTITY, "description": "bytes, such as 4MB, or gradients"}),
]
Factor = Annotated[
    Fraction,
    _part(Fraction(1, 10**6), Fraction(10**6), "a number above 0", "0.5"),
    WithJsonSchema({**_QUANTITY, "description": "a number, such as 0.5 or 1/3"}),
]
CollectiveName = Annotated[StrictStr, Field(examples=["allreduce"], max_length=40)]


class BatchRecord(FileModel):
    """Samples of a step, and how ranks share them."""

    samples: Annotated[Count, Field(examples=[64])]
    by: Annotated[
        Literal["even", "weighted"] | tuple[StrictInt, ...],
        Field(examples=["even"], max_length=65536),
    ] = "even"


class GroupRecord(FileModel):
    """Ranks that communicate: one or more groups of the same form at once."""

    each: Annotated[Instances, Field(examples=["[0-3, 4-7]"])]


class LayerCall(FileModel):
    """A collective that a layer needs before it goes on."""

    when: Annotated[Literal["forward", "backward"], Field(examples=["forward"])]
    at: Annotated[Literal["start", "end"], Field(examples=["end"])] = "end"
    collective: CollectiveName
    group: Annotated[Name, Field(examples=["tp"])]
    bytes: Annotated[Bytes, Field(examples=["50MB"])]
    split: Annotated[StrictInt, Field(ge=1, le=MAX_PIECES, examples=[8])] = 1
    via: Annotated[StrictStr | None, Field(min_length=1, max_length=200, examples=["ring"])] = None


class LayerRecord(FileModel):
    """A layer: its gradients, and the time of its passes at the even share of a batch."""

    name: Annotated[Name, Field(examples=["conv0"])]
    bytes: Annotated[Bytes, Field(examples=["7.2KB"])] = 0
    forward: Annotated[Duration, Field(examples=["0.8ms"])]
    backward: Annotated[Duration, Field(examples=["1.6ms"])]
    comm: Annotated[list[LayerCall], Field(max_length=64)] = Field(default_factory=list)


class SyncRecord(FileModel):
    """How gradients are summed over a group."""

    group: Annotated[Name, Field(examples=["dp"])]
    collective: CollectiveName = "allreduce"
    bytes: Annotated[BytesOrGradients, Field(examples=["gradients"])] = None
    bucket: Annotated[BytesOrAll, Field(examples=["25MB"])] = 25 << 20
    first: Annotated[BytesOrAll, Field(examples=["1MB"])] = 1 << 20
    order: Annotated[Literal["fifo", "priority"], Field(examples=["fifo"])] = "fifo"
    partition: Annotated[BytesOrNone, Field(examples=["4MB"])] = None
    wait: Annotated[Literal["step", "layer"], Field(examples=["step"])] = "step"
    overlap: Annotated[Literal["backward", "none"], Field(examples=["backward"])] = "backward"
    every: Annotated[Count, Field(examples=[1])] = 1
    hide: Annotated[StrictInt, Field(ge=0, le=1, examples=[0])] = 0
    factor: Annotated[Factor, Field(examples=["0.594"])] = Fraction(1)
    cost: Annotated[Duration, Field(examples=["0us"])] = 0
    via: Annotated[StrictStr | None, Field(min_length=1, max_length=200, examples=["ring"])] = None


class InputRecord(FileModel):
    """What a step waits for before it begins."""

    time: Annotated[Duration, Field(examples=["0ms"])] = 0


def _label(value: object) -> str:
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str) or not 0 < len(text) <= MAX_LABEL or not text.isprintable():
        raise refuse(f"should be a number or a name, got {shown(value)}", "write 7 or fwd-0")
    return text


Label = Annotated[
    str, PlainValidator(_label), WithJsonSchema({"type": ["string", "integer"]})
]  # fmt: skip
MAX_LABEL = 100
"""Characters of the name of an operation."""


class OperationRecord(FileModel):
    """A computation of some ranks, or a collective that their groups call."""

    id: Annotated[Label, Field(examples=["fwd-0"])]
    name: Annotated[Name | None, Field(examples=["conv0 forward"])] = None
    on: Annotated[
        StrictInt
        | StrictStr
        | Annotated[tuple[StrictInt | StrictStr, ...], Field(max_length=MAX_RANKS)],
        Field(examples=["0-3"]),
    ] = "all"
    compute: Annotated[Duration | None, Field(examples=["0.8ms"])] = None
    collective: CollectiveName | None = None
    group: Annotated[Name | None, Field(examples=["tp"])] = None
    bytes: Annotated[Bytes | None, Field(examples=["50MB"])] = None
    via: Annotated[StrictStr | None, Field(min_length=1, max_length=200, examples=["ring"])] = None
    stream: Annotated[Name | None, Field(examples=["compute"])] = None
    after: Annotated[tuple[Label, ...], Field(examples=["[fwd-0]"])] = ()
    priority: Annotated[StrictInt, Field(ge=-MAX_SIZE, le=MAX_SIZE, examples=[0])] = 0
    step: Annotated[StrictInt, Field(ge=0, lt=MAX_STEPS, examples=[0])] = 0
    listens: StrictBool = False


class WorkloadFile(FileModel):
    """A training step: its layers, and how ranks communicate; or operations one by one."""

    taccl: Annotated[Literal["workload/1"], Field(examples=["workload/1"])]
    name: Annotated[Name, Field(examples=["vgg16-ddp"])]
    ranks: Annotated[Count, Field(examples=[8])]
    batch: BatchRecord | None = None
    speed: Annotated[dict[StrictInt, Factor], Field(max_length=65536)] = Field(default_factory=dict)
    groups: Annotated[dict[Name, GroupRecord], Field(max_length=MAX_GROUPS)] = Field(
        default_factory=dict
    )
    layers: Annotated[
        list[LayerRecord],
        Field(min_length=1, max_length=MAX_LAYERS,
              examples=["[{name: conv0, forward: 1ms, backward: 2ms}]"]),
    ] | None = None  # fmt: skip
    sync: Annotated[list[SyncRecord], Field(max_length=64)] = Field(default_factory=list)
    input: InputRecord = InputRecord()
    ops: Annotated[
        list[OperationRecord],
        Field(min_length=1, max_length=MAX_OPERATIONS, examples=["[{id: 0, compute: 1ms}]"]),
    ] | None = None  # fmt: skip
    period: Annotated[StrictInt, Field(ge=1, le=MAX_STEPS, examples=[1])] = 1
    by_priority: Annotated[
        tuple[Name, ...], Field(max_length=MAX_GROUPS, examples=["[all]"])
    ] = ()  # fmt: skip


ALL = "all"
"""The group of all ranks, which needs no entry."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A training step.

    `record`: the file.
    `groups`: instances of each group, by name: ranks in order.
    `paces`: of each rank: its time for a pass by the time that the file says.
    """

    record: WorkloadFile
    groups: Mapping[str, tuple[tuple[Rank, ...], ...]]
    paces: tuple[Fraction, ...]

    @property
    def layers(self) -> Sequence[LayerRecord]:
        """The layers, in the order of the forward pass."""
        return self.record.layers or ()


_OF_LAYERS = ("layers", "sync", "batch", "speed", "input")
_OF_OPERATIONS = ("period", "by_priority")


def read_workload(document: Document) -> Workload:
    """Return the workload of a `document`.

    Raises InputError when something in it can't be used; names file, field and fix.
    """
    record = fit_model(document, WorkloadFile)
    ranks = record.ranks
    if record.layers is None and record.ops is None:
        raise document.error("is missing", ("layers",), "list layers, or operations (ops)")
    form, others = ("ops", _OF_LAYERS) if record.ops else ("layers", _OF_OPERATIONS)
    if beside := next((name for name in others if name in record.model_fields_set), None):
        raise document.error(
            f"does not go with {form}", (beside,), f"leave out {beside}, or {form}"
        )
    groups: dict[str, tuple[tuple[Rank, ...], ...]] = {ALL: (tuple(range(ranks)),)}
    for name, group in record.groups.items():
        at = ("groups", name, "each")
        if name == ALL:
            raise document.error("is the group of all ranks already", at[:2], "give another name")
        groups[name] = check_instances(group.each, ranks, document, at)
    for number, sync in enumerate(record.sync):
        check_call(document, sync, groups, ("sync", number))
    for number, layer in enumerate(record.layers or ()):
        for place, call in enumerate(layer.comm):
            check_call(document, call, groups, ("layers", number, "comm", place))
    for rank in record.speed:
        if not 0 <= rank < ranks:
            raise document.error(
                f"names rank {rank}, and there are {ranks}", ("speed", rank),
                f"name ranks from 0 to {ranks - 1}",
            )  # fmt: skip
    return Workload(record, groups, _paces(record, document))


def check_call(
    document: Document, call: LayerCall | SyncRecord | OperationRecord,
    groups: Mapping[str, object], at: tuple[str | int, ...],
) -> None:  # fmt: skip
    """Refuse a `call`, `at` a field of the `document`, of a collective or group that is not there.

    Raises InputError.
    """
    if call.group not in groups:
        raise document.error(
            f"there is no group {call.group}", (*at, "group"), f"use one of {', '.join(groups)}"
        )
    if call.collective not in COLLECTIVES:
        raise document.error(
            f"there is no collective {shown(call.collective)}", (*at, "collective"),
            f"use one of {', '.join(COLLECTIVES)}",
        )  # fmt: skip


def _paces(record: WorkloadFile, document: Document) -> tuple[Fraction, ...]:
    """Return what each rank takes for its share of the batch, by the even share at speed 1."""
    speeds = [Fraction(record.speed.get(rank, 1)) for rank in range(record.ranks)]
    batch = record.batch
    if batch is None or batch.by == "even":
        shares = [Fraction(1)] * record.ranks
    elif batch.by == "weighted":
        total = sum(speeds, Fraction(0))
        shares = [record.ranks * speed / total for speed in speeds]
    else:
        if len(batch.by) != record.ranks or sum(batch.by) != batch.samples or min(batch.by) < 0:
            raise document.error(
                f"should be {record.ranks} numbers of samples, {batch.samples} together",
                ("batch", "by"), "write even, weighted, or the samples of each rank",
            )  # fmt: skip
        shares = [Fraction(record.ranks * own, batch.samples) for own in batch.by]
    return tuple(share / speed for share, speed in zip(shares, speeds, strict=True))


def paced(time: Time, pace: Fraction) -> Time:
    """Return picoseconds of a pass that takes `time` at the even share, at a `pace`."""
    return -(-time * pace.numerator // pace.denominator)


_OF_LAYER = re.compile(r"layers\[([0-9]+)\](?:\.(.+))?")


def workload_of(
    document: Mapping[str, object], file: str, lines: Sequence[int] = (),
    columns: Mapping[str, str] = MappingProxyType({}),
) -> Workload:  # fmt: skip
    """Return the workload that an importer made of a `file`, given as its `document`.

    `lines`: where in the file each layer is; empty: nowhere.
    `columns`: what the file calls the fields of a layer, where it is something else.

    Raises InputError when something in it can't be used.
    """
    try:
        return read_workload(Document(dict(document), file))
    except InputError as error:
        error.fix = error.fix or "see whether the file is complete"
        at = _OF_LAYER.fullmatch(error.field or "")
        if at is not None and lines:
            error.line = lines[int(at[1])]
            error.field = columns.get(at[2], at[2])
        raise

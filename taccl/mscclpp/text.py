"""Plans of MSCCL++ as text: what its reader takes, where it stands what it does not; the writer.

The reader is ``ExecutionPlan::Impl`` (microsoft/mscclpp, ``src/core/executor/execution_plan.cc``).
It stops at words that it does not know, and follows numbers wherever they lead: a position outside
its list is memory of something else. Here both are refused. What it takes and then breaks on is
for :mod:`taccl.mscclpp.structure` to say, and a field that it never looks at may hold anything.

Fields are written in the order in which the language of MSCCL++ writes them
(``CollectiveProgram.to_json``, ``python/mscclpp/language``).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from taccl.errors import ProgramError, did_you_mean
from taccl.files import MAX_BYTES, Document, field_name, parse_document, shown
from taccl.msccl.program import BUFFER_OF
from taccl.mscclpp.plan import (
    CHANNEL_TYPES,
    OPERATIONS,
    REFUSED,
    Channel,
    Group,
    Operand,
    Plan,
    PlanBlock,
    PlanOp,
    PlanRank,
    RemoteBuffer,
    Side,
    Tbg,
)

MAX_RANKS = 1024
MAX_BLOCKS = 1 << 16
"""Threadblocks of all ranks."""

MAX_PLAN_OPS = 1 << 22
"""Operations of all ranks."""

MAX_NODES = 16_000_000
"""Values of a file."""

MAX_TEXT = 1000
"""Characters of a name."""

MAX_INT = (1 << 31) - 1
"""What an ``int`` of the reader holds: chunks and positions."""

MAX_SIZE = (1 << 64) - 1
"""What a ``size_t`` holds: bytes of a call."""

_At = tuple[str | int, ...]
"""A path to a field."""

_Record = dict[str, Any]
_T = TypeVar("_T")

_TYPES = {**{name: name for name in CHANNEL_TYPES}, "none": ""}
"""``convertToChannelType``: a channel of no type is read and never used."""

_DEFAULTS: Mapping[str, object] = {
    "reuse_resources": False, "use_double_scratch_buffer": False, "buffer_alignment": 16,
    "min_message_size": 0, "max_message_size": MAX_SIZE, "num_threads_per_block": 1024,
}  # fmt: skip
"""Fields of a plan that may be missing, and what the reader then takes."""

_GENERATION_1 = frozenset({
    "inputChunks", "outputChunks", "scratchChunks", "chunkGroups", "connectedTo", "i_cids",
    "o_cids", "i_buff", "o_buff", "srcs", "dsts",
})  # fmt: skip
"""Fields of the files that MSCCL++ read before 0.8."""

_CHANNEL_OPS = frozenset({"signal", "wait", "rlxsignal", "rlxwait", "flush"})

_NEEDS: Mapping[str, tuple[str, ...]] = {
    **{
        name: (("src_buff",) if row.sources else ()) + (("dst_buff",) if row.targets else ())
        for name, row in OPERATIONS.items()
    },
    **dict.fromkeys(_CHANNEL_OPS, ("channel_ids", "channel_type")),
    "barrier": ("barrier_id", "num_threadblocks"),
    "sem_acquire": ("semaphore_ids",),
    "sem_release": ("semaphore_ids",),
    "pipeline": ("iter_context", "ops"),
}
"""Fields without which an operation says nothing, by its name."""

_SIDES = {"type": Side.LOCAL, "buffer_id": Side.REMOTE, "switch_channel_id": Side.SWITCH}
"""What says where an operand lies, and where."""

_NOP = PlanOp("nop")

_OPERATIONS = {name: name for name in OPERATIONS}


class _Scope(NamedTuple):
    """How much there is to be named: of a rank by threadblocks, of a threadblock by operations.

    Channels and remote buffers have one number for each channel type.
    """

    channels: Mapping[str, int]
    remotes: Mapping[str, int]
    semaphores: int


@dataclass(frozen=True, slots=True)
class _Source:
    """What a plan is read from: gives the fields of its records, and errors that say where."""

    document: Document

    def error(self, problem: str, at: _At, fix: str) -> ProgramError:
        """Return an error that names file, line and field."""
        document = self.document
        return ProgramError(
            problem, file=document.file, line=document.line(at), field=field_name(at) or None,
            fix=fix,
        )  # fmt: skip

    def wrong(self, record: _Record, name: str, at: _At, wanted: str) -> ProgramError:
        """Return the error of a field that is missing, or not what is wanted."""
        if name not in record:
            return self.error("is missing", (*at, name), f"add {wanted}")
        found = shown(record[name])
        return self.error(f"should be {wanted}, got {found}", (*at, name), f"write {wanted}")

    def record(self, value: object, at: _At) -> _Record:
        """Return what should be a JSON object, of generation 2."""
        if not isinstance(value, dict):
            raise self.error(f"should be an object, got {shown(value)}", at, "write {...}")
        if not _GENERATION_1.isdisjoint(value):
            old = next(name for name in value if name in _GENERATION_1)
            raise self.error(
                f"is a plan of generation 1 (MSCCL++ 0.5 to 0.7): it has {old}", (*at, old),
                "write it again with the language of MSCCL++ 0.8 or newer",
            )  # fmt: skip
        return value

    def items(self, record: _Record, name: str, at: _At) -> list[Any]:
        """Return a list."""
        value = record.get(name)
        if not isinstance(value, list):
            raise self.wrong(record, name, at, "a list")
        return value

    def whole(self, record: _Record, name: str, at: _At, most: int = MAX_INT) -> int:
        """Return a whole number from 0."""
        value = record.get(name)
        if type(value) is not int or not 0 <= value <= most:
            raise self.wrong(record, name, at, f"a whole number from 0 to {most}")
        return value

    def flag(self, record: _Record, name: str, at: _At) -> bool:
        """Return a yes or no."""
        value = record.get(name)
        if not isinstance(value, bool):
            raise self.wrong(record, name, at, "true or false")
        return value

    def text(self, record: _Record, name: str, at: _At) -> str:
        """Return a text that can be shown."""
        value = record.get(name)
        if not isinstance(value, str) or not value.isprintable() or len(value) > MAX_TEXT:
            raise self.wrong(record, name, at, f"a line of at most {MAX_TEXT} characters")
        return value

    def word(self, record: _Record, name: str, at: _At, words: Mapping[str, _T]) -> _T:
        """Return what a word stands for."""
        value = record.get(name)
        if not isinstance(value, str) or value not in words:
            error = self.wrong(record, name, at, f"one of {', '.join(words)}")
            close = did_you_mean(value, words) if isinstance(value, str) else ""
            error.fix = f"{close}{error.fix}"
            raise error
        return words[value]

    def positions(
        self, record: _Record, name: str, at: _At, count: int, what: str
    ) -> tuple[int, ...]:
        """Return a list of positions among some that there are."""
        values = self.items(record, name, at)
        for number, value in enumerate(values):
            if type(value) is not int or not 0 <= value < count:
                raise self.outside(value, (*at, name, number), count, what)
        return tuple(values)

    def outside(self, value: object, at: _At, count: int, what: str) -> ProgramError:
        """Return the error of a position that is none."""
        if not count:
            return self.error(f"names one of the {what}, and there are none", at, f"add {what}")
        return self.error(
            f"should be the number of one of the {count} {what}, got {shown(value)}", at,
            f"use a number from 0 to {count - 1}",
        )  # fmt: skip


def read_plan(text: str, *, file: str = "") -> Plan:
    """Return the plan that `text` says, which errors say is of `file`.

    Raises ProgramError when no release of MSCCL++ that reads generation 2 takes it, when it is a
    plan of generation 1, or too large, and InputError when it is JSON beyond the limits of files:
    in depth or digits, with a field twice or a number that is not finite.
    """
    source = _Source(_document(text, file or None))
    top: _Record = {**_DEFAULTS, **source.record(source.document.value, ())}
    gpus = source.items(top, "gpus", ())
    if not 1 <= len(gpus) <= MAX_RANKS:
        raise source.error(
            f"should have from 1 to {MAX_RANKS} ranks, got {len(gpus)}", ("gpus",),
            "give an entry for each rank",
        )  # fmt: skip
    ranks: list[PlanRank] = []
    blocks = ops = 0
    for number, value in enumerate(gpus):
        rank = _rank(source, source.record(value, ("gpus", number)), number, len(gpus))
        blocks += len(rank.blocks)
        ops += sum(1 + len(op.inner) for block in rank.blocks for op in block.ops)
        for count, limit, what in (
            (blocks, MAX_BLOCKS, "threadblocks"), (ops, MAX_PLAN_OPS, "operations"),
        ):  # fmt: skip
            if count > limit:
                raise source.error(
                    f"has more than {limit} {what} up to rank {number}", ("gpus",),
                    "give a smaller plan",
                )  # fmt: skip
        ranks.append(rank)
    return Plan(
        name=source.text(top, "name", ()),
        collective=source.text(top, "collective", ()),
        protocol=source.text(top, "protocol", ()),
        in_place=source.flag(top, "inplace", ()),
        ranks=tuple(ranks),
        reuse_resources=source.flag(top, "reuse_resources", ()),
        double_scratch=source.flag(top, "use_double_scratch_buffer", ()),
        alignment=source.whole(top, "buffer_alignment", ()),
        min_bytes=source.whole(top, "min_message_size", (), MAX_SIZE),
        max_bytes=source.whole(top, "max_message_size", (), MAX_SIZE),
        threads=source.whole(top, "num_threads_per_block", ()),
    )


def _document(text: str, file: str | None) -> Document:
    """Return what the text says; YAML, which :func:`parse_document` takes as well, is refused."""
    if len(text) > MAX_BYTES:
        raise ProgramError(
            f"is larger than {MAX_BYTES >> 20} MiB", file=file, fix="give a smaller plan"
        )
    try:
        text.encode()
        value = json.loads(text)
    except UnicodeEncodeError as error:
        raise ProgramError(
            f"has no character at position {error.start}: half of a pair", file=file,
            fix="save the file as UTF-8",
        ) from None  # fmt: skip
    except json.JSONDecodeError as error:
        raise ProgramError(
            f"is not JSON: {error.msg.lower()} (column {error.colno})", file=file,
            line=error.lineno, fix="correct the JSON there",
        ) from None  # fmt: skip
    except (RecursionError, ValueError):
        value = {}  # too deep, or too many digits: parse_document says which
    if not isinstance(value, dict):
        raise ProgramError(
            f"should be an object, got {shown(value)}", file=file, fix="give a plan: {...}"
        )
    return parse_document(text, file, MAX_NODES)


def _rank(source: _Source, gpu: _Record, number: int, ranks: int) -> PlanRank:
    at: _At = ("gpus", number)
    if source.whole(gpu, "id", at) != number:
        raise source.error(
            f"should be {number}, the rank's position, got {gpu['id']}", (*at, "id"),
            "list the ranks in order, from 0",
        )  # fmt: skip
    channels, groups = _channels(source, gpu, at, ranks)
    remotes: list[RemoteBuffer] = []
    for position, value in enumerate(source.items(gpu, "remote_buffers", at)):
        place = (*at, "remote_buffers", position)
        record = source.record(value, place)
        if not source.whole(record, "rank", place) < ranks:
            raise source.outside(record["rank"], (*place, "rank"), ranks, "ranks")
        buffer = source.word(record, "type", place, BUFFER_OF)
        types = []
        for index, name in enumerate(source.items(record, "access_channel_types", place)):
            if not isinstance(name, str) or name not in _TYPES:
                raise source.error(
                    f"should be one of {', '.join(_TYPES)}, got {shown(name)}",
                    (*place, "access_channel_types", index), "write memory or port",
                )  # fmt: skip
            types.append(_TYPES[name])
        remotes.append(RemoteBuffer(record["rank"], buffer, tuple(filter(None, types))))
    semaphores = []
    for position, value in enumerate(source.items({"semaphores": [], **gpu}, "semaphores", at)):
        place = (*at, "semaphores", position)
        semaphores.append(source.whole(source.record(value, place), "init_value", place))
    named = {kind: len(channels.get(kind, ())) for kind in ("memory", "port")}
    scope = _Scope(
        {**named, "switch": len(groups)}, dict.fromkeys(named, len(remotes)), len(semaphores)
    )
    return PlanRank(
        input_chunks=source.whole(gpu, "input_chunks", at),
        output_chunks=source.whole(gpu, "output_chunks", at),
        scratch_chunks=source.whole(gpu, "scratch_chunks", at),
        channels=channels, groups=groups, remotes=tuple(remotes), semaphores=tuple(semaphores),
        blocks=tuple(
            _block(source, value, (*at, "threadblocks", position), scope)
            for position, value in enumerate(source.items(gpu, "threadblocks", at))
        ),
    )  # fmt: skip


def _channels(
    source: _Source, gpu: _Record, at: _At, ranks: int
) -> tuple[dict[str, tuple[Channel, ...]], tuple[Group, ...]]:
    """Return the channels of a rank by their type, and its switch channels, as they are numbered.

    A list has a peer for each channel, and a group for each switch channel (``parseChannels``).
    """
    channels: dict[str, list[Channel]] = {}
    groups: list[Group] = []
    for number, value in enumerate(source.items(gpu, "channels", at)):
        place = (*at, "channels", number)
        record = source.record(value, place)
        kind = source.word(record, "channel_type", place, _TYPES)
        if kind != "switch":
            peers = source.positions(record, "connected_to", place, ranks, "ranks")
            if kind:
                channels.setdefault(kind, []).extend(Channel(kind, peer) for peer in peers)
            continue
        buffer = source.word(record, "buffer_type", place, BUFFER_OF)
        for position, given in enumerate(source.items(record, "rank_groups", place)):
            where = (*place, "rank_groups", position)
            group = source.record(given, where)
            members = source.positions(group, "ranks", where, ranks, "ranks")
            if source.whole(group, "size", where) != len(members):
                raise source.error(
                    f"should be {len(members)}, as many as there are ranks, got {group['size']}",
                    (*where, "size"), "count the ranks",
                )  # fmt: skip
            groups.append(Group(buffer, members))
    return {kind: tuple(found) for kind, found in channels.items()}, tuple(groups)


def _block(source: _Source, value: object, at: _At, rank: _Scope) -> PlanBlock:
    record = source.record(value, at)
    if source.whole(record, "id", at) != at[-1]:
        raise source.error(
            f"should be {at[-1]}, the threadblock's position, got {record['id']}", (*at, "id"),
            "list the threadblocks in order, from 0",
        )  # fmt: skip
    given = {"remote_buffer_refs": [], **record}
    named: list[dict[str, tuple[int, ...]]] = []
    for field, type_field, ids_field, room, what in (
        ("channels", "channel_type", "channel_ids", rank.channels, "channels"),
        ("remote_buffer_refs", "access_channel_type", "remote_buffer_ids", rank.remotes,
         "remote buffers"),
    ):  # fmt: skip
        found: dict[str, list[int]] = {}
        for number, one in enumerate(source.items(given, field, at)):
            place = (*at, field, number)
            entry = source.record(one, place)
            kind = source.word(entry, type_field, place, _TYPES)
            if kind not in room:  # which the reader passes over
                continue
            titled = f"{kind} {what} of the rank" if what == "channels" else f"{what} of the rank"
            ids = source.positions(entry, ids_field, place, room[kind], titled)
            found.setdefault(kind, []).extend(ids)
        named.append({kind: tuple(ids) for kind, ids in found.items()})
    channels, remotes = named
    scope = _Scope(
        {kind: len(found) for kind, found in channels.items()},
        {kind: len(found) for kind, found in remotes.items()},
        rank.semaphores,
    )
    ops = source.items(record, "ops", at)
    return PlanBlock(
        channels, remotes,
        tuple(_op(source, one, (*at, "ops", number), scope) for number, one in enumerate(ops)),
    )  # fmt: skip


def _op(source: _Source, value: object, at: _At, scope: _Scope, *, inner: bool = False) -> PlanOp:
    record = source.record(value, at)
    name = record.get("name")
    if isinstance(name, str) and name in REFUSED:
        raise source.error(f"{name} {REFUSED[name]}", (*at, "name"), "use another operation")
    name = source.word(record, "name", at, _OPERATIONS)
    if name == "nop" and len(record) == 1:
        return _NOP
    for needed in _NEEDS[name]:
        if needed not in record:
            raise source.error("is missing", (*at, needed), f"a {name} has one: add it")
    kind = source.word(record, "channel_type", at, _TYPES) if "channel_type" in record else ""
    channels: tuple[int, ...] = ()
    if "channel_ids" in record:
        what = f"{kind or 'typeless'} channels of the threadblock"
        channels = source.positions(record, "channel_ids", at, scope.channels.get(kind, 0), what)
    semaphores: tuple[int, ...] = ()
    if "semaphore_ids" in record:
        what = "semaphores of the rank"
        semaphores = source.positions(record, "semaphore_ids", at, scope.semaphores, what)
    tbg = None
    if "tbg_info" in record:
        place = (*at, "tbg_info")
        info = source.record(record["tbg_info"], place)
        tbg = Tbg(source.whole(info, "tb_id", place), source.whole(info, "tbg_size", place))
    unit = chunks = 0
    if "iter_context" in record:
        place = (*at, "iter_context")
        context = source.record(record["iter_context"], place)
        unit = source.whole(context, "unit_size", place, (1 << 32) - 1)
        chunks = source.whole(context, "num_chunks", place)
    parts: list[object] = []
    if name == "pipeline":
        parts = source.items(record, "ops", at)
        if inner or not parts:
            raise source.error(
                "is a pipeline inside a pipeline" if inner else "has no operations", (*at, "ops"),
                "put its operations into the outer one" if inner else "remove the pipeline",
            )  # fmt: skip
    return PlanOp(
        name,
        _operands(source, record, "src_buff", at, kind, scope),
        _operands(source, record, "dst_buff", at, kind, scope),
        kind, channels,
        source.whole(record, "barrier_id", at) if "barrier_id" in record else -1,
        source.whole(record, "num_threadblocks", at) if "num_threadblocks" in record else 0,
        semaphores, tbg,
        source.text(record, "reduce_op", at) if "reduce_op" in record else "",
        unit, chunks,
        tuple(
            _op(source, part, (*at, "ops", number), scope, inner=True)
            for number, part in enumerate(parts)
        ),
    )  # fmt: skip


def _operands(
    source: _Source, record: _Record, name: str, at: _At, kind: str, scope: _Scope
) -> tuple[Operand, ...]:
    """Return the operands that a field of an operation lists, none where there is no such field.

    ``kind`` is the operation's channel type: the reader asks the channels of that type for the
    buffers of other ranks.
    """
    found: list[Operand] = []
    for number, value in enumerate(source.items(record, name, at) if name in record else ()):
        place = (*at, name, number)
        given = source.record(value, place)
        fields = [field for field in _SIDES if field in given]
        if len(fields) != 1:
            raise source.error(
                f"should have one of {', '.join(_SIDES)}, got {' and '.join(fields) or 'none'}",
                place, "say in one way where the chunks are",
            )  # fmt: skip
        field, buffer, ref = fields[0], None, -1
        if field == "type":
            buffer = source.word(given, "type", place, BUFFER_OF)
        elif field == "buffer_id" and kind not in ("memory", "port"):
            raise source.error(
                f"is in a buffer of another rank, and the operation's channel type is"
                f" {kind or 'missing'}", (*place, field), "give the channel_type memory or port",
            )  # fmt: skip
        else:
            count, what = scope.channels.get("switch", 0), "switch channels of the threadblock"
            if field == "buffer_id":
                count, what = scope.remotes.get(kind, 0), f"{kind} buffers of the threadblock"
            ref = source.whole(given, field, place)
            if ref >= count:
                raise source.outside(ref, (*place, field), count, what)
        found.append(
            Operand(
                _SIDES[field], buffer, ref,
                source.whole(given, "index", place), source.whole(given, "size", place),
            )
        )  # fmt: skip
    return tuple(found)


_Fields = dict[str, object]


def write_plan(plan: Plan) -> str:
    """Return the JSON of `plan`, which is read back as an equal plan; the same text for the same.

    A rank's channels are one list for each type, however the file listed them that it is from.
    """
    gpus: list[_Fields] = []
    for number, rank in enumerate(plan.ranks):
        channels: list[_Fields] = [
            {"channel_type": kind, "connected_to": [channel.peer for channel in found]}
            for kind, found in rank.channels.items()
        ]
        for group in rank.groups:
            members = {"size": len(group.ranks), "ranks": group.ranks}
            channels.append({
                "channel_type": "switch", "buffer_type": group.buffer.value,
                "rank_groups": [members],
            })  # fmt: skip
        blocks: list[_Fields] = []
        for position, block in enumerate(rank.blocks):
            used = [
                {"channel_type": kind, "channel_ids": ids} for kind, ids in block.channels.items()
            ]
            refs = [
                {"access_channel_type": kind, "remote_buffer_ids": ids}
                for kind, ids in block.remotes.items()
            ]
            ops = [_op_record(op) for op in block.ops]
            blocks.append({
                "id": position, "ops": ops, "channels": used, "remote_buffer_refs": refs
            })  # fmt: skip
        gpus.append({
            "id": number,
            "input_chunks": rank.input_chunks,
            "output_chunks": rank.output_chunks,
            "scratch_chunks": rank.scratch_chunks,
            "threadblocks": blocks,
            "channels": channels,
            "remote_buffers": [
                {"rank": owner, "type": buffer.value, "access_channel_types": types}
                for owner, buffer, types in rank.remotes
            ],
            "semaphores": [{"init_value": value} for value in rank.semaphores],
        })  # fmt: skip
    document: _Fields = {
        "name": plan.name,
        "collective": plan.collective,
        "protocol": plan.protocol,
        "inplace": plan.in_place,
        "reuse_resources": plan.reuse_resources,
        "gpus": gpus,
        "num_threads_per_block": plan.threads,
        "use_double_scratch_buffer": plan.double_scratch,
        "buffer_alignment": plan.alignment,
        "min_message_size": plan.min_bytes,
        "max_message_size": plan.max_bytes,
    }
    return json.dumps(document, separators=(",", ":")) + "\n"


def _op_record(op: PlanOp) -> _Fields:
    """Return an operation, with the fields that say something, or without which none is read."""
    row = OPERATIONS[op.name]
    synchronises = bool(row.types) and not row.targets
    fields: dict[str, tuple[bool, object]] = {
        "src_buff": (bool(op.sources or row.sources), [_operand(one) for one in op.sources]),
        "dst_buff": (bool(op.targets or row.targets), [_operand(one) for one in op.targets]),
        "channel_ids": (bool(op.channels) or synchronises, op.channels),
        "channel_type": (bool(op.channel_type) or synchronises, op.channel_type or "none"),
        "barrier_id": (op.barrier >= 0, op.barrier),
        "num_threadblocks": (op.barrier >= 0 or bool(op.blocks), op.blocks),
        "semaphore_ids": (bool(op.semaphores) or op.name.startswith("sem_"), op.semaphores),
        "reduce_op": (bool(op.reduce_op), op.reduce_op),
        "tbg_info": (op.tbg is not None, op.tbg._asdict() if op.tbg is not None else None),
        "iter_context": (
            op.name == "pipeline" or bool(op.unit or op.chunks),
            {"unit_size": op.unit, "num_chunks": op.chunks},
        ),
        "ops": (bool(op.inner), [_op_record(one) for one in op.inner]),
    }
    return {"name": op.name, **{name: value for name, (says, value) in fields.items() if says}}


def _operand(operand: Operand) -> _Fields:
    place: _Fields = {"index": operand.index, "size": operand.size}
    if operand.side is Side.LOCAL:
        return {"type": operand.buffer.value if operand.buffer is not None else "", **place}
    return {
        "buffer_id" if operand.side is Side.REMOTE else "switch_channel_id": operand.ref,
        **place,
    }

"""Execution traces of MLCommons Chakra: ``.et`` files, as ASTRA-sim 2 runs them.

A file is a sequence of protobuf messages, each behind its length as a varint: a GlobalMetadata,
then Nodes. One file is for all ranks, which then all do the same; or there is one for each rank,
named ``*.0.et``, ``*.1.et`` and so on. What becomes of a node:

- a computation (``COMP_NODE``) takes its ``duration_micros`` in the stream of passes, one that is
  marked ``is_cpu_op`` in a stream of the host;
- a collective (``COMM_COLL_NODE``) runs in a stream of its process group; the k-th one that a rank
  calls of a group meets the k-th one of the others. ``comm_priority`` orders the stream where any
  node of it has one, the greatest first;
- a message (``COMM_SEND_NODE``, ``COMM_RECV_NODE``) is a broadcast from the first to the second of
  a group of two; the k-th of a tag meets the k-th. The receiver waits for the sender, who does not
  wait for the receiver, as in ASTRA-sim. Files for each rank are needed: in one for all, every rank
  would send to the same one;
- ``METADATA_NODE``, ``MEM_LOAD_NODE`` and ``MEM_STORE_NODE`` take no time: who waits for them waits
  for what they wait for. Collectives of nothing, and those of one rank, likewise.

Both ``data_deps`` and ``ctrl_deps`` are waited for. Computations run when they can, the first in
the order first; another stream goes through its nodes in order: what they wait for comes first,
otherwise it is by id.

The metadata node that PyTorch writes (``process_group:init``) says which ranks are in a process
group; else they are those whose files call it. A group of regularly spaced ranks in a file for all
stands for all groups of that form. Without ``pg_name`` a collective is over all ranks.

``comm_size`` is bytes of the input of a rank. The largest buffer, which nccl-tests counts, is n
times as large for an allgather and a gather over n ranks, and the same for the others. Of ranks
that give an alltoall or a scatter different sizes the largest counts. A barrier is an allreduce of
4 bytes.

Left out: ``involved_dim``, ``num_ops`` and ``tensor_size``, roots of collectives (it is the first
rank), what memory takes, and when a node began. A computation that has operations and no time is
refused, and so are nodes of storage, which newer schemas have.

References
----------
mlcommons/chakra, ``schema/protobuf/et_def.proto``; ``src/third_party/utils/protolib.py``:
``encodeMessage``; ``src/converter/pytorch_node.py``: ``comm_size``; ``pytorch_converter.py``:
``convert_json_to_protobuf_node``. astra-sim/astra-sim, ``astra-sim/workload/Workload.cc``:
``issue_comm``, ``issue_coll_comm``, ``issue_pytorch_pg_metadata``, ``extract_comm_group``;
``astra-sim/system/collective/Ring.cc``: ``Ring``.
"""

import heapq
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from taccl.errors import InputError
from taccl.files import read_bytes, shown
from taccl.topology.graph import Rank
from taccl.training.operations import COMPUTE, Call, Operation, Work, classes
from taccl.units import MAX_SIZE, MAX_TIME, PS_PER_US, Time

MAX_NODES = 200_000
"""Of all files that differ, and of all classes of ranks."""
MAX_DEPENDENCIES = 2_000_000
MAX_MESSAGE = 4 << 20
"""Bytes of a message."""
MAX_GROUPS = 4096
MAX_ATTRIBUTES = 1000
"""Of a node."""
HOST = "host"
"""The stream of what CPUs compute."""
ALL_RANKS = "all"
"""The group of collectives that name none; a process group is called ``pg NAME``."""
BARRIER_BYTES = 4

METADATA, MEM_LOAD, MEM_STORE, COMP, SEND, RECV, COLLECTIVE = range(1, 8)
"""NodeType of et_def.proto."""

COLLECTIVES: Sequence[str] = (
    "allreduce", "reduce", "allgather", "gather", "scatter", "broadcast", "alltoall",
    "reducescatter", "reducescatter", "barrier",
)  # fmt: skip
"""Ours by the number in CollectiveCommType of et_def.proto; a barrier is none of ours."""

_OF_PARTS = ("allgather", "gather")
"""Collectives whose largest buffer is n times the input of a rank."""
_UNEVEN = ("alltoall", "scatter")
_WANTED = frozenset({
    "comm_type", "comm_size", "comm_priority", "comm_src", "comm_dst", "comm_tag", "pg_name",
    "is_cpu_op", "num_ops",
})  # fmt: skip
_SCALARS = (
    "double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32",
    "fixed64", "sfixed32", "sfixed64", "bool", "string", "bytes",
)  # fmt: skip
_FILE_OF_RANK = re.compile(r".*\.([0-9]{1,6})\.et", re.DOTALL)
_LONGEST = 100
"""Characters of names."""
_FIX = "give an execution trace of Chakra, as ASTRA-sim reads it"
_ONE_RUN = "give the traces of all ranks of one run"

Groups = dict[str, tuple[tuple[Rank, ...], ...]]


class Messages(NamedTuple):
    """Types of the messages of a trace, GlobalMetadata and Node, and what parsing raises."""

    metadata: Any
    node: Any
    error: Any


@cache
def messages() -> Messages:
    """Return the types of the messages in a trace; fields that are not read are left out."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="et_def.proto", package="ChakraProtoMsg", syntax="proto3"
    )

    def message(name: str, *fields: tuple[str, int, str, bool]) -> Any:  # noqa: ANN401
        """Add a message with fields: name, number, type, and whether it is repeated."""
        made = file.message_type.add(name=name)
        for own, number, kind, repeated in fields:
            one = made.field.add(name=own, number=number)
            one.label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
            if kind in _SCALARS:
                one.type = getattr(field, f"TYPE_{kind.upper()}")
            else:
                one.type, one.type_name = field.TYPE_MESSAGE, f".ChakraProtoMsg.{kind}"
        return made

    values: list[tuple[str, int, str, bool]] = []
    for place, kind in enumerate(_SCALARS):
        message(f"{kind.capitalize()}List", ("values", 1, kind, True))
        values.append((f"{kind}_val", 3 + 2 * place, kind, False))
        values.append((f"{kind}_list", 4 + 2 * place, f"{kind.capitalize()}List", False))
    attribute = message("AttributeProto", ("name", 1, "string", False), *values)
    attribute.oneof_decl.add(name="value")
    for one in attribute.field[1:]:
        one.oneof_index = 0
    message("GlobalMetadata", ("version", 1, "string", False), ("attr", 2, "AttributeProto", True))
    message("IOInfo", ("values", 1, "string", False))
    message(
        "Node",
        ("id", 1, "uint64", False), ("name", 2, "string", False), ("type", 3, "int32", False),
        ("ctrl_deps", 4, "uint64", True), ("data_deps", 5, "uint64", True),
        ("duration_micros", 7, "uint64", False), ("inputs", 8, "IOInfo", False),
        ("attr", 10, "AttributeProto", True),
    )  # fmt: skip
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    metadata, node = (
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"ChakraProtoMsg.{name}"))
        for name in ("GlobalMetadata", "Node")
    )
    return Messages(metadata, node, DecodeError)


def framed(body: bytes) -> bytes:
    """Return the `body` of a message behind its length, as it lies in a file."""
    size, prefix = len(body), b""
    while size > 127:
        prefix += bytes([size & 127 | 128])
        size >>= 7
    return prefix + bytes([size]) + body


class _Node(NamedTuple):
    """A node, and whom it waits for: numbers of nodes.

    A computation has a `stream`; what is sent has its collective in `sends`; others take no time.
    `group` is a process group, empty for all ranks; `peers` are sender, receiver and tag of a
    message, where -1 stands for the rank itself.
    """

    number: int
    name: str
    after: tuple[int, ...]
    time: Time = 0
    stream: str = ""
    sends: str = ""
    size: int = 0
    group: str = ""
    peers: tuple[int, int, int] | None = None
    priority: int = 0


@dataclass(frozen=True, slots=True)
class _Trace:
    """A file: its nodes, those first that others wait for, and what process groups it tells of.

    `groups` has members by name, none of them for all ranks; `calls` are those that it uses.
    """

    path: str
    nodes: tuple[_Node, ...]
    groups: Mapping[str, tuple[Rank, ...]]
    calls: frozenset[str]
    messages: bool


class _Sent(NamedTuple):
    """A collective that a rank calls: by which node, and of how many bytes of its input."""

    node: int
    collective: str
    size: int


def read_chakra(paths: Sequence[str], ranks: int) -> Work:
    """Return what ranks do by execution traces of Chakra.

    `paths`: one file for all ranks, or one for each, named ``*.0.et``, ``*.1.et`` and so on.
    `ranks`: how many there are.

    Raises InputError when a file can't be read, is damaged or too large, or has what can't be run;
    names file, node and fix.
    """
    files = _by_rank(paths, ranks)
    read: dict[bytes, _Trace] = {}
    kinds: dict[tuple[int, int], int] = {}
    traces: list[_Trace] = []
    kind_of: list[int] = []
    left = MAX_NODES
    for rank, path in enumerate(files):
        content = read_bytes(path)
        key = sha256(content).digest()
        if key not in read:
            read[key] = _trace(content, path, left, ranks)
            left -= len(read[key].nodes)
        trace = read[key]
        traces.append(trace)
        # Messages may leave it to the rank who sends.
        kind = id(trace), rank if trace.messages else -1
        kind_of.append(kinds.setdefault(kind, len(kinds)))
    if len(files) == 1:
        traces, kind_of = traces * ranks, kind_of * ranks
    groups = _groups(traces, one_file=len(files) == 1)
    return _Joined(traces, groups, classes(kind_of, groups)).work(Path(files[0]).name)


def _by_rank(paths: Sequence[str], ranks: int) -> list[str]:
    """Return the one file for all ranks, or those of the ranks in order."""
    if len(paths) == 1:
        return [str(paths[0])]
    found: dict[int, str] = {}
    for path in map(str, paths):
        match = _FILE_OF_RANK.fullmatch(path)
        rank = int(match[1]) if match else -1
        if not 0 <= rank < ranks or rank in found:
            raise InputError(
                "is not called after a rank" if match is None
                else f"is of rank {rank}, and so is {found[rank]}" if rank in found
                else f"is of rank {rank}, and there are {ranks}",
                file=path, fix=f"give files *.0.et to *.{ranks - 1}.et, or one for all ranks",
            )  # fmt: skip
        found[rank] = path
    if len(found) < ranks:
        rank = next(rank for rank in range(ranks) if rank not in found)
        raise InputError(
            f"there is no trace of rank {rank}, and there are {ranks}",
            fix=f"give files *.0.et to *.{ranks - 1}.et, or one for all ranks",
        )
    return [found[rank] for rank in range(ranks)]


def _trace(content: bytes, path: str, left: int, ranks: int) -> _Trace:
    """Return a file of at most so many nodes as there are `left`."""
    types = messages()
    nodes: dict[int, _Node] = {}
    groups: dict[str, tuple[Rank, ...]] = {}
    waits = 0
    for place, (start, body) in enumerate(_split(content, path)):
        if not place:
            _check_metadata(body, path)
            continue
        try:
            message = types.node.FromString(body)
        except types.error:
            raise InputError(
                f"the message at byte {start} is no node", file=path, fix=_FIX
            ) from None
        if len(nodes) == left:
            raise InputError(
                f"has more nodes than can be read: {MAX_NODES} of all files that differ",
                file=path, fix="give shorter traces, such as of one step, or fewer",
            )  # fmt: skip
        waits += len(message.data_deps) + len(message.ctrl_deps)
        _check_waits(waits, path)
        at = f"node {message.id}"
        if message.id in nodes:
            raise InputError("is there twice", file=path, field=at, fix=_FIX)
        nodes[message.id] = _node(message, path)
        if message.type == METADATA and '"pg_name"' in message.inputs.values:
            groups.update(_process_groups(message.inputs.values, ranks, path, at))
    if not nodes:
        raise InputError("has no nodes", file=path, fix=_FIX)
    sent = [node for node in nodes.values() if node.sends]
    return _Trace(
        path, _ordered(nodes, path), groups,
        frozenset(node.group for node in sent if node.peers is None),
        any(node.peers is not None for node in sent),
    )  # fmt: skip


def _split(content: bytes, path: str) -> Iterator[tuple[int, bytes]]:
    """Yield where each message begins, and the message."""
    if content.startswith(b"\x1f\x8b"):
        raise InputError("is compressed", file=path, fix="unpack it with gunzip")
    at = 0
    while at < len(content):
        start, size, shift = at, 0, 0
        while at < len(content) and content[at] & 0x80 and shift < 28:
            size |= (content[at] & 0x7F) << shift
            at, shift = at + 1, shift + 7
        if at < len(content):
            size |= content[at] << shift
        at += 1
        if size > MAX_MESSAGE:
            raise InputError(
                f"the message at byte {start} should have at most {MAX_MESSAGE} bytes, got {size}",
                file=path, fix=_FIX,
            )  # fmt: skip
        if at + size > len(content):
            raise InputError(
                f"is cut off: the message at byte {start} goes on to byte {at + size}, and there"
                f" are {len(content)}", file=path, fix="give the whole file",
            )  # fmt: skip
        yield start, content[at : at + size]
        at += size


def _check_metadata(body: bytes, path: str) -> None:
    """Refuse what is no GlobalMetadata; a node would pass for one whose fields are unknown."""
    types = messages()
    try:
        types.metadata.FromString(body)
    except types.error:
        raise InputError(
            "the message at byte 0 is no GlobalMetadata", file=path, fix=_FIX
        ) from None
    try:
        is_node = bool(types.node.FromString(body).type)
    except types.error:
        is_node = False
    if is_node:
        raise InputError(
            "begins with a node, not with GlobalMetadata", file=path,
            fix="write a GlobalMetadata first, if only an empty one",
        )  # fmt: skip


def _check_waits(count: int, path: str) -> None:
    if count > MAX_DEPENDENCIES:
        raise InputError(
            f"has more than {MAX_DEPENDENCIES} dependencies", file=path, fix="give a shorter trace"
        )


def _node(message: Any, path: str) -> _Node:  # noqa: ANN401
    """Return a node by its `message`."""
    at = f"node {message.id}"
    name = message.name if message.name.isprintable() else ascii(message.name)
    after = tuple(dict.fromkeys([*message.data_deps, *message.ctrl_deps]))
    own = _Node(message.id, name[:_LONGEST] or at, after)
    if message.type in (METADATA, MEM_LOAD, MEM_STORE):
        return own
    if message.type not in (COMP, SEND, RECV, COLLECTIVE):
        raise InputError(
            f"should be from {METADATA} to {COLLECTIVE}, got {message.type}", file=path,
            field=f"{at}.type", fix="leave out nodes of storage, and those that are invalid",
        )  # fmt: skip
    if len(message.attr) > MAX_ATTRIBUTES:
        raise InputError(
            f"has more than {MAX_ATTRIBUTES} attributes", file=path, field=at, fix=_FIX
        )
    values = {
        one.name: getattr(one, one.WhichOneof("value") or "", None)
        for one in message.attr if one.name in _WANTED
    }  # fmt: skip
    if message.type == COMP:
        if message.duration_micros > MAX_TIME // PS_PER_US:
            raise InputError(
                f"should be at most {MAX_TIME // PS_PER_US}, got {message.duration_micros}",
                file=path, field=f"{at}.duration_micros", fix="write microseconds",
            )  # fmt: skip
        if not message.duration_micros and _whole(values, "num_ops", path, at, 0):
            raise InputError(
                f"is 0, and there are {values['num_ops']} operations to compute", file=path,
                field=f"{at}.duration_micros", fix="write how many microseconds they take",
            )  # fmt: skip
        time = message.duration_micros * PS_PER_US
        return own._replace(time=time, stream=HOST if values.get("is_cpu_op") else COMPUTE)
    priority = -_whole(values, "comm_priority", path, at, 0)
    if message.type != COLLECTIVE:
        return own._replace(
            sends="broadcast", size=_whole(values, "comm_size", path, at), priority=priority,
            peers=(
                _whole(values, "comm_src", path, at, -1 if message.type == SEND else None),
                _whole(values, "comm_dst", path, at, -1 if message.type == RECV else None),
                _whole(values, "comm_tag", path, at, 0),
            ),
        )  # fmt: skip
    number = _whole(values, "comm_type", path, at)
    if number >= len(COLLECTIVES):
        raise InputError(
            f"should be at most {len(COLLECTIVES) - 1}, got {number}", file=path,
            field=f"{at}.comm_type", fix="write a CollectiveCommType of et_def.proto",
        )  # fmt: skip
    group = values.get("pg_name", "")
    group = str(group) if isinstance(group, int) else group
    if not isinstance(group, str) or len(group) > _LONGEST or not f"{group} ".isprintable():
        raise InputError(
            f"should be a name of at most {_LONGEST} characters, got {shown(group)}", file=path,
            field=f"{at}.pg_name", fix="name a process group",
        )  # fmt: skip
    if COLLECTIVES[number] == "barrier":
        return own._replace(sends="allreduce", size=BARRIER_BYTES, group=group, priority=priority)
    size = _whole(values, "comm_size", path, at)
    return own._replace(sends=COLLECTIVES[number], size=size, group=group, priority=priority)


def _whole(
    values: Mapping[str, object], name: str, path: str, at: str, default: int | None = None
) -> int:
    """Return an attribute of a node as a whole number; without a `default` it has to be there."""
    value = values.get(name)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_SIZE:
        raise InputError(
            "is missing" if value is None
            else f"should be a whole number from 0 to 2^50, got {shown(value)[:_LONGEST]}",
            file=path, field=f"{at}.{name}", fix=f"write {name} as int64_val",
        )  # fmt: skip
    return value


def _process_groups(text: str, ranks: int, path: str, at: str) -> dict[str, tuple[Rank, ...]]:
    """Return members by name, as PyTorch lists them in JSON within a list of one text."""
    start, end = text.find("[{"), text.rfind("}]") + 2
    try:
        value = json.loads(text[max(0, start) : end])
    except (ValueError, RecursionError):
        raise InputError(
            "has process groups that are not JSON", file=path, field=f"{at}.inputs", fix=_FIX
        ) from None
    found = {}
    for entry in value if isinstance(value, list) else [value]:
        fields = entry if isinstance(entry, dict) else {}
        name, members = fields.get("pg_name"), fields.get("ranks")
        if (
            not isinstance(name, (str, int))
            or not isinstance(members, list)
            or not all(type(one) is int and 0 <= one < ranks for one in members)
            or len(set(members)) < len(members)
        ):
            raise InputError(
                f"pg_name and ranks should be a name and ranks from 0 to {ranks - 1}, each once,"
                f" got {shown(name)} and {shown(members)}",
                file=path, field=f"{at}.inputs", fix="give as many ranks as were traced",
            )  # fmt: skip
        found[str(name)] = tuple(members)
    return found


def _ordered(nodes: Mapping[int, _Node], path: str) -> tuple[_Node, ...]:
    """Return nodes behind those that they wait for, else by number."""
    missing = {number: len(node.after) for number, node in nodes.items()}
    then: dict[int, list[int]] = {number: [] for number in nodes}
    for number, node in nodes.items():
        for other in node.after:
            if other not in then:
                raise InputError(
                    f"waits for node {other}, which there is not", file=path,
                    field=f"node {number}", fix="give the whole trace",
                )  # fmt: skip
            then[other].append(number)
    ready = [number for number, count in missing.items() if not count]
    heapq.heapify(ready)
    found: list[_Node] = []
    while ready:
        number = heapq.heappop(ready)
        found.append(nodes[number])
        for other in then[number]:
            missing[other] -= 1
            if not missing[other]:
                heapq.heappush(ready, other)
    if len(found) < len(nodes):
        way = [next(number for number, count in missing.items() if count)]
        seen = {way[0]}
        while (next_ := next(one for one in nodes[way[-1]].after if missing[one])) not in seen:
            way.append(next_)
            seen.add(next_)
        cycle = [*way[way.index(next_) :], next_]
        names = " for ".join(map(str, cycle[:8])) + (" for ..." if len(cycle) > 8 else "")
        raise InputError(
            f"nodes wait for one another: {names}", file=path, field=f"node {next_}",
            fix="remove one of the dependencies",
        )  # fmt: skip
    return tuple(found)


def _place(node: _Node, rank: Rank) -> tuple[str, str]:
    """Return group and stream of what a node of a `rank` sends."""
    if node.peers is None:
        group = f"pg {node.group}" if node.group else ALL_RANKS
        return group, group
    source, target = (rank if one < 0 else one for one in node.peers[:2])
    group = f"{source} to {target}"
    return group, f"{group} tag {node.peers[2]}" if node.peers[2] else group


def _groups(traces: Sequence[_Trace], *, one_file: bool) -> Groups:
    """Return the groups that are used, by the trace of each rank."""
    ranks = len(traces)
    users: dict[str, list[Rank]] = {}
    for rank, trace in enumerate(traces):
        for name in trace.calls:
            users.setdefault(name, []).append(rank)
    different = {id(trace): trace for trace in traces}.values()
    found: Groups = {}
    for name in sorted(users):
        told = {
            trace.groups[name] or tuple(range(ranks)): trace.path
            for trace in different if name and name in trace.groups
        }  # fmt: skip
        instances = tuple(sorted(told)) or (tuple(users[name] if name else range(ranks)),)
        path = next(iter(told.values()), traces[0].path)
        if told and one_file:
            instances = _tiled(instances[0], ranks, name, path)
        members = {rank for one in instances for rank in one}
        outside = next((rank for rank in users[name] if rank not in members), None)
        if len(members) < sum(map(len, instances)) or outside is not None:
            raise InputError(
                f"process group {shown(name)} is told in different ways" if outside is None
                else f"rank {outside} calls process group {shown(name)}, and is not in it",
                file=path, fix=_ONE_RUN,
            )  # fmt: skip
        found[f"pg {name}" if name else ALL_RANKS] = instances
    for rank, trace in enumerate(traces):
        for node in trace.nodes if trace.messages else ():
            if node.peers is None:
                continue
            pair = tuple(rank if one < 0 else one for one in node.peers[:2])
            if one_file or pair[0] == pair[1] or max(pair) >= ranks or rank not in pair:
                raise InputError(
                    "is a message in a file for all ranks, which would all send to one rank"
                    if one_file
                    else f"is a message from rank {pair[0]} to rank {pair[1]} in the file of rank"
                    f" {rank} of {ranks}",
                    file=trace.path, field=f"node {node.number}",
                    fix="give a file for each rank" if one_file else "name the other rank",
                )  # fmt: skip
            found[_place(node, rank)[0]] = (pair,)
    if len(found) > MAX_GROUPS:
        raise InputError(
            f"{len(found)} groups of ranks are more than {MAX_GROUPS}", file=traces[0].path,
            fix="give traces of fewer ranks",
        )  # fmt: skip
    return found


def _tiled(
    members: tuple[Rank, ...], ranks: int, name: str, path: str
) -> tuple[tuple[Rank, ...], ...]:
    """Return all groups of the form of the one that has these `members`."""
    step = members[1] - members[0] if len(members) > 1 else 1
    span = step * len(members)
    first = members[0]
    if step < 1 or ranks % span or first % span >= step or members != tuple(
        range(first, first + span, step)
    ):  # fmt: skip
        raise InputError(
            f"process group {shown(name)} of {len(members)} ranks is not regularly spaced, and so"
            " does not say what the groups of the other ranks are", file=path,
            fix="give a file for each rank",
        )  # fmt: skip
    return tuple(
        tuple(range(block + start, block + span, step))
        for block in range(0, ranks, span) for start in range(step)
    )  # fmt: skip


class _Joined:
    """Traces of all ranks, what classes they are of, and what these call together."""

    def __init__(self, traces: Sequence[_Trace], groups: Groups, class_of: tuple[int, ...]) -> None:
        self.traces, self.groups, self.class_of = traces, groups, class_of
        self.first = [class_of.index(number) for number in range(max(class_of) + 1)]
        total = sum(len(traces[rank].nodes) for rank in self.first)
        if total > MAX_NODES:
            raise InputError(
                f"{len(self.first)} kinds of ranks have {total} nodes, more than {MAX_NODES}",
                file=traces[0].path, fix="give traces of fewer ranks, or shorter ones",
            )  # fmt: skip
        self.sent: list[dict[str, list[_Sent]]] = [{} for _ in self.first]
        self.group_of: dict[str, str] = {}
        for number, rank in enumerate(self.first):
            for node in traces[rank].nodes:
                if node.sends:
                    group, stream = _place(node, rank)
                    self.group_of[stream] = group
                    one = _Sent(node.number, node.sends, node.size)
                    self.sent[number].setdefault(stream, []).append(one)

    def work(self, name: str) -> Work:
        """Return the work of all ranks, by a `name`."""
        calls = self._calls()
        meetings: dict[tuple[str, int], int] = {}
        by_priority = {COMPUTE, HOST}
        made = []
        for number, rank in enumerate(self.first):
            made.append(_operations(self.traces[rank], rank, calls[number], meetings))
            by_priority.update(one.stream for one in made[-1] if one.priority)
        return Work(
            name, len(self.traces), self.groups, self.class_of, tuple(made),
            by_priority=frozenset(by_priority),
        )  # fmt: skip

    def _calls(self) -> list[dict[str, list[Call]]]:
        """Return what each class calls in each stream, when it agrees with the others."""
        streams: dict[str, list[str]] = {}
        for stream, group in self.group_of.items():
            streams.setdefault(group, []).append(stream)
        found: list[dict[str, list[Call]]] = [{} for _ in self.first]
        for group, instances in self.groups.items():
            widths = {
                tuple(sorted({self.class_of[rank] for rank in one})): len(one) for one in instances
            }
            for members, width in widths.items():
                for stream in streams[group]:
                    calls = [
                        Call(collective, group, size * (width if collective in _OF_PARTS else 1))
                        for collective, size in self._agreed(stream, members)
                    ]
                    for number in members:
                        found[number][stream] = calls if width > 1 else []
        return found

    def _agreed(self, stream: str, members: Sequence[int]) -> list[tuple[str, int]]:
        """Return the collectives of a stream that classes call together, and their bytes."""
        lists = [self.sent[number].get(stream, []) for number in members]
        agreed = [(one.collective, one.size) for one in lists[0]]
        for number, own in zip(members[1:], lists[1:], strict=True):
            ranks = self.first[number], self.first[members[0]]
            path = self.traces[ranks[0]].path
            if len(own) != len(agreed):
                raise InputError(
                    f"rank {ranks[0]} calls {shown(stream)} {len(own)} times, and rank {ranks[1]}"
                    f" {len(agreed)} times", file=path, fix=_ONE_RUN,
                )  # fmt: skip
            for place, (one, (collective, size)) in enumerate(zip(own, agreed, strict=True)):
                even = one.size == size or collective in _UNEVEN
                if one.collective != collective or not even:
                    raise InputError(
                        f"is {one.collective} of {one.size} bytes, and what rank {ranks[1]} calls"
                        f" then is {collective} of {size}", file=path, field=f"node {one.node}",
                        fix=_ONE_RUN,
                    )  # fmt: skip
                agreed[place] = collective, max(one.size, size)
        return agreed


def _operations(
    trace: _Trace, rank: Rank, calls: Mapping[str, Sequence[Call]],
    meetings: dict[tuple[str, int], int],
) -> tuple[Operation, ...]:  # fmt: skip
    """Return the operations of a trace; `calls` are those of each stream, none for one rank."""
    made: list[Operation] = []
    ends: dict[int, tuple[int, ...]] = {}
    begun: dict[str, int] = {}
    waits = 0
    for node in trace.nodes:
        after = tuple(sorted({one for other in node.after for one in ends[other]}))
        waits += len(after)
        _check_waits(waits, trace.path)
        stream, call, meeting = node.stream, None, -1
        if node.sends:
            stream = _place(node, rank)[1]
            place = begun.get(stream, 0)
            begun[stream] = place + 1
            call = calls[stream][place] if calls[stream] else None
            if call is not None and call.size:
                meeting = meetings.setdefault((stream, place), len(meetings))
        if meeting < 0 and not node.stream:
            ends[node.number] = after
            continue
        ends[node.number] = (len(made),)
        made.append(Operation(
            node.name, stream, after, node.time, call, meeting, node.priority,
            listens=meeting >= 0 and node.peers is not None and node.peers[1] in (-1, rank),
        ))  # fmt: skip
    return tuple(made)

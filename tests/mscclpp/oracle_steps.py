"""MSCCL++ plans as steps: what each operation reads, writes, signals and waits for.

Written from the contract alone and without the product's reader, so that the two can disagree.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import chain
from math import lcm
from typing import Any, NamedTuple, TypeVar

Json = dict[str, Any]
Cell = tuple[int, str, int]
"""Rank, buffer ("i", "o", "s0" or "s1") and position in grains of a chunk."""
Channel = tuple[int, str, int]
"""Rank, "memory" or "port", and position among the channels of that type of the rank."""
Block = tuple[int, int]
"""Rank and threadblock."""

Item = TypeVar("Item")

_FORMS = {
    "put": ("L+", "R+"),
    "pws": ("L+", "R+"),
    "pwsf": ("L+", "R+"),
    "get": ("R+", "L+"),
    "copy": ("L", "L"),
    "re": ("L+", "L"),
    "res": ("L+", "LR*"),
    "rre": ("LR+", "L"),
    "rres": ("LR+", "LR+"),
    "ppkt": ("L+", "R+"),
    "rppkt": ("L", "R+"),
    "cpkt": ("L", "L"),
    "upkt": ("L", "L"),
    "repkt": ("LL+", "L"),
    "respkt": ("LL+", "LR+"),
    "recpkt": ("LL+", "LL"),
    "recspkt": ("LL+", "LLR+"),
    "glres": ("S", "S"),
    "gstore": ("L", "S"),
    "gstorepkt": ("L", "S"),
}
_PACKET_SOURCES = {"rppkt": 0, "upkt": 0, "repkt": 1, "respkt": 1, "recpkt": 1, "recspkt": 1}
_PACKET_SOURCES["gstorepkt"] = 0
_PACKET_TARGETS = {"ppkt": 0, "rppkt": 0, "cpkt": 0, "respkt": 1, "recpkt": 1, "recspkt": 1}
_PACKET_TARGETS["gstorepkt"] = 0
_PAIRED = {"put", "pws", "pwsf", "get", "ppkt"}
_OVER_PORTS = {"put", "pws", "pwsf", "rppkt"}
_OTHERS = {"nop", "barrier", "sem_acquire", "sem_release", "signal", "wait", "rlxsignal"}
_OTHERS |= {"rlxwait", "flush", "pipeline"}
_NEVER = 1 << 30


class Part(NamedTuple):
    """A range of a buffer that starts ``start`` chunks from its beginning.

    Packets take twice the room: those of chunk k lie where plain chunks 2k and 2k+1 do.
    """

    rank: int
    buffer: str
    start: Fraction
    packet: bool


class Loop(NamedTuple):
    """For each element of a range: read it in all sources, then write the sum to all targets.

    With a ``channel``, which is then a port, it is a transfer that somebody else does later.
    """

    reads: tuple[Part, ...]
    writes: tuple[Part, ...]
    length: Fraction
    channel: Channel | None


class Step(NamedTuple):
    """One operation, or one slice of it: what ``kind`` says, and ``name`` for messages."""

    kind: str
    name: str
    loops: tuple[Loop, ...] = ()
    channels: tuple[Channel, ...] = ()
    relaxed: bool = False
    numbers: tuple[int, ...] = ()
    signals: bool = False
    flushes: bool = False


class Plan(NamedTuple):
    """A plan, ready to be run; ``grain`` is how many equal cells a chunk is cut into."""

    collective: str
    inplace: bool
    double: bool
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    grain: int
    partners: dict[Channel, Channel | None]
    semaphores: dict[tuple[int, int], int]
    programs: dict[Block, list[Step]]
    meetings: dict[tuple[int, int], list[Block]]
    judged: bool

    @property
    def ranks(self) -> int:
        """Return the number of ranks."""
        return len(self.inputs)

    @property
    def calls(self) -> int:
        """Return how many calls in a row have to be looked at."""
        return 3 if self.double else 2


class BrokenPlanError(Exception):
    """What is wrong with a plan that can't be run."""


class _Scope(NamedTuple):
    gpus: list[Json]
    rank: int
    block: Json
    name: str
    rooms: dict[tuple[int, str], int]
    found: list[str]


def read_plan(text: str, slices: int = 1) -> tuple[Plan | None, list[str]]:
    """Return the steps of a plan (None: it can't be run), and what is wrong with its form.

    Parameters
    ----------
    text
        JSON.
    slices
        How many iterations every pipeline has.
    """
    found: list[str] = []
    try:
        document = json.loads(text)
        _refuse(document)
        found += [*_limits(document), *_form(document)]
        return _plan(document, slices, found), found
    except BrokenPlanError as error:
        return None, [*found, str(error)]
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        return None, [*found, f"refused: {type(error).__name__} {error}"]


def has_pipeline(text: str) -> bool:
    """Tell whether a plan that can be read has a pipeline."""
    return any(op["name"] == "pipeline" for _, _, op in _operations(json.loads(text)))


def cells(plan: Plan, part: Part, element: int, call: int) -> tuple[Cell, ...]:
    """Return the cells that one element of a part takes, in the call that is counted from 0."""
    at = int(part.start * plan.grain) + element
    units = (2 * at, 2 * at + 1) if part.packet else (at,)
    return tuple(cell(plan, part.rank, part.buffer, unit, call) for unit in units)


def cell(plan: Plan, rank: int, buffer: str, unit: int, call: int) -> Cell:
    """Return where a grain of a buffer lies: in place, input and output share cells."""
    if buffer == "s":
        return rank, f"s{call % 2 if plan.double else 0}", unit
    if plan.inplace and plan.judged:
        if plan.collective == "allgather" and buffer == "i":
            return rank, "o", unit + rank * plan.inputs[rank] * plan.grain
        if plan.collective == "reducescatter" and buffer == "o":
            return rank, "i", unit + rank * plan.outputs[rank] * plan.grain
        if plan.collective not in {"allgather", "reducescatter"}:
            return rank, "i", unit
    return rank, buffer, unit


def elements(plan: Plan, loop: Loop) -> range:
    """Return the elements of a loop."""
    return range(int(loop.length * plan.grain))


def _operations(document: Json) -> Iterator[tuple[int, int, Json]]:
    for rank, gpu in enumerate(document["gpus"]):
        for number, block in enumerate(gpu["threadblocks"]):
            for op in block["ops"]:
                yield rank, number, op
                for inner in op.get("ops", []):
                    yield rank, number, inner


def _refuse(document: Json) -> None:
    for rank, gpu in enumerate(document["gpus"]):
        if gpu["id"] != rank:
            raise BrokenPlanError(f"refused: gpu {gpu['id']} stands at position {rank}")
        for number, block in enumerate(gpu["threadblocks"]):
            if block["id"] != number:
                raise BrokenPlanError(f"refused: rank {rank} tb {block['id']} stands at {number}")
    for rank, number, op in _operations(document):
        if op["name"] not in _FORMS and op["name"] not in _OTHERS:
            raise BrokenPlanError(f"refused: rank {rank} tb {number} has an op {op['name']}")


def _limits(document: Json) -> Iterator[str]:
    for rank, gpu in enumerate(document["gpus"]):
        for number, block in enumerate(gpu["threadblocks"]):
            where = f"limit: rank {rank} tb {number}"
            lists = [one["channel_ids"] for one in block["channels"]]
            lists += [one["remote_buffer_ids"] for one in block["remote_buffer_refs"]]
            if any(len(one) > 16 for one in lists):
                yield f"{where} has more than 16 channels or remote buffers of a type"
            if sum(1 + len(op.get("ops", [])) for op in block["ops"]) > 64:
                yield f"{where} has more than 64 operations"
    for rank, number, op in _operations(document):
        where = f"limit: rank {rank} tb {number} {op['name']}"
        if len(op.get("channel_ids", [])) > 8:
            yield f"{where} has more than 8 channels"
        if max(len(op.get("src_buff", [])), len(op.get("dst_buff", []))) > 10:
            yield f"{where} has more than 10 operands"
        if op["name"] == "barrier" and op["barrier_id"] >= 16:
            yield f"{where} has id {op['barrier_id']}"
        if len(op.get("semaphore_ids", [])) > 16:
            yield f"{where} has more than 16 semaphores"


def _form(document: Json) -> Iterator[str]:
    if document["protocol"] not in {"Simple", "LL"}:
        yield f"structure: protocol {document['protocol']}"
    for rank, gpu in enumerate(document["gpus"]):
        if not gpu["input_chunks"] or not gpu["output_chunks"]:
            yield f"structure: rank {rank} has no input chunks or no output chunks"
        peers = [*_peers(gpu, "memory"), *_peers(gpu, "port")]
        peers += [remote["rank"] for remote in gpu["remote_buffers"]]
        if not all(0 <= peer < len(document["gpus"]) and peer != rank for peer in peers):
            raise BrokenPlanError(f"structure: rank {rank} is connected to what is no other rank")
    yield from _switches(document["gpus"])
    for rank, number, op in _operations(document):
        if op.get("reduce_op", "sum") != "sum":
            yield f"structure: rank {rank} tb {number} reduces by {op['reduce_op']}"


def _switches(gpus: list[Json]) -> Iterator[str]:
    counts = [Counter(_groups(gpu)) for gpu in gpus]
    for rank, count in enumerate(counts):
        for group, number in count.items():
            if rank not in group[1] or any(counts[peer][group] != number for peer in group[1]):
                yield f"structure: not all of the switch group {group} of rank {rank} have it"


def _peers(gpu: Json, kind: str) -> list[int]:
    entries = [one for one in gpu["channels"] if one["channel_type"] == kind]
    return [peer for one in entries for peer in one["connected_to"]]


def _groups(gpu: Json) -> list[tuple[str, tuple[int, ...]]]:
    entries = [one for one in gpu["channels"] if one["channel_type"] == "switch"]
    return [
        (one["buffer_type"], tuple(group["ranks"]))
        for one in entries
        for group in one["rank_groups"]
    ]


def _fitting(document: Json) -> bool:
    """Tell whether the chunks are as many as the collective needs."""
    gpus = document["gpus"]
    numbers = {(gpu["input_chunks"], gpu["output_chunks"]) for gpu in gpus}
    if len(numbers) != 1:
        return False
    [(inputs, outputs)] = numbers
    fits: dict[str, bool] = {
        "allgather": bool(outputs == inputs * len(gpus)),
        "reducescatter": inputs == outputs * len(gpus),
        "alltoall": inputs == outputs and inputs % len(gpus) == 0,
    }
    return fits.get(document["collective"], bool(inputs == outputs))


def _plan(document: Json, slices: int, found: list[str]) -> Plan:
    gpus = document["gpus"]
    known = {"allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "reduce"}
    judged = document["collective"] in known
    if judged and not _fitting(document):
        found.append("structure: the numbers of chunks do not fit the collective")
        judged = False
    wide = 2 if document["protocol"] == "LL" else 1
    rooms = {}
    for rank, gpu in enumerate(gpus):
        rooms[rank, "i"], rooms[rank, "o"] = gpu["input_chunks"], gpu["output_chunks"]
        rooms[rank, "s"] = gpu["scratch_chunks"] * wide
    programs: dict[Block, list[Step]] = {}
    for rank, gpu in enumerate(gpus):
        for number, block in enumerate(gpu["threadblocks"]):
            scope = _Scope(gpus, rank, block, f"rank {rank} tb {number}", rooms, found)
            programs[rank, number] = list(_steps(scope, document, slices))
    parts = [
        (Fraction(loop.length), *(part.start for part in (*loop.reads, *loop.writes)))
        for steps in programs.values()
        for step in steps
        for loop in step.loops
    ]
    return Plan(
        collective=document["collective"],
        inplace=document["inplace"],
        double=document.get("use_double_scratch_buffer", False),
        inputs=tuple(gpu["input_chunks"] for gpu in gpus),
        outputs=tuple(gpu["output_chunks"] for gpu in gpus),
        grain=lcm(*(one.denominator for ones in parts for one in ones)),
        partners=_partners(gpus, found),
        semaphores={
            (rank, index): one["init_value"]
            for rank, gpu in enumerate(gpus)
            for index, one in enumerate(gpu.get("semaphores", []))
        },
        programs=programs,
        meetings=_meetings(document, programs),
        judged=judged,
    )


def _partners(gpus: list[Json], found: list[str]) -> dict[Channel, Channel | None]:
    towards: dict[tuple[int, int], list[Channel]] = defaultdict(list)
    for rank, gpu in enumerate(gpus):
        for kind in ("memory", "port"):
            for index, peer in enumerate(_peers(gpu, kind)):
                towards[rank, peer].append((rank, kind, index))
    partners: dict[Channel, Channel | None] = {}
    for (rank, peer), channels in list(towards.items()):
        others = towards.get((peer, rank), [])
        for place, channel in enumerate(channels):
            other = others[place] if place < len(others) else None
            partners[channel] = other
            if other is not None and other[1] != channel[1]:
                found.append(f"structure: channel {channel} is matched with {other}")
    return partners


def _meetings(
    document: Json, programs: dict[Block, list[Step]]
) -> dict[tuple[int, int], list[Block]]:
    """Return who meets at each barrier of a rank."""
    times: dict[tuple[int, int], Counter[Block]] = defaultdict(Counter)
    for block, steps in programs.items():
        for step in steps:
            if step.kind == "barrier":
                times[block[0], step.numbers[0]][block] += 1
    asked: dict[tuple[int, int], set[int]] = defaultdict(set)
    for rank, _, op in _operations(document):
        if op["name"] == "barrier":
            asked[rank, op["barrier_id"]].add(op["num_threadblocks"])
    for key, count in times.items():
        if asked[key] != {len(count)} or len(set(count.values())) != 1:
            raise BrokenPlanError(
                f"deadlock: rank {key[0]} barrier {key[1]} asks for {sorted(asked[key])} "
                f"threadblocks and is met {sorted(count.values())} times"
            )
    return {key: sorted(count) for key, count in times.items()}


def _steps(scope: _Scope, document: Json, slices: int) -> Iterator[Step]:
    whole = Fraction(0), Fraction(1)
    for number, op in enumerate(scope.block["ops"]):
        name = f"{scope.name} op {number}"
        if op["name"] != "pipeline":
            yield from _step(scope, op, f"{name} ({op['name']})", whole)
            continue
        _watch(scope, document, op, name)
        for turn in range(slices):
            for place, inner in enumerate(op["ops"]):
                share = Fraction(turn, slices), Fraction(1, slices)
                yield from _step(scope, inner, f"{name}.{place} ({inner['name']})", share)


def _watch(scope: _Scope, document: Json, op: Json, name: str) -> None:
    """Note what a pipeline can't do."""
    gpu = scope.gpus[scope.rank]
    gathers = document["collective"] == "allgather"
    chunks = gpu["output_chunks" if gathers else "input_chunks"] or 1
    chunk = document.get("max_message_size", 2**64 - 1) // chunks
    context = op["iter_context"]
    many = context["num_chunks"] * chunk > context["unit_size"]
    for inner in op["ops"]:
        if inner["name"] == "pipeline":
            raise BrokenPlanError(f"unsupported: {name} is a pipeline with a pipeline inside")
        if many and (inner["name"] in _PACKET_SOURCES or inner["name"] in _PACKET_TARGETS):
            scope.found.append(f"packet: {name} has {inner['name']} in a pipeline")
        operands = [*inner.get("src_buff", []), *inner.get("dst_buff", [])]
        if document.get("reuse_resources") and any(one.get("type") == "s" for one in operands):
            scope.found.append(f"unsupported: {name} slices scratch that wraps around")


def _step(scope: _Scope, op: Json, name: str, share: tuple[Fraction, Fraction]) -> Iterator[Step]:
    kind = op["name"]
    if kind == "nop":
        yield Step("fence", name)
    elif kind == "barrier":
        yield Step("barrier", name, numbers=(op["barrier_id"],))
    elif kind in {"sem_acquire", "sem_release"}:
        semaphores = scope.gpus[scope.rank].get("semaphores", [])
        for index in op["semaphore_ids"]:
            _at(semaphores, index, f"{name}: semaphore")
        yield Step(kind.removeprefix("sem_"), name, numbers=tuple(op["semaphore_ids"]))
    elif kind in {"signal", "rlxsignal", "wait", "rlxwait"}:
        channels = tuple(
            _channel(scope, op, place, name) for place in range(len(op["channel_ids"]))
        )
        relaxed = kind.startswith("rlx") and op["channel_type"] == "memory"
        yield Step(kind.removeprefix("rlx"), name, channels=channels, relaxed=relaxed)
    elif kind != "flush":
        tells = op.get("channel_type") == "port"
        yield Step(
            "data",
            name,
            loops=tuple(_loops(scope, op, name, share)),
            signals=tells and kind in {"pws", "pwsf"},
            flushes=tells and kind == "pwsf",
        )


def _at(items: Sequence[Item], index: int, what: str) -> Item:
    if not 0 <= index < len(items):
        raise BrokenPlanError(f"structure: {what} {index} is not there")
    return items[index]


def _channel(scope: _Scope, op: Json, place: int, name: str) -> Channel:
    kind = op["channel_type"]
    if kind not in {"memory", "port"}:
        raise BrokenPlanError(f"structure: {name}: a channel of type {kind}")
    position = _at(op.get("channel_ids", []), place, f"{name}: the channel of operand")
    index = _at(_own(scope, kind), position, f"{name}: channel")
    _at(_peers(scope.gpus[scope.rank], kind), index, f"{name}: {kind} channel of the rank")
    return scope.rank, kind, index


def _own(scope: _Scope, kind: str) -> list[int]:
    entries = [one for one in scope.block["channels"] if one["channel_type"] == kind]
    return [index for one in entries for index in one["channel_ids"]]


def _literal(op: Json, sources: list[Json], targets: list[Json]) -> tuple[list[Json], list[Json]]:
    """Return the operands as the kernel takes them, where it takes them in a way of its own."""
    if op["name"] == "get":
        return (
            [{**one, "index": other["index"]} for one, other in zip(sources, targets, strict=True)],
            [{**one, "index": other["index"]} for one, other in zip(targets, sources, strict=True)],
        )
    if op["name"] in {"put", "pws", "pwsf"} and op.get("channel_type") == "memory":
        return [{**one, "type": sources[0]["type"]} for one in sources], targets
    return sources, targets


def _loops(scope: _Scope, op: Json, name: str, share: tuple[Fraction, Fraction]) -> Iterator[Loop]:
    kind, sources, targets = op["name"], op["src_buff"], op["dst_buff"]
    for form, operands in zip(_FORMS[kind], (sources, targets), strict=True):
        if not re.fullmatch(form, "".join(map(_letter, operands))):
            raise BrokenPlanError(f"structure: {name} has operands of another form than {form}")
    if kind in _PAIRED and len(sources) != len(targets):
        raise BrokenPlanError(f"structure: {name} has {len(sources)} sources, not {len(targets)}")
    if len({one["size"] for one in (*sources, *targets)}) != 1:
        raise BrokenPlanError(f"structure: {name} has operands of several sizes")
    port = op.get("channel_type") == "port"
    if port and kind not in _OVER_PORTS:
        raise BrokenPlanError(f"unsupported: {name} over a port")
    sources, targets = _literal(op, sources, targets)
    low, width = _share(op, name, share)
    from_packets, to_packets = _PACKET_SOURCES.get(kind, _NEVER), _PACKET_TARGETS.get(kind, _NEVER)
    reads = [
        _parts(scope, op, one, place >= from_packets, name, low)
        for place, one in enumerate(sources)
    ]
    writes = [
        _parts(scope, op, one, place >= to_packets, name, low) for place, one in enumerate(targets)
    ]
    if kind in _PAIRED:
        pairs = list(zip(reads, writes, strict=True))
    elif port:
        pairs = [(reads[0], one) for one in writes]
    else:
        pairs = [(tuple(chain(*reads)), tuple(chain(*writes)))]
    peers = _peers(scope.gpus[scope.rank], "port")
    for place, (inputs, outputs) in enumerate(pairs):
        channel = _channel(scope, op, place, name) if port else None
        if channel is not None and peers[channel[2]] != outputs[0].rank:
            raise BrokenPlanError(f"structure: {name}: the channel leads to another rank")
        yield Loop(inputs, outputs, sources[0]["size"] * width, channel)


def _letter(operand: Json) -> str:
    return "R" if "buffer_id" in operand else "S" if "switch_channel_id" in operand else "L"


def _share(op: Json, name: str, share: tuple[Fraction, Fraction]) -> tuple[Fraction, Fraction]:
    """Return where the part of a range that is done begins, and how wide it is."""
    low, width = share
    group = op.get("tbg_info", {"tb_id": 0, "tbg_size": 1})
    if not 0 <= group["tb_id"] < group["tbg_size"]:
        raise BrokenPlanError(f"structure: {name}: tbg_info {group}")
    width /= group["tbg_size"]
    return low + width * group["tb_id"], width


def _parts(
    scope: _Scope, op: Json, operand: Json, packet: bool, name: str, low: Fraction
) -> tuple[Part, ...]:
    index, size = operand["index"], operand["size"]
    parts = []
    for rank, buffer in _places(scope, op, operand, name):
        end = (index + size) * (2 if packet else 1)
        if index < 0 or size < 1 or end > _room(scope, rank, buffer):
            scope.found.append(f"structure: {name} goes beyond buffer {buffer} of rank {rank}")
        if packet and buffer != "s":
            scope.found.append(f"packet: {name} has packets in buffer {buffer} of rank {rank}")
        parts.append(Part(rank, buffer, index + size * low, packet))
    return tuple(parts)


def _room(scope: _Scope, rank: int, buffer: str) -> int:
    if (rank, buffer) not in scope.rooms:
        raise BrokenPlanError(f"structure: {scope.name}: no buffer {buffer} on rank {rank}")
    return scope.rooms[rank, buffer]


def _places(scope: _Scope, op: Json, operand: Json, name: str) -> list[tuple[int, str]]:
    """Return the ranks and buffers where an operand lies."""
    gpu, letter = scope.gpus[scope.rank], _letter(operand)
    if letter == "L":
        return [(scope.rank, operand["type"])]
    if letter == "S":
        index = _at(_own(scope, "switch"), operand["switch_channel_id"], f"{name}: switch")
        buffer, ranks = _at(_groups(gpu), index, f"{name}: switch channel of the rank")
        return [(rank, buffer) for rank in ranks]
    kind = op.get("channel_type")
    entries = [
        one for one in scope.block["remote_buffer_refs"] if one["access_channel_type"] == kind
    ]
    references = [index for one in entries for index in one["remote_buffer_ids"]]
    index = _at(references, operand["buffer_id"], f"{name}: remote buffer")
    remote = _at(gpu["remote_buffers"], index, f"{name}: remote buffer of the rank")
    if kind not in remote["access_channel_types"]:
        raise BrokenPlanError(f"structure: {name}: remote buffer {index} is not for {kind}")
    return [(remote["rank"], remote["type"])]

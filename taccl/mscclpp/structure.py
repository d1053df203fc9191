"""What the executor of MSCCL++ refuses, or takes and then breaks on: one function a rule.

These rules look at one operation, threadblock or rank at a time; what comes of running them all is
for the interpreter to say. Sources: microsoft/mscclpp, ``src/core/executor/execution_plan.cc``
("the reader" below), ``executor.cc`` ("the executor") and ``src/core/include/execution_kernel.hpp``
("the kernel"). None of them checks more than the number of operations of a threadblock.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import NamedTuple

from taccl.msccl.program import Buffer, Finding, Severity
from taccl.mscclpp.plan import (
    COLLECTIVES,
    MAX_BARRIERS,
    MAX_BUFFER,
    MAX_CHANNELS,
    MAX_ITERATIONS,
    MAX_OP_CHANNELS,
    MAX_OPERANDS,
    MAX_OPS,
    MAX_SEMAPHORES,
    MOVES_IN_PIPELINE,
    NEWEST,
    OPERATIONS,
    VERSIONS,
    Group,
    Operand,
    Plan,
    PlanBlock,
    PlanOp,
    PlanRank,
    Side,
)

MAX_FOUND = 100
"""Findings of one rule that are told."""

MAX_THREADS = 1024
"""``__launch_bounds__`` of the kernel."""

MULTIPROCESSORS = 132
"""Of an H100: with 1024 threads, each runs one threadblock at a time."""

VECTOR = 16
"""Bytes that the kernel adds at a time: it divides offsets by them."""

PROTOCOLS = ("Simple", "LL")

_TITLES = {Buffer.INPUT: "input", Buffer.OUTPUT: "output", Buffer.SCRATCH: "scratch buffer"}
_SIDES = {"L": Side.LOCAL, "R": Side.REMOTE, "S": Side.SWITCH}
_PUTS = frozenset({"put", "pws", "pwsf"})
_POSTS = frozenset(name for name, row in OPERATIONS.items() if "port" in row.types and row.targets)

_INSTEAD = {
    "recpkt": "use repkt and cpkt", "recspkt": "use respkt and cpkt", "gstore": "put to each rank",
    "gstorepkt": "use rppkt to each rank",
}  # fmt: skip
"""What does the same in releases that do not read an operation."""

_SAME_AS_SOURCES = -1
_ANY_NUMBER = 0

_COUNTS: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys((*_PUTS, "get", "ppkt"), (_ANY_NUMBER, _SAME_AS_SOURCES)),
    **dict.fromkeys(("copy", "cpkt", "upkt", "glres", "gstore", "gstorepkt"), (1, 1)),
    **dict.fromkeys(("re", "rre", "repkt"), (_ANY_NUMBER, 1)),
    "rppkt": (1, _ANY_NUMBER),
    "recpkt": (_ANY_NUMBER, 2),
}
"""Sources and targets that the kernel looks at, where that is not all of them."""

_FIELDS: Mapping[str, tuple[str, ...]] = {
    "a barrier": ("barrier",),
    "semaphores": ("sem_acquire", "sem_release"),
    "iterations": ("pipeline",),
}
"""Fields of some operations, which lie over the channels and offsets of others (a union)."""

_SHARES: Mapping[str, tuple[bool, bool]] = {
    "allreduce": (False, False), "broadcast": (False, False), "reduce": (False, False),
    "alltoall": (False, False), "allgather": (True, False), "reducescatter": (False, True),
}  # fmt: skip
"""Whether the input, and the output, is one rank's share of the other buffer."""


class Spot(NamedTuple):
    """An operation, and where it is.

    `rank`, `number`: its rank, and the position of its threadblock there.
    `step`: its position in the threadblock, or that of the pipeline it is in.
    `inner`: its position in the pipeline; -1 in none.
    `block`, `op`: the threadblock, and the operation.
    """

    rank: int
    number: int
    step: int
    inner: int
    block: PlanBlock
    op: PlanOp

    def finding(
        self, rule: str, explanation: str, fix: str, severity: Severity = Severity.BREAKS
    ) -> Finding:
        """Return a finding here: of a `rule`, with `explanation`, `fix` and `severity`."""
        inside = f"operation {self.inner} of the pipeline, " if self.inner >= 0 else ""
        text = f"{inside}{self.op.name} {explanation}"
        return Finding(rule, text, self.rank, self.number, self.step, fix, severity)


class Access(NamedTuple):
    """Chunks of one rank that an operation reads or writes.

    `operand`: as it is written.
    `rank`, `buffer`: whose, and where.
    `writes`: whether it writes them.
    `packets`: whether they are packets.
    """

    operand: Operand
    rank: int
    buffer: Buffer
    writes: bool
    packets: bool


@dataclass(frozen=True, slots=True)
class Facts:
    """What rules look at.

    `plan`, `version`: the plan, and the release that reads it.
    `spots`: its operations, those in pipelines after the pipeline.
    `smallest`: of each switch channel, by rank and position, the rank with the fewest chunks.
    """

    plan: Plan
    version: str
    spots: tuple[Spot, ...]
    smallest: Mapping[tuple[int, int], int]

    def owner(self, spot: Spot, operand: Operand) -> tuple[int, Buffer] | None:
        """Return the rank that an `operand` at a `spot` is in a buffer of, and the buffer.

        Of a switch channel it is the rank with the least room; None where a number names nothing.
        """
        at, block, record = operand.ref, spot.block, self.plan.ranks[spot.rank]
        if operand.side is Side.LOCAL:
            return None if operand.buffer is None else (spot.rank, operand.buffer)
        remote = operand.side is Side.REMOTE
        named, kind = (
            (block.remotes, spot.op.channel_type) if remote else (block.channels, "switch")
        )
        ids = named.get(kind, ())
        if not 0 <= at < len(ids):
            return None
        if remote and 0 <= ids[at] < len(record.remotes):
            rank, buffer, _ = record.remotes[ids[at]]
            return (rank, buffer) if 0 <= rank < self.plan.num_ranks else None
        if not remote and (spot.rank, ids[at]) in self.smallest:
            return self.smallest[spot.rank, ids[at]], record.groups[ids[at]].buffer
        return None

    def accesses(self, spot: Spot) -> Iterator[Access]:
        """Yield what the operation at a `spot` touches; what it names in vain is left out."""
        row = OPERATIONS.get(spot.op.name)
        if row is None:
            return
        for operands, first, writes in (
            (spot.op.sources, row.reads_packets, False),
            (spot.op.targets, row.writes_packets, True),
        ):
            for number, operand in enumerate(operands):
                found = self.owner(spot, operand)
                if found is not None:
                    yield Access(operand, *found, writes, 0 <= first <= number)


Rule = Callable[[Facts], Iterator[Finding]]

_Place = tuple[int, int | None, int | None]
"""Rank, threadblock and step; None where there is none."""


def structure_findings(plan: Plan, version: str = NEWEST) -> list[Finding]:
    """Return what is wrong with the parts of a `plan` that a `version`, of VERSIONS, is to read.

    Of each rule the first MAX_FOUND findings are told.
    """
    spots: list[Spot] = []
    smallest: dict[tuple[int, int], int] = {}
    rooms = [record.room for record in plan.ranks]
    for rank, record in enumerate(plan.ranks):
        for position, group in enumerate(record.groups):
            there = [
                (rooms[one][group.buffer], one) for one in group.ranks if 0 <= one < len(rooms)
            ]
            if there:
                smallest[rank, position] = min(there)[1]
        for number, block in enumerate(record.blocks):
            for step, op in enumerate(block.ops):
                spots.append(Spot(rank, number, step, -1, block, op))
                spots += [Spot(rank, number, step, at, block, o) for at, o in enumerate(op.inner)]
    facts = Facts(plan, version, tuple(spots), smallest)
    return [found for rule in RULES.values() for found in islice(rule(facts), MAX_FOUND)]


def accepts(plan: Plan, size: int) -> str:
    """Return why a call of `plan` is refused, empty where it is not.

    The call is for `size` bytes of input, for an allgather of output, on every rank. The executor
    refuses what is not aligned, does not divide (``checkMessageSize``) or is out of the plan's
    range; buffers of 4 GiB and more are beyond its numbers.
    """
    least = _least(plan)
    if not least <= size <= plan.max_bytes:
        return f"{size} bytes are not in the plan's range of {least} to {plan.max_bytes}"
    for rank, record in enumerate(plan.ranks):
        chunks = counted_chunks(plan, record)
        if not plan.alignment or not record.input_chunks or not record.output_chunks:
            return f"rank {rank} divides by 0: alignment, input chunks or output chunks"
        if wanted := _proportion(plan, record):
            return f"chunks of input and output of rank {rank} differ in size: {wanted}"
        if size % (plan.alignment * chunks):
            return (
                f"{size} bytes are no multiple of {plan.alignment * chunks}: {chunks} chunks that"
                f" are aligned to {plan.alignment}"
            )
        scratch = (1 + (plan.protocol == "LL")) * (1 + plan.double_scratch)
        for title, count in (
            ("input", record.input_chunks),
            ("output", record.output_chunks),
            ("scratch buffer", 0 if plan.reuse_resources else record.scratch_chunks * scratch),
        ):
            if size // chunks * count > MAX_BUFFER:
                return (
                    f"{size} bytes make {size // chunks * count} bytes of the {title} of rank"
                    f" {rank}, and offsets end below 4 GiB"
                )
    return ""


def _least(plan: Plan) -> int:
    """Return the smallest size of a plan as the reader takes it: it goes through an int."""
    signed = (plan.min_bytes + (1 << 31)) % (1 << 32) - (1 << 31)
    return signed % (1 << 64)


def counted_chunks(plan: Plan, record: PlanRank) -> int:
    """Return the chunks, on a `record` of a `plan`, of the buffer by whose size it is called."""
    return record.output_chunks if plan.collective == "allgather" else record.input_chunks


def head(facts: Facts) -> Iterator[Finding]:
    """Check protocol, collective, threads and alignment of the plan of `facts`."""
    plan = facts.plan
    if plan.protocol not in PROTOCOLS:
        yield Finding(
            "structure", f"protocol {plan.protocol[:40]!r} is taken for Simple",
            fix="write Simple or LL", severity=Severity.WARNING,
        )  # fmt: skip
    if plan.collective not in COLLECTIVES:
        yield Finding(
            "structure", f"nothing selects a plan for the collective {plan.collective[:40]!r}",
            fix=f"use one of {', '.join(COLLECTIVES)}", severity=Severity.WARNING,
        )  # fmt: skip
    if not 1 <= plan.threads <= MAX_THREADS:
        yield Finding(
            "limit", f"has {plan.threads} threads in a threadblock, the kernel runs with 1 to"
            f" {MAX_THREADS}", fix="use 1024",
        )  # fmt: skip
    if not plan.alignment:
        yield Finding("structure", "an alignment of 0 bytes is divided by", fix="use 16")
    elif plan.alignment % VECTOR:
        added = any(OPERATIONS[s.op.name].adds for s in facts.spots if s.op.name in OPERATIONS)
        yield Finding(
            "structure", f"an alignment of {plan.alignment} bytes lets chunks start where the"
            f" kernel, which goes by {VECTOR} bytes, does not", fix="use 16",
            severity=Severity.BREAKS if added else Severity.WARNING,
        )  # fmt: skip


def sizes(facts: Facts) -> Iterator[Finding]:
    """Check that some call is in the range of sizes of the plan of `facts`.

    ``obj.value("min_message_size", 0)`` is an int, as the default is one.
    """
    plan, least = facts.plan, _least(facts.plan)
    if least != plan.min_bytes:
        yield Finding(
            "structure", f"min_message_size {plan.min_bytes} is read as {least}",
            fix="use less than 2147483648",
            severity=Severity.NEVER if least > plan.max_bytes else Severity.WARNING,
        )  # fmt: skip
    elif plan.max_bytes < max(least, 1):
        yield Finding(
            "structure", f"the range of sizes is {least} to {plan.max_bytes} bytes",
            fix="give a max_message_size of at least min_message_size, and above 0",
            severity=Severity.NEVER,
        )  # fmt: skip
    else:
        unit = plan.alignment * max((counted_chunks(plan, one) for one in plan.ranks), default=0)
        top = min(plan.max_bytes, MAX_BUFFER)
        if unit and top // unit * unit < max(least, 1):
            yield Finding(
                "structure", f"no size from {least} to {top} bytes is a multiple of {unit}:"
                " aligned chunks", fix="widen the range, or use fewer chunks",
                severity=Severity.NEVER,
            )  # fmt: skip


def chunks(facts: Facts) -> Iterator[Finding]:
    """Check the chunks of input and output in `facts`.

    ``checkMessageSize`` divides by both, and each rank finds the chunks of others by the size of
    its own.
    """
    plan = facts.plan
    for rank, record in enumerate(plan.ranks):
        first, ins, outs = plan.ranks[0], record.input_chunks, record.output_chunks
        if not ins or not outs:
            yield Finding(
                "chunks", f"has {ins} input and {outs} output chunks, and every call divides by"
                " both: it crashes", rank, fix="have at least 1 of both",
            )  # fmt: skip
        elif wanted := _proportion(plan, record):
            yield Finding(
                "structure", f"has {ins} input and {outs} output chunks: with {plan.collective}"
                " they differ in size, and every call is refused", rank, fix=wanted,
                severity=Severity.REJECTED,
            )  # fmt: skip
        elif plan.collective not in _SHARES:
            continue
        elif (ins, outs) != (first.input_chunks, first.output_chunks):
            yield Finding(
                "structure", f"has {ins} input and {outs} output chunks, and rank 0"
                f" {first.input_chunks} and {first.output_chunks}: it takes chunks of others for as"
                " large as its own", rank, fix="cut the buffers of all ranks alike",
            )  # fmt: skip
        elif plan.collective == "alltoall" and ins % plan.num_ranks:
            yield Finding(
                "structure", f"has {ins} input chunks for {plan.num_ranks} ranks", rank,
                fix=f"have a multiple of {plan.num_ranks}",
            )  # fmt: skip


def _proportion(plan: Plan, record: PlanRank) -> str:
    """Return how input and output chunks should be to each other, empty where they are.

    ``getSizeAndChunks`` refuses a call in which they are not of one size.
    """
    ins, outs, many = record.input_chunks, record.output_chunks, plan.num_ranks
    of_input, of_output = _SHARES.get(plan.collective, (False, False))
    if plan.collective not in _SHARES or (
        ins * (many if of_input else 1) == outs * (many if of_output else 1)
    ):  # fmt: skip
        return ""
    more, less = ("input", "output") if of_output else ("output", "input")
    times = f"{many} times as many" if of_input or of_output else "as many"
    return f"have {times} {more} as {less} chunks"


def operations(facts: Facts) -> Iterator[Finding]:
    """Check that the version in `facts` knows the operations (``getOpType``)."""
    version = VERSIONS.index(facts.version)
    for spot in facts.spots:
        row = OPERATIONS.get(spot.op.name)
        if row is None:
            yield spot.finding(
                "refused", "is read by no release", "use another operation", Severity.REJECTED
            )
        elif VERSIONS.index(row.since) > version:
            yield spot.finding(
                "refused", f"is read by MSCCL++ {row.since} and newer, not by {facts.version}",
                f"use MSCCL++ {row.since}, or {_INSTEAD.get(spot.op.name, 'another operation')}",
                Severity.REJECTED,
            )  # fmt: skip


def references(facts: Facts) -> Iterator[Finding]:
    """Check that what parts of the plan of `facts` name is there; nobody else does."""
    for place, value, count, what in _references(facts):
        if not 0 <= value < count:
            yield Finding(
                "refused", f"names {what} {value}, and there are {count}", *place,
                fix=f"use one from 0 to {count - 1}" if count else f"add a {what}",
                severity=Severity.REJECTED,
            )  # fmt: skip


def _references(facts: Facts) -> Iterator[tuple[_Place, int, int, str]]:
    """Yield where something is named, its number, how many there are, and what it is."""
    plan = facts.plan
    for rank, record in enumerate(plan.ranks):
        peers = [channel.peer for found in record.channels.values() for channel in found]
        peers += [buffer.rank for buffer in record.remotes]
        peers += [member for group in record.groups for member in group.ranks]
        yield from (((rank, None, None), peer, plan.num_ranks, "rank") for peer in peers)
        for number, block in enumerate(record.blocks):
            for kind, ids in block.channels.items():
                rows = record.groups if kind == "switch" else record.channels.get(kind, ())
                yield from (((rank, number, None), at, len(rows), f"{kind} channel") for at in ids)
            for ids in block.remotes.values():
                room = len(record.remotes)
                yield from (((rank, number, None), at, room, "remote buffer") for at in ids)
    for spot in facts.spots:
        place, op = (spot.rank, spot.number, spot.step), spot.op
        room = len(spot.block.channels.get(op.channel_type, ()))
        yield from ((place, at, room, f"{op.channel_type} channel") for at in op.channels)
        room = len(plan.ranks[spot.rank].semaphores)
        yield from ((place, at, room, "semaphore") for at in op.semaphores)
        for operand in (*op.sources, *op.targets):
            if operand.side is Side.REMOTE:
                room = len(spot.block.remotes.get(op.channel_type, ()))
                yield place, operand.ref, room, f"{op.channel_type} buffer".lstrip()
            elif operand.side is Side.SWITCH:
                room = len(spot.block.channels.get("switch", ()))
                yield place, operand.ref, room, "switch channel"


def limits(facts: Facts) -> Iterator[Finding]:
    """Check `facts` against the arrays of ``DeviceExecutionPlan`` and ``Operation``.

    Only the number of operations is compared before it is written (``setupDeviceExecutionPlan``).
    """
    for place, found, limit, what, fix in _amounts(facts):
        if found > limit:
            checked = what.startswith("operations")
            yield Finding(
                "limit", f"has {found} {what}, the executor"
                f" {'takes' if checked else 'has room for'} {limit}"
                f"{'' if checked else ' and writes on'}", *place, fix=fix,
                severity=Severity.REJECTED if checked else Severity.BREAKS,
            )  # fmt: skip
    for rank, record in enumerate(facts.plan.ranks):
        if len(record.blocks) > MULTIPROCESSORS:
            yield Finding(
                "limit", f"has {len(record.blocks)} threadblocks, which must run all at once: an"
                f" H100 has {MULTIPROCESSORS} multiprocessors", rank, fix="use fewer threadblocks",
                severity=Severity.WARNING,
            )  # fmt: skip
    threads = facts.plan.threads
    for spot in facts.spots:
        op = spot.op
        posted = len(op.targets) if op.channel_type == "port" else 0
        most = max(len(op.channels), len(op.semaphores), posted)
        if most > threads > 0:
            yield spot.finding(
                "limit", f"names {most} channels or semaphores, thread i does the i-th, and there"
                f" are {threads}", "use more threads",
            )  # fmt: skip


def _amounts(facts: Facts) -> Iterator[tuple[_Place, int, int, str, str]]:
    """Yield where there is how much of what, how much there may be, and what helps."""
    for rank, record in enumerate(facts.plan.ranks):
        for number, block in enumerate(record.blocks):
            place = rank, number, None
            count = sum(1 + len(op.inner) for op in block.ops)
            yield (place, count, MAX_OPS, "operations, those in pipelines counted",
                   "spread them over more threadblocks")  # fmt: skip
            for kind, ids in block.channels.items():
                yield place, len(ids), MAX_CHANNELS, f"{kind} channels", "use more threadblocks"
            for kind, ids in block.remotes.items():
                yield place, len(ids), MAX_CHANNELS, f"{kind} buffers", "use more threadblocks"
    for spot in facts.spots:
        at, op = (spot.rank, spot.number, spot.step), spot.op
        fix = "use more operations"
        yield at, len(op.channels), MAX_OP_CHANNELS, f"channels in one {op.name}", fix
        yield at, len(op.sources), MAX_OPERANDS, f"sources in one {op.name}", fix
        yield at, len(op.targets), MAX_OPERANDS, f"targets in one {op.name}", fix
        yield at, len(op.semaphores), MAX_SEMAPHORES, f"semaphores in one {op.name}", fix
        number = op.barrier
        yield (at, number + 1, MAX_BARRIERS, f"barriers up to number {number}",
               f"number them from 0 to {MAX_BARRIERS - 1}")  # fmt: skip


def operands(facts: Facts) -> Iterator[Finding]:
    """Check which operands and fields operations of `facts` have (``executeDeviceFunction``)."""
    for spot in facts.spots:
        op, row = spot.op, OPERATIONS.get(spot.op.name)
        if row is None:
            continue
        exact = _COUNTS.get(op.name, (_ANY_NUMBER, _ANY_NUMBER))
        for what, found, pattern, count in (
            ("sources", op.sources, row.sources, exact[0]),
            ("targets", op.targets, row.targets, exact[1]),
        ):
            least = max(1, len(pattern) - 1)
            wanted = {_SAME_AS_SOURCES: len(op.sources), _ANY_NUMBER: max(len(found), least)}
            number = wanted.get(count, count) if pattern else 0
            if len(found) != number:
                yield spot.finding(
                    "structure",
                    f"has {len(found)} {what}, and the kernel works with {number}",
                    f"give {number}",
                )
            for position, operand in enumerate(found if pattern else ()):
                side = _SIDES[pattern[min(position, len(pattern) - 1)]]
                if operand.side is not side:
                    yield spot.finding(
                        "structure", f"has a {operand.side.value} operand as number {position} of"
                        f" its {what}, and the kernel takes it for a {side.value} one",
                        f"use a {side.value} one",
                    )  # fmt: skip
        given = (op.barrier >= 0 or op.blocks, op.semaphores, op.unit or op.chunks or op.inner)
        for says, (what, names) in zip(given, _FIELDS.items(), strict=True):
            if says and op.name not in names:
                yield spot.finding(
                    "structure",
                    f"has {what}, which lie over its channels and offsets",
                    f"leave them to {' and '.join(names)}",
                )


def channel_types(facts: Facts) -> Iterator[Finding]:
    """Check the channel types of operations in `facts`, and how many channels they name."""
    for spot in facts.spots:
        op, row = spot.op, OPERATIONS.get(spot.op.name)
        kind, count = op.channel_type or "none", len(op.channels)
        if row is None:
            continue
        if op.channel_type and not row.types:
            yield spot.finding(
                "structure", f"has channel type {kind}, which means nothing", "leave it out",
                Severity.WARNING,
            )  # fmt: skip
        elif op.channel_type not in row.types and row.types:
            same = row.types == ("switch",) or op.name == "flush"
            yield spot.finding(
                "structure", f"has channel type {kind}, and the kernel works with"
                f" {' or '.join(row.types)}", f"make it {row.types[0]}",
                Severity.WARNING if same else Severity.BREAKS,
            )  # fmt: skip
        elif op.name in {"pws", "pwsf"} and kind == "memory":
            yield spot.finding(
                "structure",
                "over memory channels does the put, and no signal",
                "use put, nop and signal, or a port channel",
                Severity.WARNING,
            )
        elif row.types and not row.targets and not count:
            yield spot.finding(
                "structure", "names no channel and does nothing", "remove it", Severity.WARNING
            )
        elif kind == "port" and row.targets and count != len(op.targets):
            yield spot.finding(
                "structure", f"has {count} channels for {len(op.targets)} targets, and the i-th"
                " goes over the i-th", "name one channel for each target",
            )  # fmt: skip


def port_peers(facts: Facts) -> Iterator[Finding]:
    """Check that what goes over port channels in `facts` lies where they lead.

    A proxy writes over the connection of the channel, into memory that only its owner has.
    """
    for spot in facts.spots:
        op, record = spot.op, facts.plan.ranks[spot.rank]
        if op.channel_type != "port" or op.name not in _POSTS:
            continue
        ids, rows = spot.block.channels.get("port", ()), record.channels.get("port", ())
        for channel, target in zip(op.channels, op.targets, strict=False):
            if not 0 <= channel < len(ids) or not 0 <= ids[channel] < len(rows):
                continue
            peer = rows[ids[channel]].peer
            found = facts.owner(spot, target)
            if found is not None and target.side is Side.REMOTE and found[0] != peer:
                yield spot.finding(
                    "structure", f"goes over a channel to rank {peer} into a buffer of rank"
                    f" {found[0]}", f"use a channel to rank {found[0]}",
                )  # fmt: skip


def bounds(facts: Facts) -> Iterator[Finding]:
    """Check that operands of `facts` lie in their buffers.

    Packet k takes the room of chunks 2k and 2k + 1, and protocol LL doubles scratch.
    """
    plan = facts.plan
    rooms = [record.room for record in plan.ranks]
    for spot in facts.spots:
        for operand, rank, buffer, _, packets in facts.accesses(spot):
            room = rooms[rank][buffer]
            if buffer is Buffer.SCRATCH:
                room = room * (1 + (plan.protocol == "LL")) // (1 + packets)
            elif packets:
                continue  # which is the rule after this one
            end = operand.index + operand.size
            if end > room or operand.index < 0:
                short = packets and plan.protocol != "LL"
                yield spot.finding(
                    "packet" if packets else "structure",
                    f"uses {'packets' if packets else 'chunks'} {operand.index} to {end - 1} of the"
                    f" {_TITLES[buffer]} of rank {rank}, which has room for {room}",
                    "use protocol LL, which doubles it" if short else "stay within the buffer",
                )


def packets(facts: Facts) -> Iterator[Finding]:
    """Check that packets in `facts` are in scratch.

    The kernel reads them from there whatever the plan says, and those it writes elsewhere take
    twice the room of their chunks.
    """
    for spot in facts.spots:
        for _, rank, buffer, writes, found in facts.accesses(spot):
            if found and buffer is not Buffer.SCRATCH:
                where = f"the {_TITLES[buffer]} of rank {rank}"
                yield spot.finding(
                    "packet",
                    f"writes packets over twice the chunks of {where}" if writes
                    else f"reads packets from {where}, and the kernel reads scratch",
                    "use scratch",
                )  # fmt: skip


def operand_sizes(facts: Facts) -> Iterator[Finding]:
    """Check that an operation of `facts` has operands of one size: the kernel uses one of them."""
    for spot in facts.spots:
        op = spot.op
        pairs = list(zip(op.sources, op.targets, strict=False))
        if _COUNTS.get(op.name, (0, 0))[1] != _SAME_AS_SOURCES:
            every = (*op.sources, *op.targets)
            pairs = [(every[0], other) for other in every[1:]]
        for one, other in pairs:
            if one.size != other.size:
                yield spot.finding(
                    "structure", f"has operands of {one.size} and {other.size} chunks, and does as"
                    " many of both", "give them one size",
                )  # fmt: skip
                break
        else:
            if any(operand.size < 1 for operand in op.sources):
                yield spot.finding(
                    "structure", "has operands of no chunks", "remove it", Severity.WARNING
                )


def kernel_faults(facts: Facts) -> Iterator[Finding]:
    """Name operations of `facts` that the kernel does otherwise than they are meant.

    ``handlePut`` takes the buffer of all sources from the first, and passes the address of its
    source offsets instead of the offset for ``pwsf``; ``handleGet`` adds the offsets of its sources
    to its targets; ``handleFlush`` counts targets, of which a flush has none.
    """
    for spot in facts.spots:
        op = spot.op
        if op.name in {*_PUTS, "ppkt"} and op.channel_type == "memory":
            other = [one for one in op.sources[1:] if one.buffer is not op.sources[0].buffer]
            if other:
                yield spot.finding(
                    "structure", "has sources in several buffers, and the kernel reads all of them"
                    " from that of the first", "use an operation for each buffer",
                )  # fmt: skip
        if op.name == "get":
            for one, other_end in zip(op.sources, op.targets, strict=False):
                if one.index != other_end.index:
                    yield spot.finding(
                        "structure", f"should copy chunk {one.index} to {other_end.index}, and the"
                        f" kernel copies {other_end.index} to {one.index}",
                        "use the same chunk on both sides, or a put on the other rank",
                    )  # fmt: skip
        if op.name == "pwsf" and op.channel_type == "port":
            yield spot.finding(
                "structure", "of the newest kernel passes an address as the offset of its source",
                "use pws, and have the other rank signal back before the source is written again",
                Severity.WARNING,
            )  # fmt: skip
        if op.name == "flush":
            yield spot.finding(
                "structure", "does nothing: the kernel counts targets, and a flush has none",
                "use pwsf, or wait for a signal from the other rank", Severity.WARNING,
            )  # fmt: skip


def reductions(facts: Facts) -> Iterator[Finding]:
    """Check that operations of `facts` are sums: the reader passes over ``reduce_op``."""
    for spot in facts.spots:
        row = OPERATIONS.get(spot.op.name)
        if row is not None and row.adds and spot.op.reduce_op not in {"", "sum"}:
            yield spot.finding(
                "structure", f"should take the {spot.op.reduce_op[:40]}, and the kernel adds",
                "use sum",
            )  # fmt: skip


def remotes(facts: Facts) -> Iterator[Finding]:
    """Check the buffers of other ranks that threadblocks of `facts` name.

    ``bufferIndexMap`` makes an entry of 0 for what it does not have: the first buffer of the type.
    """
    for rank, record in enumerate(facts.plan.ranks):
        for number, block in enumerate(record.blocks):
            for kind, ids in block.remotes.items():
                for at in ids:
                    if 0 <= at < len(record.remotes) and kind not in record.remotes[at].types:
                        yield Finding(
                            "structure", f"names remote buffer {at} for {kind} channels, and it is"
                            f" for {' and '.join(record.remotes[at].types) or 'none'}: the reader"
                            " takes another", rank, number,
                            fix=f"add {kind} to its access_channel_types",
                        )  # fmt: skip
        if any(buffer.rank == rank for buffer in record.remotes):
            yield Finding(
                "structure", "has a remote buffer that is its own", rank,
                fix="use local operands", severity=Severity.WARNING,
            )  # fmt: skip


def channels(facts: Facts) -> Iterator[Finding]:
    """Check that channels of `facts` have partners of their type.

    The executor opens what a rank has too few of, type by type (``getUnpairedChannelInfos``), and
    nobody uses what it opens.
    """
    ranks = facts.plan.ranks
    have = [
        Counter((kind, one.peer) for kind, found in record.channels.items() for one in found)
        for record in ranks
    ]
    for rank, mine in enumerate(have):
        for (kind, peer), count in sorted(mine.items()):
            if peer == rank:
                yield Finding(
                    "structure", f"has {count} {kind} channels to itself", rank,
                    fix="use semaphores or barriers", severity=Severity.WARNING,
                )  # fmt: skip
            back = have[peer][kind, rank] if 0 <= peer < len(ranks) else count
            if count <= back:
                continue
            other = "port" if kind == "memory" else "memory"
            crossed = have[peer][other, rank] > mine[other, peer]
            yield Finding(
                "structure", f"has {count} {kind} channels to rank {peer}, which has {back} back"
                + (f" and more {other} channels than this rank" if crossed else "")
                + ": the rest have no partner", rank,
                fix=f"give rank {peer} as many {kind} channels to rank {rank}",
                severity=Severity.BREAKS if crossed else Severity.WARNING,
            )  # fmt: skip


def groups(facts: Facts) -> Iterator[Finding]:
    """Check that all ranks of a switch channel in `facts` have it.

    Each sets it up with all others, in order (``connectNvlsCollective``).
    """
    listed: dict[Group, Counter[int]] = defaultdict(Counter)
    for rank, record in enumerate(facts.plan.ranks):
        for group in record.groups:
            listed[group][rank] += 1
    for group, counts in listed.items():
        members, most = set(group.ranks), max(counts.values())
        outside = next((rank for rank in counts if rank not in members), None)
        fewer = next((rank for rank in group.ranks if counts[rank] < most), None)
        if outside is not None:
            problem, fix = f"rank {outside} has it and is none of them", "list it on its own ranks"
        elif len(members) < len(group.ranks):
            problem, fix = "a rank is listed twice", "list each once"
        elif fewer is not None:
            problem = f"rank {fewer} has {counts[fewer]} of it, another {most}: setting it up hangs"
            fix = "give all of its ranks the same switch channels"
        else:
            continue
        shown = ", ".join(map(str, group.ranks[:8])) + ", ..." * (len(group.ranks) > 8)
        yield Finding(
            "structure", f"switch channel of the {_TITLES[group.buffer]}s of ranks {shown}:"
            f" {problem}", next(iter(counts)), fix=fix,
        )  # fmt: skip


def barriers(facts: Facts) -> Iterator[Finding]:
    """Check that as many threadblocks of `facts` meet at a barrier as it counts."""
    users: dict[tuple[int, int], set[int]] = defaultdict(set)
    at_barriers = [spot for spot in facts.spots if spot.op.name == "barrier"]
    for spot in at_barriers:
        users[spot.rank, spot.op.barrier].add(spot.number)
    told: set[tuple[int, int, int]] = set()
    for spot in at_barriers:
        op = spot.op
        count = len(users[spot.rank, op.barrier])
        if op.blocks != count and (spot.rank, op.barrier, op.blocks) not in told:
            told.add((spot.rank, op.barrier, op.blocks))
            yield spot.finding(
                "structure", f"{op.barrier} is for {op.blocks} threadblocks, and {count} use it",
                f"write num_threadblocks {count}, or use another barrier",
            )  # fmt: skip


def shares(facts: Facts) -> Iterator[Finding]:
    """Check that the threadblocks of `facts` that share an operation do all parts of it."""
    parts: dict[tuple[object, ...], Counter[int]] = defaultdict(Counter)
    first: dict[tuple[object, ...], tuple[Spot, int]] = {}
    for spot in facts.spots:
        op = spot.op
        if op.tbg is None:
            continue
        tb_id, count = op.tbg
        if not 0 <= tb_id < count:
            yield spot.finding(
                "structure", f"does part {tb_id} of {count}" + ", which divides by 0" * (not count),
                "number the parts from 0",
            )  # fmt: skip
            continue
        places = tuple(
            (operand.side, facts.owner(spot, operand), operand.index, operand.size)
            for operand in (*op.sources, *op.targets)
        )
        key: tuple[object, ...] = (spot.rank, op.name, len(op.sources), places, count)
        parts[key][tb_id] += 1
        first.setdefault(key, (spot, count))
    for key, (start, count) in first.items():
        found, most = parts[key], max(parts[key].values())
        if len(found) < count or min(found.values()) < most:
            least = next(at for at in range(count) if found[at] < most)
            often = f"{found[least]} times and others {most} times"
            yield start.finding(
                "structure", f"is cut into {count} parts, of which part {least} is done"
                f" {often if found[least] else 'by nobody'}", "have each part done as often",
            )  # fmt: skip


def pipelines(facts: Facts) -> Iterator[Finding]:
    """Check the iterations of pipelines in `facts`, and what runs in them.

    A uint16 counts them, and an iteration moves what its operations do by so many units, whatever
    their size: unsigned differences become large.
    """
    for spot in facts.spots:
        op = spot.op
        if op.name != "pipeline":
            continue
        if not op.unit:
            yield spot.finding("structure", "divides by its unit_size of 0", "give a unit_size")
            continue
        if not op.chunks or not op.inner or spot.inner >= 0:
            yield spot.finding(
                "structure", "is inside another" if spot.inner >= 0 else "does nothing",
                "remove it", Severity.BREAKS if spot.inner >= 0 else Severity.WARNING,
            )  # fmt: skip
            continue
        if op.unit % VECTOR:
            yield spot.finding(
                "structure", f"moves by {op.unit} bytes, and the kernel goes by {VECTOR}",
                f"use a multiple of {VECTOR}",
            )  # fmt: skip
        record = facts.plan.ranks[spot.rank]
        rows = max(counted_chunks(facts.plan, record), 1)
        most = max(record.input_chunks, record.output_chunks, 1)
        chunk = min(facts.plan.max_bytes // rows, MAX_BUFFER // most)
        turns = -(-op.chunks * chunk // op.unit)
        if turns > MAX_ITERATIONS:
            yield spot.finding(
                "limit", f"has {turns} iterations in the largest call, and a uint16 counts them",
                "give a larger unit_size, or a smaller max_message_size",
                Severity.WARNING if facts.plan.max_bytes > MAX_BUFFER else Severity.BREAKS,
            )  # fmt: skip
        if turns > 1:
            for at, inner in enumerate(op.inner):
                inside = spot._replace(inner=at, op=inner)
                yield from _turned(facts, inside, op.chunks)


def _turned(facts: Facts, spot: Spot, chunks: int) -> Iterator[Finding]:
    """Check an operation that a pipeline of so many chunks runs more than once."""
    op = spot.op
    if any(access.packets for access in facts.accesses(spot)):
        yield spot.finding(
            "packet", "does all its packets in each iteration", "take packets out of pipelines"
        )
    elif op.name in MOVES_IN_PIPELINE:
        wrong = [one.size for one in (*op.sources, *op.targets) if one.size != chunks]
        if wrong:
            yield spot.finding(
                "structure", f"is of {wrong[0]} chunks and the pipeline of {chunks}: iterations"
                " reach beyond it, or do not reach its end", f"make it {chunks} chunks",
            )  # fmt: skip
        if op.tbg is not None and op.tbg.tbg_size > 1:
            yield spot.finding(
                "structure",
                "does a part of its chunks, and the pipeline iterates over all",
                "take shared operations out of pipelines",
            )
        scratch = any(one.buffer is Buffer.SCRATCH for one in op.sources[1:])
        if op.name in {"re", "res"} and scratch and facts.plan.reuse_resources:
            yield spot.finding(
                "structure", "reads scratch as source, and the kernel moves that by the buffer of"
                " its targets", "put the source in scratch first", Severity.WARNING,
            )  # fmt: skip


def double_scratch(facts: Facts) -> Iterator[Finding]:
    """Check what of `facts` uses scratch, where calls have one and the other half by turns.

    The kernel adds the half's offset to packets and to a rank's own scratch, not to chunks in the
    scratch of others, nor to what a proxy reads or a switch reaches.
    """
    if not facts.plan.double_scratch:
        return
    for spot in facts.spots:
        for operand, rank, buffer, _, found in facts.accesses(spot):
            posted = spot.op.name in _PUTS and spot.op.channel_type == "port"
            if buffer is Buffer.SCRATCH and not found and (
                operand.side is not Side.LOCAL or posted
            ):  # fmt: skip
                yield spot.finding(
                    "structure", f"uses chunks in the first half of the scratch of rank {rank} in"
                    " every call, and the rank itself both by turns",
                    "use packets, or no double scratch",
                )  # fmt: skip
                break


def in_place(facts: Facts) -> Iterator[Finding]:
    """Check that the ranks of `facts` name their buffers as their mode asks.

    In place, input and output are one buffer, and each chunk has two names; out of place, the input
    is the caller's, and stays as it is. Told once, as ranks are mostly alike.
    """
    plan = facts.plan
    if plan.collective not in _SHARES:
        return
    names: dict[int, dict[Buffer, Spot]] = defaultdict(dict)
    for spot in facts.spots:
        for _, rank, buffer, writes, _ in facts.accesses(spot):
            if buffer is not Buffer.SCRATCH and (plan.in_place or writes):
                names[rank].setdefault(buffer, spot)
    for rank, found in sorted(names.items()):
        named = found.get(Buffer.INPUT)
        if named is not None and plan.in_place and Buffer.OUTPUT in found:
            yield named.finding(
                "structure", f"names chunks of rank {rank} by its input, and others by its output:"
                " in place they are one buffer", "name them all by one", Severity.WARNING,
            )  # fmt: skip
            return
        if named is not None and not plan.in_place:
            yield named.finding(
                "structure", f"writes into the input of rank {rank}, and the plan is out of place",
                "write into output or scratch", Severity.WARNING,
            )  # fmt: skip
            return


RULES: Mapping[str, Rule] = MappingProxyType({
    rule.__name__: rule
    for rule in (
        head, sizes, chunks, operations, references, limits, operands, channel_types, port_peers,
        bounds, packets, operand_sizes, kernel_faults, reductions, remotes, channels, groups,
        barriers, shares, pipelines, double_scratch, in_place,
    )
})  # fmt: skip
"""Every rule by its name: a new one is one function and one entry."""

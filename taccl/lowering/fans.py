"""From what switches copy and add to an MSCCL++ plan: fans become operations on switch channels.

A fan that turns at a rank is one operation of that rank: with both trees ``glres`` (read the sum,
store it at all), without an in-tree ``gstore``. Fans of a batch run between two barriers over
memory channels: the first is relaxed (the call has begun at all ranks), the last releases and
acquires, and so do those between batches. Copies that are added where they come to land in scratch
and are added there. With packets nobody meets: copies and flags travel together (``gstorepkt``).

Threadblocks share the bytes of each operation, each with memory channels of its own. Of more than
MAX_CHANNELS peers each threadblock tells some, and those of a rank meet.

Nothing else on a switch has an operation: a sum for one rank (``glre``) is read by no release, and
SHARP, which turns in a switch, is NCCL's alone.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from taccl.errors import LoweringError
from taccl.model.schedule import Schedule
from taccl.msccl.expected import mode_of
from taccl.msccl.program import Buffer, Slot, errors_of
from taccl.mscclpp.interpret import judge_plan
from taccl.mscclpp.plan import (
    MAX_BUFFER,
    MAX_CHANNELS,
    MAX_OP_CHANNELS,
    MAX_OPERANDS,
    NEWEST,
    Channel,
    Group,
    Operand,
    Plan,
    PlanBlock,
    PlanOp,
    PlanRank,
    Side,
    Tbg,
)

OFF = "use --in-network off: plans then copy and add over memory channels"
NEEDS = (
    "switch channels need NVLS: GPUs of compute capability 9.0 (H100) or newer, and buffers at"
    " equal offsets of their allocation on all ranks"
)
SUMS = "sums only, of all types but uint8 (fp8: compute capability 10.0)"
"""What a plan on switch channels asks of machine and call (``execution_kernel.hpp``)."""

NOP = PlanOp("nop")


@dataclass(frozen=True, slots=True)
class FanOptions:
    """How a schedule of fans becomes a plan called `name`.

    `in_place`: the mode of calls that it is for.
    `packets`: whether data carries flags, in place of barriers.
    `version`: of MSCCL++, of VERSIONS.
    `blocks`: threadblocks of a rank that share the bytes of each operation.
    `min_bytes`, `max_bytes`: sizes that it is for.
    """

    name: str
    in_place: bool
    packets: bool = False
    version: str = NEWEST
    blocks: int = 1
    min_bytes: int = 0
    max_bytes: int = MAX_BUFFER


class Piece(NamedTuple):
    """Chunks side by side that one fan of a batch carries, as an operation of its turn, `rank`.

    `read` is where the ranks of `sources` have the first of the `chunks`, and `write` where it
    comes to at `reached`. Copies that are added (`adds`) at `targets` land in scratch.
    """

    rank: int
    sources: tuple[int, ...]
    targets: tuple[int, ...]
    reached: tuple[int, ...]
    chunks: tuple[int, ...]
    read: Slot
    write: Slot
    adds: bool


class Sum(NamedTuple):
    """What a rank adds after a batch: chunks that `landed` in scratch to its `own`, at `kept`."""

    rank: int
    own: Slot
    landed: tuple[int, ...]
    kept: Slot
    size: int


class Copied(NamedTuple):
    """A copy of `size` packets at `landed` in scratch, which a rank unpacks at `kept`."""

    rank: int
    landed: int
    kept: Slot
    size: int


def fan_plan(schedule: Schedule, options: FanOptions) -> Plan:
    """Return a plan that does what a schedule of fans does, judged right.

    The `schedule` is verified; `options` say how.

    Raises LoweringError when a row has no operation in MSCCL++, or no such plan is right.
    """
    drawn = _Drawing(schedule, options)
    rounds = drawn.rounds()
    if options.packets and len(rounds) > 1:
        raise LoweringError(
            f"{len(rounds)} batches follow one another, and packets are for one",
            fix="use --protocol Simple",
        )
    writer = _Writer(schedule, options, drawn.landed)
    plan = writer.plan(rounds)
    findings = errors_of(judge_plan(plan, options.version))
    if findings:
        raise LoweringError(
            f"no plan of these fans is right: {findings[0]}",
            fix="use --protocol Simple" if options.packets else OFF,
        )
    return plan


@dataclass(eq=False)
class _Drawing:
    """What the rows of a schedule become: pieces of operations, batch by batch.

    `landed`: chunks of scratch that are taken so far.
    """

    schedule: Schedule
    options: FanOptions
    landed: int = 0
    arrived: set[tuple[int, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        collective = self.schedule.collective
        self.slots = self.schedule.slots()
        self.mode = mode_of(
            collective.name, collective.num_ranks, collective.num_chunks,
            in_place=self.options.in_place,
        )  # fmt: skip

    def rounds(self) -> list[tuple[list[Piece], list[Sum | Copied]]]:
        """Return for each batch, in order of time, its operations and what follows at each rank.

        Raises LoweringError when a row has no operation.
        """
        full = self.schedule.expand()
        links, found = len(full.topology.links), []
        order = np.lexsort((full.chunk, full.link, full.batch, full.start)).tolist()
        batches: dict[int, dict[int, list[int]]] = {}
        for row in order:
            by_fan = batches.setdefault(int(full.batch[row]), {})
            by_fan.setdefault(int(full.link[row]) - links, []).append(row)
        for by_fan in batches.values():
            pieces: list[Piece] = []
            for fan, rows in by_fan.items():
                for row in rows:
                    self._check(full, row, fan)
                reduce = bool(full.reduce[rows[0]])
                chunks = [int(full.chunk[row]) for row in rows]
                pieces += self._pieces(full, rows[0], fan, chunks, reduce=reduce)
            after = list(self._after(pieces))
            self.arrived |= {
                (chunk, rank) for one in pieces for chunk in one.chunks for rank in one.targets
            }
            found.append((pieces, after))
        return found

    def _check(self, full: Schedule, row: int, fan: int) -> None:
        """Raise when a row is no operation of a plan."""
        topology, chunk = full.topology, int(full.chunk[row])
        what = f"row {row}: chunk {chunk}"
        if fan < 0:
            link = topology.link(fan + len(topology.links))
            raise LoweringError(
                f"{what} takes a link from rank {link.src} to rank {link.dst}, and other rows take"
                " fans: a plan holds one or the other",
                fix=f"use an engine of fans alone (nvls, nvls-one-shot), or {OFF}",
            )
        one, ranks = full.fans[fan], topology.num_ranks
        sources, targets = full.fans.ranks(fan)
        if one.turn >= ranks:
            raise LoweringError(
                f"{what} turns in {topology.vertex_name(one.turn)}, for which MSCCL++ has no"
                " operation: SHARP is NCCL's alone",
                fix=f"leave it to NCCL (taccl compare --format nccl-tuner), or {OFF}",
            )
        ends = (topology.arcs.src, topology.arcs.dst)
        crossed = {int(e[arc]) for e in ends for arc in (*one.into, *one.out)} - set(range(ranks))
        if len(crossed) > 1:
            names = " and ".join(topology.vertex_name(vertex) for vertex in sorted(crossed))
            raise LoweringError(
                f"{what} goes over {names}: a switch channel is one NVLS domain",
                fix=f"use an engine for one switch (nvls), or {OFF}",
            )
        servers = {topology.server_of[rank] for rank in (*sources, *targets)}
        if len(servers) > 1:
            raise LoweringError(f"{what} is copied or added between servers", fix=OFF)
        if one.into and not one.out:
            raise LoweringError(
                f"{what} is added for rank {one.turn} alone, and no release of MSCCL++ reads that"
                " operation (glre)", fix=OFF,
            )  # fmt: skip
        if one.into and self.options.packets:
            raise LoweringError(
                f"{what} is added by a switch, and what is added has no packets",
                fix="use --protocol Simple, or --engine nvls-one-shot",
            )

    def _place(self, chunk: int, rank: int, *, own: bool) -> Slot | None:
        """Return where a rank has a chunk: its `own` value, or what has arrived or will."""
        here = own and (chunk, rank) not in self.arrived
        place = (self.slots.original if here else self.slots.held)(chunk, rank)
        if place is None:
            return None
        slot = Slot(Buffer(place.buffer), place.offset)
        if not self.options.in_place or slot.buffer is Buffer.SCRATCH:
            return slot
        gathers = self.schedule.collective.name == "allgather"
        user = Buffer.OUTPUT if gathers else Buffer.INPUT
        return Slot(user, self.mode.cell(rank, slot)[1])

    def _pieces(
        self, full: Schedule, row: int, fan: int, chunks: Sequence[int], *, reduce: bool
    ) -> Iterator[Piece]:
        """Yield what a fan carries in a batch, cut where it does not lie side by side."""
        one = full.fans[fan]
        sources, targets = full.fans.ranks(fan)
        reached = tuple(sorted({*targets, one.turn}))
        adds = reduce and not one.into
        ends: list[tuple[int, Slot, Slot]] = []
        for chunk in chunks:
            reads = {self._place(chunk, rank, own=True) for rank in sources}
            lands: set[Slot | None] = {Slot(Buffer.SCRATCH, self.landed)}
            self.landed += adds or self.options.packets
            if not adds and not self.options.packets:
                lands = {self._place(chunk, rank, own=False) for rank in reached}
            (read, *more), (write, *others) = reads, lands
            relayed = not adds and write is not None and write.buffer is Buffer.SCRATCH
            if read is None or write is None or more or others or (
                read.buffer is Buffer.SCRATCH or (relayed and not self.options.packets)
            ):  # fmt: skip
                raise LoweringError(
                    f"row {row}: not all ranks have chunk {chunk} at one place of their input or"
                    " output, and a switch channel reaches one place of all", fix=OFF,
                )  # fmt: skip
            ends.append((chunk, read, write))
        for run in _runs(ends):
            yield Piece(
                one.turn, sources, targets, reached, tuple(chunk for chunk, _, _ in run),
                run[0][1], run[0][2], adds,
            )  # fmt: skip

    def _after(self, pieces: Iterable[Piece]) -> Iterator[Sum | Copied]:
        """Yield what ranks do with what has landed in their scratch."""
        landed: dict[tuple[int, tuple[int, ...]], list[int]] = defaultdict(list)
        copied: dict[int, list[tuple[int, Slot, Slot]]] = defaultdict(list)
        for one in pieces:
            for rank in one.targets if one.adds else one.reached if self.options.packets else ():
                if one.adds:
                    landed[rank, one.chunks].append(one.write.offset)
                    continue
                for place, chunk in enumerate(one.chunks):
                    kept = self._place(chunk, rank, own=False)
                    if kept is not None and (rank, kept) != (
                        one.rank, one.read._replace(offset=one.read.offset + place)
                    ):  # fmt: skip
                        at = Slot(Buffer.SCRATCH, one.write.offset + place)
                        copied[rank].append((chunk, at, kept))
        for rank, ends in copied.items():
            for run in _runs(sorted(ends, key=lambda end: end[1].offset)):
                yield Copied(rank, run[0][1].offset, run[0][2], len(run))
        for (rank, chunks), places in landed.items():
            ends = [
                (chunk, own, kept) for chunk in chunks
                if (own := self._place(chunk, rank, own=True)) is not None
                and (kept := self._place(chunk, rank, own=False)) is not None
            ]  # fmt: skip
            for run in _runs(ends):
                begin, most = chunks.index(run[0][0]), MAX_OPERANDS - 1
                value, kept = run[0][1:]
                for first in range(0, len(places), most):
                    some = tuple(place + begin for place in places[first : first + most])
                    yield Sum(rank, value, some, kept, len(run))
                    value = kept


def _runs(ends: Sequence[tuple[int, Slot, Slot]]) -> Iterator[list[tuple[int, Slot, Slot]]]:
    """Yield chunks, each with two places, cut where one of these is not next to the one before."""
    run: list[tuple[int, Slot, Slot]] = []
    for end in ends:
        if run and any(
            now != before._replace(offset=before.offset + 1)
            for before, now in zip(run[-1][1:], end[1:], strict=True)
        ):
            yield run
            run = []
        run.append(end)
    if run:
        yield run


@dataclass(eq=False)
class _Writer:
    """Writes plans of a schedule as options say; so many chunks have `landed` in scratch.

    `staged` is where behind those a piece is made packets of.
    """

    schedule: Schedule
    options: FanOptions
    landed: int
    staged: dict[Piece, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ranks = self.schedule.topology.num_ranks
        least = -(-(self.ranks - 1) // MAX_CHANNELS)
        # Where a threadblock can't tell all peers, each tells some.
        self.parts = 0 if least == 1 or self.options.packets else least
        self.blocks = max(self.options.blocks, self.parts)

    def plan(self, rounds: Sequence[tuple[Sequence[Piece], Sequence[Sum | Copied]]]) -> Plan:
        """Return the plan of some batches, each with its operations and what follows."""
        options, collective = self.options, self.schedule.collective
        groups: dict[Group, None] = {}
        for pieces, _ in rounds:
            for one in pieces:
                groups |= dict.fromkeys(self._groups(one))
        chunks, ranks, name = collective.num_chunks, self.ranks, collective.name
        inputs = chunks // ranks if name == "allgather" else chunks
        outputs = chunks // ranks if name == "reducescatter" else chunks
        made = []
        for rank in range(ranks):
            own = [group for group in groups if rank in group.ranks]
            peers = [peer for peer in range(ranks) if peer != rank for _ in range(self._each)]
            channels = () if options.packets else tuple(Channel("memory", p) for p in peers)
            mine = [one for pieces, _ in rounds for one in pieces if one.rank == rank]
            # Packets are made beside those that come, one's own through the switch, too.
            room = list(accumulate((len(one.chunks) for one in mine), initial=self.landed))
            self.staged |= dict(zip(mine, room, strict=False))
            blocks = tuple(self._block(rank, number, own, rounds) for number in range(self.blocks))
            made.append(PlanRank(
                inputs, outputs, room[-1] if options.packets else self.landed,
                {"memory": channels} if channels else {},
                tuple(own), (), (), blocks,
            ))  # fmt: skip
        return Plan(
            options.name, name, "LL" if options.packets else "Simple", options.in_place,
            tuple(made), double_scratch=options.packets,
            min_bytes=options.min_bytes, max_bytes=min(options.max_bytes, MAX_BUFFER),
        )  # fmt: skip

    @property
    def _each(self) -> int:
        """Memory channels of each pair of ranks."""
        return 1 if self.parts else self.blocks

    def _groups(self, one: Piece) -> tuple[Group, ...]:
        """Return the switch channels that an operation reads and writes."""
        target = Group(one.write.buffer, one.reached)
        fused = len(one.sources) > 1
        return (Group(one.read.buffer, one.sources), target) if fused else (target,)

    def _block(
        self, rank: int, number: int, groups: Sequence[Group],
        rounds: Sequence[tuple[Sequence[Piece], Sequence[Sum | Copied]]],
    ) -> PlanBlock:  # fmt: skip
        """Return a numbered threadblock of a rank, whose switch channels are of these groups."""
        peers = range(self.ranks - 1)
        own = [place * self.blocks + number for place in peers]
        if self.parts:
            own = list(peers)[number :: self.parts] if number < self.parts else []
        named: list[int] = []
        shares = number < self.options.blocks
        ops: list[PlanOp] = [] if self.options.packets else self._meet(len(own), first=True)
        for place, (pieces, after) in enumerate(rounds):
            mine = [one for one in pieces if one.rank == rank and shares]
            ops += [op for one in mine for op in self._ops(one, number, groups, named)]
            if not self.options.packets:
                ops += self._meet(len(own))
            local = [self._local(one, number) for one in after if one.rank == rank and shares]
            if local and self.options.packets and mine:
                ops.append(NOP)
            for op in local:
                # What one has written the next may add to.
                ops += [op, NOP]
            if local and place + 1 < len(rounds):
                ops += self._meet(len(own))
        while ops and ops[-1].name in ("nop", "barrier") and not self.parts:
            ops.pop()
        channels = {"memory": () if self.options.packets else tuple(own), "switch": tuple(named)}
        return PlanBlock({kind: ids for kind, ids in channels.items() if ids}, {}, tuple(ops))

    def _meet(self, own: int, *, first: bool = False) -> list[PlanOp]:
        """Return how a threadblock with so many channels meets those of the other ranks.

        At `first` it is enough that all have begun; later what they did has to be seen.
        """
        told = [
            tuple(range(begin, min(begin + MAX_OP_CHANNELS, own)))
            for begin in range(0, own, MAX_OP_CHANNELS)
        ]
        fence = PlanOp("barrier", barrier=0, blocks=self.blocks) if self.parts else NOP
        names = ("rlxsignal", "rlxwait") if first else ("signal", "wait")
        words = [
            PlanOp(name, channel_type="memory", channels=ids) for name in names for ids in told
        ]
        return [*([] if first else [fence]), *words, fence]

    def _tbg(self, number: int) -> Tbg | None:
        return Tbg(number, self.options.blocks) if self.options.blocks > 1 else None

    def _ops(
        self, one: Piece, number: int, groups: Sequence[Group], named: list[int]
    ) -> list[PlanOp]:
        """Return the operations of a piece; switch channels are numbered as they are `named`."""
        ends = []
        size, tbg = len(one.chunks), self._tbg(number)
        for group, slot in zip(self._groups(one), (one.read, one.write)[-len(self._groups(one)) :],
                               strict=True):  # fmt: skip
            at = groups.index(group)
            if at not in named:
                named.append(at)
            ends.append(Operand(Side.SWITCH, None, named.index(at), slot.offset, size))
        if len(ends) == 2:
            source, target = ends
            return [PlanOp("glres", (source,), (target,), "switch", tbg=tbg, reduce_op="sum")]
        source = _mine(one.read, size)
        if not self.options.packets:
            return [PlanOp("gstore", (source,), (ends[0],), "switch", tbg=tbg)]
        copy = _mine(Slot(Buffer.SCRATCH, self.staged[one]), size)
        return [
            PlanOp("cpkt", (source,), (copy,), tbg=tbg),
            PlanOp("gstorepkt", (copy,), (ends[0],), "switch", tbg=tbg),
        ]

    def _local(self, one: Sum | Copied, number: int) -> PlanOp:
        """Return what a threadblock does with what has landed in scratch."""
        target, tbg = (_mine(one.kept, one.size),), self._tbg(number)
        if isinstance(one, Copied):
            landed = _mine(Slot(Buffer.SCRATCH, one.landed), one.size)
            return PlanOp("upkt", (landed,), target, tbg=tbg)
        added = (_mine(Slot(Buffer.SCRATCH, at), one.size) for at in one.landed)
        return PlanOp(
            "repkt" if self.options.packets else "re", (_mine(one.own, one.size), *added), target,
            tbg=tbg, reduce_op="sum",
        )  # fmt: skip


def _mine(slot: Slot, size: int) -> Operand:
    return Operand(Side.LOCAL, slot.buffer, -1, slot.offset, size)


def asks(plan: Plan) -> tuple[str, ...]:
    """Return what a `plan` on switch channels asks of machine and calls; empty for others."""
    names = {op.name for rank in plan.ranks for block in rank.blocks for op in block.ops}
    told: Mapping[str, bool] = {
        NEEDS: any(rank.groups for rank in plan.ranks), SUMS: "glres" in names,
    }  # fmt: skip
    return tuple(text for text, holds in told.items() if holds)

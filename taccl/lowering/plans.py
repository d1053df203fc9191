"""MSCCL++ plans from XML programs, and from what switches copy and add.

**Programs**: messages become writes into the receiver's memory. Threadblocks stay what they are,
and a connection is a channel of its own. What a FIFO did is done by memory: a message lands where
the receiver wants it, or, where it would overwrite what is still needed there, in a place of its
own in the scratch buffer; summands always land there. What ordered the steps of a rank are
semaphores; a ``nop`` stands where threads have to agree, and nowhere else.

With packets the flags of the data say that it has come, and nobody signals: fewer latencies, twice
the bytes.

Whether a landing place is free, whether the sender may go on before its transfer is over, whether
a call may begin while the one before ends elsewhere: that is asked of the judge
(:mod:`taccl.mscclpp.interpret`). A plan begins without any guard, and each race that the judge
finds adds the cheapest guard that may mend it.

**Fans** become operations on switch channels. A fan that turns at a rank is one operation of that
rank: with both trees ``glres`` (read the sum, store it at all), without an in-tree ``gstore``. Fans
of a batch run between two barriers over memory channels: the first is relaxed (the call has begun
at all ranks), the last releases and acquires, and so do those between batches. Copies that are
added where they come to land in scratch and are added there. With packets nobody meets: copies and
flags travel together (``gstorepkt``).

Threadblocks share the bytes of each operation, each with memory channels of its own. Of more than
MAX_CHANNELS peers each threadblock tells some, and those of a rank meet.

Nothing else on a switch has an operation: a sum for one rank (``glre``) is read by no release, and
SHARP, which turns in a switch, is NCCL's alone.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import accumulate, product
from math import gcd
from typing import NamedTuple

import numpy as np

from taccl.errors import LoweringError
from taccl.model.schedule import Schedule
from taccl.msccl.expected import Cell, Mode, mode_of
from taccl.msccl.program import (
    Buffer,
    Gpu,
    Op,
    Program,
    Slot,
    Step,
    StepRef,
    Threadblock,
    errors_of,
)
from taccl.msccl.run import Run, maximal_run, places
from taccl.mscclpp.interpret import Place, Race, judge_plan, races_of, run_findings
from taccl.mscclpp.plan import (
    MAX_BUFFER,
    MAX_CHANNELS,
    MAX_OP_CHANNELS,
    MAX_OPERANDS,
    MAX_OPS,
    MAX_SEMAPHORES,
    NEWEST,
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
from taccl.topology.graph import Topology

ATTEMPTS = 30
"""How often guards are added until a plan is given up."""

Ends = tuple[int, int, int]
"""A connection: sender, receiver, channel."""


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """How a program becomes a plan.

    `servers`: the server of each rank: ranks of one reach one another's memory, others use ports.
    `in_place`: the mode of calls that it is for.
    `packets`: whether data carries flags.
    `version`: of MSCCL++, of VERSIONS.
    `unit`: bytes of a chunk that an iteration of a pipeline moves; 0: there is no pipeline.
    `early`: messages, by the number of their step, that do not wait until it is known that the call
    has begun at their receiver: they land in its scratch buffer, and it says when it has read them.
    `late`: messages after which there is no time for an answer: where transfers may go on when the
    call is over, they are sent from a copy, and the next call waits for the receiver before it
    overwrites that.
    `heard`: steps that receive, and earlier ones of their threadblocks: the message is waited for,
    and answered, before what the earlier step waits for, since it comes first. So are, then, the
    messages between the two.
    `group`: threadblocks that share the work of each of the program's, a part of every chunk each;
    they exclude packets. In a pipeline a part is a chunk of its own, so calls have to be of sizes
    that so many more chunks divide: the kernel counts its iterations by whole chunks.
    `pieces`: of every chunk, in which threadblocks that send through a port do their steps, one
    after the other, so that what comes in packets is sent on sooner.
    """

    servers: tuple[int, ...]
    in_place: bool
    packets: bool = False
    version: str = NEWEST
    unit: int = 0
    early: frozenset[int] = frozenset()
    late: frozenset[int] = frozenset()
    heard: frozenset[tuple[int, int]] = frozenset()
    group: int = 1
    pieces: int = 1


@dataclass(slots=True)
class Guards:
    """What the judge has asked for.

    `greeted`: connections whose receiver tells the sender that its call has begun: before the first
    message, or with packets before the end of the call.
    `answered`: messages whose receiver says that they have come, by the number of their step: the
    sender waits for it in the end, so that a transfer is over when the call is.
    `returned`: early messages whose receiver says that it has read them: the sender waits for that
    in the end, so that the next call may overwrite them.
    `copied`: those that are sent from a copy, which nobody overwrites meanwhile.
    `staged`: messages that land in scratch, likewise.
    `ordered`: steps of a rank, the second of which waits for the first.
    """

    greeted: set[Ends] = field(default_factory=set)
    answered: set[int] = field(default_factory=set)
    returned: set[int] = field(default_factory=set)
    copied: set[int] = field(default_factory=set)
    staged: set[int] = field(default_factory=set)
    ordered: set[tuple[int, int]] = field(default_factory=set)


class Local(NamedTuple):
    """Chunks of a rank's own: a buffer, the first, how many, and whether they are packets."""

    buffer: Buffer
    first: int
    size: int
    packet: bool = False


class Far(NamedTuple):
    """Chunks of another rank."""

    rank: int
    place: Local


@dataclass(frozen=True, slots=True)
class Draft:
    """An operation before its operands are numbered.

    `name`: of the operation.
    `sources`, `targets`: what it reads and writes.
    `over`: the connection that it uses; None: none.
    `orders`: the pairs of threadblocks whose semaphores it gives or takes.
    `message`: the number of the step that sends the data it moves; -1: none.
    `step`: the number of the step that it is a part of; -1: none.
    `piece`: which one of each chunk it moves; -1: all of it.
    """

    name: str
    sources: tuple[Local, ...] = ()
    targets: tuple[Local | Far, ...] = ()
    over: Ends | None = None
    orders: tuple[tuple[int, int], ...] = ()
    message: int = -1
    step: int = -1
    piece: int = -1


NOP = Draft("nop")


class Block(NamedTuple):
    """The operations of a threadblock, and which member of its group it is."""

    member: int
    ops: list[Draft]


def plan_of(program: Program, options: PlanOptions, guards: Guards | None = None) -> Plan:
    """Return a plan that does what a program does, judged right.

    `program`: any XML program.
    `options`: how.
    `guards`: those that it needs without a pipeline or groups, if they are known.

    Raises LoweringError when no plan of the program is right, or it needs more than plans can have.
    """
    if guards is None:
        guards = guards_of(program, replace(options, unit=0, group=1))
    plan = unjudged_plan(program, options, guards)
    findings = run_findings(plan)
    if findings:
        raise LoweringError(
            f"no plan of {program.name} was found that is right: {findings[0]}",
            fix="use another engine, or fewer chunks",
        )
    return plan


def unjudged_plan(program: Program, options: PlanOptions, guards: Guards) -> Plan:
    """Return the plan of a `program` as `options` and `guards` say, right or not.

    Raises LoweringError when the program does not end, or needs more than plans can have.
    """
    return _Writer(program, _ended(program), options, guards).plan()[0]


def guards_of(program: Program, options: PlanOptions) -> Guards:
    """Return the guards that a plan of a `program` needs, as `options` say, as far as there are.

    Raises LoweringError when the program does not end.
    """
    run, guards = _ended(program), Guards()
    for _ in range(ATTEMPTS):
        plan, owners = _Writer(program, run, options, guards).plan()
        more = [_guard(guards, race, owners, options) for race in races_of(plan)]
        if not any(more):
            break
        for name, wanted in filter(None, more):
            getattr(guards, name).update(wanted)
    return guards


def short_starts(program: Program, messages: AbstractSet[int], parts: int) -> Program:
    """Return a program that sends a start of its `messages`, a chunk's part of each, and the rest.

    `program`: any XML program; its chunks are cut into as many as there are `parts`.
    `messages`: by the number of their step; those that forward or are forwarded stay whole.

    While the start is under way the rest may wait for a word.
    """
    run = maximal_run(program)
    steps = [step for _, block in run.blocks for step in block.steps]
    cut = {
        number
        for receiver, sender in run.sender.items()
        if sender in messages and not (steps[sender].receives or steps[receiver].sends)
        for number in (receiver, sender)
    }
    before = list(accumulate((number in cut for number in range(len(steps))), initial=0))
    begin = {
        (rank, block.id): first
        for (rank, block), first in zip(run.blocks, run.steps.first[:-1].tolist(), strict=True)
    }

    def pieces(rank: int, number: int) -> Iterator[Step]:
        step, depends = steps[number], steps[number].depends
        if depends is not None:
            first = begin[rank, depends.threadblock]
            more = before[first + depends.step + 1] - before[first]
            depends = depends._replace(step=depends.step + more)
        whole, start = parts * step.count, step.count if number in cut else 0
        for skip, end in (*([(0, start)] if start else []), (start, whole)):
            src, dst = (
                slot and slot._replace(offset=parts * slot.offset + skip)
                for slot in (step.src, step.dst)
            )
            yield replace(
                step, src=src, dst=dst, count=end - skip,
                depends=None if skip else depends, posts=step.posts and end == whole,
            )  # fmt: skip

    def steps_of(rank: int, block: Threadblock) -> Iterator[Step]:
        for place in range(len(block.steps)):
            yield from pieces(rank, begin[rank, block.id] + place)

    return _with_steps(program, parts, steps_of)


def sliced(program: Program, parts: int) -> Program:
    """Return a program whose threadblocks do their lists once for each part of every chunk.

    `program`: any XML program; its chunks are cut into as many as there are `parts`.

    Its runtimes do so, too, with what is more than a message: what is slowly sent on comes sooner.
    """
    grain = gcd(*(step.count for _, block in program.blocks() for step in block.steps)) or 1
    # Where the steps of a threadblock begin in each list.
    begins = {
        (rank, block.id): list(
            accumulate((max(1, step.count // grain) for step in block.steps), initial=0)
        )
        for rank, block in program.blocks()
    }

    def steps_of(rank: int, block: Threadblock) -> Iterator[Step]:
        for part, step in product(range(parts), block.steps):
            depends = step.depends
            if depends is not None:
                begin = begins[rank, depends.threadblock]
                last = part * begin[-1] + begin[depends.step + 1] - 1
                depends = depends._replace(step=last)
            count = max(1, step.count // grain)
            for piece in range(count):
                skip = parts * piece * grain + part * grain
                src, dst = (
                    slot and slot._replace(offset=parts * slot.offset + skip)
                    for slot in (step.src, step.dst)
                )
                yield replace(
                    step, src=src, dst=dst, count=min(grain, step.count),
                    depends=None if piece else depends, posts=step.posts and piece == count - 1,
                )  # fmt: skip

    return _with_steps(program, parts, steps_of)


def _with_steps(
    program: Program, parts: int, steps_of: Callable[[int, Threadblock], Iterator[Step]]
) -> Program:
    """Return a program of so many times the chunks, whose threadblocks have other steps."""
    return replace(
        program, chunks_per_loop=program.chunks_per_loop * parts,
        gpus=tuple(
            replace(
                gpu,
                input_chunks=parts * gpu.input_chunks, output_chunks=parts * gpu.output_chunks,
                scratch_chunks=parts * gpu.scratch_chunks,
                threadblocks=tuple(
                    replace(block, steps=tuple(steps_of(gpu.rank, block)))
                    for block in gpu.threadblocks
                ),
            )
            for gpu in program.gpus
        ),
    )  # fmt: skip


def rejoined(program: Program, topology: Topology) -> Program:
    """Return a program where threadblocks that go on with others' messages are one with those.

    `program`: any XML program: its runtimes bound the steps of a threadblock.
    `topology`: its machine; inside a server nothing changes.

    Transfers of two ports take turns, even if the second waits until the first has sent all it has:
    in a plan that is when the last transfer has been asked for.
    """
    receives = {
        (block.recv_from, rank, block.channel)
        for rank, block in program.blocks() if block.send_to is None
    }  # fmt: skip
    # Connections that go on, and the channel of the first of those that they go on from.
    began: dict[Ends, int] = {}
    for gpu in program.gpus:
        sends = {
            block.id: (gpu.rank, block.send_to, block.channel)
            for block in gpu.threadblocks
            if block.send_to is not None and block.recv_from is None
            and topology.server_of[gpu.rank] != topology.server_of[block.send_to]
            and len(topology.links_between(gpu.rank, block.send_to)) == 1
            and (gpu.rank, block.send_to, block.channel) in receives
        }  # fmt: skip
        ended = set[Ends]()
        for number, ends in sorted(sends.items(), key=lambda own: own[1]):
            for step in gpu.threadblocks[number].steps:
                ref = step.depends
                before = sends.get(ref.threadblock) if ref is not None else None
                if (
                    ref is not None and before is not None and before[1] == ends[1]
                    and before[2] < ends[2] and before not in ended
                    and ref.step == len(gpu.threadblocks[ref.threadblock].steps) - 1
                ):  # fmt: skip
                    began[ends] = began.get(before, before[2])
                    ended.add(before)
                if step.op is not Op.NOP:
                    break
    joined = replace(program, gpus=tuple(_rejoined(gpu, began) for gpu in program.gpus))
    return program if not began or maximal_run(joined).stuck else joined


def _rejoined(gpu: Gpu, began: Mapping[Ends, int]) -> Gpu:
    """Return a rank whose threadblocks go on with those of the channels that they `began` on."""
    lists: dict[object, list[Threadblock]] = {}
    for block in sorted(gpu.threadblocks, key=lambda block: block.channel):
        key: object = block.id
        if (block.send_to is None) != (block.recv_from is None):
            src = gpu.rank if block.recv_from is None else block.recv_from
            dst = gpu.rank if block.send_to is None else block.send_to
            key = src, dst, began.get((src, dst, block.channel), block.channel)
        lists.setdefault(key, []).append(block)
    where = {
        block.id: (number, sum(len(one.steps) for one in own[: own.index(block)]))
        for number, own in enumerate(lists.values()) for block in own
    }  # fmt: skip

    def moved(step: Step) -> Step:
        if step.depends is None:
            return step
        block, first = where[step.depends.threadblock]
        return replace(step, depends=StepRef(block, first + step.depends.step))

    return replace(gpu, threadblocks=tuple(
        replace(own[0], id=number, steps=tuple(moved(step) for one in own for step in one.steps))
        for number, own in enumerate(lists.values())
    ))  # fmt: skip


def _ended(program: Program) -> Run:
    run = maximal_run(program)
    if run.stuck:
        raise LoweringError(
            f"{program.name} does not end", fix="let taccl verify judge the program"
        )
    return run


def _guard(
    guards: Guards, race: Race, owners: Mapping[Place, Draft], options: PlanOptions
) -> tuple[str, Iterable[object]] | None:
    """Return the cheapest guard against a race that is not there yet: which of them, and what."""
    ends = [place for place in (race.one, race.other) if place is not None]
    drafts = [owners[place] for place in ends if place in owners]
    user = None in race[:2]
    pairs = [(place, owners[place]) for place in ends if place in owners]
    # A transfer reads its source when its threadblock is long past it.
    ports = [
        (place, draft.message) for place, draft in pairs
        if draft.name in ("pws", "rppkt") and draft.over is not None
        and options.servers[draft.over[0]] != options.servers[draft.over[1]]
    ]  # fmt: skip
    queued = {message for _, message in ports}
    source = any(place.rank == race.rank for place, _ in ports)
    same = (user and source) or (len(drafts) == 2 and ends[0].rank == ends[1].rank)
    moved = {draft.message for draft in drafts if draft.message >= 0}
    over = {draft.over for draft in drafts if draft.message >= 0 and draft.over is not None}
    own = same and not user and race.same_call and drafts[0].step != drafts[1].step
    order = {(drafts[0].step, drafts[1].step)} if own else set()
    early, late = moved & options.early, queued & options.late
    steps: list[tuple[str, AbstractSet[object]]] = []
    if not same and early and (user or not race.same_call):
        steps += [(name, early) for name in (("staged", "returned")[:: 1 if user else -1])]
    if source and late:
        steps += [("copied", late), ("greeted", over)]
    transfers = [("answered", queued - options.late), ("copied", queued), ("answered", queued)]
    if options.packets:
        # Nobody waits for an answer: whoever waits for packets knows nothing of other words.
        transfers = [("copied", queued)]
    steps += transfers if source else [] if same else [("greeted", over)]
    steps.append(("ordered", order))
    if not own or queued:
        steps += [("greeted", over), ("staged", moved), *transfers]
    for name, wanted in steps:
        if wanted - getattr(guards, name):
            return name, wanted
    return None


class _Writer:
    """Writes a plan of a `program`, whose `run` is known, as `options` and `guards` say."""

    def __init__(self, program: Program, run: Run, options: PlanOptions, guards: Guards) -> None:
        self.program, self.run, self.options, self.guards = program, run, options, guards
        self.where = places(run)
        self.steps = [run.blocks[place.block][1].steps[place.step] for place in self.where]
        self.mode = mode_of(
            program.collective, program.num_ranks, program.chunks_per_loop,
            in_place=options.in_place,
        )  # fmt: skip
        # Packets begin at the front of the scratch buffer; plain chunks follow behind them.
        self.packets = [0] * program.num_ranks
        self.plain = [gpu.scratch_chunks for gpu in program.gpus]
        # Chunks of the plan that a chunk of the program becomes.
        self.scale = options.group if options.unit else options.pieces
        # What all operands are multiples of.
        self.grain = gcd(*(step.count for step in self.steps)) or 1
        self.hoisted = self._hoisted()
        self.lands: dict[int, Local] = {}
        for number, sender in sorted(run.sender.items()):
            step, rank = self.steps[number], self.where[number].rank
            at_once = step.op in (Op.RECV, Op.RECV_COPY_SEND) and not options.packets
            # What is waited for before others' turn must not land where they read and write.
            at_once = at_once and number not in self.hoisted
            if at_once and sender not in guards.staged and step.dst is not None:
                self.lands[sender] = Local(step.dst.buffer, step.dst.offset, step.count)
            else:
                self.lands[sender] = self.room(rank, step.count, packet=options.packets)
        self.relayed = dict(self._relayed()) if options.packets else {}

    def _relayed(self) -> Iterator[tuple[int, Local]]:
        """Yield sends of what another threadblock has received, and its packets.

        They wait for themselves, so nobody has to say that they have come.
        """
        wrote: dict[tuple[int, Cell], int] = {}
        for number in self.run.order:
            step, (rank, block, _) = self.steps[number], self.where[number]
            cells = self.mode.cells(rank, step.source, step.count)
            writers = {wrote.get((rank, cell)) for cell in cells}
            writer = writers.pop() if len(writers) == 1 else None
            if (
                step.op is Op.SEND and writer is not None and self.where[writer].block != block
                and self.steps[writer].op in (Op.RECV, Op.RECV_COPY_SEND)
            ):  # fmt: skip
                landed = self.lands[self.run.sender[writer]]
                (target,) = self.mode.cells(rank, self.steps[writer].target, 1)
                first = landed.first + cells[0][1] - target[1]
                yield number, landed._replace(first=first, size=step.count)
            for cell in self.mode.cells(rank, step.target, step.count):
                wrote[rank, cell] = number

    def _hoisted(self) -> dict[int, int]:
        """Return receiving steps, and before which others they wait for their messages.

        Those that are answered do so, and what comes before them on their channels.
        """
        found: dict[int, int] = {}
        reach: dict[int, int] = {}
        for taken, place in sorted(self.options.heard, reverse=True):
            block = self.where[taken].block
            answered = self.run.sender.get(taken) in self.guards.answered
            if answered or reach.get(block, taken) < taken:
                found[taken] = place
                reach[block] = min(place, reach.get(block, place))
        return found

    def room(self, rank: int, size: int, *, packet: bool) -> Local:
        """Return new room for so many chunks in the scratch buffer of a rank."""
        taken = self.packets if packet else self.plain
        taken[rank] += size
        return Local(Buffer.SCRATCH, taken[rank] - size, size, packet)

    def plan(self) -> tuple[Plan, dict[Place, Draft]]:
        """Return the plan, and of which draft each of its operations is.

        Raises LoweringError when it needs more than plans can have.
        """
        found: list[list[Block]] = [[] for _ in self.program.gpus]
        for rank, ops in self._drafts():
            whole = self.options.group == 1 and not self.options.unit
            cut = ops if whole else list(self._cut(ops))
            blocks = [
                [self._named(draft, rank) for draft in fenced(part, rank, self.mode, self._is_port)]
                for part in split(cut)
            ]
            for member in range(self.options.group):
                joined = _joined(blocks, len(found[rank]), looped=bool(self.options.unit))
                found[rank] += [Block(member, own) for own in joined]
        return self._numbered(found)

    def _cut(self, ops: Iterable[Draft]) -> Iterator[Draft]:
        """Yield operations of as few chunks as any has.

        A member's part is that of each chunk, and an iteration moves the same part of all.
        """
        for draft in ops:
            operands = (*draft.sources, *draft.targets)
            sizes = {(one.place if isinstance(one, Far) else one).size for one in operands}
            count = max(sizes, default=self.grain) // self.grain
            for part in range(count):
                # Only the last transfer tells: those of one queue end in order.
                quiet = draft.name == "pws" and part < count - 1
                yield replace(
                    draft, name="put" if quiet else draft.name,
                    sources=tuple(self._piece(one, part) for one in draft.sources),
                    targets=tuple(
                        one._replace(place=self._piece(one.place, part)) if isinstance(one, Far)
                        else self._piece(one, part)
                        for one in draft.targets
                    ),
                )  # fmt: skip

    def _piece(self, place: Local, part: int) -> Local:
        return place._replace(first=place.first + part * self.grain, size=self.grain)

    def _named(self, draft: Draft, rank: int) -> Draft:
        """Return a draft that names all chunks of a user's one buffer by one of its two names."""
        if not self.options.in_place:
            return draft
        buffer = Buffer.OUTPUT if self.program.collective == "allgather" else Buffer.INPUT

        def named(place: Local, owner: int) -> Local:
            if place.buffer is Buffer.SCRATCH:
                return place
            cell = self.mode.cell(owner, Slot(place.buffer, place.first))
            return place._replace(buffer=buffer, first=cell[1])

        return replace(
            draft, sources=tuple(named(place, rank) for place in draft.sources),
            targets=tuple(
                Far(place.rank, named(place.place, place.rank)) if isinstance(place, Far)
                else named(place, rank)
                for place in draft.targets
            ),
        )  # fmt: skip

    # What each step becomes

    def _drafts(self) -> Iterable[tuple[int, list[Draft]]]:
        """Yield the operations of each threadblock, without fences, and its rank."""
        before, after = self._orders()
        sooner: dict[int, list[int]] = defaultdict(list)
        for taken, place in sorted(self.hoisted.items()):
            sooner[place].append(taken)
        number = 0
        for rank, block in self.run.blocks:
            inbound = outbound = None
            if block.recv_from is not None:
                inbound = block.recv_from, rank, block.channel
            if block.send_to is not None:
                outbound = rank, block.send_to, block.channel
            ops = [Draft("rlxsignal", over=inbound)] if inbound in self.guards.greeted else []
            greeting = [Draft("rlxwait", over=outbound)] if outbound in self.guards.greeted else []
            answers = 0
            for step in block.steps:
                for taken in (*([] if number in self.hoisted else [number]), *sooner[number]):
                    ops += self._arrival(taken, inbound)
                if number in before:
                    ops += _ordering("sem_acquire", before[number])
                if step.sends and not self.options.packets and number not in self.options.early:
                    ops, greeting = ops + greeting, []
                if step.op is not Op.NOP and step.count:
                    drafts = self._step(number, rank, inbound, outbound)
                    pieces: Iterable[int] = (-1,)
                    if self.options.pieces > 1 and outbound is not None and self._is_port(outbound):
                        pieces = range(self.options.pieces)
                    ops += [
                        replace(draft, step=number, piece=piece)
                        for piece in pieces for draft in drafts
                    ]  # fmt: skip
                answers += number in self.guards.answered
                answers += number in self.guards.returned
                if number in after:
                    ops += _ordering("sem_release", after[number])
                number += 1
            # Packets of a call lie in the other half of scratch than those of the one before: that
            # this call has begun there is soon enough known in its end. And who never sends takes
            # its greeting all the same: counts have to come out even.
            yield rank, ops + greeting + [Draft("wait", over=outbound)] * answers

    def _orders(self) -> tuple[dict[int, list[tuple[int, int]]], dict[int, list[tuple[int, int]]]]:
        """Return the pairs of threadblocks to take before, and to give after, each step."""
        before: dict[int, list[tuple[int, int]]] = defaultdict(list)
        after: dict[int, list[tuple[int, int]]] = defaultdict(list)
        taken: dict[tuple[int, int], int] = {}
        waits: dict[int, set[int]] = defaultdict(set)
        for number, released in self.run.released_by.items():
            if number not in self.relayed or not self.steps[released].receives:
                waits[number].add(released)
        for first, second in self.guards.ordered:
            waits[second].add(first)
        for number, place in enumerate(self.where):
            for released in sorted(waits.get(number, ()), reverse=True):
                pair = self.where[released].block, place.block
                if pair[0] != pair[1] and taken.get(pair, -1) < released:
                    taken[pair] = released
                    before[number].append(pair)
                    after[released].append(pair)
        return before, after

    def _arrival(self, number: int, inbound: Ends | None) -> list[Draft]:
        """Return what waits for the message of a step, and answers it.

        Whoever hears that a transfer is over need not wait for others of the receiver's.
        """
        if not self.steps[number].receives or self.options.packets:
            return []
        answers = self.run.sender.get(number, -1) in self.guards.answered
        return [Draft("wait", over=inbound), *([Draft("signal", over=inbound)] if answers else [])]

    def _step(
        self, number: int, rank: int, inbound: Ends | None, outbound: Ends | None
    ) -> list[Draft]:
        """Return the operations of a step."""
        step, size = self.steps[number], self.steps[number].count
        sender = self.run.sender.get(number, -1)
        came = self.lands.get(sender)
        goes = self.lands.get(number) if step.sends else None
        source = self.relayed.get(number) or _local(step.source, size)
        target = _local(step.target, size)
        if step.op is Op.COPY and source is not None and target is not None:
            same = self.mode.cell(rank, Slot(*source[:2])) == self.mode.cell(
                rank, Slot(*target[:2])
            )
            return [] if same else [Draft("copy", (source,), (target,))]
        if step.op is Op.REDUCE and source is not None and target is not None:
            return [Draft("re", (source, target), (target,))]
        ops = list[Draft]()
        # That a message has been read is said as soon as it has.
        read = [Draft("signal", over=inbound)] if sender in self.guards.returned else []
        if came is None or inbound is None:
            value = source
            if number in self.relayed and outbound is not None and self._is_port(outbound):
                # What a port reads has to stay when the packets are overwritten.
                value = self.room(rank, size, packet=False)
                ops.append(Draft("upkt", (self.relayed[number],), (value,)))
        elif step.op in (Op.RECV, Op.RECV_COPY_SEND):
            value = target or came
            if number in self.guards.copied and came.packet and value == came:
                value = self.room(rank, size, packet=False)
            if came.packet and came != value and number not in self.guards.copied:
                # Packets go on one by one as they come: the rest may not have come yet.
                if goes is not None and outbound is not None:
                    ops += self._send(came, goes, outbound, number)
                return [*ops, Draft("upkt", (came,), (value,), message=sender)]
            if came != value:
                name = "upkt" if came.packet else "copy"
                ops += [Draft(name, (came,), (value,), message=sender), *read]
                read = []
        else:
            # A sum that nobody keeps stays where the summand came to, but for packets, and where
            # the sender wants to hear soon that it has been read: then it has room of its own.
            own = came.packet or sender in self.guards.returned
            kept = target or (self.room(rank, size, packet=False) if own else came)
            first, *sent = self._add(
                (source or came, came), kept, number, (inbound, outbound), sender
            )
            at_once = first.name == "re" and kept != came
            return [first, *(read if at_once else []), *sent, *([] if at_once else read)]
        if goes is not None and outbound is not None and value is not None:
            ops += self._send(value, goes, outbound, number)
        return ops + read

    def _is_port(self, ends: Ends) -> bool:
        return self.options.servers[ends[0]] != self.options.servers[ends[1]]

    def _add(
        self, sources: tuple[Local, Local], kept: Local, number: int,
        ends: tuple[Ends, Ends | None], sender: int,
    ) -> list[Draft]:  # fmt: skip
        """Return what adds up what came, keeps it, and sends it on if the step does."""
        outbound, goes = ends[1], self.lands.get(number)
        packets = sources[1].packet
        if outbound is None or goes is None or not self.steps[number].sends:
            return [Draft("repkt" if packets else "re", sources, (kept,), message=sender)]
        far = Far(outbound[1], goes)
        if not self._is_port(outbound) and sender not in self.guards.returned:
            name = "respkt" if packets else "res"
            ops = [Draft(name, sources, (kept, far), outbound, message=number)]
            return ops if packets else [*ops, Draft("signal", over=outbound)]
        if not packets:
            done = Draft("re", sources, (kept,), message=sender)
            return [done, *self._send(kept, goes, outbound, number)]
        if self.options.version == "0.8":
            done = Draft("repkt", sources, (kept,), message=sender)
            return [done, *self._send(kept, goes, outbound, number)]
        copy = self.room(outbound[0], kept.size, packet=True)
        return [
            Draft("recpkt", sources, (kept, copy), message=sender),
            *self._send(copy, goes, outbound, number),
        ]

    def _send(self, value: Local, goes: Local, outbound: Ends, number: int) -> list[Draft]:
        """Return what writes chunks into a place of the receiver's, and tells it."""
        far = Far(outbound[1], goes)
        if not goes.packet:
            if self._is_port(outbound):
                ops = []
                if number in self.guards.copied:
                    copy = self.room(outbound[0], value.size, packet=False)
                    ops, value = [Draft("copy", (value,), (copy,))], copy
                return [*ops, Draft("pws", (value,), (far,), outbound, message=number)]
            put = Draft("put", (value,), (far,), outbound, message=number)
            return [put, Draft("signal", over=outbound)]
        if value.packet:
            return [Draft("rppkt", (value,), (far,), outbound, message=number)]
        if not self._is_port(outbound):
            return [Draft("ppkt", (value,), (far,), outbound, message=number)]
        copy = self.room(outbound[0], value.size, packet=True)
        return [
            Draft("cpkt", (value,), (copy,)),
            Draft("rppkt", (copy,), (far,), outbound, message=number),
        ]

    # Numbers

    def _numbered(self, found: list[list[Block]]) -> tuple[Plan, dict[Place, Draft]]:
        """Return the plan of all operations, and of which draft each is."""
        channels, position = self._channels()
        owners: dict[Place, Draft] = {}
        ranks = []
        for rank, blocks in enumerate(found):
            pairs = sorted({
                (*pair, block.member)
                for block in blocks for draft in block.ops for pair in draft.orders
            })  # fmt: skip
            semaphore = {pair: number for number, pair in enumerate(pairs)}
            remotes: dict[tuple[int, Buffer], set[str]] = {}
            for block in blocks:
                for draft in block.ops:
                    for target in draft.targets:
                        if isinstance(target, Far) and draft.over is not None:
                            key = target.rank, target.place.buffer
                            remotes.setdefault(key, set()).add(self._kind(draft.over))
            numbers = {key: number for number, key in enumerate(remotes)}
            own = []
            for index, block in enumerate(blocks):
                own.append(self._block(rank, block, position, numbers, semaphore))
                for step, draft in enumerate(block.ops):
                    owners[Place(rank, index, step)] = draft
            inputs, outputs = self._rooms()
            ranks.append(PlanRank(
                inputs, outputs, self._scratch(rank), channels[rank], (),
                tuple(
                    RemoteBuffer(peer, buffer, tuple(sorted(kinds)))
                    for (peer, buffer), kinds in remotes.items()
                ),
                tuple(int(pair[0] == LOOPED) for pair in pairs), tuple(own),
            ))  # fmt: skip
        packets = self.options.packets
        plan = Plan(
            self.program.name, self.program.collective, "LL" if packets else "Simple",
            self.options.in_place, tuple(ranks), double_scratch=packets,
            min_bytes=self.program.min_bytes, max_bytes=min(self.program.max_bytes, MAX_BUFFER),
        )  # fmt: skip
        return plan, owners

    def _rooms(self) -> tuple[int, int]:
        """Return the chunks of input and output, as the collective has them."""
        chunks, ranks = self.scale * self.program.chunks_per_loop, self.program.num_ranks
        name = self.program.collective
        return (
            chunks // ranks if name == "allgather" else chunks,
            chunks // ranks if name == "reducescatter" else chunks,
        )

    def _scratch(self, rank: int) -> int:
        """Return the chunks of a rank's scratch buffer, which packets fill twice."""
        if not self.options.packets:
            return self.scale * self.plain[rank]
        return self.scale * (self.packets[rank] + -(-self.plain[rank] // 2))

    def _kind(self, ends: Ends) -> str:
        return "port" if self._is_port(ends) else "memory"

    def _channels(
        self,
    ) -> tuple[list[dict[str, tuple[Channel, ...]]], dict[tuple[int, Ends, int], int]]:
        """Return the channels of each rank, and where among them a member has an end of each."""
        used: set[Ends] = set()
        for rank, block in self.run.blocks:
            if block.recv_from is not None:
                used.add((block.recv_from, rank, block.channel))
            if block.send_to is not None:
                used.add((rank, block.send_to, block.channel))
        lists: list[dict[str, list[Channel]]] = [defaultdict(list) for _ in self.program.gpus]
        position: dict[tuple[int, Ends, int], int] = {}
        for ends, member in product(sorted(used), range(self.options.group)):
            kind = self._kind(ends)
            for rank, peer in ((ends[0], ends[1]), (ends[1], ends[0])):
                position[rank, ends, member] = len(lists[rank][kind])
                lists[rank][kind].append(Channel(kind, peer))
        return [{kind: tuple(own) for kind, own in each.items()} for each in lists], position

    def _block(
        self, rank: int, block: Block, position: Mapping[tuple[int, Ends, int], int],
        remotes: Mapping[tuple[int, Buffer], int], semaphore: Mapping[tuple[int, int, int], int],
    ) -> PlanBlock:  # fmt: skip
        """Return a threadblock with its own numbers of channels and remote buffers."""
        channels: dict[str, list[int]] = defaultdict(list)
        refs: dict[str, list[int]] = defaultdict(list)
        shift = 2 * self.scale * self.packets[rank]

        def number(table: dict[str, list[int]], kind: str, value: int) -> int:
            if value not in table[kind]:
                table[kind].append(value)
            return table[kind].index(value)

        def operand(place: Local | Far, kind: str, piece: int) -> Operand:
            own = place.place if isinstance(place, Far) else place
            # A member of a group has its part of every chunk.
            part = block.member if self.options.unit else piece
            first = own.first * self.scale + max(0, part) * own.size * (self.scale > 1)
            size = own.size if part >= 0 else own.size * self.scale
            if isinstance(place, Far):
                ref = number(refs, kind, remotes[place.rank, own.buffer])
                return Operand(Side.REMOTE, None, ref, first, size)
            plain = own.buffer is Buffer.SCRATCH and not own.packet
            return Operand(Side.LOCAL, own.buffer, -1, first + (shift if plain else 0), size)

        found = []
        group = self.options.group
        for draft in block.ops:
            kind = "" if draft.over is None else self._kind(draft.over)
            named: tuple[int, ...] = ()
            if draft.over is not None:
                at = number(channels, kind, position[rank, draft.over, block.member])
                named = (at,) if kind == "port" or not draft.targets else ()
            found.append(PlanOp(
                draft.name, tuple(operand(place, kind, draft.piece) for place in draft.sources),
                tuple(operand(place, kind, draft.piece) for place in draft.targets), kind, named,
                semaphores=tuple(semaphore[*pair, block.member] for pair in draft.orders),
                tbg=Tbg(block.member, group) if group > self.scale and draft.sources else None,
                reduce_op="sum" if draft.name.startswith("re") else "",
            ))  # fmt: skip
        if self.options.unit:
            found = _piped(found, self.options.unit, self.grain)
        return PlanBlock(
            {kind: tuple(own) for kind, own in channels.items()},
            {kind: tuple(own) for kind, own in refs.items()}, tuple(found),
        )  # fmt: skip


def _ordering(name: str, pairs: Sequence[tuple[int, int]]) -> Iterator[Draft]:
    """Yield operations that give or take the semaphores of `pairs`, as many as each can name."""
    for begin in range(0, len(pairs), MAX_SEMAPHORES):
        yield Draft(name, orders=tuple(pairs[begin : begin + MAX_SEMAPHORES]))


def _local(slot: Slot | None, size: int) -> Local | None:
    return None if slot is None else Local(slot.buffer, slot.offset, size)


def fenced(
    ops: Sequence[Draft], rank: int, mode: Mode, is_port: Callable[[Ends], bool]
) -> list[Draft]:
    """Return operations with a nop wherever threads of the threadblock have to agree.

    `ops` are those of a threadblock of a `rank`, whose buffers lie as `mode` says; `is_port` tells
    of a connection whether it is a port channel. Threads agree before data is touched that a wait
    or a semaphore stands for, before a signal or semaphore tells of data, between two waits on one
    channel or two entries of one queue, and between two operations of which one writes what the
    other touches.
    """
    found: list[Draft] = []
    waited = moved = False
    counted: set[tuple[bool, Ends | None]] = set()
    read: set[object] = set()
    wrote: set[object] = set()
    for draft in ops:
        reads = {cell for place in draft.sources for cell in _cells(place, rank, mode)}
        writes = {
            cell
            for place in draft.targets if isinstance(place, Local)
            for cell in _cells(place, rank, mode)
        }  # fmt: skip
        tells = draft.name in ("signal", "sem_release")
        data = bool(draft.sources)
        waits = draft.name in ("wait", "rlxwait")
        counts = draft.over is not None and (waits or is_port(draft.over))
        again = counts and (waits, draft.over) in counted
        touches = bool(reads & wrote or writes & (read | wrote))
        if (tells and (moved or waited)) or again or (data and (waited or touches)):
            found.append(NOP)
            waited = moved = False
            read, wrote, counted = set(), set(), set()
        found.append(draft)
        waited |= waits or draft.name == "sem_acquire"
        counted |= {(waits, draft.over)} if counts else set()
        moved |= data
        read |= reads
        wrote |= writes
    return found


def _cells(place: Local, rank: int, mode: Mode) -> Iterable[object]:
    # Packets wait for themselves: what reads them needs no fence.
    if place.packet:
        return ()
    return mode.cells(rank, Slot(place.buffer, place.first), place.size)


def split(ops: Sequence[Draft]) -> list[list[Draft]]:
    """Return `ops` in as many lists as leave room for fences and semaphores within MAX_OPS.

    A signal stays with what it tells of: together they are one message.
    """
    parts: list[list[Draft]] = [[]]
    # At worst there is a nop before each operation; four are for handing on, two for a signal.
    most = (MAX_OPS - 6) // 2
    if len(ops) <= most:
        return [list(ops)]
    for draft in ops:
        if len(parts[-1]) >= most and draft.name != "signal":
            parts.append([])
        parts[-1].append(draft)
    return parts


HANDED, LOOPED = -1, -2
"""Who gives the semaphores of parts of a threadblock: the part before, or the last of them all."""


def _joined(parts: Sequence[Sequence[Draft]], first: int, *, looped: bool) -> list[list[Draft]]:
    """Return parts of a threadblock, each handing on to the next, which are numbered from first.

    If they are `looped`, the first begins an iteration when the last has ended the one before: they
    share channels, whose signals are counted.
    """
    found = []
    again = looped and len(parts) > 1
    for index, part in enumerate(parts):
        own = list(part)
        last = index == len(parts) - 1
        taken = (HANDED, first + index) if index else (LOOPED, first)
        given = (LOOPED, first) if last else (HANDED, first + index + 1)
        if index or again:
            own = [Draft("sem_acquire", orders=(taken,)), NOP, *own]
        if not last or again:
            own += [NOP, Draft("sem_release", orders=(given,))]
        found.append(own)
    return found


def _piped(ops: Sequence[PlanOp], unit: int, size: int) -> list[PlanOp]:
    """Return operations as one pipeline, each iteration of which moves `unit` bytes of a chunk.

    All operands are of so many chunks, the `size`. Greetings, which are for the whole call, stay
    before it.
    """
    opening = [op for name in ("rlxsignal", "rlxwait") for op in ops if op.name == name]
    inner = [op for op in ops if op.name not in ("rlxsignal", "rlxwait")]
    if not inner:
        return list(ops)
    # Threads agree before the next iteration begins.
    inner.append(PlanOp("nop"))
    pipeline = PlanOp("pipeline", unit=unit * size, chunks=size, inner=tuple(inner))
    fence = [PlanOp("nop")] if opening and opening[-1].name == "rlxwait" else []
    return [*opening, *fence, pipeline]


OFF = "use --in-network off: plans then copy and add over memory channels"
NEEDS = (
    "switch channels need NVLS: GPUs of compute capability 9.0 (H100) or newer, and buffers at"
    " equal offsets of their allocation on all ranks"
)
SUMS = "sums only, of all types but uint8 (fp8: compute capability 10.0)"
"""What a plan on switch channels asks of machine and call (``execution_kernel.hpp``)."""

PLAN_NOP = PlanOp("nop")


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
    writer = _FanWriter(schedule, options, drawn.landed)
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
        self.slots = self.schedule.slots
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
        for (rank, chunks), taken in landed.items():
            ends = [
                (chunk, own, kept) for chunk in chunks
                if (own := self._place(chunk, rank, own=True)) is not None
                and (kept := self._place(chunk, rank, own=False)) is not None
            ]  # fmt: skip
            for run in _runs(ends):
                begin, most = chunks.index(run[0][0]), MAX_OPERANDS - 1
                value, kept = run[0][1:]
                for first in range(0, len(taken), most):
                    some = tuple(place + begin for place in taken[first : first + most])
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
class _FanWriter:
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
                ops.append(PLAN_NOP)
            for op in local:
                # What one has written the next may add to.
                ops += [op, PLAN_NOP]
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
        fence = PlanOp("barrier", barrier=0, blocks=self.blocks) if self.parts else PLAN_NOP
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

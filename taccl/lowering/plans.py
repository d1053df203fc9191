"""From an XML program to an MSCCL++ plan: messages become writes into the receiver's memory.

Threadblocks stay what they are, and a connection is a channel of its own. What a FIFO did is done
by memory: a message lands where the receiver wants it, or, where it would overwrite what is still
needed there, in a place of its own in the scratch buffer; summands always land there. What ordered
the steps of a rank are semaphores; a ``nop`` stands where threads have to agree, and nowhere else.

With packets the flags of the data say that it has come, and nobody signals: fewer latencies, twice
the bytes.

Whether a landing place is free, whether the sender may go on before its transfer is over, whether
a call may begin while the one before ends elsewhere: that is asked of the judge
(:mod:`taccl.mscclpp.interpret`). A plan begins without any guard, and each race that the judge
finds adds the cheapest guard that may mend it.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import product
from math import gcd
from typing import NamedTuple

from taccl.errors import LoweringError
from taccl.msccl.expected import Mode, mode_of
from taccl.msccl.program import Buffer, Op, Program, Slot
from taccl.msccl.run import Run, maximal_run, places
from taccl.mscclpp.interpret import Place, Race, races_of, run_findings
from taccl.mscclpp.plan import (
    MAX_BUFFER,
    MAX_OPS,
    NEWEST,
    Channel,
    Operand,
    Plan,
    PlanBlock,
    PlanOp,
    PlanRank,
    RemoteBuffer,
    Side,
    Tbg,
)

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
    `group`: threadblocks that share the work of each of the program's, a part of every chunk each;
    they exclude packets and pipelines.
    """

    servers: tuple[int, ...]
    in_place: bool
    packets: bool = False
    version: str = NEWEST
    unit: int = 0
    early: frozenset[int] = frozenset()
    late: frozenset[int] = frozenset()
    group: int = 1


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
    """

    name: str
    sources: tuple[Local, ...] = ()
    targets: tuple[Local | Far, ...] = ()
    over: Ends | None = None
    orders: tuple[tuple[int, int], ...] = ()
    message: int = -1
    step: int = -1


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
    run, known = _ended(program), guards
    if known is None:
        known = guards_of(program, replace(options, unit=0, group=1))
    plan, _ = _Writer(program, run, options, known).plan()
    findings = run_findings(plan)
    if findings:
        raise LoweringError(
            f"no plan of {program.name} was found that is right: {findings[0]}",
            fix="use another engine, or fewer chunks",
        )
    return plan


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
        # What all operands are multiples of.
        self.grain = gcd(*(step.count for step in self.steps)) or 1
        self.lands: dict[int, Local] = {}
        for number, sender in sorted(run.sender.items()):
            step, rank = self.steps[number], self.where[number].rank
            at_once = step.op in (Op.RECV, Op.RECV_COPY_SEND) and not options.packets
            if at_once and sender not in guards.staged and step.dst is not None:
                self.lands[sender] = Local(step.dst.buffer, step.dst.offset, step.count)
            else:
                self.lands[sender] = self.room(rank, step.count, packet=options.packets)

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
            cut = ops if self.options.group == 1 else list(self._cut(ops))
            blocks = [
                [self._named(draft, rank) for draft in fenced(part, rank, self.mode, self._is_port)]
                for part in split(cut)
            ]
            for member in range(self.options.group):
                joined = _joined(blocks, len(found[rank]), looped=bool(self.options.unit))
                found[rank] += [Block(member, own) for own in joined]
        return self._numbered(found)

    def _cut(self, ops: Iterable[Draft]) -> Iterator[Draft]:
        """Yield operations of as few chunks as any has: a member's part is that of each chunk."""
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
                if number in before:
                    ops.append(Draft("sem_acquire", orders=tuple(before[number])))
                if step.sends and not self.options.packets and number not in self.options.early:
                    ops, greeting = ops + greeting, []
                if step.op is not Op.NOP and step.count:
                    ops += [
                        replace(draft, step=number)
                        for draft in self._step(number, rank, inbound, outbound)
                    ]
                answers += number in self.guards.answered
                answers += number in self.guards.returned
                if number in after:
                    ops.append(Draft("sem_release", orders=tuple(after[number])))
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

    def _step(
        self, number: int, rank: int, inbound: Ends | None, outbound: Ends | None
    ) -> list[Draft]:
        """Return the operations of a step."""
        step, size = self.steps[number], self.steps[number].count
        sender = self.run.sender.get(number, -1)
        came = self.lands.get(sender)
        goes = self.lands.get(number) if step.sends else None
        source = _local(step.source, size)
        target = _local(step.target, size)
        if step.op is Op.COPY and source is not None and target is not None:
            same = self.mode.cell(rank, Slot(*source[:2])) == self.mode.cell(
                rank, Slot(*target[:2])
            )
            return [] if same else [Draft("copy", (source,), (target,))]
        if step.op is Op.REDUCE and source is not None and target is not None:
            return [Draft("re", (source, target), (target,))]
        ops = []
        if step.receives and not self.options.packets:
            ops.append(Draft("wait", over=inbound))
            if sender in self.guards.answered:
                ops.append(Draft("signal", over=inbound))
        # That a message has been read is said as soon as it has.
        read = [Draft("signal", over=inbound)] if sender in self.guards.returned else []
        if came is None or inbound is None:
            value = source
        elif step.op in (Op.RECV, Op.RECV_COPY_SEND):
            value = target or came
            if number in self.guards.copied and came.packet and value == came:
                value = self.room(rank, size, packet=False)
            if came != value:
                name = "upkt" if came.packet else "copy"
                ops += [Draft(name, (came,), (value,), message=sender), *read]
                read = []
            if came.packet and number not in self.guards.copied:
                value = came
        else:
            # A sum that nobody keeps stays where the summand came to, or in room of its own.
            kept = target or (self.room(rank, size, packet=False) if came.packet else came)
            first, *sent = self._add(
                (source or came, came), kept, number, (inbound, outbound), sender
            )
            at_once = first.name == "re" and kept != came
            return [*ops, first, *(read if at_once else []), *sent, *([] if at_once else read)]
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
        if not self._is_port(outbound):
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
        chunks, ranks = self.program.chunks_per_loop, self.program.num_ranks
        name = self.program.collective
        return (
            chunks // ranks if name == "allgather" else chunks,
            chunks // ranks if name == "reducescatter" else chunks,
        )

    def _scratch(self, rank: int) -> int:
        """Return the chunks of a rank's scratch buffer, which packets fill twice."""
        if not self.options.packets:
            return self.plain[rank]
        return self.packets[rank] + -(-self.plain[rank] // 2)

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
        shift = 2 * self.packets[rank]

        def number(table: dict[str, list[int]], kind: str, value: int) -> int:
            if value not in table[kind]:
                table[kind].append(value)
            return table[kind].index(value)

        def operand(place: Local | Far, kind: str) -> Operand:
            if isinstance(place, Far):
                far = place.place
                ref = number(refs, kind, remotes[place.rank, far.buffer])
                return Operand(Side.REMOTE, None, ref, far.first, far.size)
            plain = place.buffer is Buffer.SCRATCH and not place.packet
            return Operand(
                Side.LOCAL, place.buffer, -1, place.first + (shift if plain else 0), place.size
            )

        found = []
        group = self.options.group
        for draft in block.ops:
            kind = "" if draft.over is None else self._kind(draft.over)
            named: tuple[int, ...] = ()
            if draft.over is not None:
                at = number(channels, kind, position[rank, draft.over, block.member])
                named = (at,) if kind == "port" or not draft.targets else ()
            found.append(PlanOp(
                draft.name, tuple(operand(place, kind) for place in draft.sources),
                tuple(operand(place, kind) for place in draft.targets), kind, named,
                semaphores=tuple(semaphore[*pair, block.member] for pair in draft.orders),
                tbg=Tbg(block.member, group) if group > 1 and draft.sources else None,
                reduce_op="sum" if draft.name.startswith("re") else "",
            ))  # fmt: skip
        if self.options.unit:
            found = _piped(found, self.options.unit, self.grain)
        return PlanBlock(
            {kind: tuple(own) for kind, own in channels.items()},
            {kind: tuple(own) for kind, own in refs.items()}, tuple(found),
        )  # fmt: skip


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

    An iteration moves the same part of each operand, so all are cut to so many chunks, the `size`.
    Greetings, which are for the whole call, stay before it.
    """
    opening = [op for name in ("rlxsignal", "rlxwait") for op in ops if op.name == name]
    inner = [op for op in ops if op.name not in ("rlxsignal", "rlxwait")]
    if not inner:
        return list(ops)
    cut: list[PlanOp] = []
    for op in inner:
        parts = max((operand.size for operand in op.sources), default=size) // size
        cut += [
            replace(
                op, sources=tuple(_part(one, part, size) for one in op.sources),
                targets=tuple(_part(one, part, size) for one in op.targets),
            )
            for part in range(parts)
        ]  # fmt: skip
    # Threads agree before the next iteration begins.
    inner = [*cut, PlanOp("nop")]
    pipeline = PlanOp("pipeline", unit=unit * size, chunks=size, inner=tuple(inner))
    fence = [PlanOp("nop")] if opening and opening[-1].name == "rlxwait" else []
    return [*opening, *fence, pipeline]


def _part(operand: Operand, part: int, size: int) -> Operand:
    return replace(operand, index=operand.index + part * size, size=size)

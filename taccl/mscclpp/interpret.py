"""The judge of plans: what calls leave in memory, and what of it depends on luck.

A plan is run symbolically, several calls one after the other, as ranks run them: threadblocks take
their operations in order and block on waits, packets, barriers and semaphores. Since nothing but
these orders what threadblocks do, one run shows all: two accesses to the same bytes of which one
writes are a race unless the first is *ordered* before the second, by vector clocks over lanes.

A lane is a threadblock, a port channel (its transfers are done one after the other, by somebody
else) or the user of a rank, who writes the input before each call and reads the output after it.
The operations of a threadblock between two fences are one step of its lane, unordered among
themselves. There are two orders: what is *done* before, which a read needs before its bytes are
overwritten, and what is also *seen*, which a write needs before its bytes are read. Signals,
barriers and semaphores pass on both; relaxed signals and packets only the first.

Bytes are cells: chunks, cut as finely as groups of threadblocks and pipelines cut them. A packet
takes the room of two.

:func:`judge_text` says all that MSCCL++ makes of a file: the reader, the limits, and what calls
leave.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import lcm
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.errors import InputError, ProgramError
from taccl.msccl.program import Buffer, Finding, Severity, errors_of
from taccl.mscclpp.plan import FENCES, NEWEST, OPERATIONS, Operand, Plan, PlanBlock, PlanOp, Side
from taccl.mscclpp.structure import structure_findings
from taccl.mscclpp.text import read_plan

Clock = NDArray[np.int32]
"""Steps of each lane that are over."""

Cell = tuple[int, str, int]
"""A rank, the letter of a buffer (``u``: input and output in one), and a place in it."""

Value = tuple[tuple[int, int], ...]
"""Cells of inputs that are added up, as (rank, place), ascending."""

UNDEFINED: Value = ((-1, -1),)

MAX_PARTS = 64
"""Parts of a chunk that can be told apart."""

MAX_CELLS = 1 << 24
"""Cells that all operations of all calls touch, together."""

MAX_TOLD = 20
"""Findings of one rule that are listed."""


class Place(NamedTuple):
    """Where an operation is: its rank, threadblock and position."""

    rank: int
    block: int
    step: int


class Event(NamedTuple):
    """An access: its lane, the step of the lane, the call, and the operation; None: the user."""

    lane: int
    step: int
    call: int
    place: Place | None


class Packet(NamedTuple):
    """A packet that has been written.

    `value`: what is in it.
    `writer`: who wrote it.
    `done`: what is done before the step that wrote it.
    `chain`: accesses whose parts that became this packet are done: each thread reads before it
    writes, and moves the same bytes of a chunk from place to place.
    `transfer`: the port lane, its step, and the packets of it; None: a threadblock wrote it.
    `store`: the operation of a threadblock that wrote it, which of its targets on which rank, and
    the packets there; None: a transfer wrote it.
    """

    value: Value
    writer: Event
    done: Clock
    chain: frozenset[Event]
    transfer: tuple[int, int, int] | None
    store: tuple[Event, int, int, int] | None


class Moved(NamedTuple):
    """A value on its way, and the accesses that have moved it so far: see :class:`Packet`."""

    value: Value
    chain: frozenset[Event]


class Access(NamedTuple):
    """How an operation accesses a cell: its event, what is done and seen before, and the chain.

    The reads of the operations that are `over` are done, too.
    """

    event: Event
    done: Clock
    seen: Clock
    over: AbstractSet[Event]
    chain: frozenset[Event] = frozenset()


@dataclass(slots=True)
class Signal:
    """A signal on its way: what is done and what is seen before it; None: nothing is seen."""

    done: Clock
    seen: Clock | None
    event: Event


@dataclass(slots=True)
class Lane:
    """A threadblock or port channel: its number, step, and clocks.

    `done`, `seen`: before the present step.
    `later_done`, `later_seen`: what waits of this step add to the next.
    `over`, `later_over`: operations whose reads are done, as all packets of one of their targets
    have been read here: each thread reads before it writes. Those of this call and the one before.
    """

    number: int
    done: Clock
    seen: Clock
    later_done: Clock
    later_seen: Clock
    step: int = 0
    over: set[Event] = field(default_factory=set)
    later_over: set[Event] = field(default_factory=set)

    def fence(self) -> None:
        """End the step."""
        self.step += 1
        self.done = np.maximum(self.done, self.later_done)
        self.seen = np.maximum(self.seen, self.later_seen)
        self.done[self.number] = self.seen[self.number] = self.step
        self.later_done, self.later_seen = self.done, self.seen
        if self.later_over:
            call = max(event.call for event in self.later_over)
            self.over = {event for event in self.over if event.call >= call - 1} | self.later_over
            self.later_over = set()

    def learn(self, done: Clock, seen: Clock | None) -> None:
        """Take in what a wait of this step has made known, for the next step."""
        self.later_done = np.maximum(self.later_done, done)
        if seen is not None:
            self.later_seen = np.maximum(self.later_seen, seen)


@dataclass(slots=True)
class Touched:
    """Who has touched a cell: the last write, and the reads after it."""

    write: Event | None = None
    reads: list[Event] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Flat:
    """An operation as one iteration of pipelines has it: which of `parts` slices, and its place."""

    op: PlanOp
    place: Place
    part: int = 0
    parts: int = 1


def flat_ops(block: PlanBlock, rank: int, number: int, iterations: int) -> list[Flat]:
    """Return the operations of a `block`, the `number`-th of a `rank`, pipelines unrolled.

    Each pipeline has so many `iterations`.
    """
    found = []
    for step, op in enumerate(block.ops):
        place = Place(rank, number, step)
        if op.name == "pipeline":
            found += [
                Flat(inner, place, part, iterations)
                for part in range(iterations) for inner in op.inner
            ]  # fmt: skip
        else:
            found.append(Flat(op, place))
    return found


def partners(plan: Plan) -> dict[tuple[int, str, int], tuple[int, str, int]]:
    """Return the other end of each memory and port channel, both as (rank, type, position).

    The j-th channel from A to B, memory first, belongs to the j-th from B to A.
    """
    by_pair: dict[tuple[int, int], list[tuple[int, str, int]]] = defaultdict(list)
    for number, rank in enumerate(plan.ranks):
        for kind in ("memory", "port"):
            for position, channel in enumerate(rank.channels.get(kind, ())):
                by_pair[number, channel.peer].append((number, kind, position))
    return {
        here: there
        for (one, other), ends in by_pair.items()
        for here, there in zip(ends, by_pair.get((other, one), ()), strict=False)
    }


def parts_of(plan: Plan, iterations: int) -> int:
    """Return how finely chunks are cut by threadblock groups and `iterations` of pipelines."""
    found = 1
    for rank in plan.ranks:
        for block in rank.blocks:
            for op in block.ops:
                for one, slices in ((op, 1), *((inner, iterations) for inner in op.inner)):
                    share = one.tbg.tbg_size if one.tbg else 1
                    for operand in (*one.sources, *one.targets):
                        found = lcm(found, Fraction(operand.size, share * slices).denominator)
                        if found > MAX_PARTS:
                            return found
    return found


class Outputs(NamedTuple):
    """What a collective wants: by rank, the sums at places of its output, in chunks."""

    wanted: Mapping[int, Mapping[int, Value]]
    input_shift: tuple[int, ...]
    output_shift: tuple[int, ...]


def outputs_of(plan: Plan, root: int) -> Outputs | None:
    """Return what a `plan` should leave in outputs, of a `root` if it has one.

    The result is None where its collective says nothing.
    """
    ranks, first = plan.num_ranks, plan.ranks[0]
    here, there = first.input_chunks, first.output_chunks
    nobody = (0,) * ranks

    def total(place: int) -> Value:
        return tuple((rank, place) for rank in range(ranks))

    everyone = range(ranks)
    if plan.collective == "allgather":
        whole = {rank * here + x: ((rank, x),) for rank in everyone for x in range(here)}
        return Outputs(
            dict.fromkeys(everyone, whole), tuple(rank * here for rank in everyone), nobody
        )
    if plan.collective == "reducescatter":
        return Outputs(
            {r: {x: total(r * there + x) for x in range(there)} for r in everyone},
            nobody, tuple(rank * there for rank in everyone),
        )  # fmt: skip
    tables: Mapping[str, Callable[[int], dict[int, Value]]] = {
        "allreduce": lambda _: {x: total(x) for x in range(there)},
        "alltoall": lambda rank: {
            other * (here // ranks) + x: ((other, rank * (here // ranks) + x),)
            for other in everyone for x in range(here // ranks)
        },
        "broadcast": lambda _: {x: ((root, x),) for x in range(there)},
        "reduce": lambda rank: {x: total(x) for x in range(there)} if rank == root else {},
    }  # fmt: skip
    table = tables.get(plan.collective)
    if table is None:
        return None
    return Outputs({rank: table(rank) for rank in everyone}, nobody, nobody)


ROOTED = ("broadcast", "reduce")


def run_findings(plan: Plan) -> list[Finding]:
    """Return what is wrong with calls of a `plan`: deadlocks, races, wrong outputs, leftovers.

    The plan must have no structural findings that break it. A broadcast or reduce may have any
    root: the best is taken.
    """
    piped = any(op.inner for rank in plan.ranks for block in rank.blocks for op in block.ops)
    found: list[Finding] = []
    for iterations in (1, 2) if piped else (1,):
        runs = (
            _ended(plan, iterations, root)[1]
            for root in (range(plan.num_ranks) if plan.collective in ROOTED else (0,))
        )
        best: list[Finding] | None = None
        for one in runs:
            if best is None or len(one) < len(best):
                best = one
            if not best:
                break
        found = best or []
        if found:
            break
    return found


def root_of(plan: Plan) -> int | None:
    """Return the root that a `plan` is right for; None: for none, or it has none."""
    if plan.collective not in ROOTED:
        return None
    roots = range(plan.num_ranks)
    return next((root for root in roots if not _ended(plan, 1, root)[1]), None)


class Race(NamedTuple):
    """Two operations that nothing orders; None: the user.

    Whether they are of one call, and on which rank the memory is that both touch.
    """

    one: Place | None
    other: Place | None
    same_call: bool
    rank: int


def races_of(plan: Plan) -> list[Race]:
    """Return the races of a `plan`, each once, in the order in which they are found."""
    return list(_ended(plan, 1, 0)[0].races)


def _ended(plan: Plan, iterations: int, root: int) -> tuple["Run", list[Finding]]:
    """Return a run of a plan that is over, and what is wrong."""
    shared: frozenset[tuple[int, int]] = frozenset()
    while True:
        run = Run(plan, iterations, outputs_of(plan, root), shared)
        found = run.findings()
        if run.unordered <= shared:
            return run, found
        shared |= run.unordered


class Run:
    """Calls of a plan, one after the other on all ranks.

    `iterations` are those of each pipeline; `outputs` is what should come out; None: nobody knows.
    Semaphores that are `shared` order nothing: several threadblocks take or give them.
    """

    def __init__(
        self, plan: Plan, iterations: int, outputs: Outputs | None,
        shared: frozenset[tuple[int, int]] = frozenset(),
    ) -> None:  # fmt: skip
        self.plan, self.outputs = plan, outputs
        self.parts = parts_of(plan, iterations)
        self.partner = partners(plan)
        self.calls = 3 if plan.double_scratch else 2
        self.ops = [
            [flat_ops(block, r, b, iterations) for b, block in enumerate(rank.blocks)]
            for r, rank in enumerate(plan.ranks)
        ]
        ports = [
            (r, position)
            for r, rank in enumerate(plan.ranks)
            for position in range(len(rank.channels.get("port", ())))
        ]  # fmt: skip
        blocks = sum(map(len, self.ops))
        # Lanes: threadblocks, then port channels, then users.
        width = blocks + len(ports) + plan.num_ranks
        self.threads, self.user = blocks, blocks + len(ports)
        numbers = iter(range(width))
        self.lanes = [[self._lane(next(numbers), width) for _ in rank] for rank in self.ops]
        self.ports = {port: self._lane(next(numbers), width) for port in ports}
        self.at = [[0] * len(rank) for rank in self.ops]
        self.call = [0] * plan.num_ranks
        self.memory: dict[Cell, Value] = {}
        self.packets: dict[tuple[Cell, int], Packet] = {}
        self.touched: dict[Cell, Touched] = defaultdict(Touched)
        self.signals: dict[tuple[int, str, int], list[Signal]] = defaultdict(list)
        self.waited: dict[tuple[int, str, int], list[Event]] = defaultdict(list)
        self.released: dict[tuple[int, int], deque[Signal | None]] = {
            (r, number): deque([None] * value)
            for r, rank in enumerate(plan.ranks) for number, value in enumerate(rank.semaphores)
        }  # fmt: skip
        self.met: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        self.found: dict[tuple[object, ...], Finding] = {}
        self.sums: dict[tuple[Value, Value], Value] = {}
        self.blocked: dict[tuple[int, int], str] = {}
        self.awake: deque[tuple[int, int]] = deque()
        self.waiting: dict[object, set[tuple[int, int]]] = defaultdict(set)
        self.races: dict[Race, None] = {}
        self.pushed: dict[int, Event] = {}
        self.shared = shared
        self.unordered: set[tuple[int, int]] = set()
        self.last: dict[tuple[str, int, int], Event] = {}
        # Inputs of different calls are different values.
        self.stride = self.parts * max(rank.input_chunks for rank in plan.ranks) or 1
        self.cells = 0

    @staticmethod
    def _lane(number: int, width: int) -> Lane:
        none = np.zeros(width, np.int32)
        return Lane(number, none, none, none, none)

    def findings(self) -> list[Finding]:
        """Run it, and return what is wrong."""
        if self.parts > MAX_PARTS:
            return [Finding(
                "unsupported", f"groups cut chunks into over {MAX_PARTS} parts",
                fix="use groups of fewer threadblocks",
            )]  # fmt: skip
        for rank in range(self.plan.num_ranks):
            self._use(rank)
            self.awake += [(rank, block) for block in range(len(self.ops[rank]))]
            self._end_call(rank)
        while self.awake:
            self._advance(*self.awake.popleft())
            if self.cells > MAX_CELLS:
                return [Finding(
                    "unsupported", f"{self.cells} cells are too many to follow",
                    fix="verify a plan of fewer chunks",
                )]  # fmt: skip
        self._stuck()
        if not any(finding.rule == "deadlock" for finding in self.found.values()):
            self._leftovers()
        counts: dict[str, int] = defaultdict(int)
        told = []
        for finding in self.found.values():
            counts[finding.rule] += 1
            if counts[finding.rule] <= MAX_TOLD:
                told.append(finding)
        return told

    def _tell(self, rule: str, text: str, place: Place | int, fix: str) -> None:
        """Tell of something at an operation, or on a rank."""
        rank, block, step = (place, None, None) if isinstance(place, int) else place
        key = (rule, text) if isinstance(place, int) else (rule, rank, block, step)
        self.found.setdefault(key, Finding(rule, text, rank, block, step, fix))

    # Cells

    def _cell(self, rank: int, buffer: Buffer, place: int, caller: int) -> Cell:
        """Return a cell by its place in a buffer, in parts of chunks, in a call of the `caller`."""
        if buffer is Buffer.SCRATCH:
            half = "s" if not self.plan.double_scratch else f"s{self.call[caller] % 2}"
            return rank, half, place
        if not self.plan.in_place or self.outputs is None:
            return rank, buffer.value, place
        shifts = self.outputs.input_shift, self.outputs.output_shift
        shift = shifts[buffer is Buffer.OUTPUT][rank]
        return rank, "u", place + shift * self.parts

    def _homes(self, flat: Flat, operand: Operand) -> list[tuple[int, Buffer]]:
        """Return the buffers that an operand is of, and their ranks."""
        rank = self.plan.ranks[flat.place.rank]
        block = rank.blocks[flat.place.block]
        if operand.side is Side.LOCAL and operand.buffer is not None:
            return [(flat.place.rank, operand.buffer)]
        if operand.side is Side.REMOTE:
            remote = rank.remotes[block.remotes[flat.op.channel_type][operand.ref]]
            return [(remote.rank, remote.buffer)]
        group = rank.groups[block.channels["switch"][operand.ref]]
        return [(one, group.buffer) for one in group.ranks]

    def _range(self, flat: Flat, operand: Operand) -> range:
        """Return the places of an operand that this threadblock touches in this iteration."""
        whole = operand.size * self.parts
        begin = operand.index * self.parts
        if flat.parts > 1:
            begin, whole = begin + whole * flat.part // flat.parts, whole // flat.parts
        if flat.op.tbg is not None:
            share, count = flat.op.tbg
            begin, whole = begin + whole * share // count, whole // count
        return range(begin, begin + whole)

    # Accesses

    def _ordered(self, earlier: Event, later: Access, *, needs_seen: bool) -> bool:
        if earlier in later.chain and not needs_seen:
            return True
        clock = later.seen if needs_seen and earlier.lane < self.user else later.done
        if clock[earlier.lane] > earlier.step:
            return True
        # The end of a call is seen by all who know that the next one has begun.
        place = earlier.place
        return place is not None and self._begun(earlier, place.rank, later)

    def _begun(self, earlier: Event, rank: int, later: Access) -> bool:
        # A transfer may go on when the call that has asked for it is over.
        threads = earlier.lane < self.threads
        return threads and bool(later.done[self.user + rank] > earlier.call + 1)

    def _read(self, cell: Cell, access: Access) -> None:
        touched = self.touched[cell]
        write = touched.write
        if write is not None and not self._ordered(write, access, needs_seen=True):
            self._race(cell, write, "writes", access.event, "reads")
        touched.reads.append(access.event)

    def _write(self, cell: Cell, access: Access) -> None:
        touched = self.touched[cell]
        event = access.event
        for read in touched.reads:
            if read == event or read in access.over:
                continue
            if not self._ordered(read, access, needs_seen=False):
                self._race(cell, read, "reads", event, "writes")
        write = touched.write
        # Whoever has read the bytes since has seen that write come to its end.
        strict = not touched.reads
        if write is not None and not self._ordered(write, access, needs_seen=strict):
            self._race(cell, write, "writes", event, "writes")
        touched.write, touched.reads = event, []

    def _race(self, cell: Cell, one: Event, did: str, other: Event, does: str) -> None:
        self.races[Race(one.place, other.place, one.call == other.call, cell[0])] = None
        place = other.place or one.place or cell[0]
        told = []
        for event, verb in ((one, did), (other, does)):
            who = "the user of the rank"
            if event.place is not None:
                at = event.place
                name = self.plan.ranks[at.rank].blocks[at.block].ops[at.step].name
                who = f"rank {at.rank} threadblock {at.block} operation {at.step} ({name})"
            told.append(f"{who} {verb}")
        rank, letter, at_ = cell
        name = {"i": "input", "o": "output", "u": "the buffer"}.get(letter, "scratch")
        chunk = at_ // self.parts
        fix = "put a nop between an operation and the signal or wait that orders it"
        if one.place is None or other.place is None:
            fix = "have ranks tell one another that the call has begun, and that it is over"
        self._tell(
            "race", f"{told[0]} chunk {chunk} of {name} on rank {rank}, {told[1]} it, and nothing"
            " orders them", place, fix,
        )  # fmt: skip

    # The user

    def _use(self, rank: int) -> None:
        """Have the user of a rank read the output of the last call and write the next input."""
        plan, call = self.plan.ranks[rank], self.call[rank]
        lanes = self.lanes[rank]
        for lane in lanes:
            lane.fence()
        own = self.user + rank
        done = np.maximum.reduce([lane.done for lane in lanes]) if lanes else self._zero()
        seen = np.maximum.reduce([lane.seen for lane in lanes]) if lanes else self._zero()
        # What the user has done is before what the user does, threadblocks or not.
        done, seen = done.copy(), seen.copy()
        done[own] = seen[own] = call
        access = Access(Event(own, call, call, None), done, seen, frozenset())
        wanted = None if self.outputs is None else self.outputs.wanted[rank]
        outputs = range(plan.output_chunks) if wanted is None else sorted(wanted)
        for chunk in outputs if call else ():
            for part in range(self.parts):
                place = chunk * self.parts + part
                cell = self._cell(rank, Buffer.OUTPUT, place, rank)
                self._read(cell, access)
                if wanted is not None:
                    self._check(cell, chunk, part, wanted[chunk], call - 1)
        for chunk in range(plan.output_chunks):
            for part in range(self.parts):
                cell = self._cell(rank, Buffer.OUTPUT, chunk * self.parts + part, rank)
                self.memory[cell] = UNDEFINED
        for place in range(plan.input_chunks * self.parts):
            cell = self._cell(rank, Buffer.INPUT, place, rank)
            self._write(cell, access)
            self.memory[cell] = ((rank, place + call * self.stride),)
        done, seen = done.copy(), seen.copy()
        done[own] = seen[own] = call + 1
        for lane in lanes:
            lane.later_done, lane.later_seen = done, seen
            lane.fence()

    def _zero(self) -> Clock:
        return np.zeros(self.user + self.plan.num_ranks, np.int32)

    def _check(self, cell: Cell, chunk: int, part: int, wanted: Value, call: int) -> None:
        found = self.memory.get(cell, UNDEFINED)
        first = part + call * self.stride
        named = tuple((rank, place * self.parts + first) for rank, place in wanted)
        if found == named:
            return
        touched = self.touched[cell].write
        place = None if touched is None else touched.place
        rank = cell[0]
        if found == UNDEFINED:
            text = f"chunk {chunk} of the output of rank {rank} is never written"
        else:
            text = (
                f"chunk {chunk} of the output of rank {rank} is {self._told(found)},"
                f" and should be {self._told(named)}"
            )
        self._tell("result", text, place or rank, "mend what is sent or added there")

    def _told(self, value: Value) -> str:
        named = [
            "something that was never written" if rank < 0
            else f"input {place % self.stride // self.parts} of rank {rank}"
            + (f" in call {place // self.stride + 1}" if place >= self.stride else "")
            for rank, place in value[:4]
        ]  # fmt: skip
        return " + ".join(named) + (f" and {len(value) - 4} more" if len(value) > 4 else "")

    # Threadblocks

    def _advance(self, rank: int, block: int) -> None:
        """Run a threadblock until it waits, or its call is over."""
        ops, call = self.ops[rank][block], self.call[rank]
        while self.at[rank][block] < len(ops):
            flat = ops[self.at[rank][block]]
            kind = flat.op.name
            step = _STEPS.get(kind, Run._move)
            if not step(self, flat):
                return
            if self.call[rank] != call:
                return
            self.at[rank][block] += 1
            self.blocked.pop((rank, block), None)
        self._end_call(rank)

    def _end_call(self, rank: int) -> None:
        """Begin the next call of a rank if all its threadblocks have ended this one."""
        ops = self.ops[rank]
        if any(at < len(own) for at, own in zip(self.at[rank], ops, strict=True)):
            return
        if self.call[rank] >= self.calls:
            return
        self.call[rank] += 1
        self._use(rank)
        if self.call[rank] < self.calls:
            self.at[rank] = [0] * len(ops)
            self.awake += [(rank, block) for block in range(len(ops))]
            if not any(ops):
                self._end_call(rank)

    def _wake(self, key: object) -> None:
        self.awake += sorted(self.waiting.pop(key, ()))

    def _sleep(self, flat: Flat, key: object, text: str) -> bool:
        who = flat.place.rank, flat.place.block
        self.waiting[key].add(who)
        self.blocked[who] = text
        return False

    def fence(self, flat: Flat) -> bool:
        """Go past a nop."""
        self.lanes[flat.place.rank][flat.place.block].fence()
        return True

    def barrier(self, flat: Flat) -> bool:
        """Meet the others at a barrier; tell whether all have come."""
        rank, block, _ = flat.place
        key = rank, flat.op.barrier
        met = self.met[key]
        if (rank, block) not in met:
            met.append((rank, block))
        if len(met) < flat.op.blocks:
            return self._sleep(
                flat, ("met", *key, block), f"{flat.op.blocks} threadblocks at barrier"
                f" {flat.op.barrier}, {len(met)} of which have come",
            )  # fmt: skip
        del self.met[key]
        lanes = [self.lanes[rank][one] for _, one in met]
        done = np.maximum.reduce([np.maximum(lane.done, lane.later_done) for lane in lanes])
        seen = np.maximum.reduce([np.maximum(lane.seen, lane.later_seen) for lane in lanes])
        for lane in lanes:
            done[lane.number] = seen[lane.number] = lane.step + 1
        for lane in lanes:
            lane.later_done, lane.later_seen = done, seen
            lane.fence()
        for _, other in met:
            if other != block:
                # It is past the barrier: its operation is over.
                self.at[rank][other] += 1
                self.blocked.pop((rank, other), None)
                self.waiting.pop(("met", *key, other), None)
                self.awake.append((rank, other))
        return True

    def _channels(self, flat: Flat) -> Iterator[tuple[int, str, int]]:
        rank, block, _ = flat.place
        kind = flat.op.channel_type
        for position in flat.op.channels:
            yield rank, kind, self.plan.ranks[rank].blocks[block].channels[kind][position]

    def _event(self, flat: Flat) -> Event:
        lane = self.lanes[flat.place.rank][flat.place.block]
        return Event(lane.number, lane.step, self.call[flat.place.rank], flat.place)

    def _push(self, flat: Flat, port: Lane) -> None:
        """Put something into the queue of a port channel."""
        lane = self.lanes[flat.place.rank][flat.place.block]
        last = self.pushed.get(port.number)
        if last is not None and last.place != flat.place and not lane.done[last.lane] > last.step:
            self._tell(
                "race", "two entries of the queue of a port channel are in no order", flat.place,
                "put a nop between them, or give each threadblock a channel of its own",
            )  # fmt: skip
        self.pushed[port.number] = self._event(flat)
        port.done = np.maximum(port.done, lane.done)
        port.seen = np.maximum(port.seen, lane.seen)

    def signal(self, flat: Flat) -> bool:
        """Signal on channels."""
        for channel in self._channels(flat):
            self._send_signal(flat, channel, relaxed=flat.op.name == "rlxsignal")
        return True

    def _send_signal(self, flat: Flat, channel: tuple[int, str, int], *, relaxed: bool) -> None:
        lane = self.lanes[flat.place.rank][flat.place.block]
        rank, kind, position = channel
        done, seen = lane.done, lane.seen
        if kind == "port":
            port = self.ports[rank, position]
            self._push(flat, port)
            done, seen, relaxed = port.done, port.seen, False
        there = self.partner.get(channel)
        if there is None:
            return
        own = self.signals[there]
        event = self._event(flat)
        if own:
            last = own[-1].event
            if last.lane != event.lane and not lane.done[last.lane] > last.step:
                self._tell(
                    "race", "two threadblocks signal on one channel, and nothing orders them",
                    flat.place, "give each a channel of its own",
                )  # fmt: skip
        own.append(Signal(done, None if relaxed else seen, event))
        self._wake(("signal", there))

    def wait(self, flat: Flat) -> bool:
        """Wait for a signal on each channel; tell whether they have come."""
        lane = self.lanes[flat.place.rank][flat.place.block]
        channels = list(self._channels(flat))
        for channel in channels:
            if len(self.signals[channel]) <= len(self.waited[channel]):
                rank, kind, position = channel
                peer = self.plan.ranks[rank].channels[kind][position].peer
                return self._sleep(flat, ("signal", channel), f"a signal of rank {peer}")
        for channel in channels:
            waited = self.waited[channel]
            event = self._event(flat)
            last = waited[-1] if waited else None
            if last is not None and not lane.done[last.lane] > last.step:
                self._tell(
                    "race", "two waits on one channel count in no order", flat.place,
                    "put a nop between them, or give each threadblock a channel of its own",
                )  # fmt: skip
            signal = self.signals[channel][len(waited)]
            waited.append(event)
            relaxed = flat.op.name == "rlxwait" and channel[1] == "memory"
            lane.learn(signal.done, None if relaxed else signal.seen)
        return True

    def acquire(self, flat: Flat) -> bool:
        """Take semaphores; tell whether they could be taken."""
        rank = flat.place.rank
        lane = self.lanes[rank][flat.place.block]
        for number in flat.op.semaphores:
            if not self.released[rank, number]:
                return self._sleep(flat, ("sem", rank, number), f"semaphore {number}")
        for number in flat.op.semaphores:
            taken = self.released[rank, number].popleft()
            self._in_turn(lane, flat, ("take", rank, number))
            # Where several take or give, nobody knows whose it was.
            if taken is not None and (rank, number) not in self.shared:
                lane.learn(taken.done, taken.seen)
        return True

    def _in_turn(self, lane: Lane, flat: Flat, what: tuple[str, int, int]) -> None:
        """Note who uses a semaphore, and whether the one before was ordered before it."""
        last = self.last.get(what)
        if last is not None and last.lane != lane.number and not lane.done[last.lane] > last.step:
            self.unordered.add(what[1:])
        self.last[what] = self._event(flat)

    def release(self, flat: Flat) -> bool:
        """Give semaphores back."""
        rank = flat.place.rank
        lane = self.lanes[rank][flat.place.block]
        for number in flat.op.semaphores:
            self._in_turn(lane, flat, ("give", rank, number))
            self.released[rank, number].append(Signal(lane.done, lane.seen, self._event(flat)))
            self._wake(("sem", rank, number))
        return True

    def nothing(self, flat: Flat) -> bool:
        """Go past an operation that does nothing."""
        del flat
        return True

    # Data

    def _move(self, flat: Flat) -> bool:
        """Do an operation on data, once the packets that it reads have come."""
        op, takes = flat.op, OPERATIONS[flat.op.name]
        if flat.parts > 1 and (takes.reads_packets >= 0 or takes.writes_packets >= 0):
            self._tell(
                "packet", f"{op.name} in a pipeline does the same packets in every iteration",
                flat.place, "take it out of the pipeline",
            )  # fmt: skip
            return True
        packet_from = takes.reads_packets if takes.reads_packets >= 0 else len(op.sources)
        rank = flat.place.rank
        lane = self.lanes[rank][flat.place.block]
        sources = [(self._range(flat, one), self._homes(flat, one)) for one in op.sources]
        came: list[Packet] = []
        for number, (places, homes) in enumerate(sources):
            if number < packet_from:
                continue
            for place in places:
                for home, buffer in homes:
                    key = self._cell(home, buffer, place, rank), self.call[rank]
                    if key not in self.packets:
                        return self._sleep(
                            flat, ("packet", key),
                            f"packet {place // self.parts} of its scratch buffer",
                        )  # fmt: skip
                    came.append(self.packets[key])
        done = lane.done
        for packet in {id(one.done): one for one in came}.values():
            done = np.maximum(done, packet.done)
        over = Counter(packet.transfer for packet in came if packet.transfer is not None)
        for (number, step, count), read in over.items():
            # All of it has come, so it is over, and so are those before it on the channel.
            if read == count and done[number] <= step:
                done = done.copy()
                done[number] = step + 1
        stores = Counter(packet.store for packet in came if packet.store is not None)
        lane.later_over |= {store[0] for store, read in stores.items() if read == store[3]}
        if came:
            lane.learn(done, None)
        access = Access(self._event(flat), done, lane.seen, lane.over)
        ports = [(rank, channel[2]) for channel in self._channels(flat) if channel[1] == "port"]
        if ports and op.channel_type == "port":
            self._transfer(flat, sources, ports, packet_from)
        elif op.name == "get":
            self._get(flat, access)
        else:
            self._store(flat, self._values(flat, sources, packet_from, access), access)
        return True

    def _get(self, flat: Flat, access: Access) -> None:
        """Do a get as the kernel does: with the offsets of source and target swapped."""
        for source, target in zip(flat.op.sources, flat.op.targets, strict=True):
            read = replace(source, index=target.index)
            write = replace(target, index=source.index)
            swapped = replace(flat, op=replace(flat.op, sources=(read,), targets=(write,)))
            pair = [(self._range(swapped, read), self._homes(swapped, read))]
            self._store(swapped, self._values(swapped, pair, 1, access), access)

    def _values(
        self, flat: Flat, sources: Sequence[tuple[range, list[tuple[int, Buffer]]]],
        packet_from: int, access: Access,
    ) -> list[list[Moved]]:  # fmt: skip
        """Read the sources, and return the values of each, with the accesses that led to them."""
        found = []
        for number, (places, homes) in enumerate(sources):
            values: list[Moved] = []
            for place in places:
                parts: list[Value] = []
                chain = {access.event}
                for home, buffer in homes:
                    cell = self._cell(home, buffer, place, flat.place.rank)
                    if number >= packet_from:
                        packet = self.packets[cell, self.call[flat.place.rank]]
                        chain |= packet.chain
                        value = packet.value
                        for half in (0, 1):
                            own = (home, cell[1], 2 * place + half)
                            write = self.touched[own].write
                            if write is not None and write != packet.writer:
                                # Somebody has not waited for this reader.
                                self._race(own, access.event, "reads", write, "writes")
                            self.touched[own].reads.append(access.event)
                    else:
                        self._read(cell, access)
                        value = self.memory.get(cell, UNDEFINED)
                    parts.append(value)
                    self.cells += 1
                values.append(Moved(self._sum(parts), frozenset(chain)))
            found.append(values)
        return found

    def _sum(self, parts: Sequence[Value]) -> Value:
        total = parts[0]
        for part in parts[1:]:
            key = total, part
            if key not in self.sums:
                self.sums[key] = (
                    UNDEFINED if UNDEFINED in (total, part) else tuple(sorted((*total, *part)))
                )
            total = self.sums[key]
        return total

    def _store(
        self, flat: Flat, values: Sequence[list[Moved]], access: Access,
        transfer: tuple[int, int, int] | None = None,
    ) -> None:  # fmt: skip
        """Write the targets of an operation, which may be a transfer of a port channel."""
        op, takes = flat.op, OPERATIONS[flat.op.name]
        packet_from = takes.writes_packets if takes.writes_packets >= 0 else len(op.targets)
        total: list[Moved] = []
        if takes.adds or len(values) != len(op.targets):
            total = [
                Moved(
                    self._sum([one.value for one in each]),
                    frozenset[Event]().union(*(one.chain for one in each)),
                )
                for each in zip(*values, strict=True)
            ]
        same = {
            (home, buffer, place)
            for source in op.sources[: 1 if takes.reads_packets == 0 else 0]
            for home, buffer in self._homes(flat, source)
            for place in self._range(flat, source)
        }  # fmt: skip
        for number, target in enumerate(op.targets):
            own = total or values[number]
            packet = number >= packet_from
            for home, buffer in self._homes(flat, target):
                for place, moved in zip(self._range(flat, target), own, strict=True):
                    self.cells += 1
                    cell = self._cell(home, buffer, place, flat.place.rank)
                    known = access._replace(chain=moved.chain)
                    if packet and (home, buffer, place) in same:
                        # What was read is written where it was: the flag and bytes are there.
                        continue
                    if not packet:
                        self._write(cell, known)
                        self.memory[cell] = moved.value
                        continue
                    for half in (0, 1):
                        room = (home, cell[1], 2 * place + half)
                        self._write(room, known)
                        self.memory[room] = UNDEFINED
                    key = cell, self.call[flat.place.rank]
                    if key in self.packets:
                        self._tell(
                            "packet", f"packet {place // self.parts} of rank {home} is written"
                            " twice in a call", flat.place, "give each its own place in scratch",
                        )  # fmt: skip
                    store = access.event, number, home, len(own)
                    self.packets[key] = Packet(
                        moved.value, access.event, access.done, moved.chain, transfer,
                        store if transfer is None else None,
                    )  # fmt: skip
                    self._wake(("packet", key))

    def _transfer(
        self, flat: Flat, sources: Sequence[tuple[range, list[tuple[int, Buffer]]]],
        ports: Sequence[tuple[int, int]], packet_from: int,
    ) -> None:  # fmt: skip
        """Have port channels move the operands of an operation, each its own."""
        op, lane = flat.op, self.lanes[flat.place.rank][flat.place.block]
        for number, target in enumerate(op.targets):
            port = self.ports[ports[min(number, len(ports) - 1)]]
            self._push(flat, port)
            event = Event(port.number, port.step, self.call[flat.place.rank], flat.place)
            access = Access(event, port.done, port.seen, lane.over)
            source = sources[number if len(sources) == len(op.targets) else 0]
            values = self._values(flat, [source], 0 if packet_from == 0 else 1, access)
            alone = replace(flat, op=replace(op, targets=(target,)))
            self._store(alone, values, access, (port.number, port.step, len(source[0])))
            port.step += 1
            port.done, port.seen = port.done.copy(), port.seen.copy()
            port.done[port.number] = port.seen[port.number] = port.step
        if op.name in ("pws", "pwsf"):
            for channel in self._channels(flat):
                self._send_signal(flat, channel, relaxed=False)
        if op.name == "pwsf":
            for key in ports:
                lane.learn(self.ports[key].done, self.ports[key].seen)

    # The end

    def _stuck(self) -> None:
        """Tell of threadblocks that never end."""
        if all(call >= self.calls for call in self.call):
            return
        some = sorted(self.blocked)
        for rank, block in some[:1]:
            flat = self.ops[rank][block][self.at[rank][block]]
            call = "" if not self.call[rank] else f" in call {self.call[rank] + 1}"
            more = "" if len(some) == 1 else f" ({len(some)} threadblocks wait)"
            self._tell(
                "deadlock", f"{flat.op.name} waits for {self.blocked[rank, block]}{call}{more}",
                flat.place, "add what it waits for, or move it before what waits for this one",
            )  # fmt: skip

    def _leftovers(self) -> None:
        """Tell of signals and semaphores that do not come out even."""
        for there in sorted({*self.signals, *self.waited}):
            sent, waited = len(self.signals[there]), len(self.waited[there])
            if sent != waited:
                rank, kind, position = there
                peer = self.plan.ranks[rank].channels[kind][position].peer
                last = self.signals[there][-1].event.place if sent else None
                self._tell(
                    "balance", f"{sent // self.calls} signals of rank {peer} to rank {rank} in a"
                    f" call, and {waited // self.calls} waits", last or rank,
                    "let there be a wait for each signal",
                )  # fmt: skip
        for (rank, number), left in self.released.items():
            first = self.plan.ranks[rank].semaphores[number]
            if len(left) != first:
                self._tell(
                    "balance", f"semaphore {number} of rank {rank} is {first} before"
                    f" {self.calls} calls and {len(left)} after them", rank,
                    "release it as often as it is acquired",
                )  # fmt: skip


_STEPS: Mapping[str, Callable[[Run, Flat], bool]] = {
    **dict.fromkeys(FENCES, Run.fence), "barrier": Run.barrier, "signal": Run.signal,
    "rlxsignal": Run.signal, "wait": Run.wait, "rlxwait": Run.wait, "flush": Run.nothing,
    "sem_acquire": Run.acquire, "sem_release": Run.release,
}  # fmt: skip
"""By operation, what runs it and tells whether it went on; all others move data."""


FOLLOWED = frozenset({"chunks"})
"""Rules of the structure that a plan may break, and be followed all the same."""


def is_plan(text: str | bytes) -> bool:
    """Tell whether a `text` is that of a JSON object, as plans are, and not of XML."""
    return text.lstrip()[:1] in ("{", b"{")


def judge_plan(plan: Plan, version: str = NEWEST, *, structure_only: bool = False) -> list[Finding]:
    """Return all that is wrong with a `plan`, for a `version`, of VERSIONS, the worst first.

    With `structure_only` no data and no waits are followed; nor are they where the parts of the
    plan are wrong.
    """
    findings = structure_findings(plan, version)
    if not structure_only and {one.rule for one in errors_of(findings)} <= FOLLOWED:
        findings += run_findings(plan)
    order = list(Severity)
    return sorted(findings, key=lambda finding: order.index(finding.severity))


def judge_text(
    text: str | bytes, version: str = NEWEST, *, file: str = "", structure_only: bool = False
) -> list[Finding]:
    """Return all that is wrong with the plan that a `text` says, as :func:`judge_plan` does.

    Errors are of a `file`; what can't be read is one finding, that it is rejected.
    """
    try:
        plan = read_plan(text if isinstance(text, str) else text.decode(), file=file)
    except UnicodeDecodeError as error:
        return [Finding(
            "refused", f"is not UTF-8: byte {error.start}", fix="save the file as UTF-8",
            severity=Severity.REJECTED,
        )]  # fmt: skip
    except (ProgramError, InputError) as error:
        named = f"{error.field}: {error.problem}" if error.field else error.problem
        return [Finding(
            "refused", named, fix=error.fix, severity=Severity.REJECTED, line=error.line
        )]  # fmt: skip
    return judge_plan(plan, version, structure_only=structure_only)

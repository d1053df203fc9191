"""Run a program on symbolic chunks: is the data right at the end, does it race or deadlock.

A value is the sorted tuple of the input chunks that were added up, (rank, offset) each; a chunk
that is in it twice was counted twice. The memory is that of one mode: in place, input and output
are one buffer.

Floating-point addition commutes but is not associative. So whether ranks get the same bits is asked
of other values: the trees of their additions, with the two sides of a node unordered. Trees are
numbered as they occur, equal ones alike.

**Data races** are conflicting accesses to one memory cell that nothing orders. Happens-before is
program order in a threadblock, dependences, and the k-th send of a connection before its k-th
receive. That a FIFO has few slots orders nothing. The check follows one run and keeps, for each
cell, the last write and the reads since; whoever comes next must know of them. When accesses are
unordered, some neighbouring pair of them is, so that finds a race if there is one. What
threadblocks know of each other are vector clocks, kept only while a later step needs them. First
without messages: a clock then has one number for each threadblock of its own rank, and what program
order and dependences order already is no race. Only ranks where that leaves something open are
looked at again with messages, as many of them at a time as fit the memory. Where sends post before
all wavefronts have read (LL on rccl, ``Runtime.open_sends``), a wait for one tells of the steps
before it only: the send itself is over when the next step of its threadblock is, or when its
message has been received. (Chunks that a fused step forwards while later ones of the same message
are still to come count as one.)

References
----------
C. Flanagan, S. N. Freund: FastTrack: efficient and precise dynamic race detection. PLDI 2009.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import islice, zip_longest

import numpy as np
from numpy.typing import NDArray

from taccl.collectives import COLLECTIVES, Collective
from taccl.msccl.expected import (
    UNDEFINED,
    Cell,
    Mode,
    Value,
    everything,
    expected_of,
    inputs_of,
    mode_of,
    result_findings,
    room_of,
    wrong_outputs,
)
from taccl.msccl.limits import check_limits
from taccl.msccl.program import (
    READS_SOURCE,
    WRITES_TARGET,
    Buffer,
    Finding,
    Op,
    Program,
    Slot,
    Step,
)
from taccl.msccl.run import (
    MAX_WORK,
    Place,
    Run,
    Safe,
    maximal_run,
    places,
    safe_size,
    standstill,
    work_of,
)
from taccl.msccl.runtimes import RUNTIMES

MAX_CLOCKS = 20_000_000
"""int32 numbers: 80 MB."""


Clock = NDArray[np.int32]
Access = tuple[int, int]
"""Step number and threadblock number."""


@dataclass(slots=True)
class _Cell:
    """Who touched a memory cell: the last write, and the last read of each threadblock since."""

    write: Access | None = None
    reads: dict[int, int] = field(default_factory=dict)


def find_races(run: Run, mode: Mode, *, open_sends: bool = False) -> list[Finding]:
    """Return races of `run`, a program's :func:`taccl.msccl.run.maximal_run`, at most 20.

    `mode` is how the call places its buffers; `open_sends`: sends post before all of their
    threadblock have read.
    """
    where = places(run)
    early = frozenset(  # the sends whose posts release some step
        step
        for step in run.released_by.values()
        if open_sends and run.blocks[where[step].block][1].steps[where[step].step].op is Op.SEND
    )
    blocks: dict[int, list[int]] = defaultdict(list)
    for number, (rank, _) in enumerate(run.blocks):
        blocks[rank].append(number)
    here = {number: place for of in blocks.values() for place, number in enumerate(of)}
    within = _Order(run, [run.released_by], here, early)
    widths = [len(blocks[rank]) for rank, _ in run.blocks]
    several = frozenset(rank for rank, of in blocks.items() if len(of) > 1)
    open_ = sorted({place.rank for place, _, _ in _unordered(within, widths, mode, several, where)})
    findings: list[Finding] = []
    for ranks in _slabs(run, open_):
        known = [number for number, (rank, _) in enumerate(run.blocks) if rank in ranks]
        column = {number: place for place, number in enumerate(known)}
        order = _Order(run, [run.released_by, run.sender], column, early)
        every = [len(known)] * len(run.blocks)
        for place, other, cell in _unordered(order, every, mode, ranks, where):
            findings.append(_race(run, place, where[other], cell, early=other in early))
            if len(findings) == MAX_FINDINGS:
                return findings
    return findings


@dataclass(frozen=True, slots=True)
class _Order:
    """What orders steps, and who has a place in the clocks.

    The steps of `run` are followed in its order; `before` leads from a step to one that has to be
    done before it. `column` is the place in a clock of every threadblock that others need to know
    of, and those that a step of `early` releases know nothing of it: it is not done then.
    """

    run: Run
    before: Sequence[Mapping[int, int]]
    column: Mapping[int, int]
    early: AbstractSet[int]


def _slabs(run: Run, ranks: Sequence[int]) -> Iterator[frozenset[int]]:
    """Yield sets of the ranks whose clocks fit into memory together."""
    if not ranks:
        return
    uses, kept, most = _uses([run.released_by, run.sender]), 0, 0  # clocks of finished steps
    for step in run.order:
        for before in (run.released_by.get(step), run.sender.get(step)):
            if before is not None:
                uses[before] -= 1
                kept -= uses[before] == 0
        kept += uses[step] > 0
        most = max(most, kept)
    widths = Counter(rank for rank, _ in run.blocks)
    room = MAX_CLOCKS // max(1, len(run.blocks) + most)
    slab: list[int] = []
    width = 0
    for rank in ranks:
        if slab and width + widths[rank] > room:
            yield frozenset(slab)
            slab, width = [], 0
        slab.append(rank)
        width += widths[rank]
    yield frozenset(slab)


def _uses(before: Sequence[Mapping[int, int]]) -> Counter[int]:
    """Return how many later steps need to know what a step knew at its end."""
    uses: Counter[int] = Counter()
    for earlier in before:
        uses.update(earlier.values())
    return uses


def _unordered(
    order: _Order,
    widths: Sequence[int],
    mode: Mode,
    ranks: AbstractSet[int],
    where: Sequence[Place],
) -> Iterator[tuple[Place, int, Cell]]:
    """Yield each access of some ranks, with an earlier step that conflicts, unordered, and where.

    `widths`: the numbers in the clock of every threadblock.
    """
    run, column = order.run, order.column
    memory: dict[tuple[int, Cell], _Cell] = {}
    for number, step_number, clock in _clocks(order, widths, where):
        rank, block = run.blocks[number]
        if rank not in ranks:
            continue
        place = where[step_number]
        for cell, writes in accesses(block.steps[place.step], rank, mode):
            state = memory.get((rank, cell))
            if state is None:
                state = memory[rank, cell] = _Cell()
            earlier = [] if state.write is None else [state.write]
            if writes:
                earlier += [(read, other) for other, read in state.reads.items()]
            for other, other_block in earlier:
                done = run.first[other_block] + int(clock[column[other_block]])
                if other_block != number and other >= done:
                    yield place, other, cell
            if writes:
                state.write, state.reads = (step_number, number), {}
            else:
                state.reads[number] = step_number


def _clocks(
    order: _Order, widths: Sequence[int], where: Sequence[Place]
) -> Iterator[tuple[int, int, Clock]]:
    """Yield threadblock, step and clock of every step in order; clock[c]: steps known done."""
    run, column = order.run, order.column
    uses = _uses(order.before)
    kept: dict[int, Clock] = {}
    clocks = [np.zeros(0, dtype=np.int32)] * len(run.blocks)
    for step in run.order:
        number = where[step].block
        clock = clocks[number]
        if not len(clock):
            clock = clocks[number] = np.zeros(widths[number], dtype=np.int32)
        for earlier in order.before:
            before = earlier.get(step)
            if before is not None:
                own = column.get(where[before].block)
                known = 0 if own is None else int(clock[own])
                np.maximum(clock, kept[before], out=clock)
                if own is not None and earlier is run.released_by and before in order.early:
                    clock[own] = max(known, where[before].step)
                uses[before] -= 1
                if uses[before] == 0:
                    del kept[before]
        yield number, step, clock
        if number in column:
            clock[column[number]] = where[step].step + 1
        if step in uses:
            kept[step] = clock.copy()


def accesses(step: Step, rank: int, mode: Mode) -> Iterator[tuple[Cell, bool]]:
    """Yield the memory cells that `step` of `rank` touches in `mode`, and whether it writes them.

    A copy of a cell onto itself only reads.
    """
    if step.op is Op.NOP:
        return
    sources, targets = (mode.cells(rank, slot, step.count) for slot in (step.source, step.target))
    for source, target in zip_longest(sources, targets):
        if source is not None:
            yield source, False
        if target is not None and (target != source or step.op is not Op.COPY):
            yield target, True


def _race(run: Run, place: Place, other: Place, cell: Cell, *, early: bool) -> Finding:
    ids = [run.blocks[spot.block][1].id for spot in (place, other)]
    buffer, offset = cell
    if early:
        return Finding(
            "open send",
            f"it may start while the send, step {other.step} of threadblock {ids[1]}, still reads"
            f" chunk {offset} of {_BUFFER_NAMES[buffer]}: a send of LL posts too early on rccl",
            place.rank, ids[0], place.step,
            "depend on a later step of that threadblock, such as a cpy, or use Simple or LL128",
        )  # fmt: skip
    return Finding(
        "race",
        f"nothing orders it and step {other.step} of threadblock {ids[1]}, and both use chunk"
        f" {offset} of {_BUFFER_NAMES[buffer]}",
        place.rank,
        ids[0],
        place.step,
        "make the later of them depend on the other",
    )


_BUFFER_NAMES = {
    "i": "the input",
    "o": "the output",
    "s": "the scratch",
    "user": "the buffer that is input and output",
}


MAX_FINDINGS = 20
"""Findings of one rule that are told: some rules are none for collectives that nobody knows."""


def judge(
    program: Program, runtime: str, collective: Collective | None = None, safe: Safe | None = None
) -> list[Finding]:
    """Return all that is wrong with `program`; empty is what it takes to be written.

    Limits of `runtime`, data and races in every claimed mode, and deadlocks at any size of the
    declared range: larger sizes cut steps into more messages, of which a connection holds few.
    `collective` is what it should do, as for :func:`interpret`; `safe` what
    :func:`taccl.msccl.run.safe_size` says of the program's range, where that is known.
    """
    findings = check_limits(program, runtime)
    run = maximal_run(program)
    open_sends = program.protocol in RUNTIMES[runtime].open_sends
    for in_place, claimed in ((True, program.in_place), (False, program.out_of_place)):
        if claimed:
            findings += interpret(
                program, in_place=in_place, collective=collective, open_sends=open_sends, run=run
            )
    if work_of(program) > MAX_WORK or any(finding.rule == "deadlock" for finding in findings):
        return findings
    safe = safe or safe_size(program, runtime, program.min_bytes, program.max_bytes)
    if safe.stuck is None:
        return findings
    above = f"above {safe.size} bytes in all: " if safe.size else ""
    return [*findings, replace(safe.stuck, explanation=f"{above}{safe.stuck.explanation}")]


def interpret(
    program: Program,
    *,
    in_place: bool,
    collective: Collective | None = None,
    open_sends: bool = False,
    run: Run | None = None,
) -> list[Finding]:
    """Run a program once in one mode and return all that is wrong with what it does.

    `in_place` is the mode: whether input and output of `program` lie in one buffer. `collective` is
    what it should do; None: what its name and its chunk count say, with the root that
    :func:`find_root` finds. `open_sends` is as for :func:`find_races`, and `run` the program's
    :func:`taccl.msccl.run.maximal_run`, which is the same in both modes.
    """
    expected = collective or expected_of(program, find_root(program) or 0)
    if isinstance(expected, Finding):
        return [expected]
    if work_of(program) > MAX_WORK:
        problem = "the steps move too many chunks to follow them one by one"
        return [Finding("size", problem, fix="lower --chunks or --instances")]
    machine = _follow(program, expected, in_place=in_place, run=run)
    run, mode = machine.run, machine.mode
    findings = [
        *machine.findings,
        *([standstill(run)] if run.stuck else _leftovers(run)),
        *find_races(run, mode, open_sends=open_sends),
    ]
    if not run.stuck:
        wrong = wrong_outputs(machine.memory, mode, expected)
        findings += result_findings(run, mode, list(islice(wrong, MAX_FINDINGS)))
    words = "in place" if in_place else "out of place"
    return [replace(finding, explanation=f"{words}: {finding.explanation}") for finding in findings]


def has_open_sends(program: Program) -> bool:
    """Tell whether a step could overwrite what a send of LL still reads, on rccl.

    Programs that are too large to follow count as such.
    """
    if work_of(program) > MAX_WORK:
        return True
    run = maximal_run(program)
    modes = (
        mode_of(program.collective, program.num_ranks, program.chunks_per_loop, in_place=in_place)
        for in_place, claimed in ((True, program.in_place), (False, program.out_of_place))
        if claimed
    )
    return any(find_races(run, mode, open_sends=True) for mode in modes)


def count_wrong(program: Program, *, in_place: bool) -> int | None:
    """Return how many chunks of all outputs of `program` are wrong in the end.

    `in_place`: input and output lie in one buffer. None: that can't be told.
    """
    expected = expected_of(program, find_root(program) or 0)
    if isinstance(expected, Finding) or work_of(program) > MAX_WORK:
        return None
    machine = _follow(program, expected, in_place=in_place)
    if machine.run.stuck:
        return None
    return sum(1 for _ in wrong_outputs(machine.memory, machine.mode, expected))


def order_findings(program: Program) -> Iterator[Finding]:
    """Yield the chunks of an all-reduce whose additions differ between ranks.

    Other collectives leave a sum on one rank only and are consistent. A `program` that can't end,
    or ends with wrong data, has findings of its own; here it counts as it is.
    """
    if program.collective != "allreduce" or program.chunks_per_loop < 1:
        return
    trees: dict[tuple[Value, Value], Value] = {}

    def join(one: Value, two: Value) -> Value:
        return trees.setdefault((min(one, two), max(one, two)), ((_TREE, len(trees)),))

    machine = _follow(
        program, everything(program), in_place=not program.out_of_place,
        add=lambda *terms: reduce(join, terms),
    )  # fmt: skip
    shown = 0
    for chunk in range(program.chunks_per_loop):
        found: dict[Value, list[int]] = {}
        for rank in range(program.num_ranks):
            cell = machine.mode.cell(rank, Slot(Buffer.OUTPUT, chunk))
            found.setdefault(machine.memory.get((rank, cell), UNDEFINED), []).append(rank)
        if len(found) > 1 and shown < MAX_FINDINGS:
            shown += 1
            first, other = list(found.values())[:2]
            yield Finding(
                "order", f"output {chunk} is added up in another order on gpu {other[0]} than on"
                f" gpu {first[0]}", other[0],
                fix="reduce every chunk in one place and send the sum on",
            )  # fmt: skip


_TREE = -2
"""In place of the rank of an input: what follows is the number of a tree of additions."""


def _add(*terms: Value) -> Value:
    """Return the sum of values."""
    if len(terms) == 1:
        return terms[0]
    if UNDEFINED in terms:
        return UNDEFINED
    return tuple(sorted(part for term in terms for part in term))


def _follow(
    program: Program,
    expected: Collective,
    *,
    in_place: bool,
    run: Run | None = None,
    add: Callable[..., Value] = _add,
) -> "_Machine":
    """Run a program once, from the inputs of a collective."""
    mode = mode_of(
        program.collective, program.num_ranks, program.chunks_per_loop, in_place=in_place
    )
    run = run or maximal_run(program)
    machine = _Machine(
        run, mode, inputs_of(expected, mode), room_of(expected, mode),
        [size > 0 for size in expected.output_sizes], add,
    )  # fmt: skip
    where = places(run)
    for number in run.order:
        _step(machine, where[number], number)
    return machine


def find_root(program: Program) -> int | None:
    """Return the rank that a broadcast comes from or a reduction goes to, as no file says it.

    Each rank is given an input. The root of a broadcast is the rank whose input most outputs
    have in the end, that of a reduction the one whose output has most inputs in it; of equals
    the first. None for collectives without a root, and for what can't be followed.
    """
    kind = COLLECTIVES.get(program.collective)
    if kind is None or not kind.has_root or isinstance(expected_of(program), Finding):
        return None
    if work_of(program) > MAX_WORK:
        return None
    machine = _follow(program, everything(program), in_place=not program.out_of_place)
    votes = dict.fromkeys(range(program.num_ranks), 0)
    for rank in range(program.num_ranks):
        for chunk in range(program.chunks_per_loop):
            cell = machine.mode.cell(rank, Slot(Buffer.OUTPUT, chunk))
            value = machine.memory.get((rank, cell), UNDEFINED)
            if value is UNDEFINED:
                continue
            if program.collective == "reduce":
                votes[rank] += len(set(value))
            elif len(value) == 1 and value[0][0] in votes:
                votes[value[0][0]] += 1
    return max(votes, key=lambda rank: votes[rank])


@dataclass(slots=True)
class _Machine:
    """Memory, the room in buffers, who is to get something, sums, messages, and what was found."""

    run: Run
    mode: Mode
    memory: dict[tuple[int, Cell], Value]
    room: Sequence[Mapping[str, int]]
    writable: Sequence[bool]
    add: Callable[..., Value]
    sent: dict[int, list[Value]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    told: Counter[str] = field(default_factory=Counter)

    def report(self, rule: str, explanation: str, place: Place, fix: str | None = None) -> None:
        """Record a finding at a step, unless the rule has many already."""
        self.told[rule] += 1
        if self.told[rule] <= MAX_FINDINGS:
            _, block = self.run.blocks[place.block]
            self.findings.append(Finding(rule, explanation, place.rank, block.id, place.step, fix))

    def read(self, place: Place, cells: Sequence[Cell]) -> list[Value]:
        """Return the values of cells; undefined ones are a finding."""
        values = [self.memory.get((place.rank, cell), UNDEFINED) for cell in cells]
        for cell, value in zip(cells, values, strict=True):
            if (place.rank, cell) not in self.memory:
                self.report(
                    "undefined", f"reads chunk {cell[1]} of buffer {cell[0]}, which nothing wrote",
                    place, "receive or copy something there first",
                )  # fmt: skip
                break
            if value is UNDEFINED:
                break
        return values


def _step(machine: _Machine, place: Place, number: int) -> None:
    """Do what one step does to memory and messages."""
    step = machine.run.blocks[place.block][1].steps[place.step]
    if step.op is Op.NOP or step.count == 0:
        return
    sources = machine.mode.cells(place.rank, step.source, step.count)
    targets = machine.mode.cells(place.rank, step.target, step.count)
    _check_operands(machine, step, place, (sources, targets))
    if step.op is Op.COPY and sources == targets:
        machine.read(place, sources)
        return
    parts = [machine.read(place, sources)] if sources else []
    if step.receives:
        message = machine.sent[machine.run.sender[number]]
        if len(message) != step.count:
            machine.report(
                "count", f"receives {step.count} chunks, and its message has {len(message)}",
                place, "give both ends of a message one count",
            )  # fmt: skip
        parts.append(message)
    if step.op is Op.REDUCE:
        parts.append(machine.read(place, targets))
    values = [machine.add(*terms) for terms in zip(*parts, strict=False)]
    for cell, value in zip(targets, values, strict=False):
        machine.memory[place.rank, cell] = value
    if step.sends:
        machine.sent[number] = values


def _check_operands(
    machine: _Machine, step: Step, place: Place, cells: tuple[list[Cell], list[Cell]]
) -> None:
    sources, targets = cells
    if (step.op in READS_SOURCE and not sources) or (step.op in WRITES_TARGET and not targets):
        machine.report("operands", f"{step.op.value} of no chunk", place, "give slots and a count")
    room = machine.room[place.rank]
    if not machine.mode.in_place and any(buffer == "i" for buffer, _ in targets):
        machine.report(
            "input", "writes the input buffer", place, "write the output or scratch instead"
        )
    if not machine.writable[place.rank] and any(buffer == "user" for buffer, _ in targets):
        machine.report(
            "input", "writes the buffer of a rank that is to get nothing", place,
            "write scratch instead",
        )  # fmt: skip
    # Element by element, everything but re may work where it reads; shifted, data is lost.
    harmless = step.op is not Op.REDUCE and sources == targets
    if not harmless and not set(sources).isdisjoint(targets):
        machine.report("overlap", "source and target overlap", place, "use scratch for one of them")
    for buffer, offset in (*sources, *targets):
        if not 0 <= offset < room.get(buffer, offset + 1):
            machine.report(
                "outside", f"uses chunk {offset} of buffer {buffer}, and a call has only"
                f" {room.get(buffer, 0)}", place, "use scratch for what the call has no"
                " room for",
            )  # fmt: skip
            break


def _leftovers(run: Run) -> Iterator[Finding]:
    where = places(run) if run.left else []
    for (_, dst, channel), senders in run.left.items():
        place = where[senders[0]]
        lost = "a message is" if len(senders) == 1 else f"{len(senders)} messages are"
        yield Finding(
            "leftover", f"{lost} never received by gpu {dst} on channel {channel}", place.rank,
            run.blocks[place.block][1].id, place.step, "receive every message that is sent",
        )  # fmt: skip

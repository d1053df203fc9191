"""Data races: conflicting accesses to one memory cell that nothing orders.

Happens-before is program order in a threadblock, dependences, and the k-th send of a connection
before its k-th receive. That a FIFO has few slots orders nothing. The check follows one run and
keeps, for each cell, the last write and the reads since; whoever comes next must know of them.
When accesses are unordered, some neighbouring pair of them is, so that finds a race if there is
one. What threadblocks know of each other are vector clocks, kept only while a later step needs
them. First without messages: a clock then has one number for each threadblock of its own rank, and
what program order and dependences order already is no race. Only ranks where that leaves something
open are looked at again with messages, as many of them at a time as fit the memory. Where sends
post before all wavefronts have read (LL on rccl, ``Runtime.open_sends``), a wait for one tells of
the steps before it only: the send itself is over when the next step of its threadblock is, or when
its message has been received. (Chunks that a fused step forwards while later ones of the same
message are still to come count as one.)

References
----------
C. Flanagan, S. N. Freund: FastTrack: efficient and precise dynamic race detection. PLDI 2009.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from taccl.msccl.expected import Cell, Mode
from taccl.msccl.program import Finding, Op, Slot, Step
from taccl.msccl.run import Place, Run, places

MAX_CLOCKS = 20_000_000
"""int32 numbers: 80 MB."""

MAX_FINDINGS = 20

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
    for index in range(step.count if step.op is not Op.NOP else 0):
        source = target = None
        if step.source is not None:
            source = mode.cell(rank, Slot(step.source.buffer, step.source.offset + index))
            yield source, False
        if step.target is not None:
            target = mode.cell(rank, Slot(step.target.buffer, step.target.offset + index))
            if target != source or step.op is not Op.COPY:
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

"""What each step has to wait for in other threadblocks of its rank, without what is implied.

Two steps that touch one memory cell, one of them writing, keep the order of the moves in every
claimed mode (aliased cells included). So do, in the orders ``ports`` and ``paced``, the sends of
one rank that share a resource edge. In the order ``paced`` a send also waits for the last thing
that the schedule has its rank finish before it, so that it does not get to a port which ranks share
before its turn: XML carries no order across ranks. What follows anyway from program order, from
messages and from other dependences is dropped: positions only grow, so a dependence covers all
that its target had waited for.

Up to MAX_CLOCKS numbers of memory, "follows anyway" is decided exactly, by vector clocks over all
threadblocks; above, only by the threadblocks of one rank, without messages.
"""

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from taccl.msccl.aliasing import Cell, Mode
from taccl.msccl.blocks import Block
from taccl.msccl.buffers import Move
from taccl.msccl.order import Message
from taccl.msccl.program import Op, Slot, Step, StepRef
from taccl.topology import Topology

MAX_CLOCKS = 20_000_000
"""int32 numbers: 80 MB."""

NOP = Step(Op.NOP, count=0)

ORDERS = ("ports", "paced", "free")
"""How closely sends keep the schedule's order beyond what the data needs."""


@dataclass(slots=True)
class _Memory:
    """Who touched a cell last, in one mode: (rank, cell) to moves."""

    mode: Mode
    writer: dict[tuple[int, Cell], int] = field(default_factory=dict)
    readers: dict[tuple[int, Cell], dict[int, int]] = field(
        default_factory=lambda: defaultdict(dict)
    )

    def touch(self, number: int, move: Move, block: int) -> Iterator[int]:
        """Record a move and yield the moves that it must follow."""
        for index in range(move.chunks):
            source = self._cell(move.rank, move.src, index)
            if source is not None:
                yield from self._read(source, number, block)
            target = self._cell(move.rank, move.dst, index)
            if target is not None and target != source:
                yield from self._write(target, number)

    def _cell(self, rank: int, slot: Slot | None, index: int) -> tuple[int, Cell] | None:
        if slot is None:
            return None
        return rank, self.mode.cell(rank, Slot(slot.buffer, slot.offset + index))

    def _read(self, cell: tuple[int, Cell], number: int, block: int) -> Iterator[int]:
        if cell in self.writer:
            yield self.writer[cell]
        self.readers[cell][block] = number

    def _write(self, cell: tuple[int, Cell], number: int) -> Iterator[int]:
        if cell in self.writer:
            yield self.writer[cell]
        yield from self.readers.pop(cell, {}).values()
        self.writer[cell] = number


@dataclass(slots=True)
class _Ports:
    """The last send of every rank on every resource edge."""

    messages: Sequence[Message]
    topology: Topology
    last: dict[tuple[int, int], int] = field(default_factory=dict)

    def use(self, number: int, move: Move) -> Iterator[int]:
        """Record a send and yield the sends before it on its edges."""
        if move.op is not Op.SEND or move.message is None:
            return
        for edge in self.topology.links.edges_of(self.messages[move.message].link):
            if self.topology.edges[edge].beta is not None:
                if (move.rank, edge) in self.last:
                    yield self.last[move.rank, edge]
                self.last[move.rank, edge] = number


@dataclass(slots=True)
class _Pace:
    """When moves are over in the schedule, and for every rank which are over when."""

    messages: Sequence[Message]
    ends: list[int] = field(default_factory=list)
    over: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))

    def record(self, number: int, move: Move, follows: Iterable[int]) -> Iterator[int]:
        """Record a move and yield, for a send, the last move that its start comes after.

        Nothing where one of ``follows`` ends as late.
        """
        message = None if move.message is None else self.messages[move.message]
        over = self.over[move.rank]
        if message is not None and move.op is Op.SEND:
            before = bisect_right(over, (message.start, number))
            if before:
                end, last = over[before - 1]
                if end > max((self.ends[other] for other in follows), default=0):
                    yield last
        end = 0
        if message is not None:
            end = message.released if move.op is Op.SEND else message.end
        self.ends.append(end)
        insort(over, (end, number))


@dataclass(slots=True)
class _Clocks:
    """How far every threadblock is known to be when a move starts.

    Parameters
    ----------
    seen
        Row m: for every column, how many moves of its threadblock precede the end of move m.
    column
        Of every threadblock.
    owner, place
        Threadblock of every move, and position among its moves.
    messages
        Whether knowledge travels with messages.
    """

    seen: NDArray[np.int32]
    column: list[int]
    owner: list[int]
    place: list[int]
    messages: bool
    last: dict[int, int] = field(default_factory=dict)
    sent: dict[int, int] = field(default_factory=dict)

    def advance(self, number: int, move: Move, others: Iterable[int]) -> tuple[int, ...]:
        """Record a move and return those of ``others`` that nothing else implies."""
        block, row = self.owner[number], self.seen[number]
        if block in self.last:
            row[:] = self.seen[self.last[block]]
        if self.messages and move.op is Op.RECV and move.message is not None:
            np.maximum(row, self.seen[self.sent[move.message]], out=row)
        kept = []
        for other in sorted(others, reverse=True):
            if row[self.column[self.owner[other]]] <= self.place[other]:
                kept.append(other)
                np.maximum(row, self.seen[other], out=row)
        row[self.column[block]] = self.place[number] + 1
        self.last[block] = number
        if move.op is Op.SEND and move.message is not None:
            self.sent[move.message] = number
        return tuple(sorted(kept))


def find_dependences(
    moves: Sequence[Move],
    blocks: Sequence[Block],
    modes: Iterable[Mode],
    messages: Sequence[Message],
    topology: Topology,
    order: str,
) -> list[tuple[int, ...]]:
    """Return for every move the moves of other threadblocks that it has to wait for.

    ``order`` is one of ORDERS.
    """
    clocks = _start_clocks(len(moves), blocks)
    owner = clocks.owner
    memories = [_Memory(mode) for mode in modes]
    ports = None if order == "free" else _Ports(messages, topology)
    pace = None if order != "paced" else _Pace(messages)
    result = []
    for number, move in enumerate(moves):
        follows: set[int] = set()
        for memory in memories:
            follows.update(memory.touch(number, move, owner[number]))
        if ports is not None:
            follows.update(ports.use(number, move))
        if pace is not None:
            follows.update(pace.record(number, move, follows))
        others = [earlier for earlier in follows if owner[earlier] != owner[number]]
        result.append(clocks.advance(number, move, others))
    return result


def _start_clocks(count: int, blocks: Sequence[Block]) -> _Clocks:
    owner, place = [0] * count, [0] * count
    for number, block in enumerate(blocks):
        for position, move in enumerate(block.moves):
            owner[move], place[move] = number, position
    exact = count * len(blocks) <= MAX_CLOCKS
    column = list(range(len(blocks)))
    used: dict[int, int] = defaultdict(int)
    if not exact:
        for number, block in enumerate(blocks):
            column[number] = used[block.rank]
            used[block.rank] += 1
    seen = np.zeros((count, max(column, default=0) + 1), dtype=np.int32)
    return _Clocks(seen, column, owner, place, exact)


def write_steps(
    moves: Sequence[Move], blocks: Sequence[Block], dependences: Sequence[tuple[int, ...]]
) -> list[tuple[Step, ...]]:
    """Return the steps of every threadblock; blocks of a rank are numbered in their order.

    All dependences of a step but one go on nops before it. Every ``re`` follows its own receive
    or a ``re`` with another target, so the parser's fusion of reductions never applies.
    """
    refs = _number_steps(len(moves), blocks, dependences)
    awaited = {target for needs in dependences for target in needs}
    result = []
    for block in blocks:
        steps: list[Step] = []
        for number in block.moves:
            move = moves[number]
            needs = sorted(refs[target] for target in dependences[number])
            steps += [replace(NOP, depends=need) for need in needs[:-1]]
            last = needs[-1] if needs else None
            posts = number in awaited
            steps.append(Step(move.op, move.src, move.dst, move.chunks, last, posts))
        result.append(tuple(steps))
    return result


def _number_steps(
    count: int, blocks: Sequence[Block], dependences: Sequence[tuple[int, ...]]
) -> list[StepRef]:
    """Return threadblock id and position of every move, nops counted."""
    refs = [StepRef(0, 0)] * count
    ids: dict[int, int] = defaultdict(int)
    for block in blocks:
        position = 0
        for move in block.moves:
            position += max(0, len(dependences[move]) - 1)
            refs[move] = StepRef(ids[block.rank], position)
            position += 1
        ids[block.rank] += 1
    return refs

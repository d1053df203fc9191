"""What each step has to wait for in other threadblocks of its rank, without what is implied.

Two steps that touch one memory cell, one of them writing, keep the order of the moves in every
claimed mode (aliased cells included). So do, in the orders ``ports`` and ``paced``, the sends of
one rank share a resource edge. XML carries no order across ranks, so a send may get to a port that
ranks share before its turn. In the order ``paced`` every send, and in the others every send that is
named, waits for the last thing that the schedule has its rank finish before it.

What follows anyway from program order, from messages and from other dependences is dropped:
positions only grow, so a dependence covers all that its target had waited for.

Where sends post before they have read all (LL on rccl, ``Runtime.open_sends``), no step waits for
one. Who would overwrite what a send reads waits for a copy of its first chunk to scratch, right
after it in its threadblock: a copy ends with a barrier. What only keeps turns does without.

Up to MAX_CLOCKS numbers of memory, "follows anyway" is decided exactly, by vector clocks over all
threadblocks; above, only by the threadblocks of one rank, without messages.

A move of many chunks touches as many cells, those of one rank in one mode, but most moves of a
schedule read and write what other moves did as a whole. So neighbouring cells are joined to parts
that every move touches all of, or nothing, and the passes that ask who touched what look at parts.
"""

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import itemgetter
from types import MappingProxyType

import numpy as np

from taccl.lowering.blocks import Block, Clocks
from taccl.lowering.draft import Draft, Message, Move, Parts, find_parts
from taccl.msccl.program import Op, Step, StepRef
from taccl.topology.graph import Topology
from taccl.units import Time

MAX_CLOCKS = 20_000_000
"""int32 numbers: 80 MB."""

NOP = Step(Op.NOP, count=0)

NOTHING_HELD: Mapping[int, Time] = MappingProxyType({})

ORDERS = ("ports", "paced", "free")
"""How closely sends keep the schedule's order beyond what the data needs."""


@dataclass(slots=True)
class _Memory:
    """Who touched a part of memory last: the move that wrote it, and those that read it since.

    Readers are by threadblock: of each, the last one.
    """

    parts: Parts
    writer: dict[int, int] = field(default_factory=dict)
    readers: dict[int, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))

    def touch(self, number: int, move: Move, block: int) -> set[int]:
        """Record a move and return the moves that it must follow."""
        found: set[int | None] = set()
        for source, target in self.parts.of(number):
            for part in source:
                found.add(self.writer.get(part))
                self.readers[part][block] = number
            if move.op is Op.COPY and source == target:
                continue
            for part in target:
                found.add(self.writer.get(part))
                found.update(self.readers.pop(part, {}).values())
                self.writer[part] = number
        return {other for other in found if other is not None and other != number}


@dataclass(slots=True)
class _Ports:
    """The last send of every rank on every resource edge."""

    messages: Sequence[Message]
    topology: Topology
    last: dict[tuple[int, int], int] = field(default_factory=dict)

    def use(self, number: int, move: Move) -> Iterator[int]:
        """Record a send and yield the sends before it on its edges."""
        if move.sent is None:
            return
        for edge in self.topology.links.edges_of(self.messages[move.sent].link):
            if self.topology.edges[edge].beta is not None:
                if (move.rank, edge) in self.last:
                    yield self.last[move.rank, edge]
                self.last[move.rank, edge] = number


@dataclass(slots=True)
class _Pace:
    """When moves are over in the schedule, and for every rank which are over when.

    ``held`` maps messages to the time after which they are to start; None: all wait their turn.
    """

    messages: Sequence[Message]
    held: Mapping[int, Time] | None
    ends: list[Time] = field(default_factory=list)
    over: dict[int, list[tuple[Time, int]]] = field(default_factory=lambda: defaultdict(list))

    def record(self, number: int, move: Move, follows: Iterable[int]) -> Iterator[int]:
        """Record a move and yield, for a send to be held back, the move that its turn comes after.

        That is the last one over before its start. Where this is too early, it is the first one
        that is over late enough, if it is over by the time at which the message would be. Nothing
        where one of ``follows`` ends as late.
        """
        end = 0
        if move.sent is not None:
            end = self.messages[move.sent].released
            natural = max((self.ends[other] for other in follows), default=0)
            yield from self._turn(move.rank, move.sent, natural)
        elif move.message is not None:
            end = self.messages[move.message].end
        self.ends.append(end)
        insort(self.over[move.rank], (end, number))

    def _turn(self, rank: int, number: int, natural: Time) -> Iterator[int]:
        floor = natural if self.held is None else self.held.get(number)
        if floor is None:
            return
        over = self.over[rank]
        message = self.messages[number]
        last = bisect_right(over, message.start, key=itemgetter(0)) - 1
        if last >= 0 and over[last][0] > max(floor, natural):
            yield over[last][1]
        elif self.held is not None and natural <= floor:
            late = bisect_right(over, floor, key=itemgetter(0))
            if late < len(over) and over[late][0] <= 2 * message.released - message.start:
                yield over[late][1]


def find_dependences(
    draft: Draft,
    blocks: Sequence[Block],
    order: str,
    held: Mapping[int, Time] = NOTHING_HELD,
    *,
    open_sends: bool = False,
) -> tuple[list[tuple[int, ...]], Clocks]:
    """Return for every move the moves of other threadblocks that it has to wait for.

    With them comes what every move knows.

    `draft` has the moves, and `blocks` are threadblocks with the positions of theirs. `order` is
    one of ORDERS; messages of `held` are held back in any order, each until after its time. With
    `open_sends`, no move waits for a send, but for the copy after it.
    """
    clocks = _start_clocks(len(draft.moves), blocks)
    owner = clocks.owner
    moves = draft.moves
    over = {
        send: after
        for block in blocks
        for send, after in pairwise(block.moves)
        if open_sends
        and moves[send].op is Op.SEND
        and moves[after].op is Op.COPY
        and after == send + 1
    }
    if open_sends:
        sends = (number for number, move in enumerate(draft.moves) if move.op is Op.SEND)
        clocks.bare = frozenset(number for number in sends if number not in over)
    memory = _Memory(find_parts(draft.moves, draft.modes))
    ports = None if order == "free" else _Ports(draft.messages, draft.schedule.topology)
    pace = _Pace(draft.messages, None if order == "paced" else held)
    result = []
    for number, move in enumerate(draft.moves):
        needed = memory.touch(number, move, owner[number])
        turns = set(ports.use(number, move)) if ports is not None else set()
        turns.update(pace.record(number, move, needed | turns))
        follows = needed | (turns - clocks.bare)
        others = [
            over.get(earlier, earlier) for earlier in follows if owner[earlier] != owner[number]
        ]
        result.append(clocks.advance(number, move, others))
    return result, clocks


def _start_clocks(count: int, blocks: Sequence[Block]) -> Clocks:
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
    return Clocks(seen, column, owner, place, exact)


def write_steps(
    moves: Sequence[Move], blocks: Sequence[Block], dependences: Sequence[tuple[int, ...]]
) -> list[tuple[Step, ...]]:
    """Return the steps of every threadblock; ``blocks`` of a rank are numbered in their order.

    ``moves`` are in one legal order, and each waits for its ``dependences`` in other threadblocks.
    All of these but one go on nops before the step. Every ``re`` follows its own receive or a
    ``re`` with another target, so the parser's fusion of reductions never applies.
    """
    refs = [StepRef(0, 0)] * len(moves)
    ids: dict[int, int] = defaultdict(int)
    for block in blocks:
        position = 0
        for number in block.moves:
            position += max(0, len(dependences[number]) - 1)
            refs[number] = StepRef(ids[block.rank], position)
            position += 1
        ids[block.rank] += 1
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

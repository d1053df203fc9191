"""Whether all ranks of an all-reduce get the same bits: the same additions in the same order.

Floating-point addition commutes but is not associative. So a value is the tree of its additions,
with the two sides of a node unordered; trees are numbered as they occur, equal ones alike. Ranks
agree on a chunk when they end with one number.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from taccl.msccl.expected import Cell, Mode, mode_of
from taccl.msccl.program import Buffer, Finding, Op, Program, Slot, Step
from taccl.msccl.run import Place, Run, maximal_run, places

MAX_FINDINGS = 20
NOTHING = -1
"""The tree of memory that nobody wrote."""


@dataclass(slots=True)
class _Trees:
    """Memory and messages as numbers of trees."""

    run: Run
    mode: Mode
    memory: dict[tuple[int, Cell], int] = field(default_factory=dict)
    sent: dict[int, list[int]] = field(default_factory=dict)
    sums: dict[tuple[int, int], int] = field(default_factory=dict)
    count: int = 0

    def leaf(self) -> int:
        """Return a tree of one input chunk."""
        self.count += 1
        return self.count - 1

    def add(self, one: int, two: int) -> int:
        """Return the tree of a sum."""
        pair = (min(one, two), max(one, two))
        if pair not in self.sums:
            self.sums[pair] = self.leaf()
        return self.sums[pair]

    def read(self, rank: int, slot: Slot | None, count: int) -> list[int]:
        """Return the trees of an operand's chunks."""
        cells = self.mode.cells(rank, slot, count)
        return [self.memory.get((rank, cell), NOTHING) for cell in cells]


def order_findings(program: Program) -> Iterator[Finding]:
    """Yield the chunks of an all-reduce whose additions differ between ranks.

    Other collectives leave a sum on one rank only and are consistent. A program that can't end,
    or ends with wrong data, has findings of its own; here it counts as it is.
    """
    if program.collective != "allreduce":
        return
    in_place = not program.out_of_place
    mode = mode_of(
        program.collective, program.num_ranks, program.chunks_per_loop, in_place=in_place
    )
    trees = _Trees(maximal_run(program), mode)
    for rank in range(program.num_ranks):
        for chunk in range(program.chunks_per_loop):
            trees.memory[rank, mode.cell(rank, Slot(Buffer.INPUT, chunk))] = trees.leaf()
    where = places(trees.run)
    for number in trees.run.order:
        _step(trees, where[number], number)
    shown = 0
    for chunk in range(program.chunks_per_loop):
        found: dict[int, list[int]] = {}
        for rank in range(program.num_ranks):
            cell = mode.cell(rank, Slot(Buffer.OUTPUT, chunk))
            found.setdefault(trees.memory.get((rank, cell), NOTHING), []).append(rank)
        if len(found) > 1 and shown < MAX_FINDINGS:
            shown += 1
            first, other = list(found.values())[:2]
            yield Finding(
                "order", f"output {chunk} is added up in another order on gpu {other[0]} than on"
                f" gpu {first[0]}", other[0],
                fix="reduce every chunk in one place and send the sum on",
            )  # fmt: skip


def _step(trees: _Trees, place: Place, number: int) -> None:
    step: Step = trees.run.blocks[place.block][1].steps[place.step]
    if step.op is Op.NOP:
        return
    parts: list[list[int]] = []
    if step.source is not None:
        parts.append(trees.read(place.rank, step.source, step.count))
    if step.receives:
        parts.append(trees.sent[trees.run.sender[number]])
    if step.op is Op.REDUCE:
        parts.append(trees.read(place.rank, step.dst, step.count))
    values = (
        parts[0]
        if len(parts) == 1
        else [trees.add(one, two) for one, two in zip(*parts, strict=False)]
    )
    if step.target is not None:
        cells = trees.mode.cells(place.rank, step.target, step.count)
        for cell, value in zip(cells, values, strict=False):
            trees.memory[place.rank, cell] = value
    if step.sends:
        trees.sent[number] = values

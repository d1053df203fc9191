"""What each rank of a program runs, as rows for the event loop, and how its memory lies.

A call of `size` bytes gives every chunk ``size / chunks_per_loop`` bytes. Chunk c of a buffer lies
at c times that, as in the runtimes; in place, the input begins where :func:`mode_of` says. Nops
become what the next step waits for, as they do there.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from taccl.msccl.expected import mode_of
from taccl.msccl.program import Buffer, Op, Program
from taccl.replay.compile import Split, split
from taccl.replay.cost import ReplayModel
from taccl.run import loop
from taccl.run.loop import Rows

MODEL = ReplayModel(
    "process",
    MappingProxyType({"Simple": 128 << 10, "LL": 32 << 10, "LL128": 64 << 10}),
    MappingProxyType({"Simple": 4, "LL": 8, "LL128": 8}),
)
"""How processes cut messages: so that they stay in the cache of a processor."""

CODE: Mapping[Op, int] = MappingProxyType({
    Op.SEND: loop.SEND,
    Op.RECV: loop.RECV,
    Op.RECV_COPY_SEND: loop.RECV_COPY_SEND,
    Op.RECV_REDUCE_SEND: loop.RECV_REDUCE_SEND,
    Op.RECV_REDUCE_COPY: loop.RECV_REDUCE_COPY,
    Op.RECV_REDUCE_COPY_SEND: loop.RECV_REDUCE_COPY_SEND,
    Op.COPY: loop.COPY,
    Op.REDUCE: loop.REDUCE,
    Op.NOP: loop.NOTHING,
})  # fmt: skip


class Wire(NamedTuple):
    """A connection: messages from rank `src` to rank `dst` on a `channel`."""

    src: int
    dst: int
    channel: int


def wires_of(program: Program) -> tuple[Wire, ...]:
    """Return the connections that steps of a `program` use, ascending."""
    found = set()
    for rank, block in program.blocks():
        for step in block.steps:
            if step.sends and block.send_to is not None:
                found.add(Wire(rank, block.send_to, block.channel))
            if step.receives and block.recv_from is not None:
                found.add(Wire(block.recv_from, rank, block.channel))
    return tuple(sorted(found))


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """The memory of a rank: one array, in which buffers have their places in bytes.

    `at` is where a buffer begins, `room` how many bytes it has, `size` all bytes together.
    """

    at: Mapping[Buffer, int]
    room: Mapping[Buffer, int]
    size: int


ALIGNED = 64
"""Bytes that buffers begin at multiples of: a line of the cache."""


def memory_of(program: Program, rank: int, chunk: int, *, in_place: bool) -> Memory:
    """Return the memory of a `rank` of a `program` whose chunks have `chunk` bytes.

    `in_place`: input and output lie in one buffer.
    """
    gpu, ranks = program.gpus[rank], program.num_ranks
    mode = mode_of(program.collective, ranks, program.chunks_per_loop, in_place=in_place)
    # What a call passes is what its collective says, whatever the file declares.
    whole = program.chunks_per_loop
    least = {
        Buffer.INPUT: whole // ranks if program.collective == "allgather" else whole,
        Buffer.OUTPUT: whole // ranks if program.collective == "reducescatter" else whole,
    }
    room = {
        buffer: chunk * max(declared, least.get(buffer, 0)) for buffer, declared in gpu.room.items()
    }
    at, end = {Buffer.INPUT: 0, Buffer.OUTPUT: 0}, 0
    for buffer, shift in ((Buffer.INPUT, mode.input_shift), (Buffer.OUTPUT, mode.output_shift)):
        at[buffer] = shift[rank] * chunk if in_place else end
        end = max(end, at[buffer] + room[buffer])
        end += 0 if in_place else -end % ALIGNED
    at[Buffer.SCRATCH] = end + -end % ALIGNED
    return Memory(at, room, at[Buffer.SCRATCH] + room[Buffer.SCRATCH])


@dataclass(frozen=True, slots=True, eq=False)
class RankPlan:
    """What one rank runs at one size: rows of :mod:`taccl.run.loop`, with places for addresses.

    `blocks`, `steps` and `needs` are those rows; sources and targets of steps are places in the
    rank's `memory`. `ends` are the rows of connections: which one, and whether the rank sends on
    it. `cut` is how the size is cut, a `chunk` has so many bytes, flags count by `width`, and `ids`
    are the ids of the threadblocks.
    """

    blocks: Rows
    steps: Rows
    needs: Rows
    ends: tuple[tuple[Wire, bool], ...]
    cut: Split
    chunk: int
    width: int
    memory: Memory
    ids: tuple[int, ...]


def plan_of(
    program: Program, rank: int, size: int, *, in_place: bool, model: ReplayModel = MODEL
) -> RankPlan:
    """Return what a `rank` of a `program` runs in a call of `size` bytes of the counted buffer.

    `in_place`: input and output lie in one buffer; `model` says how long messages are.
    """
    gpu, cut = program.gpus[rank], split(program, size, model)
    chunk = size // program.chunks_per_loop
    memory = memory_of(program, rank, chunk, in_place=in_place)
    # A rank that sends to itself has both ends.
    ends = [
        (wire, out)
        for wire in wires_of(program)
        for out in (False, True)
        if rank == (wire.src if out else wire.dst)
    ]
    number = {end: index for index, end in enumerate(ends)}
    place = {block.id: index for index, block in enumerate(gpu.threadblocks)}
    blocks = np.zeros((len(gpu.threadblocks), loop.BLOCK_FIELDS), np.int64)
    steps: list[list[int]] = []
    needs: list[tuple[int, int]] = []
    for index, block in enumerate(gpu.threadblocks):
        row = blocks[index]
        row[loop.INBOUND] = row[loop.OUTBOUND] = -1
        if block.recv_from is not None:
            wire = Wire(block.recv_from, rank, block.channel)
            row[loop.INBOUND] = number.get((wire, False), -1)
        if block.send_to is not None:
            wire = Wire(rank, block.send_to, block.channel)
            row[loop.OUTBOUND] = number.get((wire, True), -1)
        row[loop.FIRST] = len(steps)
        row[loop.FLAG] = -1
        row[loop.STATE] = loop.DONE
        pending: list[tuple[int, int]] = []
        for position, step in enumerate(block.steps):
            if step.depends is not None:
                awaited = place.get(step.depends.threadblock, -1)
                pending.append((awaited, step.depends.step))
            if step.op is Op.NOP:
                continue
            begins = len(needs)
            needs += pending
            pending = []
            places = [
                0 if slot is None else memory.at[slot.buffer] + slot.offset * chunk
                for slot in (step.source, step.target)
            ]
            steps.append([
                CODE[step.op], *places, step.count, position if step.posts else -1,
                begins, len(needs), position,
            ])  # fmt: skip
        row[loop.END] = len(steps)
    return RankPlan(
        blocks, np.array(steps, np.int64).reshape(-1, loop.STEP_FIELDS),
        np.array(needs, np.int64).reshape(-1, 2), tuple(ends), cut, chunk,
        program.num_steps + 1, memory, tuple(block.id for block in gpu.threadblocks),
    )  # fmt: skip


def message_bytes(program: Program, size: int, model: ReplayModel = MODEL) -> int:
    """Return the bytes of the longest message of a `program` in a call of `size` bytes.

    `model` says how long messages are.
    """
    cut, chunk = split(program, size, model), size // program.chunks_per_loop
    most = max((step.count for _, block in program.blocks() for step in block.steps), default=1)
    return min(cut.full, chunk) * max(1, min(cut.chunks, most))


def rank_of(plan: RankPlan, memory: int, ends: Rows, control: Rows, log: Rows) -> loop.Rank:
    """Return what a rank runs, where it has its memory.

    `plan`: its rows.
    `memory`: address of its memory.
    `ends`: rows of its connections.
    `control`: a row, in which counters and addresses are set already; this sets the cuts.
    `log`: rows for what it does; none: it does not write that down.
    """
    steps, cut = plan.steps.copy(), plan.cut
    steps[:, [loop.SOURCE, loop.TARGET]] += memory
    for field, value in (
        (loop.CHUNK, plan.chunk), (loop.PIECE, min(cut.full, plan.chunk)),
        (loop.JOINED, cut.chunks), (loop.ITERATIONS, cut.iterations), (loop.WIDTH, plan.width),
    ):  # fmt: skip
        control[field] = value
    return loop.Rank(plan.blocks.copy(), steps, ends, plan.needs, control, log)

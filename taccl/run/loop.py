"""The event loop of one rank for compiled code: threadblocks, connections and data, all in rows.

A rank goes through its threadblocks again and again; each runs its steps until one has to wait for
a flag, a message or a free slot. Flags are the rank's own. A connection is a ring of slots with two
counters, of messages put in and of messages taken out; each end raises one of them and reads the
other, so both may be processes of one machine, or the other end may be whoever carries messages.
A step that receives and sends waits for both, as ``recvReduceCopySend`` does.

Who finds nothing to do for `PATIENCE` looks gives way, and after that sleeps until another rank
rings its bell: the word of that number is raised, and whoever sleeps at it is woken.

What happens in which order is the program's alone, and so is the order of sums.

**Rows of a program.** A call of `size` bytes gives every chunk ``size / chunks_per_loop`` bytes.
Chunk c of a buffer lies at c times that, as in the runtimes; in place, the input begins where
:func:`mode_of` says. Nops become what the next step waits for, as they do there.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.msccl.expected import mode_of
from taccl.msccl.program import Buffer, Op, Program
from taccl.replay.compile import Split, split
from taccl.replay.cost import ReplayModel
from taccl.run.words import (
    add_bfloat16,
    add_float16,
    add_float32,
    add_float64,
    add_int32,
    add_int64,
    add_to,
    fence,
    give_way,
    load,
    move,
    nanoseconds,
    sleep_while,
    store,
    wake,
)

Rows = NDArray[np.int64]

# A threadblock: its connections (rows, -1: none), its steps, and how far it is. FLAG counts
# iteration * WIDTH + position, as MSCCL's flags do.
INBOUND, OUTBOUND, FIRST, END, STEP, ITERATION, MESSAGE, NEED, FLAG, STATE = range(10)
BLOCK_FIELDS = 10

NEEDS, RECEIVES_FROM, SENDS_TO, DONE = range(4)
"""What a threadblock waits for."""

# A step: what it does, addresses of its first chunk read and written, how many chunks, the position
# that it posts (-1: none), and the rows of `needs` that it waits for.
OP, SOURCE, TARGET, COUNT, POSTS, NEEDS_FROM, NEEDS_TO, POSITION = range(8)
STEP_FIELDS = 8

SEND, RECV, RECV_COPY_SEND, RECV_REDUCE_SEND, RECV_REDUCE_COPY, RECV_REDUCE_COPY_SEND = range(6)
COPY, REDUCE, NOTHING = range(6, 9)

# One end of a connection: addresses of the counters of what was put in and taken out, of the
# lengths and of the slots, what it counted itself, and the bell of the other end.
PUT, TAKEN, LENGTHS, SLOTS_AT, COUNTED, BELL = range(6)
CONNECTION_FIELDS = 6

# Everything there is one of. CHUNK: bytes of a chunk; PIECE: of it in one iteration; JOINED: chunks
# in a message; STRIDE: bytes of a slot; OWN_BELL and ABORT: addresses of words; LOGGED: rows of the
# log that are used.
CHUNK, PIECE, JOINED, ITERATIONS, SLOTS, STRIDE, WIDTH, DTYPE = range(8)
OWN_BELL, ABORT, LOGGED, SPINS, PROGRESS, LENGTH_WANTED, LENGTH_FOUND = range(8, 15)
STARTED, ENDED = range(15, 17)
CONTROLS = 17

INT32, INT64, FLOAT16, BFLOAT16, FLOAT32, FLOAT64 = range(6)

FINISHED, WAITING, ABORTED, WRONG_LENGTH = range(4)

# A row of the log: what a threadblock did when, in nanoseconds of the machine's clock.
LOG_BLOCK, LOG_STEP, LOG_ITERATION, LOG_BYTES, LOG_FROM, LOG_TO = range(6)
LOG_FIELDS = 6

PATIENCE = 40
NAP = 2_000_000
"""Nanoseconds after which a sleeper looks again, whether the bell rang or not."""


class Rank(NamedTuple):
    """What one rank runs, and how far it is.

    `blocks`, `steps`, `connections`: a row each, with the fields above.
    `needs`: rows (block, position) whose flags steps wait for.
    `control`: everything there is one of.
    `log`: rows of what was done, if there is room for them.
    """

    blocks: Rows
    steps: Rows
    connections: Rows
    needs: Rows
    control: Rows
    log: Rows


def add(dtype: int, target: int, one: int, other: int, size: int) -> None:
    """Write to a `target` the sum of `one` and the `other`, arrays of `size` bytes of a `dtype`.

    All three are addresses; what is written may be what is read. Halves are added as float32, and
    rounded to the nearest, ties to even.
    """
    if dtype == FLOAT32:
        add_float32(target, one, other, size >> 2)
    elif dtype == FLOAT64:
        add_float64(target, one, other, size >> 3)
    elif dtype == FLOAT16:
        add_float16(target, one, other, size >> 1)
    elif dtype == BFLOAT16:
        add_bfloat16(target, one, other, size >> 1)
    elif dtype == INT32:
        add_int32(target, one, other, size >> 2)
    else:
        add_int64(target, one, other, size >> 3)


def ring(bell: int) -> None:
    """Wake the rank that sleeps at a `bell`, the address of two words: rung, and who sleeps."""
    if bell:
        fence()
        if load(bell + 8):
            add_to(bell, 1)
            wake(bell)


def _do(r: Rank, step: Rows, size: int, offset: int, came: int, goes: int) -> None:
    """Do the work of a step on one message: `came` and `goes` are the addresses of its slots."""
    op, dtype = step[OP], r.control[DTYPE]
    source, target = step[SOURCE] + offset, step[TARGET] + offset
    if op == SEND:
        move(goes, source, size)
    elif op == RECV:
        move(target, came, size)
    elif op == RECV_COPY_SEND:
        move(target, came, size)
        move(goes, came, size)
    elif op == RECV_REDUCE_SEND:
        add(dtype, goes, source, came, size)
    elif op == RECV_REDUCE_COPY:
        add(dtype, target, source, came, size)
    elif op == RECV_REDUCE_COPY_SEND:
        add(dtype, goes, source, came, size)
        move(target, goes, size)
    elif op == COPY:
        if source != target:
            move(target, source, size)
    elif op == REDUCE:
        add(dtype, target, source, target, size)


def _note(r: Rank, block: int, size: int, began: int) -> None:
    logged, own = r.control[LOGGED], r.blocks[block]
    if logged < len(r.log):
        row = r.log[logged]
        row[LOG_BLOCK] = block
        row[LOG_STEP] = r.steps[own[STEP], POSITION]
        row[LOG_ITERATION] = own[ITERATION]
        row[LOG_BYTES] = size
        row[LOG_FROM] = began
        row[LOG_TO] = nanoseconds()
        r.control[LOGGED] = logged + 1


def _sees_flags(r: Rank, own: Rows, step: Rows) -> bool:
    """Tell whether the flags that a step waits for are there; remember the first that is not."""
    base = own[ITERATION] * r.control[WIDTH]
    for at in range(step[NEEDS_FROM] + own[NEED], step[NEEDS_TO]):
        awaited = r.needs[at, 0]
        if awaited < 0 or r.blocks[awaited, FLAG] < base + r.needs[at, 1]:
            own[NEED] = at - step[NEEDS_FROM]
            return False
    own[NEED] = 0
    return True


def _do_message(r: Rank, block: int, step: Rows) -> int:
    """Do the next message of a step: 1; 0 where it has to wait; -1: it has a wrong length."""
    own, control, op = r.blocks[block], r.control, step[OP]
    first = own[MESSAGE] * control[JOINED]
    chunks = min(control[JOINED], step[COUNT] - first)
    offset = own[ITERATION] * control[PIECE]
    size = chunks * min(control[PIECE], control[CHUNK] - offset)
    offset += first * control[CHUNK]
    came, goes = 0, 0
    receives = RECV <= op <= RECV_REDUCE_COPY_SEND
    sends = op <= RECV_REDUCE_COPY_SEND and op != RECV and op != RECV_REDUCE_COPY
    if receives:
        own[STATE] = RECEIVES_FROM
        if own[INBOUND] < 0:
            return 0
        wire = r.connections[own[INBOUND]]
        if load(wire[PUT]) <= wire[COUNTED]:
            return 0
        slot = wire[COUNTED] % control[SLOTS]
        came = wire[SLOTS_AT] + slot * control[STRIDE]
        control[LENGTH_FOUND] = load(wire[LENGTHS] + 8 * slot)
        if control[LENGTH_FOUND] != size:
            control[LENGTH_WANTED] = size
            return -1
    if sends:
        own[STATE] = SENDS_TO
        if own[OUTBOUND] < 0:
            return 0
        wire = r.connections[own[OUTBOUND]]
        if wire[COUNTED] - load(wire[TAKEN]) >= control[SLOTS]:
            return 0
        slot = wire[COUNTED] % control[SLOTS]
        goes = wire[SLOTS_AT] + slot * control[STRIDE]
        store(wire[LENGTHS] + 8 * slot, size)
    began = nanoseconds() if len(r.log) else 0
    _do(r, step, size, offset, came, goes)
    if len(r.log):
        _note(r, block, size, began)
    if came:
        wire = r.connections[own[INBOUND]]
        wire[COUNTED] += 1
        store(wire[TAKEN], wire[COUNTED])
        ring(wire[BELL])
    if goes:
        wire = r.connections[own[OUTBOUND]]
        wire[COUNTED] += 1
        store(wire[PUT], wire[COUNTED])
        ring(wire[BELL])
    own[STATE] = RECEIVES_FROM
    own[MESSAGE] += 1
    return 1


def _go_on(r: Rank, block: int) -> int:
    """Run a threadblock until it has to wait; return how many messages and steps that were.

    It is -1 where a message has another length than its step.
    """
    own, control = r.blocks[block], r.control
    done = 0
    while own[STATE] != DONE:
        step = r.steps[own[STEP]]
        if own[STATE] == NEEDS:
            if not _sees_flags(r, own, step):
                return done
            own[STATE] = RECEIVES_FROM
        if own[MESSAGE] * control[JOINED] < step[COUNT]:
            found = _do_message(r, block, step)
            if found <= 0:
                return done if found == 0 else -1
            done += 1
            continue
        if step[POSTS] >= 0:
            own[FLAG] = own[ITERATION] * control[WIDTH] + step[POSTS]
        own[MESSAGE] = 0
        own[STEP] += 1
        own[STATE] = NEEDS
        done += 1
        if own[STEP] == own[END]:
            own[STEP] = own[FIRST]
            own[ITERATION] += 1
            if own[ITERATION] == control[ITERATIONS]:
                own[STATE] = DONE
    return done


def _run(r: Rank, patience: int) -> int:
    """Run the threadblocks until they have ended; the rest is as for :func:`run_calls`."""
    control, bell = r.control, r.control[OWN_BELL]
    idle, rung, armed = 0, 0, False
    while True:
        moved, running = 0, False
        for block in range(len(r.blocks)):
            if r.blocks[block, STATE] != DONE:
                done = _go_on(r, block)
                if done < 0:
                    return WRONG_LENGTH
                moved += done
                running = running or r.blocks[block, STATE] != DONE
        if armed and (moved or not running):
            store(bell + 8, 0)
            armed = False
        if not running:
            return FINISHED
        if moved:
            control[PROGRESS] += moved
            idle = 0
            continue
        if load(control[ABORT]):
            return ABORTED
        idle += 1
        if idle <= control[SPINS]:
            continue
        if patience >= 0:
            if idle > control[SPINS] + patience:
                return WAITING
            give_way()
        elif idle < control[SPINS] + PATIENCE:
            give_way()
        elif not armed:
            # Whoever goes on after this rings; what was done before it is seen by one more look.
            armed = True
            rung = load(bell)
            store(bell + 8, 1)
            fence()
        else:
            sleep_while(bell, rung, NAP)
            store(bell + 8, 0)
            armed = False
            idle = control[SPINS]


def _meet(r: Rank, gate: int, goal: int) -> None:
    """Wait until so many have come to a `gate`, the address of a word, counting from the start."""
    add_to(gate, 1)
    looks = 0
    while load(gate) < goal and not load(r.control[ABORT]):
        looks += 1
        if looks > PATIENCE:
            sleep_while(gate, load(gate), NAP // 20)
        else:
            give_way()
    wake(gate)


def run_calls(r: Rank, calls: int, patience: int, gate: int, goal: int) -> int:
    """Run the program of a rank ``r`` so many times, one call after the other; say how that went.

    With 0 ``calls``, go on with the one that waits. A ``gate`` (an address, 0: none) is where ranks
    meet before; the ``goal`` is how many have met there then. WAITING: nothing could go on for so
    many looks in a row; with a ``patience`` below 0 the rank sleeps meanwhile until its bell rings,
    and only the word ABORT ends it before the program does. The control says from when to when.
    """
    if gate:
        _meet(r, gate, goal)
    r.control[STARTED] = nanoseconds()
    status = FINISHED
    if calls == 0:
        status = _run(r, patience)
    for _ in range(calls):
        for block in range(len(r.blocks)):
            own = r.blocks[block]
            own[STEP] = own[FIRST]
            own[ITERATION] = own[MESSAGE] = own[NEED] = 0
            own[FLAG] = -1
            own[STATE] = DONE if own[FIRST] == own[END] else NEEDS
        status = _run(r, patience)
        if status != FINISHED:
            break
    r.control[ENDED] = nanoseconds()
    return status


MODEL = ReplayModel(
    "process",
    MappingProxyType({"Simple": 128 << 10, "LL": 32 << 10, "LL128": 64 << 10}),
    MappingProxyType({"Simple": 4, "LL": 8, "LL128": 8}),
)
"""How processes cut messages: so that they stay in the cache of a processor."""

CODE: Mapping[Op, int] = MappingProxyType({
    Op.SEND: SEND,
    Op.RECV: RECV,
    Op.RECV_COPY_SEND: RECV_COPY_SEND,
    Op.RECV_REDUCE_SEND: RECV_REDUCE_SEND,
    Op.RECV_REDUCE_COPY: RECV_REDUCE_COPY,
    Op.RECV_REDUCE_COPY_SEND: RECV_REDUCE_COPY_SEND,
    Op.COPY: COPY,
    Op.REDUCE: REDUCE,
    Op.NOP: NOTHING,
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
    blocks = np.zeros((len(gpu.threadblocks), BLOCK_FIELDS), np.int64)
    steps: list[list[int]] = []
    needs: list[tuple[int, int]] = []
    for index, block in enumerate(gpu.threadblocks):
        row = blocks[index]
        row[INBOUND] = row[OUTBOUND] = -1
        if block.recv_from is not None:
            wire = Wire(block.recv_from, rank, block.channel)
            row[INBOUND] = number.get((wire, False), -1)
        if block.send_to is not None:
            wire = Wire(rank, block.send_to, block.channel)
            row[OUTBOUND] = number.get((wire, True), -1)
        row[FIRST] = len(steps)
        row[FLAG] = -1
        row[STATE] = DONE
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
        row[END] = len(steps)
    return RankPlan(
        blocks, np.array(steps, np.int64).reshape(-1, STEP_FIELDS),
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


def rank_of(plan: RankPlan, memory: int, ends: Rows, control: Rows, log: Rows) -> Rank:
    """Return what a rank runs, where it has its memory.

    `plan`: its rows.
    `memory`: address of its memory.
    `ends`: rows of its connections.
    `control`: a row, in which counters and addresses are set already; this sets the cuts.
    `log`: rows for what it does; none: it does not write that down.
    """
    steps, cut = plan.steps.copy(), plan.cut
    steps[:, [SOURCE, TARGET]] += memory
    for field, value in (
        (CHUNK, plan.chunk), (PIECE, min(cut.full, plan.chunk)),
        (JOINED, cut.chunks), (ITERATIONS, cut.iterations), (WIDTH, plan.width),
    ):  # fmt: skip
        control[field] = value
    return Rank(plan.blocks.copy(), steps, ends, plan.needs, control, log)

"""One maximal run of a program's threadblocks, with FIFOs and flags but without data.

Threadblocks, FIFOs and flags that only grow form a confluent system: whatever order steps are
tried in, the same steps can finish. So one run that goes on until nothing can move decides
whether a program deadlocks, and its order of steps serves every other judge.

Larger sizes cut steps into more messages, of which a connection holds few; that is all that size
changes (``mscclMaxAllowedCount``). A program that ends with some cut ends with every coarser one:
map each coarse message to one of its fine ones, and what is in flight never grows. So the largest
size at which a program can't deadlock is found by halving the cuts.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.msccl.program import RECEIVES, SENDS, Buffer, Finding, Op, Program, Slot, Threadblock
from taccl.msccl.runtimes import (
    LOADED_BY,
    RUNTIMES,
    UNLIMITED,
    Runtime,
    joined_bytes,
    message_chunks,
)
from taccl.timing.jit import is_worth_compiling, jit, telling

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

COMPILING = "taccl: compiling the judge of programs; once on this machine, for about 10 s"

SMALL = 4_000
"""Steps that Python follows as fast as machine code is loaded."""

MAX_WORK = 3_000_000
"""Chunks that steps move, above which a program is not followed (no runtime holds that many)."""

Connection = tuple[int | None, int | None, int]
"""Sender, receiver, channel."""


class Place(NamedTuple):
    """A step by rank, threadblock (position in ``Run.blocks``) and position."""

    rank: int
    block: int
    step: int


OPS = tuple(Op)
"""Ops by their numbers in columns."""

BUFFERS = tuple(Buffer)
"""Buffers by theirs."""

NONE = -1
"""In columns: there is none."""

NEVER = -2
"""What a step waits for that nothing releases."""


class Steps(NamedTuple):
    """The steps of a program as columns: those of one threadblock after the other, in order.

    Parameters
    ----------
    first
        (threadblocks + 1,) the first step of each, and behind the last one.
    block, rank
        (steps,) threadblock, as a position in ``Run.blocks``, and rank.
    op, chunks
        Position in OPS, and chunks.
    source, target
        (steps, 2): the buffer, a position in BUFFERS, of what a step reads and writes, and its
        first chunk; NONE in place of a buffer where there is none.
    awaits
        The step whose end releases the dependence of a step, NONE or NEVER.
    receives, sends
        Whether it takes a message, and whether it sends one.
    """

    first: Ints
    block: Ints
    rank: Ints
    op: Ints
    chunks: Ints
    source: Ints
    target: Ints
    awaits: Ints
    receives: Flags
    sends: Flags


def steps_of(program: Program) -> Steps:
    """Return the steps of `program` as columns."""

    def column(values: Iterable[int]) -> Ints:
        return np.fromiter(values, dtype=np.int64)

    def operands(slots: Iterable[Slot | None]) -> Ints:
        rows = [_NO_SLOT if slot is None else (_BUFFER_NUMBER[slot[0]], slot[1]) for slot in slots]
        return np.array(rows, dtype=np.int64).reshape(-1, 2)

    blocks = list(program.blocks())
    first = np.cumsum([0, *(len(block.steps) for _, block in blocks)], dtype=np.int64)
    length = np.diff(first)
    steps = [step for _, block in blocks for step in block.steps]
    op = column(_OP_NUMBER[step.op] for step in steps)
    count = column(step.count for step in steps)
    # Flags only grow and a nop posts nothing: a wait ends with the first step from there on that
    # posts.
    posts = column(step.posts and step.op is not Op.NOP for step in steps)
    posting = np.where(posts > 0, np.arange(len(steps)), len(steps))
    posting = np.append(np.minimum.accumulate(posting[::-1])[::-1], len(steps))
    number_of: dict[tuple[int, int], int] = {}
    for number, (rank, one) in enumerate(blocks):
        number_of.setdefault((rank, one.id), number)
    block = np.repeat(np.arange(len(blocks)), length)
    rank_of = column(rank for rank, _ in blocks)
    waits = [
        (at, number_of.get((rank, step.depends.threadblock), NONE), max(step.depends.step, 0))
        for at, (rank, step) in enumerate(
            (rank, step) for rank, one in blocks for step in one.steps
        )
        if step.depends is not None
    ]
    at, awaited, position = np.array(waits, dtype=np.int64).reshape(-1, 3).T
    awaits = np.full(len(steps), NONE, dtype=np.int64)
    begin, end = first[awaited], first[awaited + 1]
    found = posting[np.minimum(begin + position, len(steps))]
    awaits[at] = np.where(
        (awaited != NONE) & (position < end - begin) & (found < end), found, NEVER
    )
    return Steps(
        first, block, rank_of[block], op, count,
        operands(step.source for step in steps), operands(step.target for step in steps), awaits,
        _RECEIVES[op] & (count > 0), _SENDS[op] & (count > 0),
    )  # fmt: skip


_NO_SLOT = (NONE, 0)
_OP_NUMBER = {op: number for number, op in enumerate(OPS)}
_BUFFER_NUMBER = {buffer: number for number, buffer in enumerate(BUFFERS)}
_RECEIVES, _SENDS = (np.array([op in some for op in OPS]) for some in (RECEIVES, SENDS))


@dataclass(slots=True)
class Run:
    """A maximal run.

    `blocks` are (rank, threadblock), in order: all numbers of threadblocks are positions in it.
    `steps` are its steps, numbered through, and `order` the finished ones, in an order they can
    finish in. `released_by` is the step whose end releases the dependence of a step, and `sender`
    the sending step of every receiving step, by the last message of it. `left` are the steps that
    sent what nobody received, one a message, by connection, and `stuck` says (threadblock,
    position, why) of threadblocks that can't go on.
    """

    blocks: list[tuple[int, Threadblock]]
    steps: Steps
    order: list[int]
    released_by: dict[int, int]
    sender: dict[int, int]
    left: dict[Connection, list[int]]
    stuck: list[tuple[int, int, str]]


def column_of(run: Run, before: Mapping[int, int]) -> Ints:
    """Return what is known of some steps of a `run`, as a column of all; NONE: nothing.

    `before` leads from steps to others: `released_by` or `sender`.
    """
    found = np.full(len(run.steps.op), NONE, dtype=np.int64)
    found[list(before)] = list(before.values())
    return found


class _Wires(NamedTuple):
    """Connections: of every threadblock those that it receives from and sends to, or NONE.

    The messages of connection c are in ``first[c]`` to ``first[c + 1]`` of a ring.
    """

    incoming: Ints
    outgoing: Ints
    first: Ints


class _State(NamedTuple):
    """How far everything is.

    By threadblock: the next step, the messages of it that are done, and why it can't go on. Those
    that can are a ring. Who waits is linked: by connection and then by threadblock the first one,
    and the next one of each. Messages are the steps that sent them, in rings with a begin and a
    length. By step: what is in its place in the order, what released it, and who sent to it.
    """

    position: Ints
    message: Ints
    reason: Ints
    ready: Ints
    waiting: Ints
    next: Ints
    messages: Ints
    begin: Ints
    length: Ints
    order: Ints
    released: Ints
    sender: Ints


GOES_ON, HELD, NO_PEER, NO_MESSAGE, NO_ROOM = range(5)
"""Why a threadblock can't go on."""


def maximal_run(
    program: Program,
    chunks_per_message: int | None = None,
    slots: int | None = None,
    steps: Steps | None = None,
) -> Run:
    """Run `program` until no threadblock can go on.

    `chunks_per_message` cuts steps into messages (None: one message a step); `slots` bounds the
    messages of a connection (None: unbounded). `steps` are its :func:`steps_of`.
    """
    return _told(program, steps or steps_of(program), chunks_per_message, slots)


def _told(program: Program, steps: Steps, cut: int | None, slots: int | None) -> Run:
    """Run a program and say how it went."""

    def known(column: Ints) -> dict[int, int]:
        numbers = np.flatnonzero(column != NONE)
        return dict(zip(numbers.tolist(), column[numbers].tolist(), strict=True))

    blocks = list(program.blocks())
    connections, wires, state, done = _run(blocks, steps, cut, slots)
    left = {}
    for number, connection in enumerate(connections):
        ring = state.messages[wires.first[number] : wires.first[number + 1]]
        rest = np.roll(ring, -state.begin[number])[: state.length[number]]
        if len(rest):
            left[connection] = rest.tolist()
    return Run(
        blocks, steps, state.order[:done].tolist(), known(state.released), known(state.sender),
        dict(sorted(left.items())),
        [
            (number, step - int(steps.first[number]), _why(blocks, steps, step, reason))
            for number, (step, reason) in enumerate(
                zip(state.position.tolist(), state.reason.tolist(), strict=True)
            )
            if reason != GOES_ON
        ],
    )  # fmt: skip


def _run(
    blocks: list[tuple[int, Threadblock]], steps: Steps, cut: int | None, slots: int | None
) -> tuple[list[tuple[int, int, int]], _Wires, _State, int]:
    """Return connections (sender, receiver, channel), how far all got, and finished steps."""
    number_of: dict[tuple[int, int, int], int] = {}
    ends = [
        [
            NONE if src is None or dst is None else number_of.setdefault(
                (src, dst, block.channel), len(number_of)
            )
            for src, dst in ((block.recv_from, rank), (rank, block.send_to))
        ]
        for rank, block in blocks
    ]  # fmt: skip
    incoming, outgoing = np.array(ends, dtype=np.int64).reshape(-1, 2).T.copy()
    pieces = np.ones(len(steps.op), dtype=np.int64)
    if cut is not None:
        pieces = np.maximum(1, -(-steps.chunks // cut))
    over = outgoing[steps.block]
    posted = steps.sends & (over != NONE)
    room = np.bincount(over[posted], pieces[posted], len(number_of)).astype(np.int64)
    most = int(room.max(initial=0)) if slots is None else slots
    wires = _Wires(incoming, outgoing, np.append(0, np.cumsum(np.minimum(room, most))))

    def column(length: int, value: int) -> Ints:
        return np.full(length, value, dtype=np.int64)

    state = _State(
        steps.first[:-1].copy(), column(len(blocks), 0), column(len(blocks), GOES_ON),
        np.arange(len(blocks)), column(len(number_of) + len(blocks), NONE),
        column(len(blocks), NONE), column(int(wires.first[-1]), NONE), column(len(number_of), 0),
        column(len(number_of), 0), column(len(pieces), NONE), column(len(pieces), NONE),
        column(len(pieces), NONE),
    )  # fmt: skip
    loop = compiled() if is_worth_compiling("judge", len(pieces), SMALL) else run_blocks
    return list(number_of), wires, state, loop(steps, wires, pieces, most, state)


def run_blocks(steps: Steps, wires: _Wires, pieces: Ints, slots: int, state: _State) -> int:
    """Run threadblocks until none can go on, and return how many steps are done.

    Parameters
    ----------
    steps, wires
        What is run, and the connections of threadblocks.
    pieces
        (steps,) messages of every step that sends or receives.
    slots
        How many messages a connection holds.
    state
        Where everything begins; how far it gets is written there.
    """
    blocks = len(steps.first) - 1
    head, able, done = 0, blocks, 0
    while able > 0:
        number = state.ready[head]
        head, able = (head + 1) % blocks, able - 1
        incoming, outgoing = wires.incoming[number], wires.outgoing[number]
        why = GOES_ON
        while why == GOES_ON and state.position[number] < steps.first[number + 1]:
            step = state.position[number]
            before = steps.awaits[step]
            if before != NONE and state.message[number] == 0:
                if before == NEVER:
                    why = HELD
                    break
                if state.position[steps.block[before]] <= before:
                    _wait(state, len(wires.first) - 1 + steps.block[before], number)
                    why = HELD
                    break
                state.released[step] = before
            receives, sends = steps.receives[step], steps.sends[step]
            if (receives and incoming == NONE) or (sends and outgoing == NONE):
                why = NO_PEER
                break
            while (receives or sends) and state.message[number] < pieces[step]:
                if receives and state.length[incoming] == 0:
                    _wait(state, incoming, number)
                    why = NO_MESSAGE
                    break
                if sends and state.length[outgoing] >= slots:
                    _wait(state, outgoing, number)
                    why = NO_ROOM
                    break
                if receives:
                    first = wires.first[incoming]
                    state.sender[step] = state.messages[first + state.begin[incoming]]
                    room = wires.first[incoming + 1] - first
                    state.begin[incoming] = (state.begin[incoming] + 1) % room
                    state.length[incoming] -= 1
                    able += _wake(state, incoming, head + able)
                if sends:
                    first = wires.first[outgoing]
                    room = wires.first[outgoing + 1] - first
                    last = (state.begin[outgoing] + state.length[outgoing]) % room
                    state.messages[first + last] = step
                    state.length[outgoing] += 1
                    able += _wake(state, outgoing, head + able)
                state.message[number] += 1
            if why == GOES_ON:
                state.order[done] = step
                done += 1
                state.position[number] += 1
                state.message[number] = 0
                able += _wake(state, len(wires.first) - 1 + number, head + able)
        state.reason[number] = why
    return done


def _wait(state: _State, key: int, number: int) -> None:
    """Have a threadblock wait, among those that do in ascending order."""
    before, after = NONE, state.waiting[key]
    while after != NONE and after < number:
        before, after = after, state.next[after]
    state.next[number] = after
    if before == NONE:
        state.waiting[key] = number
    else:
        state.next[before] = number


def _wake(state: _State, key: int, end: int) -> int:
    """Let go on who waits for a connection or a threadblock; return how many that are."""
    woken, number = 0, state.waiting[key]
    while number != NONE:
        state.ready[(end + woken) % len(state.ready)] = number
        woken += 1
        number = state.next[number]
    state.waiting[key] = NONE
    return woken


@cache
def compiled() -> Callable[..., Any]:
    """Return :func:`run_blocks` as machine code."""
    return telling(jit(run_blocks, [sys.modules[__name__]], "run-blocks"), COMPILING)


def _why(blocks: Sequence[tuple[int, Threadblock]], steps: Steps, step: int, reason: int) -> str:
    """Return what the threadblock of a step waits for there."""
    at = int(steps.block[step])
    rank, block = blocks[at]
    depends = block.steps[step - int(steps.first[at])].depends
    if reason == HELD and depends is not None:
        wanted = f"step {depends.step} of threadblock {depends.threadblock}"
        if steps.awaits[step] != NEVER:
            return wanted
        known = any((of, one.id) == (rank, depends.threadblock) for of, one in blocks)
        problem = "but no step from there on posts" if known else "which does not exist"
        return f"{wanted}, {problem}"
    return {
        NO_PEER: "a message, but the threadblock has no such peer",
        NO_MESSAGE: f"a message from gpu {block.recv_from} on channel {block.channel}",
        NO_ROOM: f"gpu {block.send_to} to receive on channel {block.channel}",
    }[reason]


def place_of(run: Run, step: int) -> Place:
    """Return the place of a step number of `run`."""
    number = int(run.steps.block[step])
    return Place(run.blocks[number][0], number, step - int(run.steps.first[number]))


def places(run: Run) -> list[Place]:
    """Return the place of every step number."""
    return [
        Place(rank, number, step)
        for number, (rank, block) in enumerate(run.blocks)
        for step in range(len(block.steps))
    ]


def work_of(program: Program) -> int:
    """Return how many chunks the steps of a program move."""
    return sum(step.count for _, block in program.blocks() for step in block.steps)


@dataclass(frozen=True, slots=True)
class Safe:
    """How large a call may be.

    `size` is the largest counted one in bytes that can't deadlock; 0: none, None: there is no
    limit. `stuck` says who waits for what just above it; None without a limit.
    """

    size: int | None
    stuck: Finding | None = None

    def covers(self, size: int) -> bool:
        """Tell whether a size is safe."""
        return self.size is None or size <= self.size


def standstill(run: Run, fix: str = "reorder the steps, or what they wait for") -> Finding:
    """Return who waits for what in `run`, which can't go on; `fix` is what the finding proposes."""
    waits = [
        f"gpu {rank} threadblock {block.id} at step {position} waits for {why}"
        for number, position, why in run.stuck
        for rank, block in [run.blocks[number]]
    ]
    more = f"; and {len(waits) - 4} more" if len(waits) > 4 else ""
    rank, block = run.blocks[run.stuck[0][0]]
    return Finding("deadlock", "; ".join(waits[:4]) + more, rank, block.id, run.stuck[0][1], fix)


def deadlock(
    program: Program, chunks_per_message: int, slots: int, steps: Steps | None = None
) -> Finding | None:
    """Return who waits for what when `program` can't end, or None.

    A step of count c is ceil(c / `chunks_per_message`) messages, and a connection holds `slots`.
    `steps` are its :func:`steps_of`.
    """
    steps = steps or steps_of(program)
    *_, done = _run(list(program.blocks()), steps, chunks_per_message, slots)
    if done == len(steps.op):
        return None
    run = _told(program, steps, chunks_per_message, slots)
    return standstill(run, "reorder the steps, or lower --max-bytes")


def largest_safe_size(program: Program, runtime: str, low: int, high: int) -> int:
    """Return the largest counted size from `low` to `high` bytes that can't deadlock on `runtime`.

    It is 0 when `program` deadlocks at `low` already; the sizes below the result are safe, too.
    Programs that are too large to follow count as safe.
    """
    safe = safe_size(program, runtime, low, high).size if work_of(program) <= MAX_WORK else None
    return high if safe is None else safe


def safe_size(
    program: Program, runtime: str, low: int = 0, high: int = UNLIMITED, steps: Steps | None = None
) -> Safe:
    """Return the largest safe size of `program` on `runtime`, or on all that load a portable file.

    `low` and `high` are bytes of the counted buffer, and `steps` its :func:`steps_of`.
    """
    # What ends with one chunk a message and one message a connection ends at every size.
    steps = steps or steps_of(program)
    if deadlock(program, 1, 1, steps) is None:
        return Safe(None)
    rows = [RUNTIMES[name] for name in LOADED_BY.get(runtime, (runtime,))]
    # Runtimes with equal messages and slots are alike here: one of them is looked at.
    kinds = {(r.message_bytes[program.protocol], r.fifo_slots[program.protocol]): r for r in rows}
    found = [_safe_on(program, steps, row, low, high) for row in kinds.values()]
    return min(found, key=lambda safe: safe.size if safe.size is not None else UNLIMITED)


def _safe_on(program: Program, steps: Steps, runtime: Runtime, low: int, high: int) -> Safe:
    slots, chunks = runtime.fifo_slots[program.protocol], max(program.chunks_per_loop, 1)
    most, least = (
        message_chunks(runtime.name, program.protocol, program.collective, Fraction(size, chunks))
        for size in (low, high)
    )
    # Chunks in a message, descending, that cut some step into more messages than before.
    counts = set(steps.chunks.tolist())
    ways: dict[frozenset[tuple[int, int]], int] = {}
    for held in range(most, least - 1, -1):
        ways.setdefault(frozenset((count, -(-count // held)) for count in counts), held)
    cuts = list(ways.values())
    stuck = deadlock(program, cuts[-1], slots, steps) if cuts else None
    if stuck is None:
        return Safe(None)
    safe, unsafe = -1, len(cuts) - 1
    while unsafe - safe > 1:
        middle = (safe + unsafe) // 2
        found = deadlock(program, cuts[middle], slots, steps)
        safe, unsafe = (safe, middle) if found else (middle, unsafe)
        stuck = found or stuck
    if unsafe == 0:
        return Safe(0, stuck)
    joined = joined_bytes(
        runtime.message_bytes[program.protocol], program.protocol, program.collective
    )
    room = joined // (cuts[unsafe] + 1)
    return Safe(chunks * room, stuck)

"""One maximal run of a program's threadblocks, with FIFOs and flags but without data.

Threadblocks, FIFOs and flags that only grow form a confluent system: whatever order steps are
tried in, the same steps can finish. So one run that goes on until nothing can move decides
whether a program deadlocks, and its order of steps serves every other judge.

Larger sizes cut steps into more messages, of which a connection holds few; that is all that size
changes (``mscclMaxAllowedCount``). A program that ends with some cut ends with every coarser one:
map each coarse message to one of its fine ones, and what is in flight never grows. So the largest
size at which a program can't deadlock is found by halving the cuts.
"""

from collections import defaultdict, deque
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import accumulate
from typing import NamedTuple

from taccl.msccl.program import Finding, Op, Program, Step, Threadblock
from taccl.msccl.runtimes import (
    LOADED_BY,
    RUNTIMES,
    UNLIMITED,
    Runtime,
    joined_bytes,
    message_chunks,
)

MAX_WORK = 3_000_000
"""Chunks that steps move, above which a program is not followed (no runtime holds that many)."""

Connection = tuple[int | None, int | None, int]
"""Sender, receiver, channel."""


class Place(NamedTuple):
    """A step by rank, threadblock (position in ``Run.blocks``) and position."""

    rank: int
    block: int
    step: int


@dataclass(slots=True)
class Run:
    """A maximal run.

    `blocks` are (rank, threadblock), in order: all numbers of threadblocks are positions in it.
    `first` has the number of the first step of each; steps are numbered through, and `order` are
    the finished ones, in an order they can finish in. `released_by` is the step whose end releases
    the dependence of a step, and `sender` the sending step of every receiving step, by the last
    message of it. `left` are the steps that sent what nobody received, one a message, by
    connection, and `stuck` says (threadblock, position, why) of threadblocks that can't go on.
    """

    blocks: list[tuple[int, Threadblock]]
    first: list[int]
    order: list[int] = field(default_factory=list)
    released_by: dict[int, int] = field(default_factory=dict)
    sender: dict[int, int] = field(default_factory=dict)
    left: dict[Connection, list[int]] = field(default_factory=dict)
    stuck: list[tuple[int, int, str]] = field(default_factory=list)


def releasing_steps(block: Threadblock) -> list[int | None]:
    """Return for every step the first one from there on that posts: only such move the flag.

    Flags are compared with >=, so who waits for a nop goes on when a later step posts; a nop
    itself posts nothing.
    """
    found: list[int | None] = []
    posting: int | None = None
    for position in range(len(block.steps) - 1, -1, -1):
        step = block.steps[position]
        posting = position if step.posts and step.op is not Op.NOP else posting
        found.append(posting)
    return found[::-1]


@dataclass(slots=True)
class _State:
    """How far everything is."""

    run: Run
    chunks_per_message: int | None
    slots: int | None
    number_of: dict[tuple[int, int], int]
    position: list[int]
    message: list[int]
    fifo: dict[Connection, deque[int]] = field(default_factory=lambda: defaultdict(deque))
    releases: dict[int, list[int | None]] = field(default_factory=dict)
    waiting: dict[object, set[int]] = field(default_factory=lambda: defaultdict(set))
    ready: deque[int] = field(default_factory=deque)

    def messages(self, step: Step) -> int:
        """Return into how many messages a step is cut."""
        if self.chunks_per_message is None:
            return 1
        return max(1, -(-step.count // self.chunks_per_message))

    def release(self, number: int, position: int) -> int | None:
        """Return the step of a threadblock whose end releases who waits for a position."""
        if number not in self.releases:
            self.releases[number] = releasing_steps(self.run.blocks[number][1])
        steps = self.releases[number]
        return steps[max(position, 0)] if max(position, 0) < len(steps) else None

    def full(self, connection: Connection) -> bool:
        """Tell whether a connection has no slot left."""
        return self.slots is not None and len(self.fifo[connection]) >= self.slots

    def wake(self, key: object) -> None:
        """Let go on who waits for a connection or a threadblock."""
        self.ready.extend(sorted(self.waiting.pop(key, ())))


def maximal_run(
    program: Program, chunks_per_message: int | None = None, slots: int | None = None
) -> Run:
    """Run `program` until no threadblock can go on.

    `chunks_per_message` cuts steps into messages (None: one message a step); `slots` bounds the
    messages of a connection (None: unbounded).
    """
    blocks = list(program.blocks())
    lengths = [len(block.steps) for _, block in blocks]
    run = Run(blocks, [0, *accumulate(lengths)][: len(blocks)])
    number_of: dict[tuple[int, int], int] = {}
    for number, (rank, block) in enumerate(blocks):
        number_of.setdefault((rank, block.id), number)
    state = _State(run, chunks_per_message, slots, number_of, [0] * len(blocks), [0] * len(blocks))
    state.ready.extend(range(len(blocks)))
    blocked: dict[int, str] = {}
    while state.ready:
        number = state.ready.popleft()
        reason = _advance(state, number)
        if reason is None:
            blocked.pop(number, None)
        else:
            blocked[number] = reason
    run.stuck = [(number, state.position[number], blocked[number]) for number in sorted(blocked)]
    run.left = {key: list(fifo) for key, fifo in sorted(state.fifo.items()) if fifo}
    return run


def _advance(state: _State, number: int) -> str | None:
    """Run a threadblock as far as it goes and return what it waits for (None: it ended)."""
    rank, block = state.run.blocks[number]
    while state.position[number] < len(block.steps):
        step = block.steps[state.position[number]]
        reason = _awaits(state, number, rank, step)
        if reason is None:
            reason = _exchange(state, number, rank, step)
        if reason is not None:
            return reason
        state.run.order.append(state.run.first[number] + state.position[number])
        state.position[number] += 1
        state.message[number] = 0
        state.wake(number)
    return None


def _awaits(state: _State, number: int, rank: int, step: Step) -> str | None:
    """Return why a step's dependence holds it, or None; remember what releases it."""
    if step.depends is None or state.message[number] > 0:
        return None
    awaited = state.number_of.get((rank, step.depends.threadblock))
    wanted = f"step {step.depends.step} of threadblock {step.depends.threadblock}"
    if awaited is None:
        return f"{wanted}, which does not exist"
    release = state.release(awaited, step.depends.step)
    if release is None:
        return f"{wanted}, but no step from there on posts"
    if state.position[awaited] <= release:
        state.waiting[awaited].add(number)
        return wanted
    here = state.run.first[number] + state.position[number]
    state.run.released_by[here] = state.run.first[awaited] + release
    return None


def _exchange(state: _State, number: int, rank: int, step: Step) -> str | None:
    """Receive and send the messages of a step; return what it waits for, or None."""
    block = state.run.blocks[number][1]
    receives, sends = step.receives, step.sends
    if not (receives or sends):
        return None
    if (receives and block.recv_from is None) or (sends and block.send_to is None):
        return "a message, but the threadblock has no such peer"
    source = (block.recv_from, rank, block.channel) if receives else None
    target = (rank, block.send_to, block.channel) if sends else None
    here = state.run.first[number] + state.position[number]
    while state.message[number] < state.messages(step):
        if source is not None and not state.fifo[source]:
            state.waiting[source].add(number)
            return f"a message from gpu {source[0]} on channel {source[2]}"
        if target is not None and state.full(target):
            state.waiting[target].add(number)
            return f"gpu {target[1]} to receive on channel {target[2]}"
        if source is not None:
            state.run.sender[here] = state.fifo[source].popleft()
            state.wake(source)
        if target is not None:
            state.fifo[target].append(here)
            state.wake(target)
        state.message[number] += 1
    return None


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


def deadlock(program: Program, chunks_per_message: int, slots: int) -> Finding | None:
    """Return who waits for what when `program` can't end, or None.

    A step of count c is ceil(c / `chunks_per_message`) messages, and a connection holds `slots`.
    """
    run = maximal_run(program, chunks_per_message, slots)
    return standstill(run, "reorder the steps, or lower --max-bytes") if run.stuck else None


def largest_safe_size(program: Program, runtime: str, low: int, high: int) -> int:
    """Return the largest counted size from `low` to `high` bytes that can't deadlock on `runtime`.

    It is 0 when `program` deadlocks at `low` already; the sizes below the result are safe, too.
    Programs that are too large to follow count as safe.
    """
    safe = safe_size(program, runtime, low, high).size if work_of(program) <= MAX_WORK else None
    return high if safe is None else safe


def safe_size(program: Program, runtime: str, low: int = 0, high: int = UNLIMITED) -> Safe:
    """Return the largest safe size of `program` on `runtime`, or on all that load a portable file.

    `low` and `high` are bytes of the counted buffer.
    """
    # What ends with one chunk a message and one message a connection ends at every size.
    if deadlock(program, 1, 1) is None:
        return Safe(None)
    rows = [RUNTIMES[name] for name in LOADED_BY.get(runtime, (runtime,))]
    # Runtimes with equal messages and slots are alike here: one of them is looked at.
    kinds = {(r.message_bytes[program.protocol], r.fifo_slots[program.protocol]): r for r in rows}
    found = [_safe_on(program, row, low, high) for row in kinds.values()]
    return min(found, key=lambda safe: safe.size if safe.size is not None else UNLIMITED)


def _safe_on(program: Program, runtime: Runtime, low: int, high: int) -> Safe:
    slots, chunks = runtime.fifo_slots[program.protocol], max(program.chunks_per_loop, 1)
    most, least = (
        message_chunks(runtime.name, program.protocol, program.collective, Fraction(size, chunks))
        for size in (low, high)
    )
    # Chunks in a message, descending, that cut some step into more messages than before.
    counts = {step.count for _, block in program.blocks() for step in block.steps}
    ways: dict[frozenset[tuple[int, int]], int] = {}
    for held in range(most, least - 1, -1):
        ways.setdefault(frozenset((count, -(-count // held)) for count in counts), held)
    cuts = list(ways.values())
    stuck = deadlock(program, cuts[-1], slots) if cuts else None
    if stuck is None:
        return Safe(None)
    safe, unsafe = -1, len(cuts) - 1
    while unsafe - safe > 1:
        middle = (safe + unsafe) // 2
        found = deadlock(program, cuts[middle], slots)
        safe, unsafe = (safe, middle) if found else (middle, unsafe)
        stuck = found or stuck
    if unsafe == 0:
        return Safe(0, stuck)
    joined = joined_bytes(
        runtime.message_bytes[program.protocol], program.protocol, program.collective
    )
    room = joined // (cuts[unsafe] + 1)
    return Safe(chunks * room, stuck)

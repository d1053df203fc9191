"""One maximal run of a program's threadblocks, with FIFOs and flags but without data.

Threadblocks, FIFOs and flags that only grow form a confluent system: whatever order steps are
tried in, the same steps can finish. So one run that goes on until nothing can move decides
whether a program deadlocks, and its order of steps serves every other judge.
"""

from collections import defaultdict, deque
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from taccl.msccl.program import Op, Program, Step, Threadblock

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

    Parameters
    ----------
    blocks
        (rank, threadblock), in order; all numbers of threadblocks below are positions in it.
    first
        Number of the first step of each threadblock; steps are numbered through.
    order
        The finished steps, in an order they can finish in.
    released_by
        The step whose end releases the dependence of a step.
    sender
        The sending step of every receiving step, by the last message of it.
    left
        The steps that sent what nobody received, one a message, by connection.
    stuck
        (threadblock, position, why) of threadblocks that can't go on.
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

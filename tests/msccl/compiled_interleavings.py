"""The random runs of ``interleavings`` as machine code, for large programs and many runs.

A program becomes flat arrays, and a function that numba compiles runs it. Both oracles draw the
same numbers in the same order, so they must agree on which run is the first wrong one.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.msccl.program import Program, Step, Threadblock
from tests.msccl.interleavings import SLOTS, Draws, Key, cut_of, inputs_of, key_of, modes_of, wanted

Rows = NDArray[np.int64]
Region = tuple[int, str]

# Spelled out anew: numba compiles again when this file changes, and no other.
PRIME = (1 << 61) - 1
BURSTS = (1, 1, 2, 5, 99)

NOTHING = -1
"""What nobody wrote; no peer, no operand, no dependence; nobody waits."""

GO_ON, NEVER, SPOILT = -1, -2, -3
"""What an action waits for when it is done, has nothing to wait for, or makes the run wrong."""

FIRST, END, INCOMING, OUTGOING, FLAG = range(5)
KIND, COUNT, SOURCE, TARGET, AWAITED, AWAITED_STEP = range(6)
RECEIVES, SENDS, ADDS, POSTS, SPOILS, WAITS_ONLY = 1, 2, 4, 8, 16, 32
OLDEST, HELD = 0, 1
HEAD, TAIL = 0, 1
READY, WOKEN = 0, 1

READING = {"s", "cpy", "re", "rrs", "rrc", "rrcs"}
WRITING = {"r", "cpy", "re", "rcs", "rrc", "rrcs"}
_BITS = {
    "s": SENDS, "r": RECEIVES, "cpy": 0, "re": ADDS, "rcs": RECEIVES | SENDS,
    "rrs": RECEIVES | SENDS, "rrc": RECEIVES, "rrcs": RECEIVES | SENDS, "nop": WAITS_ONLY,
}  # fmt: skip


class Flat(NamedTuple):
    """A program in one mode; threadblocks, steps, connections, flags and cells are numbered.

    Parameters
    ----------
    blocks
        Of each threadblock its first step, the step after its last one, the connections that it
        receives from and sends to, and its flag.
    steps
        Of each step its kind in bits, its chunks, the cells of its first source and target, and
        the flag and the position that it waits for.
    inputs
        The cells of the inputs, rank by rank.
    outputs
        Of each output its cell, and from where to where in ``parts`` the inputs that it sums up
        are.
    parts
        Positions in ``inputs``.
    cells, flags, connections
        How many there are.
    slots, cut
        The most messages in a connection, and the most chunks in a message.
    """

    blocks: Rows
    steps: Rows
    inputs: Rows
    outputs: Rows
    parts: Rows
    cells: int
    flags: int
    connections: int
    slots: int
    cut: int


class State(NamedTuple):
    """How far a run is, and what is where.

    Parameters
    ----------
    draws
        The state of the random numbers.
    position, moved, behind
        Of each threadblock its step, the chunks of it that are done, and who waits behind it.
    flags
        The last position that each flag was posted with.
    waiting
        The first and the last threadblock that wait for each flag, arrival and room.
    queue, queued
        Threadblocks that may go on, and those that an action lets go on; how many of each.
    memory, given
        Numbers in cells; the inputs.
    fifos
        Of each connection the slot of the oldest message, and how many messages it holds.
    lengths, messages
        How many chunks are in each slot of each connection, and their numbers.
    """

    draws: Rows
    position: Rows
    moved: Rows
    behind: Rows
    flags: Rows
    waiting: Rows
    queue: Rows
    queued: Rows
    memory: Rows
    given: Rows
    fifos: Rows
    lengths: Rows
    messages: Rows


Runs = Callable[[Flat, State, int], int]


class _Numbers:
    """Numbers of cells, connections and flags; the cells of an operand follow one another."""

    def __init__(self, program: Program, *, in_place: bool) -> None:
        self.program, self.in_place = program, in_place
        self.connections: dict[tuple[int, int, int], int] = {}
        self.flags: dict[tuple[int, int], int] = {}
        found: dict[Region, list[int]] = {}
        for key in self.used():
            rank, buffer, offset = key_of(program, key, in_place=in_place)
            found.setdefault((rank, buffer), []).append(offset)
        self.base: dict[Region, int] = {}
        self.cells = 0
        for region, offsets in found.items():
            self.base[region] = self.cells - min(offsets)
            self.cells += max(offsets) - min(offsets) + 1

    def used(self) -> Iterator[Key]:
        """Yield the inputs, the outputs, and the first and last chunks of operands."""
        for rank in range(self.program.num_ranks):
            yield from ((rank, "i", at) for at in range(inputs_of(self.program)))
        yield from ((rank, "o", at) for rank, at, _ in wanted(self.program))
        for rank, block in self.program.blocks():
            for step in block.steps:
                for slot in (step.src, step.dst):
                    if slot is not None:
                        yield rank, slot.buffer.value, slot.offset
                        yield rank, slot.buffer.value, slot.offset + max(step.count - 1, 0)

    def cell(self, rank: int, buffer: str, offset: int) -> int:
        """Return the number of a cell."""
        rank, buffer, offset = key_of(self.program, (rank, buffer, offset), in_place=self.in_place)
        return self.base[rank, buffer] + offset

    def connection(self, src: int | None, dst: int | None, channel: int) -> int:
        """Return the number of a connection."""
        if src is None or dst is None:
            return NOTHING
        return self.connections.setdefault((src, dst, channel), len(self.connections))

    def flag(self, rank: int, block: int) -> int:
        """Return the number of the flag of a threadblock, which need not exist."""
        return self.flags.setdefault((rank, block), len(self.flags))

    def block(self, rank: int, block: Threadblock, first: int) -> list[int]:
        """Return the row of a threadblock."""
        incoming = self.connection(block.recv_from, rank, block.channel)
        outgoing = self.connection(rank, block.send_to, block.channel)
        return [first, first + len(block.steps), incoming, outgoing, self.flag(rank, block.id)]

    def step(self, rank: int, step: Step) -> list[int]:
        """Return the row of a step."""
        code, source, target = step.op.value, NOTHING, NOTHING
        kind = _BITS[code] | (POSTS if step.posts else 0)
        if step.count == 0:
            kind &= ~(SENDS | RECEIVES)
        if code in READING and step.src is not None:
            source = self.cell(rank, step.src.buffer.value, step.src.offset)
        if code in WRITING and step.dst is not None:
            key = rank, step.dst.buffer.value, step.dst.offset
            target = self.cell(*key)
            _, buffer, offset = key_of(self.program, key, in_place=self.in_place)
            if step.count > 0 and (buffer == "i" or offset < 0):
                kind |= SPOILS
        awaited = NOTHING, NOTHING
        if step.depends is not None:
            awaited = self.flag(rank, step.depends.threadblock), step.depends.step
        return [kind, step.count, source, target, *awaited]


def _rows(values: object, width: int) -> Rows:
    return np.array(values, dtype=np.int64).reshape(-1, width)


def flat(program: Program, runtime: str, *, in_place: bool) -> Flat:
    """Return a program as arrays."""
    numbers, size = _Numbers(program, in_place=in_place), inputs_of(program)
    blocks: list[list[int]] = []
    steps: list[list[int]] = []
    for rank, block in program.blocks():
        blocks.append(numbers.block(rank, block, len(steps)))
        steps += [numbers.step(rank, step) for step in block.steps]
    ranks = range(program.num_ranks)
    inputs = [numbers.cell(rank, "i", at) for rank in ranks for at in range(size)]
    outputs: list[list[int]] = []
    parts: list[int] = []
    for rank, offset, summed in wanted(program):
        first = len(parts)
        parts += [peer * size + at for peer, at in summed]
        outputs.append([numbers.cell(rank, "o", offset), first, len(parts)])
    return Flat(
        _rows(blocks, 5), _rows(steps, 6), _rows(inputs, 1), _rows(outputs, 3), _rows(parts, 1),
        numbers.cells, len(numbers.flags), len(numbers.connections),
        SLOTS[program.protocol], cut_of(program, runtime),
    )  # fmt: skip


def _state(flat: Flat, draws: Rows) -> State:
    def zeros(*shape: int) -> Rows:
        return np.zeros(shape, dtype=np.int64)

    blocks, connections = len(flat.blocks), flat.connections
    width = max(1, min(flat.cut, int(flat.steps[:, COUNT].max(initial=1))))
    return State(
        draws, zeros(blocks), zeros(blocks), zeros(blocks), zeros(flat.flags),
        zeros(flat.flags + 2 * connections, 2), zeros(2, blocks), zeros(2),
        zeros(flat.cells), zeros(len(flat.inputs)), zeros(connections, 2),
        zeros(connections * flat.slots), zeros(connections * flat.slots, width),
    )  # fmt: skip


def _below(state: State, bound: int) -> int:
    state.draws[0] = state.draws[0] * 48271 % 2147483647
    return int(state.draws[0] % bound)


def _reset(flat: Flat, state: State) -> None:
    """Forget the last run and draw new inputs."""
    state.moved[:] = 0
    state.flags[:] = NOTHING
    state.waiting[:, :] = NOTHING
    state.fifos[:, :] = 0
    state.memory[:] = NOTHING
    for number in range(len(flat.inputs)):
        high = _below(state, 1 << 30)
        state.given[number] = ((high << 30) ^ _below(state, 1 << 30)) % PRIME
        state.memory[flat.inputs[number, 0]] = state.given[number]
    state.queued[READY] = len(flat.blocks)
    state.queued[WOKEN] = 0
    for block in range(len(flat.blocks)):
        state.position[block] = flat.blocks[block, FIRST]
        state.queue[READY, block] = block


def _wait(state: State, what: int, block: int) -> None:
    """Put a threadblock behind those that wait for the same."""
    state.behind[block] = NOTHING
    if state.waiting[what, HEAD] == NOTHING:
        state.waiting[what, HEAD] = block
    else:
        state.behind[state.waiting[what, TAIL]] = block
    state.waiting[what, TAIL] = block


def _wake(state: State, what: int) -> None:
    """Let those go on that wait for something."""
    block = state.waiting[what, HEAD]
    while block != NOTHING:
        state.queue[WOKEN, state.queued[WOKEN]] = block
        state.queued[WOKEN] += 1
        block = state.behind[block]
    state.waiting[what, HEAD] = NOTHING


def _act(flat: Flat, state: State, block: int) -> int:
    """Do one message of a threadblock; return what it waits for."""
    at = state.position[block]
    if at == flat.blocks[block, END]:
        return NEVER
    awaited = flat.steps[at, AWAITED]
    begins = awaited != NOTHING and state.moved[block] == 0
    if begins and state.flags[awaited] < flat.steps[at, AWAITED_STEP]:
        return int(awaited)
    if flat.steps[at, KIND] & WAITS_ONLY:
        state.position[block] += 1
        return GO_ON
    return _transfer(flat, state, block)


def _missing(flat: Flat, state: State, block: int) -> int:
    """Return what holds a message up: no peer, nothing to receive, or no room to send."""
    kind = flat.steps[state.position[block], KIND]
    incoming, outgoing = flat.blocks[block, INCOMING], flat.blocks[block, OUTGOING]
    if (kind & RECEIVES and incoming == NOTHING) or (kind & SENDS and outgoing == NOTHING):
        return NEVER
    if kind & RECEIVES and state.fifos[incoming, HELD] == 0:
        return int(flat.flags + 2 * incoming)
    if kind & SENDS and state.fifos[outgoing, HELD] >= flat.slots:
        return int(flat.flags + 2 * outgoing + 1)
    return GO_ON


def _transfer(flat: Flat, state: State, block: int) -> int:
    awaited = _missing(flat, state, block)
    if awaited != GO_ON:
        return awaited
    at, first = state.position[block], state.moved[block]
    kind = flat.steps[at, KIND]
    length = min(flat.cut, flat.steps[at, COUNT] - first)
    taken, put = NOTHING, NOTHING
    if kind & RECEIVES:
        incoming = flat.blocks[block, INCOMING]
        oldest = state.fifos[incoming, OLDEST]
        taken = incoming * flat.slots + oldest
        state.fifos[incoming, OLDEST] = (oldest + 1) % flat.slots
        state.fifos[incoming, HELD] -= 1
        _wake(state, flat.flags + 2 * incoming + 1)
        if state.lengths[taken] != length:
            return SPOILT
    if kind & SENDS:
        outgoing = flat.blocks[block, OUTGOING]
        newest = state.fifos[outgoing, OLDEST] + state.fifos[outgoing, HELD]
        put = outgoing * flat.slots + newest % flat.slots
        state.fifos[outgoing, HELD] += 1
        state.lengths[put] = length
        _wake(state, flat.flags + 2 * outgoing)
    for index in range(length):
        arrived = state.messages[taken, index] if taken != NOTHING else NOTHING
        value = _chunk(flat, state, at, first + index, arrived)
        if put != NOTHING:
            state.messages[put, index] = value
    _advance(flat, state, block, first + length)
    return SPOILT if kind & SPOILS else GO_ON


def _add(one: int, two: int) -> int:
    return NOTHING if one == NOTHING or two == NOTHING else (one + two) % PRIME


def _chunk(flat: Flat, state: State, at: int, index: int, arrived: int) -> int:
    """Combine and store one chunk; return what is sent."""
    kind, source, target = flat.steps[at, KIND], flat.steps[at, SOURCE], flat.steps[at, TARGET]
    value = arrived
    if source != NOTHING:
        value = state.memory[source + index]
        if kind & RECEIVES:
            value = _add(value, arrived)
    if target != NOTHING:
        if kind & ADDS:
            value = _add(value, state.memory[target + index])
        state.memory[target + index] = value
    return value


def _advance(flat: Flat, state: State, block: int, moved: int) -> None:
    """Go on to the next step if all chunks of this one are done."""
    at = state.position[block]
    state.moved[block] = moved
    if moved < flat.steps[at, COUNT]:
        return
    if flat.steps[at, KIND] & POSTS:
        flag = flat.blocks[block, FLAG]
        state.flags[flag] = at - flat.blocks[block, FIRST]
        _wake(state, flag)
    state.position[block] += 1
    state.moved[block] = 0


def _turn(flat: Flat, state: State, last: int) -> bool:
    """Let a random threadblock do some actions; tell whether the run may still end right."""
    pick = _below(state, state.queued[READY])
    if state.queue[READY, pick] == last:
        pick = (pick + 1) % state.queued[READY]
    block = state.queue[READY, pick]
    for _ in range(BURSTS[_below(state, len(BURSTS))]):
        awaited = _act(flat, state, block)
        if awaited == SPOILT:
            return False
        if awaited != GO_ON:
            state.queued[READY] -= 1
            state.queue[READY, pick] = state.queue[READY, state.queued[READY]]
            if awaited != NEVER:
                _wait(state, awaited, block)
            break
    for number in range(state.queued[WOKEN]):
        state.queue[READY, state.queued[READY]] = state.queue[WOKEN, number]
        state.queued[READY] += 1
    state.queued[WOKEN] = 0
    return True


def _goes_right(flat: Flat, state: State) -> bool:
    """Run to the end; tell whether it ended with the right data."""
    _reset(flat, state)
    last = _below(state, 2 * len(flat.blocks) + 1)
    while state.queued[READY] > 0:
        if not _turn(flat, state, last):
            return False
    for block in range(len(flat.blocks)):
        if state.position[block] != flat.blocks[block, END]:
            return False
    for connection in range(flat.connections):
        if state.fifos[connection, HELD] > 0:
            return False
    for number in range(len(flat.outputs)):
        total = 0
        for part in range(flat.outputs[number, 1], flat.outputs[number, 2]):
            total = _add(total, state.given[flat.parts[part, 0]])
        if state.memory[flat.outputs[number, 0]] != total:
            return False
    return True


def _runs(flat: Flat, state: State, runs: int) -> int:
    """Return the first of so many runs that ends wrong, or how many there are."""
    for number in range(runs):
        if not _goes_right(flat, state):
            return number
    return runs


@cache
def _compiled() -> Runs:
    import numba
    from numba.extending import register_jitable

    # Without reference counts, which nothing here needs, it is many times as fast.
    options: dict[str, Any] = {"_nrt": False}
    for function in (
        _below, _reset, _wait, _wake, _act, _missing, _transfer, _add, _chunk, _advance, _turn,
        _goes_right,
    ):  # fmt: skip
        register_jitable(**options)(function)
    made: Runs = numba.njit(cache=True, **options)(_runs)
    return made


def first_wrong_run(program: Program, runtime: str, *, runs: int, seed: int) -> int | None:
    """Do what the function of this name in ``interleavings`` does, faster."""
    draws = np.array([Draws(seed).state], dtype=np.int64)
    for before, mode in enumerate(modes_of(program)):
        arrays = flat(program, runtime, in_place=mode)
        wrong = _compiled()(arrays, _state(arrays, draws), runs)
        if wrong < runs:
            return before * runs + wrong
    return None

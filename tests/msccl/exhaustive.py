"""Run a small program in every possible way: the yardstick of the interpreter.

One action moves one chunk of one step. A search visits every state that some interleaving of
such actions reaches (threadblocks of all ranks, FIFOs of a given capacity). It shares no code
with the interpreter or the lowering: aliasing, flags and expected results are spelled out anew.
"""

from collections import Counter
from typing import NamedTuple

from taccl.msccl.program import Program, Step, Threadblock

MAX_STATES = 400_000

Key = tuple[int, str, int]
"""Rank, buffer, offset."""
Connection = tuple[int | None, int | None, int]
Value = tuple[tuple[int, int], ...]
Process = tuple[int, Threadblock]


UNDEFINED: Value = ((-1, -1),)

EFFECTS = {
    "s": (False, True, False, False, True),
    "r": (True, False, False, True, False),
    "cpy": (False, True, False, True, False),
    "re": (False, True, True, True, False),
    "rcs": (True, False, False, True, True),
    "rrs": (True, True, False, False, True),
    "rrc": (True, True, False, True, False),
    "rrcs": (True, True, False, True, True),
}
"""Receives? Reads the source? Adds the target? Writes the target? Sends?"""


class State(NamedTuple):
    """Position and chunks done of every threadblock, FIFOs, memory."""

    at: tuple[tuple[int, int], ...]
    fifos: frozenset[tuple[Connection, tuple[Value, ...]]]
    memory: frozenset[tuple[Key, Value]]


def always_right(program: Program, *, in_place: bool, capacity: int) -> bool:
    """Tell whether every interleaving ends, leaves nothing over, and has the right outputs."""
    processes = list(program.blocks())
    first = State(((0, 0),) * len(processes), frozenset(), _start(program, in_place))
    seen, stack = {first}, [first]
    while stack:
        state = stack.pop()
        following = [
            after
            for number in range(len(processes))
            for after in _act(program, processes, state, number, (in_place, capacity))
        ]
        if None in following:
            return False
        if not following and not _ended_well(program, processes, state, in_place):
            return False
        for after in following:
            if after is not None and after not in seen:
                seen.add(after)
                stack.append(after)
        if len(seen) > MAX_STATES:
            raise RuntimeError("too many states: use a smaller program")
    return True


def _key(program: Program, rank: int, buffer: str, offset: int, in_place: bool) -> Key:
    """Return the memory behind a slot: in place, input and output are one buffer, ``u``."""
    share = program.chunks_per_loop // program.num_ranks
    if not in_place or buffer == "s":
        return rank, buffer, offset
    if program.collective == "allgather" and buffer == "i":
        return rank, "u", offset + rank * share
    if program.collective == "reducescatter" and buffer == "o":
        return rank, "u", offset + rank * share
    return rank, "u", offset


def _start(program: Program, in_place: bool) -> frozenset[tuple[Key, Value]]:
    share = program.chunks_per_loop // program.num_ranks
    size = share if program.collective == "allgather" else program.chunks_per_loop
    return frozenset(
        (_key(program, rank, "i", offset, in_place), ((rank, offset),))
        for rank in range(program.num_ranks)
        for offset in range(size)
    )


def _act(
    program: Program, processes: list[Process], state: State, number: int, run: tuple[bool, int]
) -> list[State | None]:
    """Return the states one action of a threadblock leads to; None stands for broken data."""
    rank, block = processes[number]
    position, done = state.at[number]
    if position == len(block.steps):
        return []
    step = block.steps[position]
    if step.depends is not None and done == 0 and not _posted(processes, state, rank, step):
        return []
    if step.op.value == "nop":
        return [_moved(state, number, block, dict(state.fifos), dict(state.memory))]
    return _transfer(program, state, number, (rank, block, step), run)


def _posted(processes: list[Process], state: State, rank: int, step: Step) -> bool:
    """Tell whether the awaited flag stands at the awaited position or beyond."""
    assert step.depends is not None
    for number, (owner, block) in enumerate(processes):
        if owner == rank and block.id == step.depends.threadblock:
            ended = block.steps[: state.at[number][0]]
            return any(s.posts for s in ended[step.depends.step :])
    return False


def _transfer(
    program: Program,
    state: State,
    number: int,
    where: tuple[int, Threadblock, Step],
    run: tuple[bool, int],
) -> list[State | None]:
    """Receive, combine, write and send one chunk, as far as the step does each."""
    rank, block, step = where
    in_place, capacity = run
    fifos, memory = dict(state.fifos), dict(state.memory)
    if step.count == 0:
        return [_moved(state, number, block, fifos, memory)]
    receives, reads, adds, writes, sends = EFFECTS[step.op.value]
    outgoing = (rank, block.send_to, block.channel)
    incoming = (block.recv_from, rank, block.channel)
    if sends and (block.send_to is None or len(fifos.get(outgoing, ())) >= capacity):
        return []
    if receives and not fifos.get(incoming):
        return []
    terms: list[Value] = [fifos[incoming][0]] if receives else []
    keys = [
        _key(program, rank, slot.buffer.value, slot.offset + state.at[number][1], in_place)
        if slot is not None
        else None
        for slot in (step.src if reads else None, step.dst if writes else None)
    ]
    terms += [memory.get(keys[0], UNDEFINED)] if keys[0] is not None else []
    terms += [memory.get(keys[1], UNDEFINED)] if adds and keys[1] is not None else []
    value = tuple(sorted(part for term in terms for part in term))
    if keys[1] is not None:
        if keys[1][1] == "i":
            return [None]
        memory[keys[1]] = value
    if receives:
        fifos[incoming] = fifos[incoming][1:]
    if sends:
        fifos[outgoing] = (*fifos.get(outgoing, ()), value)
    return [_moved(state, number, block, fifos, memory)]


def _moved(
    state: State,
    number: int,
    block: Threadblock,
    fifos: dict[Connection, tuple[Value, ...]],
    memory: dict[Key, Value],
) -> State:
    position, done = state.at[number]
    ended = done + 1 >= block.steps[position].count
    at = list(state.at)
    at[number] = (position + 1, 0) if ended else (position, done + 1)
    waiting = frozenset(item for item in fifos.items() if item[1])
    return State(tuple(at), waiting, frozenset(memory.items()))


def _ended_well(program: Program, processes: list[Process], state: State, in_place: bool) -> bool:
    if state.fifos:
        return False
    if any(at[0] < len(b.steps) for at, (_, b) in zip(state.at, processes, strict=True)):
        return False
    memory = dict(state.memory)
    return all(
        memory.get(_key(program, rank, "o", offset, in_place)) == wanted
        for rank, offset, wanted in _wanted(program)
    )


def _wanted(program: Program) -> list[tuple[int, int, Value]]:
    """Return (rank, output offset, value) for all that must hold at the end."""
    n, total = program.num_ranks, program.chunks_per_loop
    share = total // n
    wanted: list[tuple[int, int, Value]] = []
    for rank in range(n):
        for offset in range(share if program.collective == "reducescatter" else total):
            peer, inner = divmod(offset, share)
            value: Value = {
                "allgather": ((peer, inner),),
                "alltoall": ((peer, rank * share + inner),),
                "allreduce": tuple((r, offset) for r in range(n)),
                "reducescatter": tuple((r, rank * share + offset) for r in range(n)),
            }[program.collective]
            wanted.append((rank, offset, value))
    assert len(Counter((rank, offset) for rank, offset, _ in wanted)) == len(wanted)
    return wanted

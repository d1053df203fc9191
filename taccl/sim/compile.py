"""From a program and a size to what each threadblock does, message by message.

Nops become dependences of the next step, consecutive reductions into one place become one
operation with several sources (as the runtimes' parsers fuse them), and a step of ``count`` chunks
becomes messages of at most ``m`` chunks. All iterations but the last handle ``M`` bytes of every
chunk; the last one handles the rest.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

from taccl.errors import ProgramError
from taccl.msccl.program import Op, Program, Step, Threadblock
from taccl.sim.connect import Connection, Flight, wire
from taccl.sim.cost import MAX_ITERATIONS, PROTOCOL_FACTOR, ReplayModel, local_time
from taccl.topology import LocalCosts, Topology
from taccl.units import Time

MAX_MESSAGES = 3_000_000
"""Messages and pieces of local work in one replay, above which it would take minutes."""


class Action(NamedTuple):
    """One message, or one piece of local work, of a threadblock.

    Parameters
    ----------
    needs
        (block, position) pairs whose flag must have been posted.
    receives, flight
        Whether it takes a message, and the course of the message it sends, or None.
    local
        Work between the two, in picoseconds.
    posts
        The position that is posted when it is done; -1: nothing.
    step, size
        For the trace.
    """

    needs: tuple[tuple[int, int], ...]
    receives: bool
    flight: Flight | None
    local: Time
    posts: int
    step: int
    size: int


@dataclass(frozen=True, slots=True)
class Block:
    """One threadblock, ready to run.

    Parameters
    ----------
    rank, id
        Which.
    receives_on, sends_on
        Indices of its connections, or None.
    full, last
        What it does in every iteration but the last, and in the last.
    iterations
        How often it runs its list.
    """

    rank: int
    id: int
    receives_on: int | None
    sends_on: int | None
    full: tuple[Action, ...]
    last: tuple[Action, ...]
    iterations: int


@dataclass(frozen=True, slots=True)
class Compiled:
    """A program at one size, or several programs side by side.

    Parameters
    ----------
    blocks
        Of a program ascending by (rank, threadblock id): the order in which contested edges are
        served.
    connections
        What the blocks' indices point into.
    senders, receivers
        Block at each end of a connection; None where no step uses it.
    slots
        How many messages each connection holds.
    width
        Above every position: flags count ``iteration * width + position``.
    """

    blocks: tuple[Block, ...]
    connections: tuple[Connection, ...]
    senders: tuple[int | None, ...]
    receivers: tuple[int | None, ...]
    slots: tuple[int, ...]
    width: int


@dataclass(frozen=True, slots=True)
class _Part:
    """What the messages of an iteration depend on."""

    bytes_of_chunk: int
    chunks: int
    factor: Fraction
    local: LocalCosts


class _Fused(NamedTuple):
    """A step with the dependences of the nops before it and its number of sources."""

    position: int
    step: Step
    needs: tuple[tuple[int, int], ...]
    sources: int


def unfit(program: Program, size: int, model: ReplayModel) -> str:
    """Return why a program can't run at a size at all; empty when it can."""
    unit = program.chunks_per_loop * model.element_bytes
    if size <= 0 or size % unit:
        return (
            f"{size} bytes are not a multiple of {unit} (nchunksperloop"
            f" {program.chunks_per_loop} x {model.element_bytes}-byte elements)"
        )
    message, _ = model.of_protocol(program.protocol)
    iterations = -(-(size // program.chunks_per_loop) // message)
    if iterations > MAX_ITERATIONS:
        return f"needs {iterations} iterations, flags count only {MAX_ITERATIONS}"
    return ""


def count_messages(program: Program, size: int, model: ReplayModel) -> int:
    """Return how many messages and pieces of local work a replay follows."""
    message, _ = model.of_protocol(program.protocol)
    chunk = size // program.chunks_per_loop
    together = model.joined(program, chunk)
    return -(-chunk // message) * sum(
        max(1, -(-step.count // together)) for _, block in program.blocks() for step in block.steps
    )


def why_not(program: Program, size: int, model: ReplayModel) -> str:
    """Return why this replay can't follow a program at a size; empty when it can."""
    reason = unfit(program, size, model)
    if reason:
        return reason
    messages = count_messages(program, size, model)
    if messages > MAX_MESSAGES:
        return f"needs {messages} messages and copies, the replay follows at most {MAX_MESSAGES}"
    return ""


def compile_program(
    program: Program,
    topology: Topology,
    size: int,
    model: ReplayModel,
    *,
    route: bool = False,
    protocol_costs: bool = False,
) -> Compiled:
    """Return a program at a size that it can run at (see :func:`why_not`).

    Raises
    ------
    ProgramError
        When a connection has no link, or a step sends or receives without a peer.
    """
    wiring = wire(program, topology, route=route)
    message, slots = model.of_protocol(program.protocol)
    chunk = size // program.chunks_per_loop
    iterations = -(-chunk // message)
    factor = PROTOCOL_FACTOR[program.protocol] if protocol_costs else Fraction(1)
    count = model.joined(program, chunk)
    last = _Part(chunk - (iterations - 1) * message, count, factor, topology.local)
    full = replace(last, bytes_of_chunk=message)
    ends = sorted((rank, block.id) for rank, block in program.blocks())
    index = {end: number for number, end in enumerate(ends)}
    by_end = {(rank, block.id): block for rank, block in program.blocks()}
    wires: dict[tuple[int | None, int | None, int], int] = {
        (c.src, c.dst, c.channel): i for i, c in enumerate(wiring.connections)
    }
    blocks = []
    for rank, number in ends:
        block = by_end[rank, number]
        receives_on = wires.get((block.recv_from, rank, block.channel))
        sends_on = wires.get((rank, block.send_to, block.channel))
        wired = wiring.connections[sends_on] if sends_on is not None else None
        steps = tuple(_fused(rank, block, index))
        _check_peers(rank, block)
        parts = (
            _actions(steps, wired, full) if iterations > 1 else (),
            _actions(steps, wired, last),
        )
        blocks.append(Block(rank, number, receives_on, sends_on, *parts, iterations))
    return Compiled(
        tuple(blocks), wiring.connections,
        tuple(None if end is None else index[end] for end in wiring.senders),
        tuple(None if end is None else index[end] for end in wiring.receivers),
        (slots,) * len(wiring.connections), program.num_steps + 1,
    )  # fmt: skip


def _check_peers(rank: int, block: Threadblock) -> None:
    for position, step in enumerate(block.steps):
        if step.sends and block.send_to is None:
            raise no_peer(rank, block.id, position, sends=True)
        if step.receives and block.recv_from is None:
            raise no_peer(rank, block.id, position, sends=False)


def no_peer(rank: int, threadblock: int, position: int, *, sends: bool) -> ProgramError:
    """Return the error of a step that sends or receives without a peer."""
    return ProgramError(
        f"rank {rank} threadblock {threadblock} step {position}"
        f" {'sends' if sends else 'receives'}, but the threadblock has no peer for that",
        fix="name the peer in the threadblock",
    )


def _fused(rank: int, block: Threadblock, index: dict[tuple[int, int], int]) -> Iterator[_Fused]:
    """Yield the steps with nops folded into needs and runs of reductions merged.

    ``index`` numbers the threadblocks; one that does not exist gets a number that never posts.
    """
    pending: list[tuple[int, int]] = []
    held: _Fused | None = None
    for position, step in enumerate(block.steps):
        if step.depends is not None:
            target = index.get((rank, step.depends.threadblock), len(index))
            pending.append((target, step.depends.step))
        if step.op is Op.NOP:
            continue
        if held is not None and not pending and _merges(held.step, step):
            held = _Fused(position, step, held.needs, held.sources + 1)
            continue
        if held is not None:
            yield held
        held = _Fused(position, step, tuple(pending), 1)
        pending = []
    if held is not None:
        yield held


def _merges(before: Step, step: Step) -> bool:
    """Tell whether two neighbouring steps are one reduction with more sources."""
    if before.op is not Op.REDUCE or step.op is not Op.REDUCE or before.posts:
        return False
    same_buffer = (before.src and before.src.buffer) == (step.src and step.src.buffer)
    return before.dst == step.dst and same_buffer


def _actions(
    steps: tuple[_Fused, ...], connection: Connection | None, part: _Part
) -> tuple[Action, ...]:
    flights: dict[int, Flight] = {}
    actions = []
    for position, step, needs, sources in steps:
        messages = max(1, -(-step.count // part.chunks))
        for number in range(messages):
            chunks = min(part.chunks, step.count - number * part.chunks)
            size = chunks * part.bytes_of_chunk
            flight = None
            if step.sends and connection is not None:
                if size not in flights:
                    flights[size] = connection.flight(part.factor * size)
                flight = flights[size]
            posts = position if step.posts and number == messages - 1 else -1
            local = local_time(step.op, part.local, size, sources)
            actions.append(Action(needs, step.receives, flight, local, posts, position, size))
            needs = ()
    return tuple(actions)

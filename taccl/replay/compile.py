"""From a program and a size to what each threadblock does, message by message.

Nops become dependences of the next step, consecutive reductions into one place become one
operation with several sources (as the runtimes' parsers fuse them), and a step of ``count`` chunks
becomes messages of at most ``m`` chunks. All iterations but the last handle ``M`` bytes of every
chunk; the last one handles the rest.

Which link every connection of a program uses.

XML names only a peer and a channel. The connections of a pair, in order of channel, use the links
of the pair in turn: the i-th takes link ``i mod L``. Connections are what threadblocks name as
their ends, whether or not a step uses them.
"""

import heapq
import itertools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

from taccl.errors import ProgramError, TacclWarning
from taccl.msccl.program import RECEIVES, SENDS, Op, Program, Step, Threadblock
from taccl.replay.cost import MAX_ITERATIONS, PROTOCOL_FACTOR, ReplayModel, local_time
from taccl.topology.graph import LocalCosts, Topology
from taccl.units import Time, ceil_time

End = tuple[int, int]
"""Rank and threadblock id."""

ROUTED = -1
"""Stands for a link where a message is routed over several."""


@dataclass(frozen=True, slots=True)
class Connection:
    """One FIFO from a rank to a rank, with what a message on it costs.

    Parameters
    ----------
    src, dst, channel
        What the XML calls it.
    link
        The link it uses, or ``ROUTED``.
    alpha, overhead
        Of the link, or summed over the route, in picoseconds.
    max_beta
        The slowest edge's, in picoseconds for each byte.
    held
        Edges a message holds, each with its beta.
    """

    src: int
    dst: int
    channel: int
    link: int
    alpha: Time
    overhead: Time
    max_beta: Fraction
    held: tuple[tuple[int, Fraction], ...]

    def flight(self, size: Fraction | int) -> "Flight":
        """Return what a message of ``size`` bytes does to the network."""
        times: dict[Time, list[int]] = {}
        for edge, beta in self.held:
            times.setdefault(self.overhead + ceil_time(beta, size), []).append(edge)
        releases = tuple((time, tuple(times[time])) for time in sorted(times)) or ((0, ()),)
        return Flight(self.alpha + ceil_time(self.max_beta, size), releases)


@dataclass(frozen=True, slots=True)
class Flight:
    """The course of one message after its start.

    Parameters
    ----------
    arrival
        When it is at its destination.
    releases
        (when, edges released then), ascending; the last one frees the sending threadblock.
    """

    arrival: Time
    releases: tuple[tuple[Time, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class Wiring:
    """All connections of a program.

    Parameters
    ----------
    connections
        Ascending by (src, dst, channel).
    senders, receivers
        For each connection the threadblock with steps at that end, or None.
    """

    connections: tuple[Connection, ...]
    senders: tuple[End | None, ...]
    receivers: tuple[End | None, ...]


def wire(program: Program, topology: Topology, *, route: bool = False) -> Wiring:
    """Return the connections of a program on a topology.

    Parameters
    ----------
    program
        What is run.
    topology
        The machine.
    route
        Whether a pair without a link uses the shortest path through other ranks, whose edges a
        message holds all at once; warns once a pair.

    Raises
    ------
    ProgramError
        When the rank counts differ, a pair has no link, or two threadblocks share one end.
    """
    if program.num_ranks != topology.num_ranks:
        raise ProgramError(
            f"{program.name} has {program.num_ranks} ranks, {topology.name} has"
            f" {topology.num_ranks}",
            fix="use the topology the program was made for, or another --nodes",
        )
    named: dict[tuple[int, int, int], End] = {}
    senders: dict[tuple[int, int, int], End] = {}
    receivers: dict[tuple[int, int, int], End] = {}
    for rank, block in program.blocks():
        for key, sends in _ends(rank, block):
            named.setdefault(key, (rank, block.id))
            if any(step.op in (SENDS if sends else RECEIVES) for step in block.steps):
                claimed = senders if sends else receivers
                if key in claimed:
                    raise ProgramError(
                        f"rank {rank}: threadblocks {claimed[key][1]} and {block.id} share one end"
                        f" of the connection {key[0]} -> {key[1]} on channel {key[2]}",
                        fix="give each threadblock of a peer its own channel",
                    )
                claimed[key] = (rank, block.id)
    found: list[Connection] = []
    keys = sorted(named)
    for (src, dst), group in itertools.groupby(keys, key=lambda key: key[:2]):
        channels = [key[2] for key in group]
        found.extend(_pair(topology, (src, dst), channels, named, route=route))
    return Wiring(
        tuple(found),
        tuple(senders.get(key) for key in keys),
        tuple(receivers.get(key) for key in keys),
    )


def _ends(rank: int, block: Threadblock) -> Iterator[tuple[tuple[int, int, int], bool]]:
    if block.send_to is not None:
        yield (rank, block.send_to, block.channel), True
    if block.recv_from is not None:
        yield (block.recv_from, rank, block.channel), False


def _pair(
    topology: Topology,
    pair: tuple[int, int],
    channels: list[int],
    named: dict[tuple[int, int, int], End],
    *,
    route: bool,
) -> Iterator[Connection]:
    src, dst = pair
    inside = 0 <= src < topology.num_ranks and 0 <= dst < topology.num_ranks
    links = topology.links_between(src, dst) if inside else ()
    paths: list[tuple[int, ...]] = [(link,) for link in links]
    if not paths and route and inside:
        paths = _route(topology, src, dst)
    if not paths:
        rank, block = named[src, dst, channels[0]]
        raise ProgramError(
            f"{topology.name} has no link from rank {src} to rank {dst}, which threadblock {block}"
            f" of rank {rank} uses",
            fix="use the topology the program was made for, or --route to go through other ranks",
        )
    for position, channel in enumerate(channels):
        yield _connection(topology, (src, dst, channel), paths[position % len(paths)])


def _connection(topology: Topology, key: tuple[int, int, int], path: tuple[int, ...]) -> Connection:
    table = topology.links
    edges = dict.fromkeys(edge for link in path for edge in table.edges_of(link))
    betas = [(edge, topology.edges[edge].beta) for edge in edges]
    held = tuple((edge, beta) for edge, beta in betas if beta is not None)
    return Connection(
        *key,
        link=path[0] if len(path) == 1 else ROUTED,
        alpha=sum(int(table.alpha[link]) for link in path),
        overhead=sum(int(table.overhead[link]) for link in path),
        max_beta=max((beta for _, beta in held), default=Fraction(0)),
        held=held,
    )


def _route(topology: Topology, src: int, dst: int) -> list[tuple[int, ...]]:
    """Return the path of fewest links, then least alpha, then lowest ids; empty when none."""
    table = topology.links
    heap: list[tuple[int, Time, tuple[int, ...], int]] = [(0, 0, (), src)]
    done: set[int] = set()
    while heap:
        hops, alpha, path, rank = heapq.heappop(heap)
        if rank == dst and path:
            warnings.warn(
                f"{topology.name} has no link from rank {src} to rank {dst}; messages are routed"
                f" through rank {', '.join(str(int(table.src[link])) for link in path[1:])}",
                TacclWarning,
                stacklevel=2,
            )
            return [path]
        if rank in done:
            continue
        done.add(rank)
        for link in table.leaving(rank):
            step = (hops + 1, alpha + int(table.alpha[link]), (*path, link), int(table.dst[link]))
            heapq.heappush(heap, step)
    return []


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
    """Return why a program can't run at a size at all; empty when it can.

    Parameters
    ----------
    program
        What is run.
    size
        Bytes of the counted buffer.
    model
        The runtime's constants.
    """
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
    """Return how many messages and pieces of local work a replay follows.

    Parameters
    ----------
    program
        What is run.
    size
        Bytes of the counted buffer.
    model
        The runtime's constants.
    """
    message, _ = model.of_protocol(program.protocol)
    chunk = size // program.chunks_per_loop
    together = model.joined(program, chunk)
    return -(-chunk // message) * sum(
        max(1, -(-step.count // together)) for _, block in program.blocks() for step in block.steps
    )


def why_not(program: Program, size: int, model: ReplayModel) -> str:
    """Return why this replay can't follow a program at a size; empty when it can.

    Parameters
    ----------
    program
        What is run.
    size
        Bytes of the counted buffer.
    model
        The runtime's constants.
    """
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

    Parameters
    ----------
    program
        What is run.
    topology
        The machine.
    size
        Bytes of the counted buffer.
    model
        The runtime's constants.
    route, protocol_costs
        As for :func:`taccl.replay.interpreter.replay`.

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
    """Return the error of a step that sends or receives without a peer.

    Parameters
    ----------
    rank, threadblock, position
        Where the step is; the position counts steps from 0.
    sends
        Whether it sends.
    """
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

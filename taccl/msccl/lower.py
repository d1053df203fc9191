"""Turn a verified schedule into a threadblock program, pass by pass.

No program deadlocks, even when a connection holds one message. The order of events is a total
order in which every step comes after all that it waits for: the step before it in its threadblock
(threadblocks list their steps in this order), its dependences (which point back in it), for a
receive the send of its message, and for a send the work on the message before it on its
connection. So running the steps one by one in this order never waits, and since threadblocks,
FIFOs and flags only ever enable each other, every other run ends, too. This is where it matters
that a threadblock only sends or only receives, that receives go to slots nobody still reads, and
that nothing is fused.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from taccl.collectives import COLLECTIVES, Collective
from taccl.errors import LoweringError
from taccl.msccl.aliasing import Mode, mode_of
from taccl.msccl.blocks import (
    Block,
    Lane,
    assign_blocks,
    assign_channels,
    count_connections,
    lanes_of,
    ways_needed,
)
from taccl.msccl.buffers import Move, place_moves
from taccl.msccl.dependencies import find_dependences, write_steps
from taccl.msccl.order import Message, find_messages, order_events
from taccl.msccl.program import Gpu, Program, Slot, Step, StepRef, Threadblock
from taccl.msccl.runtimes import RUNTIMES
from taccl.schedule import Schedule
from taccl.topology import Topology

_HARD = RUNTIMES["executor"]
"""Its channels, offsets and dependence ids hold for every runtime that has more threadblocks."""


@dataclass(frozen=True, slots=True)
class LowerOptions:
    """What program to make of a schedule.

    Parameters
    ----------
    name
        The program's label; characters that the runtimes' reader does not take become ``_``.
    protocol
        ``Simple``, ``LL`` or ``LL128``.
    in_place, out_of_place
        The modes it has to serve; see :func:`modes_served`.
    instances
        Copies of the whole program, each for its share of every chunk.
    channels
        The most channels it may use; None: what every runtime has.
    min_bytes, max_bytes
        The size range, both inclusive.
    order
        One of ORDERS: how closely sends keep the schedule's order.
    slots
        Messages that a connection holds: a link that the schedule has more messages on at once
        gets several connections. None: one is enough for any link.
    max_steps, max_threadblocks
        Limits of the runtime, for each threadblock and each rank.
    """

    name: str
    protocol: str = "Simple"
    in_place: bool = True
    out_of_place: bool = True
    instances: int = 1
    channels: int | None = None
    min_bytes: int = 0
    max_bytes: int = 1 << 30
    order: str = "ports"
    slots: int | None = None
    max_steps: int = 64
    max_threadblocks: int = 64


def modes_served(collective: Collective) -> tuple[bool, bool]:
    """Return (in place, out of place): the modes one program serves at no extra cost.

    In place, alltoall overwrites input of other chunks, and staging costs copies that a call out
    of place does not need; so may a collective from a file. Everything else is right in both
    modes.
    """
    return collective.name in COLLECTIVES and collective.name != "alltoall", True


def lower(schedule: Schedule, options: LowerOptions) -> Program:
    """Turn a verified schedule into a threadblock program.

    Raises
    ------
    LoweringError
        When a limit on channels, threadblocks, steps or ids can't be kept.
    """
    full = schedule.expand()
    modes = _claimed_modes(full.collective, options)
    slots = full.slots()
    # Shares of neighbouring chunks are no neighbours, so instances rule batches out.
    singly = options.instances > 1
    messages = find_messages(full, slots, singly=singly)
    events = order_events(messages, full.topology, full.collective)
    moves, scratch = place_moves(messages, events, slots, modes, singly=singly)
    blocks, steps = _fit_blocks(moves, messages, full.topology, modes, options)
    return _assemble(full, options, scratch, blocks, steps)


def _claimed_modes(collective: Collective, options: LowerOptions) -> tuple[Mode, ...]:
    kind = COLLECTIVES.get(collective.name)
    if kind is not None and kind.xml_name is None:
        raise LoweringError(
            f"no runtime has a {collective.name} that a file can rely on",
            fix="use --schedule OUT.json, or --runtime none",
        )
    if kind is None and options.in_place:
        raise LoweringError(
            f"{collective.name} in place would overwrite what is still to be read",
            fix="use --outofplace",
        )
    claimed = ((True, options.in_place), (False, options.out_of_place))
    modes = tuple(
        mode_of(collective.name, collective.num_ranks, collective.chunks_in_size, in_place=in_place)
        for in_place, wanted in claimed
        if wanted
    )
    if not modes:
        raise LoweringError(
            "a program for neither in-place nor out-of-place calls is never run",
            fix="use --inplace, --outofplace or --both",
        )
    return modes


def _fit_blocks(
    moves: Sequence[Move],
    messages: Sequence[Message],
    topology: Topology,
    modes: Sequence[Mode],
    options: LowerOptions,
) -> tuple[list[Block], list[tuple[Step, ...]]]:
    """Assign threadblocks, cutting links into more parts until no threadblock is too long."""
    lanes = lanes_of(messages, topology)
    queued = Counter(lanes)
    ways = {} if options.slots is None else ways_needed(messages, lanes, options.slots)
    parts: dict[Lane, int] = {}
    while True:
        blocks = assign_blocks(moves, lanes, topology, parts, ways, options.instances)
        crowded = _crowded(blocks, [len(block.moves) for block in blocks], options.max_steps)
        if not crowded:
            waits = find_dependences(moves, blocks, modes, messages, topology, options.order)
            steps = write_steps(moves, blocks, waits)
            crowded = _crowded(blocks, [len(own) for own in steps], options.max_steps)
            if not crowded:
                return blocks, steps
        for lane, length in crowded.items():
            count = parts.get(lane, 1)
            parts[lane] = max(count + 1, -(-count * length // options.max_steps))
            if parts[lane] > 2 * queued[lane]:
                raise LoweringError(
                    f"one message from rank {lane.src} to rank {lane.dst} needs more than the"
                    f" {options.max_steps} steps a threadblock may have",
                    fix="lower --chunks, or synthesize with --batch none",
                )


def _crowded(blocks: Sequence[Block], lengths: Sequence[int], limit: int) -> dict[Lane, int]:
    """Return the lanes with too long threadblocks, and how long these are."""
    crowded: dict[Lane, int] = {}
    for block, length in zip(blocks, lengths, strict=True):
        if length > limit and block.lane is not None:
            crowded[block.lane] = max(length, crowded.get(block.lane, 0))
    return crowded


def _assemble(
    schedule: Schedule,
    options: LowerOptions,
    scratch: Sequence[int],
    blocks: Sequence[Block],
    steps: Sequence[tuple[Step, ...]],
) -> Program:
    """Put steps, threadblocks and ranks together, once for each instance."""
    collective, copies = schedule.collective, options.instances
    inputs, outputs = _buffers(collective)
    spans = count_connections(blocks)
    channels = assign_channels(
        {pair: span * copies for pair, span in spans.items()}, _HARD.max_blocks_per_channel
    )
    listed: list[list[Threadblock]] = [[] for _ in range(collective.num_ranks)]
    for block, own in zip(blocks, steps, strict=True):
        for copy in range(copies):
            channel = 0
            if block.pair is not None:
                channel = channels[block.pair][block.connection + copy * spans[block.pair]]
            listed[block.rank].append(
                Threadblock(
                    len(listed[block.rank]), block.send_to, block.recv_from, channel,
                    tuple(_replicate(step, copy, copies) for step in own),
                )
            )  # fmt: skip
    program = Program(
        name=re.sub(r"[^A-Za-z0-9_.,:+@ -]", "_", options.name)[:63] or "_",
        collective=collective.name if collective.name in COLLECTIVES else "custom",
        protocol=options.protocol,
        in_place=options.in_place,
        out_of_place=options.out_of_place,
        channels=1 + max((block.channel for own in listed for block in own), default=0),
        chunks_per_loop=collective.chunks_in_size * copies,
        min_bytes=options.min_bytes,
        max_bytes=options.max_bytes,
        gpus=tuple(
            Gpu(
                rank, inputs[rank] * copies, outputs[rank] * copies, scratch[rank] * copies,
                tuple(own),
            )
            for rank, own in enumerate(listed)
        ),
    )  # fmt: skip
    _check(program, options)
    return program


def _buffers(collective: Collective) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the chunks of every rank's input and output.

    ``custom`` is called with one count for both, which msccl compares with nchunksperloop.
    """
    if collective.name in COLLECTIVES:
        return collective.input_sizes, collective.output_sizes
    counted = (collective.chunks_in_size,) * collective.num_ranks
    return counted, counted


def _replicate(step: Step, copy: int, copies: int) -> Step:
    """Return a step for one share of its chunk: chunk x becomes x * copies + copy."""
    if copies == 1:
        return step
    return replace(
        step,
        src=_share(step.src, copy, copies),
        dst=_share(step.dst, copy, copies),
        depends=step.depends
        and StepRef(step.depends.threadblock * copies + copy, step.depends.step),
    )


def _share(slot: Slot | None, copy: int, copies: int) -> Slot | None:
    if slot is None or slot.offset < 0:
        return slot
    return Slot(slot.buffer, slot.offset * copies + copy)


def _check(program: Program, options: LowerOptions) -> None:
    """Raise for the first limit that can't be kept."""
    most_chunks = max(
        max(gpu.input_chunks, gpu.output_chunks, gpu.scratch_chunks) for gpu in program.gpus
    )
    longest_wait = max(
        (
            step.depends.threadblock
            for _, block in program.blocks()
            for step in block.steps
            if step.depends
        ),
        default=0,
    )
    limits: Mapping[str, tuple[int, int, str]] = {
        "channels": (
            program.channels, options.channels or _HARD.max_channels,
            "raise --channels, or lower --instances or --chunks",
        ),
        "threadblocks on a rank": (
            program.num_threadblocks, options.max_threadblocks,
            "lower --chunks or --instances, or use a sketch with fewer connections per gpu",
        ),
        "chunks in a buffer": (
            most_chunks, _HARD.max_offset + 1, "lower --chunks or --instances",
        ),
        "as the highest threadblock id that a step waits for": (
            longest_wait, _HARD.max_dependence_id,
            "lower --instances, or use a sketch with fewer connections per gpu",
        ),
        "steps in a threadblock": (program.num_steps, options.max_steps, "lower --chunks"),
    }  # fmt: skip
    for what, (value, allowed, fix) in limits.items():
        if value > allowed:
            raise LoweringError(
                f"the program needs {value} {what}, and {allowed} are allowed", fix=fix
            )

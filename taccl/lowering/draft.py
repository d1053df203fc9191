"""What of a lowering does not depend on threadblocks: messages, and moves in one legal order.

Events become moves: which slots each reads and writes.

Input is only read. Values that arrive whole go straight to the slot that holds them; values to be
added arrive in scratch of their own and are then added to the held slot, which starts as a copy
of the rank's own value. Nothing that a rank wants stays in its input: own chunks are copied to
the output, which in place is the identity and out of place is needed. Own chunks that travel
with relayed ones are copied to scratch, where those are, at the start.

Where a schedule packs (packing.py), chunks that are no neighbours are copied side by side before
they are sent. What a rank wants is copied to its output when it has arrived; what it only relays
stays where it arrived.

An alltoall in place overwrites input that other messages may still have to read. Such an arrival
is staged in scratch and copied to its place at the very end.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.collectives import COLLECTIVES, has_xml
from taccl.collectives.slots import SCRATCH, Place, Slots
from taccl.errors import LoweringError
from taccl.lowering.order import (
    Event,
    Kind,
    Lane,
    Message,
    find_messages,
    in_a_row,
    lanes_of,
    order_events,
    packed,
    shifted,
)
from taccl.model.schedule import Schedule
from taccl.msccl.expected import Cell, Mode, mode_of
from taccl.msccl.program import RECEIVES, Buffer, Op, Slot
from taccl.msccl.runtimes import MAX_COUNT


class Move(NamedTuple):
    """A step before threadblocks are known.

    It runs on a `rank`; `op`, `src` and `dst` are as in a step, and `chunks` are adjacent at both
    places. `message` is the one it belongs to, None: local work of the rank's own; `forward` is the
    message by which it sends on what it receives.
    """

    rank: int
    op: Op
    src: Slot | None
    dst: Slot | None
    chunks: int
    message: int | None
    forward: int | None = None

    @property
    def received(self) -> int | None:
        """The message that it receives."""
        return self.message if self.op in RECEIVES else None

    @property
    def sent(self) -> int | None:
        """The message that it sends."""
        return self.message if self.op is Op.SEND else self.forward


@dataclass(slots=True)
class _Layout:
    """What is known while moves are made; ``longest`` is the most chunks that one may have."""

    slots: Slots
    modes: tuple[Mode, ...]
    scratch: list[int]  # chunks in use on every rank
    longest: int
    packs: bool  # messages are of any chunks
    begun: set[tuple[int, int]] = field(default_factory=set)  # (chunk, rank) of sums
    arrival: dict[int, Slot] = field(default_factory=dict)  # scratch by number of the message
    landed: dict[tuple[int, int], Slot] = field(default_factory=dict)  # by (chunk, rank), if packs
    order: dict[int, tuple[int, ...]] = field(default_factory=dict)  # in which chunks travel

    def fresh(self, rank: int, count: int) -> Slot:
        """Return unused scratch."""
        offset = self.scratch[rank]
        self.scratch[rank] += count
        return Slot(Buffer.SCRATCH, offset)


@dataclass(frozen=True, eq=False)
class Draft:
    """A schedule as moves of data, from which programs are made.

    `schedule` has the sends of all orbits, `modes` are what its programs claim to serve. `messages`
    are in order of their starts, and numbers of messages are positions there; `lanes` has the link
    of each. `moves` are in one legal order, and `scratch` has the scratch chunks of every rank.
    """

    schedule: Schedule
    modes: tuple[Mode, ...]
    messages: Sequence[Message]
    lanes: Sequence[Lane]
    moves: Sequence[Move]
    scratch: Sequence[int]


def with_copies_after(draft: Draft, sends: Collection[int]) -> Draft:
    """Return ``draft`` with a copy of one chunk to scratch of its own right after some moves.

    ``sends`` has the positions of these moves, which send.
    """
    moves: list[Move] = []
    scratch = list(draft.scratch)
    for number, move in enumerate(draft.moves):
        moves.append(move)
        if number in sends:
            unread = Slot(Buffer.SCRATCH, scratch[move.rank])
            scratch[move.rank] += 1
            moves.append(Move(move.rank, Op.COPY, move.src, unread, 1, move.message))
    return replace(draft, moves=moves, scratch=scratch)


def make_draft(
    schedule: Schedule, *, in_place: bool, out_of_place: bool, singly: bool = False
) -> Draft:
    """Return the moves of a verified ``schedule``.

    They serve calls ``in_place`` and ``out_of_place``. With ``singly``, each is of one chunk:
    shares of neighbouring chunks, which instances work on, are no neighbours.

    Raises LoweringError when no program can serve these modes.
    """
    collective = schedule.collective
    if not has_xml(collective.name):
        raise LoweringError(
            f"no runtime has a {collective.name} that a file can rely on",
            fix="use --schedule OUT.json, or --runtime none",
        )
    if in_place and collective.name not in COLLECTIVES:
        raise LoweringError(
            f"{collective.name} in place would overwrite what is still to be read",
            fix="use --outofplace",
        )
    modes = tuple(
        mode_of(collective.name, collective.num_ranks, collective.chunks_in_size, in_place=claimed)
        for claimed, wanted in ((True, in_place), (False, out_of_place))
        if wanted
    )
    if not modes:
        raise LoweringError(
            "a program for neither in-place nor out-of-place calls is never run",
            fix="use --inplace, --outofplace or --both",
        )
    full = schedule.expand()
    slots = full.slots()
    messages = find_messages(full, slots, singly=singly)
    events = order_events(messages, full.topology, full.collective)
    longest = 1 if singly else MAX_COUNT
    layout = _Layout(slots, modes, list(slots.scratch_chunks), longest, full.packs)
    moves = [*_own_copies(layout, messages), *_own_staged(layout, messages)]
    staged = _staged(layout, messages, events)
    for number, kind in events:
        message = messages[number]
        if kind is Kind.SEND:
            moves += _send(layout, message, number)
        elif kind is Kind.RECEIVE:
            moves += _receive(layout, message, number, staged=number in staged)
        else:
            moves += _add(layout, message, number)
    for number in staged:
        moves += _unpacked(layout, messages[number], number)
    lanes = lanes_of(messages, full.topology)
    return Draft(full, modes, messages, lanes, moves, layout.scratch)


def _slot(place: Place) -> Slot:
    return Slot(Buffer(place.buffer), place.offset)


def _held(layout: _Layout, chunk: int, rank: int) -> Slot:
    place = layout.slots.held(chunk, rank)
    if place is None:
        raise ValueError(f"rank {rank} has no place for chunk {chunk}")
    return _slot(place)


def _readable(layout: _Layout, message: Message) -> dict[int, list[Slot]]:
    """Return the slots from which each chunk can be sent, the preferred one first."""
    rank, slots = message.src, layout.slots
    read = {}
    if not layout.packs:
        run = slots.source_run(message.chunks, rank, message.arrived)
        if run is None:
            raise ValueError(f"rank {rank} does not hold chunks {message.chunks} in a row")
        return {c: [shifted(_slot(run[0]), i)] for i, c in enumerate(message.chunks)}
    for chunk, arrived in zip(message.chunks, message.arrived, strict=True):
        landed = layout.landed.get((chunk, rank))
        own = slots.readable(chunk, rank, arrived=arrived)
        if not slots.collective.reduces:
            # What is relayed is nowhere but where it arrived, and no own value is staged.
            own = tuple(place for place in own if place.buffer != SCRATCH)
        read[chunk] = [*(() if landed is None else (landed,)), *map(_slot, own)]
    return read


def _send(layout: _Layout, message: Message, number: int) -> Iterator[Move]:
    """Send from one run of slots, to which what lies elsewhere is copied before.

    Own values that are read with sums have to be there, too.
    """
    rank, count, read = message.src, len(message.chunks), _readable(layout, message)
    chunks, places = message.chunks, [slots[0] for slots in read.values()]
    if layout.packs:
        # Sums are added in any order, so they are not copied on arrival.
        kept = {
            chunk: (None if message.reduce else _kept(layout, chunk, message.dst))
            for chunk in message.chunks
        }
        chunks, places = packed(message.chunks, read, kept)
    layout.order[number] = chunks
    if layout.slots.collective.reduces:
        sums = [c for c, slot in zip(chunks, places, strict=True) if slot.buffer != Buffer.INPUT]
        yield from _begin_sums(layout, sums, rank, number)
    source = places[0]
    if not in_a_row(places):
        source = layout.fresh(rank, count)
        pairs = [(place, shifted(source, index)) for index, place in enumerate(places)]
        yield from _runs(layout, Op.COPY, rank, pairs, number)
    yield Move(rank, Op.SEND, source, None, count, number)


def _receive(layout: _Layout, message: Message, number: int, *, staged: bool) -> Iterator[Move]:
    count, rank = len(message.chunks), message.dst
    chunks = layout.order[number]
    if message.reduce:
        yield from _begin_sums(layout, chunks, rank, number)
    else:
        layout.begun.update((chunk, rank) for chunk in chunks)
        kept = [_kept(layout, chunk, rank) for chunk in chunks]
        if not staged and in_a_row(kept):
            yield Move(rank, Op.RECV, None, kept[0], count, number)
            return
    slot = layout.arrival[number] = layout.fresh(rank, count)
    yield Move(rank, Op.RECV, None, slot, count, number)
    if layout.packs and not layout.slots.collective.reduces:
        for place, chunk in enumerate(chunks):
            layout.landed[chunk, rank] = shifted(slot, place)
    if not (message.reduce or staged):
        yield from _unpacked(layout, message, number)


def _unpacked(layout: _Layout, message: Message, number: int) -> Iterator[Move]:
    """Copy what arrived in scratch to where the rank keeps it."""
    pairs = []
    for place, chunk in enumerate(layout.order[number]):
        kept = _kept(layout, chunk, message.dst)
        if kept is not None:
            pairs.append((shifted(layout.arrival[number], place), kept))
    yield from _runs(layout, Op.COPY, message.dst, pairs, number)


def _kept(layout: _Layout, chunk: int, rank: int) -> Slot | None:
    """Return where a rank keeps what arrives; None where it stays where it arrived."""
    collective = layout.slots.collective
    if layout.packs and not (collective.reduces or collective.is_target(chunk, rank)):
        return None
    return _held(layout, chunk, rank)


def _begin_sums(layout: _Layout, chunks: Sequence[int], rank: int, number: int) -> Iterator[Move]:
    """Copy a rank's own values to where the sums will be, before anything is added."""
    pairs = []
    for chunk in chunks:
        own = layout.slots.original(chunk, rank)
        if (chunk, rank) not in layout.begun and own is not None:
            layout.begun.add((chunk, rank))
            pairs.append((_slot(own), _held(layout, chunk, rank)))
    yield from _runs(layout, Op.COPY, rank, pairs, number)


def _add(layout: _Layout, message: Message, number: int) -> Iterator[Move]:
    """Add an arrival to the sums; a sum that has not begun is a copy of it."""
    rank, arrival = message.dst, layout.arrival[number]
    new: list[tuple[Slot, Slot]] = []
    old: list[tuple[Slot, Slot]] = []
    for index, chunk in enumerate(layout.order[number]):
        pair = (shifted(arrival, index), _held(layout, chunk, rank))
        (old if (chunk, rank) in layout.begun else new).append(pair)
        layout.begun.add((chunk, rank))
    for op, pairs in ((Op.COPY, new), (Op.REDUCE, old)):
        yield from _runs(layout, op, rank, pairs, number)


def _runs(
    layout: _Layout, op: Op, rank: int, pairs: Iterable[tuple[Slot, Slot]], number: int | None
) -> Iterator[Move]:
    """Yield moves from slot to slot, each for a run of pairs that are adjacent on both sides.

    Those from a cell to itself in all claimed modes are left out.
    """
    cells = [mode.cell for mode in layout.modes]
    run: Move | None = None
    for src, dst in pairs:
        if all(cell(rank, src) == cell(rank, dst) for cell in cells):
            continue
        if run is not None and run.src is not None and run.dst is not None:
            beside = (shifted(run.src, run.chunks), shifted(run.dst, run.chunks))
            if run.chunks < layout.longest and beside == (src, dst):
                run = run._replace(chunks=run.chunks + 1)
                continue
            yield run
        run = Move(rank, op, src, dst, 1, number)
    if run is not None:
        yield run


def _own_copies(layout: _Layout, messages: Sequence[Message]) -> Iterator[Move]:
    """Copy to the output what a rank wants and nothing arrives for."""
    collective = layout.slots.collective
    arriving = {(chunk, message.dst) for message in messages for chunk in message.chunks}
    both: dict[tuple[int, int], list[int]] = {}
    pairs: dict[int, list[tuple[Slot, Slot]]] = defaultdict(list)
    columns = zip(collective.source_set.tolist(), collective.target_set.tolist(), strict=True)
    for chunk, key in enumerate(columns):
        if key not in both:
            sources, targets = (collective.rank_sets[number] for number in key)
            both[key] = sorted(set(sources) & set(targets))
        for rank in both[key]:
            if not (collective.reduces and (chunk, rank) in arriving):
                own, held = layout.slots.original(chunk, rank), layout.slots.held(chunk, rank)
                if own is not None and held is not None:
                    pairs[rank].append((_slot(own), _slot(held)))
    for rank in sorted(pairs):
        yield from _runs(layout, Op.COPY, rank, pairs[rank], None)


def _own_staged(layout: _Layout, messages: Sequence[Message]) -> Iterator[Move]:
    """Copy to scratch the own chunks of a rank that travel with chunks which it relays."""
    if layout.packs or layout.slots.collective.reduces:
        return
    pairs: dict[int, set[tuple[Slot, Slot]]] = defaultdict(set)
    for message in messages:
        for chunk, (there,) in _readable(layout, message).items():
            own = layout.slots.original(chunk, message.src)
            if there.buffer is Buffer.SCRATCH and own is not None:
                pairs[message.src].add((_slot(own), there))
    for rank in sorted(pairs):
        yield from _runs(layout, Op.COPY, rank, sorted(pairs[rank]), None)


def _staged(
    layout: _Layout, messages: Sequence[Message], events: Sequence[Event]
) -> dict[int, None]:
    """Return the messages that arrive where input of another chunk is still to be read."""
    mode = next((mode for mode in layout.modes if mode.in_place), None)
    if mode is None or layout.slots.collective.reduces:
        return {}
    position = {event: place for place, event in enumerate(events)}
    last_read: dict[tuple[int, Cell], int] = {}
    for place, (number, kind) in enumerate(events):
        message = messages[number]
        if kind is Kind.SEND:
            # Where it is read before anything is known of what landed.
            for slots in _readable(layout, message).values():
                if slots and slots[0].buffer is Buffer.INPUT:
                    last_read[message.src, mode.cell(message.src, slots[0])] = place
    staged: dict[int, None] = {}
    for number, message in enumerate(messages):
        arrives = position[Event(number, Kind.RECEIVE)]
        kept = (_kept(layout, chunk, message.dst) for chunk in message.chunks)
        cells = [mode.cell(message.dst, slot) for slot in kept if slot is not None]
        if any(last_read.get((message.dst, cell), -1) > arrives for cell in cells):
            staged[number] = None
    return staged


AREAS = {buffer: area for area, buffer in enumerate(Buffer)}
"""Numbers of the buffers."""


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """What every move reads from and writes to, as numbers of parts.

    All numbers are below `count`; `sources` and `targets` are neighbouring parts, in order, by mode
    and by the position of a move.
    """

    count: int
    sources: tuple[Sequence[range], ...]
    targets: tuple[Sequence[range], ...]

    def of(self, place: int) -> Iterator[tuple[range, range]]:
        """Yield source and target of a move, mode by mode."""
        for sources, targets in zip(self.sources, self.targets, strict=True):
            yield sources[place], targets[place]


def find_parts(moves: Sequence[Move], modes: Sequence[Mode]) -> Parts:
    """Return the parts that ``moves``, in one legal order, touch in the claimed ``modes``."""
    ranks = np.array([move.rank for move in moves], dtype=np.int64)
    chunks = np.array([move.chunks for move in moves], dtype=np.int64)
    sides = [_side([move.src for move in moves]), _side([move.dst for move in moves])]
    shift = max((max(*mode.input_shift, *mode.output_shift) for mode in modes), default=0)
    width = shift + 1 + max(int((offset + chunks).max(initial=0)) for _, offset in sides)
    span = width * len(AREAS) * (1 + int(ranks.max(initial=0)))
    starts = [
        number * span + (ranks * len(AREAS) + area) * width + offset
        for number, mode in enumerate(modes)
        for area, offset in (_placed(mode, ranks, *side) for side in sides)
    ]
    lengths = [np.where(area < 0, 0, chunks) for area, _ in sides] * len(modes)
    both = np.array([starts, np.add(starts, lengths)])
    cuts = np.unique(both[:, np.array(lengths) > 0])
    found = [
        [range(*ends) for ends in zip(*np.searchsorted(cuts, side).tolist(), strict=True)]
        for side in both.swapaxes(0, 1)
    ]
    return Parts(len(cuts), tuple(found[::2]), tuple(found[1::2]))


def _side(slots: Sequence[Slot | None]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return area and offset of slots; an area below 0: there is none."""
    areas = [-1 if slot is None else AREAS[slot.buffer] for slot in slots]
    offsets = [0 if slot is None else slot.offset for slot in slots]
    return np.array(areas, dtype=np.int64), np.array(offsets, dtype=np.int64)


def _placed(
    mode: Mode, ranks: NDArray[np.int64], area: NDArray[np.int64], offset: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return area and offset of cells: in place, input and output are one area."""
    if not mode.in_place:
        return area, offset
    inside, outside = AREAS[Buffer.INPUT], AREAS[Buffer.OUTPUT]
    for buffer, shifts in ((inside, mode.input_shift), (outside, mode.output_shift)):
        offset = offset + np.where(area == buffer, np.array(shifts, dtype=np.int64)[ranks], 0)
    return np.where(area == outside, inside, area), offset

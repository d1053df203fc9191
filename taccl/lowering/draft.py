"""What of a lowering does not depend on threadblocks: messages, and moves in one legal order."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from taccl.collectives import COLLECTIVES, has_xml
from taccl.errors import LoweringError
from taccl.lowering.buffers import Move, place_moves
from taccl.lowering.order import Lane, Message, find_messages, lanes_of, order_events
from taccl.model.schedule import Schedule
from taccl.msccl.expected import Mode, mode_of
from taccl.msccl.program import Buffer, Op, Slot


@dataclass(frozen=True, eq=False)
class Draft:
    """A schedule as moves of data, from which programs are made.

    Parameters
    ----------
    schedule
        With the sends of all orbits.
    modes
        What its programs claim to serve.
    messages
        In order of their starts; numbers of messages are positions here.
    lanes
        The link of every message.
    moves
        In one legal order.
    scratch
        Scratch chunks of every rank.
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

    Raises
    ------
    LoweringError
        When no program can serve these modes.
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
    moves, scratch = place_moves(messages, events, slots, modes, singly=singly, packs=full.packs)
    return Draft(full, modes, messages, lanes_of(messages, full.topology), moves, scratch)

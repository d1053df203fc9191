"""Moves that one step can do: receive and add, receive and send on, and all three.

A value that is received whole and then added to a sum needs no scratch: ``rrc`` adds it as it
arrives, and where the sum would start as a copy of the rank's own value, reads that. What is
received and sent on becomes ``rcs`` or ``rrcs``, or ``rrs`` where nobody reads the sum later; then
one threadblock has both connections, which must have the same number, and so the same channel.

A threadblock does one step at a time, and a fused step posts only when its send is over. So two
connections join only where the schedule never has work for both at once, and a step is fused only
where whatever else reads the value starts after it was sent on.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from taccl.msccl.aliasing import Cell
from taccl.msccl.blocks import End
from taccl.msccl.buffers import Move
from taccl.msccl.draft import Draft
from taccl.msccl.program import READS_SOURCE, WRITES_TARGET, Op, Slot
from taccl.units import Time

FORWARDED: Mapping[Op, tuple[Op, Op]] = {
    Op.RECV: (Op.RECV_COPY_SEND, Op.RECV_COPY_SEND),
    Op.RECV_REDUCE_COPY: (Op.RECV_REDUCE_COPY_SEND, Op.RECV_REDUCE_SEND),
}
"""What a receive becomes when its value is sent on: kept as well, or not."""

Access = tuple[int, bool, bool]
"""Position of a move, and whether it reads and writes."""


@dataclass(slots=True)
class _Accesses:
    """Which moves touch which cells, in order, in every claimed mode."""

    draft: Draft
    of: dict[tuple[int, int, Cell], list[Access]] = field(default_factory=lambda: defaultdict(list))

    def note(self, moves: Sequence[Move | None]) -> "_Accesses":
        """Record all moves that are left."""
        for place, move in enumerate(moves):
            if move is None:
                continue
            touched: dict[tuple[int, int, Cell], list[bool]] = {}
            for key in self._cells(move.rank, move.src, move.chunks):
                touched.setdefault(key, [False, False])[0] |= move.op in READS_SOURCE
            for key in self._cells(move.rank, move.dst, move.chunks):
                flags = touched.setdefault(key, [False, False])
                flags[1] |= move.op in WRITES_TARGET
                flags[0] |= move.op is Op.REDUCE
            for key, (reads, writes) in touched.items():
                self.of[key].append((place, reads, writes))
        return self

    def _cells(self, rank: int, slot: Slot | None, count: int) -> Iterator[tuple[int, int, Cell]]:
        if slot is None:
            return
        for number, mode in enumerate(self.draft.modes):
            for index in range(count):
                place = Slot(slot.buffer, slot.offset + index)
                yield number, rank, mode.cell(rank, place)

    def after(self, place: int, rank: int, slot: Slot | None, count: int) -> Iterator[list[Access]]:
        """Yield, cell by cell, what touches a slot after a position."""
        for key in self._cells(rank, slot, count):
            known = self.of[key]
            yield known[bisect_right(known, (place, True, True)) :]

    def between(self, first: int, last: int, move: Move, *, besides: Collection[int] = ()) -> bool:
        """Tell whether something between two positions conflicts with a move."""
        for slot, writes in ((move.dst, True), (move.src, False)):
            for accesses in self.after(first, move.rank, slot, move.chunks):
                for place, _, wrote in accesses:
                    if place >= last:
                        break
                    if place not in besides and (writes or wrote):
                        return True
        return False


def fuse_sums(draft: Draft) -> Draft:
    """Return the draft with values that are added as they arrive."""
    moves: list[Move | None] = list(draft.moves)
    accesses = _Accesses(draft).note(moves)
    of: dict[int, list[int]] = defaultdict(list)
    for place, move in enumerate(draft.moves):
        if move.message is not None and move.rank == draft.messages[move.message].dst:
            of[move.message].append(place)
    for number, places in of.items():
        *before, received, added = places if len(places) > 1 else (-1, -1)
        if received < 0:
            continue
        first, second = draft.moves[received], draft.moves[added]
        whole = first.dst == second.src and first.chunks == second.chunks
        if first.op is not Op.RECV or second.op is not Op.REDUCE or not whole:
            continue
        source = second.dst
        for place in before:
            copy = draft.moves[place]
            same = copy.op is Op.COPY and (copy.dst, copy.chunks) == (second.dst, second.chunks)
            if same and not accesses.between(place, added, copy):
                source, moves[place] = copy.src, None
        moves[received] = None
        moves[added] = Move(
            second.rank, Op.RECV_REDUCE_COPY, source, second.dst, second.chunks, number
        )
    return replace(draft, moves=[move for move in moves if move is not None])


def fuse_sends(
    draft: Draft, connection: Mapping[int, int], ops: Collection[Op]
) -> tuple[Draft, dict[End, End]]:
    """Return the draft with values that are sent on as they arrive.

    With it come the ends of connections that share a threadblock: receiving to sending.

    Parameters
    ----------
    connection
        Message to the number of its connection among those of the pair.
    ops
        What the runtime can run.
    """
    accesses = _Accesses(draft).note(draft.moves)
    joins: dict[End, End] = {}
    taken: set[End] = set()
    moves: list[Move | None] = list(draft.moves)
    keys: dict[int, tuple[int, int]] = {}
    ends = _ends(draft, connection)
    for incoming, outgoing in _by_gain(_pairs(draft, accesses, connection, ops)):
        if incoming in joins or outgoing in taken:
            continue
        pairs = _pairs_between(draft, accesses, connection, ops, (incoming, outgoing))
        plan = _plan(draft, accesses, ends[incoming], ends[outgoing], dict(pairs))
        if plan is None:
            continue
        joins[incoming] = outgoing
        taken.add(outgoing)
        for place, (key, move) in plan.items():
            moves[place], keys[place] = move, key
    order = sorted(range(len(moves)), key=lambda place: keys.get(place, (place, 0)))
    kept = [move for place in order if (move := moves[place]) is not None]
    return replace(draft, moves=kept), joins


def _ends(draft: Draft, connection: Mapping[int, int]) -> dict[End, list[int]]:
    """Return the positions of the moves that receive or send at each end."""
    ends: dict[End, list[int]] = defaultdict(list)
    for place, move in enumerate(draft.moves):
        for number, sends in ((move.received, False), (move.sent, True)):
            if number is not None:
                ends[move.rank, draft.lanes[number], connection[number], sends].append(place)
    return ends


def _pairs(
    draft: Draft, accesses: _Accesses, connection: Mapping[int, int], ops: Collection[Op]
) -> Iterator[tuple[End, End]]:
    """Yield the ends of every receive and send that could be one step."""
    for place, move in enumerate(draft.moves):
        if move.received is None:
            continue
        lane, number = draft.lanes[move.received], connection[move.received]
        for at in _forwards(draft, accesses, place, ops):
            sent = draft.moves[at].message
            if sent is not None and connection[sent] == number:
                yield (
                    (move.rank, lane, number, False),
                    (move.rank, draft.lanes[sent], number, True),
                )


def _by_gain(pairs: Iterable[tuple[End, End]]) -> list[tuple[End, End]]:
    counted = Counter(pairs)
    return sorted(counted, key=lambda pair: (-counted[pair], pair))


def _pairs_between(
    draft: Draft,
    accesses: _Accesses,
    connection: Mapping[int, int],
    ops: Collection[Op],
    ends: tuple[End, End],
) -> Iterator[tuple[int, int]]:
    """Yield the positions of the receives and sends of two ends that could be one step."""
    (_, lane, number, _), (_, out, _, _) = ends
    for place, move in enumerate(draft.moves):
        if move.received is None or draft.lanes[move.received] != lane:
            continue
        if connection[move.received] != number:
            continue
        for at in _forwards(draft, accesses, place, ops):
            sent = draft.moves[at].message
            if sent is not None and draft.lanes[sent] == out and connection[sent] == number:
                yield place, at
                break


def _forwards(draft: Draft, accesses: _Accesses, place: int, ops: Collection[Op]) -> Iterator[int]:
    """Yield the sends that could be part of a receiving step.

    They send exactly what it receives, nothing touches that in between, and who reads it later
    starts after it was sent.
    """
    move = draft.moves[place]
    if move.op not in FORWARDED or not set(FORWARDED[move.op]) <= set(ops):
        return
    readers = next(accesses.after(place, move.rank, move.dst, 1), [])
    for at, _, _ in readers:
        send = draft.moves[at]
        if send.op is not Op.SEND or (send.src, send.chunks) != (move.dst, move.chunks):
            return
        if not accesses.between(place, at, move) and _late_enough(draft, accesses, move, at):
            yield at
        return


def _late_enough(draft: Draft, accesses: _Accesses, move: Move, at: int) -> bool:
    """Tell whether all that touches the value after its send starts when that is over."""
    sent = draft.moves[at].message
    over = 0 if sent is None else draft.messages[sent].released
    return all(
        _times(draft, draft.moves[place])[0] >= over
        for accessed in accesses.after(at, move.rank, move.dst, move.chunks)
        for place, _, _ in accessed
    )


def _times(draft: Draft, move: Move) -> tuple[Time, Time]:
    """Return when a move may start in the schedule, and when it is over."""
    if move.sent is not None:
        message = draft.messages[move.sent]
        return message.start, message.released
    if move.message is not None:
        message = draft.messages[move.message]
        return message.end, message.end
    return 0, 0


def _plan(
    draft: Draft,
    accesses: _Accesses,
    receiving: Sequence[int],
    sending: Sequence[int],
    pairs: Mapping[int, int],
) -> dict[int, tuple[tuple[int, int], Move | None]] | None:
    """Return the moves of two ends in one threadblock by position, with where they go; or None.

    A fused step goes where its send was, and receives stay in order. None where the schedule has
    work for both ends at once.
    """
    plan: dict[int, tuple[tuple[int, int], Move | None]] = {}
    last = (-1, 0)
    for place in receiving:
        move = draft.moves[place]
        key = (pairs.get(place, place), 0)
        if key <= last:
            key = (last[0], last[1] + 1)
        if place in pairs:
            if key[0] != pairs[place]:
                return None
            sent = draft.moves[pairs[place]].message
            move = _forwarding(accesses, move, pairs[place])._replace(forward=sent)
            plan[pairs[place]] = (key, None)
        elif key[0] > place and accesses.between(place, key[0] + 1, move):
            return None
        plan[place] = (key, move)
        last = key
    fused = set(pairs.values())
    both = [entry for entry in plan.values() if entry[1] is not None]
    both += [((place, 0), draft.moves[place]) for place in sending if place not in fused]
    both.sort(key=lambda entry: entry[0])
    times = [_times(draft, move) for _, move in both if move is not None]
    if any(one[1] > two[0] for one, two in pairwise(times)):
        return None
    return plan


def _forwarding(accesses: _Accesses, move: Move, at: int) -> Move:
    """Return a receive that sends on; a sum is kept only where somebody reads it later."""
    kept, passed = FORWARDED[move.op]
    later = accesses.after(at, move.rank, move.dst, move.chunks)
    if kept is passed or any(cell and cell[0][1] for cell in later):
        return move._replace(op=kept)
    if move.dst is not None and move.dst.buffer.value == "o":
        wanted = any(not cell for cell in accesses.after(at, move.rank, move.dst, move.chunks))
        if wanted:
            return move._replace(op=kept)
    return move._replace(op=passed, dst=None)

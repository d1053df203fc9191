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
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from taccl.lowering.blocks import End
from taccl.lowering.draft import Draft, Move, Parts, find_parts
from taccl.msccl.program import READS_SOURCE, WRITES_TARGET, Buffer, Op
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
    """Which moves of a draft touch which parts of memory, in order, in every claimed mode."""

    draft: Draft
    parts: Parts = field(init=False)
    of: list[list[Access]] = field(init=False)

    def __post_init__(self) -> None:
        """Record all moves."""
        self.parts = find_parts(self.draft.moves, self.draft.modes)
        self.of = [[] for _ in range(self.parts.count)]
        for place, move in enumerate(self.draft.moves):
            reads, writes = move.op in READS_SOURCE, move.op in WRITES_TARGET
            adds = move.op is Op.REDUCE
            for source, target in self.parts.of(place):
                for part in source:
                    if part not in target:
                        self.of[part].append((place, reads, False))
                for part in target:
                    self.of[part].append((place, adds or (reads and part in source), writes))

    def target(self, place: int, since: int) -> Iterator[list[Access]]:
        """Yield, part by part, what touches the target of a move after a position."""
        for _, target in self.parts.of(place):
            for part in target:
                yield self._since(part, since)

    def _since(self, part: int, since: int) -> list[Access]:
        known = self.of[part]
        return known[bisect_right(known, (since, True, True)) :]

    def between(self, place: int, last: int) -> bool:
        """Tell whether something between a move and a later position conflicts with the move."""
        for sides in self.parts.of(place):
            for side, writes in zip(sides, (False, True), strict=True):
                for part in side:
                    for other, _, wrote in self._since(part, place):
                        if other >= last:
                            break
                        if writes or wrote:
                            return True
        return False


def fuse_sums(draft: Draft) -> Draft:
    """Return the draft with values that are added as they arrive."""
    moves: list[Move | None] = list(draft.moves)
    accesses = _Accesses(draft)
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
            if same and not accesses.between(place, added):
                source, moves[place] = copy.src, None
        moves[received] = None
        moves[added] = Move(
            second.rank, Op.RECV_REDUCE_COPY, source, second.dst, second.chunks, number
        )
    return replace(draft, moves=[move for move in moves if move is not None])


def fuse_sends(
    draft: Draft, connection: Mapping[int, int], ops: Collection[Op]
) -> tuple[Draft, dict[End, End]]:
    """Return ``draft`` with values that are sent on as they arrive, by steps of the types ``ops``.

    With it come the ends of connections that share a threadblock: receiving to sending.
    ``connection`` has the number of each message's connection among those of the pair.
    """
    accesses = _Accesses(draft)
    joins: dict[End, End] = {}
    taken: set[End] = set()
    moves: list[Move | None] = list(draft.moves)
    keys: dict[int, tuple[int, int]] = {}
    ends: dict[End, list[int]] = defaultdict(list)
    for place, move in enumerate(draft.moves):
        for message, sends in ((move.received, False), (move.sent, True)):
            if message is not None:
                end = (move.rank, draft.lanes[message], connection[message], sends)
                ends[end].append(place)
    pairs = _pairs(draft, connection, accesses, ops)
    for incoming, outgoing in sorted(pairs, key=lambda pair: (-len(pairs[pair]), pair)):
        if incoming in joins or outgoing in taken:
            continue
        both = pairs[incoming, outgoing]
        plan = _plan(draft, accesses, ends[incoming], ends[outgoing], both)
        if plan is None:
            continue
        joins[incoming] = outgoing
        taken.add(outgoing)
        for place, (key, made) in plan.items():
            moves[place], keys[place] = made, key
    order = sorted(range(len(moves)), key=lambda place: keys.get(place, (place, 0)))
    kept = [one for place in order if (one := moves[place]) is not None]
    return replace(draft, moves=kept), joins


def _pairs(
    draft: Draft, connection: Mapping[int, int], accesses: _Accesses, ops: Collection[Op]
) -> dict[tuple[End, End], dict[int, int]]:
    """Return the positions of receives and sends that could be one step, by their two ends.

    The sends pass on exactly what was received, nothing touches that in between, and who reads it
    later starts after it was sent.
    """
    usable = {op for op, fused in FORWARDED.items() if set(fused) <= set(ops)}
    found: dict[tuple[End, End], dict[int, int]] = defaultdict(dict)
    for place, move in enumerate(draft.moves):
        touching = next(accesses.target(place, since=place), []) if move.op in usable else []
        if not touching:
            continue
        at = touching[0][0]
        send, received = draft.moves[at], move.received
        same = send.op is Op.SEND and (send.src, send.chunks) == (move.dst, move.chunks)
        if not same or send.message is None or received is None or accesses.between(place, at):
            continue
        over = draft.messages[send.message].released
        later = (other for part in accesses.target(place, since=at) for other, _, _ in part)
        same_number = connection[send.message] == connection[received]
        if same_number and all(_times(draft, draft.moves[other])[0] >= over for other in later):
            incoming, outgoing = (
                (move.rank, draft.lanes[number], connection[number], sends)
                for number, sends in ((received, False), (send.message, True))
            )
            found[incoming, outgoing][place] = at
    return found


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
            # A sum is kept only where somebody reads it later.
            kept, passed = FORWARDED[move.op]
            later = list(accesses.target(place, since=pairs[place]))
            wanted = move.dst is not None and move.dst.buffer is Buffer.OUTPUT and not all(later)
            read = kept is passed or wanted or any(part and part[0][1] for part in later)
            move = move._replace(
                op=kept if read else passed, dst=move.dst if read else None,
                forward=draft.moves[pairs[place]].message,
            )  # fmt: skip
            plan[pairs[place]] = (key, None)
        elif key[0] > place and accesses.between(place, key[0] + 1):
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

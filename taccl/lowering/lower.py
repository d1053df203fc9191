"""Turn a verified schedule into a threadblock program, pass by pass.

No plain program deadlocks, even when a connection holds one message. The order of events is a total
order in which every step comes after all that it waits for: the step before it in its threadblock
(threadblocks list their steps in this order), its dependences (which point back in it), for a
receive the send of its message, and for a send the work on the message before it on its
connection. So running the steps one by one in this order never waits, and since threadblocks,
FIFOs and flags only ever enable each other, every other run ends, too. This is where it matters
that a threadblock only sends or only receives, that receives go to slots nobody still reads, and
that nothing is fused. With fused steps, or threadblocks that send and receive, a message that is
cut into more parts than a connection holds can block: whoever asks for those looks at all sizes.

**Fusion.** One step can receive and add, receive and send on, or do all three. A value that is
received whole and then added to a sum needs no scratch: ``rrc`` adds it as it arrives, and where
the sum would start as a copy of the rank's own value, reads that. What is received and sent on
becomes ``rcs`` or ``rrcs``, or ``rrs`` where nobody reads the sum later; then one threadblock has
both connections, which must have the same number, and so the same channel.

A threadblock does one step at a time, and a fused step posts only when its send is over. So two
connections join only where the schedule never has work for both at once (but for sends, which
follow one another in any case: the pieces of one message), and a step is fused only where whatever
else reads the value starts after it was sent on.
"""

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, takewhile

import numpy as np
from numpy.typing import NDArray

from taccl.collectives import COLLECTIVES, Collective
from taccl.collectives.chunks import places_in
from taccl.errors import LoweringError
from taccl.lowering.blocks import (
    MOST_SUMS,
    Block,
    Clocks,
    Cuts,
    End,
    assign_blocks,
    assign_channels,
    count_connections,
    join_ends,
    number_connections,
    stretches_of,
    sums_by,
    ways_by_load,
    ways_needed,
)
from taccl.lowering.dependencies import NOTHING_HELD, find_dependences, write_steps
from taccl.lowering.draft import Draft, Lane, Move, Parts, find_parts, make_draft, with_copies_after
from taccl.lowering.scratch import share_scratch
from taccl.model.schedule import Schedule
from taccl.msccl.program import (
    READS_SOURCE,
    WRITES_TARGET,
    Buffer,
    Gpu,
    Op,
    Program,
    Slot,
    Step,
    StepRef,
    Threadblock,
)
from taccl.msccl.runtimes import FIFO_SLOTS, RUNTIMES
from taccl.units import Time

FORWARDED: Mapping[Op, tuple[Op, Op]] = {
    Op.RECV: (Op.RECV_COPY_SEND, Op.RECV_COPY_SEND),
    Op.RECV_REDUCE_COPY: (Op.RECV_REDUCE_COPY_SEND, Op.RECV_REDUCE_SEND),
}
"""What a receive becomes when its value is sent on: kept as well, or not."""

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

FEWEST_SLOTS = min(FIFO_SLOTS.values())
"""Messages that a connection holds in every protocol."""

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
        ops = [move.op for move in self.draft.moves]
        reads, writes, adds = (
            np.array([op in kind for op in ops], dtype=np.bool_)
            for kind in (READS_SOURCE, WRITES_TARGET, {Op.REDUCE})
        )
        self.parts = find_parts(self.draft.moves, self.draft.modes)
        rows = []
        for source, target in self.parts.ends:
            place, part, both = _touched(source, target)
            rows.append((part, place, adds[place] | (reads[place] & both), writes[place]))
            place, part, both = _touched(target, source)
            rows.append((part[~both], place[~both], reads[place[~both]], both[~both]))
        part, place, read, wrote = map(np.concatenate, zip(*rows, strict=True))
        order = np.lexsort((place, part))
        accesses = list(zip(*(c[order].tolist() for c in (place, read, wrote)), strict=True))
        first = np.searchsorted(part[order], np.arange(self.parts.count + 1)).tolist()
        self.of = [accesses[begin:end] for begin, end in pairwise(first)]

    def target(self, place: int, since: int) -> Iterator[list[Access]]:
        """Yield, part by part, what touches the target of a move after a position."""
        for _, target in self.parts.of(place):
            for part in target:
                yield self._since(part, since)

    def _since(self, part: int, since: int) -> list[Access]:
        known = self.of[part]
        return known[bisect_right(known, (since, True, True)) :]

    def between(self, place: int, last: int, since: int | None = None) -> bool:
        """Tell whether something between a move and a later position conflicts with the move.

        What comes before a position `since` does not count; None: the move's own.
        """
        for sides in self.parts.of(place):
            for side, writes in zip(sides, (False, True), strict=True):
                for part in side:
                    for other, _, wrote in self._since(part, place if since is None else since):
                        if other >= last:
                            break
                        if writes or wrote:
                            return True
        return False


def _touched(other: Ints, side: Ints) -> tuple[Ints, Ints, Flags]:
    """Return moves, parts that they touch on a side, and whether they do on the other one, too."""
    lengths = side[1] - side[0]
    place = np.repeat(np.arange(len(lengths)), lengths)
    part = side[0][place] + places_in(lengths)
    return place, part, (other[0][place] <= part) & (part < other[1][place])


def fuse_sums(draft: Draft) -> Draft:
    """Return the draft with values that are added as they arrive."""
    moves: list[Move | None] = list(draft.moves)
    for received, added, copied in _sums(draft, _Accesses(draft)):
        second, source = draft.moves[added], draft.moves[added].dst
        for place in copied:
            source, moves[place] = draft.moves[place].src, None
        moves[received] = None
        moves[added] = Move(
            second.rank, Op.RECV_REDUCE_COPY, source, second.dst, second.chunks, second.message
        )
    return replace(draft, moves=[move for move in moves if move is not None])


def sum_where_received(draft: Draft) -> Draft:
    """Return the draft with own values added to what is received, where that is only passed on.

    Else they are copied to where the sum is kept, and what is received is added there: a step more.
    What stays in the output, or is read in other pieces, is left as it is.
    """
    moves: list[Move | None] = list(draft.moves)
    accesses = _Accesses(draft)
    for received, added, copied in _sums(draft, accesses):
        if not copied:
            continue
        first, second, (copy,) = draft.moves[received], draft.moves[added], copied
        readers = _passed_on(draft, accesses, added)
        if readers is None:
            continue
        moves[copy] = None
        moves[added] = second._replace(src=draft.moves[copy].src, dst=first.dst)
        for place in readers:
            reader = draft.moves[place]
            moves[place] = (
                reader._replace(src=first.dst)
                if reader.op is Op.SEND
                else reader._replace(dst=first.dst)
            )
    return replace(draft, moves=[move for move in moves if move is not None])


def sum_at_once(draft: Draft) -> Draft:
    """Return the draft with all that is added to a place added when the last of it has arrived.

    A threadblock that adds what others receive so takes what it receives itself meanwhile.
    """
    accesses = _Accesses(draft)
    series: dict[tuple[int, Slot | None, int], list[int]] = {}
    found: list[list[int]] = []
    for place, move in enumerate(draft.moves):
        if move.op is not Op.REDUCE or move.message is None:
            continue
        key = move.rank, move.dst, move.chunks
        adds = series.get(key)
        if adds is None or any(accesses.between(one, place, adds[-1]) for one in adds):
            adds = series[key] = []
            found.append(adds)
        adds.append(place)
    before = {adds[-1]: adds for adds in found}
    late = {place for adds in found for place in adds[:-1]}
    return replace(draft, moves=[
        draft.moves[one]
        for place in range(len(draft.moves)) if place not in late
        for one in before.get(place, (place,))
    ])  # fmt: skip


def _passed_on(draft: Draft, accesses: _Accesses, added: int) -> list[int] | None:
    """Return the positions of what sends a sum as a whole, or adds to it; None: it is kept.

    In the output it is not if something else is written there later.
    """
    sum_ = draft.moves[added]
    if sum_.dst is None:
        return None
    later = list(accesses.target(added, since=added))
    series = [[place for place, *_ in takewhile(lambda access: access[1], part)] for part in later]
    if any(one != series[0] for one in series):
        return None
    if sum_.dst.buffer is not Buffer.SCRATCH and any(len(part) == len(series[0]) for part in later):
        return None
    for place in series[0]:
        move = draft.moves[place]
        whole = (move.src if move.op is Op.SEND else move.dst) == sum_.dst
        if move.op not in (Op.SEND, Op.REDUCE) or not whole or move.chunks != sum_.chunks:
            return None
    return series[0]


def _sums(draft: Draft, accesses: _Accesses) -> Iterator[tuple[int, int, list[int]]]:
    """Yield the positions of a receive, of what adds it, and of what copies the own value before.

    What is received is one move, and all of it is added; where the sum has begun nothing is copied.
    """
    of: dict[int, list[int]] = defaultdict(list)
    for place, move in enumerate(draft.moves):
        if move.message is not None and move.rank == draft.messages[move.message].dst:
            of[move.message].append(place)
    for places in of.values():
        *before, received, added = places if len(places) > 1 else (-1, -1)
        if received < 0:
            continue
        first, second = draft.moves[received], draft.moves[added]
        whole = first.dst == second.src and first.chunks == second.chunks
        if first.op is not Op.RECV or second.op is not Op.REDUCE or not whole:
            continue
        copies = (
            place
            for place in before
            if draft.moves[place].op is Op.COPY
            and (draft.moves[place].dst, draft.moves[place].chunks) == (second.dst, second.chunks)
            and not accesses.between(place, added)
        )
        yield received, added, list(copies)


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


def send_soon(draft: Draft, connection: Mapping[int, int], joins: Mapping[End, End]) -> list[int]:
    """Return the positions of the moves in an order in which ends that share ``joins`` send early.

    What a rank has received leaves as soon as it is there, the first of its own at once, and what a
    connection sends stays in order. A threadblock that receives, too, would else wait for what
    comes later, with what it has in its hands. Where its peers are one, it sends no more than any
    queue holds ahead of what it receives: they would wait for each other. ``joins`` has receiving
    ends and the sending ones that share their threadblocks, and ``connection`` the number of each
    message's connection among those of the pair.
    """
    parts = find_parts(draft.moves, draft.modes)
    writer: dict[int, int] = {}
    last: dict[End, int] = {}
    sent: Counter[End] = Counter()
    answers: dict[End, list[int]] = {end: [] for end in joins.values()}
    for place, move in enumerate(draft.moves):
        if move.received is not None:
            lane = draft.lanes[move.received]
            out = joins.get((move.rank, lane, connection[move.received], False))
            if out is not None and out[1].dst == lane.src:
                answers[out].append(place)
    keys = [(place, 0) for place in range(len(draft.moves))]
    for place, move in enumerate(draft.moves):
        before = draft.moves[place - 1] if place else move
        same = (before.rank, before.message) == (move.rank, move.message)
        if same and move.op is Op.COPY and before.op is Op.SEND:
            keys[place] = keys[place - 1]  # it tells when the send is over
            continue
        if move.op in WRITES_TARGET:
            writer |= {part: place for _, target in parts.of(place) for part in target}
        if move.sent is None:
            continue
        end = (move.rank, draft.lanes[move.sent], connection[move.sent], True)
        if move.received is not None:
            last[end] = place  # a fused step stays where its receive is
        elif end in answers:
            read = (part for source, _ in parts.of(place) for part in source)
            own = place if end in last else -1
            last[end] = max([last.get(end, -1), *(writer.get(part, own) for part in read)])
            if FEWEST_SLOTS <= sent[end] < FEWEST_SLOTS + len(answers[end]):
                last[end] = max(last[end], min(place, answers[end][sent[end] - FEWEST_SLOTS]))
            keys[place] = last[end], 1
        sent[end] += 1
    return sorted(range(len(keys)), key=lambda place: keys[place])


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
    # What one connection sends is sent one after the other in any case.
    works = [(*_times(draft, move), move.sent) for _, move in both if move is not None]
    if any(
        end > start and None in (first, second)
        for (_, end, first), (start, _, second) in pairwise(works)
    ):
        return None
    return plan


_HARD = RUNTIMES["executor"]
"""Its channels, offsets and dependence ids hold for every runtime that has more threadblocks."""


THREADBLOCKS = "threadblocks on a rank"
MANY_THREADBLOCKS = "lower --chunks or --instances, or use a sketch with fewer connections per gpu"


class TooManyError(LoweringError):
    """A rank would need more threadblocks than it may have."""


@dataclass(frozen=True, slots=True)
class LowerOptions:
    """What program to make of a schedule.

    `name`: the program's label; characters that the runtimes' reader does not take become ``_``.
    `protocol`: ``Simple``, ``LL`` or ``LL128``.
    `in_place`, `out_of_place`: the modes it has to serve; see :func:`modes_served`.
    `instances`: copies of the whole program, each for its share of every chunk.
    `channels`: the most channels it may use; None: what every runtime has.
    `min_bytes`, `max_bytes`: the size range, both inclusive.
    `order`: one of ORDERS: how closely sends keep the schedule's order.
    `fused`: step types that receive and do something with the value, as far as they may be used.
    `joined`: threadblocks that receive also send, what they receive or to the same peer: half as
    many, each busy with one. They may wait for one another in a ring, which the judge sees.
    `sums`: which threadblocks add, one of ``SUMS``. One that adds all that is added to a place
    waits for all that is received at once, where several wait for one another; aside they are
    others than those that receive, which may have too many steps.
    `held`: numbers of messages that are held back, and the times of the schedule after which they
    are to start.
    `spread`: threadblocks that would be left over serve more connections of the busiest links.
    `stretch`: picoseconds of the schedule in which all messages of a threadblock begin and end;
    None: any.
    `slots`: messages that a connection holds: a link that the schedule has more messages on at once
    gets several connections. None: one is enough for any link.
    `max_steps`, `max_threadblocks`: limits of the runtime, for each threadblock and each rank.
    `adding`: picoseconds that a threadblock takes to add a chunk, of which schedules know nothing.
    `open_sends`: the runtime posts a send of this protocol before all have read: no step waits for
    one. Not together with ``fused``, which such runtimes have no steps for.
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
    fused: frozenset[Op] = frozenset()
    joined: bool = False
    sums: str = "apart"
    held: Mapping[int, Time] = field(default_factory=lambda: NOTHING_HELD)
    spread: bool = False
    slots: int | None = None
    stretch: Time | None = None
    max_steps: int = 64
    max_threadblocks: int = 64
    adding: Time = 0
    open_sends: bool = False


def modes_served(collective: Collective) -> tuple[bool, bool]:
    """Return (in place, out of place): the modes one program serves at no extra cost.

    In place, alltoall overwrites input of other chunks, and staging costs copies that a call out
    of place does not need; so may a collective from a file. Everything else is right in both
    modes.
    """
    return collective.name in COLLECTIVES and collective.name != "alltoall", True


@dataclass(frozen=True, slots=True)
class Lowered:
    """A program, and where the messages of its draft are in it.

    `program` is what is written; `senders` has (rank, threadblock, step) of every step that sends,
    and the number of its message.
    """

    program: Program
    senders: Mapping[tuple[int, int, int], int]


def lower(schedule: Schedule, options: LowerOptions) -> Program:
    """Turn a verified ``schedule`` into a threadblock program within the limits of ``options``.

    Raises LoweringError when a limit on channels, threadblocks, steps or ids can't be kept.
    """
    return finish(draft_of(schedule, options), options).program


def draft_of(
    schedule: Schedule, options: LowerOptions, known: dict[bool, Draft] | None = None
) -> Draft:
    """Return the draft of ``schedule`` that programs with these ``options`` are made from.

    There is one for all with several instances, and one for those without, if they serve the same
    modes: those that are ``known``, by whether there are several, are not made again.

    Raises LoweringError when no program can serve the modes, or a rank has too many peers for any
    program.
    """
    if len(schedule.fans):
        raise LoweringError(
            "no XML can hold what switches add or copy",
            fix="use --in-network off, or --runtime none for the schedule alone",
        )
    # A threadblock sends to one peer and receives from one, whatever the passes make of it.
    topology, group = schedule.topology, schedule.group
    table, used = topology.links, np.unique(schedule.link).astype(np.int64)
    links = np.unique([group.link_images(number, used) for number in range(len(group))])
    pairs = np.unique(table.src[links].astype(np.int64) * topology.num_ranks + table.dst[links])
    ends = divmod(pairs, topology.num_ranks)
    most = max(int(np.bincount(end).max(initial=0)) for end in ends) * options.instances
    _hold(THREADBLOCKS, most, options.max_threadblocks, MANY_THREADBLOCKS)
    known, singly = {} if known is None else known, options.instances > 1
    if singly not in known:
        known[singly] = make_draft(
            schedule, in_place=options.in_place, out_of_place=options.out_of_place, singly=singly,
            adding=options.adding,
        )  # fmt: skip
    return known[singly]


def _hold(what: str, value: int, allowed: int, fix: str) -> None:
    """Raise when a limit can't be kept."""
    if value > allowed:
        kind = TooManyError if what == THREADBLOCKS else LoweringError
        raise kind(f"the program needs {value} {what}, and {allowed} are allowed", fix=fix)


def finish(draft: Draft, options: LowerOptions) -> Lowered:
    """Make a program of a ``draft``, made by :func:`draft_of` with the same ``options``.

    Raises LoweringError when a limit on channels, threadblocks, steps or ids can't be kept.
    """
    alike = replace(
        options, name="", protocol="", instances=options.instances if options.spread else 1,
        channels=None, min_bytes=0, max_bytes=0, held=NOTHING_HELD,
    )  # fmt: skip
    key = str(alike), tuple(options.held.items())  # a mapping has no hash
    if key not in draft.fitted:
        sums = fuse_sums if Op.RECV_REDUCE_COPY in options.fused else sum_where_received
        if sums not in draft.fitted:
            draft.fitted[sums] = sums(draft)
        summed = draft.fitted[sums]
        if options.sums == "together":
            if (sums, sum_at_once) not in draft.fitted:
                draft.fitted[sums, sum_at_once] = sum_at_once(summed)
            summed = draft.fitted[sums, sum_at_once]
        made, blocks, waits, clocks = _fit_blocks(summed, options)
        moves, scratch = share_scratch(made.moves, clocks, made.scratch)
        draft.fitted[key] = moves, scratch, blocks, write_steps(moves, blocks, waits)
    moves, scratch, blocks, steps = draft.fitted[key]
    program = _assemble(draft.schedule, options, scratch, blocks, steps)
    return Lowered(program, _senders(moves, blocks, steps, options.instances))


def _fit_blocks(
    draft: Draft, options: LowerOptions
) -> tuple[Draft, list[Block], list[tuple[int, ...]], Clocks]:
    """Assign threadblocks, cutting links into more parts until no threadblock is too long."""
    lanes, topology = draft.lanes, draft.schedule.topology
    queued = Counter(lanes)
    ways = {} if options.slots is None else ways_needed(draft.messages, lanes, options.slots)
    series = draft.series
    if options.spread:
        room = options.max_threadblocks // options.instances
        room -= sums_aside(draft) if options.sums == "aside" else 0
        own = series if options.joined else None
        more = ways_by_load(draft.messages, lanes, room, own)
        if not more and not options.joined:
            raise LoweringError("no threadblocks are left over", fix="do not spread them")
        ways = {lane: max(ways.get(lane, 1), more.get(lane, 1)) for lane in {**ways, **more}}
    parts: dict[Lane, int] = {}
    longest = options.stretch
    stretches = {} if longest is None else stretches_of(draft.messages, lanes, longest)
    while True:
        cuts = Cuts(parts, ways, stretches, series)
        connection = number_connections(draft.moves, lanes, topology, cuts)
        made, joins = fuse_sends(draft, connection, options.fused) if options.fused else (draft, {})
        order: Sequence[int] = range(len(made.moves))
        if options.joined:
            joins = join_ends(made.moves, draft.messages, lanes, connection, topology, joins)
            order = send_soon(made, connection, joins)
            made = replace(made, moves=[made.moves[place] for place in order])
        moves = sums_by(options.sums, made.moves, lanes, connection)
        blocks = assign_blocks(moves, lanes, topology, connection, joins, options.instances)
        most = max(Counter(block.rank for block in blocks).values(), default=0) * options.instances
        _hold(THREADBLOCKS, most, options.max_threadblocks, MANY_THREADBLOCKS)
        crowded = _crowded(blocks, [len(block.moves) for block in blocks], options.max_steps)
        if not crowded:
            waits, clocks = find_dependences(
                made, blocks, options.order, options.held, open_sends=options.open_sends
            )
            if clocks.missing:
                late = (order[place] for place in clocks.missing)
                draft = with_copies_after(draft, set(late))
                continue
            lengths = [sum(max(1, len(waits[move])) for move in own.moves) for own in blocks]
            crowded = _crowded(blocks, lengths, options.max_steps)
            if not crowded:
                return made, blocks, waits, clocks
        for lane, length in crowded.items():
            count = parts.get(lane, 1)
            parts[lane] = max(count + 1, -(-count * length // options.max_steps))
            if parts[lane] > 2 * queued[lane]:
                raise LoweringError(
                    f"one message from rank {lane.src} to rank {lane.dst} needs more than the"
                    f" {options.max_steps} steps a threadblock may have",
                    fix="lower --chunks, or synthesize with --batch none",
                )


def sums_aside(draft: Draft) -> int:
    """Return how many threadblocks of a rank only add, if the sums of ``draft`` are aside."""
    sums = Counter(move.rank for move in draft.moves if move.op is Op.REDUCE)
    return -(-max(sums.values(), default=0) // MOST_SUMS)


def _senders(
    moves: Sequence[Move], blocks: Sequence[Block], steps: Sequence[tuple[Step, ...]], copies: int
) -> dict[tuple[int, int, int], int]:
    """Return which message every step that sends is about."""
    found = {}
    ids: Counter[int] = Counter()
    for block, own in zip(blocks, steps, strict=True):
        places = [place for place, step in enumerate(own) if step.op is not Op.NOP]
        for place, number in zip(places, block.moves, strict=True):
            message = moves[number].sent
            if message is not None:
                for copy in range(copies):
                    found[block.rank, ids[block.rank] * copies + copy, place] = message
        ids[block.rank] += 1
    return found


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
    # ``custom`` is called with one count for both, which msccl compares with nchunksperloop.
    inputs = outputs = (collective.chunks_in_size,) * collective.num_ranks
    if collective.name in COLLECTIVES:
        inputs, outputs = collective.input_sizes, collective.output_sizes
    spans = count_connections(blocks)
    joined = [block.connections for block in blocks if block.out is not None]
    channels = assign_channels(
        {pair: span * copies for pair, span in spans.items()},
        [
            ((one, at + copy * spans[one]), (two, to + copy * spans[two]))
            for (one, at), (two, to) in joined for copy in range(copies)
        ],
        _HARD.max_blocks_per_channel,
    )  # fmt: skip
    listed: list[list[Threadblock]] = [[] for _ in range(collective.num_ranks)]
    known: list[dict[Slot, Slot]] = [{} for _ in range(copies)]
    for block, own in zip(blocks, steps, strict=True):
        for copy in range(copies):
            used = {channels[pair, at + copy * spans[pair]] for pair, at in block.connections}
            channel = used.pop() if used else 0
            listed[block.rank].append(
                Threadblock(
                    len(listed[block.rank]), block.send_to, block.recv_from, channel,
                    _share(own, copy, copies, known[copy]),
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
    sizes = [(gpu.input_chunks, gpu.output_chunks, gpu.scratch_chunks) for gpu in program.gpus]
    waits = [s.depends for _, block in program.blocks() for s in block.steps if s.depends]
    ends = Counter(
        (rank, block.channel, sends)
        for rank, block in program.blocks()
        for sends, peer in enumerate((block.recv_from, block.send_to)) if peer is not None
    )  # fmt: skip
    for limit in (
        ("channels", program.channels, options.channels or _HARD.max_channels,
         "raise --channels, or lower --instances or --chunks"),
        (THREADBLOCKS, program.num_threadblocks, options.max_threadblocks, MANY_THREADBLOCKS),
        ("threadblocks one way on a channel", max(ends.values(), default=0),
         _HARD.max_blocks_per_channel, MANY_THREADBLOCKS),
        ("chunks in a buffer", max(map(max, sizes)), _HARD.max_offset + 1,
         "lower --chunks or --instances"),
        ("as the highest threadblock id that a step waits for",
         max((ref.threadblock for ref in waits), default=0), _HARD.max_dependence_id,
         "lower --instances, or use a sketch with fewer connections per gpu"),
        ("steps in a threadblock", program.num_steps, options.max_steps, "lower --chunks"),
        ("XML elements of a rank",
         1 + program.num_ranks + max(sum(1 + len(one.steps) for one in own) for own in listed),
         _HARD.max_nodes, "lower --chunks or --instances"),
    ):  # fmt: skip
        _hold(*limit)
    return program


def _share(
    steps: tuple[Step, ...], copy: int, copies: int, known: dict[Slot, Slot]
) -> tuple[Step, ...]:
    """Return steps for one share of their chunks: chunk x becomes x * copies + copy.

    Places that are ``known`` of this copy are not made again.
    """
    if copies == 1:
        return steps

    def share(slot: Slot | None) -> Slot | None:
        if slot is None or slot.offset < 0:
            return slot
        found = known.get(slot)
        if found is None:
            found = known[slot] = Slot(slot.buffer, slot.offset * copies + copy)
        return found

    shared = []
    for step in steps:
        after = step.depends
        after = after and StepRef(after.threadblock * copies + copy, after.step)
        shared.append(
            Step(step.op, share(step.src), share(step.dst), step.count, after, step.posts)
        )
    return tuple(shared)

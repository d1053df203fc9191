"""What each step has to wait for in other threadblocks of its rank, without what is implied.

Two steps that touch one memory cell, one of them writing, keep the order of the moves in every
claimed mode (aliased cells included). So do, in the orders ``ports`` and ``paced``, the sends of
one rank share a resource edge. XML carries no order across ranks, so a send may get to a port that
ranks share before its turn. In the order ``paced`` every send, and in the others every send that is
named, waits for the last thing that the schedule has its rank finish before it.

What follows anyway from program order, from messages and from other dependences is dropped:
positions only grow, so a dependence covers all that its target had waited for.

Where sends post before they have read all (LL on rccl, ``Runtime.open_sends``), no step waits for
one. Who would overwrite what a send reads waits for a copy of its first chunk to scratch, right
after it in its threadblock: a copy ends with a barrier. What only keeps turns does without.

Up to MAX_CLOCKS numbers of memory, "follows anyway" is decided exactly, by vector clocks over all
threadblocks; above, only by the threadblocks of one rank, without messages.

A move of many chunks touches as many cells, those of one rank in one mode, but most moves of a
schedule read and write what other moves did as a whole. So neighbouring cells are joined to parts
that every move touches all of, or nothing, and the passes that ask who touched what look at parts.
"""

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.lowering.blocks import Block, Clocks
from taccl.lowering.draft import Draft, Move, find_parts
from taccl.msccl.program import Op, Step, StepRef
from taccl.msccl.runtimes import RUNTIMES
from taccl.timing.jit import jit
from taccl.units import Time

Ints = NDArray[np.int64]

MAX_CLOCKS = 20_000_000
"""int32 numbers: 80 MB."""

NOP = Step(Op.NOP, count=0)

MOST_FUSED = min(runtime.max_fused_reductions for runtime in RUNTIMES.values())
"""Sums that every runtime can fuse to one."""

NOTHING_HELD: Mapping[int, Time] = MappingProxyType({})

ORDERS = ("ports", "paced", "free")
"""How closely sends keep the schedule's order beyond what the data needs."""


def find_dependences(
    draft: Draft,
    blocks: Sequence[Block],
    order: str,
    held: Mapping[int, Time] = NOTHING_HELD,
    *,
    open_sends: bool = False,
) -> tuple[list[tuple[int, ...]], Clocks]:
    """Return for every move the moves of other threadblocks that it has to wait for.

    With them comes what every move knows.

    `draft` has the moves, and `blocks` are threadblocks with the positions of theirs. `order` is
    one of ORDERS; messages of `held` are held back in any order, each until after its time. With
    `open_sends`, no move waits for a send, but for the copy after it.
    """
    moves, messages = draft.moves, draft.messages
    clocks = _start_clocks(len(moves), blocks)
    over = np.arange(len(moves))
    bare = np.zeros(len(moves), dtype=np.bool_)
    if open_sends:
        bare[[number for number, move in enumerate(moves) if move.op is Op.SEND]] = True
        for block in blocks:
            for send, after in pairwise(block.moves):
                if bare[send] and moves[after].op is Op.COPY and after == send + 1:
                    over[send] = after
        bare &= over == np.arange(len(moves))
    table = draft.schedule.topology.links
    limited = {
        edge for edge, one in enumerate(draft.schedule.topology.edges) if one.beta is not None
    }
    used, used_start = list[int](), [0]
    for move in moves:
        if order != "free" and move.sent is not None:
            edges = table.edges_of(messages[move.sent].link)
            used += (edge * len(draft.scratch) + move.rank for edge in edges if edge in limited)
        used_start.append(len(used))
    ports, port = np.unique(np.array(used, dtype=np.int64), return_inverse=True)
    floor = np.full(len(messages), PACED if order == "paced" else NEVER, dtype=np.int64)
    if order != "paced":
        floor[list(held)] = list(held.values())
    rank = np.array([move.rank for move in moves], dtype=np.int64)
    parts = find_parts(moves, draft.modes)
    copies = np.array([move.op is Op.COPY for move in moves], dtype=np.bool_)
    touched = int((parts.ends[:, :, 1] - parts.ends[:, :, 0]).sum())

    def none(count: int) -> Ints:
        return np.full(count, NONE, dtype=np.int64)

    room = 3 * touched + len(used) + len(moves)
    kept = _Kept(np.zeros(len(moves) + 1, dtype=np.int64), none(room), bare & False)
    spans = np.array([(one.start, one.end, one.released) for one in messages], dtype=np.int64)
    start, end, released = spans.reshape(-1, 3).T.copy()
    # Where knowledge does not travel with messages, none is received.
    received = (move.received if clocks.messages else None for move in moves)
    compiled()(
        _Moves(
            rank, _numbers(received), _numbers(move.sent for move in moves),
            _numbers(move.message for move in moves), copies, bare, over,
            np.array(clocks.owner, dtype=np.int64), np.array(clocks.place, dtype=np.int64),
            np.array(clocks.column, dtype=np.int64),
        ),
        _Times(start, end, released, floor), parts.ends,
        (np.array(used_start, dtype=np.int64), port.astype(np.int64)),
        _Known(
            none(parts.count), none(parts.count), none(touched), none(touched), none(len(ports)),
            none(len(blocks)), none(len(messages)), np.zeros(len(moves), dtype=np.int64),
            none(len(moves)),
            np.append(0, np.cumsum(np.bincount(rank, minlength=1))),
            np.zeros(int(rank.max(initial=0)) + 1, dtype=np.int64), none(room),
            clocks.seen,
        ),
        kept,
    )  # fmt: skip
    clocks.missing.update(np.flatnonzero(kept.missing).tolist())
    flat = kept.moves[: kept.start[-1]].tolist()
    return [tuple(flat[one:two]) for one, two in pairwise(kept.start.tolist())], clocks


def _numbers(found: Iterator[int | None]) -> Ints:
    return np.array([NONE if one is None else one for one in found], dtype=np.int64)


NONE, NEVER, PACED = -1, -1, -2
"""No move or message; a message that is not held back; one that waits for its turn."""


class _Moves(NamedTuple):
    """Columns of the moves: (moves,) each, the last one (threadblocks,).

    Rank; numbers of the messages that it receives, sends and belongs to, or ``NONE``; whether it is
    a copy, and a send that no move may wait for; the move to wait for in its place; threadblock,
    and position there; column of every threadblock in the clocks.
    """

    rank: Ints
    received: Ints
    sent: Ints
    message: Ints
    copies: NDArray[np.bool_]
    bare: NDArray[np.bool_]
    over: Ints
    owner: Ints
    place: Ints
    column: Ints


class _Times(NamedTuple):
    """Columns of the messages, in picoseconds: (messages,) each.

    With the time after which each is to start, or ``NEVER`` or ``PACED``.
    """

    start: Ints
    end: Ints
    released: Ints
    floor: Ints


class _Known(NamedTuple):
    """What is known while moves are gone through.

    Of every part of memory who wrote it last, and where the list of those that read it since
    begins: readers, and the places that follow. The last send on every rank's port, the last move
    of every threadblock, the move that sends every message. When moves are over; those of a rank,
    in order of that, from where it begins, so many. Room for the moves that one must follow. The
    clocks.
    """

    writer: Ints
    newest: Ints
    reader: Ints
    older: Ints
    port: Ints
    last: Ints
    sender: Ints
    end: Ints
    order: Ints
    begin: Ints
    size: Ints
    found: Ints
    seen: NDArray[np.int32]


class _Kept(NamedTuple):
    """Move m waits for ``moves[start[m]:start[m + 1]]``, ascending, and for none that is `missing`.

    Those are sends that some move should wait for, and none may.
    """

    start: Ints
    moves: Ints
    missing: NDArray[np.bool_]


def find_waits(
    moves: _Moves, times: _Times, parts: Ints, ports: tuple[Ints, Ints], known: _Known,
    kept: _Kept,
) -> None:  # fmt: skip
    """Write for every move those of other threadblocks that nothing else makes it wait for.

    Parameters
    ----------
    moves, times
        Columns of moves and messages.
    parts
        (modes, 2 sides, 2 ends, moves) the parts that each reads and writes: from, up to.
    ports
        Starts, (moves + 1,), and ports: move m sends on those from its start to the next one.
    known, kept
        Room for what is known while moves are gone through, and for what they wait for; written.
    """
    reads = 0
    for move in range(len(moves.rank)):
        needed, reads = _touched(moves, parts, known, move, reads)
        count = _used(ports, known, move, needed)
        count = _turned(moves, times, known, move, count)
        wanted = _wanted(moves, known, move, needed, count)
        _advance(moves, known, kept, move, wanted)


def _touched(moves: _Moves, parts: Ints, known: _Known, move: int, reads: int) -> tuple[int, int]:
    """Record what a move reads and writes; find those that it must follow for that."""
    count = 0
    for mode in range(parts.shape[0]):
        for part in range(parts[mode, 0, 0, move], parts[mode, 0, 1, move]):
            if known.writer[part] >= 0:
                known.found[count] = known.writer[part]
                count += 1
            known.reader[reads], known.older[reads] = move, known.newest[part]
            known.newest[part] = reads
            reads += 1
        same = parts[mode, 0, 0, move] == parts[mode, 1, 0, move]
        if moves.copies[move] and same and parts[mode, 0, 1, move] == parts[mode, 1, 1, move]:
            continue
        for part in range(parts[mode, 1, 0, move], parts[mode, 1, 1, move]):
            if known.writer[part] >= 0:
                known.found[count] = known.writer[part]
                count += 1
            at = known.newest[part]
            while at >= 0:
                known.found[count] = known.reader[at]
                count += 1
                at = known.older[at]
            known.newest[part], known.writer[part] = -1, move
    return count, reads


def _used(ports: tuple[Ints, Ints], known: _Known, move: int, count: int) -> int:
    """Record a send, and find the sends before it on its ports."""
    starts, used = ports
    for port in used[starts[move] : starts[move + 1]]:
        if known.port[port] >= 0:
            known.found[count] = known.port[port]
            count += 1
        known.port[port] = move
    return count


def _turned(moves: _Moves, times: _Times, known: _Known, move: int, count: int) -> int:
    """Record when a move is over; find, for a send to be held back, what its turn comes after.

    That is the last one over before its start. Where this is too early, it is the first one that is
    over late enough, if it is over by the time at which the message would be. Nothing where one of
    those found before ends as late.
    """
    begin, sent, over = known.begin[moves.rank[move]], moves.sent[move], 0
    end = begin + known.size[moves.rank[move]]
    if sent >= 0:
        over, natural = times.released[sent], 0
        for other in known.found[:count]:
            if other != move:
                natural = max(natural, known.end[other])
        paced = times.floor[sent] == PACED
        floor = natural if paced else times.floor[sent]
        if floor >= 0:
            last = _after(known, begin, end, times.start[sent]) - 1
            late = _after(known, begin, end, floor)
            latest = 2 * over - times.start[sent]
            if last >= begin and known.end[known.order[last]] > max(floor, natural):
                known.found[count] = known.order[last]
                count += 1
            elif (
                not paced and natural <= floor and late < end
                and known.end[known.order[late]] <= latest
            ):  # fmt: skip
                known.found[count] = known.order[late]
                count += 1
    elif moves.message[move] >= 0:
        over = times.end[moves.message[move]]
    known.end[move] = over
    while end > begin and known.end[known.order[end - 1]] > over:
        known.order[end] = known.order[end - 1]
        end -= 1
    known.order[end] = move
    known.size[moves.rank[move]] += 1
    return count


def _after(known: _Known, begin: int, end: int, time: Time) -> int:
    """Return the place of the first move of a rank that is over after a time."""
    while begin < end:
        middle = (begin + end) // 2
        if known.end[known.order[middle]] > time:
            end = middle
        else:
            begin = middle + 1
    return begin


def _wanted(moves: _Moves, known: _Known, move: int, needed: int, count: int) -> int:
    """Put what a move should wait for in other threadblocks in order, the last one first."""
    wanted = 0
    for at in range(count):
        other = known.found[at]
        if other == move or moves.owner[other] == moves.owner[move]:
            continue
        if at >= needed and moves.bare[other]:
            continue  # what only keeps turns does without
        other = moves.over[other]
        here = wanted
        while here and known.found[here - 1] < other:
            here -= 1
        if not here or known.found[here - 1] != other:
            for place in range(wanted, here, -1):
                known.found[place] = known.found[place - 1]
            known.found[here] = other
            wanted += 1
    return wanted


def _advance(moves: _Moves, known: _Known, kept: _Kept, move: int, wanted: int) -> None:
    """Record what is known when a move ends; keep what nothing else implies."""
    seen, block = known.seen, moves.owner[move]
    row = seen[move]
    if known.last[block] >= 0:
        _learn(row, seen[known.last[block]])
    if moves.received[move] >= 0:
        _learn(row, seen[known.sender[moves.received[move]]])
    begin = end = kept.start[move]
    for other in known.found[:wanted]:
        if row[moves.column[moves.owner[other]]] > moves.place[other]:
            continue
        if moves.bare[other]:
            kept.missing[other] = True
            continue
        kept.moves[end] = other
        end += 1
        _learn(row, seen[other])
    for at in range((end - begin) // 2):
        first, last = begin + at, end - 1 - at
        kept.moves[first], kept.moves[last] = kept.moves[last], kept.moves[first]
    kept.start[move + 1] = end
    row[moves.column[block]] = moves.place[move] + 1
    known.last[block] = move
    if moves.sent[move] >= 0:
        known.sender[moves.sent[move]] = move


def _learn(row: NDArray[np.int32], other: NDArray[np.int32]) -> None:
    """Raise what is known by what another one knew."""
    for column in range(len(row)):
        row[column] = max(row[column], other[column])


@cache
def compiled() -> Callable[..., Any]:
    """Return :func:`find_waits` as machine code."""
    return jit(find_waits, [sys.modules[__name__]], "waits")


def _start_clocks(count: int, blocks: Sequence[Block]) -> Clocks:
    owner, place = [0] * count, [0] * count
    for number, block in enumerate(blocks):
        for position, move in enumerate(block.moves):
            owner[move], place[move] = number, position
    exact = count * len(blocks) <= MAX_CLOCKS
    column = list(range(len(blocks)))
    used: dict[int, int] = defaultdict(int)
    if not exact:
        for number, block in enumerate(blocks):
            column[number] = used[block.rank]
            used[block.rank] += 1
    seen = np.zeros((count, max(column, default=0) + 1), dtype=np.int32)
    return Clocks(seen, column, owner, place, exact)


def write_steps(
    moves: Sequence[Move], blocks: Sequence[Block], dependences: Sequence[tuple[int, ...]]
) -> list[tuple[Step, ...]]:
    """Return the steps of every threadblock; ``blocks`` of a rank are numbered in their order.

    ``moves`` are in one legal order, and each waits for its ``dependences`` in other threadblocks.
    All of these but one go on nops before the step. Parsers fuse ``re`` steps that follow one
    another, have one target and wait for nothing between them: a step before one of another count,
    or with which too many would be fused, posts, which ends that.
    """
    refs = [StepRef(0, 0)] * len(moves)
    ids: dict[int, int] = defaultdict(int)
    for block in blocks:
        position = 0
        for number in block.moves:
            position += max(0, len(dependences[number]) - 1)
            refs[number] = StepRef(ids[block.rank], position)
            position += 1
        ids[block.rank] += 1
    awaited = {target for needs in dependences for target in needs}
    result = []
    for block in blocks:
        steps: list[Step] = []
        fused = 0
        for number in block.moves:
            move = moves[number]
            needs = sorted(refs[target] for target in dependences[number])
            last = needs[-1] if needs else None
            step = Step(move.op, move.src, move.dst, move.chunks, last, number in awaited)
            before = steps[-1] if steps and not needs else NOP
            fuses = (
                before.op is step.op is Op.REDUCE and before.dst == step.dst and not before.posts
            )
            if fuses and (before.count != step.count or fused == MOST_FUSED):
                steps[-1], fuses = replace(before, posts=True), False
            fused = fused + 1 if fuses else 1
            steps += [*(replace(NOP, depends=need) for need in needs[:-1]), step]
        result.append(tuple(steps))
    return result

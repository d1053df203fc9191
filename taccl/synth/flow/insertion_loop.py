"""Chunks inserted one by one into a book of reservations: what insertion_scheduler.py compiles.

Every chunk takes the way by which it arrives first, given when the chunks before it hold each
resource; gaps are used. Then some chunks are taken out and inserted again in another order, now and
then blind to an arc, again and again (ruin and recreate), and what is not much worse goes on (late
acceptance). So routes and times are decided together, which a flow of totals can't: where a root
sends through one port, what has the longest way left must leave first, and take a way that is free
by then.

References
----------
Schrimpf, Schneider, Stamm-Wilbrandt, Dueck: Record breaking optimization results using the ruin
and recreate principle (2000). Christiaens, Vanden Berghe: Slack induction by string removals for
vehicle routing problems (2020), for the blinks. Burke, Bykov: The late acceptance hill-climbing
heuristic (2017).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.timing.occupancy import (
    NEVER,
    NOTHING,
    Numbers,
    Reservations,
    Times,
    Uses,
    cancel,
    earliest_gap,
    reserve,
)

Flags = NDArray[np.bool_]

UNSERVED = 1 << 46
"""What the arrival of a chunk that has no way counts: more than a minute."""
MOST_REMOVED = 8
"""Chunks that are taken out at once, at most."""

BLINK = 50
"""One arc of so many is not looked at when a chunk is inserted again."""

LAST = 20
"""What a picosecond of the last arrival counts, beside one of the mean of all."""

BITS = 1 << 31


class Roads(NamedTuple):
    """What chunks may take.

    Parameters
    ----------
    first
        Arcs that leave rank r are ``first[r] .. first[r+1]-1``.
    tail, head
        Of every arc: where it begins and ends.
    uses
        What a chunk holds on every arc.
    allowed
        (kinds, arcs): which arcs a chunk may take.
    least
        (ranks, ranks): picoseconds from one to another on an idle machine, at least.
    root, end, kind
        Of every chunk.
    """

    first: Times
    tail: Numbers
    head: Numbers
    uses: Uses
    allowed: Flags
    least: Times
    root: Numbers
    end: Numbers
    kind: Numbers


class Book(NamedTuple):
    """What is reserved, and what the search works on.

    Parameters
    ----------
    table
        When each resource is held.
    label, via, since, seen
        By rank, of the chunk that is inserted: when it gets there, on which arc, started when.
    length, arc, start, arrive
        By chunk: its hops, (chunks, hops) their arcs and starts, and its arrival.
    kept_length, kept_arc, kept_start, kept_arrive
        The same of the best that was found.
    old_length, old_arc, old_start, old_arrive
        The same of chunks that were taken out, by the number in ``out``.
    order
        Chunks as they are inserted at first; later those that were taken out, as noted.
    out
        Chunks that are taken out, as they are inserted again.
    random
        The state of a random number generator.
    history
        What was accepted in the last rounds, by their number.
    """

    table: Reservations
    label: Times
    via: Numbers
    since: Times
    seen: Flags
    length: Numbers
    arc: Numbers
    start: Times
    arrive: Times
    kept_length: Numbers
    kept_arc: Numbers
    kept_start: Times
    kept_arrive: Times
    old_length: Numbers
    old_arc: Numbers
    old_start: Times
    old_arrive: Times
    order: Numbers
    out: Numbers
    random: Times
    history: Times


def below(book: Book, count: int) -> int:
    """Return a random number from 0 to one less than a count of at most 2**15."""
    book.random[0] = (book.random[0] * 1103515245 + 12345) % BITS
    return int((book.random[0] >> 16) % count)


def insert(roads: Roads, book: Book, chunk: int, blink: int) -> None:
    """Reserve the way by which a chunk arrives first, if there is any.

    Parameters
    ----------
    blink
        One arc of so many is not looked at, by chance; 0: none.
    """
    root, end, kind = roads.root[chunk], roads.end[chunk], roads.kind[chunk]
    for rank in range(len(book.label)):
        book.label[rank] = NEVER
        book.seen[rank] = False
    book.label[root] = 0
    rank = int(root)
    while rank != end:
        book.seen[rank] = True
        for arc in range(roads.first[rank], roads.first[rank + 1]):
            head = roads.head[arc]
            soonest = book.label[rank] + roads.uses.arrival[arc]
            if (
                book.seen[head]
                or not roads.allowed[kind, arc]
                or roads.least[head, end] == NEVER
                or soonest + roads.least[head, end] >= book.label[end]
                or soonest >= book.label[head]
                or (blink > 0 and below(book, blink) == 0)
            ):
                continue
            # On a way each rank may use a resource once more.
            start = earliest_gap(
                roads.uses, book.table, arc, int(book.label[rank]), len(book.label)
            )
            if start + roads.uses.arrival[arc] < book.label[head]:
                book.label[head] = start + roads.uses.arrival[arc]
                book.since[head] = start
                book.via[head] = arc
        rank, nearest = NOTHING, NEVER
        for other in range(len(book.label)):
            if not book.seen[other] and book.label[other] < NEVER:
                away = book.label[other] + roads.least[other, end]
                if away < nearest:
                    rank, nearest = other, away
        if rank == NOTHING:
            break
    book.arrive[chunk] = book.label[end]
    write(roads, book, chunk)


def write(roads: Roads, book: Book, chunk: int) -> None:
    """Reserve the way to a chunk's end that was found last."""
    hops, rank = 0, int(roads.end[chunk])
    if book.label[rank] < NEVER:
        while rank != roads.root[chunk]:
            arc = book.via[rank]
            book.arc[chunk, hops] = arc
            book.start[chunk, hops] = book.since[rank]
            reserve(roads.uses, book.table, arc, int(book.since[rank]))
            hops += 1
            rank = int(roads.tail[arc])
    book.length[chunk] = hops


def remove(roads: Roads, book: Book, chunk: int) -> None:
    """Strike out the way of a chunk."""
    for hop in range(book.length[chunk]):
        cancel(roads.uses, book.table, book.arc[chunk, hop], int(book.start[chunk, hop]))
    book.length[chunk] = 0


def keep_old(book: Book, number: int, chunk: int) -> None:
    """Note the way of a chunk that is taken out."""
    book.old_length[number] = book.length[chunk]
    book.old_arrive[number] = book.arrive[chunk]
    for hop in range(book.length[chunk]):
        book.old_arc[number, hop] = book.arc[chunk, hop]
        book.old_start[number, hop] = book.start[chunk, hop]


def put_back(roads: Roads, book: Book, number: int, chunk: int) -> None:
    """Reserve the way again that a chunk had before it was taken out."""
    book.length[chunk] = book.old_length[number]
    book.arrive[chunk] = book.old_arrive[number]
    for hop in range(book.length[chunk]):
        book.arc[chunk, hop] = book.old_arc[number, hop]
        book.start[chunk, hop] = book.old_start[number, hop]
        reserve(roads.uses, book.table, book.arc[chunk, hop], int(book.start[chunk, hop]))


def latest(arrive: Times) -> int:
    """Return the last of some arrivals."""
    end = 0
    for chunk in range(len(arrive)):
        end = max(end, int(arrive[chunk]))
    return end


def cost(book: Book) -> int:
    """Return what is to be little: the last arrival, and a little of the mean of all."""
    total = 0
    for chunk in range(len(book.arrive)):
        total += min(int(book.arrive[chunk]), UNSERVED)
    return LAST * len(book.arrive) * min(latest(book.arrive), UNSERVED) + total


def keep(book: Book) -> None:
    """Note all ways as the best."""
    for chunk in range(len(book.arrive)):
        book.kept_length[chunk] = book.length[chunk]
        book.kept_arrive[chunk] = book.arrive[chunk]
        for hop in range(book.length[chunk]):
            book.kept_arc[chunk, hop] = book.arc[chunk, hop]
            book.kept_start[chunk, hop] = book.start[chunk, hop]


def choose(book: Book) -> int:
    """Choose chunks to be taken out: one of the last to arrive among them; return how many."""
    chunks = len(book.arrive)
    count = min(chunks, 2 + below(book, MOST_REMOVED - 1))
    late, end = 0, latest(book.arrive)
    for chunk in range(chunks):
        if book.arrive[chunk] == end:
            late += 1
            if below(book, late) == 0:
                book.out[0] = chunk
    found = 1
    while found < count:
        chunk, known = below(book, chunks), False
        for number in range(found):
            known = known or book.out[number] == chunk
        if not known:
            book.out[found] = chunk
            found += 1
    return found


def shuffle(book: Book, count: int) -> None:
    """Bring the chunks that were taken out into a random order."""
    for number in range(count - 1, 0, -1):
        other = below(book, number + 1)
        chunk = book.out[number]
        book.out[number] = book.out[other]
        book.out[other] = chunk


def insert_all(roads: Roads, book: Book) -> int:
    """Insert all chunks in order; return the last arrival, NEVER where one has no way."""
    for number in range(len(book.order)):
        insert(roads, book, int(book.order[number]), 0)
    end = latest(book.arrive)
    if end < NEVER:
        keep(book)
    return end


def change(roads: Roads, book: Book) -> int:
    """Take some chunks out and insert them in another order; return how many."""
    count = choose(book)
    for number in range(count):
        chunk = int(book.out[number])
        book.order[number] = chunk
        keep_old(book, number, chunk)
        remove(roads, book, chunk)
    shuffle(book, count)
    for number in range(count):
        insert(roads, book, int(book.out[number]), BLINK)
    return count


def undo(roads: Roads, book: Book, count: int) -> None:
    """Put so many chunks back where they were."""
    for number in range(count):
        remove(roads, book, int(book.order[number]))
    for number in range(count):
        put_back(roads, book, number, int(book.order[number]))


def search(roads: Roads, book: Book, rounds: int, goal: int) -> int:
    """Try so many changes, or until the goal is met; return the least last arrival.

    With no rounds all chunks are inserted into the empty book. The best is kept.
    """
    if rounds == 0:
        return insert_all(roads, book)
    best, now = latest(book.kept_arrive), cost(book)
    if book.history[0] == 0:
        book.history[:] = now
    for number in range(rounds):
        if best <= goal:
            break
        count = change(roads, book)
        before, at = now, number % len(book.history)
        now = cost(book)
        if now > before and now > book.history[at]:
            undo(roads, book, count)
            now = before
        elif latest(book.arrive) < best:
            best = latest(book.arrive)
            keep(book)
        book.history[at] = min(now, book.history[at])
    return best

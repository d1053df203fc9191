"""The event loop of the replay for compiled code: the rules of interpreter.py on flat arrays.

A machine is rows of integers for threadblocks, connections and edges, whose fields have names here.
Events wait in a heap by time. A blocked send is parked at one busy edge, in the pairing heap of
that edge, which is threaded through the rows of the threadblocks, and looked at again when the edge
is free. Where edges are shared, nothing is blocked: a message is a flow, its rate the least of what
its threadblock sends and of an equal part of each of its edges, and a heap by end holds the flows;
rates change only where the number of flows on an edge does. What happens at one instant is handled
in any order, as the rules let nothing depend on it; only the pass over the waiting sends has an
order. The loop is compiled by timing.py; :func:`run_events` starts from the columns of a program,
priced at one size.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.msccl import program
from taccl.replay.compile import Columns, Kind, LinkClass, Split
from taccl.replay.cost import Sharing, local_time
from taccl.topology.graph import LocalCosts
from taccl.units import Time, ceil_time

Rows = NDArray[np.int64]
Column = NDArray[np.int32]

NEEDS, RECEIVE, WORK, SLOT, LINK, DONE = range(6)
ARRIVED, RELEASED, RELEASED_LAST_AND_ARRIVED, WORKED, SEEN = range(5)

# A threadblock. NEXT and SINCE serve two lists that it is never in at once: those who wait for a
# flag (SINCE: which), and those parked at an edge (SINCE: the time of the request). PART: slices of
# its message that are left; STARTS: whether that message has no slot yet.
PHASE, STEP, ITERATION, LEFT, NEED, FIRST, END, INBOUND, OUTBOUND, FLAG = range(10)
WAITERS, NEXT, SINCE, CHILD, PARKED, PART, STARTS = range(10, 17)
BLOCK_FIELDS = 17

# A connection. OFFSET: which of its edges a message releases next; COURSE: its durations. Of its
# flow: WORK_LEFT at the time UPDATED, RATE, when it ENDS at that, PLACE in the heap, and the DELAY
# of its arrival after that end.
AVAILABLE, TAKEN, OFFSET, COURSE, SENDER, RECEIVER, EDGES_FROM, EDGES_TO = range(8)
WORK_LEFT, UPDATED, RATE, ENDS, PLACE, DELAY = range(8, 14)
CONNECTION_FIELDS = 14

# An edge. BUSY: its flows, or whether it is held; RATED: for how many flows they have their rates;
# FLOWS: the first place in `wires` of a flow on it; CAPACITY: work in a picosecond, and SHARE: that
# of each flow. ROOT says of a shared edge whether it is in `freed`.
BUSY, ROOT, HELD, RATED, FLOWS, CAPACITY, SHARE, BUSY_SINCE = range(8)
EDGE_FIELDS = 8

# A kind of step: how many messages, then for all but the last message, and for the last one: the
# time to its arrival (where edges are shared, alpha), how long it holds its edges (there: the work
# of one slice), the local work on a slice, and how many slices it has.
MESSAGES, RECEIVES, SENDS, ARRIVAL, DURATIONS, LOCAL, SLICES = range(7)
TAIL = 4
KIND_FIELDS = 11

NOW, QUEUED, WOKEN, REQUESTED, FREED, CANDIDATES, SENT, EVENTS = range(8)
ITERATIONS, SLOTS, WIDTH, WATCHED, PAUSE_AT = range(8, 13)
SHARED, FLYING, BLOCK_RATE, FLAG_LATENCY, BLOCKS = range(13, 18)
COUNTERS = 18

FINISHED, PAUSED, OUT_OF_BUDGET, FULL = range(4)
ROOM = 4
"""Events that handling one can put into the queue, at most."""


class Machine(NamedTuple):
    """A program at one size, and the state of its replay.

    `blocks`, `connections`, `edges`: a row each, with the fields above; one more block stands for
    one that does not exist.
    `steps`, `marks`: kind of each step; position in the XML times two, plus one where it posts.
    `needs_from`, `needs`: for each step, the rows of (block, position) that it waits for.
    `kinds`: costs of each kind of step in a full iteration and in the last one.
    `durations`: how long a message holds each edge of its connection, ascending.
    `wires`: edges of the connections, in the same order.
    `owners`, `after`, `before`: where edges are shared: the connection of each entry of `wires`,
    and the entries after and before it in the list of the flows on its edge.
    `flying`: heap of the connections with a flow, by end.
    `queue`: heap of (time, event).
    `woken`, `requested`, `freed`, `candidates`: stacks of blocks that can go on, of new requests,
    of freed edges that are waited for; a heap of the sends to look at.
    `counter`: everything there is one of.
    """

    blocks: Rows
    connections: Rows
    edges: Rows
    steps: Column
    marks: Column
    needs_from: Column
    needs: Column
    kinds: NDArray[np.int64]
    durations: Rows
    wires: Column
    owners: Column
    after: Column
    before: Column
    flying: Column
    queue: Rows
    woken: Column
    requested: Column
    freed: Column
    candidates: Column
    counter: Rows


def push_event(m: Machine, time: int, event: int) -> None:
    """Put ``event``, a number, into the queue of ``m`` at ``time``, in picoseconds."""
    queue = m.queue
    at = m.counter[QUEUED]
    m.counter[QUEUED] = at + 1
    while at > 0:
        above = (at - 1) >> 1
        if queue[above, 0] < time or (queue[above, 0] == time and queue[above, 1] < event):
            break
        queue[at, 0] = queue[above, 0]
        queue[at, 1] = queue[above, 1]
        at = above
    queue[at, 0] = time
    queue[at, 1] = event


def pop_event(m: Machine) -> int:
    """Take the first event from the queue."""
    queue = m.queue
    first: int = queue[0, 1]
    size = m.counter[QUEUED] - 1
    m.counter[QUEUED] = size
    time, event = queue[size, 0], queue[size, 1]
    at, below = 0, 1
    while below < size:
        other = below + 1
        if other < size and (
            queue[other, 0] < queue[below, 0]
            or (queue[other, 0] == queue[below, 0] and queue[other, 1] < queue[below, 1])
        ):
            below = other
        if queue[below, 0] > time or (queue[below, 0] == time and queue[below, 1] > event):
            break
        queue[at, 0] = queue[below, 0]
        queue[at, 1] = queue[below, 1]
        at, below = below, 2 * below + 1
    queue[at, 0] = time
    queue[at, 1] = event
    return first


def precedes(m: Machine, a: int, b: int) -> bool:
    """Tell whether the request of block ``a`` of ``m`` is served before that of block ``b``."""
    first, second = m.blocks[a, SINCE], m.blocks[b, SINCE]
    return first < second or (first == second and a < b)


def _meld(m: Machine, a: int, b: int) -> int:
    """Join two pairing heaps that are not empty; return the root."""
    if precedes(m, b, a):
        a, b = b, a
    m.blocks[b, NEXT] = m.blocks[a, CHILD]
    m.blocks[a, CHILD] = b
    m.blocks[a, NEXT] = -1
    return a


def park(m: Machine, block: int, edge: int) -> None:
    """Put the send of ``block`` into the heap of the busy ``edge`` of ``m``; both are rows."""
    m.blocks[block, PARKED] = edge
    m.blocks[block, CHILD] = -1
    m.blocks[block, NEXT] = -1
    root = m.edges[edge, ROOT]
    m.edges[edge, ROOT] = block if root < 0 else _meld(m, root, block)


def unpark(m: Machine, edge: int) -> None:
    """Take the first send from the heap of an ``edge``, a row of ``m``."""
    blocks = m.blocks
    root = m.edges[edge, ROOT]
    child = blocks[root, CHILD]
    pairs = -1
    while child >= 0:
        one, other = child, blocks[child, NEXT]
        child = -1
        if other >= 0:
            child = blocks[other, NEXT]
            one = _meld(m, one, other)
        blocks[one, NEXT] = pairs
        pairs = one
    joined = -1
    while pairs >= 0:
        one = pairs
        pairs = blocks[one, NEXT]
        blocks[one, NEXT] = -1
        joined = one if joined < 0 else _meld(m, joined, one)
    m.edges[edge, ROOT] = joined
    blocks[root, PARKED] = -1


def add_candidate(m: Machine, block: int) -> None:
    """Put the send of ``block``, a row of ``m``, into the heap of those to look at now."""
    heap = m.candidates
    at = m.counter[CANDIDATES]
    m.counter[CANDIDATES] = at + 1
    while at > 0:
        above = (at - 1) >> 1
        if precedes(m, heap[above], block):
            break
        heap[at] = heap[above]
        at = above
    heap[at] = block


def take_candidate(m: Machine) -> int:
    """Take the first send to look at."""
    heap = m.candidates
    first: int = heap[0]
    size = m.counter[CANDIDATES] - 1
    m.counter[CANDIDATES] = size
    block = heap[size]
    at, below = 0, 1
    while below < size:
        if below + 1 < size and precedes(m, heap[below + 1], heap[below]):
            below += 1
        if precedes(m, block, heap[below]):
            break
        heap[at] = heap[below]
        at, below = below, 2 * below + 1
    heap[at] = block
    return first


def _wake(m: Machine, block: int) -> None:
    m.woken[m.counter[WOKEN]] = block
    m.counter[WOKEN] += 1


def _part(m: Machine, block: int) -> int:
    """Return which costs hold: 0 in a full iteration, 1 in the last."""
    return 1 if m.blocks[block, ITERATION] == m.counter[ITERATIONS] - 1 else 0


def _show(m: Machine, block: int, flag: int) -> None:
    """Set a flag and wake those who waited for it."""
    blocks = m.blocks
    blocks[block, FLAG] = flag
    waiter = blocks[block, WAITERS]
    kept = -1
    while waiter >= 0:
        after = blocks[waiter, NEXT]
        if blocks[waiter, SINCE] <= flag:
            _wake(m, waiter)
        else:
            blocks[waiter, NEXT] = kept
            kept = waiter
        waiter = after
    blocks[block, WAITERS] = kept


def _end_slice(m: Machine, block: int) -> None:
    """Go to the next slice; after the last one free the slot, post, and go to what follows."""
    row = m.blocks[block]
    row[PART] -= 1
    if row[PART] > 0:
        row[PHASE] = RECEIVE
        return
    step = row[STEP]
    if m.kinds[0, m.steps[step], RECEIVES]:
        inbound = row[INBOUND]
        sender = m.connections[inbound, SENDER]
        full = m.connections[inbound, TAKEN] == m.counter[SLOTS]
        m.connections[inbound, TAKEN] -= 1
        if full and sender >= 0 and m.blocks[sender, PHASE] == SLOT:
            _wake(m, sender)
    row[LEFT] -= 1
    if row[LEFT] > 0:
        row[PHASE] = RECEIVE
        return
    if m.marks[step] & 1:
        flag = row[ITERATION] * m.counter[WIDTH] + (m.marks[step] >> 1)
        if m.counter[FLAG_LATENCY]:
            seen = 8 * (flag * m.counter[BLOCKS] + block) + SEEN
            push_event(m, m.counter[NOW] + m.counter[FLAG_LATENCY], seen)
        else:
            _show(m, block, flag)
    step += 1
    if step == row[END]:
        step = row[FIRST]
        row[ITERATION] += 1
    row[STEP] = step
    if row[ITERATION] == m.counter[ITERATIONS]:
        row[PHASE] = DONE
        return
    row[NEED] = m.needs_from[step]
    row[LEFT] = m.kinds[_part(m, block), m.steps[step], MESSAGES]
    row[PHASE] = NEEDS


def _advance(m: Machine, block: int) -> None:
    """Let a threadblock go on until it has to wait."""
    row = m.blocks[block]
    while True:
        if m.counter[QUEUED] + ROOM > len(m.queue):
            _wake(m, block)
            return
        phase, step = row[PHASE], row[STEP]
        if phase == NEEDS:
            base = row[ITERATION] * m.counter[WIDTH]
            for number in range(row[NEED], m.needs_from[step + 1]):
                other = m.needs[number, 0]
                goal = base + m.needs[number, 1]
                if m.blocks[other, FLAG] < goal:
                    row[NEED] = number
                    row[SINCE] = goal
                    row[NEXT] = m.blocks[other, WAITERS]
                    m.blocks[other, WAITERS] = block
                    return
            row[PHASE] = RECEIVE
        elif phase == RECEIVE:
            kind = m.kinds[_part(m, block), m.steps[step]]
            if kind[RECEIVES]:
                if m.connections[row[INBOUND], AVAILABLE] == 0:
                    return
                m.connections[row[INBOUND], AVAILABLE] -= 1
            tail = TAIL if row[LEFT] == 1 else 0
            if row[PART] == 0:
                row[PART] = kind[SLICES + tail]
                row[STARTS] = 1
            if kind[LOCAL + tail]:
                row[PHASE] = WORK
                push_event(m, m.counter[NOW] + kind[LOCAL + tail], 8 * block + WORKED)
                return
            row[PHASE] = SLOT
        elif phase == SLOT and not m.kinds[0, m.steps[step], SENDS]:
            _end_slice(m, block)
        elif phase == SLOT and (
            not row[STARTS] or m.connections[row[OUTBOUND], TAKEN] < m.counter[SLOTS]
        ):
            if row[STARTS]:
                row[STARTS] = 0
                m.connections[row[OUTBOUND], TAKEN] += 1
                m.counter[SENT] += 1
            row[PHASE] = LINK
            row[SINCE] = m.counter[NOW]
            m.requested[m.counter[REQUESTED]] = block
            m.counter[REQUESTED] += 1
            return
        else:
            return


def _complete(m: Machine, event: int) -> None:
    """Let what an event ends go on: local work, a message, or its hold of some edges."""
    index, what = event >> 3, event & 7
    if what == WORKED:
        m.blocks[index, PHASE] = SLOT
        _wake(m, index)
        return
    if what == SEEN:
        _show(m, index % m.counter[BLOCKS], index // m.counter[BLOCKS])
        return
    row = m.connections[index]
    if what != ARRIVED:
        offset, course = row[OFFSET], row[COURSE]
        first, count = row[EDGES_FROM], row[EDGES_TO] - row[EDGES_FROM]
        held = m.durations[course + offset] if count else 0
        while offset < count and m.durations[course + offset] == held:
            edge = m.wires[first + offset]
            m.edges[edge, BUSY] = 0
            if m.edges[edge, ROOT] >= 0:
                m.freed[m.counter[FREED]] = edge
                m.counter[FREED] += 1
            offset += 1
        row[OFFSET] = offset
        if offset == count:
            _end_slice(m, row[SENDER])
            _wake(m, row[SENDER])
    if what != RELEASED:
        row[AVAILABLE] += 1
        receiver = row[RECEIVER]
        if row[AVAILABLE] == 1 and receiver >= 0 and m.blocks[receiver, PHASE] == RECEIVE:
            _wake(m, receiver)


def _start_or_park(m: Machine, block: int) -> None:
    """Let a send hold its edges, and queue its releases and its arrival; park it if one is busy."""
    owner = m.blocks[block]
    row = m.connections[owner[OUTBOUND]]
    first, count = row[EDGES_FROM], row[EDGES_TO] - row[EDGES_FROM]
    for number in range(count):
        if m.edges[m.wires[first + number], BUSY]:
            park(m, block, m.wires[first + number])
            return
    kind = m.kinds[_part(m, block), m.steps[owner[STEP]]]
    tail = TAIL if owner[LEFT] == 1 else 0
    course, arrival = kind[DURATIONS + tail], kind[ARRIVAL + tail]
    now, event = m.counter[NOW], 8 * owner[OUTBOUND]
    row[OFFSET] = 0
    row[COURSE] = course
    held = 0
    for number in range(count):
        if number and m.durations[course + number] != held:
            push_event(m, now + held, event + RELEASED)
        held = m.durations[course + number]
        edge = m.wires[first + number]
        m.edges[edge, BUSY] = 1
        m.edges[edge, HELD] += held
    if held == arrival:
        push_event(m, now + held, event + RELEASED_LAST_AND_ARRIVED)
    else:
        push_event(m, now + held, event + RELEASED)
        push_event(m, now + arrival, event + ARRIVED)


def _start_waiting(m: Machine) -> None:
    """Go once through the waiting sends that may have become able to start, in order."""
    counter = m.counter
    for number in range(counter[FREED]):
        add_candidate(m, m.edges[m.freed[number], ROOT])
    counter[FREED] = 0
    # Most requests come in order, and only the others need the heap.
    kept = 0
    for number in range(counter[REQUESTED]):
        block = m.requested[number]
        if kept and m.requested[kept - 1] > block:
            add_candidate(m, block)
        else:
            m.requested[kept] = block
            kept += 1
    counter[REQUESTED] = 0
    number = 0
    while number < kept or counter[CANDIDATES]:
        if number < kept and not (
            counter[CANDIDATES] and precedes(m, m.candidates[0], m.requested[number])
        ):
            _start_or_park(m, m.requested[number])
            number += 1
            continue
        block = take_candidate(m)
        edge = m.blocks[block, PARKED]
        if edge < 0:
            _start_or_park(m, block)
        elif not m.edges[edge, BUSY]:
            unpark(m, edge)
            _start_or_park(m, block)
            if m.edges[edge, ROOT] >= 0 and not m.edges[edge, BUSY]:
                add_candidate(m, m.edges[edge, ROOT])


def _settle(m: Machine, place: int, connection: int) -> None:
    """Put the flow of a `connection` into its place of the heap, which begins at a `place`."""
    flying, connections = m.flying, m.connections
    ends = connections[connection, ENDS]
    while place > 0:
        above = (place - 1) >> 1
        if connections[flying[above], ENDS] <= ends:
            break
        flying[place] = flying[above]
        connections[flying[place], PLACE] = place
        place = above
    below = 2 * place + 1
    while below < m.counter[FLYING]:
        if (
            below + 1 < m.counter[FLYING]
            and connections[flying[below + 1], ENDS] < connections[flying[below], ENDS]
        ):
            below += 1
        if connections[flying[below], ENDS] >= ends:
            break
        flying[place] = flying[below]
        connections[flying[place], PLACE] = place
        place, below = below, 2 * below + 1
    flying[place] = connection
    connections[connection, PLACE] = place


def _count(m: Machine, edge: int, change: int) -> None:
    """Let there be one flow more, or less, on a shared `edge`."""
    row = m.edges[edge]
    if row[BUSY] == 0:
        row[BUSY_SINCE] = m.counter[NOW]
    row[BUSY] += change
    if row[BUSY] == 0:
        row[HELD] += m.counter[NOW] - row[BUSY_SINCE]
    if row[ROOT] < 0:
        row[ROOT] = 0
        m.freed[m.counter[FREED]] = edge
        m.counter[FREED] += 1


def _begin_flow(m: Machine, block: int) -> None:
    """Let a slice go onto the edges of its connection, as yet without a rate."""
    owner = m.blocks[block]
    connection = owner[OUTBOUND]
    row = m.connections[connection]
    kind = m.kinds[_part(m, block), m.steps[owner[STEP]]]
    tail = TAIL if owner[LEFT] == 1 else 0
    row[WORK_LEFT] = kind[DURATIONS + tail]
    row[DELAY] = kind[ARRIVAL + tail]
    row[UPDATED] = m.counter[NOW]
    row[RATE] = 0
    for place in range(row[EDGES_FROM], row[EDGES_TO]):
        edge = m.wires[place]
        first = m.edges[edge, FLOWS]
        m.before[place] = -1
        m.after[place] = first
        if first >= 0:
            m.before[first] = place
        m.edges[edge, FLOWS] = place
        _count(m, edge, 1)


def _end_flow(m: Machine) -> None:
    """Take the flow that ends first from its edges; its slice arrives, its threadblock goes on."""
    connection = m.flying[0]
    m.counter[FLYING] -= 1
    if m.counter[FLYING]:
        _settle(m, 0, m.flying[m.counter[FLYING]])
    row = m.connections[connection]
    row[PLACE] = -1
    for place in range(row[EDGES_FROM], row[EDGES_TO]):
        edge = m.wires[place]
        before, after = m.before[place], m.after[place]
        if before < 0:
            m.edges[edge, FLOWS] = after
        else:
            m.after[before] = after
        if after >= 0:
            m.before[after] = before
        _count(m, edge, -1)
    push_event(m, m.counter[NOW] + row[DELAY], 8 * connection + ARRIVED)
    _end_slice(m, row[SENDER])
    _wake(m, row[SENDER])


def _rate(m: Machine, connection: int) -> None:
    """Give the flow of a `connection` its rate, and reckon its end if that is another."""
    row = m.connections[connection]
    rate = m.counter[BLOCK_RATE]
    for place in range(row[EDGES_FROM], row[EDGES_TO]):
        rate = min(rate, m.edges[m.wires[place], SHARE])
    if rate == row[RATE]:
        return
    now = m.counter[NOW]
    row[WORK_LEFT] = max(0, row[WORK_LEFT] - row[RATE] * (now - row[UPDATED]))
    row[UPDATED] = now
    row[RATE] = rate
    row[ENDS] = now - (-row[WORK_LEFT] // rate)
    if row[PLACE] < 0:
        row[PLACE] = m.counter[FLYING]
        m.counter[FLYING] += 1
    _settle(m, row[PLACE], connection)


def _share(m: Machine) -> None:
    """Begin the flows of this instant, and share out all edges on which their number changes."""
    counter = m.counter
    for number in range(counter[REQUESTED]):
        _begin_flow(m, m.requested[number])
    changed = 0
    for number in range(counter[FREED]):
        row = m.edges[m.freed[number]]
        row[ROOT] = -1
        if row[BUSY] != row[RATED]:
            row[RATED] = row[BUSY]
            if row[BUSY]:
                row[SHARE] = max(1, row[CAPACITY] // row[BUSY])
            m.freed[changed] = m.freed[number]
            changed += 1
    for number in range(changed):
        place = m.edges[m.freed[number], FLOWS]
        while place >= 0:
            _rate(m, m.owners[place])
            place = m.after[place]
    for number in range(counter[REQUESTED]):
        _rate(m, m.blocks[m.requested[number], OUTBOUND])
    counter[FREED] = 0
    counter[REQUESTED] = 0


def run_events(m: Machine, budget: int) -> int:
    """Replay ``m`` until the end, until the watched block begins an iteration, or for some events.

    At most ``budget`` events are handled; FULL where the queue needs more room.
    """
    counter = m.counter
    stop = counter[EVENTS] + budget
    while counter[EVENTS] < stop:
        if counter[QUEUED] + ROOM > len(m.queue):
            return FULL
        if counter[WOKEN]:
            counter[WOKEN] -= 1
            _advance(m, m.woken[counter[WOKEN]])
        elif counter[QUEUED] and m.queue[0, 0] == counter[NOW]:
            counter[EVENTS] += 1
            _complete(m, pop_event(m))
        elif counter[FLYING] and m.connections[m.flying[0], ENDS] == counter[NOW]:
            counter[EVENTS] += 1
            _end_flow(m)
        elif counter[REQUESTED] or counter[FREED]:
            if counter[SHARED]:
                _share(m)
            else:
                _start_waiting(m)
        elif counter[QUEUED] + counter[FLYING] == 0:
            return FINISHED
        elif m.blocks[counter[WATCHED], ITERATION] >= counter[PAUSE_AT]:
            return PAUSED
        elif counter[FLYING] and (
            counter[QUEUED] == 0 or m.connections[m.flying[0], ENDS] < m.queue[0, 0]
        ):
            counter[NOW] = m.connections[m.flying[0], ENDS]
        else:
            counter[NOW] = m.queue[0, 0]
    return OUT_OF_BUDGET


MAX_TOTAL = 1 << 62
"""Sum of all durations, above which a time might not fit into 64 bits."""

NEVER = 1 << 62


def messages_of(columns: Columns, cut: Split) -> int:
    """Return how many messages and pieces of local work ``columns`` have at a size so ``cut``."""
    counts = np.array([kind.chunks for kind in columns.kinds], np.int64)
    return int(columns.population @ np.maximum(1, -(-counts // cut.chunks))) * cut.iterations


def machine_of(
    columns: Columns,
    cut: Split,
    local: LocalCosts,
    factor: Fraction = Fraction(1),
    sharing: Sharing | None = None,
) -> Machine | None:
    """Return the state before the first event; None where times might not fit into 64 bits.

    `columns` are the program on its topology, `cut` is how the size is cut, `local` what local work
    costs, and `factor` bytes on the wire for each byte of data; `sharing` is what is charged
    instead where messages share edges.
    """
    prices = _Prices(columns.classes, local, factor, sharing, {}, {}, [])
    # A table may say how messages of an iteration that never runs are priced: those of the last.
    parts = [cut.full if cut.iterations > 1 else cut.last, cut.last]
    tables = [[prices.row(kind, cut.chunks, part) for kind in columns.kinds] for part in parts]
    # Flows on the edge with the least share have it all, so all flows together are no slower.
    least = 1
    if sharing is not None:
        least = int(sharing.capacity.min(initial=sharing.block_rate))
    total = 0
    for rows, repeats in zip(tables, (cut.iterations - 1, 1), strict=True):
        for row, steps in zip(rows, columns.population.tolist(), strict=True):
            # At least what all messages take if nothing overlaps. An edge is held no longer than
            # twice the way to the destination, as overhead is at most alpha.
            messages = row[0]
            for many, (arrival, held, work, slices) in (
                (messages - 1, row[3:7]), (1, row[7:])
            ):  # fmt: skip
                slowest = held // least if sharing is not None else 0
                total += many * slices * (arrival + slowest + work) * steps * repeats
    if total >= MAX_TOTAL:
        return None
    kinds = np.array(tables, np.int64).reshape(2, -1, KIND_FIELDS)
    num_blocks = len(columns.ends)
    counter = np.zeros(COUNTERS, np.int64)
    counter[WOKEN] = num_blocks
    counter[ITERATIONS] = cut.iterations
    counter[SLOTS] = cut.slots
    counter[WIDTH] = columns.width
    counter[PAUSE_AT] = NEVER
    connections = np.zeros((len(columns.connections), CONNECTION_FIELDS), np.int64)
    connections[:, SENDER] = columns.senders
    connections[:, RECEIVER] = columns.receivers
    connections[:, EDGES_FROM] = columns.wires_from[:-1]
    connections[:, EDGES_TO] = columns.wires_from[1:]
    edges = np.zeros((columns.num_edges, EDGE_FIELDS), np.int64)
    edges[:, ROOT] = edges[:, FLOWS] = -1
    most = 1
    if sharing is not None:
        connections[:, PLACE] = -1
        edges[:, CAPACITY] = edges[:, SHARE] = sharing.capacity
        counter[SHARED] = 1
        counter[BLOCK_RATE] = sharing.block_rate
        counter[FLAG_LATENCY] = sharing.flag
        most = sharing.slices
    counter[BLOCKS] = num_blocks + 1
    # Events in the queue at once: arrivals of as many messages as all connections hold, the
    # releases of one message of each, and the end of local work of each block.
    # Posts that are not seen yet come on top; the queue grows where there are many.
    flying = most * min(len(columns.connections) * cut.slots, messages_of(columns, cut))
    queued = flying + len(columns.wires) + len(columns.connections) + len(columns.ends)
    queued += ROOM + 1
    places = len(columns.wires) if sharing is not None else 0
    return Machine(
        _blocks(columns, kinds), connections, edges, columns.kind_of, columns.marks,
        columns.needs_from, columns.needs, kinds, np.array(prices.durations or [0], np.int64),
        columns.wires,
        np.repeat(
            np.arange(len(columns.connections), dtype=np.int32), np.diff(columns.wires_from)
        ),
        np.full(places, -1, np.int32), np.full(places, -1, np.int32),
        np.zeros(len(columns.connections), np.int32), np.zeros((queued, 2), np.int64),
        np.arange(num_blocks, dtype=np.int32)[::-1].copy(), np.zeros(num_blocks, np.int32),
        np.zeros(columns.num_edges, np.int32), np.zeros(num_blocks, np.int32), counter,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Prices:
    """What messages cost; the last three fields are filled while rows are asked for."""

    classes: tuple[LinkClass, ...]
    local: LocalCosts
    factor: Fraction
    sharing: Sharing | None
    times: dict[tuple[Fraction, int], Time]  # by (beta, bytes)
    courses: dict[tuple[int, int], tuple[Time, int]]  # arrival and place, by (class, bytes)
    durations: list[Time]  # how long edges are held, ascending for every course

    def row(self, kind: Kind, chunks: int, part: int) -> list[int]:
        """Return the row of a kind when ``part`` bytes of every chunk are handled."""
        messages = max(1, -(-kind.chunks // chunks))
        head = [messages, int(kind.op in program.RECEIVES), int(kind.op in program.SENDS)]
        sizes = (min(chunks, kind.chunks) * part, (kind.chunks - (messages - 1) * chunks) * part)
        for size in sizes:
            arrival, course, slices = 0, 0, 1
            if self.sharing is not None:
                slices = self.sharing.slices_of(size)
                if kind.op in program.SENDS:
                    across = self.classes[kind.link_class].across
                    arrival, course = self.sharing.flow(size, across=across)
            elif kind.op in program.SENDS:
                arrival, course = self._course(kind.link_class, size)
            local = self.local if self.sharing is None else self.sharing.local
            work = local_time(kind.op, local, Fraction(size, slices), kind.sources)
            head += [arrival, course, work, slices]
        return head

    def _course(self, number: int, size: int) -> tuple[Time, int]:
        if (number, size) not in self.courses:
            costs = self.classes[number]
            for beta in costs.betas:
                if (beta, size) not in self.times:
                    self.times[beta, size] = ceil_time(beta, self.factor * size)
            held = [self.times[beta, size] for beta in costs.betas]
            slowest = held[-1] if held else 0
            self.courses[number, size] = (costs.alpha + slowest, len(self.durations))
            self.durations.extend(costs.overhead + time for time in held)
        return self.courses[number, size]


def _blocks(columns: Columns, kinds: NDArray[np.int64]) -> Rows:
    """Return a row for each block, before its first step, and one for a block that never posts."""
    num_blocks = len(columns.ends)
    blocks = np.zeros((num_blocks + 1, BLOCK_FIELDS), np.int64)
    for name in (FLAG, WAITERS, NEXT, CHILD, PARKED):
        blocks[:, name] = -1
    blocks[:, PHASE] = DONE
    rows = blocks[:num_blocks]
    first, end = columns.begins[:-1], columns.begins[1:]
    rows[:, FIRST] = rows[:, STEP] = first
    rows[:, END] = end
    rows[:, INBOUND] = columns.inbound
    rows[:, OUTBOUND] = columns.outbound
    busy = np.flatnonzero(first < end)
    rows[busy, PHASE] = NEEDS
    rows[busy, NEED] = columns.needs_from[first[busy]]
    rows[busy, LEFT] = kinds[0, columns.kind_of[first[busy]], MESSAGES]
    return blocks

"""The event loop of the replay for compiled code: the rules of interpreter.py on flat arrays.

A machine is rows of integers for threadblocks, connections and edges, whose fields have names here.
Events wait in a heap by time. A blocked send is parked at one busy edge, in the pairing heap of
that edge, which is threaded through the rows of the threadblocks, and looked at again when the edge
is free. What happens at one instant is handled in any order, as the rules let nothing depend on it;
only the pass over the waiting sends has an order. Everything here is compiled by timing.py.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
Column = NDArray[np.int32]

NEEDS, RECEIVE, WORK, SLOT, LINK, DONE = range(6)
ARRIVED, RELEASED, RELEASED_LAST_AND_ARRIVED, WORKED = range(4)

# A threadblock. NEXT and SINCE serve two lists that it is never in at once: those who wait for a
# flag (SINCE: which), and those parked at an edge (SINCE: the time of the request).
PHASE, STEP, ITERATION, LEFT, NEED, FIRST, END, INBOUND, OUTBOUND, FLAG = range(10)
WAITERS, NEXT, SINCE, CHILD, PARKED = range(10, 15)
BLOCK_FIELDS = 15

# A connection. OFFSET: which of its edges a message releases next; COURSE: its durations.
AVAILABLE, TAKEN, OFFSET, COURSE, SENDER, RECEIVER, EDGES_FROM, EDGES_TO = range(8)
CONNECTION_FIELDS = 8

BUSY, ROOT, HELD = range(3)
EDGE_FIELDS = 3

# A kind of step: how many messages, then for all but the last message, and for the last one.
MESSAGES, RECEIVES, SENDS, ARRIVAL, DURATIONS, LOCAL = range(6)
TAIL = 3
KIND_FIELDS = 9

NOW, QUEUED, WOKEN, REQUESTED, FREED, CANDIDATES, SENT, EVENTS = range(8)
ITERATIONS, SLOTS, WIDTH, WATCHED, PAUSE_AT = range(8, 13)
COUNTERS = 13

FINISHED, PAUSED, OUT_OF_BUDGET = range(3)


class Machine(NamedTuple):
    """A program at one size, and the state of its replay.

    Parameters
    ----------
    blocks, connections, edges
        A row each, with the fields above; one more block stands for one that does not exist.
    steps, marks
        Kind of each step; position in the XML times two, plus one where it posts.
    needs_from, needs
        For each step, the rows of (block, position) that it waits for.
    kinds
        Costs of each kind of step in a full iteration and in the last one.
    durations
        How long a message holds each edge of its connection, ascending.
    wires
        Edges of the connections, in the same order.
    queue
        Heap of (time, event).
    woken, requested, freed, candidates
        Stacks of blocks that can go on, of new requests, of freed edges that are waited for; a
        heap of the sends to look at.
    counter
        Everything there is one of.
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


def _post(m: Machine, block: int, flag: int) -> None:
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


def _finish(m: Machine, block: int) -> None:
    """Free the slot, post the flag, and go to the next message or step."""
    row = m.blocks[block]
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
        _post(m, block, row[ITERATION] * m.counter[WIDTH] + (m.marks[step] >> 1))
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
            local = kind[LOCAL + (TAIL if row[LEFT] == 1 else 0)]
            if local:
                row[PHASE] = WORK
                push_event(m, m.counter[NOW] + local, 4 * block + WORKED)
                return
            row[PHASE] = SLOT
        elif phase == SLOT and not m.kinds[0, m.steps[step], SENDS]:
            _finish(m, block)
        elif phase == SLOT and m.connections[row[OUTBOUND], TAKEN] < m.counter[SLOTS]:
            m.connections[row[OUTBOUND], TAKEN] += 1
            row[PHASE] = LINK
            row[SINCE] = m.counter[NOW]
            m.requested[m.counter[REQUESTED]] = block
            m.counter[REQUESTED] += 1
            return
        else:
            return


def _complete(m: Machine, event: int) -> None:
    """Let what an event ends go on: local work, a message, or its hold of some edges."""
    index, what = event >> 2, event & 3
    if what == WORKED:
        m.blocks[index, PHASE] = SLOT
        _wake(m, index)
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
            _finish(m, row[SENDER])
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
    now, event = m.counter[NOW], 4 * owner[OUTBOUND]
    row[OFFSET] = 0
    row[COURSE] = course
    m.counter[SENT] += 1
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


def run_events(m: Machine, budget: int) -> int:
    """Replay ``m`` until the end, until the watched block begins an iteration, or for some events.

    At most ``budget`` events are handled.
    """
    counter = m.counter
    stop = counter[EVENTS] + budget
    while counter[EVENTS] < stop:
        if counter[WOKEN]:
            counter[WOKEN] -= 1
            _advance(m, m.woken[counter[WOKEN]])
        elif counter[QUEUED] and m.queue[0, 0] == counter[NOW]:
            counter[EVENTS] += 1
            _complete(m, pop_event(m))
        elif counter[REQUESTED] or counter[FREED]:
            _start_waiting(m)
        elif counter[QUEUED] == 0:
            return FINISHED
        elif m.blocks[counter[WATCHED], ITERATION] >= counter[PAUSE_AT]:
            return PAUSED
        else:
            counter[NOW] = m.queue[0, 0]
    return OUT_OF_BUDGET

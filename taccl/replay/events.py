"""The event loop of the replay for compiled code: the rules of interpreter.py on flat arrays.

What happens at one instant is handled in any order, as the rules let nothing depend on it; only
the pass over the waiting sends has an order. A blocked send is parked at one busy edge and looked
at again when that edge is free. Everything here is compiled by timing.py.

The queues of the compiled replay: events by time, and waiting sends by request.

A blocked send is parked at one busy edge, in the pairing heap of that edge, which is threaded
through the rows of the threadblocks. Everything here is compiled by timing.py.
"""

from taccl.replay.layout import (
    ARRIVAL,
    ARRIVED,
    AVAILABLE,
    BUSY,
    CANDIDATES,
    CHILD,
    COURSE,
    DONE,
    DURATIONS,
    EDGES_FROM,
    EDGES_TO,
    END,
    EVENTS,
    FINISHED,
    FIRST,
    FLAG,
    FREED,
    HELD,
    INBOUND,
    ITERATION,
    ITERATIONS,
    LEFT,
    LINK,
    LOCAL,
    MESSAGES,
    NEED,
    NEEDS,
    NEXT,
    NOW,
    OFFSET,
    OUT_OF_BUDGET,
    OUTBOUND,
    PARKED,
    PAUSE_AT,
    PAUSED,
    PHASE,
    QUEUED,
    RECEIVE,
    RECEIVER,
    RECEIVES,
    RELEASED,
    RELEASED_LAST_AND_ARRIVED,
    REQUESTED,
    ROOT,
    SENDER,
    SENDS,
    SENT,
    SINCE,
    SLOT,
    SLOTS,
    STEP,
    TAIL,
    TAKEN,
    WAITERS,
    WATCHED,
    WIDTH,
    WOKEN,
    WORK,
    WORKED,
    Machine,
)


def push_event(m: Machine, time: int, event: int) -> None:
    """Put an event into the queue.

    Parameters
    ----------
    m
        The state of the replay.
    time
        Picoseconds.
    event
        Its number.
    """
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
    """Tell whether the request of block ``a`` is served before that of ``b``.

    Parameters
    ----------
    m
        The state of the replay.
    a, b
        Rows of blocks.
    """
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
    """Put a blocked send into the heap of a busy edge.

    Parameters
    ----------
    m
        The state of the replay.
    block
        Row of the block that sends.
    edge
        Row of the edge that is busy.
    """
    m.blocks[block, PARKED] = edge
    m.blocks[block, CHILD] = -1
    m.blocks[block, NEXT] = -1
    root = m.edges[edge, ROOT]
    m.edges[edge, ROOT] = block if root < 0 else _meld(m, root, block)


def unpark(m: Machine, edge: int) -> None:
    """Take the first send from those parked at an edge.

    Parameters
    ----------
    m
        The state of the replay.
    edge
        Row of the edge.
    """
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
    """Put a send into the heap of those to look at now.

    Parameters
    ----------
    m
        The state of the replay.
    block
        Row of the block that sends.
    """
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


def _begin_step(m: Machine, block: int) -> None:
    row = m.blocks[block]
    step = row[STEP]
    row[NEED] = m.needs_from[step]
    row[LEFT] = m.kinds[_part(m, block), m.steps[step], MESSAGES]
    row[PHASE] = NEEDS


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
    row[STEP] = step + 1
    if step + 1 == row[END]:
        row[STEP] = row[FIRST]
        row[ITERATION] += 1
        if row[ITERATION] == m.counter[ITERATIONS]:
            row[PHASE] = DONE
            return
    _begin_step(m, block)


def _await_flags(m: Machine, block: int) -> bool:
    row = m.blocks[block]
    base = row[ITERATION] * m.counter[WIDTH]
    for number in range(row[NEED], m.needs_from[row[STEP] + 1]):
        other = m.needs[number, 0]
        goal = base + m.needs[number, 1]
        if m.blocks[other, FLAG] < goal:
            row[NEED] = number
            row[SINCE] = goal
            row[NEXT] = m.blocks[other, WAITERS]
            m.blocks[other, WAITERS] = block
            return False
    row[PHASE] = RECEIVE
    return True


def _await_arrival(m: Machine, block: int) -> bool:
    row = m.blocks[block]
    kind = m.kinds[_part(m, block), m.steps[row[STEP]]]
    if kind[RECEIVES]:
        inbound = row[INBOUND]
        if m.connections[inbound, AVAILABLE] == 0:
            return False
        m.connections[inbound, AVAILABLE] -= 1
    local = kind[LOCAL + (TAIL if row[LEFT] == 1 else 0)]
    if local:
        row[PHASE] = WORK
        push_event(m, m.counter[NOW] + local, 4 * block + WORKED)
        return False
    row[PHASE] = SLOT
    return True


def _await_slot(m: Machine, block: int) -> bool:
    row = m.blocks[block]
    if not m.kinds[0, m.steps[row[STEP]], SENDS]:
        _finish(m, block)
        return True
    outbound = row[OUTBOUND]
    if m.connections[outbound, TAKEN] >= m.counter[SLOTS]:
        return False
    m.connections[outbound, TAKEN] += 1
    row[PHASE] = LINK
    row[SINCE] = m.counter[NOW]
    m.requested[m.counter[REQUESTED]] = block
    m.counter[REQUESTED] += 1
    return False


def _advance(m: Machine, block: int) -> None:
    moves = True
    while moves:
        phase = m.blocks[block, PHASE]
        if phase == NEEDS:
            moves = _await_flags(m, block)
        elif phase == RECEIVE:
            moves = _await_arrival(m, block)
        elif phase == SLOT:
            moves = _await_slot(m, block)
        else:
            moves = False


def _release(m: Machine, connection: int) -> None:
    """Release the edges whose time it is; after the last one the sender goes on."""
    row = m.connections[connection]
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


def _complete(m: Machine, event: int) -> None:
    index, what = event >> 2, event & 3
    if what == WORKED:
        m.blocks[index, PHASE] = SLOT
        _wake(m, index)
        return
    if what != ARRIVED:
        _release(m, index)
    if what != RELEASED:
        row = m.connections[index]
        row[AVAILABLE] += 1
        receiver = row[RECEIVER]
        if row[AVAILABLE] == 1 and receiver >= 0 and m.blocks[receiver, PHASE] == RECEIVE:
            _wake(m, receiver)


def _settle(m: Machine) -> None:
    """Complete everything at this instant and whatever it enables in zero time."""
    counter = m.counter
    while True:
        if counter[WOKEN]:
            counter[WOKEN] -= 1
            _advance(m, m.woken[counter[WOKEN]])
        elif counter[QUEUED] and m.queue[0, 0] == counter[NOW]:
            counter[EVENTS] += 1
            _complete(m, pop_event(m))
        else:
            return


def _start(m: Machine, block: int) -> None:
    """Let a send hold its edges, and queue its releases and its arrival."""
    owner = m.blocks[block]
    row = m.connections[owner[OUTBOUND]]
    kind = m.kinds[_part(m, block), m.steps[owner[STEP]]]
    tail = TAIL if owner[LEFT] == 1 else 0
    course, arrival = kind[DURATIONS + tail], kind[ARRIVAL + tail]
    now, event = m.counter[NOW], 4 * owner[OUTBOUND]
    row[OFFSET] = 0
    row[COURSE] = course
    m.counter[SENT] += 1
    first, last, held = row[EDGES_FROM], row[EDGES_TO] - 1, 0
    for number in range(last - first):
        held = m.durations[course + number]
        if m.durations[course + number + 1] != held:
            push_event(m, now + held, event + RELEASED)
    for number in range(last - first + 1):
        held = m.durations[course + number]
        edge = m.wires[first + number]
        m.edges[edge, BUSY] = 1
        m.edges[edge, HELD] += held
    if held == arrival:
        push_event(m, now + held, event + RELEASED_LAST_AND_ARRIVED)
    else:
        push_event(m, now + held, event + RELEASED)
        push_event(m, now + arrival, event + ARRIVED)


def _start_or_park(m: Machine, block: int) -> None:
    outbound = m.blocks[block, OUTBOUND]
    for number in range(m.connections[outbound, EDGES_FROM], m.connections[outbound, EDGES_TO]):
        if m.edges[m.wires[number], BUSY]:
            park(m, block, m.wires[number])
            return
    _start(m, block)


def _collect(m: Machine) -> int:
    """Make candidates of who waits first at freed edges and of requests that are out of order.

    Return how many requests are left, ascending.
    """
    counter = m.counter
    for number in range(counter[FREED]):
        add_candidate(m, m.edges[m.freed[number], ROOT])
    counter[FREED] = 0
    kept = 0
    for number in range(counter[REQUESTED]):
        block = m.requested[number]
        if kept and m.requested[kept - 1] > block:
            add_candidate(m, block)
        else:
            m.requested[kept] = block
            kept += 1
    counter[REQUESTED] = 0
    return kept


def _start_waiting(m: Machine) -> None:
    """Go once through the waiting sends that may have become able to start, in order."""
    kept = _collect(m)
    number = 0
    while number < kept or m.counter[CANDIDATES]:
        if number < kept and not (
            m.counter[CANDIDATES] and precedes(m, m.candidates[0], m.requested[number])
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
    """Replay until the end, until the watched block begins an iteration, or for some events.

    Parameters
    ----------
    m
        The state of the replay.
    budget
        Most events to handle.
    """
    counter = m.counter
    stop = counter[EVENTS] + budget
    while counter[EVENTS] < stop:
        _settle(m)
        if counter[REQUESTED] or counter[FREED]:
            _start_waiting(m)
            continue
        if counter[QUEUED] == 0:
            return FINISHED
        if m.blocks[counter[WATCHED], ITERATION] >= counter[PAUSE_AT]:
            return PAUSED
        counter[NOW] = m.queue[0, 0]
    return OUT_OF_BUDGET

"""The queues of the compiled replay: events by time, and waiting sends by request.

A blocked send is parked at one busy edge, in the pairing heap of that edge, which is threaded
through the rows of the threadblocks. Everything here is compiled by kernel.py.
"""

from taccl.sim.layout import CANDIDATES, CHILD, NEXT, PARKED, QUEUED, ROOT, SINCE, Machine


def push_event(m: Machine, time: int, event: int) -> None:
    """Put an event into the queue."""
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
    """Tell whether the request of block ``a`` is served before that of ``b``."""
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
    """Put a blocked send into the heap of a busy edge."""
    m.blocks[block, PARKED] = edge
    m.blocks[block, CHILD] = -1
    m.blocks[block, NEXT] = -1
    root = m.edges[edge, ROOT]
    m.edges[edge, ROOT] = block if root < 0 else _meld(m, root, block)


def unpark(m: Machine, edge: int) -> None:
    """Take the first send from those parked at an edge."""
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
    """Put a send into the heap of those to look at now."""
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

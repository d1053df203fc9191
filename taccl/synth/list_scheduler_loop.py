"""List scheduling of fixed routes, on flat arrays: plain functions that list_scheduler.py compiles.

Time goes from event to event: a message arrives, or a resource is released. At every instant the
messages that could start are tried in order of rank; one that meets a busy resource waits in that
resource's heap, and comes up again when it is released. So nothing waits while all it needs is
free, and each event costs the logarithm of what waits.
"""

from typing import NamedTuple

from taccl.timing.occupancy import NOTHING, Numbers, Times, Uses, blocking, occupy

ARRIVAL, START = 0, 1
"""What a message may wait for."""


class Work(NamedTuple):
    """Messages and what they wait for.

    `uses` is what they hold. CSR: from `next_start` on stand the messages `following` that wait for
    message m, and the `moment`: for its ARRIVAL or its START. `rank` is the place in the order of
    preference: no two alike.
    """

    uses: Uses
    next_start: Times
    following: Numbers
    moment: Numbers
    rank: Numbers


class State(NamedTuple):
    """What :func:`dispatch` works on and answers with.

    Each message still waits for `missing` others; its `start` is -1 before it has one, and `turn`
    is how many were started before it. Each resource is `free` from a time on, and `top` is the
    pairing heap of those that wait for it; one more of those to be tried now. `child` and `sibling`
    are links of the heaps; a message came up from the heap of the resource `pulled`. `event_time`
    and `event_code` are a binary heap: arrival of message m is code m, release of resource r is
    -1 - r.
    """

    missing: Numbers
    start: Times
    turn: Numbers
    free: Times
    top: Numbers
    child: Numbers
    sibling: Numbers
    pulled: Numbers
    event_time: Times
    event_code: Times


def meld(work: Work, state: State, one: int, other: int) -> int:
    """Return the root of two heaps made one: the message of smaller rank."""
    if work.rank[other] < work.rank[one]:
        one, other = other, one
    state.sibling[other] = state.child[one]
    state.child[one] = other
    return one


def wait(work: Work, state: State, heap: int, message: int) -> None:
    """Put a message into a heap."""
    state.child[message] = NOTHING
    state.sibling[message] = NOTHING
    root = state.top[heap]
    state.top[heap] = message if root == NOTHING else meld(work, state, root, message)


def pull(work: Work, state: State, heap: int) -> int:
    """Take the message of smallest rank out of a heap that is not empty."""
    message = state.top[heap]
    entry = state.child[message]
    pairs = NOTHING
    while entry != NOTHING:
        other = state.sibling[entry]
        following = NOTHING
        if other != NOTHING:
            following = state.sibling[other]
            state.sibling[entry] = NOTHING
            state.sibling[other] = NOTHING
            entry = meld(work, state, entry, other)
        state.sibling[entry] = pairs
        pairs = entry
        entry = following
    root = NOTHING
    while pairs != NOTHING:
        following = state.sibling[pairs]
        state.sibling[pairs] = NOTHING
        root = pairs if root == NOTHING else meld(work, state, root, pairs)
        pairs = following
    state.top[heap] = root
    return int(message)


def push_event(state: State, size: int, time: int, code: int) -> int:
    """Add an event; return how many there are."""
    place = size
    while place > 0:
        above = (place - 1) >> 1
        if state.event_time[above] <= time:
            break
        state.event_time[place] = state.event_time[above]
        state.event_code[place] = state.event_code[above]
        place = above
    state.event_time[place] = time
    state.event_code[place] = code
    return size + 1


def drop_event(state: State, size: int) -> int:
    """Remove the first event; return how many are left."""
    size -= 1
    time, code = state.event_time[size], state.event_code[size]
    place = 0
    while 2 * place + 1 < size:
        below = 2 * place + 1
        if below + 1 < size and state.event_time[below + 1] < state.event_time[below]:
            below += 1
        if state.event_time[below] >= time:
            break
        state.event_time[place] = state.event_time[below]
        state.event_code[place] = state.event_code[below]
        place = below
    state.event_time[place] = time
    state.event_code[place] = code
    return size


def release(work: Work, state: State, message: int, moment: int) -> None:
    """Offer the messages that waited for one last: for its arrival, or its start."""
    for i in range(work.next_start[message], work.next_start[message + 1]):
        if work.moment[i] == moment:
            other = work.following[i]
            state.missing[other] -= 1
            if state.missing[other] == 0:
                wait(work, state, len(state.free), other)


def begin(work: Work, state: State, message: int, time: int, count: int, size: int) -> int:
    """Start a message; return how many events there are.

    Parameters
    ----------
    count, size
        Messages that have started, and events.
    """
    state.start[message] = time
    state.turn[message] = count
    arrival = occupy(work.uses, state.free, message, time)
    for use in range(work.uses.first[message], work.uses.first[message + 1]):
        resource = work.uses.resource[use]
        if state.free[resource] > time:
            size = push_event(state, size, state.free[resource], -1 - resource)
    return push_event(state, size, arrival, message)


def come_up(work: Work, state: State, resource: int, time: int) -> None:
    """Let the first that waits for a resource be tried, if the resource is free."""
    if state.free[resource] <= time and state.top[resource] != NOTHING:
        message = pull(work, state, resource)
        state.pulled[message] = resource
        wait(work, state, len(state.free), message)


def start_all(work: Work, state: State, time: int, count: int, size: int) -> tuple[int, int]:
    """Try what came up at an instant; return how many have started so far, and the events."""
    now = len(state.free)
    while state.top[now] != NOTHING:
        message = pull(work, state, now)
        blocked = blocking(work.uses, state.free, message, time)
        if blocked == NOTHING:
            size = begin(work, state, message, time, count, size)
            count += 1
            release(work, state, message, START)
        else:
            wait(work, state, blocked, message)
        origin = state.pulled[message]
        if origin not in (NOTHING, blocked):
            state.pulled[message] = NOTHING
            come_up(work, state, origin, time)
    return count, size


def dispatch(work: Work, state: State) -> int:
    """Start all that does not wait in a ring; return how many."""
    count, size, time = 0, 0, 0
    for message in range(len(work.rank)):
        if state.missing[message] == 0:
            wait(work, state, len(state.free), message)
    while True:
        count, size = start_all(work, state, time, count, size)
        if size == 0:
            return count
        time = state.event_time[0]
        while size > 0 and state.event_time[0] == time:
            code = state.event_code[0]
            size = drop_event(state, size)
            if code >= 0:
                release(work, state, code, ARRIVAL)
            else:
                come_up(work, state, -1 - code, time)

"""List scheduling of fixed routes, on flat arrays: plain functions that list_scheduler.py compiles.

Items are messages, or single moves: then what is ready beside a move when it starts goes with it,
as far as it may. Time goes from event to event: a message arrives, or a resource is released. At
every instant the items that could start are tried in order of rank; one that meets a busy resource
waits in that resource's heap, and comes up again when it is released. So nothing waits while all
it needs is free, and each event costs the logarithm of what waits.
"""

from typing import NamedTuple

from taccl.timing.occupancy import NOTHING, Numbers, Times, Uses, blocking, occupy

ARRIVAL, START = 0, 1
"""What a message may wait for."""


class Work(NamedTuple):
    """Items and what they wait for: messages, or the single moves that messages grow from.

    `uses` is what messages hold; `row` is an item's row there when it travels alone, and the rows
    after that are those of 2, 3, ... items of its run. `member` holds the items run by run, and
    `place` where each stands there. By place: its run begins and ends at `run_start` and
    `run_stop`, the longest message that begins there ends at `reach`, and a message has `most`
    items at most. CSR: from `next_start` on stand the items `following` that wait for item m, and
    the `moment`: for its ARRIVAL or its START. `rank` is the place in the order of preference: no
    two alike.
    """

    uses: Uses
    row: Numbers
    member: Numbers
    place: Numbers
    run_start: Numbers
    run_stop: Numbers
    reach: Numbers
    most: Numbers
    next_start: Times
    following: Numbers
    moment: Numbers
    rank: Numbers


class State(NamedTuple):
    """What :func:`dispatch` works on and answers with.

    Each item still waits for `missing` others; its `start` is -1 before it has one, `turn` is how
    many messages were started before its own, and `length` how many items the message has that it
    is the first of. Each resource is `free` from a time on, and `top` is the pairing heap of those
    that wait for it; one more of those to be tried now. `child` and `sibling` are links of the
    heaps; an item came up from the heap of the resource `pulled`. `event_time` and `event_code` are
    a binary heap: arrival of the message whose first item is m is code m, release of resource r is
    -1 - r.
    """

    missing: Numbers
    start: Times
    turn: Numbers
    length: Numbers
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


def release(work: Work, state: State, item: int, moment: int) -> None:
    """Offer the items that waited for a message last: for its arrival, or its start.

    `item`: the first of the message.
    """
    now = len(state.free)
    for place in range(work.place[item], work.place[item] + state.length[item]):
        one = work.member[place]
        for i in range(work.next_start[one], work.next_start[one + 1]):
            if work.moment[i] == moment:
                other = work.following[i]
                state.missing[other] -= 1
                if state.missing[other] == 0:
                    wait(work, state, now, other)


def is_ready(work: Work, state: State, place: int) -> bool:
    """Tell whether the item at a place waits for nothing but resources."""
    item = work.member[place]
    return bool(state.missing[item] == 0 and state.start[item] < 0)


def around(work: Work, state: State, item: int) -> tuple[int, int]:
    """Return the places of an item and of what is ready beside it and may travel with it."""
    at = work.place[item]
    first, stop = at, at + 1
    while stop < work.run_stop[at] and stop - first < work.most[at] and is_ready(work, state, stop):
        stop += 1
    while (
        first > work.run_start[at]
        and stop - first < work.most[at]
        and is_ready(work, state, first - 1)
    ):
        first -= 1
    while stop > work.reach[first]:
        if stop - 1 > at:
            stop -= 1
        else:
            first += 1
    return int(first), int(stop)


def begin(work: Work, state: State, item: int, time: int, count: int, size: int) -> tuple[int, int]:
    """Start the message that grows around an item.

    `count`, `size`: messages that have started, and events.

    Returns
    -------
    tuple
        The first item of the message, and how many events there are.
    """
    first, stop = around(work, state, item)
    lead = work.member[first]
    state.length[lead] = stop - first
    for place in range(first, stop):
        state.start[work.member[place]] = time
        state.turn[work.member[place]] = count
    row = work.row[lead] + stop - first - 1
    arrival = occupy(work.uses, state.free, row, time)
    for use in range(work.uses.first[row], work.uses.first[row + 1]):
        resource = work.uses.resource[use]
        if state.free[resource] > time:
            size = push_event(state, size, state.free[resource], -1 - resource)
    return int(lead), push_event(state, size, arrival, lead)


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
        item = pull(work, state, now)
        blocked = NOTHING
        if state.start[item] < 0:  # else it went with another
            blocked = blocking(work.uses, state.free, work.row[item], time)
            if blocked == NOTHING:
                lead, size = begin(work, state, item, time, count, size)
                count += 1
                release(work, state, lead, START)
            else:
                wait(work, state, blocked, item)
        origin = state.pulled[item]
        if origin not in (NOTHING, blocked):
            state.pulled[item] = NOTHING
            come_up(work, state, origin, time)
    return count, size


def dispatch(work: Work, state: State) -> int:
    """Start all that does not wait in a ring; return in how many messages."""
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

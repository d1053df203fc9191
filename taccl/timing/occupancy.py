"""Who holds a resource when: the only place where a resource's free time moves.

Plain functions on flat integer arrays (or lists), which every scheduler calls and the compiled
loops inline. What a message costs is a row of :class:`Uses`, and the timing rule is nothing but
what stands in that row (:func:`taccl.timing.retiming.uses_of`): ``occupy`` holds the edges of
a link for its overhead and the bytes, ``delay`` for the bytes alone, and a rule in which alpha
holds the connection gives a message one more resource, its connection, held up to its arrival.

A message starts at the earliest after all that held its resources before (:func:`earliest_start`,
:func:`occupy`), or in the first gap between reservations (:func:`earliest_gap`, :func:`reserve`).
One pass over messages in a given order (:func:`start_copies`, :func:`start_sums`), which Python
runs on lists for a few messages, has each start as soon as it may.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int32]
Times = NDArray[np.int64]

NOTHING = -1
NEVER = 1 << 61
"""A start for which there is no room."""


class Uses(NamedTuple):
    """What messages hold, one row each; times in picoseconds.

    CSR: message m has the uses ``first[m] .. first[m+1]-1``, each of a `resource`, which is `held`
    for so long from an `offset` to the message's start on. `arrival` is from the start of each
    message to its arrival.
    """

    first: Times
    resource: Numbers
    offset: Times
    held: Times
    arrival: Times


class Reservations(NamedTuple):
    """When resources are held, in order of time.

    `begin` and `finish` are (resources, slots) picoseconds; `entries` of the slots of each are
    taken.
    """

    begin: Times
    finish: Times
    entries: Numbers


def earliest_start(uses: Uses, free: Times, message: int, ready: int) -> int:
    """Return when a `message` can start: once it is `ready` and all that it holds is free.

    `message` is a row of `uses`, `ready` and the answer are picoseconds, and `free` says by
    resource from when on it is free.
    """
    start = ready
    for use in range(uses.first[message], uses.first[message + 1]):
        start = max(start, free[uses.resource[use]] - uses.offset[use])
    return int(start)


def blocking(uses: Uses, free: Times, message: int, time: int) -> int:
    """Return the resource of a `message` that is free last, NOTHING if it can start at a `time`.

    `uses` and `free` are as for :func:`earliest_start`.
    """
    last, latest = NOTHING, time
    for use in range(uses.first[message], uses.first[message + 1]):
        start = free[uses.resource[use]] - uses.offset[use]
        if start > latest:
            last, latest = uses.resource[use], start
    return int(last)


def occupy(uses: Uses, free: Times, message: int, start: int) -> int:
    """Let a `message` hold its resources from its `start` on; return when it arrives.

    `uses` and `free` are as for :func:`earliest_start`, and `start` (picoseconds) is not before it.
    """
    for use in range(uses.first[message], uses.first[message + 1]):
        free[uses.resource[use]] = start + uses.offset[use] + uses.held[use]
    return int(start + uses.arrival[message])


def free_after(uses: Uses, start: Times, resources: int) -> Times:
    """Return from when on each of so many `resources` is free, after messages with known starts.

    `uses` is what the messages hold, `start` of every message in picoseconds.
    """
    free = np.zeros(resources, dtype=np.int64)
    begin = np.repeat(start, np.diff(uses.first)) + uses.offset
    np.maximum.at(free, uses.resource, begin + uses.held)
    return free


def place_of(table: Reservations, resource: int, time: int) -> int:
    """Return the first reservation of a `resource` in a `table` that ends after a `time`."""
    low, high = 0, int(table.entries[resource])
    while low < high:
        middle = (low + high) >> 1
        if table.finish[resource, middle] > time:
            high = middle
        else:
            low = middle + 1
    return low


def earliest_gap(uses: Uses, table: Reservations, message: int, ready: int, room: int) -> int:
    """Return the first start of a message at which all that it holds is free, each in its time.

    `uses`, `message` and `ready` are as for :func:`earliest_start`; of the slots of each resource
    in the `table`, `room` must be left. Picoseconds; NEVER where too few slots are left.
    """
    start, tried = ready, NOTHING
    most = table.begin.shape[1] - room
    while tried != start:
        tried = start
        for use in range(uses.first[message], uses.first[message + 1]):
            resource = uses.resource[use]
            if table.entries[resource] >= most:
                return NEVER
            place = place_of(table, resource, start + uses.offset[use])
            while (
                place < table.entries[resource]
                and table.begin[resource, place] < start + uses.offset[use] + uses.held[use]
            ):
                start = int(table.finish[resource, place] - uses.offset[use])
                place += 1
    return start


def reserve(uses: Uses, table: Reservations, message: int, start: int) -> None:
    """Enter into the `table` what a `message` of `uses` holds from its `start` on."""
    for use in range(uses.first[message], uses.first[message + 1]):
        resource = uses.resource[use]
        begin = start + uses.offset[use]
        place = place_of(table, resource, begin)
        for other in range(table.entries[resource], place, -1):
            table.begin[resource, other] = table.begin[resource, other - 1]
            table.finish[resource, other] = table.finish[resource, other - 1]
        table.begin[resource, place] = begin
        table.finish[resource, place] = begin + uses.held[use]
        table.entries[resource] += 1


def cancel(uses: Uses, table: Reservations, message: int, start: int) -> None:
    """Strike out of the `table` what a `message` of `uses` that would `start` then has reserved."""
    for use in range(uses.first[message], uses.first[message + 1]):
        resource = uses.resource[use]
        table.entries[resource] -= 1
        place = place_of(table, resource, start + uses.offset[use])
        for other in range(place, table.entries[resource]):
            table.begin[resource, other] = table.begin[resource, other + 1]
            table.finish[resource, other] = table.finish[resource, other + 1]


DONE = -1
TOO_EARLY = -2


class Sends(NamedTuple):
    """The rows of messages: which values they read and change.

    Message m has the rows ``first[m] .. first[m+1]-1``. Each reads the place (a chunk at a rank)
    `source` and changes `target`; `own` tells whether it reads what its rank has from the
    beginning, and `adds` whether it adds to what is there. `visible_from` is the first row that
    reads what a row brings; no rows where every later row does.
    """

    first: Times
    source: Times
    target: Times
    own: NDArray[np.bool_]
    adds: NDArray[np.bool_]
    visible_from: Numbers


class Values(NamedTuple):
    """When something happened last to every place, in picoseconds; NOTHING before.

    `ready` is the last change that is visible, `changed` the last change, `replaced` the last that
    did not add, `read` the last read, and `hidden` the last row whose arrival is not visible yet.
    By row, `below` is the one before it that is not visible yet, and `not_before` picoseconds
    before which it must not arrive.
    """

    ready: Times
    changed: Times
    replaced: Times
    read: Times
    hidden: Times
    below: Times
    not_before: Times


def ready_at(sends: Sends, values: Values, arrived: Times, row: int) -> int:
    """Return when the value that a `row` reads is there, with all arrivals visible to it.

    `sends` are the rows, `values` what happened before, `arrived` when each row arrives.
    Picoseconds; NOTHING where nothing has come.
    """
    place = sends.source[row]
    above, other = NOTHING, values.hidden[place]
    while other != NOTHING:
        following = values.below[other]
        if sends.visible_from[other] > row:
            above = other
        else:
            values.ready[place] = max(values.ready[place], arrived[other])
            if above == NOTHING:
                values.hidden[place] = following
            else:
                values.below[above] = following
        other = following
    return int(values.ready[place])


def note_read(sends: Sends, values: Values, arrived: Times, row: int, time: int) -> bool:
    """Note that a `row` reads at a `time`; tell whether it reads what it should not see yet.

    `sends`, `values` and `arrived` are as for :func:`ready_at`.
    """
    place, early = sends.source[row], False
    values.read[place] = max(values.read[place], time)
    other = values.hidden[place]
    while other != NOTHING:
        if arrived[other] <= time:
            values.not_before[other] = time + 1
            early = True
        other = values.below[other]
    return early


def note_arrival(sends: Sends, values: Values, row: int, time: int) -> None:
    """Note in `values` that what a `row` of `sends` brings arrives at a `time`."""
    place = sends.target[row]
    values.changed[place] = max(values.changed[place], time)
    if not sends.adds[row]:
        values.replaced[place] = time
    if len(sends.visible_from) and sends.visible_from[row] > row + 1:
        values.below[row] = values.hidden[place]
        values.hidden[place] = row
    else:
        values.ready[place] = max(values.ready[place], time)


def start_copies(
    uses: Uses, sends: Sends, values: Values, free: Times, start: Times, end: Times
) -> int:
    """Fill in when the rows of copied chunks start and end; return DONE, or a row without value.

    `uses` and `free` are what the messages hold and from when on that is free
    (:func:`taccl.timing.occupancy.earliest_start`), `sends` their rows, `values` what happened to
    each place; `start` and `end` have the picoseconds of every row.
    """
    for message in range(len(sends.first) - 1):
        rows = range(sends.first[message], sends.first[message + 1])
        time = 0
        for row in rows:
            if not sends.own[row]:
                ready = values.ready[sends.source[row]]
                if ready == NOTHING:
                    return row
                time = max(time, ready)
        time = earliest_start(uses, free, message, time)
        arrival = occupy(uses, free, message, time)
        for row in rows:
            start[row], end[row] = time, arrival
            place = sends.target[row]
            values.ready[place] = max(values.ready[place], arrival)
    return DONE


def start_sums(
    uses: Uses, sends: Sends, values: Values, free: Times, start: Times, end: Times
) -> int:
    """Fill in when the rows of summed chunks start and end.

    `uses`, `sends`, `values`, `free`, `start` and `end` are those of :func:`start_copies`.

    Returns
    -------
    int
        DONE; TOO_EARLY where rows arrived before a read that should not see them, whose
        ``not_before`` is then noted; or the row that sends what is not there.
    """
    early = False
    for message in range(len(sends.first) - 1):
        rows = range(sends.first[message], sends.first[message + 1])
        duration = uses.arrival[message]
        time = 0
        for row in rows:
            ready = ready_at(sends, values, end, row)
            if ready == NOTHING:
                if not sends.own[row]:
                    return row
                ready = 0
            target = sends.target[row]
            settled = values.replaced[target] if sends.adds[row] else values.changed[target]
            # What arrives comes after every read of what it changes.
            settled = max(values.read[target], settled) + 1
            time = max(time, ready, settled - duration, values.not_before[row] - duration)
        time = earliest_start(uses, free, message, time)
        arrival = occupy(uses, free, message, time)
        # All of a message reads before any of it changes something: a fan does both at one place.
        for row in rows:
            early = note_read(sends, values, end, row, time) or early
        for row in rows:
            start[row], end[row] = time, arrival
            note_arrival(sends, values, row, arrival)
    return TOO_EARLY if early else DONE

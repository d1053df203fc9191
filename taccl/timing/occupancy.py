"""Who holds a resource when: the only place where a resource's free time moves.

Plain functions on flat integer arrays (or lists), which every scheduler calls and the compiled
loops inline. What a message costs is a row of :class:`Uses`, and the timing rule is nothing but
what stands in that row (:func:`taccl.timing.retiming.uses_of`): ``occupy`` holds the edges of
a link for its overhead and the bytes, ``delay`` for the bytes alone, and a rule in which alpha
holds the connection gives a message one more resource, its connection, held up to its arrival.

A message starts at the earliest after all that held its resources before (:func:`earliest_start`,
:func:`occupy`), or in the first gap between reservations (:func:`earliest_gap`, :func:`reserve`).
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

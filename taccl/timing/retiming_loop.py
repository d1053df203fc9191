"""Times of messages whose chunks are summed: one pass, a plain function that is compiled.

The rules are those of :func:`taccl.model.schedule.retime`, for decisions in which every change is
seen by all rows after it.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]

NEVER = -1
"""Of a place that nothing has happened to."""


class Sums(NamedTuple):
    """Messages and what they carry.

    Parameters
    ----------
    first, stop
        The rows of each message.
    arrival
        Picoseconds from its start to its end.
    use_start, resource, held
        CSR: message m holds ``resource[use_start[m]:use_start[m+1]]`` for ``held`` picoseconds.
    source, target
        The places (a chunk at a rank) that each row reads and changes.
    own
        Whether a row reads what its rank has from the beginning.
    adds
        Whether it adds to what is there.
    """

    first: Numbers
    stop: Numbers
    arrival: Numbers
    use_start: Numbers
    resource: Numbers
    held: Numbers
    source: Numbers
    target: Numbers
    own: NDArray[np.bool_]
    adds: NDArray[np.bool_]


class Places(NamedTuple):
    """When something happened last, in picoseconds: at every place, and to every resource.

    Parameters
    ----------
    ready
        The last change of a place.
    replaced
        The last that did not add.
    read
        The last read.
    free
        When a resource is free.
    """

    ready: Numbers
    replaced: Numbers
    read: Numbers
    free: Numbers


def time_sums(sums: Sums, places: Places, start: Numbers) -> int:
    """Fill in when each message starts; return -1, or the row that sends what is not there."""
    for message in range(len(sums.first)):
        rows = range(sums.first[message], sums.stop[message])
        uses = range(sums.use_start[message], sums.use_start[message + 1])
        duration = sums.arrival[message]
        time = 0
        for row in rows:
            ready = places.ready[sums.source[row]]
            if ready == NEVER:
                if not sums.own[row]:
                    return row
                ready = 0
            target = sums.target[row]
            changed = places.replaced[target] if sums.adds[row] else places.ready[target]
            # What arrives comes after every read of what it changes.
            settled = max(places.read[target], changed) + 1 - duration
            time = max(time, ready, settled)
        for use in uses:
            time = max(time, places.free[sums.resource[use]])
        for use in uses:
            places.free[sums.resource[use]] = time + sums.held[use]
        for row in rows:
            source, target = sums.source[row], sums.target[row]
            places.read[source] = max(places.read[source], time)
            places.ready[target] = max(places.ready[target], time + duration)
            if not sums.adds[row]:
                places.replaced[target] = time + duration
        start[message] = time
    return -1

"""One pass over messages in a given order: each starts as soon as it may.

Plain functions that Python runs on lists, for a few messages, and that retiming.py compiles.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.timing.occupancy import NOTHING, Numbers, Times, Uses, earliest_start, occupy

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

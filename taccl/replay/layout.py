"""The state of the compiled replay: rows of integers for threadblocks, connections and edges.

All of it is flat arrays that numba understands, and all positions in them have names here.
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

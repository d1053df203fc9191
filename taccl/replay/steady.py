"""Skipping iterations of a replay that repeat themselves exactly.

Where a threadblock begins an iteration, the state of the whole machine is compared with an
earlier one. If the two are equal but for a shift in time and in iterations, everything from the
first to the second repeats until some threadblock begins the last iteration, in which messages
have another size; so any number of periods before that can be skipped.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from taccl.replay import layout
from taccl.replay.layout import Machine, Rows
from taccl.replay.machine import NEVER

_SAME_IN_BLOCKS = (layout.PHASE, layout.STEP, layout.LEFT, layout.NEED, layout.PARKED)
_SAME_IN_CONNECTIONS = (layout.AVAILABLE, layout.TAKEN, layout.OFFSET, layout.COURSE)


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The state of a machine before time goes on.

    Parameters
    ----------
    blocks, connections, edges, counter
        As in the machine.
    queue
        Its events, ascending.
    """

    blocks: Rows
    connections: Rows
    edges: Rows
    queue: Rows
    counter: Rows

    @classmethod
    def of(cls, machine: Machine) -> Self:
        """Return a copy of the state."""
        queue = machine.queue[: machine.counter[layout.QUEUED]]
        order = np.lexsort((queue[:, 1], queue[:, 0]))
        return cls(
            machine.blocks.copy(), machine.connections.copy(), machine.edges.copy(),
            queue[order], machine.counter.copy(),
        )  # fmt: skip

    @property
    def now(self) -> int:
        """The time, in picoseconds."""
        return int(self.counter[layout.NOW])


def watch(machine: Machine) -> None:
    """Let the machine pause when the threadblock that is last of all begins an iteration."""
    blocks = machine.blocks
    running = np.flatnonzero(blocks[:, layout.PHASE] != layout.DONE)
    machine.counter[layout.PAUSE_AT] = NEVER
    if len(running):
        last = running[np.argmin(blocks[running, layout.ITERATION])]
        machine.counter[layout.WATCHED] = last
        machine.counter[layout.PAUSE_AT] = blocks[last, layout.ITERATION] + 1


class Watcher:
    """Looks for a state that was there before, with Brent's cycle search.

    The state compared with is replaced after 1, 2, 4 ... comparisons.
    """

    def __init__(self) -> None:
        self.before: Snapshot | None = None
        self.compared = 0
        self.limit = 1

    def look(self, machine: Machine) -> int:
        """Skip what repeats and return how many iterations that was; 0 when nothing is known."""
        state = Snapshot.of(machine)
        if self.before is not None and repeats(self.before, state):
            machine.counter[layout.PAUSE_AT] = NEVER
            return _skip(machine, self.before, state)
        self.compared += 1
        if self.before is None or self.compared >= self.limit:
            self.before, self.compared, self.limit = state, 0, 2 * self.limit
        watched = machine.counter[layout.WATCHED]
        if machine.blocks[watched, layout.PHASE] == layout.DONE:
            watch(machine)
        else:
            machine.counter[layout.PAUSE_AT] = machine.blocks[watched, layout.ITERATION] + 1
        return 0


def repeats(before: Snapshot, state: Snapshot) -> bool:
    """Tell whether two states are equal but for a shift in time and in iterations."""
    return (
        bool(np.array_equal(before.connections[:, _SAME_IN_CONNECTIONS],
                            state.connections[:, _SAME_IN_CONNECTIONS]))
        and bool(np.array_equal(before.edges[:, layout.BUSY], state.edges[:, layout.BUSY]))
        and _same_blocks(before, state)
        and _same_events(before, state)
    )  # fmt: skip


def _running(state: Snapshot) -> NDArray[np.bool_]:
    running: NDArray[np.bool_] = state.blocks[:, layout.PHASE] != layout.DONE
    return running


def _shift(before: Snapshot, state: Snapshot) -> int:
    """Return by how many iterations the threadblocks are further on; 0 when they differ in that."""
    running = _running(state)
    moved = (state.blocks - before.blocks)[running, layout.ITERATION]
    same = len(moved) > 0 and bool((moved == moved[0]).all())
    return int(moved[0]) if same else 0


def _same_blocks(before: Snapshot, state: Snapshot) -> bool:
    same = np.array_equal(before.blocks[:, _SAME_IN_BLOCKS], state.blocks[:, _SAME_IN_BLOCKS])
    shift = _shift(before, state)
    if not same or shift == 0:
        return False
    last = state.counter[layout.ITERATIONS] - 1
    running = _running(state)
    if (state.blocks[running, layout.ITERATION] >= last).any():
        return False
    # A flag that is still -1 after an iteration belongs to a threadblock that posts nothing.
    flags = state.blocks[:, layout.FLAG] - before.blocks[:, layout.FLAG]
    moved = running & (before.blocks[:, layout.FLAG] >= 0)
    width = state.counter[layout.WIDTH]
    parked = state.blocks[:, layout.PARKED] >= 0
    requests = (state.blocks - before.blocks)[parked, layout.SINCE]
    return bool(
        (flags[moved] == shift * width).all()
        and (flags[~moved] == 0).all()
        and (requests == state.now - before.now).all()
    )


def _same_events(before: Snapshot, state: Snapshot) -> bool:
    if before.queue.shape != state.queue.shape:
        return False
    moved = state.queue - before.queue
    return bool((moved[:, 0] == state.now - before.now).all() and (moved[:, 1] == 0).all())


def _skip(machine: Machine, before: Snapshot, state: Snapshot) -> int:
    """Move the machine on by as many periods as end before the last iteration."""
    shift, span = _shift(before, state), state.now - before.now
    blocks, counter = machine.blocks, machine.counter
    running = _running(state)
    ahead = int(blocks[running, layout.ITERATION].max())
    periods = (int(counter[layout.ITERATIONS]) - 2 - ahead) // shift
    waiting = running & (blocks[:, layout.PHASE] == layout.NEEDS)
    parked = blocks[:, layout.PARKED] >= 0
    moved = running & (blocks[:, layout.FLAG] >= 0)
    step = periods * shift * int(counter[layout.WIDTH])
    blocks[running, layout.ITERATION] += periods * shift
    blocks[moved, layout.FLAG] += step
    blocks[waiting, layout.SINCE] += step
    blocks[parked, layout.SINCE] += periods * span
    machine.edges[:, layout.HELD] += periods * (state.edges - before.edges)[:, layout.HELD]
    machine.queue[: counter[layout.QUEUED], 0] += periods * span
    counter[layout.NOW] += periods * span
    counter[layout.SENT] += periods * int((state.counter - before.counter)[layout.SENT])
    return periods * shift

"""How long programs take: one program at many sizes, by whichever replay is faster.

The compiled replay gives the same times as the one in interpreter.py. Loading it takes as long as
replaying some 80 000 messages in Python, so small programs never wait for it.

The compiled replay is events.py, plain functions on arrays, as machine code. It skips iterations
that repeat themselves exactly: where a threadblock begins an iteration, the state of the whole
machine is compared with an earlier one. If the two are equal but for a shift in time and in
iterations, everything from the first to the second repeats until some threadblock begins the last
iteration, in which messages have another size; so any number of periods before that can be skipped.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from taccl.msccl.program import SENDS, Gpu, Program
from taccl.replay import events
from taccl.replay.compile import Columns, among_peers, columns_of, count_messages, split, unfit
from taccl.replay.cost import PROTOCOL_FACTOR, ReplayModel, Sharing, sharing_of
from taccl.replay.events import NEVER, Machine, Rows, machine_of, messages_of
from taccl.replay.interpreter import Standstill, Trace, Wait, deadlock, replay
from taccl.timing.jit import PLAIN, jit, telling
from taccl.topology.graph import Topology

_SAME_IN_BLOCKS = (
    events.PHASE, events.STEP, events.LEFT, events.NEED, events.PARKED, events.PART, events.STARTS,
)  # fmt: skip
_SAME_IN_CONNECTIONS = (
    events.AVAILABLE, events.TAKEN, events.OFFSET, events.COURSE,
    events.WORK_LEFT, events.RATE, events.DELAY,
)  # fmt: skip
_MOVED_IN_CONNECTIONS = (events.UPDATED, events.ENDS)


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The state of a machine before time goes on.

    `blocks`, `connections`, `edges` and `counter` are as in the machine, and its `queue` is
    ascending.
    """

    blocks: Rows
    connections: Rows
    edges: Rows
    queue: Rows
    counter: Rows

    @classmethod
    def of(cls, machine: Machine) -> Self:
        """Return a copy of the state."""
        queue = machine.queue[: machine.counter[events.QUEUED]]
        order = np.lexsort((queue[:, 1], queue[:, 0]))
        return cls(
            machine.blocks.copy(), machine.connections.copy(), machine.edges.copy(),
            queue[order], machine.counter.copy(),
        )  # fmt: skip

    @property
    def flying(self) -> NDArray[np.int64]:
        """The connections with a flow; none where edges are not shared."""
        if not self.counter[events.SHARED]:
            return np.zeros(0, np.int64)
        return np.flatnonzero(self.connections[:, events.PLACE] >= 0)

    @property
    def now(self) -> int:
        """The time, in picoseconds."""
        return int(self.counter[events.NOW])

    @property
    def running(self) -> NDArray[np.bool_]:
        """Which blocks have not finished."""
        running: NDArray[np.bool_] = self.blocks[:, events.PHASE] != events.DONE
        return running

    def iterations_since(self, before: Self) -> int:
        """Return by how many iterations all blocks are further on; 0 when they differ in that."""
        moved = (self.blocks - before.blocks)[self.running, events.ITERATION]
        return int(moved[0]) if len(moved) and (moved == moved[0]).all() else 0


def watch(machine: Machine) -> None:
    """Let the machine pause when the threadblock that is last of all begins an iteration."""
    blocks = machine.blocks
    running = np.flatnonzero(blocks[:, events.PHASE] != events.DONE)
    machine.counter[events.PAUSE_AT] = NEVER
    if len(running):
        last = running[np.argmin(blocks[running, events.ITERATION])]
        machine.counter[events.WATCHED] = last
        machine.counter[events.PAUSE_AT] = blocks[last, events.ITERATION] + 1


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
            machine.counter[events.PAUSE_AT] = NEVER
            return _skip(machine, self.before, state)
        self.compared += 1
        if self.before is None or self.compared >= self.limit:
            self.before, self.compared, self.limit = state, 0, 2 * self.limit
        watched = machine.counter[events.WATCHED]
        if machine.blocks[watched, events.PHASE] == events.DONE:
            watch(machine)
        else:
            machine.counter[events.PAUSE_AT] = machine.blocks[watched, events.ITERATION] + 1
        return 0


def repeats(before: Snapshot, state: Snapshot) -> bool:
    """Tell whether two states are equal but for a shift in time and in iterations.

    In ``before`` and in ``state`` the watched block begins an iteration.
    """
    shift, span = state.iterations_since(before), state.now - before.now
    if shift == 0 or before.queue.shape != state.queue.shape:
        return False
    running, width = state.running, state.counter[events.WIDTH]
    blocks, moved = state.blocks, state.blocks - before.blocks
    flags = moved[:, events.FLAG]
    # A flag that is still -1 after an iteration belongs to a threadblock that posts nothing.
    posting = running & (before.blocks[:, events.FLAG] >= 0)
    return (
        np.array_equal(before.connections[:, _SAME_IN_CONNECTIONS],
                       state.connections[:, _SAME_IN_CONNECTIONS])
        and np.array_equal(before.edges[:, events.BUSY], state.edges[:, events.BUSY])
        and not moved[:, _SAME_IN_BLOCKS].any()
        and bool((blocks[running, events.ITERATION] < state.counter[events.ITERATIONS] - 1).all())
        and bool((flags == np.where(posting, shift * width, 0)).all())
        and bool((moved[blocks[:, events.PARKED] >= 0, events.SINCE] == span).all())
        and bool((state.queue - _moved(before, span, shift) == 0).all())
        and np.array_equal(before.flying, state.flying)
        and bool((
            state.connections[state.flying][:, _MOVED_IN_CONNECTIONS]
            - before.connections[state.flying][:, _MOVED_IN_CONNECTIONS] == span
        ).all())
    )  # fmt: skip


def _moved(state: Snapshot, span: int, shift: int) -> Rows:
    """Return the queue of a state a time, and so many iterations, later."""
    flags = (state.queue[:, 1] & 7) == events.SEEN
    codes = 8 * shift * state.counter[events.WIDTH] * state.counter[events.BLOCKS]
    moved: Rows = state.queue + np.column_stack(
        [np.full(len(flags), span), np.where(flags, codes, 0)]
    )
    return moved


def _skip(machine: Machine, before: Snapshot, state: Snapshot) -> int:
    """Move the machine on by as many periods as end before the last iteration."""
    shift, span = state.iterations_since(before), state.now - before.now
    blocks, counter = machine.blocks, machine.counter
    running = state.running
    ahead = int(blocks[running, events.ITERATION].max())
    periods = (int(counter[events.ITERATIONS]) - 2 - ahead) // shift
    waiting = running & (blocks[:, events.PHASE] == events.NEEDS)
    parked = blocks[:, events.PARKED] >= 0
    moved = running & (blocks[:, events.FLAG] >= 0)
    step = periods * shift * int(counter[events.WIDTH])
    blocks[running, events.ITERATION] += periods * shift
    blocks[moved, events.FLAG] += step
    blocks[waiting, events.SINCE] += step
    blocks[parked, events.SINCE] += periods * span
    machine.edges[:, events.HELD] += periods * (state.edges - before.edges)[:, events.HELD]
    queued = slice(counter[events.QUEUED])
    here = Snapshot(state.blocks, state.connections, state.edges, machine.queue[queued], counter)
    machine.queue[queued] = _moved(here, periods * span, periods * shift)
    for field in _MOVED_IN_CONNECTIONS:
        machine.connections[state.flying, field] += periods * span
    since = machine.edges[:, events.BUSY_SINCE]
    since[since - before.edges[:, events.BUSY_SINCE] == span] += periods * span
    counter[events.NOW] += periods * span
    counter[events.SENT] += periods * int((state.counter - before.counter)[events.SENT])
    return periods * shift


MESSAGE = "taccl: compiling the replay; once on this machine, for about 10 s"

PARTS = (events,)

Run = Callable[[Machine, int], int]


@cache
def compiled() -> Run:
    """Return :func:`taccl.replay.events.run_events` as machine code, compiled or from the cache."""
    # Inlined, it runs 50 times as fast.
    made = jit(events.run_events, PARTS, "replay", {**PLAIN, "forceinline": True})
    return telling(made, MESSAGE)


def is_loaded() -> bool:
    """Tell whether the machine code is in this process already."""
    return compiled.cache_info().currsize > 0


WORTH_COMPILED = 80_000
"""Messages and pieces of local work that take as long in Python as loading compiled code."""

SHARED_COSTS = 32
"""Messages that one takes as long as in Python where messages share edges: it goes in up to eight
slices, each of which changes the rates of all flows beside it twice."""

EXTRAPOLATED_ABOVE = 20_000_000
"""Messages and pieces of local work from which on steady iterations are skipped."""

SHARED_EXTRAPOLATED_ABOVE = 50_000
"""The same where messages share edges: there a period is worth looking for sooner."""

MAX_REPLAYED = 200_000_000
"""Events, above which a replay that never repeats itself is given up."""

SLICE = 1_000_000
"""Events between two looks at signals, some tenths of a second."""


def traces(
    program: Program,
    topology: Topology,
    sizes: Sequence[int],
    model: ReplayModel,
    *,
    route: bool = False,
    protocol_costs: bool = False,
) -> Iterator[Trace]:
    """Yield what a program does at each size, as :func:`replay` without spans.

    Programs too large for that are replayed, too; above 20 million messages, iterations that
    repeat themselves exactly are skipped, and the trace says how many.

    `sizes` are bytes of the counted buffer, `program`, `topology`, `model` (the runtime's
    constants), `route` and `protocol_costs` as for :func:`replay`.

    Raises ProgramError when the program does not fit the topology.
    """
    timing = Timing(program, topology, model, route=route, protocol_costs=protocol_costs)
    if not is_loaded():
        steps = sum(len(block.steps) for _, block in program.blocks())
        if steps >= WORTH_COMPILED:
            SPENT.messages += steps
        else:
            runs = (size for size in sizes if not unfit(program, size, model))
            each = SHARED_COSTS if model.measured else 1
            SPENT.messages += each * sum(count_messages(program, size, model) for size in runs)
    if is_loaded() or SPENT.messages >= WORTH_COMPILED:
        yield from map(timing.at, sizes)
        return
    yield from map(timing.in_python, sizes)


@dataclass(slots=True)
class Spent:
    """What this process has replayed in Python, all programs together."""

    messages: int = 0


SPENT = Spent()


class Timing:
    """A program on a topology, put into columns once for all sizes; made by compiled code.

    `program`, `topology`, `model`, `route` and `protocol_costs` are as
    :func:`taccl.replay.interpreter.replay` takes them.

    Raises ProgramError: by all methods, when the program does not fit the topology.
    """

    def __init__(
        self,
        program: Program,
        topology: Topology,
        model: ReplayModel,
        *,
        route: bool = False,
        protocol_costs: bool = False,
    ) -> None:
        self.program, self.topology, self.model = program, topology, model
        self.route, self.protocol_costs = route, protocol_costs
        self.factor = PROTOCOL_FACTOR[program.protocol] if protocol_costs else Fraction(1)

    @cached_property
    def sharing(self) -> Sharing | None:
        """What is charged where messages share edges."""
        if not self.model.measured:
            return None
        alone = sharing_of(self.topology, self.program.protocol)
        return among_peers(alone, self.topology, self.columns.connections)

    @cached_property
    def columns(self) -> Columns:
        """The program in columns, which are the same for all protocols and size ranges."""
        asked = self.program.gpus, self.topology, self.route
        for *known, columns in list(_COLUMNS):
            if all(one is other for one, other in zip(asked, known, strict=True)):
                return columns
        columns = columns_of(self.program, self.topology, route=self.route)
        _COLUMNS.append((*asked, columns))
        return columns

    @cached_property
    def loads(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Chunks that each edge carries, and that each threadblock sends, in an iteration."""
        columns = self.columns
        chunks = np.array([kind.chunks * (kind.op in SENDS) for kind in columns.kinds])
        steps = np.repeat(np.arange(len(columns.ends)), np.diff(columns.begins))
        sent = np.bincount(steps, chunks[columns.kind_of], len(columns.ends)).astype(np.float64)
        carried = np.zeros(columns.num_edges)
        for connection, block in enumerate(columns.senders.tolist()):
            begin, end = columns.wires_from[connection : connection + 2]
            carried[columns.wires[begin:end]] += sent[block] if block >= 0 else 0
        return carried, sent

    def least(self, size: int, copies: float = 1) -> float:
        """Return picoseconds below which the program does not take ``size`` bytes.

        Where edges are shared: its launch, and what its busiest edge carries; or its busiest
        threadblock sends, in a program of so many ``copies`` of it, or of such a part.
        """
        sharing = self.sharing
        if sharing is None:
            return 0.0
        carried, sent = self.loads
        edges = float((carried / sharing.capacity).max(initial=0.0))
        blocks = float(sent.max(initial=0.0)) / copies / sharing.block_rate
        chunk = size / self.program.chunks_per_loop
        return sharing.local.launch + chunk * float(sharing.wire) * max(edges, blocks)

    def at(self, size: int) -> Trace:
        """Return what the program does at ``size`` bytes, without spans."""
        program = self.program
        in_range = program.min_bytes <= size <= program.max_bytes
        reason = unfit(program, size, self.model)
        if reason:
            return Trace(program.name, size, None, reason, in_range)
        cut = split(program, size, self.model)
        machine = machine_of(self.columns, cut, self.topology.local, self.factor, self.sharing)
        if machine is None:
            return self.in_python(size)
        total = messages_of(self.columns, cut)
        most = EXTRAPOLATED_ABOVE if self.sharing is None else SHARED_EXTRAPOLATED_ABOVE
        ended, skipped = run_machine(machine, steady=total > most)
        if not ended:
            reason = (
                f"needs {total} messages and copies, and did not repeat itself within"
                f" {MAX_REPLAYED} events"
            )
        else:
            reason = deadlock(_standstill(self.columns, machine))
        local = self.topology.local if self.sharing is None else self.sharing.local
        time = int(machine.counter[events.NOW]) + local.launch
        return Trace(
            program.name, size, None if reason else time, reason, in_range,
            int(machine.counter[events.SENT]), tuple(machine.edges[:, events.HELD].tolist()),
            extrapolated=skipped,
        )  # fmt: skip

    def in_python(self, size: int) -> Trace:
        """Return the same from the replay in Python, whose times may be of any length."""
        trace = replay(
            self.program, self.topology, size, self.model,
            route=self.route, protocol_costs=self.protocol_costs,
        )  # fmt: skip
        return replace(trace, spans=())


_COLUMNS: deque[tuple[tuple[Gpu, ...], Topology, bool, Columns]] = deque(maxlen=2)
"""Columns of the last programs: threadblocks, topology, whether routed, columns."""


def run_machine(machine: Machine, *, steady: bool) -> tuple[bool, int]:
    """Return whether the replay came to an end, and how many iterations were skipped.

    ``machine`` is the state before the first event, and is changed; where ``steady``, iterations
    that repeat themselves are looked for.
    """
    run = compiled()
    watcher, skipped = Watcher(), 0
    if steady:
        watch(machine)
    while machine.counter[events.EVENTS] < MAX_REPLAYED:
        state = run(machine, SLICE)
        if state == events.FINISHED:
            return True, skipped
        if state == events.PAUSED:
            skipped = watcher.look(machine)
        if state == events.FULL:
            room = np.zeros_like(machine.queue)
            machine = machine._replace(queue=np.concatenate([machine.queue, room]))
    return False, skipped


def _standstill(columns: Columns, machine: Machine) -> Standstill:
    waits = {}
    for block in np.flatnonzero(machine.blocks[:-1, events.PHASE] != events.DONE).tolist():
        row, need = machine.blocks[block], None
        if row[events.PHASE] == events.NEEDS:
            other, position = machine.needs[row[events.NEED]].tolist()
            need = (other, position)
        step, receives = int(machine.marks[row[events.STEP]]) >> 1, events.RECEIVE
        waits[block] = Wait(step, need, bool(row[events.PHASE] == receives))
    return Standstill(
        columns.ends, columns.connections,
        columns.inbound.tolist(), columns.outbound.tolist(),
        columns.senders.tolist(), columns.receivers.tolist(), waits,
    )  # fmt: skip

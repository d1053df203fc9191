"""A program in columns at one size: the state that the compiled event loop starts from."""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from taccl.msccl.program import RECEIVES, SENDS, Program
from taccl.replay import layout
from taccl.replay.columns import Columns, Kind, LinkClass
from taccl.replay.cost import ReplayModel, local_time
from taccl.replay.layout import Machine, Rows
from taccl.topology.graph import LocalCosts
from taccl.units import Time, ceil_time

MAX_TOTAL = 1 << 62
"""Sum of all durations, above which a time might not fit into 64 bits."""

NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class Split:
    """How a size is cut.

    Parameters
    ----------
    iterations
        How often the step lists run.
    chunks
        Most chunks of a step in one message.
    full, last
        Bytes of a chunk in every iteration but the last, and in the last.
    slots
        Messages that a connection holds.
    """

    iterations: int
    chunks: int
    full: int
    last: int
    slots: int


def split(program: Program, size: int, model: ReplayModel) -> Split:
    """Return how a size, a multiple of the program's chunks, is cut into messages."""
    message, slots = model.of_protocol(program.protocol)
    chunk = size // program.chunks_per_loop
    iterations = -(-chunk // message)
    last = chunk - (iterations - 1) * message
    return Split(iterations, model.joined(program, chunk), message, last, slots)


def messages_of(columns: Columns, cut: Split) -> int:
    """Return how many messages and pieces of local work there are in all."""
    counts = np.array([kind.chunks for kind in columns.kinds], np.int64)
    return int(columns.population @ np.maximum(1, -(-counts // cut.chunks))) * cut.iterations


def machine_of(
    columns: Columns, cut: Split, local: LocalCosts, factor: Fraction = Fraction(1)
) -> Machine | None:
    """Return the state before the first event; None where times might not fit into 64 bits.

    Parameters
    ----------
    factor
        Bytes on the wire for each byte of data.
    """
    prices = _Prices(columns.classes, local, factor, {}, {}, [])
    tables, total = [], 0
    for part, repeats in ((cut.full, cut.iterations - 1), (cut.last, 1)):
        rows = [
            prices.row(kind, cut.chunks, part if repeats else cut.last) for kind in columns.kinds
        ]
        times = zip(rows, columns.population.tolist(), strict=True)
        total += sum(_alone(row) * number * repeats for row, number in times)
        tables.append(rows)
    if total >= MAX_TOTAL:
        return None
    kinds = np.array(tables, np.int64).reshape(2, -1, layout.KIND_FIELDS)
    num_blocks = len(columns.ends)
    counter = np.zeros(layout.COUNTERS, np.int64)
    counter[layout.WOKEN] = num_blocks
    counter[layout.ITERATIONS] = cut.iterations
    counter[layout.SLOTS] = cut.slots
    counter[layout.WIDTH] = columns.width
    counter[layout.PAUSE_AT] = NEVER
    edges = np.zeros((columns.num_edges, layout.EDGE_FIELDS), np.int64)
    edges[:, layout.ROOT] = -1
    # Events in the queue at once: arrivals of as many messages as all connections hold, the
    # releases of one message of each, and the end of local work of each block.
    flying = min(len(columns.connections) * cut.slots, messages_of(columns, cut))
    events = flying + len(columns.wires) + len(columns.connections) + len(columns.ends) + 1
    return Machine(
        _blocks(columns, kinds), _connections(columns), edges, columns.kind_of, columns.marks,
        columns.needs_from, columns.needs, kinds, np.array(prices.durations or [0], np.int64),
        columns.wires, np.zeros((events, 2), np.int64),
        np.arange(num_blocks, dtype=np.int32)[::-1].copy(), np.zeros(num_blocks, np.int32),
        np.zeros(columns.num_edges, np.int32), np.zeros(num_blocks, np.int32), counter,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Prices:
    """What messages cost; the last three fields are filled while rows are asked for.

    Parameters
    ----------
    classes, local, factor
        Of connections, of work inside a rank, of a byte.
    times
        Picoseconds by (beta, bytes).
    courses
        Arrival, and place in ``durations``, by (class, bytes).
    durations
        How long edges are held, ascending for every course.
    """

    classes: tuple[LinkClass, ...]
    local: LocalCosts
    factor: Fraction
    times: dict[tuple[Fraction, int], Time]
    courses: dict[tuple[int, int], tuple[Time, int]]
    durations: list[Time]

    def row(self, kind: Kind, chunks: int, part: int) -> list[int]:
        """Return the row of a kind when ``part`` bytes of every chunk are handled."""
        messages = max(1, -(-kind.chunks // chunks))
        head = [messages, int(kind.op in RECEIVES), int(kind.op in SENDS)]
        sizes = (min(chunks, kind.chunks) * part, (kind.chunks - (messages - 1) * chunks) * part)
        for size in sizes:
            arrival, course = self._course(kind.link_class, size) if kind.op in SENDS else (0, 0)
            head += [arrival, course, local_time(kind.op, self.local, size, kind.sources)]
        return head

    def _course(self, number: int, size: int) -> tuple[Time, int]:
        if (number, size) not in self.courses:
            costs = self.classes[number]
            held = [self._time(beta, size) for beta in costs.betas]
            slowest = held[-1] if held else 0
            self.courses[number, size] = (costs.alpha + slowest, len(self.durations))
            self.durations.extend(costs.overhead + time for time in held)
        return self.courses[number, size]

    def _time(self, beta: Fraction, size: int) -> Time:
        if (beta, size) not in self.times:
            self.times[beta, size] = ceil_time(beta, self.factor * size)
        return self.times[beta, size]


def _alone(row: list[int]) -> Time:
    """Return at least what all messages of a step take if nothing overlaps.

    An edge is held no longer than twice the way to the destination, as overhead is at most alpha.
    """
    messages = row[layout.MESSAGES]
    _, _, _, arrival, _, local, last_arrival, _, last_local = row
    return (messages - 1) * (arrival + local) + last_arrival + last_local


def _blocks(columns: Columns, kinds: NDArray[np.int64]) -> Rows:
    """Return a row for each block, before its first step, and one for a block that never posts."""
    num_blocks = len(columns.ends)
    blocks = np.zeros((num_blocks + 1, layout.BLOCK_FIELDS), np.int64)
    for name in (layout.FLAG, layout.WAITERS, layout.NEXT, layout.CHILD, layout.PARKED):
        blocks[:, name] = -1
    blocks[:, layout.PHASE] = layout.DONE
    rows = blocks[:num_blocks]
    first, end = columns.begins[:-1], columns.begins[1:]
    rows[:, layout.FIRST] = rows[:, layout.STEP] = first
    rows[:, layout.END] = end
    rows[:, layout.INBOUND] = columns.inbound
    rows[:, layout.OUTBOUND] = columns.outbound
    busy = np.flatnonzero(first < end)
    rows[busy, layout.PHASE] = layout.NEEDS
    rows[busy, layout.NEED] = columns.needs_from[first[busy]]
    rows[busy, layout.LEFT] = kinds[0, columns.kind_of[first[busy]], layout.MESSAGES]
    return blocks


def _connections(columns: Columns) -> Rows:
    connections = np.zeros((len(columns.connections), layout.CONNECTION_FIELDS), np.int64)
    connections[:, layout.SENDER] = columns.senders
    connections[:, layout.RECEIVER] = columns.receivers
    connections[:, layout.EDGES_FROM] = columns.wires_from[:-1]
    connections[:, layout.EDGES_TO] = columns.wires_from[1:]
    return connections

"""The state that the compiled event loop starts from: a program in columns, priced at one size."""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from taccl.msccl.program import RECEIVES, SENDS
from taccl.replay import events
from taccl.replay.compile import Columns, Kind, LinkClass, Split
from taccl.replay.cost import Sharing, local_time
from taccl.replay.events import Machine, Rows
from taccl.topology.graph import LocalCosts
from taccl.units import Time, ceil_time

MAX_TOTAL = 1 << 62
"""Sum of all durations, above which a time might not fit into 64 bits."""

NEVER = 1 << 62


def messages_of(columns: Columns, cut: Split) -> int:
    """Return how many messages and pieces of local work ``columns`` have at a size so ``cut``."""
    counts = np.array([kind.chunks for kind in columns.kinds], np.int64)
    return int(columns.population @ np.maximum(1, -(-counts // cut.chunks))) * cut.iterations


def machine_of(
    columns: Columns,
    cut: Split,
    local: LocalCosts,
    factor: Fraction = Fraction(1),
    sharing: Sharing | None = None,
) -> Machine | None:
    """Return the state before the first event; None where times might not fit into 64 bits.

    `columns` are the program on its topology, `cut` is how the size is cut, `local` what local work
    costs, and `factor` bytes on the wire for each byte of data; `sharing` is what is charged
    instead where messages share edges.
    """
    prices = _Prices(columns.classes, local, factor, sharing, {}, {}, [])
    # A table may say how messages of an iteration that never runs are priced: those of the last.
    parts = [cut.full if cut.iterations > 1 else cut.last, cut.last]
    tables = [[prices.row(kind, cut.chunks, part) for kind in columns.kinds] for part in parts]
    # Flows on the edge with the least share have it all, so all flows together are no slower.
    least = 1
    if sharing is not None:
        least = int(sharing.capacity.min(initial=sharing.block_rate))
    total = 0
    for rows, repeats in zip(tables, (cut.iterations - 1, 1), strict=True):
        for row, steps in zip(rows, columns.population.tolist(), strict=True):
            # At least what all messages take if nothing overlaps. An edge is held no longer than
            # twice the way to the destination, as overhead is at most alpha.
            messages = row[0]
            for many, (arrival, held, work, slices) in (
                (messages - 1, row[3:7]), (1, row[7:])
            ):  # fmt: skip
                slowest = held // least if sharing is not None else 0
                total += many * slices * (arrival + slowest + work) * steps * repeats
    if total >= MAX_TOTAL:
        return None
    kinds = np.array(tables, np.int64).reshape(2, -1, events.KIND_FIELDS)
    num_blocks = len(columns.ends)
    counter = np.zeros(events.COUNTERS, np.int64)
    counter[events.WOKEN] = num_blocks
    counter[events.ITERATIONS] = cut.iterations
    counter[events.SLOTS] = cut.slots
    counter[events.WIDTH] = columns.width
    counter[events.PAUSE_AT] = NEVER
    connections = np.zeros((len(columns.connections), events.CONNECTION_FIELDS), np.int64)
    connections[:, events.SENDER] = columns.senders
    connections[:, events.RECEIVER] = columns.receivers
    connections[:, events.EDGES_FROM] = columns.wires_from[:-1]
    connections[:, events.EDGES_TO] = columns.wires_from[1:]
    edges = np.zeros((columns.num_edges, events.EDGE_FIELDS), np.int64)
    edges[:, events.ROOT] = edges[:, events.FLOWS] = -1
    most = 1
    if sharing is not None:
        connections[:, events.PLACE] = -1
        edges[:, events.CAPACITY] = edges[:, events.SHARE] = sharing.capacity
        counter[events.SHARED] = 1
        counter[events.BLOCK_RATE] = sharing.block_rate
        counter[events.FLAG_LATENCY] = sharing.flag
        most = sharing.slices
    counter[events.BLOCKS] = num_blocks + 1
    # Events in the queue at once: arrivals of as many messages as all connections hold, the
    # releases of one message of each, and the end of local work of each block.
    # Posts that are not seen yet come on top; the queue grows where there are many.
    flying = most * min(len(columns.connections) * cut.slots, messages_of(columns, cut))
    queued = flying + len(columns.wires) + len(columns.connections) + len(columns.ends)
    queued += events.ROOM + 1
    places = len(columns.wires) if sharing is not None else 0
    return Machine(
        _blocks(columns, kinds), connections, edges, columns.kind_of, columns.marks,
        columns.needs_from, columns.needs, kinds, np.array(prices.durations or [0], np.int64),
        columns.wires,
        np.repeat(
            np.arange(len(columns.connections), dtype=np.int32), np.diff(columns.wires_from)
        ),
        np.full(places, -1, np.int32), np.full(places, -1, np.int32),
        np.zeros(len(columns.connections), np.int32), np.zeros((queued, 2), np.int64),
        np.arange(num_blocks, dtype=np.int32)[::-1].copy(), np.zeros(num_blocks, np.int32),
        np.zeros(columns.num_edges, np.int32), np.zeros(num_blocks, np.int32), counter,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Prices:
    """What messages cost; the last three fields are filled while rows are asked for."""

    classes: tuple[LinkClass, ...]
    local: LocalCosts
    factor: Fraction
    sharing: Sharing | None
    times: dict[tuple[Fraction, int], Time]  # by (beta, bytes)
    courses: dict[tuple[int, int], tuple[Time, int]]  # arrival and place, by (class, bytes)
    durations: list[Time]  # how long edges are held, ascending for every course

    def row(self, kind: Kind, chunks: int, part: int) -> list[int]:
        """Return the row of a kind when ``part`` bytes of every chunk are handled."""
        messages = max(1, -(-kind.chunks // chunks))
        head = [messages, int(kind.op in RECEIVES), int(kind.op in SENDS)]
        sizes = (min(chunks, kind.chunks) * part, (kind.chunks - (messages - 1) * chunks) * part)
        for size in sizes:
            arrival, course, slices = 0, 0, 1
            if self.sharing is not None:
                slices = self.sharing.slices_of(size)
                if kind.op in SENDS:
                    across = self.classes[kind.link_class].across
                    arrival, course = self.sharing.flow(size, across=across)
            elif kind.op in SENDS:
                arrival, course = self._course(kind.link_class, size)
            local = self.local if self.sharing is None else self.sharing.local
            work = local_time(kind.op, local, Fraction(size, slices), kind.sources)
            head += [arrival, course, work, slices]
        return head

    def _course(self, number: int, size: int) -> tuple[Time, int]:
        if (number, size) not in self.courses:
            costs = self.classes[number]
            for beta in costs.betas:
                if (beta, size) not in self.times:
                    self.times[beta, size] = ceil_time(beta, self.factor * size)
            held = [self.times[beta, size] for beta in costs.betas]
            slowest = held[-1] if held else 0
            self.courses[number, size] = (costs.alpha + slowest, len(self.durations))
            self.durations.extend(costs.overhead + time for time in held)
        return self.courses[number, size]


def _blocks(columns: Columns, kinds: NDArray[np.int64]) -> Rows:
    """Return a row for each block, before its first step, and one for a block that never posts."""
    num_blocks = len(columns.ends)
    blocks = np.zeros((num_blocks + 1, events.BLOCK_FIELDS), np.int64)
    for name in (events.FLAG, events.WAITERS, events.NEXT, events.CHILD, events.PARKED):
        blocks[:, name] = -1
    blocks[:, events.PHASE] = events.DONE
    rows = blocks[:num_blocks]
    first, end = columns.begins[:-1], columns.begins[1:]
    rows[:, events.FIRST] = rows[:, events.STEP] = first
    rows[:, events.END] = end
    rows[:, events.INBOUND] = columns.inbound
    rows[:, events.OUTBOUND] = columns.outbound
    busy = np.flatnonzero(first < end)
    rows[busy, events.PHASE] = events.NEEDS
    rows[busy, events.NEED] = columns.needs_from[first[busy]]
    rows[busy, events.LEFT] = kinds[0, columns.kind_of[first[busy]], events.MESSAGES]
    return blocks

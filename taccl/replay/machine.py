"""A program on a topology as flat columns, and its state that the compiled event loop starts from.

The columns are the same at every size. Steps are numbered through all threadblocks, ascending by
(rank, threadblock id). What they cost depends only on their kind: the op, the class of the
connection, the chunks, and the sources of a fused reduction. So another size needs only another
table of kinds.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, repeat
from operator import attrgetter, is_not
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.msccl.program import RECEIVES, SENDS, Op, Program, Step, Threadblock
from taccl.replay import layout
from taccl.replay.compile import ROUTED, Connection, no_peer, wire
from taccl.replay.cost import ReplayModel, local_time
from taccl.replay.layout import Machine, Rows
from taccl.topology.graph import LocalCosts, Topology
from taccl.units import Time, ceil_time

Ints = NDArray[np.int64]
Column = NDArray[np.int32]
Flags = NDArray[np.bool_]

OPS = tuple(Op)
_SENDS = np.array([op in SENDS for op in OPS])
_RECEIVES = np.array([op in RECEIVES for op in OPS])
_NOP, _REDUCE = OPS.index(Op.NOP), OPS.index(Op.REDUCE)


class LinkClass(NamedTuple):
    """What connections with equal costs share; ``betas`` of the edges held, ascending."""

    alpha: Time
    overhead: Time
    betas: tuple[Fraction, ...]


class Kind(NamedTuple):
    """What the cost of a step depends on; ``link_class`` is -1 where nothing is sent."""

    op: Op
    link_class: int
    chunks: int
    sources: int


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """A program on a topology.

    Parameters
    ----------
    ends
        (rank, threadblock id) of each block, ascending.
    connections
        Ascending by (src, dst, channel).
    inbound, outbound
        Connection of each block, -1: none.
    senders, receivers
        Block at each end of a connection, -1: none.
    begins
        First step of each block, and the number of all steps.
    kinds, kind_of
        The kinds, and which one each step is.
    population
        How many steps of each kind there are.
    marks
        Position in the XML times two, plus one where the step posts.
    needs_from, needs
        For each step the rows (block, position) whose flags it waits for; a block that does not
        exist has the number after the last.
    classes, class_of
        Costs of links, and those of each connection.
    wires_from, wires
        The edges that a message on each connection holds, by ascending beta.
    num_edges, width
        Of the topology; above every position.
    """

    ends: tuple[tuple[int, int], ...]
    connections: tuple[Connection, ...]
    inbound: Column
    outbound: Column
    senders: Column
    receivers: Column
    begins: Ints
    kinds: tuple[Kind, ...]
    kind_of: Column
    population: Ints
    marks: Column
    needs_from: Column
    needs: Column
    classes: tuple[LinkClass, ...]
    class_of: Column
    wires_from: Ints
    wires: Column
    num_edges: int
    width: int


@dataclass(frozen=True, slots=True, eq=False)
class _Raw:
    """All steps as the program has them, one entry each."""

    steps: list[Step]
    begins: Ints
    block: Column
    op: NDArray[np.int8]
    posts: Flags
    depends: Flags


def columns_of(program: Program, topology: Topology, *, route: bool = False) -> Columns:
    """Return the columns of a program on a topology.

    Parameters
    ----------
    program
        What is run.
    topology
        The machine.
    route
        As for :func:`taccl.replay.compile.wire`.

    Raises
    ------
    ProgramError
        When a connection has no link, or a step sends or receives without a peer.
    """
    wiring = wire(program, topology, route=route)
    by_end = {(rank, block.id): block for rank, block in program.blocks()}
    ends = tuple(sorted(by_end))
    blocks = [by_end[end] for end in ends]
    index = {end: number for number, end in enumerate(ends)}
    wires: dict[tuple[int | None, int | None, int], int] = {
        (c.src, c.dst, c.channel): i for i, c in enumerate(wiring.connections)
    }
    pairs = list(zip(ends, blocks, strict=True))
    inbound = _column(wires.get((b.recv_from, r, b.channel), -1) for (r, _), b in pairs)
    outbound = _column(wires.get((r, b.send_to, b.channel), -1) for (r, _), b in pairs)
    classes, class_of, held = _classes(wiring.connections)
    raw = _raw(blocks)
    _check_peers(raw, ends, blocks)
    heads, tails, sources = _fuse(raw)
    needs_from, rows = _needs(raw, heads, tails)
    sends = _SENDS[raw.op[tails]]
    link_class = np.where(sends, class_of[outbound[raw.block[tails]]] if len(class_of) else -1, -1)
    kinds, kind_of = _kinds(raw, tails, sources, link_class)
    dependences = [(raw.block[row], raw.steps[row].depends) for row in rows.tolist()]
    needs = [
        (index.get((ends[block][0], ref.threadblock), len(ends)), ref.step)
        for block, ref in dependences
        if ref is not None
    ]
    position = tails - raw.begins[raw.block[tails]]
    return Columns(
        ends, wiring.connections, inbound, outbound,
        _column(-1 if end is None else index[end] for end in wiring.senders),
        _column(-1 if end is None else index[end] for end in wiring.receivers),
        np.searchsorted(raw.block[tails], np.arange(len(ends) + 1)),
        kinds, kind_of, np.bincount(kind_of, minlength=len(kinds)),
        (2 * position + raw.posts[tails]).astype(np.int32),
        needs_from, np.array(needs, np.int32).reshape(-1, 2),
        classes, class_of,
        np.cumsum([0, *map(len, held)]), _column(chain.from_iterable(held)),
        len(topology.edges), program.num_steps + 1,
    )  # fmt: skip


def _column(values: Iterable[int]) -> Column:
    return np.fromiter(values, np.int32)


def _classes(
    connections: Sequence[Connection],
) -> tuple[tuple[LinkClass, ...], Column, list[tuple[int, ...]]]:
    """Return the classes of connections, the class of each, and its edges by ascending beta."""
    numbers: dict[LinkClass, int] = {}
    known: dict[int, tuple[int, tuple[int, ...]]] = {}
    found = []
    for connection in connections:
        one = known.get(connection.link) if connection.link != ROUTED else None
        if one is None:
            held = sorted(connection.held, key=lambda pair: pair[1])
            betas = tuple(beta for _, beta in held)
            costs = LinkClass(connection.alpha, connection.overhead, betas)
            number = numbers.setdefault(costs, len(numbers))
            one = known[connection.link] = (number, tuple(edge for edge, _ in held))
        found.append(one)
    return tuple(numbers), _column(number for number, _ in found), [edges for _, edges in found]


def _raw(blocks: Sequence[Threadblock]) -> _Raw:
    steps = list(chain.from_iterable(block.steps for block in blocks))
    lengths = np.fromiter((len(block.steps) for block in blocks), np.int64)
    begins = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    # Members of an enumeration are hashed in Python, which would take longer than the replay.
    members = np.array([id(op) for op in OPS])
    order = np.argsort(members)
    found = np.fromiter(map(id, map(attrgetter("op"), steps)), np.int64, len(steps))
    counts = np.fromiter(map(attrgetter("count"), steps), np.int64, len(steps))
    # A step of no chunk waits and posts as a copy of nothing does.
    found[(counts == 0) & (found != id(Op.NOP))] = id(Op.COPY)
    depends = map(is_not, map(attrgetter("depends"), steps), repeat(None))
    return _Raw(
        steps, begins, np.repeat(np.arange(len(blocks), dtype=np.int32), lengths),
        order[np.searchsorted(members[order], found)].astype(np.int8),
        np.fromiter(map(attrgetter("posts"), steps), np.bool_, len(steps)),
        np.fromiter(depends, np.bool_, len(steps)),
    )  # fmt: skip


def _check_peers(raw: _Raw, ends: Sequence[tuple[int, int]], blocks: Sequence[Threadblock]) -> None:
    mute = np.fromiter((block.send_to is None for block in blocks), np.bool_)[raw.block]
    deaf = np.fromiter((block.recv_from is None for block in blocks), np.bool_)[raw.block]
    mute &= _SENDS[raw.op]
    wrong = np.flatnonzero(mute | deaf & _RECEIVES[raw.op])
    if len(wrong):
        step = int(wrong[0])
        block = int(raw.block[step])
        raise no_peer(*ends[block], step - int(raw.begins[block]), sends=bool(mute[step]))


def _fuse(raw: _Raw) -> tuple[Ints, Ints, Ints]:
    """Return first and last step of each fused step, and how many there are in it.

    As ``_fused`` in compile.py: nops only add dependences to the next step, and consecutive
    reductions into one place without posts and dependences between them are one.
    """
    kept = np.flatnonzero(raw.op != _NOP)
    before, step = kept[:-1], kept[1:]
    waits = np.concatenate([np.zeros(1, np.int64), np.cumsum(raw.depends)])
    merges = (raw.op[before] == _REDUCE) & (raw.op[step] == _REDUCE) & ~raw.posts[before]
    merges &= (raw.block[before] == raw.block[step]) & (waits[step + 1] == waits[before + 1])
    for number in np.flatnonzero(merges).tolist():
        one, two = raw.steps[before[number]], raw.steps[step[number]]
        same_buffer = (one.src and one.src.buffer) == (two.src and two.src.buffer)
        merges[number] = one.dst == two.dst and same_buffer
    starts = np.flatnonzero(np.concatenate([np.ones(min(1, len(kept)), np.bool_), ~merges]))
    stops = np.append(starts, len(kept))[1:]
    return kept[starts], kept[stops - 1], stops - starts


def _needs(raw: _Raw, heads: Ints, tails: Ints) -> tuple[Column, Ints]:
    """Return where the dependences of each fused step begin, and the steps that have them.

    The dependences of a step are its own and those of the nops before it, back to the fused step
    before; those of nops at the end of a threadblock hold nothing back.
    """
    first = raw.begins[raw.block[heads]]
    if len(heads) > 1:
        same = raw.block[tails[:-1]] == raw.block[heads[1:]]
        first[1:] = np.where(same, tails[:-1] + 1, first[1:])
    waits = np.concatenate([np.zeros(1, np.int64), np.cumsum(raw.depends)])
    counts = waits[heads + 1] - waits[first]
    ends = np.cumsum(counts)
    rows = np.flatnonzero(raw.depends)
    # A dependence belongs to the next fused step, if that is in the same block.
    owner = np.searchsorted(heads, rows)
    owned = owner < len(heads)
    owned[owned] = raw.block[heads[owner[owned]]] == raw.block[rows[owned]]
    return np.concatenate([np.zeros(1, np.int64), ends]).astype(np.int32), rows[owned]


def _kinds(
    raw: _Raw, tails: Ints, sources: Ints, link_class: Ints
) -> tuple[tuple[Kind, ...], Column]:
    counts = np.fromiter(map(attrgetter("count"), raw.steps), np.int64, len(raw.steps))[tails]
    key = np.zeros(len(tails), np.int64)
    for column in (raw.op[tails], link_class, counts, sources):
        values, place = _distinct(column.astype(np.int64))
        _, key = _distinct(key * len(values) + place)
    _, some = np.unique(key, return_index=True)
    rows = zip(raw.op[tails[some]], link_class[some], counts[some], sources[some], strict=True)
    kinds = tuple(Kind(OPS[op], int(c), int(n), int(s)) for op, c, n, s in rows)
    return kinds, key.astype(np.int32)


def _distinct(values: Ints) -> tuple[Ints, Ints]:
    """Return the distinct values, ascending, and the place of each value among them."""
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    if high - low > max(1 << 16, 4 * len(values)):
        distinct, place = np.unique(values, return_inverse=True)
        return distinct, place
    seen = np.zeros(high - low + 1, np.bool_)
    seen[values - low] = True
    return np.flatnonzero(seen) + low, (np.cumsum(seen) - 1)[values - low]


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
    """Return how a size, a multiple of the program's chunks, is cut into messages.

    Parameters
    ----------
    program
        What is run.
    size
        Bytes of the counted buffer.
    model
        The runtime's constants.
    """
    message, slots = model.of_protocol(program.protocol)
    chunk = size // program.chunks_per_loop
    iterations = -(-chunk // message)
    last = chunk - (iterations - 1) * message
    return Split(iterations, model.joined(program, chunk), message, last, slots)


def messages_of(columns: Columns, cut: Split) -> int:
    """Return how many messages and pieces of local work there are in all.

    Parameters
    ----------
    columns
        The program on its topology.
    cut
        How the size is cut.
    """
    counts = np.array([kind.chunks for kind in columns.kinds], np.int64)
    return int(columns.population @ np.maximum(1, -(-counts // cut.chunks))) * cut.iterations


def machine_of(
    columns: Columns, cut: Split, local: LocalCosts, factor: Fraction = Fraction(1)
) -> Machine | None:
    """Return the state before the first event; None where times might not fit into 64 bits.

    Parameters
    ----------
    columns
        The program on its topology.
    cut
        How the size is cut.
    local
        Costs of local work.
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

"""What a program takes when the places of a machine take its ranks in some order.

The program is compiled once (:mod:`taccl.replay.events`). Another order only changes which link
each connection uses: how long messages hold its edges, which edges, and when they arrive. So every
order is a replay of the same steps with other costs (:class:`Replays`), exactly as if the program
ran on the permuted topology. To be used, an order either gives the machine's places new numbers
(:func:`permuted_topology`) while the program stays, or the program's ranks
(:func:`permuted_program`).
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from taccl.collectives import COLLECTIVES
from taccl.errors import InputError, ProgramError, TacclWarning
from taccl.msccl.interpret import find_root
from taccl.msccl.program import SENDS, Buffer, Gpu, Program, Slot, Step, Threadblock
from taccl.replay import events
from taccl.replay.compile import (
    Columns,
    Connection,
    Kind,
    LinkClass,
    Split,
    columns_of,
    split,
    wire,
)
from taccl.replay.cost import ReplayModel
from taccl.replay.events import MAX_TOTAL, Machine, machine_of, messages_of
from taccl.replay.timing import EXTRAPOLATED_ABOVE, run_machine
from taccl.topology.graph import Edge, Topology
from taccl.units import Time, ceil_time

_MAPPED = {
    "allreduce": frozenset[Buffer](),
    "broadcast": frozenset[Buffer](),
    "reduce": frozenset[Buffer](),
    "allgather": frozenset({Buffer.OUTPUT}),
    "reducescatter": frozenset({Buffer.INPUT}),
    "alltoall": frozenset({Buffer.INPUT, Buffer.OUTPUT}),
}
"""Buffers whose chunks belong to ranks, by their place in the buffer."""


def permuted_topology(topology: Topology, order: Sequence[int]) -> Topology:
    """Return the machine whose rank ``r`` is rank ``order[r]`` of a `topology`; edge ids stay.

    `order` says for each rank which place takes it.
    """
    number = {place: rank for rank, place in enumerate(order)}

    def moved(edge: Edge) -> Edge:
        ends = (edge.tail, edge.head)
        places = tuple(number.get(end, end) for end in ends)
        plain, named = ("->".join(map(topology.vertex_name, pair)) for pair in (ends, places))
        name = named if edge.name == plain else edge.name
        return replace(edge, tail=places[0], head=places[1], name=name)

    return replace(
        topology,
        edges=tuple(map(moved, topology.edges)),
        server_of=tuple(topology.server_of[place] for place in order),
        rotations=tuple(
            tuple(number[rotation[place]] for place in order) for rotation in topology.rotations
        ),
    )


def permuted_program(program: Program, order: Sequence[int]) -> Program:
    """Return the program whose rank ``order[r]`` does what the given one's rank ``r`` does.

    `program` is what is run, `order` a permutation of its ranks. Where chunks belong to ranks (an
    allgather's output), they move along, which steps of several chunks may not survive.

    Raises InputError when the collective, or a step, is bound to the ranks as they are.
    """
    mapped = _MAPPED.get(program.collective)
    root = find_root(program) if program.collective in ("broadcast", "reduce") else None
    if mapped is None or (root is not None and order[root] != root):
        what = "is not in a form whose ranks can move" if mapped is None else "would move its root"
        raise _bound(program, what)
    total = program.chunks_per_loop
    share = total // program.num_ranks
    if mapped and (not share or COLLECTIVES[program.collective].has_root):
        raise _bound(program, "has fewer chunks than ranks")

    def offset(slot: Slot | None, count: int) -> Slot | None:
        if slot is None or slot.buffer not in mapped:
            return slot
        chunks = range(slot.offset, slot.offset + max(count, 1))
        places = [order[c // share] * share + c % share for c in chunks]
        if places != list(range(places[0], places[0] + len(places))):
            raise _bound(program, "has steps of several chunks that would no longer be neighbours")
        return Slot(slot.buffer, places[0])

    def step(old: Step) -> Step:
        return replace(old, src=offset(old.src, old.count), dst=offset(old.dst, old.count))

    def block(old: Threadblock) -> Threadblock:
        ends = [None if end is None else order[end] for end in (old.send_to, old.recv_from)]
        return replace(old, send_to=ends[0], recv_from=ends[1], steps=tuple(map(step, old.steps)))

    moved = [
        replace(gpu, rank=order[gpu.rank], threadblocks=tuple(map(block, gpu.threadblocks)))
        for gpu in program.gpus
    ]
    gpus = tuple(sorted(moved, key=lambda gpu: gpu.rank))
    return replace(program, name=f"{program.name}-placed", gpus=gpus)


def _bound(program: Program, what: str) -> InputError:
    return InputError(
        f"{program.name} {what}", field="--placed-xml",
        fix="leave --placed-xml out: a rankfile or --placed-topology serves any program",
    )  # fmt: skip


Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Load:
    """What a connection carries from rank `src` to rank `dst` of the program.

    It is the pair's connection number `position`; `messages` are bytes of a message, and how many
    of these there are, ascending.
    """

    src: int
    dst: int
    position: int
    messages: tuple[tuple[int, int], ...]


class Replays:
    """Replays a `program` for any order of ranks.

    ``order[rank]`` is the rank of the `topology` that acts as ``rank``; `size` is bytes, a multiple
    of the program's chunks, and `model` has the runtime's constants.

    Raises ProgramError when the program does not fit the topology.
    """

    def __init__(self, program: Program, topology: Topology, size: int, model: ReplayModel) -> None:
        self.topology, self.count = topology, 0
        cut = split(program, size, model)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TacclWarning)
            columns = _by_connection(columns_of(program, topology, route=True))
        self.total = messages_of(columns, cut)
        self.loads = _loads(columns, cut)
        self.sizes = sorted({size for load in self.loads for size, _ in load.messages})
        self.table = _Table(topology, self.sizes, max((c.position for c in self.loads), default=0))
        ends = [(load.src, load.dst, load.position) for load in self.loads]
        self.src, self.dst, self.position = np.array(ends, np.int64).reshape(-1, 3).T
        template = machine_of(columns, cut, topology.local)
        if template is None:
            raise _too_long()
        self.template = template
        self._sent = _sent_kinds(columns, cut, self.sizes)
        self._most = len(template.queue) - len(template.wires)
        self._work: Machine | None = None

    def rows(self, order: Sequence[int]) -> Ints:
        """Return the row of the table that each connection uses."""
        places = np.asarray(order, np.int64)
        rows: Ints = self.table.row[places[self.src], places[self.dst], self.position]
        return rows

    def time(self, order: Sequence[int]) -> Time:
        """Return what the program takes.

        Raises ProgramError when it comes to no end.
        """
        rows = self.rows(order)
        machine = self._machine(rows)
        self.count += 1
        ended, _ = run_machine(machine, steady=self.total > EXTRAPOLATED_ABOVE)
        done = machine.blocks[:-1, events.PHASE] == events.DONE
        if not ended or not done.all():
            raise ProgramError(
                "the program comes to no end at this size", fix="use another program or --size"
            )
        return int(machine.counter[events.NOW]) + self.topology.local.launch

    def _machine(self, rows: Ints) -> Machine:
        """Return the state before the first event, with the costs of these rows."""
        table, template, width = self.table, self.template, self.table.width
        if table.longest * self.total * 2 >= MAX_TOTAL:
            raise _too_long()
        work = self._work
        if work is None or len(work.durations) != len(rows) * len(self.sizes) * width:
            work = self._work = self._fresh(len(rows) * width, len(rows) * len(self.sizes) * width)
        for name in ("blocks", "edges", "woken", "counter"):
            np.copyto(getattr(work, name), getattr(template, name))
        work.connections[:, : events.EDGES_FROM] = template.connections[:, : events.EDGES_FROM]
        starts = work.connections[:, events.EDGES_FROM]
        np.multiply(np.arange(len(rows)), width, out=starts)
        np.add(starts, table.lengths[rows], out=work.connections[:, events.EDGES_TO])
        np.copyto(work.durations, table.durations[rows].reshape(-1)[: len(work.durations)])
        np.copyto(work.wires, table.edges[rows].reshape(-1))
        arrivals = table.arrivals[rows]
        for part, field, kinds, conns, sizes in self._sent:
            work.kinds[part, kinds, field] = arrivals[conns, sizes]
            course = events.DURATIONS - events.ARRIVAL + field
            work.kinds[part, kinds, course] = (conns * len(self.sizes) + sizes) * width
        return work

    def _fresh(self, wires: int, durations: int) -> Machine:
        parts = {
            name: np.array(getattr(self.template, name))
            for name in (
                "blocks", "connections", "edges", "woken", "requested", "freed", "candidates",
                "counter", "kinds",
            )
        }  # fmt: skip
        queue = np.zeros((self._most + wires, 2), np.int64)
        return self.template._replace(
            **parts, queue=queue, wires=np.zeros(wires, np.int32),
            durations=np.zeros(durations, np.int64),
        )  # fmt: skip


def _too_long() -> InputError:
    return InputError(
        "the program takes longer than times can say", field="--size", fix="use a smaller --size"
    )


class _Table:
    """What a message of each size does on each pair of places, a row for each link.

    ``row[a, b, position]`` is the row that the connection at a position of the pair uses; in it
    are ``edges``, ascending by beta, of which the first ``lengths`` count, ``durations`` by size
    and edge, and ``arrivals`` by size.
    """

    def __init__(self, topology: Topology, sizes: Sequence[int], position: int) -> None:
        self.sizes = sizes
        self._time = cache(ceil_time)
        connections = wire_all(topology, position + 1)
        n = topology.num_ranks
        self.row = np.full((n, n, position + 1), -1, np.int64)
        keys = np.array([(c.src, c.dst, c.channel) for c in connections], np.int64).reshape(-1, 3)
        self.row[tuple(keys.T)] = np.arange(len(keys))
        self.lengths = np.array([len(each.held) for each in connections], np.int64)
        self.width = max(1, int(self.lengths.max(initial=1)))
        rows = [self._row(each, self.width) for each in connections]
        self.edges = np.array([row[0] for row in rows], np.int32).reshape(-1, self.width)
        durations = np.array([row[1] for row in rows], np.int64)
        self.durations = durations.reshape(len(rows), -1, self.width)
        self.arrivals = np.array([row[2] for row in rows], np.int64).reshape(len(rows), -1)
        self.longest = int(self.arrivals.max(initial=0))

    def _row(
        self, connection: Connection, width: int
    ) -> tuple[list[int], list[list[Time]], list[Time]]:
        held = sorted(connection.held, key=lambda pair: pair[1])
        rest = [0] * (width - len(held))
        times = [[self._time(beta, size) for _, beta in held] for size in self.sizes]
        durations = [[connection.overhead + time for time in row] + rest for row in times]
        arrivals = [connection.alpha + (row[-1] if row else 0) for row in times]
        return [edge for edge, _ in held] + rest, durations, arrivals


def wire_all(topology: Topology, positions: int) -> tuple[Connection, ...]:
    """Return connections of all pairs of a `topology`, so many `positions` for each pair.

    They are routed over other ranks where there is no link.
    """
    ranks = range(topology.num_ranks)
    blocks = [
        [Threadblock(number, dst, None, i) for number, (dst, i) in enumerate(
            (dst, i) for dst in ranks if dst != src for i in range(positions)
        )]
        for src in ranks
    ]  # fmt: skip
    gpus = [Gpu(rank, 1, 1, 0, tuple(blocks[rank])) for rank in ranks]
    program = Program(
        "pairs", "allreduce", "Simple", in_place=True, out_of_place=True, channels=positions,
        chunks_per_loop=1, min_bytes=0, max_bytes=1, gpus=tuple(gpus),
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TacclWarning)
        return wire(program, topology, route=True).connections


def _by_connection(columns: Columns) -> Columns:
    """Return the columns with a class for each connection, so that each has costs of its own."""
    count = len(columns.connections)
    classes = tuple(columns.classes[number] for number in columns.class_of.tolist())
    block = np.repeat(np.arange(len(columns.ends)), np.diff(columns.begins))
    sends = np.array([kind.op in SENDS for kind in columns.kinds], np.bool_)
    own = np.where(sends[columns.kind_of], columns.outbound[block], -1).astype(np.int64)
    key = columns.kind_of.astype(np.int64) * (count + 1) + own + 1
    values, place = np.unique(key, return_inverse=True)
    kinds = [
        columns.kinds[value // (count + 1)]._replace(link_class=value % (count + 1) - 1)
        for value in values.tolist()
    ]
    return replace(
        columns, kinds=tuple(map(Kind._make, kinds)), kind_of=place.astype(np.int32),
        population=np.bincount(place, minlength=len(kinds)),
        classes=tuple(map(LinkClass._make, classes)), class_of=np.arange(count, dtype=np.int32),
    )  # fmt: skip


def _parts(kind: Kind, cut: Split, part: int) -> tuple[int, int, int]:
    """Return the messages of a step, and bytes of all but the last, and of the last."""
    messages = -(-kind.chunks // cut.chunks)
    rest = kind.chunks - (messages - 1) * cut.chunks
    return messages, min(cut.chunks, kind.chunks) * part, rest * part


def _loads(columns: Columns, cut: Split) -> tuple[Load, ...]:
    sent: list[dict[int, int]] = [{} for _ in columns.connections]
    for kind, steps in zip(columns.kinds, columns.population.tolist(), strict=True):
        if kind.op not in SENDS:
            continue
        for part, repeats in ((cut.full, cut.iterations - 1), (cut.last, 1)):
            messages, size, last = _parts(kind, cut, part)
            counts = sent[kind.link_class]
            for each, number in ((size, messages - 1), (last, 1)):
                if number * repeats:
                    counts[each] = counts.get(each, 0) + number * repeats * steps
    found, seen = [], dict[tuple[int, int], int]()
    for connection, counts in zip(columns.connections, sent, strict=True):
        pair = (connection.src, connection.dst)
        seen[pair] = seen.get(pair, -1) + 1
        found.append(Load(*pair, seen[pair], tuple(sorted(counts.items()))))
    return tuple(found)


def _sent_kinds(
    columns: Columns, cut: Split, sizes: Sequence[int]
) -> tuple[tuple[int, int, Ints, Ints, Ints], ...]:
    """Return (part, field, kinds, their connections, their sizes) of the costs that change."""
    index = {size: number for number, size in enumerate(sizes)}
    found = []
    for part, count in ((0, cut.full), (1, cut.last)):
        for tail in (0, events.TAIL):
            rows = []
            for number, kind in enumerate(columns.kinds):
                size = _parts(kind, cut, count)[2 if tail else 1]
                if kind.op in SENDS and size in index:
                    rows.append((number, kind.link_class, index[size]))
            kinds, conns, places = np.array(rows, np.int64).reshape(-1, 3).T
            found.append((part, events.ARRIVAL + tail, kinds, conns, places))
    return tuple(found)

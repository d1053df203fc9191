"""Which host takes which rank: orders of ranks, their replayed time, and a search for the best.

All orders are tried where they are few. Else, from the best of several starts every move is tried,
those first that a proxy finds good, and the first that makes the replay shorter is taken. Where
none does, the best order so far is shaken and the search goes on from there. All randomness is
seeded: without a clock that stops it, the same input gives the same order.

An order says for each rank which place of the machine takes it. It consists of the order of servers
and the order of places within each, so that GPUs of a server stay side by side; moves change one of
the two. Searches start from tours of rings, and from orders that are good by a proxy.

The proxy stands in for the replay where very many orders are looked at: connections that carry
equal messages are one group, as they are one phase of the algorithm in turn (all of a ring, one
distance of a halving), and each phase lasts as long as its slowest connection would alone.

What no order of a ring can beat follows from what its links have to carry. Each leg of a ring
carries the same messages one after the other, so that a ring takes at least as long as they keep
its slowest leg busy. The slowest leg is at least as slow as the least level up to which the legs
still join all places to one another and let each have one before and one after it; the same holds
for servers, each entered and left once. Other algorithms have no such bound.

The program is compiled once (:mod:`taccl.replay.events`). Another order only changes which link
each connection uses: how long messages hold its edges, which edges, and when they arrive. So every
order is a replay of the same steps with other costs (:class:`Replays`), exactly as if the program
ran on the permuted topology. To be used, an order either gives the machine's places new numbers
(:func:`permuted_topology`) while the program stays, or the program's ranks
(:func:`permuted_program`).
"""

import itertools
import random
import warnings
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import factorial, prod
from typing import NamedTuple, TypeVar

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
from taccl.timing.deadline import Deadline
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


Order = tuple[int, ...]
"""``order[rank]`` is the place that takes the rank."""

Blocks = tuple[tuple[int, ...], ...]
"""The places of each server, in the order of servers."""

Item = TypeVar("Item")

LONGEST = 3
"""Neighbours in an order that are moved together."""


class Move(NamedTuple):
    """A change of one sequence: of servers (``block`` -1), or of places in one of them.

    ``kind`` 0 exchanges ``first`` and ``last``, 1 turns what is between them round, and 2 moves
    ``length`` entries from ``first`` on to ``last``; 3 turns servers round with the places in them.
    """

    block: int
    kind: int
    first: int
    last: int
    length: int = 1


@dataclass(frozen=True, slots=True)
class Servers:
    """The places of each server (`blocks`), and whether those `inside` one may be exchanged."""

    blocks: Blocks
    inside: bool = True

    @property
    def num_places(self) -> int:
        """How many places there are."""
        return sum(map(len, self.blocks))

    def count(self) -> int:
        """Return how many orders there are."""
        inner = prod(factorial(len(block)) for block in self.blocks) if self.inside else 1
        return factorial(len(self.blocks)) * inner

    def all(self) -> Iterator[Order]:
        """Yield every order, that of the blocks first."""
        for blocks in itertools.permutations(self.blocks):
            inner = [itertools.permutations(block) if self.inside else [block] for block in blocks]
            for chosen in itertools.product(*inner):
                yield flat(chosen)

    def random(self, rng: random.Random) -> Blocks:
        """Return one of all orders."""
        blocks = [
            tuple(rng.sample(block, len(block))) if self.inside else block for block in self.blocks
        ]
        rng.shuffle(blocks)
        return tuple(blocks)

    def split(self, order: Sequence[int]) -> Blocks | None:
        """Return an order as blocks; None where it does not keep servers together."""
        server = {place: number for number, block in enumerate(self.blocks) for place in block}
        groups = [
            (number, tuple(places))
            for number, places in itertools.groupby(order, key=server.__getitem__)
        ]
        whole = all(
            sorted(places) == sorted(self.blocks[number])
            if self.inside else places == self.blocks[number]
            for number, places in groups
        )  # fmt: skip
        return tuple(places for _, places in groups) if whole else None


def servers_of(server_of: Sequence[int], *, inside: bool = True) -> Servers:
    """Return the servers of a machine, by the first place of each.

    `server_of` has the server of each place; `inside` tells whether places of one server may be
    exchanged.
    """
    blocks: dict[int, list[int]] = {}
    for place, server in enumerate(server_of):
        blocks.setdefault(server, []).append(place)
    return Servers(tuple(map(tuple, blocks.values())), inside)


def flat(blocks: Sequence[Sequence[int]]) -> Order:
    """Return blocks as one order."""
    return tuple(itertools.chain.from_iterable(blocks))


def moves(servers: Servers, blocks: Blocks) -> Iterator[Move]:
    """Yield every move from an order: of the `servers`, and of the places in each of them.

    `blocks` is the order, as the places of each server.
    """
    several = servers.inside and len(blocks) < servers.num_places
    yield from _of_sequence(-1, len(blocks), turned=several)
    if servers.inside:
        for number, block in enumerate(blocks):
            yield from _of_sequence(number, len(block), turned=False)


def _of_sequence(block: int, length: int, *, turned: bool) -> Iterator[Move]:
    for first, last in itertools.combinations(range(length), 2):
        yield Move(block, 0, first, last)
        if last > first + 1:
            yield Move(block, 1, first, last)
        if turned:
            yield Move(block, 3, first, last)
    for many in range(1, LONGEST + 1):
        ends = range(length - many + 1)
        for first, last in itertools.permutations(ends, 2):
            if many > 1 or abs(last - first) > 1:
                yield Move(block, 2, first, last, many)


def moved(blocks: Blocks, move: Move) -> Blocks:
    """Return the order that a `move` leads to, one of :func:`moves`.

    `blocks` is the order before it, as the places of each server.
    """
    if move.block >= 0:
        inner = list(blocks)
        inner[move.block] = tuple(_moved(inner[move.block], move))
        return tuple(inner)
    outer = _moved(blocks, move)
    if move.kind == 3:
        for number in range(move.first, move.last + 1):
            outer[number] = outer[number][::-1]
    return tuple(outer)


def _moved(items: Sequence[Item], move: Move) -> list[Item]:
    found = list(items)
    first, last = move.first, move.last
    if move.kind == 0:
        found[first], found[last] = found[last], found[first]
    elif move.kind in (1, 3):
        found[first : last + 1] = found[first : last + 1][::-1]
    else:
        taken = found[first : first + move.length]
        del found[first : first + move.length]
        found[last:last] = taken
    return found


def shaken(servers: Servers, blocks: Blocks, rng: random.Random, strength: int) -> Blocks:
    """Return an order so many random moves (the `strength`) away.

    `blocks` is the order before, as the places of each of the `servers`; `rng` is where moves are
    drawn from.
    """
    for _ in range(strength):
        levels = [-1] if len(blocks) > 1 else []
        if servers.inside:
            levels += [number for number, block in enumerate(blocks) if len(block) > 1]
        if not levels:
            return blocks
        level = rng.choice(levels)
        length = len(blocks) if level < 0 else len(blocks[level])
        first, last = sorted(rng.sample(range(length), 2))
        many = rng.randint(1, min(LONGEST, length - 1))
        move = Move(level, rng.randrange(2), first, last)
        if rng.random() < 0.5:
            move = Move(level, 2, rng.randrange(length - many + 1),
                        rng.randrange(length - many + 1), many)  # fmt: skip
        blocks = moved(blocks, move)
    return blocks


TOUR_SOLUTIONS = 200
TOUR_SECONDS = 5
"""A guard only: the solutions come in well under it for some hundred ranks."""

ANNEALED = 4_000
"""Steps of annealing by the proxy."""


class Proxy:
    """A guess at what orders take, from the loads and costs of `replays`; never used to judge."""

    def __init__(self, replays: Replays) -> None:
        loads = replays.loads
        self.src, self.dst = replays.src, replays.dst
        shapes = sorted({load.messages for load in loads})
        self.group = np.array([shapes.index(load.messages) for load in loads], np.int64)
        self.costs = np.stack([pair_times(replays, shape) for shape in shapes])
        self.starts = np.argsort(self.group, kind="stable")
        self.first = np.searchsorted(self.group[self.starts], np.arange(len(shapes)))

    def of(self, orders: Sequence[Order]) -> Ints:
        """Return a number for each order; smaller is likely better."""
        places = np.array(orders, np.int64)
        order = self.starts
        costs = self.costs[self.group[order], places[:, self.src[order]],
                           places[:, self.dst[order]]]  # fmt: skip
        slowest = np.maximum.reduceat(costs, self.first, axis=1).sum(axis=1)
        total: Ints = slowest * 4 + costs.sum(axis=1) // max(1, len(order) // len(self.first))
        return total


def pair_times(replays: Replays, messages: Sequence[tuple[int, int]]) -> Ints:
    """Return how long messages keep the link between each two places, one after the other.

    `replays` have the links and the sizes; `messages` are pairs of bytes and how many have so many.
    """
    table, n = replays.table, replays.topology.num_ranks
    rows = table.row[:, :, 0]
    found = np.zeros((n, n), np.int64)
    for size, count in messages:
        found += count * table.arrivals[rows, replays.sizes.index(size)]
    np.fill_diagonal(found, 0)
    return found


def ring_of(loads: Sequence[Load]) -> list[int] | None:
    """Return the ranks in the order of a ring, where the program is one way round a ring."""
    after: dict[int, int] = {}
    for load in loads:
        if load.messages and after.setdefault(load.src, load.dst) != load.dst:
            return None
    ring, rank = [], min(after, default=0)
    while rank not in ring and rank in after:
        ring.append(rank)
        rank = after[rank]
    whole = len(ring) == len(after) > 1 and rank == ring[0]
    return ring if whole else None


def starts(replays: Replays, servers: Servers, seed: int, stop: Callable[[], bool]) -> list[Blocks]:
    """Return orders of ranks to start from; none once `stop` says that time is up.

    `replays` is the program on the machine, `servers` which places belong together; `seed` is for
    what is drawn.
    """
    rng = random.Random(seed)
    found: list[Blocks] = []
    ring = ring_of(replays.loads)
    if ring is not None and len(ring) == servers.num_places:
        for tour in tours(replays, servers, stop):
            order = [0] * len(tour)
            for rank, place in zip(ring, tour, strict=True):
                order[rank] = place
            blocks = servers.split(order)
            if blocks is not None:
                found.append(blocks)
    proxy = Proxy(replays)
    return found + [annealed(proxy, servers, rng, stop) for _ in range(2)]


def annealed(
    proxy: Proxy, servers: Servers, rng: random.Random, stop: Callable[[], bool]
) -> Blocks:
    """Return an order that is good by the `proxy`: threshold accepting with a falling threshold.

    Places of `servers` stay together; `rng` is where moves are drawn from; `stop` tells whether the
    time is up.
    """
    current = best = servers.random(rng)
    value = least = int(proxy.of([flat(current)])[0])
    for step in range(ANNEALED):
        if step % 64 == 0 and stop():
            break
        other = shaken(servers, current, rng, 1)
        found = int(proxy.of([flat(other)])[0])
        if found * 200 <= value * 200 + value * 10 * (ANNEALED - step) // ANNEALED:
            current, value = other, found
            if value < least:
                best, least = current, value
    return best


def tours(replays: Replays, servers: Servers, stop: Callable[[], bool]) -> list[Order]:
    """Return round trips over all places: one that is short, and one whose longest leg is.

    Legs between `servers` are so long that a good trip leaves each server once; it begins where it
    enters one. `replays` is a ring program on the machine; `stop` tells whether the time is up.
    """
    (messages,) = {load.messages for load in replays.loads if load.messages} or {()}
    times = pair_times(replays, messages)
    n = len(times)
    server = np.zeros(n, np.int64)
    for number, block in enumerate(servers.blocks):
        server[list(block)] = number
    apart = server[:, None] != server[None, :]
    costs = times * 1000 // max(1, int(times.max()))
    far = 1000 * n
    found = []
    shortest = tour(costs + (far * apart if len(servers.blocks) < n else 0))
    if shortest is not None:
        found.append(shortest)
    levels = np.unique(times[~np.eye(n, dtype=np.bool_)])
    low, high = 0, len(levels) - 1
    while low < high and not stop():
        middle = (low + high) // 2
        slow = times > levels[middle]
        trip = tour(costs + far * slow + (n * far * apart if len(servers.blocks) < n else 0))
        legs = [] if trip is None else slow[list(trip), [*trip[1:], trip[0]]]
        if trip is None or np.any(legs):
            low = middle + 1
        else:
            found.append(trip)
            high = middle
    turned = []
    for trip in found:
        # It begins where it enters a server.
        enters = [i for i in range(n) if server[trip[i - 1]] != server[trip[i]]]
        first = min(enters, key=lambda i: trip[i], default=trip.index(0))
        turned.append((*trip[first:], *trip[:first]))
    return turned


def tour(costs: Ints) -> Order | None:
    """Return a short round trip by OR-Tools' routing, stopped by a count of solutions.

    The `costs` of legs, from place to place, are whole numbers; None where it finds none in time.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SWIG's types have no __module__
        from ortools.constraint_solver import pywrapcp, routing_enums_pb2

    legs = costs.tolist()
    manager = pywrapcp.RoutingIndexManager(len(legs), 1, 0)
    routing = pywrapcp.RoutingModel(manager)
    node = [manager.IndexToNode(index) for index in range(routing.Size() + 1)]
    leg = routing.RegisterTransitMatrix(legs)
    routing.SetArcCostEvaluatorOfAllVehicles(leg)
    search = pywrapcp.DefaultRoutingSearchParameters()
    search.first_solution_strategy = routing_enums_pb2.FirstSolutionStrategy.PATH_CHEAPEST_ARC
    search.local_search_metaheuristic = (
        routing_enums_pb2.LocalSearchMetaheuristic.GUIDED_LOCAL_SEARCH
    )
    search.solution_limit = TOUR_SOLUTIONS
    search.time_limit.seconds = TOUR_SECONDS
    found = routing.SolveWithParameters(search)
    if found is None:
        return None
    trip, index = [], routing.Start(0)
    while not routing.IsEnd(index):
        trip.append(node[index])
        index = found.Value(routing.NextVar(index))
    return tuple(trip)


def ring_bound(replays: Replays, servers: Servers) -> Time | None:
    """Return a time (ps) that no order of a ring program beats; None where it is no ring.

    `replays` is the program on the machine, `servers` which places belong together.
    """
    ring = ring_of(replays.loads)
    n = servers.num_places
    if ring is None or len(ring) != n or n < 2:
        return None
    busy = _busy(replays)
    if busy is None:
        return None
    least = slowest_leg(busy)
    blocks = servers.blocks
    if 1 < len(blocks) < n:
        between = np.array([[busy[np.ix_(a, b)].min() for b in blocks] for a in blocks])
        least = max(least, slowest_leg(between))
    return least + replays.topology.local.launch


def _busy(replays: Replays) -> Ints | None:
    """Return how long a leg is busy between each two places; None where legs are not alike.

    Connections of a leg that share its one link come one after the other; where a pair may have
    several links, only what one connection carries is counted.
    """
    legs: dict[int, list[tuple[tuple[int, int], ...]]] = {}
    for load in replays.loads:
        legs.setdefault(load.src, []).append(load.messages)
    kinds = {tuple(sorted(messages)) for messages in legs.values()}
    if len(kinds) != 1:
        return None
    table = replays.table
    held = table.durations.max(axis=2, initial=0)
    (kind,) = kinds
    each = [
        sum(
            count * held[table.row[:, :, place], replays.sizes.index(size)]
            for size, count in messages
        )
        for place, messages in enumerate(kind)
    ]
    links = link_counts(replays.topology)
    busy: Ints = np.sum(each, axis=0) if links.max() <= 1 else np.min(each, axis=0)
    # Pairs without a link are at least as busy as the best way's worst link: which way a message
    # is routed may depend on the numbers of ranks, and so on the order.
    found = np.where(links > 0, busy, int(busy.max()) + 1)
    for _ in range(len(busy)):
        over = np.array([np.maximum(row[:, None], found).min(axis=0) for row in found])
        if (over >= found).all():
            break
        found = np.minimum(found, np.where(links > 0, busy, over))
    return found


def link_counts(topology: Topology) -> Ints:
    """Return how many links there are from each rank to each."""
    table, n = topology.links, topology.num_ranks
    counts = np.zeros((n, n), np.int64)
    np.add.at(counts, (table.src, table.dst), 1)
    return counts


def slowest_leg(busy: Ints) -> Time:
    """Return the least level at which a round trip over all places may exist."""
    joined = ~np.eye(len(busy), dtype=np.bool_)
    levels = np.unique(busy[joined]).tolist()
    level = bisect_left(
        levels, x=True, hi=len(levels) - 1, key=lambda level: _may_tour((busy <= level) & joined)
    )
    return int(levels[level])


def _may_tour(open_legs: NDArray[np.bool_]) -> bool:
    """Tell whether legs join all places to one another, and cover them with round trips."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import connected_components, maximum_bipartite_matching

    graph = csr_matrix(open_legs)
    parts, _ = connected_components(graph, directed=True, connection="strong")
    covered = parts == 1 and (maximum_bipartite_matching(graph, perm_type="column") >= 0).all()
    return bool(covered)


EVERY_ORDER = 50_000
"""Orders up to which all are tried if not said otherwise: those of eight ranks are 40 320."""

CLIMBED = 6
"""Starts that are improved."""

TRIED = 128
"""Moves that are replayed where none of them helps."""

LOOKED_AT = 512
"""Moves that the proxy looks at; where there are more, so many are drawn."""

ROUNDS = 400
"""Shakes in a row that bring nothing, after which the search ends."""

STUCK = 40
"""Shakes in a row after which the search goes on from a worse order."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How long to search: `seconds` from now (None: as long as it takes) and `replays` at most.

    None is any number of replays; a count gives the same result every time. `seed` is that of all
    that is drawn, `samples` random orders are what the result is compared with, and up to `every`
    orders all are tried, without a search.
    """

    seconds: float | None = None
    replays: int | None = None
    seed: int = 0
    samples: int = 100
    every: int = EVERY_ORDER


@dataclass(frozen=True, slots=True)
class Found:
    """The answer: ``order[rank]`` is the place that takes the rank.

    `time` and `identity` are picoseconds of that `order` and of the one that leaves all as it is,
    `random` those of the random orders, and `bound` what no order can beat (None: unknown). So many
    `replays` were made, and `ended` is why the search did: ``all``, ``bound``, ``settled``,
    ``time``, ``replays`` or ``interrupted``.
    """

    order: Order
    time: Time
    identity: Time
    random: tuple[Time, ...]
    bound: Time | None
    replays: int
    ended: str


class _EndError(Exception):
    """The search has to end; the message says why."""


class _Search:
    """The replays so far, and the best of them."""

    def __init__(
        self, replays: Replays, limits: Limits, stop: Callable[[], bool], report: "Report"
    ) -> None:
        self.replays, self.limits, self.stop, self.report = replays, limits, stop, report
        self.clock = Deadline()
        self.known: dict[Order, Time] = {}
        self.best: tuple[Time, Order] | None = None
        self.enough: Time = -1
        self.counted = 0

    def why_end(self) -> str:
        """Return why the search has to end now; empty when it may go on."""
        limits = self.limits
        if self.best is not None and self.best[0] <= self.enough:
            return "bound"
        if self.stop():
            return "interrupted"
        if limits.replays is not None and self.counted >= limits.replays:
            return "replays"
        if limits.seconds is not None and self.clock.spent >= limits.seconds:
            return "time"
        return ""

    def over(self) -> bool:
        """Tell whether the search has to end now."""
        return bool(self.why_end())

    def time(self, order: Order) -> Time:
        """Return what an order takes.

        Raises _EndError when the search has to end before.
        """
        if order in self.known:
            return self.known[order]
        reason = self.why_end() if self.best is not None else ""
        if reason:
            raise _EndError(reason)
        found = self.known[order] = self.replays.time(order)
        self.counted += 1
        if self.best is None or found < self.best[0]:
            self.best = (found, order)
            self.report(self.counted, found)
        return found


Report = Callable[[int, Time], None]
"""Is told the number of replays and the new best time."""


def search(
    replays: Replays,
    servers: Servers,
    limits: Limits,
    stop: Callable[[], bool] = lambda: False,
    report: Report = lambda _count, _time: None,
) -> Found:
    """Return the best order found that keeps `servers` together, within the `limits`.

    The order as given is always replayed, to compare with; where it tears servers apart, so is the
    one that takes them by their first places, which the search begins with then. `replays` is the
    program on the machine; `stop` tells whether to end now; `report` is told the number of replays
    and every new best time.

    Raises ProgramError when the program comes to no end.
    """
    state = _Search(replays, limits, stop, report)
    same = tuple(range(servers.num_places))
    identity = state.time(same)
    if servers.split(same) is None:
        state.best = None
        state.time(flat(servers.blocks))
    bound = ring_bound(replays, servers)
    samples: list[Time] = []
    ended = "settled"
    try:
        rng = random.Random(limits.seed)
        drawn = (servers.random(rng) for _ in range(limits.samples))
        samples.extend(state.time(flat(blocks)) for blocks in drawn)
        if bound is not None:
            state.enough = bound
        if servers.count() <= limits.every:
            ended = "all"
            for every in servers.all():
                state.time(every)
        else:
            _improve(state, servers, rng)
    except _EndError as end:
        ended = str(end)
    least, order = state.best or (identity, flat(servers.blocks))
    return Found(order, least, identity, tuple(samples), bound, state.counted, ended)


def _improve(state: _Search, servers: Servers, rng: random.Random) -> None:
    """Improve the best starts, then shake the best order of all until nothing comes of it."""
    proxy = Proxy(state.replays)
    first = [
        servers.split(order)
        for order in sorted(state.known, key=lambda order: (state.known[order], order))[:CLIMBED]
    ]
    pool: list[Blocks] = [blocks for blocks in first if blocks is not None]
    pool += starts(state.replays, servers, state.limits.seed, state.over)
    timed = sorted({(state.time(flat(blocks)), blocks) for blocks in pool})
    for _, blocks in timed[:CLIMBED]:
        _descend(state, servers, proxy, blocks, rng)
    fruitless = 0
    current, value = _of_best(state, servers)
    while fruitless < ROUNDS:
        least = _of_best(state, servers)[1]
        strength = 2 + fruitless % 4
        other = _descend(state, servers, proxy, shaken(servers, current, rng, strength), rng)
        found = state.time(flat(other))
        fruitless = 0 if found < least else fruitless + 1
        if found <= value or fruitless % STUCK == 0:
            current, value = other, found


def _of_best(state: _Search, servers: Servers) -> tuple[Blocks, Time]:
    value, order = state.best or (0, ())
    return servers.split(order) or servers.blocks, value


def _descend(
    state: _Search, servers: Servers, proxy: Proxy, blocks: Blocks, rng: random.Random
) -> Blocks:
    """Return where moves lead that shorten the replay, or keep it and make the proxy better."""
    value = (state.time(flat(blocks)), int(proxy.of([flat(blocks)])[0]))
    while True:
        near = neighbours(servers, blocks, rng)
        if not near:
            return blocks
        guesses = proxy.of([flat(other) for other in near]).tolist()
        for number in sorted(range(len(near)), key=guesses.__getitem__)[:TRIED]:
            found = (state.time(flat(near[number])), guesses[number])
            if found < value:
                blocks, value = near[number], found
                break
        else:
            return blocks


def neighbours(servers: Servers, blocks: Blocks, rng: random.Random) -> list[Blocks]:
    """Return what the moves from an order lead to: all of them, or some drawn where many are.

    `blocks` is the order, as the places of each of the `servers`; `rng` is where moves are drawn
    from.
    """
    lengths = [len(blocks), *(map(len, blocks) if servers.inside else ())]
    if sum(length * length for length in lengths) * 4 <= LOOKED_AT:
        return [moved(blocks, move) for move in moves(servers, blocks)]
    return [shaken(servers, blocks, rng, 1) for _ in range(LOOKED_AT)]

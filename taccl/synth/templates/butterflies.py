"""AllReduce for small buffers: butterflies in which ranks take turns at the NIC that they share.

Servers, the NICs of a server, and the ranks at a NIC (its *classes*; or any neighbours, which may
share a leaf's uplink) are the axes of a cube; each has a power of two of places, and every bit of a
place is a dimension in which pairs of ranks meet once. A dimension is gone through in one of three
ways:

exchange    both send all they hold and add what comes: one message each, of the whole piece;
halve       each sends the half that the other goes on with, and gets its sum back at the end:
            two messages each, and half as much to carry in all dimensions between them;
fold        one sends what it holds and waits for the sum: two messages, one of each direction, and
            no load on the NIC they share in all dimensions between them; before the NIC
            dimensions, or after those that are halved.

The dimensions between servers are exchanges, as many as there are bits; the classes of one NIC may
go through them at different times, one between servers while the other is inside its server:
where two ranks share a NIC, whole buffers then take no longer than if each had its own. How many
NIC dimensions are halved, what is done with the classes, and after how many of its exchanges each
class goes between servers is tried in all combinations, on a clock for every class; the best are
timed exactly.

Recursive doubling (all exchanged, between servers last) and halving and doubling (all halved)
are the two ends (Thakur, Rabenseifner, Gropp 2005, sections 4.5 and 4.6).
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import combinations_with_replacement
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.model.problem import Problem
from taccl.model.routes import may_leave
from taccl.model.schedule import Decisions, Schedule, retime
from taccl.synth.templates.steps import Links, best_links, bits, servers, shards
from taccl.topology.graph import Rank
from taccl.topology.symmetry import make_group
from taccl.units import Time

SERVER, NIC, CLASS = range(3)
"""Axes of a cube."""

MOST_CLASSES = 8
"""Ranks at one NIC; of more, the combinations are too many."""

MOST_ROWS = 500_000
"""Chunks sent, of all schedules that are timed: each takes 2 to 4 us."""

TIMED, KEPT = 6, 2
"""Ways that are timed besides the best of every kind, and schedules that are returned."""


class Op(NamedTuple):
    """One dimension, gone through in one way.

    Parameters
    ----------
    kind
        ``exchange``, ``halve``, ``fold``, or what undoes the latter: ``double``, ``unfold``.
    axis, bit
        The dimension.
    """

    kind: str
    axis: int
    bit: int


UNDONE: Mapping[str, str] = {"halve": "double", "fold": "unfold"}


class Turn(NamedTuple):
    """An operation and the classes that make it."""

    op: Op
    classes: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Cube:
    """The ranks of a machine as a cube.

    Parameters
    ----------
    problem
        On the machine.
    ranks
        int (servers, NICs, classes).
    links
        Which link to take.
    fastest
        By dimension, axis and bit, the fastest link of those that meet: the clocks go by it.
    """

    problem: Problem
    ranks: NDArray[np.int64]
    links: Links
    fastest: Mapping[tuple[int, int], int] = field(default_factory=dict)

    def bits(self, axis: int) -> list[int]:
        """Return the bits of an axis, ascending."""
        return bits(int(self.ranks.shape[axis]))

    def pairs(self, turn: Turn) -> Iterator[tuple[Rank, Rank]]:
        """Yield the pairs that meet, the one without the bit first; folded ones are out."""
        op = turn.op
        for place in np.ndindex(self.ranks.shape):
            if place[op.axis] & op.bit or place[CLASS] not in turn.classes:
                continue
            if op.kind in ("fold", "unfold") and place[CLASS] & (op.bit - 1):
                continue
            other = [*place]
            other[op.axis] |= op.bit
            yield int(self.ranks[place]), int(self.ranks[tuple(other)])

    def dimensions(self) -> list[tuple[int, int]]:
        """Return the axes with each of their bits."""
        return [(axis, bit) for axis in (SERVER, NIC, CLASS) for bit in self.bits(axis)]

    def meeting(self, axis: int, bit: int) -> list[tuple[Rank, Rank]]:
        """Return the pairs that meet in a dimension, both ways."""
        every = tuple(range(int(self.ranks.shape[CLASS])))
        pairs = list(self.pairs(Turn(Op("exchange", axis, bit), every)))
        return [*pairs, *((b, a) for a, b in pairs)]


def butterflies(
    problem: Problem, over: Callable[[], bool], worth: Time | None = None
) -> list[Schedule]:
    """Return the best schedules of whole messages; none where ranks or links make no cube.

    Parameters
    ----------
    over
        Tells whether to look no further once something is found.
    worth
        Picoseconds; what takes longer by the clocks is not timed.
    """
    found: list[Schedule] = []
    left = MOST_ROWS
    group = make_group(problem.topology, ())
    for cube, turns in _promising(problem, worth):
        sends = _sends(cube, turns)
        if found and over():
            break
        if sends > left:
            continue
        left -= sends
        decisions = _decided(cube, turns)
        if decisions is None:
            continue
        try:
            found.append(retime(problem.collective, group, problem.chunk_size, decisions))
        except ValueError:  # an exchange whose messages wait for each other
            continue
    return sorted(found, key=lambda schedule: schedule.makespan)[:KEPT]


def _promising(problem: Problem, worth: Time | None) -> list[tuple[Cube, Sequence[Turn]]]:
    """Return the ways to be timed: the best of every kind by the clocks, then the best of all.

    The clocks know of the NIC that the ranks of a class share, not of what leads on from there, so
    classes of all sizes are tried, and each way to treat them.
    """
    clocked = sorted(
        (
            (time, cube.ranks.shape[CLASS], kind, cube, turns)
            for cube in _cubes(problem)
            for kind, programs in _ways(cube)
            for time, turns in (_clocked(cube, programs),)
            if worth is None or time <= worth
        ),
        key=lambda way: way[:3],
    )
    first: dict[tuple[int, str], tuple[Cube, Sequence[Turn]]] = {}
    others = []
    for _, classes, kind, cube, turns in clocked:
        if (classes, kind) in first:
            others.append((cube, turns))
        else:
            first[classes, kind] = cube, turns
    return [*first.values(), *others[:TIMED]]


def _cubes(problem: Problem) -> Iterator[Cube]:
    """Yield the ranks as cubes of which all dimensions have links, neighbours in one class."""
    lanes, logical = servers(problem), problem.logical
    asked = logical.symmetry_asked or logical.own_chunks_first
    if problem.collective.name != "allreduce" or lanes is None or asked:
        return
    if 2 * problem.topology.num_ranks * problem.collective.num_chunks > MOST_ROWS:
        return  # even where all is halved
    links, ranks = best_links(problem), np.array(lanes, dtype=np.int64)
    count, size = ranks.shape
    if logical.connections_per_rank is not None or any(n & (n - 1) for n in (count, size)):
        return

    def arrival(link: int) -> Time:
        return problem.topology.arrival(link, problem.chunk_size)

    classes = 1
    while classes <= min(count * size, MOST_CLASSES):
        # Hosts of one rank may share what leads to others as well.
        sides = (count, size // classes, classes) if size > 1 else (count // classes, 1, classes)
        if 0 in sides:
            return
        cube = Cube(problem, ranks.reshape(sides), links)
        meeting = {dim: cube.meeting(*dim) for dim in cube.dimensions()}
        if meeting and all(pair in links for pairs in meeting.values() for pair in pairs):
            yield replace(cube, fastest={
                dim: min((links[pair] for pair in pairs), key=arrival)
                for dim, pairs in meeting.items()
            })  # fmt: skip
        classes *= 2


Programs = tuple[tuple[Op, ...], tuple[tuple[Op, ...], ...], tuple[Op, ...]]
"""What all classes do together, then each by itself (nothing where it is folded), then all."""


def _ways(cube: Cube) -> Iterator[tuple[str, Programs]]:
    """Yield what is done with the classes, and all operations."""
    nics, classes = cube.bits(NIC), cube.bits(CLASS)
    across = [Op("exchange", SERVER, bit) for bit in cube.bits(SERVER)]
    for kind in ("exchange", "halve", "fold") if classes else ("exchange",):
        down = [Op(kind, CLASS, bit) for bit in classes if kind != "exchange"]
        last = [Op(kind, CLASS, bit) for bit in classes if kind == "exchange"]
        acting = 1 if kind == "fold" else int(cube.ranks.shape[CLASS])
        for halved in range(len(nics) + 1):
            halves = [Op("halve", NIC, bit) for bit in nics[:halved]]
            rest = [Op("exchange", NIC, bit) for bit in nics[halved:]]
            for turns in combinations_with_replacement(range(len(rest) + 1), acting):
                own = [
                    (*halves, *rest[:turn], *across, *rest[turn:], *_undone(halves))
                    for turn in turns
                ]
                yield kind, (tuple(down), tuple(own), (*last, *_undone(down)))
                if kind == "fold" and halves:
                    # Leave only a part of a buffer to others: all have halved theirs before.
                    folded = (*halves, *down)
                    alone = (*rest[: turns[0]], *across, *rest[turns[0] :])
                    yield "fold late", (folded, (alone,), tuple(_undone(folded)))


def _undone(ops: Sequence[Op]) -> list[Op]:
    return [op._replace(kind=UNDONE[op.kind]) for op in reversed(ops)]


def _clocked(cube: Cube, programs: Programs) -> tuple[Time, list[Turn]]:
    """Return about how long a way takes, and its operations in the order in which they start."""
    first, own, last = programs
    topology, size = cube.problem.topology, cube.problem.chunk_size
    every = tuple(range(int(cube.ranks.shape[CLASS])))
    part = {c: float(cube.problem.collective.num_chunks) for c in every}
    clock: dict[int, Time] = dict.fromkeys(every, 0)
    nic: Time = 0
    turns: list[Turn] = []

    def start(turn: Turn) -> Time:
        ready = max(clock[c] for c in turn.classes)
        return max(ready, nic) if turn.op.axis == SERVER else ready

    def make(turn: Turn) -> None:
        nonlocal nic
        begin, link = start(turn), cube.fastest[turn.op.axis, turn.op.bit]
        for c in turn.classes:
            part[c] *= 0.5 if turn.op.kind == "halve" else 1
        amount = size * round(part[turn.classes[0]])
        end = begin + topology.arrival(link, amount)
        if turn.op.axis == SERVER:
            edges = [e for e in topology.links.edges_of(link) if topology.edges[e].beta is not None]
            nic = begin + max((topology.busy(link, e, amount) for e in edges), default=0)
        for c in turn.classes:
            part[c] *= 2 if turn.op.kind == "double" else 1
            clock[c] = end
        turns.append(turn)

    for op in first:
        make(Turn(op, every))
    waiting = {c: list(ops) for c, ops in enumerate(own)}
    while any(waiting.values()):
        nexts = [(Turn(ops[0], (c,)), len(ops)) for c, ops in waiting.items() if ops]
        chosen, _ = min(nexts, key=lambda one: (start(one[0]), -one[1], one[0].classes))
        waiting[chosen.classes[0]].pop(0)
        make(chosen)
    for op in last:
        make(Turn(op, every))
    return max(clock.values()), turns


def _sends(cube: Cube, turns: Sequence[Turn]) -> int:
    """Return how many chunks are sent, all messages together."""
    share = dict.fromkeys(range(int(cube.ranks.shape[CLASS])), Fraction(1))
    sent = Fraction(0)
    for turn in turns:
        halved, doubled = turn.op.kind == "halve", turn.op.kind == "double"
        pairs = sum(1 for _ in cube.pairs(turn))
        for c in turn.classes:
            share[c] /= 2 if halved else 1
        both = 1 if turn.op.kind in ("fold", "unfold") else 2
        sent += both * pairs * share[turn.classes[0]]
        for c in turn.classes:
            share[c] *= 2 if doubled else 1
    return int(sent * cube.problem.collective.num_chunks)


def _decided(cube: Cube, turns: Sequence[Turn]) -> Decisions | None:
    """Return all messages in sequence; None where a sketch does not let a chunk take its link."""
    problem = cube.problem
    everything = tuple(range(problem.collective.num_chunks))
    held = {int(rank): everything for rank in cube.ranks.flat}
    rows: list[tuple[int, int, int, bool]] = []
    lands: list[int] = []
    unlanded: dict[int, list[int]] = defaultdict(list)
    message = 0
    for turn in turns:
        for c in turn.classes:
            for row in unlanded.pop(c, ()):
                lands[row] = min(lands[row], len(rows)) if lands[row] else len(rows)
        for chunks, src, dst in list(_messages(cube, turn, held)):
            link = cube.links[src, dst]
            if not all(may_leave(problem, chunk, link) for chunk in chunks):
                return None
            adds = turn.op.kind not in UNDONE.values()
            for chunk in chunks:
                for c in turn.classes:
                    unlanded[c].append(len(rows))
                rows.append((chunk, link, message, adds))
                lands.append(0)
            message += 1
    return Decisions.of(rows, [land or len(rows) for land in lands])


def _messages(
    cube: Cube, turn: Turn, held: dict[Rank, tuple[int, ...]]
) -> Iterator[tuple[tuple[int, ...], Rank, Rank]]:
    """Yield (chunks, from, to) of an operation, and take note of what ranks go on with."""
    kind = turn.op.kind
    for low, high in cube.pairs(turn):
        if kind == "exchange":
            yield held[low], low, high
            yield held[high], high, low
        elif kind == "halve":
            lower, upper = shards(held[low], 2)
            yield upper, low, high
            yield lower, high, low
            held[low], held[high] = lower, upper
        elif kind == "double":
            yield held[low], low, high
            yield held[high], high, low
            held[low] = held[high] = (*held[low], *held[high])
        elif kind == "fold":
            yield held[high], high, low
        else:
            yield held[low], low, high

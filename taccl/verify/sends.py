"""The sends under judgement in columns, with what several rules need to know of them.

These are all sends of a schedule, or one representative of every orbit. A rule that asks what other
sends do at the same chunk and rank, or on the same edge, asks by :attr:`Sends.turned` and
:attr:`Sends.edge_orbit`: where all sends are there, they themselves. Representatives are enough:

Let G be the group that expands the representatives: send (g, i) of the expanded schedule takes
chunk g c(i) over link g l(i), at the times of row i. Multiplying by an element of G maps the
expanded sends onto each other and keeps times, messages and reduce flags; and it keeps, as every
generator is a symmetry of the topology and of the collective, who are sources and targets, what a
link costs and which edges it crosses, moved along. (Links are all paths with the fewest edges, so a
symmetry of the graph moves links onto links; only where there are too many are they cut off, and
then there is nothing to judge by here.) So a rule that asks each send about itself and about what
sends do at other (chunk, rank) pairs and edges is broken somewhere when it is broken at a
representative. What remains is to find, among the representatives, the sends that *some image*
brings to a pair or to an edge. Here G acts freely on ranks and resources:

pairs
    An element that keeps a chunk keeps its owner, so is the identity. Every pair (c, r) is
    therefore moved by just one element to where the owner is the smallest rank of its orbit:
    *home*. Two pairs have one home exactly when one is an image of the other, and just one element
    does that. So the expanded sends that arrive at (c, r) are one image of each row whose arrival
    has the home of (c, r), at that row's time. That chunks are fixed by some permutations of their
    ranks needs no care: no element of G does this.

edges
    The images of a row hold every resource of an orbit once for each of the row's edges in it.
    Two expanded messages meet on a resource exactly when two (row, edge) entries with edges of one
    orbit overlap in time: the element that takes one edge to the other takes the one message to
    where it meets the other. It is another message, as no link has two edges of one orbit, and no
    element but the identity keeps an edge.

**Fans.** What they cost, and whether their switches can do it, is computed anew, arc by arc.
Nothing is taken from the columns of the table but turns and arcs, and nothing from the code that
computed the times.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.collectives import Collective
from taccl.model.schedule import Schedule
from taccl.topology.fans import Fan, wrong_fan
from taccl.topology.graph import LogicalTopology, Topology
from taccl.topology.links import MAX_PATHS
from taccl.topology.symmetry import Group
from taccl.units import Time, exact_us

Finding = tuple[int | None, str]
"""A row of the expanded schedule (None: no one send) and what is wrong with it."""

MAX_FINDINGS = 100
"""How many findings one rule reports: nobody reads a million."""

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Orbits:
    """A group that acts freely, and where it takes the ranks and chunks of a collective.

    The `group` is of symmetries of the topology, each of which maps the `collective` onto itself.
    """

    group: Group
    collective: Collective

    @cached_property
    def images(self) -> Int32:
        """Row g: where element g takes every rank."""
        return self.group.rows

    @cached_property
    def home(self) -> Int64:
        """The one element that takes each rank to the smallest of its orbit."""
        element, rank = np.nonzero(self.images == self.group.rank_orbit)
        elements = np.zeros(len(self.group.rank_orbit), dtype=np.int64)
        elements[rank] = element
        return elements

    @cached_property
    def chunks(self) -> Int64:
        """One chunk of every orbit: those whose owner is the smallest rank of its orbit."""
        return np.flatnonzero((self.home == 0)[self.collective.owner])

    def chunk_images(self, element: Int64, chunk: Int32) -> Int32:
        """Return where elements, one a chunk, take some chunks."""
        if self.collective.blocks:
            return self.collective.turned(chunk, lambda rank: self.images[element, rank])
        there = chunk.copy()
        for number in np.unique(element).tolist():
            rows = element == number
            if number:
                there[rows] = self.collective.image_of(self.images[number], chunk[rows])
        return there

    def element_between(self, edge: int, other: int) -> int:
        """Return the number of the element that takes one resource to another of its orbit."""
        table, action = self.group.topology.edge_table, self.group.action[0]
        fits = action[:, table.tail[edge]] == table.tail[other]
        fits &= action[:, table.head[edge]] == table.head[other]
        found = np.flatnonzero(fits).tolist()
        return next(g for g in found if self.group.edge_image(g)[edge] == other)


def orbits_of(schedule: Schedule) -> Orbits | None:
    """Return by what representatives stand for all sends; None where they may not.

    Raises InputError when a generator is no symmetry of the topology or of the collective.
    """
    group = schedule.group
    for generator in group.generators:
        schedule.collective.require_image(generator)
    # Where two ranks have as many links as are derived at most, some may lack.
    table, beyond = schedule.topology.links, MAX_PATHS - 1
    alike = (table.src[beyond:] == table.src[:-beyond]) & (
        table.dst[beyond:] == table.dst[:-beyond]
    )
    if len(group) == 1 or not group.acts_freely() or alike.any():
        return None
    return Orbits(group, schedule.collective)


class Turned(NamedTuple):
    """One image of every send: element number, and where it takes chunk, source and destination."""

    element: Int64
    chunk: Int32
    src: Int32
    dst: Int32


@dataclass(frozen=True, eq=False)
class Sends:
    """The sends under judgement.

    The `schedule` has the sends of all orbits, or those of representatives, and then `orbits` says
    what they stand for; None: all sends are there. `logical` is what the sketch allows, or None.
    Rows `period` apart are images of each other; None: nothing is known of that.
    """

    schedule: Schedule
    logical: LogicalTopology | None
    orbits: Orbits | None = None
    period: int | None = None

    @property
    def row(self) -> Int64:
        """The row of every leg: a pair of ranks that a send goes from and to, of a link the send.

        What is told of ranks and chunks (`src` to `fed`, but for :attr:`message` and what follows
        it) has an entry for each leg.
        """
        return self.schedule.legs.row

    @property
    def src(self) -> Int32:
        """The rank every leg leaves."""
        return self.schedule.legs.src

    @property
    def dst(self) -> Int32:
        """The rank every leg enters."""
        return self.schedule.legs.dst

    def of_legs(self, column: NDArray[Any]) -> NDArray[Any]:
        """Return a column of sends as one of legs."""
        return column[self.row] if len(self.schedule.fans) else column

    @cached_property
    def chunk(self) -> Int32:
        """The chunk of every leg."""
        return self.of_legs(self.schedule.chunk)

    @cached_property
    def message(self) -> Int64:
        """The message of every send, numbered by ascending batch."""
        return np.unique(self.schedule.batch, return_inverse=True)[1].astype(np.int64)

    @cached_property
    def first(self) -> Int64:
        """The first row of every message."""
        return np.unique(self.schedule.batch, return_index=True)[1].astype(np.int64)

    @cached_property
    def carried(self) -> Int64:
        """How many chunks every message carries."""
        return np.bincount(self.message, minlength=len(self.first)).astype(np.int64)

    @cached_property
    def members(self) -> NDArray[np.bool_]:
        """Row s, column r: whether the collective's rank set s holds rank r."""
        collective = self.schedule.collective
        table = np.zeros((len(collective.rank_sets), collective.num_ranks), dtype=np.bool_)
        for row, ranks in zip(table, collective.rank_sets, strict=True):
            row[list(ranks)] = True
        return table

    def is_source(self, rank: Int32) -> NDArray[np.bool_]:
        """Tell for every leg whether a rank, one a leg, holds its chunk before."""
        return self.members[self.schedule.collective.source_set[self.chunk], rank]

    @cached_property
    def chunks(self) -> Int64:
        """The chunks whose fate tells that of all: one of every orbit, ascending."""
        if self.orbits is not None:
            return self.orbits.chunks
        return np.arange(self.schedule.collective.num_chunks, dtype=np.int64)

    @cached_property
    def turned(self) -> Turned:
        """The image of every leg that moves one of :attr:`chunks`."""
        chunk = self.chunk
        if self.orbits is None:
            return Turned(np.zeros(len(chunk), dtype=np.int64), chunk, self.src, self.dst)
        element = self.orbits.home[self.schedule.collective.owner[chunk]]
        images = self.orbits.images
        there = self.orbits.chunk_images(element, chunk)
        return Turned(element, there, images[element, self.src], images[element, self.dst])

    @cached_property
    def edge_orbit(self) -> Int32:
        """One edge of every edge's orbit."""
        if self.orbits is not None:
            return self.orbits.group.edge_orbit
        return np.arange(len(self.schedule.topology.edges), dtype=np.int32)

    def seen_from(self, rank: Int32, other: Int32) -> Int64:
        """Return one number for each (rank, other), moved to the smallest rank of the orbit."""
        if self.orbits is not None:
            element = self.orbits.home[rank]
            rank, other = self.orbits.images[element, rank], self.orbits.images[element, other]
        return rank.astype(np.int64) * self.schedule.topology.num_ranks + other

    @cached_property
    def sent_key(self) -> Int64:
        """One number for the (chunk, source rank) of every turned send."""
        turned = self.turned
        return turned.chunk.astype(np.int64) * self.schedule.topology.num_ranks + turned.src

    @cached_property
    def arrivals(self) -> tuple[Int64, Int64]:
        """The (chunk, rank) keys of turned arrivals, ascending and then by time, and their rows."""
        turned = self.turned
        key = turned.chunk.astype(np.int64) * self.schedule.topology.num_ranks + turned.dst
        columns = [self.of_legs(self.schedule.end), key]
        if self.period is not None:
            # Which of two arrivals at one time is the first must not depend on the image.
            columns.insert(0, np.arange(len(key)) % max(self.period, 1))
        row = np.lexsort(columns)
        return key[row], row

    @cached_property
    def feeder(self) -> Int64:
        """The row of the first arrival of every send's chunk at the send's source; -1: none."""
        keys, rows = self.arrivals
        if not len(keys):
            return np.zeros(0, dtype=np.int64)
        at = np.minimum(np.searchsorted(keys, self.sent_key), len(keys) - 1)
        return np.where(keys[at] == self.sent_key, rows[at], -1)

    @cached_property
    def fed(self) -> NDArray[np.bool_]:
        """Whether something of a send's chunk has arrived at its source when it starts."""
        ended = self.of_legs(self.schedule.end)[self.feeder] <= self.of_legs(self.schedule.start)
        return np.asarray((self.feeder >= 0) & ended, dtype=np.bool_)

    def name(self, row: int, element: int = 0) -> str:
        """Return how explanations call a send or an image of it: chunk, link and time."""
        schedule = self.schedule
        chunk, link = int(schedule.chunk[row]), int(schedule.link[row])
        if element:
            group = schedule.group
            chunk = int(schedule.collective.image_of(group.rows[element], schedule.chunk[[row]])[0])
            link = group.link_image(element, [link])[0]
        table = schedule.topology.links
        if link >= len(table):
            turn = schedule.topology.vertex_name(int(schedule.fans.turn[link - len(table)]))
            return (
                f"chunk {chunk} on fan {link - len(table)} (turn {turn})"
                f" at {exact_us(int(schedule.start[row]))} us"
            )
        return (
            f"chunk {chunk} on link {link} ({table.src[link]} -> {table.dst[link]})"
            f" at {exact_us(int(schedule.start[row]))} us"
        )

    def expanded_row(self, row: int, element: int) -> int:
        """Return the row of an image of a send in the expanded schedule."""
        return element * len(self.schedule) + row

    def findings(self, wrong: NDArray[np.bool_], why: str) -> Iterator[Finding]:
        """Yield a finding for every send (or leg) where ``wrong`` is true, up to the cap."""
        found = np.flatnonzero(wrong)
        rows = found if len(wrong) == len(self.schedule) else np.unique(self.row[found])
        for row in rows[:MAX_FINDINGS].tolist():
            yield row, f"{self.name(row)} {why}"


@dataclass(frozen=True, slots=True)
class BatchCost:
    """What a batch of fans costs: its `time` from start to end, and how long it `holds` edges."""

    time: Time
    holds: dict[int, Time]


def way(topology: Topology, arcs: tuple[int, ...], turn: int, *, inward: bool) -> tuple[Time, Time]:
    """Return alpha and overhead of the longest way from or to a leaf of a tree, and its turn.

    `arcs` are those of the tree, on which messages go `inward` to the `turn` or away from it. A
    switch between the ends of a way adds the alpha of its engine; the turn does not.
    """
    table, ranks = topology.arcs, topology.num_ranks
    following = defaultdict(list)
    for arc in arcs:
        ends = int(table.src[arc]), int(table.dst[arc])
        following[ends[inward]].append((ends[not inward], arc))
    found = [(0, 0)]
    todo = [(turn, 0, 0)]
    while todo:
        at, alpha, overhead = todo.pop()
        for end, arc in following[at]:
            more = alpha + int(table.alpha[arc]), overhead + int(table.overhead[arc])
            if end < ranks:
                found.append(more)
            else:
                todo.append((end, more[0] + topology.switches[end - ranks].engine.alpha, more[1]))
    return max(alpha for alpha, _ in found), max(overhead for _, overhead in found)


def batch_cost(topology: Topology, size: Fraction, carried: dict[Fan, int]) -> BatchCost:
    """Return what a batch costs that has so many chunks of `size` bytes `carried` by each fan."""
    ranks, table = topology.num_ranks, topology.arcs
    alpha = overhead = 0
    load: dict[int, Fraction] = defaultdict(Fraction)
    for fan, chunks in carried.items():
        into = way(topology, fan.into, fan.turn, inward=True)
        out = way(topology, fan.out, fan.turn, inward=False)
        met = {int(end[arc]) for arc in (*fan.into, *fan.out) for end in (table.src, table.dst)}
        engines = [topology.switches[vertex - ranks].engine for vertex in met if vertex >= ranks]
        latency = into[0] + out[0]
        if fan.turn >= ranks:
            latency += topology.switches[fan.turn - ranks].engine.alpha
        windows = [latency / (e.window[0] * e.window[1]) for e in engines if e.window is not None]
        for arc in (*fan.into, *fan.out):
            for number in table.edges_of(arc):
                edge = topology.edges[number]
                ends = [v - ranks for v in (edge.tail, edge.head) if v >= ranks]
                betas = [
                    topology.switches[v].engine.beta
                    for v in ends
                    if topology.switches[v].is_station
                ]
                rate = max([Fraction(0), *filter(None, (edge.beta, *betas, *windows))])
                load[number] += rate * chunks * size
        alpha, overhead = max(alpha, latency), max(overhead, into[1] + out[1])
    busy = {edge: math.ceil(time) for edge, time in load.items() if time}
    longest = max(busy.values(), default=0)
    if len(carried) > 1:
        busy = dict.fromkeys(busy, longest)
    return BatchCost(alpha + longest, {edge: overhead + time for edge, time in busy.items()})


def batch_costs(sends: Sends) -> dict[int, BatchCost]:
    """Return what each message of fans costs, by its number."""
    schedule, count = sends.schedule, len(sends.schedule.topology.links)
    rows = np.flatnonzero(schedule.link >= count)
    carried: dict[int, Counter[int]] = defaultdict(Counter)
    # Not np.unique(axis=1): numpy makes a TypeError of a time limit that comes while it compares.
    for message, link in zip(
        sends.message[rows].tolist(), schedule.link[rows].tolist(), strict=True
    ):
        carried[message][link - count] += 1
    known: dict[tuple[tuple[int, int], ...], BatchCost] = {}
    costs = {}
    for message, each in carried.items():
        key = tuple(sorted(each.items()))
        if key not in known:
            loads: Counter[Fan] = Counter()
            for fan, number in key:
                loads[schedule.fans[fan]] += number
            known[key] = batch_cost(schedule.topology, schedule.chunk_size, dict(loads))
        costs[message] = known[key]
    return costs


def fan(sends: Sends) -> Iterator[Finding]:
    """Check that every fan is what its switches can do, and that what comes together is added."""
    schedule, count = sends.schedule, len(sends.schedule.topology.links)
    for number, each in enumerate(schedule.fans):
        if wrong := wrong_fan(schedule.topology, each):
            yield None, f"fan {number}: {wrong}"
    adds = np.array([bool(each.into) for each in schedule.fans], dtype=np.bool_)
    rows = np.flatnonzero(schedule.link >= count)
    bare = rows[adds[schedule.link[rows] - count] & ~schedule.reduce[rows]]
    for row in bare[:MAX_FINDINGS].tolist():
        yield row, f"{sends.name(row)} joins several values and does not add them"


def groups(sends: Sends) -> Iterator[Finding]:
    """Check how many trees, and sets of ranks, each switch serves that has a limit."""
    schedule, topology = sends.schedule, sends.schedule.topology
    if not len(schedule.fans):
        return
    count, table = len(topology.links), topology.arcs
    trees: dict[int, set[Fan]] = defaultdict(set)
    served: dict[int, set[frozenset[int]]] = defaultdict(set)
    for number in np.unique(schedule.link[schedule.link >= count] - count).tolist():
        each = schedule.fans[number]
        joins = Counter(table.dst[list(each.into)].tolist())
        splits = Counter(table.src[list(each.out)].tolist())
        ends = (table.src[list(each.into)], table.dst[list(each.out)], [each.turn])
        ranks = frozenset(v for end in ends for v in map(int, end) if v < topology.num_ranks)
        for vertex in {v for v, n in (joins + splits).items() if n > 1 or v == each.turn}:
            trees[vertex].add(each)
            served[vertex].add(ranks)
    for vertex, switch in enumerate(topology.switches, topology.num_ranks):
        for limit, found, what in (
            (switch.trees, trees[vertex], "trees"), (switch.groups, served[vertex], "groups"),
        ):  # fmt: skip
            if limit is not None and len(found) > limit:
                yield None, f"{switch.name} serves {len(found)} {what}, and can {limit}"

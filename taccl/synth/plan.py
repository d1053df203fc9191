"""Moves and what must precede them: a routing without an order yet.

A move is one representative chunk crossing one link. It needs every arrival of its chunk at its
source that was planned before it; where values are summed, an arrival must also not overwrite
what an earlier move still reads. :func:`plan_routes` makes the moves of a routing,
:func:`plan_decisions` those of any decisions.

Which moves may travel as one message (runs of chunks adjacent at both ends) :class:`Adjacency`
tells by the test of :class:`taccl.collectives.slots.Slots`, asked for every image of the
representatives, so that a batch found here is one that the lowering can write as one step.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.collectives.slots import DEFAULT_LAYOUT, Slots, place_chunks
from taccl.model.problem import Problem
from taccl.model.routes import Network, Routes
from taccl.model.schedule import Decisions, message_groups
from taccl.units import Time


class Move(NamedTuple):
    """One representative chunk crossing one link.

    ``needs`` are moves that must have arrived, ``reads_first`` moves that must have started
    before this one ends, ``follows`` moves that must be decided first: a sketch wants them
    started first, or they bring the value that this one adds to.
    """

    chunk: int
    link: int
    reduce: bool
    needs: tuple[int, ...]
    reads_first: tuple[int, ...]
    follows: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Plan:
    """The `moves` of a `problem`, parents before children.

    In `exchanges` are moves that send what their rank holds without what another brings there, by
    that other: the two sides of an exchange name each other.
    """

    problem: Problem
    moves: tuple[Move, ...]
    exchanges: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))

    @cached_property
    def tail_time(self) -> tuple[Time, ...]:
        """For every move, the time from its start to the end of the last that needs it."""
        tail = [self.costs(move.link, 1)[0] for move in self.moves]
        after = [time + rest for time, rest in zip(tail, self.rests, strict=True)]
        for number in range(len(self.moves) - 1, -1, -1):
            for parent in self.moves[number].needs:
                after[parent] = max(after[parent], tail[parent] + after[number])
        return tuple(after)

    @cached_property
    def rests(self) -> Sequence[Time]:
        """For every move, how long who receives it works on it, if it wants the chunk."""
        collective, dst = self.problem.collective, self.problem.topology.links.dst
        tail = collective.tail
        if tail is None:
            return [0] * len(self.moves)
        return [
            int(tail[move.chunk]) * collective.is_target(move.chunk, int(dst[move.link]))
            for move in self.moves
        ]

    @cached_property
    def released(self) -> NDArray[np.int64]:
        """For every move, from when on (ps) its rank has what it has itself of the chunk."""
        collective = self.problem.collective
        chunk = np.array([move.chunk for move in self.moves], dtype=np.int32)
        src = self.problem.topology.links.src[[move.link for move in self.moves]]
        pairs = zip(chunk.tolist(), src.tolist(), strict=True)
        own = np.array([collective.is_source(*pair) for pair in pairs], dtype=np.bool_)
        return np.where(own, collective.own_from(chunk, src), 0)

    def costs(self, link: int, chunks: int) -> tuple[Time, tuple[tuple[int, Time], ...]]:
        """Return (arrival time, (resource orbit, time held)...) of a message on a link."""
        return self.problem.cost(link, chunks)


def plan_decisions(problem: Problem, rows: Sequence[tuple[int, int, bool]]) -> Plan:
    """Return the plan of (chunk, link, reduce) rows given in a valid sequence."""
    table = problem.topology.links
    sources, targets = table.src.tolist(), table.dst.tolist()
    arrived: dict[tuple[int, int], list[int]] = defaultdict(list)
    sent: dict[tuple[int, int], list[int]] = defaultdict(list)
    reduces = problem.collective.reduces
    own = _own_first(problem, rows)
    copied: dict[tuple[int, int], int] = {}
    moves = []
    for number, (chunk, link, reduce) in enumerate(rows):
        src, dst = sources[link], targets[link]
        needs = tuple(arrived[chunk, src])
        earlier = tuple(sent[chunk, dst]) if reduces else ()
        follows = own.get(number, ())
        if reduces and reduce and (chunk, dst) in copied:
            follows = (*follows, copied[chunk, dst])
        elif not reduce:
            copied.setdefault((chunk, dst), number)
        moves.append(Move(chunk, link, reduce, needs, earlier, follows))
        arrived[chunk, dst].append(number)
        sent[chunk, src].append(number)
    return Plan(problem, tuple(moves))


def _own_first(
    problem: Problem, rows: Sequence[tuple[int, int, bool]]
) -> dict[int, tuple[int, ...]]:
    """Return, for foreign chunks that leave a server, the sender's own moves that go first."""
    if not problem.logical.own_chunks_first or problem.collective.reduces:
        return {}
    topology = problem.topology
    table, server, orbit = topology.links, topology.server_of, problem.group.rank_orbit
    own: dict[int, list[int]] = defaultdict(list)
    foreign: dict[int, int] = {}
    for number, (chunk, link, _) in enumerate(rows):
        src, dst = int(table.src[link]), int(table.dst[link])
        if server[src] != server[dst]:
            if int(problem.collective.owner[chunk]) == src:
                own[int(orbit[src])].append(number)
            else:
                foreign[number] = int(orbit[src])
    return {number: tuple(own[sender]) for number, sender in foreign.items()}


def rows_of_routes(network: Network, routes: Routes) -> list[tuple[int, int, bool]]:
    """Return (chunk, link, reduce) rows of a routing in a valid sequence."""
    hops = [
        (demand.chunk, arc.link)
        for demand, arcs in zip(network.demands, routes, strict=True)
        for arc in arcs
    ]
    return rows_of_trees(network.problem, hops, reverse=network.reverse)


def rows_of_trees(
    problem: Problem, hops: Sequence[tuple[int, int]], *, reverse: bool
) -> list[tuple[int, int, bool]]:
    """Return (chunk, link, reduce) rows in a valid sequence of (chunk, link) `hops` of a `problem`.

    Parents come before children. A reduction plays the trees in `reverse`: children before parents.
    Where a rank has no value of its own, the first to arrive is a copy and the others add to it.
    """
    if not reverse:
        return [(chunk, link, False) for chunk, link in hops]
    collective, dst = problem.collective, problem.topology.links.dst
    holds: set[tuple[int, int]] = set()
    summed = []
    for chunk, link in reversed(hops):
        here = (chunk, int(dst[link]))
        summed.append((chunk, link, here in holds or collective.is_source(*here)))
        holds.add(here)
    return summed


def plan_routes(network: Network, routes: Routes) -> Plan:
    """Return the plan of one routing."""
    return plan_decisions(network.problem, rows_of_routes(network, routes))


def rows_of(decisions: Decisions) -> list[tuple[int, int, bool]]:
    """Return the (chunk, link, reduce) rows of decisions, without their batches."""
    return [(chunk, link, reduce) for chunk, link, _, reduce in decisions.rows()]


def in_turn(problem: Problem, rows: Sequence[tuple[int, int, bool]]) -> list[tuple[int, int, bool]]:
    """Return the rows of a reduction, each addition after the copy that it adds to.

    In order of starts, an addition from far away may stand before the copy that arrives first.
    """
    collective, dst = problem.collective, problem.topology.links.dst
    waiting: dict[tuple[int, int], list[tuple[int, int, bool]]] = {}
    begun: set[tuple[int, int]] = set()
    ordered = []
    for row in rows:
        chunk, link, reduce = row
        here = (chunk, int(dst[link]))
        if reduce and here not in begun and not collective.is_source(*here):
            waiting.setdefault(here, []).append(row)
            continue
        begun.add(here)
        ordered += [row, *waiting.pop(here, ())]
    return ordered


Message = tuple[int, ...]
"""Moves that travel together, in the order of their places."""


def adjacent(problem: Problem, decisions: Decisions) -> Decisions:
    """Return decisions whose messages are runs of chunks that are adjacent at both ends.

    What travels together in one collective may not in another: a ReduceScatter keeps its partial
    sums in scratch, and only those that it has; an AllReduce keeps them where all chunks are. The
    `problem` has the symmetries of the `decisions`, which have no exchanges.
    """
    groups = message_groups(decisions.batch)
    if all(len(rows) == 1 for rows in groups):
        return decisions
    adjacency = Adjacency(plan_decisions(problem, rows_of(decisions)))
    batch = np.zeros(len(decisions.batch), dtype=np.int32)
    message = -1
    for rows in groups:
        run: list[int] = []
        for row in rows:
            run.append(row)
            if len(run) == 1 or not adjacency.together(run):
                message, run = message + 1, [row]
            batch[row] = message
    return replace(decisions, batch=batch)


def in_turns(problem: Problem, decisions: Decisions) -> Iterator[Decisions]:
    """Yield the decisions with chunks class by class: by ready time, by tail, and by both.

    An engine that knows nothing of ready times and tails mixes chunks as if all were there; what
    it decides for each chunk is good nevertheless. Of chunks with one ready time and one tail the
    order stays; a message with others is cut. The `problem` has the symmetries of the `decisions`.
    """
    collective, chunk = problem.collective, decisions.chunk
    nothing = np.zeros(len(chunk), dtype=np.int64)
    ready = nothing if collective.ready is None else collective.ready[chunk]
    tail = nothing if collective.tail is None else collective.tail[chunk]
    kind = np.unique(np.stack([ready, tail]), axis=1, return_inverse=True)[1].ravel()
    seen: set[bytes] = set()
    for key in (ready - tail, ready, -tail):
        row = np.lexsort((np.arange(len(chunk)), kind, key))
        if row.tobytes() in seen:
            continue
        seen.add(row.tobytes())
        cut = np.diff(decisions.batch[row], prepend=-1) | np.diff(kind[row], prepend=-1)
        visible_from = None
        if decisions.visible_from is not None:
            # What comes after an arrival's view of its own class, or at the end of the class.
            visible_from = np.empty_like(decisions.visible_from)
            for rows in np.split(row, np.flatnonzero(np.diff(kind[row])) + 1):
                begin = int(np.flatnonzero(row == rows[0])[0]) if len(rows) else 0
                seen_from = np.searchsorted(rows, decisions.visible_from[rows])
                visible_from[begin : begin + len(rows)] = begin + seen_from
        made = Decisions(
            chunk[row], decisions.link[row], (np.cumsum(cut != 0) - 1).astype(np.int32),
            decisions.reduce[row], visible_from, decisions.packs,
        )  # fmt: skip
        yield made if decisions.packs else adjacent(problem, made)


class Adjacency:
    """Where every image of every move reads and writes, with scratch in one of LAYOUTS."""

    def __init__(self, plan: Plan, layout: str = DEFAULT_LAYOUT) -> None:
        self.plan = plan
        self.layout = layout
        problem = plan.problem
        self._chunks: list[list[int]] = []
        self._ends: list[list[tuple[int, int]]] = []
        table = problem.topology.links
        for number, element in enumerate(problem.group.rows):
            image = problem.collective.image(element)
            links = problem.group.link_image(number, [move.link for move in plan.moves])
            self._chunks.append([int(image[move.chunk]) for move in plan.moves])
            self._ends.append([(int(table.src[k]), int(table.dst[k])) for k in links])

    @cached_property
    def slots(self) -> Slots:
        """The places of all chunks under the plan's routes."""
        hops = (
            (chunk, src, dst)
            for chunks, ends in zip(self._chunks, self._ends, strict=True)
            for chunk, (src, dst) in zip(chunks, ends, strict=True)
        )
        ranks = range(self.plan.problem.topology.num_ranks)
        return place_chunks(self.plan.problem.collective, hops, dict.fromkeys(ranks, self.layout))

    @property
    def relays(self) -> bool:
        """Whether any rank has chunks in scratch, so that the layout matters."""
        return any(self.slots.scratch_chunks)

    def together(self, message: Sequence[int]) -> bool:
        """Tell whether all images of these moves, in this order, can travel as one step."""
        moves = self.plan.moves
        arrived = [bool(moves[number].needs) for number in message]
        reduce = moves[message[0]].reduce
        for chunks, ends in zip(self._chunks, self._ends, strict=True):
            src, dst = ends[message[0]]
            if not self.slots.adjacent(
                [chunks[number] for number in message], src, dst, arrived, reduce=reduce
            ):
                return False
        return True

    def buffers(self, one: int, two: int) -> frozenset[str]:
        """Return the buffers in which all images of a move are read right behind those of another.

        Both, first `one` and then `two`, are on one link, in the order of their places.
        """
        found = []
        for chunks, ends in zip(self._chunks, self._ends, strict=True):
            first, second = (
                self.slots.readable(chunks[n], ends[n][0], arrived=bool(self.plan.moves[n].needs))
                for n in (one, two)
            )
            behind = {place._replace(offset=place.offset + 1) for place in first}
            found.append({place.buffer for place in behind & set(second)})
        return frozenset[str].intersection(*map(frozenset, found))

    def runs(self) -> Iterator[Message]:
        """Yield maximal runs of moves on one link of which each pair of neighbours is adjacent."""
        by_link: dict[tuple[int, bool], list[int]] = defaultdict(list)
        for number, move in enumerate(self.plan.moves):
            by_link[move.link, move.reduce].append(number)
        for numbers in by_link.values():
            numbers.sort(key=self._place)
            run = [numbers[0]]
            for number in numbers[1:]:
                if self.together((run[-1], number)):
                    run.append(number)
                else:
                    yield tuple(run)
                    run = [number]
            yield tuple(run)

    @cached_property
    def reaches(self) -> tuple[tuple[Message, tuple[int, ...]], ...]:
        """Every run, and for each move in it where the longest message ends that begins there."""
        found = []
        for run in self.runs():
            stop = len(run) if self.together(run) else 0
            reach = []
            for first in range(len(run)):
                # What lies side by side stays so without its ends.
                stop = max(stop, first + 1)
                while stop < len(run) and self.together(run[first : stop + 1]):
                    stop += 1
                reach.append(stop)
            found.append((run, tuple(reach)))
        return tuple(found)

    def _place(self, number: int) -> tuple[str, int, int]:
        chunk, (src, dst) = self._chunks[0][number], self._ends[0][number]
        held = self.slots.held(chunk, dst)
        if self.plan.moves[number].reduce or held is None:
            read = self.slots.readable(chunk, src, arrived=bool(self.plan.moves[number].needs))
            return (read[0].buffer, read[0].offset, chunk)
        return (held.buffer, held.offset, chunk)

    def pieces(self, longest: int) -> list[Message]:
        """Cut every run into messages of at most so many chunks."""
        messages = []
        for run in self.runs():
            start = 0
            while start < len(run):
                stop = min(start + longest, len(run))
                while stop > start + 1 and not self.together(run[start:stop]):
                    stop -= 1
                messages.append(run[start:stop])
                start = stop
        return messages

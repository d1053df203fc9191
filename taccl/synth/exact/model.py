"""The model of the exact engine: routes, order, roots and messages at once (CP-SAT).

A *flow* is one representative chunk in one phase. A chunk that is only copied has one flow, from
its roots to its targets; one that is only summed has one, from its sources to its root. One that is
summed and then spread has both, and where nothing ties it to its owner, any of its targets may be
the root. Where routes are given, a flow takes all of its links, and only times and messages are
open: that is TACCL's third stage.

A *message* is a chain of chunks on one link, each lying right behind the one before at both ends
(taccl.collectives.slots): in one buffer where they are read, and where copies arrive. Where a chunk
lies in scratch depends on what else is relayed there, so a link of a chain may ask that some chunks
do not come that way. On orbits only places that do not depend on what is relayed count, and must be
neighbours for all images; given routes leave no place open.

Sets        f flows, l links of a flow, r ranks, o resource orbits
Variables   use[f,l] ∈ {0,1}       the flow's chunk takes link l
            start[f,l], end[f,l]   when its message starts and has arrived, in ticks
            lead[f,l] ∈ {0,1}      it is the first chunk of its message (batches only)
            next[f,g,l] ∈ {0,1}    chunk g follows chunk f in one message
            left[f,l]              chunks from f to the end of its message
            avail[f,r]             when the chunk, or the sum of what has come, is at rank r
            root[c,r] ∈ {0,1}      chunk c is summed at rank r (only where that is free)
            depth[f,r]             links between the root and r (only where that matters)
            open[p] ∈ {0,1}        pair p of ranks exchanges anything (only where limited)
            makespan
Minimise    makespan
Subject to  (arrive)      copied: a target that is no root is entered once, others at most once,
                          and only ranks that are entered, and roots, are left
            (leave)       summed: a source that is no root is left once, others at most once, and
                          only if they are entered; only roots, and ranks that are left, are
                          entered
            (causality)   use[f,l]: start ≥ avail[f,src], avail[f,dst] ≥ end
            (turn)        the copied flow of a chunk starts at its root when its sum is there
            (no overlap)  on every resource orbit the messages do not overlap
            (load)        the time they hold a resource is at most the makespan (redundant)
            (own first)   a sender's foreign chunks leave its server after its own, where a sketch
                          says so
            (peers)       distinct peers of a rank within the sketch's limit
            (bound)       makespan ≥ a lower bound proved elsewhere
            (released)    avail at a source is not before it has its own value
            (tail)        use[f,l]: makespan ≥ end + what a target that l enters works afterwards
            (chain)       use[f,l] = lead[f,l] + Σ next[·,f,l];  Σ next[f,·,l] ≤ use[f,l]
            (count)       next[f,g,l]: left[f] = left[g] + 1; no next: left[f] = 1
            (together)    next[f,g,l]: both start at one time and arrive at one time
            (cost)        lead[f,l]: the message lasts what left[f] chunks cost, and holds the
                          resources of its link for as long as they do
            (places)      next[f,g,l]: the conditions under which g lies behind f: in scratch
                          nothing is between them, in the layout that the rank chooses for its own

For data that is copied, and for sums at one root, no schedule of these chunks is faster than the
optimum. For sums that are spread it is the best of all that sum on a tree and spread on a tree.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from taccl.collectives.slots import INPUT, LAYOUTS, OUTPUT, SCRATCH, side_by_side
from taccl.errors import OutOfTimeError
from taccl.model.problem import Problem, reduces_and_spreads
from taccl.model.routes import Network, build_network, connections
from taccl.topology.graph import Rank
from taccl.units import Time

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    from taccl.synth.plan import Adjacency, Plan


@dataclass(frozen=True, slots=True)
class Flow:
    """One representative chunk on its way in one phase.

    It starts at its `roots` and flows to its `ends`, targets without fixed roots; where it is
    `summed`, it flows from its ends, the sources, to a root, and is added up on the way. Exactly
    one of the roots is the root where that is to be `chosen`; else all of them hold the chunk. It
    may use `links`, ascending, with at most `hops` on its way between a root and each rank (None:
    any number); where it is `routed`, it takes all of them: its way is given, only times are open.
    """

    chunk: int
    summed: bool
    roots: tuple[Rank, ...]
    chosen: bool
    ends: frozenset[Rank]
    links: tuple[int, ...]
    hops: dict[Rank, int] | None
    routed: bool = False


@dataclass(frozen=True, eq=False)
class Flows:
    """The `flows` of a problem's representative chunks, and what messages cost.

    Where the routes are given, `places` is what follows from them about neighbours, else None.
    """

    problem: Problem
    flows: tuple[Flow, ...]
    places: "Adjacency | None" = None

    @cached_property
    def links(self) -> tuple[int, ...]:
        """All links that some flow may use, ascending."""
        return tuple(sorted({link for flow in self.flows for link in flow.links}))

    @property
    def size(self) -> int:
        """Pairs of a flow and a link that it may use: the intervals of a model."""
        return sum(len(flow.links) for flow in self.flows)

    def ends_of(self, link: int) -> tuple[Rank, Rank]:
        """Return the source and the destination of a link."""
        table = self.problem.topology.links
        return int(table.src[link]), int(table.dst[link])

    def made(self, chunk: int, rank: Rank) -> Time:
        """Return from when on (ps) a rank has its own value of a chunk; 0 where it has none."""
        collective, column = self.problem.collective, partial(np.array, dtype=np.int32)
        own = collective.own_from(column([chunk]), column([rank]))
        return int(own[0]) * collective.is_source(chunk, rank)

    def rest(self, chunk: int, rank: Rank) -> Time:
        """Return how long (ps) a rank works on a chunk that arrives; 0 where it only passes it."""
        collective = self.problem.collective
        if collective.tail is None:
            return 0
        return int(collective.tail[chunk]) * collective.is_target(chunk, rank)


def flows_of(problem: Problem) -> Flows:
    """Return the flows of a problem.

    Raises NoScheduleError when a chunk can't reach a target.
    """
    logical, collective = problem.logical, problem.collective
    two_ways = reduces_and_spreads(collective)
    networks = [
        build_network(problem, reverse=reverse)
        for reverse in ((True, False) if two_ways else (collective.reduces,))
    ]
    rooted = flows_of_networks(networks)
    # Any rank that wants a sum may be its root if it has a part of it, as in an AllReduce, and no
    # rule of the sketch goes by the chunk's owner. On orbits the image of a root is the root of
    # the image, which any choice keeps.
    free = np.array_equal(collective.source_set, collective.target_set) and not (
        logical.leave_by or logical.max_extra_hops is not None or logical.own_chunks_first
    )
    if not (two_ways and free):
        return rooted
    links = tuple(sorted({arc.link for one in networks for d in one.demands for arc in d.arcs}))
    flows = []
    for flow in rooted.flows:
        ends = collective.targets(flow.chunk)  # the sources as well
        flows.append(
            replace(flow, roots=ends, chosen=True, ends=frozenset(ends), links=links, hops=None)
        )
    return Flows(problem, tuple(flows))


def flows_of_networks(networks: Sequence[Network]) -> Flows:
    """Return the flows of ``networks`` of one problem, rooted at the owners of their chunks."""
    extra = networks[0].problem.logical.max_extra_hops
    flows = [
        Flow(
            demand.chunk, network.reverse, demand.roots, chosen=False,
            ends=frozenset(demand.targets),
            links=tuple(arc.link for arc in demand.arcs),
            hops=None if extra is None else {rank: n + extra for rank, n in demand.hops.items()},
        )
        for network in networks
        for demand in network.demands
        if demand.targets
    ]  # fmt: skip
    return Flows(networks[0].problem, tuple(flows))


def flows_along(places: "Adjacency") -> Flows:
    """Return the flows of a plan whose chunks travel on trees, each with the links that it takes.

    `places` are those of the plan's moves, with scratch in one layout.
    """
    plan = places.plan
    phase = phases(plan)
    links: dict[tuple[int, bool], list[int]] = defaultdict(list)
    for move, summed in zip(plan.moves, phase, strict=True):
        links[move.chunk, summed].append(move.link)
    table, flows = plan.problem.topology.links, []
    for (chunk, summed), taken in links.items():
        first, last = (table.dst, table.src) if summed else (table.src, table.dst)
        roots = {int(first[k]) for k in taken} - {int(last[k]) for k in taken}
        flows.append(
            Flow(
                chunk, summed, tuple(sorted(roots)), chosen=False, ends=frozenset(),
                links=tuple(sorted(taken)), hops=None, routed=True,
            )
        )  # fmt: skip
    return Flows(plan.problem, tuple(flows), places)


def phases(plan: "Plan") -> list[bool]:
    """Return for every move of a plan whether it is on the way to a root: a sum flows that way."""
    if not reduces_and_spreads(plan.problem.collective):
        return [plan.problem.collective.reduces] * len(plan.moves)
    summed = [move.reduce for move in plan.moves]
    for number in range(len(summed) - 1, -1, -1):
        if summed[number]:
            for before in plan.moves[number].needs:
                summed[before] = True
    return summed


class Spot(NamedTuple):
    """Where a chunk may lie at one rank: a buffer, its order there, and whether on arrival.

    ``offset`` is -1 in scratch, where the chunks lie in the order of a layout. ``arrived`` is None
    where the chunk lies there in any case; ``staged`` is true for an own chunk in scratch.
    """

    buffer: str
    offset: int
    chunk: int
    arrived: bool | None
    staged: bool = False


class Pair(NamedTuple):
    """One way for a chunk to lie behind another: the buffer it is read from, and what must hold.

    ``behind`` are (chunk, chunk, rank) that must be neighbours in scratch, ``present`` (chunk,
    rank) that must be there; ``arrivals`` are (flow, rank, whether anything must have arrived).
    """

    first: int
    second: int
    buffer: str
    behind: tuple[tuple[int, int, Rank], ...]
    present: tuple[tuple[int, Rank], ...]
    arrivals: tuple[tuple[int, Rank, bool], ...]


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The pairs of some flows, link by link."""

    flows: Flows

    @cached_property
    def by_link(self) -> dict[tuple[int, bool], tuple[int, ...]]:
        """The flows of every (link, summed) on which a message may save time, ascending."""
        count: dict[tuple[int, bool], list[int]] = defaultdict(list)
        for number, flow in enumerate(self.flows.flows):
            for link in flow.links:
                count[link, flow.summed].append(number)
        return {
            (link, summed): tuple(numbers)
            for (link, summed), numbers in sorted(count.items())
            if saves(self.flows, link, len(numbers))
        }

    @property
    def longest(self) -> int:
        """The most chunks that could share a link."""
        return max(map(len, self.by_link.values()), default=1)

    @cached_property
    def most(self) -> int:
        """No fewer than the pairs of all links, counted without looking at them one by one."""
        if self.flows.places is not None:
            return 2 * self.flows.size
        total = 0
        for (link, summed), numbers in self.by_link.items():
            src, dst = self.flows.ends_of(link)
            scratch = 0
            if len(self.flows.problem.group) == 1:
                chunks = [self.flows.flows[number].chunk for number in numbers]
                relayed = [chunk for chunk in chunks if self._in_scratch(chunk, src)]
                scratch = sum(summed or self._in_scratch(chunk, dst) for chunk in relayed)
            total += 2 * len(numbers) + scratch * scratch
        return total

    def _in_scratch(self, chunk: int, rank: Rank) -> bool:
        return not self.flows.problem.collective.is_target(chunk, rank)

    @cached_property
    def _given(self) -> dict[int, list[Pair]]:
        """The pairs of every link where routes are given: no layout is open any more."""
        places, given = self.flows.places, defaultdict[int, list[Pair]](list)
        if places is None:
            return given
        moves, phase = places.plan.moves, phases(places.plan)
        numbers = {(flow.chunk, flow.summed): n for n, flow in enumerate(self.flows.flows)}
        for run in places.runs():
            for one, two in pairwise(run):
                if phase[one] == phase[two]:
                    first, second = (numbers[moves[n].chunk, phase[n]] for n in (one, two))
                    given[moves[one].link] += [
                        Pair(first, second, buffer, (), (), ())
                        for buffer in sorted(places.buffers(one, two))
                    ]
        return given

    def pairs(self, link: int, numbers: Sequence[int]) -> Iterator[Pair]:
        """Yield every way for one flow's chunk to lie right behind another's on a link."""
        if self.flows.places is not None:
            yield from (pair for pair in self._given[link] if pair.first in numbers)
            return
        flows, (src, dst) = self.flows, self.flows.ends_of(link)
        alone = len(flows.problem.group) == 1
        read = {n: _spots(flows, flows.flows[n], src) for n in numbers}
        read_at: dict[tuple[str, int], list[tuple[int, int, Spot]]] = defaultdict(list)
        for number, spots in read.items():
            for way, spot in enumerate(spots):
                read_at[spot.buffer, spot.offset].append((number, way, spot))
        landing = self._landing(numbers, dst)
        for first in numbers:
            then = landing[first]
            found: list[tuple[int, int, int, Spot, Spot]] = []
            for here, one in enumerate(read[first]):
                if one.buffer == SCRATCH and not alone:
                    continue
                for second, there, two in read_at.get(_after(one), ()):
                    if second in then and second != first:
                        found.append((second, here, there, one, two))
            for second, _, _, one, two in sorted(found, key=lambda entry: entry[:3]):
                pair = self._pair(link, (first, second), (one, two), in_scratch=then[second])
                if pair is not None:
                    yield pair

    def _landing(self, numbers: Sequence[int], dst: Rank) -> dict[int, dict[int, bool]]:
        """Return which flows may land right behind each, and whether that is in scratch."""
        flows, collective = self.flows, self.flows.problem.collective
        if flows.flows[numbers[0]].summed:
            # Both chunks are added to a value that the destination has.
            adds = {n: False for n in numbers if collective.is_source(flows.flows[n].chunk, dst)}
            return {n: adds if n in adds else {} for n in numbers}
        alone = len(flows.problem.group) == 1
        kept = {n: _held(flows, flows.flows[n].chunk, dst) for n in numbers}
        at: dict[tuple[str, int], dict[int, bool]] = defaultdict(dict)
        for number, spot in kept.items():
            if alone or spot.buffer != SCRATCH:
                at[spot.buffer, spot.offset][number] = spot.buffer == SCRATCH
        return {n: at.get(_after(spot), {}) for n, spot in kept.items()}

    def _pair(
        self, link: int, ends: tuple[int, int], spots: tuple[Spot, Spot], *, in_scratch: bool
    ) -> Pair | None:
        """Return two neighbours; None where no layout has them in this order, or not all images."""
        flows, (src, dst) = self.flows, self.flows.ends_of(link)
        chunks = spots[0].chunk, spots[1].chunk
        relayed = in_scratch or spots[0].buffer == SCRATCH
        if relayed and not any(at[chunks[0]] < at[chunks[1]] for at in self._places):
            return None
        if len(flows.problem.group) > 1 and not self._all_images(link, ends, spots[0].buffer):
            return None
        behind = [(*chunks, src)] if spots[0].buffer == SCRATCH else []
        behind += [(*chunks, dst)] if in_scratch else []
        both = list(zip(ends, spots, strict=True))
        return Pair(
            *ends, spots[0].buffer, tuple(behind),
            present=tuple((spot.chunk, src) for _, spot in both if spot.staged),
            arrivals=tuple((n, src, spot.arrived) for n, spot in both if spot.arrived is not None),
        )  # fmt: skip

    @cached_property
    def orders(self) -> dict[str, tuple[int, ...]]:
        """All chunks as they come in each layout, by its name."""
        collective = self.flows.problem.collective
        chunks = sorted({flow.chunk for flow in self.flows.flows})
        return {
            name: tuple(sorted(chunks, key=partial(order, collective)))
            for name, order in LAYOUTS.items()
        }

    @cached_property
    def _places(self) -> tuple[dict[int, int], ...]:
        """Where every chunk comes in each layout."""
        return tuple(
            {chunk: place for place, chunk in enumerate(order)} for order in self.orders.values()
        )

    def _all_images(self, link: int, ends: tuple[int, int], buffer: str) -> bool:
        """Tell whether all images of two chunks are neighbours at both ends of a link's image."""
        collective, first = self.flows.problem.collective, self.flows.flows[ends[0]]
        images, (rows, srcs, dsts) = self._images, self._ends_of_images
        one, two = images[first.chunk], images[self.flows.flows[ends[1]].chunk]
        offset = collective.input_offset if buffer == INPUT else collective.output_offset
        row = rows[link]
        for a, b, src, dst in zip(one, two, srcs[row], dsts[row], strict=True):
            if offset(b, src) != offset(a, src) + 1:
                return False
            if not first.summed and not (
                collective.is_target(a, dst)
                and collective.is_target(b, dst)
                and collective.output_offset(b, dst) == collective.output_offset(a, dst) + 1
            ):
                return False
        return True

    @cached_property
    def _images(self) -> dict[int, list[int]]:
        """Where every symmetry takes each chunk."""
        problem = self.flows.problem
        chunks = sorted({flow.chunk for flow in self.flows.flows})
        rows = [problem.collective.image(element)[chunks] for element in problem.group.rows]
        return dict(zip(chunks, np.array(rows).T.tolist(), strict=True))

    @cached_property
    def _ends_of_images(self) -> tuple[dict[int, int], list[list[int]], list[list[int]]]:
        """The row of every link, and by row its sources and destinations under every symmetry."""
        group, links = self.flows.problem.group, np.array(self.flows.links)
        table = self.flows.problem.topology.links
        images = np.array([group.link_images(number, links) for number in range(len(group))]).T
        rows = {link: row for row, link in enumerate(self.flows.links)}
        return rows, table.src[images].tolist(), table.dst[images].tolist()


def saves(flows: Flows, link: int, most: int) -> bool:
    """Tell whether some message on a link holds a resource for less time than its chunks alone.

    Where none of up to `most` chunks on the `link` does, chunks of `flows` sent one behind the
    other arrive no later.
    """
    _, single = flows.problem.cost(link, 1)
    for chunks in range(2, most + 1):
        _, uses = flows.problem.cost(link, chunks)
        if any(busy < chunks * one for (_, busy), (_, one) in zip(uses, single, strict=True)):
            return True
    return False


def _after(spot: Spot) -> tuple[str, int]:
    """Return where a chunk lies right behind a spot; in scratch nobody knows."""
    return spot.buffer, spot.offset if spot.buffer == SCRATCH else spot.offset + 1


def _spots(flows: Flows, flow: Flow, rank: Rank) -> list[Spot]:
    """Return where a flow's chunk may be read at a rank (:meth:`Slots.readable`)."""
    collective, chunk = flows.problem.collective, flow.chunk
    held = _held(flows, chunk, rank)
    if not collective.is_source(chunk, rank) or (collective.reduces and not flow.summed):
        return [held._replace(arrived=None)]
    original = held._replace(buffer=INPUT, offset=collective.input_offset(chunk, rank))
    if not collective.reduces:
        return [original, held if held.buffer == OUTPUT else held._replace(staged=True)]
    if held.buffer == OUTPUT:
        return [held, original._replace(arrived=False)]
    return [original._replace(arrived=False), held._replace(arrived=True)]


def _held(flows: Flows, chunk: int, rank: Rank) -> Spot:
    collective = flows.problem.collective
    if collective.is_target(chunk, rank):
        return Spot(OUTPUT, collective.output_offset(chunk, rank), chunk, None)
    return Spot(SCRATCH, -1, chunk, None)


MAX_HORIZON = 1 << 40
"""Ticks; beyond it times are rounded up, and nothing is proved."""

Key = tuple[int, int]
"""A flow and a link."""


@dataclass(frozen=True)
class Scale:
    """Picoseconds in a tick, the horizon in ticks, and whether every time is whole ticks."""

    tick: Time
    horizon: int
    exact: bool

    def up(self, time: Time) -> int:
        """Return the ticks of a time."""
        return -(-time // self.tick)


@dataclass
class Variables:
    """The variables of one model, by (flow, link) and by (flow, rank)."""

    makespan: "cp_model.IntVar"
    use: "dict[Key, cp_model.IntVar]" = field(default_factory=dict)
    start: "dict[Key, cp_model.IntVar]" = field(default_factory=dict)
    end: "dict[Key, cp_model.LinearExprT]" = field(default_factory=dict)
    avail: "dict[tuple[int, Rank], cp_model.IntVar]" = field(default_factory=dict)
    root: "dict[tuple[int, Rank], cp_model.IntVar]" = field(default_factory=dict)
    lead: "dict[Key, cp_model.IntVar]" = field(default_factory=dict)
    next: "dict[tuple[int, int, int], cp_model.IntVar]" = field(default_factory=dict)
    left: "dict[Key, cp_model.IntVar]" = field(default_factory=dict)


@dataclass(frozen=True)
class Parts:
    """What the constraints are built from, and what tells whether to give up building."""

    model: "cp_model.CpModel"
    flows: Flows
    x: Variables
    scale: Scale
    intervals: "dict[int, list[cp_model.IntervalVar]]"
    loads: "dict[int, list[cp_model.LinearExprT]]"
    over: Callable[[], bool]

    def look(self) -> None:
        """Look at the clock.

        Raises OutOfTimeError when the model is not worth to be completed.
        """
        if self.over():
            raise OutOfTimeError("the model is not written down in time", fix="raise --time-limit")


def make_scale(flows: Flows, horizon: Time, longest: int) -> Scale:
    """Return ticks in which all durations are whole, where the horizon allows that.

    Durations are those of messages of up to `longest` chunks on the links of `flows`; `horizon` is
    a makespan that is reached already, in picoseconds.
    """
    times: set[Time] = set()
    for column in (flows.problem.collective.ready, flows.problem.collective.tail,
                   flows.problem.collective.late):  # fmt: skip
        times.update(() if column is None else column.tolist())
    for link in flows.links:
        for chunks in range(1, longest + 1):
            duration, uses = flows.problem.cost(link, chunks)
            times.update([duration, *(busy for _, busy in uses)])
    unit = math.gcd(*times) or 1
    tick = max(unit, -(-horizon // MAX_HORIZON))
    return Scale(tick, -(-horizon // tick), tick == unit)


def build(
    flows: Flows,
    scale: Scale,
    floor: Time,
    together: Neighbours | None,
    over: Callable[[], bool] = lambda: False,
) -> Parts:
    """Return the whole model of some `flows`, in the ticks and up to the horizon of a `scale`.

    No makespan is below `floor` picoseconds. Which chunks may travel `together` is given; None:
    each travels alone. Whether to give up is asked all the time: `over`.

    Raises OutOfTimeError when it is over.
    """
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    low = min(-(-floor // scale.tick), scale.horizon)
    x = Variables(model.new_int_var(low, scale.horizon, "makespan"))
    parts = Parts(model, flows, x, scale, defaultdict(list), defaultdict(list), over)
    for number, flow in enumerate(flows.flows):
        parts.look()
        _add_flow(parts, number, flow)
    batched = add_batches(parts, together) if together else set()
    for key, used in x.use.items():
        if key in batched:
            continue
        duration, uses = flows.problem.cost(key[1], 1)
        x.end[key] = x.start[key] + scale.up(duration)
        for orbit, busy in uses:
            held = scale.up(busy)
            interval = model.new_optional_fixed_size_interval_var(x.start[key], held, used, "")
            parts.intervals[orbit].append(interval)
            parts.loads[orbit].append(held * used)
    for number, flow in enumerate(flows.flows):
        parts.look()
        for link in flow.links:
            key, (src, dst) = (number, link), flows.ends_of(link)
            model.add(x.start[key] >= x.avail[number, src]).only_enforce_if(x.use[key])
            model.add(x.avail[number, dst] >= x.end[key]).only_enforce_if(x.use[key])
            rest = scale.up(flows.rest(flow.chunk, dst))
            model.add(x.makespan >= x.end[key] + rest).only_enforce_if(x.use[key])
        if not flow.routed:
            _route(parts, number, flow)
            _depth(parts, number, flow)
    _turn(parts)
    for orbit in sorted(parts.intervals):
        model.add_no_overlap(parts.intervals[orbit])
        model.add(sum(parts.loads[orbit]) <= x.makespan)
    _own_first(parts)
    _peers(parts)
    model.minimize(x.makespan)
    return parts


def _add_flow(parts: Parts, number: int, flow: Flow) -> None:
    model, x, horizon = parts.model, parts.x, parts.scale.horizon
    ranks = {rank for link in flow.links for rank in parts.flows.ends_of(link)}
    for rank in sorted({*flow.roots, *ranks}):
        known = not flow.summed and not flow.chosen and rank in flow.roots
        still = known and not parts.flows.problem.collective.reduces
        made = min(horizon, parts.scale.up(parts.flows.made(flow.chunk, rank)))
        x.avail[number, rank] = model.new_int_var(made, made if still else horizon, "")
        if flow.chosen and rank in flow.roots and (flow.chunk, rank) not in x.root:
            x.root[flow.chunk, rank] = model.new_bool_var("")
    if flow.chosen and flow.summed:
        model.add_exactly_one([x.root[flow.chunk, rank] for rank in flow.roots])
    for link in flow.links:
        x.use[number, link] = model.new_int_var(int(flow.routed), 1, "")
        x.start[number, link] = model.new_int_var(0, horizon, "")


def _is_root(parts: Parts, flow: Flow, rank: Rank) -> "list[cp_model.LiteralT]":
    """Return what is true when a rank is the root: nothing, a literal, or True."""
    if rank not in flow.roots:
        return []
    return [parts.x.root[flow.chunk, rank]] if flow.chosen else [True]


def _route(parts: Parts, number: int, flow: Flow) -> None:
    """Add (arrive), or (leave): the same with links turned round, where all that enter count."""
    model, x = parts.model, parts.x
    near: dict[Rank, list[cp_model.IntVar]] = defaultdict(list)
    far: dict[Rank, list[cp_model.IntVar]] = defaultdict(list)
    ends = {}
    for link in flow.links:
        src, dst = parts.flows.ends_of(link)
        ends[link] = (dst, src) if flow.summed else (src, dst)
        near[ends[link][0]].append(x.use[number, link])
        far[ends[link][1]].append(x.use[number, link])
    for rank in sorted({*far, *flow.ends}):
        joined = [*far[rank], *_is_root(parts, flow, rank)]
        (model.add_exactly_one if rank in flow.ends else model.add_at_most_one)(joined)
    for link, (one, other) in ends.items():
        unused = x.use[number, link].negated()
        if one not in flow.ends:
            model.add_bool_or([unused, *far[one], *_is_root(parts, flow, one)])
        if flow.summed and other not in flow.ends:
            model.add_bool_or([unused, *near[other]])


def _turn(parts: Parts) -> None:
    """Join the two flows of every chunk that is summed and then spread."""
    x, flows = parts.x, parts.flows.flows
    spread = {flow.chunk: n for n, flow in enumerate(flows) if not flow.summed}
    for number, flow in enumerate(flows):
        for rank in flow.roots if flow.summed and flow.chunk in spread else ():
            waits = parts.model.add(x.avail[spread[flow.chunk], rank] >= x.avail[number, rank])
            waits.only_enforce_if(_is_root(parts, flow, rank))


def _depth(parts: Parts, number: int, flow: Flow) -> None:
    """Order the ranks of a way where hops are limited, or where links take no time at all."""
    model, x = parts.model, parts.x
    free = any(parts.flows.problem.cost(link, 1)[0] == 0 for link in flow.links)
    if flow.hops is None and not free:
        return
    ranks = {rank for link in flow.links for rank in parts.flows.ends_of(link)}
    depth = {
        rank: model.new_int_var(0, len(ranks) if flow.hops is None else flow.hops[rank], "")
        for rank in sorted(ranks)
    }
    for link in flow.links:
        src, dst = parts.flows.ends_of(link)
        near, far = (dst, src) if flow.summed else (src, dst)
        model.add(depth[far] >= depth[near] + 1).only_enforce_if(x.use[number, link])


def _own_first(parts: Parts) -> None:
    problem = parts.flows.problem
    if not problem.logical.own_chunks_first or problem.collective.reduces:
        return
    model, x = parts.model, parts.x
    server, orbit = problem.topology.server_of, problem.group.rank_orbit
    latest: dict[int, cp_model.IntVar] = {}
    foreign = []
    for key, use in x.use.items():
        src, dst = parts.flows.ends_of(key[1])
        if server[src] == server[dst]:
            continue
        sender = int(orbit[src])
        if sender not in latest:
            latest[sender] = model.new_int_var(0, parts.scale.horizon, "")
        if src in parts.flows.flows[key[0]].roots:
            model.add(latest[sender] >= x.start[key]).only_enforce_if(use)
        else:
            foreign.append((key, sender))
    for key, sender in foreign:
        model.add(x.start[key] >= latest[sender]).only_enforce_if(x.use[key])


def _peers(parts: Parts) -> None:
    problem = parts.flows.problem
    limit = problem.logical.connections_per_rank
    if limit is None:
        return
    connection = connections(build_network(problem))
    open_ = {n: parts.model.new_bool_var("") for n in sorted(set(connection.values()))}
    for (_, link), use in parts.x.use.items():
        parts.model.add_implication(use, open_[connection[link]])
    table = problem.topology.links
    for rank in sorted(set(problem.group.rank_orbit.tolist())):
        for here, there in ((table.src, table.dst), (table.dst, table.src)):
            peers = {int(there[k]): n for k, n in connection.items() if here[k] == rank}
            parts.model.add(sum(open_[n] for n in peers.values()) <= limit)


_Costs = tuple[tuple[int, ...], Sequence[tuple[int, tuple[int, ...]]]]


def add_batches(parts: Parts, neighbours: Neighbours) -> set[Key]:
    """Add messages of several chunks; return the (flow, link) that they cover."""
    places = _Places(parts, neighbours)
    covered: set[Key] = set()
    for (link, _), numbers in neighbours.by_link.items():
        pairs = list(neighbours.pairs(link, numbers))
        members = sorted({n for pair in pairs for n in (pair.first, pair.second)})
        if members:
            _add_chains(parts, link, members, pairs, places)
            covered |= {(number, link) for number in members}
    return covered


class _Places:
    """Literals for what arrives where, made when they are first asked for."""

    def __init__(self, parts: Parts, neighbours: Neighbours) -> None:
        self._model = parts.model
        self._collective = parts.flows.problem.collective
        self._orders = neighbours.orders
        self._known: dict[tuple[str, int, Rank], cp_model.IntVar] = {}
        self._behind: dict[tuple[int, int, Rank], cp_model.IntVar] = {}
        self._relayed: dict[tuple[str, Rank], tuple[list[int], dict[int, int]]] = {}
        self._gaps: dict[tuple[str, int, Rank], list[cp_model.IntVar]] = defaultdict(list)
        self._layouts: dict[Rank, dict[str, cp_model.IntVar]] = {}
        self._into: dict[tuple[str, int, Rank], list[cp_model.IntVar]] = defaultdict(list)
        self._out: dict[Rank, dict[Rank, dict[int, list[cp_model.IntVar]]]] = {}
        for (number, link), use in parts.x.use.items():
            src, dst = parts.flows.ends_of(link)
            chunk = parts.flows.flows[number].chunk
            self._into["flow", number, dst].append(use)
            self._into["chunk", chunk, dst].append(use)
            self._out.setdefault(src, {}).setdefault(dst, {}).setdefault(chunk, []).append(use)

    def arrived(self, flow: int, rank: Rank) -> "cp_model.IntVar":
        """Return whether anything of a flow gets to a rank."""
        return self._any(("flow", flow, rank), self._into.get(("flow", flow, rank), []))

    def in_scratch(self, chunk: int, rank: Rank) -> "cp_model.IntVar":
        """Return whether a rank has a chunk in scratch: as a relay, or staged among relays."""
        if self._collective.reduces or not self._collective.is_source(chunk, rank):
            return self._any(("chunk", chunk, rank), self._into.get(("chunk", chunk, rank), []))
        staged = ("staged", chunk, rank)
        # Each asking for the reasons makes literals anew.
        reasons = [] if staged in self._known else self._reasons_to_stage(chunk, rank)
        return self._any(staged, reasons)

    def layout(self, rank: Rank, name: str) -> "cp_model.IntVar":
        """Return whether a rank lays out its scratch in one of LAYOUTS."""
        if rank not in self._layouts:
            self._layouts[rank] = {name: self._model.new_bool_var("") for name in self._orders}
            self._model.add_exactly_one(self._layouts[rank].values())
        return self._layouts[rank][name]

    def behind(self, one: int, two: int, rank: Rank) -> "cp_model.IntVar":
        """Return whether a chunk lies right behind another in the scratch of a rank."""
        if (one, two, rank) not in self._behind:
            literal = self._behind[one, two, rank] = self._model.new_bool_var("")
            ways = []
            for name in self._orders:
                place = self._relays(name, rank)[1]
                if place[one] < place[two]:
                    way = self._model.new_bool_var("")
                    self._model.add_implication(way, self.layout(rank, name))
                    if place[two] - place[one] > 1:
                        gap = self._gap(name, place[one], place[two], rank)
                        self._model.add_implication(way, gap)
                    ways.append(way)
            self._model.add_bool_or([literal.negated(), *ways])
        return self._behind[one, two, rank]

    def _relays(self, name: str, rank: Rank) -> tuple[list[int], dict[int, int]]:
        """Return the chunks that a rank may relay in the order of a layout, and their places."""
        if (name, rank) not in self._relayed:
            chunks = [c for c in self._orders[name] if not self._collective.is_target(c, rank)]
            places = {chunk: place for place, chunk in enumerate(chunks)}
            self._relayed[name, rank] = (chunks, places)
        return self._relayed[name, rank]

    def _gap(self, name: str, low: int, high: int, rank: Rank) -> "cp_model.IntVar":
        """Return whether nothing lies between two places that are no neighbours.

        A gap is the next narrower one and one more place: two clauses, however wide it is.
        """
        chunks = self._relays(name, rank)[0]
        gaps = self._gaps[name, low, rank]
        for place in range(low + 1 + len(gaps), high):
            gap = self._model.new_bool_var("")
            self._model.add_implication(gap, self.in_scratch(chunks[place], rank).negated())
            if gaps:
                self._model.add_implication(gap, gaps[-1])
            gaps.append(gap)
        return gaps[high - low - 2]

    def _reasons_to_stage(self, chunk: int, rank: Rank) -> "list[cp_model.IntVar]":
        """Return literals for own and relayed chunks that leave together (slots.place_chunks)."""
        collective, reasons = self._collective, []
        targets = collective.targets(chunk)
        for dst, leaving in self._out.get(rank, {}).items():
            relayed = [
                use
                for other, uses in leaving.items()
                if not collective.is_source(other, rank)
                and collective.targets(other) == targets
                and side_by_side(collective, chunk, other, dst)
                for use in uses
            ]
            for own in leaving.get(chunk, []) if relayed else []:
                both = self._model.new_bool_var("")
                self._model.add_implication(both, own)
                self._model.add_bool_or([both.negated(), *relayed])
                for use in relayed:
                    self._model.add_bool_or([own.negated(), use.negated(), both])
                reasons.append(both)
        return reasons

    def _any(self, key: tuple[str, int, Rank], into: "list[cp_model.IntVar]") -> "cp_model.IntVar":
        if key not in self._known:
            literal = self._model.new_bool_var("")
            self._model.add_bool_or([literal.negated(), *into])
            for use in into:
                self._model.add_implication(use, literal)
            self._known[key] = literal
        return self._known[key]


def _add_chains(
    parts: Parts, link: int, members: list[int], pairs: list[Pair], places: _Places
) -> None:
    model, x = parts.model, parts.x
    before: dict[int, list[cp_model.IntVar]] = defaultdict(list)
    after: dict[int, list[cp_model.IntVar]] = defaultdict(list)
    most = len(members)
    for number in members:
        key = (number, link)
        x.lead[key] = model.new_bool_var("")
        x.left[key] = model.new_int_var(1, most, "")
        x.end[key] = model.new_int_var(0, parts.scale.horizon, "")
    # Which buffer a chunk is read from, where a message could mix several.
    buffers: dict[int, set[str]] = defaultdict(set)
    for pair in pairs:
        buffers[pair.first].add(pair.buffer)
        buffers[pair.second].add(pair.buffer)
    read_from: dict[tuple[int, str], cp_model.IntVar] = {}
    for number in members:
        if len(buffers[number]) > 1:
            own = {b: model.new_bool_var("") for b in sorted(buffers[number])}
            model.add_at_most_one(own.values())
            read_from |= {(number, buffer): literal for buffer, literal in own.items()}
    follows: dict[tuple[int, int], list[cp_model.IntVar]] = defaultdict(list)
    for pair in pairs:
        parts.look()
        joined = model.new_bool_var("")
        follows[pair.first, pair.second].append(joined)
        for one, two, rank in pair.behind:
            model.add_implication(joined, places.behind(one, two, rank))
        for chunk, rank in pair.present:
            model.add_implication(joined, places.in_scratch(chunk, rank))
        for number, rank, yes in pair.arrivals:
            arrived = places.arrived(number, rank)
            model.add_implication(joined, arrived if yes else arrived.negated())
        for number in (pair.first, pair.second):
            if (number, pair.buffer) in read_from:
                model.add_implication(joined, read_from[number, pair.buffer])
    for (first, second), ways in follows.items():
        joined = ways[0]
        if len(ways) > 1:
            joined = model.new_bool_var("")
            model.add_bool_or([joined.negated(), *ways])
        head, next_ = (first, link), (second, link)
        x.next[first, second, link] = joined
        model.add(x.left[head] == x.left[next_] + 1).only_enforce_if(joined)
        model.add(x.start[head] == x.start[next_]).only_enforce_if(joined)
        model.add(x.end[head] == x.end[next_]).only_enforce_if(joined)
        after[first].append(joined)
        before[second].append(joined)
    times = [parts.flows.problem.cost(link, chunks) for chunks in range(1, most + 1)]
    held = [
        (orbit, tuple(parts.scale.up(uses[place][1]) for _, uses in times))
        for place, (orbit, _) in enumerate(times[0][1])
    ]
    costs: _Costs = tuple(parts.scale.up(duration) for duration, _ in times), held
    for number in members:
        parts.look()
        key = (number, link)
        use = x.use[key]
        model.add(sum([x.lead[key], *before[number]]) == use)
        model.add(sum(after[number]) <= use)
        model.add(x.left[key] == 1).only_enforce_if([n.negated() for n in after[number]])
        _cost(parts, key, costs)


def _cost(parts: Parts, key: Key, costs: _Costs) -> None:
    """Give a message that a chunk leads its length in time, on the link and on its resources."""
    model, x, scale = parts.model, parts.x, parts.scale
    lead, left = x.lead[key], x.left[key]
    lasts = _by_count(parts, left, costs[0])
    model.add(x.end[key] == x.start[key] + lasts).only_enforce_if(lead)
    for orbit, busy in costs[1]:
        held = _by_count(parts, left, busy)
        release = model.new_int_var(0, 2 * scale.horizon, "")
        parts.intervals[orbit].append(
            model.new_optional_interval_var(x.start[key], held, release, lead, "")
        )
        # What one more chunk adds, and what a message costs on top: a line below all costs.
        step = min((b - a for a, b in pairwise(busy)), default=busy[0])
        extra = min(time - step * chunks for chunks, time in enumerate(busy, 1))
        parts.loads[orbit].append(step * x.use[key] + extra * lead)


def _by_count(
    parts: Parts, left: "cp_model.IntVar", times: tuple[int, ...]
) -> "cp_model.LinearExpr":
    """Return the time of a message by its number of chunks.

    Times are mostly a line rounded up, which takes one constraint; a table of all counts has a
    literal for each count of each message.
    """
    line = rounded_line(times)
    if line is None:
        found = parts.model.new_int_var(min(times), max(times), "")
        parts.model.add_element(left - 1, times, found)
        return found
    rise, run, offset = line
    if run == 1:
        return offset + rise * left
    found = parts.model.new_int_var(min(times), max(times), "")
    parts.model.add_linear_constraint(run * found - rise * left, offset, offset + run - 1)
    return found


@lru_cache(maxsize=1024)
def rounded_line(times: tuple[int, ...]) -> tuple[int, int, int] | None:
    """Return (rise, run, offset) so that times[n-1] is ceil((rise n + offset) / run) for all n.

    None where there is no such line.
    """
    last = len(times) - 1
    if not last:
        return 0, 1, times[0]
    total = times[-1] - times[0]
    column = np.array(times, dtype=np.int64)
    counts = np.arange(1, len(times) + 1)
    # Of all lines that give these points, the one with the least run has one below their number.
    for run in range(1, last + 1):
        for rise in range(-(-(total - 1) * run // last), (total + 1) * run // last + 1):
            room = run * column - rise * counts
            offset = int(room.min())
            if room.max() - offset < run:
                return rise, run, offset
    return None

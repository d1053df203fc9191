"""Whole trees: one for every chunk, so that the busiest resource is held as little as possible.

Where every rank wants every chunk, Edmonds' theorem says when there are enough trees:

Sets        p phases (a gather; a sum, played backwards), a arcs of p, r resources, S sets of ranks
Variables   x[p,a] >= 0   trees of phase p that cross arc a;  T
Minimise    T
Subject to  (held)     sum over p, a of held[r,a] x[p,a] <= T                    for every r
            (entered)  sum of x[p,a] over arcs a into S >= chunks of p whose root is outside S

Whole x that meet *entered* are what some trees cross, or more. So x is the optimum of the linear
program, whose sets are those that maximum flows find to be entered too rarely, and then whole:
each arc is rounded up, and as long as that leaves the busiest resource held for less, a tree less
crosses one of its arcs, or crosses another arc instead. One maximum flow tells whether an arc
(u, v) can be spared: with the roots of all chunks joined to u, more than all chunks have to come
to v.

Trees are then grown one after the other, arc by arc, always along an arc that what is left can
spare. By Lovász's proof there always is one; of those the one by which a rank is reached first is
taken. Then they are made flat: a rank has a tree from another one where there is room, or two trees
change places before a rank, as long as the later of them arrives earlier.

Other chunks (of a sketch; with symmetries; among members with relays), and all where the linear
program takes too long, take turns instead: each leaves its tree for the cheapest one at prices that
grow with a power of the load of all others, where that makes sum_r (load[r] / most) ** power less;
the power grows until nearly the busiest resource alone counts.

References
----------
J. Edmonds, "Edge-disjoint branchings", 1973. L. Lovász, "On two minimax theorems in graph", 1976
(the proof that is an algorithm). L. Zhao et al., "ForestColl: Throughput-optimal collective
communications on heterogeneous network fabrics", 2024 (such trees for an allgather, with several at
once, and switches split off first; here any resource may be shared). J. Aspnes et al., "On-line
routing of virtual circuits with applications to load balancing and machine scheduling", 1997
(prices that grow with a power).
"""

import math
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from itertools import cycle, product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.errors import NoScheduleError, OutOfTimeError
from taccl.model.routes import Arcs, Wanted
from taccl.prices.packing import Kind, PricingProblem, cheapest, kind_of
from taccl.timing.deadline import Deadline
from taccl.timing.jit import jit

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Phases = Sequence[tuple[Arcs, Wanted]]

FINE = 1 << 20
"""Parts of a tree to which the optimum of the linear program is told to maximum flows."""

CLOSE = 1e-4
"""Part of all trees by which a set may be entered too rarely in the linear program."""

EVENLY = 1.005
"""Times what the busiest resource is held for at least, which is nearly as good."""

WORK = 3e-8
"""Seconds that a maximum flow takes for each pair of ranks, at most."""

FLAT = 1.2e-8
"""Seconds that making trees flat takes for each two of them and each pair of ranks, about."""

INFEASIBLE = 2
"""What scipy says of a linear program without a solution."""

MAX_COUNTED = 600
"""Arcs up to which the linear program is solved where no clock may end it."""

POWERS = (2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Of the load of a resource, for which the trees of single chunks are changed in turn."""

PASSES = 3
"""Through all chunks for each of these."""

NEAR = 0.01
"""Of the cost of an average arc, what one of average latency costs besides."""


def whole_trees(phases: Phases, clock: Deadline, seed: int = 0) -> list[list[Ints]]:
    """Return for each of some `phases` a tree for every representative chunk.

    A tree is its arcs, parents before children. The trees of all phases are under way at once, and
    the busiest resource is held for as little as was found until the `clock` ended it, but for the
    first trees. Chunks that take turns do so in an order by the `seed`.

    Raises NoScheduleError when some target can't be reached.
    """
    if can_be_packed(phases, clock):
        with suppress(OutOfTimeError):
            return _grown(phases, crossings(phases, clock.share(0.5)), clock)
    return _by_prices(phases, clock, seed)


def can_be_packed(phases: Phases, clock: Deadline) -> bool:
    """Tell whether maximum flows can pack the trees of some `phases` until the `clock` ends it.

    All chunks have to go from one rank to all others, along any arcs and none by symmetry; some of
    these hold resources.
    """
    ranks = phases[0][0].problem.topology.num_ranks
    flows = ranks * sum(len(wanted.chunk) for _, wanted in phases)
    return WORK * flows * ranks**2 < clock.left and all(
        len(arcs.problem.group) == 1
        and arcs.held().max(initial=0) > 0
        and wanted.allowed.all()
        and (wanted.roots.sum(axis=1) == 1).all()
        and (wanted.targets.sum(axis=1) == ranks - 1).all()
        for arcs, wanted in phases
    )


@dataclass(frozen=True, eq=False)
class Crossing:
    """The arcs of all phases, one after the other, and what must come along them.

    `ranks` is their number. Of every arc: `tail`, `head` and the `phase`, int64. CSR: arc a holds
    ``held[u]`` picoseconds of resource ``use[u]`` for u in ``start[a] .. start[a+1]-1`` (int64).
    `waiting`, int64 (phases, ranks), counts the chunks by root.
    """

    ranks: int
    tail: Ints
    head: Ints
    phase: Ints
    start: Ints
    use: Ints
    held: Ints
    waiting: Ints

    def loads(self, counts: Ints | Floats) -> Floats:
        """Return picoseconds that each resource is held where `counts` trees cross the arcs."""
        owner = np.repeat(np.arange(len(self.tail)), np.diff(self.start))
        taken = (counts[owner] * self.held).astype(np.float64)
        return np.bincount(self.use, taken, minlength=1).astype(np.float64)

    def room(self, phase: int, counts: Ints) -> Ints:
        """Return from rank to rank, int64 (ranks, ranks), how many trees of a `phase` may cross."""
        room = np.zeros((self.ranks, self.ranks), dtype=np.int64)
        own = self.phase == phase
        np.add.at(room, (self.tail[own], self.head[own]), counts[own])
        return room

    def into(self, phase: int, inside: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which arcs of a `phase` enter a set of ranks, those `inside` (a mask)."""
        into: NDArray[np.bool_] = (self.phase == phase) & ~inside[self.tail] & inside[self.head]
        return into


def crossing_of(phases: Phases) -> Crossing:
    """Return the arcs of some `phases`, with their resources numbered anew."""
    edges = np.unique(np.concatenate([arcs.resources for arcs, _ in phases]))
    lengths = np.concatenate([np.diff(arcs.use_start) for arcs, _ in phases])
    return Crossing(
        phases[0][0].problem.topology.num_ranks,
        np.concatenate([arcs.tail for arcs, _ in phases]).astype(np.int64),
        np.concatenate([arcs.head for arcs, _ in phases]).astype(np.int64),
        np.repeat(np.arange(len(phases)), [len(arcs) for arcs, _ in phases]),
        np.concatenate(([0], np.cumsum(lengths))).astype(np.int64),
        np.concatenate([
            np.searchsorted(edges, arcs.resources)[arcs.use_resource] for arcs, _ in phases
        ]).astype(np.int64),
        np.concatenate([arcs.held() for arcs, _ in phases]),
        np.array([wanted.roots.sum(axis=0) for _, wanted in phases], dtype=np.int64),
    )  # fmt: skip


class Crossings(NamedTuple):
    """How many trees cross each arc of a `crossing`, or fewer.

    There are trees that do: for a part of all chunks as many as `counts`, int64, one an arc, and so
    many `times` these for all. The busiest resource is `held` for so many picoseconds by then.
    """

    crossing: Crossing
    counts: Ints
    times: int
    held: float


def crossings(phases: Phases, clock: Deadline) -> Crossings:
    """Return how many trees of some `phases`, such that :func:`can_be_packed`, cross each arc.

    Of parts that keep the busiest resource about as busy, within ``EVENLY``, it is those for the
    least. Until the `clock` ends it, that resource is held for less.

    Raises NoScheduleError when some rank can't be reached; OutOfTimeError when not even fractions
    of trees were found until then.
    """
    crossing = crossing_of(phases)
    found = fractional(crossing, clock.share(0.5))
    least, every = crossing.loads(found).max(), int(np.gcd.reduce(crossing.waiting, axis=None))
    tried: list[Crossings] = []
    for times in (times for times in range(every, 0, -1) if every % times == 0):
        counts, held = _whole(crossing, found, Fraction(1, times), clock)
        tried.append(Crossings(crossing, counts, times, times * held))
        if times * held <= EVENLY * least or clock.over:
            break
    even = EVENLY * min(one.held for one in tried)
    return next(one for one in tried if one.held <= even)


def least_even(phases: Phases, most: int, clock: Deadline) -> int:
    """Return the fewest pieces of each chunk, up to `most`, whose trees keep resources about even.

    `phases` and the errors are those of :func:`crossings`. The busiest resource is held for hardly
    longer then than with fractions of trees, or else than with any number of pieces that was looked
    at until the `clock` ended it.
    """
    crossing = crossing_of(phases)
    found = fractional(crossing, clock)
    least, held = crossing.loads(found).max(), list[float]()
    while len(held) < most and not (held and clock.over):
        pieces = len(held) + 1
        held.append(_whole(crossing, found, Fraction(pieces), clock)[1] / pieces)
        if held[-1] <= EVENLY * least:
            break
    return 1 + next(place for place, one in enumerate(held) if one <= EVENLY * min(held))


def _whole(
    crossing: Crossing, found: Floats, part: Fraction, clock: Deadline
) -> tuple[Ints, float]:  # fmt: skip
    """Return how many trees for a `part` of all chunks cross each arc, and the most picoseconds.

    As many of the fractions that were `found` cross them, rounded up and then fewer.
    """
    shared = replace(crossing, waiting=(crossing.waiting * part.numerator) // part.denominator)
    counts = np.ceil(found * float(part) - CLOSE).astype(np.int64)
    _raise(shared, counts)
    _lower(shared, counts, clock)
    return counts, float(shared.loads(counts).max())


def fractional(crossing: Crossing, clock: Deadline) -> Floats:
    """Return how many trees cross every arc in the linear program, float64.

    Raises NoScheduleError when some rank of the `crossing` can't be reached; OutOfTimeError when
    the `clock` ended it before.
    """
    from scipy.optimize import linprog
    from scipy.sparse import csr_array, hstack, vstack

    arcs, ranks, unit = len(crossing.tail), crossing.ranks, float(crossing.held.max(initial=1))
    owner = np.repeat(np.arange(arcs), np.diff(crossing.start))
    # An arc without a bandwidth, perhaps the last one, holds no resource.
    resources = len(crossing.loads(np.zeros(arcs)))
    held = csr_array((crossing.held / unit, (crossing.use, owner)), shape=(resources, arcs))
    rows = hstack([held, csr_array(-np.ones((resources, 1)))], format="csr")
    limits, sets = [0.0] * resources, set[tuple[int, bytes]]()
    eyes = np.eye(ranks, dtype=np.bool_)
    rare = [(phase, one) for phase in range(len(crossing.waiting)) for one in (*eyes, *~eyes)]
    counted, late = clock.counted is not None, "trees were not packed in time"
    if counted and arcs > MAX_COUNTED:
        raise OutOfTimeError(late, fix="leave --deterministic out")
    found = np.zeros(arcs)
    while True:
        fresh = []
        for phase, inside in rare:
            key = (phase, inside.tobytes())
            if key not in sets:
                sets.add(key)
                fresh.append(np.append(np.where(crossing.into(phase, inside), -1.0, 0.0), 0.0))
                limits.append(-float(crossing.waiting[phase][~inside].sum()))
        if not fresh:
            return found
        rows = vstack([rows, csr_array(np.array(fresh))], format="csr")
        result = linprog(
            np.append(np.zeros(arcs), 1.0), A_ub=rows, b_ub=limits, method="highs",
            options={} if counted or clock.left == math.inf else {"time_limit": clock.left},
        )  # fmt: skip
        if result.status == INFEASIBLE:
            raise NoScheduleError(
                "some rank can't be reached from another that has data for it",
                fix="add edges, or allow more links in the sketch",
            )
        if result.status != 0:
            raise OutOfTimeError(late, fix="give it more time")
        found = np.maximum(result.x[:-1], 0.0)
        rare = list(_entered_rarely(crossing, found))


def _entered_rarely(crossing: Crossing, found: Floats) -> Iterator[tuple[int, NDArray[np.bool_]]]:
    """Yield sets of ranks that fractional trees enter too rarely, each with its phase."""
    counts = np.round(found * FINE).astype(np.int64)
    for phase, waiting in enumerate(crossing.waiting):
        room, most = crossing.room(phase, counts), int(waiting.sum()) * FINE
        for sink in range(crossing.ranks):
            flow, inside = flow_to(room, waiting * FINE, sink, most)
            if flow < most * (1 - CLOSE):
                yield phase, inside


def _raise(crossing: Crossing, counts: Ints) -> None:
    """Have `counts` of trees enter every set of ranks often enough, and few of them more."""
    loads = crossing.loads(counts)
    for phase, waiting in enumerate(crossing.waiting):
        room, most = crossing.room(phase, counts), int(waiting.sum())
        for sink in range(crossing.ranks):
            while True:
                flow, inside = flow_to(room, waiting, sink, most)
                if flow >= most:
                    break
                into = np.flatnonzero(crossing.into(phase, inside))
                arc = min(into.tolist(), key=lambda one: _most(crossing, loads, one))
                _move(crossing, counts, loads, room, arc, 1)


def _lower(crossing: Crossing, counts: Ints, clock: Deadline) -> None:
    """Have fewer trees, or other arcs, hold the busiest resources, until nothing is won."""
    loads = crossing.loads(counts)
    rooms = [crossing.room(phase, counts) for phase in range(len(crossing.waiting))]
    users = defaultdict[int, list[int]](list)
    for arc in range(len(counts)):
        for use in range(crossing.start[arc], crossing.start[arc + 1]):
            users[int(crossing.use[use])].append(arc)
    while clock.left and _is_lowered(crossing, counts, loads, rooms, users):
        pass


def _is_lowered(
    crossing: Crossing, counts: Ints, loads: Floats, rooms: Sequence[Ints],
    users: dict[int, list[int]],
) -> bool:  # fmt: skip
    """Have a tree less hold one of the busiest resources, in place; return whether it can be."""
    top = float(loads.max())
    busiest = [arc for arc in users[int(loads.argmax())] if counts[arc]]
    tight = []
    for arc in busiest:
        phase = int(crossing.phase[arc])
        spared, inside = _can_spare(crossing, rooms[phase], phase, arc)
        if spared:
            _move(crossing, counts, loads, rooms[phase], arc, -1)
            return True
        tight.append((arc, phase, inside))
    for arc, phase, inside in tight:
        room = rooms[phase]
        _move(crossing, counts, loads, room, arc, -1)
        into = np.flatnonzero(crossing.into(phase, inside)).tolist()
        ways = sorted((_most(crossing, loads, one), one) for one in into if one != arc)
        for least, other in ways:
            if least >= top:
                break
            _move(crossing, counts, loads, room, other, 1)
            # Whatever lacks an entry now lacked one before the other arc had more.
            room[crossing.tail[arc], crossing.head[arc]] += 1
            spared, _ = _can_spare(crossing, room, phase, arc)
            room[crossing.tail[arc], crossing.head[arc]] -= 1
            if spared:
                return True
            _move(crossing, counts, loads, room, other, -1)
        _move(crossing, counts, loads, room, arc, 1)
    return False


def _most(crossing: Crossing, loads: Floats, arc: int) -> float:
    """Return how long the busiest resource of an `arc` is held with a tree more."""
    uses = slice(crossing.start[arc], crossing.start[arc + 1])
    return float((loads[crossing.use[uses]] + crossing.held[uses]).max(initial=0.0))


def _move(
    crossing: Crossing, counts: Ints, loads: Floats, room: Ints, arc: int, trees: int
) -> None:  # fmt: skip
    """Have so many `trees` more cross an `arc`: change `counts`, `loads` and its phase's `room`."""
    uses = slice(crossing.start[arc], crossing.start[arc + 1])
    counts[arc] += trees
    loads[crossing.use[uses]] += trees * crossing.held[uses]
    room[crossing.tail[arc], crossing.head[arc]] += trees


def _can_spare(
    crossing: Crossing, room: Ints, phase: int, arc: int
) -> tuple[bool, NDArray[np.bool_]]:  # fmt: skip
    """Tell whether a tree less may cross an `arc`, and a set that is entered just often enough."""
    waiting = crossing.waiting[phase]
    flow, inside = flow_to(
        room, waiting, int(crossing.head[arc]), int(waiting.sum()) + 1, int(crossing.tail[arc])
    )
    return flow > waiting.sum(), inside


def flow_to(
    room: Ints, waiting: Ints, sink: int, most: int, source: int = -1
) -> tuple[int, NDArray[np.bool_]]:  # fmt: skip
    """Return a flow to rank `sink`, at most `most`, and what lies on its side of the least cut.

    From rank to rank there is `room`, int64 (ranks, ranks), and in every rank so much is `waiting`,
    int64 (ranks), all of which is at hand at rank `source`, too; -1: at none.
    """
    ranks = len(room)
    left = np.zeros((ranks + 1, ranks + 1), dtype=np.int64)
    left[:ranks, :ranks] = room
    left[ranks, :ranks] = waiting
    if source >= 0:
        left[ranks, source] = most
    before = np.empty(ranks + 1, dtype=np.int64)
    flow = _compiled()[0](left, ranks, sink, most, before, np.empty_like(before))
    return flow, before[:ranks] < 0


def push(left: Ints, source: int, sink: int, most: int, before: Ints, queue: Ints) -> int:
    """Send what fits, at most `most`, from a `source` to a `sink`, and return how much.

    `left`, int64 (vertices, vertices), is how much more fits, changed in place. Afterwards `before`
    (int64, a vertex each) is negative where nothing more could come; `queue` is room for as many.
    """
    sent = 0
    while sent < most:
        before[:] = -1
        before[source] = source
        queue[0] = source
        first, last = 0, 1
        while first < last and before[sink] < 0:
            vertex = queue[first]
            first += 1
            for other in range(len(left)):
                if left[vertex, other] > 0 and before[other] < 0:
                    before[other] = vertex
                    queue[last] = other
                    last += 1
        if before[sink] < 0:
            break
        amount, vertex = most - sent, sink
        while vertex != source:
            amount = min(amount, left[before[vertex], vertex])
            vertex = before[vertex]
        vertex = sink
        while vertex != source:
            left[before[vertex], vertex] -= amount
            left[vertex, before[vertex]] += amount
            vertex = before[vertex]
        sent += amount
    return sent


class Growing(NamedTuple):
    """A tree that grows: where ranks have it from, and when.

    `parent` and `at`, int64, are for each rank but the root where it has the tree from, and for
    each rank when, -1: not yet. `banned`, bool (ranks, ranks): between which no more is tried.
    """

    parent: Ints
    at: Ints
    banned: NDArray[np.bool_]


def grow(room: Ints, waiting: Ints, arrival: Ints, tree: Growing, spare: tuple[Ints, Ints]) -> bool:
    """Grow a `tree` by the rank that can be reached first, until it has all; return whether it has.

    `room`, int64 (ranks, ranks), changed in place, is what trees may cross, `waiting` how many of
    them are still to be grown by root, and `arrival` what a message takes from rank to rank.
    `spare` is room for as many entries as ``room`` has, and for two (int64) a rank.
    """
    ranks, total = len(room), 0
    left, (before, queue) = spare[0], (spare[1][0], spare[1][1])
    for rank in range(ranks):
        total += waiting[rank]
    while True:
        tail, head, least = -1, -1, 1 << 62
        for one in range(ranks):
            if tree.at[one] >= 0:
                for other in range(ranks):
                    able = room[one, other] > 0 and not tree.banned[one, other]
                    if able and tree.at[other] < 0 and tree.at[one] + arrival[one, other] < least:
                        tail, head, least = one, other, tree.at[one] + arrival[one, other]
        if tail < 0:
            break
        for one in range(ranks):
            for other in range(ranks):
                left[one, other] = room[one, other]
        for rank in range(ranks):
            left[tail, rank] += waiting[rank] * (rank != tail)
        if push(left, tail, head, total + 1, before, queue) > total:
            room[tail, head] -= 1
            tree.parent[head], tree.at[head] = tail, least
        else:
            tree.banned[tail, head] = True
    return bool(min(tree.at) >= 0)


def lateness(root: int, parent: Ints, arrival: Ints, at: Ints) -> float:
    """Return when a tree arrives last, and a little of when on average.

    `parent` (int64) is where each rank has it from, but for its `root`; `arrival` what a message
    takes from rank to rank. `at`, when each rank has it, is made.
    """
    ranks = len(parent)
    for rank in range(ranks):
        at[rank] = -1
    at[root] = 0
    left, latest, total = ranks - 1, 0, 0.0
    while left:
        for rank in range(ranks):
            if at[rank] < 0 and at[parent[rank]] >= 0:
                at[rank] = at[parent[rank]] + arrival[parent[rank], rank]
                latest = max(latest, at[rank])
                total += at[rank]
                left -= 1
    return latest + total / (100 * ranks)


def is_below(rank: int, other: int, root: int, parent: Ints) -> bool:
    """Tell whether a tree comes to a `rank` by way of an `other`, or is the same.

    `parent` (int64) is where each has it from, but for the `root`.
    """
    while rank not in (other, root):
        rank = parent[rank]
    return rank == other


def flatten(roots: Ints, parents: Ints, room: Ints, arrival: Ints, at: Ints) -> int:
    """Have trees arrive earlier, along the same arcs or those that are spared; return the changes.

    A rank has a tree from another one where there is `room`, or two trees change places before a
    rank, as long as that makes the late ones earlier. The trees have these `roots`, and `parents`
    (int64, a row each) is where ranks have them from. `room`, changed in place, and `arrival` are
    as for :func:`grow`; `at` is room for a number (int64) a rank.
    """
    changes, before = 0, -1
    while changes != before:
        before = changes
        for tree in range(len(roots)):
            root, parent = roots[tree], parents[tree]
            for rank in range(parents.shape[1]):
                if rank == root:
                    continue
                late = lateness(root, parent, arrival, at)
                for other in range(parents.shape[1]):
                    now = parent[rank]
                    if room[other, rank] > 0 and not is_below(other, rank, root, parent):
                        parent[rank] = other
                        found = lateness(root, parent, arrival, at)
                        if found < late:
                            room[other, rank] -= 1
                            room[now, rank] += 1
                            late = found
                            changes += 1
                        else:
                            parent[rank] = now
                for second in range(tree + 1, len(roots)):
                    end, rival = roots[second], parents[second]
                    one, two = parent[rank], rival[rank]
                    if rank == end or one == two or is_below(two, rank, root, parent):
                        continue
                    if is_below(one, rank, end, rival):
                        continue
                    least = late**4 + lateness(end, rival, arrival, at) ** 4
                    parent[rank], rival[rank] = two, one
                    found = lateness(root, parent, arrival, at)
                    if found**4 + lateness(end, rival, arrival, at) ** 4 < least:
                        late = found
                        changes += 1
                    else:
                        parent[rank], rival[rank] = one, two
    return changes


@cache
def _compiled() -> tuple[Callable[..., int], Callable[..., bool], Callable[..., int]]:
    """Return the three loops as machine code, compiled or from the cache on disk."""
    parts = [sys.modules[__name__]]
    return (jit(push, parts, "push"), jit(grow, parts, "grow"), jit(flatten, parts, "flatten"))


def side_by_side(trees: Sequence[Ints]) -> list[Ints]:
    """Return `trees` so that those which share arcs, most of all busy ones, follow one another.

    What takes the same way can make one message then.
    """
    used = Counter(arc for tree in trees for arc in tree.tolist())
    order = sorted(used, key=lambda arc: (-used[arc], arc))
    return sorted(trees, key=lambda tree: [arc not in tree for arc in order])


def _grown(phases: Phases, found: Crossings, clock: Deadline) -> list[list[Ints]]:
    """Return trees of some `phases` that cross arcs as often as was `found` at most.

    They are made flat where the `clock` lets that be.
    """
    crossing, made = found.crossing, list[list[Ints]]()
    for number, (arcs, wanted) in enumerate(phases):
        roots = np.repeat(np.arange(crossing.ranks), crossing.waiting[number] // found.times)
        room = crossing.room(number, found.counts)
        flat = FLAT * len(roots) ** 2 * crossing.ranks**2 < clock.left
        trees = _trees_of(arcs, found.counts[crossing.phase == number], roots, room, flat=flat)
        grown = defaultdict[int, list[Ints]](list)
        for root, tree in zip(roots.tolist(), trees, strict=True):
            grown[root].append(tree)
        # Each part of the chunks takes all of them, in the same order.
        turns = {root: cycle(side_by_side(trees)) for root, trees in grown.items()}
        made.append([next(turns[root]) for root in wanted.roots.argmax(axis=1).tolist()])
    return made


def _trees_of(
    arcs: Arcs, counts: Ints, roots: Ints, room: Ints, *, flat: bool
) -> list[Ints]:  # fmt: skip
    """Return trees from some `roots` that cross each of the `arcs` at most `counts` times.

    They are grown in this order, and then made `flat`. `room` (int64, ranks squared) is the sum of
    the counts between two ranks.
    """
    ranks, arrival = len(room), arcs.arrival()
    between = defaultdict[tuple[int, int], list[int]](list)
    quick = np.full((ranks, ranks), 1 << 60, dtype=np.int64)
    for arc in np.argsort(-arrival, kind="stable").tolist():
        ends = int(arcs.tail[arc]), int(arcs.head[arc])
        between[ends] += [arc] * int(counts[arc])
        quick[ends] = arrival[arc]
    waiting = np.bincount(roots, minlength=ranks)
    spare = np.empty_like(room), np.empty((2, ranks), dtype=np.int64)
    parents, at = np.empty((len(roots), ranks), dtype=np.int64), np.empty(ranks, dtype=np.int64)
    for root, parent in zip(roots.tolist(), parents, strict=True):
        waiting[root] -= 1
        at[:] = np.where(np.arange(ranks) == root, 0, -1)
        growing = Growing(parent, at, np.zeros_like(room, dtype=np.bool_))
        if not _compiled()[1](room, waiting, quick, growing, spare):
            raise AssertionError("a tree misses a rank, which Lovász's proof rules out")
    if flat:
        _compiled()[2](roots, parents, room, quick, at)
    trees = []
    for root, parent in zip(roots.tolist(), parents, strict=True):
        others = [rank for rank in range(ranks) if rank != root]
        tree = np.array([between[int(parent[rank]), rank].pop() for rank in others])
        trees.append(_from_roots(arcs, np.arange(ranks) == root, tree))
    return trees


def _by_prices(phases: Phases, clock: Deadline, seed: int) -> list[list[Ints]]:
    """Return trees that are cheapest at prices that grow with a power of the load.

    The parameters are those of :func:`whole_trees`.

    Raises NoScheduleError when some target can't be reached.
    """
    edges = np.unique(np.concatenate([arcs.resources for arcs, _ in phases]))
    chunks = list[tuple[PricingProblem, Kind, Ints]]()
    count = max(1, len(edges))  # there may be none that any arc holds
    for arcs, wanted in phases:
        pricing = PricingProblem(
            arcs.problem.topology.num_ranks, count, arcs.tail, arcs.head, arcs.use_start,
            np.searchsorted(edges, arcs.resources)[arcs.use_resource].astype(np.int32), arcs.held(),
        )  # fmt: skip
        rows, arrival = range(len(wanted.chunk)), arcs.arrival()
        chunks += ((pricing, kind_of(wanted, row, 1), arrival) for row in rows)
    least = np.ones(count)  # so that an edge without load is worth something
    for pricing in {id(one): one for one, *_ in chunks}.values():
        np.maximum.at(least, pricing.use_resource, pricing.load)
    none = np.zeros(0, dtype=np.int64)
    trees, loads = [none] * len(chunks), np.zeros((len(chunks), count))
    random = np.random.default_rng(seed)
    best, kept = math.inf, trees
    for power, _ in product(POWERS, range(PASSES)):
        if best < math.inf and clock.over:
            break
        total = loads.sum(axis=0)
        for number in random.permutation(len(chunks)).tolist():
            pricing, kind, arrival = chunks[number]
            if not len(kind.targets):
                continue
            others = total - loads[number]
            most = others.max() + least.max()
            costs = pricing.costs(pricing.steps(((others + least) / most) ** power))
            costs += (NEAR * costs.mean() / arrival.mean() * arrival).astype(np.int64)
            _, units = cheapest(pricing, [kind], costs)
            load = others + pricing.loads(units)
            with np.errstate(over="ignore"):  # far above the most, and no better
                new, old = ((way.max(), ((way / most) ** power).sum()) for way in (load, total))
            if not len(trees[number]) or new < old:
                trees[number] = np.flatnonzero(units)
                loads[number], total = load - others, load
        if total.max() < best:
            best, kept = float(total.max()), list(trees)
    made, first = [], 0
    for arcs, wanted in phases:
        last = first + len(wanted.chunk)
        made.append([
            _from_roots(arcs, wanted.roots[n - first], kept[n]) for n in range(first, last)
        ])  # fmt: skip
        first = last
    return made


def _from_roots(arcs: Arcs, roots: NDArray[np.bool_], tree: Ints) -> Ints:
    """Return the arcs of a tree that can be reached, parents before children."""
    there, left, found = roots.copy(), tree, list[Ints]()
    while len(left):
        now = there[arcs.tail[left]] & ~there[arcs.head[left]]
        if not now.any():
            break
        found.append(left[now])
        there[arcs.head[left[now]]] = True
        left = left[~now]
    return np.concatenate(found) if found else left[:0]

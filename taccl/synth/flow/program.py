"""The linear program of engine ``flow``, and the paths that its optimum is made of.

Over orbit representatives; chunks with one source share a commodity (with one target, where there
are fewer of these):

Sets        s commodities, a arcs, v ranks, o resource orbits
Variables   f[s,a] >= 0   chunks of commodity s on arc a;  T
Minimise    T + a little of the time that all chunks travel; or, with T limited, given costs
Subject to  (arrive)    in minus out of f[s] is the demand of s at every rank v but its root
            (capacity)  sum over uses of o of time held * f[s,a] <= T

References
----------
Basu et al.: Efficient all-to-all collective communication schedules for direct-connect topologies
(HPDC 2024), for the source-aggregated program.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.errors import NoScheduleError, OutOfTimeError
from taccl.model.problem import Problem
from taccl.model.routes import Arcs, Wanted, arcs_of, wanted_of
from taccl.timing.deadline import Deadline
from taccl.topology.graph import Rank

if TYPE_CHECKING:
    from scipy.sparse import csc_array, csr_array

Floats = NDArray[np.float64]
Path = tuple[int, ...]
"""Arcs from the root of a commodity to a rank, in order."""

SHORT = 1e-4
"""Of the time that all chunks travel if they share nothing, in the objective: no detours."""

TINY = 1e-6
"""Of a chunk: less than that is no flow."""

MAX_COUNTED = 50_000
"""Variables up to which a program is solved where no clock may end it."""

LARGE = 8000
"""Variables from which an interior point is faster than the simplex method."""


@dataclass(frozen=True)
class Commodity:
    """Chunks that start at one rank, the `root` (or, played backwards, end there).

    `chunks` has by the rank at the other end their rows in :class:`Wanted`; `kind` is the row of
    ``Wanted.allowed`` for them.
    """

    root: Rank
    chunks: Mapping[Rank, tuple[int, ...]]
    kind: int


@dataclass(frozen=True, eq=False)
class FlowInstance:
    """Chunks of a `problem` that each go from one rank to one other, and the `arcs` they may take.

    `wanted` has the representative chunks, and `commodities` those that share a rank: their source,
    or, where these are more, their target. It is the target if `backwards`: arcs then lead from the
    target to the source.
    """

    problem: Problem
    arcs: Arcs
    wanted: Wanted
    commodities: list[Commodity]
    backwards: bool

    @property
    def num_ranks(self) -> int:
        """The number of ranks."""
        return self.problem.topology.num_ranks

    @property
    def tail(self) -> NDArray[np.int32]:
        """Where arcs begin, in the direction of the commodities."""
        return self.arcs.head if self.backwards else self.arcs.tail

    @property
    def head(self) -> NDArray[np.int32]:
        """Where arcs end, in the direction of the commodities."""
        return self.arcs.tail if self.backwards else self.arcs.head

    @cached_property
    def arrival(self) -> Floats:
        """Microseconds from start to arrival of a chunk on every arc."""
        arrival: Floats = self.arcs.arrival() / 1e6
        return arrival

    @cached_property
    def held(self) -> "csc_array":
        """Microseconds (resources, arcs) that a chunk on an arc holds a resource."""
        return self._of_kinds[:, self.arcs.kind]

    @cached_property
    def _of_kinds(self) -> "csc_array":
        """The same by kind of arc."""
        from scipy.sparse import csc_array

        costs = self.arcs.costs()
        found = csc_array(
            (costs.held / 1e6, costs.resource, costs.first),
            shape=(self.arcs.num_resources, len(costs.arrival)), copy=True,
        )  # fmt: skip
        found.sum_duplicates()
        return found

    def uses(self, arc: int) -> tuple[NDArray[np.int32], Floats]:
        """Return the resources that a chunk on an `arc` holds, and for how many microseconds."""
        kind = int(self.arcs.kind[arc])
        held = slice(*self._of_kinds.indptr[kind : kind + 2].tolist())
        return self._of_kinds.indices[held], self._of_kinds.data[held]


class Flow(NamedTuple):
    """An optimum.

    `amounts` has for every commodity the chunks on each arc that it uses; the busiest resource is
    held for `time` microseconds.
    """

    amounts: list[dict[int, float]]
    time: float


class Preference(NamedTuple):
    """Which of many optima is taken.

    `costs`, (commodities, arcs), are of one chunk on an arc; no resource may be held longer than
    `limit` microseconds.
    """

    costs: Floats
    limit: float


def flow_instance(problem: Problem) -> FlowInstance:
    """Return what is to flow in a problem.

    Raises NoScheduleError when some chunk has several targets or sources, or no path.
    """
    collective = problem.collective
    arcs = arcs_of(problem)
    wanted = wanted_of(arcs)
    alone = (wanted.roots.sum(axis=1) == 1) & (wanted.targets.sum(axis=1) <= 1)
    if collective.reduces or not alone.all():
        raise NoScheduleError(
            f"flow does not exist for {collective.name}: its chunks do not each go from one rank"
            " to one other",
            fix="use --engine guided or auto",
        )
    sources, targets = wanted.roots.argmax(axis=1), wanted.targets.argmax(axis=1)
    forwards = _commodities(wanted, sources, targets)
    backwards = _commodities(wanted, targets, sources)
    turned = len(backwards) < len(forwards)
    return FlowInstance(problem, arcs, wanted, backwards if turned else forwards, turned)


def _commodities(
    wanted: Wanted, roots: NDArray[np.int64], ends: NDArray[np.int64]
) -> list[Commodity]:
    groups: dict[tuple[Rank, int], dict[Rank, list[int]]] = defaultdict(lambda: defaultdict(list))
    for row in np.flatnonzero(wanted.targets.any(axis=1)).tolist():
        groups[int(roots[row]), int(wanted.kind[row])][int(ends[row])].append(row)
    return [
        Commodity(root, {rank: tuple(rows) for rank, rows in sorted(group.items())}, kind)
        for (root, kind), group in sorted(groups.items())
    ]


def optimal_flow(
    instance: FlowInstance, clock: Deadline, preference: Preference | None = None
) -> Flow:
    """Return the chunks of every commodity of the `instance` on each arc that it uses.

    The `clock` limits the search; where it counts work, a large program is not tried. Without a
    `preference`, chunks travel as little as they can.

    Raises OutOfTimeError when the program is not solved in time, too large where work is counted,
    or has no flow as the solver tells it. It says so of large ones that have one, too: whether a
    rank can be reached, :func:`taccl.synth.flow.routes.rows_of_fastest_paths` tells.
    """
    from scipy.optimize import linprog

    if not instance.commodities:
        return Flow([], 0.0)
    program, counted = _program(instance), clock.counted is not None
    if counted and len(program.arc) > MAX_COUNTED:
        raise OutOfTimeError(
            f"a flow of {len(program.arc)} variables takes long, and work is counted",
            fix="leave --deterministic out",
        )
    objective, limit = program.objective, np.inf
    if preference is not None:
        costs = preference.costs[program.owner, program.arc]
        objective, limit = np.append(costs, 0.0), preference.limit
    ceiling = np.append(np.full(len(program.arc), np.inf), limit)
    found = linprog(
        objective, A_ub=program.capacity, b_ub=np.zeros(instance.arcs.num_resources),
        A_eq=program.arrive, b_eq=program.demand,
        bounds=np.column_stack((np.zeros(len(objective)), ceiling)),
        method="highs" if len(program.arc) < LARGE else "highs-ipm",
        options={} if counted else {"time_limit": max(0.1, clock.left)},
    )  # fmt: skip
    return _flow_of(program, instance, found.x)


class _Program(NamedTuple):
    """The program in columns: one an arc that a commodity may take, and one for the time.

    `arc` and `owner` have of every column its arc and commodity. The rows of `arrive` and `demand`
    say what every rank keeps of every commodity, those of `capacity` how long resources are held,
    less the time. The `objective` is the time, and a little of what all chunks travel.
    """

    arc: NDArray[np.int64]
    owner: NDArray[np.int64]
    arrive: "csr_array"
    demand: Floats
    capacity: "csr_array"
    objective: Floats


def _program(instance: FlowInstance) -> _Program:
    from scipy.sparse import coo_array, hstack

    commodities, ranks = instance.commodities, instance.num_ranks
    open_arcs = [
        np.flatnonzero(instance.wanted.allowed[one.kind] & (instance.head != one.root))
        for one in commodities
    ]
    arc = np.concatenate(open_arcs)
    owner = np.repeat(np.arange(len(commodities)), [len(some) for some in open_arcs])
    rows = np.concatenate((owner * ranks + instance.head[arc], owner * ranks + instance.tail[arc]))
    signs, columns = np.repeat((1.0, -1.0), len(arc)), np.tile(np.arange(len(arc)), 2)
    shape = (len(commodities) * ranks, len(arc) + 1)
    arrive = coo_array((signs, (rows, columns)), shape=shape).tocsr()
    demand = np.zeros(shape[0])
    kept = np.ones(shape[0], dtype=np.bool_)
    for number, one in enumerate(commodities):
        kept[number * ranks + one.root] = False
        for rank, chunks in one.chunks.items():
            demand[number * ranks + rank] = len(chunks)
    time = np.full((instance.arcs.num_resources, 1), -1.0)
    capacity = hstack((instance.held[:, arc], coo_array(time)), format="csr")
    travel = instance.arrival[arc] * (SHORT / max(float(demand.sum()), 1.0))
    return _Program(arc, owner, arrive[kept], demand[kept], capacity, np.append(travel, 1.0))


def _flow_of(program: _Program, instance: FlowInstance, found: Floats | None) -> Flow:
    if found is None:
        raise OutOfTimeError("the flow was not solved in time", fix="raise --time-limit")
    flows: list[dict[int, float]] = [{} for _ in instance.commodities]
    for number in np.flatnonzero(found[:-1] > TINY).tolist():
        arc = int(program.arc[number])
        flows[int(program.owner[number])][arc] = float(found[number])
    return Flow(flows, float(found[-1]))


def decomposed(
    instance: FlowInstance, flow: Flow
) -> Iterator[tuple[tuple[int, ...], list[tuple[Path, float]]]]:
    """Yield for the chunks of every pair of ranks the paths of the flow, and how many take each.

    The `flow` is an optimum of the `instance`.

    Raises OutOfTimeError when the flow leaves some chunk without a path.
    """
    for one, amounts in zip(instance.commodities, flow.amounts, strict=True):
        left, entering = dict(amounts), defaultdict(list)
        for arc in left:
            entering[int(instance.head[arc])].append(arc)
        for rank, chunks in one.chunks.items():
            found: dict[Path, float] = defaultdict(float)
            open_ = float(len(chunks))
            while open_ > TINY and (path := _widest(instance, entering, left, (one.root, rank))):
                amount = min(open_, *(left[arc] for arc in path))
                for arc in path:
                    left[arc] -= amount
                found[path] += amount
                open_ -= amount
            if not found:
                raise OutOfTimeError("the flow was not solved in time", fix="raise --time-limit")
            yield chunks, sorted(found.items(), key=lambda one: -one[1])


def _widest(
    instance: FlowInstance,
    entering: Mapping[Rank, list[int]],
    left: dict[int, float],
    ends: tuple[Rank, Rank],
) -> Path:
    """Return a path between two ends along the widest arcs that enter each rank; () if none."""
    root, rank = ends
    path: list[int] = []
    place = {rank: 0}
    while rank != root:
        options = [arc for arc in entering.get(rank, ()) if left[arc] > TINY / 10]
        if not options:
            return ()
        path.append(max(options, key=lambda arc: (left[arc], -arc)))
        rank = int(instance.tail[path[-1]])
        if rank in place:  # flow in a cycle serves nobody
            cycle = path[place[rank] :]
            least = min(left[arc] for arc in cycle)
            for arc in cycle:
                left[arc] -= least
            del path[place[rank] :]
            place = {other: at for other, at in place.items() if at <= place[rank]}
        place[rank] = len(path)
    return tuple(reversed(path))

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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.errors import NoScheduleError, OutOfTimeError
from taccl.model.arcs import Arcs, Wanted
from taccl.topology.graph import Rank

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Floats = NDArray[np.float64]
Way = tuple[int, ...]
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
    """Chunks that start at one rank (or, turned round, end at one).

    Parameters
    ----------
    root
        The rank they share.
    chunks
        By the rank at the other end, their rows in :class:`Wanted`.
    kind
        The row of ``Wanted.allowed`` for them.
    """

    root: Rank
    chunks: Mapping[Rank, tuple[int, ...]]
    kind: int


class Flow(NamedTuple):
    """An optimum.

    Parameters
    ----------
    amounts
        For every commodity the chunks on each arc that it uses.
    time
        The microseconds that the busiest resource is held.
    """

    amounts: list[dict[int, float]]
    time: float


class Wish(NamedTuple):
    """Which of many optima is wanted.

    Parameters
    ----------
    costs
        (commodities, arcs): of one chunk on an arc.
    limit
        The microseconds that no resource may be held longer than.
    """

    costs: Floats
    limit: float


class Net:
    """Arcs in the direction of the commodities, and what they cost in microseconds."""

    def __init__(self, arcs: Arcs, *, backwards: bool) -> None:
        self.arcs = arcs
        self.tail, self.head = (arcs.head, arcs.tail) if backwards else (arcs.tail, arcs.head)
        self.num_ranks = arcs.problem.topology.num_ranks
        self.user = np.repeat(np.arange(len(arcs)), np.diff(arcs.use_start))
        self.held = arcs.held() / 1e6
        self.arrival = arcs.arrival() / 1e6

    def uses(self, arc: int) -> Iterator[tuple[int, float]]:
        """Yield the resources of an arc and how long a chunk holds them."""
        for use in range(int(self.arcs.use_start[arc]), int(self.arcs.use_start[arc + 1])):
            yield int(self.arcs.use_resource[use]), float(self.held[use])


def commodities_of(wanted: Wanted, *, turned: bool) -> list[Commodity]:
    """Return the chunks by their source, or (turned) by their target."""
    groups: dict[tuple[Rank, int], dict[Rank, list[int]]] = {}
    for row in np.flatnonzero(wanted.targets.any(axis=1)).tolist():
        root, target = int(wanted.roots[row].argmax()), int(wanted.targets[row].argmax())
        if turned:
            root, target = target, root
        group = groups.setdefault((root, int(wanted.kind[row])), {})
        group.setdefault(target, []).append(row)
    return [
        Commodity(root, {rank: tuple(rows) for rank, rows in sorted(ends.items())}, kind)
        for (root, kind), ends in sorted(groups.items())
    ]


def optimal_flow(
    network: Net,
    wanted: Wanted,
    commodities: Sequence[Commodity],
    seconds: float | None,
    wish: Wish | None = None,
) -> Flow:
    """Return the chunks of every commodity on each arc that it uses.

    Parameters
    ----------
    seconds
        For the search; None: work is counted, and a large program is not tried.
    wish
        Which optimum is wanted; None: one in which chunks travel little.

    Raises
    ------
    NoScheduleError
        When some rank can't be reached.
    OutOfTimeError
        When the program is not solved in time, or too large where work is counted.
    """
    from scipy.optimize import linprog

    program = _program(network, wanted, commodities)
    if seconds is None and len(program.arc) > MAX_COUNTED:
        raise OutOfTimeError(
            f"a flow of {len(program.arc)} variables takes long, and work is counted",
            fix="leave --deterministic out",
        )
    if wish is None:
        objective, most = program.objective, np.inf
    else:
        costs = wish.costs[program.owner, program.arc]
        objective, most = np.append(costs, 0.0), wish.limit
    ceiling = np.append(np.full(len(program.arc), np.inf), most)
    found = linprog(
        objective, A_ub=program.capacity, b_ub=np.zeros(network.arcs.num_resources),
        A_eq=program.arrive, b_eq=program.demand,
        bounds=np.column_stack((np.zeros(len(objective)), ceiling)),
        method="highs" if len(program.arc) < LARGE else "highs-ipm",
        options={} if seconds is None else {"time_limit": max(0.1, seconds)},
    )  # fmt: skip
    return _flow_of(program, commodities, found.status, found.x)


def whole_flow(
    network: Net,
    wanted: Wanted,
    commodities: Sequence[Commodity],
    seconds: float | None,
    nodes: int | None = None,
) -> Flow:
    """Return a flow of whole chunks, the best that is found in some time.

    Parameters
    ----------
    seconds, nodes
        For the search, and of its tree; None: any number.

    Raises
    ------
    NoScheduleError
        When some rank can't be reached.
    OutOfTimeError
        When none is found in time.
    """
    from scipy.optimize import LinearConstraint, milp

    program = _program(network, wanted, commodities)
    found = milp(
        program.objective,
        integrality=np.append(np.ones(len(program.arc)), 0),
        constraints=[
            LinearConstraint(program.capacity, ub=0.0),
            LinearConstraint(program.arrive, program.demand, program.demand),
        ],
        options={
            "mip_rel_gap": 1e-5,
            **({} if seconds is None else {"time_limit": max(0.1, seconds)}),
            **({} if nodes is None else {"node_limit": nodes}),
        },
    )  # fmt: skip
    return _flow_of(program, commodities, found.status, found.x)


class _Program(NamedTuple):
    """The program in columns: one an arc that a commodity may take, and one for the time.

    Parameters
    ----------
    arc, owner
        Of every column its arc and commodity.
    arrive, demand
        What every rank keeps of every commodity.
    capacity
        How long resources are held, less the time.
    objective
        The time, and a little of what all chunks travel.
    """

    arc: NDArray[np.int64]
    owner: NDArray[np.int64]
    arrive: "csr_array"
    demand: Floats
    capacity: "csr_array"
    objective: Floats


def _program(network: Net, wanted: Wanted, commodities: Sequence[Commodity]) -> _Program:
    from scipy.sparse import coo_array

    open_arcs = [
        np.flatnonzero(wanted.allowed[one.kind] & (network.head != one.root)) for one in commodities
    ]
    counts = [len(some) for some in open_arcs]
    arc = np.concatenate(open_arcs)
    owner = np.repeat(np.arange(len(commodities)), counts)
    columns = np.arange(len(arc))
    ranks = network.num_ranks
    rows = np.concatenate((owner * ranks + network.head[arc], owner * ranks + network.tail[arc]))
    signs = np.concatenate((np.ones(len(arc)), -np.ones(len(arc))))
    shape = (len(commodities) * ranks, len(arc) + 1)
    arrive = coo_array((signs, (rows, np.concatenate((columns, columns)))), shape=shape).tocsr()
    demand = np.zeros(shape[0])
    kept = np.ones(shape[0], dtype=np.bool_)
    for number, one in enumerate(commodities):
        kept[number * ranks + one.root] = False
        for rank, chunks in one.chunks.items():
            demand[number * ranks + rank] = len(chunks)
    uses = np.diff(network.arcs.use_start)[arc]
    at = np.repeat(network.arcs.use_start[:-1][arc], uses) + _counting(uses)
    column = np.append(np.repeat(columns, uses), np.full(network.arcs.num_resources, len(arc)))
    resource = np.append(
        network.arcs.use_resource[at], np.arange(network.arcs.num_resources, dtype=np.int32)
    )
    time_held = np.append(network.held[at], np.full(network.arcs.num_resources, -1.0))
    capacity = coo_array(
        (time_held, (resource, column)), shape=(network.arcs.num_resources, len(arc) + 1)
    ).tocsr()
    travel = network.arrival[arc] * (SHORT / max(float(demand.sum()), 1.0))
    return _Program(
        arc, owner, arrive[kept], demand[kept], capacity, np.append(travel, 1.0)
    )  # fmt: skip


def _flow_of(
    program: _Program, commodities: Sequence[Commodity], status: int, found: Floats | None
) -> Flow:
    if status == 2:
        raise NoScheduleError(
            "some chunk can't be served: no allowed path",
            fix="allow more links in the sketch, or join these ranks in the topology",
        )
    if found is None:
        raise OutOfTimeError("the flow was not solved in time", fix="raise --time-limit")
    flows: list[dict[int, float]] = [{} for _ in commodities]
    for number in np.flatnonzero(found[:-1] > TINY).tolist():
        arc = int(program.arc[number])
        flows[int(program.owner[number])][arc] = float(found[number])
    return Flow(flows, float(found[-1]))


def _counting(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return 0 .. n-1 for every n of some counts."""
    ends = np.cumsum(counts)
    numbers: NDArray[np.int64] = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(
        ends - counts, counts
    )
    return numbers


def peeled(
    network: Net, commodities: Sequence[Commodity], amounts: Sequence[dict[int, float]]
) -> Iterator[tuple[tuple[int, ...], list[tuple[Way, float]]]]:
    """Yield for the chunks of every pair of ranks the ways of the flow, and how many take each."""
    for one, left in zip(commodities, amounts, strict=True):
        entering: dict[Rank, dict[int, float]] = defaultdict(dict)
        for arc, amount in left.items():
            entering[int(network.head[arc])][arc] = amount
        for rank, chunks in one.chunks.items():
            found: dict[Way, float] = defaultdict(float)
            open_ = float(len(chunks))
            while open_ > TINY:
                way = _widest(network, entering, rank, one.root)
                if not way:
                    break
                amount = min(open_, *(entering[int(network.head[arc])][arc] for arc in way))
                for arc in way:
                    _take(entering[int(network.head[arc])], arc, amount)
                found[way] += amount
                open_ -= amount
            if not found:
                raise OutOfTimeError("the flow was not solved in time", fix="raise --time-limit")
            yield chunks, sorted(found.items(), key=lambda one: -one[1])


def _take(entering: dict[int, float], arc: int, amount: float) -> None:
    entering[arc] -= amount
    if entering[arc] <= TINY / 10:
        del entering[arc]


def _widest(network: Net, entering: Mapping[Rank, dict[int, float]], rank: Rank, root: Rank) -> Way:
    """Return a way from the root to a rank along the widest arcs that enter each rank."""
    way: list[int] = []
    place = {rank: 0}
    while rank != root:
        options = entering.get(rank)
        if not options:
            return ()
        arc = max(options, key=lambda one: (options[one], -one))
        way.append(arc)
        rank = int(network.tail[arc])
        if rank in place:  # flow in a ring serves nobody
            ring = way[place[rank] :]
            least = min(entering[int(network.head[one])][one] for one in ring)
            for one in ring:
                _take(entering[int(network.head[one])], one, least)
            del way[place[rank] :]
            for other in [other for other, at in place.items() if at > place[rank]]:
                del place[other]
        place[rank] = len(way)
    return tuple(reversed(way))

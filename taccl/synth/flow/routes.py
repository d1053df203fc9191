"""Routes of whole chunks for engine ``flow``: of the flow's first optimum, and of others.

Many flows are optimal. One sends every chunk the shortest way. One lets each rank's chunks leave
by the nearest of the busiest links, so that neighbours travel together in few messages. Others
may cross between two servers by a few doors only, as two- and three-step algorithms do, which
opens fewer connections and makes longer messages still.

Routes without a linear program: every chunk on a fastest way, the least busy of these.

For what is too large to be solved as a flow in time.

Whole chunks on the paths of a flow: one path for each, and the busiest resource kept light.

Paths that the flow gives whole chunks are taken. For the others a small program chooses among the
flow's paths.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from taccl.errors import NoScheduleError, OutOfTimeError
from taccl.model.arcs import Wanted, arcs_of, wanted_of
from taccl.model.problem import Problem
from taccl.synth.flow.program import (
    TINY,
    Commodity,
    Floats,
    Flow,
    Net,
    Way,
    Wish,
    commodities_of,
    optimal_flow,
    peeled,
    whole_flow,
)
from taccl.timing.deadline import Deadline
from taccl.topology.graph import Rank
from taccl.topology.symmetry import make_group


def shortest_ways(
    network: Net, allowed: NDArray[np.bool_], commodities: list[Commodity]
) -> list[tuple[int, Way]]:
    """Return one fastest way for every chunk, chosen so that busy resources stay light.

    Parameters
    ----------
    allowed
        Which arcs chunks may take, by the commodities' kind.

    Raises
    ------
    NoScheduleError
        When some rank can't be reached.
    """
    load = np.zeros(network.arcs.num_resources)
    uses = [tuple(network.uses(arc)) for arc in range(len(network.arcs))]
    chosen: list[tuple[int, Way]] = []
    for one in commodities:
        entering = _entering(network, allowed[one.kind], one.root)
        for rank, chunks in one.chunks.items():
            if rank not in entering:
                raise NoScheduleError(
                    "some chunk can't be served: no allowed path",
                    fix="allow more links in the sketch, or join these ranks in the topology",
                )
            for chunk in chunks:
                way: list[int] = []
                at = rank
                while at != one.root:
                    arc = min(
                        entering[at],
                        key=lambda arc: max((load[k] + held for k, held in uses[arc]), default=0.0),
                    )
                    way.append(arc)
                    at = int(network.tail[arc])
                for arc in way:
                    for resource, held in uses[arc]:
                        load[resource] += held
                chosen.append((chunk, tuple(reversed(way))))
    return chosen


def _entering(network: Net, allowed: NDArray[np.bool_], root: Rank) -> dict[Rank, list[int]]:
    """Return for every rank that can be reached the last arcs of the fastest ways from the root."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import dijkstra

    # Picoseconds: whole numbers, so that equal ways are equal. One more for each hop, so that free
    # links make no rings.
    time: Floats = network.arcs.arrival().astype(np.float64) + 1
    arcs = np.flatnonzero(allowed)
    order = arcs[np.lexsort((time[arcs], network.head[arcs], network.tail[arcs]))]
    pairs = network.tail[order].astype(np.int64) * network.num_ranks + network.head[order]
    first = order[np.unique(pairs, return_index=True)[1]]
    graph = coo_array(
        (time[first], (network.tail[first], network.head[first])),
        shape=(network.num_ranks, network.num_ranks),
    ).tocsr()
    away: Floats = dijkstra(graph, indices=root)
    reached = np.isfinite(away[network.tail[arcs]])
    arcs = arcs[reached]
    last = arcs[away[network.tail[arcs]] + time[arcs] == away[network.head[arcs]]]
    found: dict[Rank, list[int]] = defaultdict(list)
    for arc in last.tolist():
        found[int(network.head[arc])].append(arc)
    return found


MAX_COUNTED = 5000
"""Ways up to which these are chosen together where no clock may end the search."""


def rounded(
    network: Net,
    ways: Sequence[tuple[tuple[int, ...], list[tuple[Way, float]]]],
    clock: Deadline,
) -> list[tuple[int, Way]]:
    """Return one way for every chunk, so that no resource is much busier than in the flow."""
    load = np.zeros(network.arcs.num_resources)
    chosen: list[tuple[int, Way]] = []
    broken: list[Broken] = []
    for chunks, found in ways:
        left = list(chunks)
        parts = []
        for way, amount in found:
            whole = min(int(amount + TINY * 10), len(left))
            for _ in range(whole):
                chosen.append((left.pop(), way))
                _load(network, load, way)
            if amount - whole > TINY * 10:
                parts.append((way, amount - whole))
        if left:
            broken.append((left, parts or found))
    for (left, options), counts in zip(broken, _shares(network, load, broken, clock), strict=True):
        for (way, _), count in zip(options, counts, strict=True):
            chosen += [(left.pop(), way) for _ in range(count)]
    return chosen


Broken = tuple[list[int], list[tuple[Way, float]]]
"""Chunks, and the ways that the flow splits them over."""


def _shares(
    network: Net, load: Floats, broken: Sequence[Broken], clock: Deadline
) -> list[list[int]]:
    """Return how many chunks take each way: the busiest resource as light as can be found.

    Variables   n[b,w] whole >= 0, chunks of b on way w;  T
    Minimise    T
    Subject to  sum over w of n[b,w] is the chunks of b; load + what the ways add <= T
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

    rows, columns, times = [], [], []
    owner: list[int] = []
    for number, (_, options) in enumerate(broken):
        for way, _ in options:
            for arc in way:
                for resource, held in network.uses(arc):
                    rows.append(resource)
                    columns.append(len(owner))
                    times.append(held)
            owner.append(number)
    if not owner:
        return []
    ways, resources = len(owner), len(load)
    counted = clock.counted is not None
    if counted and ways > MAX_COUNTED:
        return _one_by_one(network, load, broken)
    capacity = coo_array(
        (times + [-1.0] * resources,
         (rows + list(range(resources)), columns + [ways] * resources)),
        shape=(resources, ways + 1),
    ).tocsr()  # fmt: skip
    sums = coo_array((np.ones(ways), (owner, np.arange(ways))), shape=(len(broken), ways + 1))
    counts = np.array([len(left) for left, _ in broken], dtype=np.float64)
    limit = {"node_limit": COUNTED} if counted else {"time_limit": max(0.1, clock.left / 4)}
    found = milp(
        np.append(np.zeros(ways), 1.0),
        integrality=np.append(np.ones(ways), 0),
        bounds=Bounds(0, np.append(counts[owner], np.inf)),
        constraints=[
            LinearConstraint(capacity, ub=-load),
            LinearConstraint(sums.tocsr(), counts, counts),
        ],
        options={"mip_rel_gap": 1e-4, **limit},
    )
    if found.x is None:
        return _one_by_one(network, load, broken)
    whole = np.rint(found.x[:-1]).astype(int).tolist()
    shares: list[list[int]] = [[] for _ in broken]
    for number, count in zip(owner, whole, strict=True):
        shares[number].append(count)
    return shares


def _one_by_one(network: Net, load: Floats, broken: Sequence[Broken]) -> list[list[int]]:
    """Return how many chunks take each way, each the one that is least busy so far."""
    shares = []
    for left, options in broken:
        counts = [0] * len(options)
        for _ in left:
            best = min(range(len(options)), key=lambda w: _peak(network, load, options[w][0]))
            counts[best] += 1
            _load(network, load, options[best][0])
        shares.append(counts)
    return shares


def _load(network: Net, load: Floats, way: Way, sign: int = 1) -> None:
    for arc in way:
        for resource, held in network.uses(arc):
            load[resource] += sign * held


def _peak(network: Net, load: Floats, way: Way) -> tuple[float, int]:
    """Return the load of the busiest resource of a way after one more chunk."""
    more: dict[int, float] = defaultdict(float)
    for arc in way:
        for resource, held in network.uses(arc):
            more[resource] += held
    return max(float(load[resource]) + time for resource, time in more.items()), len(way)


Row = tuple[int, int, bool]
"""chunk, link, reduce"""

FULL = 0.999
"""Of the time of the flow: what is held as long is among the busiest."""

ROUNDING = 1 + 1e-7
"""What a second optimum's time may be above the first's."""

MAX_WHOLE = 8000
"""Variables up to which a flow of whole chunks is looked for."""

MAX_WHOLE_COUNTED = 2000
"""The same where work is counted instead of time."""

COUNTED = 500
"""Nodes of that search then."""

SHORT = 1e-3
"""What a detour costs beside the way to the nearest door."""


@dataclass(frozen=True, eq=False)
class Question:
    """What is to flow where.

    Parameters
    ----------
    problem
        Whose chunks.
    network
        The arcs, in the direction of the commodities.
    wanted
        The representative chunks.
    commodities
        Chunks that share a rank: their sources, or, where these are more, their targets.
    backwards
        Whether it is the targets.
    """

    problem: Problem
    network: Net
    wanted: Wanted
    commodities: list[Commodity]
    backwards: bool


def question_of(problem: Problem) -> Question:
    """Return what is to flow in a problem.

    Raises
    ------
    NoScheduleError
        When some chunk has several targets or sources, or no path.
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
    turned = commodities_of(wanted, turned=True)
    commodities = commodities_of(wanted, turned=False)
    backwards = len(turned) < len(commodities)
    return Question(
        problem, Net(arcs, backwards=backwards), wanted, turned if backwards else commodities,
        backwards,
    )  # fmt: skip


def first_flow(question: Question, clock: Deadline) -> Flow:
    """Return an optimal flow in which chunks travel as little as they can.

    Raises
    ------
    NoScheduleError
        When some rank can't be reached.
    OutOfTimeError
        When the program is not solved in time.
    """
    if not question.commodities:
        return Flow([], 0.0)
    return optimal_flow(question.network, question.wanted, question.commodities, _seconds(clock))


def flow_of_whole_chunks(question: Question, clock: Deadline) -> Flow:
    """Return a flow of whole chunks, the best that is found in some of the time.

    Raises
    ------
    NoScheduleError
        When some rank can't be reached.
    OutOfTimeError
        When none is found in time, or there are too many variables to look for one.
    """
    variables = len(question.commodities) * len(question.network.arcs)
    counted = clock.counted is not None
    if variables > (MAX_WHOLE_COUNTED if counted else MAX_WHOLE):
        raise OutOfTimeError(
            f"{variables} variables are too many for whole chunks", fix="use more --chunks"
        )
    return whole_flow(
        question.network, question.wanted, question.commodities,
        None if counted else min(5.0, clock.left / 3), COUNTED if counted else None,
    )  # fmt: skip


def flow_by_near_doors(question: Question, first: Flow, clock: Deadline) -> Flow:
    """Return an optimal flow in which chunks take the busiest resources near where they start.

    Raises
    ------
    OutOfTimeError
        When the program is not solved in time.
    """
    network, commodities = question.network, question.commodities
    if not commodities:
        return first
    roots = np.array([one.root for one in commodities])
    ranks = network.num_ranks
    busy = _busiest(network, first)
    away = _distances(network, roots)[:, network.tail]
    away[~np.isfinite(away)] = 0.0
    # Of doors that are equally near, each rank takes the next one: not all the same.
    turn = (network.tail[None, :] - roots[:, None]) % ranks / (100 * ranks)
    costs = SHORT * network.arrival + np.where(busy, away + turn * network.arrival.max(), 0.0)
    wish = Wish(costs / network.arrival.max(), first.time * ROUNDING)
    return optimal_flow(network, question.wanted, commodities, _seconds(clock), wish)


def _seconds(clock: Deadline) -> float | None:
    """Return how long a linear program may take; None where work is counted."""
    return None if clock.counted is not None else clock.left


def rows_of_flow(question: Question, flow: Flow, clock: Deadline) -> list[Row]:
    """Return the (chunk, link, reduce) rows of whole chunks on the paths of a flow."""
    if not question.commodities:
        return []
    network = question.network
    ways = rounded(network, list(peeled(network, question.commodities, flow.amounts)), clock)
    return _rows(question, ways)


def rows_of_shortest_ways(question: Question) -> list[Row]:
    """Return the (chunk, link, reduce) rows of whole chunks on fastest ways.

    Raises
    ------
    NoScheduleError
        When some rank can't be reached.
    """
    allowed = question.wanted.allowed
    return _rows(question, shortest_ways(question.network, allowed, question.commodities))


def _rows(question: Question, ways: Sequence[tuple[int, Way]]) -> list[Row]:
    link, rows = question.network.arcs.link, []
    for row, way in ways:
        chunk = int(question.wanted.chunk[row])
        taken = reversed(way) if question.backwards else way
        rows += [(chunk, int(link[arc]), False) for arc in taken]
    return rows


def _busiest(network: Net, flow: Flow) -> NDArray[np.bool_]:
    """Return which arcs hold a resource that is held as long as any."""
    arcs = network.arcs
    units = np.zeros(len(arcs))
    for amounts in flow.amounts:
        for arc, amount in amounts.items():
            units[arc] += amount
    load = np.bincount(
        arcs.use_resource, units[network.user] * network.held, minlength=arcs.num_resources
    )
    full = load >= FULL * flow.time
    busy = np.zeros(len(arcs), dtype=np.bool_)
    busy[network.user[full[arcs.use_resource]]] = True
    return busy


def _distances(network: Net, roots: NDArray[np.int64]) -> Floats:
    """Return the microseconds that a chunk takes from some ranks to all (roots, ranks)."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import dijkstra

    pairs = network.tail.astype(np.int64) * network.num_ranks + network.head
    order = np.lexsort((network.arrival, pairs))
    first = order[np.unique(pairs[order], return_index=True)[1]]
    graph = coo_array(
        (network.arrival[first], (network.tail[first], network.head[first])),
        shape=(network.num_ranks, network.num_ranks),
    ).tocsr()
    found: Floats = dijkstra(graph, indices=roots)
    return found


def with_doors(problem: Problem) -> Iterator[tuple[int, Problem]]:
    """Yield the problem with ever fewer doors between each two servers, and how many.

    Door i of k joins the ranks of one local number of both servers, the numbers spread evenly; so
    each server's chunks lie there by destination. The group is that of the doors, or none.
    """
    topology, allowed = problem.topology, problem.logical.allowed
    server = np.array(topology.server_of)
    width, uneven = divmod(len(server), int(server.max()) + 1)
    if uneven or width < 2 or width == len(server) or (np.bincount(server) != width).any():
        return
    local = np.zeros(len(server), dtype=np.int64)
    for number in range(int(server.max()) + 1):
        local[server == number] = np.arange(width)
    table = topology.links
    across = server[table.src] != server[table.dst]
    straight = local[table.src] == local[table.dst]
    count, last = width, int((allowed & across).sum())
    while count:
        doors = np.isin(local, np.arange(count) * width // count)
        kept = allowed & (~across | (straight & doors[table.src]))
        open_ = int((kept & across).sum())
        if 0 < open_ < last:
            last = open_
            yield count, _restricted(problem, kept)
        count //= 2


def _restricted(problem: Problem, allowed: NDArray[np.bool_]) -> Problem:
    """Return the problem on some links, with the symmetries under which these stay the same."""
    group, links = problem.group, np.flatnonzero(allowed)
    kept = make_group(problem.topology, ())
    for number, element in enumerate(group.elements):
        if element not in kept.elements and allowed[group.link_images(number, links)].all():
            kept = make_group(problem.topology, (*kept.generators, element))
    logical = replace(problem.logical, allowed=allowed)
    return replace(problem, logical=logical, group=kept)


def unfolded(problem: Problem, rows: Sequence[Row]) -> list[Row]:
    """Return the routes of all chunks, given those of the representatives."""
    group, collective = problem.group, problem.collective
    chunk = np.array([row[0] for row in rows], dtype=np.int32)
    link = np.array([row[1] for row in rows], dtype=np.int32)
    every = []
    for number, element in enumerate(group.elements):
        chunks = collective.image_of(element, chunk).tolist()
        links = group.link_images(number, link).tolist()
        every += [(one, int(other), False) for one, other in zip(chunks, links, strict=True)]
    return every

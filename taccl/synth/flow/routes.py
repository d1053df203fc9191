"""Routes of whole chunks for engine ``flow``: along an optimal flow, or on fastest paths.

Many flows are optimal. One sends every chunk the shortest way. One lets each rank's chunks leave
by the nearest of the busiest links, so that neighbours travel together in few messages. Others
may cross between two servers by a few gateways only, as two- and three-step algorithms do, which
opens fewer connections and makes longer messages still. Paths that a flow gives whole chunks are
taken; for the others a small program chooses among the flow's paths, so that the busiest resource
stays light.

What is too large to be solved as a flow in time takes fastest paths, each the least busy of these.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from taccl.errors import NoScheduleError
from taccl.model.problem import Problem
from taccl.synth.flow.program import (
    TINY,
    Floats,
    Flow,
    FlowInstance,
    Path,
    Preference,
    decomposed,
    optimal_flow,
)
from taccl.timing.deadline import Deadline
from taccl.topology.graph import Rank
from taccl.topology.symmetry import make_group

if TYPE_CHECKING:
    from scipy.sparse import csc_array

Row = tuple[int, int, bool]
"""chunk, link, reduce"""

MAX_COUNTED = 5000
"""Paths up to which these are chosen together where no clock may end the search."""

NODES = 500
"""Of the tree of that search then."""

FULL = 0.999
"""Of the time of the flow: what is held as long is among the busiest."""

ROUNDING = 1 + 1e-7
"""What a second optimum's time may be above the first's."""

PASSES = 2
"""Times that every fastest path is chosen."""

SHORT = 1e-3
"""What a detour costs beside the way to the nearest gateway."""


def flow_by_near_gateways(instance: FlowInstance, first: Flow, clock: Deadline) -> Flow:
    """Return an optimal flow in which chunks take the busiest resources near where they start.

    `first` is an optimal flow of the `instance`; the `clock` limits the search.

    Raises OutOfTimeError when the program is not solved in time.
    """
    if not instance.commodities:
        return first
    units = np.zeros(len(instance.arcs))
    for amounts in first.amounts:
        units[list(amounts)] += list(amounts.values())
    full = instance.held @ units >= FULL * first.time
    busy = (instance.held > 0).T @ full > 0
    roots = np.array([one.root for one in instance.commodities])
    every = np.arange(len(instance.arcs))
    away = least_times(instance, instance.arrival, every, roots)[:, instance.tail]
    away[~np.isfinite(away)] = 0.0
    # Of gateways that are equally near, each rank takes the next one: not all the same.
    ranks, longest = instance.num_ranks, instance.arrival.max()
    turn = (instance.tail[None, :] - roots[:, None]) % ranks / (100 * ranks)
    costs = SHORT * instance.arrival + np.where(busy, away + turn * longest, 0.0)
    return optimal_flow(instance, clock, Preference(costs / longest, first.time * ROUNDING))


def least_times(
    instance: FlowInstance, time: Floats, arcs: NDArray[np.int64], roots: NDArray[np.int64]
) -> Floats:
    """Return how long a chunk travels from the `roots` to all ranks, (roots, ranks).

    Every arc of the `instance` takes a `time`, in any unit; those numbered in `arcs` may be taken.
    A rank that they don't lead to is infinitely far.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import dijkstra

    tail, head, takes = instance.tail[arcs], instance.head[arcs], time[arcs]
    pairs = tail.astype(np.int64) * instance.num_ranks + head
    if not (pairs[1:] > pairs[:-1]).all():  # the fastest of parallel ones
        order = np.lexsort((takes, pairs))
        fastest = order[np.unique(pairs[order], return_index=True)[1]]
        tail, head, takes = tail[fastest], head[fastest], takes[fastest]
    graph = coo_array((takes, (tail, head)), shape=(instance.num_ranks, instance.num_ranks)).tocsr()
    found: Floats = dijkstra(graph, indices=roots)
    return found


def rows_of_flow(instance: FlowInstance, flow: Flow, clock: Deadline) -> list[Row]:
    """Return the (chunk, link, reduce) rows of whole chunks on the paths of a `flow`.

    The flow is an optimum of the `instance`. A quarter of what is left of the `clock` is for the
    choice of paths.
    """
    load = np.zeros(instance.arcs.num_resources)
    chosen: list[tuple[int, Path]] = []
    split: list[Split] = []
    for chunks, paths in decomposed(instance, flow):
        left, parts = list(chunks), []
        for path, amount in paths:
            whole = min(int(amount + TINY * 10), len(left))
            for _ in range(whole):
                chosen.append((left.pop(), path))
                _add(instance, load, path)
            if amount - whole > TINY * 10:
                parts.append((path, amount - whole))
        if left:
            split.append((left, parts or paths))
    for (left, options), counts in zip(split, _shares(instance, load, split, clock), strict=True):
        for (path, _), count in zip(options, counts, strict=True):
            chosen += [(left.pop(), path) for _ in range(count)]
    return _rows(instance, chosen)


Split = tuple[list[int], list[tuple[Path, float]]]
"""Chunks, and the paths that the flow splits them over."""


def _shares(
    instance: FlowInstance, load: Floats, split: Sequence[Split], clock: Deadline
) -> list[list[int]]:
    """Return how many chunks take each path: the busiest resource as light as can be found.

    Variables   n[b,p] whole >= 0, chunks of b on path p;  T
    Minimise    T
    Subject to  sum over p of n[b,p] is the chunks of b; load + what the paths add <= T
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array, hstack

    paths = [path for _, options in split for path, _ in options]
    counted, count = clock.counted is not None, len(paths)
    if not paths:
        return []
    of = np.repeat(np.arange(count), [len(path) for path in paths])
    arcs = coo_array(
        (np.ones(len(of)), (np.concatenate(paths), of)), shape=(len(instance.arcs), count)
    )
    held = (instance.held @ arcs.tocsc()).tocsc()
    if counted and count > MAX_COUNTED:
        return _one_by_one(held, load, split)
    owner = np.repeat(np.arange(len(split)), [len(options) for _, options in split])
    time = coo_array(np.full((len(load), 1), -1.0))
    sums = coo_array((np.ones(count), (owner, np.arange(count))), shape=(len(split), count + 1))
    chunks = np.array([len(left) for left, _ in split], dtype=np.float64)
    limit = {"node_limit": NODES} if counted else {"time_limit": max(0.1, clock.left / 4)}
    found = milp(
        np.append(np.zeros(count), 1.0),
        integrality=np.append(np.ones(count), 0),
        bounds=Bounds(0, np.append(chunks[owner], np.inf)),
        constraints=[
            LinearConstraint(hstack((held, time), format="csr"), ub=-load),
            LinearConstraint(sums.tocsr(), chunks, chunks),
        ],
        options={"mip_rel_gap": 1e-4, **limit},
    )
    if found.x is None:
        return _one_by_one(held, load, split)
    shares: list[list[int]] = [[] for _ in split]
    for number, share in zip(owner, np.rint(found.x[:-1]).astype(int).tolist(), strict=True):
        shares[number].append(share)
    return shares


def _one_by_one(held: "csc_array", load: Floats, split: Sequence[Split]) -> list[list[int]]:
    """Return how many chunks take each path, each the one whose busiest resource ends up lightest.

    `held`, (resources, paths), and `load`, by other chunks, are microseconds; the paths are in the
    order of `split`, and those that are chosen are added to the load.
    """
    columns = [
        (held.indices[first:last], held.data[first:last]) for first, last in pairwise(held.indptr)
    ]
    shares: list[list[int]] = []
    first = 0
    for left, options in split:
        counts = [0] * len(options)
        for _ in left:
            _, _, best = min(
                ((load[used] + time).max(), len(options[number][0]), number)
                for number, (used, time) in enumerate(columns[first : first + len(options)])
            )
            used, time = columns[first + best]
            load[used] += time
            counts[best] += 1
        shares.append(counts)
        first += len(options)
    return shares


def _add(instance: FlowInstance, load: Floats, path: Iterable[int], times: int = 1) -> None:
    for arc in path:
        resources, held = instance.uses(arc)
        load[resources] += times * held  # each once


def rows_of_fastest_paths(instance: FlowInstance) -> list[Row]:
    """Return the (chunk, link, reduce) rows of whole chunks on fastest paths, the least busy.

    Each is chosen with those before it alone, which may all be of one side, and again with all.

    Raises NoScheduleError when some rank can't be reached.
    """
    load = np.zeros(instance.arcs.num_resources)
    chosen: dict[int, Path] = {}
    ways = [
        (one, _entering(instance, instance.wanted.allowed[one.kind], one.root))
        for one in instance.commodities
    ]
    for one, entering in ways * PASSES:
        for rank, chunks in one.chunks.items():
            if rank not in entering:
                raise NoScheduleError(
                    "some chunk can't be served: no allowed path",
                    fix="allow more links in the sketch, or join these ranks in the topology",
                )
            for chunk in chunks:
                _add(instance, load, chosen.get(chunk, ()), -1)
                path: list[int] = []
                at = rank
                while at != one.root:
                    path.append(min(entering[at], key=partial(_busiest, instance, load)))
                    at = int(instance.tail[path[-1]])
                _add(instance, load, path)
                chosen[chunk] = tuple(reversed(path))
    return _rows(instance, chosen.items())


def _busiest(instance: FlowInstance, load: Floats, arc: int) -> float:
    """Return what the busiest resource of an arc is held with one chunk more on the arc."""
    resources, held = instance.uses(arc)
    return float((load[resources] + held).max(initial=0.0))


def _entering(
    instance: FlowInstance, allowed: NDArray[np.bool_], root: Rank
) -> dict[Rank, list[int]]:
    """Return for every rank that can be reached the last arcs of the fastest paths to it."""
    # Picoseconds: whole numbers, so that equal times are equal. One more for each hop, so that free
    # links make no cycles.
    time: Floats = instance.arcs.arrival().astype(np.float64) + 1
    arcs = np.flatnonzero(allowed)
    away = least_times(instance, time, arcs, np.array([root]))[0]
    arcs = arcs[np.isfinite(away[instance.tail[arcs]])]
    found: dict[Rank, list[int]] = defaultdict(list)
    for arc in arcs[away[instance.tail[arcs]] + time[arcs] == away[instance.head[arcs]]].tolist():
        found[int(instance.head[arc])].append(arc)
    return found


def _rows(instance: FlowInstance, paths: Iterable[tuple[int, Path]]) -> list[Row]:
    link, turn = instance.arcs.link, -1 if instance.backwards else 1
    return [
        (int(instance.wanted.chunk[row]), int(link[arc]), False)
        for row, path in paths
        for arc in path[::turn]
    ]


def with_fewer_gateways(problem: Problem) -> Iterator[tuple[int, Problem]]:
    """Yield the problem with ever fewer gateways between each two servers, and how many.

    Gateway i of k joins the ranks of one local number of both servers, the numbers spread evenly;
    so each server's chunks lie there by destination. The group is that of the gateways, or none.
    """
    topology, allowed = problem.topology, problem.logical.allowed
    server = np.array(topology.server_of)
    sizes = np.bincount(server)
    width = int(sizes[0])
    if (sizes != width).any() or width in (1, len(server)):
        return
    local = np.empty_like(server)
    local[np.argsort(server, kind="stable")] = np.tile(np.arange(width), len(sizes))
    table = topology.links
    across = server[table.src] != server[table.dst]
    straight = local[table.src] == local[table.dst]
    count, last = width, int((allowed & across).sum())
    while count:
        gateways = np.isin(local, np.arange(count) * width // count)
        kept = allowed & (~across | (straight & gateways[table.src]))
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
    """Return the routes of all chunks of a `problem`, given the `rows` of the representatives."""
    group, collective = problem.group, problem.collective
    chunk, link, _ = np.array(rows, dtype=np.int32).reshape(-1, 3).T
    return [
        (one, int(other), False)
        for number, element in enumerate(group.rows)
        for one, other in zip(
            collective.image_of(element, chunk).tolist(),
            group.link_images(number, link).tolist(),
            strict=True,
        )
    ]

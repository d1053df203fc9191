"""Orders worth starting a search from: tours of rings, and orders that are good by their weights.

A proxy stands in for the replay where very many orders are looked at: connections that carry
equal messages are one group, as they are one phase of the algorithm in turn (all of a ring, one
distance of a halving), and each phase lasts as long as its slowest connection would alone.
"""

import random
import warnings
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from taccl.placement.objective import Ints, Load, Replays
from taccl.placement.orders import Blocks, Order, Servers, flat, shaken

TOUR_SOLUTIONS = 200
TOUR_SECONDS = 5
"""A guard only: the solutions come in well under it for some hundred ranks."""

ANNEALED = 4_000
"""Steps of annealing by the proxy."""


class Proxy:
    """A guess at what orders take, from the costs of pairs alone; never used to judge.

    Parameters
    ----------
    replays
        Whose loads and costs it takes.
    """

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
    """Return how long messages keep the link between each two places, one after the other."""
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
    """Return orders of ranks to start from, seeded; none where the time is up."""
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
    """Return an order that is good by the proxy: threshold accepting with a falling threshold."""
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

    Legs between servers are so long that a good trip leaves each server once; it begins where it
    enters one.
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
    return [_turned(trip, server) for trip in found]


def _turned(trip: Order, server: NDArray[np.int64]) -> Order:
    """Return a round trip that begins where it enters a server."""
    enters = [i for i in range(len(trip)) if server[trip[i - 1]] != server[trip[i]]]
    first = min(enters, key=lambda i: trip[i], default=trip.index(0))
    return (*trip[first:], *trip[:first])


def tour(costs: Ints) -> Order | None:
    """Return a short round trip by OR-Tools' routing, stopped by a count of solutions.

    The costs of its legs are whole numbers; None where it finds none in time.
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

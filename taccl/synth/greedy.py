"""Earliest-finish greedy: routes and order at once, the first incumbent of every search.

Many targets: repeatedly take the (chunk, arc) that would arrive first. One target: chunk by
chunk, those with the longest way first, along the path that arrives first in what is still free.
Times only guide the choice; retime() computes those that count.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from taccl.model.routes import Arc, Demand, Network, Routes
from taccl.timing.occupancy import earliest_start, occupy
from taccl.timing.retiming import as_list, as_lists, uses_of
from taccl.topology.graph import Rank
from taccl.units import Time


class Hop(NamedTuple):
    """One chosen arc of one demand, with the time that it was planned for."""

    start: Time
    end: Time
    demand: int
    arc: Arc


def greedy_routes(network: Network) -> list[Hop]:
    """Return hops for every demand in order of their planned start."""
    hops = _paths(network) if network.point_to_point else _grow(network)
    if network.problem.logical.max_extra_hops and not is_complete(network, hops):
        # A detour to one rank may have used up the hops that another needs.
        hops = _grow(shortest(network))
    return sorted(hops, key=lambda hop: (hop.start, hop.end))


def shortest(network: Network) -> Network:
    """Return the network with arcs on shortest paths only."""
    demands = (
        replace(d, arcs=tuple(a for a in d.arcs if d.hops[a.head] == d.hops[a.tail] + 1))
        for d in network.demands
    )
    return replace(network, demands=tuple(demands))


class _Ports:
    """When each resource orbit is free, in planned time, and what a chunk holds on each link."""

    def __init__(self, network: Network) -> None:
        problem, links = network.problem, network.links
        chunks = np.ones(len(links), dtype=np.int64)
        self._uses = as_lists(
            uses_of(problem.group, problem.chunk_size, np.array(links, dtype=np.int32), chunks)
        )
        self._row = {link: row for row, link in enumerate(links)}
        self._free = as_list(np.zeros(len(problem.topology.edges), dtype=np.int64))

    def start(self, link: int, ready: Time) -> Time:
        """Return when a chunk that is ready can start on a link."""
        return earliest_start(self._uses, self._free, self._row[link], ready)

    def arrival(self, link: int, ready: Time) -> Time:
        """Return when a chunk that is ready can arrive."""
        return self.start(link, ready) + int(self._uses.arrival[self._row[link]])

    def take(self, link: int, start: Time) -> Time:
        """Send a chunk; return when it arrives."""
        return occupy(self._uses, self._free, self._row[link], start)


def _hop_limit(network: Network, demand: Demand, rank: Rank) -> int:
    extra = network.problem.logical.max_extra_hops
    if extra is None:
        return len(demand.hops)
    return demand.hops[rank] + extra


def _grow(network: Network) -> list[Hop]:
    ports = _Ports(network)
    leaving = [_arcs_by_tail(demand) for demand in network.demands]
    wanted = [set(demand.targets) for demand in network.demands]
    at: list[dict[Rank, tuple[Time, int]]] = [
        dict.fromkeys(d.roots, (0, 0)) for d in network.demands
    ]
    heap: list[tuple[Time, int, Arc]] = []

    def offer(number: int, tail: Rank) -> None:
        for arc in leaving[number].get(tail, ()):
            if arc.head not in at[number]:
                heapq.heappush(heap, (ports.arrival(arc.link, at[number][tail][0]), number, arc))

    for number, demand in enumerate(network.demands):
        for root in demand.roots:
            offer(number, root)
    hops = []
    while heap:
        planned, number, arc = heapq.heappop(heap)
        ready, depth = at[number][arc.tail]
        if arc.head in at[number] or not wanted[number]:
            continue
        if depth + 1 > _hop_limit(network, network.demands[number], arc.head):
            continue
        end = ports.arrival(arc.link, ready)
        if end > planned:
            heapq.heappush(heap, (end, number, arc))
            continue
        start = ports.start(arc.link, ready)
        ports.take(arc.link, start)
        at[number][arc.head] = (end, depth + 1)
        wanted[number].discard(arc.head)
        hops.append(Hop(start, end, number, arc))
        offer(number, arc.head)
    # Hops that lead to no target are dropped.
    needed = {(n, rank) for n, demand in enumerate(network.demands) for rank in demand.targets}
    kept = []
    for hop in reversed(hops):
        if (hop.demand, hop.arc.head) in needed:
            needed.add((hop.demand, hop.arc.tail))
            kept.append(hop)
    return kept[::-1]


def _arcs_by_tail(demand: Demand) -> dict[Rank, list[Arc]]:
    leaving: dict[Rank, list[Arc]] = {}
    for arc in demand.arcs:
        leaving.setdefault(arc.tail, []).append(arc)
    return leaving


def _paths(network: Network) -> list[Hop]:
    ports = _Ports(network)
    order = sorted(
        (n for n, d in enumerate(network.demands) if d.targets),
        key=lambda n: (-network.demands[n].hops[network.demands[n].targets[0]], n),
    )
    hops = []
    for number in order:
        for arc, ready in _earliest_path(network, network.demands[number], ports):
            start = ports.start(arc.link, ready)
            hops.append(Hop(start, ports.take(arc.link, start), number, arc))
    return hops


def _earliest_path(network: Network, demand: Demand, ports: _Ports) -> list[tuple[Arc, Time]]:
    """Dijkstra over arrival times, with hops limited as the sketch says."""
    target = demand.targets[0]
    limit = _hop_limit(network, demand, target)
    leaving = _arcs_by_tail(demand)
    best: dict[Rank, Time] = dict.fromkeys(demand.roots, 0)
    via: dict[tuple[Rank, int], tuple[Arc, Time]] = {}
    heap: list[tuple[Time, int, Rank]] = [(0, 0, root) for root in demand.roots]
    fewest: dict[Rank, int] = {}
    while heap:
        time, depth, rank = heapq.heappop(heap)
        if fewest.get(rank, limit + 1) <= depth:
            continue
        fewest[rank] = depth
        if rank == target:
            path = []
            while depth > 0:
                path.append(via[rank, depth])
                rank, depth = path[-1][0].tail, depth - 1
            return path[::-1]
        for arc in leaving.get(rank, ()):
            if depth < limit:
                end = ports.arrival(arc.link, time)
                if (arc.head, depth + 1) not in via or end < best.get(arc.head, end + 1):
                    best[arc.head] = min(end, best.get(arc.head, end))
                    via[arc.head, depth + 1] = (arc, time)
                    heapq.heappush(heap, (end, depth + 1, arc.head))
    return []


def is_complete(network: Network, hops: list[Hop]) -> bool:
    """Tell whether hops reach every target of every demand."""
    reached = {(hop.demand, hop.arc.head) for hop in hops}
    return all(
        (number, target) in reached
        for number, demand in enumerate(network.demands)
        for target in demand.targets
    )


def from_root(demand: Demand, taken: Mapping[Rank, Arc]) -> tuple[Arc, ...]:
    """Return the arcs of a tree that lead to the targets of a `demand`, parents first.

    Each rank is entered by the arc `taken`.
    """
    ordered: list[Arc] = []
    placed = set(demand.roots)
    for target in demand.targets:
        path: list[Arc] = []
        rank = target
        while rank not in placed and rank in taken and len(path) <= len(taken):
            path.append(taken[rank])
            rank = taken[rank].tail
        ordered.extend(reversed(path))
        placed.update(arc.head for arc in path)
    return tuple(ordered)


def routes_of(network: Network, hops: Sequence[Hop]) -> Routes:
    """Return a complete greedy routing of a `network` without its times, of all its `hops`."""
    taken: list[dict[int, Arc]] = [{} for _ in network.demands]
    for hop in hops:
        taken[hop.demand][hop.arc.head] = hop.arc
    return tuple(map(from_root, network.demands, taken))

"""Rings, in which data is passed round, and parameter servers.

A ring is as slow as the port that it loads most, so orders of ranks are compared by that, then by
the sum of the times of their links.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise, permutations, zip_longest

from taccl.collectives import alone
from taccl.errors import LoweringError
from taccl.model.problem import Problem
from taccl.synth.templates.steps import (
    GATHER_FAMILY,
    Order,
    Step,
    best_links,
    blocks,
    compose_allreduce,
    linked,
    pair_block,
    passed,
    ranks_by_server,
    shards,
    tour,
)
from taccl.topology.graph import Rank, Topology
from taccl.units import Time

MAX_PASSED = 32
"""Ranks of the largest ring whose AlltoAll goes round it: every chunk is sent n/2 times."""

MAX_SEARCHED = 64
"""Ranks of the largest ring whose order is searched for: an order takes time to judge."""

FREE = 1e9
"""The rate of a port without a bandwidth, by that of one with a byte a picosecond."""

MAX_WIRED = 32
"""Ranks of a server, at most, for which disjoint rings are searched: with 64 that takes seconds."""

MOST_AT_ONCE = 8
"""Rings that are looked for where it is not told how many: that takes time for each."""

MOST_SEARCHED = 0.5
"""Deterministic seconds of a search for the ways through a server."""

TRIES = 600
"""Exchanges that the search for an order tries from each start."""


def ring_orders(problem: Problem) -> list[Order]:
    """Return orders of all ranks in a ring, the fastest first.

    Rank order, server by server along the fastest links, and the best that exchanges of two links
    for two others (2-opt, seeded) find from either: as far as they have links, without repeats.
    """
    n = problem.topology.num_ranks
    links, cost = best_links(problem), _cost_of(problem)
    starts = [order for order in (tour(problem), tuple(range(n))) if order is not None]
    found = list(starts)
    if 3 < n <= MAX_SEARCHED:
        rng = random.Random(n)
        for order in starts:
            best = cost(order)
            for _ in range(TRIES):
                first, last = sorted(rng.sample(range(1, n + 1), 2))
                other = (*order[:first], *order[first:last][::-1], *order[last:])
                if (less := cost(other)) < best:
                    order, best = other, less
            found.append(order)
    costs: dict[tuple[int, Time, Time], Order] = {}
    for order in found:
        if all(pair in links for pair in _around(order)):
            costs.setdefault(cost(order), order)
    return [costs[key] for key in sorted(costs)]


@lru_cache(maxsize=16)
def channel_orders(topology: Topology, channels: int) -> tuple[tuple[Rank, ...], ...]:
    """Return the order of all ranks in the ring of each of so many `channels`.

    They are as NCCL's search finds them where it can: every GPU begins as many channels as every
    other, a ring enters and leaves a server by NICs, and wires between GPUs carry as few channels
    as they can. The way through a server is turned round in every other server, so that each NIC
    talks to its like. Servers of the `topology` are alike, and a rank has the same place in each.

    Raises LoweringError when the wires of a server let no ring through it.
    """
    servers, size = topology.servers, len(topology.servers[0])
    # Through a switch all ways are alike, as long as each GPU has every place of them.
    lanes = _lanes(topology)
    if lanes is None:
        ways = _through_switch(size, closed=len(servers) == 1)
    else:
        ways = _wired(topology, lanes, channels)
    found = []
    for channel in range(channels):
        way = ways[channel % len(ways)]
        back = way[::-1] if len(servers) % 2 == 0 else way
        turns = (back if number % 2 else way for number in range(len(servers)))
        order = [
            server[place] for server, turn in zip(servers, turns, strict=True) for place in turn
        ]
        found.append(tuple(order))
    return tuple(found)


def _through_switch(size: int, *, closed: bool) -> list[list[int]]:
    """Return a way through a server for each GPU that it begins at; it ends half a turn on."""
    ways = []
    for first in range(size):
        last = (first - 1 if closed else first + size // 2) % size
        others = ((first + step) % size for step in range(1, size))
        ways.append([first, *(place for place in others if place != last), last][:size])
    return ways


def _wired(topology: Topology, lanes: dict[tuple[int, int], int], channels: int) -> list[list[int]]:
    """Return ways through a server, which use each lane of its wires as seldom as they can.

    Rings of one server, else paths from a NIC to another. They come in sets, of which each uses a
    lane once at most; with several servers, as long as more are asked for, another set begins and
    ends where none does yet. A wire has as many lanes as its bandwidth is of the least.
    """
    size = len(topology.servers[0])
    if topology.num_servers == 1:
        ways = _disjoint_ways(lanes, size, min(channels, size), None)
    else:
        free = (set(range(size)), set(range(size)))
        ways = []
        while more := _disjoint_ways(lanes, size, min(channels - len(ways), len(free[0])), free):
            ways += more
            for way in more:
                free[0].remove(way[0])
                free[1].remove(way[-1])
    if not ways:
        raise LoweringError(
            f"no ring of NCCL goes through a server of {topology.name}: its wires let none",
            fix="compare with another algorithm",
        )
    return ways


def _lanes(topology: Topology) -> dict[tuple[int, int], int] | None:
    """Return the lanes of every wire of the first server, by the places of its ends.

    A wire without a bandwidth has one for every rank. None where links inside share switches.
    """
    betas: dict[tuple[int, int], Fraction] = {}
    ids: list[int] = []
    ranks = topology.servers[0]
    for one, other in permutations(range(len(ranks)), 2):
        for link in topology.links_between(ranks[one], ranks[other]):
            own = topology.links.edges_of(link)
            ids += own
            betas[one, other] = max(topology.edges[e].beta or Fraction(0) for e in own)
    if len(set(ids)) < len(ids):
        return None
    most = max(betas.values(), default=Fraction(0))
    return {pair: int(most // beta) if beta else len(ranks) for pair, beta in betas.items()}


@lru_cache(maxsize=16)
def rings_at_once(topology: Topology) -> int:
    """Return how many rings of all ranks of a server its wires let be at once, a lane in one each.

    They are MOST_AT_ONCE at most; 0 where ranks share switches, or there are too many to find out.
    """
    size = len(topology.servers[0])
    lanes = _lanes(topology) if 2 < size <= MAX_WIRED else None
    return 0 if lanes is None else len(_disjoint_ways(lanes, size, MOST_AT_ONCE, None))


def rings_inside(
    problem: Problem, by_server: Sequence[Sequence[Rank]], most: int
) -> list[list[list[Order]]]:
    """Return ways to go round every server: the fastest ring each, and several that are disjoint.

    Of these there are as many as lanes of wires allow, `most` at most, as a lane is in one of them;
    none where a server has switches. What is missing is left out.
    """
    topology, links = problem.topology, best_links(problem)
    fastest = [tour(problem, ranks[0], within=ranks) for ranks in by_server]
    ways = [[[ring] for ring in fastest if ring is not None]]
    size = len(by_server[0])
    lanes = _lanes(topology) if most > 1 and 2 < size <= MAX_WIRED else None
    if lanes is not None:
        places = _disjoint_ways(lanes, size, min(most, size), None)
        places = places[: next(n for n in range(len(places), -1, -1) if n == 0 or most % n == 0)]
        several = [[tuple(ranks[at] for at in way) for way in places] for ranks in by_server]
        if len(places) > 1 and all(
            pair in links for rings in several for ring in rings for pair in _around(ring)
        ):
            ways.append(several)
    return [way for way in ways if len(way) == len(by_server)]


def _disjoint_ways(
    lanes: dict[tuple[int, int], int], size: int, most: int, ends: tuple[set[int], set[int]] | None
) -> list[list[int]]:
    """Return as many ways through all GPUs of a server as its lanes let be at once, or `most`.

    They are paths which begin at different GPUs of the first set of `ends` and stop at different
    ones of the second, or rings without them. A circuit constraint each (CP-SAT).
    """
    from ortools.sat.python import cp_model

    degrees = [sum(n for (one, _), n in lanes.items() if one == rank) for rank in range(size)]
    # A ring leaves every GPU by a lane; a path ends at one.
    while sum(max(0, most - degree) for degree in degrees) > (most if ends else 0):
        most -= 1
    for count in range(most, 0, -1):
        model = cp_model.CpModel()
        arcs = [{pair: model.new_bool_var("") for pair in lanes} for _ in range(count)]
        if ends is not None:
            outside = [*((size, one) for one in sorted(ends[0])),
                       *((one, size) for one in sorted(ends[1]))]  # fmt: skip
            for way in arcs:
                way.update({pair: model.new_bool_var("") for pair in outside})
        for way in arcs:
            model.add_circuit([(*pair, chosen) for pair, chosen in way.items()])
        for pair in arcs[0]:
            model.add(sum(way[pair] for way in arcs) <= lanes.get(pair, 1))
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.max_deterministic_time = MOST_SEARCHED
        solver.parameters.catch_sigint_signal = False  # else a second one kills the process
        if solver.solve(model) in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            ways = []
            for way in arcs:
                after = {one: other for (one, other), chosen in way.items() if solver.value(chosen)}
                found = [size if ends else 0]
                while len(found) < len(after):
                    found.append(after[found[-1]])
                ways.append([place for place in found if place < size])
            return ways
    return []


def _around(order: Order) -> Iterator[tuple[Rank, Rank]]:
    return pairwise((*order, order[0]))


def _cost_of(problem: Problem) -> Callable[[Order], tuple[int, Time, Time]]:
    """Return what tells (links that are missing, the largest load of a port, sum of arrivals)."""
    topology, links = problem.topology, best_links(problem)
    size = problem.chunk_size
    busy = {
        pair: [
            (edge, topology.busy(link, edge, size))
            for edge in topology.links.edges_of(link)
            if topology.edges[edge].beta is not None
        ]
        for pair, link in links.items()
    }
    arrival = {pair: topology.arrival(link, size) for pair, link in links.items()}

    def cost(order: Order) -> tuple[int, Time, Time]:
        taken = [pair for pair in _around(order) if pair in links]
        load: dict[int, Time] = defaultdict(int)
        for pair in taken:
            for edge, time in busy[pair]:
                load[edge] += time
        times = [arrival[pair] for pair in taken]
        return len(order) - len(taken), max([0, *times, *load.values()]), sum(times)

    return cost


def ring(problem: Problem) -> Iterator[Iterator[Step]]:
    """Every rank passes on what it received to the next of a ring, n-1 times each phase.

    Several chunks of a rank also go round several rings at once, as on the channels of NCCL.
    AlltoAll: what is for that next one stays there, the rest goes on.
    """
    if problem.collective.name == "alltoall" and problem.topology.num_ranks <= MAX_PASSED:
        for order in ring_orders(problem):
            yield _delivered(problem, order, len(order) - 1)
    if problem.collective.name in GATHER_FAMILY and problem.topology.num_ranks > 1:
        own = blocks(problem)
        orders = [(order,) for order in ring_orders(problem)]
        several = _disjoint(problem) if problem.collective.chunks_per_rank > 1 else ()
        for rings in (*((several,) if len(several) > 1 else ()), *orders):
            parts = list(zip(*(shards(chunks, len(rings)) for chunks in own), strict=True))
            backs = [(order[0], *order[:0:-1]) for order in rings]
            gather, spread = (
                list(_turns(*(passed(*way, len(own) - 1) for way in zip(ways, parts, strict=True))))
                for ways in (rings, backs)
            )
            yield compose_allreduce(problem, gather, spread)


def _disjoint(problem: Problem) -> tuple[Order, ...]:
    """Return rings as NCCL has them, one for each chunk of a rank at most, or none.

    Where GPUs are wired to one another, each lane of a wire is in one of them at most.
    """
    links, topology = best_links(problem), problem.topology
    alike = {len(server) for server in topology.servers}
    if topology.num_ranks > MAX_SEARCHED or len(alike) > 1 or max(alike) > MAX_WIRED:
        return ()
    try:
        orders = channel_orders(topology, problem.collective.chunks_per_rank)
    except LoweringError:
        return ()
    return tuple(
        order
        for order in dict.fromkeys(orders)
        if len(set(order)) == topology.num_ranks and all(pair in links for pair in _around(order))
    )


def double_ring(problem: Problem) -> Iterator[Iterator[Step]]:
    """Pass data round a ring both ways: each chunk half as far each way, or half of them each way.

    The first is faster where alpha counts; with an even number of ranks the second moves less.
    AlltoAll: each chunk goes the shorter way.
    """
    n, name = problem.topology.num_ranks, problem.collective.name
    if name not in (*GATHER_FAMILY, "alltoall") or n < 3 or (name == "alltoall" and n > MAX_PASSED):
        return
    links, own = best_links(problem), blocks(problem)
    for order in ring_orders(problem):
        back = (order[0], *order[:0:-1])
        if any(pair not in links for pair in _around(back)):
            continue
        if name == "alltoall":
            yield _turns(
                _delivered(problem, order, n // 2), _delivered(problem, back, (n - 1) // 2)
            )
            return
        both = _turns(passed(order, own, n // 2), passed(back, own, (n - 1) // 2))
        yield compose_allreduce(problem, list(both))
        if problem.collective.chunks_per_rank > 1:
            near, far = zip(*(shards(chunks, 2) for chunks in own), strict=True)
            both = _turns(passed(order, near, n - 1), passed(back, far, n - 1))
            yield compose_allreduce(problem, list(both))
        return


def _delivered(problem: Problem, order: Order, far: int) -> Iterator[Step]:
    """Yield the steps that take an AlltoAll's chunks up to so many places on, place by place."""
    n = len(order)
    for hop in range(far):
        for place, rank in enumerate(order):
            origin = order[(place - hop) % n]
            ends = sorted(order[(place + more) % n] for more in range(1, far - hop + 1))
            chunks = tuple(c for end in ends for c in pair_block(problem, origin, end))
            yield chunks, rank, order[(place + 1) % n], False


def _turns(*ways: Iterator[Step]) -> Iterator[Step]:
    """Yield the steps of rings, or of their directions, by turns."""
    return (step for row in zip_longest(*ways) for step in row if step is not None)


def helper_servers(problem: Problem) -> Iterator[Iterator[Step]]:
    """Let ranks outside of the group add what its members send, chunk by chunk, and send the sums.

    Every such rank that has links to and from all members serves, with a share of the chunks by the
    bandwidth of its ports (Luo et al., "Parameter Hub", SoCC 2018).
    """
    collective, topology, links = problem.collective, problem.topology, best_links(problem)
    members, inside = collective.members or (), alone(collective)
    if inside is None or inside.name != "allreduce":
        return
    rates: dict[Rank, float] = {}
    for rank in sorted({*range(topology.num_ranks)} - {*members}):
        ways = [[(rank, one) for one in members], [(one, rank) for one in members]]
        if all(pair in links for way in ways for pair in way):
            ports = [{topology.links.edges_of(links[pair])[-end] for pair in way}
                     for end, way in enumerate(ways)]  # fmt: skip
            rates[rank] = min(
                sum(
                    1 / float(beta) if (beta := topology.edges[edge].beta) else FREE
                    for edge in port
                )
                for port in ports
            )
    if not rates:
        return
    # The next chunk goes to whom it would keep busy the least.
    given, of_chunk = dict.fromkeys(rates, 0), list[Rank]()
    for _ in range(collective.num_chunks):
        server = min(rates, key=lambda rank: (given[rank] + 1) / rates[rank])
        given[server] += 1
        of_chunk.append(server)
    n = len(members)
    rounds = [
        (chunk, members[(chunk + place) % n], server, place > 0)
        for chunk, server in enumerate(of_chunk)
        for place in range(n)
    ]
    # A server has no value of its own: what comes first is not added to anything.
    sums = [((chunk,), worker, server, adds) for chunk, worker, server, adds in rounds]
    yield iter([*sums, *(((chunk,), server, one, False) for chunk, one, server, _ in rounds)])


def parameter_server(problem: Problem) -> Iterator[Iterator[Step]]:
    """Let some ranks sum a share of the chunks each, which all send them, and send the sums to all.

    The shares lie on one rank; on the first of every server of the machine; or, as where servers
    are workers too, on every rank. Reduce and Broadcast have their root for a server.
    """
    n, collective = problem.topology.num_ranks, problem.collective
    name, links = collective.name, best_links(problem)
    if name not in ("allreduce", "broadcast", "reduce") or n == 1:
        return
    chunks = tuple(range(collective.num_chunks))
    by_server = ranks_by_server(problem) or []
    choices: list[Sequence[Rank]] = [[collective.root or 0]]
    if name == "allreduce":
        choices += [[ranks[0] for ranks in by_server]] if len(by_server) > 1 else []
        choices += [range(n)] if len(chunks) >= n else []
    for chosen in choices:
        shares = shards(chunks, len(chosen))
        spread: list[Step] = [
            (share, server, (server + shift) % n, False)
            for shift in range(1, n)
            for server, share in zip(chosen, shares, strict=True)
            if share
        ]
        sums: list[Step] = [(share, worker, server, True) for share, server, worker, _ in spread]
        if linked(links, spread) and linked(links, sums):
            yield iter((sums if name != "broadcast" else []) + (spread if name != "reduce" else []))

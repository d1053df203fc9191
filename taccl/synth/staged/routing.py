"""Stage 1: which arcs every representative chunk takes (Shah et al., NSDI 2023, section 5.1).

Sets        d demands (representative chunks), a arcs of a demand, r ranks, o resource orbits
Variables   use[d,a] ∈ {0,1}    demand d takes arc a
            reach[d,r] ≥ 0      when the chunk has arrived at rank r (several targets only)
            depth[d,r] ≥ 1      hops from the root (only where a path may be longer than needed)
            open[p] ∈ {0,1}     pair p of ranks exchanges anything (only where that counts)
            extreme ≥ 0         load of the busiest or least busy resource inside servers
            makespan ≥ 0
Minimise    1000·makespan + Σ use·duration / scale ± few or many connections ± 10·extreme
Subject to  (arrive)     several targets: every target is entered exactly once, other ranks at
                         most once, and only ranks that are entered are left
            (flow)       one target: a path from the root to it
            (causality)  reach[d,head] ≥ reach[d,tail] + duration   where use[d,a]
            (length)     a path takes no longer than the makespan
            (capacity)   Σ use·busy ≤ makespan, for every resource orbit
            (hops)       a path has no more hops than the sketch allows
            (opened)     use[d,a] ≤ open[pair of a]; distinct peers of a rank within the limit
            (balance)    extreme ≥ (minmax) or ≤ (maxmin) Σ use·busy on every resource inside

Only links that exist and that the sketch allows have variables, only representatives are routed,
and no constant stands for "never": the horizon is the makespan of a known schedule. The optimum
is a relaxation (sends may overlap); stages 2 and 3 find what it costs.

The MILP does not see what batching saves. Restricted to one way of crossing servers
(``ROUTE_RESTRICTIONS``) it finds trees and paths whose chunks share links, which stage 3 then sends
as few messages. So it is asked once for every restriction.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from taccl.errors import NoScheduleError
from taccl.model.problem import Options, Problem, reduces_and_spreads
from taccl.model.routes import Arc, Demand, Network, Routes, build_network, connections, counterpart
from taccl.synth.greedy import Hop, from_root, greedy_routes
from taccl.topology.graph import Rank, Topology

if TYPE_CHECKING:
    from taccl.synth.milp import Model

Uses = Mapping[tuple[int, Arc], str]
"""(demand, arc) to the name of the variable that says whether it is taken."""

Terms = list[tuple[str, int]]

WEIGHT = {"uc-min": 1, "uc-max": -1}
BALANCE = {"minmax": 1, "maxmin": -1}

HORIZON_TICKS = 20_000
"""Times in the model are scaled to about this many ticks, rounded up."""


def route(network: Network, known: list[Hop], options: Options, seconds: float) -> list[Routes]:
    """Return up to four routings of a `network`, the best of the relaxation first; may be empty.

    The `known` hops are a complete routing with planned times in picoseconds: the horizon, and the
    hint. The `options` are for the solvers; the `seconds` are wall clock, or counted work.
    """
    from taccl.synth import milp

    horizon = max((hop.end for hop in known), default=0)
    if not horizon:
        return []
    tick = max(1, -(-horizon // HORIZON_TICKS))
    ticks = {link: -(-time // tick) for link, time in network.duration.items()}
    limit = sum(ticks[hop.arc.link] for hop in known) if network.point_to_point else 0
    limit = max(limit, max(-(-hop.end // tick) for hop in known) + len(known))
    model = milp.Model()
    model.continuous("makespan", 0, limit)
    uses: dict[tuple[int, Arc], str] = {}
    for number, demand in enumerate(network.demands):
        for arc in demand.arcs:
            uses[number, arc] = model.binary(f"use_{number}_{arc.link}")
        if network.point_to_point:
            _add_path(model, uses, number, demand, ticks)
        else:
            _add_tree(model, uses, number, demand, ticks, limit)
    loads: dict[int, Terms] = defaultdict(list)
    for (_, arc), use in uses.items():
        for orbit, busy in network.uses[arc.link]:
            loads[orbit].append((use, -(-busy // tick)))
    for _, terms in sorted(loads.items()):
        model.at_most([*terms, ("makespan", -1)], 0)
    _limit_hops(model, uses, network)
    scale = max(1, sum(ticks[arc.link] for _, arc in uses) // 500)
    model.objective.extend([
        ("makespan", 1000),
        *_add_connections(model, uses, network, max(1, 1000 * max(ticks.values()) // 100)),
        *_add_balance(model, uses, network, tick, limit),
        *((use, -(-ticks[arc.link] // scale)) for (_, arc), use in uses.items()),
    ])  # fmt: skip
    hint = dict.fromkeys(uses.values(), 0) | {uses[hop.demand, hop.arc]: 1 for hop in known}
    answer = milp.race(model, options, seconds, hint)
    options.report(f"routing: {answer.status.value}, {len(answer.pool)} routings ({answer.winner})")
    return [
        tuple(
            from_root(demand, reached(demand.roots, [
                arc for arc in demand.arcs if values.get(uses[number, arc], 0) == 1
            ]))
            for number, demand in enumerate(network.demands)
        )
        for values in answer.pool
    ]  # fmt: skip


def _add_path(
    model: "Model", uses: Uses, number: int, demand: Demand, ticks: Mapping[int, int]
) -> None:
    """Add (flow) and (length) for a demand with one target."""
    balance: dict[Rank, Terms] = defaultdict(list)
    for arc in demand.arcs:
        balance[arc.head].append((uses[number, arc], 1))
        balance[arc.tail].append((uses[number, arc], -1))
    for rank, terms in sorted(balance.items()):
        if rank not in demand.roots:
            model.exactly(terms, int(rank in demand.targets))
    if demand.arcs:
        length = [(uses[number, arc], ticks[arc.link]) for arc in demand.arcs]
        model.at_most([*length, ("makespan", -1)], 0)


def _add_tree(
    model: "Model", uses: Uses, number: int, demand: Demand, ticks: Mapping[int, int], limit: int
) -> None:
    """Add (arrive) and (causality) for a demand with several targets."""
    entering: dict[Rank, list[Arc]] = defaultdict(list)
    for arc in demand.arcs:
        entering[arc.head].append(arc)
    for rank, arcs in sorted(entering.items()):
        once = model.exactly if rank in demand.targets else model.at_most
        once([(uses[number, arc], 1) for arc in arcs], 1)
    for arc in demand.arcs:
        if arc.tail not in demand.roots and arc.tail not in demand.targets:
            into = [(uses[number, other], -1) for other in entering[arc.tail]]
            model.at_most([(uses[number, arc], 1), *into], 0)
    reach = {}
    for rank in sorted(entering):
        reach[rank] = model.continuous(f"reach_{number}_{rank}", 0, limit)
        model.at_most([(reach[rank], 1), ("makespan", -1)], 0)
    for arc in demand.arcs:
        time = ticks[arc.link]
        terms = [(reach[arc.head], -1), (uses[number, arc], limit + time)]
        if arc.tail not in demand.roots:
            terms.append((reach[arc.tail], 1))
        model.at_most(terms, limit)


def _limit_hops(model: "Model", uses: Uses, network: Network) -> None:
    """Add (hops), where the arcs alone don't limit every path."""
    extra = network.problem.logical.max_extra_hops
    if not extra:
        return
    for number, demand in enumerate(network.demands):
        if network.point_to_point:
            taken = [(uses[number, arc], 1) for arc in demand.arcs]
            if taken:
                model.at_most(taken, demand.hops[demand.targets[0]] + extra)
            continue
        most = {arc.head: demand.hops[arc.head] + extra for arc in demand.arcs}
        depth = {
            rank: model.continuous(f"depth_{number}_{rank}", 1, limit)
            for rank, limit in sorted(most.items())
        }
        for arc in demand.arcs:
            terms = [(depth[arc.head], -1), (uses[number, arc], most.get(arc.tail, 0) + 1)]
            if arc.tail not in demand.roots:
                terms.append((depth[arc.tail], 1))
            model.at_most(terms, most.get(arc.tail, 0))


def _add_connections(model: "Model", uses: Uses, network: Network, unit: int) -> Terms:
    """Add (opened); return the terms that make few or many connections a little cheaper.

    Nothing is added where neither a policy nor a limit asks for it.
    """
    logical, group = network.problem.logical, network.problem.group
    if not logical.switch_policy and logical.connections_per_rank is None:
        return []
    connection = connections(network)
    carried: dict[int, Terms] = defaultdict(list)
    for (_, arc), use in uses.items():
        carried[connection[arc.link]].append((use, -1))
    opened = {number: model.binary(f"open_{number}") for number in sorted(carried)}
    for number, terms in sorted(carried.items()):
        model.at_most([(opened[number], 1), *terms], 0)
        for use, _ in terms:
            model.at_most([(use, 1), (opened[number], -1)], 0)
    table, most = network.problem.topology.links, logical.connections_per_rank
    for rank in sorted(set(group.rank_orbit.tolist())) if most is not None else ():
        for here, there in ((table.src, table.dst), (table.dst, table.src)):
            peers = {int(there[k]): number for k, number in connection.items() if here[k] == rank}
            terms = [(opened[number], 1) for _, number in sorted(peers.items()) if number in opened]
            if most is not None and len(terms) > most:
                model.at_most(terms, most)
    weights = {link: WEIGHT.get(policy_of(network, link), 0) for link in opened}
    return [(opened[link], weight * unit) for link, weight in weights.items() if weight]


def _add_balance(model: "Model", uses: Uses, network: Network, tick: int, limit: int) -> Terms:
    """Add (balance); return its term of the objective: a hundredth of what the makespan weighs."""
    topology, sign = network.problem.topology, BALANCE.get(network.problem.logical.balance or "")
    if sign is None:
        return []
    loads: dict[int, Terms] = defaultdict(list)
    for (_, arc), use in uses.items():
        if topology.server_of[arc.tail] == topology.server_of[arc.head]:
            for orbit, busy in network.uses[arc.link]:
                loads[orbit].append((use, sign * -(-busy // tick)))
    extreme = model.continuous("extreme_load", 0, limit)
    for _, terms in sorted(loads.items()):
        model.at_most([*terms, (extreme, -sign)], 0)
    return [(extreme, sign * 10)]


def policy_of(network: Network, link: int) -> str:
    """Return the connection policy of a `link`: that of a switch on its path, or ``free``.

    The sketch of the problem of the `network` has the policies.
    """
    topology = network.problem.topology
    policy = network.problem.logical.switch_policy
    for edge in topology.links.edges_of(link):
        name = topology.vertex_name(topology.edges[edge].head)
        found = policy.get(name) or policy.get(name.partition("/")[2])
        if found:
            return found
    src, dst = int(topology.links.src[link]), int(topology.links.dst[link])
    if topology.server_of[src] == topology.server_of[dst]:
        return policy.get("*", "free")
    return "free"


def reached(roots: Sequence[Rank], arcs: Sequence[Arc]) -> dict[Rank, Arc]:
    """Return the arc by which each rank is first reached from the `roots` by some `arcs`.

    A path of a solution that is not the best one may pass a ring, and enter a rank twice.
    """
    leaving: dict[Rank, list[Arc]] = defaultdict(list)
    for arc in arcs:
        leaving[arc.tail].append(arc)
    taken: dict[Rank, Arc] = {}
    ranks = deque(roots)
    while ranks:
        for arc in leaving[ranks.popleft()]:
            if arc.head not in taken and arc.head not in roots:
                taken[arc.head] = arc
                ranks.append(arc.head)
    return taken


COUNTED = Options(time_limit=4.0, deterministic=True, workers=1)

SECONDS = 2.0
"""For the routing that a sketch's limits or preferences ask for."""

MAX_PREFERRED = 2500
"""Arcs up to which preferred routes are found first."""

Gateways = Mapping[int, set[int]]
"""For every first or last edge of a path between servers, the ranks that share its NIC."""

Filter = Callable[[Topology, Gateways, Demand, Arc], bool]


def _crosses(topology: Topology, arc: Arc) -> bool:
    return topology.server_of[arc.tail] != topology.server_of[arc.head]


def _direct_map(topology: Topology, _gateways: Gateways, _demand: Demand, arc: Arc) -> bool:
    """Servers are crossed only between GPUs of the same local number."""
    if not _crosses(topology, arc):
        return True
    return counterpart(topology, arc.tail, topology.server_of[arc.head]) == arc.head


def _cross_first(topology: Topology, gateways: Gateways, demand: Demand, arc: Arc) -> bool:
    """Only the root's own GPU sends to other servers, to its counterparts.

    A chunk for another server makes no hop in the one that it leaves.
    """
    server, home = topology.server_of, topology.server_of[demand.root]
    if not _crosses(topology, arc):
        leaves = len(demand.targets) == 1 and server[demand.targets[0]] != home
        return server[arc.head] != home or not leaves
    return arc.tail in demand.roots and _direct_map(topology, gateways, demand, arc)


def _one_gateway(topology: Topology, gateways: Gateways, _demand: Demand, arc: Arc) -> bool:
    """Of the GPUs that share a NIC, the first sends and the last receives.

    These are the paper's relays: chunks that meet at one sender can travel as one message.
    """
    if not _crosses(topology, arc):
        return True
    link = topology.link(arc.link)
    return link.src == min(gateways[link.edges[0]]) and link.dst == max(gateways[link.edges[-1]])


def _gateways_of(topology: Topology) -> Gateways:
    table, edges = topology.links, topology.edges
    users: dict[int, set[int]] = defaultdict(set)
    shared: dict[int, int] = {}
    for link in range(len(table)):
        src, dst = int(table.src[link]), int(table.dst[link])
        if topology.server_of[src] != topology.server_of[dst]:
            path = table.edges_of(link)
            for edge, vertex, rank in (
                (path[0], edges[path[0]].head, src),
                (path[-1], edges[path[-1]].tail, dst),
            ):
                shared[edge] = vertex if vertex >= topology.num_ranks else -1 - edge
                users[shared[edge]].add(rank)
    return {edge: users[vertex] for edge, vertex in shared.items()}


ROUTE_RESTRICTIONS: Mapping[str, Filter] = MappingProxyType({
    "any way": lambda *_: True,
    "direct map": _direct_map,
    "cross first": _cross_first,
    "one gateway": _one_gateway,
})  # fmt: skip


def networks(
    problem: Problem, *, reverse: bool = False, options: Options = COUNTED
) -> Iterator[tuple[str, Network]]:
    """Yield the network of every route restriction under which all targets can be reached.

    Where the sketch limits connections, all of them share one choice of connections, made by the
    routing MILP, so that whatever is found on them keeps the limit. Where it prefers some routes
    to others, the routes that the MILP prefers come first, and win where they are as fast. The
    `problem` and `reverse` are as for :func:`taccl.model.routes.build_network`; the `options` are
    for that MILP.

    Raises NoScheduleError when the targets can't be reached under the sketch at all.
    """
    logical = problem.logical
    full = build_network(problem, reverse=reverse)
    if logical.connections_per_rank is not None:
        full = _within_connections(full, options)
    small = sum(len(demand.arcs) for demand in full.demands) <= MAX_PREFERRED
    policies = {policy_of(full, link) for link in set(connections(full).values())} if small else ()
    if small and (logical.balance is not None or not WEIGHT.keys().isdisjoint(policies)):
        for routes in route(full, greedy_routes(full), options, SECONDS)[:1]:
            yield "as sketched", full.with_arcs(map(sorted, routes))
    gateways = _gateways_of(problem.topology)
    seen = set()
    for name, keeps in ROUTE_RESTRICTIONS.items():
        narrow = full.with_arcs(
            [arc for arc in demand.arcs if keeps(problem.topology, gateways, demand, arc)]
            for demand in full.demands
        )
        arcs = tuple(demand.arcs for demand in narrow.demands)
        if arcs not in seen and all(
            reached(demand.roots, demand.arcs).keys() >= set(demand.targets)
            for demand in narrow.demands
        ):
            yield name, narrow
        seen.add(arcs)


def _within_connections(network: Network, options: Options) -> Network:
    """Return the network with the connections of one routing that keeps the sketch's limit.

    The two phases of an AllReduce share the connections of its gather.
    """
    problem = network.problem
    reduction = reduces_and_spreads(problem.collective) and network.reverse
    model = build_network(problem) if reduction else network
    found = route(model, greedy_routes(model), options, SECONDS)
    if not found:
        raise NoScheduleError(
            f"no {problem.logical.connections_per_rank} connections for each GPU were found that"
            " serve every chunk",
            fix="raise connections_per_gpu in the sketch",
        )
    connection = connections(model)
    opened = {connection[arc.link] for arcs in found[0] for arc in arcs}
    if reduction:
        closed = (k for k in problem.logical.links() if connection.get(k) not in opened)
        return build_network(problem, reverse=True, closed=closed)
    return network.with_arcs(
        [arc for arc in demand.arcs if connection[arc.link] in opened] for demand in network.demands
    )

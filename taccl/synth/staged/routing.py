"""Named restrictions of the arcs: other routings than the one the relaxation likes best.

The routing MILP does not see what batching saves. Restricted to one way of crossing servers it
finds trees and paths whose chunks share links, which stage 3 then sends as few messages.

What a sketch says about connections: how many at most, few or many, alike or not.

A connection is an ordered pair of ranks that exchange anything, over one or several parallel
links. On orbits one stands for all its images, so it is known by the smallest link of them.

Stage 1: which arcs every representative chunk takes (Shah et al., NSDI 2023, section 5.1).

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
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from taccl.errors import NoScheduleError
from taccl.model.problem import Options, Problem, reduces_and_spreads
from taccl.model.routes import (
    Arc,
    Demand,
    Network,
    Routes,
    build_network,
    connections,
    counterpart,
)
from taccl.synth.greedy import Hop, greedy_routes
from taccl.topology.graph import Rank, Topology

if TYPE_CHECKING:
    from taccl.synth.milp import Model


Uses = Mapping[tuple[int, Arc], str]
"""(demand, arc) to the name of the variable that says whether it is taken."""

WEIGHT = {"uc-min": 1, "uc-max": -1}
BALANCE = {"minmax": 1, "maxmin": -1}


def add_opened(model: "Model", network: Network, uses: Uses) -> dict[int, str]:
    """Add a variable for every connection, open when anything uses it; keep a sketch's limit.

    Nothing is added where neither a policy nor a limit asks for it.
    """
    from taccl.synth import milp

    logical = network.problem.logical
    if not logical.switch_policy and logical.connections_per_rank is None:
        return {}
    connection = connections(network)
    carried: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for (_, arc), use in uses.items():
        carried[connection[arc.link]].append((use, -1))
    opened = {number: milp.binary(model, f"open_{number}") for number in sorted(carried)}
    for number, terms in sorted(carried.items()):
        milp.at_most(model, [(opened[number], 1), *terms], 0)
        for use, _ in terms:
            milp.at_most(model, [(use, 1), (opened[number], -1)], 0)
    if logical.connections_per_rank is not None:
        _limit(model, network, connection, opened, logical.connections_per_rank)
    return opened


def _limit(
    model: "Model",
    network: Network,
    connection: Mapping[int, int],
    opened: Mapping[int, str],
    limit: int,
) -> None:
    from taccl.synth import milp

    table, group = network.problem.topology.links, network.problem.group
    for rank in sorted(set(group.rank_orbit.tolist())):
        for here, there in ((table.src, table.dst), (table.dst, table.src)):
            peers = {int(there[k]): number for k, number in connection.items() if here[k] == rank}
            terms = [(opened[number], 1) for _, number in sorted(peers.items()) if number in opened]
            if len(terms) > limit:
                milp.at_most(model, terms, limit)


def preferred(network: Network, opened: Mapping[int, str], unit: int) -> list[tuple[str, int]]:
    """Return the terms that make few (uc-min) or many (uc-max) connections a little cheaper."""
    terms = []
    for link, name in opened.items():
        weight = WEIGHT.get(policy_of(network, link), 0)
        if weight:
            terms.append((name, weight * unit))
    return terms


def add_balance(
    model: "Model", network: Network, uses: Uses, tick: int, limit: int
) -> list[tuple[str, int]]:
    """Add the load of the busiest (minmax) or least busy (maxmin) resource inside servers.

    Returns
    -------
    Its term of the objective: a hundredth of what the makespan weighs.
    """
    from taccl.synth import milp

    topology, sign = network.problem.topology, BALANCE.get(network.problem.logical.balance or "")
    if sign is None:
        return []
    loads: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for (_, arc), use in uses.items():
        if topology.server_of[arc.tail] == topology.server_of[arc.head]:
            for orbit, busy in network.uses[arc.link]:
                loads[orbit].append((use, -(-busy // tick)))
    extreme = milp.whole(model, "extreme_load", 0, limit)
    for _, terms in sorted(loads.items()):
        signed = [(use, sign * busy) for use, busy in terms]
        milp.at_most(model, [*signed, (extreme, -sign)], 0)
    return [(extreme, sign * 10)]


def policy_of(network: Network, link: int) -> str:
    """Return the connection policy of a link: that of a switch on its path, or ``free``."""
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


def prefers(network: Network) -> bool:
    """Tell whether the sketch prefers some of equally fast routings."""
    logical = network.problem.logical
    policies = {policy_of(network, link) for link in set(connections(network).values())}
    return logical.balance is not None or bool(policies & set(WEIGHT))


def kept(network: Network, arcs: Iterable[Arc]) -> frozenset[int]:
    """Return all links of the connections that some arcs use."""
    connection = connections(network)
    open_ = {connection[arc.link] for arc in arcs}
    return frozenset(link for link, number in connection.items() if number in open_)


HORIZON_TICKS = 20_000
"""Times in the model are scaled to about this many ticks, rounded up."""


@dataclass
class _Variables:
    use: dict[tuple[int, Arc], str] = field(default_factory=dict)
    reach: dict[tuple[int, Rank], str] = field(default_factory=dict)


def route(network: Network, known: list[Hop], options: Options, seconds: float) -> list[Routes]:
    """Return up to four routings, the best of the relaxation first; may be empty.

    ``known`` is a complete routing with planned times; it sets the horizon and is the hint.
    """
    from taccl.synth import milp

    horizon = max((hop.end for hop in known), default=0)
    if not horizon:
        return []
    tick = max(1, -(-horizon // HORIZON_TICKS))
    ticks = {link: -(-time // tick) for link, time in network.duration.items()}
    limit = sum(ticks[hop.arc.link] for hop in known) if network.point_to_point else 0
    limit = max(limit, max(-(-hop.end // tick) for hop in known) + len(known))
    model = milp.new_model()
    x = _Variables()
    makespan = milp.whole(model, "makespan", 0, limit)
    for number, demand in enumerate(network.demands):
        for arc in demand.arcs:
            x.use[number, arc] = milp.binary(model, _name(number, arc))
        if network.point_to_point:
            _flow(model, x, number, demand)
            _length(model, x, number, demand, ticks, makespan)
        else:
            _arrive(model, x, number, demand)
            _causality(model, x, number, demand, ticks, (makespan, limit))
    _capacity(model, network, x, tick, makespan)
    _hops(model, network, x)
    opened = add_opened(model, network, x.use)
    wishes = preferred(network, opened, max(1, 1000 * max(ticks.values()) // 100))
    wishes += add_balance(model, network, x.use, tick, limit)
    _objective(model, x, ticks, makespan, wishes)
    answer = milp.race(model, options, seconds, _hint(known, network))
    options.report(f"routing: {answer.status.value}, {len(answer.pool)} routings ({answer.winner})")
    return [_read(network, values) for values in answer.pool]


def _name(number: int, arc: Arc) -> str:
    return f"use_{number}_{arc.link}"


def _flow(model: "Model", x: _Variables, number: int, demand: Demand) -> None:
    from taccl.synth import milp

    balance: dict[Rank, list[tuple[str, int]]] = defaultdict(list)
    for arc in demand.arcs:
        balance[arc.head].append((x.use[number, arc], 1))
        balance[arc.tail].append((x.use[number, arc], -1))
    for rank, terms in sorted(balance.items()):
        if rank not in demand.roots:
            milp.exactly(model, terms, int(rank in demand.targets))


def _length(
    model: "Model",
    x: _Variables,
    number: int,
    demand: Demand,
    ticks: dict[int, int],
    makespan: str,
) -> None:
    from taccl.synth import milp

    terms = [(x.use[number, arc], ticks[arc.link]) for arc in demand.arcs]
    if terms:
        milp.at_most(model, [*terms, (makespan, -1)], 0)


def _arrive(model: "Model", x: _Variables, number: int, demand: Demand) -> None:
    from taccl.synth import milp

    entering: dict[Rank, list[Arc]] = defaultdict(list)
    for arc in demand.arcs:
        entering[arc.head].append(arc)
    for rank, arcs in sorted(entering.items()):
        terms = [(x.use[number, arc], 1) for arc in arcs]
        if rank in demand.targets:
            milp.exactly(model, terms, 1)
        else:
            milp.at_most(model, terms, 1)
    for arc in demand.arcs:
        if arc.tail not in demand.roots and arc.tail not in demand.targets:
            into = [(x.use[number, other], -1) for other in entering[arc.tail]]
            milp.at_most(model, [(x.use[number, arc], 1), *into], 0)


def _causality(
    model: "Model",
    x: _Variables,
    number: int,
    demand: Demand,
    ticks: dict[int, int],
    horizon: tuple[str, int],
) -> None:
    from taccl.synth import milp

    makespan, limit = horizon
    for rank in sorted({arc.head for arc in demand.arcs}):
        reach = milp.whole(model, f"reach_{number}_{rank}", 0, limit)
        x.reach[number, rank] = reach
        milp.at_most(model, [(reach, 1), (makespan, -1)], 0)
    for arc in demand.arcs:
        time = ticks[arc.link]
        terms = [(x.reach[number, arc.head], -1), (x.use[number, arc], limit + time)]
        if arc.tail not in demand.roots:
            terms.append((x.reach[number, arc.tail], 1))
        milp.at_most(model, terms, limit)


def _capacity(
    model: "Model",
    network: Network,
    x: _Variables,
    tick: int,
    makespan: str,
) -> None:
    from taccl.synth import milp

    loads: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for (_, arc), use in x.use.items():
        for orbit, busy in network.uses[arc.link]:
            loads[orbit].append((use, -(-busy // tick)))
    for _, terms in sorted(loads.items()):
        milp.at_most(model, [*terms, (makespan, -1)], 0)


def _hops(model: "Model", network: Network, x: _Variables) -> None:
    """Limit the hops of every path, where the arcs alone don't."""
    from taccl.synth import milp

    extra = network.problem.logical.max_extra_hops
    if not extra:
        return
    for number, demand in enumerate(network.demands):
        if network.point_to_point:
            taken = [(x.use[number, arc], 1) for arc in demand.arcs]
            if taken:
                milp.at_most(model, taken, demand.hops[demand.targets[0]] + extra)
            continue
        most = {arc.head: demand.hops[arc.head] + extra for arc in demand.arcs}
        depth = {
            rank: milp.whole(model, f"depth_{number}_{rank}", 1, limit)
            for rank, limit in sorted(most.items())
        }
        for arc in demand.arcs:
            terms = [(depth[arc.head], -1), (x.use[number, arc], most.get(arc.tail, 0) + 1)]
            if arc.tail not in demand.roots:
                terms.append((depth[arc.tail], 1))
            milp.at_most(model, terms, most.get(arc.tail, 0))


def _objective(
    model: "Model",
    x: _Variables,
    ticks: dict[int, int],
    makespan: str,
    wishes: list[tuple[str, int]],
) -> None:
    from taccl.synth import milp

    scale = max(1, sum(ticks[arc.link] for _, arc in x.use) // 500)
    terms = [(makespan, 1000), *wishes]
    terms += [(use, -(-ticks[arc.link] // scale)) for (_, arc), use in x.use.items()]
    milp.minimise(model, terms)


def _hint(known: list[Hop], network: Network) -> dict[str, int]:
    taken = {_name(hop.demand, hop.arc): 1 for hop in known}
    every = (_name(n, arc) for n, demand in enumerate(network.demands) for arc in demand.arcs)
    return {name: taken.get(name, 0) for name in every}


def _read(network: Network, chosen: Mapping[str, int]) -> Routes:
    """Return the arcs that a solution takes, in order from the roots."""
    routes = []
    for number, demand in enumerate(network.demands):
        arcs = [arc for arc in demand.arcs if chosen.get(_name(number, arc), 0) == 1]
        routes.append(from_root(demand, reached(demand.roots, arcs)))
    return tuple(routes)


def reached(roots: Sequence[Rank], arcs: Sequence[Arc]) -> dict[Rank, Arc]:
    """Return the arc by which each rank is first reached from the roots.

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


def from_root(demand: Demand, taken: dict[Rank, Arc]) -> tuple[Arc, ...]:
    """Return the arcs of a tree (given by head) that lead to targets, parents first."""
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


COUNTED = Options(time_limit=4.0, deterministic=True, workers=1)

SECONDS = 2.0
"""For the routing that a sketch's limits or preferences ask for."""

MAX_PREFERRED = 2500
"""Arcs up to which preferred routes are found first."""

Doors = Mapping[int, set[int]]
"""For every first or last edge of a path between servers, the ranks that share its NIC."""

Filter = Callable[[Topology, Doors, Demand, Arc], bool]


def _crosses(topology: Topology, arc: Arc) -> bool:
    return topology.server_of[arc.tail] != topology.server_of[arc.head]


def _any_way(_topology: Topology, _doors: Doors, _demand: Demand, _arc: Arc) -> bool:
    return True


def _direct_map(topology: Topology, _doors: Doors, _demand: Demand, arc: Arc) -> bool:
    """Servers are crossed only between GPUs of the same local number."""
    if not _crosses(topology, arc):
        return True
    return counterpart(topology, arc.tail, topology.server_of[arc.head]) == arc.head


def _cross_first(topology: Topology, doors: Doors, demand: Demand, arc: Arc) -> bool:
    """Only the root's own GPU sends to other servers, to its counterparts."""
    if not _crosses(topology, arc):
        return topology.server_of[arc.head] != topology.server_of[demand.root] or not (
            _leaves_home(topology, demand)
        )
    return arc.tail in demand.roots and _direct_map(topology, doors, demand, arc)


def _leaves_home(topology: Topology, demand: Demand) -> bool:
    """Tell whether a point-to-point demand ends in another server."""
    home = topology.server_of[demand.root]
    return len(demand.targets) == 1 and topology.server_of[demand.targets[0]] != home


def _one_door(topology: Topology, doors: Doors, _demand: Demand, arc: Arc) -> bool:
    """Of the GPUs that share a NIC, the first sends and the last receives.

    These are the paper's relays: chunks that meet at one sender can travel as one message.
    """
    if not _crosses(topology, arc):
        return True
    link = topology.link(arc.link)
    return link.src == min(doors[link.edges[0]]) and link.dst == max(doors[link.edges[-1]])


def _doors(topology: Topology) -> Doors:
    table, edges = topology.links, topology.edges
    users: dict[int, set[int]] = defaultdict(set)
    doors: dict[int, int] = {}
    for link in range(len(table)):
        src, dst = int(table.src[link]), int(table.dst[link])
        if topology.server_of[src] != topology.server_of[dst]:
            path = table.edges_of(link)
            for edge, vertex, rank in (
                (path[0], edges[path[0]].head, src),
                (path[-1], edges[path[-1]].tail, dst),
            ):
                doors[edge] = vertex if vertex >= topology.num_ranks else -1 - edge
                users[doors[edge]].add(rank)
    return {edge: users[door] for edge, door in doors.items()}


VARIANTS: Mapping[str, Filter] = MappingProxyType({
    "any way": _any_way,
    "direct map": _direct_map,
    "cross first": _cross_first,
    "one door": _one_door,
})  # fmt: skip


def networks(
    problem: Problem, *, reverse: bool = False, options: Options = COUNTED
) -> Iterator[tuple[str, Network]]:
    """Yield the network of every variant under which all targets can be reached.

    Where the sketch limits connections, all variants share one choice of them, made by the
    routing MILP, so that whatever is found on them keeps the limit. Where it prefers some routes
    to others, the routes that the MILP prefers come first, and win where they are as fast.

    Parameters
    ----------
    problem, reverse
        As for :func:`taccl.model.routes.build_network`.
    options
        For that MILP.

    Raises
    ------
    NoScheduleError
        When the targets can't be reached under the sketch at all.
    """
    whole = build_network(problem, reverse=reverse)
    if problem.logical.connections_per_rank is not None:
        whole = _within_connections(whole, options)
    doors = _doors(problem.topology)
    seen = set()
    if _arcs(whole) <= MAX_PREFERRED and prefers(whole):
        for routes in route(whole, greedy_routes(whole), options, SECONDS)[:1]:
            yield "as sketched", _only(whole, routes)
    for name, keeps in VARIANTS.items():
        demands = tuple(
            replace(
                demand,
                arcs=tuple(a for a in demand.arcs if keeps(problem.topology, doors, demand, a)),
            )
            for demand in whole.demands
        )
        arcs = tuple(demand.arcs for demand in demands)
        if arcs in seen:
            continue
        seen.add(arcs)
        if all(_serves(demand) for demand in demands):
            yield name, Network(problem, reverse, demands)


def _arcs(network: Network) -> int:
    return sum(len(demand.arcs) for demand in network.demands)


def _only(network: Network, routes: Routes) -> Network:
    """Return the network with the arcs of one routing."""
    pairs = zip(network.demands, routes, strict=True)
    demands = tuple(replace(demand, arcs=tuple(sorted(arcs))) for demand, arcs in pairs)
    return replace(network, demands=demands)


def _within_connections(network: Network, options: Options) -> Network:
    """Return the network with the connections of one routing that keeps the sketch's limit.

    The halves of an AllReduce share the connections of its gather.
    """
    problem = network.problem
    mirrored = reduces_and_spreads(problem.collective) and network.reverse
    model = build_network(problem) if mirrored else network
    found = route(model, greedy_routes(model), options, SECONDS)
    if not found:
        raise NoScheduleError(
            f"no {problem.logical.connections_per_rank} connections for each GPU were found that"
            " serve every chunk",
            fix="raise connections_per_gpu in the sketch",
        )
    open_ = kept(model, (arc for arcs in found[0] for arc in arcs))
    if mirrored:
        closed = (link for link in problem.logical.links() if link not in open_)
        return build_network(problem, reverse=True, closed=closed)
    demands = (
        replace(demand, arcs=tuple(arc for arc in demand.arcs if arc.link in open_))
        for demand in network.demands
    )
    return replace(network, demands=tuple(demands))


def _serves(demand: Demand) -> bool:
    reached, grows = set(demand.roots), True
    while grows:
        new = {arc.head for arc in demand.arcs if arc.tail in reached} - reached
        reached |= new
        grows = bool(new)
    return reached.issuperset(demand.targets)

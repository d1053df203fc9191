"""Named restrictions of the arcs: other routings than the one the relaxation likes best.

The routing MILP does not see what batching saves. Restricted to one way of crossing servers it
finds trees and paths whose chunks share links, which stage 3 then sends as few messages.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from taccl.errors import NoScheduleError
from taccl.synth.connections import kept, prefers
from taccl.synth.greedy import greedy_routes
from taccl.synth.problem import Options, Problem, reduces_and_spreads
from taccl.synth.routes import Arc, Demand, Network, build_network, counterpart
from taccl.synth.routing import Routes, route
from taccl.topology import Topology

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
        As for :func:`taccl.synth.routes.build_network`.
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

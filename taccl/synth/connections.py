"""What a sketch says about connections: how many at most, few or many, alike or not.

A connection is an ordered pair of ranks that exchange anything, over one or several parallel
links. On orbits one stands for all its images, so it is known by the smallest link of them.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from taccl.synth.routes import Arc, Network

if TYPE_CHECKING:
    from taccl.synth.highs import Model

Uses = Mapping[tuple[int, Arc], str]
"""(demand, arc) to the name of the variable that says whether it is taken."""

WEIGHT = {"uc-min": 1, "uc-max": -1}
BALANCE = {"minmax": 1, "maxmin": -1}


def connections(network: Network) -> dict[int, int]:
    """Return the connection of every allowed link: the smallest link of its orbit of pairs."""
    problem = network.problem
    topology, group = problem.topology, problem.group
    table, links = topology.links, list(problem.logical.links())
    first = [topology.links_between(int(table.src[k]), int(table.dst[k]))[0] for k in links]
    images = [group.link_image(element, first) for element in range(len(group))]
    smallest = [min(column) for column in zip(*images, strict=True)]
    # Parallel links may have images among the parallel links of another pair.
    pair = [topology.link(link) for link in smallest]
    return {
        link: topology.links_between(one.src, one.dst)[0]
        for link, one in zip(links, pair, strict=True)
    }


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

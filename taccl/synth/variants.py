"""Named restrictions of the arcs: other routings than the one the relaxation likes best.

The routing MILP does not see what batching saves. Restricted to one way of crossing servers it
finds trees and paths whose chunks share links, which stage 3 then sends as few messages.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from taccl.synth.problem import Problem
from taccl.synth.routes import Arc, Demand, Network, build_network, counterpart
from taccl.topology import Topology

Filter = Callable[[Topology, Demand, Arc], bool]


def _crosses(topology: Topology, arc: Arc) -> bool:
    return topology.server_of[arc.tail] != topology.server_of[arc.head]


def _any_way(topology: Topology, demand: Demand, arc: Arc) -> bool:  # noqa: ARG001 - a Filter
    return True


def _direct_map(topology: Topology, demand: Demand, arc: Arc) -> bool:  # noqa: ARG001 - a Filter
    """Servers are crossed only between GPUs of the same local number."""
    if not _crosses(topology, arc):
        return True
    return counterpart(topology, arc.tail, topology.server_of[arc.head]) == arc.head


def _cross_first(topology: Topology, demand: Demand, arc: Arc) -> bool:
    """Only the root's own GPU sends to other servers, to its counterparts."""
    if not _crosses(topology, arc):
        return topology.server_of[arc.head] != topology.server_of[demand.root] or not (
            _leaves_home(topology, demand)
        )
    return arc.tail == demand.root and _direct_map(topology, demand, arc)


def _leaves_home(topology: Topology, demand: Demand) -> bool:
    """Tell whether a point-to-point demand ends in another server."""
    home = topology.server_of[demand.root]
    return len(demand.targets) == 1 and topology.server_of[demand.targets[0]] != home


VARIANTS: Mapping[str, Filter] = MappingProxyType({
    "any way": _any_way,
    "direct map": _direct_map,
    "cross first": _cross_first,
})  # fmt: skip


def networks(problem: Problem, *, reverse: bool = False) -> Iterator[tuple[str, Network]]:
    """Yield the network of every variant under which all targets can be reached.

    Raises
    ------
    NoScheduleError
        When they can't be reached under the sketch at all.
    """
    whole = build_network(problem, reverse=reverse)
    seen = set()
    for name, keeps in VARIANTS.items():
        demands = tuple(_restrict(problem.topology, demand, keeps) for demand in whole.demands)
        arcs = tuple(demand.arcs for demand in demands)
        if arcs in seen:
            continue
        seen.add(arcs)
        if all(_serves(demand) for demand in demands):
            yield name, Network(problem, reverse, demands)


def _restrict(topology: Topology, demand: Demand, keeps: Filter) -> Demand:
    return replace(demand, arcs=tuple(a for a in demand.arcs if keeps(topology, demand, a)))


def _serves(demand: Demand) -> bool:
    reached, grows = {demand.root}, True
    while grows:
        new = {arc.head for arc in demand.arcs if arc.tail in reached} - reached
        reached |= new
        grows = bool(new)
    return reached.issuperset(demand.targets)

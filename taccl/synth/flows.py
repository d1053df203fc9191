"""What the exact engine routes: every representative chunk, in one phase or in two.

A chunk that is only copied has one flow, from its roots to its targets. A chunk that is only
summed has one, from its sources to its root. One that is summed and then spread has both, and
where nothing ties it to its owner, any of its targets may be the root.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from taccl.synth.problem import Problem, reduces_and_spreads
from taccl.synth.routes import Network, build_network, resource_times
from taccl.topology import Rank
from taccl.units import Time


@dataclass(frozen=True, slots=True)
class Flow:
    """One representative chunk on its way in one phase.

    Parameters
    ----------
    chunk
        Its id.
    summed
        True when it flows from the ends to a root, and is added up on the way.
    roots
        Where it starts; where it ends when it is summed.
    chosen
        True when exactly one of the roots is the root; else all of them hold the chunk.
    ends
        Targets, or sources when it is summed, without fixed roots.
    links
        What it may use, ascending.
    hops
        The most links on its way between a root and each rank; None: any number.
    """

    chunk: int
    summed: bool
    roots: tuple[Rank, ...]
    chosen: bool
    ends: frozenset[Rank]
    links: tuple[int, ...]
    hops: dict[Rank, int] | None


@dataclass(frozen=True, eq=False)
class Flows:
    """All flows of a problem, and what messages cost."""

    problem: Problem
    flows: tuple[Flow, ...]

    @cached_property
    def links(self) -> tuple[int, ...]:
        """All links that some flow may use, ascending."""
        return tuple(sorted({link for flow in self.flows for link in flow.links}))

    @property
    def size(self) -> int:
        """Pairs of a flow and a link that it may use: the intervals of a model."""
        return sum(len(flow.links) for flow in self.flows)

    def ends_of(self, link: int) -> tuple[Rank, Rank]:
        """Return the source and the destination of a link."""
        table = self.problem.topology.links
        return int(table.src[link]), int(table.dst[link])

    def cost(self, link: int, chunks: int) -> tuple[Time, tuple[tuple[int, Time], ...]]:
        """Return (time to arrival, (resource orbit, time held)...) of a message."""
        known = self._costs
        if (link, chunks) not in known:
            problem = self.problem
            arrival = problem.topology.arrival(link, chunks * problem.chunk_size)
            known[link, chunks] = (arrival, resource_times(problem, link, chunks))
        return known[link, chunks]

    @cached_property
    def _costs(self) -> dict[tuple[int, int], tuple[Time, tuple[tuple[int, Time], ...]]]:
        return {}


def flows_of(problem: Problem) -> Flows:
    """Return the flows of a problem.

    Raises
    ------
    NoScheduleError
        When a chunk can't reach a target.
    """
    collective = problem.collective
    if not reduces_and_spreads(collective):
        return flows_of_networks([build_network(problem, reverse=collective.reduces)])
    halves = flows_of_networks([build_network(problem, reverse=r) for r in (True, False)])
    if not _any_root(problem):
        return halves
    every = {
        link
        for network in (build_network(problem, reverse=r) for r in (True, False))
        for demand in network.demands
        for link in (arc.link for arc in demand.arcs)
    }
    links = tuple(sorted(every))
    flows = [
        Flow(
            flow.chunk, flow.summed, collective.targets(flow.chunk), chosen=True,
            ends=frozenset(
                collective.sources(flow.chunk) if flow.summed else collective.targets(flow.chunk)
            ),
            links=links, hops=None,
        )
        for flow in halves.flows
    ]  # fmt: skip
    return Flows(problem, tuple(flows))


def flows_of_networks(networks: Sequence[Network]) -> Flows:
    """Return the flows of networks of one problem, rooted at the owners of their chunks."""
    extra = networks[0].problem.logical.max_extra_hops
    flows = [
        Flow(
            demand.chunk, network.reverse, demand.roots, chosen=False,
            ends=frozenset(demand.targets),
            links=tuple(arc.link for arc in demand.arcs),
            hops=None if extra is None else {rank: n + extra for rank, n in demand.hops.items()},
        )
        for network in networks
        for demand in network.demands
        if demand.targets
    ]  # fmt: skip
    return Flows(networks[0].problem, tuple(flows))


def _any_root(problem: Problem) -> bool:
    """Tell whether the root of a sum is free: no rule of the sketch goes by the chunk's owner.

    And every rank that wants a sum has a part of it, as in an AllReduce. On orbits the image of a
    root is the root of the image, which any choice keeps.
    """
    logical, collective = problem.logical, problem.collective
    if not np.array_equal(collective.source_set, collective.target_set):
        return False
    return not logical.leave_by and logical.max_extra_hops is None and not logical.own_chunks_first

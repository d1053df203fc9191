"""Machines whose switches copy and add, and schedules of fans on them."""

from dataclasses import replace

from taccl.apps.networks import load_machine
from taccl.collectives import build_collective, chunk_size_of
from taccl.model.problem import Problem
from taccl.model.schedule import Schedule, retime
from taccl.synth.templates.in_network import IN_NETWORK
from taccl.topology.graph import FanEngine, Multicast, Reduction, Topology, whole
from taccl.topology.symmetry import make_group
from taccl.verify import require_valid


def flagged(
    name: str, *, own: bool = True, at_rank: bool = True, engine: FanEngine | None = None,
    nodes: int | None = None,
) -> Topology:  # fmt: skip
    """Return a machine all of whose switches copy and add, as NVLS does: sums go to one rank."""
    topology = load_machine(name, nodes=nodes)
    return replace(topology, switches=tuple(
        replace(
            switch, multicast=Multicast(own), reduce=Reduction(own, at_rank),
            engine=engine or switch.engine,
        )
        for switch in topology.switches
    ))  # fmt: skip


def scheduled(
    topology: Topology, collective: str, algorithm: str, size: int = 1 << 20, chunks: int = 1
) -> Schedule:
    """Return a verified schedule of an algorithm of IN_NETWORK, of `size` bytes."""
    asked = build_collective(collective, topology.num_ranks, chunks)
    group = make_group(topology, ())
    problem = Problem(whole(topology), asked, chunk_size_of(asked, size), group)
    decisions = next(iter(IN_NETWORK[algorithm](problem)))
    made = retime(asked, group, problem.chunk_size, decisions)
    require_valid(made)
    return made

"""Machines whose switches copy and add, and schedules of fans on them."""

from taccl.model.schedule import Schedule
from taccl.topology.file import load_topology
from taccl.topology.graph import NO_ENGINE, FanEngine, Topology
from taccl.verify import require_valid
from tests.in_network import able, ways


def flagged(
    name: str, *, own: bool = True, at_rank: bool = True, engine: FanEngine = NO_ENGINE,
    nodes: int | None = None,
) -> Topology:  # fmt: skip
    """Return a machine all of whose switches copy and add, as NVLS does: sums go to one rank."""
    return able(load_topology(name, nodes=nodes), through=own, at_rank=at_rank, engine=engine)


def scheduled(
    topology: Topology, collective: str, algorithm: str, size: int = 1 << 20, chunks: int = 1
) -> Schedule:
    """Return a verified schedule of an algorithm of IN_NETWORK, of `size` bytes."""
    made = ways(topology, algorithm, collective, size, chunks)[0]
    require_valid(made)
    return made

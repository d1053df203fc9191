"""Networks whose switches copy and add, and their algorithms as schedules."""

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from fractions import Fraction

from taccl.collectives import build_collective, chunk_size_of
from taccl.model.problem import Problem
from taccl.model.schedule import Schedule
from taccl.synth.templates.in_network import IN_NETWORK
from taccl.topology.file import load_topology
from taccl.topology.graph import NO_ENGINE, FanEngine, Multicast, Reduction, Topology, whole
from taccl.topology.symmetry import make_group


def able(
    topology: Topology,
    names: str = "*",
    *,
    through: bool = False,
    at_rank: bool = False,
    engine: FanEngine = NO_ENGINE,
) -> Topology:
    """Return a topology whose switches of some names copy and add."""
    return replace(topology, switches=tuple(
        replace(s, multicast=Multicast(through), reduce=Reduction(through, at_rank), engine=engine)
        if fnmatchcase(s.name, names) else s
        for s in topology.switches
    ))  # fmt: skip


def nvls(
    spec: str = "hub:4@1GB/s,1us", *, through: bool = True, nodes: int | None = None
) -> Topology:
    """Return a network whose NVSwitches, or hub, work as NVLink SHARP."""
    names = "*nvswitch" if nodes is not None or spec == "dgx-h100" else "hub"
    return able(load_topology(spec, nodes=nodes), names, through=through, at_rank=True)


def free(topology: Topology) -> Topology:
    """Return the same network without alpha."""
    return replace(
        topology, edges=tuple(replace(e, alpha=0, overhead=None) for e in topology.edges)
    )


def problem_of(topology: Topology, collective: str, size: int, chunks: int = 1) -> Problem:
    """Return a problem without symmetry."""
    root = 0 if collective in ("broadcast", "reduce") else None
    cut = build_collective(collective, topology.num_ranks, chunks, root)
    return Problem(whole(topology), cut, chunk_size_of(cut, size), make_group(topology, ()))


def ways(
    topology: Topology, name: str, collective: str, size: int, chunks: int = 1
) -> Sequence[Schedule]:
    """Return an algorithm's schedules, the fastest first."""
    problem = problem_of(topology, collective, size, chunks)
    found = [problem.timed(decisions) for decisions in IN_NETWORK[name](problem)]
    return sorted(found, key=lambda schedule: schedule.makespan)


def us(schedule: Schedule) -> Fraction:
    """Return the makespan in microseconds, exact."""
    return Fraction(schedule.makespan, 10**6)

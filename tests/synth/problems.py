"""Problems for the engine tests."""

from fractions import Fraction

from taccl.collectives import build_collective
from taccl.model.problem import Options, Problem
from taccl.model.schedule import Schedule
from taccl.synth.templates.classical import classical_schedules
from taccl.topology.graph import LogicalTopology, Topology, whole
from taccl.topology.symmetry import free_group, make_group

QUICK = Options(time_limit=2.0, deterministic=True, workers=1)
"""Counted limits: the same answer on every run."""


def problem_of(
    network: Topology | LogicalTopology,
    collective: str,
    chunks: int = 1,
    chunk_size: Fraction | int = 1000,
    *,
    symmetric: bool = False,
) -> Problem:
    """Return a problem; ``symmetric`` uses the topology's rotations by substitution."""
    logical = whole(network) if isinstance(network, Topology) else network
    topology = logical.topology
    group = free_group(topology, topology.rotations) if symmetric else make_group(topology, ())
    return Problem(
        logical,
        build_collective(collective, topology.num_ranks, chunks),
        Fraction(chunk_size),
        group,
    )


def classical_schedule(problem: Problem, name: str, *, batch: bool) -> Schedule | None:
    """Return the schedule of a classical algorithm with the least makespan, if it exists."""
    return next(iter(classical_schedules(problem, name, batch=batch)), None)

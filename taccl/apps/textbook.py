"""Textbook algorithms as programs of a runtime: what a file or an engine is compared with."""

from dataclasses import replace
from itertools import product

from taccl.apps.programs import Target, lowering_of
from taccl.collectives import Collective
from taccl.errors import InputError, LoweringError
from taccl.model.problem import problem_of
from taccl.msccl.program import Program
from taccl.synth.templates.classical import classical_schedules
from taccl.topology.graph import Topology
from taccl.units import Time


def textbook_programs(
    topology: Topology, collective: Collective, algorithm: str, size: int, target: Target
) -> tuple[list[tuple[Program, Time]], str]:
    """Return the programs of an algorithm, each with its time, and why there is no other.

    The `algorithm`, a name of CLASSICAL, does a `collective` on a `topology`, at `size` bytes of
    the counted buffer, of which as many are taken as make whole elements; programs are for the
    `target`.
    """
    chunks, reason = collective.chunks_in_size, ""
    size = target.whole_size(size, chunks) or target.divisor(chunks)
    programs: list[tuple[Program, Time]] = []
    problem = problem_of(topology, collective, size)
    # Where a threadblock has a rate of its own, small and large sizes want other instances.
    targets = (target, replace(target, instances=None))[: 1 + target.measured]
    for schedule, wanted in product(classical_schedules(problem, algorithm, batch=True), targets):
        task = lowering_of(schedule, wanted, size, algorithm)
        try:
            programs.append((task.settled() if target.measured else task).best)
        except LoweringError as error:
            reason = error.problem
    return programs, reason


def textbook_program(
    topology: Topology, collective: Collective, algorithm: str, size: int, target: Target
) -> Program:
    """Return the fastest `target` program of a classical `algorithm`, a name of CLASSICAL.

    Its ways to do a `collective` are compared on a `topology`, at `size` bytes, of which as many
    are taken as make whole elements.

    Raises InputError when there is none.
    """
    programs, reason = textbook_programs(topology, collective, algorithm, size, target)
    if not programs:
        raise InputError(
            reason or f"there is no {algorithm} {collective.name} on {topology.name}",
            field="--algorithm", fix="give another algorithm, or an XML file",
        )  # fmt: skip
    return min(programs, key=lambda found: found[1])[0]

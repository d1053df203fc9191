"""The program of a classical algorithm at one size."""

from taccl.collectives import Collective, chunk_size_of
from taccl.errors import InputError, LoweringError
from taccl.msccl.program import Program
from taccl.pipeline.lowering import Lowering, Target, program_name
from taccl.symmetry import make_group
from taccl.synth.classical import classical_schedules
from taccl.synth.problem import Problem
from taccl.topology import Topology, whole


def textbook_program(
    topology: Topology, collective: Collective, algorithm: str, size: int, target: Target
) -> tuple[Program, int]:
    """Return the fastest program of a classical algorithm, and the bytes it is made for.

    Parameters
    ----------
    topology
        Where its ways are compared.
    algorithm
        A name of CLASSICAL.
    size
        Bytes wanted; what comes back is the largest size of whole elements up to it.

    Raises
    ------
    InputError
        When there is none.
    """
    chunks = collective.chunks_in_size
    size = target.whole_size(size, chunks) or target.divisor(chunks)
    problem = Problem(
        whole(topology), collective, chunk_size_of(collective, size), make_group(topology, ())
    )
    label = program_name(topology.name, collective.name, algorithm, collective.chunks_per_rank)
    programs = []
    reason = f"there is no {algorithm} {collective.name} on {topology.name}"
    for schedule in classical_schedules(problem, algorithm, batch=True):
        try:
            programs.append(Lowering(schedule, target, size, label).best)
        except LoweringError as error:
            reason = error.problem
    if not programs:
        raise InputError(reason, field="--algorithm", fix="give another algorithm, or an XML file")
    return min(programs, key=lambda found: found[1])[0], size

"""Gathers, reductions and alltoalls in few steps of whole messages.

What is sent in each step, and to whom, is known from how a machine is built: its servers, and which
ranks share a NIC. Each kind has several ways; like those of the classical algorithms, the best are
list-scheduled.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from taccl.model.problem import Problem
from taccl.model.schedule import Schedule
from taccl.synth.templates import leader_based, mixed_radix, pipelined_allgather
from taccl.synth.templates.classical import Trial, schedules_of
from taccl.synth.templates.grid_programs import Algorithm


class Kind(NamedTuple):
    """The ways of a kind, and whether ranks pack what they send."""

    ways: Algorithm
    packs: bool


KINDS: Mapping[str, Kind] = MappingProxyType({
    "waves": Kind(pipelined_allgather.ways, packs=True),
    "folding": Kind(leader_based.ways, packs=False),
    "digits": Kind(mixed_radix.ways, packs=True),
})  # fmt: skip


def stepwise(
    problem: Problem, kind: str, report: Callable[[str], None], over: Callable[[], bool]
) -> tuple[Schedule, ...]:
    """Return the best schedules of a kind; none where there are no such servers, or links.

    Parameters
    ----------
    kind
        A name of KINDS.
    report
        Called when there is something to compile.
    over
        Tells whether to look no further once something is found.
    """
    logical = problem.logical
    limited = logical.connections_per_rank is not None or logical.own_chunks_first
    if limited or logical.symmetry_asked:
        return ()
    ways, packs = KINDS[kind]
    trial = Trial(problem, kind, batch=True, over=over, report=report, ways=ways, packs=packs)
    return schedules_of(trial)

"""The first answer: classical algorithms in the textbook's order, before anything is proved.

A search begins with bounds, and a large machine can use up a short time limit with them. So that
there is something to write whenever the time ends, what costs least to make comes first.
"""

from collections.abc import Iterator

from taccl.schedule import Schedule
from taccl.symmetry import make_group
from taccl.synth.classical import CLASSICAL, textbook_schedule
from taccl.synth.problem import Problem

FEW_MESSAGES = (
    "hierarchical", "two-step", "halving-doubling", "double-binary-tree", "scatter-allgather",
    "all-pairs", "direct", "binomial", "chain",
)  # fmt: skip
"""Algorithms with few messages, which are lowered and judged soonest; the best guess first."""

MANY_CHUNKS = 20_000
"""Chunks at all ranks together, above which the first algorithm that exists must do."""


def opening(problem: Problem, *, batch: bool) -> Iterator[tuple[str, Schedule]]:
    """Yield algorithms by name, with exact schedules: the least makespan first where all are made.

    Parameters
    ----------
    problem
        Its symmetries are not used.
    batch
        Whether chunks may travel together.
    """
    collective = problem.collective
    bare = Problem(
        problem.logical, collective, problem.chunk_size, make_group(problem.topology, ())
    )
    is_large = collective.num_chunks * collective.num_ranks > MANY_CHUNKS
    names = FEW_MESSAGES if is_large else tuple(CLASSICAL)
    made = ((name, textbook_schedule(bare, name, batch=batch, fewest=is_large)) for name in names)
    found = ((name, schedule) for name, schedule in made if schedule is not None)
    yield from found if is_large else sorted(found, key=lambda one: one[1].makespan)

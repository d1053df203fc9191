"""The guided scheduler as machine code."""

from collections.abc import Callable
from functools import cache

import numpy as np

from taccl.synth.guided import scheduler_state, tree_list_scheduler
from taccl.synth.guided.scheduler_state import RUN_FIELDS, Field, Growth, Times, state_of
from taccl.timing import occupancy
from taccl.timing.jit import jit, report_compilation
from taccl.timing.occupancy import Uses

MESSAGE = "compiling the guided scheduler; once on this machine, for about 10 s"

PARTS = (tree_list_scheduler, scheduler_state, occupancy)

Grow = Callable[[Field, Growth, Times, Times, int], int]


def compiled(report: Callable[[str], None]) -> Grow:
    """Return :func:`tree_list_scheduler.grow` as machine code, ready to be called.

    Parameters
    ----------
    report
        Called with a line when there is something to compile.
    """
    made = _made()
    with report_compilation(report, MESSAGE):
        made(*_nothing())
    return made


@cache
def _made() -> Grow:
    return jit(tree_list_scheduler.grow, PARTS, "guided")


def _nothing() -> tuple[Field, Growth, Times, Times, int]:
    """Return arguments of the right types that need no work."""
    times, numbers = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int32)
    flags = np.zeros(1, dtype=np.bool_)
    field = Field(
        numbers, numbers, times, numbers, Uses(times, numbers, times, times, times), numbers,
        flags[None], flags[None], flags, times[None], times, numbers[None],
    )  # fmt: skip
    state = state_of(field)
    return field, state, times, np.zeros(RUN_FIELDS, dtype=np.int64), 0

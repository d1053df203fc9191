"""The guided scheduler as machine code."""

from collections.abc import Callable
from functools import cache

import numpy as np

from taccl.machine_code import machine_code, telling
from taccl.synth import guided_growth, guided_heaps, guided_layout
from taccl.synth.guided_layout import RUN_FIELDS, Field, Growth, Times, state_of

MESSAGE = "compiling the guided scheduler; once on this machine, for about 10 s"

PARTS = (guided_heaps, guided_growth, guided_layout)

Grow = Callable[[Field, Growth, Times, Times, int], int]


def compiled(report: Callable[[str], None]) -> Grow:
    """Return :func:`taccl.synth.guided_growth.grow` as machine code, ready to be called.

    Parameters
    ----------
    report
        Called with a line when there is something to compile.
    """
    made = _made()
    with telling(report, MESSAGE):
        made(*_nothing())
    return made


@cache
def _made() -> Grow:
    return machine_code(guided_growth.grow, PARTS, "guided")


def _nothing() -> tuple[Field, Growth, Times, Times, int]:
    """Return arguments of the right types that need no work."""
    times, numbers = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int32)
    flags = np.zeros(1, dtype=np.bool_)
    field = Field(
        numbers, numbers, times, numbers, times, numbers, times, times, numbers, flags[None],
        flags[None], flags, times[None], times, numbers[None],
    )  # fmt: skip
    state = state_of(field)
    return field, state, times, np.zeros(RUN_FIELDS, dtype=np.int64), 0

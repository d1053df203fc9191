"""The compiled replay: events.py and queues.py, plain functions on arrays, as machine code."""

import sys
from collections.abc import Callable
from functools import cache

from taccl.machine_code import PLAIN, machine_code, telling
from taccl.sim import events, layout, queues
from taccl.sim.layout import Machine

MESSAGE = "taccl: compiling the replay; once on this machine, for about 10 s"

PARTS = (queues, events, layout)

Run = Callable[[Machine, int], int]


@cache
def compiled() -> Run:
    """Return :func:`taccl.sim.events.run_events` as machine code, compiled or from the cache."""
    # Inlined, it runs 50 times as fast.
    made = machine_code(events.run_events, PARTS, "replay", {**PLAIN, "forceinline": True})

    def run(machine: Machine, budget: int) -> int:
        with telling(_tell, MESSAGE):
            return int(made(machine, budget))

    return run


def is_loaded() -> bool:
    """Tell whether the machine code is in this process already."""
    return compiled.cache_info().currsize > 0


@cache
def _tell(message: str) -> None:
    """Say something once."""
    sys.stderr.write(f"{message}\n")

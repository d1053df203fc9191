"""Proven lower bounds on the time of a collective.

Each module is one idea and hands over amounts of data that must cross sets of edges (or, for
distances, reach and drain, plain times). They are evaluated in two worlds: ``any`` (messages of any
size, cut and joined at will; the bound is a function of the size) and ``fixed`` (every message
carries one chunk). For programs, whose messages have a largest size, ``any`` is asked once more on
a network without latencies (latency.py); port_contention.py is asked for alone, as it takes
seconds. They hold under both alpha rules, for messages from one rank to one rank: a switch that
copies or adds inside the network is not considered. ``KINDS`` says what each is.
"""

from taccl.bounds.arrival_curves import Curve
from taccl.bounds.combine import (
    ASSUMED,
    KINDS,
    WORLDS,
    any_bounds,
    any_curves,
    any_of,
    best,
    fixed_bounds,
    fixed_floors,
    program_curves,
)

__all__ = [
    "ASSUMED", "KINDS", "WORLDS", "Curve", "any_bounds", "any_curves", "any_of", "best",
    "fixed_bounds", "fixed_floors", "program_curves",
]  # fmt: skip

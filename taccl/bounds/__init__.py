"""Proven lower bounds on the time of a collective.

Each module is one idea and hands over amounts of data that must cross sets of edges (or, for
distances, reach and drain, plain times). They are evaluated in worlds: ``any`` (messages of any
size, cut and joined at will; the bound is a function of the size; switches copy and add where the
topology says so), ``point-to-point`` (the same where switches only pass messages on: the yardstick
of every XML) and ``fixed`` (every message carries one chunk, from rank to rank). For programs,
whose messages have a largest size, ``point-to-point`` is asked once more on a network without
latencies (latency.py); time_expanded.py says something of one size, and is asked where there are
seconds for it; port_contention.py is asked for alone, as it takes more. They hold under both alpha
rules. ``KINDS`` says what each is.
"""

from taccl.bounds.arrival_curves import Curve
from taccl.bounds.combine import (
    ANY,
    ASSUMED,
    ASSUMED_OF_SWITCHES,
    KINDS,
    POINT_TO_POINT,
    WORLDS,
    any_bounds,
    any_curves,
    any_of,
    best,
    fixed_bounds,
    fixed_floor,
    program_curves,
)

__all__ = [
    "ANY", "ASSUMED", "ASSUMED_OF_SWITCHES", "KINDS", "POINT_TO_POINT", "WORLDS", "Curve",
    "any_bounds", "any_curves", "any_of", "best", "fixed_bounds", "fixed_floor",
    "program_curves",
]  # fmt: skip

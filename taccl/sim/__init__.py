"""Costs and replay of programs on a topology, and the rows of results."""

from taccl.sim.cost import ReplayModel, model_of
from taccl.sim.replay import replay
from taccl.sim.sweep import Row, bounds_of, row_of, sizes_between, sweep
from taccl.sim.trace import Span, Trace

__all__ = [
    "ReplayModel", "Row", "Span", "Trace", "bounds_of", "model_of", "replay", "row_of",
    "sizes_between", "sweep",
]  # fmt: skip

"""Costs and replay of programs on a topology, and the rows of results."""

from taccl.replay.cost import ReplayModel, model_of
from taccl.replay.interpreter import replay
from taccl.replay.sweep import Row, bounds_of, row_of, sizes_between, sweep
from taccl.replay.trace import Span, Trace

__all__ = [
    "ReplayModel", "Row", "Span", "Trace", "bounds_of", "model_of", "replay", "row_of",
    "sizes_between", "sweep",
]  # fmt: skip

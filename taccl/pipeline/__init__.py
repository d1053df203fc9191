"""The whole story: load, synthesise, verify, lower, judge, replay."""

from taccl.pipeline.lowering import Lowering, Target
from taccl.pipeline.problems import load_network, logical_group
from taccl.pipeline.synthesis import Request, Synthesis, synthesize, with_stop

__all__ = [
    "Lowering",
    "Request",
    "Synthesis",
    "Target",
    "load_network",
    "logical_group",
    "synthesize",
    "with_stop",
]

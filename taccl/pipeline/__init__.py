"""The whole story: load, synthesise, verify, lower, judge, replay."""

from taccl.pipeline.lowering import Lowering, Target
from taccl.pipeline.problems import load_network, logical_group
from taccl.pipeline.request import Request, with_stop
from taccl.pipeline.synthesis import Synthesis, synthesize

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

"""The whole story: load, synthesise, verify, lower, judge, replay."""

from taccl.apps.programs import Lowering, Target
from taccl.apps.request import Request, load_network, logical_group, with_stop
from taccl.apps.synthesis import Synthesis, synthesize

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

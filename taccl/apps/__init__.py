"""What each command does, from a question to its answer: load, search, verify, lower, replay."""

from taccl.apps.networks import load_network, logical_group
from taccl.apps.programs import Lowering, Target
from taccl.apps.request import Request, Synthesis
from taccl.apps.synthesis import synthesize

__all__ = [
    "Lowering", "Request", "Synthesis", "Target", "load_network", "logical_group", "synthesize",
]  # fmt: skip

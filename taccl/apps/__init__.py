"""What each command does, from a question to its answer: load, search, verify, lower, replay.

The names that most callers want are here, and are loaded when one is used: a command that needs
none of the searches does not wait for them.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from taccl.apps.inputs import load_network, logical_group
    from taccl.apps.programs import Lowering, Target
    from taccl.apps.request import Request, Synthesis
    from taccl.apps.synthesis import synthesize

__all__ = [
    "Lowering", "Request", "Synthesis", "Target", "load_network", "logical_group", "synthesize",
]  # fmt: skip

_MODULE_OF = {
    "Lowering": "programs", "Request": "request", "Synthesis": "request", "Target": "programs",
    "load_network": "inputs", "logical_group": "inputs", "synthesize": "synthesis",
}  # fmt: skip


def __getattr__(name: str) -> object:
    """Return one of the names that are here."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'taccl.apps' has no attribute {name!r}")
    return getattr(import_module(f"taccl.apps.{_MODULE_OF[name]}"), name)

"""Synthesis of collective-communication algorithms.

What its functions do is told in :mod:`taccl.apps.api`; they are loaded when one is used.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from taccl.apps.api import (
        evaluate_program,
        load_topology,
        run_program,
        synthesize,
        verify_program,
        write_program,
    )

__all__ = [
    "evaluate_program", "load_topology", "run_program", "synthesize", "verify_program",
    "write_program",
]  # fmt: skip
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Return a function of :mod:`taccl.apps.api`."""
    if name not in __all__:
        raise AttributeError(f"module 'taccl' has no attribute {name!r}")
    from taccl.apps import api

    return getattr(api, name)

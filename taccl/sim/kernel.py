"""The compiled replay: events.py and queues.py as machine code.

They are plain functions on arrays, which numba compiles for the first run on a machine and then
finds in its cache on disk. numba looks for changes only in the file of the compiled function, so
the directory of the cache is named after all files that go into it.
"""

import hashlib
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType

from taccl.sim import events, layout, queues
from taccl.sim.layout import Machine

MESSAGE = "taccl: compiling the replay; once on this machine, for about 10 s"

Run = Callable[[Machine, int], int]

# Without reference counts, which nothing here needs, and inlined, it runs 50 times as fast.
_OPTIONS = {"_nrt": False, "forceinline": True}


@cache
def compiled() -> Run:
    """Return :func:`taccl.sim.events.run_events` as machine code, compiled or from the cache.

    The cache is in ``NUMBA_CACHE_DIR`` or else in the user's cache directory.
    """
    import numba
    from numba.core import event
    from numba.extending import register_jitable

    for module in (queues, events):
        for function in vars(module).values():
            if getattr(function, "__module__", "") == module.__name__:
                register_jitable(**_OPTIONS)(function)
    made = _with_cache(numba)
    listener = type("Listener", (event.Listener,), {"on_start": _tell, "on_end": _ignore})()

    def run(machine: Machine, budget: int) -> int:
        with event.install_listener("numba:compile", listener):
            return int(made(machine, budget))

    return run


def is_loaded() -> bool:
    """Tell whether the machine code is in this process already."""
    return compiled.cache_info().currsize > 0


def _with_cache(numba: ModuleType) -> Run:
    before = numba.config.CACHE_DIR
    try:
        numba.config.CACHE_DIR = str(cache_directory(before))
        made: Run = numba.njit(cache=True, **_OPTIONS)(events.run_events)
    except RuntimeError:  # no home, or no directory can be written
        made = numba.njit(**_OPTIONS)(events.run_events)
    finally:
        numba.config.CACHE_DIR = before
    return made


def cache_directory(given: str) -> Path:
    """Return where machine code is kept: under a directory that was given, or the user's."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser(), "taccl")
    found = hashlib.sha256()
    for file in (events.__file__, layout.__file__, queues.__file__):
        found.update(Path(file or "").read_bytes())
    return Path(given or home, f"replay-{found.hexdigest()[:16]}")


@cache
def _tell_once() -> None:
    sys.stderr.write(f"{MESSAGE}\n")


def _tell(*_: object) -> None:
    _tell_once()


def _ignore(*_: object) -> None:
    pass

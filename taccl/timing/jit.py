"""Hot loops as machine code: compiled by numba once on a machine, and kept in a cache on disk.

Those that make objects are left to Python, and its garbage collector looks at them rarely.

numba looks for changes only in the file of the compiled function, so the directory of its cache
is named after the contents of all files that go into it.
"""

import gc
import hashlib
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, ParamSpec, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])
Arguments = ParamSpec("Arguments")
Found = TypeVar("Found")

RARELY = (200_000, 20, 100)
"""Thresholds of the garbage collector: schedules are millions of small objects without cycles, and
looking through all of them every 700 takes up to half of the time."""


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Have the garbage collector look for cycles RARELY, inside.

    Its thresholds are the process's: they stay so where calls of several threads overlap.
    """
    before = gc.get_threshold()
    gc.set_threshold(*RARELY)
    try:
        yield
    finally:
        gc.set_threshold(*before)


PLAIN: Mapping[str, Any] = {"_nrt": False}
"""Options of code that makes no arrays: reference counts cost more than the rest."""


def jit(
    function: Function, parts: Sequence[ModuleType], name: str, options: Mapping[str, Any] = PLAIN
) -> Function:
    """Return a plain function on arrays as machine code that lets go of the GIL.

    The `function` is compiled, with numba's `options`, when it is first called with arrays of some
    types; `parts` are the modules that define it and all functions that it calls. The cache is the
    directory `name` in ``NUMBA_CACHE_DIR`` or else in the user's cache directory.
    """
    import numba
    from numba.extending import register_jitable

    for module in parts:
        for part in vars(module).values():
            own = getattr(part, "__module__", "") == module.__name__ and part is not function
            if own and isinstance(part, FunctionType) and part not in _INLINED:
                register_jitable(**options)(part)
                _INLINED.add(part)
    config: Any = numba.config
    before = config.CACHE_DIR
    directory = cache_directory(name, parts, os.environ.get("NUMBA_CACHE_DIR", ""))
    compiled: Function
    try:
        config.CACHE_DIR = str(directory)
        compiled = numba.njit(cache=True, nogil=True, **options)(function)
    except RuntimeError:  # no home, or no directory can be written
        compiled = numba.njit(nogil=True, **options)(function)
    finally:
        config.CACHE_DIR = before
    return compiled


_INLINED: set[Callable[..., Any]] = set()
"""Plain functions that compiled ones may call: registered once, as loops share them."""


def cache_directory(name: str, parts: Sequence[ModuleType], given: str) -> Path:
    """Return where machine code is kept: under a directory that was given, or the user's.

    `name` is of the directory in it, `parts` are the modules whose source tells it from others, and
    `given` is empty where no directory was given.
    """
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser(), "taccl")
    found = hashlib.sha256()
    for part in parts:
        found.update(Path(part.__file__ or "").read_bytes())
    return Path(given or home, f"{name}-{found.hexdigest()[:16]}")


def stamp_of(parts: Sequence[ModuleType], given: str) -> Path:
    """Return the file that says that `parts` (modules) are compiled for this numba and processor.

    numba's own index knows a module by its path and by when it was written, so the same source in
    another place, or written anew, is compiled anew, and is another stamp.

    `given` is the directory of the cache; empty: the user's.
    """
    from importlib.metadata import version

    from llvmlite import binding

    features = binding.get_host_cpu_features().flatten()
    files = [Path(part.__file__ or "").resolve() for part in parts]
    known = [(str(file), file.stat().st_mtime_ns) for file in files]
    made_for = f"{version('numba')} {sys.version} {binding.get_host_cpu_name()} {features} {known}"
    place = cache_directory("compiled", parts, given)
    return Path(f"{place}-{hashlib.sha256(made_for.encode()).hexdigest()[:16]}")


@contextmanager
def report_compilation(report: Callable[[str], None], message: str) -> Iterator[None]:
    """Report a `message` by `report`, once, when something is compiled inside."""
    from numba.core import event

    told: list[str] = []

    def tell(*_: object) -> None:
        if not told:
            report(message)
        told.append(message)

    hooks = {"on_start": tell, "on_end": lambda *_: None}
    with event.install_listener("numba:compile", type("Listener", (event.Listener,), hooks)()):
        yield


def telling(loop: Callable[Arguments, Found], message: str) -> Callable[Arguments, Found]:
    """Return a compiled `loop` that says a `message` on stderr, once, when it is compiled."""

    def run(*arguments: Arguments.args, **named: Arguments.kwargs) -> Found:
        with report_compilation(_tell, message):
            return loop(*arguments, **named)

    return run


@cache
def _tell(message: str) -> None:
    """Say something once."""
    sys.stderr.write(f"{message}\n")


def is_worth_compiling(loop: str, turns: int, most: int) -> bool:
    """Tell whether a `loop` is faster as machine code, with the time that loading it takes.

    It is once this process has run it for more than `most` turns in all, with the `turns` to come.
    """
    _TURNS[loop] += turns
    return _TURNS[loop] > most


_TURNS: Counter[str] = Counter()
"""How often loops have been run that may be compiled, or not."""

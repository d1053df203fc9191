"""The compiled loops, made before any clock starts: once on a machine, in parallel.

Each loop is compiled by a child process that runs a small problem through it, so that what lies in
the cache afterwards is what a search asks for. A stamp beside the cache says that all are there for
this source, this numba and this processor; where no cache can be kept, this process compiles.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import MappingProxyType

import numpy as np

from taccl.apps.inputs import load_network, logical_group
from taccl.apps.programs import Target, lowering_of
from taccl.collectives import build_collective, chunk_size_of
from taccl.errors import OutOfTimeError
from taccl.lowering import dependencies, scratch
from taccl.lowering.lower import draft_of, finish
from taccl.model.problem import Options, Problem
from taccl.model.routes import arcs_of, wanted_of
from taccl.model.schedule import Schedule
from taccl.msccl import interpret
from taccl.msccl import run as msccl_run
from taccl.prices import arborescence, trees
from taccl.replay import events
from taccl.replay.timing import Timing
from taccl.run import loop, processes, words
from taccl.synth import list_scheduler
from taccl.synth.flow import insertion_scheduler
from taccl.synth.guided import search, tree_list_scheduler
from taccl.synth.templates.classical import classical_schedules
from taccl.timing import occupancy
from taccl.timing.deadline import Deadline
from taccl.timing.jit import stamp_of
from taccl.timing.retiming import Columns, times_of
from taccl.topology.symmetry import make_group

PARTS = (
    events, arborescence, list_scheduler, insertion_scheduler, tree_list_scheduler, occupancy, loop,
    words, dependencies, scratch, msccl_run, interpret, trees,
)  # fmt: skip
"""The modules that are compiled."""

SIZE = 4096
"""Bytes of the small problem."""


_OPTIONS = Options(deterministic=True)
_ENDS, _COST = np.array([0, 1], dtype=np.int32), np.ones(2, dtype=np.int64)


def _problem(collective: str) -> Problem:
    logical = load_network("hub:4")
    cut = build_collective(collective, 4, 1)
    return Problem(logical, cut, chunk_size_of(cut, SIZE), logical_group(logical, cut))


def _ring(collective: str = "allgather") -> Schedule:
    schedule, *_ = classical_schedules(_problem(collective), "ring", batch=True)
    return schedule


def _replay() -> None:
    task = lowering_of(_ring(), Target(), SIZE, "ring")
    Timing(task.best[0], task.schedule.topology, task.target.model).at(SIZE)


def _lowered() -> None:
    task = lowering_of(_ring("reducescatter"), Target(), SIZE, "ring")
    options = task.options_for("Simple")
    program = finish(draft_of(task.schedule, options), options).program
    interpret.judge(program, "portable")
    interpret.find_root(replace(program, collective="reduce"))


def _retiming() -> None:
    for schedule in map(_ring, ("allgather", "reducescatter")):
        columns = Columns(schedule.chunk, schedule.link, schedule.batch, schedule.reduce)
        group = make_group(schedule.topology, ())
        times_of(schedule.collective, group, schedule.chunk_size, columns, plain=False)


def _insertions() -> None:
    next(insertion_scheduler.inserted(_problem("alltoall"), _OPTIONS, _OPTIONS.begin(), 0))


def _trees() -> None:
    arcs = arcs_of(_problem("allgather").without_symmetry)
    trees.whole_trees([(arcs, wanted_of(arcs))], _OPTIONS.begin())


KERNELS: Mapping[str, Callable[[], object]] = MappingProxyType({
    "guided": lambda: search.compiled(lambda _line: None),
    "replay": _replay,
    "run": processes.compiled,
    "reserved": _insertions,
    "dispatch": _ring,
    "lowering": _lowered,
    "arborescence": lambda: arborescence.contract(2, _ENDS, _ENDS[::-1].copy(), _COST).use(_COST),
    "retiming": _retiming,
    "trees": _trees,
})  # fmt: skip
"""What has every loop compiled, the longest first."""


def compile_ahead(report: Callable[[str], None], stop: Event | None = None) -> float:
    """Compile all loops that are not in the cache yet; return the seconds that it took.

    Before and after `report` is called with a line of progress, where there is something to
    compile; the user sets `stop` to end it.

    Raises OutOfTimeError when ``stop`` was set.
    """
    stamp = stamp_of(PARTS, os.environ.get("NUMBA_CACHE_DIR", ""))
    if stamp.exists() or stamp in _COMPILED:
        return 0.0
    clock = Deadline()
    report(f"compiling {len(KERNELS)} loops, once on this machine and not in the time limit ...")
    try:
        stamp.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=stamp.parent):
            kept = True
    except OSError:
        kept = False
    if kept and _in_children(stop or Event()):
        stamp.touch()
    else:
        for compile_one in KERNELS.values():
            compile_one()
    if not kept:
        report(f"no cache can be kept in {stamp.parent}: set NUMBA_CACHE_DIR to a folder of yours")
    _COMPILED.add(stamp)
    report(f"compiled in {clock.spent:.0f} s")
    return clock.spent


_COMPILED: set[Path] = set()
"""Stamps of what this process has compiled without a cache."""


def _in_children(stop: Event) -> bool:
    """Compile every loop in a child process, one a core; return whether all of them ended well."""
    command = [sys.executable, "-m", "taccl.apps.warmup"]
    waiting, running = list(KERNELS), list[subprocess.Popen[bytes]]()
    well = True
    try:
        while waiting or running:
            while waiting and len(running) < (os.cpu_count() or 1):
                # A session of its own: Ctrl-C is for this process to handle.
                running.append(subprocess.Popen(
                    [*command, waiting.pop(0)], stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
                ))  # fmt: skip
            if stop.wait(0.05):
                raise OutOfTimeError(
                    "interrupted while loops were compiled, before the search began",
                    fix="run taccl warmup once",
                )
            well = well and not any(child.poll() for child in running)
            running = [child for child in running if child.poll() is None]
    finally:
        for child in running:
            child.kill()
            child.wait()
    return well


if __name__ == "__main__":
    KERNELS[sys.argv[1]]()

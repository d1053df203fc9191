"""What each mechanism of the searches wins: ``python -m benchmarks.ablation``.

Every mechanism is switched off in turn, and the cells of ``frozen``, and ``MORE``, that can use it
are run again (work is counted, so that a run gives the same each time); a few are tried on random
problems, too. What it wins is how much longer a cell takes without it: the most over the cells, and
the mean. One that wins less than ``WORTH`` in every cell is not worth its lines. ``--only TEXT``
runs mechanisms whose name contains it; ``--write`` puts the table into docs/performance.md.
"""

import argparse
import importlib
import json
import math
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import numpy as np

from benchmarks.frozen import CELLS, Found, kept, run
from benchmarks.sections import replace_section
from taccl.__main__ import run as run_taccl
from taccl.apps.programs import Target, lowering_of
from taccl.errors import TacclError
from taccl.lowering.draft import Message
from taccl.model.problem import Options
from taccl.model.routes import Arcs
from taccl.model.schedule import Schedule
from taccl.synth.flow.engine import Limits
from taccl.synth.list_scheduler import load_of
from taccl.synth.plan import Adjacency
from taccl.synth.search import solve
from taccl.units import Time
from tests.generators import random_problem

MORE = (
    "dgx2 allgather --nodes 2 --size 16MB --engine guided",
    "dgx-a100 reducescatter --nodes 2 --size 64MB --engine guided",
    "dgx-a100 allgather --nodes 4 --size 64KB --engine guided",
    "fat-tree reducescatter --batch none --runtime none --engine guided",
    "mi250 reducescatter --batch none --runtime none --engine guided",
    "dgx2 allreduce --nodes 2 --engine guided --size 64KB",
    "torus2d:4x4 reducescatter --size 4KB --engine guided",
    "dgx2 alltoall --nodes 2 --size 16KB --engine flow",
    "dgx2 allreduce --nodes 2 --engine taccl --size 64KB",
    "torus2d:3x5 allgather --engine taccl --runtime none",
    "ring:8 allreduce --engine auto --size 64KB",
    "mi250 scatter --nodes 2 --root 1 --engine flow --runtime none",
    "torus2d:3x5 alltoall --batch none --engine flow --runtime none",
    "torus2d:4x4 alltoall --size 16MB --batch none --engine flow --runtime none",
    "ring:20 alltoall --size 20MB --batch none --engine flow --runtime none",
    "dgx-h100 allgather --size 64MB --engine double-ring --profile measured",
    "dgx-a100 allreduce --nodes 2 --engine auto --size 1MB --profile measured",
    "mi300x allreduce --engine auto --size 1MB --profile measured",
    "mi250 allgather --nodes 2 --size 64MB --engine flooding --profile measured",
    "mi250 allreduce --size 1KB --engine flooding",
    "dgx-h100 reducescatter --nodes 2 --size 4MiB --chunks 4 --engine flooding --profile measured",
    "mi300x allreduce --size 4MiB --chunks 4 --engine all-pairs --profile measured",
    "dgx-a100 reducescatter --nodes 2 --size 64MiB --chunks 4 --engine flooding --profile measured",
    "dgx-a100 reducescatter --nodes 2 --size 64MB --engine auto --profile measured",
    "dgx-h100 allgather --nodes 2 --size 256MB --engine auto --profile measured",
    "leaf-spine alltoall --engine guided --size 1KB",
    "dragonfly allgather --engine guided --size 1KB",
    "leaf-spine:3x4 allgather --engine guided --size 64KB",
    "dragonfly allreduce --engine guided --size 1KB",
    "mi250 broadcast --size 1GB --engine flow",
    "mesh2d allreduce --size 64MB --chunks 8 --engine auto",
    "mesh2d allreduce --size 64MB --chunks 4 --engine flow",
    "torus3d allgather --size 4MB --chunks 6 --engine guided",
    "hypercube:16 allreduce --size 4MB --chunks 4 --engine guided",
    "mi250 broadcast --size 1GB --chunks 6 --engine flow",
    "dgx1v allgather --size 64MB --chunks 2 --engine flow",
    "dgx1v allreduce --size 64MB --chunks 6 --engine ring",
    "mi250 allreduce --size 64MB --chunks 4 --engine ring --profile measured",
    "mi250 allreduce --size 64MB --chunks 6 --engine ring --profile measured",
    "mi250 allgather --size 64MB --chunks 8 --engine ring --profile measured",
    "mi250 allreduce --size 64MB --engine auto --profile measured",
    "mi250 allgather --nodes 2 --size 64MB --chunks 8 --engine ring --profile measured",
    "mi250 reducescatter --nodes 2 --size 64MB --chunks 8 --engine ring --profile measured",
    "mi250 allreduce --nodes 2 --size 1GB --chunks 2 --engine hierarchical --profile measured",
    "mi250 allreduce --nodes 2 --size 64MB --chunks 3 --engine hierarchical --profile measured",
    "dgx-h100 broadcast --nodes 2 --size 64MB --chunks 32 --engine scatter-allgather",
)
"""Cells besides those of ``frozen``, for what none of these uses."""

WORTH = 0.02
"""What a mechanism has to win somewhere."""

HEAVY = 12.0
"""Processor seconds above which a cell is run only for mechanisms that name it."""

RANDOM = 60
"""Random problems of each kind."""

TITLE = "## What each mechanism wins"

HEAD = f"""{TITLE}

Made by `python -m benchmarks.ablation`: each mechanism is switched off, and the cells of
`benchmarks/frozen.py`, and a few more, that can use it are run again with the same counted work.
*most* is how much longer the cell with the greatest loss takes without it, *mean* the same over all
*cells* that were run; `random` cells are {RANDOM} small random machines for each collective.
Classical algorithms are not among the rows: users ask for them by name. What is below 2 % and still
there: growing messages win 2.1 % on two DGX-2 as TE-CCL has them (alltoall of 2 MB a rank), fused
steps save steps and threadblocks, of which files have few, and not time; routing by a model is the
engine that users ask for. Times expected of programs say what is tried first by a clock, which
counted work has not (docs/truth.md has the pairs that they put in order).
"""


@dataclass(frozen=True)
class Mechanism:
    """Something that can be switched off.

    Parameters
    ----------
    what
        In a few words.
    off
        By the dotted path of a name in a module, what it is while the mechanism is off.
    cells
        A text in the cells that can use it: any of these.
    heavy
        Whether to run cells that take long, too.
    problems
        Engine and collective of random problems that it is tried on as well.
    """

    what: str
    off: Mapping[str, object]
    cells: tuple[str, ...]
    heavy: bool = False
    problems: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Changed:
    """What a name is while a mechanism is off, made from what it was."""

    change: Callable[..., object]


def _none(*_: object, **__: object) -> None:
    """Find nothing."""


def _empty(*_: object, **__: object) -> tuple[()]:
    """Find no schedule."""
    return ()


def _nothing(*_: object) -> int:
    """Count none."""
    return 0


def _second(_first: object, second: object, *_: object, **__: object) -> object:
    """Return the second argument as it is."""
    return second


def _first(first: object, *_: object, **__: object) -> object:
    """Return the first argument as it is."""
    return first


def _as_scheduled(messages: Sequence[Message], _adding: Time) -> object:
    """Return when messages start and arrive in a schedule."""
    return [(message.start, message.end) for message in messages]


def _never(*_: object) -> bool:
    return False


def _makespan(schedule: Schedule, *_: object, **__: object) -> Time:
    """Return the makespan of a schedule."""
    return schedule.makespan


def _without(kind: str) -> Changed:
    """Return a wrapper of ``grid_schedules`` that has nothing of one kind."""

    def wrapped(old: Callable[..., object]) -> object:
        return lambda problem, asked, *rest: () if asked == kind else old(problem, asked, *rest)

    return Changed(wrapped)


def _even(arcs: Arcs, *_: object, **__: object) -> object:
    """Return the same price for every resource."""
    count = max(1, arcs.num_resources)
    return np.full(count, 1 / count)


def _in_pieces(adjacency: Adjacency, limits: Limits) -> object:
    """Return messages cut beforehand, of the length up to which they would have grown."""
    return load_of(adjacency.plan, adjacency.pieces(limits.busiest))


def _less(name: str) -> Changed:
    """Return what takes a name out of a table."""

    def less(old: Mapping[str, object]) -> object:
        return {key: value for key, value in old.items() if key != name}

    return Changed(less)


def _unimproved(schedule: object, *_: object, **__: object) -> object:
    """Return a schedule as it is."""
    return schedule, None


def _one(old: Sequence[object] | Mapping[str, object]) -> object:
    """Return the first of several, or of a table's rows, alone."""
    return dict([*old.items()][:1]) if isinstance(old, Mapping) else old[:1]


GUIDED, FLOW = "taccl.synth.guided.engine.", "taccl.synth.flow.engine."
STAGED = "taccl.synth.staged."
PROGRAMS = "taccl.apps.programs."
MEASURED_RINGS = ("engine ring --profile measured", "engine hierarchical --profile measured")
IN_GUIDED, IN_FLOW = ("--engine guided",), ("--engine flow",)
SUMS = ("allreduce --nodes 2 --engine guided", "fat-tree allreduce", "torus2d:4x4 allreduce")
FABRICS = ("leaf-spine alltoall", "leaf-spine:3x4", "dragonfly all", "fat-tree all")
IN_STAGED = ("--engine taccl",)
ON_ALL = tuple(("taccl", name) for name in ("allgather", "alltoall", "allreduce", "reducescatter"))
ANY = ("--engine guided", "--engine flow", "--engine taccl", "step --size", "double-binary-tree")

MECHANISMS = (
    Mechanism("prices of the fractional packing", {GUIDED + "PACKED": -1}, IN_GUIDED),
    Mechanism("prices taught by loads", {GUIDED + "taught_prices": _even}, IN_GUIDED),
    Mechanism("changes of the best prices", {"taccl.synth.guided.search.DRAWN": 2.0}, IN_GUIDED),
    Mechanism("pipelined gathers", {GUIDED + "grid_schedules": _without("pipelined")}, IN_GUIDED),
    Mechanism("gathers by leaders", {GUIDED + "grid_schedules": _without("leaders")}, IN_GUIDED),
    Mechanism(
        "mixed-radix gathers", {GUIDED + "grid_schedules": _without("mixed-radix")}, IN_GUIDED
    ),
    Mechanism(
        "halving and doubling on a cube",
        {GUIDED + "grid_schedules": _without("cubes")},
        ("torus3d allgather", "hypercube:16 allreduce"),
    ),
    Mechanism("gateways", {GUIDED + "grid_schedules": _without("gateways")}, ("dragonfly all",)),
    Mechanism("butterflies", {GUIDED + "grid_schedules": _without("butterflies")}, IN_GUIDED),
    Mechanism("leaves as servers", {"taccl.synth.templates.steps.levels_of": _empty}, FABRICS),
    Mechanism(
        "a rank for each other server",
        {"taccl.synth.templates.grid_programs._one_for_each_server": _empty},
        FABRICS,
    ),
    Mechanism("recursive block gathers", {GUIDED + "coalesced": _none}, IN_GUIDED),
    Mechanism(
        "both phases in one list",
        {GUIDED + "JOINED": -1},
        SUMS,
        heavy=True,
        problems=(("guided", "allreduce"),),
    ),
    Mechanism("chunks cut and joined", {GUIDED + "_cut": _empty}, IN_GUIDED),
    Mechanism("neighbourhoods of routes", {GUIDED + "improve_routes": _second}, IN_GUIDED),
    Mechanism("insertion one by one", {FLOW + "inserted": _empty}, IN_FLOW),
    Mechanism("growing messages", {FLOW + "growing": _in_pieces}, IN_FLOW),
    Mechanism("flows by near gateways", {FLOW + "_routes": _empty}, IN_FLOW),
    Mechanism("variations of a flow's order", {FLOW + "NOISE": 0.0}, IN_FLOW),
    Mechanism(
        "variations of parts of the best order",
        {FLOW + "SOME": 1.0},
        ("mesh2d allreduce --size 64MB",),
    ),
    Mechanism(
        "trees of a packing", {FLOW + "MOST_PAIRS": -1}, ("--chunks 8 --engine auto",), heavy=True
    ),
    Mechanism("trees by maximum flows", {"taccl.prices.trees.WORK": math.inf}, IN_FLOW),
    Mechanism(
        "several rings",
        {"taccl.synth.templates.rings._disjoint_ways": _empty},
        ("engine ring", "--chunks 2 --engine hierarchical"),
    ),
    Mechanism(
        "connections of a ring's own",
        {"taccl.lowering.blocks._turns_by_series": _none},
        MEASURED_RINGS,
    ),
    Mechanism(
        "sums where they arrive",
        {"taccl.lowering.lower.sum_where_received": _first},
        MEASURED_RINGS,
    ),
    Mechanism(
        "shares sent back over NICs",
        {"taccl.synth.templates.trees.SPREADS": _less("sent back")},
        ("--engine scatter-allgather",),
    ),
    Mechanism("stretches of links", {PROGRAMS + "STRETCHES": ()}, ("1GB --engine flow",)),
    Mechanism("flows without symmetry", {FLOW + "MAX_ARCS": -1}, IN_FLOW),
    Mechanism("routing by a model", {STAGED + "route": _empty}, IN_STAGED),
    Mechanism("order and batches by a model", {STAGED + "improve_order": _unimproved}, IN_STAGED),
    Mechanism(
        "exchanges between two roots",
        {STAGED + "partners_of": _empty},
        (*IN_STAGED, "ring:8 allreduce"),
    ),
    Mechanism("batches of a plan", {STAGED + "MESSAGE_LENGTHS": ()}, IN_STAGED),
    Mechanism("scratch layouts", {STAGED + "LAYOUTS": Changed(_one)}, IN_STAGED, problems=ON_ALL),
    Mechanism(
        "rule: earliest start",
        {STAGED + "PRIORITIES": _less("earliest")},
        IN_STAGED,
        problems=ON_ALL,
    ),
    Mechanism(
        "rule: critical path",
        {STAGED + "PRIORITIES": _less("critical")},
        IN_STAGED,
        problems=ON_ALL,
    ),
    Mechanism("holding messages back", {PROGRAMS + "MAX_ROUNDS": 0}, ANY, problems=ON_ALL),
    Mechanism("fused steps", {PROGRAMS + "_fused": _second}, ANY),
    Mechanism("orders of sends", {PROGRAMS + "ORDERS": Changed(_one)}, ANY),
    Mechanism(
        "pieces that threadblocks pass on",
        {"taccl.apps.synthesis._pieces_pay": _none},
        ("engine auto --size 1MB --profile measured",),
        heavy=True,
    ),
    Mechanism(
        "threadblocks that are left over",
        {PROGRAMS + "SPREAD": 0},
        (
            "engine auto --size 1MB --profile measured",
            "64MB --engine flooding",
            "engine ring --profile measured",
        ),
        heavy=True,
    ),
    Mechanism(
        "sums: all of a place at once",
        {"taccl.lowering.lower.sum_at_once": _first},
        ("4MiB --chunks 4 --engine",),
    ),
    Mechanism(
        "sums: piece after piece in rounds",
        {"taccl.synth.templates.classical.piece_by_piece": _second},
        ("4MiB --chunks 4 --engine",),
    ),
    Mechanism(
        "programs: sums in the order in which they are there",
        {"taccl.lowering.draft._delayed": _as_scheduled},
        ("64MiB --chunks 4 --engine flooding",),
    ),
    Mechanism(
        "programs: slow sums in as many chunks as there are steps for",
        {"taccl.apps.synthesis.SLOW_SUMS": {}},
        ("dgx-a100 reducescatter --nodes 2 --size 64MB --engine auto",),
        heavy=True,
    ),
    Mechanism(
        "programs: rings in servers whose ranks have links to all",
        {
            "taccl.synth.search.CLASSICAL": _less("hierarchical-ring"),
            "taccl.apps.synthesis.LIKELY_ACROSS": ("hierarchical",),
        },
        ("dgx-h100 allgather --nodes 2 --size 256MB --engine auto",),
        heavy=True,
    ),
    Mechanism(
        "programs: threadblocks that send on what they receive",
        {"taccl.apps.programs.JOINED": 1},
        ("mi250 allgather --size 64MB --chunks 8 --engine ring",),
    ),
    Mechanism(
        "programs: threadblocks for each of several rings at once",
        {PROGRAMS + "_has_rings": _never},
        ("mi250 allgather --size 64MB --chunks 8 --engine ring",),
    ),
    Mechanism(
        "cubes that sums are doubled on",
        {"taccl.synth.templates.flooding.MOST_SIDES": 0},
        ("1KB --engine flooding",),
    ),
    Mechanism(
        "sums in threadblocks that only add",
        {PROGRAMS + "sums_aside": _nothing},
        ("--chunks 6 --engine ring --profile",),
    ),
    Mechanism(
        "answers received before more is sent",
        {"taccl.lowering.lower.FEWEST_SLOTS": math.inf},
        ("--chunks 3 --engine hierarchical",),
    ),
    Mechanism(
        "as many rings as wires let be",
        {"taccl.apps.synthesis.rings_at_once": _nothing},
        ("mi250 allreduce --size 64MB --engine auto",),
        heavy=True,
    ),
    Mechanism(
        "several rings before engines",
        {"taccl.apps.synthesis.RING_PIECE": math.inf},
        ("mi250 allreduce --size 64MB --engine auto",),
        heavy=True,
    ),
    Mechanism(
        "times expected of programs",
        {PROGRAMS + "expected_time": _makespan},
        ("engine auto --size 1MB --profile measured",),
        heavy=True,
    ),
    Mechanism(
        "instances",
        {PROGRAMS + "COPIES": (), PROGRAMS + "MEASURED_COPIES": (1,)},
        ("--alpha-rule delay", "--profile measured"),
        heavy=True,
    ),
)


def switch_off(mechanism: Mechanism) -> None:
    """Switch a mechanism off in this process.

    Raises
    ------
    AttributeError
        When there is no such name any more.
    """
    for path, value in mechanism.off.items():
        module, _, name = path.rpartition(".")
        found = importlib.import_module(module)
        old = getattr(found, name)
        setattr(found, name, value.change(old) if isinstance(value, Changed) else value)


def cells_of(mechanism: Mechanism, seconds: Mapping[str, Found]) -> list[str]:
    """Return the cells that can use a mechanism.

    Parameters
    ----------
    mechanism
        Which.
    seconds
        What is kept of every cell.
    """
    return [
        cell
        for cell in (*CELLS, *MORE)
        if any(text in cell for text in mechanism.cells)
        and (mechanism.heavy or cell in MORE or seconds[cell].seconds <= HEAVY)
    ]


def losses(mechanism: Mechanism, old: Mapping[str, Found], workers: int) -> dict[str, float]:
    """Return by cell how much longer it takes without a mechanism, as a share.

    Parameters
    ----------
    mechanism
        Which.
    old
        What is kept of every cell.
    workers
        Cells at once.
    """
    cells = cells_of(mechanism, old)
    program = ("-m", "benchmarks.ablation", "--off", mechanism.what, "--")

    def loss(cell: str) -> float:
        return run(cell, program).time / old[cell].time - 1

    with ThreadPoolExecutor(workers) as pool:
        found = dict(zip(cells, pool.map(loss, cells), strict=True))
        timed = pool.map(lambda off: _timed_apart(mechanism, off), ("", mechanism.what))
        before, after = timed
    return found | {name: after[name] / before[name] - 1 for name in before}


def _timed_apart(mechanism: Mechanism, off: str) -> dict[str, float]:
    """Return the times of the random problems of a mechanism, from a process without another."""
    if not mechanism.problems:
        return {}
    command = [sys.executable, "-m", "benchmarks.ablation", "--random", mechanism.what, off]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    times: dict[str, float] = json.loads(done.stdout)
    return times


def random_times(mechanism: Mechanism) -> dict[str, float]:
    """Return the time of the program, in picoseconds, that is found for each random problem."""
    found: dict[str, float] = {}
    for engine, collective in mechanism.problems:
        for seed in range(RANDOM):
            problem = random_problem(seed, collective)
            unit = 4 * problem.collective.chunks_in_size
            size = max(unit, int(problem.chunk_size * problem.collective.chunks_in_size))
            options = Options(deterministic=True, workers=1, time_limit=2.0)
            try:
                schedule = solve(problem, engine, options).schedule
            except TacclError:
                continue  # nothing serves all chunks
            if schedule is not None:
                task = lowering_of(schedule, Target(), size - size % unit, engine)
                found[f"random {collective} {seed} --engine {engine}"] = task.best[1]
    return found


def main() -> None:
    """Run every mechanism, and print what each wins; with ``--off``, run ``taccl`` without one."""
    if sys.argv[1:2] == ["--off"]:
        switch_off(next(one for one in MECHANISMS if one.what == sys.argv[2]))
        sys.argv = ["taccl", *sys.argv[4:]]
        run_taccl()
        return
    if sys.argv[1:2] == ["--random"]:
        known = {one.what: one for one in MECHANISMS}
        if sys.argv[3]:
            switch_off(known[sys.argv[3]])
        print(json.dumps(random_times(known[sys.argv[2]])))
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="mechanisms that contain this text")
    parser.add_argument("--workers", type=int, default=2, help="cells at once")
    parser.add_argument("--write", action="store_true", help="put the table into the docs")
    given = parser.parse_args()
    chosen = [one for one in MECHANISMS if given.only in one.what]
    if not chosen:
        parser.error(f"--only: no mechanism contains {given.only!r}")
    rows: list[Sequence[str]] = []
    frozen = kept()
    used = {cell for mechanism in chosen for cell in cells_of(mechanism, frozen)}
    more = [cell for cell in MORE if cell in used]
    with ThreadPoolExecutor(given.workers) as pool:
        old = {**frozen, **dict(zip(more, pool.map(run, more), strict=True))}
    for mechanism in chosen:
        found = losses(mechanism, old, given.workers)
        worst = max(found, key=lambda cell: found[cell])
        mark = "" if found[worst] >= WORTH else "under 2 %"
        row = (
            mechanism.what, f"{found[worst]:.1%}", f"{mean(found.values()):.1%}",
            str(len(found)), f"`{worst}`", mark,
        )  # fmt: skip
        rows.append(row)
        print("{:40s} {:>8s} {:>8s} {:>3s}  {:70s} {}".format(*row), flush=True)
    if given.write:
        page = Path("docs/performance.md")
        names = ("mechanism", "most", "mean", "cells", "where most")
        lines = {row[0]: "| " + " | ".join(row[:5]) + " |" for row in rows}
        before = {line.split(" | ")[0].lstrip("| "): line for line in page.read_text().splitlines()}
        table = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
        # With --only, the other rows stay.
        told = (lines.get(one.what) or before.get(one.what) for one in MECHANISMS)
        table += [line for line in told if line]
        replace_section(page, "ablation", HEAD + "\n" + "\n".join(table) + "\n")


if __name__ == "__main__":
    main()

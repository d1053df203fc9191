"""Bounds, the exact engine and all other engines on random small problems.

``python -m benchmarks.fuzz [--count 500] [--first 0] [--seconds 20] [--servers] [--fans]`` draws
problems of up to five ranks, with wires, switches, shared NICs, uneven latencies, both alpha rules,
with and without batches (with ``--servers``: servers of one to three ranks, often without batches,
some overheads explicit), and checks on each that

- no bound is above the exact optimum,
- no engine is below it (where it is proved) or below a bound, and every schedule is correct.

It prints a line for each problem, and last how often each kind of bound was met; it ends with exit
status 1 if any check fails. With ``--fans`` networks have switches that copy and add, and no bound
of the world ``any`` may be above what random ways over such switches reach, or mixes of them.
"""

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

from taccl.bounds import any_bounds, best, fixed_bounds, packing
from taccl.collectives import COLLECTIVES, build_collective
from taccl.errors import NoScheduleError
from taccl.model.problem import Bound, Options, Problem, Status
from taccl.synth.search import engine_names, solve
from taccl.topology.graph import whole
from taccl.topology.symmetry import make_group
from taccl.verify import verify
from tests.bounds.bound_networks import two_servers
from tests.bounds.fan_plans import judge_fans
from tests.generators import random_topology

MAX_RANKS = 5
SPREADING = ("allgather", "allgather", "reducescatter", "broadcast", "reduce", "allreduce")
"""Collectives whose data spreads inside servers."""

QUICK = Options(time_limit=1.0, deterministic=True, workers=1)


@dataclass(frozen=True)
class Outcome:
    """What came of one problem.

    Parameters
    ----------
    name
        What it is.
    proved
        Whether the exact engine closed it.
    makespan, bound
        Picoseconds: of the exact engine, and the best bound that applies.
    met
        The kinds of bounds that equal the makespan.
    wrong
        What does not hold; empty when all does.
    seconds
        Wall clock of the exact engine.
    """

    name: str
    proved: bool
    makespan: int
    bound: int
    met: tuple[str, ...]
    wrong: tuple[str, ...]
    seconds: float


def draw(seed: int) -> tuple[Problem, bool]:
    """Return a random problem of at most five ranks, and whether chunks may travel together."""
    rng = random.Random(f"fuzz {seed}")
    while True:
        topology = random_topology(rng.randrange(10**6))
        if topology.num_ranks <= MAX_RANKS:
            break
    topology = topology.with_alpha_rule(rng.choice(("occupy", "delay")))
    name = rng.choice(tuple(COLLECTIVES))
    chunks = rng.choice((1, 1, 2)) if name != "alltoall" or topology.num_ranks < 4 else 1
    root = rng.randrange(topology.num_ranks)
    rooted = COLLECTIVES[name].has_root
    collective = build_collective(name, topology.num_ranks, chunks, root if rooted else None)
    size = Fraction(rng.choice((1, 3, 10, 100)), rng.choice((1, 1, 2)))
    group = make_group(topology, ())
    return Problem(whole(topology), collective, size, group), rng.random() < 0.7


def draw_servers(seed: int) -> tuple[Problem, bool]:
    """Return a random problem on two or three servers, and whether chunks may travel together."""
    rng = random.Random(f"servers {seed}")
    sizes = rng.choice(((2, 1), (1, 2), (2, 2), (3, 1), (2, 1, 1), (3, 2)))
    topology = two_servers(rng, sizes)
    name = rng.choice(SPREADING) if rng.random() < 0.8 else rng.choice(tuple(COLLECTIVES))
    rooted = COLLECTIVES[name].has_root
    chunks = rng.choice((1, 2, 3) if name in ("broadcast", "reduce") else (1, 1, 2))
    small = topology.num_ranks > 4 or name in ("allreduce", "alltoall")
    root = rng.randrange(topology.num_ranks) if rooted else None
    collective = build_collective(name, topology.num_ranks, 1 if small else chunks, root)
    size = Fraction(rng.choice((1, 4, 30)))
    return Problem(whole(topology), collective, size, make_group(topology, ())), rng.random() < 0.2


def bounds_of(problem: Problem, *, batch: bool) -> tuple[Bound, ...]:
    """Return the lower bounds that hold, for sizes of whole bytes."""
    collective = problem.collective
    size = problem.chunk_size * collective.chunks_in_size
    found = any_bounds(problem.logical, collective, int(size), seconds=0.5)
    if not batch:
        found += fixed_bounds(problem.logical, collective, problem.chunk_size)
    return found


def check(
    seed: int, options: Options, drawn: Callable[[int], tuple[Problem, bool]] = draw
) -> Outcome:
    """Solve one problem exactly, with these options, and by every engine, and compare."""
    problem, batch = drawn(seed)
    topology, collective = problem.topology, problem.collective
    what = f"{topology.name} {collective.name} {topology.num_ranks}x{collective.chunks_per_rank}"
    what += f" {topology.alpha_rule} {'batch' if batch else 'single'}"
    began = time.monotonic()
    result = solve(problem, "exact", replace(options, batch=batch))
    took = time.monotonic() - began
    bounds = bounds_of(problem, batch=batch)
    bound = best(bounds).time
    if result.schedule is None:
        return Outcome(
            what, proved=False, makespan=0, bound=bound, met=(), wrong=("no answer",), seconds=took
        )
    makespan = result.schedule.makespan
    # Of sums that are spread, the best of all trees is as much as the engine can prove.
    closed = max((one.time for one in result.bounds), default=0)
    proved = result.status is Status.OPTIMAL or makespan <= max(closed, bound)
    wrong = [f"exact: {finding}" for finding in verify(result.schedule, problem.logical)]
    wrong += [
        f"{one.kind} bound ({one.world}) {one.time} > exact {makespan}"
        for one in bounds if one.time > makespan
    ]  # fmt: skip
    met = tuple(sorted({one.kind for one in bounds if one.time == makespan}))
    for engine in engine_names():
        if engine in ("exact", "auto"):
            continue
        try:
            schedule = solve(problem, engine, replace(QUICK, batch=batch)).schedule
        except NoScheduleError:
            continue
        if schedule is None:
            continue
        wrong += [f"{engine}: {finding}" for finding in verify(schedule, problem.logical)]
        # Not proved, or of sums the best of all trees only, the exact engine's may be beaten; and
        # by ranks that pack what they send, which it does not.
        if schedule.makespan < makespan and result.status is Status.OPTIMAL and not schedule.packs:
            wrong.append(f"{engine} {schedule.makespan} < exact {makespan}")
        if schedule.makespan < bound:
            wrong.append(f"{engine} {schedule.makespan} < bound {bound}")
    return Outcome(what, proved, makespan, bound, met, tuple(wrong), took)


def main() -> None:
    """Check so many problems and print what came of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--servers", action="store_true")
    parser.add_argument("--fans", action="store_true")
    arguments = parser.parse_args()
    seeds = range(arguments.first, arguments.first + arguments.count)
    if arguments.fans:
        packing.SECONDS = 0.1  # whatever the prices, what they prove holds
        wrong = [found for seed in seeds for found in judge_fans(seed)]
        print("\n".join([*wrong, f"{len(wrong)} bounds on {len(seeds)} networks are wrong"]))
        sys.exit(1 if wrong else 0)
    drawn = draw_servers if arguments.servers else draw
    totals: Counter[str] = Counter()
    met: Counter[str] = Counter()
    for seed in seeds:
        found = check(seed, Options(time_limit=arguments.seconds), drawn)
        met.update(found.met)
        state = "wrong" if found.wrong else "proved" if found.proved else "open"
        totals[state] += 1
        print(
            f"{seed} {found.name}: bound {found.bound} exact {found.makespan} ps"
            f" {found.seconds:.1f} s {state} {'; '.join(found.wrong[:3])}",
            flush=True,
        )
    print(", ".join(f"{count} {state}" for state, count in sorted(totals.items())))
    print("met: " + ", ".join(f"{kind} {count}" for kind, count in sorted(met.items())))
    sys.exit(1 if totals["wrong"] else 0)


if __name__ == "__main__":
    main()

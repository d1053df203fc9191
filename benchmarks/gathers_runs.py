"""What the gather benchmark runs: the engine, the classical algorithms and a plain greedy."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from taccl.apps import Request, Synthesis, load_network, logical_group, synthesize
from taccl.collectives import build_collective, chunk_size_of
from taccl.errors import OutOfTimeError
from taccl.model.problem import Problem
from taccl.model.routes import build_network
from taccl.model.schedule import Decisions, retime
from taccl.synth.greedy import greedy_routes
from taccl.synth.templates.classical import classical_schedules
from taccl.topology.graph import LogicalTopology
from taccl.topology.symmetry import make_group
from taccl.units import Time

CLASSICAL = ("ring", "halving-doubling", "all-pairs")

COUNTS = (1, 2, 3, 4, 6, 8)
"""Chunks for each rank that are tried where the best count is asked for."""

MOST_SENDS = 1_200_000
"""Sends of an allgather, above which more chunks are not tried."""

CLASSICAL_RANKS = 256
"""Ranks up to which the classical algorithms are timed."""

PLAIN_RANKS = 64
"""Ranks up to which the greedy runs on all chunks; above, on one of every orbit."""

FRUITLESS = 3
"""Chunk counts in a row without a gain, after which no more are tried."""


@dataclass(frozen=True)
class Timed:
    """A synthesis, and the seconds it took by the wall clock and of all cores together."""

    found: Synthesis
    wall: float
    cpu: float

    @property
    def seconds(self) -> float:
        """What counts: the smaller of both, as other jobs may use the machine.

        Of a search that ends by itself an idle machine needs no more. One that lasts until its
        time limit lasts as long there; only what it overruns the limit by is less.
        """
        return min(self.wall, self.cpu)


def warm_up() -> None:
    """Have everything compiled that searches run as machine code."""
    for name in ("allgather", "allreduce"):
        synthesize(request(load_network("ring:4"), name, 10**6, 1, seconds=5))


def request(
    logical: LogicalTopology,
    collective: str,
    size: int,
    chunks: int,
    *,
    seconds: float,
    batch: bool = False,
) -> Request:
    """Return what ``taccl synthesize --runtime none`` would ask with these options."""
    return Request(
        logical, collective, size, chunks, batch=batch, engine="guided", target=None,
        time_limit=seconds,
    )  # fmt: skip


def timed(asked: Request) -> Timed:
    """Run a synthesis."""
    wall, cpu = time.perf_counter(), time.process_time()
    found = synthesize(asked)
    return Timed(found, time.perf_counter() - wall, time.process_time() - cpu)


def series(
    asked: Request,
    engines: Sequence[str] = ("guided",),
    enough: float = 0.02,
    counts: Sequence[int] = COUNTS,
) -> Iterator[Synthesis]:
    """Yield syntheses with more and more chunks, by each engine, while that gains something.

    Parameters
    ----------
    enough
        The gap to the bound for all algorithms at which no more are tried.
    counts
        Chunks for each rank, ascending.
    """
    ranks = asked.logical.topology.num_ranks
    best, fruitless = math.inf, 0
    for count in counts:
        if count > counts[0] and count * ranks * (ranks - 1) > MOST_SENDS:
            return
        before = best
        for engine in engines:
            try:
                found = synthesize(replace(asked, chunks=count, engine=engine))
            except OutOfTimeError:
                continue
            yield found
            best = min(best, found.schedule.makespan)
            if (found.gap or 0.0) <= enough:
                return
        fruitless = 0 if best < before else fruitless + 1
        if fruitless >= FRUITLESS:
            return


def best_of(found: Iterator[Synthesis]) -> Synthesis:
    """Return the one with the least makespan, the first of equals."""
    return min(found, key=lambda one: one.schedule.makespan)


def problem_of(asked: Request, *, symmetric: bool) -> Problem:
    """Return the problem that a request stands for."""
    logical, chunks = asked.logical, asked.chunks or 1
    collective = build_collective(str(asked.collective), logical.topology.num_ranks, chunks)
    group = logical_group(logical, collective) if symmetric else make_group(logical.topology, ())
    return Problem(logical, collective, chunk_size_of(collective, asked.size), group)


def classical(asked: Request, name: str) -> Time | None:
    """Return the makespan of a classical algorithm; None where it does not exist."""
    if asked.logical.topology.num_ranks > CLASSICAL_RANKS:
        return None
    found = classical_schedules(problem_of(asked, symmetric=False), name, batch=asked.batch)
    return min((schedule.makespan for schedule in found), default=None)


def greedy(asked: Request) -> Time:
    """Return the makespan of an allgather by the plain earliest-finish greedy."""
    problem = problem_of(asked, symmetric=asked.logical.topology.num_ranks > PLAIN_RANKS)
    chunks = problem.representatives
    rows = [
        (chunks[hop.demand], hop.arc.link, number, False)
        for number, hop in enumerate(greedy_routes(build_network(problem)))
    ]
    made = retime(problem.collective, problem.group, problem.chunk_size, Decisions.of(rows))
    return made.makespan


def exponent(points: Sequence[tuple[float, float]]) -> float:
    """Return the slope of the straight line through the logarithms of (x, y), by least squares.

    Raises
    ------
    ValueError
        When there are not two different x.
    """
    xs, ys = [math.log(x) for x, _ in points], [math.log(y) for _, y in points]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((one - x) ** 2 for one in xs)
    if not spread:
        raise ValueError("one x only")
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / spread

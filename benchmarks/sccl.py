"""Answer what SCCL asked about a DGX-1: ``python -m benchmarks.sccl``.

Steps, rounds and chunks, and whether an algorithm of that size exists, as reported by Cai et al.,
"Synthesizing Optimal Collective Algorithms" (PPoPP 2021), and by ``msccl solve instance``.
"""

import sys
import time
from dataclasses import dataclass
from fractions import Fraction

from taccl.collectives import build_collective
from taccl.model.problem import Options, Problem, Status
from taccl.synth.steps_rounds import Answer, Size, answer, chunks_per_rank, schedule_of
from taccl.topology.graph import Edge, Topology, whole
from taccl.topology.symmetry import make_group
from taccl.verify import require_valid

DOUBLE = ((0, 1), (0, 4), (1, 3), (2, 3), (2, 6), (4, 5), (5, 7), (6, 7))
SINGLE = ((0, 2), (0, 3), (1, 2), (1, 5), (3, 7), (4, 6), (4, 7), (5, 6))
"""Pairs of a DGX-1 with two NVLinks and with one (msccl-tools, msccl/topologies)."""


@dataclass(frozen=True)
class Case:
    """A question about the DGX-1, and the answer."""

    collective: str
    size: Size
    exists: bool


CASES = (
    Case("allgather", Size(2, 2, 1), exists=True),
    Case("allgather", Size(2, 3, 2), exists=True),
    Case("allgather", Size(3, 4, 3), exists=True),
    Case("allgather", Size(3, 7, 6), exists=True),
    Case("allgather", Size(2, 4, 3), exists=False),
    Case("reducescatter", Size(3, 7, 6), exists=True),
    Case("allreduce", Size(2, 2, 1), exists=True),
    Case("alltoall", Size(3, 3, 1), exists=True),
    Case("alltoall", Size(2, 3, 1), exists=True),
    Case("alltoall", Size(2, 4, 2), exists=False),
)

SECONDS = 180


def dgx1() -> Topology:
    """Return a DGX-1: 25 GB/s and 0.7 us for an NVLink."""
    ends = [
        (a, b, Fraction(1000, 25 * count))
        for count, pairs in ((2, DOUBLE), (1, SINGLE))
        for pair in pairs
        for a, b in (pair, pair[::-1])
    ]
    edges = [
        Edge(number, a, b, 700_000, None, beta, f"{a}->{b}")
        for number, (a, b, beta) in enumerate(ends)
    ]
    return Topology("dgx1", 8, (), tuple(edges), (0,) * 8)


def problem_for(topology: Topology, collective: str, chunks: int) -> Problem:
    """Return a problem with the chunks that a question needs, of 1 MB each."""
    ranks = topology.num_ranks
    each = chunks_per_rank(collective, ranks, chunks)
    return Problem(
        whole(topology),
        build_collective(collective, ranks, each),
        Fraction(1_000_000),
        make_group(topology, ()),
    )


def solve(case: Case, options: Options) -> tuple[Answer, int | None]:
    """Return the answer to a case, and the makespan in picoseconds of the verified schedule."""
    problem = problem_for(dgx1(), case.collective, case.size.chunks)
    found = answer(problem, case.size, options, options.time_limit)
    if found.rounds is None:
        return found, None
    schedule = schedule_of(problem, found.rounds)
    require_valid(schedule, problem.logical)
    return found, schedule.makespan


def main() -> int:
    """Print the table; return 1 when an answer is wrong or unknown."""
    began = time.monotonic()
    wrong = 0
    for case in CASES:
        found, makespan = solve(case, Options(time_limit=SECONDS))
        expected = Status.OPTIMAL if case.exists else Status.INFEASIBLE
        wrong += found.status is not expected
        size = "/".join(str(number) for number in case.size)
        verdict = {Status.OPTIMAL: "exists", Status.INFEASIBLE: "does not exist"}.get(
            found.status, "unknown"
        )
        took = "-" if makespan is None else f"{makespan / 1e6:.1f}"
        print(f"{case.collective:<14}{size:<8}{verdict:<16}{found.seconds:6.2f} s {took:>8} us")
    seconds = time.monotonic() - began
    print(f"in all {seconds:.1f} s (at most {SECONDS} s wanted), {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

"""Parts of larger chunks: right, never slower than one by one, joined where nothing waits."""

from dataclasses import replace
from fractions import Fraction

import numpy as np

from taccl.model.problem import Problem
from taccl.model.schedule import retime
from taccl.synth.list_scheduler import dispatched, load_of
from taccl.synth.message_coalescing import coarser, cut_and_joined
from taccl.synth.plan import plan_decisions, rows_of
from taccl.topology.file import load_topology
from taccl.topology.symmetry import make_group
from taccl.verify import verify
from tests.generators import both_ways, build, pair, random_decisions, random_problem
from tests.sweep import for_each
from tests.synth.problems import classical_schedule, problem_of


def silent(line: str) -> None:
    """Report nothing."""


def never() -> bool:
    """Let it take its time."""
    return False


def part_by_part(problem: Problem, coarse: Problem, seed: int, parts: int) -> int:
    rows = [
        (chunk * parts + part, link, reduce)
        for chunk, link, reduce in rows_of(random_decisions(coarse, seed))
        for part in range(parts)
    ]
    plan = plan_decisions(problem, rows)
    return dispatched(load_of(plan, [(n,) for n in range(len(rows))]), silent)[1]


@for_each("parts", [2, 3], quick=10)
@for_each("collective", ["allgather", "allreduce", "alltoall", "reducescatter"])
@for_each("seed", range(6))
def test_it_is_correct_and_no_slower_than_part_by_part(
    seed: int, collective: str, parts: int
) -> None:
    drawn = random_problem(seed, collective)
    problem = replace(drawn, collective=drawn.collective.cut(parts))
    coarse = replace(drawn, chunk_size=drawn.chunk_size * parts)
    decisions = random_decisions(coarse, seed)
    single = replace(decisions, batch=decisions.batch * 0 + range(len(decisions.batch)))
    start = retime(coarse.collective, coarse.group, coarse.chunk_size, single)
    found = cut_and_joined(problem, start, parts, silent, never)
    assert not verify(found, problem.logical)
    assert found.makespan <= part_by_part(problem, coarse, seed, parts)


def test_parts_that_wait_for_nothing_leave_as_one() -> None:
    # One hop each way: alpha, 10 ps, is paid once for both parts of 1000 bytes at 2 ps.
    problem = problem_of(pair(), "allgather", chunks=2)
    coarse = coarser(problem, 2)
    assert coarse is not None
    start = classical_schedule(coarse, "all-pairs", batch=False)
    assert start is not None
    found = cut_and_joined(problem, start, 2, silent, never)
    assert found.makespan == 10 + 2 * 2000


def test_the_first_and_the_last_part_go_alone_where_the_middle_is_joined() -> None:
    # A line of three: a broadcast of 4 parts, 100 ps of alpha, 1000 ps a part. One by one the
    # last arrives after 5 x 1100 ps; with 2 and 3 joined on both hops it would be later.
    line = build(
        "line", 3, [*both_ways(0, 1, 100, Fraction(1)), *both_ways(1, 2, 100, Fraction(1))]
    )
    problem = problem_of(line, "broadcast", chunks=4)
    coarse = coarser(problem, 4)
    assert coarse is not None
    start = classical_schedule(coarse, "chain", batch=False)
    assert start is not None
    assert start.makespan == 2 * 4100
    found = cut_and_joined(problem, start, 4, silent, never)
    assert found.makespan <= 5 * 1100
    assert not verify(found, problem.logical)


def test_a_port_that_is_busy_all_the_time_pays_alpha_less_often() -> None:
    topology = load_topology("hub:4@25GB/s,10us")
    problem = problem_of(topology, "allreduce", chunks=4, chunk_size=10**6)
    coarse = coarser(problem, 4)
    assert coarse is not None
    start = classical_schedule(coarse, "all-pairs", batch=False)
    assert start is not None
    found = cut_and_joined(problem, start, 4, silent, never)
    assert found.batches
    assert not verify(found, problem.logical)
    assert found.makespan <= start.makespan


def test_when_time_is_over_the_parts_go_one_by_one() -> None:
    problem = problem_of(pair(), "allgather", chunks=2)
    coarse = coarser(problem, 2)
    assert coarse is not None
    start = classical_schedule(coarse, "all-pairs", batch=False)
    assert start is not None
    found = cut_and_joined(problem, start, 2, silent, lambda: True)
    assert not found.batches
    assert found.makespan == 2 * (10 + 2000)


def test_only_whole_chunks_of_known_collectives_get_coarser() -> None:
    problem = problem_of(pair(), "allgather", chunks=3)
    assert coarser(problem, 2) is None
    wide = coarser(problem, 3)
    assert wide is not None
    assert (wide.collective.num_chunks, wide.chunk_size) == (2, Fraction(3000))
    mine = replace(problem, collective=replace(problem.collective, name="mine"))
    assert coarser(mine, 3) is None


def test_what_crosses_last_is_spread_in_parts_and_the_rest_is_joined() -> None:
    # Two DGX-2, 1 MiB a rank: after the second chunk of a NIC has crossed, eight whole chunks
    # would have to enter every rank. In halves only, at 0.7 us of alpha each, ports would be busy
    # for 31 x 0.7 us longer than with whole chunks.
    topology = load_topology("dgx2", nodes=2)
    problem = problem_of(topology, "allgather", 2, chunk_size=1 << 19, symmetric=True)
    coarse = coarser(problem, 2)
    assert coarse is not None
    start = classical_schedule(coarse, "hierarchical", batch=False)
    assert start is not None
    unfolded = replace(problem, group=make_group(topology, ()))
    found = cut_and_joined(unfolded, start, 2, silent, never)
    assert not verify(found, problem.logical)
    lengths = np.unique(np.unique(found.batch, return_counts=True)[1])
    assert lengths.tolist()[:2] == [1, 2]
    assert found.makespan < 0.95 * start.makespan

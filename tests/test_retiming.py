"""The fast pass over copied chunks says what the general one says."""

from fractions import Fraction

import numpy as np
import pytest

from taccl.collectives import COLLECTIVES
from taccl.model.schedule import Decisions, _time_all, retime
from taccl.timing.retiming import copy_times, sum_times
from taccl.topology.file import load_topology
from taccl.topology.symmetry import make_group
from tests.generators import random_decisions, random_problem, ring4
from tests.sweep import for_each
from tests.synth.problems import problem_of

COPIED = [name for name in COLLECTIVES if "reduce" not in name]


@for_each("collective", COPIED)
@for_each("seed", range(12))
def test_both_passes_agree_to_the_picosecond(seed: int, collective: str) -> None:
    problem = random_problem(seed, collective)
    decisions = random_decisions(problem, seed)
    columns = (decisions.chunk, decisions.link, decisions.batch)
    start, end = copy_times(problem.collective, problem.group, problem.chunk_size, columns)
    slow = _time_all(problem.collective, problem.group, problem.chunk_size, decisions, {})
    assert start.tolist() == slow[0].tolist()
    assert end.tolist() == slow[1].tolist()


def test_both_passes_over_sums_agree_to_the_picosecond() -> None:
    for collective in ("reducescatter", "allreduce", "reduce"):
        for seed in range(12):
            problem = random_problem(seed, collective)
            decisions = random_decisions(problem, seed)
            columns = (decisions.chunk, decisions.link, decisions.batch, decisions.reduce)
            asked = (problem.collective, problem.group, problem.chunk_size)
            start, end = sum_times(*asked, columns)
            slow = _time_all(*asked, decisions, {})
            assert start.tolist() == slow[0].tolist(), (collective, seed)
            assert end.tolist() == slow[1].tolist(), (collective, seed)


def test_orbits_are_what_a_message_holds() -> None:
    # 1 -> 2 is the image of 0 -> 1, so the second message waits for the first: 1 us and 1000 bytes.
    network = load_topology("ring:4@1GB/s,1us")
    problem = problem_of(network, "allgather", symmetric=True)
    right = [network.links_between(rank, rank + 1)[0] for rank in range(2)]
    decisions = Decisions.of([(0, right[0], 0, False), (0, right[1], 1, False)])
    timed = retime(problem.collective, problem.group, Fraction(1000), decisions)
    assert timed.start.tolist() == [0, 2_000_000]
    apart = retime(problem.collective, make_group(network, ()), Fraction(1000), Decisions.of([
        (0, right[0], 0, False), (1, right[1], 1, False),
    ]))  # fmt: skip
    assert apart.start.tolist() == [0, 0]


def test_a_send_before_every_arrival_is_refused() -> None:
    problem = problem_of(ring4(), "allgather")
    link = problem.topology.links_between(1, 2)[0]
    chunk, sent, batch = (np.array([value], dtype=np.int32) for value in (0, link, 0))
    with pytest.raises(ValueError, match="chunk 0 is sent by rank 1 before it arrives there"):
        copy_times(problem.collective, problem.group, Fraction(1), (chunk, sent, batch))
    columns = (chunk, sent, batch, np.array([False]))
    with pytest.raises(ValueError, match="chunk 0 is sent by rank 1 before it arrives there"):
        sum_times(problem.collective, problem.group, Fraction(1), columns)

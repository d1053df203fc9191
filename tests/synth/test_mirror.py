"""A reduction is a gather on the mirrored machine, played backwards, in the same time."""

from dataclasses import replace
from fractions import Fraction

import numpy as np

from taccl.model.problem import Problem
from taccl.model.schedule import Schedule, retime
from taccl.synth.time_reversal import Mirror, mirrored, played_backwards
from taccl.verify import verify
from tests.generators import build, pair, random_decisions, random_problem, ring4
from tests.sweep import for_each
from tests.synth.problems import problem_of


def gathered(mirror: Mirror, seed: int, *, single: bool = True) -> Schedule:
    problem = mirror.problem
    decisions = random_decisions(problem, seed)
    if single:
        alone = np.arange(len(decisions.chunk), dtype=np.int32)
        decisions = replace(decisions, batch=alone)
    return retime(problem.collective, problem.group, problem.chunk_size, decisions)


def mirror_of(problem: Problem) -> Mirror:
    mirror = mirrored(problem)
    assert mirror is not None
    return mirror


def holds_all_the_time(problem: Problem) -> bool:
    """Tell whether every message keeps its edges busy until it arrives, so that time can turn."""
    topology, size = problem.topology, problem.chunk_size
    return all(
        topology.busy(link, edge, size) == topology.arrival(link, size)
        for link in range(len(topology.links))
        for edge in topology.links.edges_of(link)
    )


@for_each("collective", ["reducescatter", "reduce"])
@for_each("seed", range(12))
def test_what_is_played_backwards_is_correct_and_no_slower(collective: str, seed: int) -> None:
    problem = random_problem(seed, collective)
    mirror = mirror_of(problem)
    gather = gathered(mirror, seed)
    found = played_backwards(problem, mirror.link, gather)
    assert not verify(found, problem.logical)
    if holds_all_the_time(problem):
        assert found.makespan <= gather.makespan


def test_messages_stay_whole_or_are_cut_where_a_reduction_keeps_chunks_elsewhere() -> None:
    whole = []
    for seed in range(12):
        drawn = random_problem(seed, "reducescatter")
        problem = replace(drawn, collective=drawn.collective.cut(2))
        mirror = mirror_of(problem)
        gather = gathered(mirror, seed, single=False)
        found = played_backwards(problem, mirror.link, gather)
        assert not verify(found, problem.logical)
        sizes = sorted(np.bincount(found.batch)), sorted(np.bincount(gather.batch))
        assert len(sizes[0]) >= len(sizes[1])
        whole.append(sizes[0] == sizes[1])
    assert any(whole)


def test_back_and_forth_is_the_gather_itself() -> None:
    problem = problem_of(ring4(), "reducescatter", chunks=2)
    mirror = mirror_of(problem)
    gather = gathered(mirror, seed=1)
    there = played_backwards(problem, mirror.link, gather)
    again = played_backwards(mirror.problem, np.argsort(mirror.link), there)
    assert sorted(again.decisions().rows()) == sorted(gather.decisions().rows())


def test_an_edge_that_leads_one_way_is_used_the_other_way_round() -> None:
    # 0 -> 1 takes 10 ps and 2 ps a byte, back 30 ps and 1 ps a byte.
    uneven = build("uneven", 2, [(0, 1, 10, None, Fraction(2)), (1, 0, 30, None, Fraction(1))])
    mirror = mirror_of(problem_of(uneven, "reducescatter"))
    turned = mirror.problem.topology.links
    assert [(int(s), int(d)) for s, d in zip(turned.src, turned.dst, strict=True)] == [
        (0, 1), (1, 0),
    ]  # fmt: skip
    assert turned.alpha.tolist() == [30, 10]
    assert mirror.link.tolist() == [1, 0]


def test_on_a_machine_of_equal_wires_both_take_the_same_time() -> None:
    problem = problem_of(ring4(), "reducescatter", chunks=2)
    assert holds_all_the_time(problem)
    mirror = mirror_of(problem)
    gather = gathered(mirror, seed=1)
    assert played_backwards(problem, mirror.link, gather).makespan <= gather.makespan


def test_gathers_sums_for_all_and_sketches_have_no_mirror() -> None:
    for collective in ("allgather", "allreduce", "alltoall"):
        assert mirrored(problem_of(pair(), collective)) is None
    problem = problem_of(pair(), "reducescatter")
    sketched = replace(problem, logical=replace(problem.logical, name="some sketch"))
    assert mirrored(sketched) is None

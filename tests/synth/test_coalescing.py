"""Neighbours that travel together from the start: times by hand, and every answer verified."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from taccl.model.problem import Problem
from taccl.model.schedule import Schedule
from taccl.synth.guided.recursive_block_gather import coalesced
from taccl.synth.guided.search import compiled
from taccl.synth.templates.classical import classical_schedule
from taccl.topology.file import load_topology
from taccl.topology.graph import Topology, whole
from taccl.topology.symmetry import make_group
from taccl.verify import verify
from tests.generators import pair, random_topology, ring4, star5, twin2x2
from tests.sweep import for_each
from tests.synth.problems import problem_of


def never() -> bool:
    return False


def quiet(line: str) -> None:
    """Say nothing."""
    del line


def coalesced_schedule(problem: Problem, *, hurried: bool = False) -> Schedule:
    """Return what is found, which must be valid."""
    schedule = coalesced(problem, compiled(quiet), lambda: hurried)
    assert schedule is not None
    assert verify(schedule, problem.logical) == []
    return schedule


@for_each("collective", ["allgather", "reducescatter", "allreduce"])
@for_each("chunks", [1, 2])
@for_each("machine", [pair, ring4, star5, twin2x2])
def test_what_travels_together_is_adjacent_everywhere(
    machine: Callable[[], Topology], chunks: int, collective: str
) -> None:
    coalesced_schedule(problem_of(machine(), collective, chunks, 10), hurried=True)


@for_each("seed", range(12))
def test_random_networks_are_served(seed: int) -> None:
    collective = ("allgather", "reducescatter", "allreduce")[seed % 3]
    coalesced_schedule(problem_of(random_topology(seed), collective, 1 + seed % 2), hurried=True)


@pytest.mark.parametrize("collective", ["allgather", "reducescatter"])
def test_a_switch_doubles_what_a_rank_has(collective: str) -> None:
    # Eight ranks, 3 x alpha, and seven chunks' bytes enter every rank.
    network = load_topology("hub:8@1GB/s,1us")
    problem = problem_of(network, collective, chunk_size=10, symmetric=True)
    assert coalesced_schedule(problem).makespan == 3 * 1_000_000 + 7 * 10_000


def test_a_ring_floods_both_ways() -> None:
    # Two hops; the second chunk that a wire carries is one, as is the first.
    assert coalesced_schedule(problem_of(ring4(), "allgather", chunk_size=5)).makespan == 2 * 15


@pytest.mark.parametrize("nodes", [1, 2])
def test_it_takes_no_longer_than_recursive_doubling(nodes: int) -> None:
    problem = problem_of(load_topology("dgx2", nodes=nodes), "allgather", symmetric=True)
    doubling = classical_schedule(problem, "halving-doubling", batch=True)
    assert doubling is not None
    assert coalesced_schedule(problem, hurried=nodes == 2).makespan <= doubling.makespan


def test_symmetry_changes_no_rule() -> None:
    # The torus turns both ways; rows are blocks, so only turns that keep them count.
    network = load_topology("torus2d:4x2")
    for symmetric in (True, False):
        problem = problem_of(network, "allgather", 2, symmetric=symmetric)
        assert coalesced_schedule(problem).batches


def test_own_sketches_and_other_collectives_have_none() -> None:
    problem = problem_of(ring4(), "alltoall")
    assert coalesced(problem, compiled(quiet), never) is None
    limited = replace(whole(ring4()), max_extra_hops=0)
    assert coalesced(problem_of(limited, "allgather"), compiled(quiet), never) is None


def test_a_machine_that_is_cut_has_none() -> None:
    logical = whole(pair())
    closed = replace(logical, allowed=np.zeros_like(logical.allowed))
    assert coalesced(problem_of(closed, "allgather"), compiled(quiet), never) is None
    assert len(make_group(pair(), ())) == 1

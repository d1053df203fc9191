"""The classical algorithms: their formulas, where they exist, and what a ring looks like."""

from fractions import Fraction

import pytest

from taccl.collectives import COLLECTIVES
from taccl.errors import NoScheduleError
from taccl.synth import solve
from taccl.synth.classical import CLASSICAL, classical_schedule, ring_order
from taccl.synth.problem import Options
from taccl.topology import Topology, whole
from taccl.topology_file import load_topology
from taccl.verify import verify
from tests.generators import random_topology
from tests.synth.problems import problem_of

ALPHA, BETA = 700_000, Fraction(20)
"""The default link of the short forms: 0.7 us, 50 GB/s = 20 ps a byte."""


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("rule", ["occupy", "delay"])
def test_a_ring_allreduce_takes_its_formula_to_the_picosecond(ranks: int, rule: str) -> None:
    topology = load_topology(f"ring:{ranks}").with_alpha_rule(rule)
    schedule = classical_schedule(problem_of(topology, "allreduce"), "ring", batch=True)
    assert schedule is not None
    assert schedule.makespan == 2 * (ranks - 1) * (ALPHA + BETA * 1000)


@pytest.mark.parametrize("collective", ["allgather", "reducescatter"])
def test_half_an_allreduce_takes_half_its_formula(collective: str) -> None:
    schedule = classical_schedule(
        problem_of(load_topology("ring:8"), collective), "ring", batch=True
    )
    assert schedule is not None
    assert schedule.makespan == 7 * (ALPHA + BETA * 1000)


@pytest.mark.parametrize("collective", ["allgather", "reducescatter", "alltoall"])
def test_all_pairs_on_a_hub_serves_one_peer_after_the_other(collective: str) -> None:
    # Each port of the hub carries 7 messages of 0.7 us + 20 ns.
    schedule = classical_schedule(
        problem_of(load_topology("hub:8"), collective), "all-pairs", batch=True
    )
    assert schedule is not None
    assert schedule.makespan == 7 * (ALPHA + BETA * 1000)


@pytest.mark.parametrize("rule", ["occupy", "delay"])
@pytest.mark.parametrize(
    ("collective", "times"), [("allgather", 1), ("reducescatter", 1), ("allreduce", 2)]
)
def test_halving_doubling_on_a_hub_pays_alpha_three_times_for_eight_ranks(
    collective: str, times: int, rule: str
) -> None:
    topology = load_topology("hub:8").with_alpha_rule(rule)
    schedule = classical_schedule(problem_of(topology, collective), "halving-doubling", batch=True)
    assert schedule is not None
    assert schedule.makespan == times * (3 * ALPHA + 7 * BETA * 1000)


def test_halving_doubling_needs_a_power_of_two() -> None:
    problem = problem_of(load_topology("hub:6"), "allgather")
    assert classical_schedule(problem, "halving-doubling", batch=True) is None


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("name", CLASSICAL)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_classical_schedule_that_exists_is_correct(seed: int, name: str, collective: str) -> None:
    problem = problem_of(random_topology(seed), collective, chunks=1 + seed % 2)
    schedule = classical_schedule(problem, name, batch=seed % 3 == 0)
    if schedule is not None:
        assert verify(schedule, problem.logical) == []


def test_a_ring_follows_the_fast_wires_of_the_hybrid_cube_mesh() -> None:
    order = ring_order(problem_of(load_topology("ndv2"), "allgather"))
    assert order is not None
    topology = load_topology("ndv2")
    for here, there in zip(order, (*order[1:], order[0]), strict=True):
        (link,) = topology.links_between(here, there)
        assert topology.links.max_beta(link) == 23


def test_a_ring_visits_server_after_server() -> None:
    order = ring_order(problem_of(load_topology("dgx2", nodes=2), "allgather"))
    assert order is not None
    assert sorted(order[:16]) == list(range(16))


def test_all_pairs_needs_a_link_for_every_pair() -> None:
    problem = problem_of(load_topology("ring:4"), "alltoall")
    with pytest.raises(NoScheduleError, match="all-pairs does not exist for alltoall"):
        solve(problem, "all-pairs", Options())


def test_a_ring_that_the_sketch_opens_nowhere_does_not_exist() -> None:
    topology: Topology = load_topology("mesh2d:3x3")
    problem = problem_of(whole(topology), "allgather")
    # A mesh of nine is bipartite with odd halves: it has no closed tour.
    assert ring_order(problem) is None

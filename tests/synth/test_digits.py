"""All to all, digit by digit: every answer verified, times by hand, and faster than in steps."""

from dataclasses import replace
from fractions import Fraction
from math import prod

import pytest

from taccl.apps import Request, synthesize
from taccl.model.problem import Problem
from taccl.model.schedule import Schedule
from taccl.synth.templates.grid_programs import written
from taccl.topology.file import load_topology
from taccl.topology.graph import whole
from tests.sweep import for_each
from tests.synth.problems import problem_of
from tests.synth.test_butterflies import nodes_of
from tests.synth.test_folding import found_of, least_classical

US = 10**6


def found(problem: Problem) -> tuple[Schedule, ...]:
    return found_of(problem, "mixed-radix")


@for_each("collective", ["alltoall", "allgather", "reducescatter"])
@for_each(
    ("gpus", "sharing", "count"), [(4, 2, 2), (4, 4, 2), (2, 1, 3), (6, 3, 2), (3, 1, 1), (1, 1, 4)]
)
@for_each("chunks", [1, 2])
def test_every_answer_is_valid(
    gpus: int, sharing: int, count: int, chunks: int, collective: str
) -> None:
    assert found(problem_of(nodes_of(gpus, sharing, count), collective, chunks, Fraction(1)))


@for_each("places", range(1, 100))
def test_digits_tell_all_places_apart(places: int) -> None:
    for digits in written(places):
        values = {tuple(digit.of(place) for digit in digits) for place in range(places)}
        assert len(values) == places == prod(d.radix for d in digits)


def test_places_are_written_in_small_digits_two_and_one() -> None:
    radices = [[digit.radix for digit in digits] for digits in written(72)]
    assert radices == [[2, 2, 2, 3, 3], [4, 6, 3], [8, 9], [72]]


@pytest.mark.parametrize("collective", ["allreduce", "broadcast", "gather"])
def test_other_collectives_are_left_to_others(collective: str) -> None:
    assert found(problem_of(nodes_of(4, 2, 2), collective)) == ()


def test_no_grid_no_schedule() -> None:
    assert found(problem_of(load_topology("ring:8"), "alltoall")) == ()


def test_the_classes_of_a_nic_cross_in_turn() -> None:
    # 8 ranks of 100 bytes for each other rank. The first class crosses at once with 400 bytes (700
    # us), then meets the other NIC (500 us); the second meets it first, and crosses from 700 to
    # 1400 us; then the classes meet (500 us).
    problem = problem_of(nodes_of(4, 2, 2), "alltoall", 1, Fraction(100))
    assert found(problem)[0].makespan == (700 + 700 + 500) * US


def test_a_gather_crosses_in_turn_as_well() -> None:
    # With its own byte at once (301 us); the second class with two (102 us for them, then 302),
    # while the first meets the other NIC. Four and four are exchanged at the end.
    problem = problem_of(nodes_of(4, 2, 2), "allgather", 1, Fraction(1))
    assert found(problem)[0].makespan == (301 + 302 + 104) * US


def test_one_rank_crosses_for_all_at_its_nic() -> None:
    # Of two servers of 4 ranks at one NIC, each gives what leaves to one of two (104 us for 4
    # bytes), these to one (108 us), which crosses with 16 (316 us); and back (108 + 104 us). In
    # turn, four would cross with 4 bytes each (304 us).
    problem = problem_of(nodes_of(4, 4, 2), "alltoall", 1, Fraction(1))
    assert found(problem)[0].makespan == (104 + 108 + 316 + 108 + 104) * US


def test_what_stays_in_a_leaf_may_go_by_its_leader_too() -> None:
    # Eight ranks of a leaf fold to one (0.7 us three times), which crosses with four leaves (2.1 us
    # twice), and what came and what stays goes back: 8.4 us, and the bytes of 1 KB buffers.
    problem = problem_of(load_topology("leaf-spine"), "alltoall", 1, Fraction(1000, 32))
    schedules = found(problem)
    assert 8_400_000 < schedules[0].makespan < 9_000_000


@pytest.mark.parametrize("size", [1 << 10, pytest.param(1 << 14, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "collective", [pytest.param("alltoall", marks=pytest.mark.slow), "allgather", "reducescatter"]
)
def test_two_dgx2_are_a_fifth_faster_than_any_classical_algorithm(
    collective: str, size: int
) -> None:
    topology = load_topology("dgx2", nodes=2)
    problem = problem_of(topology, collective, 1, Fraction(size, topology.num_ranks))
    least = least_classical(topology, collective, size)
    assert found(problem)[0].makespan <= 0.8 * least


@pytest.mark.parametrize(
    "collective", ["alltoall", pytest.param("allgather", marks=pytest.mark.slow)]
)
def test_its_programs_take_as_long_as_its_schedules(collective: str) -> None:
    network = whole(load_topology("dgx2", nodes=2))
    asked = Request(network, collective, 1 << 12, 1, engine="guided", deterministic=True)
    done = synthesize(replace(asked, time_limit=5.0))
    assert done.schedule.packs
    assert done.time == done.schedule.makespan

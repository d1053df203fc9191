"""Gathers in waves: every answer verified, times by hand, and faster than all at once."""

from fractions import Fraction
from itertools import pairwise

import pytest

from taccl.apps.programs import Target, lowering_of
from taccl.model.problem import Problem
from taccl.model.schedule import Schedule
from taccl.synth.templates.grid_programs import MOST_SHARES, MOST_STAGES, cuts_of
from taccl.topology.file import load_topology
from tests.sweep import for_each
from tests.synth.problems import problem_of
from tests.synth.test_butterflies import nodes_of
from tests.synth.test_folding import found_of, least_classical

GATHERS = ("allgather", "reducescatter", "allreduce")

US = 10**6


def found(problem: Problem) -> tuple[Schedule, ...]:
    return found_of(problem, "pipelined")


@for_each("collective", GATHERS, quick=15)
@for_each(("gpus", "sharing", "count"), [(4, 2, 2), (4, 4, 2), (2, 1, 3), (6, 3, 2), (3, 1, 2)])
@for_each("chunks", [1, 2, 5])
def test_every_answer_is_valid(
    gpus: int, sharing: int, count: int, chunks: int, collective: str
) -> None:
    assert found(problem_of(nodes_of(gpus, sharing, count), collective, chunks, Fraction(100)))


@pytest.mark.parametrize("collective", ["alltoall", "broadcast", "gather"])
def test_other_collectives_are_left_to_others(collective: str) -> None:
    assert found(problem_of(nodes_of(4, 2, 2), collective)) == ()


@pytest.mark.parametrize("topology", ["ring:8", "hub:8", "dgx2"])
def test_nothing_comes_in_waves_where_nothing_crosses(topology: str) -> None:
    assert found(problem_of(load_topology(topology), "allgather")) == ()


@pytest.mark.parametrize("pieces", [1, 2, 6, 11, 12, 13, 100])
def test_waves_get_smaller_and_have_all_pieces(pieces: int) -> None:
    ways = list(cuts_of(pieces))
    assert len(set(ways)) == len(ways)
    for cuts in ways:
        sizes = [after - before for before, after in pairwise((0, *cuts))]
        assert sum(sizes) == pieces
        assert min(sizes) >= 1
        assert len(sizes) <= MOST_STAGES
        if pieces <= MOST_SHARES:
            assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        # Two of four ranks cross one NIC with 2000 bytes each, by 4600 us, then the other two, by
        # 9200. Own chunks are gathered until 2100 + 4100; the first two chunks in two rounds of
        # 2000 bytes, until 10400; the others follow in as long.
        (1, 2100 + 4100 + 4 * 2100),
        # A half of all chunks has crossed after 4 x 1300 us, and the other after as much again; the
        # own chunks are gathered until 6200, the first half until 9400, and the second follows.
        (2, 8 * 1300 + 1100 + 2100),
    ],
)
@pytest.mark.parametrize("collective", ["allgather", "reducescatter"])
def test_the_first_wave_is_gathered_while_the_second_crosses(
    collective: str, chunks: int, expected: int
) -> None:
    problem = problem_of(nodes_of(4, 4, 2), collective, chunks, Fraction(2000, chunks))
    assert found(problem)[0].makespan == expected * US


@for_each("collective", GATHERS, quick=1)
@for_each("size", [1 << 23, 1 << 24])
def test_two_dgx2_are_a_fifth_faster_than_any_classical_algorithm(
    collective: str, size: int
) -> None:
    topology = load_topology("dgx2", nodes=2)
    problem = problem_of(topology, collective, 8, Fraction(size, 8 * topology.num_ranks))
    least = least_classical(topology, collective, size)
    assert found(problem)[0].makespan <= 0.8 * least


def test_its_programs_take_as_long_as_its_schedules() -> None:
    problem = problem_of(load_topology("dgx2", nodes=2), "allgather", 3, Fraction(1 << 15))
    schedule = found(problem)[0]
    assert schedule.packs
    made = lowering_of(schedule, Target("executor"), 3 * 32 << 15, "guided")
    assert made.best[1] <= schedule.makespan

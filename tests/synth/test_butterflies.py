"""Butterflies whose classes take turns at a NIC: times by hand, and every answer verified."""

import sys
from collections.abc import Callable
from fractions import Fraction

import pytest

from taccl.model.problem import Problem
from taccl.model.schedule import Schedule
from taccl.synth.templates.classical import grid_schedules
from taccl.synth.templates.grid_programs import MOST_ROWS, cube_order
from taccl.synth.templates.steps import best_links
from taccl.topology.file import load_topology, topology_from_document
from taccl.topology.graph import Topology
from taccl.verify import verify
from tests.generators import twin2x2
from tests.sweep import for_each
from tests.synth.problems import classical_schedule, problem_of

MACHINES = (
    ("dgx2", 1), ("dgx2", 2), ("ndv2", 2), ("dgx-a100", 2), ("dgx-a100", 4), ("hypercube:8", None),
)  # fmt: skip


def never() -> bool:
    return False


def butterflies(
    problem: Problem, over: Callable[[], bool], worth: int | None = None
) -> tuple[Schedule, ...]:
    return grid_schedules(problem, "butterflies", lambda _line: None, over, worth)


def machine(name: str, nodes: int | None) -> Topology:
    return load_topology(name, nodes=nodes)


def best(problem: Problem) -> Schedule:
    """Return the first schedule, which must be valid, as must be the others, and no faster."""
    found = butterflies(problem, never)
    assert found
    for schedule in found:
        assert verify(schedule, problem.logical) == []
        assert schedule.makespan >= found[0].makespan
    return found[0]


def nodes_document(gpus: int, sharing: int, count: int) -> dict[str, object]:
    """Describe servers of GPUs on a switch (100 us, 1 us/B); so many share a NIC (300 us)."""
    nics = [
        {
            "name": f"nic{first}", "gpus": list(range(first, first + sharing)),
            "bandwidth": "1MB/s",
        }
        for first in range(0, gpus, sharing)
    ]  # fmt: skip
    return {
        "taccl": "topology/1",
        "name": "nodes",
        "node": {
            "gpus": gpus,
            "switches": [{
                "name": "sw", "members": f"0-{gpus - 1}", "bandwidth": "1MB/s", "alpha": "100us",
            }],
            "nics": nics,
        },
        "count": count,
        "fabric": {"kind": "switch", "alpha": "300us"},
    }  # fmt: skip


def nodes_of(gpus: int, sharing: int, count: int) -> Topology:
    """Return the servers of ``nodes_document``."""
    return topology_from_document(nodes_document(gpus, sharing, count))


@for_each(("name", "nodes"), MACHINES, quick=6)
@for_each("size", [64, 4096, 65_536])
def test_it_takes_no_longer_than_recursive_doubling_or_halving_and_doubling(
    name: str, nodes: int | None, size: int
) -> None:
    topology = machine(name, nodes)
    problem = problem_of(topology, "allreduce", 1, Fraction(size, topology.num_ranks))
    found = best(problem)
    # On hypercubes recursive doubling has parts, all of which are under way at once.
    is_cube = bool(cube_order(best_links(problem), topology.num_ranks))
    for other in ("recursive-doubling", "halving-doubling")[is_cube:]:
        classical = classical_schedule(problem, other, batch=True)
        assert classical is None or found.makespan <= classical.makespan


def test_ranks_at_one_nic_cross_it_in_turn() -> None:
    # Two servers of eight, four NICs each, and four bytes to a message (4 us). One class crosses
    # first (304 us); the other one meets inside its server in two dimensions first, and crosses
    # once the NIC is free. The classes meet at 608 us. To fold them takes two messages: 720 us.
    problem = problem_of(nodes_of(8, 2, 2), "allreduce", 1, Fraction(4, 16))
    assert best(problem).makespan == (304 + 304 + 104) * 10**6


def test_few_nics_are_crossed_once_for_all_their_ranks() -> None:
    # Two servers of four, two NICs each: folded, exchanged, crossed, unfolded.
    problem = problem_of(nodes_of(4, 2, 2), "allreduce", 1, Fraction(4, 8))
    assert best(problem).makespan == (3 * 104 + 304) * 10**6


def test_neighbours_that_share_an_uplink_cross_it_as_one() -> None:
    # 32 hosts at four leaves: all at once, every message waits for seven others at an uplink.
    problem = problem_of(load_topology("leaf-spine"), "allreduce", 1, 32)
    doubling = classical_schedule(problem, "recursive-doubling", batch=True)
    assert doubling is not None
    assert 4 * best(problem).makespan < doubling.makespan


def test_what_is_folded_late_is_a_part() -> None:
    # Two servers of four, two NICs each, 80 us to a buffer: halved (140 us), a half is left to one
    # (140 us), which crosses with it (340 us), gives it back, and both get the other half.
    problem = problem_of(nodes_of(4, 2, 2), "allreduce", 1, Fraction(80, 8))
    assert best(problem).makespan == (140 + 140 + 340 + 140 + 140) * 10**6


def test_a_nic_for_every_rank_needs_no_turns() -> None:
    problem = problem_of(nodes_of(4, 1, 2), "allreduce", 1, Fraction(4, 8))
    assert best(problem).makespan == (2 * 104 + 304) * 10**6


def test_halves_are_exchanged_where_bytes_count() -> None:
    # Two ranks: halving and doubling takes two messages of half the buffer, an exchange one.
    problem = problem_of(load_topology("hub:2@1MB/s,1us"), "allreduce", 1, Fraction(100, 2))
    assert best(problem).makespan == (1 + 100) * 10**6
    four = problem_of(load_topology("hub:4@1MB/s,1us"), "allreduce", 1, Fraction(400, 4))
    # Halves in one dimension, there and back, and an exchange of a half in the other.
    assert best(four).makespan == (3 * 1 + 200 + 200 + 200) * 10**6


@pytest.mark.parametrize("rule", ["occupy", "delay"])
@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_both_alpha_rules_and_odd_chunk_counts_are_served(rule: str, chunks: int) -> None:
    best(problem_of(twin2x2(rule), "allreduce", chunks, 10))


@pytest.mark.parametrize(
    ("name", "collective"),
    [("ring:8", "allreduce"), ("hub:6", "allreduce"), ("hub:8", "allgather")],
)
def test_what_makes_no_cube_has_none(name: str, collective: str) -> None:
    assert butterflies(problem_of(load_topology(name), collective, 1, 10), never) == ()


@pytest.mark.parametrize(
    ("nodes", "most", "ranks"),
    [(4, 23_000, 128), pytest.param(16, MOST_ROWS, 1024, marks=pytest.mark.slow)],
)
def test_ways_with_too_many_sends_are_left_out_for_others(
    monkeypatch: pytest.MonkeyPatch, nodes: int, most: int, ranks: int
) -> None:
    # To exchange everything in log n dimensions takes n n log n sends: 24 576 for 64 ranks, and
    # 524 288 for 256.
    monkeypatch.setattr(sys.modules["taccl.synth.templates.grid_programs"], "MOST_ROWS", most)
    problem = problem_of(load_topology("dgx2", nodes=nodes), "allreduce", 1, 32)
    (found,) = butterflies(problem, lambda: True)
    assert verify(found, problem.logical) == []
    assert len(found) < most
    assert butterflies(problem_of(load_topology(f"hub:{ranks}"), "allreduce", 1, 1), never) == ()


def test_what_takes_longer_by_the_clocks_is_not_timed() -> None:
    problem = problem_of(nodes_of(4, 1, 2), "allreduce", 1, Fraction(4, 8))
    assert butterflies(problem, never, 512 * 10**6)
    assert butterflies(problem, never, 511 * 10**6) == ()


def test_one_schedule_is_handed_over_when_time_is_up() -> None:
    problem = problem_of(load_topology("dgx2", nodes=2), "allreduce", 1, 32)
    assert len(butterflies(problem, lambda: True)) == 1

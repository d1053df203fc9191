"""Chunks inserted one by one: known optima of gathers and scatters, and what the state holds."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from taccl.model.problem import Options, Problem
from taccl.model.schedule import Schedule, retime
from taccl.synth.flow import insertion_scheduler
from taccl.synth.flow.engine import flow
from taccl.synth.flow.insertion_scheduler import (
    RoutingInstance,
    SearchState,
    change,
    inserted,
    search,
    undo,
)
from taccl.synth.flow.program import flow_instance
from taccl.timing.occupancy import NEVER
from taccl.topology.file import load_topology
from taccl.topology.graph import Switch, whole
from taccl.verify import verify
from tests.generators import both_ways, build, random_problem
from tests.sweep import for_each
from tests.synth.problems import problem_of

COUNTED = Options(batch=False, deterministic=True, workers=1, time_limit=4.0)

A100, H100, DGX2 = 4_033_334, 2_922_223, 8_700_000
"""1 MB through an NVSwitch port."""


def found(problem: Problem, goal: int = 0, seed: int = 0) -> list[Schedule]:
    clock = COUNTED.begin()
    schedules = [
        retime(problem.collective, problem.group, problem.chunk_size, decisions)
        for decisions in inserted(problem, replace(COUNTED, seed=seed), clock, goal)
    ]
    assert all(not verify(schedule, problem.logical) for schedule in schedules)
    return schedules


@for_each("collective", ["gather", "scatter"])
@for_each(
    ("name", "nodes", "least"),
    [
        # Three chunks by each fast wire of the root, one by each slow one.
        ("ndv2", None, 3 * 23_700_000),
        # Every NIC carries one of the 8 chunks for the other server, and 7 of the NICs have to
        # wait for it at the root's port: the last for 7 messages.
        ("dgx-a100", 2, 7 * A100 + 41_700_000),
        ("dgx-h100", 2, 7 * H100 + 21_700_000),
        # Two for each NIC; one with a third one would take longer.
        ("dgx2", 2, 7 * DGX2 + 2 * 107_700_000),
    ],
)
def test_what_no_schedule_of_single_chunks_can_beat_is_found(
    name: str, nodes: int | None, least: int, collective: str
) -> None:
    problem = problem_of(load_topology(name, nodes=nodes), collective, chunk_size=10**6)
    assert abs(found(problem, least)[-1].makespan - least) < 10


@for_each("seed", range(12))
@for_each("collective", ["alltoall", "gather", "scatter"])
def test_each_schedule_is_correct_and_better_than_the_one_before(
    seed: int, collective: str
) -> None:
    problem = random_problem(seed, collective)
    makespans = [schedule.makespan for schedule in found(problem, seed=seed)]
    assert makespans
    assert makespans == sorted(makespans, reverse=True)


def test_the_same_seed_finds_the_same() -> None:
    problem = problem_of(load_topology("mesh2d:3x3"), "scatter")
    one, two = (found(problem, seed=3)[-1] for _ in range(2))
    assert one.link.tolist() == two.link.tolist()
    assert one.start.tolist() == two.start.tolist()


def test_many_chunks_or_ranks_are_left_to_flows(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of(load_topology("ring:4"), "scatter")
    assert found(problem)
    for limit in ("MAX_CHUNKS", "MAX_RANKS"):
        with monkeypatch.context() as patch:
            patch.setattr(insertion_scheduler, limit, 3)
            assert found(problem) == []


def opened(seed: int, collective: str) -> tuple[Problem, RoutingInstance, SearchState]:
    """Return a random problem with all of its chunks in the state."""
    problem = random_problem(seed, collective)
    instance = insertion_scheduler._routing(flow_instance(problem))
    state = insertion_scheduler._empty_state(instance, seed)
    assert search(instance, state, 0, 0) < NEVER
    return problem, instance, state


def reservations(state: SearchState) -> list[list[tuple[int, int]]]:
    return [
        [(int(row[0]), int(row[1])) for row in zip(begin[:n], finish[:n], strict=True)]
        for begin, finish, n in zip(
            state.table.begin, state.table.finish, state.table.entries.tolist(), strict=True
        )
    ]


@for_each("seed", range(15))
@for_each("collective", ["alltoall", "gather", "scatter"])
def test_the_table_holds_what_the_paths_hold_and_nothing_twice(seed: int, collective: str) -> None:
    _, instance, state = opened(seed, collective)
    search(instance, state, 20, 0)
    held: list[list[tuple[int, int]]] = [[] for _ in state.table.entries]
    paths = state.now
    for chunk in range(len(paths.arrive)):
        for hop in range(paths.hops[chunk]):
            arc, start = paths.arc[chunk, hop], int(paths.start[chunk, hop])
            for i in range(instance.uses.first[arc], instance.uses.first[arc + 1]):
                begin = start + int(instance.uses.offset[i])
                held[instance.uses.resource[i]].append((begin, begin + int(instance.uses.held[i])))
    assert reservations(state) == [sorted(rows) for rows in held]
    for rows in reservations(state):
        ends = [end for _, end in rows]
        assert all(end <= begin for end, (begin, _) in zip(ends, rows[1:], strict=False))


@for_each("seed", range(10))
def test_a_change_that_is_undone_leaves_no_trace(seed: int) -> None:
    _, instance, state = opened(seed, "alltoall")
    before, arrive = reservations(state), state.now.arrive.tolist()
    undo(instance, state, change(instance, state))
    assert reservations(state) == before
    assert state.now.arrive.tolist() == arrive


@pytest.mark.parametrize("collective", ["gather", "scatter"])
def test_machine_code_does_what_the_plain_functions_do(collective: str) -> None:
    _, instance, plain = opened(4, collective)
    _, _, compiled = opened(4, collective)
    ends = (
        search(instance, plain, 50, 0),
        insertion_scheduler._compiled()(instance, compiled, 50, 0),
    )
    assert ends[0] == ends[1]
    columns = (
        (*state.table, *state[1:5], *state.now, *state.best, *state.removed, *state[8:])
        for state in (plain, compiled)
    )
    for one, other in zip(*columns, strict=True):
        assert np.array_equal(np.asarray(one), np.asarray(other))


def test_what_has_the_longest_way_left_leaves_first() -> None:
    # The opposite rank's chunk goes first; while it travels on, the neighbour's takes its wire.
    problem = problem_of(load_topology("ring:4"), "scatter")
    hop = 720_000
    assert found(problem, 2 * hop)[-1].makespan == 2 * hop


@for_each("collective", ["alltoall", "gather", "scatter"])
@for_each("rule", ["occupy", "delay"])
@for_each("beta", [None, Fraction(0)])
def test_links_that_take_no_time_are_taken_in_turn(
    beta: Fraction | None, rule: str, collective: str
) -> None:
    hops = [*both_ways(2, 1, 0, beta), *both_ways(1, 0, 10, Fraction(1))]
    assert found(problem_of(build("line", 3, hops, rule=rule), collective))


@pytest.mark.parametrize("collective", ["alltoall", "gather", "scatter"])
def test_a_full_table_leaves_the_schedules_of_flows(collective: str) -> None:
    # A chain that goes from one switch to the other and back: all chunks take one edge many times.
    ranks, hops = 16, both_ways(16, 17, 5, Fraction(1))
    for rank in range(ranks):
        hops += [(rank, 16 + rank % 2, 1, None, Fraction(1))]
        hops += [(16 + rank % 2, rank, 1, None, Fraction(1))]
    topology = build(
        "chain", ranks, hops, switches=[Switch("a"), Switch("b")],
        server_of=tuple(rank % 2 for rank in range(ranks)),
    )  # fmt: skip
    table = topology.links
    chain = replace(whole(topology), allowed=np.abs(table.src - table.dst) == 1)
    problem = problem_of(chain, collective)
    assert found(problem) == []
    schedule = flow(problem, COUNTED).schedule
    assert schedule is not None
    assert verify(schedule, chain) == []

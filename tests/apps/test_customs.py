"""Collectives from files, end to end: solved, verified, bounded, written, lowered, judged."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from taccl.apps import logical_group
from taccl.bounds import any_bounds, best, fixed_bounds
from taccl.collectives import Collective, build_collective
from taccl.collectives.file import collective_document
from taccl.errors import InputError
from taccl.lowering.lower import LowerOptions, lower
from taccl.model.problem import Problem
from taccl.model.schedule import Schedule
from taccl.model.schedule_file import read_schedule, schedule_text
from taccl.msccl.interpret import interpret, judge
from taccl.msccl.program import Program
from taccl.msccl.xml import read_xml, write_xml
from taccl.synth.search import solve
from taccl.topology.file import load_topology
from taccl.topology.graph import Topology, whole
from taccl.topology.symmetry import make_group
from taccl.verify import verify
from tests.customs import custom, random_custom
from tests.generators import both_ways, build, random_topology
from tests.sweep import for_each
from tests.synth.problems import QUICK


def problem_of(topology: Topology, collective: Collective) -> Problem:
    return Problem(whole(topology), collective, Fraction(64), make_group(topology, ()))


def solved(problem: Problem, *, batch: bool) -> Schedule:
    schedule = solve(problem, "taccl", replace(QUICK, time_limit=1.0, batch=batch)).schedule
    assert schedule is not None
    assert verify(schedule, problem.logical) == []
    return schedule


def program_of(schedule: Schedule, instances: int = 1) -> Program:
    options = LowerOptions(
        "t", in_place=False, instances=instances, max_steps=256, max_threadblocks=200
    )
    return lower(schedule, options)


@for_each("seed", range(40), quick=16)
def test_any_collective_from_a_file_becomes_a_clean_program(seed: int) -> None:
    topology = random_topology(seed)
    collective = random_custom(seed, topology.num_ranks).cut(1 + seed % 3)
    problem = problem_of(topology, collective)
    for batch in (True, False):
        schedule = solved(problem, batch=batch)
        size = int(64 * collective.chunks_in_size)
        assert best(any_bounds(problem.logical, collective, size)).time <= schedule.makespan
        if not schedule.batches:
            fixed = best(fixed_bounds(problem.logical, collective, Fraction(64)))
            assert fixed.time <= schedule.makespan
        assert judge(program_of(schedule), "msccl", collective) == []


@pytest.mark.parametrize("seed", [3, 4, 6, 10, 24])
def test_the_exact_engine_solves_them_too(seed: int) -> None:
    # Of the even ones, which sum, some spread sums to ranks that have no part in them.
    topology = random_topology(seed)
    problem = problem_of(topology, random_custom(seed, topology.num_ranks))
    schedule = solve(problem, "exact", replace(QUICK, time_limit=1.0)).schedule
    assert schedule is not None
    assert verify(schedule, problem.logical) == []


@pytest.mark.parametrize("seed", range(6))
def test_a_schedule_file_holds_its_collective(seed: int, tmp_path: Path) -> None:
    topology = random_topology(seed)
    collective = random_custom(seed, topology.num_ranks).cut(2)
    schedule = solved(problem_of(topology, collective), batch=True)
    path = tmp_path / "s.json"
    path.write_text(schedule_text(schedule))
    again = read_schedule(str(path))
    assert schedule_text(again) == path.read_text()
    assert collective_document(again.collective) == collective_document(collective)
    assert verify(again) == []


def star_sum() -> Schedule:
    """Return a sum over ranks 1 to 3 for rank 4, by way of rank 0, which has no part in it."""
    hops = [hop for r in range(1, 5) for hop in both_ways(0, r, 10, Fraction(1))]
    chunk = {"id": 0, "input": {1: 0, 2: 1, 3: 2}, "output": {4: 0}}
    collective = custom({"ranks": 5, "reduces": True, "chunks": [chunk]})
    return solved(problem_of(build("star", 5, hops), collective), batch=True)


def test_a_rank_that_only_passes_a_sum_on_starts_it_with_a_copy() -> None:
    schedule = star_sum()
    into = [row for row in schedule.sends() if schedule.topology.link(row.link).dst == 0]
    assert [row.reduce for row in sorted(into, key=lambda row: row.end)] == [False, True, True]
    # The second and third land a picosecond apart from the first at most: 74, then 74 to rank 4.
    assert schedule.makespan <= 2 * 74 + 2
    assert judge(program_of(schedule), "msccl", schedule.collective) == []


def test_a_sum_that_starts_with_an_addition_is_refused() -> None:
    schedule = star_sum()
    wrong = verify(replace(schedule, reduce=schedule.reduce | True))
    assert {violation.rule for violation in wrong} == {"summed"}
    assert "is added where nothing of the chunk is" in wrong[0].explanation


def test_instances_of_a_custom_program_are_right() -> None:
    schedule = star_sum()
    program = program_of(schedule, instances=2)
    assert judge(program, "msccl", schedule.collective.cut(2)) == []


def test_a_custom_program_has_buffers_of_one_count() -> None:
    # ncclCustomCollective is called with one count, which msccl compares with nchunksperloop.
    program = program_of(star_sum())
    assert program.collective == "custom"
    assert program.chunks_per_loop == 3
    assert {(gpu.input_chunks, gpu.output_chunks) for gpu in program.gpus} == {(3, 3)}
    assert read_xml(write_xml(program, "msccl"), runtime="msccl") == program


def test_a_custom_program_for_another_collective_is_found() -> None:
    schedule = star_sum()
    moved = custom(
        {
            "ranks": 5, "reduces": True,
            "chunks": [{"id": 0, "input": {1: 0, 2: 1, 3: 2}, "output": {4: 1}}],
        }
    )  # fmt: skip
    found = interpret(program_of(schedule), in_place=False, collective=moved)
    assert "result" in {finding.rule for finding in found}


def shift(*pairs: tuple[int, int]) -> Collective:
    """Return chunks that go from one rank of four to another."""
    chunks = [{"id": n, "input": {a: 0}, "output": {b: 0}} for n, (a, b) in enumerate(pairs)]
    return custom({"ranks": 4, "chunks": chunks})


@pytest.mark.parametrize(
    ("collective", "symmetries"),
    [
        (shift((0, 1), (1, 2), (2, 3), (3, 0)), 4),
        (shift((0, 1), (2, 3)), 2),
        (shift((0, 1), (1, 2)), 1),
        (build_collective("allgather", 4, 1), 4),
        (build_collective("gather", 4, 1, 3), 1),
    ],
)
def test_of_the_machines_symmetries_those_of_the_collective_are_used(
    collective: Collective, symmetries: int
) -> None:
    topology = load_topology("ring:4")
    logical = whole(topology, topology.rotations)
    assert len(logical_group(logical, collective)) == symmetries


def test_a_symmetry_that_a_sketch_demands_must_be_one_of_the_collective() -> None:
    topology = load_topology("ring:4")
    logical = replace(whole(topology, topology.rotations), symmetry_asked=True)
    assert len(logical_group(logical, build_collective("alltoall", 4, 1))) == 4
    with pytest.raises(InputError, match="some does not map onto itself: chunk 1 has no image"):
        logical_group(logical, shift((0, 1), (1, 2)))


def test_a_solve_on_orbits_is_right_for_a_file(tmp_path: Path) -> None:
    topology = load_topology("ring:4")
    collective = shift((0, 1), (1, 2), (2, 3), (3, 0))
    group = logical_group(whole(topology, topology.rotations), collective)
    problem = replace(problem_of(topology, collective), group=group)
    schedule = solved(problem, batch=True)
    path = tmp_path / "s.json"
    path.write_text(schedule_text(schedule))
    assert verify(read_schedule(str(path))) == []
    assert judge(program_of(schedule), "msccl", collective) == []

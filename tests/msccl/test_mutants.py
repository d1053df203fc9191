"""200 of the mutants of ``benchmarks/mutations.py``, and the oracles that run the survivors."""

from dataclasses import replace
from random import Random

import pytest

from benchmarks.mutations import (
    CORPUS,
    OPERATORS,
    Mutant,
    Subject,
    fates,
    is_rejected,
    mutants,
    own_programs,
    score,
    shipped_programs,
)
from taccl.msccl.program import Op, Program, Step
from taccl.msccl.xml import read_xml
from tests.msccl import compiled_interleavings, interleavings
from tests.msccl.builders import make, ring_schedule, with_each_step
from tests.msccl.test_mutations import OPERATORS as EVERY_CHANGE
from tests.msccl.test_mutations import PROGRAMS
from tests.msccl.texts import swap
from tests.sweep import for_each

pytestmark = pytest.mark.xdist_group("oracle")  # one process compiles it
SMALL = [one for one in own_programs() if one.program.num_ranks < 4]


def first_wrong_run(program: Program, runs: int) -> int | None:
    """Return what both oracles say, which must be the same."""
    found = interleavings.first_wrong_run(program, "executor", runs=runs, seed=5)
    assert found == compiled_interleavings.first_wrong_run(program, "executor", runs=runs, seed=5)
    return found


@pytest.mark.parametrize("count", [50, pytest.param(200, marks=pytest.mark.slow)])
def test_every_mistake_among_many_mutants_is_rejected(count: int) -> None:
    result = score(list(mutants(SMALL, count, seed=1)), runs=20)
    assert result.missed == ()
    assert result.rejected > 0.8 * count
    assert result.rejected + len(result.equivalent) == count


def test_processes_find_what_one_finds() -> None:
    found = list(mutants(SMALL, 12, seed=2))
    assert list(fates(found, 5, workers=2)) == list(fates(found, 5))


def test_the_same_seed_makes_the_same_mutants() -> None:
    one, two = (list(mutants(SMALL, 20, seed=7)) for _ in range(2))
    assert one == two
    assert all(mutant.program != mutant.subject.program for mutant in one)


@for_each("operator", OPERATORS)
def test_every_operator_makes_a_mistake_that_is_rejected(operator: str) -> None:
    random, subject = Random(3), own_programs()[1]
    made = (OPERATORS[operator](subject.program, random) for _ in range(40))
    assert any(
        is_rejected(Mutant(subject, operator, program)) for program in made if program is not None
    )


@for_each("subject", own_programs(), ids=lambda subject: subject.name)
def test_the_oracles_find_right_programs_right(subject: Subject) -> None:
    assert not is_rejected(Mutant(subject, "", subject.program))
    assert first_wrong_run(subject.program, 3) is None


@for_each("name", PROGRAMS)
def test_the_oracles_agree_on_every_change_of_a_program(name: str) -> None:
    found = [
        first_wrong_run(mutant, 2)
        for mutate in EVERY_CHANGE.values()
        for mutant in mutate(PROGRAMS[name]())
    ]
    assert {run is None for run in found} == {True, False}


@pytest.mark.skipif(not CORPUS.exists(), reason="the corpus is not on this machine")
def test_the_oracles_agree_on_what_azure_and_rccl_ship() -> None:
    subjects = shipped_programs(limit=60_000)
    assert [first_wrong_run(subject.program, 1) for subject in subjects] == [None] * len(subjects)
    found = [first_wrong_run(mutant.program, 4) for mutant in mutants(subjects, 30, seed=4)]
    assert {run is None for run in found} == {True, False}


def test_the_oracles_find_a_race() -> None:
    def hasty(step: Step) -> Step:
        return replace(step, depends=None) if step.op is Op.SEND else step

    program = make(ring_schedule("allgather", 3))
    assert first_wrong_run(program, 50) is None
    assert first_wrong_run(with_each_step(program, hasty), 50) is not None


def test_the_oracles_find_a_wait_that_never_comes() -> None:
    program = make(ring_schedule("allreduce", 2))
    silent = with_each_step(program, lambda step: replace(step, posts=False))
    assert first_wrong_run(silent, 1) == 0


def test_the_oracles_find_a_message_that_nobody_receives() -> None:
    # A second send fits into the connection, and all outputs are right.
    program = read_xml(swap(1, "LL", high=1024))
    gpu = program.gpus[0]
    block = gpu.threadblocks[0]
    more = replace(block, steps=(block.steps[0], *block.steps))
    spare = replace(program, gpus=(replace(gpu, threadblocks=(more,)), *program.gpus[1:]))
    assert first_wrong_run(program, 1) is None
    assert first_wrong_run(spare, 1) == 0


def test_the_oracles_find_a_deadlock_at_the_largest_size() -> None:
    # Three chunks of 2 MiB are three messages each way, and a Simple connection holds two.
    small, large = (read_xml(swap(3, "Simple", high=6 << bits)) for bits in (19, 21))
    assert first_wrong_run(small, 5) is None
    assert first_wrong_run(large, 5) == 0

"""200 of the mutants of ``benchmarks/mutations.py``, and the oracle that judges the survivors."""

from dataclasses import replace
from random import Random

import pytest

from benchmarks.mutations import (
    OPERATORS,
    Mutant,
    Subject,
    is_rejected,
    mutants,
    own_programs,
    score,
)
from taccl.msccl.program import Op, Program, Step
from tests.msccl.builders import make, ring_schedule
from tests.msccl.interleavings import right_in_random_runs

SMALL = [one for one in own_programs() if one.program.num_ranks < 4]


def test_every_mistake_among_200_mutants_is_rejected() -> None:
    result = score(list(mutants(SMALL, 200, seed=1)), runs=20)
    assert result.missed == ()
    assert result.rejected > 160
    assert result.rejected + len(result.equivalent) == 200


def test_the_same_seed_makes_the_same_mutants() -> None:
    one, two = (list(mutants(SMALL, 20, seed=7)) for _ in range(2))
    assert one == two
    assert all(mutant.program != mutant.subject.program for mutant in one)


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_operator_makes_a_mistake_that_is_rejected(operator: str) -> None:
    random, subject = Random(3), own_programs()[1]
    made = (OPERATORS[operator](subject.program, random) for _ in range(40))
    assert any(
        is_rejected(Mutant(subject, operator, program)) for program in made if program is not None
    )


@pytest.mark.parametrize("subject", own_programs(), ids=lambda subject: subject.name)
def test_the_oracle_finds_right_programs_right(subject: Subject) -> None:
    assert not is_rejected(Mutant(subject, "", subject.program))
    assert right_in_random_runs(subject.program, subject.runtime, runs=3, seed=0)


def without(program: Program, op: Op) -> Program:
    """Return a program without the dependences and posts of one kind of step."""

    def changed(step: Step) -> Step:
        return replace(step, depends=None) if step.op is op else step

    gpus = tuple(
        replace(
            gpu,
            threadblocks=tuple(
                replace(block, steps=tuple(changed(step) for step in block.steps))
                for block in gpu.threadblocks
            ),
        )
        for gpu in program.gpus
    )
    return replace(program, gpus=gpus)


def test_the_oracle_finds_a_race() -> None:
    racing = without(make(ring_schedule("allgather", 3)), Op.SEND)
    assert not right_in_random_runs(racing, "executor", runs=50, seed=0)


def test_the_oracle_finds_a_deadlock_at_the_largest_size() -> None:
    program = make(ring_schedule("allreduce", 2))
    blocked = without(program, Op.NOP)
    stuck = replace(
        blocked,
        gpus=tuple(
            replace(
                gpu,
                threadblocks=tuple(
                    replace(block, steps=tuple(replace(s, posts=False) for s in block.steps))
                    for block in gpu.threadblocks
                ),
            )
            for gpu in blocked.gpus
        ),
    )
    assert not right_in_random_runs(stuck, "executor", runs=1, seed=0)

"""Scores: each schedule is lowered once, and what can't be lowered has a reason."""

import pytest

from taccl.pipeline import Lowering, Target
from taccl.pipeline.scoring import Scorer
from taccl.schedule import Schedule
from tests.msccl.builders import mesh, pairs_schedule, ring_schedule


def size_of(schedule: Schedule) -> int:
    return int(schedule.chunk_size * schedule.collective.chunks_in_size)


def scorer(schedule: Schedule, target: Target | None, lines: list[str]) -> Scorer:
    return Scorer(target, size_of(schedule), lines.append)


def test_without_a_program_a_schedule_costs_its_makespan() -> None:
    schedule = ring_schedule("allgather", 4)
    judge = scorer(schedule, None, [])
    assert judge.score(schedule) == schedule.makespan
    assert judge.refusal(schedule) is None
    assert judge.lowering(schedule, "ring") is None


def test_a_schedule_is_lowered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = ring_schedule("allreduce", 4)
    judge = scorer(schedule, Target(runtime="executor"), [])
    first = judge.score(schedule)

    def again(_lowering: Lowering) -> None:
        pytest.fail("lowered again")

    monkeypatch.setattr("taccl.pipeline.lowering.best_candidate", again)
    assert judge.score(ring_schedule("allreduce", 4)) == first
    assert judge.refusal(schedule) is None
    lowering = judge.lowering(schedule, "ring")
    assert lowering is not None
    program, time = lowering.best
    assert (time, program.name) == (first, "allreduce-ring4-ring-k1")


def test_what_can_not_be_lowered_says_why() -> None:
    schedule, lines = pairs_schedule("alltoall", mesh(14)), list[str]()
    judge = scorer(schedule, Target(runtime="rccl", instances=5), lines)
    assert judge.score(schedule) is None
    assert "threadblocks on a rank, and 64 are allowed" in (judge.refusal(schedule) or "")
    assert len(lines) == 1

"""Scores: each schedule is lowered once, and what can't be lowered has a reason."""

from dataclasses import replace

import pytest

from taccl.apps import Lowering, Target
from taccl.apps.programs import Scorer, common_size, lowering_of
from taccl.errors import LoweringError
from taccl.model.schedule import Schedule
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

    monkeypatch.setattr("taccl.apps.programs.best_variant", again)
    assert judge.score(ring_schedule("allreduce", 4)) == first
    assert judge.refusal(schedule) is None
    lowering = judge.lowering(schedule, "ring")
    assert lowering is not None
    program, time = lowering.best
    assert (time, program.name) == (first, "allreduce-ring4-ring-k1")


@pytest.mark.parametrize(
    ("size", "counts", "common"),
    [
        (10**6, (1, 2, 4), 999_936),  # 16 ranks, 4 chunks, 4 bytes: a multiple of 256
        (10**6, (1, 2, 3), 999_936),  # of 384
        (1000, (1, 2, 4), 0),  # 768 bytes are too few to stand for 1000
        (1000, (1,), 960),
    ],
)
def test_chunk_counts_are_compared_at_one_size(
    size: int, counts: tuple[int, ...], common: int
) -> None:
    assert common_size(Target(), size, 16, counts) == common


def test_a_program_is_compared_at_the_common_size_and_written_at_its_own() -> None:
    # 4 chunks of 4-byte elements: 4000 bytes of 4015 are whole chunks, 3840 are compared.
    schedule = ring_schedule("allgather", 4)
    judge, own = (Scorer(Target(), 4015, list[str]().append) for _ in range(2))
    judge.common = 3840
    compared, alone = judge.score(schedule), own.score(schedule)
    assert compared is not None
    assert alone is not None
    assert compared < alone
    lowering = judge.lowering(schedule, "ring")
    assert lowering is not None
    assert (lowering.size, lowering.best[1]) == (4000, alone)


def test_what_can_not_be_lowered_says_why() -> None:
    schedule, lines = pairs_schedule("alltoall", mesh(14)), list[str]()
    judge = scorer(schedule, Target(runtime="rccl", instances=5), lines)
    assert judge.score(schedule) is None
    assert "threadblocks on a rank, and 64 are allowed" in (judge.refusal(schedule) or "")
    assert len(lines) == 1


def test_a_first_program_counts_where_no_variant_was_made_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    schedule = ring_schedule("allgather", 4)
    task = lowering_of(schedule, Target(), size_of(schedule), "ring")
    program, time = task.best
    monkeypatch.setattr("taccl.apps.programs.best_variant", lambda _task: None)
    assert replace(task, first=(program, time)).best == (program, time)
    with pytest.raises(LoweringError, match="no program for portable runs at"):
        _ = replace(task, first=None).best


def test_where_time_is_up_the_first_program_is_not_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    schedule = ring_schedule("allgather", 4)
    task = lowering_of(schedule, Target(), size_of(schedule), "ring")
    first, late = task.best, replace(task, over=lambda: True)
    monkeypatch.setattr("taccl.apps.programs.best_variant", lambda _task: pytest.fail("made again"))
    assert replace(late, first=first).best == first

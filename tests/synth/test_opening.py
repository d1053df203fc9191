"""The first answer is one schedule, complete and correct, or none."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from taccl.errors import NoScheduleError
from taccl.model.problem import Options, Problem
from taccl.synth import search
from taccl.synth.search import opening
from taccl.synth.templates import classical
from taccl.synth.templates.classical import (
    CLASSICAL,
    classical_schedules,
    likely_way,
    run_classical,
    textbook_schedule,
)
from taccl.synth.templates.steps import Step
from taccl.topology.file import load_topology
from taccl.verify import verify
from tests.synth.problems import problem_of

COLLECTIVES = ("allgather", "reducescatter", "allreduce", "alltoall", "broadcast", "reduce")


def test_the_opening_is_correct_and_the_fastest_comes_first() -> None:
    for machine in ("hub:4", "ring:5"):
        for collective in COLLECTIVES:
            problem = problem_of(load_topology(machine), collective)
            found = list(opening(problem, batch=True))
            assert found, (machine, collective)
            times = [schedule.makespan for _, schedule in found]
            assert times == sorted(times)
            for name, schedule in found:
                assert verify(schedule) == [], (machine, collective, name)


def test_a_large_problem_opens_with_what_a_clock_says_ends_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(search, "MANY_CHUNKS", 0)
    for collective in COLLECTIVES:
        problem = problem_of(load_topology("hub:4"), collective)
        names = [name for name, _ in opening(problem, batch=True)]
        ways = [likely_way(problem, name) for name in names]
        times = [way[0] for way in ways if way is not None]
        assert times == sorted(times)
        assert len(times) == len(names) > 0, collective
        # Where even a clock takes long, the first of a fixed order must do.
        monkeypatch.setattr(search, "MOST_CLOCKED", 0)
        fixed = [name for name, _ in opening(problem, batch=True)]
        assert fixed == [name for name in search.FEW_MESSAGES if name in names], collective
        monkeypatch.setattr(search, "MOST_CLOCKED", 40_000)


def test_no_way_has_more_peers_than_a_program_has_threadblocks_for() -> None:
    for collective in COLLECTIVES:
        problem = replace(problem_of(load_topology("full:8"), collective), most_peers=4)
        table = problem.topology.links
        for name in CLASSICAL:
            way = likely_way(problem, name)
            given = textbook_schedule(problem, name, batch=True, way=way and way[1])
            for schedule in (*classical_schedules(problem, name, batch=True), given):
                used = [] if schedule is None else sorted(set(schedule.link.tolist()))
                for end in (table.src[used].tolist(), table.dst[used].tolist()):
                    assert max(map(end.count, end), default=0) <= 4, (name, collective)
    problem = replace(problem_of(load_topology("full:8"), "allreduce"), most_peers=4)
    with pytest.raises(NoScheduleError, match="one-shot has 7 peers for a rank, and a program can"):
        run_classical("one-shot", problem, Options())


def test_a_way_with_too_many_sends_is_none_and_not_a_part_of_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = problem_of(load_topology("hub:4"), "allreduce")
    for name in CLASSICAL:
        whole = likely_way(problem, name)
        if whole is None:
            continue
        sends = sum(len(chunks) for chunks, *_ in whole[1])
        for most in (1, 5, sends - 1):
            monkeypatch.setattr("taccl.synth.templates.classical.MAX_SENDS", most)
            schedule = textbook_schedule(problem, name, batch=False, way=whole[1])
            assert schedule is None, (name, most)
        monkeypatch.undo()


def test_what_has_too_many_sends_in_any_way_is_not_even_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def ways(_problem: Problem) -> Iterator[Iterator[Step]]:
        raise AssertionError("listed")

    monkeypatch.setattr(classical, "CLASSICAL", {"ring": CLASSICAL["ring"]._replace(ways=ways)})
    problem = problem_of(load_topology("hub:4"), "allreduce")  # 4 chunks, 2 * (4 - 1) sends each
    monkeypatch.setattr(classical, "MAX_SENDS", 23)
    assert textbook_schedule(problem, "ring", batch=False) is None
    assert likely_way(problem, "ring") is None
    monkeypatch.setattr(classical, "MAX_SENDS", 24)
    with pytest.raises(AssertionError, match="listed"):
        textbook_schedule(problem, "ring", batch=False)

"""The first answer is one schedule, complete and correct, or none."""

from collections.abc import Iterator

import pytest

from taccl.model.problem import Problem
from taccl.synth import search
from taccl.synth.search import opening
from taccl.synth.templates import classical
from taccl.synth.templates.classical import CLASSICAL, textbook_schedule
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


def test_a_large_problem_opens_with_what_has_few_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "MANY_CHUNKS", 0)
    for collective in COLLECTIVES:
        problem = problem_of(load_topology("hub:4"), collective)
        names = [name for name, _ in opening(problem, batch=True)]
        assert names == [name for name in search.FEW_MESSAGES if name in names]
        assert names, collective


def test_a_way_with_too_many_sends_is_none_and_not_a_part_of_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = problem_of(load_topology("hub:4"), "allreduce")
    for name in CLASSICAL:
        whole = textbook_schedule(problem, name, batch=False, fewest=True)
        if whole is None:
            continue
        for most in (1, 5, whole.num_sends - 1):
            monkeypatch.setattr("taccl.synth.templates.classical.MAX_SENDS", most)
            assert textbook_schedule(problem, name, batch=False, fewest=True) is None, (name, most)
        monkeypatch.undo()


def test_what_has_too_many_sends_in_any_way_is_not_even_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def ways(_problem: Problem) -> Iterator[Iterator[Step]]:
        raise AssertionError("listed")

    monkeypatch.setattr(classical, "CLASSICAL", {"ring": CLASSICAL["ring"]._replace(ways=ways)})
    problem = problem_of(load_topology("hub:4"), "allreduce")  # 4 chunks, 2 * (4 - 1) sends each
    monkeypatch.setattr(classical, "MAX_SENDS", 23)
    for fewest in (False, True):
        assert textbook_schedule(problem, "ring", batch=False, fewest=fewest) is None
    monkeypatch.setattr(classical, "MAX_SENDS", 24)
    with pytest.raises(AssertionError, match="listed"):
        textbook_schedule(problem, "ring", batch=False)

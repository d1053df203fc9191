"""The compiled list scheduler: nothing waits without a reason, and times are those of retime."""

import random
from dataclasses import replace

import numpy as np
import pytest

from taccl.model.problem import Problem
from taccl.model.schedule import retime
from taccl.synth.list_scheduler import ARRIVAL, START, Load, dispatched, load_of
from taccl.synth.plan import plan_decisions, rows_of
from tests.generators import random_decisions, random_problem, star5
from tests.sweep import for_each
from tests.synth.problems import problem_of


def silent(line: str) -> None:
    """Report nothing."""


def load(problem: Problem, seed: int) -> Load:
    plan = plan_decisions(problem, rows_of(random_decisions(problem, seed)))
    return load_of(plan, [(number,) for number in range(len(plan.moves))])


def by_the_book(one: Load) -> list[int]:
    """Return starts, found by trying every message at every instant."""
    work, count = one.work, len(one.messages)
    start = [-1] * count
    missing, free = one.missing.tolist(), [0] * one.resources
    events: list[tuple[int, int]] = []
    time = 0

    def settle(message: int, moment: int) -> None:
        for i in range(work.next_start[message], work.next_start[message + 1]):
            missing[work.following[i]] -= int(work.moment[i] == moment)

    def can_start(message: int) -> bool:
        ready = start[message] < 0 and missing[message] == 0
        return ready and all(free[resource] <= time for resource in uses(one, message))

    while True:
        for _, message in [event for event in events if event[0] <= time]:
            settle(message, ARRIVAL)
        events = [event for event in events if event[0] > time]
        can = [message for message in range(count) if can_start(message)]
        if can:
            first = min(can, key=lambda message: work.rank[message])
            start[first] = time
            for i in range(work.uses.first[first], work.uses.first[first + 1]):
                resource = work.uses.resource[i]
                free[resource] = max(free[resource], time + int(work.uses.held[i]))
            events.append((time + int(work.uses.arrival[first]), first))
            settle(first, START)
        elif events or max(free) > time:
            time = min(at for at in [*free, *(at for at, _ in events)] if at > time)
        else:
            return start


def uses(one: Load, message: int) -> list[int]:
    begin, end = one.work.uses.first[message], one.work.uses.first[message + 1]
    return [int(resource) for resource in one.work.uses.resource[begin:end]]


@for_each("collective", ["allgather", "reducescatter", "alltoall", "allreduce"], quick=33)
@for_each("seed", range(25))
def test_it_starts_what_trying_everything_starts(collective: str, seed: int) -> None:
    problem = random_problem(seed, collective)
    one = load(problem, seed)
    decisions, end = dispatched(one, silent)
    found = retime(problem.collective, problem.group, problem.chunk_size, decisions)
    book = by_the_book(one)
    assert sorted(found.start.tolist()) == sorted(book)
    assert found.makespan == end


@pytest.mark.parametrize("seed", range(5))
def test_another_order_of_preference_is_followed(seed: int) -> None:
    one = load(problem_of(star5(), "alltoall"), 3)
    before = list(range(len(one.messages)))
    random.Random(seed).shuffle(before)
    decisions, end = dispatched(one, silent, np.array(before))
    preferred = replace(one, work=one.work._replace(rank=np.array(before, dtype=np.int32)))
    book = by_the_book(preferred)
    assert end == max(at + int(time) for at, time in zip(book, one.work.uses.arrival, strict=True))
    assert sorted(rows_of(decisions)) == sorted(rows_of(dispatched(one, silent)[0]))


def test_messages_that_wait_in_a_ring_are_an_error() -> None:
    one = load(problem_of(star5(), "alltoall"), 3)
    stuck = one.missing.copy()
    stuck[0] += 1
    with pytest.raises(ValueError, match="wait for each other in a ring"):
        dispatched(replace(one, missing=stuck), silent)

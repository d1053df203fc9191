"""The replay against an independent, literal implementation, on random programs."""

import random
from dataclasses import replace

import pytest

from taccl.replay.interpreter import replay
from tests.replay.naive_replay import Naive
from tests.replay.program_builder import SMALL
from tests.replay.random_programs import random_program, random_topology

SEEDS = range(600)
SIZES = [64, 480, 1600, 4000, 9600]  # from one message to 3 iterations


def instance(seed: int) -> tuple[Naive, int]:
    rng = random.Random(seed)
    topology, made = random_topology(rng), random_program(rng)
    size = rng.choice(SIZES)
    # A broadcast has shorter messages (tests/msccl/test_runtime_facts.py).
    made = replace(made, collective=rng.choice(("allreduce", "broadcast")))
    return Naive(made, topology, size, SMALL), size


@pytest.mark.parametrize("first", SEEDS[::100])
def test_replay_equals_the_literal_rules_on_random_programs(first: int) -> None:
    for seed in range(first, first + 100):
        naive, size = instance(seed)
        time = naive.run()
        trace = replay(naive.program, naive.topology, size, SMALL)
        assert trace.time == time, f"seed {seed}"
        sent = [
            (s.start, s.gpu, s.threadblock, s.step, s.size) for s in trace.spans
            if s.link is not None
        ]  # fmt: skip
        assert sorted(sent) == sorted(naive.starts), f"seed {seed}"


def test_most_random_programs_run_some_wait_and_some_deadlock() -> None:
    times, waits = [], 0
    for seed in SEEDS[:200]:
        naive, size = instance(seed)
        trace = replay(naive.program, naive.topology, size, SMALL)
        times.append(trace.time)
        spans = trace.spans
        waits += any(
            s.link is not None and s.waited_for is not None and spans[s.waited_for].gpu != s.gpu
            for s in spans
        )
    assert times.count(None) >= 5
    assert len(times) - times.count(None) >= 100
    assert waits >= 50

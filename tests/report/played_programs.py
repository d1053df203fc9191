"""Replays for the tests of traces, pages and explanations."""

import random
from collections.abc import Iterator
from functools import cache

from taccl.msccl.program import Program
from taccl.replay.cost import ReplayModel
from taccl.replay.interpreter import replay
from taccl.replay.sweep import Row, row_of
from taccl.report.explain import Explanation, explain
from taccl.report.played import Played, play
from taccl.topology.graph import Topology
from tests.replay.program_builder import SMALL, block, network, program, ring, ring_allreduce, step
from tests.replay.random_programs import random_program, random_topology

SIZES = [64, 480, 1600, 4000, 9600]  # from one message to 3 iterations


def tiny() -> Played:
    """Rank 0 sends two chunks to rank 1, which forwards each and then copies."""
    topology = network(3, [(0, 1, 700, None, 3), (1, 2, 500, 100, 2)], launch=1000, copy=1)
    steps = [step("rcs", 1), step("rcs", 1), step("cpy", 1, (1, 0))]
    made = program(
        [block(0, 1, None, ["s", "s"])],
        [block(0, 2, 0, steps), block(1, None, None, [step("cpy", 2, posts=True)])],
        [block(0, None, 1, ["r", "r"])],
        chunks=4,
    )
    return play(made, topology, 1600, SMALL)


def ring4() -> Played:
    return play(ring_allreduce(4), ring(4), 1600, SMALL)


def deadlocked() -> Played:
    """Rank 1 waits for a message that nobody sends."""
    made = program([], [block(0, None, 0, ["r"])])
    return play(made, ring(2), 64, SMALL)


def row_for(played: Played, file: str = "") -> Row:
    assert played.program is not None
    return row_of(played.trace, played.program, played.topology, lambda _: ("port", 1000), file)


def explained(played: Played, model: ReplayModel = SMALL) -> Explanation:
    size, made = played.trace.size, played.program
    assert made is not None
    return explain(
        played, row_for(played),
        lambda topology: replay(made, topology, size, model),
    )  # fmt: skip


def random_parts(seed: int) -> tuple[Program, Topology, int]:
    rng = random.Random(seed)
    topology, made = random_topology(rng), random_program(rng)
    return made, topology, rng.choice(SIZES)


@cache
def random_replay(seed: int) -> Played:
    return play(*random_parts(seed), SMALL)


def random_replays(seeds: range) -> Iterator[Played]:
    """Yield random replays that run to their end."""
    for seed in seeds:
        played = random_replay(seed)
        if played.trace.time is not None:
            yield played

"""Every mutation of a correct schedule is rejected, or a simulation shows that it is sound."""

import random
from collections.abc import Iterator
from fractions import Fraction

from taccl.collectives import COLLECTIVES, build_collective
from taccl.model.problem import Problem
from taccl.model.schedule import Schedule, retime
from taccl.topology.graph import whole
from taccl.topology.symmetry import make_group
from taccl.verify import verify
from tests.exhaustive import sound
from tests.generators import TINY, pair, random_decisions, timed
from tests.mutations import MUTATIONS, changed, picked, repeat
from tests.sweep import for_each


def tiny_problem(name: str, collective: str, rule: str, k: int = 1) -> Problem:
    topology = TINY[name](rule)
    return Problem(
        whole(topology), build_collective(collective, topology.num_ranks, k), Fraction(5, 2),
        make_group(topology, ()),
    )  # fmt: skip


def solved(problem: Problem, seed: int) -> Schedule:
    decisions = random_decisions(problem, seed)
    return retime(problem.collective, problem.group, problem.chunk_size, decisions)


VICTIMS = [
    (name, collective, rule, k)
    for name, k in (("pair", 3), ("ring4", 1), ("star5", 1), ("twin2x2", 1))
    for collective in COLLECTIVES
    for rule in ("occupy", "delay")
]


PARTS = 4
"""Of the victims: each mutation is tried on one part, and on the others where there is time."""


def mutants(mutation: str, limit: int, part: int) -> Iterator[tuple[Schedule, Schedule]]:
    """Yield (original, mutant) for a part of the victims, at most ``limit`` for each."""
    for seed, victim in list(enumerate(VICTIMS))[part::PARTS]:
        schedule = solved(tiny_problem(*victim), seed)
        found = list(MUTATIONS[mutation](schedule))
        if len(found) > limit:
            found = random.Random(seed).sample(found, limit)
        yield from ((schedule, mutant) for mutant in found)


STRICT = {"once", "held", "summed", "adjacency"}
"""Rules that refuse more than wrong results: waste, a reduce flag on a copy, and batches that
no buffer layout supports."""


@for_each("part", range(PARTS), quick=len(MUTATIONS), parts=2)
@for_each("mutation", MUTATIONS)
def test_a_mutant_is_rejected_or_shown_to_be_sound(mutation: str, part: int) -> None:
    rejected = 0
    for _, mutant in mutants(mutation, 40, part):
        if verify(mutant):
            rejected += 1
        else:
            assert sound(mutant)
    assert rejected


@for_each("part", range(PARTS), quick=len(MUTATIONS), parts=2)
@for_each("mutation", MUTATIONS)
def test_a_sound_mutant_is_rejected_only_by_the_stricter_rules(mutation: str, part: int) -> None:
    for _, mutant in mutants(mutation, 25, part):
        assert not sound(mutant) or {violation.rule for violation in verify(mutant)} <= STRICT


def test_the_simulation_itself_objects_to_each_kind_of_fault() -> None:
    # ReduceScatter on pair: 20 ps each way
    good = timed(
        pair(), "reducescatter", [(1, (0, 1), 0, 20, 0, True), (0, (1, 0), 0, 20, 1, True)]
    )
    assert sound(good)
    assert not sound(changed(good, 0, end=21))
    assert not sound(changed(good, 0, start=-1, end=19))
    assert not sound(changed(good, 0, reduce=False))
    assert not sound(changed(good, 0, chunk=0))
    assert not sound(picked(good, [0]))
    assert not sound(next(repeat(good)))


def test_the_simulation_objects_to_an_overlap() -> None:
    rows = [
        (0, (0, 1), 0, 20, 0, False), (1, (0, 1), 19, 39, 1, False),
        (2, (1, 0), 0, 20, 2, False), (3, (1, 0), 20, 40, 3, False),
    ]  # fmt: skip
    assert not sound(timed(pair(), "allgather", rows, k=2))
    assert sound(changed(timed(pair(), "allgather", rows, k=2), 1, start=20, end=40))

"""AllReduce by exchange: formulas, where the algorithms exist, and that values are added once."""

from fractions import Fraction

import pytest

from taccl.synth.templates.classical import classical_schedules
from taccl.topology.file import load_topology
from taccl.topology.graph import whole
from taccl.verify import verify
from tests.generators import build
from tests.synth.problems import classical_schedule, problem_of

ALPHA, BETA = 700_000, Fraction(20)
"""The default link of the short forms: 0.7 us, 50 GB/s = 20 ps a byte."""


@pytest.mark.parametrize(
    ("ranks", "rounds", "rule"),
    [(2, 1, "delay"), (4, 2, "occupy"), (4, 2, "delay"), (8, 3, "occupy"), (8, 3, "delay"),
     (3, 3, "occupy"), (6, 4, "occupy")],
)  # fmt: skip
def test_recursive_doubling_on_a_hub_sends_all_in_every_round(
    ranks: int, rounds: int, rule: str
) -> None:
    # Ranks beyond a power of two cost one round before and one after.
    topology = load_topology(f"hub:{ranks}").with_alpha_rule(rule)
    schedule = classical_schedule(
        problem_of(topology, "allreduce"), "recursive-doubling", batch=True
    )
    assert schedule is not None
    assert not verify(schedule, whole(topology))
    assert schedule.makespan == rounds * (ALPHA + BETA * 1000 * ranks)


@pytest.mark.parametrize("rule", ["occupy", "delay"])
def test_one_shot_on_wires_between_all_pairs_takes_one_message(rule: str) -> None:
    topology = load_topology("full:4").with_alpha_rule(rule)
    schedule = classical_schedule(problem_of(topology, "allreduce"), "one-shot", batch=True)
    assert schedule is not None
    assert not verify(schedule, whole(topology))
    assert schedule.makespan == ALPHA + BETA * 4000


def test_one_shot_on_a_hub_sends_one_peer_after_the_other_within_one_alpha() -> None:
    topology = load_topology("hub:4").with_alpha_rule("delay")
    schedule = classical_schedule(problem_of(topology, "allreduce"), "one-shot", batch=True)
    assert schedule is not None
    assert not verify(schedule, whole(topology))
    assert schedule.makespan == ALPHA + 3 * BETA * 4000


def test_one_shot_does_not_exist_where_a_value_changes_before_it_has_left_for_everyone() -> None:
    problem = problem_of(load_topology("hub:8"), "allreduce")
    assert classical_schedules(problem, "one-shot", batch=True) == ()


@pytest.mark.parametrize("name", ["recursive-doubling", "one-shot"])
def test_partners_need_links_both_ways(name: str) -> None:
    one_way = build("one way", 2, [(0, 1, 10, None, Fraction(1))])
    assert classical_schedules(problem_of(one_way, "allreduce"), name, batch=True) == ()


@pytest.mark.parametrize("name", ["recursive-doubling", "one-shot"])
def test_only_an_allreduce_is_exchanged(name: str) -> None:
    problem = problem_of(load_topology("full:4"), "allgather")
    assert classical_schedules(problem, name, batch=True) == ()

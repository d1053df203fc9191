"""The race of two solvers on one model: statuses, hints, pool, stop, and repeatability."""

from dataclasses import replace
from threading import Event

import pytest

from taccl.model.problem import Options, Status
from taccl.synth import milp
from taccl.synth.milp import Model
from tests.synth.problems import QUICK

RACED = Options(time_limit=5.0, workers=1)


def knapsack(weights: tuple[int, ...], least: int) -> Model:
    """Return the model: the fewest things with a total weight of at least so much."""
    model = Model()
    names = [model.binary(f"take_{number}") for number in range(len(weights))]
    model.at_most([(name, -w) for name, w in zip(names, weights, strict=True)], -least)
    model.objective.extend([(name, 1) for name in names])
    return model


@pytest.mark.parametrize("options", [QUICK, RACED], ids=["counted", "raced"])
def test_the_optimum_is_found_and_proved(options: Options) -> None:
    # 7 + 5 are enough for 12, no single weight is.
    answer = milp.race(knapsack((3, 7, 5, 4), 12), options, 5.0)
    assert answer.status is Status.OPTIMAL
    assert dict(answer.pool[0]) == {"take_0": 0, "take_1": 1, "take_2": 1, "take_3": 0}


@pytest.mark.parametrize("options", [QUICK, RACED], ids=["counted", "raced"])
def test_what_has_no_solution_is_infeasible(options: Options) -> None:
    answer = milp.race(knapsack((3, 7), 11), options, 5.0)
    assert answer.status is Status.INFEASIBLE
    assert answer.pool == ()
    assert answer.winner == "none"


def test_equations_hold() -> None:
    model = Model()
    x, y = model.continuous("x", 0, 10), model.continuous("y", 0, 10)
    model.exactly([(x, 2), (y, 3)], 12)
    model.objective.extend([(x, 1), (y, 1)])
    assert dict(milp.race(model, QUICK, 5.0).pool[0]) == {"x": 0, "y": 4}


def test_a_stopped_race_is_interrupted() -> None:
    stop = Event()
    stop.set()
    answer = milp.race(knapsack((3, 7, 5, 4), 12), replace(RACED, stop=stop), 60.0)
    assert answer.status is Status.INTERRUPTED


def test_the_best_solutions_are_kept_in_order() -> None:
    answer = milp.race(knapsack(tuple(range(1, 30)), 200), QUICK, 5.0)
    sizes = [sum(values.values()) for values in answer.pool]
    assert sizes == sorted(sizes)
    assert len(answer.pool) <= milp.POOL
    assert len({tuple(values.items()) for values in answer.pool}) == len(answer.pool)


def test_counted_races_repeat_to_the_last_value() -> None:
    one, two = (milp.race(knapsack(tuple(range(1, 40)), 333), QUICK, 2.0) for _ in range(2))
    assert (one.status, one.winner, list(one.pool)) == (two.status, two.winner, list(two.pool))


def test_a_wrong_hint_does_no_harm() -> None:
    answer = milp.race(knapsack((3, 7, 5, 4), 12), QUICK, 5.0, {"take_0": 1, "nowhere": 1})
    assert sum(answer.pool[0].values()) == 2


def test_a_good_hint_is_found_again() -> None:
    hint = {"take_0": 0, "take_1": 1, "take_2": 1, "take_3": 0}
    answer = milp.race(knapsack((3, 7, 5, 4), 12), QUICK, 5.0, hint)
    assert dict(answer.pool[0]) == hint

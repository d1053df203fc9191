"""Cheapest trees of all chunks at given prices, exactly."""

import numpy as np
import pytest

from taccl.errors import NoScheduleError
from taccl.prices.arborescence import MOST, Ints
from taccl.prices.packing import Kind, PricingProblem, cheapest, distances


def ints(*values: int) -> Ints:
    return np.array(values, dtype=np.int64)


def pricing_of(ranks: int, rows: list[tuple[int, int, dict[int, int]]]) -> PricingProblem:
    """Return a pricing problem of arcs, each with what it takes of some resources."""
    uses = [use for row in rows for use in row[2].items()]
    start = np.cumsum([0, *(len(row[2]) for row in rows)])
    return PricingProblem(
        ranks, 1 + max(resource for resource, _ in uses),
        np.array([row[0] for row in rows], dtype=np.int32),
        np.array([row[1] for row in rows], dtype=np.int32), start.astype(np.int64),
        np.array([resource for resource, _ in uses], dtype=np.int32),
        np.array([load for _, load in uses], dtype=np.int64),
    )  # fmt: skip


def kind(roots: Ints, targets: Ints, count: int = 1, arcs: Ints | None = None) -> Kind:
    return Kind(roots, targets, arcs, count)


# Two ranks on one shared port (resource 0), and a third beyond a wire (1) from rank 1.
PORT = pricing_of(
    3, [(0, 1, {0: 5}), (1, 0, {0: 5}), (1, 2, {1: 7}), (2, 1, {1: 7, 0: 1}), (0, 2, {0: 5, 1: 9})]
)


def test_an_arc_costs_what_it_takes_at_the_prices() -> None:
    assert PORT.costs(ints(2, 3)).tolist() == [10, 10, 21, 23, 37]


def test_loads_add_up_what_units_take() -> None:
    assert PORT.loads(ints(1, 0, 2, 3, 0)).tolist() == [5 + 3, 14 + 21]


def test_all_kinds_pay_for_their_cheapest_trees() -> None:
    # from 0: 0-1-2 is 10 + 21; from 1: 10 + 21; from 2: 23 + 10
    kinds = [kind(ints(r), ints(*{0, 1, 2} - {r}), count=r + 1) for r in range(3)]
    cost, units = cheapest(PORT, kinds, PORT.costs(ints(2, 3)))
    assert cost == 31 + 2 * 31 + 3 * 33
    assert units.tolist() == [1, 2 + 3, 1 + 2, 3, 0]


def test_a_kind_with_fewer_arcs_pays_more() -> None:
    allowed = ints(0, 4)
    cost, units = cheapest(PORT, [kind(ints(0), ints(1, 2), arcs=allowed)], PORT.costs(ints(2, 3)))
    assert (cost, units.tolist()) == (47, [1, 0, 0, 0, 1])


def test_of_several_roots_the_nearest_serves() -> None:
    cost, units = cheapest(PORT, [kind(ints(1, 2), ints(0))], PORT.costs(ints(2, 3)))
    assert (cost, units.tolist()) == (10, [0, 1, 0, 0, 0])


def test_for_some_ranks_only_the_dearest_way_is_counted() -> None:
    # a star from 0 with two targets and a rank that nobody asks for: paths of 4 and 6
    star = pricing_of(4, [(0, r, {r - 1: 2 * r}) for r in (1, 2, 3)])
    cost, units = cheapest(star, [kind(ints(0), ints(2, 3), count=5)], star.costs(ints(1, 1, 1)))
    assert (cost, units.tolist()) == (5 * 6, [0, 5, 5])


def test_paths_share_their_beginning() -> None:
    fork = pricing_of(4, [(0, 1, {0: 1}), (1, 2, {1: 1}), (1, 3, {2: 1})])
    _, units = cheapest(fork, [kind(ints(0), ints(2)), kind(ints(0), ints(3))], ints(1, 1, 1))
    assert units.tolist() == [2, 1, 1]


@pytest.mark.parametrize("targets", [ints(0, 1), ints(0)])
def test_what_nobody_reaches_is_an_error(targets: Ints) -> None:
    one_way = pricing_of(3, [(0, 1, {0: 1}), (1, 2, {0: 1})])
    with pytest.raises(NoScheduleError, match="can't be reached from another"):
        cheapest(one_way, [kind(ints(2), targets)], one_way.costs(ints(1)))
    with pytest.raises(NoScheduleError, match="can't be reached from another"):
        cheapest(one_way, [kind(ints(0), ints(1, 2)), kind(ints(1), ints(0, 2))], ints(1, 1))


def test_distances_are_those_of_the_nearest_root_over_the_last_arcs() -> None:
    tail, head = (np.array(ends, dtype=np.int32) for ends in ([0, 0, 1, 2, 4], [1, 2, 3, 3, 0]))
    length, into = distances(5, ints(0), tail, head, ints(5, 2, 1, 3, 1))
    assert length.tolist() == [0, 5, 2, 5, MOST]
    assert into.tolist() == [-1, 0, 1, 3, -1]


def test_circles_without_length_are_no_way_to_a_root() -> None:
    tail, head = (np.array(ends, dtype=np.int32) for ends in ([1, 2, 0, 2], [2, 1, 1, 3]))
    length, into = distances(4, ints(0), tail, head, ints(0, 0, 7, 0))
    assert length.tolist() == [0, 7, 7, 7]
    assert into.tolist() == [-1, 2, 0, 3]


def test_prices_are_rounded_so_that_no_tree_costs_too_much() -> None:
    slow = pricing_of(2, [(0, 1, {0: 1 << 45}), (1, 0, {1: 1})])
    steps = slow.steps(np.array([0.25, 0.75]))
    assert 0 < 2 * int(steps[0]) << 45 <= MOST // 4
    assert steps[1] // steps[0] == 3
    fast = pricing_of(2, [(0, 1, {0: 1}), (1, 0, {1: 1})])
    assert fast.steps(np.array([0.5, 0.25])).tolist() == [1 << 30, 1 << 29]

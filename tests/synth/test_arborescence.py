"""Cheapest spanning trees: against all trees where they are few, and by their proofs elsewhere."""

import itertools
import random
from collections.abc import Iterator

import numpy as np
import pytest

from taccl.prices import arborescence
from taccl.prices.arborescence import MOST, Arcs32, Forest, Ints, cheapest_from, contract
from tests.sweep import for_each

Graph = tuple[int, Arcs32, Arcs32, Ints]


def graph_of(ranks: int, rows: list[tuple[int, int, int]]) -> Graph:
    tail, head, cost = (np.array([row[i] for row in rows], dtype=np.int64) for i in range(3))
    return ranks, tail.astype(np.int32), head.astype(np.int32), cost


def random_graph(seed: int, ranks: int, arcs: int) -> Graph:
    """Return a ring and arcs between any ranks, many of equal cost, some parallel."""
    rng = random.Random(seed)
    dearest = rng.choice([0, 3, 50, 10**12])
    ends = [(rank, (rank + 1) % ranks) for rank in range(ranks) if ranks > 1]
    while len(ends) < arcs and ranks > 1:
        ends.append((rng.randrange(ranks), rng.randrange(ranks)))
    rng.shuffle(ends)
    return graph_of(ranks, [(a, b, rng.randint(0, dearest)) for a, b in ends])


def trees(graph: Graph, roots: set[int]) -> Iterator[list[int]]:
    """Yield all choices of one arc into every other rank that lead back to a root."""
    ranks, tail, head, _ = graph
    choices = [
        [i for i in range(len(tail)) if head[i] == r] for r in range(ranks) if r not in roots
    ]
    for arcs in itertools.product(*choices):
        if spans(graph, list(arcs), roots):
            yield list(arcs)


def spans(graph: Graph, arcs: list[int], roots: set[int]) -> bool:
    """Tell whether arcs enter every rank but the roots once, and lead back to a root."""
    ranks, tail, head, _ = graph
    before = {int(head[arc]): int(tail[arc]) for arc in arcs}
    if sorted(int(head[arc]) for arc in arcs) != sorted(set(range(ranks)) - roots):
        return False
    for start in before:
        rank, steps = start, 0
        while rank not in roots and steps <= ranks:
            rank, steps = before[rank], steps + 1
        if rank not in roots:
            return False
    return True


def one_hot(ranks: int, root: int) -> Ints:
    counts = np.zeros(ranks, dtype=np.int64)
    counts[root] = 1
    return counts


@for_each("seed", range(60))
def test_no_tree_is_cheaper_than_the_cheapest_found(seed: int) -> None:
    ranks = random.Random(seed).randint(1, 5)
    graph = random_graph(seed, ranks, 3 * ranks)
    forest = contract(*graph)
    for root in range(ranks):
        least = min(int(graph[3][tree].sum()) for tree in trees(graph, {root}))
        arcs = np.flatnonzero(forest.use(one_hot(ranks, root))).tolist()
        assert spans(graph, arcs, {root})
        assert least == forest.costs()[root] == graph[3][arcs].sum()


@for_each("seed", range(60))
def test_no_forest_from_several_roots_is_cheaper(seed: int) -> None:
    rng = random.Random(seed)
    ranks = rng.randint(2, 5)
    graph = random_graph(seed, ranks, 3 * ranks)
    roots = set(rng.sample(range(ranks), rng.randint(1, ranks)))
    cost, arcs = cheapest_from(np.array(sorted(roots)), *graph)
    assert spans(graph, arcs.tolist(), roots)
    assert cost == min(int(graph[3][tree].sum()) for tree in trees(graph, roots))


def prove(graph: Graph, forest: Forest, root: int) -> None:
    """Assert that a tree costs what the duals of the sets without its root prove."""
    ranks, tail, head, cost = graph
    arcs = np.flatnonzero(forest.use(one_hot(ranks, root))).tolist()
    assert spans(graph, arcs, {root})
    inside = np.zeros((len(forest.parent), ranks), dtype=np.bool_)
    inside[np.arange(ranks), np.arange(ranks)] = True
    for part, parent in enumerate(forest.parent.tolist()[:-1]):
        assert parent > part
        inside[parent] |= inside[part]
    without = np.flatnonzero(~inside[:, root])
    entered = ~inside[np.ix_(without, tail)] & inside[np.ix_(without, head)]
    assert (forest.dual >= 0).all()
    assert (forest.dual[without] @ entered <= cost).all()
    assert cost[arcs].sum() == forest.dual[without].sum() == forest.costs()[root]


@for_each("seed", range(12))
def test_duals_prove_the_trees_of_larger_graphs(seed: int) -> None:
    ranks = random.Random(seed).randint(20, 60)
    graph = random_graph(seed, ranks, random.Random(seed).choice([2, 5, 20]) * ranks)
    forest = contract(*graph)
    for root in range(0, ranks, 7):
        prove(graph, forest, root)


def test_use_adds_up_the_trees_of_all_roots() -> None:
    graph = random_graph(3, 12, 50)
    forest = contract(*graph)
    counts = np.arange(12, dtype=np.int64)
    alone = sum(forest.use(one_hot(12, root)) * root for root in range(12))
    assert np.array_equal(forest.use(counts), alone)
    assert int(forest.use(counts) @ graph[3]) == int(forest.costs() @ counts)


def test_a_chain_of_nested_cycles_costs_its_dearest_way_round() -> None:
    # 0 <-> 1 <-> 2 <-> 3, dearer to the right: from 3 every arc to the left is paid, from 0 to
    # the right.
    rows = [(r, r + 1, 10 * (r + 1)) for r in range(3)] + [(r + 1, r, r + 1) for r in range(3)]
    assert contract(*graph_of(4, rows)).costs().tolist() == [60, 51, 33, 6]


def test_of_equal_arcs_the_first_counts() -> None:
    forest = contract(*graph_of(2, [(0, 1, 5), (0, 1, 5), (1, 0, 5)]))
    assert forest.use(one_hot(2, 0)).tolist() == [1, 0, 0]


def test_a_rank_that_nobody_reaches_is_an_error() -> None:
    one_way = graph_of(3, [(0, 1, 1), (1, 0, 1), (0, 2, 1)])
    with pytest.raises(ValueError, match="can't be reached from another"):
        contract(*one_way)
    assert cheapest_from(np.array([1]), *one_way)[0] == 2
    with pytest.raises(ValueError, match="can't be reached from another"):
        cheapest_from(np.array([2]), *one_way)


@pytest.mark.parametrize("cost", [-1, MOST // 2 + 1])
def test_costs_out_of_range_are_refused(cost: int) -> None:
    with pytest.raises(ValueError, match="costs should be from 0 to 23058"):
        contract(*graph_of(2, [(0, 1, cost), (1, 0, 0)]))


def test_the_largest_costs_are_added_up_exactly() -> None:
    ranks = 64
    rows = [(r, (r + 1) % ranks, MOST // ranks) for r in range(ranks)]
    assert contract(*graph_of(ranks, rows)).costs().tolist() == [MOST // ranks * 63] * ranks


def test_machine_code_and_python_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = [random_graph(seed, 12, 60) for seed in range(8)]
    made = [contract(*graph) for graph in graphs]
    used = [forest.use(np.ones(12, dtype=np.int64)) for forest in made]
    kernels = (arborescence.contract_all, arborescence.expand_all)
    monkeypatch.setattr(arborescence, "_compiled", lambda: kernels)
    for graph, forest, arcs in zip(graphs, made, used, strict=True):
        plain = contract(*graph)
        assert np.array_equal(plain.parent, forest.parent)
        assert np.array_equal(plain.dual, forest.dual)
        assert np.array_equal(plain.use(np.ones(12, dtype=np.int64)), arcs)

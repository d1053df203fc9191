"""Cheapest spanning trees of directed arcs, for all roots at once, compiled and exact.

Edmonds' algorithm contracts cycles of cheapest entering arcs until one vertex is left. Done
without a root, as Tarjan noted, the contraction serves every root: the tree of a root follows
from walking down from the top, and its cost is the sum of all duals less those of the contracted
sets that hold the root.

References
----------
J. Edmonds, "Optimum branchings", 1967. R. Tarjan, "Finding optimum branchings", 1977.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from taccl.prices import arborescence_loops
from taccl.prices.arborescence_loops import Arcs32, Heap, Ints, Sets
from taccl.timing.jit import jit

MOST = 1 << 62
"""No tree may cost more: sums stay within 64 bits."""


@dataclass(frozen=True, eq=False)
class Forest:
    """The contraction of a graph: the cheapest spanning tree of every root.

    Vertices are 0 .. `ranks`-1, and `head` is that of every arc. For every contracted set, its
    ranks first, `parent` is the set it is part of (-1: none), `enter` the cheapest arc that enters
    it, and `dual` what that costs beyond the sets inside.
    """

    ranks: int
    head: Arcs32
    parent: Arcs32
    enter: Arcs32
    dual: Ints

    def costs(self) -> Ints:
        """Return the cost of the cheapest tree from every rank."""
        inside = np.zeros(len(self.parent), dtype=np.int64)
        for node in range(len(self.parent) - 2, -1, -1):  # a set's number is above its parts'
            inside[node] = inside[self.parent[node]] + self.dual[node]
        costs: Ints = self.dual.sum() - inside[: self.ranks]
        return costs

    def use(self, counts: Ints) -> Ints:
        """Return how many trees take each arc, ``counts[r]`` of them being the cheapest from r."""
        used = np.zeros(len(self.head), dtype=np.int64)
        stack = np.full((4, len(self.parent)), -1, dtype=np.int32)
        _compiled()[1](counts, self.head, (self.parent, self.enter), stack, used)
        return used


def contract(ranks: int, tail: Arcs32, head: Arcs32, cost: Ints) -> Forest:
    """Return the contraction of a graph; among equal arcs the first counts.

    The vertices are so many `ranks`, `tail` and `head` the ends of the arcs; their `cost` is not
    negative, and ``ranks`` times the largest at most ``MOST``.

    Raises ValueError when a cost is out of range, or some vertex can't be reached from another.
    """
    if int(cost.min(initial=0)) < 0 or int(cost.max(initial=0)) * ranks > MOST:
        raise ValueError(f"costs should be from 0 to {MOST // ranks}")
    sets = Sets(
        np.full(2 * ranks, -1, dtype=np.int32), np.full(2 * ranks, -1, dtype=np.int32),
        np.zeros(2 * ranks, dtype=np.int64), np.arange(2 * ranks, dtype=np.int32),
        np.ones(2 * ranks, dtype=np.int64), np.full(2 * ranks, -1, dtype=np.int32),
        np.zeros(2 * ranks, dtype=np.int32), np.zeros(2 * ranks, dtype=np.bool_),
    )  # fmt: skip
    nobody = np.full(len(tail), -1, dtype=np.int32)
    heap = Heap(cost.astype(np.int64), np.zeros(len(tail), dtype=np.int64), nobody, nobody.copy())
    count = _compiled()[0](ranks, tail, head, heap, sets)
    if count == 0:
        raise ValueError("some vertex can't be reached from another")
    return Forest(ranks, head, sets.parent[:count], sets.enter[:count], sets.dual[:count])


def cheapest_from(
    roots: Ints, ranks: int, tail: Arcs32, head: Arcs32, cost: Ints
) -> tuple[int, Ints]:  # fmt: skip
    """Return the cost and the arcs of the cheapest forest from some `roots` to all other vertices.

    The other parameters, `ranks`, `tail`, `head` and `cost`, and the errors are those of
    :func:`contract`.
    """
    # The roots become vertex 0, and free arcs lead back to it: no tree from it uses one.
    number = np.ones(ranks, dtype=np.int32)
    number[roots] = 0
    number = np.where(number, np.cumsum(number), 0).astype(np.int32)
    count = int(number.max(initial=0)) + 1
    kept = np.flatnonzero(number[head])
    others = np.arange(1, count, dtype=np.int32)
    tails = np.concatenate([number[tail[kept]], others])
    heads = np.concatenate([number[head[kept]], np.zeros_like(others)])
    costs = np.concatenate([cost[kept], np.zeros(len(others), dtype=np.int64)])
    one = np.zeros(count, dtype=np.int64)
    one[0] = 1
    arcs = kept[np.flatnonzero(contract(count, tails, heads, costs).use(one)[: len(kept)])]
    return int(cost[arcs].sum()), arcs


@cache
def _compiled() -> tuple[Callable[..., int], Callable[..., int]]:
    """Return the two loops as machine code, compiled or from the cache on disk."""
    return (
        jit(arborescence_loops.contract_all, [arborescence_loops], "contract"),
        jit(arborescence_loops.expand_all, [arborescence_loops], "expand"),
    )

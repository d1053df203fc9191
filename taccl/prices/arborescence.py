"""Cheapest spanning trees of directed arcs, for all roots at once, compiled and exact.

Edmonds' algorithm contracts cycles of cheapest entering arcs until one vertex is left. Done
without a root, as Tarjan noted, the contraction serves every root: the tree of a root follows
from walking down from the top, and its cost is the sum of all duals less those of the contracted
sets that hold the root.

**Steiner trees** may pass vertices that want nothing: a bound by dual ascent, and a tree.

A tree from the roots to all targets enters every set W of vertices that holds a target and no root.
So for any y[W] >= 0 with

    sum of y[W] over the sets W that an arc enters  <=  the cost of the arc        (for every arc)

no tree costs less than the sum of all y. Dual ascent (Wong) makes such y: of a target that the
roots do not reach over arcs whose cost is used up, W is all that reaches it over these; y[W] is the
least that is left of the cost of an arc into W, and is taken off all of them. In the end such arcs
reach all targets, and the tree is taken from them. All is in integers, and whatever the order, the
sum is a bound; the smallest sets come first, as these cost the least search.

References
----------
J. Edmonds, "Optimum branchings", 1967. R. Tarjan, "Finding optimum branchings", 1977.
R. Wong, "A dual ascent approach for Steiner tree problems on a directed graph", 1984.
"""

import heapq
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


def steiner_tree(
    roots: Ints, targets: Ints, vertices: int, tail: Arcs32, head: Arcs32, cost: Ints
) -> tuple[int, Ints]:  # fmt: skip
    """Return what a tree from some `roots` to all `targets` costs at least, and a tree's arcs.

    The graph has so many `vertices`, and arcs with the ends `tail` and `head` and a `cost` each,
    not negative. The tree may cost more than the bound.

    Raises ValueError when some target can't be reached.
    """
    left, tails, heads = cost.tolist(), tail.tolist(), head.tolist()
    into: list[list[int]] = [[] for _ in range(vertices)]
    for arc, end in enumerate(heads):
        into[end].append(arc)
    is_root = [False] * vertices
    for root in roots.tolist():
        is_root[root] = True
    bound = 0
    waiting = [(1, target) for target in targets.tolist() if not is_root[target]]
    while waiting:
        size, target = heapq.heappop(waiting)
        inside, stack, reached = {target}, [target], False
        entering: list[int] = []
        while stack and not reached:
            for arc in into[stack.pop()]:
                if left[arc]:
                    entering.append(arc)
                elif tails[arc] not in inside:
                    reached = is_root[tails[arc]]
                    if reached:
                        break
                    inside.add(tails[arc])
                    stack.append(tails[arc])
        if reached:
            continue
        entering = [arc for arc in entering if tails[arc] not in inside]
        if not entering:
            raise ValueError("some target can't be reached")
        if waiting and len(inside) > size and len(inside) > waiting[0][0]:
            heapq.heappush(waiting, (len(inside), target))
            continue
        step = min(left[arc] for arc in entering)
        bound += step
        for arc in entering:
            left[arc] -= step
        heapq.heappush(waiting, (len(inside) + 1, target))
    return bound, _tree(roots, targets, (tails, heads), cost.tolist(), left)


def _tree(
    roots: Ints, targets: Ints, ends: tuple[list[int], list[int]], cost: list[int], left: list[int]
) -> Ints:
    """Return the arcs of a tree along arcs without costs left: the nearest target next, by cost."""
    tails, heads = ends
    out: dict[int, list[int]] = {}
    for arc, rest in enumerate(left):
        if not rest:
            out.setdefault(tails[arc], []).append(arc)
    joined, wanted, arcs = set(roots.tolist()), set(targets.tolist()), list[int]()
    wanted -= joined
    while wanted:
        distance = dict.fromkeys(joined, 0)
        via: dict[int, int] = {}
        heap = [(0, vertex) for vertex in sorted(joined)]
        found = -1
        while heap:
            far, vertex = heapq.heappop(heap)
            if far > distance[vertex]:
                continue
            if vertex in wanted:
                found = vertex
                break
            for arc in out.get(vertex, ()):
                other, way = heads[arc], far + cost[arc]
                if other not in distance or way < distance[other]:
                    distance[other], via[other] = way, arc
                    heapq.heappush(heap, (way, other))
        if found < 0:
            raise ValueError("some target can't be reached")
        while found not in joined:
            joined.add(found)
            wanted.discard(found)
            arcs.append(via[found])
            found = tails[via[found]]
    return np.array(sorted(arcs), dtype=np.int64)

"""Cheapest spanning trees of directed arcs, for all roots at once, compiled and exact.

Edmonds' algorithm contracts cycles of cheapest entering arcs until one vertex is left. Done
without a root, as Tarjan noted, the contraction serves every root: the tree of a root follows
from walking down from the top, and its cost is the sum of all duals less those of the contracted
sets that hold the root. A path of sets grows backwards along cheapest entering arcs until it meets
itself; the cycle becomes one set. Arcs wait in pairing heaps that can add to all their keys at
once. These loops are plain functions on arrays, which numba compiles.

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
H. Gabow, Z. Galil, T. Spencer, R. Tarjan, "Efficient algorithms for finding minimum spanning trees
in undirected and directed graphs", 1986 (growing a path). M. Fredman, R. Sedgewick, D. Sleator,
R. Tarjan, "The pairing heap", 1986.
"""

import heapq
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.timing.jit import jit

Ints = NDArray[np.int64]
Arcs32 = NDArray[np.int32]


class Heap(NamedTuple):
    """Pairing heaps of arcs: a root's entries are its children, a chain of siblings.

    `key` is what an arc costs beyond the sets it enters, and `later` what its children's keys are
    still to be changed by; `child` and `sibling` are the first child and the next sibling, -1:
    none.
    """

    key: Ints
    later: Ints
    child: Arcs32
    sibling: Arcs32


class Sets(NamedTuple):
    """Ranks and contracted sets: `parent`, `enter` and `dual` as in ``Forest``.

    `within` is a set that holds each, towards the outermost, `size` how many ranks are inside, and
    `arcs` the heap of the arcs that enter each. On the `path` are outermost sets (`on_path`), each
    but the last entered by an arc from the next.
    """

    parent: Arcs32
    enter: Arcs32
    dual: Ints
    within: Arcs32
    size: Ints
    arcs: Arcs32
    path: Arcs32
    on_path: NDArray[np.bool_]


def link_heaps(heap: Heap, one: int, other: int) -> int:
    """Join the heaps below `one` and `other` in `heap` (-1 is the empty one); return the root."""
    if one < 0:
        return other
    if other < 0:
        return one
    gap = heap.key[other] - heap.key[one]
    if gap < 0 or (gap == 0 and other < one):
        one, other = other, one
    heap.key[other] -= heap.later[one]
    heap.later[other] -= heap.later[one]
    heap.sibling[other] = heap.child[one]
    heap.child[one] = other
    return one


def without_least(heap: Heap, root: int) -> int:
    """Return the root of that part of `heap` below `root` after its least entry is taken."""
    pairs, node, change = -1, heap.child[root], heap.later[root]
    while node >= 0:
        second = heap.sibling[node]
        after = -1
        heap.key[node] += change
        heap.later[node] += change
        if second >= 0:
            after = heap.sibling[second]
            heap.key[second] += change
            heap.later[second] += change
        joined = link_heaps(heap, node, second)
        heap.sibling[joined] = pairs
        pairs = joined
        node = after
    merged = -1
    while pairs >= 0:
        after = heap.sibling[pairs]
        merged = link_heaps(heap, merged, pairs)
        pairs = after
    return merged


def find(within: Arcs32, node: int) -> int:
    """Return the outermost set that a `node` is part of, and shorten the way to it in `within`."""
    while within[node] != node:
        within[node] = within[within[node]]
        node = within[node]
    return node


def contract_all(ranks: int, tail: Arcs32, head: Arcs32, heap: Heap, sets: Sets) -> int:
    """Contract everything into one set; return how many sets there are, 0 if it can't be done.

    `ranks`, `tail` and `head` are as in :func:`taccl.prices.arborescence.contract`; `heap` has the
    costs of the arcs, and `sets` room for twice as many sets as ranks.
    """
    for arc in range(len(tail)):
        sets.arcs[head[arc]] = link_heaps(heap, sets.arcs[head[arc]], arc)
    top, count = 0, ranks
    sets.on_path[0] = True
    while True:
        node = sets.path[top]
        arc = sets.arcs[node]
        while arc >= 0 and find(sets.within, tail[arc]) == node:
            arc = without_least(heap, arc)
        if arc < 0:
            return count if sets.size[node] == ranks else 0
        sets.enter[node], sets.dual[node] = arc, heap.key[arc]
        sets.arcs[node] = without_least(heap, arc)
        before = find(sets.within, tail[arc])
        if sets.on_path[before]:
            top = close_cycle(heap, sets, top, before, count)
            count += 1
        else:
            top += 1
            sets.path[top] = before
            sets.on_path[before] = True


def close_cycle(heap: Heap, sets: Sets, top: int, first: int, made: int) -> int:
    """Contract the path from the set `first` to its end at `top`; return the place of the new set.

    The new set has the number `made` in `sets`; the arcs that enter it are joined in `heap`.
    """
    joined, ranks = -1, 0
    top += 1
    while True:
        top -= 1
        part = sets.path[top]
        sets.parent[part] = sets.within[part] = made
        sets.on_path[part] = False
        ranks += sets.size[part]
        root = sets.arcs[part]
        if root >= 0:
            heap.key[root] -= sets.dual[part]
            heap.later[root] -= sets.dual[part]
        joined = link_heaps(heap, joined, root)
        if part == first:
            break
    sets.arcs[made], sets.size[made] = joined, ranks
    sets.path[top] = made
    sets.on_path[made] = True
    return top


def expand_all(
    counts: Ints, head: Arcs32, nodes: tuple[Arcs32, Arcs32], stack: NDArray[np.int32], used: Ints
) -> int:  # fmt: skip
    """Add up the trees of all roots in `used`, by arc; return how many trees there are.

    A tree enters the root's ancestors nowhere and all parts beside them once. A part entered by
    an arc is in turn made of the ancestors of the arc's head in it, and of parts beside them.

    `counts` says how many trees start at each rank, `head` where each arc ends, `nodes` are
    ``parent`` and ``enter``, and `stack` is room for four numbers a set.
    """
    parent, enter = nodes
    first, following, low, high = stack[0], stack[1], stack[2], stack[3]
    for node in range(len(parent) - 1):
        following[node] = first[parent[node]]
        first[parent[node]] = node
    trees = 0
    for root in range(len(counts)):
        trees += counts[root]
        low[0], high[0] = root, len(parent) - 1
        waiting = 1 if counts[root] else 0
        while waiting:
            waiting -= 1
            node, last = low[waiting], high[waiting]
            while node != last:
                part = first[parent[node]]
                while part >= 0:
                    if part != node:
                        used[enter[part]] += counts[root]
                        low[waiting], high[waiting] = head[enter[part]], part
                        waiting += 1
                    part = following[part]
                node = parent[node]
    return trees


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
    parts = [sys.modules[__name__]]
    return (jit(contract_all, parts, "contract"), jit(expand_all, parts, "expand"))


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

"""Cheapest trees that may pass vertices that want nothing: a bound by dual ascent, and a tree.

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
R. Wong, "A dual ascent approach for Steiner tree problems on a directed graph", 1984.
"""

import heapq

import numpy as np

from taccl.prices.arborescence_loops import Arcs32, Ints


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

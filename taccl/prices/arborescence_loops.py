"""The loops of arborescence.py: plain functions on arrays, which numba compiles.

A path of sets grows backwards along cheapest entering arcs until it meets itself; the cycle
becomes one set. Arcs wait in pairing heaps that can add to all their keys at once.

References
----------
H. Gabow, Z. Galil, T. Spencer, R. Tarjan, "Efficient algorithms for finding minimum spanning trees
in undirected and directed graphs", 1986 (growing a path). M. Fredman, R. Sedgewick, D. Sleator,
R. Tarjan, "The pairing heap", 1986.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

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

"""Heaps of the guided scheduler, on flat arrays: plain functions that guided_kernel.py compiles.

Every class of arcs has two pairing heaps of entries, linked by child and sibling; one binary heap,
with the place of every class in it, finds the class with the smallest key.
"""

from taccl.synth.guided_layout import Growth

NOTHING = -1


def meld(g: Growth, one: int, other: int) -> int:
    """Return the root of two pairing heaps made one."""
    if g.key[other] < g.key[one] or (g.key[other] == g.key[one] and other < one):
        one, other = other, one
    g.sibling[other] = g.child[one]
    g.child[one] = other
    return one


def insert(g: Growth, root: int, entry: int) -> int:
    """Return the root of a pairing heap with one more entry, whose key is set."""
    g.child[entry] = NOTHING
    g.sibling[entry] = NOTHING
    return entry if root == NOTHING else meld(g, root, entry)


def without_root(g: Growth, root: int) -> int:
    """Return the root of a pairing heap without its smallest entry."""
    entry = g.child[root]
    pairs = NOTHING
    while entry != NOTHING:
        other = g.sibling[entry]
        if other == NOTHING:
            g.sibling[entry] = pairs
            pairs = entry
            break
        following = g.sibling[other]
        g.sibling[entry] = NOTHING
        g.sibling[other] = NOTHING
        both = meld(g, entry, other)
        g.sibling[both] = pairs
        pairs = both
        entry = following
    if pairs == NOTHING:
        return NOTHING
    root = pairs
    entry = g.sibling[root]
    g.sibling[root] = NOTHING
    while entry != NOTHING:
        following = g.sibling[entry]
        g.sibling[entry] = NOTHING
        root = meld(g, root, entry)
        entry = following
    return root


def precedes(g: Growth, one: int, other: int) -> bool:
    """Tell whether a class comes before another: by time, then by rank among equals."""
    if g.finish[one] != g.finish[other]:
        return bool(g.finish[one] < g.finish[other])
    if g.turn[one] != g.turn[other]:
        return bool(g.turn[one] < g.turn[other])
    return one < other


def _put(g: Growth, place: int, number: int) -> None:
    g.heap[place] = number
    g.place[number] = place


def rise(g: Growth, number: int) -> None:
    """Move a class whose key fell to where it belongs."""
    place = g.place[number]
    while place > 0:
        above = (place - 1) >> 1
        if not precedes(g, number, g.heap[above]):
            break
        _put(g, place, g.heap[above])
        place = above
    _put(g, place, number)


def sink(g: Growth, number: int) -> None:
    """Move a class whose key rose to where it belongs."""
    place, size = g.place[number], len(g.heap)
    while 2 * place + 1 < size:
        below = 2 * place + 1
        if below + 1 < size and precedes(g, g.heap[below + 1], g.heap[below]):
            below += 1
        if not precedes(g, g.heap[below], number):
            break
        _put(g, place, g.heap[below])
        place = below
    _put(g, place, number)

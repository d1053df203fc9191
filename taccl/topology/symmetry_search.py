"""Symmetries that nobody declared: found, and put together to a group that acts freely.

Ranks are numbered for a reason, so shifts inside blocks of equal size are tried first, in the order
of the ranks and by servers and rails. Then BLISS (Junttila and Kaski, 2007; by igraph) generates
all automorphisms of the topology. Where they are few, all are known; else their powers and the
products of generators in a row stand for them. From these a group is grown that moves every rank
and every resource.
"""

import json
import math
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from taccl.errors import InputError, TacclWarning
from taccl.topology.graph import Permutation, Topology
from taccl.topology.symmetry import (
    MAX_ENTRIES,
    MAX_GROUP,
    Group,
    close_rows,
    grow_free,
    is_symmetry,
    make_group,
    moves_all,
    refine,
    servers_matter,
    switch_kinds,
    vertex_image,
)

MAX_ARCS = 300_000
"""Of the graph that BLISS gets; larger topologies have the symmetries of their numbering only."""

IN_PROCESS = 500
"""Arcs up to which BLISS has always ended at once; it can't be interrupted."""

SECONDS = 10.0
"""What the search for automorphisms may take; most take some milliseconds."""

MAX_PRODUCTS = 5_000_000
"""Products of generators times ranks, where not all symmetries can be held."""

MAX_POOL = 500
"""Symmetries from which a group is put together; of large topologies fewer."""

MAX_SHIFTS = 500
"""Shifts inside blocks that are tried; of large topologies fewer."""

MAX_LOOKED_AT = 5_000_000
"""Vertices and edges, once for each of these symmetries."""

MAX_STARTS = 20
"""Symmetries with which a group is begun."""

_CHILD = """
import json, sys, igraph
count, arcs, colours = json.load(sys.stdin)
graph = igraph.Graph(n=count, edges=arcs, directed=True)
json.dump(graph.automorphism_group(color=colours), sys.stdout)
"""

Keeps = Callable[[Permutation], bool]


def search_group(topology: Topology, keeps: Keeps = lambda _: True) -> Group:
    """Return the largest group found that acts freely on a ``topology``.

    ``keeps`` says which of its symmetries may be used: those of collective and sketch, too.
    """
    limit = largest_order(topology)
    if limit == 1:
        return make_group(topology, ())
    shifts = _shifts(topology, keeps, limit)
    best = _grown(topology, shifts, limit)
    if len(best) == limit:
        return best
    generators = automorphisms(topology)
    if generators is None:
        warnings.warn(
            f"{topology.name} is too large or too intricate to search for all of its symmetries;"
            f" {len(best)} of them are used (declare rotations: to use more)",
            TacclWarning,
            stacklevel=2,
        )
        return best
    # Symmetries that move every rank: all of them where they are few, else some.
    n, rows = topology.num_ranks, [np.array(each, dtype=np.int32) for each in generators]
    closed = close_rows(rows, n, n, min(MAX_GROUP, MAX_ENTRIES // n))
    some = closed[0] if closed else np.array([*_products(rows, MAX_PRODUCTS // n)])
    moving = dict.fromkeys(map(tuple, some[(some != np.arange(n)).all(axis=1)].tolist()))
    pool = [p for p in moving if _order(p) and keeps(p)]
    found = _grown(topology, [*shifts, *pool], limit)
    return max(best, found, key=len)


def largest_order(topology: Topology) -> int:
    """Return a number that the order of every group that acts freely divides.

    Such a group moves things in orbits of its own size, and only things that are alike.
    """
    n, edges = topology.num_ranks, topology.edge_table
    kinds = np.concatenate([np.zeros(n, dtype=np.int64), 1 + switch_kinds(topology)])
    (colour,) = refine(topology, kinds)
    counts = set(np.unique(colour[:n], return_counts=True)[1].tolist())
    used = edges.is_resource
    alike = np.stack([colour[edges.tail], colour[edges.head], edges.cost])[:, used]
    if alike.size:
        counts.update(np.unique(alike, axis=1, return_counts=True)[1].tolist())
    return math.gcd(*counts)


def _shifts(topology: Topology, keeps: Keeps, limit: int) -> list[Permutation]:
    """Return the shifts inside blocks that may be used, up to one that is all that is needed."""
    found: list[Permutation] = []
    shifts = (
        tuple(order[[*block_shift]][np.argsort(order)].tolist())
        for order in _orders(topology)
        for block_shift in block_shifts(topology.num_ranks)
    )
    for shift in islice(shifts, _most(topology, MAX_SHIFTS)):
        if is_symmetry(topology, shift) and keeps(shift):
            found.append(shift)
            if _order(shift) == limit and make_group(topology, [shift]).acts_freely():
                break
    return found


def _orders(topology: Topology) -> Iterator[NDArray[np.int64]]:
    """Yield orders of the ranks: their own, and by servers and then by rails, where these differ.

    Ranks are on one rail when links between servers join them, directly or over others.
    """
    n, table = topology.num_ranks, topology.links
    yield np.arange(n)
    server = np.unique(topology.server_of, return_inverse=True)[1]
    between = server[table.src] != server[table.dst]
    src, dst = table.src[between], table.dst[between]
    rail, before = np.arange(n), np.zeros(0, dtype=np.int64)
    while not np.array_equal(rail, before):
        before = rail.copy()
        np.minimum.at(rail, dst, rail[src])
        np.minimum.at(rail, src, rail[dst])
    order = np.lexsort((np.arange(n), rail, server))
    if (order != np.arange(n)).any():
        yield order


def _most(topology: Topology, most: int) -> int:
    """Return how many symmetries of a topology are looked at: of a large one, fewer."""
    size = topology.num_ranks + len(topology.switches) + len(topology.edges)
    return min(most, max(8, MAX_LOOKED_AT // size))


def block_shifts(num_ranks: int) -> Iterator[Permutation]:
    """Yield the shifts by d of every block of b neighbours, d < b, both divisors; d = 1 first."""
    at = np.arange(num_ranks)
    divisors = [d for d in range(1, num_ranks + 1) if num_ranks % d == 0]
    for step in divisors:
        for block in reversed(divisors):
            if step < block and block % step == 0:
                yield tuple((at - at % block + (at + step) % block).tolist())


def automorphisms(topology: Topology) -> list[Permutation] | None:
    """Return generators of all symmetries, as rank permutations; None: too much to find out."""
    count, arcs, colours = _coloured(topology)
    if len(arcs) > MAX_ARCS:
        return None
    found: list[list[int]] | None
    if len(arcs) <= IN_PROCESS:
        import igraph

        graph = igraph.Graph(n=count, edges=arcs.tolist(), directed=True)
        found = graph.automorphism_group(color=colours.tolist())
    else:
        found = _bliss_in_child((count, arcs.tolist(), colours.tolist()))
    if found is None:
        return None
    ranks = topology.num_ranks
    moved = dict.fromkeys(tuple(row[:ranks]) for row in found)
    moved.pop(tuple(range(ranks)), None)
    return list(moved)


def _bliss_in_child(task: object) -> list[list[int]] | None:
    """Run BLISS in a process that can be killed; None when it has to be, or fails."""
    with tempfile.TemporaryFile("w+") as stdin:
        json.dump(task, stdin)
        stdin.seek(0)
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-c", _CHILD], stdin=stdin, capture_output=True,
                timeout=SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return None
    if done.returncode:
        return None
    found: list[list[int]] = json.loads(done.stdout)
    return found


def _coloured(topology: Topology) -> tuple[int, NDArray[np.int64], NDArray[np.int64]]:
    """Return the topology as a simple directed graph: vertices, arcs, and colours of vertices.

    An edge is a vertex between its ends, coloured by its costs; but edges of the most frequent
    costs without parallels are plain arcs. A server is a vertex that its ranks point to, where
    links depend on servers.
    """
    edges, ranks = topology.edge_table, topology.num_ranks
    total = ranks + len(topology.switches)
    ends = edges.tail * total + edges.head
    _, where, times = np.unique(ends, return_inverse=True, return_counts=True)
    single = times[where] == 1
    usual = int(np.argmax(np.bincount(edges.cost[single]))) if single.any() else -1
    plain = single & (edges.cost == usual)
    rest = np.flatnonzero(~plain)
    middle = total + np.arange(len(rest))
    arcs = [
        np.stack([edges.tail[plain], edges.head[plain]], axis=1),
        np.stack([edges.tail[rest], middle], axis=1),
        np.stack([middle, edges.head[rest]], axis=1),
    ]
    colours = [np.zeros(ranks, dtype=np.int64), 1 + switch_kinds(topology),
               10 + edges.cost[rest]]  # fmt: skip
    count = total + len(rest)
    if servers_matter(topology):
        servers = np.unique(topology.server_of, return_inverse=True)[1]
        arcs.append(np.stack([np.arange(ranks), count + servers], axis=1))
        colours.append(np.full(int(servers.max()) + 1, 9, dtype=np.int64))
        count += int(servers.max()) + 1
    return count, np.concatenate(arcs), np.concatenate(colours)


def _products(rows: Sequence[NDArray[np.int32]], most: int) -> Iterator[NDArray[np.int32]]:
    """Yield products of neighbours among the generators, with their powers, so many at most."""
    made = 0
    for first in range(len(rows)):
        product = np.arange(len(rows[0]), dtype=np.int32)
        for row in rows[first:]:
            product = row[product]
            power = product
            for _ in range(4):
                yield power
                power = product[power]
                made += 1
            if made >= most:
                return


def _grown(topology: Topology, pool: Sequence[Permutation], limit: int) -> Group:
    """Return the largest group found that begins with one of the first symmetries of a pool."""
    best = make_group(topology, ())
    possible = [p for p in pool if limit % _order(p) == 0][: _most(topology, MAX_POOL)]
    images = {}
    for symmetry in possible:
        with suppress(InputError):
            images[symmetry] = vertex_image(topology, symmetry)
    usable = [p for p, row in images.items() if moves_all(topology, row)]
    for start in usable[:MAX_STARTS]:
        if start in best.elements:
            continue
        group = grow_free(topology, [[start], *([p] for p in usable)], limit, images)
        best = max(best, group, key=len)
        if len(best) == limit:
            break
    return best


def _order(permutation: Permutation) -> int:
    """Return the length of all cycles of a permutation; 0 where they differ (in no free group)."""
    seen: set[int] = set()
    lengths = set()
    for start in range(len(permutation)):
        at, length = start, 0
        while at not in seen:
            seen.add(at)
            at, length = permutation[at], length + 1
        lengths |= {length} - {0}
    return lengths.pop() if len(lengths) == 1 else 0

"""Where a rank permutation takes the switches and the edges of a topology.

A permutation of the ranks is a symmetry when it extends to the switches so that every edge maps
to an edge with equal alpha, overhead and beta. The extension is found by colour refinement: a
vertex's colour is what it is and what lies around it. Colours are hashes; whether the extension
holds is then checked edge by edge, exactly.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from taccl.errors import InputError
from taccl.topology import Topology

Colours = NDArray[np.uint64]

MAX_TIES = 1000
"""Switches that look alike and are told apart one by one, for one extension."""

MAX_WORK = 20_000_000
"""Vertices and edges looked at in one refinement; colours are coarser where it ends too soon."""

_ODD = np.uint64(0x9E3779B97F4A7C15)
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))


def vertex_image(topology: Topology, permutation: Sequence[int]) -> NDArray[np.int32]:
    """Return where every vertex goes when rank r becomes ``permutation[r]``.

    Raises
    ------
    InputError
        When the topology does not map onto itself; names the edge or rank that breaks it.
    """
    image = _extend(topology, permutation)
    edge_image(topology, image)
    _check_servers(topology, permutation)
    return image


def is_symmetry(topology: Topology, permutation: Sequence[int]) -> bool:
    """Tell whether a topology maps onto itself when rank r becomes ``permutation[r]``."""
    try:
        vertex_image(topology, permutation)
    except InputError:
        return False
    return True


def edge_image(topology: Topology, vertices: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return where every edge goes with its ends; of equal parallel edges the k-th to the k-th.

    Raises
    ------
    InputError
        When an edge has no image; names it.
    """
    edges = topology.edge_table
    total = topology.num_ranks + len(topology.switches)
    kinds = int(edges.cost.max(initial=0)) + 1
    here = (edges.tail * total + edges.head) * kinds + edges.cost
    goal = (vertices[edges.tail].astype(np.int64) * total + vertices[edges.head]) * kinds
    goal += edges.cost
    by_here, by_goal = np.argsort(here, kind="stable"), np.argsort(goal, kind="stable")
    if not np.array_equal(here[by_here], goal[by_goal]):
        raise _no_image(topology, here, goal)
    image = np.empty(len(edges), dtype=np.int32)
    image[by_goal] = by_here
    return image


def _no_image(topology: Topology, here: NDArray[np.int64], goal: NDArray[np.int64]) -> InputError:
    """Return the error that names the first edge without an image."""
    lost = np.flatnonzero(~np.isin(goal, here))
    if not len(lost):  # more parallel edges than there are where they go
        kinds, there = np.unique(here, return_counts=True)
        counts = dict(zip(kinds.tolist(), there.tolist(), strict=True))
        wanted = dict(zip(*(c.tolist() for c in np.unique(goal, return_counts=True)), strict=True))
        lost = np.flatnonzero([wanted[key] > counts[key] for key in goal.tolist()])
    edge = topology.edges[int(lost[0])]
    tail, head = topology.vertex_name(edge.tail), topology.vertex_name(edge.head)
    return InputError(
        f"the topology {topology.name} does not have this symmetry:"
        f" edge {tail} -> {head} has no image",
        field="symmetry",
        fix="remove the symmetry, or make the edges equal",
    )


def _check_servers(topology: Topology, permutation: Sequence[int]) -> None:
    """Refuse to take a server apart where links depend on who shares one."""
    if not servers_matter(topology):
        return
    image_of: dict[int, int] = {}
    for rank, image in enumerate(permutation):
        home, there = topology.server_of[rank], topology.server_of[image]
        if image_of.setdefault(home, there) != there:
            raise InputError(
                f"the topology {topology.name} does not have this symmetry:"
                f" it takes rank {rank} away from the other ranks of server {home}",
                field="symmetry",
                fix="remove the symmetry, or map servers to servers",
            )


def servers_matter(topology: Topology) -> bool:
    """Tell whether links depend on which ranks share a server."""
    return any(switch.across_servers for switch in topology.switches)


def _extend(topology: Topology, permutation: Sequence[int]) -> NDArray[np.int32]:
    """Extend a rank permutation to the switches; where nothing fits, they stay where they are."""
    ranks, total = topology.num_ranks, topology.num_ranks + len(topology.switches)
    same = np.array([*permutation, *range(ranks, total)], dtype=np.int32)
    if ranks == total:
        return same
    kinds = switch_kinds(topology)
    mine = np.concatenate([np.array(permutation, dtype=np.int64), ranks + kinds])
    theirs = np.concatenate([np.arange(ranks, dtype=np.int64), ranks + kinds])
    for _ in range(MAX_TIES):
        mine, theirs = refine(topology, mine, theirs)
        by_mine, by_theirs = (np.argsort(side, kind="stable") for side in (mine, theirs))
        if not np.array_equal(mine[by_mine], theirs[by_theirs]):
            return same
        tied = _tied(topology, mine)
        if tied is None:
            image = np.empty(total, dtype=np.int32)
            image[by_mine] = by_theirs
            return image
        # Several switches look alike: tell the first pair apart and refine again.
        other = int(np.flatnonzero(theirs == mine[tied])[0])
        mine[tied] = theirs[other] = total
    return same


def _tied(topology: Topology, colours: NDArray[np.int64]) -> int | None:
    """Return the first vertex whose image is open and matters, or None.

    Vertices of one colour all of whose neighbours have colours of their own are
    interchangeable: any order will do.
    """
    edges = topology.edge_table
    shared = np.bincount(colours)[colours] > 1
    beside = np.zeros(len(colours), dtype=np.bool_)
    beside[edges.tail[shared[edges.head]]] = True
    beside[edges.head[shared[edges.tail]]] = True
    tied = np.flatnonzero(shared & beside)
    return int(tied[0]) if len(tied) else None


def switch_kinds(topology: Topology) -> NDArray[np.int64]:
    """Return a number for what every switch can do; equal for equal abilities."""
    return np.array(
        [4 * s.multicast + 2 * s.reduce + s.across_servers for s in topology.switches],
        dtype=np.int64,
    )


def refine(topology: Topology, *sides: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Refine the colours of the vertices of some copies of a topology, all together.

    Returns the coarsest colours, 0, 1, ..., under which equal vertices of all copies have equal
    neighbours over equal edges; finer than or equal to those given.
    """
    edges, total = topology.edge_table, len(sides[0])
    tail = np.concatenate([edges.tail + i * total for i in range(len(sides))])
    head = np.concatenate([edges.head + i * total for i in range(len(sides))])
    kind = np.tile(edges.cost.astype(np.uint64), len(sides)) * np.uint64(2)
    colours = np.unique(np.concatenate(sides), return_inverse=True)[1].astype(np.int64)
    count = int(colours.max(initial=-1)) + 1
    for _ in range(max(8, MAX_WORK // (len(tail) + len(colours)))):
        old = colours.astype(np.uint64)
        around = _mixed(old)
        np.add.at(around, tail, _mixed(_mixed(old[head]) + kind))
        np.add.at(around, head, _mixed(_mixed(old[tail]) + kind + np.uint64(1)))
        # The old colour leads, so that a class is only ever split.
        order = np.lexsort((around, colours))
        new = np.concatenate([[0], np.cumsum(
            (np.diff(colours[order]) != 0) | (np.diff(around[order]) != 0)
        )])  # fmt: skip
        colours = np.empty(len(old), dtype=np.int64)
        colours[order] = new
        if new[-1] + 1 == count:
            break
        count = int(new[-1]) + 1
    return list(colours.reshape(len(sides), total))


def _mixed(values: Colours) -> Colours:
    """Return hashes of 64-bit numbers (the finaliser of splitmix64)."""
    mixed = values + _ODD
    for shift, factor in zip(_SHIFTS, _MIX, strict=False):
        mixed = (mixed ^ (mixed >> shift)) * factor
    return mixed ^ (mixed >> _SHIFTS[2])

"""Random networks of stations, and random ways to do a collective on them with fans.

A way is a sequence of operations, each a set of arcs that carry one piece at a time: an out-tree
from a rank that has it, an in-tree to a rank that adds, or both with a switch as turn. What is said
of a way holds for schedules: its operations one after the other take the sum of their alphas and of
their busiest edges' times, and pieces that go different ways at once can't end before the busiest
edge is through. Every switch that copies or adds can do both, and leaves own values at home.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

import numpy as np

from taccl.bounds.net import Net, make_net
from taccl.collectives import Collective
from taccl.topology.graph import Edge, Multicast, Reduction, Switch, Topology, whole
from taccl.units import Time

ABLE = Switch("", Multicast(), Reduction())


def able(topology: Topology, *parts: str, through: bool = False) -> Topology:
    """Return a topology whose switches with some text in their names copy and add."""
    abilities = (Multicast(through), Reduction(through, through))
    return replace(topology, switches=tuple(
        replace(one, multicast=abilities[0], reduce=abilities[1])
        if any(part in one.name for part in parts) else one
        for one in topology.switches
    ))  # fmt: skip


def random_stations(seed: int) -> Topology:
    """Return two to six ranks, switches that can do more, and others, all of them connected."""
    chance = random.Random(f"stations {seed}")
    ranks, stations, plain = chance.randint(2, 6), chance.randint(1, 3), chance.randint(0, 2)
    total = ranks + stations + plain
    pairs: list[tuple[int, int]] = []
    for vertex in chance.sample(range(total), total):
        others = {end for pair in pairs for end in pair} - {vertex}
        if others:
            pairs.append((vertex, chance.choice(sorted(others))))
        elif not pairs and vertex != 0:
            pairs.append((vertex, 0))
    pairs += [tuple(chance.sample(range(total), 2)) for _ in range(chance.randint(1, total))]  # type: ignore[misc]
    edges: list[Edge] = []
    alike = chance.random() < 0.4
    for one, other in pairs:
        for tail, head in ((one, other), (other, one)):
            alpha = 1000 if alike else chance.choice((0, 500, 1000, 3000))
            beta = Fraction(10 if alike else chance.choice((5, 10, 10, 20, 40)))
            edges.append(Edge(len(edges), tail, head, alpha, None, beta, f"e{len(edges)}"))
    switches = [replace(ABLE, name=f"able{i}") for i in range(stations)]
    switches += [Switch(f"plain{i}") for i in range(plain)]
    home = tuple(min(rank, 1) if chance.random() < 0.5 else 0 for rank in range(ranks))
    home = home if set(home) in ({0}, {0, 1}) else (0,) * ranks
    return Topology(f"stations {seed}", ranks, tuple(switches), tuple(edges), home)


@dataclass(frozen=True)
class Way:
    """How one piece goes: rows of a net, operation by operation."""

    operations: tuple[tuple[int, ...], ...]

    def loads(self, net: Net) -> np.ndarray:
        """Return the time that a byte holds every edge."""
        return sum((_load(net, rows) for rows in self.operations), start=_load(net, ()))

    def costs(self, net: Net) -> np.ndarray:
        """Return what the operations take one after the other: picoseconds, and for each byte."""
        each = [(_alpha(net, rows) + 1, _load(net, rows).max()) for rows in self.operations]
        return np.array(each).sum(axis=0)


def _load(net: Net, rows: Sequence[int]) -> np.ndarray:
    edges = [net.edges[net.first[row] : net.first[row + 1]] for row in rows]
    uses = np.bincount(np.concatenate([np.zeros(0, np.int64), *edges]), minlength=len(_betas(net)))
    return uses * _betas(net)


@lru_cache(maxsize=2)
def _betas(net: Net) -> np.ndarray:
    return np.array([float(edge.beta or 0) for edge in net.topology.edges])


def _alpha(net: Net, rows: Sequence[int]) -> Time:
    """Return the longest way along the rows of a tree, or of two that meet."""
    longest: dict[int, Time] = {}
    for _ in rows:
        for row in rows:
            tail, head = int(net.src[row]), int(net.dst[row])
            far = longest.get(tail, 0) + int(net.alpha[row])
            longest[head] = max(longest.get(head, 0), far)
    return max(longest.values(), default=0)


def station_net(topology: Topology, collective: Collective) -> Net:
    """Return the arcs of a topology, and its links."""
    return make_net(whole(topology), collective, fans=True)


def _tree(
    net: Net, chance: random.Random, root: int, targets: Sequence[int], *, backwards: bool
) -> tuple[int, ...] | None:
    """Return rows from a root (towards it, backwards) to targets, past no other rank."""
    tail, head = (net.dst, net.src) if backwards else (net.src, net.dst)
    rows = list(range(len(tail)))
    chance.shuffle(rows)
    via: dict[int, int] = {}
    reached, frontier = {root}, [root]
    while frontier:
        vertex = frontier.pop(chance.randrange(len(frontier)))
        for row in rows:
            other = int(head[row])
            if int(tail[row]) == vertex and other not in reached:
                reached.add(other)
                via[other] = row
                if other >= net.num_ranks:
                    frontier.append(other)
    if not set(targets) <= reached:
        return None
    used: set[int] = set()
    for target in targets:
        while target != root and via[target] not in used:
            used.add(via[target])
            target = int(tail[via[target]])
    return tuple(sorted(used))


def spread(
    net: Net, chance: random.Random, root: int, targets: Sequence[int], *, backwards: bool = False
) -> Way:
    """Return a way from a rank to others, in one operation or several (backwards: to it)."""
    holders, wanted, operations = [root], set(targets) - {root}, []
    other_ranks = [rank for rank in range(net.num_ranks) if rank != root]
    while wanted:
        source = chance.choice(holders)
        some = chance.sample(sorted(wanted), chance.choice((1, len(wanted), len(wanted))))
        rows = _tree(net, chance, source, some, backwards=backwards)
        if rows is None:  # only past a rank
            some = [chance.choice(other_ranks)]
            rows = _tree(net, chance, source, some, backwards=backwards)
            if rows is None or some[0] in holders:
                continue
        operations.append(rows)
        holders += some
        wanted -= set(some)
    return Way(tuple(operations[::-1] if backwards else operations))


def all_reduce(net: Net, chance: random.Random) -> Way:
    """Return a way to add at one place, a switch perhaps, and to copy from there."""
    ranks = range(net.num_ranks)
    if chance.random() < 0.5:
        turn = chance.randrange(net.num_ranks, net.vertices)
        up = _tree(net, chance, turn, ranks, backwards=True)
        down = _tree(net, chance, turn, ranks, backwards=False)
        if up is not None and down is not None:
            return Way(((*up, *down),))
    root = chance.choice(ranks)
    before, after = (spread(net, chance, root, ranks, backwards=b) for b in (True, False))
    return Way(before.operations + after.operations)


def ways(net: Net, collective: Collective, chance: random.Random) -> Iterator[tuple[Way, ...]]:
    """Yield ways of all chunks of a collective that has one for every rank, or one."""
    ranks = range(net.num_ranks)
    while True:
        if collective.name == "allreduce":
            yield tuple(all_reduce(net, chance) for _ in range(collective.num_chunks))
        else:
            backwards = collective.reduces
            yield tuple(
                spread(net, chance, int(owner), ranks, backwards=backwards)
                for owner in collective.owner
            )

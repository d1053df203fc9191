"""Random networks of stations, and random ways to do a collective on them with fans.

A way is a sequence of operations, each a set of arcs that carry one piece at a time: an out-tree
from a rank that has it, an in-tree to a rank that adds, or both with a switch as turn. What is said
of a way holds for schedules: its operations one after the other take the sum of their alphas and of
their busiest edges' times, and pieces that go different ways at once can't end before the busiest
edge is through. Every switch that copies or adds can do both, and leaves own values at home.
"""

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

import numpy as np
from scipy.optimize import linprog

from taccl.bounds import ANY, any_curves
from taccl.bounds.net import Net, make_net
from taccl.collectives import Collective, build_collective
from taccl.prices.packing import Floats
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

    def loads(self, net: Net) -> Floats:
        """Return the time that a byte holds every edge."""
        return sum((_load(net, rows) for rows in self.operations), start=_load(net, ()))

    def costs(self, net: Net) -> Floats:
        """Return what the operations take one after the other: picoseconds, and for each byte."""
        each = [(_alpha(net, rows) + 1, _load(net, rows).max()) for rows in self.operations]
        costs: Floats = np.array(each).sum(axis=0)
        return costs


def _load(net: Net, rows: Sequence[int]) -> Floats:
    edges = [net.edges[net.first[row] : net.first[row + 1]] for row in rows]
    uses = np.bincount(np.concatenate([np.zeros(0, np.int64), *edges]), minlength=len(_betas(net)))
    load: Floats = uses * _betas(net)
    return load


@lru_cache(maxsize=2)
def _betas(net: Net) -> Floats:
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


COLLECTIVES = ("allreduce", "allgather", "reducescatter", "broadcast", "reduce")


def best_mix(loads: list[Floats]) -> float:
    """Return the least time of the busiest edge, over all mixes of some ways of a byte."""
    table = np.array(loads).T
    found = linprog(
        np.append(np.zeros(len(loads)), 1.0),
        A_ub=np.column_stack([table, -np.ones(len(table))]), b_ub=np.zeros(len(table)),
        A_eq=np.append(np.ones(len(loads)), 0.0)[None], b_eq=[1.0], method="highs",
    )  # fmt: skip
    return float(found.fun)


def judge_fans(seed: int, tries: int = 12) -> list[str]:
    """Return which bounds of a random network some random way of a collective beats."""
    chance, topology = random.Random(seed), random_stations(seed)
    wrong = []
    name = chance.choice(COLLECTIVES)
    collective = build_collective(name, topology.num_ranks, 1)
    net = station_net(topology, collective)
    curves = any_curves(whole(topology), collective, ANY)
    found = list(itertools.islice(ways(net, collective, chance), tries))
    share = 1 / collective.chunks_in_size
    loads = [np.sum([way.loads(net) for way in one], axis=0) * share for one in found]
    costs = [np.sum([way.costs(net) for way in one], axis=0) * (1, share) for one in found]
    mixed = best_mix(loads)
    for curve in curves:
        slope = float(min(slope for _, slope in curve.lines))
        if slope > mixed * (1 + 1e-9):
            wrong.append(f"{seed} {name} {curve.kind}: {slope} a byte, and {mixed} is reached")
        for size in (1, 100, 10_000):
            least = min(alpha + size * byte for alpha, byte in costs)
            if curve.at(size) > least + 1:
                wrong.append(f"{seed} {name} {curve.kind} of {size}: {curve.at(size)} > {least}")
    return wrong

"""What chunks cost at given prices: arcs that take resources, and the cheapest trees along them.

Prices and costs are integers, so that what is cheapest is exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from taccl.errors import NoScheduleError
from taccl.prices.arborescence import MOST, Arcs32, Ints, cheapest_from, contract, steiner_tree

Floats = NDArray[np.float64]

FINE = 1 << 30
"""Steps to which the largest price is rounded, where costs fit into 64 bits."""


@dataclass(frozen=True, eq=False)
class PricingProblem:
    """Arcs between `ranks` ranks, and what a unit sent along them takes of the resources.

    There are `num_resources` of these. After the ranks, and counted among them, come so many
    `helpers`, which units may pass and which want none. `tail` and `head` are int32, the ends of
    every arc. CSR: arc i takes ``load[u]`` (int64, not negative) of ``use_resource[u]`` for u in
    ``use_start[i] .. use_start[i+1]-1``.
    """

    ranks: int
    num_resources: int
    tail: Arcs32
    head: Arcs32
    use_start: Ints
    use_resource: NDArray[np.int32]
    load: Ints
    helpers: int = 0

    @cached_property
    def owner(self) -> Ints:
        """The arc of every use."""
        return np.repeat(np.arange(len(self.tail)), np.diff(self.use_start))

    def steps(self, prices: Floats) -> Ints:
        """Return prices as integers, so small that the cost of any tree fits into 64 bits."""
        dearest = np.bincount(self.owner, prices[self.use_resource] * self.load).max(initial=1.0)
        scale = min(FINE / prices.max(), MOST / (4 * self.ranks * float(dearest)))
        whole: Ints = np.floor(prices * scale).astype(np.int64)
        return whole

    def costs(self, prices: Ints) -> Ints:
        """Return what a unit pays on every arc."""
        costs = np.zeros(len(self.tail), dtype=np.int64)
        np.add.at(costs, self.owner, prices[self.use_resource] * self.load)
        return costs

    def loads(self, units: Ints) -> Floats:
        """Return what units on every arc take of every resource."""
        taken = units[self.owner].astype(np.float64) * self.load
        loads = np.zeros(self.num_resources)
        np.add.at(loads, self.use_resource, taken)
        return loads


@dataclass(frozen=True, eq=False)
class Kind:
    """Units that are alike, `count` of them.

    `roots`, ascending, and `targets` are ranks; no root is a target. They may use `arcs`,
    ascending; None: everything.
    """

    roots: Ints
    targets: Ints
    arcs: Ints | None
    count: int

    def is_free(self, ranks: int) -> bool:
        """Tell whether they go from one rank to all others along any arcs."""
        return self.arcs is None and len(self.roots) == 1 and len(self.targets) == ranks - 1


def cheapest(pricing: PricingProblem, kinds: Sequence[Kind], costs: Ints) -> tuple[int, Ints]:
    """Return what all units pay at least, and on every arc how many would be sent for about that.

    The amount is exact where all ranks are roots or targets; else it is a lower bound. `kinds` are
    the units of the `pricing` problem, and `costs` what each of them pays on every arc.

    Raises NoScheduleError when some target can't be reached.
    """
    total, units = 0, np.zeros(len(pricing.tail), dtype=np.int64)
    shared = [kind for kind in kinds if kind.is_free(pricing.ranks)]
    try:
        # These share one contraction; a lone one asks for less: only its root must reach everyone.
        if len(shared) > 1:
            forest = contract(pricing.ranks, pricing.tail, pricing.head, costs)
            counts = np.zeros(pricing.ranks, dtype=np.int64)
            for kind in shared:
                counts[kind.roots[0]] += kind.count
            pairs = zip(forest.costs().tolist(), counts.tolist(), strict=True)
            total, units = sum(cost * count for cost, count in pairs), forest.use(counts)
            kinds = [kind for kind in kinds if not kind.is_free(pricing.ranks)]
        for kind in kinds:
            cost, arcs = _cheapest_tree(pricing, kind, costs)
            total += kind.count * cost
            units[arcs] += kind.count
    except ValueError as error:
        raise NoScheduleError(
            "some rank can't be reached from another that has data for it",
            fix="add edges, or allow more links in the sketch",
        ) from error
    return total, units


def _cheapest_tree(pricing: PricingProblem, kind: Kind, costs: Ints) -> tuple[int, Ints]:
    """Return a cheapest tree; with helpers, or other ranks, a bound on its cost, and a tree."""
    arcs = np.arange(len(costs)) if kind.arcs is None else kind.arcs
    tail, head = pricing.tail[arcs], pricing.head[arcs]
    if len(kind.roots) + len(kind.targets) == pricing.ranks:
        cost, tree = cheapest_from(kind.roots, pricing.ranks, tail, head, costs[arcs])
        return cost, arcs[tree]
    if len(kind.roots) + len(kind.targets) + pricing.helpers == pricing.ranks:
        bound, tree = steiner_tree(
            kind.roots, kind.targets, pricing.ranks, tail, head, costs[arcs]
        )  # fmt: skip
        return bound, arcs[tree]
    distance, into = distances(pricing.ranks, kind.roots, tail, head, costs[arcs])
    if (distance[kind.targets] >= MOST).any():
        raise ValueError("some target can't be reached")
    used: set[int] = set()
    for target in kind.targets.tolist():
        arc = int(into[target])
        while arc >= 0 and arc not in used:
            used.add(arc)
            arc = int(into[tail[arc]])
    return int(distance[kind.targets].max()), arcs[sorted(used)]


def distances(
    ranks: int, roots: Ints, tail: Arcs32, head: Arcs32, length: Ints
) -> tuple[Ints, Ints]:  # fmt: skip
    """Return for each of so many `ranks` how far the nearest root is, and the last arc from there.

    `roots` are ranks, `tail`, `head` and `length` the columns of the arcs. ``MOST`` and -1 where
    there is no way; -1 at the roots.
    """
    distance, into = np.full(ranks, MOST, dtype=np.int64), np.full(ranks, -1, dtype=np.int64)
    distance[roots] = 0
    order = np.argsort(head, kind="stable")
    starts = np.flatnonzero(np.diff(head[order], prepend=-1))
    for _ in range(ranks if len(order) else 0):
        reached = np.minimum(distance[tail] + length, MOST)
        least = np.minimum.reduceat(reached[order], starts)
        ends = head[order[starts]]
        better = least < distance[ends]
        if not better.any():
            break
        distance[ends[better]] = least[better]
        # Only where the distance fell: arcs of length 0 would close circles elsewhere.
        fell = np.zeros(ranks, dtype=np.bool_)
        fell[ends[better]] = True
        last = np.flatnonzero(fell[head] & (reached == distance[head]))[::-1]
        into[head[last]] = last
    return distance, into

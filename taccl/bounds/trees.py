"""Prices of edges from the best fractional packing of spanning trees, either direction free.

Sets        t spanning trees of the ranks, o classes of edges that look alike, count[o] of each
Variables   x[t] >= 0   how much of all data goes along a tree;  T
Minimise    T
Subject to  (all)       sum_t x[t] = 1
            (capacity)  sum_t x[t] * load[t,o] <= count[o] * T

where load[t,o] is the time that a tree keeps edges of the class busy. Trees are added one at a
time: the cheapest at prices between the duals of the capacities and the best so far, which are
those whose cheapest tree is dearest (Wentges smoothing). Any prices make a valid bound.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taccl.bounds.distances import IntArray
from taccl.bounds.net import Net
from taccl.synth.packing import look_alike


FINE = 1 << 24
"""Steps that prices are rounded to, of the largest."""

MOST_LINKS = 200_000
MOST_CLASSES = 1_000
"""Above these the search would take seconds."""

ROUNDS = 60
"""Trees that are looked at."""

WARM = 40
"""The first trees, at most, come from raised prices, without a program solved in between."""

FEW_CLASSES = 8
"""Up to so many classes of edges, the duals need no smoothing."""

STEADY = 0.5
"""Share of the best prices so far in the next."""

CLOSE = 1e-5
"""Of the optimum: closer, another tree is not worth a round."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of ranks with links, in either direction.

    Parameters
    ----------
    num_ranks
        Ranks are ``0 .. num_ranks-1``.
    low, high
        The ranks of each pair.
    order, first
        The links of pair i are ``order[first[i]:first[i+1]]``.
    """

    num_ranks: int
    low: IntArray
    high: IntArray
    order: IntArray
    first: IntArray

    def cheapest(self, cost: IntArray) -> IntArray:
        """Return the link of each pair that costs least."""
        ranked = cost[self.order]
        size = np.diff(self.first, append=len(ranked))
        least = np.repeat(np.minimum.reduceat(ranked, self.first), size)
        at = np.flatnonzero(ranked == least)
        pair = np.repeat(np.arange(len(size)), size)[at]
        links: IntArray = self.order[at[np.unique(pair, return_index=True)[1]]]
        return links


def pairs_of(net: Net) -> Pairs:
    """Return the pairs of ranks that have a link."""
    key = np.minimum(net.src, net.dst) * net.num_ranks + np.maximum(net.src, net.dst)
    order = np.argsort(key, kind="stable")
    names, first = np.unique(key[order], return_index=True)
    return Pairs(net.num_ranks, names // net.num_ranks, names % net.num_ranks, order, first)


def cheapest_tree(pairs: Pairs, cost: IntArray) -> IntArray:
    """Return the links of a spanning tree of least cost (Kruskal's)."""
    links = pairs.cheapest(cost)
    order = np.argsort(cost[links], kind="stable")
    parent = list(range(pairs.num_ranks))
    chosen: list[int] = []
    ends = zip(pairs.low[order].tolist(), pairs.high[order].tolist(), strict=True)
    for place, (low, high) in zip(order.tolist(), ends, strict=True):
        low, high = _root(parent, low), _root(parent, high)
        if low != high:
            parent[low] = high
            chosen.append(place)
            if len(chosen) == pairs.num_ranks - 1:
                break
    return links[chosen]


def _root(parent: list[int], rank: int) -> int:
    while parent[rank] != rank:
        parent[rank] = parent[parent[rank]]
        rank = parent[rank]
    return rank


def tree_prices(net: Net, pairs: Pairs) -> Floats | None:
    """Return a price for a unit on every edge of the topology; None when it would take too long."""
    used = np.array(net.used)
    if len(net.src) > MOST_LINKS or not net.busy:
        return None
    classes = look_alike(net.topology, np.zeros(net.num_ranks), used)
    names, row = np.unique(classes, return_inverse=True)
    if len(names) > MOST_CLASSES:
        return None
    busy, row_of = np.zeros(len(net.topology.edges)), np.zeros(len(net.topology.edges), np.int64)
    busy[list(net.busy)] = [float(time) for time in net.busy.values()]
    row_of[used] = row
    counts = np.bincount(row).astype(np.float64)
    owner = np.repeat(np.arange(len(net.src)), np.diff(net.first))
    dual = best = np.full(len(names), 1 / counts.sum())
    dearest, steady = 0.0, STEADY if len(names) > FEW_CLASSES else 0.0
    columns: list[Floats] = []
    for number in range(ROUNDS):
        prices = dual[row_of] * busy
        steps = np.rint(prices / prices.max() * FINE).astype(np.int64)
        cost = np.add.reduceat(steps[net.edges], net.first[:-1])
        tree = np.zeros(len(net.src), dtype=np.bool_)
        tree[cheapest_tree(pairs, cost)] = True
        edges = net.edges[tree[owner]]
        price = float(prices[edges].sum())
        if price > dearest:
            best, dearest = dual, price
        load = np.bincount(row_of[edges], weights=busy[edges], minlength=len(names))
        columns.append(load.astype(np.float64))
        if number < len(names) and number < WARM:
            # Dearer where this tree is: the first trees differ before they are weighed up.
            dual = dual * np.exp(load / counts / (load / counts).max())
            dual /= counts @ dual
            continue
        found = _master(np.array(columns), counts)
        if found is None or found[0] <= dearest * (1 + CLOSE):
            break
        dual = steady * best + (1 - steady) * found[1]
    return best[row_of] * busy


def _master(loads: Floats, counts: Floats) -> tuple[float, Floats] | None:
    """Return the time of the best mix of trees, and the dual of each capacity."""
    from scipy.optimize import linprog

    trees, rows = loads.shape
    scale = loads.max()
    result = linprog(
        np.array([*[0.0] * trees, 1.0]),
        A_ub=np.hstack([loads.T / scale, -counts[:, None]]), b_ub=np.zeros(rows),
        A_eq=np.array([[*[1.0] * trees, 0.0]]), b_eq=np.array([1.0]), method="highs",
    )  # fmt: skip
    if result.status != 0:
        return None
    return float(result.fun) * scale, np.maximum(-result.ineqlin.marginals, 0.0)

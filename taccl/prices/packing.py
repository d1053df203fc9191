"""What each resource is worth: an optimal fractional packing of spanning trees, and its prices.

Sets        p plans: a tree for every representative chunk; r resources (orbits of edges)
Variables   x[p] >= 0   the part of every chunk that goes as planned;  T
Minimise    T
Subject to  (sent)    sum_p x[p] = 1
            (loaded)  idle[r] + sum_p load[p,r] * x[p] <= T

where idle[r] is how long r waits in any case, for data from the nearest root and after its last
message, but no longer than everything takes at least.

Plans are made as they are needed: with the duals of *loaded* as prices, summing to 1, the plan of
cheapest trees either improves the packing or proves it optimal. With many rows these prices jump
about, so the first plans answer prices that grow smoothly with the load of all plans before.
Resources that look alike share a row at first; then every one has its own for a few more rounds,
since looks may deceive. What chunks cost at given prices, the cheapest trees along arcs that take
resources, is exact: these prices and costs are integers.

By weak duality, whatever the prices, cheapest trees cost no more than what any schedule holds the
resources at these prices; the proof is evaluated in integers. Where the group acts freely, the
load of the representatives on an orbit is that of all chunks on each of its edges; and a schedule
without symmetry has loads whose average over the group is such a packing, so that the bound holds
for it, too.

References
----------
J. Edmonds, "Edge-disjoint branchings", 1973. P. Wentges, "Weighted Dantzig-Wolfe decomposition
for linear mixed-integer programming", 1997 (smoothed prices). M. Grohe et al., "Dimension reduction
via colour refinement", 2014 (equal prices where things look alike). Y. Freund, R. Schapire,
"Adaptive game playing using multiplicative weights", 1999 (prices that follow the load). L. Zhao et
al., "ForestColl: Throughput-optimal collective communications on heterogeneous network fabrics",
2024 (schedules along such packings).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taccl.errors import NoScheduleError
from taccl.model.routes import Arcs, Wanted
from taccl.prices.arborescence import MOST, Arcs32, Ints, cheapest_from, contract, steiner_tree
from taccl.timing.deadline import Deadline
from taccl.topology.graph import Topology
from taccl.topology.symmetry import refine, switch_kinds
from taccl.units import Time

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


CLOSE = 1e-6
"""Relative gap between the packing and its bound at which the search ends."""

FEW = 8
"""Rows up to which linear programs alone soon find the prices."""

WARM = 80
"""Plans made before the first linear program of more rows."""

KEPT = 0.3
"""Weight of the best prices so far in the prices tried next, with more rows than ``FEW``."""

PATIENCE = 8
"""Rounds without a better bound after which rows of single resources are given up."""

LONG = 30
"""The same, of rows of resources that look alike."""


@dataclass(frozen=True, eq=False)
class Packing:
    """Prices of resources, and what they prove.

    `prices` are float64, one for each resource number of the arcs, adding up to 1: what a
    picosecond of it is worth. `bound` is picoseconds that no schedule with one chunk to a message
    can end before, exact; `load` those in which the best fractional packing found keeps every
    resource busy or idle. Trees were made `rounds` times.
    """

    prices: Floats
    bound: Time
    load: float
    rounds: int


@dataclass(frozen=True, eq=False)
class PackingInstance:
    """What is to be packed: the arcs of `pricing`, and the `kinds` that are sent along them.

    `idle` (int64) is picoseconds that every resource waits, if it is used at all, and at most what
    everything takes at least. `alike` and `orbit` are numbers from 0: equal for resources that look
    alike, and that are known to be.
    """

    pricing: PricingProblem
    kinds: Sequence[Kind]
    idle: Ints
    alike: Ints
    orbit: Ints


def pack(arcs: Arcs, wanted: Wanted, *, seconds: float = 2.0) -> Packing:
    """Return prices of the resources that the representative chunks of a problem compete for.

    `arcs` are what its chunks may use, `wanted` what they need; the search stops after so many
    `seconds` with what there is.

    Raises NoScheduleError when some target can't be reached.
    """
    pricing = PricingProblem(
        arcs.problem.topology.num_ranks, arcs.num_resources, arcs.tail, arcs.head,
        arcs.use_start, arcs.use_resource, arcs.held(),
    )  # fmt: skip
    kinds = kinds_of(wanted)
    if not kinds or not pricing.load.any():
        even = np.full(pricing.num_resources, 1 / max(pricing.num_resources, 1))
        return Packing(even, 0, 0.0, 0)
    orbit = arcs.problem.group.rank_orbit
    roles = np.zeros(pricing.ranks)  # by what starts and ends at each rank
    for kind in kinds:
        roles[kind.roots] += kind.count / len(kind.roots)
        roles[kind.targets] += kind.count / 1024
    role = np.bincount(orbit, roles, minlength=pricing.ranks)[orbit]
    alike = look_alike(arcs.problem.topology, role, arcs.resources)
    alone = np.arange(pricing.num_resources)
    instance = PackingInstance(pricing, kinds, _idle(arcs, kinds), alike, alone)
    prices, load, rounds = best_prices(instance, seconds)
    return Packing(prices, least_time(instance, prices), load, rounds)


def kinds_of(wanted: Wanted) -> tuple[Kind, ...]:
    """Return the representatives by what they need, those without a target left out."""
    counts: dict[tuple[bytes, bytes, int], int] = {}
    rows: dict[tuple[bytes, bytes, int], int] = {}
    for row, kind in enumerate(wanted.kind.tolist()):
        if wanted.targets[row].any():
            key = (wanted.roots[row].tobytes(), wanted.targets[row].tobytes(), kind)
            counts[key] = counts.get(key, 0) + 1
            rows.setdefault(key, row)
    return tuple(kind_of(wanted, row, counts[key]) for key, row in rows.items())


def kind_of(wanted: Wanted, row: int, count: int) -> Kind:
    """Return what the representative in a `row` of what is `wanted` needs, for so many alike."""
    allowed = wanted.allowed[wanted.kind[row]]
    return Kind(
        np.flatnonzero(wanted.roots[row]), np.flatnonzero(wanted.targets[row]),
        None if allowed.all() else np.flatnonzero(allowed), count,
    )  # fmt: skip


def look_alike(topology: Topology, role: NDArray[Any], resources: NDArray[Any]) -> Ints:
    """Return a number for each of some `resources`, by costs and what can be seen from the ends.

    A resource is given by an edge of the `topology`; `role` is what tells ranks apart, a number
    each.
    """
    roles = np.unique(role, return_inverse=True)[1].astype(np.int64)
    kinds = np.concatenate([roles, topology.num_ranks + switch_kinds(topology)])
    (colour,), edges = refine(topology, kinds), topology.edge_table
    looks = np.stack([colour[edges.tail], colour[edges.head], edges.cost])[:, resources]
    numbers: Ints = np.unique(looks, axis=1, return_inverse=True)[1].ravel()
    return numbers


def _idle(arcs: Arcs, kinds: Sequence[Kind]) -> Ints:
    """Return how long every resource waits for data, and for its last message to arrive."""
    arrival, held, ranks = arcs.arrival(), arcs.held(), arcs.problem.topology.num_ranks
    roots = np.unique(np.concatenate([kind.roots for kind in kinds]))
    soonest, _ = distances(ranks, roots, arcs.tail, arcs.head, arrival)
    one, _ = distances(ranks, kinds[0].roots, arcs.tail, arcs.head, arrival)
    whole = int(one[kinds[0].targets].max())
    owner = np.repeat(np.arange(len(arcs)), np.diff(arcs.use_start))
    before, after = (np.full(arcs.num_resources, whole, dtype=np.int64) for _ in range(2))
    np.minimum.at(before, arcs.use_resource, soonest[arcs.tail[owner]])
    np.minimum.at(after, arcs.use_resource, arrival[owner] - held)
    return np.minimum(before, whole - after) + after


def best_prices(instance: PackingInstance, seconds: float) -> tuple[Floats, float, int]:
    """Return the prices that prove most, adding up to 1, the packing's time, and the rounds.

    The search for prices of the `instance` ends after so many `seconds`.
    """
    rows = instance.pricing.num_resources
    search = _Search(instance, instance.alike, np.full(rows, 1 / rows))
    left = search.run(seconds, LONG)
    if search.rows > int(instance.orbit.max()):
        return search.best, search.packed, search.rounds
    single = _Search(instance, instance.orbit, search.best)
    single.run(left, PATIENCE)
    packed = min(search.packed, single.packed)  # of the first only if no looks deceive
    return single.best, max(packed, single.proved), search.rounds + single.rounds


class _Search:
    """Column generation with one row for each class of resources."""

    def __init__(self, instance: PackingInstance, alike: Ints, prices: Floats) -> None:
        self._pricing, self._kinds, self._alike = instance.pricing, instance.kinds, alike
        self._size = np.bincount(alike).astype(np.float64)
        self._unit = float(max(int(instance.pricing.load.max()), 1))
        self._idle = np.bincount(alike, instance.idle / self._unit) / self._size
        self._plans: list[Floats] = []
        self._proved = -1.0
        self.rows = len(self._size)
        self.rounds = 0
        self.best = prices
        self.packed = float("inf")

    def run(self, seconds: float, patience: int) -> float:
        """Search until the gap closes, nothing improves, or time is up; return the time left.

        Time starts after the first round, which may load and compile a lot.
        """
        grown = self._price(self.best)
        packed, duals = self._pack()
        clock = Deadline.after(seconds)
        if self.rows > FEW:
            self._warm_up(clock.share(0.5))
            packed, duals = self._pack()
        prices, waited = self.best, 0
        while packed - self._proved > CLOSE * packed and not clock.over:
            if waited > patience or (not grown and prices is duals):
                break
            smooth = grown and self.rows > FEW
            prices = KEPT * self.best + (1 - KEPT) * duals if smooth else duals
            before = self._proved
            grown = self._price(prices)
            waited = 0 if self._proved > before * (1 + CLOSE) else waited + 1
            if grown:
                packed, duals = self._pack()
        self.packed = packed * self._unit
        return clock.left

    @property
    def proved(self) -> float:
        """The time that the best prices prove."""
        return self._proved * self._unit

    def _warm_up(self, clock: Deadline) -> None:
        """Make plans for prices that grow with the load of all plans so far."""
        start = np.log(np.maximum(self.best, 1e-9 / len(self.best)))
        total = self._plans[0] + self._idle
        for count in range(1, WARM):
            if clock.over or not total.any():
                return
            weights = start + np.sqrt(count) * (total / total.max())[self._alike]
            prices = np.exp(weights - weights.max())
            plan = self._plan(prices / prices.sum())
            total = total + plan + self._idle

    def _price(self, prices: Floats) -> bool:
        """Add the plan that is cheapest; tell whether it is new."""
        known = len(self._plans)
        self._plan(prices)
        return len(self._plans) > known

    def _plan(self, prices: Floats) -> Floats:
        """Return the load of the plan that is cheapest, and keep it and what it proves."""
        self.rounds += 1
        steps = self._pricing.steps(prices)
        cost, units = cheapest(self._pricing, self._kinds, self._pricing.costs(steps))
        idle = float(prices @ self._idle[self._alike])
        proved = cost / max(int(steps.sum()), 1) / self._unit + idle
        if proved > self._proved:
            self._proved, self.best = proved, prices
        load = self._pricing.loads(units) / self._unit
        plan: Floats = np.bincount(self._alike, load) / self._size
        if not any(np.array_equal(plan, known) for known in self._plans):
            self._plans.append(plan)
        return plan

    def _pack(self) -> tuple[float, Floats]:
        """Return the time of the best packing of the plans so far, and a price per resource."""
        found = best_mix(np.array(self._plans), np.ones(self.rows), self._idle)
        if found is None or not (found[1] > 0).any():
            return float("inf"), self.best
        time, duals = found
        prices: Floats = (duals / duals.sum() / self._size)[self._alike]
        return time, prices


def best_mix(loads: Floats, widths: Floats, idle: Floats) -> tuple[float, Floats] | None:
    """Return the time of the best mix of plans, and the dual value of each resource.

    `loads` are (plans, resources) time that each plan keeps each resource busy, `widths` how many
    there are of each resource, and `idle` the time that each waits in any case.
    """
    from scipy.optimize import linprog

    plans = len(loads)
    result = linprog(
        np.append(np.zeros(plans), 1.0),
        A_ub=np.column_stack([*loads, -widths]), b_ub=-idle,
        A_eq=np.append(np.ones(plans), 0.0)[None], b_eq=[1.0], method="highs",
    )  # fmt: skip
    if result.status != 0:
        return None
    return float(result.fun), np.maximum(-result.ineqlin.marginals, 0.0)


def least_time(instance: PackingInstance, prices: Floats) -> Time:
    """Return the picoseconds that some `prices` prove for an `instance`, exact whatever they are.

    By a time T a resource can have been held for T - idle, if it has been at all. So the sum of
    price * max(0, T - idle) is at least what all trees cost.
    """
    pricing = instance.pricing
    steps = pricing.steps(prices)
    cost, _ = cheapest(pricing, instance.kinds, pricing.costs(steps))
    order = np.argsort(instance.idle, kind="stable")
    least, spent, weight = Fraction(0), 0, 0
    waits, weights = instance.idle[order].tolist(), steps[order].tolist()
    for place, (idle, price) in enumerate(zip(waits, weights, strict=True)):
        spent, weight = spent + price * idle, weight + price
        least = Fraction(cost + spent, max(weight, 1))
        if weight and place + 1 < len(waits) and least <= waits[place + 1]:
            break
    return -(-least.numerator // least.denominator)

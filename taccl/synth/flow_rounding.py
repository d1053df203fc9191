"""Whole chunks on the paths of a flow: one path for each, and the busiest resource kept light.

Paths that the flow gives whole chunks are taken. For the others a small program chooses among the
flow's paths.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from taccl.synth.clock import Clock
from taccl.synth.flow_program import TINY, Floats, Net, Way

MAX_COUNTED = 5000
"""Ways up to which these are chosen together where no clock may end the search."""


def rounded(
    network: Net,
    ways: Sequence[tuple[tuple[int, ...], list[tuple[Way, float]]]],
    clock: Clock,
) -> list[tuple[int, Way]]:
    """Return one way for every chunk, so that no resource is much busier than in the flow."""
    load = np.zeros(network.arcs.num_resources)
    chosen: list[tuple[int, Way]] = []
    broken: list[Broken] = []
    for chunks, found in ways:
        left = list(chunks)
        parts = []
        for way, amount in found:
            whole = min(int(amount + TINY * 10), len(left))
            for _ in range(whole):
                chosen.append((left.pop(), way))
                _load(network, load, way)
            if amount - whole > TINY * 10:
                parts.append((way, amount - whole))
        if left:
            broken.append((left, parts or found))
    for (left, options), counts in zip(broken, _shares(network, load, broken, clock), strict=True):
        for (way, _), count in zip(options, counts, strict=True):
            chosen += [(left.pop(), way) for _ in range(count)]
    return chosen


Broken = tuple[list[int], list[tuple[Way, float]]]
"""Chunks, and the ways that the flow splits them over."""


def _shares(network: Net, load: Floats, broken: Sequence[Broken], clock: Clock) -> list[list[int]]:
    """Return how many chunks take each way: the busiest resource as light as can be found.

    Variables   n[b,w] whole >= 0, chunks of b on way w;  T
    Minimise    T
    Subject to  sum over w of n[b,w] is the chunks of b; load + what the ways add <= T
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

    rows, columns, times = [], [], []
    owner: list[int] = []
    for number, (_, options) in enumerate(broken):
        for way, _ in options:
            for arc in way:
                for resource, held in network.uses(arc):
                    rows.append(resource)
                    columns.append(len(owner))
                    times.append(held)
            owner.append(number)
    if not owner:
        return []
    ways, resources = len(owner), len(load)
    counted = clock.options.deterministic
    if counted and ways > MAX_COUNTED:
        return _one_by_one(network, load, broken)
    capacity = coo_array(
        (times + [-1.0] * resources,
         (rows + list(range(resources)), columns + [ways] * resources)),
        shape=(resources, ways + 1),
    ).tocsr()  # fmt: skip
    sums = coo_array((np.ones(ways), (owner, np.arange(ways))), shape=(len(broken), ways + 1))
    counts = np.array([len(left) for left, _ in broken], dtype=np.float64)
    limit = {"node_limit": COUNTED} if counted else {"time_limit": max(0.1, clock.left / 4)}
    found = milp(
        np.append(np.zeros(ways), 1.0),
        integrality=np.append(np.ones(ways), 0),
        bounds=Bounds(0, np.append(counts[owner], np.inf)),
        constraints=[
            LinearConstraint(capacity, ub=-load),
            LinearConstraint(sums.tocsr(), counts, counts),
        ],
        options={"mip_rel_gap": 1e-4, **limit},
    )
    if found.x is None:
        return _one_by_one(network, load, broken)
    whole = np.rint(found.x[:-1]).astype(int).tolist()
    shares: list[list[int]] = [[] for _ in broken]
    for number, count in zip(owner, whole, strict=True):
        shares[number].append(count)
    return shares


def _one_by_one(network: Net, load: Floats, broken: Sequence[Broken]) -> list[list[int]]:
    """Return how many chunks take each way, each the one that is least busy so far."""
    shares = []
    for left, options in broken:
        counts = [0] * len(options)
        for _ in left:
            best = min(range(len(options)), key=lambda w: _peak(network, load, options[w][0]))
            counts[best] += 1
            _load(network, load, options[best][0])
        shares.append(counts)
    return shares


def _load(network: Net, load: Floats, way: Way, sign: int = 1) -> None:
    for arc in way:
        for resource, held in network.uses(arc):
            load[resource] += sign * held


def _peak(network: Net, load: Floats, way: Way) -> tuple[float, int]:
    """Return the load of the busiest resource of a way after one more chunk."""
    more: dict[int, float] = defaultdict(float)
    for arc in way:
        for resource, held in network.uses(arc):
            more[resource] += held
    return max(float(load[resource]) + time for resource, time in more.items()), len(way)

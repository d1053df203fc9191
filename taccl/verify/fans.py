"""What fans cost and whether their switches can do it, for the judge: computed anew, arc by arc.

Nothing is taken from the columns of the table but turns and arcs, and nothing from the code that
computed the times.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from taccl.topology.fans import Fan, wrong_fan
from taccl.topology.graph import Topology
from taccl.units import Time
from taccl.verify.sends import MAX_FINDINGS, Finding, Sends


@dataclass(frozen=True, slots=True)
class BatchCost:
    """What a batch of fans costs: its `time` from start to end, and how long it `holds` edges."""

    time: Time
    holds: dict[int, Time]


def way(topology: Topology, arcs: tuple[int, ...], turn: int, *, inward: bool) -> tuple[Time, Time]:
    """Return alpha and overhead of the longest way from or to a leaf of a tree, and its turn.

    `arcs` are those of the tree, on which messages go `inward` to the `turn` or away from it. A
    switch between the ends of a way adds the alpha of its engine; the turn does not.
    """
    table, ranks = topology.arcs, topology.num_ranks
    following = defaultdict(list)
    for arc in arcs:
        ends = int(table.src[arc]), int(table.dst[arc])
        following[ends[inward]].append((ends[not inward], arc))
    found = [(0, 0)]
    todo = [(turn, 0, 0)]
    while todo:
        at, alpha, overhead = todo.pop()
        for end, arc in following[at]:
            more = alpha + int(table.alpha[arc]), overhead + int(table.overhead[arc])
            if end < ranks:
                found.append(more)
            else:
                todo.append((end, more[0] + topology.switches[end - ranks].engine.alpha, more[1]))
    return max(alpha for alpha, _ in found), max(overhead for _, overhead in found)


def batch_cost(topology: Topology, size: Fraction, carried: dict[Fan, int]) -> BatchCost:
    """Return what a batch costs that has so many chunks of `size` bytes `carried` by each fan."""
    ranks, table = topology.num_ranks, topology.arcs
    alpha = overhead = 0
    load: dict[int, Fraction] = defaultdict(Fraction)
    for fan, chunks in carried.items():
        into = way(topology, fan.into, fan.turn, inward=True)
        out = way(topology, fan.out, fan.turn, inward=False)
        met = {int(end[arc]) for arc in (*fan.into, *fan.out) for end in (table.src, table.dst)}
        engines = [topology.switches[vertex - ranks].engine for vertex in met if vertex >= ranks]
        latency = into[0] + out[0]
        if fan.turn >= ranks:
            latency += topology.switches[fan.turn - ranks].engine.alpha
        windows = [latency / (e.window[0] * e.window[1]) for e in engines if e.window is not None]
        for arc in (*fan.into, *fan.out):
            for number in table.edges_of(arc):
                edge = topology.edges[number]
                ends = [v - ranks for v in (edge.tail, edge.head) if v >= ranks]
                betas = [
                    topology.switches[v].engine.beta
                    for v in ends
                    if topology.switches[v].is_station
                ]
                rate = max([Fraction(0), *filter(None, (edge.beta, *betas, *windows))])
                load[number] += rate * chunks * size
        alpha, overhead = max(alpha, latency), max(overhead, into[1] + out[1])
    busy = {edge: math.ceil(time) for edge, time in load.items() if time}
    longest = max(busy.values(), default=0)
    if len(carried) > 1:
        busy = dict.fromkeys(busy, longest)
    return BatchCost(alpha + longest, {edge: overhead + time for edge, time in busy.items()})


def batch_costs(sends: Sends) -> dict[int, BatchCost]:
    """Return what each message of fans costs, by its number."""
    schedule, count = sends.schedule, len(sends.schedule.topology.links)
    rows = np.flatnonzero(schedule.link >= count)
    pairs = np.stack([sends.message[rows], schedule.link[rows] - count])
    (messages, fans), chunks = np.unique(pairs, axis=1, return_counts=True)
    carried: dict[int, dict[int, int]] = defaultdict(dict)
    for message, fan, number in zip(messages.tolist(), fans.tolist(), chunks.tolist(), strict=True):
        carried[message][fan] = number
    known: dict[tuple[tuple[int, int], ...], BatchCost] = {}
    costs = {}
    for message, each in carried.items():
        key = tuple(sorted(each.items()))
        if key not in known:
            loads: Counter[Fan] = Counter()
            for fan, number in key:
                loads[schedule.fans[fan]] += number
            known[key] = batch_cost(schedule.topology, schedule.chunk_size, dict(loads))
        costs[message] = known[key]
    return costs


def fan(sends: Sends) -> Iterator[Finding]:
    """Check that every fan is what its switches can do, and that what comes together is added."""
    schedule, count = sends.schedule, len(sends.schedule.topology.links)
    for number, each in enumerate(schedule.fans):
        if wrong := wrong_fan(schedule.topology, each):
            yield None, f"fan {number}: {wrong}"
    adds = np.array([bool(each.into) for each in schedule.fans], dtype=np.bool_)
    rows = np.flatnonzero(schedule.link >= count)
    bare = rows[adds[schedule.link[rows] - count] & ~schedule.reduce[rows]]
    for row in bare[:MAX_FINDINGS].tolist():
        yield row, f"{sends.name(row)} joins several values and does not add them"


def groups(sends: Sends) -> Iterator[Finding]:
    """Check how many trees, and sets of ranks, each switch serves that has a limit."""
    schedule, topology = sends.schedule, sends.schedule.topology
    count, table = len(topology.links), topology.arcs
    trees: dict[int, set[Fan]] = defaultdict(set)
    served: dict[int, set[frozenset[int]]] = defaultdict(set)
    for number in np.unique(schedule.link[schedule.link >= count] - count).tolist():
        each = schedule.fans[number]
        joins = Counter(table.dst[list(each.into)].tolist())
        splits = Counter(table.src[list(each.out)].tolist())
        ends = (table.src[list(each.into)], table.dst[list(each.out)], [each.turn])
        ranks = frozenset(v for end in ends for v in map(int, end) if v < topology.num_ranks)
        for vertex in {v for v, n in (joins + splits).items() if n > 1 or v == each.turn}:
            trees[vertex].add(each)
            served[vertex].add(ranks)
    for vertex, switch in enumerate(topology.switches, topology.num_ranks):
        for limit, found, what in (
            (switch.trees, trees[vertex], "trees"), (switch.groups, served[vertex], "groups"),
        ):  # fmt: skip
            if limit is not None and len(found) > limit:
                yield None, f"{switch.name} serves {len(found)} {what}, and can {limit}"

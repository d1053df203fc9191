"""Bounds where switches copy and add: known machines, random plans, and what a solver may say."""

import heapq
import itertools
import random
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from taccl.bounds import (
    ANY,
    ASSUMED_OF_SWITCHES,
    POINT_TO_POINT,
    Curve,
    any_bounds,
    any_curves,
    any_of,
    best,
    packing,
    reduce,
)
from taccl.bounds.arrival_curves import fluid
from taccl.bounds.cut import edges_used
from taccl.bounds.net import Task
from taccl.bounds.reduce import partition_crossings
from taccl.collectives import build_collective
from taccl.prices.arborescence import cheapest_from, steiner_tree
from taccl.topology.file import load_topology, shipped_topologies
from taccl.topology.graph import Topology, whole
from tests.bounds.fan_plans import able, judge_fans, station_net
from tests.sweep import for_each


def per_megabyte(topology: Topology, collective: str, world: str) -> float:
    """Return the binding bound for large sizes, in us for each MB of size."""
    curves = any_curves(whole(topology), collective, world)
    return max(float(min(slope for _, slope in curve.lines)) for curve in curves)


NVSWITCH, RAILS = "nvswitch", "rail"
KNOWN = [  # machine, servers, what can do more, own through, without, with
    ("dgx-h100", 1, (NVSWITCH,), False, 3.8889, 2.2222),
    ("dgx-h100", 1, (NVSWITCH,), True, 3.8889, 2.5),
    ("dgx-h100", 2, (NVSWITCH,), True, 3.75, 2.5),
    ("dgx-h100", 2, (NVSWITCH, RAILS), True, 3.75, 2.5),
    ("dgx-h100", 4, (NVSWITCH,), True, 3.875, 3.75),
    ("dgx-h100", 4, (NVSWITCH, RAILS), True, 3.875, 2.5),
    ("dgx-h100", 4, (RAILS,), False, 3.875, 3.6905),
    ("fat-tree:4", None, ("edge",), False, 37.5, 20.0),
    ("fat-tree:4", None, ("",), False, 37.5, 20.0),
    ("leaf-spine:4x8x2", None, ("leaf",), False, 38.75, 20.0),
    ("leaf-spine:4x8x2", None, ("",), False, 38.75, 20.0),
]
GATHERED = {("dgx-h100", 1): 1.9444, ("dgx-h100", 2): 1.875, ("dgx-h100", 4): 1.9375,
            ("fat-tree:4", None): 18.75, ("leaf-spine:4x8x2", None): 19.375}  # fmt: skip


@for_each("row", range(len(KNOWN)), quick=4)
def test_known_machines_in_both_worlds(row: int) -> None:
    name, nodes, parts, through, without, with_fans = KNOWN[row]
    plain = load_topology(name, nodes=nodes).point_to_point()
    topology = able(plain, *parts, through=through)
    assert topology.copies_or_adds
    assert not plain.copies_or_adds
    for collective, point_to_point, anything in (
        ("allreduce", without, with_fans),
        ("allgather", GATHERED[name, nodes], GATHERED[name, nodes]),  # no bandwidth is won
    ):
        assert round(per_megabyte(topology, collective, ANY), 4) == anything
        assert round(per_megabyte(topology, collective, POINT_TO_POINT), 4) == point_to_point
        assert round(per_megabyte(plain, collective, ANY), 4) == point_to_point


SMALL = ("dgx2", "dgx-h100", "hub", "fat-tree", "mi300x", "pcie-a100")


@for_each("name", shipped_topologies())
def test_what_is_asked_for_point_to_point_does_not_see_what_switches_can_do(name: str) -> None:
    plain = load_topology(name).point_to_point()
    for collective in ("allreduce", "broadcast") if name in SMALL else ("allreduce",):
        first, *others = (
            any_curves(whole(topology), collective, world)
            for topology, world in (
                (plain, ANY), (plain, POINT_TO_POINT), (able(plain, ""), POINT_TO_POINT),
                (load_topology(name), POINT_TO_POINT),
            )
        )  # fmt: skip
        assert others == [first] * 3


def test_bounds_are_named_after_their_world() -> None:
    plain = load_topology("hub:4")
    worlds = {
        (topology is plain, world): any_bounds(whole(topology), "allreduce", 1000, world=world)[
            0
        ].world
        for topology in (plain, able(plain, ""))
        for world in (ANY, POINT_TO_POINT)
    }
    assert worlds == {(True, ANY): ANY, (True, POINT_TO_POINT): ANY,
                      (False, ANY): ANY, (False, POINT_TO_POINT): POINT_TO_POINT}  # fmt: skip
    assert any_of("port", POINT_TO_POINT) == "any point-to-point algorithm"
    assert "copy and add" in ASSUMED_OF_SWITCHES


def test_no_bound_is_above_what_random_fans_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "SECONDS", 0.1)
    assert [wrong for seed in range(30) for wrong in judge_fans(seed)] == []


def test_whatever_the_solver_says_what_is_proved_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    topology = able(load_topology("leaf-spine:2x2x1"), "leaf")
    net = station_net(topology, build_collective("allreduce", 4, 1))
    some, others, solve = (0, 1, 2), (1, 2, 3), reduce._solve

    def slope() -> float:
        (crossing,) = partition_crossings(net, [Task(some, some, 1), Task(others, others, 2)])
        curve = fluid("reduce", crossing.gates, crossing.share)
        assert curve is not None
        return float(min(slope for _, slope in curve.lines))

    true = slope()
    random = np.random.default_rng(1)

    def lies(arcs: reduce.Arcs, rows: list[reduce.Row], shares: list[Fraction]) -> object:
        found = solve(arcs, rows, shares)
        assert found is not None
        return tuple(each * random.uniform(0, 3, each.shape) for each in found)

    monkeypatch.setattr(reduce, "_solve", lies)
    for _ in range(20):
        assert 0 < slope() <= true * (1 + 1e-6)


def test_of_too_many_arcs_servers_still_tell_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(machine: str, nodes: int, most: int) -> dict[str, int]:
        monkeypatch.setattr(reduce, "MOST_ARCS", most)
        topology = load_topology(machine, nodes=nodes if nodes > 1 else None)
        bounds = any_bounds(whole(topology), "allreduce", 10**9, world=ANY)
        return {bound.kind: bound.time for bound in bounds}

    for machine, nodes in (
        ("dgx-h100", 2), ("dgx-h100", 8), ("h100-sharp", 1), ("gb200-nvl72", 1),
        ("adding-leaves", 1),
    ):  # fmt: skip
        solved, few = found(machine, nodes, 40_000), found(machine, nodes, 1)
        assert 0 < few["reduce"] <= 1.000001 * solved["reduce"], machine
    # Of 8 servers with 8 NICs of 50 GB/s each the 14 messages are all that counts.
    few = found("dgx-h100", 8, 1)
    assert few["reduce"] == found("dgx-h100", 8, 40_000)["reduce"] > 1.7 * few["port"]
    assert few["reduce"] == 1_700_000 + 14 * 10**9 * 10**12 // (64 * 50 * 10**9)


def test_helpers_may_be_ranks_that_want_nothing() -> None:
    """Two of four ranks on a wire that only the others join: these pass on what they send."""
    topology = load_topology("ring:4")
    net = station_net(topology, build_collective("allreduce", 4, 1))
    (crossing,) = partition_crossings(net, [Task((0, 2), (0, 2), 1)])
    curve = fluid("reduce", crossing.gates, crossing.share)
    assert curve is not None
    # Each of the two sends all its data over two wires: half a port's time.
    (beta,) = {edge.beta for edge in topology.edges}
    assert float(min(slope for _, slope in curve.lines)) == pytest.approx(float(beta or 0) / 2)


def test_groups_at_once_pay_for_the_messages_of_all() -> None:
    """Each four of a ring of eight need six messages over two of its sixteen wires."""
    topology = load_topology("ring:8")
    net = station_net(topology, build_collective("allreduce", 8, 1))
    even, odd = tuple(range(0, 8, 2)), tuple(range(1, 8, 2))
    (beta,) = {edge.beta for edge in topology.edges}
    for groups in ([Task(even, even, 3), Task(odd, odd, 1)], [Task(even, even, 1)]):
        (crossing,) = partition_crossings(net, groups)
        curve = fluid("reduce", crossing.gates, crossing.share)
        assert curve is not None
        slope = float(min(slope for _, slope in curve.lines))
        assert slope == pytest.approx(float(beta or 0) * 12 / 16)


def steps(state: tuple[int, ...]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield what one message, sum or copy makes of what ranks know, and the edges it uses."""
    ranks = range(len(state))
    for one in ranks:
        others = [rank for rank in ranks if rank != one]
        for count in range(1, len(state)):
            cost = 2 if count == 1 else count + 2
            for some in itertools.combinations(others, count):
                added = list(state)
                for rank in some:
                    added[one] |= state[rank]
                copied = [value | state[one] if rank in some else value
                          for rank, value in enumerate(state)]  # fmt: skip
                yield cost, tuple(added)
                yield cost, tuple(copied)


def canonical(state: tuple[int, ...]) -> tuple[int, ...]:
    """Return the least of the states that differ in the names of ranks, as far as sorting finds."""
    ranks = range(len(state))
    known_by = [sum(value >> rank & 1 for value in state) for rank in ranks]
    order = sorted(ranks, key=lambda r: (state[r].bit_count(), known_by[r], state[r]))
    place = {rank: n for n, rank in enumerate(order)}
    return tuple(sum(1 << place[b] for b in ranks if state[r] >> b & 1) for r in order)


def test_the_loop_bound_is_what_an_exhaustive_search_finds() -> None:
    for ranks in range(2, 6):
        whole_of, start = (1 << ranks) - 1, tuple(1 << rank for rank in range(ranks))
        heap, seen, most = [(0, start)], set[tuple[int, ...]](), edges_used(ranks)
        found = None
        while heap:
            cost, state = heapq.heappop(heap)
            if all(value == whole_of for value in state):
                found = cost
                break
            if state in seen:
                continue
            seen.add(state)
            for more, after in steps(state):
                lacking = sum(value != whole_of for value in after)  # each is still to be told
                if cost + more + lacking <= most and (after := canonical(after)) not in seen:
                    heapq.heappush(heap, (cost + more, after))
        assert found == edges_used(ranks) == (4, 8, 10, 12)[ranks - 2]


def test_the_loop_bound_is_for_one_switch_that_adds_for_ranks_alone() -> None:
    star = load_topology("hub:8")

    def kinds(topology: Topology) -> set[str]:
        return {curve.kind for curve in any_curves(whole(topology), "allreduce", ANY)}

    assert "loop" in kinds(able(star, "", through=True))
    assert "loop" not in kinds(able(star, ""))
    assert "loop" not in kinds(able(load_topology("leaf-spine:2x2x1"), "", through=True))
    extra = star.edges[0]
    wired = replace(star, edges=(*star.edges, replace(extra, id=len(star.edges), head=1, name="x")))
    assert "loop" not in kinds(able(wired, "", through=True))


def test_dual_ascent_is_below_every_tree_past_helpers() -> None:
    for seed in range(40):
        chance = random.Random(seed)
        vertices = chance.randint(3, 8)
        pairs = [(a, b) for a in range(vertices) for b in range(vertices)
                 if a != b and chance.random() < 0.6]  # fmt: skip
        tail, head = (np.array(side, dtype=np.int32) for side in zip(*pairs, strict=True))
        cost = np.array([chance.randint(0, 20) for _ in pairs], dtype=np.int64)
        targets = np.array(
            sorted(chance.sample(range(1, vertices), chance.randint(1, vertices - 1)))
        )
        others = sorted(set(range(1, vertices)) - set(targets.tolist()))
        least = None
        for count in range(len(others) + 1):
            for helpers in itertools.combinations(others, count):
                kept = sorted({0, *targets.tolist(), *helpers})
                number = np.full(vertices, -1, dtype=np.int32)
                number[kept] = np.arange(len(kept))
                inside = (number[tail] >= 0) & (number[head] >= 0)
                try:
                    some, _ = cheapest_from(
                        np.array([0]), len(kept), number[tail[inside]], number[head[inside]],
                        cost[inside],
                    )  # fmt: skip
                except ValueError:
                    continue
                least = some if least is None else min(least, some)
        roots = np.array([0])
        if least is None:
            with pytest.raises(ValueError, match="can't be reached"):
                steiner_tree(roots, targets, vertices, tail, head, cost)
            continue
        bound, tree = steiner_tree(roots, targets, vertices, tail, head, cost)
        assert bound <= least <= int(cost[tree].sum())
        assert bound > 0 or least == 0
        known = {0}
        for _ in range(vertices):
            known |= {int(head[arc]) for arc in tree if int(tail[arc]) in known}
        assert set(targets.tolist()) <= known


def test_latency_counts_a_whole_way_once() -> None:
    """On a star of 0.5 us an edge nothing takes less than 1 us, and a byte's way adds its time."""
    star = able(load_topology("hub:4"), "")
    star = star.with_costs([replace(e, alpha=500_000, beta=Fraction(1000)) for e in star.edges])
    for name in ("allreduce", "allgather", "broadcast"):
        found: dict[str, Curve] = {c.kind: c for c in any_curves(whole(star), name, ANY)}
        assert best(any_bounds(whole(star), name, 4000, world=ANY)).time <= {
            "allreduce": 5_000_000, "allgather": 4_000_000, "broadcast": 5_000_000
        }[name]  # fmt: skip
        assert min(base for base, _ in found["port"].lines) == 1_000_000

"""Which symmetries are found where none is declared, and which group is made of them."""

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest

import taccl.topology.symmetry as search
from taccl.apps import logical_group
from taccl.collectives import build_collective
from taccl.errors import TacclWarning
from taccl.topology.file import load_topology
from taccl.topology.graph import Multicast, Switch, Topology, whole
from taccl.topology.symmetry import (
    automorphisms,
    block_shifts,
    close_group,
    close_rows,
    is_symmetry,
    largest_order,
    make_group,
    search_group,
)
from tests.generators import BETAS, Hop, both_ways, build, ring4, star5, twin2x2
from tests.sweep import for_each


def undeclared(topology: Topology) -> Topology:
    """Return the same network, whose symmetries nobody tells."""
    return replace(topology, rotations=())


def relabelled(topology: Topology, seed: int) -> Topology:
    """Return the same network without rotations, with its ranks in another order."""
    n = topology.num_ranks
    names = list(range(n))
    random.Random(seed).shuffle(names)
    names += range(n, n + len(topology.switches))
    edges = (replace(e, tail=names[e.tail], head=names[e.head]) for e in topology.edges)
    servers = sorted((names[rank], server) for rank, server in enumerate(topology.server_of))
    return replace(topology, edges=tuple(edges), server_of=tuple(s for _, s in servers),
                   rotations=())  # fmt: skip


FOUND = [
    ("ring:8", None, 8), ("ring:13", None, 13), ("torus2d:4x4", None, 16),
    ("torus3d:2x4x3", None, 24), ("mesh2d:4x4", None, 4), ("hypercube:16", None, 16),
    ("hub:8", None, 8), ("full:6", None, 6), ("dgx-a100", 1, 8), ("dgx-a100", 2, 16),
    ("dgx-a100", 8, 64), ("ndv2", 1, 4), ("ndv2", 2, 2), ("dgx2", 1, 16), ("dgx2", 2, 16),
]  # fmt: skip


@for_each(("spec", "nodes", "order"), FOUND)
def test_what_is_found_is_as_large_as_what_is_declared(
    spec: str, nodes: int | None, order: int
) -> None:
    topology = load_topology(spec, nodes=nodes)
    group = search_group(undeclared(topology))
    assert len(group) == order == len(logical_group(whole(topology, topology.rotations)))
    assert make_group(topology, group.generators).acts_freely()


@for_each(
    ("spec", "nodes", "order"),
    [("ring:12", None, 12), ("torus2d:4x4", None, 16), ("hypercube:8", None, 8),
     ("dgx-a100", 2, 16), ("dgx-a100", 8, 64), ("dgx2", 2, 16), ("ndv2", 1, 4)],
)  # fmt: skip
@for_each("seed", [0, 1])
def test_ranks_in_any_order_have_the_same_symmetries(
    spec: str, nodes: int | None, order: int, seed: int
) -> None:
    topology = relabelled(load_topology(spec, nodes=nodes), seed)
    group = search_group(topology)
    assert len(group) == order
    assert make_group(topology, group.generators).acts_freely()
    assert search_group(topology).elements == group.elements


def test_gpus_that_share_a_nic_are_not_exchanged() -> None:
    # the exchange of GPUs 0 and 1, which nothing else notices, keeps their NIC where it is
    topology = undeclared(load_topology("dgx2", nodes=2))
    trap = (1, 0, *range(2, 32))
    assert is_symmetry(topology, trap)
    assert not make_group(topology, [trap]).acts_freely()
    group = search_group(topology)
    assert trap not in group.elements
    assert len(group) == largest_order(topology) == 16  # as there are 16 NICs
    assert {int(rank) for rank in group.rank_orbit} == {0, 1}


def test_nothing_is_left_where_one_nic_is_slow() -> None:
    topology = load_topology("dgx-a100", nodes=2)
    (nic,) = (e for e in topology.edges if e.name == "s0/ib3.tx->rail3")
    edges = list(topology.edges)
    edges[nic.id] = replace(nic, beta=BETAS[4])
    uneven = replace(topology, edges=tuple(edges), rotations=())
    # the other GPUs and the other server's are still alike, but what moves keeps the odd NIC
    assert automorphisms(uneven)
    assert largest_order(uneven) == 1
    assert len(search_group(uneven)) == 1


def test_one_slow_ring_direction_leaves_the_turns() -> None:
    hops = [hop for r in range(6) for hop in
            ((r, (r + 1) % 6, 1, None, BETAS[0]), ((r + 1) % 6, r, 1, None, BETAS[2]))]  # fmt: skip
    assert len(search_group(build("uneven ring", 6, hops))) == 6


def test_servers_are_kept_together_where_links_depend_on_them() -> None:
    hops = [hop for rank in range(4) for hop in both_ways(rank, 4, 1, BETAS[0])]
    for across, count in ((True, 8), (False, 24)):
        switch = Switch("fabric", across_servers=across)
        topology = build("racks", 4, hops, switches=[switch], server_of=(0, 0, 1, 1))
        assert len(close_group(automorphisms(topology) or [], 4)) == count


def random_symmetric(seed: int) -> Topology:
    """Return a network of 3 to 6 ranks, up to 2 switches, that has some random symmetry."""
    rng = random.Random(seed)
    n, extra = rng.randint(3, 6), rng.randint(0, 2)
    turn = [*rng.sample(range(n), n), *(n + i for i in rng.sample(range(extra), extra))]
    hops: list[Hop] = []
    for _ in range(rng.randint(2, 4)):
        tail, head = rng.sample(range(n + extra), 2)
        cost = (rng.choice((0, 7)), rng.choice((None, 0)), rng.choice((None, *BETAS[:2])))
        ends: dict[tuple[int, int], None] = {}
        while (tail, head) not in ends:
            ends[tail, head] = None
            tail, head = turn[tail], turn[head]
        hops += [(a, b, *cost) for a, b in ends]
    abilities = rng.random() < 0.5
    switches = [
        Switch(f"s{i}", multicast=Multicast() if abilities and i == 0 else None)
        for i in range(extra)
    ]
    return build("random", n, hops, switches=switches)


@for_each("seed", range(60), quick=20)
def test_all_symmetries_of_small_networks_are_found(seed: int) -> None:
    topology = random_symmetric(seed)
    n = topology.num_ranks
    expected = {p for p in itertools.permutations(range(n)) if is_symmetry(topology, p)}
    found = automorphisms(topology)
    assert found is not None
    assert set(close_group(found, n)) == expected
    # A group that acts freely on up to 6 ranks has at most two generators.
    best = 1
    moving = [p for p in sorted(expected) if all(p[rank] != rank for rank in range(n))]
    for pair in itertools.combinations_with_replacement(moving, 2):
        rows = [np.array(p, dtype=np.int32) for p in pair]
        closed = close_rows(rows, n, n, n, free=True)
        if closed and len(closed[0]) > best and make_group(topology, pair).acts_freely():
            best = len(closed[0])
    assert len(search_group(topology)) == best
    assert largest_order(topology) % best == 0


def test_parallel_edges_count() -> None:
    # 0 and 1 are joined twice, 2 and 3 once: only exchanges inside the pairs are left
    hops = [*both_ways(0, 1, 1, BETAS[0]), *both_ways(0, 1, 1, BETAS[0]),
            *both_ways(2, 3, 1, BETAS[0]), *both_ways(0, 2, 9, BETAS[0]),
            *both_ways(1, 3, 9, BETAS[0])]  # fmt: skip
    topology = build("double", 4, hops)
    assert set(close_group(automorphisms(topology) or [], 4)) == {(0, 1, 2, 3), (1, 0, 3, 2)}


def test_shifts_inside_blocks_are_tried_first() -> None:
    assert list(block_shifts(4)) == [(1, 2, 3, 0), (1, 0, 3, 2), (2, 3, 0, 1)]
    assert list(block_shifts(5)) == [(1, 2, 3, 4, 0)]


def test_a_child_process_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    topology = relabelled(load_topology("torus2d:3x3"), 3)
    here = automorphisms(topology)
    monkeypatch.setattr(search, "IN_PROCESS", 0)
    assert automorphisms(topology) == here


@pytest.mark.parametrize(
    ("limit", "value"), [("SECONDS", 0.0), ("MAX_ARCS", 3), ("_CHILD", "raise SystemExit(1)")]
)
def test_a_search_without_end_is_given_up_and_said(
    limit: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology = relabelled(load_topology("torus2d:3x3"), 3)
    monkeypatch.setattr(search, "IN_PROCESS", 0)
    monkeypatch.setattr(search, limit, value)
    with pytest.warns(TacclWarning, match="too large or too intricate"):
        assert len(search_group(topology)) == 1


def test_only_products_are_tried_where_the_symmetries_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(search, "MAX_GROUP", 10)
    # a ring whose numbering tells nothing has 24 symmetries
    assert len(search_group(relabelled(load_topology("ring:12"), 3))) == 12


def test_only_symmetries_that_may_be_used_are() -> None:
    even = search_group(ring4(), lambda p: p[0] % 2 == 0)
    assert even.elements == ((0, 1, 2, 3), (2, 3, 0, 1))
    assert len(search_group(twin2x2())) == 2
    assert len(search_group(star5())) == 5


def test_a_plain_graph_gets_the_symmetries_that_are_found() -> None:
    topology = undeclared(load_topology("dgx-a100", nodes=2))
    logical = whole(topology)
    assert len(logical_group(logical)) == 16
    assert len(logical_group(logical, build_collective("alltoall", 16, 1))) == 16
    # whatever moves every rank moves the root
    assert len(logical_group(logical, build_collective("broadcast", 16, 1))) == 1


def test_a_sketch_that_closes_links_keeps_only_symmetries_of_what_is_open() -> None:
    topology = undeclared(load_topology("ring:8"))
    allowed = np.ones(len(topology.links), dtype=np.bool_)
    for src in (0, 4):
        allowed[topology.links_between(src, src + 1)[0]] = False
    group = logical_group(replace(whole(topology), allowed=allowed))
    assert group.elements == ((0, 1, 2, 3, 4, 5, 6, 7), (4, 5, 6, 7, 0, 1, 2, 3))

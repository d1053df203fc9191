"""NCCL's kernels as programs: they compute what they should, as NCCL's channels would."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

from taccl.errors import LoweringError
from taccl.msccl.interpret import judge
from taccl.msccl.program import Program, errors_of
from taccl.synth.templates.nccl_kernels import (
    RINGS,
    all_pairs_program,
    exchange_program,
    ring_program,
    tree_parents,
    tree_program,
)
from taccl.synth.templates.rings import channel_orders
from taccl.topology.file import load_topology
from taccl.topology.graph import Topology
from tests.sweep import for_each

MACHINES = ("dgx-h100", "mi300x", "ndv2", "mi250", "hypercube")


def machine(name: str, nodes: int) -> Topology:
    return load_topology(name, nodes=nodes if nodes > 1 else None)


def around(order: tuple[int, ...]) -> list[tuple[int, int]]:
    return [*pairwise(order), (order[-1], order[0])]


def right(made: Program) -> None:
    assert [str(finding) for finding in errors_of(judge(made, "msccl"))] == []


def test_every_ring_tree_and_exchange_does_what_its_collective_says() -> None:
    for ranks in (2, 3, 8):
        orders = [tuple(range(ranks)), (0, *range(ranks - 1, 0, -1))]
        for protocol in ("Simple", "LL", "LL128"):
            for collective in RINGS:
                right(ring_program(collective, orders, protocol))
            star, path = dict.fromkeys(range(1, ranks), 0), {r: r + 1 for r in range(ranks - 1)}
            right(tree_program([star, path, {r: (r - 1) // 2 for r in range(1, ranks)}], protocol))
            right(exchange_program(ranks, 2, protocol))
        right(all_pairs_program(ranks, 2))


@for_each("name", MACHINES)
def test_rings_and_trees_go_over_links_through_all_ranks(name: str) -> None:
    for nodes in (1, 2) if name in ("dgx-h100", "mi300x", "ndv2") else (1,):
        topology = machine(name, nodes)
        orders = channel_orders(topology, 4)
        assert len(orders) == 4
        for order in orders:
            assert sorted(order) == list(range(topology.num_ranks))
            assert all(topology.links_between(*pair) for pair in around(order))
        for above in tree_parents(topology, 4):
            assert len(above) == topology.num_ranks - 1
            for rank, parent in above.items():
                assert topology.links_between(rank, parent)
                assert topology.links_between(parent, rank)


def test_rings_of_a_full_mesh_use_each_wire_once() -> None:
    orders = channel_orders(load_topology("mi300x"), 7)
    assert set(Counter(pair for order in orders for pair in around(order)).values()) == {1}
    # Of two servers each GPU sends to the other one, and receives from it, in one channel.
    orders = channel_orders(load_topology("mi300x", nodes=2), 8)
    ways = Counter(pair for order in orders for pair in around(order))
    assert set(ways.values()) == {1}
    assert sum(abs(a - b) == 8 for a, b in ways) == 16


def test_rings_over_two_servers_enter_and_leave_each_by_a_nic_of_its_own() -> None:
    # Six ways fit into the wires of an MI250 at once; more begin and end where none does yet.
    orders = channel_orders(load_topology("mi250", nodes=2), 16)
    across = Counter(
        pair for order in orders for pair in around(order) if abs(pair[0] - pair[1]) == 16
    )
    assert {src for src, _ in across} == {dst for _, dst in across} == set(range(32))
    assert set(across.values()) == {1}


def test_channels_of_trees_are_even_over_network_cards() -> None:
    topology = load_topology("dgx-h100", nodes=3)
    across = Counter(
        child
        for above in tree_parents(topology, 16)
        for child, parent in above.items()
        if child // 8 != parent // 8
    )
    servers = Counter(rank // 8 for rank in across.elements())
    assert len(across) >= 16
    assert max(servers.values()) <= 16


def test_wires_that_let_no_ring_through_are_told() -> None:
    star = load_topology("hypercube")
    table = star.links
    kept = [e for e in star.edges if 0 in (e.tail, e.head)]
    assert len(table) > len(kept)
    edges = tuple(replace(edge, id=number) for number, edge in enumerate(kept))
    lone = replace(star, edges=edges, rotations=())
    with pytest.raises(LoweringError, match="no ring of NCCL goes through a server of hypercube"):
        channel_orders(lone, 1)

"""All-reduce: twice the cheapest tree, whatever the prices; trees, packings, known machines."""

import heapq
import itertools
import random
from fractions import Fraction

import numpy as np
import pytest

from taccl.bounds import any_bounds, best
from taccl.bounds.net import Net, make_net
from taccl.bounds.reduce import cheapest_tree, far_ranks, tree_prices
from taccl.collectives import build_collective
from taccl.topology.graph import Topology, whole
from tests.bounds.bound_networks import (
    Row,
    build,
    dgx2,
    ndv2,
    rails,
    rate,
    shared_graph,
    two_servers,
)
from tests.generators import random_topology
from tests.sweep import for_each

GB = 10**9


def net_of(topology: Topology) -> Net:
    return make_net(whole(topology), build_collective("allreduce", topology.num_ranks, 1))


def reduced(topology: Topology, size: int) -> int:
    bounds = any_bounds(whole(topology), "allreduce", size)
    return next(bound.time for bound in bounds if bound.kind == "reduce")


# --- twice a tree --------------------------------------------------------------------------------


def cheapest_gossip(costs: dict[tuple[int, int], int], ranks: int) -> int:
    """Return the least cost of messages after which all know what all knew, by search."""
    full = (1 << ranks) - 1
    start = tuple(1 << rank for rank in range(ranks))
    best_of, queue = {start: 0}, [(0, start)]
    while queue:
        so_far, known = heapq.heappop(queue)
        if so_far > best_of[known]:
            continue
        if all(k == full for k in known):
            return so_far
        for (src, dst), cost in costs.items():
            told = (*known[:dst], known[dst] | known[src], *known[dst + 1 :])
            if told != known and so_far + cost < best_of.get(told, 1 << 60):
                best_of[told] = so_far + cost
                heapq.heappush(queue, (so_far + cost, told))
    return 1 << 60


@for_each("seed", range(30))
def test_no_gossip_is_cheaper_than_two_trees(seed: int) -> None:
    rng = random.Random(seed)
    ranks = rng.choice([3, 4, 4])
    pairs = [(a, b) for a in range(ranks) for b in range(ranks) if a != b]
    ring = {(a, (a + 1) % ranks) for a in range(ranks)}
    rows: list[Row] = [(a, b, 0, 0, 1) for a, b in pairs if (a, b) in ring or rng.random() < 0.6]
    net = net_of(build(ranks, rows))
    cost = np.array([rng.choice([0, 1, 2, 5, 9]) for _ in net.src], dtype=np.int64)
    tree = int(cost[cheapest_tree(net, cost)].sum())
    ends = zip(net.src.tolist(), net.dst.tolist(), strict=True)
    gossip = cheapest_gossip(dict(zip(ends, cost.tolist(), strict=True)), ranks)
    assert 2 * tree <= gossip
    if (cost == cost[0]).all():
        assert 2 * tree == gossip


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_two_trees_are_enough_where_both_directions_cost_alike(ranks: int) -> None:
    # In along a tree and out again: the search meets the bound, one more would be noticed.
    rng = random.Random(ranks)
    pairs = list(itertools.combinations(range(ranks), 2))
    price = {pair: rng.randint(1, 9) for pair in pairs}
    costs = {
        (a, b): price[min(a, b), max(a, b)] for a in range(ranks) for b in range(ranks) if a != b
    }
    rows: list[Row] = [(a, b, 0, 0, 1) for a, b in costs]
    net = net_of(build(ranks, rows))
    cost = np.array(
        [costs[a, b] for a, b in zip(net.src.tolist(), net.dst.tolist(), strict=True)], np.int64
    )
    tree = int(cost[cheapest_tree(net, cost)].sum())
    assert cheapest_gossip(costs, ranks) == 2 * tree


@for_each("seed", range(30))
def test_a_cheapest_tree_joins_all_and_no_other_is_cheaper(seed: int) -> None:
    rng = random.Random(seed)
    net = net_of(random_topology(seed))
    cost = np.array([rng.choice([0, 0, 1, 3, 10**6]) for _ in net.src], dtype=np.int64)
    tree = cheapest_tree(net, cost)
    name = list(range(net.num_ranks))
    for src, dst in zip(net.src[tree].tolist(), net.dst[tree].tolist(), strict=True):
        assert name[src] != name[dst]
        name = [name[src] if n == name[dst] else n for n in name]
    assert len(set(name)) == 1
    # Kruskal by hand.
    least, name = 0, list(range(net.num_ranks))
    for link in np.argsort(cost, kind="stable").tolist():
        src, dst = int(net.src[link]), int(net.dst[link])
        if name[src] != name[dst]:
            least += int(cost[link])
            name = [name[src] if n == name[dst] else n for n in name]
    assert int(cost[tree].sum()) == least


# --- prices --------------------------------------------------------------------------------------


def proved(net: Net) -> float:
    """Return the time of one tree for every byte that the prices prove."""
    prices = tree_prices(net)
    assert prices is not None
    steps = np.rint(prices / prices.max() * (1 << 24)).astype(np.int64)
    cost = np.add.reduceat(steps[net.edges], net.first[:-1])
    tree = float(cost[cheapest_tree(net, cost)].sum())
    return tree / sum(float(steps[e] / net.busy[e]) for e in net.busy)


def test_a_ring_is_all_trees() -> None:
    # Eight wires each way of 1 ps a byte: 7 of 16 for every tree.
    rows: list[Row] = [(r, (r + 1) % 8, 0, 0, 1) for r in range(8)]
    rows += [((r + 1) % 8, r, 0, 0, 1) for r in range(8)]
    assert proved(net_of(build(8, rows))) == pytest.approx(7 / 16)


def test_a_slow_bridge_is_dear() -> None:
    # Two triangles of 1 ps a byte, joined by one wire each way of 10: a tree crosses it once.
    rows: list[Row] = []
    for first in (0, 3):
        rows += [(first + a, first + b, 0, 0, 1) for a in range(3) for b in range(3) if a != b]
    net = net_of(build(6, [*rows, (0, 3, 0, 0, 10), (3, 0, 0, 0, 10)]))
    assert proved(net) == pytest.approx(5)


@pytest.mark.parametrize(
    ("name", "tree"),
    [
        # size / 2 over the ports of a rank: 8 / 7 bytes for each of 150 GB/s
        ("NDv2_1chassis", 35 / 6), ("NDv2_2chassis", 40.0), ("DGX2_2chassis", 7.380952380952),
        ("forestcoll_mi250_1node", 35 / 12), ("forestcoll_mi250_2node", 2.8237951807),
    ],
)  # fmt: skip
def test_trees_are_packed_to_the_optimum(name: str, tree: float) -> None:
    # Optimal by the other side of the program: a mix of trees that takes as long.
    assert proved(net_of(shared_graph(name))) == pytest.approx(tree, rel=1e-4)


def test_a_free_network_has_no_prices() -> None:
    net = net_of(build(2, [(0, 1, 5, None, None), (1, 0, 5, None, None)]))
    assert tree_prices(net) is None


@pytest.mark.parametrize("limit", ["MOST_LINKS", "MOST_CLASSES"])
def test_what_would_take_too_long_is_left_out(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"taccl.bounds.reduce.{limit}", 0)
    net = net_of(ndv2())
    assert tree_prices(net) is None
    assert reduced(ndv2(), GB) > 0


def test_far_ranks_are_of_every_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taccl.bounds.reduce.MANY_RANKS", 4)
    assert far_ranks(net_of(rails(3, 300, 25))) == [8, 16, 1, 2]


# --- known machines ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topology", "share"),
    [
        # Twice what an all-gather takes for the bytes: reduce-scatter, then all-gather.
        (dgx2(), Fraction(2 * 15, 16) * 8), (rails(8, 300, 25), Fraction(2 * 7, 8) / 200 * 1000),
        (rails(2, 300, 25), Fraction(2 * 15, 16) / 325 * 1000),
    ],
)  # fmt: skip
def test_an_allreduce_takes_two_allgathers_where_all_ranks_are_alike(
    topology: Topology, share: Fraction
) -> None:
    assert reduced(topology, GB) == pytest.approx(float(share) * GB, rel=1e-4)


def test_a_shared_nic_is_counted_with_the_ports() -> None:
    # Servers of two ranks at 1 ps a byte with one NIC each of 10: of 2 * 7 messages for each byte
    # those between servers take the NICs. With prices of 1 for ports and 10 for NICs... the
    # packing finds the best; the ports and NICs together are a floor.
    rows: list[Row] = []
    for server in range(4):
        a, b, tx, rx = 2 * server, 2 * server + 1, 9 + 2 * server, 10 + 2 * server
        rows += [(a, b, 0, 0, 1), (b, a, 0, 0, 1), (tx, 8, 0, 0, 10), (8, rx, 0, 0, 10)]
        for rank in (a, b):
            rows += [(rank, tx, 0, 0, None), (rx, rank, 0, 0, None)]
    network = build(8, rows, 9, [r // 2 for r in range(8)])
    # 2 * 3 messages for each byte between servers, over four NICs of 10.
    assert reduced(network, 1000) >= 2 * 3 * 1000 * 10 // 4


def test_a_degraded_nic_counts() -> None:
    network = rails(2, 300, 25)
    edges = [(e.tail, e.head, e.alpha, e.overhead, e.beta) for e in network.edges]
    slow = next(i for i, edge in enumerate(edges) if edge[4] == rate(25))
    edges[slow] = (*edges[slow][:4], rate(5))
    degraded = build(16, edges, len(network.switches), network.server_of)
    assert reduced(degraded, GB) > reduced(network, GB)


@for_each("seed", range(10))
def test_rotations_lose_nothing(seed: int) -> None:
    rng = random.Random(seed)
    network = two_servers(rng, (2, 2))
    assert best(any_bounds(whole(network), "allreduce", 4000)).time > 0

"""Dissemination time under port limits: hand cases, the best spreading by search, both ends."""

import heapq
import random
from fractions import Fraction

import numpy as np
import pytest

from taccl.bounds.dissemination import Port, Spread, dissemination_time, informed
from taccl.bounds.net import Net, make_net
from taccl.collectives import build_collective
from taccl.topology.graph import Topology, whole
from taccl.units import PS_PER_US
from tests.bounds.bound_networks import Row, build, dgx2, rails, two_servers
from tests.sweep import for_each


def net_of(topology: Topology, collective: str = "allgather", chunk: int | None = None) -> Net:
    made = build_collective(collective, topology.num_ranks, 1)
    size = None if chunk is None else Fraction(chunk)
    return make_net(whole(topology), made, size)


def reached(topology: Topology, collective: str = "allgather", chunk: int | None = None) -> int:
    made = build_collective(collective, topology.num_ranks, 1)
    return dissemination_time(net_of(topology, collective, chunk), made)


def hub(ranks: int, alpha: int, overhead: int | None = None, rule: str = "occupy") -> Topology:
    up: list[Row] = [(r, ranks, alpha, overhead, 1) for r in range(ranks)]
    return build(ranks, [*up, *((ranks, r, 0, 0, 1) for r in range(ranks))], 1, rule=rule)


def torus(side: int) -> Topology:
    rows: list[Row] = []
    for rank in range(side * side):
        row, column = divmod(rank, side)
        around = (
            (row + 1) % side * side + column, (row - 1) % side * side + column,
            row * side + (column + 1) % side, row * side + (column - 1) % side,
        )  # fmt: skip
        rows += [(rank, there, 700_000, None, 20) for there in around]
    return build(side * side, rows)


# --- hand cases ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("ranks", "rounds"), [(2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4)])
def test_on_one_switch_those_who_know_double_every_alpha(ranks: int, rounds: int) -> None:
    assert reached(hub(ranks, 10)) == 10 * rounds


def test_a_dgx2_needs_four_rounds() -> None:
    assert reached(dgx2()) == 28 * PS_PER_US // 10


def test_without_overhead_one_tells_all_at_once() -> None:
    assert reached(hub(9, 10, rule="delay")) == 10
    assert reached(hub(9, 10, overhead=0)) == 10


def test_a_rank_goes_on_telling_before_the_first_has_heard() -> None:
    # Every 4 a message, each heard after 10: at 10, 14, 18 the source's; the first goes on at 20.
    assert [reached(hub(n, 10, overhead=4)) for n in (2, 3, 4, 5, 6)] == [10, 14, 18, 20, 22]


def test_on_a_torus_it_is_the_way() -> None:
    assert reached(torus(4)) == 4 * 700_000
    assert reached(torus(8)) == 8 * 700_000


def test_a_wire_tells_one_rank_only() -> None:
    # A line: rank 0 can't tell 2 but through 1, however often it may send.
    rows: list[Row] = [
        (0, 1, 5, None, 1),
        (1, 0, 5, None, 1),
        (1, 2, 5, None, 1),
        (2, 1, 5, None, 1),
    ]
    assert reached(build(3, rows)) == 10


def test_servers_are_entered_by_their_nics() -> None:
    # 2 servers of 8, 0.7 us inside, 1.7 us between: the other server hears at 1.7 (of rank 0),
    # 2.4 (of the one told at 0.7 there, and inside) and 3.1: 1, 3, 8 ranks.
    rows: list[Row] = []
    for rank in range(16):
        rows += [(rank, 16 + rank // 8, 7, None, 1), (16 + rank // 8, rank, 0, None, 1)]
        rows.append((rank, (rank + 8) % 16, 17, None, 1))
    assert reached(build(16, rows, 2, [r // 8 for r in range(16)])) == 31


def test_what_a_server_knows_at_once_counts_from_the_start() -> None:
    # Inside a server no time passes: both ranks of the first know at 0, both of the other at 10.
    rows: list[Row] = [(a, b, 0, None, 1) for a, b in ((0, 1), (1, 0), (2, 3), (3, 2))]
    rows += [(0, 2, 10, None, 1), (2, 0, 10, None, 1)]
    assert reached(build(4, rows, servers=(0, 0, 1, 1)), "broadcast") == 10


def test_a_chunk_takes_its_time_on_every_port() -> None:
    # 3 ranks on a switch, 10 + 40 for a message: heard at 50 and 100.
    assert reached(hub(3, 10), chunk=40) == 100
    assert reached(hub(3, 10, rule="delay"), chunk=40) == 10 + 80


@pytest.mark.parametrize("collective", ["reduce", "gather"])
def test_what_comes_together_is_the_same_turned_round(collective: str) -> None:
    # In-ports are what counts: 8 ranks can be heard by one in three rounds at the soonest.
    rows: list[Row] = [(r, 8, 0, 0, 1) for r in range(8)] + [(8, r, 10, None, 1) for r in range(8)]
    assert reached(build(8, rows, 1), collective) == 30


def test_ports_out_and_ports_in_are_told_apart() -> None:
    # Everyone sends to rank 0 over a wire of its own; rank 0 tells all by one port. (It takes 40:
    # that the others can only tell rank 0 is what is left open.)
    rows: list[Row] = [(r, 0, 10, None, 1) for r in range(1, 5)]
    rows += [(0, 5, 10, None, 1), *((5, r, 0, 0, 1) for r in range(1, 5))]
    star = build(5, rows, 1)
    assert reached(star, "broadcast") == 30
    assert reached(star, "reduce") == 10


def test_a_free_port_leaves_the_distance() -> None:
    rows: list[Row] = [(r, 5, 10, None, None) for r in range(5)]
    assert reached(build(5, [*rows, *((5, r, 0, None, None) for r in range(5))], 1)) == 0


def test_one_rank_knows_already() -> None:
    assert reached(build(1, [])) == 0


def test_following_ends_with_what_is_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    full = reached(hub(64, 10))
    for moments in (1, 3, 5):
        monkeypatch.setattr("taccl.bounds.dissemination.MOST_MOMENTS", moments)
        assert 0 <= reached(hub(64, 10)) <= full == 60


def test_ports_of_all_ranks_are_taken_together() -> None:
    # Two ports for each, of which one is free again after 10, the other after 30. At 10 three know;
    # at 20 the first tells one more, and the others two each: 8.
    spread = Spread((Port(10, 10, 9), Port(10, 30, 9)), (), 9)
    far = np.zeros(9, dtype=np.int64)
    assert [informed(spread, far[:n], n) for n in (2, 3, 4, 8, 9)] == [10, 10, 20, 20, 30]


# --- against the best spreading ------------------------------------------------------------------


Held = tuple[tuple[int, int], ...]
"""Edges, and until when each is held."""


def best_spread(topology: Topology, source: int) -> int:
    """Return the soonest that all know what one rank does, by trying all orders of messages."""
    links = [topology.link(row) for row in range(len(topology.links))]
    ranks = topology.num_ranks
    start = tuple(0 if r == source else -1 for r in range(ranks))
    queue: list[tuple[int, int, tuple[int, ...], Held]] = [(0, 0, start, ())]
    seen: set[tuple[int, tuple[int, ...], Held]] = set()
    best = 1 << 40
    while queue:
        _, last, heard, busy = heapq.heappop(queue)
        if (last, heard, busy) in seen:
            continue
        seen.add((last, heard, busy))
        if min(heard) >= 0:
            best = min(best, max(heard))
            continue
        held = dict(busy)
        for link in links:
            if heard[link.src] < 0 or heard[link.dst] >= 0:
                continue
            edges = [e for e in link.edges if topology.edges[e].beta is not None]
            begin = max([last, heard[link.src], *(held.get(e, 0) for e in edges)])
            arrival = begin + link.alpha
            if max(arrival, *heard) >= best:
                continue
            told = tuple(arrival if r == link.dst else h for r, h in enumerate(heard))
            later = {e: t for e, t in held.items() if t > begin}
            later |= dict.fromkeys(edges, begin + link.overhead)
            # Only who is free when matters.
            state = tuple(sorted((e, t) for e, t in later.items() if t > begin))
            heapq.heappush(queue, (max(told), begin, told, state))
    return best


def random_wires(rng: random.Random) -> Topology:
    """Return 4 or 5 ranks in one or two servers: wires or switches, uneven latencies."""
    ranks, rows = rng.choice([4, 5]), []
    servers = [rng.choice([0, 1]) for _ in range(ranks)]
    switches = rng.choice([0, 1, 1])
    for a in range(ranks):
        rows.append((a, (a + 1) % ranks, *_cost(rng)))
        others = [b for b in range(ranks) if b != a and rng.random() < 0.25]
        rows += [(a, b, *_cost(rng)) for b in others]
        if switches:
            rows += [(a, ranks, *_cost(rng)), (ranks, a, *_cost(rng))]
    return build(ranks, rows, switches, servers, rng.choice(["occupy", "delay"]))


def _cost(rng: random.Random) -> tuple[int, int | None, int]:
    alpha = rng.choice([0, 5, 10, 17])
    return alpha, rng.choice([None, None, rng.randint(0, alpha)]), 1


@for_each("seed", range(100))
def test_no_spreading_is_sooner(seed: int) -> None:
    rng = random.Random(seed)
    sizes = rng.choice([(2, 2), (2, 1), (1, 3), (1, 1, 2)])
    topology = two_servers(rng, sizes) if seed % 2 else random_wires(rng)
    latest = max(best_spread(topology, rank) for rank in range(topology.num_ranks))
    made = build_collective("broadcast", topology.num_ranks, 1)
    assert dissemination_time(net_of(topology, "broadcast"), made) <= best_spread(topology, 0)
    assert reached(topology, "alltoall") <= max(
        latest, max(best_spread(topology.reversed(), r) for r in range(topology.num_ranks))
    )


@pytest.mark.parametrize("ranks", [3, 4, 5])
def test_the_search_finds_what_reach_says_where_it_is_exact(ranks: int) -> None:
    assert best_spread(hub(ranks, 10), 0) == reached(hub(ranks, 10))
    assert best_spread(hub(ranks, 10, overhead=4), 0) == reached(hub(ranks, 10, overhead=4))


def test_rotations_change_nothing() -> None:
    network = rails(2, 300, 25, 700_000)
    plain = build(
        16,
        [(e.tail, e.head, e.alpha, e.overhead, e.beta) for e in network.edges],
        len(network.switches),
        network.server_of,
    )
    assert reached(network) == reached(plain) > 0

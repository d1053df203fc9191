"""Lower bounds: known machines, hand-computed cases, and validity against true optima."""

import random
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taccl.bounds import KINDS, WORLDS, any_bounds, any_curves, best, fixed_bounds
from taccl.bounds.arrival_curves import Gate, fluid, gather, whole
from taccl.bounds.net import counted, leaves
from taccl.collectives import COLLECTIVES, Collective, build_collective
from taccl.errors import InputError, NoScheduleError
from taccl.model.problem import Bound
from taccl.topology.file import load_topology
from taccl.topology.graph import LogicalTopology, Topology
from taccl.topology.graph import whole as unrestricted
from taccl.units import PS_PER_US
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
from tests.bounds.exhaustive_search import can_beat
from tests.customs import custom, random_custom
from tests.generators import random_schedule
from tests.sweep import for_each

WITH_ROOT = [name for name, kind in COLLECTIVES.items() if kind.has_root]
TB = 10**12
MB = Fraction(10**6)


def algbw(topology: Topology, collective: str) -> float:
    """Return size over the best bound for a terabyte, in GB/s."""
    return TB * 1000 / best(any_bounds(unrestricted(topology), collective, TB)).time


def kinds(bounds: tuple[Bound, ...]) -> dict[str, int]:
    return {bound.kind: bound.time for bound in bounds}


def of_any(topology: Topology, collective: str, size: int) -> dict[str, int]:
    return kinds(any_bounds(unrestricted(topology), collective, size))


def of_fixed(
    topology: Topology, collective: str, chunk: int | Fraction, k: int = 1
) -> dict[str, int]:
    made = build_collective(collective, topology.num_ranks, k)
    return kinds(fixed_bounds(unrestricted(topology), made, Fraction(chunk)))


# --- known machines ----------------------------------------------------------------------------


@for_each(
    ("name", "collective", "expected"),
    [
        ("NDv2_1chassis", "allgather", 1200 / 7),
        ("NDv2_2chassis", "allgather", 25.0),
        ("NDv2_2chassis", "alltoall", 3.125),
        ("NDv2_4chassis", "allgather", 50 / 3),
        ("NDv2_4chassis", "alltoall", 25 / 12),
        ("DGX2_2chassis", "allgather", 4000 / 31),
        ("DGX2_2chassis", "alltoall", 12.5),
        ("forestcoll_mi250_1node", "allgather", 2400 / 7),
        ("forestcoll_mi250_2node", "allgather", 5312 / 15),
    ],
)
def test_bounds_of_published_fabrics(name: str, collective: str, expected: float) -> None:
    assert algbw(shared_graph(name), collective) == pytest.approx(expected, rel=1e-9)


@for_each(
    ("servers", "inside", "outside", "expected"),
    [
        (1, 300, 25, 2400 / 7), (2, 300, 25, 325 * 16 / 15), (3, 300, 25, 300.0),
        (4, 300, 25, 800 / 3), (8, 300, 25, 1600 / 7),
        (1, 450, 50, 3600 / 7), (2, 450, 50, 1600 / 3), (4, 450, 50, 16000 / 31),
        (2, 150, 45.5, 195.5 * 16 / 15), (4, 150, 45.5, 195.5 * 32 / 31),
    ],
)  # fmt: skip
def test_allgather_on_rails(servers: int, inside: float, outside: float, expected: float) -> None:
    assert algbw(rails(servers, inside, outside), "allgather") == pytest.approx(expected, rel=1e-9)


def test_whole_chunks_on_ndv2_ports() -> None:
    # in 71.1 us three chunks enter by each doubled link and one by each single one: 8 >= 7;
    # before that 2 * 2 + 2 * 1 = 6
    assert of_fixed(ndv2(), "allgather", MB)["port"] == 71_100_000


def test_whole_chunks_on_ndv2_ports_with_two_chunks_a_rank() -> None:
    # 5 * 23.7 us: 2 * 5 + 2 * 2 = 14 chunks
    assert of_fixed(ndv2(), "allgather", MB, k=2)["port"] == 118_500_000


def test_whole_chunks_on_a_dgx2_port() -> None:
    assert of_fixed(dgx2(), "allgather", MB)["port"] == 15 * 8_700_000


# --- small truths ------------------------------------------------------------------------------

PAIR: list[Row] = [(0, 1, 100, None, 2), (1, 0, 100, None, 2)]


@pytest.mark.parametrize("rule", ["occupy", "delay"])
def test_one_message_each_way(rule: str) -> None:
    # allgather of 80 bytes on two ranks: 40 bytes each way
    assert of_any(build(2, PAIR, rule=rule), "allgather", 80)["port"] == 100 + 80


@for_each("collective", sorted(COLLECTIVES))
def test_a_pair_needs_alpha_and_the_bytes_that_cross(collective: str) -> None:
    # of sums and of the root's buffer all 80 bytes cross, of the others half of them
    moved = 80 if collective in ("allreduce", "broadcast", "reduce") else 40
    bounds = any_bounds(unrestricted(build(2, PAIR)), collective, 80)
    assert best(bounds).time == 100 + 2 * moved


def test_two_whole_chunks_pay_overhead_twice_under_occupy_only() -> None:
    # k = 2 chunks of 20 bytes: 2 * (100 + 40), or 100 + 2 * 40 when the edge is free at once
    times = [
        of_fixed(build(2, PAIR, rule=r), "allgather", 20, 2)["port"] for r in ("occupy", "delay")
    ]
    assert times == [280, 180]


def test_an_explicit_overhead_is_paid_for_each_chunk_and_the_rest_of_alpha_once() -> None:
    rows: list[Row] = [(0, 1, 100, 30, 2), (1, 0, 100, 30, 2)]
    # each chunk holds the edge for 30 + 40, and the last 70 of alpha come after that
    assert of_fixed(build(2, rows), "allgather", 20, 2)["port"] == 210


def test_latency_adds_alphas_along_relays() -> None:
    rows: list[Row] = [(r, (r + 1) % 4, 100 + r, None, None) for r in range(4)]
    # 0 -> 3 crosses 100 + 101 + 102, 1 -> 0 crosses 101 + 102 + 103
    assert of_any(build(4, rows), "allgather", 8) == {"latency": 306, "reach": 0}


def test_latency_adds_the_bytes_that_enter_the_last_rank() -> None:
    # 0 -> 1 -> 2 and back; one block of 10 bytes from rank 0 enters rank 2 after 2 * 100
    rows: list[Row] = [
        (0, 1, 100, None, 1), (1, 2, 100, None, 3), (2, 1, 100, None, 1), (1, 0, 100, None, 1),
    ]  # fmt: skip
    assert of_any(build(3, rows), "alltoall", 30)["latency"] == 200 + 30


def test_a_gate_that_opens_late_counts_from_then_on() -> None:
    # two gates of 1 ps a byte, open from 0 and from 100: 50 bytes by 50, 300 bytes by 200
    curve = fluid("port", gather([Gate(0, Fraction(1)), Gate(100, Fraction(1))]), Fraction(1))
    assert curve is not None
    assert [curve.at(50), curve.at(300)] == [50, 200]


def test_whole_messages_fill_gates_one_after_the_other() -> None:
    # gates of 10 and 25 ps: by 50 they pass 5 + 2
    gates = gather([Gate(0, Fraction(10)), Gate(0, Fraction(25))])
    assert [whole(gates, 7), whole(gates, 8)] == [50, 60]


def test_a_shared_nic_bounds_its_server() -> None:
    # ranks 0, 1 and 2, 3; each server's way out is one edge of 4 ps a byte, inside all is free
    rows: list[Row] = [(a, 4 + a // 2, 0, None, 1) for a in range(4)]
    rows += [(4, 5, 0, None, 4), (5, 4, 0, None, 4)]
    rows += [(4, a, 0, None, 1) for a in (0, 1)] + [(5, a, 0, None, 1) for a in (2, 3)]
    topology = build(4, rows, switches=2, servers=[0, 0, 1, 1])
    # 2 blocks of 100 bytes cross a NIC
    assert of_any(topology, "allgather", 400)["port"] == 800


def test_cut_finds_the_narrow_place_inside_a_server() -> None:
    # a chain of 4 ranks, 1 ps a byte, but 10 between 1 and 2
    rows: list[Row] = []
    for a, beta in ((0, 1), (1, 10), (2, 1)):
        rows += [(a, a + 1, 0, None, beta), (a + 1, a, 0, None, beta)]
    topology = build(4, rows)
    bounds = of_any(topology, "allgather", 400)
    # 2 blocks of 100 bytes at 10 ps a byte; the ports see only the 3 blocks into rank 0 and 3
    assert bounds["cut"] == 2000
    assert bounds["port"] == 300


def test_flow_sees_what_no_port_does() -> None:
    # a ring of 4 in one direction: 4 * (1 + 2 + 3) blocks cross 4 edges: 6 each of 100 bytes
    rows: list[Row] = [(r, (r + 1) % 4, 0, None, 1) for r in range(4)]
    assert of_any(build(4, rows), "alltoall", 400)["flow"] == 600


def test_flow_with_whole_chunks_pays_overhead_for_each() -> None:
    rows: list[Row] = [(r, (r + 1) % 4, 50, None, 1) for r in range(4)]
    # 6 chunks of 100 bytes on every edge, each 50 + 100
    assert of_fixed(build(4, rows), "alltoall", 100)["flow"] == 900


def test_flow_finds_the_same_bound_with_declared_rotations() -> None:
    plain = rails(2, 300, 25)
    times = [of_any(t, "alltoall", 10**9)["flow"] for t in (plain, replace(plain, rotations=()))]
    assert times[0] == times[1]


def test_reduce_counts_two_messages_less_two_for_every_piece() -> None:
    # a two-way ring of 4: 2 * 3 * 400 bytes over 8 edges of 1 ps a byte
    rows: list[Row] = []
    for r in range(4):
        rows += [(r, (r + 1) % 4, 0, None, 1), ((r + 1) % 4, r, 0, None, 1)]
    assert of_any(build(4, rows), "allreduce", 400)["reduce"] == 300


def test_reduce_treats_servers_as_parties() -> None:
    # three servers of 2 behind one NIC each (2 ps a byte): 2 * 2 pieces over 3 NICs
    rows: list[Row] = []
    for server in range(3):
        tx, rx = 6 + 2 * server, 7 + 2 * server
        for rank in (2 * server, 2 * server + 1):
            rows += [(rank, tx, 0, None, Fraction(1, 100)), (rx, rank, 0, None, Fraction(1, 100))]
        rows += [(tx, 12, 0, None, 2), (12, rx, 0, None, 2)]
        rows += [(2 * server, 2 * server + 1, 0, None, Fraction(1, 100))]
        rows += [(2 * server + 1, 2 * server, 0, None, Fraction(1, 100))]
    topology = build(6, rows, switches=7, servers=[0, 0, 1, 1, 2, 2])
    assert of_any(topology, "allreduce", 300)["reduce"] == 4 * 300 * 2 // 3


def test_ring_allreduce_meets_its_bound_without_latency() -> None:
    # 2 (n-1)/n * size on a one-way ring of 5
    rows: list[Row] = [(r, (r + 1) % 5, 0, None, 3) for r in range(5)]
    assert best(any_bounds(unrestricted(build(5, rows)), "allreduce", 500)).time == 8 * 100 * 3


@pytest.mark.parametrize("collective", ["allgather", "reducescatter"])
def test_reducescatter_is_bounded_like_allgather_on_the_reversed_network(collective: str) -> None:
    other = {"allgather": "reducescatter", "reducescatter": "allgather"}[collective]
    rng = random.Random(5)
    rows: list[Row] = [
        (a, b, rng.randint(0, 90), None, rng.randint(1, 9))
        for a in range(4)
        for b in range(4)
        if a != b
    ]
    topology = build(4, rows)
    assert of_any(topology, collective, 4000) == of_any(topology.reversed(), other, 4000)


def test_an_edge_on_no_link_does_not_count() -> None:
    # a way through a switch beside a direct edge is no link
    rows: list[Row] = [*PAIR, (0, 2, 0, None, 1), (2, 1, 0, None, 1)]
    assert of_any(build(2, rows, switches=1), "allgather", 80) == of_any(
        build(2, PAIR), "allgather", 80
    )


def test_edges_without_bandwidth_add_only_their_alpha() -> None:
    rows: list[Row] = [(0, 2, 10, None, None), (2, 1, 5, None, 3), (1, 0, 1, None, None)]
    # 0 -> 1 crosses 10 + 5 and 40 bytes at 3 ps
    assert of_any(build(2, rows, switches=1), "allgather", 80)["port"] == 15 + 120


# --- one root ------------------------------------------------------------------------------------


def chain(*betas: int) -> list[Row]:
    """0 -> 1 -> 2 ..., one way, alpha 100 ps."""
    return [(r, r + 1, 100, None, beta) for r, beta in enumerate(betas)]


def of_root(rows: list[Row], name: str, root: int, size: int) -> dict[str, int]:
    ranks = 1 + max(max(row[0], row[1]) for row in rows)
    made = build_collective(name, ranks, 1, root)
    return kinds(any_bounds(unrestricted(build(ranks, rows)), made, size))


def test_a_broadcast_down_a_one_way_chain_is_bounded_by_its_slowest_wire() -> None:
    # Nothing gets from 3 to 0, and nothing needs to.
    bounds = of_root(chain(1, 5, 2), "broadcast", 0, 1000)
    assert bounds["cut"] == 100 + 5 * 1000
    # Rank 2 gets them by that wire, from one alpha later on.
    assert bounds["latency"] == 200 + 5 * 1000


def test_a_reduction_up_a_one_way_chain_is_bounded_like_the_broadcast_down() -> None:
    backwards: list[Row] = [(b, a, 100, None, beta) for a, b, _, _, beta in chain(1, 5, 2)]
    assert of_root(backwards, "reduce", 0, 1000) == of_root(chain(1, 5, 2), "broadcast", 0, 1000)


def test_a_root_that_can_not_reach_a_rank_is_named_with_it() -> None:
    with pytest.raises(NoScheduleError, match="rank 0 can't be reached from rank 1"):
        of_root(chain(1, 1), "scatter", 1, 8)
    with pytest.raises(NoScheduleError, match="rank 1 can't be reached from rank 2"):
        of_root(chain(1, 1), "gather", 1, 8)


def test_a_gather_is_bounded_by_the_ranks_behind_a_narrow_wire() -> None:
    # 3 -> 2 -> 1 -> 0: the blocks of 2 and 3 cross the wire of 5 ps a byte.
    rows: list[Row] = [(3, 2, 0, None, 1), (2, 1, 0, None, 5), (1, 0, 0, None, 1)]
    bounds = of_root(rows, "gather", 0, 400)
    assert bounds["flow"] == 2 * 100 * 5
    # A port looks at the block of rank 2 alone, or at three blocks into rank 0.
    assert bounds["port"] == 100 * 5


def test_a_scatter_is_bounded_like_the_gather_on_the_reversed_network() -> None:
    rows: list[Row] = [(3, 2, 0, None, 1), (2, 1, 0, None, 5), (1, 0, 0, None, 1)]
    turned: list[Row] = [(b, a, alpha, overhead, beta) for a, b, alpha, overhead, beta in rows]
    assert of_root(turned, "scatter", 0, 400) == of_root(rows, "gather", 0, 400)


def test_a_scatter_on_a_star_fills_the_roots_port() -> None:
    # Three blocks of 100 bytes leave rank 0 at 2 ps a byte, and the last one has its alpha.
    rows: list[Row] = [(r, 4, 10, None, 2) for r in range(4)]
    rows += [(4, r, 0, None, 1) for r in range(4)]
    made = build_collective("scatter", 4, 1)
    star = unrestricted(build(4, rows, switches=1))
    assert best(any_bounds(star, made, 400)).time == 10 + 3 * 200
    # One chunk to a message: each holds the port for alpha as well.
    assert best(fixed_bounds(star, made, Fraction(100))).time == 3 * 210


@pytest.mark.parametrize("name", sorted(COLLECTIVES))
@given(data=st.data())
def test_what_must_leave_a_set_is_what_the_chunks_say(name: str, data: st.DataObject) -> None:
    ranks = data.draw(st.integers(2, 6))
    root = data.draw(st.integers(0, ranks - 1)) if name in WITH_ROOT else None
    made = build_collective(name, ranks, data.draw(st.integers(1, 2)), root)
    inside = data.draw(st.lists(st.integers(0, ranks - 1), min_size=1, max_size=ranks - 1,
                                unique=True))  # fmt: skip
    assert leaves(made, inside) == counted(made, inside)


# --- collectives from files ----------------------------------------------------------------------

RING: list[Row] = [(r, (r + 1) % 4, 0, None, 1) for r in range(4)]


def of_custom(rows: list[Row], fields: dict[str, Any], size: int) -> dict[str, int]:
    made = custom(fields)
    return kinds(any_bounds(unrestricted(build(made.num_ranks, rows)), made, size))


def test_chunks_between_neighbours_share_no_wire() -> None:
    shift = [{"id": r, "input": {r: 0}, "output": {(r + 1) % 4: 0}} for r in range(4)]
    assert max(of_custom(RING, {"ranks": 4, "chunks": shift}, 100).values()) == 100


def test_chunks_against_the_ring_fill_it() -> None:
    # Each of four chunks crosses three wires, of which there are four.
    back = [{"id": r, "input": {r: 0}, "output": {(r - 1) % 4: 0}} for r in range(4)]
    assert of_custom(RING, {"ranks": 4, "chunks": back}, 100)["flow"] == 300


def test_a_chunk_that_several_ranks_have_comes_from_the_nearest() -> None:
    chunk = {"id": 0, "input": {0: 0, 2: 3}, "output": {3: 0}}
    rows: list[Row] = [(r, (r + 1) % 4, 10, None, 1) for r in range(4)]
    # The largest buffer is rank 2's, of four chunks: this one is a quarter of the size.
    bounds = of_custom(rows, {"ranks": 4, "chunks": [chunk]}, 400)
    assert max(bounds.values()) == 10 + 100
    summed = of_custom(rows, {"ranks": 4, "chunks": [chunk], "reduces": True}, 400)
    assert summed["latency"] == 30 + 100


def test_a_chunk_that_nobody_must_send_takes_no_time() -> None:
    here = {"id": 0, "input": {1: 0}, "output": {1: 2}}
    assert of_custom(RING, {"ranks": 4, "chunks": [here]}, 100) == {"latency": 0, "reach": 0}


def test_ranks_that_a_file_joins_must_be_connected() -> None:
    with pytest.raises(NoScheduleError, match="rank 0 can't be reached from rank 2"):
        of_custom(
            chain(1, 1), {"ranks": 3, "chunks": [{"id": 0, "input": {2: 0}, "output": {0: 0}}]}, 8
        )


@for_each("seed", range(40), quick=14)
def test_no_bound_of_a_file_is_above_the_optimum(seed: int) -> None:
    rng = random.Random(seed)
    # Odd numbers: chunks that are copied, from any of their sources.
    check(random_network(rng, 3), random_custom(2 * seed + 1, 3), rng.choice([1, 4, 30]))


# --- worlds, sketches, errors --------------------------------------------------------------------


def ring_with_chords() -> Topology:
    return build(4, [(a, b, 10, None, 1) for a in range(4) for b in range(4) if a != b])


def restricted(topology: Topology) -> LogicalTopology:
    allowed = np.zeros(len(topology.links), dtype=np.bool_)
    for rank in range(4):
        allowed[list(topology.links_between(rank, (rank + 1) % 4))] = True
    return LogicalTopology(topology, allowed, name="ring")


def test_a_sketch_bounds_only_what_uses_its_links() -> None:
    bounds = any_bounds(restricted(ring_with_chords()), "allgather", 400)
    assert {bound.world for bound in bounds} == {"sketch"}
    # three hops of alpha, and three blocks of 100 bytes into every rank by one edge
    assert kinds(bounds)["port"] == 10 + 300
    assert kinds(bounds)["latency"] >= 30


def test_without_a_sketch_bounds_hold_for_any_algorithm() -> None:
    bounds = any_bounds(unrestricted(ring_with_chords()), "allgather", 400)
    assert {bound.world for bound in bounds} == {"any"}


def test_fixed_bounds_say_so() -> None:
    bounds = fixed_bounds(unrestricted(ndv2()), build_collective("allgather", 8, 1), MB)
    assert {bound.world for bound in bounds} == {"fixed"}


def test_ranks_that_are_not_connected_are_named() -> None:
    with pytest.raises(NoScheduleError, match="rank 0 can't be reached from rank 1"):
        any_bounds(unrestricted(build(2, PAIR[:1])), "allgather", 8)


@for_each("collective", sorted(COLLECTIVES))
def test_one_rank_needs_no_time(collective: str) -> None:
    assert best(any_bounds(unrestricted(build(1, [])), collective, 80)).time == 0


def test_an_unknown_collective_is_an_error() -> None:
    with pytest.raises(InputError, match="unknown collective 'alltosome'"):
        any_bounds(unrestricted(build(2, PAIR)), "alltosome", 8)


def test_every_kind_says_what_it_is() -> None:
    for collective in sorted(COLLECTIVES):
        made = build_collective(collective, 8, 1)
        found = fixed_bounds(unrestricted(ndv2()), made, MB)
        assert {bound.kind for bound in found} <= set(KINDS)
        assert {bound.world for bound in found} <= set(WORLDS)


def test_what_was_asked_before_is_known() -> None:
    # The same topology and links; another collective object and another view of all links.
    network = ndv2()
    first = any_curves(unrestricted(network), build_collective("allgather", 8, 1))
    assert any_curves(unrestricted(network), build_collective("allgather", 8, 4)) is first
    assert any_curves(unrestricted(network), build_collective("allreduce", 8, 1)) is not first
    assert any_curves(unrestricted(ndv2()), build_collective("allgather", 8, 1)) is not first
    rooted = [
        any_bounds(unrestricted(network), build_collective("gather", 8, 1, r), 8) for r in (0, 1)
    ]
    assert rooted[0] == rooted[1]


def test_best_is_the_largest_bound() -> None:
    bounds = (Bound("port", "any", 3), Bound("cut", "any", 7), Bound("flow", "any", 7))
    assert best(bounds) == bounds[1]


def test_curves_give_the_bounds_of_all_sizes() -> None:
    logical = unrestricted(rails(2, 300, 25, 700_000))
    curves = any_curves(logical, "alltoall")
    for size in (1000, 10**6, 10**9):
        times = best(any_bounds(logical, "alltoall", size)).time
        assert max(curve.at(size) for curve in curves) == times


# --- laws ----------------------------------------------------------------------------------------


def random_network(rng: random.Random, ranks: int) -> Topology:
    """Return connected ranks: wires, some parallel, some without bandwidth, or a switch."""
    rows: list[Row] = []
    for a in range(ranks):
        pairs = {(a, (a + 1) % ranks)} | {
            (a, b) for b in range(ranks) if b != a and rng.random() < 0.4
        }
        for tail, head in sorted(pairs):
            rows += [_random_row(rng, tail, head) for _ in range(rng.choice([1, 1, 1, 2]))]
    switches = rng.choice([0, 0, 1])
    if switches:
        rows = [row for row in rows if rng.random() < 0.4]
        rows += [_random_row(rng, a, ranks) for a in range(ranks)]
        rows += [_random_row(rng, ranks, a) for a in range(ranks)]
    servers = [rng.choice([0, 1]) for _ in range(ranks)]
    return build(ranks, rows, switches, servers, rng.choice(["occupy", "delay"]))


def _random_row(rng: random.Random, tail: int, head: int) -> Row:
    alpha = rng.choice([0, 0, 3, 10, 50])
    overhead = rng.choice([None, None, rng.randint(0, alpha)])
    beta = rng.choice([Fraction(1), Fraction(2), Fraction(7, 3), None if rng.random() < 0.3 else 5])
    return (tail, head, alpha, overhead, beta)


def check(topology: Topology, made: Collective, chunk: int) -> None:
    """Assert that no order of sends of one chunk each ends before a bound."""
    logical = unrestricted(topology)
    fixed = best(fixed_bounds(logical, made, Fraction(chunk)))
    free = best(any_bounds(logical, made, chunk * made.chunks_in_size))
    highest = max(fixed, free, key=lambda bound: bound.time)
    assert not highest.time or not can_beat(topology, made, Fraction(chunk), highest.time), highest


@pytest.mark.parametrize("collective", ["allgather", "reducescatter"])
def test_the_search_beats_what_is_above_the_optimum_only(collective: str) -> None:
    # a one-way ring of three: two hops of 100 + 2 * 20
    rows: list[Row] = [(r, (r + 1) % 3, 100, None, 2) for r in range(3)]
    made = build_collective(collective, 3, 1)
    found = [can_beat(build(3, rows), made, Fraction(20), claim) for claim in (280, 281)]
    assert found == [False, True]


@for_each("seed", range(45), quick=18, parts=2)
@for_each("collective", ["allgather", "reducescatter", "alltoall"])
def test_no_bound_is_above_the_optimum_on_three_ranks(collective: str, seed: int) -> None:
    rng = random.Random(seed)
    made = build_collective(collective, 3, 1)
    check(random_network(rng, 3), made, rng.choice([1, 4, 30]))


TIGHT = [
    ("cut", 1, "allgather"), ("drain", 2, "broadcast"), ("drain", 6, "allgather"),
    ("flow", 12, "alltoall"), ("latency", 4, "allgather"), ("packing", 1, "broadcast"),
    ("port", 8, "allgather"), ("reach", 0, "allgather"),
]  # fmt: skip


@for_each(("kind", "seed", "collective"), TIGHT)
def test_a_bound_one_picosecond_higher_would_be_noticed(
    kind: str, seed: int, collective: str
) -> None:
    rng = random.Random(seed)
    network = two_servers(rng, (2, 1)) if seed % 2 else random_network(rng, 3)
    root, k = (0, 2) if collective == "broadcast" else (None, 1)
    made = build_collective(collective, 3, k, root)
    bound = kinds(fixed_bounds(unrestricted(network), made, Fraction(4)))[kind]
    assert not can_beat(network, made, Fraction(4), bound)
    assert can_beat(network, made, Fraction(4), bound + 1)


@for_each("seed", range(25), quick=40, parts=2)
@for_each("chunks", [1, 2])
@for_each("collective", WITH_ROOT)
def test_no_bound_with_a_root_is_above_the_optimum(collective: str, chunks: int, seed: int) -> None:
    rng = random.Random(f"{seed} {chunks}")
    ranks = rng.choice([3, 4]) if chunks == 1 else 3
    made = build_collective(collective, ranks, chunks, rng.randrange(ranks))
    check(random_network(rng, ranks), made, rng.choice([1, 4, 30]))


@pytest.mark.parametrize("seed", range(6))
def test_no_bound_is_above_the_optimum_on_a_ring_of_four(seed: int) -> None:
    rng = random.Random(seed)
    rows = [_random_row(rng, r, (r + 1) % 4) for r in range(4)]
    topology = build(4, rows, rule=rng.choice(["occupy", "delay"]))
    check(topology, build_collective("allgather", 4, 1), rng.choice([1, 8]))


@for_each("seed", range(30), quick=48, parts=2)
@for_each("collective", sorted(COLLECTIVES))
def test_no_bound_is_above_a_random_schedule(collective: str, seed: int) -> None:
    schedule = random_schedule(seed, collective).expand()
    logical = unrestricted(schedule.topology)
    made = schedule.collective
    size = schedule.chunk_size * made.chunks_in_size
    free = best(any_bounds(logical, made, int(size)))
    assert free.time <= schedule.makespan, free
    if not schedule.batches:
        fixed = best(fixed_bounds(logical, made, schedule.chunk_size))
        assert fixed.time <= schedule.makespan, fixed


@for_each("seed", range(20), quick=32)
@for_each("collective", sorted(COLLECTIVES))
def test_fixed_bounds_are_at_least_those_of_any(collective: str, seed: int) -> None:
    topology = random_network(random.Random(seed), 4)
    size = 100 * build_collective(collective, 4, 1).chunks_in_size
    fixed, free = of_fixed(topology, collective, 100), of_any(topology, collective, size)
    assert all(fixed[kind] >= free[kind] for kind in free if kind in ("port", "latency"))


@for_each("seed", range(20), quick=32)
@for_each("collective", sorted(COLLECTIVES))
def test_a_faster_edge_never_raises_a_bound(collective: str, seed: int) -> None:
    rng = random.Random(seed)
    topology = random_network(rng, 4)
    edge = rng.choice([e for e in topology.edges if e.beta is not None])
    edges = tuple(
        replace(e, beta=e.beta / 2) if e == edge and e.beta else e for e in topology.edges
    )
    faster = replace(topology, edges=edges)
    before = best(any_bounds(unrestricted(topology), collective, 4000)).time
    after = best(any_bounds(unrestricted(faster), collective, 4000)).time
    assert after <= before


def test_an_alltoall_of_one_server_is_bounded_by_its_ports() -> None:
    half: list[Row] = [(r, 4, PS_PER_US, None, rate(100)) for r in range(4)]
    half += [(4, r, 0, None, rate(100)) for r in range(4)]
    made = fixed_bounds(
        unrestricted(build(4, half, 1)), build_collective("alltoall", 4, 2), Fraction(10**5)
    )
    # 6 chunks of 1 us each, and alpha 1 us for each
    assert kinds(made)["port"] == kinds(made)["flow"] == 12 * PS_PER_US


def test_whole_chunks_of_allreduce_fill_ports() -> None:
    # a one-way ring of 3: 3 chunks, each needs 4 messages: 4 on every edge of (10 + 20)
    rows: list[Row] = [(r, (r + 1) % 3, 10, None, 1) for r in range(3)]
    made = fixed_bounds(
        unrestricted(build(3, rows)), build_collective("allreduce", 3, 1), Fraction(20)
    )
    assert kinds(made)["reduce"] == 4 * 30


def test_a_chunk_that_takes_years_is_refused() -> None:
    slow = build(2, [(0, 1, 0, None, 10**9), (1, 0, 0, None, 10**9)])
    with pytest.raises(InputError, match=r"a chunk of 1\.12\d*e\+06GB takes 1\.13e\+12 s"):
        fixed_bounds(unrestricted(slow), build_collective("allgather", 2, 1), Fraction(1 << 50))


LIMITS = [
    "cut.MOST_ARCS", "last_arrival.MANY_RANKS", "last_arrival.MOST_GATEWAYS",
    "last_arrival.MOST_LINKS", "last_arrival.SLOTS", "flow.MOST_VARIABLES", "latency.FEW",
    "latency.MANY_RANKS", "latency.MOST_RANKS", "cut.MOST_VISITS", "dissemination.MANY_RANKS",
    "dissemination.MOST_MOMENTS", "dissemination.MOST_SOURCES", "reduce.MANY_RANKS",
    "cut.MANY_RANKS", "cut.MOST_SET_VISITS", "packing.MOST_LINKS", "reduce.MOST_LINKS",
    "reduce.ROUNDS",
]  # fmt: skip


def of_ndv2(collective: str) -> tuple[int, int]:
    """Return the bounds of a MiB for any algorithm, and of a megabyte in one chunk."""
    network, made = unrestricted(ndv2()), build_collective(collective, 8, 1)
    free = best(any_bounds(network, collective, 1 << 20)).time
    return free, best(fixed_bounds(network, made, MB)).time


@cache
def with_all_ideas(collective: str) -> tuple[int, int]:
    return of_ndv2(collective)


@for_each("collective", ["allgather", "allreduce", "broadcast"], quick=18, parts=2)
@for_each("idea", LIMITS)
def test_ideas_left_out_on_big_machines_only_lower_the_bound(collective: str, idea: str) -> None:
    full = with_all_ideas(collective)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"taccl.bounds.{idea}", 1)
        left = of_ndv2(collective)
    assert 0 < left[0] <= full[0]
    assert left[1] > 0


def test_planes_of_shortest_trees_find_the_prices_of_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def flow(machine: str, **limits: int) -> int:
        with monkeypatch.context() as patch:
            for limit, value in limits.items():
                patch.setattr(f"taccl.bounds.flow.{limit}", value)
            return of_any(load_topology(machine), "alltoall", 1 << 20)["flow"]

    # With one plane a unit costs the time that it takes, which is the best where sides are equal.
    for machine, alike in (
        ("ring:6", True), ("torus2d:4x4", True), ("torus2d:4x8", False), ("torus3d:4x2x6", False),
        ("leaf-spine:2x3x2", False), ("dgx-a100", True), ("dragonfly", False), ("mesh2d", False),
    ):  # fmt: skip
        solved = flow(machine)
        assert flow(machine, MOST_SOLVED=1) == solved, machine
        plain = flow(machine, MOST_SOLVED=1, MOST_PLANES=1)
        assert plain == solved if alike else 0 < plain < solved, machine


def test_few_planes_only_lower_the_bound_where_ranks_are_not_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen = random.Random(1)
    pairs = {(rank, (rank + 1) % 12) for rank in range(12)}
    pairs |= {(a, a + chosen.randint(2, 11 - a)) for a in range(9)}
    rows = [
        (*ends, 1, None, Fraction(chosen.randint(1, 5)))
        for a, b in sorted(pairs) for ends in ((a, b), (b, a))
    ]  # fmt: skip
    network = build(12, rows)
    solved = of_any(network, "alltoall", 1 << 20)["flow"]
    monkeypatch.setattr("taccl.bounds.flow.MOST_SOLVED", 1)
    found = []
    for planes in (1, 4, 64):
        monkeypatch.setattr("taccl.bounds.flow.MOST_PLANES", planes)
        found.append(of_any(replace(network), "alltoall", 1 << 20)["flow"])
    assert 0 < found[0] <= found[1] <= found[2] <= solved
    assert found[0] < found[2]

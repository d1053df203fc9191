"""What enters a server last must still spread in it: hand cases, known makespans, true optima."""

import random
from fractions import Fraction

import pytest

from taccl.bounds import best, fixed_bounds
from taccl.bounds.arrival_curves import Gate, Gates
from taccl.bounds.last_arrival import IngressSet, last_arrival_time, service_time
from taccl.bounds.net import make_net
from taccl.collectives import Collective, build_collective
from taccl.topology.file import load_topology
from taccl.topology.graph import Topology, whole
from tests.bounds.bound_networks import Row, build, two_servers
from tests.bounds.exhaustive_search import can_beat
from tests.generators import twin2x2
from tests.sweep import for_each


def drain_of(topology: Topology, made: Collective, chunk: int) -> int:
    return last_arrival_time(make_net(whole(topology), made, Fraction(chunk)), made)


def named(
    topology: Topology, name: str, k: int = 1, chunk: int = 5, root: int | None = None
) -> int:
    return drain_of(topology, build_collective(name, topology.num_ranks, k, root), chunk)


# --- hand cases ----------------------------------------------------------------------------------


@pytest.mark.parametrize("collective", ["allgather", "reducescatter"])
def test_the_second_chunk_through_a_nic_is_passed_on_inside(collective: str) -> None:
    # Two chunks come into a server by its one NIC, at 20 + 4 * 5 = 40 and 80; the second has
    # still to cross the wire inside: 10 + 5.
    assert named(twin2x2(), collective) == 95


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
def test_a_bound_one_higher_would_be_noticed(collective: str) -> None:
    # The same with one rank outside, small enough to try all orders.
    rows: list[Row] = [(0, 1, 10, None, 1), (1, 0, 10, None, 1)]
    rows += [(2, 3, 20, None, 4), *((3, r, 0, None, None) for r in (0, 1))]
    rows += [(4, 2, 20, None, 4), *((r, 4, 0, None, None) for r in (0, 1))]
    network = build(3, rows, 2, (0, 0, 1))
    made = build_collective(collective, 3, 2, 2)
    assert drain_of(network, made, 5) == 95
    assert not can_beat(network, made, Fraction(5), 95)
    assert can_beat(network, made, Fraction(5), 96)


def test_a_chunk_that_comes_in_twice_needs_no_passing_on() -> None:
    # A NIC for each rank, as fast as the wire inside: both chunks of the other server come to
    # both ranks from outside, at 15 and 30, which is as soon as passing one on.
    rows: list[Row] = [(0, 1, 10, None, 1), (1, 0, 10, None, 1)]
    rows += [(2, 3, 10, None, 1), (3, 2, 10, None, 1)]
    rows += [(a, b, 10, None, 1) for a, b in ((0, 2), (2, 0), (1, 3), (3, 1), (0, 3), (2, 1))]
    network = build(4, rows, servers=(0, 0, 1, 1))
    made = build_collective("allgather", 4, 1)
    assert drain_of(network, made, 5) == 30
    assert not can_beat(network, made, Fraction(5), 30)


def test_a_broadcast_goes_on_from_the_roots_neighbour() -> None:
    # Chunks leave the root at 30, 60, 90 and have one more wire to go.
    rows: list[Row] = [(0, 1, 10, None, 1), (1, 2, 10, None, 1)]
    assert named(build(3, rows), "broadcast", k=3, chunk=20) == 4 * 30
    turned = build(3, [(1, 0, 10, None, 1), (2, 1, 10, None, 1)])
    assert named(turned, "reduce", k=3, chunk=20) == 4 * 30


def test_an_allreduce_comes_in_and_spreads_as_well() -> None:
    # Four chunks by 20 + 4 * 5 each, and one more wire of 15.
    assert named(twin2x2(), "allreduce") == 4 * 40 + 15


@pytest.mark.parametrize("collective", ["alltoall", "scatter", "gather"])
def test_what_one_rank_wants_does_not_spread(collective: str) -> None:
    assert named(twin2x2(), collective) == 0


def gates(*rows: tuple[int, int, int]) -> Gates:
    return tuple((Gate(start, Fraction(busy)), count) for start, busy, count in rows)


def ingress(inside: tuple[Gates, ...], chunks: int = 4, spread: int = 0) -> IngressSet:
    """Four members want all chunks, which come in one every 10."""
    return IngressSet((gates((0, 10, 1)),), inside, ((4, chunks),), spread)


def test_each_late_chunk_needs_a_reception_at_every_other_member() -> None:
    # In at 10, 20, 30, 40, of 3 each: the last needs 3 receptions after 40, the last two 6 after
    # 30, and so on: all 12 after 10, by 46.
    assert service_time(ingress((gates((0, 3, 1)),))) == 49
    # Of 4 each: by 58. But at 50 one chunk may have come in again, and 11 are enough: by 54.
    assert service_time(ingress((gates((0, 4, 1)),))) == 54
    # Of 8 each: at 80 four may have come in again, and 8 are enough; at 79 three, and 9 are not.
    assert service_time(ingress((gates((0, 8, 1)),))) == 80


def test_two_ports_share_the_receptions() -> None:
    # 12 after 10 by ports of 4 and 6: by 40, 7 and 5; and 3 after 40: 1 by 46, so 48: 2 and 1.
    assert service_time(ingress((gates((0, 4, 1), (0, 6, 1)),))) == 48


def test_nothing_passes_on_inside_where_members_have_no_links() -> None:
    # Each of 16 receptions is an entry.
    assert service_time(ingress(((),))) == 160


def test_what_enters_once_takes_its_way_inside() -> None:
    # The last enters at 40 and takes 7; had it (or all) time to come in again, it would be 50.
    assert service_time(ingress((), spread=7)) == 47
    # At 50 one chunk may have entered twice: then one of the last two enters once, at 30 or later.
    assert service_time(ingress((), spread=15)) == 50
    assert service_time(ingress((), spread=25)) == 55


def test_a_floor_is_kept() -> None:
    assert service_time(ingress(()), floor=999) == 999


# --- known machines ------------------------------------------------------------------------------

KNOWN = [
    ("ndv2", 1, 1, 71_100_000), ("ndv2", 2, 4, 921_050_000), ("dgx2", 1, 1, 130_500_000),
    ("dgx2", 2, 1, 285_000_000), ("dgx2", 2, 4, 321_300_000), ("torus2d:4x4", None, 1, 82_800_000),
    ("torus2d:8x8", None, 1, 331_200_000), ("torus2d:32x32", None, 1, 5_299_200_000),
    ("dgx-a100", 2, 1, 69_933_338), ("dgx-a100", 8, 1, 320_133_338),
    ("dgx-a100", 32, 1, 1_320_933_338),
]  # fmt: skip


@for_each("collective", ["allgather", "reducescatter"], quick=11)
@for_each(("name", "nodes", "k", "makespan"), KNOWN)
def test_bounds_of_a_megabyte_for_each_rank_are_known_makespans(
    name: str, nodes: int | None, k: int, makespan: int, collective: str
) -> None:
    # Schedules with these makespans exist: TACCL's costs, one chunk to a message, occupy.
    network = load_topology(name, nodes=nodes)
    made = build_collective(collective, network.num_ranks, k)
    assert best(fixed_bounds(whole(network), made, Fraction(10**6, k))).time == makespan


# --- true optima ---------------------------------------------------------------------------------


def check(topology: Topology, made: Collective, chunk: int) -> bool:
    """Assert that nothing beats the bound; tell whether something meets it."""
    bound = drain_of(topology, made, chunk)
    assert not bound or not can_beat(topology, made, Fraction(chunk), bound)
    return bool(bound) and can_beat(topology, made, Fraction(chunk), bound + 1)


@pytest.mark.parametrize("collective", ["allgather", "reducescatter", "broadcast", "reduce"])
def test_nothing_is_faster_on_two_servers(collective: str) -> None:
    tight = 0
    for seed in range(40):
        rng = random.Random(f"{seed} {collective}")
        network = two_servers(rng, rng.choice([(2, 1), (1, 2)]))
        rooted = collective in ("broadcast", "reduce")
        k = rng.choice([1, 2]) if rooted else 1
        made = build_collective(collective, 3, k, rng.randrange(3) if rooted else None)
        tight += check(network, made, rng.choice([1, 4, 30]))
    assert tight >= 3


@for_each("seed", range(12))
def test_nothing_is_faster_on_two_servers_of_two(seed: int) -> None:
    rng = random.Random(seed)
    check(two_servers(rng, (2, 2)), build_collective("broadcast", 4, 2, seed % 4), 4)

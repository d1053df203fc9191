"""The packing bound: by hand where ports are shared, above every cut, below every optimum."""

import random
from fractions import Fraction

import numpy as np
import pytest

from taccl.bounds import packing
from taccl.bounds.arrival_curves import fluid, whole
from taccl.bounds.cut import cut_crossings
from taccl.bounds.net import make_net
from taccl.bounds.packing import packing_crossings
from taccl.collectives import Collective, build_collective
from taccl.prices.packing import Floats, PackingInstance
from taccl.topology.file import load_topology
from taccl.topology.graph import Topology
from taccl.topology.graph import whole as unrestricted
from tests.bounds.bound_networks import Row, build, rails, rate, shared_graph
from tests.bounds.exhaustive_search import can_beat
from tests.bounds.test_bounds import random_network
from tests.customs import custom
from tests.generators import random_schedule, random_topology
from tests.sweep import for_each

TB = 10**12
SPANNING = ("allgather", "reducescatter", "broadcast", "reduce")


def of_any(topology: Topology, made: Collective, size: int) -> int:
    """Return the packing bound for every algorithm, 0 where there is none."""
    found = packing_crossings(make_net(unrestricted(topology), made), made)
    curves = [fluid(crossing.kind, crossing.gates, crossing.share) for crossing in found]
    return max((curve.at(size) for curve in curves if curve is not None), default=0)


def of_fixed(topology: Topology, made: Collective, chunk: Fraction) -> int:
    """Return the packing bound for one chunk to a message, 0 where there is none."""
    found = packing_crossings(make_net(unrestricted(topology), made, chunk), made)
    return max((whole(c.gates, c.share * made.chunks_in_size) for c in found), default=0)


def the(collective: str, topology: Topology, chunks: int = 1) -> Collective:
    return build_collective(collective, topology.num_ranks, chunks)


# --- by hand -----------------------------------------------------------------------------------


def one_port() -> Topology:
    """Ranks 1 and 2 receive by one port (2 ps a byte); each has a wire to rank 0."""
    rows: list[Row] = [(rank, 3, 0, None, None) for rank in range(3)]
    rows += [(3, 4, 10, None, 2), (4, 1, 0, None, None), (4, 2, 0, None, None)]
    return build(3, [*rows, (1, 0, 10, None, 1), (2, 0, 10, None, 1)], 2)


def test_a_shared_port_carries_every_copy() -> None:
    # Of 300 bytes those of rank 0 pass the port twice, those of ranks 1 and 2 once: 4 * 100.
    # By cuts each of them passes once for the rank that needs most: 2 * 100.
    topology = one_port()
    assert of_any(topology, the("allgather", topology), 300) == 10 + 2 * 400
    assert of_fixed(topology, the("allgather", topology), Fraction(100)) == 4 * (10 + 200)


def test_sums_pay_for_a_shared_port_as_copies_do_on_the_network_turned_round() -> None:
    rows: list[Row] = [(e.head, e.tail, e.alpha, e.overhead, e.beta) for e in one_port().edges]
    turned = build(3, rows, 2)
    assert of_any(turned, the("reducescatter", turned), 300) == 10 + 2 * 400


def test_two_dgx2_share_nics() -> None:
    # Of 496 chunks that 16 GPUs receive in a server, m come by its 8 NICs (106 us a chunk), the
    # others by the GPUs' ports (8 us): m * 106 / 8 = T = (496 - m) * 8 / 16 at best.
    dgx2 = load_topology("dgx2", nodes=2)
    made = the("allgather", dgx2)
    microseconds = of_any(dgx2, made, 32 * 10**6 * 10**6) / 10**6 / 10**6  # for 1 MB a rank
    assert microseconds == pytest.approx(248 / (1 + 4 / 106), rel=1e-6)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NDv2_1chassis", 1200 / 7), ("NDv2_2chassis", 25.0), ("NDv2_4chassis", 50 / 3),
        ("DGX2_2chassis", 4000 / 31), ("forestcoll_mi250_1node", 2400 / 7),
        ("forestcoll_mi250_2node", 5312 / 15),
    ],
)  # fmt: skip
def test_published_fabrics(name: str, expected: float) -> None:
    topology = shared_graph(name)
    time = of_any(topology, the("allgather", topology), TB)
    assert TB * 1000 / time == pytest.approx(expected, rel=1e-6)


def test_a_rail_that_is_slower_than_the_others_slows_all() -> None:
    # Two servers; the NIC of rank 0 sends at half speed: 8 blocks leave its server by 7.5 NICs.
    topology = rails(2, 10_000, 25)
    edges = list(topology.edges)
    first = next(e.id for e in edges if e.tail == 0 and e.beta == rate(25))
    slow = build(
        16,
        [(e.tail, e.head, 0, None, rate(12.5) if e.id == first else e.beta) for e in edges],
        len(topology.switches), topology.server_of,
    )  # fmt: skip
    time = of_any(slow, the("allgather", slow), 16 * TB)
    assert time == pytest.approx(8 * TB / 7.5 * 40, rel=1e-6)


def test_a_chunk_waits_for_the_way_from_its_root() -> None:
    # down a chain: 2 chunks of 10 + 20 on the last wire, after 30 on the first
    chain: list[Row] = [(0, 1, 10, None, 1), (1, 2, 10, None, 1)]
    topology = build(3, [*chain, (1, 0, 10, None, 1), (2, 1, 10, None, 1)])
    for collective in ("broadcast", "reduce"):
        assert of_fixed(topology, the(collective, topology, 2), Fraction(20)) == 30 + 2 * 30
        assert of_any(topology, the(collective, topology), 400) == 10 + 10 + 400


def test_what_needs_no_spanning_trees_has_no_such_bound() -> None:
    topology = build(4, [(r, (r + d) % 4, 10, None, 1) for r in range(4) for d in (1, 3)])
    few = custom({"ranks": 4, "chunks": [{"id": 0, "input": {1: 0}, "output": {2: 0, 3: 0}}]})
    for made in (few, *(the(name, topology) for name in ("allreduce", "alltoall", "gather"))):
        assert of_any(topology, made, 100) == of_fixed(topology, made, Fraction(25)) == 0


def test_chunks_of_a_file_that_everyone_wants_have_one() -> None:
    # both chunks start at ranks 0 and 1, which leaves two trees of two messages on 8 wires; into
    # ranks 2 and 3 there are four, and each needs both chunks
    topology = build(4, [(r, (r + d) % 4, 0, None, 1) for r in range(4) for d in (1, 3)])
    rows = [
        {"id": i, "input": {0: i, 1: i}, "output": dict.fromkeys(range(4), i)} for i in range(2)
    ]
    made = custom({"ranks": 4, "chunks": rows})
    assert of_any(topology, made, 200) == 100


# --- against other bounds and optima -----------------------------------------------------------


@for_each("collective", ["allgather", "reducescatter"])
@for_each("seed", range(25))
def test_packing_is_never_below_the_worst_cut(collective: str, seed: int) -> None:
    for topology in (random_topology(seed), random_network(random.Random(seed), 4)):
        made = the(collective, topology)
        net = make_net(unrestricted(topology), made)
        cuts = [fluid(c.kind, c.gates, c.share) for c in cut_crossings(net, made)]
        worst = max((curve.at(TB) for curve in cuts if curve is not None), default=0)
        assert of_any(topology, made, TB) >= worst * (1 - 1e-6)


@for_each("collective", SPANNING, quick=20)
@for_each("seed", range(15))
def test_no_order_of_sends_beats_it(collective: str, seed: int) -> None:
    rng = random.Random(f"packing {seed}")
    for topology in (random_topology(seed), random_network(rng, 3)):
        if topology.num_ranks <= 3:
            made, chunk = the(collective, topology), Fraction(rng.choice([1, 4, 30]))
            free = of_any(topology, made, int(chunk * made.chunks_in_size))
            claim = max(free, of_fixed(topology, made, chunk))
            assert not claim or not can_beat(topology, made, chunk, claim)


@for_each("seed", range(20))
def test_it_holds_at_any_prices(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(seed)

    def anything(instance: PackingInstance, _seconds: float) -> tuple[Floats, float, int]:
        return rng.random(instance.pricing.num_resources) ** 4, 0.0, 0

    monkeypatch.setattr(packing, "best_prices", anything)
    for collective in SPANNING:
        topology = random_network(random.Random(seed), 3)
        made, chunk = the(collective, topology), Fraction(8)
        claim = max(
            of_any(topology, made, int(chunk * made.chunks_in_size)),
            of_fixed(topology, made, chunk),
        )
        assert not claim or not can_beat(topology, made, chunk, claim)


@for_each("seed", range(30), quick=32)
@for_each("collective", SPANNING)
def test_it_is_below_random_schedules(collective: str, seed: int) -> None:
    schedule = random_schedule(seed, collective).expand()
    made, topology = schedule.collective, schedule.topology
    size = int(schedule.chunk_size * made.chunks_in_size)
    assert of_any(topology, made, size) <= schedule.makespan
    if not schedule.batches:
        assert of_fixed(topology, made, schedule.chunk_size) <= schedule.makespan


@pytest.mark.parametrize("limit", ["MOST_LINKS", "SECONDS"])
def test_limits_only_lower_it(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dgx2 = load_topology("dgx2", nodes=2)
    full = of_any(dgx2, the("allgather", dgx2), TB)
    monkeypatch.setattr(packing, limit, 0)
    assert of_any(dgx2, the("allgather", dgx2), TB) <= full

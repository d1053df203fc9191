"""Orders of ranks: the replayed time of one, the search for the best, the bound, the renaming."""

import itertools
import random
import warnings
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl.apps.placing import Question, program_of
from taccl.errors import InputError, ProgramError, TacclWarning
from taccl.imports.measured import Measurements, measured_topology
from taccl.msccl.interpret import judge
from taccl.msccl.program import Program
from taccl.placement import (
    Limits,
    Replays,
    Servers,
    flat,
    moved,
    moves,
    permuted_program,
    permuted_topology,
    ring_bound,
    ring_of,
    search,
    servers_of,
    shaken,
    slowest_leg,
    tour,
)
from taccl.replay.cost import model_of
from taccl.replay.interpreter import replay
from taccl.topology.file import load_topology
from taccl.topology.graph import Topology
from taccl.units import Time
from tests.sweep import for_each

MODEL = model_of("executor")
ALGORITHMS = ("ring", "tree", "halving-doubling")
SIZE = 1 << 20


def network(ranks: int, seed: int, servers: int | None = None) -> Topology:
    """Return hosts of which each pair has an alpha of 1-30 us and 0.5-25 GB/s of its own."""
    rng = random.Random(seed)
    found = Measurements(names=[f"h{i}" for i in range(ranks)])
    for pair in itertools.permutations(range(ranks), 2):
        found.latencies[pair] = [(0, rng.randrange(10**6, 30 * 10**6))]
        found.betas[pair] = [Fraction(10_000, rng.randrange(5, 250))]
    return measured_topology(found, [i // (servers or 1) for i in range(ranks)])


def program(topology: Topology, algorithm: str, collective: str = "allreduce") -> Program:
    question = Question(algorithm=algorithm, collective=collective, size=SIZE)
    return program_of(question, topology)[0]


def replays(topology: Topology, algorithm: str, size: int = SIZE) -> Replays:
    made, size = program_of(Question(algorithm=algorithm, size=size), topology)
    return Replays(made, topology, size, MODEL)


def plain(made: Program, topology: Topology, order: list[int], size: int) -> Time | None:
    """Return the same from the replay in Python, on the permuted machine."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TacclWarning)
        return replay(
            made, permuted_topology(topology, order), size, MODEL, route=True
        ).time  # fmt: skip


@for_each("algorithm", ALGORITHMS, quick=6)
@for_each("size", [1 << 14, 4 << 20])
@for_each("name", ["measured", "dgx2", "hub:8"])
def test_an_order_takes_what_the_program_takes_on_the_permuted_machine(
    name: str, size: int, algorithm: str
) -> None:
    topology = network(7, 1) if name == "measured" else load_topology(name)
    made, size = program_of(Question(algorithm=algorithm, size=size), topology)
    asked = Replays(made, topology, size, MODEL)
    rng = random.Random(name)
    for _ in range(3):
        order = rng.sample(range(topology.num_ranks), topology.num_ranks)
        assert asked.time(order) == plain(made, topology, order, size)


def test_the_order_as_given_takes_what_it_takes_over_other_ranks_too() -> None:
    topology = load_topology("ndv2")
    made, size = program_of(Question(algorithm="halving-doubling", size=SIZE), topology)
    asked = Replays(made, topology, size, MODEL)
    assert asked.time(range(8)) == plain(made, topology, list(range(8)), size)


def test_the_ranks_of_a_ring_are_neighbours_in_the_order_they_have() -> None:
    found = replays(network(6, 3, servers=2), "ring")
    assert ring_of(found.loads) == [0, 1, 2, 3, 4, 5]


@for_each("algorithm", ALGORITHMS, quick=17)
@for_each("seed", range(17))
def test_the_search_is_as_good_as_brute_force(seed: int, algorithm: str) -> None:
    """Every order of four to six hosts; benchmarks/place.py does eight, 50 matrices each."""
    topology = network(4 + seed % 3, seed)
    asked = replays(topology, algorithm)
    servers = servers_of(topology.server_of)
    least = min(map(asked.time, itertools.permutations(range(topology.num_ranks))))
    found = search(asked, servers, Limits(samples=5))
    assert found.time == least == asked.time(found.order)
    assert found.ended in ("all", "bound")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_local_search_alone_finds_the_best_of_all_orders_of_six(algorithm: str) -> None:
    asked = replays(network(6, 5), algorithm)
    least = min(map(asked.time, itertools.permutations(range(6))))
    assert search(asked, servers_of(range(6)), Limits(samples=0, every=0)).time == least


def test_servers_stay_together_and_the_best_of_these_orders_is_found() -> None:
    topology = network(6, 2, servers=2)
    servers = servers_of(topology.server_of)
    asked = replays(topology, "ring")
    kept = [
        order
        for order in itertools.permutations(range(6))
        if all(order[i] // 2 == order[i + 1] // 2 for i in (0, 2, 4))
    ]
    assert sorted(servers.all()) == kept
    assert servers.count() == len(kept) == 48
    found = search(asked, servers, Limits(samples=0))
    assert found.time == min(map(asked.time, kept))
    assert search(asked, servers, Limits(samples=0, every=0)).order in kept


def test_an_order_as_given_that_tears_servers_apart_is_no_answer() -> None:
    """However fast it is: 1 us between servers, 50 within."""
    made = Measurements(names=list("abcd"))
    for a, b in itertools.permutations(range(4), 2):
        made.latencies[a, b] = [(0, (50 if a % 2 == b % 2 else 1) * 10**6)]
        made.betas[a, b] = [Fraction(1)]
    topology = measured_topology(made, [0, 1, 0, 1])
    asked, servers = replays(topology, "ring"), servers_of([0, 1, 0, 1])
    for found in (
        search(asked, servers, Limits()),
        search(asked, servers, Limits(), lambda: True),
        search(asked, servers, Limits(replays=5, samples=0, every=0)),
    ):
        assert found.identity == asked.time(range(4)) < found.time == asked.time(found.order)
        assert servers.split(found.order) is not None
    assert search(asked, servers, Limits(), lambda: True).order == (0, 2, 1, 3)


def test_whole_servers_move_without_their_order_inside() -> None:
    servers = servers_of([0, 0, 1, 1, 2, 2], inside=False)
    assert sorted(servers.all())[:2] == [(0, 1, 2, 3, 4, 5), (0, 1, 4, 5, 2, 3)]
    assert servers.count() == 6
    assert servers.split((1, 0, 2, 3, 4, 5)) is None


def test_the_same_seed_gives_the_same_order() -> None:
    asked = replays(network(12, 4), "tree")
    servers = servers_of(range(12))
    first, second = (search(asked, servers, Limits(replays=300, seed=3)) for _ in range(2))
    assert first == second
    assert (first.replays, first.ended) == (300, "replays")
    assert first.time < min(first.random) <= max(first.random)


def test_an_interrupted_search_gives_the_best_so_far() -> None:
    asked = replays(network(12, 4), "tree")
    left = iter(range(40))
    found = search(asked, servers_of(range(12)), Limits(), lambda: next(left, None) is None)
    assert found.ended == "interrupted"
    assert found.time == min([found.identity, *found.random])
    stopped = search(asked, servers_of(range(12)), Limits(), lambda: True)
    assert (stopped.order, stopped.time) == (tuple(range(12)), stopped.identity)


def test_a_search_without_time_gives_the_order_as_given() -> None:
    asked = replays(network(12, 4), "ring")
    found = search(asked, servers_of(range(12)), Limits(seconds=0.0))
    assert (found.order, found.ended) == (tuple(range(12)), "time")


def test_the_bound_of_a_ring_is_met_where_racks_are_in_turns() -> None:
    """Two racks, 2 and 20 us: any ring crosses twice, so its slowest leg is one of 20 us."""
    found = Measurements(names=list("abcdef"))
    for a, b in itertools.permutations(range(6), 2):
        found.latencies[a, b] = [(0, (2 if a % 2 == b % 2 else 20) * 10**6)]
        found.betas[a, b] = [Fraction(1)]
    asked = replays(measured_topology(found, range(6)), "ring", 6 * 4 * 1000)
    # Ten messages of 4000 bytes on every leg, one after the other, each 20 us and 4 ns long.
    assert ring_bound(asked, servers_of(range(6))) == 10 * (20 * 10**6 + 4000)
    assert ring_bound(replays(network(6, 1), "tree"), servers_of(range(6))) is None


@pytest.mark.parametrize("name", ["measured", "servers", "ring:6", "torus2d:2x3"])
def test_no_order_of_a_ring_beats_its_bound(name: str) -> None:
    made = {"measured": network(6, 1), "servers": network(6, 1, servers=3)}
    topology = made.get(name) or load_topology(name)
    ring, size = program_of(Question(algorithm="ring", size=1 << 16), topology)
    asked = Replays(ring, topology, size, MODEL)
    servers = servers_of(topology.server_of)
    bound = ring_bound(asked, servers)
    assert bound is not None
    rng = random.Random(1)
    for _ in range(20):
        time = plain(ring, topology, list(flat(servers.random(rng))), size)
        assert time is not None
        assert bound <= time


def test_the_slowest_leg_is_that_of_the_best_round_trip() -> None:
    rng = np.random.default_rng(5)
    for _ in range(20):
        busy = rng.integers(1, 100, (5, 5))
        least = min(
            max(busy[a, b] for a, b in itertools.pairwise((*trip, trip[0])))
            for trip in itertools.permutations(range(5))
        )
        assert slowest_leg(busy) <= least


def test_a_tour_visits_every_place_and_is_short() -> None:
    costs = np.array([[abs(a - b) for b in range(9)] for a in range(9)])
    found = tour(costs)
    assert found is not None
    assert sorted(found) == list(range(9))
    assert sum(costs[a, b] for a, b in itertools.pairwise((*found, found[0]))) == 16


@given(st.data())
@settings(max_examples=60)
def test_every_move_keeps_all_places_and_their_servers(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    server_of = [number for number, size in enumerate(sizes) for _ in range(size)]
    servers = servers_of(server_of, inside=data.draw(st.booleans()))
    rng = random.Random(data.draw(st.integers(0, 99)))
    blocks = servers.random(rng)
    for other in (
        *(moved(blocks, move) for move in moves(servers, blocks)),
        shaken(servers, blocks, rng, 3),
    ):
        assert sorted(flat(other)) == list(range(len(server_of)))
        assert servers.split(flat(other)) == other


def test_moves_lead_to_every_order() -> None:
    servers = Servers(((0, 1), (2,), (3, 4, 5)))
    seen, front = {servers.blocks}, [servers.blocks]
    while front:
        blocks = front.pop()
        near = {moved(blocks, move) for move in moves(servers, blocks)} - seen
        seen |= near
        front += near
    assert len(seen) == servers.count() == 72


def test_a_permuted_machine_has_the_costs_and_servers_of_its_places() -> None:
    topology = network(6, 9, servers=3)
    order = [4, 3, 5, 0, 2, 1]
    permuted = permuted_topology(topology, order)
    assert permuted.server_of == (1, 1, 1, 0, 0, 0)
    for a, b in itertools.permutations(range(6), 2):
        (new,), (old,) = permuted.links_between(a, b), topology.links_between(order[a], order[b])
        assert permuted.arrival(new, 1000) == topology.arrival(old, 1000)
    turned = permuted_topology(load_topology("ring:4"), [2, 0, 1, 3])
    assert [edge.name for edge in turned.edges[:2]] == ["1->2", "2->1"]
    back = permuted_topology(permuted, [order.index(rank) for rank in range(6)])
    assert back.edges == topology.edges


@pytest.mark.parametrize(
    ("algorithm", "collective"),
    [("ring", "allreduce"), ("tree", "allreduce"), ("halving-doubling", "allreduce"),
     ("ring", "allgather"), ("ring", "reducescatter"), ("all-pairs", "alltoall")],
)  # fmt: skip
def test_a_permuted_program_is_correct_and_as_fast_on_the_machine_as_given(
    algorithm: str, collective: str
) -> None:
    topology = network(4, 6)
    made = program(topology, algorithm, collective)
    order = [2, 0, 3, 1]
    moved_program = permuted_program(made, order)
    assert judge(moved_program, "executor") == []
    # Here no two ranks share a port, so that nothing depends on their numbers.
    times = [plain(moved_program, topology, [0, 1, 2, 3], SIZE), plain(made, topology, order, SIZE)]
    assert times[0] == times[1] is not None
    back = permuted_program(moved_program, [order.index(rank) for rank in range(4)])
    assert replace(back, name=made.name) == made


def test_a_renaming_that_forgets_the_data_is_found() -> None:
    made = program(network(4, 6), "ring", "allgather")
    wrong = replace(permuted_program(replace(made, collective="allreduce"), [1, 0, 2, 3]),
                    collective="allgather")  # fmt: skip
    assert judge(wrong, "executor") != []


def test_a_program_whose_ranks_cannot_move_is_refused() -> None:
    topology = network(4, 6)
    made = program(topology, "halving-doubling", "allgather")
    with pytest.raises(InputError, match="no longer be neighbours"):
        permuted_program(made, [0, 2, 1, 3])
    rooted = program(topology, "chain", "broadcast")
    with pytest.raises(InputError, match="would move its root"):
        permuted_program(rooted, [1, 0, 2, 3])
    assert judge(permuted_program(rooted, [0, 2, 1, 3]), "executor") == []
    with pytest.raises(InputError, match="not in a form whose ranks can move"):
        permuted_program(replace(made, collective="custom"), [0, 2, 1, 3])


def test_a_program_that_comes_to_no_end_is_refused() -> None:
    topology = network(4, 6)
    made = program(topology, "ring")
    first = made.gpus[0]
    silent = replace(first, threadblocks=tuple(
        replace(block, steps=()) if block.send_to is not None else block
        for block in first.threadblocks
    ))  # fmt: skip
    asked = Replays(replace(made, gpus=(silent, *made.gpus[1:])), topology, SIZE, MODEL)
    with pytest.raises(ProgramError, match="comes to no end"):
        asked.time(range(4))

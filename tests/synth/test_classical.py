"""The classical algorithms: their formulas, where they exist, and what a ring looks like."""

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import product

import pytest

from taccl.collectives import COLLECTIVES, build_collective
from taccl.errors import NoScheduleError
from taccl.model.problem import Options, Problem
from taccl.model.schedule import Schedule
from taccl.synth.search import solve
from taccl.synth.templates.classical import CLASSICAL, Trial, classical_schedules, schedules_of
from taccl.synth.templates.steps import best_links, tour
from taccl.synth.templates.trees import circulated, scatter_allgather
from taccl.topology.file import load_topology
from taccl.topology.graph import Topology, whole
from taccl.topology.symmetry import make_group
from taccl.verify import verify
from tests.generators import build, random_topology
from tests.sweep import for_each
from tests.synth.problems import classical_schedule, problem_of

ALPHA, BETA = 700_000, Fraction(20)
"""The default link of the short forms: 0.7 us, 50 GB/s = 20 ps a byte."""


def schedule_of(problem: Problem, name: str) -> Schedule:
    """Return the schedule of an algorithm, which must exist."""
    schedule = classical_schedule(problem, name, batch=True)
    assert schedule is not None
    return schedule


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("rule", ["occupy", "delay"])
def test_a_ring_allreduce_takes_its_formula_to_the_picosecond(ranks: int, rule: str) -> None:
    topology = load_topology(f"ring:{ranks}").with_alpha_rule(rule)
    schedule = schedule_of(problem_of(topology, "allreduce"), "ring")
    assert schedule.makespan == 2 * (ranks - 1) * (ALPHA + BETA * 1000)


@pytest.mark.parametrize("collective", ["allgather", "reducescatter"])
def test_half_an_allreduce_takes_half_its_formula(collective: str) -> None:
    schedule = schedule_of(problem_of(load_topology("ring:8"), collective), "ring")
    assert schedule.makespan == 7 * (ALPHA + BETA * 1000)


@pytest.mark.parametrize("collective", ["allgather", "reducescatter", "alltoall"])
def test_all_pairs_on_a_hub_serves_one_peer_after_the_other(collective: str) -> None:
    # Each port of the hub carries 7 messages of 0.7 us + 20 ns.
    schedule = schedule_of(problem_of(load_topology("hub:8"), collective), "all-pairs")
    assert schedule.makespan == 7 * (ALPHA + BETA * 1000)


@pytest.mark.parametrize("rule", ["occupy", "delay"])
@pytest.mark.parametrize(
    ("collective", "times"), [("allgather", 1), ("reducescatter", 1), ("allreduce", 2)]
)
def test_halving_doubling_on_a_hub_pays_alpha_three_times_for_eight_ranks(
    collective: str, times: int, rule: str
) -> None:
    topology = load_topology("hub:8").with_alpha_rule(rule)
    schedule = schedule_of(problem_of(topology, collective), "halving-doubling")
    assert schedule.makespan == times * (3 * ALPHA + 7 * BETA * 1000)


@for_each("rule", ["occupy", "delay"])
@for_each("collective", ["broadcast", "reduce"])
@for_each("chunks", [1, 3])
def test_a_chain_pipelines_its_chunks(collective: str, chunks: int, rule: str) -> None:
    # A ring of 5 has a chain of 4 hops: alpha and the bytes of one chunk, 4 - 1 + k times. Under
    # delay the next chunk need not wait for alpha.
    topology = load_topology("ring:5").with_alpha_rule(rule)
    problem = problem_of(topology, collective, chunks=chunks)
    schedule = schedule_of(problem, "chain")
    first, rest = ALPHA + BETA * 1000, BETA * 1000 if rule == "delay" else ALPHA + BETA * 1000
    assert schedule.makespan == 4 * first + (chunks - 1) * rest


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
def test_two_chains_share_the_chunks_of_a_ring(collective: str) -> None:
    # 4 chunks, two each way round a ring of 5: 4 hops, and one more message behind the first.
    problem = problem_of(load_topology("ring:5"), collective, chunks=4)
    schedule = schedule_of(problem, "double-chain")
    assert schedule.makespan == 5 * (ALPHA + BETA * 1000)


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
def test_a_scatter_and_an_allgather_fill_the_roots_port_once(collective: str) -> None:
    # The root of a hub of 4 sends each of 9 chunks to one of the others; two more messages follow.
    problem = problem_of(load_topology("hub:4"), collective, chunks=9)
    schedule = schedule_of(problem, "scatter-allgather")
    assert schedule.makespan == 11 * (ALPHA + BETA * 1000)


def test_a_scatter_and_an_allgather_cross_servers_by_every_nic() -> None:
    topology = load_topology("dgx-a100", nodes=2)
    problem = problem_of(topology, "broadcast", chunks=8)
    schedule = schedule_of(problem, "scatter-allgather")
    across = [
        (int(topology.links.src[link]), int(topology.links.dst[link]))
        for link in schedule.link.tolist()
        if topology.server_of[topology.links.src[link]]
        != topology.server_of[topology.links.dst[link]]
    ]
    assert sorted(across) == [(rank, rank + 8) for rank in range(8)]


def test_what_a_root_sends_over_its_own_nic_may_come_back_over_the_others() -> None:
    # Of 8 shares the root then sends 7 inside, and the others of its server receive 7 inside.
    topology = load_topology("dgx-h100", nodes=2)
    home = topology.server_of
    for collective in ("broadcast", "reduce"):
        problem = problem_of(topology, collective, chunks=8)
        ways = [list(steps) for steps in scatter_allgather(problem)]
        ends = [
            [(src, dst) if collective == "broadcast" else (dst, src) for _, src, dst, _ in steps]
            for steps in ways
        ]
        inside = [[pair for pair in own if home[pair[0]] == home[pair[1]] == 0] for own in ends]
        most = [max(Counter(dst for _, dst in own).values()) for own in inside]
        sent = [sum(src == 0 for src, _ in own) for own in inside]
        back = [[pair for pair in own if home[pair[0]] > home[pair[1]]] for own in ends]
        assert (most[0], sent[0], back[0]) == (8, 8, [])
        assert (most[-1], sent[-1], sorted(back[-1])) == (7, 7, [(8 + n, n) for n in range(1, 8)])
        trial = Trial(problem, "scatter-allgather", CLASSICAL["scatter-allgather"], batch=True)
        for way in ways:
            assert [verify(one) for one in schedules_of(replace(trial, ways=[way]))] == [[], []]


def test_servers_pass_a_large_broadcast_on_while_it_arrives() -> None:
    # 8 NICs each carry 16 of 128 chunks. 7 chunks go to others before the last NIC can start, and
    # the last chunk goes to 7; the root sends each chunk once.
    topology = load_topology("dgx-a100", nodes=2)
    for collective in ("broadcast", "reduce"):
        problem = problem_of(topology, collective, chunks=128, chunk_size=10**6)
        inside, across = (
            topology.arrival(best_links(problem)[pair], 10**6) for pair in ((0, 1), (0, 8))
        )
        schedule = schedule_of(problem, "scatter-allgather")
        assert 16 * across < schedule.makespan <= 16 * across + 15 * inside


def test_two_chains_need_two_chunks_and_links_both_ways() -> None:
    one = problem_of(load_topology("ring:5"), "broadcast")
    assert classical_schedule(one, "double-chain", batch=True) is None
    oneway = build("oneway", 3, [(r, (r + 1) % 3, 10, None, Fraction(1)) for r in range(3)])
    two = problem_of(oneway, "broadcast", chunks=2)
    assert classical_schedule(two, "double-chain", batch=True) is None


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
@pytest.mark.parametrize(("ranks", "rounds"), [(2, 1), (5, 3), (8, 3)])
def test_a_binomial_tree_doubles_the_ranks_each_round(
    collective: str, ranks: int, rounds: int
) -> None:
    topology = load_topology(f"hub:{ranks}")
    schedule = schedule_of(problem_of(topology, collective), "binomial")
    assert schedule.makespan == rounds * (ALPHA + BETA * 1000)
    assert len(schedule) == ranks - 1


def test_chunks_go_round_a_circle_in_few_rounds_more_than_there_must_be() -> None:
    # A message takes the round after the one in which its sender got the chunk, and after the last
    # one of its sender and of its receiver.
    for count, chunks in product(range(2, 201), (1, 2, 9, 32)):
        known = dict.fromkeys(((chunk, 0) for chunk in range(chunks)), 0)
        out, into = [0] * count, [0] * count
        for chunk, place, to in circulated(count, chunks):
            start = max(known[chunk, place], out[place], into[to])
            assert (chunk, to) not in known
            known[chunk, to] = out[place] = into[to] = start + 1
        assert len(known) == count * chunks
        power = count & (count - 1) == 0
        most = chunks - 1 + (count - 1).bit_length() + (0 if power else 3)
        assert max(known.values()) <= most, (count, chunks)


def test_a_wide_server_spreads_chunks_down_trees() -> None:
    # A rank of a rack of 72 can't have 71 peers: a program has 64 threadblocks at most.
    topology = load_topology("gb200-nvl72", nodes=2)
    problem = replace(problem_of(topology, "broadcast", chunks=32), most_peers=64)
    schedule = schedule_of(problem, "scatter-allgather")
    assert verify(schedule) == []
    links = topology.links
    pairs = {(int(links.src[link]), int(links.dst[link])) for link in schedule.link.tolist()}
    assert max(Counter(src for src, _ in pairs).values()) == 32 + 1
    assert max(Counter(src for src, _ in pairs if src).values()) <= 7 + 1


@pytest.mark.parametrize("collective", ["gather", "scatter"])
def test_a_root_on_a_hub_serves_one_rank_after_the_other(collective: str) -> None:
    problem = problem_of(load_topology("hub:5"), collective, chunks=2)
    schedule = schedule_of(problem, "direct")
    assert schedule.makespan == 4 * (ALPHA + BETA * 2000)


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
def test_a_chain_runs_in_the_direction_that_the_links_have(collective: str) -> None:
    # 2 -> 0 -> 1 only: a broadcast from 2 and a reduction to 1 are one-way chains.
    topology = build("oneway", 3, [(2, 0, 10, None, Fraction(1)), (0, 1, 10, None, Fraction(1))])
    root = 2 if collective == "broadcast" else 1
    logical, made = whole(topology), build_collective(collective, 3, 1, root)
    problem = Problem(logical, made, Fraction(5), make_group(topology, ()))
    schedule = schedule_of(problem, "chain")
    assert verify(schedule) == []
    assert schedule.makespan == 2 * 15
    assert classical_schedule(problem, "binomial", batch=True) is None


@for_each("seed", range(20), quick=85)
@for_each("name", CLASSICAL)
def test_a_classical_schedule_that_exists_is_correct(seed: int, name: str) -> None:
    topology = random_topology(seed)
    for collective in COLLECTIVES:
        problem = problem_of(topology, collective, chunks=1 + seed % 3)
        for schedule in classical_schedules(problem, name, batch=seed % 2 == 0):
            assert verify(schedule, problem.logical) == []


def test_a_ring_follows_the_fast_wires_of_the_hybrid_cube_mesh() -> None:
    order = tour(problem_of(load_topology("ndv2"), "allgather"))
    assert order is not None
    topology = load_topology("ndv2")
    for here, there in zip(order, (*order[1:], order[0]), strict=True):
        (link,) = topology.links_between(here, there)
        assert topology.links.max_beta(link) == 23


def test_a_ring_visits_server_after_server() -> None:
    order = tour(problem_of(load_topology("dgx2", nodes=2), "allgather"))
    assert order is not None
    assert sorted(order[:16]) == list(range(16))


def test_several_rings_inside_a_server_share_its_wires() -> None:
    # Four chunks end at each of the 16 places of two MI250: a ring each, whose sums take the wires
    # that it takes afterwards. A wire has a lane for each 50 GB/s.
    problem = problem_of(load_topology("mi250", nodes=2), "allreduce", chunks=2)
    problem = replace(problem, chunk_size=Fraction(10**6))
    schedule = min(
        classical_schedules(problem, "hierarchical", batch=True), key=lambda s: s.makespan
    )
    topology, sends = schedule.topology, {True: Counter[int](), False: Counter[int]()}
    for link, adds in zip(schedule.link.tolist(), schedule.reduce.tolist(), strict=True):
        src, dst = int(topology.links.src[link]), int(topology.links.dst[link])
        if topology.server_of[src] == topology.server_of[dst]:
            sends[adds][link] += 1
    assert sends[True] == sends[False]
    assert sum(sends[False].values()) == 4 * 15 * 32
    for link, count in sends[False].items():
        beta = topology.links.max_beta(link)
        assert beta is not None
        assert count <= 15 * (20 / beta)


def test_all_pairs_needs_a_link_for_every_pair() -> None:
    problem = problem_of(load_topology("ring:4"), "alltoall")
    with pytest.raises(NoScheduleError, match="all-pairs does not exist for alltoall"):
        solve(problem, "all-pairs", Options())


def test_a_ring_that_the_sketch_opens_nowhere_does_not_exist() -> None:
    topology: Topology = load_topology("mesh2d:3x3")
    problem = problem_of(whole(topology), "allgather")
    # A mesh of nine is bipartite with odd halves: it has no closed tour.
    assert tour(problem) is None

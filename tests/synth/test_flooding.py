"""Flooding: as many latencies as the farthest target is away, and one message a link and round."""

from collections import Counter
from collections.abc import Callable, Mapping
from fractions import Fraction

import pytest

from taccl.apps.inputs import MachineOptions, load_machine
from taccl.collectives import build_collective
from taccl.errors import NoAlgorithmError
from taccl.model.problem import problem_of as whole_problem
from taccl.synth.templates.classical import classical_schedules, run_classical
from taccl.synth.templates.flooding import FLOODED
from taccl.topology.file import load_topology
from taccl.verify import verify
from tests.generators import both_ways, build
from tests.synth.problems import QUICK, problem_of

ALPHA, BETA = 700_000, 20 * 1000
"""The default link of the short forms, and a chunk on it: 0.7 us, 1000 bytes at 20 ps."""

Formula = Callable[[int, int], int]


def in_turn(half: int, chunks: int) -> int:
    """Return what as many rounds as half the ring take, with all chunks of a rank in each."""
    return half * (ALPHA + chunks * BETA)


def shrinking(half: int, chunks: int) -> int:
    """Return the same where in every round what is at its target goes no further."""
    return half * ALPHA + half * (half + 1) // 2 * chunks * BETA


ON_A_RING: Mapping[str, Formula] = {
    "allgather": in_turn,
    "reducescatter": in_turn,
    "allreduce": lambda half, chunks: 2 * in_turn(half, chunks),
    "alltoall": shrinking,
    "broadcast": in_turn,
    "reduce": in_turn,
    "gather": in_turn,
    "scatter": shrinking,
}


def test_on_a_ring_it_takes_its_formula() -> None:
    assert set(ON_A_RING) == set(FLOODED)
    for ranks in (5, 7):
        topology = load_topology(f"ring:{ranks}")
        for name, formula in ON_A_RING.items():
            for chunks in (1, 2):
                problem = problem_of(topology, name, chunks)
                found = classical_schedules(problem, "flooding", batch=True)
                assert all(verify(one, problem.logical) == [] for one in found)
                assert formula(ranks // 2, chunks) in [one.makespan for one in found]


def test_it_takes_a_latency_for_every_hop_of_the_farthest() -> None:
    # Chunks of 16 bytes: all of them together are less than an alpha on a link.
    far = {"torus2d:4x4": 4, "torus3d:3x3x3": 3, "hypercube:16": 4, "mesh2d:2x4": 4, "mi250": 5}
    for name, hops in far.items():
        topology = load_topology(name)
        for collective in ("allgather", "reducescatter", "alltoall"):
            problem = problem_of(topology, collective, 1, 16)
            found = classical_schedules(problem, "flooding", batch=True)[0]
            assert hops * ALPHA < found.makespan < (hops + 1) * ALPHA
            assert verify(found, problem.logical) == []


def test_an_allreduce_meets_in_the_middle() -> None:
    # Five ranks in a row: two hops up to the third, and two back.
    hops = [hop for a in range(4) for hop in both_ways(a, a + 1, 5, Fraction(1))]
    problem = problem_of(build("row", 5, hops), "allreduce", chunks=1, chunk_size=1)
    found = classical_schedules(problem, "flooding", batch=True)[0]
    assert found.makespan == 4 * (5 + 5 * 1)
    assert verify(found, problem.logical) == []


def test_an_allreduce_doubles_on_the_largest_cube_in_the_middle() -> None:
    # Four ranks in a row: one hop to the two in the middle, an exchange, and one hop back.
    hops = [hop for a in range(3) for hop in both_ways(a, a + 1, 5, Fraction(1))]
    problem = problem_of(build("row", 4, hops), "allreduce", chunks=1, chunk_size=1)
    assert problem.collective.num_chunks == 4
    found = classical_schedules(problem, "flooding", batch=True)[0]
    assert found.makespan == 3 * (5 + 4 * 1)
    assert verify(found, problem.logical) == []
    # 2 h + d rounds: with h hops to the nearest of 2^d ranks. As many as to the farthest rank of
    # all on meshes; a ring has no more than two ranks that double.
    rounds = {"mesh2d:4x4": 6, "mesh2d:2x4": 4, "mi250": 5, "ring:8": 7, "torus3d:4x4x4": 9}
    for name, most in rounds.items():
        for chunks in (1, 3):
            problem = problem_of(load_topology(name), "allreduce", chunks, 1)
            schedules = classical_schedules(problem, "flooding", batch=True)
            assert most * ALPHA < schedules[0].makespan < (most + 1) * ALPHA
            assert all(verify(one, problem.logical) == [] for one in schedules)


def test_what_is_summed_first_leaves_first() -> None:
    # Three pieces on a row of five: two rounds to the middle and two back, and two more behind.
    hops = [hop for a in range(4) for hop in both_ways(a, a + 1, 5, Fraction(1))]
    problem = problem_of(build("row", 5, hops), "allreduce", chunks=3, chunk_size=2)
    found = classical_schedules(problem, "flooding", batch=True)
    assert all(verify(one, problem.logical) == [] for one in found)
    assert (4 + 2) * (5 + 5 * 2) in [one.makespan for one in found]


def test_large_sums_meet_at_their_owners() -> None:
    hops = [hop for a in range(4) for hop in both_ways(a, a + 1, 5, Fraction(1))]
    problem = problem_of(build("row", 5, hops), "allreduce", chunks=1, chunk_size=10)
    found = classical_schedules(problem, "flooding", batch=True)[0]
    assert found.makespan < 4 * (5 + 5 * 10)
    assert verify(found, problem.logical) == []


def test_large_sums_use_every_nic() -> None:
    topology = load_machine("mi250", MachineOptions(nodes=2))
    problem = whole_problem(topology, build_collective("allreduce", 32, 1), 32_000_000)
    found = classical_schedules(problem, "flooding", batch=True)[0]
    src, dst = (ends[found.link].tolist() for ends in (topology.links.src, topology.links.dst))
    across = [(a, b) for a, b in zip(src, dst, strict=True) if abs(a - b) == 16]
    assert sorted(across) == sorted([(a, (a + 16) % 32) for a in range(32)] * 2)
    assert all(a // 16 == b // 16 for a, b in zip(src, dst, strict=True) if abs(a - b) != 16)


def test_pieces_follow_one_another_in_waves() -> None:
    # Four ranks in a row and three pieces: two more rounds behind the third hop.
    hops = [hop for a in range(3) for hop in both_ways(a, a + 1, 5, Fraction(1))]
    problem = problem_of(build("row", 4, hops), "broadcast", chunks=3, chunk_size=10)
    found = classical_schedules(problem, "flooding", batch=True)
    assert [one.makespan for one in found] == [5 * (5 + 10), 3 * (5 + 30)]


@pytest.mark.parametrize("machine", ["mi250", "ndv2"])
def test_a_chunk_gets_to_another_server_once(machine: str) -> None:
    topology = load_machine(machine, MachineOptions(nodes=2))
    server, table = topology.server_of, topology.links
    for name in ("allgather", "alltoall", "allreduce"):
        problem = whole_problem(topology, build_collective(name, topology.num_ranks, 1), 32_000)
        found = classical_schedules(problem, "flooding", batch=True)[0]
        assert verify(found, problem.logical) == []
        crossings = Counter(
            (chunk, bool(reduce))
            for chunk, link, reduce in zip(
                found.chunk.tolist(), found.link.tolist(), found.reduce.tolist(), strict=True
            )
            if server[table.src[link]] != server[table.dst[link]]
        )
        assert set(crossings.values()) == {1}


def test_it_does_not_exist_where_all_pairs_have_links() -> None:
    with pytest.raises(NoAlgorithmError, match="flooding does not exist for allgather"):
        run_classical("flooding", problem_of(load_topology("hub:4"), "allgather"), QUICK)

"""Which chunks may travel together: runs that are adjacent at both ends, for every image."""

from dataclasses import replace
from fractions import Fraction

from taccl.model.schedule import Decisions
from taccl.synth.plan import Adjacency, adjacent, plan_decisions
from taccl.topology.graph import Topology
from tests.generators import build, pair, ring4
from tests.synth.problems import problem_of


def link(topology: Topology, src: int, dst: int) -> int:
    return topology.links_between(src, dst)[0]


def test_the_chunks_of_a_rank_are_one_run() -> None:
    topology = pair()
    rows = [(chunk, link(topology, 0, 1), False) for chunk in range(4)]
    adjacency = Adjacency(plan_decisions(problem_of(topology, "allgather", chunks=4), rows))
    assert list(adjacency.runs()) == [(0, 1, 2, 3)]
    assert adjacency.together((0, 1, 2, 3))
    assert not adjacency.together((0, 2))
    assert not adjacency.together((1, 0))


def test_runs_do_not_cross_links_nor_gaps() -> None:
    ring = ring4()
    rows = [
        (0, link(ring, 0, 1), False), (0, link(ring, 1, 2), False),
        (1, link(ring, 1, 2), False), (3, link(ring, 3, 0), False),
    ]  # fmt: skip
    adjacency = Adjacency(plan_decisions(problem_of(ring, "allgather"), rows))
    # Rank 1 reads chunk 0 from its output and chunk 1 from its output, too: one run.
    assert sorted(adjacency.runs()) == [(0,), (1, 2), (3,)]


def test_a_run_that_wraps_under_a_rotation_is_cut() -> None:
    # Chunks 0 and 1 are neighbours, but their image under a turn by three, 3 and 0, are not.
    ring = replace(ring4(), rotations=((1, 2, 3, 0),))
    there, on = link(ring, 3, 0), link(ring, 0, 1)
    rows = [(3, there, False), (3, on, False), (0, on, False)]
    alone = Adjacency(plan_decisions(problem_of(ring, "allgather"), rows))
    assert not alone.together((1, 2))
    turned = [
        (0, link(ring, 0, 1), False),
        (0, link(ring, 1, 2), False),
        (1, link(ring, 1, 2), False),
    ]
    assert Adjacency(plan_decisions(problem_of(ring, "allgather"), turned)).together((1, 2))
    problem = problem_of(ring, "allgather", symmetric=True)
    assert len(problem.group) == 4
    assert not Adjacency(plan_decisions(problem, turned)).together((1, 2))


def test_pieces_cut_runs_to_a_length() -> None:
    topology = pair()
    rows = [(chunk, link(topology, 0, 1), False) for chunk in range(5)]
    adjacency = Adjacency(plan_decisions(problem_of(topology, "allgather", chunks=5), rows))
    assert adjacency.pieces(2) == [(0, 1), (2, 3), (4,)]
    assert adjacency.pieces(1 << 30) == [(0, 1, 2, 3, 4)]


def test_chunks_of_a_relay_lie_in_its_scratch_by_destination() -> None:
    # Rank 1 passes on the chunks 0 -> 2 and 0 -> 3: neighbours in its scratch; at 0 as well.
    hops = [(a, b, 0, None, Fraction(1)) for a, b in ((0, 1), (1, 2), (2, 3), (3, 0))]
    topology = build("one-way", 4, hops)
    rows = [(2, link(topology, 0, 1), False), (3, link(topology, 0, 1), False),
            (1, link(topology, 0, 1), False)]  # fmt: skip
    adjacency = Adjacency(plan_decisions(problem_of(topology, "alltoall"), rows))
    assert adjacency.together((0, 1))
    # Chunk 0 -> 1 ends in the output, its neighbour in scratch.
    assert not adjacency.together((2, 0))


def test_messages_are_cut_where_a_collective_keeps_their_chunks_apart() -> None:
    # Rank 1 sums what rank 0 wants of its four chunks: sums of an AllReduce lie where all are.
    problem = problem_of(pair(), "allreduce", 4, 10)
    back = link(problem.topology, 1, 0)
    rows = [(chunk, back, message, True) for message, some in enumerate(
        [(0, 3), (1, 2), (4, 5, 7)]) for chunk in some]  # fmt: skip
    found = adjacent(problem, Decisions.of(rows))
    assert found.chunk.tolist() == [0, 3, 1, 2, 4, 5, 7]
    assert found.batch.tolist() == [0, 1, 2, 2, 3, 3, 4]

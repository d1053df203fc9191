"""The best of several programs: turns on shared ports, full connections, fused steps, instances."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from taccl.apps import Lowering, Target
from taccl.apps.programs import copies_near
from taccl.collectives import build_collective
from taccl.errors import LoweringError
from taccl.lowering.draft import Draft
from taccl.lowering.lower import Lowered, LowerOptions, finish
from taccl.model.schedule import Decisions, Schedule, retime
from taccl.msccl.program import RECEIVES, Op, Program
from taccl.topology.graph import Edge, Switch, Topology
from taccl.topology.symmetry import make_group
from tests.msccl.builders import make_topology, mesh, pairs_schedule, ring, ring_schedule, timed

FUSED = RECEIVES - {Op.RECV}


def lowering(schedule: Schedule, **target: object) -> Lowering:
    wanted = Target(**{"runtime": "executor", **target})  # type: ignore[arg-type]
    size = int(schedule.chunk_size * schedule.collective.chunks_in_size)
    return Lowering(schedule, wanted, size, "t")


def ops(program: Program) -> set[Op]:
    return {step.op for _, block in program.blocks() for step in block.steps}


def delayed(topology: Topology) -> Topology:
    return topology.with_alpha_rule("delay")


def test_a_link_with_much_under_way_gets_several_connections() -> None:
    # Nine messages of 0.04 us each leave one after another and take 0.74 us to arrive: all nine
    # are under way at once, and a connection holds two.
    topology, collective = delayed(ring(2)), build_collective("allgather", 2, 9)
    link = topology.links_between(0, 1)[0]
    schedule = timed(collective, topology, [(n, link, n, False) for n in range(9)], 1024)
    program, time = lowering(schedule).best
    assert time == schedule.makespan
    assert sum(b.send_to == 1 for b in program.gpus[0].threadblocks) == 5


def test_a_sum_does_not_wait_for_a_value_that_comes_later() -> None:
    # Rank 2 is far: its value for chunk 0 leaves first and arrives last. Rank 1's comes second,
    # and behind it in the same threadblock its value of chunk 3, which goes on to rank 3.
    alphas = {(2, 0): 50_000_000, (0, 3): 48_500_000}
    ends = [(1, 0), (2, 0), (0, 3), (0, 1), (3, 0), (0, 2)]
    edges = tuple(
        Edge(n, a, b, alphas.get((a, b), 700_000), None, Fraction(40), f"e{n}")
        for n, (a, b) in enumerate(ends)
    )
    topology = Topology("far", 4, (), edges, (0,) * 4)
    collective = build_collective("reducescatter", 4, 1)
    rows = [
        (0, topology.links_between(2, 0)[0], 0, True),
        (2, topology.links_between(1, 0)[0], 1, True),
        (0, topology.links_between(1, 0)[0], 2, True),
        (3, topology.links_between(1, 0)[0], 3, True),
        (3, topology.links_between(0, 3)[0], 4, True),
    ]
    schedule = timed(collective, topology, rows)
    assert lowering(schedule, runtime="portable").best[1] == schedule.makespan


def crossing() -> Schedule:
    """Ranks 0 and 1 share the way into rank 2; rank 1's turn is first, rank 0 could go first.

    Rank 3's message to rank 0 arrives as rank 1's leaves the port; then it is rank 0's turn. What
    rank 1 sends has a long way to go from rank 2.
    """
    hops = [(0, 4), (1, 4), (4, 2), (3, 0), (2, 3)]
    edges = tuple(
        Edge(n, a, b, 700_000, None, Fraction(200 if a == 2 else 40), f"e{n}")
        for n, (a, b) in enumerate(hops)
    )
    topology = Topology("crossing", 4, (Switch("s"),), edges, (0,) * 4)
    collective = build_collective("allgather", 4, 2)
    rows = [
        (2, topology.links_between(1, 2)[0], 0, False),
        (6, topology.links_between(3, 0)[0], 1, False),
        (0, topology.links_between(0, 2)[0], 2, False),
        (2, topology.links_between(2, 3)[0], 3, False),
        (1, topology.links_between(0, 2)[0], 4, False),
    ]
    return timed(collective, topology, rows, 1 << 16)


@pytest.mark.parametrize("orders", [("ports",), ("paced",)])
def test_a_message_that_would_overtake_is_held_back_to_its_turn(
    monkeypatch: pytest.MonkeyPatch, orders: tuple[str, ...]
) -> None:
    schedule = crossing()
    monkeypatch.setattr("taccl.apps.programs.ORDERS", orders)
    program, time = lowering(schedule).best
    assert time == schedule.makespan
    (sending,) = (b for b in program.gpus[0].threadblocks if b.send_to == 2)
    assert sending.steps[0].depends is not None


def test_variants_have_several_connections_only_where_one_is_too_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried = list[int | None]()

    def finished(draft: Draft, options: LowerOptions) -> Lowered:
        tried.append(options.slots)
        return finish(draft, options)

    monkeypatch.setattr("taccl.apps.programs.finish", finished)
    assert lowering(crossing()).best[1] == crossing().makespan
    assert {*tried} == {None}
    # Nine messages are under way on a link at once.
    topology, collective = delayed(ring(2)), build_collective("allgather", 2, 9)
    link = topology.links_between(0, 1)[0]
    schedule = timed(collective, topology, [(n, link, n, False) for n in range(9)], 1024)
    assert lowering(schedule).best[1] == schedule.makespan
    assert {*tried} == {None, 2}


def test_without_holding_back_the_message_overtakes(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = crossing()
    monkeypatch.setattr("taccl.apps.programs.ORDERS", ("ports",))
    monkeypatch.setattr("taccl.apps.programs.MAX_ROUNDS", 0)
    assert lowering(schedule).best[1] > schedule.makespan


def test_fused_steps_are_used_where_the_runtime_has_them() -> None:
    schedule = ring_schedule("allreduce", 4)
    fused, plain = (lowering(schedule, runtime=name).best for name in ("executor", "rccl"))
    assert ops(fused[0]) & FUSED
    assert not ops(plain[0]) & FUSED
    assert fused[1] <= plain[1]
    assert fused[0].num_threadblocks < plain[0].num_threadblocks


def test_instances_are_taken_where_latency_is_shared_and_not_elsewhere() -> None:
    # One hop of long latency after another: halves pass each other, quarters more so.
    topology = make_topology("line", 4, [(0, 1), (1, 2), (2, 3), (3, 0)])
    found = {}
    # Of 4095 elements there are no halves or quarters, but thirds.
    for rule, elements in (("occupy", 4096), ("delay", 4096), ("delay", 4095)):
        schedule = replace(
            ring_schedule("allgather", 4),
            topology=topology.with_alpha_rule(rule), chunk_size=Fraction(4 * elements),
        )  # fmt: skip
        decisions = schedule.decisions()
        group = make_group(schedule.topology, ())
        schedule = retime(schedule.collective, group, schedule.chunk_size, decisions)
        chosen = lowering(schedule, instances=None).settled().target.instances
        found[rule, elements] = chosen
    assert found == {("occupy", 4096): 1, ("delay", 4096): 4, ("delay", 4095): 3}


def test_instances_are_the_most_into_which_a_chunk_divides() -> None:
    assert [copies_near(count, 5**9 * 4) for count in (1, 2, 4, 8, 16, 32)] == [1, 2, 4, 5, 10, 25]
    assert [copies_near(count, 7) for count in (1, 2, 4, 8)] == [1, 0, 0, 7]


def test_a_rank_with_many_peers_has_threadblocks_that_send_and_receive() -> None:
    # 33 peers: 66 threadblocks one way each, and rccl has 64.
    schedule = pairs_schedule("alltoall", mesh(34))
    program = lowering(schedule, runtime="rccl").proved()
    assert program.num_threadblocks == 33
    assert all(block.send_to == block.recv_from for _, block in program.blocks())


def test_with_too_many_peers_the_limit_is_named() -> None:
    task = lowering(pairs_schedule("alltoall", mesh(14)), runtime="rccl", instances=5)
    with pytest.raises(
        LoweringError, match="needs 65 threadblocks on a rank, and 64 are allowed"
    ) as caught:
        task.proved()
    assert "lower --chunks or --instances" in (caught.value.fix or "")


def test_instances_that_are_asked_for_are_kept() -> None:
    task = lowering(ring_schedule("allgather", 4), instances=2)
    assert task.settled() is task


def exchange(ranks: int) -> Schedule:
    """Every rank sends its own value of chunk 0 to all others before any arrives."""
    topology, collective = mesh(ranks), build_collective("allreduce", ranks, 1)
    ends = [(a, (a + step) % ranks) for step in range(1, ranks) for a in range(ranks)]
    rows = [
        (chunk, topology.links_between(a, b)[0], n + chunk * len(ends), True)
        for chunk in range(ranks)
        for n, (a, b) in enumerate(ends)
    ]
    lands = [len(ends) * (1 + row // len(ends)) for row in range(len(rows))]
    return retime(collective, make_group(topology, ()), Fraction(4096), Decisions.of(rows, lands))


@pytest.mark.parametrize("fix", ["--engine ring"])
def test_a_program_that_adds_up_in_another_order_on_some_rank_is_refused(fix: str) -> None:
    schedule = exchange(3)
    assert lowering(schedule).proved().num_ranks == 3
    with pytest.raises(LoweringError, match="adds up in the same order on all ranks") as caught:
        lowering(schedule, bitwise=True).proved()
    assert fix in (caught.value.fix or "")


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_schedule_that_sums_in_one_place_is_bitwise_consistent(ranks: int) -> None:
    schedule = ring_schedule("allreduce", ranks)
    assert lowering(schedule, bitwise=True).proved() == lowering(schedule).proved()


def test_of_equally_fast_programs_the_smallest_is_taken() -> None:
    task = lowering(ring_schedule("reducescatter", 4))
    program, time = task.best
    assert time == task.schedule.makespan
    assert program.num_threadblocks == 1
    assert np.sum([len(b.steps) for _, b in program.blocks()]) == 4 * 4

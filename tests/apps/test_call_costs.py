"""What collectives of a step take: on their group's part of the machine, by any algorithm."""

import pytest

import taccl
from benchmarks.side_by_side import OFF, PAIRS, by_fluid, ends
from taccl.apps.stepping import CallCosts, quicker
from taccl.errors import InputError, NoScheduleError
from taccl.msccl.program import Program
from taccl.topology.file import load_topology
from taccl.topology.graph import Topology
from taccl.training.operations import Call, Meeting


def solved(topology: Topology, collective: str, size: int, engine: str) -> Program | None:
    found = taccl.synthesize(
        topology, collective, size, engine=engine, runtime="executor", time_limit=0.5
    )
    return found.program


SUM = Call("allreduce", "tp", 1 << 20)


def test_a_group_is_priced_on_its_own_part_of_the_machine() -> None:
    large, small = load_topology("full:8"), load_topology("full:4")
    for via in ("ring", "best", "nccl", "bound", "alpha=5us,busbw=9GB/s", "guided"):
        asked = Call("allgather", "tp", 1 << 16) if via == "guided" else SUM
        whole, part = (CallCosts(each, via, engine=solved) for each in (small, large))
        alone, held = whole.alone((0, 1, 2, 3), asked)
        groups = ((0, 1, 2, 3), (4, 5, 6, 7))
        assert part.alone(groups[0], asked) == (alone, held), via
        both = part.cost(Meeting(asked, groups, frozenset({0}), 0))
        # Two groups that share no edge take what one takes, and each its own edges.
        assert both.time == alone
        for members in groups:
            edges = part.part(members).edges
            assert [both.loads[edge] for edge in edges] == list(held)
            assert {large.edges[edge].tail for edge in edges} == set(members)
        assert sum(both.loads) == 2 * sum(held)
        assert max(both.needs) <= 1 << 24


def test_a_group_alone_takes_the_same_among_all_ranks() -> None:
    for name, groups in (
        ("torus2d:2x4", ((0, 1, 2, 3), (4, 5, 6, 7))), ("dgx-a100", ((0, 2, 4, 6), (7, 5, 3, 1))),
        ("hub:8", ((1, 0), (3, 2))),
    ):  # fmt: skip
        topology = load_topology(name)
        costs = CallCosts(topology, "ring")
        for call in (SUM, Call("allgather", "tp", 3 << 20)):
            meeting = Meeting(call, groups, frozenset({0}), 0)
            # The groups share no edge.
            assert costs.together([(meeting, 7)]) == [7 + costs.cost(meeting).time], (name, call)


def test_ten_shipped_pairs_end_when_fluids_do() -> None:
    small = {"64MB": "512KB", "16MB": "128KB", "1MB": "1MB"}
    for machine, nodes, *pair in PAIRS:
        topology = load_topology(machine, nodes=nodes if nodes > 1 else None)
        asked = [(collective, small[size], via) for collective, size, via in pair]
        alone, fluid, replay = ends(topology, asked)
        # What a step waits for.
        assert abs(max(fluid) / max(replay) - 1) <= OFF, (machine, fluid, replay)
        assert max(alone) <= max(replay) <= sum(alone), machine


def test_groups_that_share_edges_take_longer_than_one_alone() -> None:
    # The pairs of two NDv2 share a NIC of each.
    topology = load_topology("ndv2", nodes=2)
    pairs = tuple((rank, rank + 8) for rank in range(8))
    costs = CallCosts(topology, "ring")
    meeting = Meeting(SUM, pairs, frozenset({0}), 0)
    cost = costs.cost(meeting)
    (together,) = costs.together([(meeting, 0)])
    assert together > 7 * cost.time
    assert abs(by_fluid([cost])[0] / together - 1) <= OFF


def test_what_has_no_program_is_not_replayed() -> None:
    topology = load_topology("ring:4")
    for via in ("nccl", "bound", "alpha=1us,busbw=1GB/s"):
        meeting = Meeting(SUM, ((0, 1, 2, 3),), frozenset({0}), 0)
        with pytest.raises(InputError, match=r"--together: allreduce of 1048576 bytes by .* has"):
            CallCosts(topology, via).together([(meeting, 0)])


def test_no_algorithm_is_below_its_bound_and_best_is_no_worse_than_others() -> None:
    topology = load_topology("torus2d:2x4")
    everyone = tuple(range(8))
    for collective in ("allgather", "allreduce", "alltoall"):
        times = {
            via: CallCosts(topology, via).alone(everyone, Call(collective, "all", 1 << 20))[0]
            for via in ("bound", "best", "ring")
        }
        assert times["bound"] <= times["best"] <= times["ring"], collective


def test_a_table_says_what_nccl_tests_would() -> None:
    costs = CallCosts(load_topology("full:4"), "alpha=10us,busbw=3GB/s")
    time, held = costs.alone((0, 1, 2, 3), Call("allreduce", "all", 2_000_000))
    assert time == 10_000_000 + 1_000_000_000
    assert 0 < max(held) <= time


def test_links_between_servers_are_the_slow_ones() -> None:
    for name, nodes, told in (("full:4", None, "links"), ("ndv2", 2, "links between servers")):
        topology = load_topology(name, nodes=nodes)
        more, what = quicker(topology)
        assert what == told
        changed = {
            edge.id for edge, other in zip(topology.edges, more.edges, strict=True)
            if edge.beta != other.beta
        }  # fmt: skip
        inside = {
            edge
            for number in range(len(topology.links))
            for link in [topology.link(number)]
            if nodes and topology.server_of[link.src] == topology.server_of[link.dst]
            for edge in link.edges
        }
        assert changed
        assert not changed & inside


def test_what_has_no_algorithm_is_told() -> None:
    ring = load_topology("ring:4")
    with pytest.raises(InputError, match="NCCL has no model of"):
        CallCosts(ring, "nccl").alone((0, 1, 2, 3), Call("scatter", "all", 64))
    with pytest.raises(InputError, match="should be a latency and a bus bandwidth, got 'a"):
        CallCosts(ring, "alpha=1us").alone((0, 1, 2, 3), SUM)
    with pytest.raises(NoScheduleError, match="all-pairs can't do allreduce on 4 ranks of ring-4"):
        CallCosts(ring, "all-pairs").alone((0, 1, 2, 3), SUM)
    for via in ("best", "ring", "bound", "nccl"):
        with pytest.raises(InputError, match="rank 0 reaches rank 2 of group tp only through"):
            CallCosts(ring, via).alone((0, 2), SUM)
    assert CallCosts(ring).alone((1,), SUM)[0] == 0

"""What plans on switch channels take: as long as the fans that they are made of."""

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import pytest

from taccl.lowering.plans import FanOptions, fan_plan
from taccl.mscclpp.plan import Group, Plan
from taccl.replay.cost import model_of
from taccl.replay.plans import replay_plan
from taccl.replay.timing import SPENT
from taccl.topology.graph import FanEngine, LocalCosts, Topology
from tests.mscclpp.switches import flagged, scheduled

MODEL = model_of("executor")
US = 10**6


def star(*, own: bool = True) -> Topology:
    """Return four ranks on a switch, 1 GB/s and 0.5 us an edge; sums cost nothing."""
    machine = flagged("hub:4", own=own)
    edges = [
        replace(e, alpha=US // 2, overhead=US // 2, beta=Fraction(1000)) for e in machine.edges
    ]
    return machine.with_costs(edges, LocalCosts())


def time_of(plan: Plan, topology: Topology, size: int = 4000) -> int | None:
    # 4 KB are no multiple of 16 bytes in each of 4 chunks.
    return replay_plan(replace(plan, alignment=4), topology, size, MODEL).time


HAND = (
    ("allreduce", "nvls", 7, 6), ("allgather", "nvls", 5, 4), ("broadcast", "nvls", 5, 5),
    ("allreduce", "nvls-one-shot", 17, 13),
)  # fmt: skip
"""Microseconds of 4 KB by hand, own values through the switch and at home."""


def made(topology: Topology, size: int = 4000) -> Iterator[tuple[Plan, Plan, int, int]]:
    """Yield a plan alone and one of two threadblocks, the schedule's time, and that by hand."""
    for name, way, through, local in HAND:
        schedule = scheduled(topology, name, way, size)
        alone, shared = (
            fan_plan(schedule, FanOptions("fans", in_place=True, blocks=blocks))
            for blocks in (1, 2)
        )
        own = topology.switches[0].multicast
        yield alone, shared, schedule.makespan, through if own and own.through else local


def test_plans_take_what_their_fans_do_and_the_word_that_the_call_has_begun() -> None:
    for own in (True, False):
        topology = star(own=own)
        for alone, shared, schedule, by_hand in made(topology):
            assert schedule == by_hand * US
            # The last signals come with what they tell of.
            assert time_of(alone, topology) == time_of(shared, topology) == schedule + US


def test_nvls_on_a_dgx_h100_takes_what_its_formula_says() -> None:
    topology, size = flagged("dgx-h100"), 64 * 10**6
    plan = fan_plan(
        scheduled(topology, "allreduce", "nvls", size), FanOptions("sum", in_place=True)
    )
    # 2 alpha + (1 + 1/8) beta S is 161.4 us; 0.7 us before it.
    assert time_of(plan, topology, size) == 162_100_000
    engine = flagged("dgx-h100", engine=FanEngine(beta=Fraction(10_000, 3040)))
    assert time_of(plan, engine, size) == 2_100_000 + -(-(9 * 8 * 10**6 * 10_000) // 3040)


def test_packets_are_twice_the_bytes_and_need_no_word() -> None:
    topology = star()
    for name, way, size in (("allgather", "nvls", 4000), ("allreduce", "nvls-one-shot", 4000)):
        plan = fan_plan(
            scheduled(topology, name, way, size),
            FanOptions("packets", in_place=True, packets=True, blocks=2),
        )
        assert time_of(plan, topology, size) == scheduled(topology, name, way, 2 * size).makespan


def test_where_switches_can_not_each_rank_gets_a_message_of_its_own() -> None:
    topology = star()
    plan = fan_plan(scheduled(topology, "allgather", "nvls"), FanOptions("gather", in_place=True))
    least = time_of(plan, topology)
    plain = time_of(plan, topology.point_to_point())
    assert least is not None
    assert plain is not None
    # Each sends three times 1 us of bytes, and every message its alphas.
    assert plain == 7 * US > least


def test_fans_that_share_no_edge_do_not_wait_for_one_another() -> None:
    topology, size = flagged("dgx-h100", nodes=2), 8 * 10**6
    server = fan_plan(
        scheduled(flagged("dgx-h100"), "allreduce", "nvls"), FanOptions("sum", in_place=True)
    )
    second = tuple(
        replace(
            rank,
            channels={"memory": tuple(one._replace(peer=one.peer + 8)
                                      for one in rank.channels["memory"])},
            groups=tuple(Group(g.buffer, tuple(one + 8 for one in g.ranks)) for g in rank.groups),
        )
        for rank in server.ranks
    )  # fmt: skip
    both = replace(server, ranks=(*server.ranks, *second))
    assert time_of(both, topology, size) == time_of(server, flagged("dgx-h100"), size)


def test_measured_costs_charge_one_alpha_and_the_threadblock() -> None:
    topology, size = flagged("dgx-h100"), 64 * 10**6
    schedule = scheduled(topology, "allreduce", "nvls", size)
    model = replace(MODEL, measured=True)
    times = [
        replay_plan(
            fan_plan(schedule, FanOptions("sum", in_place=True, blocks=blocks)),
            topology, size, model,
        ).time
        for blocks in (1, 8)
    ]  # fmt: skip
    # 9/8 of the bytes at what is left of 450 GB/s; before it and with it an alpha, and the launch.
    assert topology.measured is not None
    assert topology.measured.plans is not None
    own = topology.measured.plans
    row = own.protocols["NVLS"]
    started, left = row.launch + 2 * row.alpha, float(own.inside / row.wire)
    assert times[1] == pytest.approx(started + 72 * 10**9 / (450 * left), rel=1e-4)
    # The engine is slower than a threadblock here, not where its part is 1/8 of less.
    assert times[0] == times[1]
    fast = topology.with_costs([replace(edge, beta=Fraction(1)) for edge in topology.edges])
    assert fast.measured is not None
    assert fast.measured.plans is not None
    own = fast.measured.plans
    blocks_count = replace(own.protocols["NVLS"], block_beta=Fraction(25))
    own = replace(own, protocols={**own.protocols, "NVLS": blocks_count})
    fast = replace(fast, measured=replace(fast.measured, plans=own))
    slow = [
        replay_plan(
            fan_plan(schedule, FanOptions("sum", in_place=True, blocks=blocks)), fast, size, model
        ).time
        for blocks in (1, 8)
    ]
    assert slow[0] == pytest.approx(started + 8 * 10**6 * 25, rel=1e-4)
    assert slow[1] == pytest.approx(started + 72 * 10**6 / left, rel=1e-4)


def test_both_replays_give_the_same_times(monkeypatch: pytest.MonkeyPatch) -> None:
    topology = star()
    for alone, shared, *_ in made(topology):
        for plan in (alone, shared):
            told = replay_plan(plan, topology, 4096, MODEL, keep_spans=True)
            assert told.time is not None
            with monkeypatch.context() as patch:
                patch.setattr(SPENT, "messages", 1 << 40)
                assert replay_plan(plan, topology, 4096, MODEL).time == told.time

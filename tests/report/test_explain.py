"""Where the time goes: parts that add up, the bottleneck, and what is off the path."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from taccl.replay.interpreter import Why
from taccl.report.explain import PARTS, Faster, _legs, _parameters, explain, explanation_text
from taccl.report.played import Played, play
from tests.replay.program_builder import SMALL, block, hub, network, program, ring, step
from tests.report.played_programs import (
    deadlocked,
    explained,
    random_parts,
    random_replays,
    ring4,
    row_for,
    tiny,
)


def part(played: Played, name: str) -> int:
    return {each.name: each.time for each in explained(played).parts}[name]


def test_the_parts_add_up_to_the_time_on_random_programs() -> None:
    seen: dict[str, int] = dict.fromkeys(PARTS, 0)
    for played in random_replays(range(200)):
        found = explained(played)
        assert sum(each.time for each in found.parts) == played.trace.time
        for each in found.parts:
            assert 0 <= each.alpha <= each.time
            seen[each.name] += each.time
    assert [name for name in PARTS if not seen[name]] == ["launch"]


@pytest.mark.parametrize("costs", [False, True])
def test_the_parts_add_up_with_launch_routes_and_protocol_costs(costs: bool) -> None:
    for seed in range(60):
        made, topology, size = random_parts(seed)
        local = replace(topology.local, launch=12345)
        played = play(
            replace(made, protocol="LL"), replace(topology, local=local), size, SMALL,
            route=True, protocol_costs=costs,
        )  # fmt: skip
        if played.trace.time is not None:
            assert sum(each.time for each in explained(played).parts) == played.trace.time
            assert part(played, "launch") == 12345


def test_a_ring_pays_alpha_and_bandwidth_of_every_hop() -> None:
    # 6 hops of alpha 700 and 400 bytes at 3 ps
    times = {each.name: (each.time, each.count) for each in explained(ring4()).parts}
    assert times["alpha"] == (6 * 700, 6)
    assert times["bandwidth"] == (6 * 1200, 6)
    assert sum(time for time, _ in times.values()) == 6 * 1900


def test_every_span_of_the_critical_path_is_counted_once() -> None:
    for played in random_replays(range(60)):
        found = explained(played)
        spans = {each.name: each.count for each in found.parts}
        assert spans["alpha"] == spans["bandwidth"]
        assert sum(spans.values()) - spans["bandwidth"] - spans["launch"] == found.path[2]


def test_a_queue_at_a_port_is_queueing() -> None:
    # Ranks 1, 2, 3 send to rank 0 at once: two of the three messages go before the last.
    sends = [[block(0, 0, None, ["s"])] for _ in range(3)]
    receives = [block(i, None, i + 1, ["r"]) for i in range(3)]
    played = play(program(receives, *sends), hub(4), 100, SMALL)
    assert played.trace.time == 3 * (700 + 300)
    assert part(played, "queueing for a link") == 2 * (700 + 300)
    assert part(played, "alpha") == 700
    alphas = {each.name: each.alpha for each in explained(played).parts if each.alpha}
    assert alphas == {"queueing for a link": 2 * 700, "alpha": 700}
    assert ", 0.0014 us of it alpha" in explanation_text(explained(played))


def test_a_queue_has_no_alpha_where_alpha_does_not_hold_the_edge() -> None:
    sends = [[block(0, 0, None, ["s"])] for _ in range(3)]
    receives = [block(i, None, i + 1, ["r"]) for i in range(3)]
    played = play(program(receives, *sends), hub(4).with_alpha_rule("delay"), 100, SMALL)
    parts = {each.name: (each.time, each.alpha) for each in explained(played).parts if each.time}
    assert parts == {
        "alpha": (700, 700), "bandwidth": (300, 0), "queueing for a link": (2 * 300, 0)
    }  # fmt: skip


def test_local_work_before_a_dependent_send_is_local_work() -> None:
    topology = network(2, [(0, 1, 700, None, 3)], copy=5)
    blocks = [
        block(0, None, None, [step("cpy", posts=True)]), block(1, 1, None, [step("s", 1, (0, 0))]),
    ]  # fmt: skip
    played = play(program(blocks, [block(0, None, 0, ["r"])]), topology, 100, SMALL)
    assert part(played, "local work") == 500 + 500  # the copy and the receive


def test_a_send_that_waits_for_another_to_leave_waits_for_a_dependency() -> None:
    topology = network(3, [(0, 1, 700, None, 3), (0, 2, 700, None, 3)])
    blocks = [block(0, 1, None, [step("s", posts=True)]), block(1, 2, None, [step("s", 1, (0, 0))])]
    receivers = [[block(0, None, 0, ["r"])] for _ in range(2)]
    played = play(program(blocks, *receivers), topology, 100, SMALL)
    assert part(played, "waiting for a dependency") == 700 + 300


def test_twice_the_bandwidth_of_the_only_edge_halves_the_bandwidth_part() -> None:
    sends = program([block(0, 1, None, ["s"])], [block(0, None, 0, ["r"])])
    found = explained(play(sends, ring(2), 1000, SMALL))
    assert found.row.time == 700 + 3000
    assert found.faster == Faster(700 + 1500, "e0", 1.0)


def test_twice_the_bandwidth_of_one_of_two_equal_edges_leaves_the_other() -> None:
    sends = program([block(0, 1, 1, ["s", "r"])], [block(0, 0, 0, ["s", "r"])])
    found = explained(play(sends, ring(2), 1000, SMALL))
    assert found.row.bottleneck == "e0"
    assert found.faster == Faster(700 + 3000, "e1", 1.0)


def test_an_edge_that_no_message_of_the_path_crosses_is_off_it() -> None:
    topology = network(3, [(0, 1, 700, None, 3), (0, 2, 0, None, 1), (1, 2, 0, None, 1)])
    blocks = [block(0, 1, None, ["s"]), block(1, 2, None, ["s"])]
    receivers = [[block(0, None, 0, ["r"])] for _ in range(2)]
    found = explained(play(program(blocks, *receivers), topology, 100, SMALL))
    assert (found.alpha_on, found.beta_on, found.off) == (("e0",), ("e0",), ("e1",))
    assert found.unused == ("e2",)
    assert found.off_faster is not None
    assert found.off_faster.time == found.row.time


def test_each_leg_takes_what_the_parameters_named_for_it_cost() -> None:
    # Nothing else can be on the path: alphas and overheads add up, of the betas the largest counts.
    legs = [(played, leg) for played in random_replays(range(200)) for leg in _legs(played)]
    for played, leg in legs:
        if leg.span.link is None:
            continue
        paid, edges = _parameters(played, [leg]), played.topology.edges
        fixed = sum(edges[number].alpha for number in paid.alpha)
        fixed += sum(edges[number].overhead or 0 for number in paid.overhead)
        held = [time for edge, time in played.holds(leg.span) if edge in paid.beta]
        wire = played.connection(leg.span)
        assert leg.time == fixed + max((time - wire.overhead for time in held), default=0)
    assert {leg.why for _, leg in legs} == {None, *Why} - {Why.NOTHING}


def test_what_no_message_crosses_changes_nothing() -> None:
    for seed in range(80):
        made, topology, size = random_parts(seed)
        played = play(made, topology, size, SMALL)
        if played.trace.time is None:
            continue
        unused = set(explained(played).unused)
        edges = tuple(
            replace(edge, alpha=9 * edge.alpha + 7, overhead=None) if edge.name in unused else edge
            for edge in topology.edges
        )
        again = play(made, replace(topology, edges=edges), size, SMALL)
        assert again.trace.time == played.trace.time


@pytest.mark.parametrize(("rule", "alpha"), [("occupy", ("e0",)), ("delay", ())])
def test_a_queue_pays_the_alpha_only_where_it_occupies_the_edge(
    rule: str, alpha: tuple[str, ...]
) -> None:
    # Two messages of one threadblock: the second follows the release of the first.
    topology = replace(network(2, [(0, 1, 5, None, 3)]), alpha_rule=rule)
    sends = [block(0, 1, None, ["s", "s"])]
    work = [block(0, None, 0, ["r", "r"])]
    played = play(program(sends, work), topology, 100, SMALL)
    legs = [each for each in _legs(played) if each.why is Why.ORDER]
    assert len(legs) == 1
    assert _parameters(played, legs).alpha == {int(name[1:]) for name in alpha}


def test_an_overhead_of_its_own_is_named_and_not_the_alpha() -> None:
    sends = program([block(0, 1, None, ["s", "s"])], [block(0, None, 0, ["r", "r"])])
    played = play(sends, network(2, [(0, 1, 700, 100, 3)]), 100, SMALL)
    found = explained(played)
    # The first message until its release, the second until its arrival.
    assert played.trace.time == (100 + 300) + (700 + 300)
    assert (found.alpha_on, found.overhead_on) == (("e0",), ("e0",))


def test_a_queue_at_a_port_pays_the_beta_of_that_port_alone() -> None:
    # Ranks 1 and 2 send to rank 0 over ports of their own, which are slower than rank 0's.
    topology = network(
        3, [(1, 3, 0, None, 5), (2, 3, 0, None, 5), (3, 0, 0, None, 3)], switches=1
    )  # fmt: skip
    receives = [block(i, None, i + 1, ["r"]) for i in range(2)]
    sends = [[block(0, 0, None, ["s"])] for _ in range(2)]
    played = play(program(receives, *sends), topology, 100, SMALL)
    assert played.trace.time == 300 + 500
    assert explained(played).beta_on == ("e1", "e2")


def test_local_costs_that_the_path_pays_are_named() -> None:
    assert explained(tiny()).local_on == ("copy", "launch")
    assert explained(ring4()).local_on == ()


def test_a_time_without_a_replay_of_every_message_is_not_explained() -> None:
    played = ring4()
    blind = replace(played, trace=replace(played.trace, time=None, reason="too many", spans=()))
    found = explain(blind, row_for(played), lambda _: played.trace)
    assert explanation_text(found).endswith(": 0.0114 us, can't be explained: too many")
    assert found.columns()["note"] == "too many"
    assert "parts" not in found.columns()


def test_only_the_slowest_edge_of_a_link_has_a_beta_that_counts() -> None:
    topology = network(2, [(0, 2, 5, None, 1), (2, 1, 0, None, 4)], switches=1)
    sends = program([block(0, 1, None, ["s"])], [block(0, None, 0, ["r"])])
    found = explained(play(sends, topology, 100, SMALL))
    assert (found.alpha_on, found.beta_on, found.off) == (("e0",), ("e1",), ())


def test_the_text_of_a_tiny_program_is_golden(golden: Callable[[str, str], None]) -> None:
    golden("report/tiny-explained.txt", explanation_text(explained(tiny())) + "\n")


def test_a_program_that_can_not_run_is_told_in_one_line() -> None:
    assert explanation_text(explained(deadlocked())) == (
        "test at 64B on net: can't run: deadlock: rank 1 threadblock 0 step 0 waits for a message"
        " from rank 0 on channel 0, which sends no more"
    )


def test_a_program_without_steps_takes_no_time_and_is_explained() -> None:
    text = explanation_text(explained(play(program([], []), ring(2), 64, SMALL)))
    assert text.startswith("test at 64B on net: 0 us\n")


def test_names_can_not_disturb_a_terminal() -> None:
    found = explained(tiny())
    evil = replace(found, row=replace(found.row, file="a\x1b[31m\nb\u202e"))
    assert explanation_text(evil).splitlines()[0] == "a?[31m b? at 1.6KB on net: 0.0065 us"


def test_json_holds_exact_parts() -> None:
    columns = explained(ring4()).columns()
    assert columns["time_ps"] == sum(p["time_ps"] for p in columns["parts"])  # type: ignore[attr-defined]
    assert columns["path"] == {
        "first": "rank 3 threadblock 0 step 0", "last": "rank 0 threadblock 0 step 5", "spans": 11,
    }  # fmt: skip


def test_json_of_a_program_that_can_not_run_says_why() -> None:
    columns = explained(deadlocked()).columns()
    assert columns["time_us"] is None
    assert "deadlock" in str(columns["note"])

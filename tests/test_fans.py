"""What switches copy and add in a schedule: hand cases, what breaks, files, symmetry."""

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from taccl.errors import InputError, LoweringError
from taccl.lowering.lower import LowerOptions, lower
from taccl.model.schedule import Decisions, Schedule, retime
from taccl.model.schedule_file import read_schedule, schedule_text
from taccl.topology.fans import Fan, make_fans, wrong_fan
from taccl.topology.file import load_topology
from taccl.topology.graph import FanEngine, Multicast, Reduction, Switch, Topology
from taccl.topology.symmetry import make_group
from taccl.verify import verify
from tests.in_network import able, nvls, problem_of, us, ways

HUB = 4
"""The switch of a hub of four ranks."""

HAND = {
    # name, collective: us own through, own local. 4 ranks, 1 GB/s, 1 us a crossing, 4 KB.
    ("nvls", "allreduce"): (7, 6),
    ("nvls", "reducescatter"): (5, 4),
    ("nvls", "allgather"): (5, 4),
    ("nvls", "broadcast"): (5, 5),
    ("nvls", "reduce"): (5, 5),
    ("nvls-one-shot", "allreduce"): (17, 13),
}


def arc(topology: Topology, src: int, dst: int) -> int:
    (found,) = topology.arcs.between(src, dst)
    return found


def star(topology: Topology, turn: int, *, own: bool = True) -> Fan:
    """Return the fan of an AllReduce on a hub of four ranks that turns at a rank, or the hub."""
    ranks = range(4)
    into = [arc(topology, r, HUB) for r in ranks if own or r != turn]
    out = [arc(topology, HUB, r) for r in ranks if own or r != turn]
    turns = [(turn, HUB), (HUB, turn)] if turn != HUB else []
    into += [arc(topology, *ends) for ends in turns[1:]]
    out += [arc(topology, *ends) for ends in turns[:1]]
    return Fan(turn, tuple(sorted(into)), tuple(sorted(out)))


def test_the_hand_table_holds_to_the_picosecond() -> None:
    for through, place in ((True, 0), (False, 1)):
        topology = nvls(through=through)
        for (name, collective), times in HAND.items():
            (schedule,) = ways(topology, name, collective, 4000)
            assert us(schedule) == times[place], (name, collective, through)
            assert verify(schedule) == []
    (schedule,) = ways(able(load_topology("hub:4@1GB/s,1us")), "sharp", "allreduce", 4000)
    assert us(schedule) == 5
    assert verify(schedule) == []


def in_batches(schedule: Schedule, sizes: list[int]) -> Schedule:
    """Return the same sends in batches of other sizes, one after another."""
    batch = np.repeat(np.arange(len(sizes)), sizes).astype(np.int32)
    decisions = replace(schedule.decisions(), batch=batch, visible_from=None)
    group = make_group(schedule.topology, ())
    return retime(schedule.collective, group, schedule.chunk_size, decisions)


def test_batches_that_follow_each_other_pay_for_it() -> None:
    for through, four, two in ((True, 16, 10), (False, 12, 8)):
        topology = nvls(through=through)
        (fused,) = ways(topology, "nvls", "allreduce", 4000)
        alone = in_batches(fused, [1, 1, 1, 1])
        assert us(alone) == four
        assert verify(alone) == []
        # Sums first, copies in a second batch: the fans of ReduceScatter, then of AllGather.
        problem = problem_of(topology, "allreduce", 4000)
        halves = [ways(topology, "nvls", c, 4000)[0] for c in ("reducescatter", "allgather")]
        fans = make_fans(topology, [fan for half in halves for fan in half.fans])
        links = len(topology.links)
        rows = [(c, links + 4 * step + c, step, step == 0) for step in (0, 1) for c in range(4)]
        both = problem.timed(Decisions.of(rows, fans=fans))
        assert us(both) == two
        assert verify(both) == []
    (whole,) = ways(able(load_topology("hub:4@1GB/s,1us")), "sharp", "allreduce", 4000)
    assert us(in_batches(whole, [1, 1, 1, 1])) == 8


def rules(schedule: Schedule) -> set[str]:
    return {violation.rule for violation in verify(schedule)}


def test_each_way_to_break_a_schedule_with_fans_is_found() -> None:
    topology = nvls()
    (good,) = ways(topology, "nvls", "allreduce", 4000)
    hub = able(load_topology("hub:4@1GB/s,1us"))
    (sharp,) = ways(hub, "sharp", "allreduce", 4000)
    fan = sharp.fans[0]

    def on(switch: Switch, schedule: Schedule) -> Schedule:
        return replace(schedule, topology=replace(schedule.topology, switches=(switch,)))

    less = make_fans(hub, [fan._replace(into=fan.into[1:])])
    shot = ways(topology, "nvls-one-shot", "allreduce", 4000)[0]
    again = [*shot.decisions().rows(), (0, int(shot.link[0]), 1, True)]
    twice = Decisions.of(again, fans=shot.fans)
    only_ranks = Switch("hub", Multicast(), Reduction(at_rank=True))
    open_star = make_fans(nvls(through=False), [star(topology, r, own=False) for r in range(4)])
    broken = {
        "drops a source": (replace(sharp, fans=less), "summed"),
        "adds a source twice": (problem_of(topology, "allreduce", 4000).timed(twice), "summed"),
        "copies at a switch that adds": (on(Switch("hub", None, Reduction()), sharp), "fan"),
        "adds at a switch that copies": (on(Switch("hub", Multicast()), sharp), "fan"),
        "turns where only ranks turn": (on(only_ranks, sharp), "fan"),
        "omits its own value": (replace(good, fans=open_star), "fan"),
        "breaks a batch": (replace(good, batch=np.arange(4, dtype=np.int32)), "resource"),
        "ends too soon": (replace(good, end=good.end - 1), "message"),
        "starts one later than its batch": (
            replace(good, start=good.start + np.array([0, 0, 0, 1]), end=good.end), "message"),
        "joins without adding": (replace(good, reduce=~good.reduce), "fan"),
        "too many trees": (on(replace(topology.switches[0], trees=3), good), "groups"),
    }  # fmt: skip
    for what, (schedule, rule) in broken.items():
        assert rule in rules(schedule), what
    # One more chunk on a fan that is still busy.
    both = problem_of(hub, "allreduce", 4000, 2).timed(
        Decisions.of([(c, int(sharp.link[0]), c // 4, True) for c in range(8)], fans=sharp.fans)
    )
    assert rules(both) == set()
    assert "resource" in rules(replace(both, start=both.start - both.start // 2,
                                       end=both.end - both.start // 2))  # fmt: skip
    limited = replace(topology.switches[0], trees=4, groups=1)
    assert rules(on(limited, good)) == set()


def test_a_fan_that_its_switches_cannot_do_is_refused() -> None:
    hub, switch = able(load_topology("hub:4@1GB/s,1us")), nvls()
    whole = star(hub, HUB)
    up = [arc(hub, r, HUB) for r in range(4)]
    down = [arc(hub, HUB, r) for r in range(4)]
    wrong = {
        "a turn or an arc that does not exist": Fan(9, (), ()),
        "two arcs of a tree are at one station": Fan(HUB, (up[0], up[0], up[1]), whole.out),
        "one source or one target": Fan(HUB, whole.into, tuple(down[:1])),
        "does not end at the turn": Fan(0, tuple(up[1:]), ()),
        "rank 0 is inside a tree": Fan(HUB, tuple(sorted((up[0], up[1], down[0]))), ()),
        "joins rank 0 to no other": Fan(0, tuple(sorted((up[0], down[0]))), ()),
        "has no arcs": Fan(0, (), ()),
        "a way ends at hub, which is no rank": Fan(0, (down[0],), ()),
    }  # fmt: skip
    for problem, fan in wrong.items():
        with pytest.raises(InputError, match=problem):
            make_fans(hub, [fan])
    assert wrong_fan(switch, star(switch, 0)) is None
    bare = "leaves out the value of rank 0 at hub"
    assert wrong_fan(switch, star(switch, 0, own=False)) == f"it {bare}"
    spine = able(load_topology("leaf-spine:2x2"), "leaf*")
    # Rank 0 is reached by its leaf (vertex 4) and leaves by it: over the other leaf is no cut.
    into = tuple(sorted(spine.arcs.between(s, d)[0] for s, d in ((1, 4), (2, 5), (5, 4), (4, 0))))
    assert wrong_fan(spine, Fan(0, into, ())) is None


def test_times_are_those_of_their_own_decisions_and_double_with_costs() -> None:
    window = FanEngine(Fraction(1500), 500_000, (64, Fraction(128)))
    for topology, name, collective, chunks in (
        (nvls(), "nvls", "allreduce", 2), (nvls(), "nvls-one-shot", "allreduce", 1),
        (nvls("dgx-h100", nodes=2), "nvls-rail", "allreduce", 2),
        (nvls("dgx-h100", nodes=4), "nvls-rail", "allreduce", 4),
        (load_topology("h100-sharp", nodes=2), "nvls-sharp", "allreduce", 2),
        (able(load_topology("fat-tree:4"), "*edge*"), "in-rack", "allreduce", 1),
        (able(load_topology("fat-tree:4")), "sharp-trees", "allreduce", 1),
        (able(load_topology("hub:4@1GB/s,1us")), "sharp", "allreduce", 2),
        (able(load_topology("fat-tree:4")), "multicast-tree", "allgather", 1),
        (able(load_topology("hub:4@1GB/s,1us"), engine=window), "switchml", "allreduce", 1),
    ):  # fmt: skip
        schedule = ways(topology, name, collective, 10**6, chunks)[0]
        problem = problem_of(topology, collective, 10**6, chunks)
        again = problem.timed(schedule.decisions())
        assert (again.makespan, verify(again)) == (schedule.makespan, [])
        assert schedule_text(problem.timed(again.decisions())) == schedule_text(again)
        slower = replace(
            topology,
            edges=tuple(
                replace(e, alpha=2 * e.alpha, beta=e.beta and 2 * e.beta) for e in topology.edges
            ),
            switches=tuple(
                replace(s, engine=replace(
                    s.engine, alpha=2 * s.engine.alpha, beta=s.engine.beta and 2 * s.engine.beta
                ))
                for s in topology.switches
            ),
        )  # fmt: skip
        doubled = ways(slower, name, collective, 10**6, chunks)[0]
        assert abs(doubled.makespan - 2 * schedule.makespan) <= len(schedule)


def test_images_of_a_batch_with_fans_are_one_batch() -> None:
    for through in (True, False):
        topology = nvls(through=through)
        (whole,) = ways(topology, "nvls", "allreduce", 4000)
        turn = make_group(topology, [(1, 2, 3, 0)])
        fans = make_fans(topology, [whole.fans[0]]).close(turn)
        assert list(fans) == sorted(whole.fans)
        rows = [(0, len(topology.links) + list(fans).index(whole.fans[0]), 0, True)]
        one = retime(whole.collective, turn, whole.chunk_size, Decisions.of(rows, fans=fans))
        full = one.expand()
        assert (len(one), one.num_sends, one.makespan) == (1, 4, whole.makespan)
        assert len(set(full.batch.tolist())) == 1
        assert verify(one) == verify(full) == []
        with pytest.raises(InputError, match="no image under a symmetry"):
            make_fans(topology, [whole.fans[0]]).image(turn, 1)


def test_a_reversed_network_copies_what_it_added() -> None:
    topology = nvls()
    turned = topology.reversed()
    assert turned.switches[0].multicast == Multicast(through=True)
    (sums,) = ways(topology, "nvls", "reducescatter", 4000)
    edges = topology.arcs.edges_of
    number = {turned.arcs.edges_of(a): a for a in range(len(turned.arcs))}
    for fan in sums.fans:
        out = tuple(sorted(number[edges(one)[::-1]] for one in fan.into))
        assert wrong_fan(turned, Fan(fan.turn, (), out)) is None


def test_an_engine_and_a_window_hold_fans_and_no_messages() -> None:
    engine = FanEngine(Fraction(2000), 500_000)
    topology = able(load_topology("hub:4@1GB/s,1us"), engine=engine)
    (schedule,) = ways(topology, "sharp", "allreduce", 4000)
    assert us(schedule) == Fraction(3, 2) + 8  # half a us more, and half the bandwidth
    assert topology.links.max_beta(0) == 1000
    window = FanEngine(window=(4, Fraction(100)), alpha=1_000_000)
    (schedule,) = ways(able(topology, engine=window), "sharp", "allreduce", 4000)
    assert us(schedule) == 2 + 4000 * Fraction(2, 400)  # 400 bytes in every 2 us
    assert verify(schedule) == []


def test_a_schedule_with_fans_is_read_back_exactly(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    (schedule,) = ways(nvls(), "nvls", "allreduce", 4000)
    text = schedule_text(schedule, engine="nvls")
    path.write_text(text)
    again = read_schedule(str(path))
    assert schedule_text(again, engine="nvls") == text
    assert verify(again) == []
    document = json.loads(text)
    assert document["taccl"] == "schedule/2"
    assert document["fans"][0] == {
        "turn": 0, "in": [[0], [2], [4], [6], [1]], "out": [[0], [1], [3], [5], [7]]
    }  # fmt: skip
    plain = problem_of(nvls(), "allgather", 4000)
    assert '"schedule/1"' in schedule_text(plain.timed(Decisions.of([(0, 0, 0, False)])))
    bad = {
        "fans: are not in schedule/1": {"taccl": "schedule/1"},
        "fans: are missing": {"fans": None},
        r"fans\[0\].in\[0\]: edges a list of 1 are no arc": {
            "fans": [{"turn": 0, "in": [[99]], "out": []}] * 4},
        r"fans\[0\]: a way from 1 does not end at the turn": {
            "fans": [{"turn": 0, "in": [[2]], "out": []}] * 4},
        r"sends.link\[1\]: should be from 0 to 12": {"fans": document["fans"][:1]},
        r"turn: should be at least 0": {"fans": [{"turn": -1, "in": [], "out": []}]},
    }  # fmt: skip
    for problem, change in bad.items():
        path.write_text(json.dumps(document | change))
        with pytest.raises(InputError, match=problem):
            read_schedule(str(path))


def test_xml_refuses_what_switches_add() -> None:
    (schedule,) = ways(nvls(), "nvls", "allreduce", 4000)
    with pytest.raises(LoweringError, match=r"no XML can hold .*\n  fix: use --in-network off"):
        lower(schedule, LowerOptions("nvls"))

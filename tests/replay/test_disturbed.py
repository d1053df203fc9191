"""Replays under a scenario: as the plain one where nothing is disturbed, else timed by hand."""

import random
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl.bounds import any_bounds, best
from taccl.collectives import build_collective
from taccl.errors import InputError
from taccl.msccl.program import Program, Step, StepRef
from taccl.replay import disturbed
from taccl.replay.disturbed import Load, Stream, mean_time, percentile, weakened
from taccl.replay.interpreter import replay
from taccl.replay.scenario import DistributionRecord as Delay
from taccl.replay.timing import traces
from taccl.topology.graph import Topology, whole
from tests.replay.program_builder import (
    SMALL,
    block,
    hub,
    network,
    program,
    ring,
    ring_allreduce,
    step,
)
from tests.replay.random_programs import RANKS, random_program, random_topology
from tests.replay.scenarios import outcome, scenario

SEEDS = range(40)
NEUTRAL: dict[str, Any] = {
    "background": [{"edge": "*", "share": 0}],
    "stragglers": [{"ranks": "all", "late": 0, "slow": 1}],
    "jitter": {
        "message": {"distribution": "exponential", "mean": 0},
        "start": {"distribution": "uniform", "mean": 0},
    },
    "degraded": [{"edge": "*", "factor": 1}],
    "changes": [{"edge": "*", "at": "100ps", "factor": 1}],
    "runs": 2,
}


def wire(rule: str = "occupy", **local: int) -> Topology:
    """One wire from rank 0 to rank 1: s bytes take 100 + s ps, under occupy on the edge, too."""
    return network(2, [(0, 1, 100, None, 1)], rule=rule, **local)


def pair(steps: Sequence[Step | str], answers: Sequence[Step | str]) -> Program:
    return program([block(0, 1, None, steps)], [block(0, None, 0, answers)])


def one() -> Load:
    return Load(pair(["s"], ["r"]), 400)


def two() -> Load:
    return Load(pair(["s", "s"], ["r", "r"]), 400)


def draw(seed: int) -> tuple[Topology, Load, bool]:
    rng = random.Random(f"disturbed {seed}")
    topology, made = random_topology(rng), random_program(rng)
    made = replace(made, protocol=rng.choice(("Simple", "LL")))
    return topology, Load(made, 16 * rng.randint(1, 300)), rng.random() < 0.5


# --- nothing is disturbed ----------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{}, NEUTRAL], ids=["empty", "neutral"])
def test_a_neutral_scenario_changes_nothing_on_random_programs(fields: dict[str, Any]) -> None:
    ended = 0
    for seed in SEEDS:
        topology, load, costs = draw(seed)
        full = replay(load.program, topology, load.size, SMALL, protocol_costs=costs)
        plain = replace(full, spans=())
        found = outcome(topology, load, protocol_costs=costs, **fields)
        assert found.trace == plain, f"seed {seed}"
        assert set(found.times) == {plain.time} - {None}
        ended += plain.time is not None
    assert len(SEEDS) / 2 < ended < len(SEEDS)


def test_background_where_nothing_is_sent_changes_nothing() -> None:
    topology = network(3, [(0, 1, 100, None, 1), (1, 2, 100, None, 1)])
    load = Load(program([block(0, 1, None, ["s"])], [block(0, None, 0, ["r"])], []), 400)
    flow = {"edge": "e1", "size": 50, "period": "7ps"}
    assert outcome(topology, load, background=[flow]).times == (500,)


# --- edges -------------------------------------------------------------------------------------


def test_a_share_of_others_leaves_the_rest_of_the_bandwidth() -> None:
    assert outcome(wire(), one(), background=[{"edge": "e0", "share": 0.5}]).times == (900,)


def test_shares_add_up_and_factors_multiply() -> None:
    shares = [{"edge": "e0", "share": "1/4"}, {"link": "0->1", "share": "1/4"}]
    found = outcome(wire(), one(), background=shares, degraded=[{"edge": "e0", "factor": "1/2"}])
    assert found.times == (100 + 4 * 400,)


def test_half_the_bandwidth_everywhere_doubles_the_time_without_alpha() -> None:
    topology, load = ring(4, alpha=0), Load(ring_allreduce(4), 4096)
    (plain,) = outcome(topology, load).times
    assert outcome(topology, load, degraded=[{"edge": "*", "factor": 0.5}]).times == (2 * plain,)


def test_a_factor_from_the_start_is_the_factor_throughout_and_another_topology() -> None:
    for seed in SEEDS:
        topology, load, costs = draw(seed)
        factors = [{"edge": "e*", "factor": "2/3"}, {"edge": "e1*", "factor": "1/3"}]
        case = scenario(topology, degraded=factors[:1])
        static = outcome(topology, load, protocol_costs=costs, degraded=factors[:1])
        changes = [{**factors[0], "at": 0}]
        moving = outcome(topology, load, protocol_costs=costs, changes=changes)
        (plain,) = traces(
            load.program, weakened(topology, case), [load.size], SMALL, protocol_costs=costs
        )
        assert static.trace == moving.trace == plain, f"seed {seed}"


def test_the_links_of_a_weakened_topology_are_those_made_anew() -> None:
    for seed in SEEDS:
        topology, _, _ = draw(seed)
        topology = topology.with_alpha_rule(("occupy", "delay")[seed % 2])
        case = scenario(topology, degraded=[{"edge": "e*", "factor": "1/3"}])
        table = weakened(topology, case).links
        anew = replace(weakened(topology, case)).links
        assert table.alpha.tolist() == anew.alpha.tolist()
        assert table.overhead.tolist() == anew.overhead.tolist()
        assert table.betas == anew.betas


def test_a_message_is_as_fast_as_its_edge_when_it_starts() -> None:
    # [0, 500) at full speed though the edge slows down at 300; then 100 + 4 x 400
    changes = [{"edge": "e0", "at": "300ps", "factor": 0.25}]
    assert outcome(wire(), two(), changes=changes).times == (500 + 1700,)
    back = [*changes, {"edge": "e0", "at": "500ps", "factor": 0.5}]
    assert outcome(wire(), two(), changes=back).times == (500 + 900,)


def test_of_two_changes_at_one_time_the_later_entry_counts() -> None:
    changes = [{"edge": "e0", "at": 0, "factor": factor} for factor in (0.25, 0.5)]
    assert outcome(wire(), one(), changes=changes).times == (900,)


def test_a_program_that_needs_an_edge_that_is_down_is_refused_by_name() -> None:
    topology = network(3, [(0, 1, 0, None, 1), (1, 2, 0, None, 1)])
    load = Load(program([block(7, 1, None, ["s"])], [block(0, None, 0, ["r"])], []), 400)
    assert outcome(topology, load, degraded=[{"link": "1->2", "down": True}]).times == (400,)
    text = r"degraded\[0\]: edge e0 is down.*threadblock 7 of rank 0 sends to rank 1 on channel 0"
    with pytest.raises(InputError, match=text):
        outcome(topology, load, degraded=[{"edge": "e0", "down": True}])


# --- background messages -----------------------------------------------------------------------


def test_a_background_message_is_served_in_order_of_request() -> None:
    # program [0, 500); background, asked for at 0, [500, 700); program [700, 1200)
    flow = {"edge": "e0", "size": 100, "period": "5000ps"}
    found = outcome(wire(), two(), background=[flow])
    assert (found.times, found.background) == ((1200,), (700,))


def test_a_background_message_waits_for_its_time() -> None:
    # background [100, 300), asked for before the program's copy ends at 150
    made = pair([step("cpy", posts=True), "s"], ["r"])
    topology = network(2, [(0, 1, 100, None, 1)], copy=1)
    flow = {"edge": "e0", "size": 100, "period": "5000ps", "start": "100ps"}
    load = Load(made, 152)
    assert outcome(topology, load).times == (152 + 252 + 152,)
    assert outcome(topology, load, background=[flow]).times == (300 + 252 + 152,)


def test_background_messages_that_are_late_are_sent_one_after_the_other() -> None:
    # due at 0, 100, 200 ...; each takes 200, so the edge is theirs every other time
    flow = {"edge": "e0", "size": 100, "period": "100ps"}
    three = Load(pair(["s", "s", "s"], ["r", "r", "r"]), 400)
    found = outcome(wire(), three, background=[flow])
    assert found.times == (3 * 500 + 2 * 200,)
    # Those due at 0 and 100 are there at 700 and 1400; the next one begins when the program ends.
    assert found.background[:2] == (700, 1300)
    assert len(found.background) <= 3
    assert (percentile(found.background[:2], 50), percentile(found.background[:2], 99)) == (
        700, 1300
    )  # fmt: skip


def test_a_background_message_on_a_link_holds_all_its_edges_together() -> None:
    star = network(3, [(r, 3, 50, None, 1) for r in range(3)]
                  + [(3, r, 50, None, 1) for r in range(3)], switches=1)  # fmt: skip
    load = Load(program([], [block(0, 2, None, ["s"])], [block(0, None, 1, ["r"])]), 400)
    flow = {"link": "0->2", "size": 900, "period": "1ms"}
    late = [{"ranks": 1, "late": "10ps"}]
    # 0 -> 2 holds rank 2's port during [0, 1000)
    assert outcome(star, load, background=[flow], stragglers=late).times == (1000 + 500,)


def test_a_deadlock_is_told_though_the_background_goes_on() -> None:
    made = program([block(0, 1, 1, ["r", "s"])], [block(0, 0, 0, ["r", "s"])])
    topology = network(2, [(0, 1, 0, None, 1), (1, 0, 0, None, 1)])
    flow = {"edge": "*", "size": 100, "period": "10ps"}
    found = outcome(topology, Load(made, 400), background=[flow])
    assert found.trace.reason.startswith(
        "deadlock: rank 0 threadblock 0 step 0 waits for a message"
    )
    assert found.times == ()


def test_too_much_background_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disturbed, "MAX_BACKGROUND", 10)
    flow = {"edge": "e0", "size": 4, "period": "1ps"}
    late = [{"ranks": 0, "late": "1ms"}]
    found = outcome(wire("delay"), one(), background=[flow], stragglers=late)
    assert found.trace.reason == "the background sends more than 10 messages meanwhile"


# --- ranks -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rank", "time"), [(0, 2500), (1, 2000)])
def test_a_late_rank_begins_late(rank: int, time: int) -> None:
    assert outcome(wire(), one(), stragglers=[{"ranks": rank, "late": "2000ps"}]).times == (time,)


def test_what_a_slow_rank_sends_takes_longer_and_what_it_receives_does_not() -> None:
    slow = [{"ranks": 0, "slow": 1.5}]
    assert outcome(wire(), one(), stragglers=slow).times == (750,)
    assert outcome(wire(), one(), stragglers=[{"ranks": 1, "slow": 1.5}]).times == (500,)


def test_local_work_of_a_slow_rank_takes_longer_rounded_up() -> None:
    load = Load(pair(["s"], ["r"]), 404)
    topology = wire(copy=1)
    assert outcome(topology, load, stragglers=[{"ranks": 1, "slow": "4/3"}]).times == (
        504 + 539,
    )  # 538.67


def test_all_ranks_twice_as_slow_take_twice_the_time_on_random_programs() -> None:
    for seed in SEEDS:
        topology, load, _ = draw(seed)
        plain = outcome(topology, load).times
        found = outcome(topology, load, stragglers=[{"ranks": "all", "slow": 2}]).times
        assert found == tuple(2 * time for time in plain), f"seed {seed}"


# --- random delays -----------------------------------------------------------------------------


def delays(mean: int, key: str, count: int, distribution: str = "exponential") -> list[int]:
    stream = Stream(Delay.model_validate({"distribution": distribution, "mean": f"{mean}ps"}), key)
    return [stream.draw() for _ in range(count)]


def test_delays_are_the_same_everywhere() -> None:
    assert delays(1000, "a", 4) == [506, 1098, 713, 1771]
    assert delays(1000, "a", 4, "uniform") == [557, 1036, 137, 1246]


@pytest.mark.parametrize("distribution", ["uniform", "exponential"])
def test_delays_have_the_mean_and_the_spread_of_their_distribution(distribution: str) -> None:
    found = delays(10**6, "many", 20_000, distribution)
    mean = sum(found) / len(found)
    deviation = (sum((each - mean) ** 2 for each in found) / len(found)) ** 0.5
    assert abs(mean / 10**6 - 1) < 0.02
    spread = {"uniform": 3**-0.5, "exponential": 1.0}[distribution]
    assert abs(deviation / 10**6 - spread) < 0.02
    assert distribution == "exponential" or max(found) <= 2 * 10**6


def jitter(mean: int, what: str = "message") -> dict[str, object]:
    return {what: {"distribution": "exponential", "mean": f"{mean}ps"}}


def test_a_random_delay_is_more_alpha() -> None:
    first, second = delays(1000, "3 0 message 0 0 1 0", 2)
    found = outcome(wire(), two(), jitter=jitter(1000), seed=3, runs=1)
    assert found.times == (1000 + first + second,)
    found = outcome(wire("delay"), two(), jitter=jitter(1000), seed=3, runs=1)
    assert found.times == (max(500 + first, 900 + second),)


def test_a_random_delay_does_not_hold_a_sender_whose_edges_hold_nothing() -> None:
    first, second = delays(1000, "3 0 message 0 0 1 0", 2)
    found = outcome(
        network(2, [(0, 1, 100, None, None)]), two(), jitter=jitter(1000), seed=3, runs=1
    )
    assert found.times == (100 + max(first, second),)


def test_a_message_never_overtakes_the_one_before_it() -> None:
    first, second = delays(1000, "2 0 message 0 0 1 0", 2)
    (third,) = delays(1000, "2 0 message 0 1 2 0", 1)
    assert first > 400 + second  # the second message could arrive before the first
    topology = network(3, [(0, 1, 100, None, 1), (1, 2, 100, None, 1)], rule="delay")
    made = program(
        [block(0, 1, None, ["s", "s"])], [block(0, 2, 0, ["rcs", "r"])], [block(0, None, 1, ["r"])]
    )
    found = outcome(topology, Load(made, 400), jitter=jitter(1000), seed=2, runs=1)
    assert found.times == (500 + first + 500 + third,)


def test_ranks_start_at_random() -> None:
    starts = [delays(1000, f"5 0 start {rank}", 1)[0] for rank in range(2)]
    found = outcome(wire(), one(), jitter=jitter(1000, "start"), seed=5, runs=1)
    assert found.times == (max(starts[0] + 500, starts[1]),)


def test_runs_differ_and_seeds_repeat_them() -> None:
    load = Load(ring_allreduce(4), 4096)
    first, again, other = (
        outcome(ring(4), load, jitter=jitter(500), seed=seed, runs=5) for seed in (1, 1, 2)
    )
    assert first == again
    assert len(set(first.times)) == 5
    assert first.times != other.times
    assert first.trace.time == mean_time(first.times)


def test_percentiles_are_times_of_runs() -> None:
    times = [30, 10, 20, 40]
    assert [percentile(times, p) for p in (1, 25, 26, 50, 99, 100)] == [10, 10, 20, 20, 40, 40]
    assert (mean_time([1, 2]), mean_time([1, 1, 2])) == (2, 1)
    assert (percentile([], 50), mean_time([])) == (None, None)


def test_too_many_runs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disturbed, "MAX_IN_ALL_RUNS", 10)
    found = outcome(wire(), two(), jitter=jitter(5), runs=3)
    assert "needs 12 messages and copies in 3 runs, of which at most 10" in found.trace.reason


# --- two programs ------------------------------------------------------------------------------


def test_two_programs_share_an_edge_the_first_one_first() -> None:
    found = outcome(wire(), one(), one())
    assert (found.times, found.others) == ((500,), ((1000,),))


def test_a_program_that_starts_later_is_timed_from_its_start() -> None:
    found = outcome(wire(launch=7), one(), replace(one(), start=200))
    assert (found.times, found.others) == ((507,), ((807,),))


def test_two_programs_have_fifos_and_flags_of_their_own() -> None:
    for seed in SEEDS:
        topology, load, costs = draw(seed)
        _, other, _ = draw(seed + 1000)
        late = replace(other, start=10**9)
        found = outcome(topology, load, late, protocol_costs=costs)
        assert found.times == outcome(topology, load, protocol_costs=costs).times, f"seed {seed}"
        alone = outcome(topology, other, protocol_costs=costs)
        if found.times:
            assert found.others == (alone.times,), f"seed {seed}"


def merged(one: Program, other: Program) -> Program:
    """Return a program with the threadblocks of two, the second's on channels of their own."""
    gpus = []
    for mine, theirs in zip(one.gpus, other.gpus, strict=True):
        shift = len(mine.threadblocks)
        more = [
            replace(
                each, id=each.id + shift, channel=each.channel + 10,
                steps=tuple(
                    s if s.depends is None
                    else replace(s, depends=StepRef(s.depends.threadblock + shift, s.depends.step))
                    for s in each.steps
                ),
            )
            for each in theirs.threadblocks
        ]  # fmt: skip
        gpus.append(replace(mine, threadblocks=(*mine.threadblocks, *more)))
    return replace(one, gpus=tuple(gpus))


def test_two_programs_at_once_are_one_program_with_the_threadblocks_of_both() -> None:
    ended = 0
    for seed in SEEDS:
        rng = random.Random(f"merged {seed}")
        first, second = random_program(rng), random_program(rng)
        topology, size = hub(RANKS, rule=rng.choice(["occupy", "delay"])), 16 * rng.randint(1, 300)
        both = replay(merged(first, second), topology, size, SMALL)
        found = outcome(topology, Load(first, size), Load(second, size))
        if both.time is not None:
            ended += 1
            assert max(*found.times, *found.others[0]) == both.time, f"seed {seed}"
    assert ended > len(SEEDS) / 2


def test_a_second_program_that_deadlocks_does_not_stop_the_first() -> None:
    stuck = program([], [block(0, None, 0, ["r"])])
    found = outcome(wire(), one(), Load(stuck, 400))
    assert (found.times, found.others) == ((500,), ((),))


def test_a_second_program_that_can_not_run_is_told() -> None:
    found = outcome(wire(), one(), Load(ring_allreduce(2), 4))
    assert found.trace.reason.startswith("test: 4 bytes are not a multiple of 8")


# --- all together ------------------------------------------------------------------------------

factors = st.fractions(Fraction(1, 10), 1, max_denominator=10).map(str)
anything = st.fixed_dictionaries({}, optional={
    "degraded": st.lists(st.fixed_dictionaries(
        {"edge": st.sampled_from(["*", "e0", "e1"]), "factor": factors}), max_size=2),
    "changes": st.lists(st.fixed_dictionaries(
        {"edge": st.sampled_from(["*", "e2"]), "factor": factors,
         "at": st.integers(0, 9000).map("{}ps".format)}), max_size=3),
    "stragglers": st.lists(st.fixed_dictionaries(
        {"ranks": st.integers(0, 3), "late": st.integers(0, 3000).map("{}ps".format),
         "slow": st.integers(1, 3)}), max_size=2),
    "background": st.lists(st.fixed_dictionaries(
        {"link": st.sampled_from(["0->1", "2->3"]), "size": st.integers(1, 2000),
         "period": st.integers(100, 5000).map("{}ps".format)}), max_size=2),
    "jitter": st.just(jitter(300) | jitter(50, "start")),
    "seed": st.integers(0, 9),
})  # fmt: skip


@given(anything, st.sampled_from(["occupy", "delay"]))
@settings(max_examples=40)
def test_no_scenario_beats_the_bound_or_changes_what_is_sent(
    fields: dict[str, Any], rule: str
) -> None:
    topology, load = ring(4, rule=rule), Load(ring_allreduce(4), 4800)
    found = outcome(topology, load, **fields)
    limit = best(any_bounds(whole(topology), build_collective("allreduce", 4, 1), load.size))
    assert min(found.times) >= limit.time
    assert found.trace.messages == outcome(topology, load).trace.messages
    assert found == outcome(topology, load, **fields)

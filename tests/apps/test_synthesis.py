"""The whole pipeline: chunk counts, targets, statuses, gaps, and what repeats."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from taccl.apps import Request, Synthesis, Target, load_network, synthesize
from taccl.apps.inputs import MachineOptions, asked_collective
from taccl.apps.outputs import summary
from taccl.apps.programs import Scorer
from taccl.apps.synthesis import CHUNK_COUNTS, counts_of, series_of
from taccl.collectives import COLLECTIVES, build_collective
from taccl.errors import InputError, LoweringError, NoScheduleError
from taccl.model.problem import Status
from taccl.msccl.interpret import judge
from taccl.synth.search import Attempt, Search, portfolio
from taccl.timing.deadline import Deadline
from taccl.topology.graph import LogicalTopology, whole
from taccl.verify import verify
from tests.generators import pair, ring4
from tests.sweep import for_each


def found(topology: str, collective: str, size: int, **fields: Any) -> Synthesis:  # noqa: ANN401
    """Return what the pipeline finds with counted limits."""
    request = Request(
        load_network(topology), collective, size, time_limit=1.5, deterministic=True, workers=1
    )
    return synthesize(replace(request, **fields))


@pytest.mark.parametrize(
    "collective", [name for name, kind in COLLECTIVES.items() if kind.xml_name]
)
def test_a_program_is_judged_clean_and_replayed(collective: str) -> None:
    result = found("ring:4", collective, 1_000_000, chunks=1, time_limit=1.0)
    assert result.program is not None
    assert result.replay is not None
    assert judge(result.program, "portable") == []
    assert result.bound.time <= result.replay
    assert result.time == result.replay


def test_without_a_count_a_series_is_tried_as_long_as_it_pays() -> None:
    result = found("ring:4", "allgather", 1_000_000, target=None)
    tried = [one.chunks for one in result.candidates if one.makespan is not None]
    assert sorted(set(tried)) == list(CHUNK_COUNTS)[: len(set(tried))]
    best = min((one for one in result.candidates if one.score), key=lambda one: one.score or 0)
    assert result.schedule.collective.chunks_per_rank == best.chunks
    assert result.time == best.score


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
def test_what_is_pipelined_is_cut_into_more_chunks(collective: str) -> None:
    result = found("ring:4", collective, 64_000_000, target=None, engine="chain")
    # Three hops of 64 MB at 20 us a MB, and k - 1 more chunks behind the first, of alpha 0.7 us:
    # sqrt(2 * 1280 / 0.7) is 60, so that 64 are tried first, and then those next to it.
    times = {k: (2 + k) * (700_000 + 20 * 64_000_000 // k) for k in (64, 32, 128)}
    assert {one.chunks: one.makespan for one in result.candidates} == times
    assert result.schedule.collective.chunks_per_rank == 64


def test_a_root_with_several_ports_has_a_share_for_each() -> None:
    # 1 MB takes 20 us: sqrt(3 * 80 / 0.7) is 19, and of 7 trees at once sqrt(7 * 80 / 0.7) is 28.
    for topology, shares in (("full:8", True), ("hub:8", False)):
        result = found(topology, "broadcast", 4_000_000, target=None, engine="scatter-allgather")
        tried = {one.chunks for one in result.candidates if one.makespan is not None}
        assert 16 in tried
        assert (28 in tried) == shares


def test_a_long_series_ends_after_two_counts_that_brought_nothing() -> None:
    # Of a small size more chunks only cost alphas.
    result = found("hub:4", "broadcast", 64, target=None, engine="binomial")
    tried = [one.chunks for one in result.candidates if one.makespan is not None]
    assert list(dict.fromkeys(tried)) == [1, 2, 4]


@pytest.mark.parametrize(
    ("topology", "engine"), [("ring:8", "double-chain"), ("hub:8", "scatter-allgather")]
)
def test_algorithms_of_two_chunks_and_more_need_no_chunks_to_be_asked_for(
    topology: str, engine: str
) -> None:
    alone = found(topology, "broadcast", 1_000_000, target=None, engine=engine)
    assert alone.schedule.collective.chunks_per_rank >= 2
    every = found(topology, "broadcast", 1_000_000, target=None, time_limit=1.0)
    tried = {one.chunks for one in every.candidates if one.engine == engine}
    assert tried
    assert min(tried) >= 2


@pytest.mark.parametrize(
    ("topology", "collective", "size", "counts"),
    [
        # Wires of two speeds: whole chunks share them well where there are six for each rank.
        ("ndv2", "allgather", 10**9, (1, 6, 2, 4, 8)),
        ("ndv2", "allgather", 10**6, (1, 2, 4, 8)),
        # Six lanes, and thirds are as even; sixths, if these are long, are passed on sooner.
        ("dgx1v", "allreduce", 64 * 10**6, (1, 6, 3, 2, 4, 8)),
        # Of 15 chunks four wires take four, of 60 fifteen; and a hypercube has four dimensions.
        ("torus2d:4x4", "allgather", 10**9, (1, 4, 2, 8)),
        ("torus3d:4x4x4", "reducescatter", 10**6, (1, 6, 2, 4, 8)),
        ("torus2d:3x4", "allgather", 10**6, (1, 2, 4, 8)),
        ("hub:4", "broadcast", 10**9, (128, 64, 32, 16, 8, 4, 2, 1)),
        # Slices of few chunks follow one another by themselves.
        ("ring:4", "broadcast", 10**9, (2, 128, 64, 32, 16, 8, 4, 1)),
        ("mi250", "broadcast", 10**9, (6, 128, 64, 32, 16, 8, 4, 2, 1)),
        ("hub:8", "alltoall", 10**9, (1, 2, 4)),
    ],
)
def test_the_count_whose_chunks_share_links_evenly_is_tried_second(
    topology: str, collective: str, size: int, counts: tuple[int, ...]
) -> None:
    request = Request(load_network(topology), collective, size, target=Target())
    whole_ = asked_collective(collective, request.logical.topology, None)
    assert series_of(request, whole_, Scorer(None, size, request.report)).counts == counts


@pytest.mark.parametrize(("size", "counts"), [(64, (1, 4, 2, 8)), (4, (1, 2, 4, 8))])
def test_quarters_that_are_long_between_servers_come_before_halves(
    size: int, counts: tuple[int, ...]
) -> None:
    # A quarter of what each of 16 ranks has is on a NIC for 40 us, or for 2.5: its alpha is 1.7.
    request = Request(load_network("dgx-a100", MachineOptions(nodes=2)), "allreduce", size * 10**6)
    whole_ = asked_collective("allreduce", request.logical.topology, None)
    assert series_of(request, whole_, Scorer(None, 10**6, request.report)).counts == counts


def test_a_count_that_is_asked_for_is_the_only_one() -> None:
    result = found("ring:4", "allgather", 1_000_000, target=None, chunks=3)
    assert {one.chunks for one in result.candidates} == {3}


def test_counts_that_leave_no_element_for_a_chunk_are_not_tried() -> None:
    # 32 bytes are two floats for each of four chunks, and one for each of eight.
    result = found("ring:4", "allgather", 32)
    assert {one.chunks for one in result.candidates} <= {1, 2}


def test_a_size_below_one_element_a_chunk_is_an_error_with_the_least_size() -> None:
    with pytest.raises(InputError, match="15 bytes are less than one element for each of 4 chunks"):
        found("ring:4", "allgather", 15)


def test_without_a_program_any_size_has_a_schedule() -> None:
    result = found("ring:4", "allgather", 15, target=None, chunks=1)
    assert result.schedule.chunk_size * 4 == 15
    assert (result.program, result.replay) == (None, None)
    assert result.time == result.schedule.makespan


def test_a_program_is_replayed_at_whole_chunks() -> None:
    result = found("ring:4", "allgather", 1_000_003, chunks=1)
    # Four chunks of four-byte floats.
    assert result.size == 1_000_000
    assert result.request.size == 1_000_003


def test_gap_compares_with_the_bound_for_any_algorithm() -> None:
    result = found("ring:4", "allgather", 1_000_000)
    assert result.gap == result.time / result.bound.time - 1


def test_the_fixed_gap_is_that_of_schedules_without_batches() -> None:
    result = found("ring:4", "allgather", 1_000_000, chunks=1, batch=False, target=None)
    assert result.bound_fixed is not None
    assert result.gap_fixed == result.schedule.makespan / result.bound_fixed.time - 1
    assert result.gap_fixed == 0
    assert result.status is Status.OPTIMAL


def test_a_schedule_with_batches_has_no_fixed_gap() -> None:
    # Two chunks of a byte over one wire: together they pay alpha once.
    request = Request(
        whole(pair()), "allgather", 4, chunks=2, target=None, engine="taccl", time_limit=3.0,
        deterministic=True, workers=1,
    )  # fmt: skip
    result = synthesize(request)
    assert result.schedule.batches
    assert (result.bound_fixed, result.gap_fixed) == (None, None)


def test_a_schedule_above_every_bound_is_only_feasible() -> None:
    result = found("ring:4", "alltoall", 1_000_000, engine="taccl", chunks=1, target=None)
    assert result.schedule.makespan > result.bound.time
    assert result.status is Status.FEASIBLE


def test_bandwidths_are_those_of_the_replayed_size() -> None:
    result = found("ring:4", "allreduce", 1_000_000, chunks=1)
    # Bytes a picosecond are thousands of GB/s; the busbw factor is 2 * 3/4.
    assert result.algbw == pytest.approx(result.size * 1000 / result.time)
    assert result.busbw == pytest.approx(result.algbw * 1.5)


@for_each("collective", COLLECTIVES, quick=3)
def test_counted_searches_repeat(collective: str) -> None:
    one, two = (found("ring:4", collective, 1_000_000, chunks=1) for _ in range(2))
    assert one.program == two.program
    assert one.candidates == two.candidates


def test_candidates_name_every_engine_that_auto_tried() -> None:
    # What has not reached its bound goes on to every engine.
    result = found("hub:6", "allreduce", 1_000_000, chunks=1)
    assert {"ring", "all-pairs", "taccl"} <= {one.engine for one in result.candidates}


def test_a_sketch_has_a_bound_of_its_own() -> None:
    logical, sketched = whole(ring4()), one_wire_less()
    request = Request(
        sketched, "allgather", 4000, chunks=1, target=None, time_limit=3.0, deterministic=True,
        workers=1,
    )  # fmt: skip
    result = synthesize(request)
    # Rank 1 takes in 3000 bytes at 1 ps over one wire instead of two.
    assert max(bound.time for bound in result.sketched) >= 3000
    assert result.bound.time < max(bound.time for bound in result.sketched)
    assert synthesize(replace(request, logical=logical)).sketched == ()


def one_wire_less() -> LogicalTopology:
    """Return a ring of four in which rank 1 hears from rank 2 only."""
    topology = ring4()
    logical = whole(topology)
    allowed = logical.allowed.copy()
    allowed[topology.links_between(0, 1)[0]] = False
    return replace(logical, allowed=allowed, name="tiny")


def test_with_a_sketch_the_report_says_what_it_costs() -> None:
    request = Request(
        one_wire_less(), "allgather", 4000, chunks=1, target=None, time_limit=3.0,
        deterministic=True, workers=1,
    )  # fmt: skip
    result = synthesize(request)
    free = synthesize(replace(request, logical=whole(ring4())))
    # Three chunks over the one wire into rank 1; two over each of two.
    assert result.free is not None
    assert result.free.score == free.time
    assert result.sketch_cost == result.time / free.time - 1
    assert result.sketch_cost > 0.4
    assert verify(result.schedule, request.logical) == []
    assert (free.free, free.sketch_cost) == (None, None)
    assert f"  sketch      costs {result.sketch_cost:.1%}: " in summary(result, [])
    assert "\n  sketch" not in summary(free, [])


def test_the_cost_of_a_sketch_is_for_auto_to_find() -> None:
    request = Request(
        one_wire_less(), "allgather", 4000, chunks=1, target=None, engine="taccl", time_limit=3.0,
        deterministic=True, workers=1,
    )  # fmt: skip
    assert synthesize(request).sketch_cost is None


def test_the_search_without_the_sketch_takes_its_tenth_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[float] = []

    def watched(search: Search) -> list[Attempt]:
        given.append(search.seconds)
        return portfolio(search)

    monkeypatch.setattr("taccl.apps.synthesis.portfolio", watched)
    request = Request(
        one_wire_less(), "allgather", 4000, chunks=1, target=None, time_limit=3.0,
        deterministic=True, workers=1,
    )  # fmt: skip
    synthesize(request)
    assert given == pytest.approx([2.7, 0.3])
    synthesize(replace(request, logical=whole(ring4())))
    assert given == pytest.approx([2.7, 0.3, 3.0])


def test_a_sketch_never_costs_less_than_nothing() -> None:
    request = Request(
        replace(whole(ring4()), name="all"), "allgather", 4000, chunks=1, target=None,
        time_limit=3.0, deterministic=True, workers=1,
    )  # fmt: skip
    found = synthesize(request)
    assert found.sketch_cost == 0
    assert "sketch      no faster schedule was found without the sketch (" in summary(found, [])


@cache
def hub_by_auto(collective: str) -> Synthesis:
    return found("hub:3", collective, 3000, time_limit=4.0)


@for_each("engine", ["flow", "guided", "taccl", "exact", "ring", "all-pairs"], quick=8)
@for_each("collective", ["allgather", "allreduce", "alltoall", "broadcast"])
def test_auto_is_at_least_as_good_as_an_engine_with_a_quarter_of_its_time(
    engine: str, collective: str
) -> None:
    auto = hub_by_auto(collective)
    try:
        alone = found("hub:3", collective, 3000, time_limit=1.0, engine=engine)
    except NoScheduleError:
        return
    assert auto.time <= max(alone.time, auto.bound.time * 1005 // 1000)


def test_the_channels_of_a_sketch_cap_those_of_the_program() -> None:
    assert Target().within(None).channels is None
    assert Target().within(3).channels == 3
    assert Target(channels=2).within(3).channels == 2
    assert Target(channels=4).within(3).channels == 3


def test_instances_that_need_more_channels_than_the_sketch_has_are_refused() -> None:
    logical = replace(whole(ring4()), channels=1, name="tiny")
    request = Request(
        logical, "allgather", 4096, chunks=1, engine="ring", target=Target(instances=2),
        time_limit=3.0, deterministic=True, workers=1,
    )  # fmt: skip
    with pytest.raises(LoweringError, match="channel"):
        synthesize(request)


def test_a_broadcast_between_servers_has_chunks_of_a_message_into_which_the_size_divides() -> None:
    logical = load_network("dgx-h100", MachineOptions(nodes=2))
    broadcast = build_collective("broadcast", 16, 1, 0)
    for size in (64_000_000, 1 << 26):
        request = Request(logical, "broadcast", size, root=0, target=Target())
        count = counts_of(request, broadcast, Deadline.after(10.0))[0][0]
        # 112 would do for a message, and leave elements of both sizes over.
        assert (count, size % (4 * count)) == (128, 0)
        assert size <= count * Target().message_bytes("broadcast", logical.topology)

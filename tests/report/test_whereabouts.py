"""Where chunks are: what the page's script has to know to follow every chunk."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest

from taccl.model.schedule import Schedule
from taccl.msccl.program import Buffer, Program, Slot
from taccl.report.html import NOTHING, SENDS, Data, program_where, schedule_data, timeline_data
from taccl.report.played import play
from tests.msccl.builders import hub, make, ring_schedule, small_schedules
from tests.replay.program_builder import SMALL, block, program, step
from tests.replay.program_builder import ring as line
from tests.sweep import for_each

SCHEDULES = small_schedules()
Held = dict[tuple[int, int], int]


def writes(data: Data, slice_: int = 0) -> Iterator[tuple[int, int, list[tuple[int, int]]]]:
    """Yield (time, rank, (cell, content) pairs) as the script takes them, in order of time."""
    spans, where = data["spans"], data["where"]
    found = []
    for number, track in enumerate(spans["track"]):
        sends = spans["kind"][number] == SENDS
        if spans["iteration"][number] != slice_ or sends != where["sent"]:
            continue
        cells, contents, _ = where["steps"][track][spans["step"][number]]
        part = slice(spans["part"][number], spans["part"][number] + spans["parts"][number])
        end = spans["start"][number] + spans["length"][number]
        time = spans["arrival"][number] if sends else end
        pairs = list(zip(cells[part], contents[part], strict=True))
        found.append((time, number, where["ranks"][track], pairs))
    for time, _, rank, pairs in sorted(found):
        yield time, rank, pairs


def states(data: Data, slice_: int = 0) -> Iterator[Held]:
    """Yield how many sources of each chunk each rank holds: at the start, and after each write."""
    where = data["where"]
    cells = {(rank, cell): content for rank, cell, content in where["start"]}
    yield held(cells, where["base"])
    for _, rank, pairs in writes(data, slice_):
        cells |= {(rank, cell): content for cell, content in pairs}
        yield held(cells, where["base"])


def held(cells: dict[tuple[int, int], int], base: int) -> Held:
    found: Held = {}
    for (rank, _), content in cells.items():
        if content >= 0:
            place = rank, content // base
            found[place] = max(found.get(place, 0), content % base)
    return found


def missing(data: Data, state: Held) -> list[tuple[int, int]]:
    where = data["where"]
    return [
        (rank, chunk)
        for chunk, ranks in enumerate(where["wanted"])
        for rank in ranks
        if state.get((rank, chunk), 0) < where["full"][chunk]
    ]


def data_of(made: Program, schedule: Schedule, size: int = 0) -> Data:
    size = size or made.chunks_per_loop * 64
    return timeline_data(play(made, schedule.topology, size, SMALL))


@for_each("name", SCHEDULES)
def test_every_chunk_is_where_it_is_wanted_in_the_end_and_not_before(name: str) -> None:
    schedule = SCHEDULES[name]
    for data in (data_of(make(schedule), schedule), schedule_data(schedule)[0]):
        first, *_, last = states(data)
        assert missing(data, first)
        assert missing(data, last) == []


def test_every_slice_of_the_chunks_arrives() -> None:
    schedule = ring_schedule("allgather", 3)
    data = data_of(make(schedule), schedule, size=3 * 2500)
    assert max(data["spans"]["iteration"]) == 2
    for slice_ in range(3):
        *_, last = states(data, slice_)
        assert missing(data, last) == []


def test_a_chunk_of_a_ring_goes_from_rank_to_rank() -> None:
    schedule = ring_schedule("allgather", 4)
    data = data_of(make(schedule), schedule)
    chunk = data["where"]["names"].index("input 0 of rank 2")
    ranks = [
        rank for _, rank, pairs in writes(data)
        for _, content in pairs if content // data["where"]["base"] == chunk
    ]  # fmt: skip
    # Rank 2 also copies its own from the input to the output.
    assert [rank for rank in ranks if rank != 2] == [3, 0, 1]


def test_a_sum_grows_by_one_source_a_hop() -> None:
    schedule = ring_schedule("reducescatter", 4)
    data = data_of(make(schedule), schedule)
    base = data["where"]["base"]
    sums = [content % base for _, _, pairs in writes(data) for _, content in pairs]
    assert data["where"]["full"] == [4] * 4
    # A step that adds up and sends on, without keeping, writes nothing.
    sent = {c % base for track in data["where"]["steps"] for _, _, s in track for c in s}
    assert sent == {1, 2, 3}
    assert sums.count(4) == 4


def test_a_program_that_forgets_a_chunk_is_shown_without_it() -> None:
    receive = replace(step("r"), dst=Slot(Buffer.OUTPUT, 0))
    made = program([block(0, 1, None, ["s"])], [block(0, None, 0, [receive])], chunks=2)
    data = timeline_data(play(replace(made, collective="allgather"), line(2), 64, SMALL))
    first, last = states(data)
    assert missing(data, first) == [(1, 0), (0, 1)]
    assert missing(data, last) == [(0, 1)]


def test_a_mixture_of_two_chunks_is_nothing() -> None:
    send = replace(step("s"), src=Slot(Buffer.INPUT, 1))
    made = program([block(0, 1, None, [send])], [block(0, None, 0, ["rrc"])], chunks=2)
    where = timeline_data(play(made, line(2), 64, SMALL))["where"]
    assert where["steps"] == [[[[], [], [where["base"] + 1]]], [[[0], [NOTHING], []]]]


def test_messages_of_a_long_step_share_its_chunks() -> None:
    made = program(
        [block(0, 1, None, [step("s", count=10)])], [block(0, None, 0, [step("r", count=10)])],
        chunks=10,
    )  # fmt: skip
    spans = timeline_data(play(made, line(2), 10 * 160, SMALL))["spans"]
    sent = [
        (spans["part"][n], spans["parts"][n])
        for n, kind in enumerate(spans["kind"]) if kind == SENDS
    ]  # fmt: skip
    assert len(sent) > 1
    assert sent[0][0] == 0
    assert all(one[0] + one[1] == two[0] for one, two in pairwise(sent))
    assert sum(sent[-1]) == 10


def test_what_is_not_known_or_too_large_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    made = make(ring_schedule("allgather", 3))
    assert program_where(made) is not None
    assert program_where(replace(made, collective="custom")) is None
    monkeypatch.setattr("taccl.report.html.MAX_CELLS", 8)
    assert program_where(made) is None
    monkeypatch.undo()
    monkeypatch.setattr("taccl.report.html.MAX_WORK", 5)
    assert program_where(made) is None


def test_a_deadlocked_program_is_followed_as_far_as_it_goes() -> None:
    where = program_where(program([], [block(0, None, 0, ["r"])]))
    assert where is not None
    assert where["steps"] == [[[[], [], []]]]


def test_traffic_counts_messages_and_bytes_of_each_pair() -> None:
    schedule = ring_schedule("allgather", 3)
    data = data_of(make(schedule), schedule)
    time = 2 * (700_000 + 40 * 64)
    assert data["traffic"] == [
        [0, 1, 2, 128, time, "e0"], [1, 2, 2, 128, time, "e1"], [2, 0, 2, 128, time, "e2"],
    ]  # fmt: skip
    assert [row[2] for row in schedule_data(schedule)[0]["traffic"]] == [2, 2, 2]


def test_traffic_over_one_switch_names_the_edge_that_a_pair_holds_longest() -> None:
    made = program([block(0, 1, None, ["s"])], [block(0, None, 0, ["r"])])
    rows = timeline_data(play(made, hub(2), 64, SMALL))["traffic"]
    assert [row[5] for row in rows] == ["e0"]


def test_a_ring_of_one_direction_leaves_other_pairs_out() -> None:
    schedule = ring_schedule("allreduce", 4)
    rows = data_of(make(schedule), schedule)["traffic"]
    assert [(row[0], row[1]) for row in rows] == [(r, (r + 1) % 4) for r in range(4)]

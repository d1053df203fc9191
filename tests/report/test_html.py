"""The page: whole, escaped, small, without any reference outside."""

import base64
import json
import re
import zlib
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from taccl.model.problem import Candidate
from taccl.replay.sweep import Row
from taccl.report.graph import heat_colour, heat_scale
from taccl.report.html import MAX_EDGES, MAX_SPANS, View, packed, page, schedule_data, timeline_data
from taccl.report.played import Played, play
from taccl.report.tables import NcclTime, verdict
from taccl.synth.search import solve
from tests.replay.program_builder import SMALL, program, ring, ring_allreduce
from tests.report.played_programs import deadlocked, explained, random_replays, row_for, tiny
from tests.synth.problems import QUICK, problem_of

US = 1_000_000
ROW = Row("allgather", "net", 4, 10**6, 10 * US, bound=8 * US, bound_kind="port")
EVIL = "</script><script>alert(1)</script>\"'&<b>\u2028\udcff"
VOID = {"meta", "link", "br", "hr", "img", "input"}


class _Reader(HTMLParser):
    """Checks that elements nest, and keeps tags, attributes and texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, text: str) -> None:
        self.texts.append(text)


def view_of(played: Played, file: str = "") -> View:
    found = explained(played)
    found = replace(found, row=row_for(played, file))
    runs = played.trace.time is not None
    return View(
        found.row, played.topology, timeline_data(played) if runs else None,
        played.trace.edge_busy, found if runs else None,
    )  # fmt: skip


def page_of(*views: View, nccl: NcclTime = lambda _collective, _size: None) -> str:
    return page("a page", [view.row for view in views], views, nccl)


def embedded(text: str) -> Any:  # noqa: ANN401 - JSON
    match = re.search(r'<script id="data" type="text/plain">(.*?)</script>', text, re.DOTALL)
    assert match is not None
    return json.loads(zlib.decompress(base64.b64decode(match[1])))


@pytest.mark.parametrize("views", [(tiny,), (tiny, tiny), (deadlocked,), (deadlocked, tiny), ()])
def test_the_page_is_well_formed(views: tuple[Any, ...]) -> None:
    text = page_of(*(view_of(make()) for make in views))
    assert text.startswith("<!DOCTYPE html>\n")
    assert _Reader(text).open == []


def test_the_page_refers_to_nothing_outside() -> None:
    text = page_of(view_of(tiny()))
    # The data is base64, in which // means nothing.
    code = re.sub(r'<script id="data" type="text/plain">[^<]*', "", text)
    assert not re.search(r"https?:|//\w|@import|url\(", code)
    sources = [value for name, value in _Reader(text).attributes if name in ("src", "href")]
    assert sources == ["data:,"]


def test_the_policy_allows_the_one_script_and_no_connection() -> None:
    text = page_of(view_of(tiny()))
    policy = next(v for _, v in _Reader(text).attributes if v and v.startswith("default-src"))
    assert policy.startswith("default-src 'none';")
    assert "script-src 'sha256-" in policy


def test_hostile_names_are_text() -> None:
    played = tiny()
    edges = tuple(replace(edge, name=EVIL) for edge in played.topology.edges)
    assert played.program is not None
    evil = replace(
        played, name=EVIL, program=replace(played.program, name=EVIL),
        topology=replace(played.topology, name=EVIL, edges=edges),
        trace=replace(played.trace, program=EVIL),
    )  # fmt: skip
    text = page(EVIL, [], [view_of(evil, EVIL)])
    reader = _Reader(text)
    assert reader.tags.count("script") == 2
    assert "b" not in reader.tags
    assert "<script>alert" not in text
    assert text.encode()


def test_packed_data_can_not_end_their_element_and_read_back() -> None:
    data = {EVIL.replace("\udcff", ""): [1, -2, None]}
    assert re.fullmatch(r"[A-Za-z0-9+/=]+", packed(data))
    assert embedded(f'<script id="data" type="text/plain">{packed(data)}</script>') == data


def test_a_page_of_many_spans_is_small() -> None:
    played = play(ring_allreduce(16), ring(16), 16 * 1000 * 18, SMALL)
    spans = len(played.trace.spans)
    assert spans > 15_000
    assert len(page_of(view_of(played))) < 60_000 + 20 * spans


def test_a_program_that_can_not_run_says_why_and_has_no_timeline() -> None:
    reader = _Reader(page_of(view_of(deadlocked())))
    assert "canvas" not in reader.tags
    assert any("can't run: deadlock" in text for text in reader.texts)


def test_the_data_hold_every_span_within_the_time() -> None:
    for played in random_replays(range(60)):
        (data,) = embedded(page_of(view_of(played)))
        spans = data["spans"]
        assert {len(column) for column in spans.values()} == {len(played.trace.spans)}
        for start, length in zip(spans["start"], spans["length"], strict=True):
            assert 0 <= start <= start + length <= data["time"]


def test_the_spans_of_a_track_follow_one_another() -> None:
    for played in random_replays(range(60)):
        spans = timeline_data(played)["spans"]
        free: dict[int, int] = {}
        for track, start, length in zip(
            spans["track"], spans["start"], spans["length"], strict=True
        ):
            assert start >= free.get(track, 0)
            free[track] = start + length


def test_the_page_is_cut_at_the_most_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taccl.report.html.MAX_SPANS", 3)
    monkeypatch.setattr("taccl.report.html.MAX_SPANS", 3)
    text = page_of(view_of(tiny()))
    assert len(embedded(text)[0]["spans"]["start"]) == 3
    assert "The first 3 of 10 spans are shown." in text
    assert MAX_SPANS >= 100_000


def test_the_edges_are_shown_busiest_first_and_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    text = page_of(view_of(tiny()))
    assert text.index(">e0</td>") < text.index(">e1</td>")
    monkeypatch.setattr("taccl.report.html.MAX_EDGES", 1)
    cut = page_of(view_of(tiny()))
    assert ">e1</td>" not in cut
    assert "The busiest 1 of 2 are shown." in cut
    assert MAX_EDGES == 1000


def test_a_program_without_steps_has_a_page() -> None:
    text = page_of(view_of(play(program([], []), ring(2), 64, SMALL)))
    assert embedded(text)[0]["tracks"] == []


def test_a_schedule_has_a_track_for_each_link_and_a_span_for_each_message() -> None:
    schedule = solve(problem_of(ring(4), "allgather"), "ring", QUICK).schedule
    assert schedule is not None
    data, edge_busy = schedule_data(schedule)
    assert [track[0] for track in data["tracks"]] == [f"rank {r}" for r in range(4)]
    assert edge_busy == (3 * (700 + 3000),) * 4
    assert sorted(data["spans"]["start"]) == [0] * 4 + [3700] * 4 + [7400] * 4


@pytest.mark.parametrize(
    ("row", "nccl", "said"),
    [
        (ROW, None, "allgather of 1MB takes 10 us (100 GB/s algbw); that is 25.0% above the 8 us"
                    " that no algorithm beats (port bound)."),
        (replace(ROW, time=8 * US), None,
         "allgather of 1MB takes 8 us (125 GB/s algbw); optimal: it meets the 8 us that no"
         " algorithm beats (port bound)."),
        (replace(ROW, bound=None, bottleneck="nic", utilisation=0.5), 30 * US,
         "allgather of 1MB takes 10 us (100 GB/s algbw); no lower bound is known; NCCL's own model,"
         " launch of the kernel included, expects 30 us; the busiest edge, nic, is busy 50% of"
         " the time."),
        (replace(ROW, time=None, note="deadlock"), 30 * US, "It can't run: deadlock."),
    ],
)  # fmt: skip
def test_a_page_begins_with_a_verdict(row: Row, nccl: int | None, said: str) -> None:
    assert verdict([row], lambda _collective, _size: nccl) == said


def test_of_several_programs_the_verdict_names_the_fastest() -> None:
    slow, stuck = replace(ROW, time=20 * US, file="slow"), replace(ROW, time=None, note="deadlock")
    said = verdict([slow, replace(ROW, file="fast"), stuck], lambda _collective, _size: None)
    assert said.startswith("fast, the fastest of 3: allgather of 1MB takes 10 us")
    assert verdict([stuck, stuck], lambda _c, _s: None) == "None of the 2 can run: deadlock."


def test_a_time_of_nccl_below_the_bound_is_called_what_it_is() -> None:
    said = verdict([ROW], lambda _collective, _size: 7 * US)
    assert "expects 7 us, less than the bound, so its inputs do not fit this topology" in said


def test_bandwidth_is_drawn_by_size_with_nccl_and_the_bound() -> None:
    rows = [replace(ROW, size=size, file="a.xml") for size in (10**6, 2 * 10**6)]
    text = page("a page", rows, [], lambda _collective, size: size * 30)
    for name in ("a.xml", "NCCL by its own model", "bound: no program is faster"):
        assert f"<title>{name}</title></polyline>" in text
    assert "<polyline" not in page("a page", rows[:1], [])


def test_candidates_have_a_table_with_the_best_of_each_engine() -> None:
    found = (
        Candidate("ring", 1, 9 * US, 9 * US),
        Candidate("ring", 2, 8 * US, 8 * US),
        Candidate("guided", 1, 4 * US, 4 * US),
        Candidate("flow", 1, None, None, "<too large>"),
    )
    texts = _Reader(page_of(replace(view_of(tiny()), candidates=found))).texts
    at = texts.index("Candidates")
    assert texts[texts.index("guided", at) :][:2] == ["guided", "1"]
    assert "2.00 x" in texts[at:]
    assert "<too large>" in texts[at:]
    assert "Candidates" not in _Reader(page_of(view_of(tiny()))).texts


def test_of_many_edges_the_busiest_are_named() -> None:
    view = view_of(play(ring_allreduce(16), ring(16), 1600, SMALL))
    text = page_of(view)
    assert "16 edges whose beta" not in text
    assert re.search(
        r"<p>1\d edges used, but not paid by the critical path, the busiest:"
        r" \w+, \w+, \w+, \w+</p>",
        text,
    )
    assert "<summary>4 more edges</summary>" in text


def test_a_topology_is_drawn_in_the_colours_of_the_scale() -> None:
    text = page_of(view_of(tiny()))
    picture = text[text.index('<svg class="topology"') :]
    # Two messages hold e0 for 700 + 3 * 400 ps each, and e1 for 100 + 2 * 400 of 6500.
    for share in (3800 / 6500, 1800 / 6500):
        assert f'stroke="{heat_colour(share)}"' in picture
    assert text.count(heat_scale()) == 2
    assert heat_colour(0) == "hsl(210 70% 45%)"
    assert heat_colour(1) == "hsl(0 70% 45%)"

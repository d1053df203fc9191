"""The page: whole, escaped, small, without any reference outside."""

import base64
import json
import re
import zlib
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from taccl.report.html import MAX_EDGES, View, page
from taccl.report.html_timeline import MAX_SPANS, packed, schedule_data, timeline_data
from taccl.report.played import Played, play
from taccl.synth import solve
from tests.report.played_programs import deadlocked, explained, random_replays, row_for, tiny
from tests.sim.program_builder import SMALL, program, ring, ring_allreduce
from tests.synth.problems import QUICK, problem_of

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


def page_of(*views: View) -> str:
    return page("a page", [view.row for view in views], views)


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
    assert not re.search(r"https?:|//\w|@import|url\(", text)
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
    evil = replace(
        played, program=replace(played.program, name=EVIL),
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
            spans["track"],
            spans["start"],
            spans["length"],
            strict=True,
        ):
            assert start >= free.get(track, 0)
            free[track] = start + length


def test_the_page_is_cut_at_the_most_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taccl.report.html_timeline.MAX_SPANS", 3)
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

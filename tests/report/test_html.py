"""The page: whole, escaped, without any reference outside, and alive in a browser."""

import html
import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from taccl.report.html import MAX_EDGES, View, page
from taccl.report.html_timeline import MAX_SPANS, schedule_data, script_json, timeline_data
from taccl.report.played import Played, play
from taccl.synth import solve
from tests.report.played_programs import deadlocked, explained, random_replays, row_for, tiny
from tests.sim.program_builder import SMALL, program, ring, ring_allreduce
from tests.synth.problems import QUICK, problem_of

EVIL = "</script><script>alert(1)</script>\"'&<b>\u2028\udcff"
VOID = {"meta", "link", "br", "hr", "img", "input"}
CHROMIUM = shutil.which("chromium")


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
    match = re.search(r'<script id="data" type="application/json">(.*?)</script>', text, re.DOTALL)
    assert match is not None
    return json.loads(match[1])


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


def test_script_json_can_not_end_its_element_and_reads_back() -> None:
    text = script_json({"name": EVIL})
    assert not set("<>&") & set(text)
    assert json.loads(text) == {"name": EVIL}


def test_the_summary_and_the_rows_show_time_bound_and_bandwidth() -> None:
    text = html.unescape(page_of(view_of(tiny(), "f.xml")))
    for shown in ("f.xml", "allreduce", "0.0065", "550.0%", "246.154", "1.6KB"):
        assert shown in text


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


def browse(folder: Path, text: str) -> tuple[str, list[str]]:
    """Return the document after loading a page in a browser, and what its console said."""
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    (folder / "page.html").write_text(text)
    flags = (
        "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run"
        " --disable-background-networking --disable-component-update --disable-sync"
        " --enable-logging=stderr --window-size=1200,900 --virtual-time-budget=3000 --dump-dom"
    )
    command = [CHROMIUM, *flags.split(), f"--user-data-dir={folder / 'profile'}"]
    done = subprocess.run(
        [*command, (folder / "page.html").as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def driven(text: str, script: str) -> str:
    """Return a page with a script that acts as a reader; the policy would not let it run."""
    text = re.sub("<meta http-equiv=[^\n]*>", "", text)
    helpers = """
      const canvas = document.querySelector("canvas"), box = canvas.getBoundingClientRect();
      const detail = () => document.querySelector("dl.detail").innerText;
      const place = (x, y) => ({clientX: box.left + x, clientY: box.top + y, bubbles: true});
      const click = (x, y) => {
        canvas.dispatchEvent(new PointerEvent("pointerdown", place(x, y)));
        canvas.dispatchEvent(new PointerEvent("pointerup", place(x, y)));
      };
      const tell = (name, value) => { document.body.dataset[name] = value; };
    """
    run = f"<script>addEventListener('load', () => {{ {helpers} {script} }});</script>"
    return text.replace("</body>", f"{run}</body>")


def told(document: str, name: str) -> str:
    match = re.search(f'<body[^>]* data-{name}="([^"]*)"', document)
    assert match is not None, document[:2000]
    return html.unescape(match[1])


@pytest.mark.parametrize("make", [tiny, deadlocked])
def test_a_browser_shows_the_page_without_any_complaint(tmp_path: Path, make: Any) -> None:  # noqa: ANN401
    document, complaints = browse(tmp_path, page_of(view_of(make())))
    assert complaints == []
    assert ("height: 96px" in document) == (make is tiny)  # the script ran: axis and four tracks


def test_a_click_on_a_span_shows_its_step(tmp_path: Path) -> None:
    # Track 1 is rank 1's threadblock 0; its first message leaves at 0.0029 us of 0.0065.
    script = """
      const wide = canvas.clientWidth - 230;
      click(230 + wide * 0.0033 / 0.0065, 22 + 18 + 9);
      tell("first", detail());
      document.querySelector("dl.detail button").click();
      tell("before", detail());
    """
    document, complaints = browse(tmp_path, driven(page_of(view_of(tiny())), script))
    assert complaints == []
    first = told(document, "first")
    for shown in (
        "4 (sends)", "rank 1, tb 0 to 2 from 0, channel 0", "0: rcs i[0] -> i[0]",
        "400 in iteration 0", "0.0029 us", "0.0038 us (0.0009 us long)", "0.0042 us", "1 to 2 (e1)",
        "the step before it: span 2, rank 1 tb 0 to 2 from 0, channel 0 step 0",
    ):  # fmt: skip
        assert shown in first
    assert "2 (receives)" in told(document, "before")


def test_a_drag_is_no_click_and_zooming_moves_the_spans(tmp_path: Path) -> None:
    script = """
      const wide = canvas.clientWidth - 230, x = 230 + wide * 0.0033 / 0.0065, y = 22 + 18 + 9;
      canvas.dispatchEvent(new PointerEvent("pointerdown", place(x, y)));
      canvas.dispatchEvent(new PointerEvent("pointermove", place(x - 50, y)));
      canvas.dispatchEvent(new PointerEvent("pointerup", place(x - 50, y)));
      tell("dragged", detail());
      document.querySelector("button[data-do=in]").click();
      canvas.dispatchEvent(new WheelEvent("wheel", {...place(231, y), deltaY: -400}));
      click(canvas.clientWidth - 20, 22 + 9);
      tell("zoomed", detail());
      for (const key of ["0", "n", "w", "p", "+", "-", "ArrowLeft", "ArrowDown"]) {
        canvas.dispatchEvent(new KeyboardEvent("keydown", {key, cancelable: true}));
      }
    """
    document, complaints = browse(tmp_path, driven(page_of(view_of(tiny())), script))
    assert complaints == []
    assert "none selected" in told(document, "dragged")
    # All of the right of the first track is empty at full zoom; now a message is there.
    assert "rank 0, tb 0" in told(document, "zoomed")


def test_the_choice_shows_one_program_at_a_time(tmp_path: Path) -> None:
    script = """
      const shown = () => [...document.querySelectorAll("section")].map((s) => !s.hidden).join();
      tell("one", shown());
      const choice = document.getElementById("choice");
      choice.value = "1";
      choice.dispatchEvent(new Event("change"));
      tell("other", shown());
    """
    text = driven(page_of(view_of(tiny()), view_of(tiny())), script)
    document, complaints = browse(tmp_path, text)
    assert complaints == []
    assert (told(document, "one"), told(document, "other")) == ("true,false", "false,true")


@pytest.mark.slow
def test_a_hundred_thousand_spans_are_drawn_and_found(tmp_path: Path) -> None:
    played = play(ring_allreduce(8), ring(8), 8 * 1000 * 450, SMALL)
    assert len(played.trace.spans) >= 90_000
    script = 'click(600, 22 + 9); tell("found", detail());'
    document, complaints = browse(tmp_path, driven(page_of(view_of(played)), script))
    assert complaints == []
    assert "rank 0, tb 0 to 1 from 7, channel 0" in told(document, "found")

"""The page in a real browser: it is drawn, nothing complains, and a reader can use it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from taccl.replay.sweep import Row
from taccl.report.html import View, page, schedule_data, timeline_data
from taccl.report.played import Played, play
from tests.msccl.builders import make, ring_schedule
from tests.replay.program_builder import SMALL, ring, ring_allreduce
from tests.report.browser import Browser, Page
from tests.report.played_programs import deadlocked, explained, tiny

pytestmark = pytest.mark.xdist_group("browser")

GUTTER, AXIS, ROW, CHUNK_GUTTER = 230, 22, 18, 70
TIMELINE, CHUNKS, TRAFFIC = "section > canvas", ".chunks canvas", ".traffic canvas"

Show = Callable[..., AbstractContextManager[Page]]


@pytest.fixture
def show(browser: Browser, tmp_path: Path) -> Show:
    """Open the page of some views in the browser; in the end nothing may have complained."""

    @contextmanager
    def opened(*views: View) -> Iterator[Page]:
        path = tmp_path / "page.html"
        path.write_text(page("a page", [view.row for view in views], views))
        with browser.page(path) as found:
            found.wait("document.body.dataset.ready === 'yes'")
            found.drawn()
            yield found
            assert found.complaints() == []
            assert found.requests() == [path.as_uri()]

    return opened


def view_of(played: Played) -> View:
    found = explained(played)
    runs = played.trace.time is not None
    return View(
        found.row, played.topology, timeline_data(played) if runs else None,
        played.trace.edge_busy, found,
    )  # fmt: skip


def allgather() -> View:
    """Show chunks that go around a ring of four."""
    schedule = ring_schedule("allgather", 4)
    return view_of(play(make(schedule), schedule.topology, 4 * 64, SMALL))


def on_track(shown: Page, track: int, share: float) -> tuple[float, float]:
    """Return the place of a share of the time on a track, with all of the time in view."""
    wide = shown.run(f"document.querySelector({TIMELINE!r}).clientWidth") - GUTTER
    return shown.at(TIMELINE, GUTTER + wide * share, AXIS + ROW * track + ROW / 2)


def test_a_click_on_a_span_shows_its_step_and_what_it_waited_for(show: Show) -> None:
    with show(view_of(tiny())) as shown:
        # Track 1 is rank 1's threadblock 0; its first message leaves at 0.0029 us of 0.0065.
        shown.click(*on_track(shown, 1, 0.0033 / 0.0065))
        told = shown.text("section > dl.detail")
        for part in (
            "4 (sends)", "rank 1, tb 0 to 2 from 0, channel 0", "0: rcs i[0] -> i[0]",
            "400 in iteration 0", "0.0029 us", "0.0038 us (0.0009 us long)", "0.0042 us",
            "1 to 2 (e1)",
            "the step before it: span 2, rank 1 tb 0 to 2 from 0, channel 0 step 0",
        ):  # fmt: skip
            assert part in told
        shown.run("document.querySelector('section > dl.detail button').click()")
        assert "2 (receives)" in shown.text("section > dl.detail")


def test_the_timeline_has_a_row_for_each_threadblock_and_is_painted(show: Show) -> None:
    with show(view_of(tiny())) as shown:
        assert shown.run(f"document.querySelector({TIMELINE!r}).clientHeight") == AXIS + 4 * ROW
        x, y = on_track(shown, 0, 0.3)
        column = shown.run(
            "(() => { const c = document.querySelector('section > canvas');"
            " const b = c.getBoundingClientRect(), p = c.getContext('2d');"
            f" return [...p.getImageData({x} - b.left, {y} - b.top, 1, {2 * ROW}).data]; }})()"
        )
        # A message in the first row, and nothing two rows below it.
        assert column[:3] != column[-4:-1]


def test_a_drag_is_no_click_and_moves_what_zooming_has_cut(show: Show) -> None:
    with show(view_of(tiny())) as shown:
        x, y = on_track(shown, 1, 0.0033 / 0.0065)
        shown.mouse("mousePressed", x, y, button="left", clickCount=1)
        shown.mouse("mouseMoved", x - 50, y, button="left")
        shown.mouse("mouseReleased", x - 50, y, button="left", clickCount=1)
        assert "none selected" in shown.text("section > dl.detail")
        # All of the right of the first track is empty; zoomed to the left, a message is there.
        end = on_track(shown, 0, 0.98)
        shown.click(*end)
        assert "none here" in shown.text("section > dl.detail")
        shown.mouse("mouseWheel", *on_track(shown, 0, 0.001), deltaX=0, deltaY=-100)
        shown.click(*end)
        assert "rank 0, tb 0" in shown.text("section > dl.detail")


def test_keys_go_from_span_to_span(show: Show) -> None:
    with show(view_of(tiny())) as shown:
        shown.run(f"document.querySelector({TIMELINE!r}).focus()")
        for key, span in (("n", "0 ("), ("n", "0 ("), ("w", "0 (")):
            shown.key(key)
            assert span in shown.text("section > dl.detail")
        shown.click(*on_track(shown, 1, 0.0033 / 0.0065))
        for key, span in (("w", "2 ("), ("n", "4 ("), ("p", "2 ("), ("0", "2 (")):
            shown.key(key)
            assert span in shown.text("section > dl.detail")


def test_rows_become_lower_and_a_rank_can_be_gone_to(show: Show) -> None:
    many = view_of(play(ring_allreduce(40), ring(40), 1600, SMALL))
    with show(many) as shown:
        height = f"document.querySelector({TIMELINE!r}).clientHeight"
        assert shown.run(height) == 560 - 2
        shown.run("document.querySelector('button[data-do=lower]').click()")
        assert shown.run(height) == AXIS + 40 * 11
        shown.run("document.querySelector('button[data-do=taller]').click()")
        shown.run(
            "(() => { const s = document.querySelector('select.ranks'); s.value = '12';"
            " s.dispatchEvent(new Event('change')); })()"
        )
        shown.click(*on_track(shown, 2, 0.5))
        # Rank 12 cannot be the first: 30 rows are seen of 40, so the last 30 are.
        assert "rank 12, tb 0" in shown.text("section > dl.detail")


def test_chunks_go_step_by_step_to_where_they_are_wanted(show: Show) -> None:
    with show(allgather()) as shown:
        status = ".chunks .status"
        assert ": 4 of 16 wanted chunks are there, 4 messages fly" in shown.text(status)
        shown.run("document.querySelector('button[data-go=on]').click()")
        assert shown.text(status).startswith("step 1 of ")
        shown.run("document.querySelector('button[data-go=last]').click()")
        assert ": 16 of 16 wanted chunks are there, 0 messages fly" in shown.text(status)


def test_a_click_on_a_chunk_tells_how_it_came(show: Show) -> None:
    with show(allgather()) as shown:
        shown.run("document.querySelector('button[data-go=last]').click()")
        # Four chunks are 28 pixels wide; chunk 2 at rank 1 has come over rank 3 and rank 0.
        shown.click(*shown.at(CHUNKS, CHUNK_GUTTER + 2 * 28 + 9, AXIS + 1 * 18 + 9))
        told = shown.text(".chunks dl.detail")
        assert "2: input 0 of rank 2" in told
        assert "all of it, wanted in the end" in told
        came, moves = told.split("all its moves")
        assert "to rank 1 from rank 0" in came
        for hop in ("to rank 3 from rank 2", "to rank 0 from rank 3", "to rank 1 from rank 0"):
            assert hop in moves
        shown.run("document.querySelector('.chunks dl button').click()")
        assert "rank 1, tb" in shown.text("section > dl.detail")


def test_a_schedule_without_a_program_is_followed_too(show: Show) -> None:
    schedule = ring_schedule("allgather", 4)
    data, edge_busy = schedule_data(schedule)
    row = Row("allgather", "ring", 4, 4096, schedule.makespan, program="a schedule")
    with show(View(row, schedule.topology, data, edge_busy)) as shown:
        shown.run("document.querySelector('button[data-go=last]').click()")
        assert ": 16 of 16 wanted chunks are there" in shown.text(".chunks .status")


def test_a_cell_of_the_heat_map_tells_what_the_pair_sent(show: Show) -> None:
    with show(allgather()) as shown:
        shown.click(*shown.at(TRAFFIC, CHUNK_GUTTER + 28 + 9, CHUNK_GUTTER + 9))
        told = shown.text(".traffic .status")
        assert told.startswith(
            "rank 0 to rank 1: 192 bytes in 3 messages, which keep edge e0 busy for"
        )
        shown.click(*shown.at(TRAFFIC, CHUNK_GUTTER + 9, CHUNK_GUTTER + 28 + 9))
        assert shown.text(".traffic .status") == "rank 1 to rank 0: nothing"


def test_the_choice_shows_one_program_at_a_time(show: Show) -> None:
    with show(view_of(tiny()), view_of(deadlocked()), allgather()) as shown:
        hidden = "[...document.querySelectorAll('section')].map((s) => s.hidden).join()"
        assert shown.run(hidden) == "false,true,true"
        shown.run(
            "(() => { const c = document.getElementById('choice'); c.value = '2';"
            " c.dispatchEvent(new Event('change')); })()"
        )
        shown.drawn()
        assert shown.run(hidden) == "true,true,false"
        canvas = "document.querySelectorAll('section')[2].querySelector('canvas')"
        assert shown.run(f"{canvas}.width > 0 && {canvas}.clientWidth > 0")


def test_a_program_that_can_not_run_has_a_page_without_complaints(show: Show) -> None:
    with show(view_of(deadlocked())) as shown:
        assert "can't run: deadlock" in shown.text("body")


def test_hostile_names_stay_texts(show: Show) -> None:
    evil = "</script><img src=x onerror=alert(1)><b>"
    played = tiny()
    edges = tuple(replace(edge, name=evil) for edge in played.topology.edges)
    topology = replace(played.topology, name=evil, edges=edges)
    with show(view_of(replace(played, topology=topology))) as shown:
        shown.click(*on_track(shown, 1, 0.0033 / 0.0065))
        assert evil in shown.text("section > dl.detail")
        shown.click(*shown.at(TRAFFIC, CHUNK_GUTTER + 28 + 9, CHUNK_GUTTER + 9))
        assert evil in shown.text(".traffic .status")
        assert shown.run("document.querySelectorAll('script, img, b').length") == 2


def test_the_chunks_of_64_ranks_are_seen_at_once_and_taken_apart(show: Show) -> None:
    schedule = ring_schedule("allgather", 64, 4)
    data, edge_busy = schedule_data(schedule)
    row = Row("allgather", "ring", 64, 4096, schedule.makespan, program="a schedule")
    with show(View(row, schedule.topology, data, edge_busy)) as shown:
        each = "document.querySelector('select.each')"
        box = "document.querySelector('.chunks .scroll')"
        assert shown.run(f"{each}.value") == "2"
        assert shown.run(f"{box}.scrollWidth <= {box}.clientWidth")
        shown.run("document.querySelector('button[data-go=last]').click()")
        assert ": 16384 of 16384 wanted chunks" in shown.text(".chunks .status")
        # Rows are 12 pixels high and columns 8 wide.
        shown.click(*shown.at(CHUNKS, CHUNK_GUTTER + 3 * 8 + 4, AXIS + 5 * 12 + 6))
        told = shown.text(".chunks dl.detail")
        assert "6 to 7" in told
        assert "2 of 2 wanted chunks are there" in told
        shown.run(f"(() => {{ {each}.value = 1; {each}.dispatchEvent(new Event('change')); }})()")
        assert shown.run(f"{box}.scrollWidth > {box}.clientWidth")
        shown.click(*shown.at(CHUNKS, CHUNK_GUTTER + 3 * 8 + 4, AXIS + 5 * 12 + 6))
        assert "3: input 3 of rank 0" in shown.text(".chunks dl.detail")


@pytest.mark.slow
def test_a_hundred_thousand_spans_of_64_ranks_can_be_used(show: Show) -> None:
    played = play(ring_allreduce(64), ring(64), 64 * 1000 * 7, SMALL)
    assert len(played.trace.spans) > 100_000
    row = Row("allreduce", "ring", 64, played.trace.size, played.trace.time)
    with show(View(row, played.topology, timeline_data(played), played.trace.edge_busy)) as shown:
        shown.mouse("mouseWheel", *on_track(shown, 3, 0.5), deltaX=0, deltaY=-100)
        shown.click(*on_track(shown, 3, 0.5))
        assert "rank 3, tb 0 to 4 from 2" in shown.text("section > dl.detail")
        shown.run("document.querySelector('button[data-go=last]').click()")
        assert shown.text(".chunks .status").startswith("step ")

"""Chrome trace JSON."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from taccl.report.played import Played, chrome_trace
from tests.report.played_programs import deadlocked, random_replays, ring4, tiny
from tests.sweep import for_each

Event = dict[str, Any]


def events(played: Played, phase: str) -> list[Event]:
    found = json.loads(chrome_trace(played))["traceEvents"]
    return [event for event in found if event["ph"] == phase]


def test_the_trace_of_a_tiny_program_is_golden(golden: Callable[[str, str], None]) -> None:
    golden("report/tiny-trace.json", chrome_trace(tiny()))


KEYS = {
    "X": {"name", "cat", "ph", "ts", "dur", "pid", "tid", "args"},
    "M": {"name", "ph", "pid", "tid", "args"},
    "C": {"name", "cat", "ph", "ts", "pid", "tid", "args"},
    "s": {"name", "cat", "ph", "id", "ts", "pid", "tid"},
    "f": {"name", "cat", "ph", "id", "ts", "pid", "tid", "bp"},
}
NAMES = {"process_name": str, "thread_name": str, "process_sort_index": int}


def picoseconds(event: Event, key: str = "ts") -> int:
    found: int = round(event[key] * 1_000_000)
    return found


def breaches(text: str) -> Iterator[str]:
    """Yield what is against the Trace Event Format, read as Perfetto's importer reads it."""
    found = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    if not {"traceEvents", "displayTimeUnit", "otherData"} >= set(found):
        yield f"keys {sorted(found)}"
    if found.get("displayTimeUnit") not in ("ns", "ms"):
        yield "displayTimeUnit"
    for number, event in enumerate(found["traceEvents"]):
        wrong = [f"event {number}: {problem}" for problem in _wrong_fields(event)]
        yield from wrong
        if wrong:
            return
    yield from _wrong_nesting(found["traceEvents"])
    yield from _wrong_arrows(found["traceEvents"])
    yield from _wrong_counters(found["traceEvents"])


def _wrong_fields(event: Event) -> Iterator[str]:
    phase = event.get("ph", "")
    if set(event) != KEYS.get(phase):
        yield f"fields {sorted(event)}"
        return
    if not all(type(event[key]) is int and event[key] >= 0 for key in ("pid", "tid")):
        yield "pid or tid"
    if any(type(event.get(key, 0)) not in (int, float) for key in ("ts", "dur")):
        yield "a time that is no number"
    elif min(event.get("ts", 0), event.get("dur", 0)) < 0:
        yield "a time below 0"
    if phase == "M":
        (value,) = event["args"].values()
        if not isinstance(value, NAMES.get(event["name"], bytes)):
            yield f"metadata {event['name']} of {value!r}"


def _wrong_nesting(events: list[Event]) -> Iterator[str]:
    """Spans of one thread are inside one another or apart."""
    threads: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            start = picoseconds(event)
            span = (start, -start - picoseconds(event, "dur"))
            threads[event["pid"], event["tid"]].append(span)
    for thread, spans in threads.items():
        open_until: list[int] = []
        for start, end in sorted(spans):
            while open_until and open_until[-1] <= start:
                open_until.pop()
            if open_until and -end > open_until[-1]:
                yield f"spans of thread {thread} overlap at {start}"
            open_until.append(-end)


def _wrong_arrows(events: list[Event]) -> Iterator[str]:
    """Bind each end to the span last begun on its thread, in order of time, then of the file."""
    begun: dict[tuple[int, int], Event] = {}
    started: dict[int, int] = {}
    for event in sorted((e for e in events if e["ph"] in "Xsf"), key=picoseconds):
        thread = event["pid"], event["tid"]
        if event["ph"] == "X":
            begun[thread] = event
            continue
        span = begun.get(thread)
        kind = {"s": "send", "f": "receive"}[event["ph"]]
        if span is None or span["cat"] != kind or picoseconds(span) != picoseconds(event):
            yield f"arrow {event['id']}: {event['ph']} is at no {kind}"
        if event["ph"] == "s":
            if event["id"] in started:
                yield f"arrow {event['id']} starts twice"
            started[event["id"]] = picoseconds(event)
        elif started.pop(event["id"], None) is None:
            yield f"arrow {event['id']} ends without a start"
    yield from (f"arrow {number} has no end" for number in started)


def _wrong_counters(events: list[Event]) -> Iterator[str]:
    series: dict[tuple[int, str], list[Event]] = defaultdict(list)
    for event in events:
        if event["ph"] == "C":
            series[event["pid"], event["name"]].append(event)
    for name, points in series.items():
        times = [picoseconds(point) for point in points]
        if times != sorted(set(times)):
            yield f"counter {name} goes back in time"
        if any(type(value) is not int or value < 0 for p in points for value in p["args"].values()):
            yield f"counter {name} has a value that is no count"
        if any(points[-1]["args"].values()):
            yield f"counter {name} does not end at 0"


def test_a_trace_keeps_the_rules_of_trace_events() -> None:
    for played in [tiny(), ring4(), deadlocked(), *random_replays(range(100))]:
        assert list(breaches(chrome_trace(played))) == []


@for_each(
    ("old", "new", "breach"),
    [
        ('"ph":"X","ts":0.0', '"ph":"X","ts":-1', "a time below 0"),
        ('"ph":"X","ts":0.0', '"ph":"X","ts":"0"', "no number"),
        ('"dur":0.0019', '"dur":0.0020', "overlap"),
        ('"ph":"s","id":0', '"ph":"s","id":7', "arrow 7 has no end"),
        ('"ph":"f","id":0', '"ph":"f","id":1', "ends without a start"),
        ('"args":{"busy":1,', '"args":{"busy":-1,', "no count"),
        ('"thread_name"', '"thread_nam"', "metadata"),
        ('"bp":"e"', '"bq":"e"', "fields"),
    ],
)
def test_a_trace_that_breaks_a_rule_is_told(old: str, new: str, breach: str) -> None:
    text = chrome_trace(tiny())
    assert old in text
    assert breach in " / ".join(breaches(text.replace(old, new, 1)))


def test_a_counter_follows_what_the_edge_holds_and_what_is_on_its_way() -> None:
    # Edge e1 has an alpha of 500 of which 100 occupy it: two messages of 400 bytes at 2 ps.
    points = [e for e in events(tiny(), "C") if e["name"] == "edge e1"]
    assert [(picoseconds(p), *p["args"].values()) for p in points] == [
        (2900, 1, 400), (3800, 0, 400), (4200, 0, 0), (4800, 1, 400), (5700, 0, 400), (6100, 0, 0),
    ]  # fmt: skip


def test_counters_are_busy_for_as_long_as_the_edge_is_held() -> None:
    for played in random_replays(range(60)):
        busy = dict.fromkeys((e.name for e in played.topology.edges), 0)
        last: dict[str, tuple[int, int]] = {}
        for event in events(played, "C"):
            name, now = event["name"].removeprefix("edge "), picoseconds(event)
            before, held = last.get(name, (now, 0))
            busy[name] += held * (now - before)
            assert event["args"]["busy"] in (0, 1)
            last[name] = now, event["args"]["busy"]
        assert tuple(busy.values()) == played.trace.edge_busy


def test_every_span_lies_within_the_time() -> None:
    for played in [tiny(), *random_replays(range(100))]:
        time = json.loads(chrome_trace(played))["otherData"]["time_us"]
        for event in events(played, "X"):
            assert event["dur"] >= 0
            assert 0 <= event["ts"] <= event["ts"] + event["dur"] <= time * (1 + 1e-12)


def test_arrows_are_as_many_as_messages_received() -> None:
    for played in random_replays(range(100)):
        starts, ends = events(played, "s"), events(played, "f")
        received = sum(played.receives(span) for span in played.trace.spans)
        assert len(starts) == len(ends) == received
        assert sorted(e["id"] for e in starts) == sorted(e["id"] for e in ends)
        assert {e["id"] for e in starts} == set(range(received))


def test_an_arrow_leads_from_a_send_to_the_rank_it_goes_to() -> None:
    ring = ring4()
    ends = {event["id"]: event for event in events(ring, "f")}
    for start in events(ring, "s"):
        end = ends[start["id"]]
        assert end["pid"] == (start["pid"] + 1) % 4
        assert end["ts"] >= start["ts"]
        assert end["bp"] == "e"


def test_an_edge_carries_one_message_at_a_time() -> None:
    for played in random_replays(range(100)):
        free: dict[int, float] = {}
        for event in events(played, "X"):
            if event["cat"] == "edge":
                assert event["ts"] >= free.get(event["tid"], 0.0) - 1e-9
                free[event["tid"]] = event["ts"] + event["dur"]


def test_every_thread_with_spans_has_a_name() -> None:
    played = tiny()
    named = {(e["pid"], e["tid"]) for e in events(played, "M") if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in events(played, "X")} <= named


def test_a_span_says_what_it_waited_for() -> None:
    (event,) = [e for e in events(tiny(), "X") if e["name"] == "rcs to 2" and e["args"]["span"] < 5]
    assert event["args"]["waited_for"] == "the step before it: rank 1 threadblock 0 step 0"


def test_a_program_that_can_not_run_has_a_trace_that_says_why() -> None:
    found = json.loads(chrome_trace(deadlocked()))
    assert found["otherData"]["time_us"] is None
    assert "deadlock" in found["otherData"]["note"]


def test_equal_replays_are_equal_bytes() -> None:
    assert chrome_trace(tiny()) == chrome_trace(tiny())

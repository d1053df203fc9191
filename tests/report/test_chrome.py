"""Chrome trace JSON."""

import json
from collections.abc import Callable
from typing import Any

from taccl.report.chrome import chrome_trace
from taccl.report.played import Played
from tests.report.played_programs import deadlocked, random_replays, ring4, tiny

Event = dict[str, Any]


def events(played: Played, phase: str) -> list[Event]:
    found = json.loads(chrome_trace(played))["traceEvents"]
    return [event for event in found if event["ph"] == phase]


def test_the_trace_of_a_tiny_program_is_golden(golden: Callable[[str, str], None]) -> None:
    golden("report/tiny-trace.json", chrome_trace(tiny()))


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
        assert [e["id"] for e in starts] == [e["id"] for e in ends] == list(range(received))


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

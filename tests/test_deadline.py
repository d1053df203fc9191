"""Deadlines end what never looks at a clock, and nothing else."""

import sys
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from taccl.timing.deadline import Deadline, Either, TimeUp, hurry, kept


def endless() -> None:
    while True:
        pass


def test_a_deadline_ends_a_loop_that_never_looks_at_the_clock() -> None:
    deadline = Deadline.after(0.05)
    with pytest.raises(TimeUp, match="time is up"), kept(deadline):
        endless()
    assert deadline.passed.is_set()


def test_an_inner_deadline_ends_its_own_part_and_leaves_the_outer_one_running() -> None:
    outer, inner = Deadline.after(0.2), Deadline.after(0.02)
    ended: list[Deadline] = []
    try:
        with kept(outer):
            try:
                with kept(inner):
                    endless()
            except TimeUp as first:
                ended.append(first.deadline)
                assert not outer.passed.is_set()
            endless()
    except TimeUp as second:
        ended.append(second.deadline)
    assert ended == [inner, outer]


def endless_from(deadline: Deadline, action: Callable[[], None]) -> None:
    with kept(deadline):
        action()
        endless()


def test_a_deadline_that_is_moved_comes_then() -> None:
    deadline = Deadline()
    with pytest.raises(TimeUp, match="time is up"):
        endless_from(deadline, lambda: deadline.move(time.monotonic() + 0.02))


def test_who_is_in_a_hurry_waits_for_no_deadline() -> None:
    with pytest.raises(TimeUp, match="time is up"):
        endless_from(Deadline.after(3600), lambda: hurry(0.02))
    hurry(0.0)  # none is kept: nothing happens


def test_either_of_two_events_counts() -> None:
    user = threading.Event()
    both = Either(user)
    assert not both.is_set()
    user.set()
    assert both.is_set()
    assert not threading.Event.is_set(both)


def test_what_answers_errors_with_a_next_try_is_ended_all_the_same() -> None:
    def stubborn() -> None:
        while True:
            try:
                endless()
            except Exception:  # noqa: BLE001
                continue

    with pytest.raises(TimeUp, match="time is up"), kept(Deadline.after(0.02)):
        stubborn()


def test_what_is_being_imported_is_whole_before_the_deadline_rings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = "import time\nuntil = time.monotonic() + 0.2\nwhile time.monotonic() < until: pass\n"
    (tmp_path / "slow_to_import.py").write_text(f"{slow}whole = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    deadline, found = Deadline.after(0.02), list[ModuleType]()
    with pytest.raises(TimeUp, match="time is up"):
        endless_from(deadline, lambda: found.append(import_module("slow_to_import")))
    assert [module.whole for module in found] == [True]
    assert [sys.modules.pop("slow_to_import")] == found


def test_an_import_that_never_ends_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taccl.timing.deadline.MOST_WAIT", 0.1)
    (tmp_path / "never_imported.py").write_text("while True: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(TimeUp, match="time is up"), kept(Deadline.after(0.02)):
        import_module("never_imported")
    assert "never_imported" not in sys.modules


def test_who_waits_for_a_thread_has_its_lock_back_before_the_deadline_rings() -> None:
    results: list[str] = []

    def slept() -> str:
        time.sleep(0.2)
        return "slept"

    def waits() -> None:
        with ThreadPoolExecutor(1) as pool:
            results.append(pool.submit(slept).result())
        endless()

    with pytest.raises(TimeUp, match="time is up"), kept(Deadline.after(0.02)):
        waits()
    assert results == ["slept"]


def test_a_callback_of_a_weak_reference_ends_before_the_deadline_rings() -> None:
    results: list[str] = []

    def slow() -> None:
        time.sleep(0.2)
        results.append("called")

    held = [threading.Event()]
    weakref.finalize(held[0], slow)

    def lets_go() -> None:
        held.clear()
        endless()

    with pytest.raises(TimeUp, match="time is up"), kept(Deadline.after(0.02)):
        lets_go()
    assert results == ["called"]


def test_nothing_rings_after_the_end_of_what_was_to_be_kept() -> None:
    deadline = Deadline.after(0.02)
    with kept(deadline):
        pass
    time.sleep(0.05)
    assert not deadline.passed.is_set()
    assert deadline.over


def test_outside_the_main_thread_the_clock_is_only_looked_at() -> None:
    deadline = Deadline.after(0.0)
    seen: list[bool] = []

    def run() -> None:
        with kept(deadline):
            seen.append(deadline.over)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [True]
    assert not deadline.passed.is_set()

"""What is chosen: safe, judged, and each file from where it is the faster one."""

from dataclasses import replace
from itertools import pairwise

import pytest

from taccl.msccl.program import Finding
from taccl.replay.nccl import machine_of, parse_settings
from taccl.topology.file import expand_text, load_topology
from taccl.tuning import choice
from taccl.tuning.candidate import Machine, Setting, Spec, read_outcome, run_task
from taccl.tuning.choice import Chooser, Range
from taccl.tuning.library import entries_of

SIZES = tuple(1 << exponent for exponent in range(10, 25, 2))
HUB = load_topology("hub:8")


@pytest.fixture(scope="module")
def chooser() -> Chooser:
    """Return all classical all-reduces on eight ranks around a switch."""
    setting = Setting((Machine(expand_text(HUB)),), (), SIZES, "executor", ("Simple",))
    outcomes = [
        read_outcome(run_task(setting.task(Spec("allreduce", engine, 1 << 16))))
        for engine in ("ring", "recursive-doubling", "halving-doubling", "one-shot")
    ]
    return Chooser("allreduce", HUB, "executor", SIZES, entries_of("allreduce", outcomes))


def owners(ranges: tuple[Range, ...]) -> list[int | None]:
    return [one.entry for one in ranges]


def test_a_file_begins_where_it_is_not_slower_than_the_one_before(chooser: Chooser) -> None:
    ranges = chooser.choose()
    assert len(ranges) > 1
    for before, after in pairwise(ranges):
        assert after.low == before.high + 1
        assert before.program is not None
        assert after.program is not None
        first, second = (chooser._replayed(p, after.low) for p in (before.program, after.program))
        assert first is not None
        assert second is not None
        assert second <= first


def test_no_file_has_sizes_at_which_it_could_deadlock(chooser: Chooser) -> None:
    safe = SIZES[3] + 64
    limited = tuple(
        replace(
            entry,
            played=replace(
                entry.played,
                safe=safe,
                times=tuple(
                    time if size <= safe else None
                    for size, time in zip(SIZES, entry.played.times, strict=True)
                ),
            ),
        )
        for entry in chooser.entries
    )
    ranges = replace(chooser, entries=limited).choose()
    assert max(one.high for one in ranges if one.program is not None) == safe
    assert (ranges[-1].entry, ranges[-1].low, ranges[-1].high) == (None, safe + 1, SIZES[-1])


def test_where_nothing_runs_nothing_is_left_to_nccl(chooser: Chooser) -> None:
    fast = machine_of(HUB, parse_settings("channels=16,intra=1000GB/s,wire=nvlink"))
    nowhere = tuple(
        replace(entry, played=replace(entry.played, times=(None,) * len(SIZES)))
        for entry in chooser.entries
    )
    none = replace(chooser, entries=nowhere, machine=fast)
    assert any(none.ways)
    assert not any(none.is_left(place) for place in range(len(SIZES)))
    assert [(one.low, one.high, one.left) for one in none.choose()] == [
        (SIZES[0], SIZES[-1], False)
    ]


def test_nothing_is_left_to_an_estimate_below_the_bound(chooser: Chooser) -> None:
    fast = machine_of(HUB, parse_settings("channels=16,intra=1000GB/s,wire=nvlink"))
    eager = replace(chooser, machine=fast)
    left = [place for place in range(len(SIZES)) if eager.is_left(place)]
    assert left
    expected = [way.time if way else 0 for way in eager.ways]
    believed = replace(eager, bounds=tuple(expected))
    assert [place for place in range(len(SIZES)) if believed.is_left(place)] == left
    doubted = replace(eager, bounds=tuple(time + 1 for time in expected))
    assert not any(doubted.is_left(place) for place in range(len(SIZES)))
    assert not any(one.left for one in doubted.choose())


def test_the_last_range_ends_where_it_is_told_to(chooser: Chooser) -> None:
    end = SIZES[-1] + 1000
    (*_, last) = replace(chooser, end=end).choose()
    assert last.program is not None
    assert (last.high, last.program.max_bytes) == (end, end)


def test_the_last_range_ends_before_it_could_deadlock(
    chooser: Chooser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "largest_safe_size", lambda *_: SIZES[-1] + 4)
    (*_, one, last) = replace(chooser, end=SIZES[-1] + 1000).choose()
    assert one.program is not None
    assert (one.high, one.program.max_bytes) == (SIZES[-1] + 4, SIZES[-1] + 4)
    assert (last.low, last.high, last.entry) == (SIZES[-1] + 5, SIZES[-1] + 1000, None)


def test_a_portable_file_runs_its_last_size_where_the_limit_is_exclusive(
    chooser: Chooser, monkeypatch: pytest.MonkeyPatch
) -> None:
    portable = replace(chooser, runtime="portable")
    (*_, last) = portable.choose()
    assert last.program is not None
    assert (last.high, last.program.max_bytes) == (SIZES[-1], SIZES[-1] + 1)
    monkeypatch.setattr(choice, "largest_safe_size", lambda *_: SIZES[-1])
    (*_, last) = portable.choose()
    assert last.program is not None
    assert last.program.max_bytes == SIZES[-1]


def test_a_range_is_verified_at_sizes_that_its_program_takes(chooser: Chooser) -> None:
    divisor = chooser.entries[0].played.divisor
    ends = (2 * divisor, 10 * divisor)
    assert chooser.verified(Range(divisor + 1, 10 * divisor + 3, 0)) == ends
    assert chooser.verified(Range(divisor, divisor, 0)) == (divisor,)
    assert chooser.verified(Range(divisor + 1, divisor + 2, 0)) == ()


def test_a_program_that_a_judge_refuses_is_out(
    chooser: Chooser, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = owners(chooser.choose())[0]

    def refuse(_self: Chooser, one: Range) -> list[Finding]:
        return [Finding("result", "it is wrong")] if one.entry == bad else []

    monkeypatch.setattr(Chooser, "refusals", refuse)
    ranges = chooser.choose()
    assert bad not in owners(ranges)
    assert (ranges[0].low, ranges[-1].high) == (SIZES[0], SIZES[-1])


def test_a_wrong_program_is_refused(chooser: Chooser) -> None:
    one = next(one for one in chooser.choose() if one.program is not None)
    assert one.program is not None
    assert chooser.refusals(one) == []
    first, *others = one.program.gpus
    cut = tuple(replace(block, steps=block.steps[:-1]) for block in first.threadblocks)
    broken = replace(one.program, gpus=(replace(first, threadblocks=cut), *others))
    assert chooser.refusals(replace(one, program=broken))

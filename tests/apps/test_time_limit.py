"""Time limits and Ctrl-C end what never looks at a clock, and there is an answer all the same."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event, Timer

import pytest

from taccl.apps import Request, Synthesis, Target, synthesize, warmup
from taccl.apps.inputs import load_network
from taccl.apps.outputs import summary
from taccl.apps.programs import FAR, MARGIN, TOO_LONG, Lowering, Scored, Scorer
from taccl.errors import OutOfTimeError
from taccl.model.problem import Bound, Options, Problem, Result, Status
from taccl.model.schedule import Schedule
from taccl.msccl.interpret import judge
from taccl.msccl.program import Program
from taccl.synth.templates.classical import CLASSICAL, textbook_schedule
from taccl.timing.deadline import Deadline, hurry
from taccl.verify import verify
from tests.msccl.builders import mesh, pairs_schedule, ring_schedule

LIMIT = 1.5


@pytest.fixture(autouse=True)
def _compiled() -> None:
    warmup.compile_ahead(lambda _line: None)


def asked(engine: str = "auto", stop: Event | None = None) -> Request:
    return Request(
        load_network("hub:4"), "allgather", 1 << 20, engine=engine, time_limit=LIMIT,
        stop=stop or Event(),
    )  # fmt: skip


def endless(_problem: Problem, _options: Options) -> Result:
    while True:
        pass


def never(*_: object) -> None:
    while True:
        pass


def given_up(monkeypatch: pytest.MonkeyPatch) -> tuple[Schedule, Scorer]:
    """Return a schedule whose replay took too long, and who gave it up; it would be quick now."""
    schedule = ring_schedule("allgather", 4)
    size = int(schedule.chunk_size * schedule.collective.chunks_in_size)
    scorer = Scorer(Target(), size, list[str]().append, clock=Deadline.after(LIMIT))
    with monkeypatch.context() as patch:
        patch.setattr(Lowering, "replay", never)
        assert scorer.refusal(schedule) == TOO_LONG
    return schedule, scorer


def timed(action: Callable[[], Synthesis]) -> tuple[Synthesis, float]:
    began = time.monotonic()
    found = action()
    return found, time.monotonic() - began


def test_an_engine_that_never_ends_is_ended_and_what_came_before_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("taccl.synth.search.SEARCHES", {"guided": endless, "exact": endless})
    monkeypatch.setattr("taccl.synth.search.is_enough", lambda *_: False)
    found, seconds = timed(lambda: synthesize(asked()))
    assert seconds < 10 * LIMIT
    assert found.ended in ("clock", "bound")
    assert found.program is not None
    assert judge(found.program, "portable") == []


def test_an_engine_alone_that_never_ends_leaves_the_opening(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("taccl.synth.search.ENGINES", {"guided": endless})
    found, seconds = timed(lambda: synthesize(asked("guided")))
    assert seconds < 10 * LIMIT
    assert found.result.engine in CLASSICAL
    assert found.program is not None


@pytest.mark.parametrize("engine", ["auto", "flow", "guided"])
def test_the_first_answer_is_awaited_however_short_the_time(engine: str) -> None:
    request = replace(
        asked(engine), logical=load_network("mesh2d"), collective="allreduce", size=64_000_000,
        chunks=4, time_limit=0.01, target=Target(),
    )  # fmt: skip
    found = synthesize(request)
    assert (found.ended, found.result.engine in CLASSICAL) == ("clock", True)
    assert found.program is not None
    assert judge(found.program, "portable") == []


def test_where_nothing_opens_an_engine_that_never_ends_is_out_of_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("taccl.synth.search.ENGINES", {"guided": endless})
    monkeypatch.setattr("taccl.apps.synthesis.opening", lambda *_, **__: ())
    with pytest.raises(OutOfTimeError, match=r"no schedule was found within 1\.5 s"):
        synthesize(asked("guided"))


def test_what_is_soon_judged_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []
    own = Scorer.open

    def told(scorer: Scorer, schedule: Schedule) -> bool:
        opened.append(schedule.num_messages)
        return own(scorer, schedule)

    monkeypatch.setattr(Scorer, "open", told)
    # One-shot ends first, with a message for every pair of ranks; other ways have fewer.
    request = replace(asked(), logical=load_network("full:8"), collective="allreduce", size=1 << 12)
    for quick in (1000, 25):
        monkeypatch.setattr("taccl.apps.synthesis.QUICK", quick)
        synthesize(request)
    assert opened[0] == 8 * 7
    assert opened[1] < 50


def test_a_program_whose_replay_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule, scorer = given_up(monkeypatch)
    scorer.clock.move(math.inf)  # on a busy machine another may need more than is left
    assert scorer.score(schedule) is None
    assert scorer.score(ring_schedule("reducescatter", 4))


def test_what_was_given_up_is_scored_in_the_end_where_it_must_be_far_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    schedule, scorer = given_up(monkeypatch)
    for times, stopped, refusal in (
        (FAR - 1, False, TOO_LONG), (FAR + 1, True, TOO_LONG), (FAR + 1, False, None),
    ):  # fmt: skip
        scorer.best = Scored(schedule, "ring", None, times * scorer.expects(schedule))
        (scorer.clock.stop.set if stopped else scorer.clock.stop.clear)()
        scorer.catch_up()
        assert scorer.refusal(schedule) == refusal
    assert scorer.best is not None
    assert scorer.best.task is not None


def test_what_it_takes_to_judge_a_small_program_says_little_of_large_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own, pause = Lowering.proved, 0.1

    def slow(lowering: Lowering) -> Program:
        time.sleep(pause)  # whatever it judges
        return own(lowering)

    monkeypatch.setattr(Lowering, "proved", slow)
    scorer = Scorer(Target(), 64_000, list[str]().append, clock=Deadline.after(60))
    scorer.last, end = scorer.clock.end + 60, scorer.clock.end
    assert scorer.score(ring_schedule("allgather", 8))
    assert scorer.clock.end < end - pause
    assert scorer.score(pairs_schedule("allgather", mesh(8), 8))
    assert scorer.judged is not None
    assert scorer.judged.schedule.collective.chunks_per_rank == 8
    # By the first one alone eight times as much would be left.
    assert scorer.clock.end > end - 4 * MARGIN * pause


def test_an_engine_whose_program_takes_too_long_leaves_the_opening(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = Lowering.replay

    def slow(lowering: Lowering, program: Program) -> int | None:
        while "-score-" in lowering.name:
            pass
        return own(lowering, program)

    monkeypatch.setattr(Lowering, "replay", slow)
    found, seconds = timed(lambda: synthesize(replace(asked("guided"), chunks=1)))
    assert seconds < 10 * LIMIT
    assert found.result.engine in CLASSICAL
    assert found.result.status is Status.TIME_LIMIT
    assert found.program is not None


def test_with_measured_costs_other_instances_of_the_first_answer_are_tried_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[int] = []
    own = Scorer.open

    def told(scorer: Scorer, schedule: Schedule) -> bool:
        found = own(scorer, schedule)
        opened.extend([scorer.opened.time] if scorer.opened else [])
        return found

    monkeypatch.setattr(Scorer, "open", told)
    monkeypatch.setattr("taccl.apps.synthesis.series_of", never)
    request = replace(
        asked(), logical=load_network("dgx-a100"), size=1 << 26, measured=True, time_limit=4.0,
        target=Target(instances=None),
    )  # fmt: skip
    found = synthesize(request)
    assert found.time is not None
    assert found.time < opened[0]


def test_bounds_that_never_end_leave_the_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taccl.apps.synthesis.series_of", never)
    found, _ = timed(lambda: synthesize(asked()))
    assert found.ended in ("clock", "bound")
    assert found.program is not None


def test_judging_that_never_ends_leaves_what_was_judged_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[Lowering] = []
    own = Lowering.proved

    def slow(lowering: Lowering) -> object:
        calls.append(lowering)
        while len(calls) > 1:
            pass
        return own(lowering)

    def ring(
        problem: Problem, *, batch: bool, over: Callable[[], bool]
    ) -> Iterator[tuple[str, Schedule | None]]:
        assert not over()
        yield "ring", textbook_schedule(problem, "ring", batch=batch)

    monkeypatch.setattr("taccl.apps.synthesis.opening", ring)
    monkeypatch.setattr(Lowering, "proved", slow)
    found, seconds = timed(lambda: synthesize(asked()))
    assert len(calls) == 2
    assert seconds < 10 * LIMIT
    assert found.schedule is calls[0].schedule
    assert found.program is not None
    assert judge(found.program, "portable") == []


def test_nothing_is_written_that_was_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lowering, "proved", never)
    with pytest.raises(OutOfTimeError, match="no") as caught:
        synthesize(asked())
    assert str(caught.value.fix).startswith("raise --time-limit")


def test_what_was_found_in_time_is_judged_even_where_time_is_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("taccl.apps.synthesis.GRACE", -1.0)
    found = synthesize(replace(asked("ring"), target=None))
    assert verify(found.schedule) == []


def test_who_interrupts_what_was_not_judged_is_not_told_to_raise_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stop = Event()

    def never(_lowering: Lowering) -> None:
        stop.set()
        while True:
            pass

    monkeypatch.setattr(Lowering, "proved", never)
    with pytest.raises(OutOfTimeError, match="no time was left to judge") as caught:
        synthesize(asked("ring", stop))
    assert str(caught.value.fix).startswith("let it run longer")


def test_an_interrupt_ends_what_never_looks_at_the_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taccl.synth.search.SEARCHES", {"guided": endless})
    monkeypatch.setattr("taccl.synth.search.is_enough", lambda *_: False)
    stop = Event()

    def interrupt() -> None:
        stop.set()
        hurry(0.1)

    request = replace(asked(stop=stop), time_limit=600.0)
    timer = Timer(1.0, os.kill, (os.getpid(), signal.SIGUSR1))
    before = signal.signal(signal.SIGUSR1, lambda *_: interrupt())
    timer.start()
    try:
        found, seconds = timed(lambda: synthesize(request))
    finally:
        timer.cancel()
        signal.signal(signal.SIGUSR1, before)
    assert seconds < 20
    assert found.ended == "user"
    assert found.program is not None


def test_who_ran_out_of_time_with_a_large_gap_is_told_to_give_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("taccl.synth.search.ENGINES", {"guided": endless})
    found = synthesize(asked("guided"))
    assert found.gap is not None
    slow = replace(found, bounds=tuple(replace(b, time=found.time // 2) for b in found.bounds))
    for ended, told in (
        ("clock", "give it more than 1.5 s (--time-limit), or use --engine auto"),
        ("user", "the search was interrupted, and the gap is large: let it run longer"),
        ("search", "nothing was left to try, and the gap is large: try --engine auto"),
    ):
        assert told in summary(replace(slow, ended=ended), [])
    assert "the gap is large" not in summary(replace(slow, bounds=(floor_of(found),)), [])


def floor_of(found: Synthesis) -> Bound:
    """Return a bound that what was found meets."""
    return replace(found.bounds[0], time=found.time)


def test_the_clock_starts_after_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*_: object) -> float:
        time.sleep(2 * LIMIT)
        return 2 * LIMIT

    monkeypatch.setattr("taccl.apps.synthesis.compile_ahead", slow)
    found = synthesize(asked())
    assert found.compiled == 2 * LIMIT
    assert found.seconds < 2 * LIMIT


@pytest.mark.slow
def test_a_cold_machine_compiles_before_its_clock_and_finds_more_than_a_ring(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "taccl", "synthesize", "ndv2", "allgather", "--time-limit", "10",
         "--profile", "alpha-beta", "--json"],
        check=True, capture_output=True, text=True,
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert found["compile_seconds"] > 0
    # A ring takes 25 us.
    assert found["engine"] != "ring"
    assert found["replay_us"] < 13


def test_loops_are_compiled_once_for_a_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(warmup, "KERNELS", {"arborescence": warmup.KERNELS["arborescence"]})
    told: list[str] = []
    assert warmup.compile_ahead(told.append) > 0
    assert warmup.compile_ahead(told.append) == 0
    assert told[0].startswith("compiling 1 loops, once on this machine")
    assert len(told) == 2
    assert any(path.suffix == ".nbc" for path in tmp_path.rglob("*"))


def test_compiling_can_be_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    stop = Event()
    stop.set()
    with pytest.raises(OutOfTimeError, match="interrupted while loops were compiled"):
        warmup.compile_ahead(lambda _line: None, stop)


def test_every_compiled_loop_is_compiled_ahead() -> None:
    ahead = {module.__name__.rpartition(".")[2] for module in warmup.PARTS}
    package = Path(warmup.__file__).parent.parent
    found = {
        name or path.stem  # a loop of the module's own
        for path in package.rglob("*.py")
        for name in re.findall(r"\bjit\(\s*(?:(\w+)\.)?\w+, ", path.read_text())
    }
    assert len(found) >= 5
    assert found <= ahead

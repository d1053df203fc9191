"""The exact engine keeps its time: it gives up a model, and hands over the best that it has."""

import importlib
from collections.abc import Callable
from dataclasses import replace
from threading import Event

import pytest

from taccl.errors import OutOfTimeError
from taccl.model.problem import Options, Problem, Status
from taccl.synth.exact.engine import exact
from taccl.synth.exact.model import Neighbours, Parts, build, flows_of, make_scale
from taccl.synth.exact.solve import Solution, is_long, solve_model
from taccl.synth.staged import first_schedules
from taccl.topology.file import load_topology
from taccl.verify import verify
from tests.sweep import for_each
from tests.synth.problems import QUICK, problem_of


class StopsAfter(Event):
    """An interruption that comes when it has been asked for so many times."""

    def __init__(self, asked: int) -> None:
        super().__init__()
        self.left = asked

    def is_set(self) -> bool:
        """Count, and tell."""
        self.left -= 1
        return self.left < 0


def relays(chunks: int = 2) -> Problem:
    """Return an AlltoAll on a ring: all that crosses is relayed, and may travel together."""
    return problem_of(load_topology("ring:4"), "alltoall", chunks)


def no_solver(*_: object, **__: object) -> None:
    raise AssertionError("a solver was started")


@pytest.fixture
def unsolved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail when a solver is started."""
    monkeypatch.setattr("taccl.synth.milp.new_solver", no_solver)


def counted(limit: int) -> Callable[[], bool]:
    """Return what tells that it is over when it has been asked so many times."""
    asked = [0]

    def over() -> bool:
        asked[0] += 1
        return asked[0] > limit

    return over


def test_a_search_is_over_at_its_limit_and_when_the_user_says_so() -> None:
    stop = Event()
    assert Options(time_limit=0.0, stop=stop).begin().over
    clock = Options(time_limit=60.0, stop=stop).begin()
    assert clock.left > 50
    stop.set()
    assert clock.left == 0
    assert clock.over


def test_where_work_is_counted_no_deadline_ends_anything() -> None:
    stop = Event()
    clock = replace(QUICK, time_limit=0.0, stop=stop).begin(counted=3.0)
    assert not clock.over
    assert clock.share(0.5).left == clock.left == 3.0
    stop.set()
    assert clock.over


@for_each("collective", ["allgather", "reducescatter", "allreduce", "alltoall"])
@for_each("limit", [0, 1, 7, 40])
def test_a_model_is_given_up_wherever_it_is(collective: str, limit: int) -> None:
    problem = problem_of(load_topology("ring:4"), collective, 4)
    flows = flows_of(problem)
    together = Neighbours(flows)
    scale = make_scale(flows, 1 << 30, together.longest)
    with pytest.raises(OutOfTimeError, match="not written down in time"):
        build(flows, scale, 0, together, counted(limit))


@pytest.mark.usefixtures("unsolved")
@pytest.mark.parametrize("batch", [False, True])
def test_a_deadline_that_has_passed_proves_the_floor_and_starts_no_solver(batch: bool) -> None:
    problem = relays()
    known = first_schedules(problem, QUICK)[0]
    found = solve_model(flows_of(problem), known, Options(batch=batch), 0.0, 17)
    assert found == Solution(None, 17, proved=False)


@pytest.mark.usefixtures("unsolved")
def test_an_interruption_while_a_model_is_written_leaves_the_best_so_far(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem, stop, looks = relays(), Event(), []
    look = Parts.look

    def interrupted(parts: Parts) -> None:
        looks.append(len(parts.x.next))
        if looks[-1] > 5:
            stop.set()
        look(parts)

    monkeypatch.setattr(Parts, "look", interrupted)
    result = exact(problem, Options(time_limit=60.0, stop=stop))
    assert result.status is Status.INTERRUPTED
    assert looks[-1] > 5
    assert result.schedule is not None
    assert not verify(result.schedule, problem.logical)
    assert result.schedule.makespan <= first_schedules(problem, QUICK)[0].makespan


@for_each("collective", ["allgather", "allreduce", "alltoall"])
@for_each("asked", [0, 3, 10, 30, 60])
def test_an_interruption_at_any_time_leaves_a_schedule(collective: str, asked: int) -> None:
    problem = problem_of(load_topology("ring:4"), collective, symmetric=True)
    result = exact(problem, replace(QUICK, stop=StopsAfter(asked)))
    assert result.status in (Status.INTERRUPTED, Status.OPTIMAL)
    assert result.schedule is not None
    assert not verify(result.schedule, problem.logical)


@pytest.mark.usefixtures("unsolved")
@pytest.mark.parametrize("collective", ["allgather", "reducescatter", "allreduce", "alltoall"])
def test_no_time_at_all_leaves_what_takes_no_search(collective: str) -> None:
    problem = problem_of(load_topology("torus2d:3x3"), collective, 2)
    result = exact(problem, Options(time_limit=0.0))
    assert result.status is Status.TIME_LIMIT
    assert result.bounds == ()
    assert result.schedule is not None
    assert not verify(result.schedule, problem.logical)


def test_too_many_messages_for_the_time_are_not_written_down() -> None:
    problem = problem_of(load_topology("ring:6"), "alltoall", 4)
    flows = flows_of(problem)
    assert is_long(flows, QUICK, 4.0)
    assert not is_long(flows, QUICK, 60.0)
    assert not is_long(flows, replace(QUICK, batch=False), 4.0)


def test_a_model_that_cp_sat_would_presolve_for_minutes_is_never_written_down() -> None:
    assert is_long(flows_of(problem_of(load_topology("ring:4"), "alltoall", 40)), QUICK, 1e9)


def test_a_model_grows_with_the_pairs_of_its_chunks() -> None:
    # Where each pair says of all chunks between the two that they are not there, it grows faster.
    rows = []
    for chunks in (1, 2, 4):
        flows = flows_of(problem_of(load_topology("ring:4"), "alltoall", chunks))
        together = Neighbours(flows)
        parts = build(flows, make_scale(flows, 1 << 30, together.longest), 0, together)
        pairs = sum(len(list(together.pairs(k, of))) for (k, _), of in together.by_link.items())
        rows.append(len(parts.model.proto.constraints) / pairs)
    assert rows == sorted(rows, reverse=True)


@pytest.mark.parametrize("stopped", [False, True])
def test_no_time_for_any_schedule_is_not_told_as_a_missing_path(
    stopped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module(
        "taccl.synth.exact.engine"
    )  # the package names the function so
    monkeypatch.setattr(module, "first_schedules", lambda *_: [])
    stop = Event()
    if stopped:
        stop.set()
    with pytest.raises(OutOfTimeError, match="nothing was found in time"):
        exact(relays(), Options(time_limit=5.0 if stopped else 0.0, stop=stop))


@pytest.mark.parametrize("collective", ["allgather", "allreduce"])
def test_models_that_are_given_up_prove_nothing(
    collective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(*_: object) -> None:
        raise OutOfTimeError("not written down in time")

    monkeypatch.setattr("taccl.synth.exact.solve.build", late)
    problem = problem_of(load_topology("ring:4"), collective, 2)
    found = exact(problem, Options(time_limit=2.0, floor=777))
    assert found.bounds == ()
    assert found.status is not Status.OPTIMAL

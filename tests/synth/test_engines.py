"""What holds for every engine on every collective."""

from dataclasses import replace
from fractions import Fraction
from itertools import product
from pathlib import Path
from threading import Event

import pytest

from taccl.bounds import any_bounds, best, fixed_bounds
from taccl.collectives import COLLECTIVES
from taccl.errors import InputError, NoScheduleError
from taccl.model.problem import Options, Problem, Status
from taccl.model.schedule import Schedule, retime
from taccl.synth.search import ENGINES, engine_names, solve
from taccl.topology.file import load_topology
from taccl.topology.graph import Topology, whole
from taccl.topology.symmetry import make_group
from taccl.verify import verify
from tests.generators import (
    both_ways,
    build,
    pair,
    random_problem,
    random_topology,
    ring4,
    star5,
    twin2x2,
)
from tests.sweep import for_each
from tests.synth.problems import QUICK, problem_of

NETWORKS = [pair("occupy"), ring4("delay"), star5("occupy"), twin2x2("delay")]


def bound_of(problem: Problem, options: Options) -> int:
    size = problem.chunk_size * problem.collective.chunks_in_size
    if not options.batch:
        return best(fixed_bounds(problem.logical, problem.collective, problem.chunk_size)).time
    return best(any_bounds(problem.logical, problem.collective, int(size))).time


SERVED = [(engine, collective) for engine in ENGINES for collective in COLLECTIVES]


@for_each(("engine", "collective"), SERVED, quick=35, parts=2)
@for_each("network", NETWORKS, ids=lambda network: network.name)
def test_a_schedule_is_correct_and_not_below_the_bound(
    network: Topology, engine: str, collective: str
) -> None:
    for batch in (True, False):
        problem = problem_of(network, collective, symmetric=not batch)
        options = replace(QUICK, batch=batch, time_limit=1.0)
        schedule = solve(problem, engine, options).schedule
        assert schedule is not None
        assert verify(schedule, problem.logical) == []
        assert bound_of(problem, options) <= schedule.makespan


@for_each("rule", ["occupy", "delay"], quick=8)
@for_each("seed", range(20))
def test_bounds_hold_on_random_problems(seed: int, rule: str) -> None:
    drawn = random_problem(seed)
    logical = whole(drawn.topology.with_alpha_rule(rule))
    group = make_group(logical.topology, ())
    problem = replace(drawn, logical=logical, group=group)
    options = replace(QUICK, time_limit=1.0, batch=seed % 2 == 0)
    schedule = solve(problem, "auto", options).schedule
    assert schedule is not None
    assert verify(schedule, problem.logical) == []
    assert bound_of(problem, options) <= schedule.makespan


WIRES = """taccl: topology/1
name: bare
node:
  gpus: 4
  wires:
    - {from: 0, to: 1, alpha: 0.7us}
    - {from: 1, to: 2, alpha: 0.7us}
    - {from: 2, to: 3, alpha: 0.7us}
    - {from: 0, to: 3, alpha: 0.7us}
    - {from: 0, to: 2, alpha: 0.7us%s}
  nics:
    - {name: ib0, gpus: [0, 1, 2, 3], bandwidth: 16GB/s}
count: 1
fabric: {kind: switch, alpha: 1.7us}
"""


@pytest.mark.filterwarnings("error")
def test_wires_may_have_no_bandwidth(tmp_path: Path) -> None:
    # Trees share what holds nothing, rings go through it, and no price tells it apart.
    file = tmp_path / "bare.yaml"
    for width, nodes in product(("", ", bandwidth: 50GB/s"), (None, 2)):
        file.write_text(WIRES % width, "utf-8")
        network = load_topology(str(file), nodes=nodes)
        for collective, engine in product(
            ("allgather", "allreduce", "broadcast"), ("flow", "guided", "ring", "hierarchical")
        ):
            if (engine == "hierarchical" and nodes is None) or (
                collective == "broadcast" and engine == "ring"
            ):
                continue
            problem = problem_of(network, collective, chunks=4, chunk_size=10**5)
            schedule = solve(problem, engine, replace(QUICK, time_limit=1.0)).schedule
            assert schedule is not None
            assert verify(schedule, problem.logical) == []
            assert bound_of(problem, QUICK) <= schedule.makespan


PIPELINES = {
    "chain", "double-chain", "binomial", "scatter-allgather", "double-binary-tree",
    "parameter-server", "halving-doubling",
}  # fmt: skip
PASSED_ON = {"chain", "double-chain", "binomial", "direct"}


@pytest.mark.parametrize(
    ("collective", "candidates"),
    [
        ("broadcast", {*PIPELINES, "guided", "exact", "taccl"}),
        ("reduce", {*PIPELINES, "guided", "exact", "taccl"}),
        ("gather", {*PASSED_ON, "flow", "guided", "exact", "taccl"}),
        ("scatter", {*PASSED_ON, "flow", "guided", "exact", "taccl"}),
    ],
)
def test_algorithms_for_a_root_compete(collective: str, candidates: set[str]) -> None:
    problem = problem_of(load_topology("hub:4"), collective, chunks=2, chunk_size=10**5)
    result = solve(problem, "auto", QUICK)
    assert {one.engine for one in result.candidates if one.score is not None} == candidates


def test_a_broadcast_down_a_chain_takes_no_longer_than_its_pipeline() -> None:
    # Four ranks in a row, 3 chunks of 10 bytes at 1 ps and alpha 5: (3 hops + 2) * 15 under
    # occupy; in one message 3 * (5 + 30).
    hops = [hop for a in range(3) for hop in both_ways(a, a + 1, 5, Fraction(1))]
    problem = problem_of(build("row", 4, hops), "broadcast", chunks=3, chunk_size=10)
    for batch in (True, False):
        schedule = solve(problem, "auto", replace(QUICK, batch=batch)).schedule
        assert schedule is not None
        assert schedule.makespan == 5 * 15


@for_each("seed", range(6), quick=2)
def test_times_are_those_of_the_decisions(seed: int) -> None:
    problem = random_problem(seed)
    schedule = solve(problem, "taccl", replace(QUICK, time_limit=2.0)).schedule
    assert schedule is not None
    again = retime(problem.collective, problem.group, problem.chunk_size, schedule.decisions())
    assert again.makespan <= schedule.makespan


@for_each("collective", COLLECTIVES)
def test_the_same_seed_gives_the_same_schedule(collective: str) -> None:
    problem = problem_of(load_topology("ndv2"), collective, chunk_size=10**6)
    one, two = (solve(problem, "taccl", QUICK).schedule for _ in range(2))
    assert one is not None
    assert two is not None
    assert one.chunk.tolist() == two.chunk.tolist()
    assert one.link.tolist() == two.link.tolist()
    assert one.start.tolist() == two.start.tolist()


@pytest.mark.parametrize(
    "collective",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name in ("allgather", "allreduce")))
        for name, kind in COLLECTIVES.items()
        if not kind.has_root
    ],
)
def test_a_solve_on_orbits_expands_to_a_correct_schedule(collective: str) -> None:
    problem = problem_of(load_topology("dgx-a100", nodes=2), collective, symmetric=True)
    assert len(problem.group) == 16
    schedule = solve(problem, "taccl", replace(QUICK, batch=False, time_limit=1.0)).schedule
    assert schedule is not None
    assert verify(schedule, problem.logical) == []
    assert schedule.num_sends == 16 * len(schedule)


def test_allgather_on_ndv2_is_as_fast_as_its_ports_allow() -> None:
    # Seven 1 MB chunks enter over two wires of 23.7 us and two of 46.7 us: 3 x 23.7 us.
    problem = problem_of(load_topology("ndv2"), "allgather", chunk_size=10**6)
    schedule = solve(problem, "taccl", replace(QUICK, time_limit=36.0, batch=False)).schedule
    assert schedule is not None
    assert schedule.makespan == 71_100_000


def test_allgather_on_dgx2_keeps_every_port_busy() -> None:
    # Fifteen messages of 8.7 us enter every rank.
    problem = problem_of(load_topology("dgx2"), "allgather", chunk_size=10**6, symmetric=True)
    schedule = solve(problem, "taccl", replace(QUICK, batch=False)).schedule
    assert schedule is not None
    assert schedule.makespan == 15 * 8_700_000


@pytest.mark.parametrize(("seed", "overlaps"), [(2, False), (6, False), (13, False), (21, True)])
def test_allreduce_takes_no_longer_than_its_halves_one_after_the_other(
    seed: int, overlaps: bool
) -> None:
    # On the last, some chunks are summed long before others, and their gather starts at once.
    times = {}
    for collective in ("reducescatter", "allgather", "allreduce"):
        problem = problem_of(random_topology(seed), collective)
        schedule = solve(problem, "taccl", replace(QUICK, batch=False)).schedule
        assert schedule is not None
        times[collective] = schedule.makespan
    halves = times["reducescatter"] + times["allgather"]
    assert times["allreduce"] <= (0.9 * halves if overlaps else halves)


def test_batches_form_where_alpha_is_dear() -> None:
    # Two chunks of a rank that go to the same peer: one alpha of 10 ps instead of two.
    problem = problem_of(pair(), "allgather", chunks=2, chunk_size=1)
    schedule = solve(problem, "taccl", QUICK).schedule
    assert schedule is not None
    assert schedule.makespan == 10 + 2 * 2
    one_by_one = solve(problem, "taccl", replace(QUICK, batch=False)).schedule
    assert one_by_one is not None
    assert one_by_one.makespan == 2 * (10 + 2)


def test_an_interrupted_search_still_answers() -> None:
    stop = Event()
    stop.set()
    result = solve(
        problem_of(load_topology("ndv2", nodes=2), "allgather"), "auto", replace(QUICK, stop=stop)
    )
    assert result.status is Status.INTERRUPTED
    assert result.schedule is not None
    assert verify(result.schedule) == []


def test_a_search_without_time_still_answers() -> None:
    result = solve(problem_of(load_topology("dgx2"), "alltoall"), "taccl", Options(time_limit=0.0))
    assert result.schedule is not None
    assert verify(result.schedule) == []


@for_each("collective", COLLECTIVES)
def test_one_rank_needs_no_sends(collective: str) -> None:
    problem = problem_of(build("alone", 1, []), collective)
    schedule = solve(problem, "auto", QUICK).schedule
    assert schedule is not None
    assert len(schedule) == 0


def test_auto_is_never_worse_than_its_candidates() -> None:
    problem = problem_of(load_topology("hub:4"), "allreduce", chunk_size=10**5)
    result = solve(problem, "auto", QUICK)
    assert result.schedule is not None
    classical = {
        "ring", "double-ring", "all-pairs", "halving-doubling", "bruck", "double-binary-tree",
        "parameter-server", "recursive-doubling", "chain", "binomial",
    }  # fmt: skip
    served = [one for one in result.candidates if one.score is not None]
    assert {one.engine for one in served} == {*classical, "guided", "exact", "taccl"}
    assert result.schedule.makespan == min(one.score or 0 for one in served)


def test_auto_chooses_by_the_score_it_is_given() -> None:
    problem = problem_of(load_topology("hub:4"), "allgather")
    slowest = replace(QUICK, score=lambda schedule: -schedule.makespan)
    result = solve(problem, "auto", slowest)
    scored = {one.makespan: one.score for one in result.candidates if one.makespan}
    assert all(score == -makespan for makespan, score in scored.items())


def unlowerable(schedule: Schedule) -> None:
    """Tell that no program can be made."""
    del schedule


def test_where_nothing_can_be_lowered_the_schedule_is_left_to_the_caller() -> None:
    result = solve(problem_of(pair(), "allgather"), "auto", replace(QUICK, score=unlowerable))
    assert result.schedule is not None
    assert {one.score for one in result.candidates} == {None}
    assert all(one.reason for one in result.candidates)


def test_an_unknown_engine_is_an_error_that_lists_the_known() -> None:
    with pytest.raises(InputError, match="unknown engine 'gurobi'") as caught:
        solve(problem_of(pair(), "allgather"), "gurobi", QUICK)
    for name in engine_names():
        assert name in str(caught.value)


def test_a_chunk_that_can_not_be_served_is_named() -> None:
    topology = ring4()
    logical = whole(topology)
    closed = logical.allowed.copy()
    closed[[link for rank in range(4) for link in topology.links_between(rank, 2)]] = False
    problem = problem_of(replace(logical, allowed=closed), "allgather")
    with pytest.raises(
        NoScheduleError, match="chunk 0 can't be served: no allowed path from rank 0 to rank 2"
    ):
        solve(problem, "taccl", QUICK)

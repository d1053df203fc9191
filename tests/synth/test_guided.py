"""Price-guided list scheduling: runs by a slow twin, results by hand, answers verified."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from taccl.apps import logical_group
from taccl.errors import NoScheduleError
from taccl.model.problem import Options, Status
from taccl.model.routes import Arcs, Wanted, arcs_of, build_network, wanted_of
from taccl.model.schedule import Decisions, Schedule, retime
from taccl.synth.greedy import greedy_routes
from taccl.synth.guided import search as guided_search
from taccl.synth.guided import tree_list_scheduler
from taccl.synth.guided.engine import guided
from taccl.synth.guided.search import Effort, Found, compiled, search, taught_prices
from taccl.synth.guided.tree_list_scheduler import (
    COUNT,
    EPS_OVER,
    EPS_UNDER,
    IN_ORDER,
    NEVER,
    RUN_FIELDS,
    TURNS,
    Times,
    field_of,
    reset,
    state_of,
)
from taccl.synth.search import solve
from taccl.timing.deadline import Deadline
from taccl.topology.file import load_topology
from taccl.topology.graph import whole
from taccl.verify import verify
from tests.customs import random_custom
from tests.generators import both_ways, build, random_problem, random_topology, ring4
from tests.sweep import for_each
from tests.synth.problems import QUICK, problem_of
from tests.synth.sketched import line, native, solved, twins

SINGLE = replace(QUICK, batch=False)

SHORT = replace(QUICK, time_limit=0.5, batch=False)
"""Too little for improvement."""

Send = tuple[int, int, int]
"""Row of the chunk, arc, start."""


def quiet(line: str) -> None:
    """Say nothing."""
    del line


def grown(
    arcs: Arcs, wanted: Wanted, price: Times, run: Times, *, by_machine: bool
) -> tuple[int, list[Send]]:
    """Return what a run of the scheduler makes, compiled or not."""
    field = field_of(arcs, wanted)
    state = state_of(field)
    reset(field, state)
    grow = compiled(quiet) if by_machine else tree_list_scheduler.grow
    makespan = grow(field, state, price, run, NEVER)
    count = int(state.counter[COUNT])
    columns = (state.sent_chunk, state.sent_arc, state.sent_at)
    return makespan, list(zip(*(column[:count].tolist() for column in columns), strict=True))


@dataclass
class Naive:
    """The same by looking at every chunk and arc before every send."""

    arcs: Arcs
    wanted: Wanted
    price: Times
    run: Times
    at: list[dict[int, int]]
    free: list[int]

    def open_arcs(self, chunk: int) -> Iterator[int]:
        """Yield the arcs that a chunk may take now."""
        usable = np.flatnonzero(self.wanted.allowed[self.wanted.kind[chunk]]).tolist()
        ends = [
            (int(self.arcs.tail[a]), int(self.arcs.head[a]), int(self.price[a])) for a in usable
        ]
        ranks = range(self.wanted.targets.shape[1])
        far = {rank: 0 if rank in self.at[chunk] else NEVER for rank in ranks}
        for _ in ranks:
            for tail, head, price in ends:
                far[head] = min(far[head], far[tail] + price)
        over, under = int(self.run[EPS_OVER]), int(self.run[EPS_UNDER])
        for a, (tail, head, price) in zip(usable, ends, strict=True):
            cheap = not under or price * under <= far[head] * over
            if tail in self.at[chunk] and head not in self.at[chunk] and cheap:
                yield a

    def spans(self, arc: int) -> list[tuple[int, int, int]]:
        """Return the resources of an arc and when it holds them, from its start."""
        arcs, arrival = self.arcs, int(self.arcs.arrival()[arc])
        uses = range(int(arcs.use_start[arc]), int(arcs.use_start[arc + 1]))
        held = [(int(arcs.use_resource[use]), int(arcs.held()[use])) for use in uses]
        if arcs.reverse:
            return [(resource, arrival - time, arrival) for resource, time in held]
        return [(resource, 0, time) for resource, time in held]

    def start(self, chunk: int, arc: int) -> int:
        """Return when an arc could carry a chunk."""
        free = [self.free[resource] - begin for resource, begin, _ in self.spans(arc)]
        return max([self.at[chunk][int(self.arcs.tail[arc])], *free])

    def send(self, chunk: int, arc: int) -> int:
        """Take an arc; return when."""
        start = self.start(chunk, arc)
        for resource, _, end in self.spans(arc):
            self.free[resource] = start + end
        self.at[chunk][int(self.arcs.head[arc])] = start + int(self.arcs.arrival()[arc])
        return start


def naive(arcs: Arcs, wanted: Wanted, price: Times, run: Times) -> tuple[int, list[Send]]:
    """Return what a run makes that looks at everything before every send."""
    at = [dict.fromkeys(np.flatnonzero(row).tolist(), 0) for row in wanted.roots]
    state = Naive(arcs, wanted, price, run, at, [0] * arcs.num_resources)
    arrival, sends = arcs.arrival().tolist(), []
    targets = [set(np.flatnonzero(row).tolist()) for row in wanted.targets]
    while any(missing - at[chunk].keys() for chunk, missing in enumerate(targets)):
        _, chunk, arc = min(
            (state.start(chunk, arc) + arrival[arc], chunk, arc)
            for chunk, missing in enumerate(targets)
            if missing - at[chunk].keys()
            for arc in state.open_arcs(chunk)
        )
        sends.append((chunk, arc, state.send(chunk, arc)))
    return max((start + arrival[arc] for _, arc, start in sends), default=0), sends


@for_each("by_machine", [True, False], quick=16)
@for_each("reverse", [False, True])
@for_each("seed", range(12))
def test_a_run_takes_what_a_search_through_everything_takes(
    seed: int, reverse: bool, by_machine: bool
) -> None:
    problem = random_problem(seed, "reducescatter" if reverse else "allgather")
    arcs = arcs_of(problem, reverse=reverse)
    wanted = wanted_of(arcs)
    price = np.random.default_rng(seed).integers(1, 1000, len(arcs))
    run = np.zeros(RUN_FIELDS, dtype=np.int64)
    run[TURNS] = IN_ORDER
    run[[EPS_OVER, EPS_UNDER]] = ((10, 10), (13, 10), (0, 0))[seed % 3]
    made = grown(arcs, wanted, price, run, by_machine=by_machine)
    assert made == naive(arcs, wanted, price, run)


def some_search(arcs: Arcs, runs: int = 70, workers: int = 1, seed: int = 0) -> Found:
    field, grow = field_of(arcs, wanted_of(arcs)), compiled(quiet)
    effort = Effort(lambda: 0, Deadline(counted=1.0), runs=runs, seed=seed, workers=workers)
    found = search(arcs, field, [taught_prices(arcs, field, grow)], grow, effort)
    assert found is not None
    return found


@for_each("seed", range(15))
def test_starts_are_those_of_retime(seed: int) -> None:
    problem = random_problem(seed, "allgather")
    arcs = arcs_of(problem)
    wanted = wanted_of(arcs)
    found = some_search(arcs)
    rows = zip(wanted.chunk[found.chunk].tolist(), arcs.link[found.arc].tolist(), strict=True)
    decisions = Decisions.of([(c, k, number, False) for number, (c, k) in enumerate(rows)])
    timed = retime(problem.collective, problem.group, problem.chunk_size, decisions)
    assert timed.start.tolist() == found.start.tolist()
    assert timed.makespan == found.makespan


@for_each("seed", range(15))
def test_a_reduction_takes_no_longer_than_the_run_it_plays_backwards(seed: int) -> None:
    problem = random_problem(seed, "reducescatter")
    arcs = arcs_of(problem, reverse=True)
    forth = some_search(arcs, runs=1)
    back = guided(problem, replace(SINGLE, time_limit=0.0)).schedule
    assert back is not None
    assert verify(back, problem.logical) == []
    assert back.makespan <= forth.makespan


@for_each("seed", range(15))
def test_the_first_run_is_the_plain_greedy_so_nothing_is_worse(seed: int) -> None:
    problem = random_problem(seed, "allgather")
    plain = max(hop.end for hop in greedy_routes(build_network(problem)))
    best = guided(problem, SHORT).schedule
    assert best is not None
    assert best.makespan <= plain


@pytest.mark.parametrize("workers", [1, 2])
def test_threads_change_nothing(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    arcs = arcs_of(problem_of(load_topology("ndv2"), "allgather", chunk_size=10**6))
    alone = some_search(arcs, 200)
    monkeypatch.setattr(guided_search, "THREADED", 0)
    found = some_search(arcs, 200, workers)
    assert found.makespan == alone.makespan
    assert found.chunk.tolist() == alone.chunk.tolist()
    assert found.arc.tolist() == alone.arc.tolist()


@pytest.mark.parametrize(
    ("runs", "seed"), [(150, 1), *(pytest.param(300, n, marks=pytest.mark.slow) for n in (1, 2, 3))]
)
def test_a_few_changes_of_good_prices_win_more_than_new_draws(
    monkeypatch: pytest.MonkeyPatch, runs: int, seed: int
) -> None:
    network = load_topology("mi250", nodes=2)
    problem = problem_of(network, "allgather", 4, 250_000)
    arcs = arcs_of(replace(problem, group=logical_group(whole(network))))
    changed = some_search(arcs, runs, seed=seed)
    monkeypatch.setattr(guided_search, "DRAWN", 2.0)
    drawn = some_search(arcs, runs, seed=seed)
    assert changed.makespan < drawn.makespan


@pytest.mark.parametrize("collective", ["allgather", "allreduce", "scatter"])
def test_counted_searches_repeat(collective: str) -> None:
    problem = problem_of(load_topology("ndv2"), collective, chunk_size=10**6)
    one, two = (guided(problem, replace(QUICK, time_limit=0.5)).schedule for _ in range(2))
    assert one is not None
    assert two is not None
    assert one.chunk.tolist() == two.chunk.tolist()
    assert one.link.tolist() == two.link.tolist()
    assert one.start.tolist() == two.start.tolist()


@pytest.mark.parametrize(
    ("topology", "nodes", "chunks", "microseconds"),
    [
        # Seven chunks enter over two wires of 23.7 us and two of 46.7 us: three times 23.7.
        ("ndv2", 1, 1, 71.1),
        # Fifteen messages of 8.7 us enter every port.
        ("dgx2", 1, 1, 130.5),
        # 16 chunks cross 8 pairs of NICs of 107.7 us in two turns, but each also has to be spread.
        ("dgx2", 2, 1, 285.0),
        # Fifteen chunks enter over four wires of 20.7 us.
        ("torus2d:4x4", None, 1, 82.8),
        # The seventh chunk of a NIC (41.7 us) is spread to seven GPUs (4.0333 us).
        ("dgx-a100", 8, 1, 320.133338),
    ],
)
def test_machines_with_symmetry_are_as_fast_as_their_bounds(
    topology: str, nodes: int | None, chunks: int, microseconds: float
) -> None:
    network = load_topology(topology, nodes=nodes)
    goal = round(microseconds * 10**6)
    for collective in ("allgather", "reducescatter"):
        problem = problem_of(network, collective, chunks, 10**6, symmetric=True)
        options = replace(SINGLE, time_limit=400.0, fixed_floor={collective: goal}.__getitem__)
        schedule = guided(problem, options).schedule
        assert schedule is not None
        assert schedule.makespan == goal


@for_each("seed", range(24))
def test_any_collective_from_a_file_is_served(seed: int) -> None:
    topology = random_topology(seed)
    collective = random_custom(seed, topology.num_ranks)
    problem = replace(problem_of(topology, "allgather"), collective=collective)
    schedule = guided(problem, replace(QUICK, time_limit=0.2, batch=seed % 3 == 0)).schedule
    assert schedule is not None
    assert verify(schedule, problem.logical) == []


@pytest.mark.parametrize("seed", [2, 6, 13, 21])
def test_an_allreduce_takes_no_longer_than_its_halves(seed: int) -> None:
    times = {}
    for collective in ("reducescatter", "allgather", "allreduce"):
        schedule = guided(problem_of(random_topology(seed), collective), SHORT).schedule
        assert schedule is not None
        times[collective] = schedule.makespan
    assert times["allreduce"] <= times["reducescatter"] + times["allgather"]


SKETCHES = {
    "links": "links: {deny: [{from: 0, to: 2}]}",
    "leave by": "internode: {relays: fully-connected, chunk_to_relay: {0: 1, 1: 1}}",
    "own first": "internode: {own_chunks_first: true}",
    "few connections": 'switches: {"*": uc-min}',
    "symmetry": "symmetry: [[2, 4]]",
}


@for_each("collective", ["allgather", "reducescatter"], quick=4)
@for_each("sketch", SKETCHES)
def test_sketches_are_kept(sketch: str, collective: str, tmp_path: Path) -> None:
    # solved() verifies under the sketch.
    solved(native(twins(), SKETCHES[sketch], tmp_path), collective, engine="guided")


def test_own_chunks_first_lets_foreign_ones_wait(tmp_path: Path) -> None:
    sketch = native(line(), "internode: {own_chunks_first: true}", tmp_path)
    assert solved(sketch, "alltoall", engine="guided").makespan == 7_000_000


@for_each("extra", [0, 1], quick=12)
@for_each("seed", range(15))
def test_hops_are_limited(seed: int, extra: int) -> None:
    logical = replace(whole(random_topology(seed)), max_extra_hops=extra)
    problem = problem_of(logical, "allgather")
    schedule = guided(problem, replace(SINGLE, time_limit=0.2)).schedule
    assert schedule is not None
    assert verify(schedule, logical) == []


def test_a_rank_that_can_not_be_reached_is_named() -> None:
    logical = whole(ring4())
    closed = logical.allowed.copy()
    closed[[link for rank in range(4) for link in ring4().links_between(rank, 2)]] = False
    problem = problem_of(replace(logical, allowed=closed), "allgather")
    with pytest.raises(NoScheduleError, match="rank 0 to rank 2"):
        solve(problem, "guided", QUICK)


@pytest.mark.parametrize(("collective", "most"), [("allgather", (31, 99)), ("alltoall", (999, 95))])
def test_what_memory_is_not_for_is_refused(
    collective: str, most: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # 4 or 12 chunks and 8 links
    monkeypatch.setattr("taccl.synth.guided.engine.MOST_PAIRS", most)
    with pytest.raises(NoScheduleError, match="8 links are too many for engine guided"):
        guided(problem_of(ring4(), collective), SHORT)


@pytest.mark.parametrize(
    ("collective", "alpha", "picoseconds"),
    [("allgather", 0, 0), ("allgather", 5, 10), ("reducescatter", 5, 10), ("allreduce", 5, 20)],
)
def test_edges_that_nothing_waits_for_are_no_resources(
    collective: str, alpha: int, picoseconds: int
) -> None:
    hops = [hop for a, b in ((0, 1), (1, 2)) for hop in both_ways(a, b, alpha, None)]
    problem = problem_of(build("free", 3, hops), collective)
    for batch in (True, False):
        schedule = guided(problem, replace(SHORT, batch=batch)).schedule
        assert schedule is not None
        assert verify(schedule, problem.logical) == []
        assert schedule.makespan == picoseconds


def test_the_goal_ends_the_search() -> None:
    problem = problem_of(ring4(), "allgather")
    result = guided(problem, Options(time_limit=60.0, floor=2 * 1010, batch=False))
    assert result.status is Status.OPTIMAL


def test_what_no_program_can_be_made_of_is_left_for_what_takes_longer() -> None:
    problem = problem_of(load_topology("dgx-a100", nodes=2), "alltoall", 1, 16)
    packed = guided(problem, QUICK).schedule
    assert packed is not None
    assert packed.packs

    def score(schedule: Schedule) -> int | None:
        return None if schedule.packs else schedule.makespan

    plain = guided(problem, replace(QUICK, score=score)).schedule
    assert plain is not None
    assert not plain.packs
    assert plain.makespan > 1.25 * packed.makespan

"""The exact model against a search through all routings and orders."""

import random
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import pytest

from taccl.model.problem import Options, Status
from taccl.model.routes import Arc, Network, build_network
from taccl.model.schedule import Decisions, Schedule, retime
from taccl.synth.exact.engine import exact
from taccl.synth.exact.model import flows_of_networks
from taccl.synth.exact.solve import Solution, solve_model
from taccl.synth.greedy import greedy_routes
from taccl.topology.file import load_topology
from taccl.topology.graph import whole
from taccl.verify import verify
from tests.generators import Hop, build, pair, ring4
from tests.sweep import for_each
from tests.synth.problems import problem_of

LONG = Options(time_limit=10.0, deterministic=True, workers=1)


def small_network(seed: int, rule: str, *, reverse: bool) -> Network:
    """Return two or three ranks with all chunks, or four with two chunks; times below 10 ps."""
    rng = random.Random(f"small {seed}")
    ranks = rng.randint(2, 4)
    hops: list[Hop] = []
    for a in range(ranks):
        ends = sorted({(a + 1) % ranks, rng.randrange(ranks)} - {a})
        hops += [(a, b, rng.randrange(4), None, Fraction(rng.randint(1, 5))) for b in ends]
    collective = "reducescatter" if reverse else rng.choice(("allgather", "alltoall"))
    problem = problem_of(build("small", ranks, hops, rule=rule), collective, chunk_size=1)
    network = build_network(problem, reverse=reverse)
    wanted = [demand for demand in network.demands if demand.targets]
    return replace(network, demands=tuple(wanted[: 2 if ranks == 4 else 4]))


def best_makespan(network: Network, best: int) -> int:
    """Return the least makespan, by trying every next send in order of time.

    A schedule in which nothing can start earlier is found send by send in order of start; in a
    reduction, where resources are held at the end of a send, in order of arrival.
    """
    topology = network.problem.topology
    table = topology.links

    def costs(link: int) -> tuple[int, dict[int, int]]:
        edges = [topology.edges[e] for e in table.edges_of(link)]
        beta = max(edge.beta or 0 for edge in edges)
        overhead = sum(topology.edge_overhead(edge) for edge in edges)
        held = {edge.id: overhead + int(edge.beta) for edge in edges if edge.beta is not None}
        return sum(edge.alpha for edge in edges) + int(beta), held

    def moves(at: dict[tuple[int, int], int], free: dict[int, int]) -> Iterator[tuple[int, ...]]:
        for number, demand in enumerate(network.demands):
            for place, arc in enumerate(demand.arcs):
                if (number, arc.tail) in at and (number, arc.head) not in at:
                    duration, held = costs(arc.link)
                    late = {e: duration - h if network.reverse else 0 for e, h in held.items()}
                    waits = [free.get(edge, 0) - late[edge] for edge in held]
                    start = max([0, at[number, arc.tail], *waits])
                    yield start, start + duration, number, place

    def search(
        at: dict[tuple[int, int], int], free: dict[int, int], now: tuple[int, ...], best: int
    ) -> int:
        open_ = [
            (number, target)
            for number, demand in enumerate(network.demands)
            for target in demand.targets
            if (number, target) not in at
        ]
        if not open_:
            return min(best, max(at.values()))
        for start, end, number, place in sorted(moves(at, free)):
            order = (end if network.reverse else start, number, place)
            if end >= best or order < now:
                continue
            arc: Arc = network.demands[number].arcs[place]
            duration, held = costs(arc.link)
            taken = {
                e: (start + duration if network.reverse else start + h) for e, h in held.items()
            }
            best = search({**at, (number, arc.head): end}, {**free, **taken}, order, best)
        return best

    roots = {(number, demand.root): 0 for number, demand in enumerate(network.demands)}
    return search(roots, {}, (0,), best)


def solve_network(network: Network, *, batch: bool = False, floor: int = 0) -> Solution:
    """Solve the model of a network from the plain order of its greedy routes."""
    problem = network.problem
    hops = greedy_routes(network)
    rows = [(network.demands[hop.demand].chunk, hop.arc.link) for hop in hops]
    if network.reverse:
        rows.reverse()
    known = retime(
        problem.collective, problem.group, problem.chunk_size,
        Decisions.of([(c, link, n, network.reverse) for n, (c, link) in enumerate(rows)]),
    )  # fmt: skip
    options = replace(LONG, batch=batch)
    return solve_model(flows_of_networks([network]), known, options, 10.0, floor)


def timed(network: Network, solution: Solution) -> Schedule:
    """Return the schedule of a solution, which there must be."""
    problem = network.problem
    assert solution.decisions is not None
    return retime(problem.collective, problem.group, problem.chunk_size, solution.decisions)


@for_each("seed", range(12))
@for_each("rule", ["occupy", "delay"])
@for_each("reverse", [False, True])
def test_the_model_finds_what_a_search_through_everything_finds(
    seed: int, rule: str, reverse: bool
) -> None:
    network = small_network(seed, rule, reverse=reverse)
    most = 1 + sum(hop.end for hop in greedy_routes(network))
    solution = solve_network(network)
    assert solution.proved
    assert solution.bound == best_makespan(network, most)
    assert timed(network, solution).makespan == solution.bound


@pytest.mark.parametrize("floor", [0, 2020])
def test_a_proven_floor_does_not_change_the_optimum(floor: int) -> None:
    network = build_network(problem_of(ring4(), "allgather"))
    solution = solve_network(network, floor=floor)
    assert timed(network, solution).makespan == solution.bound == 2020


def test_own_chunks_leave_a_server_first() -> None:
    # A line of three servers: chunk 0 passes rank 1 only after chunk 1 has left both ways.
    hops: list[Hop] = [
        (a, b, 0, None, Fraction(1 if (a, b) != (1, 0) else 9))
        for a, b in ((0, 1), (1, 0), (1, 2), (2, 1))
    ]
    topology = build("line", 3, hops, server_of=(0, 1, 2))
    logical = replace(whole(topology), own_chunks_first=True)
    problem = problem_of(logical, "alltoall", chunk_size=1)
    schedule = exact(problem, LONG).schedule
    assert schedule is not None
    starts: dict[bool, list[int]] = {True: [], False: []}
    for send in schedule.sends():
        if topology.link(send.link).src == 1:
            starts[int(problem.collective.owner[send.chunk]) == 1].append(send.start)
    assert max(starts[True]) <= min(starts[False])


def test_two_chunks_of_a_rank_travel_together_where_alpha_is_dear() -> None:
    # One alpha of 10 ps and two chunks of 2 ps, instead of 24 ps; nothing can be faster.
    result = exact(problem_of(pair(), "allgather", chunks=2, chunk_size=1), LONG)
    assert result.schedule is not None
    assert (result.schedule.makespan, result.status) == (14, Status.OPTIMAL)
    single = exact(
        problem_of(pair(), "allgather", chunks=2, chunk_size=1), replace(LONG, batch=False)
    )
    assert single.schedule is not None
    assert (single.schedule.makespan, single.status) == (24, Status.OPTIMAL)


def test_chunks_travel_together_out_of_scratch_only_where_nothing_lies_between() -> None:
    # A line 0 - 1 - 2 where alpha is all: rank 1 relays what 0 and 2 send each other.
    hops: list[Hop] = [(a, b, 100, None, Fraction(1)) for a, b in ((0, 1), (1, 0), (1, 2), (2, 1))]
    problem = problem_of(build("line", 3, hops), "alltoall", chunks=2, chunk_size=1)
    result = exact(problem, LONG)
    assert result.schedule is not None
    assert result.status is Status.OPTIMAL
    assert not verify(result.schedule, problem.logical)
    # What rank 1 keeps and what it relays lie apart there: two messages of two, one way and on.
    assert result.schedule.makespan == 102 + 102


def test_a_sum_that_is_spread_may_be_made_anywhere() -> None:
    # On a line 0 - 1 - 2 all sums are best made in the middle: three chunks in, three chunks out.
    hops: list[Hop] = [(a, b, 100, None, Fraction(1)) for a, b in ((0, 1), (1, 0), (1, 2), (2, 1))]
    problem = problem_of(build("line", 3, hops), "allreduce", chunk_size=1)
    result = exact(problem, LONG)
    assert result.schedule is not None
    assert not verify(result.schedule, problem.logical)
    assert result.schedule.makespan == 103 + 103
    assert [bound.world for bound in result.bounds] == ["trees"]
    assert result.status is Status.FEASIBLE


def test_a_symmetric_optimum_is_not_called_optimal_for_all_schedules() -> None:
    # On orbits of four no bound is proved for the rest, so the whole problem is solved as well.
    problem = problem_of(load_topology("ring:4"), "allgather", chunks=2, symmetric=True)
    result = exact(problem, replace(LONG, batch=False))
    assert result.schedule is not None
    assert result.status is Status.OPTIMAL
    assert result.bounds[0].time == result.schedule.makespan


def test_a_problem_too_large_for_the_model_is_answered_without_proof() -> None:
    lines: list[str] = []
    problem = problem_of(load_topology("dgx2"), "alltoall")
    result = exact(problem, replace(LONG, time_limit=1.0, report=lines.append))
    assert result.schedule is not None
    assert not verify(result.schedule, problem.logical)
    assert any("intervals are more than 2500" in line for line in lines)
    assert result.bounds == ()


def test_what_holds_on_orbits_is_no_bound_where_a_sketch_asks_for_the_symmetry() -> None:
    # Order and messages need not be symmetric, so the optimum on orbits proves nothing.
    logical = replace(whole(load_topology("ring:4")), symmetry_asked=True, name="asked")
    problem = problem_of(logical, "alltoall", symmetric=True)
    assert len(problem.group) == 4
    result = exact(problem, LONG)
    assert result.bounds == ()
    assert result.status is Status.FEASIBLE

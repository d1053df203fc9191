"""The exact model against a search through all routings and orders."""

import random
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import pytest

from taccl.synth.exact import fits, schedule_exactly
from taccl.synth.greedy import greedy_routes
from taccl.synth.problem import Options
from taccl.synth.routes import Arc, Network, build_network
from taccl.topology import whole
from tests.generators import Hop, build, ring4
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


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("rule", ["occupy", "delay"])
@pytest.mark.parametrize("reverse", [False, True])
def test_the_model_finds_what_a_search_through_everything_finds(
    seed: int, rule: str, reverse: bool
) -> None:
    network = small_network(seed, rule, reverse=reverse)
    known = greedy_routes(network)
    hops = schedule_exactly(network, known, LONG, 10.0, 0)
    assert hops is not None
    assert max(hop.end for hop in hops) == best_makespan(network, 1 + sum(h.end for h in known))


@pytest.mark.parametrize("floor", [0, 2020])
def test_a_proven_floor_does_not_change_the_optimum(floor: int) -> None:
    network = build_network(problem_of(ring4(), "allgather"))
    hops = schedule_exactly(network, greedy_routes(network), LONG, 10.0, floor)
    assert hops is not None
    assert max(hop.end for hop in hops) == 2020


def test_own_chunks_leave_a_server_first() -> None:
    # A line of three servers: chunk 0 passes rank 1 only after chunk 1 has left both ways.
    hops: list[Hop] = [
        (a, b, 0, None, Fraction(1 if (a, b) != (1, 0) else 9))
        for a, b in ((0, 1), (1, 0), (1, 2), (2, 1))
    ]
    topology = build("line", 3, hops, server_of=(0, 1, 2))
    logical = replace(whole(topology), own_chunks_first=True)
    network = build_network(problem_of(logical, "alltoall", chunk_size=1))
    hops_ = schedule_exactly(network, greedy_routes(network), LONG, 10.0, 0)
    assert hops_ is not None
    own = [h.start for h in hops_ if h.arc.tail == 1 and network.demands[h.demand].root == 1]
    foreign = [h.start for h in hops_ if h.arc.tail == 1 and network.demands[h.demand].root != 1]
    assert max(own) <= min(foreign)


def test_a_model_of_too_many_intervals_does_not_fit() -> None:
    network = build_network(problem_of(ring4(), "allgather"))
    assert fits(network)
    assert not fits(replace(network, demands=network.demands * 200))
    assert not fits(replace(network, demands=()))

"""What must grow inside a server: never above what an algorithm takes, and above other bounds."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from taccl.bounds import any_bounds
from taccl.bounds.port_contention import (
    SCALE,
    UNIT,
    Grid,
    Port,
    Prices,
    Program,
    Server,
    port_contention_bound,
    program_of,
    proved,
    solved,
    too_short,
)
from taccl.model.problem import Options
from taccl.synth.search import solve
from taccl.topology.file import load_topology
from taccl.topology.graph import Topology, whole
from tests.sweep import for_each
from tests.synth.problems import QUICK, problem_of
from tests.synth.test_butterflies import nodes_of


def small(time: int = 2000) -> Program:
    """Return a program of two servers of four ranks at two NICs, in few cells."""
    inner, outer = Port(100, Fraction(50)), Port(300, Fraction(200))
    server = Server(4, 4, 2, inner, outer, inner, outer, 1)
    last = (time - 1) // 49 + 1
    windows = tuple(6 + (last - 5) * part // 3 for part in range(4))
    return program_of(server, Grid(49, last, windows))


FEW_RANKS = [(2, 1, 3, 1, "allgather"), (2, 1, 3, 100, "reducescatter")]
MORE_RANKS = [
    (4, 4, 2, 100, "allgather"), (8, 2, 2, 30, "allgather"), (4, 2, 2, 1, "reducescatter"),
    (6, 3, 2, 30, "reducescatter"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("gpus", "sharing", "count", "chunk", "collective"),
    [*FEW_RANKS, *(pytest.param(*row, marks=pytest.mark.slow) for row in MORE_RANKS)],
)
def test_it_is_never_above_what_an_algorithm_takes(
    gpus: int, sharing: int, count: int, chunk: int, collective: str
) -> None:
    topology = nodes_of(gpus, sharing, count)
    problem = problem_of(topology, collective, 1, Fraction(chunk))
    found = solve(problem, "guided", replace(QUICK, time_limit=1.0)).schedule
    assert found is not None
    assert not too_short(topology, collective, chunk * topology.num_ranks, found.makespan)


def least(topology: Topology, collective: str, size: int) -> int:
    """Return the best of the other bounds, but for the one that sees both as well."""
    bounds = any_bounds(whole(topology), collective, size)
    return max(bound.time for bound in bounds if bound.kind != "rounds")


def test_it_is_not_above_the_exact_optimum() -> None:
    topology, chunk = nodes_of(2, 2, 2), 50
    problem = problem_of(topology, "allgather", 1, Fraction(chunk))
    found = solve(problem, "exact", Options(time_limit=20.0, workers=1))
    assert found.schedule is not None
    size = chunk * topology.num_ranks
    low = least(topology, "allgather", size)
    assert (
        low < port_contention_bound(topology, "allgather", size, low, 3) <= found.schedule.makespan
    )


@pytest.mark.parametrize(
    "collective", [pytest.param("allgather", marks=pytest.mark.slow), "reducescatter"]
)
def test_it_sees_latency_and_data_together(collective: str) -> None:
    # 64 KB on two DGX-2: what does not see both says 3.8 us, the best schedule takes 6.1.
    topology, size = load_topology("dgx2", nodes=2), 1 << 16
    assert least(topology, collective, size) < 4_700_000
    assert too_short(topology, collective, size, 5_500_000)
    assert not too_short(topology, collective, size, 6_107_904)


def test_a_larger_share_can_be_done_in_more_time() -> None:
    shares = [share(program) for program in map(small, (800, 1200, 2000, 4000))]
    assert shares == sorted(shares)
    assert shares[0] < 1 < shares[-1]


def priced_or_fail(program: Program) -> Prices:
    prices = solved(program)
    assert prices is not None
    return prices


@for_each("seed", range(10), quick=4)
def test_whatever_prices_are_given_the_proof_holds(seed: int) -> None:
    # Duality: no prices prove less than what the best ones prove, but for rounding.
    program, chance = small(), np.random.default_rng(seed)
    prices = priced_or_fail(program)
    optimum = proved(program, prices)

    def shaken(values: Any) -> Any:  # noqa: ANN401 - an array or a number, as it was
        times = chance.uniform(0, 2, np.shape(values))
        return int(values * times) if isinstance(values, int) else (values * times).astype(np.int64)

    for change in (shaken, lambda values: 0 * values):
        worse = replace(prices, **{name: change(values) for name, values in vars(prices).items()})
        assert proved(program, worse) >= optimum * Fraction(99_999, 100_000)


@pytest.mark.parametrize("change", ["ranks", "outside", "gateways", "chunk", "overhead"])
def test_less_to_do_or_more_to_do_it_with_is_seen(change: str) -> None:
    program = small()
    server, inner = program.server, program.server.inner
    changed = {
        "ranks": replace(server, ranks=8),
        "outside": replace(server, outside=8),
        "gateways": replace(server, gateways=1),
        "chunk": replace(server, inner=inner._replace(chunk=4 * inner.chunk)),
        "overhead": replace(server, inner=inner._replace(overhead=3 * inner.overhead)),
    }[change]
    harder = program_of(changed, program.grid)
    assert share(harder) < share(program)


def share(program: Program) -> Fraction:
    return proved(program, priced_or_fail(program))


@pytest.mark.parametrize(
    ("topology", "collective"),
    [
        (load_topology("ring:8"), "allgather"),
        (load_topology("hub:8"), "allgather"),
        (load_topology("ndv2", nodes=2), "allgather"),
        (nodes_of(4, 2, 2).with_alpha_rule("delay"), "allgather"),
        (nodes_of(4, 2, 2), "alltoall"),
        (nodes_of(1, 1, 4), "allgather"),
    ],
)
def test_nothing_is_said_where_ports_are_otherwise(topology: Topology, collective: str) -> None:
    assert not too_short(topology, collective, 1 << 10, 1)
    assert port_contention_bound(topology, collective, 1 << 10, 5) == 5


def test_a_rank_outside_has_no_more_than_doubling_gives() -> None:
    port = Port(100, Fraction(50))
    server = Server(4, 4, 2, port, port, port, Port(10**9, Fraction(1)), 1)
    # After 100 + 50 it has two chunks, after 100 + 100 + 50 + 100 four.
    assert [server.held(time) for time in (0, 99, 100, 125, 150, 350)] == [
        UNIT, UNIT, UNIT, UNIT + UNIT // 2, 2 * UNIT, 4 * UNIT,
    ]  # fmt: skip


def test_prices_of_one_are_whole() -> None:
    assert SCALE % UNIT == 0

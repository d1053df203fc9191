"""The bound of one size: above the others where both count, and below every schedule."""

import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from taccl.bounds import ANY, POINT_TO_POINT, any_bounds, best, time_expanded
from taccl.bounds.net import make_net
from taccl.bounds.time_expanded import (
    FoldedNet,
    Grid,
    Prices,
    folded_net,
    is_proof,
    priced,
    program_of,
    time_expanded_time,
)
from taccl.collectives import TURNED, build_collective
from taccl.errors import NoScheduleError
from taccl.model.problem import Options, problem_of
from taccl.model.schedule import Schedule
from taccl.synth.search import solve
from taccl.topology.file import load_topology
from taccl.topology.graph import Topology, whole
from taccl.topology.symmetry import automorphisms
from tests.bounds.bound_networks import Row, build
from tests.generators import random_topology

SPOKEN_OF = ("allgather", "reducescatter", "allreduce", "alltoall", "broadcast", "reduce")


QUICK = Options(time_limit=0.2, deterministic=True, workers=1)


def raised(topology: Topology, name: str, size: int, seconds: float = 2.0) -> tuple[int, int]:
    """Return the best of all other bounds, and of all."""
    logical, world = whole(topology), POINT_TO_POINT
    known = best(any_bounds(logical, name, size, world=world)).time
    return known, best(any_bounds(logical, name, size, world=world, seconds=seconds)).time


def laid_out(topology: Topology, name: str, size: int, root: int | None = None) -> FoldedNet:
    """Return the network of a collective, as the program sees it."""
    made = build_collective(name, topology.num_ranks, 1, root)
    late = name in TURNED
    found = folded_net(
        make_net(whole(topology), made), TURNED.get(name, name), made.root, size,
        late=late,
    )  # fmt: skip
    assert found is not None
    return found


# --- where it is more than the others ----------------------------------------------------------


def test_latency_and_bandwidth_count_together_on_machines_with_few_links() -> None:
    for machine, name, size, more in (
        ("ring:8", "allreduce", 256_000, 1.25), ("ring:8", "allgather", 256_000, 1.2),
        ("ring:8", "reduce", 256_000, 1.2), ("hypercube:8", "alltoall", 256_000, 1.2),
        ("dgx1v", "allgather", 256_000, 1.1), ("dgx-h100", "alltoall", 256_000, 1.02),
        ("mi300x", "allreduce", 256_000, 1.15),
    ):  # fmt: skip
        known, found = raised(load_topology(machine), name, size)
        assert found > more * known, (machine, name, found / known)


def test_a_line_is_passed_through_in_messages_that_are_neither_long_nor_short() -> None:
    # 0 -> 1 -> 2, and 2 a of bytes: in n messages (n + 1) (a + 2 a / n), 6 a at least; all other
    # bounds see the bytes once (2 a) and two latencies.
    a, size = 700_000, 70_000
    line = load_topology("mesh2d:1x3@50GB/s,0.7us")
    assert (line.edges[0].alpha, line.edges[0].beta) == (a, Fraction(20))
    known, found = raised(line, "broadcast", size)
    assert known < 5 * a < found <= 6 * a


# --- no schedule is faster ---------------------------------------------------------------------


def drawn(seed: int) -> tuple[Topology, str, int, int | None]:
    """Return a random machine on which both count, a collective, bytes, and a root."""
    rng = random.Random(f"time-expanded {seed}")
    like = random_topology(seed)
    rule = rng.choice(("occupy", "occupy", "delay"))
    alphas = [rng.randint(400, 1200) for _ in like.edges]
    edges = tuple(
        replace(
            edge, alpha=alpha, overhead=rng.randint(0, alpha) if rng.random() < 0.1 else None,
            beta=edge.beta and Fraction(rng.choice((2, 3, 5, 8)), rng.choice((1, 1, 3))),
        )
        for edge, alpha in zip(like.edges, alphas, strict=True)
    )  # fmt: skip
    topology = replace(like, edges=edges).with_alpha_rule(rule)
    name = SPOKEN_OF[seed % len(SPOKEN_OF)]
    root = rng.randrange(topology.num_ranks) if name in ("broadcast", "reduce") else None
    size = build_collective(name, topology.num_ranks, 1, root).chunks_in_size * 8
    return topology, name, size * rng.choice((30, 60, 120)), root


def schedules(seed: int) -> Iterator[Schedule]:
    """Yield schedules that quick engines find in several chunk counts."""
    topology, name, size, root = drawn(seed)
    for chunks in (1, 3):
        made = build_collective(name, topology.num_ranks, chunks, root)
        for engine in ("flow", "flooding"):
            with suppress(NoScheduleError):
                found = solve(problem_of(topology, made, size), engine, QUICK).schedule
                if found is not None:
                    yield found


def test_no_schedule_is_faster_than_the_bound() -> None:
    higher = 0
    for seed in range(40):
        topology, name, size, root = drawn(seed)
        made = build_collective(name, topology.num_ranks, 1, root)
        known = best(any_bounds(whole(topology), made, size)).time
        found = best(any_bounds(whole(topology), made, size, seconds=0.5)).time
        higher += found > known
        least = min(schedule.makespan for schedule in schedules(seed))
        assert found <= least, (seed, name, topology.alpha_rule)
    assert higher >= 6


def test_no_prices_prove_what_a_schedule_disproves() -> None:
    # The judge alone, without a program: any whole numbers may be handed to it.
    tried = 0
    for seed in range(24):
        random, (topology, name, size, root) = np.random.default_rng(seed), drawn(seed)
        schedule = next(schedules(seed))
        network = laid_out(topology, name, size, root)
        for slots in (6, 13, 40):
            grid = Grid(network, -(-schedule.makespan // slots), slots)
            if grid.long > network.alpha.min():
                continue
            few = random.random(grid.allowed.shape) < 0.05
            for ways in (random.integers(0, 1000, few.shape), few.astype(np.int64)):
                prices = Prices(
                    ways, random.integers(0, 3, network.links.size.shape),
                    1 + random.integers(0, 1000, (len(network.resources.size), slots)), 1,
                )  # fmt: skip
                assert not is_proof(grid, prices), (seed, name)
                tried += 1
    assert tried > 40


def test_a_proof_does_not_survive_a_free_slot_or_cheaper_ways() -> None:
    network = laid_out(load_topology("ring:8"), "allreduce", 256_000)
    grid = Grid(network, 8_050_000 // 16, 16)
    prices, part = priced(program_of(grid))
    assert part < 1
    assert is_proof(grid, prices)
    longer = Grid(network, 9_400_000 // 16, 16)  # in 9.38 us it is done
    for wrong, at in (
        (prices._replace(slots=np.where(np.arange(16) == 5, 1, prices.slots)), grid),
        (prices._replace(ways=prices.ways // 2, sums=prices.sums // 2), grid),
        (prices._replace(average=prices.average + prices.slots.max()), grid), (prices, longer),
    ):  # fmt: skip
        assert not is_proof(at, wrong)


# --- what it is made from ----------------------------------------------------------------------


def test_orbits_give_what_all_links_one_by_one_do(monkeypatch: pytest.MonkeyPatch) -> None:
    for machine, name, root in (
        ("ring:4", "allgather", None), ("ring:4", "allreduce", None), ("ring:4", "alltoall", None),
        ("mesh2d:2x3", "broadcast", 1), ("hypercube:8", "reducescatter", None),
    ):  # fmt: skip
        topology = load_topology(machine)
        parts = []
        for generators in (automorphisms, lambda *_: None):
            monkeypatch.setattr(time_expanded, "automorphisms", generators)
            network = laid_out(topology, name, 32_000, root)
            parts.append(
                (priced(program_of(Grid(network, 400_000, 6)))[1], len(network.links.size))
            )
        assert parts[0][0] == pytest.approx(parts[1][0], rel=1e-4), (machine, name)
        assert parts[0][1] < parts[1][1]
        monkeypatch.undo()


def test_images_leave_the_root_alone() -> None:
    network = laid_out(load_topology("ring:6"), "broadcast", 60_000, 2)
    # Left and right of rank 2 are alike, and nothing else is: 3 distances, one of them opposite.
    assert sorted(network.pairs.size.tolist()) == [1, 1, 2, 2]


def test_a_sum_is_a_gather_turned_round() -> None:
    for seed in range(12):
        topology = drawn(seed)[0].with_alpha_rule("occupy")
        # Where an edge is free before a message arrives, that is another time turned round.
        edges = tuple(replace(edge, overhead=None) for edge in topology.edges)
        topology = replace(topology, edges=edges)
        for sums, gathers in TURNED.items():
            root = 0 if sums == "reduce" else None
            found = []
            for machine, name in ((topology, sums), (topology.reversed(), gathers)):
                made = build_collective(name, topology.num_ranks, 1, root)
                size = 80 * made.chunks_in_size
                known = best(any_bounds(whole(machine), made, size)).time
                found.append(
                    time_expanded_time(make_net(whole(machine), made), made, size, known, 0.3)
                )
            assert found[0] == pytest.approx(found[1], rel=0.02), (seed, sums)


def test_numbers_of_any_length_are_reckoned_with() -> None:
    # Bandwidths of many digits, a few picoseconds, a link that is a billion times slower.
    def ring(alpha: int, beta: Fraction, chord: int | None = None) -> Topology:
        rows: list[Row] = [
            (r, (r + way) % 4, alpha, None, beta) for r in range(4) for way in (1, 3)
        ]
        return build(4, rows if chord is None else [*rows, (0, 2, alpha, None, chord)])

    for digits in ("49.9999", "49.99999999", "49.99999999999", "49.999999999999999999"):
        exact = ring(10**6, Fraction(1000) / Fraction(digits))
        for name in SPOKEN_OF:
            made = build_collective(name, 4, 2, None)
            least = solve(problem_of(exact, made, 200_000), "guided", QUICK).schedule
            assert least is not None
            found = best(any_bounds(whole(exact), name, 200_000, seconds=1.0)).time
            assert found <= least.makespan, (digits, name)
    for name in SPOKEN_OF:
        for topology, size in (
            (ring(60, Fraction(1)), 40), (ring(3, Fraction(1)), 8),
            (ring(10**5, Fraction(1, 1000), 10**9), 10**8), (ring(10**9, Fraction(10**6)), 4000),
        ):  # fmt: skip
            assert best(any_bounds(whole(topology), name, size, seconds=0.5)).time > 0


def test_it_says_nothing_where_it_can_not() -> None:
    made = build_collective("allgather", 8, 1)
    net = make_net(whole(load_topology("ring:8")), made)
    assert time_expanded_time(net, made, 256_000, 3_640_000, 1e-9) == 3_640_000  # no time
    assert time_expanded_time(net, made, 256_000, 17_000_000, 5.0) == 17_000_000  # long slots
    gather = build_collective("gather", 8, 1)
    assert time_expanded_time(net, gather, 256_000, 3_640_000, 5.0) == 3_640_000
    adding = whole(load_topology("dgx-h100"))
    found = any_bounds(adding, "allreduce", 256_000, world=ANY, seconds=1.0)
    assert "time-expanded" not in {bound.kind for bound in found}

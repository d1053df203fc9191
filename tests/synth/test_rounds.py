"""Steps and rounds: by hand, as SCCL reports them, and against a search through all states."""

import random
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import combinations, pairwise, product

import numpy as np
import pytest

from benchmarks.sccl import CASES, Case, problem_for, solve
from taccl.collectives import build_collective
from taccl.errors import InputError, NoScheduleError
from taccl.model.problem import Options, Problem, Status
from taccl.synth.steps_rounds import (
    Answer,
    Rounds,
    Size,
    StepSend,
    answer,
    capacities,
    chunks_per_rank,
    rounds_decisions,
    schedule_of,
)
from taccl.topology.graph import Topology, whole
from taccl.topology.symmetry import make_group
from taccl.verify import require_valid
from tests.generators import Hop, build, ring4, star5, twin2x2
from tests.sweep import for_each
from tests.synth.problems import problem_of

COUNTED = Options(time_limit=20.0, deterministic=True, workers=1)
QUICK = Options(time_limit=60.0, workers=2)
"""Which algorithm is found may differ, but not whether one exists."""

EXISTS, NONE = Status.OPTIMAL, Status.INFEASIBLE

Wires = dict[tuple[int, int], int]
"""Chunks a round from one rank to another."""


def wired(ranks: int, wires: Wires) -> Topology:
    hops: list[Hop] = [(a, b, 7, None, Fraction(12, count)) for (a, b), count in wires.items()]
    return build("wired", ranks, hops)


def ring(ranks: int, *, both: bool, double: bool = False) -> Wires:
    """Return a ring; ``double`` makes the wires from even ranks twice as fast."""
    steps = (1, -1) if both else (1,)
    return {
        (a, (a + step) % ranks): 2 if double and a % 2 == 0 else 1
        for a in range(ranks)
        for step in steps
    }


def asked(topology: Topology, collective: str, *size: int) -> Answer:
    """Answer a question; what exists must become a correct schedule."""
    wanted = Size(*size)
    problem = problem_for(topology, collective, wanted.chunks)
    found = answer(problem, wanted, COUNTED, COUNTED.time_limit)
    if found.rounds is not None:
        follows_the_rounds(problem, found.rounds)
        require_valid(schedule_of(problem, found.rounds), problem.logical)
    return found


def follows_the_rounds(problem: Problem, rounds: Rounds) -> None:
    """Check steps, rounds and what each edge carries, apart from the model."""
    steps, total, _ = rounds.size
    assert len(rounds.rounds) == len(rounds.sends) == steps
    assert sum(rounds.rounds) == total
    assert min(rounds.rounds) >= 1
    table, capacity = problem.topology.links, capacities(problem.topology)
    for share, step in zip(rounds.rounds, rounds.sends, strict=True):
        load = [edge for send in step for edge in table.edges_of(send.link)]
        assert all(load.count(edge) <= capacity.get(edge, len(load)) * share for edge in load)


# By hand.


@pytest.mark.parametrize(
    ("size", "status"),
    [
        # Each rank is three hops from the last, and takes in three chunks, one a round.
        ((3, 3, 1), EXISTS), ((2, 3, 1), NONE), ((3, 5, 2), NONE), ((3, 6, 2), EXISTS),
        ((4, 6, 2), EXISTS),
    ],
)  # fmt: skip
def test_allgather_on_a_one_way_ring(size: tuple[int, int, int], status: Status) -> None:
    assert asked(wired(4, ring(4, both=False)), "allgather", *size).status is status


@pytest.mark.parametrize(
    ("size", "status"),
    [
        # Both neighbours' chunks in the first step, the opposite one in the second, by one side.
        ((2, 2, 1), EXISTS), ((1, 2, 1), NONE),
        # Six chunks take three rounds from two sides. In one round of the first step a rank gets
        # two of its neighbours' four, then in two rounds four more: all that are left.
        ((2, 3, 2), EXISTS), ((2, 2, 2), NONE),
    ],
)  # fmt: skip
def test_allgather_on_a_ring_both_ways(size: tuple[int, int, int], status: Status) -> None:
    assert asked(wired(4, ring(4, both=True)), "allgather", *size).status is status


def test_a_wire_of_twice_the_bandwidth_carries_two_chunks_a_round() -> None:
    assert asked(wired(2, {(0, 1): 2, (1, 0): 2}), "allgather", 1, 2, 2).status is EXISTS
    assert asked(wired(2, {(0, 1): 2, (1, 0): 1}), "allgather", 1, 2, 2).status is EXISTS
    found = asked(wired(2, {(0, 1): 2, (1, 0): 1}), "allgather", 1, 1, 2)
    assert found.status is NONE
    assert found.reason == "rank 0 has to take in 2 chunks, and can take in 1 in 1 rounds"


def test_a_chunk_is_sent_on_only_in_a_later_step() -> None:
    line: Wires = {(0, 1): 4, (1, 0): 4, (1, 2): 1, (2, 1): 1}
    found = asked(wired(3, line), "alltoall", 1, 9, 1)
    assert (found.status, found.reason) == (
        NONE, "rank 2 is 2 hops from rank 0, so steps: 2 at least",
    )  # fmt: skip
    # Rank 2's wire carries the chunks of ranks 0 and 1: two rounds, chunk 1 -> 2 in the first.
    assert asked(wired(3, line), "alltoall", 2, 2, 1).status is EXISTS


def test_every_edge_of_a_path_through_a_switch_counts() -> None:
    # star5: two chunks a round up to the switch, one down; four chunks have to come down.
    assert asked(star5(), "allgather", 1, 4, 1).status is EXISTS
    assert asked(star5(), "allgather", 1, 3, 1).status is NONE
    # Broadcast: four in one step take two rounds up; after one round there are three to send.
    assert asked(star5(), "broadcast", 1, 1, 1).status is NONE
    assert asked(star5(), "broadcast", 1, 2, 1).status is EXISTS
    assert asked(star5(), "broadcast", 2, 2, 1).status is EXISTS


def test_edges_without_bandwidth_carry_any_number() -> None:
    # twin2x2: wires carry four chunks for one of the shared NIC; its ports to the ranks are free.
    # Two chunks leave each server, and spread inside the other in a step of its own.
    assert asked(twin2x2(), "allgather", 2, 3, 1).status is EXISTS
    assert asked(twin2x2(), "allgather", 2, 2, 1).status is NONE
    free = build("free", 2, [(0, 1, 5, None, None), (1, 0, 5, None, Fraction(1))])
    assert capacities(free) == {1: 1}
    assert asked(free, "allgather", 1, 3, 3).status is EXISTS


@pytest.mark.parametrize("collective", ["broadcast", "reduce", "gather", "scatter"])
def test_collectives_with_a_root(collective: str) -> None:
    # Two hops; the root's two wires carry three chunks of a gather in two rounds, one a
    # broadcast.
    topology = wired(4, ring(4, both=True))
    assert asked(topology, collective, 2, 2, 1).status is EXISTS
    assert asked(topology, collective, 1, 2, 1).status is NONE
    full = {"gather": 2, "scatter": 2}.get(collective, 4)
    assert asked(topology, collective, 2, 2, full + 1).status is NONE


def test_allreduce_by_exchanges_inside_pairs_and_across() -> None:
    # Recursive doubling on a square: each step doubles what a value contains.
    topology = wired(4, ring(4, both=True))
    found = asked(topology, "allreduce", 2, 2, 1)
    assert found.status is EXISTS
    assert found.rounds is not None
    assert all(len(step) >= 4 for step in found.rounds.sends)


def test_allreduce_by_two_halves() -> None:
    # Reduce-scatter 2/2 and allgather 2/2 of one chunk a rank make 4/4/4: 24 sends of 32.
    topology = wired(4, ring(4, both=True))
    found = asked(topology, "allreduce", 4, 4, 4)
    assert found.status is EXISTS
    assert found.rounds is not None
    sums = [{send.reduce for send in step} for step in found.rounds.sends]
    assert sums == [{True}, {True}, {False}, {False}]


def test_an_allreduce_that_is_no_two_halves_is_searched_for() -> None:
    # A gather takes two steps on the square, and half of two is one.
    found = asked(wired(4, ring(4, both=True)), "allreduce", 2, 8, 4)
    assert found.status is EXISTS
    assert found.rounds is not None
    assert all(send.reduce for send in found.rounds.sends[0])


def test_allreduce_takes_two_sends_a_chunk_for_all_ranks_but_one() -> None:
    # Six sends a chunk, eight a round.
    found = asked(wired(4, ring(4, both=True)), "allreduce", 4, 4, 6)
    assert (found.status, found.reason) == (
        NONE, "the chunks take 36 sends, and 4 rounds have room for 32",
    )  # fmt: skip


def turning(topology: Topology) -> Problem:
    """Return an allreduce of one chunk with the rotation of a ring as its symmetry."""
    ranks = topology.num_ranks
    rotation = tuple((rank + 1) % ranks for rank in range(ranks))
    return replace(problem_for(topology, "allreduce", 1), group=make_group(topology, [rotation]))


def test_an_allreduce_is_found_by_symmetry() -> None:
    # Eight ranks add their left neighbour's value, then that of rank r-2, then of r-4.
    hops = [(a, (a + step) % 8, 7, None, Fraction(1)) for a in range(8) for step in (1, 2, 4)]
    problem = turning(build("circulant", 8, hops))
    found = answer(problem, Size(3, 3, 1), COUNTED, 9.0)
    assert found.rounds is not None
    require_valid(schedule_of(problem, found.rounds), problem.logical)
    table = problem.topology.links
    for step in found.rounds.sends:
        ends = {(int(table.src[send.link]), int(table.dst[send.link])) for send in step}
        assert ends == {((a + 1) % 8, (b + 1) % 8) for a, b in ends}


@pytest.mark.parametrize(("steps", "status"), [(4, EXISTS), (3, NONE)])
def test_where_symmetry_finds_no_allreduce_all_are_searched(steps: int, status: Status) -> None:
    # One way round three ranks, what each adds in step 2 is in part there. So a sum goes to
    # one rank in two steps, and from it to the others in two more.
    problem = turning(wired(3, ring(3, both=False)))
    assert answer(problem, Size(steps, steps, 1), COUNTED, 9.0).status is status


def test_symmetries_that_a_sketch_breaks_are_not_used() -> None:
    problem = turning(wired(4, ring(4, both=True)))
    logical = problem.logical
    allowed = np.arange(len(logical.allowed)) != 1
    found = answer(
        replace(problem, logical=replace(logical, allowed=allowed)), Size(4, 4, 1), COUNTED, 9.0
    )
    assert found.rounds is not None
    assert 1 not in {send.link for step in found.rounds.sends for send in step}


def test_the_chunks_of_an_allreduce_count_the_whole_buffer() -> None:
    assert [chunks_per_rank("allreduce", 8, chunks) for chunks in (1, 2, 3, 8, 12)] == [
        1, 1, 3, 1, 3,
    ]  # fmt: skip
    assert chunks_per_rank("allgather", 8, 3) == 3
    problem = problem_for(wired(2, ring(2, both=False)), "allreduce", 1)
    rounds = Rounds(Size(1, 1, 1), (1,), ((StepSend(0, 0, reduce=True), StepSend(0, 1, True)),))
    decisions = rounds_decisions(problem, rounds)
    assert list(decisions.rows()) == [
        (0, 0, 0, True), (1, 0, 0, True), (0, 1, 1, True), (1, 1, 1, True),
    ]  # fmt: skip
    assert decisions.visible_from is not None
    assert decisions.visible_from.tolist() == [4, 4, 4, 4]


def test_one_rank_needs_nothing() -> None:
    found = asked(build("one", 1, []), "allgather", 2, 3, 1)
    assert (found.status, found.rounds) == (EXISTS, Rounds(Size(2, 3, 1), (2, 1), ((), ())))


@for_each("case", CASES, ids=lambda case: f"{case.collective} {case.size}")
def test_a_dgx1_as_sccl_reports_it(case: Case) -> None:
    found, makespan = solve(case, QUICK)
    assert found.status is (EXISTS if case.exists else NONE)
    assert (makespan is not None) == case.exists


# Against a search through all synchronous states.


def splits(rounds: int, steps: int) -> Iterator[tuple[int, ...]]:
    for cuts in combinations(range(1, rounds), steps - 1):
        marks = (0, *cuts, rounds)
        yield tuple(b - a for a, b in pairwise(marks))


def exists_by_search(ranks: int, wires: Wires, collective: str, size: Size) -> bool:
    """Tell whether some share of the rounds and some sends make the collective.

    A state tells for every entry which ranks' bits it has: where a chunk is, or, in an allreduce,
    what is in its value at a rank.
    """
    everyone = (1 << ranks) - 1
    pairs = list(product(range(ranks), repeat=2))
    start, full = {
        "allgather": ([1 << r for r in range(ranks)], [everyone] * ranks),
        "alltoall": ([1 << a for a, _ in pairs], [1 << b for _, b in pairs]),
        "allreduce": ([1 << r for r in range(ranks)], [everyone] * ranks),
    }[collective]
    start, full = start * size.chunks, full * size.chunks
    for shares in splits(size.rounds, size.steps):
        states = {tuple(start)}
        for share in shares:
            states = {
                after
                for state in states
                for after in (
                    next_sums(ranks, wires, state, share)
                    if collective == "allreduce"
                    else next_copies(wires, state, full, share)
                )
            }
        if any(all(h & f == f for h, f in zip(s, full, strict=True)) for s in states):
            return True
    return False


def next_copies(
    wires: Wires, state: tuple[int, ...], full: list[int], share: int
) -> set[tuple[int, ...]]:
    """Return where chunks may be after a step.

    More is never worse, so every wire carries as many chunks as it can of those that are new at
    its end and still wanted anywhere.
    """
    wanted = [c for c, held in enumerate(state) if held & full[c] != full[c]]
    after = {state}
    for (a, b), count in wires.items():
        new = [c for c in wanted if state[c] >> a & 1 and not state[c] >> b & 1]
        after = {
            tuple(h | (1 << b if c in taken else 0) for c, h in enumerate(other))
            for other in after
            for taken in combinations(new, min(len(new), count * share))
        }
    return after


def next_sums(ranks: int, wires: Wires, state: tuple[int, ...], share: int) -> set[tuple[int, ...]]:
    """Return what values may contain after a step: entry c*n+r is chunk c at rank r."""
    chunks = len(state) // ranks
    at_rank: list[set[tuple[int, ...]]] = []
    for rank in range(ranks):
        into = [(a, count) for (a, b), count in wires.items() if b == rank]
        found: set[tuple[tuple[int, ...], tuple[int, ...]]] = {((0,) * len(into), ())}
        for c in range(chunks):
            here = state[c * ranks + rank]
            options = list(arrivals(here, [state[c * ranks + a] for a, _ in into]))
            found = {
                (tuple(np.add(used, more).tolist()), (*values, value))
                for used, values in found
                for more, value in options
            }
        room = [count * share for _, count in into]
        at_rank.append({
            values
            for used, values in found
            if all(u <= r for u, r in zip(used, room, strict=True))
        })  # fmt: skip
    return {
        tuple(values[c] for c in range(chunks) for values in joint) for joint in product(*at_rank)
    }


def arrivals(here: int, sent: list[int]) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield (sends by wire, value after) for one chunk at one rank."""
    for wires in product((0, 1), repeat=len(sent)):
        parts = [here, *(value for value, used in zip(sent, wires, strict=True) if used)]
        total = 0
        for part in parts:
            total |= part
        if sum(part.bit_count() for part in parts) == total.bit_count():
            yield wires, total
    for number, value in enumerate(sent):
        if value & here == here:
            yield tuple(int(i == number) for i in range(len(sent))), value


def random_case(seed: int, collective: str) -> tuple[int, Wires, Size]:
    """Return a ring of 2 to 4 ranks with more wires, and a size near what it can do."""
    rng = random.Random(f"rounds {collective} {seed}")
    ranks = rng.choice((2, 3, 3, 4))
    wires: Wires = {(a, (a + 1) % ranks): rng.randint(1, 2) for a in range(ranks)}
    for _ in range(rng.randrange(ranks + 1)):
        a, b = rng.sample(range(ranks), 2)
        wires.setdefault((a, b), rng.randint(1, 2))
    wires[0, 1] = 1  # the unit is one chunk
    steps = rng.randint(1, 2 if ranks == 4 else 3)
    small = ranks == 2 or (collective != "alltoall" and ranks == 3 and steps < 3)
    chunks = rng.randint(1, 3 if ranks == 2 else 2) if small else 1
    return ranks, wires, Size(steps, steps + rng.randrange(3), chunks)


@for_each("collective", ["allgather", "alltoall", "allreduce"])
@for_each("seed", range(14))
def test_the_model_says_what_a_search_through_all_states_says(seed: int, collective: str) -> None:
    ranks, wires, size = random_case(seed, collective)
    found = asked(wired(ranks, wires), collective, *size)
    assert found.status is (EXISTS if exists_by_search(ranks, wires, collective, size) else NONE)


@for_each("seed", range(8))
def test_a_reducescatter_exists_where_an_allgather_exists_on_wires_turned_round(seed: int) -> None:
    ranks, wires, size = random_case(seed, "allgather")
    turned = {(b, a): count for (a, b), count in wires.items()}
    there = asked(wired(ranks, wires), "allgather", *size)
    back = asked(wired(ranks, turned), "reducescatter", *size)
    assert there.status is back.status


# What can't be answered.


@pytest.mark.parametrize("chunks", [4, 5])
@pytest.mark.parametrize("deterministic", [True, False])
def test_what_time_does_not_suffice_for_is_unknown(chunks: int, deterministic: bool) -> None:
    problem = problem_for(wired(4, ring(4, both=True)), "allreduce", chunks)
    options = replace(COUNTED, deterministic=deterministic)
    found = answer(problem, Size(4, 4, chunks), options, 0.0)
    assert (found.status, found.rounds) == (Status.TIME_LIMIT, None)
    assert "did not suffice" in found.reason


def test_an_interrupted_search_is_unknown() -> None:
    options = Options(deterministic=True, workers=1)
    options.stop.set()
    problem = problem_for(wired(4, ring(4, both=True)), "allreduce", 5)
    found = answer(problem, Size(4, 4, 5), options, 1e-6)
    assert (found.status, found.rounds) == (Status.INTERRUPTED, None)


@pytest.mark.parametrize(
    ("size", "match"),
    [
        (Size(0, 1, 1), "--steps: should be at least 1, got 0"),
        (Size(1, 0, 1), "--rounds: should be at least 1, got 0"),
        (Size(1, 1, -1), "--chunks: should be at least 1, got -1"),
        (Size(3, 2, 1), r"--rounds: should be from 3 \(one for every step\)"),
        (Size(1, 10**9, 1), "--rounds: should be from 1 .* to 10000, got 1000000000"),
        (Size(10_000, 10_000, 9), "--steps: 10000 steps of 9 chunks on 8 links make a model"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(size: Size, match: str) -> None:
    with pytest.raises(InputError, match=match):
        answer(problem_of(ring4(), "allgather"), size, COUNTED, 1.0)


@pytest.mark.parametrize("collective", ["alltoall", "allreduce"])
def test_models_that_are_too_large_are_refused(collective: str) -> None:
    problem = problem_of(wired(8, ring(8, both=True)), collective, 5)
    with pytest.raises(InputError, match=r"unknowns, more than 600000"):
        answer(problem, Size(9000, 9000, 40 if collective == "allreduce" else 5), COUNTED, 1.0)


def test_networks_that_are_too_large_are_refused() -> None:
    wires = {(a, b): 1 for a in range(40) for b in range(40) if a != b}
    with pytest.raises(InputError, match="has 2496000 choices of a link for a chunk, more than"):
        answer(problem_of(wired(40, wires), "alltoall"), Size(1, 1, 1), COUNTED, 1.0)


@pytest.mark.parametrize("betas", [(Fraction(1), Fraction(65)), (Fraction(106), Fraction(23))])
def test_bandwidths_without_a_small_common_measure_are_refused(
    betas: tuple[Fraction, Fraction],
) -> None:
    topology = build("odd", 2, [(0, 1, 0, None, betas[0]), (1, 0, 0, None, betas[1])])
    with pytest.raises(InputError, match=r"--rounds: the bandwidths of odd have no common measure"):
        answer(problem_of(topology, "allgather"), Size(1, 1, 1), COUNTED, 1.0)


def test_the_unit_need_not_be_the_bandwidth_of_an_edge() -> None:
    topology = build("two-three", 2, [(0, 1, 0, None, Fraction(3)), (1, 0, 0, None, Fraction(2))])
    assert capacities(topology) == {0: 2, 1: 3}


def test_collectives_of_files_have_no_steps_and_rounds() -> None:
    problem = problem_of(ring4(), "allgather")
    other = replace(problem, collective=replace(problem.collective, name="mine"))
    with pytest.raises(InputError, match="steps and rounds are not defined for mine"):
        answer(other, Size(2, 2, 1), COUNTED, 1.0)


def test_sketches_may_close_links_and_nothing_more() -> None:
    topology = wired(4, ring(4, both=True))
    logical = whole(topology)
    backwards = (topology.links.dst - topology.links.src) % 4 == 3
    one_way = replace(logical, allowed=~backwards)
    problem = problem_of(one_way, "allgather")
    assert answer(problem, Size(2, 3, 1), COUNTED, 9.0).status is NONE
    found = answer(problem, Size(3, 3, 1), COUNTED, 9.0)
    assert found.rounds is not None
    require_valid(schedule_of(problem, found.rounds), one_way)
    extra = problem_of(replace(logical, max_extra_hops=0, own_chunks_first=True), "allgather")
    with pytest.raises(InputError, match="the sketch limits max_extra_hops, own_chunks_first,"):
        answer(extra, Size(2, 2, 1), COUNTED, 1.0)


def test_a_rank_out_of_reach_is_named() -> None:
    with pytest.raises(NoScheduleError, match="no allowed path from rank 1 to rank 0"):
        answer(problem_of(wired(2, {(0, 1): 1}), "allgather"), Size(1, 1, 1), COUNTED, 1.0)


def test_exchanges_by_one_port_have_no_times() -> None:
    # One step: every rank sends its value to all others by one port, while theirs come in.
    topology = star5()
    size = Size(1, 4, 1)
    problem = problem_for(topology, "allreduce", 1)
    found = answer(problem, size, COUNTED, 9.0)
    assert found.status is EXISTS
    assert found.rounds is not None
    follows_the_rounds(problem, found.rounds)
    with pytest.raises(NoScheduleError, match="only where a step ends everywhere at once"):
        schedule_of(problem, found.rounds)


def test_the_problem_must_have_the_chunks_of_the_question() -> None:
    problem = replace(
        problem_of(ring4(), "allgather"), collective=build_collective("allgather", 4, 2)
    )
    with pytest.raises(ValueError, match="has 2 chunks for each rank, 3 are asked for"):
        answer(problem, Size(2, 9, 3), COUNTED, 1.0)

"""Which chunks may follow each other in a message, and what a message of so many costs."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taccl.collectives.slots import INPUT, OUTPUT, SCRATCH, place_chunks
from taccl.model.problem import Problem
from taccl.synth.exact.model import Neighbours, Pair, flows_of, rounded_line
from tests.generators import Hop, build, pair, random_problem, ring4
from tests.sweep import for_each
from tests.synth.problems import problem_of

COLLECTIVES = ["allgather", "reducescatter", "allreduce", "alltoall", "broadcast", "reduce"]


def pairs_of(problem: Problem) -> list[Pair]:
    """Return the pairs of all links."""
    found = Neighbours(flows_of(problem))
    return [one for (link, _), of in found.by_link.items() for one in found.pairs(link, of)]


def line() -> Problem:
    """Return an AlltoAll on 0 - 1 - 2: chunk 2 goes 0 -> 2 and chunk 6 goes 2 -> 0, by way of 1."""
    hops: list[Hop] = [(a, b, 100, None, Fraction(1)) for a, b in ((0, 1), (1, 0), (1, 2), (2, 1))]
    return problem_of(build("line", 3, hops), "alltoall", chunk_size=1)


def test_two_chunks_of_an_owner_follow_each_other_in_either_buffer() -> None:
    # Rank 0 owns chunks 0 and 1, which it may read from its input or, once copied, its output.
    found = pairs_of(problem_of(pair(), "allgather", 2))
    assert [(one.first, one.second, one.buffer) for one in found] == [
        (0, 1, INPUT), (0, 1, OUTPUT), (2, 3, INPUT), (2, 3, OUTPUT),
    ]  # fmt: skip
    assert not any(one.behind or one.present or one.arrivals for one in found)


def test_chunks_that_land_in_different_buffers_never_travel_together() -> None:
    # Of chunks 1 (0 -> 1) and 2 (0 -> 2) rank 1 keeps one in its output, the other in scratch.
    together = {(one.first, one.second) for one in pairs_of(line())}
    flows = flows_of(line()).flows
    numbers = {flow.chunk: number for number, flow in enumerate(flows)}
    assert (numbers[1], numbers[2]) not in together


def test_relayed_chunks_follow_each_other_where_nothing_lies_between() -> None:
    problem = problem_of(ring4(), "alltoall", 2)
    scratch = [one for one in pairs_of(problem) if one.buffer == SCRATCH]
    assert scratch
    flows, collective = flows_of(problem).flows, problem.collective
    for one in scratch:
        chunks = flows[one.first].chunk, flows[one.second].chunk
        assert {behind[:2] for behind in one.behind} == {chunks}
        assert all(not collective.is_target(chunk, behind[2]) for chunk in chunks
                   for behind in one.behind)  # fmt: skip


@for_each("collective", COLLECTIVES)
@for_each("symmetric", [False, True])
def test_pairs_that_ask_for_nothing_are_adjacent_whatever_else_is_sent(
    collective: str, symmetric: bool
) -> None:
    if symmetric and collective in ("broadcast", "reduce"):
        symmetric = False
    problem = problem_of(ring4(), collective, 2, symmetric=symmetric)
    found = Neighbours(flows_of(problem))
    slots = place_chunks(problem.collective, [])
    for (link, summed), numbers in found.by_link.items():
        src, dst = found.flows.ends_of(link)
        for one in found.pairs(link, numbers):
            if one.behind:
                continue
            chunks = [found.flows.flows[n].chunk for n in (one.first, one.second)]
            arrived = [any(n == of and yes for of, _, yes in one.arrivals) for n in one[:2]]
            assert slots.adjacent(chunks, src, dst, arrived, reduce=summed)


@for_each("collective", COLLECTIVES)
@for_each("seed", range(6))
def test_pairs_are_no_more_than_were_counted_beforehand(seed: int, collective: str) -> None:
    problem = random_problem(seed, collective)
    assert len(pairs_of(problem)) <= Neighbours(flows_of(problem)).most


@given(st.integers(1, 30), st.integers(1, 400), st.integers(0, 10**6), st.integers(-(10**6), 10**6))
def test_a_line_rounded_up_is_found_again(count: int, run: int, rise: int, offset: int) -> None:
    times = tuple(-(-(rise * n + offset) // run) for n in range(1, count + 1))
    found = rounded_line(times)
    assert found is not None
    assert times == tuple(-(-(found[0] * n + found[2]) // found[1]) for n in range(1, count + 1))
    assert found[1] <= max(1, count - 1)


@pytest.mark.parametrize(
    ("times", "line_"),
    [((7,), (0, 1, 7)), ((3, 5, 7), (2, 1, 1)), ((1, 1, 2, 2), (1, 2, 0)), ((1, 2, 5), None)],
)
def test_lines_by_hand(times: tuple[int, ...], line_: tuple[int, int, int] | None) -> None:
    assert rounded_line(times) == line_

"""Exact times: the pass on arrays, plain and compiled, says what a pass over records says."""

from collections import defaultdict
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from taccl.collectives import COLLECTIVES
from taccl.model.problem import Problem
from taccl.model.schedule import Decisions, message_groups, retime
from taccl.timing.retiming import MAX_PASSES, Columns, times_of
from taccl.topology.file import load_topology
from taccl.topology.symmetry import make_group
from tests.generators import random_decisions, random_problem, ring4
from tests.sweep import for_each
from tests.synth.problems import problem_of


def starts_by_record(problem: Problem, decisions: Decisions) -> list[int]:
    """Return when every row starts, by looking through all earlier rows for each."""
    held_back: dict[int, int] = {}
    for _ in range(MAX_PASSES):
        start, early = _one_pass(problem, decisions, held_back)
        if not early:
            return start
        held_back |= early
    raise ValueError("arrivals and reads of summed chunks wait for each other in a ring")


def _one_pass(
    problem: Problem, decisions: Decisions, held_back: dict[int, int]
) -> tuple[list[int], dict[int, int]]:
    topology, collective, group = problem.topology, problem.collective, problem.group
    rows = list(decisions.rows())
    visible = (
        range(1, len(rows) + 1)
        if decisions.visible_from is None
        else decisions.visible_from.tolist()
    )
    ends = [(int(topology.links.src[row[1]]), int(topology.links.dst[row[1]])) for row in rows]
    free: dict[int, int] = defaultdict(int)
    start: list[int] = []
    end: list[int] = []
    early: dict[int, int] = {}
    for message in message_groups(decisions.batch):
        link, size = rows[message[0]][1], len(message) * problem.chunk_size
        duration, time = topology.arrival(link, size), 0
        edges = [e for e in topology.links.edges_of(link) if topology.edges[e].beta is not None]
        for row in message:
            chunk, (src, dst) = rows[row][0], ends[row]
            here = [n for n in range(len(start)) if (rows[n][0], ends[n][1]) == (chunk, src)]
            own = collective.is_source(chunk, src)
            seen = [end[n] for n in here if visible[n] <= row or not collective.reduces]
            if not seen and not own:
                raise ValueError(f"chunk {chunk} is sent by rank {src} before it arrives there")
            time = max([time, *seen]) if collective.reduces or not own else time
            if collective.reduces:
                there = [n for n in range(len(start)) if (rows[n][0], ends[n][1]) == (chunk, dst)]
                changes = [end[n] for n in there if not rows[n][3]][-1:]
                if not rows[row][3]:
                    changes = [end[n] for n in there]
                reads = [start[n] for n in range(len(start)) if
                         (rows[n][0], ends[n][0]) == (chunk, dst)]  # fmt: skip
                after = max([-1, *changes, *reads]) + 1
                time = max(time, after - duration, held_back.get(row, 0) - duration)
        time = max([time, *(free[int(group.edge_orbit[edge])] for edge in edges)])
        for edge in edges:
            free[int(group.edge_orbit[edge])] = time + topology.busy(link, edge, size)
        for row in message:
            here = [n for n in range(len(start)) if
                    (rows[n][0], ends[n][1]) == (rows[row][0], ends[row][0])]  # fmt: skip
            if collective.reduces:
                early |= {n: time + 1 for n in here if visible[n] > row and end[n] <= time}
        start += [time] * len(message)
        end += [time + duration] * len(message)
    return start, early


def delayed(decisions: Decisions, seed: int) -> Decisions:
    """Return decisions of which some arrivals are visible a few rows later."""
    random, rows = np.random.default_rng(seed), len(decisions.chunk)
    later = random.integers(0, 6, rows) * (random.random(rows) < 0.4)
    visible = np.minimum(np.arange(1, rows + 1) + later, rows).astype(np.int32)
    return replace(decisions, visible_from=visible)


def timed_both_ways(problem: Problem, decisions: Decisions) -> list[list[int]]:
    """Return when every row starts: by the plain functions, and by compiled ones."""
    columns = Columns(decisions.chunk, decisions.link, decisions.batch, decisions.reduce)
    asked = (problem.collective, problem.group, problem.chunk_size, columns, decisions.visible_from)
    return [times_of(*asked, plain=plain)[0].tolist() for plain in (True, False)]


@for_each("collective", COLLECTIVES, quick=20)
@for_each("seed", range(6))
def test_plain_and_compiled_passes_agree_with_records_to_the_picosecond(
    seed: int, collective: str
) -> None:
    problem = random_problem(seed, collective)
    for decisions in (drawn := random_decisions(problem, seed), delayed(drawn, seed)):
        try:
            expected = starts_by_record(problem, decisions)
        except ValueError as error:
            with pytest.raises(ValueError, match=str(error)):
                timed_both_ways(problem, decisions)
            continue
        assert timed_both_ways(problem, decisions) == [expected, expected]


def test_orbits_are_what_a_message_holds() -> None:
    # 1 -> 2 is the image of 0 -> 1, so the second message waits for the first: 1 us and 1000 bytes.
    network = load_topology("ring:4@1GB/s,1us")
    problem = problem_of(network, "allgather", symmetric=True)
    right = [network.links_between(rank, rank + 1)[0] for rank in range(2)]
    decisions = Decisions.of([(0, right[0], 0, False), (0, right[1], 1, False)])
    timed = retime(problem.collective, problem.group, Fraction(1000), decisions)
    assert timed.start.tolist() == [0, 2_000_000]
    apart = retime(problem.collective, make_group(network, ()), Fraction(1000), Decisions.of([
        (0, right[0], 0, False), (1, right[1], 1, False),
    ]))  # fmt: skip
    assert apart.start.tolist() == [0, 0]


def test_a_send_before_every_arrival_is_refused() -> None:
    problem = problem_of(ring4(), "allgather")
    link = problem.topology.links_between(1, 2)[0]
    sent = Decisions.of([(0, link, 0, False)])
    for reduces in (False, True):
        summed = replace(problem, collective=replace(problem.collective, reduces=reduces))
        with pytest.raises(ValueError, match="chunk 0 is sent by rank 1 before it arrives there"):
            timed_both_ways(summed, sent)

"""The rule on ranks of shortest paths: it agrees with a plain reading of TACCL's sets."""

import itertools
import random
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from taccl.collectives import build_collective
from taccl.model.schedule import Schedule
from taccl.topology.graph import LogicalTopology, Topology, whole
from taccl.verify import verify
from tests.generators import both_ways, build, random_schedule, timed

Row = tuple[int, int]


def ring5() -> Topology:
    hops = [hop for r in range(5) for hop in both_ways(r, (r + 1) % 5, 10, Fraction(1))]
    return build("ring5", 5, hops)


def chain(schedule_of: Topology, collective: str, chunk: int, *ranks: int) -> Schedule:
    """Return a chunk's way over some ranks, 15 ps a hop."""
    sums = collective == "reducescatter"
    rows = [
        (chunk, hop, 15 * i, 15 * i + 15, i, sums)
        for i, hop in enumerate(itertools.pairwise(ranks))
    ]
    return timed(schedule_of, collective, rows)


def strict(topology: Topology, **fields: object) -> LogicalTopology:
    return replace(whole(topology), on_shortest_paths=True, **fields)  # type: ignore[arg-type]


def found(schedule: Schedule, logical: LogicalTopology) -> list[int | None]:
    return [v.send for v in verify(schedule, logical) if v.rule == "on_shortest_paths"]


# Chunk 2 of the all-to-all on five ranks goes from 0 to 2.


def test_a_way_with_the_fewest_hops_is_accepted() -> None:
    assert found(chain(ring5(), "alltoall", 2, 0, 1, 2), strict(ring5())) == []


def test_a_way_round_over_other_ranks_is_rejected() -> None:
    schedule = chain(ring5(), "alltoall", 2, 0, 4, 3, 2)
    assert found(schedule, strict(ring5())) == [0, 1, 2]
    texts = [v.explanation for v in verify(schedule, strict(ring5())) if v.send == 0]
    assert any(text.endswith("visits rank 4, which is on no path with the fewest hops")
               for text in texts)  # fmt: skip
    assert found(schedule, whole(ring5())) == []


def test_a_longer_way_over_the_right_ranks_is_accepted() -> None:
    # Ranks 1 and 3 are both between 0 and 2; 0 -> 1 -> 3 -> 2 visits no others.
    hops = [hop for r in range(4) for hop in both_ways(r, (r + 1) % 4, 10, Fraction(1))]
    topology = build("ring4+", 4, [*hops, *both_ways(1, 3, 10, Fraction(1))])
    schedule = chain(topology, "alltoall", 2, 0, 1, 3, 2)
    assert found(schedule, strict(topology)) == []
    shortest = replace(whole(topology), max_extra_hops=0)
    assert "max_extra_hops" in {v.rule for v in verify(schedule, shortest)}


def test_hops_are_counted_over_allowed_links() -> None:
    topology = ring5()
    allowed = np.ones(len(topology.links), dtype=np.bool_)
    allowed[topology.links_between(0, 1)] = False
    schedule = chain(topology, "alltoall", 2, 0, 4, 3, 2)
    assert found(schedule, strict(topology, allowed=allowed)) == []


def test_the_shortest_way_is_one_that_a_chunk_may_take() -> None:
    # Chunks of rank 0 leave their server by rank 4, so 0 - 4 - 3 - 2 is their shortest way to 2.
    topology = replace(ring5(), server_of=(0, 0, 1, 1, 0))
    schedule = chain(topology, "alltoall", 2, 0, 4, 3, 2)
    logical = strict(topology, leave_by={0: frozenset([4])})
    assert found(schedule, logical) == []
    assert found(schedule, strict(topology)) == [0, 1, 2]


def test_a_sum_goes_from_its_sources_to_its_owner() -> None:
    # Only rank 2 has a value of chunk 0, which is for rank 0.
    for ranks, wrong in (((2, 1, 0), []), ((2, 3, 4, 0), [0, 1, 2])):
        schedule = chain(ring5(), "reducescatter", 0, *ranks)
        own = build_collective("reducescatter", 5, 1)
        one = replace(own, source_set=np.full(5, 2, dtype=np.int32))
        assert found(replace(schedule, collective=one), strict(ring5())) == wrong


def test_a_sum_for_several_goes_on_from_its_owner() -> None:
    # Rank 2 has the value, rank 0 owns it, and rank 4 wants it: 3 is on neither way.
    own = build_collective("reducescatter", 5, 1)
    one = replace(
        own, source_set=np.full(5, 2, dtype=np.int32), target_set=np.full(5, 4, dtype=np.int32)
    )
    for ranks, wrong in (((2, 1, 0, 4), []), ((2, 3, 4), [0, 1])):
        schedule = chain(ring5(), "reducescatter", 0, *ranks)
        assert found(replace(schedule, collective=one), strict(ring5())) == wrong


@pytest.mark.parametrize("collective", ["allgather", "reducescatter", "allreduce"])
def test_where_everyone_holds_or_wants_a_chunk_every_rank_is_on_the_way(collective: str) -> None:
    for seed in range(20):
        schedule = random_schedule(seed, collective)
        assert verify(schedule, strict(schedule.topology)) == []


def naive(schedule: Schedule, logical: LogicalTopology) -> list[int]:
    """Return the sends off the shortest paths, from all simple paths of the fewest hops."""
    table, ranks = logical.topology.links, logical.topology.num_ranks
    out: dict[int, set[int]] = {rank: set() for rank in range(ranks)}
    for link in logical.links():
        out[int(table.src[link])].add(int(table.dst[link]))
    wrong = []
    for row, (chunk, link) in enumerate(zip(schedule.chunk, schedule.link, strict=True)):
        visited: set[int] = set()
        for source in schedule.collective.sources(int(chunk)):
            for target in schedule.collective.targets(int(chunk)):
                visited |= _on_ways(out, source, target)
        if not {int(table.src[link]), int(table.dst[link])} <= visited:
            wrong.append(row)
    return wrong


def _on_ways(out: dict[int, set[int]], source: int, target: int) -> set[int]:
    ways: list[tuple[int, ...]] = [(source,)]
    for _ in out:
        there = [way for way in ways if way[-1] == target]
        if there:
            return {rank for way in there for rank in way}
        ways = [(*way, head) for way in ways for head in out[way[-1]] if head not in way]
    return set()


def test_the_rule_agrees_with_all_paths_written_out() -> None:
    rejected = 0
    for seed in range(60):
        schedule = random_schedule(seed, "alltoall")
        if schedule.topology.num_ranks > 7:
            continue
        allowed = np.ones(len(schedule.topology.links), dtype=np.bool_)
        if seed % 2:
            closed = random.Random(seed).sample(range(len(allowed)), len(allowed) // 5)
            allowed[closed] = False
        logical = strict(schedule.topology, allowed=allowed)
        expected = naive(schedule.expand(), logical)
        assert found(schedule, logical) == expected[:100], seed
        rejected += len(expected)
    assert rejected

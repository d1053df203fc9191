"""Judging by representatives gives the verdict of judging every send."""

import random
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from functools import cache

import numpy as np
import pytest

from taccl.collectives import COLLECTIVES, Collective, build_collective
from taccl.model.schedule import Schedule, retime
from taccl.topology.file import load_topology
from taccl.topology.graph import LogicalTopology, Switch, Topology, whole
from taccl.topology.links import MAX_PATHS
from taccl.topology.symmetry import make_group
from taccl.verify import FEW_SENDS, Violation, verify
from taccl.verify.sends import orbits_of
from tests.generators import Hop, both_ways, build, random_decisions, ring4, timed, twin2x2
from tests.mutations import MUTATIONS, changed, picked, repeat
from tests.synth.problems import problem_of

ALL = 1 << 60
"""More sends than any schedule has: it is judged send by send."""

ALIKE = tuple(name for name, kind in COLLECTIVES.items() if not kind.has_root)
ROTATION = ((1, 2, 3, 0),)


def by_orbits(schedule: Schedule, logical: LogicalTopology | None = None) -> list[Violation]:
    return verify(schedule, logical, few=0)


def by_sends(schedule: Schedule, logical: LogicalTopology | None = None) -> list[Violation]:
    return verify(schedule, logical, few=ALL)


def rules(found: list[Violation]) -> set[str]:
    return {violation.rule for violation in found}


# Random schedules with symmetry, right and wrong


@cache
def networks() -> tuple[Topology, ...]:
    """Return networks of wires, hubs and servers with groups of 4 to 16 elements."""
    hub = [hop for r in range(4) for hop in both_ways(r, 4, 10, Fraction(1))]
    uneven = [
        hop for r in range(4) for hop in both_ways(r, (r + 1) % 4, r % 2, Fraction(1 + r % 2))
    ]
    twice = [*hub, *(hop for r in range(4) for hop in both_ways(r, 5, 10, Fraction(3)))]
    made = (
        ring4(), ring4("delay"),
        build("uneven", 4, uneven),
        build("hub", 4, hub, switches=[Switch("hub")]),
        build("hubs", 4, twice, switches=[Switch("hub"), Switch("other")], rule="delay"),
    )  # fmt: skip
    turned: tuple[Topology, ...] = (replace(made[2], rotations=((2, 3, 0, 1),)),)
    turned += tuple(replace(made[i], rotations=ROTATION) for i in (0, 1, 3, 4))
    loaded = (load_topology(spec) for spec in ("torus2d:2x3", "hypercube:8", "torus2d:3x3"))
    return (*turned, *loaded, load_topology("dgx-a100", nodes=2))


def random_symmetric(seed: int, collective: str | None = None) -> Schedule:
    """Return a correct schedule of representatives."""
    rng = random.Random(f"symmetric {seed}")
    network = rng.choice(networks())
    name = collective or rng.choice(ALIKE)
    chunks = rng.choice((1, 1, 2))
    problem = problem_of(network, name, chunks, rng.choice((3, 1000)), symmetric=True)
    made = random_decisions(problem, seed)
    return retime(problem.collective, problem.group, problem.chunk_size, made)


def other_images(schedule: Schedule, seed: int) -> Schedule:
    """Return the same sends with another image of every message to represent them."""
    rng, group = random.Random(seed), schedule.group
    chunk, link = schedule.chunk.copy(), schedule.link.copy()
    for batch in np.unique(schedule.batch).tolist():
        rows, element = schedule.batch == batch, rng.randrange(len(group))
        link[rows] = group.link_images(element, link[rows])
        chunk[rows] = schedule.collective.image_of(group.elements[element], chunk[rows])
    return replace(schedule, chunk=chunk, link=link)


def mutants(schedule: Schedule, seed: int, count: int) -> Iterator[Schedule]:
    """Yield some mutants of every kind."""
    rng = random.Random(seed)
    few = schedule
    if len(few) > 30:  # all mutants of large schedules take too long to list
        few = picked(schedule, sorted(rng.sample(range(len(schedule)), 30)))
    for mutation in MUTATIONS.values():
        found = list(mutation(few))
        yield from rng.sample(found, min(count, len(found)))


@pytest.mark.parametrize("collective", ALIKE)
def test_a_correct_schedule_is_accepted_whichever_images_represent_it(collective: str) -> None:
    for seed in range(12):
        schedule = random_symmetric(seed, collective)
        assert orbits_of(schedule) is not None
        for judged in (schedule, other_images(schedule, seed)):
            assert by_orbits(judged, whole(schedule.topology)) == [], seed


@pytest.mark.parametrize("collective", ALIKE)
def test_a_mutant_breaks_the_same_rules_by_representatives(collective: str) -> None:
    wrong = 0
    for seed in range(8):
        for number, mutant in enumerate(mutants(random_symmetric(seed, collective), seed, 1)):
            judged = other_images(mutant, number) if number % 2 else mutant
            expected = rules(by_sends(judged))
            assert rules(by_orbits(judged)) == expected, (seed, number)
            wrong += bool(expected)
    assert wrong


def random_sketch(schedule: Schedule, seed: int) -> LogicalTopology:
    """Return rules of a sketch, some of which treat images alike and some not."""
    rng = random.Random(f"sketch {seed}")
    topology, group = schedule.topology, schedule.group
    allowed = np.ones(len(topology.links), dtype=np.bool_)
    leave_by: dict[int, frozenset[int]] = {}
    if rng.random() < 0.7:
        link = rng.randrange(len(allowed))
        elements = range(len(group)) if rng.random() < 0.7 else [0]
        allowed[[group.link_image(element, [link])[0] for element in elements]] = False
    if rng.random() < 0.5:
        rank, door = (rng.randrange(topology.num_ranks) for _ in range(2))
        elements = range(len(group)) if rng.random() < 0.7 else [0]
        images = [group.elements[element] for element in elements]
        leave_by = {image[rank]: frozenset([image[door]]) for image in images}
    servers = [rank * 2 // topology.num_ranks for rank in range(topology.num_ranks)]
    logical = replace(
        whole(topology), allowed=allowed, leave_by=leave_by, name="random",
        max_extra_hops=rng.choice((None, 0, 1)), on_shortest_paths=rng.random() < 0.5,
        connections_per_rank=rng.choice((None, 1, 2)),
    )  # fmt: skip
    apart = replace(topology, server_of=tuple(servers)) if rng.random() < 0.2 else topology
    return replace(logical, topology=apart)


def test_the_rules_of_a_sketch_are_judged_alike_also_where_images_are_not_alike() -> None:
    seen: set[str] = set()
    for seed in range(80):
        schedule = other_images(random_symmetric(seed), seed)
        logical = random_sketch(schedule, seed)
        expected = rules(by_sends(schedule, logical))
        assert rules(by_orbits(schedule, logical)) == expected, seed
        seen |= expected
    assert seen == {
        "allowed", "leave_by", "max_extra_hops", "on_shortest_paths", "connections_per_rank",
    }  # fmt: skip


def test_a_finding_is_one_of_those_on_all_sends() -> None:
    # Of messages that meet at one time, and sums that arrive so, another may be named.
    compared = 0
    for seed in range(12):
        for mutant in mutants(random_symmetric(seed), seed, 1):
            judged = other_images(mutant, seed)
            every, found = by_sends(judged), by_orbits(judged)
            if every and len(every) < 100:
                compared += 1
                assert {v for v in found if v.rule not in ("resource", "summed")} <= set(every)
    assert compared


def test_messages_without_duration_are_judged_alike() -> None:
    # Only sums ask which of them comes first.
    ranks = range(4)
    free = [(a, b, 0, None, None) for a in ranks for b in ranks if a != b]
    some = [(a, b, (a - b) % 2, None, None) for a, b, *_ in free]
    instant = [replace(build("instant", 4, hops), rotations=ROTATION) for hops in (free, some)]
    wrong = 0
    for seed in range(40):
        name = ALIKE[seed % len(ALIKE)]
        problem = problem_of(instant[seed // 4 % 2], name, 1 + seed // 8 % 2, symmetric=True)
        made = random_decisions(problem, seed)
        schedule = retime(problem.collective, problem.group, problem.chunk_size, made)
        for number, mutant in enumerate([schedule, *mutants(schedule, seed, 1)]):
            judged = other_images(mutant, number)
            expected = rules(by_sends(judged))
            assert rules(by_orbits(judged)) == expected, (seed, number)
            wrong += bool(expected)
    assert wrong


# By hand. ring4: alpha 10 ps and 1 ps a byte, so that 5 bytes take 15 ps; chunk 4 s + d of the
# alltoall goes from s to d. The rotation takes it from s + 1 to d + 1.

Row = tuple[int, tuple[int, int], int, int, int, bool]
PAIRS: list[Row] = [
    (2, (0, 1), 0, 15, 0, False), (2, (1, 2), 15, 30, 1, False), (3, (0, 3), 0, 15, 2, False),
    (1, (0, 1), 30, 45, 3, False),
]  # fmt: skip


def rotated(collective: str, rows: list[Row]) -> Schedule:
    return replace(timed(ring4(), collective, rows), generators=ROTATION)


def test_representatives_are_judged_without_their_images(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = rotated("alltoall", PAIRS)
    assert by_sends(schedule) == by_orbits(schedule) == []

    def refuse(_: Schedule) -> Schedule:
        raise AssertionError("expanded")

    monkeypatch.setattr(Schedule, "expand", refuse)
    assert by_orbits(schedule, whole(schedule.topology)) == []
    with pytest.raises(AssertionError, match="expanded"):
        verify(schedule)  # 16 sends are few


def test_a_message_that_meets_only_an_image_is_found_and_the_image_named() -> None:
    # At 15, chunk 2 crosses 1 -> 2, and so its image 13, from 3 to 1, crosses 0 -> 1.
    rows = [*PAIRS[:3], (1, (0, 1), 15, 30, 3, False)]
    schedule = rotated("alltoall", rows)
    assert rules(by_sends(timed(ring4(), "alltoall", rows))) == {"delivered"}
    assert [str(v) for v in by_orbits(schedule)] == [
        "resource: chunk 1 on link 0 (0 -> 1) at 0.000015 us needs edge e0,"
        " which chunk 13 on link 0 (0 -> 1) at 0.000015 us holds until 0.00003 us"
    ]
    assert rules(by_sends(schedule)) == {"resource"}


def test_a_chunk_that_only_an_image_brings_twice_is_found() -> None:
    # Chunk 7, from 1 to 3, is an image of chunk 2, and comes to 3 the other way round, too.
    rows: list[Row] = [
        *PAIRS, (7, (1, 0), 45, 60, 4, False), (7, (0, 3), 60, 75, 5, False),
    ]  # fmt: skip
    found = by_orbits(rotated("alltoall", rows))
    assert [(v.rule, v.send) for v in found] == [("once", 5)]
    assert set(found) <= set(by_sends(rotated("alltoall", rows)))


def test_a_chunk_that_only_an_image_brought_may_be_sent_on() -> None:
    # The second hop is given for chunk 13: it crosses 0 -> 1 after the image of the first, 3 -> 0.
    rows: list[Row] = [PAIRS[0], (13, (0, 1), 15, 30, 1, False), *PAIRS[2:]]
    assert by_orbits(rotated("alltoall", rows)) == []
    rows[1] = (13, (0, 1), 14, 29, 1, False)
    assert rules(by_orbits(rotated("alltoall", rows))) == {"held", "resource"}


def test_a_missing_arrival_is_told_of_one_chunk_of_the_orbit() -> None:
    found = by_orbits(rotated("alltoall", PAIRS[:3]))
    assert [str(v) for v in found] == ["delivered: chunk 1 never arrives at rank 1"]


def test_a_sum_is_followed_over_images_and_named_as_it_was_followed() -> None:
    # Rank 0 adds its value of chunk 1 twice, so rank 3 adds its value of chunk 0 twice.
    rows: list[Row] = [(1, (0, 1), 0, 15, 0, True), (1, (0, 1), 15, 30, 1, True)]
    found = [v for v in by_orbits(rotated("reducescatter", rows)) if "counts" in v.explanation]
    assert [v.explanation for v in found] == [
        "chunk 0 on link 6 (3 -> 0) at 0.000015 us counts twice the value of rank 3"
    ]
    assert set(found) <= set(by_sends(rotated("reducescatter", rows)))


def test_a_batch_is_judged_wherever_its_images_lie() -> None:
    # Chunks 0 and 1 are neighbours in the outputs of ranks 1 and 2; their images 3 and 0 are not.
    rows: list[Row] = [
        (0, (0, 1), 0, 15, 0, False), (0, (1, 2), 15, 35, 1, False), (1, (1, 2), 15, 35, 1, False),
    ]  # fmt: skip
    found = [v for v in by_orbits(rotated("allgather", rows)) if v.rule == "adjacency"]
    assert [v.send for v in found] == [3 * 3 + 1]
    assert found == [v for v in by_sends(rotated("allgather", rows)) if v.rule == "adjacency"]


def test_a_link_that_a_sketch_denies_to_an_image_is_found() -> None:
    schedule = rotated("alltoall", PAIRS)
    allowed = np.ones(len(schedule.topology.links), dtype=np.bool_)
    allowed[schedule.topology.links_between(3, 2)] = False
    logical = replace(whole(schedule.topology), allowed=allowed)
    found = by_orbits(schedule, logical)
    assert [(v.rule, v.send) for v in found] == [("allowed", 3 * 4 + 2)]
    assert found == by_sends(schedule, logical)


def test_peers_are_counted_over_all_images() -> None:
    # Rank 0 itself sends to 1 and to 3, and receives from 1 and 3 only in images.
    schedule = rotated("alltoall", PAIRS)
    logical = replace(whole(schedule.topology), connections_per_rank=1)
    assert [v.explanation for v in by_orbits(schedule, logical)] == [
        f"rank 0 {verb} 2 ranks, the sketch allows 1" for verb in ("sends to", "receives from")
    ]


# Where representatives do not stand for their images


def test_a_group_that_keeps_a_resource_is_expanded() -> None:
    # The swap of ranks 0 <-> 1, 2 <-> 3 keeps the NICs: the copy uses one twice at once.
    swapped = replace(
        timed(twin2x2(), "allgather", [(0, (0, 2), 0, 40, 0, False)]), generators=((1, 0, 3, 2),)
    )
    assert orbits_of(swapped) is None
    assert by_orbits(swapped) == by_sends(swapped)
    assert "resource" in rules(by_orbits(swapped))


def test_a_link_whose_own_images_meet_is_expanded() -> None:
    # Ranks on a one-way ring of switches: the link 0 -> 2 takes two of its wires, and its image
    # 1 -> 0 one of them at the same time.
    hops: list[Hop] = [(3 + s, 3 + (s + 1) % 3, 1, None, Fraction(1)) for s in range(3)]
    hops += [hop for r in range(3) for hop in both_ways(r, 3 + r, 1, Fraction(1))]
    topology = build("folded", 3, hops, switches=[Switch(f"s{i}") for i in range(3)])
    rows: list[Row] = [(0, (0, 2), 0, 9, 0, False)]
    schedule = replace(timed(topology, "allgather", rows), generators=((1, 2, 0),))
    assert orbits_of(schedule) is None
    assert by_orbits(schedule) == by_sends(schedule)
    assert rules(by_sends(schedule)) == {"resource", "delivered"}


@pytest.mark.parametrize("count", [MAX_PATHS - 1, MAX_PATHS])
def test_ranks_with_as_many_links_as_are_derived_are_expanded(count: int) -> None:
    hops = [hop for _ in range(count) for hop in both_ways(0, 1, 10, Fraction(1))]
    rows: list[Row] = [(0, (0, 1), 0, 15, 0, False)]
    schedule = replace(timed(build("many", 2, hops), "allgather", rows), generators=((1, 0),))
    assert (orbits_of(schedule) is None) == (count == MAX_PATHS)
    assert by_orbits(schedule) == by_sends(schedule) == []


@pytest.mark.parametrize("few", [0, ALL])
def test_generators_are_checked_before_anything_stands_for_another(few: int) -> None:
    schedule = rotated("alltoall", PAIRS)
    for wrong, why in (
        (replace(schedule, generators=((1, 0, 2, 3),)), "does not have this symmetry: edge"),
        (replace(schedule, generators=((1, 1, 2, 3),)), "should be a permutation"),
        (replace(schedule, collective=lame()), "alltoall does not map onto itself: chunk"),
    ):
        found = verify(wrong, few=few)
        assert [v.rule for v in found] == ["symmetry"]
        assert why in found[0].explanation


def lame() -> Collective:
    built = build_collective("alltoall", 4, 1)
    return replace(built, index=np.arange(16, dtype=np.int32), blocks=0)


@pytest.mark.parametrize("few", [0, ALL])
def test_a_batch_may_have_any_number(few: int) -> None:
    schedule = rotated("alltoall", PAIRS)
    assert verify(changed(schedule, 0, batch=np.iinfo(np.int32).max - 1), few=few) == []


def test_a_repeated_send_of_a_large_schedule_is_found() -> None:
    # Once round a ring of 160: 159 representatives of 25 440 sends.
    hops = [(r, (r + 1) % 160, 10, None, Fraction(1)) for r in range(160)]
    topology = build("ring160", 160, hops)
    group = make_group(topology, [tuple((r + 1) % 160 for r in range(160))])
    rows: list[Row] = [(0, (r, r + 1), 15 * r, 15 * r + 15, r, False) for r in range(159)]
    schedule = replace(timed(topology, "allgather", rows), generators=group.generators)
    assert schedule.num_sends > FEW_SENDS
    assert verify(schedule) == []
    assert rules(verify(next(repeat(schedule)))) == {"once"}
    assert rules(verify(changed(schedule, 1, start=14, end=29))) == {"held", "resource"}

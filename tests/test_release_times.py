"""Chunks that are ready later and needed earlier: by hand on a ring, and on random machines."""

import random
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from taccl.bounds import any_bounds, best, fixed_bounds
from taccl.collectives import COLLECTIVES, build_collective
from taccl.collectives.file import read_collective
from taccl.errors import InputError
from taccl.model.problem import Problem, Result
from taccl.model.schedule import Decisions, Schedule
from taccl.model.schedule_file import read_schedule, schedule_text
from taccl.synth.message_coalescing import in_groups, in_one_piece
from taccl.synth.search import attempted, solve
from taccl.synth.time_reversal import mirrored, played_backwards
from taccl.topology.file import load_topology
from taccl.topology.graph import Topology, whole
from taccl.topology.symmetry import free_group, make_group
from taccl.units import PS_PER_US, Time
from taccl.verify import verify
from tests.generators import TINY, random_decisions
from tests.synth.problems import QUICK

US = PS_PER_US


def ring4() -> Topology:
    """Four ranks, 1 us a hop for the one byte of a chunk."""
    ring = load_topology("ring:4")
    return ring.with_costs([replace(edge, alpha=0, beta=Fraction(US)) for edge in ring.edges])


def paced(name: str, ready: Time = 0, needed: Time = 0, k: int = 4) -> Problem:
    topology = ring4()
    collective = build_collective(name, 4, k).paced(ready * US, needed * US)
    group = free_group(topology, topology.rotations if collective.root is None else ())
    return Problem(whole(topology), collective, Fraction(1), group)


def tried(problem: Problem, engine: str) -> Result | None:
    return attempted(engine, lambda p, o: solve(p, engine, o), problem, QUICK).result


def least(problem: Problem, engines: tuple[str, ...]) -> Time:
    """Return the best of some engines, every schedule judged."""
    found = [result for engine in engines if (result := tried(problem, engine)) is not None]
    schedules = [result.schedule for result in found if result.schedule is not None]
    assert not [broken for one in schedules for broken in verify(one)]
    return min(schedule.makespan for schedule in schedules)


def along(problem: Problem, *hops: tuple[int, int, int], reduce: bool = False) -> Schedule:
    """Return the schedule of (chunk, from, to), in this order."""
    table = problem.topology.links
    link = {
        ends: n for n, ends in enumerate(zip(table.src.tolist(), table.dst.tolist(), strict=True))
    }
    rows = [(chunk, link[a, b], number, reduce) for number, (chunk, a, b) in enumerate(hops)]
    bare = problem.without_symmetry
    return bare.timed(Decisions.of(rows))


CLOCKWISE = ((0, 1), (1, 2))


def test_a_chunk_leaves_its_source_when_it_is_ready_and_a_relay_when_it_comes() -> None:
    # Ready at 2, 4, 6, 8 us; over 0 -> 1 -> 2 and 0 -> 3, each hop 1 us.
    problem = paced("broadcast", ready=8)
    hops = [(c, a, b) for c in range(4) for a, b in (*CLOCKWISE, (0, 3))]
    schedule = along(problem, *hops)
    assert [time // US for time in schedule.start.tolist()] == [2, 3, 2, 4, 5, 4, 6, 7, 6, 8, 9, 8]
    assert schedule.makespan == 10 * US
    # In the wrong order everything waits for the chunk that is made last.
    assert along(problem, *reversed([hop for hop in hops if hop[1] == 0])).makespan == 12 * US


def test_what_is_over_includes_the_work_on_what_arrives() -> None:
    # Tails of 8, 6, 4, 2 us: chunk c is at rank 2 at c + 2, and done at 10 - c.
    problem = paced("broadcast", needed=8)
    hops = [(c, a, b) for c in range(4) for a, b in (*CLOCKWISE, (0, 3))]
    assert along(problem, *hops).makespan == 10 * US
    assert along(problem, *(hop for c in range(4) for hop in hops if hop[0] == 3 - c)).makespan == (
        13 * US  # chunk 0 arrives at 5
    )
    # A relay that does not want the chunk works on nothing.
    there = build_collective("gather", 4, 1).timed(tail=np.array([0, 0, 5, 0]) * US)
    gather = replace(problem, collective=there)
    assert along(gather, (1, 1, 0), (2, 2, 1), (2, 1, 0), (3, 3, 0)).makespan == 7 * US


def test_hand_cases_of_all_collectives_on_a_ring() -> None:
    """Alone a collective of one chunk takes T; its last piece is ready at 8, or its first has 8."""
    alone = {"allgather": 2, "reducescatter": 2, "alltoall": 2, "broadcast": 2, "reduce": 2,
             "gather": 2, "scatter": 2, "allreduce": 3}  # fmt: skip
    for name in COLLECTIVES:
        for ready, needed in ((8, 0), (0, 8), (8, 8)):
            problem = paced(name, ready, needed)
            collective, size = problem.collective, problem.collective.chunks_in_size
            fixed = best(fixed_bounds(problem.logical, collective, Fraction(1))).time
            free = best(any_bounds(problem.logical, collective, size)).time
            found = least(problem, ("flow" if name == "alltoall" else "taccl",))
            # With both, piece c waits for 2 (c + 1), and 2 (4 - c) are left after it.
            expected = (8 if 0 in (ready, needed) else 10) + alone[name]
            if name == "allreduce":  # ports are busy for 3 us of every 2: 2 + 4 x 3
                expected = 14 if 0 in (ready, needed) else 16
            assert free <= fixed == expected * US == found, (name, ready, needed)


def test_a_schedule_that_runs_ahead_of_its_producer_is_refused() -> None:
    problem = paced("allgather", ready=8)
    schedule = random_schedule(problem.without_symmetry, 1)
    own = np.flatnonzero(
        problem.collective.owner[schedule.chunk] == schedule.topology.links.src[schedule.link]
    )
    row = own[schedule.start[own].argmin()]
    hasty = replace(schedule, start=schedule.start.copy(), end=schedule.end.copy())
    hasty.start[row] -= 1
    hasty.end[row] -= 1
    assert not verify(schedule)
    assert {broken.rule for broken in verify(hasty)} == {"released"}
    # What a late rank adds to what it gets has to be there, too.
    total = build_collective("reduce", 4, 1).timed(late=np.array([0, 9, 0, 0]) * US)
    late = replace(paced("reduce", k=1), collective=total)
    summed = along(late, (0, 2, 1), (0, 1, 0), (0, 3, 0), reduce=True)
    assert summed.end.tolist() == [9 * US, 10 * US, 1 * US]
    early = np.array([1, 0, 0], dtype=np.int64)
    hasty = replace(summed, start=summed.start - early, end=summed.end - early)
    assert [broken.rule for broken in verify(hasty)] == ["released"]
    wrong = replace(summed, collective=replace(total, late=np.array([0, -1])))
    assert [broken.rule for broken in verify(wrong)] == ["columns"]


def random_schedule(problem: Problem, seed: int) -> Schedule:
    return problem.timed(random_decisions(problem, seed))


def test_backwards_ready_times_are_tails() -> None:
    for name in ("reducescatter", "reduce"):
        problem = paced(name, ready=8).without_symmetry
        mirror = mirrored(problem)
        assert mirror is not None
        gather = mirror.problem.collective
        assert gather.ready is None
        assert np.array_equal(np.array(gather.tail), np.array(problem.collective.ready))
        found = random_schedule(mirror.problem, 3)
        back = played_backwards(problem, mirror.link, found)
        assert not verify(back)
        assert back.makespan == found.makespan
        late = problem.collective.timed(late=np.array([0, 1, 0, 0]))
        assert mirrored(replace(problem, collective=late)) is None


def test_bounds_hold_and_the_exact_engine_is_never_beaten_on_random_times() -> None:
    for seed in range(12):
        chance = random.Random(seed)
        topology = TINY[chance.choice(sorted(TINY))](chance.choice(("occupy", "delay")))
        name = chance.choice(sorted(COLLECTIVES))
        bare = build_collective(name, topology.num_ranks, chance.randint(1, 2))
        ready, tail = (
            np.array([chance.choice((0, 0, 700, 5000)) for _ in range(bare.num_chunks)])
            for _ in range(2)
        )
        late = np.array([chance.choice((0, 0, 0, 4000)) for _ in range(topology.num_ranks)])
        collective = bare.timed(ready, tail, late)
        problem = Problem(whole(topology), collective, Fraction(5), make_group(topology, ()))
        size = 5 * collective.chunks_in_size
        bound = max(best(any_bounds(problem.logical, collective, size)).time,
                    best(fixed_bounds(problem.logical, collective, Fraction(5))).time)  # fmt: skip
        found = [random_schedule(problem, seed + more) for more in range(3)]
        for schedule in found:
            assert not verify(schedule), (seed, name)
            again = problem.timed(schedule.decisions())
            assert again.makespan <= schedule.makespan
        exact = tried(problem, "exact")
        assert exact is not None
        assert exact.schedule is not None
        assert not verify(exact.schedule)
        proved = max([bound, *(one.time for one in exact.bounds if one.world == "engine")])
        assert proved <= min(one.makespan for one in [*found, exact.schedule]), (seed, name)


def test_without_times_nothing_changes_and_zeros_are_no_times() -> None:
    bare = build_collective("allgather", 4, 2)
    assert bare.paced() is bare
    assert not bare.timed(*(np.zeros(n, dtype=np.int64) for n in (8, 8, 4))).is_timed
    problem = Problem(whole(ring4()), bare, Fraction(1), make_group(ring4(), ()))
    text = schedule_text(random_schedule(problem, 0))
    assert "_ps" not in text.split('"sends"')[0].replace("makespan_ps", "")


def test_symmetries_keep_times() -> None:
    turned = (1, 2, 3, 0)
    even = build_collective("allgather", 4, 2).paced(US)
    assert even.image(turned).tolist() == [2, 3, 4, 5, 6, 7, 0, 1]
    for uneven in (even.timed(np.arange(8)), even.timed(late=np.array([0, 1, 0, 0]))):
        with pytest.raises(InputError, match="does not map onto itself"):
            uneven.image(turned)
    assert np.array(even.cut(3).ready).tolist() == np.repeat(np.array(even.ready), 3).tolist()


FILE = """
taccl: collective/1
name: halves
ranks: 4
late: {2: 3us}
chunks:
  - {id: 0, input: {0: 0}, output: {2: 0}, ready: 2us, needed: 4us}
  - {id: 1, input: {2: 0}, output: {0: 0}, needed: 9us}
  - {id: 2, input: {0: 1}, output: {1: 0}}
"""


def test_deadlines_hold_exactly_when_the_end_is_no_later_than_the_last(tmp_path: Path) -> None:
    file = tmp_path / "halves.yaml"
    file.write_text(FILE)
    collective = read_collective(str(file))
    assert [int(t) for c in (collective.ready, collective.tail, collective.late) if c is not None
            for t in c] == [2 * US, 0, 0, 5 * US, 0, 0, 0, 0, 3 * US, 0]  # fmt: skip
    topology = ring4()
    problem = Problem(whole(topology), collective, Fraction(1), make_group(topology, ()))
    ways = ((0, 0, 1), (0, 1, 2), (1, 2, 3), (1, 3, 0))
    in_time = along(problem, *ways, (2, 0, 1))
    late = along(problem, (2, 0, 1), *ways)  # on 0 -> 1, chunk 2 is out of the way by then
    held_up = along(replace(problem, collective=replace(collective, ready=None)), *ways, (2, 0, 1))
    for schedule in (in_time, late, held_up):
        ends = {(c, int(d)): int(e) for c, d, e in zip(
            schedule.chunk, schedule.topology.links.dst[schedule.link], schedule.end, strict=True
        )}  # fmt: skip
        met = ends[0, 2] <= 4 * US and ends[1, 0] <= 9 * US
        assert met == (schedule.makespan <= 9 * US)
        assert not verify(schedule)
    saved = tmp_path / "s.json"
    saved.write_text(schedule_text(late))
    again = read_schedule(str(saved))
    assert (again.makespan, again.collective.tail.tolist()) == (late.makespan, [5 * US, 0, 0])  # type: ignore[union-attr]
    saved.write_text(schedule_text(late).replace('"late_ps":[0,0', '"late_ps":[0,-1'))
    with pytest.raises(InputError, match="should have 4 entries from 0"):
        read_schedule(str(saved))
    file.write_text(FILE.replace("{2: 3us}", "{7: 3us}"))
    with pytest.raises(InputError, match="there is no rank 7 among 4"):
        read_collective(str(file))


def test_pieces_that_are_made_while_others_travel_go_together() -> None:
    """Each message costs 1 us and 1 us a chunk; g pieces take 2 hops of 1 + g us."""
    topology = ring4().with_costs([replace(e, alpha=US, overhead=None) for e in ring4().edges])
    collective = build_collective("allgather", 4, 4).paced(8 * US)
    group = free_group(topology, topology.rotations)
    problem = Problem(whole(topology), collective, Fraction(1), group)
    whole_one = in_one_piece(problem)
    assert whole_one is not None
    assert whole_one.chunk_size == 4
    assert not whole_one.collective.is_timed
    one = tried(whole_one, "guided")
    assert one is not None
    assert one.schedule is not None
    assert one.schedule.makespan == 10 * US
    found = list(in_groups(problem, one.schedule))
    assert not [broken for schedule in found for broken in verify(schedule)]
    # All at once 8 + 10, one by one 2 + 4 x 4; the first two and then the others 4 + 6 + 6.
    assert min(schedule.makespan for schedule in found) <= 16 * US
    assert in_one_piece(replace(problem, collective=collective.timed(np.arange(16)))) is None

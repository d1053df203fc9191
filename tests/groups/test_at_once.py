"""Groups at once: each alone where edges allow it, else together; programs side by side."""

import random
from dataclasses import replace
from fractions import Fraction

import pytest

from taccl.apps import Request, Target
from taccl.apps.inputs import load_network
from taccl.apps.programs import textbook_program
from taccl.collectives import build_collective
from taccl.collectives.groups import Groups, Instance, relays_of, union_of
from taccl.errors import InputError, NoScheduleError
from taccl.groups import bound_groups, check_groups, synthesize_groups
from taccl.model.problem import Options, problem_of
from taccl.replay.cost import model_of
from taccl.replay.disturbed import Placed, on_ranks, times_together
from taccl.synth.search import solve
from taccl.topology.file import load_topology
from taccl.verify import verify

EVERY_OTHER = [
    Instance("g", place, "allreduce", 4 * 10**6, members, relays_of(members, "all", 8), 1)
    for place in (0, 1) for members in [tuple(range(place, 8, 2))]
]  # fmt: skip


def groups_of(instances: list[Instance], ranks: int, objective: str = "makespan") -> Groups:
    return Groups("g", ranks, tuple(instances), objective)


def asked(seconds: float, *, programs: bool = False, engine: str = "auto") -> Request:
    network = load_network("hub:2")
    target = Target("msccl") if programs else None
    return Request(
        network, "allreduce", target=target, time_limit=seconds, engine=engine, deterministic=True
    )


def test_groups_on_edges_of_their_own_are_solved_once_and_run_as_if_alone() -> None:
    machine = load_topology("dgx-h100", nodes=2).point_to_point()
    two = [Instance("tp", n, "allreduce", 64 * 10**6, tuple(range(8 * n, 8 * n + 8)), chunks=1)
           for n in (0, 1)]  # fmt: skip
    found = synthesize_groups(groups_of(two, 16), machine, asked(10, engine="guided"))
    assert found.shared == ()
    assert found.parts[0].schedule is found.parts[1].schedule
    assert [part.together for part in found.parts] == [part.alone for part in found.parts]
    assert found.cost / 10**6 == pytest.approx(252.4, abs=0.05)
    assert float(found.bound) / 10**6 == pytest.approx(252.3, abs=0.05)


def test_even_and_odd_ranks_of_a_ring_share_its_links_as_well_as_can_be() -> None:
    ring = load_topology("ring:8")
    found = synthesize_groups(
        groups_of(EVERY_OTHER, 8), ring, asked(8, programs=True, engine="guided")
    )
    assert found.shared == ((0, 1),)
    assert found.cost <= 172 * 10**6
    assert found.joint is not None
    assert found.joint <= 172 * 10**6
    # What programs take side by side is replayed anew from what would be written.
    placed = [
        Placed(part.program, part.instance.ranks, part.size)
        for part in found.parts if part.program is not None
    ]  # fmt: skip
    times = times_together(placed, ring, model_of("msccl"))
    assert times == tuple(part.together for part in found.parts)
    mixed = [EVERY_OTHER[0], replace(EVERY_OTHER[1], group="h", collective="allgather")]
    other = synthesize_groups(groups_of(mixed, 8), ring, asked(8, engine="guided"))
    assert other.cost <= 190 * 10**6


def test_schedules_of_a_union_obey_its_groups() -> None:
    """Members of one group relay nothing for another, whatever engine makes the schedule."""
    hub = load_topology("hub:6")
    instances = [
        Instance("tp", 0, "allreduce", 6 * 10**4, (0, 1, 2), chunks=1),
        Instance("tp", 1, "allreduce", 6 * 10**4, (3, 4, 5), chunks=1),
        Instance("dp", 0, "allgather", 4 * 10**4, (0, 3), chunks=1),
        Instance("dp", 1, "allgather", 4 * 10**4, (2, 5), chunks=1),
    ]
    union = union_of(instances, 6)
    assert union is not None
    problem = problem_of(hub, union.collective, union.collective.size or 0)
    made = [solve(problem, engine, Options(time_limit=2)).schedule
            for engine in ("guided", "exact", "taccl")]  # fmt: skip
    for schedule in made:
        assert schedule is not None
        assert verify(schedule) == []
    # A send that is moved to a rank of another group is told of.
    carriers = union.collective.carrier_set
    assert carriers is not None
    rng = random.Random(1)
    for schedule in filter(None, made):
        row = rng.randrange(len(schedule.chunk))
        inside = union.collective.rank_sets[carriers[schedule.chunk[row]]]
        src = int(hub.links.src[schedule.link[row]])
        strange = rng.choice([rank for rank in range(6) if rank not in inside])
        link = schedule.link.copy()
        link[row] = hub.links_between(src, strange)[0]
        rules = {one.rule for one in verify(replace(schedule, link=link))}
        assert "outsider" in rules


def test_one_after_another_is_the_answer_where_sizes_have_no_common_unit() -> None:
    hub = load_topology("hub:4")
    two = [Instance("a", 0, "allgather", 2 * 10**6, (0, 1), chunks=1),
           Instance("b", 0, "allgather", 2 * 10**6 + 2, (1, 2), chunks=1, start=5)]  # fmt: skip
    found = synthesize_groups(groups_of(two, 4), hub, asked(2, engine="ring"))
    first, second = found.parts
    assert first.together == first.alone
    assert second.together == first.alone - 5 + second.alone


def test_what_is_weighted_and_starts_later_counts_so() -> None:
    machine = load_topology("dgx-h100", nodes=2).point_to_point()
    two = [
        Instance("a", 0, "allgather", 10**6, tuple(range(8)), chunks=1, weight=Fraction(3)),
        Instance("b", 0, "allgather", 10**6, tuple(range(8, 16)), chunks=1, start=10**9),
    ]
    found = synthesize_groups(groups_of(two, 16, "weighted"), machine, asked(2, engine="ring"))
    alone = found.parts[0].alone
    assert found.cost == 3 * alone + 10**9 + alone
    assert found.bound == 3 * found.parts[0].bound.time + 10**9 + found.parts[0].bound.time
    assert found.bound <= found.cost


def test_bounds_of_groups_are_not_above_what_is_found() -> None:
    rng = random.Random(2)
    for _ in range(4):
        topology = load_topology(rng.choice(["ring:4", "hub:5", "mesh2d:2x2"]))
        n = topology.num_ranks
        instances = [
            Instance(name, 0, rng.choice(["allgather", "allreduce", "broadcast", "alltoall"]),
                     rng.choice([4, 8]) * 3000, members, relays_of(members, "all", n), 1)
            for name in "ab" for members in [tuple(rng.sample(range(n), 2))]
        ]  # fmt: skip
        groups = groups_of(instances, n)
        found = synthesize_groups(groups, topology, asked(1.5, engine="guided"))
        alone, together = bound_groups(groups, topology)
        assert together.time <= found.cost
        for bound, part in zip(alone, found.parts, strict=True):
            assert bound.time == part.bound.time <= part.alone


def placed_ring(ranks: tuple[int, ...]) -> Placed:
    part = load_topology(f"hub:{len(ranks)}")
    made = build_collective("allgather", len(ranks), 1)
    program = textbook_program(part, made, "ring", 4 * 10**5, Target("executor"))
    return Placed(program, ranks, 4 * 10**5)


def test_programs_side_by_side_wait_for_the_edges_they_share() -> None:
    hub = load_topology("hub:8")
    model = model_of("executor")
    one, far = placed_ring((0, 1, 2, 3)), placed_ring((6, 5, 7, 4))
    (alone,) = times_together([one], hub, model)
    assert times_together([one, far], hub, model) == (alone, alone)
    near = placed_ring((4, 0, 5, 6))
    first, second = times_together([one, near], hub, model)
    assert max(first, second) > alone
    later = replace(near, start=2 * alone)
    assert times_together([one, later], hub, model) == (alone, alone)
    moved = on_ranks(one.program, (7, 3, 1, 0), 8)
    assert [gpu.rank for gpu in moved.gpus] == list(range(8))
    assert {rank for rank, _ in moved.blocks()} == {0, 1, 3, 7}
    assert {block.send_to for rank, block in moved.blocks() if rank == 7} <= {3, None}


def test_groups_are_for_one_number_of_ranks_and_can_reach_each_other() -> None:
    ring = load_topology("ring:8")
    with pytest.raises(InputError, match="g is for 4 ranks, and ring-8 has 8"):
        check_groups(groups_of(EVERY_OTHER, 4), ring)
    alone = [replace(one, relays=()) for one in EVERY_OTHER]
    with pytest.raises(NoScheduleError, match="rank 2 can't be reached from rank 0"):
        synthesize_groups(groups_of(alone, 8), ring, asked(1))


def test_what_is_too_large_to_replay_is_told_by_its_schedules(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise InputError("too many messages")

    monkeypatch.setattr("taccl.groups.times_together", refuse)
    two = [Instance("a", n, "allgather", 4000, (2 * n, 2 * n + 1), chunks=1) for n in (0, 1)]
    told: list[str] = []
    request = replace(asked(2, programs=True, engine="ring"), report=told.append)
    found = synthesize_groups(groups_of(two, 4), load_topology("hub:4"), request)
    assert not found.replayed
    assert "too many messages" in told
    assert [part.together for part in found.parts] == [part.alone for part in found.parts]

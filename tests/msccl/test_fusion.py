"""Fused steps: where they can be used they are, and nothing that overlaps is serialized."""

from dataclasses import replace

from taccl.collectives import build_collective
from taccl.model.schedule import Schedule
from taccl.msccl.interpret import judge
from taccl.msccl.program import RECEIVES, Buffer, Op, Program, Slot
from tests.generators import random_schedule
from tests.msccl.builders import COLLECTIVE_NAMES, make, mesh, ring_schedule, small_schedules, timed
from tests.sweep import for_each

FUSED = RECEIVES - {Op.RECV}
SUMS = frozenset({Op.RECV_REDUCE_COPY})
SMALL = small_schedules()
MODES: dict[str, dict[str, bool]] = {
    "both modes": {}, "in place": {"out_of_place": False}, "out of place": {"in_place": False},
}  # fmt: skip


def fused(schedule: Schedule, **options: object) -> Program:
    options = {"fused": FUSED, **options}
    return make(schedule, max_threadblocks=200, max_bytes=1 << 20, **options)


def ops(program: Program, rank: int) -> list[list[Op]]:
    return [[step.op for step in block.steps] for block in program.gpus[rank].threadblocks]


def test_a_ring_of_sums_is_one_threadblock_of_fused_steps() -> None:
    # Send an own value, add to three that pass by, keep the fourth.
    program = fused(ring_schedule("reducescatter", 4))
    assert ops(program, 0) == [
        [Op.SEND, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY]
    ]
    assert all(gpu.scratch_chunks == 0 for gpu in program.gpus)


def test_a_ring_of_copies_is_one_threadblock_of_fused_steps() -> None:
    program = fused(ring_schedule("allgather", 4), out_of_place=False)
    assert ops(program, 0) == [[Op.SEND, Op.RECV_COPY_SEND, Op.RECV_COPY_SEND, Op.RECV]]


def test_a_ring_allreduce_turns_round_with_a_sum_that_is_kept_and_sent() -> None:
    program = fused(ring_schedule("allreduce", 3), out_of_place=False)
    assert ops(program, 0) == [
        [Op.SEND, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY_SEND, Op.RECV_COPY_SEND, Op.RECV]
    ]


def test_what_one_message_carries_to_several_places_is_fused_piece_by_piece() -> None:
    # Two chunks a rank travel together, and an instance has a part of each, which are not adjacent.
    ring = ring_schedule("allreduce", 3, 2, batched=True)
    program = fused(ring, out_of_place=False, instances=2)
    once = [Op.SEND, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY_SEND, Op.RECV_COPY_SEND, Op.RECV]
    assert ops(program, 0) == 2 * [[op for op in once for _ in range(2)]]
    # With Simple a connection holds two messages, and all ranks wait for one another.
    assert [finding.rule for finding in judge(program, "executor")] == ["deadlock"]
    assert judge(replace(program, protocol="LL128", max_bytes=1 << 16), "executor") == []


def test_a_sum_is_added_to_the_own_value_as_it_arrives() -> None:
    program = fused(SMALL["mesh-reducescatter-2-1-single"], fused=SUMS)
    steps = [s for block in program.gpus[0].threadblocks for s in block.steps]
    (added,) = (step for step in steps if step.op is Op.RECV_REDUCE_COPY)
    assert (added.src, added.dst) == (Slot(Buffer.INPUT, 0), Slot(Buffer.OUTPUT, 0))
    assert not any(step.op is Op.COPY for step in steps)


def test_only_the_step_types_that_are_allowed_are_used() -> None:
    for schedule in SMALL.values():
        used = {s.op for _, block in fused(schedule, fused=SUMS).blocks() for s in block.steps}
        assert not used & (FUSED - SUMS)
        plain = {s.op for _, block in make(schedule).blocks() for s in block.steps}
        assert not plain & FUSED


def test_a_value_that_others_need_while_it_is_sent_on_is_not_fused() -> None:
    # Rank 1 passes chunk 0 to ranks 2 and 3 at once; either send fused would delay the other.
    topology, collective = mesh(4), build_collective("allgather", 4, 1)
    ends = [(0, 1), (1, 2), (1, 3)]
    rows = [(0, topology.links_between(*pair)[0], n, False) for n, pair in enumerate(ends)]
    program = fused(timed(collective, topology, rows))
    assert Op.RECV_COPY_SEND not in {op for block in ops(program, 1) for op in block}


def test_connections_that_are_busy_at_once_do_not_share_a_threadblock() -> None:
    # Chunk 1 comes in when rank 1 still has to send two chunks before it may send on chunk 0.
    topology, collective = mesh(3), build_collective("allgather", 3, 2)
    rows = [
        (0, topology.links_between(0, 1)[0], 0, False),
        (2, topology.links_between(1, 2)[0], 1, False),
        (1, topology.links_between(0, 1)[0], 2, False),
        (3, topology.links_between(1, 2)[0], 3, False),
        (0, topology.links_between(1, 2)[0], 4, False),
    ]
    program = fused(timed(collective, topology, rows))
    assert not any(
        block.send_to is not None and block.recv_from is not None
        for block in program.gpus[1].threadblocks
    )


@for_each("modes", MODES)
@for_each("name", [name for name in SMALL if "-4-" not in name or "-1-" in name])
def test_fused_programs_are_judged_clean(name: str, modes: str) -> None:
    assert judge(fused(SMALL[name], **MODES[modes]), "executor") == []


@for_each("collective", COLLECTIVE_NAMES)
@for_each("seed", range(20))
def test_random_fused_programs_are_judged_clean(seed: int, collective: str) -> None:
    assert judge(fused(random_schedule(seed, collective)), "executor") == []


@for_each("name", SMALL)
def test_fusing_never_takes_more_steps_threadblocks_or_scratch(name: str) -> None:
    plain, program = make(SMALL[name]), fused(SMALL[name])
    for before, after in zip(plain.gpus, program.gpus, strict=True):
        assert len(after.threadblocks) <= len(before.threadblocks)
        assert after.scratch_chunks <= before.scratch_chunks
        steps = [sum(len(b.steps) for b in gpu.threadblocks) for gpu in (before, after)]
        assert steps[1] <= steps[0]

"""Messages of chunks that are no neighbours: copied side by side, sent as one, and put apart."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl.collectives import COLLECTIVES, build_collective
from taccl.lowering.draft import in_a_row, packed, shifted
from taccl.model.schedule import Decisions, Schedule, retime
from taccl.msccl.interpret import judge
from taccl.msccl.program import SENDS, Buffer, Op, Program, Slot
from taccl.topology.symmetry import make_group
from taccl.verify import verify
from tests.generators import random_schedule
from tests.msccl.builders import make, mesh, timed
from tests.msccl.test_fusion import fused
from tests.sweep import for_each

WITH_XML = tuple(name for name in COLLECTIVES if name not in ("gather", "scatter"))


def at(*offsets: int) -> list[Slot]:
    return [Slot(Buffer.SCRATCH, offset) for offset in offsets]


def out(offset: int) -> Slot:
    return Slot(Buffer.OUTPUT, offset)


def apart(chunks: int = 3) -> Schedule:
    """Return an AllGather of two ranks whose chunks 0 and 2 travel together."""
    collective, topology = build_collective("allgather", 2, chunks), mesh(2)
    there, back = (topology.links_between(*ends)[0] for ends in ((0, 1), (1, 0)))
    rows = [(0, there, 0, False), (2, there, 0, False), (1, there, 1, False)]
    rows += [(chunk, back, chunk, False) for chunk in range(chunks, 2 * chunks)]
    decisions = replace(Decisions.of(rows), packs=True)
    group = make_group(topology, ())
    return retime(collective, group, timed(collective, topology, rows).chunk_size, decisions)


def ops(program: Program, rank: int) -> list[list[Op]]:
    return [[step.op for step in block.steps] for block in program.gpus[rank].threadblocks]


def num_sends(program: Program) -> int:
    return sum(
        step.op in SENDS for gpu in program.gpus for tb in gpu.threadblocks for step in tb.steps
    )


def test_slots_are_in_a_row_in_one_buffer_only() -> None:
    assert in_a_row(at(4, 5, 6))
    assert not in_a_row(at(4, 6))
    assert not in_a_row([*at(4), out(5)])
    assert not in_a_row([None, *at(1)])
    assert not in_a_row([*at(1), None])
    assert shifted(out(3), 2) == out(5)


def test_chunks_travel_in_the_order_of_the_slots_they_are_read_from() -> None:
    read = {7: at(2), 8: at(0), 9: at(1)}
    assert packed([7, 8, 9], read, dict.fromkeys(read)) == ((8, 9, 7), at(0, 1, 2))


def test_the_order_is_the_one_with_the_fewest_copies_at_both_ends() -> None:
    # In the order they are read in, three copies put them apart; as they are kept, two are made.
    read = {1: at(0), 2: at(1), 3: at(2), 4: at(3)}
    kept: dict[int, Slot | None] = {1: out(3), 2: out(0), 3: out(1), 4: out(2)}
    assert packed([1, 2, 3, 4], read, kept) == ((2, 3, 4, 1), at(1, 2, 3, 0))
    # Kept apart anyway, they are sent from where they are.
    kept = {1: out(6), 2: out(4), 3: out(2), 4: out(0)}
    assert packed([1, 2, 3, 4], read, kept) == ((1, 2, 3, 4), at(0, 1, 2, 3))


def test_a_chunk_is_read_where_it_lies_beside_the_one_before() -> None:
    read = {1: [*at(9), out(4)], 2: [*at(3), out(5)]}
    assert packed([1, 2], read, {1: None, 2: None}) == ((1, 2), [out(4), out(5)])


def test_a_chunk_that_is_nowhere_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"chunks \[1\] are nowhere to be read"):
        packed([1, 2], {1: [], 2: at(0)}, {1: None, 2: None})


def test_two_chunks_apart_are_copied_sent_as_one_and_put_apart() -> None:
    program = make(apart(), in_place=False)
    assert judge(program, "portable") == []
    sender = next(block for block in ops(program, 0) if Op.SEND in block)
    assert sender == [Op.COPY, Op.COPY, Op.SEND, Op.SEND]
    receiver = next(block for block in ops(program, 1) if Op.RECV in block)
    assert receiver[-4:] == [Op.RECV, Op.COPY, Op.COPY, Op.RECV]


def test_without_packing_the_same_messages_are_refused() -> None:
    schedule = apart()
    assert verify(schedule) == []
    rules = {violation.rule for violation in verify(replace(schedule, packs=False))}
    assert rules == {"adjacency"}


@given(seed=st.integers(0, 10**6), collective=st.sampled_from(WITH_XML), in_place=st.booleans())
@settings(max_examples=80)
def test_any_chunks_that_travel_together_become_one_step(
    seed: int, collective: str, in_place: bool
) -> None:
    schedule = random_schedule(seed, collective, packs=True)
    assert verify(schedule) == []
    program = make(schedule, in_place=in_place, max_threadblocks=200)
    assert judge(program, "executor") == []
    assert num_sends(program) == len(set(schedule.batch.tolist()))


@for_each("collective", WITH_XML, quick=24)
@for_each("seed", range(10))
def test_packed_programs_are_clean_when_fused_or_in_instances(seed: int, collective: str) -> None:
    schedule = random_schedule(seed, collective, packs=True)
    assert judge(fused(schedule), "executor") == []
    assert judge(make(schedule, instances=2, max_threadblocks=200), "executor") == []

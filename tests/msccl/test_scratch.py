"""Scratch is used again where lives can't overlap, and only there."""

from taccl.collectives import build_collective
from taccl.lowering.blocks import Cuts, assign_blocks, number_connections
from taccl.lowering.dependencies import find_dependences
from taccl.lowering.draft import Draft, make_draft
from taccl.lowering.scratch import share_scratch
from taccl.model.schedule import Schedule
from taccl.msccl.interpret import judge
from taccl.msccl.program import Buffer
from tests.generators import random_schedule
from tests.msccl.builders import (
    COLLECTIVE_NAMES,
    make,
    mesh,
    ring,
    ring_schedule,
    small_schedules,
    timed,
)
from tests.sweep import for_each

SMALL = small_schedules()


def shared(schedule: Schedule) -> tuple[Draft, list[int]]:
    """Return a draft and its scratch after sharing, without fused steps."""
    draft = make_draft(schedule, in_place=False, out_of_place=True)
    cuts = Cuts({}, {}, {}, [0] * len(draft.messages))
    connection = number_connections(draft.moves, draft.lanes, draft.schedule.topology, cuts)
    blocks = assign_blocks(draft.moves, draft.lanes, draft.schedule.topology, connection, {})
    _, clocks = find_dependences(draft, blocks, "ports")
    _, sizes = share_scratch(draft.moves, clocks, draft.scratch)
    return draft, sizes


def test_arrivals_over_one_link_take_turns_in_one_place() -> None:
    # 0 -> 1 carries eight chunks to be added: each is added before the next one is received.
    topology, collective = ring(2), build_collective("reducescatter", 2, 8)
    rows = [(8 + n, topology.links_between(0, 1)[0], n, True) for n in range(8)]
    draft, sizes = shared(timed(collective, topology, rows))
    assert (draft.scratch[1], sizes[1]) == (8, 1)


def test_arrivals_over_different_links_have_places_of_their_own() -> None:
    # Ranks 1 and 2 send to rank 0 at once: two threadblocks hold a value each.
    topology, collective = mesh(3), build_collective("reducescatter", 3, 1)
    rows = [(0, topology.links_between(rank, 0)[0], rank, True) for rank in (1, 2)]
    _, sizes = shared(timed(collective, topology, rows))
    assert sizes[0] == 2


def test_chunks_that_travel_together_stay_neighbours() -> None:
    # Three chunks at a time round a ring: the three of one message, used again for the next.
    program = make(ring_schedule("reducescatter", 4, 3, batched=True))
    slots = {
        (slot.offset, step.count)
        for _, block in program.blocks()
        for step in block.steps
        for slot in (step.src, step.dst)
        if slot is not None and slot.buffer is Buffer.SCRATCH
    }
    assert {count for _, count in slots} == {3}
    assert all(offset % 3 == 0 for offset, _ in slots)


@for_each("name", SMALL)
def test_sharing_never_takes_more(name: str) -> None:
    draft, sizes = shared(SMALL[name])
    assert all(now <= before for now, before in zip(sizes, draft.scratch, strict=True))


@for_each("collective", COLLECTIVE_NAMES, quick=24)
@for_each("seed", range(20))
def test_programs_with_shared_scratch_have_no_races(seed: int, collective: str) -> None:
    program = make(random_schedule(seed, collective), max_threadblocks=200)
    assert judge(program, "executor") == []

"""Lowering: every program is right, ordered, free of deadlocks and within its limits."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import groupby
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl.collectives import COLLECTIVES, build_collective
from taccl.errors import LoweringError
from taccl.lowering import lower as lowering
from taccl.lowering.blocks import (
    SUMS,
    Block,
    Cuts,
    assign_channels,
    join_ends,
    number_connections,
    stretches_of,
    sums_by,
    ways_by_load,
)
from taccl.lowering.dependencies import MOST_FUSED, write_steps
from taccl.lowering.draft import Kind, Lane, Message, Move, order_events
from taccl.lowering.lower import (
    LowerOptions,
    draft_of,
    lower,
    modes_served,
    sum_at_once,
    sum_where_received,
)
from taccl.model.problem import Options, problem_of
from taccl.model.schedule import Decisions, Schedule, retime
from taccl.msccl.interpret import find_root, judge
from taccl.msccl.program import RECEIVES, SENDS, Buffer, Op, Program, Slot, StepRef
from taccl.msccl.run import deadlock
from taccl.msccl.xml import read_xml, write_xml
from taccl.replay.cost import model_of
from taccl.replay.timing import traces
from taccl.synth.flow.engine import flow
from taccl.topology.file import load_topology
from taccl.topology.symmetry import make_group
from tests.generators import random_schedule
from tests.msccl.builders import (
    hub,
    make,
    mesh,
    pairs_schedule,
    ring,
    ring_schedule,
    small_schedules,
    timed,
    twin,
)
from tests.sweep import for_each

SMALL = small_schedules()
WITH_XML = sorted(name for name, kind in COLLECTIVES.items() if kind.xml_name)
OPTIONS: dict[str, dict[str, object]] = {
    "both modes": {},
    "in place": {"out_of_place": False},
    "out of place": {"in_place": False},
    "two instances": {"instances": 2},
    "free order": {"order": "free"},
    "paced order": {"order": "paced"},
    "several connections": {"slots": 1},
    "short threadblocks": {"max_steps": 6},
    "short stretches": {"stretch": 2000},
    "short stretches of short threadblocks": {"stretch": 4000, "max_steps": 6},
}


def ops(program: Program, rank: int) -> list[list[Op]]:
    return [[step.op for step in block.steps] for block in program.gpus[rank].threadblocks]


def bare(steps: int = 1) -> Schedule:
    """Return a one-rank schedule without sends."""
    return timed(build_collective("allreduce", 1, steps), ring(1), [])


@for_each("options", OPTIONS, quick=264, parts=2)
@for_each("name", SMALL)
def test_a_lowered_program_is_judged_clean(name: str, options: str) -> None:
    assert judge(make(SMALL[name], **OPTIONS[options]), "portable") == []


@given(
    seed=st.integers(0, 10**6), collective=st.sampled_from(WITH_XML), sums=st.sampled_from(SUMS),
    adding=st.sampled_from([0, 500, 10**7]),
)  # fmt: skip
@settings(max_examples=120)
def test_any_schedule_becomes_a_clean_program(
    seed: int, collective: str, sums: str, adding: int
) -> None:
    schedule = random_schedule(seed, collective)
    program = make(schedule, max_threadblocks=200, sums=sums, adding=adding)
    assert judge(program, "executor") == []


def test_what_holds_sums_is_added_after_what_is_there_by_then() -> None:
    # Ranks 1 and 2 add up what ranks 4 and 5 have, and send it to rank 0, as rank 3 does its own.
    def added(third: int, adding: int) -> list[int]:
        messages = [
            Message(link, src, dst, (0,), (False,), start, start + 10, reduce=True, released=start)
            for link, src, dst, start in ((2, 5, 2, 0), (1, 4, 1, 0), (3, 1, 0, 10),
                                          (4, 2, 0, 16), (0, 3, 0, third))
        ]  # fmt: skip
        messages.sort(key=lambda one: (one.start, one.end))
        events = order_events(messages, mesh(6), build_collective("reduce", 6, 1), adding)
        last = [messages[number] for number, kind in events if kind is Kind.APPLY]
        return [message.src for message in last if message.dst == 0]

    assert added(12, 0) == [1, 3, 2], "in the order of the schedule: at 20, 22 and 26"
    assert added(12, 4) == [3, 1, 2], "sums are there at 24 and 26, and wait for two others"
    assert added(23, 4) == [1, 3, 2], "at 33: 24 + 2 * 4 is sooner, and 26 + 2 * 4 is not"
    assert added(90, 4) == [1, 2, 3], "nothing waits for what is far later"


@for_each("chunks_per_message", [1, 2, 3, 71])
@for_each("name", [name for name in SMALL if "batched" in name])
def test_no_program_deadlocks_with_one_slot(name: str, chunks_per_message: int) -> None:
    assert deadlock(make(SMALL[name]), chunks_per_message, 1) is None


@for_each("name", SMALL)
def test_lowering_twice_gives_the_same_program(name: str) -> None:
    assert make(SMALL[name]) == make(SMALL[name])


def test_only_alltoall_has_one_mode_for_free() -> None:
    served = {name: modes_served(build_collective(name, 2, 1)) for name in COLLECTIVES}
    assert served == {
        "allgather": (True, True),
        "reducescatter": (True, True),
        "allreduce": (True, True),
        "alltoall": (False, True),
        "broadcast": (True, True),
        "reduce": (True, True),
        "gather": (True, True),
        "scatter": (True, True),
    }


@pytest.mark.parametrize("collective", ["gather", "scatter"])
def test_what_no_runtime_can_hold_is_refused(collective: str) -> None:
    schedule = timed(build_collective(collective, 1, 1), ring(1), [])
    with pytest.raises(LoweringError, match=f"no runtime has a {collective} that a file can rely"):
        make(schedule)


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
def test_buffers_that_a_call_may_leave_out_have_no_chunks(collective: str) -> None:
    # NCCL reads sendbuff of a broadcast and writes recvbuff of a reduction at the root only.
    made = build_collective(collective, 3, 2, root=1)
    hops = [(1, 0), (1, 2)] if collective == "broadcast" else [(0, 1), (2, 1)]
    rows = [
        (chunk, mesh(3).links_between(*ends)[0], n, collective == "reduce")
        for n, (chunk, ends) in enumerate((c, h) for h in hops for c in (0, 1))
    ]
    program = make(timed(made, mesh(3), rows))
    sizes = [(gpu.input_chunks, gpu.output_chunks) for gpu in program.gpus]
    own, other = (2, 2), (0, 2) if collective == "broadcast" else (2, 0)
    assert sizes == [other, own, other]
    assert judge(program, "portable") == []
    assert find_root(program) == 1


@for_each("collective", ["broadcast", "reduce"])
@for_each("seed", range(10))
def test_the_root_of_a_program_is_found(seed: int, collective: str) -> None:
    schedule = random_schedule(seed, collective)
    program = make(schedule, max_threadblocks=200)
    assert judge(program, "executor", schedule.collective) == []
    assert find_root(program) == schedule.collective.root


def test_a_program_for_no_mode_is_refused() -> None:
    with pytest.raises(LoweringError, match="neither in-place nor out-of-place"):
        make(SMALL["ring-allgather-2-1-single"], in_place=False, out_of_place=False)


def test_own_chunks_are_copied_only_for_calls_out_of_place() -> None:
    schedule = SMALL["ring-allgather-2-1-single"]
    assert any(Op.COPY in block for block in ops(make(schedule), 0))
    assert not any(Op.COPY in block for block in ops(make(schedule, out_of_place=False), 0))


def test_a_sum_starts_as_a_copy_while_the_message_is_awaited() -> None:
    # Rank 0 is the target of chunk 0: copy its own value, receive rank 1's, add it.
    program = make(SMALL["mesh-reducescatter-2-1-single"])
    assert ops(program, 0) == [[Op.COPY, Op.RECV, Op.REDUCE], [Op.SEND]] or ops(program, 0) == [
        [Op.SEND],
        [Op.COPY, Op.RECV, Op.REDUCE],
    ]


def test_a_sum_that_is_only_passed_on_takes_no_copy() -> None:
    # Of four chunks rank 0 sends its own value of one, adds its own to two that pass by where they
    # arrive, and keeps the fourth in its output.
    program = make(ring_schedule("reducescatter", 4))
    (received,) = (block for block in ops(program, 0) if Op.RECV in block)
    assert Counter(received) == {Op.RECV: 3, Op.REDUCE: 3, Op.COPY: 1}
    sums = [step for step in program.gpus[0].threadblocks[0].steps if step.op is Op.REDUCE]
    assert [(step.src.buffer, step.dst.buffer) for step in sums if step.src and step.dst] == [
        (Buffer.INPUT, Buffer.SCRATCH), (Buffer.INPUT, Buffer.SCRATCH),
        (Buffer.SCRATCH, Buffer.OUTPUT),
    ]  # fmt: skip
    assert judge(program, "portable") == []


def test_neighbouring_chunks_of_a_batch_are_one_step() -> None:
    program = make(ring_schedule("allgather", 2, 3, batched=True))
    counts = {step.count for _, block in program.blocks() for step in block.steps}
    assert counts == {3}


def test_a_batch_of_more_than_71_chunks_is_cut() -> None:
    program = make(ring_schedule("allgather", 2, 100, batched=True))
    sends = [s.count for _, b in program.blocks() if b.send_to == 1 for s in b.steps]
    assert sends == [71, 29]


def test_threadblocks_only_send_or_only_receive() -> None:
    for schedule in SMALL.values():
        for _, block in make(schedule).blocks():
            assert block.send_to is None or block.recv_from is None


def test_a_rank_without_peers_copies_in_a_threadblock_of_its_own() -> None:
    program = make(bare(3))
    (block,) = program.gpus[0].threadblocks
    assert (block.send_to, block.recv_from) == (None, None)
    assert [(s.op, s.src, s.dst, s.count) for s in block.steps] == [
        (Op.COPY, Slot(Buffer.INPUT, 0), Slot(Buffer.OUTPUT, 0), 3)
    ]


@pytest.mark.parametrize("collective", WITH_XML)
def test_one_rank_alone_is_lowered(collective: str) -> None:
    program = make(timed(build_collective(collective, 1, 2), ring(1), []))
    assert judge(program, "portable") == []


def test_alltoall_in_place_stages_what_arrives_before_its_slot_was_sent() -> None:
    # In place o[1] of rank 0 is i[1], which it must have sent to rank 1 before.
    program = make(pairs_schedule("alltoall", mesh(2)), out_of_place=False)
    staged = [
        rank
        for rank, block in program.blocks()
        for step in block.steps
        if step.op is Op.RECV and step.dst is not None and step.dst.buffer is Buffer.SCRATCH
    ]
    assert len(staged) == 1


def test_the_second_of_two_parallel_links_is_the_second_connection() -> None:
    topology = twin()
    first, second = topology.links_between(0, 2)
    rows = [(0, second, 0, False)]
    program = make(timed(build_collective("allgather", 4, 1), topology, rows))
    sending = [(b.channel, len(b.steps)) for b in program.gpus[0].threadblocks if b.send_to == 2]
    assert sorted(sending) == [(0, 0), (1, 1)]
    assert first < second


def test_both_parallel_links_are_used_at_once() -> None:
    topology = twin()
    first, second = topology.links_between(0, 2)
    rows = [(0, first, 0, False), (1, second, 1, False)]
    program = make(timed(build_collective("allgather", 4, 2), topology, rows))
    sending = [(b.channel, len(b.steps)) for b in program.gpus[0].threadblocks if b.send_to == 2]
    assert sorted(sending) == [(0, 1), (1, 1)]


def test_a_long_threadblock_becomes_several_on_higher_channels() -> None:
    # Ten sends over one link with at most four steps a threadblock: three connections.
    program = make(ring_schedule("allgather", 2, 10), max_steps=4)
    sending = [(b.channel, len(b.steps)) for b in program.gpus[0].threadblocks if b.send_to == 1]
    assert [channel for channel, _ in sending] == list(range(len(sending)))
    assert len(sending) >= 3
    assert max(count for _, count in sending) <= 4


def test_parallel_links_keep_their_turn_when_threadblocks_are_split() -> None:
    topology = twin()
    second = topology.links_between(0, 2)[1]
    rows = [(chunk, second, chunk, False) for chunk in range(8)]
    program = make(timed(build_collective("allgather", 4, 8), topology, rows), max_steps=4)
    used = [b.channel for b in program.gpus[0].threadblocks if b.send_to == 2 and b.steps]
    assert used
    assert all(channel % 2 == 1 for channel in used)


def test_instances_cut_chunks_and_clone_threadblocks() -> None:
    schedule = SMALL["ring-allgather-3-1-single"]
    one, two = make(schedule), make(schedule, instances=2)
    assert two.chunks_per_loop == 2 * one.chunks_per_loop
    assert two.num_threadblocks == 2 * one.num_threadblocks
    assert two.channels == 2 * one.channels


def test_instances_take_the_parallel_links_in_turn() -> None:
    topology = twin()
    second = topology.links_between(0, 2)[1]
    schedule = timed(build_collective("allgather", 4, 1), topology, [(0, second, 0, False)])
    program = make(schedule, instances=2)
    sending = [(b.channel, len(b.steps)) for b in program.gpus[0].threadblocks if b.send_to == 2]
    assert sorted(sending) == [(0, 0), (1, 1), (2, 0), (3, 1)]


def test_sends_that_share_a_port_keep_their_order() -> None:
    # Rank 0 sends through one port to rank 1, then to rank 2: the second waits for the first.
    program = make(pairs_schedule("allgather", hub(3)))
    sends = [b for b in program.gpus[0].threadblocks if b.send_to is not None]
    assert [b.send_to for b in sends] == [1, 2]
    assert sends[1].steps[0].depends == StepRef(sends[0].id, 0)
    assert sends[0].steps[0].posts


def test_in_free_order_nothing_waits_for_the_port() -> None:
    program = make(pairs_schedule("allgather", hub(3)), order="free")
    assert not any(s.depends for _, block in program.blocks() for s in block.steps)


def test_links_with_ports_of_their_own_need_no_order() -> None:
    program = make(pairs_schedule("allgather", mesh(3)))
    assert not any(s.depends for _, block in program.blocks() for s in block.steps)


@for_each("name", SMALL)
def test_exactly_the_awaited_steps_post(name: str) -> None:
    program = make(SMALL[name])
    for gpu in program.gpus:
        awaited = {s.depends for b in gpu.threadblocks for s in b.steps if s.depends}
        posting = {
            StepRef(b.id, at)
            for b in gpu.threadblocks
            for at, step in enumerate(b.steps)
            if step.posts
        }
        assert awaited == posting


def star_sum(n: int) -> Schedule:
    """Ranks 1.. send chunk 0 to rank 0 over wires of their own, and rank 0 sends it back."""
    topology, collective = mesh(n), build_collective("allreduce", n, 1)
    rows = [(0, topology.links_between(r, 0)[0], r, True) for r in range(1, n)]
    rows += [(0, topology.links_between(0, r)[0], n + r, False) for r in range(1, n)]
    return timed(collective, topology, rows)


def test_a_step_with_several_dependences_has_nops_before_it() -> None:
    # Rank 0 reads three chunks that came in three threadblocks: two nops and the send's own.
    topology, collective = mesh(4), build_collective("allgather", 4, 1)
    rows = [(r, topology.links_between(r, 0)[0], r, False) for r in (1, 2)]
    link = topology.links_between(0, 3)[0]
    rows += [(c, link, 9, False) for c in (0, 1, 2)]
    program = make(timed(collective, topology, rows))
    (sending,) = (b for b in program.gpus[0].threadblocks if b.send_to == 3)
    assert [s.op for s in sending.steps] == [Op.NOP, Op.SEND]
    assert all(step.depends is not None for step in sending.steps)
    assert sending.steps[-1].count == 3


def test_a_sum_waits_for_the_sum_before_it_and_not_for_earlier_ones() -> None:
    # Each re at rank 0 changes the same slot, so each waits for the previous one alone.
    program = make(star_sum(4))
    waits = [s.depends for b in program.gpus[0].threadblocks for s in b.steps if s.op is Op.REDUCE]
    assert [w is None for w in waits] == [True, False, False]
    assert not any(s.op is Op.NOP for b in program.gpus[0].threadblocks for s in b.steps)


def test_orbits_are_lowered_like_all_their_sends() -> None:
    topology, collective = ring(4), build_collective("allgather", 4, 1)
    group = make_group(topology, [(1, 2, 3, 0)])
    # Chunk 0 goes round the ring; its images under the rotation are the other chunks.
    rows = [(0, topology.links_between(r, r + 1)[0], r, False) for r in range(3)]
    schedule = retime(collective, group, Fraction(1024), Decisions.of(rows))
    assert len(schedule) == 3
    assert judge(make(schedule), "portable") == []


def test_a_send_decided_before_an_arrival_reads_the_own_value() -> None:
    # Both ranks send their own value before the other's arrives: an exchange, and no FIFO is full.
    topology, collective = mesh(2), build_collective("allreduce", 2, 1)
    there, back = (topology.links_between(a, 1 - a)[0] for a in (0, 1))
    rows = [(0, there, 0, True), (0, back, 1, True), (1, there, 2, True), (1, back, 3, True)]
    schedule = timed(collective, topology, rows)
    together = replace(
        schedule,
        start=np.array([0, 0, 10**9, 10**9], dtype=np.int64),
        end=np.array([5, 5, 10**9 + 5, 10**9 + 5], dtype=np.int64),
    )
    assert judge(make(together), "portable") == []


LIMITS: dict[str, tuple[Callable[[], Program], str]] = {
    "channels": (
        lambda: make(ring_schedule("allgather", 2, 40), max_steps=4, channels=3),
        "channels, and 3 are allowed",
    ),
    "threadblocks": (
        lambda: make(pairs_schedule("allgather", mesh(4)), max_threadblocks=5),
        "needs 6 threadblocks on a rank, and 5 are allowed",
    ),
    "steps": (
        lambda: make(ring_schedule("allreduce", 2), max_steps=2),
        "needs more than the 2 steps",
    ),
    "offsets": (
        lambda: make(bare(40_000), max_threadblocks=999),
        "needs 40000 chunks in a buffer, and 32768 are allowed",
    ),
    "ids": (
        lambda: make(
            pairs_schedule("allgather", hub(4)), instances=40, max_threadblocks=999, channels=64
        ),
        "as the highest threadblock id that a step waits for, and 127 are allowed",
    ),
}


@pytest.mark.parametrize("limit", LIMITS)
def test_a_limit_that_can_not_be_kept_is_named(limit: str) -> None:
    build, message = LIMITS[limit]
    with pytest.raises(LoweringError, match=message) as caught:
        build()
    assert caught.value.fix is not None


def test_a_name_keeps_only_what_the_runtimes_read() -> None:
    program = lower(bare(), LowerOptions(name='a"<b>' + "x" * 99))
    assert program.name == "a__b_" + "x" * 58


@pytest.mark.parametrize("name", ["ring-allreduce-2-1-single", "hub-alltoall-3-1-single"])
def test_the_text_of_a_program_is_golden(name: str, golden: Callable[[str, str], None]) -> None:
    program = make(SMALL[name], in_place="alltoall" not in name)
    golden(f"msccl/{name}.xml", write_xml(program))


@for_each("runtime", ["portable", "msccl", "executor", "rccl"])
@for_each("name", SMALL)
def test_reading_what_was_written_gives_the_program(name: str, runtime: str) -> None:
    program = make(SMALL[name])
    assert read_xml(write_xml(program, runtime)) == program


def test_one_of_those_who_receive_adds_all_that_is_added_to_a_place() -> None:
    places = [Slot(Buffer.OUTPUT, place) for place in range(3)]
    moves = [
        Move(rank, Op.REDUCE, Slot(Buffer.SCRATCH, 0), place, 1, 2 * rank + message)
        for rank in range(2) for place in places for message in range(2)
    ]  # fmt: skip
    moves.append(Move(0, Op.COPY, places[0], places[1], 1, None))
    moves.append(Move(1, Op.REDUCE, Slot(Buffer.SCRATCH, 0), places[0], 1, 3))
    lanes = [Lane(2 + message % 2, message // 2, 0) for message in range(4)]
    by_rank = {
        how: [[move.message for move in sums_by(how, moves, lanes, dict.fromkeys(range(4), 0))
               if move.rank == rank and move.dst] for rank in range(2)]
        for how in SUMS
    }  # fmt: skip
    assert by_rank["apart"] == [[0, 1, 0, 1, 0, 1, None], [2, 3, 2, 3, 2, 3, 3]]
    # Places are shared out among those who receive; what comes later is added by its receiver.
    assert by_rank["together"] == [[0, 0, 1, 1, 0, 0, None], [2, 2, 3, 3, 2, 2, 3]]


def test_together_all_is_added_at_once_and_after_the_last_of_it_was_received() -> None:
    schedule = pairs_schedule("reducescatter", hub(4), 2)
    options = LowerOptions("sums", sums="together")
    draft = sum_where_received(draft_of(schedule, options))
    late = sum_at_once(draft)
    assert sorted(map(str, late.moves)) == sorted(map(str, draft.moves))
    for rank in range(4):
        own = [move for move in late.moves if move.rank == rank]
        runs = [
            (dst, len(list(run)))
            for dst, run in groupby(m.dst if m.op is Op.REDUCE else None for m in own) if dst
        ]  # fmt: skip
        assert sorted(count for _, count in runs) == [3, 3]
        assert len({dst for dst, _ in runs}) == 2
    assert judge(lower(schedule, options), "portable", None) == []


def test_no_more_sums_fuse_than_a_runtime_can_and_none_of_other_counts() -> None:
    scratch, total = (Slot(buffer, 0) for buffer in (Buffer.SCRATCH, Buffer.OUTPUT))
    counts = [1] * (MOST_FUSED + 2) + [2, 2, 1]
    moves = [Move(0, Op.REDUCE, scratch, total, count, 0) for count in counts]
    block = Block(0, None, 1, Lane(1, 0, 0), 0, tuple(range(len(moves))))
    (steps,) = write_steps(moves, [block], [()] * len(moves))
    ends = [number for number, step in enumerate(steps) if step.posts]
    assert ends == [MOST_FUSED - 1, MOST_FUSED + 1, MOST_FUSED + 3]
    (waiting,) = write_steps(moves, [block, block], [(0,)] * len(moves))[:1]
    assert sum(step.posts for step in waiting) == 1


@pytest.mark.parametrize("how", SUMS)
def test_who_adds_does_not_change_what_a_program_computes(how: str) -> None:
    for name, schedule in SMALL.items():
        if schedule.collective.reduces:
            program = lower(schedule, LowerOptions(name, sums=how))
            assert judge(program, "portable", None) == [], name


def test_each_of_several_rings_keeps_connections_of_its_own() -> None:
    def ways(series: list[int], turns: int) -> list[int]:
        lane = Lane(0, 1, 0)
        moves = [Move(0, Op.SEND, Slot(Buffer.INPUT, 0), None, 1, n) for n in range(len(series))]
        cuts = Cuts({}, {lane: turns}, {}, series)
        found = number_connections(moves, [lane] * len(series), mesh(2), cuts)
        return [found[number] for number in range(len(series))]

    assert ways([5, 3, 3, 5, 5, 3], 2) == [1, 0, 0, 1, 1, 0]
    # With twice as many, the messages of each take its two in turn.
    assert ways([5, 3, 3, 5], 4) == [1, 0, 2, 3]
    # What can't be shared evenly goes in turn, as do messages of one series, or of one each.
    for series, turns in (([5, 3, 3, 3], 2), ([5, 3, 5, 3, 5, 3], 3), ([5] * 4, 2), ([2, 1, 0], 3)):
        assert ways(series, turns) == [number % turns for number in range(len(series))]


def test_threadblocks_that_are_left_over_go_to_the_busiest_links() -> None:
    one, two = Lane(0, 1, 0), Lane(0, 2, 0)
    # Six messages with a chunk each, and three with two: links are as busy, and the first is first.
    lanes = [one] * 6 + [two] * 3
    messages = [
        Message(0, 0, lane.dst, tuple(range(2 if lane == two else 1)), (), 0, 1, reduce=False,
                released=1)
        for lane in lanes
    ]  # fmt: skip
    for room, ways in ((2, {}), (3, {one: 2}), (4, {one: 2, two: 2}), (5, {one: 3, two: 2}),
                       (99, {one: 6, two: 3})):  # fmt: skip
        assert ways_by_load(messages, lanes, room) == ways, room


def test_joined_ends_that_receive_need_no_threadblocks_of_their_own() -> None:
    # Six messages from 0 to 1, of two series, and as many on to 2.
    lanes = [Lane(0, 1, 0)] * 6 + [Lane(1, 2, 0)] * 6
    series = [0, 1] * 6
    messages = [
        Message(0, lane.src, lane.dst, (0,), (), 0, 1, reduce=False, released=1) for lane in lanes
    ]
    assert ways_by_load(messages, lanes, 3) == {Lane(0, 1, 0): 2}
    # Rank 1 both receives and sends on, so that two ends each way are two threadblocks; a series
    # has one connection.
    for room, ways in ((1, {}), (2, dict.fromkeys(lanes, 2)), (9, dict.fromkeys(lanes, 2))):
        assert ways_by_load(messages, lanes, room, series) == ways, room


def test_a_chain_of_joined_connections_has_one_channel() -> None:
    one, two, back = (0, 1), (1, 2), (1, 0)
    apart = assign_channels({one: 2, two: 2}, [], 32)
    assert [apart[pair, n] for pair in (one, two) for n in range(2)] == [0, 1, 0, 1]
    chained = assign_channels({one: 2, two: 2}, [((one, 0), (two, 1)), ((one, 1), (two, 0))], 32)
    assert chained[one, 0] == chained[two, 1] != chained[one, 1] == chained[two, 0]
    crowded = assign_channels({one: 1, back: 1, two: 1}, [((one, 0), (two, 0))], 1)
    assert crowded == {(one, 0): 0, (two, 0): 0, (back, 0): 1}


@given(st.integers(2, 5), st.integers(1, 4), st.randoms(use_true_random=False))
def test_channels_tell_the_connections_of_a_pair_apart(n: int, most: int, random: Random) -> None:
    pairs = [(a, b) for a in range(n) for b in range(n) if a != b and random.random() < 0.7]
    spans = {pair: random.randint(1, most) for pair in pairs}
    all_of = [(pair, number) for pair in pairs for number in range(spans[pair])]
    out = {rank: [one for one in all_of if one[0][0] == rank] for rank in range(n)}
    joined, free = [], {rank: list(own) for rank, own in out.items()}
    chain = {one: frozenset({one}) for one in all_of}
    for one in all_of:
        after = free[one[0][1]]
        if not after or random.random() < 0.3:
            continue
        other = random.choice(after)
        both = chain[one] | chain[other]
        if chain[one] is not chain[other] and len({pair for pair, _ in both}) < len(both):
            continue
        joined.append((one, other))
        after.remove(other)
        chain |= dict.fromkeys(both, both)
    limit = max(2, n - 1)  # a chain may take as many of one rank
    found = assign_channels(spans, joined, limit)
    assert all(found[one] == found[other] for one, other in joined)
    assert len({(pair, channel) for (pair, _), channel in found.items()}) == len(all_of)
    for end in (0, 1):
        load = Counter((pair[end], channel) for (pair, _), channel in found.items())
        assert max(load.values(), default=0) <= limit


def test_round_rings_each_threadblock_passes_on_what_it_receives() -> None:
    schedule = ring_schedule("allgather", 4)
    plain, joined = (make(schedule, order="free", joined=joined) for joined in (False, True))
    assert plain.num_threadblocks == 2 * joined.num_threadblocks == 2
    for _, block in joined.blocks():
        own, *others = [step for step in block.steps if step.op is not Op.COPY]
        assert own.op is Op.SEND
        assert [step.op for step in others] == [Op.RECV, Op.SEND, Op.RECV, Op.SEND, Op.RECV]
        for received, sent in zip(others[::2], others[1::2], strict=False):
            assert received.dst == sent.src
    assert judge(joined, "portable") == []


def joined_or_none(schedule: Schedule, **options: object) -> Program | None:
    try:
        return make(
            schedule, joined=True, order="free", max_threadblocks=16, max_bytes=1 << 20, **options
        )
    except LoweringError:
        return None


def test_joined_threadblocks_keep_the_limit_and_compute_the_same() -> None:
    made = [
        joined_or_none(schedule, instances=instances, spread=spread)
        for schedule in SMALL.values() for instances in (1, 2) for spread in (False, True)
    ]  # fmt: skip
    programs = [program for program in made if program is not None]
    assert len(programs) > len(made) // 2
    assert all(program.num_threadblocks <= 16 for program in programs)
    found = [judge(program, "portable", None) for program in programs]
    # A threadblock that sends first may wait for one that does, too: searches leave these out.
    assert {finding.rule for findings in found for finding in findings} <= {"deadlock"}
    assert sum(not findings for findings in found) > len(found) // 2
    both = [
        None not in (block.send_to, block.recv_from)
        for program in programs for _, block in program.blocks()
    ]  # fmt: skip
    assert sum(both) > len(both) // 2


def test_joined_threadblocks_compute_the_same_with_fused_steps() -> None:
    met = 0
    for seed in range(60):
        name = ("allgather", "reducescatter", "allreduce")[seed % 3]
        program = joined_or_none(
            random_schedule(3_000_000 + seed, name), fused=RECEIVES - {Op.RECV}, spread=seed % 2 > 0
        )
        if program is not None:
            steps = [step.op for _, block in program.blocks() for step in block.steps]
            met += any(op in RECEIVES and op in SENDS for op in steps)
            assert {finding.rule for finding in judge(program, "msccl", None)} <= {"deadlock"}
    assert met > 20


def test_ends_with_one_peer_that_share_a_threadblock_do_not_wait_for_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def rules(seed: int, name: str) -> set[str]:
        program = joined_or_none(random_schedule(4_000_000 + seed, name))
        assert program is not None
        return {finding.rule for finding in judge(program, "portable", None)}

    cases = [(86, "alltoall"), (203, "allreduce"), (680, "reducescatter"), (802, "allgather")]
    assert [rules(*case) for case in cases] == [set()] * 4
    # All that is there before anything else is received: their queues are full, and neither reads.
    monkeypatch.setattr(lowering, "FEWEST_SLOTS", 1 << 30)
    assert [rules(*case) for case in cases] == [{"deadlock"}] * 4


def test_sums_aside_spare_a_step_for_each_message() -> None:
    schedule = ring_schedule("allreduce", 8)
    made = {
        sums: make(schedule, joined=True, order="free", sums=sums, max_threadblocks=16)
        for sums in ("apart", "aside")
    }
    assert {sums: program.num_threadblocks for sums, program in made.items()} == {
        "apart": 1, "aside": 2,
    }  # fmt: skip
    # Seven times received, added and sent, seven times received and sent; one own value is copied
    # to where its sum stays.
    assert {sums: program.num_steps for sums, program in made.items()} == {
        "apart": 1 + 7 * 3 + 7 * 2, "aside": 1 + 7 * 2 + 7 * 2,
    }  # fmt: skip
    for _, block in made["aside"].blocks():
        adds = {step.op for step in block.steps}
        assert adds == {Op.REDUCE} or Op.REDUCE not in adds
    assert not any(judge(program, "portable", None) for program in made.values())


def test_joined_threadblocks_pass_on_no_other_data_where_sends_end_with_copies() -> None:
    met = 0
    for seed in (4, 39, 54, 369, 549):
        schedule = random_schedule(2_000_000 + seed, "alltoall")
        for spread in (False, True):
            program = joined_or_none(
                schedule, instances=1 + seed % 2, spread=spread, protocol="LL", open_sends=True
            )
            if program is not None:
                met += 1
                assert {finding.rule for finding in judge(program, "portable")} <= {"deadlock"}
    assert met >= 6


def test_where_links_are_parallel_only_ends_with_one_peer_are_joined() -> None:
    lanes = [Lane(1, 0, 0), Lane(0, 2, 0), Lane(0, 1, 0)]
    messages = [
        Message(0, lane.src, lane.dst, (chunk,), (), 0, 1, reduce=False, released=1)
        for lane, chunk in zip(lanes, (0, 0, 1), strict=True)
    ]
    slot = Slot(Buffer.OUTPUT, 0)
    moves = [
        move
        for number, lane in enumerate(lanes)
        for move in (Move(lane.src, Op.SEND, slot, None, 1, number),
                     Move(lane.dst, Op.RECV, None, slot, 1, number))
    ]  # fmt: skip
    connection = {0: 0, 1: 0, 2: 0}
    onward, back = ((0, lanes[number], 0, True) for number in (1, 2))
    came = (0, lanes[0], 0, False)
    assert join_ends(moves, messages, lanes, connection, mesh(3), {})[came] == onward
    assert join_ends(moves, messages, lanes, connection, twin(), {})[came] == back
    # What is no more than half of what is received is not passed on: its own peer comes first.
    more = [replace(messages[0], chunks=(0, 2)), *messages[1:]]
    assert join_ends(moves, more, lanes, connection, mesh(3), {})[came] == back
    # Who already shares a threadblock keeps it.
    assert join_ends(moves, messages, lanes, connection, mesh(3), {came: back})[came] == back


def spread_or_refused(schedule: Schedule, instances: int) -> tuple[Program, Program] | str:
    """Return the program without and with spread threadblocks, or why there is none."""
    options = {"instances": instances, "max_threadblocks": 8, "order": "free"}
    try:
        return make(schedule, **options), make(schedule, spread=True, **options)
    except LoweringError as error:
        return str(error)


def test_spread_threadblocks_keep_the_limit_and_compute_the_same() -> None:
    made = [spread_or_refused(one, instances) for one in SMALL.values() for instances in (1, 2)]
    pairs = [pair for pair in made if not isinstance(pair, str)]
    assert len(pairs) >= 10
    assert all(plain.num_threadblocks <= spread.num_threadblocks <= 8 for plain, spread in pairs)
    assert not any(judge(spread, "portable", None) for _, spread in pairs)
    assert all("threadblocks" in reason for reason in made if isinstance(reason, str))


def test_a_links_messages_are_cut_into_stretches_of_time() -> None:
    # Starts 0, 3, 6 .. 27, each a link for 2: at most so long from a start to an end.
    lanes = [Lane(0, 1, 0)] * 10
    messages = [
        Message(0, 0, 1, (number,), (), 3 * number, 3 * number + 2, reduce=False,
                released=3 * number + 2)
        for number in range(10)
    ]  # fmt: skip
    for longest, sizes in (
        (2, [1] * 10),
        (5, [2] * 5),
        (7, [2] * 5),
        (8, [3, 3, 3, 1]),
        (29, [10]),
    ):
        stretches = stretches_of(messages, lanes, longest)
        assert list(Counter(stretches[number] for number in range(10)).values()) == sizes, longest


def test_iterations_overlap_as_far_as_the_busiest_link_lets_them() -> None:
    # 16 trees on 16 GPUs: a link has chunks that are sent first, and others that come seven hops
    # later. In one threadblock these hold up those of the next iteration.
    problem = problem_of(
        load_topology("mi250"), build_collective("broadcast", 16, 16, root=0), 16 << 25
    )  # fmt: skip
    schedule = flow(problem, Options(batch=False, deterministic=True, time_limit=2.0)).schedule
    assert schedule is not None
    busiest, times = max(schedule.edge_busy), []
    for stretch in (None, busiest):
        program = make(schedule, stretch=stretch, order="ports")
        assert not judge(program, "portable", None)
        (trace,) = traces(program, schedule.topology, (16 << 25,), model_of("portable", 4))
        times.append(trace.time or 0)
    assert times[0] > 2 * busiest
    assert times[1] < Fraction(6, 5) * busiest


def test_more_elements_than_a_reader_holds_are_refused_before_they_are_written() -> None:
    schedule = ring_schedule("allgather", 4, 40)
    assert make(schedule, instances=16, max_steps=500, out_of_place=False).num_threadblocks == 32
    with pytest.raises(LoweringError, match=r"needs \d+ XML elements of a rank, and 4095 are"):
        make(schedule, instances=20, max_steps=500, out_of_place=False)

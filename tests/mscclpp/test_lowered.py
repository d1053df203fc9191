"""Programs as plans: right in every mode, and every way to break one is found."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

import taccl
from taccl.apps.inputs import MachineOptions, load_machine
from taccl.apps.plans import MOST_BLOCKS, Wanted, best_plan, hurried_messages
from taccl.collectives import build_collective
from taccl.errors import LoweringError
from taccl.lowering.plans import PlanOptions, plan_of, rejoined, sliced
from taccl.msccl.program import Op, Program, Severity, errors_of
from taccl.msccl.run import maximal_run
from taccl.mscclpp.interpret import judge_plan, judge_text
from taccl.mscclpp.plan import MAX_OPS, MAX_SEMAPHORES, Plan, PlanOp
from taccl.mscclpp.text import read_plan, write_plan
from taccl.replay.cost import model_of
from taccl.replay.plans import replay_plan
from taccl.replay.timing import traces
from tests.msccl.builders import (
    hub,
    make,
    mesh,
    pairs_schedule,
    ring,
    ring_schedule,
    small_schedules,
    timed,
)
from tests.sweep import for_each

SCHEDULES = small_schedules()
SOME = sorted(SCHEDULES)[::4]
FUSED = frozenset(Op)
CORPUS = Path(__file__).parents[3] / "shared/data/mscclpp"


def options(program: Program) -> Iterator[PlanOptions]:
    """Yield the ways in which a program can become a plan, on one server and on two."""
    ranks = program.num_ranks
    for servers in ((0,) * ranks, tuple(2 * rank // ranks for rank in range(ranks))):
        for in_place, claimed in ((True, program.in_place), (False, program.out_of_place)):
            if claimed:
                for packets in (False, True):
                    yield PlanOptions(servers, in_place, packets)


@for_each("name", SOME, quick=8)
def test_programs_become_plans_that_are_right_and_read_back_as_written(name: str) -> None:
    made = make(SCHEDULES[name]), make(SCHEDULES[name], fused=FUSED)
    for program, one in ((each, one) for each in made for one in options(each)):
        plan = plan_of(program, one)
        assert not errors_of(judge_plan(plan)), one
        assert read_plan(write_plan(plan)) == plan
        assert plan.double_scratch == one.packets
        kinds = {op.channel_type for op in all_ops(plan)} - {""}
        assert kinds <= ({"memory"} if len(set(one.servers)) == 1 else {"memory", "port"})


def test_older_versions_get_no_operations_that_they_cannot_read() -> None:
    program = make(ring_schedule("allreduce", 4, 1), fused=FUSED)
    servers = (0, 0, 1, 1)
    names = {}
    for version in ("0.8", "0.9"):
        plan = plan_of(program, PlanOptions(servers, True, packets=True, version=version))
        assert not errors_of(judge_plan(plan, version))
        names[version] = {op.name for op in all_ops(plan)}
    assert "recpkt" not in names["0.8"]
    assert "recpkt" in names["0.9"]


def test_a_pipeline_moves_all_of_every_chunk() -> None:
    program = make(ring_schedule("allgather", 4, 1))
    plan = plan_of(program, PlanOptions((0,) * 4, True, unit=1 << 16))
    plan = replace(plan, max_bytes=1 << 30)
    assert {op.name for op in all_ops(plan)} >= {"pipeline", "put", "signal", "wait"}
    assert not errors_of(judge_plan(plan))


def test_each_of_a_group_moves_a_chunk_of_its_own_through_a_pipeline() -> None:
    program = make(ring_schedule("allreduce", 4, 1), fused=FUSED)
    for servers in ((0,) * 4, (0, 0, 1, 1)):
        whole = PlanOptions(servers, True, unit=1 << 16)
        one, shared = plan_of(program, whole), plan_of(program, replace(whole, group=4))
        assert not errors_of(judge_plan(replace(shared, max_bytes=1 << 30)))
        for rank, alone in zip(shared.ranks, one.ranks, strict=True):
            assert rank.input_chunks == 4 * alone.input_chunks
            assert len(rank.blocks) == 4 * len(alone.blocks)
            written = [
                {target.index for op in block.ops for one in op.inner for target in one.targets}
                for block in rank.blocks[:4]
            ]
            assert all(a.isdisjoint(b) for a, b in pairwise(written))
        # The kernel counts iterations by whole chunks, whatever a member's part of them is.
        assert {op.tbg for op in all_ops(shared)} == {None}


def test_packets_go_on_before_they_are_unpacked() -> None:
    program = make(ring_schedule("allgather", 4, 1), fused=FUSED)
    plan = plan_of(program, PlanOptions((0,) * 4, program.in_place, packets=True))
    forwarding = [
        [op.name for op in block.ops if op.name in ("rppkt", "upkt")]
        for rank in plan.ranks for block in rank.blocks
        if any(op.name == "rppkt" for op in block.ops)
    ]  # fmt: skip
    # Of three chunks that come the last goes no further.
    assert forwarding == [["rppkt", "upkt", "rppkt", "upkt", "upkt"]] * 4


def test_packets_are_sent_on_by_threadblocks_that_did_not_receive_them() -> None:
    found = taccl.synthesize(
        "hub:8", "broadcast", "1MB", engine="binomial", chunks=1, runtime="executor"
    )
    assert found.program is not None
    plan = plan_of(found.program, PlanOptions((0,) * 8, in_place=False, packets=True))
    assert not errors_of(judge_plan(plan))
    forwarding = [
        rank for rank in plan.ranks
        if sum(any(op.name == "rppkt" for op in block.ops) for block in rank.blocks) == 2
    ]  # fmt: skip
    assert forwarding
    # Each packet tells that it has come, so no threadblock tells another.
    assert not any(rank.semaphores for rank in forwarding)


def test_pipelines_keep_step_with_one_another() -> None:
    # Threadblocks that move one chunk and several at a time, and lists that are split.
    found = taccl.synthesize("hub:8", "allgather", "1MB", engine="halving-doubling")
    assert found.program is not None
    assert len({step.count for _, block in found.program.blocks() for step in block.steps}) > 1
    long = make(ring_schedule("allreduce", 20, 1))
    for program in (found.program, long):
        ranks = program.num_ranks
        plan = plan_of(program, PlanOptions((0,) * ranks, True, unit=1 << 16))
        assert not errors_of(judge_plan(replace(plan, max_bytes=1 << 30)))
        split = len(plan.ranks[0].blocks) > len(program.gpus[0].threadblocks)
        assert split == (program is long)
        # The first part of a list begins an iteration when the last one has ended the one before.
        assert any(1 in rank.semaphores for rank in plan.ranks) == split
    # Of the transfers of several chunks over a port the last one tells.
    program, servers = found.program, tuple(rank // 4 for rank in range(8))
    plan = plan_of(program, PlanOptions(servers, True, unit=1 << 16))
    assert {"put", "pws"} <= {op.name for op in all_ops(plan) if op.channel_type == "port"}
    assert not errors_of(judge_plan(replace(plan, max_bytes=1 << 30)))


@for_each(
    "name", [name for name in SCHEDULES if "-2-single" in name and "hub" not in name], quick=5
)
def test_first_and_last_messages_wait_for_no_word(name: str) -> None:
    program, model = make(SCHEDULES[name]), model_of("executor")
    ranks, one = program.num_ranks, SCHEDULES[name].topology
    size = 16 * program.chunks_per_loop * 512
    for servers in ((0,) * ranks, tuple(2 * rank // ranks for rank in range(ranks))):
        topology = replace(one, server_of=servers)
        (xml,) = traces(program, topology, [size], model)
        haste = hurried_messages(program, topology, Wanted(size))
        early, late = haste.early, haste.late
        assert early
        for in_place in [program.in_place] * program.in_place + [False] * program.out_of_place:
            told = plan_of(program, PlanOptions(servers, in_place, early=early, late=late))
            assert not errors_of(judge_plan(told))
            assert replay_plan(told, topology, size, model).time == xml.time
            plain = plan_of(program, PlanOptions(servers, in_place))
            slower = replay_plan(plain, topology, size, model).time
            assert slower is not None
            assert xml.time is not None
            assert slower > xml.time


@for_each("name", ["alltoall", "allgather"])
def test_a_start_of_a_message_goes_before_the_word_that_the_rest_waits_for(name: str) -> None:
    schedule, model, size = pairs_schedule(name, mesh(4), 1), model_of("executor"), 1 << 20
    program = make(schedule, fused=FUSED)
    counts = {}
    for rule in ("delay", "occupy"):
        topology = schedule.topology.with_alpha_rule(rule)
        made = best_plan(program, topology, Wanted(size, "Simple"), in_place=False)
        puts = [op for op in all_ops(made.plan) if op.name == "put"]
        counts[rule] = len(puts)
        (xml,) = traces(program, topology, [size], model)
        assert (made.time == xml.time) == (rule == "delay")
        assert not errors_of(judge_plan(made.plan))
    # Where alpha holds the link a second message costs as much as the word.
    assert counts == {"delay": 24, "occupy": 12}


def test_who_waits_for_its_turn_at_a_port_need_not_lose_it_to_the_word() -> None:
    # Messages of a rank are asked for at once, and each is longer than the word takes.
    schedule, size = pairs_schedule("allgather", hub(5), 1), 5 << 15
    program = make(schedule, order="free")
    haste = hurried_messages(program, schedule.topology, Wanted(size))
    assert haste.time == 10_842_880
    # Of the four of each the first begins at once; there is time for answers to the next two.
    assert [len(haste.early), len(haste.ready)] == [5, 10]
    # What begins at once gains all of a word.
    assert haste.urgent == haste.early
    options = PlanOptions((0,) * 5, program.in_place, early=haste.early | haste.ready)
    plan = plan_of(program, options)
    assert not errors_of(judge_plan(plan))
    begun = [[op.name for op in block.ops][:1] for rank in plan.ranks for block in rank.blocks]
    assert begun.count(["put"]) == 15
    time = replay_plan(plan, schedule.topology, size, model_of("executor")).time
    assert time == haste.time


def test_a_plan_does_its_lists_slice_by_slice_as_xml_does() -> None:
    # A chain of three ranks, whose chunks are two messages each.
    topology, size = ring(3), 2 << 22
    rows = [(chunk, hop, 2 * chunk + hop, False) for hop in (0, 1) for chunk in range(2)]
    program = make(timed(build_collective("broadcast", 3, 2), topology, rows, 1 << 22))
    haste = hurried_messages(program, topology, Wanted(size))
    assert haste.slices == 2
    times = []
    for source in (program, sliced(program, 2)):
        own = hurried_messages(source, topology, Wanted(size))
        assert own.time == haste.time
        plan = plan_of(source, PlanOptions((0,) * 3, in_place=False, early=own.early))
        assert not errors_of(judge_plan(plan))
        times.append(replay_plan(plan, topology, size, model_of("executor")).time)
    whole, cut = times
    assert whole is not None
    assert cut == haste.time < whole


def test_chunks_of_which_steps_move_several_are_sliced_one_by_one() -> None:
    program = make(ring_schedule("allreduce", 4, 3, batched=True), fused=FUSED)
    plan = plan_of(sliced(program, 2), PlanOptions((0, 0, 1, 1), program.in_place))
    assert not errors_of(judge_plan(plan))


def test_that_a_summand_has_been_read_is_said_before_the_sum_goes_on() -> None:
    schedule = ring_schedule("reducescatter", 4, 1)
    program = make(schedule, fused=FUSED)
    early, *_ = hurried_messages(program, schedule.topology, Wanted(1 << 10))
    plan = plan_of(program, PlanOptions((0,) * 4, program.in_place, early=early))
    names = [op.name for op in plan.ranks[0].blocks[0].ops]
    first = names.index("re")
    assert names[first : first + 5] == ["re", "nop", "signal", "put", "nop"]
    # Nobody waits to hear of the second summand.
    assert names.count("res") == 1


def test_packets_that_a_port_forwards_are_copied_first() -> None:
    # Otherwise they are overwritten two calls later, when the transfer may still go on.
    found = taccl.synthesize("ring:4", "broadcast", "1KB", engine="guided", runtime="executor")
    assert found.program is not None
    plan = plan_of(found.program, PlanOptions((0, 0, 1, 1), in_place=False, packets=True))
    assert not errors_of(judge_plan(plan))
    forwarded = [
        before.name
        for rank in plan.ranks for block in rank.blocks
        for before, after in pairwise(block.ops)
        if (after.name, after.channel_type) == ("rppkt", "port")
    ]  # fmt: skip
    assert "cpkt" in forwarded
    assert "upkt" not in forwarded


def test_that_a_transfer_is_over_is_said_before_waiting_for_others() -> None:
    program = make(pairs_schedule("reducescatter", hub(4), 1), fused=FUSED)
    plan = plan_of(program, PlanOptions((0, 0, 1, 1), in_place=False))
    assert not errors_of(judge_plan(plan))
    names = [[op.name for op in block.ops] for rank in plan.ranks for block in rank.blocks]
    told = [own for own in names if "re" in own and "sem_acquire" in own and "signal" in own]
    assert told
    assert all(own.index("signal") < own.index("sem_acquire") for own in told)


def test_who_answers_a_second_message_need_not_wait_for_what_the_first_waits_for() -> None:
    program = make(pairs_schedule("reducescatter", hub(4), 2), fused=FUSED)
    run = maximal_run(program)
    steps = [step for _, block in run.blocks for step in block.steps]
    heard = frozenset(
        (taken, taken - 1) for taken in run.sender
        if taken - 1 in run.sender and steps[taken - 1].depends is not None
    )  # fmt: skip
    told = []
    for one in (frozenset[tuple[int, int]](), heard):
        plan = plan_of(program, PlanOptions((0, 0, 1, 1), in_place=False, heard=one))
        assert not errors_of(judge_plan(plan))
        names = [[op.name for op in block.ops] for rank in plan.ranks for block in rank.blocks]
        own = [each for each in names if each.count("signal") == 2 and "sem_acquire" in each]
        told += [
            {each[: each.index("sem_acquire")].count("signal") for each in own if "re" in each}
        ]
    assert told == [{1}, {2}]


def test_what_goes_on_in_another_threadblock_is_sent_through_the_same_port() -> None:
    # A chain over two servers, whose program has at most six steps a threadblock.
    topology, size = replace(ring(3), server_of=(0, 1, 1)), 12 << 13
    rows = [(chunk, hop, 2 * chunk + hop, False) for hop in (0, 1) for chunk in range(12)]
    program = make(timed(build_collective("broadcast", 3, 12), topology, rows), max_steps=6)
    one, model = rejoined(program, topology), model_of("executor")
    (xml,) = traces(program, topology, [size], model)
    plans = [plan_of(each, PlanOptions((0, 1, 1), in_place=False)) for each in (program, one)]
    assert [len(plan.ranks[0].channels["port"]) for plan in plans] == [2, 1]
    apart, together = (replay_plan(plan, topology, size, model).time for plan in plans)
    assert apart is not None
    assert together is not None
    assert apart > together
    assert best_plan(program, topology, Wanted(size), in_place=False).time == xml.time
    assert rejoined(program, replace(topology, server_of=(0, 0, 0))) == program


def test_a_port_sends_packets_on_piece_by_piece() -> None:
    machine = load_machine("dgx-h100", MachineOptions(nodes=2))
    found = taccl.synthesize(machine, "broadcast", "1MB", engine="binomial", runtime="executor")
    program, model = found.program, replace(model_of("executor"), measured=True)
    assert program is not None
    options = PlanOptions(tuple(machine.server_of), in_place=False, packets=True)
    times = []
    for pieces in (1, 4):
        plan = plan_of(program, replace(options, pieces=pieces))
        assert not errors_of(judge_plan(plan))
        sent = [op for op in all_ops(plan) if op.channel_type == "port" and op.sources]
        assert len(sent) == pieces * program.chunks_per_loop
        times.append(replay_plan(plan, machine, found.size - found.size % 1024, model).time)
    whole, cut = times
    assert whole is not None
    assert cut is not None
    assert cut < whole
    # By alpha and beta each of the pieces holds the port for an alpha.
    wanted = Wanted(found.size - found.size % 1024, "LL")
    made = best_plan(program, machine, wanted, in_place=False)
    assert made.time == replay_plan(
        plan_of(program, options), machine, wanted.size, model_of("executor")
    ).time  # fmt: skip


def test_a_program_that_waits_for_full_fifos_becomes_a_plan() -> None:
    topology, size = hub(4), 12 << 12
    program = make(pairs_schedule("allreduce", topology, 3), fused=FUSED)
    (xml,) = traces(program, topology, [size], model_of("executor"))
    assert "free slot" in xml.reason
    made = best_plan(program, topology, Wanted(size), in_place=program.in_place)
    assert made.time > 0


def test_lists_of_over_64_operations_are_split() -> None:
    program = make(ring_schedule("allreduce", 24, 1))
    assert max(len(block.steps) for _, block in program.blocks()) > MAX_OPS // 2
    plan = plan_of(program, PlanOptions((0,) * 24, True))
    assert max(len(block.ops) for rank in plan.ranks for block in rank.blocks) <= MAX_OPS
    assert not errors_of(judge_plan(plan))


def test_semaphores_of_over_16_threadblocks_are_given_by_several_operations() -> None:
    program = make(pairs_schedule("allreduce", mesh(20), 1), fused=FUSED)
    plan = plan_of(program, PlanOptions((0,) * 20, program.in_place))
    given = {len(op.semaphores) for op in all_ops(plan) if op.name == "sem_release"}
    assert max(given) == MAX_SEMAPHORES
    assert not errors_of(judge_plan(plan))


@for_each("name", SOME, quick=6)
def test_the_threadblocks_of_a_group_do_a_part_of_everything_each(name: str) -> None:
    program = make(SCHEDULES[name], fused=FUSED)
    for one in options(program):
        if one.packets:
            continue
        whole, shared = plan_of(program, one), plan_of(program, replace(one, group=4))
        assert not errors_of(judge_plan(shared)), one
        assert read_plan(write_plan(shared)) == shared
        for rank, alone in zip(shared.ranks, whole.ranks, strict=True):
            # Where lists are long they are split, and finer ones sooner.
            assert len(rank.blocks) >= 4 * len(alone.blocks)
            assert len(rank.blocks) % 4 == 0
            for block in rank.blocks:
                data = [op for op in block.ops if op.sources]
                assert all(op.tbg is not None and op.tbg.tbg_size == 4 for op in data)
                assert len({op.tbg for op in data}) <= 1


def test_a_part_that_nobody_of_a_group_does_is_missed() -> None:
    program = make(ring_schedule("allgather", 4, 1))
    plan = plan_of(program, PlanOptions((0,) * program.num_ranks, program.in_place, group=2))
    rank = plan.ranks[0]
    block = rank.blocks[1]
    lazy = replace(block, ops=tuple(op for op in block.ops if not op.sources))
    broken = replace(plan, ranks=(replace(rank, blocks=(rank.blocks[0], lazy)), *plan.ranks[1:]))
    assert errors_of(judge_plan(broken))


def test_groups_are_made_where_a_threadblock_is_slower_than_its_links() -> None:
    machine = load_machine("dgx-h100")
    found = taccl.synthesize(
        machine, "allreduce", "64MB", engine="ring", chunks=1, runtime="executor"
    )
    program = found.program
    assert program is not None
    times = {}
    for measured in (False, True):
        wanted = Wanted(
            found.size, "Simple", model=replace(model_of("executor"), measured=measured)
        )
        made = best_plan(program, machine, wanted, in_place=program.in_place)
        members = {op.tbg for op in all_ops(made.plan) if op.sources}
        assert (members != {None}) == measured
        most = max(len(rank.blocks) for rank in made.plan.ranks)
        assert most <= MOST_BLOCKS
        times[measured] = made.time
    whole = plan_of(program, PlanOptions(tuple(machine.server_of), program.in_place))
    alone = replay_plan(whole, machine, found.size, replace(model_of("executor"), measured=True))
    assert alone.time is not None
    assert times[True] < alone.time / 2


def test_a_program_that_never_ends_becomes_no_plan() -> None:
    program = make(ring_schedule("allgather", 3, 1))
    gpus = tuple(
        replace(gpu, threadblocks=tuple(
            replace(block, steps=block.steps[::-1]) for block in gpu.threadblocks
        ))
        for gpu in program.gpus
    )  # fmt: skip
    with pytest.raises(LoweringError, match="does not end"):
        plan_of(replace(program, gpus=gpus), PlanOptions((0,) * 3, True))


def all_ops(plan: Plan) -> Iterator[PlanOp]:
    """Yield all operations, those of pipelines, too."""
    for rank in plan.ranks:
        for block in rank.blocks:
            for op in block.ops:
                yield op
                yield from op.inner


def changed(plan: Plan, change: Callable[[tuple[PlanOp, ...]], tuple[PlanOp, ...]]) -> Plan:
    """Return a plan with the operations of the first threadblock that a change makes others of."""
    for number, rank in enumerate(plan.ranks):
        for index, block in enumerate(rank.blocks):
            ops = change(block.ops)
            if ops != block.ops:
                blocks = list(rank.blocks)
                blocks[index] = replace(block, ops=ops)
                ranks = list(plan.ranks)
                ranks[number] = replace(rank, blocks=tuple(blocks))
                return replace(plan, ranks=tuple(ranks))
    raise AssertionError("nothing was changed")


def dropped(name: str, which: int = 0) -> Callable[[tuple[PlanOp, ...]], tuple[PlanOp, ...]]:
    """Return what leaves out an operation of a name."""

    def change(ops: tuple[PlanOp, ...]) -> tuple[PlanOp, ...]:
        places = [place for place, op in enumerate(ops) if op.name == name]
        if len(places) <= which:
            return ops
        return ops[: places[which]] + ops[places[which] + 1 :]

    return change


def edited(
    name: str, edit: Callable[[PlanOp], PlanOp]
) -> Callable[[tuple[PlanOp, ...]], tuple[PlanOp, ...]]:
    """Return what edits the first operation of a name."""

    def change(ops: tuple[PlanOp, ...]) -> tuple[PlanOp, ...]:
        for place, op in enumerate(ops):
            if op.name == name:
                return (*ops[:place], edit(op), *ops[place + 1 :])
        return ops

    return change


def shifted(op: PlanOp) -> PlanOp:
    (target, *more) = op.targets
    return replace(op, targets=(replace(target, index=(target.index + 1) % 4), *more))


def doubled(name: str) -> Callable[[tuple[PlanOp, ...]], tuple[PlanOp, ...]]:
    def change(ops: tuple[PlanOp, ...]) -> tuple[PlanOp, ...]:
        for place, op in enumerate(ops):
            if op.name == name:
                return (*ops[: place + 1], op, *ops[place + 1 :])
        return ops

    return change


def as_plan(schedule: str, *, packets: bool = False) -> Plan:
    made = {
        "ring": lambda: make(ring_schedule("allreduce", 4, 1), fused=FUSED),
        "gather": lambda: make(ring_schedule("allgather", 4, 1)),
        "hub": lambda: make(pairs_schedule("reducescatter", hub(4), 2, batched=True)),
        "pairs": lambda: make(pairs_schedule("allgather", mesh(3), 1)),
        "mesh": lambda: make(pairs_schedule("allreduce", mesh(3), 1)),
    }  # fmt: skip
    program = made[schedule]()
    return plan_of(program, PlanOptions((0,) * program.num_ranks, True, packets))


BROKEN: dict[str, tuple[Callable[[], Plan], str]] = {
    "signal dropped": (lambda: changed(as_plan("gather"), dropped("signal")), "deadlock"),
    "wait dropped": (lambda: changed(as_plan("gather"), dropped("wait")), "balance"),
    "nop before a signal dropped": (
        lambda: changed(as_plan("gather"), dropped("nop", 1)), "race",
    ),
    "greeting dropped on both sides": (
        lambda: without(as_plan("gather"), {"rlxsignal", "rlxwait"}), "race",
    ),
    "greeting not waited for": (lambda: changed(as_plan("gather"), dropped("rlxwait")), "balance"),
    "offset shifted": (lambda: changed(as_plan("gather"), edited("put", shifted)), "result"),
    "two messages in one place of scratch": (lambda: one_place(as_plan("ring")), "result"),
    "packets without double scratch": (
        lambda: replace(as_plan("pairs", packets=True), double_scratch=False), "race",
    ),
    "a packet that nobody writes": (
        lambda: changed(as_plan("mesh", packets=True), dropped("ppkt")), "deadlock",
    ),
    "a packet that is written twice": (
        lambda: changed(as_plan("mesh", packets=True), doubled("ppkt")), "packet",
    ),
    "wrong channel type": (
        lambda: changed(
            as_plan("gather"), edited("signal", lambda op: replace(op, channel_type="switch"))
        ), "structure",
    ),
    "65 operations": (
        lambda: changed(as_plan("gather"), lambda ops: ops + (PlanOp("nop"),) * (65 - len(ops))),
        "limit",
    ),
    "one signal too many": (lambda: changed(as_plan("gather"), doubled("signal")), "balance"),
    "not a sum": (
        lambda: changed(as_plan("ring"), edited("res", lambda op: replace(op, reduce_op="max"))),
        "structure",
    ),
    "a summand left out": (
        lambda: changed(
            as_plan("ring"), edited("res", lambda op: replace(op, sources=op.sources[:1]))
        ), "result",
    ),
}  # fmt: skip


def without(plan: Plan, names: set[str]) -> Plan:
    """Return a plan without the operations of some names."""
    return replace(plan, ranks=tuple(
        replace(rank, blocks=tuple(
            replace(block, ops=tuple(op for op in block.ops if op.name not in names))
            for block in rank.blocks
        ))
        for rank in plan.ranks
    ))  # fmt: skip


def one_place(plan: Plan) -> Plan:
    """Return a plan in which all that comes to a rank's scratch comes to its first chunk."""

    def moved(op: PlanOp) -> PlanOp:
        return replace(
            op,
            sources=tuple(
                replace(one, index=0) if one.buffer is not None and one.buffer.value == "s" else one
                for one in op.sources
            ),
            targets=tuple(
                replace(one, index=0) if scratch(plan, op, one.ref) else one for one in op.targets
            ),
        )

    return replace(plan, ranks=tuple(
        replace(rank, blocks=tuple(
            replace(block, ops=tuple(map(moved, block.ops))) for block in rank.blocks
        ))
        for rank in plan.ranks
    ))  # fmt: skip


def scratch(plan: Plan, op: PlanOp, ref: int) -> bool:
    """Tell whether an operation's remote buffer is scratch: all ranks of a ring number alike."""
    block = plan.ranks[0].blocks[0]
    kinds = block.remotes.get(op.channel_type, ())
    return 0 <= ref < len(kinds) and plan.ranks[0].remotes[kinds[ref]].buffer.value == "s"


@for_each("what", BROKEN)
def test_a_plan_that_is_broken_by_hand_is_rejected_with_place_and_fix(what: str) -> None:
    make_it, rule = BROKEN[what]
    plan = make_it()
    findings = errors_of(judge_plan(plan))
    assert rule in {finding.rule for finding in findings}, findings[:2]
    assert all(finding.fix for finding in findings)
    assert all(finding.gpu is not None for finding in findings), findings


def test_fences_stand_only_where_threads_have_to_agree() -> None:
    ops = as_plan("gather").ranks[0].blocks[0].ops
    names = [op.name for op in ops]
    assert "nop" in names
    assert not any(one == other == "nop" for one, other in pairwise(names))


RIGHT = {
    "allreduce", "allreduce_packet", "multi_node__allgather", "multi_node__allgather_pkt",
    "multi_node__reducescatter_pkt", "reduce_pack_tbg",
    "single_node__allgather_nvls_zero_copy_pkt", "single_node__allgather_pkt_rppkt",
    "single_node__allgather_tbg", "single_node__allreduce_naivy", "single_node__allreduce_pkt",
    "single_node__alltoall__alltoall", "single_node__alltoall__alltoall_ring",
    "single_node__alltoall__alltoall_ring_oop", "transfer_pack", "transfer_pack_tbg",
}  # fmt: skip
RACES = {
    "multi_node__send_recv": "transfer",
    "reduce_nvls": "relaxed", "reduce_nvls_pipeline": "relaxed",
    "single_node__allgather_nvls_zero_copy": "relaxed",
    "single_node__allreduce_nvls_zero_copy": "relaxed",
    "reduce_tbg": "other half",
}  # fmt: skip


@pytest.mark.skipif(not CORPUS.is_dir(), reason="no ../shared/data/mscclpp here")
def test_the_plans_that_mscclpp_ships_have_a_verdict_each() -> None:
    found = {}
    for path in sorted(CORPUS.glob("*.json")):
        findings = errors_of(judge_text(path.read_text(), file=path.name))
        found[path.stem] = {finding.rule for finding in findings}
        assert all(finding.fix for finding in findings), path
    assert len(found) == 46
    assert {name for name in RIGHT if found[name]} == set()
    # Written by others through relaxed signals or transfers that nobody waits for, or by halves of
    # a group that do not wait for one another.
    assert {name: found[name] for name in RACES} == {name: {"race"} for name in RACES}
    refused = judge_text((CORPUS / "unit_tests__switch_reduce_test.json").read_text())
    assert [(one.rule, one.severity) for one in refused] == [("refused", Severity.REJECTED)]


def test_a_size_that_the_program_is_not_for_is_told_with_its_range() -> None:
    schedule = ring_schedule("allgather", 4)
    program = make(schedule, min_bytes=1 << 10, max_bytes=1 << 20)
    for size in (1 << 9, 1 << 21):
        with pytest.raises(LoweringError, match=f"is for 1024..1048576 bytes, not for {size}"):
            best_plan(program, schedule.topology, Wanted(size), in_place=program.in_place)

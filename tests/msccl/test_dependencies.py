"""Dependences: none is missing, none is redundant, and sends wait for their turn where told."""

from collections.abc import Iterator
from dataclasses import replace

from taccl.collectives import build_collective
from taccl.lowering.lower import LowerOptions, draft_of, finish
from taccl.model.schedule import Schedule
from taccl.msccl.interpret import interpret, judge
from taccl.msccl.program import Op, Program, StepRef
from tests.generators import random_schedule
from tests.msccl.builders import COLLECTIVE_NAMES, hub, make, mesh, small_schedules, timed
from tests.msccl.test_mutations import with_block
from tests.sweep import for_each

SMALL = small_schedules()


def without_one_dependence(program: Program) -> Iterator[Program]:
    """Yield the program with each of its dependences taken away.

    One of several of a step is replaced by another, so that all steps keep their positions.
    """
    for rank, block in program.blocks():
        for place, step in enumerate(block.steps):
            if step.depends is None:
                continue
            near = [place - 1] if place and block.steps[place - 1].op is Op.NOP else []
            near += [place + 1] if step.op is Op.NOP else []
            other = block.steps[near[-1]].depends if near else None
            steps = list(block.steps)
            steps[place] = replace(step, depends=other)
            yield with_block(program, rank, replace(block, steps=tuple(steps)))


def raced(program: Program) -> bool:
    modes = ((True, program.in_place), (False, program.out_of_place))
    return any(
        finding.rule == "race"
        for in_place, claimed in modes
        if claimed
        for finding in interpret(program, in_place=in_place)
    )


@for_each("name", [name for name in SMALL if "-4-" not in name])
def test_without_any_one_dependence_there_is_a_race(name: str) -> None:
    program = make(SMALL[name], order="free")
    assert all(raced(mutant) for mutant in without_one_dependence(program))


@for_each("seed", range(6), quick=8)
@for_each("collective", COLLECTIVE_NAMES)
def test_random_programs_have_no_redundant_dependence(seed: int, collective: str) -> None:
    program = make(random_schedule(seed, collective), order="free", max_threadblocks=200)
    assert judge(program, "executor") == []
    assert all(raced(mutant) for mutant in without_one_dependence(program))


def meeting() -> Schedule:
    """Ranks 0 and 1 send to rank 2 through its one port; rank 0's turn comes after 3 -> 0.

    Rows in order: 1 -> 2, 3 -> 0, then 0 -> 2 as the port is free, all of one chunk.
    """
    topology, collective = hub(4), build_collective("allgather", 4, 1)
    ends = [(1, 2), (3, 0), (0, 2)]
    rows = [(src, topology.links_between(src, dst)[0], n, False) for n, (src, dst) in
            enumerate(ends)]  # fmt: skip
    return timed(collective, topology, rows)


def waits(program: Program, rank: int, peer: int) -> list[StepRef | None]:
    (block,) = (b for b in program.gpus[rank].threadblocks if b.send_to == peer)
    return [step.depends for step in block.steps]


def test_a_paced_send_waits_for_what_its_rank_finishes_before_its_turn() -> None:
    schedule = meeting()
    (receiving,) = (b for b in make(schedule).gpus[0].threadblocks if b.recv_from == 3)
    place = next(n for n, step in enumerate(receiving.steps) if step.op is Op.RECV)
    assert waits(make(schedule), 0, 2) == [None]
    assert waits(make(schedule, order="paced"), 0, 2) == [StepRef(receiving.id, place)]


def test_a_message_is_held_back_by_name() -> None:
    schedule = meeting()
    options = LowerOptions(name="t")
    draft = draft_of(schedule, options)
    late = next(n for n, message in enumerate(draft.messages) if message.src == 0)
    held = replace(options, held={late: 0})
    program = finish(draft, held).program
    assert [wait is not None for wait in waits(program, 0, 2)] == [True]


def test_a_message_whose_turn_nothing_marks_is_not_held_back() -> None:
    # Rank 1 finishes nothing before it sends.
    topology, collective = mesh(3), build_collective("allgather", 3, 1)
    schedule = timed(collective, topology, [(1, topology.links_between(1, 0)[0], 0, False)])
    options = LowerOptions(name="t", held={0: 10**9})
    assert waits(finish(draft_of(schedule, options), options).program, 1, 0) == [None]


def test_senders_say_which_step_sends_which_message() -> None:
    schedule = SMALL["ring-allreduce-3-1-single"]
    options = LowerOptions(name="t", instances=2)
    draft = draft_of(schedule, options)
    made = finish(draft, options)
    for (rank, threadblock, place), number in made.senders.items():
        block = made.program.gpus[rank].threadblocks[threadblock]
        assert block.steps[place].op is Op.SEND
        assert (rank, block.send_to) == (draft.messages[number].src, draft.messages[number].dst)
    assert len(made.senders) == 2 * len(draft.messages)

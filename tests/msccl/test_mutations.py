"""The judge objects to every single change of a right program that can make it go wrong."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from taccl.msccl.interpret import judge
from taccl.msccl.program import (
    READS_SOURCE,
    WRITES_TARGET,
    Buffer,
    Gpu,
    Op,
    Program,
    Slot,
    Step,
    StepRef,
    Threadblock,
)
from tests.msccl.builders import hub, make, mesh, pairs_schedule, ring_schedule
from tests.msccl.exhaustive import always_right
from tests.sweep import for_each

Mutants = Iterator[Program]


def with_block(program: Program, rank: int, block: Threadblock) -> Program:
    """Return the program with one threadblock replaced, found by its id."""
    gpus = list(program.gpus)
    blocks = list(gpus[rank].threadblocks)
    blocks[block.id] = block
    gpus[rank] = replace(gpus[rank], threadblocks=tuple(blocks))
    return replace(program, gpus=tuple(gpus))


def change_steps(
    program: Program, changes: Callable[[tuple[Step, ...], int], Iterator[tuple[Step, ...]]]
) -> Mutants:
    """Yield the program with the steps of one threadblock changed at one position."""
    for rank, block in program.blocks():
        for position in range(len(block.steps)):
            for steps in changes(block.steps, position):
                yield with_block(program, rank, replace(block, steps=steps))


def change_step(program: Program, changes: Callable[[Step], Iterator[Step]]) -> Mutants:
    """Yield the program with one step changed."""
    return change_steps(
        program,
        lambda steps, at: (
            (*steps[:at], changed, *steps[at + 1 :])
            for changed in changes(steps[at])
            if changed != steps[at]
        ),
    )


def drop_step(program: Program) -> Mutants:
    return change_steps(program, lambda steps, at: iter([(*steps[:at], *steps[at + 1 :])]))


def double_step(program: Program) -> Mutants:
    return change_steps(
        program, lambda steps, at: iter([(*steps[:at], *steps[at : at + 1], *steps[at:])])
    )


def swap_steps(program: Program) -> Mutants:
    def swapped(steps: tuple[Step, ...], at: int) -> Iterator[tuple[Step, ...]]:
        if at + 1 < len(steps):
            yield (*steps[:at], steps[at + 1], steps[at], *steps[at + 2 :])

    return change_steps(program, swapped)


def used_slots(step: Step) -> Iterator[tuple[str, Slot]]:
    if step.op in READS_SOURCE and step.src is not None:
        yield "src", step.src
    if step.op in WRITES_TARGET and step.dst is not None:
        yield "dst", step.dst


def with_slot(step: Step, field: str, slot: Slot) -> Step:
    return replace(step, src=slot) if field == "src" else replace(step, dst=slot)


def shift_slot(program: Program) -> Mutants:
    def shifted(step: Step) -> Iterator[Step]:
        for field, slot in used_slots(step):
            for by in (-1, 1):
                yield with_slot(step, field, Slot(slot.buffer, slot.offset + by))

    return change_step(program, shifted)


def change_buffer(program: Program) -> Mutants:
    def changed(step: Step) -> Iterator[Step]:
        for field, slot in used_slots(step):
            for buffer in Buffer:
                yield with_slot(step, field, Slot(buffer, slot.offset))

    return change_step(program, changed)


def change_count(program: Program) -> Mutants:
    return change_step(
        program, lambda step: (replace(step, count=step.count + by) for by in (-1, 1))
    )


def change_op(program: Program) -> Mutants:
    def changed(step: Step) -> Iterator[Step]:
        for op in Op:
            src, dst = step.src or step.dst, step.dst or step.src
            if op is not step.op:
                yield replace(
                    step,
                    op=op,
                    src=src if op in READS_SOURCE else None,
                    dst=dst if op in WRITES_TARGET else None,
                )

    return change_step(program, changed)


def drop_dependence(program: Program) -> Mutants:
    return change_step(program, lambda step: iter([replace(step, depends=None)]))


def move_dependence(program: Program) -> Mutants:
    def moved(step: Step) -> Iterator[Step]:
        if step.depends is not None:
            block, at = step.depends
            for other in ((block, at - 1), (block, at + 1), (block + 1, at), (block - 1, at)):
                yield replace(step, depends=StepRef(*other))

    return change_step(program, moved)


def drop_posts(program: Program) -> Mutants:
    return change_step(program, lambda step: iter([replace(step, posts=False)]))


def retarget_peer(program: Program) -> Mutants:
    for rank, block in program.blocks():
        for field in ("send_to", "recv_from"):
            for peer in (None, *range(program.num_ranks)):
                if peer != getattr(block, field):
                    yield with_block(program, rank, replace(block, **{field: peer}))


def change_channel(program: Program) -> Mutants:
    wider = replace(program, channels=program.channels + 1)
    for rank, block in program.blocks():
        if block.steps:
            yield with_block(wider, rank, replace(block, channel=block.channel + 1))


def drop_block(program: Program) -> Mutants:
    for gpu in program.gpus:
        for at in range(len(gpu.threadblocks)):
            kept = (*gpu.threadblocks[:at], *gpu.threadblocks[at + 1 :])
            yield with_gpu(program, replace(gpu, threadblocks=kept))


def shrink_buffers(program: Program) -> Mutants:
    for gpu in program.gpus:
        for field in ("input_chunks", "output_chunks", "scratch_chunks"):
            if getattr(gpu, field):
                yield with_gpu(program, replace(gpu, **{field: getattr(gpu, field) - 1}))


def with_gpu(program: Program, gpu: Gpu) -> Program:
    gpus = list(program.gpus)
    gpus[gpu.rank] = gpu
    return replace(program, gpus=tuple(gpus))


OPERATORS: dict[str, Callable[[Program], Mutants]] = {
    operator.__name__: operator
    for operator in (
        drop_step, double_step, swap_steps, shift_slot, change_buffer, change_count, change_op,
        drop_dependence, move_dependence, drop_posts, retarget_peer, change_channel, drop_block,
        shrink_buffers,
    )
}  # fmt: skip

PROGRAMS: dict[str, Callable[[], Program]] = {
    "ring allgather 3": lambda: make(ring_schedule("allgather", 3)),
    "ring allgather 4": lambda: make(ring_schedule("allgather", 4)),
    "mesh allgather 2 in batches": lambda: make(
        pairs_schedule("allgather", mesh(2), 3, batched=True)
    ),
    "hub allgather 3": lambda: make(pairs_schedule("allgather", hub(3))),
    "ring reducescatter 3": lambda: make(ring_schedule("reducescatter", 3)),
    "mesh reducescatter 2": lambda: make(pairs_schedule("reducescatter", mesh(2), 2)),
    "ring allreduce 2 in batches": lambda: make(ring_schedule("allreduce", 2, 2, batched=True)),
    "ring allreduce 3": lambda: make(ring_schedule("allreduce", 3)),
    "mesh alltoall 3": lambda: make(pairs_schedule("alltoall", mesh(3)), in_place=False),
    "mesh alltoall 2 in place": lambda: make(
        pairs_schedule("alltoall", mesh(2), 2), out_of_place=False
    ),
    "mesh alltoall 3 in place": lambda: make(
        pairs_schedule("alltoall", mesh(3)), out_of_place=False
    ),
}


def equivalent(mutant: Program) -> bool:
    """Tell whether a mutant is as good as a right program, whatever the interleaving."""
    modes = [m for m, on in ((True, mutant.in_place), (False, mutant.out_of_place)) if on]
    return all(
        always_right(mutant, in_place=mode, capacity=capacity)
        for mode in modes
        for capacity in (1, 2)
    )


@for_each("name", PROGRAMS)
def test_the_programs_themselves_are_right_in_every_interleaving(name: str) -> None:
    assert equivalent(PROGRAMS[name]())


@for_each("operator", OPERATORS, quick=len(PROGRAMS), parts=2)
@for_each("name", PROGRAMS)
def test_the_judge_rejects_every_mutant_that_some_interleaving_breaks(
    operator: str, name: str
) -> None:
    program = PROGRAMS[name]()
    assert not judge(program, "executor")
    escaped = [
        mutant
        for mutant in OPERATORS[operator](program)
        if not judge(mutant, "executor") and not equivalent(mutant)
    ]
    assert not escaped


@for_each("operator", OPERATORS)
def test_every_operator_makes_mutants_that_the_judge_rejects(operator: str) -> None:
    programs = [build() for build in PROGRAMS.values()]
    assert any(judge(mutant, "executor") for p in programs for mutant in OPERATORS[operator](p))

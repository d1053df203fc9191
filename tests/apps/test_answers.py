"""What evaluate says of wrong programs: the number of wrong elements, as nccl-tests counts."""

from dataclasses import replace
from pathlib import Path

import pytest

from taccl.apps import Lowering, Target
from taccl.apps.evaluation import Setting, answer_of, evaluate
from taccl.msccl.program import Buffer, Op, Program, Slot, Step, Threadblock
from taccl.msccl.xml import write_xml
from taccl.replay.cost import model_of
from taccl.topology.file import load_topology
from tests.synth.problems import classical_schedule, problem_of


def ring_program(collective: str = "allgather", ranks: int = 4) -> Program:
    problem = problem_of(load_topology(f"ring:{ranks}"), collective)
    schedule = classical_schedule(problem, "ring", batch=True)
    assert schedule is not None
    return Lowering(schedule, Target("executor"), 4096, "ring").best[0]


def without_steps(program: Program) -> Program:
    return replace(program, gpus=tuple(replace(gpu, threadblocks=()) for gpu in program.gpus))


def swapped(program: Program) -> Program:
    """Let rank 1 receive the first chunk where its third belongs."""
    gpu = program.gpus[1]
    (block,) = [b for b in gpu.threadblocks if b.recv_from is not None]
    first = block.steps[0]
    assert first.dst is not None
    wrong = replace(first, dst=Slot(first.dst.buffer, 2))
    changed = replace(block, steps=(wrong, *block.steps[1:]))
    blocks = tuple(changed if b is block else b for b in gpu.threadblocks)
    gpus = list(program.gpus)
    gpus[1] = replace(gpu, threadblocks=blocks)
    return replace(program, gpus=tuple(gpus))


@pytest.mark.parametrize("collective", ["allgather", "reducescatter", "allreduce"])
def test_a_right_program_has_nothing_wrong(collective: str) -> None:
    answer = answer_of(ring_program(collective))
    assert (answer.wrong, answer.told) == (0, "")


def test_a_program_that_does_nothing_is_wrong_everywhere() -> None:
    program = replace(without_steps(ring_program()), in_place=True, out_of_place=False)
    # In place every rank has its own chunk already.
    assert answer_of(program).wrong == 4 * 3
    answer = answer_of(replace(program, in_place=False, out_of_place=True))
    assert answer.wrong == 4 * 4
    assert answer.elements(1600) == 16 * 100
    assert "never written" in answer.told


def test_of_two_modes_the_worse_one_counts() -> None:
    program = replace(without_steps(ring_program()), in_place=True, out_of_place=True)
    assert answer_of(program).wrong == 16


def test_more_wrong_chunks_than_findings_are_all_counted() -> None:
    program = without_steps(ring_program(ranks=8))
    assert answer_of(replace(program, in_place=False, out_of_place=True)).wrong == 64


def test_a_program_whose_data_depends_on_the_order_is_not_counted() -> None:
    program = ring_program()
    gpu = program.gpus[0]
    hasty = Step(Op.COPY, Slot(Buffer.INPUT, 0), Slot(Buffer.OUTPUT, 2))
    blocks = (*gpu.threadblocks, Threadblock(len(gpu.threadblocks), None, None, 0, (hasty,)))
    answer = answer_of(
        replace(program, gpus=(replace(gpu, threadblocks=blocks), *program.gpus[1:]))
    )
    assert answer.wrong is None
    assert answer.told


def test_what_is_not_known_or_too_long_is_not_judged() -> None:
    program = ring_program()
    assert answer_of(replace(program, collective="mine")).wrong is None
    nop = Step(Op.NOP, count=100_000)
    gpu = program.gpus[0]
    block = replace(gpu.threadblocks[0], steps=(*gpu.threadblocks[0].steps, nop, nop))
    long = replace(gpu, threadblocks=(block, *gpu.threadblocks[1:]))
    answer = answer_of(replace(program, gpus=(long, *program.gpus[1:])))
    assert (answer.wrong, answer.told) == (None, "")


def test_every_row_of_several_files_says_what_is_wrong_at_its_size(tmp_path: Path) -> None:
    good, bad = ring_program(), swapped(ring_program())
    files = [str(tmp_path / "good.xml"), str(tmp_path / "bad.xml")]
    for file, program in zip(files, (good, bad), strict=True):
        Path(file).write_text(write_xml(program, "executor"))
    rows = evaluate(files, [1600, 3200], Setting(load_topology("ring:4"), model_of("executor")))
    told = [(Path(row.file).stem, row.size, row.wrong, row.bound is not None) for row in rows]
    wrong = answer_of(bad).wrong
    assert wrong
    assert told == [
        ("good", 1600, 0, True), ("good", 3200, 0, True),
        ("bad", 1600, 100 * wrong, True), ("bad", 3200, 200 * wrong, True),
    ]  # fmt: skip
    assert "result" in rows[2].note

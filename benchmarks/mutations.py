"""How many single mistakes in programs ``verify`` notices: ``python -m benchmarks.mutations``.

A right program is changed in one random place, written as XML and judged. What the judge lets
pass is run by an oracle that shares no code with it: every interleaving of small programs, many
random ones of others. Only what ends with the right data in all of them was no mistake.
"""

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from enum import Enum
from multiprocessing import get_context
from pathlib import Path
from random import Random
from types import MappingProxyType

from taccl.msccl.program import (
    READS_SOURCE,
    WRITES_TARGET,
    Buffer,
    Op,
    Program,
    Slot,
    Step,
    StepRef,
    Threadblock,
)
from taccl.msccl.verdict import judge_text
from taccl.msccl.xml import read_xml, write_xml
from tests.msccl import compiled_interleavings
from tests.msccl.builders import hub, make, mesh, pairs_schedule, ring_schedule
from tests.msccl.exhaustive import always_right
from tests.msccl.interleavings import SLOTS, modes_of
from tests.msccl.texts import SHARED

CORPUS = SHARED / "corpus"
SMALL_STEPS = 24
"""Steps up to which every interleaving is run."""

Edit = Callable[[Step, Random], Step]
Mutation = Callable[[Program, Random], Program | None]


@dataclass(frozen=True)
class Subject:
    """A right program and the runtime it is for."""

    name: str
    runtime: str
    program: Program


@dataclass(frozen=True)
class Mutant:
    """One change of a program."""

    subject: Subject
    operator: str
    program: Program


def own_programs() -> list[Subject]:
    """Return programs of every collective that the lowering makes, of two to four ranks."""
    made = {
        "ring allgather 3": make(ring_schedule("allgather", 3, 2)),
        "ring allgather 4": make(ring_schedule("allgather", 4)),
        "mesh allgather 3 in batches": make(pairs_schedule("allgather", mesh(3), 3, batched=True)),
        "hub allgather 4": make(pairs_schedule("allgather", hub(4))),
        "ring reducescatter 4": make(ring_schedule("reducescatter", 4)),
        "mesh reducescatter 3": make(pairs_schedule("reducescatter", mesh(3), 2)),
        "ring allreduce 3": make(ring_schedule("allreduce", 3)),
        "mesh allreduce 4": make(pairs_schedule("allreduce", mesh(4))),
        "mesh alltoall 4": make(pairs_schedule("alltoall", mesh(4)), in_place=False),
        "mesh alltoall 3 in place": make(
            pairs_schedule("alltoall", mesh(3)), out_of_place=False
        ),
    }  # fmt: skip
    return [Subject(name, "executor", program) for name, program in made.items()]


def shipped_programs(directory: Path = CORPUS, limit: int = 1 << 30) -> list[Subject]:
    """Return the files of Azure and RCCL, if they are here, up to a length in bytes."""
    found = []
    for path in sorted(directory.glob("*.xml")):
        if path.stat().st_size <= limit:
            runtime = "rccl" if path.name.startswith("rccl") else "executor"
            found.append(Subject(path.stem, runtime, read_xml(path.read_text(), runtime=runtime)))
    return found


def _picked(program: Program, random: Random) -> tuple[int, Threadblock]:
    """Return a random threadblock with steps, those with more of them more often."""
    blocks = [(rank, block) for rank, block in program.blocks() if block.steps]
    return random.choices(blocks, [len(block.steps) for _, block in blocks])[0]


def _with_block(program: Program, rank: int, block: Threadblock) -> Program:
    gpu = program.gpus[rank]
    blocks = tuple(block if one.id == block.id else one for one in gpu.threadblocks)
    changed = replace(gpu, threadblocks=blocks)
    return replace(
        program, gpus=tuple(changed if one is gpu else one for one in program.gpus)
    )  # fmt: skip


def _on_steps(edit: Callable[[list[Step], int, Random], None]) -> Mutation:
    def mutate(program: Program, random: Random) -> Program | None:
        rank, block = _picked(program, random)
        steps = list(block.steps)
        edit(steps, random.randrange(len(steps)), random)
        changed = tuple(steps)
        if changed == block.steps:
            return None
        return _with_block(program, rank, replace(block, steps=changed))

    return mutate


def _on_step(edit: Edit) -> Mutation:
    def edit_at(steps: list[Step], at: int, random: Random) -> None:
        steps[at] = edit(steps[at], random)

    return _on_steps(edit_at)


def _drop(steps: list[Step], at: int, _random: Random) -> None:
    del steps[at]


def _double(steps: list[Step], at: int, _random: Random) -> None:
    steps.insert(at, steps[at])


def _swap(steps: list[Step], at: int, _random: Random) -> None:
    if at + 1 < len(steps):
        steps[at], steps[at + 1] = steps[at + 1], steps[at]


def _change_slot(step: Step, random: Random, change: Callable[[Slot], Slot]) -> Step:
    ends = [
        name
        for name, kind, slot in (("src", READS_SOURCE, step.src), ("dst", WRITES_TARGET, step.dst))
        if step.op in kind and slot is not None
    ]
    if not ends:
        return step
    name = random.choice(ends)
    slot = change(getattr(step, name))
    return replace(step, src=slot) if name == "src" else replace(step, dst=slot)


def _shift(step: Step, random: Random) -> Step:
    by = random.choice((-1, 1))
    return _change_slot(step, random, lambda slot: slot._replace(offset=max(slot.offset + by, -1)))


def _move(step: Step, random: Random) -> Step:
    buffer = random.choice(list(Buffer))
    return _change_slot(step, random, lambda slot: slot._replace(buffer=buffer))


def _count(step: Step, random: Random) -> Step:
    if step.op is Op.NOP:  # nobody reads its count
        return step
    return replace(step, count=max(step.count + random.choice((-1, 1)), 0))


def _kind(step: Step, random: Random) -> Step:
    op = random.choice(list(Op))
    src, dst = step.src or step.dst, step.dst or step.src
    return replace(
        step,
        op=op,
        src=src if op in READS_SOURCE else None,
        dst=dst if op in WRITES_TARGET else None,
    )


def _no_dependence(step: Step, _random: Random) -> Step:
    return replace(step, depends=None)


def _other_dependence(step: Step, random: Random) -> Step:
    if step.depends is None:
        return step
    block, at = step.depends
    by = random.choice((-1, 1))
    moved = random.choice((StepRef(block + by, at), StepRef(block, at + by)))
    return replace(step, depends=StepRef(max(moved.threadblock, 0), max(moved.step, 0)))


def _no_post(step: Step, _random: Random) -> Step:
    return replace(step, posts=False)


def _peer(program: Program, random: Random) -> Program | None:
    rank, block = _picked(program, random)
    name = random.choice(("send_to", "recv_from"))
    peer = random.choice([None, *range(program.num_ranks)])
    if peer == getattr(block, name) or peer == rank:
        return None
    changed = replace(block, send_to=peer) if name == "send_to" else replace(block, recv_from=peer)
    return _with_block(program, rank, changed)


def _channel(program: Program, random: Random) -> Program | None:
    rank, block = _picked(program, random)
    channel = random.randrange(program.channels + 1)
    if channel == block.channel or (block.send_to is None and block.recv_from is None):
        return None
    return _with_block(program, rank, replace(block, channel=channel))


def _no_block(program: Program, random: Random) -> Program | None:
    rank, block = _picked(program, random)
    gpu = program.gpus[rank]
    kept = tuple(one for one in gpu.threadblocks if one is not block)
    changed = replace(gpu, threadblocks=kept)
    return replace(program, gpus=tuple(changed if one is gpu else one for one in program.gpus))


OPERATORS: Mapping[str, Mutation] = MappingProxyType({
    "drop a step": _on_steps(_drop),
    "double a step": _on_steps(_double),
    "swap two steps": _on_steps(_swap),
    "shift an offset": _on_step(_shift),
    "change a buffer": _on_step(_move),
    "change a count": _on_step(_count),
    "change a type": _on_step(_kind),
    "drop a dependence": _on_step(_no_dependence),
    "move a dependence": _on_step(_other_dependence),
    "drop hasdep": _on_step(_no_post),
    "change a peer": _peer,
    "change a channel": _channel,
    "drop a threadblock": _no_block,
})  # fmt: skip


def mutants(subjects: Sequence[Subject], count: int, seed: int) -> Iterator[Mutant]:
    """Yield random mutants: a random operator on a random program, each in one random place."""
    random = Random(seed)
    names = list(OPERATORS)
    made = 0
    while made < count:
        subject, operator = random.choice(subjects), random.choice(names)
        program = OPERATORS[operator](subject.program, random)
        if program is not None and program != subject.program:
            made += 1
            yield Mutant(subject, operator, program)


def is_rejected(mutant: Mutant) -> bool:
    """Tell whether ``verify`` objects to a mutant as it is written."""
    runtime = mutant.subject.runtime
    text = write_xml(mutant.program, runtime)
    return judge_text(text.encode(), runtime).worst is not None


def is_equivalent(mutant: Mutant, runs: int) -> bool:
    """Tell whether a mutant ends with the right data whatever the interleaving."""
    program = mutant.program
    steps = sum(len(block.steps) for _, block in program.blocks())
    if program.num_ranks <= 4 and steps <= SMALL_STEPS:
        try:
            return all(
                always_right(program, in_place=mode, capacity=SLOTS[program.protocol])
                for mode in modes_of(program)
            )
        except RuntimeError:  # too many states
            pass
    runtime = mutant.subject.runtime
    wrong = compiled_interleavings.first_wrong_run(program, runtime, runs=runs, seed=0)
    return wrong is None


class Fate(Enum):
    """What came of a mutant."""

    REJECTED = "rejected"
    EQUIVALENT = "equivalent"
    MISSED = "missed"


def fate(mutant: Mutant, runs: int) -> Fate:
    """Judge a mutant, and run it if it passes."""
    if is_rejected(mutant):
        return Fate.REJECTED
    return Fate.EQUIVALENT if is_equivalent(mutant, runs) else Fate.MISSED


@dataclass(frozen=True)
class Score:
    """What came of so many mutants."""

    rejected: int
    equivalent: tuple[Mutant, ...]
    missed: tuple[Mutant, ...]

    @property
    def share(self) -> float:
        """The rejected part of those that are mistakes."""
        return self.rejected / max(self.rejected + len(self.missed), 1)


_IN_WORKER: list[Mutant] = []


def _start_worker(found: Sequence[Mutant]) -> None:
    _IN_WORKER[:] = found


def _fate_in_worker(number: int, runs: int) -> Fate:
    return fate(_IN_WORKER[number], runs)


def fates(found: Sequence[Mutant], runs: int, workers: int = 1) -> Iterator[Fate]:
    """Yield the fates of mutants in their order, found out in so many processes."""
    if workers == 1:
        yield from (fate(mutant, runs) for mutant in found)
        return
    # All mutants go to a worker at once: they share nearly all of their programs.
    with ProcessPoolExecutor(
        workers, get_context("spawn"), initializer=_start_worker, initargs=(found,)
    ) as pool:
        yield from pool.map(_fate_in_worker, range(len(found)), [runs] * len(found))


def score(found: Sequence[Mutant], runs: int, workers: int = 1) -> Score:
    """Judge mutants, and run those that pass."""
    of: dict[Fate, list[Mutant]] = {kind: [] for kind in Fate}
    for mutant, kind in zip(found, fates(found, runs, workers), strict=True):
        of[kind].append(mutant)
    return Score(len(of[Fate.REJECTED]), tuple(of[Fate.EQUIVALENT]), tuple(of[Fate.MISSED]))


def main() -> int:
    """Run the benchmark; the exit status is 1 below 97 %."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--corpus", type=Path, default=CORPUS, help="directory of shipped files")
    parser.add_argument("--max-bytes", type=int, default=1 << 30, help="length of shipped files")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    options = parser.parse_args()
    subjects = [*own_programs(), *shipped_programs(options.corpus, options.max_bytes)]
    found = list(mutants(subjects, options.count, options.seed))
    result = score(found, options.runs, options.workers)
    made = Counter(mutant.operator for mutant in found)
    passed = Counter(mutant.operator for mutant in (*result.equivalent, *result.missed))
    for operator, count in sorted(made.items()):
        print(f"{operator:20} {count:5} made {count - passed[operator]:5} rejected")
    print(
        f"{len(found)} mutants of {len(subjects)} programs: {result.rejected} rejected,"
        f" {len(result.equivalent)} equivalent, {len(result.missed)} missed:"
        f" {result.share:.2%} of the mistakes"
    )
    for word, survivors in (("equivalent", result.equivalent), ("missed", result.missed)):
        for mutant in survivors:
            print(f"{word}: {mutant.operator} in {mutant.subject.name}")
    return 0 if result.share >= 0.97 else 1


if __name__ == "__main__":
    raise SystemExit(main())
